//! The client in Rust against a real server, over connections that break.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::client::keep::InFile;
use forebay::client::{self, Events, Handle, Server, Settings, Start, State, Stopped, Told};
use forebay::event::ConversationId;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::FRAME_MAX;
use crate::world::World;
use crate::world::client::Client;

/// A wire between client and server that can be cut.
struct Wire {
    address: SocketAddr,
    cut: tokio::sync::watch::Sender<()>,
    is_open: Arc<AtomicBool>,
    _running: JoinSet<()>,
}

impl Wire {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, cuts) = tokio::sync::watch::channel(());
        let is_open = Arc::new(AtomicBool::new(true));
        let seen = Arc::clone(&is_open);
        let mut running = JoinSet::new();
        running.spawn(async move {
            let mut pairs = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                if !seen.load(Ordering::Relaxed) {
                    continue;
                }
                let mut cuts = cuts.clone();
                cuts.mark_unchanged();
                pairs.spawn(async move {
                    let mut far = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Self { address, cut, is_open, _running: running }
    }

    fn cut(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        self.cut.send_replace(());
    }

    fn mend(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }
}

fn settings(address: SocketAddr, token: &str, conversation: ConversationId) -> Settings {
    Settings {
        server: Server::parse(&format!("http://{address}")).unwrap(),
        token: token.to_owned(),
        conversation,
        start: Start::After(0),
        keep: None,
    }
}

async fn next(events: &mut Events) -> Told {
    timeout(FRAME_MAX, events.next()).await.expect("in time").unwrap().expect("it goes on")
}

/// Waits for a state of this kind; gives the seqs of events that came before.
async fn until(events: &mut Events, wanted: fn(&State) -> bool) -> Vec<u64> {
    let mut seqs = Vec::new();
    loop {
        match next(events).await {
            Told::State(state) if wanted(&state) => return seqs,
            Told::State(_) => {}
            Told::Event { seq, .. } => seqs.push(seq),
            Told::Reset | Told::Rewound { .. } => panic!("it is the same log"),
        }
    }
}

async fn seqs_to(events: &mut Events, last: u64) -> Vec<u64> {
    let mut seqs = Vec::new();
    while seqs.last() != Some(&last) {
        if let Told::Event { seq, frame } = next(events).await {
            let frame: Value = serde_json::from_str(&frame).unwrap();
            assert_eq!(frame["seq"], seq);
            seqs.push(seq);
        }
    }
    seqs
}

async fn send(handle: &Handle, key: &str) -> client::Receipt {
    let body = json!({ "text": key }).as_object().unwrap().clone();
    timeout(FRAME_MAX, handle.send(key, body)).await.expect("in time").unwrap()
}

#[tokio::test]
async fn a_client_has_each_event_once_and_in_order_over_broken_connections() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    // The first event is that it was opened.
    tenant.say(conversation, "2").await;
    let wire = Wire::to(server.address).await;
    let settings = settings(wire.address, tenant.bearer(), conversation);
    let (handle, mut events) = client::open(settings, world.clock.clone(), 7).unwrap();
    assert_eq!(until(&mut events, |state| matches!(state, State::Live { .. })).await, [1, 2]);
    tenant.say(conversation, "3").await;
    assert_eq!(seqs_to(&mut events, 3).await, [3]);
    for round in 0..3_u64 {
        let base = 3 + 3 * round;
        wire.cut();
        until(&mut events, |state| matches!(state, State::Waiting { .. })).await;
        tenant.say(conversation, "while it was away").await;
        tenant.say(conversation, "while it was away").await;
        let key = format!("own-{round}");
        let sending = async {
            // The send waits for the connection, and its seq counts as read.
            let (receipt, ()) = tokio::join!(send(&handle, &key), async { wire.mend() });
            assert!(!receipt.is_duplicate);
            assert_eq!(receipt.seq, base + 3);
        };
        let (seqs, ()) = tokio::join!(seqs_to(&mut events, base + 2), sending);
        assert_eq!(seqs, [base + 1, base + 2]);
    }
    tenant.say(conversation, "13").await;
    assert_eq!(seqs_to(&mut events, 13).await, [13], "no own send comes as an event");
    server.stop().await;
}

#[tokio::test]
async fn a_kept_watermark_is_gone_on_from_and_never_ahead_of_what_was_dealt_with() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    for text in ["2", "3"] {
        tenant.say(conversation, text).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let keep = Some(Box::new(InFile(folder.path().join("watermark"))) as _);
        let settings = Settings { keep, ..settings(server.address, tenant.bearer(), conversation) };
        client::open(settings, world.clock.clone(), 7).unwrap()
    };
    let (_handle, mut events) = open();
    assert_eq!(seqs_to(&mut events, 2).await, [1, 2]);
    events.keep().unwrap();
    assert_eq!(seqs_to(&mut events, 3).await, [3]);
    // The third was told, but nobody said that it was dealt with.
    drop(events);
    let (_handle, mut events) = open();
    assert_eq!(until(&mut events, |state| matches!(state, State::Live { .. })).await, [3]);
    // Asking for what comes next says so.
    drop(timeout(Duration::from_millis(50), events.next()).await);
    drop(events);
    let (_handle, mut events) = open();
    let live = until(&mut events, |state| matches!(state, State::Live { watermark: 3 })).await;
    assert!(live.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_is_ahead_of_everything_goes_on_at_the_head_and_says_so() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let start = Start::After(99);
    let settings = Settings { start, ..settings(server.address, tenant.bearer(), conversation) };
    let (_handle, mut events) = client::open(settings, world.clock.clone(), 7).unwrap();
    let mut rewound = Vec::new();
    loop {
        match next(&mut events).await {
            Told::Rewound { watermark, head } => rewound.push((watermark, head)),
            Told::State(State::Live { watermark }) => {
                assert_eq!(watermark, 1);
                break;
            }
            Told::State(_) => {}
            other @ (Told::Event { .. } | Told::Reset) => panic!("{other:?}"),
        }
    }
    assert_eq!(rewound, [(99, 1)]);
    tenant.say(conversation, "2").await;
    assert_eq!(seqs_to(&mut events, 2).await, [2]);
    server.stop().await;
}

#[tokio::test]
async fn a_client_without_access_stops_and_says_why() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    let other = Client::tenant(&server).await;
    for (token, wanted) in
        [("nonsense", Stopped::Unauthorized), (other.bearer(), Stopped::NotFound)]
    {
        let settings = settings(server.address, token, conversation);
        let (_handle, mut events) = client::open(settings, world.clock.clone(), 7).unwrap();
        loop {
            if let Told::State(State::Stopped(why)) = next(&mut events).await {
                assert_eq!(why, wanted);
                break;
            }
        }
        assert_eq!(events.next().await.unwrap(), None);
    }
    server.stop().await;
}
