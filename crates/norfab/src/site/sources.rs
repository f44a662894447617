//! Where the settings of a site are from, for hints: an option, a variable, or a key of the inventory.

use norfab_fabric::Sources;
use norfab_inventory::InventoryError;
use norfab_transport::LinkError;

use super::{DEFAULT_INVENTORY, FOLDER_VARIABLE, Site, folder_of_python, given};
use crate::args::Global;
use crate::exit::Failure;

impl Site {
    /// The inventory as hints name it: as it was given, or as it would be called.
    pub fn inventory_name(&self) -> String {
        self.file.as_ref().map_or_else(|| DEFAULT_INVENTORY.to_owned(), |file| file.display().to_string())
    }

    /// Where the endpoint is from.
    pub fn endpoint_source(&self) -> String {
        if self.endpoint_given {
            return self.names.endpoint.to_owned();
        }
        format!("broker.endpoint in {}", self.inventory_name())
    }

    /// Where a key that was given stands.
    pub fn key_option(&self) -> &'static str {
        self.names.broker_key
    }

    /// Where the settings of this site's links are from.
    pub(super) fn sources(&self) -> Sources {
        let (file, option) = (self.inventory_name(), self.key_option());
        let own = self.broker_key_files().1;
        let key = match (&self.given_key, &self.listed_key) {
            (Some(_), _) => format!("correct {option}"),
            (None, _) if own.exists() => format!("give the right one with {option}"),
            (None, Some(_)) => format!("correct broker.shared_key in {file}"),
            (None, None) => format!("give the right one with {option} or broker.shared_key in {file}"),
        };
        let key_given = self.given_key.is_some() || self.given_plain;
        Sources {
            endpoint: self.endpoint_source(),
            key,
            encryption: if key_given { option.to_owned() } else { format!("broker.zmq_auth in {file}") },
            unencrypted: match (key_given, self.has_inventory()) {
                (true, _) => format!("set {option} to none"),
                (false, false) => format!("give '{option} none'"),
                (false, true) => format!("set broker.zmq_auth in {file} to false"),
            },
        }
    }

    /// What is wrong with an endpoint. What the transport says names the endpoint, and not where it is from.
    pub(super) fn of_endpoint(&self, error: LinkError) -> Failure {
        let of_value = matches!(
            error,
            LinkError::MalformedEndpoint { .. }
                | LinkError::AddressInUse { .. }
                | LinkError::AddressNotAvailable { .. }
                | LinkError::Unresolvable { .. }
                | LinkError::Bind { .. }
        );
        let failure = Failure::configuration(&error).advised(error.advice());
        if of_value { failure.hint(format!("the endpoint is from {}", self.endpoint_source())) } else { failure }
    }

    /// What to do where the port of an endpoint is whatever is free.
    pub(super) fn port_wanted(&self) -> String {
        let printed = "give the one that it printed";
        if self.endpoint_given {
            return format!("{printed} with {}", self.names.endpoint);
        }
        format!("{printed} with {}, or write a port into {}", self.names.endpoint, self.endpoint_source())
    }

    /// What is wrong with the name of this client, and how it was given.
    pub(super) fn of_name(&self, failure: Failure) -> Failure {
        match &self.name {
            Some(_) => failure.of(self.names.name),
            None => failure,
        }
    }
}

/// An inventory that cannot be loaded. Who named a file that is not there is told how it was named.
pub(super) fn not_loaded(global: &Global, error: &InventoryError) -> Failure {
    let failure = Failure::inventory(error);
    if !matches!(error, InventoryError::NoSuchFile { .. } | InventoryError::NotAFile { .. }) {
        return failure;
    }
    match (given(global.inventory.as_ref()), folder_of_python()) {
        (Some(_), _) => failure.hint(format!("the path is from {}", global.names.inventory)),
        (None, Some(_)) => failure.hint(format!("the folder is from {FOLDER_VARIABLE}")),
        (None, None) => failure,
    }
}
