//! What came on a connection that is gone, and was not looked at before there was another one.

use std::time::Instant;

use bytes::Bytes;

use super::Client;
use crate::frame::Status;
use crate::message::{BrokerToClient, Reply};

impl Client {
    /// A message came on a connection before this one. What it says of who has a job, who was asked and which process the broker is was
    /// true then: another broker may be there now that knows nothing of it. So it counts as lost with its connection, as what was on its
    /// way is, and is asked for again. What comes once, or is true whoever says it, is taken: results, events, streams, and answers
    /// to management requests.
    pub fn message_of_earlier_connection(&mut self, now: Instant, frames: &[Bytes]) {
        let is_lost = |reply: &Reply| reply.status != Status::OK && !self.management.contains_key(&reply.job);
        match BrokerToClient::decode(frames) {
            Ok(BrokerToClient::Response(reply)) if is_lost(&reply) => self.counters.received += 1,
            _ => {
                let silent_since = self.silent_since;
                self.message(now, frames);
                // That of this connection owes its word as before.
                self.silent_since = silent_since.filter(|_| !self.jobs.is_empty());
            }
        }
    }
}
