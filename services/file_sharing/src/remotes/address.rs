//! Where a repository is: from the text of a URL to what can be opened.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::SyncError;

/// What GitHub takes for a password where the user name is a token.
const NO_PASSWORD: &str = "x-oauth-basic";

/// User name and password, for `https`. The password is not printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) username: String,
    pub(crate) password: String,
}

impl Credentials {
    /// Whether the user name is the secret: a token stands where the name does.
    pub(crate) fn is_token(&self) -> bool {
        is_no_password(&self.password)
    }

    /// What nobody is told.
    pub(crate) fn secret(&self) -> &str {
        if self.is_token() { &self.username } else { &self.password }
    }
}

/// Whether this is no password, but stands beside a token.
fn is_no_password(text: &str) -> bool {
    text.is_empty() || text == NO_PASSWORD
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let username = if self.is_token() { norfab_secrets::MASK } else { &self.username };
        formatter.debug_struct("Credentials").field("username", &username).finish_non_exhaustive()
    }
}

/// Where a repository is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// On this host.
    Local(PathBuf),
    /// `https` or `http`, without credentials in the URL.
    Http { url: String, credentials: Option<Credentials> },
    /// Through the `ssh` program, which knows keys, agents and hosts.
    Ssh { destination: String, port: Option<u16>, path: String },
}

impl Address {
    /// Reads a URL, or the path of a folder, relative to `base`. Errors: a scheme that is not known, or a part that would be
    /// taken for an option of the program it is given to.
    pub(crate) fn parse(url: &str, base: &Path) -> Result<Self, SyncError> {
        let wrong = |problem| SyncError::Url { url: shown(url), problem };
        if url.is_empty() || url.contains(char::is_control) {
            return Err(wrong("it is empty or holds control characters"));
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            return match scp_like(url) {
                Some((destination, path)) => ssh(destination, None, path).map_err(wrong),
                None => Ok(Self::Local(base.join(url))),
            };
        };
        match scheme.to_ascii_lowercase().as_str() {
            scheme @ ("http" | "https") => {
                let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
                let (credentials, host) = match authority.rsplit_once('@') {
                    Some((user, host)) => (Some(user), host),
                    None => (None, authority),
                };
                if host.is_empty() || path.contains(['?', '#']) {
                    return Err(wrong("it has no host, or a query"));
                }
                let credentials = credentials.map(|user| {
                    let (username, password) = user.split_once(':').unwrap_or((user, ""));
                    Credentials { username: unescaped(username), password: unescaped(password) }
                });
                let url = format!("{scheme}://{host}/{}", path.trim_end_matches('/'));
                Ok(Self::Http { url, credentials })
            }
            "ssh" | "git+ssh" | "ssh+git" => {
                let (authority, path) = rest.split_once('/').ok_or_else(|| wrong("it has no path"))?;
                let (user, host) = match authority.rsplit_once('@') {
                    // The ssh program takes no password, and its arguments are seen by all users of the host.
                    Some((user, host)) => (Some(user.split_once(':').map_or(user, |(user, _)| user)), host),
                    None => (None, authority),
                };
                let (host, port) = host_and_port(host).ok_or_else(|| wrong("its port is no number"))?;
                let destination = match user {
                    Some(user) => format!("{}@{host}", unescaped(user)),
                    None => host.to_owned(),
                };
                let path = unescaped(path);
                // `ssh://host/~user/x` is relative to the home of the user, as git has it.
                let path = if path.starts_with('~') { path } else { format!("/{path}") };
                ssh(&destination, port, &path).map_err(wrong)
            }
            "file" => {
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                if !path.starts_with('/') {
                    return Err(wrong("a file URL has three slashes and an absolute path"));
                }
                Ok(Self::Local(PathBuf::from(unescaped(path))))
            }
            _ => Err(wrong("its scheme is none of https, http, ssh and file")),
        }
    }
}

/// A URL as it may be shown.
pub(crate) fn shown(url: &str) -> String {
    // The user of ssh is no secret, as one of https may be, which can be a token.
    if let Some((scheme, rest)) = url.split_once("://")
        && scheme.to_ascii_lowercase().contains("ssh")
        && let Some((authority, _)) = rest.split_once('/')
        && authority.matches('@').count() == 1
        && authority.split('@').next().is_some_and(|user| !user.contains(':'))
    {
        return url.to_owned();
    }
    if let Some((scheme, rest)) = url.split_once("://")
        && let Some((user, place)) = rest.split(['/', '?']).next().and_then(|authority| authority.rsplit_once('@'))
        && user.split_once(':').is_some_and(|(_, password)| is_no_password(password))
    {
        let path = &rest[user.len() + "@".len() + place.len()..];
        return format!("{scheme}://{}@{place}{path}", norfab_secrets::MASK);
    }
    match norfab_secrets::masked(&Value::from(url)) {
        Value::String(shown) => shown,
        // A text stays one.
        _ => String::new(),
    }
}

/// `user@host:path`: a colon before the first slash.
fn scp_like(url: &str) -> Option<(&str, &str)> {
    let (destination, path) = url.split_once(':')?;
    (!destination.is_empty() && !destination.contains('/') && !path.is_empty()).then_some((destination, path))
}

fn host_and_port(host: &str) -> Option<(&str, Option<u16>)> {
    // An address of IPv6 is in brackets, which the ssh program does not want.
    if let Some(rest) = host.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        return match port.strip_prefix(':') {
            Some(port) => Some((host, Some(port.parse().ok()?))),
            None => Some((host, None)),
        };
    }
    match host.split_once(':') {
        Some((host, port)) => Some((host, Some(port.parse().ok()?))),
        None => Some((host, None)),
    }
}

fn ssh(destination: &str, port: Option<u16>, path: &str) -> Result<Address, &'static str> {
    let host = destination.rsplit('@').next().unwrap_or(destination);
    if host.is_empty() || host.starts_with('-') || destination.starts_with('-') || path.starts_with('-') {
        return Err("its host or path is empty or begins with a dash");
    }
    if destination.contains(char::is_whitespace)
        || destination.contains(char::is_control)
        || path.contains(char::is_control)
    {
        return Err("its host holds blanks, or host or path hold control characters");
    }
    Ok(Address::Ssh { destination: destination.to_owned(), port, path: path.to_owned() })
}

/// With `%41` as `A`. What is no such sequence stays as it is.
fn unescaped(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let digits = bytes.get(index + 1..index + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| bytes[index] == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                index += 3;
            }
            None => {
                plain.push(bytes[index]);
                index += 1;
            }
        }
    }
    String::from_utf8(plain).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(url, Path::new("/srv")).map_err(|error| error.to_string())
    }

    fn ssh(destination: &str, port: Option<u16>, path: &str) -> Result<Address, String> {
        Ok(Address::Ssh { destination: destination.to_owned(), port, path: path.to_owned() })
    }

    #[test]
    fn paths_and_file_urls_are_on_this_host() {
        assert_eq!(parse("repo.git"), Ok(Address::Local(PathBuf::from("/srv/repo.git"))));
        assert_eq!(parse("/a/b:c"), Ok(Address::Local(PathBuf::from("/a/b:c"))));
        assert_eq!(parse("file:///a/b%20c"), Ok(Address::Local(PathBuf::from("/a/b c"))));
        assert!(parse("file://host/a").is_err() && parse("").is_err() && parse("a\nb").is_err());
    }

    #[test]
    fn credentials_of_a_url_are_taken_out_of_it() {
        let http = |url: &str, credentials: Option<(&str, &str)>| {
            let credentials = credentials
                .map(|(username, password)| Credentials { username: username.into(), password: password.into() });
            Ok(Address::Http { url: url.to_owned(), credentials })
        };
        assert_eq!(parse("https://host:8443/a/b.git/"), http("https://host:8443/a/b.git", None));
        assert_eq!(parse("HTTPS://u:p%40s@host/a"), http("https://host/a", Some(("u", "p@s"))));
        assert_eq!(parse("https://token@host/a"), http("https://host/a", Some(("token", ""))));
        assert_eq!(shown("https://u:secret@host/a"), "https://u:********@host/a");
        for token in ["t0ken", "t0ken:", "t0ken:x-oauth-basic"] {
            assert_eq!(shown(&format!("https://{token}@host/a")), "https://********@host/a");
            let Ok(Address::Http { credentials: Some(credentials), .. }) = parse(&format!("https://{token}@host/a"))
            else {
                panic!("{token}");
            };
            assert_eq!((credentials.is_token(), credentials.secret()), (true, "t0ken"));
            assert!(!format!("{credentials:?}").contains("t0ken"));
        }
        assert_eq!(shown("ssh://git@host/a"), "ssh://git@host/a");
        assert_eq!(shown("ssh://git:secret@host/a"), "ssh://git:********@host/a");
        let error = parse("svn://u:secret@host/a").expect_err("refused");
        assert!(error.contains("none of https") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn ssh_has_two_forms() {
        assert_eq!(parse("git@host:team/a.git"), ssh("git@host", None, "team/a.git"));
        assert_eq!(parse("ssh://git@host:2222/team/a.git"), ssh("git@host", Some(2222), "/team/a.git"));
        assert_eq!(parse("ssh://u:secret@[::1]:22/~u/a"), ssh("u@::1", Some(22), "~u/a"));
    }

    #[test]
    fn nothing_is_taken_for_an_option_of_ssh() {
        for url in ["ssh://-oProxyCommand=x/a", "-oProxyCommand=x:a", "ssh://u@-x/a", "host:-x", "ssh://host:x/a"] {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
