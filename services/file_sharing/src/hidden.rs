//! Names that are never served, wherever below the shared folder they are: by default that is the whole NorFab folder,
//! with the broker's secret key, job databases and the environment's passwords in it. And names that begin with a dot, where the
//! inventory does not list them: what programs and people put out of sight is not meant for others.
//!
//! A file system may open a file by another name than it has: in another case, with characters that cannot be seen in it, with a dot or
//! a blank behind it. All of these names are hidden where one of them is.

use glob::Pattern;
use norfab_files::names::{fold, is_never_served_folded, may_be_hidden};
use norfab_files::part::is_part_name;

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
        if !may_be_hidden(name) {
            return false;
        }
        let folded = fold(&String::from_utf8_lossy(name));
        // A file that is not whole is nobody's yet, whatever is listed.
        if is_never_served_folded(&folded) || is_part_name(folded.as_bytes()) {
            return true;
        }
        folded.starts_with('.')
            && !str::from_utf8(name).is_ok_and(|name| self.dotfiles.iter().any(|pattern| pattern.matches(name)))
    }
}

/// As [`Hidden::is`], whatever the inventory lists.
pub(crate) fn is_never_served(name: &[u8]) -> bool {
    is_never_served_folded(&fold(&String::from_utf8_lossy(name)))
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
        let parts = [".a.part", ".A.PART", ".a.1.part", ".a.part."];
        for name in hidden.into_iter().chain(environments).chain(parts) {
            assert!(Hidden::but(vec![Pattern::new("*").expect("a pattern")]).is(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn names_by_which_some_file_system_opens_what_is_hidden_are_hidden() {
        let names = [
            "__norfab__.",
            "__norfab__ ",
            "__norfab__. .",
            "__nor\u{200c}fab__",
            "\u{feff}__norfab__",
            "__norfab__::$INDEX_ALLOCATION",
            ".git:x",
            ".g\u{ad}it",
            "\u{200b}.env",
            "b.key_secret~",
            "b.key_secret.bak",
            "b.key_secret::$DATA",
            "b.key_\u{2060}secret",
        ];
        for name in names {
            assert!(is_never_served(name.as_bytes()), "{name:?}");
        }
        assert!(Hidden::default().is("\u{200b}.vimrc".as_bytes()));
        assert!(!Hidden::default().is("caf\u{e9}: \u{200d}.".as_bytes()) && !Hidden::default().is(b" "));
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
