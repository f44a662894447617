//! A client whose store does what a test wants.

use norfab_fabric::client::{ClientHandle, ClientOptions};
use norfab_jobs::{
    ClientJob, ClientJobDetails, ClientJobFilter, ClientOperation, ClientState, ClientStore, MemoryClientStore,
    Outcome, Page, PageEnd, Pruned, Retention, SetAside, Statistics, Store, StoreError,
};
use norfab_protocol::client::ClientConfig;
use norfab_protocol::{Identity, JobId};
use norfab_transport::memory::MemoryNetwork;

/// What happens beside the work of a store: nothing, where a test does not say so.
pub trait Hooks: Send {
    /// Before operations are applied. Errors: they are not.
    fn apply(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Before jobs are listed.
    fn list(&mut self) {}
    /// Before a page of unfinished jobs or the last number is read. Errors: it is not.
    fn reads(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    /// When a page of unfinished jobs was read.
    fn unfinished(&mut self, _: &mut Page<ClientJob>) {}
    /// When a page of late jobs was read.
    fn late(&mut self) {}
}

/// A store in memory with hooks.
pub struct Hooked<H> {
    pub store: MemoryClientStore,
    pub hooks: H,
}

impl<H: Hooks> Store for Hooked<H> {
    type Operation = ClientOperation;
    fn apply(&mut self, operations: &[ClientOperation]) -> Result<Vec<Outcome>, StoreError> {
        self.hooks.apply()?;
        self.store.apply(operations)
    }
    fn prune(&mut self, retention: &Retention, now: f64) -> Result<Pruned, StoreError> {
        self.store.prune(retention, now)
    }
    fn tidy(&mut self) -> Result<(), StoreError> {
        self.store.tidy()
    }
    fn set_aside(&self) -> Option<&SetAside> {
        self.store.set_aside()
    }
}

impl<H: Hooks> ClientStore for Hooked<H> {
    fn unfinished(&mut self, after: Option<PageEnd>, limit: usize) -> Result<Page<ClientJob>, StoreError> {
        self.hooks.reads()?;
        let mut page = self.store.unfinished(after, limit)?;
        self.hooks.unfinished(&mut page);
        Ok(page)
    }
    fn late(&mut self, before: f64, limit: usize) -> Result<Page<ClientJob>, StoreError> {
        let page = self.store.late(before, limit);
        self.hooks.late();
        page
    }
    fn job(&mut self, id: &JobId) -> Result<Option<ClientJobDetails>, StoreError> {
        self.store.job(id)
    }
    fn last_number(&mut self) -> Result<Option<u64>, StoreError> {
        self.hooks.reads()?;
        self.store.last_number()
    }
    fn number(&mut self, id: &JobId) -> Result<Option<u64>, StoreError> {
        self.store.number(id)
    }
    fn list(&mut self, filter: &ClientJobFilter) -> Result<Vec<ClientJob>, StoreError> {
        self.hooks.list();
        self.store.list(filter)
    }
    fn statistics(&mut self) -> Result<Statistics<ClientState>, StoreError> {
        self.store.statistics()
    }
}

/// A client named `c` with a store, at the endpoint `broker`.
pub fn client_at(network: &MemoryNetwork, store: impl ClientStore + 'static) -> ClientHandle {
    client_with_room(network, 1000, store)
}

/// The same with a queue to the broker of so many messages.
pub fn client_with_room(network: &MemoryNetwork, messages: usize, store: impl ClientStore + 'static) -> ClientHandle {
    ClientHandle::start(ClientOptions {
        identity: Identity::parse("c").expect("a name"),
        config: ClientConfig::default(),
        link: Box::new(network.dealer("broker", b"c", messages).expect("a dealer")),
        store: Box::new(move || Ok(Box::new(store))),
        problem: norfab_fabric::tell_problem(),
    })
    .expect("a client")
}
