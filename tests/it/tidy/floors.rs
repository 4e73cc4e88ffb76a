//! The floors of the house: which room may use which, and which dependency is named where.
//! Promises that an import goes down, never sideways and never up.
//! It does not look inside a room: the files of one room use each other freely.

use super::Finding;
use super::source::{is_word, lines_with, take_apart, without_tests};

/// Rooms by floor, as in docs/ARCHITECTURE.md. A room that is not listed is refused.
const FLOORS: [&[&str]; 7] = [
    &["event", "clock", "metrics"],
    &["admission", "readiness", "lifecycle"],
    &["log", "store"],
    &["journal", "directory"],
    &["ingest", "projection", "history", "live", "routing", "delivery", "operate"],
    &["api", "console"],
    &["main", "cli", "config", "telemetry", "sandbox", "bench", "load", "client", "receiver"],
];

const WORDS: usize = 0;
const WIRING: usize = 6;

/// A dependency and the rooms that may name it.
const GATES: [(&str, &[&str]); 3] =
    [("async_nats", &["log"]), ("sqlx", &["store"]), ("axum", &["api", "console"])];

/// Benchmarks compare with the bare log and the bare database, so they may name both.
const BENCHMARKS: &str = "src/bench";

/// The sandbox creates the database that the store then connects to.
const SQL_ROOMS: [&str; 2] = ["store", "sandbox"];

const SQL: [&str; 10] = [
    "SELECT",
    "INSERT INTO",
    "UPDATE ",
    "DELETE FROM",
    "TRUNCATE",
    "CREATE TABLE",
    "ALTER TABLE",
    "DROP TABLE",
    "CREATE DATABASE",
    "DROP DATABASE",
];

/// The first part of the path below `src/`; `lib.rs` is the map of the house and no room.
pub(super) fn room(path: &str) -> Option<&str> {
    let first = path.strip_prefix("src/")?.split('/').next()?;
    let room = first.strip_suffix(".rs").unwrap_or(first);
    (room != "lib").then_some(room)
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

pub(super) fn imports(path: &str, text: &str) -> Vec<Finding> {
    let Some(from) = room(path) else {
        return Vec::new();
    };
    let Some(high) = floor(from) else {
        let say =
            format!("room `{from}` has no floor: add it to docs/ARCHITECTURE.md and to FLOORS");
        return vec![Finding::new(path, 1, say)];
    };
    let code = take_apart(text).code;
    let mut findings = Vec::new();
    for (line, to) in named_rooms(&code) {
        if floor(to).is_some_and(|low| !may_use((from, high), (to, low))) {
            let say = format!(
                "`{from}` (floor {high}) uses `{to}`: imports point down; write a fact to the log or \
                 a table, or let the wiring pass a value in"
            );
            findings.push(Finding::new(path, line, say));
        }
    }
    let upward = if path.matches('/').count() == 1 { "super::" } else { "super::super::" };
    for line in lines_with(without_tests(&code), upward) {
        findings.push(Finding::new(path, line, format!("`{upward}` hides a room: say `crate::`")));
    }
    findings
}

/// Same floor: never, except that the words know `clock::Timestamp`, and that within the wiring everybody is
/// known but `main`, and `cli` only by `main`.
fn may_use((from, high): (&str, usize), (to, low): (&str, usize)) -> bool {
    let word = high == WORDS && to == "clock";
    let wiring = high == WIRING && to != "main" && (to != "cli" || from == "main");
    from == to || low < high || (low == high && (word || wiring))
}

/// Every `crate::name` (`forebay::name` in main.rs), groups such as `crate::{a, b::c}` taken apart.
fn named_rooms(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for root in ["crate::", "forebay::"] {
        for (at, _) in code.match_indices(root) {
            if is_word(code[..at].chars().next_back()) {
                continue;
            }
            let line = code[..at].matches('\n').count() + 1;
            let rest = &code[at + root.len()..];
            let names = rest.strip_prefix('{').map_or_else(|| vec![first_word(rest)], group);
            found.extend(names.into_iter().map(|name| (line, name)));
        }
    }
    found
}

/// The first word of every entry of a brace group whose opening brace was just read.
fn group(rest: &str) -> Vec<&str> {
    let (mut depth, mut start, mut names) = (1, 0, Vec::new());
    for (at, c) in rest.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && c == ',') {
            names.push(first_word(rest[start..at].trim_start()));
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    names
}

fn first_word(rest: &str) -> &str {
    let end = rest.find(|c| !is_word(Some(c))).unwrap_or(rest.len());
    &rest[..end]
}

pub(super) fn gates(path: &str, text: &str) -> Vec<Finding> {
    let code = take_apart(text).code;
    let here = room(path).unwrap_or("lib");
    let mut findings = Vec::new();
    for (name, rooms) in GATES {
        if rooms.contains(&here) || path.starts_with(BENCHMARKS) {
            continue;
        }
        let allowed = rooms.join(" and ");
        let say = format!("only {allowed} may name `{name}`: give that room a function for this");
        findings.extend(lines_with(&code, name).into_iter().map(|l| Finding::new(path, l, &*say)));
    }
    findings
}

pub(super) fn sql(path: &str, text: &str) -> Vec<Finding> {
    let free = SQL_ROOMS.iter().any(|allowed| room(path) == Some(allowed));
    if free || path.starts_with(BENCHMARKS) {
        return Vec::new();
    }
    let strings = take_apart(text).strings;
    let found = SQL.iter().flat_map(|word| lines_with(&strings, word));
    found.map(|line| Finding::new(path, line, "SQL outside store: move the query there")).collect()
}

#[cfg(test)]
mod examples {
    use super::{gates, imports, sql};

    #[test]
    fn an_import_up_sideways_or_of_the_wiring() {
        assert_eq!(imports("src/log.rs", "use crate::journal::Tail;").len(), 1, "up");
        assert_eq!(imports("src/history/page.rs", "\nuse crate::{clock, ingest::A};")[0].line, 2);
        assert_eq!(imports("src/api.rs", "fn f() { crate::config::read() }").len(), 1, "wiring");
        assert_eq!(imports("src/telemetry.rs", "use crate::cli;").len(), 1, "cli");
        assert_eq!(imports("src/attic.rs", "").len(), 1, "a room without a floor");
        assert_eq!(imports("src/api/a.rs", "use super::super::live;").len(), 1, "by super");
    }

    #[test]
    fn nothing_that_points_down_or_stays_in_the_room() {
        let text = "use crate::{clock::Clock, log, journal::{Tail, Writer}};\n// crate::api\n";
        assert_eq!(imports("src/ingest/draft.rs", text), []);
        assert_eq!(imports("src/main.rs", "use forebay::cli;"), []);
        assert_eq!(imports("src/cli/serve.rs", "use crate::{api, config, ingest};"), []);
        assert_eq!(
            imports("src/journal/ring.rs", "use super::Tail; use crate::journal::keys;"),
            []
        );
        assert_eq!(imports("src/event/id.rs", "use crate::clock::Timestamp;"), []);
        assert_eq!(imports("src/lib.rs", "pub mod anything;"), []);
    }

    #[test]
    fn a_dependency_outside_its_room() {
        assert_eq!(gates("src/api.rs", "let a = 1;\nuse sqlx::PgPool;")[0].line, 2);
        assert_eq!(gates("src/journal.rs", "async_nats::connect();").len(), 1);
        assert_eq!(gates("src/history.rs", "use axum::Json;").len(), 1);
        assert_eq!(gates("src/store/pool.rs", "use sqlx::PgPool; // axum"), []);
        assert_eq!(gates("src/bench/raw.rs", "use sqlx::PgPool; use async_nats as n;"), []);
    }

    #[test]
    fn a_query_outside_the_store() {
        assert_eq!(sql("src/history.rs", "let q = \"SELECT 1\";").len(), 1);
        assert_eq!(sql("src/history.rs", "// SELECT 1\nlet q = \"select a tenant\";"), []);
        assert_eq!(sql("src/store/page.rs", "let q = \"SELECT 1\";"), []);
    }
}
