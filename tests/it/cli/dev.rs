//! `forebay dev`: what it prints works, and nothing of it outlives it.

use std::path::Path;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::{PATIENCE, forebay};
use crate::world::client::Client;
use crate::world::{binaries, eventually};

#[tokio::test]
async fn dev_prints_a_key_that_works_and_leaves_nothing_when_it_is_killed() {
    // What is missing is installed once, and not by two at a time.
    binaries().await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(".forebay");
    let root = root.to_str().unwrap();
    let arguments = ["dev", "--ephemeral", "--json", "--listen", "127.0.0.1:0", "--data-dir", root];
    let mut child = forebay(&arguments, &[]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.expect("it says where it is").unwrap();
    let state: Value = serde_json::from_str(&line.expect("it runs")).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let address = text(&state["url"]).strip_prefix("http://").unwrap().parse().unwrap();
    let tenant = Client::to(address, &text(&state["apiKey"]));
    let id = forebay::event::ConversationId::parse(&text(&state["conversationId"])).unwrap();
    assert_eq!(tenant.say(id, "hello").await, 2);
    assert_eq!(tenant.page(id, "").await.seqs(), [1, 2]);
    let operator = Client::to(address, &text(&state["adminToken"]));
    assert_eq!(operator.get("/v1/tenants").await.json()["tenants"][0]["id"], state["tenantId"]);

    let mut pids: Vec<u64> = ["postgres", "nats"].map(|s| state[s]["pid"].as_u64().unwrap()).into();
    let sessions = format!("/proc/{0}/task/{0}/children", pids[0]);
    let sessions = std::fs::read_to_string(sessions).unwrap();
    pids.extend(sessions.split_whitespace().map(|pid| pid.parse::<u64>().unwrap()));
    assert!(pids.len() > 3 && pids.iter().all(|pid| runs(*pid)), "{pids:?}");
    assert_eq!(state["pid"].as_u64(), child.id().map(u64::from));
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-s", "KILL", &pid]).status().await.unwrap().success());
    assert!(!timeout(PATIENCE, child.wait()).await.unwrap().unwrap().success());
    eventually("its children are gone", async || !pids.iter().any(|pid| runs(*pid))).await;
}

/// Whether the process is there and not just waiting to be reaped.
fn runs(pid: u64) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}
