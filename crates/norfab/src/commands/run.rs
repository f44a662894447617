//! `norfab run`: a job, its events, its questions and what workers return.

use std::collections::VecDeque;

use norfab_fabric::client::{JobHandle, JobSpec, SubmitError};
use norfab_protocol::body::{InputRequest, InputResponse};
use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, ServiceName, TaskName};
use serde_json::{Value, json};

use super::{Connected, arguments};
use crate::args::{Events, Global, RunArgs};
use crate::exit::{Code, Failure};
use crate::printer;
use crate::prompt;

pub async fn run(global: &Global, words: RunArgs) -> Result<Code, Failure> {
    let spec = JobSpec {
        id: None,
        service: ServiceName::parse(&words.service).map_err(|error| Failure::usage(error.to_string()))?,
        task: TaskName::parse(&words.task).map_err(|error| Failure::usage(error.to_string()))?,
        target: Target::from_words(&words.workers),
        kwargs: arguments(&words.arguments)?,
        args: Vec::new(),
        timeout: words.timeout,
    };
    let answer =
        words.answer.as_deref().map(serde_json::from_str::<Value>).transpose().map_err(|error| {
            Failure::usage(format!("--answer is not JSON: {error} (a text needs quotes: '\"yes\"')"))
        })?;
    let connected = Connected::new(global).await?;
    let client = &connected.client;
    let job = client.submit(spec).await.map_err(|error| match error {
        SubmitError::Queue(error) => Failure::failed(error),
        SubmitError::Refused(text) => Failure::failed(text),
    })?;
    if words.nowait {
        let id = job.id().clone();
        nowait(global, &words, job).await;
        client.stop().await;
        tracing::debug!("job {id} submitted");
        return Ok(Code::Ok);
    }
    let events = if global.quiet > 0 && words.events == Events::Text { Events::None } else { words.events };
    let mut follower = Follower { events, answer, questions: VecDeque::new() };
    let id = job.id().clone();
    let code = tokio::select! {
        code = follow(global, &words, job, &mut follower) => code,
        interrupted = tokio::signal::ctrl_c() => {
            if let Err(error) = interrupted {
                eprintln!("error: {error}");
            }
            eprintln!("\ninterrupted: job {id} goes on; 'norfab jobs {id}' shows what becomes of it");
            Ok(Code::Interrupted)
        }
    };
    client.stop().await;
    code
}

/// Leaves when the broker has said what it did with the job, so that the next process finds it on its way.
async fn nowait(global: &Global, words: &RunArgs, mut job: JobHandle) {
    let id = job.id().clone();
    let sent = async {
        while let Some(update) = job.next().await {
            if matches!(update, JobUpdate::Dispatched(_) | JobUpdate::Finished(_)) {
                return;
            }
        }
    };
    if tokio::time::timeout(std::time::Duration::from_secs(2), sent).await.is_err() {
        eprintln!("warning: the broker has not answered yet; 'norfab jobs {id}' goes on with the job");
    }
    if global.json {
        printer::json(&json!({ "uuid": id, "service": words.service, "task": words.task }));
    } else {
        printer::line(id.as_str());
    }
}

struct Follower {
    events: Events,
    answer: Option<Value>,
    questions: VecDeque<(Identity, InputRequest)>,
}

async fn follow(
    global: &Global,
    words: &RunArgs,
    mut job: JobHandle,
    follower: &mut Follower,
) -> Result<Code, Failure> {
    while let Some(update) = job.next().await {
        match update {
            JobUpdate::Event(event, body) => match follower.events {
                Events::Text => printer::event(&event),
                Events::Json => printer::event_line(&body),
                Events::None => {}
            },
            JobUpdate::Question(worker, question) => {
                follower.questions.push_back((worker, question));
                while let Some((worker, question)) = follower.questions.pop_front() {
                    let response = answer(&worker, question, follower.answer.as_ref()).await;
                    job.answer(Some(worker), response).await.map_err(Failure::failed)?;
                }
            }
            JobUpdate::Dispatched(workers) if follower.events == Events::Text && global.verbose > 0 => {
                eprintln!("job {} goes to {}", job.id(), printer::names(&workers));
            }
            _ => {}
        }
    }
    let report = job.report();
    if report.events_dropped > 0 {
        eprintln!(
            "warning: {} progress events were dropped because they came faster than they were shown",
            report.events_dropped
        );
    }
    printer::report(global.json, &words.service, &words.task, &report);
    Ok(match report.state {
        JobState::Completed if report.succeeded() => Code::Ok,
        JobState::Stale => Code::TimedOut,
        _ => Code::Failed,
    })
}

async fn answer(worker: &Identity, question: InputRequest, given: Option<&Value>) -> InputResponse {
    let input_id = question.id.clone();
    let value = match given {
        Some(value) => Some(value.clone()),
        None => {
            let worker = worker.clone();
            // Reading a terminal blocks, and nobody can end it: the question's time-out does, at the worker.
            tokio::task::spawn_blocking(move || prompt::ask(&worker, &question)).await.ok().flatten()
        }
    };
    InputResponse { input_id, cancel: value.is_none(), value, metadata: json!({}) }
}
