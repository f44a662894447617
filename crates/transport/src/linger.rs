//! What closed links still have to send: it leaves on a thread of its own, for a bounded time.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::boxes::Tray;
use crate::clock;
use crate::connection::{Connection, End, Flushed, Input};
use crate::sleep::sleep;

/// No close may keep a process longer than this, whatever it was asked for.
const LINGER_MAX: Duration = Duration::from_secs(30);

/// Room for what the other side still says, which nobody reads any more.
const SCRATCH_BYTES: usize = 16 * 1024;

/// At most so much is read of a connection before others have their turn.
const READS_MAX: usize = 64;

/// Sends what waits on each connection, says that nothing more comes, and waits for the other side to close, too: if this side
/// closed before it had read everything, the system would break the connection off and throw away what is on its way.
///
/// The connections come with the numbers under which the tray knows them.
pub(crate) fn see_off(mut connections: Vec<(u64, Connection)>, tray: &Tray, linger: Duration) {
    let until = clock::now() + linger.min(LINGER_MAX);
    let mut scratch = Vec::with_capacity(SCRATCH_BYTES);
    for (number, connection) in &mut connections {
        if connection.engine.waits_for_seal()
            && let Some(bytes) = tray.wait_for_sealed(*number, until)
        {
            connection.engine.sealed(bytes);
        }
    }
    loop {
        connections.retain_mut(|(_, connection)| step(connection, &mut scratch).is_ok());
        let left = until.saturating_duration_since(clock::now());
        if connections.is_empty() || left.is_zero() {
            return;
        }
        let mut descriptors: Vec<PollFd<'_>> = connections
            .iter()
            .map(|(_, connection)| {
                let writes = if connection.engine.has_output() { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::from_borrowed_fd(connection.fd(), PollFlags::IN | writes)
            })
            .collect();
        if sleep(&mut descriptors, Some(left)).is_err() {
            return;
        }
    }
}

/// Whatever a connection can do now. An end of any kind is the end.
fn step(connection: &mut Connection, scratch: &mut Vec<u8>) -> Result<(), End> {
    loop {
        // What was not asked of the other thread yet is done here: nobody else waits.
        if let Some(sealing) = connection.engine.take_sealing() {
            connection.engine.sealed(sealing.seal());
        }
        match connection.flush()? {
            Flushed::All => {
                connection.shut();
                break;
            }
            Flushed::Blocked => break,
            Flushed::Waits if connection.engine.has_sealing() => {}
            Flushed::Waits => break,
        }
    }
    for _ in 0..READS_MAX {
        if connection.read(scratch)? == Input::Nothing {
            break;
        }
    }
    Ok(())
}
