//! Pure: what became of many calls: how many were acknowledged, refused or broken, and how long the acknowledged took.
//! Promises that refusals never flatter the latencies, and that medians over rounds come with their spread.
//! Does not measure; it is told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest latency that is told apart from longer ones.
const LATENCY_MAX: Duration = Duration::from_mins(2);

/// The span of a run that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From then on.
    pub from: Instant,
    /// Until then.
    pub until: Instant,
}

impl Window {
    /// Whether an acknowledgement counts into the rate: by when it came, whenever its call was due. By when calls were due,
    /// the answers to what had piled up before would be missing, and a server under a standing queue would look slower.
    pub fn has_answer(self, came: Instant) -> bool {
        self.from <= came && came <= self.until
    }

    /// Whether a latency or a refusal is noted: by when the call was due, so that none is left out for having been slow.
    pub fn has_call(self, due: Instant) -> bool {
        self.from <= due
    }
}

/// Outcomes of calls of one kind, in one span of time.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Calls whose acknowledgement, as first of their key, came within the span.
    pub stored: u64,
    /// Calls whose acknowledgement as a repeat came within the span.
    pub repeated: u64,
    /// Calls that were answered otherwise, by status or reason.
    pub refused: BTreeMap<String, u64>,
    /// Latencies of acknowledged calls that were due in the span, in microseconds.
    latency: Histogram<u64>,
    /// Latencies of calls that the server refused, in microseconds.
    refusal: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let micros_max = u64::try_from(LATENCY_MAX.as_micros()).unwrap_or(u64::MAX);
        let latency = Histogram::new_with_bounds(1, micros_max, 3)
            .expect("the bounds are constants that hdrhistogram accepts: 1 <= max / 2");
        let refusal = latency.clone();
        Self { stored: 0, repeated: 0, refused: BTreeMap::new(), latency, refusal }
    }
}

impl Tally {
    /// Notes how long an acknowledged call took.
    pub fn took(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latency.saturating_record(micros);
    }

    /// Notes how long a call took that the server refused.
    pub fn took_to_refuse(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.refusal.saturating_record(micros);
    }

    /// Notes a call that was not acknowledged.
    pub fn refuse(&mut self, reason: &str) {
        self.refuse_many(reason, 1);
    }

    /// Notes so many of them.
    pub fn refuse_many(&mut self, reason: &str, calls: u64) {
        match self.refused.get_mut(reason) {
            Some(count) => *count += calls,
            None => drop(self.refused.insert(reason.to_owned(), calls)),
        }
    }

    /// Takes over another tally.
    pub fn absorb(&mut self, other: &Self) {
        self.stored += other.stored;
        self.repeated += other.repeated;
        for (reason, count) in &other.refused {
            *self.refused.entry(reason.clone()).or_default() += count;
        }
        self.latency.add(&other.latency).expect("both histograms have the same bounds");
        self.refusal.add(&other.refusal).expect("both histograms have the same bounds");
    }

    /// Calls that were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.stored + self.repeated
    }

    /// Calls that were not.
    pub fn failed(&self) -> u64 {
        self.refused.values().sum()
    }

    /// The latency below which this share (0 to 1) of the acknowledged calls stayed, to three digits.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_micros(self.latency.value_at_quantile(share))
    }

    /// The time below which this share (0 to 1) of the refusals stayed; zero without any.
    pub fn refusal_quantile(&self, share: f64) -> Duration {
        Duration::from_micros(self.refusal.value_at_quantile(share))
    }

    /// The longest latency, to three digits.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.latency.max())
    }
}

/// The figures of one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Round {
    /// Acknowledged calls.
    pub acknowledged: u64,
    /// Acknowledged calls a second.
    pub per_second: f64,
    /// Half of the acknowledged calls took at most this long, in milliseconds.
    pub p50_ms: f64,
    /// 99 of 100 acknowledged calls took at most this long, in milliseconds.
    pub p99_ms: f64,
    /// The longest acknowledged call, in milliseconds.
    pub max_ms: f64,
    /// Calls that were not acknowledged, by status or reason.
    pub refused: BTreeMap<String, u64>,
    /// 99 of 100 refusals took at most this long, in milliseconds; zero without any.
    pub refusal_p99_ms: f64,
    /// Calls without an answer when the round was over and its grace too.
    pub unfinished: u64,
}

impl Round {
    /// The figures of a span of this length.
    pub fn of(tally: &Tally, span: Duration, unfinished: u64) -> Self {
        Self {
            acknowledged: tally.acknowledged(),
            per_second: rate(tally.acknowledged(), span),
            p50_ms: millis(tally.quantile(0.5)),
            p99_ms: millis(tally.quantile(0.99)),
            max_ms: millis(tally.longest()),
            refused: tally.refused.clone(),
            refusal_p99_ms: millis(tally.refusal_quantile(0.99)),
            unfinished,
        }
    }

    /// Calls that were refused or never answered.
    pub fn errors(&self) -> u64 {
        self.refused.values().sum::<u64>() + self.unfinished
    }
}

/// A figure over several rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one; of an even number of rounds the mean of the middle two.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    /// Over these figures; `None` without any.
    pub fn over(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, low, high })
    }
}

/// So many in this span, a second; zero for an empty span.
pub fn rate(count: u64, span: Duration) -> f64 {
    if span.is_zero() {
        return 0.0;
    }
    precise(count) / span.as_secs_f64()
}

/// A count as a float: exact up to 2^53, which no benchmark reaches.
#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark stay below 2^53")]
pub const fn precise(count: u64) -> f64 {
    count as f64
}

/// A duration in milliseconds.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_count_but_do_not_flatter_the_latencies() {
        let mut tally = Tally { stored: 1, ..Tally::default() };
        tally.took(Duration::from_millis(10));
        for _ in 0..99 {
            tally.refuse("503");
        }
        let round = Round::of(&tally, Duration::from_secs(2), 1);
        assert!((9.9..10.1).contains(&round.p50_ms), "{}", round.p50_ms);
        assert_eq!((round.errors(), tally.failed()), (100, 99));
        assert!((round.per_second - 0.5).abs() < 1e-9);
    }

    #[test]
    fn an_answer_counts_by_when_it_came_and_a_latency_by_when_it_was_due() {
        let begin = crate::clock::test_start();
        let at = |millis| begin + Duration::from_millis(millis);
        let window = Window { from: at(1_000), until: at(4_000) };
        for (due, came, is_counted, is_timed) in [
            (500, 900, false, false),
            (900, 1_000, true, false),
            (1_000, 1_100, true, true),
            (3_990, 4_000, true, true),
            (3_990, 4_001, false, true),
        ] {
            let found = (window.has_answer(at(came)), window.has_call(at(due)));
            assert_eq!(found, (is_counted, is_timed), "due {due}, came {came}");
        }
    }

    #[test]
    fn absorbing_adds_everything() {
        let (mut a, mut b) = (Tally::default(), Tally::default());
        (a.stored, b.repeated) = (2, 3);
        a.refuse("503");
        b.refuse("503");
        b.refuse("broken");
        b.took(Duration::from_micros(700));
        a.absorb(&b);
        assert_eq!((a.acknowledged(), a.failed()), (5, 3));
        assert_eq!(a.refused["503"], 2);
        assert_eq!(a.longest(), Duration::from_micros(700));
    }

    #[test]
    fn a_latency_beyond_the_bound_is_kept_at_the_bound() {
        let mut tally = Tally::default();
        tally.took(Duration::from_hours(1));
        assert!(tally.longest() >= LATENCY_MAX);
    }

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle_two() {
        let spread = |figures: &[f64]| Spread::over(figures.iter().copied());
        assert_eq!(spread(&[]), None);
        let odd = spread(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.low, odd.high), (2.0, 1.0, 3.0));
        assert!((spread(&[4.0, 1.0, 2.0, 3.0]).unwrap().median - 2.5).abs() < 1e-9);
    }
}
