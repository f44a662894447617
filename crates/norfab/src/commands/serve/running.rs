//! The roles that run in this process.

use std::time::Duration;

use norfab_fabric::LinkState;
use norfab_fabric::broker::BrokerHandle;

use crate::printer;
use crate::signals::Signals;
use crate::site::SiteWorker;

/// How long running jobs have to end after SIGINT or SIGTERM; a second signal ends them at once.
const DRAIN: Duration = Duration::from_secs(10);

/// What was started so far.
#[derive(Default)]
pub struct Running {
    pub broker: Option<BrokerHandle>,
    pub workers: Vec<SiteWorker>,
}

impl Running {
    pub fn is_empty(&self) -> bool {
        self.broker.is_none() && self.workers.is_empty()
    }

    /// Workers first, so that their last results find the broker. A second signal does not wait for jobs.
    pub async fn stop(self, signals: &mut Signals) {
        let mut stopping = tokio::task::JoinSet::new();
        for worker in self.workers {
            stopping.spawn(worker.stop(DRAIN));
        }
        let stopped = async { while stopping.join_next().await.is_some() {} };
        tokio::select! {
            () = stopped => {}
            _ = signals.next() => printer::remark("stopping without waiting for running jobs"),
        }
        if let Some(broker) = self.broker {
            broker.stop().await;
        }
    }
}

/// Waits until every worker is connected, and tells each as it is.
pub async fn all_connected(workers: &[SiteWorker], mut tell: impl FnMut(&str)) {
    let mut waiting = tokio::task::JoinSet::new();
    for worker in workers {
        let mut state = worker.state();
        let name = worker.identity().clone();
        waiting.spawn(async move {
            // An error says that the worker has ended, and its log says why.
            state.wait_for(|state| *state == LinkState::Connected).await.is_ok().then_some(name)
        });
    }
    while let Some(connected) = waiting.join_next().await {
        if let Ok(Some(name)) = connected {
            tell(name.as_str());
        }
    }
}

/// The names of those that are not connected now.
pub fn not_connected(workers: &[SiteWorker]) -> Vec<String> {
    let away = workers.iter().filter(|worker| *worker.state().borrow() != LinkState::Connected);
    away.map(|worker| worker.identity().to_string()).collect()
}
