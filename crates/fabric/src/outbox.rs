//! What a worker or client has to send, in order, until its link takes it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use norfab_protocol::JobId;
use norfab_protocol::frame::Frames;
use norfab_protocol::worker::Class;
use norfab_transport::{DealerLink, LinkError, SendError};

use crate::queue::Place;

/// Bytes that may wait before the owner reads nothing more from its link: what it would be asked for could not be sent.
pub(crate) const OUTBOX_BYTES_HIGH: usize = 256 << 20;

/// Messages that may wait before the owner reads nothing more from its link. Tasks and callers have bounds of their own.
pub(crate) const OUTBOX_MESSAGES_HIGH: usize = 50_000;

/// How long a message that nobody waits for may wait for company: each departure wakes four threads on its way, and a quick
/// task has its result within this time. Too short to be noticed by who watches.
pub(crate) const COMPANY_WAIT: Duration = Duration::from_millis(1);

/// Messages that leave without waiting for more company.
const COMPANY_MAX: usize = 64;

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
    /// Until when what waits may wait for company; `None` when something waits that is wanted at once, and when nothing
    /// waits.
    company_until: Option<Instant>,
    bytes: usize,
    failures: u64,
}

impl Outbox {
    pub(crate) fn push(
        &mut self,
        now: Instant,
        frames: Frames,
        class: Class,
        job: Option<JobId>,
        place: Option<Place>,
    ) {
        match class {
            Class::First => self.first = Some(frames),
            Class::Beat => self.beat = Some(frames),
            Class::Data | Class::Unhurried => {
                if class == Class::Data || self.queue.len() >= COMPANY_MAX {
                    self.company_until = None;
                } else if self.queue.is_empty() {
                    self.company_until = Some(now + COMPANY_WAIT);
                }
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

    /// Throws away what waits about jobs and is `unwanted`, in its order.
    pub(crate) fn remove(&mut self, mut unwanted: impl FnMut(&JobId, &Frames) -> bool) {
        let bytes = &mut self.bytes;
        self.queue.retain(|waiting| {
            let keep = !waiting.job.as_ref().is_some_and(|job| unwanted(job, &waiting.frames));
            if !keep {
                *bytes -= size(&waiting.frames);
            }
            keep
        });
        if self.queue.is_empty() {
            self.company_until = None;
        }
    }

    /// Throws away what was announced of a job if it still waits for company: what follows says more.
    pub(crate) fn withdraw(&mut self, job: &JobId) {
        if self.company_until.is_none() {
            return;
        }
        self.forget(job);
        if self.queue.is_empty() {
            self.company_until = None;
        }
    }

    /// Hands over as much as the link takes. Errors: the link is broken.
    pub(crate) fn flush(&mut self, now: Instant, link: &mut dyn DealerLink) -> Result<(), LinkError> {
        // Before anything can fail: a time that has passed must not wake the owner again and again.
        self.company_until = self.company_until.filter(|until| *until > now);
        for urgent in [&mut self.first, &mut self.beat] {
            if let Some(frames) = urgent {
                if !hand_over(link, frames, &mut self.failures)? {
                    return Ok(());
                }
                *urgent = None;
            }
        }
        if self.company_until.is_some() {
            return Ok(());
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

    /// The connection is about to be dropped: a last word to the broker leaves on it or never, because on the next one it
    /// would come after READY. What waits behind it stays for the next connection. Errors: the link is broken.
    pub(crate) fn leave(&mut self, link: &mut dyn DealerLink) -> Result<(), LinkError> {
        if let Some(frames) = self.beat.take() {
            hand_over(link, &frames, &mut self.failures)?;
        }
        Ok(())
    }

    /// The connection is gone: a beat that has not left is pointless.
    pub(crate) fn lost(&mut self) {
        self.beat = None;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.beat.is_none() && self.queue.is_empty()
    }

    /// Whether something waits only because the link did not take it.
    pub(crate) fn is_due(&self) -> bool {
        !self.is_empty() && self.company_until.is_none()
    }

    /// When [`Outbox::flush`] is wanted although nothing else happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.company_until
    }

    pub(crate) fn is_high(&self) -> bool {
        self.queue.len() >= OUTBOX_MESSAGES_HIGH || self.bytes >= OUTBOX_BYTES_HIGH
    }

    /// Bytes of what waits.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
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

#[cfg(test)]
mod tests {
    use norfab_transport::memory::{MemoryDealer, MemoryNetwork, MemoryRouter};
    use norfab_transport::{LinkStatus, RouterLink};

    use super::*;

    struct Bench {
        outbox: Outbox,
        router: MemoryRouter,
        dealer: MemoryDealer,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let network = MemoryNetwork::new();
            let router = network.router("broker").expect("a router");
            let mut dealer = network.dealer("broker", b"w", 1000).expect("a dealer");
            assert_eq!(dealer.next_status(), Some(LinkStatus::Connected));
            Self { outbox: Outbox::default(), router, dealer, now: Instant::now() }
        }

        fn push(&mut self, text: &str, class: Class) {
            let frames = vec![bytes::Bytes::copy_from_slice(text.as_bytes())];
            self.outbox.push(self.now, frames, class, None, None);
        }

        /// What has left after a flush.
        fn flush(&mut self) -> Vec<String> {
            self.outbox.flush(self.now, &mut self.dealer).expect("a link");
            let mut left = Vec::new();
            while let Some(received) = self.router.try_receive().expect("a link") {
                left.push(String::from_utf8_lossy(&received.frames[0]).into_owned());
            }
            left
        }
    }

    #[test]
    fn what_nobody_waits_for_leaves_with_what_follows_and_in_order() {
        let mut bench = Bench::new();
        bench.push("201", Class::Unhurried);
        bench.push("event", Class::Unhurried);
        assert_eq!(bench.flush(), [""; 0]);
        assert!(!bench.outbox.is_due(), "the link need not become writable for it");
        bench.push("200", Class::Data);
        assert_eq!(bench.flush(), ["201", "event", "200"]);
        assert_eq!(bench.outbox.deadline(), None);
    }

    #[test]
    fn a_word_that_a_result_makes_pointless_does_not_leave_if_it_still_waits() {
        let job = JobId::parse("1").expect("a name");
        let mut bench = Bench::new();
        let word = || vec![bytes::Bytes::from_static(b"201")];
        bench.outbox.push(bench.now, word(), Class::Unhurried, Some(job.clone()), None);
        bench.push("event", Class::Unhurried);
        bench.outbox.withdraw(&job);
        bench.push("200", Class::Data);
        assert_eq!(bench.flush(), ["event", "200"]);
        bench.outbox.push(bench.now, word(), Class::Unhurried, Some(job.clone()), None);
        bench.outbox.withdraw(&job);
        assert_eq!((bench.outbox.deadline(), bench.outbox.is_empty()), (None, true));
    }

    #[test]
    fn what_nobody_waits_for_leaves_alone_after_a_moment() {
        let mut bench = Bench::new();
        bench.push("201", Class::Unhurried);
        let deadline = bench.outbox.deadline().expect("a deadline");
        assert_eq!(deadline, bench.now + COMPANY_WAIT);
        bench.now = deadline - Duration::from_nanos(1);
        bench.push("event", Class::Unhurried);
        assert_eq!(bench.flush(), [""; 0], "later company moves nothing");
        bench.now = deadline;
        assert_eq!(bench.flush(), ["201", "event"]);
        assert!(bench.outbox.is_empty());
    }

    #[test]
    fn a_beat_does_not_wait_for_company_and_a_crowd_neither() {
        let mut bench = Bench::new();
        bench.push("event", Class::Unhurried);
        bench.push("beat", Class::Beat);
        assert_eq!(bench.flush(), ["beat"]);
        for _ in 0..COMPANY_MAX {
            bench.push("event", Class::Unhurried);
        }
        assert_eq!(bench.flush().len(), COMPANY_MAX + 1);
    }

    #[test]
    fn a_time_that_passes_behind_a_stuck_beat_wakes_nobody_again() {
        let network = MemoryNetwork::new();
        let mut dealer = network.dealer("nobody", b"w", 1).expect("a dealer");
        let mut outbox = Outbox::default();
        let now = Instant::now();
        outbox.push(now, vec!["event".into()], Class::Unhurried, None, None);
        outbox.push(now, vec!["beat".into()], Class::Beat, None, None);
        outbox.flush(now, &mut dealer).expect("a link");
        let deadline = outbox.deadline().expect("it waits for company");
        outbox.flush(deadline, &mut dealer).expect("a link");
        assert_eq!((outbox.deadline(), outbox.failures()), (None, 2));
        assert!(outbox.is_due(), "the link tells when it takes something");
    }

    #[test]
    fn what_the_link_does_not_take_is_due_until_it_does() {
        let network = MemoryNetwork::new();
        let mut dealer = network.dealer("nobody", b"w", 1).expect("a dealer");
        let mut outbox = Outbox::default();
        let now = Instant::now();
        outbox.push(now, vec!["200".into()], Class::Data, None, None);
        outbox.flush(now, &mut dealer).expect("a link");
        outbox.push(now, vec!["201".into()], Class::Unhurried, None, None);
        assert!(outbox.is_due());
        assert_eq!((outbox.deadline(), outbox.failures()), (None, 1));
    }

    #[test]
    fn what_waits_can_be_taken_away() {
        let mut bench = Bench::new();
        let job = JobId::parse("1").expect("an id");
        let frames =
            |text: &'static str| -> Frames { [bytes::Bytes::from_static(text.as_bytes())].into_iter().collect() };
        bench.outbox.push(bench.now, frames("old"), Class::Data, Some(job.clone()), None);
        bench.outbox.push(bench.now, frames("of nobody"), Class::Data, None, None);
        bench.outbox.push(bench.now, frames("kept"), Class::Data, Some(job.clone()), None);
        bench.outbox.remove(|about, words| *about == job && *words == frames("old"));
        assert_eq!(bench.outbox.bytes(), "kept".len() + "of nobody".len());
        bench.outbox.flush(bench.now, &mut bench.dealer).expect("a link");
        for left in ["of nobody", "kept"] {
            let received = bench.router.try_receive().expect("a link").expect("a message");
            assert_eq!(received.frames, [left]);
        }
    }
}
