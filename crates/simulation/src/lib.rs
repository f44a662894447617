//! Development only: seeded simulation of the three machines on a virtual clock.
