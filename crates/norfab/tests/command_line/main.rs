//! The binary as people and scripts see it: exit code, standard output, standard error. Each test starts what it needs in a
//! folder of its own, on free ports, and all of it ends with the test.

mod cancel;
mod completion;
mod crash;
mod databases;
mod demo;
mod failures;
mod files;
mod files_sync;
mod health;
mod help;
mod init;
mod jobs;
mod listing;
mod progress;
mod prompt;
mod put;
mod questions;
mod refusals;
mod run;
mod stuck_disk;
mod support;
mod up;
mod worker;
