//! Sleeping until one of a few descriptors has news: no tick, no rounding of times to milliseconds.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};

use crate::error::LinkError;

/// Sleeps until one of the descriptors is ready or the time is over. A signal ends it early; callers check anyway.
pub(crate) fn sleep(descriptors: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<(), LinkError> {
    // A time that the system cannot express is as good as none.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(descriptors, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(LinkError::System {
            call: "poll",
            errno: errno.raw_os_error(),
            reason: std::io::Error::from(errno).to_string(),
        }),
    }
}

/// Whether this descriptor had news.
pub(crate) fn has_news(descriptor: &PollFd<'_>) -> bool {
    !descriptor.revents().is_empty()
}
