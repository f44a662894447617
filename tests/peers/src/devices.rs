//! Simulated network devices.

use serde_json::{Map, Value, json};

use crate::{Environment, Peer, ReservedPort};

/// SSH devices in one process, each on a port of its own; user and password are `nornir`.
#[derive(Debug)]
pub struct Devices {
    _peer: Peer,
    devices: Vec<(String, String, ReservedPort)>,
}

impl Devices {
    /// Starts one device for each name and platform, as `("spine-1", "cisco_nxos")`.
    ///
    /// # Panics
    ///
    /// When they do not come up.
    #[must_use]
    pub fn start(devices: &[(&str, &str)]) -> Self {
        let devices: Vec<_> = devices
            .iter()
            .map(|(name, platform)| ((*name).to_owned(), (*platform).to_owned(), ReservedPort::new()))
            .collect();
        let mut command = Environment::Services.script("python/devices.py");
        for (name, platform, port) in &devices {
            command.arg(format!("{name}={platform}:{}", port.number()));
        }
        Self { _peer: Peer::start_driven("devices", command), devices }
    }

    /// The inventory of a `nornir` worker for these devices.
    #[must_use]
    pub fn nornir_inventory(&self) -> Value {
        let hosts: Map<String, Value> = self
            .devices
            .iter()
            .map(|(name, platform, port)| {
                let host = json!({
                    "hostname": "127.0.0.1",
                    "port": port.number(),
                    "username": "nornir",
                    "password": "nornir",
                    "platform": platform,
                });
                (name.clone(), host)
            })
            .collect();
        json!({"service": "nornir", "runner": {"plugin": "RetryRunner"}, "hosts": hosts})
    }
}
