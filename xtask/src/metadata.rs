//! What cargo knows about the dependencies.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::Failure;
use crate::process::{cargo, output};

/// A package of the dependency tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// The name on the registry.
    pub name: String,
    /// The version, as text.
    pub version: String,
    /// The SPDX expression of its manifest.
    pub licence: Option<String>,
    /// Whether it is one of ours.
    pub ours: bool,
}

/// The dependency tree, for one platform or for all.
pub struct Metadata {
    packages: BTreeMap<String, Package>,
    /// Dependencies that are compiled into or for a package, without those of its tests.
    edges: BTreeMap<String, Vec<String>>,
}

impl Metadata {
    /// Asks cargo, for all platforms.
    pub fn load() -> Result<Self, Failure> {
        Self::parse(&output(&mut cargo(["metadata", "--format-version", "1", "--locked"]))?)
    }

    /// Asks cargo, for the platform that we run on.
    pub fn load_host() -> Result<Self, Failure> {
        let host = output(&mut cargo(["-vV"]))?;
        let host = host.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("cargo does not name its host")?;
        let arguments = ["metadata", "--format-version", "1", "--locked", "--filter-platform", host];
        Self::parse(&output(&mut cargo(arguments))?)
    }

    /// All packages.
    pub fn packages(&self) -> impl Iterator<Item = &Package> {
        self.packages.values()
    }

    /// The packages that end up in the package of this name, or build it.
    pub fn reachable(&self, name: &str) -> Result<Vec<&Package>, Failure> {
        let start = self.packages.iter().find(|(_, package)| package.ours && package.name == name);
        let (start, _) = start.ok_or_else(|| format!("the workspace has no package {name:?}"))?;
        let mut seen = BTreeSet::from([start.as_str()]);
        let mut ahead = vec![start.as_str()];
        while let Some(id) = ahead.pop() {
            for next in self.edges.get(id).into_iter().flatten() {
                if seen.insert(next) {
                    ahead.push(next);
                }
            }
        }
        Ok(seen.into_iter().filter_map(|id| self.packages.get(id)).collect())
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let json: Value = serde_json::from_str(text).map_err(|error| format!("cargo metadata: {error}"))?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut packages = BTreeMap::new();
        for package in list(&json["packages"]) {
            let (Some(id), Some(name), Some(version)) =
                (text(&package["id"]), text(&package["name"]), text(&package["version"]))
            else {
                return Err("cargo metadata: a package without id, name or version".to_owned());
            };
            let ours = package["source"].is_null();
            packages.insert(id, Package { name, version, licence: text(&package["license"]), ours });
        }
        let mut edges: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in list(&json["resolve"]["nodes"]) {
            let id = text(&node["id"]).ok_or("cargo metadata: a node without id")?;
            for dependency in list(&node["deps"]) {
                let shipped = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev");
                if let (true, Some(to)) = (shipped, text(&dependency["pkg"])) {
                    edges.entry(id.clone()).or_default().push(to);
                }
            }
        }
        Ok(Self { packages, edges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = r#"{
        "packages": [
            {"id": "app", "name": "app", "version": "0.1.0", "license": "Apache-2.0", "source": null},
            {"id": "a1", "name": "a", "version": "1.0.0", "license": "MIT", "source": "registry"},
            {"id": "a2", "name": "a", "version": "2.0.0", "license": "MIT", "source": "registry"},
            {"id": "t", "name": "t", "version": "1.0.0", "license": null, "source": "registry"}
        ],
        "resolve": {"nodes": [
            {"id": "app", "deps": [
                {"pkg": "a1", "dep_kinds": [{"kind": null}]},
                {"pkg": "t", "dep_kinds": [{"kind": "dev"}]}
            ]},
            {"id": "a1", "deps": [{"pkg": "a2", "dep_kinds": [{"kind": "build"}]}]},
            {"id": "a2", "deps": []},
            {"id": "t", "deps": []}
        ]}
    }"#;

    #[test]
    fn dependencies_of_tests_are_not_reachable() {
        let metadata = Metadata::parse(TREE).unwrap();
        let names: Vec<String> =
            metadata.reachable("app").unwrap().iter().map(|p| format!("{} {}", p.name, p.version)).collect();
        assert_eq!(names, ["a 1.0.0", "a 2.0.0", "app 0.1.0"]);
    }

    #[test]
    fn package_that_is_not_ours_is_no_start() {
        let metadata = Metadata::parse(TREE).unwrap();
        assert!(metadata.reachable("a").is_err());
    }
}
