//! The door of server-sent events: a conversation as it happens, over plain HTTP.
//! Promises that `Last-Event-ID` never passes a hole: an event has an id only when everything before it was sent.
//! Does not decide what is owed; `live::session` does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep_until;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Sockets;
use super::frame::event;
use super::joined::page;
use super::place::place;
use super::talk::DRAIN_WINDOW;
use crate::admission::Source;
use crate::api::access::Speaker;
use crate::api::frame::request::{At, number, query};
use crate::api::problem::Problem;
use crate::event::{ConversationId, id};
use crate::history::Reader;
use crate::lifecycle::Stop;
use crate::live::frame::{Format, Frame};
use crate::live::hub::{Known, Membership};
use crate::live::inbox::{Inbox, News};
use crate::live::session::RETRY_AFTER;
use crate::live::{Close, Command, Join, Live, Refused, Session};

/// How often a comment is written, so that nobody between takes the stream for dead (API).
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Tells nginx and its kin not to gather what is written.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What every stream has to hand.
#[derive(Debug)]
pub(in crate::api) struct Streams {
    pub(in crate::api) sockets: Arc<Sockets>,
    /// The door closes.
    pub(in crate::api) closing: Stop,
}

pub(in crate::api) fn routes() -> OpenApiRouter<Arc<Streams>> {
    OpenApiRouter::new().routes(routes!(events))
}

/// A conversation as it happens, as server-sent events.
///
/// Each event has the id `<epoch>:<seq>`; whoever returns with it in `Last-Event-ID` goes on from there. Under pressure
/// the stream says so by `event: error` and ends; `EventSource` comes back by itself.
#[utoipa::path(get, path = "/v1/conversations/{id}/events", tag = "live", security(("tenant" = []), ("user" = [])),
    params(("id" = String, Path, description = "The conversation"),
           ("after" = Option<u64>, Query, description = "The seq to go on from, exclusive; without it only what happens from now on"),
           ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event; beats after")),
    responses((status = 200, description = "The stream", content_type = "text/event-stream", body = String)))]
async fn events(
    State(streams): State<Arc<Streams>>,
    At(conversation): At<id::kind::Conversation>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let sockets = Arc::clone(&streams.sockets);
    let mut headers = parts.headers.clone();
    let mut after = None;
    for (name, value) in query(&parts)? {
        match name.as_str() {
            "after" => after = Some(number("after", &value, 0..=u64::MAX)?),
            // EventSource cannot set headers.
            "token" if !headers.contains_key(hyper::header::AUTHORIZATION) => {
                if let Ok(value) = HeaderValue::from_str(&format!("Bearer {value}")) {
                    headers.insert(hyper::header::AUTHORIZATION, value);
                }
            }
            _ => {}
        }
    }
    let now = sockets.clock.timestamp();
    let speaker = sockets.doorkeeper.speaker(&headers, conversation, now)?;
    let place = place(&parts.headers)?;
    let flow = Flow::new(streams, (headers, speaker), conversation, place, after);
    let body = stream::unfold(flow, |mut flow| async move {
        let chunk = flow.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(chunk), flow))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    Ok(response)
}

/// One stream.
struct Flow {
    streams: Arc<Streams>,
    bearer: HeaderMap,
    speaker: Speaker,
    conversation: ConversationId,
    place: Option<(String, u64)>,
    after: Option<u64>,
    inbox: Inbox,
    joined: Option<(Session<Frame>, Membership)>,
    out: VecDeque<Bytes>,
    page: Option<(u64, usize)>,
    heartbeat: Instant,
    /// Where the conversation ended at the last heartbeat, as far as memory knew.
    head_at_beat: u64,
    /// When it ends because the door closes.
    leaves: Option<Instant>,
    revoked: watch::Receiver<u64>,
    has_ended: bool,
}

impl Flow {
    fn new(
        streams: Arc<Streams>,
        (bearer, speaker): (HeaderMap, Speaker),
        conversation: ConversationId,
        place: Option<(String, u64)>,
        after: Option<u64>,
    ) -> Self {
        let heartbeat = streams.sockets.clock.now() + HEARTBEAT;
        let revoked = streams.sockets.doorkeeper.directory.revoked();
        Self {
            streams,
            bearer,
            speaker,
            conversation,
            place,
            after,
            inbox: Inbox::default(),
            joined: None,
            out: VecDeque::new(),
            page: None,
            heartbeat,
            head_at_beat: 0,
            leaves: None,
            revoked,
            has_ended: false,
        }
    }

    /// What is to be written next; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(chunk) = self.out.pop_front() {
                return Some(chunk);
            }
            if self.has_ended {
                return None;
            }
            if self.joined.is_none() {
                self.join().await;
            } else if let Some((after, limit)) = self.page.take() {
                self.fetch(after, limit).await;
            } else {
                self.wait().await;
            }
        }
    }

    async fn join(&mut self) {
        let sockets = Arc::clone(&self.streams.sockets);
        let membership = sockets.hub.join(self.conversation, &self.inbox);
        let reader = Reader::of(&self.speaker.tenant, Source::Sse);
        let found = match sockets.hub.look(self.speaker.tenant.id, self.conversation) {
            Known::EndsAt(head) => Ok(Some(head)),
            Known::Foreign => Ok(None),
            Known::Nothing => {
                let found = sockets.history.conversation(reader, self.conversation).await;
                found.map(|view| view.map(|view| view.head_seq))
            }
        };
        let head = match found {
            Ok(Some(head)) => head.max(sockets.hub.head(self.conversation).unwrap_or(0)),
            Ok(None) => {
                return self.end("conversation_not_found", "There is no such conversation.");
            }
            Err(_) => return self.end("unavailable", "Whether it can be read is not known now."),
        };
        let (epoch, watermark) = match self.place.take() {
            Some((epoch, seq)) => (Some(epoch), seq),
            None => (None, self.after.unwrap_or(head)),
        };
        let join = Join {
            watermark,
            has_gaps: false,
            head,
            oldest: 1,
            epoch_matches: epoch.is_none_or(|epoch| epoch == sockets.epoch),
        };
        let mut commands = Vec::new();
        let session = Session::join(join, sockets.clock.now(), &mut commands);
        self.joined = Some((session, membership));
        // A first line tells that the stream stands, and how long to wait before coming back.
        self.out.push_back(Bytes::from(format!("retry: {}\n\n", self.retry().as_millis())));
        self.carry_out(commands);
    }

    async fn fetch(&mut self, after: u64, limit: usize) {
        let sockets = Arc::clone(&self.streams.sockets);
        let now = sockets.clock.timestamp();
        if sockets.doorkeeper.speaker(&self.bearer, self.conversation, now).is_err() {
            return self.end_without_access();
        }
        let reader = Reader::of(&self.speaker.tenant, Source::Sse);
        let paged = page(&sockets.history, reader, self.conversation, (after, limit)).await;
        let retry = self.retry().max(RETRY_AFTER);
        self.with_session(|session, now, out| match paged {
            Ok(page) => session.on_page(page, now, out),
            Err((cause, _)) => session.on_page_failed(cause, retry, now, out),
        });
    }

    async fn wait(&mut self) {
        let own = self.joined.as_ref().and_then(|(session, _)| session.next_wake());
        let others = own.into_iter().chain(self.leaves).chain(self.expires());
        let wake = others.fold(self.heartbeat, Instant::min);
        tokio::select! {
            () = self.streams.closing.requested(), if self.leaves.is_none() => self.drain(),
            Ok(()) = self.revoked.changed() => {
                let sockets = &self.streams.sockets;
                let now = sockets.clock.timestamp();
                if sockets.doorkeeper.speaker(&self.bearer, self.conversation, now).is_err() {
                    self.end_without_access();
                }
            }
            () = self.inbox.filled() => self.on_news(),
            () = sleep_until(wake.into()) => self.on_wake(),
        }
    }

    fn on_news(&mut self) {
        let Ok(all) = self.inbox.take() else {
            return self.end("unavailable", "More waits for this stream than may wait.");
        };
        for notice in all {
            if let News::Event(frame) = notice.news {
                let (seq, bytes) = (frame.seq(), frame.weight());
                self.with_session(|session, now, out| {
                    session.on_live(Live { seq, bytes, frame }, now, out);
                });
            }
        }
    }

    fn on_wake(&mut self) {
        let now = self.streams.sockets.clock.now();
        if self.leaves.is_some_and(|at| now >= at) {
            return self.end("unavailable", "The server is on its way out.");
        }
        if self.has_expired() {
            return self.end_without_access();
        }
        if now >= self.heartbeat {
            self.heartbeat = now + HEARTBEAT;
            self.out.push_back(Bytes::from_static(b": here\n\n"));
            let head = self.streams.sockets.hub.head(self.conversation).unwrap_or(0);
            let known = std::mem::replace(&mut self.head_at_beat, head);
            self.with_session(|session, now, out| session.on_head(known, now, out));
        }
        self.with_session(Session::on_wake);
    }

    /// Ends within the window of the door, at a time of its own.
    fn drain(&mut self) {
        let sockets = &self.streams.sockets;
        let part = u32::try_from(sockets.dice.draw() % 1_000).unwrap_or(0);
        self.leaves = Some(sockets.clock.now() + DRAIN_WINDOW * part / 1_000);
    }

    /// When the token ends.
    fn expires(&self) -> Option<Instant> {
        let clock = &self.streams.sockets.clock;
        let left = self.speaker.grant.as_ref()?.expires_at.since(clock.timestamp());
        Some(clock.now() + left)
    }

    fn has_expired(&self) -> bool {
        let now = self.streams.sockets.clock.timestamp();
        self.speaker.grant.as_ref().is_some_and(|grant| grant.expires_at <= now)
    }

    fn end_without_access(&mut self) {
        if self.has_expired() {
            self.end("token_expired", "The token has expired.");
        } else {
            self.end("forbidden", "Access was taken away.");
        }
    }

    fn with_session(
        &mut self,
        deal: impl FnOnce(&mut Session<Frame>, Instant, &mut Vec<Command<Frame>>),
    ) {
        let (now, mut commands) = (self.streams.sockets.clock.now(), Vec::new());
        if let Some((session, _)) = self.joined.as_mut() {
            deal(session, now, &mut commands);
        }
        self.carry_out(commands);
    }

    fn carry_out(&mut self, commands: Vec<Command<Frame>>) {
        for command in commands {
            match command {
                #[cfg(feature = "broken")]
                Command::Event(seq, _) if crate::lifecycle::broken::passes_over(seq) => {}
                Command::Event(seq, frame) => self.write(seq, &frame),
                Command::Fetch { after, limit } => self.page = Some((after, limit)),
                Command::ReplayComplete { watermark } => {
                    self.tell("replayComplete", &json!({ "watermark": watermark }));
                }
                // The next request goes on from the last id.
                Command::ReplayTruncated { .. } => self.has_ended = true,
                Command::ReplayGone { oldest, .. } => {
                    let gone = json!({ "oldestSeq": oldest, "epoch": self.streams.sockets.epoch });
                    self.tell("replayGone", &gone);
                    self.has_ended = true;
                }
                Command::Refuse { code: Refused::WatermarkAhead { head } } => {
                    let details = json!({ "headSeq": head });
                    self.end_with("invalid_watermark", "Nobody can have read that far.", details);
                }
                Command::Refuse { code: Refused::Draining } => {
                    self.end("unavailable", "The server is on its way out.");
                }
                // Neither is told to who does not know gaps: the session closes instead.
                Command::Gap { .. } | Command::Close(Close::TryLater { .. }) => {
                    self.end("replay_unavailable", "A part of the history cannot be read now.");
                }
            }
        }
    }

    fn write(&mut self, seq: u64, frame: &Frame) {
        let epoch = &self.streams.sockets.epoch;
        let conversation = self.conversation;
        let data = frame.bytes(Format::Data, |content| event(conversation, content).into());
        let kind = if frame.event().is_some() { "" } else { "event: tombstone\n" };
        let mut text = Vec::with_capacity(data.len() + 64);
        text.extend_from_slice(format!("id: {epoch}:{seq}\n{kind}data: ").as_bytes());
        // JSON has no line breaks of its own.
        text.extend_from_slice(&data);
        text.extend_from_slice(b"\n\n");
        self.out.push_back(text.into());
    }

    fn tell(&mut self, kind: &str, data: &serde_json::Value) {
        self.out.push_back(Bytes::from(format!("event: {kind}\ndata: {data}\n\n")));
    }

    /// Says why, when to come back, and ends.
    fn end(&mut self, code: &str, message: &str) {
        self.end_with(code, message, json!({}));
    }

    /// The same with more fields.
    fn end_with(&mut self, code: &str, message: &str, mut data: serde_json::Value) {
        if self.has_ended {
            return;
        }
        self.has_ended = true;
        let retry = self.retry().as_millis();
        for (name, value) in
            [("code", json!(code)), ("message", json!(message)), ("retryAfterMs", json!(retry))]
        {
            data[name] = value;
        }
        self.out.push_back(Bytes::from(format!("retry: {retry}\nevent: error\ndata: {data}\n\n")));
    }

    /// Between once and twice the base, so that those who end together do not return together.
    fn retry(&self) -> Duration {
        let base = self.streams.sockets.retry_base;
        let span = u64::try_from(base.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        base + Duration::from_millis(self.streams.sockets.dice.draw() % span)
    }
}
