//! Rebuilding: the same rows from the same log, and readers that notice nothing.

use forebay::event::{Body, Event};
use forebay::store::page::Start;
use forebay::store::rebuild::{Plan, Swap};
use forebay::store::{Kind, checkpoints, messages, page, verify};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{
    conversation, event, partition, partitions, placed, project, session, soon, talk, target,
};

/// Two conversations, the second closed early, with a late duplicate in the first.
fn log() -> Vec<Event> {
    let mut events = talk(1, 10);
    events.extend(talk(2, 4));
    events.push(event(2, 5, Body::Closed));
    let mut repeat = events[3].clone();
    repeat.seq = 11;
    events.push(repeat);
    events
}

/// Everything in a table, as one text a row, whatever schema the session has.
async fn dump(conn: &mut PgConnection, table: &str) -> Vec<String> {
    let sql = format!("SELECT row_to_json(t)::text FROM {table} AS t ORDER BY 1");
    let rows = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(conn);
    rows.await.unwrap()
}

/// Dropping every table and projecting again gives the same rows, also where the log has forgotten its beginning.
#[tokio::test]
async fn postgres_is_a_function_of_the_log() {
    let target = target().await;
    let mut live = session(&target).await;
    checkpoints::ensure(&mut live, partitions(), "e").await.unwrap();
    let events = log();
    let batch = placed(&events);
    project(&mut live, partition(0), &batch).await.unwrap();
    let tables = ["messages", "conversations", "checkpoints", "quarantine"];
    let mut before = Vec::new();
    for table in tables {
        before.push(dump(&mut live, table).await);
    }

    // The log begins in the middle of the first conversation, or after its closing, or has everything.
    for floor in [0, 1, 6, 14, 16, 17] {
        let plan = Plan::new(&target).unwrap();
        plan.prepare(partitions(), "e", soon()).await.unwrap();
        plan.copy_below(&mut live, partition(0), floor).await.unwrap();
        let mut fresh = session(&plan.fresh()).await;
        let kept: Vec<_> = batch.iter().copied().filter(|(at, _)| *at >= floor).collect();
        let (all_but_one, last) = kept.split_at(kept.len().saturating_sub(1));
        project(&mut fresh, partition(0), all_but_one).await.unwrap();

        if !last.is_empty() {
            let mut transaction = live.begin().await.unwrap();
            let old = checkpoints::lock_all(&mut transaction).await.unwrap();
            let refused = plan.swap(&mut transaction, &old).await.unwrap();
            assert!(matches!(refused, Swap::Behind { old: 16, .. }), "{refused:?}");
            transaction.rollback().await.unwrap();
        }
        let mut transaction = live.begin().await.unwrap();
        let old = checkpoints::lock_all(&mut transaction).await.unwrap();
        project(&mut fresh, partition(0), last).await.unwrap();
        assert_eq!(plan.swap(&mut transaction, &old).await.unwrap(), Swap::Done);
        transaction.commit().await.unwrap();

        for (table, before) in tables.iter().zip(&before) {
            assert_eq!(&dump(&mut live, table).await, before, "{table} with floor {floor}");
        }
        assert_eq!(verify::gaps(&mut live, 10).await.unwrap(), []);
        plan.discard(&mut live).await.unwrap();
    }
}

#[tokio::test]
async fn readers_and_projectors_go_on_over_a_swap_with_the_sessions_they_have() {
    let target = target().await;
    let (mut live, mut reader) = (session(&target).await, session(&target).await);
    checkpoints::ensure(&mut live, partitions(), "e").await.unwrap();
    let mut events = talk(1, 5);
    project(&mut live, partition(0), &placed(&events)).await.unwrap();
    let plan = Plan::new(&target).unwrap();
    plan.prepare(partitions(), "e", soon()).await.unwrap();
    let mut fresh = session(&plan.fresh()).await;
    project(&mut fresh, partition(0), &placed(&events)).await.unwrap();

    let read = async |conn: &mut PgConnection| {
        let page = page::read(conn, partition(0), conversation(1), Start::After(0), 50).await;
        page.map(|page| (page.checkpoint, page.entries.len()))
    };
    // Often enough that Postgres has made a plan for good.
    for _ in 0..8 {
        assert_eq!(read(&mut reader).await.unwrap(), (5, 5));
    }
    let mut transaction = live.begin().await.unwrap();
    let old = checkpoints::lock_all(&mut transaction).await.unwrap();
    assert_eq!(checkpoints::lock(&mut reader, partition(0)).await.unwrap(), None);
    assert_eq!(plan.swap(&mut transaction, &old).await.unwrap(), Swap::Done);
    let (swapped, seen) = tokio::join!(transaction.commit(), read(&mut reader));
    swapped.unwrap();
    assert_eq!(seen.unwrap(), (5, 5));
    plan.discard(&mut live).await.unwrap();

    events.extend(talk(1, 8).split_off(5));
    let held = checkpoints::lock(&mut reader, partition(0)).await.unwrap();
    assert_eq!(held.unwrap().position, 5);
    let added = project(&mut reader, partition(0), &placed(&events)).await.unwrap();
    assert_eq!(added.rows, 3);
    assert_eq!(read(&mut live).await.unwrap(), (8, 8));
}

#[tokio::test]
async fn a_failed_batch_leaves_the_fresh_schema_usable() {
    let target = target().await;
    let plan = Plan::new(&target).unwrap();
    for _ in 0..2 {
        plan.prepare(partitions(), "e", soon()).await.unwrap();
    }
    let mut fresh = session(&plan.fresh()).await;
    let mut events = talk(1, 2);
    events[1].seq = u64::MAX;
    let refused = messages::insert_batch(&mut fresh, partition(0), &placed(&events)).await;
    assert_eq!(refused.unwrap_err().kind(), Kind::Data);
    let all = checkpoints::read_all(&mut fresh).await.unwrap();
    assert_eq!(all.len(), 2);
}
