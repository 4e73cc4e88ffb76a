//! Every metric of the program: name, kind, unit, help, labels and their values, in one table.
//! Promises typed handles that cost no look-up where they are used, and that two servers in one process share none.
//! Does not render or export anything; the recorder comes from outside.

mod delivery;
pub mod label;
mod pool;
pub mod table;

use std::fmt;

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, NoopRecorder, Recorder,
};

pub use delivery::Delivery;
pub use label::{Refusal, Route, Source};
pub use pool::{Gate, Pool};
pub use table::{Definition, Kind, TABLE};

/// Classes of HTTP statuses, from 1xx to 5xx.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What one partition's writer and tail report.
#[derive(Clone, Debug)]
pub struct Journal {
    /// `forebay_journal_record_events`.
    pub record_events: Histogram,
    /// `forebay_journal_ack_duration_seconds`.
    pub ack_duration: Histogram,
    /// `forebay_journal_appended_events_total`.
    pub appended_events: Counter,
    /// `forebay_journal_conflicts_total`.
    pub conflicts: Counter,
    /// `forebay_journal_republished_records_total`.
    pub republished_records: Counter,
    /// `forebay_journal_queue_requests`.
    pub queue_requests: Gauge,
    /// `forebay_journal_queue_bytes`.
    pub queue_bytes: Gauge,
    /// `forebay_journal_tail_heads`.
    pub tail_heads: Gauge,
    /// `forebay_journal_tail_keys`.
    pub tail_keys: Gauge,
    /// `forebay_journal_tail_bytes`.
    pub tail_bytes: Gauge,
}

/// What the flow of sends reports.
#[derive(Clone, Debug)]
pub struct Ingest {
    /// `forebay_ingest_duplicates_total`.
    pub duplicates: Counter,
    refused: Vec<Counter>,
}

impl Ingest {
    /// `forebay_ingest_refused_sends_total` with this reason.
    pub fn refused(&self, reason: Refusal) -> &Counter {
        &self.refused[reason as usize]
    }
}

/// What the projection of one partition reports.
#[derive(Clone, Debug)]
pub struct Projection {
    /// `forebay_projection_lag_events`.
    pub lag_events: Gauge,
    /// `forebay_projection_lag_age_seconds`.
    pub lag_age: Gauge,
    /// `forebay_projection_rows_total`.
    pub rows: Counter,
    /// `forebay_projection_tombstones_total`.
    pub tombstones: Counter,
    /// `forebay_projection_quarantined_events_total`.
    pub quarantined_events: Counter,
    /// `forebay_projection_batch_events`.
    pub batch_events: Histogram,
    /// `forebay_projection_batch_duration_seconds`.
    pub batch_duration: Histogram,
}

/// What everybody reports who cannot have Postgres.
#[derive(Clone, Debug)]
pub struct Database {
    unavailable: Vec<Counter>,
}

impl Database {
    /// `forebay_db_unavailable_total` of this source.
    pub fn unavailable(&self, source: Source) -> &Counter {
        &self.unavailable[source as usize]
    }
}

/// What the doors report.
#[derive(Clone, Debug)]
pub struct Api {
    /// `forebay_api_open_connections`.
    pub open_connections: Gauge,
    /// `forebay_api_panics_total`.
    pub panics: Counter,
    requests: Vec<Counter>,
    durations: Vec<Histogram>,
}

impl Api {
    /// `forebay_api_requests_total` of this route and this status' class.
    pub fn requests(&self, route: Route, status: u16) -> &Counter {
        let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;
        &self.requests[route as usize * CLASSES.len() + class]
    }

    /// `forebay_api_request_duration_seconds` of this route.
    pub fn duration(&self, route: Route) -> &Histogram {
        &self.durations[route as usize]
    }
}

/// Handles of all metrics, grouped by room. Clones write to the same values.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// One a partition, by its number.
    pub journal: Vec<Journal>,
    /// The flow of sends.
    pub ingest: Ingest,
    /// One a partition, by its number.
    pub projection: Vec<Projection>,
    /// The pool that answers requests.
    pub interactive: Pool,
    /// The pool of the projector and of upkeep.
    pub background: Pool,
    /// Whoever cannot have Postgres.
    pub database: Database,
    /// Routing and delivery.
    pub delivery: Delivery,
    /// The doors.
    pub api: Api,
}

impl Metrics {
    /// Describes the whole table to the recorder and registers every handle with it.
    pub fn register(recorder: &dyn Recorder, partitions: u16) -> Self {
        for row in TABLE {
            let (name, unit) = (KeyName::from_const_str(row.name), Some(row.unit));
            match row.kind {
                Kind::Counter => recorder.describe_counter(name, unit, row.help.into()),
                Kind::Gauge => recorder.describe_gauge(name, unit, row.help.into()),
                Kind::Histogram(_) => recorder.describe_histogram(name, unit, row.help.into()),
            }
        }
        let registry = Registry(recorder);
        let numbers: Vec<String> = (0..partitions).map(|number| number.to_string()).collect();
        Self {
            journal: numbers.iter().map(|p| registry.journal(p)).collect(),
            ingest: registry.ingest(),
            projection: numbers.iter().map(|p| registry.projection(p)).collect(),
            interactive: registry.pool("interactive"),
            background: registry.pool("background"),
            database: registry.database(),
            delivery: registry.delivery(),
            api: registry.api(),
        }
    }

    /// Handles that lead nowhere, for tests and for commands that serve nobody.
    pub fn silent(partitions: u16) -> Self {
        Self::register(&NoopRecorder, partitions)
    }
}

/// Registers handles; its methods name the rows of [`TABLE`].
struct Registry<'a>(&'a dyn Recorder);

impl fmt::Debug for Registry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registry")
    }
}

const METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

impl Registry<'_> {
    fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        self.0.register_counter(&key(name, labels), &METADATA)
    }

    fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.0.register_gauge(&key(name, labels), &METADATA)
    }

    fn histogram(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        self.0.register_histogram(&key(name, labels), &METADATA)
    }

    fn journal(&self, partition: &str) -> Journal {
        let at = &[("partition", partition)];
        Journal {
            record_events: self.histogram("forebay_journal_record_events", at),
            ack_duration: self.histogram("forebay_journal_ack_duration_seconds", at),
            appended_events: self.counter("forebay_journal_appended_events_total", at),
            conflicts: self.counter("forebay_journal_conflicts_total", at),
            republished_records: self.counter("forebay_journal_republished_records_total", at),
            queue_requests: self.gauge("forebay_journal_queue_requests", at),
            queue_bytes: self.gauge("forebay_journal_queue_bytes", at),
            tail_heads: self.gauge("forebay_journal_tail_heads", at),
            tail_keys: self.gauge("forebay_journal_tail_keys", at),
            tail_bytes: self.gauge("forebay_journal_tail_bytes", at),
        }
    }

    fn ingest(&self) -> Ingest {
        let refused = |(_, reason): &(Refusal, &'static str)| {
            self.counter("forebay_ingest_refused_sends_total", &[("reason", reason)])
        };
        Ingest {
            duplicates: self.counter("forebay_ingest_duplicates_total", &[]),
            refused: Refusal::ALL.iter().map(refused).collect(),
        }
    }

    fn projection(&self, partition: &str) -> Projection {
        let at = &[("partition", partition)];
        Projection {
            lag_events: self.gauge("forebay_projection_lag_events", at),
            lag_age: self.gauge("forebay_projection_lag_age_seconds", at),
            rows: self.counter("forebay_projection_rows_total", at),
            tombstones: self.counter("forebay_projection_tombstones_total", at),
            quarantined_events: self.counter("forebay_projection_quarantined_events_total", at),
            batch_events: self.histogram("forebay_projection_batch_events", at),
            batch_duration: self.histogram("forebay_projection_batch_duration_seconds", at),
        }
    }

    fn database(&self) -> Database {
        let unavailable = |(_, source): &(Source, &'static str)| {
            self.counter("forebay_db_unavailable_total", &[("source", source)])
        };
        Database { unavailable: Source::ALL.iter().map(unavailable).collect() }
    }

    fn api(&self) -> Api {
        let counted = |(_, route): &(Route, &'static str)| {
            CLASSES.map(|class| {
                let labels = [("route", *route), ("class", class)];
                self.counter("forebay_api_requests_total", &labels)
            })
        };
        let timed = |(_, route): &(Route, &'static str)| {
            self.histogram("forebay_api_request_duration_seconds", &[("route", route)])
        };
        Api {
            open_connections: self.gauge("forebay_api_open_connections", &[]),
            panics: self.counter("forebay_api_panics_total", &[]),
            requests: Route::ALL.iter().flat_map(counted).collect(),
            durations: Route::ALL.iter().map(timed).collect(),
        }
    }
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels = labels.iter().map(|(label, value)| Label::new(*label, (*value).to_owned()));
    Key::from_parts(name, labels.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
