//! Templates against Jinja2 3.1.6 and `.env` files against python-dotenv 1.2.4, the versions that NorFab 0.25.0 pins.
//!
//! `fixtures/jinja.jsonl`: templates rendered with `env` = {A: aval, P: 55} and default settings.
//! `fixtures/dotenv.jsonl`: texts loaded over {HOST: old}, with and without override.

use std::path::Path;

use norfab_inventory::{Environment, dotenv, template};
use serde_json::Value;

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|row| serde_json::from_str(row).unwrap()).collect()
}

fn environment(value: &Value) -> Environment {
    serde_json::from_value(value.clone()).unwrap()
}

/// Templates on which the engines differ, with our answer (`None`: an error) and the reason.
const DIFFERENT: [(&str, Option<&str>, &str); 5] = [
    ("{{ '%s' % env.A }}", None, "an operator on text that the engine lacks; write ~ or format"),
    ("{{ env.items() }}", Some("[('A', 'aval'), ('P', '55')]"), "the name of a type of Python"),
    ("{{ env.A.zfill(6) }}", None, "a method that the engine lacks"),
    ("{{ env.A.rjust(6) }}", None, "a method that the engine lacks"),
    ("a\r\nb\r\n", Some("a\r\nb"), "line breaks stay as they are; YAML makes the same of them"),
];

#[test]
fn every_recorded_template_renders_as_in_jinja2() {
    let env = Environment::from([("A".into(), "aval".into()), ("P".into(), "55".into())]);
    let mut wrong = Vec::new();
    for row in rows(include_str!("fixtures/jinja.jsonl")) {
        let text = row["template"].as_str().unwrap();
        let ours = template::render(text, Path::new("t.yaml"), &env).map(|rendered| rendered.text);
        if let Some((_, expected, _)) = DIFFERENT.iter().find(|(of, ..)| *of == text) {
            if ours.as_ref().ok().map(String::as_str) != *expected {
                wrong.push(format!("{text:?}: meant {expected:?}, got {ours:?}"));
            }
            continue;
        }
        match (row["text"].as_str(), &ours) {
            (Some(expected), Ok(text)) if expected == text => {}
            (None, Err(_)) => {}
            _ => wrong.push(format!("{row} ours {ours:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_template_error_names_file_and_line() {
    for (text, expected) in [
        ("a: 1\nb: {{ env.X\n", "inventory.yaml:2: template: "),
        ("a: 1\n\nb: {{ env.X | nothing_like_it }}\n", "inventory.yaml:3: template: "),
        ("{% include 'other.yaml' %}", "inventory.yaml:1: template: "),
    ] {
        let error = template::render(text, Path::new("inventory.yaml"), &Environment::new()).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

#[test]
fn every_recorded_dotenv_text_gives_the_variables_of_python_dotenv() {
    let env = Environment::from([("HOST".into(), "old".into())]);
    let mut wrong = Vec::new();
    for row in rows(include_str!("fixtures/dotenv.jsonl")) {
        let text = row["text"].as_str().unwrap();
        for (answer, env_override) in [("override", true), ("keep", false)] {
            let (ours, _) = dotenv::merged(text, Path::new(".env"), &env, env_override);
            if ours != environment(&row[answer]) {
                wrong.push(format!("{text:?} {answer}: {} ours {ours:?}", row[answer]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_line_that_is_no_assignment_is_named() {
    let (env, warnings) =
        dotenv::merged("A=1\n\nnot an assignment\nB='x' y\nC=3", Path::new(".env"), &Environment::new(), true);
    assert_eq!(env, Environment::from([("A".into(), "1".into()), ("C".into(), "3".into())]));
    let shown: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [".env:3: not an assignment like NAME=value, skipped", ".env:4: not an assignment like NAME=value, skipped",]
    );
}
