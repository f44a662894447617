//! The client's owner loop, its handle, and the jobs that come through it.

pub mod files;
mod handle;
mod mailbox;
mod run;
mod storing;

use std::time::Duration;

use norfab_jobs::{ClientStore, StoreError};
use norfab_protocol::Identity;
use norfab_protocol::client::ClientConfig;
use norfab_transport::DealerLink;

use crate::status::TellProblem;

pub use files::{FetchError, Fetched, Upload, UploadError, Uploaded};
pub use handle::{
    AnswerError, ClientHandle, JobHandle, JobReport, JobSpec, LookUpError, ManagementAnswer, SubmitError, WorkerReport,
    new_job_id,
};

/// Commands that callers may have waiting for the client's owner, as in the recorded 0.25 client.
pub const CLIENT_QUEUE_COMMANDS: usize = 10_000;

/// Time-out of a job that names none, as in the recorded clients.
pub const DEFAULT_JOB_TIMEOUT: Duration = Duration::from_secs(600);

/// Opens the job database, on the thread that will own it.
pub type OpenClientStore = Box<dyn FnOnce() -> Result<Box<dyn ClientStore>, StoreError> + Send>;

/// All that a client needs.
pub struct ClientOptions {
    /// Its name.
    pub identity: Identity,
    /// Bounds and habits.
    pub config: ClientConfig,
    /// Its socket.
    pub link: Box<dyn DealerLink>,
    /// Its database.
    pub store: OpenClientStore,
    /// What its log says of its link: [`tell_problem`](crate::tell_problem) names no place.
    pub problem: TellProblem,
}
