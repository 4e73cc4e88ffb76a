//! A live client: one conversation over a WebSocket, as docs/PROTOCOL.md wants it of clients.
//! Promises each event once and in order but for announced gaps, sends that are stored once, and a kept watermark that
//! never passes what the application has dealt with.
//! Does not know what events mean, and gets no fresh tokens.

mod attempt;
mod connection;
mod frame;
pub mod keep;
mod outbox;
mod server;

use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::event::ConversationId;
use crate::live::gap::Gap;

use attempt::Attempts;
use connection::Course;
pub use frame::Text;
use keep::{Keep, Kept};
use outbox::{Order, Outbox};
pub use server::{Server, Unusable};

/// Events that wait for the application. When they are full, the socket is not read, and a server that waits too long
/// for that closes it: what was missed comes with the next connection.
pub const TOLD_QUEUE: usize = 1_000;

/// Sends that wait to be taken over from the handle; further ones wait at the caller.
pub const ORDER_QUEUE: usize = 64;

/// Events that are told before the watermark is kept, while they come without a pause.
const KEEP_EVERY: u32 = 100;

/// Where to connect and what to read.
#[derive(Debug)]
pub struct Settings {
    /// The server.
    pub server: Server,
    /// An API key or a user's token.
    pub token: String,
    /// What is read and sent to.
    pub conversation: ConversationId,
    /// Where to begin when nothing was kept.
    pub start: Start,
    /// Where the watermark is kept, if it is.
    pub keep: Option<Box<dyn Keep>>,
}

/// Where reading begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what comes after the first connection.
    Head,
    /// Behind this seq.
    After(u64),
}

/// What the application is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// An event or a tombstone, as the frame that came.
    Event {
        /// Its place.
        seq: u64,
        /// The frame, JSON.
        frame: Text,
    },
    /// It is another log than before: what was told means nothing any more.
    Reset,
    /// The watermark is of no event, also on a second look: reading goes on behind the head.
    Rewound {
        /// From where it was to go on.
        watermark: u64,
        /// Where the conversation ends.
        head: u64,
    },
    /// What the connection does now.
    State(State),
}

/// What the connection does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is being opened.
    Connecting,
    /// What was missed is coming.
    CatchingUp,
    /// Everything was told up to here; the rest comes as it happens.
    Live {
        /// Up to where.
        watermark: u64,
    },
    /// These are missing and come later; what lies beyond them comes all the same.
    Missing(Gap),
    /// The connection ended; the next attempt comes after this wait.
    Waiting {
        /// How long.
        wait: Duration,
        /// Why it ended.
        why: String,
    },
    /// It is over.
    Stopped(Stopped),
}

/// Why a client does not try again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// The token is not, or no longer, good.
    #[error("the server does not accept the token")]
    Unauthorized,
    /// The token is good, but not for this.
    #[error("the token does not give access to the conversation")]
    Forbidden,
    /// There is no such conversation.
    #[error("there is no such conversation")]
    NotFound,
}

/// Where a send was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The message's id.
    pub id: String,
    /// Its place.
    pub seq: u64,
    /// Whether it was stored before under this client id.
    pub is_duplicate: bool,
}

/// Why a send was not stored, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The server refused it for good.
    #[error("refused with {number}: {message}")]
    Refused {
        /// Number of the error.
        number: u16,
        /// What the server says.
        message: String,
    },
    /// The client ended before an answer came. It may be stored.
    #[error("the client ended before there was an answer")]
    Ended,
}

/// For sending. Clones send in one queue.
#[derive(Clone, Debug)]
pub struct Handle {
    orders: mpsc::Sender<Order>,
}

impl Handle {
    /// Sends a message, again after each reconnect, until it is answered. `client_id` is a UUIDv7 that was made with
    /// the message; `body` holds the other fields: `text`, `data`, `metadata`.
    ///
    /// # Errors
    /// When the server refuses it for good, or the client ends before.
    pub async fn send(
        &self,
        client_id: &str,
        body: serde_json::Map<String, serde_json::Value>,
    ) -> Result<Receipt, SendError> {
        let (answer, answered) = oneshot::channel();
        let order = Order { client_id: client_id.to_owned(), body, answer };
        self.orders.send(order).await.map_err(|_closed| SendError::Ended)?;
        answered.await.map_err(|_closed| SendError::Ended)?
    }
}

/// What is told together with what may be kept once it was dealt with.
#[derive(Debug)]
struct Telling {
    told: Told,
    kept: Option<Kept>,
}

/// What the client tells. When this is dropped, the client ends.
#[derive(Debug)]
pub struct Events {
    inbox: mpsc::Receiver<Telling>,
    keep: Option<Box<dyn Keep>>,
    /// Of what was told last.
    latest: Option<Kept>,
    unkept: u32,
    _running: JoinSet<()>,
}

impl Events {
    /// What comes next; `None` after [`State::Stopped`]. To ask for it says that everything before was dealt with.
    ///
    /// Cancel safe: what was not returned comes with the next call.
    ///
    /// # Errors
    /// When the watermark cannot be kept.
    pub async fn next(&mut self) -> std::io::Result<Option<Told>> {
        if self.inbox.is_empty() || self.unkept >= KEEP_EVERY {
            self.keep()?;
        }
        let Some(telling) = self.inbox.recv().await else {
            return Ok(None);
        };
        self.latest = telling.kept.or_else(|| self.latest.take());
        self.unkept += 1;
        Ok(Some(telling.told))
    }

    /// Keeps the watermark of everything that was told. For the end; [`Self::next`] does it at times, too.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn keep(&mut self) -> std::io::Result<()> {
        self.unkept = 0;
        match (&mut self.keep, self.latest.take()) {
            (Some(keep), Some(kept)) => keep.save(&kept),
            (Some(_) | None, _) => Ok(()),
        }
    }
}

/// Starts a client.
///
/// # Errors
/// When what was kept cannot be read.
pub fn open(mut settings: Settings, clock: Clock, seed: u64) -> std::io::Result<(Handle, Events)> {
    let kept = settings.keep.as_mut().map(|keep| keep.load()).transpose()?.flatten();
    let keep = settings.keep.take();
    let (orders, taken) = mpsc::channel(ORDER_QUEUE);
    let (tell, inbox) = mpsc::channel(TOLD_QUEUE);
    let now = clock.now();
    let course = Course::new(&settings, kept, tell);
    let outbox = Outbox::new(settings.conversation, taken, now);
    let attempts = Attempts::new(SmallRng::seed_from_u64(seed), now);
    let mut running = JoinSet::new();
    running.spawn(attempt::run(settings, (course, outbox), attempts, clock));
    Ok((Handle { orders }, Events { inbox, keep, latest: None, unkept: 0, _running: running }))
}
