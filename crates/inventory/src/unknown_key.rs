//! Keys that nobody reads: most are typing errors, which would otherwise go without effect and without a word.

use serde_json::{Map, Value};

use crate::inventory::SECTIONS;
use crate::key_path::KeyPath;
use crate::section::{Origin, Section};
use crate::topology::{TOPOLOGY_KEYS, WORKER_KEYS};
use crate::warning::{Warning, WarningKind};

/// Keys at the top that are left in peace beside the sections: `jobs` is ours, `jinja2_filters` is read by Python NorFab's workers, and
/// what begins with `x-` is for anchors.
const ALSO_KNOWN: [&str; 2] = ["jobs", "jinja2_filters"];

/// The keys of the `jobs` section.
const JOBS_KEYS: &[&str] = &["retention_days", "retention_jobs", "retention_bytes"];

/// The beginning of keys at the top that hold anchors.
const ANCHORS: &str = "x-";

/// The keys of the `broker` section.
const BROKER_KEYS: &[&str] = &["endpoint", "zmq_auth", "shared_key", "curve_public_key", "ip_allowlist"];

/// Largest number of characters by which a typing error differs from what was meant.
const DISTANCE_MAX: usize = 3;

/// Longest key that is compared, in characters: comparing costs its square.
const KEY_CHARACTERS_MAX: usize = 64;

/// Most keys of a file that are warned about.
const WARNINGS_MAX: usize = 20;

/// Warnings about keys at the top, in the broker section and in the topology that are not known.
pub(crate) fn unknown_keys(origin: Origin<'_>, root: &Map<String, Value>) -> Vec<Warning> {
    let mut warnings = all_unknown_keys(origin, root);
    if warnings.len() > WARNINGS_MAX {
        warnings.truncate(WARNINGS_MAX);
        let location = origin.location(&KeyPath::root());
        warnings.push(Warning { location, key: String::new(), kind: WarningKind::More });
    }
    warnings
}

fn all_unknown_keys(origin: Origin<'_>, root: &Map<String, Value>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let at_top = root.keys().filter(|key| !ALSO_KNOWN.contains(&key.as_str()) && !key.starts_with(ANCHORS));
    add(origin, &KeyPath::root(), at_top, &SECTIONS, &mut warnings);
    let path = KeyPath::root().key("broker");
    if let Some(Value::Object(entries)) = root.get("broker") {
        add(origin, &path, entries.keys(), BROKER_KEYS, &mut warnings);
    }
    let path = KeyPath::root().key("jobs");
    if let Some(Value::Object(entries)) = root.get("jobs") {
        add(origin, &path, entries.keys(), JOBS_KEYS, &mut warnings);
    }
    let path = KeyPath::root().key("topology");
    let Some(Value::Object(entries)) = root.get("topology") else { return warnings };
    add(origin, &path, entries.keys(), TOPOLOGY_KEYS, &mut warnings);
    let workers = entries.get("workers").and_then(Value::as_array);
    for (index, item) in workers.into_iter().flatten().enumerate() {
        let path = path.key("workers").item(index);
        for (name, settings) in item.as_object().into_iter().flatten() {
            if let Value::Object(settings) = settings {
                add(origin, &path.key(name), settings.keys(), WORKER_KEYS, &mut warnings);
            }
        }
    }
    warnings
}

/// The key of the broker section that was meant to be `endpoint`, if one looks like it.
pub(crate) fn misspelt_endpoint<'file>(section: &Section<'file>) -> Option<&'file str> {
    let unknown = section.entries.keys().filter(|key| !BROKER_KEYS.contains(&key.as_str()));
    unknown.map(String::as_str).find(|key| nearest(key, BROKER_KEYS) == Some("endpoint"))
}

fn add<'key>(
    origin: Origin<'_>,
    path: &KeyPath,
    keys: impl Iterator<Item = &'key String>,
    known: &'static [&'static str],
    warnings: &mut Vec<Warning>,
) {
    for key in keys.filter(|key| !known.contains(&key.as_str())) {
        let path = path.key(key);
        warnings.push(Warning {
            location: origin.location(&path),
            key: path.to_string(),
            kind: WarningKind::UnknownKey { nearest: nearest(key, known), known },
        });
    }
}

/// The known key that is most like this one, if it is like it enough to have been meant.
fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    if key.chars().count() > KEY_CHARACTERS_MAX {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace(['_', '-', ' '], "");
    let found = known.iter().map(|known| (distance(&plain(key), &plain(known)), *known)).min()?;
    (found.0 <= DISTANCE_MAX.min(found.1.len() / 2)).then_some(found.1)
}

/// How many characters must be put in, taken out, replaced or exchanged with their neighbour to make one text of the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (line, character) in one.iter().enumerate() {
        let mut row = vec![line + 1];
        for (at, wanted) in other.iter().enumerate() {
            let replaced = rows[line][at] + usize::from(character != wanted);
            let mut least = replaced.min(rows[line][at + 1] + 1).min(row[at] + 1);
            if line > 0 && at > 0 && *character == other[at - 1] && one[line - 1] == *wanted {
                least = least.min(rows[line - 1][at - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_recognised_and_other_words_are_not() {
        for (typed, meant) in [
            ("endpiont", Some("endpoint")),
            ("Endpoint", Some("endpoint")),
            ("zmq-auth", Some("zmq_auth")),
            ("sharedkey", Some("shared_key")),
            ("address", None),
            ("port", None),
        ] {
            assert_eq!(nearest(typed, BROKER_KEYS), meant, "{typed}");
        }
        assert_eq!(nearest("worker", TOPOLOGY_KEYS), Some("workers"));
        assert_eq!(nearest("wrokers", TOPOLOGY_KEYS), Some("workers"));
        assert_eq!(nearest("dependson", WORKER_KEYS), Some("depends_on"));
    }
}
