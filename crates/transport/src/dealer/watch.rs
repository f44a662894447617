//! What a dealer sleeps for in each of its phases.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::{Dealer, Phase};
use crate::connection::Connection;
use crate::error::LinkError;
use crate::sleep::{has_news, sleep};

impl Dealer {
    /// Sleeps until something happens to the connection, a producer wakes the owner, or the time is over. Whether the owner was
    /// woken.
    pub(super) fn sleep(&mut self, until: Option<Instant>, now: Instant) -> Result<bool, LinkError> {
        let (watched, deadline) = match &self.phase {
            Phase::Pausing { until } => (None, Some(*until)),
            Phase::Resolving(_) | Phase::Ended => (None, None),
            Phase::Connecting { socket, until } => (Some((socket.as_fd(), PollFlags::OUT)), Some(*until)),
            Phase::Shaking { connection, until } => (Some((connection.fd(), self.wants(connection))), Some(*until)),
            Phase::Open(connection) => (Some((connection.fd(), self.wants(connection))), None),
        };
        let sleeper = self.waker.sleeper();
        let (fd, flags) = watched.unwrap_or((sleeper, PollFlags::IN));
        let mut descriptors = [PollFd::from_borrowed_fd(sleeper, PollFlags::IN), PollFd::from_borrowed_fd(fd, flags)];
        let count = if flags.is_empty() || watched.is_none() { 1 } else { 2 };
        let next = [until, deadline].into_iter().flatten().min();
        sleep(&mut descriptors[..count], next.map(|next| next.saturating_duration_since(now)))?;
        let [woken, news] = [has_news(&descriptors[0]), has_news(&descriptors[1])];
        let revents = descriptors[1].revents();
        if count == 2 && news && matches!(self.phase, Phase::Open(_)) {
            let ended = PollFlags::ERR | PollFlags::HUP;
            self.readable |= revents.intersects(PollFlags::IN | ended);
            if self.blocked && revents.intersects(PollFlags::OUT | ended) {
                self.blocked = false;
            }
        }
        Ok(woken && self.waker.take())
    }

    fn wants(&self, connection: &Connection) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, connection.engine.reads());
        flags.set(PollFlags::OUT, self.blocked);
        flags
    }
}
