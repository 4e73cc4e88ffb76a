//! The `forebay` program.
//! Parses the command line and runs the command.
//! Everything else is in the library.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    forebay::cli::main()
}
