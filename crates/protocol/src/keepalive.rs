//! Keepalive as passive state: when to beat, when the other side is gone. It does no I/O; its owner asks it.

use std::time::{Duration, Instant};

/// How often to beat, and after how many missed beats the other side is gone. Both sides use the same, each on its own
/// timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepaliveConfig {
    /// Time between beats; 2.5 s in every recorded peer.
    pub interval: Duration,
    /// Hold time in intervals; 6 in every recorded peer, so 15 s.
    pub multiplier: u32,
}

impl Default for KeepaliveConfig {
    fn default() -> Self {
        Self { interval: Duration::from_millis(2500), multiplier: 6 }
    }
}

impl KeepaliveConfig {
    /// How long the other side may be silent.
    pub fn hold_time(&self) -> Duration {
        self.interval * self.multiplier
    }
}

/// One direction's beats and the other's hold time.
#[derive(Debug, Clone)]
pub struct Keepalive {
    config: KeepaliveConfig,
    started: Instant,
    next_beat: Instant,
    hold_until: Instant,
    sent: u64,
    received: u64,
}

impl Keepalive {
    /// Starts both timers.
    pub fn new(config: KeepaliveConfig, now: Instant) -> Self {
        Self {
            config,
            started: now,
            next_beat: now + config.interval,
            hold_until: now + config.hold_time(),
            sent: 0,
            received: 0,
        }
    }

    /// Starts both timers again after a reconnect; the counters go on.
    pub fn restart(&mut self, now: Instant) {
        self.next_beat = now + self.config.interval;
        self.hold_until = now + self.config.hold_time();
    }

    /// Whether a beat is due. If so it counts as sent, and the next one is one interval after `now`: beats that were
    /// missed while the owner was held up are not made up for.
    pub fn take_beat(&mut self, now: Instant) -> bool {
        if now < self.next_beat {
            return false;
        }
        self.sent += 1;
        self.next_beat = now + self.config.interval;
        true
    }

    /// The other side is alive.
    pub fn received(&mut self, now: Instant) {
        self.received += 1;
        self.extend(now);
    }

    /// The other side is alive, as something else than a keepalive shows. With a time in the future: nothing is expected of it
    /// before.
    pub fn extend(&mut self, now: Instant) {
        self.hold_until = self.hold_until.max(now + self.config.hold_time());
    }

    /// The other side may have been heard, but what it said was not read yet: it has one more interval.
    pub fn grant(&mut self, now: Instant) {
        self.hold_until = self.hold_until.max(now + self.config.interval);
    }

    /// Whether the other side was silent for its hold time.
    pub fn expired(&self, now: Instant) -> bool {
        now >= self.hold_until
    }

    /// The next time at which the owner has something to ask.
    pub fn deadline(&self) -> Instant {
        self.next_beat.min(self.hold_until)
    }

    /// How much of the hold time is left.
    pub fn hold_time_left(&self, now: Instant) -> Duration {
        self.hold_until.saturating_duration_since(now)
    }

    /// Time since [`Keepalive::new`].
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// Beats sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Beats received.
    pub fn beats_received(&self) -> u64 {
        self.received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_beat_is_due_one_interval_after_the_start_and_hold_time_is_six() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(KeepaliveConfig::default(), start);
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        assert!(!keepalive.take_beat(after(2499)));
        assert!(keepalive.take_beat(after(2500)));
        assert!(!keepalive.take_beat(after(2501)));
        assert!(!keepalive.expired(after(14_999)));
        assert!(keepalive.expired(after(15_000)));
        keepalive.received(after(14_000));
        assert!(!keepalive.expired(after(28_999)));
        assert_eq!((keepalive.sent(), keepalive.beats_received()), (1, 1));
    }

    #[test]
    fn beats_that_were_missed_are_not_made_up_for() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(KeepaliveConfig::default(), start);
        assert!(keepalive.take_beat(start + Duration::from_secs(60)));
        assert!(!keepalive.take_beat(start + Duration::from_secs(62)));
    }
}
