//! Operations as bytes of a journal's record: fields in order, texts and payloads with their length before them.
//!
//! A record is read by the program that wrote it or a later version of it; the first byte of each operation names its kind,
//! and a kind gets a new number when its fields change.

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId, ServiceName, TaskName};

use crate::client::{ClientJob, ClientOperation, ClientState};
use crate::worker::{WorkerJob, WorkerOperation, WorkerState};

/// What a journal can hold.
pub trait Recorded: Sized {
    /// Appends this operation.
    fn write(&self, to: &mut Vec<u8>);

    /// Takes one operation off the front. `None`: there is none that this program can read.
    fn read(from: &mut &[u8]) -> Option<Self>;
}

fn write_u64(to: &mut Vec<u8>, number: u64) {
    to.extend_from_slice(&number.to_le_bytes());
}

fn write_time(to: &mut Vec<u8>, time: f64) {
    write_u64(to, time.to_bits());
}

fn write_times(to: &mut Vec<u8>, time: Option<f64>) {
    // No time is a NaN, which no operation that was taken has.
    write_time(to, time.unwrap_or(f64::NAN));
}

fn write_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    write_u64(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

fn write_list<Item>(to: &mut Vec<u8>, items: &[Item], text: impl Fn(&Item) -> &str) {
    write_u64(to, items.len() as u64);
    for item in items {
        write_bytes(to, text(item).as_bytes());
    }
}

fn read_u64(from: &mut &[u8]) -> Option<u64> {
    from.split_off(..8)?.try_into().ok().map(u64::from_le_bytes)
}

fn read_time(from: &mut &[u8]) -> Option<f64> {
    read_u64(from).map(f64::from_bits)
}

fn read_times(from: &mut &[u8]) -> Option<Option<f64>> {
    read_time(from).map(|time| Some(time).filter(|time| !time.is_nan()))
}

fn read_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(read_u64(from)?).ok()?;
    from.split_off(..length)
}

fn read_payload(from: &mut &[u8]) -> Option<Bytes> {
    read_bytes(from).map(Bytes::copy_from_slice)
}

fn read_text<'a>(from: &mut &'a [u8]) -> Option<&'a str> {
    read_bytes(from).and_then(|bytes| str::from_utf8(bytes).ok())
}

fn read_list<Item>(from: &mut &[u8], parse: impl Fn(&str) -> Option<Item>) -> Option<Vec<Item>> {
    let count = read_u64(from)?;
    // Not reserved: the number may be wrong, and each item takes bytes that must be there.
    (0..count).map(|_| read_text(from).and_then(&parse)).collect()
}

fn read_job_id(from: &mut &[u8]) -> Option<JobId> {
    JobId::parse(read_text(from)?).ok()
}

fn read_identity(from: &mut &[u8]) -> Option<Identity> {
    Identity::parse(read_text(from)?).ok()
}

fn read_identities(from: &mut &[u8]) -> Option<Vec<Identity>> {
    read_list(from, |text| Identity::parse(text).ok())
}

impl Recorded for WorkerOperation {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Insert(job) => {
                to.push(1);
                write_bytes(to, job.id.as_str().as_bytes());
                write_bytes(to, job.client.as_str().as_bytes());
                write_bytes(to, job.task.as_str().as_bytes());
                write_bytes(to, &job.body);
                write_u64(to, job.timeout);
                write_time(to, job.received);
                write_time(to, job.deadline);
                write_bytes(to, job.state.as_str().as_bytes());
                write_u64(to, job.attempts.into());
                write_times(to, job.started);
                write_times(to, job.finished);
            }
            Self::State { id, state, at } => {
                to.push(2);
                write_bytes(to, id.as_str().as_bytes());
                write_bytes(to, state.as_str().as_bytes());
                write_time(to, *at);
            }
            Self::StartedAnew { id, at } => {
                to.push(6);
                write_bytes(to, id.as_str().as_bytes());
                write_time(to, *at);
            }
            Self::Answered { id } => {
                to.push(5);
                write_bytes(to, id.as_str().as_bytes());
            }
            Self::Finish { id, state, at, payload } => {
                to.push(3);
                write_bytes(to, id.as_str().as_bytes());
                write_bytes(to, state.as_str().as_bytes());
                write_time(to, *at);
                write_bytes(to, payload);
            }
            Self::Event { id, body } => {
                to.push(4);
                write_bytes(to, id.as_str().as_bytes());
                write_bytes(to, body);
            }
        }
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        let state = |from: &mut &[u8]| WorkerState::parse(read_text(from)?);
        Some(match from.split_off_first()? {
            1 => Self::Insert(WorkerJob {
                id: read_job_id(from)?,
                client: read_identity(from)?,
                task: TaskName::parse(read_text(from)?).ok()?,
                body: read_payload(from)?,
                timeout: read_u64(from)?,
                received: read_time(from)?,
                deadline: read_time(from)?,
                state: state(from)?,
                attempts: u32::try_from(read_u64(from)?).ok()?,
                started: read_times(from)?,
                finished: read_times(from)?,
            }),
            2 => Self::State { id: read_job_id(from)?, state: state(from)?, at: read_time(from)? },
            3 => Self::Finish {
                id: read_job_id(from)?,
                state: state(from)?,
                at: read_time(from)?,
                payload: read_payload(from)?,
            },
            4 => Self::Event { id: read_job_id(from)?, body: read_payload(from)? },
            5 => Self::Answered { id: read_job_id(from)? },
            6 => Self::StartedAnew { id: read_job_id(from)?, at: read_time(from)? },
            _ => return None,
        })
    }
}

impl Recorded for ClientOperation {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Insert(job) => {
                to.push(1);
                write_bytes(to, job.id.as_str().as_bytes());
                write_bytes(to, job.service.as_str().as_bytes());
                write_bytes(to, job.task.as_str().as_bytes());
                write_bytes(to, job.target.as_bytes());
                write_bytes(to, &job.body);
                write_u64(to, job.timeout);
                write_time(to, job.submitted);
                write_time(to, job.deadline);
                write_bytes(to, job.state.as_str().as_bytes());
                write_list(to, &job.dispatched, Identity::as_str);
                write_list(to, &job.started, Identity::as_str);
                write_list(to, &job.completed, Identity::as_str);
                write_list(to, &job.errors, String::as_str);
                write_times(to, job.finished);
            }
            Self::Progress { id, state, dispatched, started, completed, errors, finished } => {
                to.push(2);
                write_bytes(to, id.as_str().as_bytes());
                write_bytes(to, state.as_str().as_bytes());
                write_list(to, dispatched, Identity::as_str);
                write_list(to, started, Identity::as_str);
                write_list(to, completed, Identity::as_str);
                write_list(to, errors, String::as_str);
                write_times(to, *finished);
            }
            Self::Result { id, worker, payload } => {
                to.push(3);
                write_bytes(to, id.as_str().as_bytes());
                write_bytes(to, worker.as_str().as_bytes());
                write_bytes(to, payload);
            }
            Self::Event { id, body } => {
                to.push(4);
                write_bytes(to, id.as_str().as_bytes());
                write_bytes(to, body);
            }
        }
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        let state = |from: &mut &[u8]| ClientState::parse(read_text(from)?);
        let errors = |from: &mut &[u8]| read_list(from, |text| Some(text.to_owned()));
        Some(match from.split_off_first()? {
            1 => Self::Insert(ClientJob {
                id: read_job_id(from)?,
                service: ServiceName::parse(read_text(from)?).ok()?,
                task: TaskName::parse(read_text(from)?).ok()?,
                target: read_text(from)?.to_owned(),
                body: read_payload(from)?,
                timeout: read_u64(from)?,
                submitted: read_time(from)?,
                deadline: read_time(from)?,
                state: state(from)?,
                dispatched: read_identities(from)?,
                started: read_identities(from)?,
                completed: read_identities(from)?,
                errors: errors(from)?,
                finished: read_times(from)?,
            }),
            2 => Self::Progress {
                id: read_job_id(from)?,
                state: state(from)?,
                dispatched: read_identities(from)?,
                started: read_identities(from)?,
                completed: read_identities(from)?,
                errors: errors(from)?,
                finished: read_times(from)?,
            },
            3 => Self::Result { id: read_job_id(from)?, worker: read_identity(from)?, payload: read_payload(from)? },
            4 => Self::Event { id: read_job_id(from)?, body: read_payload(from)? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    fn round_trip<Operation: Recorded + PartialEq + Debug>(operations: &[Operation]) {
        let mut bytes = Vec::new();
        for operation in operations {
            operation.write(&mut bytes);
        }
        let mut rest = &bytes[..];
        for operation in operations {
            assert_eq!(Operation::read(&mut rest).as_ref(), Some(operation));
        }
        assert_eq!(Operation::read(&mut rest), None);
        for length in 0..bytes.len() {
            // Never a panic, and never more than was there.
            let mut cut = &bytes[..length];
            let count = std::iter::from_fn(|| Operation::read(&mut cut)).count();
            assert!(count < operations.len(), "{length} bytes");
        }
    }

    fn id(text: &str) -> JobId {
        JobId::parse(text).expect("a name")
    }

    fn name(text: &str) -> Identity {
        Identity::parse(text).expect("a name")
    }

    #[test]
    fn a_workers_operations_come_back_as_they_were() {
        let job = WorkerJob {
            id: id("Ω"),
            client: name("c"),
            task: TaskName::parse("t").expect("a name"),
            body: Bytes::from_static(b"{}"),
            timeout: u64::MAX,
            received: 1.5,
            deadline: -0.0,
            state: WorkerState::Pending,
            attempts: 3,
            started: Some(0.0),
            finished: None,
        };
        round_trip(&[
            WorkerOperation::Insert(job),
            WorkerOperation::State { id: id("1"), state: WorkerState::Started, at: 2.0 },
            WorkerOperation::StartedAnew { id: id("1"), at: 2.5 },
            WorkerOperation::Answered { id: id("1") },
            WorkerOperation::Finish {
                id: id("1"),
                state: WorkerState::Failed,
                at: 3.0,
                payload: Bytes::from_static(b"\xff\0"),
            },
            WorkerOperation::Event { id: id("1"), body: Bytes::new() },
        ]);
    }

    #[test]
    fn a_clients_operations_come_back_as_they_were() {
        let job = ClientJob {
            id: id("1"),
            service: ServiceName::parse("s").expect("a name"),
            task: TaskName::parse("t").expect("a name"),
            target: "any".to_owned(),
            body: Bytes::from_static(b"{}"),
            timeout: 600,
            submitted: 1.5,
            deadline: 2.5,
            state: ClientState::New,
            dispatched: vec![name("a"), name("b")],
            started: vec![],
            completed: vec![name("a")],
            errors: vec!["ä".to_owned(), String::new()],
            finished: None,
        };
        let ClientJob { dispatched, started, completed, errors, .. } = job.clone();
        round_trip(&[
            ClientOperation::Insert(job),
            ClientOperation::Progress {
                id: id("1"),
                state: ClientState::Completed,
                dispatched,
                started,
                completed,
                errors,
                finished: Some(9.0),
            },
            ClientOperation::Result { id: id("1"), worker: name("a"), payload: Bytes::from_static(b"{}") },
            ClientOperation::Event { id: id("1"), body: Bytes::from_static(b"e") },
        ]);
    }
}
