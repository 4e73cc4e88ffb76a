//! What the routes share: ids in paths, JSON bodies, queries, and how values are written into answers.
//! Promises that a malformed id is not found, and that malformed JSON or a malformed query is named as such.
//! Does not check what values mean; the flows and the directory do.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path};
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION};
use hyper::http::request::Parts;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::api::problem::{Code, Fault, Problem};
use crate::clock::Timestamp;
use crate::event::Json;
use crate::event::id::{Id, Kind};

/// What the answer says to a text that cannot be an id.
const NO_ID: &str = "There is nothing of this id. An id is a prefix that says of what, such as cnv_, and 32 hex digits.";

/// The id in a path. Whatever is no id names nothing.
#[derive(Debug)]
pub(in crate::api) struct At<K: Kind>(pub Id<K>);

impl<K: Kind, S: Send + Sync> FromRequestParts<S> for At<K> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, state).await;
        let id = text.ok().and_then(|Path(text)| Id::parse(&text).ok());
        id.map(Self).ok_or_else(|| Problem::not_found(NO_ID))
    }
}

/// The two ids of a path like `/v1/tenants/{id}/keys/{keyId}`.
#[derive(Debug)]
pub(in crate::api) struct Within<K: Kind, L: Kind>(pub Id<K>, pub Id<L>);

impl<K: Kind, L: Kind, S: Send + Sync> FromRequestParts<S> for Within<K, L> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let texts = Path::<(String, String)>::from_request_parts(parts, state).await;
        let ids = texts.ok().and_then(|Path((outer, inner))| {
            Some(Self(Id::parse(&outer).ok()?, Id::parse(&inner).ok()?))
        });
        ids.ok_or_else(|| Problem::not_found(NO_ID))
    }
}

/// Randomness for keys and secrets. Clones draw from the same source; nobody holds it across an await.
#[derive(Clone, Debug)]
pub struct Seeds(Arc<Mutex<StdRng>>);

impl Seeds {
    /// From the server's own source.
    pub fn new(rng: StdRng) -> Self {
        Self(Arc::new(Mutex::new(rng)))
    }

    /// A source of one's own for one request.
    pub(in crate::api) fn fork(&self) -> StdRng {
        let mut source = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        StdRng::from_rng(&mut *source)
    }
}

/// A body of JSON as a value of one's own type; what is not of the form expected is named by its place.
pub(in crate::api) fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Problem> {
    if body.trim_ascii().is_empty() {
        return Err(Problem::new(Code::BadRequest, "The body is empty; it must be a JSON object."));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (pointer, detail) = (pointer(error.path()), told(error.inner()));
        if error.inner().is_data() && !pointer.is_empty() {
            let fault = Fault { pointer, detail };
            let problem = Problem::new(Code::BadRequest, "A field has the wrong form.");
            return problem.with_faults(vec![fault]);
        }
        Problem::new(Code::BadRequest, format!("The body is not as expected: {detail}."))
    })?;
    json.end().map_err(|error| {
        Problem::new(Code::BadRequest, format!("The body is not as expected: {error}."))
    })?;
    Ok(read)
}

/// A path as a JSON pointer (RFC 6901).
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let segments = path.iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(format!("/{index}")),
        Segment::Map { key } => Some(format!("/{}", key.replace('~', "~0").replace('/', "~1"))),
        Segment::Enum { .. } | Segment::Unknown => None,
    });
    segments.collect()
}

/// What is wrong, for somebody who sees no source: without the names of types, and with a place only where it is the text
/// that is no JSON.
fn told(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if !error.is_data() {
        return text;
    }
    let text = text.rsplit_once(" at line ").map_or(&*text, |(before, _)| before);
    let is_value = ["invalid type: ", "invalid value: ", "unknown variant "];
    match text.rsplit_once(", expected ") {
        Some((found, wanted))
            if wanted.starts_with("struct ")
                || is_value.iter().any(|one| found.starts_with(one)) =>
        {
            format!("must be {}", plain(wanted))
        }
        Some(_) | None => text.to_owned(),
    }
}

/// What was wanted, in the words of JSON.
fn plain(wanted: &str) -> String {
    let whole = |max: u64| format!("a whole number of 0 to {max}");
    match wanted {
        "u8" => whole(u8::MAX.into()),
        "u16" => whole(u16::MAX.into()),
        "u32" => whole(u32::MAX.into()),
        "u64" | "usize" => "a whole number of 0 or more".to_owned(),
        "i32" | "i64" => "a whole number".to_owned(),
        "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a map" => "an object".to_owned(),
        "a sequence" => "an array".to_owned(),
        other if other.starts_with("struct ") => "an object".to_owned(),
        other => other.to_owned(),
    }
}

/// The parameters of a query in their order, decoded.
pub(in crate::api) fn query(parts: &Parts) -> Result<Vec<(String, String)>, Problem> {
    let query = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
    query.map(|axum::extract::Query(pairs)| pairs).map_err(|error| {
        Problem::new(Code::BadRequest, "The query cannot be read.").with_cause(error.to_string())
    })
}

/// A number of a query, within bounds.
pub(in crate::api) fn number(
    name: &str,
    text: &str,
    bounds: std::ops::RangeInclusive<u64>,
) -> Result<u64, Problem> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = plain.then(|| text.parse().ok()).flatten();
    number.filter(|number| bounds.contains(number)).ok_or_else(|| {
        let (first, last) = (bounds.start(), bounds.end());
        let range = if *last == u64::MAX {
            format!("at least {first}")
        } else {
            format!("{first} to {last}")
        };
        Problem::new(Code::BadRequest, format!("The parameter {name} must be a number: {range}."))
    })
}

/// An answer of JSON.
pub(in crate::api) fn json(
    status: StatusCode,
    value: &impl Serialize,
) -> Result<Response, Problem> {
    let mut text = Vec::with_capacity(256);
    serde_json::to_writer(&mut text, value)
        .map_err(|error| Problem::internal(format!("an answer cannot be written: {error}")))?;
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The answer with the path of what it made.
pub(in crate::api) fn located(response: Response, path: &str) -> Response {
    with_header(response, LOCATION, path)
}

/// The answer with a header, if the value can stand in one.
pub(in crate::api) fn with_header(
    mut response: Response,
    name: HeaderName,
    value: &str,
) -> Response {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
    response
}

/// Writes a time as RFC 3339.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference to the field")]
pub(in crate::api) fn rfc3339<S: Serializer>(
    at: &Timestamp,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(at)
}

/// Writes a time that may be absent as RFC 3339.
#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
pub(in crate::api) fn rfc3339_option<S: Serializer>(
    at: &Option<Timestamp>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => serializer.collect_str(at),
        None => serializer.serialize_none(),
    }
}

/// Checked JSON as it stands.
pub(in crate::api) fn raw(json: Option<&Json>) -> Option<&RawValue> {
    json.and_then(|json| serde_json::from_str(json.as_str()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_query_are_plain_and_within_their_bounds() {
        assert_eq!(number("limit", "500", 1..=500).unwrap(), 500);
        assert_eq!(number("after", "18446744073709551615", 0..=u64::MAX).unwrap(), u64::MAX);
        for text in ["", "0", "501", "-1", "+5", "1.0", "1e2", " 5", "99999999999999999999"] {
            let refused = number("limit", text, 1..=500).unwrap_err();
            assert_eq!(refused.code(), Code::BadRequest, "{text}");
        }
    }

    #[test]
    fn what_is_not_as_expected_is_named_by_its_place_and_without_names_of_types() {
        #[derive(Debug, serde::Deserialize)]
        struct Inner {
            _count: u32,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Outer {
            _name: String,
            _inner: Option<Inner>,
            _list: Option<Vec<bool>>,
        }
        for (body, place, words) in [
            (
                r#"{"_name": "a", "_inner": {"_count": "x"}}"#,
                "/_inner/_count",
                "must be a whole number of 0 to 4294967295",
            ),
            (r#"{"_name": "a", "_inner": 5}"#, "/_inner", "must be an object"),
            (r#"{"_name": 5}"#, "/_name", "must be a string"),
            (
                r#"{"_name": "a", "_inner": {"_count": "a, expected b"}}"#,
                "/_inner/_count",
                "must be a whole number of 0",
            ),
            (r#"{"_name": "a", "_list": [true, 1]}"#, "/_list/1", "must be true or false"),
            (r#"{"_name": "a", "_list": 1}"#, "/_list", "must be an array"),
            ("{}", "", "missing field `_name`"),
            ("[]", "", "must be an object"),
            ("", "", ""),
            (" ", "", ""),
            (r#"{"_name": "a"} x"#, "", "trailing characters"),
            (r#"{"_name": "#, "", "EOF"),
        ] {
            let problem = parse::<Outer>(&Bytes::from(body)).unwrap_err();
            let told = format!("{problem:?}");
            assert_eq!(problem.code(), Code::BadRequest, "{body}");
            assert!(!told.contains("struct ") && told.contains(words), "{told}");
            assert_eq!(told.contains(&format!("pointer: {place:?}")), !place.is_empty(), "{told}");
        }
        assert!(parse::<Outer>(&Bytes::from(r#"{"_name": "a"}"#)).is_ok());
    }

    #[test]
    fn seeds_do_not_repeat() {
        use rand::Rng as _;
        let seeds = Seeds::new(StdRng::seed_from_u64(1));
        assert_ne!(seeds.fork().next_u64(), seeds.fork().next_u64());
    }
}
