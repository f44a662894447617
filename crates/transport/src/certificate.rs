//! Certificate files as pyzmq writes and reads them, in the folders that the fabric uses:
//! `private_keys/NAME.key_secret` with both keys, `public_keys/NAME.key` with the public one.
//!
//! ```text
//! metadata
//! curve
//!     public-key = "<40 characters of Z85>"
//!     secret-key = "<40 characters of Z85>"
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::KeyError;
use crate::keys::{KeyPair, PublicKey, SecretKey};

/// The name of the broker's own key files and of everybody's copy of its public key.
pub const BROKER: &str = "broker";

/// Only the owner may read secret files, whatever the umask says.
const SECRET_MODE: u32 = 0o600;
/// Only the owner may look into the folder of secret files.
const SECRET_FOLDER_MODE: u32 = 0o700;
/// Everybody may read public files.
const PUBLIC_MODE: u32 = 0o644;
/// A certificate file has a few lines; whatever is longer is something else.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The key files of one role: `private_keys` and `public_keys` in a folder of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFolder {
    folder: PathBuf,
}

impl KeyFolder {
    /// The key files in a folder, such as `__norfab__/files/worker/NAME`. Touches nothing yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Where the two keys of this name are.
    #[must_use]
    pub fn secret_file(&self, name: &str) -> PathBuf {
        self.folder.join("private_keys").join(format!("{name}.key_secret"))
    }

    /// Where the public key of this name is.
    #[must_use]
    pub fn public_file(&self, name: &str) -> PathBuf {
        self.folder.join("public_keys").join(format!("{name}.key"))
    }

    /// The key pair of this name: read if there is one, else made and written. Two processes that make it at the same time get
    /// the same pair. Restores the public file if it is missing or differs, and takes access to a secret file from others.
    ///
    /// # Errors
    /// If a file cannot be read, written or understood, or its two keys do not belong together.
    pub fn load_or_create(&self, name: &str) -> Result<KeyPair, KeyError> {
        let secret_file = self.secret_file(name);
        check_name(name, &secret_file)?;
        let pair = match read_pair(&secret_file) {
            Ok(pair) => pair,
            Err(KeyError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
                let pair = KeyPair::generate();
                let text = certificate(&pair.public, Some(&pair.secret));
                if create(&secret_file, &text, SECRET_MODE, SECRET_FOLDER_MODE)? {
                    pair
                } else {
                    read_pair(&secret_file)?
                }
            }
            Err(error) => return Err(error),
        };
        self.keep_public(name, &pair.public)?;
        Ok(pair)
    }

    /// The broker's public key: from the folder of a broker on the same host (`__norfab__/files/broker`), else from the
    /// inventory, else from the copy of an earlier start: see [`KeyFolder::keep_broker_public_key`]. Writes nothing.
    ///
    /// # Errors
    /// If none of them has it, or a file cannot be read or understood.
    pub fn broker_public_key(&self, broker: &KeyFolder, from_inventory: Option<&str>) -> Result<PublicKey, KeyError> {
        Ok(match (read_if_there(&broker.public_file(BROKER))?, from_inventory) {
            (Some(key), _) => key,
            (None, Some(text)) => text.trim().parse()?,
            (None, None) => read_if_there(&self.public_file(BROKER))?
                .ok_or_else(|| KeyError::BrokerKeyUnknown { path: broker.public_file(BROKER) })?,
        })
    }

    /// Brings the copy of the broker's public key in this folder up to date. For a key that has worked: a wrong one would be taken for
    /// right later.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep_broker_public_key(&self, key: &PublicKey) -> Result<(), KeyError> {
        self.keep_public(BROKER, key)
    }

    /// Writes a public key unless the file has it.
    fn keep_public(&self, name: &str, key: &PublicKey) -> Result<(), KeyError> {
        let path = self.public_file(name);
        if read_public(&path).is_ok_and(|existing| existing == *key) {
            return Ok(());
        }
        replace(&path, &certificate(key, None), PUBLIC_MODE)
    }
}

/// Reads the public key of a certificate file, public or secret.
///
/// # Errors
/// Names the file, and the line if it cannot be understood.
pub fn read_public(path: &Path) -> Result<PublicKey, KeyError> {
    let text = read(path)?;
    let (line, key) =
        find(&text, "public-key").ok_or(KeyError::Missing { path: path.to_owned(), missing: "public-key" })?;
    key.parse().map_err(|error: KeyError| at(path, line, &error))
}

/// Reads both keys of a secret certificate file.
///
/// # Errors
/// Names the file, and the line if it cannot be understood; says if the keys do not belong together.
pub fn read_pair(path: &Path) -> Result<KeyPair, KeyError> {
    let public = read_public(path)?;
    let text = read(path)?;
    let (line, key) =
        find(&text, "secret-key").ok_or(KeyError::Missing { path: path.to_owned(), missing: "secret-key" })?;
    let secret = SecretKey::parse(key).map_err(|error| at(path, line, &error))?;
    if secret.public() != public {
        return Err(KeyError::Mismatch { path: path.to_owned() });
    }
    close_to_others(path);
    Ok(KeyPair { public, secret })
}

/// The value of a key in the text, and its line number. Comments, sections and other keys are passed over.
fn find<'text>(text: &'text str, wanted: &str) -> Option<(usize, &'text str)> {
    text.lines().zip(1..).find_map(|(line, number)| {
        // Only the first "=" separates: keys contain more of them.
        let (name, value) = line.split_once('=')?;
        // A comment starts with #, which no name does; within a value it is a character of the key.
        (name.trim() == wanted).then(|| (number, value.trim().trim_matches(['"', '\''])))
    })
}

fn certificate(public: &PublicKey, secret: Option<&SecretKey>) -> String {
    let mut text = String::new();
    text.push_str(match secret {
        Some(_) => "# CURVE key pair of NorFab. Keep this file to yourself: who has it can act in your name.\n",
        None => "# CURVE public key of NorFab. This file may be given to others.\n",
    });
    text.push_str(&format!("\nmetadata\ncurve\n    public-key = \"{public}\"\n"));
    if let Some(secret) = secret {
        text.push_str(&format!("    secret-key = \"{}\"\n", secret.reveal()));
    }
    text
}

fn read(path: &Path) -> Result<String, KeyError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|source| KeyError::File { path: path.to_owned(), action: "read", source })?;
    // Other encodings can only be in comments and metadata.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn read_if_there(path: &Path) -> Result<Option<PublicKey>, KeyError> {
    match read_public(path) {
        Ok(key) => Ok(Some(key)),
        Err(KeyError::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates a file that nobody else has created meanwhile; `false` if somebody has.
fn create(path: &Path, text: &str, mode: u32, folder_mode: u32) -> Result<bool, KeyError> {
    let temporary = write_beside(path, text, mode, folder_mode)?;
    // A link, unlike a rename, does not replace what is there. Some file systems have no links.
    let created = match fs::hard_link(&temporary, path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(_) => fs::rename(&temporary, path).map(|()| true),
    };
    // After a rename it is gone already.
    fs::remove_file(&temporary).ok();
    created.map_err(|source| KeyError::File { path: path.to_owned(), action: "create", source })
}

/// Writes a file so that readers see the old text or the new one.
fn replace(path: &Path, text: &str, mode: u32) -> Result<(), KeyError> {
    let temporary = write_beside(path, text, mode, 0o777)?;
    fs::rename(&temporary, path).map_err(|source| KeyError::File { path: path.to_owned(), action: "write", source })
}

/// Writes the text to a temporary file in the same folder, which is made if it is missing.
fn write_beside(path: &Path, text: &str, mode: u32, folder_mode: u32) -> Result<PathBuf, KeyError> {
    let failed = |path: &Path, action, source| KeyError::File { path: path.to_owned(), action, source };
    let folder = path.parent().unwrap_or(Path::new("."));
    if let Some(above) = folder.parent() {
        fs::create_dir_all(above).map_err(|source| failed(above, "create", source))?;
    }
    match DirBuilder::new().mode(folder_mode).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(source) => return Err(failed(folder, "create", source)),
    }
    let temporary = folder.join(format!(".{:x}-{:016x}.tmp", std::process::id(), fastrand::u64(..)));
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    if let Err(source) = write() {
        // The first error is the one to tell.
        fs::remove_file(&temporary).ok();
        return Err(failed(path, "write", source));
    }
    Ok(temporary)
}

/// Secret files that Python wrote are readable for everybody. Not being allowed to change that is no reason not to start.
fn close_to_others(path: &Path) {
    if fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0) {
        fs::set_permissions(path, fs::Permissions::from_mode(SECRET_MODE)).ok();
    }
}

/// Names come from inventories and must not lead out of the folder.
fn check_name(name: &str, path: &Path) -> Result<(), KeyError> {
    if name.is_empty() || name.contains(['/', '\0']) {
        let source =
            io::Error::new(ErrorKind::InvalidInput, "a name with \"/\" or without characters makes no file name");
        return Err(KeyError::File { path: path.to_owned(), action: "create", source });
    }
    Ok(())
}

fn at(path: &Path, line: usize, error: &KeyError) -> KeyError {
    KeyError::Certificate { path: path.to_owned(), line, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &str = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
    const SECRET: &str = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.key_secret");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn pair_is_made_once_and_read_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::new(folder.path().join("files/worker/nornir-1"));
        let pair = keys.load_or_create("nornir-1").unwrap();
        assert_eq!(keys.load_or_create("nornir-1").unwrap(), pair);
        assert_eq!(read_public(&keys.public_file("nornir-1")).unwrap(), pair.public);
        assert_eq!(fs::read_dir(keys.secret_file("x").parent().unwrap()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(keys.public_file("x").parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn secret_file_and_its_folder_are_closed_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::new(folder.path());
        keys.load_or_create("n").unwrap();
        let secret_file = keys.secret_file("n");
        assert_eq!(mode(&secret_file), 0o600);
        assert_eq!(mode(secret_file.parent().unwrap()), 0o700);
        fs::set_permissions(&secret_file, fs::Permissions::from_mode(0o644)).unwrap();
        keys.load_or_create("n").unwrap();
        assert_eq!(mode(&secret_file), 0o600);
    }

    #[test]
    fn processes_that_make_the_pair_at_the_same_time_agree() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::new(folder.path());
        let pairs: Vec<KeyPair> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| keys.load_or_create("n").unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(pairs.iter().all(|pair| *pair == pairs[0]));
    }

    #[test]
    fn missing_or_wrong_public_file_is_restored() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::new(folder.path());
        let pair = keys.load_or_create("n").unwrap();
        for text in ["", "public-key = \"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID\""] {
            fs::write(keys.public_file("n"), text).unwrap();
            keys.load_or_create("n").unwrap();
            assert_eq!(read_public(&keys.public_file("n")).unwrap(), pair.public);
        }
    }

    #[test]
    fn files_of_pyzmq_are_understood() {
        let (_folder, path) = written(&format!(
            "#   ****  Generated on 2025-01-01 00:00:00 by pyzmq  ****\n#   ZeroMQ CURVE **Secret** Certificate\n\
             #   DO NOT PROVIDE THIS FILE TO OTHER USERS nor change its permissions.\n\n\
             metadata\n    name = \"public-key\"\n    email = \"a=b\"\ncurve\n\
             \x20   public-key = \"{PUBLIC}\"\n    secret-key = \"{SECRET}\"\n"
        ));
        let pair = read_pair(&path).unwrap();
        assert_eq!(pair.public.to_string(), PUBLIC);
        assert_eq!(pair.secret.reveal(), SECRET);
        let (_folder, path) = written(&format!("curve\r\n\tpublic-key='{PUBLIC}'\r\n\tsecret-key={SECRET}\r\n"));
        assert_eq!(read_pair(&path).unwrap(), pair);
    }

    #[test]
    fn errors_name_file_and_line_and_no_secret() {
        let (_folder, path) = written("metadata\ncurve\n    public-key = \"short\"\n");
        let error = read_public(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}:3: \"short\" is not a CURVE key", path.display())), "{error}");

        let (_folder, path) = written(&format!("public-key = \"{PUBLIC}\"\nsecret-key = \"secret\"\n"));
        let error = read_pair(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}:2: \"***\" is not a CURVE key", path.display())), "{error}");

        let (_folder, path) = written(&format!("public-key = \"{PUBLIC}\"\n"));
        assert!(read_pair(&path).unwrap_err().to_string().ends_with("no secret-key in this certificate file"));
        let (_folder, path) = written("");
        assert!(read_public(&path).unwrap_err().to_string().ends_with("no public-key in this certificate file"));

        let other = KeyPair::generate();
        let (_folder, path) = written(&certificate(&other.public, Some(&SecretKey::parse(SECRET).unwrap())));
        let error = read_pair(&path).unwrap_err().to_string();
        assert!(error.contains("does not belong to the secret key"), "{error}");

        let error = read_public(Path::new("no/such.key")).unwrap_err().to_string();
        assert!(error.starts_with("no/such.key: cannot read: "), "{error}");
    }

    #[test]
    fn broken_secret_file_is_an_error_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::new(folder.path());
        keys.load_or_create("n").unwrap();
        fs::write(keys.secret_file("n"), "garbage").unwrap();
        keys.load_or_create("n").unwrap_err();
        assert_eq!(fs::read_to_string(keys.secret_file("n")).unwrap(), "garbage");
    }

    #[test]
    fn name_that_leads_elsewhere_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["", "../other", "a/b"] {
            KeyFolder::new(folder.path()).load_or_create(name).unwrap_err();
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn broker_key_comes_from_the_broker_folder_then_the_inventory_then_the_copy() {
        let folder = tempfile::tempdir().unwrap();
        let broker = KeyFolder::new(folder.path().join("broker"));
        let own = KeyFolder::new(folder.path().join("worker/w"));
        let error = own.broker_public_key(&broker, None).unwrap_err().to_string();
        assert!(error.contains("norfab broker-key"), "{error}");
        own.broker_public_key(&broker, Some("nonsense")).unwrap_err();

        let key = own.broker_public_key(&broker, Some(PUBLIC)).unwrap();
        assert_eq!(key.to_string(), PUBLIC);
        assert!(!own.public_file(BROKER).exists(), "nobody knows yet whether it is right");
        own.keep_broker_public_key(&key).unwrap();
        assert_eq!(read_public(&own.public_file(BROKER)).unwrap().to_string(), PUBLIC);
        assert_eq!(own.broker_public_key(&broker, None).unwrap().to_string(), PUBLIC);

        let pair = broker.load_or_create(BROKER).unwrap();
        assert_eq!(own.broker_public_key(&broker, Some(PUBLIC)).unwrap(), pair.public);
        own.keep_broker_public_key(&pair.public).unwrap();
        assert_eq!(read_public(&own.public_file(BROKER)).unwrap(), pair.public);
    }
}
