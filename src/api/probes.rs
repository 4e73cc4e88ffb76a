//! What machines and operators look at: probes, metrics and the status.
//! Promises answers from memory alone, so that a probe never waits for what it reports on.
//! Does not check anything; the rooms write on the board and count.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Doorkeeper;
use super::frame::Deliberate;
use super::frame::request::{json, query};
use super::problem::{Code, Problem};
use crate::clock::Clock;
use crate::directory::Directory;
use crate::operate::failback::Failback;
use crate::readiness::{Board, Check, View, verdict};

/// Writes the page of metrics. It comes from the room of telemetry, which doors do not know.
#[derive(Clone)]
pub struct Render(Arc<dyn Fn() -> String + Send + Sync>);

impl Render {
    /// From a function that writes the page in the Prometheus text format.
    pub fn new(render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(render))
    }

    fn page(&self) -> String {
        (self.0)()
    }
}

impl fmt::Debug for Render {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Render")
    }
}

/// What probes can touch.
#[derive(Debug)]
pub(super) struct Probes {
    pub(super) board: Board,
    pub(super) clock: Clock,
    pub(super) render: Render,
}

/// What the status can touch.
#[derive(Debug)]
pub(super) struct Status {
    pub(super) doorkeeper: Arc<Doorkeeper>,
    pub(super) directory: Directory,
    pub(super) probes: Arc<Probes>,
    pub(super) failback: Failback,
    pub(super) started: Instant,
}

/// What the server knows of itself.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Status)]
pub(super) struct StatusBody {
    version: &'static str,
    uptime_seconds: u64,
    /// Whether it is ready for `all` traffic, for `ingest`, for `reads`.
    ready: BTreeMap<&'static str, bool>,
    checks: Vec<CheckBody>,
    projection_lag: LagBody,
    /// How long requests waited for a connection to the database lately, on the mean.
    connection_wait_ms: u64,
    /// Which database is used: `primary` or `failback`.
    database: &'static str,
    directory: DirectoryBody,
    /// Every metric by its name, without the buckets of distributions.
    metrics: BTreeMap<String, Vec<SampleBody>>,
}

/// Which database is used.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Database)]
pub(super) struct DatabaseBody {
    /// `primary` or `failback`.
    database: &'static str,
}

/// One check.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Check)]
pub(super) struct CheckBody {
    name: &'static str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    reason: Option<&'static str>,
    for_seconds: u64,
}

/// How far the database is behind the log.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ProjectionLag)]
pub(super) struct LagBody {
    events: u64,
    oldest_ms: u64,
}

/// How the directory is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Directory)]
pub(super) struct DirectoryBody {
    /// Whether it was read once.
    ready: bool,
    /// Whether changes are heard of as they happen.
    level: bool,
    revision: u64,
    tenants: usize,
    keys: usize,
    channels: usize,
    unreadable: usize,
}

/// One value of a metric.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Sample)]
pub(super) struct SampleBody {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    value: f64,
}

pub(super) fn routes() -> OpenApiRouter<Arc<Probes>> {
    OpenApiRouter::new()
        .routes(routes!(livez))
        .routes(routes!(readyz))
        .routes(routes!(readyz_of))
        .routes(routes!(metrics))
}

pub(super) fn routes_of_status() -> OpenApiRouter<Arc<Status>> {
    OpenApiRouter::new().routes(routes!(show_status)).routes(routes!(return_to_primary))
}

/// Whether the process answers at all. It touches nothing.
#[utoipa::path(get, path = "/livez", tag = "operation",
    responses((status = 200, description = "It does", content_type = "text/plain", body = String)))]
async fn livez() -> Response {
    text(StatusCode::OK, "text/plain; charset=utf-8", "ok\n")
}

/// Whether the server is ready for all traffic.
///
/// Not while it starts (the log, the database and the migrations have not yet worked together once), drains, or has no
/// log, nor while requests wait too long for a connection to the database (`READY_DB_QUEUE_MS`). A database that goes
/// away later leaves it ready otherwise, because sends need none; ask `/readyz/ingest` for sends, `/readyz/reads` for reads.
#[utoipa::path(get, path = "/readyz", tag = "operation",
    params(("verbose" = Option<String>, Query, description = "Shows every check"),
           ("exclude" = Option<String>, Query, description = "A check that is not to decide; may be repeated")),
    responses((status = 200, description = "It is ready", content_type = "text/plain", body = String),
              (status = 503, description = "It is not, and why", content_type = "text/plain", body = String)))]
async fn readyz(State(probes): State<Arc<Probes>>, request: Request) -> Result<Response, Problem> {
    let (parts, _body) = request.into_parts();
    probes.readiness(View::All, &parts)
}

/// Whether the server is ready for sends, for reads, or as far as one check goes.
#[utoipa::path(get, path = "/readyz/{check}", tag = "operation",
    params(("check" = String, Path, description = "`ingest`, `reads`, or a check: `log`, `database`, `migrations`, `pool`, `started`, `draining`"),
           ("verbose" = Option<String>, Query, description = "Shows the checks"),
           ("exclude" = Option<String>, Query, description = "A check that is not to decide; may be repeated")),
    responses((status = 200, description = "It is ready", content_type = "text/plain", body = String),
              (status = 503, description = "It is not, and why", content_type = "text/plain", body = String)))]
async fn readyz_of(
    State(probes): State<Arc<Probes>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let view = match name.as_str() {
        "ingest" => Some(View::Ingest),
        "reads" => Some(View::Reads),
        check => Check::parse(check).map(View::Only),
    };
    let view = view.ok_or_else(|| Problem::not_found("There is no such check."))?;
    let (parts, _body) = request.into_parts();
    probes.readiness(view, &parts)
}

/// Everything that is counted and measured, in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", tag = "operation",
    responses((status = 200, description = "The page", content_type = "text/plain", body = String)))]
async fn metrics(State(probes): State<Arc<Probes>>) -> Response {
    text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", probes.render.page())
}

/// What the server knows of itself: checks, lag, directory and metrics.
#[utoipa::path(get, path = "/v1/operator/status", tag = "operation", security(("operator" = [])),
    responses((status = 200, description = "The status", body = StatusBody)))]
async fn show_status(
    State(status): State<Arc<Status>>,
    request: Request,
) -> Result<Response, Problem> {
    let clock = &status.probes.clock;
    status.doorkeeper.operator(request.headers(), clock.timestamp())?;
    json(StatusCode::OK, &status.body(clock.now()))
}

/// Returns to the primary database, without waiting until it has proved itself for five minutes.
///
/// The pools first open connections to it; if they cannot, everything stays as it is. The answer tells which database is
/// used now, `primary` or `failback`; look at the status to see when it has changed.
#[utoipa::path(post, path = "/v1/operator/database/return", tag = "operation", security(("operator" = [])),
    responses((status = 202, description = "It is being tried, or there is nothing to do", body = DatabaseBody)))]
async fn return_to_primary(
    State(status): State<Arc<Status>>,
    request: Request,
) -> Result<Response, Problem> {
    let now = status.probes.clock.timestamp();
    status.doorkeeper.operator(request.headers(), now)?;
    if !status.failback.has_other() {
        return Err(Problem::not_found(
            "There is no second database: DATABASE_FAILBACK_URL is not set.",
        ));
    }
    status.failback.return_to_primary();
    json(StatusCode::ACCEPTED, &DatabaseBody { database: status.failback.active().as_str() })
}

impl Probes {
    fn readiness(&self, view: View, parts: &Parts) -> Result<Response, Problem> {
        let (mut verbose, mut excluded) = (false, Vec::new());
        for (name, value) in query(parts)? {
            match name.as_str() {
                "verbose" => verbose = true,
                "exclude" => {
                    let check = Check::parse(&value);
                    excluded.push(check.ok_or_else(|| {
                        Problem::new(Code::BadRequest, "The parameter exclude must name a check.")
                    })?);
                }
                _ => {}
            }
        }
        let shown = self.board.snapshot();
        let report = verdict::judge(&shown.states, view, &excluded);
        let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let body = if verbose || !report.ready {
            let lag = verdict::lag_line(shown.lag.events, shown.lag.oldest);
            let wait = verdict::wait_line(shown.wait);
            format!("{lag}{wait}{}", report.text(self.clock.now()))
        } else {
            report.verdict_line().to_owned()
        };
        Ok(text(status, "text/plain; charset=utf-8", body))
    }
}

impl Status {
    fn body(&self, now: Instant) -> StatusBody {
        let shown = self.probes.board.snapshot();
        let ready = |view| verdict::judge(&shown.states, view, &[]).ready;
        let check = |check: Check| {
            let state = shown.states[check as usize];
            CheckBody {
                name: check.name(),
                ok: state.failure.is_none(),
                reason: state.failure,
                for_seconds: now.saturating_duration_since(state.since).as_secs(),
            }
        };
        let directory = self.directory.status();
        StatusBody {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: now.saturating_duration_since(self.started).as_secs(),
            ready: BTreeMap::from([
                ("all", ready(View::All)),
                ("ingest", ready(View::Ingest)),
                ("reads", ready(View::Reads)),
            ]),
            checks: Check::ALL.map(check).into(),
            projection_lag: LagBody {
                events: shown.lag.events,
                oldest_ms: u64::try_from(shown.lag.oldest.as_millis()).unwrap_or(u64::MAX),
            },
            connection_wait_ms: u64::try_from(shown.wait.as_millis()).unwrap_or(u64::MAX),
            database: self.failback.active().as_str(),
            directory: DirectoryBody {
                ready: directory.ready,
                level: directory.level,
                revision: directory.revision,
                tenants: directory.counts.tenants,
                keys: directory.counts.keys,
                channels: directory.counts.channels,
                unreadable: directory.counts.unreadable,
            },
            metrics: samples(&self.probes.render.page()),
        }
    }
}

/// The samples of a page of metrics, without the buckets. Lines that are none are passed over.
fn samples(page: &str) -> BTreeMap<String, Vec<SampleBody>> {
    let mut samples: BTreeMap<String, Vec<SampleBody>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let Ok(value) = value.parse::<f64>() else {
            continue;
        };
        if name.ends_with("_bucket") {
            continue;
        }
        let pair = |pair: &str| {
            let (label, value) = pair.split_once('=')?;
            Some((label.to_owned(), value.trim_matches('"').to_owned()))
        };
        let labels = labels.trim_end_matches('}').split(',').filter_map(pair).collect();
        samples.entry(name.to_owned()).or_default().push(SampleBody { labels, value });
    }
    samples
}

fn text(status: StatusCode, media_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.extensions_mut().insert(Deliberate);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_from_the_page_without_buckets() {
        let page = "# HELP a_total Help.\n# TYPE a_total counter\na_total{partition=\"0\",class=\"2xx\"} 7\na_total 1.5\n\
                    b_seconds_bucket{le=\"1\"} 3\nb_seconds_sum 2\n\nnonsense\n";
        let samples = samples(page);
        assert_eq!(samples.keys().collect::<Vec<_>>(), ["a_total", "b_seconds_sum"]);
        let first = &samples["a_total"][0];
        assert_eq!((first.labels["class"].as_str(), first.value), ("2xx", 7.0));
        assert_eq!(samples["a_total"][1], SampleBody { labels: BTreeMap::new(), value: 1.5 });
    }
}
