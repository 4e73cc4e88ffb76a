//! Somebody who asks a node over HTTP, one question after the other, and sees the status of each answer.
//! Promises an answer, a broken connection or lateness, told apart.
//! Does not ask again.

use std::net::SocketAddr;
use std::time::Duration;

use forebay::load::connection::Connection;
use serde_json::Value;
use tokio::time::timeout;

/// Longest wait for an answer: twice the deadline of any request of the server.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Somebody with a connection of its own.
#[derive(Debug)]
pub(crate) struct Caller {
    address: SocketAddr,
    bearer: String,
    connection: Option<Connection>,
}

/// What a question came to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// A status and what was in it.
    Answered(u16, Value),
    /// No connection, or it broke.
    Broken,
    /// Nothing in time.
    Late,
}

impl Caller {
    /// Somebody with this key.
    pub(crate) fn new(address: SocketAddr, bearer: &str) -> Self {
        Self { address, bearer: bearer.to_owned(), connection: None }
    }

    /// Reads.
    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, "").await
    }

    /// Makes something that must not be refused.
    ///
    /// # Errors
    /// When it is.
    pub(crate) async fn made(&mut self, path: &str, body: &Value) -> anyhow::Result<Value> {
        match self.ask("POST", path, &body.to_string()).await {
            Answer::Answered(200..=299, made) => Ok(made),
            other @ (Answer::Answered(..) | Answer::Broken | Answer::Late) => {
                anyhow::bail!("{path}: {other:?}")
            }
        }
    }

    async fn ask(&mut self, method: &str, path: &str, body: &str) -> Answer {
        let asked = timeout(ANSWER_MAX, self.exchange(method, path, body)).await;
        let answer = match asked {
            Ok(Ok(answer)) => return answer,
            Ok(Err(_broken)) => Answer::Broken,
            Err(_elapsed) => Answer::Late,
        };
        self.connection = None;
        answer
    }

    async fn exchange(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<Answer> {
        let (host, bearer, length) = (self.address, &self.bearer, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {bearer}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.address).await?,
        };
        let answer = connection.exchange(request.as_bytes()).await?;
        let body = serde_json::from_slice(connection.body(&answer)).unwrap_or(Value::Null);
        if !answer.closes {
            self.connection = Some(connection);
        }
        Ok(Answer::Answered(answer.status, body))
    }
}
