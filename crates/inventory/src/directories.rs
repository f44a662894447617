//! Where the parts of a fabric keep their files: the folders that NorFab uses, so that both find each other's.

use std::path::{Path, PathBuf};

use crate::error::InventoryError;

/// Longest name in bytes. File systems allow 255; a log file adds `worker-` and `.jsonl.30` to the name.
const NAME_BYTES_MAX: usize = 200;

/// The folders below one base folder. Nothing is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    base_dir: PathBuf,
}

impl Directories {
    /// The folders below `base_dir`.
    pub fn new(base_dir: &Path) -> Self {
        Self { base_dir: base_dir.to_path_buf() }
    }

    /// The base folder itself.
    pub fn base_dir(&self) -> &Path {
        &self.base_dir
    }

    /// `__norfab__/files`.
    pub fn files(&self) -> PathBuf {
        self.base_dir.join("__norfab__").join("files")
    }

    /// `__norfab__/logs`.
    pub fn logs(&self) -> PathBuf {
        self.base_dir.join("__norfab__").join("logs")
    }

    /// `__norfab__/files/broker`.
    pub fn broker(&self) -> PathBuf {
        self.files().join("broker")
    }

    /// `__norfab__/files/worker/NAME`.
    ///
    /// # Errors
    ///
    /// [`InventoryError::NameIsNoFolder`], as for every name here.
    pub fn worker(&self, name: &str) -> Result<PathBuf, InventoryError> {
        Ok(self.files().join("worker").join(folder_name(name)?))
    }

    /// `__norfab__/files/client/NAME`.
    ///
    /// # Errors
    ///
    /// As [`worker`](Self::worker).
    pub fn client(&self, name: &str) -> Result<PathBuf, InventoryError> {
        Ok(self.files().join("client").join(folder_name(name)?))
    }

    /// `__norfab__/files/client/NAME/fetchedfiles`.
    ///
    /// # Errors
    ///
    /// As [`worker`](Self::worker).
    pub fn fetched_files(&self, client: &str) -> Result<PathBuf, InventoryError> {
        Ok(self.client(client)?.join("fetchedfiles"))
    }
}

/// The folder of secret certificates below the folder of a broker, worker or client.
pub fn private_keys(of: &Path) -> PathBuf {
    of.join("private_keys")
}

/// The folder of public certificates below the folder of a broker, worker or client.
pub fn public_keys(of: &Path) -> PathBuf {
    of.join("public_keys")
}

/// The name, if it can be one component of a path on every system.
fn folder_name(name: &str) -> Result<&str, InventoryError> {
    let refuse =
        |reason| Err(InventoryError::NameIsNoFolder { name: name.chars().take(NAME_BYTES_MAX).collect(), reason });
    if name.is_empty() {
        return refuse("it is empty");
    }
    if name.len() > NAME_BYTES_MAX {
        return refuse("it is longer than 200 bytes");
    }
    if matches!(name, "." | "..") {
        return refuse("it names another folder");
    }
    if name.contains(|character: char| matches!(character, '/' | '\\') || character.is_control()) {
        return refuse("it has a slash, a backslash or a control character");
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_norfab() {
        let directories = Directories::new(Path::new("/lab"));
        let shown = |path: PathBuf| path.to_string_lossy().replace('\\', "/");
        assert_eq!(shown(directories.broker()), "/lab/__norfab__/files/broker");
        assert_eq!(shown(private_keys(&directories.broker())), "/lab/__norfab__/files/broker/private_keys");
        assert_eq!(
            shown(directories.worker("nornir-worker-1").unwrap()),
            "/lab/__norfab__/files/worker/nornir-worker-1"
        );
        assert_eq!(shown(directories.fetched_files("c 1").unwrap()), "/lab/__norfab__/files/client/c 1/fetchedfiles");
        assert_eq!(shown(directories.logs()), "/lab/__norfab__/logs");
    }

    #[test]
    fn a_name_that_leaves_its_folder_is_refused() {
        let directories = Directories::new(Path::new("/lab"));
        for name in ["", ".", "..", "a/b", "../x", "a\\b", "a\0b", "a\nb", "/etc", &"x".repeat(201)] {
            assert!(directories.worker(name).is_err(), "{name:?}");
            assert!(directories.client(name).is_err(), "{name:?}");
        }
        for name in ["a", "...", ".a", "ünï", "a b", "w-1"] {
            assert!(directories.worker(name).is_ok(), "{name:?}");
        }
    }
}
