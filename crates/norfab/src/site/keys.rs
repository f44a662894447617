//! The broker's keys, as this site has or knows them.

use std::path::PathBuf;

use norfab_fabric::{LinkState, Problem};
use norfab_transport::{
    Context, KeyError, KeyFolder, KeyPair, PublicKey, RefusedReason, Router, RouterOptions, certificate,
};

use super::Site;
use crate::exit::{Code, Failure};

impl Site {
    /// What is wrong with a link, and where the key is from that its broker does not have: one on this host comes before the
    /// inventory's.
    pub fn problem(&self, state: &LinkState) -> Option<Problem> {
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
            format!("{hint}; the expected key is the copy of an earlier start, as the inventory names none")
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
    fn given_key(&self) -> Result<Option<PublicKey>, Failure> {
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
