//! `forebay dev`: everything on this machine, with a demo tenant and a curl that works when pasted.
//! Promises that nothing of it outlives this process, and that kept data is found again by the next start.
//! Does not suit production: both services are private children with one disk.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::sandbox::Scratch;
use super::serve::{self, Server};
use super::{print, say};
use crate::admission::{Origin, Source};
use crate::clock::Clock;
use crate::config::{self, Config};
use crate::directory::{NewTenant, When};
use crate::event::{Body, ConversationId, Fingerprint, MessageId, TenantId};
use crate::journal::{Draft, Intent, Verdict};
use crate::lifecycle::{Backoff, chain};
use crate::sandbox::{self, Durability, Exit, Install, Nats, Options, Postgres, provide};

/// Where it listens unless told otherwise or taken.
const LISTEN: &str = "127.0.0.1:8080";

/// The database of the private Postgres.
const DATABASE: &str = "forebay";

/// Longest wait for the seeds to be acknowledged.
const SEED_MAX: Duration = Duration::from_secs(15);

/// Pauses before a dead service is started again.
const REVIVAL: Backoff =
    Backoff { first: Duration::from_millis(200), max: Duration::from_secs(10) };

/// Where webhooks may go beside public addresses: receivers of a development machine.
const LOOPBACK: &str = "127.0.0.0/8,::1";

/// Arguments of `forebay dev`.
#[derive(Args, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own on the command line"
)]
pub(crate) struct Arguments {
    /// Keep nothing: the data is removed at the end
    #[arg(long)]
    ephemeral: bool,
    /// Where programs, data and logs are kept
    #[arg(long, default_value = ".forebay")]
    data_dir: PathBuf,
    /// Where to take requests; 127.0.0.1:8080 or, if that is taken, a free port
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Print the state as one line of JSON instead of the first screen
    #[arg(long)]
    json: bool,
    /// Print the commands that would install what is missing, and fail
    #[arg(long)]
    no_install: bool,
}

/// What a running `dev` is; written to `state.json` for scripts and other commands.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    pub(crate) url: String,
    pub(crate) admin_token: String,
    pub(crate) tenant_id: TenantId,
    pub(crate) api_key: String,
    pub(crate) conversation_id: ConversationId,
    pub(crate) pid: u32,
    pub(crate) postgres: Service,
    pub(crate) nats: Service,
}

/// A private service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Service {
    pub(crate) url: String,
    pub(crate) pid: u32,
}

/// How a house is to be set up.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Where programs are kept, and data unless it is ephemeral.
    pub(crate) root: PathBuf,
    /// Whether the data is removed at the end.
    pub(crate) ephemeral: bool,
    /// Whether what is missing is installed.
    pub(crate) install: Install,
    /// Where requests are taken.
    pub(crate) listen: Option<SocketAddr>,
}

/// Both services and a server on top of them.
#[derive(Debug)]
pub(crate) struct House {
    pub(crate) postgres: Postgres,
    pub(crate) nats: Nats,
    pub(crate) server: Server,
    pub(crate) state: State,
    pub(crate) root: PathBuf,
    scratch: Option<Scratch>,
}

/// Runs until a signal.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    super::quiet_log_lines("warn")?;
    let install = if arguments.no_install { Install::PrintOnly } else { Install::Allow };
    let plan = Plan {
        root: arguments.data_dir,
        ephemeral: arguments.ephemeral,
        install,
        listen: arguments.listen,
    };
    let mut house = House::set_up(plan, &Clock::system()).await?;
    if arguments.json {
        print(&serde_json::to_string(&house.state)?);
    } else {
        // As it was called, so that its lines can be pasted.
        let program = std::env::args().next().unwrap_or_else(|| "forebay".to_owned());
        print(&first_screen(&program, &house.state, &house.root, arguments.ephemeral));
    }
    let outcome = house.keep().await;
    say("stopping");
    house.take_down().await?;
    outcome
}

impl House {
    /// Starts everything and seeds the demo tenant.
    pub(crate) async fn set_up(plan: Plan, clock: &Clock) -> anyhow::Result<Self> {
        let mut options =
            Options { root: plan.root, install: plan.install, durability: Durability::Full };
        let binaries = provide(&options, &mut |line: &str| say(line)).await?;
        let scratch = if plan.ephemeral { Some(Scratch::new()?) } else { None };
        if let Some(scratch) = &scratch {
            options.root.clone_from(&scratch.path);
        }
        let before = read_state(&options.root);
        let postgres = Postgres::start(&binaries, &options).await;
        let postgres = postgres.map_err(|error| running_already(error, before.as_ref()))?;
        let nats = Nats::start(&binaries, &options).await?;
        postgres.create_database(DATABASE).await?;
        let admin_token = match &before {
            Some(state) => state.admin_token.clone(),
            None => format!("fba_{:016x}{:016x}", super::seed(), super::seed()),
        };
        let listen = listen_on(plan.listen)?;
        let database_url = postgres.url(DATABASE);
        let nats_url = nats.url();
        let own = [
            ("DATABASE_URL", database_url.clone()),
            ("NATS_URL", nats_url.clone()),
            ("FOREBAY_ADMIN_TOKEN", admin_token.clone()),
            ("FOREBAY_LISTEN", listen.to_string()),
        ];
        let usual = [("FOREBAY_EGRESS_ALLOW", LOOPBACK.to_owned())];
        let look_up = |name: &str| {
            let find = |all: &[(&str, String)]| {
                all.iter().find(|(set, _)| *set == name).map(|(_, value)| value.clone())
            };
            // What is not set is as it suits a development machine.
            find(&own).or_else(|| config::environment(name)).or_else(|| find(&usual))
        };
        let config = Config::read(&look_up).map_err(super::Failed::from)?;
        let server = serve::start(config, clock.clone(), super::seed()).await?;
        let (tenant_id, api_key) = demo_tenant(&server, before.as_ref(), clock).await?;
        let conversation_id = demo_conversation(&server, tenant_id, clock).await?;
        let state = State {
            url: format!("http://{}", server.address),
            admin_token,
            tenant_id,
            api_key,
            conversation_id,
            pid: std::process::id(),
            postgres: Service { url: database_url, pid: postgres.pid() },
            nats: Service { url: nats_url, pid: nats.pid() },
        };
        write_state(&options.root, &state)?;
        Ok(Self { postgres, nats, server, state, root: options.root, scratch })
    }

    /// Watches the services and the server until a signal; a dead service is started again.
    async fn keep(&mut self) -> anyhow::Result<()> {
        let supervisor = self.server.supervisor.clone();
        tokio::select! {
            signal = crate::lifecycle::signal() => Ok(signal?),
            failure = supervisor.failed() => anyhow::bail!("the server stopped: {failure}"),
            failed = self.keep_services() => failed,
        }
    }

    /// Starts dead services again, on and on.
    ///
    /// Cancel safe: a service that was being started is stopped with the others.
    async fn keep_services(&mut self) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                exit = self.postgres.watch() => {
                    report_death("Postgres", &exit?);
                    self.revive_postgres().await;
                }
                exit = self.nats.watch() => {
                    report_death("nats-server", &exit?);
                    self.revive_nats().await;
                }
            }
            self.state.postgres.pid = self.postgres.pid();
            self.state.nats.pid = self.nats.pid();
            write_state(&self.root, &self.state)?;
        }
    }

    async fn revive_postgres(&mut self) {
        for attempt in 1.. {
            tokio::time::sleep(REVIVAL.pause(attempt)).await;
            match self.postgres.restart().await {
                Ok(()) => return say("Postgres is back"),
                Err(error) => say(&format!("Postgres does not start: {}", chain(&error))),
            }
        }
    }

    async fn revive_nats(&mut self) {
        for attempt in 1.. {
            tokio::time::sleep(REVIVAL.pause(attempt)).await;
            match self.nats.restart().await {
                Ok(()) => return say("nats-server is back"),
                Err(error) => say(&format!("nats-server does not start: {}", chain(&error))),
            }
        }
    }

    /// Stops the server, then the services. A second signal skips the drain.
    pub(crate) async fn take_down(self) -> anyhow::Result<()> {
        let supervisor = self.server.supervisor.clone();
        tokio::select! {
            _clean = self.server.stop() => {}
            _second = crate::lifecycle::signal() => supervisor.force().await,
        }
        self.postgres.stop().await?;
        self.nats.stop().await?;
        drop(self.scratch);
        Ok(())
    }
}

fn report_death(what: &str, exit: &Exit) {
    let how = exit.status.map_or_else(|| "stopped".to_owned(), |status| status.to_string());
    let log = exit.log.display();
    say(&format!("{what} ended ({how}) and is started again; its log is {log}"));
}

/// The address: as given, else the usual one, else any free port of loopback.
fn listen_on(given: Option<SocketAddr>) -> anyhow::Result<SocketAddr> {
    if let Some(given) = given {
        return Ok(given);
    }
    let usual: SocketAddr = LISTEN.parse()?;
    if std::net::TcpListener::bind(usual).is_ok() {
        return Ok(usual);
    }
    say(&format!("{LISTEN} is taken; using a free port (--listen chooses one)"));
    Ok(SocketAddr::new(usual.ip(), 0))
}

/// The demo tenant of an earlier run with its key if that still opens, else a new one.
async fn demo_tenant(
    server: &Server,
    before: Option<&State>,
    clock: &Clock,
) -> anyhow::Result<(TenantId, String)> {
    if let Some(before) = before {
        let access = server.directory.authenticate(&before.api_key);
        if access.is_some_and(|access| access.tenant.id == before.tenant_id) {
            return Ok((before.tenant_id, before.api_key.clone()));
        }
    }
    let when = When { now: clock.timestamp(), deadline: clock.now() + SEED_MAX };
    let new = NewTenant { name: "demo".to_owned(), ..NewTenant::default() };
    let mut rng = StdRng::seed_from_u64(super::seed());
    let created = server.directory.create_tenant(new, when, &mut rng).await;
    let (tenant, key) = created.context("creating the demo tenant")?;
    Ok((tenant.id, key.expose().to_owned()))
}

/// The demo tenant's conversation, opened unless it is.
async fn demo_conversation(
    server: &Server,
    tenant: TenantId,
    clock: &Clock,
) -> anyhow::Result<ConversationId> {
    let conversation = ConversationId::derive(tenant.uuid().into_bytes());
    let draft = Draft {
        tenant,
        conversation,
        id: MessageId::derive(conversation.uuid().into_bytes()),
        at: clock.timestamp(),
        fingerprint: Fingerprint::default(),
        trace: None,
        body: Body::Opened(Box::default()),
        intent: Intent::OpenNamed,
        key_time: None,
    };
    let place = server.ingest.admit(conversation, 0)?;
    let origin = Origin::system(Source::Operator);
    let opened = server.ingest.append(place, vec![draft], origin, clock.now() + SEED_MAX).await;
    match opened.context("opening the demo conversation")?.first() {
        Some(Verdict::Stored(_) | Verdict::Duplicate(_)) => Ok(conversation),
        other => anyhow::bail!("the demo conversation is {other:?}"),
    }
}

/// A root that is in use is most often a `dev` in another terminal.
fn running_already(error: sandbox::Error, before: Option<&State>) -> anyhow::Error {
    let Some(state) = before.filter(|_| matches!(error, sandbox::Error::InUse { .. })) else {
        return error.into();
    };
    let hint = format!("Forebay runs here already, at {}; stop it or name a --data-dir", state.url);
    anyhow::Error::from(error).context(hint)
}

fn state_file(root: &Path) -> PathBuf {
    root.join("state.json")
}

/// What an earlier run of the same data was; `None` when there was none.
pub(crate) fn read_state(root: &Path) -> Option<State> {
    let text = std::fs::read_to_string(state_file(root)).ok()?;
    serde_json::from_str(&text).ok()
}

fn write_state(root: &Path, state: &State) -> anyhow::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = state_file(root);
    let text = serde_json::to_string_pretty(state)?;
    // It holds keys: nobody else may read it.
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
    let mut file = file.with_context(|| format!("writing {}", path.display()))?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    Ok(())
}

/// What a newcomer sees first: at most 20 lines, the last of them a command that works when pasted.
fn first_screen(program: &str, state: &State, root: &Path, ephemeral: bool) -> String {
    let kept = if ephemeral { "removed at the end" } else { "kept; --ephemeral keeps nothing" };
    let State { url, api_key, conversation_id, postgres, nats, .. } = state;
    format!(
        "\
Forebay {version} is ready.

  API        {url}
  Docs       {url}/docs   Demo in a browser  {url}/demo
  Probes     {url}/readyz?verbose   Metrics  {url}/metrics
  Postgres   {postgres}
  NATS       {nats}
  Data       {root} ({kept})
  Operator   the admin token is in {state_file}
  Tenant     demo, API key {api_key}
  Watch      FOREBAY_TOKEN={api_key} {program} tail --url {url} --conversation {conversation_id}

Ctrl-C stops everything. Send the first message:

curl -sS {url}/v1/conversations/{conversation_id}/messages \\
  -H 'Authorization: Bearer {api_key}' \\
  -H 'Content-Type: application/json' -d '{{\"text\": \"hello\"}}'",
        version = env!("CARGO_PKG_VERSION"),
        postgres = postgres.url,
        nats = nats.url,
        root = root.display(),
        state_file = state_file(root).display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_screen_has_at_most_twenty_lines_and_ends_with_a_curl() {
        let service = Service { url: "x://y".to_owned(), pid: 1 };
        let state = State {
            url: "http://127.0.0.1:8080".to_owned(),
            admin_token: "fba_secret".to_owned(),
            tenant_id: TenantId::derive([1; 16]),
            api_key: "fbk_1".to_owned(),
            conversation_id: ConversationId::derive([2; 16]),
            pid: 1,
            postgres: service.clone(),
            nats: service,
        };
        let screen = first_screen("target/forebay", &state, Path::new(".forebay"), false);
        let lines: Vec<_> = screen.lines().collect();
        assert!(lines.len() <= 20, "{} lines", lines.len());
        assert!(lines[lines.len() - 3].starts_with("curl "), "{screen}");
        assert!(!screen.contains("fba_secret"));
        for word in ["8080/docs", "8080/demo", "target/forebay tail --url http://127.0.0.1:8080 "] {
            assert!(screen.contains(word), "{word} in {screen}");
        }
        let json = serde_json::to_string(&state).unwrap();
        assert!(json.contains("\"adminToken\""), "{json}");
    }
}
