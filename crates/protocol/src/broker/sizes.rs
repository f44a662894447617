//! What a broker holds.

use super::Broker;
use crate::size::Size;

impl Broker {
    /// How much it holds between two inputs, and may hold.
    pub fn sizes(&self) -> impl Iterator<Item = Size> + use<> {
        let (config, (workers, services)) = (&self.config, self.registry.counts());
        let (jobs, of_jobs, of_jobs_max) = self.remembered.sizes();
        let (departed, departed_max) = self.departed.size();
        [
            Size::new("registered workers", workers, config.workers_max),
            Size::new("services", services, workers),
            Size::new("timers of workers", self.registry.timers(), workers),
            Size::new("workers that went", departed, departed_max),
            Size::new("workers told to register", self.strangers.len(), config.strangers_max),
            Size::new("jobs remembered", jobs, config.remembered_jobs_max),
            Size::new("workers of jobs remembered", of_jobs, of_jobs_max),
            self.undispatched.size("jobs remembered that nobody has"),
            self.cancelled.size("cancelled jobs"),
            Size::new("questions to the owner", self.asks.len(), config.asks_max),
            Size::new("outputs", self.outputs.len() + usize::from(self.dispatch.is_some()), 0),
        ]
        .into_iter()
    }
}
