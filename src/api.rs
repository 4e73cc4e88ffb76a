//! The doors: REST for operators, tenants and users, the probes, and the pages that explain them.
//! Promises that what is routed is documented, and that every answer is as `docs` say, problems included.
//! Does not know SQL, subjects or policies; it turns requests into calls of flows and their answers into statuses.

mod access;
mod channels;
mod conversations;
mod docs;
pub mod frame;
pub mod listen;
mod messages;
mod probes;
pub mod problem;
mod request;
mod tenants;
pub mod tokens;

use std::sync::Arc;
use std::time::Duration;

use utoipa_axum::router::OpenApiRouter;

use crate::clock::Clock;
use crate::directory::Directory;
use crate::history::History;
use crate::ingest::Ingest;
use crate::metrics::Metrics;
use crate::readiness::Board;

pub use access::OperatorToken;
pub use frame::{Dice, Frame};
pub use listen::Door;
pub use probes::Render;
pub use request::Seeds;

use access::Doorkeeper;
use problem::{Code, Problem};

/// Everything that the doors lead to.
#[derive(Debug)]
pub struct Rooms {
    /// Tenants, keys and channels.
    pub directory: Directory,
    /// The flow of sends.
    pub ingest: Ingest,
    /// The flow of reads.
    pub history: History,
    /// Where readiness is written.
    pub board: Board,
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
    /// Base of the waits that retryable answers name.
    pub retry_base: Duration,
}

/// The router with everything around it, ready for a [`Door`].
pub fn frame(rooms: Rooms, fittings: Fittings) -> Frame {
    let (clock, dice) = (fittings.clock.clone(), fittings.dice.clone());
    let (metrics, retry_base) = (fittings.metrics.api.clone(), fittings.retry_base);
    let (router, openapi) = router(rooms, fittings).split_for_parts();
    let router = router.merge(docs::routes(openapi));
    let router = router.fallback(nowhere).method_not_allowed_fallback(not_so);
    Frame {
        router,
        clock,
        dice,
        metrics,
        retry_base,
    }
}

/// Every documented route with its state.
fn router(rooms: Rooms, fittings: Fittings) -> OpenApiRouter {
    let clock = fittings.clock;
    let tokens = Arc::new(fittings.tokens);
    let doorkeeper = Arc::new(Doorkeeper {
        directory: rooms.directory.clone(),
        tokens: Arc::clone(&tokens),
        operator: fittings.operator,
    });
    let sends = messages::Sends {
        doorkeeper: Arc::clone(&doorkeeper),
        ingest: rooms.ingest.clone(),
        clock: clock.clone(),
        metrics: fittings.metrics.ingest,
    };
    let pages = messages::Pages {
        doorkeeper: Arc::clone(&doorkeeper),
        history: rooms.history.clone(),
        clock: clock.clone(),
    };
    let conversations = conversations::Conversations {
        doorkeeper: Arc::clone(&doorkeeper),
        ingest: rooms.ingest,
        history: rooms.history,
        clock: clock.clone(),
    };
    let issuer = tokens::Issuer {
        doorkeeper: Arc::clone(&doorkeeper),
        tokens,
        clock: clock.clone(),
        dice: fittings.dice,
    };
    let tenants = tenants::Tenants {
        doorkeeper: Arc::clone(&doorkeeper),
        directory: rooms.directory.clone(),
        clock: clock.clone(),
        seeds: fittings.seeds.clone(),
    };
    let channels = channels::Channels {
        doorkeeper: Arc::clone(&doorkeeper),
        directory: rooms.directory.clone(),
        clock: clock.clone(),
        seeds: fittings.seeds,
    };
    let started = clock.now();
    let probes = Arc::new(probes::Probes {
        board: rooms.board,
        clock,
        render: fittings.render,
    });
    let status = probes::Status {
        doorkeeper,
        directory: rooms.directory,
        probes: Arc::clone(&probes),
        started,
    };
    docs::begin()
        .merge(messages::routes(sends, pages))
        .merge(conversations::routes(conversations))
        .merge(tokens::routes(issuer))
        .merge(channels::routes(channels))
        .merge(tenants::routes(tenants))
        .merge(probes::routes(probes, status))
        .merge(problem::routes())
}

async fn nowhere() -> Problem {
    Problem::not_found("There is no such path.")
}

async fn not_so() -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        "The path does not have this method; Allow lists those that it has.",
    )
}
