//! `norfab files tree`: a directory with all that is in it.

use norfab_fabric::client::files::EntryKind;
use serde_json::{Value, json};

use super::ls::{name, whose};
use super::union::{Variant, put_asked, union};
use super::{asking, checked, warn_of_others, with_something};
use crate::args::{Global, TreeArgs};
use crate::commands::Connected;
use crate::exit::{Code, Failure};
use crate::printer::{self, printable};

pub async fn run(global: &Global, words: TreeArgs) -> Result<Code, Failure> {
    let url = checked(&words.url)?;
    let levels = words.depth.map_or(usize::MAX, |depth| depth as usize);
    let asking = asking(&words.asked)?;
    let connected = Connected::to_ask(global).await?;
    // Workers of Python NorFab tell what is a directory only where they tell of more than one level.
    let answered = connected.client.list_shared(url, levels, false, &asking).await;
    connected.client.stop().await;
    let answered = answered.map_err(Failure::failed)?;
    let having = with_something(&answered, &words.asked, url)?;
    let variants = union(&having);
    if global.json {
        let mut document = json!({ "url": url });
        document["entries"] = variants.iter().map(Variant::document).collect::<Vec<Value>>().into();
        put_asked(&mut document, &answered);
        printer::json(&document);
        return Ok(Code::Ok);
    }
    warn_of_others(global, &answered);
    let workers = having.len();
    let count = |kind: EntryKind| variants.iter().filter(|variant| variant.entry.kind == kind).count();
    let directories = count(EntryKind::Directory);
    let files = variants.len() - directories;
    let drawn = variants
        .iter()
        .zip(branches(&variants))
        .map(|(variant, branch)| format!("{branch}{}{}", name(&variant.entry), whose(variant, workers)));
    let sum = format!("{}, {}", counted(directories, "directory", "directories"), counted(files, "file", "files"));
    let head = printable(url).into_owned();
    printer::lines(std::iter::once(head).chain(drawn).chain([String::new(), sum]));
    Ok(Code::Ok)
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// What stands before each name: lines from the directories above to those that come below.
fn branches(variants: &[Variant]) -> Vec<String> {
    let depth = |variant: &Variant| variant.entry.path.matches('/').count();
    // Whether another one of the same directory follows, from the end.
    let mut follows: Vec<bool> = Vec::new();
    let mut lasts: Vec<bool> = variants
        .iter()
        .rev()
        .map(|variant| {
            let depth = depth(variant);
            follows.resize(depth + 1, false);
            !std::mem::replace(&mut follows[depth], true)
        })
        .collect();
    lasts.reverse();
    let mut above: Vec<bool> = Vec::new();
    variants
        .iter()
        .zip(lasts)
        .map(|(variant, last)| {
            let depth = depth(variant);
            above.resize(depth, true);
            let mut branch: String = above.iter().map(|last| if *last { "    " } else { "│   " }).collect();
            branch.push_str(if last { "└── " } else { "├── " });
            above.push(last);
            branch
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use norfab_fabric::client::files::SharedEntry;
    use norfab_protocol::Identity;

    use super::*;

    #[test]
    fn lines_lead_from_a_directory_to_what_is_in_it() {
        let variant = |path: &str| {
            let (size_bytes, modified, mode, md5, sha256, error) = (None, None, None, None, None, None);
            let kind = EntryKind::File;
            let entry = SharedEntry { path: path.to_owned(), kind, size_bytes, modified, mode, md5, sha256, error };
            Variant { entry, workers: vec![Identity::parse("w").expect("a name")] }
        };
        let variants = ["a", "a/1", "a/1/x", "a/2", "b", "b/y"].map(variant);
        let drawn: Vec<_> = branches(&variants)
            .into_iter()
            .zip(&variants)
            .map(|(branch, variant)| format!("{branch}{}", name(&variant.entry)))
            .collect();
        assert_eq!(drawn, ["├── a", "│   ├── 1", "│   │   └── x", "│   └── 2", "└── b", "    └── y"]);
    }
}
