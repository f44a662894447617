//! Finding out where to connect to, after a pause: a short-lived thread that the owner need not wait for.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::error::LinkError;
use crate::waker::Waker;

/// The resolver of the C library wants some room; the default of 2 MB would be a waste.
const STACK_BYTES: usize = 256 * 1024;

/// One look-up, under way or done.
pub(crate) struct Dial {
    candidates: Receiver<Result<Vec<String>, LinkError>>,
    /// Ends the pause: early by a message, for good by being dropped. At most one message is ever sent.
    hurry: Option<Sender<()>>,
}

impl Dial {
    /// Looks up the addresses of an endpoint after a pause, and wakes the owner when it is done.
    pub(crate) fn start(endpoint: &Endpoint, pause: Duration, waker: Waker) -> Result<Self, LinkError> {
        if pause.is_zero() && !endpoint.needs_resolver() {
            let (result, candidates) = sync_channel(1);
            deliver(&result, endpoint.candidates());
            return Ok(Self { candidates, hurry: None });
        }
        let endpoint = endpoint.clone();
        Self::spawn(pause, waker, move || endpoint.candidates())
    }

    /// Wakes the owner after a pause, with no addresses.
    pub(crate) fn alarm(pause: Duration, waker: Waker) -> Result<Self, LinkError> {
        Self::spawn(pause, waker, || Ok(Vec::new()))
    }

    fn spawn(
        pause: Duration,
        waker: Waker,
        look_up: impl FnOnce() -> Result<Vec<String>, LinkError> + Send + 'static,
    ) -> Result<Self, LinkError> {
        #[cfg(test)]
        if NO_THREADS.get() {
            return Err(no_thread(&std::io::ErrorKind::WouldBlock.into()));
        }
        let (result, candidates) = sync_channel(1);
        let (hurry, hurried) = channel();
        std::thread::Builder::new()
            .name("norfab-dial".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                if hurried.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
                deliver(&result, look_up());
                waker.wake();
            })
            .map_err(|error| no_thread(&error))?;
        Ok(Self { candidates, hurry: Some(hurry) })
    }

    /// Ends the pause.
    pub(crate) fn hurry(&mut self) {
        if let Some(hurry) = self.hurry.take() {
            // Nobody listens any more once the pause is over.
            hurry.send(()).ok();
        }
    }

    /// The addresses, once they are known.
    pub(crate) fn candidates(&self) -> Option<Result<Vec<String>, LinkError>> {
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
    LinkError::Io { what: "cannot start a thread to connect", reason: error.to_string() }
}

#[cfg(test)]
thread_local! {
    /// Stands for a system that gives no more threads to what this thread starts.
    pub(crate) static NO_THREADS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// There is room for the one answer; if nobody wants it any more, it is dropped.
fn deliver(result: &SyncSender<Result<Vec<String>, LinkError>>, candidates: Result<Vec<String>, LinkError>) {
    result.try_send(candidates).ok();
}
