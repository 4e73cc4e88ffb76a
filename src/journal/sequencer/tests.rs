//! Several writers on one log, driven through random interleavings by a seed.
//!
//! The model log stores a record if its guard holds, as JetStream does, with one replica's order of checks or
//! several replicas'. Answers get lost, copies of old publishes arrive late, nodes forget everything and restart.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::*;
use crate::clock::test_start;
use crate::event::{Body, ClientId, ConversationId, Fingerprint, Message, MessageId, TenantId};
use crate::journal::fold::{Bounds, Start};
use crate::journal::heads::Heads;
use crate::journal::keys::Memory;

type Client = u32;

fn bounds() -> Bounds {
    let keys = Memory { window: Duration::from_mins(15), keys_max: 10_000 };
    Bounds { keys, heads_max: 1_000, ring_bytes_max: 10_000 }
}

fn empty_fold() -> Fold {
    let start = Start { position: 0, since: Timestamp::default(), heads: Heads::starting_after(0) };
    Fold::new(start, bounds())
}

fn tenant() -> TenantId {
    TenantId::derive([1; 16])
}

fn conversation(n: u8) -> ConversationId {
    ConversationId::derive([n; 16])
}

fn draft(place: u8, client: Client, intent: Intent) -> Draft {
    let client_id = ClientId::parse(&format!("c-{client}")).unwrap();
    let id = event::key::message_id(tenant(), conversation(place), None, &client_id);
    let client_id = (!is_unkeyed(client)).then_some(client_id);
    let message = Message { client_id, ..Message::default() };
    let body = match intent {
        Intent::Send => Body::Message(Box::new(message)),
        Intent::OpenNew | Intent::OpenNamed => Body::Opened(Box::default()),
        Intent::Close => Body::Closed,
        Intent::Reopen => Body::Reopened,
    };
    Draft {
        tenant: tenant(),
        conversation: conversation(place),
        id,
        at: Timestamp::from_micros(1).unwrap(),
        fingerprint: Fingerprint::of(&[Some(&client.to_string())]),
        trace: None,
        body,
        intent,
        key_time: None,
    }
}

/// Every third client sends without a key. Nothing but the rule of re-staging keeps its drafts from being doubled,
/// and it never sends again by itself.
fn is_unkeyed(client: Client) -> bool {
    client % 3 == 2
}

/// The log: what JetStream does with guards and message ids.
#[derive(Default)]
struct ModelLog {
    records: Vec<Record>,
    replicated: bool,
}

impl ModelLog {
    fn publish(&mut self, outgoing: &Outgoing) -> Outcome {
        let stored = self.records.iter().position(|record| record.id == outgoing.id);
        let last = self.records.len() as u64;
        if let (Some(index), true) = (stored, self.replicated) {
            return Outcome::Repeated { position: index as u64 + 1 };
        }
        if outgoing.expected != last {
            return Outcome::Conflict { last };
        }
        self.records.push(Record::decode(&outgoing.bytes).unwrap());
        Outcome::Stored { position: last + 1 }
    }
}

struct Node {
    sequencer: Sequencer<Client>,
    fold: Fold,
    /// The publish whose outcome the writer waits for.
    waiting: Option<Outgoing>,
    /// Copies of publishes that are somewhere on the way and may still arrive.
    stray: Vec<Outgoing>,
}

impl Node {
    fn new(n: u8) -> Self {
        let sequencer = Sequencer::new(NodeId::derive([n; 16]));
        Self { sequencer, fold: empty_fold(), waiting: None, stray: Vec::new() }
    }
}

struct World {
    rng: SmallRng,
    log: ModelLog,
    nodes: Vec<Node>,
    /// Requests of clients that wait for an answer: which node has them, and what they ask for.
    open: BTreeMap<Client, (usize, Vec<(u8, Client)>)>,
    acknowledged: BTreeMap<MessageId, (ConversationId, u64)>,
    next_client: Client,
    lost_races: u32,
}

impl World {
    fn new(seed: u64, nodes: u8) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let log = ModelLog { replicated: rng.random(), ..ModelLog::default() };
        let nodes = (0..nodes).map(|n| Node::new(n + 1)).collect();
        let (open, acknowledged) = (BTreeMap::new(), BTreeMap::new());
        let mut world = Self { rng, log, nodes, open, acknowledged, next_client: 0, lost_races: 0 };
        for place in 0..4 {
            let request = Request {
                ticket: u32::MAX,
                drafts: vec![draft(place, u32::MAX, Intent::OpenNamed)],
                outcomes: Vec::new(),
                seed: None,
                deadline: test_start() + Duration::from_hours(1),
                is_level: true,
                haste: Haste::Now,
            };
            world.nodes[0].sequencer.push(request);
        }
        world
    }

    fn send(&mut self, node: usize, ticket: Client, messages: Vec<(u8, Client)>) {
        let drafts = messages.iter().map(|(place, c)| draft(*place, *c, Intent::Send)).collect();
        let deadline = test_start() + Duration::from_hours(1);
        self.nodes[node].sequencer.push(Request {
            ticket,
            drafts,
            outcomes: Vec::new(),
            seed: None,
            deadline,
            is_level: true,
            haste: Haste::Now,
        });
        self.open.insert(ticket, (node, messages));
    }

    fn step(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        match self.rng.random_range(0..100) {
            0..20 => self.new_request(node),
            20..45 => self.stage(node),
            45..70 => self.outcome(node),
            70..90 => self.follow(node),
            90..96 => self.deliver_stray(node),
            96..98 => self.restart(node),
            _ => self.resend(),
        }
    }

    fn new_request(&mut self, node: usize) {
        let ticket = self.next_client;
        let count = if self.rng.random_bool(0.2) { 3 } else { 1 };
        self.next_client += count;
        let place = self.rng.random_range(0..4);
        let mut messages: Vec<_> = (0..count).map(|n| (place, ticket + n)).collect();
        if count == 3 && !is_unkeyed(ticket) && self.rng.random_bool(0.5) {
            messages[2] = messages[0];
        }
        self.send(node, ticket, messages);
    }

    /// A client that lost patience sends the same again, to any node.
    fn resend(&mut self) {
        let index = self.rng.random_range(0..=self.open.len());
        let Some((ticket, (_, messages))) =
            self.open.iter().nth(index).map(|(t, o)| (*t, o.clone()))
        else {
            return;
        };
        if messages.iter().any(|(_, client)| is_unkeyed(*client)) {
            return;
        }
        let node = self.rng.random_range(0..self.nodes.len());
        self.send(node, ticket, messages);
    }

    fn stage(&mut self, n: usize) {
        let mut bytes = [0; 16];
        self.rng.fill_bytes(&mut bytes);
        let node = &mut self.nodes[n];
        let stage = node.sequencer.stage(&node.fold, RecordId::derive(bytes), test_start());
        if stage.outgoing.is_some() {
            node.waiting = stage.outgoing;
        }
        self.answer(stage.answers);
    }

    /// The writer's publish comes to its end: stored or not, told or not.
    fn outcome(&mut self, n: usize) {
        let Some(outgoing) = self.nodes[n].waiting.clone() else {
            return;
        };
        let told = match self.rng.random_range(0..10) {
            0 => {
                self.nodes[n].stray.push(outgoing.clone());
                Outcome::Unknown { reason: "not arrived".to_owned() }
            }
            1 => {
                drop(self.log.publish(&outgoing));
                Outcome::Unknown { reason: "answer lost".to_owned() }
            }
            _ => self.log.publish(&outgoing),
        };
        let node = &mut self.nodes[n];
        node.waiting = None;
        let next =
            node.sequencer.on_outcome(&mut node.fold, (outgoing.id, told), Timestamp::default());
        self.go_on(n, next);
    }

    fn go_on(&mut self, n: usize, next: Next<Client>) {
        match next {
            Next::Settled(answers) => self.answer(answers),
            Next::Again(outgoing) => self.nodes[n].waiting = Some(outgoing),
            Next::Behind(_) => {}
            Next::Lost => {
                self.lost_races += 1;
                self.nodes[n].waiting = None;
            }
            Next::WentBack { last } => panic!("the log never goes back, it ends at {last}"),
        }
    }

    fn follow(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let position = node.fold.position() + 1;
        let Some(record) = self.log.records.get(usize::try_from(node.fold.position()).unwrap())
        else {
            return;
        };
        let folded = Arc::new(Folded { position, bytes: 10, record: record.clone() });
        let (fit, next) = node.sequencer.on_record(&mut node.fold, &folded, Timestamp::default());
        assert_eq!(fit, Fit::Folded);
        if !node.sequencer.is_flying() {
            node.waiting.take();
        }
        self.go_on(n, next);
    }

    fn deliver_stray(&mut self, n: usize) {
        if let Some(outgoing) = self.nodes[n].stray.pop() {
            drop(self.log.publish(&outgoing));
        }
    }

    /// The node loses everything but what the log has; copies of its publishes stay on the way.
    fn restart(&mut self, n: usize) {
        let stray = std::mem::take(&mut self.nodes[n].stray);
        let waiting = self.nodes[n].waiting.take();
        self.nodes[n] = Node::new(u8::try_from(n).unwrap() + 1);
        self.nodes[n].stray = stray.into_iter().chain(waiting).collect();
    }

    fn answer(&mut self, answers: Vec<Answer<Client>>) {
        for answer in answers {
            let Some((_, messages)) = self.open.remove(&answer.ticket) else {
                continue;
            };
            let verdicts = answer.verdicts.expect("nothing is refused or expires here");
            assert_eq!(verdicts.len(), messages.len(), "one verdict a draft");
            for ((place, _), verdict) in messages.iter().zip(verdicts) {
                match verdict {
                    Verdict::Stored(receipt) | Verdict::Duplicate(receipt) => {
                        let there = (conversation(*place), receipt.seq);
                        let before = self.acknowledged.insert(receipt.id, there);
                        assert!(before.is_none_or(|b| b == there), "one receipt a key");
                    }
                    // The opening may have been lost with a restart of the node that had it queued.
                    Verdict::NotFound => {}
                    Verdict::KeyConflict | Verdict::Closed => panic!("{verdict:?}"),
                }
            }
        }
    }

    /// No more faults: every node stages, publishes and follows until nothing is left.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            for n in 0..self.nodes.len() {
                self.deliver_stray(n);
                self.follow(n);
                self.stage(n);
                if let Some(outgoing) = self.nodes[n].waiting.take() {
                    let told = self.log.publish(&outgoing);
                    let node = &mut self.nodes[n];
                    let told = (outgoing.id, told);
                    let next =
                        node.sequencer.on_outcome(&mut node.fold, told, Timestamp::default());
                    self.go_on(n, next);
                }
            }
            let level = |node: &Node| node.fold.position() == self.log.records.len() as u64;
            if self.nodes.iter().all(|node| node.sequencer.is_idle() && level(node)) {
                return;
            }
        }
        panic!("the nodes do not come to rest");
    }

    fn check(&self) {
        let mut seqs: BTreeMap<ConversationId, u64> = BTreeMap::new();
        let mut ids = BTreeSet::new();
        let mut places = BTreeMap::new();
        for event in self.log.records.iter().flat_map(|record| &record.events) {
            let seq = seqs.entry(event.conversation).or_default();
            *seq += 1;
            assert_eq!(event.seq, *seq, "no hole and no repeat");
            if matches!(event.body, Body::Message(_)) {
                assert!(ids.insert(event.id), "every draft once");
            }
            places.insert(event.id, (event.conversation, event.seq));
        }
        for (id, place) in &self.acknowledged {
            assert_eq!(
                places.get(id),
                Some(place),
                "every acknowledged draft is where it was said"
            );
        }
        for node in &self.nodes {
            for (conversation, seq) in &seqs {
                assert_eq!(node.fold.head(*conversation).map(|head| head.seq), Some(*seq));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn writers_that_race_lose_and_restart_leave_a_log_without_hole_or_repeat(seed in any::<u64>(), nodes in 1_u8..4) {
        let mut world = World::new(seed, nodes);
        for _ in 0..600 {
            world.step();
        }
        world.settle();
        world.check();
    }
}

#[test]
fn the_interleavings_do_contain_lost_races_and_acknowledgements() {
    let (mut races, mut acknowledged) = (0, 0);
    for seed in 0..20 {
        let mut world = World::new(seed, 3);
        (0..600).for_each(|_| world.step());
        world.settle();
        races += world.lost_races;
        acknowledged += world.acknowledged.len();
    }
    assert!(races > 100 && acknowledged > 500, "{races} lost races, {acknowledged} acknowledged");
}

/// A sequencer on an empty log that has one conversation open.
fn opened() -> (Sequencer<Client>, Fold) {
    let (mut sequencer, mut fold) = (Sequencer::new(NodeId::derive([1; 16])), empty_fold());
    let answers = commit(&mut sequencer, &mut fold, vec![draft(1, 0, Intent::OpenNew)], None);
    assert!(matches!(answers[..], [Verdict::Stored(_)]));
    (sequencer, fold)
}

fn push(sequencer: &mut Sequencer<Client>, drafts: Vec<Draft>, seed: Option<Seed>) {
    let deadline = test_start() + Duration::from_secs(9);
    sequencer.push(Request {
        ticket: 0,
        drafts,
        outcomes: Vec::new(),
        seed,
        deadline,
        is_level: true,
        haste: Haste::Now,
    });
}

/// Pushes, stages and, if something was staged, acknowledges; gives the verdicts.
fn commit(
    sequencer: &mut Sequencer<Client>,
    fold: &mut Fold,
    drafts: Vec<Draft>,
    seed: Option<Seed>,
) -> Vec<Verdict> {
    push(sequencer, drafts, seed);
    let id = RecordId::derive(fold.position().to_le_bytes().repeat(2).try_into().unwrap());
    let stage = sequencer.stage(fold, id, test_start());
    let mut answers = stage.answers;
    if let Some(outgoing) = stage.outgoing {
        let stored = Outcome::Stored { position: outgoing.expected + 1 };
        let next = sequencer.on_outcome(fold, (id, stored), Timestamp::default());
        let Next::Settled(more) = next else { panic!("{next:?}") };
        answers.extend(more);
    }
    answers.remove(0).verdicts.unwrap()
}

/// Whether a request of these drafts came back for want of knowledge, leaving nothing behind.
fn is_cold(
    sequencer: &mut Sequencer<Client>,
    fold: &Fold,
    drafts: Vec<Draft>,
    seed: Option<Seed>,
) -> bool {
    let count = drafts.len();
    push(sequencer, drafts, seed);
    let mut stage = sequencer.stage(fold, RecordId::derive([3; 16]), test_start());
    let answer = stage.answers.remove(0);
    let is_back = matches!(answer.verdicts, Err(Unanswered::Cold(back)) if back.len() == count);
    is_back && stage.outgoing.is_none() && sequencer.is_idle()
}

#[test]
fn a_repeat_is_answered_with_the_first_receipt_and_another_payload_refused() {
    let (mut sequencer, mut fold) = opened();
    let first = commit(&mut sequencer, &mut fold, vec![draft(1, 7, Intent::Send)], None);
    let [Verdict::Stored(receipt)] = first[..] else { panic!("{first:?}") };
    assert_eq!(receipt.seq, 2);
    let again = commit(&mut sequencer, &mut fold, vec![draft(1, 7, Intent::Send)], None);
    assert_eq!(again, [Verdict::Duplicate(receipt)]);
    let mut other = draft(1, 7, Intent::Send);
    other.fingerprint = Fingerprint::default();
    assert_eq!(commit(&mut sequencer, &mut fold, vec![other], None), [Verdict::KeyConflict]);
}

#[test]
fn a_closed_conversation_takes_nothing_but_repeats_until_it_is_reopened() {
    let (mut sequencer, mut fold) = opened();
    let mut verdict = |intent, client| {
        commit(&mut sequencer, &mut fold, vec![draft(1, client, intent)], None).remove(0)
    };
    assert!(matches!(verdict(Intent::Send, 1), Verdict::Stored(_)));
    assert!(matches!(verdict(Intent::Close, 2), Verdict::Stored(_)));
    assert!(matches!(verdict(Intent::Send, 1), Verdict::Duplicate(_)));
    assert_eq!(verdict(Intent::Send, 3), Verdict::Closed);
    assert!(matches!(verdict(Intent::Close, 4), Verdict::Duplicate(_)));
    assert!(matches!(verdict(Intent::Reopen, 5), Verdict::Stored(_)));
    assert!(matches!(verdict(Intent::Reopen, 6), Verdict::Duplicate(_)));
    assert!(matches!(verdict(Intent::Send, 3), Verdict::Stored(Receipt { seq: 5, .. })));
}

#[test]
fn another_tenants_conversation_is_not_found() {
    let (mut sequencer, mut fold) = opened();
    for intent in [Intent::Send, Intent::Close, Intent::Reopen, Intent::OpenNamed] {
        let mut foreign = draft(1, 1, intent);
        foreign.tenant = TenantId::derive([2; 16]);
        assert_eq!(commit(&mut sequencer, &mut fold, vec![foreign], None), [Verdict::NotFound]);
    }
}

#[test]
fn what_memory_forgot_needs_a_seed_that_is_new_enough() {
    let start =
        Start { position: 50, since: Timestamp::default(), heads: Heads::starting_after(50) };
    let mut fold = Fold::new(start, bounds());
    let mut sequencer = Sequencer::new(NodeId::derive([1; 16]));
    let head = Head {
        tenant: tenant(),
        seq: 9,
        status: crate::journal::heads::Status::Open,
        opened_at: None,
        position: 40,
    };
    let seed = |checkpoint, head| Some(Seed { checkpoint, head, stored: Vec::new() });
    let wish = || vec![draft(1, 1, Intent::Send)];
    assert!(is_cold(&mut sequencer, &fold, wish(), None));
    assert!(is_cold(&mut sequencer, &fold, wish(), seed(49, Some(head))));
    assert_eq!(commit(&mut sequencer, &mut fold, wish(), seed(50, None)), [Verdict::NotFound]);
    let verdicts = commit(&mut sequencer, &mut fold, wish(), seed(50, Some(head)));
    assert!(matches!(verdicts[..], [Verdict::Stored(Receipt { seq: 10, .. })]), "{verdicts:?}");
}

use crate::journal::heads::Head;

#[test]
fn a_key_that_says_it_is_older_than_memory_needs_a_seed() {
    let since = Timestamp::from_micros(1_000).unwrap();
    let start = Start { position: 50, since, heads: Heads::starting_after(0) };
    let mut fold = Fold::new(start, bounds());
    let mut sequencer = Sequencer::new(NodeId::derive([1; 16]));
    commit(&mut sequencer, &mut fold, vec![draft(1, 0, Intent::OpenNew)], None);
    let old = || Draft { key_time: Timestamp::from_micros(999), ..draft(1, 1, Intent::Send) };
    assert!(is_cold(&mut sequencer, &fold, vec![old()], None));
    let with_new = vec![draft(1, 4, Intent::Send), old()];
    assert!(is_cold(&mut sequencer, &fold, with_new, None), "all of it or nothing");
    let stored =
        crate::journal::Stored { id: old().id, seq: 3, at: since, fingerprint: old().fingerprint };
    let seed = Seed { checkpoint: 50, head: None, stored: vec![stored] };
    let verdicts = commit(&mut sequencer, &mut fold, vec![old()], Some(seed));
    assert!(matches!(verdicts[..], [Verdict::Duplicate(Receipt { seq: 3, .. })]), "{verdicts:?}");
    let seed = Seed { checkpoint: 50, head: None, stored: Vec::new() };
    let verdicts = commit(&mut sequencer, &mut fold, vec![old()], Some(seed));
    assert!(matches!(verdicts[..], [Verdict::Stored(_)]), "{verdicts:?}");
}

#[test]
fn nothing_is_refused_on_a_fold_that_may_lag_behind_the_log() {
    let (mut sequencer, mut fold) = opened();
    let is_doubtful = |sequencer: &mut Sequencer<Client>, fold: &Fold, draft: Draft| {
        let deadline = test_start() + Duration::from_secs(9);
        let drafts = vec![draft];
        sequencer.push(Request {
            ticket: 0,
            drafts,
            outcomes: Vec::new(),
            seed: None,
            deadline,
            is_level: false,
            haste: Haste::Now,
        });
        let mut stage = sequencer.stage(fold, RecordId::derive([3; 16]), test_start());
        let is_back = stage.answers.pop().is_some_and(
            |answer| matches!(answer.verdicts, Err(Unanswered::Doubtful(back)) if back.len() == 1),
        );
        is_back && stage.outgoing.is_none()
    };
    commit(&mut sequencer, &mut fold, vec![draft(1, 7, Intent::Send)], None);
    let unknown = draft(2, 1, Intent::Send);
    assert!(is_doubtful(&mut sequencer, &fold, unknown), "another node may have opened it");
    let open_already = draft(1, 1, Intent::Reopen);
    assert!(is_doubtful(&mut sequencer, &fold, open_already), "it may have been closed");
    let repeat = draft(1, 7, Intent::Send);
    assert!(!is_doubtful(&mut sequencer, &fold, repeat), "a repeat is certain");
    commit(&mut sequencer, &mut fold, vec![draft(1, 2, Intent::Close)], None);
    let closed = draft(1, 3, Intent::Send);
    assert!(is_doubtful(&mut sequencer, &fold, closed), "it may have been reopened");
    let mut foreign = draft(1, 4, Intent::Send);
    foreign.tenant = TenantId::derive([2; 16]);
    assert!(!is_doubtful(&mut sequencer, &fold, foreign), "a tenant's conversation stays its own");
}

#[test]
fn a_refused_record_and_an_expired_request_leave_nothing_behind() {
    let (mut sequencer, mut fold) = opened();
    push(&mut sequencer, vec![draft(1, 1, Intent::Send)], None);
    let id = RecordId::derive([9; 16]);
    drop(sequencer.stage(&fold, id, test_start()));
    let refused = Outcome::Refused { reason: "disk".to_owned() };
    let next = sequencer.on_outcome(&mut fold, (id, refused), Timestamp::default());
    let Next::Settled(answers) = next else { panic!("{next:?}") };
    assert!(matches!(&answers[0].verdicts, Err(Unanswered::Refused(why)) if why == "disk"));
    push(&mut sequencer, vec![draft(1, 1, Intent::Send)], None);
    let late = test_start() + Duration::from_secs(10);
    let stage = sequencer.stage(&fold, id, late);
    assert!(matches!(stage.answers[0].verdicts, Err(Unanswered::Late)));
    assert!(stage.outgoing.is_none() && sequencer.is_idle());
}

#[test]
fn who_waits_too_long_is_told_and_the_record_on_its_way_is_settled_all_the_same() {
    let (mut sequencer, mut fold) = opened();
    push(&mut sequencer, vec![draft(1, 1, Intent::Send)], None);
    let id = RecordId::derive([9; 16]);
    drop(sequencer.stage(&fold, id, test_start()));
    push(&mut sequencer, vec![draft(1, 4, Intent::Send)], None);
    let deadline = sequencer.next_wake().unwrap();
    assert!(sequencer.on_wake(test_start()).is_empty());
    let told = sequencer.on_wake(deadline + Duration::from_secs(1));
    assert_eq!(told.len(), 2, "the one on its way and the one in the queue");
    assert!(told.iter().all(|answer| matches!(answer.verdicts, Err(Unanswered::Late))));
    assert!(sequencer.is_flying() && sequencer.next_wake().is_none());
    let stored = (id, Outcome::Stored { position: 2 });
    let next = sequencer.on_outcome(&mut fold, stored, Timestamp::default());
    assert!(matches!(next, Next::Settled(answers) if answers.is_empty()));
    let again = commit(&mut sequencer, &mut fold, vec![draft(1, 1, Intent::Send)], None);
    assert!(matches!(again[..], [Verdict::Duplicate(Receipt { seq: 2, .. })]), "{again:?}");
}

#[test]
fn a_log_that_ends_before_what_was_acknowledged_is_reported() {
    let (mut sequencer, mut fold) = opened();
    push(&mut sequencer, vec![draft(1, 1, Intent::Send)], None);
    let id = RecordId::derive([9; 16]);
    drop(sequencer.stage(&fold, id, test_start()));
    let next =
        sequencer.on_outcome(&mut fold, (id, Outcome::Conflict { last: 0 }), Timestamp::default());
    assert!(matches!(next, Next::WentBack { last: 0 }));
}

#[test]
fn a_record_never_exceeds_its_bounds_and_the_rest_waits() {
    let (mut sequencer, mut fold) = opened();
    for client in 0..1_500 {
        push(&mut sequencer, vec![draft(1, client, Intent::Send)], None);
    }
    let stage = sequencer.stage(&fold, RecordId::derive([8; 16]), test_start());
    let record = Record::decode(&stage.outgoing.unwrap().bytes).unwrap();
    assert_eq!(record.events.len(), 1_000);
    let stored = (RecordId::derive([8; 16]), Outcome::Stored { position: 2 });
    let next = sequencer.on_outcome(&mut fold, stored, Timestamp::default());
    assert!(matches!(next, Next::Settled(answers) if answers.len() == 1_000));
    let stage = sequencer.stage(&fold, RecordId::derive([7; 16]), test_start());
    let record = Record::decode(&stage.outgoing.unwrap().bytes).unwrap();
    assert_eq!((record.events.len(), record.events[0].seq), (500, 1_002));
}

/// An outcome of the delivery with this number.
fn outcome(number: u8) -> event::Outcome {
    use event::{ChannelId, DeliveryId, Fate, MessageId, Outcome, TenantId};
    Outcome {
        tenant: TenantId::derive([1; 16]),
        conversation: ConversationId::derive([1; 16]),
        delivery: DeliveryId::derive([number; 16]),
        channel: ChannelId::derive([1; 16]),
        message: MessageId::derive([1; 16]),
        seq: 1,
        attempt: 1,
        began_at: Timestamp::default(),
        took_ms: 1,
        status: Some(200),
        reason: None,
        fate: Fate::Delivered,
        answer: None,
    }
}

fn note(sequencer: &mut Sequencer<Client>, ticket: Client, numbers: &[u8]) {
    let outcomes = numbers.iter().map(|number| outcome(*number)).collect();
    let deadline = test_start() + Duration::from_secs(9);
    let (drafts, seed, is_level, haste) = (Vec::new(), None, false, Haste::Now);
    sequencer.push(Request { ticket, drafts, outcomes, seed, deadline, is_level, haste });
}

#[test]
fn outcomes_are_answered_once_they_are_stored_and_survive_a_lost_race() {
    let (mut sequencer, mut fold) = opened();
    note(&mut sequencer, 1, &[1, 2]);
    note(&mut sequencer, 2, &[3]);
    let lost = sequencer.stage(&fold, RecordId::derive([7; 16]), test_start());
    assert!(lost.answers.is_empty());
    let lost = lost.outgoing.unwrap();
    let position = lost.expected + 1;
    let conflict = (lost.id, Outcome::Conflict { last: position });
    let next = sequencer.on_outcome(&mut fold, conflict, Timestamp::default());
    assert!(matches!(next, Next::Behind(at) if at == position), "{next:?}");
    let events = Vec::new();
    let (id, node) = (RecordId::derive([9; 16]), NodeId::derive([9; 16]));
    let record = Record { version: VERSION, id, node, events, outcomes: vec![outcome(9)] };
    let folded = Arc::new(Folded { position, bytes: 9, record });
    let (_, next) = sequencer.on_record(&mut fold, &folded, Timestamp::default());
    assert!(matches!(next, Next::Lost), "{next:?}");

    let again = sequencer.stage(&fold, RecordId::derive([8; 16]), test_start()).outgoing.unwrap();
    let record = Record::decode(&again.bytes).unwrap();
    assert_eq!(record.outcomes, [outcome(1), outcome(2), outcome(3)]);
    let stored = Outcome::Stored { position: again.expected + 1 };
    let next = sequencer.on_outcome(&mut fold, (again.id, stored), Timestamp::default());
    let Next::Settled(answers) = next else { panic!("{next:?}") };
    let told: Vec<_> = answers.iter().map(|answer| answer.ticket).collect();
    assert_eq!(told, [1, 2]);
    assert!(answers.iter().all(|answer| answer.verdicts.as_ref().is_ok_and(Vec::is_empty)));
}
