//! Who has a job: questions to all workers of a service, about many jobs at once.
//!
//! After a broker's end each job for `any` whose POST brought no word is in doubt. With a thousand workers and thousands of such
//! jobs, a GET for each of them to each of these would be millions of messages. So one GET names them all; its id is no job's.
//! A worker that understands it says in its 404 which of them it knows, and is asked what became of each. One that does not (of Python
//! NorFab) says only that it knows no job of that id, and the jobs are asked about one by one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::job::Job;
use super::output::{ClientNote, ClientOutput};
use super::{Client, RETURN_TIME};
use crate::body::{self, ASKED_BYTES_MAX, Dispatched, FABRIC_VERSION, JOBS_ASKED_MAX, JobsAsked, Refused, StateReply};
use crate::frame::Status;
use crate::message::{ClientCommand, ClientMessage, DecodeError};
use crate::name::{Identity, JobId, ServiceName};
use crate::size::Size;
use crate::target::Target;

/// Most questions about many jobs that are kept: each is about two jobs in doubt at least when it is asked, and a client holds some
/// thousands.
const QUESTIONS_MAX: usize = 4096;

/// Most workers whose answers count before the broker says who was asked: it says so first.
const DENIED_EARLY_MAX: usize = 10_000;

/// How many jobs are asked about, each by itself, or posted again at once, when a question has shown where they are not; the others
/// follow in turns: 3,200 jobs a second. A thousand at once are more than a worker looks up at a time.
const IN_TURN: usize = 16;

/// How long after each other.
const TURN_TIME: Duration = Duration::from_millis(5);

/// How much older a job may be than it says: its client's and its broker's clocks count seconds apart from each other.
const AGE_SLACK: Duration = Duration::from_secs(5);

/// A round of asking who has a job.
#[derive(Debug, Default)]
pub(super) struct Around {
    /// Who was asked, once the broker said so.
    pub(super) asked: Option<BTreeSet<Identity>>,
    /// Whether others may not have come back to the broker yet.
    pub(super) more_to_come: bool,
    /// Who does not have it.
    denied: BTreeSet<Identity>,
    /// The broker has said something to what was asked, so it is not behind.
    pub(super) answered: bool,
    /// The question about many jobs, where that asks about it.
    pub(super) question: Option<JobId>,
}

impl Around {
    /// The broker says who was asked.
    pub(super) fn set_asked(&mut self, asked: BTreeSet<Identity>) {
        self.denied.retain(|worker| asked.contains(worker));
        self.asked = Some(asked);
    }

    /// A worker does not have it.
    pub(super) fn deny(&mut self, worker: Identity) {
        let _is_new = deny(self.asked.as_ref(), &mut self.denied, worker);
    }

    /// Who was asked, if nobody is to come, and all of them say that they do not have it.
    pub(super) fn denied_by_all(&self) -> Option<&BTreeSet<Identity>> {
        let asked = self.asked.as_ref().filter(|_| !self.more_to_come && self.question.is_none())?;
        asked.is_subset(&self.denied).then_some(asked)
    }
}

/// What is asked and is to be asked.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// Questions so far: each has an id of its own.
    count: u64,
    /// Jobs in doubt, by service. They are asked about together at the next look at the timers.
    doubts: BTreeMap<ServiceName, BTreeSet<JobId>>,
    since: Option<Instant>,
    questions: HashMap<JobId, Question>,
    /// Services of which a worker did not understand such a question on this connection.
    one_by_one: HashSet<ServiceName>,
    /// Jobs that a worker knows, and that it is asked about in their turn; when the next turn is.
    known: VecDeque<(ServiceName, Identity, JobId)>,
    next_turn: Option<Instant>,
}

/// One question about many jobs.
#[derive(Debug)]
struct Question {
    service: ServiceName,
    /// Those of which no worker has said that it knows them.
    jobs: Vec<JobId>,
    /// Who was asked, once the broker said so.
    asked: Option<BTreeSet<Identity>>,
    /// Whether others may not have come back to the broker yet.
    more_to_come: bool,
    /// Of which age a job must be, in seconds, to have gone to a worker that is away and was not asked.
    gone: Option<u64>,
    /// Who has none of these jobs.
    denied: BTreeSet<Identity>,
    /// When something was heard of it last.
    heard: Instant,
}

/// Notes that a worker has none of what is asked about. What others say than those that were asked means nothing. `false`: nothing
/// new.
fn deny(asked: Option<&BTreeSet<Identity>>, denied: &mut BTreeSet<Identity>, worker: Identity) -> bool {
    asked.map_or(denied.len() < DENIED_EARLY_MAX, |asked| asked.contains(&worker)) && denied.insert(worker)
}

impl Question {
    /// Whether all workers that were asked have answered.
    fn all_answered(&self) -> bool {
        let asked = self.asked.as_ref().filter(|asked| self.denied.len() >= asked.len());
        asked.is_some_and(|asked| asked.is_subset(&self.denied))
    }
}

impl Asking {
    /// How much it holds, and may hold.
    pub(super) fn size(&self) -> Size {
        Size::new("questions about many jobs", self.questions.len(), QUESTIONS_MAX)
    }

    /// Of how many workers it holds that they have none of the jobs of one question, and how many it may.
    pub(super) fn denied_size(&self) -> Size {
        let most = |question: &Question| question.asked.as_ref().map_or(DENIED_EARLY_MAX, BTreeSet::len);
        let sizes = self.questions.values().map(|question| (question.denied.len(), most(question)));
        let (count, max) = sizes.max_by_key(|(count, max)| count.saturating_sub(*max)).unwrap_or_default();
        Size::new("workers that have none of the jobs asked about", count, max)
    }

    /// How many jobs are to be asked about in their turn. `jobs`: how many there are.
    pub(super) fn known_size(&self, jobs: usize) -> Size {
        Size::new("jobs that workers know", self.known.len(), 2 * jobs + JOBS_ASKED_MAX)
    }

    /// When the jobs in doubt are to be asked about, or the next ones of those that workers know.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.since, self.next_turn].into_iter().flatten().min()
    }

    /// Nothing that was asked before is answered any more. Returns the ids of the questions.
    pub(super) fn begin_anew(&mut self) -> BTreeSet<JobId> {
        self.doubts.clear();
        self.one_by_one.clear();
        self.known.clear();
        (self.since, self.next_turn) = (None, None);
        self.questions.drain().map(|(id, _)| id).collect()
    }
}

impl Client {
    /// It is to be asked who has a job.
    pub(super) fn doubt(&mut self, now: Instant, id: &JobId) {
        let (patience, max) = (self.config.post_again, self.config.get_max);
        let Some(job) = self.jobs.get_mut(id) else { return };
        let question = job.around.as_ref().and_then(|around| around.question.as_ref());
        let open = question.and_then(|question| self.asking.questions.get(question));
        // A thousand workers take a while to answer: as long as answers come, it is not asked again.
        let until = open.filter(|question| !question.all_answered()).map(|question| question.heard + patience);
        if let Some(until) = until.filter(|until| *until > now) {
            job.next_post = Some(until);
        } else {
            // A broker that is behind does not get there sooner by more of the same questions.
            let asked = open.map(|question| &question.asked).or(job.around.as_ref().map(|around| &around.asked));
            let is_answered = job.around.as_ref().is_some_and(|around| around.answered);
            let is_unanswered = !is_answered && asked.is_some_and(Option::is_none);
            job.unanswered_rounds = if is_unanswered { job.unanswered_rounds + 1 } else { 0 };
            job.next_post = Some(now + (patience * (1 << job.unanswered_rounds.min(8))).min(max));
            job.around = Some(Around::default());
            job.asked_around = true;
            self.asking.doubts.entry(job.request.service.clone()).or_default().insert(id.clone());
            self.asking.since.get_or_insert(now);
        }
        self.set_timer(id);
    }

    /// Asks about all jobs that are in doubt.
    pub(super) fn ask_who_has(&mut self, now: Instant) {
        self.asking.since = None;
        let doubts = std::mem::take(&mut self.asking.doubts);
        if doubts.is_empty() || !self.connected {
            return;
        }
        self.forget_questions();
        for (service, ids) in doubts {
            let ids: Vec<JobId> = ids.into_iter().filter(|id| self.is_in_doubt(id, None)).collect();
            let most = if self.asking.one_by_one.contains(&service) { 1 } else { JOBS_ASKED_MAX };
            for some in ids.chunks(most) {
                self.silent_since.get_or_insert(now);
                match some {
                    [one] => self.send_get(service.clone(), Target::All, one),
                    some => self.ask_about(now, &service, some.to_vec()),
                }
            }
        }
    }

    /// Asks workers about jobs that they know, as many as come in one turn.
    pub(super) fn ask_in_turn(&mut self, now: Instant) {
        if !self.connected {
            // On the next connection everything is asked anew.
            self.asking.known.clear();
        }
        if self.asking.next_turn.is_some_and(|at| at > now) && self.connected {
            return;
        }
        for _ in 0..IN_TURN {
            let Some((service, worker, job)) = self.asking.known.pop_front() else { break };
            // One that ended since is nobody's concern.
            if self.jobs.contains_key(&job) {
                self.send_get(service, Target::list([&worker]), &job);
            }
        }
        self.asking.next_turn = (!self.asking.known.is_empty()).then_some(now + TURN_TIME);
    }

    fn ask_about(&mut self, now: Instant, service: &ServiceName, jobs: Vec<JobId>) {
        self.asking.count += 1;
        let id = format!("{:016x}{:016x}", self.config.seed, self.asking.count);
        let id = JobId::parse(&id).expect("32 digits are a name");
        for job in &jobs {
            let around = self.jobs.get_mut(job).and_then(|job| job.around.as_mut());
            if let Some(around) = around {
                around.question = Some(id.clone());
            }
        }
        let body = body::encode(&JobsAsked { fabric: FABRIC_VERSION, jobs: jobs.clone() });
        let question = Question {
            service: service.clone(),
            jobs,
            asked: None,
            more_to_come: false,
            gone: None,
            denied: BTreeSet::new(),
            heard: now,
        };
        self.asking.questions.insert(id.clone(), question);
        self.send(ClientMessage {
            command: ClientCommand::Get,
            service: service.clone(),
            target: Target::All,
            job: id,
            body,
        });
    }

    /// Whether a job is still asked about, by this question or by none.
    fn is_in_doubt(&self, id: &JobId, question: Option<&JobId>) -> bool {
        self.jobs.get(id).is_some_and(|job| {
            let around = job.around.as_ref();
            job.dispatched().is_none() && around.is_some_and(|around| around.question.as_ref() == question)
        })
    }

    /// Forgets the questions of which no job waits for the answer any more.
    fn forget_questions(&mut self) {
        let mut questions = std::mem::take(&mut self.asking.questions);
        questions.retain(|id, question| question.jobs.iter().any(|job| self.is_in_doubt(job, Some(id))));
        self.asking.questions = questions;
    }

    /// Nothing on the connection before is answered any more.
    pub(super) fn ask_anew(&mut self) {
        let forgotten = self.asking.begin_anew();
        self.outputs.extend(forgotten.into_iter().map(ClientOutput::Forget));
    }

    /// Whether an id is that of a question about many jobs.
    pub(super) fn is_question(&self, id: &JobId) -> bool {
        self.asking.questions.contains_key(id)
    }

    /// Somebody answers such a question.
    pub(super) fn question_answered(
        &mut self,
        now: Instant,
        id: &JobId,
        status: Status,
        payload: &[u8],
    ) -> Result<(), DecodeError> {
        // Python brokers do not say that they are young.
        let long_connected = self.connected_since.is_none_or(|since| since + RETURN_TIME <= now);
        let Some(question) = self.asking.questions.get_mut(id) else { return Ok(()) };
        if status == Status::DISPATCHED {
            let body: Dispatched = body::decode("a dispatch", payload)?;
            question.heard = now;
            question.more_to_come = body.young || (body.run.is_none() && !long_connected);
            question.gone = body.gone;
            let asked: BTreeSet<Identity> = body.workers.into_iter().collect();
            question.denied.retain(|worker| asked.contains(worker));
            question.asked = Some(asked);
            for job in &question.jobs {
                if let Some(around) = self.jobs.get_mut(job).and_then(|job| job.around.as_mut()) {
                    around.answered |= around.question.as_ref() == Some(id);
                }
            }
            self.learn_run(body.run);
            self.nobody_has_them(now, id);
            return Ok(());
        }
        if payload.len() > ASKED_BYTES_MAX {
            let error = format!("it has {} bytes, at most {ASKED_BYTES_MAX} are looked at", payload.len());
            return Err(DecodeError::Body { expected: "an answer about jobs", error });
        }
        let is_brokers = body::decode::<Speaker>("a refusal", payload)?.worker.is_none();
        if is_brokers && status.is_error() {
            self.nobody_was_asked(id, body::decode("a refusal", payload)?);
        } else if status == Status::NOT_FOUND {
            let StateReply { worker, known, .. } = body::decode("a refusal", payload)?;
            if question.asked.as_ref().is_some_and(|asked| !asked.contains(&worker)) {
                return Ok(());
            }
            let Some(known) = known else {
                self.ask_one_by_one(now, id);
                return Ok(());
            };
            // What it has given up is still in its store, and never runs there.
            let has_given_up = |job: &JobId| self.jobs.get(job).is_some_and(|job| job.gave_up.contains(&worker));
            // In their order, so that a run can be repeated.
            let known: BTreeSet<JobId> = known.into_iter().filter(|job| !has_given_up(job)).collect();
            if deny(question.asked.as_ref(), &mut question.denied, worker.clone()) {
                question.heard = now;
            }
            question.jobs.retain(|job| !known.contains(job));
            let service = question.service.clone();
            for job in known {
                let around = self.jobs.get_mut(&job).and_then(|job| job.around.as_mut());
                if let Some(around) = around.filter(|around| around.question.as_ref() == Some(id)) {
                    around.question = None;
                    // What became of it there.
                    self.asking.known.push_back((service.clone(), worker.clone(), job));
                }
            }
            self.ask_in_turn(now);
            self.nobody_has_them(now, id);
        }
        Ok(())
    }

    /// All workers that were asked say that they have none of these jobs: they never started anywhere.
    fn nobody_has_them(&mut self, now: Instant, id: &JobId) {
        let Some(question) = self.asking.questions.get(id).filter(|question| question.all_answered()) else { return };
        let Question { service, asked: Some(asked), more_to_come: false, .. } = question else { return };
        // Who is away may have one. What is not known then is asked again.
        if asked.is_empty() || !self.acquaintances.are_all_in(now, service, asked) {
            return;
        }
        let Some(question) = self.asking.questions.remove(id) else { return };
        let mut posted = 0;
        let asked = question.asked.unwrap_or_default();
        for job in question.jobs {
            if !self.is_in_doubt(&job, Some(id)) {
                continue;
            }
            // One that may be with a worker that is away is asked about again.
            let is_nowhere = |job: &&mut Box<Job>| {
                job.started.is_empty()
                    && job.turned_away.keys().all(|worker| asked.contains(worker))
                    && !job.may_be_with_one_gone(now, question.gone)
            };
            if let Some(nowhere) = self.jobs.get_mut(&job).filter(is_nowhere) {
                nowhere.turned_away.clear();
                nowhere.nobody_has_it = true;
                let turns = posted / IN_TURN;
                posted += 1;
                if turns == 0 {
                    self.post(now, &job);
                } else {
                    nowhere.next_post = Some(now + TURN_TIME * turns as u32);
                    self.set_timer(&job);
                }
            }
        }
    }

    /// The broker has nobody to ask.
    fn nobody_was_asked(&mut self, id: &JobId, refused: Refused) {
        let Some(question) = self.asking.questions.remove(id) else { return };
        let errors = if refused.errors.is_empty() { refused.status } else { refused.errors.join("; ") };
        for job in &question.jobs {
            if self.is_in_doubt(job, Some(id))
                && let Some(job) = self.jobs.get_mut(job)
            {
                job.refusal = Some(errors.clone());
                if let Some(around) = &mut job.around {
                    around.answered = true;
                }
            }
        }
        if let Some(job) = question.jobs.into_iter().next() {
            self.note(ClientNote::WorkerAway(job));
        }
    }

    /// A worker did not understand the question.
    fn ask_one_by_one(&mut self, now: Instant, id: &JobId) {
        let Some(Question { service, jobs, .. }) = self.asking.questions.remove(id) else { return };
        for id in jobs.iter().filter(|job| self.is_in_doubt(job, Some(id))).cloned().collect::<Vec<_>>() {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.around = Some(Around::default());
            }
            self.silent_since.get_or_insert(now);
            self.send_get(service.clone(), Target::All, &id);
        }
        self.asking.one_by_one.insert(service);
    }
}

impl Job {
    /// Whether a worker may have it that went before the broker began, or that is away since. `gone` is the word of the broker:
    /// the age in seconds that such a job has at least.
    pub(super) fn may_be_with_one_gone(&self, now: Instant, gone: Option<u64>) -> bool {
        let age = self.age(now);
        gone.is_some_and(|seconds| age.is_none_or(|age| age + AGE_SLACK >= Duration::from_secs(seconds)))
    }

    /// When it is posted again, or asked about, on a new connection. `in_turn` is its own time, so that not all come at once.
    pub(super) fn again_at(&mut self, now: Instant, in_turn: Instant) -> Instant {
        match self.request.target {
            Target::Text(_) => in_turn,
            Target::All => in_turn + RETURN_TIME,
            // They are asked about together, and posted one by one where that is safe.
            Target::Any => {
                self.turn = in_turn.saturating_duration_since(now);
                now + RETURN_TIME
            }
        }
    }
}

/// Whose word it is: the broker's own names no worker.
#[derive(serde::Deserialize)]
struct Speaker {
    worker: Option<Identity>,
}
