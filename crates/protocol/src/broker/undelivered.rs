//! What becomes of a message that could not be sent.

use super::{Broker, BrokerNote, Outgoing, Purpose, Undelivered};

impl Broker {
    /// A message that [`Broker::poll_output`] gave could not be sent.
    pub fn undeliverable(&mut self, outgoing: &Outgoing, reason: Undelivered) {
        let Outgoing { to, purpose, frames, .. } = outgoing;
        let purpose = *purpose;
        match reason {
            Undelivered::Unroutable => self.counters.unroutable += 1,
            Undelivered::Full => self.counters.full += 1,
        }
        self.note(BrokerNote::Undelivered { to: to.clone(), purpose, reason });
        if matches!(purpose, Purpose::Progress | Purpose::Missed)
            && let Some(body) = frames.last()
        {
            self.missed.add(to, body, reason);
        }
        if purpose != Purpose::Dispatch {
            return;
        }
        if let Some(dispatch) = &mut self.dispatch
            && dispatch.in_flight.as_ref() == Some(to)
        {
            dispatch.in_flight = None;
            if dispatch.any && dispatch.reached.is_empty() && dispatch.chosen.is_empty() {
                // Listed once for a job: with thousands of workers that are away, more would stop everything else.
                let members = self.registry.members(&dispatch.request.service);
                let others = dispatch
                    .others
                    .get_or_insert_with(|| members.iter().filter(|member| *member != to).cloned().collect());
                if !others.is_empty() {
                    let next = others.swap_remove(self.random.usize(..others.len()));
                    dispatch.chosen.push_back(next);
                }
            } else if !dispatch.any {
                dispatch.unreached.push(to.clone());
            }
        }
    }
}
