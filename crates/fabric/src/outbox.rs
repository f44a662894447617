//! What a worker or client has to send, in order, until its link takes it.

use std::collections::VecDeque;

use norfab_protocol::JobId;
use norfab_protocol::frame::Frames;
use norfab_protocol::worker::Class;
use norfab_transport::{DealerLink, LinkError, SendError};

use crate::queue::Place;

/// Bytes that may wait before the owner reads nothing more from its link: what it would be asked for could not be sent.
pub(crate) const OUTBOX_BYTES_HIGH: usize = 256 << 20;

/// Messages that may wait before the owner reads nothing more from its link. Tasks and callers have bounds of their own.
pub(crate) const OUTBOX_MESSAGES_HIGH: usize = 50_000;

#[derive(Debug)]
struct Waiting {
    frames: Frames,
    /// The job whose end makes the message pointless.
    job: Option<JobId>,
    /// Given back when the message leaves.
    _place: Option<Place>,
}

/// Messages that wait for the link.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    first: Option<Frames>,
    /// The latest beat: it does not wait behind other messages, or a busy worker would be taken for dead.
    beat: Option<Frames>,
    queue: VecDeque<Waiting>,
    bytes: usize,
    failures: u64,
}

impl Outbox {
    pub(crate) fn push(&mut self, frames: Frames, class: Class, job: Option<JobId>, place: Option<Place>) {
        match class {
            Class::First => self.first = Some(frames),
            Class::Beat => self.beat = Some(frames),
            Class::Data => {
                self.bytes += size(&frames);
                self.queue.push_back(Waiting { frames, job, _place: place });
            }
        }
    }

    /// Throws away what waits of a job.
    pub(crate) fn forget(&mut self, job: &JobId) {
        let bytes = &mut self.bytes;
        self.queue.retain(|waiting| {
            let keep = waiting.job.as_ref() != Some(job);
            if !keep {
                *bytes -= size(&waiting.frames);
            }
            keep
        });
    }

    /// Hands over as much as the link takes. Errors: the link is broken.
    pub(crate) fn flush(&mut self, link: &mut dyn DealerLink) -> Result<(), LinkError> {
        for urgent in [&mut self.first, &mut self.beat] {
            if let Some(frames) = urgent {
                if !hand_over(link, frames, &mut self.failures)? {
                    return Ok(());
                }
                *urgent = None;
            }
        }
        while let Some(waiting) = self.queue.front() {
            if !hand_over(link, &waiting.frames, &mut self.failures)? {
                return Ok(());
            }
            if let Some(waiting) = self.queue.pop_front() {
                self.bytes -= size(&waiting.frames);
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.beat.is_none() && self.queue.is_empty()
    }

    pub(crate) fn is_high(&self) -> bool {
        self.queue.len() >= OUTBOX_MESSAGES_HIGH || self.bytes >= OUTBOX_BYTES_HIGH
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
