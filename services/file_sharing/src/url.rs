//! From the URL in a job to the names on the way to a file.

use crate::error::Refusal;

/// Longest URL that is looked at, in bytes: no system opens a longer path at once.
pub const URL_BYTES_MAX: usize = 4096;

/// Longest part of a refused URL that an error repeats, in characters.
const SHOWN_CHARACTERS_MAX: usize = 200;

/// What every URL begins with.
const SCHEME: &str = "nf://";

/// The names on the way from the shared folder to what a client asks for. Empty for the shared folder itself. `..` is
/// among them where the client wrote it: only the tree can tell where that leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedPath {
    pub(crate) names: Vec<String>,
}

impl SharedPath {
    /// Parses `nf://a/b`. Slashes at the start are dropped, a backslash is a slash.
    pub(crate) fn parse(url: &str) -> Result<Self, Refusal> {
        let Some(path) = url.strip_prefix(SCHEME) else {
            return Err(Refusal::Format { url: shown(url) });
        };
        if url.len() > URL_BYTES_MAX || path.contains('\0') {
            return Err(Refusal::Path { url: shown(url) });
        }
        let names = path.split(['/', '\\']).filter(|name| !name.is_empty() && *name != ".");
        Ok(Self { names: names.map(str::to_owned).collect() })
    }

    /// Whether the names as written, links aside, lead above the shared folder.
    pub(crate) fn climbs_out(&self) -> bool {
        let mut depth = 0_usize;
        self.names.iter().any(|name| {
            if name != ".." {
                depth += 1;
                return false;
            }
            match depth.checked_sub(1) {
                Some(above) => depth = above,
                None => return true,
            }
            false
        })
    }
}

/// The URL of a file, from its names.
pub(crate) fn file_url(directory: &[String], name: &str) -> String {
    let mut url = String::from(SCHEME);
    for directory in directory {
        url.push_str(directory);
        url.push('/');
    }
    url.push_str(name);
    url
}

/// A URL as errors repeat it: whole, unless no URL of a file could be that long.
fn shown(url: &str) -> String {
    if url.len() <= URL_BYTES_MAX {
        return url.to_owned();
    }
    let start: String = url.chars().take(SHOWN_CHARACTERS_MAX).collect();
    format!("{start}...")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(url: &str) -> Vec<String> {
        SharedPath::parse(url).expect("a URL").names
    }

    #[test]
    fn slashes_at_the_start_double_slashes_and_dots_are_dropped() {
        assert_eq!(names("nf:///etc/passwd"), ["etc", "passwd"]);
        assert_eq!(names("nf://d/.//a.txt/"), ["d", "a.txt"]);
        assert_eq!(names("nf://\\d\\a.txt"), ["d", "a.txt"]);
        assert_eq!(names("nf://"), Vec::<String>::new());
        assert_eq!(names("nf://../x"), ["..", "x"]);
    }

    #[test]
    fn other_schemes_are_a_wrong_format_and_impossible_paths_a_wrong_path() {
        let refused = |url: &str| SharedPath::parse(url).expect_err("refused").to_string();
        assert_eq!(refused("http://x"), "'http://x' - invalid URL format");
        assert_eq!(refused("NF://x"), "'NF://x' - invalid URL format");
        assert_eq!(refused("nf://a\0b"), "'nf://a\0b' - invalid URL path");
        let long = format!("nf://{}", "ä".repeat(URL_BYTES_MAX));
        assert_eq!(refused(&long), format!("'nf://{}...' - invalid URL path", "ä".repeat(195)));
    }

    #[test]
    fn a_way_climbs_out_where_more_steps_lead_up_than_down() {
        let climbs = |url: &str| SharedPath::parse(url).expect("a URL").climbs_out();
        assert!(climbs("nf://../x") && climbs("nf://d/../../x") && climbs("nf://a/b/..\\..\\.."));
        assert!(!climbs("nf://d/../x") && !climbs("nf://a/...") && !climbs("nf://"));
    }
}
