//! The NFP protocol as pure data and state machines: no I/O, no clock, no threads.
