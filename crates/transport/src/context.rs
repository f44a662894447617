//! What the links of a process share: the thread for large boxes, and those that see off what closed links have to send.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::boxes::{Boxes, Tray};
use crate::connection::Connection;
use crate::linger::see_off;

/// Such a thread needs little room.
const STACK_BYTES: usize = 128 * 1024;

/// What links share. One per process is usual; clones are handles to the same one.
///
/// Links keep their context alive. When the last handle goes, the context ends, and that waits for what closed links still
/// have to send, bounded by the linger they were closed with. So a process that wants its last messages to leave drops its
/// last handle before it exits.
#[derive(Debug, Clone, Default)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    boxes: Boxes,
    leaving: Mutex<Vec<JoinHandle<()>>>,
}

impl Context {
    /// A context. It starts threads when it needs them.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn boxes(&self) -> &Boxes {
        &self.inner.boxes
    }

    /// Gives what waits on connections some time to leave, without waiting for it. Where the system has no more threads it
    /// is lost.
    pub(crate) fn see_off(&self, connections: Vec<(u64, Connection)>, tray: Tray, linger: Duration) {
        if connections.is_empty() || linger.is_zero() {
            return;
        }
        let thread = std::thread::Builder::new()
            .name("norfab-leaving".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || see_off(connections, &tray, linger));
        let mut leaving = self.inner.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.retain(|thread| !thread.is_finished());
        leaving.extend(thread);
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let leaving = std::mem::take(self.leaving.get_mut().unwrap_or_else(PoisonError::into_inner));
        for thread in leaving {
            // What one of them panicked about has been printed, and there is nothing left to save.
            drop(thread.join());
        }
    }
}

/// Allows this process as many descriptors as the system lets it have, and tells how many those are. Each connection of a
/// broker needs one, and the usual limit of 1024 is less than a large network has workers.
#[must_use]
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // It is allowed to everybody; where it fails all the same, the old limit stays.
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).ok();
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
