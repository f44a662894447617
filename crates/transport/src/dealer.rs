//! The socket of a worker or client: a DEALER that connects, and connects again.
//!
//! libzmq would reconnect by itself. This link does it instead, with a new socket each time, because that gives what libzmq
//! does not: names are looked up again, all addresses of a name are tried, a refused handshake is told from a dead broker, a
//! denial does not end all further tries, and nothing can get into a new connection before its owner knows of it. libzmq tells
//! of a lost connection by a message of its own (`ZMQ_HICCUP_MSG`) behind the last one that came in.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::context::{Context, last_error};
use crate::dial::Dial;
use crate::endpoint::Endpoint;
use crate::error::{LinkError, SendError};
use crate::ffi;
use crate::lent::{Lent, Total};
use crate::link::{DealerLink, LinkStatus, Ready, Received, RefusedReason};
use crate::message::{FrameReader, lent_bytes};
use crate::monitor::{Monitored, Outcome};
use crate::options::{DealerOptions, RECONNECT_LINGER};
use crate::router::{configure, wants_ipv6};
use crate::sleep::{has_news, sleep};
use crate::socket::Socket;
use crate::waker::Waker;

/// The message by which libzmq tells that the connection is lost. A broker that sent it would only disconnect itself.
const LOST: &[u8] = b"norfab: connection lost";

/// libzmq's own reconnecting, which must not happen: this link drops the socket long before.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// Routing ids have 1 to 255 bytes.
const ROUTING_ID_BYTES_MAX: usize = 255;

/// Shortest pause before a thread is asked for again.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Statuses that nobody has read yet. Of those beyond the oldest go: the latest are the ones that matter.
const STATUSES_MAX: usize = 16;

/// A [`DealerLink`] over libzmq.
pub struct Dealer {
    context: Context,
    endpoint: Endpoint,
    routing_id: Vec<u8>,
    options: DealerOptions,
    phase: Phase,
    /// Addresses of this round that were not tried yet.
    candidates: VecDeque<String>,
    /// The most telling failure of this round.
    failure: Option<Outcome>,
    /// Rounds that failed, and connections that did not last, since one that did.
    failed_rounds: u32,
    /// The last round ended in the middle of a handshake, which is what a wrong key looks like, and a broker that ends.
    doubted: bool,
    statuses: VecDeque<LinkStatus>,
    /// The owner has read that the current connection exists.
    announced: bool,
    reader: FrameReader,
    waker: Waker,
    /// What waits in libzmq on the current connection, in bytes.
    lent: Arc<Lent>,
    lent_total: Arc<Total>,
    /// The last message was not taken because too many bytes wait.
    lent_too_much: bool,
    /// See `Router`.
    drained: bool,
}

/// Waits that others may interrupt before a pause without a thread is over: an owner that is busy looks often.
const INTERRUPTIONS_MAX: u32 = 1000;

enum Phase {
    /// Waiting for the pause to end, in `wait`: there was no thread to be had that would tell. Interrupted so often so far.
    Stuck { pause: Duration, interrupted: u32 },
    /// Waiting for the pause to end and for addresses.
    Dialling(Dial),
    /// Waiting for a handshake; the alarm ends one that libzmq would wait for without end.
    Connecting(Box<Monitored>, Option<Dial>),
    /// There is a connection.
    Connected(Socket),
}

impl Dealer {
    /// Starts to connect to an endpoint under a name. Does not wait for anything: whether there is a broker is told by
    /// [`DealerLink::next_status`].
    ///
    /// # Errors
    /// If the endpoint or the name is malformed, or the system has no more descriptors.
    pub fn connect(
        context: &Context,
        endpoint: &str,
        routing_id: &[u8],
        options: DealerOptions,
    ) -> Result<Self, LinkError> {
        let endpoint: Endpoint = endpoint.parse()?;
        if routing_id.is_empty() || routing_id.len() > ROUTING_ID_BYTES_MAX || routing_id[0] == 0 {
            return Err(LinkError::RoutingId { length: routing_id.len() });
        }
        let waker = Waker::new()?;
        let lent_total = Total::new(options.link.send_queue_bytes_total, waker.clone());
        let mut dealer = Self {
            context: context.clone(),
            endpoint,
            routing_id: routing_id.to_vec(),
            options,
            phase: Phase::Stuck { pause: Duration::ZERO, interrupted: 0 },
            candidates: VecDeque::new(),
            failure: None,
            failed_rounds: 0,
            doubted: false,
            statuses: VecDeque::new(),
            announced: false,
            reader: FrameReader::new(),
            waker,
            lent: Lent::new(0, Arc::clone(&lent_total)),
            lent_total,
            lent_too_much: false,
            drained: false,
        };
        dealer.advance()?;
        Ok(dealer)
    }

    /// Takes all steps towards a connection that can be taken now.
    fn advance(&mut self) -> Result<(), LinkError> {
        loop {
            match &mut self.phase {
                Phase::Connected(_) => return Ok(()),
                Phase::Stuck { pause, interrupted } => {
                    if !pause.is_zero() && *interrupted < INTERRUPTIONS_MAX {
                        return Ok(());
                    }
                    self.dial(Duration::ZERO);
                }
                Phase::Dialling(dial) => match dial.candidates() {
                    None => return Ok(()),
                    Some(Ok(candidates)) => {
                        self.candidates = candidates.into();
                        self.failure = None;
                        self.next_candidate()?;
                    }
                    Some(Err(error)) => {
                        let endpoint = self.endpoint.to_string();
                        self.report(LinkStatus::Unreachable { endpoint, reason: error.to_string() });
                        self.next_round(self.options.link.reconnect_delay_max);
                    }
                },
                Phase::Connecting(attempt, alarm) => {
                    let outcome = attempt.outcome()?;
                    let timed_out = || alarm.as_ref().and_then(Dial::candidates).is_some();
                    match outcome {
                        Some(Outcome::Connected) => self.arrive()?,
                        Some(failure) => self.fail(failure)?,
                        None if timed_out() => self.fail(Outcome::Refused(RefusedReason::OtherProtocol))?,
                        None => return Ok(()),
                    }
                }
            }
        }
    }

    fn fail(&mut self, failure: Outcome) -> Result<(), LinkError> {
        // "Refused" says more than "unreachable": at some address there was somebody.
        if !matches!(self.failure, Some(Outcome::Refused(_))) {
            self.failure = Some(failure);
        }
        self.next_candidate()
    }

    /// Tries the next address of this round, or starts the next round after a pause.
    fn next_candidate(&mut self) -> Result<(), LinkError> {
        let endpoint = self.endpoint.to_string();
        if let Some(candidate) = self.candidates.pop_front() {
            match self.attempt(&candidate) {
                Ok(phase) => self.phase = phase,
                // Most likely the process has no more descriptors; it may have some later.
                Err(error) => {
                    self.report(LinkStatus::Unreachable { endpoint, reason: error.to_string() });
                    self.next_round(self.options.link.reconnect_delay_max);
                }
            }
            return Ok(());
        }
        let link = &self.options.link;
        let failure = self.failure.take();
        let doubtful = failure == Some(Outcome::Refused(RefusedReason::WrongKey));
        if doubtful && !std::mem::replace(&mut self.doubted, doubtful) {
            // Once is no reason to tell people that their key is wrong.
            self.next_round(link.reconnect_delay_first);
            return Ok(());
        }
        self.doubted = doubtful;
        let (status, longest_pause) = match failure {
            Some(Outcome::Refused(reason)) => {
                let fingerprint = self.options.keys.as_ref().map(|keys| keys.broker.fingerprint());
                (LinkStatus::Refused { endpoint, fingerprint, reason }, link.refused_delay_max)
            }
            _ => {
                let reason = "nothing listens there, or a firewall is in between".to_owned();
                (LinkStatus::Unreachable { endpoint, reason }, link.reconnect_delay_max)
            }
        };
        self.report(status);
        self.next_round(longest_pause);
        Ok(())
    }

    fn attempt(&self, candidate: &str) -> Result<Phase, LinkError> {
        let link = &self.options.link;
        let socket = Socket::open(&self.context, ffi::ZMQ_DEALER)?;
        configure(&socket, link)?;
        socket.set_int(ffi::ZMQ_IPV6, i32::from(wants_ipv6(candidate)))?;
        socket.set(ffi::ZMQ_ROUTING_ID, &self.routing_id)?;
        socket.set(ffi::ZMQ_HICCUP_MSG, LOST)?;
        socket.set_time(ffi::ZMQ_RECONNECT_IVL, NEVER)?;
        socket.set_time(ffi::ZMQ_CONNECT_TIMEOUT, link.connect_timeout)?;
        if let Some(keys) = &self.options.keys {
            socket.set(ffi::ZMQ_CURVE_SERVERKEY, keys.broker.as_bytes())?;
            socket.set(ffi::ZMQ_CURVE_PUBLICKEY, keys.own.public.as_bytes())?;
            socket.set(ffi::ZMQ_CURVE_SECRETKEY, keys.own.secret.as_bytes())?;
        }
        let encrypted = self.options.keys.is_some();
        let attempt = Monitored::new(&self.context, socket, encrypted)?;
        attempt.connect(candidate)?;
        // Without encryption libzmq takes whatever answers in the wrong way for a peer of its first version, and waits.
        let alarm = if encrypted {
            None
        } else {
            Some(Dial::alarm(link.connect_timeout + link.handshake_timeout, self.waker.clone())?)
        };
        Ok(Phase::Connecting(Box::new(attempt), alarm))
    }

    fn arrive(&mut self) -> Result<(), LinkError> {
        if let Phase::Connecting(attempt, _) = &mut self.phase
            && let Some(socket) = attempt.release()
        {
            self.phase = Phase::Connected(socket);
            // What lingers on the connection before is counted there.
            self.lent_total = Total::new(self.options.link.send_queue_bytes_total, self.waker.clone());
            self.lent = Lent::new(self.options.link.send_queue_bytes, Arc::clone(&self.lent_total));
            self.lent_too_much = false;
            self.candidates.clear();
            self.failure = None;
            self.doubted = false;
            self.drained = false;
            self.report(LinkStatus::Connected);
            return Ok(());
        }
        self.next_candidate()
    }

    /// The connection is gone, and everything that came in on it was read.
    fn lose(&mut self) -> Result<(), LinkError> {
        self.announced = false;
        // A connection that the owner has not heard of need not be reported as lost.
        match self.statuses.iter().position(|status| *status == LinkStatus::Connected) {
            Some(unread) => drop(self.statuses.remove(unread)),
            None => self.report(LinkStatus::Disconnected),
        }
        // Unless the owner says that it lasted: two peers of one name would take it from each other for ever.
        self.next_round(self.options.link.refused_delay_max);
        Ok(())
    }

    fn next_round(&mut self, longest_pause: Duration) {
        let pause = pause(self.options.link.reconnect_delay_first, longest_pause, self.failed_rounds);
        self.failed_rounds = self.failed_rounds.saturating_add(1);
        self.dial(pause);
    }

    /// Looks up the addresses after a pause. A system that has no more threads may have some later.
    fn dial(&mut self, pause: Duration) {
        self.phase = match Dial::start(&self.endpoint, pause, self.waker.clone()) {
            Ok(dial) => Phase::Dialling(dial),
            Err(error) => {
                self.report(LinkStatus::Unreachable { endpoint: self.endpoint.to_string(), reason: error.to_string() });
                let pause = pause.max(self.options.link.reconnect_delay_first).max(PAUSE_MIN);
                Phase::Stuck { pause, interrupted: 0 }
            }
        };
    }

    fn report(&mut self, status: LinkStatus) {
        if self.statuses.back() == Some(&status) {
            return;
        }
        if self.statuses.len() == STATUSES_MAX {
            self.statuses.pop_front();
        }
        self.statuses.push_back(status);
    }
}

/// The pause after so many rounds that failed: it doubles up to a bound, and half of it is random.
fn pause(first: Duration, longest: Duration, failed_rounds: u32) -> Duration {
    let doubled = first.saturating_mul(2_u32.saturating_pow(failed_rounds)).min(longest);
    doubled.mul_f64(0.5 + fastrand::f64() / 2.0)
}

impl DealerLink for Dealer {
    fn try_send(&mut self, frames: &[Bytes]) -> Result<(), SendError> {
        let Phase::Connected(socket) = &mut self.phase else {
            return Err(SendError::Full);
        };
        if !self.announced {
            return Err(SendError::Full);
        }
        let [first @ .., last] = frames else {
            return Err(SendError::Failed(LinkError::EmptyMessage));
        };
        self.lent_too_much = match lent_bytes(frames) {
            0 => false,
            large => !self.lent.has_room(large),
        };
        if self.lent_too_much {
            return Err(SendError::Full);
        }
        self.drained = false;
        for (sent, frame) in first.iter().enumerate() {
            if let Err(errno) = socket.send_part(frame, true, &self.lent) {
                if sent > 0 {
                    // The connection ended in the middle. libzmq has dropped the parts before and drops all up to the end
                    // of the message, so it must have an end.
                    socket.send_copy(b"", false).ok();
                }
                return Err(send_error(errno));
            }
        }
        socket.send_part(last, false, &self.lent).map_err(send_error)
    }

    fn try_receive(&mut self) -> Result<Option<Received>, LinkError> {
        self.advance()?;
        let Phase::Connected(socket) = &mut self.phase else {
            return Ok(None);
        };
        let received = socket.receive(&mut self.reader, false, self.options.link.frames_max)?;
        self.drained = received.is_none();
        match received {
            Some(message) if matches!(&message.frames[..], [only] if only == LOST) => {
                self.lose()?;
                Ok(None)
            }
            received => Ok(received),
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, want_write: bool) -> Result<Ready, LinkError> {
        self.advance()?;
        let mut ready = Ready::default();
        // A connection that the owner does not know of takes nothing.
        let mut want_write = want_write && self.announced;
        if want_write && self.lent_too_much {
            self.lent_total.want();
            // Half of the room, so that a large message is not tried for each small one that leaves.
            ready.writable = self.lent.has_room(self.options.link.send_queue_bytes / 2);
            want_write = false;
        }
        let look = |socket: &Socket, ready: &mut Ready| -> Result<bool, LinkError> {
            let events = socket.events()?;
            ready.readable = events & ffi::ZMQ_POLLIN != 0;
            ready.writable |= want_write && events & ffi::ZMQ_POLLOUT != 0;
            Ok(!ready.readable)
        };
        if let Phase::Connected(socket) = &self.phase
            && (want_write || !self.drained)
        {
            self.drained = look(socket, &mut ready)?;
        }
        if ready.readable || ready.writable || !self.statuses.is_empty() {
            ready.woken = self.waker.take_if_armed();
            return Ok(ready);
        }
        let sleeper = self.waker.sleeper();
        // While it waits for addresses, the thread that looks them up wakes the owner.
        let (count, watched) = match &self.phase {
            Phase::Stuck { .. } | Phase::Dialling(_) => (1, sleeper),
            Phase::Connecting(attempt, _) => (2, attempt.fd()),
            Phase::Connected(socket) => (2, socket.fd()),
        };
        let mut descriptors = [PollFd::new(&sleeper, PollFlags::IN), PollFd::new(&watched, PollFlags::IN)];
        let pause = match &self.phase {
            Phase::Stuck { pause, .. } if timeout.is_none_or(|timeout| timeout >= *pause) => Some(*pause),
            _ => None,
        };
        sleep(&mut descriptors[..count], pause.or(timeout))?;
        let [woken, reported] = descriptors.map(|descriptor| has_news(&descriptor));
        if let Phase::Stuck { pause: left, interrupted } = &mut self.phase {
            *interrupted += 1;
            if pause.is_some() && !woken {
                *left = Duration::ZERO;
            }
        }
        match &self.phase {
            Phase::Connected(socket) if reported && want_write => self.drained = look(socket, &mut ready)?,
            Phase::Connected(_) => ready.readable = reported,
            Phase::Stuck { .. } | Phase::Dialling(_) | Phase::Connecting(..) => {}
        }
        ready.woken = woken && self.waker.take();
        // After the wake-up was taken: it may have been meant for this.
        self.advance()?;
        Ok(ready)
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn lasted(&mut self) {
        if std::mem::take(&mut self.failed_rounds) > 1 && matches!(self.phase, Phase::Dialling(_)) {
            self.next_round(self.options.link.reconnect_delay_max);
        }
    }

    fn reconnect(&mut self) -> Result<(), LinkError> {
        self.announced = false;
        self.statuses.retain(|status| !matches!(status, LinkStatus::Connected | LinkStatus::Disconnected));
        self.failed_rounds = 0;
        if let Phase::Dialling(dial) = &mut self.phase {
            dial.hurry();
        } else {
            let at_once = Phase::Stuck { pause: Duration::ZERO, interrupted: 0 };
            if let Phase::Connected(socket) = std::mem::replace(&mut self.phase, at_once) {
                socket.close(RECONNECT_LINGER);
            }
        }
        self.advance()
    }

    fn next_status(&mut self) -> Option<LinkStatus> {
        let status = self.statuses.pop_front();
        if status == Some(LinkStatus::Connected) {
            self.announced = true;
        }
        status
    }

    fn close(self: Box<Self>, linger: Duration) {
        if let Phase::Connected(socket) = self.phase {
            socket.close(linger);
        }
    }
}

impl fmt::Debug for Dealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dealer").field("endpoint", &self.endpoint.as_str()).finish_non_exhaustive()
    }
}

fn send_error(errno: i32) -> SendError {
    if errno == Errno::AGAIN.raw_os_error() { SendError::Full } else { SendError::Failed(last_error("zmq_send")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_bound_and_are_half_random() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(1));
        for (failed_rounds, expected) in [(0, 100), (1, 200), (3, 800), (4, 1000), (1000, 1000)] {
            for _ in 0..100 {
                let pause = pause(first, longest, failed_rounds);
                let expected = Duration::from_millis(expected);
                assert!(pause >= expected / 2 && pause <= expected, "{failed_rounds}: {pause:?}");
            }
        }
    }

    #[test]
    fn a_link_goes_on_when_the_system_has_no_more_threads_and_connects_when_it_has() {
        use crate::options::RouterOptions;
        use crate::router::Router;
        use crate::{LinkOptions, RouterLink};

        let context = Context::new().expect("a context");
        let link = LinkOptions { reconnect_delay_first: Duration::from_millis(5), ..LinkOptions::default() };
        let listen = |endpoint: &str| {
            let options = || RouterOptions { link: link.clone(), ..RouterOptions::default() };
            // The port may still be held for a moment.
            (0..1000).find_map(|_| {
                let router = Router::bind(&context, endpoint, options());
                router.map_err(|_| std::thread::sleep(Duration::from_millis(10))).ok()
            })
        };
        let router = listen("tcp://127.0.0.1:*").expect("a router");
        let endpoint = router.endpoint();
        let options = DealerOptions { link: link.clone(), keys: None };
        let mut dealer = Dealer::connect(&context, &endpoint, b"w", options).expect("a dealer");
        let mut until = |done: &dyn Fn(&LinkStatus) -> bool| {
            for _ in 0..1000 {
                dealer.wait(Some(Duration::from_millis(20)), false).expect("it goes on");
                assert_eq!(dealer.try_receive().expect("it goes on"), None);
                while let Some(status) = dealer.next_status() {
                    if done(&status) {
                        return;
                    }
                }
            }
            panic!("it never came");
        };
        until(&|status| *status == LinkStatus::Connected);
        crate::dial::NO_THREADS.set(true);
        drop(router);
        until(&|status| matches!(status, LinkStatus::Unreachable { reason, .. } if reason.contains("thread")));
        let _router = listen(&endpoint).expect("a router");
        crate::dial::NO_THREADS.set(false);
        until(&|status| *status == LinkStatus::Connected);
    }

    #[test]
    fn connections_that_another_peer_takes_are_made_anew_ever_later_unless_they_lasted() {
        use crate::LinkOptions;
        use crate::options::RouterOptions;
        use crate::router::Router;

        let context = Context::new().expect("a context");
        let link = LinkOptions { reconnect_delay_first: Duration::from_millis(5), ..LinkOptions::default() };
        let options = RouterOptions { link: link.clone(), ..RouterOptions::default() };
        let mut router = Router::bind(&context, "tcp://127.0.0.1:*", options).expect("a router");
        let endpoint = crate::RouterLink::endpoint(&router);
        let connect = || {
            let options = DealerOptions { link: link.clone(), keys: None };
            Dealer::connect(&context, &endpoint, b"name", options).expect("a dealer")
        };
        let mut until = |dealer: &mut Dealer, wanted: &LinkStatus| {
            for _ in 0..1000 {
                // Names are given and taken when the router is looked at.
                assert_eq!(crate::RouterLink::try_receive(&mut router).expect("it goes on"), None);
                dealer.wait(Some(Duration::from_millis(20)), false).expect("it goes on");
                assert_eq!(dealer.try_receive().expect("it goes on"), None);
                if std::iter::from_fn(|| dealer.next_status()).any(|status| status == *wanted) {
                    return;
                }
            }
            panic!("never {wanted:?}");
        };
        let mut dealer = connect();
        for lost in 1..4 {
            until(&mut dealer, &LinkStatus::Connected);
            let mut rival = connect();
            until(&mut rival, &LinkStatus::Connected);
            until(&mut dealer, &LinkStatus::Disconnected);
            assert_eq!(dealer.failed_rounds, lost);
        }
        dealer.lasted();
        assert_eq!(dealer.failed_rounds, 1, "it begins with short pauses again");
        until(&mut dealer, &LinkStatus::Connected);
    }
}
