//! A server of a world in a process of its own, which can be killed.
//! Promises that it listens when it is there, and that it ends with the test.
//! Does not deliver unless it is told to.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::{ADMIN_TOKEN, PATIENCE, World};

/// A process of `forebay serve`.
pub struct Node {
    child: Child,
    pub address: SocketAddr,
}

impl Node {
    /// What starts one, with some settings of the test's own; it ends with what it returns.
    pub fn command(world: &World, settings: &[(&str, &str)]) -> Command {
        let namespace = world.namespace();
        let base = [
            ("DATABASE_URL", world.postgres_url()),
            ("NATS_URL", &world.nats_url()),
            ("FOREBAY_NAMESPACE", namespace.as_str()),
            ("FOREBAY_LISTEN", "127.0.0.1:0"),
            ("FOREBAY_ADMIN_TOKEN", ADMIN_TOKEN),
            ("FOREBAY_PARTITION_BYTES_MAX", "67108864"),
            ("FOREBAY_PARTITIONS", "2"),
            ("FOREBAY_DELIVER", "off"),
        ];
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("serve").env_clear().envs(base).envs(settings.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Starts one, and waits until it listens.
    pub async fn start(world: &World, settings: &[(&str, &str)]) -> Self {
        let mut command = Self::command(world, settings);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let reading = async {
            loop {
                let line = lines.next_line().await.unwrap().expect("it runs");
                if let Some((_, rest)) = line.split_once("listening on http://") {
                    let is_of_address = |c: char| c.is_ascii_digit() || ".:".contains(c);
                    return rest.trim_end_matches(|c| !is_of_address(c)).parse().unwrap();
                }
            }
        };
        let address = timeout(PATIENCE, reading).await.expect("it listens");
        // Whoever writes to a closed pipe is ended.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, address }
    }

    /// Ends it with SIGKILL.
    pub async fn kill(mut self) {
        self.child.start_kill().unwrap();
        let ended = timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap();
        assert!(!ended.success(), "it had ended before");
    }
}
