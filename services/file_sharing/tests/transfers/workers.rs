//! Workers that say and send what a test wants.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use md5::{Digest, Md5};
use norfab_files::Prefix;
use norfab_files::record::{self, Facts};
use norfab_protocol::ServiceName;
use norfab_service::{Service, Task, TaskContext, TaskError, TaskOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// As Python NorFab sends files.
const CHUNK_BYTES: usize = 256_000;

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
#[allow(dead_code, reason = "what clients say and nobody here reads")]
struct FileOf {
    url: String,
    #[serde(default)]
    have_bytes: u64,
    #[serde(default)]
    have_sha256: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "what clients say and nobody here reads")]
struct Url {
    url: Value,
    #[serde(default)]
    offset: usize,
    #[serde(default)]
    chunk_size: usize,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "what clients say and nobody here reads")]
struct Name {
    name: String,
}

/// How a task answers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    /// How long the first answer takes.
    pub slow: Duration,
    /// After so many answers there are none any more.
    pub hangs_after: Option<usize>,
}

impl Manner {
    pub fn slow(slow: Duration) -> Self {
        Self { slow, ..Self::default() }
    }

    pub fn hangs_after(answers: usize) -> Self {
        Self { hangs_after: Some(answers), ..Self::default() }
    }

    async fn wait(self, answers: &AtomicUsize) {
        let before = answers.fetch_add(1, Ordering::SeqCst);
        if before == 0 {
            tokio::time::sleep(self.slow).await;
        }
        if self.hangs_after.is_some_and(|after| before >= after) {
            std::future::pending::<()>().await;
        }
    }
}

/// A worker of this product, as far as clients see.
#[derive(Clone, Default)]
pub struct Ours {
    /// Paths below `d`, and their contents.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Paths that it lists and does not send.
    pub kept: Vec<String>,
    pub stats: Manner,
    pub lists: Manner,
    /// How many bytes of the first file it sends before the job fails; later ones, it says, are not there.
    pub breaks: Option<usize>,
    /// Where it serves the file of its git remote.
    pub git: Option<String>,
}

impl Ours {
    pub fn with(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(path, content)| ((*path).to_owned(), content.to_vec())).collect();
        Self { files, ..Self::default() }
    }

    fn content(&self, url: &str) -> Option<&Vec<u8>> {
        self.files.get(url.strip_prefix("nf://d/")?)
    }

    pub fn service(self) -> Service {
        let this = Arc::new(self);
        let (stats, lists, sends) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (stating, listing, sending, git) = (Arc::clone(&this), Arc::clone(&this), Arc::clone(&this), this);
        let resolving = Arc::clone(&git);
        Service::new(ServiceName::parse("filesharing").expect("a name"))
            .task(Task::new("stat_files", "", move |_: TaskContext, Urls { urls }: Urls| {
                let (this, stats) = (Arc::clone(&stating), Arc::clone(&stats));
                async move {
                    this.stats.wait(&stats).await;
                    let of = |url: &String| match this.content(url) {
                        Some(content) => json!({"url": url, "kind": "file", "size_bytes": content.len(), "modified": 1}),
                        None if url == "nf://d" => json!({"url": url, "kind": "directory"}),
                        None => json!({"url": url, "kind": "missing", "error": "file not found"}),
                    };
                    Ok(TaskOutput::new(urls.iter().map(of).collect::<Vec<_>>()))
                }
            }))
            .task(Task::new("list_entries", "", move |_: TaskContext, _: Folder| {
                let (this, lists) = (Arc::clone(&listing), Arc::clone(&lists));
                async move {
                    this.lists.wait(&lists).await;
                    let of = |(path, content): (&String, &Vec<u8>)| json!({"path": path, "kind": "file", "size_bytes": content.len(), "modified": 1});
                    Ok(TaskOutput::new(json!({ "entries": this.files.iter().map(of).collect::<Vec<_>>() })))
                }
            }))
            .task(Task::blocking("send_files", "", move |context: TaskContext, Files { files, .. }: Files| {
                let before = sends.fetch_add(1, Ordering::SeqCst);
                let mut message = BytesMut::new();
                for (index, file) in (0_u32..).zip(&files) {
                    let (kept, content) = (&sending.kept, sending.content(&file.url));
                    let is_kept = kept.iter().any(|path| file.url.ends_with(path.as_str()));
                    match content.filter(|_| !is_kept && (sending.breaks.is_none() || before == 0)) {
                        None => record::write_failed(&mut message, index, 0, "file not found"),
                        Some(content) => {
                            let facts = Facts { size: content.len() as u64, modified: 1, mode: 0o644 };
                            record::write_begin(&mut message, index, 0, facts);
                            let sent = &content[..sending.breaks.unwrap_or(content.len())];
                            let is_last = sent.len() == content.len();
                            record::write_content_head(&mut message, index, 0, sent.len(), is_last);
                            message.put_slice(sent);
                            if is_last {
                                let mut prefix = Prefix::default();
                                prefix.update(sent);
                                message.put_slice(&prefix.hash().0);
                            }
                        }
                    }
                }
                context.stream_blocking(message.freeze())?;
                if sending.breaks.is_some() && before == 0 {
                    return Err(TaskError::new("it broke off"));
                }
                Ok(TaskOutput::new(json!({})))
            }))
            .task(Task::new("get_remotes", "", move |_: TaskContext, _: Name| {
                let remotes: Vec<Value> = git.git.iter().map(|_| json!({ "name": "r" })).collect();
                async move { Ok(TaskOutput::new(remotes)) }
            }))
            .task(Task::new("resolve_git_url", "", move |_: TaskContext, Url { url, .. }: Url| {
                let served = resolving.git.clone();
                async move {
                    let url = url[0].as_str().expect("a URL").to_owned();
                    Ok(TaskOutput::new(json!({ url: { "result": served, "failed": false } })))
                }
            }))
    }
}

/// A worker of Python NorFab with one file `d/f`, as far as clients see. `chunks`: how many it sends before it hangs.
pub fn python(content: Vec<u8>, chunks: Option<usize>) -> Service {
    let hash: String = Md5::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    let size = content.len();
    Service::new(ServiceName::parse("filesharing").expect("a name"))
        .task(Task::new("file_details", "", move |_: TaskContext, Url { url, .. }: Url| {
            let details = json!({ "md5hash": hash, "size_bytes": size, "exists": true });
            async move {
                let Some(urls) = url.as_array() else { return Ok(details) };
                let of = |url: &Value| {
                    (url.as_str().expect("a URL").to_owned(), json!({ "result": details, "failed": false }))
                };
                Ok(Value::Object(urls.iter().map(of).collect()))
            }
        }))
        .task(Task::new("walk", "", async |_: TaskContext, _: Url| Ok(json!(["nf://d/f"]))))
        .task(Task::blocking("fetch_file", "", move |context: TaskContext, Url { offset, .. }: Url| {
            let ahead = content[offset..].chunks(CHUNK_BYTES);
            for chunk in ahead.take(chunks.unwrap_or(usize::MAX)) {
                context.stream_blocking(Bytes::copy_from_slice(chunk))?;
            }
            while chunks.is_some() && !context.is_cancelled() {
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(json!(true))
        }))
}
