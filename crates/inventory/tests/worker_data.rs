//! The data of workers as recorded from both Python versions (`fixtures/inventory_merge_*.json`), from input files that
//! were derived from these answers.

use std::fs;
use std::path::Path;

use norfab_inventory::{Environment, Inventory, LoadOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

const A: &str = r#"service: s
l: [1, 2, 2]
m:
  x: 1
  y: {z: 1}
t: str
e: "{{ env.NFP_X }}"
u: "{{ env.NFP_UNDEFINED }}"
d: "{{ env.NFP_UNDEFINED | default('dflt') }}"
"#;

const B: &str = "l: [2, 3, {k: 1}]\nm:\n  x: 2\n  y: {w: 2}\nt: [now, list]\n";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in
        [("a.yaml", A), ("b.yaml", B), ("one.yaml", "l: [1]\n"), ("empty.yaml", ""), ("list.yaml", "- 1\n")]
    {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn inventory(folder: &Path, workers: Value) -> Inventory {
    let options = LoadOptions {
        env: Environment::from([("NFP_X".into(), "from-env".into())]),
        base_dir: Some(folder.to_path_buf()),
        ..LoadOptions::default()
    };
    Inventory::from_value(json!({"broker": {}, "workers": workers}), &options).unwrap()
}

fn data(folder: &Path, workers: Value, name: &str) -> Value {
    inventory(folder, workers).worker(name).unwrap().unwrap()
}

fn error(folder: &Path, workers: Value, name: &str) -> String {
    let error = inventory(folder, workers).worker(name).unwrap_err().to_string();
    error.replace(&folder.display().to_string(), "<base>")
}

/// Also the order of keys.
fn assert_same(ours: &Value, recorded: &Value) {
    assert_eq!(ours.to_string(), recorded.to_string());
}

fn recordings() -> [Value; 2] {
    [
        serde_json::from_str(include_str!("fixtures/inventory_merge_0.21.2.json")).unwrap(),
        serde_json::from_str(include_str!("fixtures/inventory_merge_0.25.0.json")).unwrap(),
    ]
}

#[test]
fn files_merge_in_the_order_of_the_keys() {
    let folder = folder();
    for recorded in recordings() {
        let forward = data(folder.path(), json!({"w-*": ["a.yaml"], "w-1": ["b.yaml"]}), "w-1");
        assert_same(&forward, &recorded["merge_two_files_in_key_order"]);
        let reverse = data(folder.path(), json!({"w-1": ["b.yaml"], "w-*": ["a.yaml"]}), "w-1");
        assert_same(&reverse, &recorded["reverse_key_order"]);
    }
}

#[test]
fn a_file_that_is_listed_twice_is_loaded_once() {
    let folder = folder();
    for recorded in recordings() {
        let ours = data(folder.path(), json!({"*": ["one.yaml"], "w-1": ["one.yaml", "one.yaml"]}), "w-1");
        assert_same(&ours, &recorded["same_file_twice_loaded_once"]);
    }
}

#[test]
fn question_marks_and_sets_match() {
    let folder = folder();
    for recorded in recordings() {
        let workers = json!({"w-?": [{"q": 1}], "w-[12]": [{"s": 1}], "w-[!1]": [{"n": 1}], "W-1": [{"c": 1}]});
        assert_same(&data(folder.path(), workers, "w-1"), &recorded["glob_question_and_set"]);
    }
}

#[test]
fn no_match_and_nothing_in_the_match_are_no_data() {
    let folder = folder();
    for recorded in recordings() {
        assert_eq!(recorded["no_match"], "KeyError: 'zzz has no inventory data'");
        assert_eq!(inventory(folder.path(), json!({"w-*": ["a.yaml"]})).worker("zzz").unwrap(), None);
        assert_eq!(recorded["matches_but_empty"], "KeyError: 'w-1 has no inventory data'");
        assert_eq!(inventory(folder.path(), json!({"w-*": [{}]})).worker("w-1").unwrap(), None);
        assert_eq!(inventory(folder.path(), json!({"w-*": []})).worker("w-1").unwrap(), None);
    }
}

#[test]
fn what_is_an_exception_in_python_is_an_error_that_names_key_and_file() {
    let folder = folder();
    let base = folder.path();
    for recorded in recordings() {
        assert_eq!(recorded["missing_file"], "FileNotFoundError: <base>/nope.yaml");
        assert_eq!(
            error(base, json!({"w-*": ["nope.yaml"]}), "w-1"),
            "inventory: workers.w-*[0]: no such file: <base>/nope.yaml: create it or correct the path, which counts from <base>"
        );
        assert!(recorded["empty_file"].as_str().unwrap().contains("NoneType"));
        assert_eq!(
            error(base, json!({"w-*": [{"a": 1}, "empty.yaml"]}), "w-1"),
            "inventory: workers.w-*[1]: <base>/empty.yaml must hold a mapping, found nothing"
        );
        assert!(recorded["list_file"].as_str().unwrap().contains("'list'"));
        assert_eq!(
            error(base, json!({"w-*": ["list.yaml"]}), "w-1"),
            "inventory: workers.w-*[0]: <base>/list.yaml must hold a mapping, found a list"
        );
        assert!(recorded["int_item"].as_str().unwrap().contains("TypeError"));
        assert_eq!(
            error(base, json!({"w-1": [1]}), "w-1"),
            "inventory: workers.w-1[0]: expected the path of a file or a mapping, found the number 1"
        );
        // Python takes the text for a list of files with names of one letter.
        assert_eq!(recorded["string_value_instead_of_list"], "FileNotFoundError: <base>/a");
        assert_eq!(
            error(base, json!({"w-1": "a.yaml"}), "w-1"),
            "inventory: workers.w-1: expected a list of file paths and mappings, found text \"a.yaml\""
        );
    }
    // An item that is wrong does not matter to the workers it is not for.
    assert_eq!(data(base, json!({"w-1": [1], "w-2": [{"a": 1}]}), "w-2"), json!({"a": 1}));
}

#[test]
fn looking_up_a_worker_twice_gives_the_same_and_leaves_the_inventory_alone() {
    let folder = folder();
    for recorded in recordings() {
        let recorded = &recorded["shared_inline_dict_first_two_lookups"];
        let workers = json!({"*": [{"n": {"l": [1]}}], "w-1": [{"n": {"l": [2]}}]});
        let inventory = inventory(folder.path(), workers.clone());
        for lookup in 0..2 {
            assert_same(&inventory.worker("w-1").unwrap().unwrap(), &recorded[lookup]);
        }
        // Python's lookup changes the stored entry of `*` for everyone; ours must not.
        assert_eq!(recorded[2]["*"], json!([{"n": {"l": [1, 2]}}]));
        assert_eq!(
            Value::Object(inventory.workers().map(|(key, value)| (key.to_owned(), value.clone())).collect()),
            workers
        );
        assert_eq!(inventory.worker("w-2").unwrap().unwrap(), json!({"n": {"l": [1]}}));
    }
}

#[test]
fn the_shown_inventory_has_the_sections_of_python() {
    let folder = folder();
    for recorded in recordings() {
        let recorded = &recorded["inventory_dict"];
        let options = LoadOptions { base_dir: Some(folder.path().to_path_buf()), ..LoadOptions::default() };
        let value = json!({"broker": {"endpoint": "tcp://127.0.0.1:5555"}, "workers": {"w-*": ["a.yaml"]}});
        let ours = Inventory::from_value(value, &options).unwrap().masked();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&ours), keys(recorded));
        for section in ["broker", "workers", "topology", "client", "hooks", "plugins"] {
            assert_eq!(ours[section], recorded[section], "{section}");
        }
        // Python puts its own settings for Python's logging there; ours shows what the inventory says.
        assert_eq!(ours["logging"], json!({}));
    }
}

#[test]
fn quoted_flags_and_cycles_are_refused_as_in_0_25() {
    let folder = folder();
    let [_, recorded] = recordings();
    let options = LoadOptions { base_dir: Some(folder.path().to_path_buf()), ..LoadOptions::default() };
    for key in [
        r#"{"topology": {"broker": "yes"}}"#,
        r#"{"topology": {"workers": [{"a": {"depends_on": ["b"]}}, {"b": {"depends_on": ["a"]}}]}}"#,
    ] {
        assert!(recorded[key].as_str().unwrap().contains("validation error"));
        assert!(Inventory::from_value(serde_json::from_str(key).unwrap(), &options).is_err(), "{key}");
    }
}

#[test]
fn files_are_read_at_each_lookup() {
    let folder = folder();
    let inventory = inventory(folder.path(), json!({"w": ["one.yaml"]}));
    assert_eq!(inventory.worker("w").unwrap(), Some(json!({"l": [1]})));
    fs::write(folder.path().join("one.yaml"), "l: [2] # {{ env.NFP_X }}\nl2: yes\n").unwrap();
    let again = inventory.worker_data("w").unwrap().unwrap();
    assert_eq!(again.value, json!({"l": [2], "l2": true}));
    assert_eq!(again.files, [inventory.base_dir().join("one.yaml")]);
    assert_eq!(again.warnings.len(), 1);
    assert_eq!(again.warnings[0].location.line, Some(2));
}

#[test]
fn errors_in_worker_files_name_these_files() {
    let folder = folder();
    fs::write(folder.path().join("bad.yaml"), "a: 1\nb: [\n").unwrap();
    fs::write(folder.path().join("template.yaml"), "a: 1\nb: {{ env.\n").unwrap();
    fs::write(folder.path().join("latin.yaml"), b"a: 1\nb: \xe9\n").unwrap();
    let of = |file: &str| error(folder.path(), json!({"w": [file]}), "w");
    assert!(of("bad.yaml").starts_with("<base>/bad.yaml:"), "{}", of("bad.yaml"));
    assert!(of("template.yaml").starts_with("<base>/template.yaml:2: template: "), "{}", of("template.yaml"));
    assert_eq!(of("latin.yaml"), "<base>/latin.yaml:2: not UTF-8: save the file with that encoding");
    assert!(of(".").contains("workers.w[0]: no such file"), "{}", of("."));
}

#[test]
fn the_built_in_file_sharing_stands_below_what_the_inventory_says() {
    let folder = folder();
    let base = folder.path().canonicalize().unwrap();
    let built_in = json!({"service": "filesharing", "base_dir": base.to_string_lossy()});
    let of = |workers: Value| inventory(&base, workers).with_builtin_filesharing();
    assert_eq!(of(json!({})).worker("filesharing-worker-1").unwrap(), Some(built_in.clone()));
    assert_eq!(of(json!({})).worker("filesharing-worker-2").unwrap(), None);
    assert_eq!(inventory(&base, json!({})).worker("filesharing-worker-1").unwrap(), None);
    assert_eq!(
        of(json!({"filesharing-worker-1": [{"base_dir": "files", "x": 1}]})).worker("filesharing-worker-1").unwrap(),
        Some(json!({"service": "filesharing", "base_dir": "files", "x": 1}))
    );
    // What a pattern says is common to many workers, so it does not move the file sharing elsewhere.
    assert_eq!(
        of(json!({"*": [{"service": "nornir", "y": 1}]})).worker("filesharing-worker-1").unwrap(),
        Some(json!({"service": "filesharing", "y": 1, "base_dir": base.to_string_lossy()}))
    );
    let shown = of(json!({"a": []})).masked();
    assert_eq!(shown["workers"], json!({"a": [], "filesharing-worker-1": [built_in]}));
    assert_eq!(shown["topology"], json!({"workers": ["filesharing-worker-1"]}));
    assert_eq!(of(json!({})).topology.start_order(), [["filesharing-worker-1"]]);
}
