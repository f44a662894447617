//! Turns and room for them, without files.

use std::sync::mpsc;

use norfab_service::testing::TestClock;
use serde_json::json;

use super::*;
use crate::hidden::Hidden;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn settings() -> UploadSettings {
    let uploads = json!({ "folder": "in", "max_total_bytes": 100 });
    UploadSettings::read(uploads.as_object().expect("an object"), &Hidden::default()).expect("settings")
}

fn place(name: &str) -> Place {
    Place::of(&format!("nf://in/{name}"), &settings(), &Hidden::default()).expect("a place")
}

fn uploader(client: &str, transfer: &str) -> Uploader {
    let subject = Subject { size: 10, modified: 0 };
    Uploader { client: Identity::parse(client).expect("a name"), transfer: transfer.to_owned(), subject }
}

fn turn(board: &Arc<Board>, name: &str) -> Turn {
    board.turn(&place(name), &uploader(name, name), &TestClock).expect("a turn")
}

fn full() -> Result<Counted, Errno> {
    Ok(Counted { census: Census { bytes: 95, entries: 1 }, ..Counted::default() })
}

#[tokio::test]
async fn a_count_that_takes_long_keeps_nobody_from_what_needs_none_and_is_made_once_for_all() {
    let board = Arc::new(Board::of_jobs(100));
    let (begun, begins) = mpsc::sync_channel(1);
    let (goes_on, ended) = mpsc::sync_channel::<()>(1);
    let ended = Mutex::new(ended);
    let counts = AtomicUsize::new(0);
    let count = |_: &dyn Fn(Key) -> bool| {
        counts.fetch_add(1, Ordering::SeqCst);
        begun.send(()).expect("awaited");
        ended.lock().expect("no panic").recv_timeout(PATIENCE).expect("told to go on");
        full()
    };
    let other = turn(&board, "other");
    let refused = |number: usize| {
        let turn = turn(&board, &format!("f{number}"));
        let need = Need { size: 10, adds: 1, count: &count, is_ended: &|| false };
        let reserved = turn.reserve(&settings(), &need, &TestClock);
        matches!(reserved, Err(UploadRefusal::NoRoom { left: 5, .. }))
    };
    let refused = &refused;
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..8).map(|number| scope.spawn(move || refused(number))).collect();
        begins.recv_timeout(PATIENCE).expect("somebody counts");
        // Meanwhile.
        other.goes_on(&TestClock);
        drop(turn(&board, "another"));
        goes_on.send(()).expect("awaited");
        for waiting in waiting {
            assert!(waiting.join().expect("no panic"));
        }
        assert!(refused(9), "it is believed");
    });
    assert_eq!(counts.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_count_that_fails_is_made_again_by_the_next_one_and_one_that_nobody_wants_is_not_waited_for() {
    let board = Arc::new(Board::of_jobs(100));
    let turn = turn(&board, "f");
    let need = |count| Need { size: 10, adds: 1, count, is_ended: &|| true };
    let failed = turn.reserve(&settings(), &need(&|_| Err(Errno::IO)), &TestClock);
    assert!(matches!(failed, Err(UploadRefusal::Unwritable { errno: Errno::IO, .. })));
    assert!(board.lock().room.begins_to_count([].into_iter(), TestClock.now()));
    let uncounted = turn.reserve(&settings(), &need(&|_| full()), &TestClock);
    assert!(matches!(uncounted, Err(UploadRefusal::Uncounted { .. })));
    board.lock().room.ends_to_count(None, TestClock.now());
    turn.reserve(&settings(), &need(&|_| Ok(Counted::default())), &TestClock).expect("there is room");
}

#[tokio::test]
async fn uploads_leave_places_for_other_jobs_and_no_client_takes_all_of_them() {
    for (jobs, uploads) in [(1, 1), (2, 1), (4, 1), (5, 2), (6, 2), (7, 3), (33, 16), (512, 16)] {
        assert_eq!(uploads_at_once(jobs), uploads);
    }
    let board = Arc::new(Board::of_jobs(9));
    let of = |name: &str, client: &str| board.turn(&place(name), &uploader(client, name), &TestClock);
    let first = of("1", "a").expect("a turn");
    let _second = of("2", "a").expect("a turn");
    assert!(matches!(of("3", "a"), Err(UploadRefusal::TooManyOfClient { max: 2, .. })));
    let (_third, _fourth) = (of("3", "b").expect("a turn"), of("4", "b").expect("a turn"));
    assert!(matches!(of("5", "c"), Err(UploadRefusal::TooMany { max: 4 })));
    // Those that wait for an attempt before them take places, too.
    let waits: Vec<_> = (0..4).map(|_| board.wait().expect("a place")).collect();
    assert!(matches!(of("1", "a"), Err(UploadRefusal::TooMany { max: 4 })));
    drop(waits);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| of("1", "a").is_ok());
        while !first.stop.is_cancelled() {
            std::thread::yield_now();
        }
        drop(first);
        assert!(next.join().expect("no panic"));
    });
}

#[tokio::test(start_paused = true)]
async fn whoever_was_driven_out_does_not_drive_out_in_turn() {
    let board = Arc::new(Board::of_jobs(100));
    let of = |client: &str, transfer: &str| board.turn(&place("f"), &uploader(client, transfer), &TestClock);
    let drives_out = |old: Turn, client: &str, transfer: &str| {
        std::thread::scope(|scope| {
            let runtime = tokio::runtime::Handle::current();
            let next = scope.spawn(move || {
                let _guard = runtime.enter();
                of(client, transfer).expect("a turn")
            });
            while !old.stop.is_cancelled() {
                std::thread::yield_now();
            }
            drop(old);
            next.join().expect("no panic")
        })
    };
    let first = of("a", "a1").expect("a turn");
    tokio::time::advance(SILENT_MAX - Duration::from_millis(1)).await;
    assert!(matches!(of("b", "b1"), Err(UploadRefusal::Busy { .. })), "it says every 5 s that it lives");
    tokio::time::advance(Duration::from_millis(1)).await;
    let second = drives_out(first, "b", "b1");
    tokio::time::advance(2 * SILENT_MAX).await;
    assert!(matches!(of("a", "a1"), Err(UploadRefusal::Busy { .. })));
    // The same holds for what follows it.
    let again = drives_out(second, "b", "b1");
    tokio::time::advance(2 * SILENT_MAX).await;
    assert!(matches!(of("a", "a1"), Err(UploadRefusal::Busy { .. })));
    let third = drives_out(again, "c", "c1");
    tokio::time::advance(2 * SILENT_MAX).await;
    assert!(matches!(of("a", "a1"), Err(UploadRefusal::Busy { .. })));
    assert!(matches!(of("b", "b1"), Err(UploadRefusal::Busy { .. })));
    drop(third);
    of("a", "a1").expect("nobody is there any more");
}

#[tokio::test]
async fn what_uploads_that_began_earlier_still_lack_is_not_free() {
    let board = Arc::new(Board::of_jobs(100));
    let (first, second, third) = (turn(&board, "1"), turn(&board, "2"), turn(&board, "3"));
    for (number, turn) in [&first, &second, &third].into_iter().enumerate() {
        turn.takes_up((1, number as u64), 0);
        let need = Need { size: 20, adds: 1, count: &|_| Ok(Counted::default()), is_ended: &|| false };
        turn.reserve(&settings(), &need, &TestClock).expect("there is room");
    }
    first.has(5);
    assert_eq!([first.others_lack(), second.others_lack(), third.others_lack()], [0, 15, 35]);
}
