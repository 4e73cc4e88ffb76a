use std::io::ErrorKind;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::yard::HOOKS_MAX;
use super::*;
use crate::delivery::signature::sign;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long an answer is awaited that must not come.
const SILENCE: Duration = Duration::from_millis(200);

fn start() -> Receiver {
    Receiver::start(SocketAddr::from(([127, 0, 0, 1], 0)), Clock::system()).unwrap()
}

fn in_mode(text: &str) -> Receiver {
    let receiver = start();
    receiver.set_mode("a", text.parse().unwrap());
    receiver
}

/// Writes a request for the endpoint `a` and leaves the answer to be read.
async fn ask(receiver: &Receiver, headers: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(receiver.address()).await.unwrap();
    say(&mut stream, "POST /hook/a", headers, body).await;
    stream
}

async fn say(stream: &mut TcpStream, line: &str, headers: &str, body: &str) {
    let length = body.len();
    let text =
        format!("{line} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Everything up to the end of the connection.
async fn rest(mut stream: TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("in time").map(|_| bytes)
}

/// The answer to one request, on a connection that ends with it.
async fn answer(receiver: &Receiver) -> String {
    let bytes = rest(ask(receiver, "connection: close\r\n", "{}").await).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Reads until this much has come.
async fn at_least(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut read = Vec::new();
    while read.len() < bytes {
        let count = timeout(PATIENCE, stream.read_buf(&mut read)).await.expect("in time").unwrap();
        assert!(count > 0, "it ends after {}", read.len());
    }
    read
}

#[tokio::test]
async fn the_default_is_200_and_the_ledger_has_every_header() {
    let receiver = start();
    receiver.keep_bodies(true);
    let headers = "webhook-id: msg_1\r\nwebhook-timestamp: 12\r\nwebhook-signature: v1,x\r\n\
                   forebay-attempt: 3\r\nforebay-seq: 9\r\nconnection: close\r\n";
    for _ in 0..2 {
        let bytes = rest(ask(&receiver, headers, "{\"a\":1}").await).await.unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("content-length: 0"));
    }
    assert_eq!((receiver.count("a"), receiver.distinct("a"), receiver.count("b")), (2, 1, 0));
    let receipt = &receiver.received("a")[1];
    assert_eq!((&*receipt.id, &*receipt.timestamp), ("msg_1", "12"));
    assert_eq!((&*receipt.signature, receipt.verified), ("v1,x", None));
    assert_eq!((receipt.attempt, receipt.seq, receipt.status), (Some(3), Some(9), Some(200)));
    assert_eq!(receipt.body.as_deref(), Some(&b"{\"a\":1}"[..]));
    receiver.clear();
    assert_eq!((receiver.count("a"), receiver.received("a").len()), (0, 0));
}

#[tokio::test]
async fn modes_that_are_an_answer_say_so_in_status_and_headers() {
    for (mode, line, header) in [
        ("answer", "HTTP/1.1 200 ", ""),
        ("status:503", "HTTP/1.1 503 ", ""),
        ("slow:1ms", "HTTP/1.1 200 ", ""),
        ("redirect:http://b/c?d", "HTTP/1.1 307 ", "\r\nlocation: http://b/c?d\r\n"),
        ("gone", "HTTP/1.1 410 ", ""),
        ("rate:7", "HTTP/1.1 429 ", "\r\nretry-after: 7\r\n"),
        ("retry-after:in a while", "HTTP/1.1 503 ", "\r\nretry-after: in a while\r\n"),
        ("headers:300", "HTTP/1.1 200 ", "\r\nforebay-line: 299\r\n"),
    ] {
        let receiver = in_mode(mode);
        let text = answer(&receiver).await;
        assert!(text.starts_with(line) && text.contains(header), "{mode}: {text}");
        assert_eq!(receiver.count("a"), 1);
        let status = receiver.received("a")[0].status.unwrap();
        assert!(line.contains(&status.to_string()), "{mode}");
    }
}

#[tokio::test]
async fn a_date_to_come_back_at_is_of_the_receivers_clock() {
    let clock = Clock::system();
    clock.shift_wall(1_614_265_330_000_000 - clock.timestamp().micros());
    let receiver = Receiver::start(SocketAddr::from(([127, 0, 0, 1], 0)), clock).unwrap();
    receiver.set_mode("a", Mode::RateDate(30));
    let text = answer(&receiver).await;
    let minute = "\r\nretry-after: Thu, 25 Feb 2021 15:02:";
    assert!(text.starts_with("HTTP/1.1 429 ") && text.contains(minute), "{text}");
}

#[tokio::test]
async fn a_slow_answer_comes_after_its_time() {
    let receiver = in_mode("slow:150ms");
    let clock = Clock::system();
    let began = clock.now();
    assert!(answer(&receiver).await.starts_with("HTTP/1.1 200 "));
    assert!(clock.now() - began >= Duration::from_millis(150));
}

#[tokio::test]
async fn a_flap_is_four_good_one_bad_and_begins_anew_when_set() {
    let receiver = in_mode("flap:4:1");
    for _ in 0..7 {
        answer(&receiver).await;
    }
    receiver.set_mode("a", Mode::Flap { good: 0, bad: 1 });
    answer(&receiver).await;
    let statuses: Vec<_> = receiver.received("a").iter().filter_map(|r| r.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 500, 200, 200, 500]);
}

#[tokio::test]
async fn hanging_is_silence_on_an_open_connection() {
    let receiver = in_mode("hang");
    let mut stream = ask(&receiver, "", "{}").await;
    receiver.wait_for("a", 1, PATIENCE).await.unwrap();
    assert!(timeout(SILENCE, stream.read_u8()).await.is_err());
    assert_eq!(receiver.received("a")[0].status, None);
}

#[tokio::test]
async fn a_reset_is_an_error_and_a_close_is_an_end() {
    let receiver = in_mode("reset");
    let error = rest(ask(&receiver, "", "{}").await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    receiver.set_mode("a", Mode::Close);
    assert_eq!(rest(ask(&receiver, "", "{}").await).await.unwrap(), b"");
    assert_eq!(receiver.count("a"), 2);
}

#[tokio::test]
async fn garbage_is_no_http() {
    let receiver = in_mode("garbage");
    let bytes = rest(ask(&receiver, "", "{}").await).await.unwrap();
    assert!(!bytes.is_empty() && !bytes.starts_with(b"HTTP/"));
}

#[tokio::test]
async fn a_body_without_an_end_goes_on_and_a_drip_is_slow() {
    let receiver = in_mode("endless");
    let mut stream = ask(&receiver, "", "{}").await;
    let bytes = at_least(&mut stream, 1 << 20).await;
    assert!(bytes.windows(26).any(|part| part == b"transfer-encoding: chunked"));

    receiver.set_mode("a", Mode::Drip);
    let mut stream = ask(&receiver, "", "{}").await;
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"1\r\n.\r\n") {
        bytes.extend(at_least(&mut stream, 1).await);
    }
    assert!(timeout(SILENCE, stream.read_u8()).await.is_err());
}

#[tokio::test]
async fn a_long_body_is_as_long_as_it_says() {
    let text = answer(&in_mode("huge:200000:503")).await;
    assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("content-length: 200000\r\n"));
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    assert_eq!(body.len(), 200_000);
}

#[tokio::test]
async fn a_body_can_be_no_text() {
    let receiver = in_mode("invalid-utf8");
    let stream = ask(&receiver, "connection: close\r\n", "{}").await;
    let bytes = rest(stream).await.unwrap();
    assert!(bytes.starts_with(b"HTTP/1.1 500 ") && String::from_utf8(bytes).is_err());
}

#[tokio::test]
async fn the_most_open_requests_are_counted_and_closed_ones_are_not_open() {
    let receiver = in_mode("hang");
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(ask(&receiver, "", "{}").await);
    }
    receiver.wait_for("a", 5, PATIENCE).await.unwrap();
    assert_eq!(receiver.in_flight_max("a"), 5);
    drop(streams);
    // The receiver notices by and by.
    let left = async {
        loop {
            receiver.clear();
            if receiver.in_flight_max("a") == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, left).await.unwrap();
    receiver.set_mode("a", Mode::Answer);
    for _ in 0..3 {
        answer(&receiver).await;
    }
    assert_eq!(receiver.in_flight_max("a"), 1);
}

#[tokio::test]
async fn what_does_not_verify_is_answered_401_and_counted() {
    let receiver = start();
    let secret = read_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    receiver.set_secret("a", secret.clone());
    let seconds = Clock::system().timestamp().micros().unsigned_abs() / 1_000_000;
    let good = sign(&[b"another", &secret], ("msg_1", seconds), b"{}");
    let (old, stale) = (seconds - 301, sign(&[&secret], ("msg_1", seconds - 301), b"{}"));
    let signed = |seconds: u64, signature: &str| {
        format!(
            "webhook-id: msg_1\r\nwebhook-timestamp: {seconds}\r\n\
             webhook-signature: {signature}\r\nconnection: close\r\n"
        )
    };
    for (headers, body, status) in [
        (signed(seconds, &good), "{}", "200"),
        (signed(seconds, &good), "{ }", "401"),
        (signed(seconds + 1, &good), "{}", "401"),
        (signed(old, &stale), "{}", "401"),
        ("connection: close\r\n".to_owned(), "{}", "401"),
    ] {
        let text = rest(ask(&receiver, &headers, body).await).await.unwrap();
        assert!(text.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{headers}");
    }
    assert_eq!((receiver.count("a"), receiver.unverified("a")), (5, 4));
    let verified: Vec<_> = receiver.received("a").iter().filter_map(|r| r.verified).collect();
    assert_eq!(verified, [true, false, false, false, false]);
    for bad in ["", "whsec_", "whsec_!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
        assert_eq!(read_secret(bad), Err(BadSecret), "{bad}");
    }
}

/// One answer on a connection that stays open; its body has a length.
async fn next_answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    while !text.ends_with('\n') || !text.contains("\r\n\r\n") {
        text.push_str(&String::from_utf8(at_least(stream, 1).await).unwrap());
    }
    text
}

#[tokio::test]
async fn a_mode_is_changed_and_told_over_http_on_one_connection() {
    let receiver = start();
    let mut stream = TcpStream::connect(receiver.address()).await.unwrap();
    for (line, body, begins, ends) in [
        ("PUT /modes/a", r#"{"mode":"status","status":500}"#, "200", "{\"mode\":\"status:500\"}\n"),
        ("GET /modes/a", "", "200", "{\"mode\":\"status:500\"}\n"),
        ("PUT /modes/c", "flap:4:1\n", "200", "{\"mode\":\"flap:4:1\"}\n"),
        ("PUT /modes/c", "nonsense", "422", "\n"),
        ("GET /modes/b", "", "200", "{\"mode\":\"answer\"}\n"),
        ("POST /hook/a", "{}", "500", "\r\n\r\n"),
        ("POST /hook/b", "{}", "200", "\r\n\r\n"),
        ("PUT /modes/a", "{\"mode\":\"nonsense\"}", "422", "\n"),
        ("GET /hook/a", "", "405", "\r\n\r\n"),
        ("POST /elsewhere", "", "404", "\n"),
        ("POST /hook/", "", "404", "\n"),
    ] {
        say(&mut stream, line, "", body).await;
        let text = next_answer(&mut stream).await;
        assert!(text.starts_with(&format!("HTTP/1.1 {begins} ")), "{line}: {text}");
        assert!(text.ends_with(ends), "{line}: {text}");
    }
    assert_eq!((receiver.count("a"), receiver.count("b")), (1, 1));
}

#[tokio::test]
async fn waiting_ends_with_the_count_or_with_what_is_missing() {
    let receiver = start();
    let (waited, _) = tokio::join!(receiver.wait_for("a", 1, PATIENCE), answer(&receiver));
    waited.unwrap();
    let late = receiver.wait_for("a", 2, Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(late.to_string(), "a received 1 requests within 20ms, 2 were awaited");
}

#[tokio::test]
async fn an_address_in_use_is_refused_and_free_once_stopped() {
    let receiver = start();
    let address = receiver.address();
    let taken = Receiver::start(address, Clock::system()).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    receiver.stop().await;
    Receiver::start(address, Clock::system()).unwrap();
}

#[tokio::test]
async fn requests_that_bring_too_much_are_refused() {
    let receiver = start();
    let yard = &receiver.yard;
    for number in 0..HOOKS_MAX {
        receiver.count(&number.to_string());
    }
    assert!(yard.hook_if_room("more").is_none() && yard.hook_if_room("7").is_some());
    let stream = ask(&receiver, "connection: close\r\n", "{}").await;
    assert!(rest(stream).await.unwrap().starts_with(b"HTTP/1.1 503 "));

    let receiver = start();
    let mut stream = TcpStream::connect(receiver.address()).await.unwrap();
    stream
        .write_all(b"POST /hook/a HTTP/1.1\r\nhost: a\r\ncontent-length: 4194305\r\n\r\n")
        .await
        .unwrap();
    assert!(at_least(&mut stream, 12).await.starts_with(b"HTTP/1.1 413"));
    assert_eq!(receiver.count("a"), 0);
}
