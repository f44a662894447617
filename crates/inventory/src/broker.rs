//! The `broker` section.

use serde_json::Value;

use crate::error::{InventoryError, ValueProblem};
use crate::section::Section;

/// Characters of a CURVE key in Z85: 32 bytes.
const KEY_CHARACTERS: usize = 40;

/// What Z85 has beside letters and digits.
const Z85_PUNCTUATION: &str = ".-:+=^!/*?&<>()[]{}@%$#";

/// Where the broker is and how it is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// The endpoint that the broker binds and others connect to, like `tcp://127.0.0.1:5555`.
    pub endpoint: Option<String>,
    /// Whether messages are encrypted with CURVE; on unless switched off.
    pub zmq_auth: bool,
    /// The broker's public key in Z85, from `curve_public_key` or `shared_key`, which mean the same.
    pub public_key: Option<String>,
    /// Addresses that may connect, `*` for all; never empty.
    pub ip_allowlist: Vec<String>,
}

impl Default for Broker {
    fn default() -> Self {
        Self { endpoint: None, zmq_auth: true, public_key: None, ip_allowlist: vec!["*".to_owned()] }
    }
}

impl Broker {
    pub(crate) fn read(section: Option<&Section<'_>>) -> Result<Self, InventoryError> {
        let Some(section) = section else {
            return Ok(Self::default());
        };
        let expected = "an endpoint like tcp://127.0.0.1:5555";
        let endpoint = section.text("endpoint", expected)?;
        if let Some(text) = endpoint
            && !text.split_once("://").is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty())
        {
            return Err(section.error("endpoint", expected, &Value::String(text.to_owned())));
        }
        let zmq_auth = section.flag("zmq_auth")?.unwrap_or(true);
        let expected = "a list of addresses, [\"*\"] for all";
        let ip_allowlist = match section.texts("ip_allowlist", expected)? {
            Some(addresses) if addresses.is_empty() => {
                return Err(section.error("ip_allowlist", expected, &Value::Array(Vec::new())));
            }
            Some(addresses) => addresses,
            None => Self::default().ip_allowlist,
        };
        Ok(Self {
            endpoint: endpoint.map(str::to_owned),
            zmq_auth,
            public_key: public_key(section, zmq_auth)?,
            ip_allowlist,
        })
    }
}

/// The key under either of its names. Without encryption nobody uses it, so it is not checked then.
fn public_key(section: &Section<'_>, zmq_auth: bool) -> Result<Option<String>, InventoryError> {
    let expected = "the broker's public key, 40 characters in quotes, as `norfab broker-key` prints it";
    let mut keys = Vec::new();
    for name in ["shared_key", "curve_public_key"] {
        let Some(key) = section.text(name, expected)? else {
            continue;
        };
        let is_key = key.len() == KEY_CHARACTERS
            && key.chars().all(|character| character.is_ascii_alphanumeric() || Z85_PUNCTUATION.contains(character));
        if zmq_auth && !is_key {
            return Err(section.error(name, expected, &Value::String(key.to_owned())));
        }
        keys.push(key);
    }
    if let [shared, curve] = keys.as_slice()
        && shared != curve
    {
        let path = section.path.key("curve_public_key");
        return Err(section.origin.error(&path, ValueProblem::TwoBrokerKeys));
    }
    Ok(keys.first().map(|key| (*key).to_owned()))
}
