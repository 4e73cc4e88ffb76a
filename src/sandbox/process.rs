//! Processes as Linux's /proc shows them: who they are, whose children, and how to end them all.
//! Promises that a process is only signalled while it is the one that was meant, not a later one
//! with the same number. Does not start processes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::time::{sleep, timeout};

/// A process inside a write to a slow disk stops when that is done.
const PAUSE_DEADLINE: Duration = Duration::from_secs(5);

/// A process beyond doubt: numbers are reused, a number with a start time is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pid: u32,
    /// Clock ticks since boot at which it started.
    born: u64,
}

impl Identity {
    /// The process that has this number at the moment.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let stat = Stat::read(&Path::new("/proc").join(pid.to_string()))?;
        Some(Self { pid, born: stat.born })
    }

    pub(super) fn pid(self) -> u32 {
        self.pid
    }

    /// Whether it still runs. A zombie does not.
    pub(super) fn is_alive(self) -> bool {
        Stat::read(&Path::new("/proc").join(self.pid.to_string()))
            .is_some_and(|stat| stat.born == self.born && stat.state != State::Dead)
    }

    /// Its direct children.
    pub(super) fn children(self) -> Vec<Self> {
        let Ok(entries) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| {
                let pid = entry.file_name().to_str()?.parse().ok()?;
                let stat = Stat::read(&entry.path())?;
                (stat.parent == self.pid).then_some(Self { pid, born: stat.born })
            })
            .collect()
    }

    /// Sends a signal, if it is still there to get it.
    pub(super) fn signal(self, signal: Signal) {
        if let Some(pid) = self.target()
            && let Err(error) = kill_process(pid, signal)
        {
            tracing::debug!(process.id = self.pid, %error, "signal did not arrive");
        }
    }

    /// Stops it and its children until [`Self::resume`], and returns when they stand. Itself first,
    /// so that it cannot fork one that is missed.
    pub(super) async fn pause(self) {
        self.signal(Signal::STOP);
        self.until_stopped().await;
        let children = self.children();
        for child in &children {
            child.signal(Signal::STOP);
        }
        for child in children {
            child.until_stopped().await;
        }
    }

    /// The signal only asks: on a busy machine a thread runs on for a while.
    async fn until_stopped(self) {
        let stopped = async {
            while self.is_alive() && self.has_running_thread() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        if timeout(PAUSE_DEADLINE, stopped).await.is_err() {
            tracing::warn!(process.id = self.pid, "process {} does not stop", self.pid);
        }
    }

    fn has_running_thread(self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        threads
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|thread| Stat::read(&thread.path()))
            .any(|thread| thread.state == State::Running)
    }

    /// Lets it and its children run again.
    pub(super) fn resume(self) {
        for child in self.children() {
            child.signal(Signal::CONT);
        }
        self.signal(Signal::CONT);
    }

    /// Kills it, its children and its process group, stopped or not, and returns whom it hit.
    /// The children are listed because those of Postgres each lead a group of their own.
    pub(super) fn kill_tree(self) -> Vec<Self> {
        let mut victims = vec![self];
        self.signal(Signal::STOP);
        victims.extend(self.children());
        if let Some(group) = self.target() {
            // Refused when the process leads no group; then the signals below do.
            if let Err(error) = kill_process_group(group, Signal::KILL) {
                tracing::debug!(process.id = self.pid, %error, "process leads no group");
            }
        }
        for victim in &victims {
            victim.signal(Signal::KILL);
        }
        victims
    }

    fn target(self) -> Option<Pid> {
        if Self::of(self.pid) != Some(self) {
            return None;
        }
        Pid::from_raw(i32::try_from(self.pid).ok()?)
    }

    /// The text of a pid file: number, start time, boot.
    pub(super) fn to_line(self, boot: &str) -> String {
        format!("{} {} {boot}\n", self.pid, self.born)
    }

    /// Reads what [`Self::to_line`] wrote. `None` for another boot: there the pair means nothing.
    pub(super) fn from_line(line: &str, boot: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let identity =
            Self { pid: fields.next()?.parse().ok()?, born: fields.next()?.parse().ok()? };
        (fields.next() == Some(boot)).then_some(identity)
    }
}

/// The name of the current boot.
pub(super) fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    match id.trim() {
        "" => "unknown".to_owned(),
        id => id.to_owned(),
    }
}

/// The name of the program that a process runs, cut at 15 bytes by the kernel. A zombie runs none.
pub(super) fn running_program(pid: u32) -> Option<String> {
    Identity::of(pid).filter(|process| process.is_alive())?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// What a process or a thread is doing, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It runs or waits for something.
    Running,
    /// It stands until it gets SIGCONT.
    Stopped,
    /// It has ended and may wait for its parent to notice.
    Dead,
}

/// The fields of `/proc/<pid>/stat` that are used here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: State,
    parent: u32,
    born: u64,
}

impl Stat {
    fn read(process: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(process.join("stat")).ok()?)
    }

    /// The second field is the program's name in parentheses and may itself hold blanks and
    /// parentheses, so fields are counted from the last closing one: state is the 3rd field,
    /// parent the 4th, start time the 22nd (proc(5)).
    fn parse(text: &str) -> Option<Self> {
        let (_, after_name) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        Some(Self {
            state: match *fields.first()? {
                "Z" | "X" | "x" => State::Dead,
                // One that is traced, as slow syncs are made, stands in the second way.
                "T" | "t" => State::Stopped,
                _ => State::Running,
            },
            parent: fields.get(1)?.parse().ok()?,
            born: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Identity, Stat, State};

    const LINE: &str = "17 (a) b (c) S 4 17 17 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3";

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        assert_eq!(
            Stat::parse(LINE),
            Some(Stat { state: State::Running, parent: 4, born: 987_654 })
        );
    }

    #[test]
    fn a_zombie_is_dead_and_a_paused_process_is_not() {
        let state = |letter| Stat::parse(&LINE.replace(") S ", letter)).unwrap().state;
        assert_eq!(state(") Z "), State::Dead);
        assert_eq!(state(") T "), State::Stopped);
        assert_eq!(state(") t "), State::Stopped);
        assert_eq!(state(") D "), State::Running);
    }

    #[test]
    fn a_cut_line_is_no_process() {
        assert_eq!(Stat::parse("17 (a) S 4"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_pid_file_is_read_back_within_the_same_boot_only() {
        let identity = Identity { pid: 17, born: 987_654 };
        let line = identity.to_line("boot-a");
        assert_eq!(Identity::from_line(&line, "boot-a"), Some(identity));
        assert_eq!(Identity::from_line(&line, "boot-b"), None);
        assert_eq!(Identity::from_line("17", "boot-a"), None);
        assert_eq!(Identity::from_line("x 1 boot-a", "boot-a"), None);
    }

    #[test]
    fn a_reused_number_is_another_process() {
        let own = Identity::of(std::process::id()).unwrap();
        assert!(own.is_alive());
        let earlier = Identity { born: own.born - 1, ..own };
        assert!(!earlier.is_alive());
        assert!(earlier.target().is_none());
    }
}
