//! Bounded memories of jobs, the oldest forgotten first.

use std::collections::{BTreeMap, HashMap};

use crate::name::{Identity, JobId};
use crate::size::Size;

/// What is remembered of the last jobs that it was told of. A job is known by its client and its id: two clients may use one id.
#[derive(Debug)]
pub(crate) struct Recent<What> {
    max: usize,
    jobs: HashMap<(Identity, JobId), (u64, What)>,
    /// By number: the first that came is the first to go.
    order: BTreeMap<u64, (Identity, JobId)>,
    next: u64,
}

impl<What> Recent<What> {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, jobs: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }

    pub(crate) fn get(&self, client: &Identity, job: &JobId) -> Option<&What> {
        // Most of the time there is nothing to look for.
        self.order.first_key_value()?;
        self.jobs.get(&(client.clone(), job.clone())).map(|(_, what)| what)
    }

    /// Remembers; what is remembered of the job already stays.
    pub(crate) fn insert(&mut self, client: &Identity, job: &JobId, what: What) {
        let key = (client.clone(), job.clone());
        if self.jobs.contains_key(&key) {
            return;
        }
        self.order.insert(self.next, key.clone());
        self.jobs.insert(key, (self.next, what));
        self.next += 1;
        while self.order.len() > self.max {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.jobs.remove(&oldest);
        }
    }

    /// Remembers this in place of what was remembered of the job, as the latest.
    pub(crate) fn replace(&mut self, client: &Identity, job: &JobId, what: What) {
        self.remove(client, job);
        self.insert(client, job, what);
    }

    /// How much it holds, and may hold.
    pub(crate) fn size(&self, what: &'static str) -> Size {
        Size::new(what, self.order.len().max(self.jobs.len()), self.max)
    }

    /// Forgets a job; whether it was known.
    pub(crate) fn remove(&mut self, client: &Identity, job: &JobId) -> bool {
        let Some((number, _)) = self.jobs.remove(&(client.clone(), job.clone())) else { return false };
        self.order.remove(&number);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_remembered_than_the_bound_says_and_the_oldest_go() {
        let name = |text: &str| Identity::parse(text).expect("a name");
        let job = |text: &str| JobId::parse(text).expect("a name");
        let mut recent = Recent::new(2);
        for (number, id) in ["1", "2", "1", "3"].into_iter().enumerate() {
            recent.insert(&name("c"), &job(id), number);
        }
        let known = ["1", "2", "3"].map(|id| recent.get(&name("c"), &job(id)).copied());
        assert_eq!(known, [None, Some(1), Some(3)]);
        assert!(recent.remove(&name("c"), &job("2")) && !recent.remove(&name("other"), &job("3")));
        for id in ["4", "5", "6"] {
            recent.insert(&name("c"), &job(id), 9);
        }
        assert_eq!((recent.jobs.len(), recent.order.len()), (2, 2));
    }

    #[test]
    fn a_job_that_was_forgotten_and_came_again_is_as_new_as_any() {
        let name = |text: &str| Identity::parse(text).expect("a name");
        let job = |text: &str| JobId::parse(text).expect("a name");
        let mut recent = Recent::new(2);
        recent.insert(&name("c"), &job("1"), 1);
        assert!(recent.remove(&name("c"), &job("1")));
        for (id, number) in [("2", 2), ("1", 3), ("3", 4)] {
            recent.insert(&name("c"), &job(id), number);
        }
        let known = ["1", "2", "3"].map(|id| recent.get(&name("c"), &job(id)).copied());
        assert_eq!(known, [Some(3), None, Some(4)]);
    }
}
