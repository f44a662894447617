//! Why a git remote cannot be synchronized. No text has a password in it.

use std::io;

use rustix::io::Errno;

/// Longest text of a server that an error repeats, in characters.
const TOLD_CHARACTERS_MAX: usize = 300;

/// Why a remote was not synchronized. What stands for the repository is its URL without what is secret in it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SyncError {
    #[error("branch '{branch}' not found in {url}")]
    NoBranch { branch: String, url: String },
    #[error("{url} is not a git repository: check the URL")]
    NoRepository { url: String },
    #[error("{url} is a git repository of a kind that cannot be read: {problem}")]
    UnknownFormat { url: String, problem: &'static str },
    #[error(
        "{url} belongs to another user of this host ({owner}), who could harm this worker through it: list it under \
         trusted_repositories in the inventory if that is meant"
    )]
    ForeignOwner { url: String, owner: u32 },
    #[error("the URL {url} cannot be used: {problem}")]
    Url { url: String, problem: &'static str },
    #[error("host '{host}' not found: check the URL and the name service")]
    NoHost { host: String },
    #[error("{url} cannot be reached: {problem}")]
    Unreachable { url: String, problem: String },
    #[error("{url} refused the credentials of '{username}': check username and password")]
    CredentialsRefused { url: String, username: String },
    #[error("{url} refused the token in the URL: check it")]
    TokenRefused { url: String },
    #[error("{url} wants credentials, or there is no such repository: give username and password")]
    CredentialsWanted { url: String },
    #[error("the certificate of {url} is not trusted: {problem}")]
    Certificate { url: String, problem: String },
    #[error("{url} answered with HTTP status {status}")]
    Status { url: String, status: u16 },
    #[error("{url} said: {told}")]
    Told { url: String, told: String },
    #[error("{url} was not understood: {problem}")]
    Protocol { url: String, problem: String },
    #[error("the repository is too large: more than {bound} {what}")]
    TooLarge { bound: u64, what: &'static str },
    #[error("the stored repository cannot be read: {problem}")]
    Damaged { problem: String },
    #[error("the folder 'nf://{mount}' is not one of this remote and has content: move it away or mount elsewhere")]
    Taken { mount: String },
    #[error("the folder 'nf://{mount}' is git remote '{remote}' of worker '{worker}': mount elsewhere")]
    OfOther { mount: String, remote: String, worker: String },
    #[error(
        "'__norfab__' in the shared folder is a link or a file: files of git remotes are written there before they take their \
         place, so it must be a folder on the same file system, or base_dir another folder"
    )]
    ReservedLink,
    #[error("'nf://{mount}' cannot be a folder: '{name}' on the way to it is a file or a link")]
    NoFolder { mount: String, name: String },
    #[error("'nf://{mount}' is on another file system than the shared folder: mount elsewhere")]
    OtherFileSystem { mount: String },
    #[error("cannot {what}: {source}")]
    Disk { what: &'static str, source: io::Error },
    #[error("it was ended before it was complete")]
    Halted,
    #[error("it took longer than {seconds} s")]
    TooLong { seconds: u64 },
}

impl SyncError {
    /// Makes an error of the disk from what was tried.
    pub(crate) fn disk<Source: Into<io::Error>>(what: &'static str) -> impl Fn(Source) -> Self {
        move |source| Self::Disk { what, source: source.into() }
    }

    /// As [`Self::disk`], for calls that give a bare number.
    pub(crate) fn errno(what: &'static str) -> impl Fn(Errno) -> Self {
        Self::disk(what)
    }
}

/// What a server said, fit for an error: one line of printable text, not too long, without the secret.
pub(crate) fn told(text: &str, secret: Option<&str>) -> String {
    let text = match secret {
        Some(secret) if !secret.is_empty() => text.replace(secret, "***"),
        _ => text.to_owned(),
    };
    let lines: Vec<&str> = text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty()).collect();
    let line: String = lines.join("; ").chars().filter(|character| !character.is_control()).collect();
    if line.chars().count() <= TOLD_CHARACTERS_MAX {
        return line;
    }
    let start: String = line.chars().take(TOLD_CHARACTERS_MAX).collect();
    format!("{start}...")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_one_line_without_the_secret() {
        assert_eq!(told("fatal: no\u{1b}[31m\n\n  bad s3cret\r\n", Some("s3cret")), "fatal: no[31m; bad ***");
        assert_eq!(told(&"x".repeat(400), None).len(), TOLD_CHARACTERS_MAX + 3);
        assert_eq!(told("a", Some("")), "a");
    }
}
