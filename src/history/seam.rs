//! Where Postgres ends and the tail begins: joins the two into one contiguous page.
//! Promises that a page has no hole and no repeat, and that `complete` is true only when nothing is missing.
//! Does not ask anybody; what each side has comes in.

use crate::event::limits::PAGE_BYTES_MAX;
use crate::event::{ConversationId, Event, MessageId};
use crate::journal::ring::Entry;
use crate::journal::{Span, Tail};
use crate::store::messages::Content;
use crate::store::page;

/// In which direction a page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Oldest first.
    Ascending,
    /// Newest first.
    Descending,
}

/// What a reader asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The seq to go on from, exclusive. Without it: from the beginning, or descending from the head.
    pub after: Option<u64>,
    /// Most messages.
    pub limit: usize,
    /// In which direction.
    pub order: Order,
}

/// One seq of a page.
#[derive(Clone, Debug)]
pub enum Item {
    /// An event from the tail.
    Recent(Entry),
    /// An event from Postgres.
    Stored(Box<Event>),
    /// A seq without content.
    Tombstone {
        /// Its place.
        seq: u64,
        /// Whose repeat it is; `None` for an event that Postgres refused.
        duplicate_of: Option<MessageId>,
    },
}

impl Item {
    /// Its place in the conversation.
    pub fn seq(&self) -> u64 {
        match self {
            Self::Recent(entry) => entry.event().seq,
            Self::Stored(event) => event.seq,
            Self::Tombstone { seq, .. } => *seq,
        }
    }

    /// Its event, unless it is a tombstone.
    pub fn event(&self) -> Option<&Event> {
        match self {
            Self::Recent(entry) => Some(entry.event()),
            Self::Stored(event) => Some(event),
            Self::Tombstone { .. } => None,
        }
    }
}

/// A contiguous part of a conversation.
#[derive(Clone, Debug)]
pub struct Page {
    /// What it holds, in the order asked for.
    pub items: Vec<Item>,
    /// The seq to go on from: with the same order it continues this page.
    pub watermark: u64,
    /// The conversation's head.
    pub head_seq: u64,
    /// The newest seq that Postgres has, as far as it is known.
    pub projected_seq: Option<u64>,
    /// Whether there is more in this direction.
    pub has_more: bool,
    /// Whether the page is all that was asked for: it ends at the end, at the limit or at the size of a page, and
    /// not because something cannot be told now.
    pub complete: bool,
}

/// What joining gave.
#[derive(Debug)]
pub enum Joined {
    /// A page.
    Page(Page),
    /// There is no such conversation.
    NotFound,
    /// Neither side has the next message.
    Unavailable,
}

/// What memory has of a conversation in the direction of a query.
pub fn span(tail: &Tail, conversation: ConversationId, query: Query) -> Span {
    match query.order {
        Order::Ascending => tail.span(conversation, query.after.unwrap_or(0), query.limit),
        // All of it: the page is cut from its end.
        Order::Descending => tail.span(conversation, 0, usize::MAX),
    }
}

/// The page, if memory alone has all of it.
pub fn from_memory(span: &Span, query: Query) -> Option<Page> {
    let head_seq = span.head?.seq;
    let items = match query.order {
        Order::Ascending => {
            let after = query.after.unwrap_or(0);
            let is_covered = after >= head_seq
                || span.first_seq.is_some_and(|first| first <= after.saturating_add(1));
            is_covered.then(|| recent(span.entries.iter()))?
        }
        Order::Descending => {
            let before = query.after.unwrap_or(u64::MAX).min(head_seq + 1);
            let newest = span.entries.iter().rev().skip_while(|entry| entry.event().seq >= before);
            let items = recent(newest.take(query.limit));
            let reaches = items.last().map_or(before, Item::seq);
            let is_covered = items.len() == query.limit || reaches <= 1;
            is_covered.then_some(items)?
        }
    };
    Some(page_of(items, head_seq, span.projected_seq, query))
}

/// The page from both sides. `is_level` says that Postgres has everything that memory has forgotten.
pub fn join(span: &Span, stored: page::Page, query: Query, is_level: bool) -> Joined {
    let stored_head = stored.head.map(|head| head.seq);
    let Some(head_seq) = span.head.map(|head| head.seq).max(stored_head) else {
        return if is_level { Joined::NotFound } else { Joined::Unavailable };
    };
    let is_head_known = span.head.is_some() || is_level;
    let items = match query.order {
        Order::Ascending => ascend(span, stored, query),
        Order::Descending => descend(span, stored, query, head_seq),
    };
    let page = page_of(items, head_seq, stored_head, query);
    match (page.complete && is_head_known, page.items.is_empty()) {
        (true, _) => Joined::Page(page),
        (false, true) => Joined::Unavailable,
        (false, false) => Joined::Page(Page { complete: false, has_more: true, ..page }),
    }
}

/// The beginning of a page, if memory alone has one: the newest messages of a page that goes back from them.
pub fn partly(span: &Span, query: Query) -> Option<Page> {
    let nothing = page::Page { checkpoint: 0, head: None, entries: Vec::new() };
    match join(span, nothing, query, false) {
        Joined::Page(page) => Some(Page { projected_seq: span.projected_seq, ..page }),
        Joined::NotFound | Joined::Unavailable => None,
    }
}

fn ascend(span: &Span, stored: page::Page, query: Query) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut next = query.after.unwrap_or(0).saturating_add(1);
    let recent = span.entries.iter().map(|entry| Item::Recent(entry.clone()));
    for item in stored.entries.into_iter().map(stored_item).chain(recent) {
        if items.len() < query.limit && item.seq() == next {
            items.push(item);
            next = next.saturating_add(1);
        }
    }
    items
}

fn descend(span: &Span, stored: page::Page, query: Query, head_seq: u64) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut next =
        query.after.unwrap_or(u64::MAX).min(head_seq.saturating_add(1)).saturating_sub(1);
    let recent = span.entries.iter().rev().map(|entry| Item::Recent(entry.clone()));
    for item in recent.chain(stored.entries.into_iter().map(stored_item)) {
        if items.len() < query.limit && item.seq() == next {
            items.push(item);
            next = next.saturating_sub(1);
        }
    }
    items
}

fn recent<'a, I: Iterator<Item = &'a Entry>>(entries: I) -> Vec<Item> {
    entries.map(|entry| Item::Recent(entry.clone())).collect()
}

fn stored_item(entry: crate::store::messages::Entry) -> Item {
    match entry.content {
        Content::Event(event) => Item::Stored(event),
        Content::Tombstone { duplicate_of } => Item::Tombstone { seq: entry.seq, duplicate_of },
    }
}

/// Cuts to the size of a page and says where it stands. It is incomplete when it ends before limit, size and end.
fn page_of(mut items: Vec<Item>, head_seq: u64, projected_seq: Option<u64>, query: Query) -> Page {
    let (mut bytes, mut fitting) = (0, 0);
    for item in &items {
        if bytes >= PAGE_BYTES_MAX {
            break;
        }
        bytes += item.event().map_or(0, |event| event.body.size());
        fitting += 1;
    }
    // Postgres ends its part at the same size, so that the last bytes count and not what was cut.
    let is_full = items.len() == query.limit || bytes >= PAGE_BYTES_MAX;
    items.truncate(fitting);
    let start = match query.order {
        Order::Ascending => query.after.unwrap_or(0),
        Order::Descending => query.after.unwrap_or(u64::MAX).min(head_seq + 1),
    };
    let watermark = items.last().map_or(start, Item::seq);
    let has_more = match query.order {
        Order::Ascending => watermark < head_seq,
        Order::Descending => watermark > 1,
    };
    Page { items, watermark, head_seq, projected_seq, has_more, complete: is_full || !has_more }
}

#[cfg(test)]
mod tests;
