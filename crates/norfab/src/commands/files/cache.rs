//! `norfab files cache` and `rm-cache`: the files that were fetched to be kept.

use norfab_fabric::SystemClock;
use norfab_fabric::client::files::{CACHE_BYTES_DEFAULT, Cleared, FileCache};
use serde_json::{Value, json};

use crate::args::{Global, RmCacheArgs};
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::Site;

/// Shows the files of this client's names.
pub fn show(global: &Global) -> Result<Code, Failure> {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for (client, cache) in caches(global)? {
        for entry in cache.entries().map_err(|error| unreadable(&cache, &error))? {
            bytes += entry.bytes;
            let used = SystemClock::ctime_of(entry.used as f64);
            let url = format!("nf://{}", entry.path);
            rows.push(match global.json {
                true => json!({
                    "client": client,
                    "url": url,
                    "path": cache.folder().join(&entry.path).display().to_string(),
                    "size_bytes": entry.bytes,
                    "used": entry.used,
                }),
                false => json!({ "client": client, "url": url, "bytes": entry.bytes, "last used": used }),
            });
        }
    }
    if global.json {
        printer::json(&Value::Array(rows));
        return Ok(Code::Ok);
    }
    let files = rows.len();
    printer::table(&["client", "url", "bytes", "last used"], &rows);
    if global.quiet == 0 {
        printer::remark(&format!("{files} files, {bytes} bytes"));
    }
    Ok(Code::Ok)
}

/// Removes files of this client's names.
pub fn remove(global: &Global, words: &RmCacheArgs) -> Result<Code, Failure> {
    if let Some(url) = &words.url
        && !url.starts_with("nf://")
    {
        return Err(
            Failure::usage(format!("'{url}' is no file URL")).hint("write nf://PATH, as 'norfab files cache' shows it")
        );
    }
    let mut removed = Cleared::default();
    for (_, cache) in caches(global)? {
        let Cleared { files, bytes, in_use } = match words.to {
            Some(bytes) => cache.shrink(bytes),
            None => cache.clear(words.url.as_deref()),
        }
        .map_err(|error| unreadable(&cache, &error))?;
        removed.files += files;
        removed.bytes += bytes;
        removed.in_use += in_use;
    }
    let Cleared { files, bytes, in_use } = removed;
    if global.json {
        printer::json(&json!({ "files": files, "bytes": bytes, "in_use": in_use }));
    } else {
        let stay = if in_use > 0 { format!(", {in_use} are in use and stay") } else { String::new() };
        printer::line(&format!("{files} files removed, {bytes} bytes{stay}"));
    }
    Ok(Code::Ok)
}

fn caches(global: &Global) -> Result<Vec<(String, FileCache)>, Failure> {
    let site = Site::load(global)?;
    let mut caches = Vec::new();
    for (name, _) in site.client_folders()? {
        caches.push((name.clone(), FileCache::new(site.fetched_files(&name)?, CACHE_BYTES_DEFAULT)));
    }
    Ok(caches)
}

fn unreadable(cache: &FileCache, error: &std::io::Error) -> Failure {
    Failure::configuration(format!("the files in {} cannot be read or removed: {error}", cache.folder().display()))
}
