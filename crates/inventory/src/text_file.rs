//! Reading a file of an inventory: bounded, as UTF-8, rendered, parsed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::error::InventoryError;
use crate::location::Source;
use crate::template::{self, Environment};
use crate::yaml::{self, Document, TEXT_BYTES_MAX};

/// A file after rendering and parsing.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) document: Document,
    pub(crate) source: Source,
}

/// Loads a template of YAML.
pub(crate) fn load(file: &Path, env: &Environment) -> Result<Loaded, InventoryError> {
    let text = read(file)?;
    let rendered = template::render(&text, file, env)?;
    let document = yaml::parse(&rendered.text, &rendered.source)?;
    Ok(Loaded { document, source: rendered.source })
}

/// The text of a file of at most [`TEXT_BYTES_MAX`].
pub(crate) fn read(file: &Path) -> Result<String, InventoryError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => InventoryError::NoSuchFile { file: file.to_path_buf() },
        _ => InventoryError::Read { file: file.to_path_buf(), source },
    };
    // Asked before opening: opening a pipe would wait for its writer.
    if !fs::metadata(file).map_err(failed)?.is_file() {
        return Err(InventoryError::NotAFile { file: file.to_path_buf() });
    }
    let mut bytes = Vec::new();
    let bytes_max = TEXT_BYTES_MAX as u64;
    File::open(file).map_err(failed)?.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(InventoryError::TooLarge { file: file.to_path_buf(), bytes_max: TEXT_BYTES_MAX });
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        InventoryError::NotUtf8 { location: Source::of_file(file).line(line) }
    })
}
