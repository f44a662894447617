//! One synchronization, from the server to the shared folder.

use std::future;
use std::sync::Arc;
use std::time::Duration;

use gix_hash::ObjectId;
use norfab_service::{EventDraft, Severity, TaskContext, TaskError, on_blocking_thread};
use tokio::sync::OwnedMutexGuard;
use tracing::{debug, info, warn};

use super::address::Address;
use super::checkout::{self, LeftOut, Limits};
use super::error::SyncError;
use super::halt::{Halt, HaltOnDrop};
use super::http::HttpWire;
use super::local::LocalRepository;
use super::mount::Label;
use super::protocol::{Session, Wire};
use super::repository::Repository;
use super::ssh::SshWire;
use super::{Remote, Remotes, Status};

/// How long a checkout that was replaced is kept for those who read it.
const OLD_KEPT: Duration = Duration::from_secs(60);

/// The right to synchronize or delete a remote.
pub(crate) type RemoteTurn = OwnedMutexGuard<()>;

/// Who hears how it goes.
pub(crate) enum Voice<'a> {
    /// The client of a job.
    Job(&'a TaskContext),
    /// The log.
    Log,
}

impl Voice<'_> {
    /// Says how far it is. Errors: nobody can hear it any more.
    pub(crate) async fn say(&self, remotes: &Remotes, text: &str) -> Result<(), TaskError> {
        self.tell(remotes, text, Severity::Info).await
    }

    /// Says that it failed.
    pub(crate) async fn complain(&self, remotes: &Remotes, text: &str) -> Result<(), TaskError> {
        self.tell(remotes, text, Severity::Error).await
    }

    async fn tell(&self, remotes: &Remotes, text: &str, severity: Severity) -> Result<(), TaskError> {
        let text = format!("{} - {text}", remotes.worker);
        match self {
            Self::Job(context) => context.event(EventDraft::new(text).severity(severity)).await?,
            // What becomes of it is logged by who waits for it.
            Self::Log => debug!("{text}"),
        }
        Ok(())
    }

    /// Waits until it is to end early.
    async fn to_end(&self) {
        match self {
            Self::Job(context) => context.to_end().await,
            Self::Log => future::pending().await,
        }
    }
}

/// How a synchronization ended.
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) attempted: String,
    /// Why it failed.
    pub(crate) problem: Option<String>,
    pub(crate) messages: Vec<String>,
}

/// Synchronizes a remote. Errors: its job has nobody left who hears of it; that it failed is an outcome.
pub(crate) async fn synchronize(
    remotes: &Arc<Remotes>,
    remote: &Arc<Remote>,
    turn: RemoteTurn,
    voice: &Voice<'_>,
) -> Result<Outcome, TaskError> {
    let name = &remote.definition.name;
    let attempted = remotes.clock.utc();
    remote.state().last_sync_attempt = Some(attempted.clone());
    let work = Work { remotes, remote, voice };
    let mut unfinished = Unfinished(Some(remote));
    let mut messages = Vec::new();
    let ended = match work.run(turn).await? {
        Ok(None) => Ok(Status::Unchanged),
        Ok(Some(left_out)) => {
            messages = left_out.messages();
            Ok(Status::Cloned)
        }
        Err(error) => Err(error.to_string()),
    };
    unfinished.0 = None;
    let (status, problem) = match ended {
        Ok(status) => (status, None),
        Err(problem) => (Status::Failed, Some(problem)),
    };
    {
        let mut state = remote.state();
        state.status = status;
        state.problem.clone_from(&problem);
    }
    match &problem {
        None => {
            let text = format!("Git remote '{name}' synchronization completed with status '{}'", status.word());
            voice.say(remotes, &text).await?;
        }
        Some(problem) => {
            voice.complain(remotes, &format!("Git remote '{name}' synchronization failed: {problem}")).await?;
        }
    }
    if status == Status::Cloned {
        remote.state().old_until = Some(remotes.clock.now() + OLD_KEPT);
        remotes.changed.notify_one();
        info!("worker {}: the files of git remote '{name}' are new", remotes.worker);
    }
    Ok(Outcome { status, attempted, problem, messages })
}

/// Says of a remote that it failed where nobody waits for the end any more.
struct Unfinished<'a>(Option<&'a Remote>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let Some(remote) = self.0 else { return };
        let mut state = remote.state();
        state.status = Status::Failed;
        state.problem = Some(SyncError::Halted.to_string());
    }
}

struct Work<'a> {
    remotes: &'a Arc<Remotes>,
    remote: &'a Arc<Remote>,
    voice: &'a Voice<'a>,
}

impl Work<'_> {
    /// Gives nothing where there is nothing new.
    async fn run(&self, mut turn: RemoteTurn) -> Result<Result<Option<LeftOut>, SyncError>, TaskError> {
        let definition = &self.remote.definition;
        let mut tries = 0;
        loop {
            tries += 1;
            let text = format!("fetching branch '{}' for remote '{}'", definition.branch, definition.name);
            self.voice.say(self.remotes, &text).await?;
            let fetched = self.on_thread(turn, fetch).await?;
            turn = fetched.1;
            let tip = match fetched.0 {
                Ok(Fetched { unchanged: true, .. }) => return Ok(Ok(None)),
                Ok(Fetched { tip, .. }) => tip,
                Err(SyncError::Damaged { .. }) if tries == 1 => {
                    turn = self.wipe(turn).await?;
                    continue;
                }
                Err(error) => return Ok(Err(error)),
            };
            let text = format!("making Git remote '{}' available at {}", definition.name, definition.mount);
            self.voice.say(self.remotes, &text).await?;
            let published =
                self.on_thread(turn, move |remotes, remote, halt| publish(remotes, remote, tip, halt)).await?;
            turn = published.1;
            match published.0 {
                Err(SyncError::Damaged { .. }) if tries == 1 => turn = self.wipe(turn).await?,
                published => return Ok(published.map(Some)),
            }
        }
    }

    /// Removes what is kept of the repository and is of no use: it is fetched anew.
    async fn wipe(&self, turn: RemoteTurn) -> Result<RemoteTurn, TaskError> {
        let wiped =
            self.on_thread(turn, |remotes, remote, _| remotes.repository(&remote.definition.name).wipe()).await?;
        if let Err(error) = wiped.0 {
            warn!("worker {}: git remote '{}': {error}", self.remotes.worker, self.remote.definition.name);
        }
        Ok(wiped.1)
    }

    /// Runs a part that blocks. The remote stays taken until it has ended, even if nobody waits for it.
    async fn on_thread<Output: Send + 'static>(
        &self,
        turn: RemoteTurn,
        run: impl FnOnce(&Remotes, &Remote, &Halt) -> Output + Send + 'static,
    ) -> Result<(Output, RemoteTurn), TaskError> {
        let halt = Halt::default();
        let _halt_when_left = HaltOnDrop(halt.clone());
        let (remotes, remote) = (Arc::clone(self.remotes), Arc::clone(self.remote));
        let given = halt.clone();
        let work = on_blocking_thread(move || (run(&remotes, &remote, &given), turn));
        tokio::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = self.voice.to_end() => halt.halt(),
        }
        work.await
    }
}

struct Fetched {
    tip: ObjectId,
    /// It is in its place already.
    unchanged: bool,
}

/// Has the objects of what the branch is at. Blocks.
fn fetch(remotes: &Remotes, remote: &Remote, halt: &Halt) -> Result<Fetched, SyncError> {
    let definition = &remote.definition;
    let shown = definition.shown_url();
    let branch = definition.branch.as_str();
    let address = Address::parse(&definition.url, &remotes.local_base)?;
    remotes.mounts.check(&definition.mount)?;
    let repository = remotes.repository(&definition.name);
    repository.prepare(&shown, branch)?;
    let tip = match address {
        Address::Local(path) => {
            let local = LocalRepository::open(&path, shown, &remotes.trust)?;
            let tip = local.tip(branch)?;
            repository.borrow_from(&local.objects())?;
            repository.fetched(tip, branch)?;
            tip
        }
        Address::Http { url, credentials } => {
            let credentials = definition.credentials.clone().or(credentials);
            from_server(&mut HttpWire::new(url, credentials, halt.clone())?, &repository, &shown, branch, halt)?
        }
        Address::Ssh { destination, port, path } => {
            let mut wire = SshWire::new(shown.clone(), destination, port, path, halt.clone());
            from_server(&mut wire, &repository, &shown, branch, halt)?
        }
    };
    let label = label(remotes, remote, tip);
    let unchanged = remotes.mounts.label(&definition.mount).is_some_and(|there| there.is_same(&label));
    Ok(Fetched { tip, unchanged })
}

fn from_server(
    wire: &mut dyn Wire,
    repository: &Repository,
    shown: &str,
    branch: &str,
    halt: &Halt,
) -> Result<ObjectId, SyncError> {
    let mut session = Session::begin(wire, branch)?;
    let tip = session.tip()?;
    let mut have = repository.tip();
    if have == Some(tip) {
        return Ok(tip);
    }
    if repository.is_crowded() {
        repository.wipe()?;
        repository.prepare(shown, branch)?;
        have = None;
    }
    session.fetch(tip, have, |pack| repository.store(pack, halt))?;
    repository.fetched(tip, branch)?;
    Ok(tip)
}

/// Puts the files of a commit into their place. Blocks.
fn publish(remotes: &Remotes, remote: &Remote, tip: ObjectId, halt: &Halt) -> Result<LeftOut, SyncError> {
    let definition = &remote.definition;
    let objects = remotes.repository(&definition.name).objects()?;
    let label = label(remotes, remote, tip);
    let names = checkout::names(&objects, tip, Limits::default(), halt)?;
    remotes.mounts.check_names(&definition.mount, &label, &names)?;
    let staged = remotes.mounts.stage(&definition.name)?;
    let published = staged
        .try_clone()
        .map_err(SyncError::disk("open a folder"))
        .and_then(|folder| checkout::write(&objects, tip, folder, Limits::default(), halt))
        .and_then(|left_out| {
            remotes.mounts.publish(&definition.mount, &staged, &label, halt)?;
            Ok(left_out)
        });
    if published.is_err() {
        // The next one removes it, too.
        remotes.mounts.discard(&definition.name).ok();
    }
    published
}

fn label(remotes: &Remotes, remote: &Remote, tip: ObjectId) -> Label {
    let definition = &remote.definition;
    Label {
        remote: definition.name.clone(),
        url: definition.shown_url(),
        branch: definition.branch.clone(),
        commit: tip.to_string(),
        worker: remotes.mounts.worker().to_owned(),
    }
}

/// Removes a remote from the shared folder and from the disk of the worker. Gives whether its folder is gone: one with content
/// of its own stays. Blocks.
pub(crate) fn delete(remotes: &Remotes, remote: &Remote) -> Result<bool, SyncError> {
    let name = &remote.definition.name;
    let gone = remotes.mounts.remove(&remote.definition.mount, name)?;
    match std::fs::remove_dir_all(remotes.folder.join(name)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(SyncError::disk("remove the stored repository")(error));
        }
        _ => {}
    }
    remotes.forget(remote);
    Ok(gone)
}
