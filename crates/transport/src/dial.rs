//! Finding out where to connect to: the resolver may take seconds, so it gets a short-lived thread of its own.

use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use crate::endpoint::{Address, Endpoint};
use crate::error::LinkError;
use crate::waker::Waker;

/// The resolver of the C library wants some room; the default of 2 MB would be a waste.
const STACK_BYTES: usize = 256 * 1024;

/// One look-up, under way or done.
pub(crate) struct Dial {
    candidates: Receiver<Result<Vec<Address>, LinkError>>,
}

impl Dial {
    /// Looks up the addresses of an endpoint, and wakes the owner when they are known.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub(crate) fn start(endpoint: &Endpoint, waker: Waker) -> Result<Self, LinkError> {
        #[cfg(test)]
        if NO_THREADS.get() {
            return Err(no_thread(&std::io::ErrorKind::WouldBlock.into()));
        }
        let (result, candidates) = sync_channel(1);
        let endpoint = endpoint.clone();
        std::thread::Builder::new()
            .name("norfab-dial".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // There is room for the one answer; if nobody wants it any more, it is dropped.
                result.try_send(endpoint.candidates()).ok();
                waker.wake();
            })
            .map_err(|error| no_thread(&error))?;
        Ok(Self { candidates })
    }

    /// The addresses, once they are known.
    pub(crate) fn candidates(&self) -> Option<Result<Vec<Address>, LinkError>> {
        match self.candidates.try_recv() {
            Ok(candidates) => Some(candidates),
            Err(TryRecvError::Empty) => None,
            // The thread ended without an answer, which a panic of the resolver would explain.
            Err(TryRecvError::Disconnected) => {
                Some(Err(LinkError::Io { what: "cannot look up the broker", reason: "the resolver failed".to_owned() }))
            }
        }
    }
}

fn no_thread(error: &std::io::Error) -> LinkError {
    LinkError::Io { what: "cannot start a thread to look up the broker", reason: error.to_string() }
}

#[cfg(test)]
thread_local! {
    /// Stands for a system that gives no more threads to what this thread starts.
    pub(crate) static NO_THREADS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
