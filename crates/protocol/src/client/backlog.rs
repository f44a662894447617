//! Jobs that wait in the database: the queue of a client is on its disk, and only the front of it is in memory.
//!
//! The machine holds so many jobs and not many more bytes than [`BacklogBounds`] say. What is submitted beyond that is stored and
//! forgotten; it comes back in the order of submission when the machine has room, when its deadline passes, or when somebody
//! asks about it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::{Client, JobState, RestoredClientJob};
use crate::name::JobId;

/// How much a client's machine holds, and how much is read back at once.
#[derive(Debug, Clone, Copy)]
pub struct BacklogBounds {
    /// Jobs that the machine holds at most.
    pub jobs_max: usize,
    /// Bytes of requests beyond which the machine takes no more.
    pub bytes_max: usize,
    /// Jobs that are read back at once.
    pub page_jobs: usize,
    /// Bytes of requests that are read back at once.
    pub page_bytes: usize,
}

/// What the machine holds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Held {
    /// Jobs.
    pub jobs: usize,
    /// Bytes of their requests.
    pub bytes: usize,
}

impl Held {
    /// What a machine holds now.
    pub fn of(machine: &Client) -> Self {
        Self { jobs: machine.held(), bytes: machine.held_bytes() }
    }

    /// Whether no more should come.
    fn is_full(self, bounds: &BacklogBounds) -> bool {
        self.jobs >= bounds.jobs_max || self.bytes >= bounds.bytes_max
    }

    /// Whether a page has room beside it.
    fn has_room(self, bounds: &BacklogBounds) -> bool {
        self.jobs + bounds.page_jobs <= bounds.jobs_max && self.bytes + bounds.page_bytes <= bounds.bytes_max
    }
}

/// How often the database is asked for jobs whose deadline has passed, once the first one may have.
pub const LATE_INTERVAL: Duration = Duration::from_secs(1);

/// How soon jobs that could not be read are asked for again: the disk is full, or something is wrong with it.
pub const FAILED_INTERVAL: Duration = Duration::from_secs(1);

/// What waits in the database. A `Place` is where a page of it ends.
#[derive(Debug)]
pub struct Backlog<Place> {
    bounds: BacklogBounds,
    /// Jobs on their way there.
    storing: HashSet<JobId>,
    /// About how many are there.
    count: usize,
    /// Up to where they were read back, in this pass over all that have not ended.
    after: Option<Place>,
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

/// A job that waited goes to the machine. `is_of_this_process`: it was stored after this process began, so that a new one was
/// never posted. [`Client::timeout`] has to follow, behind what else there is to do: one that is cancelled first never leaves.
pub fn take_back(now: Instant, machine: &mut Client, job: RestoredClientJob, is_of_this_process: bool) {
    if job.state == JobState::New && is_of_this_process {
        machine.submit_stored(job.request);
    } else {
        machine.restore(now, job);
    }
}

/// What is to be read.
#[derive(Debug, Clone, PartialEq)]
pub enum Reading<Place> {
    /// The next that wait.
    Next(Option<Place>),
    /// Those whose deadline has passed.
    Late,
}

impl<Place: Clone> Backlog<Place> {
    /// An empty one.
    pub fn new(bounds: BacklogBounds) -> Self {
        Self {
            bounds,
            storing: HashSet::new(),
            count: 0,
            after: None,
            found: 0,
            reading: false,
            not_before: None,
            late_at: None,
            questions: 0,
            ended: HashSet::new(),
        }
    }

    /// Whether a new job has to wait here: there is no room, or others are before it.
    pub fn takes(&self, held: Held) -> bool {
        self.count > 0 || !self.storing.is_empty() || held.is_full(&self.bounds)
    }

    /// Whether some are in the database, or on their way there.
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.storing.is_empty()
    }

    /// About how many wait.
    pub fn len(&self) -> usize {
        self.count + self.storing.len()
    }

    /// Whether none is on its way into the database.
    pub fn is_stored(&self) -> bool {
        self.storing.is_empty()
    }

    /// A job goes there.
    pub fn push(&mut self, job: JobId, deadline: Instant) {
        self.storing.insert(job);
        self.late_at = Some(self.late_at.map_or(deadline, |at| at.min(deadline)));
    }

    /// Whether a confirmation is about a job here; it is there now, or was refused.
    pub fn confirmed(&mut self, job: &JobId, stored: bool) -> bool {
        let ours = self.storing.remove(job);
        if ours && stored {
            self.count += 1;
            self.found += 1;
        }
        ours
    }

    /// At the start: jobs of the last process wait behind those that were read.
    pub fn left_by_last_process(&mut self, after: Option<Place>, now: Instant) {
        // How many is known once they were read.
        (self.count, self.found, self.after, self.late_at) = (1, 1, after, Some(now));
    }

    /// Whether the machine takes no more at the start.
    pub fn is_enough(&self, held: Held) -> bool {
        held.is_full(&self.bounds)
    }

    /// A job that the machine held has ended.
    pub fn has_ended(&mut self, job: &JobId) {
        if self.questions > 0 {
            self.ended.insert(job.clone());
        }
    }

    /// The database is asked about jobs. Whoever looked at the answer says so by [`Backlog::has_answered`].
    pub fn asks(&mut self) {
        self.questions += 1;
    }

    /// Whether a job has ended since the database was asked, so that its answer about the job counts for nothing.
    pub fn ended_meanwhile(&self, job: &JobId) -> bool {
        self.ended.contains(job)
    }

    /// Whether a job that an answer of the database names goes to the machine. It may be there, or have ended since.
    pub fn is_to_be_taken_back(&self, machine: &Client, job: &JobId, state: JobState) -> bool {
        !state.is_final() && machine.state(job).is_none() && !self.ended_meanwhile(job)
    }

    /// An answer was looked at.
    pub fn has_answered(&mut self) {
        self.questions = self.questions.saturating_sub(1);
        if self.questions == 0 {
            self.ended = HashSet::new();
        }
    }

    /// What is to be read now. Whoever takes it tells [`Backlog::has_read`] or [`Backlog::has_not_read`].
    pub fn read(&mut self, now: Instant, held: Held) -> Option<Reading<Place>> {
        if self.reading || self.count == 0 || self.not_before.is_some_and(|at| now < at) {
            return None;
        }
        // Also where there is no room: nobody is to be woken for it again and again.
        self.not_before = None;
        let reading = if self.late_at.is_some_and(|at| at <= now) {
            Reading::Late
        } else if held.has_room(&self.bounds) {
            Reading::Next(self.after.clone())
        } else {
            return None;
        };
        self.reading = true;
        Some(reading)
    }

    /// When [`Backlog::read`] wants to be asked although nothing else happens.
    pub fn deadline(&self) -> Option<Instant> {
        self.not_before.or(self.late_at).filter(|_| self.count > 0 && !self.reading)
    }

    /// Something was read: `new` jobs of it went to the machine. `end` is that of the page; `None` where there was nothing.
    pub fn has_read(&mut self, now: Instant, what: &Reading<Place>, new: usize, end: Option<Place>) {
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
                    // Of those that are on their way there.
                    late_at: self.late_at.filter(|_| !self.storing.is_empty()),
                    storing: std::mem::take(&mut self.storing),
                    questions: self.questions,
                    ended: std::mem::take(&mut self.ended),
                    ..Self::new(self.bounds)
                };
            }
        }
    }

    /// It could not be read; it is tried again after a while.
    pub fn has_not_read(&mut self, now: Instant, pause: Duration) {
        (self.reading, self.not_before) = (false, Some(now + pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> JobId {
        JobId::parse(&format!("{number:032x}")).expect("a name")
    }

    const HELD_JOBS_MAX: usize = 4000;
    const HELD_BYTES_MAX: usize = 64 << 20;
    const REFILL_JOBS: usize = 500;
    const PAGE_BYTES_MAX: usize = 16 << 20;

    fn backlog() -> Backlog<usize> {
        Backlog::new(BacklogBounds {
            jobs_max: HELD_JOBS_MAX,
            bytes_max: HELD_BYTES_MAX,
            page_jobs: REFILL_JOBS,
            page_bytes: PAGE_BYTES_MAX,
        })
    }

    fn held(jobs: usize) -> Held {
        Held { jobs, bytes: 0 }
    }

    #[test]
    fn large_requests_wait_in_the_database_although_they_are_few() {
        let now = Instant::now();
        let mut backlog = backlog();
        let held = |bytes| Held { jobs: 1, bytes };
        assert!(!backlog.takes(held(HELD_BYTES_MAX - 1)) && backlog.takes(held(HELD_BYTES_MAX)));
        assert!(backlog.is_enough(held(HELD_BYTES_MAX)));
        backlog.push(id(1), now + Duration::from_secs(60));
        backlog.confirmed(&id(1), true);
        assert_eq!(backlog.read(now, held(HELD_BYTES_MAX - PAGE_BYTES_MAX + 1)), None, "a page has no room");
        assert!(backlog.read(now, held(HELD_BYTES_MAX - PAGE_BYTES_MAX)).is_some());
    }

    #[test]
    fn what_does_not_fit_waits_and_comes_back_in_pages() {
        let now = Instant::now();
        let mut backlog = backlog();
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
        backlog.has_read(now, &Reading::Next(None), REFILL_JOBS, Some(REFILL_JOBS));
        let next = Reading::Next(Some(REFILL_JOBS));
        assert_eq!(backlog.read(now, held(0)), Some(next.clone()));
        backlog.has_read(now, &next, 1, Some(REFILL_JOBS + 1));
        let last = Reading::Next(Some(REFILL_JOBS + 1));
        assert_eq!(backlog.read(now, held(0)), Some(last.clone()));
        backlog.has_read(now, &last, 0, None);
        assert_eq!(backlog.read(now, held(0)), Some(Reading::Next(None)), "once more from the beginning");
        backlog.has_read(now, &Reading::Next(None), 0, None);
        assert!(backlog.is_empty() && backlog.deadline().is_none());
    }

    #[test]
    fn those_whose_deadline_passes_are_asked_for_although_there_is_no_room() {
        let now = Instant::now();
        let mut backlog = backlog();
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
            let mut backlog = backlog();
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
    fn nobody_is_woken_for_what_could_not_be_read_where_there_is_no_room() {
        let now = Instant::now();
        let mut backlog = backlog();
        let late = now + Duration::from_secs(60);
        backlog.push(id(1), late);
        backlog.confirmed(&id(1), true);
        assert!(backlog.read(now, held(0)).is_some());
        backlog.has_not_read(now, FAILED_INTERVAL);
        let again = now + FAILED_INTERVAL;
        assert_eq!(backlog.read(again, held(HELD_JOBS_MAX)), None);
        assert_eq!(backlog.deadline(), Some(late));
    }

    #[test]
    fn a_deadline_of_a_job_that_is_being_stored_outlives_a_pass_that_found_nothing() {
        let now = Instant::now();
        let mut backlog = backlog();
        backlog.left_by_last_process(None, now + Duration::from_secs(60));
        for _ in 0..2 {
            let reading = backlog.read(now, held(0)).expect("there may be some");
            backlog.push(id(1), now + Duration::from_secs(5));
            backlog.has_read(now, &reading, 0, None);
        }
        backlog.confirmed(&id(1), true);
        assert_eq!(backlog.deadline(), Some(now + Duration::from_secs(5)));
    }

    #[test]
    fn what_ends_while_an_answer_is_under_way_is_known_until_it_was_looked_at() {
        let mut backlog = backlog();
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
