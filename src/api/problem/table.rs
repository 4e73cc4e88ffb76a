//! Pure: the table of problem codes: name, status, title and meaning of each.
//! Promises that a code never changes its status, and that only what can succeed later is called retryable.
//! Does not know when a code is the answer; the doors do.

/// Every code that an answer can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Malformed JSON, an unknown enum value, a wrong type, a malformed query.
    BadRequest,
    /// No valid credential.
    Unauthorized,
    /// A valid credential that may not do this.
    Forbidden,
    /// Unknown, or another tenant's.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// The body did not arrive in time.
    RequestTimeout,
    /// The conversation takes no messages.
    ConversationClosed,
    /// The channel is paused or deleted.
    ChannelInactive,
    /// A named limit was exceeded.
    PayloadTooLarge,
    /// Not `application/json`.
    UnsupportedMediaType,
    /// The content breaks a rule; the fields say which.
    InvalidMessage,
    /// The same key was used with another payload.
    IdempotencyConflict,
    /// A quota is used up.
    RateLimited,
    /// A bug.
    Internal,
    /// A read needs Postgres and cannot have it now.
    DatabaseUnavailable,
    /// History cannot be completed now.
    ReplayUnavailable,
    /// The log did not acknowledge.
    LogUnavailable,
    /// The server starts or drains.
    Unavailable,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Which code.
    pub code: Code,
    /// How it is written.
    pub name: &'static str,
    /// Its HTTP status.
    pub status: u16,
    /// Whether the same request can succeed later.
    pub retryable: bool,
    /// A few words.
    pub title: &'static str,
    /// What it means and what to do, for its page.
    pub meaning: &'static str,
}

const fn row(
    code: Code,
    name: &'static str,
    status: u16,
    title: &'static str,
    meaning: &'static str,
) -> Row {
    let retryable = matches!(status, 408 | 429 | 500 | 503);
    Row { code, name, status, retryable, title, meaning }
}

/// The table of codes, each at the place of its own number.
pub const TABLE: [Row; 18] = [
    row(
        Code::BadRequest,
        "bad_request",
        400,
        "Malformed request",
        "The body is not valid JSON, a value has the wrong type or is not one of those allowed, or the query cannot be read. The detail says what and where. Sending the same again cannot help.",
    ),
    row(
        Code::Unauthorized,
        "unauthorized",
        401,
        "No valid credential",
        "Send `Authorization: Bearer` with a tenant's API key (fbk_…), a token, or the operator's token. A token may have expired, a key may have been revoked.",
    ),
    row(
        Code::Forbidden,
        "forbidden",
        403,
        "Not allowed",
        "The credential is valid but is not of the kind that may do this, or it is bound to another conversation.",
    ),
    row(
        Code::NotFound,
        "not_found",
        404,
        "Not found",
        "There is no such thing, or it belongs to another tenant; the two are not told apart.",
    ),
    row(
        Code::MethodNotAllowed,
        "method_not_allowed",
        405,
        "Method not allowed",
        "The path exists but not with this method. The Allow header lists the methods that it has.",
    ),
    row(
        Code::RequestTimeout,
        "request_timeout",
        408,
        "The body did not arrive in time",
        "The server waited for the rest of the body and then gave up. This request stored nothing. Send it again, with the same idempotency key.",
    ),
    row(
        Code::ConversationClosed,
        "conversation_closed",
        409,
        "The conversation is closed",
        "A closed conversation takes no messages. Reopen it first.",
    ),
    row(
        Code::ChannelInactive,
        "channel_inactive",
        409,
        "The channel is not active",
        "The channel is paused or deleted. Resume it first.",
    ),
    row(
        Code::PayloadTooLarge,
        "payload_too_large",
        413,
        "Too large",
        "The request exceeds a limit; the detail names it with its value.",
    ),
    row(
        Code::UnsupportedMediaType,
        "unsupported_media_type",
        415,
        "Unsupported media type",
        "Send JSON with `Content-Type: application/json`, in UTF-8.",
    ),
    row(
        Code::InvalidMessage,
        "invalid_message",
        422,
        "The content breaks a rule",
        "The JSON is well formed, but a field breaks a rule. Every entry of errors has a JSON pointer to the field and the rule.",
    ),
    row(
        Code::IdempotencyConflict,
        "idempotency_conflict",
        422,
        "The key was used with another payload",
        "A message with this idempotency key was stored before, and its payload was another one. Use a new key for a new message.",
    ),
    row(
        Code::RateLimited,
        "rate_limited",
        429,
        "Quota exceeded",
        "The tenant's quota is used up for the moment. The headers RateLimit and RateLimit-Policy tell the quota. Wait as long as Retry-After says.",
    ),
    row(
        Code::Internal,
        "internal",
        500,
        "Internal error",
        "A bug in the server; it is logged under the requestId. Sends may be repeated with the same idempotency key.",
    ),
    row(
        Code::DatabaseUnavailable,
        "database_unavailable",
        503,
        "The database is not available",
        "This read needs Postgres, which is overloaded, slow or down. Sends go on meanwhile. Try again later.",
    ),
    row(
        Code::ReplayUnavailable,
        "replay_unavailable",
        503,
        "History cannot be read now",
        "This part of the history lies in Postgres, which cannot be asked now. Nothing is lost: continue from the watermark later.",
    ),
    row(
        Code::LogUnavailable,
        "log_unavailable",
        503,
        "The log is not available",
        "The log did not acknowledge in time, or too much is waiting for it. Nothing is known to be stored. Send again with the same idempotency key: what was stored is answered as a duplicate.",
    ),
    row(
        Code::Unavailable,
        "unavailable",
        503,
        "The server is not available",
        "The server starts or is on its way out. Try again; another node may answer.",
    ),
];

impl Code {
    /// Its row of the table.
    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_stands_at_its_own_place_with_a_fitting_status() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.code as usize, place, "{}", row.name);
            assert!((400..600).contains(&row.status), "{}", row.name);
            assert!(row.meaning.ends_with('.'), "{}", row.name);
        }
    }
}
