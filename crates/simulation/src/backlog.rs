//! A client's start, and what waits in its database.

use std::time::Duration;

use norfab_protocol::client::backlog::{self, Backlog, FAILED_INTERVAL, Held, Reading};
use norfab_protocol::client::{Client, ClientConfig, JobState, RestoredClientJob};

use crate::client::Page;
use crate::plant::Plant;
use crate::store::{ClientItem, Place, Waiting};
use crate::world::World;

impl World {
    pub(crate) fn start_client(&mut self, index: usize) {
        let now = self.agenda.now();
        let wall = self.wall_of_client(index);
        let bounds = self.scenario.backlog;
        let client = &mut self.clients[index];
        client.process += 1;
        client.alive_since = now;
        (client.steady, client.began, client.last_number) = (client.clock, wall, client.rows.last_number());
        let seed = (index as u64) << 32 | client.process;
        let mut machine = Client::new(ClientConfig { seed, ..ClientConfig::default() });
        machine.disconnected();
        client.machine = Some(machine);
        client.backlog = Backlog::new(bounds);
        self.watch.check_acknowledged(index, &client.rows);
        // Those that stay on the disk for now have as much time as those that are read back.
        let rows: Vec<Waiting> = client.rows.0.values().map(|row| row.waiting(now, client.steady)).collect();
        for row in rows.into_iter().filter(|row| !row.job.state.is_final()) {
            let job = self.restored(index, row);
            self.watch_restored(&job);
            if self.scenario.steps_clocks() {
                // A clock that was set back makes its deadline seem far away until it is read back.
                self.watch.in_nobodys_hands(&job.request.job);
            }
        }
        let mut after = None;
        loop {
            let client = &self.clients[index];
            let (page, end) = client.rows.read(now, client.steady, &Reading::Next(after), &bounds);
            for waiting in page {
                let job = self.restored(index, waiting);
                let Some(machine) = &mut self.clients[index].machine else { return };
                machine.restore(now, job);
                self.drain_client(index);
            }
            if end.is_none() {
                return;
            }
            after = end;
            let client = &mut self.clients[index];
            let Some(machine) = &client.machine else { return };
            if client.backlog.is_enough(Held::of(machine)) {
                if self.plant == Some(Plant::ForgetBacklog) {
                    return;
                }
                client.backlog.left_by_last_process(after, now);
                return self.drain_client(index);
            }
        }
    }

    /// A job as an owner gives it to the machine.
    fn restored(&self, index: usize, waiting: Waiting) -> RestoredClientJob {
        let (now, client) = (self.agenda.now(), &self.clients[index]);
        let Waiting { mut job, number, .. } = waiting;
        // A moment more than the whole time says that the clock was set back.
        let since = if Some(number) > client.last_number { now } else { client.alive_since };
        let longest = since + job.request.timeout + Duration::from_secs(1);
        job.request.deadline = job.request.deadline.min(longest).max(now);
        if self.plant == Some(Plant::ForgetCancellations) && job.state == JobState::Cancelling {
            job.state = JobState::Started;
        }
        job
    }

    fn watch_restored(&mut self, job: &RestoredClientJob) {
        let cancelled = job.state == JobState::Cancelling;
        let again = !cancelled && (job.dispatched.is_empty() || job.state == JobState::Submitting);
        let state = if again { JobState::New } else { job.state };
        self.watch.restored(self.agenda.now(), &job.request.job, state, &job.dispatched, job.request.deadline);
    }

    /// What the wall clock of a client says, in milliseconds.
    pub(crate) fn wall_of_client(&self, index: usize) -> i64 {
        self.agenda.elapsed().as_millis() as i64 + 1000 * self.clients[index].clock
    }

    /// Reads jobs back that wait, if it is time.
    pub(crate) fn refill(&mut self, index: usize) {
        let now = self.agenda.now();
        let client = &mut self.clients[index];
        let Some(machine) = &client.machine else { return };
        if let Some(what) = client.backlog.read(now, Held::of(machine)) {
            client.backlog.asks();
            client.writer.push(ClientItem::Read(what));
        }
    }

    /// Jobs came back that waited.
    pub(crate) fn read_back(&mut self, index: usize, what: &Reading<Place>, page: Result<Page, ()>) {
        let now = self.agenda.now();
        let Ok((jobs, end)) = page else {
            let backlog = &mut self.clients[index].backlog;
            backlog.has_answered();
            return backlog.has_not_read(now, FAILED_INTERVAL);
        };
        let mut new = 0;
        for waiting in jobs {
            new += usize::from(self.take_back(index, waiting));
        }
        self.taken_back(index);
        let backlog = &mut self.clients[index].backlog;
        backlog.has_answered();
        backlog.has_read(now, what, new, end);
    }

    /// A job that waited goes to the machine, if it still waits.
    pub(crate) fn take_back(&mut self, index: usize, waiting: Waiting) -> bool {
        let now = self.agenda.now();
        let (submitted, number) = (waiting.place.0, waiting.number);
        let job = self.restored(index, waiting);
        let client = &mut self.clients[index];
        let Some(machine) = &mut client.machine else { return false };
        if !client.backlog.is_to_be_taken_back(machine, &job.request.job, job.state)
            && self.plant != Some(Plant::TakeBackTwice)
        {
            return false;
        }
        let is_of_this_process = Some(number) > client.last_number && submitted >= client.began;
        self.watch.counts.waited += 1;
        if is_of_this_process {
            backlog::take_back(now, machine, job, true);
        } else {
            backlog::take_back(now, machine, job.clone(), false);
            self.watch_restored(&job);
        }
        true
    }

    pub(crate) fn taken_back(&mut self, index: usize) {
        let now = self.agenda.now();
        if let Some(machine) = &mut self.clients[index].machine {
            machine.timeout(now);
            self.drain_client(index);
        }
    }
}
