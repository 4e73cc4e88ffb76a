use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::clock::Timestamp;
use crate::event::{Body, Fingerprint, NodeId, Record, RecordId, TenantId};
use crate::journal::ring::{Folded, Ring};
use crate::journal::{Head, Status};
use crate::store::conversations;
use crate::store::messages;

fn conversation() -> ConversationId {
    ConversationId::derive([1; 16])
}

fn event(seq: u64) -> Event {
    Event {
        tenant: TenantId::derive([1; 16]),
        conversation: conversation(),
        seq,
        id: MessageId::derive([2; 16]),
        at: Timestamp::default(),
        fingerprint: Fingerprint::default(),
        trace: None,
        body: Body::Closed,
    }
}

/// What memory has of a conversation of `head` events when the ring holds those from `first` on.
fn span(head: u64, first: u64, query: Query) -> Span {
    let mut ring = Ring::starting_after(0, usize::MAX);
    for seq in first..=head {
        let (id, node) = (RecordId::derive([1; 16]), NodeId::derive([1; 16]));
        let record =
            Record { version: 1, id, node, events: vec![event(seq)], outcomes: Vec::new() };
        ring.push(&Arc::new(Folded { position: seq, bytes: 1, record }));
    }
    let (after, limit) = match query.order {
        Order::Ascending => (query.after.unwrap_or(0), query.limit),
        Order::Descending => (0, usize::MAX),
    };
    let (first_seq, entries) = ring.span(conversation(), after, limit);
    let known = Head {
        tenant: TenantId::derive([1; 16]),
        seq: head,
        status: Status::Open,
        opened_at: None,
        position: head,
    };
    Span { head: Some(known), first_seq, entries, projected_seq: None }
}

/// What Postgres has of it when it is written up to `written`.
fn stored(written: u64, query: Query) -> page::Page {
    let entry = |seq| messages::Entry {
        position: seq,
        seq,
        at: Timestamp::default(),
        content: Content::Event(Box::new(event(seq))),
    };
    let entries = match query.order {
        Order::Ascending => (1..=written)
            .filter(|s| *s > query.after.unwrap_or(0))
            .take(query.limit)
            .map(entry)
            .collect(),
        Order::Descending => {
            let before = query.after.unwrap_or(u64::MAX);
            (1..=written).rev().filter(|s| *s < before).take(query.limit).map(entry).collect()
        }
    };
    let head = (written > 0).then(|| conversations::Head {
        tenant: TenantId::derive([1; 16]),
        seq: written,
        status: conversations::Status::Open,
        opened_at: Timestamp::default(),
        position: written,
    });
    page::Page { checkpoint: written, head, entries }
}

fn seqs(page: &Page) -> Vec<u64> {
    page.items.iter().map(Item::seq).collect()
}

/// What a reader should get if nothing were missing.
fn whole(head: u64, query: Query) -> Vec<u64> {
    match query.order {
        Order::Ascending => {
            (1..=head).filter(|s| *s > query.after.unwrap_or(0)).take(query.limit).collect()
        }
        Order::Descending => {
            let before = query.after.unwrap_or(u64::MAX);
            (1..=head).rev().filter(|s| *s < before).take(query.limit).collect()
        }
    }
}

prop_compose! {
    fn query()(after in prop::option::of(0_u64..30), limit in 1_usize..12, up in any::<bool>()) -> Query {
        let order = if up { Order::Ascending } else { Order::Descending };
        Query { after, limit, order }
    }
}

proptest! {
    #[test]
    fn a_page_is_a_contiguous_beginning_of_the_whole_and_says_whether_it_is_all(
        head in 1_u64..25, first in 1_u64..27, written in 0_u64..25, query in query(),
    ) {
        let written = written.min(head);
        let span = span(head, first, query);
        let page = match from_memory(&span, query) {
            Some(page) => {
                prop_assert!(page.complete, "memory answers only what it has all of");
                page
            }
            None => match join(&span, stored(written, query), query, true) {
                Joined::Page(page) => page,
                Joined::NotFound => return Err(TestCaseError::fail("it is there")),
                Joined::Unavailable => {
                    prop_assert!(first > written + 1, "nothing is missing between the two");
                    return Ok(());
                }
            },
        };
        let (got, all) = (seqs(&page), whole(head, query));
        prop_assert_eq!(&got[..], &all[..got.len()], "a contiguous beginning");
        prop_assert_eq!(page.complete, got.len() == all.len(), "complete says so");
        prop_assert_eq!(page.head_seq, head);
        if first <= written + 1 {
            prop_assert!(page.complete, "with nothing missing between the two it is all");
        }
    }
}

#[test]
fn a_conversation_that_neither_side_has_is_not_found_only_if_postgres_is_level() {
    let query = Query { after: None, limit: 5, order: Order::Ascending };
    let none = || Span { head: None, first_seq: None, entries: Vec::new(), projected_seq: None };
    assert!(matches!(join(&none(), stored(0, query), query, true), Joined::NotFound));
    assert!(matches!(join(&none(), stored(0, query), query, false), Joined::Unavailable));
}

#[test]
fn a_head_that_only_a_late_postgres_knows_makes_no_complete_page() {
    let query = Query { after: None, limit: 50, order: Order::Ascending };
    let none = Span { head: None, first_seq: None, entries: Vec::new(), projected_seq: None };
    let Joined::Page(page) = join(&none, stored(3, query), query, false) else {
        panic!("there are three messages")
    };
    assert_eq!((seqs(&page), page.complete, page.has_more), (vec![1, 2, 3], false, true));
}
