//! The body of a 200: one Result under its worker's name.

use bytes::Bytes;
use serde::Deserialize;

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

/// How the Result of a job that was cancelled begins. The key is ours: workers of Python NorFab have no cancellations, and their clients take
/// a Result as it is. It comes first, so that nobody has to read a large one for it.
const MARK: &[u8] = b"{\"cancelled\":";

/// How the Result of a job begins that was taken back from a worker on which it never began, and on which it never will.
const TAKEN_BACK: &[u8] = b"{\"taken_back\":true";

/// Says in a body that [`result_reply`] made who cancelled the job, when and why. Its client may have missed the event, and would take what
/// is left of the job for all of it.
pub(super) fn marked(worker: &Identity, reply: &Bytes, text: &str) -> Bytes {
    let mut mark = MARK.to_vec();
    serde_json::to_writer(&mut mark, text).expect("a text can be written as JSON");
    begun_with(worker, reply, &mark)
}

/// Says in a body that [`result_reply`] made that it is none: the worker has given the job up.
pub(super) fn given_up(worker: &Identity, reply: &Bytes) -> Bytes {
    begun_with(worker, reply, TAKEN_BACK)
}

fn begun_with(worker: &Identity, reply: &Bytes, mark: &[u8]) -> Bytes {
    let payload = result_payload(worker, reply);
    let Some(keys) = payload.strip_prefix(b"{") else { return reply.clone() };
    let mut body = prefix(worker);
    body.reserve(mark.len() + payload.len() + 2);
    body.extend_from_slice(mark);
    if keys.trim_ascii_start().first() != Some(&b'}') {
        body.push(b',');
    }
    body.extend_from_slice(keys);
    body.push(b'}');
    body.into()
}

/// Who cancelled the job of a Result, when and why, where its worker says so.
pub fn cancellation_of(result: &[u8]) -> Option<String> {
    let rest = result.strip_prefix(MARK)?;
    String::deserialize(&mut serde_json::Deserializer::from_slice(rest)).ok()
}

/// Whether a Result says that its worker has given the job up: nothing of it has run there, and nothing will.
pub fn is_taken_back(result: &[u8]) -> bool {
    result.starts_with(TAKEN_BACK)
}

/// The Result inside a body that [`result_reply`] made, without copying it.
pub(super) fn result_payload(worker: &Identity, reply: &Bytes) -> Bytes {
    let start = prefix(worker).len().min(reply.len());
    reply.slice(start..reply.len().saturating_sub(1).max(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cancelled_a_job_stands_first_in_its_result_and_is_found_there() {
        let worker = Identity::parse("w\u{e4}").expect("a name");
        for (result, marked_result) in
            [("{}", r#"{"cancelled":"by \"me\""}"#), (r#"{"result":1}"#, r#"{"cancelled":"by \"me\"","result":1}"#)]
        {
            let body = marked(&worker, &result_reply(&worker, result.as_bytes()), "by \"me\"");
            assert_eq!(result_payload(&worker, &body), marked_result);
            assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
            assert_eq!(cancellation_of(marked_result.as_bytes()).as_deref(), Some("by \"me\""));
            assert_eq!(cancellation_of(result.as_bytes()), None);
        }
        let body = given_up(&worker, &result_reply(&worker, br#"{"result":1}"#));
        let payload = result_payload(&worker, &body);
        assert_eq!(payload, r#"{"taken_back":true,"result":1}"#);
        assert!(is_taken_back(&payload) && cancellation_of(&payload).is_none());
        assert!(!is_taken_back(br#"{"cancelled":"by me"}"#) && !is_taken_back(br#"{"result":1}"#));
        let other = result_reply(&worker, b"1");
        assert_eq!(marked(&worker, &other, "by me"), other, "that is no result");
    }
}
