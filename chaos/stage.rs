//! The stage of a scenario: Postgres, NATS, nodes and proxies as real processes, a tenant, its channel and conversations.
//! Promises that nothing of it outlives the scenario but the nodes' logs.
//! Does not break it.

pub(crate) mod caller;
pub(crate) mod cluster;
pub(crate) mod node;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use forebay::cli::sandbox::Scratch;
use forebay::clock::Clock;
use forebay::config::Config;
use forebay::event::{ChannelId, ConversationId};
use forebay::load;
use forebay::receiver::{Options as Receiving, Receiver, read_secret};
use forebay::sandbox::{Durability, Install, Nats, Options as Sandbox, Postgres, provide};
use serde_json::json;

use crate::faults::proxy::{Far, Proxy};
use crate::scenario::{Condition, Link, Links, Plan};
use caller::Caller;
use node::Node;

const DATABASE: &str = "forebay";

/// The operator's token of nodes that listen on loopback and live for one scenario.
pub(crate) const ADMIN_TOKEN: &str = "operator-of-the-chaos-run";

/// The receiver's endpoint.
pub(crate) const HOOK: &str = "chaos";

/// Conversations that are sent to; each has a listener.
pub(crate) const CONVERSATIONS: usize = 20;

/// Size of a partition in a scenario: more than any sends, little enough that a disk holds it.
const PARTITION_BYTES_MAX: &str = "1073741824";

/// Ports of nodes: below those that Linux takes for outgoing connections (32768 and up by default). A client's connection
/// to somebody else must not hold the port of a node that was killed.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Where programs are.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Programs and data.
    pub(crate) data_dir: PathBuf,
    /// `forebay`.
    pub(crate) program: PathBuf,
    /// The library that moves a node's clock, where it is wanted.
    pub(crate) clocks: Option<PathBuf>,
    /// What nodes get beside their settings.
    pub(crate) extra: Vec<(String, String)>,
}

/// Where distributions put libfaketime.
const CLOCKS: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
];

impl Places {
    /// The library that moves a node's clock, if there is one.
    pub(crate) fn clocks() -> Option<PathBuf> {
        CLOCKS.iter().map(PathBuf::from).find(|path| path.is_file())
    }

    /// What a node needs so that its clock can be moved.
    fn clock_settings(&self, file: &Path) -> anyhow::Result<Vec<(String, String)>> {
        let Some(library) = &self.clocks else { return Ok(Vec::new()) };
        std::fs::write(file, "+0")?;
        let settings = [
            ("LD_PRELOAD", library.display().to_string()),
            (node::CLOCK_FILE, file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            // What measures goes on: it is the time of day that jumps.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        Ok(settings.map(|(name, value)| (name.to_owned(), value)).to_vec())
    }
}

/// Which processes are to run just now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roll(Arc<Mutex<BTreeMap<String, u32>>>);

impl Roll {
    /// It is to run.
    pub(crate) fn enter(&self, name: &str, pid: Option<u32>) {
        let mut roll = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match pid {
            Some(pid) => drop(roll.insert(name.to_owned(), pid)),
            None => drop(roll.remove(name)),
        }
    }

    /// Looks at those that are to run, while none is started or ended.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&BTreeMap<String, u32>) -> T) -> T {
        look(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Everything that runs.
pub(crate) struct Stage {
    pub(crate) postgres: Postgres,
    pub(crate) nats: Vec<Nats>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) links: BTreeMap<Link, Vec<Proxy>>,
    pub(crate) roll: Roll,
    pub(crate) clock: Clock,
    /// Where clients go: one way in for each node.
    pub(crate) doors: Vec<SocketAddr>,
    pub(crate) receiver: Receiver,
    pub(crate) tenant: Tenant,
    settings: BTreeMap<String, String>,
    _scratch: Scratch,
}

/// Who sends.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) api_key: String,
    pub(crate) channel: ChannelId,
    pub(crate) conversations: Vec<ConversationId>,
}

impl Stage {
    /// Starts everything that a plan needs.
    pub(crate) async fn set(
        name: &str,
        plan: &Plan,
        places: &Places,
        clock: &Clock,
    ) -> anyhow::Result<Self> {
        let mut options = Sandbox {
            root: places.data_dir.clone(),
            install: Install::Allow,
            durability: Durability::Full,
        };
        let binaries = provide(&options, &mut |line: &str| crate::say(line)).await?;
        let scratch = Scratch::within(&options.root)?;
        options.root.clone_from(&scratch.path);
        let postgres = Postgres::start(&binaries, &options).await?;
        postgres.create_database(DATABASE).await?;
        let nats = match plan.log_servers {
            1 => vec![Nats::start(&binaries, &options).await?],
            servers => {
                let servers = Nats::start_cluster(&binaries, &options, servers).await?;
                cluster::wait_until_led(&servers, clock).await?;
                servers
            }
        };
        let mut links = BTreeMap::new();
        let urls = urls_of(plan, (&postgres, &nats), &mut links, clock).await?;
        let settings = settings(plan, places, &urls);
        let logs = logs(&options.root, name)?;
        let roll = Roll::default();
        roll.enter("postgres", Some(postgres.pid()));
        for (number, server) in nats.iter().enumerate() {
            roll.enter(&format!("nats {number}"), Some(server.pid()));
        }
        let nodes = nodes(plan, places, (&settings, &logs), clock).await?;
        for (number, node) in nodes.iter().enumerate() {
            roll.enter(&format!("node {number}"), node.pid());
        }
        let doors = doors(&nodes, plan, &mut links, clock).await?;
        let receiver =
            Receiver::start_with(([127, 0, 0, 1], 0).into(), clock.clone(), Receiving::default())?;
        let signed = if places.clocks.is_some() { Signed::Unwatched } else { Signed::Watched };
        let tenant = tenant(&nodes[0], &receiver, signed).await?;
        Ok(Self {
            postgres,
            nats,
            nodes,
            links,
            roll,
            clock: clock.clone(),
            doors,
            receiver,
            tenant,
            settings,
            _scratch: scratch,
        })
    }

    /// The configuration with which Postgres and the log can be looked at past all proxies.
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        let direct = [
            ("DATABASE_URL", self.postgres.url(DATABASE)),
            ("NATS_URL", urls(&self.nats)),
            ("FOREBAY_LISTEN", "127.0.0.1:0".to_owned()),
        ];
        let find = |name: &str| {
            let own = direct.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone());
            own.or_else(|| self.settings.get(name).cloned())
        };
        Ok(Config::read(&find)?)
    }

    /// Where the nodes take requests.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// Sets how a link behaves.
    pub(crate) fn set_link(&self, link: Link, condition: Condition) {
        for proxy in self.links.get(&link).into_iter().flatten() {
            proxy.set(condition);
        }
    }

    /// Ends everything in order; tells what did not end as it should.
    pub(crate) async fn strike(mut self) -> anyhow::Result<Vec<String>> {
        let mut odd = Vec::new();
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if let Err(error) = node.stop().await {
                odd.push(format!("node {number}: {error}"));
            }
        }
        self.postgres.stop().await?;
        for server in self.nats {
            server.stop().await?;
        }
        Ok(odd)
    }
}

/// Where nodes find Postgres and NATS.
struct Urls {
    database: String,
    nats: String,
}

async fn urls_of(
    plan: &Plan,
    (postgres, nats): (&Postgres, &[Nats]),
    links: &mut BTreeMap<Link, Vec<Proxy>>,
    clock: &Clock,
) -> anyhow::Result<Urls> {
    if plan.links == Links::Direct {
        return Ok(Urls { database: postgres.url(DATABASE), nats: urls(nats) });
    }
    let database = Proxy::start(Far::Unix(postgres.socket()), clock.clone()).await?;
    let log = Proxy::start(Far::Tcp(vec![address(&nats[0].url())?]), clock.clone()).await?;
    let found = Urls {
        database: format!("postgres://forebay@{}/{DATABASE}", database.address),
        nats: format!("nats://{}", log.address),
    };
    links.insert(Link::Database, vec![database]);
    links.insert(Link::Log, vec![log]);
    Ok(found)
}

/// What every node is told.
fn settings(plan: &Plan, places: &Places, urls: &Urls) -> BTreeMap<String, String> {
    let replicas = if plan.log_servers == 1 { "1" } else { "3" };
    let base = [
        ("DATABASE_URL", &*urls.database),
        ("NATS_URL", &urls.nats),
        ("FOREBAY_ADMIN_TOKEN", ADMIN_TOKEN),
        ("FOREBAY_EGRESS_ALLOW", "127.0.0.0/8"),
        ("FOREBAY_PARTITION_BYTES_MAX", PARTITION_BYTES_MAX),
        ("FOREBAY_LOG_REPLICAS", replicas),
        ("RUST_LOG", "info"),
    ];
    let all = base.into_iter().chain(plan.settings.iter().copied());
    let own = all.map(|(name, value)| (name.to_owned(), value.to_owned()));
    own.chain(places.extra.iter().cloned()).collect()
}

/// A fresh directory for the nodes' logs, which outlives the scenario.
fn logs(root: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let logs = root.with_file_name("chaos").join(name);
    // What an earlier run left; there may be nothing.
    drop(std::fs::remove_dir_all(&logs));
    std::fs::create_dir_all(&logs).context("making a directory for the nodes' logs")?;
    Ok(logs)
}

/// Starts the nodes, one after the other: the first one makes the streams.
async fn nodes(
    plan: &Plan,
    places: &Places,
    (settings, logs): (&BTreeMap<String, String>, &Path),
    clock: &Clock,
) -> anyhow::Result<Vec<Node>> {
    let mut nodes = Vec::new();
    for number in 0..plan.nodes {
        let log = logs.join(format!("node-{number}.log"));
        let mut own: Vec<(String, String)> = settings.clone().into_iter().collect();
        own.extend(places.clock_settings(&logs.join(format!("clock-{number}")))?);
        let mut node = Node::new(&places.program, free_address(clock)?, own, log);
        node.start()?;
        node.ready(clock).await?;
        nodes.push(node);
    }
    Ok(nodes)
}

/// One way in for each node. With several nodes a client that cannot reach its own goes to the next one.
async fn doors(
    nodes: &[Node],
    plan: &Plan,
    links: &mut BTreeMap<Link, Vec<Proxy>>,
    clock: &Clock,
) -> anyhow::Result<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.address).collect();
    if plan.links == Links::Direct && nodes.len() == 1 {
        return Ok(addresses);
    }
    let mut proxies = Vec::new();
    for number in 0..addresses.len() {
        let mut order = addresses.clone();
        order.rotate_left(number);
        proxies.push(Proxy::start(Far::Tcp(order), clock.clone()).await?);
    }
    let doors = proxies.iter().map(|proxy| proxy.address).collect();
    links.insert(Link::Clients, proxies);
    Ok(doors)
}

/// Whether the receiver looks at signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signed {
    /// It refuses what is not signed with the channel's secret.
    Watched,
    /// It does not: a node whose clock is off signs with a time that no receiver takes.
    Unwatched,
}

async fn tenant(node: &Node, receiver: &Receiver, signed: Signed) -> anyhow::Result<Tenant> {
    let mut operator = Caller::new(node.address, ADMIN_TOKEN);
    let made = operator.made("/v1/tenants", &json!({"name": "chaos"})).await?;
    let api_key = made["apiKey"].as_str().context("a tenant has a key")?.to_owned();
    let mut caller = Caller::new(node.address, &api_key);
    let channel = json!({"name": "chaos", "url": receiver.url(HOOK), "types": ["message"]});
    let made = caller.made("/v1/channels", &channel).await?;
    if signed == Signed::Watched {
        let secret = made["secret"].as_str().context("a channel has a secret")?;
        receiver.set_secret(HOOK, read_secret(secret)?);
    }
    let channel = ChannelId::parse(made["id"].as_str().unwrap_or_default())?;
    let conversations = load::open_conversations(&node.url(), &api_key, CONVERSATIONS).await?;
    Ok(Tenant { api_key, channel, conversations })
}

fn urls(nats: &[Nats]) -> String {
    nats.iter().map(Nats::url).collect::<Vec<_>>().join(",")
}

fn address(url: &str) -> anyhow::Result<SocketAddr> {
    let (_, address) = url.split_once("://").context("a URL has a scheme")?;
    address.parse().with_context(|| format!("{url} names no address"))
}

/// An address that is free just now, found from a port that differs from run to run.
fn free_address(clock: &Clock) -> anyhow::Result<SocketAddr> {
    let count = u64::from(PORTS.end - PORTS.start);
    let first = clock.timestamp().micros().unsigned_abs() % count;
    let port = |nth: u64| PORTS.start + u16::try_from((first + nth) % count).unwrap_or(0);
    let free = (0..count).map(port).find(|port| {
        // Where somebody listens, or a connection still lingers, it is not free.
        std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok()
    });
    Ok(([127, 0, 0, 1], free.context("there is no free port")?).into())
}
