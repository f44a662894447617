//! One process for each folder.

use std::fs::File;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// The file that is locked. Its content does not matter.
const FILE_NAME: &str = "in-use";

/// The file that those have locked who wait for a folder.
const AWAITED_NAME: &str = "awaited";

/// Says as long as it exists that somebody waits for a folder.
pub struct Awaiting {
    _file: File,
}

/// Tells whoever has a folder that this process waits for it. Errors: as the system says.
pub fn await_folder(folder: &Path) -> std::io::Result<Awaiting> {
    let file = File::options().create(true).truncate(false).write(true).open(folder.join(AWAITED_NAME))?;
    // Nobody has it for longer than a look takes.
    flock(&file, FlockOperation::LockShared)?;
    Ok(Awaiting { _file: file })
}

/// Whether somebody waits for a folder. What cannot be looked at is awaited by nobody.
pub fn is_awaited(folder: &Path) -> bool {
    let Ok(file) = File::open(folder.join(AWAITED_NAME)) else { return false };
    flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Holds a folder as long as it exists; the system lets go of it when the process ends, however it ends.
pub struct FolderLock {
    _file: File,
}

/// Whether another process, or another role of this one, has a folder now. One that is missing is nobody's. It is looked at with a
/// shared lock, which is let go at once. Errors: as the system says.
pub fn is_locked(folder: &Path) -> std::io::Result<bool> {
    let file = match File::open(folder.join(FILE_NAME)) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Takes a folder, which is made if it is missing. `None`: another process has it. Errors: as the system says.
pub fn lock_folder(folder: &Path) -> std::io::Result<Option<FolderLock>> {
    std::fs::create_dir_all(folder)?;
    let file = File::options().create(true).truncate(false).write(true).open(folder.join(FILE_NAME))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(FolderLock { _file: file })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
