//! Where an upload goes: a name in an open folder. Nothing on the way there is followed that is not a folder itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use norfab_files::part::is_part_name;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, fsync, mkdirat, openat, statat};
use rustix::io::Errno;

use super::refusal::UploadRefusal;
use super::settings::UploadSettings;
use crate::error::Refusal;
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
const DEVICES: [&str; 4] = ["con", "prn", "aux", "nul"];

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
        number.is_some_and(|number| number.len() == 1 && number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let is_drive = matches!(name.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic()) && name.len() == 2;
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

    /// Opens its folder. Those that are missing are made, where that is wanted. How many were made. Blocks.
    pub(crate) fn open_folder(&self, base_dir: &Path, makes: bool) -> Result<(OwnedFd, u64), UploadRefusal> {
        open(base_dir, &self.names[..self.names.len() - 1], makes)
    }

    /// Whether the way still leads to a folder that was opened. Blocks.
    pub(crate) fn leads_to(&self, base_dir: &Path, folder: &OwnedFd) -> bool {
        let is_it = |now: &OwnedFd| match (fstat(now), fstat(folder)) {
            (Ok(now), Ok(then)) => (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino),
            _ => false,
        };
        self.open_folder(base_dir, false).is_ok_and(|(now, _)| is_it(&now))
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

/// Opens a folder below the shared one, name by name. Blocks.
pub(crate) fn open(base_dir: &Path, names: &[String], makes: bool) -> Result<(OwnedFd, u64), UploadRefusal> {
    let url = || format!("nf://{}", names.join("/"));
    let unwritable = |errno| UploadRefusal::Unwritable { url: url(), errno };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The shared folder itself may be a link: its owner says where it is.
    let mut here = openat(CWD, base_dir, flags, Mode::empty()).map_err(unwritable)?;
    let mut made = 0;
    for name in names {
        let mut swaps = 0;
        here = loop {
            match openat(&here, name.as_str(), flags | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(folder) => break folder,
                Err(Errno::NOENT) if makes && swaps < SWAPS_MAX => {
                    swaps += 1;
                    match mkdirat(here.as_fd(), name.as_str(), Mode::from_raw_mode(0o755)) {
                        Ok(()) => {
                            made += 1;
                            // What is in it is only as safe as its own name.
                            fsync(&here).ok();
                        }
                        Err(Errno::EXIST) => {}
                        Err(errno) => return Err(unwritable(errno)),
                    }
                }
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    return Err(UploadRefusal::InTheWay { url: url(), name: name.clone() });
                }
                Err(errno) => return Err(unwritable(errno)),
            }
        };
    }
    Ok((here, made))
}
