//! The inventory as it may be shown: secrets masked.

use serde_json::{Map, Value};

use crate::inventory::{Inventory, SECTIONS};
use crate::worker_data::FILESHARING_WORKER;

/// What stands in place of a secret.
pub const MASK: &str = "********";

/// Words that make a key a secret wherever they stand in it: `enable_secret`, `snmpCommunity`, `vault-token`.
const SECRET_WORDS: [&str; 17] = [
    "apikey",
    "authorization",
    "community",
    "communities",
    "cookie",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "psk",
    "pwd",
    "secret",
    "secrets",
    "token",
    "bearer",
];

/// The word that makes a key a secret as its last one: `key`, `api_key`, `private_key`; but `key_file` is a path.
const SECRET_LAST_WORD: &str = "key";

/// The word that makes a key none: `curve_public_key`.
const PUBLIC_WORD: &str = "public";

/// The older name of the broker's public key in the broker section; no secret in spite of its words.
const BROKER_PUBLIC_KEY: &str = "shared_key";

impl Inventory {
    /// The sections `broker`, `workers`, `topology`, `logging`, `client`, `hooks` and `plugins`, with the workers'
    /// entries as listed, not merged, and every secret replaced by [`MASK`].
    ///
    /// A secret is what stands under a key with one of these words: apikey, authorization, bearer, community,
    /// communities, cookie, credential, credentials, passphrase, passwd, password, passwords, psk, pwd, secret, secrets,
    /// token; or with `key` as its last word; but never with the word `public`. Words end at `_`, `-`, `.`, blanks and
    /// capital letters. Lists and mappings under such a key are masked in all their parts. The password in a URL is
    /// masked under any key.
    pub fn masked(&self) -> Value {
        let mut shown = Map::new();
        for name in SECTIONS {
            let mut section = self.section(name);
            if self.has_builtin_filesharing() {
                self.add_built_in(name, &mut section);
            }
            let mut section = masked_value(&section, false);
            if name == "broker"
                && let (Some(key), Value::Object(entries)) = (self.section(name).get(BROKER_PUBLIC_KEY), &mut section)
            {
                entries.insert(BROKER_PUBLIC_KEY.to_owned(), key.clone());
            }
            shown.insert(name.to_owned(), section);
        }
        Value::Object(shown)
    }

    fn add_built_in(&self, name: &str, section: &mut Value) {
        let Value::Object(entries) = section else { return };
        match name {
            "workers" => {
                let listed = entries.entry(FILESHARING_WORKER).or_insert_with(|| Value::Array(Vec::new()));
                if let (Value::Array(listed), Some(built_in)) = (listed, self.built_in_filesharing()) {
                    listed.insert(0, built_in);
                }
            }
            "topology" => {
                let listed = entries.entry("workers").or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(listed) = listed
                    && !listed.iter().any(|item| item == FILESHARING_WORKER || item.get(FILESHARING_WORKER).is_some())
                {
                    listed.insert(0, Value::from(FILESHARING_WORKER));
                }
            }
            _ => {}
        }
    }
}

/// `value` with its secrets masked; all of it is one if `secret`.
pub fn masked_value(value: &Value, secret: bool) -> Value {
    match value {
        Value::Object(entries) => Value::Object(
            entries.iter().map(|(key, value)| (key.clone(), masked_value(value, secret || is_secret(key)))).collect(),
        ),
        Value::Array(items) => items.iter().map(|item| masked_value(item, secret)).collect(),
        // Nothing, and empty text, is worth knowing: the secret is not set.
        Value::Null => Value::Null,
        Value::String(text) if text.is_empty() => value.clone(),
        Value::String(_) | Value::Bool(_) | Value::Number(_) if secret => Value::from(MASK),
        Value::String(text) => Value::String(without_url_password(text)),
        Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Whether what stands under `key` is a secret.
pub fn is_secret(key: &str) -> bool {
    let words = words(key);
    if words.iter().any(|word| word == PUBLIC_WORD) {
        return false;
    }
    words.last().is_some_and(|word| word == SECRET_LAST_WORD)
        || words.iter().any(|word| SECRET_WORDS.contains(&word.as_str()))
}

/// The words of a key in lower case: `snmpCommunity` and `SNMP_COMMUNITY` both have `community`.
fn words(key: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut after_small = false;
    for character in key.chars() {
        let separates = !character.is_alphanumeric();
        if (separates || (character.is_uppercase() && after_small)) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if !separates {
            word.extend(character.to_lowercase());
        }
        after_small = character.is_lowercase() || character.is_numeric();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// `scheme://user:password@host` without its password.
fn without_url_password(text: &str) -> String {
    let masked = text.split_once("://").and_then(|(scheme, rest)| {
        let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        // A password may itself have the characters that end an authority, so the last @ decides if there is one later.
        let at = rest[..authority_end].rfind('@')?;
        let (user, _) = rest[..at].split_once(':')?;
        Some(format!("{scheme}://{user}:{MASK}{}", &rest[at..]))
    });
    masked.unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_with_the_words_of_secrets_are_masked_and_others_are_not() {
        for key in [
            "password",
            "Password",
            "enable_secret",
            "snmpCommunity",
            "SNMP_COMMUNITY",
            "api_key",
            "apiKey",
            "apikey",
            "key",
            "private-key",
            "vault.token",
            "shared_key",
            "TOKEN",
            "Authorization",
            "auth_password",
        ] {
            assert!(is_secret(key), "{key}");
        }
        for key in [
            "username",
            "public_key",
            "curve_public_key",
            "max_tokens",
            "key_file",
            "keys",
            "hostname",
            "passive",
            "monkey",
            "ssh_config_file",
            "tokenizer",
            "",
        ] {
            assert!(!is_secret(key), "{key}");
        }
    }

    #[test]
    fn everything_below_a_secret_is_masked_and_what_is_not_set_stays() {
        let value = json!({
            "hosts": {"r1": {"password": "x", "username": "u", "data": [{"token": 7}]}},
            "secrets": {"a": ["b", {"c": true}]},
            "password": null,
            "secret": "",
            "url": "redis://user:pa:ss@host:1/0",
            "plain": "http://host:80/a@b",
        });
        assert_eq!(
            masked_value(&value, false),
            json!({
                "hosts": {"r1": {"password": MASK, "username": "u", "data": [{"token": MASK}]}},
                "secrets": {"a": [MASK, {"c": MASK}]},
                "password": null,
                "secret": "",
                "url": "redis://user:********@host:1/0",
                "plain": "http://host:80/a@b",
            })
        );
    }
}
