//! The thread that owns the log files: one per role, opened when there is something to write.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::level::Level;
use crate::queue::{Output, QUEUE_RECORDS_MAX, Queue};
use crate::record::Record;
use crate::role::Owner;
use crate::rotating_file::{RotatingFile, Rotation};

/// How long a file that could not be written is left alone: a full disk is not full for long once somebody was told, and
/// an attempt costs little.
pub(crate) const RETRY_INTERVAL: SignedDuration = SignedDuration::from_secs(30);

/// Log files that are held open: a process of hundreds of workers keeps its descriptors for sockets and databases.
const OPEN_FILES_MAX: usize = 64;

/// What the writer of files is given.
pub(crate) struct FileWriterConfig {
    pub dir: PathBuf,
    pub rotation: Rotation,
    pub zone: TimeZone,
    pub wall_clock: fn() -> SystemTime,
    /// Where it complains about a disk that does not take the records.
    pub terminal: Option<Queue>,
}

pub(crate) struct FileWriter {
    config: FileWriterConfig,
    sinks: Vec<Sink>,
    index: HashMap<String, usize>,
    dirty: Vec<usize>,
    /// Sinks whose file is open, in no order.
    open: Vec<usize>,
    flushes: u64,
    /// Sinks that could not be written. There is one complaint for all of them, until all are well again.
    troubled: usize,
    complained: bool,
}

struct Sink {
    owner: Arc<Owner>,
    file: RotatingFile,
    pending: Vec<u8>,
    pending_records: u64,
    /// Records that were not written since the file failed.
    missed: u64,
    failed_at: Option<Timestamp>,
    last_used: u64,
}

impl FileWriter {
    pub fn new(config: FileWriterConfig) -> Self {
        Self {
            config,
            sinks: Vec::new(),
            index: HashMap::new(),
            dirty: Vec::new(),
            open: Vec::new(),
            flushes: 0,
            troubled: 0,
            complained: false,
        }
    }

    fn sink(&mut self, owner: &Arc<Owner>) -> usize {
        if let Some(index) = self.index.get(&owner.file_name) {
            return *index;
        }
        let file = RotatingFile::new(self.config.dir.join(&owner.file_name), self.config.rotation);
        self.sinks.push(Sink {
            owner: Arc::clone(owner),
            file,
            pending: Vec::new(),
            pending_records: 0,
            missed: 0,
            failed_at: None,
            last_used: 0,
        });
        self.index.insert(owner.file_name.clone(), self.sinks.len() - 1);
        self.sinks.len() - 1
    }

    fn write_out(&mut self, index: usize) {
        self.flushes += 1;
        let sink = &mut self.sinks[index];
        sink.last_used = self.flushes;
        // The buffer is given back: hundreds of idle workers hold none.
        let pending = std::mem::take(&mut sink.pending);
        let records = std::mem::take(&mut sink.pending_records);
        match sink.file.append(&pending) {
            Ok(()) => {
                sink.missed = 0;
                if sink.failed_at.take().is_some() {
                    self.troubled -= 1;
                    self.complained = self.complained && self.troubled > 0;
                }
                self.hold_open(index);
            }
            Err(error) => {
                sink.missed += records;
                self.open.retain(|open| *open != index);
                let now = Timestamp::try_from((self.config.wall_clock)()).unwrap_or(Timestamp::UNIX_EPOCH);
                if sink.failed_at.replace(now).is_none() {
                    self.troubled += 1;
                }
                self.complain(index, now, &error);
            }
        }
    }

    fn hold_open(&mut self, index: usize) {
        if self.open.contains(&index) {
            return;
        }
        self.open.push(index);
        if self.open.len() > OPEN_FILES_MAX {
            let oldest = (0..self.open.len()).min_by_key(|place| self.sinks[self.open[*place]].last_used);
            if let Some(place) = oldest {
                let index = self.open.swap_remove(place);
                self.sinks[index].file.close();
            }
        }
    }

    fn complain(&mut self, index: usize, now: Timestamp, error: &io::Error) {
        let sink = &self.sinks[index];
        if std::mem::replace(&mut self.complained, true) {
            return;
        }
        if let Some(terminal) = &self.config.terminal {
            let message = format!(
                "cannot write the log file {}: {error}; records are left out until it works again, free the disk or \
                 give the folder to this user",
                sink.file.path().display()
            );
            let owner = Arc::clone(&sink.owner);
            terminal.push(Arc::new(Record::about_the_log(now, Level::Error, owner, message)));
        }
    }

    fn take(&mut self, record: &Record) {
        let index = self.sink(&record.owner);
        let zone = &self.config.zone;
        let sink = &mut self.sinks[index];
        if let Some(failed_at) = sink.failed_at {
            // A clock that was set back does not put the next attempt off.
            let since = record.at.duration_since(failed_at);
            if since < RETRY_INTERVAL && !since.is_negative() {
                sink.missed += 1;
                return;
            }
        }
        if sink.pending.is_empty() {
            self.dirty.push(index);
            if sink.missed > 0 {
                let message =
                    format!("{} log records were left out because this file could not be written", sink.missed);
                Record::about_the_log(record.at, Level::Warning, Arc::clone(&sink.owner), message)
                    .write_json(zone, &mut sink.pending);
            }
        }
        record.write_json(zone, &mut sink.pending);
        sink.pending_records += 1;
    }
}

impl Output for FileWriter {
    fn record(&mut self, record: &Record) {
        self.take(record);
    }

    fn lost(&mut self, owner: &Arc<Owner>, count: u64) {
        let now = Timestamp::try_from((self.config.wall_clock)()).unwrap_or(Timestamp::UNIX_EPOCH);
        let message = format!("{count} log records were lost because {QUEUE_RECORDS_MAX} waited to be written already");
        self.take(&Record::about_the_log(now, Level::Warning, Arc::clone(owner), message));
    }

    fn flush(&mut self) {
        for index in std::mem::take(&mut self.dirty) {
            self.write_out(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::queue::{Drain, queue};
    use crate::record::tests::sample;
    use crate::role::Role;

    fn writer(dir: PathBuf) -> (FileWriter, Queue, Drain) {
        let (terminal, drain) = queue(10);
        let rotation = Rotation { bytes_max: 0, backups: 0 };
        let config = FileWriterConfig {
            dir,
            rotation,
            zone: TimeZone::UTC,
            wall_clock: || SystemTime::UNIX_EPOCH + Duration::from_secs(100),
            terminal: Some(terminal.clone()),
        };
        (FileWriter::new(config), terminal, drain)
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::new(seconds, 0).unwrap()
    }

    fn owner(name: &str) -> Arc<Owner> {
        Arc::new(Owner::new(Role::Worker, name))
    }

    struct Messages(Vec<String>);

    impl Output for Messages {
        fn record(&mut self, record: &Record) {
            self.0.push(record.message.clone());
        }
        fn lost(&mut self, _: &Arc<Owner>, _: u64) {}
        fn flush(&mut self) {}
    }

    #[test]
    fn an_unwritable_folder_is_complained_about_once_and_tried_again_now_and_then() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("logs");
        fs::write(&dir, "a file where the folder should be").unwrap();
        let (mut writer, terminal, drain) = writer(dir.clone());
        let owners = [owner("a"), owner("b")];
        for second in 100..103 {
            for owner in &owners {
                writer.record(&sample(at(second), owner, "unheard"));
                writer.flush();
            }
        }
        assert_eq!((writer.sinks[0].missed, writer.troubled), (3, 2));

        fs::remove_file(&dir).unwrap();
        writer.record(&sample(at(129), &owners[0], "too early"));
        writer.flush();
        assert!(!dir.exists());
        writer.record(&sample(at(130), &owners[0], "heard"));
        writer.record(&sample(at(130), &owners[0], "again"));
        writer.flush();
        assert_eq!(writer.troubled, 1);

        let text = fs::read_to_string(dir.join("worker-a.jsonl")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains("4 log records were left out because this file could not be written"));
        assert!(lines[1].contains("heard") && lines[2].contains("again"));

        terminal.stop();
        let mut said = Messages(Vec::new());
        drain.run(&mut said);
        assert_eq!(said.0.len(), 1);
        assert!(said.0[0].starts_with("cannot write the log file"), "{}", said.0[0]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_survived_and_reported() {
        let base = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", base.path().join("worker-full.jsonl")).unwrap();
        let (mut writer, terminal, drain) = writer(base.path().to_owned());
        writer.record(&sample(at(100), &owner("full"), "no room"));
        writer.record(&sample(at(100), &owner("other"), "room"));
        writer.flush();
        assert!(fs::read_to_string(base.path().join("worker-other.jsonl")).unwrap().contains("\"room\""));
        terminal.stop();
        let mut said = Messages(Vec::new());
        drain.run(&mut said);
        assert!(said.0[0].contains("worker-full.jsonl") && said.0[0].contains("No space left"), "{:?}", said.0);
    }

    #[test]
    fn many_roles_do_not_hold_many_files_open() {
        let base = tempfile::tempdir().unwrap();
        let (mut writer, _terminal, _drain) = writer(base.path().to_owned());
        let owners: Vec<_> = (0..OPEN_FILES_MAX * 3).map(|number| owner(&number.to_string())).collect();
        for round in 0..2 {
            for owner in &owners {
                writer.record(&sample(at(round), owner, "hello"));
            }
            writer.flush();
        }
        assert_eq!(writer.open.len(), OPEN_FILES_MAX);
        assert!(writer.sinks.iter().all(|sink| sink.pending.capacity() == 0));
        for owner in &owners {
            assert_eq!(fs::read_to_string(base.path().join(&owner.file_name)).unwrap().lines().count(), 2);
        }
    }

    #[test]
    fn records_that_the_queue_lost_are_told_in_the_file_of_their_owner() {
        let base = tempfile::tempdir().unwrap();
        let (mut writer, _terminal, _drain) = writer(base.path().to_owned());
        writer.lost(&owner("a"), 7);
        writer.flush();
        let text = fs::read_to_string(base.path().join("worker-a.jsonl")).unwrap();
        assert!(text.contains("\"level\":\"WARNING\"") && text.contains("7 log records were lost because"), "{text}");
    }
}
