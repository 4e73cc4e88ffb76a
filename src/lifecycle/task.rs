//! Pure: the table of tasks. In which order they start, what their failure means, how they stop.
//! Promises that every spawned task has a row here; stopping goes through the rows from the last to the first.
//! Does not run anything.

use std::time::Duration;

/// Every kind of task, in the order in which they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Gathers metrics and trims their histories.
    Upkeep,
    /// Keeps the directory in memory level with its bucket.
    Directory,
    /// Keeps database connections in order.
    Pool,
    /// Purges what every reader of the log has passed.
    Janitor,
    /// Writes the log to Postgres.
    Projection,
    /// Saves heads, so that a restart without Postgres knows them.
    Snapshot,
    /// Reads a partition and hands its records to the writer.
    Follower,
    /// Writes to a partition.
    Writer,
    /// Queues deliveries from the log.
    Routing,
    /// Attempts deliveries.
    Delivery,
    /// Accepts connections and answers requests.
    Door,
}

/// What the failure of a task means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// It starts again after a pause.
    Restart(Backoff),
    /// The server drains and ends with an error.
    Stop,
}

/// How a task is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// It may finish what it has, for at most this long.
    Drain(Duration),
    /// It is ended at once; it holds nothing that matters.
    Drop,
}

/// Pauses that double from `first` up to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Pause after the first failure.
    pub first: Duration,
    /// Longest pause.
    pub max: Duration,
}

impl Backoff {
    /// The pause after the n-th failure in a row, counted from 1.
    pub fn pause(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        self.first.saturating_mul(1 << doublings).min(self.max)
    }
}

/// Fast enough that a blink of the database or the log goes unnoticed, slow enough not to add to an outage.
const PATIENT: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(5) };

impl Kind {
    /// All rows, in the order in which they start.
    pub const ALL: [Self; 11] = [
        Self::Upkeep,
        Self::Directory,
        Self::Pool,
        Self::Janitor,
        Self::Projection,
        Self::Snapshot,
        Self::Follower,
        Self::Writer,
        Self::Routing,
        Self::Delivery,
        Self::Door,
    ];

    /// What this task's failure means.
    pub const fn on_error(self) -> OnError {
        match self {
            Self::Upkeep
            | Self::Directory
            | Self::Pool
            | Self::Janitor
            | Self::Projection
            | Self::Routing
            | Self::Delivery
            | Self::Snapshot => OnError::Restart(PATIENT),
            Self::Follower | Self::Writer | Self::Door => OnError::Stop,
        }
    }

    /// How this task is stopped.
    pub const fn on_stop(self) -> OnStop {
        match self {
            Self::Upkeep | Self::Directory | Self::Janitor | Self::Follower => OnStop::Drop,
            Self::Snapshot | Self::Routing => OnStop::Drain(Duration::from_secs(3)),
            Self::Pool | Self::Projection | Self::Writer => OnStop::Drain(Duration::from_secs(5)),
            // An attempt may take longer than a stop should; what is cut short is attempted again.
            Self::Delivery => OnStop::Drain(Duration::from_secs(4)),
            Self::Door => OnStop::Drain(Duration::from_secs(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lists_every_kind_at_its_own_place() {
        for (place, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, place);
        }
    }

    #[test]
    fn doors_close_before_writers_drain_and_writers_before_projection() {
        assert!(Kind::Door > Kind::Writer);
        assert!(Kind::Writer > Kind::Projection);
        assert!(Kind::Projection > Kind::Directory);
    }

    #[test]
    fn pauses_double_up_to_their_bound() {
        let backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(1) };
        let pauses: Vec<_> = (1..=6).map(|n| backoff.pause(n).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(backoff.pause(u32::MAX), Duration::from_secs(1));
    }
}
