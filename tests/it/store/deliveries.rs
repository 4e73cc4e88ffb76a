//! Deliveries and attempts: the same rows however the outcomes are divided, ordered and repeated; lists without holes.

use std::collections::BTreeSet;

use forebay::clock::Timestamp;
use forebay::event::{
    ChannelId, ConversationId, Delivery, Fate, MessageId, Outcome, Reason, TenantId,
};
use forebay::store::deliveries::{Filter, LIST_MAX};
use forebay::store::rebuild::{Plan, Swap};
use forebay::store::{attempts, checkpoints, deliveries};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{partition, partitions, session, soon, target};

fn at(seconds: u32) -> Timestamp {
    Timestamp::from_micros(1_764_000_000_000_000 + i64::from(seconds) * 1_000_000).unwrap()
}

/// Tried again; `outcome` says when.
fn retry() -> Fate {
    Fate::Retry(at(0))
}

fn tenant() -> TenantId {
    TenantId::derive([9; 16])
}

fn channel(number: u8) -> ChannelId {
    ChannelId::derive([number; 16])
}

fn message(number: u32) -> MessageId {
    let mut bytes = [7; 16];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    MessageId::derive(bytes)
}

/// What became of an attempt of the delivery of a message to channel 1, that began in this second.
fn outcome(number: u32, attempt: u32, second: u32, fate: Fate) -> Outcome {
    let delivered = fate == Fate::Delivered;
    Outcome {
        tenant: tenant(),
        conversation: ConversationId::derive([3; 16]),
        delivery: Delivery::name(message(number), channel(1)),
        channel: channel(1),
        message: message(number),
        seq: u64::from(number),
        attempt,
        began_at: at(second),
        took_ms: 10 + second,
        status: Some(if delivered { 200 } else { 500 }),
        reason: (!delivered).then_some(Reason::Status),
        fate: if let Fate::Retry(_) = fate { Fate::Retry(at(second + 60)) } else { fate },
        answer: (!delivered).then(|| "no".into()),
    }
}

/// Each outcome in a record of its own, at the positions from 1.
fn placed(outcomes: &[Outcome]) -> Vec<(u64, &Outcome)> {
    (1..).zip(outcomes).collect()
}

/// What projection does with a batch.
async fn project(conn: &mut PgConnection, batch: &[(u64, &Outcome)]) {
    deliveries::upsert_batch(conn, partition(0), batch).await.unwrap();
    attempts::insert_batch(conn, partition(0), batch).await.unwrap();
}

/// Everything in both tables, as one text a row.
async fn dump(conn: &mut PgConnection) -> Vec<String> {
    let mut rows = Vec::new();
    for table in ["deliveries", "attempts"] {
        let sql = format!("SELECT row_to_json(t)::text FROM {table} AS t ORDER BY 1");
        let read = sqlx::query_scalar::<_, String>(AssertSqlSafe(sql)).fetch_all(&mut *conn);
        rows.extend(read.await.unwrap());
    }
    rows
}

async fn clear(conn: &mut PgConnection) {
    sqlx::raw_sql("TRUNCATE deliveries, attempts").execute(conn).await.unwrap();
}

/// Every order of so many things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(count - 1);
    let longer = |order: &Vec<usize>| {
        let order = order.clone();
        (0..count).map(move |place| {
            let mut longer = order.clone();
            longer.insert(place, count - 1);
            longer
        })
    };
    shorter.iter().flat_map(longer).collect()
}

/// One delivery: two failures, an attempt that a crash repeated after its success, and a success of the repeat.
fn troubled() -> Vec<Outcome> {
    vec![
        outcome(1, 1, 0, retry()),
        outcome(1, 2, 60, Fate::Delivered),
        outcome(1, 2, 70, retry()),
        outcome(1, 3, 130, Fate::Delivered),
    ]
}

#[tokio::test]
async fn outcomes_that_are_projected_again_change_nothing() {
    let mut conn = session(&target().await).await;
    let mut outcomes = troubled();
    outcomes.push(outcome(2, 1, 0, retry()));
    outcomes.push(outcome(3, 1, 0, Fate::Failed));
    let batch = placed(&outcomes);
    project(&mut conn, &batch).await;
    let before = dump(&mut conn).await;
    assert_eq!(before.len(), 3 + 6);
    for part in [&batch[..], &batch[..1], &batch[1..3], &batch[2..]] {
        project(&mut conn, part).await;
        assert_eq!(dump(&mut conn).await, before);
    }
}

#[tokio::test]
async fn rows_are_the_same_however_outcomes_are_ordered_and_divided() {
    let mut conn = session(&target().await).await;
    let failing: Vec<_> = [(1, 0), (2, 60), (2, 50), (3, 130)]
        .map(|(attempt, second)| outcome(1, attempt, second, retry()))
        .into();
    let ended = vec![
        outcome(1, 1, 0, retry()),
        outcome(1, 2, 60, Fate::Failed),
        outcome(1, 2, 70, retry()),
        outcome(1, 3, 130, Fate::Failed),
    ];
    for outcomes in [troubled(), failing, ended] {
        let batch = placed(&outcomes);
        clear(&mut conn).await;
        project(&mut conn, &batch).await;
        let expected = dump(&mut conn).await;
        for order in orders(batch.len()) {
            let batch: Vec<_> = order.iter().map(|&place| batch[place]).collect();
            for size in 1..=batch.len() {
                clear(&mut conn).await;
                for part in batch.chunks(size) {
                    project(&mut conn, part).await;
                }
                assert_eq!(dump(&mut conn).await, expected, "{order:?} by {size}");
            }
        }
    }
}

#[tokio::test]
async fn a_delivery_keeps_its_first_success_and_knows_every_attempt() {
    let mut conn = session(&target().await).await;
    let outcomes = troubled();
    project(&mut conn, &placed(&outcomes)).await;
    let id = outcomes[0].delivery;
    let row = deliveries::find(&mut conn, tenant(), id).await.unwrap().unwrap();
    assert_eq!((row.state.as_str(), row.status, row.reason), ("delivered", Some(200), None));
    assert_eq!((row.attempts, row.next_attempt_at), (3, None));
    assert_eq!((row.first_attempt_at, row.last_attempt_at), (at(0), at(60)));
    assert_eq!((row.channel, row.message, row.seq), (channel(1), message(1), 1));
    let stranger = TenantId::derive([8; 16]);
    assert_eq!(deliveries::find(&mut conn, stranger, id).await.unwrap(), None);

    let all = attempts::list(&mut conn, id).await.unwrap();
    let seen: Vec<_> = all.iter().map(|one| (one.attempt, one.began_at, one.took_ms)).collect();
    assert_eq!(seen, [(1, at(0), 10), (2, at(60), 70), (2, at(70), 80), (3, at(130), 140)]);
    assert_eq!((all[0].reason.as_deref(), all[0].answer.as_deref()), (Some("status"), Some("no")));
    assert_eq!((all[1].status, all[1].answer.as_deref()), (Some(200), None));
}

#[tokio::test]
async fn a_failure_that_is_delivered_again_is_what_its_newest_attempt_says() {
    let mut conn = session(&target().await).await;
    let outcomes = [
        outcome(1, 1, 0, Fate::Failed),
        outcome(1, 2, 900, retry()),
        outcome(1, 3, 960, Fate::Delivered),
    ];
    let mut seen = Vec::new();
    for (position, outcome) in placed(&outcomes) {
        project(&mut conn, &[(position, outcome)]).await;
        let row = deliveries::find(&mut conn, tenant(), outcome.delivery).await.unwrap().unwrap();
        seen.push((row.state, row.attempts, row.last_attempt_at, row.next_attempt_at));
    }
    let retrying = ("retrying".to_owned(), 2, at(900), Some(at(960)));
    let delivered = ("delivered".to_owned(), 3, at(960), None);
    assert_eq!(seen, [("failed".to_owned(), 1, at(0), None), retrying, delivered]);
}

/// 250 deliveries of channel 1, the state by the number: 10 failed, 25 that wait, the others delivered.
async fn crowd(conn: &mut PgConnection) -> Vec<Outcome> {
    let fate = |number| match number % 50 {
        0 | 1 => Fate::Failed,
        2..=6 => retry(),
        _ => Fate::Delivered,
    };
    let outcomes: Vec<_> = (0..250).map(|n| outcome(n, 1, n, fate(n))).collect();
    project(conn, &placed(&outcomes)).await;
    let other = Outcome {
        channel: channel(2),
        delivery: Delivery::name(message(0), channel(2)),
        ..outcomes[0].clone()
    };
    project(conn, &[(251, &other)]).await;
    outcomes
}

fn of_state(state: Option<&str>) -> Filter {
    Filter { state: state.map(str::to_owned), ..Filter::default() }
}

#[tokio::test]
async fn pages_skip_and_double_nothing_while_rows_change_under_them() {
    let mut conn = session(&target().await).await;
    let outcomes = crowd(&mut conn).await;
    for state in [None, Some("failed"), Some("retrying"), Some("delivered")] {
        let held = |one: &&Outcome| state.is_none_or(|state| one.fate.as_str() == state);
        let expected: BTreeSet<_> = outcomes.iter().filter(held).map(|one| one.delivery).collect();
        for limit in [1, 7, expected.len(), LIST_MAX] {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let (filter, page) = (of_state(state), (after, limit));
                let rows = deliveries::of_channel(&mut conn, channel(1), &filter, page).await;
                let rows = rows.unwrap();
                assert!(rows.len() <= limit && rows.iter().all(|row| row.channel == channel(1)));
                let Some(last) = rows.last() else { break };
                after = Some(last.id);
                seen.extend(rows.iter().map(|row| row.id));
                // A retry fails again: its row changes, and keeps its place.
                if let Some(row) = rows.iter().find(|row| row.state == "retrying") {
                    let number = u32::try_from(row.seq).unwrap();
                    let again = outcome(number, row.attempts + 1, 1_000 + row.attempts, retry());
                    project(&mut conn, &[(1_000, &again)]).await;
                }
            }
            assert_eq!(seen, expected.iter().copied().collect::<Vec<_>>(), "{state:?} {limit}");
        }
    }
}

#[tokio::test]
async fn what_is_to_be_delivered_again_is_chosen_by_state_and_time_and_counted() {
    let mut conn = session(&target().await).await;
    crowd(&mut conn).await;
    let between = |state, from: Option<u32>, to: Option<u32>| Filter {
        from: from.map(at),
        to: to.map(at),
        ..of_state(state)
    };
    let cases = [
        (between(Some("failed"), None, None), 10),
        (between(Some("failed"), Some(50), None), 8),
        // From is within, to is not.
        (between(Some("failed"), Some(50), Some(101)), 3),
        (between(Some("failed"), Some(51), Some(100)), 1),
        (between(Some("failed"), Some(300), None), 0),
        (between(Some("retrying"), None, Some(50)), 5),
        (between(None, Some(100), Some(150)), 50),
    ];
    for (filter, expected) in cases {
        let counted = deliveries::count(&mut conn, channel(1), &filter).await.unwrap();
        let page = (None, LIST_MAX);
        let rows = deliveries::of_channel(&mut conn, channel(1), &filter, page).await.unwrap();
        assert_eq!((counted, rows.len() as u64), (expected, expected), "{filter:?}");
        assert!(rows.iter().all(|row| {
            filter.state.as_ref().is_none_or(|state| *state == row.state)
                && filter.from.is_none_or(|from| from <= row.last_attempt_at)
                && filter.to.is_none_or(|to| row.last_attempt_at < to)
        }));
    }
}

#[tokio::test]
async fn the_deliveries_of_a_message_are_its_tenants_one_a_channel() {
    let mut conn = session(&target().await).await;
    crowd(&mut conn).await;
    let rows = deliveries::of_message(&mut conn, tenant(), message(0)).await.unwrap();
    let channels: BTreeSet<_> = rows.iter().map(|row| row.channel).collect();
    assert_eq!((rows.len(), channels), (2, [channel(1), channel(2)].into()));
    let stranger = TenantId::derive([8; 16]);
    assert_eq!(deliveries::of_message(&mut conn, stranger, message(0)).await.unwrap(), []);
    assert_eq!(deliveries::of_message(&mut conn, tenant(), message(999)).await.unwrap(), []);
}

/// A log that has forgotten its beginning, or the beginning of a delivery that goes on: rows from before are copied.
#[tokio::test]
async fn a_rebuild_gives_the_same_deliveries_wherever_the_log_begins() {
    let target = target().await;
    let mut live = session(&target).await;
    checkpoints::ensure(&mut live, partitions(), "e").await.unwrap();
    let mut outcomes = troubled();
    outcomes.insert(2, outcome(2, 1, 5, Fate::Delivered));
    outcomes.push(outcome(3, 1, 6, Fate::Failed));
    let batch = placed(&outcomes);
    project(&mut live, &batch).await;
    checkpoints::advance(&mut live, partition(0), 6).await.unwrap();
    let before = dump(&mut live).await;
    for floor in 0..=7 {
        let plan = Plan::new(&target).unwrap();
        plan.prepare(partitions(), "e", soon()).await.unwrap();
        plan.copy_below(&mut live, partition(0), floor).await.unwrap();
        let mut fresh = session(&plan.fresh()).await;
        for one in batch.iter().filter(|(position, _)| *position >= floor) {
            project(&mut fresh, &[*one]).await;
            checkpoints::advance(&mut fresh, partition(0), one.0).await.unwrap();
        }
        let mut transaction = live.begin().await.unwrap();
        let old = checkpoints::lock_all(&mut transaction).await.unwrap();
        assert_eq!(plan.swap(&mut transaction, &old).await.unwrap(), Swap::Done);
        transaction.commit().await.unwrap();
        assert_eq!(dump(&mut live).await, before, "floor {floor}");
        plan.discard(&mut live).await.unwrap();
    }
}
