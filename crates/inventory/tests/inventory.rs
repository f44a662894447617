//! Loading whole inventories: sections, the texts of errors and warnings, `.env`, and the sample environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use norfab_inventory::{
    Environment, FILESHARING_WORKER, Inventory, InventoryError, LoadOptions, TopologyWorker, create_environment,
};
use norfab_secrets::MASK;
use serde_json::json;
use tempfile::TempDir;

const KEY: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";

fn options(env: &[(&str, &str)]) -> LoadOptions {
    LoadOptions {
        env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..LoadOptions::default()
    }
}

fn written(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("inventory.yaml");
    fs::write(&file, text).unwrap();
    (folder, file)
}

fn load(text: &str) -> Result<Inventory, InventoryError> {
    let (_folder, file) = written(text);
    Inventory::load(&file, &options(&[]))
}

/// The error of a text, with the folder cut off.
fn error(text: &str) -> String {
    let (folder, file) = written(text);
    let error = match Inventory::load(&file, &options(&[])) {
        Ok(_) => panic!("loads: {text}"),
        Err(error) => error.to_string(),
    };
    error.replace(&format!("{}/", folder.path().display()), "")
}

fn warnings(text: &str) -> Vec<String> {
    let (folder, file) = written(text);
    let inventory = Inventory::load(&file, &options(&[])).unwrap();
    let folder = format!("{}/", folder.path().display());
    inventory.warnings.iter().map(|warning| warning.to_string().replace(&folder, "")).collect()
}

fn worker(name: &str, depends_on: &[&str]) -> TopologyWorker {
    TopologyWorker { name: name.to_owned(), depends_on: depends_on.iter().map(|name| (*name).to_owned()).collect() }
}

#[test]
fn an_inventory_as_users_have_it_loads() {
    let text = format!(
        r#"
broker:
  endpoint: "tcp://{{{{ env.get('BROKER_HOST', '127.0.0.1') }}}}:5555"
  shared_key: "{KEY}"
  zmq_auth: on
  ip_allowlist: ["127.0.0.1", "10.0.0.0/8"]
workers:
  nornir-*:
    - nornir/common.yaml
  nornir-worker-1:
    - {{service: nornir}}
topology:
  broker: yes
  workers_start_interval: 1.5
  workers_init_timeout: 60
  workers:
    - nornir-worker-1
    - netbox-worker-1:
        depends_on: [nornir-worker-1, filesharing-worker-1]
logging: {{handlers: {{terminal: {{level: INFO}}}}}}
hooks: {{startup: [{{function: "a:b"}}]}}
mine: [1, 2]
"#
    );
    let (folder, file) = written(&text);
    let inventory = Inventory::load(&file, &options(&[("BROKER_HOST", "10.1.1.1")])).unwrap();
    assert_eq!(inventory.broker_endpoint().unwrap(), "tcp://10.1.1.1:5555");
    assert_eq!(inventory.broker.public_key.as_deref(), Some(KEY));
    assert!(inventory.broker.zmq_auth);
    assert_eq!(inventory.broker.ip_allowlist, ["127.0.0.1", "10.0.0.0/8"]);
    assert!(inventory.topology.starts_broker());
    assert_eq!(inventory.topology.workers_start_interval, Duration::from_millis(1500));
    assert_eq!(inventory.topology.workers_init_timeout, Duration::from_secs(60));
    assert_eq!(
        inventory.topology.workers,
        [worker("nornir-worker-1", &[]), worker("netbox-worker-1", &["nornir-worker-1", FILESHARING_WORKER])]
    );
    let inventory = inventory.with_builtin_filesharing();
    assert_eq!(
        inventory.topology.start_order(),
        [vec![FILESHARING_WORKER, "nornir-worker-1"], vec!["netbox-worker-1"]]
    );
    assert_eq!(inventory.section("mine"), json!([1, 2]));
    assert_eq!(inventory.section("hooks"), json!({"startup": [{"function": "a:b"}]}));
    assert_eq!(inventory.section("nothing"), json!({}));
    assert_eq!(inventory.base_dir(), folder.path());
    assert_eq!(inventory.workers().map(|(pattern, _)| pattern).collect::<Vec<_>>(), ["nornir-*", "nornir-worker-1"]);
}

#[test]
fn what_an_inventory_does_not_say_has_the_defaults() {
    let inventory = load("broker:\nworkers:\nlogging:\n").unwrap();
    assert!(inventory.broker.zmq_auth);
    assert_eq!(inventory.broker.ip_allowlist, ["*"]);
    assert_eq!(inventory.broker.public_key, None);
    assert_eq!(inventory.topology.broker, None);
    assert!(!inventory.topology.starts_broker());
    assert_eq!(inventory.topology.workers_start_interval, Duration::ZERO);
    assert_eq!(inventory.topology.workers_init_timeout, Duration::from_secs(300));
    assert_eq!(inventory.worker("w").unwrap(), None);
    let error = inventory.broker_endpoint().unwrap_err().to_string();
    assert!(
        error.ends_with(
            "inventory.yaml:1: broker.endpoint: missing: add `endpoint: tcp://127.0.0.1:5555` to the broker section"
        ),
        "{error}"
    );
}

#[test]
fn workers_with_nothing_below_are_none() {
    let inventory = load("topology:\n  broker: true\n  workers:\n").unwrap();
    assert_eq!(inventory.topology.workers, []);
    let shown = inventory.with_builtin_filesharing().masked();
    assert_eq!(shown["topology"]["workers"], json!(["filesharing-worker-1"]));
}

#[test]
fn keys_that_nobody_reads_are_warned_about_with_the_key_that_was_meant() {
    let told = |text: &str| -> Vec<String> {
        load(text).unwrap().warnings.iter().map(|warning| warning.to_string()).collect()
    };
    let known = "broker: {endpoint: 'tcp://a:1', zmq_auth: true, ip_allowlist: ['*']}\nworkers: {}\ntopology: {workers_start_interval: 1}\n\
                 logging: {root: {level: INFO}, log_events: true}\nclient: {agent_profiles: {}}\nhooks: {startup: []}\nplugins: {a: {}}\n\
                 jinja2_filters: {}\nx-common: &a {b: 1}\n";
    assert_eq!(told(known), Vec::<String>::new());
    let warnings = told(
        "broker:\n  endpiont: tcp://a:1\n  port: 1\njobs:\n  retention_day: 1\ntopology:\n  worker: [a]\n  workers:\n    - b: {dependson: [a]}\nworker: {}\n",
    );
    let expected = [
        "inventory.yaml:10: worker: not a known key, it has no effect: did you mean workers?",
        "inventory.yaml:2: broker.endpiont: not a known key, it has no effect: did you mean endpoint?",
        "inventory.yaml:3: broker.port: not a known key, it has no effect: known are endpoint, zmq_auth, shared_key, curve_public_key, ip_allowlist",
        "inventory.yaml:5: jobs.retention_day: not a known key, it has no effect: did you mean retention_days?",
        "inventory.yaml:7: topology.worker: not a known key, it has no effect: did you mean workers?",
        "inventory.yaml:9: topology.workers[0].b.dependson: not a known key, it has no effect: did you mean depends_on?",
    ];
    assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
    for (warning, expected) in warnings.iter().zip(expected) {
        assert!(warning.ends_with(expected), "{warning}");
    }
}

#[test]
fn errors_name_file_line_key_value_and_what_to_do() {
    for (text, expected) in [
        (
            "broker:\n  zmq_auth: \"no\"\n",
            "inventory.yaml:2: broker.zmq_auth: expected true or false, found text \"no\"",
        ),
        (
            "topology:\n  # c\n  broker: maybe\n",
            "inventory.yaml:3: topology.broker: expected true or false, found text \"maybe\"",
        ),
        (
            "topology:\n  broker: \"yes\"\n",
            "inventory.yaml:2: topology.broker: expected true or false, found text \"yes\"",
        ),
        ("topology:\n  broker: 1\n", "inventory.yaml:2: topology.broker: expected true or false, found the number 1"),
        ("topology:\n  broker:\n", "inventory.yaml:2: topology.broker: expected true or false, found nothing"),
        ("a: 1\ntopology:\n", "inventory.yaml:2: topology: expected a mapping, found nothing"),
        ("topology: []\n", "inventory.yaml:1: topology: expected a mapping, found an empty list"),
        ("workers: [a]\n", "inventory.yaml:1: workers: expected a mapping, found a list"),
        ("client: 1\n", "inventory.yaml:1: client: expected a mapping, found the number 1"),
        (
            "topology:\n  workers: a\n",
            "inventory.yaml:2: topology.workers: expected a list of worker names, found text \"a\"",
        ),
        (
            "topology:\n  workers:\n    - a\n    - 12\n",
            "inventory.yaml:4: topology.workers[1]: expected the name of a worker, or NAME: {depends_on: [NAME, ...]}, found the number 12",
        ),
        (
            "topology:\n  workers:\n    - a:\n",
            "inventory.yaml:3: topology.workers[0].a: expected a mapping like {depends_on: [NAME, ...]}, found nothing",
        ),
        (
            "topology:\n  workers:\n    - a:\n        depends_on: b\n",
            "inventory.yaml:4: topology.workers[0].a.depends_on: expected a list of worker names, found text \"b\"",
        ),
        (
            "topology:\n  workers:\n    - a:\n        depends_on:\n          - 1\n",
            "inventory.yaml:5: topology.workers[0].a.depends_on[0]: expected text that is not empty, found the number 1",
        ),
        (
            "topology:\n  workers:\n    - a:\n        depends_on: [zz]\n",
            "inventory.yaml:4: topology.workers[0].a.depends_on[0]: depends on \"zz\", which is not in topology.workers: add it there or remove the dependency",
        ),
        (
            "topology:\n  workers:\n    - a: {depends_on: [b]}\n    - b: {depends_on: [c]}\n    - c:\n        depends_on: [b]\n",
            "inventory.yaml:6: topology.workers[2].c.depends_on[0]: workers wait for each other: b -> c -> b: remove one of these dependencies",
        ),
        (
            "topology:\n  workers:\n    - a: {depends_on: [a]}\n",
            "inventory.yaml:3: topology.workers[0].a.depends_on[0]: workers wait for each other: a -> a: remove one of these dependencies",
        ),
        (
            "topology:\n  workers_start_interval: -1\n",
            "inventory.yaml:2: topology.workers_start_interval: expected seconds as a number from 0 to 86400, found the number -1",
        ),
        (
            "topology:\n  workers_init_timeout: \"300\"\n",
            "inventory.yaml:2: topology.workers_init_timeout: expected seconds as a number from 0 to 86400, found text \"300\"",
        ),
        (
            "topology:\n  workers_init_timeout: true\n",
            "inventory.yaml:2: topology.workers_init_timeout: expected seconds as a number from 0 to 86400, found true",
        ),
        (
            "broker:\n  endpoint: 5555\n",
            "inventory.yaml:2: broker.endpoint: expected an endpoint like tcp://127.0.0.1:5555, found the number 5555",
        ),
        (
            "broker:\n  endpoint: localhost:5555\n",
            "inventory.yaml:2: broker.endpoint: expected an endpoint like tcp://127.0.0.1:5555, found text \"localhost:5555\"",
        ),
        (
            "broker:\n  ip_allowlist: []\n",
            "inventory.yaml:2: broker.ip_allowlist: expected a list of addresses, [\"*\"] for all, found an empty list",
        ),
        (
            "broker:\n  ip_allowlist: 127.0.0.1\n",
            "inventory.yaml:2: broker.ip_allowlist: expected a list of addresses, [\"*\"] for all, found text \"127.0.0.1\"",
        ),
        (
            "broker:\n  shared_key: abc\n",
            "inventory.yaml:2: broker.shared_key: expected the broker's public key, 40 characters in quotes, as `norfab broker-key` prints it, found text \"abc\"",
        ),
        ("", "inventory.yaml: the inventory is empty: it needs at least a broker section with an endpoint"),
        ("{}\n", "inventory.yaml:1: the inventory is empty: it needs at least a broker section with an endpoint"),
        ("- a\n", "inventory.yaml:1: expected a mapping of sections such as broker and workers, found a list"),
        (
            "a: 1\n---\nb: 2\n",
            "inventory.yaml:2: a second document begins here: an inventory file holds one, remove the `---`",
        ),
        ("a: 1\nb: !vault x\n", "inventory.yaml:2: tag !vault is not supported: remove it"),
        (
            "a: 1\nb: [*x-1, 2]\n",
            "inventory.yaml:2: alias *x-1 of an anchor that was not defined before: define it with &x-1 further up, or quote the text",
        ),
        ("a:\n\tb: 1\n", "inventory.yaml:2: not valid YAML: a tab in the indentation: replace tabs with spaces"),
        (
            "a:\n  b: tcp://x\n\tc: true\n",
            "inventory.yaml:3: not valid YAML: a tab in the indentation: replace tabs with spaces",
        ),
        (
            "a:\n  b: x\n  \tc: true\nd: 1\n",
            "inventory.yaml:3: not valid YAML: a tab in the indentation: replace tabs with spaces",
        ),
        ("a: &x\n  b: *x\n", "inventory.yaml:2: alias of the value around it would never end: remove it"),
        (
            "a: 1\nb: 2024-13-01\n",
            "inventory.yaml:2: expected a date that exists, found 2024-13-01: quote it if it is text",
        ),
        (
            "a: 1\n[b]: 1\n",
            "inventory.yaml:2: a key must be text, a number, a boolean or null, found a list or a mapping: quote text that begins with [ or {",
        ),
        (
            "a:\n  <<: 1\n",
            "inventory.yaml:2: << expects a mapping or a list of mappings, found the number 1: name the anchor of a mapping",
        ),
        (
            "a: 1\nb: \x07\n",
            "inventory.yaml:2: control character '\\u{7}' is not allowed: remove it, or write it as an escape in double quotes",
        ),
        ("a: 1\nb: {{ env.X.y }}\n", "inventory.yaml:2: template: undefined value: `env.X` is undefined"),
        // Lines that come from a loop cannot be found in the file, and the location says so.
        (
            "{% for i in range(3) %}\nk{{ i }}: 1\n{% endfor %}\nbroker: 1\n",
            "inventory.yaml (rendered):8: broker: expected a mapping, found the number 1",
        ),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}

#[test]
fn two_names_for_the_broker_key_must_agree() {
    let other = KEY.replace("rq", "qr");
    assert_eq!(
        load(&format!("broker:\n  curve_public_key: '{KEY}'\n")).unwrap().broker.public_key.as_deref(),
        Some(KEY)
    );
    assert!(load(&format!("broker:\n  curve_public_key: '{KEY}'\n  shared_key: '{KEY}'\n")).is_ok());
    assert_eq!(
        error(&format!("broker:\n  curve_public_key: '{KEY}'\n  shared_key: '{other}'\n")),
        "inventory.yaml:2: broker.curve_public_key: differs from broker.shared_key, which is the same setting under its older name: remove one of them"
    );
    // Nobody uses it without encryption, and an unset variable renders to nothing.
    assert!(load("broker:\n  zmq_auth: false\n  shared_key: whatever\n").is_ok());
    assert_eq!(load("broker:\n  shared_key: '{{ env.NOPE }}'\n").unwrap().broker.public_key, None);
}

#[test]
fn warnings_name_what_yaml_1_2_would_read_and_what_is_twice() {
    let text = "broker:\n  zmq_auth: yes\nworkers:\n  w:\n    - mode: 0755\n      at: 1:30\n      n: 1_000\n      on: 1\n      quoted: \"yes\"\n      fine: true\nworkers:\n  x: []\nx-big: 99999999999999999999\nx-no_number: .nan\n";
    assert_eq!(
        warnings(text),
        [
            "inventory.yaml:2: broker.zmq_auth: yes is read as true (YAML 1.1); YAML 1.2 reads \"yes\": write true or quote it",
            "inventory.yaml:5: workers.w[0].mode: 0755 is read as 493 (YAML 1.1); YAML 1.2 reads 755: write 493 or quote it",
            "inventory.yaml:6: workers.w[0].at: 1:30 is read as 90 (YAML 1.1); YAML 1.2 reads \"1:30\": write 90 or quote it",
            "inventory.yaml:7: workers.w[0].n: 1_000 is read as 1000 (YAML 1.1); YAML 1.2 reads \"1_000\": write 1000 or quote it",
            "inventory.yaml:8: workers.w[0]: on is read as true (YAML 1.1); YAML 1.2 reads \"on\": write true or quote it",
            "inventory.yaml:11: workers: duplicate key, already on line 3: the last one counts, remove one of them",
            "inventory.yaml:13: x-big: 99999999999999999999 does not fit into 64 bits and is read as text: quote it",
            "inventory.yaml:14: x-no_number: .nan has no spelling in JSON and is read as null: quote it to keep the text",
        ]
    );
    assert_eq!(
        warnings("topology:\n  workers:\n    - a\n    - b\n    - a: {depends_on: [b]}\n"),
        [
            "inventory.yaml:5: topology.workers[2]: worker \"a\" is listed twice: its dependencies are joined, remove one of them"
        ]
    );
    assert_eq!(warnings(&"- yes\n".repeat(300).replace("- ", "  - ").replacen("  - yes\n", "x-a:\n", 1)).len(), 101);
}

#[test]
fn the_file_beside_the_inventory_gives_variables() {
    let (folder, file) = written("broker:\n  endpoint: 'tcp://{{ env.HOST }}:{{ env.PORT }}'\n");
    fs::write(folder.path().join(".env"), "export HOST='10.0.0.9' # mine\nPORT=\"5555\"\nbroken line\n").unwrap();
    let process = options(&[("HOST", "10.0.0.1")]);
    let inventory = Inventory::load(&file, &process).unwrap();
    assert_eq!(inventory.broker_endpoint().unwrap(), "tcp://10.0.0.9:5555");
    assert_eq!(inventory.environment().get("HOST").map(String::as_str), Some("10.0.0.9"));
    assert_eq!(inventory.warnings.len(), 1);
    let kept = LoadOptions { env_override: false, ..process };
    assert_eq!(Inventory::load(&file, &kept).unwrap().broker_endpoint().unwrap(), "tcp://10.0.0.1:5555");
    // Another base folder changes where worker files and NorFab's own are, not which variables are read.
    let elsewhere = tempfile::tempdir().unwrap();
    let moved = LoadOptions { base_dir: Some(elsewhere.path().to_path_buf()), ..options(&[]) };
    let inventory = Inventory::load(&file, &moved).unwrap();
    assert_eq!(inventory.base_dir(), elsewhere.path());
    assert_eq!(inventory.broker_endpoint().unwrap(), "tcp://10.0.0.9:5555");
}

#[test]
fn a_path_that_is_no_inventory_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Inventory::load(&folder.path().join("nope.yaml"), &options(&[])).unwrap_err().to_string();
    assert!(
        missing.ends_with("nope.yaml: no such file: give the path of an inventory, or create one with `norfab init`"),
        "{missing}"
    );
    let a_folder = Inventory::load(folder.path(), &options(&[])).unwrap_err().to_string();
    assert!(a_folder.ends_with("not a file: give the path of the inventory.yaml itself"), "{a_folder}");
}

#[test]
fn what_is_shown_has_no_secrets() {
    let text = format!(
        "broker:\n  endpoint: tcp://127.0.0.1:5555\n  shared_key: '{KEY}'\n  curve_public_key: '{KEY}'\n  api_token: abc\nworkers:\n  w:\n    - hosts: {{r1: {{username: u, password: p, snmp_community: c}}}}\n    - w.yaml\nclient:\n  agent_profiles: {{a: {{llm: {{api_key: k, model: m}}}}}}\nmine: {{password: p}}\n"
    );
    assert_eq!(
        load(&text).unwrap().masked(),
        json!({
            "broker": {"endpoint": "tcp://127.0.0.1:5555", "shared_key": KEY, "curve_public_key": KEY, "api_token": MASK},
            "workers": {"w": [{"hosts": {"r1": {"username": "u", "password": MASK, "snmp_community": MASK}}}, "w.yaml"]},
            "topology": {},
            "logging": {},
            "client": {"agent_profiles": {"a": {"llm": {"api_key": MASK, "model": "m"}}}},
            "hooks": {},
            "plugins": {},
        })
    );
}

#[test]
fn a_fresh_environment_loads_without_warnings_and_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let lab = folder.path().join("lab");
    let files = create_environment(&lab, false).unwrap();
    let names: Vec<&Path> = files.iter().map(|file| file.strip_prefix(&lab).unwrap()).collect();
    assert_eq!(names, [Path::new("inventory.yaml"), Path::new(".env"), Path::new("files/welcome.txt")]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&files[1]).unwrap().permissions().mode() & 0o777, 0o600, "variables hold passwords");
    }
    // The template's comments must bear any value of the variables they mention.
    for env in [Environment::new(), Environment::from([("NETWORK_PASSWORD".into(), "x".into())])] {
        let options = LoadOptions { env, ..options(&[]) };
        let inventory = Inventory::load(&files[0], &options).unwrap().with_builtin_filesharing();
        assert_eq!(inventory.warnings, []);
        assert_eq!(inventory.broker_endpoint().unwrap(), "tcp://127.0.0.1:5555");
        assert!(inventory.broker.zmq_auth && inventory.topology.starts_broker());
        assert_eq!(inventory.topology.start_order(), [[FILESHARING_WORKER]]);
        assert_eq!(
            inventory.worker(FILESHARING_WORKER).unwrap(),
            Some(json!({"service": "filesharing", "base_dir": "files"}))
        );
    }
    fs::write(&files[0], "mine").unwrap();
    fs::remove_file(&files[1]).unwrap();
    let error = create_environment(&lab, false).unwrap_err().to_string();
    assert!(
        error.ends_with("inventory.yaml: exists already: choose another folder, or overwrite it by force"),
        "{error}"
    );
    assert!(!files[1].exists(), "nothing is written when something is in the way");
    assert_eq!(fs::read_to_string(&files[0]).unwrap(), "mine");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::write(&files[1], "").unwrap();
        fs::set_permissions(&files[1], fs::Permissions::from_mode(0o644)).unwrap();
    }
    assert_eq!(create_environment(&lab, true).unwrap(), files);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&files[1]).unwrap().permissions().mode() & 0o777, 0o600, "also where there was one");
    }
    assert!(fs::read_to_string(&files[0]).unwrap().contains("endpoint"));
}

#[test]
fn neither_warnings_nor_errors_tell_secrets() {
    let told = |lines: &str| {
        let text = format!("broker: {{endpoint: 'tcp://127.0.0.1:5555'}}\nclient:\n{lines}");
        match load(&text) {
            Ok(inventory) => inventory.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
            Err(error) => error.to_string(),
        }
    };
    for value in
        ["0755", "1_2_3", "99999999999999999999", "!!int s3cret", "!!float 1_x", "!!timestamp s3cret", "2001-99-99"]
    {
        for (line, lines) in
            [(3, format!("  password: {value}\n")), (4, format!("  credentials:\n    - {{name: {value}}}\n"))]
        {
            let told = told(&lines);
            assert!(told.contains("********") && told.contains(&format!(":{line}: ")), "{told}");
            for part in ["0755", "493", "1_2_3", "123", "9999", "s3cret", "1_x", "99-99"] {
                assert!(!told.contains(part), "{told}");
            }
        }
    }
    assert!(told("  name: 0755\n").contains("0755 is read as 493"));
}

#[test]
fn what_to_do_about_a_dependency_that_is_not_started_is_there_for_programs() {
    let error =
        load("topology:\n  workers:\n    - a:\n        depends_on: [zz]\n").map(drop).expect_err("zz is not listed");
    assert_eq!(error.advice().as_deref(), Some("add it there or remove the dependency"));
}
