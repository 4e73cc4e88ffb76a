//! Connections to receivers: names are resolved, each address is judged, and the judged one is connected to.
//! Promises that no connection leads to an address that the egress rules do not permit.
//! Does not speak HTTP or TLS; libraries do.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use super::egress::{Egress, Host};
use crate::event::Reason;

/// Most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no connection: {}", .0.as_str())]
pub(super) struct Fault(pub Reason);

/// Makes connections.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    pub(super) egress: Egress,
    pub(super) timeout: Duration,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = Fault;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Fault>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(&uri, lookup).await.map(TokioIo::new) })
    }
}

impl Connector {
    /// Connects to where a URL leads. The name is resolved once, whatever it resolves to a moment later.
    async fn connect(
        &self,
        uri: &Uri,
        lookup: impl AsyncFnOnce(&str, u16) -> io::Result<Vec<SocketAddr>>,
    ) -> Result<TcpStream, Fault> {
        let connecting = async {
            let addresses = self.resolve(uri, lookup).await?;
            let mut last = Fault(Reason::Refused);
            for address in addresses {
                match TcpStream::connect(address).await {
                    Ok(stream) => {
                        // Requests are written whole; waiting for more of them only delays the last part.
                        drop(stream.set_nodelay(true));
                        return Ok(stream);
                    }
                    Err(error) => last = Fault(reason(&error)),
                }
            }
            Err(last)
        };
        let connected = tokio::time::timeout(self.timeout, connecting).await;
        connected.unwrap_or(Err(Fault(Reason::TimeoutConnect)))
    }

    /// The addresses of a URL that are permitted. A name with none of them is blocked, also when it has others.
    async fn resolve(
        &self,
        uri: &Uri,
        lookup: impl AsyncFnOnce(&str, u16) -> io::Result<Vec<SocketAddr>>,
    ) -> Result<Vec<SocketAddr>, Fault> {
        let (scheme, host) = (uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default());
        let checked = self.egress.check(scheme, host, uri.port_u16());
        let destination = checked.map_err(|_blocked| Fault(Reason::Blocked))?;
        let port = destination.port;
        let name = match destination.host {
            Host::Address(address) => return Ok(vec![SocketAddr::new(address, port)]),
            Host::Name(name) => name,
        };
        let found = lookup(&name, port).await.map_err(|_unknown| Fault(Reason::Dns))?;
        if found.is_empty() {
            return Err(Fault(Reason::Dns));
        }
        let permitted = |address: &SocketAddr| self.egress.permits(address.ip(), port, &name);
        let permitted: Vec<_> = found.into_iter().filter(permitted).take(ADDRESSES_MAX).collect();
        if permitted.is_empty() { Err(Fault(Reason::Blocked)) } else { Ok(permitted) }
    }
}

/// The addresses of a name, as the machine resolves it.
async fn lookup(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((name, port)).await?.collect())
}

fn reason(error: &io::Error) -> Reason {
    if error.kind() == io::ErrorKind::TimedOut { Reason::TimeoutConnect } else { Reason::Refused }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::net::TcpListener;

    use super::*;

    /// Stands for a public address: it is of this machine, and listed.
    const LISTED: &str = "127.0.0.2";

    /// Of this machine, and not listed.
    const PRIVATE: &str = "127.0.0.1";

    /// What a name resolves to, time after time; the last answer stays.
    struct Zone {
        answers: Vec<Vec<SocketAddr>>,
        asked: AtomicUsize,
    }

    impl Zone {
        fn new(answers: &[&[&str]], port: u16) -> Self {
            let address = |text: &&str| SocketAddr::new(text.parse().unwrap(), port);
            let answers = answers.iter().map(|answer| answer.iter().map(address).collect());
            Self { answers: answers.collect(), asked: AtomicUsize::new(0) }
        }

        fn answer(&self) -> Vec<SocketAddr> {
            let number = self.asked.fetch_add(1, Ordering::Relaxed);
            self.answers[number.min(self.answers.len() - 1)].clone()
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::Relaxed)
        }
    }

    fn connector() -> Connector {
        Connector { egress: Egress::parse(LISTED).unwrap(), timeout: Duration::from_secs(5) }
    }

    async fn connect(zone: &Zone, port: u16) -> Result<IpAddr, Fault> {
        let uri = format!("http://hooks.example.com:{port}/").parse().unwrap();
        let connected = connector().connect(&uri, async |_: &str, _: u16| Ok(zone.answer())).await;
        connected.map(|stream| stream.peer_addr().unwrap().ip())
    }

    /// Somebody listens on both addresses, so that whatever is connected to answers.
    async fn listeners() -> (TcpListener, TcpListener, u16) {
        let private = TcpListener::bind((PRIVATE, 0)).await.unwrap();
        let port = private.local_addr().unwrap().port();
        (private, TcpListener::bind((LISTED, port)).await.unwrap(), port)
    }

    #[tokio::test]
    async fn the_address_that_is_judged_is_connected_to_whatever_the_name_says_next() {
        let (_private, _listed, port) = listeners().await;
        let zone = Zone::new(&[&[LISTED], &[PRIVATE]], port);
        assert_eq!(connect(&zone, port).await, Ok(LISTED.parse().unwrap()));
        assert_eq!(zone.asked(), 1, "there is no second look between judging and connecting");
        assert_eq!(connect(&zone, port).await, Err(Fault(Reason::Blocked)), "the next connection");
        assert_eq!(zone.asked(), 2);
        let zone = Zone::new(&[&[PRIVATE], &[LISTED]], port);
        assert_eq!(connect(&zone, port).await, Err(Fault(Reason::Blocked)));
    }

    #[tokio::test]
    async fn of_several_addresses_only_those_that_are_permitted_are_connected_to() {
        let (_private, listed, port) = listeners().await;
        let zone = Zone::new(&[&[PRIVATE, "10.0.0.1", LISTED, "::1"]], port);
        assert_eq!(connect(&zone, port).await, Ok(LISTED.parse().unwrap()));
        drop(listed);
        // The private one would answer.
        assert_eq!(connect(&zone, port).await, Err(Fault(Reason::Refused)));
    }

    #[tokio::test]
    async fn a_name_that_leads_to_what_is_not_public_is_blocked_and_one_that_leads_nowhere_is_not()
    {
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "0.0.0.0",
            "::1",
            "::",
            "fe80::1",
            "fd00:ec2::254",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            // Also in the clothes of a listed address.
            "::ffff:127.0.0.2",
            "64:ff9b::7f00:1",
            "2002:7f00:1::1",
        ] {
            let zone = Zone::new(&[&[address]], 80);
            assert_eq!(connect(&zone, 80).await, Err(Fault(Reason::Blocked)), "{address}");
        }
        assert_eq!(connect(&Zone::new(&[&[]], 80), 80).await, Err(Fault(Reason::Dns)));
    }

    #[tokio::test]
    async fn a_host_that_is_no_plain_name_is_not_even_resolved() {
        let zone = Zone::new(&[&[LISTED]], 80);
        for host in ["localhost", "metadata.google.internal", "127.1", "0x7f.1", "[::ffff:7f00:1]"]
        {
            let uri = format!("http://{host}/").parse().unwrap();
            let refused =
                connector().connect(&uri, async |_: &str, _: u16| Ok(zone.answer())).await;
            assert_eq!(refused.err(), Some(Fault(Reason::Blocked)), "{host}");
        }
        assert_eq!(zone.asked(), 0);
    }
}
