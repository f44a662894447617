//! Exit codes and the errors that lead to them.

use std::process::ExitCode;

use serde_json::Value;

/// How the process ends. The numbers are part of the interface: see docs/commands/README.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// All went well; no worker failed.
    Ok = 0,
    /// A worker failed, a job did not complete, a file was not there.
    Failed = 1,
    /// The command line is wrong. clap uses the same number.
    Usage = 2,
    /// The broker cannot be reached or refuses us.
    Unreachable = 3,
    /// Nobody answered in time.
    TimedOut = 4,
    /// The inventory, a key or a folder is wrong.
    Configuration = 5,
    /// Ctrl-C.
    Interrupted = 130,
    /// SIGTERM.
    Terminated = 143,
}

impl Code {
    /// This code, or `other` where all went well so far.
    pub fn unless_ok(self, other: Self) -> Self {
        if self == Self::Ok { other } else { self }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// Why a command ended early: what to say, and the code.
#[derive(Debug)]
pub struct Failure {
    /// The code.
    pub code: Code,
    /// One or more sentences with the values and what to do.
    pub text: String,
    /// Where what to do begins in the text, and where the colon before it.
    hint: Option<(usize, usize)>,
    /// Standard error has it already.
    told: bool,
}

/// What programs read of a failure: with `--json` it stands on standard output, alone or beside what the command shows.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct FailureDocument<'a> {
    /// What is wrong.
    pub error: &'a str,
    /// What to do about it, where something is known to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<&'a str>,
    /// The exit code of the process.
    pub exit_code: u8,
}

impl Failure {
    /// A failure with its code.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), hint: None, told: false }
    }

    /// The same, and what to do about it, or more of it.
    pub fn hint(mut self, hint: impl AsRef<str>) -> Self {
        let end = self.text.len();
        self.text.push_str(": ");
        self.hint = self.hint.or(Some((end, self.text.len())));
        self.text.push_str(hint.as_ref());
        self
    }

    /// The same, where the text ends with what to do about it.
    pub fn advised(mut self, advice: Option<impl AsRef<str>>) -> Self {
        let advice = advice.as_ref().map(AsRef::as_ref);
        if let Some(error) = advice.and_then(|advice| self.text.strip_suffix(advice)) {
            self.hint = Some((error.trim_end_matches([' ', ':', ';']).len(), error.len()));
        }
        self
    }

    /// The same, and whom it is about.
    pub fn of(mut self, whom: impl std::fmt::Display) -> Self {
        let whom = format!("{whom}: ");
        self.text.insert_str(0, &whom);
        self.hint = self.hint.map(|(end, begin)| (end + whom.len(), begin + whom.len()));
        self
    }

    /// The same with another code.
    pub fn with_code(self, code: Code) -> Self {
        Self { code, ..self }
    }

    /// The same, of which people know already.
    pub fn told(self) -> Self {
        Self { told: true, ..self }
    }

    /// Whether people know of it already.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// The same for programs.
    pub fn document(&self) -> FailureDocument<'_> {
        let (error, hint) = match self.hint {
            Some((end, begin)) => (&self.text[..end], Some(&self.text[begin..])),
            None => (self.text.as_str(), None),
        };
        FailureDocument { error, hint, exit_code: self.code as u8 }
    }

    /// Puts that beside what a command shows.
    pub fn put_into(&self, shown: &mut Value) {
        if let (Value::Object(shown), Ok(Value::Object(failure))) = (shown, serde_json::to_value(self.document())) {
            shown.extend(failure);
        }
    }

    /// Something about the inventory, or a name that is no folder's.
    pub fn inventory(error: &norfab_inventory::InventoryError) -> Self {
        Self::configuration(error).advised(error.advice())
    }

    /// Something about the inventory, keys or folders.
    pub fn configuration(error: impl std::fmt::Display) -> Self {
        Self::new(Code::Configuration, error.to_string())
    }

    /// Something on the command line.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(Code::Usage, text)
    }

    /// Something that went wrong on the way.
    pub fn failed(error: impl std::fmt::Display) -> Self {
        Self::new(Code::Failed, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn people_read_a_hint_behind_a_colon_and_programs_by_itself() {
        let failure = Failure::failed("it is gone").hint("bring it back");
        assert_eq!(failure.text, "it is gone: bring it back");
        let mut shown = json!({"name": "x"});
        failure.put_into(&mut shown);
        assert_eq!(shown, json!({"name": "x", "error": "it is gone", "hint": "bring it back", "exit_code": 1}));
        let advised =
            Failure::failed("no such file; make it").advised(Some("make it")).hint("it is from x").of("worker w");
        assert_eq!(advised.text, "worker w: no such file; make it: it is from x");
        let FailureDocument { error, hint, .. } = advised.document();
        assert_eq!((error, hint), ("worker w: no such file", Some("make it: it is from x")));
        let without = serde_json::to_value(Failure::usage("a: b").document()).expect("a document");
        assert_eq!(without, json!({"error": "a: b", "exit_code": 2}));
    }
}
