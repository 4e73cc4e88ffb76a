//! `forebay tail`: events on standard output, over a restart of the server, until it is interrupted.

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::{PATIENCE, borrowed, forebay, run};
use crate::world::World;
use crate::world::client::Client;

#[tokio::test]
async fn a_tail_prints_each_event_once_over_a_restart_and_ends_when_interrupted() {
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let (address, tenant) = (server.address.to_string(), Client::tenant(&server).await);
    let conversation = tenant.open().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("watermark");
    let (url, id) = (format!("http://{address}"), conversation.to_string());
    let arguments = [
        "tail",
        "--url",
        &url,
        "--conversation",
        &id,
        "--after=0",
        "--watermark-file",
        file.to_str().unwrap(),
    ];
    let own = vec![("FOREBAY_TOKEN", tenant.bearer().to_owned())];
    let own = borrowed(&own);
    let mut child = forebay(&arguments, &own).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seq = async || {
        let line = timeout(PATIENCE, lines.next_line()).await.expect("in time").unwrap().unwrap();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()["seq"].as_u64().unwrap()
    };
    tenant.say(conversation, "hello").await;
    assert_eq!((seq().await, seq().await), (1, 2));
    server.stop().await;
    let server = world.serve(&[("FOREBAY_LISTEN", &address)]).await;
    let tenant = tenant.at(&server);
    tenant.say(conversation, "again").await;
    assert_eq!(seq().await, 3);
    // The file is written when it is asked for more, which is at once.
    crate::world::eventually("the watermark is kept", async || {
        std::fs::read_to_string(&file).is_ok_and(|kept| kept.contains("\"watermark\":3"))
    })
    .await;
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().await.unwrap().success());
    let status = timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(0));
    let stranger = Client::tenant(&server).await;
    let without = [("FOREBAY_TOKEN", stranger.bearer())];
    let refused = run(&["tail", "--url", &url, "--conversation", &id], &without).await;
    refused.assert_code(4);
    run(&["tail", "--url", &url, "--conversation", &id], &[]).await.assert_code(1);
    let unread =
        run(&["tail", "--url", &url, "--conversation", &id], &[("FOREBAY_TOKEN", "x")]).await;
    unread.assert_code(1);
    assert!(
        unread.stderr.contains(&format!("{address}: the server does not accept")),
        "{unread:?}"
    );
    std::fs::write(&file, "junk").unwrap();
    let junk = run(&arguments, &own).await;
    junk.assert_code(1);
    assert!(junk.stderr.contains(file.to_str().unwrap()), "{junk:?}");
    server.stop().await;
    let mut child = forebay(&["tail", "--url", &url, "--conversation", &id], &own).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    loop {
        let line = timeout(PATIENCE, lines.next_line()).await.expect("in time").unwrap().unwrap();
        if line.contains("connecting again") {
            assert!(line.contains(&address), "{line}");
            break;
        }
    }
}

#[tokio::test]
async fn a_tail_of_no_server_is_a_mistake_that_is_named() {
    let id = "cnv_01a229b3c5b57024a4d446fa92423d97";
    for (url, why) in [
        ("127.0.0.1:8080", "http://"),
        ("https://example.org", "http://"),
        ("http://", "host"),
        ("http://ann:hush@127.0.0.1:8080", "credentials"),
        ("http://127.0.0.1:8080/path", "path"),
    ] {
        let token = [("FOREBAY_TOKEN", "x")];
        let ended = run(&["tail", "--url", url, "--conversation", id], &token).await;
        ended.assert_code(64);
        assert!(ended.stderr.contains("--url") && ended.stderr.contains(why), "{ended:?}");
        assert!(!ended.stderr.contains("hush"), "{ended:?}");
    }
    let help = run(&["tail", "--help"], &[]).await.stdout;
    // However its lines are broken.
    let words: Vec<&str> = help.split_whitespace().collect();
    assert!(words.join(" ").contains("ended, whatever --after says"), "{help}");
}
