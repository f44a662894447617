//! Our figures beside those of Python NorFab 0.25.0, measured in one run on one machine, all over CURVE.
//!
//! `cargo xtask bench` builds what is measured and runs this. Figures of Python vary with the machine, so the ratio is
//! what counts. Each figure is a row of [`FIGURES`]; what is measured and how is told in the module that measures it.

mod backlog;
mod figure;
mod files;
mod idle;
mod large;
mod load;
mod machine;
mod memory;
mod restart;
mod route;
mod router;
mod small;
mod storm;

use std::env;
use std::panic;
use std::process::ExitCode;

use crate::figure::{Better, Figure, Plan};

/// All figures, in the order in which they are measured.
const FIGURES: &[Figure] = &[
    Figure { name: "job_latency_p50", unit: "ms", better: Better::Lower, measure: load::latency, limit: None },
    Figure {
        name: "jobs_per_second",
        unit: "jobs/s",
        better: Better::Higher,
        measure: load::jobs_per_second,
        limit: None,
    },
    Figure { name: "fanout_100", unit: "ms", better: Better::Lower, measure: load::fan_out, limit: None },
    Figure {
        name: "broker_cpu_per_job_1",
        unit: "us",
        better: Better::Lower,
        measure: |plan, side| route::broker_cpu_per_job(plan, side, 1),
        limit: Some(|plan| router::cpu_per_job(plan, 1)),
    },
    Figure {
        name: "broker_cpu_per_job_50",
        unit: "us",
        better: Better::Lower,
        measure: |plan, side| route::broker_cpu_per_job(plan, side, 50),
        limit: Some(|plan| router::cpu_per_job(plan, 50)),
    },
    Figure {
        name: "broker_cpu_per_job_500",
        unit: "us",
        better: Better::Lower,
        measure: |plan, side| route::broker_cpu_per_job(plan, side, 500),
        limit: Some(|plan| router::cpu_per_job(plan, 500)),
    },
    Figure {
        name: "broker_restart",
        unit: "s",
        better: Better::Lower,
        measure: restart::until_workers_serve,
        limit: None,
    },
    Figure { name: "storm_1000", unit: "s", better: Better::Lower, measure: storm::until_all_serve, limit: None },
    Figure {
        name: "storm_1000_busy",
        unit: "s",
        better: Better::Lower,
        measure: storm::until_all_serve_with_many_jobs,
        limit: None,
    },
    Figure {
        name: "storm_1000_jobs",
        unit: "s",
        better: Better::Lower,
        measure: storm::until_all_jobs_end,
        limit: None,
    },
    Figure { name: "idle_cpu_broker", unit: "ms/min", better: Better::Lower, measure: idle::broker_cpu, limit: None },
    Figure { name: "idle_cpu_worker", unit: "ms/min", better: Better::Lower, measure: idle::worker_cpu, limit: None },
    Figure { name: "idle_cpu_client", unit: "ms/min", better: Better::Lower, measure: idle::client_cpu, limit: None },
    Figure {
        name: "idle_wake_ups_broker",
        unit: "1/min",
        better: Better::Lower,
        measure: idle::broker_wake_ups,
        limit: None,
    },
    Figure {
        name: "idle_wake_ups_worker",
        unit: "1/min",
        better: Better::Lower,
        measure: idle::worker_wake_ups,
        limit: None,
    },
    Figure {
        name: "idle_wake_ups_client",
        unit: "1/min",
        better: Better::Lower,
        measure: idle::client_wake_ups,
        limit: None,
    },
    Figure {
        name: "worker_memory_first",
        unit: "MB",
        better: Better::Lower,
        measure: memory::first_worker,
        limit: None,
    },
    Figure { name: "backlog_rss", unit: "MB", better: Better::Lower, measure: backlog::resident, limit: None },
    Figure {
        name: "large_result_seconds",
        unit: "s",
        better: Better::Lower,
        measure: large::text_seconds,
        limit: None,
    },
    Figure {
        name: "large_result_peak_worker",
        unit: "MB",
        better: Better::Lower,
        measure: large::text_peak_worker,
        limit: None,
    },
    Figure {
        name: "large_result_peak_broker",
        unit: "MB",
        better: Better::Lower,
        measure: large::text_peak_broker,
        limit: None,
    },
    Figure {
        name: "large_result_peak_client",
        unit: "MB",
        better: Better::Lower,
        measure: large::text_peak_client,
        limit: None,
    },
    Figure {
        name: "large_table_seconds",
        unit: "s",
        better: Better::Lower,
        measure: large::table_seconds,
        limit: None,
    },
    Figure {
        name: "large_table_peak_worker",
        unit: "MB",
        better: Better::Lower,
        measure: large::table_peak_worker,
        limit: None,
    },
    Figure {
        name: "large_table_peak_command",
        unit: "MB",
        better: Better::Lower,
        measure: large::table_peak_command,
        limit: None,
    },
    Figure {
        name: "slowest_behind_large",
        unit: "ms",
        better: Better::Lower,
        measure: large::slowest_behind,
        limit: None,
    },
    Figure {
        name: "slowest_behind_large_plain",
        unit: "ms",
        better: Better::Lower,
        measure: large::slowest_behind_plain,
        limit: None,
    },
    Figure {
        name: "slowest_beside_large",
        unit: "ms",
        better: Better::Lower,
        measure: large::slowest_beside,
        limit: None,
    },
    Figure {
        name: "file_rate_plain",
        unit: "MB/s",
        better: Better::Higher,
        measure: files::rate_plain,
        limit: Some(files::curl_rate),
    },
    Figure { name: "file_rate_curve", unit: "MB/s", better: Better::Higher, measure: files::rate_curve, limit: None },
    Figure { name: "file_peak_worker", unit: "MB", better: Better::Lower, measure: files::peak_worker, limit: None },
    Figure { name: "file_peak_broker", unit: "MB", better: Better::Lower, measure: files::peak_broker, limit: None },
    Figure { name: "file_peak_client", unit: "MB", better: Better::Lower, measure: files::peak_client, limit: None },
    Figure {
        name: "upload_rate_plain",
        unit: "MB/s",
        better: Better::Higher,
        measure: files::upload_rate_plain,
        limit: None,
    },
    Figure {
        name: "upload_rate_curve",
        unit: "MB/s",
        better: Better::Higher,
        measure: files::upload_rate_curve,
        limit: None,
    },
    Figure { name: "small_files_rate", unit: "1/s", better: Better::Higher, measure: small::rate, limit: None },
    Figure { name: "jobs_beside_file", unit: "x", better: Better::Lower, measure: files::jobs_beside, limit: None },
    Figure { name: "worker_memory_next", unit: "MB", better: Better::Lower, measure: memory::next_worker, limit: None },
];

fn main() -> ExitCode {
    let mut plan = Plan { quick: false, ours: false };
    let mut json = false;
    let mut wanted = Vec::new();
    for word in env::args().skip(1) {
        match word.as_str() {
            "--quick" => plan.quick = true,
            "--ours" => plan.ours = true,
            "--json" => json = true,
            name if FIGURES.iter().any(|figure| figure.name == name) => wanted.push(word),
            other => {
                let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
                eprintln!("error: none of --quick, --ours, --json and no figure: {other:?}");
                eprintln!("figures: {}", names.join(", "));
                return ExitCode::FAILURE;
            }
        }
    }
    // A side that fails is told in one piece, not with the stack of this program.
    panic::set_hook(Box::new(|failure| eprintln!("{failure}")));
    let mut complete = true;
    for figure in FIGURES {
        if wanted.is_empty() || wanted.iter().any(|name| name == figure.name) {
            let measured = figure.run(&plan);
            complete &= measured.is_complete();
            if json {
                println!("{}", measured.json());
            } else {
                println!("{}", measured.text());
            }
        }
    }
    if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
