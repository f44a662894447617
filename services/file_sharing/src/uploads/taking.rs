//! The task that takes one file from a client: the other way round than `send_files`, with the same records.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use norfab_files::part::sync_folder;
use norfab_files::record::{CONTENT_FRAME_BYTES, Facts};
use norfab_files::source::hash_to;
use norfab_files::{
    Arrival, ContentHash, MESSAGE_BYTES, Part, Prefix, Sink, SinkError, WINDOW_BYTES, WINDOW_BYTES_MAX,
};
use norfab_service::{Content, ContentError, Identity, SendError, Task, TaskContext, TaskOutput};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Stat, fstatvfs};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::place::{self, Made, Place};
use super::progress::Progress;
use super::refusal::UploadRefusal;
use super::running::{Need, Subject, Turn, Uploader};
use super::settings::UploadSettings;
use super::signs::Signs;
use super::{Uploads, census};
use crate::sending::PATIENCE_SECONDS_DEFAULT;

/// Permissions that an uploaded file can have: nobody else may write it.
const MODE_MAX: u32 = 0o755;

/// What a client may send beyond its window: the message that fills it.
const BEYOND_WINDOW_BYTES: usize = MESSAGE_BYTES + CONTENT_FRAME_BYTES + (64 << 10);

/// How often a client is told how much was taken: it begins with few bytes on their way, and never waits where both sides are fast.
const TOLD_BYTES: u64 = 2 * MESSAGE_BYTES as u64;

/// How long it is told nothing on a slow line, on which it would take us for gone.
const TOLD_INTERVAL: Duration = Duration::from_millis(500);

/// What uploads leave free on the disk, or a hundredth of it where that is less: databases and other files are there, too.
const DISK_KEPT_BYTES: u64 = 64 << 20;

/// Longest text that names a transfer.
const TRANSFER_BYTES_MAX: usize = 64;

#[derive(Debug, Deserialize, JsonSchema)]
struct Input {
    /// Where to, nf://path.
    url: String,
    /// Bytes of the file.
    size: u64,
    /// Seconds since 1970 of its last change.
    #[serde(default)]
    modified: i64,
    /// Whether it may take the place of a file with other content.
    #[serde(default)]
    overwrite: bool,
    /// What the attempts of one upload have in common.
    #[serde(default)]
    transfer: Option<String>,
    /// Bytes that may be on their way from the client; more than the default is as much as that.
    #[serde(default)]
    window: Option<u64>,
}

pub(crate) fn task(uploads: &Arc<Uploads>) -> Task {
    let uploads = Arc::clone(uploads);
    let about = "Takes a file from a client as a stream of records: see the protocol of NorFab's own clients.";
    Task::yielding("take_file", about, move |context, input| {
        let taken = take(&uploads, &context, input);
        Ok(taken.map_or_else(|refusal| refused(&context, &refusal), TaskOutput::new))
    })
}

/// A failed result that says whether it is of use to try again.
fn refused(context: &TaskContext, refusal: &UploadRefusal) -> TaskOutput {
    tracing::info!(job_uuid = %context.job(), "an upload of client {} ended: {refusal}", context.client());
    let busy = matches!(refusal, UploadRefusal::Busy { .. });
    TaskOutput::new(json!({ "again": refusal.may_pass(), "busy": busy, "full": refusal.is_full() }))
        .failed(refusal.to_string())
}

fn take(uploads: &Uploads, context: &TaskContext, input: Input) -> Result<Value, UploadRefusal> {
    let window = input.window.unwrap_or(WINDOW_BYTES);
    if !(1..=WINDOW_BYTES_MAX).contains(&window) {
        let text = format!("argument 'window': expected an integer from 1 to {WINDOW_BYTES_MAX}, found {window}");
        return Err(UploadRefusal::Argument(text));
    }
    // Sixteen of them must not take more memory than the rest of the worker.
    let window = window.min(WINDOW_BYTES);
    let transfer = input.transfer.unwrap_or_else(|| context.job().to_string());
    if transfer.len() > TRANSFER_BYTES_MAX {
        let text = format!("argument 'transfer': expected a text of at most {TRANSFER_BYTES_MAX} bytes");
        return Err(UploadRefusal::Argument(text));
    }
    let settings = uploads.settings(context.worker())?;
    let place = Place::of(&input.url, settings, &uploads.hidden)?;
    let (url, size, max) = (place.url(), input.size, settings.file_bytes_max);
    if size > max {
        return Err(UploadRefusal::FileTooLarge { url, size, max });
    }
    let subject = Subject { size, modified: input.modified };
    let uploader = Uploader { client: context.client().clone(), transfer, subject };
    let turn = uploads.board.turn(&place, &uploader, context.clock())?;
    let mut taking = Taking::open(uploads, settings, context, &place, &turn, size, input.overwrite)?;
    let sha256 = taking.content(window)?;
    taking.keep(sha256, &uploader.client)
}

/// Folders that were made for an upload. They are removed where they are empty in the end.
struct Folders<'a> {
    made: Made,
    turn: &'a Turn,
}

impl Drop for Folders<'_> {
    fn drop(&mut self) {
        self.turn.removed(self.made.remove());
    }
}

/// What an upload needs room for, and where.
struct Room<'a> {
    settings: &'a UploadSettings,
    context: &'a TaskContext,
    place: &'a Place,
    turn: &'a Turn,
    root: OwnedFd,
    size: u64,
}

impl Room<'_> {
    /// Whether nobody wants it any more.
    fn is_ended(&self) -> bool {
        self.context.is_cancelled() || self.turn.stop.is_cancelled()
    }

    /// Reserves room in a folder. `had`: bytes that are there; `adds`: files and folders that come to be there; `now`: seconds since 1970 by
    /// the clock of the file system, where that is known. Errors: there is none.
    fn reserve(&self, folder: &OwnedFd, had: u64, adds: u64, now: Option<i64>) -> Result<(), UploadRefusal> {
        let need = Need {
            size: self.size,
            adds,
            // Without the time nothing is old.
            count: &|is_under_way| census::take(&self.root, is_under_way, now.unwrap_or_default()),
            is_ended: &|| self.is_ended(),
        };
        self.turn.reserve(self.settings, &need, self.context.clock())?;
        if let Ok(disk) = fstatvfs(folder) {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let whole = disk.f_blocks.saturating_mul(disk.f_frsize);
            let wanted = self.size.saturating_sub(had);
            if let Some(detail) = lacking(wanted, free, self.turn.others_lack(), whole) {
                return Err(UploadRefusal::DiskFull { url: self.place.url(), detail });
            }
        }
        Ok(())
    }
}

/// What a disk has too little of for so many bytes. `None`: there is room.
fn lacking(wanted: u64, free: u64, others: u64, whole: u64) -> Option<String> {
    let kept = DISK_KEPT_BYTES.min(whole / 100);
    let is_there = wanted == 0 || free >= wanted.saturating_add(others).saturating_add(kept);
    (!is_there).then(|| {
        format!("{wanted} bytes more are needed, and {free} are free, of which other uploads need {others}, and {kept} are kept free")
    })
}

/// One upload under way.
struct Taking<'a> {
    uploads: &'a Uploads,
    context: &'a TaskContext,
    place: &'a Place,
    size: u64,
    folder: OwnedFd,
    part: Part,
    /// Dropped behind its part, which is in them.
    made: Folders<'a>,
    room: Room<'a>,
    signs: Arc<Signs>,
    /// What is in the place already.
    present: Option<Stat>,
    replaces: bool,
    /// The file is in its place already, as far as is known: nothing is written.
    is_there: bool,
    had: u64,
    facts: Option<Facts>,
    turn: &'a Turn,
}

impl<'a> Taking<'a> {
    fn open(
        uploads: &'a Uploads,
        settings: &'a UploadSettings,
        context: &'a TaskContext,
        place: &'a Place,
        turn: &'a Turn,
        size: u64,
        overwrite: bool,
    ) -> Result<Self, UploadRefusal> {
        let replaces = overwrite && settings.overwrite;
        let write = |error| unwritten(place, error);
        let root = place::root(&uploads.base_dir, settings)?;
        let opened = place.open_folder(&uploads.base_dir)?;
        let room = Room { settings, context, place, turn, root, size };
        let is_new = opened.missing > 0;
        if is_new {
            // Folders count as files do, and are made only where they may be.
            room.reserve(&opened.folder, 0, opened.missing as u64 + 1, None)?;
        }
        let missing = opened.missing as u64;
        let (folder, made) = place.make_folders(opened)?;
        turn.made(missing, made.len());
        let made = Folders { made, turn };
        let present = place.present(&folder)?;
        let is_as_long = present.as_ref().is_some_and(|stat| u64::try_from(stat.st_size) == Ok(size));
        if present.is_some() && !is_as_long && !replaces {
            return Err(UploadRefusal::Exists { url: place.url() });
        }
        let part = match Part::open(folder.try_clone().map_err(write)?, place.name()) {
            Ok(part) => part,
            // Whoever had made its folder has removed it again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(UploadRefusal::Moved { url: place.url() });
            }
            Err(error) => return Err(write(error)),
        };
        // What an upload before this one left is more likely of this version than what is in its place, unless it can only be that.
        let is_there = is_as_long && (!replaces || part.bytes().map_err(write)? == 0);
        turn.takes_up(part.identity().map_err(write)?, part.bytes().map_err(write)?);
        let taking = Self {
            uploads,
            context,
            place,
            size,
            folder,
            part,
            made,
            room,
            signs: Arc::new(Signs::start(context)),
            present,
            replaces,
            is_there,
            had: 0,
            facts: None,
            turn,
        };
        if !is_there && !is_new {
            taking.reserve()?;
        }
        Ok(taking)
    }

    /// Errors: there is no room for it.
    fn reserve(&self) -> Result<(), UploadRefusal> {
        let write = |error| unwritten(self.place, error);
        let had = self.part.bytes().map_err(write)?;
        let now = self.part.touch().map_err(write)?;
        self.room.reserve(&self.folder, had, u64::from(self.present.is_none()), Some(now))
    }

    /// What is here of the file, with its hash.
    fn prefix(&self) -> Result<Prefix, UploadRefusal> {
        let is_ended = || {
            // It is at it, and nobody takes its place meanwhile.
            self.turn.goes_on(self.context.clock());
            self.room.is_ended()
        };
        if self.is_there {
            let file: File = self.place.read(&self.folder)?;
            let url = || self.place.url();
            return hash_to(&file, self.size, &is_ended)
                .map_err(|error| UploadRefusal::Unreadable { url: url(), error });
        }
        let bytes = self.part.bytes().map_err(|error| unwritten(self.place, error))?.min(self.size);
        // What cannot be read is sent again.
        Ok(self.part.prefix(bytes, &is_ended).unwrap_or_default())
    }

    /// Takes what comes until all is there. The hash of all of it.
    fn content(&mut self, window: u64) -> Result<ContentHash, UploadRefusal> {
        let prefix = self.signs.during("reading what is there already", || self.prefix())?;
        let mut sink = Sink::of_one();
        let (have_bytes, have_sha256) = (prefix.bytes(), prefix.hash().to_string());
        sink.has(0, prefix);
        let room = usize::try_from(window).unwrap_or(usize::MAX).saturating_add(BEYOND_WINDOW_BYTES);
        let mut content = self.context.content(room);
        self.say(&json!({ "have_bytes": have_bytes, "have_sha256": have_sha256, "window": window }))?;
        let (mut taken, mut told, mut told_at) = (0, 0, self.context.clock().now());
        let mut progress = Progress::new(have_bytes, told_at);
        let mut arrived = Vec::new();
        loop {
            let piece = self.next(&mut content)?;
            self.turn.goes_on(self.context.clock());
            let standstill = |(bytes, seconds)| UploadRefusal::Standstill { url: self.place.url(), bytes, seconds };
            progress.brought(piece.len(), self.context.clock().now()).map_err(standstill)?;
            taken += piece.len() as u64;
            let outcome = sink.take(piece, &mut arrived);
            for arrival in arrived.drain(..) {
                if of(&arrival) != 0 {
                    let error = SinkError::Order("one file was to come, and another one did");
                    return Err(UploadRefusal::Broken { url: self.place.url(), error });
                }
                let signs = Arc::clone(&self.signs);
                if let Some(hash) = signs.during("writing what came", || self.arrived(arrival))? {
                    self.say(&json!({ "taken": taken }))?;
                    return Ok(hash);
                }
            }
            outcome.map_err(|error| UploadRefusal::Broken { url: self.place.url(), error })?;
            let now = self.context.clock().now();
            let is_long_ago = now.saturating_duration_since(told_at) >= TOLD_INTERVAL;
            if taken - told >= TOLD_BYTES.min(window / 2) || is_long_ago {
                (told, told_at) = (taken, now);
                self.say(&json!({ "taken": taken }))?;
            }
        }
    }

    fn next(&self, content: &mut Content) -> Result<Bytes, UploadRefusal> {
        let patience = Duration::from_secs(PATIENCE_SECONDS_DEFAULT);
        // The thread is there for what blocks.
        let next = Handle::current().block_on(async {
            tokio::select! {
                biased;
                () = self.turn.stop.cancelled() => None,
                next = content.next(patience) => Some(next),
            }
        });
        let url = || self.place.url();
        match next {
            None => Err(UploadRefusal::Superseded { url: url() }),
            Some(next) => next.map_err(|error: ContentError| UploadRefusal::Silent { url: url(), error }),
        }
    }

    /// Writes what arrived. The hash of the file, where all of it is here.
    fn arrived(&mut self, arrival: Arrival) -> Result<Option<ContentHash>, UploadRefusal> {
        let place = self.place;
        match arrival {
            Arrival::Began { offset, facts, .. } => {
                if facts.size != self.size {
                    let (expected, found) = (self.size, facts.size);
                    return Err(UploadRefusal::OtherSize { url: place.url(), expected, found });
                }
                if self.is_there && offset != facts.size {
                    if !self.replaces {
                        return Err(UploadRefusal::Exists { url: place.url() });
                    }
                    self.is_there = false;
                    self.reserve()?;
                }
                (self.had, self.facts) = (offset, Some(facts));
                if !self.is_there {
                    self.part.cut(offset).map_err(|error| unwritten(place, error))?;
                    self.turn.has(offset);
                }
            }
            Arrival::Content { offset, bytes, .. } => {
                if !self.is_there {
                    self.turn.has(offset + bytes.len() as u64);
                    self.part.write(&bytes, offset).map_err(|error| unwritten(place, error))?;
                }
            }
            Arrival::Whole { hash, .. } => return Ok(Some(hash)),
            Arrival::Failed { why, .. } => return Err(UploadRefusal::Withdrawn { url: place.url(), why }),
        }
        Ok(None)
    }

    fn say(&self, what: &Value) -> Result<(), UploadRefusal> {
        let message = Bytes::from(what.to_string());
        let clock = self.context.clock();
        let began = clock.now();
        loop {
            let full = match self.context.stream_blocking(message.clone()) {
                Ok(()) => return Ok(()),
                Err(full @ SendError::QueueFull(_)) => full,
                Err(stopped @ SendError::Stopped) => return Err(stopped.into()),
            };
            // That itself waits for room, so this does not spin.
            let waited = clock.now().saturating_duration_since(began);
            if waited >= Duration::from_secs(PATIENCE_SECONDS_DEFAULT) || self.context.is_cancelled() {
                return Err(full.into());
            }
        }
    }

    /// Moves it to its place, where it is not there already.
    fn keep(self, hash: ContentHash, client: &Identity) -> Result<Value, UploadRefusal> {
        let Self {
            place,
            size,
            // Dropped the other way round: the part before the folders that it is in.
            mut made,
            part,
            room,
            signs,
            folder,
            present,
            replaces,
            is_there,
            had,
            facts,
            uploads,
            turn,
            ..
        } = self;
        let url = place.url();
        let mut answer = json!({
            "url": url,
            "size_bytes": size,
            "had_bytes": had,
            "sha256": hash.to_string(),
            "was_there": is_there,
            "replaced": false,
        });
        if is_there {
            // Whoever brought it here may have been killed before it was on the disk.
            let synced = signs.during("bringing it to the disk", || {
                place
                    .read(&folder)?
                    .sync_all()
                    .and_then(|()| Ok(sync_folder(folder.as_fd())?))
                    .map_err(|error| UploadRefusal::NotSafe { url: url.clone(), error })
            });
            return synced.map(|()| answer);
        }
        let synced = signs.during("bringing it to the disk", || part.sync());
        synced.map_err(|error| {
            turn.has(0);
            UploadRefusal::Unsynced { url: url.clone(), error }
        })?;
        // That may have taken long: nobody waits for it any more, and an upload that was given up must not appear.
        if turn.stop.is_cancelled() {
            return Err(UploadRefusal::Superseded { url });
        }
        if room.is_ended() {
            let why = room.context.cancel_reason().map(|reason| reason.to_string()).unwrap_or_default();
            return Err(UploadRefusal::Ended { url, why });
        }
        if !place.leads_to(&uploads.base_dir, &folder) {
            return Err(UploadRefusal::Moved { url });
        }
        let facts = facts.map(|facts| Facts { mode: facts.mode & MODE_MAX, ..facts });
        let facts = facts.unwrap_or(Facts { size, modified: 0, mode: 0o644 });
        let replaces = replaces && present.is_some();
        let kept = signs.during("giving it its name", || part.keep_durably(place.name(), facts, replaces));
        let problem = kept.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => UploadRefusal::Exists { url: url.clone() },
            _ => unwritten(place, error),
        })?;
        let replaced = present.map(|stat| u64::try_from(stat.st_size).unwrap_or_default());
        made.made.stay();
        turn.is_kept(size, replaced);
        if let Some(error) = problem {
            return Err(UploadRefusal::NotSafe { url, error });
        }
        answer["replaced"] = json!(replaces);
        tracing::info!("client {client} uploaded '{url}', {size} bytes with the SHA-256 {hash}");
        Ok(answer)
    }
}

/// Which file it is about.
fn of(arrival: &Arrival) -> u32 {
    match arrival {
        Arrival::Began { file, .. }
        | Arrival::Content { file, .. }
        | Arrival::Whole { file, .. }
        | Arrival::Failed { file, .. } => *file,
    }
}

fn unwritten(place: &Place, error: io::Error) -> UploadRefusal {
    let url = place.url();
    match Errno::from_io_error(&error) {
        Some(Errno::NOSPC | Errno::DQUOT) => UploadRefusal::DiskFull { url, detail: error.to_string() },
        _ => UploadRefusal::Write { url, error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hidden::Hidden;

    #[test]
    fn a_disk_is_full_before_nothing_is_left_of_it() {
        let gib = 1 << 30;
        assert_eq!(lacking(100, 1000 + (64 << 20), 900, 100 * gib), None);
        assert!(lacking(101, 1000 + (64 << 20), 900, 100 * gib).is_some());
        assert_eq!(lacking(100, 110, 0, 1000), None, "a small one");
        assert!(lacking(100, 109, 0, 1000).is_some());
        assert_eq!(lacking(0, 0, 0, 1000), None, "all of it is there");
    }

    #[test]
    fn a_full_disk_is_named_and_nothing_to_try_again_at_once() {
        let settings = json!({ "folder": "in" });
        let hidden = Hidden::default();
        let settings = UploadSettings::read(settings.as_object().expect("an object"), &hidden).expect("settings");
        let place = Place::of("nf://in/f", &settings, &hidden).expect("a place");
        for (errno, is_full) in [(Errno::NOSPC, true), (Errno::DQUOT, true), (Errno::IO, false)] {
            let refusal = unwritten(&place, errno.into());
            assert_eq!(matches!(refusal, UploadRefusal::DiskFull { .. }), is_full);
            assert!(!refusal.may_pass() && refusal.to_string().contains("what came is kept"), "{refusal}");
        }
    }
}
