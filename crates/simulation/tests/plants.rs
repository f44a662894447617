//! The simulation finds errors: each of those that are planted by hand.

use std::time::Instant;

use norfab_simulation::trace::Trace;
use norfab_simulation::{Plant, run_with};

/// Seeds that are tried for each error.
const SEEDS: u64 = 3000;

#[test]
fn every_planted_error_is_found_and_named() {
    for plant in Plant::ALL {
        let found = (0..SEEDS).find_map(|seed| run_with(seed, Instant::now(), Trace::Off, Some(*plant)).err());
        let found = found.unwrap_or_else(|| panic!("{plant:?} is not found in {SEEDS} seeds"));
        let is_named = plant.is_found_as().iter().any(|part| found.contains(part));
        assert!(is_named, "{plant:?} is found as: {found}");
    }
}
