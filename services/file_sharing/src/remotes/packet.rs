//! Git's packet lines: four hexadecimal digits of length, then the line.

use std::io::{self, BufRead, Read};

/// Longest line, its length included, as git has it.
const LINE_BYTES_MAX: usize = 65_520;

/// What was read is no packet.
#[derive(Debug, thiserror::Error)]
#[error("it answers with something else than git's protocol")]
pub(crate) struct NoPacket;

/// A line, or what stands between lines.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Line(Vec<u8>),
    /// The end of a message.
    Flush,
    /// The end of a part of a message.
    Delimiter,
    /// The end of a stateless answer.
    End,
}

impl Packet {
    /// Reads one. Errors: the stream ends, or holds no packet.
    pub(crate) fn read(reader: &mut (impl BufRead + ?Sized)) -> io::Result<Self> {
        let mut digits = [0; 4];
        reader.read_exact(&mut digits)?;
        let length = std::str::from_utf8(&digits).ok().and_then(|digits| usize::from_str_radix(digits, 16).ok());
        match length {
            Some(0) => Ok(Self::Flush),
            Some(1) => Ok(Self::Delimiter),
            Some(2) => Ok(Self::End),
            Some(length @ 4..=LINE_BYTES_MAX) => {
                let mut line = vec![0; length - 4];
                reader.read_exact(&mut line)?;
                Ok(Self::Line(line))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, NoPacket)),
        }
    }

    /// The text of a line without the newline at its end.
    pub(crate) fn text(&self) -> Option<String> {
        let Self::Line(line) = self else { return None };
        let text = String::from_utf8_lossy(line);
        Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }
}

/// Adds a line to a request. It is ours and short.
pub(crate) fn push_line(request: &mut Vec<u8>, line: &str) {
    request.extend_from_slice(format!("{:04x}{line}\n", line.len() + 5).as_bytes());
}

/// Ends a message.
pub(crate) fn push_flush(request: &mut Vec<u8>) {
    request.extend_from_slice(b"0000");
}

/// Ends the part of a message that names the command.
pub(crate) fn push_delimiter(request: &mut Vec<u8>) {
    request.extend_from_slice(b"0001");
}

/// The first of the bands that share the lines of an answer: the data. The others are progress and the last words of a
/// server that fails.
pub(crate) struct DataBand<'a> {
    lines: &'a mut dyn BufRead,
    line: Vec<u8>,
    position: usize,
    left: u64,
    over: bool,
    /// What the server said last.
    pub(crate) failure: Option<String>,
    /// More was sent than may be.
    pub(crate) too_large: bool,
    /// Why no further line could be read.
    pub(crate) broken: Option<io::Error>,
}

impl<'a> DataBand<'a> {
    /// Reads at most so many bytes of data.
    pub(crate) fn new(lines: &'a mut dyn BufRead, bytes_max: u64) -> Self {
        Self {
            lines,
            line: Vec::new(),
            position: 0,
            left: bytes_max,
            over: false,
            failure: None,
            too_large: false,
            broken: None,
        }
    }

    fn next_line(&mut self) -> io::Result<()> {
        while !self.over && self.position >= self.line.len() {
            let packet = match Packet::read(self.lines) {
                Ok(packet) => packet,
                Err(error) => {
                    let kind = error.kind();
                    self.broken = Some(error);
                    return Err(kind.into());
                }
            };
            match packet {
                Packet::Line(line) => match line.first() {
                    Some(1) => {
                        (self.line, self.position) = (line, 1);
                    }
                    Some(2) => {}
                    Some(3) => {
                        let text = String::from_utf8_lossy(&line[1..]).into_owned();
                        self.failure = Some(text);
                        return Err(io::Error::other("the server fails"));
                    }
                    _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without a band")),
                },
                Packet::Flush | Packet::End => self.over = true,
                Packet::Delimiter => {}
            }
        }
        Ok(())
    }
}

impl Read for DataBand<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.next_line()?;
        let ready = &self.line[self.position.min(self.line.len())..];
        let count = ready.len().min(buffer.len());
        if count as u64 > self.left {
            self.too_large = true;
            return Err(io::Error::other("too much data"));
        }
        buffer[..count].copy_from_slice(&ready[..count]);
        self.position += count;
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let mut request = Vec::new();
        push_line(&mut request, "command=ls-refs");
        push_delimiter(&mut request);
        push_flush(&mut request);
        assert_eq!(request, b"0014command=ls-refs\n00010000");
        let mut reader = request.as_slice();
        assert_eq!(Packet::read(&mut reader).expect("a line").text().as_deref(), Some("command=ls-refs"));
        assert_eq!(Packet::read(&mut reader).expect("read"), Packet::Delimiter);
        assert_eq!(Packet::read(&mut reader).expect("read"), Packet::Flush);
        for wrong in [&b"0003"[..], b"fff1", b"<htm", b"0010abc", b""] {
            assert!(Packet::read(&mut { wrong }).is_err());
        }
    }

    #[test]
    fn data_is_told_from_progress_and_bounded() {
        let answer = b"0007\x01ab000a\x02hello0006\x01c0000rest";
        let mut lines = &answer[..];
        let mut data = Vec::new();
        DataBand::new(&mut lines, 3).read_to_end(&mut data).expect("read");
        assert_eq!((data.as_slice(), lines), (&b"abc"[..], &b"rest"[..]));
        let mut lines = &answer[..];
        let mut band = DataBand::new(&mut lines, 2);
        assert!(band.read_to_end(&mut Vec::new()).is_err() && band.too_large);
        let mut lines = &b"0009\x03died"[..];
        let mut band = DataBand::new(&mut lines, 2);
        assert!(band.read_to_end(&mut Vec::new()).is_err());
        assert_eq!(band.failure.as_deref(), Some("died"));
    }
}
