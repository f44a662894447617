//! What the words before the one that is completed say.

use clap::{Arg, Command};

use crate::args::OF_A_FABRIC;

/// Where on the command line a word stands.
pub struct Typed<'a> {
    /// The innermost command.
    pub command: &'a Command,
    /// The names that lead to it.
    pub path: Vec<&'a str>,
    /// Words before it that are no options.
    pub words: Vec<&'a str>,
    /// The option whose value it is.
    pub awaits: Option<&'a Arg>,
    /// Whether it is no option, whatever it begins with.
    pub only_values: bool,
    /// The options that say which fabric is meant, as they were typed.
    pub fabric: Vec<String>,
}

impl<'a> Typed<'a> {
    /// Reads words behind the program's name.
    pub fn read(command: &'a Command, words: &'a [String]) -> Self {
        let mut typed =
            Self { command, path: Vec::new(), words: Vec::new(), awaits: None, only_values: false, fabric: Vec::new() };
        for word in words {
            if let Some(option) = typed.awaits.take() {
                typed.note(option, word);
            } else if typed.only_values || !word.starts_with('-') || word == "-" {
                typed.word(word);
            } else if word == "--" {
                typed.only_values = true;
            } else {
                typed.read_option(word);
            }
        }
        typed
    }

    /// The option of a name such as `--name` or `-n`.
    pub fn option(&self, name: &str) -> Option<&'a Arg> {
        let named = |option: &&Arg| match name.strip_prefix("--") {
            Some(long) => option.get_long() == Some(long),
            None => option.get_short().is_some_and(|short| name.strip_prefix('-') == Some(short.to_string().as_str())),
        };
        self.command.get_arguments().find(named)
    }

    /// What the next word that is no option stands for.
    pub fn positional(&self) -> Option<&'a Arg> {
        let mut all = self.command.get_positionals();
        let last = self.command.get_positionals().last();
        let takes_many = |argument: &&Arg| argument.get_num_args().is_some_and(|range| range.max_values() > 1);
        let repeats = last.filter(|last| takes_many(last) || matches!(last.get_action(), clap::ArgAction::Append));
        all.nth(self.words.len()).or(repeats)
    }

    fn word(&mut self, word: &'a str) {
        match self.command.find_subcommand(word) {
            Some(command) if self.words.is_empty() && !self.only_values => {
                self.command = command;
                self.path.push(command.get_name());
            }
            _ => self.words.push(word),
        }
    }

    fn read_option(&mut self, word: &str) {
        if let Some((name, value)) = word.split_once('=').filter(|_| word.starts_with("--")) {
            if let Some(option) = self.option(name) {
                self.note(option, value);
            }
            return;
        }
        if word.starts_with("--") {
            self.awaits = self.option(word).filter(|option| option.get_action().takes_values());
            return;
        }
        // Several short ones; behind the first that takes a value stands that.
        for (at, short) in word.char_indices().skip(1) {
            let Some(option) = self.option(&format!("-{short}")) else { return };
            if option.get_action().takes_values() {
                match &word[at + short.len_utf8()..] {
                    "" => self.awaits = Some(option),
                    value => self.note(option, value),
                }
                return;
            }
        }
    }

    fn note(&mut self, option: &Arg, value: &str) {
        let id = option.get_id().as_str();
        if let Some(long) = option.get_long().filter(|_| OF_A_FABRIC.contains(&id)) {
            self.fabric.push(format!("--{long}={value}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;

    #[test]
    fn the_command_its_words_and_the_fabric_are_found() {
        let mut command = Args::shown();
        command.build();
        let read = |typed: &str| {
            let words: Vec<String> = typed.split_whitespace().map(str::to_owned).collect();
            let typed = Typed::read(&command, &words);
            let id = |argument: Option<&Arg>| argument.map_or("-", |argument| argument.get_id().as_str()).to_owned();
            format!(
                "{} {} {} {}",
                typed.path.join("."),
                id(typed.awaits),
                id(typed.positional()),
                typed.fabric.join(",")
            )
        };
        assert_eq!(read(""), " - - ");
        assert_eq!(read("-i"), " inventory - ");
        assert_eq!(read("files get nf://a"), "files.get - words ");
        assert_eq!(read("--endpoint tcp://a:1 files ls -l -w"), "files.ls workers url --endpoint=tcp://a:1");
        assert_eq!(read("-vi x files stat nf://a nf://b"), "files.stat - urls --inventory=x");
        assert_eq!(read("run --timeout=3 filesharing"), "run - task ");
        assert_eq!(read("files ls nf://a"), "files.ls - - ");
        assert_eq!(read("files get -- -x"), "files.get - words ");
    }
}
