//! A TCP proxy on loopback that can be told to fail: cut, hold, delay or throttle what passes.
//! Promises that what passes is unchanged and in order, and that a new condition acts at once on every connection.
//! Does not understand what passes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use forebay::clock::Clock;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::scenario::Condition;

/// What is read at once, in bytes: a throttled link passes it in one piece.
const CHUNK: usize = 16 * 1024;

/// Most connections of one proxy; further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 2_000;

/// Where a proxy leads.
#[derive(Clone, Debug)]
pub(crate) enum Far {
    /// To the first of these that takes a connection: a client's list of nodes.
    Tcp(Vec<SocketAddr>),
    /// To a socket of this machine.
    Unix(PathBuf),
}

/// A running proxy; dropping it closes all of its connections.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    condition: watch::Sender<Condition>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// Listens on a free port of loopback.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) async fn start(far: Far, clock: Clock) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (condition, watched) = watch::channel(Condition::Healed);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, far, watched, clock));
        Ok(Self { address, condition, _accepting: accepting })
    }

    /// How it behaves from now on.
    pub(crate) fn set(&self, condition: Condition) {
        self.condition.send_replace(condition);
    }
}

async fn accept(
    listener: TcpListener,
    far: Far,
    condition: watch::Receiver<Condition>,
    clock: Clock,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_ended) = connections.join_next(), if !connections.is_empty() => {}
            taken = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                if let Ok((near, _)) = taken {
                    let link = Link { condition: condition.clone(), clock: clock.clone() };
                    connections.spawn(link.carry(near, far.clone()));
                }
            }
        }
    }
}

/// One connection.
#[derive(Clone)]
struct Link {
    condition: watch::Receiver<Condition>,
    clock: Clock,
}

/// Which way something goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

impl Link {
    async fn carry(mut self, near: TcpStream, far: Far) {
        if !self.passes().await {
            return;
        }
        let carried = match far {
            Far::Tcp(addresses) => match first(&addresses).await {
                Some(far) => self.between(near, far).await,
                None => return,
            },
            Far::Unix(path) => match UnixStream::connect(path).await {
                Ok(far) => self.between(near, far).await,
                Err(_gone) => return,
            },
        };
        // A broken connection is what it is for; both ends see it by its close.
        drop(carried);
    }

    async fn between<F>(self, near: TcpStream, far: F) -> std::io::Result<()>
    where
        F: AsyncRead + AsyncWrite,
    {
        near.set_nodelay(true)?;
        let (near_read, near_write) = tokio::io::split(near);
        let (far_read, far_write) = tokio::io::split(far);
        let there = self.clone().pump(Way::There, near_read, far_write);
        let back = self.pump(Way::Back, far_read, near_write);
        // Whichever ends first ends both, as a reset does.
        tokio::select! {
            ended = there => ended,
            ended = back => ended,
        }
    }

    async fn pump(
        mut self,
        way: Way,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> std::io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = tokio::select! {
                read = from.read(&mut chunk) => read?,
                _ = self.condition.wait_for(|now| *now == Condition::Cut) => return Ok(()),
            };
            if read == 0 || !self.passes().await {
                return Ok(());
            }
            if let Some(wait) = self.wait(way, read) {
                let until = self.clock.now() + wait;
                let mut condition = self.condition.clone();
                condition.mark_unchanged();
                tokio::select! {
                    () = sleep_until(until.into()) => {}
                    _ = condition.changed() => {}
                }
            }
            if *self.condition.borrow() == Condition::Cut {
                return Ok(());
            }
            to.write_all(&chunk[..read]).await?;
        }
    }

    /// Waits while nothing passes; `false` when the connection is to be closed.
    async fn passes(&mut self) -> bool {
        let passing = self.condition.wait_for(|now| *now != Condition::BlackHole).await;
        passing.is_ok_and(|now| *now != Condition::Cut)
    }

    /// How long a piece of this size is held.
    fn wait(&self, way: Way, bytes: usize) -> Option<Duration> {
        let condition = *self.condition.borrow();
        match (condition, way) {
            (Condition::AnswersDelayed(by), Way::Back) => Some(by),
            (Condition::Throttled(rate), _) => {
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                Some(Duration::from_secs_f64(f64::from(bytes) / f64::from(rate.max(1))))
            }
            (
                Condition::Healed
                | Condition::Cut
                | Condition::BlackHole
                | Condition::AnswersDelayed(_),
                _,
            ) => None,
        }
    }
}

async fn first(addresses: &[SocketAddr]) -> Option<TcpStream> {
    for address in addresses {
        if let Ok(stream) = TcpStream::connect(address).await {
            // Small answers are not to wait for more.
            drop(stream.set_nodelay(true));
            return Some(stream);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_millis(100);
    const PATIENCE: Duration = Duration::from_secs(10);

    /// Somebody who says everything again, and a connection to it through a proxy.
    async fn through() -> (Proxy, TcpStream, JoinSet<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let far = Far::Tcp(vec![listener.local_addr().unwrap()]);
        let mut echo = JoinSet::new();
        echo.spawn(async move {
            let mut all = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                all.spawn(async move {
                    let (mut read, mut write) = stream.into_split();
                    drop(tokio::io::copy(&mut read, &mut write).await);
                });
            }
        });
        let proxy = Proxy::start(far, Clock::system()).await.unwrap();
        let near = TcpStream::connect(proxy.address).await.unwrap();
        (proxy, near, echo)
    }

    async fn echoed(near: &mut TcpStream, text: &[u8]) -> bool {
        near.write_all(text).await.unwrap();
        let mut back = vec![0; text.len()];
        near.read_exact(&mut back).await.is_ok_and(|_| back == text)
    }

    #[tokio::test]
    async fn what_a_black_hole_holds_comes_when_it_is_healed() {
        let (proxy, mut near, _echo) = through().await;
        assert!(echoed(&mut near, b"one").await);
        proxy.set(Condition::BlackHole);
        near.write_all(b"two").await.unwrap();
        let mut back = [0; 3];
        assert!(timeout(SOON, near.read_exact(&mut back)).await.is_err(), "nothing passes");
        proxy.set(Condition::Healed);
        timeout(PATIENCE, near.read_exact(&mut back)).await.unwrap().unwrap();
        assert_eq!(&back, b"two");
    }

    #[tokio::test]
    async fn a_cut_closes_what_is_open_and_refuses_what_comes() {
        let (proxy, mut near, _echo) = through().await;
        assert!(echoed(&mut near, b"one").await);
        proxy.set(Condition::Cut);
        let mut back = [0; 1];
        assert!(matches!(timeout(PATIENCE, near.read(&mut back)).await.unwrap(), Ok(0) | Err(_)));
        let mut late = TcpStream::connect(proxy.address).await.unwrap();
        assert!(matches!(timeout(PATIENCE, late.read(&mut back)).await.unwrap(), Ok(0) | Err(_)));
        proxy.set(Condition::Healed);
        let mut again = TcpStream::connect(proxy.address).await.unwrap();
        assert!(echoed(&mut again, b"two").await);
    }

    #[tokio::test]
    async fn answers_are_delayed_and_a_heal_lets_them_go_at_once() {
        let (proxy, mut near, _echo) = through().await;
        let clock = Clock::system();
        proxy.set(Condition::AnswersDelayed(SOON));
        let begun = clock.now();
        assert!(echoed(&mut near, b"one").await);
        assert!(clock.now() >= begun + SOON);
        proxy.set(Condition::AnswersDelayed(PATIENCE * 10));
        near.write_all(b"two").await.unwrap();
        let mut back = [0; 3];
        assert!(timeout(SOON, near.read_exact(&mut back)).await.is_err());
        proxy.set(Condition::Healed);
        timeout(PATIENCE, near.read_exact(&mut back)).await.unwrap().unwrap();
    }
}
