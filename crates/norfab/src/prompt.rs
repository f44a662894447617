//! Questions of tasks, asked on the terminal.

use std::io::{BufRead, IsTerminal};
use std::sync::mpsc::{SyncSender, sync_channel};

use norfab_protocol::Identity;
use norfab_protocol::body::InputRequest;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::printer::printable;

/// Whether there is somebody to ask: questions are seen, and answers come from a keyboard.
pub fn is_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Lines that a person types. Reading blocks and nobody can end it, so a thread does it, one line for each request: what is
/// typed after a question was given up answers the next one, or nothing.
pub struct TypedLines {
    requests: SyncSender<()>,
    lines: mpsc::Receiver<Option<String>>,
    requested: bool,
}

impl TypedLines {
    /// The lines of standard input. `None`: it is no terminal, or questions would not be seen: there is nobody to ask.
    pub fn of_terminal() -> Option<Self> {
        if !is_terminal() {
            return None;
        }
        let (requests, requested) = sync_channel(1);
        let (sender, lines) = mpsc::channel(1);
        let read = move || {
            while requested.recv().is_ok() {
                let mut line = String::new();
                let read = std::io::stdin().lock().read_line(&mut line);
                let line = matches!(read, Ok(1..)).then_some(line);
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("terminal".to_owned()).spawn(read).ok()?;
        Some(Self { requests, lines, requested: false })
    }

    /// The next line. `None`: the input has ended. May be dropped and called again.
    pub async fn next(&mut self) -> Option<String> {
        if !self.requested {
            // The thread waits for it; where it is gone the next line says so.
            self.requests.try_send(()).ok();
            self.requested = true;
        }
        let line = self.lines.recv().await;
        self.requested = false;
        line.flatten()
    }
}

/// A question of a worker that is open.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Who asks.
    pub worker: Identity,
    /// What.
    pub question: InputRequest,
}

impl Asked {
    /// What helps to answer: lines that stand above the question.
    pub fn preview(&self) -> Vec<String> {
        let metadata = &self.question.metadata;
        let mut lines = Vec::new();
        if let Some(preview) = metadata["preview"].as_str() {
            lines.extend(preview.lines().map(|line| printable(line).into_owned()));
        }
        if let Some(choices) = metadata["choices"].as_array() {
            lines.extend(choices.iter().map(|choice| format!("  - {}", shown(choice))));
        }
        lines
    }

    /// The question with its default and how long the worker waits.
    pub fn prompt(&self) -> String {
        let hint = match &self.question.default {
            Value::Bool(true) => " [Y/n]".to_owned(),
            Value::Bool(false) => " [y/N]".to_owned(),
            Value::Null => String::new(),
            other => format!(" [{}]", shown(other)),
        };
        let time = self.question.timeout.map(|seconds| format!(" ({seconds} s)")).unwrap_or_default();
        format!("{}: {}{hint}{time}: ", self.worker, printable(&self.question.question))
    }

    /// What an answer that was given beforehand answers. `None`: nothing, as a yes or no is asked for.
    pub fn given(&self, answer: &Value) -> Option<Value> {
        match (&self.question.default, answer) {
            (Value::Bool(_), Value::Bool(_)) => Some(answer.clone()),
            (Value::Bool(_), Value::String(text)) if !text.trim().is_empty() => self.answer(text).ok(),
            (Value::Bool(_), _) => None,
            _ => Some(answer.clone()),
        }
    }

    /// Says that an answer that was given beforehand is none.
    pub fn not_answered_by(&self, answer: &Value) -> String {
        format!(
            "worker {} asks '{}' for yes or no, and --answer {} is neither: --answer true says yes, --answer false no",
            self.worker,
            printable(&self.question.question),
            printable(&answer.to_string())
        )
    }

    /// What a typed line answers. Errors: what to type instead. A typing mistake never means no.
    pub fn answer(&self, typed: &str) -> Result<Value, &'static str> {
        let typed = typed.trim();
        if typed.is_empty() {
            return Ok(self.question.default.clone());
        }
        if !self.question.default.is_boolean() {
            return Ok(serde_json::from_str(typed).unwrap_or_else(|_| Value::String(typed.to_owned())));
        }
        match typed.to_lowercase().as_str() {
            "y" | "yes" | "true" => Ok(Value::Bool(true)),
            "n" | "no" | "false" => Ok(Value::Bool(false)),
            _ => Err("please answer y or n"),
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text).into_owned(),
        other => printable(&other.to_string()).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(default: Value) -> Asked {
        Asked {
            worker: Identity::parse("w1").expect("a name"),
            question: InputRequest {
                id: "1".into(),
                question: "go on?".into(),
                default,
                timeout: Some(20),
                metadata: json!({"preview": "- old\n+ new", "choices": ["a", 2]}),
            },
        }
    }

    #[test]
    fn a_question_shows_its_default_its_time_and_what_helps() {
        assert_eq!(asked(json!(false)).prompt(), "w1: go on? [y/N] (20 s): ");
        assert_eq!(asked(json!("core")).prompt(), "w1: go on? [core] (20 s): ");
        assert_eq!(asked(json!(null)).prompt(), "w1: go on? (20 s): ");
        assert_eq!(asked(json!(null)).preview(), ["- old", "+ new", "  - a", "  - 2"]);
    }

    #[test]
    fn a_typing_mistake_never_means_no() {
        assert_eq!(asked(json!(false)).answer("maybe\n"), Err("please answer y or n"));
        assert_eq!(asked(json!(false)).answer(" Yes\n"), Ok(json!(true)));
        assert_eq!(asked(json!(true)).answer("n\n"), Ok(json!(false)));
    }

    #[test]
    fn an_answer_that_was_given_beforehand_is_a_yes_or_no_where_one_is_asked_for() {
        let asked_for_one = asked(json!(true));
        for (given, taken) in [
            (json!(false), Some(json!(false))),
            (json!("yes"), Some(json!(true))),
            (json!("N"), Some(json!(false))),
            (json!("maybe"), None),
            (json!(""), None),
            (json!(7), None),
            (json!(null), None),
        ] {
            assert_eq!(asked_for_one.given(&given), taken, "{given}");
        }
        assert_eq!(asked(json!("core")).given(&json!(7)), Some(json!(7)));
    }

    #[test]
    fn an_empty_line_takes_the_default_and_others_are_json_or_text() {
        assert_eq!(asked(json!("core")).answer("\n"), Ok(json!("core")));
        assert_eq!(asked(json!(null)).answer("[1,2]\n"), Ok(json!([1, 2])));
        assert_eq!(asked(json!(null)).answer("ge-0/0/1\n"), Ok(json!("ge-0/0/1")));
    }
}
