//! The keys of a worker's inventory that this service reads. Others are let be.
//!
//! | key | what | default |
//! |---|---|---|
//! | `service` | the name under which workers register | `filesharing` |
//! | `base_dir` | the folder to share, relative to NorFab's own | NorFab's own folder |
//! | `dotfiles` | names beginning with a dot that are served, as patterns such as `.gitignore` or `.git*` | none |
//! | `trusted_repositories` | folders in which repositories of other users of the host are read, relative to NorFab's own | none |
//! | `remotes` | git repositories whose files appear in the folder, a list of objects | none |
//! | `max_concurrent_jobs` | jobs that the worker runs at once; uploads leave half of their places free | 5 |
//! | `uploads` | where clients may upload files, and how much: see [`settings`](crate::uploads::settings) | nowhere |

use std::fs;
use std::path::{Path, PathBuf};

use glob::Pattern;
use norfab_service::ServiceName;
use serde_json::Value;

use crate::error::FileSharingError;
use crate::hidden::Hidden;
use crate::remotes;
use crate::remotes::definition::Definition;
use crate::uploads::settings::UploadSettings;

/// The name of the service where the inventory names none.
pub const DEFAULT_SERVICE: &str = "filesharing";

/// Jobs that a worker runs at once where its inventory does not say.
const JOBS_DEFAULT: usize = 5;

/// What the service is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The name under which workers register.
    pub service: ServiceName,
    /// The folder to share.
    pub base_dir: PathBuf,
    /// Names beginning with a dot that are served.
    pub dotfiles: Vec<Pattern>,
    /// Where clients may upload files, and how much.
    pub uploads: Option<UploadSettings>,
    /// Jobs that the worker runs at once.
    pub jobs_max: usize,
    /// Where repositories of other users of the host are read.
    pub trusted_repositories: Vec<PathBuf>,
    /// Git repositories.
    pub(crate) remotes: Vec<Definition>,
}

impl Settings {
    /// Reads the inventory of a worker. An inventory of null has no keys. Errors: a key has a value that cannot be.
    pub fn read(inventory: &Value, default_base_dir: &Path) -> Result<Self, FileSharingError> {
        if !matches!(inventory, Value::Object(_) | Value::Null) {
            return Err(FileSharingError::NoObject { found: kind(inventory) });
        }
        let name = match inventory.get("service") {
            None | Some(Value::Null) => DEFAULT_SERVICE,
            Some(Value::String(name)) => name,
            Some(other) => return Err(wrong("service", "a string", other)),
        };
        let service =
            ServiceName::parse(name).map_err(|error| FileSharingError::ServiceName { problem: error.to_string() })?;
        let base_dir = match inventory.get("base_dir") {
            None | Some(Value::Null) => default_base_dir.to_owned(),
            Some(Value::String(path)) if !path.is_empty() && !path.contains('\0') => default_base_dir.join(path),
            Some(other) => return Err(wrong("base_dir", "the path of a folder", other)),
        };
        let remotes = match inventory.get("remotes") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(remotes)) => remotes::read(remotes)?,
            Some(other) => return Err(wrong("remotes", "a list", other)),
        };
        let dotfiles = match inventory.get("dotfiles") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(patterns)) => patterns.iter().map(dotfile).collect::<Result<_, _>>()?,
            Some(other) => return Err(wrong("dotfiles", "a list of patterns", other)),
        };
        let uploads = match inventory.get("uploads") {
            None | Some(Value::Null) => None,
            Some(Value::Object(uploads)) => Some(UploadSettings::read(uploads, &Hidden::but(dotfiles.clone()))?),
            Some(other) => return Err(wrong("uploads", "an object with the key 'folder'", other)),
        };
        // What is written into a checkout is lost with the next change of its repository.
        if let Some(uploads) = &uploads
            && let Some(folder) = uploads.mount()
            && remotes.iter().any(|remote| remote.mount.collides(&folder))
        {
            let found = Value::String(uploads.folder.join("/"));
            return Err(wrong("uploads.folder", "a folder apart from those of git remotes", &found));
        }
        // The worker itself refuses what cannot be.
        let jobs_max = inventory.get("max_concurrent_jobs").and_then(Value::as_u64);
        let jobs_max = jobs_max.and_then(|jobs| usize::try_from(jobs).ok()).unwrap_or(JOBS_DEFAULT);
        let trusted_repositories = match inventory.get("trusted_repositories") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(places)) => {
                let expected = "paths of folders";
                let place = |place: &Value| match place.as_str().filter(|path| !path.is_empty() && !path.contains('\0'))
                {
                    Some(path) => Ok(default_base_dir.join(path)),
                    None => Err(wrong("trusted_repositories", expected, place)),
                };
                places.iter().map(place).collect::<Result<_, _>>()?
            }
            Some(other) => return Err(wrong("trusted_repositories", "a list of paths", other)),
        };
        Ok(Self { service, base_dir, dotfiles, uploads, jobs_max, trusted_repositories, remotes })
    }

    /// Makes the folder if it is missing, and looks into it. Errors: neither is possible.
    pub fn prepare(&self) -> Result<(), FileSharingError> {
        let made = fs::create_dir_all(&self.base_dir).and_then(|()| fs::read_dir(&self.base_dir));
        match made {
            Ok(_) => Ok(()),
            Err(source) => Err(FileSharingError::Folder { path: self.base_dir.clone(), source }),
        }
    }
}

fn dotfile(pattern: &Value) -> Result<Pattern, FileSharingError> {
    let expected = "patterns of names, such as .gitignore or .git*";
    let text = pattern.as_str().filter(|text| text.starts_with('.') && !text.contains('/'));
    text.and_then(|text| Pattern::new(text).ok()).ok_or_else(|| wrong("dotfiles", expected, pattern))
}

pub(crate) fn wrong(key: &'static str, expected: &'static str, found: &Value) -> FileSharingError {
    let found = match found {
        Value::String(text) => format!("{text:?}"),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => format!("the number {number}"),
        other => kind(other).to_owned(),
    };
    FileSharingError::Key { key, expected, found }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(inventory: Value) -> Result<Settings, String> {
        Settings::read(&inventory, Path::new("/srv/fabric")).map_err(|error| error.to_string())
    }

    #[test]
    fn an_inventory_without_keys_shares_the_default_folder_under_the_default_name() {
        let expected = Settings {
            service: ServiceName::parse("filesharing").expect("a name"),
            base_dir: PathBuf::from("/srv/fabric"),
            dotfiles: Vec::new(),
            uploads: None,
            jobs_max: 5,
            trusted_repositories: Vec::new(),
            remotes: Vec::new(),
        };
        assert_eq!(read(json!({})), Ok(expected.clone()));
        assert_eq!(read(json!({"extra": 1, "remotes": []})), Ok(expected.clone()));
        assert_eq!(read(Value::Null), Ok(expected));
    }

    #[test]
    fn a_relative_folder_is_below_the_default_one_and_an_absolute_one_is_itself() {
        let folder = |base_dir: &str| read(json!({"base_dir": base_dir})).map(|settings| settings.base_dir);
        assert_eq!(folder("shared/files"), Ok(PathBuf::from("/srv/fabric/shared/files")));
        assert_eq!(folder("/data"), Ok(PathBuf::from("/data")));
        let jobs = |inventory: Value| read(inventory).expect("read").jobs_max;
        let worker = norfab_protocol::worker::WorkerConfig::new(
            norfab_service::Identity::parse("w").expect("a name"),
            ServiceName::parse("s").expect("a name"),
        );
        assert_eq!(jobs(json!({})), worker.max_concurrent_jobs);
        assert_eq!(jobs(json!({"max_concurrent_jobs": 9})), 9);
        let trusted = read(json!({"trusted_repositories": ["/srv/git", "repositories"]})).expect("read");
        let expected = ["/srv/git", "/srv/fabric/repositories"].map(PathBuf::from);
        assert_eq!(trusted.trusted_repositories, expected);
    }

    #[test]
    fn values_that_cannot_be_are_refused_with_their_key() {
        let refused = |inventory: Value| read(inventory).expect_err("refused");
        assert_eq!(
            refused(json!([])),
            "the inventory of the worker is a list: it must be an object of keys and values"
        );
        assert_eq!(
            refused(json!({"base_dir": ""})),
            "inventory key 'base_dir': expected the path of a folder, found \"\""
        );
        assert_eq!(
            refused(json!({"base_dir": 7})),
            "inventory key 'base_dir': expected the path of a folder, found the number 7"
        );
        assert_eq!(refused(json!({"service": false})), "inventory key 'service': expected a string, found false");
        assert!(refused(json!({"service": ""})).starts_with("inventory key 'service': "));
        let remote = json!({"name": "r", "mount": "in/git", "url": "u", "branch": "main"});
        assert_eq!(
            refused(json!({"remotes": [remote], "uploads": {"folder": "in"}})),
            "inventory key 'uploads.folder': expected a folder apart from those of git remotes, found \"in\""
        );
        assert_eq!(
            refused(json!({"uploads": "in"})),
            "inventory key 'uploads': expected an object with the key 'folder', found \"in\""
        );
        assert_eq!(refused(json!({"remotes": {}})), "inventory key 'remotes': expected a list, found an object");
        assert_eq!(
            refused(json!({"trusted_repositories": "/srv/git"})),
            "inventory key 'trusted_repositories': expected a list of paths, found \"/srv/git\""
        );
        assert!(
            refused(json!({"trusted_repositories": [1]})).ends_with("expected paths of folders, found the number 1")
        );
    }
}
