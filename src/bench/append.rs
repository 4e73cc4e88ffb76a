//! `bench append`: events appended to the journal of one or more nodes, without HTTP.
//! Promises that every receipt is in the ledger, and that conflicts and shares are told for each node.
//! Does not build nodes; it is given a way to append for each, and what they count of their publishes.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::Error;
use super::machine::Machine;
use super::report::line_of_round;
use super::send::{Hook, asked};
use crate::clock::Clock;
use crate::event::{Body, ClientId, ConversationId, Fingerprint, Message, MessageId, TenantId};
use crate::journal::{Draft, Intent, Receipt, Verdict};
use crate::load::callers::{self, Called};
use crate::load::tally::precise;
use crate::load::{Audit, Entry, Ledger, Narrator, Round};

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Callers, spread over the nodes; each has one draft under way.
    pub callers: usize,
    /// What is appended before the round is measured.
    pub warmup: Duration,
    /// Length of a round.
    pub round: Duration,
    /// Bytes of a message's text.
    pub text_bytes: usize,
    /// Whose conversations they are.
    pub tenant: TenantId,
    /// Makes the ids of this round its own.
    pub run: u32,
}

/// One node: how to append there, and what it has counted so far.
#[derive(Clone, Debug)]
pub struct Node<A, C> {
    /// Appends drafts and gives a verdict for each.
    pub append: A,
    /// Reads the node's counts.
    pub counts: C,
}

/// What a node has counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that it published, whatever came of them.
    pub published: u64,
    /// Of these, the ones that another node's record beat.
    pub conflicts: u64,
}

/// One round over one or more nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodesRound {
    /// All nodes together.
    #[serde(flatten)]
    pub round: Round,
    /// Of all published records, those that met a conflict; `None` if none was published.
    pub conflicts_percent: Option<f64>,
    /// What each node appended, of all.
    pub shares_percent: Vec<f64>,
}

/// The rounds over so many nodes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// Nodes.
    pub nodes: usize,
    /// Rounds.
    pub rounds: Vec<NodesRound>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// On what.
    pub machine: Machine,
    /// How many called.
    pub callers: usize,
    /// The figures.
    pub measured: Vec<Measured>,
    /// The audit against the log.
    pub audit: Option<Audit>,
}

/// What a whole benchmark needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// How each round is measured; the run is counted up from round to round.
    pub plan: Plan,
    /// Rounds of each line-up.
    pub rounds: usize,
    /// Names of the conversations to open, at least one, none of them in use.
    pub conversations: Vec<ConversationId>,
    /// A directory on the disk that is synced to.
    pub data_dir: PathBuf,
}

/// Measures the line-ups in turns, then audits the receipts. Each line-up has a log of its own, so that one that is
/// not measured just now has nothing to follow, and its share of the conversations.
///
/// # Errors
/// When conversations cannot be opened, the machine cannot be looked at or the log not be read back.
pub async fn run<A, C, F, E>(
    options: Options,
    line_ups: &[&[Node<A, C>]],
    stored: &Hook<Vec<ConversationId>, Vec<Entry>>,
    narrator: &Narrator,
    clock: &Clock,
) -> Result<Report, Error>
where
    A: Fn(Vec<Draft>) -> F + Clone + Send + Sync + 'static,
    C: Fn() -> Counts,
    F: Future<Output = Result<Vec<Verdict>, E>> + Send + 'static,
    E: Send + 'static,
{
    let mut plan = options.plan;
    let mut ledger = Ledger::default();
    let share = (options.conversations.len() / line_ups.len().max(1)).max(1);
    let mut names = options.conversations.chunks(share);
    let mut opened: Vec<Arc<[ConversationId]>> = Vec::new();
    for line_up in line_ups {
        let names = names.next().unwrap_or_default().iter().copied();
        opened.push(open(&line_up[0].append, plan.tenant, names, clock).await?.into());
    }
    let new = |line_up: &&[Node<A, C>]| Measured { nodes: line_up.len(), rounds: Vec::new() };
    let mut measured: Vec<Measured> = line_ups.iter().map(new).collect();
    for nth in 1..=options.rounds {
        for ((line_up, conversations), measured) in line_ups.iter().zip(&opened).zip(&mut measured)
        {
            plan.run = plan.run.wrapping_add(1);
            let label = if line_up.len() == 1 {
                "one node".to_owned()
            } else {
                format!("{} nodes", line_up.len())
            };
            narrator.moment(&format!("round {nth} of {}: {label}", options.rounds));
            let found = round(plan, line_up, conversations, clock, &mut ledger).await;
            let callers = u16::try_from(plan.callers).unwrap_or(u16::MAX);
            narrator.line(&line_of_round(&label, callers, nth, &found.round));
            measured.rounds.push(found);
        }
    }
    narrator.moment("reading the log back for the audit");
    let mut report = Report {
        machine: Machine::look(&options.data_dir, clock).await?,
        callers: plan.callers,
        measured,
        audit: None,
    };
    if let Some(stored) = stored {
        let stored = asked("reading the log back", stored(options.conversations)).await?;
        report.audit = Some(ledger.audit(stored));
    }
    narrator.finish();
    Ok(report)
}

/// Opens so many conversations through the first node, a draft at a time.
///
/// # Errors
/// [`Error::NothingAcknowledged`] when the node does not store one of them.
pub async fn open<A, F, E>(
    append: &A,
    tenant: TenantId,
    names: impl Iterator<Item = ConversationId>,
    clock: &Clock,
) -> Result<Vec<ConversationId>, Error>
where
    A: Fn(Vec<Draft>) -> F,
    F: Future<Output = Result<Vec<Verdict>, E>>,
{
    let mut opened = Vec::new();
    for conversation in names {
        let draft = Draft {
            tenant,
            conversation,
            id: MessageId::derive(*conversation.uuid().as_bytes()),
            at: clock.timestamp(),
            fingerprint: Fingerprint::default(),
            trace: None,
            body: Body::Opened(Box::default()),
            intent: Intent::OpenNew,
            key_time: None,
        };
        let verdicts = append(vec![draft]).await;
        if !matches!(verdicts.as_deref(), Ok([Verdict::Stored(_)])) {
            return Err(Error::NothingAcknowledged {
                what: "the opening of a conversation",
                reasons: std::collections::BTreeMap::new(),
            });
        }
        opened.push(conversation);
    }
    Ok(opened)
}

/// Measures one round over these nodes; caller n appends through node n modulo their number.
///
/// The receipts of round and warm-up go to the ledger.
pub async fn round<A, C, F, E>(
    plan: Plan,
    nodes: &[Node<A, C>],
    conversations: &Arc<[ConversationId]>,
    clock: &Clock,
    ledger: &mut Ledger,
) -> NodesRound
where
    A: Fn(Vec<Draft>) -> F + Clone + Send + Sync + 'static,
    C: Fn() -> Counts,
    F: Future<Output = Result<Vec<Verdict>, E>> + Send + 'static,
    E: Send + 'static,
{
    let count = || nodes.iter().map(|node| (node.counts)()).collect::<Vec<_>>();
    let before = count();
    let appends: Vec<A> = nodes.iter().map(|node| node.append.clone()).collect();
    let drafts = Drafts {
        plan,
        conversations: Arc::clone(conversations),
        text: "x".repeat(plan.text_bytes).into(),
        clock: clock.clone(),
    };
    let call = move |caller: usize, number: u64| {
        let draft = drafts.make(caller, number);
        let conversation = draft.conversation;
        let verdicts = appends[caller % appends.len()](vec![draft]);
        async move { called(conversation, verdicts.await.ok().as_deref()) }
    };
    let driving = callers::Plan {
        callers: plan.callers,
        groups: nodes.len(),
        warmup: plan.warmup,
        length: plan.round,
    };
    let outcome = callers::drive(driving, clock, call).await;
    let total = outcome.total();
    let stored = outcome.groups.iter().map(callers_share(total.acknowledged()));
    let round = NodesRound {
        round: Round::of(&total, plan.round, outcome.unfinished),
        conflicts_percent: conflicts(&before, &count()),
        shares_percent: stored.collect(),
    };
    ledger.absorb(outcome.ledger);
    round
}

fn callers_share(total: u64) -> impl Fn(&crate::load::Tally) -> f64 {
    move |of| percent(of.acknowledged(), total).unwrap_or(0.0)
}

fn conflicts(before: &[Counts], after: &[Counts]) -> Option<f64> {
    let sum = |counts: &[Counts], of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
    let grown = |of: fn(&Counts) -> u64| sum(after, of).saturating_sub(sum(before, of));
    percent(grown(|c| c.conflicts), grown(|c| c.published))
}

fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| 100.0 * precise(part) / precise(whole))
}

/// What one verdict means for the tally and the ledger.
fn called(conversation: ConversationId, verdicts: Option<&[Verdict]>) -> Called {
    let entry =
        |receipt: &Receipt| Some(Entry { message: receipt.id, conversation, seq: receipt.seq });
    match verdicts {
        Some([Verdict::Stored(receipt)]) => Called::Stored(entry(receipt)),
        Some([Verdict::Duplicate(receipt)]) => Called::Repeated(entry(receipt)),
        Some([Verdict::KeyConflict]) => Called::Refused("key conflict"),
        Some([Verdict::Closed]) => Called::Refused("closed"),
        Some([Verdict::NotFound]) => Called::Refused("not found"),
        Some(_) => Called::Refused("not one verdict for one draft"),
        None => Called::Refused("not acknowledged"),
    }
}

/// Makes drafts whose keys never repeat.
struct Drafts {
    plan: Plan,
    conversations: Arc<[ConversationId]>,
    text: Box<str>,
    clock: Clock,
}

impl Drafts {
    fn make(&self, caller: usize, number: u64) -> Draft {
        let Plan { callers, run, tenant, .. } = self.plan;
        let nth = number.wrapping_mul(callers as u64).wrapping_add(caller as u64);
        let place = usize::try_from(nth % self.conversations.len() as u64).unwrap_or(0);
        let mut name = [0; 16];
        name[..4].copy_from_slice(&run.to_be_bytes());
        // Bytes 6 and 8 lose bits to the version and variant of the id; the number goes where none is lost.
        name[4..6].copy_from_slice(&u16::try_from(caller).unwrap_or(u16::MAX).to_be_bytes());
        name[9..].copy_from_slice(&number.to_be_bytes()[1..]);
        let message = Message {
            kind: "message".into(),
            client_id: ClientId::parse(&format!("{run:08x}-{caller:04x}-{number:08x}")).ok(),
            text: Some(self.text.clone()),
            ..Message::default()
        };
        Draft {
            tenant,
            conversation: self.conversations[place],
            id: MessageId::derive(name),
            at: self.clock.timestamp(),
            fingerprint: Fingerprint::default(),
            trace: None,
            body: Body::Message(Box::new(message)),
            intent: Intent::Send,
            key_time: None,
        }
    }
}

#[cfg(test)]
mod tests;
