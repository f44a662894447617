//! Names that are never served, wherever below the shared folder they are: by default that is the whole NorFab folder,
//! with the broker's secret key, job databases and the environment's passwords in it.

/// NorFab's own data: databases, logs, fetched files and keys.
const RUNTIME_FOLDER: &str = "__norfab__";

/// The end of the names of secret keys.
const SECRET_KEY_END: &str = ".key_secret";

/// The start of the names of files with environment variables: `.env`, `.env.local`, `.envrc`.
const ENVIRONMENT_START: &str = ".env";

/// Whether nothing of this name is listed, described or sent.
pub(crate) fn is_hidden(name: &[u8]) -> bool {
    let folded = fold(&String::from_utf8_lossy(name));
    folded == RUNTIME_FOLDER || folded.ends_with(SECRET_KEY_END) || folded.starts_with(ENVIRONMENT_START)
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
            assert!(is_hidden(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn other_names_are_served() {
        for name in ["__pycache__", "norfab", "broker.key", "key_secret", "env", "a.env", ".git", "inventory.yaml", ""]
        {
            assert!(!is_hidden(name.as_bytes()), "{name}");
        }
        assert!(!is_hidden(b"\xff.key_secre"));
    }

    #[test]
    fn a_name_that_is_no_text_is_hidden_by_the_part_that_is() {
        assert!(is_hidden(b"\xff.key_secret") && is_hidden(b".env\xff"));
    }
}
