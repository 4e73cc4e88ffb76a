//! Rules about one file at a time: purity, size, header, name, waiting, reminders, words.
//! Promises to name the line and the way out.
//! It reads texts only; the walk over the repository is the caller's.

use std::collections::BTreeMap;
use std::path::Path;

use super::source::{lines_with, take_apart, without_tests};
use super::{Finding, is_rust};

const LINES_MAX: usize = 400;
const FILES_IN_A_FOLDER_MAX: usize = 10;

/// What a pure file never names: it takes time, randomness and facts as arguments and returns decisions.
const IMPURE: [&str; 16] = [
    "async",
    ".await",
    "tokio",
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime::now",
    "now_utc",
    "rand::rng",
    "tracing",
    "metrics::",
    "async_nats",
    "sqlx",
];

/// Files that must carry the header, so that nobody takes it off to pass.
const PURE: [&str; 2] = ["src/event/", "src/journal/sequencer"];

const EMPTY_NAMES: [&str; 15] = [
    "util", "utils", "helper", "helpers", "common", "manager", "managers", "service", "services",
    "handler", "handlers", "types", "core", "misc", "mod",
];

pub(super) fn purity(path: &str, text: &str) -> Vec<Finding> {
    let code = take_apart(text).code;
    let decides = !lines_with(without_tests(&code), "fn").is_empty();
    if !text.starts_with("//! Pure:") {
        let must = decides && PURE.iter().any(|start| path.starts_with(start)) && !is_tests(path);
        let say = "this file is pure by design: begin it with `//! Pure:` and keep effects out";
        return must.then(|| Finding::new(path, 1, say)).into_iter().collect();
    }
    let mut findings = Vec::new();
    for word in IMPURE {
        let say = format!("a pure file names `{word}`: take a value as an argument, or return it");
        findings.extend(lines_with(&code, word).into_iter().map(|l| Finding::new(path, l, &*say)));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let beside = folder.with_file_name("tests.rs").is_file();
    if decides && !beside && !text.contains("#[cfg(test)]") {
        let say = "a pure file without tests: add `#[cfg(test)] mod tests` here or beside it";
        findings.push(Finding::new(path, 1, say));
    }
    findings
}

pub(super) fn size(path: &str, text: &str) -> Vec<Finding> {
    let lines = without_tests(text).lines().count();
    let say = format!("{lines} lines, {LINES_MAX} at most: split by noun, or move tests beside it");
    let long = lines > LINES_MAX && !is_tests(path);
    long.then(|| Finding::new(path, LINES_MAX + 1, say)).into_iter().collect()
}

pub(super) fn header(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let short = lines.filter(|line| !line.trim().is_empty()).count() < 3;
    let exempt = is_tests(path) || ["src/lib.rs", "src/main.rs"].contains(&path);
    let say = "begin with three `//!` lines: what for, what it promises, what it does not do";
    (short && !exempt).then(|| Finding::new(path, 1, say)).into_iter().collect()
}

pub(super) fn name(path: &str, _: &str) -> Vec<Finding> {
    let parts = path.split('/').map(|part| part.strip_suffix(".rs").unwrap_or(part));
    let empty = parts.filter(|part| EMPTY_NAMES.contains(part));
    let say = |part| format!("`{part}` says nothing: name it after the thing it holds");
    empty.map(|part| Finding::new(path, 1, say(part))).collect()
}

pub(super) fn rooms(paths: &[String]) -> Vec<Finding> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    let mut findings = Vec::new();
    let is_ours = |path: &&String| path.starts_with("src/") || path.starts_with("chaos/");
    for path in paths.iter().filter(is_ours) {
        if path.matches('/').count() > 3 {
            let say = "too deep: src/<room>/<folder>/<file> is the limit; the room is two rooms";
            findings.push(Finding::new(path, 1, say));
        }
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        if is_rust(path) && !is_tests(path) {
            *folders.entry(folder).or_default() += 1;
        }
    }
    // `src` holds one front file for each room, `src/cli` one file for each command.
    folders.retain(|folder, _| !["src", "src/cli"].contains(folder));
    for (folder, count) in folders.into_iter().filter(|&(_, n)| n > FILES_IN_A_FOLDER_MAX) {
        let say = format!("{count} files, {FILES_IN_A_FOLDER_MAX} at most: the room is two rooms");
        findings.push(Finding::new(folder, 1, say));
    }
    findings
}

pub(super) fn sleeps(path: &str, text: &str) -> Vec<Finding> {
    let say = "a test sleeps: wait for a condition with a deadline, or call `step()`";
    let lines = lines_with(&take_apart(text).code, "sleep(");
    lines.into_iter().map(|line| Finding::new(path, line, say)).collect()
}

pub(super) fn reminders(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for word in [concat!("TO", "DO"), concat!("FIX", "ME")] {
            let bare = |(found, _): (usize, &str)| !line[found + word.len()..].starts_with("(#");
            if line.match_indices(word).any(bare) {
                let say = format!("a reminder nobody can look up: write {word}(#issue), or do it");
                findings.push(Finding::new(path, at + 1, say));
            }
        }
    }
    findings
}

/// Hosts of package registries and paths of somebody's machine. Joined here, so that this file passes its own rule.
const WORDS: [&str; 12] = [
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("registry.", "npmjs"),
    concat!("deb.", "debian.org"),
    concat!("archive.", "ubuntu.com"),
    concat!("proxy.", "golang.org"),
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
];

pub(super) fn words(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for word in WORDS.iter().filter(|word| line.contains(**word)) {
            let say = format!("`{word}` is true on one machine only: leave it to configuration");
            findings.push(Finding::new(path, at + 1, say));
        }
    }
    findings
}

fn is_tests(path: &str) -> bool {
    path.ends_with("/tests.rs")
}

#[cfg(test)]
mod examples {
    use super::{header, name, purity, reminders, rooms, size, sleeps, words};

    #[test]
    fn an_impure_or_untested_pure_file() {
        let tested = "#[cfg(test)]\nmod tests {}\n";
        let with = |body: &str| purity("src/a/b.rs", &format!("//! Pure: b.\n{body}\n{tested}"));
        for line in ["async fn f() {}", "use tokio::time;", "std::fs::read(p)", "x.await;"] {
            assert_eq!(with(line)[0].line, 2, "{line}");
        }
        for line in ["Instant::now()", "rand::rng()", "tracing::info!()", "metrics::counter!()"] {
            assert_eq!(with(line).len(), 1, "{line}");
        }
        assert_eq!(with("fn f(now: Instant) {} // async tokio"), []);
        assert_eq!(purity("src/a/b.rs", "//! Pure: b.\nfn f() {}").len(), 1, "no tests");
        assert_eq!(purity("src/a/b.rs", "//! Pure: b.\nconst A: u8 = 1;"), []);
        assert_eq!(
            purity("src/event/id.rs", "//! Ids.\nfn f() {}").len(),
            1,
            "the header taken off"
        );
    }

    #[test]
    fn a_long_file_and_one_without_a_header() {
        let long = "let a = 1;\n".repeat(401);
        assert_eq!(size("src/a.rs", &long).len(), 1);
        assert_eq!(size("src/a.rs", &format!("\n#[cfg(test)]\nmod tests {{\n{long}}}")), []);
        assert_eq!(header("src/a.rs", "//! One.\n//!\n//! Three.\n").len(), 1);
        assert_eq!(header("src/a.rs", "//! One.\n//! Two.\n//! Three.\n"), []);
    }

    #[test]
    fn an_empty_name_a_deep_folder_and_a_crowded_room() {
        assert_eq!(name("src/api/helpers.rs", "").len(), 1);
        assert_eq!(name("src/core/a.rs", "").len(), 1);
        assert_eq!(name("src/log/append.rs", ""), []);
        assert_eq!(rooms(&["src/a/b/c/d.rs".to_owned()]).len(), 1);
        let crowd = |folder: &str| (0..11).map(|n| format!("{folder}/f{n}.rs")).collect::<Vec<_>>();
        assert_eq!(rooms(&crowd("src/store"))[0].path, "src/store");
        assert_eq!(rooms(&crowd("src/cli")), []);
        assert_eq!(rooms(&crowd("chaos"))[0].path, "chaos");
    }

    #[test]
    fn a_sleep_a_bare_reminder_and_a_private_word() {
        assert_eq!(sleeps("tests/it/a.rs", "\ntokio::time::sleep(d).await;")[0].line, 2);
        assert_eq!(sleeps("tests/it/a.rs", "// sleep(d)\nlet no_sleep = \"sleep(1)\";"), []);
        let reminder = concat!("// TO", "DO");
        assert_eq!(reminders("src/a.rs", &format!("{reminder}: later")).len(), 1);
        assert_eq!(reminders("src/a.rs", &format!("{reminder}(#7): later")), []);
        assert_eq!(words("README.md", concat!("a\nhttps://pypi", ".org/x"))[0].line, 2);
        assert_eq!(words("README.md", "a workshop/at home"), []);
    }
}
