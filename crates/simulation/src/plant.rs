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
    /// A client's store loses results.
    LoseResults,
    /// A worker that was restarted begins jobs anew that it had begun.
    BeginAgain,
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
        Self::LoseResults,
        Self::BeginAgain,
        Self::ForgetCancellations,
        Self::GiveMoreTime,
        Self::LoseQuestions,
        Self::Oversleep,
    ];

    /// Parts of what the simulation says when it finds it: one for each way in which it shows.
    pub fn is_found_as(self) -> &'static [&'static str] {
        match self {
            Self::AcknowledgeFirst => &["before it is stored"],
            Self::ForgetDuplicates | Self::BeginAgain => &["runs twice on"],
            // A repeated POST for any goes to another one, one for all to fewer or more.
            Self::ForgetChoices => &["and on another worker", "completed without"],
            Self::LoseResults => &["is stored as complete without all its results"],
            Self::ForgetCancellations => &["was cancelled"],
            Self::GiveMoreTime => &["after the deadline that it came with"],
            Self::LoseQuestions => &["without the result that"],
            Self::Oversleep => &["after its deadline"],
        }
    }
}
