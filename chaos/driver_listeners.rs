//! Who listens: a client for each conversation, by WebSocket and by server-sent events in turns; and some who send by socket.
//! Promises to note each event that came, and whatever no listener should ever see.
//! Does not judge whether all came; `eventually_healed` waits for that, and the judge says what it means.

pub(crate) mod noted;
pub(crate) mod stream;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay::client::{self, Events, Handle, Server, Settings, Start, State, Told};
use forebay::clock::Clock;
use forebay::event::{ConversationId, MessageId};
use forebay::load::{Entry, Ledger};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::stage::Tenant;
use noted::{Noted, id_of};

/// How often somebody who sends by socket does.
const SEND_EVERY: Duration = Duration::from_millis(250);

/// How many do.
const SENDERS: usize = 3;

/// Longest wait for those who send once they are told to end: a client comes back within 30 s and repeats, and a send's
/// own deadline is 2 s.
const SENDERS_MAX: Duration = Duration::from_mins(1);

/// A listener's notes while it listens.
pub(crate) type Notes = Arc<Mutex<Noted>>;

/// Those who listen and those who send.
#[derive(Debug)]
pub(crate) struct Listening {
    /// What each listener has noted, by its conversation.
    pub(crate) notes: Vec<(ConversationId, Notes)>,
    listeners: JoinSet<()>,
    senders: JoinSet<SentBySocket>,
    over: watch::Sender<bool>,
}

/// What somebody who sends by socket came to.
#[derive(Debug, Default)]
pub(crate) struct SentBySocket {
    /// The receipts.
    pub(crate) ledger: Ledger,
    /// What was refused for good.
    pub(crate) refused: Vec<String>,
}

impl Listening {
    /// Starts everybody.
    pub(crate) fn start(
        doors: &[SocketAddr],
        tenant: &Tenant,
        clock: &Clock,
    ) -> anyhow::Result<Self> {
        let (over, _) = watch::channel(false);
        let mut listening =
            Self { notes: Vec::new(), listeners: JoinSet::new(), senders: JoinSet::new(), over };
        for (number, conversation) in tenant.conversations.iter().copied().enumerate() {
            let door = doors[number / 2 % doors.len()];
            let notes = Notes::default();
            listening.notes.push((conversation, Arc::clone(&notes)));
            if number % 2 == 0 {
                lock(&notes).by = "socket";
                let (_, events) = open(door, tenant, (conversation, Start::After(0)), clock)?;
                listening.listeners.spawn(listen(events, notes, clock.clone()));
            } else {
                lock(&notes).by = "stream";
                let key = tenant.api_key.clone();
                let place = (door, conversation);
                listening.listeners.spawn(stream::listen(place, key, notes, clock.clone()));
            }
        }
        for number in 0..SENDERS {
            let conversation = tenant.conversations[number % tenant.conversations.len()];
            let door = doors[number % doors.len()];
            let (handle, events) = open(door, tenant, (conversation, Start::Head), clock)?;
            let over = listening.over.subscribe();
            let sender = Sender { conversation, handle, events, clock: clock.clone() };
            listening.senders.spawn(sender.send(over, number as u64));
        }
        Ok(listening)
    }

    /// Ends those who send, and hands out what they came to. Listeners go on.
    pub(crate) async fn end_senders(&mut self) -> SentBySocket {
        self.over.send_replace(true);
        let mut all = SentBySocket::default();
        let gathering = async {
            while let Some(ended) = self.senders.join_next().await {
                match ended {
                    Ok(own) => {
                        all.ledger.absorb(own.ledger);
                        all.refused.extend(own.refused);
                    }
                    Err(error) => all.refused.push(error.to_string()),
                }
            }
        };
        if timeout(SENDERS_MAX, gathering).await.is_err() {
            let (left, limit) = (self.senders.len(), SENDERS_MAX.as_secs());
            all.refused.push(format!("{left} had no answer {limit} s after the load"));
        }
        self.senders.abort_all();
        all
    }

    /// The longest time in which a conversation's listener heard nothing. The load sends to each several times a second: a
    /// partition that takes nothing is seen although the others do.
    pub(crate) fn longest_silence(&self, from: Instant, to: Instant) -> Duration {
        let longest = |notes: &Notes| lock(notes).longest_silence(from, to);
        self.notes.iter().map(|(_, notes)| longest(notes)).max().unwrap_or_default()
    }

    /// The conversations of which nothing was heard after this moment.
    pub(crate) fn unheard_since(&self, moment: Instant) -> Vec<String> {
        let unheard = self.notes.iter().filter(|(_, notes)| !lock(notes).heard_after(moment));
        unheard.map(|(conversation, _)| conversation.to_string()).collect()
    }

    /// What came to listeners and is not what is stored.
    pub(crate) fn differing(
        &self,
        stored: &BTreeMap<ConversationId, BTreeMap<u64, MessageId>>,
    ) -> Vec<String> {
        let nothing = BTreeMap::new();
        let differing = |(conversation, notes): &(ConversationId, Notes)| {
            let noted = lock(notes);
            let found = noted.differing(stored.get(conversation).unwrap_or(&nothing))?;
            Some(format!("{conversation} by {}: {found}", noted.by))
        };
        self.notes.iter().filter_map(differing).collect()
    }

    /// Events that came to listeners between these moments.
    pub(crate) fn count_between(&self, from: Instant, to: Instant) -> u64 {
        let count = |notes: &Notes| {
            lock(notes).at.iter().filter(|at| (from..to).contains(*at)).count() as u64
        };
        self.notes.iter().map(|(_, notes)| count(notes)).sum()
    }
}

/// The notes, for a moment.
pub(crate) fn lock(notes: &Notes) -> std::sync::MutexGuard<'_, Noted> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(
    door: SocketAddr,
    tenant: &Tenant,
    (conversation, start): (ConversationId, Start),
    clock: &Clock,
) -> anyhow::Result<(Handle, Events)> {
    let settings = Settings {
        server: Server::parse(&format!("http://{door}"))?,
        token: tenant.api_key.clone(),
        conversation,
        start,
        keep: None,
    };
    // What it decides is when to come back; two must not decide alike.
    let seed = conversation.uuid().as_u64_pair().1 ^ u64::from(door.port());
    Ok(client::open(settings, clock.clone(), seed)?)
}

async fn listen(mut events: Events, notes: Notes, clock: Clock) {
    loop {
        let told = events.next().await;
        let mut noted = lock(&notes);
        match told {
            Ok(Some(Told::Event { seq, frame })) => noted.note(seq, id_of(&frame), clock.now()),
            Ok(Some(Told::State(State::Missing(gap)))) => noted.gaps.push(gap),
            Ok(Some(Told::State(State::Waiting { .. }))) => noted.reconnects += 1,
            Ok(Some(Told::State(State::Connecting | State::CatchingUp | State::Live { .. }))) => {}
            Ok(Some(other @ (Told::Reset | Told::Rewound { .. } | Told::State(_)))) => {
                noted.fault(format!("{other:?}"));
            }
            Ok(None) => return,
            Err(error) => return noted.fault(error.to_string()),
        }
    }
}

/// Somebody who sends by socket.
struct Sender {
    conversation: ConversationId,
    handle: Handle,
    events: Events,
    clock: Clock,
}

impl Sender {
    async fn send(mut self, mut over: watch::Receiver<bool>, number: u64) -> SentBySocket {
        let mut sent = SentBySocket::default();
        let mut tick = interval(SEND_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for count in 0_u64.. {
            tokio::select! {
                _ = tick.tick() => {}
                _ = over.wait_for(|over| *over) => break,
            }
            let key = key(self.clock.timestamp().millis(), (number << 48) | count);
            let body = Map::from_iter([("text".to_owned(), Value::from("by socket"))]);
            let answer = {
                let mut sending = std::pin::pin!(self.handle.send(&key, body));
                loop {
                    tokio::select! {
                        answer = &mut sending => break answer,
                        // Nobody reads what it hears, but it must be taken.
                        told = self.events.next() => if !matches!(told, Ok(Some(_))) { break sending.await },
                    }
                }
            };
            let receipt = match answer {
                Ok(receipt) => receipt,
                Err(error) => {
                    sent.refused.push(error.to_string());
                    break;
                }
            };
            match MessageId::parse(&receipt.id) {
                Ok(message) => sent.ledger.acknowledge(Entry {
                    message,
                    conversation: self.conversation,
                    seq: receipt.seq,
                }),
                Err(_bad) => sent.refused.push(format!("{:?} is no id", receipt.id)),
            }
        }
        sent
    }
}

/// A UUIDv7 of this moment and number.
fn key(millis: u64, number: u64) -> String {
    let mut rest = [0; 10];
    rest[2..].copy_from_slice(&number.to_be_bytes());
    uuid::Builder::from_unix_timestamp_millis(millis, &rest).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_keys_differ_in_their_number() {
        assert_ne!(key(1_700_000_000_000, 1), key(1_700_000_000_000, 2));
        assert_eq!(&key(1_700_000_000_000, 1)[14..15], "7");
    }
}
