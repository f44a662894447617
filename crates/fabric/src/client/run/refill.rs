//! Jobs on their way between the machine and the database in which they wait.

use std::collections::HashSet;
use std::time::Instant;

use norfab_jobs::{ClientJob, ClientState, ClientStore, Page, PageEnd, QueryError, StoreError, UnreadableJob};
use norfab_protocol::JobId;
use norfab_protocol::client::backlog::{self, FAILED_INTERVAL, Held};
use norfab_protocol::client::{JobState, JobUpdate, Outcome};
use tracing::{error, warn};

use super::{ClientCommand, REFILL_JOBS, Run, StoreAnswer};
use crate::client::storing::{restored, state_of};
use crate::clock::SystemClock;
use crate::storing::STORE_RETRY;

/// Mailboxes below which nobody looks for those that nobody reads.
const MAILBOXES_SWEPT_MIN: usize = 512;

/// What is read of the database.
pub(in crate::client) type Reading = backlog::Reading<PageEnd>;

/// The highest number of a job of the processes before this one. `None`: they left none.
type LastNumber = Option<u64>;

/// Jobs as the database has them, and the number that was found with them.
pub(in crate::client) type Found<Jobs> = Result<(Jobs, LastNumber), StoreError>;

/// A job as the database has it.
pub(in crate::client) struct Waiting {
    job: ClientJob,
    /// Whether it was stored after the last number was known, and so by this process.
    is_of_this_process: bool,
}

impl Waiting {
    fn of(store: &mut dyn ClientStore, job: ClientJob, last_number: LastNumber) -> Result<Self, StoreError> {
        // Of others it does not matter.
        let is_of_this_process = job.state == ClientState::New && store.number(&job.id)? > last_number;
        Ok(Self { job, is_of_this_process })
    }
}

/// Which jobs in the database are those of processes before this one. Clocks are set back, so numbers say it.
#[derive(Default)]
pub(super) struct Earlier {
    /// `None`: not known yet, as the database cannot be read before its disk has space.
    last_number: Option<LastNumber>,
    /// Jobs that this process stored while that was not known: those between the return of the space and the first reading, about
    /// [`crate::storing::RESTORE_AGAIN`] later.
    stored_meanwhile: HashSet<JobId>,
}

impl Earlier {
    pub(super) fn is(&mut self, last_number: LastNumber) {
        self.last_number.get_or_insert(last_number);
    }

    /// A job of this process is about to be stored, and will be read back.
    pub(super) fn stores(&mut self, job: &JobId) {
        if self.last_number.is_none() {
            self.stored_meanwhile.insert(job.clone());
        }
    }

    /// Whether it is one of those, which is asked once.
    fn was_stored_meanwhile(&mut self, job: &JobId) -> bool {
        self.stored_meanwhile.remove(job)
    }
}

/// The number, asked for where it is not known.
fn last_number(known: Option<LastNumber>, store: &mut dyn ClientStore) -> Result<LastNumber, StoreError> {
    known.map_or_else(|| store.last_number(), Ok)
}

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
        let known = self.earlier.last_number;
        let (give, taken) = std::sync::mpsc::sync_channel(1);
        let asked = self.storing.ask_whole(move |store| {
            let found = store.map_err(StoreError::from).and_then(|store| {
                let last_number = last_number(known, store)?;
                let found = store.job(&job)?;
                let found = found.map(|details| Waiting::of(store, details.job, last_number)).transpose()?;
                Ok((found, last_number))
            });
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
    pub(super) fn found(&mut self, found: Found<Option<Waiting>>, command: ClientCommand) {
        if let Ok((_, last_number)) = found {
            self.earlier.is(last_number);
        }
        match found {
            Ok((Some(found), _)) if self.is_to_be_taken_back(&found.job) => self.take_back(found),
            Ok(_) => {}
            Err(error) => {
                self.backlog.has_answered();
                return refuse(command, error);
            }
        }
        self.backlog.has_answered();
        // Before the job is posted: it may be cancelled.
        self.command(command);
        self.taken_back();
    }

    /// Whether a job waits in the database, as an answer of it says.
    fn is_to_be_taken_back(&self, job: &ClientJob) -> bool {
        self.backlog.is_to_be_taken_back(&self.machine, &job.id, state_of(job.state))
    }

    /// A job is stored, and waits there.
    pub(super) fn waits_in_database(&mut self, job: JobId, outcome: Result<(), String>) {
        let update = match outcome {
            Ok(()) => JobUpdate::Stored,
            Err(error) => {
                self.earlier.was_stored_meanwhile(&job);
                JobUpdate::Finished(Outcome {
                    state: JobState::Failed,
                    errors: vec![format!("the job could not be stored and was not sent: {error}")],
                    missing: Vec::new(),
                })
            }
        };
        self.tell(&job, &update);
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
        let Some(what) = self.backlog.read(now, Held::of(&self.machine)) else { return };
        let inbox = self.inbox.clone();
        let reading = what.clone();
        let before = SystemClock::steady_unix();
        let known = self.earlier.last_number;
        let asked = self.storing.ask_whole(move |store| {
            let page = store.map_err(StoreError::from).and_then(|store| {
                let last_number = last_number(known, store)?;
                let page = match &reading {
                    Reading::Next(after) => store.unfinished(after.clone(), REFILL_JOBS)?,
                    Reading::Late => store.late(before, REFILL_JOBS)?,
                };
                let jobs = page.jobs.into_iter().map(|job| Waiting::of(store, job, last_number));
                let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
                Ok((Page { jobs, unreadable: page.unreadable, end: page.end }, last_number))
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

    pub(super) fn read_back(&mut self, what: &Reading, page: Found<Page<Waiting>>) {
        let now = SystemClock::now();
        let (page, last_number) = match page {
            Ok(read) => read,
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
        self.earlier.is(last_number);
        let mut new = 0;
        for waiting in page.jobs {
            if self.is_to_be_taken_back(&waiting.job) {
                new += 1;
                self.take_back(waiting);
            }
        }
        for unreadable in page.unreadable {
            self.is_unreadable(unreadable);
        }
        self.taken_back();
        self.backlog.has_answered();
        self.backlog.has_read(now, what, new, page.end);
    }

    /// A job that waited goes to the machine. [`Run::taken_back`] has to follow.
    fn take_back(&mut self, Waiting { job, is_of_this_process }: Waiting) {
        let is_of_this_process = is_of_this_process && job.submitted >= self.began;
        let is_of_this_process = self.earlier.was_stored_meanwhile(&job.id) || is_of_this_process;
        let now = SystemClock::now();
        let since = if is_of_this_process { now } else { self.since };
        backlog::take_back(now, &mut self.machine, restored(job, since), is_of_this_process);
    }

    /// A job that waits cannot be read, and will not be posted. Whoever follows it must not wait for ever.
    fn is_unreadable(&mut self, UnreadableJob { id, error }: UnreadableJob) {
        if self.throttle.admit() {
            error!("client {}: a job that waits cannot be read and stays as it is: {error}", self.identity);
        }
        if let Some(id) = id
            && self.machine.state(&id).is_none()
        {
            let errors = vec![format!("the job cannot be read back and was not sent: {error}")];
            self.tell(&id, &JobUpdate::Finished(Outcome { state: JobState::Failed, errors, missing: Vec::new() }));
        }
    }

    /// Jobs that came back are posted, or end where their deadline has passed.
    fn taken_back(&mut self) {
        self.machine.timeout(SystemClock::now());
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
