//! Operations on the worker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use bytes::Bytes;
use norfab_protocol::EventType;
use norfab_protocol::body::InputRequest;
use norfab_protocol::frame::Status;
use norfab_protocol::message::WorkerMessage;
use norfab_protocol::name::{Identity, JobId};
use norfab_protocol::worker::{
    Abandoned, Asked, Class, Ending, LoadedJob, StoreFailure, Worker, WorkerConfig, WorkerOutput, WorkerStoreOperation,
    WorkerToken, result_reply,
};

use super::{Body, CLIENTS, JOBS, frames, job_id, pick, service_name, worker_name};

#[derive(Debug, Clone, Arbitrary)]
pub enum WorkerOperation {
    Delivery {
        command: u8,
        client: u8,
        job: u8,
        body: Body,
    },
    Keepalive,
    Disconnect,
    Connected,
    Raw {
        frames: Vec<Vec<u8>>,
    },
    Pass {
        milliseconds: u16,
    },
    /// The store does the next thing that it was told.
    Stored {
        fails: bool,
    },
    Loaded,
    Event {
        job: u8,
        kind: u8,
        question: u8,
    },
    Stream {
        job: u8,
    },
    Finish {
        job: u8,
        ending: u8,
    },
    Stop,
}

const COMMANDS: &[&str] = &["0x04", "0x06", "0x10", "0x07", "0x05", "0x99"];

/// Most outputs of one input beside the jobs that it starts or gives up.
const OUTPUTS_MAX: usize = 8;

#[derive(Default)]
struct StoredJob {
    payload: Option<Bytes>,
}

struct Run {
    worker: Worker,
    now: Instant,
    store: BTreeMap<JobId, StoredJob>,
    pending: VecDeque<(WorkerStoreOperation, WorkerToken)>,
    loads: VecDeque<(JobId, Identity, Asked)>,
    started: BTreeSet<JobId>,
    /// Tasks that have not ended.
    running: BTreeSet<JobId>,
    /// Jobs that the store keeps, or kept when it was asked.
    inserted: BTreeSet<JobId>,
    finish_answered: BTreeSet<JobId>,
    /// Jobs that were told to end.
    cancelled: BTreeSet<JobId>,
    posts: usize,
}

/// Runs operations one after the other and checks the worker after each. Panics where something does not hold.
pub fn run(operations: &[WorkerOperation]) {
    let now = Instant::now();
    let mut config = WorkerConfig::new(worker_name(0), service_name(0));
    config.max_concurrent_jobs = 2;
    config.jobs_max = 3;
    let mut run = Run {
        worker: Worker::new(config, now),
        now,
        store: BTreeMap::new(),
        pending: VecDeque::new(),
        loads: VecDeque::new(),
        started: BTreeSet::new(),
        running: BTreeSet::new(),
        inserted: BTreeSet::new(),
        finish_answered: BTreeSet::new(),
        cancelled: BTreeSet::new(),
        posts: 0,
    };
    run.worker.connected(now);
    run.drain();
    for operation in operations {
        run.operate(operation);
        run.drain();
        assert!(run.worker.running() <= 2, "no more than may run");
    }
    run.wind_down();
}

impl Run {
    fn operate(&mut self, operation: &WorkerOperation) {
        match operation {
            WorkerOperation::Delivery { command, client, job, body } => {
                let (command, client, job) = (pick(COMMANDS, *command), pick(CLIENTS, *client), pick(JOBS, *job));
                self.posts += usize::from(command == "0x04");
                let mut message = frames(&[b"", b"NFPB01", command.as_bytes(), client.as_bytes(), b"", job.as_bytes()]);
                message.push(body.bytes());
                self.worker.message(self.now, &message);
            }
            WorkerOperation::Keepalive => self.worker.message(self.now, &frames(&[b"", b"NFPB01", b"0x02", b"s0"])),
            WorkerOperation::Disconnect => self.worker.message(self.now, &frames(&[b"", b"NFPB01", b"0x03", b"s0"])),
            WorkerOperation::Connected => self.worker.connected(self.now),
            WorkerOperation::Raw { frames } => {
                let message: Vec<Bytes> = frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
                self.worker.message(self.now, &message);
            }
            WorkerOperation::Pass { milliseconds } => {
                self.now += Duration::from_millis(u64::from(*milliseconds));
                self.worker.timeout(self.now);
                assert!(self.worker.next_deadline().is_none_or(|at| at > self.now), "all that was due is done");
            }
            WorkerOperation::Stored { fails } => self.store_next(*fails),
            WorkerOperation::Loaded => self.load_next(),
            WorkerOperation::Event { job, kind, question } => {
                let kinds =
                    [EventType::Progress, EventType::ResultReady, EventType::InputRequest, EventType::InputResponse];
                let kind = kinds[usize::from(kind % 4)];
                let id = format!("q{}", question % 4);
                let request = InputRequest {
                    id: id.clone(),
                    question: "?".to_owned(),
                    default: serde_json::Value::Null,
                    timeout: None,
                    metadata: serde_json::Value::Null,
                };
                let question = (kind == EventType::InputRequest).then_some(request);
                // Whether it is taken is the machine's decision; that it is not is no failure here.
                self.worker.event(&job_id(*job), kind, question, Some(&id), Bytes::from_static(b"{}")).ok();
            }
            WorkerOperation::Stream { job } => {
                self.worker.stream(&job_id(*job), Bytes::from_static(b"bytes")).ok();
            }
            WorkerOperation::Finish { job, ending } => self.finish(&job_id(*job), *ending),
            WorkerOperation::Stop => {
                self.worker.stop();
            }
        }
    }

    fn finish(&mut self, job: &JobId, ending: u8) {
        // Only who runs can end: the owner knows which tasks it started.
        if self.running.remove(job) {
            let ending = [Ending::Completed, Ending::Failed, Ending::Cancelled][usize::from(ending % 3)];
            let reply = result_reply(&worker_name(0), b"{}");
            let event = Bytes::from_static(b"{}");
            self.worker.finished(self.now, job, ending, reply.clone(), event.clone());
            // A second end of one job is ignored.
            self.worker.finished(self.now, job, ending, reply, event);
        }
    }

    fn store_next(&mut self, fails: bool) {
        let Some((operation, token)) = self.pending.pop_front() else {
            return;
        };
        let failed = || Err(StoreFailure::Failed("disk full".to_owned()));
        let outcome = match operation {
            WorkerStoreOperation::Insert(new) => {
                if self.store.contains_key(&new.job) {
                    Err(StoreFailure::Duplicate)
                } else if fails {
                    failed()
                } else {
                    self.inserted.insert(new.job.clone());
                    self.store.insert(new.job, StoredJob::default());
                    Ok(())
                }
            }
            WorkerStoreOperation::Finish { job, ending, payload } => {
                let is_new = self.finish_answered.insert(job.clone());
                if fails && is_new {
                    // Kept by the store, which confirms it when there is space.
                    let again = WorkerStoreOperation::Finish { job, ending, payload };
                    self.pending.push_back((again, token.clone()));
                    failed()
                } else if fails {
                    // This time it does not try again by itself.
                    Err(StoreFailure::GivenUp("disk full".to_owned()))
                } else {
                    self.store.get_mut(&job).expect("inserted before it ends").payload = Some(payload);
                    Ok(())
                }
            }
            WorkerStoreOperation::Started(job) => {
                // The job is in the store, or its insert failed and this fails with it.
                if fails || !self.store.contains_key(&job) { failed() } else { Ok(()) }
            }
            other => panic!("{other:?} has no token"),
        };
        self.worker.stored(self.now, token, outcome);
    }

    fn load_next(&mut self) {
        if let Some((job, client, asked)) = self.loads.pop_front() {
            let loaded = self.store.get(&job).map(|stored| LoadedJob { payload: stored.payload.clone() });
            self.worker.loaded(job, client, asked, loaded);
        }
    }

    fn drain(&mut self) {
        let mut outputs = 0;
        let mut per_job = 0;
        while let Some(output) = self.worker.poll_output() {
            outputs += 1;
            match output {
                WorkerOutput::Send(message, class) => self.sent(&message, class),
                WorkerOutput::Announce(_, message) => self.sent(&message, Class::Unhurried),
                WorkerOutput::Withdraw(_) => {}
                WorkerOutput::Store(WorkerStoreOperation::Finish { job, ending, payload }, Some(token)) => {
                    let was_cancelled = self.cancelled.contains(&job);
                    assert!(
                        !was_cancelled || ending == Ending::Cancelled,
                        "{job} was cancelled and ends as {ending:?}"
                    );
                    self.pending.push_back((WorkerStoreOperation::Finish { job, ending, payload }, token));
                }
                WorkerOutput::Store(operation, Some(token)) => self.pending.push_back((operation, token)),
                WorkerOutput::Store(operation, None) => {
                    if let WorkerStoreOperation::Answered(job) | WorkerStoreOperation::Waiting(job) = &operation {
                        assert!(self.inserted.contains(job), "{job} is stored before it changes");
                    }
                    per_job += 1;
                }
                WorkerOutput::Load { job, client, asked } => self.loads.push_back((job, client, asked)),
                WorkerOutput::LookUp { jobs, question, client } => {
                    let stored = jobs.iter().filter(|job| self.store.contains_key(*job)).cloned().collect();
                    self.worker.looked_up(question, client, jobs, &stored);
                }
                WorkerOutput::Start(start) => {
                    per_job += 1;
                    assert!(self.inserted.contains(&start.job), "{} is stored before it runs", start.job);
                    assert!(self.started.insert(start.job.clone()), "{} runs twice", start.job);
                    assert!(!self.cancelled.contains(&start.job), "{} was cancelled", start.job);
                    self.running.insert(start.job.clone());
                    assert!(start.deadline.is_none_or(|at| at > self.now), "nobody waits for {}", start.job);
                }
                WorkerOutput::Abandon { job, why, .. } => {
                    per_job += 1;
                    if matches!(why, Abandoned::Cancelled { .. }) {
                        self.cancel(&job);
                    }
                    let reply = result_reply(&worker_name(0), b"{}");
                    self.worker.finished(self.now, &job, Ending::Failed, reply, Bytes::from_static(b"{}"));
                }
                // The new socket is connected when the operations say so.
                WorkerOutput::Reconnect => {}
                WorkerOutput::Deliver { job, .. } => {
                    assert!(self.started.contains(&job), "only a running task gets something");
                }
                WorkerOutput::Cancel { job, .. } => {
                    assert!(self.started.contains(&job), "only a running task gets something");
                    assert!(!self.cancelled.contains(&job), "it is told once");
                    per_job += 1;
                    self.cancel(&job);
                }
                WorkerOutput::Note(_) => {}
            }
            assert!(outputs - per_job <= OUTPUTS_MAX && per_job <= 32, "one input has few outputs");
        }
    }

    fn cancel(&mut self, job: &JobId) {
        self.cancelled.insert(job.clone());
        self.worker.announce_cancel(job, "cancelled", Bytes::from_static(b"{}")).expect("it has not ended");
    }

    fn sent(&mut self, message: &[Bytes], class: Class) {
        match WorkerMessage::decode(message).expect("the broker can read what we send") {
            WorkerMessage::Ready(_) => assert_eq!(class, Class::First),
            WorkerMessage::Response(reply) if reply.status == Status::ACCEPTED => {
                assert!(self.inserted.contains(&reply.job), "no 201 before the job is stored");
            }
            WorkerMessage::Response(reply) if reply.status == Status::OK => {
                assert!(self.finish_answered.contains(&reply.job), "no 200 before the store was asked");
            }
            WorkerMessage::Response(_)
            | WorkerMessage::Event(_)
            | WorkerMessage::Stream(_)
            | WorkerMessage::Keepalive(_)
            | WorkerMessage::Disconnect(_) => {}
        }
    }

    /// Everything that runs ends and the store catches up: the machine keeps nothing.
    fn wind_down(&mut self) {
        for _ in 0..32 {
            for job in self.running.clone() {
                self.finish(&job, 0);
                self.drain();
            }
            while !self.pending.is_empty() {
                self.store_next(false);
                self.drain();
            }
            while !self.loads.is_empty() {
                self.load_next();
                self.drain();
            }
            // Ends that the store gave up are given to it again.
            self.now += Duration::from_secs(1);
            self.worker.timeout(self.now);
            self.drain();
        }
        assert_eq!((self.worker.unfinished(), self.worker.running()), (0, 0), "nothing is left");
        let given_up = self.worker.sizes().find(|size| size.what.contains("gave up")).expect("it is counted");
        assert_eq!(given_up.count, 0, "every end is stored");
    }
}
