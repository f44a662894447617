//! `cargo xtask duplicates`: the shipped binary has no dependency in two versions, but for those of [`ALLOWED`].

use std::collections::{BTreeMap, BTreeSet};

use crate::Failure;
use crate::metadata::Metadata;

/// The package of the shipped binary.
const SHIPPED: &str = "norfab";

/// Packages that may come in two versions, each with the reason. An entry that is no longer needed is an error.
const ALLOWED: &[(&str, &str)] = &[
    ("bitflags", "an optional part of faster-hex names an older one: Cargo counts it, but nothing builds it"),
    ("defmt", "optional in faster-hex, which names two: Cargo counts them, but nothing builds them"),
    ("getrandom", "ring, the cryptography of https, is behind the others"),
    ("hashbrown", "the build script of libsodium unpacks its sources with an older one, which does not ship"),
    ("syn", "the macros of tracing and clap are behind those of serde, and none of them ships"),
];

/// Checks what is compiled into the binary, or runs while it is built, on this platform.
pub fn check() -> Result<(), Failure> {
    let metadata = Metadata::load_host()?;
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let reachable = metadata.reachable(SHIPPED)?;
    for package in &reachable {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    let wrong = judge(&versions, ALLOWED);
    if wrong.is_empty() {
        println!(
            "{} packages in the binary and its build, {} of them allowed in two versions",
            reachable.len(),
            ALLOWED.len()
        );
        return Ok(());
    }
    Err(format!(
        "versions of dependencies (`cargo tree -p {SHIPPED} -e normal,build -i NAME@VERSION` tells why):\n  {}",
        wrong.join("\n  ")
    ))
}

fn judge(versions: &BTreeMap<&str, BTreeSet<&str>>, allowed: &[(&str, &str)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, found) in versions.iter().filter(|(_, found)| found.len() > 1) {
        if !allowed.iter().any(|(known, _)| known == name) {
            let found: Vec<&str> = found.iter().copied().collect();
            wrong.push(format!("{name} {}", found.join(" and ")));
        }
    }
    for (name, reason) in allowed {
        if versions.get(name).is_none_or(|found| found.len() < 2) {
            wrong.push(format!("{name} is allowed twice ({reason}), but comes once: take it off the list"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_in_two_versions_needs_a_reason() {
        let versions = BTreeMap::from([("a", BTreeSet::from(["1.0.0", "2.0.0"])), ("b", BTreeSet::from(["1.0.0"]))]);
        assert_eq!(judge(&versions, &[]), ["a 1.0.0 and 2.0.0"]);
        assert!(judge(&versions, &[("a", "still moving")]).is_empty());
    }

    #[test]
    fn reason_that_is_no_longer_needed_is_reported() {
        let versions = BTreeMap::from([("b", BTreeSet::from(["1.0.0"]))]);
        assert_eq!(judge(&versions, &[("b", "once")]).len(), 1);
    }
}
