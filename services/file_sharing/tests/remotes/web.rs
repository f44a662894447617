//! Repositories behind web servers.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::lab::{Lab, RemoteWorker, git, in_own_process, inner_command, is_inner};
use crate::server::{Behaviour, Server};

/// `u:s3cret`, as it travels.
const AUTHORIZATION: &str = "Basic dTpzM2NyZXQ=";

fn pushed(lab: &Lab, content: &str) {
    lab.origin.write("cfg/one.txt", content);
    lab.origin.push("main");
}

fn packs(lab: &Lab) -> usize {
    let packs = fs::read_dir(lab.folder().join("remotes/r/repository/objects/pack")).expect("read");
    packs.flatten().filter(|entry| entry.path().extension().is_some_and(|end| end == "pack")).count()
}

async fn follows(lab: &Lab, worker: &RemoteWorker) {
    assert_eq!(worker.clone().await, "cloned");
    assert_eq!(worker.clone().await, "unchanged");
    assert_eq!(lab.read("r/cfg/one.txt"), "v1\n");
    pushed(lab, "v2\n");
    fs::remove_file(lab.origin.work.join("run.sh")).expect("removed");
    lab.origin.push("main");
    assert_eq!(worker.clone().await, "cloned");
    assert_eq!((lab.read("r/cfg/one.txt").as_str(), lab.has("r/run.sh")), ("v2\n", false));
    // Pushed by force, without anything in common.
    git(&lab.origin.work, &["checkout", "-q", "--orphan", "other"]);
    pushed(lab, "v3\n");
    assert_eq!(worker.clone().await, "cloned");
    assert_eq!(lab.read("r/cfg/one.txt"), "v3\n");
    assert_eq!(worker.clone().await, "unchanged");
}

#[tokio::test]
async fn pushes_deletions_and_pushes_by_force_are_followed_over_http() {
    let lab = Lab::new();
    let server = Server::http(lab.outer());
    follows(&lab, &lab.with_url(&server.url)).await;
    // What is kept is a repository for git, too, with one commit.
    let stored = lab.folder().join("remotes/r/repository");
    git(&stored, &["fsck", "--connectivity-only"]);
    assert_eq!(git(&stored, &["rev-list", "--count", "main"]), "1");
    assert_eq!(git(&stored, &["config", "remote.origin.url"]), server.url);
}

#[tokio::test]
async fn servers_of_the_first_protocol_are_understood() {
    let lab = Lab::new();
    let server = Server::http(lab.outer());
    server.behave(Behaviour { old_protocol: true, ..Behaviour::default() });
    let worker = lab.with_url(&server.url);
    follows(&lab, &worker).await;
    let worker = lab.worker(json!([{"name": "r", "url": server.url, "branch": "nope"}]));
    assert_eq!(worker.clone_error().await, format!("branch 'nope' not found in {}", server.url));
}

#[tokio::test]
async fn what_is_new_is_fetched_alone_and_many_packs_become_one() {
    let lab = Lab::new();
    let large: String = (0..40_000).map(|number| format!("{}\n", number * 7919)).collect();
    pushed(&lab, &large);
    let server = Server::http(lab.outer());
    let worker = lab.with_url(&server.url);
    worker.clone().await;
    let packs_dir = lab.folder().join("remotes/r/repository/objects/pack");
    let sizes =
        || fs::read_dir(&packs_dir).expect("read").flatten().map(|entry| entry.metadata().expect("there").len());
    let first: u64 = sizes().sum();
    lab.origin.write("small", "1");
    lab.origin.push("main");
    worker.clone().await;
    assert_eq!(packs(&lab), 2);
    assert!(sizes().sum::<u64>() < first + first / 4, "the large file came again");
    for number in 0..15 {
        lab.origin.write("small", number.to_string());
        lab.origin.push("main");
        assert_eq!(worker.clone().await, "cloned");
    }
    assert_eq!(packs(&lab), 1);
    assert_eq!((lab.read("r/small").as_str(), lab.read("r/cfg/one.txt") == large), ("14", true));
}

#[tokio::test]
async fn credentials_are_sent_and_nowhere_written_or_told() {
    let lab = Lab::new();
    let server = Server::http(lab.outer());
    server.behave(Behaviour { authorization: Some(AUTHORIZATION.to_owned()), ..Behaviour::default() });
    let in_url = server.url.replace("://", "://u:s3cret@");
    let shown = server.url.replace("://", "://u:********@");
    let remote = |username: &str, password: &str| json!([{"name": "r", "url": server.url, "branch": "main", "username": username, "password": password}]);
    let worker = lab.worker(remote("u", "wr0ng"));
    let expected = format!("{} refused the credentials of 'u': check username and password", server.url);
    assert_eq!(worker.clone_error().await, expected);
    let expected =
        format!("{} wants credentials, or there is no such repository: give username and password", server.url);
    assert_eq!(lab.with_url(&server.url).clone_error().await, expected);
    let worker = lab.with_url(&in_url);
    assert_eq!(worker.clone().await, "cloned");
    assert_eq!(worker.told("r").await["url"], json!(shown));
    let told = worker.run("get_inventory", json!({})).await.to_string();
    assert!(!told.contains("s3cret"), "{told}");
    let worker = lab.worker(remote("u", "s3cret"));
    let (result, events) = worker.run_and_listen("git_clone", json!({"name": "r"})).await;
    assert_eq!(result["result"]["status"], json!("cloned"));
    let told = format!("{result}{events:?}{}", worker.told("r").await);
    assert!(!told.contains("s3cret"), "{told}");
    let found = Command::new("grep").args(["-rl", "s3cret"]).arg(lab.outer()).output().expect("grep");
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[tokio::test]
async fn what_is_wrong_with_a_server_is_said() {
    let lab = Lab::new();
    let server = Server::http(lab.outer());
    let error = |url: String| {
        let worker = lab.with_url(&url);
        async move { worker.clone_error().await }
    };
    let missing = server.url.replace("origin", "nope");
    assert_eq!(error(missing.clone()).await, format!("{missing} is not a git repository: check the URL"));
    server.behave(Behaviour { page: true, ..Behaviour::default() });
    assert_eq!(error(server.url.clone()).await, format!("{} is not a git repository: check the URL", server.url));
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://127.0.0.1:{}/a.git", listener.local_addr().expect("bound").port())
    };
    let told = error(closed.clone()).await;
    assert!(told.starts_with(&format!("{closed} cannot be reached: ")) && told.contains("refused"), "{told}");
    let told = error("http://no-such-host.invalid/a.git".to_owned()).await;
    assert_eq!(told, "host 'no-such-host.invalid' not found: check the URL and the name service");
}

#[tokio::test]
async fn a_pack_that_breaks_off_is_an_error_and_the_next_attempt_a_success() {
    let lab = Lab::new();
    let server = Server::http(lab.outer());
    let worker = lab.with_url(&server.url);
    for bytes in [60, 200, 400] {
        server.behave(Behaviour { pack_bytes: Some(bytes), ..Behaviour::default() });
        let error = worker.clone_error().await;
        assert!(error.starts_with(&format!("{} cannot be reached: ", server.url)) && !lab.has("r"), "{error}");
    }
    server.behave(Behaviour::default());
    assert_eq!(worker.clone().await, "cloned");
    let left = fs::read_dir(lab.folder().join("remotes/r/repository/objects/pack")).expect("read").count();
    assert_eq!(left, 2, "a pack and its index");
}

#[tokio::test]
async fn a_stored_repository_that_is_damaged_is_fetched_anew() {
    let lab = Lab::new();
    let server = Server::http(lab.outer());
    let worker = lab.with_url(&server.url);
    assert_eq!(worker.clone().await, "cloned");
    let damage = || {
        for entry in fs::read_dir(lab.folder().join("remotes/r/repository/objects/pack")).expect("read").flatten() {
            let path = entry.path();
            let length = fs::metadata(&path).expect("there").len();
            fs::remove_file(&path).expect("removed");
            fs::write(&path, vec![0; usize::try_from(length).expect("small")]).expect("written");
        }
    };
    // Nothing is new, but the files are gone.
    damage();
    fs::remove_dir_all(lab.base().join("r")).expect("removed");
    assert_eq!(worker.clone().await, "cloned");
    // What is new is told as a difference to what is damaged.
    damage();
    pushed(&lab, "v2\n");
    assert_eq!(worker.clone().await, "cloned");
    assert_eq!(lab.read("r/cfg/one.txt"), "v2\n");
    assert_eq!(packs(&lab), 1);
}

#[tokio::test]
async fn a_job_ends_at_its_deadline_while_a_server_says_nothing() {
    let lab = Lab::new();
    let server = Server::http(lab.outer());
    for start in ["GET", "POST"] {
        server.behave(Behaviour { silent_about: Some(start), ..Behaviour::default() });
        let worker = RemoteWorker { worker: lab.with_url(&server.url).worker.timeout(1) };
        let began = Instant::now();
        assert_eq!(worker.clone_error().await, "it was ended before it was complete");
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        // Nobody has the remote any more.
        server.behave(Behaviour::default());
        let worker = RemoteWorker { worker: worker.worker.timeout(60) };
        assert_eq!(worker.clone().await, "cloned");
        lab.origin.push("main");
    }
}

#[tokio::test]
async fn what_is_under_way_by_itself_ends_with_the_service() {
    let lab = Lab::new();
    let server = Server::http(lab.outer());
    server.behave(Behaviour { silent_about: Some("GET"), ..Behaviour::default() });
    let until = async |told: &str| {
        let wait = async {
            while !server.requests().iter().any(|request| request.starts_with(told)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap_or_else(|_| panic!("no {told}"));
    };
    let worker = lab.worker(json!([{"name": "r", "url": server.url, "branch": "main", "auto_sync": true}]));
    until("GET").await;
    drop(worker);
    until("gone").await;
}

#[test]
fn a_process_that_is_killed_in_the_middle_leaves_nothing_for_long() {
    const FOLDER: &str = "NORFAB_TEST_FOLDER";
    const URL: &str = "NORFAB_TEST_URL";
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if is_inner() {
        let folder = std::env::var(FOLDER).expect("set");
        let url = std::env::var(URL).expect("set");
        runtime.block_on(async { Lab::of_other(Path::new(&folder)).with_url(&url).clone().await });
        panic!("it was to be killed");
    }
    let lab = Lab::new();
    // More than what is buffered on the way.
    let noise: Vec<u8> =
        (0..400_000_u64).flat_map(|word| word.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()).collect();
    lab.origin.write("noise", noise);
    lab.origin.push("main");
    let server = Server::http(lab.outer());
    server.behave(Behaviour { pack_bytes: Some(1_500_000), stalls: true, ..Behaviour::default() });
    let variables = [(FOLDER, lab.outer().to_str().expect("text")), (URL, &server.url)];
    let mut inner = inner_command("web::a_process_that_is_killed_in_the_middle_leaves_nothing_for_long", &variables);
    let mut inner = inner.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs");
    let packs = lab.folder().join("remotes/r/repository/objects/pack");
    let written = || {
        let entries = fs::read_dir(&packs).into_iter().flatten().flatten();
        entries.map(|entry| entry.metadata().map_or(0, |metadata| metadata.len())).sum::<u64>()
    };
    let began = Instant::now();
    while written() < 100_000 {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing arrives");
        std::thread::yield_now();
    }
    inner.kill().expect("killed");
    inner.wait().expect("ended");
    assert!(written() > 0, "it leaves something");
    server.behave(Behaviour::default());
    runtime.block_on(async {
        assert_eq!(lab.with_url(&server.url).clone().await, "cloned");
    });
    assert_eq!(fs::read_dir(&packs).expect("read").count(), 2, "a pack and its index");
    assert!(lab.has("r/noise") && !lab.has("__norfab__"));
}

#[tokio::test]
async fn a_server_that_has_moved_is_followed_and_gets_no_credentials_of_another() {
    let lab = Lab::new();
    let (server, other) = (Server::http(lab.outer()), Server::http(lab.outer()));
    server.behave(Behaviour { redirect: Some(server.url.replace("/origin", "/moved/origin")), ..Behaviour::default() });
    assert_eq!(lab.with_url(&server.url).clone().await, "cloned");
    assert!(server.requests().iter().any(|request| request.starts_with("POST /moved/origin.git/git-upload-pack")));
    server.behave(Behaviour { redirect: Some(other.url.clone()), ..Behaviour::default() });
    other.behave(Behaviour { authorization: Some(AUTHORIZATION.to_owned()), ..Behaviour::default() });
    let worker = lab.with_url(&server.url.replace("://", "://u:s3cret@"));
    assert!(worker.clone_error().await.contains("wants credentials"));
}

#[tokio::test]
async fn a_private_repository_that_has_moved_on_its_server_gets_the_credentials() {
    let lab = Lab::new();
    let server = Server::http(lab.outer());
    let moved = server.url.replace("/origin", "/moved/origin");
    let authorization = Some(AUTHORIZATION.to_owned());
    server.behave(Behaviour { redirect: Some(moved), authorization, ..Behaviour::default() });
    assert_eq!(lab.with_url(&server.url.replace("://", "://u:s3cret@")).clone().await, "cloned");
    assert!(server.requests().iter().any(|request| request.starts_with("POST /moved/origin.git/git-upload-pack")));
    server.behave(Behaviour { redirect: Some(server.url.clone()), ..Behaviour::default() });
    assert!(lab.with_url(&server.url).clone_error().await.ends_with("it leads elsewhere more than 5 times"));
}

#[tokio::test]
async fn a_token_in_the_place_of_a_user_name_is_told_nowhere() {
    let lab = Lab::new();
    let server = Server::http(lab.outer());
    server.behave(Behaviour { authorization: Some(AUTHORIZATION.to_owned()), ..Behaviour::default() });
    for form in ["t0ken@", "t0ken:@", "t0ken:x-oauth-basic@"] {
        let worker = lab.with_url(&server.url.replace("://", &format!("://{form}")));
        let (result, events) = worker.run_and_listen("git_clone", json!({"name": "r"})).await;
        let problem = "refused the token in the URL: check it";
        let expected = format!("Git remote 'r' synchronization failed: {} {problem}", server.url);
        let told = [result.to_string(), format!("{events:?}"), worker.told("r").await.to_string()];
        assert!(told.iter().all(|told| !told.contains("t0ken")), "{told:?}");
        assert_eq!(result["errors"], json!([expected]));
        worker.run("delete_remote_git", json!({"name": "r"})).await;
    }
}

#[test]
fn https_trusts_the_authorities_of_the_system_and_nobody_else() {
    let authority = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls/ca.pem");
    let name = "web::https_trusts_the_authorities_of_the_system_and_nobody_else";
    if !in_own_process(name, &[("SSL_CERT_FILE", authority.to_str().expect("text")), ("SSL_CERT_DIR", "/nowhere")]) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let lab = Lab::new();
        let server = Server::https(lab.outer());
        follows(&lab, &lab.with_url(&server.url)).await;
        server.behave(Behaviour { authorization: Some(AUTHORIZATION.to_owned()), ..Behaviour::default() });
        assert_eq!(lab.with_url(&server.url.replace("://", "://u:s3cret@")).clone().await, "cloned");
        // Another name than that in the certificate.
        let wrong = server.url.replace("localhost", "127.0.0.1");
        let error = lab.with_url(&wrong).clone_error().await;
        assert!(error.starts_with(&format!("the certificate of {wrong} is not trusted: ")), "{error}");
        let plain = Server::http(lab.outer());
        server.behave(Behaviour { redirect: Some(plain.url.clone()), ..Behaviour::default() });
        let error = lab.with_url(&server.url).clone_error().await;
        assert!(error.ends_with("it leads to one that is not encrypted"), "{error}");
    });
}

#[test]
fn an_authority_that_the_system_does_not_know_is_not_trusted() {
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls/server.pem");
    let name = "web::an_authority_that_the_system_does_not_know_is_not_trusted";
    if !in_own_process(name, &[("SSL_CERT_FILE", other.to_str().expect("text")), ("SSL_CERT_DIR", "/nowhere")]) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let lab = Lab::new();
        let server = Server::https(lab.outer());
        let error = lab.with_url(&server.url).clone_error().await;
        assert!(error.starts_with(&format!("the certificate of {} is not trusted: ", server.url)), "{error}");
        assert!(server.requests().is_empty(), "nothing was asked of it");
    });
}
