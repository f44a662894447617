//! Keys whose values are secrets.

/// Parts that make a key a secret wherever they stand in it: `enable_secret`, `dbpassword`, `ssh_private_key_file`.
const PARTS: [&str; 12] = [
    "api_key",
    "apikey",
    "authorization",
    "communities",
    "community",
    "credential",
    "passphrase",
    "passwd",
    "password",
    "private_key",
    "privatekey",
    "secret",
];

/// Words that make a key a secret where they stand alone; as parts of other words they mean nothing.
const WORDS: [&str; 4] = ["bearer", "cookie", "psk", "pwd"];

/// A part that makes a key a secret unless tokens are counted.
const TOKEN: &str = "token";

/// Words beside `tokens` that say that they are counted or limited, so that the key is no secret.
const COUNTS: [&str; 10] = ["budget", "completion", "count", "input", "limit", "max", "min", "num", "output", "total"];

/// The word that makes a key a secret as its last one: `key`, `shared_key`; but `key_file` is a path.
const LAST_WORD: &str = "key";

/// The word that says that a key is for everybody: `curve_public_key`.
const PUBLIC: &str = "public";

/// Whether what stands under `key` is a secret.
#[must_use]
pub fn is_secret(key: &str) -> bool {
    let words = words(key);
    // Both, because `apiKey` is two words and `DBPassword` begins one in the middle.
    let (joined, small) = (words.join("_"), key.to_lowercase());
    PARTS.iter().any(|part| joined.contains(part) || small.contains(part))
        || words.iter().any(|word| WORDS.contains(&word.as_str()) || (word.contains(TOKEN) && !counted(word, &words)))
        || (words.last().is_some_and(|word| word == LAST_WORD) && !words.iter().any(|word| word == PUBLIC))
}

/// Whether a word with `token` in it speaks of how many there are, or of what makes them of a text.
fn counted(word: &str, words: &[String]) -> bool {
    word.starts_with("tokeniz") || (word == "tokens" && words.iter().any(|word| COUNTS.contains(&word.as_str())))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_name_secrets_are_known_however_they_are_spelled() {
        for key in [
            "password",
            "Password",
            "dbpassword",
            "DBPassword",
            "auth_password",
            "passwords",
            "enable_secret",
            "clientsecret",
            "client-secret",
            "snmpCommunity",
            "SNMP_COMMUNITY",
            "community",
            "enable_key",
            "api_key",
            "apiKey",
            "apikey",
            "X-Api-Key",
            "key",
            "private-key",
            "ssh_private_key_file",
            "vault.token",
            "authtoken",
            "tokens",
            "TOKEN",
            "shared_key",
            "Authorization",
            "wpa_psk",
            "pwd",
            "credentials",
        ] {
            assert!(is_secret(key), "{key}");
        }
    }

    #[test]
    fn keys_that_only_look_like_it_are_none() {
        for key in [
            "username",
            "public_key",
            "curve_public_key",
            "max_tokens",
            "maxOutputTokens",
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
}
