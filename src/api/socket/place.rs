//! Pure: where a client of server-sent events goes on.
//! Promises that what is no place is refused, and not taken for the end.
//! Does not know whether there is such a place; the session does.

use hyper::header::{HeaderMap, HeaderName};

use crate::api::problem::{Code, Problem};

/// The header in which an `EventSource` names the last id that it got.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The epoch and seq of the last event, if the client names one.
///
/// # Errors
/// `bad_request` when it is no id of an event.
pub(super) fn place(headers: &HeaderMap) -> Result<Option<(String, u64)>, Problem> {
    let id = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty());
    let place = id.map(|id| {
        id.to_str().ok().and_then(place_of).ok_or_else(|| {
            Problem::new(Code::BadRequest, "Last-Event-ID must be the id of an event: epoch:seq.")
        })
    });
    place.transpose()
}

/// The epoch and seq of an event's id.
fn place_of(text: &str) -> Option<(String, u64)> {
    let (epoch, seq) = text.rsplit_once(':')?;
    Some((epoch.to_owned(), seq.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_from_the_last_colon() {
        assert_eq!(place_of("ab12:7"), Some(("ab12".to_owned(), 7)));
        for text in ["", "7", "ab12:", "ab12:-1", "ab12:x"] {
            assert_eq!(place_of(text), None, "{text}");
        }
    }
}
