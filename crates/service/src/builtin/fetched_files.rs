//! `delete_fetched_files`: frees the space of files that the worker fetched, and of nothing else.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::context::TaskContext;
use crate::output::TaskError;
use crate::task::Task;

/// Most files and folders that one call looks at: a folder of fetched files has some thousands at most, and a call must
/// end.
pub const FETCHED_ENTRIES_MAX: usize = 100_000;

/// As a shell reads a pattern: `*` stops at folders and leaves hidden files alone.
const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

#[derive(Debug, Deserialize, JsonSchema)]
struct DeleteFetchedFiles {
    /// Which files and folders, as a pattern relative to the folder of fetched files: `*` is all of them, `**/*.txt` all
    /// texts.
    filepath: String,
}

pub(super) fn task() -> Task {
    Task::blocking(
        "delete_fetched_files",
        "Deletes files and folders that this worker has fetched, those that match the pattern filepath.",
        delete_fetched_files,
    )
    .fastapi(json!({"methods": ["GET"]}))
    .agent(json!({"enabled": false}))
}

fn delete_fetched_files(context: TaskContext, input: DeleteFetchedFiles) -> Result<Value, TaskError> {
    let pattern = checked_pattern(&input.filepath)?;
    let root = context.view().fetched_files_dir();
    let mut deleted = Vec::new();
    let mut errors = Vec::new();
    let mut looked_at = 0;
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            // Nothing was fetched yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder == root => break,
            Err(error) => {
                errors.push(format!("cannot list {}: {error}", folder.display()));
                continue;
            }
        };
        for entry in entries {
            looked_at += 1;
            if looked_at > FETCHED_ENTRIES_MAX {
                return Err(TaskError::new(format!(
                    "{} holds more than {FETCHED_ENTRIES_MAX} files: {} were deleted, call again with a pattern that \
                     matches whole folders",
                    root.display(),
                    deleted.len()
                )));
            }
            if context.is_cancelled() {
                return Err(TaskError::new(format!("ended after {} files were deleted", deleted.len())));
            }
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(error) => {
                    errors.push(format!("cannot list {}: {error}", folder.display()));
                    continue;
                }
            };
            match visit(&root, &path, &pattern) {
                Ok(Visit::Deleted) => deleted.push(path.display().to_string()),
                Ok(Visit::Folder) => folders.push(path),
                Ok(Visit::Kept) => {}
                Err(error) => errors.push(format!("cannot delete {}: {error}", path.display())),
            }
        }
    }
    deleted.sort();
    Ok(json!({"deleted": deleted, "errors": errors}))
}

enum Visit {
    Deleted,
    /// To be looked into.
    Folder,
    Kept,
}

fn visit(root: &Path, path: &Path, pattern: &Pattern) -> io::Result<Visit> {
    // A link is deleted itself and never followed: what it points to was not fetched.
    let kind = fs::symlink_metadata(path)?.file_type();
    let relative = path.strip_prefix(root).map_err(io::Error::other)?;
    if !pattern.matches_path_with(relative, OPTIONS) {
        return Ok(if kind.is_dir() { Visit::Folder } else { Visit::Kept });
    }
    if kind.is_dir() {
        fs::remove_dir_all(path)?;
    } else {
        fs::remove_file(path)?;
    }
    Ok(Visit::Deleted)
}

fn checked_pattern(filepath: &str) -> Result<Pattern, TaskError> {
    let refused = |why: &str| {
        TaskError::new(format!(
            "argument 'filepath': expected a pattern relative to the folder of fetched files, found {filepath:?}: {why}"
        ))
    };
    let path = PathBuf::from(filepath);
    if filepath.is_empty() {
        return Err(refused("it is empty, '*' means all"));
    }
    if path.is_absolute() {
        return Err(refused("it is absolute"));
    }
    if path.components().any(|component| component == Component::ParentDir) {
        return Err(refused("'..' leads out of the folder"));
    }
    let path: PathBuf = path.components().filter(|component| *component != Component::CurDir).collect();
    let text = path.to_str().unwrap_or(filepath);
    Pattern::new(text).map_err(|error| refused(error.msg))
}
