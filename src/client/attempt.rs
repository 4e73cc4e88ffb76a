//! Connecting, again and again: the handshake, the talk on one connection, and the wait before the next.
//! Promises waits with full jitter, never below what the server asked for, and to hold back from a server that refuses.
//! Does not keep what was read; `connection` does.

use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use rand::RngExt as _;
use rand::rngs::SmallRng;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{sleep, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header::{AUTHORIZATION, RETRY_AFTER};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::connection::{Course, Ended};
use super::frame::{Frame, Limits, Reason, Text};
use super::outbox::Outbox;
use super::{Settings, State, Stopped, Told};
use crate::admission::Priority;
use crate::clock::Clock;
use crate::load::backoff::Backoff;
use crate::load::throttle::{Decision, Ending, Throttle};

/// Longest first pause and longest of all (PROTOCOL: coming back).
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Longest wait for a connection with its handshake.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Longest wait for a write: a server that does not read is as good as gone.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// Said nothing for so long, a client pings: half of what the server waits.
const PING_AFTER: Duration = Duration::from_secs(30);

/// Connections under way at once.
const CONNECTS: u16 = 1;

const SUBPROTOCOL: &str = "forebay.v1+json";

type Socket = WebSocketStream<TcpStream>;

/// When to try.
#[derive(Debug)]
pub(super) struct Attempts {
    rng: SmallRng,
    throttle: Throttle,
    backoff: Backoff,
}

impl Attempts {
    pub(super) fn new(rng: SmallRng, now: Instant) -> Self {
        let backoff = Backoff::between(PAUSES.0, PAUSES.1);
        Self { rng, throttle: Throttle::new(CONNECTS, now), backoff }
    }

    fn on_attempt(&mut self, now: Instant) -> Decision {
        let draw = self.rng.random::<f64>();
        self.throttle.on_call(Priority::High, draw, now)
    }

    fn on_end(&mut self, ending: Ending, now: Instant) {
        self.throttle.on_end(Priority::High, ending, now);
    }

    fn on_welcome(&mut self, now: Instant) {
        self.on_end(Ending::Accepted, now);
        self.backoff = Backoff::between(PAUSES.0, PAUSES.1);
    }

    fn pause(&mut self, asked: Option<Duration>) -> Duration {
        let draw = self.rng.random::<f64>();
        self.backoff.next(asked, draw)
    }
}

/// Connects and talks until it is stopped or nobody listens.
pub(super) async fn run(
    settings: Settings,
    (mut course, mut outbox): (Course, Outbox),
    mut attempts: Attempts,
    clock: Clock,
) {
    loop {
        let mut talk = Talk {
            course: &mut course,
            outbox: &mut outbox,
            attempts: &mut attempts,
            clock: &clock,
            limits: None,
            asked: None,
        };
        let ended = match talk.attempt(&settings).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        };
        let (why, wait) = match ended {
            Ended::Unheard => return,
            Ended::Stopped(why) => {
                // The last word; nobody may want it.
                drop(course.tell(Told::State(State::Stopped(why))).await);
                return;
            }
            Ended::Again { why, after, .. } => {
                (format!("{}: {why}", settings.server), attempts.pause(after))
            }
        };
        if course.enter(State::Waiting { wait, why }).await.is_err() {
            return;
        }
        sleep(wait).await;
    }
}

/// One connection.
struct Talk<'a> {
    course: &'a mut Course,
    outbox: &'a mut Outbox,
    attempts: &'a mut Attempts,
    clock: &'a Clock,
    /// Those of the welcome.
    limits: Option<Limits>,
    /// The wait that the server named last.
    asked: Option<Duration>,
}

/// There is no good end of a connection.
enum Never {}

impl Talk<'_> {
    async fn attempt(&mut self, settings: &Settings) -> Result<Never, Ended> {
        match self.attempts.on_attempt(self.clock.now()) {
            Decision::Send => {}
            Decision::HoldBack => {
                let why = "held back: the server has refused too often".to_owned();
                return Err(Ended::Again { why, after: None, is_overload: true });
            }
        }
        self.course.enter(State::Connecting).await?;
        let ended = match timeout(CONNECT_MAX, connect(settings)).await {
            Ok(Ok(mut socket)) => self.talk(&mut socket).await,
            Ok(Err(ended)) => Err(ended),
            Err(_elapsed) => Err(Ended::broken("no connection in time")),
        };
        if let (Err(Ended::Again { is_overload, .. }), None) = (&ended, &self.limits) {
            let ending = if *is_overload { Ending::Overloaded } else { Ending::Accepted };
            self.attempts.on_end(ending, self.clock.now());
        }
        ended
    }

    async fn talk(&mut self, socket: &mut Socket) -> Result<Never, Ended> {
        say(socket, self.course.hello().to_string()).await?;
        let (mut heard, mut said) = (self.clock.now(), self.clock.now());
        loop {
            let now = self.clock.now();
            while let Some(text) = self.limits.and_then(|_| self.outbox.next(now)) {
                say(socket, text).await?;
                said = now;
            }
            let silent = heard + self.silence_max();
            let sends = self.limits.and_then(|_| self.outbox.next_wake());
            let wakes = [Some(said + PING_AFTER), self.course.next_wake(), sends];
            let wake = wakes.into_iter().flatten().fold(silent, Instant::min);
            let has_room = self.limits.is_some() && self.outbox.has_room();
            tokio::select! {
                read = socket.next() => {
                    let answers = self.on_read(read).await?;
                    // Afterwards: telling may take as long as the application takes to listen.
                    heard = self.clock.now();
                    for answer in answers {
                        say(socket, answer.to_string()).await?;
                        said = heard;
                    }
                }
                Some(()) = self.outbox.take(now), if has_room => {}
                () = sleep_until(wake.into()) => {
                    let now = self.clock.now();
                    if now >= silent {
                        return Err(Ended::broken("nothing was heard"));
                    }
                    let ping = (now >= said + PING_AFTER).then(|| json!({ "frame": "ping" }));
                    for frame in [self.course.on_wake(now), ping].into_iter().flatten() {
                        say(socket, frame.to_string()).await?;
                        said = now;
                    }
                }
            }
        }
    }

    /// 2.5 heartbeats.
    fn silence_max(&self) -> Duration {
        let heartbeat = self.limits.unwrap_or_default().heartbeat_ms;
        Duration::from_millis(heartbeat.saturating_mul(5) / 2)
    }

    async fn on_read(&mut self, read: Option<Result<Message, Error>>) -> Result<Vec<Value>, Ended> {
        match read {
            Some(Ok(Message::Text(text))) => self.on_text(text).await,
            Some(Ok(Message::Close(close))) => Err(self.closed(close.as_ref())),
            Some(Ok(
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_),
            )) => Ok(Vec::new()),
            Some(Err(error)) => Err(Ended::broken(error)),
            None => Err(Ended::broken("the connection ended without a word")),
        }
    }

    async fn on_text(&mut self, text: Text) -> Result<Vec<Value>, Ended> {
        let Ok(frame) = serde_json::from_str::<Frame>(&text) else {
            return Ok(Vec::new());
        };
        let now = self.clock.now();
        match frame.name.as_str() {
            "welcome" => {
                let limits = frame.limits.unwrap_or_default();
                self.outbox.on_welcome(limits, now);
                if self.limits.replace(limits).is_none() {
                    self.attempts.on_welcome(now);
                }
            }
            "ack" => self.outbox.on_ack(&frame),
            "error" => {
                self.asked = frame.retry_after();
                self.outbox.on_error(&frame, now);
            }
            _ => {}
        }
        self.course.on_frame(&frame, text, now).await
    }

    fn closed(&self, close: Option<&CloseFrame>) -> Ended {
        let Some(close) = close else {
            return Ended::broken("closed without a reason");
        };
        let (code, reason) = (u16::from(close.code), Reason::read(&close.reason));
        match code {
            4_401 => Ended::Stopped(Stopped::Unauthorized),
            4_403 => Ended::Stopped(Stopped::Forbidden),
            _ => Ended::Again {
                why: format!("closed with {code} {}", reason.reason).trim_end().to_owned(),
                after: reason.retry_after().or(self.asked),
                is_overload: code == 1_013,
            },
        }
    }
}

async fn connect(settings: &Settings) -> Result<Socket, Ended> {
    let authority = settings.server.authority();
    let stream = TcpStream::connect(authority).await.map_err(Ended::broken)?;
    stream.set_nodelay(true).map_err(Ended::broken)?;
    let request = format!("ws://{authority}/v1/socket").into_client_request();
    let mut request = request.map_err(Ended::broken)?;
    let bearer = HeaderValue::from_str(&format!("Bearer {}", settings.token));
    let bearer = bearer.map_err(|_unwritable| Ended::Stopped(Stopped::Unauthorized))?;
    let headers = request.headers_mut();
    headers.insert(AUTHORIZATION, bearer);
    headers.insert("sec-websocket-protocol", HeaderValue::from_static(SUBPROTOCOL));
    match tokio_tungstenite::client_async(request, stream).await {
        Ok((socket, _response)) => Ok(socket),
        Err(Error::Http(response)) => Err(match response.status().as_u16() {
            401 => Ended::Stopped(Stopped::Unauthorized),
            403 => Ended::Stopped(Stopped::Forbidden),
            status => {
                let seconds = response.headers().get(RETRY_AFTER);
                let seconds = seconds.and_then(|text| text.to_str().ok()?.parse().ok());
                Ended::Again {
                    why: format!("answered with {status}"),
                    after: seconds.map(Duration::from_secs),
                    is_overload: Ending::of_status(status) == Ending::Overloaded,
                }
            }
        }),
        Err(error) => Err(Ended::broken(error)),
    }
}

async fn say(socket: &mut Socket, text: String) -> Result<(), Ended> {
    match timeout(WRITE_MAX, socket.send(Message::text(text))).await {
        // What the server said before it closed is still to be read.
        Ok(Ok(()) | Err(Error::ConnectionClosed | Error::AlreadyClosed | Error::Protocol(_))) => {
            Ok(())
        }
        Ok(Err(error)) => Err(Ended::broken(error)),
        Err(_elapsed) => Err(Ended::broken("nothing can be written")),
    }
}
