//! Those who are asked: Forebay's pool, a plain pool of sqlx, `PgBouncer` behind a bag of client connections.
//! Promises the same query for each, an answer that is checked, and that each ends a request by its deadline in its own way.
//! Does not measure.

use std::time::Instant;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use sqlx::Row;
use sqlx::postgres::{PgPool, PgPoolOptions, PgRow};
use tokio::time::timeout_at;

use super::bag::Bag;
use super::{Options, Rivals, Who};
use crate::admission::{Class, Origin, Overload, Priority, Source, Tag};
use crate::bench::Error;
use crate::clock::Clock;
use crate::event::TenantId;
use crate::lifecycle::Supervisor;
use crate::metrics::Metrics;
use crate::sandbox::PgBouncer;
use crate::store::{self, Interactive, Limits, Means, Schema, Settings, Target};

/// Lifetimes and pauses are drawn from it; nothing that is measured depends on them.
const SEED: u64 = 1;

/// What a client got.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The right answer.
    Answered,
    /// Word that there will be none.
    Refused(String),
    /// Nothing by the deadline.
    Late,
    /// Something else.
    Failed(String),
}

/// Who is asked.
#[derive(Debug)]
pub(super) enum Contestant {
    Forebay(Forebay),
    Sqlx(Sqlx),
    PgBouncer(Box<(PgBouncer, Bag)>),
}

#[derive(Debug)]
pub(super) struct Forebay {
    pool: Interactive,
    supervisor: Supervisor,
    /// Whose request it is, in turns.
    tags: Vec<Tag>,
    service: f64,
}

#[derive(Debug)]
pub(super) struct Sqlx {
    pool: PgPool,
    service: f64,
}

/// The query: it takes so long, and answers with the number that it was asked with.
const QUERY: &str = "SELECT $1::int8 FROM pg_sleep($2::float8)";

/// The query as a prepared statement.
#[expect(
    clippy::disallowed_methods,
    reason = "the query belongs to the measurement and uses no table, so no build has to check it"
)]
pub(super) fn query(
    number: i64,
    service: f64,
) -> sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
    sqlx::query(QUERY).bind(number).bind(service)
}

/// Requests are numbered from 0; none has a number that Postgres does not know.
pub(super) fn number_of(request: u64) -> i64 {
    i64::try_from(request).unwrap_or(i64::MAX)
}

/// Whether the answer is that of this request.
pub(super) fn judge(row: &PgRow, number: i64) -> Asked {
    match row.try_get::<i64, _>(0) {
        Ok(answer) if answer == number => Asked::Answered,
        Ok(_another) => Asked::Failed("the answer to another request".to_owned()),
        Err(error) => Asked::Failed(error.to_string()),
    }
}

impl Contestant {
    /// Forebay's pool as `serve` opens it, but that it keeps all of its connections, as the others do once they are warm.
    pub(super) fn forebay(url: &str, options: &Options, clock: &Clock) -> Result<Self, Error> {
        let target = Target::parse(url, Schema::default()).map_err(Error::Store)?;
        let connections = usize::from(options.connections);
        let settings = Settings {
            target,
            failback: None,
            interactive: Limits {
                connections,
                connections_min: connections,
                ..Limits::INTERACTIVE
            },
            background: Limits { connections: 1, ..Limits::BACKGROUND },
        };
        let supervisor = Supervisor::new();
        let mut means = Means {
            clock: clock.clone(),
            metrics: Metrics::silent(0),
            supervisor: supervisor.clone(),
            rng: StdRng::seed_from_u64(SEED),
        };
        let (pool, _background) = store::open(&settings, &mut means);
        let tag = |tenant: u16| {
            let mut name = [0; 16];
            name[..2].copy_from_slice(&tenant.to_be_bytes());
            let tenant = Some(TenantId::derive(name));
            Origin { class: Class::Standard, tenant, source: Source::Rest }.at(Priority::High)
        };
        let tags = (0..options.tenants.max(1)).map(tag).collect();
        let service = options.service.as_secs_f64();
        Ok(Self::Forebay(Forebay { pool, supervisor, tags, service }))
    }

    /// A pool of sqlx with its defaults: it lets a caller wait for 30 s, so callers give up by leaving.
    pub(super) fn sqlx(url: &str, options: &Options) -> Result<Self, Error> {
        let lazily = PgPoolOptions::new().max_connections(u32::from(options.connections));
        let doing = "reading the address of the database";
        let pool = lazily.connect_lazy(url).map_err(|source| Error::Database { doing, source })?;
        Ok(Self::Sqlx(Sqlx { pool, service: options.service.as_secs_f64() }))
    }

    /// `PgBouncer`, with its clients connected.
    pub(super) async fn pgbouncer(rivals: Rivals, options: &Options) -> Result<Self, Error> {
        let bag = Bag::open(&rivals.url, rivals.clients, options.service).await?;
        Ok(Self::PgBouncer(Box::new((rivals.pgbouncer, bag))))
    }

    pub(super) fn who(&self) -> Who {
        match self {
            Self::Forebay(_) => Who::Forebay,
            Self::Sqlx(_) => Who::Sqlx,
            Self::PgBouncer(_) => Who::PgBouncer,
        }
    }

    /// Lets it open its connections before anything is measured: as many requests at once as it may have of them.
    pub(super) async fn warm(&self, options: &Options, clock: &Clock) -> Result<(), Error> {
        let deadline = clock.now() + WARM_MAX;
        if let Self::Forebay(forebay) = self {
            forebay.pool.warm(deadline).await;
        }
        let requests = (0..options.connections).map(|n| self.ask(u64::from(n), deadline));
        for asked in futures_util::future::join_all(requests).await {
            if asked != Asked::Answered {
                return Err(Error::Cold { who: self.who().label(), how: format!("{asked:?}") });
            }
        }
        Ok(())
    }

    /// Asks, and gives up at the deadline.
    pub(super) async fn ask(&self, request: u64, deadline: Instant) -> Asked {
        match self {
            Self::Forebay(forebay) => forebay.ask(request, deadline).await,
            Self::Sqlx(Sqlx { pool, service }) => {
                let number = number_of(request);
                let answer = query(number, *service).fetch_one(pool);
                match timeout_at(deadline.into(), answer).await {
                    Ok(Ok(row)) => judge(&row, number),
                    Ok(Err(error @ sqlx::Error::PoolTimedOut)) => Asked::Refused(error.to_string()),
                    Ok(Err(error)) => Asked::Failed(error.to_string()),
                    Err(_elapsed) => Asked::Late,
                }
            }
            Self::PgBouncer(both) => both.1.ask(request, deadline).await,
        }
    }

    /// Closes every connection.
    pub(super) async fn close(self) -> Result<(), Error> {
        match self {
            Self::Forebay(forebay) => {
                forebay.supervisor.drain().await;
                Ok(())
            }
            Self::Sqlx(Sqlx { pool, .. }) => {
                pool.close().await;
                Ok(())
            }
            Self::PgBouncer(both) => {
                let (pgbouncer, bag) = *both;
                drop(bag);
                pgbouncer.stop().await.map_err(Error::Sandbox)
            }
        }
    }
}

/// How long connections may take to be opened before the measurement.
const WARM_MAX: std::time::Duration = std::time::Duration::from_secs(10);

impl Forebay {
    async fn ask(&self, request: u64, deadline: Instant) -> Asked {
        let number = number_of(request);
        let turn = usize::try_from(request % self.tags.len() as u64).unwrap_or(0);
        let mut lease = match self.pool.acquire(self.tags[turn], deadline).await {
            Ok(lease) => lease,
            Err(error) => return asked_of(&error),
        };
        let service = self.service;
        let answer = lease.run(deadline, async |conn| {
            let row = query(number, service).fetch_one(conn).await;
            row.map_err(|source| store::Error::Statement { doing: "sleep", source })
        });
        match answer.await {
            Ok(row) => judge(&row, number),
            Err(error) => asked_of(&error),
        }
    }
}

fn asked_of(error: &store::Error) -> Asked {
    if let store::Error::Refused { source: Overload::Deadline, .. }
    | store::Error::Deadline { .. } = error
    {
        Asked::Late
    } else if let store::Error::Refused { source, .. } = error {
        Asked::Refused(source.to_string())
    } else {
        Asked::Failed(crate::lifecycle::chain(error))
    }
}
