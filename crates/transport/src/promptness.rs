//! What an owner loop asks of the scheduler: to run soon when it wakes.
//!
//! A thread that wakes on a busy machine waits until the one that runs has used its slice, some milliseconds, and a job wakes about ten
//! threads one after the other. Since Linux 6.12 a thread may ask for a shorter slice: it gets no more time than before, but it
//! gets it at once, for it may interrupt those that have longer ones. Older kernels take the question and do nothing.

/// Asks that the calling thread runs as soon as it wakes. Threads and processes that it makes are as usual. Nothing happens for one
/// that gives way to others (its niceness is above 0), where the system knows no such thing, or does not allow it.
pub fn run_promptly() {
    #[cfg(target_os = "linux")]
    linux::shorten_slice();
}

#[cfg(target_os = "linux")]
mod linux {
    #![allow(unsafe_code)]

    /// The shortest slice that the kernel grants: an owner loop works off a message in less.
    pub(super) const SLICE_NANOSECONDS: u64 = 100_000;

    /// `struct sched_attr` of the kernel, in its first version.
    #[repr(C)]
    #[derive(Debug, Clone, Copy, Default)]
    pub(super) struct Attributes {
        bytes: u32,
        pub(super) policy: u32,
        pub(super) flags: u64,
        pub(super) nice: i32,
        priority: u32,
        /// Of threads that share the processor: their slice, in nanoseconds.
        pub(super) runtime: u64,
        deadline: u64,
        period: u64,
    }

    const BYTES: u32 = size_of::<Attributes>() as u32;

    /// What is usual: threads share the processor.
    pub(super) const SCHED_OTHER: u32 = 0;

    /// What is made by the thread begins with what is usual.
    const RESET_ON_FORK: u64 = 1;

    pub(super) fn shorten_slice() {
        let Some(mut attributes) = of_this_thread() else {
            return;
        };
        if attributes.policy != SCHED_OTHER || attributes.nice > 0 {
            return;
        }
        attributes.flags = RESET_ON_FORK;
        attributes.runtime = SLICE_NANOSECONDS;
        // SAFETY: the kernel reads `bytes` bytes behind the pointer, all of them of `attributes`, which lives until it returns. 0 is
        // the calling thread, and the last argument is for flags, of which there are none. An error changes nothing.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }

    /// How the calling thread runs. `None`: the system does not tell.
    pub(super) fn of_this_thread() -> Option<Attributes> {
        let mut attributes = Attributes { bytes: BYTES, ..Attributes::default() };
        // SAFETY: the kernel writes at most as many bytes behind the pointer as the third argument says, the size of `attributes`,
        // which lives until it returns; every bit pattern is a value of each field. 0 is the calling thread, and no flags.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, BYTES, 0) };
        (result == 0).then_some(attributes)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::linux::{SCHED_OTHER, SLICE_NANOSECONDS, of_this_thread};
    use super::run_promptly;

    /// Kernels before 6.12 have no slices to tell: they say 0.
    fn slice() -> u64 {
        of_this_thread().expect("the system tells").runtime
    }

    #[test]
    fn a_thread_that_asks_has_a_short_slice_and_what_it_makes_has_the_usual_one() {
        std::thread::spawn(|| {
            let before = of_this_thread().expect("the system tells");
            if before.policy != SCHED_OTHER || before.nice > 0 {
                return;
            }
            run_promptly();
            let after = of_this_thread().expect("the system tells");
            assert_eq!((after.policy, after.nice), (before.policy, before.nice));
            if before.runtime != 0 {
                assert_eq!(after.runtime, SLICE_NANOSECONDS);
            }
            let made = std::thread::spawn(slice).join().expect("no panic");
            assert_eq!(made, before.runtime);
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_thread_that_gives_way_goes_on_giving_way() {
        std::thread::spawn(|| {
            let before = slice();
            rustix::process::nice(1).expect("less is always allowed");
            run_promptly();
            assert_eq!(slice(), before);
        })
        .join()
        .expect("no panic");
    }
}
