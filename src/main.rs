//! The `forebay` program.
//! Parses the command line and runs the command.
//! Everything else is in the library.

#![forbid(unsafe_code)]

/// A send takes and gives back about thirty small pieces of memory across threads. With the system's allocator that
/// was a quarter of the server's time (`docs/BENCHMARKS.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    forebay::cli::main()
}
