//! What may be large: bodies and results.
//!
//! SQLite copies a value twice on its way into a page. So a large one is cut into parts, and only one part is copied at a
//! time; the pieces lie in a table of their own, so that a change of the job does not write them again.

use bytes::Bytes;
use norfab_protocol::name::JobId;
use rusqlite::{Connection, OptionalExtension, Rows, params};

use crate::error::OperationError;
use crate::store::{EVENTS_PER_JOB_MAX, Outcome};

/// Bytes of a part.
pub(super) const PART_BYTES: usize = 1 << 20;

/// Bodies up to this size stay in the job's row, which saves a page per job.
pub(super) const INLINE_BYTES_MAX: usize = 1024;

/// The parts of a value, at least one, with their numbers.
pub(super) fn parts(value: &[u8]) -> impl Iterator<Item = (i64, &[u8])> {
    let first = value.is_empty().then_some(value);
    first.into_iter().chain(value.chunks(PART_BYTES)).zip(0..).map(|(part, number)| (number, part))
}

/// Puts a value of several rows together. The rows come in the order of parts; `column` holds them.
pub(super) fn join(mut rows: Rows<'_>, column: usize) -> rusqlite::Result<Option<Bytes>> {
    let mut value: Option<Vec<u8>> = None;
    while let Some(row) = rows.next()? {
        let part = row.get_ref(column)?.as_blob()?;
        value.get_or_insert_default().extend_from_slice(part);
    }
    Ok(value.map(Bytes::from))
}

/// The body as it stands in the job's row; `None` for one that stands in parts.
pub(super) fn inline(body: &[u8]) -> Option<&[u8]> {
    (body.len() <= INLINE_BYTES_MAX).then_some(body)
}

/// Stores the parts of a body that is not inline.
pub(super) fn insert_body(connection: &Connection, job: i64, body: &[u8]) -> rusqlite::Result<()> {
    if inline(body).is_some() {
        return Ok(());
    }
    let mut insert = connection.prepare_cached("INSERT INTO body (job, part, data) VALUES (?1, ?2, ?3)")?;
    for (part, data) in parts(body) {
        insert.execute(params![job, part, data])?;
    }
    Ok(())
}

/// The body of a job whose row has none.
pub(super) fn body(connection: &Connection, job: i64) -> rusqlite::Result<Bytes> {
    let mut select = connection.prepare_cached("SELECT data FROM body WHERE job = ?1 ORDER BY part")?;
    Ok(join(select.query([job])?, 0)?.unwrap_or_default())
}

/// Counts one more event of a job that has `stored` of them, unless there are too many.
pub(super) fn count_event(id: &JobId, stored: &mut Option<u64>) -> Outcome {
    match stored {
        Some(stored) if *stored >= EVENTS_PER_JOB_MAX as u64 => Err(OperationError::TooManyEvents { id: id.clone() }),
        Some(stored) => {
            *stored += 1;
            Ok(())
        }
        None => Ok(()),
    }
}

/// Stores an event unless there are too many. `stored` is how many the job has, if that is known.
pub(super) fn insert_event(
    connection: &Connection,
    id: &JobId,
    job: i64,
    stored: &mut Option<u64>,
    body: &[u8],
) -> rusqlite::Result<Outcome> {
    let sequence = match *stored {
        Some(sequence) => sequence,
        None => {
            // With `+ 0`, because SQLite plans a query anew for each value that stands there alone.
            let last = connection
                .prepare_cached("SELECT sequence FROM event WHERE job = ?1 + 0 ORDER BY sequence DESC LIMIT 1")?
                .query_row([job], |row| row.get::<_, i64>(0))
                .optional()?;
            let sequence = last.map_or(0, |last| last.unsigned_abs() + 1);
            *stored.insert(sequence)
        }
    };
    if let refused @ Err(_) = count_event(id, stored) {
        return Ok(refused);
    }
    connection.prepare_cached("INSERT INTO event (job, sequence, data) VALUES (?1, ?2, ?3)")?.execute(params![
        job,
        sequence.cast_signed(),
        body
    ])?;
    Ok(Ok(()))
}

/// The events of a job, the first stored first.
pub(super) fn events(connection: &Connection, job: i64) -> rusqlite::Result<Vec<Bytes>> {
    connection
        .prepare_cached("SELECT data FROM event WHERE job = ?1 ORDER BY sequence")?
        .query_map([job], |row| Ok(Bytes::copy_from_slice(row.get_ref(0)?.as_blob()?)))?
        .collect()
}
