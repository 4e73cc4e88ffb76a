use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;
use crate::event::MessageId;

/// A server that answers each send with this, on a thread for each connection; ends with the test's process.
fn server(answer: &'static str) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut request = [0; 4_096];
                while stream.read(&mut request).is_ok_and(|bytes| bytes > 0) {
                    if stream.write_all(answer.as_bytes()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    url
}

const REFUSAL: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
const REFUSAL_FOR_LONG: &str =
    "HTTP/1.1 503 Service Unavailable\r\nretry-after: 60\r\ncontent-length: 0\r\n\r\n";
fn receipt() -> &'static str {
    let id = MessageId::derive([7; 16]);
    let body = format!("{{\"id\":\"{id}\",\"seq\":1,\"watermark\":1}}");
    let length = body.len();
    format!("HTTP/1.1 201 Created\r\ncontent-length: {length}\r\n\r\n{body}").leak()
}

fn plan(url: String, on_overload: OnOverload) -> Plan {
    Plan {
        url,
        api_key: "fbk_any".to_owned(),
        conversations: (0..4).map(|n| ConversationId::derive([n; 16])).collect(),
        connections: 4,
        amount: Amount::For(Duration::from_millis(600)),
        warmup: Duration::ZERO,
        body_bytes: 50,
        keys: Keys::Given,
        pace: Pace::AnswerByAnswer,
        on_refusal: OnRefusal::GoOn,
        on_overload,
        run: 1,
    }
}

async fn attempts(answer: &'static str, plan: impl FnOnce(String) -> Plan) -> u64 {
    let outcome = run(plan(server(answer)), Arc::default(), Clock::system()).await.unwrap();
    assert_eq!(outcome.phases[0].acknowledged(), 0);
    outcome.phases[0].failed()
}

#[tokio::test]
async fn a_load_backs_off_from_a_server_that_refuses_unless_it_is_to_press_on() {
    let pressed = attempts(REFUSAL, |url| plan(url, OnOverload::PressOn)).await;
    let held = attempts(REFUSAL, |url| plan(url, OnOverload::HoldBack)).await;
    // Four connections, whose pauses are 25, 50, 100, 200 ms long on average.
    assert!(held < 80 && pressed > 4 * held, "{held} held back, {pressed} pressed");
}

#[tokio::test]
async fn a_wait_that_the_server_asks_for_is_kept_and_ends_with_the_run() {
    let begin = Clock::system().now();
    let held = attempts(REFUSAL_FOR_LONG, |url| plan(url, OnOverload::HoldBack)).await;
    assert_eq!(held, 4, "one attempt of each connection");
    assert!(Clock::system().now() - begin < Duration::from_secs(5));
}

#[tokio::test]
async fn a_run_that_is_ended_early_does_not_wait_for_those_who_pause() {
    let watch = Arc::new(Watch::default());
    let long = Plan {
        amount: Amount::For(Duration::from_mins(5)),
        ..plan(server(REFUSAL_FOR_LONG), OnOverload::HoldBack)
    };
    let begin = Clock::system().now();
    let ending = async {
        while watch.failed() < 4 {
            tokio::task::yield_now().await;
        }
        watch.end();
    };
    let (outcome, ()) = tokio::join!(run(long, Arc::clone(&watch), Clock::system()), ending);
    assert_eq!(outcome.unwrap().unfinished, 0);
    assert!(Clock::system().now() - begin < Duration::from_secs(10));
}

#[tokio::test]
async fn nothing_is_held_back_while_nothing_is_refused() {
    let outcome =
        run(plan(server(receipt()), OnOverload::HoldBack), Arc::default(), Clock::system());
    let outcome = outcome.await.unwrap();
    let tally = &outcome.phases[0];
    assert!(tally.failed() == 0 && tally.acknowledged() > 100, "{:?}", tally.refused);
}

#[tokio::test]
async fn a_send_that_finds_no_free_connection_in_time_is_not_made() {
    let (per_second, patience) = (1_000_000.0, Duration::from_millis(5));
    let crowded = Plan {
        connections: 1,
        pace: Pace::Shared { per_second, patience },
        ..plan(server(receipt()), OnOverload::PressOn)
    };
    let outcome = run(crowded, Arc::default(), Clock::system()).await.unwrap();
    let tally = &outcome.phases[0];
    assert!(tally.acknowledged() > 0 && tally.refused[SHED] > tally.acknowledged());
    // Each send was taken once: those of 0.6 s, and no more.
    assert!(tally.acknowledged() + tally.failed() <= 600_001, "{:?}", tally.refused);
}
