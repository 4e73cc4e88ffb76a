use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_restartable_task_is_started_again_until_it_ends_well() {
    let supervisor = Supervisor::new();
    let runs = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&runs);
    supervisor.supervise(Kind::Projection, "projector", move |_stop| {
        let run = seen.fetch_add(1, Ordering::Relaxed);
        async move { if run < 3 { Err("again") } else { Ok(()) } }
    });
    supervisor.stage(Kind::Projection).tracker.close();
    supervisor.stage(Kind::Projection).tracker.wait().await;
    assert_eq!(runs.load(Ordering::Relaxed), 4);
}

#[test]
fn a_cause_is_said_once() {
    let cause = || std::io::Error::other("refused");
    let repeats: &(dyn std::error::Error + 'static) = &Said("IO error: refused", cause());
    assert_eq!(chain(repeats), "IO error: refused");
    assert_eq!(chain(&Said("no connection", cause())), "no connection: refused");
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Said(&'static str, #[source] std::io::Error);

#[tokio::test(start_paused = true)]
async fn a_fatal_failure_is_reported_by_name() {
    let supervisor = Supervisor::new();
    supervisor
        .supervise(Kind::Writer, "writer 0", |_stop| async { Err::<(), _>("the log went back") });
    assert_eq!(supervisor.failed().await, "writer 0: the log went back");
}

#[tokio::test(start_paused = true)]
async fn draining_stops_kinds_from_the_last_to_the_first() {
    let supervisor = Supervisor::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    for kind in [Kind::Projection, Kind::Writer, Kind::Door] {
        let order = Arc::clone(&order);
        supervisor.supervise(kind, "task", move |stop| {
            let order = Arc::clone(&order);
            async move {
                stop.requested().await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                order.lock().unwrap().push(kind);
                Ok::<(), Failure>(())
            }
        });
    }
    assert!(supervisor.drain().await);
    assert_eq!(*order.lock().unwrap(), [Kind::Door, Kind::Writer, Kind::Projection]);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_does_not_end_in_time_is_forced_and_reported() {
    let supervisor = Supervisor::new();
    supervisor.supervise(Kind::Snapshot, "deaf", |_stop| async {
        std::future::pending::<()>().await;
        Ok::<(), Failure>(())
    });
    assert!(!supervisor.drain().await);
    assert!(supervisor.stage(Kind::Snapshot).tracker.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_like_any_other() {
    let supervisor = Supervisor::new();
    supervisor.supervise(Kind::Writer, "writer 0", |_stop| async {
        assert!(std::hint::black_box(1) == 2, "cannot be");
        Ok::<(), Failure>(())
    });
    assert_eq!(supervisor.failed().await, "writer 0: panicked: cannot be");
}
