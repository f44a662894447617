//! Questions about the states of jobs, and answers in one word.

use serde::{Deserialize, Serialize};

use super::decode;
use crate::name::{Identity, JobId, ServiceName};

/// Body of 300, 404, 500 and of a worker's refusal: a state in one word.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateReply {
    /// Which worker.
    pub worker: Identity,
    /// Which job.
    pub uuid: JobId,
    /// Its service.
    pub service: ServiceName,
    /// `STARTED`, `PENDING`, `JOB NOT FOUND`, `UNKNOWN STATUS: x`, `REFUSED`.
    pub status: String,
    /// Why, for refusals: the key that Python clients look at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Ours, for refusals: another worker, or this one later, may take the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<bool>,
    /// Ours, in the 404 that answers [`JobsAsked`]: those of its jobs that the worker knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<Vec<JobId>>,
}

/// Most jobs that one question names: 40 KB, which every worker of a service gets.
pub const JOBS_ASKED_MAX: usize = 1000;

/// Body of a GET of ours about many jobs. Its id is no job's, so that who does not understand it answers with a plain 404.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobsAsked {
    /// The version of the extensions, as in other bodies of ours.
    pub fabric: u32,
    /// Which jobs: at most [`JOBS_ASKED_MAX`].
    pub jobs: Vec<JobId>,
}

impl JobsAsked {
    /// Reads the body of a GET. `None`: it is about one job, as all of Python clients are.
    pub fn read(body: &[u8]) -> Option<Self> {
        let asked: Self = decode("a question about jobs", body).ok()?;
        (asked.jobs.len() <= JOBS_ASKED_MAX).then_some(asked)
    }
}
