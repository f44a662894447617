//! How a worker or client stands with its broker, for people.

use norfab_transport::{Endpoint, LinkStatus, RefusedReason};

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
    /// Someone listens there and refuses; it tries again.
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

    /// One sentence that says what is wrong and what to do. `None`: nothing is.
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Connected | Self::Connecting => None,
            Self::Disconnected => Some("the connection to the broker was lost; trying again".to_owned()),
            Self::Unreachable { endpoint, reason } if is_any_address(endpoint) => Some(format!(
                "no broker answers at {endpoint} on this host ({reason}): that is an endpoint to listen at; start the broker here, or \
                 write the name of its host in place of the address: correct broker.endpoint in inventory.yaml or --endpoint"
            )),
            Self::Unreachable { endpoint, reason } => Some(format!(
                "no broker answers at {endpoint} ({reason}): start it there, or correct broker.endpoint in inventory.yaml or --endpoint"
            )),
            Self::Refused { endpoint, fingerprint, reason } => {
                let expected = match fingerprint {
                    Some(fingerprint) if *reason != RefusedReason::NotAdmitted => {
                        format!(" (expected key fingerprint {fingerprint})")
                    }
                    _ => String::new(),
                };
                let hint = match reason {
                    // A broker with another key closes the connection; which of the two that looks like depends on timing.
                    RefusedReason::WrongKey | RefusedReason::NoHandshake if fingerprint.is_some() => {
                        "compare with 'norfab broker-key' on its host and correct --broker-key or broker.shared_key in inventory.yaml; \
                         if that broker does not encrypt, set broker.zmq_auth to false; another broker may listen at this port"
                    }
                    RefusedReason::NotAdmitted => "see broker.ip_allowlist in the inventory.yaml of its host",
                    _ => "compare broker.endpoint and broker.zmq_auth in inventory.yaml on both sides",
                };
                Some(format!("broker {endpoint} refused the connection: {reason}{expected}: {hint}"))
            }
        }
    }
}

fn is_any_address(endpoint: &str) -> bool {
    endpoint.parse::<Endpoint>().is_ok_and(|endpoint| endpoint.is_any_address())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_connects_to_an_endpoint_to_listen_at_is_told_that_a_host_belongs_there() {
        let problem = |endpoint: &str| {
            let unreachable = LinkState::Unreachable { endpoint: endpoint.to_owned(), reason: "nobody".to_owned() };
            unreachable.problem().expect("a problem")
        };
        for endpoint in ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://[::]:5555"] {
            assert!(problem(endpoint).contains("an endpoint to listen at"), "{}", problem(endpoint));
        }
        assert!(!problem("tcp://127.0.0.1:5555").contains("to listen at"));
    }
}
