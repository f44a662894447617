//! The `topology` section: what one process starts, and in which order.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use crate::error::{InventoryError, ValueProblem};
use crate::key_path::KeyPath;
use crate::section::{Origin, Section};
use crate::warning::{Warning, WarningKind};
use crate::worker_data::FILESHARING_WORKER;

/// How long a group of workers may take to start, unless the inventory says otherwise; NorFab's default.
pub const WORKERS_INIT_TIMEOUT: Duration = Duration::from_secs(300);

/// The keys of the section.
pub(crate) const TOPOLOGY_KEYS: &[&str] = &["broker", "workers", "workers_start_interval", "workers_init_timeout"];

/// The keys of a worker in it.
pub(crate) const WORKER_KEYS: &[&str] = &["depends_on"];

/// A worker to start and what must run before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyWorker {
    /// Its name.
    pub name: String,
    /// Names of workers that must be ready first.
    pub depends_on: Vec<String>,
}

/// What to start. Its dependencies have no cycles and name listed workers or the built-in file sharing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Whether a broker is started; `None` if the inventory does not say, and then NorFab starts none.
    pub broker: Option<bool>,
    /// The workers in the order of the file, each name once.
    pub workers: Vec<TopologyWorker>,
    /// Pause between two starts. NorFab waits half a second, because each of its workers is a new Python process;
    /// ours have no such cost, so the default is no pause.
    pub workers_start_interval: Duration,
    /// How long a group of workers may take to start before the next one starts all the same.
    pub workers_init_timeout: Duration,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            broker: None,
            workers: Vec::new(),
            workers_start_interval: Duration::ZERO,
            workers_init_timeout: WORKERS_INIT_TIMEOUT,
        }
    }
}

impl Topology {
    /// Whether the broker is to be started: only if the inventory says so.
    pub fn starts_broker(&self) -> bool {
        self.broker == Some(true)
    }

    /// The workers in groups: each group may start once all groups before it are ready. Within a group the order is that
    /// of the file.
    pub fn start_order(&self) -> Vec<Vec<String>> {
        let mut groups: Vec<Vec<String>> = Vec::new();
        let mut waiting: Vec<&TopologyWorker> = self.workers.iter().collect();
        while !waiting.is_empty() {
            let (blocked, ready): (Vec<_>, Vec<_>) = waiting.iter().copied().partition(|worker| {
                worker.depends_on.iter().any(|needed| waiting.iter().any(|other| other.name == *needed))
            });
            if ready.is_empty() {
                // Only a topology that was not read from an inventory can have a cycle: start what is left at once.
                groups.push(blocked.iter().map(|worker| worker.name.clone()).collect());
                break;
            }
            groups.push(ready.iter().map(|worker| worker.name.clone()).collect());
            waiting = blocked;
        }
        groups
    }

    pub(crate) fn read(section: Option<&Section<'_>>, warnings: &mut Vec<Warning>) -> Result<Self, InventoryError> {
        let Some(section) = section else {
            return Ok(Self::default());
        };
        let defaults = Self::default();
        let listed = read_workers(section, warnings)?;
        check_dependencies(&listed, section.origin)?;
        Ok(Self {
            broker: section.flag("broker")?,
            workers: listed.into_iter().map(|listed| listed.worker).collect(),
            workers_start_interval: section
                .seconds("workers_start_interval")?
                .unwrap_or(defaults.workers_start_interval),
            workers_init_timeout: section.seconds("workers_init_timeout")?.unwrap_or(defaults.workers_init_timeout),
        })
    }
}

/// A worker and the paths of its dependencies, for errors.
struct Listed {
    worker: TopologyWorker,
    paths: Vec<KeyPath>,
}

fn read_workers(section: &Section<'_>, warnings: &mut Vec<Warning>) -> Result<Vec<Listed>, InventoryError> {
    let expected = "the name of a worker, or NAME: {depends_on: [NAME, ...]}";
    let origin = section.origin;
    let items = match section.entries.get("workers") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(section.error("workers", "a list of worker names", other)),
    };
    let mut listed: Vec<Listed> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = section.path.key("workers").item(index);
        let mut workers = Vec::new();
        match item {
            Value::String(name) if !name.is_empty() => workers.push((name, Vec::new(), Vec::new())),
            Value::Object(entries) if !entries.is_empty() => {
                for (name, settings) in entries {
                    let path = path.key(name);
                    let Value::Object(settings) = settings else {
                        return Err(origin.unexpected(&path, "a mapping like {depends_on: [NAME, ...]}", settings));
                    };
                    let settings = Section { origin, path: path.clone(), entries: settings };
                    let needed = settings.texts("depends_on", "a list of worker names")?.unwrap_or_default();
                    let paths = (0..needed.len()).map(|at| path.key("depends_on").item(at)).collect();
                    if name.is_empty() {
                        return Err(origin.unexpected(&path, expected, item));
                    }
                    workers.push((name, needed, paths));
                }
            }
            other => return Err(origin.unexpected(&path, expected, other)),
        }
        for (name, needed, paths) in workers {
            if let Some(known) = listed.iter_mut().find(|listed| listed.worker.name == *name) {
                warnings.push(Warning {
                    location: origin.location(&path),
                    key: path.to_string(),
                    kind: WarningKind::WorkerListedTwice { worker: name.clone() },
                });
                known.worker.depends_on.extend(needed);
                known.paths.extend(paths);
            } else {
                listed.push(Listed { worker: TopologyWorker { name: name.clone(), depends_on: needed }, paths });
            }
        }
    }
    Ok(listed)
}

/// Every dependency is listed, and none leads back to where it came from.
fn check_dependencies(listed: &[Listed], origin: Origin<'_>) -> Result<(), InventoryError> {
    let places: HashMap<&str, usize> =
        listed.iter().enumerate().map(|(place, listed)| (listed.worker.name.as_str(), place)).collect();
    for listed in listed {
        for (needed, path) in listed.worker.depends_on.iter().zip(&listed.paths) {
            // The process that starts the broker adds file sharing by itself.
            if !places.contains_key(needed.as_str()) && needed != FILESHARING_WORKER {
                return Err(origin.error(path, ValueProblem::UnlistedDependency { missing: needed.clone() }));
            }
        }
    }
    let mut done = vec![false; listed.len()];
    for start in 0..listed.len() {
        // Depth first with an own stack: a long chain of workers must not use up the thread's.
        let mut way: Vec<(usize, usize)> = vec![(start, 0)];
        while let Some((place, next)) = way.pop() {
            let worker = &listed[place].worker;
            let Some(needed) = worker.depends_on.get(next) else {
                done[place] = true;
                continue;
            };
            way.push((place, next + 1));
            let Some(needed_place) = places.get(needed.as_str()).copied() else {
                continue;
            };
            if let Some(begin) = way.iter().position(|(on_way, _)| *on_way == needed_place) {
                let name = |place: usize| listed[place].worker.name.clone();
                let mut path: Vec<String> = way[begin..].iter().map(|(place, _)| name(*place)).collect();
                path.push(name(needed_place));
                return Err(origin.error(&listed[place].paths[next], ValueProblem::DependencyCycle { path }));
            }
            if !done[needed_place] {
                way.push((needed_place, 0));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str, depends_on: &[&str]) -> TopologyWorker {
        TopologyWorker { name: name.to_owned(), depends_on: depends_on.iter().map(|name| (*name).to_owned()).collect() }
    }

    #[test]
    fn a_worker_starts_in_the_group_after_the_last_one_it_needs() {
        let topology = Topology {
            workers: vec![
                worker("d", &["b", "c"]),
                worker("a", &[]),
                worker("b", &["a"]),
                worker("c", &[FILESHARING_WORKER]),
            ],
            ..Topology::default()
        };
        assert_eq!(topology.start_order(), [vec!["a", "c"], vec!["b"], vec!["d"]]);
    }

    #[test]
    fn without_workers_there_are_no_groups() {
        assert_eq!(Topology::default().start_order(), Vec::<Vec<String>>::new());
    }
}
