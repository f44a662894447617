//! The tasks that every worker has, against what the recorded peers answer.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use norfab_service::schemars::{self, JsonSchema};
use norfab_service::testing::{TEST_JOB, TestView, TestWorker};
use norfab_service::{
    BoxFuture, BuiltinPolicy, JobDetailsQuery, JobFilter, LogFilter, NoInput, ResultStatus, Service, ServiceName, Task,
    TaskContext, ViewError, WorkerView,
};
use serde::Deserialize;
use serde_json::{Value, json};

const RECORDED: &str = include_str!("data/list_tasks.json");

#[derive(Debug, Deserialize, JsonSchema)]
struct SignatureOnly {
    a: i64,
    #[serde(default = "x")]
    b: String,
}

fn x() -> String {
    "x".to_owned()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is looked at")]
enum Mode {
    One(String),
    Many(Vec<String>),
}

fn pass() -> Value {
    json!("pass")
}

/// As the recorded task `act` declares it, but for one key of its own making.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only its schema is looked at")]
struct Act {
    /// The item.
    item: String,
    /// How often.
    #[serde(default = "one")]
    count: i64,
    /// In which mode.
    #[serde(default = "pass")]
    #[schemars(with = "Mode")]
    mode: Value,
    /// Changes nothing.
    #[serde(default)]
    #[schemars(extend("presence" = true))]
    dry_run: bool,
}

fn one() -> i64 {
    1
}

fn service() -> Service {
    Service::new(ServiceName::parse("lab").expect("a name"))
        .version("lab", "1.2.3")
        .task(
            Task::new("sig_only", "", async |_: TaskContext, input: SignatureOnly| Ok(json!([input.a, input.b])))
                .idempotent(),
        )
        .task(Task::new("act", "", async |_: TaskContext, _: Act| Ok(())).fastapi(json!({"methods": ["POST", "PUT"]})))
        .task(
            Task::new("hidden", "", async |_: TaskContext, _: NoInput| Ok(()))
                .fastapi(false)
                .mcp(false)
                .output_schema(json!({"type": "object"})),
        )
        .with_builtin_tasks(BuiltinPolicy { shell: true })
}

fn recorded(name: &str) -> Value {
    let recorded: Value = serde_json::from_str(RECORDED).expect("the recording is JSON");
    let tasks = recorded["tasks"].as_array().expect("a list");
    let task = tasks.iter().find(|task| task["name"] == name);
    task.expect("it is recorded").clone()
}

async fn listed(name: &str) -> Value {
    let result = TestWorker::new(service()).run("list_tasks", json!({"name": name})).await;
    assert!(!result.failed, "{:?}", result.errors);
    let value = result.value().expect("JSON");
    assert_eq!(value.as_array().map(Vec::len), Some(1));
    value[0].clone()
}

/// Descriptions are ours; the recording has none.
fn without_descriptions(value: &Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(key, member)| match member {
                    Value::String(_) if key == "description" => (key.clone(), json!("<text>")),
                    member => (key.clone(), without_descriptions(member)),
                })
                .collect(),
        ),
        Value::Array(values) => Value::Array(values.iter().map(without_descriptions).collect()),
        other => other.clone(),
    }
}

#[tokio::test]
async fn a_task_is_listed_letter_for_letter_as_recorded() {
    let mut task = listed("sig_only").await;
    let output = task["outputSchema"].take();
    let mut expected = recorded("sig_only");
    assert_eq!(expected["name"].take(), task["name"].take());
    for key in ["description", "inputSchema", "fastapi", "mcp", "agent"] {
        assert_eq!(task[key].to_string(), expected[key].to_string(), "{key}");
    }
    let keys: Vec<&String> = task.as_object().expect("an object").keys().collect();
    let order = ["name", "description", "inputSchema", "outputSchema", "fastapi", "mcp", "agent"];
    assert_eq!(keys, order);
    let recording: Value = serde_json::from_str(RECORDED).expect("the recording is JSON");
    assert_eq!(without_descriptions(&output).to_string(), recording["outputSchema"].to_string());
}

#[tokio::test]
async fn a_rich_input_is_described_as_recorded() {
    let task = without_descriptions(&listed("act").await);
    assert_eq!(
        serde_json::to_string_pretty(&task["inputSchema"]).expect("plain data"),
        serde_json::to_string_pretty(&recorded("act")["inputSchema"]).expect("plain data")
    );
}

#[tokio::test]
async fn built_in_tasks_take_the_recorded_arguments_and_are_shown_to_the_same() {
    // `job` was never an argument of a caller; the id of job_details has no useful default.
    let ours_differ =
        |name: &str, argument: &str| (name, argument) == ("echo", "job") || (name, argument) == ("job_details", "uuid");
    let recording: Value = serde_json::from_str(RECORDED).expect("the recording is JSON");
    for expected in recording["tasks"].as_array().expect("a list") {
        let name = expected["name"].as_str().expect("a name");
        let task = listed(name).await;
        let names = |schema: &Value| -> BTreeSet<String> {
            let properties = schema["properties"].as_object().expect("an object");
            properties.keys().filter(|key| !ours_differ(name, key)).cloned().collect()
        };
        let (ours, theirs) = (&task["inputSchema"], &expected["inputSchema"]);
        assert_eq!(names(ours), names(theirs), "{name}");
        for argument in names(ours) {
            let default = |schema: &Value| schema["properties"][&argument].get("default").cloned();
            assert_eq!(default(ours), default(theirs), "{name} {argument}");
        }
        if name != "act" {
            for key in ["fastapi", "mcp", "agent"] {
                assert_eq!(task[key], expected[key], "{name} {key}");
            }
        }
    }
}

#[tokio::test]
async fn hidden_tasks_are_listed_as_hidden() {
    let task = listed("hidden").await;
    assert_eq!(task["fastapi"], false);
    assert_eq!(task["mcp"], false);
    assert_eq!(task["outputSchema"], json!({"type": "object"}));
    assert_eq!(task["inputSchema"].to_string(), r#"{"properties":{},"type":"object"}"#);
}

#[tokio::test]
async fn brief_lists_sorted_names_and_an_unknown_name_fails() {
    let worker = TestWorker::new(service());
    let result = worker.run("list_tasks", json!({"brief": true})).await;
    let expected = json!([
        "act",
        "delete_fetched_files",
        "echo",
        "get_inventory",
        "get_logs",
        "get_stats",
        "get_version",
        "get_watchdog_configuration",
        "get_watchdog_stats",
        "get_worker_status",
        "hidden",
        "job_details",
        "job_list",
        "list_tasks",
        "run_shell_cmd",
        "sig_only",
    ]);
    assert_eq!(result.value(), Some(expected));
    let result = worker.run("list_tasks", json!({"name": "nope"})).await;
    assert!(result.errors[0].starts_with(r#"service 'lab' has no task "nope": its tasks are act,"#));
    assert_eq!(result.status, Some(ResultStatus::Error));
}

#[tokio::test]
async fn only_a_policy_that_allows_it_brings_the_shell() {
    let service = Service::new(ServiceName::parse("lab").expect("a name")).with_builtin_tasks(BuiltinPolicy::default());
    let result = TestWorker::new(service).run("run_shell_cmd", json!({"command": "id"})).await;
    assert!(result.failed);
    assert!(result.errors[0].starts_with(r#"service 'lab' has no task "run_shell_cmd""#));
}

#[tokio::test(start_paused = true)]
async fn echo_gives_back_what_it_got_by_position_and_by_name() {
    let worker = TestWorker::new(service()).timeout(30);
    let kwargs = json!({"sleep": 3, "raise_error": false, "extra": {"k": "ü"}});
    let began = tokio::time::Instant::now();
    let result = worker.start_with("echo", json!(["x", 2]), kwargs).result().await;
    assert_eq!(began.elapsed().as_secs(), 3);
    let expected = format!(
        r#"{{"juuid":"{TEST_JOB}","client_address":"test-client","timeout":30,"task":"echo","args":["x",2],"kwargs":{{"extra":{{"k":"ü"}}}}}}"#
    );
    assert_eq!(result.result.get(), expected);
}

#[tokio::test(start_paused = true)]
async fn echo_fails_when_asked_to_and_names_a_wrong_argument() {
    let worker = TestWorker::new(service()).timeout(30);
    let rows = [
        (json!({"raise_error": "bad"}), "bad"),
        (json!({"raise_error": 7}), "7"),
        (json!({"raise_error": true}), "echo failed because it was asked to"),
        (json!({"sleep": "1"}), r#"argument 'sleep': expected an integer or null, found string "1""#),
        (
            json!({"raise_error": []}),
            "argument 'raise_error': expected true or false or a string or an integer or null, found a list of 0",
        ),
        (json!({"sleep": 31}), "echo was ended before its 31 s of sleep were over: its deadline has passed"),
    ];
    for (kwargs, error) in rows {
        let result = worker.run("echo", kwargs).await;
        assert_eq!(result.errors, [error]);
        assert!(result.failed);
    }
}

/// A view that remembers what it was asked.
#[derive(Default)]
struct Asked {
    inner: TestView,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Asked {
    fn note(&self, what: String) {
        self.asked.lock().expect("nobody panicked").push(what);
    }
}

impl WorkerView for Asked {
    fn job_details(&self, query: JobDetailsQuery) -> BoxFuture<'_, Result<Option<Value>, ViewError>> {
        self.note(format!("{query:?}"));
        Box::pin(async move { Ok(Some(json!({"uuid": query.uuid})).filter(|_| query.uuid.as_str() != "nope")) })
    }
    fn job_list(&self, filter: JobFilter) -> BoxFuture<'_, Result<Vec<Value>, ViewError>> {
        self.note(format!("{filter:?}"));
        Box::pin(async { Ok(vec![json!({"uuid": "x"})]) })
    }
    fn logs(&self, filter: LogFilter) -> BoxFuture<'_, Result<Vec<Value>, ViewError>> {
        self.note(format!("{filter:?}"));
        Box::pin(async { Err(ViewError("the log file cannot be read".to_owned())) })
    }
    fn stats(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        Box::pin(async { Ok(json!("stats")) })
    }
    fn status(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        Box::pin(async { Ok(json!("status")) })
    }
    fn watchdog_stats(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        Box::pin(async { Ok(json!("watchdog")) })
    }
    fn watchdog_configuration(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        Box::pin(async { Ok(json!("configuration")) })
    }
    fn inventory(&self) -> Arc<Value> {
        Arc::new(json!({"service": "lab", "hosts": {"a": {"password": "x"}}}))
    }
    fn version(&self) -> Value {
        json!({"norfab": "0.1.0", "lab": "not this one"})
    }
    fn fetched_files_dir(&self) -> PathBuf {
        self.inner.fetched_files_dir()
    }
}

#[tokio::test]
async fn what_the_worker_knows_is_asked_with_the_given_filters() {
    let view = Asked::default();
    let asked = Arc::clone(&view.asked);
    let worker = TestWorker::new(service()).view(view);
    let take = || asked.lock().expect("nobody panicked").pop().expect("it was asked");

    let result = worker.start_with("job_details", json!(["abc", false]), json!({})).result().await;
    assert_eq!(result.value(), Some(json!({"uuid": "abc"})));
    assert_eq!(take(), r#"JobDetailsQuery { uuid: "abc", result: false, events: true }"#);

    let result = worker.run("job_details", json!({"uuid": "nope"})).await;
    assert_eq!(result.errors, [r#"worker 'test-worker' has no job with the id "nope""#]);

    let kwargs = json!({"pending": false, "task": "cli", "last": 2});
    let result = worker.run("job_list", kwargs).await;
    assert_eq!(result.value(), Some(json!([{"uuid": "x"}])));
    assert_eq!(
        take(),
        r#"JobFilter { pending: false, completed: true, task: Some("cli"), last: Some(2), client: None, uuid: None }"#
    );
    let result = worker.run("job_list", json!({"client": ""})).await;
    assert_eq!(result.errors, ["argument 'client': identity is empty"]);

    let result = worker.run("get_logs", json!({"last": 99_999_999, "level": "error"})).await;
    assert_eq!(result.errors, ["the log file cannot be read"]);
    assert_eq!(take(), r#"LogFilter { last: 10000, level: Some("ERROR"), logger: None, since: None, until: None }"#);
    let result = worker.run("get_logs", json!({"level": "loud"})).await;
    let error = "argument 'level': expected one of DEBUG, INFO, WARNING, ERROR, CRITICAL, found \"loud\"";
    assert_eq!(result.errors, [error]);

    let rows = [
        ("get_stats", json!("stats")),
        ("get_worker_status", json!("status")),
        ("get_watchdog_stats", json!("watchdog")),
        ("get_watchdog_configuration", json!("configuration")),
        ("get_inventory", json!({"service": "lab", "hosts": {"a": {"password": "********"}}})),
        ("get_version", json!({"lab": "1.2.3", "norfab": "0.1.0"})),
    ];
    for (task, expected) in rows {
        assert_eq!(worker.run(task, json!({})).await.value(), Some(expected), "{task}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn fetched_files_are_deleted_by_pattern_and_nothing_outside_of_their_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let outside = folder.path().join("outside.txt");
    let root = folder.path().join("fetchedfiles");
    for name in ["a.txt", "b.cfg", "d/c.txt", "d/e/f.txt", "keep/.hidden", "ü/x.txt"] {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
        std::fs::write(path, "x").expect("a file");
    }
    std::fs::write(&outside, "x").expect("a file");
    std::os::unix::fs::symlink(folder.path(), root.join("way-out")).expect("a link");
    let view = TestView { fetched_files_dir: root.clone(), ..TestView::default() };
    let worker = TestWorker::new(service()).view(view);
    let delete = async |pattern: &str| {
        let result = worker.run("delete_fetched_files", json!({"filepath": pattern})).await;
        (result.value().expect("JSON"), result.errors)
    };
    let shown = |names: &[&str]| -> Value {
        json!(names.iter().map(|name| root.join(name).display().to_string()).collect::<Vec<_>>())
    };

    let absolute = outside.display().to_string();
    for (pattern, why) in [
        (absolute.as_str(), "it is absolute"),
        ("../outside.txt", "'..' leads out of the folder"),
        ("d/../../*", "'..' leads out of the folder"),
        ("", "it is empty, '*' means all"),
    ] {
        let (_, errors) = delete(pattern).await;
        assert!(errors[0].ends_with(why), "{pattern}: {errors:?}");
    }
    assert_eq!(delete("way-out/*.txt").await.0, json!({"deleted": [], "errors": []}));
    assert!(outside.exists());

    let (value, _) = delete("./*.txt").await;
    assert_eq!(value["deleted"], shown(&["a.txt"]));
    let (value, _) = delete("**/*.txt").await;
    assert_eq!(value["deleted"], shown(&["d/c.txt", "d/e/f.txt", "ü/x.txt"]));
    let (value, _) = delete("*").await;
    assert_eq!(value["deleted"], shown(&["b.cfg", "d", "keep", "way-out", "ü"]));
    assert_eq!(value["errors"], json!([]));
    assert!(outside.exists());
    assert_eq!(std::fs::read_dir(&root).expect("the folder stays").count(), 0);

    std::fs::remove_dir(&root).expect("it is empty");
    assert_eq!(delete("*").await.0, json!({"deleted": [], "errors": []}));
}
