//! Short-lived tokens of end users: JWTs signed with HMAC-SHA256 (RFC 7519, 7515).
//! Promises that only tokens of this server's key and algorithm pass, and that what a token is bound to is kept.
//! Does not look anything up: whether the tenant still exists, the caller asks the directory.

use std::time::Duration;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result as JwtResult};
use jsonwebtoken::signature::{Error as SignatureError, Signer, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use ring::hmac;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::event::{ConversationId, RequestId, TenantId};

/// Life of a token when the caller names none.
pub const TTL_DEFAULT: Duration = Duration::from_hours(1);

/// Longest life of a token: a token cannot be revoked by itself, only with its tenant.
pub const TTL_MAX: Duration = Duration::from_hours(24);

/// Shortest key, in bytes: RFC 7518 (3.2) asks for at least the size of the hash.
pub const SECRET_BYTES_MIN: usize = 32;

/// Longest token that is looked at, in bytes; ours are around 400.
const TOKEN_BYTES_MAX: usize = 2_048;

/// What a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The tenant on whose behalf it was issued.
    pub tenant: TenantId,
    /// The only conversation that it may touch; any of the tenant's when absent.
    pub conversation: Option<ConversationId>,
    /// The user as whom it speaks; the sender of every message.
    pub user: Option<Box<str>>,
    /// When it ends.
    pub expires_at: Timestamp,
    /// How long it was made for.
    pub ttl: Duration,
}

/// The claims as they stand in the token.
#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    ten: TenantId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cnv: Option<ConversationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sub: Option<Box<str>>,
    exp: i64,
    iat: i64,
    jti: RequestId,
}

/// Why a token is refused, or cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The signing key is too short.
    #[error("the token secret has {0} bytes, it must have at least {SECRET_BYTES_MIN}")]
    WeakSecret(usize),
    /// Not a token of this server: another shape, algorithm, key or claims.
    #[error("the token is not valid")]
    Invalid(#[source] jsonwebtoken::errors::Error),
    /// Longer than any token of this server, or its times make no sense.
    #[error("the token is not valid")]
    Malformed,
    /// It has ended.
    #[error("the token has expired")]
    Expired,
}

/// Issues and checks tokens with one key.
#[derive(Clone, Debug)]
pub struct Tokens {
    signing: EncodingKey,
    checking: DecodingKey,
    validation: Validation,
}

impl Tokens {
    /// With this signing key.
    ///
    /// # Errors
    /// [`Error::WeakSecret`] when it is shorter than [`SECRET_BYTES_MIN`].
    pub fn new(secret: &[u8]) -> Result<Self, Error> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(Error::WeakSecret(secret.len()));
        }
        // The provider has no state, so that several servers of a process can share it; the first one sets it.
        let _who_was_first = PROVIDER.install_default();
        let mut validation = Validation::new(Algorithm::HS256);
        // Times are checked here, against the server's own clock.
        validation.validate_exp = false;
        validation.required_spec_claims.clear();
        Ok(Self {
            signing: EncodingKey::from_secret(secret).map_err(Error::Invalid)?,
            checking: DecodingKey::from_secret(secret).map_err(Error::Invalid)?,
            validation,
        })
    }

    /// A signed token for this grant. `now` and `id` are written into it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it cannot be signed, which no grant makes happen.
    pub fn issue(&self, grant: &Grant, now: Timestamp, id: RequestId) -> Result<String, Error> {
        let claims = Claims {
            ten: grant.tenant,
            cnv: grant.conversation,
            sub: grant.user.clone(),
            exp: grant.expires_at.micros() / 1_000_000,
            iat: now.micros() / 1_000_000,
            jti: id,
        };
        encode(&Header::new(Algorithm::HS256), &claims, &self.signing).map_err(Error::Invalid)
    }

    /// What the token grants at this time.
    ///
    /// # Errors
    /// [`Error::Expired`] when only its time is over, else [`Error::Invalid`] or [`Error::Malformed`].
    pub fn check(&self, token: &str, now: Timestamp) -> Result<Grant, Error> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Error::Malformed);
        }
        let data =
            decode::<Claims>(token, &self.checking, &self.validation).map_err(Error::Invalid)?;
        // RFC 7515 (4.1.11): extensions that must be understood are not.
        if data.header.crit.is_some() {
            return Err(Error::Malformed);
        }
        let claims = data.claims;
        let seconds = |at: i64| at.checked_mul(1_000_000).and_then(Timestamp::from_micros);
        let expires_at = seconds(claims.exp).ok_or(Error::Malformed)?;
        let issued_at = seconds(claims.iat).ok_or(Error::Malformed)?;
        let ttl = expires_at.since(issued_at);
        if ttl > TTL_MAX || ttl.is_zero() {
            return Err(Error::Malformed);
        }
        if expires_at <= now {
            return Err(Error::Expired);
        }
        Ok(Grant {
            tenant: claims.ten,
            conversation: claims.cnv,
            user: claims.sub,
            expires_at,
            ttl,
        })
    }
}

impl Grant {
    /// A grant from `now` on for `ttl`, which is cut to whole seconds as a token's times are.
    pub fn starting(now: Timestamp, tenant: TenantId, ttl: Duration) -> Self {
        let ttl = Duration::from_secs(ttl.as_secs());
        let second = Timestamp::from_micros(now.micros() / 1_000_000 * 1_000_000).unwrap_or(now);
        Self { tenant, conversation: None, user: None, expires_at: second.plus(ttl), ttl }
    }
}

/// HMAC-SHA256 by `ring` and nothing else: a key of another family or another algorithm is refused.
static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |algorithm, key| {
        hs256(*algorithm, key.as_bytes()).map(|key| Box::new(key) as Box<dyn JwtSigner>)
    },
    verifier_factory: |algorithm, key| {
        hs256(*algorithm, key.try_get_as_bytes()?).map(|key| Box::new(key) as Box<dyn JwtVerifier>)
    },
    key_utils: KeyUtils::new_unimplemented(),
};

struct Hs256(hmac::Key);

fn hs256(algorithm: Algorithm, secret: &[u8]) -> JwtResult<Hs256> {
    if algorithm == Algorithm::HS256 {
        Ok(Hs256(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    } else {
        Err(ErrorKind::UnsupportedAlgorithm.into())
    }
}

impl Signer<Vec<u8>> for Hs256 {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, SignatureError> {
        Ok(hmac::sign(&self.0, message).as_ref().to_vec())
    }
}

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        hmac::verify(&self.0, message, signature).map_err(|_unspecified| SignatureError::new())
    }
}

impl JwtSigner for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

impl JwtVerifier for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn now() -> Timestamp {
        Timestamp::from_micros(1_764_000_000_500_000).unwrap()
    }

    fn grant() -> Grant {
        Grant {
            conversation: Some(ConversationId::derive([2; 16])),
            user: Some("ann".into()),
            ..Grant::starting(now(), TenantId::derive([1; 16]), TTL_DEFAULT)
        }
    }

    fn issued(tokens: &Tokens, grant: &Grant) -> String {
        tokens.issue(grant, now(), RequestId::derive([3; 16])).unwrap()
    }

    /// A token with this header and these claims, signed as an attacker who has `secret` would.
    fn forged(header: &str, claims: &str, secret: &[u8]) -> String {
        let message =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    fn claims(exp: i64, iat: i64) -> String {
        let (ten, jti) = (TenantId::derive([1; 16]), RequestId::derive([3; 16]));
        format!(r#"{{"ten":"{ten}","exp":{exp},"iat":{iat},"jti":"{jti}"}}"#)
    }

    #[test]
    fn a_token_grants_what_it_was_issued_for_until_it_ends() {
        let tokens = Tokens::new(SECRET).unwrap();
        let token = issued(&tokens, &grant());
        assert_eq!(tokens.check(&token, now()).unwrap(), grant());
        let last = grant().expires_at.minus(Duration::from_micros(1));
        assert!(tokens.check(&token, last).is_ok());
        assert!(matches!(tokens.check(&token, grant().expires_at), Err(Error::Expired)));
    }

    #[test]
    fn a_token_of_another_key_or_with_changed_claims_is_refused() {
        let tokens = Tokens::new(SECRET).unwrap();
        let other = Tokens::new(b"another secret of at least 32 bytes").unwrap();
        assert!(matches!(tokens.check(&issued(&other, &grant()), now()), Err(Error::Invalid(_))));
        let token = issued(&tokens, &grant());
        let mut parts = token.split('.');
        let (header, _, signature) =
            (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let changed = URL_SAFE_NO_PAD.encode(claims(1_764_003_600, 1_764_000_000));
        let swapped = format!("{header}.{changed}.{signature}");
        assert!(tokens.check(&swapped, now()).is_err());
        assert!(tokens.check(&token[..token.len() - 2], now()).is_err());
    }

    #[test]
    fn other_algorithms_are_refused_even_with_a_right_signature() {
        let tokens = Tokens::new(SECRET).unwrap();
        let claims = claims(1_764_003_600, 1_764_000_000);
        assert!(tokens.check(&forged(r#"{"alg":"HS256"}"#, &claims, SECRET), now()).is_ok());
        for header in [
            r#"{"alg":"none"}"#,
            r#"{"alg":"None","typ":"JWT"}"#,
            r#"{"alg":"HS384"}"#,
            r#"{"alg":"HS512"}"#,
            r#"{"alg":"RS256"}"#,
            r#"{"alg":"ES256"}"#,
            r#"{"alg":"EdDSA"}"#,
            r#"{"alg":""}"#,
            r#"{"typ":"JWT"}"#,
            r#"{"alg":"HS256","crit":["b64"],"b64":false}"#,
        ] {
            let token = forged(header, &claims, SECRET);
            assert!(tokens.check(&token, now()).is_err(), "{header}");
            let unsigned = token.rsplit_once('.').unwrap().0;
            assert!(tokens.check(&format!("{unsigned}."), now()).is_err(), "{header}");
            assert!(tokens.check(unsigned, now()).is_err(), "{header}");
        }
    }

    #[test]
    fn claims_that_no_server_issues_are_refused() {
        let tokens = Tokens::new(SECRET).unwrap();
        let header = r#"{"alg":"HS256"}"#;
        for claims in [
            claims(1_764_000_000 + 86_401, 1_764_000_000),
            claims(1_764_003_600, 1_764_003_600),
            claims(i64::MAX, 1_764_000_000),
            claims(-5, -10),
            r#"{"exp":1764003600,"iat":1764000000}"#.to_owned(),
            r#"{"ten":"ten_1","exp":1764003600,"iat":1764000000,"jti":"x"}"#.to_owned(),
            "[]".to_owned(),
            "{".to_owned(),
        ] {
            let token = forged(header, &claims, SECRET);
            assert!(tokens.check(&token, now()).is_err(), "{claims}");
        }
        let long = format!("{}.a.b", "x".repeat(TOKEN_BYTES_MAX));
        assert!(matches!(tokens.check(&long, now()), Err(Error::Malformed)));
        for text in ["", ".", "..", "a.b.c", "a.b.c.d"] {
            assert!(tokens.check(text, now()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_short_secret_is_refused_by_its_length() {
        assert!(matches!(Tokens::new(&SECRET[1..]), Err(Error::WeakSecret(31))));
    }
}
