//! A worker that lies about what it has and where it belongs.

use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use bytes::{BufMut, BytesMut};
use norfab_fabric::client::files::{FileTarget, SyncOptions};
use norfab_files::Prefix;
use norfab_files::record::{self, Facts};
use norfab_protocol::ServiceName;
use norfab_protocol::target::Target;
use norfab_service::{Service, Task, TaskContext, TaskOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::lab::{Lab, PATIENCE, read, runtime};

const CONTENT: &[u8] = b"from the worker";

#[derive(Deserialize, JsonSchema)]
struct Urls {
    urls: Vec<String>,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "what clients say and nobody here reads")]
struct Folder {
    url: String,
    recursive: bool,
    after: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "what clients say and nobody here reads")]
struct Files {
    files: Vec<FileOf>,
    window: u64,
}

#[derive(Deserialize, JsonSchema)]
struct FileOf {
    url: String,
    #[serde(default)]
    have_bytes: u64,
    #[serde(default)]
    #[allow(dead_code, reason = "what clients say and nobody here reads")]
    have_sha256: Option<String>,
}

/// Whole files, under these places in the request.
fn message(files: impl Iterator<Item = u32>) -> BytesMut {
    let mut message = BytesMut::new();
    for file in files {
        record::write_begin(&mut message, file, 0, Facts { size: CONTENT.len() as u64, modified: 1, mode: 0o4777 });
        record::write_content_head(&mut message, file, 0, CONTENT.len(), true);
        message.put_slice(CONTENT);
        let mut prefix = Prefix::default();
        prefix.update(CONTENT);
        message.put_slice(&prefix.hash().0);
    }
    message
}

/// A service that tells of files under these paths, and sends them, and some more, under whatever name. It remembers what it was asked
/// for.
fn service(paths: Vec<String>, goes_on: bool, more: u32) -> (Service, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let remembered = Arc::clone(&asked);
    let service = Service::new(ServiceName::parse("filesharing").expect("a name"))
        .task(Task::new("stat_files", "", async |_: TaskContext, Urls { urls }: Urls| {
            let of = |url: String| json!({"url": url, "kind": "directory"});
            Ok(TaskOutput::new(urls.into_iter().map(of).collect::<Vec<_>>()))
        }))
        .task(Task::new("list_entries", "", move |_: TaskContext, _: Folder| {
            let entry =
                |path: &String| json!({"path": path, "kind": "file", "size_bytes": CONTENT.len(), "modified": 1});
            let entries: Vec<Value> = paths.iter().map(entry).collect();
            let page = if goes_on { json!({"entries": entries, "next": "a"}) } else { json!({ "entries": entries }) };
            async move { Ok(TaskOutput::new(page)) }
        }))
        .task(Task::blocking("send_files", "", move |context: TaskContext, Files { files, .. }: Files| {
            let count = files.len() as u32;
            let urls = files.into_iter().map(|file| file.url);
            remembered.lock().expect("no panic").extend(urls);
            context.stream_blocking(message((0..count + more).rev()).freeze())?;
            Ok(TaskOutput::new(json!({})))
        }));
    (service, asked)
}

const PLAIN: SyncOptions =
    SyncOptions { workers: Target::All, delete: true, dry_run: false, checksum: false, timeout: PATIENCE };

#[test]
fn no_name_of_a_hostile_worker_leads_out_or_to_what_is_believed() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let outside = lab.path("outside");
        std::fs::create_dir(&outside).expect("made");
        let absolute = outside.join("x").display().to_string();
        let long = "n".repeat(300);
        let deep = vec!["d"; 5000].join("/");
        let hostile = [
            "../x",
            "a/../../x",
            "..",
            ".",
            "",
            "/",
            "/etc/passwd",
            "//x",
            "a//x",
            "x/",
            "./x",
            "..\\x",
            "a\\..\\..\\x",
            "c:\\x",
            "\\\\host\\share",
            "x\0y",
            "\0",
            "a/\0",
            "../outside/x",
            "__norfab__/files/x",
            "__NORFAB__/x",
            ".git/config",
            "a/.Git/hooks/post-checkout",
            ".env",
            ".envrc",
            ".ENV.local",
            "k/broker.key_secret",
            ".a.part",
            "a/..",
            "a/.",
            "....//..",
            "/../x",
            absolute.as_str(),
            long.as_str(),
            deep.as_str(),
        ];
        let fine =
            ["con", "a:b", "...", "..x", "~", "-rf", "%2e%2e", "A", "a b", "\u{202e}x", "$(x)", "nul.txt", "x\ny"];
        let paths = hostile.iter().chain(&fine).map(|path| (*path).to_owned()).collect();
        let (service, asked) = service(paths, false, 0);
        lab.worker_of("w1", service).await;
        let client = lab.client("c").await;
        std::fs::create_dir(lab.path("copy")).expect("made");
        std::fs::write(lab.path("copy/mine"), "mine").expect("written");
        let before = lab.names(".");
        let synced = client.sync("nf://d", &lab.path("copy"), PLAIN, |_| {}).await.expect("it is synchronized");
        assert_eq!((synced.failed.len(), synced.fetched.len()), (hostile.len(), fine.len()), "{:?}", synced.failed);
        assert_eq!(asked.lock().expect("no panic").len(), fine.len(), "nobody asks for the others");
        assert_eq!(lab.names("outside"), Vec::<String>::new());
        assert_eq!(lab.names("."), before);
        let mut expected: Vec<String> = fine.iter().map(|name| (*name).to_owned()).chain(["mine".to_owned()]).collect();
        expected.sort();
        assert_eq!(lab.names("copy"), expected, "and nothing is removed");
        assert!(synced.not_deleted.is_some());
        // What the umask leaves.
        let all = std::fs::metadata(lab.path("copy")).expect("there").mode() & 0o7777;
        for name in fine {
            assert_eq!(read(&lab.path("copy").join(name)), CONTENT);
            let mode = std::fs::metadata(lab.path("copy").join(name)).expect("there").mode();
            assert_eq!(mode & 0o7777, all, "no rights of somebody else");
        }
        client.stop().await;
    });
}

#[test]
fn files_that_nobody_asked_for_end_the_transfer() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let (service, _) = service(vec!["a".to_owned(), "b".to_owned()], false, 3);
        lab.worker_of("w1", service).await;
        let client = lab.client("c").await;
        let synced = client.sync("nf://d", &lab.path("copy"), PLAIN, |_| {}).await.expect("it is synchronized");
        assert_eq!(synced.failed.len(), 2);
        assert!(synced.failed.iter().all(|failed| failed.reason.contains("not been asked for")), "{:?}", synced.failed);
        assert_eq!(lab.names("copy"), Vec::<String>::new());
        client.stop().await;
    });
}

#[test]
fn a_list_without_an_end_is_left() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let (service, _) = service(vec!["a".to_owned()], true, 0);
        lab.worker_of("w1", service).await;
        let client = lab.client("c").await;
        let error = client.sync("nf://d", &lab.path("copy"), PLAIN, |_| {}).await.expect_err("it has no end");
        assert!(error.to_string().contains("does not go on"), "{error}");
        client.stop().await;
    });
}

/// A service whose file has three bytes when it is asked about, and six when it is sent.
fn growing() -> Service {
    Service::new(ServiceName::parse("filesharing").expect("a name"))
        .task(Task::new("stat_files", "", async |_: TaskContext, Urls { urls }: Urls| {
            let of = |url: String| json!({"url": url, "kind": "file", "size_bytes": 3, "modified": 1});
            Ok(TaskOutput::new(urls.into_iter().map(of).collect::<Vec<_>>()))
        }))
        .task(Task::blocking("send_files", "", move |context: TaskContext, Files { files, .. }: Files| {
            let (all, offset) = (b"abcdef", files[0].have_bytes);
            let mut message = BytesMut::new();
            record::write_begin(&mut message, 0, offset, Facts { size: 6, modified: 2, mode: 0o644 });
            let rest = &all[offset as usize..];
            record::write_content_head(&mut message, 0, offset, rest.len(), true);
            message.put_slice(rest);
            let mut prefix = Prefix::default();
            prefix.update(all);
            message.put_slice(&prefix.hash().0);
            context.stream_blocking(message.freeze())?;
            Ok(TaskOutput::new(json!({})))
        }))
}

#[test]
fn a_file_that_becomes_longer_than_the_copy_here_while_it_is_asked_for_comes_whole() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.worker_of("w1", growing()).await;
        let client = lab.client("c").await;
        for name in ["one", "many"] {
            std::fs::write(lab.path(name), "abc").expect("written");
        }
        client.fetch_file("nf://f", &lab.path("one"), PATIENCE, |_, _| {}).await.expect("it is fetched");
        assert_eq!(read(&lab.path("one")), b"abcdef");
        let wanted = FileTarget { url: "nf://f".to_owned(), target: lab.path("many") };
        let outcomes = client.fetch_files(vec![wanted], PATIENCE, |_| {}).await;
        assert!(outcomes[0].is_ok(), "{outcomes:?}");
        assert_eq!(read(&lab.path("many")), b"abcdef");
        client.stop().await;
    });
}
