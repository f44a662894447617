//! How far transfers are, on a terminal: one line at its bottom, of one file or of many.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use norfab_fabric::client::files::FilesProgress;

use crate::args::Global;
use crate::printer;

/// How often rate and time left are told anew where nothing comes.
const TICK: Duration = Duration::from_millis(250);

/// One file: its name, how much of it is here, the rate, and the time that is left.
const ONE: &str = "{wide_msg} [{bar:20}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// Several: how many of them are done, too.
const MANY: &str = "{prefix} files {wide_msg} [{bar:20}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// All transfers of a command. Nothing is shown where standard error is no terminal, with --json and with --quiet.
#[derive(Clone)]
pub struct Progress(Option<Arc<Line>>);

/// One file of them. Whoever drops it is done with the file.
pub struct FileProgress {
    line: Option<Arc<Line>>,
    name: String,
    /// What of it is among the sums.
    bytes: u64,
    size: Option<u64>,
}

struct Line {
    bar: ProgressBar,
    files: usize,
    sums: Mutex<Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    done: usize,
    bytes: u64,
    sizes: u64,
    /// Before something is known there is nothing to tell.
    is_shown: bool,
}

impl Progress {
    /// The line, for so many files.
    pub fn new(global: &Global, files: usize) -> Self {
        let line = Self::line(global, if files == 1 { ONE } else { MANY });
        Self(line.map(|bar| {
            bar.set_prefix(format!("0/{files}"));
            Arc::new(Line { bar, files, sums: Mutex::default() })
        }))
    }

    /// The line, for a folder, of whose files the number is found out.
    pub fn of_folder(global: &Global, url: &str) -> Self {
        let line = Self::line(global, MANY);
        Self(line.map(|bar| {
            bar.set_message(printer::printable(url).into_owned());
            Arc::new(Line { bar, files: 0, sums: Mutex::default() })
        }))
    }

    fn line(global: &Global, template: &str) -> Option<ProgressBar> {
        if global.json || global.quiet > 0 || !std::io::stderr().is_terminal() {
            return None;
        }
        let style = ProgressStyle::with_template(template).expect("a template");
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let bar = bar.with_style(style.progress_chars("=> "));
        printer::stand_below(Some(bar.clone()));
        Some(bar)
    }

    /// How far all of it is, of a folder. What is there the first time says nothing about the rate.
    pub fn show(&self, now: FilesProgress) {
        let Some(line) = &self.0 else { return };
        let FilesProgress { files_done, files, bytes_done, bytes } = now;
        line.bar.set_prefix(format!("{files_done}/{files}"));
        line.bar.set_length(bytes);
        line.bar.set_position(bytes_done);
        line.appear(&mut line.sums());
    }

    /// A file that begins.
    pub fn file(&self, name: &str) -> FileProgress {
        let line = self.0.clone();
        let name = if line.is_some() { printer::printable(name).into_owned() } else { String::new() };
        FileProgress { line, name, bytes: 0, size: None }
    }
}

impl Line {
    fn sums(&self) -> MutexGuard<'_, Sums> {
        // Nothing panics while it is locked.
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws it, from the first time on that there is something to tell.
    fn appear(&self, sums: &mut Sums) {
        if !std::mem::replace(&mut sums.is_shown, true) {
            self.bar.reset_eta();
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.enable_steady_tick(TICK);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        printer::stand_below(None);
        self.bar.finish_and_clear();
    }
}

impl FileProgress {
    /// How much of the file is there. What is there the first time was there before: it says nothing about the rate.
    pub fn show(&mut self, bytes: u64, size: u64) {
        let Some(line) = &self.line else { return };
        let mut sums = line.sums();
        let first = self.size.is_none();
        if first {
            line.bar.set_message(self.name.clone());
        }
        sums.bytes = (sums.bytes + bytes).saturating_sub(self.bytes);
        sums.sizes = (sums.sizes + size).saturating_sub(self.size.unwrap_or(0));
        (self.bytes, self.size) = (bytes, Some(size));
        line.bar.set_length(sums.sizes);
        line.bar.set_position(sums.bytes);
        line.appear(&mut sums);
    }
}

impl Drop for FileProgress {
    fn drop(&mut self) {
        let Some(line) = &self.line else { return };
        let mut sums = line.sums();
        sums.done += 1;
        line.bar.set_prefix(format!("{}/{}", sums.done, line.files));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_all_files_whatever_their_order() {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let progress = Progress(Some(Arc::new(Line { bar: bar.clone(), files: 2, sums: Mutex::default() })));
        let (mut one, mut two) = (progress.file("one"), progress.file("t\u{1b}wo"));
        one.show(10, 100);
        two.show(5, 50);
        one.show(60, 100);
        assert_eq!((bar.position(), bar.length()), (65, Some(150)));
        // A transfer that began anew.
        one.show(0, 90);
        assert_eq!((bar.position(), bar.length()), (5, Some(140)));
        assert_eq!(bar.message(), "t\\u{1b}wo");
        drop(one);
        assert_eq!(bar.prefix(), "1/2");
        let now = FilesProgress { files_done: 3, files: 1_000, bytes_done: 70, bytes: 500 };
        progress.show(now);
        assert_eq!((bar.position(), bar.length(), bar.prefix().as_str()), (70, Some(500), "3/1000"));
    }
}
