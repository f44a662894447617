//! The roles that run in this process.

use std::time::Duration;

use norfab_fabric::LinkState;
use norfab_fabric::broker::BrokerHandle;
use tokio::task::{JoinHandle, JoinSet};

use crate::printer;
use crate::signals::Signals;
use crate::site::SiteWorker;

/// How long running jobs have to end after SIGINT or SIGTERM; a second signal ends them at once.
const DRAIN: Duration = Duration::from_secs(10);

/// How long a stop may take before it is said what it waits for: longer than it takes where nothing runs.
const SILENCE: Duration = Duration::from_millis(500);

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

    /// Waits until one of the roles here now has ended, and tells which.
    pub fn ended(&self) -> impl Future<Output = String> + Send + use<> {
        let mut ends = JoinSet::new();
        for worker in &self.workers {
            let (ended, role) = (worker.ended(), format!("worker {}", worker.identity()));
            ends.spawn(async move {
                ended.await;
                role
            });
        }
        if let Some(broker) = &self.broker {
            let ended = broker.ended();
            ends.spawn(async move {
                ended.await;
                "the broker".to_owned()
            });
        }
        async move {
            match ends.join_next().await {
                Some(Ok(role)) => role,
                // Nothing runs, or the runtime ends.
                Some(Err(_)) | None => std::future::pending().await,
            }
        }
    }

    /// Workers first, so that their last results find the broker. A second signal does not wait for jobs.
    pub async fn stop(self, signals: &mut Signals) {
        let mut stopping = JoinSet::new();
        for worker in self.workers {
            stopping.spawn(worker.stop(DRAIN));
        }
        let stopped = async { while stopping.join_next().await.is_some() {} };
        let told = async {
            tokio::time::sleep(SILENCE).await;
            printer::remark(&format!(
                "waiting up to {} s for running jobs; Ctrl-C or SIGTERM again does not wait for them",
                DRAIN.as_secs()
            ));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = stopped => {}
            () = told => {}
            _ = signals.next() => printer::remark("stopping without waiting for running jobs"),
        }
        if let Some(broker) = self.broker {
            broker.stop().await;
        }
    }
}

/// Tells when a worker is connected, however long that takes. Dropping the handle changes nothing about it.
pub fn when_connected(worker: &SiteWorker, tell: impl FnOnce(&str) + Send + 'static) -> JoinHandle<()> {
    let mut state = worker.state();
    let name = worker.identity().clone();
    tokio::spawn(async move {
        // An error says that the worker has ended, and its log says why.
        if state.wait_for(|state| *state == LinkState::Connected).await.is_ok() {
            tell(name.as_str());
        }
    })
}

/// Waits for all of them.
pub async fn all(handles: Vec<JoinHandle<()>>) {
    for handle in handles {
        // It can only end early with the runtime.
        handle.await.ok();
    }
}

/// The names of those that are not connected now.
pub fn not_connected(workers: &[SiteWorker]) -> Vec<String> {
    let away = workers.iter().filter(|worker| *worker.state().borrow() != LinkState::Connected);
    away.map(|worker| worker.identity().to_string()).collect()
}
