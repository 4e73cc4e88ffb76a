//! Writing and reading back: exactly once, whatever is repeated, and what cannot be written.

use std::time::Duration;

use forebay::event::limits::PAGE_BYTES_MAX;
use forebay::event::{Body, Event, Json, Message, MessageId};
use forebay::store::conversations::Status;
use forebay::store::messages::{Content, Inserted};
use forebay::store::page::Start;
use forebay::store::verify::What;
use forebay::store::{
    Kind, checkpoints, conversations, directory, messages, page, quarantine, schema, seeds, verify,
};
use sqlx::Connection;

use super::{
    conversation, event, opened, partition, partitions, placed, pools, project, said, session,
    soon, talk, target,
};
use crate::world::WISH;

fn inserted(rows: u64, tombstones: u64) -> Inserted {
    Inserted { rows, tombstones }
}

/// JSON comes back in Postgres' spelling.
fn respelled(event: &Event) -> Event {
    let mut event = event.clone();
    let spell = |json: &mut Option<Json>| {
        if let Some(text) = json {
            *text = Json::from_checked(text.as_str().replace(":\"", ": \""));
        }
    };
    match &mut event.body {
        Body::Message(message) => spell(&mut message.metadata),
        Body::Opened(opening) => spell(&mut opening.metadata),
        Body::Closed | Body::Reopened => {}
    }
    event
}

fn contents(page: &page::Page) -> Vec<Event> {
    let event = |entry: &messages::Entry| match &entry.content {
        Content::Event(event) => Some((**event).clone()),
        Content::Tombstone { .. } => None,
    };
    page.entries.iter().filter_map(event).collect()
}

fn seqs(page: &page::Page) -> Vec<u64> {
    page.entries.iter().map(|entry| entry.seq).collect()
}

#[tokio::test]
async fn a_batch_is_written_once_however_often_it_is_tried() {
    let mut conn = session(&target().await).await;
    let events = talk(1, 50);
    let batch = placed(&events);
    checkpoints::ensure(&mut conn, partitions(), "e").await.unwrap();
    let first = project(&mut conn, partition(1), &batch).await.unwrap();
    assert_eq!(first, inserted(50, 0));
    let again = project(&mut conn, partition(1), &batch).await.unwrap();
    assert_eq!(again, inserted(0, 0));
    let overlap = talk(1, 60);
    let overlapping = project(&mut conn, partition(1), &placed(&overlap)[40..]).await;
    assert_eq!(overlapping.unwrap(), inserted(10, 0));

    let read = page::read(&mut conn, partition(1), conversation(1), Start::After(0), 100).await;
    let read = read.unwrap();
    assert_eq!(contents(&read), overlap.iter().map(respelled).collect::<Vec<_>>());
    assert_eq!(read.checkpoint, 60);
    let head = read.head.unwrap();
    assert_eq!((head.seq, head.position, head.status), (60, 60, Status::Open));
    assert_eq!(head.opened_at, overlap[0].at);
    assert_eq!(verify::gaps(&mut conn, 10).await.unwrap(), []);
    let differences = verify::compare(&mut conn, partition(1), &placed(&overlap)).await;
    assert_eq!(differences.unwrap(), []);
}

#[tokio::test]
async fn a_late_duplicate_is_a_tombstone_at_its_own_seq() {
    let mut conn = session(&target().await).await;
    let mut events = talk(1, 5);
    let mut repeat = events[2].clone();
    repeat.seq = 6;
    events.push(repeat.clone());
    // One repeat within a batch and one in a later batch; then both batches again.
    let batch = placed(&events);
    assert_eq!(project(&mut conn, partition(0), &batch).await.unwrap(), inserted(5, 1));
    repeat.seq = 7;
    let later = [(9, &repeat)];
    assert_eq!(project(&mut conn, partition(0), &later).await.unwrap(), inserted(0, 1));
    assert_eq!(project(&mut conn, partition(0), &later).await.unwrap(), inserted(0, 0));
    assert_eq!(project(&mut conn, partition(0), &batch).await.unwrap(), inserted(0, 0));

    let read = page::read(&mut conn, partition(0), conversation(1), Start::After(5), 10).await;
    let read = read.unwrap();
    assert_eq!(seqs(&read), [6, 7]);
    assert_eq!(read.head.unwrap().seq, 7);
    let grave = Content::Tombstone { duplicate_of: Some(repeat.id) };
    assert_eq!((&read.entries[0].content, &read.entries[1].content), (&grave, &grave));
    let first = messages::find(&mut conn, repeat.id).await.unwrap().unwrap();
    assert_eq!((first.seq, first.position), (3, 3));
    assert_eq!(verify::compare(&mut conn, partition(0), &batch).await.unwrap(), []);
    assert_eq!(verify::compare(&mut conn, partition(0), &later).await.unwrap(), []);
    assert_eq!(verify::gaps(&mut conn, 10).await.unwrap(), []);
}

#[tokio::test]
async fn a_seq_that_belongs_to_another_event_is_refused() {
    let mut conn = session(&target().await).await;
    let events = talk(1, 3);
    project(&mut conn, partition(0), &placed(&events)).await.unwrap();
    let mut other = said(1, 3, "something else");
    other.id = MessageId::derive([77; 16]);
    let error = messages::insert_batch(&mut conn, partition(0), &[(4, &other)]).await;
    assert_eq!(error.unwrap_err().kind(), Kind::Inconsistent);
}

#[tokio::test]
async fn what_postgres_cannot_store_is_an_error_of_the_data_and_writes_nothing() {
    let (_, pool) = pools(&target().await, 1).await;
    let with = |text: Option<&str>, data: Option<&str>| {
        let message = Message {
            kind: "message".into(),
            text: text.map(Into::into),
            data: data.map(Json::from_checked),
            ..Message::default()
        };
        event(1, 2, Body::Message(Box::new(message)))
    };
    let good = opened(1);
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    for poison in [
        with(Some("a\0b"), None),
        with(None, Some(r#"{"a": "\u0000"}"#)),
        with(None, Some(r#"{"a": 1e999999}"#)),
        with(None, Some(r#""\ud800""#)),
        with(None, Some("{")),
        with(None, Some(&"[".repeat(100_000))),
    ] {
        let batch = [(1, &good), (1, &poison)];
        let failed = lease
            .transaction(soon(), async |conn| {
                messages::insert_batch(conn, partition(0), &batch).await
            })
            .await
            .unwrap_err();
        assert_eq!(failed.kind(), Kind::Data, "{failed:?}");
        let read = lease.run(soon(), async |conn| {
            page::read(conn, partition(0), conversation(1), Start::After(0), 10).await
        });
        assert!(seqs(&read.await.unwrap()).is_empty());
    }
}

#[tokio::test]
async fn a_buried_event_leaves_no_gap_and_is_kept_in_quarantine() {
    let mut conn = session(&target().await).await;
    let mut events = talk(1, 3);
    let Body::Message(poison) = &mut events[1].body else {
        panic!("the second event is a message")
    };
    poison.text = Some("a\0b".into());
    let batch = placed(&events);
    let refused = quarantine::Refused {
        position: 2,
        place: 0,
        conversation: events[1].conversation,
        seq: 2,
        reason: "invalid byte sequence \0".to_owned(),
        event: vec![0, 1, 2],
        at: events[1].at,
    };
    project(&mut conn, partition(0), &batch[..1]).await.unwrap();
    for _ in 0..2 {
        messages::bury(&mut conn, partition(0), 2, &events[1]).await.unwrap();
        quarantine::insert(&mut conn, partition(0), &refused).await.unwrap();
    }
    project(&mut conn, partition(0), &batch[2..]).await.unwrap();

    assert_eq!(quarantine::count(&mut conn).await.unwrap(), 1);
    let listed = quarantine::list(&mut conn, 10).await.unwrap();
    assert_eq!((listed[0].0, &listed[0].1.event), (0, &refused.event));
    assert_eq!(verify::compare(&mut conn, partition(0), &batch).await.unwrap(), []);
    assert_eq!(verify::gaps(&mut conn, 10).await.unwrap(), []);
    let buried = messages::find(&mut conn, events[1].id).await.unwrap().unwrap();
    assert_eq!(buried.content, Content::Tombstone { duplicate_of: None });
    let again = project(&mut conn, partition(0), &batch[2..]).await.unwrap();
    assert_eq!(again, inserted(0, 0));
}

#[tokio::test]
async fn a_page_is_bounded_in_rows_and_in_bytes_in_both_directions() {
    let mut conn = session(&target().await).await;
    let mut events = talk(1, 20);
    let large = "x".repeat(60_000);
    events.extend((21..=120).map(|seq| said(1, seq, &large)));
    project(&mut conn, partition(0), &placed(&events)).await.unwrap();
    let mut read = async |start, limit| {
        let page = page::read(&mut conn, partition(0), conversation(1), start, limit).await;
        page.unwrap()
    };
    assert_eq!(seqs(&read(Start::After(3), 4).await), [4, 5, 6, 7]);
    assert_eq!(seqs(&read(Start::Before(9), 3).await), [8, 7, 6]);
    assert_eq!(seqs(&read(Start::Before(3), 10).await), [2, 1]);
    assert_eq!(seqs(&read(Start::Before(u64::MAX), 2).await), [120, 119]);
    assert!(seqs(&read(Start::After(120), 2).await).is_empty());
    let full = read(Start::After(20), usize::MAX).await;
    let bytes: usize = contents(&full).iter().map(|event| event.body.size()).sum();
    assert!((PAGE_BYTES_MAX..PAGE_BYTES_MAX + 61_000).contains(&bytes), "{bytes}");
    assert_eq!(full.head.unwrap().seq, 120);
}

#[tokio::test]
async fn nothing_known_is_a_page_without_a_head() {
    let mut conn = session(&target().await).await;
    let read = page::read(&mut conn, partition(0), conversation(1), Start::After(0), 10).await;
    let read = read.unwrap();
    assert_eq!((read.checkpoint, read.head, read.entries), (0, None, Vec::new()));
    let seed = seeds::look_up(&mut conn, partition(0), conversation(1), None).await.unwrap();
    assert_eq!((seed.checkpoint, seed.head, seed.stored), (0, None, None));
}

#[tokio::test]
async fn a_seed_has_checkpoint_head_and_stored_message_of_one_moment() {
    let mut conn = session(&target().await).await;
    checkpoints::ensure(&mut conn, partitions(), "e").await.unwrap();
    let mut events = talk(1, 3);
    events.push(event(1, 4, Body::Closed));
    project(&mut conn, partition(1), &placed(&events)).await.unwrap();
    let mut look = async |of, id| seeds::look_up(&mut conn, partition(1), of, id).await.unwrap();
    let seed = look(conversation(1), Some(events[1].id)).await;
    let head = seed.head.unwrap();
    assert_eq!((seed.checkpoint, head.seq, head.status), (4, 4, Status::Closed));
    let stored = seed.stored.unwrap();
    assert_eq!((stored.id, stored.seq, stored.at), (events[1].id, 2, events[1].at));
    assert_eq!(stored.fingerprint, events[1].fingerprint);
    assert_eq!(look(conversation(1), Some(MessageId::derive([8; 16]))).await.stored, None);
    assert_eq!(look(conversation(2), Some(events[1].id)).await.stored, None);
}

#[tokio::test]
async fn a_head_grows_only_and_keeps_what_its_opening_said() {
    let mut conn = session(&target().await).await;
    let mut events = talk(1, 3);
    events.push(event(1, 4, Body::Closed));
    let batch = placed(&events);
    project(&mut conn, partition(0), &batch[..2]).await.unwrap();
    project(&mut conn, partition(0), &batch[2..]).await.unwrap();
    project(&mut conn, partition(0), &batch[..3]).await.unwrap();
    let found = conversations::find(&mut conn, conversation(1)).await.unwrap().unwrap();
    assert_eq!((found.head.seq, found.head.position), (4, 4));
    assert_eq!((found.head.status, found.closed_at), (Status::Closed, Some(events[3].at)));
    assert_eq!(found.channels.len(), 2);
    assert_eq!(found.metadata.unwrap().as_str(), r#"{"plan": "gold"}"#);
    let reopened = event(1, 5, Body::Reopened);
    project(&mut conn, partition(0), &[(5, &reopened)]).await.unwrap();
    let found = conversations::find(&mut conn, conversation(1)).await.unwrap().unwrap();
    assert_eq!((found.head.status, found.closed_at), (Status::Open, None));
    assert_eq!(conversations::find(&mut conn, conversation(2)).await.unwrap(), None);
}

#[tokio::test]
async fn one_projector_at_a_time_holds_a_partition_and_its_checkpoint_never_goes_back() {
    let target = target().await;
    let (mut one, mut two) = (session(&target).await, session(&target).await);
    checkpoints::ensure(&mut one, partitions(), "e").await.unwrap();
    let mut first = one.begin().await.unwrap();
    let held = checkpoints::lock(&mut first, partition(0)).await.unwrap().unwrap();
    assert_eq!((held.position, held.epoch.as_str()), (0, "e"));
    let mut second = two.begin().await.unwrap();
    assert_eq!(checkpoints::lock(&mut second, partition(0)).await.unwrap(), None);
    assert!(checkpoints::lock(&mut second, partition(1)).await.unwrap().is_some());
    checkpoints::advance(&mut first, partition(0), 9).await.unwrap();
    checkpoints::advance(&mut first, partition(0), 7).await.unwrap();
    first.commit().await.unwrap();
    let now = checkpoints::lock(&mut second, partition(0)).await.unwrap().unwrap();
    assert_eq!(now.position, 9);
    second.rollback().await.unwrap();
    checkpoints::ensure(&mut two, partitions(), "other").await.unwrap();
    let all = checkpoints::read_all(&mut two).await.unwrap();
    let seen: Vec<_> = all.iter().map(|c| (c.partition, c.position, &*c.epoch)).collect();
    assert_eq!(seen, [(0, 9, "e"), (1, 0, "e")]);
}

#[tokio::test]
async fn a_checkpoint_moves_only_with_the_rows_it_covers() {
    let (_, pool) = pools(&target().await, 1).await;
    let events = talk(1, 4);
    let (batch, far) = (placed(&events), soon());
    let near = std::time::Instant::now() + Duration::from_secs(1);
    let mut lease = pool.acquire(WISH, far).await.unwrap();
    lease.run(far, async |conn| checkpoints::ensure(conn, partitions(), "e").await).await.unwrap();
    let failed = lease
        .transaction(far, async |conn| {
            project(conn, partition(0), &batch).await?;
            let mut beyond = events[0].clone();
            beyond.seq = u64::MAX;
            project(conn, partition(0), &[(5, &beyond)]).await
        })
        .await;
    assert_eq!(failed.unwrap_err().kind(), Kind::Data);
    let cut = lease
        .transaction(near, async |conn| {
            project(conn, partition(0), &batch).await?;
            std::future::pending::<Result<(), _>>().await
        })
        .await;
    assert_eq!(cut.unwrap_err().kind(), Kind::Timeout);
    drop(lease);

    let mut lease = pool.acquire(WISH, far).await.unwrap();
    let done = lease
        .transaction(far, async |conn| {
            let held = checkpoints::lock(conn, partition(0)).await?;
            assert!(held.is_none_or(|held| held.position == 0));
            let page = page::read(conn, partition(0), conversation(1), Start::After(0), 9).await?;
            assert_eq!((page.checkpoint, page.head, page.entries), (0, None, Vec::new()));
            project(conn, partition(0), &batch).await
        })
        .await;
    assert_eq!(done.unwrap(), inserted(4, 0));
    let all = lease.run(far, async |conn| checkpoints::read_all(conn).await);
    assert_eq!(all.await.unwrap()[0].position, 4);
}

#[tokio::test]
async fn every_seeded_difference_is_found() {
    let mut conn = session(&target().await).await;
    let events = talk(1, 6);
    let batch = placed(&events);
    project(&mut conn, partition(0), &batch).await.unwrap();
    let heads = conversations::fold(&batch);
    assert_eq!(verify::compare_heads(&mut conn, partition(0), &heads).await.unwrap(), []);
    for change in [
        "UPDATE messages SET text = 'other', data = '{\"n\": 2}' WHERE seq = 2",
        "UPDATE messages SET kind = 'tombstone', duplicate_of = id, id = NULL WHERE seq = 3",
        "UPDATE messages SET sender_name = NULL, trace = NULL WHERE seq = 4",
        "DELETE FROM messages WHERE seq = 5",
        "UPDATE conversations SET head_seq = 7, metadata = NULL",
    ] {
        sqlx::query(change).execute(&mut conn).await.unwrap();
    }
    let columns = |names: &[&str]| What::Columns(names.iter().map(ToString::to_string).collect());
    let found = verify::compare(&mut conn, partition(0), &batch).await.unwrap();
    let mut found: Vec<_> = found.into_iter().map(|d| (d.seq, d.what)).collect();
    found.sort_by_key(|(seq, _)| *seq);
    let expected = [
        (2, columns(&["text", "data"])),
        (3, columns(&["kind"])),
        (4, columns(&["sender_name", "trace"])),
        (5, What::Missing),
    ];
    assert_eq!(found, expected);
    let gaps = verify::gaps(&mut conn, 10).await.unwrap();
    assert_eq!((gaps[0].rows, gaps[0].seq_max, gaps[0].head_seq), (5, 6, Some(7)));
    // A head that is further is newer, not different; what its opening said does not change.
    let found = verify::compare_heads(&mut conn, partition(0), &heads).await.unwrap();
    assert_eq!(found[0].what, columns(&["metadata"]));
    let ends = "UPDATE conversations SET head_seq = 6, status = 'closed'";
    sqlx::query(ends).execute(&mut conn).await.unwrap();
    let found = verify::compare_heads(&mut conn, partition(0), &heads).await.unwrap();
    assert_eq!(found[0].what, columns(&["status", "metadata"]));
}

#[tokio::test]
async fn an_older_revision_of_a_tenant_or_channel_changes_nothing() {
    let mut conn = session(&target().await).await;
    let mut tenant = directory::TenantRow {
        id: opened(1).tenant,
        name: "new".to_owned(),
        tier: "high".to_owned(),
        status: "active".to_owned(),
        config: Json::from_checked("{}"),
        revision: 5,
    };
    directory::upsert_tenant(&mut conn, &tenant).await.unwrap();
    (tenant.name, tenant.revision) = ("old".to_owned(), 4);
    directory::upsert_tenant(&mut conn, &tenant).await.unwrap();
    let channel = directory::ChannelRow {
        id: forebay::event::ChannelId::derive([3; 16]),
        tenant: tenant.id,
        name: "hook".to_owned(),
        status: "active".to_owned(),
        config: Json::from_checked(r#"{"url":"http://example.test"}"#),
        revision: 6,
    };
    directory::upsert_channel(&mut conn, &channel).await.unwrap();
    let names = "SELECT tenants.name || channels.name FROM tenants, channels";
    let names: String = sqlx::query_scalar(names).fetch_one(&mut conn).await.unwrap();
    assert_eq!(names, "newhook");
}

#[tokio::test]
async fn migrators_take_turns_and_the_second_finds_nothing_to_do() {
    let target = target().await;
    let fresh = target.schema().beside("twice").unwrap();
    let fresh = target.with_schema(fresh);
    let (mut one, mut two) = (session(&fresh).await, session(&fresh).await);
    let all = schema::pending(&mut one).await.unwrap();
    let (first, second) = tokio::join!(
        schema::migrate(&mut one, &fresh, soon()),
        schema::migrate(&mut two, &fresh, soon())
    );
    let mut applied = [first.unwrap(), second.unwrap()];
    applied.sort_unstable();
    assert_eq!(applied, [0, all]);
    assert_eq!(schema::pending(&mut two).await.unwrap(), 0);

    let mut blocked = one.begin().await.unwrap();
    let lock = "SELECT pg_advisory_lock(x'666f7265626179'::bigint)";
    sqlx::query(lock).execute(&mut *blocked).await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_millis(200);
    let late = schema::migrate(&mut two, &fresh, deadline).await;
    assert_eq!(late.unwrap_err().kind(), Kind::Timeout);
}

#[tokio::test]
async fn a_lock_that_somebody_holds_does_not_outlast_the_deadline() {
    let target = target().await;
    let (_, pool) = pools(&target, 1).await;
    let mut other = session(&target).await;
    let mut holder = other.begin().await.unwrap();
    sqlx::query("LOCK TABLE messages").execute(&mut *holder).await.unwrap();
    let events = talk(1, 2);
    let batch = placed(&events);
    let mut lease = pool.acquire(WISH, soon()).await.unwrap();
    let started = std::time::Instant::now();
    let cut = lease
        .transaction(started + Duration::from_millis(300), async |conn| {
            messages::insert_batch(conn, partition(0), &batch).await
        })
        .await;
    assert_eq!(cut.unwrap_err().kind(), Kind::Timeout);
    assert!(started.elapsed() < Duration::from_secs(2));
    drop(lease);
    assert_eq!(pool.status().idle, 0);
}

/// A batch of borrowed events in a spawned task: that this is `Send` is checked when it compiles.
#[tokio::test]
async fn a_batch_can_be_written_from_a_spawned_task() {
    let (_, pool) = pools(&target().await, 1).await;
    let events = talk(1, 10);
    let task = tokio::spawn(async move {
        let batch = placed(&events);
        let mut lease = pool.acquire(WISH, soon()).await?;
        lease.transaction(soon(), async |conn| project(conn, partition(0), &batch).await).await
    });
    assert_eq!(task.await.unwrap().unwrap(), inserted(10, 0));
}
