//! The configuration of a server: read once, checked whole, before anything binds.
//! Promises that every problem is named at once, and that secrets are never shown.
//! Does not reload; a server is restarted to be configured anew.

#[cfg(feature = "broken")]
pub mod broken;
mod delivery;
mod pools;
pub mod table;
mod unknown;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::delivery as deliveries;
use crate::event::Partitions;
use crate::event::partition::PARTITIONS_MAX;
use crate::ingest::Policy;
use crate::journal;
use crate::log::{self, Namespace};
use crate::store::{self, Schema, Target};

pub use unknown::unknown_names;

pub use table::{Setting, TABLE};

/// Shortest operator token.
const ADMIN_TOKEN_CHARS_MIN: usize = 16;
/// Shortest key for tokens: as long as what HMAC-SHA-256 gives (RFC 7518, 3.2).
const TOKEN_SECRET_BYTES_MIN: usize = 32;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Everything that a server is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The database.
    pub database: Target,
    /// The database that is used when that one fails.
    pub failback: Option<Target>,
    /// Bounds of the two pools.
    pub pools: (store::Limits, store::Limits),
    /// The log.
    pub log: log::Settings,
    /// Where requests are taken.
    pub listen: SocketAddr,
    /// The operator's token.
    pub admin_token: Secret,
    /// The key that signs end users' tokens, unless the nodes agree on one.
    pub token_secret: Option<Secret>,
    /// How much of the log is remembered.
    pub memory: journal::Settings,
    /// How long records stay in the log after Postgres has them.
    pub log_retention: Duration,
    /// Sends of a tenant on this node.
    pub quota: Option<Policy>,
    /// Most open connections.
    pub connections_max: usize,
    /// Whether this node writes the log to Postgres.
    pub projects: bool,
    /// Whether this node brings events from the log into the queues of deliveries.
    pub routes: bool,
    /// How deliveries are made; `None` when this node makes none.
    pub delivery: Option<deliveries::Settings>,
    /// Base of `Retry-After`.
    pub retry_after: Duration,
    /// The mean wait for a connection at which the server is not ready; zero for never.
    pub ready_wait: Duration,
    /// How log lines are written.
    pub logging: Logging,
}

/// How log lines are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// Which ones.
    pub filter: String,
    /// Whether as JSON.
    pub is_json: bool,
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct Problem {
    /// The setting.
    pub name: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// Every setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the configuration has {} problem(s):\n{}", .0.len(), .0.iter().map(|p| format!("  {p}")).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<Problem>);

/// Reads the environment, the one place that does.
#[expect(clippy::disallowed_methods, reason = "this is the one reader of the environment")]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Reads settings one by one and keeps what is wrong with them.
struct Reader<'a> {
    look_up: &'a dyn Fn(&str) -> Option<String>,
    problems: Vec<Problem>,
}

impl Config {
    /// Reads and checks every setting of [`TABLE`] through `look_up`.
    ///
    /// # Errors
    /// [`Problems`], all of them.
    pub fn read(look_up: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problems> {
        let mut reader = Reader { look_up, problems: Vec::new() };
        let schema = reader.parse("FOREBAY_SCHEMA", |text| Schema::parse(text).ok());
        let topology = reader.topology();
        let behind = |target: Target| target.behind(topology);
        let database = reader.database(schema.as_ref()).map(behind);
        let failback = reader.failback(schema.as_ref()).map(behind);
        let log = reader.log();
        let listen = reader.parse("FOREBAY_LISTEN", |text| text.parse().ok());
        let admin_token = reader.secret("FOREBAY_ADMIN_TOKEN", ADMIN_TOKEN_CHARS_MIN);
        let is_odd =
            |token: &Secret| token.0.contains(char::is_whitespace) || token.0.starts_with("fbk_");
        if admin_token.as_ref().is_some_and(is_odd) {
            let problem = "has a blank, or begins with fbk_ as tenants' keys do".to_owned();
            reader.add("FOREBAY_ADMIN_TOKEN", problem);
        }
        if admin_token.is_none() {
            reader.is_missing("FOREBAY_ADMIN_TOKEN");
        }
        let token_secret = reader.secret("FOREBAY_TOKEN_SECRET", TOKEN_SECRET_BYTES_MIN);
        let pools = reader.pools();
        let memory = reader.memory();
        let quota = reader.quota();
        let retention = reader.number("FOREBAY_LOG_RETENTION_S", 60..=u64::MAX / 2);
        if retention < memory.dedupe_window.as_secs() {
            let problem = "is shorter than FOREBAY_DEDUPE_WINDOW_S: a restart would forget keys";
            reader.add("FOREBAY_LOG_RETENTION_S", problem.to_owned());
        }
        let connections_max = reader.size("FOREBAY_CONNECTIONS_MAX", 1..=1_000_000);
        let projects = reader.switch("FOREBAY_PROJECT");
        let (routes, delivery) = reader.delivery();
        let retry_after = reader.number("DB_RETRY_AFTER_MS", 1..=600_000);
        let ready_wait = reader.number("READY_DB_QUEUE_MS", 0..=600_000);
        let logging = reader.logging();
        let (Some(database), Some(log), Some(listen), Some(admin_token), true) =
            (database, log, listen, admin_token, reader.problems.is_empty())
        else {
            return Err(Problems(reader.problems));
        };
        Ok(Self {
            database,
            failback,
            pools,
            log,
            listen,
            admin_token,
            token_secret,
            memory,
            log_retention: Duration::from_secs(retention),
            quota,
            connections_max,
            projects,
            routes,
            delivery,
            retry_after: Duration::from_millis(retry_after),
            ready_wait: Duration::from_millis(ready_wait),
            logging,
        })
    }
}

impl Config {
    /// What the pools are opened with.
    pub fn store(&self) -> store::Settings {
        let (interactive, background) = self.pools;
        store::Settings {
            target: self.database.clone(),
            failback: self.failback.clone(),
            interactive,
            background,
        }
    }
}

impl Reader<'_> {
    /// The value of a setting: as it is given, else from its file, else its default.
    fn value(&mut self, name: &'static str) -> Option<String> {
        let setting = TABLE.iter().find(|row| row.name == name);
        debug_assert!(setting.is_some(), "{name} is in the table");
        if let Some(value) = (self.look_up)(name) {
            return Some(value);
        }
        let setting = setting?;
        if let Some(path) = (self.look_up)(&format!("{name}_FILE")).filter(|_| setting.secret) {
            match std::fs::read_to_string(&path) {
                Ok(text) => return Some(text.trim_end().to_owned()),
                Err(error) => self.add(name, format!("cannot read {path}: {error}")),
            }
        }
        Some(setting.default.to_owned()).filter(|default| !default.is_empty())
    }

    fn add(&mut self, name: &'static str, problem: String) {
        self.problems.push(Problem { name, problem });
    }

    fn is_missing(&mut self, name: &'static str) {
        if self.problems.iter().all(|problem| problem.name != name) {
            self.add(name, "is required".to_owned());
        }
    }

    fn parse<T>(&mut self, name: &'static str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let value = self.value(name)?;
        let parsed = parse(&value);
        if parsed.is_none() {
            let unit = TABLE.iter().find(|row| row.name == name).map_or("", |row| row.unit);
            let a_number =
                matches!(unit, "connections" | "milliseconds" | "seconds" | "count" | "bytes");
            let unit = if a_number { format!("a whole number ({unit})") } else { unit.to_owned() };
            self.add(name, format!("{value:?} is not {unit}"));
        }
        parsed
    }

    fn number(&mut self, name: &'static str, range: std::ops::RangeInclusive<u64>) -> u64 {
        let Some(number) = self.parse(name, |text| text.parse::<u64>().ok()) else {
            return *range.start();
        };
        if !range.contains(&number) {
            self.add(name, format!("{number} is not within {} to {}", range.start(), range.end()));
        }
        number
    }

    fn size(&mut self, name: &'static str, range: std::ops::RangeInclusive<u64>) -> usize {
        usize::try_from(self.number(name, range)).unwrap_or(usize::MAX)
    }

    fn secret(&mut self, name: &'static str, length_min: usize) -> Option<Secret> {
        let value = self.value(name)?;
        if value.len() < length_min {
            self.add(name, format!("is shorter than {length_min} characters"));
        }
        Some(Secret(value))
    }

    fn partitions(&mut self) -> Option<Partitions> {
        let number = self.parse("FOREBAY_PARTITIONS", |text| text.parse::<u16>().ok())?;
        let partitions = Partitions::new(number);
        if partitions.is_none() {
            self.add("FOREBAY_PARTITIONS", format!("{number} is not within 1 to {PARTITIONS_MAX}"));
        }
        partitions
    }

    fn log(&mut self) -> Option<log::Settings> {
        let url = self.value("NATS_URL");
        let namespace = self.parse("FOREBAY_NAMESPACE", Namespace::parse);
        let partitions = self.partitions();
        let replicas = self.number("FOREBAY_LOG_REPLICAS", 1..=5);
        if replicas.is_multiple_of(2) {
            let problem = "an even number tolerates no more failures than one less".to_owned();
            self.add("FOREBAY_LOG_REPLICAS", problem);
        }
        let bytes = self.number("FOREBAY_PARTITION_BYTES_MAX", 1_048_576..=u64::MAX / 2);
        Some(log::Settings {
            url: url?,
            namespace: namespace?,
            partitions,
            replicas: u8::try_from(replicas).unwrap_or(1),
            partition_bytes_max: i64::try_from(bytes).unwrap_or(i64::MAX),
        })
    }

    fn memory(&mut self) -> journal::Settings {
        journal::Settings {
            dedupe_window: Duration::from_secs(self.number("FOREBAY_DEDUPE_WINDOW_S", 1..=86_400)),
            keys_max: self.size("FOREBAY_KEYS_MAX", 64..=1_000_000_000),
            heads_max: self.size("FOREBAY_HEADS_MAX", 64..=1_000_000_000),
            tail_bytes_max: self.size("FOREBAY_TAIL_BYTES_MAX", 65_536..=1 << 40),
        }
    }

    fn quota(&mut self) -> Option<Policy> {
        let rate = self.number("FOREBAY_SEND_RATE", 0..=10_000_000);
        let burst = self.number("FOREBAY_SEND_BURST", 1..=10_000_000);
        Policy::new(u32::try_from(rate).ok()?, u32::try_from(burst).ok()?)
    }

    fn logging(&mut self) -> Logging {
        let filter = self.value("RUST_LOG").unwrap_or_default();
        let is_json = self.parse("FOREBAY_LOG_FORMAT", |text| match text {
            "text" => Some(false),
            "json" => Some(true),
            _ => None,
        });
        Logging { filter, is_json: is_json.unwrap_or(false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn read(settings: &[(&str, &str)]) -> Result<Config, Problems> {
        let find = |name: &str| {
            settings.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
        };
        Config::read(&find)
    }

    pub(super) const LEAST: [(&str, &str); 2] =
        [("DATABASE_URL", "postgres://a:secret@h/d"), ("FOREBAY_ADMIN_TOKEN", "0123456789abcdef")];

    #[test]
    fn the_defaults_are_a_configuration() {
        let config = read(&LEAST).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.pools.0.connections, 10);
        assert_eq!(config.memory, journal::Settings::default());
        assert!(config.quota.is_none() && config.projects);
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let problems = read(&[
            ("FOREBAY_LISTEN", "here"),
            ("POOL_SIZE", "0"),
            ("BACKGROUND_POOL_SIZE", "many"),
            ("FOREBAY_NAMESPACE", "A.B"),
            ("FOREBAY_ADMIN_TOKEN", "short"),
            ("FOREBAY_PROJECT", "yes"),
        ]);
        let names: Vec<_> = problems.unwrap_err().0.iter().map(|problem| problem.name).collect();
        for name in [
            "DATABASE_URL",
            "FOREBAY_LISTEN",
            "POOL_SIZE",
            "BACKGROUND_POOL_SIZE",
            "FOREBAY_NAMESPACE",
            "FOREBAY_ADMIN_TOKEN",
            "FOREBAY_PROJECT",
        ] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let config =
            read(&[LEAST[0], LEAST[1], ("FOREBAY_TOKEN_SECRET", &"k".repeat(32))]).unwrap();
        let shown = format!("{config:?}");
        for secret in ["0123456789abcdef", "kkkk", ":secret@"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        let broken = read(&[("DATABASE_URL", "mysql://u:secret@h"), LEAST[1]]).unwrap_err();
        assert!(!broken.to_string().contains("secret"), "{broken}");
    }

    #[test]
    fn a_secret_can_come_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "fedcba9876543210\n").unwrap();
        let path = file.path().to_str().unwrap();
        let config = read(&[LEAST[0], ("FOREBAY_ADMIN_TOKEN_FILE", path)]).unwrap();
        assert_eq!(config.admin_token.expose(), "fedcba9876543210");
    }
}
