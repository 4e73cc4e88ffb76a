//! Pure: signatures of Standard Webhooks: HMAC-SHA256 over id, time and body.
//! Promises that verification takes the same time wherever a signature differs, and looks at a bounded part of it.
//! Does not keep secrets.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac::{self, HMAC_SHA256, Key};

use crate::clock::Timestamp;

/// How far the time of a signature may lie from now, in both directions (the specification's own value).
pub const TOLERANCE: Duration = Duration::from_mins(5);

/// Most signatures of one header that are looked at: a sender that rotates has two.
const SIGNATURES_MAX: usize = 8;

/// Longest header that is looked at, in bytes.
const HEADER_BYTES_MAX: usize = 1_024;

/// Why a signature does not verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unverified {
    /// A header is missing, too long or not of its form.
    #[error("webhook-id, webhook-timestamp and webhook-signature must be there in their form")]
    Malformed,
    /// It was signed more than five minutes ago.
    #[error("webhook-timestamp is more than 5 minutes old")]
    TooOld,
    /// It says that it was signed more than five minutes ahead.
    #[error("webhook-timestamp is more than 5 minutes ahead")]
    TooNew,
    /// No signature is of this content and secret.
    #[error("no signature matches")]
    NoMatch,
}

/// The headers of a signed request.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    /// `webhook-id`.
    pub id: &'a str,
    /// `webhook-timestamp`.
    pub timestamp: &'a str,
    /// `webhook-signature`.
    pub signature: &'a str,
}

/// The value of `webhook-signature` for these secrets, the newest first; `seconds` is that of `webhook-timestamp`.
pub fn sign(secrets: &[&[u8]], (id, seconds): (&str, u64), body: &[u8]) -> String {
    let seconds = seconds.to_string();
    let sign_with = |secret: &[u8]| {
        let tag = content(&Key::new(HMAC_SHA256, secret), (id, &seconds), body);
        format!("v1,{}", STANDARD.encode(tag))
    };
    secrets.iter().map(|secret| sign_with(secret)).collect::<Vec<_>>().join(" ")
}

/// Checks that one of the signatures is of this body, id and time by one of these secrets.
///
/// # Errors
/// [`Unverified`]
pub fn verify(
    secrets: &[&[u8]],
    signed: Signed<'_>,
    body: &[u8],
    now: Timestamp,
) -> Result<(), Unverified> {
    let Signed { id, timestamp, signature } = signed;
    let fits = |text: &str| (1..=HEADER_BYTES_MAX).contains(&text.len());
    let plain = timestamp.bytes().all(|b| b.is_ascii_digit());
    let micros = timestamp.parse::<i64>().ok().and_then(|seconds| seconds.checked_mul(1_000_000));
    let at = micros.and_then(Timestamp::from_micros).filter(|_| plain);
    let (true, Some(at)) = (fits(id) && fits(signature), at) else {
        return Err(Unverified::Malformed);
    };
    if now.since(at) > TOLERANCE {
        return Err(Unverified::TooOld);
    }
    if at.since(now) > TOLERANCE {
        return Err(Unverified::TooNew);
    }
    let given: Vec<Vec<u8>> = signature
        .split(' ')
        .filter_map(|one| one.strip_prefix("v1,"))
        .take(SIGNATURES_MAX)
        .filter_map(|tag| STANDARD.decode(tag).ok())
        .collect();
    let mut message = Vec::with_capacity(id.len() + timestamp.len() + body.len() + 2);
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        message.extend_from_slice(part);
    }
    let matches = secrets.iter().filter(|secret| !secret.is_empty()).any(|secret| {
        let key = Key::new(HMAC_SHA256, secret);
        given.iter().any(|tag| hmac::verify(&key, &message, tag).is_ok())
    });
    if matches { Ok(()) } else { Err(Unverified::NoMatch) }
}

fn content(key: &Key, (id, seconds): (&str, &str), body: &[u8]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    for part in [id.as_bytes(), b".", seconds.as_bytes(), b".", body] {
        context.update(part);
    }
    context.sign()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own libraries.
    const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const SECONDS: u64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn secret() -> Vec<u8> {
        STANDARD.decode(SECRET).unwrap()
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000).unwrap()
    }

    #[test]
    fn the_published_example_is_signed_alike() {
        assert_eq!(sign(&[secret().as_slice()], (ID, SECONDS), BODY), SIGNATURE);
    }

    #[test]
    fn the_published_signature_verifies() {
        let signed = Signed { id: ID, timestamp: "1614265330", signature: SIGNATURE };
        assert_eq!(verify(&[secret().as_slice()], signed, BODY, at(1_614_265_330)), Ok(()));
    }

    #[test]
    fn what_does_not_verify_says_why() {
        let (old, new) = (secret(), vec![7; 32]);
        let both = sign(&[new.as_slice(), &old], (ID, SECONDS), BODY);
        let good = Signed { id: ID, timestamp: "1614265330", signature: &both };
        let now = at(1_614_265_330);
        assert_eq!(verify(&[old.as_slice()], good, BODY, now), Ok(()), "either secret will do");
        assert_eq!(verify(&[new.as_slice()], good, BODY, now), Ok(()));
        for (signed, body, now, why) in [
            (good, &b"{}"[..], now, Unverified::NoMatch),
            (Signed { id: "other", ..good }, BODY, now, Unverified::NoMatch),
            (Signed { timestamp: "1614265331", ..good }, BODY, now, Unverified::NoMatch),
            (
                Signed { signature: "v2,AAAA v1a,AAAA v1,!!", ..good },
                BODY,
                now,
                Unverified::NoMatch,
            ),
            (Signed { signature: "", ..good }, BODY, now, Unverified::Malformed),
            (Signed { id: "", ..good }, BODY, now, Unverified::Malformed),
            (Signed { timestamp: "", ..good }, BODY, now, Unverified::Malformed),
            (Signed { timestamp: "+1614265330", ..good }, BODY, now, Unverified::Malformed),
            (
                Signed { timestamp: "99999999999999999999", ..good },
                BODY,
                now,
                Unverified::Malformed,
            ),
            (good, BODY, at(1_614_265_631), Unverified::TooOld),
            (good, BODY, at(1_614_265_029), Unverified::TooNew),
        ] {
            assert_eq!(verify(&[old.as_slice()], signed, body, now), Err(why), "{signed:?}");
        }
        assert_eq!(verify(&[old.as_slice()], good, BODY, at(1_614_265_630)), Ok(()));
        assert_eq!(verify(&[&[][..]], good, BODY, now), Err(Unverified::NoMatch));
        let long = "v1,".repeat(1_000);
        let flood = Signed { signature: &long, ..good };
        assert_eq!(verify(&[old.as_slice()], flood, BODY, now), Err(Unverified::Malformed));
    }
}
