//! Tidy: the shape of the repository, checked like any other behaviour.
//! Promises that every rule is a function over texts, and that each is tested with an example it must refuse.
//! It leaves to rustfmt, clippy and a reader what they judge better.

mod source;

mod floors;

mod files;

mod docs;

use std::fmt;
use std::path::Path;

/// One broken rule at one place.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    /// What is wrong and what to do about it.
    say: String,
}

impl Finding {
    fn new(path: &str, line: usize, say: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, say: say.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path, self.line, self.say)
    }
}

/// A text file of the repository; the path is relative to its root, with `/`.
#[derive(Debug)]
struct File {
    path: String,
    text: String,
}

/// What is built, fetched or kept by a running server, and never committed.
const NOT_OURS: [&str; 3] = ["target", ".git", ".forebay"];

fn repository() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    gather(root, root, &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(files.iter().any(|file| file.path == "src/lib.rs"), "the sources were not found");
    files
}

fn gather(root: &Path, folder: &Path, files: &mut Vec<File>) {
    for entry in std::fs::read_dir(folder).expect("the repository is readable") {
        let path = entry.expect("a folder entry is readable").path();
        let relative = path.strip_prefix(root).expect("the walk starts at the root");
        let relative = relative.to_string_lossy().replace('\\', "/");
        if NOT_OURS.contains(&relative.as_str()) || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            gather(root, &path, files);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            files.push(File { path: relative, text });
        }
    }
}

/// Runs `rule` over every file that `concerns` picks, and fails with everything it found.
fn hold(concerns: fn(&str) -> bool, rule: fn(&str, &str) -> Vec<Finding>) {
    let files = repository();
    let chosen = files.iter().filter(|file| concerns(&file.path));
    refuse(&chosen.flat_map(|file| rule(&file.path, &file.text)).collect::<Vec<_>>());
}

fn refuse(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} untidy:\n{}\n", lines.len(), lines.join("\n"));
}

fn sources(path: &str) -> bool {
    path.starts_with("src/") && is_rust(path)
}

fn tests(path: &str) -> bool {
    (path.starts_with("tests/") || path.starts_with("chaos/")) && is_rust(path)
}

fn chaos(path: &str) -> bool {
    path.starts_with("chaos/") && is_rust(path)
}

fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|end| end == "rs")
}

#[test]
fn imports_point_down_the_floors() {
    hold(sources, floors::imports);
}

#[test]
fn a_dependency_is_named_only_in_its_room() {
    hold(sources, floors::gates);
}

#[test]
fn sql_stays_in_the_store() {
    hold(sources, floors::sql);
}

#[test]
fn pure_files_are_pure_and_tested() {
    hold(|path| sources(path) || chaos(path), files::purity);
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    hold(|path| sources(path) || chaos(path), files::size);
    hold(|path| sources(path) || chaos(path), files::header);
}

#[test]
fn files_are_named_after_the_domain() {
    hold(|path| sources(path) || tests(path), files::name);
}

#[test]
fn folders_are_shallow_and_rooms_are_small() {
    let paths: Vec<String> = repository().into_iter().map(|file| file.path).collect();
    refuse(&files::rooms(&paths));
}

#[test]
fn tests_wait_for_conditions_not_for_time() {
    hold(tests, files::sleeps);
}

#[test]
fn every_reminder_names_its_issue() {
    hold(|path| sources(path) || tests(path), files::reminders);
}

#[test]
fn no_file_names_a_registry_host_or_a_private_path() {
    // Cargo.lock names the registry of every package: that is its format.
    hold(|path| path != "Cargo.lock", files::words);
}

#[test]
fn the_architecture_page_is_short_and_its_invariants_have_tests() {
    let files = repository();
    let page = files.iter().find(|file| file.path == docs::PAGE).expect("docs/ARCHITECTURE.md");
    let code: Vec<&File> = files.iter().filter(|f| sources(&f.path) || tests(&f.path)).collect();
    refuse(&docs::length(&page.text));
    refuse(&docs::invariants(&page.text, &code));
    refuse(&docs::codemap(&page.text, &code));
}
