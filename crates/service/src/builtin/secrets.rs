//! Inventories are told without their secrets.

use serde_json::{Map, Value};

/// What stands in the place of a secret.
const MASK: &str = "***";

/// Parts of keys whose values are secrets, in small letters.
const SECRET_WORDS: [&str; 8] =
    ["password", "passphrase", "passwd", "secret", "token", "api_key", "apikey", "private_key"];

/// A copy in which the values of telling keys are masked, however deep. Nothing there (null, an empty text) stays as it is.
pub(super) fn masked(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.iter().map(|(key, member)| {
                let shown =
                    if is_secret(key) && !is_nothing(member) { Value::String(MASK.to_owned()) } else { masked(member) };
                (key.clone(), shown)
            });
            Value::Object(members.collect::<Map<String, Value>>())
        }
        Value::Array(values) => Value::Array(values.iter().map(masked).collect()),
        other => other.clone(),
    }
}

fn is_secret(key: &str) -> bool {
    let key = key.to_lowercase().replace('-', "_");
    SECRET_WORDS.iter().any(|word| key.contains(word))
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(_) => true,
        Value::String(text) => text.is_empty(),
        Value::Number(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_masked_at_any_depth_and_the_rest_stays() {
        let inventory = json!({
            "hosts": [{"name": "a", "Password": "x", "port": 22}],
            "groups": {"g": {"enable-secret": "y", "api_key": {"id": 1}}},
            "token": "", "use_token": true,
        });
        let expected = json!({
            "hosts": [{"name": "a", "Password": "***", "port": 22}],
            "groups": {"g": {"enable-secret": "***", "api_key": "***"}},
            "token": "", "use_token": true,
        });
        assert_eq!(masked(&inventory), expected);
    }
}
