//! `norfab files get`: files that workers have, copied here.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use norfab_fabric::client::files::FileCache;
use norfab_fabric::client::{ClientHandle, FetchError, Fetched};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::progress::{FileProgress, Progress};
use super::{failure, no_url};
use crate::args::{GetArgs, Global};
use crate::commands::Connected;
use crate::exit::{Code, Failure};
use crate::printer;

/// Files that are fetched at once: enough that small ones do not wait for each other's round trips.
const FETCHED_AT_ONCE: usize = 4;

/// A file and where it goes.
struct Wanted {
    url: String,
    target: PathBuf,
    timeout: Duration,
    /// Bytes that the folder of fetched files may have, where it goes there.
    cache: Option<u64>,
}

pub async fn run(global: &Global, words: GetArgs) -> Result<Code, Failure> {
    let GetArgs { words: mut urls, to, cache, cache_limit, timeout } = words;
    let cache = cache.then_some(cache_limit);
    // What is no URL can only be where to. One that stands alone is meant as one.
    let dest = if to.is_none() && urls.len() > 1 && !urls[urls.len() - 1].contains("://") { urls.pop() } else { None };
    let mut names = Vec::with_capacity(urls.len());
    for url in &urls {
        names.push(file_name(url)?);
    }
    let several = urls.len() > 1;
    let dest = dest.map(PathBuf::from);
    if let (Some(_), Some(dest)) = (cache, &dest) {
        let failure = Failure::usage(format!(
            "--cache keeps the file in a folder of its own, and '{}' names another place",
            dest.display()
        ));
        return Err(failure.hint("leave one of them out"));
    }
    if dest.as_deref() == Some(Path::new("-")) {
        if several {
            let failure = Failure::usage("standard output is for one file");
            return Err(failure.hint("name a folder with --to DIR"));
        }
        return to_stdout(global, &urls[0], names[0], timeout).await;
    }
    let folder = match (to, dest) {
        (Some(folder), _) => folder,
        (None, Some(dest)) if several || is_folder(&dest) => dest,
        (None, Some(target)) => {
            let [url]: [String; 1] = urls.try_into().expect("there are not several");
            return one(global, Wanted { url, target, timeout, cache }).await;
        }
        (None, None) => PathBuf::new(),
    };
    let mut taken = BTreeMap::new();
    let mut wanted = Vec::with_capacity(urls.len());
    for (url, name) in urls.iter().zip(names) {
        // In the cache each has a path of its own.
        if cache.is_none()
            && let Some(other) = taken.insert(name, url)
        {
            return Err(Failure::usage(format!("'{other}' and '{url}' would both become '{name}'"))
                .hint("fetch them one after the other, with a name for each"));
        }
        wanted.push(Wanted { url: url.clone(), target: folder.join(name), timeout, cache });
    }
    match <[Wanted; 1]>::try_from(wanted) {
        Ok([only]) => one(global, only).await,
        Err(wanted) => many(global, wanted).await,
    }
}

/// The name of the file at a URL. Errors: it is no URL of a file.
fn file_name(url: &str) -> Result<&str, Failure> {
    let path = url.strip_prefix(super::SCHEME).or_else(|| url.strip_prefix("git://"));
    let path = path.ok_or_else(|| no_url(&FetchError::Url(url.to_owned())))?;
    let name = path.rsplit(['/', '\\']).next().filter(|name| !matches!(*name, "" | "." | ".."));
    name.ok_or_else(|| Failure::usage(format!("'{url}' names no file")).hint("write nf://PATH/TO/FILE"))
}

async fn one(global: &Global, wanted: Wanted) -> Result<Code, Failure> {
    let connected = Connected::to_ask(global).await?;
    let progress = Progress::new(global, 1);
    let cache = cache_of(&connected, &wanted)?;
    let fetched = fetch(&connected.client, &wanted, cache.as_deref(), progress.file(&shown_name(&wanted))).await;
    drop(progress);
    connected.client.stop().await;
    let (fetched, _held) = fetched?;
    if global.json {
        printer::json(&document(&wanted.url, &fetched));
    } else {
        printer::line(&sentence(&fetched));
    }
    Ok(Code::Ok)
}

async fn many(global: &Global, wanted: Vec<Wanted>) -> Result<Code, Failure> {
    let connected = Connected::to_ask(global).await?;
    let progress = Progress::new(global, wanted.len());
    let turns = Arc::new(Semaphore::new(FETCHED_AT_ONCE));
    let mut documents: Vec<Value> = vec![Value::Null; wanted.len()];
    let mut transfers = JoinSet::new();
    let (cache, bytes_max) = (cache_of(&connected, &wanted[0])?, wanted[0].cache);
    for (at, wanted) in wanted.into_iter().enumerate() {
        let cache = cache.clone();
        let (client, progress, turns) = (connected.client.clone(), progress.clone(), Arc::clone(&turns));
        transfers.spawn(async move {
            let _turn = turns.acquire_owned().await.expect("it is never closed");
            let fetched = fetch(&client, &wanted, cache.as_deref(), progress.file(&shown_name(&wanted))).await;
            (at, wanted.url, fetched)
        });
    }
    let (mut code, mut failed) = (Code::Ok, 0);
    // All that is told stays until all is told.
    let mut held = Vec::new();
    while let Some(done) = transfers.join_next().await {
        let (at, url, fetched) = done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        match fetched {
            Ok((fetched, file)) => {
                held.push((file, fetched.bytes));
                if global.json {
                    documents[at] = document(&url, &fetched);
                } else {
                    printer::line(&sentence(&fetched));
                }
            }
            Err(failure) => {
                printer::error(&failure.text);
                documents[at] = json!({ "url": url });
                failure.put_into(&mut documents[at]);
                code = code.unless_ok(failure.code);
                failed += 1;
            }
        }
    }
    drop(progress);
    connected.client.stop().await;
    if let Some(bytes_max) = bytes_max
        && global.quiet == 0
    {
        let kept = held.iter().map(|(_, bytes)| bytes).sum::<u64>();
        if kept > bytes_max {
            printer::warning(&format!(
                "these files have {kept} bytes and the cache may have {bytes_max}: the next command with --cache removes some; \
                 give it more with --cache-limit"
            ));
        }
    }
    if global.json {
        let count = documents.len();
        let mut all = json!({ "files": documents });
        if failed > 0 {
            Failure::new(code, format!("{failed} of {count} files did not come")).put_into(&mut all);
        }
        printer::json(&all);
    }
    Ok(code)
}

async fn to_stdout(global: &Global, url: &str, name: &str, timeout: Duration) -> Result<Code, Failure> {
    if global.json {
        return Err(Failure::usage("--json and '-' both take standard output").hint("leave one of them out"));
    }
    let folder = tempfile::tempdir().map_err(Failure::failed)?;
    let wanted = Wanted { url: url.to_owned(), target: folder.path().join("file"), timeout, cache: None };
    let connected = Connected::to_ask(global).await?;
    let progress = Progress::new(global, 1);
    let fetched = fetch(&connected.client, &wanted, None, progress.file(name)).await;
    drop(progress);
    connected.client.stop().await;
    fetched?;
    let mut file = File::open(&wanted.target).map_err(Failure::failed)?;
    let mut out = std::io::stdout().lock();
    match std::io::copy(&mut file, &mut out).and_then(|_| out.flush()) {
        // A reader that has seen enough (`| head`) is no error.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => printer::keep_output_error(error),
        _ => {}
    }
    Ok(Code::Ok)
}

/// Where fetched files are kept, if one is to be. Errors: that folder has no place.
fn cache_of(connected: &Connected, wanted: &Wanted) -> Result<Option<Arc<FileCache>>, Failure> {
    let Some(bytes_max) = wanted.cache else { return Ok(None) };
    Ok(Some(Arc::new(FileCache::new(connected.fetched_files()?, bytes_max))))
}

/// A file that came; and open and locked, if it is in the cache: it stays there as long as that is held.
type Got = (Fetched, Option<File>);

async fn fetch(
    client: &ClientHandle,
    wanted: &Wanted,
    cache: Option<&FileCache>,
    mut progress: FileProgress,
) -> Result<Got, Failure> {
    let Wanted { url, target, timeout, .. } = wanted;
    let tell = |bytes, size| progress.show(bytes, size);
    let fetched = match cache {
        None => client.fetch_file(url, target, *timeout, tell).await.map(|fetched| (fetched, None)),
        Some(cache) => client.fetch_cached(url, cache, *timeout, tell).await.map(|it| (it.fetched, Some(it.file))),
    };
    fetched.map_err(|error| failure(&error))
}

/// Of a file on its way: what it is called here.
fn shown_name(wanted: &Wanted) -> String {
    wanted.target.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn document(url: &str, fetched: &Fetched) -> Value {
    json!({
        "url": url,
        "path": fetched.path.display().to_string(),
        "size_bytes": fetched.bytes,
        "had_bytes": fetched.had,
        "sha256": fetched.sha256,
        "md5hash": fetched.md5,
        "worker": fetched.worker,
    })
}

fn sentence(fetched: &Fetched) -> String {
    let from = match (&fetched.worker, fetched.had) {
        (None, _) => "it was there already".to_owned(),
        (Some(worker), 0) => format!("from {worker}"),
        (Some(worker), had) => format!("from {worker}, {had} of them were there already"),
    };
    format!("{} ({} bytes, {from})", printer::printable(&fetched.path.display().to_string()), fetched.bytes)
}

/// A folder, or what can only be meant as one.
fn is_folder(dest: &Path) -> bool {
    dest.is_dir() || dest.as_os_str().as_encoded_bytes().ends_with(b"/")
}
