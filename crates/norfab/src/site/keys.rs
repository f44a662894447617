//! The broker's keys, as this site has or knows them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use norfab_fabric::{LinkState, Problem, SystemClock, TellProblem};
use norfab_protocol::Identity;
use norfab_transport::{
    Context, KeyError, KeyFolder, KeyPair, PublicKey, RefusedReason, Router, RouterOptions, certificate,
};

use super::Site;
use crate::exit::{Code, Failure};

/// How long the end of a process waits for keys that are being written: a disk that takes longer must not hold it up.
const KEPT_MAX: Duration = Duration::from_secs(2);

/// Keys that are being written: what ends when one is.
static BEING_KEPT: Mutex<Vec<Receiver<()>>> = Mutex::new(Vec::new());

/// Adds keys that are being written. Those that are written by now need not be waited for.
fn is_being_kept(being_kept: &mut Vec<Receiver<()>>, kept: Receiver<()>) {
    being_kept.retain(|kept| kept.try_recv() == Err(TryRecvError::Empty));
    being_kept.push(kept);
}

/// Waits until the keys of brokers that let this process in are kept, as a command may be over before that; at most [`KEPT_MAX`].
pub fn wait_for_kept_keys() {
    let until = SystemClock::now() + KEPT_MAX;
    for kept in std::mem::take(&mut *BEING_KEPT.lock().unwrap_or_else(PoisonError::into_inner)) {
        // Nothing is sent: it ends.
        kept.recv_timeout(until.saturating_duration_since(SystemClock::now())).ok();
    }
}

impl Site {
    /// What is wrong with the link of a client, and where the key is from that its broker does not have: one on this host comes before
    /// the inventory's.
    pub fn problem(&self, client: &Identity, state: &LinkState) -> Option<Problem> {
        self.problem_at(self.client_folder(client.as_str()).ok().as_deref(), state)
    }

    /// The same of a role with this folder.
    fn problem_at(&self, folder: Option<&Path>, state: &LinkState) -> Option<Problem> {
        let Problem { text, hint } = state.problem_of(&self.sources())?;
        let (_, file) = self.broker_key_files();
        let LinkState::Refused { fingerprint: Some(_), reason, .. } = state else {
            return Some(Problem { text, hint });
        };
        let of_key = matches!(reason, RefusedReason::WrongKey | RefusedReason::NoHandshake);
        let of_file = self.given_key.is_none() && (self.listed_key.is_none() || file.exists());
        if !of_key || !of_file {
            return Some(Problem { text, hint });
        }
        let hint = hint.unwrap_or_default();
        let hint = if !file.exists() {
            let copy = folder.map(|folder| KeyFolder::new(folder).public_file(certificate::BROKER));
            let copy = copy.map_or_else(String::new, |file| format!(" in {}", file.display()));
            format!("{hint}; the expected key is the copy{copy} of one that worked before, as the inventory names none")
        } else if self.starts_broker() {
            format!(
                "{hint}; the expected key is the one of the broker that topology.broker starts here, in {}: another one \
                 listens there, so stop it or choose another port",
                file.display()
            )
        } else {
            format!(
                "{hint}; the expected key is the one in {}, which comes before the inventory's: if the broker does not run on \
                 this host, remove the folder {}",
                file.display(),
                self.directories.broker().display()
            )
        };
        Some(Problem { text, hint: Some(hint) })
    }

    /// As [`Site::problem_at`], for a role that goes on: it took the broker's key when it started.
    fn problem_of_role(&self, role: &str, folder: &Path, state: &LinkState) -> Option<Problem> {
        let problem = self.problem_at(Some(folder), state)?;
        let LinkState::Refused { fingerprint: Some(expected), reason, .. } = state else { return Some(problem) };
        if !matches!(reason, RefusedReason::WrongKey | RefusedReason::NoHandshake) {
            return Some(problem);
        }
        let known = self.broker_public_key(&KeyFolder::new(folder));
        let hint = match known {
            // Nothing is to be corrected: whoever starts now takes the right one.
            Ok(key) if key.fingerprint() != *expected => format!(
                "the broker's key in {} is another one since {role} started, with the fingerprint {}: restart {role}, which then \
                 takes it",
                self.broker_key_files().1.display(),
                key.fingerprint()
            ),
            _ => {
                format!("{}; then restart {role}, which reads the key when it starts", problem.hint.unwrap_or_default())
            }
        };
        Some(Problem { text: problem.text, hint: Some(hint) })
    }

    /// As [`Site::problem_of_role`], for a worker whose client asks the broker for its data.
    pub fn problem_of_asking(&self, client: &Identity, state: &LinkState) -> Option<Problem> {
        match self.client_folder(client.as_str()) {
            Ok(folder) => self.problem_of_role(A_WORKER, &folder, state),
            Err(_) => self.problem_at(None, state),
        }
    }

    /// What the log of a role in this folder says of its link. The broker's key is kept there when it has worked; one that was given on
    /// the command line is not.
    pub(super) fn tell_problem(&self, role: &str, folder: &Path, key: Option<PublicKey>) -> TellProblem {
        let (site, role, folder) = (self.clone(), role.to_owned(), folder.to_path_buf());
        let key = key.filter(|_| self.given_key.is_none());
        let kept = AtomicBool::new(key.is_none());
        Arc::new(move |state| {
            if *state == LinkState::Connected
                && !kept.swap(true, Ordering::Relaxed)
                && let Some(key) = key
            {
                let folder = folder.clone();
                let (ends, kept) = sync_channel::<()>(0);
                is_being_kept(&mut BEING_KEPT.lock().unwrap_or_else(PoisonError::into_inner), kept);
                let span = tracing::Span::current();
                // A disk that hangs must not keep the role from its broker.
                let keeping = std::thread::Builder::new().name("keep-key".to_owned()).spawn(move || {
                    let (_span, _ends) = (span.enter(), ends);
                    if let Err(error) = KeyFolder::new(&folder).keep_broker_public_key(&key) {
                        tracing::warn!("the broker's key is not kept for the next start: {error}");
                    }
                });
                if let Err(error) = keeping {
                    tracing::warn!("the broker's key is not kept for the next start: {error}");
                }
            }
            site.problem_of_role(&role, &folder, state)
        })
    }

    /// The broker's keys on this host, made if they are not there.
    pub fn broker_keys(&self) -> Result<KeyPair, Failure> {
        KeyFolder::new(self.directories.broker()).load_or_create(certificate::BROKER).map_err(unusable)
    }

    /// A broker has keys of its own: a key that was given must be its public one. Errors: it is another one, or none.
    pub(super) fn check_given_key(&self) -> Result<(), Failure> {
        let Some(given) = self.given_key()? else { return Ok(()) };
        // They are not made for this: a new key is another one.
        let has_keys = self.broker_key_files().0.exists();
        if has_keys && self.broker_keys()?.public == given {
            return Ok(());
        }
        let (option, folder) = (self.key_option(), self.directories.broker());
        Err(Failure::configuration(format!(
            "{option} is not the key of the broker that starts here, which has its own in {}{}",
            folder.display(),
            if has_keys { "" } else { " from its first start on" }
        ))
        .hint(format!("leave {option} out here; 'norfab broker-key' shows the key that workers and clients need")))
    }

    /// The broker's public key as the command line has it. Errors: it is no key.
    pub fn given_key(&self) -> Result<Option<PublicKey>, Failure> {
        let no_key = |error| Failure::configuration(error).hint(KEY_ADVICE).of(self.key_option());
        self.given_key.as_ref().map(|given| given.trim().parse().map_err(no_key)).transpose()
    }

    /// What is missing where a worker of this site cannot connect because the broker that belongs here has not run yet: its first
    /// start makes the keys.
    pub fn broker_key_to_come(&self, worker: &str) -> Option<Failure> {
        if !self.encrypted || !self.starts_broker() {
            return None;
        }
        let own = KeyFolder::new(self.directories.worker(worker).ok()?);
        self.broker_public_key(&own).err().filter(|failure| failure.code == Code::Unreachable)
    }

    /// The broker's public key where there is no broker: as the command line or the inventory has it. Errors: it is no key.
    pub fn foreign_broker_key(&self) -> Result<Option<PublicKey>, Failure> {
        let of_inventory = |error| {
            let place = format!("broker.shared_key in {}", self.inventory_name());
            Failure::configuration(error).hint(KEY_ADVICE).of(place)
        };
        match (self.given_key()?, &self.listed_key) {
            (Some(given), _) => Ok(Some(given)),
            (None, Some(listed)) => listed.trim().parse().map(Some).map_err(of_inventory),
            (None, None) => Ok(None),
        }
    }

    /// Where the broker's key files are: private and public.
    pub fn broker_key_files(&self) -> (PathBuf, PathBuf) {
        let folder = KeyFolder::new(self.directories.broker());
        (folder.secret_file(certificate::BROKER), folder.public_file(certificate::BROKER))
    }

    /// Where there are no keys yet, tries whether a broker could listen at all, so that none are made for one that cannot.
    pub(super) fn check_before_first_keys(&self, endpoint: &str) -> Result<(), Failure> {
        if self.broker_key_files().0.exists() {
            return Ok(());
        }
        // Whoever connects meanwhile must not be let in without encryption.
        let options = RouterOptions { keys: Some(KeyPair::generate()), ..RouterOptions::default() };
        // In a context of its own: with it the socket is really gone.
        let context = Context::new();
        Router::bind(&context, endpoint, options).map(drop).map_err(|error| self.of_endpoint(error))
    }

    /// The command line wins; else a broker on this host is right about its own key.
    pub(super) fn broker_public_key(&self, own: &KeyFolder) -> Result<PublicKey, Failure> {
        if let Some(given) = self.given_key()? {
            return Ok(given);
        }
        let broker = KeyFolder::new(self.directories.broker());
        let known = own.broker_public_key(&broker, self.listed_key.as_deref());
        known.map_err(|error| match error {
            KeyError::BrokerKeyUnknown { .. } if self.starts_broker() => {
                let folder = self.directories.broker();
                let text =
                    format!("the broker of this inventory has not run yet, there are no keys in {}", folder.display());
                Failure::new(Code::Unreachable, text).hint(format!(
                    "start it with 'norfab up'; if it runs with another {}, give its key with --broker-key",
                    self.names.base_dir
                ))
            }
            KeyError::BrokerKeyUnknown { .. } if !self.has_inventory() => Failure::configuration(KEY_UNKNOWN).hint(
                "give what 'norfab broker-key' prints on its host with --broker-key KEY, or '--broker-key none' if it does not \
                 encrypt",
            ),
            KeyError::BrokerKeyUnknown { .. } => Failure::configuration(KEY_UNKNOWN).hint(format!(
                "set broker.shared_key in {} to what 'norfab broker-key' prints on the broker's host, or give it with \
                 --broker-key; if the broker is to run here, start it with 'norfab broker'",
                self.inventory_name()
            )),
            error => unusable(error),
        })
    }
}

/// What hints call a worker that is running.
pub(super) const A_WORKER: &str = "this worker";

/// What to do about a text that is no key.
const KEY_ADVICE: &str = "give what 'norfab broker-key' prints on the broker's host";

/// Why there is no connection where nothing says which key the broker has.
const KEY_UNKNOWN: &str = "the broker's public key is not known";

/// A key file that cannot be used, and what to do about it.
pub(super) fn unusable(error: KeyError) -> Failure {
    let failure = Failure::configuration(&error);
    match error {
        KeyError::Missing { .. } => failure.hint("restore the file, or remove it and a new one is made"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_have_been_written_are_not_waited_for() {
        let mut being_kept = Vec::new();
        let (writes, kept) = sync_channel::<()>(0);
        is_being_kept(&mut being_kept, kept);
        for _ in 0..3 {
            let (ends, kept) = sync_channel::<()>(0);
            drop(ends);
            is_being_kept(&mut being_kept, kept);
        }
        assert_eq!(being_kept.len(), 2, "one that goes on, and the last");
        drop(writes);
    }
}
