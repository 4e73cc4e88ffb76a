//! A tenant's calls about deliveries: what became of them, and making them again.
//! Promises that nobody sees another tenant's, and that counting changes nothing.
//! Does not attempt; what is made again goes through the queues.

mod body;
pub(super) mod inbound;
pub(super) mod standing;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper::http::request::Parts;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Doorkeeper;
use super::frame::request::{At, Seeds, Within, json, number, parse, query};
use super::frame::{BodyLimit, read_body};
use super::problem::{Code, Problem};
use crate::clock::{Clock, Timestamp};
use crate::delivery::{Deliveries, breaker};
use crate::directory::{Channel, ChannelStatus, Directory, Tenant};
use crate::event::limits::BODY_BYTES_MAX;
use crate::event::{ChannelId, DeliveryId, MessageId, RequestId, id};
use crate::lifecycle::chain;
use crate::operate::redelivery::{self, Job, Redelivery};
use crate::store::attempts::Attempt;
use crate::store::deliveries::{Filter, LIST_MAX, Row};
use body::{AttemptBody, DeliveriesBody, DeliveryBody, JobBody, RedeliverBody, TestBody};

/// Deliveries of a page when the client does not say.
const PAGE_DEFAULT: usize = 50;

/// States that can be asked for.
const STATES: [&str; 3] = ["delivered", "retrying", "failed"];

/// What this family can touch.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) doorkeeper: Arc<Doorkeeper>,
    pub(super) directory: Directory,
    pub(super) deliveries: Option<Deliveries>,
    pub(super) redelivery: Redelivery,
    pub(super) clock: Clock,
    pub(super) seeds: Seeds,
}

pub(super) fn routes() -> OpenApiRouter<Arc<Counter>> {
    OpenApiRouter::new()
        .routes(routes!(test))
        .routes(routes!(redeliver))
        .routes(routes!(job))
        .routes(routes!(of_channel))
        .routes(routes!(of_message))
        .routes(routes!(one))
}

impl Counter {
    fn tenant(&self, parts: &Parts) -> Result<Arc<Tenant>, Problem> {
        self.doorkeeper.tenant(&parts.headers, self.clock.timestamp())
    }

    fn channel(&self, tenant: &Tenant, id: ChannelId) -> Result<Arc<Channel>, Problem> {
        let channel = self.directory.channel(tenant.id, id);
        channel.ok_or_else(|| Problem::not_found("There is no such channel."))
    }

    fn body(&self, row: Row, attempts: Option<Vec<Attempt>>) -> DeliveryBody {
        let held = (row.state == "retrying").then(|| self.holds(&row)).flatten();
        let next_attempt_at = next_attempt(held.as_ref(), row.next_attempt_at);
        DeliveryBody {
            id: row.id,
            channel_id: row.channel,
            conversation_id: (row.seq > 0).then_some(row.conversation),
            message_id: row.message,
            seq: row.seq,
            state: row.state,
            reason: row.reason,
            status: row.status,
            attempts: row.attempts,
            first_attempt_at: row.first_attempt_at,
            last_attempt_at: row.last_attempt_at,
            next_attempt_at,
            channel_state: held.map(|held| held.state),
            history: attempts.map(|all| all.into_iter().map(attempt).collect()),
        }
    }

    /// What holds a delivery back, if anything does.
    fn holds(&self, row: &Row) -> Option<Held> {
        let channel = self.directory.channel(row.tenant, row.channel)?;
        if channel.status == ChannelStatus::Paused {
            return Some(Held { state: "paused", probe: None });
        }
        match self.deliveries.as_ref()?.look(row.channel).entry?.state {
            breaker::State::Closed => None,
            breaker::State::Open { until } => Some(Held { state: "open", probe: Some(until) }),
            breaker::State::HalfOpen => {
                Some(Held { state: "half_open", probe: row.next_attempt_at })
            }
        }
    }
}

/// A channel's state that holds its deliveries back, and when it tries one; one that is paused tries none.
struct Held {
    state: &'static str,
    probe: Option<Timestamp>,
}

/// When the next attempt is, of a delivery whose own is due at `due`.
fn next_attempt(held: Option<&Held>, due: Option<Timestamp>) -> Option<Timestamp> {
    match held {
        None => due,
        Some(Held { probe, .. }) => (*probe).max(due.filter(|_| probe.is_some())),
    }
}

fn attempt(attempt: Attempt) -> AttemptBody {
    let Attempt { attempt, began_at, took_ms, status, reason, answer } = attempt;
    AttemptBody { attempt, began_at, took_ms, status, reason, answer }
}

/// Sends a test delivery through the queue.
#[utoipa::path(post, path = "/v1/channels/{id}/test", tag = "channels", security(("tenant" = [])),
    params(("id" = String, Path, description = "The channel")),
    responses((status = 202, description = "It is queued; the delivery says what becomes of it", body = TestBody)))]
async fn test(
    State(counter): State<Arc<Counter>>,
    At(id): At<id::kind::Channel>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let tenant = counter.tenant(&parts)?;
    let channel = counter.channel(&tenant, id)?;
    let message = MessageId::generate(counter.clock.timestamp(), &mut counter.seeds.fork());
    let queued = counter.redelivery.test(&tenant, channel.id, message).await;
    let delivery_id = queued.map_err(|error| problem(&error))?;
    json(StatusCode::ACCEPTED, &TestBody { delivery_id })
}

/// Makes deliveries again: those that failed, or all. While a job of the channel runs on this node, that one is answered.
#[utoipa::path(post, path = "/v1/channels/{id}/redeliver", tag = "channels", security(("tenant" = [])),
    request_body = RedeliverBody, params(("id" = String, Path, description = "The channel")),
    responses((status = 202, description = "The job that makes them again", body = JobBody),
              (status = 200, description = "What a job would do (dry run)", body = JobBody)))]
async fn redeliver(
    State(counter): State<Arc<Counter>>,
    At(id): At<id::kind::Channel>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let tenant = counter.tenant(&parts)?;
    let channel = counter.channel(&tenant, id)?;
    let body = read_body(&parts.headers, body, BodyLimit(BODY_BYTES_MAX)).await?;
    let asked: RedeliverBody =
        if body.is_empty() { RedeliverBody::default() } else { parse(&body)? };
    let filter = filter(&asked)?;
    if asked.dry_run {
        let count = counter.redelivery.count(&tenant, id, &filter).await;
        let count = Some(count.map_err(|error| problem(&error))?);
        let body = JobBody { job_id: None, state: "dry_run", queued: 0, missing: 0, count };
        return json(StatusCode::OK, &body);
    }
    let job_id = RequestId::generate(counter.clock.timestamp(), &mut counter.seeds.fork());
    let job = match counter.redelivery.begin(job_id, tenant.id, id) {
        Ok(job) => job,
        Err(running) => return json(StatusCode::ACCEPTED, &job_body(&running)),
    };
    let answer = json(StatusCode::ACCEPTED, &job_body(&job));
    counter.redelivery.start(job, tenant, channel, filter);
    answer
}

/// Shows a job that makes deliveries again. Jobs are known to the node that runs them.
#[utoipa::path(get, path = "/v1/channels/{id}/redeliver/{jobId}", tag = "channels", security(("tenant" = [])),
    params(("id" = String, Path, description = "The channel"), ("jobId" = String, Path, description = "The job")),
    responses((status = 200, description = "The job", body = JobBody)))]
async fn job(
    State(counter): State<Arc<Counter>>,
    Within(id, job): Within<id::kind::Channel, id::kind::Request>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let tenant = counter.tenant(&parts)?;
    let found = counter.redelivery.job(tenant.id, job).filter(|job| job.channel == id);
    let found = found.ok_or_else(|| Problem::not_found("There is no such job on this node."))?;
    json(StatusCode::OK, &job_body(&found))
}

/// Lists a channel's deliveries that were attempted, in the order of their ids.
#[utoipa::path(get, path = "/v1/channels/{id}/deliveries", tag = "channels", security(("tenant" = [])),
    params(("id" = String, Path, description = "The channel"),
           ("status" = Option<String>, Query, description = "`delivered`, `retrying` or `failed`"),
           ("after" = Option<String>, Query, description = "The `next` of the page before"),
           ("limit" = Option<u64>, Query, description = "1 to 200; 50 when left out")),
    responses((status = 200, description = "A page of deliveries", body = DeliveriesBody)))]
async fn of_channel(
    State(counter): State<Arc<Counter>>,
    At(id): At<id::kind::Channel>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let tenant = counter.tenant(&parts)?;
    let channel = counter.channel(&tenant, id)?;
    let (mut filter, mut after, mut limit) = (Filter::default(), None, PAGE_DEFAULT);
    for (name, text) in query(&parts)? {
        match name.as_str() {
            "status" => filter.state = Some(known_state(&text)?),
            "after" => {
                let bad = |_| {
                    Problem::new(Code::BadRequest, "The parameter after must be a delivery's id.")
                };
                after = Some(DeliveryId::parse(&text).map_err(bad)?);
            }
            "limit" => {
                let most = number("limit", &text, 1..=LIST_MAX as u64)?;
                limit = usize::try_from(most).unwrap_or(LIST_MAX);
            }
            _ => {}
        }
    }
    let rows = counter.redelivery.of_channel(&tenant, channel.id, &filter, (after, limit)).await;
    let rows = rows.map_err(|error| problem(&error))?;
    let next = rows.last().filter(|_| rows.len() == limit).map(|row| row.id);
    let deliveries = rows.into_iter().map(|row| counter.body(row, None)).collect();
    json(StatusCode::OK, &DeliveriesBody { deliveries, next })
}

/// Lists the deliveries of a message that were attempted.
#[utoipa::path(get, path = "/v1/messages/{id}/deliveries", tag = "messages", security(("tenant" = [])),
    params(("id" = String, Path, description = "The message")),
    responses((status = 200, description = "Its deliveries, one a channel", body = DeliveriesBody)))]
async fn of_message(
    State(counter): State<Arc<Counter>>,
    At(id): At<id::kind::Message>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let tenant = counter.tenant(&parts)?;
    let rows = counter.redelivery.of_message(&tenant, id).await.map_err(|error| problem(&error))?;
    let deliveries = rows.into_iter().map(|row| counter.body(row, None)).collect();
    json(StatusCode::OK, &DeliveriesBody { deliveries, next: None })
}

/// Shows a delivery that was attempted, with its attempts.
#[utoipa::path(get, path = "/v1/deliveries/{id}", tag = "channels", security(("tenant" = [])),
    params(("id" = String, Path, description = "The delivery")),
    responses((status = 200, description = "The delivery", body = DeliveryBody)))]
async fn one(
    State(counter): State<Arc<Counter>>,
    At(id): At<id::kind::Delivery>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    let tenant = counter.tenant(&parts)?;
    let found = counter.redelivery.delivery(&tenant, id).await.map_err(|error| problem(&error))?;
    let (row, attempts) = found.ok_or_else(|| {
        Problem::not_found("There is no such delivery, or it was not attempted yet.")
    })?;
    json(StatusCode::OK, &counter.body(row, Some(attempts)))
}

fn job_body(job: &Job) -> JobBody {
    let (job_id, state) = (Some(job.id), job.state);
    JobBody { job_id, state, queued: job.queued, missing: job.missing, count: None }
}

fn filter(asked: &RedeliverBody) -> Result<Filter, Problem> {
    let time = |name: &str, text: &Option<String>| {
        let bad = |_| Problem::new(Code::BadRequest, format!("{name} must be an RFC 3339 time."));
        text.as_ref().map(|text| text.parse::<Timestamp>().map_err(bad)).transpose()
    };
    let state = match asked.status.as_deref() {
        None | Some("failed") => Some("failed".to_owned()),
        Some("all") => None,
        Some(_) => return Err(Problem::new(Code::BadRequest, "status must be failed or all.")),
    };
    Ok(Filter { state, from: time("from", &asked.from)?, to: time("to", &asked.to)? })
}

fn known_state(text: &str) -> Result<String, Problem> {
    let known = STATES.contains(&text).then(|| text.to_owned());
    let detail = "The parameter status must be delivered, retrying or failed.";
    known.ok_or_else(|| Problem::new(Code::BadRequest, detail))
}

/// What could not be read or queued, as a problem.
fn problem(error: &redelivery::Error) -> Problem {
    let cause = chain(error);
    let problem = match error {
        redelivery::Error::Store(store) if !store.is_retryable() => {
            return Problem::internal(cause);
        }
        redelivery::Error::Store(_) => {
            Problem::new(Code::DatabaseUnavailable, "Postgres cannot be asked now.")
        }
        redelivery::Error::Log(_) | redelivery::Error::NotQueued(_) => {
            Problem::new(Code::LogUnavailable, "The queue of deliveries cannot be asked now.")
        }
    };
    problem.with_cause(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_attempt_is_promised_before_the_channel_makes_one() {
        let at = |micros| Timestamp::from_micros(micros);
        let next = |probe, due| next_attempt(Some(&Held { state: "open", probe }), due);
        assert_eq!(next_attempt(None, at(5)), at(5));
        assert_eq!(next(None, at(5)), None, "paused");
        assert_eq!(next(at(9), at(5)), at(9), "it waits for the probe");
        assert_eq!(next(at(3), at(5)), at(5), "and for its own time");
        assert_eq!(next(at(3), None), at(3));
    }
}
