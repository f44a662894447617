//! Questions of tasks, asked on the terminal.

use std::io::{BufRead, IsTerminal, Write};

use norfab_protocol::Identity;
use norfab_protocol::body::InputRequest;
use serde_json::Value;

/// Asks a person. `None`: there is no terminal, or the input ended: the question is cancelled.
pub fn ask(worker: &Identity, question: &InputRequest) -> Option<Value> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        eprintln!(
            "worker {worker} asks '{}', and there is no terminal: the question is cancelled; give --answer JSON to answer it",
            question.question
        );
        return None;
    }
    let mut lines = stdin.lock().lines();
    ask_on(worker, question, &mut std::io::stderr(), || lines.next()?.ok())
}

fn ask_on(
    worker: &Identity,
    question: &InputRequest,
    out: &mut impl Write,
    mut line: impl FnMut() -> Option<String>,
) -> Option<Value> {
    if let Some(preview) = question.metadata.get("preview").and_then(Value::as_str) {
        // A terminal that is gone ends the reading below.
        writeln!(out, "{preview}").ok();
    }
    let yes_or_no = question.default.is_boolean();
    let hint = match &question.default {
        Value::Bool(true) => " [Y/n]".to_owned(),
        Value::Bool(false) => " [y/N]".to_owned(),
        Value::Null => String::new(),
        Value::String(text) => format!(" [{text}]"),
        other => format!(" [{other}]"),
    };
    let time = question.timeout.map(|seconds| format!(" ({seconds} s)")).unwrap_or_default();
    loop {
        write!(out, "{worker}: {}{hint}{time}: ", question.question).ok();
        out.flush().ok();
        let typed = line()?;
        let typed = typed.trim();
        if typed.is_empty() {
            return Some(question.default.clone());
        }
        if !yes_or_no {
            return Some(serde_json::from_str(typed).unwrap_or_else(|_| Value::String(typed.to_owned())));
        }
        match typed.to_lowercase().as_str() {
            "y" | "yes" | "true" => return Some(Value::Bool(true)),
            "n" | "no" | "false" => return Some(Value::Bool(false)),
            _ => {
                writeln!(out, "please answer y or n").ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(default: Value, lines: &[&str]) -> (Option<Value>, String) {
        let question = InputRequest {
            id: "1".into(),
            question: "go on?".into(),
            default,
            timeout: Some(20),
            metadata: json!({"preview": "- old\n+ new"}),
        };
        let mut out = Vec::new();
        let mut lines = lines.iter();
        let worker = Identity::parse("w1").expect("a name");
        let answer = ask_on(&worker, &question, &mut out, || lines.next().map(|line| (*line).to_owned()));
        (answer, String::from_utf8(out).expect("text"))
    }

    #[test]
    fn a_typing_mistake_is_asked_about_again_and_never_means_no() {
        let (answer, shown) = answer(json!(false), &["maybe", "y"]);
        assert_eq!(answer, Some(json!(true)));
        assert!(shown.contains("- old\n+ new") && shown.contains("please answer y or n"), "{shown}");
    }

    #[test]
    fn an_empty_line_takes_the_default_and_the_end_of_input_cancels() {
        assert_eq!(answer(json!("core"), &[""]).0, Some(json!("core")));
        assert_eq!(answer(json!(null), &["[1,2]"]).0, Some(json!([1, 2])));
        assert_eq!(answer(json!(null), &["ge-0/0/1"]).0, Some(json!("ge-0/0/1")));
        assert_eq!(answer(json!(true), &[]).0, None);
    }
}
