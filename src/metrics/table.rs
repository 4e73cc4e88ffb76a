//! The table of metrics: name, kind, unit, help and labels of each.
//! Promises that a metric that is not in it does not exist; a test compares it with the handles.
//! Does not register anything.

use metrics::Unit;

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Only goes up.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution over these upper bounds.
    Histogram(&'static [f64]),
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// `forebay_<room>_<noun>_<unit>[_total]`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it counts or measures in.
    pub unit: Unit,
    /// One sentence for whoever reads the page.
    pub help: &'static str,
    /// Names of its labels; their values are partition numbers and the enums of this file.
    pub labels: &'static [&'static str],
}

/// Seconds from half a millisecond to ten seconds: a local fsync lies at the lower end, a request deadline at the upper.
const SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Counts of events up to the largest record and the largest batch of the projector.
const EVENTS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_000.0];

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Definition {
    Definition { name, kind: Kind::Counter, unit: Unit::Count, help, labels }
}

const fn gauge(
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    help: &'static str,
) -> Definition {
    Definition { name, kind: Kind::Gauge, unit, help, labels }
}

const fn histogram(
    name: &'static str,
    bounds: &'static [f64],
    labels: &'static [&'static str],
    help: &'static str,
) -> Definition {
    let unit = if bounds.len() == SECONDS.len() { Unit::Seconds } else { Unit::Count };
    Definition { name, kind: Kind::Histogram(bounds), unit, help, labels }
}

const PARTITION: &[&str] = &["partition"];
const POOL: &[&str] = &["pool"];

/// The whole table, by room. [`super::Metrics::register`] takes its rows by their names.
pub const TABLE: &[Definition] = &[
    // journal
    histogram(
        "forebay_journal_record_events",
        EVENTS,
        PARTITION,
        "Events that were committed together in one record.",
    ),
    histogram(
        "forebay_journal_ack_duration_seconds",
        SECONDS,
        PARTITION,
        "Time from publishing a record to its durable acknowledgement.",
    ),
    counter(
        "forebay_journal_appended_events_total",
        PARTITION,
        "Events that this node has appended to the log.",
    ),
    counter(
        "forebay_journal_conflicts_total",
        PARTITION,
        "Records that lost their position to another node and were staged again.",
    ),
    counter(
        "forebay_journal_republished_records_total",
        PARTITION,
        "Records that were published again because their outcome was unknown.",
    ),
    gauge(
        "forebay_journal_queue_requests",
        Unit::Count,
        PARTITION,
        "Requests that wait in the append queue or for the record in flight.",
    ),
    gauge(
        "forebay_journal_queue_bytes",
        Unit::Bytes,
        PARTITION,
        "Bytes that wait in the append queue.",
    ),
    gauge(
        "forebay_journal_tail_heads",
        Unit::Count,
        PARTITION,
        "Conversations whose head is in memory.",
    ),
    gauge(
        "forebay_journal_tail_keys",
        Unit::Count,
        PARTITION,
        "Idempotency keys that are in memory.",
    ),
    gauge(
        "forebay_journal_tail_bytes",
        Unit::Bytes,
        PARTITION,
        "Encoded size of the newest records that are in memory; decoded they take about twice that.",
    ),
    // ingest
    counter(
        "forebay_ingest_duplicates_total",
        &[],
        "Sends that were answered with the receipt of an earlier one.",
    ),
    counter(
        "forebay_ingest_refused_sends_total",
        &["reason"],
        "Sends that were refused, by reason.",
    ),
    // admission
    counter(
        "forebay_admission_granted_acquires_total",
        &["pool", "priority"],
        "Permits that the gate gave.",
    ),
    counter(
        "forebay_admission_refused_acquires_total",
        &["pool", "reason", "priority"],
        "Permits that the gate refused.",
    ),
    gauge(
        "forebay_admission_debt_permits",
        Unit::Count,
        &["pool", "priority"],
        "What the priority owes for having been served before others.",
    ),
    gauge(
        "forebay_admission_share_permits",
        Unit::Count,
        &["pool", "class"],
        "Permits that the class has in use.",
    ),
    gauge(
        "forebay_admission_waiting_acquires",
        Unit::Count,
        &["pool", "class"],
        "Callers of the class that wait for a permit.",
    ),
    gauge(
        "forebay_admission_mean_wait_seconds",
        Unit::Seconds,
        POOL,
        "Mean wait over the window, of callers that were served, were refused or still wait.",
    ),
    // projection
    gauge(
        "forebay_projection_lag_events",
        Unit::Count,
        PARTITION,
        "Events in the log that Postgres does not have yet.",
    ),
    gauge(
        "forebay_projection_lag_age_seconds",
        Unit::Seconds,
        PARTITION,
        "Age of the oldest event that Postgres does not have yet.",
    ),
    counter("forebay_projection_rows_total", PARTITION, "Events that were written to Postgres."),
    counter(
        "forebay_projection_tombstones_total",
        PARTITION,
        "Events that were written as tombstones because their key was there before.",
    ),
    counter(
        "forebay_projection_quarantined_events_total",
        PARTITION,
        "Events that Postgres refused and that were set aside.",
    ),
    histogram(
        "forebay_projection_batch_events",
        EVENTS,
        PARTITION,
        "Events that were written to Postgres in one transaction.",
    ),
    histogram(
        "forebay_projection_batch_duration_seconds",
        SECONDS,
        PARTITION,
        "Time that one transaction of the projector took.",
    ),
    // store
    gauge(
        "forebay_store_connections",
        Unit::Count,
        &["pool", "state"],
        "Connections of the pool: idle, used, coming up or going down.",
    ),
    counter("forebay_store_created_connections_total", POOL, "Connections that were made."),
    counter(
        "forebay_store_destroyed_connections_total",
        POOL,
        "Connections that were closed or lost.",
    ),
    counter(
        "forebay_store_cancels_total",
        &["pool", "outcome"],
        "Statements that were abandoned and then cancelled, by whether Postgres could be told in time.",
    ),
    counter(
        "forebay_store_rollbacks_total",
        POOL,
        "Transactions that were abandoned and then rolled back.",
    ),
    counter(
        "forebay_store_failbacks_total",
        &["pool", "to"],
        "Turns from one database to the other, by where they led.",
    ),
    counter(
        "forebay_store_refused_acquires_total",
        POOL,
        "Callers that were given no connection, whatever the reason.",
    ),
    histogram(
        "forebay_store_acquire_duration_seconds",
        SECONDS,
        POOL,
        "Time that callers waited for a connection.",
    ),
    counter(
        "forebay_db_unavailable_total",
        &["source"],
        "Answers and batches that were given up because Postgres could not be had, by where they were asked for.",
    ),
    // routing and delivery
    counter(
        "forebay_routing_deliveries_total",
        &[],
        "Deliveries that this node has queued from the log.",
    ),
    counter(
        "forebay_delivery_attempts_total",
        &["tier", "result"],
        "Attempts that this node has made, by tier and by what follows.",
    ),
    histogram(
        "forebay_delivery_attempt_duration_seconds",
        SECONDS,
        &["tier"],
        "Time that one attempt took, from the look at the address to the end of the answer.",
    ),
    gauge("forebay_delivery_slots", Unit::Count, &["tier"], "Attempts that are under way."),
    gauge(
        "forebay_delivery_waiting",
        Unit::Count,
        &["tier"],
        "Deliveries that this node holds and that wait for a slot.",
    ),
    counter(
        "forebay_delivery_diverted_total",
        &[],
        "Deliveries that this node has moved to the backlog of their channel, or as a burst routed there.",
    ),
    gauge(
        "forebay_delivery_diverted_channels",
        Unit::Count,
        &[],
        "Channels whose deliveries go through their backlog, on all nodes.",
    ),
    // api
    gauge(
        "forebay_api_open_connections",
        Unit::Count,
        &[],
        "Connections of clients that are open.",
    ),
    counter(
        "forebay_api_requests_total",
        &["route", "class"],
        "Answers, by route and class of status.",
    ),
    histogram(
        "forebay_api_request_duration_seconds",
        SECONDS,
        &["route"],
        "Time from a request's head to its answer.",
    ),
    counter("forebay_api_panics_total", &[], "Requests that ended in a panic, which is a bug."),
];
