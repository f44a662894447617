//! JSON schemas of tasks in the one shape that list_tasks has: what the recorded peers write for their own tasks.
//!
//! Types are described by `schemars`; what it writes is rewritten here: no names and formats of Rust's types, a title for
//! every property, alternatives instead of lists of types, nested types in place, keys sorted.

use std::sync::LazyLock;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Keys that describe a value for people, and stay where they are when a schema becomes one of several alternatives.
const ANNOTATIONS: [&str; 5] = ["title", "description", "default", "examples", "deprecated"];

/// Formats that say nothing to a reader of JSON.
const RUST_FORMATS: [&str; 14] = [
    "int8", "int16", "int32", "int64", "int128", "int", "uint8", "uint16", "uint32", "uint64", "uint128", "uint",
    "float", "double",
];

/// The schema of a task's input.
pub(crate) fn input_schema<Input: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<Input>();
    shape_input(schema.to_value())
}

/// Brings the schema of a task's input into the shape of list_tasks: an object with `properties`, its keys sorted.
pub(crate) fn shape_input(mut schema: Value) -> Value {
    tidy(&mut schema);
    let mut object = match schema {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    for key in ["$schema", "title", "description"] {
        object.shift_remove(key);
    }
    // Unknown arguments are refused unless the schema lets them in: no need to say so in every listing.
    if object.get("additionalProperties") == Some(&Value::Bool(false)) {
        object.shift_remove("additionalProperties");
    }
    object.insert("type".to_owned(), json!("object"));
    object.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    sort_keys(&mut object);
    Value::Object(object)
}

/// The schema of a result, the same for every task that does not bring its own.
pub(crate) fn result_schema() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(build_result_schema);
    &SCHEMA
}

fn build_result_schema() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"items": {"type": "string"}, "type": "array"});
    let truth = json!({"type": "boolean"});
    let status = json!({"$ref": "#/$defs/ResultStatuses"});
    let object = json!({"additionalProperties": true, "type": "object"});
    // Name, forms beside null, default, description.
    let rows = [
        ("result", vec![json!({})], json!(null), "What the task returned"),
        ("failed", vec![truth.clone()], json!(false), "True when the task failed"),
        ("errors", vec![texts.clone()], json!([]), "Why it failed, in words"),
        ("task", vec![text.clone()], json!(null), "Worker and task, worker:task by default"),
        ("messages", vec![texts.clone()], json!([]), "Remarks of the task"),
        ("juuid", vec![text.clone()], json!(null), "Id of the job"),
        ("resources", vec![texts.clone()], json!([]), "What the task worked on"),
        ("resources_failed", vec![texts], json!([]), "On what of that it failed"),
        ("status", vec![status], json!(null), "How the task ended"),
        ("task_started", vec![text.clone()], json!(null), "Local time of the start"),
        ("task_completed", vec![text.clone()], json!(null), "Local time of the end"),
        ("service", vec![text.clone()], json!(null), "Service of the worker"),
        ("diff", vec![object, text], json!(null), "What changed, as an object or a text"),
        ("dry_run", vec![truth], json!(false), "True when nothing was to be changed"),
    ];
    let mut properties = Map::new();
    for (name, mut forms, default, description) in rows {
        forms.push(json!({"type": "null"}));
        let mut property = Map::new();
        property.insert("anyOf".to_owned(), Value::Array(forms));
        property.insert("default".to_owned(), default);
        property.insert("description".to_owned(), json!(description));
        // The status is a type of its own with a title of its own.
        if name != "status" {
            property.insert("title".to_owned(), json!(title(name)));
        }
        properties.insert(name.to_owned(), Value::Object(property));
    }
    json!({
        "$defs": {"ResultStatuses": {
            "enum": [
                "completed", "timeout", "no_match", "failed", "skipped", "error", "created", "updated", "unchanged",
            ],
            "title": "ResultStatuses",
            "type": "string",
        }},
        "description": "Outcome of a task on one worker",
        "properties": properties,
        "title": "Result",
        "type": "object",
    })
}

/// `dry_run` becomes `Dry Run`.
pub(crate) fn title(name: &str) -> String {
    let words = name.split('_').filter(|word| !word.is_empty());
    let capitalised = words.map(|word| {
        let mut letters = word.chars();
        let first = letters.next().into_iter().flat_map(char::to_uppercase);
        first.chain(letters.flat_map(char::to_lowercase)).collect()
    });
    capitalised.collect::<Vec<String>>().join(" ")
}

fn tidy(schema: &mut Value) {
    if *schema == Value::Bool(true) {
        *schema = Value::Object(Map::new());
    }
    let Value::Object(object) = schema else {
        return;
    };
    let is_rust_format =
        |format: &Value| matches!(format, Value::String(name) if RUST_FORMATS.contains(&name.as_str()));
    if object.get("format").is_some_and(is_rust_format) {
        object.shift_remove("format");
    }
    constants_to_enum(object);
    split_types(object);
    for key in ["items", "not"] {
        if let Some(inner) = object.get_mut(key) {
            tidy(inner);
        }
    }
    if let Some(inner @ Value::Object(_)) = object.get_mut("additionalProperties") {
        tidy(inner);
    }
    for key in ["anyOf", "oneOf", "allOf", "prefixItems"] {
        if let Some(Value::Array(inner)) = object.get_mut(key) {
            inner.iter_mut().for_each(tidy);
            if key == "anyOf" {
                *inner = inner.drain(..).flat_map(alternatives).collect();
            }
        }
    }
    if let Some(Value::Object(definitions)) = object.get_mut("$defs") {
        definitions.values_mut().for_each(tidy);
    }
    let required: Vec<Value> = match object.get("required") {
        Some(Value::Array(names)) => names.clone(),
        _ => Vec::new(),
    };
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        for (name, property) in properties {
            tidy(property);
            let is_required = required.iter().any(|required| required == name);
            complete_property(name, property, is_required);
        }
    }
    sort_keys(object);
}

/// A property has a title, and a default where it may be left out and null is one of its values.
fn complete_property(name: &str, property: &mut Value, is_required: bool) {
    let Value::Object(object) = property else {
        return;
    };
    object.entry("title").or_insert_with(|| Value::String(title(name)));
    let is_null = |form: &Value| form.get("type").is_some_and(|kind| kind == "null");
    let may_be_null = matches!(object.get("anyOf"), Some(Value::Array(forms)) if forms.iter().any(is_null));
    if !is_required && may_be_null {
        object.entry("default").or_insert(Value::Null);
    }
    sort_keys(object);
}

/// Alternatives that each are one constant text are an enumeration.
fn constants_to_enum(object: &mut Map<String, Value>) {
    let Some(Value::Array(forms)) = object.get("oneOf") else {
        return;
    };
    let constants: Option<Vec<Value>> =
        forms.iter().map(|form| form.get("const").filter(|one| one.is_string()).cloned()).collect();
    if let Some(constants) = constants {
        object.shift_remove("oneOf");
        object.insert("enum".to_owned(), Value::Array(constants));
        object.insert("type".to_owned(), json!("string"));
    }
}

/// `"type": ["string", "null"]` becomes two alternatives.
fn split_types(object: &mut Map<String, Value>) {
    let Some(Value::Array(types)) = object.get("type").cloned() else {
        return;
    };
    object.shift_remove("type");
    let mut forms: Vec<Map<String, Value>> = Vec::new();
    for kind in types {
        forms.push(Map::from_iter([("type".to_owned(), kind)]));
    }
    // What limits the value belongs to its first form: `schemars` writes lists of types only for "this or null".
    let limits: Vec<String> = object.keys().filter(|key| !ANNOTATIONS.contains(&key.as_str())).cloned().collect();
    for key in limits {
        let Some(mut value) = object.shift_remove(&key) else {
            continue;
        };
        if let (true, Value::Array(values)) = (key == "enum", &mut value) {
            values.retain(|value| !value.is_null());
        }
        if let Some(first) = forms.first_mut() {
            first.insert(key, value);
        }
    }
    let forms = forms.into_iter().map(Value::Object).collect();
    object.insert("anyOf".to_owned(), Value::Array(forms));
}

/// Alternatives of an alternative are alternatives themselves.
fn alternatives(form: Value) -> Vec<Value> {
    match form {
        Value::Object(mut object) if object.len() == 1 => match object.shift_remove("anyOf") {
            Some(Value::Array(forms)) => forms,
            Some(other) => vec![json!({ "anyOf": other })],
            None => vec![Value::Object(object)],
        },
        other => vec![other],
    }
}

fn sort_keys(object: &mut Map<String, Value>) {
    object.sort_keys();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Recorded {
        a: i64,
        #[serde(default = "bee")]
        b: String,
    }

    fn bee() -> String {
        "bee".to_owned()
    }

    /// Tells nothing.
    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Mode {
        /// Looks.
        Look,
        /// Changes.
        Change,
    }

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Device {
        host_name: String,
        port: Option<u16>,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Rich {
        /// Which ones.
        devices: Vec<Device>,
        mode: Mode,
        again: Option<Mode>,
        anything: Value,
        labels: BTreeMap<String, i64>,
        #[serde(default)]
        ratio: f64,
    }

    #[test]
    fn a_plain_input_has_exactly_the_recorded_shape() {
        let expected = r#"{"properties":{"a":{"title":"A","type":"integer"},"b":{"default":"bee","title":"B","type":"string"}},"required":["a"],"type":"object"}"#;
        assert_eq!(input_schema::<Recorded>().to_string(), expected);
    }

    #[test]
    fn a_rich_input_is_described_in_place_without_names_of_rust_types() {
        let port = json!({"anyOf": [{"maximum": 65535, "minimum": 0, "type": "integer"}, {"type": "null"}],
            "default": null, "title": "Port"});
        let expected = json!({
            "properties": {
                "devices": {
                    "description": "Which ones.",
                    "items": {
                        "properties": {"host_name": {"title": "Host Name", "type": "string"}, "port": port},
                        "required": ["host_name"],
                        "type": "object",
                    },
                    "title": "Devices",
                    "type": "array",
                },
                "mode": {"description": "Tells nothing.", "enum": ["look", "change"], "title": "Mode", "type": "string"},
                "again": {
                    "anyOf": [{"description": "Tells nothing.", "enum": ["look", "change"], "type": "string"},
                        {"type": "null"}],
                    "default": null,
                    "title": "Again",
                },
                "anything": {"title": "Anything"},
                "labels": {"additionalProperties": {"type": "integer"}, "title": "Labels", "type": "object"},
                "ratio": {"default": 0.0, "title": "Ratio", "type": "number"},
            },
            "required": ["devices", "mode", "anything", "labels"],
            "type": "object",
        });
        let schema = input_schema::<Rich>();
        assert_eq!(
            serde_json::to_string_pretty(&schema).expect("plain data"),
            serde_json::to_string_pretty(&expected).expect("plain data")
        );
    }

    #[test]
    fn titles_are_the_words_of_the_name() {
        assert_eq!(title("dry_run"), "Dry Run");
        assert_eq!(title("_b"), "B");
        assert_eq!(title("straße_ÜBER"), "Straße Über");
    }
}
