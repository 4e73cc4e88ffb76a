use proptest::prelude::*;
use serde_json::Value;
use serde_json::value::RawValue;

use super::*;

const ROOM: usize = 1024 * 1024;

#[test]
fn what_is_stored_is_the_text_as_it_was_sent() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let objects = |depth: usize| format!("{}1{}", "{\"k\":".repeat(depth), "}".repeat(depth));
    for text in [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1e400",
        "1E-400",
        "1e+0000000000000000400",
        "0.1e00",
        "12345678901234567890123456789.000",
        &"9".repeat(400),
        r#""""#,
        r#""\"\\\/\b\f\n\r\t\u00e4\u0001""#,
        r#""\uD83D\ude00 😀 ￿""#,
        " [ ] ",
        "\t{\r\n}",
        r#"{ "a" : [ 1 , { "b" : "" } , [ [ ] ] ] , "a" : null }"#,
        &nested(32),
        &objects(32),
        &format!("[{}]", vec![nested(31); 50].join(",")),
    ] {
        let json = check(text, ROOM).unwrap_or_else(|reason| panic!("{text}: {reason}"));
        assert_eq!(json.as_str(), text);
    }
}

#[test]
fn every_bad_text_is_refused_for_its_reason() {
    use Reason::{LoneSurrogate, Malformed, NullCharacter, Number, TooDeep};
    let long = format!("[{}]", "9".repeat(401));
    let deep = format!("{}{}", "[".repeat(33), "]".repeat(33));
    let deep_objects = format!("{}1{}", "{\"k\":".repeat(33), "}".repeat(33));
    let cases: &[(&str, Reason)] = &[
        ("", Malformed { at: 0 }),
        ("  ", Malformed { at: 2 }),
        ("nul", Malformed { at: 3 }),
        ("nulll", Malformed { at: 4 }),
        ("True", Malformed { at: 0 }),
        ("NaN", Malformed { at: 0 }),
        ("-", Malformed { at: 1 }),
        ("-Infinity", Malformed { at: 1 }),
        ("+1", Malformed { at: 0 }),
        ("01", Malformed { at: 1 }),
        ("-01", Malformed { at: 2 }),
        (".5", Malformed { at: 0 }),
        ("1.", Malformed { at: 2 }),
        ("1.e5", Malformed { at: 2 }),
        ("1e", Malformed { at: 2 }),
        ("1e+", Malformed { at: 3 }),
        ("0x10", Malformed { at: 1 }),
        ("1 2", Malformed { at: 2 }),
        ("[1 2]", Malformed { at: 3 }),
        ("[1,]", Malformed { at: 3 }),
        ("[,1]", Malformed { at: 1 }),
        ("[1}", Malformed { at: 2 }),
        ("[", Malformed { at: 1 }),
        ("]", Malformed { at: 0 }),
        ("[[]", Malformed { at: 3 }),
        ("{\"a\":1]", Malformed { at: 6 }),
        ("{\"a\"}", Malformed { at: 4 }),
        ("{\"a\":}", Malformed { at: 5 }),
        ("{\"a\":1,}", Malformed { at: 7 }),
        ("{a:1}", Malformed { at: 1 }),
        ("{1:1}", Malformed { at: 1 }),
        ("'a'", Malformed { at: 0 }),
        ("\"a", Malformed { at: 2 }),
        ("\"a\\", Malformed { at: 3 }),
        ("\"a\nb\"", Malformed { at: 2 }),
        ("\"\0\"", Malformed { at: 1 }),
        ("\"\\x41\"", Malformed { at: 2 }),
        ("\"\\u12G4\"", Malformed { at: 5 }),
        ("\"\\u12\"", Malformed { at: 5 }),
        ("\u{feff}1", Malformed { at: 0 }),
        ("\u{a0}1", Malformed { at: 0 }),
        ("[1]// x", Malformed { at: 3 }),
        ("\"a\\u0000\"", NullCharacter { at: 2 }),
        ("{\"\\u0000\":1}", NullCharacter { at: 2 }),
        ("\"\\ud800\"", LoneSurrogate { at: 1 }),
        ("\"\\udbff\\\"", LoneSurrogate { at: 1 }),
        ("\"x\\uDC00\"", LoneSurrogate { at: 2 }),
        ("\"\\ud83d\\u0041\"", LoneSurrogate { at: 1 }),
        ("\"\\ud83d\\ud83d\"", LoneSurrogate { at: 1 }),
        ("{\"\\udfff\":1}", LoneSurrogate { at: 2 }),
        ("1e401", Number { at: 0 }),
        ("[0,1E-500]", Number { at: 3 }),
        ("1e99999999999999999999", Number { at: 0 }),
        (&long, Number { at: 1 }),
        (&deep, TooDeep { at: 32 }),
        (&deep_objects, TooDeep { at: 32 * 5 }),
    ];
    for (text, reason) in cases {
        assert_eq!(check(text, ROOM), Err(*reason), "{text}");
    }
}

#[test]
fn a_length_is_allowed_up_to_its_limit() {
    assert!(check("[10]", 4).is_ok());
    assert_eq!(check("[10]", 3), Err(Reason::TooLong { max: 3 }));
    assert_eq!(text("äb", 3), Ok(()));
    assert_eq!(text("äb", 2), Err(Reason::TooLong { max: 2 }));
}

#[test]
fn numbers_may_not_grow_beyond_the_limit_when_they_are_written_out() {
    let numbers = |count: usize| format!("[{}0]", "1e-400,".repeat(count));
    assert!(check(&numbers(40), 16_000).is_ok());
    assert_eq!(check(&numbers(41), 16_000), Err(Reason::Expansion { max: 16_000 }));
}

#[test]
fn a_plain_text_may_hold_everything_but_the_null_character() {
    assert_eq!(text("", 0), Ok(()));
    assert_eq!(text("\u{1}\n\u{7f}\u{ffff}", 9), Ok(()));
    assert_eq!(text("ab\0", 9), Err(Reason::NullCharacter { at: 2 }));
}

/// Whether a text is judged as `serde_json` judges it, where the two have the same rules.
fn judged_alike(text: &str) -> bool {
    match check(text, ROOM) {
        Err(Reason::Number { .. } | Reason::Expansion { .. }) => true,
        verdict => verdict.is_ok() == oracle_accepts(text),
    }
}

/// What `serde_json` has in common with `jsonb`, written once more in the simplest way.
fn oracle_accepts(text: &str) -> bool {
    let Ok(syntax) = serde_json::from_str::<&RawValue>(text) else {
        return false;
    };
    match serde_json::from_str::<Value>(syntax.get()) {
        Ok(value) => !holds_null_character(&value),
        // The one difference: a number that no double can hold is good enough for `numeric`.
        Err(error) => error.to_string().starts_with("number out of range"),
    }
}

fn holds_null_character(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(values) => values.iter().any(holds_null_character),
        Value::Object(pairs) => {
            pairs.iter().any(|(key, value)| key.contains('\0') || holds_null_character(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Texts that are nearly JSON: its tokens in any order.
fn tokens() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec![
        "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\"k\":", "\\", "\\u", "\\ud83d", "\\ude00",
        "\\n", "0000", "00e4", "null", "true", "1", "0", "-", "-0", "1.5", "e", "E+", ".", " ",
        "\n", "ä", "\u{1}", "/",
    ]);
    prop::collection::vec(token, 0..12).prop_map(|tokens| tokens.concat())
}

/// Strings of escapes, whole and broken.
fn escapes() -> impl Strategy<Value = String> {
    let escape = prop::sample::select(vec![
        "\\ud800", "\\uDBFF", "\\udc00", "\\uDFFF", "\\u0000", "\\u0001", "\\uE000", "\\ud7fF",
        "\\n", "\\\\", "\\\"", "u0000", "\\u", "\\u00", "x", "😀",
    ]);
    prop::collection::vec(escape, 0..6).prop_map(|escapes| format!("[\"{}\"]", escapes.concat()))
}

proptest! {
    #[test]
    fn generated_values_pass_unchanged(value in value(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        match check(&text, ROOM) {
            Ok(json) => prop_assert_eq!(json.as_str(), text),
            Err(reason) => {
                prop_assert!(matches!(reason, Reason::NullCharacter { .. }), "{}: {}", text, reason);
                prop_assert!(holds_null_character(&value));
            }
        }
    }

    #[test]
    fn token_soup_is_judged_as_serde_json_does(text in tokens()) {
        prop_assert!(judged_alike(&text), "{}", text);
    }

    #[test]
    fn a_soup_of_escapes_is_judged_as_serde_json_does(text in escapes()) {
        prop_assert!(judged_alike(&text), "{}", text);
    }

    #[test]
    fn a_damaged_value_is_judged_as_serde_json_does(value in value(), at in any::<prop::sample::Index>(), with in any::<char>(), cut in any::<bool>()) {
        let mut chars: Vec<char> = value.to_string().chars().collect();
        let place = at.index(chars.len());
        if cut { chars.truncate(place) } else { chars[place] = with }
        let text: String = chars.into_iter().collect();
        prop_assert!(judged_alike(&text), "{}", text);
    }

    #[test]
    fn any_text_is_judged_without_a_panic(text in any::<String>()) {
        prop_assert!(judged_alike(&text));
    }
}
