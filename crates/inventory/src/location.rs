//! Where in which file something stands, as errors and warnings name it.

use std::fmt;
use std::path::{Path, PathBuf};

/// A file and, where known, a line in it.
///
/// Files are templates: when rendering changed the number of lines, the line is one of the rendered text and
/// the location says so, because the reader would otherwise look at the wrong line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file as it was named by whoever loaded it; `inventory` for data that was never in a file.
    pub file: PathBuf,
    /// Counted from 1; `None` when only the file is known.
    pub line: Option<usize>,
    /// The line counts in the rendered text, which has another number of lines than the file.
    pub rendered: bool,
}

impl Location {
    /// The file as a whole.
    pub fn of_file(file: &Path) -> Self {
        Self { file: file.to_path_buf(), line: None, rendered: false }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.file.display())?;
        if self.rendered {
            formatter.write_str(" (rendered)")?;
        }
        match self.line {
            Some(line) => write!(formatter, ":{line}"),
            None => Ok(()),
        }
    }
}

/// A text to be parsed and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file that errors and warnings name.
    pub file: PathBuf,
    /// Whether rendering changed the number of lines.
    pub rendered: bool,
}

impl Source {
    /// A source whose lines are those of the file.
    pub fn of_file(file: &Path) -> Self {
        Self { file: file.to_path_buf(), rendered: false }
    }

    /// The location of `line`, counted from 1.
    pub fn line(&self, line: usize) -> Location {
        Location { file: self.file.clone(), line: Some(line), rendered: self.rendered }
    }

    /// The location of `line` where it is known, of the file otherwise.
    pub fn maybe_line(&self, line: Option<usize>) -> Location {
        Location { file: self.file.clone(), line, rendered: self.rendered && line.is_some() }
    }
}
