//! What must hold at any time: processes that run on, memory within its bound, reads with an answer that is documented.
//! Promises to look several times a second while the scenario runs, and to tell what was seen.
//! Does not look at what is stored; `finally_audit` does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay::bench::machine::Usage;
use forebay::clock::Clock;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::driver_sends::PHASES;
use crate::scenario::Sends;
use crate::stage::caller::{Answer, Caller};
use crate::stage::{Roll, Tenant};

/// How often processes and reads are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// How often the count of acknowledgements is.
const COUNT: Duration = Duration::from_millis(20);

/// Most faults that are told; one is enough to fail.
const FAULTS_MAX: usize = 20;

/// Most memory of a node: its tail and recent keys at their bounds of a small installation, twice.
pub(crate) const RSS_MAX: u64 = 512 << 20;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Answers to reads by status, before, during and after the fault.
    pub(crate) reads: [BTreeMap<String, u64>; PHASES],
    /// The most memory of each node.
    pub(crate) rss: BTreeMap<String, u64>,
    /// Longest time without a further acknowledgement.
    pub(crate) silence: Duration,
    /// When the count of acknowledgements rose: this long after the begin.
    pub(crate) rises: Vec<Duration>,
    /// What must not be, from processes.
    pub(crate) died: Vec<String>,
    /// What must not be, from reads.
    pub(crate) misread: Vec<String>,
}

/// Those who look.
#[derive(Debug)]
pub(crate) struct Looking {
    seen: Arc<Mutex<Seen>>,
    phase: Arc<AtomicUsize>,
    /// Ended when this is dropped.
    _tasks: JoinSet<()>,
}

impl Looking {
    /// Begins to look.
    pub(crate) fn start(
        (roll, doors, tenant): (&Roll, &[SocketAddr], &Tenant),
        sends: Sends,
        acknowledged: impl Fn() -> u64 + Send + 'static,
        clock: &Clock,
    ) -> Self {
        let (seen, phase) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicUsize>::default());
        let mut looking = JoinSet::new();
        looking.spawn(processes(roll.clone(), Arc::clone(&seen)));
        looking.spawn(silence(acknowledged, Arc::clone(&seen), clock.clone()));
        for (number, door) in doors.iter().enumerate() {
            let conversation = tenant.conversations[number % tenant.conversations.len()];
            let path = format!("/v1/conversations/{conversation}/messages?after=0&limit=20");
            let caller = Caller::new(*door, &tenant.api_key);
            let notes = (Arc::clone(&seen), Arc::clone(&phase));
            looking.spawn(reads(caller, path, sends, notes));
        }
        Self { seen, phase, _tasks: looking }
    }

    /// Notes reads from here on under this phase.
    pub(crate) fn enter_phase(&self, phase: usize) {
        self.phase.store(phase.min(PHASES - 1), Ordering::Relaxed);
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fault(faults: &mut Vec<String>, text: String) {
    if faults.len() < FAULTS_MAX && !faults.contains(&text) {
        faults.push(text);
    }
}

/// Whether anybody else holds it.
fn is_wanted(seen: &Arc<Mutex<Seen>>) -> bool {
    Arc::strong_count(seen) > 1
}

/// Looks whether everybody runs who is to run.
async fn processes(roll: Roll, seen: Arc<Mutex<Seen>>) {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while is_wanted(&seen) {
        look.tick().await;
        roll.look(|all| {
            let mut seen = lock(&seen);
            for (name, pid) in all {
                if !is_alive(*pid) {
                    fault(&mut seen.died, format!("{name} ended by itself"));
                }
                if name.starts_with("node") {
                    let rss = Usage::of(*pid).map_or(0, |usage| usage.rss_bytes);
                    let most = seen.rss.entry(name.clone()).or_default();
                    *most = rss.max(*most);
                }
            }
        });
    }
}

/// A process that has ended and was not waited for yet is dead.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X' | 'x'))
}

/// Measures how long nothing was acknowledged.
async fn silence(acknowledged: impl Fn() -> u64 + Send, seen: Arc<Mutex<Seen>>, clock: Clock) {
    let begun = clock.now();
    let (mut count, mut since): (u64, Option<Instant>) = (0, None);
    let mut look = interval(COUNT);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while is_wanted(&seen) {
        look.tick().await;
        let (now, newest) = (clock.now(), acknowledged());
        let mut seen = lock(&seen);
        if newest > count {
            seen.rises.push(now.saturating_duration_since(begun));
            since = Some(now);
            count = newest;
        }
        if let Some(since) = since {
            seen.silence = seen.silence.max(now.saturating_duration_since(since));
        }
    }
}

/// Reads the history of a conversation again and again.
async fn reads(
    mut caller: Caller,
    path: String,
    sends: Sends,
    (seen, phase): (Arc<Mutex<Seen>>, Arc<AtomicUsize>),
) {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while is_wanted(&seen) {
        look.tick().await;
        let in_phase = phase.load(Ordering::Relaxed);
        let answer = caller.get(&path).await;
        let mut seen = lock(&seen);
        *seen.reads[in_phase].entry(name(&answer)).or_default() += 1;
        if let Some(text) = misread(&answer, sends) {
            fault(&mut seen.misread, text);
        }
    }
}

fn name(answer: &Answer) -> String {
    match answer {
        Answer::Answered(status, _) => status.to_string(),
        Answer::Broken => "broken".to_owned(),
        Answer::Late => "late".to_owned(),
    }
}

/// What is wrong with the answer to a read.
fn misread(answer: &Answer, sends: Sends) -> Option<String> {
    match answer {
        Answer::Answered(200 | 429, _) => None,
        // A node that starts or drains knows no watermark.
        Answer::Answered(503, body) if body["code"] == "unavailable" => None,
        Answer::Answered(503, body) if body["watermark"].is_u64() => None,
        Answer::Answered(status, body) => Some(format!("a read was answered {status}: {body}")),
        Answer::Broken | Answer::Late if sends == Sends::Broken => None,
        Answer::Broken => Some("a read's connection broke".to_owned()),
        Answer::Late => Some("a read had no answer in time".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_documented_answers_pass() {
        let passes = |status, body| misread(&Answer::Answered(status, body), Sends::Broken);
        assert_eq!(passes(200, json!({})), None);
        assert_eq!(passes(503, json!({"code": "replay_unavailable", "watermark": 3})), None);
        assert_eq!(passes(503, json!({"code": "unavailable"})), None);
        assert!(passes(503, json!({"code": "replay_unavailable"})).is_some());
        assert!(passes(500, json!({"code": "internal"})).is_some());
        assert!(passes(404, json!({"code": "not_found"})).is_some());
    }

    #[test]
    fn lateness_is_a_fault_where_nothing_is_cut() {
        assert!(misread(&Answer::Late, Sends::Acknowledged).is_some());
        assert!(misread(&Answer::Broken, Sends::Refused).is_some());
        assert_eq!(misread(&Answer::Late, Sends::Broken), None);
    }

    #[test]
    fn this_process_is_alive_and_no_process_is_not() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(u32::MAX));
    }
}
