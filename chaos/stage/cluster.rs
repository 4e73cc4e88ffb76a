//! A cluster of NATS servers, as its monitoring pages show it.
//! Promises to name the server that leads a stream, and to wait until a young cluster has a leader.
//! Does not start or end servers.

use std::time::Duration;

use anyhow::Context as _;
use forebay::cli::operator;
use forebay::clock::Clock;
use forebay::sandbox::Nats;
use serde_json::Value;
use tokio::time::interval;

/// The stream whose leader is asked for.
const STREAM: &str = "forebay_LOG_0";

/// Longest wait until the servers have agreed on who leads them.
const LED_MAX: Duration = Duration::from_secs(30);

/// How often they are asked.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until every server says that it is well, which it does once somebody leads.
pub(crate) async fn wait_until_led(nats: &[Nats], clock: &Clock) -> anyhow::Result<()> {
    let until = clock.now() + LED_MAX;
    let mut look = interval(LOOK);
    for server in nats {
        let page = format!("{}/healthz", server.monitor_url());
        loop {
            look.tick().await;
            let answer = operator::probe(&page).await;
            if answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
                break;
            }
            anyhow::ensure!(clock.now() < until, "{} does not join its cluster", server.name());
        }
    }
    Ok(())
}

/// The server that leads partition 0.
pub(crate) async fn leader(nats: &[Nats]) -> anyhow::Result<usize> {
    let url = nats[0].monitor_url();
    let host = url.strip_prefix("http://").context("the address of a monitoring page")?;
    // Under HTTP/1.0 an answer does not come in chunks.
    let request = format!("GET /jsz?accounts=true&streams=true HTTP/1.0\r\nHost: {host}\r\n\r\n");
    let answer = operator::exchange(host, &request).await.context("asking NATS for its streams")?;
    let (_, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    let page: Value = serde_json::from_str(body).context("the page of streams")?;
    let name = leader_of(&page, STREAM).context("nobody leads the stream")?;
    let is_it = |server: &Nats| server.name() == name;
    nats.iter().position(is_it).with_context(|| format!("{name} is no server of ours"))
}

fn leader_of<'a>(page: &'a Value, stream: &str) -> Option<&'a str> {
    let accounts = page["account_details"].as_array()?;
    let mut streams = accounts.iter().filter_map(|a| a["stream_detail"].as_array()).flatten();
    streams.find(|found| found["name"] == stream)?["cluster"]["leader"].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_leader_is_found_by_the_streams_name() {
        let page = json!({"account_details": [{"stream_detail": [
            {"name": "a", "cluster": {"leader": "n1"}},
            {"name": "b", "cluster": {"leader": "n2"}},
        ]}]});
        assert_eq!(leader_of(&page, "b"), Some("n2"));
        assert_eq!(leader_of(&page, "c"), None);
        assert_eq!(leader_of(&json!({}), "b"), None);
    }
}
