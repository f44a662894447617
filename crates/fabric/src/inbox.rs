//! What comes to an owner: confirmations and answers of its store, and messages of its link.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use norfab_protocol::frame::{FRAMES_MAX, Frames};
use norfab_transport::{DealerLink, LinkError, Received, Waker};

/// A list that the owner takes as a whole. It is bounded by what the owner asked for: at most one item for each operation
/// and query that it handed over. The owner takes all of it in each turn, before it hands over more.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    items: Arc<Mutex<Vec<T>>>,
    waker: Waker,
}

impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        Self { items: Arc::clone(&self.items), waker: self.waker.clone() }
    }
}

impl<T> Inbox<T> {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { items: Arc::new(Mutex::new(Vec::new())), waker }
    }

    pub(crate) fn push(&self, items: impl IntoIterator<Item = T>) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).extend(items);
        self.waker.wake();
    }

    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.items.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the store's thread hands confirmations to. It is dropped with the thread, whatever ended it, and says so.
pub(crate) struct Confirmer<T> {
    inbox: Inbox<T>,
    last: Option<T>,
}

impl<T> Confirmer<T> {
    /// `last` is put into the inbox when the thread has ended.
    pub(crate) fn new(inbox: Inbox<T>, last: T) -> Self {
        Self { inbox, last: Some(last) }
    }

    pub(crate) fn confirm(&self, items: impl IntoIterator<Item = T>) {
        self.inbox.push(items);
    }
}

impl<T> Drop for Confirmer<T> {
    fn drop(&mut self) {
        self.inbox.push(self.last.take());
    }
}

/// What became of operations that were handed to the store's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Submitted {
    Now,
    /// The queue is full: try again soon.
    Later,
    /// The store's thread has ended, and with it the role: it could promise nothing any more.
    Closed,
}

/// Messages that are read ahead at most: as many as the link itself holds.
const AHEAD_MESSAGES_MAX: usize = norfab_transport::options::QUEUE_MESSAGES as usize;

/// Bytes of messages that are read ahead at most.
const AHEAD_BYTES_MAX: usize = 64 << 20;

/// Messages that were read from the link and not looked at yet, because their owner has too much to do. The link tells of a
/// lost connection only behind what came in before, and an owner that read nothing would not connect again.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    messages: VecDeque<Received>,
    bytes: usize,
    /// So many of the first of them came on a connection before the one that there is now.
    earlier: usize,
}

impl Ahead {
    /// Reads as much as there is room for. Errors: the link is broken.
    pub(crate) fn fill(&mut self, link: &mut dyn DealerLink) -> Result<(), LinkError> {
        while !self.is_full() {
            let Some(received) = link.try_receive()? else { return Ok(()) };
            self.bytes += received.frames.iter().map(bytes::Bytes::len).sum::<usize>();
            self.messages.push_back(received);
        }
        Ok(())
    }

    /// The next message, of those read ahead or of the link. Errors: the link is broken.
    pub(crate) fn next(&mut self, link: &mut dyn DealerLink) -> Result<Option<Received>, LinkError> {
        let Some(received) = self.messages.pop_front() else { return link.try_receive() };
        self.earlier = self.earlier.saturating_sub(1);
        self.bytes -= received.frames.iter().map(bytes::Bytes::len).sum::<usize>();
        Ok(Some(received))
    }

    /// There is another connection: what was read so far came on one before it.
    pub(crate) fn connected(&mut self) {
        self.earlier = self.messages.len();
    }

    /// Whether the next message came on a connection before the one that there is now.
    pub(crate) fn is_next_of_earlier_connection(&self) -> bool {
        self.earlier > 0
    }

    /// Whether nothing more is read ahead.
    pub(crate) fn is_full(&self) -> bool {
        self.messages.len() >= AHEAD_MESSAGES_MAX || self.bytes >= AHEAD_BYTES_MAX
    }
}

/// The frames of a message. One that the link cut off keeps a frame too many, so that it is refused for what it was.
pub(crate) fn whole(received: Received) -> Frames {
    let Received { mut frames, truncated, .. } = received;
    if truncated {
        frames.resize(frames.len().max(FRAMES_MAX + 1), bytes::Bytes::new());
    }
    frames
}

#[cfg(test)]
mod tests {
    use norfab_transport::memory::MemoryNetwork;
    use norfab_transport::{LinkStatus, RouterLink};

    use super::*;

    #[test]
    fn what_was_read_ahead_is_told_from_what_comes_on_the_next_connection() {
        let network = MemoryNetwork::new();
        let mut dealer = network.dealer("broker", b"c", 10).expect("a dealer");
        let mut ahead = Ahead::default();
        let mut routers = Vec::new();
        for text in ["old", "new"] {
            routers.clear();
            let mut router = network.router("broker").expect("a router");
            while let Some(status) = dealer.next_status() {
                if status == LinkStatus::Connected {
                    ahead.connected();
                }
            }
            dealer.try_send(&[text.into()]).expect("room");
            let said = router.try_receive().expect("a link").expect("a message");
            router.try_send(&said.peer, &said.frames).expect("room");
            ahead.fill(&mut dealer).expect("a link");
            routers.push(router);
        }
        for (text, is_earlier) in [("old", true), ("new", false)] {
            assert_eq!(ahead.is_next_of_earlier_connection(), is_earlier);
            let received = ahead.next(&mut dealer).expect("a link").expect("a message");
            assert_eq!(received.frames, [text]);
        }
        assert!(!ahead.is_next_of_earlier_connection(), "what comes now");
    }
}
