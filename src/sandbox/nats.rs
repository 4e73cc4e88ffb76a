//! A private nats-server: loopback only, JetStream with every write synced, its store below the
//! root. Promises the same port over restarts, so that clients find it again, and the shipped
//! configuration but for place and addresses. Does not create streams.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::claim::Claim;
use super::leash::{Errand, Leash, Polite};
use super::place::{fingerprint, log_file, prepare};
use super::ward::Ward;
use super::{Binaries, Error, Exit, Options};

const SERVICE: &str = "nats-server";
/// The configuration that production uses too.
const SHIPPED: &str = include_str!("../../streams/nats-server.conf");
/// JetStream reads its store before it listens; a damaged index makes that a full scan.
const START_DEADLINE: Duration = Duration::from_mins(2);
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// How long a restart waits for the port that its clients know.
const PORT_DEADLINE: Duration = Duration::from_secs(10);
/// How long a first start does: nobody knows the port yet.
const OLD_PORT_DEADLINE: Duration = Duration::from_secs(1);
/// Ports below the range from which Linux takes the ports of outgoing connections (32768 and up
/// by default). In that range a client that reconnects to a dead server in a loop meets itself
/// sooner or later, and the connection to itself holds the port.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Ports of the routes of clusters, below those for the same reason.
const ROUTES: std::ops::Range<u16> = 15_000..20_000;
/// Pairs that a first start tries before it gives up.
const PORT_TRIES: u16 = 50;

/// A nats-server of our own. Dropping it kills it; [`Self::stop`] ends it in order.
#[derive(Debug)]
pub struct Nats {
    root: PathBuf,
    program: PathBuf,
    /// What the server calls itself, by which we know that it is ours.
    name: String,
    ports: Ports,
    /// What makes it one of several.
    membership: Option<Membership>,
    ward: Ward,
}

/// What a server of a cluster is told of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Membership {
    /// Where it listens for the others.
    route: u16,
    /// Where all of them do.
    routes: Vec<u16>,
}

/// The two ports, kept in `nats-ports.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Ports {
    client: u16,
    monitor: u16,
}

impl Nats {
    /// Starts the nats-server of this root, on the ports it had before if they are free.
    ///
    /// # Errors
    /// [`Error::InUse`] when another process has this root, [`Error::PortTaken`] when no free
    /// port is found, [`Error::Died`] or [`Error::Slow`] when the server does not come up,
    /// [`Error::Io`] otherwise.
    pub async fn start(binaries: &Binaries, options: &Options) -> Result<Self, Error> {
        Self::start_as(binaries, options, None).await
    }

    /// Starts so many servers as one cluster, each with a root of its own below this one. Whether they have agreed on
    /// a leader says the monitoring page `/healthz` of each.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_cluster(
        binaries: &Binaries,
        options: &Options,
        servers: usize,
    ) -> Result<Vec<Self>, Error> {
        let routes = free_routes(&fingerprint(&options.root), servers).await?;
        let mut all = Vec::new();
        for (number, route) in routes.iter().copied().enumerate() {
            let mut own = options.clone();
            own.root = options.root.join(format!("nats-{number}"));
            let membership = Membership { route, routes: routes.clone() };
            all.push(Self::start_as(binaries, &own, Some(membership)).await?);
        }
        Ok(all)
    }

    async fn start_as(
        binaries: &Binaries,
        options: &Options,
        membership: Option<Membership>,
    ) -> Result<Self, Error> {
        let root = prepare(&options.root)?;
        let ward = Ward::new(Claim::take(&root, "nats").await?, log_file(&root, SERVICE));
        let kept = Ports::kept(&root);
        let mark = fingerprint(&root);
        let mut nats = Self {
            name: format!("forebay-{mark}"),
            ports: kept.unwrap_or_else(|| Ports::candidate(&mark, 0)),
            root,
            program: binaries.nats_server.clone(),
            membership,
            ward,
        };
        let mut patience = OLD_PORT_DEADLINE;
        for attempt in 1..=PORT_TRIES {
            match nats.launch(patience).await {
                Err(Error::PortTaken { port }) if attempt < PORT_TRIES => {
                    tracing::info!("port {port} is taken, trying another");
                    nats.ports = Ports::candidate(&mark, attempt);
                    patience = Duration::ZERO;
                }
                other => return other.map(|()| nats),
            }
        }
        Err(Error::PortTaken { port: nats.ports.client })
    }

    /// The address for clients.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.ports.client)
    }

    /// What the server calls itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of the monitoring pages.
    pub fn monitor_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.monitor)
    }

    /// The process number of the server, the last one when it does not run.
    pub fn pid(&self) -> u32 {
        self.ward.pid()
    }

    /// Stops the server where it is: connections stay open and silent. It stands on return.
    pub async fn pause(&self) {
        self.ward.pause().await;
    }

    /// Lets a paused server run on.
    pub fn resume(&self) {
        self.ward.resume();
    }

    /// Ends the server with SIGKILL, paused or not.
    ///
    /// # Errors
    /// [`Error::Slow`] when the kernel does not end it in time.
    pub async fn kill(&mut self) -> Result<(), Error> {
        self.ward.kill().await
    }

    /// Starts the server again on the same port and store, stopping it first when it runs.
    ///
    /// # Errors
    /// [`Error::PortTaken`] when another process has taken the port meanwhile and keeps it, else
    /// as [`Self::start`].
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.end().await?;
        self.launch(PORT_DEADLINE).await
    }

    /// Waits until the server ends by itself. At once when it does not run.
    ///
    /// Cancel safe: the next call waits on.
    ///
    /// # Errors
    /// [`Error::Io`] when the process cannot be waited for.
    pub async fn watch(&mut self) -> Result<Exit, Error> {
        self.ward.watch().await
    }

    /// Ends the server in order. Killed when that takes long.
    ///
    /// # Errors
    /// [`Error::Slow`] when even the kill takes too long.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.end().await
    }

    async fn end(&mut self) -> Result<(), Error> {
        self.ward.end(Signal::TERM, STOP_DEADLINE).await
    }

    async fn launch(&mut self, patience: Duration) -> Result<(), Error> {
        self.ports.until_free(patience).await?;
        let store = self.root.join("nats");
        fs::create_dir_all(&store).map_err(Error::io("create", &store))?;
        let configuration = self.root.join("nats-server.conf");
        let mut text = render(SHIPPED, &self.name, self.ports, &store);
        if let Some(membership) = &self.membership {
            text += &membership.render();
        }
        fs::write(&configuration, text).map_err(Error::io("write", &configuration))?;
        let errand = Errand {
            service: SERVICE,
            program: self.program.clone(),
            arguments: vec!["--config".into(), configuration.into()],
            log: log_file(&self.root, SERVICE),
            account: None,
            polite: Polite::Term,
        };
        let mut leash = Leash::start(&errand)?;
        self.ward.record(&leash)?;
        let ready = async {
            while !self.answers().await {
                leash.expect_running()?;
                sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        };
        let ready = timeout(START_DEADLINE, ready).await.unwrap_or_else(|_elapsed| {
            let log = errand.log.clone();
            Err(Error::Slow { service: SERVICE, what: "get ready", within: START_DEADLINE, log })
        });
        if let Err(error) = ready {
            // Somebody may have been faster between the look at the port and the server's start.
            self.ports.until_free(Duration::ZERO).await?;
            return Err(error);
        }
        self.ports.keep(&self.root)?;
        self.ward.hold(leash, SERVICE);
        Ok(())
    }

    /// Whether our server greets on the port. It opens it after JetStream is ready.
    async fn answers(&self) -> bool {
        let greeting = async {
            let stream = TcpStream::connect(("127.0.0.1", self.ports.client)).await.ok()?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).await.ok()?;
            Some(line)
        };
        match timeout(Duration::from_secs(1), greeting).await {
            Ok(Some(line)) => greets_as(&line, &self.name),
            Ok(None) | Err(_) => false,
        }
    }
}

impl Membership {
    /// The part of the configuration that a server alone does not have.
    fn render(&self) -> String {
        let all = self.routes.iter().map(|port| format!("    \"nats://127.0.0.1:{port}\"\n"));
        let (route, routes) = (self.route, all.collect::<String>());
        format!(
            "\ncluster {{\n  name: \"forebay\"\n  listen: \"127.0.0.1:{route}\"\n  routes: [\n{routes}  ]\n}}\n"
        )
    }
}

/// Ports on which nobody listens, for the routes of a cluster.
async fn free_routes(mark: &str, servers: usize) -> Result<Vec<u16>, Error> {
    let seed = u64::from_str_radix(mark, 16).unwrap_or_default();
    let begin = u16::try_from(seed % u64::from(ROUTES.end - ROUTES.start)).unwrap_or_default();
    let mut free = Vec::new();
    for port in (ROUTES.start + begin..ROUTES.end).chain(ROUTES.start..ROUTES.start + begin) {
        if free.len() == servers {
            break;
        }
        if TcpListener::bind(("127.0.0.1", port)).await.is_ok() {
            free.push(port);
        }
    }
    if free.len() == servers { Ok(free) } else { Err(Error::PortTaken { port: ROUTES.start }) }
}

impl Ports {
    fn kept(root: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(root.join("nats-ports.json")).ok()?).ok()
    }

    fn keep(self, root: &Path) -> Result<(), Error> {
        let path = root.join("nats-ports.json");
        let text = serde_json::json!(self).to_string();
        fs::write(&path, text + "\n").map_err(Error::io("write", &path))
    }

    /// The n-th pair to try for a root of this fingerprint: every root begins elsewhere and walks
    /// on in odd steps.
    fn candidate(mark: &str, attempt: u16) -> Self {
        let seed = u64::from_str_radix(mark, 16).unwrap_or_default();
        let pairs = u64::from((PORTS.end - PORTS.start) / 2);
        let pair = (seed + u64::from(attempt) * 1_013) % pairs;
        let offset = u16::try_from(pair * 2).unwrap_or_default();
        Self { client: PORTS.start + offset, monitor: PORTS.start + offset + 1 }
    }

    /// Waits until both ports can be had. The sockets that show it are closed again.
    async fn until_free(self, within: Duration) -> Result<(), Error> {
        for port in [self.client, self.monitor] {
            let free = async {
                while TcpListener::bind(("127.0.0.1", port)).await.is_err() {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            timeout(within, free).await.map_err(|_elapsed| Error::PortTaken { port })?;
        }
        Ok(())
    }
}

/// The shipped configuration with another name, place and addresses. Every other line is as it is
/// in production.
fn render(shipped: &str, name: &str, ports: Ports, store: &Path) -> String {
    let Ports { client, monitor } = ports;
    let changes = [
        ("server_name", name.to_owned()),
        ("listen", format!("127.0.0.1:{client}")),
        ("http", format!("127.0.0.1:{monitor}")),
        ("store_dir", store.display().to_string()),
    ];
    shipped.lines().fold(String::new(), |text, line| {
        let key = line.trim_start().split(':').next().unwrap_or_default();
        match changes.iter().find(|(changed, _)| *changed == key) {
            Some((_, value)) => {
                let indent = &line[..line.len() - line.trim_start().len()];
                format!("{text}{indent}{key}: {}\n", quote(value))
            }
            None => format!("{text}{line}\n"),
        }
    })
}

/// A string of the configuration language; inside double quotes a backslash escapes.
fn quote(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Whether the first line of a connection is the greeting of this server, with JetStream.
fn greets_as(line: &str, name: &str) -> bool {
    #[derive(Deserialize)]
    struct Greeting {
        server_name: String,
        #[serde(default)]
        jetstream: bool,
    }
    line.strip_prefix("INFO ")
        .and_then(|json| serde_json::from_str(json).ok())
        .is_some_and(|greeting: Greeting| greeting.jetstream && greeting.server_name == name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Membership, PORT_TRIES, PORTS, Ports, SHIPPED, greets_as, render};

    #[test]
    fn only_place_and_addresses_differ_from_the_shipped_configuration() {
        let ports = Ports { client: 20_002, monitor: 20_003 };
        let rendered = render(SHIPPED, "forebay-1", ports, Path::new("/a \"b\"/nats"));
        let changed: Vec<&str> = rendered
            .lines()
            .zip(SHIPPED.lines())
            .filter_map(|(rendered, shipped)| (rendered != shipped).then_some(rendered))
            .collect();
        let expected = [
            "server_name: \"forebay-1\"",
            "listen: \"127.0.0.1:20002\"",
            "http: \"127.0.0.1:20003\"",
            "  store_dir: \"/a \\\"b\\\"/nats\"",
        ];
        assert_eq!(changed, expected);
        assert_eq!(rendered.lines().count(), SHIPPED.lines().count());
    }

    #[test]
    fn a_server_of_a_cluster_knows_where_the_others_are() {
        let text = Membership { route: 15_001, routes: vec![15_001, 15_002] }.render();
        assert!(text.contains("listen: \"127.0.0.1:15001\""), "{text}");
        assert!(text.contains("\"nats://127.0.0.1:15002\""), "{text}");
    }

    #[test]
    fn the_shipped_configuration_syncs_every_write() {
        assert!(SHIPPED.lines().any(|line| line.trim() == "sync_interval: always"));
    }

    #[test]
    fn candidates_stay_in_the_range_and_do_not_repeat() {
        let mut seen = std::collections::BTreeSet::new();
        for attempt in 0..PORT_TRIES {
            let Ports { client, monitor } = Ports::candidate("ffffffffffff", attempt);
            assert!(PORTS.contains(&client) && PORTS.contains(&monitor));
            assert!(seen.insert(client) && seen.insert(monitor));
        }
    }

    #[test]
    fn a_greeting_is_ours_by_name_and_with_jetstream() {
        let line = "INFO {\"server_name\":\"forebay-1\",\"jetstream\":true,\"port\":1} \r\n";
        assert!(greets_as(line, "forebay-1"));
        assert!(!greets_as(line, "forebay-2"));
        assert!(!greets_as(&line.replace("true", "false"), "forebay-1"));
        assert!(!greets_as("-ERR", "forebay-1"));
        assert!(!greets_as("", "forebay-1"));
    }
}
