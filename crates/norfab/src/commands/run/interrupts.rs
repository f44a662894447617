//! What Ctrl-C and SIGTERM mean while a job runs.

use std::cell::Cell;

use norfab_protocol::JobId;
use tokio::sync::Notify;

use crate::args::RunArgs;
use crate::exit::Code;
use crate::prompt::is_terminal;

/// What a signal makes of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Whoever is at the terminal is asked whether to cancel it.
    Ask,
    /// It is cancelled, and the command ends with this code.
    Cancel(Code),
}

/// Signals on their way to who follows the job. The first is for the job, where anybody can say what to do with it; the second
/// ends the command.
pub struct Interrupts {
    cancels: bool,
    asks: bool,
    taken: Cell<bool>,
    cancelling: Cell<bool>,
    wish: Cell<Option<Wish>>,
    given: Notify,
}

impl Interrupts {
    /// What the command line and the terminal allow.
    pub fn new(words: &RunArgs) -> Self {
        Self {
            cancels: words.cancel_on_interrupt,
            asks: !words.nowait && is_terminal(),
            taken: Cell::new(false),
            cancelling: Cell::new(false),
            wish: Cell::new(None),
            given: Notify::new(),
        }
    }

    /// A signal came. `false`: the command is to end.
    pub fn take(&self, code: Code) -> bool {
        let wish = match code {
            _ if self.cancels => Wish::Cancel(code),
            Code::Interrupted if self.asks => Wish::Ask,
            _ => return false,
        };
        if self.taken.replace(true) {
            return false;
        }
        self.wish.set(Some(wish));
        self.given.notify_one();
        true
    }

    /// The job goes on: the next signal is a first one.
    pub fn forget(&self) {
        self.taken.set(false);
    }

    /// The job is being cancelled: the next signal ends the command.
    pub fn cancels(&self) {
        self.taken.set(true);
        self.cancelling.set(true);
    }

    /// Waits for what is wished.
    pub async fn next(&self) -> Wish {
        loop {
            if let Some(wish) = self.wish.take() {
                return wish;
            }
            self.given.notified().await;
        }
    }

    /// What becomes of a job that is left.
    pub fn left(&self, id: &JobId) -> String {
        if self.cancelling.get() {
            return format!(
                "not every worker has confirmed that job {id} is cancelled; 'norfab cancel {id}' tells them again"
            );
        }
        format!("job {id} goes on; 'norfab jobs {id}' shows what becomes of it, 'norfab cancel {id}' cancels it")
    }
}
