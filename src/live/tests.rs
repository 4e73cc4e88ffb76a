//! Laws of a session and a reader together, against a log that only grows.
//! A world is a log, one connection with its session, the wire in both directions, and a reader that may start anew.
//! Every step is checked; at the end failures stop, and the reader must get everything.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::backlog::{BYTES_MAX, FRAMES_MAX, HOLD_MAX};
use super::gap::{GAPS_MAX, Gap};
use super::reader::{Action, Incoming, Reader};
use super::session::PAGE_FRAMES;
use super::*;
use crate::clock::test_start;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Others append so many events; a lost one does not come live.
    Append {
        count: u64,
        lost: bool,
    },
    /// Others append so many pairs of events, and the first of each pair does not come live.
    Tear {
        pairs: u64,
    },
    /// The reader appends; its event may be recognised in the tail.
    Send {
        recognised: bool,
    },
    /// The oldest own send is acknowledged.
    Ack,
    /// So many events come from the tail, each of this weight.
    Live {
        count: usize,
        bytes: usize,
    },
    /// The page that was asked for comes, with so many frames at most.
    Page {
        frames: usize,
    },
    /// Postgres has nothing of the page, or only its beginning.
    Lag {
        frames: usize,
    },
    Fail {
        cause: Cause,
        retry_after: u64,
    },
    /// The reader reads so many frames.
    Read {
        count: usize,
    },
    /// The reader asks, from so far below its watermark.
    Sync {
        below: u64,
    },
    /// Somebody asks from above the head.
    SyncAhead {
        above: u64,
    },
    /// The reader gets so many events over REST, and asks then.
    Rest {
        count: u64,
    },
    /// Requests of the reader arrive.
    Arrive,
    Wait {
        millis: u64,
    },
    Wake,
    Drain,
    /// The reader keeps its watermark.
    Keep,
    /// The connection breaks; the next node is so far behind.
    Reconnect {
        behind: u64,
    },
    /// The reader's process ends too; it goes on from the watermark it kept.
    Restart {
        behind: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let causes = [Cause::Pressure, Cause::ProjectionLag, Cause::Timeout];
    let step = prop_oneof![
        8 => (1_u64..12, prop::bool::weighted(0.2)).prop_map(|(count, lost)| Step::Append { count, lost }),
        2 => (200_u64..700).prop_map(|count| Step::Append { count, lost: false }),
        1 => (200_u64..11_000).prop_map(|count| Step::Append { count, lost: true }),
        2 => (1_u64..24).prop_map(|pairs| Step::Tear { pairs }),
        4 => any::<bool>().prop_map(|recognised| Step::Send { recognised }),
        4 => Just(Step::Ack),
        8 => (1_usize..12, 1_usize..3_000).prop_map(|(count, bytes)| Step::Live { count, bytes }),
        2 => (1_usize..600, 1_usize..140_000).prop_map(|(count, bytes)| Step::Live { count, bytes }),
        8 => (1_usize..300).prop_map(|frames| Step::Page { frames }),
        2 => (0_usize..3).prop_map(|frames| Step::Lag { frames }),
        4 => (prop::sample::select(causes.to_vec()), 0_u64..3_000)
            .prop_map(|(cause, retry_after)| Step::Fail { cause, retry_after }),
        8 => (1_usize..400).prop_map(|count| Step::Read { count }),
        3 => (0_u64..20).prop_map(|below| Step::Sync { below }),
        1 => (1_u64..5).prop_map(|above| Step::SyncAhead { above }),
        1 => (1_u64..40).prop_map(|count| Step::Rest { count }),
        4 => Just(Step::Arrive),
        5 => (1_u64..2_500).prop_map(|millis| Step::Wait { millis }),
        1 => Just(Step::Wake),
        1 => Just(Step::Drain),
        2 => Just(Step::Keep),
        2 => (0_u64..4).prop_map(|behind| Step::Reconnect { behind }),
        1 => (0_u64..4).prop_map(|behind| Step::Restart { behind }),
    ];
    prop::collection::vec(step, 1..120)
}

struct World {
    now: Instant,
    has_gaps: bool,
    /// The log: its length, and which events do not come live.
    head: u64,
    lost: BTreeSet<u64>,
    /// Own sends of this connection: not yet acknowledged, and those that are recognised in the tail.
    unacked: VecDeque<u64>,
    recognised: BTreeSet<u64>,
    session: Session<u64>,
    fetch: Option<(u64, usize)>,
    /// What the tail brings next.
    tail: u64,
    down: VecDeque<Incoming<u64>>,
    up: VecDeque<u64>,
    /// Acknowledged before the event was sent: it must not be.
    quiet: BTreeSet<u64>,
    sent: BTreeSet<u64>,
    granted: BTreeSet<u64>,
    /// Everything up to here is known to be on the wire or read.
    proved: u64,
    reader: Reader,
    kept: u64,
    delivered: BTreeSet<u64>,
    had: BTreeSet<u64>,
    told: Vec<Gap>,
    began: u64,
    checked: u64,
    wants_reconnect: bool,
    /// A gap was announced, and no end of it.
    open: Option<Gap>,
    seen: BTreeSet<&'static str>,
}

impl World {
    fn new(has_gaps: bool, head: u64) -> Self {
        let now = test_start();
        let join = Join { watermark: 0, has_gaps, head, oldest: 1, epoch_matches: true };
        let mut out = Vec::new();
        let session = Session::join(join, now, &mut out);
        let mut world = Self {
            now,
            has_gaps,
            head,
            lost: BTreeSet::new(),
            unacked: VecDeque::new(),
            recognised: BTreeSet::new(),
            session,
            fetch: None,
            tail: head + 1,
            down: VecDeque::new(),
            up: VecDeque::new(),
            quiet: BTreeSet::new(),
            sent: BTreeSet::new(),
            granted: BTreeSet::new(),
            proved: 0,
            reader: Reader::resume(0),
            kept: 0,
            delivered: BTreeSet::new(),
            had: BTreeSet::new(),
            told: Vec::new(),
            began: 0,
            checked: 0,
            wants_reconnect: false,
            open: None,
            seen: BTreeSet::new(),
        };
        world.perform(out);
        world
    }

    fn take(&mut self, step: Step) {
        let mut out = Vec::new();
        match step {
            Step::Append { count, lost } => {
                if lost {
                    self.lost.insert(self.head + 1);
                }
                self.head += count;
            }
            Step::Tear { pairs } => {
                self.lost.extend((0..pairs).map(|pair| self.head + 1 + 2 * pair));
                self.head += 2 * pairs;
            }
            Step::Send { recognised } => {
                self.head += 1;
                self.unacked.push_back(self.head);
                if recognised {
                    self.recognised.insert(self.head);
                }
            }
            Step::Ack => {
                if let Some(seq) = self.unacked.pop_front() {
                    self.ack(seq, &mut out);
                }
            }
            Step::Live { count, bytes } => self.live(count, bytes),
            Step::Page { frames } => self.page(frames, false),
            Step::Lag { frames } => self.page(frames, true),
            Step::Fail { cause, retry_after } => {
                if self.fetch.take().is_some() {
                    let retry_after = Duration::from_millis(retry_after);
                    self.session.on_page_failed(cause, retry_after, self.now, &mut out);
                }
            }
            Step::Read { count } => self.read(count),
            Step::Sync { below } => {
                self.up.push_back(self.reader.watermark().saturating_sub(below));
            }
            Step::SyncAhead { above } => self.sync_ahead(above),
            Step::Rest { count } => {
                let from = self.reader.watermark() + 1;
                for seq in from..(from + count).min(self.head + 1) {
                    self.incoming(Incoming::Event(seq, payload(seq)));
                }
                self.up.push_back(self.reader.watermark());
            }
            Step::Arrive => self.arrive(),
            Step::Wait { millis } => self.wait(Duration::from_millis(millis)),
            Step::Wake => self.session.on_wake(self.now, &mut out),
            Step::Drain => self.session.on_drain(self.now, &mut out),
            Step::Keep => self.kept = self.reader.watermark(),
            Step::Reconnect { behind } => self.reconnect(behind),
            Step::Restart { behind } => {
                self.restart();
                self.reconnect(behind);
            }
        }
        self.perform(out);
    }

    fn sync_ahead(&mut self, above: u64) {
        let (before, mut out) = (self.session.status(), Vec::new());
        let head = before.head;
        self.session.on_sync(head + above, self.now, &mut out);
        let refuse = |code| vec![Command::Refuse { code }];
        let expected = match before.state {
            State::Closed => vec![],
            State::Drain => refuse(Refused::Draining),
            State::Attach | State::Replay | State::Live | State::Fill => {
                refuse(Refused::WatermarkAhead { head })
            }
            State::Gap | State::Sync | State::Waiting => refuse(Refused::WatermarkAhead { head }),
        };
        assert_eq!((out, self.session.status()), (expected, before), "it changes nothing");
    }

    fn ack(&mut self, seq: u64, out: &mut Vec<Command<u64>>) {
        if self.session.status().state == State::Closed {
            return;
        }
        self.down.push_back(Incoming::Ack(seq));
        self.granted.insert(seq);
        if !self.sent.contains(&seq) {
            self.quiet.insert(seq);
        }
        self.session.on_acked(seq, self.now, out);
    }

    fn live(&mut self, count: usize, bytes: usize) {
        for _ in 0..count {
            if self.tail > self.head {
                return;
            }
            let (seq, mut out) = (self.tail, Vec::new());
            self.tail += 1;
            if self.recognised.contains(&seq) {
                self.unacked.retain(|&unacked| unacked != seq);
                self.ack(seq, &mut out);
            } else if !self.lost.contains(&seq) {
                let live = Live { seq, bytes, frame: payload(seq) };
                self.session.on_live(live, self.now, &mut out);
            }
            self.perform(out);
        }
    }

    fn page(&mut self, most: usize, lags: bool) {
        let Some((after, limit)) = self.fetch.take() else {
            return;
        };
        let to = (after + most.min(limit) as u64).min(self.head);
        let frames = (after + 1..=to).map(|seq| (seq, payload(seq))).collect();
        let page = Page { after, frames, head: self.head, has_more: to < self.head && !lags };
        let mut out = Vec::new();
        self.session.on_page(page, self.now, &mut out);
        self.perform(out);
    }

    fn arrive(&mut self) {
        for watermark in std::mem::take(&mut self.up) {
            let mut out = Vec::new();
            // What lies beyond may be sent again, whoever acknowledged it.
            self.quiet.retain(|&seq| seq <= watermark);
            self.session.on_sync(watermark, self.now, &mut out);
            self.perform(out);
        }
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(wake) = self.session.next_wake().filter(|&wake| wake <= until) {
            self.now = self.now.max(wake);
            let mut out = Vec::new();
            self.session.on_wake(self.now, &mut out);
            self.perform(out);
            let next = self.session.next_wake();
            assert!(
                next.is_none_or(|next| next > self.now),
                "woken for nothing: {:?}",
                self.session
            );
        }
        self.now = until;
        let since = self.session.status().held_since.unwrap_or(self.now);
        assert!(self.now - since <= HOLD_MAX, "held for {:?}", self.now - since);
    }

    fn restart(&mut self) {
        self.reader = Reader::resume(self.kept);
        (self.began, self.checked) = (self.kept, self.kept);
        self.delivered.clear();
        self.had.clear();
        self.told.clear();
    }

    fn reconnect(&mut self, behind: u64) {
        self.down.clear();
        self.up.clear();
        self.unacked.clear();
        self.recognised.clear();
        self.quiet.clear();
        self.sent.clear();
        self.granted.clear();
        self.proved = self.reader.watermark();
        self.fetch = None;
        self.wants_reconnect = false;
        self.open = None;
        let (watermark, head) = (self.reader.watermark(), self.head.saturating_sub(behind));
        // Frames began to come in before the head was read: some come twice.
        self.tail = head.saturating_sub(behind) + 1;
        let has_gaps = self.has_gaps;
        let join = Join { watermark, has_gaps, head, oldest: 1, epoch_matches: true };
        let mut out = Vec::new();
        self.session = Session::join(join, self.now, &mut out);
        self.down.push_back(Incoming::Connected);
        self.perform(out);
    }

    /// Does what the session says, and checks it.
    fn perform(&mut self, out: Vec<Command<u64>>) {
        let mut is_closed = false;
        for command in out {
            assert!(!is_closed, "a command after close: {command:?}");
            match command {
                Command::Event(seq, frame) => {
                    assert_eq!(frame, payload(seq));
                    assert!(!self.quiet.contains(&seq), "{seq} was acknowledged, and is sent");
                    self.sent.insert(seq);
                    self.down.push_back(Incoming::Event(seq, frame));
                }
                Command::Fetch { after, limit } => {
                    assert!(self.fetch.is_none(), "two pages at once");
                    assert!((1..=PAGE_FRAMES).contains(&limit));
                    self.fetch = Some((after, limit));
                }
                Command::ReplayComplete { watermark } => {
                    self.seen.insert("complete");
                    self.open = None;
                    self.down.push_back(Incoming::ReplayComplete { watermark });
                }
                Command::ReplayTruncated { .. } => {
                    self.seen.insert("truncated");
                    self.down.push_back(Incoming::ReplayTruncated);
                }
                Command::ReplayGone { .. } => panic!("nothing is gone here"),
                Command::Gap { watermark, from, to, head, .. } => {
                    assert!(self.has_gaps && watermark < from && from <= to && to <= head);
                    self.seen.insert("gap");
                    self.open = Some(Gap { from, to });
                    self.down.push_back(Incoming::Gap(Gap { from, to }));
                }
                Command::Refuse { code: Refused::WatermarkAhead { .. } } => {
                    self.seen.insert("ahead");
                    self.down.push_back(Incoming::WatermarkAhead);
                }
                Command::Refuse { code: Refused::Draining } => {}
                Command::Close(_) => {
                    assert!(!self.has_gaps, "a client that knows gaps is closed");
                    self.seen.insert("closed");
                    is_closed = true;
                }
            }
        }
        let status = self.session.status();
        assert!(status.held_frames <= FRAMES_MAX && status.held_bytes <= BYTES_MAX, "{status:?}");
        assert_eq!(status.is_fetching, self.fetch.is_some());
        assert!(status.gaps <= GAPS_MAX);
        let holds = matches!(status.state, State::Replay | State::Sync | State::Fill);
        assert!(holds || status.held_frames == 0, "{status:?}");
        assert!(self.open.is_none() || status.state != State::Live, "a gap closes without a word");
        assert!(!holds || status.is_fetching, "a replay that nobody drives: {status:?}");
        while self.proved < status.contiguous {
            self.proved += 1;
            let seq = self.proved;
            let is_out = self.sent.contains(&seq) || self.granted.contains(&seq);
            assert!(is_out || self.reader.has(seq), "{seq} counts as sent: {status:?}");
        }
        self.seen.insert(match status.state {
            State::Attach => "attach",
            State::Replay => "replay",
            State::Live => "live",
            State::Fill => "fill",
            State::Gap if status.gaps == GAPS_MAX => "most gaps",
            State::Gap if status.gaps > 1 => "gaps",
            State::Gap => "gap",
            State::Sync => "sync",
            State::Waiting => "waiting",
            State::Drain => "drain",
            State::Closed => "closed",
        });
    }

    fn read(&mut self, count: usize) {
        for _ in 0..count {
            let Some(incoming) = self.down.pop_front() else {
                return;
            };
            self.incoming(incoming);
        }
    }

    fn incoming(&mut self, incoming: Incoming<u64>) {
        let is_new = |seq: u64| !self.reader.has(seq);
        match incoming {
            Incoming::Event(seq, _) if is_new(seq) => {
                assert!(self.reader.is_told_before(seq), "{seq} lies beyond a silent hole");
                let highest = self.delivered.last().copied().unwrap_or(0);
                let was_told = self.told.iter().any(|gap| gap.from <= seq && seq <= gap.to);
                assert!(seq > highest || was_told, "{seq} comes after {highest}");
            }
            Incoming::Ack(seq) => {
                self.had.insert(seq);
            }
            Incoming::ReplayComplete { watermark } => {
                assert!(self.reader.watermark() >= watermark, "complete, but for something");
            }
            Incoming::Gap(gap) => self.told.push(gap),
            Incoming::Event(..)
            | Incoming::Connected
            | Incoming::ReplayTruncated
            | Incoming::ReplayGone { .. }
            | Incoming::WatermarkAhead => {}
        }
        let mut out = Vec::new();
        self.reader.on(incoming, &mut out);
        for action in out {
            match action {
                Action::Deliver(seq, event) => {
                    assert_eq!(event, payload(seq));
                    assert!(seq > self.began && self.delivered.insert(seq), "{seq} comes twice");
                }
                Action::Sync { watermark } => self.up.push_back(watermark),
                Action::Complete { .. } => {}
                Action::Reset => panic!("it is the same log"),
                Action::Reconnect => self.wants_reconnect = true,
            }
        }
        while self.checked < self.reader.watermark() {
            self.checked += 1;
            let has = self.delivered.contains(&self.checked) || self.had.contains(&self.checked);
            assert!(has, "the watermark passes {}", self.checked);
        }
    }

    /// Failures stop: everything is to arrive.
    fn end(&mut self) {
        self.head += 1;
        for _ in 0..2_000 {
            let status = self.session.status();
            if matches!(status.state, State::Drain | State::Closed) || self.wants_reconnect {
                self.read(usize::MAX);
                self.reconnect(0);
            }
            self.live(usize::MAX, 10);
            self.page(usize::MAX, false);
            self.read(usize::MAX);
            self.arrive();
            self.wait(Duration::from_millis(100));
            let is_level = self.reader.watermark() == self.head && self.down.is_empty();
            if is_level && self.session.status().state == State::Live {
                assert_eq!(self.session.status().contiguous, self.head);
                assert!(self.seen.contains("complete"));
                return;
            }
        }
        panic!("{:?} {:?}, the log ends at {}", self.session.status(), self.reader, self.head);
    }
}

fn payload(seq: u64) -> u64 {
    seq * 7
}

fn worlds() -> impl Strategy<Value = (bool, u64, Vec<Step>)> {
    (prop::bool::weighted(0.7), prop_oneof![Just(0_u64), 1_u64..600], steps())
}

fn run((has_gaps, head, steps): (bool, u64, Vec<Step>)) -> BTreeSet<&'static str> {
    let mut world = World::new(has_gaps, head);
    for step in steps {
        world.take(step);
    }
    world.end();
    world.seen
}

proptest! {
    #[test]
    fn a_subscriber_sees_the_next_only_after_the_last_or_was_told_of_the_gap_before(
        world in worlds(),
    ) {
        run(world);
    }
}

/// A law that holds because nothing happens is none.
#[test]
fn the_worlds_reach_every_state() {
    let (mut runner, mut seen) = (TestRunner::deterministic(), BTreeSet::new());
    for _ in 0..500 {
        seen.extend(run(worlds().new_tree(&mut runner).unwrap().current()));
    }
    let states = ["attach", "closed", "drain", "fill", "gap", "live", "replay", "sync", "waiting"];
    let extremes = ["ahead", "complete", "gaps", "most gaps", "truncated"];
    let missing = states.into_iter().chain(extremes).filter(|name| !seen.contains(name));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0]);
}
