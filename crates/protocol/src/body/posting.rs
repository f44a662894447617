//! What a client of ours says of a POST beside the request, and what of it the broker reads.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{not_an_object, object_text};
use crate::message::DecodeError;

/// What a client of ours says of a POST beside the request itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Posting {
    /// How much of the time-out is left, where that is not all of it.
    pub remaining: Option<Duration>,
    /// The job may have been posted before.
    pub again: bool,
    /// How often the job had been refused, by the broker because nobody could get it yet, or by a worker while another one was looked
    /// for. Who refuses says which turn: a POST may have a twin under way, and the word on one must not be taken for that on a later
    /// one. A worker that refused one POST refuses every other of the same turn: the job may be with somebody else by then.
    pub turn: u32,
}

/// A key of ours is no reason to refuse what others mean by it.
pub(super) fn lenient_turn<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(turn(deserializer)?.unwrap_or(0))
}

/// A turn, where it is one. What else stands there is only passed over: it may be as long as a message, and keeping it as anything but
/// its text takes many times that.
pub(super) fn turn<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let text = <&RawValue>::deserialize(deserializer)?;
    Ok(text.get().parse().ok())
}

/// A job request that says how it is posted; without anything to say the request as it is.
pub fn posted_as(request: &Bytes, posting: Posting) -> Bytes {
    let text = request.trim_ascii_end();
    let Some(inner) = text.strip_suffix(b"}").filter(|_| posting != Posting::default()) else { return request.clone() };
    let Posting { remaining, again, turn } = posting;
    let remaining = remaining.map(|remaining| format!("\"remaining\":{:.3}", remaining.as_secs_f64()));
    let again = again.then(|| "\"again\":true".to_owned());
    let turn = (turn > 0).then(|| format!("\"turn\":{turn}"));
    let keys: Vec<String> = [remaining, again, turn].into_iter().flatten().collect();
    let comma = if inner.trim_ascii_end().ends_with(b"{") { "" } else { "," };
    [inner, comma.as_bytes(), keys.join(",").as_bytes(), b"}"].concat().into()
}

/// Who posts a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Poster {
    /// A client of ours.
    pub fabric: bool,
    /// It is one, and the job was never posted before.
    pub first: bool,
    /// As in [`Posting`].
    pub turn: u32,
}

/// As [`super::check_object`], for what a client posts.
pub fn check_job_request(bytes: &[u8]) -> Result<Poster, DecodeError> {
    #[derive(Deserialize)]
    struct Keys {
        #[serde(default)]
        fabric: Option<serde::de::IgnoredAny>,
        #[serde(default)]
        again: Option<serde::de::IgnoredAny>,
        #[serde(default, deserialize_with = "lenient_turn")]
        turn: u32,
    }
    let text = object_text(bytes)?;
    let keys: Keys = serde_json::from_str(text).map_err(|error| not_an_object(error.to_string()))?;
    let fabric = keys.fabric.is_some();
    Ok(Poster { fabric, first: fabric && keys.again.is_none(), turn: keys.turn })
}

#[cfg(test)]
mod tests {
    use super::super::{JobRequestHead, decode};
    use super::*;

    #[test]
    fn what_is_left_of_a_time_out_is_added_to_a_request_and_never_more_than_all() {
        let left = |request: &'static str, seconds| {
            let posting = Posting { remaining: Some(Duration::from_secs(seconds)), ..Posting::default() };
            let request = posted_as(&Bytes::from_static(request.as_bytes()), posting);
            decode::<JobRequestHead>("a job request", &request).expect("it can be read").time_left()
        };
        assert_eq!(left(r#"{"task":"t","timeout":60}"#, 20), Some(Duration::from_secs(20)));
        assert_eq!(left(r#"{"task":"t","timeout":60} "#, 90), Some(Duration::from_secs(60)));
        assert_eq!(left(r#"{"task":"t"}"#, 20), None);
        let posting = Posting { remaining: Some(Duration::from_millis(1500)), again: true, turn: 2 };
        let posted = posted_as(&Bytes::from_static(b"{}"), posting);
        assert_eq!(posted, &br#"{"remaining":1.500,"again":true,"turn":2}"#[..]);
        assert_eq!(check_job_request(&posted).expect("an object").turn, 2);
        let head: JobRequestHead =
            decode("a job request", br#"{"task":"t","timeout":60,"remaining":-1e300}"#).expect("it can be read");
        assert_eq!(head.time_left(), Some(Duration::ZERO));
    }

    #[test]
    fn a_turn_that_is_none_is_no_reason_to_refuse_a_job() {
        // What is looked into cannot be as deep, and what is read as a number not as large.
        let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
        for turn in ["null", "-1", "5e9", "1e999", "4294967296", "1.0", "\"x\"", "[1]", "{\"turn\":1}", &deep] {
            let body = format!(r#"{{"task":"t","fabric":1,"turn":{turn}}}"#);
            assert_eq!(check_job_request(body.as_bytes()).map(|poster| poster.turn), Ok(0), "{turn}");
            let head: JobRequestHead = decode("a job request", body.as_bytes()).expect("it can be read");
            assert_eq!(head.turn, 0, "{turn}");
        }
    }
}
