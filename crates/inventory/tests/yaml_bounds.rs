//! The YAML loader never panics and never takes more than its bounds, whatever the text.

use std::path::Path;

use norfab_inventory::{InventoryError, Source, YamlProblem, yaml};
use proptest::prelude::*;
use serde_json::Value;

fn parse(text: &str) -> Result<yaml::Document, InventoryError> {
    yaml::parse(text, &Source::of_file(Path::new("t.yaml")))
}

fn problem(text: &str) -> YamlProblem {
    match parse(text) {
        Err(InventoryError::Yaml { problem, .. }) => problem,
        other => panic!("expected an error of YAML, got {other:?}"),
    }
}

/// Levels and number of values.
fn measure(value: &Value) -> (usize, usize) {
    let parts: Vec<&Value> = match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(entries) => entries.values().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return (0, 1),
    };
    let measured = parts.into_iter().map(measure);
    measured.fold((1, 1), |(depth, count), (of_part, in_part)| (depth.max(of_part + 1), count + in_part))
}

#[test]
fn nested_aliases_are_refused_before_they_expand() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let below = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", [below.as_str(); 10].join(", "));
    }
    assert!(matches!(problem(&bomb), YamlProblem::TooLarge { .. }));
}

#[test]
fn nested_merges_are_refused_before_they_expand() {
    let mut bomb = "a0: &a0 {x0: [y, y, y, y, y, y, y, y, y, y]}\n".to_owned();
    for level in 1..14 {
        let below = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level}\n");
        for key in 0..10 {
            bomb += &format!("  k{key}: {{<<: [{below}], z: 1}}\n");
        }
    }
    assert!(matches!(problem(&bomb), YamlProblem::TooLarge { .. }));
}

#[test]
fn a_long_text_cannot_be_repeated_without_end() {
    let text = "x".repeat(1024 * 1024);
    let aliases = "- *a\n".repeat(1000);
    assert!(matches!(problem(&format!("- &a {text}\n{aliases}")), YamlProblem::TooLarge { .. }));
}

#[test]
fn nested_anchors_cannot_keep_a_copy_at_each_level_without_end() {
    let open: String = (0..90).map(|level| format!("[&a{level} ")).collect();
    let text = format!("{open}[{}]{}", "x".repeat(2 * 1024 * 1024), "]".repeat(90));
    assert!(matches!(problem(&text), YamlProblem::TooLarge { .. }));
}

#[test]
fn deep_nesting_is_refused_quickly_in_every_style() {
    let deep = 100_000;
    for piece in ["[", "{a: ", "- ", "? ", "[a: ", "{? ", "x: [", "- - ", "{", "&a [", "!!seq ["] {
        assert!(parse(&piece.repeat(deep)).is_err(), "{piece}");
    }
    let levels = |count: usize| format!("{}{}", "[".repeat(count), "]".repeat(count));
    assert!(parse(&levels(yaml::DEPTH_MAX)).is_ok());
    assert!(matches!(problem(&levels(yaml::DEPTH_MAX + 2)), YamlProblem::TooDeep { .. }));
}

#[test]
fn a_text_that_is_too_long_is_refused_before_it_is_read() {
    let text = " ".repeat(yaml::TEXT_BYTES_MAX + 1);
    assert!(matches!(problem(&text), YamlProblem::TextTooLong { .. }));
}

/// Pieces that YAML gives a meaning, and some that it does not.
fn yaml_like() -> impl Strategy<Value = String> {
    let pieces = [
        "a: ",
        "b: ",
        "- ",
        "\n",
        "\n  ",
        "\n    ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        ": ",
        "? ",
        "#c",
        " # c",
        "'x'",
        "\"y\\n\"",
        "|\n  ",
        ">+\n",
        "&a ",
        "*a",
        "!!str ",
        "!!int ",
        "!t ",
        "---\n",
        "...\n",
        "%YAML 1.1\n",
        "0x",
        "1:30",
        "<<: ",
        "*a ",
        "\t",
        "é",
        "yes",
        "2001-12-14 ",
        "12:30:45",
        "+1",
        "1_0.5",
        "\r\n",
        "-",
        ":",
        "=",
        "\u{2028}",
        "\u{feff}",
        "\u{0}",
        "'",
        "\"",
        "!",
        "&",
        "*",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn text_of_yaml_pieces_gives_a_bounded_value_or_an_error_with_a_line(text in yaml_like()) {
        match parse(&text) {
            Ok(document) => {
                let (depth, count) = measure(&document.value);
                prop_assert!(depth <= yaml::DEPTH_MAX + 1 && count <= yaml::NODES_MAX);
                prop_assert!(document.warnings.len() <= yaml::WARNINGS_MAX + 1);
            }
            Err(InventoryError::Yaml { location, .. }) => prop_assert!(location.line.is_some()),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn any_text_is_loaded_or_refused(text in "(?s).{0,200}") {
        drop(parse(&text));
    }

    #[test]
    fn what_was_written_as_json_is_read_back(text in "[ -~é\u{1F600}]{0,40}", number in any::<i64>(), flag in any::<bool>()) {
        let value = serde_json::json!({"text": text, "number": number, "list": [flag, null, {"x": [text]}]});
        prop_assert_eq!(parse(&value.to_string()).unwrap().value, value);
    }
}
