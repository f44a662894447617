//! What became of a worker that returned nothing.

use std::fmt;

use crate::name::Identity;

/// How the words on a worker begin that refused the job.
const REFUSED: &str = "refused: ";

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

    /// Whether what the errors of a job say of a worker means that something of the job may run there. They may be of another version,
    /// with other words: only what is known to be over is.
    pub fn may_go_on(said: &str) -> bool {
        let over = [Self::Cancelled, Self::Unreached, Self::Forgotten];
        !said.starts_with(REFUSED) && over.iter().all(|lost| lost.to_string() != said)
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
            Self::Refused(reason) => write!(formatter, "{REFUSED}{reason}"),
            Self::Forgotten => formatter.write_str("the worker no longer knows the job"),
            Self::Unknown => formatter.write_str("no result"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_known_by_its_words_and_other_words_are_not_taken_for_that() {
        let all = [
            Lost::Expired,
            Lost::Cancelled,
            Lost::CancelUntold,
            Lost::CancelUnanswered,
            Lost::Vanished,
            Lost::Unreached,
            Lost::Refused("full".to_owned()),
            Lost::Forgotten,
            Lost::Unknown,
        ];
        for lost in all {
            assert_eq!(Lost::may_go_on(&lost.to_string()), !lost.is_over(), "{lost}");
        }
        assert!(Lost::may_go_on("cancelled, but in the words of another version"));
    }
}
