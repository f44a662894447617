//! How a worker or client stands with its broker, for people.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use norfab_transport::{DealerLink, Endpoint, LinkStatus, RefusedReason};

/// The state of a link, and why it is not up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LinkState {
    /// Nothing is known yet.
    #[default]
    Connecting,
    /// The handshake succeeded.
    Connected,
    /// It was up and is not; it tries again.
    Disconnected,
    /// Nobody listens there; it tries again.
    Unreachable {
        /// Where.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// Someone listens there, and refuses or does not answer; it tries again.
    Refused {
        /// Where.
        endpoint: String,
        /// The fingerprint of the key that was expected.
        fingerprint: Option<String>,
        /// Why.
        reason: RefusedReason,
    },
}

impl LinkState {
    pub(crate) fn of(status: LinkStatus) -> Option<Self> {
        Some(match status {
            LinkStatus::Connected => Self::Connected,
            LinkStatus::Disconnected => Self::Disconnected,
            LinkStatus::Unreachable { endpoint, reason } => Self::Unreachable { endpoint, reason },
            LinkStatus::Refused { endpoint, fingerprint, reason } => Self::Refused { endpoint, fingerprint, reason },
            _ => return None,
        })
    }

    /// What is wrong and what to do, for those who do not know where the link's settings are from. `None`: nothing is wrong.
    pub fn problem(&self) -> Option<Problem> {
        self.problem_of(&Sources::default())
    }

    /// As [`LinkState::problem`]; what to do names where the settings are from.
    pub fn problem_of(&self, sources: &Sources) -> Option<Problem> {
        let Sources { endpoint: endpoint_source, key, encryption, unencrypted } = sources;
        let problem = |text: String, hint: String| Some(Problem { text, hint: Some(hint) });
        match self {
            Self::Connected | Self::Connecting => None,
            Self::Disconnected => {
                Some(Problem { text: "the connection to the broker was lost; trying again".to_owned(), hint: None })
            }
            Self::Unreachable { endpoint, reason } if is_any_address(endpoint) => problem(
                format!("no broker answers at {endpoint} on this host ({reason})"),
                format!(
                    "that is an endpoint to listen at; start the broker here, or write the name of its host in place of the \
                     address: correct {endpoint_source}"
                ),
            ),
            Self::Unreachable { endpoint, reason } => problem(
                format!("no broker answers at {endpoint} ({reason})"),
                format!("start it there, or correct {endpoint_source}"),
            ),
            // Nobody has refused anything, and nothing is known of a key.
            Self::Refused { endpoint, reason: reason @ RefusedReason::Silent { .. }, .. } => problem(
                format!("no answer from the broker at {endpoint}: {reason}"),
                format!(
                    "it may be frozen or overloaded: look at its process and its log on its host; or what listens there is no broker: \
                     correct {endpoint_source}"
                ),
            ),
            Self::Refused { endpoint, fingerprint, reason } => {
                let expected = match fingerprint {
                    Some(fingerprint) if *reason != RefusedReason::NotAdmitted => {
                        format!(" (expected key fingerprint {fingerprint})")
                    }
                    _ => String::new(),
                };
                let hint = match reason {
                    // A broker with another key closes the connection; which of the two that looks like depends on timing.
                    RefusedReason::WrongKey | RefusedReason::NoHandshake if fingerprint.is_some() => format!(
                        "compare with 'norfab broker-key' on its host and {key}; if that broker does not encrypt, {unencrypted}; \
                         another broker may listen at this port"
                    ),
                    RefusedReason::NotAdmitted => {
                        "see broker.ip_allowlist in the inventory.yaml of its host".to_owned()
                    }
                    _ => format!(
                        "compare {endpoint_source} and {encryption} with broker.endpoint and broker.zmq_auth in the inventory.yaml of its \
                         host"
                    ),
                };
                problem(format!("broker {endpoint} refused the connection: {reason}{expected}"), hint)
            }
        }
    }
}

/// Tells what is wrong with a link of a role, and what to do, in the words of whoever started it. It is asked on the role's thread
/// whenever the link stands otherwise than before, also when nothing is wrong.
pub type TellProblem = Arc<dyn Fn(&LinkState) -> Option<Problem> + Send + Sync>;

/// As [`LinkState::problem`]: for those who do not know where the link's settings are from.
pub fn tell_problem() -> TellProblem {
    Arc::new(LinkState::problem)
}

/// What is wrong with a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, ": {hint}"))
    }
}

/// Where the settings of a link are from, in the words of those who gave them: an option, a variable, a key in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// The endpoint.
    pub endpoint: String,
    /// What to do so that the broker's key is the right one.
    pub key: String,
    /// Whether messages are encrypted.
    pub encryption: String,
    /// What to do so that they are not.
    pub unencrypted: String,
}

impl Default for Sources {
    /// Names no place.
    fn default() -> Self {
        Self {
            endpoint: "its endpoint here".to_owned(),
            key: "correct its key here".to_owned(),
            encryption: "whether messages are encrypted here".to_owned(),
            unencrypted: "do not encrypt here".to_owned(),
        }
    }
}

fn is_any_address(endpoint: &str) -> bool {
    endpoint.parse::<Endpoint>().is_ok_and(|endpoint| endpoint.is_any_address())
}

/// A connection that is lost sooner has not lasted: where two peers have one name, each loses it to the other at once.
const LASTING: Duration = Duration::from_secs(3);

/// Connections in a row that did not last before people are told what that may mean.
const SHORT_TOLD: u32 = 3;

/// How long connections last.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    since: Option<Instant>,
    short: u32,
}

impl Standing {
    /// There is a connection.
    pub(crate) fn connected(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// It is lost. Tells the link whether it had lasted, and gives what people should know.
    pub(crate) fn lost(&mut self, now: Instant, link: &mut dyn DealerLink) -> Option<&'static str> {
        let since = self.since.take()?;
        if now.saturating_duration_since(since) >= LASTING {
            self.short = 0;
            link.lasted();
            return None;
        }
        self.short += 1;
        (self.short == SHORT_TOLD).then_some(
            "the connection to the broker is lost as soon as it is made: another worker or client may have the same name, and \
             names are unique in a fabric; it is tried less often now",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_connects_to_an_endpoint_to_listen_at_is_told_that_a_host_belongs_there() {
        let problem = |endpoint: &str| {
            let unreachable = LinkState::Unreachable { endpoint: endpoint.to_owned(), reason: "nobody".to_owned() };
            unreachable.problem().expect("a problem").to_string()
        };
        for endpoint in ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://[::]:5555"] {
            assert!(problem(endpoint).contains("an endpoint to listen at"), "{}", problem(endpoint));
        }
        assert!(!problem("tcp://127.0.0.1:5555").contains("to listen at"));
    }

    #[test]
    fn who_is_not_answered_is_told_of_no_key() {
        let problem = |reason| {
            let fingerprint = Some("0123456789abcdef".to_owned());
            let refused = LinkState::Refused { endpoint: "tcp://broker:1".to_owned(), fingerprint, reason };
            refused.problem().expect("a problem").to_string()
        };
        let silent = problem(RefusedReason::Silent { within: Duration::from_secs(15) });
        assert!(
            silent.starts_with("no answer from the broker at tcp://broker:1: it accepted the connection"),
            "{silent}"
        );
        assert!(silent.contains("within 15 s") && silent.contains("frozen"), "{silent}");
        assert!(!silent.contains("key") && !silent.contains("refused"), "{silent}");
        let ended = problem(RefusedReason::WrongKey);
        assert!(ended.starts_with("broker tcp://broker:1 refused the connection"), "{ended}");
        assert!(ended.contains("expected key fingerprint 0123456789abcdef"), "{ended}");
    }

    #[test]
    fn connections_that_do_not_last_are_put_off_and_said_once() {
        struct Link(u32);
        impl Link {
            fn of(&mut self) -> &mut dyn DealerLink {
                self
            }
        }
        impl DealerLink for Link {
            fn lasted(&mut self) {
                self.0 += 1;
            }
            fn try_send(&mut self, _: &[bytes::Bytes]) -> Result<(), norfab_transport::SendError> {
                unreachable!()
            }
            fn try_receive(&mut self) -> Result<Option<norfab_transport::Received>, norfab_transport::LinkError> {
                unreachable!()
            }
            fn wait(
                &mut self,
                _: Option<Duration>,
                _: bool,
            ) -> Result<norfab_transport::Ready, norfab_transport::LinkError> {
                unreachable!()
            }
            fn waker(&self) -> norfab_transport::Waker {
                unreachable!()
            }
            fn reconnect(&mut self) -> Result<(), norfab_transport::LinkError> {
                unreachable!()
            }
            fn next_status(&mut self) -> Option<LinkStatus> {
                None
            }
            fn close(self: Box<Self>, _: Duration) {}
        }
        let (mut standing, mut link, mut now) = (Standing::default(), Link(0), Instant::now());
        let mut told = 0;
        for seconds in [1, 1, 1, 1, 10, 1] {
            standing.connected(now);
            now += Duration::from_secs(seconds);
            told += u32::from(standing.lost(now, link.of()).is_some());
            assert_eq!(standing.lost(now, link.of()), None, "it is lost once");
        }
        assert_eq!((told, link.0), (1, 1));
    }
}
