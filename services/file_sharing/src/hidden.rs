//! Names that are never served, wherever below the shared folder they are: by default that is the whole NorFab folder,
//! with the broker's secret key, job databases and the environment's passwords in it. And names that begin with a dot, where the
//! inventory does not list them: what programs and people put out of sight is not meant for others.

use glob::Pattern;

/// NorFab's own data: databases, logs, fetched files and keys.
const RUNTIME_FOLDER: &str = "__norfab__";

/// What git keeps of a working copy: old versions, and credentials in its configuration.
const GIT_FOLDER: &str = ".git";

/// The end of the names of secret keys.
const SECRET_KEY_END: &str = ".key_secret";

/// The start of the names of files with environment variables: `.env`, `.env.local`, `.envrc`.
const ENVIRONMENT_START: &str = ".env";

/// Which names are served that begin with a dot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hidden {
    dotfiles: Vec<Pattern>,
}

impl Hidden {
    /// Those that match one of these patterns are.
    pub(crate) fn but(dotfiles: Vec<Pattern>) -> Self {
        Self { dotfiles }
    }

    /// Whether nothing of this name is listed, described, sent or taken.
    pub(crate) fn is(&self, name: &[u8]) -> bool {
        if is_never_served(name) {
            return true;
        }
        name.first() == Some(&b'.')
            && !str::from_utf8(name).is_ok_and(|name| self.dotfiles.iter().any(|pattern| pattern.matches(name)))
    }
}

/// As [`Hidden::is`], whatever the inventory lists.
pub(crate) fn is_never_served(name: &[u8]) -> bool {
    let folded = fold(&String::from_utf8_lossy(name));
    // Systems of Windows open a file also with dots and blanks behind its name, and with a colon and the name of a stream.
    let folded = folded.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
    folded == RUNTIME_FOLDER
        || folded == GIT_FOLDER
        || folded.ends_with(SECRET_KEY_END)
        || folded.starts_with(ENVIRONMENT_START)
}

/// Whether a name may be a second, short one, such as `PRIVAT~1` for `private_keys`, by which file systems of Windows open a file,
/// too. Nobody can tell from it what the file is called: it is only served where it is listed.
pub(crate) fn may_be_short(name: &[u8]) -> bool {
    name.windows(2).any(|pair| pair[0] == b'~' && pair[1].is_ascii_digit())
}

/// Some file systems open a file by its name in any case. Up and down again also folds letters such as the long s.
fn fold(name: &str) -> String {
    name.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_data_secret_keys_and_environments_are_hidden_in_any_case() {
        let hidden = [
            "__norfab__",
            "__NorFab__",
            "broker.key_secret",
            "b.KEY_SECRET",
            "b.key_\u{17f}ecret",
            "b.\u{212a}ey_secret",
        ];
        let environments = [".env", ".env.local", ".envrc", ".ENV"];
        for name in hidden.into_iter().chain(environments) {
            assert!(Hidden::but(vec![Pattern::new("*").expect("a pattern")]).is(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn other_spellings_of_windows_are_hidden_too() {
        let listed = Hidden::but(vec![Pattern::new("*").expect("a pattern")]);
        for name in ["__norfab__.", "__NorFab__. .", ".git ", "b.key_secret..", "b.key_secret::$DATA", ".env. "] {
            assert!(listed.is(name.as_bytes()), "{name}");
        }
        for name in ["a.", "norfab. ", "12:30", ":x", "..."] {
            assert!(!listed.is(name.as_bytes()), "{name}");
        }
        assert!(may_be_short(b"PRIVAT~1") && may_be_short(b"GIT~12.KEY"));
        assert!(!may_be_short(b"a~") && !may_be_short(b"~a1") && !may_be_short(b"1~.txt"));
    }

    #[test]
    fn other_names_are_served() {
        for name in ["__pycache__", "norfab", "broker.key", "key_secret", "env", "a.env", "git", "inventory.yaml", ""] {
            assert!(!Hidden::default().is(name.as_bytes()), "{name}");
        }
        assert!(!Hidden::default().is(b"\xff.key_secre"));
    }

    #[test]
    fn a_name_that_is_no_text_is_hidden_by_the_part_that_is() {
        assert!(Hidden::default().is(b"\xff.key_secret") && Hidden::default().is(b".env\xff"));
    }

    #[test]
    fn names_that_begin_with_a_dot_are_served_only_where_they_are_listed() {
        let listed =
            Hidden::but(vec![Pattern::new(".git*").expect("a pattern"), Pattern::new(".vimrc").expect("a pattern")]);
        for name in [".gitignore", ".github", ".vimrc"] {
            assert!(!listed.is(name.as_bytes()) && Hidden::default().is(name.as_bytes()), "{name}");
        }
        for name in [".git", ".GIT", ".vimrc2", ".copy.part", ".gitignore\u{fffd}".get(..5).expect("ascii"), "."] {
            assert!(Hidden::default().is(name.as_bytes()), "{name}");
        }
        assert!(listed.is(b".git") && listed.is(b".x\xff"));
    }
}
