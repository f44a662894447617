//! Sleeping until one of very many sockets has news. On Linux the system remembers which they are (epoll); elsewhere they are
//! named with each sleep (poll).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::error::LinkError;
#[cfg(any(test, not(target_os = "linux")))]
use crate::sleep::has_news;
use crate::sleep::sleep;

/// News that are taken at once; the rest is there the next time.
#[cfg(target_os = "linux")]
const EVENTS_MAX: usize = 256;

/// The system counts a sleep in milliseconds and rounds up. A sleep below this is measured exactly, at the price of one more
/// call.
#[cfg(target_os = "linux")]
const EXACT_BELOW: Duration = Duration::from_millis(20);

/// What is wanted of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Interest {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

/// News of a socket. One that failed or ended is both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    /// The number that was given with the socket.
    pub(crate) key: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

#[cfg(target_os = "linux")]
pub(crate) use linux::Poller;
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::Poller;

#[cfg(target_os = "linux")]
mod linux {
    use super::{AsFd, BorrowedFd, Duration, EVENTS_MAX, EXACT_BELOW, Errno, Event, Interest, LinkError, OwnedFd};
    use super::{PollFd, PollFlags, sleep};
    use std::mem::MaybeUninit;

    use rustix::event::{Timespec, epoll};

    /// Many sockets to sleep for.
    pub(crate) struct Poller {
        epoll: OwnedFd,
    }

    impl Poller {
        pub(crate) fn new() -> Result<Self, LinkError> {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| failed("epoll_create", errno))?;
            Ok(Self { epoll })
        }

        /// Watches a socket. It need not be told when the socket is closed.
        pub(crate) fn add(&mut self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> Result<(), Errno> {
            epoll::add(&self.epoll, fd, epoll::EventData::new_u64(key), flags(interest))
        }

        /// Wants something else of a socket.
        pub(crate) fn change(&mut self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> Result<(), Errno> {
            epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(key), flags(interest))
        }

        /// Forgets a socket that is about to be closed. The system does it by itself.
        pub(crate) fn forget(&mut self, _key: u64) {}

        /// Sleeps until there are news or the time is over.
        pub(crate) fn wait(&mut self, timeout: Option<Duration>, news: &mut Vec<Event>) -> Result<(), LinkError> {
            let mut timeout = timeout;
            if let Some(short) = timeout
                && !short.is_zero()
                && short < EXACT_BELOW
            {
                sleep(&mut [PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN)], Some(short))?;
                timeout = Some(Duration::ZERO);
            }
            // A time that the system cannot express is as good as none.
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let mut room = [MaybeUninit::uninit(); EVENTS_MAX];
            let events = match epoll::wait(&self.epoll, &mut room[..], timeout.as_ref()) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => return Ok(()),
                Err(errno) => return Err(failed("epoll_wait", errno)),
            };
            let ended = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
            news.extend(events.iter().map(|event| {
                // The structure is packed: no references to its fields.
                let (flags, data) = (event.flags, event.data);
                Event {
                    key: data.u64(),
                    readable: flags.intersects(epoll::EventFlags::IN | ended),
                    writable: flags.intersects(epoll::EventFlags::OUT | ended),
                }
            }));
            Ok(())
        }
    }

    fn flags(interest: Interest) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        // An end is told even to those who want nothing; once is enough, until they want something again.
        flags.set(epoll::EventFlags::ONESHOT, interest == Interest::default());
        flags.set(epoll::EventFlags::IN, interest.reads);
        flags.set(epoll::EventFlags::OUT, interest.writes);
        flags
    }

    fn failed(call: &'static str, errno: Errno) -> LinkError {
        LinkError::System { call, errno: errno.raw_os_error(), reason: std::io::Error::from(errno).to_string() }
    }
}

/// For systems without epoll. It is compiled for tests everywhere, so that it stays right.
#[cfg(any(test, not(target_os = "linux")))]
mod portable {
    use std::collections::BTreeMap;
    use std::os::fd::{AsRawFd, RawFd};

    use super::{AsFd, BorrowedFd, Duration, Errno, Event, Interest, LinkError, OwnedFd};
    use super::{PollFd, PollFlags, has_news, sleep};

    /// Many sockets to sleep for.
    pub(crate) struct Poller {
        /// By number: the socket once more, so that it stays open as long as it is watched.
        watched: BTreeMap<u64, (OwnedFd, RawFd, Interest)>,
    }

    impl Poller {
        // The same signature as that of the other systems.
        #[allow(clippy::unnecessary_wraps)]
        pub(crate) fn new() -> Result<Self, LinkError> {
            Ok(Self { watched: BTreeMap::new() })
        }

        /// Watches a socket, until it is forgotten.
        pub(crate) fn add(&mut self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> Result<(), Errno> {
            let own = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
            self.watched.insert(key, (own, fd.as_raw_fd(), interest));
            Ok(())
        }

        /// Wants something else of a socket.
        pub(crate) fn change(&mut self, fd: BorrowedFd<'_>, key: u64, interest: Interest) -> Result<(), Errno> {
            match self.watched.get_mut(&key) {
                Some((_, known, wanted)) if *known == fd.as_raw_fd() => *wanted = interest,
                _ => return Err(Errno::NOENT),
            }
            Ok(())
        }

        /// Forgets a socket that is about to be closed.
        pub(crate) fn forget(&mut self, key: u64) {
            self.watched.remove(&key);
        }

        /// Sleeps until there are news or the time is over.
        pub(crate) fn wait(&mut self, timeout: Option<Duration>, news: &mut Vec<Event>) -> Result<(), LinkError> {
            let watched = || self.watched.iter().filter(|(_, (_, _, interest))| *interest != Interest::default());
            let mut descriptors: Vec<PollFd<'_>> = watched()
                .map(|(_, (own, _, interest))| {
                    let mut flags = PollFlags::empty();
                    flags.set(PollFlags::IN, interest.reads);
                    flags.set(PollFlags::OUT, interest.writes);
                    PollFd::from_borrowed_fd(own.as_fd(), flags)
                })
                .collect();
            sleep(&mut descriptors, timeout)?;
            let ended = PollFlags::ERR | PollFlags::HUP;
            let found = watched().zip(&descriptors).filter(|(_, descriptor)| has_news(descriptor));
            news.extend(found.map(|((key, _), descriptor)| Event {
                key: *key,
                readable: descriptor.revents().intersects(PollFlags::IN | ended),
                writable: descriptor.revents().intersects(PollFlags::OUT | ended),
            }));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    macro_rules! promises {
        ($module:ident) => {
            mod $module {
                use super::*;

                #[test]
                fn news_are_told_as_long_as_they_are_wanted() {
                    let mut poller = super::super::$module::Poller::new().unwrap();
                    let (mut one, other) = UnixStream::pair().unwrap();
                    let reads = Interest { reads: true, writes: false };
                    poller.add(other.as_fd(), 7, reads).unwrap();
                    let mut news = Vec::new();
                    poller.wait(Some(Duration::ZERO), &mut news).unwrap();
                    assert_eq!(news, []);
                    one.write_all(b"x").unwrap();
                    for _ in 0..2 {
                        poller.wait(None, &mut news).unwrap();
                        assert_eq!(news, [Event { key: 7, readable: true, writable: false }]);
                        news.clear();
                    }
                    poller.change(other.as_fd(), 7, Interest { reads: true, writes: true }).unwrap();
                    poller.wait(None, &mut news).unwrap();
                    assert_eq!(news, [Event { key: 7, readable: true, writable: true }]);
                    news.clear();
                    poller.change(other.as_fd(), 7, Interest::default()).unwrap();
                    poller.wait(Some(Duration::ZERO), &mut news).unwrap();
                    assert_eq!(news, []);
                    drop(one);
                    // The end is told at most once to those who want nothing ...
                    poller.wait(Some(Duration::ZERO), &mut news).unwrap();
                    news.clear();
                    poller.wait(Some(Duration::ZERO), &mut news).unwrap();
                    assert_eq!(news, []);
                    // ... and to the others until they close.
                    poller.change(other.as_fd(), 7, reads).unwrap();
                    for _ in 0..2 {
                        poller.wait(None, &mut news).unwrap();
                        assert!(news[0].readable);
                        news.clear();
                    }
                    poller.forget(7);
                    drop(other);
                    news.clear();
                    poller.wait(Some(Duration::ZERO), &mut news).unwrap();
                    assert_eq!(news, []);
                }

                #[test]
                fn a_sleep_is_as_long_as_it_should_be() {
                    let mut poller = super::super::$module::Poller::new().unwrap();
                    for time in [300, 2_500, 25_100].map(Duration::from_micros) {
                        let began = Instant::now();
                        poller.wait(Some(time), &mut Vec::new()).unwrap();
                        assert!(began.elapsed() >= time);
                    }
                }
            }
        };
    }

    #[cfg(target_os = "linux")]
    promises!(linux);
    promises!(portable);
}
