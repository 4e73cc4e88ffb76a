//! A bucket of the log and its watch, against a real nats-server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay::log::Log;
use forebay::log::bucket::{Bucket, Change, Entry, Error, Watch};
use futures_util::FutureExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch::Sender;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::world::World;

/// How long one write of the tests may take.
const SECOND: Duration = Duration::from_secs(1);

/// Longer than anything here may take, and shorter than the client library's own patience.
const PATIENCE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_bucket_guards_its_keys_by_their_revisions() {
    let world = World::new().await;
    let bucket = world.log().await.snapshots();
    let value = |text: &'static str| Bytes::from_static(text.as_bytes());

    let first = bucket.create("a", value("1"), deadline()).await.unwrap();
    let again = bucket.create("a", value("2"), deadline()).await;
    assert!(matches!(again, Err(Error::Exists)));
    let second = bucket.update("a", value("3"), first, deadline()).await.unwrap();
    let late = bucket.update("a", value("4"), first, deadline()).await;
    assert!(matches!(late, Err(Error::RevisionConflict)));
    let found = bucket.get("a", deadline()).await.unwrap().unwrap();
    assert_eq!((found.revision, found.value), (second, value("3")));

    let deleted = bucket.delete("a", deadline()).await.unwrap();
    assert!(deleted > second);
    assert_eq!(bucket.get("a", deadline()).await.unwrap(), None);
    let anew = bucket.create("a", value("5"), deadline()).await.unwrap();
    assert!(anew > deleted);
    assert!(bucket.put("a", value("6"), deadline()).await.unwrap() > anew);

    let large = Bytes::from(vec![0; 800_000]);
    let refused = bucket.put("b", large, deadline()).await;
    assert!(matches!(refused, Err(Error::TooLarge)), "{refused:?}");
    let larger = Bytes::from(vec![0; 2_000_000]);
    let refused = bucket.put("b", larger, deadline()).await;
    assert!(matches!(refused, Err(Error::TooLarge)), "{refused:?}");
    let refused = bucket.put("not a key", value("1"), deadline()).await;
    assert!(matches!(refused, Err(Error::BadKey)));
}

#[tokio::test]
async fn a_watch_tells_everything_once_and_says_when_it_is_level() {
    let world = World::with_own_nats().await;
    let bucket = world.log().await.snapshots();
    let mut empty = bucket.watch();
    assert_eq!(told(&mut empty).await, Change::Afresh);
    assert_eq!(told(&mut empty).await, Change::Level { revision: 0 });

    let mut last = 0;
    for n in 0..3_000 {
        last = put(&bucket, n % 1_500).await;
    }
    last = bucket.delete("key.7", deadline()).await.unwrap().max(last);
    let mut watch = bucket.watch();
    assert_eq!(told(&mut watch).await, Change::Afresh);
    let mut revisions = Vec::new();
    let level = loop {
        match told(&mut watch).await {
            Change::Entry(entry) => {
                assert_eq!(entry.value.is_none(), entry.key == "key.7");
                revisions.push(entry.revision);
            }
            Change::Level { revision } => break revision,
            Change::Afresh | Change::Behind => panic!("a quiet server"),
        }
    };
    assert_eq!((level, revisions.len()), (last, 1_500));
    assert!(revisions.is_sorted_by(|a, b| a < b));

    world.kill_nats().await;
    assert_eq!(told(&mut watch).await, Change::Behind);
    world.restart_nats().await;
    assert_eq!(told(&mut watch).await, Change::Level { revision: last });
    let next = put(&bucket, 1).await;
    let Change::Entry(entry) = told(&mut watch).await else { panic!("an entry") };
    assert_eq!((entry.revision, &*entry.key), (next, "key.1"));
}

/// Ten kills under two writers that overwrite and delete the same few keys. The watch tells rising revisions only, and
/// what it told adds up to what the bucket holds.
#[tokio::test]
async fn a_watch_under_kills_repeats_nothing_and_misses_nothing() {
    let world = World::with_own_nats().await;
    let log = world.log().await;
    let bucket = log.snapshots();
    // It keeps the stream's first revision in place; without it the watch may rightly read the bucket afresh.
    bucket.put("rest", Bytes::new(), deadline()).await.unwrap();
    let mut watch = bucket.watch();
    let (acked, mut progress) = tokio::sync::watch::channel(0_u64);
    let acked = Arc::new(acked);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = [1, 2].map(|seed| write(&log, seed, (&acked, &stop)));
    let kills = async {
        for kill in 1..=10 {
            progress.wait_for(|acked| *acked >= kill * 60).await.unwrap();
            world.kill_nats().await;
            world.restart_nats().await;
        }
        progress.wait_for(|acked| *acked >= 700).await.unwrap();
    };
    let mut told = Told::default();
    let follow = async {
        loop {
            told.note(watch.next().await.unwrap());
        }
    };
    tokio::select! {
        () = timeout(12 * PATIENCE, kills).map(Result::unwrap) => {}
        () = follow => {}
    }
    // A writer that was aborted could have a write under way that is stored after the last one here.
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let last = bucket.put("end", Bytes::new(), deadline()).await.unwrap();
    while told.last < last {
        told.note(self::told(&mut watch).await);
    }
    let mut anew = bucket.watch();
    let mut whole = Told::default();
    while whole.last < last {
        whole.note(self::told(&mut anew).await);
    }
    assert_eq!(told.values, whole.values);
    assert_eq!(told.afresh, 1);
    assert!(told.behind > 0);
}

/// What a watch told.
#[derive(Default)]
struct Told {
    values: BTreeMap<String, Bytes>,
    last: u64,
    afresh: u32,
    behind: u32,
}

impl Told {
    fn note(&mut self, change: Change) {
        match change {
            Change::Entry(Entry { key, revision, value }) => {
                assert!(revision > self.last, "{revision} after {}", self.last);
                self.last = revision;
                match value {
                    Some(value) => drop(self.values.insert(key, value)),
                    None => drop(self.values.remove(&key)),
                }
            }
            Change::Level { revision } => assert_eq!(revision, self.last),
            Change::Afresh => self.afresh += 1,
            Change::Behind => self.behind += 1,
        }
    }
}

/// Writes and deletes until it is stopped, and counts what was acknowledged.
fn write(
    log: &Log,
    seed: u64,
    (acked, stop): (&Arc<Sender<u64>>, &Arc<AtomicBool>),
) -> JoinHandle<()> {
    let (bucket, acked, stop) = (log.snapshots(), Arc::clone(acked), Arc::clone(stop));
    tokio::spawn(async move {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut n = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            n += 1;
            let key = format!("key.{}", rng.random_range(0..20));
            let soon = Instant::now() + SECOND;
            let outcome = if rng.random_bool(0.3) {
                bucket.delete(&key, soon).await
            } else {
                let value = Bytes::from(format!("{seed}.{n}"));
                bucket.put(&key, value, soon).await
            };
            if outcome.is_ok() {
                acked.send_modify(|count| *count += 1);
            } else {
                tokio::task::yield_now().await;
            }
        }
    })
}

async fn told(watch: &mut Watch) -> Change {
    timeout(PATIENCE, watch.next()).await.expect("the watch is silent").unwrap()
}

async fn put(bucket: &Bucket, n: u32) -> u64 {
    let value = Bytes::from(n.to_string());
    bucket.put(&format!("key.{n}"), value, deadline()).await.unwrap()
}

fn deadline() -> Instant {
    Instant::now() + PATIENCE
}
