//! What is said of a command line that is wrong.

use clap::CommandFactory;
use clap::error::ErrorKind;

use crate::args::Args;
use crate::exit::Failure;

/// How the line begins with which clap ends: of a command that has subcommands it does not say which help is meant.
const CLAP_END: &str = "For more information, try ";

/// The same for people: what clap says, and which command has help. `coloured`: for a terminal.
pub fn text(error: &clap::Error, words: &[String], coloured: bool) -> String {
    let styled = error.render();
    let plain = styled.to_string();
    let text = if coloured { styled.ansi().to_string() } else { plain.clone() };
    let help = help(words);
    let mut lines: Vec<&str> = text.lines().map(|line| if line.starts_with(CLAP_END) { &help } else { line }).collect();
    if let Some(at) =
        plain.lines().position(|line| line.trim_start().strip_prefix(TIP).is_some_and(|tip| leads_astray(tip, &plain)))
    {
        // With the empty line behind it.
        lines.drain(at..lines.len().min(at + 2));
    }
    lines.into_iter().fold(String::new(), |text, line| text + line + "\n")
}

/// The same for programs: what clap says without its layout.
pub fn failure(error: &clap::Error, words: &[String]) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage("no command is named")
            .hint("'norfab -h' lists them, 'norfab COMMAND -h' what one takes");
    }
    let text = error.render().to_string();
    let mut paragraphs = text.trim().split("\n\n").map(|paragraph| {
        let lines: Vec<&str> = paragraph.lines().map(str::trim).collect();
        lines.join(" ")
    });
    let error = paragraphs.next().unwrap_or_default();
    let failure = Failure::usage(error.strip_prefix("error: ").unwrap_or(&error));
    // What may have been meant says more than where help is.
    match paragraphs.next().as_deref().and_then(|next| next.strip_prefix(TIP)) {
        Some(tip) if !leads_astray(tip, &text) => failure.hint(tip),
        _ => failure.hint(help(words)),
    }
}

/// How clap begins a tip.
const TIP: &str = "tip: ";

/// Whether a tip of clap is a guess that helps nobody: that a negative number is a word of its own, which no command wants, or an
/// option that begins with another letter than the one that was typed. `error`: what is wrong, before the tip.
fn leads_astray(tip: &str, error: &str) -> bool {
    let first_of_option = |text: &str| text.split_once("'--").and_then(|(_, option)| option.chars().next());
    let is_negative =
        tip.strip_prefix("to pass '-").is_some_and(|value| value.starts_with(|it: char| it.is_ascii_digit()));
    is_negative || (tip.starts_with("a similar argument exists") && first_of_option(tip) != first_of_option(error))
}

/// Whether JSON was asked for, however wrongly: nothing was understood, so it is looked for among the words.
pub fn wants_json(words: &[String]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--json" || word.starts_with("--json="))
}

/// Where the help of the command is that was meant.
fn help(words: &[String]) -> String {
    let command = meant(words);
    let what = if command == "norfab" { "lists the commands" } else { "shows what it takes" };
    format!("'{command} -h' {what}")
}

/// The command with its subcommands, as far as words name one.
fn meant(words: &[String]) -> String {
    let mut root = Args::command();
    root.build();
    let (mut command, mut meant) = (&root, "norfab".to_owned());
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        if word.starts_with('-') {
            if has_value_behind(command, word) {
                words.next();
            }
            continue;
        }
        let Some(next) = command.find_subcommand(word) else { break };
        meant = format!("{meant} {}", next.get_name());
        command = next;
    }
    meant
}

/// Whether the word behind an option belongs to it.
fn has_value_behind(command: &clap::Command, word: &str) -> bool {
    let takes_value = |option: &clap::Arg| option.get_action().takes_values();
    if let Some(long) = word.strip_prefix("--") {
        return command.get_arguments().any(|option| option.get_long() == Some(long) && takes_value(option));
    }
    let valued =
        |short: char| command.get_arguments().any(|option| option.get_short() == Some(short) && takes_value(option));
    // Behind the first that takes one stands its value.
    word.char_indices()
        .skip(1)
        .find(|(_, short)| valued(*short))
        .is_some_and(|(at, short)| at + short.len_utf8() == word.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_was_meant_is_found_among_options_and_their_values() {
        for (typed, expected) in [
            ("", "norfab"),
            ("run s", "norfab run"),
            ("--name jobs workers --nope", "norfab workers"),
            ("--name=x -i up jobs prune --keep", "norfab jobs prune"),
            ("-vi up jobs export", "norfab jobs export"),
            ("-iup -v files get", "norfab files get"),
            ("run jobs prune -t", "norfab run"),
            ("nonsense run", "norfab"),
        ] {
            let words: Vec<String> = typed.split_whitespace().map(str::to_owned).collect();
            assert_eq!(meant(&words), expected, "{typed}");
        }
    }

    #[test]
    fn json_is_wanted_before_what_is_no_option_any_more() {
        for (typed, wanted) in
            [("--json", true), ("jobs --json=yes", true), ("run -- --json", false), ("--jsonl", false)]
        {
            let words: Vec<String> = typed.split_whitespace().map(str::to_owned).collect();
            assert_eq!(wants_json(&words), wanted, "{typed}");
        }
    }
}
