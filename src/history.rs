//! Reads: pages of a conversation from Postgres up to its checkpoint and from the tail above it.
//! Promises a contiguous page that says whether it is complete, and an answer in time whatever Postgres does.
//! Does not fail under pressure: it says from where to go on reading.

pub mod seam;

use std::time::{Duration, Instant};

use crate::admission::{Origin, Priority, Source, Tag};
use crate::clock::{Clock, Timestamp};
use crate::directory::Tenant;
use crate::event::limits::PAGE_MESSAGES_MAX;
use crate::event::{Body, ChannelId, ConversationId, Json, TenantId};
use crate::journal::{self, Head, Journal, Status, Tail};
use crate::store::{self, Interactive, conversations, page};

pub use seam::{Item, Order, Page, Query};

/// Longest wait for Postgres on the way of a read. A reader is answered within two seconds.
pub const READ_MAX: Duration = Duration::from_millis(1_500);

/// Why a read has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such conversation of this tenant.
    #[error("there is no such conversation")]
    NotFound,
    /// The page cannot be completed now; everything up to the watermark can be had, and reading goes on from there.
    #[error("the page cannot be completed now")]
    ReplayUnavailable {
        /// Where to go on from.
        watermark: u64,
        /// The conversation's head, if it is known.
        head_seq: Option<u64>,
        /// Why Postgres could not help; `None` when it lags behind the log.
        #[source]
        cause: Option<store::Error>,
    },
    /// A look at a conversation needs Postgres and cannot have it now.
    #[error("Postgres cannot be asked now")]
    DatabaseUnavailable(#[source] Option<store::Error>),
    /// Whether there is such a conversation is not known now, because the log cannot be asked.
    #[error("the log cannot be asked now")]
    LogUnavailable(#[source] journal::Error),
    /// Postgres answered what cannot be.
    #[error("reading from Postgres")]
    Store(#[source] store::Error),
}

/// Who reads.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// Whose conversations it may read.
    tenant: TenantId,
    /// For whom permits are taken.
    origin: Origin,
}

impl Reader {
    /// Somebody of this tenant who came in there.
    pub const fn of(tenant: &Tenant, source: Source) -> Self {
        Self { tenant: tenant.id, origin: tenant.origin(source) }
    }

    /// A page, or a look at a conversation: somebody waits for one answer.
    const fn wish(self) -> Tag {
        self.origin.at(Priority::High)
    }
}

/// A conversation, as its tenant sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Its id.
    pub id: ConversationId,
    /// Whether it takes messages.
    pub status: Status,
    /// Its last seq.
    pub head_seq: u64,
    /// When it was opened.
    pub created_at: Timestamp,
    /// The client's notes about it.
    pub metadata: Option<Json>,
    /// Channels that are linked to it.
    pub channels: Vec<ChannelId>,
}

/// The flow of reads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct History {
    journal: Journal,
    database: Interactive,
    clock: Clock,
}

impl History {
    /// The flow over a journal and the pool of reads.
    pub fn new(journal: Journal, database: Interactive, clock: Clock) -> Self {
        Self { journal, database, clock }
    }

    /// A page of a conversation. Touches Postgres only for what the tail does not have, and the log only before it says
    /// that there is no such conversation: another node may have opened it a moment ago.
    ///
    /// # Errors
    /// [`Error::ReplayUnavailable`] when not even one message can be told.
    pub async fn page(
        &self,
        reader: Reader,
        conversation: ConversationId,
        query: Query,
    ) -> Result<Page, Error> {
        let deadline = self.deadline();
        match self.try_page(reader, conversation, query, deadline).await {
            Err(Error::NotFound) => {
                self.level(conversation, deadline).await?;
                self.try_page(reader, conversation, query, deadline).await
            }
            other => other,
        }
    }

    async fn level(&self, conversation: ConversationId, deadline: Instant) -> Result<(), Error> {
        let levelled = self.journal.level(conversation, deadline).await;
        levelled.map_err(Error::LogUnavailable)
    }

    async fn try_page(
        &self,
        reader: Reader,
        conversation: ConversationId,
        query: Query,
        deadline: Instant,
    ) -> Result<Page, Error> {
        let query = Query { limit: query.limit.clamp(1, PAGE_MESSAGES_MAX), ..query };
        let tail = self.journal.tail_of(conversation);
        let span = seam::span(tail, conversation, query);
        if span.head.is_some_and(|head| head.tenant != reader.tenant) {
            return Err(Error::NotFound);
        }
        if let Some(page) = seam::from_memory(&span, query) {
            return Ok(page);
        }
        let watermark = query.after.filter(|_| query.order == Order::Ascending).unwrap_or(0);
        let unavailable = |cause| Error::ReplayUnavailable {
            watermark,
            head_seq: span.head.map(|head| head.seq),
            cause,
        };
        let stored = match self.read((reader, tail), conversation, query, deadline).await {
            Ok(stored) => stored,
            Err(error) if error.is_retryable() => {
                return seam::partly(&span, query).ok_or_else(|| unavailable(Some(error)));
            }
            Err(error) => return Err(Error::Store(error)),
        };
        if stored.head.is_some_and(|head| head.tenant != reader.tenant) {
            return Err(Error::NotFound);
        }
        // Read anew: the tail may have let go of events that Postgres did not have when it was asked.
        let span = seam::span(tail, conversation, query);
        let is_level = stored.checkpoint >= tail.floor();
        match seam::join(&span, stored, query, is_level) {
            seam::Joined::Page(page) => Ok(page),
            seam::Joined::NotFound => Err(Error::NotFound),
            seam::Joined::Unavailable => Err(unavailable(None)),
        }
    }

    /// A conversation, as its tenant sees it; `None` when there is none of this tenant.
    ///
    /// # Errors
    /// [`Error::DatabaseUnavailable`] when memory does not know enough and Postgres cannot be asked.
    pub async fn conversation(
        &self,
        reader: Reader,
        conversation: ConversationId,
    ) -> Result<Option<View>, Error> {
        let deadline = self.deadline();
        if let Some(view) = self.try_conversation(reader, conversation, deadline).await? {
            return Ok(Some(view));
        }
        self.level(conversation, deadline).await?;
        self.try_conversation(reader, conversation, deadline).await
    }

    async fn try_conversation(
        &self,
        reader: Reader,
        conversation: ConversationId,
        deadline: Instant,
    ) -> Result<Option<View>, Error> {
        let tail = self.journal.tail_of(conversation);
        let head = tail.head(conversation);
        if head.is_some_and(|head| head.tenant != reader.tenant) {
            return Ok(None);
        }
        if let Some(view) = head.and_then(|head| view_from_memory(tail, conversation, head)) {
            return Ok(Some(view));
        }
        let floor = tail.floor();
        if head.is_none() && floor == 0 {
            return Ok(None);
        }
        let found = self.find(reader, conversation, deadline).await;
        let (checkpoint, found) = match found {
            Ok(found) => found,
            Err(error) if error.is_retryable() => {
                return Err(Error::DatabaseUnavailable(Some(error)));
            }
            Err(error) => return Err(Error::Store(error)),
        };
        match found {
            Some(found) if found.head.tenant == reader.tenant => {
                Ok(Some(view(conversation, head, found)))
            }
            Some(_) => Ok(None),
            None if head.is_none() && checkpoint >= floor => Ok(None),
            None => Err(Error::DatabaseUnavailable(None)),
        }
    }

    async fn read(
        &self,
        (reader, tail): (Reader, &Tail),
        conversation: ConversationId,
        query: Query,
        deadline: Instant,
    ) -> Result<page::Page, store::Error> {
        let start = match query.order {
            Order::Ascending => page::Start::After(query.after.unwrap_or(0)),
            Order::Descending => page::Start::Before(query.after.unwrap_or(u64::MAX)),
        };
        let mut lease = self.database.acquire(reader.wish(), deadline).await?;
        lease
            .run(deadline, async |conn| {
                page::read(conn, tail.partition(), conversation, start, query.limit).await
            })
            .await
    }

    async fn find(
        &self,
        reader: Reader,
        conversation: ConversationId,
        deadline: Instant,
    ) -> Result<(u64, Option<conversations::Conversation>), store::Error> {
        let partition = self.journal.partitions().of(conversation);
        let mut lease = self.database.acquire(reader.wish(), deadline).await?;
        lease
            .run(deadline, async |conn| {
                // The checkpoint is read first: what is found after it is at least as new.
                let seed = store::seeds::look_up(conn, partition, conversation, None).await?;
                Ok((seed.checkpoint, conversations::find(conn, conversation).await?))
            })
            .await
    }

    fn deadline(&self) -> Instant {
        self.clock.now() + READ_MAX
    }
}

/// The view of a conversation whose opening is still in the tail.
fn view_from_memory(tail: &Tail, id: ConversationId, head: Head) -> Option<View> {
    let span = tail.span(id, 0, 1);
    let opening = span.entries.first()?;
    let Body::Opened(opened) = &opening.event().body else {
        return None;
    };
    Some(View {
        id,
        status: head.status,
        head_seq: head.seq,
        created_at: opening.event().at,
        metadata: opened.metadata.clone(),
        channels: opened.channels.clone(),
    })
}

/// The view of a conversation from its row, with the head from memory where that is further.
fn view(id: ConversationId, head: Option<Head>, found: conversations::Conversation) -> View {
    let stored = match found.head.status {
        conversations::Status::Open => Status::Open,
        conversations::Status::Closed => Status::Closed,
    };
    let (head_seq, status) = match head {
        Some(head) if head.seq > found.head.seq => (head.seq, head.status),
        Some(_) | None => (found.head.seq, stored),
    };
    View {
        id,
        status,
        head_seq,
        created_at: found.head.opened_at,
        metadata: found.metadata,
        channels: found.channels,
    }
}
