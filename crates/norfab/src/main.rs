//! The norfab command: broker, workers, client and tools in one binary.
//!
//! Reading order: [`args`] (what is typed), [`site`] (an inventory, its folders and keys on this host, and the roles made
//! of them), then `commands`, one file each, and [`printer`].
#![warn(missing_docs)]

mod args;
mod commands;
mod exit;
mod printer;
mod prompt;
mod services;
mod signals;
mod site;
mod usage;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match args::Args::read() {
        Ok(args) => args,
        Err(error) => return told(&error),
    };
    if let args::Command::Files { command } = &args.command
        && command.moves_files()
    {
        // Before there are other threads: they take it over.
        norfab_service::give_way();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .thread_stack_size(THREAD_STACK_BYTES)
        .on_thread_start(norfab_transport::run_promptly)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            printer::error(&format!("cannot start: {error}"));
            return exit::Code::Failed.into();
        }
    };
    let code = runtime.block_on(commands::dispatch(args));
    site::wait_for_kept_keys();
    // A blocking task that nobody can stop must not keep the process alive.
    runtime.shutdown_background();
    code.into()
}

/// Shows help, the version, or what is wrong with the command line, and returns the exit code.
fn told(shown: &clap::Error) -> ExitCode {
    if shown.use_stderr() {
        let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        printer::usage(&usage::text(shown, &words, norfab_logs::is_coloured()));
        if usage::wants_json(&words) {
            printer::failure(&usage::failure(shown, &words));
        }
        return exit::Code::Usage.into();
    }
    match shown.print().and_then(|()| std::io::stdout().flush()) {
        // A reader that has seen enough (`| head`) is no error.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            printer::error(&format!("cannot write to standard output: {error}"));
            exit::Code::Failed.into()
        }
        _ => exit::Code::Ok.into(),
    }
}

/// Threads that drive tasks. Tasks of services wait more than they compute; what computes or blocks has threads of its own.
const RUNTIME_THREADS: usize = 2;

/// Stack of the runtime's threads.
const THREAD_STACK_BYTES: usize = 1 << 20;
