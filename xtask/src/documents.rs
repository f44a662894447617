//! `cargo xtask documents`: documents name commands and files that exist.

use std::fs;
use std::process::Command;

use crate::process::{cargo, root, run_quietly, target, tracked_files, works};
use crate::{COMMANDS, Failure};

/// Checks every Markdown file. Builds the binary, whose commands documents show.
pub fn check() -> Result<(), Failure> {
    let mut wrong = Vec::new();
    let mut subcommands: Vec<(String, String)> = Vec::new();
    let mut count = 0;
    for file in tracked_files()?.into_iter().filter(|file| file.ends_with(".md")) {
        let text = fs::read_to_string(root().join(&file)).map_err(|error| format!("cannot read {file}: {error}"))?;
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        count += 1;
        for name in commands_of(&text, "cargo xtask ") {
            if !COMMANDS.iter().any(|(known, ..)| *known == name) {
                wrong.push(format!("{file}: there is no `cargo xtask {name}`"));
            }
        }
        for link in relative_links(&text) {
            if !root().join(folder).join(&link).exists() {
                wrong.push(format!("{file}: there is no {link}"));
            }
        }
        for line in code_lines(&text) {
            let command = line.trim().trim_start_matches("$ ");
            if let Some(name) = commands_of(command, "norfab ").next().filter(|_| starts_with_norfab(command)) {
                subcommands.push((file.clone(), name));
            }
        }
    }
    wrong.extend(missing_tests()?);
    // The README's first command, and the binary that is asked about the others.
    println!("building the norfab command, whose commands are checked");
    run_quietly(&mut cargo(["build", "--quiet", "--locked", "--package", "norfab", "--bin", "norfab"]))?;
    let binary = target().join("debug/norfab");
    subcommands.sort();
    subcommands.dedup();
    for (file, name) in &subcommands {
        if !works(Command::new(&binary).args([name, "--help"])) {
            wrong.push(format!("{file}: `norfab {name} --help` does not work"));
        }
    }
    if !works(&mut cargo(["run", "--quiet", "--locked", "--", "--version"])) {
        wrong.push(
            "README.md: `cargo run` does not run the norfab command: see default-members in Cargo.toml".to_owned(),
        );
    }
    if wrong.is_empty() {
        println!("{count} documents, {} commands of the binary in them", subcommands.len());
        return Ok(());
    }
    Err(format!("documents that are not true:\n  {}", wrong.join("\n  ")))
}

/// The page that maps cases to tests.
const RELIABILITY: &str = "docs/reliability.md";

/// Shortest name that can only be a test's: other names on that page are shorter.
const TEST_NAME_MIN: usize = 26;

/// Tests that the page about reliability names and that are not there.
fn missing_tests() -> Result<Vec<String>, Failure> {
    let read =
        |file: &str| fs::read_to_string(root().join(file)).map_err(|error| format!("cannot read {file}: {error}"));
    let page = read(RELIABILITY)?;
    let mut sources = String::new();
    for file in tracked_files()?.iter().filter(|file| file.ends_with(".rs")) {
        sources += &read(file)?;
    }
    let is_test =
        |word: &&str| word.len() >= TEST_NAME_MIN && word.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_'));
    let named = page.split('`').skip(1).step_by(2).filter(is_test);
    let missing = named.filter(|name| !sources.contains(&format!("fn {name}(")));
    Ok(missing.map(|name| format!("{RELIABILITY}: there is no test {name}")).collect())
}

/// Whether a line of a code block runs our binary, by name or by path.
fn starts_with_norfab(line: &str) -> bool {
    line.split_whitespace().next().is_some_and(|word| word == "norfab" || word.ends_with("/norfab"))
}

/// The words that follow `prefix`, if they look like the name of a command.
fn commands_of<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = String> + 'a {
    text.match_indices(prefix).filter_map(move |(at, _)| {
        let rest = &text[at + prefix.len()..];
        let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
        (!name.is_empty() && !name.starts_with('-')).then_some(name)
    })
}

/// Lines inside of fenced code blocks.
fn code_lines(text: &str) -> Vec<&str> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if inside {
            lines.push(line);
        }
    }
    lines
}

/// Targets of links into the repository, without their anchors.
fn relative_links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        }
        for (at, _) in line.match_indices("](").filter(|_| !inside) {
            let Some((link, _)) = line[at + 2..].split_once(')') else {
                continue;
            };
            let path = link.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains(':') {
                links.push(path.to_owned());
            }
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_text_and_code() {
        let text = "Run `cargo xtask test`.\n```sh\ncargo xtask bench --quick\n```\n";
        assert_eq!(commands_of(text, "cargo xtask ").collect::<Vec<_>>(), ["test", "bench"]);
        assert_eq!(commands_of("norfab --version", "norfab ").count(), 0);
    }

    #[test]
    fn links_out_of_the_repository_and_anchors_are_not_files() {
        let text = "[a](docs/a.md#part) [b](https://example.net/x) [c](#here)\n```\n[d](no.md)\n```\n";
        assert_eq!(relative_links(text), ["docs/a.md"]);
    }

    #[test]
    fn only_lines_that_run_the_binary_are_its_commands() {
        assert!(starts_with_norfab("norfab run dummy ok"));
        assert!(starts_with_norfab("./target/release/norfab demo"));
        assert!(!starts_with_norfab("pip install norfab"));
    }
}
