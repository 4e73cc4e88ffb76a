//! Worlds: each test has its own database and its own namespace on one Postgres and one nats-server that the whole
//! binary shares. A test that stops a service has services of its own.

pub mod client;
pub mod node;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay::admission::{Origin, Priority, Source, Tag};
use forebay::cli::serve::{self, Server};
use forebay::clock::Clock;
use forebay::config::Config;
use forebay::event::{Event, Partition, Record};
use forebay::log::{Log, Namespace, streams};
use forebay::operate::verify::{Findings, Verifier};
use forebay::sandbox::{
    Binaries, Durability, Install, Nats, Options, PgBouncer, Pooling, Postgres, provide,
};
use forebay::store::{Schema, Target, schema};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

/// What a test asks for when it does not matter who it is.
pub const WISH: Tag = Origin::system(Source::Operator).at(Priority::High);

/// Patience of `eventually`, long enough for a busy machine; what waits longer hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The operator's token of every world.
pub const ADMIN_TOKEN: &str = "operator-of-the-test-worlds";

/// A database that is migrated once and copied for every world.
const TEMPLATE: &str = "world_template";

/// Removes the directory `$1` at the end of its input, when the processes `$2` and `$3` are gone, ten seconds later at most.
const SWEEP: &str = r#"
read -r _
for _ in 1 2 3 4 5 6 7 8 9 10; do
  kill -0 "$2" || kill -0 "$3" || break
  sleep 1
done
rm -rf "$1"
"#;

/// The services that all worlds share, started once.
struct Shared {
    /// `{}` stands for the name of the database.
    postgres: String,
    nats: String,
}

static SHARED: OnceLock<Shared> = OnceLock::new();
static WORLDS: AtomicU32 = AtomicU32::new(0);

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn options(root: PathBuf) -> Options {
    Options { root, install: Install::Allow, durability: Durability::Fast }
}

/// The programs, found or installed once for the repository.
#[expect(clippy::print_stderr, reason = "an installation takes a while and says what it does")]
pub async fn binaries() -> Binaries {
    let options = options(repository().join(".forebay"));
    provide(&options, &mut |line: &str| eprintln!("{line}")).await.unwrap()
}

/// Starts the shared services on a thread of their own, which keeps them until the process ends.
fn shared() -> &'static Shared {
    SHARED.get_or_init(|| {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let root = tempfile::tempdir().unwrap();
                let (binaries, options) = (binaries().await, options(root.path().to_owned()));
                let postgres = Postgres::start(&binaries, &options).await.unwrap();
                let nats = Nats::start(&binaries, &options).await.unwrap();
                postgres.create_database(TEMPLATE).await.unwrap();
                migrate(&postgres.url(TEMPLATE)).await;
                let sweeper = sweeper(root.path(), [postgres.pid(), nats.pid()]);
                tell.send(Shared { postgres: postgres.url("{}"), nats: nats.url() }).unwrap();
                std::future::pending::<()>().await;
                drop((postgres, nats, root, sweeper));
            });
        });
        told.recv().unwrap()
    })
}

/// A child that removes a directory when this process has ended, however it ended, and its services are gone: what is
/// static is not dropped. The kernel closes the pipe that it reads from.
fn sweeper(directory: &Path, services: [u32; 2]) -> Child {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", SWEEP, "sweeper"]).arg(directory).args(services.map(|pid| pid.to_string()));
    // Of a group of its own, which an interrupt from the terminal does not reach.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().unwrap()
}

async fn migrate(url: &str) {
    let target = Target::parse(url, Schema::default()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut conn = target.connect("template", PATIENCE, deadline).await.unwrap();
    schema::migrate(&mut conn, &target, deadline).await.unwrap();
}

fn database_url(template: &str, database: &str) -> String {
    template.replace("%7B%7D", database).replace("{}", database)
}

async fn execute(url: &str, sql: String) {
    use sqlx::Connection;
    let mut conn = sqlx::PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
}

/// The address of a fresh migrated database on the shared Postgres.
pub async fn postgres() -> String {
    let shared = tokio::task::spawn_blocking(shared).await.unwrap();
    let name = format!("world_{}", WORLDS.fetch_add(1, Ordering::Relaxed));
    let admin = database_url(&shared.postgres, "postgres");
    execute(&admin, format!("CREATE DATABASE {name} TEMPLATE {TEMPLATE}")).await;
    database_url(&shared.postgres, &name)
}

/// Services that belong to one world alone.
struct Own {
    root: tempfile::TempDir,
    postgres: Option<Postgres>,
    nats: Option<Nats>,
    /// In front of that Postgres.
    pooler: Option<PgBouncer>,
}

/// One test's installation.
pub struct World {
    namespace: Namespace,
    postgres: String,
    nats: String,
    own: Option<Mutex<Own>>,
    pub clock: Clock,
}

impl World {
    /// A world on the shared services.
    pub async fn new() -> Self {
        let postgres = postgres().await;
        Self::on(postgres, shared().nats.clone(), None)
    }

    /// A world with a nats-server of its own, which may be killed.
    pub async fn with_own_nats() -> Self {
        let root = tempfile::tempdir().unwrap();
        let nats = Nats::start(&binaries().await, &options(root.path().to_owned())).await.unwrap();
        let url = nats.url();
        let own = Own { root, postgres: None, nats: Some(nats), pooler: None };
        Self::on(postgres().await, url, Some(own))
    }

    /// A world with a Postgres of its own, which may be paused and killed.
    pub async fn with_own_postgres() -> Self {
        let root = tempfile::tempdir().unwrap();
        let started = Postgres::start(&binaries().await, &options(root.path().to_owned())).await;
        let postgres = started.unwrap();
        postgres.create_database("world").await.unwrap();
        let url = postgres.url("world");
        let own = Own { root, postgres: Some(postgres), nats: None, pooler: None };
        let nats = tokio::task::spawn_blocking(shared).await.unwrap().nats.clone();
        Self::on(url, nats, Some(own))
    }

    /// A world with a Postgres of its own and, before it, a pooler that has so many sessions for everybody. Says where
    /// the pooler is; the world's own questions go past it.
    pub async fn with_own_pooler(pool_size: u16) -> (Self, String) {
        let mut world = Self::with_own_postgres().await;
        let program = crate::sandbox::pgbouncer::program().await;
        let Some(own) = world.own.as_mut().map(Mutex::get_mut) else { unreachable!() };
        let Some(postgres) = own.postgres.as_ref() else { unreachable!() };
        let pooling = Pooling { pool_size, ..Pooling::default() };
        let options = options(own.root.path().to_owned());
        let pooler = PgBouncer::start(&program, &options, postgres, pooling).await.unwrap();
        let url = pooler.url("world");
        own.pooler = Some(pooler);
        (world, url)
    }

    fn on(postgres: String, nats: String, own: Option<Own>) -> Self {
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace::parse(&format!("w{number}-{}", std::process::id())).unwrap();
        let own = own.map(Mutex::new);
        Self { namespace, postgres, nats, own, clock: Clock::system() }
    }

    pub fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    pub fn nats_url(&self) -> String {
        self.nats.clone()
    }

    pub fn postgres_url(&self) -> &str {
        &self.postgres
    }

    /// The configuration of a server of this world, with some settings of the test's own.
    pub fn config(&self, settings: &[(&str, &str)]) -> Config {
        let base = [
            ("DATABASE_URL", self.postgres.as_str()),
            ("NATS_URL", &self.nats),
            ("FOREBAY_NAMESPACE", self.namespace.as_str()),
            ("FOREBAY_LISTEN", "127.0.0.1:0"),
            ("FOREBAY_ADMIN_TOKEN", ADMIN_TOKEN),
            // Streams reserve their size on the shared server.
            ("FOREBAY_PARTITION_BYTES_MAX", "67108864"),
            ("FOREBAY_PARTITIONS", "2"),
            // Two dozen consumers that most tests have no use for.
            ("FOREBAY_DELIVER", "off"),
        ];
        let find = |name: &str| {
            let set = settings.iter().chain(&base).find(|(set, _)| *set == name);
            set.map(|(_, value)| (*value).to_owned())
        };
        Config::read(&find).unwrap()
    }

    /// A server of this world, in this process.
    pub async fn serve(&self, settings: &[(&str, &str)]) -> Server {
        let seed =
            u64::from(WORLDS.fetch_add(1, Ordering::Relaxed)) << 32 | u64::from(std::process::id());
        serve::start(self.config(settings), self.clock.clone(), seed).await.unwrap()
    }

    /// The log of this world, with its streams.
    pub async fn log(&self) -> Log {
        let log = Log::connect(self.config(&[]).log).await.unwrap();
        streams::apply(&log, "epoch").await.unwrap();
        log
    }

    /// Every event of a partition's log, with its record's position. What is no record is left out.
    pub async fn events(&self, server: &Server, partition: Partition) -> Vec<(u64, Event)> {
        let bounds = server.log.bounds(partition).await.unwrap();
        let mut follow = server.log.follow(partition, bounds.first.max(1) - 1);
        let mut events = Vec::new();
        while follow.position() < bounds.last {
            let (position, bytes) = follow.next().await.unwrap();
            let record = Record::decode(&bytes).into_iter();
            events.extend(record.flat_map(|r| r.events).map(|event| (position, event)));
        }
        events
    }

    /// The last position of every partition's log.
    pub async fn ends(&self, server: &Server) -> Vec<u64> {
        let mut ends = Vec::new();
        for partition in server.journal.partitions().all() {
            ends.push(server.log.bounds(partition).await.unwrap().last);
        }
        ends
    }

    /// Executes SQL in this world's database, with the rights of its owner.
    pub async fn execute(&self, sql: &str) {
        execute(&self.postgres, sql.to_owned()).await;
    }

    /// The one number that a query of this world's database gives; `None` for no row.
    pub async fn number(&self, sql: &str) -> Option<i64> {
        self.value(sql).await
    }

    /// The one value that a query of this world's database gives; `None` for no row.
    pub async fn value<T>(&self, sql: &str) -> Option<T>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        use sqlx::{Connection, Row};
        let mut conn = sqlx::PgConnection::connect(&self.postgres).await.unwrap();
        let rows = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()));
        let row = rows.fetch_optional(&mut conn).await.unwrap();
        row.map(|row| row.get(0))
    }

    /// All rows of the projection as one text.
    pub async fn rows(&self) -> String {
        let of = |table: &str, order: &str| {
            format!(
                "COALESCE((SELECT string_agg(t::text, E'\n' ORDER BY {order}) FROM {table} t), '')"
            )
        };
        let messages = of("messages", "conversation_id, seq");
        let conversations = of("conversations", "id");
        let sql = format!("SELECT {messages} || E'\n' || {conversations}");
        self.value(&sql).await.unwrap()
    }

    /// Waits until Postgres has everything that the log has now.
    pub async fn projected(&self, server: &Server) {
        let ends = self.ends(server).await;
        for (partition, end) in ends.into_iter().enumerate() {
            let sql = format!("SELECT position FROM checkpoints WHERE partition = {partition}");
            let end = i64::try_from(end).unwrap();
            eventually("Postgres has the log", async || self.number(&sql).await >= Some(end)).await;
        }
    }

    /// Compares Postgres with the log.
    pub fn verifier(&self, server: &Server) -> Verifier {
        Verifier {
            log: server.log.clone(),
            partitions: server.shape.partitions,
            epoch: server.shape.epoch.clone(),
            database: server.pools.1.clone(),
            clock: self.clock.clone(),
        }
    }

    /// Waits for the projection, and checks that nothing differs and nothing is left out.
    pub async fn assert_clean(&self, server: &Server) -> Findings {
        self.projected(server).await;
        let findings = self.verifier(server).run(&|_| {}).await.unwrap();
        assert!(findings.is_clean(), "{findings:?}");
        findings
    }

    pub async fn kill_nats(&self) {
        self.own().lock().await.nats.as_mut().unwrap().kill().await.unwrap();
    }

    pub async fn restart_nats(&self) {
        self.own().lock().await.nats.as_mut().unwrap().restart().await.unwrap();
    }

    pub async fn pause_nats(&self) {
        self.own().lock().await.nats.as_ref().unwrap().pause().await;
    }

    pub async fn resume_nats(&self) {
        self.own().lock().await.nats.as_ref().unwrap().resume();
    }

    pub async fn pause_postgres(&self) {
        self.own().lock().await.postgres.as_ref().unwrap().pause().await;
    }

    pub async fn resume_postgres(&self) {
        self.own().lock().await.postgres.as_ref().unwrap().resume();
    }

    pub async fn kill_postgres(&self) {
        self.own().lock().await.postgres.as_mut().unwrap().kill().await.unwrap();
    }

    pub async fn restart_postgres(&self) {
        self.own().lock().await.postgres.as_mut().unwrap().restart().await.unwrap();
    }

    fn own(&self) -> &Mutex<Own> {
        self.own.as_ref().expect("this world shares its services")
    }
}

/// Looks again and again until it holds. What does not hold within the patience fails the test.
pub async fn eventually(what: &str, holds: impl AsyncFnMut() -> bool) {
    within(PATIENCE, what, holds).await;
}

/// The same with a patience of its own, for what takes its time.
pub async fn within(patience: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + patience;
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}: not within {patience:?}");
        tick.tick().await;
    }
}
