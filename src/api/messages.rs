//! Sends, batches and pages: the calls that nearly all traffic is made of.
//! Promises that a send is refused before its body is read when the log has no room, and answered within its deadline.
//! Does not check content and does not put history together; ingest and history do.

pub(super) mod body;
pub(super) mod conversations;
pub(super) mod refusal;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::body::{BatchEntry, NewBatchBody, NewMessageBody, PageBody, ReceiptBody, ReceiptsBody};
use self::refusal::{busy, history_problem, ingest_problem, rejected, verdict_problem};
use super::access::{Doorkeeper, Speaker};
use super::frame::request::{At, json, number, query};
use super::frame::{BodyLimit, read_body, trace};
use super::problem::{Code, Fault, Problem};
use crate::admission::Source;
use crate::clock::{Clock, Timestamp};
use crate::directory::Tenant;
use crate::event::limits::{
    BATCH_BODY_BYTES_MAX, PAGE_MESSAGES_DEFAULT, PAGE_MESSAGES_MAX, SEND_BODY_BYTES_MAX,
};
use crate::event::{ConversationId, id};
use crate::history::{History, Order, Query, Reader};
use crate::ingest::draft;
use crate::ingest::quota::{Decision, Left};
use crate::ingest::{self, Checked, Ingest};
use crate::journal::{Draft, Intent, Verdict};
use crate::metrics::Refusal;

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
}

/// What pages can touch.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) doorkeeper: Arc<Doorkeeper>,
    pub(super) history: History,
    pub(super) clock: Clock,
}

pub(super) fn routes_of_sends() -> OpenApiRouter<Arc<Sends>> {
    OpenApiRouter::new().routes(routes!(send)).routes(routes!(send_batch))
}

pub(super) fn routes_of_pages() -> OpenApiRouter<Arc<Pages>> {
    OpenApiRouter::new().routes(routes!(page))
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
    sends.one(id, request).await
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
    sends.many(id, request).await
}

impl Sends {
    /// Sends one message. Also called without the router (`Frame::answer`).
    pub(super) async fn one(
        &self,
        conversation: ConversationId,
        request: Request,
    ) -> Result<Response, Problem> {
        let (parts, body) = request.into_parts();
        let now = self.clock.timestamp();
        let speaker = self.doorkeeper.speaker(&parts.headers, conversation, now)?;
        let limit = BodyLimit(SEND_BODY_BYTES_MAX);
        self.counted(limit.announced(&body))?;
        self.ingest.check_room(conversation).map_err(busy)?;
        let quota = self.spend(&speaker.tenant, 1)?;
        let bytes = self.counted(read_body(&parts.headers, body, limit).await)?;
        let place = self.ingest.admit(conversation, bytes.len()).map_err(busy)?;
        let asked = asked(&speaker, conversation, &parts.headers, now);
        let checked = self.counted(draft::send(&bytes, &asked).map_err(rejected))?;
        let deadline = self.clock.now() + SEND_DEADLINE;
        let draft = self.draft(checked, &asked);
        let origin = speaker.tenant.origin(Source::Rest);
        let verdicts = self.ingest.append(place, vec![draft], origin, deadline).await;
        let verdict = verdicts.map_err(|error| ingest_problem(&error))?.into_iter().next();
        let verdict = verdict.ok_or_else(|| Problem::internal("a send without a verdict"))?;
        let response = match verdict {
            Verdict::Stored(receipt) => {
                json(StatusCode::CREATED, &ReceiptBody::of(receipt, false))?
            }
            Verdict::Duplicate(receipt) => {
                replayed(json(StatusCode::OK, &ReceiptBody::of(receipt, true))?)
            }
            refused @ (Verdict::KeyConflict | Verdict::Closed | Verdict::NotFound) => {
                return Err(verdict_problem(refused));
            }
        };
        Ok(quota.onto(response))
    }

    async fn many(
        &self,
        conversation: ConversationId,
        request: Request,
    ) -> Result<Response, Problem> {
        let (parts, body) = request.into_parts();
        let now = self.clock.timestamp();
        let speaker = self.doorkeeper.speaker(&parts.headers, conversation, now)?;
        let limit = BodyLimit(BATCH_BODY_BYTES_MAX);
        self.counted(limit.announced(&body))?;
        self.ingest.check_room(conversation).map_err(busy)?;
        let bytes = self.counted(read_body(&parts.headers, body, limit).await)?;
        let place = self.ingest.admit(conversation, bytes.len()).map_err(busy)?;
        let asked = asked(&speaker, conversation, &parts.headers, now);
        let checked = self.counted(draft::batch(&bytes, &asked).map_err(rejected))?;
        // How many messages there are is known only here, so that a batch meets the quota after its body.
        let quota =
            self.spend(&speaker.tenant, u32::try_from(checked.len()).unwrap_or(u32::MAX))?;
        let deadline = self.clock.now() + SEND_DEADLINE;
        let origin = speaker.tenant.origin(Source::Rest);
        let drafts = checked.into_iter().map(|checked| self.draft(checked, &asked)).collect();
        let verdicts = self.ingest.append(place, drafts, origin, deadline).await;
        Ok(quota.onto(receipts(verdicts.map_err(|error| ingest_problem(&error))?)?))
    }

    fn draft(&self, checked: Checked, asked: &ingest::Request<'_>) -> Draft {
        checked.into_draft(asked, Intent::Send, || self.ingest.make_id(asked.now))
    }

    fn spend(&self, tenant: &Tenant, messages: u32) -> Result<QuotaHeaders, Problem> {
        let (policy, decision) = self.ingest.take_quota(tenant, messages);
        let quota = |left: Left| QuotaHeaders {
            policy: policy.and_then(|policy| policy.to_string().try_into().ok()),
            left: HeaderValue::try_from(left.to_string()).ok(),
        };
        match decision {
            Decision::Unlimited => Ok(QuotaHeaders::default()),
            Decision::Allowed(left) => Ok(quota(left)),
            Decision::Refused { left, retry_after } => {
                self.ingest.refused(Refusal::Quota);
                let detail = "The tenant's send quota is used up for the moment.";
                let problem = Problem::new(Code::RateLimited, detail).with_wait(retry_after);
                Err(quota(left).onto_problem(problem))
            }
            Decision::BeyondBurst { burst } => {
                self.ingest.refused(Refusal::Quota);
                let detail = format!("The messages exceed the limit sendBurst = {burst}.");
                Err(Problem::new(Code::PayloadTooLarge, detail))
            }
        }
    }

    /// Counts what is refused here, before ingest sees it.
    fn counted<T>(&self, checked: Result<T, Problem>) -> Result<T, Problem> {
        checked.inspect_err(|_problem| self.ingest.refused(Refusal::Invalid))
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
#[derive(Debug, Default)]
struct QuotaHeaders {
    policy: Option<HeaderValue>,
    left: Option<HeaderValue>,
}

impl QuotaHeaders {
    fn pairs(self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let pairs = [(RATE_LIMIT_POLICY, self.policy), (RATE_LIMIT, self.left)];
        pairs.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }

    fn onto(self, mut response: Response) -> Response {
        response.headers_mut().extend(self.pairs());
        response
    }

    fn onto_problem(self, problem: Problem) -> Problem {
        self.pairs().fold(problem, |problem, (name, value)| problem.with_header(name, value))
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
            Verdict::KeyConflict => {
                BatchEntry::Refused { code: conflict.name, detail: conflict.title }
            }
            refused @ (Verdict::Closed | Verdict::NotFound) => {
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
            let faults = (0..receipts.len().min(draft::ERRORS_MAX)).map(fault).collect();
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
    let speaker = pages.doorkeeper.speaker(&parts.headers, id, pages.clock.timestamp())?;
    let query = page_query(query(&parts)?)?;
    let reader = Reader::of(&speaker.tenant, Source::Rest);
    let page = pages.history.page(reader, id, query).await;
    let page = page.map_err(|error| history_problem(&error))?;
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
    Ok(Query { after, limit, order })
}
