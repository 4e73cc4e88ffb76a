//! Names in the environment that look like settings and are none: typing errors, mostly.
//! Promises to name only what begins with `FOREBAY_`, which is nobody else's.
//! Does not refuse: a setting of a newer version must not keep an older one from starting.

use super::table::TABLE;

/// Names that begin like a setting's and are read by other commands or by builds for tests.
const OTHERS: [&str; 4] =
    ["FOREBAY_TOKEN", "FOREBAY_BROKEN", "FOREBAY_FAIL_AT", "FOREBAY_TEST_HOLD"];

/// The unknown ones of the environment, in the order of the alphabet.
pub fn unknown_names() -> Vec<String> {
    unknown(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

fn unknown(names: impl Iterator<Item = String>) -> Vec<String> {
    let is_known = |name: &str| {
        let of_file = name.strip_suffix("_FILE");
        OTHERS.contains(&name)
            || TABLE.iter().any(|row| row.name == name || (row.secret && Some(row.name) == of_file))
    };
    let mut unknown: Vec<String> =
        names.filter(|name| name.starts_with("FOREBAY_") && !is_known(name)).collect();
    unknown.sort_unstable();
    unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_setting_and_is_none_is_named() {
        let named = |names: &[&str]| unknown(names.iter().map(|name| (*name).to_owned()));
        assert!(named(&["FOREBAY_LISTEN", "FOREBAY_ADMIN_TOKEN_FILE", "FOREBAY_TOKEN"]).is_empty());
        assert!(named(&["PATH", "NATS_URI", "forebay_listen"]).is_empty(), "somebody else's");
        assert_eq!(
            named(&["FOREBAY_NAMESPACES", "FOREBAY_LISTEN_FILE", "FOREBAY_BOGUS"]),
            ["FOREBAY_BOGUS", "FOREBAY_LISTEN_FILE", "FOREBAY_NAMESPACES"]
        );
    }
}
