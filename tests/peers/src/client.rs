//! A client of either side.

use serde_json::{Value, json};

use crate::{Peer, WAIT_LONG};

/// A job to run: `Job::new("dummy", "ok").with("a", 1).at("any")`.
#[derive(Clone, Debug)]
pub struct Job(Value);

impl Job {
    /// A job for all workers of `service`, with a minute to finish.
    #[must_use]
    pub fn new(service: &str, task: &str) -> Self {
        Self(json!({"service": service, "task": task, "kwargs": {}, "workers": "all", "timeout": 60}))
    }

    /// Adds a keyword argument.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0["kwargs"][name] = value.into();
        self
    }

    /// Sets the positional arguments.
    #[must_use]
    pub fn with_args(mut self, args: impl Into<Value>) -> Self {
        self.0["args"] = args.into();
        self
    }

    /// Sets the target: `any`, `all`, a name, or a list of names.
    #[must_use]
    pub fn at(mut self, workers: impl Into<Value>) -> Self {
        self.0["workers"] = workers.into();
        self
    }

    /// Sets the job's deadline.
    #[must_use]
    pub fn within(mut self, seconds: u32) -> Self {
        self.0["timeout"] = seconds.into();
        self
    }
}

/// A client in a process of its own. Calls that fail in the client fail the test.
#[derive(Debug)]
pub struct Client(Peer);

impl Client {
    pub(crate) fn new(peer: Peer) -> Self {
        Self(peer)
    }

    /// The process.
    pub fn peer(&mut self) -> &mut Peer {
        &mut self.0
    }

    /// Runs a job to its end: an object of results by worker, or null if a Python client has none to give.
    pub fn run(&mut self, job: Job) -> Value {
        self.0.call("run_job", job.0)
    }

    /// Submits a job and gives its id.
    pub fn submit(&mut self, job: Job) -> String {
        let id = self.0.call("submit_job", job.0);
        id.as_str().expect("an id is text").to_owned()
    }

    /// Waits for the end of a submitted job, as [`Client::run`] does.
    pub fn wait(&mut self, id: &str) -> Value {
        self.0.call("wait", json!({"uuid": id, "timeout": 60}))
    }

    /// Submits `count` jobs at once: `{"seconds": until all were done, "states": {"COMPLETED": 10}}`.
    pub fn run_many(&mut self, job: Job, count: u32) -> Value {
        let mut arguments = job.0;
        arguments["count"] = count.into();
        self.0.call("run_many", arguments)
    }

    /// Submits `count` jobs and does not wait for them: the seconds until the last one was taken.
    pub fn submit_many(&mut self, job: Job, count: u32) -> f64 {
        let mut arguments = job.0;
        arguments["count"] = count.into();
        self.0.call("submit_many", arguments).as_f64().expect("seconds are a number")
    }

    /// Submits a job of the task `marked` of `service` for each id, which writes its execution to the file `path` and takes so long:
    /// the ids that were refused, with the reason.
    pub fn submit_marked(&mut self, service: &str, ids: &[String], path: &str, seconds: f64, timeout: u32) -> Value {
        let arguments = json!({
            "service": service, "task": "marked", "ids": ids, "path": path, "seconds": seconds, "timeout": timeout,
        });
        self.0.call("submit_marked", arguments)
    }

    /// All jobs of this client by its database: id to state and first error, and with `results` whether a result says that it failed.
    pub fn states(&mut self, results: bool) -> Value {
        self.0.call("states", json!({"results": results}))
    }

    /// Waits until no job of this client is unfinished, or for so many seconds: how many are in which state, by its database.
    pub fn wait_for_all(&mut self, seconds: u32) -> Value {
        self.0.call("wait_for_all", json!({"timeout": seconds}))
    }

    /// Runs `count` jobs, each after the last: the seconds that each took.
    pub fn run_one_by_one(&mut self, job: Job, count: u32) -> Vec<f64> {
        let mut arguments = job.0;
        arguments["count"] = count.into();
        let taken = self.0.call("run_one_by_one", arguments);
        let taken = taken.as_array().expect("times are a list");
        taken.iter().map(|time| time.as_f64().expect("a time is a number")).collect()
    }

    /// The row of a job in the client's database.
    pub fn job(&mut self, id: &str) -> Value {
        self.0.call("job", json!({"uuid": id}))
    }

    /// Events of a job that were not taken yet, up to one whose type or message is `until`.
    pub fn events(&mut self, id: &str, until: &str) -> Vec<Value> {
        let taken = self.0.call("events", json!({"uuid": id, "timeout": 30, "until": until}));
        let Value::Array(events) = taken else { panic!("events are a list, not {taken}") };
        events
    }

    /// All events up to the end of the job.
    pub fn all_events(&mut self, id: &str) -> Vec<Value> {
        let taken = self.0.call("events", json!({"uuid": id, "timeout": 30}));
        let Value::Array(events) = taken else { panic!("events are a list, not {taken}") };
        events
    }

    /// Answers an input request of a job.
    pub fn answer(&mut self, id: &str, input_id: &str, value: impl Into<Value>) {
        self.0.call("answer", json!({"uuid": id, "input_id": input_id, "value": value.into()}));
    }

    /// Declines an input request of a job.
    pub fn decline(&mut self, id: &str, input_id: &str) {
        self.0.call("answer", json!({"uuid": id, "input_id": input_id, "cancel": true}));
    }

    /// Asks a built-in service of the broker: `{"status", "results", "errors"}`.
    pub fn mmi(&mut self, service: &str, task: &str, kwargs: Value) -> Value {
        self.0.call("mmi", json!({"service": service, "task": task, "kwargs": kwargs}))
    }

    /// Names of the workers that the broker lists, sorted.
    pub fn workers_seen(&mut self) -> Vec<String> {
        names(&self.0.call("workers_seen", json!({})))
    }

    /// Waits until the broker lists all of these workers, and gives what it lists.
    pub fn wait_for_workers(&mut self, wanted: &[&str]) -> Vec<String> {
        names(&self.0.call("wait_for_workers", json!({"names": wanted, "timeout": WAIT_LONG.as_secs()})))
    }

    /// Fetches a file of the file sharing service: `{"status", "content", "error", "size", "md5"}`, the last two of
    /// the file that arrived.
    pub fn fetch_file(&mut self, url: &str) -> Value {
        self.0.call("fetch_file", json!({"url": url, "timeout": 60}))
    }
}

fn names(list: &Value) -> Vec<String> {
    let list = list.as_array().expect("names are a list");
    list.iter().map(|name| name.as_str().expect("a name is text").to_owned()).collect()
}
