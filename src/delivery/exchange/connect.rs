//! Connections to receivers: names are resolved, each address is judged, and the judged one is connected to.
//! Promises that no connection leads to an address that the egress rules do not permit.
//! Does not speak HTTP or TLS; libraries do.

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
        Box::pin(async move { connector.connect(&uri).await.map(TokioIo::new) })
    }
}

impl Connector {
    async fn connect(&self, uri: &Uri) -> Result<TcpStream, Fault> {
        let connecting = async {
            let addresses = self.resolve(uri).await?;
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
    async fn resolve(&self, uri: &Uri) -> Result<Vec<SocketAddr>, Fault> {
        let (scheme, host) = (uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default());
        let checked = self.egress.check(scheme, host, uri.port_u16());
        let destination = checked.map_err(|_blocked| Fault(Reason::Blocked))?;
        let port = destination.port;
        let name = match destination.host {
            Host::Address(address) => return Ok(vec![SocketAddr::new(address, port)]),
            Host::Name(name) => name,
        };
        let found = tokio::net::lookup_host((name.as_str(), port)).await;
        let found: Vec<_> = found.map_err(|_unknown| Fault(Reason::Dns))?.collect();
        if found.is_empty() {
            return Err(Fault(Reason::Dns));
        }
        let permitted = |address: &SocketAddr| self.egress.permits(address.ip(), port, &name);
        let permitted: Vec<_> = found.into_iter().filter(permitted).take(ADDRESSES_MAX).collect();
        if permitted.is_empty() { Err(Fault(Reason::Blocked)) } else { Ok(permitted) }
    }
}

fn reason(error: &std::io::Error) -> Reason {
    if error.kind() == std::io::ErrorKind::TimedOut {
        Reason::TimeoutConnect
    } else {
        Reason::Refused
    }
}
