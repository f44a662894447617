//! Ending what blocks from another thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

type Closer = Box<dyn FnOnce() + Send>;

/// Says that something is to end, and closes what it waits for. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Halt {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    halted: AtomicBool,
    closers: Mutex<Vec<Closer>>,
}

impl Halt {
    /// Ends it: connections are closed and programs ended that were told of by [`Self::on_halt`].
    pub(crate) fn halt(&self) {
        self.inner.halted.store(true, Ordering::SeqCst);
        for close in std::mem::take(&mut *self.closers()) {
            close();
        }
    }

    /// Whether it is to end.
    pub(crate) fn is_halted(&self) -> bool {
        self.inner.halted.load(Ordering::SeqCst)
    }

    /// The flag itself, for libraries that look at one.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.inner.halted
    }

    /// Says what is to be closed. It is closed at once where it is too late.
    pub(crate) fn on_halt(&self, close: impl FnOnce() + Send + 'static) {
        self.closers().push(Box::new(close));
        if self.is_halted() {
            self.halt();
        }
    }

    fn closers(&self) -> std::sync::MutexGuard<'_, Vec<Closer>> {
        // Nothing panics while the lock is held.
        self.inner.closers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends it when it is dropped: whoever waited has gone.
pub(crate) struct HaltOnDrop(pub(crate) Halt);

impl Drop for HaltOnDrop {
    fn drop(&mut self) {
        self.0.halt();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn what_is_open_is_closed_once_and_what_opens_later_at_once() {
        let halt = Halt::default();
        let (closed, told) = sync_channel(3);
        let tell = |name| {
            let closed = closed.clone();
            move || closed.send(name).expect("room")
        };
        halt.on_halt(tell("first"));
        assert!(told.try_recv().is_err() && !halt.is_halted());
        drop(HaltOnDrop(halt.clone()));
        halt.halt();
        halt.on_halt(tell("second"));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["first", "second"]);
    }
}
