//! What a plain scalar means: in YAML 1.1 as PyYAML's safe loader answers, and in the core schema of YAML 1.2.
//!
//! The two are separate functions so that a warning about a difference is a comparison and not a list of cases.

use serde_json::{Number, Value};

use super::timestamp;

/// What a plain scalar stands for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meaning {
    /// A value that JSON can say.
    Value(Value),
    /// An infinity or a not-a-number.
    NotFinite,
    /// An integer beyond 64 bits.
    IntegerTooLarge,
    /// `<<`, which merges other mappings when it is a key.
    Merge,
    /// `=`, which PyYAML's safe loader refuses as a value and takes as text when it is a key.
    DefaultValue,
    /// It looks like a type but is no instance of it, like the date 2024-13-01; the safe loader fails there.
    Broken(&'static str),
}

impl Meaning {
    fn text(text: &str) -> Self {
        Self::Value(Value::String(text.to_owned()))
    }

    fn float(value: f64) -> Self {
        Number::from_f64(value).map_or(Self::NotFinite, |number| Self::Value(Value::Number(number)))
    }
}

/// The meaning of a plain scalar without a tag, as PyYAML's safe loader resolves and constructs it.
pub(super) fn yaml_1_1(text: &str) -> Meaning {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Meaning::Value(Value::Null),
        "<<" => return Meaning::Merge,
        "=" => return Meaning::DefaultValue,
        _ => {}
    }
    if let Some(value) = boolean_1_1(text) {
        return Meaning::Value(Value::Bool(value));
    }
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '-' | '+' | '.')) {
        return Meaning::text(text);
    }
    if is_float_1_1(text) {
        return float_1_1(text).unwrap_or(Meaning::Broken("a number"));
    }
    if is_integer_1_1(text) {
        return integer_1_1(text).unwrap_or(Meaning::Broken("a number"));
    }
    match timestamp::iso_text(text) {
        timestamp::Reading::NoTimestamp => Meaning::text(text),
        timestamp::Reading::Iso(iso) => Meaning::Value(Value::String(iso)),
        timestamp::Reading::OutOfRange => Meaning::Broken("a date that exists"),
    }
}

/// What `yes`, `no`, `on`, `off`, `true` and `false` mean, in the spellings that PyYAML knows.
fn boolean_1_1(text: &str) -> Option<bool> {
    match text {
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Some(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// `!!bool`: the spellings of the resolver in any mixture of cases.
pub(super) fn tagged_boolean(text: &str) -> Option<Value> {
    boolean_1_1(&text.to_ascii_lowercase()).map(Value::Bool)
}

/// `!!int`: everything that Python's constructor for integers takes.
pub(super) fn tagged_integer(text: &str) -> Option<Meaning> {
    integer_1_1(text)
}

/// `!!float`: also the spellings without a dot or a sign of the exponent, which are text without the tag.
pub(super) fn tagged_float(text: &str) -> Option<Meaning> {
    float_1_1(text)
}

/// `!!timestamp`.
pub(super) fn tagged_timestamp(text: &str) -> Option<Value> {
    match timestamp::iso_text(text) {
        timestamp::Reading::Iso(iso) => Some(Value::String(iso)),
        timestamp::Reading::NoTimestamp | timestamp::Reading::OutOfRange => None,
    }
}

fn unsigned(text: &str) -> &str {
    text.strip_prefix(['-', '+']).unwrap_or(text)
}

fn only(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    text.bytes().all(allowed)
}

fn digits(text: &str) -> bool {
    !text.is_empty() && only(text, |byte| byte.is_ascii_digit())
}

fn digits_or_underscores(text: &str) -> bool {
    only(text, |byte| byte.is_ascii_digit() || byte == b'_')
}

/// A digit, then digits and underscores.
fn number_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit()) && digits_or_underscores(text)
}

/// `:` and at most two digits below 60.
fn sexagesimal_part(text: &str) -> bool {
    match text.as_bytes() {
        [one] => one.is_ascii_digit(),
        [ten, one] => (b'0'..=b'5').contains(ten) && one.is_ascii_digit(),
        _ => false,
    }
}

/// The exponent of YAML 1.1 must have its sign: `1.0e3` is text.
fn exponent_1_1(text: &str) -> bool {
    text.strip_prefix(['e', 'E']).and_then(|rest| rest.strip_prefix(['-', '+'])).is_some_and(digits)
}

/// Splits off `e..` where there is one.
fn split_exponent(text: &str) -> (&str, Option<&str>) {
    match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at..])),
        None => (text, None),
    }
}

fn is_float_1_1(text: &str) -> bool {
    if matches!(text, ".nan" | ".NaN" | ".NAN") || matches!(unsigned(text), ".inf" | ".Inf" | ".INF") {
        return true;
    }
    let (mantissa, exponent) = split_exponent(text);
    let exponent_fits = exponent.is_none_or(exponent_1_1);
    if let Some(fraction) = mantissa.strip_prefix('.') {
        // Without digits before the dot there is no sign in PyYAML: `-.5` is text.
        return number_word(fraction) && exponent_fits;
    }
    let Some((whole, fraction)) = unsigned(mantissa).split_once('.') else {
        return false;
    };
    if !digits_or_underscores(fraction) {
        return false;
    }
    if let Some((first, rest)) = whole.split_once(':') {
        return exponent.is_none() && number_word(first) && rest.split(':').all(sexagesimal_part);
    }
    number_word(whole) && exponent_fits
}

fn is_integer_1_1(text: &str) -> bool {
    let text = unsigned(text);
    let body = |prefix: &str, allowed: fn(u8) -> bool| {
        text.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && only(rest, |byte| byte == b'_' || allowed(byte)))
    };
    if text == "0"
        || body("0b", |byte| matches!(byte, b'0' | b'1'))
        || body("0x", |byte| byte.is_ascii_hexdigit())
        || body("0", |byte| matches!(byte, b'0'..=b'7'))
    {
        return true;
    }
    if !text.starts_with(|first: char| matches!(first, '1'..='9')) {
        return false;
    }
    let (first, rest) = text.split_once(':').map_or((text, None), |(first, rest)| (first, Some(rest)));
    digits_or_underscores(first) && rest.is_none_or(|rest| rest.split(':').all(sexagesimal_part))
}

fn integer(negative: bool, digits: &str, radix: u32) -> Option<Meaning> {
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    // All digits are valid, so the only failure left is that they are too many.
    let Ok(magnitude) = i128::from_str_radix(digits, radix) else {
        return Some(Meaning::IntegerTooLarge);
    };
    Some(fits(if negative { -magnitude } else { magnitude }))
}

fn fits(value: i128) -> Meaning {
    if let Ok(value) = i64::try_from(value) {
        Meaning::Value(Value::Number(value.into()))
    } else if let Ok(value) = u64::try_from(value) {
        Meaning::Value(Value::Number(value.into()))
    } else {
        Meaning::IntegerTooLarge
    }
}

/// The number of a text as Python's constructor makes it, `None` where Python raises.
fn integer_1_1(text: &str) -> Option<Meaning> {
    let clean: String = text.chars().filter(|character| *character != '_').collect();
    let negative = clean.starts_with('-');
    let clean = unsigned(&clean);
    if clean == "0" {
        return Some(fits(0));
    }
    if let Some(binary) = clean.strip_prefix("0b") {
        return integer(negative, binary, 2);
    }
    if let Some(hexadecimal) = clean.strip_prefix("0x") {
        return integer(negative, hexadecimal, 16);
    }
    if clean.starts_with('0') {
        return integer(negative, clean, 8);
    }
    if clean.contains(':') {
        let mut value: i128 = 0;
        for part in clean.split(':') {
            if !digits(part) {
                return None;
            }
            let Ok(part) = part.parse::<i64>() else {
                return Some(Meaning::IntegerTooLarge);
            };
            let Some(next) = value.checked_mul(60).and_then(|value| value.checked_add(i128::from(part))) else {
                return Some(Meaning::IntegerTooLarge);
            };
            value = next;
        }
        return Some(fits(if negative { -value } else { value }));
    }
    integer(negative, clean, 10)
}

/// The number of a text as Python's constructor makes it, `None` where Python raises.
fn float_1_1(text: &str) -> Option<Meaning> {
    let clean: String =
        text.chars().filter(|character| *character != '_').map(|character| character.to_ascii_lowercase()).collect();
    let sign = if clean.starts_with('-') { -1.0 } else { 1.0 };
    let clean = unsigned(&clean);
    if matches!(clean, ".inf" | ".nan" | "inf" | "nan" | "infinity") {
        return Some(Meaning::NotFinite);
    }
    if clean.contains(':') {
        // Summed from the smallest part up, as Python does: the rounding is the same.
        let mut value = 0.0;
        let mut base = 1.0;
        for part in clean.rsplit(':') {
            value += decimal(part)? * base;
            base *= 60.0;
        }
        return Some(Meaning::float(sign * value));
    }
    decimal(clean).map(|value| Meaning::float(sign * value))
}

/// Digits with an optional dot and exponent, nothing else: Rust also takes words such as `inf`.
fn decimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = split_exponent(text);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_fits = exponent.is_none_or(|exponent| digits(unsigned(&exponent[1..])));
    let mantissa_fits = (digits(whole) || whole.is_empty())
        && (digits(fraction) || fraction.is_empty())
        && !(whole.is_empty() && fraction.is_empty());
    if mantissa_fits && exponent_fits { text.parse().ok() } else { None }
}

/// The meaning of a plain scalar in the core schema of YAML 1.2.
pub(super) fn yaml_1_2(text: &str) -> Meaning {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Meaning::Value(Value::Null),
        "true" | "True" | "TRUE" => return Meaning::Value(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Meaning::Value(Value::Bool(false)),
        // Merge keys are no part of 1.2, but its loaders know them: no difference worth a warning.
        "<<" => return Meaning::Merge,
        "=" => return Meaning::DefaultValue,
        ".nan" | ".NaN" | ".NAN" => return Meaning::NotFinite,
        _ => {}
    }
    if matches!(unsigned(text), ".inf" | ".Inf" | ".INF") {
        return Meaning::NotFinite;
    }
    let radix = |prefix: &str, radix: u32| text.strip_prefix(prefix).and_then(|rest| integer(false, rest, radix));
    if let Some(meaning) = radix("0o", 8).or_else(|| radix("0x", 16)) {
        return meaning;
    }
    if digits(unsigned(text)) {
        return integer(text.starts_with('-'), unsigned(text), 10).unwrap_or_else(|| Meaning::text(text));
    }
    match decimal(unsigned(text)) {
        Some(value) => Meaning::float(if text.starts_with('-') { -value } else { value }),
        None => Meaning::text(text),
    }
}

/// A meaning as the warning prints it.
pub(super) fn shown(text: &str, meaning: &Meaning) -> String {
    match meaning {
        Meaning::Value(value) => value.to_string(),
        Meaning::NotFinite | Meaning::IntegerTooLarge => format!("the number {text}"),
        Meaning::Merge | Meaning::DefaultValue | Meaning::Broken(_) => Value::String(text.to_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(value: Value) -> Meaning {
        Meaning::Value(value)
    }

    #[test]
    fn spellings_that_differ_between_yaml_1_1_and_1_2() {
        for (text, old, new) in [
            ("yes", json!(true), json!("yes")),
            ("Off", json!(false), json!("Off")),
            ("0755", json!(493), json!(755)),
            ("0o17", json!("0o17"), json!(15)),
            ("1:30", json!(90), json!("1:30")),
            ("1_000", json!(1000), json!("1_000")),
            ("0b11", json!(3), json!("0b11")),
            ("1e3", json!("1e3"), json!(1000.0)),
            ("-.5", json!("-.5"), json!(-0.5)),
        ] {
            assert_eq!(yaml_1_1(text), value(old), "{text} in 1.1");
            assert_eq!(yaml_1_2(text), value(new), "{text} in 1.2");
        }
    }

    #[test]
    fn spellings_that_mean_the_same_in_both() {
        for text in ["y", "n", "12", "-12", "1.5", "0x1f", ".5", "true", "NULL", "a b", "2001-12-14", "10.0.0.1"] {
            assert_eq!(yaml_1_1(text), yaml_1_2(text), "{text}");
        }
    }
}
