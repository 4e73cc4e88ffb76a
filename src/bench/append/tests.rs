use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// A journal without a log: gives seqs in memory.
#[derive(Default)]
struct Memory {
    heads: HashMap<ConversationId, u64>,
    entries: Vec<Entry>,
}

type Shared = Arc<Mutex<Memory>>;

fn append(
    memory: Shared,
) -> impl Fn(Vec<Draft>) -> std::future::Ready<Result<Vec<Verdict>, Infallible>> + Clone {
    move |drafts| {
        let mut memory = memory.lock().unwrap();
        let store = |draft: Draft| {
            let seq = memory.heads.entry(draft.conversation).or_default();
            *seq += 1;
            let receipt = Receipt { id: draft.id, seq: *seq, at: draft.at, watermark: *seq };
            memory.entries.push(Entry {
                message: draft.id,
                conversation: draft.conversation,
                seq: receipt.seq,
            });
            Verdict::Stored(receipt)
        };
        std::future::ready(Ok(drafts.into_iter().map(store).collect()))
    }
}

#[tokio::test]
async fn two_nodes_share_the_callers_and_the_ledger_agrees_with_the_log() {
    let memory = Shared::default();
    let clock = Clock::system();
    let tenant = TenantId::derive([1; 16]);
    let names = (0..5).map(|n| ConversationId::derive([n; 16]));
    let opened = open(&append(Arc::clone(&memory)), tenant, names, &clock).await.unwrap();
    let published = AtomicU64::new(0);
    let nodes = [(); 2].map(|()| Node {
        append: append(Arc::clone(&memory)),
        counts: || Counts {
            published: published.fetch_add(10, Ordering::Relaxed),
            conflicts: published.load(Ordering::Relaxed) / 10,
        },
    });
    let plan = Plan {
        callers: 4,
        warmup: Duration::ZERO,
        round: Duration::from_millis(20),
        text_bytes: 10,
        tenant,
        run: 7,
    };
    let mut ledger = Ledger::default();
    let conversations: Arc<[ConversationId]> = opened.into();
    let found = round(plan, &nodes, &conversations, &clock, &mut ledger).await;
    assert!(found.round.acknowledged > 0);
    assert_eq!(found.round.errors(), 0);
    assert!((found.shares_percent.iter().sum::<f64>() - 100.0).abs() < 1e-6);
    assert_eq!(found.conflicts_percent, Some(10.0));
    let stored = std::mem::take(&mut memory.lock().unwrap().entries);
    let audit = ledger.audit(stored);
    assert!(audit.is_clean(), "{audit:?}");
    assert_eq!(audit.unacknowledged, 5, "the openings have no receipt in the ledger");
}

#[test]
fn every_verdict_but_a_receipt_is_a_refusal() {
    let conversation = ConversationId::derive([3; 16]);
    for verdict in [Verdict::KeyConflict, Verdict::Closed, Verdict::NotFound] {
        let found = called(conversation, Some(&[verdict]));
        assert!(matches!(found, Called::Refused(_)), "{verdict:?}");
    }
    assert!(matches!(called(conversation, None), Called::Refused("not acknowledged")));
}
