//! A private `PgBouncer` in transaction mode: a Unix socket, no network, in front of a private Postgres.
//! Promises that it takes clients when `start` or `restart` returns, and that the address stays the same over restarts.
//! Does not start that Postgres, and connects to it only when a client asks for something.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::account::Account;
use super::claim::Claim;
use super::leash::{Errand, Leash, Polite};
use super::place::{log_file, place_of_pgbouncer, prepare};
use super::postgres::{self, Postgres, ROLE};
use super::ward::Ward;
use super::{Error, Exit, Options};

const SERVICE: &str = "pgbouncer";
/// Its usual port, which is in the name of the socket.
const PORT: u16 = 6432;
/// It has nothing to recover.
const START_DEADLINE: Duration = Duration::from_secs(20);
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// How it pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pooling {
    /// Connections to Postgres, for each database.
    pub pool_size: u16,
    /// Clients that may be connected; one more is refused.
    pub clients_max: u16,
    /// How long a client may wait for a connection to Postgres; after that it is disconnected.
    pub query_wait: Duration,
}

impl Default for Pooling {
    /// What `PgBouncer` ships with, but for the size of the pool, which is Forebay's own.
    fn default() -> Self {
        Self { pool_size: 10, clients_max: 100, query_wait: Duration::from_mins(2) }
    }
}

/// A `PgBouncer` of our own. Dropping it kills it; [`Self::stop`] ends it in order.
#[derive(Debug)]
pub struct PgBouncer {
    root: PathBuf,
    program: PathBuf,
    pooling: Pooling,
    /// The socket directory of Postgres.
    upstream: PathBuf,
    /// Its own files, and the directory of its socket.
    own: PathBuf,
    sockets: PathBuf,
    account: Option<Account>,
    ward: Ward,
}

impl PgBouncer {
    /// Starts the `PgBouncer` of this root in front of that Postgres, as the user that runs it. The program is what
    /// [`super::provide_pgbouncer`] found.
    ///
    /// # Errors
    /// [`Error::InUse`] when another process has this root, [`Error::Died`] or [`Error::Slow`] when it does not come up,
    /// [`Error::Io`] otherwise.
    pub async fn start(
        program: &Path,
        options: &Options,
        upstream: &Postgres,
        pooling: Pooling,
    ) -> Result<Self, Error> {
        let root = prepare(&options.root)?;
        let ward = Ward::new(Claim::take(&root, SERVICE).await?, log_file(&root, SERVICE));
        let (upstream, account) = upstream.door();
        let (own, sockets) = place_of_pgbouncer(&root, account)?;
        let mut bouncer = Self {
            root,
            program: program.to_owned(),
            pooling,
            upstream: upstream.to_owned(),
            own,
            sockets,
            account,
            ward,
        };
        bouncer.launch().await?;
        Ok(bouncer)
    }

    /// The address of a database behind it, as sqlx and psql take it. `pgbouncer` is its own console.
    pub fn url(&self, database: &str) -> String {
        postgres::url(&self.sockets, PORT, database)
    }

    /// The number of its process, the last one when it does not run.
    pub fn pid(&self) -> u32 {
        self.ward.pid()
    }

    /// Stops it where it is: connections stay open and silent. It stands on return.
    pub async fn pause(&self) {
        self.ward.pause().await;
    }

    /// Lets a paused one run on.
    pub fn resume(&self) {
        self.ward.resume();
    }

    /// Ends it with SIGKILL, paused or not.
    ///
    /// # Errors
    /// [`Error::Slow`] when the kernel does not end it in time.
    pub async fn kill(&mut self) -> Result<(), Error> {
        self.ward.kill().await
    }

    /// Starts it again, stopping it first when it runs.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.end().await?;
        self.launch().await
    }

    /// Waits until it ends by itself. At once when it does not run.
    ///
    /// Cancel safe: the next call waits on.
    ///
    /// # Errors
    /// [`Error::Io`] when the process cannot be waited for.
    pub async fn watch(&mut self) -> Result<Exit, Error> {
        self.ward.watch().await
    }

    /// Ends it at once: clients and connections to Postgres are closed. Killed when that takes long.
    ///
    /// # Errors
    /// [`Error::Slow`] when even the kill takes too long.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.end().await
    }

    async fn end(&mut self) -> Result<(), Error> {
        // SIGINT would wait for every client's transaction (pgbouncer(1), "Signals").
        self.ward.end(Signal::TERM, STOP_DEADLINE).await
    }

    async fn launch(&mut self) -> Result<(), Error> {
        let users = self.write("userlist.txt", &format!("\"{ROLE}\" \"\"\n"))?;
        let text = render(self.pooling, &self.upstream, &self.sockets, &users);
        let configuration = self.write("pgbouncer.ini", &text)?;
        let socket = self.sockets.join(format!(".s.PGSQL.{PORT}"));
        // What a killed one left; the claim says that no other uses it.
        if let Err(error) = fs::remove_file(&socket)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(Error::io("remove", &socket)(error));
        }
        let errand = Errand {
            service: SERVICE,
            program: self.program.clone(),
            arguments: vec![configuration.into()],
            log: log_file(&self.root, SERVICE),
            account: self.account,
            polite: Polite::Term,
        };
        let mut leash = Leash::start(&errand)?;
        self.ward.record(&leash)?;
        let ready = async {
            while UnixStream::connect(&socket).await.is_err() {
                leash.expect_running()?;
                sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        };
        timeout(START_DEADLINE, ready).await.unwrap_or_else(|_elapsed| {
            let log = errand.log.clone();
            Err(Error::Slow { service: SERVICE, what: "get ready", within: START_DEADLINE, log })
        })?;
        self.ward.hold(leash, SERVICE);
        Ok(())
    }

    /// Writes a file of its own, which nobody but its user gets at.
    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.own.join(name);
        fs::write(&path, text).map_err(Error::io("write", &path))?;
        if let Some(account) = self.account {
            std::os::unix::fs::chown(&path, Some(account.user), Some(account.group))
                .map_err(Error::io("hand over", &path))?;
        }
        Ok(path)
    }
}

/// Its configuration. Everything that is not named is as it ships.
///
/// It ignores two parameters that drivers send when they connect and that it cannot keep apart for each client of a
/// shared connection: the digits of floats, which are a matter of taste, and `options`, by which Forebay sets its
/// timeouts.
fn render(pooling: Pooling, upstream: &Path, sockets: &Path, users: &Path) -> String {
    let Pooling { pool_size, clients_max, query_wait } = pooling;
    let upstream = upstream.display().to_string().replace('\'', "''");
    format!(
        "[databases]\n\
         * = host='{upstream}' port={}\n\
         \n\
         [pgbouncer]\n\
         listen_addr =\n\
         listen_port = {PORT}\n\
         unix_socket_dir = {}\n\
         auth_type = trust\n\
         auth_file = {}\n\
         admin_users = {ROLE}\n\
         pool_mode = transaction\n\
         default_pool_size = {pool_size}\n\
         max_client_conn = {clients_max}\n\
         query_wait_timeout = {}\n\
         ignore_startup_parameters = extra_float_digits,options\n\
         log_connections = 0\n\
         log_disconnections = 0\n",
        postgres::PORT,
        sockets.display(),
        users.display(),
        query_wait.as_secs_f64(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_pools_transactions_as_told_and_listens_nowhere_but_on_its_socket() {
        let pooling =
            Pooling { pool_size: 7, clients_max: 50, query_wait: Duration::from_millis(1_500) };
        let text = render(pooling, Path::new("/a 'b'/s"), Path::new("/own s"), Path::new("/u"));
        for line in [
            "* = host='/a ''b''/s' port=5432",
            "listen_addr =",
            "unix_socket_dir = /own s",
            "pool_mode = transaction",
            "default_pool_size = 7",
            "max_client_conn = 50",
            "query_wait_timeout = 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
