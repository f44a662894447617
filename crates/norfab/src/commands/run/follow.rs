//! Following a job to its end.

use std::collections::VecDeque;

use norfab_fabric::LinkState;
use norfab_fabric::client::{ClientHandle, JobHandle, JobReport, WorkerReport};
use norfab_protocol::Identity;
use norfab_protocol::body::{EventType, InputRequest, InputResponse};
use norfab_protocol::client::{JobState, JobUpdate, Lost};
use norfab_protocol::target::Target;
use serde_json::{Value, json};

use super::interrupts::{Interrupts, Wish};
use super::voice::Voice;
use super::{REGISTERED, unreached, waits};
use crate::args::{Global, RunArgs};
use crate::commands::{code_of, job_errors, nobody, typing_hint};
use crate::exit::{Code, Failure};
use crate::printer::{self, Said};
use crate::prompt::{Asked, TypedLines};
use crate::site::Site;

/// What is known while a job runs.
pub struct Follower {
    voice: Voice,
    /// Knows where the settings of the connection are from.
    site: Site,
    verbose: bool,
    service: String,
    /// As they were typed.
    workers: String,
    target: Target,
    /// The answer that was given beforehand.
    answer: Option<Value>,
    terminal: Option<TypedLines>,
    /// Open questions; the first one stands on the terminal.
    questions: VecDeque<Asked>,
    dispatched: Option<Vec<Identity>>,
    /// Whether the job is to be cancelled, while that stands on the terminal, before all questions of tasks.
    asks_to_cancel: Option<String>,
    /// The code of the signal for which the job is being cancelled.
    cancelled_for: Option<Code>,
}

impl Follower {
    pub fn new(
        voice: Voice,
        site: Site,
        verbose: bool,
        words: &RunArgs,
        target: Target,
        answer: Option<Value>,
    ) -> Self {
        Self {
            voice,
            site,
            verbose,
            service: words.service.clone(),
            workers: words.workers.clone(),
            target,
            answer,
            terminal: TypedLines::of_terminal(),
            questions: VecDeque::new(),
            dispatched: None,
            asks_to_cancel: None,
            cancelled_for: None,
        }
    }

    /// Shows what happens, asks what is asked, and reports the end.
    pub async fn follow(
        &mut self,
        global: &Global,
        words: &RunArgs,
        client: &ClientHandle,
        mut job: JobHandle,
        interrupts: &Interrupts,
    ) -> Result<Code, Failure> {
        let mut state = client.state();
        state.mark_unchanged();
        loop {
            tokio::select! {
                update = job.next() => match update {
                    Some(update) => self.update(&job, update).await?,
                    None => break,
                },
                typed = typed(&mut self.terminal), if self.asks_to_cancel.is_some() || !self.questions.is_empty() => {
                    if self.asks_to_cancel.is_some() {
                        self.typed_of_cancel(&job, typed, interrupts).await?;
                    } else {
                        self.typed(&job, typed).await?;
                    }
                }
                wish = interrupts.next() => match wish {
                    Wish::Ask => self.ask_to_cancel(&job),
                    Wish::Cancel(code) => self.cancel(&job, code, interrupts).await?,
                },
                Ok(()) = state.changed() => {
                    let state = state.borrow_and_update().clone();
                    self.connection(client, &state);
                }
            }
        }
        if self.asks_to_cancel.is_some() || !self.questions.is_empty() {
            self.voice.at_prompt("");
        }
        let mut report = job.report();
        if report.events_dropped > 0 {
            self.voice.warning(&missing_events(&words.service, &report));
        }
        let unreached = unreached(&self.target, self.dispatched.as_deref(), &words.service);
        let code = match code_of(&report) {
            // Who pressed Ctrl-C is told as shells know it, whatever became of the job.
            code if code != Code::Ok && self.cancelled_for.is_some() => self.cancelled_for.unwrap_or(code),
            Code::Ok if !unreached.is_empty() => Code::Failed,
            code => code,
        };
        let hint = if unreached.is_empty() { None } else { Some(REGISTERED) };
        report.errors.extend(unreached);
        self.show(global, words, &report, code, hint);
        Ok(code)
    }

    async fn update(&mut self, job: &JobHandle, update: JobUpdate) -> Result<(), Failure> {
        match update {
            JobUpdate::Event(event, body) => {
                let shown_otherwise = match event.event_type {
                    EventType::InputRequest => self.answer.is_none() && self.terminal.is_some(),
                    EventType::ResultReady => true,
                    EventType::Progress | EventType::InputResponse => false,
                };
                if !shown_otherwise || self.voice.is_json() {
                    self.beside_prompt(|voice| voice.event(&event, &body));
                }
            }
            JobUpdate::Question(worker, question) => self.question(job, worker, question).await?,
            JobUpdate::Result(worker, _) => {
                let at_prompt =
                    self.asks_to_cancel.is_none() && self.questions.front().is_some_and(|asked| asked.worker == worker);
                self.questions.retain(|asked| asked.worker != worker);
                if at_prompt {
                    self.voice.at_prompt("");
                    self.voice.information(&format!("worker {worker} does not wait for the answer any more"));
                    self.show_prompt();
                }
            }
            JobUpdate::Dispatched(workers) => {
                if self.verbose {
                    self.voice.information(&format!("job {} goes to {}", job.id(), printer::names(&workers)));
                }
                self.dispatched = Some(workers);
            }
            JobUpdate::Waits(whom) => {
                let text = waits(&self.service, &self.workers, &whom);
                self.beside_prompt(|voice| voice.information(&text));
            }
            JobUpdate::Stored | JobUpdate::Accepted(_) | JobUpdate::Stream(_) | JobUpdate::Finished(_) => {}
        }
        Ok(())
    }

    async fn question(&mut self, job: &JobHandle, worker: Identity, question: InputRequest) -> Result<(), Failure> {
        if self.cancelled_for.is_some() {
            return Ok(());
        }
        let asked = Asked { worker, question };
        let given = self.answer.as_ref().map(|value| (value, asked.given(value)));
        if let Some((_, Some(value))) = given {
            return answer(job, asked, Some(value)).await;
        }
        if let Some((value, None)) = given {
            self.beside_prompt(|voice| voice.warning(&asked.not_answered_by(value)));
        }
        if self.terminal.is_none() {
            let Asked { worker, question } = &asked;
            self.voice.warning(&format!(
                "worker {worker} asks '{}', and there is no terminal: the question is cancelled; --answer JSON answers it",
                printer::printable(&question.question)
            ));
            return answer(job, asked, None).await;
        }
        self.questions.push_back(asked);
        if self.questions.len() == 1 && self.asks_to_cancel.is_none() {
            self.show_prompt();
        }
        Ok(())
    }

    /// After Ctrl-C on a terminal.
    fn ask_to_cancel(&mut self, job: &JobHandle) {
        self.voice.at_prompt("");
        let prompt = cancel_prompt(job);
        self.ask(&prompt);
        self.asks_to_cancel = Some(prompt);
    }

    async fn typed_of_cancel(
        &mut self,
        job: &JobHandle,
        typed: Option<String>,
        interrupts: &Interrupts,
    ) -> Result<(), Failure> {
        match typed.as_deref().map(|typed| typed.trim().to_lowercase()).as_deref() {
            Some("y" | "yes") => {
                return self.cancel(job, Code::Interrupted, interrupts).await;
            }
            Some("" | "n" | "no") | None => {
                self.asks_to_cancel = None;
                interrupts.forget();
                self.voice.at_prompt("the job goes on");
                self.show_prompt();
            }
            Some(_) => {
                self.voice.at_prompt("please answer y or n");
                self.ask(&cancel_prompt(job));
            }
        }
        Ok(())
    }

    async fn cancel(&mut self, job: &JobHandle, code: Code, interrupts: &Interrupts) -> Result<(), Failure> {
        self.asks_to_cancel = None;
        self.cancelled_for = Some(code);
        self.questions.clear();
        interrupts.cancels();
        job.cancel(&super::super::cancel::who(), None).await.map_err(Failure::failed)?;
        self.voice.at_prompt("cancelling the job on its workers; Ctrl-C again does not wait for them");
        Ok(())
    }

    async fn typed(&mut self, job: &JobHandle, typed: Option<String>) -> Result<(), Failure> {
        let Some(asked) = self.questions.front() else { return Ok(()) };
        let value = match typed.as_deref().map(|typed| asked.answer(typed)) {
            Some(Err(hint)) => {
                self.voice.at_prompt(hint);
                self.ask(&asked.prompt());
                return Ok(());
            }
            Some(Ok(value)) => Some(value),
            None => {
                self.voice.at_prompt("cancelled");
                None
            }
        };
        if let Some(asked) = self.questions.pop_front() {
            answer(job, asked, value).await?;
        }
        self.show_prompt();
        Ok(())
    }

    fn show_prompt(&self) {
        if let Some(asked) = self.questions.front() {
            asked.preview().iter().for_each(|line| self.voice.at_prompt(line));
            self.ask(&asked.prompt());
        }
    }

    fn ask(&self, prompt: &str) {
        match self.voice {
            Voice::Json | Voice::QuietJson => self.voice.at_prompt(prompt.trim_end()),
            Voice::Text | Voice::NoEvents | Voice::Quiet => printer::prompt(prompt),
        }
    }

    /// Says something while a question may stand on the terminal: above it.
    fn beside_prompt(&self, say: impl FnOnce(Voice)) {
        let stands = self.asks_to_cancel.clone().or_else(|| self.questions.front().map(Asked::prompt));
        match stands {
            Some(prompt) if self.voice == Voice::Text => {
                printer::prompt(CLEAR_LINE);
                say(self.voice);
                printer::prompt(&prompt);
            }
            _ => say(self.voice),
        }
    }

    /// The log tells people; programs want to know it as well.
    fn connection(&self, client: &ClientHandle, state: &LinkState) {
        if self.voice.is_json() {
            match self.site.problem(client.identity(), state) {
                Some(problem) => self.voice.warning(&problem.to_string()),
                None => self.voice.information("connected to the broker"),
            }
        }
    }

    fn show(&self, global: &Global, words: &RunArgs, report: &JobReport, code: Code, of_unreached: Option<&str>) {
        if global.json {
            let failure = (code != Code::Ok).then(|| self.failure(code, words, report, of_unreached));
            printer::report(&words.service, &words.task, report, failure.as_ref());
            return;
        }
        for said in printer::results(report) {
            match said {
                Said::Error(text) => self.voice.error(&text),
                Said::Warning(text) => self.voice.warning(&text),
                Said::Message(text) => self.voice.information(&text),
            }
        }
        let errors: Vec<String> = report.views().into_values().flat_map(|result| result.errors).collect();
        own_errors(words, report).iter().for_each(|error| self.voice.error(error));
        if let Some(hint) = hint(words, report, &errors).or_else(|| of_unreached.map(str::to_owned)) {
            self.voice.information(&format!("hint: {hint}"));
        }
    }

    /// What went wrong with a job that ended, told to people, for programs.
    fn failure(&self, code: Code, words: &RunArgs, report: &JobReport, of_unreached: Option<&str>) -> Failure {
        if let Some(failure) = nobody(code, &words.service, &words.workers, report) {
            self.voice.error(&failure.text);
            return failure;
        }
        let (mut texts, errors) = printer::failures(report);
        texts.extend(own_errors(words, report));
        texts.iter().for_each(|text| self.voice.error(text));
        let failure = Failure::new(code, texts.join("; "));
        match hint(words, report, &errors).or_else(|| of_unreached.map(str::to_owned)) {
            Some(hint) => {
                self.voice.information(&format!("hint: {hint}"));
                failure.hint(hint)
            }
            None => failure,
        }
    }
}

/// What to do about a job that did not go well, where something is known to do.
fn hint(words: &RunArgs, report: &JobReport, errors: &[String]) -> Option<String> {
    late_hint(words, report).or_else(|| typing_hint(&words.arguments, errors))
}

/// How to look at a job some of whose workers did not answer in time. It has ended here, so that nobody can cancel it any more.
fn late_hint(words: &RunArgs, report: &JobReport) -> Option<String> {
    let is_late = |worker: &WorkerReport| matches!(worker, WorkerReport::Missing(Lost::Expired));
    let late = report.workers.iter().filter(|(_, worker)| is_late(worker)).map(|(name, _)| name.as_str());
    let late: Vec<&str> = late.collect();
    let (id, service) = (&report.id, &words.service);
    (report.state == JobState::Stale && !late.is_empty()).then(|| {
        // One word of the command line.
        let late = late.join(",");
        format!(
            "'norfab jobs {id}' shows what came of the job, 'norfab run {service} job_details uuid={id} -w {late}' what becomes \
             of it there; a longer --timeout waits for it"
        )
    })
}

/// That not all events were shown, and who has them.
fn missing_events(service: &str, report: &JobReport) -> String {
    let count = report.events_dropped;
    let (events, they) = if count == 1 { ("event was", "it") } else { ("events were", "they") };
    let id = &report.id;
    format!(
        "{count} progress {events} not shown: {they} came faster than could be shown, or while this client or its workers had no broker; \
         'norfab run {service} job_details uuid={id}' shows what the workers have of the job"
    )
}

/// Errors of the job itself. Those of a time-out stand with each worker that did not answer.
fn own_errors(words: &RunArgs, report: &JobReport) -> Vec<String> {
    if report.state == JobState::Stale && !report.workers.is_empty() {
        return Vec::new();
    }
    job_errors(&words.service, &words.workers, report)
}

fn cancel_prompt(job: &JobHandle) -> String {
    format!("cancel job {} on its workers? [y/N] (Ctrl-C again leaves it running): ", job.id())
}

/// Goes to the beginning of the terminal's line and empties it.
const CLEAR_LINE: &str = "\r\x1b[K";

async fn typed(terminal: &mut Option<TypedLines>) -> Option<String> {
    match terminal {
        Some(lines) => lines.next().await,
        None => None,
    }
}

async fn answer(job: &JobHandle, asked: Asked, value: Option<Value>) -> Result<(), Failure> {
    let Asked { worker, question } = asked;
    let response = InputResponse { input_id: question.id, cancel: value.is_none(), value, metadata: json!({}) };
    job.answer(Some(worker), response).await.map_err(Failure::failed)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use norfab_protocol::JobId;

    use super::*;

    #[derive(Parser)]
    struct Run {
        #[command(flatten)]
        words: RunArgs,
    }

    #[test]
    fn the_command_that_looks_at_late_workers_names_them_in_one_word() {
        let words = Run::parse_from(["run", "filesharing", "echo"]).words;
        let late = |name: &str| (Identity::parse(name).expect("a name"), WorkerReport::Missing(Lost::Expired));
        let report = JobReport {
            id: JobId::parse("1").expect("an id"),
            state: JobState::Stale,
            workers: [late("a"), late("b")].into(),
            errors: Vec::new(),
            events_dropped: 0,
        };
        let hint = late_hint(&words, &report).expect("two are late");
        let typed = hint.split('\'').find(|part| part.contains("job_details")).expect("a command");
        let typed = Run::parse_from(typed.split(' ').skip(1)).words;
        assert_eq!((typed.arguments, typed.workers), (vec!["uuid=1".to_owned()], "a,b".to_owned()));
    }

    #[test]
    fn events_that_were_not_shown_are_not_blamed_on_a_slow_client_alone() {
        let (id, state) = (JobId::parse("1").expect("an id"), JobState::Completed);
        let report = JobReport { id, state, workers: [].into(), errors: Vec::new(), events_dropped: 6 };
        let text = missing_events("power", &report);
        assert!(text.starts_with("6 progress events were not shown: ") && text.contains("had no broker"), "{text}");
        assert!(text.contains("'norfab run power job_details uuid=1'"), "{text}");
    }
}
