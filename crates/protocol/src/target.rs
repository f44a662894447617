//! Whom a job is for.

use bytes::Bytes;

/// Longest target frame in bytes: room for a list of 4,000 long worker names.
pub const TARGET_BYTES_MAX: usize = 1 << 20;

/// The target frame of a client's request, parsed as far as that is possible without the registry: a text that looks
/// like a list can still be the name of a worker, so the broker tries the text first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// One worker of the service, the broker's choice.
    Any,
    /// Every worker of the service.
    All,
    /// A text: a worker's name, or a JSON list of names.
    Text(String),
}

/// Why a target frame is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Not UTF-8.
    #[error("target is not UTF-8")]
    NotUtf8,
    /// Longer than [`TARGET_BYTES_MAX`].
    #[error("target has {bytes} bytes, at most {TARGET_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

impl Target {
    /// Parses the target frame. Errors: not UTF-8, too long.
    pub fn from_frame(frame: &[u8]) -> Result<Self, TargetError> {
        if frame.len() > TARGET_BYTES_MAX {
            return Err(TargetError::TooLong { bytes: frame.len() });
        }
        let text = std::str::from_utf8(frame).map_err(|_| TargetError::NotUtf8)?;
        Ok(Self::parse(text))
    }

    /// Reads a target as people type it: `any`, `all`, a name, or a JSON list of names. A comma-separated list is for
    /// the command line: see [`Target::from_words`].
    pub fn parse(text: &str) -> Self {
        match text {
            "any" => Self::Any,
            "all" => Self::All,
            text => Self::Text(text.to_owned()),
        }
    }

    /// Reads `any`, `all`, `name` or `name,name`.
    pub fn from_words(text: &str) -> Self {
        if text.contains(',') && !text.starts_with('[') {
            let names: Vec<&str> = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
            return Self::list(names);
        }
        Self::parse(text)
    }

    /// The target for a list of names, in the form that goes on the wire.
    pub fn list<Name: AsRef<str>>(names: impl IntoIterator<Item = Name>) -> Self {
        let names: Vec<serde_json::Value> = names.into_iter().map(|name| name.as_ref().into()).collect();
        Self::Text(serde_json::Value::Array(names).to_string())
    }

    /// The text that goes on the wire and into the broker's answers.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Any => "any",
            Self::All => "all",
            Self::Text(text) => text,
        }
    }

    /// The frame.
    pub fn to_frame(&self) -> Bytes {
        match self {
            Self::Any => Bytes::from_static(b"any"),
            Self::All => Bytes::from_static(b"all"),
            Self::Text(text) => Bytes::copy_from_slice(text.as_bytes()),
        }
    }

    /// The workers that the target names: one, or those of a list. `None`: it names none, it is `any` or `all`.
    pub fn names(&self) -> Option<Vec<String>> {
        let Self::Text(text) = self else { return None };
        Some(self.listed_names().unwrap_or_else(|| vec![text.clone()]))
    }

    /// The names in a JSON list; those before the first element that is not a text. `None`: not a list.
    pub fn listed_names(&self) -> Option<Vec<String>> {
        let Self::Text(text) = self else { return None };
        if !text.trim_start().starts_with('[') {
            return None;
        }
        let values: Vec<serde_json::Value> = serde_json::from_str(text).ok()?;
        Some(values.iter().map_while(|value| value.as_str().map(str::to_owned)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_the_targets_that_the_wire_knows() {
        assert_eq!(Target::from_words("any"), Target::Any);
        assert_eq!(Target::from_words("a,b").as_str(), r#"["a","b"]"#);
        assert_eq!(Target::from_words("a").as_str(), "a");
    }

    #[test]
    fn a_list_is_read_up_to_its_first_element_that_is_no_text() {
        let target = Target::parse(r#"["a",1,"b"]"#);
        assert_eq!(target.listed_names(), Some(vec!["a".to_owned()]));
        assert_eq!(Target::parse("\"a\"").listed_names(), None);
        assert_eq!(Target::parse("[nope").listed_names(), None);
    }
}
