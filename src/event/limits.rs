//! Every limit on what a client may send and a record may hold, each with its reason.
//! Promises that whatever keeps these limits fits one record, one JetStream message and one Postgres row.
//! Does not check anything itself; the checks name these constants.

use std::time::Duration;

/// Longest `text` of a message, in bytes of UTF-8. A page of a long document; more belongs in storage with a link.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// Longest `data` of a message, in bytes of JSON as sent.
pub const DATA_BYTES_MAX: usize = 128 * 1024;

/// Longest `metadata` of a message or conversation, in bytes of JSON as sent.
pub const METADATA_BYTES_MAX: usize = 16 * 1024;

/// Deepest nesting of `data` and `metadata`. Postgres' own parser is recursive; 32 is far below its stack.
pub const JSON_DEPTH_MAX: usize = 32;

/// Longest number in `data` and `metadata`, in characters.
///
/// With [`JSON_EXPONENT_MAX`] it keeps every number within what `jsonb` can hold
/// (131 072 digits before and 16 383 after the decimal point: PostgreSQL manual, 8.1.2).
pub const JSON_NUMBER_CHARS_MAX: usize = 400;

/// Largest absolute exponent of a number in `data` and `metadata`; also the range of an IEEE double, rounded up.
pub const JSON_EXPONENT_MAX: u32 = 400;

/// Longest client id or idempotency key, in characters of `A-Z a-z 0-9 . _ : ~ -`.
pub const CLIENT_ID_CHARS_MAX: usize = 128;

/// Longest `sender.id`, `sender.role`, `type`, and names of tenants and channels, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 256;

/// Most channels that a conversation can be linked to.
pub const CONVERSATION_CHANNELS_MAX: usize = 100;

/// Most messages of one batch send; with the byte limit it keeps a batch within one record.
pub const BATCH_MESSAGES_MAX: usize = 500;

/// Largest body of a single send, in bytes: text, data and metadata with room for JSON escapes.
pub const SEND_BODY_BYTES_MAX: usize = 512 * 1024;

/// Largest body of a batch send, in bytes.
pub const BATCH_BODY_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Largest body of every other request, in bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// Most events of one record. The group commit's bound: at 300 bytes each, 300 KB of one fsync.
pub const RECORD_EVENTS_MAX: usize = 1_000;

/// Largest record, in bytes. A quarter of the `max_payload` that the shipped NATS configuration sets (2 MB).
pub const RECORD_BYTES_MAX: usize = 512 * 1024;

/// What an event costs in a record beside its content, in bytes; an upper bound that a test checks.
pub const EVENT_OVERHEAD_BYTES: usize = 256;

/// What an outcome costs in a record beside the answer it keeps, in bytes; an upper bound that a test checks.
pub const OUTCOME_OVERHEAD_BYTES: usize = 256;

/// What a record costs beside its events, in bytes; an upper bound that a test checks.
pub const RECORD_OVERHEAD_BYTES: usize = 128;

/// Longest `traceparent` that is carried along, in bytes (W3C Trace Context: 55 in version 00).
pub const TRACE_BYTES_MAX: usize = 64;

/// Most messages of one page.
pub const PAGE_MESSAGES_MAX: usize = 500;

/// Messages of a page when the reader names no limit.
pub const PAGE_MESSAGES_DEFAULT: usize = 50;

/// Largest page, in bytes of content; a page ends early rather than exceed it by more than one message.
pub const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How far ahead of the server's clock a client's own time may lie before it is ignored.
pub const CLOCK_SKEW_MAX: Duration = Duration::from_mins(1);

const _: () = assert!(
    TEXT_BYTES_MAX
        + DATA_BYTES_MAX
        + 2 * METADATA_BYTES_MAX
        + 4 * NAME_BYTES_MAX
        + CLIENT_ID_CHARS_MAX
        + EVENT_OVERHEAD_BYTES
        + RECORD_OVERHEAD_BYTES
        <= RECORD_BYTES_MAX,
    "the largest event fits one record"
);
const _: () = assert!(
    PAGE_BYTES_MAX >= TEXT_BYTES_MAX + DATA_BYTES_MAX + METADATA_BYTES_MAX,
    "a page holds at least one of the largest messages"
);
const _: () = assert!(PAGE_MESSAGES_DEFAULT <= PAGE_MESSAGES_MAX, "the default is allowed");
const _: () = assert!(BATCH_MESSAGES_MAX <= RECORD_EVENTS_MAX, "a batch fits one record");
