//! What became of a worker that returned nothing.

use std::fmt;

use crate::name::Identity;

/// Why a worker returned nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// The deadline passed.
    Expired,
    /// The job was cancelled before it returned anything.
    Cancelled,
    /// The job was cancelled, and nobody says that the worker was told: it is away, and will be told when it returns.
    CancelUntold,
    /// The job was cancelled, and the worker was told but says nothing.
    CancelUnanswered,
    /// The deadline passed, and the worker was away when it was last asked about.
    Vanished,
    /// The broker could not reach the worker: it is registered, but most likely about to be found gone.
    Unreached,
    /// The worker refused it.
    Refused(String),
    /// The worker had it and does not know it any more.
    Forgotten,
    /// The job ended for another reason before this worker answered.
    Unknown,
}

impl Lost {
    /// Whether nothing of the job runs on the worker, as far as is known: it said so, refused the job, or never got it. Who has a job
    /// cancelled need wait for no word of it.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Cancelled | Self::Refused(_) | Self::Unreached | Self::Forgotten => true,
            Self::Expired | Self::CancelUntold | Self::CancelUnanswered | Self::Vanished | Self::Unknown => false,
        }
    }

    /// Whether what the errors of a job say of a worker means that something of the job may run there.
    pub fn may_go_on(said: &str) -> bool {
        let all = [Self::Expired, Self::CancelUntold, Self::CancelUnanswered, Self::Vanished, Self::Unknown];
        all.iter().any(|lost| lost.to_string() == said)
    }

    /// What the errors of a job say of a worker.
    pub fn of_worker(&self, worker: &Identity) -> String {
        format!("worker {worker}: {self}")
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => formatter.write_str("no result before the deadline"),
            Self::Cancelled => formatter.write_str("cancelled"),
            Self::CancelUntold => formatter.write_str(
                "cancelled, but the worker was not told: it is away and is told when it returns, if a client of this name runs \
                 then, or the broker is that of Python NorFab, which hands no cancellations on",
            ),
            Self::CancelUnanswered => formatter.write_str(
                "cancelled, but the worker has not confirmed it: it may go on (workers of Python NorFab do not know \
                 cancellations)",
            ),
            Self::Vanished => {
                formatter.write_str("the worker vanished: it was away when it was last asked, and so to the deadline")
            }
            Self::Unreached => formatter.write_str("the broker could not reach it, so it does not have the job"),
            Self::Refused(reason) => write!(formatter, "refused: {reason}"),
            Self::Forgotten => formatter.write_str("the worker no longer knows the job"),
            Self::Unknown => formatter.write_str("no result"),
        }
    }
}
