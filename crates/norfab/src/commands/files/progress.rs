//! How far transfers are, on a terminal: one line at its bottom, of one file or of many.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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
    /// All bytes there will be, where that is known before the files are.
    expected: Option<u64>,
    /// Before something is known there is nothing to tell.
    is_shown: bool,
}

impl Progress {
    /// The line, for so many files.
    pub fn new(global: &Global, files: usize) -> Self {
        if global.json || global.quiet > 0 || !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let style = ProgressStyle::with_template(if files == 1 { ONE } else { MANY }).expect("a template");
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let bar = bar.with_style(style.progress_chars("=> "));
        bar.set_prefix(format!("0/{files}"));
        printer::stand_below(Some(bar.clone()));
        Self(Some(Arc::new(Line { bar, files, sums: Mutex::default() })))
    }

    /// Says how many bytes there will be in all, where all sizes are known before the files come.
    #[allow(dead_code, reason = "for commands that know it")]
    pub fn expect(&self, bytes: u64) {
        if let Some(line) = &self.0 {
            line.sums().expected = Some(bytes);
            line.bar.set_length(bytes);
        }
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
        line.bar.set_length(sums.expected.unwrap_or(sums.sizes));
        line.bar.set_position(sums.bytes);
        if !std::mem::replace(&mut sums.is_shown, true) {
            line.bar.reset_eta();
            line.bar.set_draw_target(ProgressDrawTarget::stderr());
            line.bar.enable_steady_tick(TICK);
        }
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
        progress.expect(1000);
        two.show(50, 50);
        assert_eq!((bar.position(), bar.length()), (50, Some(1000)));
    }
}
