//! Names that travel in frames, as newtypes that only parsing can build.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest name in bytes. ZeroMQ allows 255 bytes for a routing id, and a routing id is the name of a peer; services,
/// tasks and job ids share the bound.
pub const NAME_BYTES_MAX: usize = 255;

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing between the frame's borders.
    #[error("{what} is empty")]
    Empty {
        /// Which name.
        what: &'static str,
    },
    /// Longer than [`NAME_BYTES_MAX`].
    #[error("{what} has {bytes} bytes, at most {NAME_BYTES_MAX} are allowed")]
    TooLong {
        /// Which name.
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
    },
    /// Not UTF-8.
    #[error("{what} is not UTF-8: bytes {hex}")]
    NotUtf8 {
        /// Which name.
        what: &'static str,
        /// The first bytes in hexadecimal.
        hex: String,
    },
    /// A control character, which would garble logs and terminals.
    #[error("{what} {text:?} has a control character")]
    Control {
        /// Which name.
        what: &'static str,
        /// The text, escaped when shown.
        text: String,
    },
}

fn check<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a str, NameError> {
    if bytes.is_empty() {
        return Err(NameError::Empty { what });
    }
    if bytes.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong { what, bytes: bytes.len() });
    }
    let text = std::str::from_utf8(bytes).map_err(|_| NameError::NotUtf8 {
        what,
        hex: bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect(),
    })?;
    if text.chars().any(char::is_control) {
        return Err(NameError::Control { what, text: text.to_owned() });
    }
    Ok(text)
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Parses a text. Errors: empty, too long, control characters.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                check($what, text.as_bytes()).map(|text| Self(text.into()))
            }

            /// Parses the bytes of a frame. Errors: as [`Self::parse`], and bytes that are not UTF-8.
            pub fn from_frame(bytes: &[u8]) -> Result<Self, NameError> {
                check($what, bytes).map(|text| Self(text.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, formatter)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $type {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::parse(text)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name!(
    /// The name of a worker or a client, which is its ZeroMQ routing id. Unique in a fabric.
    Identity,
    "identity"
);
name!(
    /// The name of a service, as workers register it and clients ask for it.
    ServiceName,
    "service name"
);
name!(
    /// The name of a task of a service.
    TaskName,
    "task name"
);
name!(
    /// The id of a job: 32 lower-case hexadecimal digits by convention, any name by rule.
    JobId,
    "job id"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_unicode_and_refuse_what_would_break_a_listing() {
        assert_eq!(Identity::parse("wörker-Ω").map(|name| name.to_string()), Ok("wörker-Ω".to_owned()));
        assert!(matches!(Identity::parse(""), Err(NameError::Empty { .. })));
        assert!(matches!(Identity::from_frame(&[0xff, 0x00]), Err(NameError::NotUtf8 { .. })));
        assert!(matches!(Identity::parse("a\0b"), Err(NameError::Control { .. })));
        assert!(matches!(Identity::parse(&"x".repeat(256)), Err(NameError::TooLong { bytes: 256, .. })));
    }

    #[test]
    fn a_refused_name_says_which_bytes_it_had() {
        let error = ServiceName::from_frame(&[0xff, 0xfe]).expect_err("not UTF-8");
        assert_eq!(error.to_string(), "service name is not UTF-8: bytes fffe");
    }
}
