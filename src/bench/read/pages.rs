//! Readers in a closed loop: pages over HTTP, or the same statement straight from Postgres.
//! Promises that pages are looked at for having as many messages as were asked for: all rows of Postgres, every 16th answer.
//! Does not decode messages: both sides are asked for the same rows, and neither side's client looks into them.

use std::sync::Arc;

use sqlx::{PgPool, Row as _};
use tokio::sync::Mutex;

use super::{Age, Options, Target, Who};
use crate::bench::Error;
use crate::bench::reference::rows::statement;
use crate::event::limits::PAGE_BYTES_MAX;
use crate::event::{ConversationId, Partitions};
use crate::load::callers::{self, Called, Outcome};
use crate::load::connection::{Connection, address_of};

/// The statement that Forebay reads pages with.
const READ_PAGE: &str = include_str!("../../store/sql/read_page.sql");

/// Of so many pages one is counted message by message; looking through all of them would be a load of its own.
const COUNTED: u64 = 16;

/// What each message of a page has exactly once in the answer.
const MESSAGE_MARK: &[u8] = b"\"seq\":";

/// Readers that are connected.
pub(super) struct Pages<'a> {
    target: &'a Target,
    options: &'a Options,
    asked: Asked,
    source: Source,
}

/// Which pages are asked for.
#[derive(Clone)]
struct Asked {
    conversations: Arc<[ConversationId]>,
    age: Age,
    limit: u16,
    old_seqs: u64,
    readers: u64,
}

enum Source {
    Http(Arc<[Mutex<Connection>]>),
    Postgres(PgPool),
}

/// One page: of what, and after or before which seq.
struct Wish {
    conversation: ConversationId,
    /// `None` for the newest messages, the newest first.
    after: Option<u64>,
}

impl Asked {
    /// Scatters without a generator: multiplicative hashing of the count (Knuth, TAOCP 3, 6.4).
    fn wish(&self, reader: usize, number: u64) -> Wish {
        let nth = number.wrapping_mul(self.readers).wrapping_add(reader as u64);
        let scattered = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let count = self.conversations.len() as u64;
        let place = usize::try_from(scattered % count.max(1)).unwrap_or(0);
        let after = (scattered / count.max(1)) % (self.old_seqs + 1);
        Wish {
            conversation: self.conversations[place],
            after: (self.age == Age::Old).then_some(after),
        }
    }
}

impl<'a> Pages<'a> {
    /// Connects as many readers as there are to be.
    pub(super) async fn open(
        target: &'a Target,
        options: &'a Options,
        age: Age,
        who: Who,
    ) -> Result<Self, Error> {
        let conversations = match age {
            Age::Recent => &target.recent,
            Age::Old => &target.old,
        };
        let asked = Asked {
            conversations: conversations.as_slice().into(),
            age,
            limit: options.limit,
            old_seqs: options.old_seqs,
            readers: options.readers.into(),
        };
        let source = match who {
            Who::Select => Source::Postgres(target.place.pool(options.connections).await?),
            Who::Forebay => {
                let address = address_of(&target.url).await?;
                let mut connections = Vec::new();
                for _ in 0..options.readers {
                    let connection = Connection::open(address).await;
                    let lost = |source| Error::Io { doing: "connecting a reader", source };
                    connections.push(Mutex::new(connection.map_err(lost)?));
                }
                Source::Http(connections.into())
            }
        };
        Ok(Self { target, options, asked, source })
    }

    /// Reads for a round. The readers stay connected until they are dropped: the processor time of a backend that has
    /// ended cannot be read.
    pub(super) async fn read(&self) -> Outcome {
        let plan = callers::Plan {
            callers: self.options.readers.into(),
            groups: 1,
            warmup: self.options.warmup,
            length: self.options.round,
        };
        let clock = &self.target.place.clock;
        let asked = self.asked.clone();
        match &self.source {
            Source::Http(connections) => {
                let (head, connections) = (head_of(self.target), Arc::clone(connections));
                let call = move |reader: usize, number: u64| {
                    let (connections, limit) = (Arc::clone(&connections), asked.limit);
                    let request = request(&asked.wish(reader, number), limit, &head);
                    let counted = number.is_multiple_of(COUNTED).then_some(limit);
                    async move { over_http(&connections[reader], &request, counted).await }
                };
                callers::drive(plan, clock, call).await
            }
            Source::Postgres(pool) => {
                let (partitions, pool) = (self.target.place.partitions, pool.clone());
                let call = move |reader: usize, number: u64| {
                    let (pool, limit) = (pool.clone(), asked.limit);
                    let wish = asked.wish(reader, number);
                    async move { from_postgres(&pool, &wish, limit, partitions).await }
                };
                callers::drive(plan, clock, call).await
            }
        }
    }
}

fn head_of(target: &Target) -> String {
    let host = target.url.trim_start_matches("http://");
    format!("HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {}\r\n\r\n", target.api_key)
}

fn request(wish: &Wish, limit: u16, head: &str) -> String {
    let id = wish.conversation;
    let query = match wish.after {
        Some(after) => format!("after={after}&limit={limit}"),
        None => format!("order=desc&limit={limit}"),
    };
    format!("GET /v1/conversations/{id}/messages?{query} {head}")
}

async fn over_http(connection: &Mutex<Connection>, request: &str, counted: Option<u16>) -> Called {
    // One reader has one connection, so that nobody waits here.
    let mut connection = connection.lock().await;
    let Ok(answer) = connection.exchange(request.as_bytes()).await else {
        return Called::Refused("broken");
    };
    let messages = || {
        let body = connection.body(&answer);
        body.windows(MESSAGE_MARK.len()).filter(|part| *part == MESSAGE_MARK).count()
    };
    match answer.status {
        200 if counted.is_some_and(|limit| messages() != usize::from(limit)) => {
            Called::Refused("a short page")
        }
        200 => Called::Stored(None),
        503 => Called::Refused("503"),
        _ => Called::Refused("another status"),
    }
}

async fn from_postgres(pool: &PgPool, wish: &Wish, limit: u16, partitions: Partitions) -> Called {
    let partition = partitions.of(wish.conversation).number();
    let (after, ascending) = wish.after.map_or((u64::MAX, false), |after| (after, true));
    let asking = statement(READ_PAGE)
        .bind(i16::try_from(partition).unwrap_or(i16::MAX))
        .bind(wish.conversation.uuid())
        .bind(i64::try_from(after).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .bind(ascending)
        .bind(i64::try_from(PAGE_BYTES_MAX).unwrap_or(i64::MAX));
    match asking.fetch_all(pool).await {
        Ok(rows) => {
            let texts = rows.iter().filter(|row| row.try_get::<i64, _>("seq?").is_ok()).count();
            if texts == usize::from(limit) {
                Called::Stored(None)
            } else {
                Called::Refused("a short page")
            }
        }
        Err(_refused) => Called::Refused("Postgres refused"),
    }
}
