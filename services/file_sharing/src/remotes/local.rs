//! A repository on this host, read where it is: no program and no copy is needed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gix_hash::ObjectId;
use rustix::fs::OFlags;

use super::error::SyncError;

/// Symbolic references that lead to one another, at most: git follows five.
const SYMBOLIC_MAX: usize = 5;

/// Most bytes of the small files of a repository: references, pointers, configuration.
const SMALL_BYTES_MAX: u64 = 1024 * 1024;

/// Longest line in the file of packed references, in bytes: a hash and the name of a reference.
const LINE_BYTES_MAX: u64 = 8192;

/// Most lines of that file, as many as a server may tell.
const LINES_MAX: usize = 2_000_000;

/// Whose repositories are read: those of this user and of the one who may do everything, as git has it, and those that are
/// listed. Others could be made so that reading them ends this process, or lead to what only this process can read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trust {
    listed: Vec<PathBuf>,
}

impl Trust {
    /// Also trusts what is in these places or below them.
    pub(crate) fn listing(places: &[PathBuf]) -> Self {
        Self { listed: places.to_vec() }
    }

    fn check(&self, place: &Path, shown: &str) -> Result<(), SyncError> {
        let unreadable =
            |error: io::Error| SyncError::Unreachable { url: shown.to_owned(), problem: error.to_string() };
        let owner = fs::metadata(place).map_err(unreadable)?.uid();
        if is_trusted(owner, rustix::process::geteuid().as_raw()) {
            return Ok(());
        }
        let real = fs::canonicalize(place).map_err(unreadable)?;
        let listed = self.listed.iter().filter_map(|listed| fs::canonicalize(listed).ok());
        if listed.into_iter().any(|listed| real.starts_with(listed)) {
            return Ok(());
        }
        Err(SyncError::ForeignOwner { url: shown.to_owned(), owner })
    }
}

fn is_trusted(owner: u32, user: u32) -> bool {
    owner == user || owner == 0
}

/// A repository on this host.
#[derive(Debug)]
pub(crate) struct LocalRepository {
    /// Where references are that belong to this working tree alone.
    git_dir: PathBuf,
    /// Where all else is.
    common_dir: PathBuf,
    shown: String,
}

impl LocalRepository {
    /// Finds the repository at a path: a bare one, or the one of a working tree. Errors: there is none, or it is of a kind that
    /// cannot be read, or belongs to another user.
    pub(crate) fn open(path: &Path, shown: String, trust: &Trust) -> Result<Self, SyncError> {
        let none = || SyncError::NoRepository { url: shown.clone() };
        let unreadable = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => none(),
            _ => SyncError::Unreachable { url: shown.clone(), problem: error.to_string() },
        };
        match fs::metadata(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unreadable(error)),
            // The end of its name may have been left out.
            _ => {}
        }
        let beside = PathBuf::from(format!("{}.git", path.display()));
        let mut git_dir = None;
        for candidate in [path.join(".git"), path.to_owned(), beside] {
            let real = match fs::metadata(&candidate) {
                Ok(found) if found.is_file() => {
                    trust.check(&candidate, &shown)?;
                    let pointer = small(&candidate).map_err(unreadable)?;
                    let Some(target) = pointer.strip_prefix("gitdir: ") else { continue };
                    path.join(target.trim_end())
                }
                Ok(_) => candidate,
                Err(_) => continue,
            };
            if real.join("HEAD").is_file() && (real.join("objects").is_dir() || real.join("commondir").is_file()) {
                git_dir = Some(real);
                break;
            }
        }
        let git_dir = git_dir.ok_or_else(none)?;
        trust.check(&git_dir, &shown)?;
        let common_dir = match small(&git_dir.join("commondir")) {
            Ok(common) => git_dir.join(common.trim_end()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => git_dir.clone(),
            Err(error) => return Err(unreadable(error)),
        };
        let repository = Self { git_dir, common_dir, shown: shown.clone() };
        // The folder of a working tree, too: whoever may write there may have put another repository into it.
        for place in [path, &repository.common_dir, &repository.objects()] {
            if place.exists() {
                trust.check(place, &shown)?;
            }
        }
        repository.check_format()?;
        Ok(repository)
    }

    /// The folder of its objects.
    pub(crate) fn objects(&self) -> PathBuf {
        self.common_dir.join("objects")
    }

    /// The commit, or the tag, that a branch is at. A tag is taken where there is no branch of the name.
    pub(crate) fn tip(&self, branch: &str) -> Result<ObjectId, SyncError> {
        for kind in ["heads", "tags"] {
            if let Some(id) = self.resolve(format!("refs/{kind}/{branch}"))? {
                return Ok(id);
            }
        }
        Err(SyncError::NoBranch { branch: branch.to_owned(), url: self.shown.clone() })
    }

    fn resolve(&self, mut name: String) -> Result<Option<ObjectId>, SyncError> {
        for _ in 0..=SYMBOLIC_MAX {
            let text = match self.loose(&name) {
                Some(text) => text,
                None => match self.packed(&name)? {
                    Some(id) => return Ok(Some(id)),
                    None => return Ok(None),
                },
            };
            match text.strip_prefix("ref: ") {
                Some(target) if target.starts_with("refs/") && !target.contains("..") => {
                    name = target.trim_end().to_owned()
                }
                Some(_) => break,
                None => match ObjectId::from_hex(text.trim_end().as_bytes()) {
                    Ok(id) => return Ok(Some(id)),
                    Err(_) => break,
                },
            }
        }
        let problem = format!("the reference {name} leads to no commit");
        Err(SyncError::Protocol { url: self.shown.clone(), problem })
    }

    fn loose(&self, name: &str) -> Option<String> {
        [&self.common_dir, &self.git_dir].into_iter().find_map(|dir| small(&dir.join(name)).ok())
    }

    fn packed(&self, name: &str) -> Result<Option<ObjectId>, SyncError> {
        let unreadable =
            |error: io::Error| SyncError::Unreachable { url: self.shown.clone(), problem: error.to_string() };
        let file = match open(&self.common_dir.join("packed-refs")) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        };
        let mut file = BufReader::new(file);
        let mut line = Vec::new();
        for _ in 0..LINES_MAX {
            line.clear();
            let read = (&mut file).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(unreadable)?;
            if read == 0 {
                return Ok(None);
            }
            if line.pop_if(|last| *last == b'\n').is_none() && read as u64 == LINE_BYTES_MAX {
                let problem = format!("its file packed-refs has a line of more than {LINE_BYTES_MAX} bytes");
                return Err(SyncError::Protocol { url: self.shown.clone(), problem });
            }
            if let Some((id, rest)) = line.split_at_checked(40)
                && rest.strip_prefix(b" ") == Some(name.as_bytes())
            {
                return Ok(ObjectId::from_hex(id).ok());
            }
        }
        Err(SyncError::TooLarge { bound: LINES_MAX as u64, what: "branches and tags" })
    }

    /// Refuses what would be misread: other hashes, and references in another form.
    fn check_format(&self) -> Result<(), SyncError> {
        let config = small(&self.common_dir.join("config")).unwrap_or_default().to_lowercase();
        let mut settings = config.lines().filter_map(|line| line.split_once('='));
        let is = |(key, value): (&str, &str), name: &str, wanted: &str| key.trim() == name && value.trim() == wanted;
        let problem = settings.find_map(|setting| {
            if is(setting, "objectformat", "sha256") {
                return Some("its objects are named by SHA-256");
            }
            is(setting, "refstorage", "reftable").then_some("its references are in a reftable")
        });
        match problem {
            Some(problem) => Err(SyncError::UnknownFormat { url: self.shown.clone(), problem }),
            None => Ok(()),
        }
    }
}

fn small(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.take(SMALL_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Opens a regular file. A pipe would make us wait for whoever may write to it.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags as i32).open(path)?;
    if !file.metadata()?.is_file() {
        let problem = format!("'{}' in it is no regular file", path.file_name().unwrap_or_default().display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_of_this_user_and_of_the_one_who_may_do_everything_are_trusted() {
        assert!(is_trusted(1000, 1000) && is_trusted(0, 1000) && is_trusted(0, 0));
        assert!(!is_trusted(1001, 1000) && !is_trusted(1000, 0));
    }
}
