//! Where an upload goes: a name in an open folder. Nothing on the way there is followed that is not a folder itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use norfab_files::part::{is_part_name, sync_folder};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::refusal::UploadRefusal;
use super::settings::UploadSettings;
use crate::error::Refusal;
use crate::folder::may_be_short_form;
use crate::hidden::Hidden;
use crate::url::SharedPath;

/// Folders between the upload folder and a file in it. Nobody nests deeper on purpose, and folders stay where an upload does not come to
/// its end.
pub const UPLOAD_LEVELS_MAX: usize = 16;

/// The longest name that file systems take.
const NAME_BYTES_MAX: usize = 255;

/// How often a folder on the way is opened anew that others make and remove meanwhile.
const SWAPS_MAX: usize = 16;

/// Names that Windows takes for devices, whatever follows them behind a dot.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];

/// Where a file goes, below the shared folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    names: Vec<String>,
}

/// Whether a file or folder may have this name: it is one name, it would be served, other systems can have it, and it is not how files
/// are called that are not whole.
pub(crate) fn is_fit(name: &str, hidden: &Hidden) -> bool {
    let base = name.split('.').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    let numbered = |device: &str| {
        let number = base.strip_prefix(device);
        number.is_some_and(|number| {
            matches!(number, "\u{b9}" | "\u{b2}" | "\u{b3}") || matches!(number.as_bytes(), [b'0'..=b'9'])
        })
    };
    let is_drive = matches!(name.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    !(name.is_empty()
        || name.len() > NAME_BYTES_MAX
        || name.ends_with(['.', ' '])
        || name.contains(['/', '\\'])
        || name.chars().any(char::is_control)
        || is_drive
        || DEVICES.contains(&base.as_str())
        || numbered("com")
        || numbered("lpt")
        || is_part_name(name.as_bytes())
        // It may be another name of what is hidden or there: nobody asks the file system, which may know it under both.
        || may_be_short_form(name.as_bytes())
        || hidden.is(name.as_bytes()))
}

impl Place {
    /// Where a URL says. Errors: it is not below the upload folder, or has a name that no upload may have.
    pub(crate) fn of(url: &str, settings: &UploadSettings, hidden: &Hidden) -> Result<Self, UploadRefusal> {
        let names = SharedPath::parse(url)?.names;
        let inner = names.strip_prefix(settings.folder.as_slice()).filter(|inner| !inner.is_empty());
        let Some(inner) = inner else {
            let climbs = names.iter().any(|name| name == "..");
            return Err(match climbs {
                true => Refusal::Path { url: url.to_owned() }.into(),
                false => UploadRefusal::Outside { url: url.to_owned(), folder: settings.url() },
            });
        };
        if inner.iter().any(|name| name == "..") {
            return Err(Refusal::Path { url: url.to_owned() }.into());
        }
        // A slash at the end means a folder: what is uploaded is a file.
        if url.ends_with(['/', '\\']) {
            return Err(UploadRefusal::NoName { url: url.to_owned() });
        }
        if let Some(name) = inner.iter().find(|name| !is_fit(name, hidden)) {
            return Err(UploadRefusal::Name { url: url.to_owned(), name: name.clone() });
        }
        if inner.len() > UPLOAD_LEVELS_MAX + 1 {
            return Err(UploadRefusal::TooDeep { url: url.to_owned(), levels: UPLOAD_LEVELS_MAX });
        }
        Ok(Self { names })
    }

    /// Its name in its folder.
    pub(crate) fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.names.last().map_or(b"", |name| name.as_bytes()))
    }

    /// How a client names it.
    pub(crate) fn url(&self) -> String {
        format!("nf://{}", self.names.join("/"))
    }

    /// Opens its folder, or the last one on the way to it that is there. Blocks.
    pub(crate) fn open_folder(&self, base_dir: &Path) -> Result<Opened, UploadRefusal> {
        open(base_dir, &self.names[..self.names.len() - 1])
    }

    /// Makes the folders that were missing. Blocks.
    pub(crate) fn make_folders(&self, opened: Opened) -> Result<(OwnedFd, Made), UploadRefusal> {
        make(opened, &self.names[..self.names.len() - 1])
    }

    /// Whether the way still leads to a folder that was opened. Blocks.
    pub(crate) fn leads_to(&self, base_dir: &Path, folder: &OwnedFd) -> bool {
        let is_it = |now: &OwnedFd| match (fstat(now), fstat(folder)) {
            (Ok(now), Ok(then)) => (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino),
            _ => false,
        };
        self.open_folder(base_dir).is_ok_and(|opened| opened.missing == 0 && is_it(&opened.folder))
    }

    /// What is there already. Errors: something that is no regular file.
    pub(crate) fn present(&self, folder: &OwnedFd) -> Result<Option<Stat>, UploadRefusal> {
        match statat(folder, self.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => Ok(Some(stat)),
            Ok(_) => Err(UploadRefusal::NoFile { url: self.url() }),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(UploadRefusal::Unwritable { url: self.url(), errno }),
        }
    }

    /// Opens the file that is there for reading.
    pub(crate) fn read(&self, folder: &OwnedFd) -> Result<std::fs::File, UploadRefusal> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(folder, self.name(), flags, Mode::empty());
        let file = file.map_err(|errno| UploadRefusal::Unwritable { url: self.url(), errno })?;
        match fstat(&file) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => Ok(file.into()),
            _ => Err(UploadRefusal::NoFile { url: self.url() }),
        }
    }
}

/// A folder, or the last one on the way to it that is there.
pub(crate) struct Opened {
    pub(crate) folder: OwnedFd,
    /// How many behind it are not there.
    pub(crate) missing: usize,
}

/// Folders that were made, to be removed where nothing came into them.
#[derive(Default)]
pub(crate) struct Made {
    /// In what, and how they are called there; the outermost first.
    folders: Vec<(OwnedFd, String)>,
}

impl Made {
    /// Removes those that are empty, the innermost first. How many were. Blocks.
    pub(crate) fn remove(&mut self) -> u64 {
        let mut removed = 0;
        while let Some((parent, name)) = self.folders.pop() {
            if unlinkat(&parent, name.as_str(), AtFlags::REMOVEDIR).is_err() {
                // Others have put something there: what is around it stays, too.
                self.folders.clear();
                break;
            }
            removed += 1;
        }
        removed
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.folders.len() as u64
    }

    /// They stay.
    pub(crate) fn stay(&mut self) {
        self.folders.clear();
    }
}

const FOLDER_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn url(names: &[String]) -> String {
    format!("nf://{}", names.join("/"))
}

/// Opens a folder below the shared one, name by name, as far as it is there. Blocks.
fn open(base_dir: &Path, names: &[String]) -> Result<Opened, UploadRefusal> {
    // The shared folder itself may be a link: its owner says where it is.
    let here = openat(CWD, base_dir, FOLDER_FLAGS, Mode::empty());
    let mut here = here.map_err(|errno| UploadRefusal::Unwritable { url: url(names), errno })?;
    for (number, name) in names.iter().enumerate() {
        match enter(&here, name, names)? {
            Some(folder) => here = folder,
            None => return Ok(Opened { folder: here, missing: names.len() - number }),
        }
    }
    Ok(Opened { folder: here, missing: 0 })
}

/// Opens a folder in a folder. `None`: it is not there.
fn enter(here: &OwnedFd, name: &str, names: &[String]) -> Result<Option<OwnedFd>, UploadRefusal> {
    match openat(here, name, FOLDER_FLAGS | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(folder) => Ok(Some(folder)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::NOTDIR) => Err(UploadRefusal::InTheWay { url: url(names), name: name.to_owned() }),
        Err(errno) => Err(UploadRefusal::Unwritable { url: url(names), errno }),
    }
}

/// Makes what is missing. Blocks. Errors: what had been made is gone again.
fn make(opened: Opened, names: &[String]) -> Result<(OwnedFd, Made), UploadRefusal> {
    let Opened { folder: mut here, missing } = opened;
    let mut made = Made::default();
    for name in &names[names.len() - missing..] {
        match make_one(&here, name, names, &mut made) {
            Ok(folder) => here = folder,
            Err(refusal) => {
                made.remove();
                return Err(refusal);
            }
        }
    }
    Ok((here, made))
}

fn make_one(here: &OwnedFd, name: &str, names: &[String], made: &mut Made) -> Result<OwnedFd, UploadRefusal> {
    let unwritable = |errno| UploadRefusal::Unwritable { url: url(names), errno };
    for _ in 0..SWAPS_MAX {
        match mkdirat(here.as_fd(), name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                made.folders.push((here.try_clone().map_err(|error| unwritten(error, names))?, name.to_owned()));
                // What is in it is only as safe as its own name.
                sync_folder(here.as_fd()).map_err(unwritable)?;
            }
            Err(Errno::EXIST) => {}
            // What it is to be in was empty, and whoever had made it has removed it.
            Err(Errno::NOENT) => return Err(UploadRefusal::Moved { url: url(names) }),
            Err(errno) => return Err(unwritable(errno)),
        }
        if let Some(folder) = enter(here, name, names)? {
            return Ok(folder);
        }
    }
    Err(UploadRefusal::Moved { url: url(names) })
}

fn unwritten(error: std::io::Error, names: &[String]) -> UploadRefusal {
    UploadRefusal::Unwritable { url: url(names), errno: Errno::from_io_error(&error).unwrap_or(Errno::IO) }
}

/// The upload folder itself. It is made where it is missing: it is no client's. Blocks.
pub(crate) fn root(base_dir: &Path, settings: &UploadSettings) -> Result<OwnedFd, UploadRefusal> {
    let (folder, mut made) = make(open(base_dir, &settings.folder)?, &settings.folder)?;
    made.stay();
    Ok(folder)
}
