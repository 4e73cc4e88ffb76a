//! Pure: when a delivery is tried again, by its own schedule and by what the receiver asks for.
//! Promises that a pause lies within the policy's bounds whatever a receiver says.
//! Does not draw the jitter; a number from [0, 1) is an argument.

use std::time::Duration;

use time::PrimitiveDateTime;
use time::macros::format_description;

use crate::clock::Timestamp;
use crate::directory::Retry;

/// Pauses after the first, the second … attempt, in seconds: 5 s, 30 s, 2 min, 10 min, 30 min, 2 h, 5 h, 10 h.
const PAUSES: [u64; 8] = [5, 30, 120, 600, 1_800, 7_200, 18_000, 36_000];

/// How far a pause is moved at random, as a share of it: receivers are not all tried at the same moment.
const JITTER: f64 = 0.2;

/// Bounds of what a receiver may ask for.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

/// Longest `Retry-After` that is looked at, in bytes; a date has 29.
const RETRY_AFTER_BYTES_MAX: usize = 64;

/// How often and how patiently a delivery is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Attempts in all, the first one included; at least 1.
    pub attempts_max: u32,
    /// The pause after the first attempt; later ones grow as the default's do.
    pub base: Duration,
    /// The longest pause.
    pub cap: Duration,
}

impl Default for Policy {
    /// Nine attempts over 18 hours.
    fn default() -> Self {
        let seconds = |index: usize| Duration::from_secs(PAUSES[index]);
        Self { attempts_max: 9, base: seconds(0), cap: seconds(PAUSES.len() - 1) }
    }
}

impl Policy {
    /// What a channel asks for; what it leaves out is the default.
    pub fn of(settings: Option<Retry>) -> Self {
        let (settings, default) = (settings.unwrap_or_default(), Self::default());
        let base = settings.base_seconds.map_or(default.base, Duration::from_secs);
        let cap = settings.cap_seconds.map_or_else(|| default.cap.max(base), Duration::from_secs);
        let attempts = settings.max_attempts.and_then(|attempts| u32::try_from(attempts).ok());
        Self { attempts_max: attempts.unwrap_or(default.attempts_max), base, cap }
    }

    /// The pause after this attempt (1 is the first), moved by up to 20 % either way; `None` when it was the last.
    pub fn pause_after(&self, attempt: u32, jitter: f64) -> Option<Duration> {
        if attempt >= self.attempts_max {
            return None;
        }
        let index = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        let growth = PAUSES[index.min(PAUSES.len() - 1)];
        let pause = self.base.as_secs_f64() * precise(growth) / precise(PAUSES[0]);
        let moved = pause * (1.0 - JITTER + 2.0 * JITTER * jitter.clamp(0.0, 1.0));
        Some(Duration::from_secs_f64(moved.min(self.cap.as_secs_f64())))
    }
}

/// Small whole numbers are exact as floats.
#[expect(clippy::cast_precision_loss, reason = "36 000 at most")]
fn precise(number: u64) -> f64 {
    number as f64
}

/// What a `Retry-After` asks for: seconds or an HTTP date (RFC 9110, section 10.2.3), clamped to 1 s … 1 h. What is
/// neither asks for nothing.
pub fn retry_after(header: &[u8], now: Timestamp) -> Option<Duration> {
    let text = std::str::from_utf8(header).ok()?.trim();
    if text.len() > RETRY_AFTER_BYTES_MAX {
        return None;
    }
    let asked = if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a number has are as long as anything.
        text.parse().map_or(RETRY_AFTER_MAX, Duration::from_secs)
    } else {
        http_date(text)?.since(now)
    };
    Some(asked.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX))
}

/// The preferred form of a date in HTTP; its two obsolete forms are not sent by anything of this century.
fn http_date(text: &str) -> Option<Timestamp> {
    let form = format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    let date = PrimitiveDateTime::parse(text, form).ok()?;
    Timestamp::from_offset(date.assume_utc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_schedule_is_the_documented_one() {
        let policy = Policy::default();
        let pauses: Vec<_> = (1..=9)
            .map(|n| policy.pause_after(n, 0.5).map(|p| (p + Duration::from_millis(500)).as_secs()))
            .collect();
        let expected: Vec<_> = PAUSES.iter().map(|p| Some(*p)).chain([None]).collect();
        assert_eq!(pauses, expected);
    }

    #[test]
    fn a_channel_scales_and_caps_the_schedule() {
        let policy = Policy::of(Some(Retry {
            max_attempts: Some(12),
            base_seconds: Some(1),
            cap_seconds: Some(100),
        }));
        let seconds: Vec<_> =
            (1..=12).map(|n| policy.pause_after(n, 0.5).map(|p| p.as_secs())).collect();
        let expected = [1, 6, 24, 100, 100, 100, 100, 100, 100, 100, 100].map(Some);
        assert_eq!(seconds[..11], expected);
        assert_eq!(seconds[11], None);
        assert_eq!(
            Policy::of(Some(Retry { base_seconds: Some(3_600), ..Retry::default() })).cap,
            Duration::from_hours(10)
        );
    }

    #[test]
    fn jitter_moves_a_pause_by_a_fifth_at_most() {
        let policy = Policy::default();
        assert_eq!(policy.pause_after(1, 0.0), Some(Duration::from_secs(4)));
        assert_eq!(policy.pause_after(1, 1.0), Some(Duration::from_secs(6)));
        assert_eq!(
            policy.pause_after(8, 1.0),
            Some(Duration::from_hours(10)),
            "never beyond the cap"
        );
    }

    #[test]
    fn what_a_receiver_asks_for_is_clamped_and_nonsense_asks_for_nothing() {
        let now = "2026-11-30T12:00:00Z".parse().unwrap();
        let digits = "9".repeat(40);
        for (header, seconds) in [
            ("7", Some(7)),
            (" 7 ", Some(7)),
            ("0", Some(1)),
            ("3601", Some(3_600)),
            (digits.as_str(), Some(3_600)),
            ("1e30", None),
            ("-5", None),
            ("1.5", None),
            ("nan", None),
            ("", None),
            ("Mon, 30 Nov 2026 12:00:30 GMT", Some(30)),
            ("Mon, 30 Nov 2026 11:00:00 GMT", Some(1)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(1)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(3_600)),
            ("Mon, 30 Nov 2026 12:00:30 CET", None),
            ("Mon, 31 Feb 2026 12:00:30 GMT", None),
        ] {
            let asked = retry_after(header.as_bytes(), now).map(|asked| asked.as_secs());
            assert_eq!(asked, seconds, "{header:?}");
        }
        assert_eq!(retry_after(&[0xff, b'7'], now), None);
        assert_eq!(retry_after(&[b'9'; 5_000], now), None);
    }
}
