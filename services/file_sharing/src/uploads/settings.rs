//! Where uploads are allowed, and how much: the key `uploads` of a worker's inventory.
//!
//! | key | what | default |
//! |---|---|---|
//! | `folder` | the folder below the shared one into which clients may upload; created if it is missing | |
//! | `max_file_bytes` | bytes of one file | 4 GiB |
//! | `max_total_bytes` | bytes of all that is in the folder, with what is not whole yet | 16 GiB |
//! | `max_files` | files and folders in it | 10,000 |
//! | `overwrite` | whether clients may replace files that are there | false |

use serde_json::{Map, Value};

use super::place;
use crate::error::FileSharingError;
use crate::hidden::Hidden;
use crate::inventory::wrong;
use crate::remotes::definition::MountPath;

/// Bytes of one file where the inventory does not say.
pub const FILE_BYTES_DEFAULT: u64 = 4 << 30;

/// Bytes of all files where the inventory does not say.
pub const TOTAL_BYTES_DEFAULT: u64 = 16 << 30;

/// Files and folders where the inventory does not say.
pub const FILES_DEFAULT: u64 = 10_000;

/// Most files and folders that the inventory can allow: they are counted one by one.
pub const FILES_MAX: u64 = 1_000_000;

/// Where uploads are allowed, and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadSettings {
    /// The names that lead to the folder.
    pub(crate) folder: Vec<String>,
    pub(crate) file_bytes_max: u64,
    pub(crate) total_bytes_max: u64,
    pub(crate) files_max: u64,
    pub(crate) overwrite: bool,
}

impl UploadSettings {
    /// Errors: a key has a value that cannot be, or there is no such key.
    pub(crate) fn read(uploads: &Map<String, Value>, hidden: &Hidden) -> Result<Self, FileSharingError> {
        let known = ["folder", "max_file_bytes", "max_total_bytes", "max_files", "overwrite"];
        if let Some(key) = uploads.keys().find(|key| !known.contains(&key.as_str())) {
            let expected = "folder, max_file_bytes, max_total_bytes, max_files and overwrite";
            return Err(wrong("uploads", expected, &Value::String(key.clone())));
        }
        let folder = uploads.get("folder").unwrap_or(&Value::Null);
        let names = folder.as_str().and_then(|path| names(path, hidden));
        let expected = "the path of a folder below the shared one, such as incoming";
        let folder = names.ok_or_else(|| wrong("uploads.folder", expected, folder))?;
        let overwrite = match uploads.get("overwrite") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(overwrite)) => *overwrite,
            Some(other) => return Err(wrong("uploads.overwrite", "true or false", other)),
        };
        let number = |key: &str, full: &'static str, default: u64, max: u64| match uploads.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => {
                let number = value.as_u64().filter(|number| (1..=max).contains(number));
                number.ok_or_else(|| wrong(full, "a positive whole number", value))
            }
        };
        Ok(Self {
            folder,
            file_bytes_max: number("max_file_bytes", "uploads.max_file_bytes", FILE_BYTES_DEFAULT, u64::MAX)?,
            total_bytes_max: number("max_total_bytes", "uploads.max_total_bytes", TOTAL_BYTES_DEFAULT, u64::MAX)?,
            files_max: number("max_files", "uploads.max_files", FILES_DEFAULT, FILES_MAX)?,
            overwrite,
        })
    }

    /// The folder, as git remotes name theirs.
    pub(crate) fn mount(&self) -> Option<MountPath> {
        MountPath::parse(&self.folder.join("/")).ok()
    }

    /// The URL of the folder.
    pub(crate) fn url(&self) -> String {
        format!("nf://{}/", self.folder.join("/"))
    }
}

/// The names on the way to the folder. `None`: it is not a path below the shared folder in which files are served.
fn names(path: &str, hidden: &Hidden) -> Option<Vec<String>> {
    let inner = path.strip_prefix("./").unwrap_or(path);
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    let names: Vec<String> = inner.split('/').map(str::to_owned).collect();
    names.iter().all(|name| place::is_fit(name, hidden)).then_some(names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(uploads: Value) -> Result<UploadSettings, String> {
        let uploads = uploads.as_object().expect("an object");
        UploadSettings::read(uploads, &Hidden::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_is_enough_and_everything_else_has_a_bound() {
        let settings = read(json!({"folder": "./in/coming/"})).expect("settings");
        assert_eq!((settings.folder.join("/"), settings.url()), ("in/coming".to_owned(), "nf://in/coming/".to_owned()));
        assert_eq!((settings.file_bytes_max, settings.total_bytes_max), (FILE_BYTES_DEFAULT, TOTAL_BYTES_DEFAULT));
        assert_eq!((settings.files_max, settings.overwrite), (FILES_DEFAULT, false));
        let settings = read(json!({"folder": "in", "max_file_bytes": 5, "max_files": 2, "overwrite": true}));
        let settings = settings.expect("settings");
        assert_eq!((settings.file_bytes_max, settings.files_max, settings.overwrite), (5, 2, true));
    }

    #[test]
    fn a_folder_that_is_not_below_the_shared_one_or_not_served_is_refused() {
        for folder in
            ["", ".", "/", "/in", "..", "../in", "in/../..", "in//x", "__norfab__", "in/.git", ".in", "in\\x", "a\0"]
        {
            let error = read(json!({"folder": folder})).expect_err(folder);
            assert!(error.starts_with("inventory key 'uploads.folder': expected the path of a folder"), "{error}");
        }
        for uploads in [json!({}), json!({"folder": null}), json!({"folder": 7})] {
            read(uploads).expect_err("refused");
        }
    }

    #[test]
    fn keys_that_are_not_known_and_numbers_that_cannot_be_are_refused() {
        let refused = |uploads: Value| read(uploads).expect_err("refused");
        assert_eq!(
            refused(json!({"folder": "in", "max_bytes": 5})),
            "inventory key 'uploads': expected folder, max_file_bytes, max_total_bytes, max_files and overwrite, found \"max_bytes\""
        );
        for (key, value) in [("max_files", json!(0)), ("max_file_bytes", json!(-1)), ("max_total_bytes", json!("1G"))] {
            let error = refused(json!({"folder": "in", key: value}));
            assert!(error.starts_with(&format!("inventory key 'uploads.{key}': expected a positive whole number")));
        }
        assert!(refused(json!({"folder": "in", "overwrite": 1})).contains("uploads.overwrite"));
    }
}
