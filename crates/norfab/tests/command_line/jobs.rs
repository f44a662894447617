//! `norfab jobs`.

use insta::assert_snapshot;
use serde_json::json;

use crate::support::{Lab, eventually, held_by};

#[test]
fn jobs_are_listed_the_newest_first_and_shown_one_by_one() {
    let (lab, _up) = Lab::up();
    let empty = lab.run(&["jobs"]);
    assert_eq!((empty.code, empty.stdout.as_str(), empty.stderr.as_str()), (Some(0), "", "nothing to show\n"));
    assert_eq!(lab.json(&["jobs", "--json"]), json!([]));
    let first = lab.json(&["run", "filesharing", "echo", "password=s3cret", "sleep:=1", "--json"]);
    let second = lab.run(&["run", "filesharing", "echo", "raise_error=no", "sleep:=1", "--json"]).json();
    let list = lab.json(&["jobs", "--json"]);
    let listed: Vec<_> = list.as_array().expect("rows").iter().map(|job| job["uuid"].clone()).collect();
    assert_eq!(listed, [second["uuid"].clone(), first["uuid"].clone()]);
    assert_eq!(lab.json(&["jobs", "--json", "--last", "1"]).as_array().map(Vec::len), Some(1));
    let table = lab.run(&["jobs"]);
    assert!(table.stdout.starts_with("UUID "), "{}", table.stdout);
    assert_eq!(table.stdout.lines().count(), 3);

    let one = lab.json(&["jobs", first["uuid"].as_str().expect("an id"), "--json"]);
    assert_eq!(one["status"], "COMPLETED");
    assert_eq!(one["kwargs"], json!({"password": "********", "sleep": 1}));
    assert_eq!(one["workers_completed"], json!(["filesharing-worker-1"]));
    assert_eq!(one["events"][0]["message"], "starting");
    assert_eq!(one["results"]["filesharing-worker-1"]["failed"], false);
    let failed = lab.run(&["jobs", second["uuid"].as_str().expect("an id")]);
    let id = second["uuid"].as_str().expect("an id");
    assert_eq!((failed.code, failed.stderr), (Some(1), format!("error: job {id}: a worker failed\n")));
    assert!(failed.stdout.contains("filesharing.echo starting"), "{}", failed.stdout);
}

#[test]
fn a_damaged_database_of_one_name_hides_no_job_of_another() {
    let (lab, _up) = Lab::up();
    let first = lab.json(&["run", "filesharing", "echo", "--json", "--name", "name"]);
    // Where a second client of the name would be that ran at the same time.
    let folder = lab.path("__norfab__/files/client/name-2");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("jobs.db"), [7; 20_000]).expect("a file");
    let listed = lab.run(&["jobs", "--json", "--name", "name"]);
    assert_eq!((listed.code, listed.json()[0]["uuid"].clone()), (Some(0), first["uuid"].clone()), "{listed:?}");
    assert!(listed.stderr.contains("name-2") && listed.stderr.contains("is damaged"), "{}", listed.stderr);
    let one = lab.json(&["jobs", first["uuid"].as_str().expect("an id"), "--json", "--name", "name"]);
    assert_eq!(one["status"], "COMPLETED");
    let pruned = lab.run(&["jobs", "prune", "--json", "--name", "name"]);
    let rows = pruned.json();
    let of = |name: &str| {
        rows.as_array()
            .into_iter()
            .flatten()
            .find(|row| row["name"] == name)
            .unwrap_or_else(|| panic!("{pruned:?}"))
            .clone()
    };
    assert_eq!(
        (pruned.code, &of("name")["left"], &of("name-2")["exit_code"]),
        (Some(1), &json!(1), &json!(1)),
        "{rows}"
    );
    assert!(of("name-2")["error"].as_str().is_some_and(|error| pruned.stderr.contains(error)), "{rows}");
}

#[test]
fn a_job_that_is_not_known_here_says_so() {
    let (lab, _up) = Lab::up();
    let ended = lab.run(&["jobs", "nope"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert_snapshot!(ended.stderr, @"error: job nope is not known here: 'norfab jobs' lists those that are");
}

#[test]
fn a_job_that_nobody_waited_for_is_found_later() {
    let (lab, _up) = Lab::up();
    let marker = lab.path("held");
    let submitted = lab.run(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "--nowait"]);
    assert_eq!((submitted.code, submitted.stderr.as_str()), (Some(0), ""));
    let id = submitted.stdout.trim();
    assert_eq!(id.len(), 32, "{submitted:?}");
    eventually("the job runs", || marker.exists());
    let unfinished = lab.run(&["jobs", id, "--wait", "1s", "--json"]);
    assert_eq!(unfinished.code, Some(4), "{unfinished:?}");
    assert_eq!(unfinished.stderr, format!("error: job {id} has not ended: --wait TIME waits for it longer\n"));
    assert_eq!(unfinished.json()["results"], json!({}));
    std::fs::remove_file(&marker).expect("it is there");
    let job = lab.json(&["jobs", id, "--wait", "1m", "--json"]);
    assert_eq!(job["results"]["filesharing-worker-1"]["result"]["stdout"], "released\n", "{job}");
    let document = lab.json(&["run", "filesharing", "echo", "--nowait", "--json"]);
    assert_eq!((&document["service"], &document["task"]), (&json!("filesharing"), &json!("echo")));
}

#[test]
fn a_job_that_nobody_can_be_asked_about_is_an_error_that_says_why() {
    let (lab, up) = Lab::up();
    let marker = lab.path("held");
    let submitted = lab.run(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "--nowait"]);
    let id = submitted.stdout.trim();
    eventually("the job runs", || marker.exists());
    up.signal(rustix::process::Signal::KILL);
    up.end();
    std::fs::remove_file(&marker).expect("it is there");
    let ended = lab.run(&["jobs", id, "--json"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let (document, begin) =
        (ended.json(), format!("job {id} has not ended as far as is known here: no broker answers"));
    let text = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
    assert!(text("error").starts_with(&begin) && text("hint").starts_with("start it there"), "{document}");
    assert_eq!(ended.stderr, format!("error: {}: {}\n", text("error"), text("hint")));
    assert_eq!(document["exit_code"], 4);
}

#[test]
fn the_list_asks_for_jobs_that_nobody_waited_for_and_says_which_have_not_ended() {
    let (lab, up) = Lab::up();
    let marker = lab.path("held");
    let submitted = lab.run(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "--nowait"]);
    assert_eq!(submitted.code, Some(0), "{submitted:?}");
    eventually("the job runs", || marker.exists());
    let line = "1 job has not ended as far as is known here: 'norfab jobs UUID' asks for one\n";
    for arguments in [&["jobs", "--json", "--offline"][..], &["jobs", "--json", "--wait", "500ms"]] {
        let listed = lab.run(arguments);
        assert_eq!((listed.code, listed.stderr.as_str()), (Some(0), line), "{listed:?}");
        assert_eq!(listed.json()[0]["completed"], "", "{listed:?}");
    }
    std::fs::remove_file(&marker).expect("it is there");
    // Nothing here knows of the end until it is asked for.
    let stored = lab.run(&["jobs", "--json", "--offline"]);
    assert_eq!(stored.json()[0]["completed"], "", "{stored:?}");
    let settled = lab.run(&["jobs", "--json", "--wait", "1m"]);
    assert_eq!((settled.code, settled.stderr.as_str()), (Some(0), ""), "{settled:?}");
    assert_eq!(settled.json()[0]["status"], "COMPLETED", "{settled:?}");
    assert_eq!(settled.json()[0]["workers"], "1/1", "{settled:?}");

    let held = lab.run(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "--nowait"]);
    assert_eq!(held.code, Some(0), "{held:?}");
    eventually("the job runs", || marker.exists());
    std::fs::remove_file(&marker).expect("it is there");
    up.stop(rustix::process::Signal::TERM);
    let away = lab.run(&["jobs", "--json"]);
    assert_eq!(away.code, Some(0), "{away:?}");
    assert!(away.stderr.starts_with("1 job has not ended as far as is known here (no broker answers at "), "{away:?}");
    assert_eq!(away.json()[1]["status"], "COMPLETED", "{away:?}");
}

#[test]
fn a_job_that_another_process_waits_for_is_waited_for_too() {
    let (lab, _up) = Lab::up();
    let marker = lab.path("held");
    let run = lab.spawn(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "-q"]);
    eventually("the job runs", || marker.exists());
    let list = lab.json(&["jobs", "--json"]);
    let id = list[0]["uuid"].as_str().expect("an id").to_owned();
    let jobs = lab.spawn(&["jobs", &id, "--wait", "1m", "--json"]);
    std::fs::remove_file(&marker).expect("it is there");
    assert_eq!(run.end().code, Some(0));
    let ended = jobs.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.json()["status"], "COMPLETED");
}

#[test]
fn jobs_are_shown_in_a_folder_that_was_worked_in_without_an_inventory() {
    let (lab, _up) = Lab::up();
    let key = lab.json(&["broker-key", "--json"])["public_key"].as_str().expect("a key").to_owned();
    let elsewhere = Lab::empty();
    let endpoint = lab.endpoint();
    let of_broker = ["--endpoint", endpoint.as_str(), "--broker-key", &key];
    let run = elsewhere.run(&[&["run", "filesharing", "echo"], &of_broker[..]].concat());
    assert_eq!(run.code, Some(0), "{run:?}");
    let jobs = elsewhere.json(&["jobs", "--json"]);
    assert_eq!(jobs[0]["task"], "echo", "{jobs}");
}

#[test]
fn finished_jobs_are_forgotten_on_demand_and_never_those_that_have_not_ended() {
    let (lab, _up) = Lab::up();
    let marker = lab.path("held");
    let held = lab.run(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "--nowait"]);
    assert_eq!(held.code, Some(0), "{held:?}");
    for _ in 0..3 {
        assert_eq!(lab.run(&["run", "filesharing", "echo"]).code, Some(0));
    }
    let count = || lab.json(&["jobs", "--json", "--offline"]).as_array().expect("rows").len();
    assert_eq!(lab.json(&["jobs", "prune", "--json"])[0]["jobs"], 0, "all are young");
    let planned = lab.run(&["jobs", "prune", "--keep", "1", "--dry-run"]);
    assert_eq!((planned.code, count()), (Some(0), 4), "{planned:?}");
    assert!(planned.stderr.contains("nothing was changed"), "{planned:?}");
    let pruned = lab.json(&["jobs", "prune", "--keep", "1", "--json"]);
    assert_eq!((&pruned[0]["jobs"], &pruned[0]["left"], &pruned[0]["role"]), (&json!(2), &json!(2), &json!("client")));
    let pruned = lab.json(&["jobs", "prune", "--older-than", "0s", "--workers", "--json"]);
    assert_eq!(count(), 1, "{pruned}");
    let worker = pruned.as_array().expect("rows").iter().find(|row| row["role"] == "worker").expect("a worker");
    assert_eq!((&worker["name"], &worker["left"]), (&json!("filesharing-worker-1"), &json!(1)), "{pruned}");
    std::fs::remove_file(&marker).expect("it is there");
    let wrong = lab.run(&["jobs", "prune", "--max-bytes", "1.5G"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}

#[test]
fn jobs_are_exported_with_all_that_belongs_to_them() {
    let (lab, _up) = Lab::up();
    let first = lab.json(&["run", "filesharing", "echo", "password=s3cret", "sleep:=1", "--json"]);
    let second = lab.json(&["run", "filesharing", "echo", "--json", "--name", "another"]);
    let third = lab.json(&["run", "filesharing", "echo", "--json"]);
    let lines = lab.run(&["jobs", "export"]);
    assert_eq!((lines.code, lines.stderr.as_str()), (Some(0), ""), "{lines:?}");
    let jobs: Vec<serde_json::Value> =
        lines.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let ids: Vec<_> = jobs.iter().map(|job| job["uuid"].clone()).collect();
    assert_eq!(ids, [first["uuid"].clone(), third["uuid"].clone()], "the first first, of this client's names");
    assert_eq!(jobs[0]["kwargs"], json!({"password": "********", "sleep": 1}));
    assert_eq!(jobs[0]["results"]["filesharing-worker-1"]["failed"], false);
    assert_eq!((&jobs[0]["events"][0]["message"], &jobs[0]["status"]), (&json!("starting"), &json!("COMPLETED")));
    let another = lab.json(&["jobs", "export", "--format", "json", "--name", "another"]);
    assert_eq!(another[0]["uuid"], second["uuid"]);
    assert_eq!(lab.json(&["jobs", "export", "--json"]), json!(jobs));

    let file = lab.run(&["jobs", "export", "all.jsonl"]);
    assert_eq!((file.code, file.stderr.as_str()), (Some(0), "2 jobs are in all.jsonl\n"), "{file:?}");
    assert_eq!(lab.read("all.jsonl"), lines.stdout);
    let again = lab.run(&["jobs", "export", "all.jsonl"]);
    assert_eq!(again.code, Some(5), "{again:?}");
    assert_snapshot!(again.stderr, @"error: all.jsonl is there already: --force overwrites it");
    // One that all may read does not stay so: results may hold secrets.
    lab.write("all.jsonl", "of yesterday");
    let all = lab.path("all.jsonl");
    let of_all = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&all, of_all).expect("it is there");
    assert_eq!(lab.run(&["jobs", "export", "all.jsonl", "--force", "--format", "json"]).code, Some(0));
    assert!(lab.read("all.jsonl").starts_with("[\n"));
    let permissions = std::fs::metadata(&all).expect("it is there").permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&permissions) & 0o777, 0o600);
}

#[test]
fn a_file_that_is_no_database_of_python_is_no_import() {
    let lab = Lab::new(crate::support::FABRIC);
    lab.write("notes.db", [7; 5000]);
    let ended = lab.run(&["jobs", "import", "notes.db"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    assert_snapshot!(ended.stderr, @"error: notes.db is no job database of Python NorFab (it is no SQLite database): name the NAME.db of a client or worker below __norfab__/files");
    let nothing = lab.run(&["jobs", "import"]);
    assert_eq!(nothing.code, Some(0));
    assert!(nothing.stderr.contains("there is no job database"), "{nothing:?}");
}
