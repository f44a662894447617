//! Cancellations: the body of DELETE, and what is said of one.

use serde::{Deserialize, Serialize};

use crate::name::Identity;

/// Most bytes of [`CancelBody::text`] that are kept: it stands in rows, results and on terminals.
pub const CANCEL_TEXT_BYTES_MAX: usize = 1024;

/// Why a job is to end, in the body of DELETE.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CancelBody {
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who, when and why, as everybody shows it: `cancelled by WHO at WHEN: REASON`. Absent: the worker says it in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Ours, for brokers and workers: the job as a whole ends, so that no POST of it is taken any more. Without it one worker is to
    /// end what it has, and the job may go on elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends: bool,
    /// Ours, for workers: the fabric takes the job back from this worker, as another one has it. Nobody cancelled it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub back: bool,
    /// Ours, for brokers: whose job it is, where another client cancels it. That client is told and sees to the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<Identity>,
}

/// `cancelled by WHO at WHEN: REASON`, in at most [`CANCEL_TEXT_BYTES_MAX`] bytes.
pub fn cancel_text(by: &str, at: &str, reason: Option<&str>) -> String {
    bounded_cancel_text(match reason {
        Some(reason) => format!("cancelled by {by} at {at}: {reason}"),
        None => format!("cancelled by {by} at {at}"),
    })
}

/// A text about a cancellation, cut where it is too long.
pub fn bounded_cancel_text(mut text: String) -> String {
    if text.len() > CANCEL_TEXT_BYTES_MAX {
        let end = (0..=CANCEL_TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
    }
    text
}

/// The key in an event's extras that says that the job was cancelled. Its value is an object with `text`.
pub const CANCELLATION_KEY: &str = "cancellation";

/// The status of an answer that says that a job is cancelled. In a worker's 404 to a cancellation: the job is not known there, and
/// nothing of it can come any more (a question gets another word, because a POST may be on its way behind it). In a broker's 400:
/// somebody cancelled the job.
pub const CANCELLED_WORD: &str = "CANCELLED";
