//! What closed links still have to send: it leaves on a thread of its own, for a bounded time.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::boxes::Tray;
use crate::clock;
use crate::connection::{Connection, End, Flushed, Input};
use crate::sleep::sleep;

/// No close may keep a process longer than this, whatever it was asked for.
const LINGER_MAX: Duration = Duration::from_secs(30);

/// Room for what the other side still says, which nobody reads any more.
const SCRATCH_BYTES: usize = 16 * 1024;

/// How long the other side has to close in turn once the system has everything. A peer that does not is frozen, or far away; the
/// system goes on to send what it has all the same.
const PARTING: Duration = Duration::from_millis(500);

/// At most so much is read of a connection before others have their turn.
const READS_MAX: usize = 64;

/// Sends what waits on each connection, says that nothing more comes, and waits for the other side to close, too: if this side
/// closed before it had read everything, the system would break the connection off and throw away what is on its way.
///
/// The connections come with the numbers under which the tray knows them.
pub(crate) fn see_off(connections: Vec<(u64, Connection)>, tray: &Tray, linger: Duration) {
    let until = clock::now() + linger.min(LINGER_MAX);
    let mut connections: Vec<Parting> =
        connections.into_iter().map(|(number, connection)| Parting { number, connection, until }).collect();
    let mut scratch = Vec::with_capacity(SCRATCH_BYTES);
    let now = clock::now();
    connections.retain_mut(|parting| parting.step(now, &mut scratch).is_ok());
    for Parting { number, connection, .. } in &mut connections {
        if connection.engine.waits_for_seal()
            && let Some(bytes) = tray.wait_for_sealed(*number, until)
        {
            connection.engine.sealed(bytes);
        }
    }
    loop {
        let now = clock::now();
        connections.retain_mut(|parting| parting.step(now, &mut scratch).is_ok() && parting.until > now);
        let Some(next) = connections.iter().map(|parting| parting.until).min() else {
            return;
        };
        let mut descriptors: Vec<PollFd<'_>> = connections
            .iter()
            .map(|Parting { connection, .. }| {
                let writes = if connection.engine.has_output() { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::from_borrowed_fd(connection.fd(), PollFlags::IN | writes)
            })
            .collect();
        if sleep(&mut descriptors, Some(next.saturating_duration_since(now))).is_err() {
            return;
        }
    }
}

/// A connection that is being seen off.
struct Parting {
    number: u64,
    connection: Connection,
    /// When it is closed, whatever is left.
    until: Instant,
}

impl Parting {
    /// Whatever the connection can do now. An end of any kind is the end.
    fn step(&mut self, now: Instant, scratch: &mut Vec<u8>) -> Result<(), End> {
        let connection = &mut self.connection;
        loop {
            // What was not asked of the other thread yet is done here: nobody else waits.
            if let Some(sealing) = connection.engine.take_sealing() {
                connection.engine.sealed(sealing.seal());
            }
            match connection.flush()? {
                Flushed::All => {
                    connection.shut();
                    self.until = self.until.min(now + PARTING);
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
}
