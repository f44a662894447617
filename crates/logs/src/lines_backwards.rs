//! Lines of a file from its end to its start, so that the newest records of a large log are found at once.

use std::io::{self, Read, Seek, SeekFrom};

/// Bytes of the first piece that is read: most questions are answered by it.
const FIRST_PIECE_BYTES: u64 = 16 * 1024;

/// Bytes of the largest piece: each is twice as large as the one before, until here.
const PIECE_BYTES_MAX: u64 = 256 * 1024;

/// Bytes of a line. The largest records of ours have a tenth of it; a file without line breaks must not fill the memory.
pub(crate) const LINE_BYTES_MAX: usize = 256 * 1024;

/// What [`LinesBackwards::next`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A line without its line break.
    Line(Vec<u8>),
    /// A line longer than [`LINE_BYTES_MAX`]: what it starts with is not known.
    TooLong,
    /// There is nothing before.
    Start,
    /// No more bytes may be read.
    BudgetSpent,
}

/// Reads lines from the end.
pub(crate) struct LinesBackwards<F> {
    file: F,
    /// Bytes before this are unread.
    unread: u64,
    /// What was read and not given yet, without the line break at its end.
    held: Vec<u8>,
    piece_bytes: u64,
    done: bool,
    too_long: bool,
}

impl<F: Read + Seek> LinesBackwards<F> {
    /// Reads the first `size` bytes of the file; what is appended meanwhile is left out.
    pub fn new(file: F, size: u64) -> Self {
        Self { file, unread: size, held: Vec::new(), piece_bytes: FIRST_PIECE_BYTES, done: size == 0, too_long: false }
    }

    /// The next line before the ones given. Takes what it reads from the budget, in bytes.
    ///
    /// # Errors
    /// The file could not be read, or became shorter.
    pub fn next(&mut self, budget: &mut u64) -> io::Result<Found> {
        loop {
            if let Some(at) = self.held.iter().rposition(|byte| *byte == b'\n') {
                let line = self.held.split_off(at + 1);
                self.held.truncate(at);
                return Ok(self.give(line));
            }
            if self.done {
                return Ok(Found::Start);
            }
            if self.unread == 0 {
                self.done = true;
                let line = std::mem::take(&mut self.held);
                return Ok(self.give(line));
            }
            if self.held.len() > LINE_BYTES_MAX {
                self.too_long = true;
                self.held.clear();
            }
            if *budget == 0 {
                return Ok(Found::BudgetSpent);
            }
            self.read_piece(budget)?;
        }
    }

    fn give(&mut self, line: Vec<u8>) -> Found {
        if std::mem::take(&mut self.too_long) || line.len() > LINE_BYTES_MAX {
            Found::TooLong
        } else {
            Found::Line(line)
        }
    }

    fn read_piece(&mut self, budget: &mut u64) -> io::Result<()> {
        let at_end = self.piece_bytes == FIRST_PIECE_BYTES;
        let length = self.piece_bytes.min(self.unread).min(*budget);
        self.unread -= length;
        *budget -= length;
        self.piece_bytes = (self.piece_bytes * 2).min(PIECE_BYTES_MAX);
        self.file.seek(SeekFrom::Start(self.unread))?;
        let mut piece = Vec::new();
        self.file.by_ref().take(length).read_to_end(&mut piece)?;
        if (piece.len() as u64) < length {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read"));
        }
        if at_end && piece.last() == Some(&b'\n') {
            piece.pop();
        }
        piece.append(&mut self.held);
        self.held = piece;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn all(bytes: &[u8]) -> Vec<Found> {
        let mut lines = LinesBackwards::new(Cursor::new(bytes), bytes.len() as u64);
        let mut budget = u64::MAX;
        let mut found = Vec::new();
        loop {
            match lines.next(&mut budget).unwrap() {
                Found::Start => return found,
                other => found.push(other),
            }
        }
    }

    fn lines(texts: &[&str]) -> Vec<Found> {
        texts.iter().map(|text| Found::Line(text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn lines_come_from_the_end_with_and_without_a_last_line_break() {
        assert_eq!(all(b""), []);
        assert_eq!(all(b"one"), lines(&["one"]));
        assert_eq!(all(b"one\ntwo\n"), lines(&["two", "one"]));
        assert_eq!(all(b"one\n\ntwo"), lines(&["two", "", "one"]));
        assert_eq!(all(b"\n"), lines(&[""]));
    }

    #[test]
    fn lines_of_every_length_survive_the_borders_of_the_pieces() {
        let mut texts: Vec<String> =
            (0..3_000).map(|number| format!("{number}:{}", "x".repeat(number % 500))).collect();
        texts.push("y".repeat(LINE_BYTES_MAX));
        texts.push("z".repeat(20_000));
        let whole = texts.join("\n") + "\n";
        let mut found = all(whole.as_bytes());
        found.reverse();
        assert_eq!(found, texts.iter().map(|text| Found::Line(text.as_bytes().to_vec())).collect::<Vec<_>>());
    }

    #[test]
    fn a_line_that_is_too_long_is_told_once_and_does_not_hide_its_neighbours() {
        let whole = format!("first\n{}\nlast\n", "x".repeat(3 * LINE_BYTES_MAX));
        let [first, last] = ["first", "last"].map(|text| Found::Line(text.as_bytes().to_vec()));
        assert_eq!(all(whole.as_bytes()), [last, Found::TooLong, first]);
    }

    #[test]
    fn reading_stops_where_the_budget_ends() {
        let whole = "line\n".repeat(10_000);
        let mut lines = LinesBackwards::new(Cursor::new(whole.as_bytes()), whole.len() as u64);
        let mut budget = 20_000;
        let mut given = 0;
        while lines.next(&mut budget).unwrap() != Found::BudgetSpent {
            given += 1;
        }
        assert_eq!((given, budget), (3_999, 0));
    }
}
