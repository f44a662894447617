//! A fresh environment: an inventory that works at once, with what most people add next as comments.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::InventoryError;
use crate::inventory::DOTENV_FILE;

const INVENTORY: &str = r##"# What this fabric consists of. `norfab up` in this folder starts what `topology` lists.
#
# The file is a Jinja2 template: "{{ env.NAME }}" becomes the environment variable NAME, which may also come from the
# .env file beside it, and "{{ env.get('NAME', 'value') }}" has a default. Relative paths count from this folder.

broker:
  # Where the broker listens and where workers and clients find it.
  endpoint: "tcp://127.0.0.1:5555"
  # All messages are encrypted. On another machine, paste the line that `norfab broker-key` prints here:
  # shared_key: '...'
  # Addresses that may connect; all of them unless listed:
  # ip_allowlist: ["127.0.0.1"]

topology:
  broker: true
  # The workers to start, in groups: one starts when those it depends on are ready. The built-in file sharing worker,
  # filesharing-worker-1, starts with the broker and need not be listed.
  workers: []
  #  - nornir-worker-1
  #  - fastapi-worker-1:
  #      depends_on: ["nornir-worker-1"]

# What each worker is told: files and mappings, merged in this order. Patterns such as nornir-* match many workers.
workers:
  # The folder that clients can fetch files from.
  filesharing-worker-1:
    - base_dir: files
  # A Python worker for network devices (pip install "norfab[nornirservice]", started with nfcli -w -wl nornir-worker-1):
  # nornir-*:
  #   - service: nornir
  #     runner: {plugin: RetryRunner}
  #     defaults:
  #       username: "{{ env.NETWORK_USERNAME }}"
  #       password: "{{ env.NETWORK_PASSWORD }}"
  # nornir-worker-1:
  #   - hosts:
  #       switch-1: {hostname: 192.0.2.1, platform: arista_eos}

# Level of the terminal and of the log files in __norfab__/logs:
# logging:
#   root: {level: INFO}
"##;

const DOTENV: &str = "\
# Variables for inventory.yaml and the files it names, one NAME=value a line. Keep this file out of version control.
# NETWORK_USERNAME=admin
# NETWORK_PASSWORD='a secret'
";

const SHARED_FILE: &str = "\
Files in this folder can be listed and fetched by every client of the fabric, for example with

    norfab files get nf://welcome.txt
";

/// The variables of an inventory are where passwords end up, so nobody else may read them.
#[cfg(unix)]
const DOTENV_MODE: u32 = 0o600;

/// The files of a new environment, below its folder.
const FILES: [(&str, &str); 3] = [("inventory.yaml", INVENTORY), (".env", DOTENV), ("files/welcome.txt", SHARED_FILE)];

/// Creates a fresh environment in `folder`, which is created if it does not exist. Returns the files written.
///
/// # Errors
///
/// [`InventoryError::Exists`] if one of the files exists, before anything is written, unless `force` allows to
/// overwrite; [`InventoryError::NotAFolder`]; [`InventoryError::Write`].
pub fn create_environment(folder: &Path, force: bool) -> Result<Vec<PathBuf>, InventoryError> {
    if folder.exists() && !folder.is_dir() {
        return Err(InventoryError::NotAFolder { folder: folder.to_path_buf() });
    }
    let files = FILES.map(|(name, text)| (folder.join(name), text));
    if !force && let Some((file, _)) = files.iter().find(|(file, _)| file.symlink_metadata().is_ok()) {
        return Err(InventoryError::Exists { file: file.clone() });
    }
    let mut written = Vec::new();
    for (file, text) in files {
        write(&file, text, force).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => InventoryError::Exists { file: file.clone() },
            _ => InventoryError::Write { file: file.clone(), source },
        })?;
        written.push(file);
    }
    Ok(written)
}

fn write(file: &Path, text: &str, force: bool) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        // Fails for a file that appeared in the meantime, too.
        options.create_new(true);
    }
    #[cfg(unix)]
    if file.file_name().is_some_and(|name| name == DOTENV_FILE) {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(DOTENV_MODE);
    }
    let mut opened = options.open(file)?;
    #[cfg(unix)]
    if file.file_name().is_some_and(|name| name == DOTENV_FILE) {
        use std::os::unix::fs::PermissionsExt;
        // One that was there keeps its mode otherwise.
        opened.set_permissions(fs::Permissions::from_mode(DOTENV_MODE))?;
    }
    opened.write_all(text.as_bytes())
}
