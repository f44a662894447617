//! How long finished jobs are kept: the `jobs` section of the inventory, and the same keys in a worker's data.

use std::time::Duration;

use norfab_inventory::KeyPath;
use norfab_jobs::Retention;
use serde_json::{Map, Value};

use super::Site;
use crate::exit::Failure;
use crate::services::WrongSetting;

/// The section of the inventory.
const SECTION: &str = "jobs";

/// Longest time that can be kept: a century. Anything longer is a mistake.
const DAYS_MAX: u64 = 36_500;

/// Largest number of jobs and of bytes that can be kept: what an integer of the database holds.
const NUMBER_MAX: u64 = i64::MAX as u64;

/// The keys, in the order of [`Retention`].
const KEYS: [(&str, u64); 3] =
    [("retention_days", DAYS_MAX), ("retention_jobs", NUMBER_MAX), ("retention_bytes", NUMBER_MAX)];

/// Seconds of a day.
const DAY_SECONDS: u64 = 24 * 60 * 60;

impl Site {
    /// What the inventory of this host says. Errors: a value that cannot be used, with its file and line.
    pub fn retention(&self) -> Result<Retention, Failure> {
        let Some(inventory) = &self.inventory else { return Ok(Retention::default()) };
        let section = inventory.section(SECTION);
        let at = |key: Option<&str>, problem: String| {
            let path = key.iter().fold(KeyPath::root().key(SECTION), |path, key| path.key(key));
            Failure::configuration(inventory.error_at(&path, problem))
        };
        let values = match &section {
            Value::Object(values) => values,
            Value::Null => return Ok(Retention::default()),
            other => return Err(at(None, format!("expected a mapping, found {other}"))),
        };
        changed(Retention::default(), values).map_err(|wrong| at(Some(wrong.key), wrong.problem))
    }

    /// As [`Site::retention`], where a worker's own data does not say otherwise.
    pub(super) fn retention_of(&self, worker: &str, data: &Value) -> Result<Retention, Failure> {
        let general = self.retention()?;
        let Value::Object(values) = data else { return Ok(general) };
        changed(general, values).map_err(|wrong| self.wrong(worker, data, wrong))
    }
}

fn changed(retention: Retention, values: &Map<String, Value>) -> Result<Retention, WrongSetting> {
    let Retention { mut age_max, mut jobs_max, mut bytes_max } = retention;
    let mut numbers = KEYS.into_iter().map(|(key, max)| number(values, key, max));
    let mut next = || numbers.next().unwrap_or(Ok(None));
    if let Some(days) = next()? {
        age_max = Duration::from_secs(days * DAY_SECONDS);
    }
    jobs_max = next()?.unwrap_or(jobs_max);
    bytes_max = next()?.unwrap_or(bytes_max);
    Ok(Retention { age_max, jobs_max, bytes_max })
}

fn number(values: &Map<String, Value>, key: &'static str, max: u64) -> Result<Option<u64>, WrongSetting> {
    match values.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().filter(|number| *number <= max).map(Some).ok_or_else(|| WrongSetting {
            key,
            problem: format!("expected a whole number from 0 to {max}, found {value}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_key_changes_its_bound_and_nothing_else() {
        let read = |value: Value| changed(Retention::default(), value.as_object().expect("a mapping"));
        let retention = read(json!({"retention_jobs": 7, "service": "s"})).expect("a number");
        assert_eq!(retention, Retention { jobs_max: 7, ..Retention::default() });
        let retention = read(json!({"retention_days": 1, "retention_bytes": 9})).expect("numbers");
        let expected = Retention { age_max: Duration::from_secs(86_400), bytes_max: 9, ..Retention::default() };
        assert_eq!(retention, expected);
        for wrong in [json!(-1), json!("7"), json!(1.5), json!(40_000)] {
            let refused = read(json!({"retention_days": wrong})).expect_err("no number of days");
            assert_eq!(refused.key, "retention_days");
            assert!(refused.problem.contains("0 to 36500"), "{}", refused.problem);
        }
    }
}
