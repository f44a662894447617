//! Names that no worker of ours serves, and that are written nowhere for a worker: keys, environments, what git and NorFab keep. In all
//! forms by which some file system opens them.

/// NorFab's own data: databases, logs, fetched files and keys.
const RUNTIME_FOLDER: &str = "__norfab__";

/// What git keeps of a working copy: old versions, and credentials in its configuration.
const GIT_FOLDER: &str = ".git";

/// What the names of secret keys end with, and those of their copies have in them: `broker.key_secret~`.
const SECRET_KEY_PART: &str = ".key_secret";

/// The start of the names of files with environment variables: `.env`, `.env.local`, `.envrc`.
const ENVIRONMENT_START: &str = ".env";

/// Whether a name may be one that workers hide, in any form. Most names are not: all that is hidden begins with a dot or has an
/// underscore, in every form of its name that is plain ASCII.
pub fn may_be_hidden(name: &[u8]) -> bool {
    !name.is_ascii() || name.first() == Some(&b'.') || name.contains(&b'_')
}

/// Whether no worker serves a name, whatever its inventory lists, that was folded: what is under it is believed where it lies.
pub fn is_never_served_folded(folded: &str) -> bool {
    folded == RUNTIME_FOLDER
        || folded == GIT_FOLDER
        || folded.contains(SECRET_KEY_PART)
        || folded.starts_with(ENVIRONMENT_START)
}

/// The name that stands for all by which some file system opens the same file. Up and down again also folds letters such as the long s;
/// what is behind a colon is a stream of the file.
pub fn fold(name: &str) -> String {
    let seen = name.chars().filter(|character| !is_ignorable(*character));
    let folded: String = seen.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    let file = folded.split(':').next().unwrap_or_default();
    match file.trim_end_matches(['.', ' ']) {
        // Nothing but dots and blanks.
        "" => folded,
        trimmed => trimmed.to_owned(),
    }
}

/// Characters that file systems which fold cases leave out of names: Unicode's `Default_Ignorable_Code_Point`.
fn is_ignorable(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}
