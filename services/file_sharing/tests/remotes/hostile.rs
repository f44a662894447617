//! Repositories that somebody made to do harm.

use std::fs;

use serde_json::{Value, json};

use crate::lab::{Lab, git};

/// Every file below the folder of the lab but those of repositories.
fn files(lab: &Lab) -> Vec<String> {
    fn look(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("read").flatten() {
            let path = entry.path();
            if entry.file_type().expect("a type").is_dir() {
                look(&path, found);
            } else {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    let mut found = Vec::new();
    look(&lab.base(), &mut found);
    let base = format!("{}/", lab.base().display());
    let mut found: Vec<String> = found.into_iter().map(|path| path.replace(&base, "")).collect();
    found.sort();
    found
}

fn blob(lab: &Lab) -> String {
    lab.origin.hash_object("blob", b"evil")
}

async fn cloned(lab: &Lab) -> Value {
    lab.with_url("origin.git").run("git_clone", json!({"name": "r"})).await
}

#[tokio::test]
async fn names_that_lead_out_of_the_mount_or_harm_other_systems_are_left_out_and_counted() {
    let lab = Lab::new();
    let blob = blob(&lab);
    let inner = lab.origin.make_tree(&format!("100644 blob {blob}\tpwned"));
    let names = [
        "..",
        ".",
        ".git",
        ".GIT",
        "git~1",
        "a/../../b",
        "/etc/x",
        "..\\..\\x",
        "c:\\x",
        "con",
        "aux.txt",
        "x:y",
        "end.",
        "__norfab__",
        ".g\u{200c}it",
    ];
    let mut entries: Vec<String> = names.iter().map(|name| format!("100644 blob {blob}\t{name}")).collect();
    entries.extend(names.iter().map(|name| format!("40000 tree {inner}\t{name}")));
    entries.push(format!("100644 blob {blob}\tgood"));
    lab.origin.push_tree("main", &entries.join("\n"));
    let result = cloned(&lab).await;
    assert_eq!(result["result"]["status"], json!("cloned"), "{result}");
    let message = "30 files and folders are left out: their names are not safe on every system";
    assert_eq!(result["messages"], json!([message]));
    assert_eq!(files(&lab), ["r/__norfab__", "r/good"]);
    assert!(lab.read("r/__norfab__").contains("\"remote\":\"r\""), "the label is ours");
}

#[tokio::test]
async fn a_name_that_comes_twice_writes_nothing_through_the_first() {
    let lab = Lab::new();
    let blob = blob(&lab);
    let target = lab.origin.hash_object("blob", b"/etc");
    let inner = lab.origin.make_tree(&format!("100644 blob {blob}\tpwned"));
    let entries = format!(
        "120000 blob {target}\tx\n40000 tree {inner}\tx\n40000 tree {inner}\tx\n100644 blob {blob}\tx\n100644 blob {blob}\tx"
    );
    lab.origin.push_tree("main", &entries);
    let result = cloned(&lab).await;
    assert_eq!(result["result"]["status"], json!("cloned"), "{result}");
    assert!(fs::symlink_metadata(lab.base().join("r/x")).expect("there").is_file());
    assert!(!std::path::Path::new("/etc/pwned").exists());
}

#[tokio::test]
async fn submodules_are_left_out_and_counted() {
    let lab = Lab::new();
    let commit = git(&lab.origin.bare, &["rev-parse", "main"]);
    lab.origin.push_tree("main", &format!("160000 commit {commit}\tsub\n100644 blob {}\tf", blob(&lab)));
    let result = cloned(&lab).await;
    assert_eq!(result["messages"], json!(["1 submodules are left out: make remotes of them"]));
    assert_eq!(files(&lab), ["r/__norfab__", "r/f"]);
}

/// What becomes of a tree that is too large: nothing.
async fn too_large(lab: &Lab, tree: &str, bound: &str) {
    let commit = git(&lab.origin.bare, &["commit-tree", tree, "-m", "made"]);
    git(&lab.origin.bare, &["update-ref", "refs/heads/main", &commit]);
    let result = cloned(lab).await;
    let error = format!("Git remote 'r' synchronization failed: the repository is too large: more than {bound}");
    assert_eq!(result["errors"], json!([error]));
    assert_eq!(files(lab), Vec::<String>::new());
    assert!(!lab.has("__norfab__"));
}

#[tokio::test]
async fn folders_that_are_too_deep_are_refused_and_nothing_stays() {
    let lab = Lab::new();
    let mut deep = lab.origin.make_tree(&format!("100644 blob {}\tf", blob(&lab)));
    for _ in 0..80 {
        deep = lab.origin.make_tree(&format!("40000 tree {deep}\td"));
    }
    too_large(&lab, &deep, "64 folders in one another").await;
}

#[tokio::test]
async fn more_folders_than_a_commit_may_have_are_refused_and_nothing_stays() {
    let lab = Lab::new();
    let empty = lab.origin.make_tree("");
    // Five hundred thousand and a few: those of a tree are counted before they are made.
    let middle: Vec<String> = (0..499_999).map(|number| format!("40000 tree {empty}\t{number:06}")).collect();
    let middle = lab.origin.make_tree(&middle.join("\n"));
    let outer = lab.origin.make_tree(&format!("40000 tree {middle}\ta\n40000 tree {empty}\tb"));
    too_large(&lab, &outer, "500000 files and folders").await;
}

#[tokio::test]
async fn objects_that_are_missing_or_of_the_wrong_kind_are_an_error() {
    let lab = Lab::new();
    let blob = blob(&lab);
    lab.origin.push_tree("main", &format!("100644 blob {}\tf", "1".repeat(40)));
    let error = cloned(&lab).await["errors"][0].as_str().expect("an error").to_owned();
    assert!(error.ends_with(&format!("the object {} is missing", "1".repeat(40))), "{error}");
    lab.origin.push_tree("main", &format!("40000 tree {blob}\tf"));
    let error = cloned(&lab).await["errors"][0].as_str().expect("an error").to_owned();
    assert!(error.ends_with(&format!("{blob} is no tree")), "{error}");
    fs::write(lab.origin.bare.join("refs/heads/main"), format!("{blob}\n")).expect("written");
    let error = cloned(&lab).await["errors"][0].as_str().expect("an error").to_owned();
    assert!(error.ends_with("stands for no folder"), "{error}");
    assert!(!lab.has("r"));
}

/// What somebody may ask for of a remote that has a good file, and hidden ones; and links beside its files, which no commit can bring.
const URLS: [&str; 36] = [
    "",
    "git://",
    "git:///",
    "git://r",
    "git://r/",
    "git:///r/cfg/one.txt",
    "GIT://r/cfg/one.txt",
    "git:/r/cfg/one.txt",
    " git://r/cfg/one.txt",
    "http://r/cfg/one.txt",
    "nf://r/cfg/one.txt",
    "git://./r/cfg/one.txt",
    "git://../r/cfg/one.txt",
    "git://R/cfg/one.txt",
    "git://r:80/cfg/one.txt",
    "git://user:word@r/cfg/one.txt",
    "git://r\\cfg\\one.txt",
    "git://r/../secret.txt",
    "git://r/..\\secret.txt",
    "git://r/cfg/../../../secret.txt",
    "git://r/cfg/../cfg/one.txt",
    "git://r/%2e%2e/secret.txt",
    "git://r/\u{ff0e}\u{ff0e}/secret.txt",
    "git://r//etc/passwd",
    "git://r/C:\\x",
    "git://r/cfg",
    "git://r/cfg/one.txt/x",
    "git://r/cfg/one.txt\0.png",
    "git://r/\0",
    "git://r/.git/config",
    "git://r/__norfab__",
    "git://r/.env",
    "git://r/x.key_secret",
    "git://r/out/secret.txt",
    "git://r/link",
    "git://r/proc/etc/passwd",
];

#[tokio::test]
async fn git_urls_lead_to_files_of_their_remote_only() {
    let lab = Lab::new();
    for hidden in [".env", "x.key_secret"] {
        lab.origin.write(hidden, "secret");
    }
    lab.origin.push("main");
    fs::write(lab.base().join("../secret.txt"), "secret").expect("written");
    let worker = lab.with_url("origin.git");
    assert_eq!(
        worker.run("resolve_git_url", json!({"url": "git://r/cfg/one.txt"})).await["result"],
        "nf://r/cfg/one.txt"
    );
    for (name, target) in [("out", "../.."), ("link", "../../secret.txt"), ("proc", "/proc/self/root")] {
        std::os::unix::fs::symlink(target, lab.base().join("r").join(name)).expect("linked");
    }
    for url in URLS {
        let one = worker.run("resolve_git_url", json!({"url": url})).await;
        assert_eq!((&one["failed"], &one["result"]), (&json!(true), &Value::Null), "{url:?}: {one}");
        let error = one["errors"][0].as_str().expect("an error");
        assert!(error.contains(url) || error.ends_with("is not configured"), "{url:?}: {error}");
        let many = worker.run("resolve_git_url", json!({"url": [url]})).await;
        assert_eq!(
            (&many["result"][url]["result"], &many["errors"][0]),
            (&Value::Null, &json!(error)),
            "{url:?}: {many}"
        );
    }
}
