//! The streams of an installation: made from the definitions in `streams/*.json`, compared with what the server has.
//! Promises that the partition count and the epoch never change by accident, and that a refusal says why.
//! Does not delete streams; that is done by hand.

use std::fmt;

use async_nats::jetstream;
use serde_json::Value;
use tracing::warn;

use super::{Error, Log};
use crate::event::Partitions;

/// The definition of a partition's stream.
const LOG: &str = include_str!("../../streams/log.json");
/// The definitions of the streams beside the log: key-value buckets and the queues of deliveries.
const OTHERS: [&str; 7] = [
    include_str!("../../streams/directory.json"),
    include_str!("../../streams/snapshots.json"),
    include_str!("../../streams/breakers.json"),
    include_str!("../../streams/links.json"),
    include_str!("../../streams/deliver.json"),
    include_str!("../../streams/parked.json"),
    include_str!("../../streams/retries.json"),
];

/// Partitions of a new installation that names no number. Several, because a slow disk syncs one stream at a time.
const PARTITIONS_DEFAULT: u16 = 4;

const KEY_PARTITIONS: &str = "forebay.partitions";
const KEY_EPOCH: &str = "forebay.epoch";

/// Keys that cannot be changed on a stream that holds records.
const FIXED: [&str; 5] = ["subjects", "retention", "storage", "metadata", "deny_delete"];

/// Keys that JetStream counts in nanoseconds.
const NANOSECONDS: [&str; 2] = ["max_age", "duplicate_window"];

/// JetStream's code for a stream that does not exist.
const STREAM_NOT_FOUND: u64 = 10059;

/// What the log is, beyond its bytes: read from the streams' metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many partitions there are.
    pub partitions: Partitions,
    /// Incarnation of the log; another one means that positions and seqs start anew.
    pub epoch: String,
}

/// One setting in which a stream differs from its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The stream.
    pub stream: String,
    /// The setting, or `stream` when it is missing altogether.
    pub key: String,
    /// What the definition says.
    pub wanted: String,
    /// What the server has.
    pub found: String,
    /// Whether `streams apply` can mend it.
    pub mendable: bool,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, key, wanted, found, .. } = self;
        write!(f, "{stream}: {key} is {found}, should be {wanted}")
    }
}

/// Why the streams cannot be used or brought into line.
#[derive(Debug, thiserror::Error)]
pub enum Mismatch {
    /// There are no streams yet.
    #[error("the log does not exist yet; `forebay streams apply` creates it")]
    Absent,
    /// The log was created with another number of partitions.
    #[error(
        "the log has {found} partitions and {wanted} are configured; conversations live where their hash put them, \
         so the number is fixed when the log is created"
    )]
    Partitions {
        /// What the log has.
        found: u16,
        /// What is configured.
        wanted: u16,
    },
    /// A stream's metadata is not ours.
    #[error("stream {stream} has no usable {KEY_PARTITIONS} and {KEY_EPOCH} in its metadata")]
    Metadata {
        /// The stream.
        stream: String,
    },
    /// A setting differs that cannot be changed.
    #[error("{0}; this cannot be changed on an existing stream")]
    Fixed(Drift),
}

/// Reads the log's shape from its first partition.
///
/// # Errors
/// [`Mismatch::Absent`] before `apply`, [`Mismatch::Partitions`] when another number is configured.
pub async fn shape(log: &Log) -> Result<Shape, Error> {
    let name = format!("{}_LOG_0", log.namespace().as_str());
    let Some(found) = config(log.context(), &name).await? else {
        return Err(Mismatch::Absent.into());
    };
    let shape = shape_of(&found).ok_or(Mismatch::Metadata { stream: name })?;
    match log.settings().partitions {
        Some(wanted) if wanted != shape.partitions => {
            Err(Mismatch::Partitions { found: shape.partitions.count(), wanted: wanted.count() }
                .into())
        }
        Some(_) | None => Ok(shape),
    }
}

/// What a server does when it starts: creates the log if there is none, else takes it as it is.
///
/// A difference that can be mended is only told: servers of one installation may be configured differently for a
/// moment, and none of them may lower the log's replication by being started.
///
/// # Errors
/// [`Mismatch`] when a partition is gone or a stream differs in what cannot be changed.
pub async fn open(log: &Log, epoch: &str) -> Result<Shape, Error> {
    let shape = match shape(log).await {
        Err(Error::Streams(Mismatch::Absent)) => return apply(log, epoch).await,
        other => other?,
    };
    for drift in drifts(log, &definitions(log, &shape), false).await? {
        if !drift.mendable {
            return Err(Mismatch::Fixed(drift).into());
        }
        warn!("{drift}; `forebay streams apply` changes it");
    }
    Ok(shape)
}

/// Makes the server match the definitions: creates what is missing, changes what may be changed.
///
/// `epoch` names a log that is created now; an existing log keeps its own. Repeating it changes nothing.
///
/// # Errors
/// [`Mismatch`] when a stream differs in what cannot be changed; nothing was changed then.
pub async fn apply(log: &Log, epoch: &str) -> Result<Shape, Error> {
    let (shape, is_new) = match shape(log).await {
        Err(Error::Streams(Mismatch::Absent)) => (new_shape(log, epoch), true),
        other => (other?, false),
    };
    let wanted = definitions(log, &shape);
    let drifts = drifts(log, &wanted, is_new).await?;
    if let Some(fixed) = drifts.iter().find(|drift| !drift.mendable) {
        return Err(Mismatch::Fixed(fixed.clone()).into());
    }
    for definition in &wanted {
        let name = definition["name"].as_str().unwrap_or_default();
        let of_this = |drift: &&Drift| drift.stream == name;
        let Some(drift) = drifts.iter().find(of_this) else {
            continue;
        };
        let verb = if drift.key == "stream" { "CREATE" } else { "UPDATE" };
        request(log.context(), format!("STREAM.{verb}.{name}"), definition, "applying a stream")
            .await?;
    }
    Ok(shape)
}

/// Every difference between the server and the definitions.
///
/// # Errors
/// When JetStream does not answer, or the log's own metadata contradicts the configuration.
pub async fn check(log: &Log) -> Result<Vec<Drift>, Error> {
    let (shape, is_new) = match shape(log).await {
        Err(Error::Streams(Mismatch::Absent)) => (new_shape(log, "?"), true),
        other => (other?, false),
    };
    drifts(log, &definitions(log, &shape), is_new).await
}

fn new_shape(log: &Log, epoch: &str) -> Shape {
    let partitions = log.settings().partitions.or_else(|| Partitions::new(PARTITIONS_DEFAULT));
    let partitions = partitions.expect("the default count is within its bounds");
    Shape { partitions, epoch: epoch.to_owned() }
}

/// `is_new` says that there is no log yet, so that its streams may be missing.
async fn drifts(log: &Log, wanted: &[Value], is_new: bool) -> Result<Vec<Drift>, Error> {
    let mut all = Vec::new();
    for definition in wanted {
        let name = definition["name"].as_str().unwrap_or_default();
        match config(log.context(), name).await? {
            Some(found) => all.extend(compare(definition, &found)),
            // A partition that is gone took its records with it: made anew under the old epoch it would pass for whole.
            None => all.push(Drift {
                stream: name.to_owned(),
                key: "stream".to_owned(),
                wanted: "there".to_owned(),
                found: "missing".to_owned(),
                mendable: is_new || !name.contains("_LOG_"),
            }),
        }
    }
    Ok(all)
}

/// The definitions with their placeholders filled, the log's first partition last: it is the one that is asked
/// for the shape, so it must not exist before all others do.
fn definitions(log: &Log, shape: &Shape) -> Vec<Value> {
    let settings = log.settings();
    let fill = |template: &str, partition: u16| {
        let text = template
            .replace("{namespace}", settings.namespace.as_str())
            .replace("{partition}", &partition.to_string())
            .replace("\"{replicas}\"", &settings.replicas.to_string())
            .replace("\"{partition_bytes_max}\"", &settings.partition_bytes_max.to_string())
            .replace("{partitions}", &shape.partitions.count().to_string())
            .replace("{epoch}", &shape.epoch);
        serde_json::from_str(&text).expect("the shipped definitions are JSON, as a test checks")
    };
    let others = OTHERS.iter().map(|template| fill(template, 0));
    let partitions = (0..shape.partitions.count()).rev().map(|number| fill(LOG, number));
    others.chain(partitions).collect()
}

/// Keys of `wanted` that `found` has otherwise. Keys that only the server has are its own defaults.
fn compare(wanted: &Value, found: &Value) -> Vec<Drift> {
    let stream = wanted["name"].as_str().unwrap_or_default();
    let Some(keys) = wanted.as_object() else {
        return Vec::new();
    };
    let differs = |key: &str, value: &Value| match (key, value) {
        ("metadata", Value::Object(entries)) => {
            entries.iter().any(|(name, entry)| found["metadata"][name] != *entry)
        }
        // The server leaves out what is false, zero or empty.
        _ => match found.get(key) {
            Some(there) => there != value,
            None => !(value == &Value::Bool(false) || value == &Value::from(0)),
        },
    };
    let told = |key: &String, value: &Value| {
        let unit = if NANOSECONDS.contains(&key.as_str()) { " ns" } else { "" };
        format!("{value}{unit}")
    };
    let drift = |key: &String, value: &Value| Drift {
        stream: stream.to_owned(),
        key: key.clone(),
        wanted: told(key, value),
        found: found.get(key).map_or_else(|| "unset".to_owned(), |there| told(key, there)),
        mendable: !FIXED.contains(&key.as_str()),
    };
    keys.iter().filter(|(key, value)| differs(key, value)).map(|(k, v)| drift(k, v)).collect()
}

fn shape_of(config: &Value) -> Option<Shape> {
    let entry = |key: &str| config["metadata"][key].as_str();
    let partitions = entry(KEY_PARTITIONS)?.parse().ok().and_then(Partitions::new)?;
    Some(Shape { partitions, epoch: entry(KEY_EPOCH)?.to_owned() })
}

async fn config(context: &jetstream::Context, stream: &str) -> Result<Option<Value>, Error> {
    match info(context, stream, "reading a stream's configuration").await {
        Ok(mut info) => Ok(Some(info["config"].take())),
        Err(Error::Refused { code: STREAM_NOT_FOUND, .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

pub(super) async fn info(
    context: &jetstream::Context,
    stream: &str,
    doing: &'static str,
) -> Result<Value, Error> {
    request(context, format!("STREAM.INFO.{stream}"), &Value::Object(serde_json::Map::new()), doing)
        .await
}

/// One request to the JetStream API, with its two kinds of failure told apart.
pub(super) async fn request(
    context: &jetstream::Context,
    subject: String,
    body: &Value,
    doing: &'static str,
) -> Result<Value, Error> {
    let answer: Result<Value, _> = context.request(subject, body).await;
    let answer = answer.map_err(|source| Error::Unavailable { doing, source: source.into() })?;
    let Some(error) = answer.get("error") else {
        return Ok(answer);
    };
    Err(Error::Refused {
        doing,
        code: error["err_code"].as_u64().unwrap_or(0),
        description: error["description"].as_str().unwrap_or_default().to_owned(),
    })
}

/// Whether a server's version is at least [`super::MIN_SERVER`].
pub(super) fn is_recent(version: &str) -> bool {
    let parts = |text: &str| -> Option<(u32, u32)> {
        let mut numbers = text.trim_start_matches('v').split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    };
    parts(version) >= parts(super::MIN_SERVER) && parts(version).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_shipped_definitions_are_json() {
        for template in OTHERS.into_iter().chain([LOG]) {
            let value: Value = serde_json::from_str(template).unwrap();
            assert!(value["name"].as_str().unwrap().contains("{namespace}"));
        }
    }

    #[test]
    fn a_difference_is_named_with_both_values() {
        let wanted = json!({"name": "S", "num_replicas": 3, "storage": "file", "max_age": 5, "duplicate_window": 3});
        let found =
            json!({"name": "S", "num_replicas": 1, "storage": "memory", "duplicate_window": 7});
        let drifts = compare(&wanted, &found);
        let texts: Vec<_> = drifts.iter().map(Drift::to_string).collect();
        assert_eq!(
            texts,
            [
                "S: duplicate_window is 7 ns, should be 3 ns",
                "S: max_age is unset, should be 5 ns",
                "S: num_replicas is 1, should be 3",
                "S: storage is \"memory\", should be \"file\""
            ]
        );
        assert_eq!(
            drifts.iter().map(|d| d.mendable).collect::<Vec<_>>(),
            [true, true, true, false]
        );
    }

    #[test]
    fn what_the_server_leaves_out_is_no_difference() {
        let wanted =
            json!({"name": "S", "deny_purge": false, "max_age": 0, "metadata": {"a": "1"}});
        let found = json!({"name": "S", "metadata": {"a": "1", "_nats.level": "2"}});
        assert_eq!(compare(&wanted, &found), []);
        let other = json!({"name": "S", "metadata": {"a": "2"}});
        assert_eq!(compare(&wanted, &other).len(), 1);
    }

    #[test]
    fn old_servers_are_told_apart() {
        for good in ["2.14.0", "2.15.1", "2.15.1-RC.1", "3.0.0", "v2.14.5"] {
            assert!(is_recent(good), "{good}");
        }
        for bad in ["2.9.10", "2.13.9", "1.99.0", "", "dev"] {
            assert!(!is_recent(bad), "{bad}");
        }
    }
}
