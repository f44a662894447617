//! A shared folder, a service on it, and a worker that runs its tasks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use norfab_file_sharing::service;
use norfab_service::testing::TestWorker;
use norfab_service::{TaskMessage, TaskResult};
use serde_json::{Value, json};
use tempfile::TempDir;

pub struct Tree {
    outer: TempDir,
    pub worker: TestWorker,
}

impl Tree {
    /// An empty shared folder `base` in a folder of its own.
    pub fn new() -> Self {
        Self::with(json!({"base_dir": "base"}))
    }

    /// One that serves names beginning with a dot, as the Python service does.
    pub fn with_dotfiles() -> Self {
        Self::with(json!({"base_dir": "base", "dotfiles": [".*"]}))
    }

    fn with(inventory: Value) -> Self {
        let outer = tempfile::tempdir().expect("a folder");
        let service = service(&inventory, outer.path()).expect("a service");
        Self { worker: TestWorker::new(service), outer }
    }

    pub fn base(&self) -> PathBuf {
        self.outer.path().join("base")
    }

    /// The folder that the shared one is in.
    pub fn outer(&self) -> &Path {
        self.outer.path()
    }

    /// Writes a file, its folders with it.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.base().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, content).expect("written");
    }

    /// Runs a task to its end and gives its result as clients get it.
    pub async fn run(&self, task: &str, kwargs: Value) -> Value {
        as_json(&self.worker.run(task, kwargs).await)
    }

    /// Runs a task to its end and gives its result and all that it sent.
    pub async fn run_and_listen(&self, task: &str, kwargs: Value) -> (Value, Vec<TaskMessage>) {
        let (context, _port, mut messages) = self.worker.context(task);
        let kwargs = kwargs.as_object().expect("an object").clone();
        let service = Arc::clone(context.catalogue());
        let result = service.run(context, Vec::new(), kwargs).await;
        let sent = std::iter::from_fn(|| messages.try_recv().ok()).collect();
        (as_json(&result), sent)
    }

    /// The errors of a task that fails.
    pub async fn errors(&self, task: &str, kwargs: Value) -> Vec<String> {
        let result = self.worker.run(task, kwargs).await;
        assert!(result.failed, "{task} did not fail");
        result.errors
    }
}

pub fn as_json(result: &TaskResult) -> Value {
    serde_json::to_value(result).expect("plain data")
}

/// Bytes in which every place is different enough to notice a mix-up.
pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8) as u64)
        .flat_map(|word| word.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .take(bytes)
        .collect()
}
