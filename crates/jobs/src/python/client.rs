//! A row of a client.

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId, ServiceName, TaskName};
use rusqlite::Row;
use serde_json::Value;

use super::{Found, Results, Room, Times, Unreadable, body, bytes_of, time, unpacked};
use crate::client::{ClientJob, ClientOperation, ClientState};

/// What is written down for a job that never ended.
const NEVER_ENDED: &str = "the job had not ended when its client was last at work, and its deadline has passed";

/// Seconds that a job has where its row does not say so: the default of the Python client.
const TIMEOUT_SECONDS_DEFAULT: u64 = 600;

/// The operations that make the job of a row.
pub(super) fn job(
    row: &Row<'_>,
    times: &Times<'_>,
    room: &Room,
    events: impl FnOnce() -> Result<Vec<Vec<u8>>, Unreadable>,
) -> Result<Found<ClientOperation>, Unreadable> {
    let id = JobId::parse(&row.get::<_, String>("uuid")?)?;
    let task = TaskName::parse(&row.get::<_, String>("task")?)?;
    let timeout =
        row.get::<_, Option<f64>>("timeout")?.map_or(TIMEOUT_SECONDS_DEFAULT, |seconds| seconds.max(0.0) as u64);
    let received = time(row, "received_timestamp", times)?;
    let deadline: Option<f64> = row.get("deadline")?;
    let submitted = deadline.map(|deadline| deadline - timeout as f64).or(received);
    let submitted = submitted.ok_or_else(|| Unreadable("nothing says when it was submitted".to_owned()))?;
    let deadline = deadline.unwrap_or(submitted + timeout as f64);
    let status: String = row.get("status")?;
    let mut state = ClientState::parse(&status).ok_or_else(|| Unreadable(format!("status {status:?} is unknown")))?;
    let mut errors: Vec<String> = list(row, "errors")?.iter().map(text).collect();
    if !state.is_final() {
        if deadline > times.now {
            return Ok(Found::Unfinished);
        }
        state = ClientState::Stale;
        errors.push(NEVER_ENDED.to_owned());
    }
    let ended = time(row, "completed_timestamp", times)?.unwrap_or(match state {
        ClientState::Stale => deadline,
        _ => submitted,
    });
    let (dispatched, started) = (names(row, "workers_dispatched")?, names(row, "workers_started")?);
    let results: Results = match bytes_of(row, "result_data")? {
        Some(packed) => serde_json::from_slice(&unpacked(packed, room)?)?,
        None => Results::new(),
    };
    let completed = names(row, "workers_completed")?;
    let mut operations = vec![ClientOperation::Insert(ClientJob {
        id: id.clone(),
        service: ServiceName::parse(&row.get::<_, String>("service")?)?,
        target: target(row)?,
        body: body(row, room, &task, timeout)?.into(),
        task,
        timeout,
        submitted,
        deadline,
        state: ClientState::New,
        dispatched: Vec::new(),
        started: Vec::new(),
        completed: Vec::new(),
        errors: Vec::new(),
        finished: None,
    })];
    for (worker, result) in results {
        let payload = Bytes::copy_from_slice(result.get().as_bytes());
        operations.push(ClientOperation::Result { id: id.clone(), worker: Identity::parse(&worker)?, payload });
    }
    let events = events()?;
    let count = events.len() as u64;
    operations.extend(events.into_iter().map(|body| ClientOperation::Event { id: id.clone(), body: body.into() }));
    let finished = Some(ended);
    operations.push(ClientOperation::Progress {
        id: id.clone(),
        state,
        dispatched,
        started,
        completed,
        errors,
        finished,
    });
    Ok(Found::Job { id, operations, events: count, ended })
}

/// An event is kept as it was sent.
pub(super) fn event(data: &[u8], room: &Room) -> Result<Vec<u8>, Unreadable> {
    let text = unpacked(data, room)?;
    serde_json::from_slice::<serde_json::Map<String, Value>>(&text)?;
    Ok(text)
}

fn target(row: &Row<'_>) -> Result<String, Unreadable> {
    Ok(match bytes_of(row, "workers_requested")? {
        None => "all".to_owned(),
        Some(text) => match serde_json::from_slice(text)? {
            Value::String(name) => name,
            list => list.to_string(),
        },
    })
}

fn names(row: &Row<'_>, column: &str) -> Result<Vec<Identity>, Unreadable> {
    list(row, column)?.iter().map(|name| Identity::parse(&text(name)).map_err(Unreadable::from)).collect()
}

fn list(row: &Row<'_>, column: &str) -> Result<Vec<Value>, Unreadable> {
    match bytes_of(row, column)? {
        None => Ok(Vec::new()),
        Some(text) => serde_json::from_slice(text).map_err(|error| Unreadable(format!("{column}: {error}"))),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
