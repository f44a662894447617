//! From the inventory to a service that runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use norfab_file_sharing::service;
use norfab_service::testing::TestWorker;
use serde_json::json;

use crate::tree::as_json;

#[tokio::test]
async fn the_folder_is_made_and_the_service_runs_under_the_name_of_the_inventory() {
    let outer = tempfile::tempdir().expect("a folder");
    let inventory = json!({"service": "files", "base_dir": "new/folder", "unknown": {"key": 1}});
    let service = service(&inventory, outer.path()).expect("a service");
    assert_eq!(service.name().as_str(), "files");
    assert!(outer.path().join("new/folder").is_dir());
    let names: Vec<&str> = service.tasks().map(|task| task.name().as_str()).collect();
    assert_eq!(
        names,
        [
            "fetch_file",
            "file_details",
            "get_status",
            "list_entries",
            "list_files",
            "send_files",
            "stat_files",
            "take_file",
            "upload_terms",
            "walk"
        ]
    );
    let result = as_json(&TestWorker::new(service).run("get_status", json!({})).await);
    assert_eq!((&result["result"], &result["failed"]), (&json!("OK"), &json!(false)));
}

#[test]
fn a_folder_that_cannot_be_shared_is_an_error_that_names_it() {
    let outer = tempfile::tempdir().expect("a folder");
    fs::write(outer.path().join("file"), "").expect("written");
    let error = service(&json!({"base_dir": "file"}), outer.path()).expect_err("refused").to_string();
    let path = outer.path().join("file");
    assert!(error.starts_with(&format!("cannot share the folder {}: ", path.display())), "{error}");
}

#[test]
fn the_folder_that_was_there_keeps_its_permissions() {
    let outer = tempfile::tempdir().expect("a folder");
    let base = outer.path().join("base");
    fs::create_dir(&base).expect("made");
    fs::set_permissions(&base, fs::Permissions::from_mode(0o750)).expect("set");
    service(&json!({"base_dir": "base"}), outer.path()).expect("a service");
    assert_eq!(fs::metadata(&base).expect("there").permissions().mode() & 0o777, 0o750);
}

#[test]
fn the_tasks_tell_their_arguments_and_that_they_only_read() {
    let outer = tempfile::tempdir().expect("a folder");
    let service = service(&json!({}), outer.path()).expect("a service");
    for task in service.tasks() {
        let described = task.describe();
        if task.name().as_str() == "take_file" {
            // The one that writes.
            assert_eq!((&described["fastapi"], task.is_idempotent()), (&json!(false), false));
            assert_eq!(described["mcp"]["annotations"]["readOnlyHint"], json!(false));
            continue;
        }
        assert_eq!(described["fastapi"], json!({"methods": ["GET"]}));
        assert_eq!(described["agent"], json!({"enabled": false}));
        assert_eq!(described["mcp"]["annotations"]["readOnlyHint"], json!(true));
        assert!(task.is_idempotent());
    }
    let fetch = service.get("fetch_file").expect("the task").describe();
    let properties = fetch["inputSchema"]["properties"].as_object().expect("properties");
    let names: Vec<&String> = properties.keys().collect();
    assert_eq!(names, ["url", "chunk_size", "offset", "chunk_timeout", "chunk-size", "chunk-timeout"]);
    let defaults = ["chunk_size", "offset", "chunk_timeout"].map(|name| properties[name]["default"].clone());
    assert_eq!(defaults, [json!(256_000), json!(0), json!(5)]);
    assert_eq!(fetch["inputSchema"]["required"], json!(["url"]));
    let details = service.get("file_details").expect("the task").describe();
    let url = &details["inputSchema"]["properties"]["url"]["anyOf"];
    assert_eq!(*url, json!([{"type": "string"}, {"items": {"type": "string"}, "type": "array"}]));
}
