//! What is said of a remote, in the inventory or by a client, and whether it can be.

use std::fmt;

use gix_validate::path::component;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::address::{Credentials, shown};
use crate::hidden::is_never_served;

/// Seconds between two periodic synchronizations where nobody says.
pub(crate) const SYNC_INTERVAL_SECONDS_DEFAULT: i64 = 30;

/// Least seconds between two periodic synchronizations.
pub const SYNC_INTERVAL_SECONDS_MIN: i64 = 5;

/// Most seconds between two periodic synchronizations: a day.
pub const SYNC_INTERVAL_SECONDS_MAX: i64 = 86_400;

/// The type of all remotes that there are.
pub(crate) const GIT: &str = "git";

/// What stands for a password, as the Python service has it.
pub(crate) const PASSWORD_MASK: &str = "***";

/// Longest name of a remote, in bytes: it names folders.
const NAME_BYTES_MAX: usize = 100;

/// Longest path of a mount, in bytes.
const MOUNT_BYTES_MAX: usize = 1024;

/// Longest text of any other kind, in bytes.
const TEXT_BYTES_MAX: usize = 8192;

/// What is said of a remote.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct RemoteInput {
    /// Name of the remote, as in git://NAME/path.
    #[schemars(length(min = 1))]
    pub(crate) name: String,
    /// Folder below the shared one in which the repository's files appear; the name of the remote without it.
    #[schemars(length(min = 1))]
    pub(crate) mount: Option<String>,
    /// What it is, for people.
    #[serde(default)]
    pub(crate) description: String,
    /// URL of the repository: https, ssh, file, or the path of a folder on the worker's host.
    #[schemars(length(min = 1))]
    pub(crate) url: String,
    /// Branch to take.
    #[schemars(length(min = 1))]
    pub(crate) branch: Option<String>,
    /// Type of the remote: git.
    #[serde(rename = "type", default = "git")]
    #[schemars(length(min = 1))]
    pub(crate) kind: String,
    /// User name for https, with a password.
    #[schemars(length(min = 1))]
    pub(crate) username: Option<String>,
    /// Password or token for https, with a user name.
    #[schemars(length(min = 1))]
    pub(crate) password: Option<String>,
    /// Whether to synchronize it periodically.
    #[serde(default)]
    pub(crate) auto_sync: bool,
    /// Seconds between two periodic synchronizations; 5 to 86400, others become the nearest of these.
    #[serde(default = "sync_interval")]
    pub(crate) sync_interval: i64,
}

/// The keys of an entry in the inventory.
pub(crate) const KEYS: [&str; 10] =
    ["name", "mount", "description", "url", "branch", "type", "username", "password", "auto_sync", "sync_interval"];

fn git() -> String {
    GIT.to_owned()
}

fn sync_interval() -> i64 {
    SYNC_INTERVAL_SECONDS_DEFAULT
}

/// Where a checkout is below the shared folder: one name at least, none of which leads elsewhere or is hidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountPath(Vec<String>);

impl MountPath {
    /// Errors: it is absolute, has `..` or a backslash in it, or names that are not served.
    pub(crate) fn parse(path: &str) -> Result<Self, DefinitionError> {
        let names: Vec<String> =
            path.split('/').filter(|name| !name.is_empty() && *name != ".").map(str::to_owned).collect();
        let safe = |name: &String| component_is_safe(name) && !is_never_served(name.as_bytes());
        if path.len() > MOUNT_BYTES_MAX || path.starts_with('/') || names.is_empty() || !names.iter().all(safe) {
            return Err(DefinitionError::Mount);
        }
        Ok(Self(names))
    }

    /// The folders on the way.
    pub(crate) fn above(&self) -> &[String] {
        &self.0[..self.0.len() - 1]
    }

    /// The last name.
    pub(crate) fn name(&self) -> &str {
        &self.0[self.0.len() - 1]
    }

    /// The folder that this one is in, unless it is the shared one.
    pub(crate) fn parent(&self) -> Option<Self> {
        (self.0.len() > 1).then(|| Self(self.above().to_vec()))
    }

    /// With slashes.
    pub(crate) fn text(&self) -> String {
        self.0.join("/")
    }

    /// Whether one is the other, or in it. Case does not tell them apart: on some systems it does not.
    pub(crate) fn collides(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(one, other)| one.to_lowercase() == other.to_lowercase())
    }
}

impl fmt::Display for MountPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "nf://{}", self.text())
    }
}

/// Why a remote cannot be as it is said to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DefinitionError {
    #[error("name: Remote name is not a safe local folder name")]
    Name,
    #[error("mount: Remote mount must be a safe relative path")]
    Mount,
    #[error("url: Remote url must be a text of at most 8192 bytes without control characters")]
    Url,
    #[error("branch: Remote branch is required for git remotes")]
    NoBranch,
    #[error("branch: Remote branch is not a name that git knows")]
    Branch,
    #[error("username and password: Remote username and password must be given together")]
    Credentials,
    #[error("description: it is longer than 8192 bytes")]
    Description,
}

/// A remote that can be.
#[derive(Clone, PartialEq)]
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) mount: MountPath,
    pub(crate) description: String,
    /// With what is secret in it: see [`Self::shown_url`].
    pub(crate) url: String,
    pub(crate) branch: String,
    pub(crate) kind: String,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) auto_sync: bool,
    pub(crate) sync_interval_seconds: i64,
}

impl Definition {
    /// Checks what is said of a remote, but for its type.
    pub(crate) fn check(input: RemoteInput) -> Result<Self, DefinitionError> {
        if !component_is_safe(&input.name)
            || input.name.len() > NAME_BYTES_MAX
            || is_never_served(input.name.as_bytes())
        {
            return Err(DefinitionError::Name);
        }
        let mount = MountPath::parse(input.mount.as_deref().unwrap_or(&input.name))?;
        if input.url.is_empty() || input.url.len() > TEXT_BYTES_MAX || input.url.contains(char::is_control) {
            return Err(DefinitionError::Url);
        }
        if input.description.len() > TEXT_BYTES_MAX {
            return Err(DefinitionError::Description);
        }
        let branch = input.branch.filter(|branch| !branch.is_empty()).ok_or(DefinitionError::NoBranch)?;
        let full = format!("refs/heads/{branch}");
        if full.len() > NAME_BYTES_MAX * 10 || gix_validate::reference::name(full.as_str().into()).is_err() {
            return Err(DefinitionError::Branch);
        }
        let credentials = match (input.username, input.password) {
            (Some(username), Some(password)) if !username.is_empty() && !password.is_empty() => {
                Some(Credentials { username, password })
            }
            (None, None) => None,
            _ => return Err(DefinitionError::Credentials),
        };
        Ok(Self {
            name: input.name,
            mount,
            description: input.description,
            url: input.url,
            branch,
            kind: input.kind,
            credentials,
            auto_sync: input.auto_sync,
            sync_interval_seconds: input.sync_interval.clamp(SYNC_INTERVAL_SECONDS_MIN, SYNC_INTERVAL_SECONDS_MAX),
        })
    }

    /// The URL without what is secret in it.
    pub(crate) fn shown_url(&self) -> String {
        shown(&self.url)
    }

    /// As the inventory has it, without what is secret.
    pub(crate) fn of_inventory(&self) -> Value {
        json!({
            "name": self.name,
            "mount": self.mount.text(),
            "description": self.description,
            "url": self.shown_url(),
            "branch": self.branch,
            "type": self.kind,
            "username": self.username(),
            "password": self.password(),
            "auto_sync": self.auto_sync,
            "sync_interval": self.sync_interval_seconds,
        })
    }

    pub(crate) fn username(&self) -> Option<&str> {
        self.credentials.as_ref().map(|credentials| credentials.username.as_str())
    }

    /// That there is one, not which.
    pub(crate) fn password(&self) -> Option<&'static str> {
        self.credentials.as_ref().map(|_| PASSWORD_MASK)
    }
}

impl fmt::Debug for Definition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.of_inventory())
    }
}

fn component_is_safe(name: &str) -> bool {
    !name.contains(char::is_control)
        && gix_validate::path::component(name.into(), None, component::Options::default()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: Value) -> Result<Definition, String> {
        let input: RemoteInput = serde_json::from_value(value).map_err(|error| error.to_string())?;
        Definition::check(input).map_err(|error| error.to_string())
    }

    #[test]
    fn a_remote_needs_a_name_a_url_and_a_branch() {
        let definition = check(json!({"name": "a", "url": "u", "branch": "main"})).expect("fits");
        let shown = json!({
            "name": "a", "mount": "a", "description": "", "url": "u", "branch": "main", "type": "git",
            "username": null, "password": null, "auto_sync": false, "sync_interval": 30,
        });
        assert_eq!(definition.of_inventory(), shown);
        let error = check(json!({"name": "a", "url": "u"})).expect_err("refused");
        assert_eq!(error, "branch: Remote branch is required for git remotes");
    }

    #[test]
    fn names_mounts_and_branches_that_lead_elsewhere_are_refused() {
        let fits = |key: &str, value: &str| {
            let mut remote = json!({"name": "a", "url": "u", "branch": "main"});
            remote[key] = json!(value);
            check(remote).is_ok()
        };
        for name in ["", ".", "..", "a/b", "a\\b", "a\0", ".git", "con", "__norfab__", &"x".repeat(101)] {
            assert!(!fits("name", name), "{name:?}");
        }
        for mount in ["", "/", "/a", "../x", "a/../b", "a\\b", ".", "a/.git", "a/__norfab__", ".env", "x.key_secret"] {
            assert!(!fits("mount", mount), "{mount:?}");
        }
        for branch in ["", "a b", "-\n", "a..b", "a\nb", "/", "a.lock"] {
            assert!(!fits("branch", branch), "{branch:?}");
        }
        assert!(fits("mount", "a/b//./c/") && fits("mount", "a__b__c") && fits("branch", "feature/x"));
    }

    #[test]
    fn credentials_come_together_and_are_not_shown() {
        let with = |username: Value, password: Value| {
            let url = "https://x:hidden@host/a";
            check(json!({"name": "a", "url": url, "branch": "b", "username": username, "password": password}))
        };
        assert!(with(json!("u"), Value::Null).is_err() && with(Value::Null, json!("p")).is_err());
        let definition = with(json!("u"), json!("s3cret")).expect("fits");
        let shown = format!("{definition:?}{:?}", definition.credentials);
        assert!(!shown.contains("s3cret") && !shown.contains("hidden"), "{shown}");
        assert_eq!(definition.of_inventory()["password"], json!("***"));
    }

    #[test]
    fn intervals_out_of_range_become_the_nearest_within() {
        for (given, taken) in [(-1, 5), (0, 5), (5, 5), (30, 30), (90_000, 86_400)] {
            let definition = check(json!({"name": "a", "url": "u", "branch": "b", "sync_interval": given}));
            assert_eq!(definition.expect("fits").sync_interval_seconds, taken);
        }
    }

    #[test]
    fn mounts_collide_where_one_is_in_the_other() {
        let mount = |path: &str| MountPath::parse(path).expect("a mount");
        for (one, other) in [("a", "a"), ("a", "a/b"), ("m/n/o", "m/n"), ("A", "a/b")] {
            assert!(mount(one).collides(&mount(other)) && mount(other).collides(&mount(one)), "{one} {other}");
        }
        for (one, other) in [("a", "b"), ("a", "ab"), ("m/a", "m/b")] {
            assert!(!mount(one).collides(&mount(other)), "{one} {other}");
        }
    }
}
