//! The endpoints that Forebay is compared with: the same request, the same answer, another way of making it durable.
//! Promises the same HTTP work for each: an accept loop with header timeout, JSON in and out, the id derived from the key.
//! Does not check credentials, quotas or limits and keeps seqs in memory, which is to the references' advantage.

pub mod lineup;
pub mod raw;
pub mod rows;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Json, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::raw::RawLog;
use super::rows::{Gathering, Row, Table};
use super::{Error, io};
use crate::clock::{Clock, Timestamp};
use crate::event::key::message_id;
use crate::event::{ClientId, ConversationId, MessageId, TenantId};

/// How a reference makes a send durable before it answers.
#[derive(Debug)]
pub enum Backing {
    /// Not at all: the price of HTTP alone.
    Nothing,
    /// One `INSERT` a send through a pool of connections.
    Direct(Table),
    /// `INSERT`s gathered across sends.
    Gathered(Gathering),
    /// Records of a raw log, gathered across sends.
    Records(Arc<RawLog>),
}

/// How long a client may take to send its head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A reference that listens, on threads of its own, as a server process would.
#[derive(Debug)]
pub struct Reference {
    /// `http://host:port`.
    pub url: String,
    listening: tokio::task::JoinHandle<()>,
}

impl Drop for Reference {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Reference {
    /// Listens on a free port of the loopback interface.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(backing: Backing, on: &Runtime, clock: Clock) -> Result<Self, Error> {
        let endpoint = Arc::new(Endpoint { backing, seqs: Mutex::new(HashMap::new()), clock });
        let task = on.spawn(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let bound = task.await.map_err(|_panic| Error::Panicked)?;
        let (listener, address) = bound.map_err(io("listening on a free port"))?;
        Ok(Self {
            url: format!("http://{address}"),
            listening: on.spawn(accept(listener, endpoint)),
        })
    }
}

async fn accept(listener: TcpListener, endpoint: Arc<Endpoint>) {
    let app = axum::Router::new()
        .route("/v1/conversations/{conversation}/messages", post(send))
        .with_state(endpoint);
    let mut http = Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let http = Arc::new(http);
    let mut connections = JoinSet::new();
    // A listener that fails ends the reference; the load then finds it unreachable.
    while let Ok((stream, _peer)) = listener.accept().await {
        // Without it a small answer would wait for the client's delayed ack; an error shows as latency only.
        drop(stream.set_nodelay(true));
        let (http, service) = (Arc::clone(&http), TowerToHyperService::new(app.clone()));
        connections.spawn(async move {
            // A client that leaves is no error here.
            drop(http.serve_connection(TokioIo::new(stream), service).await);
        });
        while connections.try_join_next().is_some() {}
    }
}

struct Endpoint {
    backing: Backing,
    seqs: Mutex<HashMap<ConversationId, u64>>,
    clock: Clock,
}

/// The body of a send, read as a service would have to read it.
#[derive(Deserialize)]
struct Sent {
    text: Option<String>,
    data: Option<Box<RawValue>>,
    metadata: Option<Box<RawValue>>,
}

/// Forebay's answer to a send.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Receipt {
    id: MessageId,
    seq: u64,
    watermark: u64,
    at: String,
    duplicate: bool,
}

async fn send(
    State(endpoint): State<Arc<Endpoint>>,
    Path(conversation): Path<ConversationId>,
    headers: HeaderMap,
    Json(sent): Json<Sent>,
) -> Result<(StatusCode, Json<Receipt>), StatusCode> {
    let at = endpoint.clock.timestamp();
    let (seq, id) = endpoint.name(conversation, &headers, at)?;
    let body = sent.into_text();
    let stored = match &endpoint.backing {
        Backing::Nothing => true,
        Backing::Direct(table) => {
            let row = Row { conversation, seq, id, body };
            table.insert(row).await.is_ok()
        }
        Backing::Gathered(gathering) => {
            let row = Row { conversation, seq, id, body };
            gathering.insert(row).await
        }
        Backing::Records(log) => log.append(conversation, Bytes::from(body)).await,
    };
    if !stored {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let receipt = Receipt { id, seq, watermark: seq, at: at.to_string(), duplicate: false };
    Ok((StatusCode::CREATED, Json(receipt)))
}

impl Sent {
    fn into_text(self) -> String {
        let json = self.data.or(self.metadata);
        self.text.or_else(|| json.map(|json| json.get().to_owned())).unwrap_or_default()
    }
}

impl Endpoint {
    /// The send's place and id.
    fn name(
        &self,
        conversation: ConversationId,
        headers: &HeaderMap,
        at: Timestamp,
    ) -> Result<(u64, MessageId), StatusCode> {
        let seq = {
            let mut seqs = self.seqs.lock().unwrap_or_else(PoisonError::into_inner);
            let seq = seqs.entry(conversation).or_insert(0);
            *seq += 1;
            *seq
        };
        let Some(key) = headers.get("idempotency-key") else {
            let mut name = *conversation.uuid().as_bytes();
            name[..8].copy_from_slice(&seq.to_be_bytes());
            name[8..].copy_from_slice(&at.micros().to_be_bytes());
            return Ok((seq, MessageId::derive(name)));
        };
        let key = key.to_str().ok().and_then(|key| ClientId::parse(key).ok());
        let key = key.ok_or(StatusCode::UNPROCESSABLE_ENTITY)?;
        let tenant = TenantId::from_uuid(uuid::Uuid::nil());
        Ok((seq, message_id(tenant, conversation, None, &key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{self, Amount, Keys, OnOverload, OnRefusal, Pace, Watch};

    fn plan(url: &str, amount: Amount) -> load::Plan {
        load::Plan {
            url: url.to_owned(),
            api_key: "fbk_any".to_owned(),
            conversations: (0..7).map(|n| ConversationId::derive([n; 16])).collect(),
            connections: 4,
            amount,
            warmup: Duration::ZERO,
            body_bytes: 300,
            keys: Keys::Given,
            pace: Pace::AnswerByAnswer,
            on_refusal: OnRefusal::GoOn,
            on_overload: OnOverload::PressOn,
            run: 1,
        }
    }

    #[test]
    fn a_load_has_one_receipt_for_every_send_and_says_when_the_server_is_gone() {
        let runtime = Runtime::new().unwrap();
        let elsewhere = Runtime::new().unwrap();
        runtime.block_on(async {
            let clock = Clock::system();
            let reference =
                Reference::start(Backing::Nothing, &elsewhere, clock.clone()).await.unwrap();
            let few = plan(&reference.url, Amount::Sends(500));
            let mut outcome = load::run(few, Arc::default(), clock.clone()).await.unwrap();
            assert_eq!((outcome.phases[0].stored, outcome.unfinished), (500, 0));
            let stored = outcome.ledger.entries().to_vec();
            let audit = outcome.ledger.audit(stored);
            assert!(audit.is_clean(), "{audit:?}");
            assert_eq!(audit.acknowledged, 500);

            let endless = plan(&reference.url, Amount::Sends(u64::MAX));
            let watch = Arc::new(Watch::default());
            let running = load::run(endless, Arc::clone(&watch), clock);
            let stopping = async {
                while watch.acknowledged() == 0 {
                    tokio::task::yield_now().await;
                }
                drop(reference);
                while watch.failed() == 0 {
                    tokio::task::yield_now().await;
                }
                watch.end();
            };
            let (outcome, ()) = tokio::join!(running, stopping);
            let outcome = outcome.unwrap();
            assert!(outcome.phases[0].failed() > 0);
            assert!(outcome.ledger.len() as u64 >= outcome.phases[0].acknowledged());
        });
        elsewhere.shutdown_background();
    }
}
