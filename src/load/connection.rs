//! One keep-alive connection of the load generator, and what it sets up before a run.
//! Promises one request under way at a time, one buffer for all answers, and that whatever is not an answer is an error.
//! Does not retry.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Error;
use super::wire::{Answer, parse, retry_after};
use crate::event::{ConversationId, MessageId};

/// Room for an answer at first; receipts need 300 bytes.
const BUFFER_BYTES: usize = 2 * 1024;

/// One connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens there.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(BUFFER_BYTES) })
    }

    /// Sends a request and reads its answer, which stays readable by [`Self::body`] until the next one.
    ///
    /// # Errors
    /// When the connection breaks or what comes is no answer; the connection is then of no more use.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.buffer.clear();
        self.stream.write_all(request).await?;
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match parse(&self.buffer) {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(bad) => return Err(io::Error::new(io::ErrorKind::InvalidData, bad)),
            }
        }
    }

    /// How long the last answer, a refusal, asks to wait.
    pub fn retry_after(&self, answer: &Answer) -> Option<Duration> {
        let head = self.buffer.get(..answer.body.start).unwrap_or_default();
        retry_after(head, self.body(answer))
    }

    /// The body of the last answer.
    pub fn body(&self, answer: &Answer) -> &[u8] {
        self.buffer.get(answer.body.clone()).unwrap_or_default()
    }
}

/// The answer to an acknowledged send, as far as it is audited.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Receipt {
    /// The message's id.
    pub id: MessageId,
    /// Its place in the conversation.
    pub seq: u64,
    /// Whether it was stored before.
    #[serde(default)]
    pub duplicate: bool,
}

impl Receipt {
    /// From a body; `None` when it is no receipt.
    pub fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }
}

/// Where `http://host:port` is.
///
/// # Errors
/// [`Error::Address`] when it is not of this form or the name does not resolve.
pub async fn address_of(url: &str) -> Result<SocketAddr, Error> {
    let bad = || Error::Address { url: url.to_owned() };
    let host = url.strip_prefix("http://").ok_or_else(bad)?.trim_end_matches('/');
    let mut addresses = tokio::net::lookup_host(host).await.map_err(Error::Resolve)?;
    addresses.next().ok_or_else(bad)
}

/// Opens so many conversations, one after the other over one connection.
///
/// # Errors
/// When the server does not answer each with 201 and an id.
pub async fn open_conversations(
    url: &str,
    api_key: &str,
    count: usize,
) -> Result<Vec<ConversationId>, Error> {
    #[derive(Deserialize)]
    struct Opened {
        id: ConversationId,
    }
    let host = url.trim_start_matches("http://").trim_end_matches('/');
    let request = format!(
        "POST /v1/conversations HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {api_key}\r\n\
         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    let address = address_of(url).await?;
    let mut connection = Connection::open(address).await.map_err(Error::Connect)?;
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let answer =
            connection.exchange(request.as_bytes()).await.map_err(Error::OpenConversations)?;
        let body = connection.body(&answer);
        match serde_json::from_slice::<Opened>(body) {
            Ok(opened) if answer.status == 201 => ids.push(opened.id),
            Ok(_) | Err(_) => {
                return Err(Error::Refused {
                    status: answer.status,
                    body: String::from_utf8_lossy(body).into_owned(),
                });
            }
        }
    }
    Ok(ids)
}
