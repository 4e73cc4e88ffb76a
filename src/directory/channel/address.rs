//! Pure: where a channel's deliveries go and which headers they may carry.
//! Promises that a URL that passes is read alike by every client, and that no header of ours can be replaced.
//! Does not resolve names or judge networks; that is done at each attempt, on the address that is connected to.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::{BTreeMap, BTreeSet};

use crate::directory::check::Faults;

/// Longest URL of a channel, in bytes; what servers and proxies commonly take.
pub(super) const URL_BYTES_MAX: usize = 2_048;

/// Most headers of a channel.
pub(super) const HEADERS_MAX: usize = 20;

/// Longest name of a header, in bytes.
pub(super) const HEADER_NAME_BYTES_MAX: usize = 64;

/// Longest value of a header, in bytes. With all headers at their longest a channel still fits its entry of 64 KiB.
pub(super) const HEADER_VALUE_BYTES_MAX: usize = 1_024;

/// Longest host name and longest label, in bytes (RFC 1035, section 2.3.4).
const HOST_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// Headers that belong to the connection, the message or the delivery itself.
const RESERVED: [&str; 16] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "expect",
    "host",
    "keep-alive",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
];

/// Beginnings of header names that are ours or of the connection.
const RESERVED_PREFIXES: [&str; 3] = ["webhook-", "forebay-", "proxy-"];

/// Whether deliveries can be sent to this URL.
///
/// Stricter than the URL standard where clients differ: ASCII only, no credentials, no fragment, no backslash, and a
/// host whose last label is a number must be an IPv4 address in its usual form.
pub(super) fn check_url(url: &str) -> Result<(), String> {
    if url.len() > URL_BYTES_MAX {
        return Err(format!("must have at most {URL_BYTES_MAX} bytes"));
    }
    let strange = |b: u8| !b.is_ascii_graphic() || b"\"<>\\^`{|}".contains(&b);
    if url.bytes().any(strange) {
        return Err("must be plain ASCII without spaces; write other characters as %XX and \
                    international names as xn--"
            .to_owned());
    }
    if url.is_empty() {
        return Err("is required".to_owned());
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err("must begin with https:// or http://".to_owned());
    };
    if !["http", "https"].contains(&scheme.to_ascii_lowercase().as_str()) {
        return Err("must begin with https:// or http://".to_owned());
    }
    if rest.contains('#') {
        return Err("must not have a fragment".to_owned());
    }
    if !escapes_are_whole(rest) {
        return Err("must have two hexadecimal digits after each %".to_owned());
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    check_authority(&rest[..end])
}

fn check_authority(authority: &str) -> Result<(), String> {
    if authority.contains('@') {
        return Err("must not contain credentials; use a header".to_owned());
    }
    let (host_fits, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']').unwrap_or((rest, "?"));
        (host.parse::<Ipv6Addr>().is_ok(), port)
    } else {
        let colon = authority.find(':').unwrap_or(authority.len());
        let (host, port) = authority.split_at(colon);
        (is_host(host), port)
    };
    if !host_fits {
        return Err("must have a valid host".to_owned());
    }
    if !(port.is_empty() || is_port(port)) {
        return Err("must have a port from 1 to 65535, or none".to_owned());
    }
    Ok(())
}

fn is_host(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x");
    if numeric {
        return host.parse::<Ipv4Addr>().is_ok();
    }
    host.len() <= HOST_BYTES_MAX && host.split('.').all(is_label)
}

fn is_label(label: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
    let dashed = label.starts_with('-') || label.ends_with('-');
    (1..=LABEL_BYTES_MAX).contains(&label.len()) && !dashed && label.bytes().all(allowed)
}

fn is_port(text: &str) -> bool {
    let digits = text.strip_prefix(':').unwrap_or_default();
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    plain && digits.parse::<u16>().is_ok_and(|port| port > 0)
}

fn escapes_are_whole(text: &str) -> bool {
    let mut escapes = text.split('%');
    escapes.next();
    escapes.all(|after| {
        let digits = after.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// Notes what is wrong with a channel's own headers.
pub(super) fn check_headers(headers: &BTreeMap<String, String>, faults: &mut Faults) {
    if headers.len() > HEADERS_MAX {
        faults.note("/headers", format!("must have at most {HEADERS_MAX} entries"));
        return;
    }
    let mut seen = BTreeSet::new();
    for (name, value) in headers {
        let pointer = || format!("/headers/{}", name.replace('~', "~0").replace('/', "~1"));
        let lower = name.to_ascii_lowercase();
        faults.note_if(pointer(), check_header_name(&lower));
        faults.note_if(pointer(), check_header_value(value));
        if !seen.insert(lower) {
            faults.note(pointer(), "must not be given twice in different spellings");
        }
    }
}

fn check_header_name(lower: &str) -> Result<(), String> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let fits = (1..=HEADER_NAME_BYTES_MAX).contains(&lower.len());
    if !fits || !lower.bytes().all(token) {
        return Err(format!(
            "must be a header name of 1 to {HEADER_NAME_BYTES_MAX} characters (RFC 9110, section 5.1)"
        ));
    }
    let ours = RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix));
    if ours || RESERVED.contains(&lower) {
        return Err("is set by the delivery itself and cannot be replaced".to_owned());
    }
    Ok(())
}

fn check_header_value(value: &str) -> Result<(), String> {
    let visible = |b: u8| b.is_ascii_graphic() || b == b' ' || b == b'\t';
    let padded = value.trim() != value;
    if value.len() > HEADER_VALUE_BYTES_MAX || padded || !value.bytes().all(visible) {
        return Err(format!(
            "must be at most {HEADER_VALUE_BYTES_MAX} visible ASCII characters, spaces only inside"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_every_client_reads_alike_pass() {
        let long = format!("https://example.com/{}", "a".repeat(URL_BYTES_MAX - 20));
        for url in [
            "https://example.com",
            "http://localhost:8080/hook",
            "HTTPS://Example.COM/a/b?c=d&e=%20f",
            "https://xn--bcher-kva.example/",
            "https://my_host.internal:1/",
            "http://127.0.0.1:9/x",
            "http://[::1]:65535/x",
            "http://[2001:db8::1]",
            "https://example.com?only=query",
            "https://a.b/:@x",
            &long,
        ] {
            assert_eq!(check_url(url), Ok(()), "{url}");
        }
    }

    #[test]
    fn other_urls_are_refused() {
        let long = format!("https://example.com/{}", "a".repeat(URL_BYTES_MAX - 19));
        let label = format!("https://{}.com/", "a".repeat(64));
        let host = format!("https://{}com/", "a.".repeat(126));
        for url in [
            "",
            "example.com",
            "ftp://example.com/",
            "file:///etc/passwd",
            "//example.com",
            "https:/example.com",
            "https://",
            "https:///path",
            "https://?x",
            "https://:80/",
            "https://user@example.com/",
            "https://user:secret@example.com/",
            "https://@example.com/",
            "https://example.com/#part",
            "https://example.com:0/",
            "https://example.com:65536/",
            "https://example.com:/",
            "https://example.com:8x/",
            "https://example.com:+8/",
            "https://exa mple.com/",
            "https://example.com/a\nb",
            "https://example.com\\@evil.example/",
            "https://bücher.example/",
            "https://example..com/",
            "https://example.com./",
            "https://-a.com/",
            "https://a-.com/",
            "https://exa%6dple.com/",
            "https://example.com/%zz",
            "https://example.com/%2",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://127.1/",
            "http://127.0.0.01/",
            "http://1.2.3.256/",
            "http://[::1/",
            "http://[::1]x/",
            "http://[fe80::1%25eth0]/",
            "http://[127.0.0.1]/",
            &long,
            &label,
            &host,
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
    }

    fn pointers(headers: &[(&str, &str)]) -> Vec<String> {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut faults = Faults::default();
        check_headers(&headers.collect(), &mut faults);
        let invalid = faults.or(()).err();
        invalid.map_or_else(Vec::new, |invalid| {
            invalid.faults.into_iter().map(|fault| fault.pointer).collect()
        })
    }

    #[test]
    fn headers_of_the_tenant_pass_and_others_are_named() {
        let long = "v".repeat(HEADER_VALUE_BYTES_MAX);
        let good =
            [("Authorization", "Bearer a b\tc"), ("X-Empty", ""), ("x~y", "1"), ("Z", &long)];
        assert_eq!(pointers(&good), Vec::<String>::new());
        let longer = "v".repeat(HEADER_VALUE_BYTES_MAX + 1);
        let bad = [
            ("Webhook-Id", "x"),
            ("forebay-attempt", "x"),
            ("Proxy-Authorization", "x"),
            ("HOST", "x"),
            ("Content-Length", "1"),
            ("transfer-encoding", "chunked"),
            ("", "x"),
            ("a b", "x"),
            ("a:b", "x"),
            ("ä", "x"),
            ("a/b", "x"),
            ("crlf", "a\r\nb: c"),
            ("nul", "\0"),
            ("utf8", "ü"),
            ("padded", " x"),
            ("long", &longer),
        ];
        for header in bad {
            assert_eq!(pointers(&[header]).len(), 1, "{header:?}");
        }
        assert_eq!(pointers(&[("a/b", "x")]), ["/headers/a~1b"]);
        assert_eq!(pointers(&[("X-A", "1"), ("x-a", "2")]), ["/headers/x-a"]);
        let many: Vec<String> = (0..=HEADERS_MAX).map(|n| format!("x-{n}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (&**name, "v")).collect();
        assert_eq!(pointers(&many), ["/headers"]);
    }
}
