//! Handles of what the router and the workers of deliveries report, by tier and not by channel.
//! Promises a handle for every value of every label.
//! Does not count.

use metrics::{Counter, Gauge, Histogram};

use super::Registry;

/// The tiers, in the order of their numbers.
pub(super) const TIERS: [&str; 3] = ["high", "standard", "bulk"];

/// What becomes of an attempt.
pub(super) const RESULTS: [&str; 3] = ["delivered", "retrying", "failed"];

/// What routing and delivery report.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// `forebay_routing_deliveries_total`.
    pub routed: Counter,
    /// `forebay_delivery_attempts_total`, by tier and then by [`RESULTS`].
    pub attempts: [[Counter; RESULTS.len()]; TIERS.len()],
    /// `forebay_delivery_attempt_duration_seconds`, by tier.
    pub attempt_duration: [Histogram; TIERS.len()],
    /// `forebay_delivery_slots`, by tier.
    pub in_flight: [Gauge; TIERS.len()],
    /// `forebay_delivery_waiting`, by tier.
    pub waiting: [Gauge; TIERS.len()],
    /// `forebay_delivery_diverted_total`.
    pub diverted: Counter,
    /// `forebay_delivery_diverted_channels`.
    pub diverted_channels: Gauge,
}

impl Registry<'_> {
    pub(super) fn delivery(&self) -> Delivery {
        Delivery {
            routed: self.counter("forebay_routing_deliveries_total", &[]),
            attempts: TIERS.map(|tier| {
                RESULTS.map(|result| {
                    let labels = [("tier", tier), ("result", result)];
                    self.counter("forebay_delivery_attempts_total", &labels)
                })
            }),
            attempt_duration: TIERS.map(|tier| {
                self.histogram("forebay_delivery_attempt_duration_seconds", &[("tier", tier)])
            }),
            in_flight: TIERS.map(|tier| self.gauge("forebay_delivery_slots", &[("tier", tier)])),
            waiting: TIERS.map(|tier| self.gauge("forebay_delivery_waiting", &[("tier", tier)])),
            diverted: self.counter("forebay_delivery_diverted_total", &[]),
            diverted_channels: self.gauge("forebay_delivery_diverted_channels", &[]),
        }
    }
}
