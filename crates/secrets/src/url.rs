//! Secrets in URLs: `scheme://user:password@host`, `scheme://token@host`.

use crate::MASK;

/// What begins the part of a URL with its host.
const BEGIN: &str = "://";

/// `text` with what is secret in its URLs masked.
pub(crate) fn masked(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let (before, url) = rest.split_at(at + BEGIN.len());
        shown.push_str(before);
        let end = url.find(char::is_whitespace).unwrap_or(url.len());
        match secret(&url[..end]) {
            Some((from, to)) => {
                shown.push_str(&url[..from]);
                shown.push_str(MASK);
                rest = &url[to..];
            }
            None => rest = url,
        }
    }
    shown.push_str(rest);
    shown
}

/// Where the secret stands in what follows `://`, up to the next blank.
///
/// A password may itself hold the characters that end the part with the host, so the last `@` ends it: rather too much is
/// masked than too little. Without one in that part, `host:80/a@b` is a host with its port, `user:a/b@host` a password.
fn secret(url: &str) -> Option<(usize, usize)> {
    let at = url.rfind('@')?;
    let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    match (authority.find(':'), authority.contains('@')) {
        (None, false) => None,
        (Some(colon), false) if authority[colon + 1..].parse::<u16>().is_ok() => None,
        (Some(colon), _) if url.find('@').is_some_and(|first| colon < first) => Some((colon + 1, at)),
        // A token alone, or a name: nobody can tell.
        (Some(_) | None, _) => Some((0, at)),
    }
}

#[cfg(test)]
mod tests {
    use super::masked;

    #[test]
    fn passwords_and_tokens_are_masked_whatever_they_hold() {
        for (text, shown) in [
            ("redis://user:pass@host:1/0", "redis://user:********@host:1/0"),
            ("redis://user:pa:ss@host", "redis://user:********@host"),
            ("redis://user:pa/ss@host", "redis://user:********@host"),
            ("redis://user:pa?ss@host", "redis://user:********@host"),
            ("redis://user:pa#ss@host", "redis://user:********@host"),
            ("redis://user:pa@ss/x@host", "redis://user:********@host"),
            ("redis://:pass@host", "redis://:********@host"),
            ("https://TOKEN@host/a.git", "https://********@host/a.git"),
            ("https://TOK@EN@host", "https://********@host"),
            (
                "first http://host/ then https://u:p@a and ftp://u:q@b",
                "first http://host/ then https://u:********@a and ftp://u:********@b",
            ),
            ("http://host/?to=redis://u:p@h", "http://host/?to=redis://u:********@h"),
            ("a://u:p@h,b://u:q@i", "a://u:********@i"),
        ] {
            assert_eq!(masked(text), shown);
        }
    }

    #[test]
    fn urls_without_secrets_and_other_texts_stay() {
        for text in ["", "://", "a@b", "http://host:80/a@b", "https://host/@scope/x", "x://h y@z"] {
            assert_eq!(masked(text), text);
        }
    }
}
