//! A network that can be cut: workers in a network namespace of their own, behind a pair of virtual interfaces.

use std::process::{self, Command};

/// The broker's end of the line. Documentation addresses (RFC 5737) are nobody's.
const BROKER: &str = "198.51.100.1";

/// The workers' end.
const WORKERS: &str = "198.51.100.2";

/// A namespace and the line to it; both go away when this is dropped.
pub struct Cut {
    namespace: String,
    interface: String,
}

impl Cut {
    /// Whether this machine lets us make one.
    pub fn possible() -> Result<(), String> {
        let name = format!("nf-try-{}", process::id());
        ip(&["netns", "add", &name]).map_err(|error| format!("no network namespaces: {error}"))?;
        ip(&["netns", "delete", &name])
    }

    /// Makes both, connected.
    pub fn new() -> Self {
        // Names of interfaces have 15 bytes at most.
        let number = process::id() % 100_000;
        let cut = Self { namespace: format!("nf-{number}"), interface: format!("nf{number}a") };
        let (namespace, here, there) = (cut.namespace.as_str(), cut.interface.as_str(), format!("nf{number}b"));
        for words in [
            vec!["netns", "add", namespace],
            vec!["link", "add", here, "type", "veth", "peer", "name", &there, "netns", namespace],
            vec!["address", "add", &format!("{BROKER}/30"), "dev", here],
            vec!["link", "set", here, "up"],
            vec!["-n", namespace, "address", "add", &format!("{WORKERS}/30"), "dev", &there],
            vec!["-n", namespace, "link", "set", &there, "up"],
            vec!["-n", namespace, "link", "set", "lo", "up"],
        ] {
            ip(&words).unwrap_or_else(|error| panic!("{error}"));
        }
        cut
    }

    /// Where the broker listens.
    pub fn address(&self) -> &'static str {
        BROKER
    }

    /// Where the workers run.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Cuts the line, as who pulls a cable: packets vanish, no connection is closed.
    pub fn down(&self) {
        ip(&["link", "set", &self.interface, "down"]).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Mends it.
    pub fn up(&self) {
        ip(&["link", "set", &self.interface, "up"]).unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        for words in [["link", "delete", &self.interface], ["netns", "delete", &self.namespace]] {
            if let Err(error) = ip(&words) {
                eprintln!("{error}");
            }
        }
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
