//! Which workers a job went to, so that a repeated POST goes where the first went.

use std::collections::{HashMap, VecDeque};

use crate::name::{Identity, JobId};

/// Workers that are remembered for each job on average: beyond it old jobs are forgotten early, so that jobs for thousands
/// of workers do not fill the memory.
const WORKERS_PER_JOB: usize = 4;

/// A bounded memory, oldest forgotten first. A job is known by its client and its id: two clients may use one id.
#[derive(Debug)]
pub(super) struct JobMemory {
    jobs_max: usize,
    jobs: HashMap<(Identity, JobId), Box<[Identity]>>,
    order: VecDeque<(Identity, JobId)>,
    workers: usize,
}

impl JobMemory {
    pub(super) fn new(jobs_max: usize) -> Self {
        Self { jobs_max, jobs: HashMap::new(), order: VecDeque::new(), workers: 0 }
    }

    pub(super) fn get(&self, client: &Identity, job: &JobId) -> Option<&[Identity]> {
        self.jobs.get(&(client.clone(), job.clone())).map(|workers| &**workers)
    }

    /// Remembers; the first choice of a job stays.
    pub(super) fn insert(&mut self, client: &Identity, job: &JobId, workers: &[Identity]) {
        let key = (client.clone(), job.clone());
        if self.jobs_max == 0 || self.jobs.contains_key(&key) {
            return;
        }
        self.workers += workers.len();
        self.order.push_back(key.clone());
        self.jobs.insert(key, workers.into());
        while self.order.len() > self.jobs_max
            || (self.workers > self.jobs_max * WORKERS_PER_JOB && self.order.len() > 1)
        {
            let Some(oldest) = self.order.pop_front() else { return };
            self.take(&oldest);
        }
    }

    /// Forgets a job. Its place in the order stays until it is the oldest.
    pub(super) fn forget(&mut self, client: &Identity, job: &JobId) {
        self.take(&(client.clone(), job.clone()));
    }

    fn take(&mut self, key: &(Identity, JobId)) {
        if let Some(workers) = self.jobs.remove(key) {
            self.workers -= workers.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_job_is_forgotten_first_and_the_first_choice_stays() {
        let name = |text: &str| Identity::parse(text).expect("a name");
        let job = |text: &str| JobId::parse(text).expect("a name");
        let mut memory = JobMemory::new(2);
        memory.insert(&name("c"), &job("1"), &[name("a")]);
        memory.insert(&name("c"), &job("1"), &[name("b")]);
        memory.insert(&name("c"), &job("2"), &[name("a")]);
        assert_eq!(memory.get(&name("c"), &job("1")), Some(&[name("a")][..]));
        memory.insert(&name("c"), &job("3"), &[name("a")]);
        assert_eq!(memory.get(&name("c"), &job("1")), None);
        assert!(memory.get(&name("c"), &job("2")).is_some());
    }
}
