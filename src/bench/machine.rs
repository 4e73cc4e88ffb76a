//! The machine under a benchmark, and what processes took of it.
//! Promises facts that were read or measured, never assumed; what the platform does not tell is absent.
//! Does not tune anything.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::{Error, io};
use crate::clock::Clock;
use crate::load::tally::{millis, precise};

/// What the figures of a benchmark depend on.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Hardware threads that this process may use.
    pub cores: usize,
    /// The processor's own name.
    pub cpu: Option<String>,
    /// Main memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Version of the Linux kernel.
    pub kernel: Option<String>,
    /// Half of the measured syncs of the data directory took at most this long, in milliseconds.
    pub sync_p50_ms: f64,
    /// 99 of 100 took at most this long, in milliseconds.
    pub sync_p99_ms: f64,
}

/// Syncs that are measured, each after a write of [`SYNC_BYTES`]: a second at most on a disk that needs 4 ms.
const SYNCS: usize = 250;

/// Bytes that are written before each sync: one page, as a small commit writes.
const SYNC_BYTES: usize = 4_096;

impl Machine {
    /// Looks at this machine and measures how long a sync takes where the data lies.
    ///
    /// # Errors
    /// When the directory cannot be written to.
    pub async fn look(data_dir: &Path, clock: &Clock) -> Result<Self, Error> {
        let (dir, clock) = (data_dir.to_owned(), clock.clone());
        let measured = tokio::task::spawn_blocking(move || measure_syncs(&dir, &clock));
        let syncs = measured.await.map_err(|_panic| Error::Panicked)??;
        let at = |share: usize| syncs.get(SYNCS * share / 100).copied().map_or(0.0, millis);
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        Ok(Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: field(&cpuinfo, "model name").map(str::to_owned),
            memory_bytes: field(&meminfo, "MemTotal").and_then(kilobytes),
            kernel: kernel.map(|text| text.trim().to_owned()),
            sync_p50_ms: at(50),
            sync_p99_ms: at(99),
        })
    }
}

/// Durations of syncs, ascending.
fn measure_syncs(dir: &Path, clock: &Clock) -> Result<Vec<Duration>, Error> {
    let path = dir.join(format!(".sync-{}", std::process::id()));
    let mut file = File::create(&path).map_err(io("making a file to measure syncs with"))?;
    let mut syncs = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let began = clock.now();
        file.write_all(&[7; SYNC_BYTES])
            .and_then(|()| file.sync_data())
            .map_err(io("measuring how long a sync takes"))?;
        syncs.push(clock.now().saturating_duration_since(began));
    }
    fs::remove_file(&path).map_err(io("removing the file of the measurement"))?;
    syncs.sort_unstable();
    Ok(syncs)
}

/// What a process has taken so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time, user and system.
    pub cpu: Duration,
    /// Resident memory, in bytes.
    pub rss_bytes: u64,
    /// The most of it since the process began, or since a [`Meter`] was started, in bytes.
    pub peak_bytes: u64,
}

/// Ticks of a second in `/proc/<pid>/stat`: `USER_HZ`, which is 100 on every Linux platform (proc(5)).
const TICKS_PER_SECOND: u32 = 100;

impl Usage {
    /// Of this process alone; `None` when it is gone or the platform does not tell.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some(Self {
            cpu: cpu_of(&stat)?,
            rss_bytes: field(&status, "VmRSS").and_then(kilobytes).unwrap_or(0),
            peak_bytes: field(&status, "VmHWM").and_then(kilobytes).unwrap_or(0),
        })
    }

    /// Of this process and its direct children, such as Postgres' backends, each by its own; `None` when it is gone.
    pub fn family(pid: u32) -> Option<BTreeMap<u32, Self>> {
        let mut family = BTreeMap::from([(pid, Self::of(pid)?)]);
        for entry in fs::read_dir("/proc").ok()?.flatten() {
            let child = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let child = child.filter(|child| parent_of(*child) == Some(pid));
            family.extend(child.and_then(|child| Some((child, Self::of(child)?))));
        }
        Some(family)
    }
}

/// What the members of a family took in between. Who has come since counts whole, who has gone not at all.
fn grown(before: &BTreeMap<u32, Usage>, after: &BTreeMap<u32, Usage>) -> Duration {
    let earlier = |pid: &u32| before.get(pid).map_or(Duration::ZERO, |usage| usage.cpu);
    after.iter().map(|(pid, usage)| usage.cpu.saturating_sub(earlier(pid))).sum()
}

/// Processes whose consumption is told, as far as they are known and on this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pids {
    /// The Forebay server, if it is a process of its own.
    pub server: Option<u32>,
    /// The NATS server.
    pub nats: Option<u32>,
    /// Postgres' first process.
    pub postgres: Option<u32>,
}

/// What operations cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// Operations.
    pub operations: u64,
    /// Processor seconds of the server.
    pub server_cpu_seconds: Option<f64>,
    /// Processor seconds of the NATS server.
    pub nats_cpu_seconds: Option<f64>,
    /// Processor seconds of Postgres with its backends.
    pub postgres_cpu_seconds: Option<f64>,
    /// The server's resident memory at the end, in bytes.
    pub server_rss_bytes: Option<u64>,
    /// The most that it had meanwhile, in bytes.
    pub server_peak_bytes: Option<u64>,
}

/// Reads what processes take from one moment to another.
#[derive(Clone, Debug)]
pub struct Meter {
    pids: Pids,
    before: Families,
}

/// Server, NATS server, and Postgres with its backends.
type Families = [Option<BTreeMap<u32, Usage>>; 3];

impl Meter {
    /// From now on.
    pub fn start(pids: Pids) -> Self {
        pids.forget_peak();
        Self { pids, before: pids.families() }
    }

    /// Until now, for so many operations.
    pub fn cost(&self, operations: u64) -> Cost {
        let after = self.pids.families();
        let spent = |place: usize| {
            let grown = grown(self.before[place].as_ref()?, after[place].as_ref()?);
            Some(grown.as_secs_f64())
        };
        Cost {
            operations,
            server_cpu_seconds: spent(0),
            nats_cpu_seconds: spent(1),
            postgres_cpu_seconds: spent(2),
            server_rss_bytes: self.pids.server_rss_bytes(),
            server_peak_bytes: self.pids.server.and_then(Usage::of).map(|usage| usage.peak_bytes),
        }
    }
}

impl Pids {
    /// What each has taken so far.
    fn families(self) -> Families {
        let alone = |pid| Some(BTreeMap::from([(pid, Usage::of(pid)?)]));
        [
            self.server.and_then(alone),
            self.nats.and_then(alone),
            self.postgres.and_then(Usage::family),
        ]
    }

    /// Lets the server's peak of memory begin at what it has now (`clear_refs` in proc(5)). Where the kernel does not
    /// allow that, the peak is that of the whole process, so that a figure is too high rather than too low.
    fn forget_peak(self) {
        if let Some(pid) = self.server {
            drop(fs::write(format!("/proc/{pid}/clear_refs"), "5"));
        }
    }

    /// The server's resident memory, in bytes.
    pub fn server_rss_bytes(self) -> Option<u64> {
        self.server.and_then(Usage::of).map(|usage| usage.rss_bytes)
    }
}

impl Cost {
    /// Of all of these together; what is not known of one is not known.
    pub fn sum(costs: &[Self]) -> Self {
        let seconds = |of: fn(&Self) -> Option<f64>| costs.iter().map(of).sum::<Option<f64>>();
        Self {
            operations: costs.iter().map(|cost| cost.operations).sum(),
            server_cpu_seconds: seconds(|cost| cost.server_cpu_seconds),
            nats_cpu_seconds: seconds(|cost| cost.nats_cpu_seconds),
            postgres_cpu_seconds: seconds(|cost| cost.postgres_cpu_seconds),
            server_rss_bytes: costs.last().and_then(|cost| cost.server_rss_bytes),
            server_peak_bytes: costs.iter().filter_map(|cost| cost.server_peak_bytes).max(),
        }
    }

    /// Processor seconds of 1 000 operations: of the server, of nats-server and of Postgres.
    pub fn of_thousand(&self) -> [Option<f64>; 3] {
        let thousands = precise(self.operations.max(1)) / 1_000.0;
        let all = [self.server_cpu_seconds, self.nats_cpu_seconds, self.postgres_cpu_seconds];
        all.map(|seconds| seconds.map(|seconds| seconds / thousands))
    }
}

/// The fields of a stat line after the program's name, which may itself hold blanks and parentheses.
fn after_name(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace()
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    after_name(&stat).nth(1)?.parse().ok()
}

fn cpu_of(stat: &str) -> Option<Duration> {
    let mut times = after_name(stat).skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    Some(Duration::from_secs(ticks) / TICKS_PER_SECOND)
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let is_it = |line: &&str| line.starts_with(name);
    let (_, value) = text.lines().find(is_it)?.split_once(':')?;
    Some(value.trim())
}

/// `"12 kB"` in bytes.
fn kilobytes(value: &str) -> Option<u64> {
    let count: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
    count.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_confuse_the_fields() {
        let stat = "7 (a ) b) S 42 1 1 0 -1 0 0 0 0 0 150 50 0 0 20 0";
        assert_eq!(cpu_of(stat), Some(Duration::from_secs(2)));
        assert_eq!(after_name(stat).nth(1), Some("42"));
        assert_eq!(cpu_of(""), None);
    }

    #[test]
    fn fields_are_found_and_sizes_are_bytes() {
        let text = "Name:\tforebay\nVmRSS:\t  2048 kB\n";
        assert_eq!(field(text, "VmRSS").and_then(kilobytes), Some(2_097_152));
        assert_eq!(field(text, "VmSwap"), None);
    }

    #[test]
    fn a_cost_is_told_for_a_thousand_operations() {
        let cost = Cost { operations: 4_000, server_cpu_seconds: Some(2.0), ..Cost::default() };
        assert_eq!(cost.of_thousand(), [Some(0.5), None, None]);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.peak_bytes >= usage.rss_bytes && usage.rss_bytes > 100_000, "{usage:?}");
        assert!(Usage::family(std::process::id()).unwrap().contains_key(&std::process::id()));
    }

    #[test]
    fn a_backend_that_ends_takes_nothing_away_from_the_others() {
        let usage = |seconds| Usage { cpu: Duration::from_secs(seconds), ..Usage::default() };
        let before = BTreeMap::from([(1, usage(5)), (2, usage(40))]);
        let after = BTreeMap::from([(1, usage(7)), (3, usage(4))]);
        assert_eq!(grown(&before, &after), Duration::from_secs(6));
    }
}
