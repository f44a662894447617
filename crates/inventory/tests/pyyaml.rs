//! Our answers against those of PyYAML 6.0.3, the version that NorFab 0.25.0 pins.
//!
//! Each line of `fixtures/pyyaml.jsonl` is a text with what `yaml.safe_load` made of it: `json` is its value as
//! orjson writes it (keys as text), `error` the exception, `no_json` a value that JSON cannot carry.

use std::path::Path;

use norfab_inventory::{Source, yaml};
use serde_json::{Value, json};

/// Texts on which we differ on purpose, with our answer (`None`: refused) and the reason.
fn deliberate_differences() -> Vec<(&'static str, Option<Value>, &'static str)> {
    let large = "JSON readers keep 64 bits: text, with a warning";
    let lenient = "harmless leniency of the parser";
    vec![
        ("a: 18446744073709551616", Some(json!({"a": "18446744073709551616"})), large),
        ("a: -9223372036854775809", Some(json!({"a": "-9223372036854775809"})), large),
        ("a: 123456789012345678901234567890", Some(json!({"a": "123456789012345678901234567890"})), large),
        ("a: 2001-12-14 \t 21:59:43", Some(json!({"a": "2001-12-14T21:59:43"})), lenient),
        ("a: b\t\n", Some(json!({"a": "b"})), lenient),
        ("a: b\t# c\n", Some(json!({"a": "b"})), lenient),
        ("\ta: 1\n", Some(json!({"a": 1})), lenient),
        (": a\n", Some(json!({"null": "a"})), lenient),
        ("a: &x 1\nb: &x 2\n", Some(json!({"a": 1, "b": 2})), lenient),
        ("a: !!int '0o7'", None, "an accident of Python's int(), nobody writes it"),
        ("a: !!int ' 12'\n", None, "an accident of Python's int(), nobody writes it"),
        ("a: !!omap [x: 1]", None, "a list of tuples in Python, no type of JSON"),
        ("a: !!pairs [x: 1]", None, "a list of tuples in Python, no type of JSON"),
        ("a: 'x'#c\n", None, "a comment needs a blank before it, also in YAML 1.1"),
        ("a: [1,\n2]\n", None, "items must be indented deeper than their key, also in YAML 1.1"),
    ]
}

fn ours(text: &str) -> Result<Value, String> {
    yaml::parse(text, &Source::of_file(Path::new("t.yaml")))
        .map(|document| document.value)
        .map_err(|error| error.to_string())
}

#[test]
fn every_recorded_text_gets_the_answer_of_pyyaml() {
    let differences = deliberate_differences();
    let mut wrong = Vec::new();
    let mut used = 0;
    let rows = include_str!("fixtures/pyyaml.jsonl").lines();
    for row in rows {
        let row: Value = serde_json::from_str(row).unwrap();
        let text = row["text"].as_str().unwrap();
        let answer = ours(text);
        if let Some((_, expected, reason)) = differences.iter().find(|(of, ..)| *of == text) {
            used += 1;
            if answer.as_ref().ok() != expected.as_ref() {
                wrong.push(format!("{text:?}: we meant {expected:?} ({reason}), got {answer:?}"));
            }
            continue;
        }
        match (row.get("json"), &answer) {
            (Some(expected), Ok(value)) if expected == value => {}
            (None, Err(_)) => {}
            _ => wrong.push(format!("{row}\n   ours {answer:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(used, differences.len(), "each deliberate difference is in the recordings");
}
