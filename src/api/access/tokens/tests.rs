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
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
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
