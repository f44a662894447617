//! The repository in which the objects of a remote are kept: bare and shallow, as git has it.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use gix_hash::{Kind, ObjectId, oid};
use gix_object::Exists;
use gix_odb::store::init::Options as ReadOptions;
use gix_pack::Bundle;
use gix_pack::bundle::write::Options;
use gix_utils::progress::Discard;

use super::error::SyncError;
use super::halt::Halt;
use super::weight::Weighed;

/// Packs that gather, one for each time that something was new. More are fetched as one.
const PACKS_MAX: usize = 16;

/// Most bytes of one object. It is held in memory, and more than one are while a pack is resolved.
pub(crate) const OBJECT_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Bytes of a pack that are weighed at once.
const WEIGHED_BYTES: usize = 64 * 1024;

/// The repository of one remote below the worker's folder.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    git_dir: PathBuf,
}

impl Repository {
    pub(crate) fn new(git_dir: PathBuf) -> Self {
        Self { git_dir }
    }

    /// Makes it, or takes what is there if it is of the same URL and branch. What a process left that was killed is removed.
    /// `shown`: the URL without what is secret.
    pub(crate) fn prepare(&self, shown: &str, branch: &str) -> Result<(), SyncError> {
        let config = config(shown, branch);
        let known = fs::read_to_string(self.git_dir.join("config")).unwrap_or_default();
        if known != config {
            self.wipe()?;
        }
        for folder in [self.packs(), self.git_dir.join("objects/info"), self.git_dir.join("refs")] {
            fs::create_dir_all(folder).map_err(SyncError::disk("make the stored repository"))?;
        }
        let head = format!("ref: refs/heads/{branch}\n");
        self.write("HEAD", &head)?;
        self.write("config", &config)?;
        self.clean()
    }

    /// Removes all of it.
    pub(crate) fn wipe(&self) -> Result<(), SyncError> {
        match fs::remove_dir_all(&self.git_dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SyncError::disk("remove the stored repository")(error))
            }
            _ => Ok(()),
        }
    }

    /// What was fetched last.
    pub(crate) fn tip(&self) -> Option<ObjectId> {
        let text = fs::read_to_string(self.git_dir.join("shallow")).ok()?;
        ObjectId::from_hex(text.trim_end().as_bytes()).ok()
    }

    /// Whether so much has gathered that it is better fetched anew.
    pub(crate) fn is_crowded(&self) -> bool {
        let Ok(entries) = fs::read_dir(self.packs()) else { return false };
        let packs = entries.flatten().filter(|entry| entry.path().extension().is_some_and(|end| end == "pack"));
        packs.count() >= PACKS_MAX
    }

    /// Stores a pack. What it only tells the difference to is taken from here.
    pub(crate) fn store(&self, pack: &mut dyn BufRead, halt: &Halt) -> Result<(), SyncError> {
        let known = if self.tip().is_some() { Some(self.objects()?) } else { None };
        let options =
            Options { thread_limit: Some(1), alloc_limit_bytes: Some(OBJECT_BYTES_MAX), ..Options::default() };
        let there = known.clone();
        let is_known = |id: &oid| there.as_ref().is_some_and(|objects| objects.exists(id));
        let mut weighed = BufReader::with_capacity(WEIGHED_BYTES, Weighed::new(pack, &is_known));
        let stored = Bundle::write_to_directory(
            &mut weighed,
            Some(&self.packs()),
            &mut Discard,
            halt.flag(),
            known,
            Kind::Sha1,
            options,
        );
        let stored = match stored {
            Ok(stored) => stored,
            Err(_) if halt.is_halted() => return Err(SyncError::Halted),
            Err(error) => return Err(weighed.into_inner().refusal().unwrap_or_else(|| damaged(&error))),
        };
        if let Some(keep) = stored.keep_path {
            fs::remove_file(keep).map_err(SyncError::disk("write the stored repository"))?;
        }
        Ok(())
    }

    /// Reads objects of a repository on this host as its own.
    pub(crate) fn borrow_from(&self, objects: &Path) -> Result<(), SyncError> {
        let objects = std::path::absolute(objects).map_err(SyncError::disk("find the repository"))?;
        let mut line = objects.into_os_string().into_encoded_bytes();
        line.push(b'\n');
        self.write("objects/info/alternates", line)
    }

    /// Says what was fetched. Its history is not here.
    pub(crate) fn fetched(&self, tip: ObjectId, branch: &str) -> Result<(), SyncError> {
        self.write("shallow", format!("{tip}\n"))?;
        self.write("packed-refs", format!("{tip} refs/heads/{branch}\n"))
    }

    /// Opens it to read.
    pub(crate) fn objects(&self) -> Result<gix_odb::Handle, SyncError> {
        let options = ReadOptions { alloc_limit_bytes: Some(OBJECT_BYTES_MAX), ..ReadOptions::default() };
        gix_odb::at_opts(self.git_dir.join("objects"), Kind::Sha1, None, options)
            .map_err(SyncError::disk("read the stored repository"))
    }

    fn packs(&self) -> PathBuf {
        self.git_dir.join("objects/pack")
    }

    /// Whole or not at all.
    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<(), SyncError> {
        let path = self.git_dir.join(name);
        let partial = self.git_dir.join("partial");
        let written = fs::write(&partial, content).and_then(|()| fs::rename(&partial, path));
        written.map_err(SyncError::disk("write the stored repository"))
    }

    /// Removes packs that were not stored to their end.
    fn clean(&self) -> Result<(), SyncError> {
        let entries = fs::read_dir(self.packs()).map_err(SyncError::disk("read the stored repository"))?;
        for entry in entries.flatten() {
            let path = entry.path();
            let end = path.extension().and_then(|end| end.to_str());
            let whole = match end {
                Some("pack") => path.with_extension("idx").exists(),
                Some("idx") => path.with_extension("pack").exists(),
                _ => false,
            };
            if !whole {
                fs::remove_file(path).map_err(SyncError::disk("clean the stored repository"))?;
            }
        }
        Ok(())
    }
}

/// What the library says is wrong.
pub(crate) fn damaged(error: &impl std::fmt::Display) -> SyncError {
    SyncError::Damaged { problem: super::error::told(&error.to_string(), None) }
}

fn config(shown: &str, branch: &str) -> String {
    // In quotes, as git reads it.
    let quoted = shown.replace('\\', r"\\").replace('"', "\\\"");
    format!(
        "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[remote \"origin\"]\n\turl = \"{quoted}\"\n\tfetch = \
         +refs/heads/{branch}:refs/heads/{branch}\n"
    )
}
