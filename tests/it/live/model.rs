//! A client that keeps the protocol and watches that the server does, too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use forebay::event::ConversationId;
use forebay::live::gap::Gap;
use forebay::live::reader::{Action, Incoming, Reader};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::Socket;
use crate::world::client::Client;

/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(300);

/// Whom to follow, and how.
#[derive(Clone)]
pub struct Wish {
    pub key: String,
    pub conversation: ConversationId,
    /// From where; `None` for the head.
    pub watermark: Option<u64>,
    pub has_gaps: bool,
    /// What its client ids begin with, and how often it sends; under 20 a second.
    pub sends: Option<(&'static str, Duration)>,
}

/// What goes on around.
#[derive(Clone, Copy, Debug, Default)]
pub struct Course {
    /// Nothing new is sent any more.
    pub is_over: bool,
    /// Up to where everything must come.
    pub goal: Option<u64>,
}

/// What became of a client.
#[derive(Debug, Default)]
pub struct Followed {
    /// The first seq that it was to get.
    pub first: u64,
    /// What was passed on, by seq; each once.
    pub got: BTreeMap<u64, String>,
    /// Its own sends, by seq.
    pub acked: BTreeMap<u64, String>,
    pub sent: usize,
    pub gaps: usize,
    pub syncs: usize,
    /// With which codes its connections ended.
    pub closes: Vec<u64>,
}

impl Followed {
    /// Whether it has everything from its first to the last, and nothing else.
    #[track_caller]
    pub fn assert_whole(&self, all: &BTreeMap<u64, String>) {
        let mut has = self.got.clone();
        for (seq, id) in &self.acked {
            assert!(has.insert(*seq, id.clone()).is_none_or(|other| other == *id), "{seq}");
        }
        let mut all = all.clone();
        assert_eq!(has, all.split_off(&self.first), "{self:?}");
        assert_eq!(self.acked.len(), self.sent, "each send is stored once: {self:?}");
    }
}

struct Model {
    wish: Wish,
    reader: Option<Reader>,
    epoch: Value,
    followed: Followed,
    unanswered: VecDeque<Value>,
    /// What came on this connection.
    came: BTreeSet<u64>,
    is_welcome: bool,
    sends_again: bool,
}

/// Follows at the first address, after each loss at the next one, until the goal.
pub async fn follow(
    addresses: Vec<SocketAddr>,
    wish: Wish,
    mut course: watch::Receiver<Course>,
) -> Followed {
    let mut model = Model {
        reader: wish.watermark.map(Reader::resume),
        followed: Followed { first: wish.watermark.unwrap_or(0) + 1, ..Followed::default() },
        epoch: Value::Null,
        unanswered: VecDeque::new(),
        came: BTreeSet::new(),
        is_welcome: false,
        sends_again: false,
        wish,
    };
    let mut pause = interval(RETRY);
    let period = model.wish.sends.map_or(Duration::from_secs(1), |(_, period)| period);
    let mut tick = interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for address in addresses.iter().cycle() {
        // Time in which something happens that must be replayed.
        pause.reset();
        pause.tick().await;
        let socket = Socket::at(*address, &model.wish.key, "forebay.v1+json").await;
        let Some(mut socket) = socket else { continue };
        if model.talk(&mut socket, &mut tick, &mut course).await {
            return model.followed;
        }
    }
    unreachable!("there is an address")
}

impl Model {
    /// Until the goal, or until the connection ends: then `false`.
    async fn talk(
        &mut self,
        socket: &mut Socket,
        tick: &mut Interval,
        course: &mut watch::Receiver<Course>,
    ) -> bool {
        self.came.clear();
        self.is_welcome = false;
        if let Some(reader) = &mut self.reader {
            reader.on::<()>(Incoming::Connected, &mut Vec::new());
        }
        let capabilities = if self.wish.has_gaps { json!(["gaps"]) } else { json!([]) };
        let hello = json!({
            "frame": "hello", "conversationId": self.wish.conversation, "epoch": self.epoch,
            "watermark": self.reader.as_ref().map(Reader::watermark), "capabilities": capabilities,
        });
        if !socket.try_say(hello).await {
            return false;
        }
        loop {
            let now = *course.borrow();
            if let (Some(goal), Some(reader)) = (now.goal, &self.reader)
                && reader.watermark() >= goal
                && self.unanswered.is_empty()
            {
                return true;
            }
            let is_sending = self.is_welcome && self.wish.sends.is_some();
            tokio::select! {
                biased;
                Ok(()) = course.changed() => {}
                frame = socket.next() => {
                    if frame["frame"] == "close" {
                        self.followed.closes.push(frame["code"].as_u64().unwrap());
                        return false;
                    }
                    for answer in self.on_frame(&frame) {
                        socket.try_say(answer).await;
                    }
                }
                _ = tick.tick(), if is_sending => {
                    for message in self.due(now) {
                        socket.try_say(message).await;
                    }
                }
            }
        }
    }

    fn due(&mut self, course: Course) -> Vec<Value> {
        if std::mem::take(&mut self.sends_again) {
            return self.unanswered.iter().cloned().collect();
        }
        if course.is_over || self.unanswered.len() >= 30 {
            return Vec::new();
        }
        let n = self.followed.sent;
        self.followed.sent += 1;
        let (name, _) = self.wish.sends.unwrap();
        let message = json!({
            "frame": "message", "conversationId": self.wish.conversation,
            "clientId": format!("{name}-{n}"), "text": "x".repeat(1 + n * 97 % 3_000),
        });
        self.unanswered.push_back(message.clone());
        vec![message]
    }

    fn on_frame(&mut self, frame: &Value) -> Vec<Value> {
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{frame}"));
        let incoming = match frame["frame"].as_str().unwrap() {
            "welcome" => {
                self.is_welcome = true;
                self.sends_again = !self.unanswered.is_empty();
                self.epoch = frame["epoch"].clone();
                if self.reader.is_none() {
                    let head = number(&frame["watermark"]);
                    self.followed.first = head + 1;
                    self.reader = Some(Reader::resume(head));
                }
                return Vec::new();
            }
            name @ ("event" | "tombstone") => {
                let seq = number(&frame["seq"]);
                assert!(self.followed.syncs > 0 || self.came.insert(seq), "twice: {frame}");
                let id = if name == "event" { frame["id"].as_str().unwrap() } else { name };
                Incoming::Event(seq, id.to_owned())
            }
            "ack" => {
                let seq = number(&frame["seq"]);
                self.unanswered.retain(|message| message["clientId"] != frame["clientId"]);
                self.followed.acked.insert(seq, frame["id"].as_str().unwrap().to_owned());
                Incoming::Ack(seq)
            }
            "replayComplete" => Incoming::ReplayComplete { watermark: number(&frame["watermark"]) },
            "error" if frame["number"] == 9002 && self.wish.has_gaps => {
                self.followed.gaps += 1;
                let details = &frame["details"];
                Incoming::Gap(Gap { from: number(&details["from"]), to: number(&details["to"]) })
            }
            "error" => {
                assert!([9001, 9002, 3000].contains(&number(&frame["number"])), "{frame}");
                self.sends_again = true;
                return Vec::new();
            }
            "heartbeat" | "presence" => return Vec::new(),
            other => panic!("{other}: {frame}"),
        };
        self.take_in(incoming)
    }

    fn take_in(&mut self, incoming: Incoming<String>) -> Vec<Value> {
        let is_announced = match (&incoming, &self.reader) {
            (Incoming::Event(seq, _), Some(reader)) => reader.is_told_before(*seq),
            _ => true,
        };
        // The ack of an own send may be on its way.
        assert!(is_announced || !self.unanswered.is_empty(), "{incoming:?} {:?}", self.reader);
        let mut actions = Vec::new();
        self.reader.as_mut().expect("welcomed").on(incoming, &mut actions);
        let mut answers = Vec::new();
        for action in actions {
            match action {
                Action::Deliver(seq, id) => {
                    assert_eq!(self.followed.got.insert(seq, id), None, "{seq} is passed on twice");
                }
                Action::Sync { watermark } => {
                    assert!(self.wish.sends.is_some(), "who does not send never has to ask");
                    self.followed.syncs += 1;
                    answers.push(json!({
                        "frame": "sync", "conversationId": self.wish.conversation,
                        "watermark": watermark,
                    }));
                }
                Action::Complete { .. } => {}
                Action::Reset | Action::Reconnect => panic!("{action:?}"),
            }
        }
        answers
    }
}

/// Everything of a conversation, as REST has it.
pub async fn all_of(client: &Client, conversation: ConversationId) -> BTreeMap<u64, String> {
    let mut all = BTreeMap::new();
    loop {
        let after = all.last_key_value().map_or(0, |(seq, _)| *seq);
        let page = client.page(conversation, &format!("after={after}&limit=200")).await.json();
        let messages = page["messages"].as_array().unwrap_or_else(|| panic!("{page}")).clone();
        for message in &messages {
            let id = message["id"].as_str().unwrap_or("tombstone").to_owned();
            all.insert(message["seq"].as_u64().unwrap(), id);
        }
        if page["hasMore"] != true {
            return all;
        }
    }
}
