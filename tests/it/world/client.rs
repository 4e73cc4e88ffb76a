//! A client of a server's doors: one request a connection, answers whole, nothing tried twice.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use forebay::cli::serve::Server;
use forebay::event::{ConversationId, TenantId};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::ADMIN_TOKEN;

/// No answer may take longer, whatever is down.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// What a connection ended with instead of an answer.
type Broken = Box<dyn std::error::Error + Send + Sync>;

/// Somebody with a credential at one server.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    bearer: String,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Client {
    /// Whoever has this credential; the empty one is nobody.
    pub fn with(server: &Server, bearer: &str) -> Self {
        Self { address: server.address, bearer: bearer.to_owned() }
    }

    /// The same for a server of another process.
    pub fn to(address: SocketAddr, bearer: &str) -> Self {
        Self { address, bearer: bearer.to_owned() }
    }

    /// Its credential.
    pub fn bearer(&self) -> &str {
        &self.bearer
    }

    /// The operator.
    pub fn operator(server: &Server) -> Self {
        Self::with(server, ADMIN_TOKEN)
    }

    /// A new tenant.
    pub async fn tenant(server: &Server) -> Self {
        Self::tenant_at(server.address).await
    }

    /// A new tenant at a server of another process.
    pub async fn tenant_at(address: SocketAddr) -> Self {
        let operator = Self::to(address, ADMIN_TOKEN);
        let made = operator.post("/v1/tenants", json!({"name": "acme"})).await;
        assert_eq!(made.status, 201, "{made:?}");
        Self::to(address, made.json()["apiKey"].as_str().unwrap())
    }

    /// The same caller at another server.
    pub fn at(&self, server: &Server) -> Self {
        Self::with(server, &self.bearer)
    }

    /// The same server with another credential.
    pub fn as_bearer(&self, bearer: &str) -> Self {
        Self { address: self.address, bearer: bearer.to_owned() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &[], "").await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call(Method::DELETE, path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path, &[], body.to_string()).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.call(Method::PATCH, path, &[], body.to_string()).await
    }

    /// Any request. A header takes the place of one that is there without asking.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let answer = timeout(ANSWER_MAX, self.ask(method, path, headers, body)).await;
        let answer = answer.unwrap_or_else(|_| panic!("{path}: no answer"));
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The same to a server that may be gone at any moment; `None` for no answer.
    pub async fn try_post(&self, path: &str, body: String) -> Option<Answer> {
        timeout(ANSWER_MAX, self.ask(Method::POST, path, &[], body)).await.ok()?.ok()
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, Broken> {
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap();
        let fields = request.headers_mut();
        fields.insert(HOST, self.address.to_string().parse().unwrap());
        fields.insert(CONTENT_TYPE, "application/json".parse().unwrap());
        if !self.bearer.is_empty() {
            fields.insert(AUTHORIZATION, format!("Bearer {}", self.bearer).parse().unwrap());
        }
        for (name, value) in headers {
            let name: hyper::header::HeaderName = name.parse().unwrap();
            fields.insert(name, value.parse().unwrap());
        }
        let stream = TcpStream::connect(self.address).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let work = async {
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
        };
        tokio::pin!(connection, work);
        tokio::select! {
            biased;
            answer = &mut work => answer,
            ended = &mut connection => match ended {
                Ok(()) => work.await,
                Err(error) => Err(format!("the connection broke: {error}").into()),
            }
        }
    }

    /// Opens a conversation.
    pub async fn open(&self) -> ConversationId {
        let opened = self.post("/v1/conversations", json!({})).await;
        assert_eq!(opened.status, 201, "{opened:?}");
        ConversationId::parse(opened.json()["id"].as_str().unwrap()).unwrap()
    }

    /// Sends a message; `body` is all of it.
    pub async fn send(&self, conversation: ConversationId, body: Value) -> Answer {
        self.post(&format!("/v1/conversations/{conversation}/messages"), body).await
    }

    /// Announces a send of so many bytes over a connection of its own and sends the first of them.
    pub async fn begin_send(
        &self,
        conversation: ConversationId,
        announced: usize,
        begun: &[u8],
    ) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "POST /v1/conversations/{conversation}/messages HTTP/1.1\r\nHost: x\r\n\
             Authorization: Bearer {}\r\nContent-Length: {announced}\r\n\
             Expect: 100-continue\r\n\r\n",
            self.bearer
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server asks for the body: the request is being answered.
        let mut go_on = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
        stream.read_exact(&mut go_on).await.unwrap();
        assert!(go_on.starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&go_on));
        stream.write_all(begun).await.unwrap();
        stream
    }

    /// Sends a text and gives its seq.
    pub async fn say(&self, conversation: ConversationId, text: &str) -> u64 {
        let sent = self.send(conversation, json!({ "text": text })).await;
        assert_eq!(sent.status, 201, "{sent:?}");
        sent.json()["seq"].as_u64().unwrap()
    }

    /// Reads a page; `query` comes after the question mark.
    pub async fn page(&self, conversation: ConversationId, query: &str) -> Answer {
        self.get(&format!("/v1/conversations/{conversation}/messages?{query}")).await
    }
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// A header's value; empty when it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Checks that it is a problem as all are, and gives its code.
    pub fn problem(&self) -> String {
        let body = self.json();
        assert_eq!(self.header("content-type"), "application/problem+json", "{body}");
        assert_eq!(body["status"], self.status, "{body}");
        assert_eq!(body["requestId"], self.header("x-request-id"), "{body}");
        assert!(!body["detail"].as_str().unwrap().is_empty(), "{body}");
        let code = body["code"].as_str().unwrap();
        assert_eq!(body["type"], format!("/problems/{code}"));
        let wait = self.header("retry-after").parse::<u64>().ok();
        let millis = body["retryAfterMs"].as_u64();
        assert_eq!(millis.is_some(), body["retryable"] == true, "{body}");
        assert_eq!(wait, millis.map(|millis| millis.div_ceil(1_000)), "{body}");
        // Between once and twice DB_RETRY_AFTER_MS, whatever it is that cannot be had.
        assert!(self.status != 503 || (1_000..=2_000).contains(&millis.unwrap()), "{body}");
        code.to_owned()
    }

    /// The seqs of a page.
    pub fn seqs(&self) -> Vec<u64> {
        let body = self.json();
        let messages = body["messages"].as_array().unwrap_or_else(|| panic!("no page: {body}"));
        messages.iter().map(|message| message["seq"].as_u64().unwrap()).collect()
    }

    /// Whether it is a problem of that code, else a failure that shows it.
    #[track_caller]
    pub fn assert_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.problem(), code, "{self:?}");
    }
}

/// The id of the tenant whom a client's key belongs to.
pub fn tenant_of(server: &Server, client: &Client) -> TenantId {
    server.directory.authenticate(&client.bearer).unwrap().tenant.id
}
