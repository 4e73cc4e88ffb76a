//! A load that goes on whatever is killed, and the audit of what came of it.
//! Promises that every message is sent again under its key until it is acknowledged, and that what is awaited is known by name.
//! Does not kill anything.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use forebay::event::{ChannelId, ConversationId, Delivery, MessageId};
use forebay::receiver::{Mode, Receiver};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Interval, interval, interval_at};

use crate::world::client::Client;
use crate::world::{World, within};

/// Channels that hear of everything.
const CHANNELS: usize = 20;

/// Who sends at once, each to a conversation of its own.
const SENDERS: u32 = 10;

/// How often each sends.
const BATCHES_PER_SECOND: u32 = 5;

/// Before a batch that was not acknowledged is sent again.
const AGAIN: Duration = Duration::from_millis(50);

/// What the receiver takes to answer, so that there always are attempts under way when something is killed.
const ANSWER: Duration = Duration::from_millis(20);

/// Longest time until a batch is acknowledged: far beyond every restart.
const ACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// How much, for how long, and what happens meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    pub seconds: u32,
    /// Messages in a second; a multiple of [`SENDERS`] times [`BATCHES_PER_SECOND`].
    pub per_second: u32,
    /// Between two kills.
    pub beat: Duration,
    /// Longest time from the last acknowledgement to the last delivery, and from there to its row.
    pub catch_up_max: Duration,
}

/// What always runs. A dead node's deliveries come again ten seconds later.
pub const SHORT: Course = Course {
    seconds: 6,
    per_second: 50,
    beat: Duration::from_secs(2),
    catch_up_max: Duration::from_mins(1),
};

/// The proof at length. Two cores do not deliver 10 000 in a second, so most of it is caught up with afterwards.
pub const LONG: Course = Course {
    seconds: 60,
    per_second: 500,
    beat: Duration::from_secs(5),
    catch_up_max: Duration::from_mins(20),
};

/// Where the servers listen at present.
pub type Addresses = Arc<RwLock<Vec<SocketAddr>>>;

/// A tenant whose messages go to all channels of a receiver.
pub struct Load {
    course: Course,
    addresses: Addresses,
    bearer: String,
    receiver: Receiver,
    channels: Vec<ChannelId>,
    conversations: Vec<ConversationId>,
    /// What the receiver is to hear of: the openings, and what was acknowledged.
    messages: BTreeSet<MessageId>,
    /// When the last of it was acknowledged.
    acknowledged: Instant,
}

impl Load {
    /// Channels and conversations, made at the first of the addresses.
    pub async fn prepare(course: Course, addresses: &Addresses) -> Self {
        let first = addresses.read().unwrap()[0];
        let tenant = Client::tenant_at(first).await;
        let (receiver, mut channels) = (super::super::receiver(), Vec::new());
        for number in 0..CHANNELS {
            let (channel, _) =
                super::super::channel(&tenant, &receiver.url(&endpoint(number)), json!({})).await;
            channels.push(ChannelId::parse(&channel).unwrap());
            receiver.set_mode(&endpoint(number), Mode::Slow(ANSWER));
        }
        let (mut conversations, mut messages) = (Vec::new(), BTreeSet::new());
        for _ in 0..SENDERS {
            let conversation = tenant.open().await;
            let page = tenant.page(conversation, "").await.json();
            messages.insert(message(&page["messages"][0]));
            conversations.push(conversation);
        }
        let (addresses, bearer) = (Arc::clone(addresses), tenant.bearer().to_owned());
        Self {
            course,
            addresses,
            bearer,
            receiver,
            channels,
            conversations,
            messages,
            acknowledged: Instant::now(),
        }
    }

    /// Sends everything in its time; returns when all of it is acknowledged.
    pub async fn send(&mut self) {
        let mut senders = JoinSet::new();
        let began = Instant::now();
        for (number, conversation) in (0..SENDERS).zip(self.conversations.clone()) {
            let (addresses, bearer) = (Arc::clone(&self.addresses), self.bearer.clone());
            // One after the other, so that no kill finds all of them at rest.
            let pace = Duration::from_secs(1) / BATCHES_PER_SECOND;
            let pace = interval_at((began + pace / SENDERS * number).into(), pace);
            senders.spawn(send(self.course, (addresses, bearer), conversation, pace));
        }
        while let Some(sent) = senders.join_next().await {
            self.messages.extend(sent.unwrap());
        }
        self.acknowledged = Instant::now();
        let sent = self.course.seconds * self.course.per_second;
        assert_eq!(self.messages.len(), (sent + SENDERS) as usize, "each has a name of its own");
    }

    fn distinct(&self) -> usize {
        (0..CHANNELS).map(|number| self.receiver.distinct(&endpoint(number))).sum()
    }

    /// Waits until the receiver has everything, and says how long that took since the last acknowledgement.
    pub async fn delivered(&self) -> Duration {
        let delivered = async || self.distinct() >= self.messages.len() * CHANNELS;
        within(self.course.catch_up_max, "everything is delivered", delivered).await;
        self.acknowledged.elapsed()
    }

    /// Waits until Postgres says of every delivery that it was made, and says how long that took.
    pub async fn projected(&self, world: &World) -> Duration {
        let began = Instant::now();
        let all = Some(i64::try_from(self.messages.len() * CHANNELS).unwrap());
        let delivered = "SELECT count(*) FROM deliveries WHERE state = 'delivered'";
        let projected = async || world.number(delivered).await == all;
        within(self.course.catch_up_max, "every delivery's row says so", projected).await;
        assert_eq!(world.number("SELECT count(*) FROM deliveries").await, all, "no others");
        began.elapsed()
    }

    /// Compares what the receiver got with what it is to get, and tells. Nothing may be missing, and nothing strange.
    pub fn audit(&self) -> String {
        let (mut missing, mut strange, mut count) = (0, 0, 0);
        for (number, channel) in self.channels.iter().enumerate() {
            let name = endpoint(number);
            assert_eq!(self.receiver.dropped(&name), 0, "the receiver kept everything");
            let name_of = |message: &MessageId| Delivery::name(*message, *channel).to_string();
            let expected: BTreeSet<_> = self.messages.iter().map(name_of).collect();
            let received = self.receiver.received(&name);
            count += received.len();
            let received: BTreeSet<_> = received.iter().map(|one| one.id.to_string()).collect();
            missing += expected.difference(&received).count();
            strange += received.difference(&expected).count();
        }
        assert_eq!((missing, strange), (0, 0), "missing and strange");
        let (messages, repeated) = (self.messages.len(), count - self.distinct());
        format!(
            "{messages} messages acknowledged, {count} deliveries received, {repeated} of them repeats, {missing} missing"
        )
    }
}

fn endpoint(number: usize) -> String {
    format!("all{number}")
}

fn message(json: &serde_json::Value) -> MessageId {
    MessageId::parse(json["id"].as_str().unwrap_or_else(|| panic!("no receipt: {json}"))).unwrap()
}

/// Sends a conversation's part of the load. After an interruption it makes up for the time.
async fn send(
    course: Course,
    (addresses, bearer): (Addresses, String),
    conversation: ConversationId,
    mut pace: Interval,
) -> Vec<MessageId> {
    let path = format!("/v1/conversations/{conversation}/messages:batch");
    let size = course.per_second / SENDERS / BATCHES_PER_SECOND;
    let mut sent = Vec::new();
    for batch in 0..course.seconds * BATCHES_PER_SECOND {
        pace.tick().await;
        let one = |n: u32| json!({"clientId": format!("{batch}-{n}"), "text": "x".repeat(100)});
        let body = json!({"messages": (0..size).map(one).collect::<Vec<_>>()}).to_string();
        let mut at = batch as usize;
        let deadline = Instant::now() + ACKNOWLEDGED_MAX;
        let mut again = interval(AGAIN);
        loop {
            again.tick().await;
            let address = {
                let addresses = addresses.read().unwrap();
                addresses[at % addresses.len()]
            };
            let answer = Client::to(address, &bearer).try_post(&path, body.clone()).await;
            if let Some(answer) = answer.as_ref().filter(|answer| answer.status < 300) {
                let receipts = answer.json()["receipts"].clone();
                sent.extend(receipts.as_array().unwrap().iter().map(message));
                break;
            }
            assert!(Instant::now() < deadline, "not acknowledged: {answer:?}");
            at += 1;
        }
    }
    sent
}
