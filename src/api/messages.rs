//! Sends, batches and pages: the calls that nearly all traffic is made of.
//! Promises that a send is refused before its body is read when the log has no room, and answered within its deadline.
//! Does not check content and does not put history together; ingest and history do.

mod body;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::body::{BatchEntry, NewBatchBody, NewMessageBody, PageBody, ReceiptBody, ReceiptsBody};
use super::access::{Doorkeeper, Speaker};
use super::conversations::{READ_DEADLINE, history_problem};
use super::frame::{BodyLimit, read_body, trace};
use super::problem::{Code, Fault, Problem};
use super::request::{At, json, number, query, with_header};
use crate::clock::{Clock, Timestamp};
use crate::directory::Tenant;
use crate::event::limits::{
    BATCH_BODY_BYTES_MAX, PAGE_MESSAGES_DEFAULT, PAGE_MESSAGES_MAX, SEND_BODY_BYTES_MAX,
};
use crate::event::{ConversationId, id};
use crate::history::{History, Order, Query};
use crate::ingest::draft::{self, Rejected};
use crate::ingest::quota::Decision;
use crate::ingest::{self, Ingest};
use crate::journal::{self, Busy, Verdict};
use crate::lifecycle::chain;
use crate::metrics::{self, Refusal};

/// How long a send may take once its body is there.
pub(super) const SEND_DEADLINE: Duration = Duration::from_secs(2);

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What sends can touch.
#[derive(Debug)]
pub(super) struct Sends {
    pub(super) doorkeeper: Arc<Doorkeeper>,
    pub(super) ingest: Ingest,
    pub(super) clock: Clock,
    pub(super) metrics: metrics::Ingest,
}

/// What pages can touch.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) doorkeeper: Arc<Doorkeeper>,
    pub(super) history: History,
    pub(super) clock: Clock,
}

pub(super) fn routes(sends: Sends, pages: Pages) -> OpenApiRouter {
    let sending = OpenApiRouter::new()
        .routes(routes!(send))
        .routes(routes!(send_batch))
        .with_state(Arc::new(sends));
    let reading = OpenApiRouter::new()
        .routes(routes!(page))
        .with_state(Arc::new(pages));
    sending.merge(reading)
}

/// Sends a message. 2xx means: it is stored durably.
#[utoipa::path(post, path = "/v1/conversations/{id}/messages", tag = "messages", security(("tenant" = []), ("user" = [])),
    request_body = NewMessageBody,
    params(("id" = String, Path, description = "The conversation"),
           ("Idempotency-Key" = Option<String>, Header, description = "1 to 128 characters of A-Z a-z 0-9 . _ : ~ -, quoted or bare; the same key stores once")),
    responses((status = 201, description = "It is stored", body = ReceiptBody),
              (status = 200, description = "The same key was stored before; the first receipt, with Idempotency-Replayed: true", body = ReceiptBody)))]
async fn send(
    State(sends): State<Arc<Sends>>,
    At(id): At<id::kind::Conversation>,
    request: Request,
) -> Result<Response, Problem> {
    sends
        .one(id, request)
        .await
        .map_err(|turned| sends.count(turned))
}

/// Sends several messages of one conversation together.
#[utoipa::path(post, path = "/v1/conversations/{id}/messages:batch", tag = "messages", security(("tenant" = []), ("user" = [])),
    request_body = NewBatchBody, params(("id" = String, Path, description = "The conversation")),
    responses((status = 201, description = "All that are not refused are stored", body = ReceiptsBody),
              (status = 200, description = "All were stored before", body = ReceiptsBody)))]
async fn send_batch(
    State(sends): State<Arc<Sends>>,
    At(id): At<id::kind::Conversation>,
    request: Request,
) -> Result<Response, Problem> {
    sends
        .many(id, request)
        .await
        .map_err(|turned| sends.count(turned))
}

impl Sends {
    async fn one(
        &self,
        conversation: ConversationId,
        request: Request,
    ) -> Result<Response, Turned> {
        let (parts, body) = request.into_parts();
        let now = self.clock.timestamp();
        let speaker = self.doorkeeper.speaker(&parts.headers, conversation, now)?;
        let limit = BodyLimit(SEND_BODY_BYTES_MAX);
        let place = self.ingest.admit(conversation, limit.announced(&body)?)?;
        let quota = self.spend(&speaker.tenant, 1)?;
        let bytes = read_body(&parts.headers, body, limit).await?;
        let asked = asked(&speaker, conversation, &parts.headers, now);
        let checked = draft::send(&bytes, &asked).map_err(rejected)?;
        let deadline = self.clock.now() + SEND_DEADLINE;
        let verdicts = self
            .ingest
            .send(place, vec![checked], &asked, deadline)
            .await;
        let verdict = verdicts
            .map_err(|error| ingest_problem(&error))?
            .into_iter()
            .next();
        let verdict = verdict.ok_or_else(|| Problem::internal("a send without a verdict"))?;
        let response = match verdict {
            Verdict::Stored(receipt) => {
                json(StatusCode::CREATED, &ReceiptBody::of(receipt, false))?
            }
            Verdict::Duplicate(receipt) => {
                replayed(json(StatusCode::OK, &ReceiptBody::of(receipt, true))?)
            }
            refused @ (Verdict::KeyConflict
            | Verdict::Closed
            | Verdict::NotFound
            | Verdict::Cold) => {
                return Err(verdict_problem(refused).into());
            }
        };
        Ok(quota.onto(response))
    }

    async fn many(
        &self,
        conversation: ConversationId,
        request: Request,
    ) -> Result<Response, Turned> {
        let (parts, body) = request.into_parts();
        let now = self.clock.timestamp();
        let speaker = self.doorkeeper.speaker(&parts.headers, conversation, now)?;
        let limit = BodyLimit(BATCH_BODY_BYTES_MAX);
        let place = self.ingest.admit(conversation, limit.announced(&body)?)?;
        let bytes = read_body(&parts.headers, body, limit).await?;
        let asked = asked(&speaker, conversation, &parts.headers, now);
        let checked = draft::batch(&bytes, &asked).map_err(rejected)?;
        // How many messages there are is known only here, so that a batch meets the quota after its body.
        let quota = self.spend(
            &speaker.tenant,
            u32::try_from(checked.len()).unwrap_or(u32::MAX),
        )?;
        let deadline = self.clock.now() + SEND_DEADLINE;
        let verdicts = self.ingest.send(place, checked, &asked, deadline).await;
        Ok(quota.onto(receipts(verdicts.map_err(|error| ingest_problem(&error))?)?))
    }

    fn spend(&self, tenant: &Tenant, messages: u32) -> Result<QuotaHeaders, Problem> {
        let (policy, decision) = self.ingest.spend(tenant, messages, self.clock.now());
        let mut headers = QuotaHeaders {
            policy: policy.map(|policy| policy.to_string()),
            left: None,
        };
        match decision {
            Decision::Unlimited => Ok(headers),
            Decision::Allowed(left) => {
                headers.left = Some(left.to_string());
                Ok(headers)
            }
            Decision::Refused { left, retry_after } => {
                headers.left = Some(left.to_string());
                let problem = Problem::new(
                    Code::RateLimited,
                    "The tenant's send quota is used up for the moment.",
                );
                Err(headers.onto_problem(problem.with_wait(retry_after)))
            }
            Decision::BeyondBurst { burst } => {
                let detail =
                    format!("The batch has more messages than the limit sendBurst = {burst}.");
                Err(headers.onto_problem(Problem::new(Code::PayloadTooLarge, detail)))
            }
        }
    }

    fn count(&self, turned: Turned) -> Problem {
        self.metrics.refused(turned.reason).increment(1);
        turned.problem
    }
}

/// A send that was turned away, with the reason under which it is counted.
#[derive(Debug)]
struct Turned {
    problem: Problem,
    reason: Refusal,
}

impl From<Busy> for Turned {
    fn from(why: Busy) -> Self {
        let reason = match why {
            Busy::Full => Refusal::QueueFull,
            Busy::Stalled => Refusal::Log,
            Busy::Stopping => Refusal::Unavailable,
        };
        Self {
            problem: busy(why),
            reason,
        }
    }
}

impl From<Problem> for Turned {
    fn from(problem: Problem) -> Self {
        let reason = match problem.code() {
            Code::RateLimited => Refusal::Quota,
            Code::LogUnavailable => Refusal::Log,
            Code::DatabaseUnavailable | Code::ReplayUnavailable => Refusal::Database,
            Code::ConversationClosed | Code::ChannelInactive => Refusal::Closed,
            Code::NotFound => Refusal::NotFound,
            Code::IdempotencyConflict => Refusal::KeyConflict,
            Code::Unavailable => Refusal::Unavailable,
            Code::Internal => Refusal::Internal,
            Code::BadRequest
            | Code::Unauthorized
            | Code::Forbidden
            | Code::MethodNotAllowed
            | Code::RequestTimeout
            | Code::PayloadTooLarge
            | Code::UnsupportedMediaType
            | Code::InvalidMessage => Refusal::Invalid,
        };
        Self { problem, reason }
    }
}

/// What ingest is told of a request beside its body.
fn asked<'a>(
    speaker: &'a Speaker,
    conversation: ConversationId,
    headers: &'a HeaderMap,
    now: Timestamp,
) -> ingest::Request<'a> {
    ingest::Request {
        tenant: speaker.tenant.id,
        conversation,
        user: speaker.user(),
        key: headers.get(IDEMPOTENCY_KEY).map(HeaderValue::as_bytes),
        trace: trace(headers),
        now,
    }
}

/// The headers `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-10).
#[derive(Debug)]
struct QuotaHeaders {
    policy: Option<String>,
    left: Option<String>,
}

impl QuotaHeaders {
    fn onto(self, mut response: Response) -> Response {
        for (name, value) in [(RATE_LIMIT_POLICY, self.policy), (RATE_LIMIT, self.left)] {
            if let Some(value) = value {
                response = with_header(response, name, &value);
            }
        }
        response
    }

    fn onto_problem(self, mut problem: Problem) -> Problem {
        for (name, value) in [(RATE_LIMIT_POLICY, self.policy), (RATE_LIMIT, self.left)] {
            if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
                problem = problem.with_header(name, value);
            }
        }
        problem
    }
}

fn replayed(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    response
}

/// The answer to a batch. What refuses one message for the conversation's sake refuses all of them.
fn receipts(verdicts: Vec<Verdict>) -> Result<Response, Problem> {
    let conflict = Code::IdempotencyConflict.row();
    let (mut stored, mut repeated) = (0, 0);
    let mut receipts = Vec::with_capacity(verdicts.len());
    for verdict in verdicts {
        receipts.push(match verdict {
            Verdict::Stored(receipt) => {
                stored += 1;
                BatchEntry::Stored(ReceiptBody::of(receipt, false))
            }
            Verdict::Duplicate(receipt) => {
                repeated += 1;
                BatchEntry::Stored(ReceiptBody::of(receipt, true))
            }
            Verdict::KeyConflict => BatchEntry::Refused {
                code: conflict.name,
                detail: conflict.title,
            },
            refused @ (Verdict::Closed | Verdict::NotFound | Verdict::Cold) => {
                return Err(verdict_problem(refused));
            }
        });
    }
    match (stored, repeated) {
        (0, 0) => {
            let fault = |index: usize| Fault {
                pointer: format!("/messages/{index}/clientId"),
                detail: conflict.title.to_owned(),
            };
            let faults = (0..receipts.len().min(draft::ERRORS_MAX))
                .map(fault)
                .collect();
            Err(verdict_problem(Verdict::KeyConflict).with_faults(faults))
        }
        (0, _) => Ok(replayed(json(StatusCode::OK, &ReceiptsBody { receipts })?)),
        _ => json(StatusCode::CREATED, &ReceiptsBody { receipts }),
    }
}

/// Reads a page of a conversation.
#[utoipa::path(get, path = "/v1/conversations/{id}/messages", tag = "messages", security(("tenant" = []), ("user" = [])),
    params(("id" = String, Path, description = "The conversation"),
           ("after" = Option<u64>, Query, description = "The last seq that is known already, exclusive; 0 when left out, the end for order=desc"),
           ("limit" = Option<u64>, Query, description = "1 to 500, 50 when left out"),
           ("order" = Option<String>, Query, description = "asc, the default, or desc: the newest first, before `after`")),
    responses((status = 200, description = "A page; complete says whether pressure cut it short", body = PageBody<'_>)))]
async fn page(
    State(pages): State<Arc<Pages>>,
    At(id): At<id::kind::Conversation>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let speaker = pages
        .doorkeeper
        .speaker(&parts.headers, id, pages.clock.timestamp())?;
    let query = page_query(query(&parts)?)?;
    let deadline = pages.clock.now() + READ_DEADLINE;
    let read = pages
        .history
        .page(speaker.tenant.id, id, query, deadline)
        .await;
    let page = read.map_err(|error| history_problem(&error))?;
    json(StatusCode::OK, &PageBody::of(&page))
}

fn page_query(pairs: Vec<(String, String)>) -> Result<Query, Problem> {
    let (mut after, mut limit, mut order) = (None, PAGE_MESSAGES_DEFAULT, Order::Ascending);
    for (name, value) in pairs {
        match name.as_str() {
            "after" => after = Some(number("after", &value, 0..=u64::MAX)?),
            "limit" => {
                let number = number("limit", &value, 1..=PAGE_MESSAGES_MAX as u64)?;
                limit = usize::try_from(number).unwrap_or(PAGE_MESSAGES_MAX);
            }
            "order" => {
                order = match value.as_str() {
                    "asc" => Order::Ascending,
                    "desc" => Order::Descending,
                    _ => {
                        return Err(Problem::new(
                            Code::BadRequest,
                            "The parameter order must be asc or desc.",
                        ));
                    }
                }
            }
            _ => {}
        }
    }
    let from = match order {
        Order::Ascending => 0,
        Order::Descending => u64::MAX,
    };
    Ok(Query {
        after: after.unwrap_or(from),
        limit,
        order,
    })
}

/// No room in the queue, as a problem.
pub(super) fn busy(busy: Busy) -> Problem {
    match busy {
        Busy::Full => Problem::new(
            Code::LogUnavailable,
            "Too much is waiting for the log. Nothing was stored.",
        ),
        Busy::Stalled => Problem::new(
            Code::LogUnavailable,
            "The log does not acknowledge now. Nothing was stored.",
        ),
        Busy::Stopping => Problem::new(Code::Unavailable, "The server is on its way out."),
    }
}

/// A body that was refused, as a problem.
pub(super) fn rejected(rejected: Rejected) -> Problem {
    let problem = match rejected.code {
        draft::Code::BadRequest => Problem::new(Code::BadRequest, "The body cannot be read."),
        draft::Code::TooLarge { limit, max } => Problem::new(
            Code::PayloadTooLarge,
            format!("The limit {limit} = {max} is exceeded."),
        ),
        draft::Code::Invalid => Problem::new(Code::InvalidMessage, "A field breaks a rule."),
    };
    let faults = rejected.errors.into_iter().map(|error| Fault {
        pointer: error.pointer,
        detail: error.detail,
    });
    problem.with_faults(faults.collect())
}

/// A send of which nothing is known to be stored, as a problem.
pub(super) fn ingest_problem(error: &ingest::Error) -> Problem {
    let cause = chain(error);
    let problem = match error {
        ingest::Error::Log(journal::Error::Stopping) => {
            Problem::new(Code::Unavailable, "The server is on its way out.")
        }
        ingest::Error::Log(_) => Problem::new(
            Code::LogUnavailable,
            "The log did not acknowledge in time. Send again with the same idempotency key.",
        ),
        ingest::Error::Database => Problem::new(
            Code::DatabaseUnavailable,
            "This conversation or key is so old that the database must be asked, which cannot be done now. Nothing was stored.",
        ),
    };
    problem.with_cause(cause)
}

/// A verdict that stored nothing, as a problem.
pub(super) fn verdict_problem(verdict: Verdict) -> Problem {
    match verdict {
        Verdict::KeyConflict => Problem::new(
            Code::IdempotencyConflict,
            "A message with this idempotency key was stored before, with another payload.",
        ),
        Verdict::Closed => Problem::new(Code::ConversationClosed, "The conversation is closed."),
        Verdict::NotFound => Problem::not_found("There is no such conversation."),
        Verdict::Cold => Problem::new(
            Code::DatabaseUnavailable,
            "This conversation or key must be looked up in the database, which cannot be done now. Nothing was stored.",
        ),
        Verdict::Stored(_) | Verdict::Duplicate(_) => {
            Problem::internal("a stored verdict is no problem")
        }
    }
}
