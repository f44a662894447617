//! Words as they stand on a shell's command line.

use crate::args::Shell;

/// Characters that mean nothing to a shell. Others are quoted.
const PLAIN: &str = "-_./:=,@%+";

/// A word as it was typed and as it is meant.
#[derive(Debug, PartialEq, Eq)]
pub struct Quoting {
    /// What is meant.
    pub text: String,
    /// What was typed, where what is added must be quoted like it.
    typed: Option<String>,
    /// The quotation mark that is open at its end.
    open: Option<char>,
}

impl Quoting {
    /// Reads a word. Only bash gives words as they were typed; the other shells quote by themselves what comes back.
    pub fn of(shell: Shell, typed: &str) -> Self {
        if shell != Shell::Bash {
            return Self { text: typed.to_owned(), typed: None, open: None };
        }
        let (mut text, mut open) = (String::new(), None);
        let mut characters = typed.chars();
        while let Some(character) = characters.next() {
            match (open, character) {
                (None, '\\') => text.extend(characters.next()),
                (None, '\'' | '"') => open = Some(character),
                (Some(mark), character) if mark == character => open = None,
                (Some('"'), '\\') => match characters.next() {
                    Some(escaped @ ('"' | '\\' | '$' | '`')) => text.push(escaped),
                    other => {
                        text.push('\\');
                        text.extend(other);
                    }
                },
                (_, character) => text.push(character),
            }
        }
        Self { text, typed: Some(typed.to_owned()), open }
    }

    /// The word with more behind it, as the shell wants it.
    pub fn with(&self, rest: &str) -> String {
        let Some(typed) = &self.typed else { return format!("{}{rest}", self.text) };
        // Bash keeps a quotation mark with which a word begins, and wants the word without it.
        let typed = match self.open {
            Some(mark) => typed.strip_prefix(mark).unwrap_or(typed),
            None => typed,
        };
        let mut quoted = typed.to_owned();
        for character in rest.chars() {
            if (self.open, character) == (Some('\''), '\'') {
                // Nothing is escaped in such a quotation: it ends, and another one begins. What follows must not become a command.
                quoted.push_str("'\\''");
                continue;
            }
            let escape = match self.open {
                Some('\'') => false,
                Some(_) => matches!(character, '"' | '\\' | '$' | '`'),
                None => character.is_ascii() && !character.is_ascii_alphanumeric() && !PLAIN.contains(character),
            };
            if escape {
                quoted.push('\\');
            }
            quoted.push(character);
        }
        quoted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_bash_does_and_go_on_as_they_began() {
        for (typed, text, whole) in [
            ("nf://d/", "nf://d/", "nf://d/a\\ \\$b"),
            ("nf://my\\ d/", "nf://my d/", "nf://my\\ d/a\\ \\$b"),
            ("\"nf://my d/", "nf://my d/", "nf://my d/a \\$b"),
            ("'nf://my d/", "nf://my d/", "nf://my d/a $b"),
            ("nf://\"my d\"/", "nf://my d/", "nf://\"my d\"/a\\ \\$b"),
        ] {
            let quoting = Quoting::of(Shell::Bash, typed);
            assert_eq!((quoting.text.as_str(), quoting.with("a $b").as_str()), (text, whole));
        }
        // A name of a worker that ends a quotation would be a command.
        let hostile = "q'$(touch pwned)'r";
        for (typed, whole) in [
            ("'nf://", r"nf://q'\''$(touch pwned)'\''r"),
            ("\"nf://", r"nf://q'\$(touch pwned)'r"),
            ("nf://", r"nf://q\'\$\(touch\ pwned\)\'r"),
        ] {
            assert_eq!(Quoting::of(Shell::Bash, typed).with(hostile), whole);
        }
        assert_eq!(Quoting::of(Shell::Zsh, "a\\").with(" b"), "a\\ b");
    }
}
