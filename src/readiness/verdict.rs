//! Pure: from the states of the checks to ready or not, for each view of the server.
//! Promises that the table of [`View::needs`] is the whole rule.
//! Does not hold the states; the board does.
//!
//! Sends need the log alone, so a missing database never turns [`View::Ingest`]. [`View::All`] is for a load
//! balancer that routes everything to one place: it waits for the database once, when the server starts, so that a
//! rollout with a wrong address stops; after that a database outage leaves it ready, because taking every node out
//! for it would turn a partial outage (some reads) into a whole one. A node that makes its readers wait is another
//! matter: others may do better, so that both views of reads turn by it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// One thing that must work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The log can be reached, its streams are there and the tails have caught up.
    Log,
    /// Postgres answers.
    Database,
    /// The schema is the one that this build needs.
    Migrations,
    /// Requests get a connection soon enough.
    Pool,
    /// Log, database and migrations worked together at least once since the process began.
    Started,
    /// The server is not on its way out.
    Draining,
}

impl Check {
    /// All of them, each at the place of its own number.
    pub const ALL: [Self; 6] =
        [Self::Log, Self::Database, Self::Migrations, Self::Pool, Self::Started, Self::Draining];

    /// Its name in paths and in the verbose answer.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Database => "database",
            Self::Migrations => "migrations",
            Self::Pool => "pool",
            Self::Started => "started",
            Self::Draining => "draining",
        }
    }

    /// The check of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|check| check.name() == name)
    }
}

/// Whether a check works, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Why it does not work; `None` when it does.
    pub failure: Option<&'static str>,
    /// When that last changed.
    pub since: Instant,
}

/// For which traffic the server is asked to be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// All of it.
    All,
    /// Sends.
    Ingest,
    /// History and everything else that reads Postgres.
    Reads,
    /// One check by itself.
    Only(Check),
}

impl View {
    /// Whether this view needs this check.
    pub fn needs(self, check: Check) -> bool {
        match self {
            Self::All => {
                matches!(check, Check::Log | Check::Pool | Check::Started | Check::Draining)
            }
            Self::Ingest => matches!(check, Check::Log | Check::Draining),
            Self::Reads => check != Check::Started,
            Self::Only(only) => check == only,
        }
    }
}

/// One line of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Which check.
    pub check: Check,
    /// Its state.
    pub state: State,
    /// Whether the view needs it and the caller did not exclude it.
    pub decides: bool,
}

/// The verdict with what it rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether everything that decides works.
    pub ready: bool,
    /// Every check, or the one that was asked for.
    pub lines: Vec<Line>,
}

/// Whether everything that a server needs to start works at this moment.
pub fn has_started(states: &[State; Check::ALL.len()]) -> bool {
    [Check::Log, Check::Database, Check::Migrations]
        .iter()
        .all(|check| states[*check as usize].failure.is_none())
}

/// The verdict of a view. Excluded checks are shown but do not decide.
///
/// While the server starts, excluding what it waits for excludes the waiting too.
pub fn judge(states: &[State; Check::ALL.len()], view: View, excluded: &[Check]) -> Report {
    let waits_for_excluded =
        excluded.iter().any(|check| matches!(check, Check::Database | Check::Migrations));
    let decides = |check: Check| {
        let waived = check == Check::Started && waits_for_excluded;
        view.needs(check) && !excluded.contains(&check) && !waived
    };
    let shown = |check: &Check| !matches!(view, View::Only(only) if only != *check);
    let lines: Vec<Line> = Check::ALL
        .into_iter()
        .filter(shown)
        .map(|check| Line { check, state: states[check as usize], decides: decides(check) })
        .collect();
    Report { ready: lines.iter().all(|line| !line.decides || line.state.failure.is_none()), lines }
}

impl Report {
    /// The verbose answer: a line a check, then the verdict. Of a fixed shape, for people and for `grep`.
    pub fn text(&self, now: Instant) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let name = line.check.name();
            let age = now.saturating_duration_since(line.state.since).as_secs();
            let aside = if line.decides { "" } else { " (does not decide)" };
            let written = match line.state.failure {
                None => writeln!(text, "[+]{name} ok for {age} s{aside}"),
                Some(why) => writeln!(text, "[-]{name} failed for {age} s: {why}{aside}"),
            };
            debug_assert!(written.is_ok(), "a String takes whatever is written to it");
        }
        text.push_str(self.verdict_line());
        text
    }

    /// The last line of the verbose answer.
    pub fn verdict_line(&self) -> &'static str {
        if self.ready { "readyz check passed\n" } else { "readyz check failed\n" }
    }
}

/// The line that tells how far Postgres is behind; it never decides.
pub fn lag_line(events: u64, oldest: Duration) -> String {
    format!("[i]projection lag {events} events, oldest {} ms\n", oldest.as_millis())
}

/// The line that tells how long requests wait for a connection; [`Check::Pool`] decides by it.
pub fn wait_line(wait: Duration) -> String {
    format!("[i]mean wait for a connection {} ms\n", wait.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::test_start;

    const GOOD: &[Check] = &Check::ALL;

    fn states(good: &[Check]) -> [State; Check::ALL.len()] {
        let since = test_start();
        Check::ALL
            .map(|check| State { failure: (!good.contains(&check)).then_some("broken"), since })
    }

    fn without(broken: Check) -> [State; Check::ALL.len()] {
        let good: Vec<_> = GOOD.iter().copied().filter(|c| *c != broken).collect();
        states(&good)
    }

    #[test]
    fn each_view_turns_on_exactly_what_it_needs() {
        //            log    database migrations pool started draining
        let table = [
            (View::All, [false, true, true, false, false, false]),
            (View::Ingest, [false, true, true, true, true, false]),
            (View::Reads, [false, false, false, false, true, false]),
            (View::Only(Check::Database), [true, false, true, true, true, true]),
        ];
        for (view, expected) in table {
            for (check, ready) in Check::ALL.into_iter().zip(expected) {
                let report = judge(&without(check), view, &[]);
                assert_eq!(report.ready, ready, "{view:?} without {check:?}");
            }
            assert!(judge(&states(GOOD), view, &[]).ready);
        }
    }

    #[test]
    fn an_excluded_check_is_shown_and_does_not_decide() {
        let report = judge(&without(Check::Log), View::All, &[Check::Log]);
        assert!(report.ready);
        assert_eq!(report.lines.len(), Check::ALL.len());
        let waiting = states(&[Check::Log, Check::Pool, Check::Draining]);
        assert!(!judge(&waiting, View::All, &[]).ready);
        assert!(judge(&waiting, View::All, &[Check::Database]).ready);
    }

    #[test]
    fn the_verbose_answer_has_a_line_a_check_and_the_verdict() {
        let report = judge(&without(Check::Database), View::All, &[]);
        let text = report.text(test_start());
        assert!(text.contains("[+]log ok"), "{text}");
        assert!(text.contains("[-]database failed for 0 s: broken (does not decide)"), "{text}");
        assert!(text.ends_with("readyz check passed\n"), "{text}");
        assert_eq!(text.lines().count(), Check::ALL.len() + 1);
    }

    #[test]
    fn every_check_is_found_by_its_name_and_stands_at_its_place() {
        for (place, check) in Check::ALL.into_iter().enumerate() {
            assert_eq!(check as usize, place);
            assert_eq!(Check::parse(check.name()), Some(check));
        }
        assert_eq!(Check::parse("ingest"), None);
    }
}
