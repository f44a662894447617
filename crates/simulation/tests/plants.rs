//! The simulation finds errors: each of those that are planted by hand.

use std::time::Instant;

use norfab_simulation::trace::Trace;
use norfab_simulation::{Plant, run_with};

/// Seeds that are tried for each error.
const SEEDS: u64 = 3000;

#[test]
fn every_planted_error_is_found_and_named() {
    for plant in Plant::ALL {
        let named = (0..SEEDS).any(|seed| {
            let Err(found) = run_with(seed, Instant::now(), Trace::Off, Some(*plant)) else { return false };
            // It may show in another way first, but it is what shows.
            let without = run_with(seed, Instant::now(), Trace::Off, None);
            assert!(without.is_ok(), "seed {seed} without {plant:?}: {without:?}; with it: {found}");
            found.contains(plant.is_found_as())
        });
        assert!(named, "{plant:?} is not found as '{}' in {SEEDS} seeds", plant.is_found_as());
    }
}
