//! System calls that fail because a test says so: mounts that are dead, disks that cannot be read.

use std::cell::RefCell;

use rustix::io::Errno;

/// What is done with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Stat,
    Open,
}

thread_local! {
    static FAULTS: RefCell<Vec<(Call, Vec<u8>, Errno)>> = const { RefCell::new(Vec::new()) };
}

/// From now on the call fails on this thread for this name. `None`: it does not any more.
pub(crate) fn set(call: Call, name: &str, errno: Option<Errno>) {
    FAULTS.with_borrow_mut(|faults| {
        faults.retain(|(on, of, _)| (*on, of.as_slice()) != (call, name.as_bytes()));
        faults.extend(errno.map(|errno| (call, name.as_bytes().to_vec(), errno)));
    });
}

/// Errors: a test wants one.
pub(crate) fn check(call: Call, name: &[u8]) -> Result<(), Errno> {
    FAULTS.with_borrow(|faults| match faults.iter().find(|(on, of, _)| (*on, of.as_slice()) == (call, name)) {
        Some((.., errno)) => Err(*errno),
        None => Ok(()),
    })
}
