//! Which workers a job went to, so that a repeated POST goes where the first went.

use std::collections::{HashMap, VecDeque};

use crate::name::{Identity, JobId};

/// A bounded memory, oldest forgotten first. A job is known by its client and its id: two clients may use one id.
#[derive(Debug)]
pub(super) struct JobMemory {
    max: usize,
    jobs: HashMap<(Identity, JobId), Box<[Identity]>>,
    order: VecDeque<(Identity, JobId)>,
}

impl JobMemory {
    pub(super) fn new(max: usize) -> Self {
        Self { max, jobs: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn get(&self, client: &Identity, job: &JobId) -> Option<&[Identity]> {
        self.jobs.get(&(client.clone(), job.clone())).map(|workers| &**workers)
    }

    /// Remembers; the first choice of a job stays.
    pub(super) fn insert(&mut self, client: &Identity, job: &JobId, workers: &[Identity]) {
        let key = (client.clone(), job.clone());
        if self.max == 0 || self.jobs.contains_key(&key) {
            return;
        }
        if self.order.len() >= self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.jobs.remove(&oldest);
        }
        self.order.push_back(key.clone());
        self.jobs.insert(key, workers.into());
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
