//! A command on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::{Ended, Lab, Role, eventually};

/// A command on a terminal of its own: what it shows is read here, what is typed goes there.
pub struct OnTerminal {
    pub role: Role,
    keyboard: File,
    shown: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl OnTerminal {
    /// One of ours, its standard output not on the terminal.
    pub fn start(lab: &Lab, arguments: &[&str]) -> Self {
        Self::of(lab.command(arguments), false)
    }

    /// Any, all of it on the terminal.
    pub fn start_all(command: Command) -> Self {
        Self::of(command, true)
    }

    fn of(mut command: Command, output_too: bool) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).expect("granted");
        unlockpt(&ours).expect("unlocked");
        let name = ptsname(&ours, Vec::new()).expect("a name");
        let open = || -> OwnedFd {
            rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("the terminal opens")
        };
        command.stdin(Stdio::from(open())).stderr(Stdio::from(open()));
        if output_too {
            command.stdout(Stdio::from(open()));
        }
        let role = Role::spawn(command);
        let keyboard = File::from(ours);
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut screen, kept) = (keyboard.try_clone().expect("a copy"), Arc::clone(&shown));
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            // The terminal ends with an error when the last one on it has gone.
            while let Ok(read @ 1..) = screen.read(&mut chunk) {
                kept.lock().expect("no panic").push_str(&String::from_utf8_lossy(&chunk[..read]));
            }
        });
        Self { role, keyboard, shown, reader }
    }

    pub fn shows(&self, text: &str) {
        eventually(&format!("{text:?} on the terminal, {:?} so far", self.shown()), || self.shown().contains(text));
    }

    pub fn shown(&self) -> String {
        self.shown.lock().expect("no panic").replace("\r\n", "\n")
    }

    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("it is typed");
    }

    pub fn end(self) -> (Ended, String) {
        let shown = Arc::clone(&self.shown);
        let ended = self.role.end();
        // Nobody is on the terminal any more: what is on its way comes, and then the end.
        self.reader.join().expect("no panic");
        let shown = shown.lock().expect("no panic").replace("\r\n", "\n");
        (ended, shown)
    }
}
