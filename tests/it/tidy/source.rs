//! Takes a Rust source apart into code and string contents, so that a word in a comment is not taken for code.
//! Promises that both halves have the lines and columns of the original.
//! It is a scanner, not a parser: it knows comments, strings, characters and lifetimes.

/// Code without comments and string contents, and string contents without anything else.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) code: String,
    pub(super) strings: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Text,
    Comment,
}

pub(super) fn take_apart(text: &str) -> Parts {
    let chars: Vec<char> = text.chars().collect();
    let mut parts = Parts::default();
    let mut at = 0;
    while at < chars.len() {
        let (kind, length) = token(&chars[at..]);
        let end = chars.len().min(at + length.max(1));
        for &c in &chars[at..end] {
            let blank = if c == '\n' { c } else { ' ' };
            parts.code.push(if kind == Kind::Code { c } else { blank });
            parts.strings.push(if kind == Kind::Text { c } else { blank });
        }
        at = end;
    }
    parts
}

fn token(rest: &[char]) -> (Kind, usize) {
    match rest {
        ['/', '/', ..] => {
            (Kind::Comment, rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()))
        }
        ['/', '*', ..] => (Kind::Comment, block_comment(rest)),
        ['"', ..] => (Kind::Text, quoted(rest, '"')),
        ['r', '"' | '#', ..] => raw(rest).map_or((Kind::Code, 1), |length| (Kind::Text, length)),
        ['\'', '\\', ..] => (Kind::Comment, quoted(rest, '\'')),
        ['\'', _, '\'', ..] => (Kind::Comment, 3),
        _ => (Kind::Code, 1),
    }
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The length of a raw string at the start, or `None` for an identifier such as `r#type`.
fn raw(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|&&c| c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let body = 2 + hashes;
    let ends = |at: &usize| {
        rest[*at] == '"' && rest[at + 1..].iter().take_while(|&&c| c == '#').count() >= hashes
    };
    Some((body..rest.len()).find(ends).map_or(rest.len(), |at| at + 1 + hashes))
}

/// The part before the module of tests that stands at the end of a file.
pub(super) fn without_tests(text: &str) -> &str {
    let module = |after: &str| {
        let line = after.lines().skip(2).find(|line| !line.starts_with("#["));
        line.is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
    };
    let mut starts = text.match_indices("\n#[cfg(test)]\n").map(|(at, _)| at);
    starts.find(|&at| module(&text[at..])).map_or(text, |at| &text[..=at])
}

/// Lines (from 1) on which `word` stands, not as a part of a longer word.
pub(super) fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let joins = |c: Option<char>, edge: Option<char>| is_word(c) && is_word(edge);
    let stands = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            !joins(line[..at].chars().next_back(), word.chars().next())
                && !joins(line[at + word.len()..].chars().next(), word.chars().next_back())
        })
    };
    code.lines().enumerate().filter(|(_, line)| stands(line)).map(|(at, _)| at + 1).collect()
}

pub(super) fn is_word(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_alphanumeric() || c == '_')
}

#[test]
fn comments_and_strings_are_not_code() {
    let text = "let a = \"one // two\"; // three\n/* four /* five */ six */ let b = r#\"se\"ven\"#;\nlet 'x' = '\"'; fn f<'a>() {}";
    let parts = take_apart(text);
    for word in ["one", "two", "three", "four", "five", "six", "ven"] {
        assert!(!parts.code.contains(word), "{word} in {}", parts.code);
    }
    assert!(parts.code.contains("let b ="));
    assert!(parts.code.contains("fn f<'a>() {}"));
    assert!(parts.strings.contains("one // two") && parts.strings.contains("se\"ven"));
    assert_eq!(parts.code.lines().count(), text.lines().count());
}

#[test]
fn a_word_is_found_only_where_it_stands_alone() {
    assert_eq!(lines_with("sqlx_like\nuse sqlx::query;\nmy.sqlx", "sqlx"), [2, 3]);
    assert_eq!(lines_with("x.await?", ".await"), [1]);
    assert_eq!(without_tests("a\n#[cfg(test)]\n#[expect(x)]\nmod tests {\n}\n"), "a\n");
    assert_eq!(without_tests("a\n#[cfg(test)]\nmod tests;\nb"), "a\n#[cfg(test)]\nmod tests;\nb");
}
