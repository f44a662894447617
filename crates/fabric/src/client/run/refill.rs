//! Jobs on their way between the machine and the database in which they wait.

use std::time::Instant;

use norfab_jobs::{ClientJob, Page, QueryError, StoreError};
use norfab_protocol::JobId;
use norfab_protocol::client::{JobState, JobUpdate, Outcome};
use tracing::{error, warn};

use super::{ClientCommand, Run, StoreAnswer};
use crate::client::backlog::{FAILED_INTERVAL, REFILL_JOBS, Reading, is_waiting};
use crate::client::storing::restored;
use crate::clock::SystemClock;
use crate::storing::STORE_RETRY;

/// Mailboxes below which nobody looks for those that nobody reads.
const MAILBOXES_SWEPT_MIN: usize = 512;

impl Run {
    /// Looks first whether a job that is asked about is one that waits in the database.
    pub(super) fn ask_or_command(&mut self, command: ClientCommand) {
        let job = match &command {
            ClientCommand::Watch { job, .. } | ClientCommand::Cancel { job, .. } => job.clone(),
            _ => return self.command(command),
        };
        if self.backlog.is_empty() || self.machine.state(&job).is_some() {
            return self.command(command);
        }
        let inbox = self.inbox.clone();
        let (give, taken) = std::sync::mpsc::sync_channel(1);
        let asked = self.storing.ask_whole(move |store| {
            let found = store
                .map_err(StoreError::from)
                .and_then(|store| store.job(&job))
                .map(|found| found.map(|details| details.job));
            // Whoever asked holds the other end until it is known that the question was taken.
            let command: Option<ClientCommand> = taken.recv().ok();
            inbox.push(command.map(|command| StoreAnswer::Found(Box::new(found), Box::new(command))));
        });
        match asked {
            // The other end lives as long as the question.
            Ok(()) => {
                self.backlog.asks();
                drop(give.send(command));
            }
            Err(error) => refuse(command, error.into()),
        }
    }

    /// The database has answered whether a job waits there.
    pub(super) fn found(&mut self, found: Result<Option<ClientJob>, StoreError>, command: ClientCommand) {
        match found {
            Ok(Some(job)) if self.is_to_be_taken_back(&job) => self.take_back(job),
            Ok(_) => {}
            Err(error) => {
                self.backlog.has_answered();
                return refuse(command, error);
            }
        }
        self.backlog.has_answered();
        self.command(command);
        self.perform();
    }

    /// Whether a job waits in the database, as an answer of it says. It may have ended since.
    fn is_to_be_taken_back(&self, job: &ClientJob) -> bool {
        !job.state.is_final() && self.machine.state(&job.id).is_none() && !self.backlog.ended_meanwhile(&job.id)
    }

    /// A job is stored, and waits there.
    pub(super) fn waits_in_database(&mut self, job: JobId, outcome: Result<(), String>) {
        let update = match outcome {
            Ok(()) => JobUpdate::Stored,
            Err(error) => JobUpdate::Finished(Outcome {
                state: JobState::Failed,
                errors: vec![format!("the job could not be stored and was not sent: {error}")],
                missing: Vec::new(),
            }),
        };
        let end = matches!(update, JobUpdate::Finished(_));
        for mailbox in self.mailboxes.get(&job).into_iter().flatten() {
            mailbox.put(update.clone());
        }
        if end {
            for mailbox in self.mailboxes.remove(&job).into_iter().flatten() {
                mailbox.close();
            }
        }
        // Nobody waits for many of them.
        if self.mailboxes.len() >= 2 * self.mailboxes_swept.max(MAILBOXES_SWEPT_MIN) {
            self.mailboxes.retain(|_, mailboxes| {
                mailboxes.retain(|mailbox| !mailbox.is_closed());
                !mailboxes.is_empty()
            });
            self.mailboxes.shrink_to_fit();
            self.mailboxes_swept = self.mailboxes.len();
        }
    }

    /// Reads jobs back that wait in the database, if it is time.
    pub(super) fn refill(&mut self, now: Instant) {
        let Some(what) = self.backlog.read(now, self.machine.unfinished()) else { return };
        let inbox = self.inbox.clone();
        let reading = what.clone();
        let before = SystemClock::steady_unix();
        let asked = self.storing.ask_whole(move |store| {
            let page = store.map_err(StoreError::from).and_then(|store| match &reading {
                Reading::Next(after) => store.unfinished(after.clone(), REFILL_JOBS),
                Reading::Late => store.late(before, REFILL_JOBS),
            });
            inbox.push([StoreAnswer::Read(reading, page)]);
        });
        match asked {
            Ok(()) => self.backlog.asks(),
            // It works on what is before the question.
            Err(QueryError::Behind) => self.backlog.has_not_read(now, STORE_RETRY),
            Err(error) => {
                warn!("client {}: {error}", self.identity);
                self.backlog.has_not_read(now, FAILED_INTERVAL);
            }
        }
    }

    pub(super) fn read_back(&mut self, what: &Reading, page: Result<Page<ClientJob>, StoreError>) {
        let now = SystemClock::now();
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                // Where the disk is full, the store has said so.
                let is_behind = matches!(error, StoreError::Query(QueryError::Behind));
                if !is_behind && self.throttle.admit() {
                    error!("client {}: jobs that wait cannot be read: {error}", self.identity);
                }
                self.backlog.has_answered();
                return self.backlog.has_not_read(now, FAILED_INTERVAL);
            }
        };
        let mut new = 0;
        for job in page.jobs {
            if self.is_to_be_taken_back(&job) {
                new += 1;
                self.take_back(job);
            }
        }
        self.backlog.has_answered();
        self.backlog.has_read(now, what, new, page.end);
    }

    /// A job that waited goes to the machine.
    pub(super) fn take_back(&mut self, job: ClientJob) {
        let now = SystemClock::now();
        let never_posted = is_waiting(&job) && job.submitted >= self.began;
        let restored = restored(job);
        if never_posted {
            self.machine.submit_stored(now, restored.request);
        } else {
            self.machine.restore(now, restored);
        }
        // Its deadline may have passed.
        self.machine.timeout(now);
        self.perform();
    }
}

/// Tells whoever asks about a job why the question has no answer.
fn refuse(command: ClientCommand, error: StoreError) {
    match command {
        ClientCommand::Watch { known, mailbox, .. } => {
            mailbox.close();
            // Who asked may have gone.
            known.send(Err(error)).ok();
        }
        ClientCommand::Cancel { known, .. } => {
            // As above.
            known.send(Err(error)).ok();
        }
        // Nothing else is asked about.
        _ => {}
    }
}
