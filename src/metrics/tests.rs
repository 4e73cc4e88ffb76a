use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use metrics::{SharedString, Unit};

use super::*;

/// Remembers what was described and registered.
#[derive(Default)]
struct Ledger(Mutex<BTreeMap<String, (String, BTreeSet<String>)>>);

impl Ledger {
    fn note(&self, kind: &str, key: &Key) {
        let labels = key.labels().map(|label| label.key().to_owned()).collect();
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.insert(key.name().to_owned(), (kind.to_owned(), labels));
    }
}

impl Recorder for Ledger {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.note("counter", key);
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.note("gauge", key);
        Gauge::noop()
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.note("histogram", key);
        Histogram::noop()
    }
}

#[test]
fn the_table_and_the_handles_name_the_same_metrics() {
    let ledger = Ledger::default();
    drop(Metrics::register(&ledger, 2));
    let registered = ledger.0.into_inner().unwrap();
    let listed = TABLE.iter().map(|row| {
        let kind = match row.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        let labels = row.labels.iter().map(|label| (*label).to_owned()).collect();
        (row.name.to_owned(), (kind.to_owned(), labels))
    });
    assert_eq!(registered, listed.collect());
}

#[test]
fn names_say_their_kind_and_unit() {
    for row in TABLE {
        assert!(row.name.starts_with("forebay_"), "{}", row.name);
        let counts = row.name.ends_with("_total");
        assert_eq!(counts, row.kind == Kind::Counter, "{}", row.name);
        if row.unit == Unit::Seconds {
            assert!(row.name.ends_with("_seconds"), "{}", row.name);
        }
        if row.unit == Unit::Bytes {
            assert!(row.name.ends_with("_bytes"), "{}", row.name);
        }
        assert!(row.help.ends_with('.'), "{}", row.name);
    }
}

#[test]
fn bounds_rise() {
    for row in TABLE {
        if let Kind::Histogram(bounds) = row.kind {
            assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]), "{}", row.name);
        }
    }
}

#[test]
fn label_values_stand_at_their_own_place() {
    for (place, (route, _)) in Route::ALL.iter().enumerate() {
        assert_eq!(*route as usize, place);
    }
    for (place, (source, _)) in Source::ALL.iter().enumerate() {
        assert_eq!(*source as usize, place);
    }
    for (place, (refusal, _)) in Refusal::ALL.iter().enumerate() {
        assert_eq!(*refusal as usize, place);
    }
}

#[test]
fn a_status_outside_of_the_classes_is_counted_at_the_nearest() {
    let metrics = Metrics::silent(1);
    for status in [0, 99, 200, 404, 599, 999] {
        metrics.api.requests(Route::Other, status).increment(1);
    }
}
