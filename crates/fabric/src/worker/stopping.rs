//! The end of a worker: what it waits for, and the jobs that it leaves to the next process.

use std::time::{Duration, Instant};

use norfab_protocol::worker::Abandoned;
use norfab_protocol::{JobId, TaskName};
use norfab_service::CancelReason;
use norfab_transport::LinkError;

use super::run::Run;
use super::tasks;
use crate::clock::SystemClock;
use crate::turn::Turn;

/// How long running tasks have to return after they were told to end.
const ABORT_GRACE: Duration = Duration::from_secs(6);

/// How far a worker that stops has come.
pub(super) struct Stopping {
    pub(super) drained_by: Instant,
    pub(super) aborted_by: Option<Instant>,
    pub(super) said_goodbye: bool,
}

impl Run {
    /// A task has not begun: its job is left to the next process, unless it was cancelled after the task had been told that the worker
    /// stops, of which a task takes no other word.
    pub(super) fn leave(&mut self, job: JobId) {
        self.ports.remove(&job);
        match self.machine.cancelled(&job) {
            Some((task, why)) => self.end_without_task(&job, &task, &why),
            None => {
                self.left.insert(job);
            }
        }
    }

    /// A job is cancelled that may be one of those that are left.
    pub(super) fn cancel_left(&mut self, job: &JobId, task: &TaskName, why: &Abandoned) {
        if self.left.remove(job) {
            self.end_without_task(job, task, why);
        }
    }

    /// At the end: jobs that were cancelled, and whose tasks are not waited for any more. That they are cancelled was taken and told: the
    /// next process must not run them, nor take them for interrupted.
    pub(super) fn end_cancelled(&mut self) {
        for job in std::mem::take(&mut self.ports).into_keys() {
            if let Some((task, why)) = self.machine.cancelled(&job) {
                self.end_without_task(&job, &task, &why);
            }
        }
    }

    /// No task of it is there to end it.
    fn end_without_task(&mut self, job: &JobId, task: &TaskName, why: &Abandoned) {
        let (ending, reply, event) = tasks::abandoned(&self.runner, job, task, why);
        self.machine.finished(SystemClock::now(), job, ending, reply, event);
    }

    /// Whether those that run were told that the worker stops.
    pub(super) fn is_aborting(&self) -> bool {
        self.stopping.as_ref().is_some_and(|stopping| stopping.aborted_by.is_some())
    }

    /// While the worker stops: what is next.
    pub(super) fn stop_step(&mut self) -> Result<Option<Turn>, LinkError> {
        let now = SystemClock::now();
        let Some(stopping) = &mut self.stopping else { return Ok(None) };
        let drained = self.machine.unfinished() == self.left.len() && self.storing.is_empty();
        if !drained && now >= stopping.drained_by && stopping.aborted_by.is_none() {
            stopping.aborted_by = Some(now + ABORT_GRACE);
            for port in self.ports.values() {
                port.cancel(CancelReason::WorkerStops);
            }
        }
        let given_up = stopping.aborted_by.is_some_and(|at| now >= at);
        if !drained && !given_up {
            return Ok(None);
        }
        if !stopping.said_goodbye {
            stopping.said_goodbye = true;
            self.machine.disconnect();
            self.perform()?;
            self.outbox.flush(now, &mut *self.link)?;
        }
        let stuck = !self.connected || given_up;
        if self.outbox.is_empty() || stuck || now >= self.stopping.as_ref().map_or(now, |stopping| stopping.drained_by)
        {
            return Ok(Some(Turn::End));
        }
        Ok(None)
    }
}
