//! Uploads that are not allowed, do not fit, or lead elsewhere.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::Ordering;

use norfab_fabric::client::Upload;
use norfab_protocol::Identity;
use serde_json::json;

use crate::lab::{Lab, PATIENCE, content, eventually, runtime};
use crate::upload::{allowed, job, send, upload};

#[test]
fn a_worker_that_allows_none_says_how_to_allow_them_and_one_that_does_is_found() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        fs::write(lab.path("f"), "content").expect("written");
        lab.worker("w1").await;
        let client = lab.client("c").await;
        let error = send(&client, &lab, "f", "nf://incoming/f").await.expect_err("refused").to_string();
        assert_eq!(
            error,
            "nobody takes 'nf://incoming/f': worker w1 takes no uploads: to allow them, write the folder for them into its inventory, as \
             in 'uploads: {folder: incoming}'"
        );
        let second = lab.worker_with("w2", allowed()).await;
        // The one that would take it says nothing for a while.
        second.is_dead.store(true, Ordering::SeqCst);
        let error = send(&client, &lab, "f", "nf://incoming/f").await.expect_err("refused").to_string();
        assert!(error.ends_with("'uploads: {folder: incoming}'; worker w2 has not answered"), "{error}");
        second.is_dead.store(false, Ordering::SeqCst);
        let uploaded = send(&client, &lab, "f", "nf://incoming/f").await.expect("it is sent");
        assert_eq!(uploaded.worker.as_str(), "w2");
        lab.worker_with("w3", allowed()).await;
        let error = send(&client, &lab, "f", "nf://incoming/g").await.expect_err("refused").to_string();
        assert_eq!(error, "the workers w2, w3 take 'nf://incoming/g': name one of them");
        let worker = Identity::parse("w3").ok();
        let upload = Upload { worker, ..upload(&lab, "f", "nf://incoming/g") };
        let uploaded = client.send_file(&upload, |_, _| {}).await.expect("it is sent");
        assert_eq!(uploaded.worker.as_str(), "w3");
        client.stop().await;
    });
}

#[test]
fn hostile_urls_are_refused_and_nothing_is_written() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        fs::write(lab.path("f"), "content").expect("written");
        lab.share("w1", "incoming/a", b"a");
        lab.share("w1", "other/a", b"a");
        let mut inventory = allowed();
        inventory["dotfiles"] = json!([".listed", ".*.part"]);
        lab.worker_with("w1", inventory).await;
        let client = lab.client("c").await;
        let long = format!("nf://incoming/{}", "n".repeat(256));
        let endless = format!("nf://incoming/{}", "n/".repeat(3000));
        let deep = format!("nf://incoming/{}f", "d/".repeat(17));
        let urls = [
            "nf://",
            "nf:///",
            "nf://f",
            "nf://incoming",
            "nf://incoming/",
            "nf://incoming/d/",
            "nf://incoming\\",
            "nf://../f",
            "nf://incoming/../f",
            "nf://incoming/../../f",
            "nf://incoming/../incoming/f",
            "nf://incoming/d/../f",
            "nf://incoming/..",
            "nf://incoming/d/..",
            "nf://incoming\\..\\f",
            "nf://other/../incoming/f",
            "nf://other/f",
            "nf:///etc/passwd",
            "nf:////etc/passwd",
            "nf:///var/f",
            "nf://INCOMING/f",
            "nf://incomingx/f",
            "nf://incoming /f",
            "nf://incoming/f\0",
            "nf://incoming/\0/f",
            "nf://incoming/f\n",
            "nf://incoming/\u{1b}[2J",
            "nf://incoming/\u{7f}",
            "nf://incoming/.hidden",
            "nf://incoming/.env",
            "nf://incoming/.ENV.local",
            "nf://incoming/.git/config",
            "nf://incoming/d/.git/hooks/post-checkout",
            "nf://incoming/.GIT/config",
            "nf://incoming/__norfab__/x",
            "nf://incoming/__NorFab__",
            "nf://incoming/broker.key_secret",
            "nf://incoming/x.KEY_SECRET",
            "nf://incoming/.ssh/authorized_keys",
            "nf://incoming/.a.part",
            "nf://incoming/.f.part",
            "nf://incoming/.f.1.part",
            "nf://incoming/.part",
            "nf://incoming/C:/f",
            "nf://incoming/c:",
            "nf://C:/f",
            "nf://incoming/C:evil",
            "nf://incoming/GIT~1/hooks/f",
            "nf://incoming/com\u{b9}.log",
            "nf://incoming/CONIN$",
            "nf://incoming/con",
            "nf://incoming/NUL",
            "nf://incoming/aux.txt",
            "nf://incoming/com1.log",
            "nf://incoming/LPT9",
            "nf://incoming/prn /f",
            "nf://incoming/f.",
            "nf://incoming/f ",
            "nf://incoming/.../f",
            "nf://incoming/d./f",
            "nf://incoming/a/f",
            &long,
            &endless,
            &deep,
        ];
        for url in urls {
            let sent = send(&client, &lab, "f", url).await;
            let error = sent.map(|_| url.to_owned()).expect_err(url).to_string();
            assert!(!error.contains("broke off") && !error.contains("within"), "{url:?}: {error}");
        }
        assert_eq!(
            (lab.names("w1"), lab.names("w1/incoming")),
            (vec!["incoming".to_owned(), "other".to_owned()], vec!["a".to_owned()])
        );
        assert_eq!(lab.names("w1/other"), ["a"]);
        // These are not hostile.
        for url in [
            "nf:///incoming/f1",
            "nf://incoming\\d\\f2",
            "nf://incoming/./f3",
            "nf://incoming/.listed",
            "nf://incoming/12:30:05.cfg",
        ] {
            send(&client, &lab, "f", url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        }
        assert_eq!(lab.names("w1/incoming"), [".listed", "12:30:05.cfg", "a", "d", "f1", "f3"]);
        client.stop().await;
    });
}

#[test]
fn links_pipes_and_folders_in_the_way_lead_nowhere() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        fs::write(lab.path("f"), "content").expect("written");
        lab.share("w1", "incoming/d/a", b"a");
        fs::create_dir(lab.path("outside")).expect("made");
        fs::write(lab.path("outside/secret"), "secret").expect("written");
        let incoming = lab.path("w1/incoming");
        symlink(lab.path("outside"), incoming.join("out")).expect("linked");
        symlink("d", incoming.join("in")).expect("linked");
        symlink(lab.path("outside/secret"), incoming.join("to_file")).expect("linked");
        symlink(lab.path("outside/new"), incoming.join("to_nothing")).expect("linked");
        symlink(lab.path("outside/secret"), incoming.join(".x.part")).expect("linked");
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, incoming.join("pipe"), fifo, rustix::fs::Mode::RUSR, 0).expect("a pipe");
        let mut inventory = allowed();
        inventory["uploads"]["overwrite"] = json!(true);
        lab.worker_with("w1", inventory).await;
        let client = lab.client("c").await;
        for (name, expected) in [
            ("out/f", "on the way to it is a file or a link"),
            ("in/f", "on the way to it is a file or a link"),
            ("to_file/f", "on the way to it is a file or a link"),
            ("to_file", "is there and no regular file"),
            ("to_nothing", "is there and no regular file"),
            ("pipe", "is there and no regular file"),
            ("d", "is there and no regular file"),
        ] {
            let upload = Upload { overwrite: true, ..upload(&lab, "f", &format!("nf://incoming/{name}")) };
            let error = client.send_file(&upload, |_, _| {}).await.expect_err(name).to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
        send(&client, &lab, "f", "nf://incoming/x").await.expect("a link in place of its part is left alone");
        assert_eq!(lab.names("outside"), ["secret"]);
        assert_eq!(fs::read(lab.path("outside/secret")).expect("read"), b"secret");
        assert_eq!(lab.names("w1/incoming/d"), ["a"]);
        client.stop().await;
    });
}

#[test]
fn an_upload_folder_that_is_a_link_takes_nothing() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        fs::write(lab.path("f"), "content").expect("written");
        fs::create_dir(lab.path("outside")).expect("made");
        lab.worker_with("w1", allowed()).await;
        symlink(lab.path("outside"), lab.path("w1/incoming")).expect("linked");
        let client = lab.client("c").await;
        let error = send(&client, &lab, "f", "nf://incoming/f").await.expect_err("refused").to_string();
        assert!(error.contains("'incoming' on the way to it is a file or a link"), "{error}");
        assert!(lab.names("outside").is_empty());
        client.stop().await;
    });
}

#[test]
fn a_folder_that_becomes_a_link_while_a_file_comes_is_noticed_and_nothing_goes_there() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        fs::write(lab.path("f"), content(20_000_000)).expect("written");
        fs::create_dir(lab.path("outside")).expect("made");
        lab.worker_with("w1", allowed()).await;
        let (client, way) = lab.client_over("c").await;
        let (sender, upload) = (client.clone(), upload(&lab, "f", "nf://incoming/d/f"));
        let sending = tokio::spawn(async move { sender.send_file(&upload, |_, _| {}).await });
        eventually("it is under way", async || way.streams.load(Ordering::SeqCst) > 5).await;
        fs::rename(lab.path("w1/incoming/d"), lab.path("moved")).expect("moved");
        symlink(lab.path("outside"), lab.path("w1/incoming/d")).expect("linked");
        // The folder that was open is not the one that the URL names any more; the next attempt meets the link.
        let error = sending.await.expect("no panic").expect_err("refused").to_string();
        assert!(error.contains("on the way to it is a file or a link"), "{error}");
        assert!(lab.names("outside").is_empty());
        assert_eq!(lab.names("moved"), [".f.part"]);
        client.stop().await;
    });
}

#[test]
fn swapping_folders_and_links_never_leads_out_of_the_upload_folder() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        fs::write(lab.path("f"), "content").expect("written");
        fs::create_dir(lab.path("outside")).expect("made");
        lab.worker_with("w1", allowed()).await;
        fs::create_dir_all(lab.path("w1/incoming/d")).expect("made");
        let (d, away, outside) = (lab.path("w1/incoming/d"), lab.path("w1/incoming/away"), lab.path("outside"));
        let ends = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_over = std::sync::Arc::clone(&ends);
        let swapping = std::thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                fs::rename(&d, &away).expect("moved");
                symlink(&outside, &d).expect("linked");
                fs::remove_file(&d).expect("removed");
                fs::rename(&away, &d).expect("moved back");
            }
        });
        let client = lab.client("c").await;
        let mut arrived = 0;
        for number in 0..150 {
            let upload = Upload { timeout: PATIENCE, ..upload(&lab, "f", &format!("nf://incoming/d/{number}")) };
            let sent = tokio::time::timeout(PATIENCE, client.send_file(&upload, |_, _| {})).await.expect("in time");
            arrived += usize::from(sent.is_ok());
        }
        ends.store(true, Ordering::SeqCst);
        // A folder that was made in its place while it was away may keep it from coming back.
        swapping.join().ok();
        assert!(arrived > 0);
        assert!(lab.names("outside").is_empty(), "{:?}", lab.names("outside"));
        client.stop().await;
    });
}

#[test]
fn quotas_count_what_is_there_what_is_not_whole_and_what_is_under_way() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        for (name, bytes) in [("f5", 5), ("f40", 40), ("f60", 60), ("f101", 101)] {
            fs::write(lab.path(name), vec![b'x'; bytes]).expect("written");
        }
        lab.share("w1", "incoming/.old.part", &[0; 30]);
        let uploads = json!({ "folder": "incoming", "max_file_bytes": 100, "max_total_bytes": 100, "max_files": 4 });
        lab.worker_with("w1", json!({ "uploads": uploads })).await;
        let client = lab.client("c").await;
        let refused = async |from: &str, to: &str| {
            let error = send(&client, &lab, from, &format!("nf://incoming/{to}")).await.expect_err("refused");
            error.to_string()
        };
        let error = refused("f101", "a").await;
        assert!(error.contains("'nf://incoming/a' has 101 bytes, and 100 are the most"), "{error}");
        send(&client, &lab, "f40", "nf://incoming/a").await.expect("70 of 100");
        let error = refused("f60", "b").await;
        assert!(error.contains("has 60 bytes, and nf://incoming/ has room for 30 of 100"), "{error}");
        fs::remove_file(lab.path("w1/incoming/a")).expect("removed");
        let frees = async || send(&client, &lab, "f60", "nf://incoming/b").await.is_ok();
        eventually("a second later there is room again", frees).await;
        // A part does not count twice when it is gone on with.
        send(&client, &lab, "f40", "nf://incoming/old").await.expect("100 of 100");
        let error = refused("f5", "c").await;
        assert!(error.contains("room for 0 of 100"), "{error}");
        assert_eq!(send(&client, &lab, "f60", "nf://incoming/b").await.expect("it is there").had, 60);
        fs::remove_file(lab.path("w1/incoming/b")).expect("removed");
        let frees = async || send(&client, &lab, "f5", "nf://incoming/d/e").await.is_ok();
        eventually("a folder and a file in it", frees).await;
        send(&client, &lab, "f5", "nf://incoming/g").await.expect("the fourth");
        let error = refused("f5", "h").await;
        assert!(error.contains("needs 1 files and folders, and nf://incoming/ holds 4 of 4"), "{error}");
        assert_eq!(lab.names("w1/incoming"), ["d", "g", "old"]);
        client.stop().await;
    });
}

#[test]
fn folders_count_before_they_are_made_and_are_removed_where_no_file_comes_into_them() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        fs::write(lab.path("f"), "content").expect("written");
        let uploads = json!({ "folder": "incoming", "max_files": 4, "max_file_bytes": 100, "max_total_bytes": 120 });
        lab.worker_with("w1", json!({ "uploads": uploads })).await;
        let client = lab.client("c").await;
        for number in 0..5 {
            let url = format!("nf://incoming/x{number}/a/b/c/f");
            let error = send(&client, &lab, "f", &url).await.expect_err("five are too many").to_string();
            assert!(error.contains("needs 5 files and folders, and nf://incoming/ holds 0 of 4"), "{error}");
        }
        assert!(lab.names("w1/incoming").is_empty(), "{:?}", lab.names("w1/incoming"));
        // It is broken off: nothing of it came.
        let kwargs = json!({ "url": "nf://incoming/y/a/f", "size": 7 });
        let mut job = client.submit(job("filesharing", "take_file", "w1", kwargs)).await.expect("taken");
        eventually("its folders are made", async || lab.path("w1/incoming/y/a").exists()).await;
        job.cancel("c", None).await.expect("sent");
        while job.next().await.is_some() {}
        eventually("they are gone", async || lab.names("w1/incoming").is_empty()).await;
        send(&client, &lab, "f", "nf://incoming/x/a/b/f").await.expect("four");
        let error = send(&client, &lab, "f", "nf://incoming/x/a/b/g").await.expect_err("the fifth").to_string();
        assert!(error.contains("holds 4 of 4"), "{error}");
        client.stop().await;
    });
}
