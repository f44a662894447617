//! Many small files: how fast a folder of them comes.

use std::fs;
use std::time::Instant;

use norfab_peer_tests::{Security, Side, Site};

use crate::figure::Plan;
use crate::files::run;

/// Small files.
const FILES: u32 = 10_000;

/// Those of them that Python fetches, which has no way to ask for many at once.
const PYTHON_FILES: u32 = 200;

/// Bytes of each.
const BYTES: usize = 1_024;

/// Files of a folder in a second, over CURVE: our `norfab files sync`, and one `fetch_file` after the other with Python's client.
pub fn rate(plan: &Plan, side: Side) -> f64 {
    let site = Site::new(Security::Curve);
    let share = site.folder().join("share");
    let folder = share.join("small");
    fs::create_dir_all(&folder).expect("a folder");
    for number in 0..FILES {
        let content: Vec<u8> = format!("{number} ").bytes().cycle().take(BYTES).collect();
        fs::write(folder.join(number.to_string()), content).expect("written");
    }
    let site = site.with_worker("files-1", serde_json::json!({"service": "filesharing", "base_dir": share}));
    let _broker = site.start_broker(side);
    let _worker = site.start_worker(side, "files-1");
    let mut client = site.start_client(side, "first");
    client.wait_for_workers(&["files-1"]);
    if side != Side::Ours {
        let began = Instant::now();
        for number in 0..PYTHON_FILES {
            let fetched = client.fetch_file(&format!("nf://small/{number}"));
            assert_eq!(fetched["status"], "200", "{fetched}");
        }
        return f64::from(PYTHON_FILES) / began.elapsed().as_secs_f64();
    }
    drop(client);
    let copy = site.folder().join("copy");
    let one = |_| {
        let began = Instant::now();
        run(&site, &["sync", "nf://small", &copy.to_string_lossy()]);
        let taken = began.elapsed();
        assert_eq!(fs::read_dir(&copy).expect("a folder").count(), FILES as usize);
        fs::remove_dir_all(&copy).expect("removed");
        f64::from(FILES) / taken.as_secs_f64()
    };
    let mut rates: Vec<f64> = (0..plan.either(3, 7)).map(one).collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
