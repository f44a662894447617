//! From the arguments of a job to the typed input of its task, with errors that name the argument.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Longest part of a text that an error repeats, in characters.
const SHOWN_CHARACTERS_MAX: usize = 80;

/// Why the arguments do not fit the task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// More values by position than the task has arguments.
    #[error("{given} positional arguments were given, the task takes {}", takes(names))]
    TooMany {
        /// How many.
        given: usize,
        /// What the task takes, in the order of positions.
        names: Vec<String>,
    },
    /// The same argument by position and by name, or under two names.
    #[error("argument '{name}' was given twice")]
    Twice {
        /// Which.
        name: String,
    },
    /// No such argument.
    #[error("unknown argument '{name}', the task takes {}", takes(names))]
    Unknown {
        /// The beginning of its name.
        name: String,
        /// What the task takes.
        names: Vec<String>,
    },
    /// Not given, and without a default.
    #[error("missing argument '{name}', the task takes {}", takes(names))]
    Missing {
        /// Which.
        name: String,
        /// What the task takes.
        names: Vec<String>,
    },
    /// A value of another type or out of range.
    #[error("argument '{path}': {problem}")]
    Wrong {
        /// Which, with the way to the part of it that is wrong: `hosts[2].name`.
        path: String,
        /// What was expected and what was found.
        problem: String,
    },
    /// Wrong in a way that no single argument can be blamed for.
    #[error("the arguments do not fit together: {problem}")]
    Together {
        /// What the reader said.
        problem: String,
    },
}

fn takes(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    quoted.join(", ")
}

/// What a task takes, read from the schema of its input.
#[derive(Debug, Clone)]
pub(crate) struct Signature {
    names: Vec<String>,
    required: Vec<String>,
    /// Whether arguments that the schema does not name are let in.
    open: bool,
}

impl Signature {
    /// Reads a schema in the shape of [`crate::schema::shape_input`].
    pub(crate) fn new(schema: &Value) -> Self {
        let names = match schema.get("properties") {
            Some(Value::Object(properties)) => properties.keys().cloned().collect(),
            _ => Vec::new(),
        };
        let required = match schema.get("required") {
            Some(Value::Array(required)) => required.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        // Alternatives at the top may name further arguments: the reader of the input judges those.
        let is_set = |key: &str| schema.get(key).is_some_and(|value| *value != Value::Bool(false));
        let open = ["additionalProperties", "anyOf", "oneOf", "allOf"].into_iter().any(is_set);
        Self { names, required, open }
    }

    /// Gives every value its name and checks that all are known and none is missing.
    pub(crate) fn bind(
        &self,
        args: Vec<Value>,
        kwargs: Map<String, Value>,
    ) -> Result<Map<String, Value>, ArgumentError> {
        if args.len() > self.names.len() {
            return Err(ArgumentError::TooMany { given: args.len(), names: self.names.clone() });
        }
        let mut bound = Map::new();
        for (name, value) in self.names.iter().zip(args) {
            bound.insert(name.clone(), value);
        }
        for (name, value) in kwargs {
            if bound.contains_key(&name) {
                return Err(ArgumentError::Twice { name });
            }
            if !self.open && !self.names.contains(&name) {
                return Err(ArgumentError::Unknown {
                    name: name.chars().take(SHOWN_CHARACTERS_MAX).collect(),
                    names: self.names.clone(),
                });
            }
            bound.insert(name, value);
        }
        if let Some(name) = self.required.iter().find(|name| !bound.contains_key(*name)) {
            return Err(ArgumentError::Missing { name: name.clone(), names: self.names.clone() });
        }
        Ok(bound)
    }
}

/// Reads bound arguments as the input of a task. The type decides; the schema only helps to say what is wrong.
pub(crate) fn read<Input: DeserializeOwned>(schema: &Value, bound: Map<String, Value>) -> Result<Input, ArgumentError> {
    let object = Value::Object(bound);
    let error = match serde_path_to_error::deserialize(&object) {
        Ok(input) => return Ok(input),
        Err(error) => error,
    };
    if let Some((path, problem)) = mismatch(schema, &object, "") {
        return Err(ArgumentError::Wrong { path, problem });
    }
    let path = error.path().to_string();
    let problem = error.into_inner().to_string();
    if path == "." {
        return Err(ArgumentError::Together { problem });
    }
    Err(ArgumentError::Wrong { path, problem })
}

/// The first place where a value does not fit its schema: the way to it, and what is wrong there.
fn mismatch(schema: &Value, value: &Value, path: &str) -> Option<(String, String)> {
    let Value::Object(schema) = schema else {
        return None;
    };
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(forms)) = schema.get(key) {
            return mismatch_of_all(schema, forms, value, path);
        }
    }
    let wrong = |expected: String| {
        let found = describe(schema, value);
        Some((path.to_owned(), format!("expected {expected}, found {found}")))
    };
    if let Some(Value::Array(allowed)) = schema.get("enum") {
        return if allowed.contains(value) {
            None
        } else {
            let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
            wrong(format!("one of {}", allowed.join(", ")))
        };
    }
    let kind = schema.get("type").and_then(Value::as_str)?;
    if !is_of(kind, value) {
        return wrong(noun(kind).to_owned());
    }
    if let Some(number) = value.as_f64() {
        let limit = |key: &str| schema.get(key).and_then(Value::as_f64);
        if limit("minimum").is_some_and(|minimum| number < minimum) {
            return wrong(format!("{} of at least {}", noun(kind), schema["minimum"]));
        }
        if limit("maximum").is_some_and(|maximum| number > maximum) {
            return wrong(format!("{} of at most {}", noun(kind), schema["maximum"]));
        }
    }
    match value {
        Value::Array(values) => {
            let items = schema.get("items")?;
            let mut places = values.iter().enumerate();
            places.find_map(|(index, item)| mismatch(items, item, &format!("{path}[{index}]")))
        }
        Value::Object(members) => mismatch_of_members(schema, members, path),
        _ => None,
    }
}

fn mismatch_of_all(
    schema: &Map<String, Value>,
    forms: &[Value],
    value: &Value,
    path: &str,
) -> Option<(String, String)> {
    let mut first = None;
    for form in forms {
        let wrong = mismatch(form, value, path)?;
        // A form that fits on the outside tells more than "none of these".
        let fits_outside = form.get("type").and_then(Value::as_str).is_some_and(|kind| is_of(kind, value));
        if fits_outside && first.is_none() {
            first = Some(wrong);
        }
    }
    if first.is_some() {
        return first;
    }
    let kinds: Vec<&str> = forms.iter().filter_map(|form| form.get("type").and_then(Value::as_str)).map(noun).collect();
    let found = describe(schema, value);
    let problem = format!("expected {}, found {found}", kinds.join(" or "));
    Some((path.to_owned(), problem))
}

fn mismatch_of_members(
    schema: &Map<String, Value>,
    members: &Map<String, Value>,
    path: &str,
) -> Option<(String, String)> {
    let below = |name: &str| {
        if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
    };
    if let Some(Value::Array(required)) = schema.get("required") {
        let mut names = required.iter().filter_map(Value::as_str);
        if let Some(name) = names.find(|name| !members.contains_key(*name)) {
            return Some((below(name), "is missing".to_owned()));
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let others = schema.get("additionalProperties");
    members.iter().find_map(|(name, member)| match (properties.and_then(|known| known.get(name)), others) {
        (Some(property), _) => mismatch(property, member, &below(name)),
        (None, Some(Value::Bool(false))) => Some((below(name), "is unknown".to_owned())),
        (None, Some(other)) => mismatch(other, member, &below(name)),
        (None, None) => None,
    })
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    }
}

fn noun(kind: &str) -> &str {
    match kind {
        "boolean" => "true or false",
        "integer" => "an integer",
        "number" => "a number",
        "string" => "a string",
        "array" => "a list",
        "object" => "an object",
        other => other,
    }
}

fn describe(schema: &Map<String, Value>, value: &Value) -> String {
    // A secret in the wrong place is still a secret.
    let is_secret = schema.get("writeOnly") == Some(&Value::Bool(true))
        || schema.get("format").is_some_and(|format| format == "password");
    match value {
        Value::Null => "null".to_owned(),
        Value::Array(values) => format!("a list of {}", values.len()),
        Value::Object(members) => format!("an object of {}", members.len()),
        _ if is_secret => "something else".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) if number.is_f64() => format!("number {number}"),
        Value::Number(number) => format!("integer {number}"),
        Value::String(text) if text.chars().count() > SHOWN_CHARACTERS_MAX => {
            let shown: String = text.chars().take(SHOWN_CHARACTERS_MAX).collect();
            format!("string {shown:?} and more")
        }
        Value::String(text) => format!("string {text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::schema::input_schema;

    #[derive(Debug, Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only how it is read is looked at")]
    struct Host {
        name: String,
        #[serde(default)]
        port: Option<u16>,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    struct Input {
        a: i64,
        #[serde(default)]
        b: Option<String>,
        #[serde(default)]
        hosts: Vec<Host>,
        #[serde(default)]
        small: u8,
        #[serde(default)]
        task: Option<Task>,
    }

    /// A type whose rule no schema tells.
    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(try_from = "String")]
    struct Task;

    impl TryFrom<String> for Task {
        type Error = String;
        fn try_from(text: String) -> Result<Self, String> {
            if text.is_empty() {
                return Err("task name is empty".to_owned());
            }
            Ok(Self)
        }
    }

    fn parse(args: Value, kwargs: Value) -> Result<Input, String> {
        let schema = input_schema::<Input>();
        let (Value::Array(args), Value::Object(kwargs)) = (args, kwargs) else {
            panic!("a list and an object");
        };
        Signature::new(&schema)
            .bind(args, kwargs)
            .and_then(|bound| read(&schema, bound))
            .map_err(|error| error.to_string())
    }

    fn refused(args: Value, kwargs: Value) -> String {
        parse(args, kwargs).expect_err("refused")
    }

    #[test]
    fn positions_follow_the_declared_order_and_names_fill_the_rest() {
        let input = parse(json!([4, "pos"]), json!({"small": 7})).expect("fits");
        assert_eq!((input.a, input.b.as_deref(), input.small), (4, Some("pos"), 7));
        assert!(input.hosts.is_empty() && input.task.is_none());
    }

    #[test]
    fn a_wrong_type_names_the_argument_what_was_expected_and_what_was_found() {
        assert_eq!(
            refused(json!([]), json!({"a": "not-an-int"})),
            r#"argument 'a': expected an integer, found string "not-an-int""#
        );
        assert_eq!(refused(json!([1, false]), json!({})), "argument 'b': expected a string or null, found false");
        assert_eq!(refused(json!([1.5]), json!({})), "argument 'a': expected an integer, found number 1.5");
    }

    #[test]
    fn a_wrong_part_is_named_with_the_way_to_it() {
        assert_eq!(
            refused(json!([1]), json!({"hosts": [{"name": "x"}, {"name": "y", "port": "ssh"}]})),
            r#"argument 'hosts[1].port': expected an integer or null, found string "ssh""#
        );
        assert_eq!(refused(json!([1]), json!({"hosts": [{"port": 1}]})), "argument 'hosts[0].name': is missing");
        assert_eq!(
            refused(json!([1]), json!({"hosts": [{"name": "x", "port": 70000}]})),
            "argument 'hosts[0].port': expected an integer of at most 65535, found integer 70000"
        );
        assert_eq!(refused(json!([1]), json!({"task": ""})), "argument 'task': task name is empty");
    }

    #[test]
    fn missing_unknown_surplus_and_double_arguments_are_named() {
        let takes = "the task takes 'a', 'b', 'hosts', 'small', 'task'";
        assert_eq!(refused(json!([]), json!({})), format!("missing argument 'a', {takes}"));
        assert_eq!(refused(json!([1]), json!({"ä": 1})), format!("unknown argument 'ä', {takes}"));
        assert_eq!(refused(json!([1]), json!({"a": 1})), "argument 'a' was given twice");
        assert_eq!(
            refused(json!([1, null, [], 1, null, 6]), json!({})),
            format!("6 positional arguments were given, {takes}")
        );
    }
}
