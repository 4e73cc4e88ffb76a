//! The built program, as a person or a script runs it: exit codes, what is printed where, and what is left behind.

mod dev;
mod live;
mod pool;
mod receiver;
mod tail;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::world::client::Client;
use crate::world::{ADMIN_TOKEN, World};

/// Longer than any command here may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// What a command left.
#[derive(Debug)]
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

/// The program, with nothing of this process's environment but these settings.
fn forebay(arguments: &[&str], settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).env_clear().envs(settings.iter().copied());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn run(arguments: &[&str], settings: &[(&str, &str)]) -> Ended {
    let output = timeout(PATIENCE, forebay(arguments, settings).output()).await;
    let output = output.unwrap_or_else(|_| panic!("{arguments:?} does not end")).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    Ended { code, stdout: text(output.stdout), stderr: text(output.stderr) }
}

impl Ended {
    #[track_caller]
    fn assert_code(&self, code: i32) {
        assert_eq!(self.code, code, "{self:?}");
    }
}

/// The settings of a world for a process of its own.
fn settings(world: &World) -> Vec<(&'static str, String)> {
    vec![
        ("DATABASE_URL", world.postgres_url().to_owned()),
        ("NATS_URL", world.nats_url()),
        ("FOREBAY_NAMESPACE", world.namespace().as_str().to_owned()),
        ("FOREBAY_LISTEN", "127.0.0.1:0".to_owned()),
        ("FOREBAY_ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
        ("FOREBAY_PARTITION_BYTES_MAX", "67108864".to_owned()),
        ("FOREBAY_PARTITIONS", "2".to_owned()),
    ]
}

fn borrowed<'a>(settings: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    settings.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

#[tokio::test]
async fn help_mentions_where_to_begin_and_a_mistake_exits_with_2() {
    let help = run(&["--help"], &[]).await;
    help.assert_code(0);
    for word in ["forebay dev", "dev", "demo", "serve", "rebuild", "verify", "config", "bench"] {
        assert!(help.stdout.contains(word), "{word} in {}", help.stdout);
    }
    let version = run(&["--version"], &[]).await;
    assert_eq!(version.stdout.trim(), concat!("forebay ", env!("CARGO_PKG_VERSION")));
    for mistake in [&["--nonsense"][..], &["serve", "--nonsense"], &["nonsense"], &[], &["streams"]]
    {
        let ended = run(mistake, &[]).await;
        ended.assert_code(2);
        assert!(ended.stdout.is_empty() && ended.stderr.contains("Usage"), "{ended:?}");
    }
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_exits_with_64_and_names_every_problem() {
    let broken = [
        ("FOREBAY_LISTEN", "here"),
        ("POOL_SIZE", "0"),
        ("FOREBAY_ADMIN_TOKEN", "hushhush"),
        ("FOREBAY_NAMESPACE", "A.B"),
    ];
    for command in ["config", "serve", "verify", "rebuild", "migrate"] {
        let ended = run(&[command, "--background-pool-size", "many"], &broken).await;
        ended.assert_code(64);
        for name in
            broken.map(|(name, _)| name).into_iter().chain(["DATABASE_URL", "BACKGROUND_POOL_SIZE"])
        {
            assert!(ended.stderr.contains(&format!("{name}: ")), "{command}: {name} in {ended:?}");
        }
        assert!(!format!("{ended:?}").contains("hushhush"), "{ended:?}");
    }
}

#[tokio::test]
async fn a_configuration_is_shown_whole_and_without_its_secrets() {
    let given = [
        ("DATABASE_URL", "postgres://ann:hushhush@localhost/db"),
        ("FOREBAY_ADMIN_TOKEN", "hushhush-hushhush"),
        ("POOL_SIZE", "7"),
    ];
    for arguments in
        [&["config", "--listen", "127.0.0.1:9"][..], &["config", "--json", "--pool-size", "8"]]
    {
        let ended = run(arguments, &given).await;
        ended.assert_code(0);
        for row in forebay::config::TABLE {
            assert!(ended.stdout.contains(row.name), "{} in {}", row.name, ended.stdout);
        }
        assert!(!ended.stdout.contains("hushhush"), "{}", ended.stdout);
    }
    let text = run(&["config", "--listen", "127.0.0.1:9"], &given).await.stdout;
    assert!(text.contains("FOREBAY_LISTEN=127.0.0.1:9\n") && text.contains("POOL_SIZE=7\n"));
    let json = run(&["config", "--json", "--pool-size", "8"], &given).await.stdout;
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    let pool = rows.as_array().unwrap().iter().find(|row| row["name"] == "POOL_SIZE").unwrap();
    assert_eq!(pool["value"], "8", "a flag beats the environment");
}

#[tokio::test]
async fn streams_and_rows_are_checked_made_and_compared() {
    let world = World::new().await;
    let own = settings(&world);
    let own = borrowed(&own);
    let missing = run(&["streams", "check"], &own).await;
    missing.assert_code(5);
    assert_eq!(missing.stdout.lines().count(), 9, "{missing:?}");
    run(&["verify"], &own).await.assert_code(4);
    for _ in 0..2 {
        let applied = run(&["streams", "apply"], &own).await;
        applied.assert_code(0);
        assert!(applied.stderr.contains("2 partitions"), "{applied:?}");
        run(&["streams", "check"], &own).await.assert_code(0);
    }
    let other = run(&["streams", "apply", "--partitions", "3"], &own).await;
    other.assert_code(4);
    assert!(other.stderr.contains("the log has 2 partitions and 3 are configured"), "{other:?}");
    run(&["migrate"], &own).await.assert_code(0);

    let server = world.serve(&[]).await;
    let tenant = Client::tenant(&server).await;
    let conversation = tenant.open().await;
    tenant.say(conversation, "hello").await;
    world.projected(&server).await;
    let clean = run(&["verify"], &own).await;
    clean.assert_code(0);
    assert!(clean.stderr.contains("2 events compared"), "{clean:?}");
    world.execute("UPDATE messages SET text = 'other' WHERE seq = 2").await;
    let found = run(&["verify"], &own).await;
    found.assert_code(5);
    assert!(found.stdout.contains(&format!("{conversation} seq 2 differs in text")), "{found:?}");
    run(&["rebuild"], &own).await.assert_code(0);
    run(&["verify"], &own).await.assert_code(0);
    server.stop().await;
}

#[tokio::test]
async fn a_health_check_tells_ready_from_not_ready_from_nobody() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = run(&["healthcheck"], &[("FOREBAY_LISTEN", &free.to_string())]).await;
    nobody.assert_code(3);
    let world = World::new().await;
    let server = world.serve(&[]).await;
    let anyone = Client::with(&server, "");
    crate::world::eventually("it is ready", async || anyone.get("/readyz").await.status == 200)
        .await;
    let address = server.address.to_string();
    run(&["healthcheck"], &[("FOREBAY_LISTEN", &address)]).await.assert_code(0);
    run(&["healthcheck", &format!("http://{address}/readyz/reads")], &[]).await.assert_code(0);
    server.board.drain(world.clock.now());
    let draining = run(&["healthcheck"], &[("FOREBAY_LISTEN", &address)]).await;
    draining.assert_code(3);
    assert!(draining.stderr.contains("drain"), "{draining:?}");
    server.stop().await;
}

/// Reads lines until one holds the word.
async fn line_with(child: &mut Child, word: &str) -> String {
    let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
    let reading = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains(word) {
                return line;
            }
        }
        panic!("it ended before it said {word}");
    };
    timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("it does not say {word}"))
}

#[tokio::test]
async fn a_server_ends_with_its_signal_and_keeps_what_it_acknowledged() {
    let world = World::new().await;
    let own = settings(&world);
    let own = borrowed(&own);
    let mut child = forebay(&["serve"], &own).spawn().unwrap();
    let line = line_with(&mut child, "listening on http://").await;
    let address = line.split("http://").nth(1).unwrap();
    let digits = |c: char| c.is_ascii_digit() || ".:".contains(c);
    let address: SocketAddr = address.trim_end_matches(|c| !digits(c)).parse().unwrap();
    let made = Client::to(address, ADMIN_TOKEN)
        .post("/v1/tenants", serde_json::json!({"name": "acme"}))
        .await;
    let tenant = Client::to(address, made.json()["apiKey"].as_str().unwrap());
    let conversation = tenant.open().await;
    assert_eq!(tenant.say(conversation, "hello").await, 2);
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().await.unwrap().success());
    let status = timeout(PATIENCE, child.wait()).await.expect("it drains").unwrap();
    assert_eq!(status.code(), Some(0));
    let server = world.serve(&[]).await;
    assert_eq!(tenant.at(&server).page(conversation, "").await.seqs(), [1, 2]);
    assert_eq!(world.assert_clean(&server).await.events, 2);
    server.stop().await;
}
