//! What is said to a git server: which commit a branch is at, and the objects of that commit alone.
//!
//! Versions 2, 1 and 0 of the protocol, as the server has it. Version 2 also asks for no more than what is new.

use std::io::{self, BufRead};

use gix_hash::ObjectId;

use super::error::{SyncError, told};
use super::packet::{DataBand, Packet, push_delimiter, push_flush, push_line};

/// Most bytes of a pack: what the disk of a worker should hold of one remote, compressed.
pub(crate) const PACK_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// Most lines of an advertisement or a list: the largest repositories have some hundred thousand branches and tags.
const LINES_MAX: usize = 2_000_000;

/// Who we say we are.
const AGENT: &str = concat!("agent=norfab/", env!("CARGO_PKG_VERSION"));

/// The way to a server.
pub(crate) trait Wire {
    /// Connects. What the server says first can be read then.
    fn greet(&mut self) -> Result<(), SyncError>;
    /// Sends a request. The answer can be read then.
    fn ask(&mut self, request: &[u8]) -> Result<(), SyncError>;
    /// What the server says.
    fn reader(&mut self) -> &mut dyn BufRead;
    /// Why reading failed.
    fn failed(&mut self, error: io::Error) -> SyncError;
    /// The URL, to be shown.
    fn url(&self) -> String;
    /// What must not be repeated.
    fn secret(&self) -> Option<String>;
}

enum Version {
    Two { shallow: bool },
    Older { features: Vec<String>, tips: Tips },
}

/// The commits of what has the name that is looked for.
#[derive(Default)]
struct Tips {
    branch: Option<ObjectId>,
    tag: Option<ObjectId>,
}

impl Tips {
    fn see(&mut self, branch: &str, id: &str, name: &str) {
        let Ok(id) = ObjectId::from_hex(id.as_bytes()) else { return };
        if name.strip_prefix("refs/heads/") == Some(branch) {
            self.branch = Some(id);
        } else if name.strip_prefix("refs/tags/") == Some(branch) {
            self.tag = Some(id);
        }
    }

    fn best(&self) -> Option<ObjectId> {
        self.branch.or(self.tag)
    }
}

/// A conversation with a server about one branch.
pub(crate) struct Session<'a> {
    wire: &'a mut dyn Wire,
    branch: &'a str,
    version: Version,
}

impl<'a> Session<'a> {
    /// Connects and hears which protocol the server speaks.
    pub(crate) fn begin(wire: &'a mut dyn Wire, branch: &'a str) -> Result<Self, SyncError> {
        wire.greet()?;
        let mut session = Self { wire, branch, version: Version::Two { shallow: false } };
        let mut first = session.packet()?;
        if first.text().is_some_and(|text| text.starts_with("# service=")) {
            session.packet()?;
            first = session.packet()?;
        }
        let mut lines = 0;
        session.version = match first.text() {
            Some(text) if text == "version 2" => {
                let mut shallow = false;
                while let Some(line) = session.line(&mut lines)? {
                    if line == "object-format=sha256" {
                        return Err(session.unknown("its objects are named by SHA-256"));
                    }
                    shallow |= line
                        .strip_prefix("fetch=")
                        .is_some_and(|features| features.split(' ').any(|feature| feature == "shallow"));
                }
                Version::Two { shallow }
            }
            _ => {
                if first.text().is_some_and(|text| text == "version 1") {
                    first = session.packet()?;
                }
                let mut features = Vec::new();
                let mut tips = Tips::default();
                let mut next = first.text();
                while let Some(text) = next {
                    let (reference, told) = text.split_once('\0').unwrap_or((&text, ""));
                    if !told.is_empty() {
                        features = told.split(' ').map(str::to_owned).collect();
                    }
                    let (id, name) = reference
                        .split_once(' ')
                        .ok_or_else(|| session.misunderstood("its first line is no list of branches"))?;
                    tips.see(branch, id, name);
                    next = session.line(&mut lines)?;
                }
                if features.iter().any(|feature| feature == "object-format=sha256") {
                    return Err(session.unknown("its objects are named by SHA-256"));
                }
                Version::Older { features, tips }
            }
        };
        Ok(session)
    }

    /// The commit, or the tag, that the branch is at. A tag is taken where there is no branch of the name.
    pub(crate) fn tip(&mut self) -> Result<ObjectId, SyncError> {
        let best = match &self.version {
            Version::Older { tips, .. } => tips.best(),
            Version::Two { .. } => {
                let mut request = Vec::new();
                for line in ["command=ls-refs", AGENT] {
                    push_line(&mut request, line);
                }
                push_delimiter(&mut request);
                for kind in ["heads", "tags"] {
                    push_line(&mut request, &format!("ref-prefix refs/{kind}/{}", self.branch));
                }
                push_flush(&mut request);
                self.wire.ask(&request)?;
                let mut tips = Tips::default();
                let mut lines = 0;
                while let Some(line) = self.line(&mut lines)? {
                    if let Some((id, name)) = line.split_once(' ') {
                        tips.see(self.branch, id, name.split(' ').next().unwrap_or(name));
                    }
                }
                tips.best()
            }
        };
        best.ok_or_else(|| SyncError::NoBranch { branch: self.branch.to_owned(), url: self.wire.url() })
    }

    /// Asks for the objects of a commit without its history, and gives the pack to `store`. `have`: a commit whose objects are
    /// here already.
    pub(crate) fn fetch<Stored>(
        &mut self,
        tip: ObjectId,
        have: Option<ObjectId>,
        store: impl FnOnce(&mut dyn BufRead) -> Result<Stored, SyncError>,
    ) -> Result<Stored, SyncError> {
        let mut request = Vec::new();
        match &self.version {
            Version::Two { shallow } => {
                for line in ["command=fetch", AGENT] {
                    push_line(&mut request, line);
                }
                push_delimiter(&mut request);
                for line in ["ofs-delta", "no-progress"] {
                    push_line(&mut request, line);
                }
                if *shallow {
                    if let Some(have) = have {
                        // Without the first, a server sends again what a shallow client has.
                        push_line(&mut request, "thin-pack");
                        push_line(&mut request, &format!("shallow {have}"));
                    }
                    push_line(&mut request, "deepen 1");
                }
                push_line(&mut request, &format!("want {tip}"));
                if let Some(have) = have {
                    push_line(&mut request, &format!("have {have}"));
                }
                push_line(&mut request, "done");
                push_flush(&mut request);
            }
            Version::Older { features, .. } => {
                let has = |feature: &str| features.iter().any(|known| known == feature);
                if !has("side-band-64k") {
                    return Err(self.misunderstood("it is too old: it has no side bands"));
                }
                let mut want = format!("want {tip} side-band-64k");
                for feature in ["ofs-delta", "no-progress", "shallow"] {
                    if has(feature) {
                        want.push(' ');
                        want.push_str(feature);
                    }
                }
                want.push(' ');
                want.push_str(AGENT);
                push_line(&mut request, &want);
                if has("shallow") {
                    push_line(&mut request, "deepen 1");
                }
                push_flush(&mut request);
                push_line(&mut request, "done");
            }
        }
        self.wire.ask(&request)?;
        self.skip_to_pack()?;
        let mut band = DataBand::new(self.wire.reader(), PACK_BYTES_MAX);
        let stored = store(&mut io::BufReader::new(&mut band));
        let (failure, too_large, broken) = (band.failure.take(), band.too_large, band.broken.take());
        match (stored, failure, broken) {
            (Ok(stored), ..) => Ok(stored),
            (Err(SyncError::Halted), ..) => Err(SyncError::Halted),
            (Err(_), ..) if too_large => Err(SyncError::TooLarge { bound: PACK_BYTES_MAX, what: "bytes" }),
            (Err(_), Some(text), _) => Err(self.said(&text)),
            // What broke off looks like a pack that is damaged.
            (Err(_), None, Some(error)) => Err(self.wire.failed(error)),
            (Err(error), None, None) => Err(error),
        }
    }

    /// Reads what an answer begins with: the border of the history, and what the server knows of what we have.
    fn skip_to_pack(&mut self) -> Result<(), SyncError> {
        for _ in 0..LINES_MAX {
            let packet = self.packet()?;
            let Some(line) = packet.text() else { continue };
            match &self.version {
                Version::Two { .. } if line == "packfile" => return Ok(()),
                Version::Older { .. } if line == "NAK" || line.starts_with("ACK ") => return Ok(()),
                _ => {}
            }
        }
        Err(self.misunderstood("its answer has no pack"))
    }

    /// The next line of a message; `None` at its end.
    fn line(&mut self, lines: &mut usize) -> Result<Option<String>, SyncError> {
        *lines += 1;
        if *lines > LINES_MAX {
            return Err(SyncError::TooLarge { bound: LINES_MAX as u64, what: "branches and tags" });
        }
        Ok(self.packet()?.text())
    }

    fn packet(&mut self) -> Result<Packet, SyncError> {
        let packet = match Packet::read(self.wire.reader()) {
            Ok(packet) => packet,
            Err(error) => return Err(self.wire.failed(error)),
        };
        match packet.text().as_deref().and_then(|text| text.strip_prefix("ERR ")) {
            Some(text) => Err(self.said(text)),
            None => Ok(packet),
        }
    }

    fn said(&self, text: &str) -> SyncError {
        let secret = self.wire.secret();
        SyncError::Told { url: self.wire.url(), told: told(text, secret.as_deref()) }
    }

    fn misunderstood(&self, problem: &str) -> SyncError {
        SyncError::Protocol { url: self.wire.url(), problem: problem.to_owned() }
    }

    fn unknown(&self, problem: &'static str) -> SyncError {
        SyncError::UnknownFormat { url: self.wire.url(), problem }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    /// A server that says what it was told to say, whatever it is asked.
    struct Said {
        reader: Cursor<Vec<u8>>,
        asked: Vec<u8>,
    }

    impl Said {
        fn new(said: &[u8]) -> Self {
            Self { reader: Cursor::new(said.to_vec()), asked: Vec::new() }
        }
    }

    impl Wire for Said {
        fn greet(&mut self) -> Result<(), SyncError> {
            Ok(())
        }

        fn ask(&mut self, request: &[u8]) -> Result<(), SyncError> {
            self.asked.extend_from_slice(request);
            Ok(())
        }

        fn reader(&mut self) -> &mut dyn BufRead {
            &mut self.reader
        }

        fn failed(&mut self, error: io::Error) -> SyncError {
            SyncError::Unreachable { url: self.url(), problem: error.to_string() }
        }

        fn url(&self) -> String {
            "url".to_owned()
        }

        fn secret(&self) -> Option<String> {
            Some("s3cret".to_owned())
        }
    }

    fn lines(lines: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for line in lines {
            match *line {
                "-" => push_flush(&mut bytes),
                "|" => push_delimiter(&mut bytes),
                line => push_line(&mut bytes, line),
            }
        }
        bytes
    }

    /// Asks for the pack of `main`.
    fn pack(said: &[u8], have: Option<ObjectId>) -> (Result<Vec<u8>, String>, String) {
        let mut wire = Said::new(said);
        let fetched = (|| {
            let mut session = Session::begin(&mut wire, "main")?;
            let tip = session.tip()?;
            session.fetch(tip, have, |pack| {
                let mut bytes = Vec::new();
                pack.read_to_end(&mut bytes).map_err(SyncError::disk("read"))?;
                Ok(bytes)
            })
        })();
        (fetched.map_err(|error| error.to_string()), String::from_utf8_lossy(&wire.asked).into_owned())
    }

    const ID: &str = "1111111111111111111111111111111111111111";
    const OTHER: &str = "2222222222222222222222222222222222222222";

    #[test]
    fn a_server_of_version_2_is_asked_for_one_commit_and_told_what_is_here() {
        let branch = format!("{ID} refs/heads/main");
        let longer = format!("{OTHER} refs/heads/main2");
        let tag = format!("{OTHER} refs/tags/main");
        let mut said = lines(&["version 2", "fetch=shallow filter", "-", &longer, &branch, &tag, "-"]);
        said.extend(lines(&["shallow-info", &format!("shallow {ID}"), "|", "packfile", "\u{2}busy", "\u{1}PACK", "-"]));
        let (fetched, asked) = pack(&said, ObjectId::from_hex(OTHER.as_bytes()).ok());
        assert_eq!(fetched.as_deref(), Ok(&b"PACK\n"[..]));
        for line in
            ["ref-prefix refs/heads/main", "thin-pack", &format!("want {ID}"), &format!("have {OTHER}"), "deepen 1"]
        {
            assert!(asked.contains(&format!("{line}\n")), "{line}: {asked}");
        }
    }

    #[test]
    fn an_older_server_tells_all_branches_first() {
        let first = format!("{OTHER} HEAD\0side-band-64k shallow ofs-delta");
        let branch = format!("{ID} refs/heads/main");
        let answer = [&format!("shallow {ID}"), "-", "NAK", "\u{1}PACK", "-"];
        for before in [&[][..], &["# service=git-upload-pack", "-"], &["version 1"]] {
            let mut said = lines(before);
            said.extend(lines(&[&first, &branch, "-"]));
            said.extend(lines(&answer));
            let (fetched, asked) = pack(&said, None);
            assert_eq!(fetched.as_deref(), Ok(&b"PACK\n"[..]), "{before:?}");
            assert!(asked.contains(&format!("want {ID} side-band-64k ofs-delta shallow agent=")), "{asked}");
        }
        let (fetched, _) = pack(&lines(&[&format!("{ID} refs/heads/main\0shallow"), "-"]), None);
        assert_eq!(fetched, Err("url was not understood: it is too old: it has no side bands".to_owned()));
    }

    #[test]
    fn what_a_server_refuses_is_told_without_the_secret() {
        let (fetched, _) = pack(&lines(&["ERR no access with s3cret"]), None);
        assert_eq!(fetched, Err("url said: no access with ***".to_owned()));
        let branch = format!("{ID} refs/heads/main");
        let said = lines(&["version 2", "-", &branch, "-", "packfile", "\u{3}out of s3cret memory"]);
        assert_eq!(pack(&said, None).0, Err("url said: out of *** memory".to_owned()));
        assert_eq!(pack(&lines(&["version 2", "-", "-"]), None).0, Err("branch 'main' not found in url".to_owned()));
        let other = lines(&["version 2", "object-format=sha256", "-"]);
        assert!(pack(&other, None).0.expect_err("refused").ends_with("its objects are named by SHA-256"));
    }

    proptest! {
        #[test]
        fn nothing_that_a_server_says_is_a_panic(said in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(pack(&said, None));
        }

        #[test]
        fn no_line_that_a_server_says_is_a_panic(
            said in prop::collection::vec(
                prop_oneof![
                    Just("-".to_owned()), Just("|".to_owned()), Just("version 2".to_owned()), Just("version 1".to_owned()),
                    Just("packfile".to_owned()), Just("NAK".to_owned()), Just(format!("{ID} refs/heads/main\0side-band-64k")),
                    Just(format!("{ID} refs/heads/main")), "[ -~\\x00-\\x03]{0,60}",
                ],
                0..12,
            ),
        ) {
            let said: Vec<&str> = said.iter().map(String::as_str).collect();
            drop(pack(&lines(&said), None));
        }
    }
}
