//! Questions about the states of jobs, and answers in one word.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{decode, posting};
use crate::name::{Identity, JobId, NAME_BYTES_MAX, ServiceName};

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
    /// Ours, where a refusal says `retry`: the last turn of the job that this worker refused ([`super::Posting::turn`]). It takes no
    /// POST of this turn or an earlier one any more.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// Ours, in the 404 that answers [`JobsAsked`]: those of its jobs that the worker knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<Vec<JobId>>,
}

/// What is no turn says nothing of one, and the rest of the reply counts.
fn lenient<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    posting::turn(deserializer)
}

/// Most jobs that one question names: 40 KB, which every worker of a service gets.
pub const JOBS_ASKED_MAX: usize = 1000;

/// Longest body of such a question, and of the answer to it: as many ids of the longest kind, each character escaped. What is longer
/// is not read at all, so that nobody is kept busy by it.
pub const ASKED_BYTES_MAX: usize = JOBS_ASKED_MAX * (2 * NAME_BYTES_MAX + 3) + 4096;

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
    /// No job is named twice in what is returned.
    pub fn read(body: &[u8]) -> Option<Self> {
        if body.len() > ASKED_BYTES_MAX {
            return None;
        }
        let mut asked: Self = decode("a question about jobs", body).ok()?;
        let mut named = HashSet::new();
        asked.jobs.retain(|job| named.insert(job.clone()));
        (asked.jobs.len() <= JOBS_ASKED_MAX).then_some(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_each_job_once_and_no_more_than_a_bound_says() {
        let read = |ids: &[String]| {
            let body = serde_json::json!({ "fabric": 1, "jobs": ids }).to_string();
            JobsAsked::read(body.as_bytes()).map(|asked| asked.jobs.len())
        };
        let ids: Vec<String> = (0..=JOBS_ASKED_MAX).map(|number| number.to_string()).collect();
        assert_eq!(read(&ids[1..]), Some(JOBS_ASKED_MAX));
        assert_eq!(read(&ids), None);
        assert_eq!(read(&vec!["1".to_owned(); 2 * JOBS_ASKED_MAX]), Some(1));
        assert_eq!(read(&vec!["1".to_owned(); ASKED_BYTES_MAX / 4]), None, "too long to be read");
        let longest: Vec<String> =
            (0..JOBS_ASKED_MAX).map(|number| format!("{number:\"<width$}", width = NAME_BYTES_MAX)).collect();
        assert_eq!(read(&longest), Some(JOBS_ASKED_MAX));
    }
}
