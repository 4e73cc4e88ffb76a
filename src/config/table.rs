//! Pure: every setting of a server, in one table: name, unit, default and why.
//! Promises that what `forebay config` prints is what is read, because both come from here.
//! Does not read the environment.

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The environment variable; the flag is the same in lower case with hyphens, without `forebay-`.
    pub name: &'static str,
    /// What its value is.
    pub unit: &'static str,
    /// What it is when it is not set; empty for none.
    pub default: &'static str,
    /// What it is for and why its default is what it is.
    pub reason: &'static str,
    /// Whether its value is never shown, and can be given as a file by the same name with `_FILE`.
    pub secret: bool,
}

impl Setting {
    /// The name of its flag, without the hyphens before it.
    pub fn flag(&self) -> String {
        let name = self.name.strip_prefix("FOREBAY_").unwrap_or(self.name);
        name.to_ascii_lowercase().replace('_', "-")
    }
}

const fn plain(
    name: &'static str,
    unit: &'static str,
    default: &'static str,
    reason: &'static str,
) -> Setting {
    Setting { name, unit, default, reason, secret: false }
}

const fn secret(name: &'static str, reason: &'static str) -> Setting {
    Setting { name, unit: "text", default: "", reason, secret: true }
}

/// Every setting, in the order in which they are shown.
pub const TABLE: &[Setting] = &[
    secret("DATABASE_URL", "postgres:// address of the database; required"),
    secret(
        "DATABASE_FAILBACK_URL",
        "postgres:// address to use while the first one fails: the same database, promoted elsewhere",
    ),
    plain(
        "DB_TOPOLOGY",
        "direct|transaction_pooler",
        "direct",
        "what both addresses lead to; behind a pooler in transaction mode nothing is cancelled, statements time out",
    ),
    plain("NATS_URL", "address", "nats://127.0.0.1:4222", "NATS servers, separated by commas"),
    plain(
        "FOREBAY_LISTEN",
        "address",
        "127.0.0.1:8080",
        "where requests are taken; loopback until someone decides otherwise",
    ),
    secret("FOREBAY_ADMIN_TOKEN", "the operator's bearer token, 16 characters at least; required"),
    secret(
        "FOREBAY_TOKEN_SECRET",
        "key that signs end users' tokens, 32 bytes at least; without it the nodes agree on one in the directory",
    ),
    plain(
        "FOREBAY_NAMESPACE",
        "a-z 0-9 -",
        "forebay",
        "prefix of streams and subjects, so that installations can share a NATS server",
    ),
    plain("FOREBAY_SCHEMA", "a-z 0-9 _", "public", "schema of the tables"),
    plain(
        "FOREBAY_PARTITIONS",
        "count",
        "",
        "partitions of a log that is created now (4 without it); must match a log that exists",
    ),
    plain("FOREBAY_LOG_REPLICAS", "count", "1", "replicas of every stream; 3 on a NATS cluster"),
    plain(
        "FOREBAY_PARTITION_BYTES_MAX",
        "bytes",
        "68719476736",
        "size at which a partition refuses to grow: 64 GiB is a refused send instead of a full disk",
    ),
    plain(
        "FOREBAY_LOG_RETENTION_S",
        "seconds",
        "604800",
        "how long records stay in the log after Postgres has them; a week to find a fault and rebuild",
    ),
    plain(
        "FOREBAY_DEDUPE_WINDOW_S",
        "seconds",
        "900",
        "how long idempotency keys are kept in memory; longer than clients retry",
    ),
    plain(
        "FOREBAY_KEYS_MAX",
        "count",
        "1000000",
        "most idempotency keys in memory, 120 bytes each; at the bound the oldest go early",
    ),
    plain(
        "FOREBAY_HEADS_MAX",
        "count",
        "400000",
        "most conversations in memory, 100 bytes each; older ones are looked up",
    ),
    plain(
        "FOREBAY_TAIL_BYTES_MAX",
        "bytes",
        "33554432",
        "newest records in memory for readers; decoded they take about twice that",
    ),
    plain("FOREBAY_SEND_RATE", "messages/s", "0", "sends of a tenant on this node; 0 for no quota"),
    plain(
        "FOREBAY_SEND_BURST",
        "messages",
        "1000",
        "how far a tenant may exceed its rate for a moment",
    ),
    plain(
        "FOREBAY_CONNECTIONS_MAX",
        "count",
        "10000",
        "most open connections; further ones wait in the kernel's queue",
    ),
    plain(
        "FOREBAY_PROJECT",
        "on|off",
        "on",
        "whether this node writes the log to Postgres; at least one node must",
    ),
    plain(
        "FOREBAY_DELIVER",
        "on|route|off",
        "on",
        "whether this node makes deliveries, or only queues them; at least one node must make them",
    ),
    plain(
        "DELIVERY_TIMEOUT_MS",
        "milliseconds",
        "15000",
        "longest attempt, the whole answer included; receivers should answer first and work later",
    ),
    plain(
        "DELIVERY_CONNECT_TIMEOUT_MS",
        "milliseconds",
        "5000",
        "longest wait for a connection to a receiver, of the time of an attempt",
    ),
    plain(
        "DELIVERY_SLOTS_HIGH",
        "count",
        "10",
        "attempts at once of tenants of the tier high, on this node",
    ),
    plain(
        "DELIVERY_SLOTS_STANDARD",
        "count",
        "20",
        "attempts at once of tenants of the tier standard; a channel takes half of them unless it asks otherwise",
    ),
    plain("DELIVERY_SLOTS_BULK", "count", "5", "attempts at once of tenants of the tier bulk"),
    plain(
        "FOREBAY_EGRESS_ALLOW",
        "addresses, networks and names, separated by commas",
        "",
        "where deliveries may go beside public addresses, for development: 127.0.0.0/8 or hooks.internal:8080",
    ),
    plain("POOL_SIZE", "connections", "10", "connections that answer requests"),
    plain(
        "POOL_MIN",
        "connections",
        "2",
        "how many of them are kept open, so that the first reader after a rest need not wait for one",
    ),
    plain(
        "POOL_TENANT_MAX",
        "connections",
        "0",
        "how many of them one tenant may use at a time; 0 for all: they are shared fairly once others want them",
    ),
    plain(
        "BACKGROUND_POOL_SIZE",
        "connections",
        "10",
        "connections that write the log to Postgres; 0 shares the pool of requests",
    ),
    plain(
        "BACKGROUND_POOL_MIN",
        "connections",
        "2",
        "how many of them are kept open; the projector always needs one",
    ),
    plain("DB_TIMEOUT_MS", "milliseconds", "15000", "statement timeout of requests"),
    plain(
        "BACKGROUND_DB_TIMEOUT_MS",
        "milliseconds",
        "60000",
        "statement timeout of background work",
    ),
    plain(
        "DB_QUEUE_TARGET_MS",
        "milliseconds",
        "50",
        "longest wait of requests for a connection in a queue that stands: a few reads' time",
    ),
    plain(
        "DB_QUEUE_INTERVAL_MS",
        "milliseconds",
        "1000",
        "longest time that queue may stand, and longest wait in a calm one: less than a reader's deadline",
    ),
    plain(
        "BACKGROUND_DB_QUEUE_TARGET_MS",
        "milliseconds",
        "500",
        "the same for background work, which can wait",
    ),
    plain(
        "BACKGROUND_DB_QUEUE_INTERVAL_MS",
        "milliseconds",
        "5000",
        "the same for background work, which can wait",
    ),
    plain(
        "DB_QUEUE_WINDOW_MS",
        "milliseconds",
        "5000",
        "over which time waits are averaged; shorter is nervous, longer is late",
    ),
    plain(
        "DB_RETRY_AFTER_MS",
        "milliseconds",
        "1000",
        "base of Retry-After; answers say between once and twice that",
    ),
    plain(
        "READY_DB_QUEUE_MS",
        "milliseconds",
        "200",
        "mean wait for a connection at which /readyz fails, until it is half of that; 0 for never",
    ),
    plain("FOREBAY_LOG_FORMAT", "text|json", "text", "format of log lines"),
    plain("RUST_LOG", "filter", "info", "which log lines are written"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_unique_and_plain() {
        let mut flags: Vec<_> = TABLE.iter().map(Setting::flag).collect();
        flags.sort_unstable();
        let count = flags.len();
        flags.dedup();
        assert_eq!(flags.len(), count);
        assert!(flags.contains(&"listen".to_owned()) && flags.contains(&"pool-size".to_owned()));
    }

    #[test]
    fn every_setting_has_unit_and_reason() {
        assert!(TABLE.iter().all(|row| !row.unit.is_empty() && row.reason.len() > 10));
    }

    #[test]
    fn the_page_of_settings_has_every_one_as_it_is() {
        let row = |setting: &Setting| {
            let flag = match setting.unit {
                "text" => "none".to_owned(),
                _ => format!("`--{}`", setting.flag()),
            };
            let default = match setting.default {
                "" => "none".to_owned(),
                default => format!("`{default}`"),
            };
            let unit = setting.unit.replace('|', "\\|");
            format!("| `{}` | {flag} | {unit} | {default} | {} |\n", setting.name, setting.reason)
        };
        let rows: String = TABLE.iter().map(row).collect();
        let page = include_str!("../../docs/CONFIGURATION.md");
        let (_, page) = page.split_once("|---|---|---|---|---|\n").unwrap();
        let (page, _) = page.split_once("<!-- /settings -->").unwrap();
        assert!(page == rows, "the table should be:\n{rows}");
    }
}
