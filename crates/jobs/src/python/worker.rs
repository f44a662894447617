//! A row of a worker.

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId, TaskName};
use rusqlite::Row;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Found, Results, Room, Times, Unreadable, body, bytes_of, time, unpacked};
use crate::worker::{WorkerJob, WorkerOperation, WorkerState};

/// Seconds that a job has where its row does not say so: the default of the Python worker.
const TIMEOUT_SECONDS_DEFAULT: u64 = 60;

/// What a worker stored of a job's end.
#[derive(Deserialize)]
struct End {
    #[serde(default)]
    result: Results,
    #[serde(default)]
    service: Option<String>,
}

/// The operations that make the job of a row. `events` is asked with the service that the row names.
pub(super) fn job(
    row: &Row<'_>,
    times: &Times<'_>,
    room: &Room,
    events: impl FnOnce(Option<&str>) -> Result<Vec<Vec<u8>>, Unreadable>,
) -> Result<Found<WorkerOperation>, Unreadable> {
    let id = JobId::parse(&row.get::<_, String>("uuid")?)?;
    let task = TaskName::parse(&row.get::<_, String>("task")?)?;
    let timeout =
        row.get::<_, Option<f64>>("timeout")?.map_or(TIMEOUT_SECONDS_DEFAULT, |seconds| seconds.max(0.0) as u64);
    let received = time(row, "received_timestamp", times)?;
    let received = received.ok_or_else(|| Unreadable("nothing says when it came".to_owned()))?;
    let deadline = received + timeout as f64;
    let status: String = row.get("status")?;
    let mut state = WorkerState::parse(&status).ok_or_else(|| Unreadable(format!("status {status:?} is unknown")))?;
    let started = time(row, "started_timestamp", times)?;
    let mut ended = time(row, "completed_timestamp", times)?;
    if !state.is_final() {
        if deadline > times.now {
            return Ok(Found::Unfinished);
        }
        // It was left behind by a worker that died.
        state = WorkerState::Failed;
        ended = Some(deadline);
    }
    let ended = ended.or(started).unwrap_or(received);
    let end = match bytes_of(row, "result_data")? {
        Some(packed) => Some(serde_json::from_slice::<End>(&unpacked(packed, room)?)?),
        None => None,
    };
    let mut operations = vec![WorkerOperation::Insert(WorkerJob {
        id: id.clone(),
        client: Identity::parse(&row.get::<_, String>("client_address")?)?,
        body: body(row, room, &task, timeout)?.into(),
        task,
        timeout,
        received,
        deadline,
        state: WorkerState::Pending,
        attempts: 0,
        started: None,
        finished: None,
    })];
    if let Some(at) = started {
        operations.push(WorkerOperation::State { id: id.clone(), state: WorkerState::Started, at });
    }
    let events = events(end.as_ref().and_then(|end| end.service.as_deref()))?;
    let count = events.len() as u64;
    operations.extend(events.into_iter().map(|body| WorkerOperation::Event { id: id.clone(), body: body.into() }));
    let payload = end.and_then(|end| end.result.into_values().next());
    operations.push(match payload {
        Some(payload) => WorkerOperation::Finish {
            id: id.clone(),
            state,
            at: ended,
            payload: Bytes::copy_from_slice(payload.get().as_bytes()),
        },
        None => WorkerOperation::State { id: id.clone(), state, at: ended },
    });
    Ok(Found::Job { id, operations, events: count, ended })
}

/// An event with what a Python worker adds only when it sends it: who it is, its service and the job.
pub(super) fn event(
    data: &[u8],
    room: &Room,
    worker: &str,
    service: Option<&str>,
    uuid: &str,
) -> Result<Vec<u8>, Unreadable> {
    let mut stored: Map<String, Value> = serde_json::from_slice(&unpacked(data, room)?)?;
    for ours in ["client_address", "juuid"] {
        stored.remove(ours);
    }
    let mut event = Map::new();
    for (key, value) in [("worker", worker), ("service", service.unwrap_or_default()), ("uuid", uuid)] {
        event.insert(key.to_owned(), value.into());
    }
    event.extend(stored);
    Ok(serde_json::to_vec(&event)?)
}
