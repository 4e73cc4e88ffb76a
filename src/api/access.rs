//! Who asks: operators, tenants and their end users, told apart by the bearer credential.
//! Promises that nobody is let in whom the directory has not, and that a bound token does nothing beyond its bounds.
//! Does not know what the routes do; each says whom it serves.

pub(super) mod issue;
pub mod tokens;

use std::fmt;
use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq as _;

use self::tokens::{Grant, Tokens};
use super::problem::{Code, Problem};
use crate::clock::Timestamp;
use crate::directory::{Directory, Tenant, TenantStatus};
use crate::event::ConversationId;

/// The operator's token; only its SHA-256 is kept, so that comparing takes the same time for every guess.
#[derive(Clone)]
pub struct OperatorToken([u8; 32]);

impl OperatorToken {
    /// From configuration; `None` when it is empty, with which nobody is the operator.
    pub fn new(token: &str) -> Option<Self> {
        (!token.is_empty()).then(|| Self(hash(token)))
    }

    fn is(&self, presented: &str) -> bool {
        self.0.ct_eq(&hash(presented)).into()
    }
}

impl fmt::Debug for OperatorToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OperatorToken(…)")
    }
}

fn hash(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    bytes
}

/// What a credential is by its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Credential<'a> {
    /// `fbk_…`
    ApiKey(&'a str),
    /// Three parts between dots.
    Token(&'a str),
    /// Anything else: the operator's, if anybody's.
    Other(&'a str),
}

impl<'a> Credential<'a> {
    /// From the header `Authorization`; `None` when it is missing, of another scheme or has impossible characters.
    fn read(headers: &'a HeaderMap) -> Option<Self> {
        let text = headers.get(AUTHORIZATION)?.to_str().ok()?;
        let (scheme, rest) = text.split_once(' ')?;
        let bearer = rest.trim_matches(' ');
        if !scheme.eq_ignore_ascii_case("bearer") || bearer.is_empty() || bearer.contains(' ') {
            return None;
        }
        Some(if bearer.starts_with("fbk_") {
            Self::ApiKey(bearer)
        } else if bearer.split('.').count() == 3 {
            Self::Token(bearer)
        } else {
            Self::Other(bearer)
        })
    }
}

/// Who asks.
#[derive(Clone, Debug)]
pub(super) enum Caller {
    /// Whoever runs the server.
    Operator,
    /// A tenant's own software.
    Tenant(Arc<Tenant>),
    /// An end user of a tenant.
    User(Arc<Tenant>, Grant),
}

/// A tenant or one of its users, where both may speak.
#[derive(Clone, Debug)]
pub(super) struct Speaker {
    /// Whose conversations they are.
    pub(super) tenant: Arc<Tenant>,
    /// What a user's token is bound to; `None` for the tenant itself.
    pub(super) grant: Option<Grant>,
}

impl Speaker {
    /// The user whom the token is bound to.
    pub(super) fn user(&self) -> Option<&str> {
        self.grant.as_ref().and_then(|grant| grant.user.as_deref())
    }

    /// Whether the token's bounds allow this conversation.
    pub(super) fn check(&self, conversation: ConversationId) -> Result<(), Problem> {
        let bound = self.grant.as_ref().and_then(|grant| grant.conversation);
        if bound.is_some_and(|bound| bound != conversation) {
            return Err(forbidden("The token is bound to another conversation."));
        }
        Ok(())
    }
}

/// Lets callers in.
#[derive(Clone, Debug)]
pub(super) struct Doorkeeper {
    /// Tenants and keys.
    pub(super) directory: Directory,
    /// Checks users' tokens.
    pub(super) tokens: Arc<Tokens>,
    /// `None` when nobody is the operator.
    pub(super) operator: Option<OperatorToken>,
}

impl Doorkeeper {
    /// The operator, or a refusal.
    pub(super) fn operator(&self, headers: &HeaderMap, now: Timestamp) -> Result<(), Problem> {
        match self.identify(headers, now)? {
            Caller::Operator => Ok(()),
            Caller::Tenant(_) | Caller::User(..) => {
                Err(forbidden("Only the operator may do this."))
            }
        }
    }

    /// A tenant by its API key, or a refusal.
    pub(super) fn tenant(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Arc<Tenant>, Problem> {
        match self.identify(headers, now)? {
            Caller::Tenant(tenant) => Ok(tenant),
            Caller::Operator | Caller::User(..) => {
                Err(forbidden("Only a tenant's API key may do this."))
            }
        }
    }

    /// A user by a token, or a refusal.
    pub(super) fn user(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<(Arc<Tenant>, Grant), Problem> {
        match self.identify(headers, now)? {
            Caller::User(tenant, grant) => Ok((tenant, grant)),
            Caller::Operator | Caller::Tenant(_) => {
                Err(forbidden("Only a user's token may do this."))
            }
        }
    }

    /// A tenant or one of its users, or a refusal.
    pub(super) fn anybody(&self, headers: &HeaderMap, now: Timestamp) -> Result<Speaker, Problem> {
        match self.identify(headers, now)? {
            Caller::Tenant(tenant) => Ok(Speaker { tenant, grant: None }),
            Caller::User(tenant, grant) => Ok(Speaker { tenant, grant: Some(grant) }),
            Caller::Operator => Err(forbidden("The operator does not take part in conversations.")),
        }
    }

    /// A tenant, or one of its users whose token allows this conversation, or a refusal.
    pub(super) fn speaker(
        &self,
        headers: &HeaderMap,
        conversation: ConversationId,
        now: Timestamp,
    ) -> Result<Speaker, Problem> {
        let speaker = self.anybody(headers, now)?;
        speaker.check(conversation)?;
        Ok(speaker)
    }

    fn identify(&self, headers: &HeaderMap, now: Timestamp) -> Result<Caller, Problem> {
        let credential = Credential::read(headers)
            .ok_or_else(|| unauthorized("Send Authorization: Bearer with a credential.", false))?;
        match credential {
            Credential::ApiKey(key) => {
                let access = self.directory.authenticate(key);
                let access =
                    access.ok_or_else(|| unauthorized("The API key is not valid.", true))?;
                Ok(Caller::Tenant(Arc::clone(&access.tenant)))
            }
            Credential::Token(token) => self.identify_user(token, now),
            Credential::Other(text) => {
                let is_operator = self.operator.as_ref().is_some_and(|operator| operator.is(text));
                is_operator
                    .then_some(Caller::Operator)
                    .ok_or_else(|| unauthorized("The credential is not valid.", true))
            }
        }
    }

    fn identify_user(&self, token: &str, now: Timestamp) -> Result<Caller, Problem> {
        // The operator's own token may happen to have two dots.
        if self.operator.as_ref().is_some_and(|operator| operator.is(token)) {
            return Ok(Caller::Operator);
        }
        let grant = self.tokens.check(token, now).map_err(|error| match error {
            tokens::Error::Expired => unauthorized("The token has expired.", true),
            tokens::Error::Invalid(_) | tokens::Error::Malformed | tokens::Error::WeakSecret(_) => {
                unauthorized("The token is not valid.", true)
                    .with_cause(crate::lifecycle::chain(&error))
            }
        })?;
        let tenant = self.directory.tenant(grant.tenant);
        let active = tenant.filter(|tenant| tenant.status == TenantStatus::Active);
        let tenant = active.ok_or_else(|| unauthorized("The token is not valid.", true))?;
        Ok(Caller::User(tenant, grant))
    }
}

fn forbidden(detail: &'static str) -> Problem {
    Problem::new(Code::Forbidden, detail)
}

/// RFC 6750 (3.1): the error is named only when a credential was sent.
fn unauthorized(detail: &'static str, was_sent: bool) -> Problem {
    let challenge = if was_sent {
        r#"Bearer realm="forebay", error="invalid_token""#
    } else {
        r#"Bearer realm="forebay""#
    };
    Problem::new(Code::Unauthorized, detail)
        .with_header(WWW_AUTHENTICATE, HeaderValue::from_static(challenge))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &'static str) -> Option<Credential<'static>> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
        Credential::read(Box::leak(Box::new(headers)))
    }

    #[test]
    fn credentials_are_told_apart_by_their_shape() {
        for (value, expected) in [
            ("Bearer fbk_abc", Some(Credential::ApiKey("fbk_abc"))),
            ("bearer  fbk_abc ", Some(Credential::ApiKey("fbk_abc"))),
            ("BEARER a.b.c", Some(Credential::Token("a.b.c"))),
            ("Bearer a.b", Some(Credential::Other("a.b"))),
            ("Bearer secret", Some(Credential::Other("secret"))),
            ("Bearer", None),
            ("Bearer ", None),
            ("Bearer a b", None),
            ("Basic dXNlcjpwYXNz", None),
            ("fbk_abc", None),
            ("", None),
        ] {
            assert_eq!(read(value), expected, "{value}");
        }
        assert_eq!(Credential::read(&HeaderMap::new()), None);
    }

    #[test]
    fn only_the_operators_own_token_is_the_operators() {
        let token = OperatorToken::new("correct horse").unwrap();
        assert!(token.is("correct horse"));
        for guess in ["", "correct", "correct horsf", "correct horse "] {
            assert!(!token.is(guess), "{guess}");
        }
        assert!(OperatorToken::new("").is_none());
        assert!(!format!("{token:?}").contains("horse"));
    }

    #[test]
    fn a_bound_token_reaches_its_own_conversation_only() {
        use crate::directory::NewTenant;
        use crate::event::TenantId;
        let now = Timestamp::default();
        let new = NewTenant { name: "acme".to_owned(), ..NewTenant::default() };
        let id = TenantId::derive([1; 16]);
        let own = ConversationId::derive([2; 16]);
        let mut grant = Grant::starting(now, id, tokens::TTL_DEFAULT);
        grant.conversation = Some(own);
        let tenant = Arc::new(Tenant::new(id, new, now).unwrap());
        let mut speaker = Speaker { tenant, grant: Some(grant) };
        assert!(speaker.check(own).is_ok());
        let refused = speaker.check(ConversationId::derive([3; 16])).unwrap_err();
        assert_eq!(refused.code(), Code::Forbidden);
        speaker.grant = None;
        assert!(speaker.check(ConversationId::derive([3; 16])).is_ok());
    }
}
