//! Jobs on their way between the machine and the database in which they wait.

use std::time::Instant;

use norfab_jobs::{ClientJob, Page, StoreError};
use norfab_protocol::JobId;
use norfab_protocol::client::{JobState, JobUpdate, Outcome};
use tracing::{error, warn};

use super::{ClientCommand, Run, StoreAnswer};
use crate::client::backlog::{REFILL_JOBS, Reading, is_waiting};
use crate::client::storing::restored;
use crate::clock::SystemClock;

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
        let asked = self.storing.ask(move |store| {
            let found = store.job(&job).ok().flatten().map(|details| details.job);
            // Whoever asked holds the other end until it is known that the question was taken.
            let command: Option<ClientCommand> = taken.recv().ok();
            inbox.push(command.map(|command| StoreAnswer::Found(Box::new(found), Box::new(command))));
        });
        match asked {
            // The other end lives as long as the question.
            Ok(()) => drop(give.send(command)),
            Err(error) => {
                warn!("client {}: {error}", self.identity);
                self.command(command);
            }
        }
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
        let Some(what) = self.backlog.read(now, self.machine.held()) else { return };
        let inbox = self.inbox.clone();
        let reading = what.clone();
        let before = SystemClock::steady_unix();
        let asked = self.storing.ask(move |store| {
            let page = match &reading {
                Reading::Next(after) => store.unfinished(after.clone(), REFILL_JOBS),
                Reading::Late => store.late(before, REFILL_JOBS),
            };
            inbox.push([StoreAnswer::Read(reading, page)]);
        });
        if let Err(error) = asked {
            warn!("client {}: {error}", self.identity);
            self.backlog.has_not_read(now);
        }
    }

    pub(super) fn read_back(&mut self, what: &Reading, page: Result<Page<ClientJob>, StoreError>) {
        let now = SystemClock::now();
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                error!("client {}: jobs that wait cannot be read: {error}", self.identity);
                return self.backlog.has_not_read(now);
            }
        };
        let mut new = 0;
        for job in page.jobs {
            if self.machine.state(&job.id).is_none() {
                new += 1;
                self.take_back(job);
            }
        }
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
