//! Paths that a peer wrote, for files that are written here: input that may be meant to lead elsewhere.

use std::fmt;

use crate::names::{fold, is_never_served_folded, may_be_hidden};

/// Longest path that is taken, in bytes: no system opens a longer one at once, and no URL holds one.
pub const PATH_BYTES_MAX: usize = 4096;

/// Longest name in it: file systems take no longer ones.
pub const NAME_BYTES_MAX: usize = 255;

/// Most names in it. Each folder on the way may be open at the same time.
pub const NAMES_MAX: usize = 128;

/// A path below some folder: names with slashes between them, none of which leads anywhere but one level down.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePath(String);

/// Why a path is none that is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPath {
    /// Nothing is named.
    #[error("it is empty")]
    Empty,
    /// It begins at the root, or has two slashes behind each other, or one at its end.
    #[error("it has an empty name: a slash at its beginning or end, or two behind each other")]
    EmptyName,
    /// `.` or `..`.
    #[error("it leads elsewhere: '.' or '..' is in it")]
    Dots,
    /// A backslash or NUL.
    #[error("a backslash or NUL is in it")]
    Character,
    /// Too long, or too many names.
    #[error(
        "it is longer than {PATH_BYTES_MAX} bytes, has a name of more than {NAME_BYTES_MAX}, or more than {NAMES_MAX} names"
    )]
    TooLong,
    /// A name that no worker serves, as what is in it is believed here: keys, the environment, what git or NorFab keep.
    #[error(
        "no worker serves a file of this name: it would be taken for keys, an environment, or data of git or NorFab"
    )]
    NeverServed,
    /// The name of a file that gathers.
    #[error("it has the name of a file that is not whole")]
    Part,
}

impl RelativePath {
    /// Checks a path. Names such as `con` or `a:b`, that mean something on other systems, are names here. Errors: what of it is not as it
    /// should be.
    pub fn parse(path: &str) -> Result<Self, NoPath> {
        if path.is_empty() {
            return Err(NoPath::Empty);
        }
        if path.len() > PATH_BYTES_MAX || path.split('/').count() > NAMES_MAX {
            return Err(NoPath::TooLong);
        }
        if path.contains(['\\', '\0']) {
            return Err(NoPath::Character);
        }
        for name in path.split('/') {
            match name {
                "" => return Err(NoPath::EmptyName),
                "." | ".." => return Err(NoPath::Dots),
                name if name.len() > NAME_BYTES_MAX => return Err(NoPath::TooLong),
                name if is_never_served(name) => return Err(NoPath::NeverServed),
                name if crate::part::is_part_name(name.as_bytes()) => return Err(NoPath::Part),
                _ => {}
            }
        }
        Ok(Self(path.to_owned()))
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The folders on the way, without slashes at the ends, and the last name.
    pub fn split(&self) -> (&str, &str) {
        self.0.rsplit_once('/').unwrap_or(("", &self.0))
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Names that workers of ours never serve, in any form.
fn is_never_served(name: &str) -> bool {
    may_be_hidden(name.as_bytes()) && is_never_served_folded(&fold(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_goes_down_and_nowhere_else() {
        for path in
            ["a", "a/b", "a b/\u{e4}", "...", "a/..b", "con", "a:b", "c:", "~", "-r", ".hidden", "a\nb", "x.part"]
        {
            assert_eq!(RelativePath::parse(path).map(|path| path.to_string()), Ok(path.to_owned()));
        }
        assert_eq!(RelativePath::parse("a/b/c").expect("a path").split(), ("a/b", "c"));
        assert_eq!(RelativePath::parse("a").expect("a path").split(), ("", "a"));
        // All forms of names that workers hide.
        for path in [
            "b.key_secret.bak",
            "b.key_secret~",
            ".g\u{200c}it/hooks/x",
            ".git./x",
            "__norfab__ /x",
            "a/\u{200b}.env",
            ".git:x",
        ] {
            assert_eq!(RelativePath::parse(path), Err(NoPath::NeverServed), "{path:?}");
        }
        let long = "n".repeat(NAME_BYTES_MAX + 1);
        let deep = vec!["d"; NAMES_MAX + 1].join("/");
        let longest = vec!["n".repeat(200); 30].join("/");
        for (path, why) in [
            ("", NoPath::Empty),
            ("/etc/passwd", NoPath::EmptyName),
            ("a//b", NoPath::EmptyName),
            ("a/", NoPath::EmptyName),
            ("..", NoPath::Dots),
            ("../a", NoPath::Dots),
            ("a/../../b", NoPath::Dots),
            ("./a", NoPath::Dots),
            ("a/.", NoPath::Dots),
            ("..\\a", NoPath::Character),
            ("c:\\windows", NoPath::Character),
            ("a\0", NoPath::Character),
            (long.as_str(), NoPath::TooLong),
            (deep.as_str(), NoPath::TooLong),
            (longest.as_str(), NoPath::TooLong),
            (".git/hooks/post-checkout", NoPath::NeverServed),
            ("a/.GIT/config", NoPath::NeverServed),
            ("__NorFab__/files", NoPath::NeverServed),
            (".env", NoPath::NeverServed),
            (".envrc", NoPath::NeverServed),
            ("k/broker.key_secret", NoPath::NeverServed),
            (".a.part", NoPath::Part),
            (".a.part/b", NoPath::Part),
        ] {
            assert_eq!(RelativePath::parse(path), Err(why), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_taken_has_only_names_that_go_down(path in "[./\\\\a\0:]{0,12}") {
            if let Ok(parsed) = RelativePath::parse(&path) {
                let names: Vec<_> = std::path::Path::new(parsed.as_str()).components().collect();
                prop_assert!(names.iter().all(|name| matches!(name, std::path::Component::Normal(_))));
                prop_assert_eq!(names.len(), path.split('/').count());
            }
        }
    }
}
