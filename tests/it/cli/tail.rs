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
    server.stop().await;
}
