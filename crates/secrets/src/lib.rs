//! What is a secret in an inventory or in a job's arguments, and what is shown in its place.
//!
//! There is one rule for everything that is shown, so that what one command hides is not told by another.
//!
//! A secret is what stands under a key that has `password`, `passphrase`, `passwd`, `secret`, `token`, `credential`,
//! `community`, `communities`, `authorization`, `api_key` or `private_key` anywhere in it (`dbpassword`, `snmpCommunity`),
//! or `bearer`, `cookie`, `psk` or `pwd` as a word, or `key` as its last word. A public key is none, nor is a number of tokens
//! (`max_tokens`). Words end at `_`, `-`, `.`, blanks and capital letters. Lists and mappings under such a key are masked in
//! all their parts. What stands before the host in a URL is masked under any key.

use serde_json::Value;

mod key;
mod url;

pub use key::is_secret;

/// What stands in place of a secret.
pub const MASK: &str = "********";

/// A copy with its secrets masked, however deep.
#[must_use]
pub fn masked(value: &Value) -> Value {
    masked_under(value, false)
}

/// As [`masked`]; all of it is one secret if `secret`.
fn masked_under(value: &Value, secret: bool) -> Value {
    match value {
        Value::Object(entries) => Value::Object(
            entries.iter().map(|(key, value)| (key.clone(), masked_under(value, secret || is_secret(key)))).collect(),
        ),
        Value::Array(items) => items.iter().map(|item| masked_under(item, secret)).collect(),
        // Nothing, and empty text, is worth knowing: the secret is not set.
        Value::Null => Value::Null,
        Value::String(text) if text.is_empty() => value.clone(),
        // A flag, too: `password: yes` is one.
        Value::String(_) | Value::Bool(_) | Value::Number(_) if secret => Value::from(MASK),
        Value::String(text) => Value::String(url::masked(text)),
        Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn everything_below_a_secret_is_masked_and_what_is_not_set_stays() {
        let value = json!({
            "hosts": {"r1": {"password": "x", "username": "u", "port": 22, "data": [{"token": 7}]}},
            "secrets": {"a": ["b", {"c": true}]},
            "groups": {"g": {"enable-secret": "y", "api_key": {"id": 1}}},
            "password": null,
            "secret": "",
            "url": "redis://user:pa:ss@host:1/0",
            "enabled": true,
        });
        assert_eq!(
            masked(&value),
            json!({
                "hosts": {"r1": {"password": MASK, "username": "u", "port": 22, "data": [{"token": MASK}]}},
                "secrets": {"a": [MASK, {"c": MASK}]},
                "groups": {"g": {"enable-secret": MASK, "api_key": {"id": MASK}}},
                "password": null,
                "secret": "",
                "url": "redis://user:********@host:1/0",
                "enabled": true,
            })
        );
    }
}
