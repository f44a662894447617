//! One log file that is rotated like Python's RotatingFileHandler does it: `x.jsonl` is the newest, then `x.jsonl.1`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// When a file is rotated, and how many are kept. Either of them 0: never.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rotation {
    pub bytes_max: u64,
    pub backups: u32,
}

/// A file that is appended to; opened when there is something to write.
pub(crate) struct RotatingFile {
    path: PathBuf,
    rotation: Rotation,
    open: Option<Open>,
}

struct Open {
    file: File,
    size: u64,
}

impl RotatingFile {
    pub fn new(path: PathBuf, rotation: Rotation) -> Self {
        Self { path, rotation, open: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends lines, each with its line break, rotating between them where the limit asks for it.
    ///
    /// # Errors
    /// The lines from some point on were not written, and the last that was may be torn; the file is closed.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let result = self.append_lines(lines);
        if result.is_err() {
            self.close();
        }
        result
    }

    /// Gives the file handle back.
    pub fn close(&mut self) {
        self.open = None;
    }

    fn append_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        // Lines that go into the same file are written at once.
        let mut start = 0;
        let mut end = 0;
        let mut size = self.open()?.size;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let length = line.len() as u64;
            let rotates = self.rotation.bytes_max > 0 && self.rotation.backups > 0;
            if rotates && size > 0 && size + length >= self.rotation.bytes_max {
                self.write(&lines[start..end])?;
                start = end;
                self.rotate()?;
                size = self.open()?.size;
            }
            end += line.len();
            size += length;
        }
        self.write(&lines[start..end])
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let open = self.open()?;
        open.file.write_all(bytes)?;
        open.size += bytes.len() as u64;
        Ok(())
    }

    fn open(&mut self) -> io::Result<&mut Open> {
        if self.open.is_none() {
            let open = open_at_line_start(&self.path)?;
            self.open = Some(open);
        }
        Ok(self.open.as_mut().expect("opened above"))
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.close();
        // Another process may write the same file, and have rotated it just now.
        if fs::metadata(&self.path).map_or(0, |found| found.len()) == 0 {
            return Ok(());
        }
        for number in (1..self.rotation.backups).rev() {
            rename_if_there(&backup(&self.path, number), &backup(&self.path, number + 1))?;
        }
        rename_if_there(&self.path, &backup(&self.path, 1))
    }
}

/// The path of a rotated file; 1 is the newest.
pub(crate) fn backup(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Opens for appending. A torn last line, as a crash or a full disk leaves it, is ended first, so that it spoils no other.
fn open_at_line_start(path: &Path) -> io::Result<Open> {
    let options = || {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        options
    };
    let mut file = match options().open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            options().open(path)?
        }
        result => result?,
    };
    let mut size = file.metadata()?.len();
    if size > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            size += 1;
        }
    }
    Ok(Open { file, size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_newest_lines_are_in_the_file_and_the_oldest_leave_with_the_last_backup() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/worker-a.jsonl");
        let mut file = RotatingFile::new(path.clone(), Rotation { bytes_max: 10, backups: 2 });
        for batch in ["one\ntwo\n", "three\nfour\nfive\n", "six\nseven\n"] {
            file.append(batch.as_bytes()).unwrap();
        }
        // As Python does it: a line that would make the file as large as the limit goes into the next one.
        assert_eq!(text(&path), "seven\n");
        assert_eq!(text(&backup(&path, 1)), "five\nsix\n");
        assert_eq!(text(&backup(&path, 2)), "four\n");
        assert!(!backup(&path, 3).exists());
    }

    #[test]
    fn a_line_larger_than_the_limit_gets_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let mut file = RotatingFile::new(path.clone(), Rotation { bytes_max: 4, backups: 3 });
        file.append(b"large line\nx\n").unwrap();
        assert_eq!(text(&path), "x\n");
        assert_eq!(text(&backup(&path, 1)), "large line\n");
    }

    #[test]
    fn without_limit_or_backups_nothing_is_rotated() {
        for rotation in [Rotation { bytes_max: 0, backups: 3 }, Rotation { bytes_max: 3, backups: 0 }] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.jsonl");
            RotatingFile::new(path.clone(), rotation).append(b"one\ntwo\n").unwrap();
            assert_eq!(text(&path), "one\ntwo\n");
        }
    }

    #[test]
    fn a_torn_last_line_is_ended_before_the_next_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        fs::write(&path, "{\"ts\":\"20").unwrap();
        RotatingFile::new(path.clone(), Rotation { bytes_max: 0, backups: 0 }).append(b"whole\n").unwrap();
        assert_eq!(text(&path), "{\"ts\":\"20\nwhole\n");
    }

    #[test]
    fn a_second_writer_of_the_same_file_loses_nothing_by_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let rotation = Rotation { bytes_max: 40, backups: 100 };
        let mut writers = [(); 2].map(|()| RotatingFile::new(path.clone(), rotation));
        for number in 0..60 {
            writers[number % 2].append(format!("line {number}\n").as_bytes()).unwrap();
        }
        let mut seen: Vec<String> = (0..100)
            .map(|number| if number == 0 { path.clone() } else { backup(&path, number) })
            .filter(|path| path.exists())
            .flat_map(|path| text(&path).lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        seen.sort_by_key(|line| line[5..].parse::<u32>().unwrap());
        assert_eq!(seen, (0..60).map(|number| format!("line {number}")).collect::<Vec<_>>());
    }
}
