//! The doors: REST for operators, tenants and users, the probes, and the pages that explain them.
//! Promises that what is routed is documented, and that every answer is as `docs` say, problems included.
//! Does not know SQL, subjects or policies; it turns requests into calls of flows and their answers into statuses.

mod access;
mod deliveries;
mod directory;
mod docs;
pub mod frame;
pub mod listen;
mod messages;
mod probes;
pub mod problem;
mod socket;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use axum::Router;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::clock::Clock;
use crate::delivery::Deliveries;
use crate::directory::Directory;
use crate::history::History;
use crate::ingest::Ingest;
use crate::journal::Journal;
use crate::lifecycle::Stop;
use crate::live::hub::Hub;
use crate::metrics::Metrics;
use crate::operate::failback::Failback;
use crate::operate::redelivery::Redelivery;
use crate::readiness::Board;

pub use access::OperatorToken;
pub use access::tokens;
pub use frame::request::Seeds;
pub use frame::{Dice, Frame};
pub use listen::Door;
pub use probes::Render;

use access::Doorkeeper;
use access::issue::{self, Issuer};
use deliveries::Counter;
use deliveries::inbound::Inbox;
use directory::{Desk, channels, tenants};
use messages::conversations::{self, Conversations};
use messages::{Pages, Sends};
use probes::{Probes, Status};
use problem::{Code, Problem};
use socket::Sockets;
use socket::events::Streams;

/// Everything that the doors lead to.
#[derive(Debug)]
pub struct Rooms {
    /// Tenants, keys and channels.
    pub directory: Directory,
    /// What is known of the log.
    pub journal: Journal,
    /// The flow of sends.
    pub ingest: Ingest,
    /// The flow of reads.
    pub history: History,
    /// Where readiness is written.
    pub board: Board,
    /// The operator's hand on the choice of the database.
    pub failback: Failback,
    /// What this node sees of deliveries; `None` when it makes none.
    pub deliveries: Option<Deliveries>,
    /// What became of deliveries, and delivering again.
    pub redelivery: Redelivery,
    /// Who listens to which conversation.
    pub hub: Hub,
    /// The log's incarnation.
    pub epoch: String,
}

/// What the doors need beside the rooms.
#[derive(Debug)]
pub struct Fittings {
    /// Issues and checks users' tokens.
    pub tokens: tokens::Tokens,
    /// `None` when nobody is the operator.
    pub operator: Option<OperatorToken>,
    /// Where time comes from.
    pub clock: Clock,
    /// Handles of the server's metrics.
    pub metrics: Metrics,
    /// Writes the page of metrics.
    pub render: Render,
    /// Randomness for keys and secrets.
    pub seeds: Seeds,
    /// Randomness for request ids and jitter.
    pub dice: Dice,
    /// The door closes.
    pub closing: Stop,
    /// Base of the waits that retryable answers name.
    pub retry_base: Duration,
}

/// The router with everything around it, ready for a [`Door`].
pub fn frame(rooms: Rooms, fittings: Fittings) -> Frame {
    let (clock, dice) = (fittings.clock.clone(), fittings.dice.clone());
    let (metrics, retry_base) = (fittings.metrics.api.clone(), fittings.retry_base);
    let shortage = frame::Shortage::new(fittings.metrics.database.clone());
    let document = docs::Document::of(&openapi());
    let states = states(rooms, fittings, document);
    let sends = Some(Arc::clone(&states.sends));
    let routes = routes(states);
    let router = Router::from(routes).fallback(nowhere).method_not_allowed_fallback(not_so);
    Frame { router, sends, clock, dice, metrics, shortage, retry_base }
}

/// The OpenAPI document of all calls.
pub fn openapi() -> OpenApi {
    let mut openapi = docs::begin();
    for family in [
        messages::routes_of_sends().into_openapi(),
        messages::routes_of_pages().into_openapi(),
        conversations::routes().into_openapi(),
        socket::routes().into_openapi(),
        socket::events::routes().into_openapi(),
        issue::routes().into_openapi(),
        channels::routes().into_openapi(),
        deliveries::routes().into_openapi(),
        deliveries::inbound::routes().into_openapi(),
        tenants::routes().into_openapi(),
        probes::routes().into_openapi(),
        probes::routes_of_status().into_openapi(),
        problem::routes().into_openapi(),
        docs::routes().into_openapi(),
    ] {
        openapi.merge(family);
    }
    docs::complete(&mut openapi);
    openapi
}

/// What each family can touch.
struct States {
    sends: Arc<Sends>,
    pages: Arc<Pages>,
    conversations: Arc<Conversations>,
    issuer: Arc<Issuer>,
    desk: Arc<Desk>,
    counter: Arc<Counter>,
    inbox: Arc<Inbox>,
    sockets: Arc<Sockets>,
    streams: Arc<Streams>,
    probes: Arc<Probes>,
    status: Arc<Status>,
    document: Arc<docs::Document>,
}

/// Every route with its state.
fn routes(states: States) -> OpenApiRouter {
    OpenApiRouter::new()
        .merge(messages::routes_of_sends().with_state(states.sends))
        .merge(messages::routes_of_pages().with_state(states.pages))
        .merge(conversations::routes().with_state(states.conversations))
        .merge(socket::routes().with_state(states.sockets))
        .merge(socket::events::routes().with_state(states.streams))
        .merge(issue::routes().with_state(states.issuer))
        .merge(channels::routes().with_state(Arc::clone(&states.desk)))
        .merge(deliveries::routes().with_state(states.counter))
        .merge(deliveries::inbound::routes().with_state(states.inbox))
        .merge(tenants::routes().with_state(states.desk))
        .merge(probes::routes().with_state(states.probes))
        .merge(probes::routes_of_status().with_state(states.status))
        .merge(problem::routes())
        .merge(docs::routes().with_state(states.document))
}

#[expect(clippy::too_many_lines, reason = "a list: what each family is given")]
fn states(rooms: Rooms, fittings: Fittings, document: docs::Document) -> States {
    let Rooms {
        directory,
        journal,
        ingest,
        history,
        board,
        failback,
        deliveries,
        redelivery,
        hub,
        epoch,
    } = rooms;
    let clock = fittings.clock;
    let tokens = Arc::new(fittings.tokens);
    let doorkeeper = Arc::new(Doorkeeper {
        directory: directory.clone(),
        tokens: Arc::clone(&tokens),
        operator: fittings.operator,
    });
    let probes = Arc::new(Probes { board, clock: clock.clone(), render: fittings.render });
    let sockets = Arc::new(Sockets {
        doorkeeper: Arc::clone(&doorkeeper),
        ingest: ingest.clone(),
        history: history.clone(),
        hub,
        epoch,
        clock: clock.clone(),
        dice: fittings.dice.clone(),
        retry_base: fittings.retry_base,
        waiting: AtomicUsize::new(0),
    });
    let inbox = Arc::new(Inbox {
        directory: directory.clone(),
        ingest: ingest.clone(),
        clock: clock.clone(),
    });
    let counter = Arc::new(Counter {
        doorkeeper: Arc::clone(&doorkeeper),
        directory: directory.clone(),
        deliveries: deliveries.clone(),
        redelivery: redelivery.clone(),
        clock: clock.clone(),
        seeds: fittings.seeds.clone(),
    });
    States {
        sends: Arc::new(Sends {
            doorkeeper: Arc::clone(&doorkeeper),
            ingest: ingest.clone(),
            clock: clock.clone(),
        }),
        pages: Arc::new(Pages {
            doorkeeper: Arc::clone(&doorkeeper),
            history: history.clone(),
            clock: clock.clone(),
        }),
        streams: Arc::new(Streams { sockets: Arc::clone(&sockets), closing: fittings.closing }),
        sockets,
        inbox,
        counter,
        conversations: Arc::new(Conversations {
            doorkeeper: Arc::clone(&doorkeeper),
            ingest,
            history,
            clock: clock.clone(),
        }),
        issuer: Arc::new(Issuer {
            doorkeeper: Arc::clone(&doorkeeper),
            tokens,
            clock: clock.clone(),
            dice: fittings.dice,
        }),
        desk: Arc::new(Desk {
            doorkeeper: Arc::clone(&doorkeeper),
            directory: directory.clone(),
            journal,
            clock: clock.clone(),
            seeds: fittings.seeds,
            deliveries,
            redelivery,
        }),
        status: Arc::new(Status {
            doorkeeper,
            directory,
            probes: Arc::clone(&probes),
            failback,
            started: clock.now(),
        }),
        probes,
        document: Arc::new(document),
    }
}

async fn nowhere() -> Problem {
    Problem::not_found("There is no such path. /docs lists those that there are.")
}

async fn not_so() -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        "The path does not have this method; Allow lists those that it has.",
    )
}

#[cfg(test)]
mod tests;
