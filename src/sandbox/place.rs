//! Where things are: the directories of a root and where Postgres may keep its own.
//! Promises paths that Postgres can use: reachable for its user, sockets short enough for the
//! kernel. Does not decide who that user is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};

use super::Error;
use super::account::{Account, private_directory};

/// `sun_path` of unix(7) has 108 bytes and ends with a NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// What Postgres puts into its socket directory; the number is that of the default port.
const SOCKET_NAME: &str = ".s.PGSQL.5432";
/// Above this size a log is set aside when its service starts.
const LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Where Postgres keeps what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The data directory.
    pub(super) data: PathBuf,
    /// The directory of the socket.
    pub(super) sockets: PathBuf,
}

impl Place {
    /// Decides where Postgres lives for this root and makes the directories around it.
    ///
    /// A root that the account cannot reach, as any below /root, is left for a directory below
    /// /var/lib that is named after it; the file `postgres.elsewhere` in the root says which.
    pub(super) fn choose(root: &Path, account: Option<Account>) -> Result<Self, Error> {
        let base = base(root, account)?;
        let sockets = socket_directory(&base);
        private_directory(&sockets, account)?;
        Ok(Self { data: base.join("postgres"), sockets })
    }
}

/// Where the account can have directories for this root.
fn base(root: &Path, account: Option<Account>) -> Result<PathBuf, Error> {
    match account {
        Some(account) if !account.reaches(root) => {
            let base = Path::new("/var/lib").join(format!("forebay-{}", fingerprint(root)));
            open_directory(&base)?;
            let note = root.join("postgres.elsewhere");
            fs::write(&note, format!("{}\n", base.display())).map_err(Error::io("write", &note))?;
            Ok(base)
        }
        Some(_) | None => Ok(root.to_owned()),
    }
}

/// Where `PgBouncer` has its files and its socket, for this account alone.
pub(super) fn place_of_pgbouncer(
    root: &Path,
    account: Option<Account>,
) -> Result<(PathBuf, PathBuf), Error> {
    let own = base(root, account)?.join("pgbouncer");
    private_directory(&own, account)?;
    let sockets = socket_directory(&own);
    private_directory(&sockets, account)?;
    Ok((own, sockets))
}

/// Makes the root with its directory of logs and returns it without links and dots. A root of the
/// superuser's is opened for passage, so that Postgres' user gets through.
pub(super) fn prepare(root: &Path) -> Result<PathBuf, Error> {
    fs::create_dir_all(root).map_err(Error::io("create", root))?;
    let root = fs::canonicalize(root).map_err(Error::io("resolve", root))?;
    if rustix::process::geteuid().is_root() {
        open_directory(&root)?;
    }
    let logs = root.join("logs");
    fs::create_dir_all(&logs).map_err(Error::io("create", &logs))?;
    Ok(root)
}

/// The log file of a service. A long one is set aside first.
pub(super) fn log_file(root: &Path, service: &str) -> PathBuf {
    let log = root.join("logs").join(format!("{service}.log"));
    let long = fs::metadata(&log).is_ok_and(|found| found.len() > LOG_BYTES_MAX);
    if long && let Err(error) = fs::rename(&log, log.with_extension("log.1")) {
        tracing::debug!(%error, "log {} grows on", log.display());
    }
    log
}

/// The last lines of a log, for an error message.
pub(super) fn last_lines(log: &Path) -> String {
    const LINES: usize = 8;
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Twelve hex digits that stand for a path.
pub(super) fn fingerprint(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let hash = digest(&SHA256, path.as_os_str().as_bytes());
    hash.as_ref()[..6].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn socket_directory(base: &Path) -> PathBuf {
    let beside = base.join("socket");
    if beside.as_os_str().len() + 1 + SOCKET_NAME.len() <= SOCKET_PATH_BYTES_MAX {
        beside
    } else {
        Path::new("/tmp").join(format!("forebay-{}", fingerprint(base)))
    }
}

fn open_directory(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(Error::io("create", path))?;
    let mode = fs::metadata(path).map_err(Error::io("inspect", path))?.permissions().mode();
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o711))
        .map_err(Error::io("open", path))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{SOCKET_NAME, SOCKET_PATH_BYTES_MAX, fingerprint, last_lines, socket_directory};

    #[test]
    fn a_socket_path_never_exceeds_what_the_kernel_takes() {
        for length in 1..200 {
            let base = Path::new("/").join("d".repeat(length));
            let socket = socket_directory(&base).join(SOCKET_NAME);
            assert!(socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX, "{}", socket.display());
        }
    }

    #[test]
    fn a_short_root_keeps_its_socket_a_deep_one_does_not() {
        assert_eq!(socket_directory(Path::new("/srv/a b")), Path::new("/srv/a b/socket"));
        let deep = Path::new("/srv").join("d".repeat(100));
        assert!(socket_directory(&deep).starts_with("/tmp"));
    }

    #[test]
    fn different_roots_have_different_fingerprints() {
        assert_eq!(fingerprint(Path::new("/a")).len(), 12);
        assert_ne!(fingerprint(Path::new("/a")), fingerprint(Path::new("/b")));
    }

    #[test]
    fn the_end_of_a_log_is_its_last_eight_lines() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("x.log");
        assert_eq!(last_lines(&log), "");
        let text: Vec<String> = (1..=20).map(|line| line.to_string()).collect();
        fs::write(&log, text.join("\n")).unwrap();
        assert_eq!(last_lines(&log), "13\n14\n15\n16\n17\n18\n19\n20");
    }
}
