//! The settings of the two pools and of what they connect to.
//! Promises that what contradicts itself is named before anything connects.
//! Does not know whether Postgres allows so many connections; it says so itself.

use std::time::Duration;

use super::Reader;
use crate::store::{Limits, Schema, Target, Topology};

/// The names of one pool's settings.
struct Names {
    size: &'static str,
    min: &'static str,
    timeout: &'static str,
    target: &'static str,
    interval: &'static str,
}

const INTERACTIVE: Names = Names {
    size: "POOL_SIZE",
    min: "POOL_MIN",
    timeout: "DB_TIMEOUT_MS",
    target: "DB_QUEUE_TARGET_MS",
    interval: "DB_QUEUE_INTERVAL_MS",
};

const BACKGROUND: Names = Names {
    size: "BACKGROUND_POOL_SIZE",
    min: "BACKGROUND_POOL_MIN",
    timeout: "BACKGROUND_DB_TIMEOUT_MS",
    target: "BACKGROUND_DB_QUEUE_TARGET_MS",
    interval: "BACKGROUND_DB_QUEUE_INTERVAL_MS",
};

impl Reader<'_> {
    /// Bounds of the pool of requests and of the pool of background work; only the latter may have no connections.
    pub(super) fn pools(&mut self) -> (Limits, Limits) {
        let window = self.millis("DB_QUEUE_WINDOW_MS", 1_000..=600_000);
        let tenant_max = match self.size("POOL_TENANT_MAX", 0..=1_000) {
            0 => usize::MAX,
            most => most,
        };
        let usual = Limits { window, tenant_max, ..Limits::INTERACTIVE };
        let interactive = self.limits(&INTERACTIVE, 1, usual);
        let is_known = self.problems.iter().all(|problem| problem.name != INTERACTIVE.size);
        if is_known && tenant_max != usize::MAX && tenant_max > interactive.connections {
            let size = interactive.connections;
            self.add("POOL_TENANT_MAX", format!("{tenant_max} is more than POOL_SIZE = {size}"));
        }
        let background = self.limits(&BACKGROUND, 0, Limits { window, ..Limits::BACKGROUND });
        (interactive, background)
    }

    fn limits(&mut self, names: &Names, size_min: u64, usual: Limits) -> Limits {
        let connections = self.size(names.size, size_min..=1_000);
        let target = self.millis(names.target, 1..=600_000);
        let interval = self.millis(names.interval, 1..=3_600_000);
        if target > interval {
            let problem = format!("is longer than {}, the longest wait of all", names.interval);
            self.add(names.target, problem);
        }
        Limits {
            connections,
            connections_min: self.connections_min(names, connections),
            statement_timeout: self.millis(names.timeout, 100..=3_600_000),
            target,
            interval,
            ..usual
        }
    }

    /// How many connections are kept. A small pool keeps all of its own unless somebody says how many.
    fn connections_min(&mut self, names: &Names, connections: usize) -> usize {
        let is_own = (self.look_up)(names.min).is_some();
        let min = self.size(names.min, 1..=1_000);
        let is_known = self.problems.iter().all(|problem| problem.name != names.size);
        if is_own && is_known && min > connections && connections > 0 {
            self.add(names.min, format!("{min} is more than {} = {connections}", names.size));
        }
        min.min(connections)
    }

    /// Where Postgres is.
    pub(super) fn database(&mut self, schema: Option<&Schema>) -> Option<Target> {
        let target = self.target("DATABASE_URL", schema);
        if target.is_none() {
            self.is_missing("DATABASE_URL");
        }
        target
    }

    /// Where Postgres is when it is not where it should be, if anywhere.
    pub(super) fn failback(&mut self, schema: Option<&Schema>) -> Option<Target> {
        self.target("DATABASE_FAILBACK_URL", schema)
    }

    /// What stands before Postgres.
    pub(super) fn topology(&mut self) -> Topology {
        self.parse("DB_TOPOLOGY", Topology::parse).unwrap_or_default()
    }

    fn target(&mut self, name: &'static str, schema: Option<&Schema>) -> Option<Target> {
        let url = self.value(name)?;
        // Checked even when the schema cannot be used, so that every problem is named.
        let target = Target::parse(&url, schema.cloned().unwrap_or_default());
        if target.is_err() {
            // The text may hold a password, so it is not shown.
            self.add(name, "is not a postgres:// address".to_owned());
        }
        target.ok()
    }

    fn millis(&mut self, name: &'static str, range: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.number(name, range))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{LEAST, read};
    use super::*;

    fn with(settings: &[(&str, &str)]) -> Result<(Limits, Limits), Vec<&'static str>> {
        let config = read(&[&LEAST, settings].concat());
        config
            .map(|config| config.pools)
            .map_err(|problems| problems.0.into_iter().map(|problem| problem.name).collect())
    }

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_defaults_are_those_of_the_store() {
        let (interactive, background) = with(&[]).unwrap();
        assert_eq!(interactive, Limits::INTERACTIVE);
        assert_eq!(background, Limits::BACKGROUND);
    }

    #[test]
    fn each_pool_has_its_own() {
        let (interactive, background) = with(&[
            ("POOL_SIZE", "4"),
            ("POOL_MIN", "3"),
            ("DB_QUEUE_TARGET_MS", "20"),
            ("DB_QUEUE_INTERVAL_MS", "400"),
            ("BACKGROUND_POOL_MIN", "1"),
            ("BACKGROUND_DB_QUEUE_TARGET_MS", "5000"),
            ("DB_QUEUE_WINDOW_MS", "2000"),
        ])
        .unwrap();
        assert_eq!((interactive.connections, interactive.connections_min), (4, 3));
        assert_eq!((interactive.target, interactive.interval), (millis(20), millis(400)));
        assert_eq!((background.connections, background.connections_min), (10, 1));
        assert_eq!((background.target, background.interval), (millis(5_000), millis(5_000)));
        assert_eq!((interactive.window, background.window), (millis(2_000), millis(2_000)));
    }

    #[test]
    fn a_small_pool_needs_no_word_about_how_many_it_keeps() {
        let (interactive, background) =
            with(&[("POOL_SIZE", "1"), ("BACKGROUND_POOL_SIZE", "0")]).unwrap();
        assert_eq!((interactive.connections_min, background.connections_min), (1, 0));
        assert!(with(&[("BACKGROUND_POOL_SIZE", "0"), ("BACKGROUND_POOL_MIN", "2")]).is_ok());
    }

    #[test]
    fn contradictions_and_nonsense_are_named_all_at_once() {
        let names = with(&[
            ("POOL_SIZE", "2"),
            ("POOL_MIN", "3"),
            ("DB_QUEUE_TARGET_MS", "1001"),
            ("BACKGROUND_DB_QUEUE_TARGET_MS", "0"),
            ("BACKGROUND_DB_QUEUE_INTERVAL_MS", "-1"),
            ("BACKGROUND_POOL_SIZE", "1"),
            ("BACKGROUND_POOL_MIN", "2"),
            ("DB_QUEUE_WINDOW_MS", "0"),
            ("READY_DB_QUEUE_MS", "soon"),
            ("DB_TOPOLOGY", "star"),
            ("DATABASE_FAILBACK_URL", "mysql://h/d"),
        ])
        .unwrap_err();
        for name in [
            "POOL_MIN",
            "DB_QUEUE_TARGET_MS",
            "BACKGROUND_DB_QUEUE_TARGET_MS",
            "BACKGROUND_DB_QUEUE_INTERVAL_MS",
            "BACKGROUND_POOL_MIN",
            "DB_QUEUE_WINDOW_MS",
            "READY_DB_QUEUE_MS",
            "DB_TOPOLOGY",
            "DATABASE_FAILBACK_URL",
        ] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert!(!names.contains(&"POOL_SIZE"), "{names:?}");
    }

    #[test]
    fn the_other_database_is_optional_and_its_password_is_not_shown() {
        let config = read(&LEAST).unwrap();
        assert!(config.failback.is_none());
        assert_eq!(config.database.topology(), Topology::Direct);
        let other = [
            ("DATABASE_FAILBACK_URL", "postgres://b:hushhush@other/d"),
            ("DB_TOPOLOGY", "transaction_pooler"),
        ];
        let config = read(&[&LEAST[..], &other].concat()).unwrap();
        let store = config.store();
        let both = [Some(&store.target), store.failback.as_ref()];
        assert!(both.iter().flatten().all(|to| to.topology() == Topology::TransactionPooler));
        assert_eq!(both.iter().flatten().count(), 2);
        assert!(!format!("{config:?} {store:?}").contains("hushhush"));
    }
}
