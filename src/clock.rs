//! The only reader of time: `Instant` measures, `Timestamp` is stored.
//! Promises that every other file receives `now` as an argument or asks a [`Clock`] it was given.
//! Does not sleep and does not schedule; loops do, from the wake times that pure cores name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A point in time as it is stored and shown: microseconds since the Unix epoch, UTC.
///
/// Microseconds because that is what Postgres' `timestamptz` keeps; a finer value would not survive it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

/// The latest time that is accepted from outside: the end of the year 9999, as RFC 3339 can write it.
const MICROS_MAX: i64 = 253_402_300_799_999_999;

impl Timestamp {
    /// From microseconds since the epoch; `None` outside of the years 1970 to 9999.
    pub fn from_micros(micros: i64) -> Option<Self> {
        (0..=MICROS_MAX).contains(&micros).then_some(Self(micros))
    }

    /// Microseconds since the epoch.
    pub fn micros(self) -> i64 {
        self.0
    }

    /// Whole milliseconds since the epoch, as UUIDv7 carries them.
    pub fn millis(self) -> u64 {
        u64::try_from(self.0 / 1_000).unwrap_or(0)
    }

    /// This time moved back by `by`, never before the epoch.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros).max(0))
    }

    /// This time moved forward by `by`, never past the year 9999.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros).min(MICROS_MAX))
    }

    /// How long ago `earlier` was, seen from this time; zero when it lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The same point in time in the type that Postgres and the HTTP libraries speak.
    pub fn to_offset(self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// From the type that Postgres and the HTTP libraries speak, cut to microseconds.
    pub fn from_offset(at: OffsetDateTime) -> Option<Self> {
        i64::try_from(at.unix_timestamp_nanos().div_euclid(1_000)).ok().and_then(Self::from_micros)
    }
}

/// A text that is not an RFC 3339 time between 1970 and 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time between the years 1970 and 9999")]
pub struct BadTimestamp;

impl FromStr for Timestamp {
    type Err = BadTimestamp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at = OffsetDateTime::parse(text, &Rfc3339).ok();
        at.and_then(Self::from_offset).ok_or(BadTimestamp)
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC, always with six digits of fraction, so that texts sort as times do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.to_offset();
        let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
        let (hour, minute, second, micro) = (at.hour(), at.minute(), at.second(), at.microsecond());
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micro:06}Z")
    }
}

/// Where time comes from. Cheap to clone; all clones of a manual clock move together.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Microseconds by which wall-clock readings are shifted; tests and clock-jump scenarios move it.
    shift: Arc<AtomicI64>,
}

impl Clock {
    /// The machine's own clock.
    pub fn system() -> Self {
        Self { shift: Arc::new(AtomicI64::new(0)) }
    }

    /// The monotonic time, for measuring and for deadlines.
    #[expect(clippy::disallowed_methods, reason = "this is the one reader of the monotonic clock")]
    #[expect(clippy::unused_self, reason = "to ask for the time, one must have been given a clock")]
    pub fn now(&self) -> Instant {
        Instant::now()
    }

    /// The wall-clock time, for what is stored and shown.
    #[expect(clippy::disallowed_methods, reason = "this is the one reader of the wall clock")]
    pub fn timestamp(&self) -> Timestamp {
        let nanos = OffsetDateTime::now_utc().unix_timestamp_nanos();
        let micros = i64::try_from(nanos / 1_000).unwrap_or(0);
        Timestamp(micros.saturating_add(self.shift.load(Ordering::Relaxed)).clamp(0, MICROS_MAX))
    }

    /// Shifts every later wall-clock reading of this clock and its clones by `micros`.
    pub fn shift_wall(&self, micros: i64) {
        self.shift.fetch_add(micros, Ordering::Relaxed);
    }
}

/// A start instant for tests of pure cores, which then only add durations to it.
#[expect(clippy::disallowed_methods, reason = "an arbitrary anchor; tests only add to it")]
pub fn test_start() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_survives_its_text() {
        for micros in [0, 1, 999_999, 1_000_000, 1_764_000_000_123_456, MICROS_MAX] {
            let at = Timestamp::from_micros(micros).unwrap();
            assert_eq!(at.to_string().parse(), Ok(at));
            assert_eq!(Timestamp::from_offset(at.to_offset()), Some(at));
        }
    }

    #[test]
    fn times_outside_of_what_can_be_written_are_refused() {
        assert_eq!(Timestamp::from_micros(-1), None);
        assert_eq!(Timestamp::from_micros(MICROS_MAX + 1), None);
        for text in ["", "now", "1969-12-31T23:59:59Z", "2026-13-01T00:00:00Z", "2026-01-01"] {
            assert_eq!(text.parse::<Timestamp>(), Err(BadTimestamp), "{text}");
        }
    }

    #[test]
    fn a_zone_is_turned_into_utc() {
        let at: Timestamp = "2026-03-01T12:00:00.5+02:00".parse().unwrap();
        assert_eq!(at.to_string(), "2026-03-01T10:00:00.500000Z");
    }

    #[test]
    fn distances_never_go_below_zero() {
        let early = Timestamp::from_micros(5).unwrap();
        let late = Timestamp::from_micros(9).unwrap();
        assert_eq!(late.since(early), Duration::from_micros(4));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(early.minus(Duration::from_secs(1)).micros(), 0);
    }
}
