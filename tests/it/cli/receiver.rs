//! `forebay receiver`: its URL, a line for each delivery, a mode that changes while it runs, and its exit codes.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

use super::{PATIENCE, forebay, run};

async fn ask(address: &str, line: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nwebhook-id: msg_1\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut text)).await.expect("in time").unwrap();
    text
}

#[tokio::test]
async fn a_receiver_prints_what_it_answers_and_ends_when_interrupted() {
    let mut child =
        forebay(&["receiver", "--listen", "127.0.0.1:0", "--json"], &[]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = timeout(PATIENCE, lines.next_line()).await.expect("in time").unwrap().unwrap();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()
    };
    let url = next().await["url"].as_str().unwrap().to_owned();
    let address = url.trim_start_matches("http://").split('/').next().unwrap();
    for (mode, status) in [("answer", 200), ("status:503", 503)] {
        let json = format!("{{\"mode\":\"{mode}\"}}");
        assert!(ask(address, "PUT /modes/a", &json).await.starts_with("HTTP/1.1 200 "));
        ask(address, "POST /hook/a", "{\"type\":\"message.created\"}").await;
        let line = next().await;
        let told = ["endpoint", "id", "type"].map(|field| line[field].as_str().unwrap());
        assert_eq!(
            (told, line["status"].as_u64()),
            (["a", "msg_1", "message.created"], Some(status))
        );
    }
    let taken = run(&["receiver", "--listen", address], &[]).await;
    taken.assert_code(1);
    assert!(taken.stderr.contains(&format!("listening on {address}: ")), "{taken:?}");
    run(&["receiver", "--mode", "nonsense"], &[]).await.assert_code(2);
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().await.unwrap().success());
    let status = timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(0));
}
