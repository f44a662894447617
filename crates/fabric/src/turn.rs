//! The shape that the loops of workers and clients share.

use std::time::Duration;

use norfab_transport::{DealerLink, LinkError};

use crate::storing::STORE_RETRY;

/// What is next after one look at everything.
pub(crate) enum Turn {
    /// Look again.
    Again,
    /// There is too much to do, and it is looked at again soon.
    Pause,
    /// Sleep until something happens, at most so long.
    Wait(Option<Duration>),
    /// The loop ends.
    End,
}

/// An owner of a dealer's link.
pub(crate) trait Owner {
    /// Looks once at everything that may have something to do. Errors: the link is broken.
    fn turn(&mut self) -> Result<Turn, LinkError>;

    /// The link.
    fn link(&mut self) -> &mut dyn DealerLink;

    /// Whether the link says that it is connected.
    fn is_connected(&self) -> bool;

    /// Whether something waits only because the link did not take it.
    fn wants_to_send(&self) -> bool;

    /// Turns until the end. Errors: the link is broken.
    fn turns(&mut self) -> Result<(), LinkError> {
        loop {
            match self.turn()? {
                Turn::Again => {}
                Turn::Wait(timeout) => {
                    let want_write = self.wants_to_send() && self.is_connected();
                    self.link().wait(timeout, want_write)?;
                }
                // Overload, not idleness: what holds us up is looked at again soon, and the link is readable meanwhile. What it
                // has taken leaves while it is waited for.
                Turn::Pause if self.is_connected() => {
                    self.link().wait(Some(Duration::ZERO), false)?;
                    std::thread::park_timeout(STORE_RETRY);
                }
                // It is not without a connection, and only who waits for one gets one.
                Turn::Pause => {
                    self.link().wait(Some(STORE_RETRY), false)?;
                }
                Turn::End => return Ok(()),
            }
        }
    }
}
