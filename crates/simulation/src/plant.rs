//! Errors that are planted by hand, to show that the simulation finds such ones: each is what an owner, a store or a broker could
//! get wrong around a machine that is right.

/// A planted error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// A worker's store confirms what it was told before it has written it.
    AcknowledgeFirst,
    /// A worker's store takes a job that it has as a new one.
    ForgetDuplicates,
    /// The broker remembers of no job to whom it went.
    ForgetChoices,
    /// The broker's disk keeps no names of workers.
    ForgetWorkers,
    /// A client's store loses results.
    LoseResults,
    /// A worker that was restarted takes all that was to start for begun.
    TakeForBegun,
    /// A worker that was restarted begins jobs anew that it had begun.
    BeginAgain,
    /// A client takes jobs back from its database that it has, or that have ended since.
    TakeBackTwice,
    /// A client that was restarted does not look for jobs beyond those that it has room for.
    ForgetBacklog,
    /// A client takes each job into its machine, however many there are.
    TakeAll,
    /// A client that was restarted has forgotten which jobs were cancelled.
    ForgetCancellations,
    /// A worker that was restarted gives each job its whole time anew.
    GiveMoreTime,
    /// The broker loses questions about jobs.
    LoseQuestions,
    /// A client is woken late.
    Oversleep,
}

impl Plant {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::AcknowledgeFirst,
        Self::ForgetDuplicates,
        Self::ForgetChoices,
        Self::ForgetWorkers,
        Self::LoseResults,
        Self::TakeForBegun,
        Self::BeginAgain,
        Self::TakeBackTwice,
        Self::ForgetBacklog,
        Self::TakeAll,
        Self::ForgetCancellations,
        Self::GiveMoreTime,
        Self::LoseQuestions,
        Self::Oversleep,
    ];

    /// A part of what the simulation says when it finds it.
    pub fn is_found_as(self) -> &'static str {
        match self {
            Self::AcknowledgeFirst => "before it is stored",
            Self::ForgetDuplicates | Self::BeginAgain => "runs twice on",
            Self::TakeBackTwice => "holds too much",
            Self::ForgetBacklog => "has no end",
            Self::TakeAll => " jobs, BacklogBounds",
            Self::ForgetChoices | Self::ForgetWorkers => "and on another worker",
            Self::TakeForBegun => "had not begun there",
            Self::LoseResults => "is stored as complete without all its results",
            Self::ForgetCancellations => "was cancelled",
            Self::GiveMoreTime => "after the deadline that it came with",
            Self::LoseQuestions => "without the result that",
            Self::Oversleep => "after its deadline",
        }
    }
}
