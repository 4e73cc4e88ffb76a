//! What the benchmark asks of the server: tenants of one lane, channels, messages.
//! Promises an error with the server's own words when it refuses.
//! Does not measure.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::Target;
use crate::bench::Error;
use crate::clock::Clock;
use crate::directory::{Lane, Tier};
use crate::event::TenantId;
use crate::load;
use crate::load::connection::{Connection, address_of};
use crate::receiver::Receiver;

/// Messages of one batch.
const BATCH: usize = 500;

/// Pause after an answer that asks for one; `Retry-After` has whole seconds, which is long for a measurement.
const PAUSE: Duration = Duration::from_millis(100);

/// Everything around a measurement.
pub(super) struct Stage<'a> {
    pub(super) target: &'a Target,
    pub(super) receiver: &'a Receiver,
    pub(super) clock: &'a Clock,
}

/// Somebody with a connection of its own.
pub(super) struct Caller {
    host: String,
    bearer: String,
    address: SocketAddr,
    connection: Connection,
    /// Whose key it has; none for the operator.
    pub(super) tenant: Option<TenantId>,
}

impl Stage<'_> {
    async fn caller(&self, bearer: &str, tenant: Option<TenantId>) -> Result<Caller, Error> {
        let address = address_of(&self.target.url).await?;
        let connection = Connection::open(address).await.map_err(load::Error::Connect)?;
        let host = self.target.url.trim_start_matches("http://").to_owned();
        Ok(Caller { host, bearer: bearer.to_owned(), address, connection, tenant })
    }

    /// A new tenant; in this lane, if one is named.
    pub(super) async fn tenant(&self, lane: Option<Lane>) -> Result<Caller, Error> {
        let mut operator = self.caller(&self.target.admin_token, None).await?;
        loop {
            let made = operator.post("/v1/tenants", &json!({"name": "bench"})).await?;
            let id = made["id"].as_str().and_then(|id| TenantId::parse(id).ok());
            let fits = id.is_some_and(|id| lane.is_none_or(|l| Lane::of(Tier::Standard, id) == l));
            if fits {
                return self.caller(made["apiKey"].as_str().unwrap_or_default(), id).await;
            }
        }
    }
}

impl Caller {
    /// Its lane.
    pub(super) fn lane(&self) -> Option<Lane> {
        self.tenant.map(|tenant| Lane::of(Tier::Standard, tenant))
    }

    pub(super) async fn post(&mut self, path: &str, body: &Value) -> Result<Value, Error> {
        self.call("POST", path, &body.to_string()).await
    }

    pub(super) async fn get(&mut self, path: &str) -> Result<Value, Error> {
        self.call("GET", path, "").await
    }

    async fn call(&mut self, method: &str, path: &str, body: &str) -> Result<Value, Error> {
        let (host, bearer, length) = (&self.host, &self.bearer, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {bearer}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let mut reopened = false;
        loop {
            let answer = match self.connection.exchange(request.as_bytes()).await {
                Ok(answer) => answer,
                // The server closes what is idle for too long.
                Err(_) if !reopened => {
                    let opened = Connection::open(self.address).await;
                    self.connection = opened.map_err(load::Error::Connect)?;
                    reopened = true;
                    continue;
                }
                Err(source) => return Err(Error::Io { doing: "asking the server", source }),
            };
            let body = self.connection.body(&answer);
            match answer.status {
                // A deletion that is asked for again has been done.
                404 if method == "DELETE" => return Ok(Value::Null),
                200..=299 => return Ok(serde_json::from_slice(body).unwrap_or(Value::Null)),
                // A moment of pressure, which a client waits out.
                429 | 503 => tokio::time::sleep(PAUSE).await,
                status => {
                    let body = String::from_utf8_lossy(body).into_owned();
                    return Err(load::Error::Refused { status, body }.into());
                }
            }
        }
    }

    /// A channel to this URL that hears of messages only.
    pub(super) async fn channel(&mut self, url: &str, fields: Value) -> Result<String, Error> {
        let mut body = json!({"name": "bench", "url": url, "types": ["message"]});
        for (name, value) in fields.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let made = self.post("/v1/channels", &body).await?;
        Ok(made["id"].as_str().unwrap_or_default().to_owned())
    }

    pub(super) async fn delete_channel(&mut self, id: &str) -> Result<(), Error> {
        self.call("DELETE", &format!("/v1/channels/{id}"), "").await.map(drop)
    }

    pub(super) async fn conversation(&mut self) -> Result<String, Error> {
        let made = self.post("/v1/conversations", &json!({})).await?;
        Ok(made["id"].as_str().unwrap_or_default().to_owned())
    }

    /// Sends so many messages, in batches.
    pub(super) async fn burst(&mut self, conversation: &str, count: usize) -> Result<(), Error> {
        let path = format!("/v1/conversations/{conversation}/messages:batch");
        let mut left = count;
        while left > 0 {
            let some = left.min(BATCH);
            let messages = vec![json!({"text": "x".repeat(100)}); some];
            self.post(&path, &json!({ "messages": messages })).await?;
            left -= some;
        }
        Ok(())
    }
}
