//! What is typed.

mod files;
mod put;
mod sync;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgAction, Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

pub use files::{AskedArgs, CompleteArgs, GetArgs, LsArgs, StatArgs, TreeArgs};
pub use put::PutArgs;
pub use sync::{RmCacheArgs, SyncArgs};

/// Network automations fabric: one broker, many workers, many clients.
#[derive(Debug, Parser)]
#[command(
    name = "norfab",
    version,
    about = "Network automations fabric: one broker, many workers, many clients",
    after_help = EXIT_CODES,
    max_term_width = 100
)]
pub struct Args {
    /// What all commands share.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Args {
    /// Reads what was typed. Errors: it is wrong, or asks for help; as clap says.
    pub fn read() -> Result<Self, clap::Error> {
        let mut command = Self::shown();
        let matches = command.clone().try_get_matches()?;
        let mut args = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        args.global.names = Names::of(&matches);
        if let Command::Jobs(words) = &mut args.command
            && let Some(matches) = matches.subcommand_matches("jobs")
        {
            let is_typed = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
            words.shows = ["last", "wait"].into_iter().any(is_typed);
        }
        Ok(args)
    }

    /// The command line, with help that lists no options of a fabric where a command does not look at one.
    pub fn shown() -> clap::Command {
        let command = Self::command();
        let unused = |option: &&clap::Arg| OF_A_FABRIC.contains(&option.get_id().as_str());
        let hidden: Vec<clap::Arg> =
            command.get_arguments().filter(unused).map(|option| option.clone().hide(true)).collect();
        let own = |name: &str, command: clap::Command| {
            let hidden = hidden.clone();
            command.mut_subcommand(name, |subcommand| subcommand.args(hidden))
        };
        own("completion", own("demo", own("init", command)))
    }
}

/// How those who typed the command gave the options of a fabric: `--endpoint`, or `NORFAB_ENDPOINT`. Hints name it.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// The inventory.
    pub inventory: &'static str,
    /// The base folder.
    pub base_dir: &'static str,
    /// The broker's endpoint.
    pub endpoint: &'static str,
    /// The broker's key.
    pub broker_key: &'static str,
    /// The client's name.
    pub name: &'static str,
}

impl Default for Names {
    /// All by options.
    fn default() -> Self {
        Self {
            inventory: "--inventory",
            base_dir: "--base-dir",
            endpoint: "--endpoint",
            broker_key: "--broker-key",
            name: "--name",
        }
    }
}

impl Names {
    fn of(matches: &clap::ArgMatches) -> Self {
        let options = Self::default();
        let name = |id: &str, option: &'static str, variable: &'static str| {
            if matches.value_source(id) == Some(ValueSource::EnvVariable) { variable } else { option }
        };
        Self {
            inventory: name("inventory", options.inventory, INVENTORY_VARIABLE),
            base_dir: name("base_dir", options.base_dir, BASE_DIR_VARIABLE),
            endpoint: name("endpoint", options.endpoint, ENDPOINT_VARIABLE),
            broker_key: name("broker_key", options.broker_key, BROKER_KEY_VARIABLE),
            name: name("name", options.name, NAME_VARIABLE),
        }
    }
}

const INVENTORY_VARIABLE: &str = "NORFAB_INVENTORY";
const BASE_DIR_VARIABLE: &str = "NORFAB_BASE_DIR";
const ENDPOINT_VARIABLE: &str = "NORFAB_ENDPOINT";
const BROKER_KEY_VARIABLE: &str = "NORFAB_BROKER_KEY";
const NAME_VARIABLE: &str = "NORFAB_NAME";

/// Options that say which fabric and who in it.
pub const OF_A_FABRIC: [&str; 5] = ["inventory", "base_dir", "endpoint", "broker_key", "name"];

/// What `norfab -h` says about the end.
const EXIT_CODES: &str = "\
Exit codes:
    0  all went well; no worker failed
    1  a worker failed, a job did not complete, a file was not there
    2  the command line is wrong
    3  the broker cannot be reached, or refuses
    4  nobody answered in time
    5  the inventory, a key, a name or a folder is wrong
  130  Ctrl-C
  143  SIGTERM

A first fabric: norfab demo. One of your own: norfab init lab && cd lab && norfab up";

/// Where help lists what all commands share: behind what only one has.
const GLOBAL: &str = "Options of all commands";

/// What all commands share.
#[derive(Debug, Clone, ClapArgs)]
pub struct Global {
    /// The inventory file, or its folder; ./inventory.yaml unless given
    #[arg(short, long, global = true, env = INVENTORY_VARIABLE, value_name = "FILE", hide_env_values = true)]
    #[arg(help_heading = GLOBAL, display_order = 100)]
    pub inventory: Option<OsString>,
    /// Folder of keys, job databases and logs; the inventory's folder unless given
    #[arg(long, global = true, env = BASE_DIR_VARIABLE, value_name = "DIR", hide_env_values = true)]
    #[arg(help_heading = GLOBAL, display_order = 101)]
    pub base_dir: Option<OsString>,
    /// The broker's endpoint, in place of the inventory's
    #[arg(long, global = true, env = ENDPOINT_VARIABLE, value_name = "ENDPOINT", hide_env_values = true)]
    #[arg(help_heading = GLOBAL, display_order = 102)]
    pub endpoint: Option<String>,
    /// The broker's public key (40 characters), or 'none' for a broker without encryption
    #[arg(long, global = true, env = BROKER_KEY_VARIABLE, value_name = "KEY", hide_env_values = true)]
    #[arg(help_heading = GLOBAL, display_order = 103, allow_hyphen_values = true)]
    pub broker_key: Option<String>,
    /// This client's name in the fabric
    #[arg(long, global = true, env = NAME_VARIABLE, value_name = "NAME", hide_env_values = true)]
    #[arg(help_heading = GLOBAL, display_order = 104)]
    pub name: Option<String>,
    /// Print JSON on standard output
    #[arg(long, global = true, help_heading = GLOBAL, display_order = 105)]
    pub json: bool,
    /// More on standard error; twice for more still
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = GLOBAL, display_order = 106)]
    pub verbose: u8,
    /// Whether warnings are lines of JSON, even where `quiet` silences the log.
    #[arg(skip)]
    pub json_warnings: bool,
    /// How the options of a fabric were given.
    #[arg(skip)]
    pub names: Names,
    /// Less on standard error
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = GLOBAL, display_order = 107)]
    pub quiet: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a fresh environment
    Init {
        /// Its folder; made if it is not there
        dir: PathBuf,
        /// Overwrite files that exist
        #[arg(long)]
        force: bool,
    },
    /// Start everything in the inventory's topology, in one process
    Up,
    /// Start the broker
    Broker,
    /// Start workers
    Worker {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Their service, without an inventory
        #[arg(long, value_name = "SERVICE")]
        service: Option<String>,
        /// How long to wait for the key of a broker that starts here for the first time
        #[arg(long, default_value = "30s", value_parser = duration, value_name = "TIME", allow_negative_numbers = true)]
        wait_for_key: Duration,
    },
    /// Run a job and show what workers return
    Run(RunArgs),
    /// Ask the broker itself
    Mmi {
        /// The service of the broker: mmi.service.broker or sid.service.broker
        service: String,
        /// The task
        task: String,
        /// Arguments: key=text or key:=JSON
        #[arg(value_name = "KEY=VALUE")]
        arguments: Vec<String>,
        /// How long to wait for the answer, such as 500ms, 90s, 10m, 2h; a plain number is seconds
        #[arg(short, long, default_value = "10s", value_parser = duration, value_name = "TIME", allow_negative_numbers = true)]
        timeout: Duration,
    },
    /// Files that workers share
    Files {
        /// What to do with them
        #[command(subcommand)]
        command: FilesCommand,
    },
    /// Show this client's jobs
    Jobs(JobsArgs),
    /// Cancel a job of this client on all its workers
    Cancel(CancelArgs),
    /// Show the workers that are registered
    Workers {
        /// Of this service only
        #[arg(long, value_name = "SERVICE")]
        service: Option<String>,
    },
    /// Show which workers take a job and answer it
    Health {
        /// Those of these services only
        #[arg(value_name = "SERVICE")]
        services: Vec<String>,
        /// How long each has to answer, such as 500ms, 90s, 10m, 2h; a plain number is seconds
        #[arg(short, long, default_value = "3s", value_parser = duration, value_name = "TIME", allow_negative_numbers = true)]
        timeout: Duration,
    },
    /// Show the tasks of a service
    Tasks {
        /// The service
        service: String,
        /// The task, to see its arguments
        task: Option<String>,
        /// Ask this worker
        #[arg(long, default_value = "any", value_name = "NAME")]
        worker: String,
        /// Wait up to 30 s for a worker that is not registered, instead of failing at once
        #[arg(long)]
        wait_for_workers: bool,
    },
    /// Show the inventory, or a worker's merged data, with secrets masked
    Inventory {
        /// The worker
        worker: Option<String>,
        /// Ask the broker, even where there is an inventory file
        #[arg(long)]
        remote: bool,
    },
    /// Show the broker's public key and what others put into their inventory
    BrokerKey {
        /// Make the keys if this host has none, also where its inventory starts no broker
        #[arg(long)]
        create: bool,
    },
    /// Show a whole fabric at work; needs no preparation and leaves nothing
    Demo,
    /// Print a script with which a shell completes words, remote paths too
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// What that script asks.
    #[command(name = "__complete", hide = true)]
    Complete(CompleteArgs),
}

/// A job.
#[derive(Debug, ClapArgs)]
pub struct RunArgs {
    /// The service
    pub service: String,
    /// The task
    pub task: String,
    /// Arguments: key=text or key:=JSON
    #[arg(value_name = "KEY=VALUE")]
    pub arguments: Vec<String>,
    /// Which workers: any, all, or names with commas
    #[arg(short, long, default_value = "all", value_name = "any|all|A,B")]
    pub workers: String,
    /// How long to wait, such as 500ms, 90s, 10m, 2h; a plain number is seconds
    #[arg(short, long, default_value = "10m", value_parser = duration, value_name = "TIME", allow_negative_numbers = true)]
    pub timeout: Duration,
    /// Submit and do not wait
    #[arg(long)]
    pub nowait: bool,
    /// How to show events on standard error
    #[arg(long, value_enum, default_value_t = Events::Text)]
    pub events: Events,
    /// The answer to questions of the task, as JSON: true, '"text"'
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub answer: Option<String>,
    /// Wait for workers that are not registered, whoever they are, instead of failing at once
    #[arg(long)]
    pub wait_for_workers: bool,
    /// Cancel the job on Ctrl-C and SIGTERM, without asking
    #[arg(long, conflicts_with = "nowait")]
    pub cancel_on_interrupt: bool,
}

/// A job to cancel.
#[derive(Debug, ClapArgs)]
pub struct CancelArgs {
    /// The job
    pub uuid: String,
    /// Why, for all who look at the job later
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub reason: Option<String>,
    /// How long to wait for its workers to confirm
    #[arg(long, default_value = "15s", value_parser = duration, value_name = "TIME", allow_negative_numbers = true)]
    pub wait: Duration,
}

/// Jobs of this client.
#[derive(Debug, ClapArgs)]
#[command(subcommand_precedence_over_arg = true)]
pub struct JobsArgs {
    /// What to do with all of them
    #[command(subcommand)]
    pub command: Option<JobsCommand>,
    /// One job with its results and events
    pub uuid: Option<String>,
    /// Show so many
    #[arg(long, default_value = "20", value_parser = count, value_name = "COUNT", allow_negative_numbers = true)]
    pub last: usize,
    /// How long to wait for jobs that have not ended
    #[arg(long, default_value = "2s", value_parser = duration, value_name = "TIME", allow_negative_numbers = true)]
    pub wait: Duration,
    /// Show what is stored here, without asking the broker about jobs that have not ended
    #[arg(long, conflicts_with_all = ["wait", "answer"])]
    pub offline: bool,
    /// The answer to questions of the job, as JSON
    #[arg(long, value_name = "JSON", allow_hyphen_values = true, requires = "uuid")]
    pub answer: Option<String>,
    /// Whether --last or --wait was typed: their defaults say nothing.
    #[arg(skip)]
    pub shows: bool,
}

/// What to do with the jobs of this client.
#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// Forget finished jobs
    Prune(PruneArgs),
    /// Write all jobs with their results and events
    Export {
        /// The file; standard output unless given, or with '-'
        file: Option<PathBuf>,
        /// A job on each line, or one list
        #[arg(long, value_enum, default_value_t = ExportFormat::Jsonl)]
        format: ExportFormat,
        /// Overwrite a file that exists
        #[arg(long)]
        force: bool,
    },
    /// Take over jobs from databases that Python NorFab left
    Import {
        /// NAME.db of a client or worker; without any, all below this base folder
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

/// Which jobs go. What is not given is as the inventory says.
#[derive(Debug, ClapArgs)]
pub struct PruneArgs {
    /// Those that ended longer ago, such as 36h or 30d
    #[arg(long, value_parser = age, value_name = "TIME")]
    pub older_than: Option<Duration>,
    /// The oldest beyond so many
    #[arg(long, value_parser = count_of_jobs, value_name = "COUNT", allow_negative_numbers = true)]
    pub keep: Option<u64>,
    /// The oldest while a database uses more, such as 512M or 2G
    #[arg(long, value_parser = bytes, value_name = "BYTES")]
    pub max_bytes: Option<u64>,
    /// Those of workers in this base folder too
    #[arg(long)]
    pub workers: bool,
    /// Say what would go, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// How jobs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// A line of JSON for each.
    Jsonl,
    /// One list.
    Json,
}

/// What to do with files.
#[derive(Debug, Subcommand)]
pub enum FilesCommand {
    /// Fetch files
    Get(GetArgs),
    /// List what is in a directory
    #[command(alias = "list")]
    Ls(LsArgs),
    /// Show a directory with all that is in it
    Tree(TreeArgs),
    /// Show sizes, times, permissions and hashes of files, and which workers have them
    Stat(StatArgs),
    /// Upload a file to a worker that takes it
    Put(PutArgs),
    /// Make a folder here like one that a worker shares
    Sync(SyncArgs),
    /// Show the files that 'get --cache' keeps
    Cache,
    /// Remove files that 'get --cache' keeps, but not those in use
    RmCache(RmCacheArgs),
}

impl FilesCommand {
    /// Whether it is the content of files that it is about: much work, and never urgent.
    pub fn moves_files(&self) -> bool {
        matches!(self, Self::Get(_) | Self::Put(_) | Self::Sync(_))
    }
}

/// Whose command line is completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// Bash.
    Bash,
    /// Zsh.
    Zsh,
    /// Fish.
    Fish,
}

/// How to show events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Events {
    /// A line for people.
    Text,
    /// A line of JSON.
    Json,
    /// Not at all.
    None,
}

/// Reads `90s`, `10m`, `2h`, `500ms` or plain seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no time: write 500ms, 90s, 10m, 2h or 30d");
    let digits = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().map_err(|_| wrong())?;
    let seconds = match &text[digits..] {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
        _ => return Err(wrong()),
    };
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if time.is_zero() || time > TIME_MAX {
        return Err(format!("'{text}' is not between 1ms and 365d"));
    }
    Ok(time)
}

/// Reads how many.
fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("'{text}' is no count: write a whole number, such as 20"))
}

/// As [`count`], of as many jobs as a database can have.
fn count_of_jobs(text: &str) -> Result<u64, String> {
    count(text).map(|count| count as u64)
}

/// As [`duration`], without its bounds: jobs may be older than a year, and `0s` means all. A number alone is refused: the settings
/// count days and times elsewhere seconds, and what goes by mistake is gone.
fn age(text: &str) -> Result<Duration, String> {
    if text == "0s" {
        return Ok(Duration::ZERO);
    }
    if !text.is_empty() && text.chars().all(|character| character.is_ascii_digit()) {
        return Err(format!("'{text}' has no unit: write {text}d for days, {text}h for hours"));
    }
    match text.strip_suffix('d').map(str::parse::<u64>) {
        Some(Ok(days)) if days <= AGE_DAYS_MAX => Ok(Duration::from_secs(days * 86_400)),
        _ => duration(text),
    }
}

/// Longest age that can be given: a century.
const AGE_DAYS_MAX: u64 = 36_500;

/// Reads `1000`, `64K`, `512M` or `2G`; units are powers of 1024.
fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no number of bytes: write 1000000, 64K, 512M or 2G");
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit: u64 = match &text[digits..] {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit).ok_or_else(wrong)
}

/// Longest time that can be given: beyond a year it is a mistake.
const TIME_MAX: Duration = Duration::from_secs(365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::shown().debug_assert();
    }

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["", "x", "0s", "-1s", "1y", "1e9h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(age("0s"), Ok(Duration::ZERO));
        assert_eq!(age("800d"), Ok(Duration::from_secs(800 * 86_400)));
        assert!(age("99999d").is_err());
        assert_eq!(age("7"), Err("'7' has no unit: write 7d for days, 7h for hours".to_owned()));
    }

    #[test]
    fn bytes_are_read_with_their_units() {
        assert_eq!(bytes("1000"), Ok(1000));
        assert_eq!(bytes("64K"), Ok(64 << 10));
        assert_eq!(bytes("2G"), Ok(2 << 30));
        for wrong in ["", "M", "1.5G", "-1", "1T", "99999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
