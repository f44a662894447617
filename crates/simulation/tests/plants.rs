//! The simulation finds errors: each of those that are planted by hand.

use std::time::Instant;

use norfab_simulation::trace::Trace;
use norfab_simulation::{Plant, run_with};

/// Seeds that are tried for each error.
const SEEDS: u64 = 3000;

/// Where the search begins for the error that shows in one of a thousand seeds only; it goes on at the beginning.
const RARE_FROM: u64 = 1375;

#[test]
fn every_planted_error_is_found_and_named() {
    for plant in Plant::ALL {
        // One error may show in several ways. What is looked for is what it is about.
        let is_it = |found: &String| found.contains(plant.is_found_as());
        let first = if *plant == Plant::ForgetWorkers { RARE_FROM } else { 0 };
        let found = (first..SEEDS).chain(0..first).any(|seed| {
            let error = run_with(seed, Instant::now(), Trace::Off, Some(*plant)).err();
            let is_found = error.as_ref().is_some_and(is_it);
            if is_found {
                println!("{plant:?}: {}", error.unwrap_or_default());
            }
            is_found
        });
        assert!(found, "{plant:?} is not found in {SEEDS} seeds");
    }
}
