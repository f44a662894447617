//! Ports that stay ours while brokers come and go.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// Lowest port that is tried: above the ports of well-known services.
const PORT_MIN: u16 = 15_000;

/// First port that the kernel gives to outgoing connections where it does not say (IANA's dynamic range).
const EPHEMERAL_DEFAULT: u16 = 32_768;

/// A TCP port on loopback that no other test takes, also while nothing listens on it.
///
/// A broker that restarts needs the same port again, so binding port 0 and letting go is not enough: another test, or
/// the source port of a peer that tries to reconnect, could take it meanwhile. The port is therefore chosen below the
/// kernel's range for outgoing connections, and reserved by holding the UDP port of the same number.
#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    _reservation: UdpSocket,
}

impl ReservedPort {
    /// Asks the system for a port that nobody holds.
    ///
    /// # Panics
    ///
    /// When no port is free.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let end = ephemeral_start().max(PORT_MIN + 1_000);
        let span = u32::from(end - PORT_MIN);
        // Processes of one test run have neighbouring ids: spread them, so that they seldom try the same port.
        let start = process::id().wrapping_mul(131) % span;
        for _ in 0..span {
            let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
            let number = PORT_MIN + u16::try_from((start + step) % span).expect("span fits a port");
            let Ok(reservation) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else {
                continue;
            };
            if TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)).is_ok() {
                return Self { number, _reservation: reservation };
            }
        }
        panic!("no free port between {PORT_MIN} and {end}");
    }

    /// The number of the port.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The ZeroMQ endpoint of a broker on this port.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.number)
    }
}

impl Default for ReservedPort {
    fn default() -> Self {
        Self::new()
    }
}

fn ephemeral_start() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(EPHEMERAL_DEFAULT)
}
