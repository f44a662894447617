//! Work on files leaves the threads that drive futures.

use std::panic;

use norfab_service::TaskError;
use tokio::task;

/// Runs a function on a thread that may block. A panic goes on to who waits. Errors: the runtime stops.
pub(crate) async fn on_blocking_thread<Output: Send + 'static>(
    run: impl FnOnce() -> Output + Send + 'static,
) -> Result<Output, TaskError> {
    match task::spawn_blocking(run).await {
        Ok(output) => Ok(output),
        Err(error) => match error.try_into_panic() {
            Ok(payload) => panic::resume_unwind(payload),
            Err(error) => Err(TaskError::new(format!("the runtime stopped before the file could be read: {error}"))),
        },
    }
}
