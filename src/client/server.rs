//! Pure: where a server is, as a person writes it.
//! Promises that what passes can be connected to and shown: it has a host and a port, and no credentials.
//! Does not look names up.

use std::fmt;

/// A server, by the host and port of its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    authority: String,
}

/// What keeps a text from being the address of a server. It never repeats the text, which may hold a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Another scheme, or none.
    #[error("it must begin with http://, as in http://127.0.0.1:8080")]
    Scheme,
    /// `user:password@`.
    #[error("it must not hold credentials")]
    Credentials,
    /// Something follows the port.
    #[error("it must end with the host and port, without a path or query")]
    Path,
    /// There is none, or it is not written as one.
    #[error("it names no host")]
    Host,
    /// It is not from 1 to 65535.
    #[error("its port must be a number from 1 to 65535")]
    Port,
}

/// Where HTTP listens when no port is named (RFC 9110, 4.2.1).
const PORT: u16 = 80;

impl Server {
    /// From `http://host:port`.
    ///
    /// # Errors
    /// Which part of it is wrong.
    pub fn parse(url: &str) -> Result<Self, Unusable> {
        let rest = url.strip_prefix("http://").ok_or(Unusable::Scheme)?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains('@') {
            return Err(Unusable::Credentials);
        }
        if authority.contains(['/', '?', '#', '\\']) {
            return Err(Unusable::Path);
        }
        let begins_port = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
        let (host, port) = match begins_port {
            Some(at) => (&authority[..at], authority[at + 1..].parse().unwrap_or(0)),
            None => (authority, PORT),
        };
        let is_bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        let is_name = !host.contains([':', '[', ']']) && !host.is_empty();
        if !(is_bracketed || is_name)
            || host.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(Unusable::Host);
        }
        if port == 0 {
            return Err(Unusable::Port);
        }
        Ok(Self { authority: format!("{host}:{port}") })
    }

    /// `host:port`.
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_a_host_and_perhaps_a_port_and_nothing_else() {
        for (url, wanted) in [
            ("http://127.0.0.1:8080", Ok("127.0.0.1:8080")),
            ("http://localhost/", Ok("localhost:80")),
            ("http://[::1]:9", Ok("[::1]:9")),
            ("http://[::1]", Ok("[::1]:80")),
            ("127.0.0.1:8080", Err(Unusable::Scheme)),
            ("https://a", Err(Unusable::Scheme)),
            ("", Err(Unusable::Scheme)),
            ("http://ann:hush@a:1", Err(Unusable::Credentials)),
            ("http://a:1/v1", Err(Unusable::Path)),
            ("http://a?token=hush", Err(Unusable::Path)),
            ("http://", Err(Unusable::Host)),
            ("http://:80", Err(Unusable::Host)),
            ("http://::1:80", Err(Unusable::Host)),
            ("http://[]:80", Err(Unusable::Host)),
            ("http://a b:80", Err(Unusable::Host)),
            ("http://a:", Err(Unusable::Port)),
            ("http://a:0", Err(Unusable::Port)),
            ("http://a:65536", Err(Unusable::Port)),
        ] {
            let parsed = Server::parse(url);
            assert_eq!(parsed.as_ref().map(Server::authority).map_err(|why| *why), wanted, "{url}");
        }
    }
}
