//! Sends answered by Postgres itself: one `INSERT` a send, or `INSERT`s gathered across sends.
//! Promises that a send is answered after its row is committed, in a table shaped like Forebay's messages: place and id are unique.
//! Does not look up repeats and does not keep seqs over a restart: both would cost a real service more than is measured here.

use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::bench::Error;
use crate::event::{ConversationId, MessageId};

/// Connections of the direct variant's pool: Forebay's own default pool size.
pub const POOL_CONNECTIONS: u32 = 10;

/// Most rows of one gathered `INSERT`; beyond 2 000 Postgres gains nothing more.
const GATHER_ROWS_MAX: usize = 2_000;

/// Rows that can wait for a gathering writer; senders wait beyond that.
const GATHER_QUEUE: usize = 4_096;

/// One message.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its conversation.
    pub conversation: ConversationId,
    /// Its place in there.
    pub seq: u64,
    /// Its id.
    pub id: MessageId,
    /// Its content.
    pub body: String,
}

impl Row {
    /// Postgres has no unsigned integers; a benchmark does not reach 2^63.
    fn seq(&self) -> i64 {
        i64::try_from(self.seq).unwrap_or(i64::MAX)
    }
}

/// The benchmark's table.
#[derive(Clone, Debug)]
pub struct Table {
    pool: PgPool,
}

/// A statement on the benchmark's own schema.
#[expect(
    clippy::disallowed_methods,
    reason = "the table exists during a benchmark only, so no build can check statements against it"
)]
pub(in crate::bench) fn statement(
    sql: &'static str,
) -> sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
    sqlx::query(sql)
}

const SETUP: [&str; 3] = [
    "DROP SCHEMA IF EXISTS forebay_bench CASCADE",
    "CREATE SCHEMA forebay_bench",
    "CREATE TABLE forebay_bench.sends (conversation uuid, seq bigint, id uuid NOT NULL UNIQUE, \
     body text NOT NULL, PRIMARY KEY (conversation, seq))",
];
const INSERT: &str =
    "INSERT INTO forebay_bench.sends (conversation, seq, id, body) VALUES ($1, $2, $3, $4)";
const INSERT_MANY: &str = "INSERT INTO forebay_bench.sends (conversation, seq, id, body) \
     SELECT * FROM UNNEST($1::uuid[], $2::bigint[], $3::uuid[], $4::text[])";

impl Table {
    /// Makes the table anew in a schema of its own.
    ///
    /// # Errors
    /// When Postgres is not reached or refuses.
    pub async fn make(database_url: &str) -> Result<Self, Error> {
        let database = |doing| move |source| Error::Database { doing, source };
        // A check of each connection before its use would be a round trip more than a service in its senses pays.
        let options = PgPoolOptions::new()
            .max_connections(POOL_CONNECTIONS)
            .min_connections(POOL_CONNECTIONS)
            .test_before_acquire(false);
        let pool =
            options.connect(database_url).await.map_err(database("connecting to Postgres"))?;
        for sql in SETUP {
            statement(sql)
                .execute(&pool)
                .await
                .map_err(database("making the benchmark's table"))?;
        }
        Ok(Self { pool })
    }

    /// Empties the table, so that no round pays for the size that an earlier one left.
    ///
    /// # Errors
    /// When Postgres refuses.
    pub async fn empty(&self) -> Result<(), Error> {
        self.run("TRUNCATE forebay_bench.sends", "emptying the benchmark's table").await
    }

    /// Removes the table with its schema.
    ///
    /// # Errors
    /// When Postgres refuses.
    pub async fn remove(&self) -> Result<(), Error> {
        self.run("DROP SCHEMA forebay_bench CASCADE", "removing the benchmark's table").await
    }

    async fn run(&self, sql: &'static str, doing: &'static str) -> Result<(), Error> {
        let done = statement(sql).execute(&self.pool).await;
        done.map(drop).map_err(|source| Error::Database { doing, source })
    }

    /// Commits one row.
    ///
    /// # Errors
    /// When Postgres refuses it.
    pub async fn insert(&self, row: Row) -> Result<(), sqlx::Error> {
        let insert = statement(INSERT)
            .bind(row.conversation.uuid())
            .bind(row.seq())
            .bind(row.id.uuid())
            .bind(row.body);
        insert.execute(&self.pool).await.map(drop)
    }

    async fn insert_many(&self, rows: &[Waiting]) -> Result<(), sqlx::Error> {
        let column = |of: fn(&Row) -> Uuid| rows.iter().map(|w| of(&w.row)).collect::<Vec<_>>();
        let insert = statement(INSERT_MANY)
            .bind(column(|row| row.conversation.uuid()))
            .bind(rows.iter().map(|w| w.row.seq()).collect::<Vec<_>>())
            .bind(column(|row| row.id.uuid()))
            .bind(rows.iter().map(|w| w.row.body.as_str()).collect::<Vec<_>>());
        insert.execute(&self.pool).await.map(drop)
    }
}

/// A row and whoever waits for its commit.
#[derive(Debug)]
struct Waiting {
    row: Row,
    committed: oneshot::Sender<bool>,
}

/// Writers that take whatever waits and commit it at once: the group commit that a service can have without a log.
#[derive(Debug)]
pub struct Gathering {
    queues: Vec<mpsc::Sender<Waiting>>,
    /// Ends the writers when the gathering is dropped.
    _writers: JoinSet<()>,
}

impl Gathering {
    /// Starts so many writers, at least one. A conversation's rows go to the same one.
    pub fn start(table: &Table, writers: usize) -> Self {
        let mut tasks = JoinSet::new();
        let queue = |_writer| {
            let (queue, inbox) = mpsc::channel(GATHER_QUEUE);
            tasks.spawn(write(table.clone(), inbox));
            queue
        };
        let queues = (0..writers.max(1)).map(queue).collect();
        Self { queues, _writers: tasks }
    }

    /// Waits until the row is committed; says whether it was.
    pub async fn insert(&self, row: Row) -> bool {
        let (committed, answer) = oneshot::channel();
        let hash = row.conversation.uuid().as_u128() % self.queues.len() as u128;
        let queue = &self.queues[usize::try_from(hash).unwrap_or(0)];
        let queued = queue.send(Waiting { row, committed }).await.is_ok();
        queued && answer.await.unwrap_or(false)
    }
}

async fn write(table: Table, mut inbox: mpsc::Receiver<Waiting>) {
    let mut batch = Vec::with_capacity(GATHER_ROWS_MAX);
    while inbox.recv_many(&mut batch, GATHER_ROWS_MAX).await > 0 {
        let committed = match table.insert_many(&batch).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "a gathered INSERT failed: {error}");
                false
            }
        };
        for waiting in batch.drain(..) {
            // Whoever has gone needs no answer.
            let _gone = waiting.committed.send(committed);
        }
    }
}
