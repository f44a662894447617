//! `norfab broker-key`: the broker's public key and what others put into their inventory.

use norfab_transport::Endpoint;
use serde_json::json;

use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::Site;

pub fn run(global: &Global, create: bool) -> Result<Code, Failure> {
    let site = Site::load_own(global)?;
    if !site.encrypted() {
        let in_inventory = site.inventory().is_ok_and(|inventory| !inventory.broker.zmq_auth);
        let option = site.key_option();
        let file = site.inventory_name();
        return Err(if in_inventory {
            let text =
                format!("this broker does not encrypt (broker.zmq_auth is false in {file}): it has no key to show");
            Failure::configuration(text)
        } else {
            Failure::configuration(format!("{option} none says that the broker does not encrypt"))
                .hint("without it its key is shown")
        });
    }
    let (secret_file, public_file) = site.broker_key_files();
    // One that was given is a key in any case, also where this host has its own.
    site.given_key()?;
    let own = secret_file.exists() || create;
    let foreign = if own { None } else { site.foreign_broker_key()? };
    let (key, file) = match foreign {
        Some(key) => (key, None),
        // On a host that only knows a broker elsewhere, keys of its own would mislead everyone here: they come before the
        // key in the inventory.
        None if !own && !site.starts_broker() => {
            return Err(Failure::configuration(format!(
                "there is no broker's key on this host ({} does not exist, and the inventory names none)",
                public_file.display()
            ))
            .hint(
                "run this on the broker's host; if that is this one, set topology.broker to true, start the broker, or make its \
                 keys now with --create",
            ));
        }
        None => (site.broker_keys()?.public, Some(public_file.display().to_string())),
    };
    let (public_key, fingerprint) = (key.to_string(), key.fingerprint());
    let endpoint = site.endpoint().unwrap_or("tcp://BROKER:5555");
    let named = with_host_name(endpoint);
    if global.json {
        printer::json(&json!({
            "public_key": public_key,
            "fingerprint": fingerprint,
            "file": file,
            "endpoint": named.as_deref().unwrap_or(endpoint),
        }));
        return Ok(Code::Ok);
    }
    printer::line(&format!("public key:  {public_key}"));
    printer::line(&format!("fingerprint: {fingerprint}"));
    printer::line(&format!(
        "file:        {}",
        file.as_deref().unwrap_or("none: the key was given, the broker is elsewhere")
    ));
    printer::line("");
    printer::line("into inventory.yaml of workers and clients on other hosts:");
    printer::line("");
    printer::line("broker:");
    match &named {
        Some(named) => printer::line(&format!(
            "  endpoint: \"{named}\"  # or another address of this host, if they reach that one"
        )),
        None => printer::line(&format!("  endpoint: \"{endpoint}\"")),
    }
    printer::line(&format!("  shared_key: {}", inventory_text(&public_key)));
    if is_of_this_host(endpoint) {
        let port = endpoint.rsplit(':').next().unwrap_or_default();
        let source = site.endpoint_source();
        printer::line("");
        printer::line(&format!(
            "(a broker at {endpoint} listens on its own host only: for others set {source} there to \"tcp://*:{port}\" and restart it)"
        ));
    }
    Ok(Code::Ok)
}

/// Whether other hosts cannot reach an endpoint, whatever name they have for its host.
fn is_of_this_host(endpoint: &str) -> bool {
    ["127.", "[::1]", "localhost"].iter().any(|host| endpoint.contains(&format!("//{host}")))
}

/// An endpoint of all addresses with this host's name in their place. `None`: it names an address, a host or a file.
fn with_host_name(endpoint: &str) -> Option<String> {
    endpoint.parse::<Endpoint>().ok().filter(Endpoint::is_any_address)?;
    let (_, port) = endpoint.rsplit_once(':')?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Some(format!("tcp://{host}:{port}"))
}

/// A key as it stands in an inventory. Its characters may happen to begin a template.
fn inventory_text(key: &str) -> String {
    if ["{{", "{%", "{#"].iter().any(|begin| key.contains(begin)) {
        return format!("'{{% raw %}}{key}{{% endraw %}}'");
    }
    format!("'{key}'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use norfab_inventory::{Inventory, LoadOptions};

    #[test]
    fn an_endpoint_to_listen_at_gets_this_hosts_name() {
        for endpoint in ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557"] {
            let named = with_host_name(endpoint).expect("another one");
            assert!(named.ends_with(":5557") && !named.contains(['*', '[']) && !named.contains("0.0.0.0"), "{named}");
        }
        for endpoint in ["tcp://192.0.2.1:5557", "tcp://broker:5557", "ipc:///run/x", "nonsense"] {
            assert_eq!(with_host_name(endpoint), None);
        }
    }

    #[test]
    fn a_key_that_looks_like_a_template_can_be_pasted_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("inventory.yaml");
        for begin in ["{{", "{%", "{#", "#}", "%}", "ab"] {
            let key = format!("{begin}{}", "x".repeat(38));
            let text = format!("broker:\n  endpoint: tcp://127.0.0.1:1\n  shared_key: {}\n", inventory_text(&key));
            std::fs::write(&file, text).expect("written");
            let inventory = Inventory::load(&file, &LoadOptions::default()).expect("it is read");
            assert_eq!(inventory.broker.public_key, Some(key));
        }
    }
}
