//! One owner per part of a root directory, and no survivors of the previous owner.
//! Promises that while a claim lives no other process starts the same service on the same data.
//! Does not start or watch anything.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::time::{sleep, timeout};

use super::Error;
use super::process::{self, Identity};

/// Long enough for the kernel to end a process that is writing to a slow disk.
const SURVIVOR_DEADLINE: Duration = Duration::from_secs(10);

/// The right to one service of a root. Given up on drop, by the kernel when the process dies.
#[derive(Debug)]
pub(super) struct Claim {
    _lock: File,
    pid_file: PathBuf,
}

impl Claim {
    /// Takes the service's lock and ends what a crashed owner left running.
    pub(super) async fn take(root: &Path, service: &'static str) -> Result<Self, Error> {
        let Some(lock) = lock(root, service)? else {
            let pid = holder(&lock_path(root, service));
            return Err(Error::InUse { root: root.to_owned(), service, pid });
        };
        let claim = Self { _lock: lock, pid_file: root.join(format!("{service}.pid")) };
        claim.end_survivors(service).await?;
        Ok(claim)
    }

    /// Notes which process runs under this claim.
    pub(super) fn record(&self, identity: Identity) -> Result<(), Error> {
        fs::write(&self.pid_file, identity.to_line(&process::boot()))
            .map_err(Error::io("write", &self.pid_file))
    }

    /// Notes that none does.
    pub(super) fn clear(&self) {
        if let Err(error) = fs::remove_file(&self.pid_file) {
            tracing::debug!(%error, "pid file {} stays", self.pid_file.display());
        }
    }

    async fn end_survivors(&self, service: &'static str) -> Result<(), Error> {
        let Ok(line) = fs::read_to_string(&self.pid_file) else {
            return Ok(());
        };
        if let Some(survivor) = Identity::from_line(&line, &process::boot())
            && survivor.is_alive()
        {
            let pid = survivor.pid();
            tracing::warn!(process.id = pid, "ending {service}, process {pid}, of an earlier run");
            survivor.pause().await;
            gone(&survivor.kill_tree(), SURVIVOR_DEADLINE, service, &self.pid_file).await?;
        }
        self.clear();
        Ok(())
    }
}

/// Waits until none of the processes runs any more. They are not our children, so there is
/// nothing to wait on but their absence.
pub(super) async fn gone(
    processes: &[Identity],
    within: Duration,
    service: &'static str,
    log: &Path,
) -> Result<(), Error> {
    let absent = async {
        while processes.iter().any(|process| process.is_alive()) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(within, absent).await.map_err(|_elapsed| Error::Slow {
        service,
        what: "end",
        within,
        log: log.to_owned(),
    })
}

/// Takes a lock below `root`, or `None` when another has it. The file then names its holder.
pub(super) fn lock(root: &Path, name: &str) -> Result<Option<File>, Error> {
    let path = lock_path(root, name);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .map_err(Error::io("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(Error::io("lock", &path)(error.into())),
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(Error::io("write", &path))?;
    Ok(Some(file))
}

/// The process that wrote itself into a lock file.
pub(super) fn holder(path: &Path) -> Option<u32> {
    let mut text = String::new();
    File::open(path).ok()?.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Where the lock of that name is.
pub(super) fn lock_path(root: &Path, name: &str) -> PathBuf {
    root.join(format!("{name}.lock"))
}

#[cfg(test)]
mod tests {
    use super::{Claim, holder, lock_path};
    use crate::sandbox::Error;

    #[tokio::test]
    async fn a_second_claim_is_refused_and_names_the_first_owner() {
        let root = tempfile::tempdir().unwrap();
        let first = Claim::take(root.path(), "postgres").await.unwrap();
        let refused = Claim::take(root.path(), "postgres").await.unwrap_err();
        let own = std::process::id();
        assert!(matches!(refused, Error::InUse { pid: Some(pid), .. } if pid == own));
        assert!(refused.to_string().ends_with(&format!("is in use by process {own}")));
        drop(first);
        Claim::take(root.path(), "postgres").await.unwrap();
    }

    #[tokio::test]
    async fn claims_of_different_services_do_not_touch() {
        let root = tempfile::tempdir().unwrap();
        let _postgres = Claim::take(root.path(), "postgres").await.unwrap();
        let _nats = Claim::take(root.path(), "nats").await.unwrap();
        assert_eq!(holder(&lock_path(root.path(), "nats")), Some(std::process::id()));
    }
}
