//! Connections on which nothing happens: what each costs the server.
//! Promises that those which are counted were joined, and still answered after the memory was read.
//! Does not count what the kernel keeps for a connection; that is no memory of the process.

use std::time::Duration;

use super::line::Place;
use super::{Idle, Stage};
use crate::bench::Error;
use crate::bench::machine::Usage;
use crate::load::tally::{millis, precise};

/// How long the server is left alone before its memory is read.
const SETTLE: Duration = Duration::from_secs(3);

impl Stage<'_> {
    pub(super) async fn idle(&self) -> Result<Idle, Error> {
        let place = Place::of(self.target).await?;
        let conversations = self.conversations(self.options.conversations).await?;
        let wanted: Vec<_> =
            conversations.iter().copied().cycle().take(self.options.idle).collect();
        tokio::time::sleep(SETTLE).await;
        let rss_before = self.rss();
        let began = self.clock.now();
        let mut lines = place.join_all(&wanted).await?;
        let took = self.clock.now().saturating_duration_since(began);
        tokio::time::sleep(SETTLE).await;
        let rss_after = self.rss();
        let mut connections = 0;
        for line in &mut lines {
            line.say(r#"{"frame":"ping","nonce":7}"#.to_owned()).await?;
        }
        for line in &mut lines {
            while !line.next().await?.contains(r#""nonce":7"#) {}
            connections += 1;
        }
        let grown = precise(rss_after.saturating_sub(rss_before));
        drop(lines);
        // They are gone when the next part begins.
        tokio::time::sleep(SETTLE).await;
        Ok(Idle {
            connections,
            conversations: conversations.len(),
            rss_before,
            rss_after,
            bytes_a_connection: grown / precise(u64::try_from(connections).unwrap_or(1).max(1)),
            took_ms: millis(took),
        })
    }

    fn rss(&self) -> u64 {
        Usage::of(self.target.pid).map_or(0, |usage| usage.rss_bytes)
    }
}
