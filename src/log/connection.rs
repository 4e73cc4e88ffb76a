//! Connections to NATS: how patiently they are made, kept and made anew.
//! Promises that no credential of an address is shown.
//! Does not know what they carry.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Event;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{Error, REQUEST_TIMEOUT, Settings};

/// How often an idle connection is pinged. The library's own minute would notice a dead server after two or three.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Longest wait for a TCP connection and the server's greeting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Step by which pauses between attempts to reconnect grow, and their bound: a server that is back is found at once.
const RECONNECT_STEP: Duration = Duration::from_millis(20);
const RECONNECT_MAX: Duration = Duration::from_millis(500);

/// Messages that wait inside of the client library before a subscriber reads them; what comes on top is dropped. A pull fits
/// in, which the feed checks.
pub(super) const SUBSCRIPTION_CAPACITY: usize = 1_024;

/// Connects for this purpose; the receiver counts how often that has succeeded.
pub(super) async fn connect(
    settings: &Settings,
    purpose: &str,
) -> Result<(async_nats::Client, watch::Receiver<u64>), Error> {
    let (count, connects) = watch::channel(0_u64);
    let count = Arc::new(count);
    let purpose_of_events = purpose.to_owned();
    let options = async_nats::ConnectOptions::new()
        .name(format!("forebay {} {purpose}", settings.namespace.as_str()))
        .ping_interval(PING_INTERVAL)
        .connection_timeout(CONNECT_TIMEOUT)
        .request_timeout(Some(REQUEST_TIMEOUT))
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .reconnect_delay_callback(|attempts| {
            let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
            RECONNECT_STEP.saturating_mul(attempts).min(RECONNECT_MAX)
        })
        .event_callback(move |event| {
            let count = Arc::clone(&count);
            let purpose = purpose_of_events.clone();
            async move { on_event(&event, &count, &purpose) }
        });
    let shown = without_credentials(&settings.url);
    let servers: Result<Vec<async_nats::ServerAddr>, _> =
        settings.url.split(',').map(|server| server.trim().parse()).collect();
    let Ok(servers) = servers else {
        return Err(Error::Address { url: shown });
    };
    let client = async_nats::connect_with_options(servers, options)
        .await
        .map_err(|source| Error::Connect { url: shown, source })?;
    Ok((client, connects))
}

fn on_event(event: &Event, count: &watch::Sender<u64>, purpose: &str) {
    if matches!(event, Event::Connected) {
        count.send_modify(|connects| *connects += 1);
    }
    // Closed is the end of every handle, as at a stop: a client that may reconnect never closes.
    if matches!(event, Event::Connected | Event::Closed) {
        info!("NATS connection ({purpose}): {event}");
    } else {
        warn!("NATS connection ({purpose}): {event}");
    }
}

fn without_credentials(url: &str) -> String {
    let hide = |server: &str| match server.rsplit_once('@') {
        Some((_credentials, host)) => format!("nats://{host}"),
        None => server.to_owned(),
    };
    url.split(',').map(|server| hide(server.trim())).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_an_address_are_not_shown() {
        assert_eq!(without_credentials("nats://u:p@h:1, nats://k:2"), "nats://h:1,nats://k:2");
    }
}
