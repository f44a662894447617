//! `norfab __complete`: what a word on the command line may become. Whatever goes wrong, nothing is said: the shell then completes
//! names of files.

mod quoting;
mod remote;
mod typed;

use clap::Arg;

use crate::args::{Args, CompleteArgs, Shell};
use crate::exit::{Code, Failure};
use crate::printer;
use quoting::Quoting;
use remote::Fabric;
use typed::Typed;

/// Most candidates: nobody reads more, and the shell has to sort them.
const CANDIDATES_MAX: usize = 10_000;

/// What a word may become, as a whole, and whether it is complete then.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    text: String,
    whole: bool,
}

impl Candidate {
    fn whole(text: impl Into<String>) -> Self {
        Self { text: text.into(), whole: true }
    }

    fn begun(text: impl Into<String>) -> Self {
        Self { text: text.into(), whole: false }
    }
}

pub async fn run(words: CompleteArgs) -> Result<Code, Failure> {
    let Some((current, before)) = words.words.split_last() else { return Ok(Code::Ok) };
    let quoting = Quoting::of(words.shell, current);
    let before: Vec<String> = before.iter().map(|word| Quoting::of(words.shell, word).text).collect();
    let mut command = Args::shown();
    command.build();
    let typed = Typed::read(&command, before.get(1..).unwrap_or_default());
    let mut candidates = candidates(&typed, &quoting.text).await;
    candidates.retain(|candidate| {
        candidate.text.starts_with(&quoting.text) && !candidate.text.contains(|character: char| character.is_control())
    });
    candidates.truncate(CANDIDATES_MAX);
    let blank = |candidate: &Candidate| if candidate.whole && words.shell != Shell::Fish { " " } else { "" };
    printer::lines(candidates.iter().map(|candidate| {
        let rest = candidate.text.strip_prefix(&quoting.text).unwrap_or_default();
        format!("{}{}", quoting.with(rest), blank(candidate))
    }));
    Ok(Code::Ok)
}

async fn candidates(typed: &Typed<'_>, current: &str) -> Vec<Candidate> {
    if let Some(option) = typed.awaits {
        return values(typed, option, current).await;
    }
    if !typed.only_values && current.starts_with('-') {
        if let Some((name, value)) = current.split_once('=')
            && let Some(option) = typed.option(name)
        {
            let mut candidates = values(typed, option, value).await;
            candidates.iter_mut().for_each(|candidate| candidate.text.insert_str(0, &format!("{name}=")));
            return candidates;
        }
        let longs = typed.command.get_arguments().filter(|option| !option.is_hide_set()).filter_map(Arg::get_long);
        return longs.map(|long| Candidate::whole(format!("--{long}"))).collect();
    }
    let mut candidates = Vec::new();
    if !typed.only_values && typed.words.is_empty() {
        let subcommands = typed.command.get_subcommands().filter(|command| !command.is_hide_set());
        candidates.extend(subcommands.map(|command| Candidate::whole(command.get_name())));
    }
    if let Some(positional) = typed.positional() {
        candidates.extend(values(typed, positional, current).await);
    }
    candidates
}

/// What may stand for an argument: what the command line itself knows, or what the fabric is asked for.
async fn values(typed: &Typed<'_>, argument: &Arg, current: &str) -> Vec<Candidate> {
    let possible: Vec<Candidate> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| Candidate::whole(value.get_name()))
        .collect();
    if !possible.is_empty() {
        return possible;
    }
    let fabric = Fabric::new(&typed.fabric);
    match (typed.path.as_slice(), argument.get_id().as_str()) {
        (["files", ..], "url" | "urls" | "words") => remote::urls(&fabric, current, !typed.words.is_empty()).await,
        (["run" | "tasks"], "task") => match typed.words.first() {
            Some(service) => remote::tasks(&fabric, service).await,
            None => Vec::new(),
        },
        (_, "workers") => remote::workers_with_commas(&fabric, current).await,
        (["tasks" | "inventory"], "worker") => remote::workers(&fabric).await,
        (["run" | "tasks" | "health" | "workers"], "service" | "services") => remote::services(&fabric).await,
        _ => Vec::new(),
    }
}
