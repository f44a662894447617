//! A small complete service: one task that waits, tells and asks, and one that computes. Run it with
//! `cargo run -p norfab-service --example greeter`; a worker would run it the same way.
#![warn(missing_docs)]

use norfab_service::schemars::{self, JsonSchema};
use norfab_service::testing::TestWorker;
use norfab_service::{
    BuiltinPolicy, EventDraft, InputError, NoInput, Question, Service, ServiceName, Severity, Task, TaskContext,
    TaskError, TaskOutput,
};
use serde::Deserialize;
use serde_json::json;

/// The input of a task: a type of its own. Field comments become descriptions that clients see, `Option` and `default` make
/// an argument optional.
#[derive(Debug, Deserialize, JsonSchema)]
struct Greet {
    /// Whom to greet.
    names: Vec<String>,
    /// The word before each name.
    #[serde(default = "hello")]
    word: String,
}

fn hello() -> String {
    "Hello".to_owned()
}

/// A task that waits is an async function. Everything that is an error ends it with `?`.
async fn greet(context: TaskContext, input: Greet) -> Result<TaskOutput, TaskError> {
    let question = Question::new(format!("greet {} people?", input.names.len()))
        .default(true)
        .timeout(30)
        .metadata("names", input.names.clone());
    match context.ask(question).await {
        Ok(answer) if answer == true => {}
        // Nobody who could be asked: go on.
        Err(InputError::TimedOut { .. }) => {
            let draft = EventDraft::new("nobody answered").severity(Severity::Warning);
            context.event(draft).await?;
        }
        Ok(_) => return Err(TaskError::new("nobody is greeted: the client said no")),
        Err(error) => return Err(error.into()),
    }
    let mut greetings = Vec::new();
    for name in &input.names {
        context.event(EventDraft::new(format!("greeting {name}")).resource(name)).await?;
        greetings.push(format!("{} {name}", input.word));
    }
    let mut output = TaskOutput::new(greetings);
    for name in input.names {
        output = output.resource(name);
    }
    Ok(output)
}

/// A task that computes is a plain function and runs on a thread of its own. It looks whether its job was cancelled.
fn count(context: TaskContext, _: NoInput) -> Result<u64, TaskError> {
    let mut sum = 0;
    for number in 1..=1000 {
        if context.is_cancelled() {
            return Err(TaskError::new(format!("cancelled at {number}")));
        }
        sum += number;
    }
    Ok(sum)
}

/// The service, with the tasks that every worker has.
fn service() -> Service {
    let name = ServiceName::parse("greeter").expect("not empty, short, no control characters");
    Service::new(name)
        .version("greeter", env!("CARGO_PKG_VERSION"))
        .task(Task::new("greet", "Greets people, if the client agrees.", greet))
        .task(Task::blocking("count", "Counts to a thousand.", count).idempotent())
        .with_builtin_tasks(BuiltinPolicy::default())
}

#[tokio::main]
async fn main() {
    let worker = TestWorker::new(service());

    let mut job = worker.start("greet", json!({"names": ["Ada", "Zoë"]}));
    let question = job.question().await;
    println!("asked: {}", question.question);
    job.answer(&question, true).expect("the question is open");
    for _ in 0..3 {
        println!("event: {}", job.event().await.message);
    }
    println!("result: {}", job.result().await.result);

    let result = worker.run("greet", json!({"names": "Ada"})).await;
    println!("error: {}", result.errors.join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn people_are_greeted_when_the_client_agrees() {
        let mut job = TestWorker::new(service()).start("greet", json!({"names": ["Zoë"]}));
        let question = job.question().await;
        assert_eq!(question.metadata, json!({"names": ["Zoë"]}));
        job.answer(&question, true).expect("the question is open");
        assert_eq!(job.event().await.message, "greet 1 people?");
        assert_eq!(job.event().await.message, "greeting Zoë");
        assert_eq!(job.result().await.value(), Some(json!(["Hello Zoë"])));
    }

    #[tokio::test]
    async fn counting_needs_no_arguments() {
        let result = TestWorker::new(service()).run("count", json!({})).await;
        assert_eq!(result.value(), Some(json!(500_500)));
    }
}
