//! Uploads: files that clients send into one folder, where the worker's inventory allows that.
//!
//! A file gathers in `.NAME.part` beside its place, is checked piece by piece, and is moved there when it is whole and on the disk. What
//! came of one that broke off stays, and the next upload goes on there.
//!
//! Reading order: [`settings`] (what the inventory allows), `place` (where a URL leads), `census` (what is there), `room`
//! (reckoned on from there), `running` (one upload at a place, and room for it), `progress` (whether one gets on), `taking` (the task), `terms` (the task that says what is allowed).

mod census;
mod place;
mod progress;
mod refusal;
mod room;
mod running;
pub mod settings;
mod signs;
mod taking;
mod terms;

use std::path::PathBuf;
use std::sync::Arc;

use norfab_service::{Identity, Task};
use serde_json::json;

pub use census::PART_SECONDS_MAX;
pub use place::UPLOAD_LEVELS_MAX;
pub use progress::{PROGRESS_BYTES_MIN, PROGRESS_TIME};
pub use room::REFUSAL_AGE_MAX;
pub use running::{SILENT_MAX, UPLOADS_AT_ONCE_MAX, uploads_at_once};

use crate::hidden::Hidden;
use refusal::UploadRefusal;
use running::Board;
use settings::UploadSettings;

/// What the tasks for uploads have in common.
pub(crate) struct Uploads {
    base_dir: PathBuf,
    hidden: Hidden,
    settings: Option<UploadSettings>,
    board: Arc<Board>,
}

impl Uploads {
    /// Of a worker that runs so many jobs at once.
    pub(crate) fn new(
        base_dir: PathBuf,
        hidden: Hidden,
        settings: Option<UploadSettings>,
        jobs_max: usize,
    ) -> Arc<Self> {
        Arc::new(Self { base_dir, hidden, settings, board: Arc::new(Board::of_jobs(jobs_max)) })
    }

    fn settings(&self, worker: &Identity) -> Result<&UploadSettings, UploadRefusal> {
        self.settings.as_ref().ok_or_else(|| UploadRefusal::NotAllowed { worker: worker.clone() })
    }
}

/// The task that says what is allowed, which only reads.
pub(crate) fn terms_task(uploads: &Arc<Uploads>) -> Task {
    terms::task(uploads)
}

/// The task that takes a file. REST clients and agents cannot send content.
pub(crate) fn taking_task(uploads: &Arc<Uploads>) -> Task {
    taking::task(uploads).fastapi(false).agent(json!({"enabled": false})).mcp(json!({
        "annotations": {
            "title": "Take File",
            "readOnlyHint": false,
            "destructiveHint": true,
            "idempotentHint": true,
            "openWorldHint": false,
        }
    }))
}
