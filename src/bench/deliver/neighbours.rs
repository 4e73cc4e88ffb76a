//! A healthy tenant beside a neighbour of the same lane that is in trouble.
//! Promises that both runs differ by the neighbour alone.
//! Does not judge; the table does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use super::caller::{Caller, Stage};
use super::{Latency, Options, Round};
use crate::bench::Error;
use crate::event::{ConversationId, MessageId};
use crate::load::{Entry, Tally};
use crate::receiver::Mode;

/// How long the last deliveries are waited for.
const LAST_MAX: Duration = Duration::from_secs(30);

/// When the trouble begins, after the measurement has.
const TROUBLE_AFTER: Duration = Duration::from_secs(1);

/// What is sent before anything is measured. Beside services that have just been made a delivery takes twice as long for some
/// seconds; with those in its baseline a tenant would stand any neighbour.
const WARM_UP: Duration = Duration::from_secs(12);

/// The time that the busy channel's receiver takes.
const BUSY_ANSWER: Duration = Duration::from_millis(20);

/// Attempts at once that a channel of the tier standard has when it asks for none.
const CAP: f64 = 10.0;

/// What is wrong with the neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// A backlog for a channel that answers nothing.
    Dead,
    /// A backlog for a channel that begins to answer and never ends.
    Hung,
    /// A channel that answers 200 after nine seconds.
    Slow,
    /// A channel that fails every fifth time.
    Flapping,
    /// Many slow channels of one tenant.
    Many,
    /// A burst for a channel that works.
    Burst,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Dead, Self::Hung, Self::Slow, Self::Flapping, Self::Many, Self::Burst];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead channel",
            Self::Hung => "hung channel",
            Self::Slow => "slow 200 (9 s)",
            Self::Flapping => "flapping 4:1",
            Self::Many => "many slow channels",
            Self::Burst => "burst for a busy one",
        }
    }

    fn mode(self) -> Mode {
        match self {
            Self::Dead => Mode::Hang,
            Self::Hung => Mode::Drip,
            Self::Slow | Self::Many => Mode::Slow(Duration::from_secs(9)),
            Self::Flapping => Mode::Flap { good: 4, bad: 1 },
            Self::Burst => Mode::Slow(BUSY_ANSWER),
        }
    }
}

/// Messages of a healthy tenant that nobody measures, for no longer than a measurement takes.
pub(super) async fn warm_up(stage: &Stage<'_>, options: &Options) -> Result<(), Error> {
    let mut healthy = stage.tenant(None).await?;
    let good = healthy.channel(&stage.receiver.url("healthy"), json!({})).await?;
    let options = Options { length: options.length.min(WARM_UP), ..options.clone() };
    talk(stage, &mut healthy, &options).await?;
    stage.receiver.clear();
    healthy.delete_channel(&good).await
}

/// One round: without the fault, then with it.
pub(super) async fn measure(
    stage: &Stage<'_>,
    fault: Fault,
    options: &Options,
) -> Result<Round, Error> {
    let mut healthy = stage.tenant(None).await?;
    let mut neighbour = stage.tenant(healthy.lane()).await?;
    stage.receiver.clear();
    let good = healthy.channel(&stage.receiver.url("healthy"), json!({})).await?;
    let (without, mut receipts) = talk(stage, &mut healthy, options).await?;
    stage.receiver.clear();
    let count = if fault == Fault::Many { options.channels } else { 1 };
    let mut channels = Vec::new();
    for number in 0..count {
        let name = format!("trouble-{number}");
        stage.receiver.set_mode(&name, fault.mode());
        channels.push(neighbour.channel(&stage.receiver.url(&name), json!({})).await?);
    }
    let place = neighbour.conversation().await?;
    // Many channels make many deliveries of few messages.
    let messages = (options.backlog / count).max(1);
    let trouble = async {
        tokio::time::sleep(TROUBLE_AFTER).await;
        neighbour.burst(&place, messages).await
    };
    let (with, troubled) = tokio::join!(talk(stage, &mut healthy, options), trouble);
    let ((with, more), ()) = (with?, troubled?);
    receipts.extend(more);
    let neighbour_share = (fault == Fault::Burst).then(|| share(stage));
    let came = |number| stage.receiver.count(&format!("trouble-{number}"));
    let neighbour_came = (0..count).map(came).sum();
    for channel in channels {
        neighbour.delete_channel(&channel).await?;
    }
    healthy.delete_channel(&good).await?;
    Ok(Round { fault, without, with, neighbour_share, neighbour_came, receipts })
}

/// What the busy channel reached of what its cap lets through.
fn share(stage: &Stage<'_>) -> f64 {
    let receipts = stage.receiver.received("trouble-0");
    let (Some(first), Some(last)) = (receipts.first(), receipts.last()) else { return 0.0 };
    let span = last.at.saturating_duration_since(first.at).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a count of requests")]
    let rate = receipts.len() as f64 / span.max(0.001);
    rate / (CAP / BUSY_ANSWER.as_secs_f64())
}

/// The healthy tenant's messages: when each came, and what each was acknowledged as.
async fn talk(
    stage: &Stage<'_>,
    healthy: &mut Caller,
    options: &Options,
) -> Result<(Latency, Vec<Entry>), Error> {
    let conversation = healthy.conversation().await?;
    let path = format!("/v1/conversations/{conversation}/messages");
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / options.messages_per_second);
    let end = stage.clock.now() + options.length;
    let (mut acked, mut entries): (HashMap<u64, Instant>, _) = (HashMap::new(), Vec::new());
    while stage.clock.now() < end {
        ticks.tick().await;
        let sent = healthy.post(&path, &json!({"text": "x"})).await?;
        let seq = sent["seq"].as_u64().unwrap_or(0);
        acked.insert(seq, stage.clock.now());
        entries.extend(entry(&conversation, sent["id"].as_str(), seq));
    }
    let wanted = acked.len();
    drop(stage.receiver.wait_for("healthy", wanted, LAST_MAX).await);
    let (mut tally, mut first): (Tally, HashMap<u64, Instant>) = (Tally::default(), HashMap::new());
    let receipts = stage.receiver.received("healthy");
    for receipt in &receipts {
        first.entry(receipt.seq.unwrap_or(0)).or_insert(receipt.at);
    }
    let mut missing = 0;
    for (seq, at) in &acked {
        match first.get(seq) {
            // Received before the acknowledgement was read counts as at once.
            Some(came) => tally.took(came.saturating_duration_since(*at)),
            None => missing += 1,
        }
    }
    let came = u64::try_from(receipts.len()).unwrap_or(0);
    let sent = u64::try_from(wanted).unwrap_or(0);
    let repeated = came.saturating_sub(sent - missing);
    Ok((Latency::new(tally, sent, missing, repeated), entries))
}

/// A receipt as an audit takes it; `None` for what is no receipt.
fn entry(conversation: &str, id: Option<&str>, seq: u64) -> Option<Entry> {
    let message = MessageId::parse(id?).ok()?;
    Some(Entry { message, conversation: ConversationId::parse(conversation).ok()?, seq })
}
