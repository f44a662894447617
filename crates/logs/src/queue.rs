//! The way from who logs to the thread that writes: bounded, never waiting, counting what it has to leave out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::record::Record;
use crate::role::Owner;

/// Records that wait for the files, and as many for the terminal. With messages of usual length this is about a megabyte
/// and a burst of a second; with the longest possible messages 32 MiB.
pub const QUEUE_RECORDS_MAX: usize = 4_096;

/// Records that a writer takes before it writes them out, so that a busy queue cannot put that off.
const BATCH_RECORDS_MAX: usize = 512;

/// Records that are taken at the end: all that were there before, however many still come.
const LAST_BATCH_RECORDS_MAX: usize = QUEUE_RECORDS_MAX + BATCH_RECORDS_MAX;

// A queue that is full takes more than the batch at hand to empty: [`Queue::stop`] counts on it.
const _: () = assert!(QUEUE_RECORDS_MAX > BATCH_RECORDS_MAX);

enum Entry {
    Record(Arc<Record>),
    /// Says that all records before this one were written.
    Flush(SyncSender<()>),
    /// The last entry that counts.
    Stop,
}

/// The producers' end.
#[derive(Clone)]
pub(crate) struct Queue {
    sender: SyncSender<Entry>,
    shared: Arc<Shared>,
}

/// The writer's end.
pub(crate) struct Drain {
    receiver: Receiver<Entry>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// For when the queue has no room for [`Entry::Stop`].
    stop: AtomicBool,
    /// Whether there is something in `lost`: the writer looks at this first.
    losing: AtomicBool,
    lost_total: AtomicU64,
    lost: Mutex<HashMap<Arc<Owner>, u64>>,
}

/// Where a writer puts its records.
pub(crate) trait Output {
    /// Takes one record; it may be written later.
    fn record(&mut self, record: &Record);
    /// Takes the news that the queue had no room for so many records of this owner.
    fn lost(&mut self, owner: &Arc<Owner>, count: u64);
    /// Writes what was taken.
    fn flush(&mut self);
}

pub(crate) fn queue(records_max: usize) -> (Queue, Drain) {
    let (sender, receiver) = sync_channel(records_max);
    let shared = Arc::new(Shared::default());
    (Queue { sender, shared: Arc::clone(&shared) }, Drain { receiver, shared })
}

impl Queue {
    /// Puts a record into the queue, or counts it as lost when there is no room.
    pub fn push(&self, record: Arc<Record>) {
        let (Err(TrySendError::Full(entry)) | Err(TrySendError::Disconnected(entry))) =
            self.sender.try_send(Entry::Record(record))
        else {
            return;
        };
        if let Entry::Record(record) = entry {
            let mut lost = self.shared.lost.lock().unwrap_or_else(PoisonError::into_inner);
            *lost.entry(Arc::clone(&record.owner)).or_default() += 1;
            self.shared.lost_total.fetch_add(1, Ordering::Relaxed);
            self.shared.losing.store(true, Ordering::Release);
        }
    }

    /// Records that found no room since the start.
    pub fn lost_total(&self) -> u64 {
        self.shared.lost_total.load(Ordering::Relaxed)
    }

    /// Waits until what is in the queue was written, at most so long. False: it was not.
    pub fn flush(&self, wait: Duration) -> bool {
        let (done, finished) = sync_channel(1);
        // A full queue has a busy writer, but one that stands still cannot be waited for: one attempt only.
        self.sender.try_send(Entry::Flush(done)).is_ok() && finished.recv_timeout(wait).is_ok()
    }

    /// Asks the writer to write what is there and to end.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        if self.sender.try_send(Entry::Stop).is_err() {
            // A full queue: it takes the writer more than one batch to empty it, and it sees the flag before each.
        }
    }
}

impl Drain {
    /// Writes records until it is told to stop. Sleeps while there are none.
    pub fn run(self, output: &mut impl Output) {
        let mut waiting = Vec::new();
        while let Ok(first) = self.receiver.recv() {
            let mut next = Some(first);
            let mut taken = 0;
            // Only what is taken after this was seen is sure to be the rest: the flag is not looked at again below.
            let mut stopping = self.shared.stop.load(Ordering::Acquire);
            let drained = loop {
                match next.take() {
                    Some(Entry::Record(record)) => output.record(&record),
                    Some(Entry::Flush(done)) => waiting.push(done),
                    Some(Entry::Stop) => stopping = true,
                    None => {}
                }
                taken += 1;
                if stopping && taken >= LAST_BATCH_RECORDS_MAX {
                    break true;
                }
                if !stopping && taken >= BATCH_RECORDS_MAX {
                    break false;
                }
                match self.receiver.try_recv() {
                    Ok(entry) => next = Some(entry),
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break true,
                }
            };
            self.report_losses(output);
            output.flush();
            for done in waiting.drain(..) {
                if done.send(()).is_err() {
                    // Who asked has stopped waiting.
                }
            }
            if drained && stopping {
                return;
            }
        }
    }

    fn report_losses(&self, output: &mut impl Output) {
        if self.shared.losing.swap(false, Ordering::AcqRel) {
            let lost = std::mem::take(&mut *self.shared.lost.lock().unwrap_or_else(PoisonError::into_inner));
            for (owner, count) in lost {
                output.lost(&owner, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use jiff::Timestamp;

    use super::*;
    use crate::record::tests::sample;
    use crate::role::Role;

    #[derive(Default)]
    struct Seen {
        messages: Vec<String>,
        lost: Vec<(String, u64)>,
        flushed: usize,
    }

    impl Output for Seen {
        fn record(&mut self, record: &Record) {
            self.messages.push(record.message.clone());
        }
        fn lost(&mut self, owner: &Arc<Owner>, count: u64) {
            self.lost.push((owner.name.clone(), count));
        }
        fn flush(&mut self) {
            self.flushed = self.messages.len();
        }
    }

    #[test]
    fn a_full_queue_never_waits_and_says_how_many_were_lost_of_whom() {
        let (queue, drain) = queue(2);
        let [a, b] = ["a", "b"].map(|name| Arc::new(Owner::new(Role::Worker, name)));
        for number in 0..5 {
            queue.push(Arc::new(sample(Timestamp::UNIX_EPOCH, &a, &number.to_string())));
        }
        queue.push(Arc::new(sample(Timestamp::UNIX_EPOCH, &b, "b")));
        assert_eq!(queue.lost_total(), 4);
        queue.stop();
        let mut seen = Seen::default();
        drain.run(&mut seen);
        seen.lost.sort();
        assert_eq!(seen.messages, ["0", "1"]);
        assert_eq!(seen.lost, [("a".to_owned(), 3), ("b".to_owned(), 1)]);
        assert_eq!(seen.flushed, 2);
    }

    #[test]
    fn flush_returns_when_all_before_it_was_written() {
        let (queue, drain) = queue(10);
        let owner = Arc::new(Owner::new(Role::Broker, "b"));
        queue.push(Arc::new(sample(Timestamp::UNIX_EPOCH, &owner, "one")));
        let writer = thread::spawn(move || {
            let mut seen = Seen::default();
            drain.run(&mut seen);
            seen.flushed
        });
        assert!(queue.flush(Duration::from_secs(10)));
        queue.stop();
        assert_eq!(writer.join().unwrap(), 1);
    }

    /// An output whose first flush lasts until it is told to end.
    struct Slow {
        seen: Seen,
        flushing: SyncSender<()>,
        go_on: Receiver<()>,
    }

    impl Output for Slow {
        fn record(&mut self, record: &Record) {
            self.seen.record(record);
        }
        fn lost(&mut self, owner: &Arc<Owner>, count: u64) {
            self.seen.lost(owner, count);
        }
        fn flush(&mut self) {
            if self.seen.flushed == 0 {
                self.flushing.send(()).unwrap();
                self.go_on.recv().unwrap();
            }
            self.seen.flush();
        }
    }

    #[test]
    fn what_is_logged_while_the_disk_is_busy_is_written_before_the_end() {
        for more in [1, 10] {
            let (queue, drain) = queue(10);
            let (flushing, is_flushing) = sync_channel(1);
            let (let_go_on, go_on) = sync_channel(1);
            let owner = Arc::new(Owner::new(Role::Broker, "b"));
            queue.push(Arc::new(sample(Timestamp::UNIX_EPOCH, &owner, "one")));
            let writer = thread::spawn(move || {
                let mut slow = Slow { seen: Seen::default(), flushing, go_on };
                drain.run(&mut slow);
                slow.seen.flushed
            });
            is_flushing.recv().unwrap();
            for _ in 0..more {
                queue.push(Arc::new(sample(Timestamp::UNIX_EPOCH, &owner, "more")));
            }
            queue.stop();
            let_go_on.send(()).unwrap();
            assert_eq!(writer.join().unwrap(), 1 + more);
        }
    }

    #[test]
    fn the_writer_ends_wherever_in_a_batch_it_is_told_to() {
        let owner = Arc::new(Owner::new(Role::Broker, "b"));
        for count in [0, 1, BATCH_RECORDS_MAX - 1, BATCH_RECORDS_MAX, 3 * BATCH_RECORDS_MAX, QUEUE_RECORDS_MAX] {
            let (queue, drain) = queue(QUEUE_RECORDS_MAX);
            for _ in 0..count {
                queue.push(Arc::new(sample(Timestamp::UNIX_EPOCH, &owner, "one")));
            }
            queue.stop();
            // The flag is only for a full queue.
            drain.shared.stop.store(count == QUEUE_RECORDS_MAX, Ordering::Release);
            let mut seen = Seen::default();
            drain.run(&mut seen);
            assert_eq!(seen.flushed, count);
        }
    }

    #[test]
    fn flush_gives_up_on_a_writer_that_stands_still() {
        let (queue, _drain) = queue(10);
        assert!(!queue.flush(Duration::from_millis(1)));
    }
}
