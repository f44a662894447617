//! What callers hold: the client's handle and the handles of its jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use norfab_jobs::{ClientJob, ClientJobDetails, ClientJobFilter, ClientStore, StoreError};
use norfab_protocol::body::{self, FABRIC_VERSION, InputResponse, JobRequestBody, ManagementBody};
use norfab_protocol::broker::{INVENTORY_SERVICE, MANAGEMENT_SERVICE};
use norfab_protocol::client::{JobRequest, JobState, JobUpdate, Lost, ManagementFailure, Outcome};
use norfab_protocol::frame::Status;
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, JobId, ResultStatus, ResultView, ServiceName, TaskName, TaskResult};
use norfab_transport::run_promptly;
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};

use super::mailbox::Mailbox;
use super::run::{ClientCommand, Run};
use super::{CLIENT_QUEUE_COMMANDS, ClientOptions, DEFAULT_JOB_TIMEOUT};
use crate::StartError;
use crate::clock::{SystemClock, TIMEOUT_MAX};
use crate::inbox::Inbox;
use crate::queue::{Places, QueueError, QueueSender, queue};
use crate::status::LinkState;
use crate::worker::{OWNER_STACK_BYTES, thread_name};

/// How long what was queued has to leave when a client stops.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// A job as a caller describes it.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// Its id; a random one where it is not given.
    pub id: Option<JobId>,
    /// Which service.
    pub service: ServiceName,
    /// Which task.
    pub task: TaskName,
    /// For whom.
    pub target: Target,
    /// Named arguments.
    pub kwargs: Map<String, Value>,
    /// Positional arguments.
    pub args: Vec<Value>,
    /// How long the caller waits; whole seconds are told to the worker.
    pub timeout: Duration,
    /// Whether it waits until its deadline for workers that are not registered, whoever they are. Else it waits for those that
    /// the broker expects: they were registered a moment ago, or the broker has just begun. Others are an error at once.
    pub waits: bool,
}

impl JobSpec {
    /// A job without arguments for any worker, with the default time-out.
    pub fn new(service: ServiceName, task: TaskName) -> Self {
        Self {
            id: None,
            service,
            task,
            target: Target::Any,
            kwargs: Map::new(),
            args: Vec::new(),
            timeout: DEFAULT_JOB_TIMEOUT,
            waits: false,
        }
    }
}

/// Why a job was not taken. It was not sent and will not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue to the owner.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The store, or an id that is in use.
    #[error("{0}")]
    Refused(String),
    /// The broker answers questions in place of running jobs; what it says of itself would be taken for results.
    #[error("service '{0}' is the broker itself, which takes no jobs: ask it with a management request")]
    OfTheBroker(ServiceName),
}

/// Why an answer or a credit did not leave.
pub type AnswerError = QueueError;

/// Why nobody can say whether a job is unfinished: it is neither followed nor cancelled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookUpError {
    /// The queue to the owner.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The database, in which the job may wait.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The answer to a management request.
#[derive(Debug, Clone)]
pub struct ManagementAnswer {
    /// 200, or an error's code.
    pub status: Status,
    /// The answer, or an object with `error`.
    pub results: Value,
}

/// What one worker returned, or why it returned nothing.
#[derive(Debug, Clone)]
pub enum WorkerReport {
    /// Its Result as JSON text, as it came.
    Returned(Bytes),
    /// Nothing.
    Missing(Lost),
}

/// How a job ended.
#[derive(Debug, Clone)]
pub struct JobReport {
    /// Its id.
    pub id: JobId,
    /// A final state.
    pub state: JobState,
    /// Every worker that had it.
    pub workers: BTreeMap<Identity, WorkerReport>,
    /// Why it did not complete.
    pub errors: Vec<String>,
    /// Progress events that were dropped, here because they were not read in time, or by the broker because this client did not
    /// take them in time.
    pub events_dropped: u64,
}

impl JobReport {
    /// One Result for every worker: those that returned nothing get a failed one that says why. Values are copied; to look at
    /// large ones, see [`JobReport::views`].
    pub fn results(&self) -> BTreeMap<Identity, TaskResult> {
        self.views().into_iter().map(|(worker, view)| (worker.clone(), view.to_owned())).collect()
    }

    /// As [`JobReport::results`], with values that lie in what the workers sent.
    pub fn views(&self) -> BTreeMap<&Identity, ResultView<'_>> {
        self.workers.iter().map(|(worker, report)| (worker, self.view(report))).collect()
    }

    fn view<'report>(&'report self, report: &'report WorkerReport) -> ResultView<'report> {
        match report {
            WorkerReport::Returned(payload) => serde_json::from_slice(payload).unwrap_or_else(|error| {
                ResultView::failed(ResultStatus::Error, format!("the worker's result cannot be read: {error}"))
            }),
            WorkerReport::Missing(lost) => {
                let status = if *lost == Lost::Expired { ResultStatus::Timeout } else { ResultStatus::Error };
                let error = match lost {
                    Lost::Expired => self.errors.first().cloned().unwrap_or_else(|| lost.to_string()),
                    lost => lost.to_string(),
                };
                ResultView::failed(status, error)
            }
        }
    }

    /// Whether every worker returned a result that did not fail.
    pub fn succeeded(&self) -> bool {
        self.state == JobState::Completed && self.workers.values().all(|report| !self.view(report).failed)
    }
}

/// A running client. Clones are the same client.
#[derive(Clone)]
pub struct ClientHandle {
    identity: Identity,
    commands: QueueSender<ClientCommand>,
    places: Places,
    state: watch::Receiver<LinkState>,
    ended: watch::Receiver<bool>,
}

impl ClientHandle {
    /// Starts the thread that owns the link. Errors: the database cannot be opened, the thread cannot be started.
    pub fn start(options: ClientOptions) -> Result<Self, StartError> {
        let identity = options.identity.clone();
        let waker = options.link.waker();
        let inbox = Inbox::new(waker.clone());
        let (commands, received) = queue(CLIENT_QUEUE_COMMANDS, waker);
        let (state_sender, state) = watch::channel(LinkState::default());
        let (ended_sender, ended) = watch::channel(false);
        let run = Run::new(options, received, inbox, state_sender)?;
        std::thread::Builder::new()
            .name(thread_name("c", identity.as_str()))
            .stack_size(OWNER_STACK_BYTES)
            .spawn(move || {
                run_promptly();
                run.run();
                ended_sender.send_replace(true);
            })
            .map_err(|error| StartError::Thread { role: format!("client {identity}"), error })?;
        Ok(Self { identity, commands, places: Places::new(CLIENT_QUEUE_COMMANDS), state, ended })
    }

    /// Its name.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How it stands with its broker.
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }

    /// Takes a job: when this returns, it is stored and will be posted. Errors: it is not taken.
    pub async fn submit(&self, spec: JobSpec) -> Result<JobHandle, SubmitError> {
        let mailbox = Mailbox::new();
        let job = self.hand_over(spec, &mailbox).await?;
        match mailbox.next().await {
            Some(JobUpdate::Stored) => Ok(job),
            Some(JobUpdate::Finished(Outcome { errors, .. })) => Err(SubmitError::Refused(errors.join("; "))),
            Some(_) | None => Err(not_taken(job.id())),
        }
    }

    /// Gives a job to the owner. Whether it is taken is said by the mailbox.
    async fn hand_over(&self, spec: JobSpec, mailbox: &Arc<Mailbox>) -> Result<JobHandle, SubmitError> {
        if [MANAGEMENT_SERVICE, INVENTORY_SERVICE].contains(&spec.service.as_str()) {
            return Err(SubmitError::OfTheBroker(spec.service));
        }
        let id = spec.id.unwrap_or_else(new_job_id);
        let timeout = spec.timeout.clamp(Duration::from_millis(1), TIMEOUT_MAX);
        let body = JobRequestBody {
            task: spec.task.clone(),
            kwargs: spec.kwargs,
            args: spec.args,
            // Rounded up: a worker that gave up early would be wrong, one that gives up late is only late.
            timeout: Some(timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0)),
            fabric: Some(FABRIC_VERSION),
            wait: spec.waits.then_some(true),
        };
        let request = JobRequest {
            job: id.clone(),
            service: spec.service,
            task: spec.task,
            target: spec.target,
            body: body::encode(&body),
            timeout,
            deadline: SystemClock::now() + timeout,
            waits: spec.waits,
        };
        let place = self.places.take().await?;
        self.commands.send(ClientCommand::Submit { request, mailbox: Arc::clone(mailbox), place }).await?;
        Ok(JobHandle::new(id, Arc::clone(mailbox), self.commands.clone()))
    }

    /// Submits a job and waits for its end. Errors: it was not taken.
    pub async fn run(&self, spec: JobSpec) -> Result<JobReport, SubmitError> {
        let mailbox = Mailbox::new();
        mailbox.want_results_only();
        let report = self.hand_over(spec, &mailbox).await?.wait().await;
        match report.state {
            _ if mailbox.was_stored() => Ok(report),
            JobState::Started => Err(not_taken(&report.id)),
            _ => Err(SubmitError::Refused(report.errors.join("; "))),
        }
    }

    /// Follows a job that was submitted before, by this process or one before it. What came before is in the database
    /// ([`ClientHandle::job`]) and not told again. `None`: it is not unfinished. Errors: the client did not take the question; the
    /// database, which has to be asked where more jobs are unfinished than are held in memory, has no answer.
    pub async fn watch(&self, job: JobId) -> Result<Option<JobHandle>, LookUpError> {
        let mailbox = Mailbox::new();
        let (known, answer) = oneshot::channel();
        let command = ClientCommand::Watch { job: job.clone(), mailbox: Arc::clone(&mailbox), known };
        self.commands.send(command).await?;
        let known = answer.await.map_err(|_| QueueError::Stopped)??;
        Ok(known.then(|| JobHandle::new(job, mailbox, self.commands.clone())))
    }

    /// Cancels an unfinished job of this client, submitted by this process or one before it: its workers are told until they
    /// confirm it. `by` says who wants that. Whoever follows the job is told of its end when all have confirmed, or after
    /// [`norfab_protocol::client::CANCEL_PATIENCE`]; the job's state in the database is CANCELLING until they have. `false`:
    /// there is no such unfinished job. Errors: those of [`ClientHandle::watch`].
    pub async fn cancel(&self, job: JobId, by: &str, reason: Option<String>) -> Result<bool, LookUpError> {
        cancel(&self.commands, job, by, reason).await
    }

    /// Tells workers once that a job of another client is cancelled, and that client, by the broker. Errors: this client did not
    /// take it.
    pub async fn cancel_elsewhere(
        &self,
        client: Identity,
        job: JobId,
        service: ServiceName,
        target: Target,
        by: &str,
        reason: Option<String>,
    ) -> Result<(), QueueError> {
        let command = ClientCommand::CancelElsewhere { client, job, service, target, by: by.to_owned(), reason };
        self.commands.send(command).await
    }

    /// Workers of an unfinished job that returned nothing yet, with what is known of each: of one that is being cancelled, how that
    /// stands there. Errors: the client did not take the question.
    pub async fn missing(&self, job: JobId) -> Result<Vec<(Identity, Lost)>, QueueError> {
        let (answer, received) = oneshot::channel();
        self.commands.send(ClientCommand::Missing { job, answer }).await?;
        received.await.map_err(|_| QueueError::Stopped)
    }

    /// Asks the broker itself. A request that nobody answers in time gives status 408, as in the recorded clients.
    pub async fn management(
        &self,
        service: ServiceName,
        task: &str,
        kwargs: Map<String, Value>,
        timeout: Duration,
    ) -> Result<ManagementAnswer, QueueError> {
        let (answer, received) = oneshot::channel();
        let command = ClientCommand::Management {
            id: new_job_id(),
            service,
            request: ManagementBody { task: Some(task.to_owned()), kwargs, args: Vec::new() },
            deadline: SystemClock::now() + timeout.min(TIMEOUT_MAX),
            answer,
        };
        self.commands.send(command).await?;
        let reply = received.await.map_err(|_| QueueError::Stopped)?;
        Ok(match reply {
            Ok((status, payload)) => {
                let results = serde_json::from_slice(&payload)
                    .unwrap_or_else(|error| serde_json::json!({ "error": format!("the answer is not JSON: {error}") }));
                ManagementAnswer { status, results }
            }
            Err(failure) => ManagementAnswer {
                status: match failure {
                    ManagementFailure::TimedOut => Status::from_frame(b"408").expect("three digits"),
                    ManagementFailure::TooMany => Status::ERROR,
                },
                results: serde_json::json!({ "error": failure.to_string() }),
            },
        })
    }

    /// Jobs in the database, the last stored first. Errors: the client did not take the question; the database did not.
    pub async fn jobs(&self, filter: ClientJobFilter) -> Result<Result<Vec<ClientJob>, StoreError>, QueueError> {
        self.query(move |store| store.list(&filter)).await
    }

    /// A job in the database with its results and events.
    pub async fn job(&self, id: JobId) -> Result<Result<Option<ClientJobDetails>, StoreError>, QueueError> {
        self.query(move |store| store.job(&id)).await
    }

    /// What this client counted and uses.
    pub async fn statistics(&self) -> Result<Value, QueueError> {
        let (answer, received) = oneshot::channel();
        self.commands.send(ClientCommand::Stats { answer }).await?;
        received.await.map_err(|_| QueueError::Stopped)
    }

    /// Takes nothing new, lets leave what was queued, and closes. Jobs that are not finished stay in the database; the next
    /// client of this name goes on with them.
    pub async fn stop(&self) {
        let command = ClientCommand::Stop { flush_by: SystemClock::now() + FLUSH_TIME };
        if self.commands.send_patiently(command).await == Ok(()) {
            let mut ended = self.ended.clone();
            // An error says that the thread has ended, which is what we wait for.
            drop(ended.wait_for(|ended| *ended).await);
        }
    }

    async fn query<Answer: Send + 'static>(
        &self,
        query: impl FnOnce(&mut (dyn ClientStore + 'static)) -> Result<Answer, StoreError> + Send + 'static,
    ) -> Result<Result<Answer, StoreError>, QueueError> {
        let (sender, answer) = oneshot::channel();
        let command = ClientCommand::Query(Box::new(move |store| {
            let answer = match store {
                Ok(store) => query(store),
                Err(error) => Err(error.into()),
            };
            // Who asked may have gone.
            drop(sender.send(answer));
        }));
        self.commands.send(command).await?;
        answer.await.map_err(|_| QueueError::Stopped)
    }
}

async fn cancel(
    commands: &QueueSender<ClientCommand>,
    job: JobId,
    by: &str,
    reason: Option<String>,
) -> Result<bool, LookUpError> {
    let (known, answer) = oneshot::channel();
    commands.send(ClientCommand::Cancel { job, by: by.to_owned(), reason, known }).await?;
    Ok(answer.await.map_err(|_| QueueError::Stopped)??)
}

fn not_taken(id: &JobId) -> SubmitError {
    SubmitError::Refused(format!("job {id} was not taken: its id is in use, or the client is stopping"))
}

/// A random id that no other job has.
pub fn new_job_id() -> JobId {
    JobId::parse(&uuid::Uuid::new_v4().simple().to_string()).expect("32 hexadecimal digits are a name")
}

/// A submitted job. Dropping it does not end the job.
pub struct JobHandle {
    id: JobId,
    mailbox: Arc<Mailbox>,
    commands: QueueSender<ClientCommand>,
    workers: BTreeMap<Identity, WorkerReport>,
    outcome: Option<Outcome>,
}

impl JobHandle {
    fn new(id: JobId, mailbox: Arc<Mailbox>, commands: QueueSender<ClientCommand>) -> Self {
        Self { id, mailbox, commands, workers: BTreeMap::new(), outcome: None }
    }

    /// Its id.
    pub fn id(&self) -> &JobId {
        &self.id
    }

    /// The next news. `None`: the job has ended, or the client has stopped.
    pub async fn next(&mut self) -> Option<JobUpdate> {
        let update = self.mailbox.next().await?;
        match &update {
            JobUpdate::Result(worker, payload) => {
                self.workers.insert(worker.clone(), WorkerReport::Returned(payload.clone()));
            }
            JobUpdate::Finished(outcome) => {
                for (worker, lost) in &outcome.missing {
                    self.workers.entry(worker.clone()).or_insert_with(|| WorkerReport::Missing(lost.clone()));
                }
                self.outcome = Some(outcome.clone());
            }
            _ => {}
        }
        Some(update)
    }

    /// Waits for the end. Events on the way are dropped. A client that stops in between leaves the job unfinished; the
    /// report then says so.
    pub async fn wait(mut self) -> JobReport {
        self.mailbox.want_results_only();
        while self.next().await.is_some() {}
        self.report()
    }

    /// What is known when [`JobHandle::next`] has returned `None`.
    pub fn report(&self) -> JobReport {
        let (state, errors) = match &self.outcome {
            Some(outcome) => (outcome.state, outcome.errors.clone()),
            None => (JobState::Started, vec![format!("the client stopped before job {} ended", self.id)]),
        };
        JobReport {
            id: self.id.clone(),
            state,
            workers: self.workers.clone(),
            errors,
            events_dropped: self.mailbox.dropped(),
        }
    }

    /// Answers a question: of one worker, or of all that have the job. It is repeated until the worker has it, or the job
    /// ends or is cancelled. Errors: the client did not take the answer.
    pub async fn answer(&self, worker: Option<Identity>, response: InputResponse) -> Result<(), AnswerError> {
        self.commands.send(ClientCommand::Answer { job: self.id.clone(), worker, response }).await
    }

    /// Says that a chunk may come. Errors: it did not leave.
    pub async fn credit(&self, worker: Option<Identity>, offset: u64) -> Result<(), AnswerError> {
        self.commands.send(ClientCommand::Credit { job: self.id.clone(), worker, offset }).await
    }

    /// Sends content to the task of one worker, which has to say how much it takes: what it has no room for is lost, and the task is
    /// told. `body` begins with [`body::CONTENT_MARK`]. Errors: it did not leave.
    pub(super) async fn content(&self, worker: Identity, body: Bytes) -> Result<(), QueueError> {
        self.commands.send(ClientCommand::Content { job: self.id.clone(), worker, body }).await
    }

    /// As [`ClientHandle::cancel`].
    pub async fn cancel(&self, by: &str, reason: Option<String>) -> Result<bool, LookUpError> {
        cancel(&self.commands, self.id.clone(), by, reason).await
    }
}

impl Drop for JobHandle {
    fn drop(&mut self) {
        self.mailbox.abandon();
    }
}
