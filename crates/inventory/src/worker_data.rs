//! The data of one worker: all patterns that match its name, their files and mappings merged in order.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::{InventoryError, ValueProblem, shown};
use crate::inventory::Inventory;
use crate::key_path::KeyPath;
use crate::merge::{merge_into, python_equal};
use crate::pattern;
use crate::text_file::{self, Loaded};
use crate::warning::Warning;

/// The worker that the process with the broker adds by itself.
pub const FILESHARING_WORKER: &str = "filesharing-worker-1";

/// Most items of workers that [`Inventory::broken_workers`] tells of: enough to see what is wrong.
pub const BROKEN_MAX: usize = 20;

/// What an inventory says about one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerData {
    /// A mapping that is not empty.
    pub value: Value,
    /// The files it came from, in the order in which they were merged.
    pub files: Vec<PathBuf>,
    /// What the authors of these files should know.
    pub warnings: Vec<Warning>,
}

/// One thing to merge.
struct Item {
    value: Value,
    path: KeyPath,
}

impl Inventory {
    /// The merged data of the worker `name`, `None` if there is none. Files are read anew at each call.
    ///
    /// # Errors
    ///
    /// Those of [`worker_data`](Self::worker_data).
    pub fn worker(&self, name: &str) -> Result<Option<Value>, InventoryError> {
        Ok(self.worker_data(name)?.map(|data| data.value))
    }

    /// As [`worker`](Self::worker), with the files and the warnings.
    ///
    /// # Errors
    ///
    /// A file that is missing, cannot be rendered or parsed or holds no mapping, and an item that is neither a path nor
    /// a mapping; each with file, line and key.
    pub fn worker_data(&self, name: &str) -> Result<Option<WorkerData>, InventoryError> {
        let mut merged = Map::new();
        let mut files = Vec::new();
        let mut warnings = Vec::new();
        for item in self.worker_items(name)? {
            match &item.value {
                Value::Object(entries) => merge_into(&mut merged, entries),
                Value::String(path) => {
                    let file = self.base_dir().join(path);
                    let loaded = self.worker_file(&file, &item.path)?;
                    let Value::Object(entries) = &loaded.document.value else {
                        return Err(self.origin().error(
                            &item.path,
                            ValueProblem::WorkerFileNoMapping { file, found: shown(&loaded.document.value) },
                        ));
                    };
                    merge_into(&mut merged, entries);
                    files.push(file);
                    warnings.extend(loaded.document.warnings);
                }
                other => {
                    return Err(self.origin().unexpected(&item.path, "the path of a file or a mapping", other));
                }
            }
        }
        Ok((!merged.is_empty()).then_some(WorkerData { value: Value::Object(merged), files, warnings }))
    }

    /// An error about `value`, which stands under `key` in the data of the worker `name`, where that value comes from a file that can
    /// be named; `None` where this inventory has it from nowhere. `problem` says what was expected and found.
    pub fn worker_error_at(
        &self,
        name: &str,
        key: &str,
        value: &Value,
        problem: impl Into<String>,
    ) -> Option<InventoryError> {
        let mut found = None;
        // What is merged last wins; files may have changed since.
        for item in self.worker_items(name).ok()? {
            match &item.value {
                Value::Object(entries) if entries.get(key) == Some(value) => {
                    let location = self.origin().location(&item.path.key(key));
                    found = Some((location, item.path.key(key)));
                }
                Value::String(path) => {
                    let Ok(loaded) = self.worker_file(&self.base_dir().join(path), &item.path) else { continue };
                    if loaded.document.value.get(key) == Some(value) {
                        let path = KeyPath::root().key(key);
                        found = Some((loaded.source.maybe_line(loaded.document.lines.line(&path)), path));
                    }
                }
                _ => {}
            }
        }
        let (location, key) = found?;
        Some(InventoryError::Value {
            location,
            key,
            problem: Box::new(ValueProblem::Refused { problem: problem.into() }),
        })
    }

    /// What is wrong with the lists of those patterns in the `workers` section that are `wanted`: a list that is none, an item that is
    /// neither a path nor a mapping, a file that is not there. At most [`BROKEN_MAX`] of them. Files are not read.
    pub fn broken_workers(&self, wanted: impl Fn(&str) -> bool) -> Vec<InventoryError> {
        let section = KeyPath::root().key("workers");
        let of_pattern = |(pattern, listed): (&str, &Value)| -> Vec<InventoryError> {
            let path = section.key(pattern);
            let Value::Array(items) = listed else {
                return vec![self.origin().unexpected(&path, "a list of file paths and mappings", listed)];
            };
            let wrong = |(index, item): (usize, &Value)| match item {
                Value::Object(_) => None,
                Value::String(name) => {
                    let (file, base_dir) = (self.base_dir().join(name), self.base_dir().to_path_buf());
                    let missing = ValueProblem::NoSuchWorkerFile { file: file.clone(), base_dir };
                    (!file.is_file()).then(|| self.origin().error(&path.item(index), missing))
                }
                other => Some(self.origin().unexpected(&path.item(index), "the path of a file or a mapping", other)),
            };
            items.iter().enumerate().filter_map(wrong).collect()
        };
        self.workers().filter(|(pattern, _)| wanted(pattern)).flat_map(of_pattern).take(BROKEN_MAX).collect()
    }

    /// The items of all matching patterns, each once.
    fn worker_items(&self, name: &str) -> Result<Vec<Item>, InventoryError> {
        let mut items: Vec<Item> = Vec::new();
        let mut add = |value: &Value, path: KeyPath| {
            if !items.iter().any(|item| python_equal(&item.value, value)) {
                items.push(Item { value: value.clone(), path });
            }
        };
        let section = KeyPath::root().key("workers");
        let built_in = self.built_in_filesharing().filter(|_| name == FILESHARING_WORKER);
        // The built-in data stands where the file names the worker itself, at the end if it does not.
        let mut built_in_due = built_in;
        for (pattern, listed) in self.workers() {
            if !pattern::matches(pattern, name) {
                continue;
            }
            let path = section.key(pattern);
            if pattern == FILESHARING_WORKER
                && let Some(value) = built_in_due.take()
            {
                add(&value, path.clone());
            }
            let Value::Array(listed) = listed else {
                return Err(self.origin().unexpected(&path, "a list of file paths and mappings", listed));
            };
            for (index, value) in listed.iter().enumerate() {
                add(value, path.item(index));
            }
        }
        if let Some(value) = built_in_due {
            add(&value, section.key(FILESHARING_WORKER));
        }
        Ok(items)
    }

    fn worker_file(&self, file: &Path, path: &KeyPath) -> Result<Loaded, InventoryError> {
        match text_file::load(file, self.environment()) {
            Err(InventoryError::NoSuchFile { file } | InventoryError::NotAFile { file }) => Err(self
                .origin()
                .error(path, ValueProblem::NoSuchWorkerFile { file, base_dir: self.base_dir().to_path_buf() })),
            other => other,
        }
    }

    /// The built-in data of the file sharing worker, if it was added.
    pub(crate) fn built_in_filesharing(&self) -> Option<Value> {
        self.has_builtin_filesharing()
            .then(|| json!({"service": "filesharing", "base_dir": self.base_dir().to_string_lossy()}))
    }
}
