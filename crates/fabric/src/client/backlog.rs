//! Jobs that wait in the database: the queue of a client is on its disk, and only the front of it is in memory.
//!
//! The machine holds at most `HELD_JOBS_MAX` jobs, and not many more bytes than `HELD_BYTES_MAX`. What is submitted beyond that is stored and forgotten; it comes back in the order
//! of submission when the machine has room, when its deadline passes, or when somebody asks about it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use norfab_jobs::{ClientJob, ClientState, PAGE_BYTES_MAX, PageEnd};
use norfab_protocol::JobId;

/// Jobs that the machine holds at most: some kilobytes each, and more than a broker and its workers have in hand at once.
const HELD_JOBS_MAX: usize = 4000;

/// Bytes of requests beyond which the machine takes no more: a few of the largest messages, and what thousands of ordinary ones are.
const HELD_BYTES_MAX: usize = 64 << 20;

/// What the machine holds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    /// Jobs.
    pub(super) jobs: usize,
    /// Bytes of their requests.
    pub(super) bytes: usize,
}

impl Held {
    /// Whether no more should come.
    fn is_full(self) -> bool {
        self.jobs >= HELD_JOBS_MAX || self.bytes >= HELD_BYTES_MAX
    }

    /// Whether a page has room beside it.
    fn has_room(self) -> bool {
        self.jobs + REFILL_JOBS <= HELD_JOBS_MAX && self.bytes + PAGE_BYTES_MAX <= HELD_BYTES_MAX
    }
}

/// Jobs that are read back at once.
pub(super) const REFILL_JOBS: usize = 500;

/// How often the database is asked for jobs whose deadline has passed, once the first one may have.
const LATE_INTERVAL: Duration = Duration::from_secs(1);

/// How soon jobs that could not be read are asked for again: the disk is full, or something is wrong with it.
pub(super) const FAILED_INTERVAL: Duration = Duration::from_secs(1);

/// What waits in the database.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Jobs on their way there.
    storing: HashSet<JobId>,
    /// About how many are there.
    count: usize,
    /// Up to where they were read back, in this pass over all that have not ended.
    after: Option<PageEnd>,
    /// Jobs that this pass brought, or that came meanwhile and may stand before its place: there will be another pass.
    found: usize,
    /// They are being read.
    reading: bool,
    /// Before this nothing is read: the last time it failed.
    not_before: Option<Instant>,
    /// When the deadline of one may pass.
    late_at: Option<Instant>,
    /// Questions about jobs whose answers are under way.
    questions: usize,
    /// Jobs that ended meanwhile: an answer may know them as they were before, and they must not begin again.
    ended: HashSet<JobId>,
}

/// What is to be read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reading {
    /// The next that wait.
    Next(Option<PageEnd>),
    /// Those whose deadline has passed.
    Late,
}

impl Backlog {
    /// Whether a new job has to wait here: there is no room, or others are before it.
    pub(super) fn takes(&self, held: Held) -> bool {
        self.count > 0 || !self.storing.is_empty() || held.is_full()
    }

    /// Whether some are in the database, or on their way there.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && self.storing.is_empty()
    }

    /// About how many wait.
    pub(super) fn len(&self) -> usize {
        self.count + self.storing.len()
    }

    /// Whether none is on its way into the database.
    pub(super) fn is_stored(&self) -> bool {
        self.storing.is_empty()
    }

    /// A job goes there.
    pub(super) fn push(&mut self, job: JobId, deadline: Instant) {
        self.storing.insert(job);
        self.late_at = Some(self.late_at.map_or(deadline, |at| at.min(deadline)));
    }

    /// Whether a confirmation is about a job here; it is there now, or was refused.
    pub(super) fn confirmed(&mut self, job: &JobId, stored: bool) -> bool {
        let ours = self.storing.remove(job);
        if ours && stored {
            self.count += 1;
            self.found += 1;
        }
        ours
    }

    /// At the start: jobs of the last process wait behind those that were read.
    pub(super) fn left_by_last_process(&mut self, after: Option<PageEnd>, now: Instant) {
        // How many is known once they were read.
        (self.count, self.found, self.after, self.late_at) = (1, 1, after, Some(now));
    }

    /// Whether the machine takes no more at the start.
    pub(super) fn is_enough(held: Held) -> bool {
        held.is_full()
    }

    /// A job that the machine held has ended.
    pub(super) fn has_ended(&mut self, job: &JobId) {
        if self.questions > 0 {
            self.ended.insert(job.clone());
        }
    }

    /// The database is asked about jobs. Whoever looked at the answer says so by [`Backlog::has_answered`].
    pub(super) fn asks(&mut self) {
        self.questions += 1;
    }

    /// Whether a job has ended since the database was asked, so that its answer about the job counts for nothing.
    pub(super) fn ended_meanwhile(&self, job: &JobId) -> bool {
        self.ended.contains(job)
    }

    /// An answer was looked at.
    pub(super) fn has_answered(&mut self) {
        self.questions = self.questions.saturating_sub(1);
        if self.questions == 0 {
            self.ended = HashSet::new();
        }
    }

    /// What is to be read now. Whoever takes it tells [`Backlog::has_read`] or [`Backlog::has_not_read`].
    pub(super) fn read(&mut self, now: Instant, held: Held) -> Option<Reading> {
        if self.reading || self.count == 0 || self.not_before.is_some_and(|at| now < at) {
            return None;
        }
        let reading = if self.late_at.is_some_and(|at| at <= now) {
            Reading::Late
        } else if held.has_room() {
            Reading::Next(self.after.clone())
        } else {
            return None;
        };
        (self.reading, self.not_before) = (true, None);
        Some(reading)
    }

    /// When [`Backlog::read`] wants to be asked although nothing else happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.not_before.or(self.late_at).filter(|_| self.count > 0 && !self.reading)
    }

    /// Something was read: `new` jobs of it went to the machine. `end` is that of the page; `None` where there was nothing.
    pub(super) fn has_read(&mut self, now: Instant, what: &Reading, new: usize, end: Option<PageEnd>) {
        self.reading = false;
        // They are counted by guess: that there are none is known from a pass that brings none.
        self.count = self.count.saturating_sub(new).max(1);
        match (what, end) {
            (Reading::Late, _) => self.late_at = Some(if new > 0 { now } else { now + LATE_INTERVAL }),
            (Reading::Next(_), Some(end)) => {
                self.after = Some(end);
                self.found += new;
            }
            // A clock that was set back puts later jobs before the place: once more from the beginning.
            (Reading::Next(_), None) if self.found > 0 => (self.found, self.after) = (0, None),
            (Reading::Next(_), None) => {
                *self = Self {
                    storing: std::mem::take(&mut self.storing),
                    questions: self.questions,
                    ended: std::mem::take(&mut self.ended),
                    ..Self::default()
                };
            }
        }
    }

    /// It could not be read; it is tried again after a while.
    pub(super) fn has_not_read(&mut self, now: Instant, pause: Duration) {
        (self.reading, self.not_before) = (false, Some(now + pause));
    }
}

/// Whether a stored job was never posted by this process: one that is new, and that the machine does not know.
pub(super) fn is_waiting(job: &ClientJob) -> bool {
    job.state == ClientState::New
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> JobId {
        JobId::parse(&format!("{number:032x}")).expect("a name")
    }

    fn end(number: usize) -> PageEnd {
        (number as f64, id(number).to_string())
    }

    fn held(jobs: usize) -> Held {
        Held { jobs, bytes: 0 }
    }

    #[test]
    fn large_requests_wait_in_the_database_although_they_are_few() {
        let now = Instant::now();
        let mut backlog = Backlog::default();
        let held = |bytes| Held { jobs: 1, bytes };
        assert!(!backlog.takes(held(HELD_BYTES_MAX - 1)) && backlog.takes(held(HELD_BYTES_MAX)));
        assert!(Backlog::is_enough(held(HELD_BYTES_MAX)));
        backlog.push(id(1), now + Duration::from_secs(60));
        backlog.confirmed(&id(1), true);
        assert_eq!(backlog.read(now, held(HELD_BYTES_MAX - PAGE_BYTES_MAX + 1)), None, "a page has no room");
        assert!(backlog.read(now, held(HELD_BYTES_MAX - PAGE_BYTES_MAX)).is_some());
    }

    #[test]
    fn what_does_not_fit_waits_and_comes_back_in_pages() {
        let now = Instant::now();
        let mut backlog = Backlog::default();
        assert!(!backlog.takes(held(HELD_JOBS_MAX - 1)) && backlog.takes(held(HELD_JOBS_MAX)));
        let deadline = now + Duration::from_secs(60);
        for number in 0..REFILL_JOBS + 1 {
            backlog.push(id(number), deadline);
            assert!(backlog.confirmed(&id(number), true));
        }
        assert!(!backlog.confirmed(&id(0), true), "that is none of these");
        assert!(backlog.takes(held(0)), "later jobs stand behind them");
        assert_eq!(backlog.read(now, held(HELD_JOBS_MAX)), None, "there is no room");
        assert_eq!(backlog.read(now, held(0)), Some(Reading::Next(None)));
        assert_eq!(backlog.read(now, held(0)), None, "one at a time");
        backlog.has_read(now, &Reading::Next(None), REFILL_JOBS, Some(end(REFILL_JOBS)));
        let next = Reading::Next(Some(end(REFILL_JOBS)));
        assert_eq!(backlog.read(now, held(0)), Some(next.clone()));
        backlog.has_read(now, &next, 1, Some(end(REFILL_JOBS + 1)));
        let last = Reading::Next(Some(end(REFILL_JOBS + 1)));
        assert_eq!(backlog.read(now, held(0)), Some(last.clone()));
        backlog.has_read(now, &last, 0, None);
        assert_eq!(backlog.read(now, held(0)), Some(Reading::Next(None)), "once more from the beginning");
        backlog.has_read(now, &Reading::Next(None), 0, None);
        assert!(backlog.is_empty() && backlog.deadline().is_none());
    }

    #[test]
    fn those_whose_deadline_passes_are_asked_for_although_there_is_no_room() {
        let now = Instant::now();
        let mut backlog = Backlog::default();
        backlog.push(id(1), now + Duration::from_secs(9));
        backlog.push(id(2), now + Duration::from_secs(5));
        backlog.confirmed(&id(1), true);
        backlog.confirmed(&id(2), false);
        let late = now + Duration::from_secs(5);
        assert_eq!(backlog.deadline(), Some(late));
        assert_eq!(backlog.read(late, held(HELD_JOBS_MAX)), Some(Reading::Late));
        backlog.has_read(late, &Reading::Late, 0, None);
        assert_eq!(backlog.deadline(), Some(late + LATE_INTERVAL));
    }

    #[test]
    fn what_could_not_be_read_is_not_asked_for_again_at_once() {
        let now = Instant::now();
        for late_by in [0, 60] {
            let mut backlog = Backlog::default();
            backlog.push(id(1), now + Duration::from_secs(late_by));
            backlog.confirmed(&id(1), true);
            assert!(backlog.read(now, held(0)).is_some());
            backlog.has_not_read(now, FAILED_INTERVAL);
            let again = now + FAILED_INTERVAL;
            assert_eq!((backlog.deadline(), backlog.read(now, held(0))), (Some(again), None));
            assert!(backlog.read(again, held(0)).is_some());
        }
    }

    #[test]
    fn what_ends_while_an_answer_is_under_way_is_known_until_it_was_looked_at() {
        let mut backlog = Backlog::default();
        backlog.has_ended(&id(1));
        assert!(!backlog.ended_meanwhile(&id(1)), "nobody asked");
        backlog.asks();
        backlog.asks();
        backlog.has_ended(&id(2));
        backlog.has_answered();
        assert!(backlog.ended_meanwhile(&id(2)), "the second answer may still know it as it was");
        backlog.has_answered();
        assert!(!backlog.ended_meanwhile(&id(2)));
    }
}
