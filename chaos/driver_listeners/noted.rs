//! Pure: what a listener noted: each event with its id, when it came, and whatever no listener should ever see.
//! Promises to know a hole, a double, a silence, and an event that is not the one that is stored.
//! Does not listen.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay::event::MessageId;
use forebay::live::gap::Gap;
use serde::Deserialize;

/// Most faults of one listener that are told; one is enough to fail.
const FAULTS_MAX: usize = 5;

/// What a listener noted.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// By what it listens.
    pub(crate) by: &'static str,
    /// The events that came, by their seq; one that named no id has none.
    pub(crate) seen: BTreeMap<u64, Option<MessageId>>,
    /// When each came.
    pub(crate) at: Vec<Instant>,
    /// Connections that ended.
    pub(crate) reconnects: u64,
    /// Gaps that were announced.
    pub(crate) gaps: Vec<Gap>,
    /// What must not be.
    pub(crate) faults: Vec<String>,
}

impl Noted {
    /// Notes what must not be.
    pub(crate) fn fault(&mut self, text: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(text);
        }
    }

    /// An event comes after a client has put everything in order.
    pub(crate) fn note(&mut self, seq: u64, id: Option<MessageId>, now: Instant) {
        let told = |seq: u64| self.gaps.iter().any(|gap| gap.from <= seq && seq <= gap.to);
        let contiguous = self.seen.len() as u64;
        let newest = self.seen.last_key_value().map(|(seq, _)| *seq);
        let from = if newest == Some(contiguous) { contiguous + 1 } else { 1 };
        let hole = (from..seq).find(|before| !self.seen.contains_key(before) && !told(*before));
        if let Some(hole) = hole {
            self.fault(format!("seq {seq} came before {hole}, and no gap was announced"));
        }
        if self.seen.insert(seq, id).is_some() {
            self.fault(format!("seq {seq} came twice"));
        }
        self.at.push(now);
    }

    /// An event comes on the connection itself, where nothing puts events in order, after the one at `last`.
    pub(crate) fn note_next(
        &mut self,
        last: u64,
        (seq, id): (u64, Option<MessageId>),
        now: Instant,
    ) {
        if seq == last + 1 {
            self.at.push(now);
        } else {
            self.fault(format!("seq {seq} came after {last}"));
        }
        self.seen.insert(seq, id);
    }

    /// The longest time between these moments in which nothing came, up to the later one: who hears nothing to the end is
    /// not passed over.
    pub(crate) fn longest_silence(&self, from: Instant, to: Instant) -> Duration {
        let within = self.at.iter().copied().filter(|at| (from..to).contains(at));
        let (mut last, mut longest) = (from, Duration::ZERO);
        for at in within.chain([to]) {
            longest = longest.max(at.saturating_duration_since(last));
            last = at;
        }
        longest
    }

    /// Whether anything came after this moment.
    pub(crate) fn heard_after(&self, moment: Instant) -> bool {
        self.at.last().is_some_and(|last| *last > moment)
    }

    /// The first event that came and is not the one that is stored at its seq.
    pub(crate) fn differing(&self, stored: &BTreeMap<u64, MessageId>) -> Option<String> {
        self.seen.iter().find_map(|(seq, came)| match (came, stored.get(seq)) {
            (Some(came), Some(held)) if came == held => None,
            (Some(came), Some(held)) => Some(format!("seq {seq} came as {came}, stored is {held}")),
            (None, Some(held)) => Some(format!("seq {seq} came without an id, stored is {held}")),
            (_, None) => Some(format!("seq {seq} came, and nothing is stored there")),
        })
    }
}

/// The id in an event's JSON.
pub(crate) fn id_of(json: &str) -> Option<MessageId> {
    #[derive(Deserialize)]
    struct Named {
        id: Option<String>,
    }
    let named: Named = serde_json::from_str(json).ok()?;
    MessageId::parse(&named.id?).ok()
}

#[cfg(test)]
mod tests {
    use forebay::clock::Clock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn id(number: u8) -> MessageId {
        MessageId::derive([number; 16])
    }

    fn noted(seqs: &[u64], gaps: &[Gap]) -> Vec<String> {
        let mut noted = Noted { gaps: gaps.to_vec(), ..Noted::default() };
        let now = Clock::system().now();
        for seq in seqs {
            noted.note(*seq, None, now);
        }
        noted.faults
    }

    #[test]
    fn order_without_holes_or_doubles_is_no_fault() {
        assert!(noted(&[1, 2, 3], &[]).is_empty());
        let gap = Gap { from: 2, to: 3 };
        assert!(noted(&[1, 4, 2, 3, 5], &[gap]).is_empty());
    }

    #[test]
    fn a_hole_and_a_double_are_faults() {
        assert_eq!(noted(&[1, 3], &[]).len(), 1);
        assert_eq!(noted(&[1, 2, 2], &[]).len(), 1);
        assert_eq!(noted(&[2], &[]).len(), 1);
        assert_eq!(noted(&[1, 5], &[Gap { from: 2, to: 3 }]).len(), 1);
    }

    #[test]
    fn on_a_connection_each_seq_is_the_next_one() {
        let now = Clock::system().now();
        let faults = |seqs: &[u64]| {
            let (mut noted, mut last) = (Noted::default(), 0);
            for seq in seqs {
                noted.note_next(last, (*seq, None), now);
                last = *seq;
            }
            noted.faults.len()
        };
        for (seqs, wanted) in [(&[1, 2, 3][..], 0), (&[1, 3], 1), (&[1, 1], 1), (&[2], 1)] {
            assert_eq!(faults(seqs), wanted, "{seqs:?}");
        }
    }

    #[test]
    fn a_silence_counts_from_the_begin_and_to_the_end() {
        let begun = Clock::system().now();
        let longest = |seconds: &[u32]| {
            let at = seconds.iter().map(|second| begun + SECOND * *second).collect();
            Noted { at, ..Noted::default() }.longest_silence(begun, begun + SECOND * 10)
        };
        for (heard, wanted) in [
            (&[][..], 10),
            (&[1, 2, 3, 4, 5, 6, 7, 8, 9], 1),
            (&[1, 2, 3], 7),
            (&[4, 5, 6, 7, 8, 9], 4),
            (&[1, 2, 7, 8, 9], 5),
            (&[5, 12], 5),
        ] {
            assert_eq!(longest(heard), SECOND * wanted, "{heard:?}");
        }
    }

    #[test]
    fn who_hears_nothing_after_the_heal_is_known() {
        let healed = Clock::system().now();
        let heard =
            |at: &[Instant]| Noted { at: at.to_vec(), ..Noted::default() }.heard_after(healed);
        assert!(heard(&[healed, healed + SECOND]));
        assert!(!heard(&[healed]) && !heard(&[]));
    }

    #[test]
    fn another_event_than_the_stored_one_is_known_by_its_id() {
        let stored = BTreeMap::from([(1, id(1)), (2, id(2))]);
        let differs = |seen: &[(u64, Option<MessageId>)]| {
            let seen = seen.iter().copied().collect();
            Noted { seen, ..Noted::default() }.differing(&stored).is_some()
        };
        for (seen, wanted) in [
            (&[(1, Some(id(1))), (2, Some(id(2)))][..], false),
            (&[(1, Some(id(1)))], false),
            (&[(1, Some(id(2)))], true),
            (&[(1, None)], true),
            (&[(3, Some(id(3)))], true),
        ] {
            assert_eq!(differs(seen), wanted, "{seen:?}");
        }
    }

    #[test]
    fn the_id_of_an_event_is_read_and_a_tombstone_has_none() {
        let json = format!(r#"{{"frame":"event","seq":1,"id":"{}","text":"x"}}"#, id(1));
        assert_eq!(id_of(&json), Some(id(1)));
        assert_eq!(id_of(r#"{"frame":"tombstone","seq":1,"reason":"duplicate"}"#), None);
        assert_eq!(id_of("{"), None);
    }
}
