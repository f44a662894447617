//! Who plays a role, and over what.

use crate::Environment;

/// A release of Python NorFab that we interoperate with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// 0.21.2
    V0_21_2,
    /// 0.25.0
    V0_25_0,
}

impl Release {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::V0_21_2, Self::V0_25_0];

    /// The environment that has the release.
    #[must_use]
    pub fn environment(self) -> Environment {
        match self {
            Self::V0_21_2 => Environment::NorFab0212,
            Self::V0_25_0 => Environment::NorFab0250,
        }
    }
}

/// Who plays a role of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The stock Python implementation.
    Python(Release),
    /// Ours.
    Ours,
}

/// The security mechanism of the broker's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// None: `zmq_auth: false`.
    Plain,
    /// CURVE, which is what NorFab does when nobody says otherwise.
    Curve,
}

impl Security {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Curve];
}

/// Every release with every security mechanism.
pub fn fabrics() -> impl Iterator<Item = (Release, Security)> {
    Release::ALL.into_iter().flat_map(|release| Security::ALL.map(|security| (release, security)))
}
