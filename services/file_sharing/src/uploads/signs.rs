//! Telling the client that its upload is not forgotten while the disk is at it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use norfab_service::{EventDraft, TaskContext};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// How often: a client takes a worker for gone that says nothing for 5 s.
const SIGN_INTERVAL: Duration = Duration::from_secs(2);

/// What lasts less is not worth a word.
const WORTH_A_SIGN: Duration = Duration::from_millis(500);

/// What the disk is at, and since when.
type At = Arc<Mutex<Option<(&'static str, Instant)>>>;

/// Tells it as long as it lives. The thread of the upload itself waits for the disk.
pub(super) struct Signs {
    at: At,
    context: TaskContext,
    telling: JoinHandle<()>,
}

impl Signs {
    pub(super) fn start(context: &TaskContext) -> Self {
        let at = At::default();
        let telling = Handle::current().spawn(tell(context.clone(), Arc::clone(&at)));
        Self { at, context: context.clone(), telling }
    }

    /// Does something that may wait for the disk.
    pub(super) fn during<Output>(&self, what: &'static str, body: impl FnOnce() -> Output) -> Output {
        self.is_at(Some((what, self.context.clock().now())));
        let output = body();
        self.is_at(None);
        output
    }

    fn is_at(&self, what: Option<(&'static str, Instant)>) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }
}

impl Drop for Signs {
    fn drop(&mut self) {
        self.telling.abort();
    }
}

async fn tell(context: TaskContext, at: At) {
    loop {
        tokio::time::sleep(SIGN_INTERVAL).await;
        let now = context.clock().now();
        let at = *at.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((what, _)) = at.filter(|(_, since)| now.saturating_duration_since(*since) >= WORTH_A_SIGN) else {
            continue;
        };
        // One that does not arrive is followed by others.
        context.event(EventDraft::new(what)).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use norfab_service::testing::TestWorker;
    use norfab_service::{Service, ServiceName, TaskMessage};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_the_disk_is_at_is_told_for_as_long_as_it_takes_and_no_longer() {
        let worker = TestWorker::new(Service::new(ServiceName::parse("s").expect("a name")));
        let (context, _port, mut messages) = worker.context("take_file");
        let signs = Signs::start(&context);
        let (begins, begun) = mpsc::sync_channel(1);
        let (ends, end) = mpsc::sync_channel::<()>(1);
        let runtime = Handle::current();
        let thread = std::thread::spawn(move || {
            let _guard = runtime.enter();
            signs.during("waiting", || {
                begins.send(()).expect("awaited");
                end.recv().ok()
            });
            signs
        });
        // Time stands still until then: it passes only where the test waits for it.
        begun.recv().expect("no panic");
        for _ in 0..3 {
            let began = context.clock().now();
            let Some(TaskMessage::Event(event)) = messages.recv().await else { panic!("no event") };
            assert!(event.message.contains("waiting"), "{event:?}");
            assert!(context.clock().now() - began <= SIGN_INTERVAL + WORTH_A_SIGN + Duration::from_secs(2));
        }
        ends.send(()).expect("awaited");
        let signs = thread.join().expect("no panic");
        while messages.try_recv().is_ok() {}
        let more = tokio::time::timeout(5 * SIGN_INTERVAL, messages.recv()).await;
        assert!(more.is_err(), "{more:?}");
        drop(signs);
    }
}
