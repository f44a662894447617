//! The body of a 200: one Result under its worker's name.

use bytes::Bytes;

use crate::name::Identity;
use crate::result::TaskResult;

fn prefix(worker: &Identity) -> Vec<u8> {
    let mut text = b"{".to_vec();
    serde_json::to_writer(&mut text, worker).expect("a text can be written as JSON");
    text.push(b':');
    text
}

/// The body of a 200 for a result that is at hand. Errors: it cannot be written as JSON.
pub fn result_reply_of(worker: &Identity, result: &TaskResult) -> Result<Bytes, serde_json::Error> {
    let mut body = prefix(worker);
    body.reserve(result.result.get().len() + 512);
    serde_json::to_writer(&mut body, result)?;
    body.push(b'}');
    Ok(body.into())
}

/// The body of a 200: one Result under its worker's name.
pub fn result_reply(worker: &Identity, payload: &[u8]) -> Bytes {
    let mut body = prefix(worker);
    body.reserve_exact(payload.len() + 1);
    body.extend_from_slice(payload);
    body.push(b'}');
    body.into()
}

/// The Result inside a body that [`result_reply`] made, without copying it.
pub(super) fn result_payload(worker: &Identity, reply: &Bytes) -> Bytes {
    let start = prefix(worker).len().min(reply.len());
    reply.slice(start..reply.len().saturating_sub(1).max(start))
}
