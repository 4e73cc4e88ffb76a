//! Two nodes: what one has acknowledged, the other knows before it refuses anything.

use std::time::Duration;

use forebay::cli::serve::Server;
use forebay::event::{Body, ConversationId, Fingerprint, Message, TenantId};
use forebay::journal::{Draft, Intent, Verdict};

use crate::world::{WISH, World};

/// How many times in a row; a node follows the log within a millisecond or two, so a single try proves nothing.
const ROUNDS: u8 = 60;

async fn append(world: &World, node: &Server, n: u8, intent: Intent) -> Verdict {
    let now = world.clock.timestamp();
    let message = Message { kind: "message".into(), text: Some("a".into()), ..Message::default() };
    let draft = Draft {
        tenant: TenantId::derive([1; 16]),
        conversation: ConversationId::derive([n; 16]),
        id: node.ingest.make_id(now),
        at: now,
        fingerprint: Fingerprint::default(),
        trace: None,
        body: match intent {
            Intent::Send => Body::Message(Box::new(message)),
            Intent::OpenNew | Intent::OpenNamed => Body::Opened(Box::default()),
            Intent::Close => Body::Closed,
            Intent::Reopen => Body::Reopened,
        },
        intent,
        key_time: None,
    };
    let place = node.ingest.admit(draft.conversation, 100).unwrap();
    let deadline = world.clock.now() + Duration::from_secs(2);
    node.ingest.append(place, vec![draft], WISH.origin, deadline).await.unwrap()[0]
}

fn seq(verdict: Verdict) -> Option<u64> {
    match verdict {
        Verdict::Stored(receipt) => Some(receipt.seq),
        Verdict::Duplicate(_) | Verdict::KeyConflict | Verdict::Closed | Verdict::NotFound => None,
    }
}

#[tokio::test]
async fn what_one_node_acknowledged_another_does_not_call_unknown_or_closed() {
    let world = World::new().await;
    let (a, b) = (world.serve(&[]).await, world.serve(&[]).await);
    for n in 0..ROUNDS {
        let (here, there) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        assert_eq!(seq(append(&world, here, n, Intent::OpenNamed).await), Some(1), "{n}");
        let first = append(&world, there, n, Intent::Send).await;
        assert_eq!(seq(first), Some(2), "round {n}: {first:?} right after it was opened");
        assert_eq!(seq(append(&world, here, n, Intent::Close).await), Some(3), "{n}");
        let late = append(&world, there, n, Intent::Send).await;
        assert_eq!(late, Verdict::Closed, "round {n}");
        assert_eq!(seq(append(&world, here, n, Intent::Reopen).await), Some(4), "{n}");
        let again = append(&world, there, n, Intent::Send).await;
        assert_eq!(seq(again), Some(5), "round {n}: {again:?} right after it was reopened");
    }
    a.stop().await;
    b.stop().await;
}
