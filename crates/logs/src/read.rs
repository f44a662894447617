//! Reads log files, those of Python NorFab and ours, for `get_logs`.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::path::Path;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::level::Level;
use crate::lines_backwards::{self, LINE_BYTES_MAX, LinesBackwards};
use crate::record::{OWN_LOGGER, record_time};
use crate::role::{Role, file_name};
use crate::rotating_file::backup;
use crate::settings::BACKUPS_MAX;

/// Records that are given without a wish.
pub const LAST_DEFAULT: usize = 100;

/// Records that are given at most: with records of usual size an answer of 5 MB.
pub const LAST_MAX: usize = 10_000;

/// Bytes that are read for one question: all files that two roles keep, and less than a second of work.
pub const READ_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Files have their records in order of time but for the threads that overtook one another on the way to the writer.
/// Only the oldest records of an answer could be wrong ones if this is too short.
const DISORDER: SignedDuration = SignedDuration::from_millis(100);

/// Texts of local time are in order but for the hours in which the offset changes.
const OFFSET_CHANGE: SignedDuration = SignedDuration::from_hours(3);

/// Characters of a damaged line that its record shows.
const DAMAGED_CHARACTERS_SHOWN: usize = 200;

/// Which records to give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogQuery {
    /// So many of the newest, at most [`LAST_MAX`].
    pub last: usize,
    /// Records of exactly this level, in any case: `error`.
    pub level: Option<String>,
    /// Records with exactly this logger.
    pub logger: Option<String>,
    /// Records whose `ts` is this text or behind it in the order of texts: `2026-11-30T08`.
    pub since: Option<String>,
    /// Records whose `ts` is this text or before it in the order of texts.
    pub until: Option<String>,
    /// Files of this role.
    pub role: Option<Role>,
    /// Files of this name.
    pub name: Option<String>,
}

impl Default for LogQuery {
    fn default() -> Self {
        Self { last: LAST_DEFAULT, level: None, logger: None, since: None, until: None, role: None, name: None }
    }
}

impl LogQuery {
    fn matches(&self, record: &Map<String, Value>) -> bool {
        let text = |key: &str| record.get(key).and_then(Value::as_str).unwrap_or_default();
        self.level.as_ref().is_none_or(|level| text("level").eq_ignore_ascii_case(level))
            && self.logger.as_ref().is_none_or(|logger| text("logger") == logger)
            && self.since.as_ref().is_none_or(|since| text("ts") >= since.as_str())
            && self.until.as_ref().is_none_or(|until| text("ts") <= until.as_str())
    }
}

/// The newest records of a log folder that match, the oldest first; each with its file's name as `log_file`.
///
/// Files are read from their ends, and rotated ones only as far as they are needed. A damaged line becomes a record of
/// level ERROR, and so does a file that cannot be read. Where more than [`READ_BYTES_MAX`] would have to be read, the first
/// record says that older ones were not searched. No folder: no records.
///
/// This reads from the disk: not for an owner's loop.
pub fn read_logs(dir: &Path, query: &LogQuery) -> Vec<Value> {
    read_within(dir, query, READ_BYTES_MAX)
}

fn read_within(dir: &Path, query: &LogQuery, bytes_max: u64) -> Vec<Value> {
    let mut search = Search {
        query,
        wanted: query.last.min(LAST_MAX),
        newest: BinaryHeap::new(),
        budget: bytes_max,
        zone: TimeZone::system(),
    };
    let files = match files(dir, query) {
        Ok(files) => files,
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            let message = format!("cannot read the log folder {}: {error}", dir.display());
            return vec![Value::Object(search.own_record(Level::Error, None, "", &message))];
        }
    };
    let mut complete = true;
    for (rank, file) in files.iter().enumerate() {
        // What was written last before the oldest record found cannot add to them, nor can the files after it.
        if search.is_behind_all_found(file.modified) {
            break;
        }
        complete = search.read_file_and_backups(dir, rank, file);
        if !complete {
            break;
        }
    }
    search.finish(complete, bytes_max)
}

/// A log file with its backups.
struct LogFile {
    name: String,
    modified: Timestamp,
}

/// The log files that the query asks for, those first that were written last.
fn files(dir: &Path, query: &LogQuery) -> std::io::Result<Vec<LogFile>> {
    let mut names = BTreeSet::new();
    if let (Some(role), Some(name)) = (query.role, &query.name) {
        names.insert(file_name(role, name));
    } else {
        for entry in fs::read_dir(dir)? {
            let entry = entry?.file_name();
            let Some(text) = entry.to_str() else { continue };
            // Of a file that is being rotated only the backups are there.
            let base = match text.rsplit_once('.') {
                Some((base, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => base,
                _ => text,
            };
            let role_fits = query.role.is_none_or(|role| base.starts_with(&format!("{}-", role.as_str())));
            let is_of = |name: &str| Role::ALL.into_iter().any(|role| file_name(role, name) == base);
            let name_fits = query.name.as_ref().is_none_or(|name| is_of(name));
            if base.ends_with(".jsonl") && role_fits && name_fits {
                names.insert(base.to_owned());
            }
        }
    }
    let mut files: Vec<LogFile> = names
        .into_iter()
        .map(|name| {
            let path = dir.join(&name);
            let metadata = fs::metadata(&path).or_else(|_| fs::metadata(backup(&path, 1)));
            LogFile { name, modified: metadata.map_or(Timestamp::MIN, |metadata| modified(&metadata)) }
        })
        .collect();
    files.sort_by_key(|file| Reverse(file.modified));
    Ok(files)
}

fn modified(metadata: &Metadata) -> Timestamp {
    metadata.modified().ok().and_then(|time| Timestamp::try_from(time).ok()).unwrap_or(Timestamp::MIN)
}

/// A record that matches, ordered by time; then by file, and in it by place.
struct Match {
    order: (Timestamp, usize, Reverse<usize>),
    record: Map<String, Value>,
}

impl PartialEq for Match {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Match {}

impl PartialOrd for Match {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Match {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

struct Search<'a> {
    query: &'a LogQuery,
    wanted: usize,
    /// The newest so far; the oldest of them on top.
    newest: BinaryHeap<Reverse<Match>>,
    budget: u64,
    zone: TimeZone,
}

/// How far one role's files were read.
struct Progress {
    rank: usize,
    /// Lines from the end.
    place: usize,
    /// Time of the record behind the one that is read: what a damaged line gets.
    at: Timestamp,
    /// Time of the newest record before the `since` of the query.
    before_since: Option<Timestamp>,
}

impl Search<'_> {
    fn is_behind_all_found(&self, at: Timestamp) -> bool {
        let oldest = self.newest.peek().map(|Reverse(found)| found.order.0);
        self.newest.len() >= self.wanted
            && oldest.is_none_or(|oldest| at < oldest.saturating_sub(DISORDER).unwrap_or(Timestamp::MIN))
    }

    fn push(&mut self, progress: &Progress, record: Map<String, Value>) {
        let order = (progress.at, progress.rank, Reverse(progress.place));
        self.newest.push(Reverse(Match { order, record }));
        if self.newest.len() > self.wanted {
            self.newest.pop();
        }
    }

    /// False: the bytes that may be read were not enough.
    fn read_file_and_backups(&mut self, dir: &Path, rank: usize, file: &LogFile) -> bool {
        let base = dir.join(&file.name);
        let mut progress = Progress { rank, place: 0, at: file.modified, before_since: None };
        // A rotation while we read gives a file we have read a new name.
        let mut seen = BTreeSet::new();
        for number in 0..=BACKUPS_MAX + 1 {
            let (path, name) = match number {
                0 => (base.clone(), file.name.clone()),
                number => (backup(&base, number), format!("{}.{number}", file.name)),
            };
            let opened = File::open(&path).and_then(|file| file.metadata().map(|metadata| (file, metadata)));
            let (opened, metadata) = match opened {
                Ok(opened) => opened,
                Err(error) if error.kind() == ErrorKind::NotFound && number == 0 => continue,
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                Err(error) => {
                    self.push_unreadable(&progress, &name, &error);
                    break;
                }
            };
            if !seen.insert(identity(&metadata, number)) {
                continue;
            }
            let mut lines = LinesBackwards::new(opened, metadata.len());
            loop {
                let line = match lines.next(&mut self.budget) {
                    Ok(lines_backwards::Found::Line(line)) => line,
                    Ok(lines_backwards::Found::TooLong) => {
                        self.take(&mut progress, &name, Err(format!("longer than {LINE_BYTES_MAX} bytes")));
                        continue;
                    }
                    Ok(lines_backwards::Found::Start) => break,
                    Ok(lines_backwards::Found::BudgetSpent) => return false,
                    Err(error) => {
                        self.push_unreadable(&progress, &name, &error);
                        break;
                    }
                };
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                let parsed = serde_json::from_slice::<Map<String, Value>>(&line).map_err(|_| beginning(&line));
                if !self.take(&mut progress, &name, parsed) {
                    return true;
                }
            }
        }
        true
    }

    /// Takes a line, or what there is to say of a damaged one. False: lines before it do not matter.
    fn take(&mut self, progress: &mut Progress, file: &str, parsed: Result<Map<String, Value>, String>) -> bool {
        progress.place += 1;
        let mut record = match parsed {
            Ok(record) => record,
            Err(what) => {
                let message = format!("damaged log line: {what}");
                self.own_record(Level::Error, Some(progress.at), file, &message)
            }
        };
        let text = record.get("ts").and_then(Value::as_str).unwrap_or_default();
        progress.at = text.parse().unwrap_or(progress.at);
        if self.is_behind_all_found(progress.at) {
            return false;
        }
        if self.query.since.as_ref().is_some_and(|since| text < since.as_str()) {
            let newest = *progress.before_since.get_or_insert(progress.at);
            if progress.at < newest.saturating_sub(OFFSET_CHANGE).unwrap_or(Timestamp::MIN) {
                return false;
            }
        }
        if self.query.matches(&record) {
            record.insert("log_file".to_owned(), Value::from(file));
            self.push(progress, record);
        }
        true
    }

    fn push_unreadable(&mut self, progress: &Progress, file: &str, error: &std::io::Error) {
        let message = format!("cannot read the log file {file}: {error}");
        let record = self.own_record(Level::Error, Some(progress.at), file, &message);
        self.push(progress, record);
    }

    /// A record that is in no file, with the keys of those that are.
    fn own_record(&self, level: Level, at: Option<Timestamp>, file: &str, message: &str) -> Map<String, Value> {
        let ts = at.filter(|at| *at > Timestamp::MIN).map(|at| record_time(at, &self.zone)).unwrap_or_default();
        let (role, name) = file.split_once(".jsonl").map_or(file, |(stem, _)| stem).split_once('-').unwrap_or_default();
        let record = json!({
            "ts": ts, "level": level.as_str(), "logger": OWN_LOGGER, "message": message, "pid": std::process::id(),
            "processName": "norfab", "threadName": "", "role": role, "name": name, "module": "read", "function": "",
            "line": 0, "filename": "", "log_file": file,
        });
        match record {
            Value::Object(record) => record,
            _ => Map::new(),
        }
    }

    fn finish(self, complete: bool, bytes_max: u64) -> Vec<Value> {
        let mut records: Vec<Value> = Vec::with_capacity(self.newest.len() + 1);
        if !complete && self.newest.len() < self.wanted {
            let message = format!("older records were not searched: {bytes_max} bytes were read already, ask for less");
            records.push(Value::Object(self.own_record(Level::Warning, None, "", &message)));
        }
        let found = self.newest.into_sorted_vec();
        // Sorted by what is reversed: the newest are first.
        records.extend(found.into_iter().rev().map(|Reverse(found)| Value::Object(found.record)));
        records
    }
}

/// What a file is, whatever it is called.
#[cfg(unix)]
fn identity(metadata: &Metadata, _: u32) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// What a file is: nothing tells it apart from its name here.
#[cfg(not(unix))]
fn identity(_: &Metadata, number: u32) -> (u64, u64) {
    (0, u64::from(number))
}

/// What a damaged line begins with.
fn beginning(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut shown: String = text.chars().take(DAMAGED_CHARACTERS_SHOWN).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as Python NorFab writes them, one a second, from the given second on.
    fn python_lines(logger: &str, name: &str, seconds: std::ops::Range<u32>) -> String {
        seconds
            .map(|second| {
                let level = if second % 10 == 0 { "ERROR" } else { "INFO" };
                let (minute, rest) = (second / 60, second % 60);
                format!(
                    "{{\"ts\": \"2026-11-30T01:{minute:02}:{rest:02}.305880+00:00\", \"level\": \"{level}\", \"logger\": \
                     \"{logger}\", \"message\": \"{name} {second}\", \"pid\": 10479, \"processName\": \"Process-3\", \
                     \"threadName\": \"MainThread\", \"role\": \"worker\", \"name\": \"{name}\", \"module\": \"worker\", \
                     \"function\": \"recv\", \"line\": 1765, \"filename\": \"worker.py\"}}\n"
                )
            })
            .collect()
    }

    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
        write("worker-a.jsonl.2", python_lines("norfab.core.worker", "a", 0..100));
        write("worker-a.jsonl.1", python_lines("norfab.core.worker", "a", 100..200));
        write("worker-a.jsonl", python_lines("norfab.core.worker", "a", 200..300));
        write("worker-b.jsonl", python_lines("norfab.workers.b", "b", 250..260));
        write("broker-NFPBroker.jsonl", python_lines("norfab.core.broker", "NFPBroker", 298..299));
        write("notes.txt", "no log".to_owned());
        dir
    }

    fn messages(records: &[Value]) -> Vec<&str> {
        records.iter().map(|record| record["message"].as_str().unwrap()).collect()
    }

    fn of_worker_a() -> LogQuery {
        LogQuery { role: Some(Role::Worker), name: Some("a".to_owned()), ..LogQuery::default() }
    }

    #[test]
    fn the_newest_records_of_a_role_come_in_order_of_time_with_their_file() {
        let dir = folder();
        let records = read_logs(dir.path(), &LogQuery { last: 102, ..of_worker_a() });
        assert_eq!(records.len(), 102);
        assert_eq!(messages(&records)[..3], ["a 198", "a 199", "a 200"]);
        assert_eq!(messages(&records)[101], "a 299");
        assert_eq!(records[0]["log_file"], "worker-a.jsonl.1");
        assert_eq!(records[101]["log_file"], "worker-a.jsonl");
        let keys: Vec<&str> = records[0].as_object().unwrap().keys().map(String::as_str).collect();
        let expected =
            "ts level logger message pid processName threadName role name module function line filename log_file";
        assert_eq!(keys.join(" "), expected);
        assert_eq!(read_logs(dir.path(), &of_worker_a()).len(), 100);
        assert_eq!(read_logs(dir.path(), &LogQuery { last: 9_000, ..of_worker_a() }).len(), 300);
        assert_eq!(read_logs(dir.path(), &LogQuery { last: 0, ..of_worker_a() }), Vec::<Value>::new());
    }

    #[test]
    fn records_of_all_roles_are_merged_by_time() {
        let dir = folder();
        let records = read_logs(dir.path(), &LogQuery { last: 3, ..LogQuery::default() });
        let mut seen = messages(&records);
        // Two records have the same time.
        seen[..2].sort();
        assert_eq!(seen, ["NFPBroker 298", "a 298", "a 299"]);
        let workers = read_logs(dir.path(), &LogQuery { last: 93, role: Some(Role::Worker), ..LogQuery::default() });
        let of_b = workers.iter().filter(|record| record["name"] == "b").count();
        assert_eq!((workers.len(), of_b), (93, 10));
        let by_name = LogQuery { name: Some("b".to_owned()), ..LogQuery::default() };
        assert_eq!(read_logs(dir.path(), &by_name).len(), 10);
    }

    #[test]
    fn filters_are_pythons() {
        let dir = folder();
        let count = |query: LogQuery| read_logs(dir.path(), &LogQuery { last: 9_000, ..query }).len();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(count(LogQuery { level: text("error"), ..of_worker_a() }), 30);
        assert_eq!(count(LogQuery { level: text("WARNING"), ..of_worker_a() }), 0);
        assert_eq!(count(LogQuery { logger: text("norfab.core.worker"), ..LogQuery::default() }), 300);
        assert_eq!(count(LogQuery { logger: text("norfab.core"), ..LogQuery::default() }), 0);
        assert_eq!(count(LogQuery { since: text("2000"), until: text("2100"), ..of_worker_a() }), 300);
        assert_eq!(count(LogQuery { since: text("2026-11-30T01:04:00"), ..of_worker_a() }), 60);
        assert_eq!(count(LogQuery { until: text("2026-11-30T01:00:10"), ..of_worker_a() }), 10);
        let exactly = text("2026-11-30T01:02:00.305880+00:00");
        assert_eq!(count(LogQuery { since: exactly.clone(), until: exactly, ..of_worker_a() }), 1);
    }

    #[test]
    fn damaged_lines_become_error_records_at_their_place() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = python_lines("l", "a", 0..1).into_bytes();
        bytes.extend_from_slice(b"{\"ts\": \"2026-11-3\n\xff\xfe\n\n[1]\n");
        bytes.extend_from_slice("x".repeat(500).as_bytes());
        bytes.push(b'\n');
        bytes.extend_from_slice(python_lines("l", "a", 1..2).as_bytes());
        bytes.extend_from_slice(b"{\"ts\": \"torn");
        fs::write(dir.path().join("worker-a.jsonl"), bytes).unwrap();
        let records = read_logs(dir.path(), &of_worker_a());
        let seen = messages(&records);
        assert_eq!(seen.len(), 7);
        assert_eq!((seen[0], seen[5]), ("a 0", "a 1"));
        assert_eq!(seen[1], "damaged log line: {\"ts\": \"2026-11-3");
        assert_eq!(seen[2], "damaged log line: \u{fffd}\u{fffd}");
        assert!(seen[4].len() < 300 && seen[4].ends_with("xxx..."));
        assert_eq!(seen[6], "damaged log line: {\"ts\": \"torn");
        for damaged in [1, 2, 3, 4, 6] {
            let record = &records[damaged];
            assert_eq!((&record["level"], &record["log_file"]), (&json!("ERROR"), &json!("worker-a.jsonl")));
            assert_eq!((&record["role"], &record["name"]), (&json!("worker"), &json!("a")));
            assert!(!record["ts"].as_str().unwrap().is_empty());
        }
        let errors = LogQuery { level: Some("ERROR".to_owned()), ..of_worker_a() };
        assert_eq!(read_logs(dir.path(), &errors).len(), 6);
    }

    #[test]
    fn no_folder_or_an_unreadable_one_is_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_logs(&dir.path().join("none"), &LogQuery::default()).is_empty());
        assert!(read_logs(dir.path(), &of_worker_a()).is_empty());
        fs::write(dir.path().join("file"), "").unwrap();
        let records = read_logs(&dir.path().join("file"), &LogQuery::default());
        assert!(messages(&records)[0].starts_with("cannot read the log folder"));
        fs::create_dir(dir.path().join("worker-a.jsonl")).unwrap();
        let records = read_logs(dir.path(), &of_worker_a());
        assert!(messages(&records)[0].starts_with("cannot read the log file worker-a.jsonl: "), "{records:?}");
    }

    #[test]
    fn a_question_that_needs_too_many_bytes_is_answered_in_part_and_says_so() {
        let dir = folder();
        let records = read_within(dir.path(), &LogQuery { last: 9_000, ..of_worker_a() }, 40_000);
        assert!(messages(&records)[0].starts_with("older records were not searched: 40000 bytes"));
        assert!(records.len() > 100 && records.len() < 200, "{}", records.len());
        assert_eq!(messages(&records).last(), Some(&"a 299"));
        // What was asked for is there: nothing to say.
        let records = read_within(dir.path(), &LogQuery { last: 5, ..of_worker_a() }, 40_000);
        assert_eq!(messages(&records)[0], "a 295");
    }

    #[test]
    fn old_backups_are_not_opened_when_the_question_is_answered_before() {
        let dir = folder();
        // Opening this would give an error record.
        fs::remove_file(dir.path().join("worker-a.jsonl.2")).unwrap();
        fs::create_dir(dir.path().join("worker-a.jsonl.2")).unwrap();
        let since = Some("2026-11-30T01:03:00".to_owned());
        for query in [LogQuery { last: 150, ..of_worker_a() }, LogQuery { last: 90, since, ..of_worker_a() }] {
            let records = read_logs(dir.path(), &query);
            assert_eq!(records.len(), query.last);
            assert!(records.iter().all(|record| record["logger"] == "norfab.core.worker"));
        }
    }
}
