//! Merging the data of a worker, as NorFab does it.

use serde_json::{Map, Number, Value};

/// Merges `from` into `target`: mappings key by key, to a list the items it does not have yet, and everything else, a
/// change of type included, is replaced. Items that a list had twice stay twice.
pub fn merge_into(target: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (target.get_mut(key), value) {
            (Some(Value::Array(items)), Value::Array(new)) => {
                for item in new {
                    if !items.iter().any(|other| python_equal(other, item)) {
                        items.push(item.clone());
                    }
                }
            }
            (Some(Value::Object(entries)), Value::Object(new)) => merge_into(entries, new),
            (Some(_) | None, _) => {
                target.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Equality as Python sees it: 1, 1.0 and true are the same, and the order of keys does not count.
pub(crate) fn python_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Null, Value::Null) => true,
        (Value::String(one), Value::String(other)) => one == other,
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| python_equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| python_equal(value, other)))
        }
        (Value::Bool(_) | Value::Number(_), Value::Bool(_) | Value::Number(_)) => {
            match (as_number(one), as_number(other)) {
                (Some(one), Some(other)) => numbers_equal(&one, &other),
                _ => false,
            }
        }
        _ => false,
    }
}

fn as_number(value: &Value) -> Option<Number> {
    match value {
        Value::Bool(flag) => Some(Number::from(u8::from(*flag))),
        Value::Number(number) => Some(number.clone()),
        Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn numbers_equal(one: &Number, other: &Number) -> bool {
    if one.is_f64() == other.is_f64() {
        return one == other;
    }
    one.as_f64() == other.as_f64()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(entries) => entries,
            other => panic!("no mapping: {other}"),
        }
    }

    fn merged(first: Value, second: Value) -> Value {
        let mut target = object(first);
        merge_into(&mut target, &object(second));
        Value::Object(target)
    }

    #[test]
    fn lists_get_only_what_python_does_not_find_in_them() {
        assert_eq!(
            merged(json!({"l": [1, 2, 2, {"a": 1, "b": 2}]}), json!({"l": [true, 2.0, {"b": 2, "a": 1}, "1", 3, 3]})),
            json!({"l": [1, 2, 2, {"a": 1, "b": 2}, "1", 3]})
        );
    }

    #[test]
    fn a_change_of_type_replaces() {
        assert_eq!(
            merged(json!({"a": {"x": 1}, "b": [1], "c": 1}), json!({"a": [1], "b": {"x": 1}, "c": null})),
            json!({"a": [1], "b": {"x": 1}, "c": null})
        );
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-2i64..3).prop_map(Value::from),
            (-2i32..3).prop_map(|half| json!(f64::from(half) / 2.0)),
            "[a-c]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[a-c]", inner), 0..4)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    fn mapping() -> impl Strategy<Value = Map<String, Value>> {
        prop::collection::vec(("[a-c]", value()), 0..5).prop_map(|entries| entries.into_iter().collect())
    }

    proptest! {
        #[test]
        fn merging_the_same_twice_changes_nothing_more(first in mapping(), second in mapping()) {
            let mut once = first;
            merge_into(&mut once, &second);
            let mut twice = once.clone();
            merge_into(&mut twice, &second);
            prop_assert_eq!(once, twice);
        }

        #[test]
        fn merging_with_itself_changes_nothing(data in mapping()) {
            let mut target = data.clone();
            merge_into(&mut target, &data);
            prop_assert_eq!(target, data);
        }

        #[test]
        fn equality_is_symmetric(one in value(), other in value()) {
            prop_assert_eq!(python_equal(&one, &other), python_equal(&other, &one));
            prop_assert!(python_equal(&one, &one));
        }
    }
}
