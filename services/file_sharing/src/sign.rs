//! Signs of a task that it is at it. Clients wait for a worker that shows nothing only for a while.

use std::cell::Cell;
use std::time::{Duration, Instant};

use norfab_service::{EventDraft, TaskContext};

/// How often it is shown: often enough that nobody takes it for one that hangs.
const SHOWN_EVERY: Duration = Duration::from_secs(3);

/// What shows that a task is at it.
pub(crate) struct Sign<'a> {
    context: &'a TaskContext,
    doing: &'static str,
    last: Cell<Instant>,
}

impl<'a> Sign<'a> {
    /// `doing`: what it is at.
    pub(crate) fn new(context: &'a TaskContext, doing: &'static str) -> Self {
        Self { context, doing, last: Cell::new(context.clock().now()) }
    }

    /// Whether the job is to end; shows that its task is at it, if it has not been shown for a while. Blocks where much is on its way.
    pub(crate) fn is_cancelled(&self) -> bool {
        let now = self.context.clock().now();
        if now.saturating_duration_since(self.last.get()) >= SHOWN_EVERY {
            self.last.set(now);
            // Where it cannot be told, the client waits as long as it does.
            drop(self.context.event_blocking(EventDraft::new(self.doing)));
        }
        self.context.is_cancelled()
    }
}
