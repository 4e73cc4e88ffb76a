//! What must hold at any time: processes that run on, memory within its bound, reads with an answer that is documented.
//! Promises to look several times a second while the load lasts, and to tell what was seen.
//! Does not look at what is stored; `finally_audit` does.

pub(crate) mod reads;
mod silence;

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
use crate::stage::caller::{Answer, Caller};
use crate::stage::{Roll, Tenant};
use reads::{Excused, PAGE, misread};
use silence::{Look, Silence};

/// How often processes and reads are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// How often the count of acknowledgements is.
const COUNT: Duration = Duration::from_millis(20);

/// Most faults that are told; one is enough to fail.
const FAULTS_MAX: usize = 20;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Answers to reads by status, before, during and after the fault.
    pub(crate) reads: [BTreeMap<String, u64>; PHASES],
    /// The memory of each node.
    pub(crate) memory: BTreeMap<String, Memory>,
    /// Longest time without a further acknowledgement, from the load's begin to its end.
    pub(crate) silence: Duration,
    /// When the count of acknowledgements rose: this long after the begin.
    pub(crate) rises: Vec<Duration>,
    /// What must not be, from processes.
    pub(crate) died: Vec<String>,
    /// What must not be, from reads.
    pub(crate) misread: Vec<String>,
}

/// Resident memory of a node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// When it was ready and the load began.
    pub(crate) first: u64,
    /// The most that was seen, in all of its lives.
    pub(crate) most: u64,
}

impl Memory {
    /// It has so much now; a process that has just begun has none yet.
    fn on_look(&mut self, bytes: u64) {
        if self.first == 0 {
            self.first = bytes;
        }
        self.most = self.most.max(bytes);
    }
}

/// Whom to look at, and until when.
#[derive(Debug)]
pub(crate) struct Watched<'a> {
    /// Who is to run.
    pub(crate) roll: &'a Roll,
    /// Where to read, one reader each.
    pub(crate) doors: &'a [SocketAddr],
    /// Whose conversations to read.
    pub(crate) tenant: &'a Tenant,
    /// What reads may be answered beside pages.
    pub(crate) excused: Excused,
    /// The load's end: what comes later is no silence of the server.
    pub(crate) until: Instant,
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
        watched: &Watched<'_>,
        acknowledged: impl Fn() -> u64 + Send + 'static,
        clock: &Clock,
    ) -> Self {
        let (seen, phase) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicUsize>::default());
        let mut looking = JoinSet::new();
        let eye = Eye { seen: Arc::clone(&seen), until: watched.until, clock: clock.clone() };
        looking.spawn(eye.clone().processes(watched.roll.clone()));
        looking.spawn(eye.clone().silence(acknowledged));
        let conversations = &watched.tenant.conversations;
        for (number, door) in watched.doors.iter().enumerate() {
            let conversation = conversations[number % conversations.len()];
            let path = format!("/v1/conversations/{conversation}/messages?after=0&limit={PAGE}");
            let caller = Caller::new(*door, &watched.tenant.api_key);
            let what = (path, watched.excused);
            looking.spawn(eye.clone().reads(caller, what, Arc::clone(&phase)));
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

/// Somebody who looks.
#[derive(Clone)]
struct Eye {
    seen: Arc<Mutex<Seen>>,
    until: Instant,
    clock: Clock,
}

impl Eye {
    fn is_open(&self) -> bool {
        self.clock.now() < self.until
    }

    /// Looks whether everybody runs who is to run.
    async fn processes(self, roll: Roll) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.is_open() {
            look.tick().await;
            roll.look(|all| {
                let mut seen = lock(&self.seen);
                for (name, pid) in all {
                    if !is_alive(*pid) {
                        fault(&mut seen.died, format!("{name} ended by itself"));
                    }
                    if name.starts_with("node") {
                        let bytes = Usage::of(*pid).map_or(0, |usage| usage.rss_bytes);
                        seen.memory.entry(name.clone()).or_default().on_look(bytes);
                    }
                }
            });
        }
    }

    /// Measures how long nothing was acknowledged.
    async fn silence(self, acknowledged: impl Fn() -> u64 + Send) {
        let begun = self.clock.now();
        let mut silence = Silence::new(begun);
        let mut look = interval(COUNT);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.is_open() {
            look.tick().await;
            let now = self.clock.now().min(self.until);
            let found = silence.on_count(acknowledged(), now);
            let mut seen = lock(&self.seen);
            if found == Look::Rose {
                seen.rises.push(now.saturating_duration_since(begun));
            }
            seen.silence = silence.longest();
        }
    }

    /// Reads the history of a conversation again and again.
    async fn reads(
        self,
        mut caller: Caller,
        (path, excused): (String, Excused),
        phase: Arc<AtomicUsize>,
    ) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.is_open() {
            look.tick().await;
            let (in_phase, asked) = (phase.load(Ordering::Relaxed), self.clock.now());
            let answer = caller.get(&path).await;
            let took = self.clock.now().saturating_duration_since(asked);
            let mut seen = lock(&self.seen);
            *seen.reads[in_phase].entry(name(&answer)).or_default() += 1;
            if let Some(text) = misread(&answer, took, excused) {
                fault(&mut seen.misread, text);
            }
        }
    }
}

/// A process that has ended and was not waited for yet is dead.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X' | 'x'))
}

fn name(answer: &Answer) -> String {
    match answer {
        Answer::Answered(status, _) => status.to_string(),
        Answer::Broken => "broken".to_owned(),
        Answer::Late => "late".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_no_process_is_not() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(u32::MAX));
    }

    #[test]
    fn memory_grows_from_its_first_look_over_all_lives() {
        let mut memory = Memory::default();
        for bytes in [0, 50, 80, 0, 60] {
            memory.on_look(bytes);
        }
        assert_eq!(memory, Memory { first: 50, most: 80 });
    }
}
