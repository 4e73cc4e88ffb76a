//! What a pool shows, in the shape of its metrics, and the one place where it is written into them.
//! Promises that every gauge and every total is set from one look, so that they agree with each other and cannot drift.
//! Does not look; the watch does, once a second.

use std::time::Duration;

use crate::metrics::{self, label};
use crate::store::pool;

/// One look at a pool. Arrays are in the order of the labels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sight {
    /// By state.
    pub(super) connections: [usize; label::STATES.len()],
    /// Mean wait of the window.
    pub(super) wait: Duration,
    /// What each priority owes, in permits.
    pub(super) debt: [f64; label::PRIORITIES.len()],
    /// Permits in use, by class.
    pub(super) share: [usize; label::CLASSES.len()],
    /// Acquirers that wait, by class.
    pub(super) waiting: [usize; label::CLASSES.len()],
    /// Permits given since the start, by priority.
    pub(super) granted: [u64; label::PRIORITIES.len()],
    /// Permits refused since the start, by reason and priority.
    pub(super) refused: [[u64; label::PRIORITIES.len()]; label::REASONS.len()],
    /// What the connections went through since the start.
    pub(super) totals: pool::Totals,
}

impl Sight {
    /// What this pool shows.
    pub(super) fn of(status: &pool::Status) -> Self {
        let gate = &status.gate;
        Self {
            connections: [status.idle, gate.in_use, status.creating, status.retiring],
            wait: gate.wait,
            debt: gate.debt,
            share: gate.classes.map(|class| class.in_use),
            waiting: gate.classes.map(|class| class.waiting),
            granted: gate.granted,
            refused: gate.refusals,
            totals: status.totals,
        }
    }

    /// Writes it into the metrics.
    pub(super) fn note(&self, metrics: &metrics::Pool) {
        let gate = &metrics.gate;
        set_all(&metrics.connections, &self.connections);
        set_all(&gate.share, &self.share);
        set_all(&gate.waiting, &self.waiting);
        for (gauge, debt) in gate.debt.iter().zip(self.debt) {
            gauge.set(debt);
        }
        gate.mean_wait.set(self.wait.as_secs_f64());
        raise_all(&gate.granted_acquires, &self.granted);
        for (counters, totals) in gate.refused_acquires.iter().zip(&self.refused) {
            raise_all(counters, totals);
        }
        let totals = &self.totals;
        metrics.created_connections.absolute(totals.created);
        metrics.destroyed_connections.absolute(totals.destroyed);
        raise_all(&metrics.cancels, &[totals.cancels_sent, totals.cancels_failed]);
        metrics.rollbacks.absolute(totals.rollbacks);
        // It begins with the primary, so that every other turn leads back to it.
        raise_all(&metrics.failbacks, &[totals.failbacks / 2, totals.failbacks.div_ceil(2)]);
    }
}

fn set_all<const N: usize>(gauges: &[::metrics::Gauge; N], counts: &[usize; N]) {
    for (gauge, count) in gauges.iter().zip(counts) {
        gauge.set(super::float(*count));
    }
}

fn raise_all<const N: usize>(counters: &[::metrics::Counter; N], totals: &[u64; N]) {
    for (counter, total) in counters.iter().zip(totals) {
        counter.absolute(*total);
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::admission::{Class, Overload, Priority};
    use crate::metrics::Metrics;

    fn page(sight: &Sight) -> String {
        let recorder = PrometheusBuilder::new().build_recorder();
        let metrics = Metrics::register(&recorder, 1);
        sight.note(&metrics.background);
        recorder.handle().render()
    }

    #[test]
    fn every_number_of_a_look_is_found_under_its_labels() {
        let sight = Sight {
            connections: [1, 2, 3, 4],
            wait: Duration::from_millis(250),
            debt: [0.0, 1.5, 0.0, 2.5],
            share: [5, 6, 7, 8],
            waiting: [9, 10, 11, 12],
            granted: [13, 14, 15, 16],
            refused: [[0; 4], [0, 0, 17, 0], [0; 4], [0; 4], [0; 4], [18, 0, 0, 0]],
            totals: pool::Totals {
                created: 19,
                destroyed: 20,
                cancels_sent: 21,
                cancels_failed: 22,
                rollbacks: 23,
                failbacks: 3,
            },
        };
        let page = page(&sight);
        for line in [
            r#"forebay_store_connections{pool="background",state="idle"} 1"#,
            r#"forebay_store_connections{pool="background",state="used"} 2"#,
            r#"forebay_store_connections{pool="background",state="creating"} 3"#,
            r#"forebay_store_connections{pool="background",state="retiring"} 4"#,
            r#"forebay_admission_mean_wait_seconds{pool="background"} 0.25"#,
            r#"forebay_admission_debt_permits{pool="background",priority="high"} 1.5"#,
            r#"forebay_admission_debt_permits{pool="background",priority="low"} 2.5"#,
            r#"forebay_admission_share_permits{pool="background",class="system"} 5"#,
            r#"forebay_admission_waiting_acquires{pool="background",class="bulk"} 12"#,
            r#"forebay_admission_granted_acquires_total{pool="background",priority="critical"} 13"#,
            r#"forebay_admission_refused_acquires_total{pool="background",reason="queue_full",priority="medium"} 17"#,
            r#"forebay_admission_refused_acquires_total{pool="background",reason="closed",priority="critical"} 18"#,
            r#"forebay_store_created_connections_total{pool="background"} 19"#,
            r#"forebay_store_destroyed_connections_total{pool="background"} 20"#,
            r#"forebay_store_cancels_total{pool="background",outcome="sent"} 21"#,
            r#"forebay_store_cancels_total{pool="background",outcome="failed"} 22"#,
            r#"forebay_store_rollbacks_total{pool="background"} 23"#,
            r#"forebay_store_failbacks_total{pool="background",to="failback"} 2"#,
            r#"forebay_store_failbacks_total{pool="background",to="primary"} 1"#,
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
    }

    #[test]
    fn labels_stand_at_the_places_of_what_they_name() {
        for (priority, name) in [
            (Priority::Critical, "critical"),
            (Priority::High, "high"),
            (Priority::Medium, "medium"),
            (Priority::Low, "low"),
        ] {
            assert_eq!(label::PRIORITIES[priority as usize], name);
        }
        for (class, name) in [
            (Class::System, "system"),
            (Class::High, "high"),
            (Class::Standard, "standard"),
            (Class::Bulk, "bulk"),
        ] {
            assert_eq!(label::CLASSES[class as usize], name);
        }
        for (reason, name) in [
            (Overload::Queue, "queue"),
            (Overload::QueueFull, "queue_full"),
            (Overload::Deadline, "deadline"),
            (Overload::ZeroCapacity, "zero_capacity"),
            (Overload::Nested, "nested"),
            (Overload::Closed, "closed"),
        ] {
            assert_eq!(label::REASONS[reason as usize], name);
        }
    }
}
