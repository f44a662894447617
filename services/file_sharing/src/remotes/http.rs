//! The way to a server through `https`, or `http`.

use std::io::{self, BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ureq::http::{Response, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsConfigBuilder};
use ureq::{Agent, Body, ResponseExt};

use super::address::{Credentials, shown};
use super::error::{SyncError, told};
use super::halt::Halt;
use super::packet::NoPacket;
use super::protocol::Wire;

/// How long the name service and the host may take to answer. Neither can be ended before.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a server may say nothing. It packs what it sends before it sends it.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Times that a server may send us elsewhere.
const REDIRECTS_MAX: u32 = 5;

/// Servers tell git by the beginning of this.
const USER_AGENT: &str = concat!("git/norfab-", env!("CARGO_PKG_VERSION"));

/// What is asked of the server first, below the URL.
const ADVERTISEMENT: &str = "/info/refs?service=git-upload-pack";

pub(crate) struct HttpWire {
    /// Where requests go: where the first one was answered from.
    base: String,
    shown: String,
    credentials: Option<Credentials>,
    halt: Halt,
    agent: Agent,
    reader: Box<dyn BufRead>,
}

impl HttpWire {
    /// Errors: this host trusts nobody.
    pub(crate) fn new(url: String, credentials: Option<Credentials>, halt: Halt) -> Result<Self, SyncError> {
        let encrypted = url.starts_with("https://");
        let tls = if encrypted { trusting_the_system(&url)? } else { TlsConfig::builder() };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .https_only(encrypted)
            .max_redirects(REDIRECTS_MAX)
            .user_agent(USER_AGENT)
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_per_read(Some(SILENCE_MAX))
            .timeout_per_write(Some(SILENCE_MAX))
            .tls_config(
                tls.unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider())).build(),
            )
            .build();
        let agent = config.new_agent();
        let ended = agent.clone();
        halt.on_halt(move || ended.shutdown());
        Ok(Self { shown: shown(&url), base: url, credentials, halt, agent, reader: Box::new(io::empty()) })
    }

    fn authorization(&self) -> Option<String> {
        let Credentials { username, password } = self.credentials.as_ref()?;
        Some(format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
    }

    fn answered(&mut self, response: Response<Body>, content_type: &str) -> Result<(), SyncError> {
        let url = || self.shown.clone();
        match (response.status().as_u16(), &self.credentials) {
            (200, _) => {}
            (401 | 403, Some(credentials)) => {
                return Err(SyncError::CredentialsRefused { url: url(), username: credentials.username.clone() });
            }
            (401 | 403, None) => return Err(SyncError::CredentialsWanted { url: url() }),
            (404 | 410, _) => return Err(SyncError::NoRepository { url: url() }),
            (status, _) => return Err(SyncError::Status { url: url(), status }),
        }
        let told = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if told.is_none_or(|told| told.split(';').next() != Some(content_type)) {
            return Err(SyncError::NoRepository { url: url() });
        }
        self.reader = Box::new(BufReader::new(response.into_body().into_reader()));
        Ok(())
    }

    fn not_answered(&self, error: ureq::Error) -> SyncError {
        if self.halt.is_halted() {
            return SyncError::Halted;
        }
        let url = self.shown.clone();
        match error {
            ureq::Error::HostNotFound => SyncError::NoHost { host: self.host() },
            ureq::Error::RequireHttpsOnly(_) => {
                SyncError::Url { url, problem: "it leads to one that is not encrypted" }
            }
            ureq::Error::Io(error) if names_no_host(&error) => SyncError::NoHost { host: self.host() },
            ureq::Error::Rustls(rustls::Error::InvalidCertificate(error)) => {
                SyncError::Certificate { url, problem: error.to_string() }
            }
            ureq::Error::Io(error) => self.broken(&error),
            other => SyncError::Unreachable { url, problem: self.told(&other.to_string()) },
        }
    }

    fn broken(&self, error: &io::Error) -> SyncError {
        if self.halt.is_halted() {
            return SyncError::Halted;
        }
        let url = self.shown.clone();
        if error.kind() == io::ErrorKind::InvalidData && error.get_ref().is_some_and(|inner| inner.is::<NoPacket>()) {
            return SyncError::Protocol { url, problem: NoPacket.to_string() };
        }
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return SyncError::Unreachable { url, problem: "the connection broke off".to_owned() };
        }
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(problem)) = inner {
            return SyncError::Certificate { url, problem: problem.to_string() };
        }
        SyncError::Unreachable { url, problem: self.told(&error.to_string()) }
    }

    fn told(&self, text: &str) -> String {
        told(text, self.secret().as_deref())
    }

    fn host(&self) -> String {
        let authority = self.base.split('/').nth(2).unwrap_or_default();
        authority.split(':').next().unwrap_or(authority).to_owned()
    }
}

impl Wire for HttpWire {
    fn greet(&mut self) -> Result<(), SyncError> {
        let mut request = self.agent.get(format!("{}{ADVERTISEMENT}", self.base)).header("git-protocol", "version=2");
        if let Some(authorization) = self.authorization() {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let response = request.call().map_err(|error| self.not_answered(error))?;
        let elsewhere = response.get_uri().to_string();
        if let Some(base) = elsewhere.strip_suffix(ADVERTISEMENT)
            && base != self.base
        {
            // What was given for one host is not told another.
            if authority(base) != authority(&self.base) {
                self.credentials = None;
            }
            self.base = base.to_owned();
        }
        self.answered(response, "application/x-git-upload-pack-advertisement")
    }

    fn ask(&mut self, request: &[u8]) -> Result<(), SyncError> {
        let mut post = self
            .agent
            .post(format!("{}/git-upload-pack", self.base))
            .header("git-protocol", "version=2")
            .header(header::CONTENT_TYPE, "application/x-git-upload-pack-request")
            .header(header::ACCEPT, "application/x-git-upload-pack-result");
        if let Some(authorization) = self.authorization() {
            post = post.header(header::AUTHORIZATION, authorization);
        }
        let response = post.send(request).map_err(|error| self.not_answered(error))?;
        self.answered(response, "application/x-git-upload-pack-result")
    }

    fn reader(&mut self) -> &mut dyn BufRead {
        &mut *self.reader
    }

    fn failed(&mut self, error: io::Error) -> SyncError {
        self.broken(&error)
    }

    fn url(&self) -> String {
        self.shown.clone()
    }

    fn secret(&self) -> Option<String> {
        self.credentials.as_ref().map(|credentials| credentials.password.clone())
    }
}

fn authority(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    Some((scheme, rest.split('/').next()?))
}

fn names_no_host(error: &io::Error) -> bool {
    // The standard library has no kind for it.
    error.to_string().starts_with("failed to lookup address information")
}

/// The certificates that the host trusts: those of a company's own authority are among them.
fn trusting_the_system(url: &str) -> Result<TlsConfigBuilder, SyncError> {
    let loaded = rustls_native_certs::load_native_certs();
    if loaded.certs.is_empty() {
        let why = loaded.errors.first().map_or_else(
            || "this host trusts no authority: install its package ca-certificates".to_owned(),
            |error| format!("the authorities that this host trusts cannot be read: {error}"),
        );
        return Err(SyncError::Certificate { url: shown(url), problem: why });
    }
    let certificates = loaded.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned());
    Ok(TlsConfig::builder().root_certs(RootCerts::from(certificates.collect::<Vec<_>>())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_apart_with_their_ports_and_schemes() {
        assert_eq!(authority("https://host/a"), authority("https://host/b/c"));
        assert_ne!(authority("https://host/a"), authority("https://host:8443/a"));
        assert_ne!(authority("https://host/a"), authority("http://host/a"));
    }
}
