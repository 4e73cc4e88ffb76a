//! A private Postgres: a data directory, a Unix socket, no network, one superuser `forebay`.
//! Promises that it accepts connections when `start` or `restart` returns, and that committed
//! data survives `kill` and `restart`. Does not migrate or query, except to create a database.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::account::Account;
use super::claim::Claim;
use super::leash::{Errand, Leash, Polite, exit};
use super::place::{Place, log_file, prepare};
use super::process;
use super::ward::Ward;
use super::{Binaries, Durability, Error, Exit, Options};

const SERVICE: &str = "postgres";
/// The superuser's role.
pub(super) const ROLE: &str = "forebay";
/// The default port, which is in the name of the socket.
pub(super) const PORT: u16 = 5432;
/// Room for two pools of several nodes in one test process, and for the reference endpoints of a
/// comparison.
const CONNECTIONS_MAX: u16 = 200;
/// Recovery replays the log of up to one checkpoint distance; on a slow disk that takes a while.
const START_DEADLINE: Duration = Duration::from_mins(2);
/// A fast shutdown writes one checkpoint.
const STOP_DEADLINE: Duration = Duration::from_secs(10);
const PSQL_DEADLINE: Duration = Duration::from_secs(30);
/// What Postgres says while sessions of a server that died still hold its memory. They see within
/// milliseconds that it is gone, on a busy machine within a second.
const ORPHANS: &str = "pre-existing shared memory block";
const ORPHAN_WAITS: u32 = 100;
const ORPHAN_WAIT: Duration = Duration::from_millis(50);

/// Whether a statement was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Yes,
    No,
}

/// A Postgres of our own. Dropping it kills it; [`Self::stop`] ends it in order.
#[derive(Debug)]
pub struct Postgres {
    root: PathBuf,
    programs: PathBuf,
    durability: Durability,
    place: Place,
    account: Option<Account>,
    ward: Ward,
}

impl Postgres {
    /// Starts the Postgres of this root, creating its data directory the first time.
    ///
    /// # Errors
    /// [`Error::InUse`] when another process has this root, [`Error::Died`] or [`Error::Slow`]
    /// when the server does not come up, [`Error::Io`] otherwise.
    pub async fn start(binaries: &Binaries, options: &Options) -> Result<Self, Error> {
        let root = prepare(&options.root)?;
        let ward = Ward::new(Claim::take(&root, SERVICE).await?, log_file(&root, SERVICE));
        let (place, account) = settle(&root)?;
        let mut postgres = Self {
            root,
            programs: binaries.postgres_bin.clone(),
            durability: options.durability,
            place,
            account,
            ward,
        };
        postgres.initialize().await?;
        postgres.launch().await?;
        Ok(postgres)
    }

    /// The address of a database, as sqlx and psql take it.
    pub fn url(&self, database: &str) -> String {
        url(&self.place.sockets, PORT, database)
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.place.sockets.join(format!(".s.PGSQL.{PORT}"))
    }

    /// The directory of its socket, and whom that directory is open to.
    pub(super) fn door(&self) -> (&Path, Option<Account>) {
        (&self.place.sockets, self.account)
    }

    /// The process number of the server, the last one when it does not run.
    pub fn pid(&self) -> u32 {
        self.ward.pid()
    }

    /// Where the data is: below the root unless the user that runs Postgres cannot get there.
    pub fn data_dir(&self) -> &Path {
        &self.place.data
    }

    /// Creates a database, or leaves the one of that name alone.
    ///
    /// # Errors
    /// [`Error::DatabaseName`] for a name that would need quoting, [`Error::CreateDatabase`] when
    /// the server refuses or does not answer.
    pub async fn create_database(&self, name: &str) -> Result<(), Error> {
        if !is_plain_name(name) {
            return Err(Error::DatabaseName { name: name.to_owned() });
        }
        let refused = |message| Error::CreateDatabase { name: name.to_owned(), message };
        let (done, message) = self.psql(&format!("CREATE DATABASE {name}")).await?;
        // 42P04 is duplicate_database (PostgreSQL, appendix A).
        if done == Done::Yes || message.contains("42P04") { Ok(()) } else { Err(refused(message)) }
    }

    /// Ends every session but those of clients that call themselves by this name.
    ///
    /// # Errors
    /// [`Error::EndSessions`] when the server refuses or does not answer.
    pub async fn end_sessions_but(&self, name: &str) -> Result<(), Error> {
        let statement = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
             AND backend_type = 'client backend' AND application_name <> '{}'",
            name.replace('\'', "''")
        );
        match self.psql(&statement).await? {
            (Done::Yes, _) => Ok(()),
            (Done::No, message) => Err(Error::EndSessions { message }),
        }
    }

    /// Has a statement run, and gives what psql says when it fails.
    async fn psql(&self, statement: &str) -> Result<(Done, String), Error> {
        let program = self.programs.join("psql");
        let mut command = Command::new(&program);
        command
            .args(["-X", "-q", "-w", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=sqlstate"])
            .arg("-h")
            .arg(&self.place.sockets)
            .args(["-U", ROLE, "-d", "postgres", "-c", statement])
            .env_clear()
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let Ok(output) = timeout(PSQL_DEADLINE, command.output()).await else {
            return Ok((Done::No, "no answer".to_owned()));
        };
        let output = output.map_err(Error::io("run", &program))?;
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Ok((if output.status.success() { Done::Yes } else { Done::No }, message))
    }

    /// Stops the server and all its sessions where they are: connections stay open and silent. They
    /// stand on return.
    pub async fn pause(&self) {
        self.ward.pause().await;
    }

    /// Lets a paused server run on.
    pub fn resume(&self) {
        self.ward.resume();
    }

    /// Ends the server and all its sessions with SIGKILL, paused or not.
    ///
    /// # Errors
    /// [`Error::Slow`] when the kernel does not end them in time.
    pub async fn kill(&mut self) -> Result<(), Error> {
        self.ward.kill().await
    }

    /// Starts the server again on the same data, stopping it first when it runs.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.end().await?;
        self.launch().await
    }

    /// Waits until the server ends by itself. At once when it does not run.
    ///
    /// Cancel safe: the next call waits on.
    ///
    /// # Errors
    /// [`Error::Io`] when the process cannot be waited for.
    pub async fn watch(&mut self) -> Result<Exit, Error> {
        self.ward.watch().await
    }

    /// Ends the server in order: sessions are closed, data is written. Killed when that takes long.
    ///
    /// # Errors
    /// [`Error::Slow`] when even the kill takes too long.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.end().await
    }

    async fn end(&mut self) -> Result<(), Error> {
        // SIGINT is the fast shutdown (PostgreSQL, "Shutting Down the Server").
        self.ward.end(Signal::INT, STOP_DEADLINE).await
    }

    /// Runs initdb beside the final directory and renames, so that one cut short is never used.
    async fn initialize(&self) -> Result<(), Error> {
        let data = &self.place.data;
        if data.join("PG_VERSION").exists() {
            return Ok(());
        }
        let partial = data.with_extension("partial");
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(Error::io("remove", &partial))?;
        }
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&partial)
            .map_err(Error::io("create", &partial))?;
        if let Some(account) = self.account {
            chown(&partial, Some(account.user), Some(account.group))
                .map_err(Error::io("hand over", &partial))?;
        }
        let mut arguments: Vec<OsString> =
            ["--encoding=UTF8", "--locale=C.UTF-8", "--auth=trust"].map(OsString::from).to_vec();
        arguments.extend(["--no-instructions".into(), format!("--username={ROLE}").into()]);
        if self.durability == Durability::Fast {
            arguments.push("--no-sync".into());
        }
        arguments.extend(["--pgdata".into(), partial.clone().into()]);
        let errand = self.errand("initdb", arguments);
        let mut leash = Leash::start(&errand)?;
        let status = match timeout(START_DEADLINE, leash.wait()).await {
            Ok(status) => status?,
            Err(_elapsed) => return Err(slow("initialize its data", &errand.log)),
        };
        if !status.success() {
            let exit = exit(&errand.log, Some(status));
            return Err(Error::Died { service: "initdb", exit });
        }
        fs::rename(&partial, data).map_err(Error::io("rename", &partial))
    }

    /// Sessions of a server that died by itself outlive it for a moment and hold its memory; they are waited for.
    async fn launch(&mut self) -> Result<(), Error> {
        let mut waits = ORPHAN_WAITS;
        loop {
            match self.try_launch().await {
                Err(Error::Died { exit, .. }) if waits > 0 && exit.last_lines.contains(ORPHANS) => {
                    waits -= 1;
                    sleep(ORPHAN_WAIT).await;
                }
                launched => return launched,
            }
        }
    }

    async fn try_launch(&mut self) -> Result<(), Error> {
        let notes = self.place.data.join("postmaster.pid");
        disown(&notes);
        disown(&self.place.sockets.join(".s.PGSQL.5432.lock"));
        let mut arguments: Vec<OsString> = vec!["-D".into(), self.place.data.clone().into()];
        for setting in settings(self.durability) {
            arguments.extend(["-c".into(), setting.into()]);
        }
        let mut sockets = OsString::from("unix_socket_directories=");
        sockets.push(quote(&self.place.sockets));
        arguments.extend(["-c".into(), sockets]);
        let errand = self.errand(SERVICE, arguments);
        let mut leash = Leash::start(&errand)?;
        self.ward.record(&leash)?;
        let pid = leash.identity().pid();
        let ready = async {
            while !is_ready(&fs::read_to_string(&notes).unwrap_or_default(), pid) {
                leash.expect_running()?;
                sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        };
        match timeout(START_DEADLINE, ready).await {
            Ok(ready) => ready?,
            Err(_elapsed) => return Err(slow("get ready", &errand.log)),
        }
        self.ward.hold(leash, SERVICE);
        Ok(())
    }

    fn errand(&self, program: &'static str, arguments: Vec<OsString>) -> Errand {
        Errand {
            service: program,
            program: self.programs.join(program),
            arguments,
            log: log_file(&self.root, SERVICE),
            account: self.account,
            polite: Polite::Quit,
        }
    }
}

/// Chooses where and as whom: who owns existing data keeps it.
fn settle(root: &Path) -> Result<(Place, Option<Account>), Error> {
    let account =
        Account::to_become().map(|account| Account::of(&root.join("postgres")).unwrap_or(account));
    Ok((Place::choose(root, account)?, account))
}

fn slow(what: &'static str, log: &Path) -> Error {
    Error::Slow { service: SERVICE, what, within: START_DEADLINE, log: log.to_owned() }
}

/// The settings that differ from what initdb wrote.
fn settings(durability: Durability) -> Vec<String> {
    let mut settings = vec![
        "listen_addresses=".to_owned(),
        format!("max_connections={CONNECTIONS_MAX}"),
        "timezone=UTC".to_owned(),
        "log_timezone=UTC".to_owned(),
        "log_checkpoints=off".to_owned(),
        // The default leaves files in /dev/shm behind a kill; these lie in the data directory.
        "dynamic_shared_memory_type=mmap".to_owned(),
    ];
    if durability == Durability::Fast {
        // Commits are still written before they are confirmed, which a kill of the process
        // survives; they are not forced to the disk.
        settings.extend(["fsync=off".to_owned(), "full_page_writes=off".to_owned()]);
    }
    settings
}

/// Whether `postmaster.pid` says that this process accepts connections. The first line is its
/// number, the eighth its state (PostgreSQL, miscinit.h); `pg_ctl -w` reads the same.
fn is_ready(notes: &str, pid: u32) -> bool {
    let mut lines = notes.lines();
    lines.next().is_some_and(|line| line.trim() == pid.to_string())
        && lines.nth(6).is_some_and(|line| line.trim() == "ready")
}

/// Disowns a lock file of an earlier server whose number is a stranger's by now, or that of a dead
/// process nobody has reaped, as in a container without an init: Postgres would take either for the
/// server. With its parent's number, ours, it knows the file for stale, and still looks for orphaned
/// sessions in the memory that the file names. What a Postgres holds is left alone.
fn disown(lock: &Path) {
    let Ok(notes) = fs::read_to_string(lock) else {
        return;
    };
    let Some((first, rest)) = notes.split_once('\n') else {
        return;
    };
    let Ok(pid) = first.trim().parse() else {
        return;
    };
    let held = process::running_program(pid).is_some_and(|name| name.starts_with("postgres"));
    let stale = format!("{}\n{rest}", std::process::id());
    if !held && let Err(error) = fs::write(lock, stale) {
        tracing::warn!(%error, "cannot disown the stale lock {}", lock.display());
    }
}

/// Quotes a directory for a setting that is a list of directories.
fn quote(directory: &Path) -> OsString {
    let mut quoted = OsString::from("\"");
    match directory.to_str() {
        Some(text) => quoted.push(text.replace('"', "\"\"")),
        None => quoted.push(directory),
    }
    quoted.push("\"");
    quoted
}

/// The address of a database behind a socket.
pub(super) fn url(sockets: &Path, port: u16, database: &str) -> String {
    let host = percent_encode(sockets.as_os_str().as_encoded_bytes());
    format!("postgres://{ROLE}@localhost:{port}/{database}?host={host}")
}

fn percent_encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, &byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            text + char::from(byte).encode_utf8(&mut [0; 4])
        }
        _ => format!("{text}%{byte:02X}"),
    })
}

/// A name that needs no quotes in SQL or in a URL.
fn is_plain_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= 63
        && bytes.next().is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{Durability, disown, is_plain_name, is_ready, percent_encode, quote, settings};

    const NOTES: &str = "4711\n/d\n1700000000\n5432\n/s\n\n  1234567 7\nready   \n";

    #[test]
    fn ready_is_what_our_own_server_wrote() {
        assert!(is_ready(NOTES, 4711));
        assert!(!is_ready(NOTES, 471));
        assert!(!is_ready(&NOTES.replace("ready", "starting"), 4711));
        assert!(!is_ready("4711\n/d\n", 4711));
        assert!(!is_ready("", 4711));
    }

    #[test]
    fn a_lock_whose_number_is_a_strangers_becomes_ours_and_keeps_the_rest() {
        let root = tempfile::tempdir().unwrap();
        let lock = root.path().join("postmaster.pid");
        disown(&lock);
        assert!(!lock.exists());
        fs::write(&lock, NOTES.replace("4711", "1")).unwrap();
        disown(&lock);
        let own = std::process::id().to_string();
        assert_eq!(fs::read_to_string(&lock).unwrap(), NOTES.replace("4711", &own));
    }

    #[test]
    fn a_path_survives_the_list_of_directories() {
        assert_eq!(quote(Path::new("/a b,c")), "\"/a b,c\"");
        assert_eq!(quote(Path::new("/a\"b")), "\"/a\"\"b\"");
    }

    #[test]
    fn a_path_survives_the_url() {
        assert_eq!(percent_encode("/a b/ü".as_bytes()), "%2Fa%20b%2F%C3%BC");
    }

    #[test]
    fn only_names_without_need_of_quotes_are_database_names() {
        assert!(is_plain_name("world_17"));
        for bad in ["", "17", "a-b", "A", "a;b", "a b", &"a".repeat(64)] {
            assert!(!is_plain_name(bad), "{bad}");
        }
    }

    #[test]
    fn only_the_fast_one_gives_up_fsync_and_none_gives_up_committed_work() {
        assert!(!settings(Durability::Full).contains(&"fsync=off".to_owned()));
        assert!(settings(Durability::Fast).contains(&"fsync=off".to_owned()));
        for durability in [Durability::Full, Durability::Fast] {
            let all = settings(durability);
            assert!(!all.iter().any(|setting| setting.starts_with("synchronous_commit")));
            assert!(all.contains(&"listen_addresses=".to_owned()));
        }
    }
}
