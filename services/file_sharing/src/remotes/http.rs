//! The way to a server through `https`, or `http`.

use std::io::{self, BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ureq::http::{Response, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsConfigBuilder};
use ureq::{Agent, Body};

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
            // They are followed here: where they lead decides about the credentials.
            .max_redirects(0)
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
            (401 | 403, Some(credentials)) if credentials.is_token() => {
                return Err(SyncError::TokenRefused { url: url() });
            }
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
            ureq::Error::RequireHttpsOnly(_) => not_encrypted(url),
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
        let mut target = format!("{}{ADVERTISEMENT}", self.base);
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.agent.get(&target).header("git-protocol", "version=2");
            if let Some(authorization) = self.authorization() {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let response = request.call().map_err(|error| self.not_answered(error))?;
            if !response.status().is_redirection() {
                if let Some(base) = target.strip_suffix(ADVERTISEMENT) {
                    self.base = base.to_owned();
                }
                return self.answered(response, "application/x-git-upload-pack-advertisement");
            }
            let location = response.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
            let Some(next) = location.and_then(|location| redirected(&target, location)) else {
                return self.answered(response, "");
            };
            if target.starts_with("https://") && !next.starts_with("https://") {
                return Err(not_encrypted(self.shown.clone()));
            }
            // What was given for one host is not told another.
            if authority(&next) != authority(&target) {
                self.credentials = None;
            }
            target = next;
        }
        let problem = format!("it leads elsewhere more than {REDIRECTS_MAX} times");
        Err(SyncError::Unreachable { url: self.shown.clone(), problem })
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
        self.credentials.as_ref().map(|credentials| credentials.secret().to_owned())
    }
}

fn not_encrypted(url: String) -> SyncError {
    SyncError::Url { url, problem: "it leads to one that is not encrypted" }
}

/// Scheme, and host with its port.
fn authority(url: &str) -> Option<(String, String)> {
    let (scheme, rest) = url.split_once("://")?;
    let (scheme, host) = (scheme.to_ascii_lowercase(), rest.split(['/', '?']).next()?.to_ascii_lowercase());
    let usual = if scheme == "https" { ":443" } else { ":80" };
    let host = host.strip_suffix(usual).unwrap_or(&host).to_owned();
    Some((scheme, host))
}

/// Where a server sends us, without credentials in it; `None` where that cannot be followed.
fn redirected(from: &str, location: &str) -> Option<String> {
    let location = location.split('#').next().unwrap_or_default();
    if location.is_empty() || location.contains(|character: char| character.is_control() || character.is_whitespace()) {
        return None;
    }
    let (scheme, rest) = from.split_once("://")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let absolute = location.split(['/', '?']).next().is_some_and(|start| start.ends_with(':'));
    let whole = if absolute {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{host}{location}")
    } else {
        let path = path.split('?').next().unwrap_or_default();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let slash = if folder.is_empty() { "" } else { "/" };
        format!("{scheme}://{host}/{folder}{slash}{location}")
    };
    let (scheme, rest) = whole.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    (matches!(scheme.as_str(), "http" | "https") && !host.is_empty()).then(|| format!("{scheme}://{host}{path}"))
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
        assert_eq!(authority("https://host/a"), authority("https://HOST:443/a"));
        assert_ne!(authority("https://host/a"), authority("https://host:80/a"));
    }

    #[test]
    fn a_server_may_send_us_elsewhere_in_many_ways_and_with_no_credentials_of_its_own() {
        let from = |location: &str| redirected("https://host:1/g/p/info/refs?service=x", location);
        for (location, target) in [
            ("https://other/g/p.git/info/refs?service=x", "https://other/g/p.git/info/refs?service=x"),
            ("HTTP://u:p@other/a#b", "http://other/a"),
            ("//other/a", "https://other/a"),
            ("/g/p.git/info/refs?service=x", "https://host:1/g/p.git/info/refs?service=x"),
            ("b?u=http://x/y", "https://host:1/g/p/info/b?u=http://x/y"),
        ] {
            assert_eq!(from(location).as_deref(), Some(target), "{location}");
        }
        assert_eq!(redirected("http://host/refs", "b").as_deref(), Some("http://host/b"));
        for location in ["", "file:///etc/passwd", "https:///a", "/a b", "/a\nb", "#x"] {
            assert_eq!(from(location), None, "{location}");
        }
    }
}
