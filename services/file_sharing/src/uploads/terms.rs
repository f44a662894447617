//! The task that says whether a file can be uploaded, and how much.

use std::sync::Arc;

use norfab_service::{Task, TaskContext, TaskError, TaskOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::Uploads;
use super::place::Place;

#[derive(Debug, Deserialize, JsonSchema)]
struct Input {
    /// Where a file is to be uploaded, nf://path; without it, only what is allowed is told.
    #[serde(default)]
    url: Option<String>,
}

pub(crate) fn task(uploads: &Arc<Uploads>) -> Task {
    let uploads = Arc::clone(uploads);
    Task::new("upload_terms", "Tells whether and where files can be uploaded, and how much.", {
        move |context: TaskContext, Input { url }| {
            let terms = terms(&uploads, &context, url.as_deref());
            async move { Ok::<_, TaskError>(terms) }
        }
    })
}

fn terms(uploads: &Uploads, context: &TaskContext, url: Option<&str>) -> TaskOutput {
    let settings = match uploads.settings(context.worker()) {
        Ok(settings) => settings,
        Err(refusal) => return TaskOutput::new(json!({ "allowed": false, "reason": refusal.to_string() })),
    };
    let refusal = url.and_then(|url| Place::of(url, settings, &uploads.hidden).err());
    TaskOutput::new(json!({
        "allowed": refusal.is_none(),
        "reason": refusal.map(|refusal| refusal.to_string()),
        "folder": settings.url(),
        "max_file_bytes": settings.file_bytes_max,
        "max_total_bytes": settings.total_bytes_max,
        "max_files": settings.files_max,
        "overwrite": settings.overwrite,
    }))
}
