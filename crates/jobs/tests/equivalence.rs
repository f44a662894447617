//! A file decides as the memory does, whatever of it is noted beside the file, in the file, or read back after a restart.

mod samples;

use std::fmt::Debug;
use std::path::Path;

use norfab_jobs::*;
use samples::*;

/// Jobs that the operations are about: few, so that they meet, and enough for new ones after a crash.
const JOBS: usize = 25;

/// Lists of operations that are tried.
const SEEDS: u64 = 60;

/// Numbers that look like chance: each seed gives the same list every time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        // The generator of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn of<Item: Copy>(&mut self, items: &[Item]) -> Item {
        items[self.below(items.len())]
    }
}

fn worker_operation(chance: &mut Chance) -> WorkerOperation {
    let number = chance.below(JOBS);
    match chance.below(10) {
        0..=2 => worker_insert(number),
        3..=5 => {
            let states =
                [WorkerState::Pending, WorkerState::Started, WorkerState::Started, WorkerState::WaitingClientInput];
            state(number, chance.of(&states), chance.of(&[1.0, 2.0, f64::NAN]))
        }
        6 => finish(number, chance.of(&[WorkerState::Completed, WorkerState::Pending]), &large(chance.below(3000))),
        7 if chance.below(3) == 0 => WorkerOperation::Answered { id: id(number) },
        7 if chance.below(2) == 0 => WorkerOperation::StartedAnew { id: id(number), at: NOW },
        7 => state(number, WorkerState::Cancelled, 3.0),
        _ => worker_event(number, chance.of(&["a", "b"])),
    }
}

fn client_operation(chance: &mut Chance) -> ClientOperation {
    let number = chance.below(JOBS);
    match chance.below(10) {
        0..=2 => client_insert(number),
        3..=5 => progress(number, chance.of(&[ClientState::Submitting, ClientState::Dispatched, ClientState::Started])),
        6 => progress(number, chance.of(&[ClientState::Completed, ClientState::Failed])),
        7 | 8 => result(number, chance.of(&["worker-1", "worker-2"]), &large(chance.below(3000))),
        _ => client_event(number, chance.of(&["a", "b"])),
    }
}

/// A result that goes into the file in three parts or four.
fn large_result(chance: &mut Chance) -> Vec<u8> {
    large(LARGE_BYTES + 1 + chance.below(LARGE_BYTES))
}

/// Gives both stores the same lists, and the file now and then a moment of rest, a restart or a crash, also between the parts of a
/// large result.
fn compare<Memory, File, Details: PartialEq + Debug>(
    memory: impl Fn() -> Memory,
    file: impl Fn(&Path) -> File,
    operation: impl Fn(&mut Chance) -> Memory::Operation,
    large_operation: impl Fn(&mut Chance) -> Memory::Operation,
    of_memory: impl Fn(&mut Memory, usize) -> Details,
    of_file: impl Fn(&mut File, usize) -> Details,
) where
    Memory: Store,
    File: Store<Operation = Memory::Operation>,
{
    for seed in 0..SEEDS {
        let chance = &mut Chance(seed);
        let mut folder = tempfile::tempdir().expect("a folder");
        let mut path = folder.path().join("jobs.db");
        let mut expected = memory();
        let mut found = file(&path);
        for _ in 0..30 {
            if chance.below(20) == 0 {
                let one = large_operation(chance);
                let parts = chance.below(5);
                let whole = (0..parts).any(|_| found.store_ahead(&one).expect("space") == Ahead::Whole);
                // What is about other jobs comes between, and now and then it is not applied at all.
                let job = one.job().clone();
                let others: Vec<_> = (0..3).map(|_| operation(chance)).filter(|other| *other.job() != job).collect();
                assert_eq!(found.apply(&others), expected.apply(&others), "seed {seed}");
                match chance.below(4) {
                    0 => {}
                    1 => found.drop_ahead(),
                    _ => {
                        let one = std::slice::from_ref(&one);
                        assert_eq!(found.apply(one), expected.apply(one), "seed {seed}, {parts} parts, {whole}");
                    }
                }
            }
            // Batches that are noted, and batches that are too large for it.
            let count = chance.of(&[1, 1, 2, 3, 5, 40]);
            let operations: Vec<_> = (0..count).map(|_| operation(chance)).collect();
            assert_eq!(found.apply(&operations), expected.apply(&operations), "seed {seed}");
            match chance.below(10) {
                0 => found.settle().expect("space"),
                1 => {
                    drop(found);
                    found = file(&path);
                }
                2 => {
                    let number = chance.below(JOBS);
                    assert_eq!(of_file(&mut found, number), of_memory(&mut expected, number), "seed {seed}");
                }
                3 => found.tidy().expect("space"),
                4 | 5 => {
                    // As its files are after kill -9, often with nothing left to take over.
                    if chance.below(2) == 0 {
                        found.settle().expect("space");
                    }
                    let copied = tempfile::tempdir().expect("a folder");
                    for suffix in ["", "-wal", "-noted"] {
                        let name = format!("jobs.db{suffix}");
                        if folder.path().join(&name).exists() {
                            std::fs::copy(folder.path().join(&name), copied.path().join(&name)).expect("a copy");
                        }
                    }
                    drop(found);
                    folder = copied;
                    path = folder.path().join("jobs.db");
                    found = file(&path);
                }
                _ => {}
            }
        }
        for number in 0..JOBS {
            assert_eq!(of_file(&mut found, number), of_memory(&mut expected, number), "seed {seed}");
        }
    }
}

#[test]
fn a_workers_file_decides_as_the_memory_does() {
    compare(
        MemoryWorkerStore::new,
        |path| SqliteWorkerStore::open(path, STAMP).expect("a database"),
        worker_operation,
        |chance| finish(chance.below(JOBS), WorkerState::Completed, &large_result(chance)),
        |store, number| store.job(&id(number)),
        |store, number| store.job(&id(number)),
    );
}

#[test]
fn a_clients_file_decides_as_the_memory_does() {
    compare(
        MemoryClientStore::new,
        |path| SqliteClientStore::open(path, STAMP).expect("a database"),
        client_operation,
        |chance| result(chance.below(JOBS), chance.of(&["worker-1", "worker-2"]), &large_result(chance)),
        |store, number| store.job(&id(number)),
        |store, number| store.job(&id(number)),
    );
}
