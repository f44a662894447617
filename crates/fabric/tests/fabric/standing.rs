//! Workers and clients tell their links which connections lasted, and so how soon the next try is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use bytes::Bytes;
use norfab_fabric::LinkState;
use norfab_fabric::client::{ClientHandle, ClientOptions};
use norfab_fabric::worker::WorkerHandle;
use norfab_jobs::MemoryClientStore;
use norfab_protocol::Identity;
use norfab_protocol::client::ClientConfig;
use norfab_service::{NoInput, Task, TaskContext};
use norfab_transport::memory::MemoryNetwork;
use norfab_transport::{DealerLink, LinkError, LinkStatus, Ready, Received, SendError, Waker};
use serde_json::json;
use tokio::sync::watch;

use crate::decision::{service, worker_options};
use crate::support::runtime;

/// A connection that is held so long has lasted.
const LONG: Duration = Duration::from_millis(3_200);

/// How often the link looks at what the test tells it.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A link whose connections come and go as a test says.
struct Scripted {
    inner: Box<dyn DealerLink>,
    statuses: Receiver<LinkStatus>,
    lasted: Arc<AtomicU32>,
}

/// The test's end of it.
struct Script {
    statuses: SyncSender<LinkStatus>,
    lasted: Arc<AtomicU32>,
}

fn scripted() -> (Box<Scripted>, Script) {
    let (told, statuses) = sync_channel(1);
    let lasted = Arc::new(AtomicU32::new(0));
    let inner = Box::new(MemoryNetwork::new().dealer("nobody", b"x", 10).expect("a dealer"));
    (Box::new(Scripted { inner, statuses, lasted: Arc::clone(&lasted) }), Script { statuses: told, lasted })
}

impl DealerLink for Scripted {
    fn try_send(&mut self, _: &[Bytes]) -> Result<(), SendError> {
        Ok(())
    }
    fn try_receive(&mut self) -> Result<Option<Received>, LinkError> {
        Ok(None)
    }
    fn wait(&mut self, timeout: Option<Duration>, want_write: bool) -> Result<Ready, LinkError> {
        self.inner.wait(Some(timeout.map_or(LOOK_INTERVAL, |timeout| timeout.min(LOOK_INTERVAL))), want_write)
    }
    fn waker(&self) -> Waker {
        self.inner.waker()
    }
    fn lasted(&mut self) {
        self.lasted.fetch_add(1, Ordering::SeqCst);
    }
    fn reconnect(&mut self) -> Result<(), LinkError> {
        Ok(())
    }
    fn next_status(&mut self) -> Option<LinkStatus> {
        // Its own say that nobody is there.
        while self.inner.next_status().is_some() {}
        self.statuses.try_recv().ok()
    }
    fn close(self: Box<Self>, linger: Duration) {
        self.inner.close(linger);
    }
}

impl Script {
    /// A connection that is held for a while. What the link was told of it is counted.
    async fn connection(&self, state: &mut watch::Receiver<LinkState>, held: Duration) -> u32 {
        let before = self.lasted.load(Ordering::SeqCst);
        self.statuses.send(LinkStatus::Connected).expect("an owner");
        state.wait_for(|state| *state == LinkState::Connected).await.expect("an owner");
        tokio::time::sleep(held).await;
        self.statuses.send(LinkStatus::Disconnected).expect("an owner");
        state.wait_for(|state| *state == LinkState::Disconnected).await.expect("an owner");
        self.lasted.load(Ordering::SeqCst) - before
    }

    async fn shows(&self, mut state: watch::Receiver<LinkState>) {
        for _ in 0..4 {
            assert_eq!(self.connection(&mut state, Duration::ZERO).await, 0, "it has not lasted");
        }
        assert_eq!(self.connection(&mut state, LONG).await, 1, "it has lasted");
        assert_eq!(self.connection(&mut state, Duration::ZERO).await, 0, "this one has not");
    }
}

#[test]
fn workers_and_clients_tell_their_links_which_connections_lasted() {
    runtime().block_on(async {
        let (link, of_worker) = scripted();
        let task = Task::new("t", "", async |_: TaskContext, NoInput {}| Ok(json!(1)));
        let worker = WorkerHandle::start(worker_options(service(task), link)).expect("a worker");
        let (link, of_client) = scripted();
        let client = ClientHandle::start(ClientOptions {
            identity: Identity::parse("c").expect("a name"),
            config: ClientConfig::default(),
            link,
            store: Box::new(|| Ok(Box::new(MemoryClientStore::default()))),
            problem: norfab_fabric::tell_problem(),
        })
        .expect("a client");
        tokio::join!(of_worker.shows(worker.state()), of_client.shows(client.state()));
        client.stop().await;
        worker.stop(Duration::ZERO).await;
    });
}
