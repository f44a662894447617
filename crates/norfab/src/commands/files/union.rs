//! What several workers have under the same names, as one list: where they differ, each variant stands there with those who have it.

use std::collections::HashMap;

use norfab_fabric::client::files::{Answered, EntryKind, SharedEntry, compare_paths};
use norfab_protocol::Identity;
use serde_json::{Map, Value, json};

/// A name, and what some workers have there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// What is there. Of times, the latest.
    pub entry: SharedEntry,
    /// Whose, in their order.
    pub workers: Vec<Identity>,
}

impl Variant {
    /// Whether one worker may have told what another one has: what neither tells does not count.
    fn is_of(&self, entry: &SharedEntry) -> bool {
        fn same<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
            one.is_none() || other.is_none() || one == other
        }
        let (mine, unknown) = (&self.entry, EntryKind::Unknown);
        (mine.kind == entry.kind || mine.kind == unknown || entry.kind == unknown)
            && same(&mine.size_bytes, &entry.size_bytes)
            && same(&mine.md5, &entry.md5)
            && same(&mine.sha256, &entry.sha256)
    }

    fn add(&mut self, worker: &Identity, entry: &SharedEntry) {
        let mine = &mut self.entry;
        if mine.kind == EntryKind::Unknown {
            mine.kind = entry.kind;
        }
        mine.size_bytes = mine.size_bytes.or(entry.size_bytes);
        if entry.modified > mine.modified {
            mine.modified = entry.modified;
        }
        mine.mode = mine.mode.or(entry.mode);
        mine.md5 = mine.md5.take().or_else(|| entry.md5.clone());
        mine.sha256 = mine.sha256.take().or_else(|| entry.sha256.clone());
        self.workers.push(worker.clone());
        self.workers.sort_unstable();
    }

    /// For programs.
    pub fn document(&self) -> Value {
        let SharedEntry { path, kind, size_bytes, modified, mode, .. } = &self.entry;
        json!({
            "path": path,
            "kind": kind_word(*kind),
            "size_bytes": size_bytes,
            "modified": modified,
            "mode": mode,
            "workers": names(&self.workers),
        })
    }
}

/// For programs. What a worker of Python NorFab does not tell is null.
pub fn kind_word(kind: EntryKind) -> Option<&'static str> {
    match kind {
        EntryKind::File => Some("file"),
        EntryKind::Directory => Some("directory"),
        EntryKind::Link => Some("link"),
        EntryKind::Missing => Some("missing"),
        EntryKind::Unknown => None,
    }
}

/// What workers tell of directories, in the order of names.
pub fn union(told: &[(Identity, &Vec<SharedEntry>)]) -> Vec<Variant> {
    let mut variants: Vec<Variant> = Vec::new();
    let mut of_path: HashMap<&str, Vec<usize>> = HashMap::new();
    // Those that tell most come first: what others do not tell is taken for the same.
    let mut told: Vec<_> = told.iter().collect();
    told.sort_by_key(|(_, entries)| entries.first().is_none_or(|entry| entry.modified.is_none()));
    for (worker, entries) in told {
        for entry in entries.iter() {
            let known = of_path.entry(&entry.path).or_default();
            match known.iter().find(|at| variants[**at].is_of(entry)) {
                Some(at) => variants[*at].add(worker, entry),
                None => {
                    known.push(variants.len());
                    variants.push(Variant { entry: entry.clone(), workers: vec![worker.clone()] });
                }
            }
        }
    }
    variants.sort_by(|one, other| compare_paths(&one.entry.path, &other.entry.path));
    variants
}

/// Names for programs.
pub fn names(workers: &[Identity]) -> Vec<&str> {
    workers.iter().map(Identity::as_str).collect()
}

/// Who answered, who did not, and with which errors: what every document of a question to several workers has.
pub fn put_asked<T>(document: &mut Value, answered: &Answered<T>) {
    let Value::Object(document) = document else { return };
    let having = answered.workers.iter().filter(|(_, said)| said.is_ok()).map(|(worker, _)| worker.as_str());
    let errors: Map<String, Value> = answered
        .workers
        .iter()
        .filter_map(|(worker, said)| Some((worker.to_string(), said.as_ref().err()?.as_str().into())))
        .collect();
    document.insert("workers".to_owned(), having.collect());
    document.insert("silent".to_owned(), answered.silent.iter().map(Identity::as_str).collect());
    document.insert("failed".to_owned(), errors.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, kind: EntryKind, size_bytes: Option<u64>, modified: Option<i64>) -> SharedEntry {
        let (mode, md5, sha256, error) = (None, None, None, None);
        SharedEntry { path: path.to_owned(), kind, size_bytes, modified, mode, md5, sha256, error }
    }

    #[test]
    fn what_is_the_same_stands_once_and_what_differs_with_its_workers() {
        let worker = |name: &str| Identity::parse(name).expect("a name");
        use EntryKind::{Directory, File, Unknown};
        let python =
            vec![entry("a", Unknown, None, None), entry("d", Unknown, None, None), entry("only", Unknown, None, None)];
        let one = vec![entry("a", File, Some(1), Some(5)), entry("d", Directory, None, Some(1))];
        let two = vec![entry("a", File, Some(1), Some(7)), entry("d", File, Some(2), Some(1))];
        let told = [(worker("p"), &python), (worker("w1"), &one), (worker("w2"), &two)];
        let shown: Vec<_> = union(&told)
            .iter()
            .map(|variant| {
                let entry = &variant.entry;
                format!("{} {:?} {:?} {}", entry.path, entry.kind, entry.modified, names(&variant.workers).join(","))
            })
            .collect();
        assert_eq!(
            shown,
            ["a File Some(7) p,w1,w2", "d Directory Some(1) p,w1", "d File Some(1) w2", "only Unknown None p"]
        );
    }
}
