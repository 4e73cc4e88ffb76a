//! Rules about docs/ARCHITECTURE.md: its length, its invariants, its map of the rooms.
//! Promises that an invariant on the page has a test of the name given there, or says which room brings it.
//! It does not judge whether the test is a good one.

use super::source::take_apart;
use super::{File, Finding, floors};

pub(super) const PAGE: &str = "docs/ARCHITECTURE.md";
const LINES_MAX: usize = 200;
const INVARIANTS: usize = 10;

pub(super) fn length(page: &str) -> Vec<Finding> {
    let lines = page.lines().count();
    let say = format!("{lines} lines, {LINES_MAX} at most: this page is the map, not the land");
    (lines > LINES_MAX).then(|| Finding::new(PAGE, LINES_MAX + 1, say)).into_iter().collect()
}

/// A row has a number, a sentence and the name of a test, or `arrives with …` in its place.
pub(super) fn invariants(page: &str, code: &[&File]) -> Vec<Finding> {
    let texts: Vec<String> = code.iter().map(|file| take_apart(&file.text).code).collect();
    let exists = |test: &str| texts.iter().any(|text| text.contains(&format!("fn {test}(")));
    let (mut findings, mut next) = (Vec::new(), 1);
    for (at, line) in page.lines().enumerate() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", number, _, proof, ""] = cells[..] else {
            continue;
        };
        if number.parse() != Ok(next) {
            continue;
        }
        next += 1;
        let name = proof.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        if !name.map_or_else(|| proof.starts_with("arrives with "), exists) {
            let say = format!("invariant {number}: no test {proof}: write it, or correct the name");
            findings.push(Finding::new(PAGE, at + 1, say));
        }
    }
    if next <= INVARIANTS {
        let say = format!("invariant {next} of {INVARIANTS} has no row `| n | sentence | test |`");
        findings.push(Finding::new(PAGE, 1, say));
    }
    findings
}

/// Every room that exists has a row in the map.
pub(super) fn codemap(page: &str, code: &[&File]) -> Vec<Finding> {
    let mut rooms: Vec<&str> = code.iter().filter_map(|file| floors::room(&file.path)).collect();
    rooms.sort_unstable();
    rooms.dedup();
    rooms.retain(|room| !page.contains(&format!("| `{room}` |")));
    let say = |room| format!("room `{room}` is missing in the codemap: add a row");
    rooms.into_iter().map(|room| Finding::new(PAGE, 1, say(room))).collect()
}

#[cfg(test)]
mod examples {
    use super::{File, codemap, invariants, length};

    #[test]
    fn a_long_page_and_a_room_that_is_not_on_the_map() {
        assert_eq!(length(&"line\n".repeat(201)).len(), 1);
        let file = File { path: "src/log/append.rs".to_owned(), text: String::new() };
        assert_eq!(codemap("| `store` | queries |", &[&file]).len(), 1);
        assert_eq!(codemap("| `log` | streams |", &[&file]), []);
    }

    #[test]
    fn an_invariant_whose_test_does_not_exist() {
        let rows = |third: &str| {
            let row = |n| format!("| {n} | so | {} |\n", if n == 3 { third } else { "`held`" });
            (1..=10).map(row).collect::<String>()
        };
        let text = "fn held() {}\n// fn said() {}\n".to_owned();
        let file = File { path: "tests/it/a.rs".to_owned(), text };
        assert_eq!(invariants(&rows("`held`"), &[&file]), []);
        assert_eq!(invariants(&rows("arrives with live"), &[&file]), []);
        assert_eq!(invariants(&rows("`said`"), &[&file])[0].line, 3);
        assert_eq!(invariants(&rows("soon"), &[&file]).len(), 1);
        assert_eq!(invariants("| 1 | so | `held` |", &[&file]).len(), 1, "a row taken away");
    }
}
