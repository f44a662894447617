//! Lines of JSON on standard input and output, as `python/lines.py`.

use std::io::{self, BufRead, Write};

use serde_json::{Value, json};

use crate::Failure;

/// Writes one line.
pub fn say(line: &Value) {
    let mut output = io::stdout().lock();
    let written = writeln!(output, "{line}").and_then(|()| output.flush());
    written.expect("the test reads what its peer says");
}

/// Returns once the test says stop or is gone.
pub fn wait_for_stop() {
    while let Some(request) = next() {
        if request["call"] == "stop" {
            return;
        }
    }
}

/// Answers calls, in order, until the test says stop or is gone.
pub fn serve(mut call: impl FnMut(&str, &Value) -> Result<Value, Failure>) {
    while let Some(request) = next() {
        match request["call"].as_str() {
            Some("stop") => return,
            name => say(&match call(name.unwrap_or_default(), &request) {
                Ok(result) => json!({"result": result}),
                Err(failure) => json!({"error": failure.to_string()}),
            }),
        }
    }
}

fn next() -> Option<Value> {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line).expect("standard input is text");
    (read > 0).then(|| serde_json::from_str(&line).expect("a test writes JSON"))
}
