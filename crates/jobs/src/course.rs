//! How a worker's job goes from state to state.

use norfab_protocol::name::JobId;

use crate::error::OperationError;
use crate::worker::{WorkerState, inconsistent};

/// The part of a job that its state changes touch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Course {
    /// Where it is.
    pub state: WorkerState,
    /// How often it was begun.
    pub attempts: u32,
    /// When the last attempt began, Unix seconds.
    pub started: Option<f64>,
    /// When it reached its final state, Unix seconds.
    pub finished: Option<f64>,
}

impl Course {
    /// The one rule of change: what a stored job becomes when it is told a state.
    pub fn advance(id: &JobId, mut course: Self, state: WorkerState, at: f64) -> Result<Self, OperationError> {
        if course.state.is_final() {
            return Err(OperationError::Final { id: id.clone(), state: course.state.as_str() });
        }
        if !at.is_finite() {
            return Err(inconsistent(id, state));
        }
        if state == WorkerState::Started {
            course.attempts = course.attempts.saturating_add(1);
            course.started = Some(at);
        }
        if state.is_final() {
            course.finished = Some(at);
        }
        course.state = state;
        Ok(course)
    }

    /// As [`Self::advance`], for a job that starts in place of an attempt that was counted and did not begin.
    pub fn started_anew(id: &JobId, course: Self, at: f64) -> Result<Self, OperationError> {
        let attempts = course.attempts;
        Ok(Self { attempts, ..Self::advance(id, course, WorkerState::Started, at)? })
    }

    /// As [`Self::advance`], for a job that has the answer to its question.
    pub fn answered(id: &JobId, course: Self) -> Result<Self, OperationError> {
        if course.state.is_final() {
            return Err(OperationError::Final { id: id.clone(), state: course.state.as_str() });
        }
        Ok(Self { state: WorkerState::Started, ..course })
    }

    /// As [`Self::advance`], for an end with a payload.
    pub fn finish(id: &JobId, current: Self, state: WorkerState, at: f64) -> Result<Self, OperationError> {
        let course = Self::advance(id, current, state, at)?;
        if !state.is_final() {
            return Err(inconsistent(id, state));
        }
        Ok(course)
    }
}
