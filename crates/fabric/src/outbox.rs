//! What a worker or client has to send, in order, until its link takes it.

use std::collections::VecDeque;

use norfab_protocol::frame::Frames;
use norfab_protocol::worker::Class;
use norfab_transport::{DealerLink, LinkError, SendError};

/// Bytes that may wait before the owner takes no more commands.
pub(crate) const OUTBOX_BYTES_HIGH: usize = 256 << 20;

/// Messages that wait for the link.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Messages that may wait before the owner takes no more commands: producers then get `QueueFull`.
    messages_high: usize,
    first: Option<Frames>,
    queue: VecDeque<Frames>,
    bytes: usize,
    failures: u64,
}

impl Outbox {
    pub(crate) fn new(messages_high: usize) -> Self {
        Self { messages_high, first: None, queue: VecDeque::new(), bytes: 0, failures: 0 }
    }

    pub(crate) fn push(&mut self, frames: Frames, class: Class) {
        match class {
            Class::First => self.first = Some(frames),
            // A beat behind other messages says nothing that they do not say.
            Class::Beat if !self.queue.is_empty() => {}
            Class::Beat | Class::Data => {
                self.bytes += size(&frames);
                self.queue.push_back(frames);
            }
        }
    }

    /// Hands over as much as the link takes. Errors: the link is broken.
    pub(crate) fn flush(&mut self, link: &mut dyn DealerLink) -> Result<(), LinkError> {
        if let Some(first) = &self.first {
            if !hand_over(link, first, &mut self.failures)? {
                return Ok(());
            }
            self.first = None;
        }
        while let Some(frames) = self.queue.front() {
            if !hand_over(link, frames, &mut self.failures)? {
                return Ok(());
            }
            if let Some(frames) = self.queue.pop_front() {
                self.bytes -= size(&frames);
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.queue.is_empty()
    }

    pub(crate) fn is_high(&self) -> bool {
        self.queue.len() >= self.messages_high || self.bytes >= OUTBOX_BYTES_HIGH
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// How often the link took nothing.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }
}

fn size(frames: &Frames) -> usize {
    frames.iter().map(bytes::Bytes::len).sum()
}

fn hand_over(link: &mut dyn DealerLink, frames: &Frames, failures: &mut u64) -> Result<bool, LinkError> {
    match link.try_send(frames) {
        Ok(()) => Ok(true),
        Err(SendError::Failed(error)) => Err(error),
        Err(SendError::Full | SendError::Unroutable | SendError::Closed) => {
            *failures += 1;
            Ok(false)
        }
    }
}
