//! The tasks of git remotes. Texts of results and events are those of the Python service where it has one.

use std::collections::HashMap;
use std::sync::Arc;

use norfab_service::{NoInput, Task, TaskContext, TaskError, TaskOutput, TaskResult, on_blocking_thread};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::OwnedMutexGuard;

use super::definition::{Definition, GIT, RemoteInput};
use super::sync::{Outcome, RemoteTurn, Voice, delete, synchronize};
use super::{AddError, REMOTES_MAX, Remote, Remotes, Status};
use crate::share::Share;

/// Most URLs that one `resolve_git_url` answers.
pub const GIT_URLS_MAX: usize = 10_000;

/// What the URL of a file in a remote begins with.
const SCHEME: &str = "git://";

#[derive(Debug, Deserialize, JsonSchema)]
struct Name {
    /// Name of the remote.
    #[schemars(length(min = 1))]
    name: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct SomeName {
    /// Name of the remote; all of them without it.
    #[schemars(length(min = 1))]
    name: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct GitUrls {
    /// URL of a file in a remote, git://NAME/path, or a list of them.
    url: OneOrMany,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// All tasks of git remotes.
pub(crate) fn all(remotes: &Arc<Remotes>, share: &Arc<Share>, inventory: Vec<Value>) -> Vec<Task> {
    let of = || Arc::clone(remotes);
    let (create, clone, get, forget, resolve) = (of(), of(), of(), of(), of());
    let share = Arc::clone(share);
    // Gone with the tasks: what is synchronized by itself ends then.
    let over = remotes.over.clone().drop_guard();
    vec![
        presented(
            Task::new("create_remote_git", "Adds a git remote until the worker ends.", move |context, input| {
                create_remote(Arc::clone(&create), context, input)
            }),
            "POST",
            "Create Git Remote",
        ),
        presented(
            Task::new(
                "git_clone",
                "Fetches the branch of a git remote and puts its files into the shared folder.",
                move |context, input| git_clone(Arc::clone(&clone), context, input),
            )
            .idempotent(),
            "POST",
            "Clone Git Remote",
        ),
        presented(
            Task::new("get_remotes", "Tells git remotes and how they are.", move |_: TaskContext, input: SomeName| {
                let told = get
                    .all()
                    .into_iter()
                    .filter(|remote| input.name.as_ref().is_none_or(|name| remote.definition.name == *name));
                let told: Vec<Value> = told.map(|remote| remote.told()).collect();
                async { Ok(told) }
            })
            .idempotent(),
            "GET",
            "Get Remotes",
        ),
        presented(
            Task::new(
                "delete_remote_git",
                "Forgets a git remote and removes its files from the shared folder.",
                move |context, input| delete_remote(Arc::clone(&forget), context, input),
            ),
            "DELETE",
            "Delete Git Remote",
        ),
        presented(
            Task::new(
                "resolve_git_url",
                "Synchronizes the git remotes of URLs and gives the URLs of their files in the shared folder.",
                move |context, input| resolve_git_url(Arc::clone(&resolve), Arc::clone(&share), context, input),
            )
            .idempotent(),
            "POST",
            "Resolve Git URL",
        ),
        Task::new(
            "get_inventory",
            "Gives this worker's inventory, its secrets masked.",
            move |context: TaskContext, NoInput {}| {
                let _kept = &over;
                let told = told_inventory(&context.inventory(), &inventory);
                async { Ok(told) }
            },
        )
        .idempotent()
        .fastapi(json!({"methods": ["GET"]})),
    ]
}

fn presented(task: Task, method: &str, title: &str) -> Task {
    let reads = method == "GET";
    let destroys = method == "DELETE";
    let idempotent = task.is_idempotent();
    task.fastapi(json!({"methods": [method]})).agent(json!({"enabled": false})).mcp(json!({
        "annotations": {
            "title": title,
            "readOnlyHint": reads,
            "destructiveHint": destroys,
            "idempotentHint": idempotent,
            "openWorldHint": !reads,
        }
    }))
}

/// The inventory with its remotes complete, as the Python service has it.
fn told_inventory(inventory: &Value, remotes: &[Value]) -> Value {
    let mut told = norfab_secrets::masked(inventory);
    if let Some(members) = told.as_object_mut() {
        match members.get_mut("remotes") {
            Some(member) => *member = json!(remotes),
            None => {
                members.insert("remotes".to_owned(), json!(remotes));
            }
        }
    }
    told
}

async fn create_remote(
    remotes: Arc<Remotes>,
    context: TaskContext,
    input: RemoteInput,
) -> Result<TaskOutput, TaskError> {
    let voice = Voice::Job(&context);
    let definition = Definition::check(input).map_err(|error| TaskError::new(format!("argument {error}")))?;
    let (name, mount) = (definition.name.clone(), definition.mount.clone());
    voice.say(&remotes, &format!("initializing Git remote '{name}'")).await?;
    if definition.kind != GIT {
        return refused(&remotes, &voice, &format!("remote '{name}' is not a git remote"), None).await;
    }
    match remotes.add(definition) {
        Ok(()) => {}
        Err(AddError::Name) => {
            return refused(&remotes, &voice, &format!("remote '{name}' is already configured"), None).await;
        }
        Err(AddError::Mount(other)) => {
            let event = format!("remote mount '{mount}' collides with remote '{other}'");
            let error = format!("Remote mount '{mount}' collides with another remote");
            return refused(&remotes, &voice, &event, Some(error)).await;
        }
        Err(AddError::Uploads) => {
            let event = format!("remote mount '{mount}' collides with the folder for uploads: mount elsewhere");
            return refused(&remotes, &voice, &event, None).await;
        }
        Err(AddError::TooMany) => {
            let event = format!("remote '{name}' is one too many: a worker has at most {REMOTES_MAX}, delete another");
            return refused(&remotes, &voice, &event, None).await;
        }
    }
    voice.say(&remotes, &format!("initialized Git remote '{name}' at {mount}")).await?;
    Ok(TaskOutput::new(json!({"name": name, "status": Status::Unsynchronized.word()})))
}

/// Says no. Without a text of its own, the error is the event with a capital letter.
async fn refused(
    remotes: &Remotes,
    voice: &Voice<'_>,
    event: &str,
    error: Option<String>,
) -> Result<TaskOutput, TaskError> {
    voice.complain(remotes, event).await?;
    let error = error.unwrap_or_else(|| match event.strip_prefix("remote") {
        Some(rest) => format!("Remote{rest}"),
        None => event.to_owned(),
    });
    Ok(TaskOutput::default().failed(error))
}

fn not_configured(name: &str) -> String {
    format!("remote '{name}' is not configured")
}

/// A remote and the right to change it. Waits for others. Errors: the job ends before.
async fn taken(
    remotes: &Remotes,
    context: &TaskContext,
    name: &str,
) -> Result<Option<(Arc<Remote>, RemoteTurn)>, TaskError> {
    let Some(remote) = remotes.get(name) else { return Ok(None) };
    let turn: OwnedMutexGuard<()> = tokio::select! {
        biased;
        turn = Arc::clone(&remote.turn).lock_owned() => turn,
        () = context.to_end() => {
            return Err(TaskError::new(format!("Git remote '{name}' was busy until the job's end: try again later")));
        }
    };
    let deleted = remote.state().deleted;
    Ok((!deleted).then_some((remote, turn)))
}

async fn git_clone(remotes: Arc<Remotes>, context: TaskContext, input: Name) -> Result<TaskOutput, TaskError> {
    let voice = Voice::Job(&context);
    let name = &input.name;
    voice.say(&remotes, &format!("synchronizing Git remote '{name}'")).await?;
    let Some((remote, turn)) = taken(&remotes, &context, name).await? else {
        return refused(&remotes, &voice, &not_configured(name), None).await;
    };
    let Outcome { status, attempted, problem, messages } = synchronize(&remotes, &remote, turn, &voice).await?;
    let output = TaskOutput::new(json!({"name": name, "status": status.word(), "last_sync_attempt": attempted}));
    let output = messages.into_iter().fold(output, TaskOutput::message);
    Ok(match problem {
        Some(problem) => output.failed(not_synchronized(name, &problem)),
        None => output,
    })
}

fn not_synchronized(name: &str, problem: &str) -> String {
    format!("Git remote '{name}' synchronization failed: {problem}")
}

async fn delete_remote(remotes: Arc<Remotes>, context: TaskContext, input: Name) -> Result<TaskOutput, TaskError> {
    let voice = Voice::Job(&context);
    let name = &input.name;
    voice.say(&remotes, &format!("deleting Git remote '{name}'")).await?;
    let Some((remote, turn)) = taken(&remotes, &context, name).await? else {
        return refused(&remotes, &voice, &not_configured(name), None).await;
    };
    let deleted = {
        let (remotes, remote) = (Arc::clone(&remotes), Arc::clone(&remote));
        on_blocking_thread(move || {
            let deleted = delete(&remotes, &remote);
            drop(turn);
            deleted
        })
        .await?
    };
    match deleted {
        Ok(gone) => {
            voice.say(&remotes, &format!("deleted Git remote '{name}'")).await?;
            let output = TaskOutput::new(true);
            let mount = &remote.definition.mount;
            Ok(if gone {
                output
            } else {
                output.message(format!("the folder '{mount}' has content of its own and stays"))
            })
        }
        Err(error) => {
            let event = format!("Git remote '{name}' cannot be deleted: {error}");
            refused(&remotes, &voice, &event, None).await
        }
    }
}

/// A file of a remote.
struct GitUrl {
    remote: String,
    path: String,
}

impl GitUrl {
    fn parse(url: &str) -> Result<Self, String> {
        let (remote, path) = url
            .strip_prefix(SCHEME)
            .and_then(|rest| rest.split_once('/'))
            .filter(|(remote, _)| !remote.is_empty())
            .ok_or_else(|| format!("'{url}' - invalid Git URL format"))?;
        // Nothing in a repository has such a name.
        let names: Vec<&str> = path.split(['/', '\\']).filter(|name| !name.is_empty() && *name != ".").collect();
        if names.is_empty() || names.contains(&"..") || path.contains('\0') {
            return Err(format!("'{url}' - invalid Git URL path"));
        }
        Ok(Self { remote: remote.to_owned(), path: names.join("/") })
    }
}

async fn resolve_git_url(
    remotes: Arc<Remotes>,
    share: Arc<Share>,
    context: TaskContext,
    input: GitUrls,
) -> Result<TaskOutput, TaskError> {
    let (urls, single) = match input.url {
        OneOrMany::One(url) => (vec![url], true),
        OneOrMany::Many(urls) => (urls, false),
    };
    if urls.len() > GIT_URLS_MAX {
        return Err(TaskError::new(format!(
            "argument 'url': expected a list of at most {GIT_URLS_MAX}, found a list of {}",
            urls.len()
        )));
    }
    // The URLs of the folders of remotes, or why there is none: each is synchronized once.
    let mut folders: HashMap<String, Result<String, String>> = HashMap::new();
    let mut entries = Map::new();
    let (mut remarks, mut errors) = (Vec::new(), Vec::new());
    for url in &urls {
        let resolved = match GitUrl::parse(url) {
            Ok(GitUrl { remote, path }) => {
                let folder = match folders.get(&remote) {
                    Some(folder) => folder.clone(),
                    None => {
                        let (folder, messages) = synchronized(&remotes, &context, &remote).await?;
                        remarks.extend(messages);
                        folders.insert(remote, folder.clone());
                        folder
                    }
                };
                match folder {
                    Ok(folder) => file_in(&share, url, format!("{folder}/{path}")).await?,
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        if single {
            let output = match resolved {
                Ok(resolved) => TaskOutput::new(resolved),
                Err(error) => TaskOutput::default().failed(error),
            };
            return Ok(remarks.into_iter().fold(output, TaskOutput::message));
        }
        let mut entry = TaskResult { failed: resolved.is_err(), ..TaskResult::default() };
        entry.errors.extend(resolved.as_ref().err().cloned());
        errors.extend(resolved.as_ref().err().cloned());
        let mut entry = serde_json::to_value(&entry)?;
        entry["result"] = json!(resolved.ok());
        entries.insert(url.clone(), entry);
    }
    let output = errors.into_iter().fold(TaskOutput::new(Value::Object(entries)), TaskOutput::error);
    Ok(remarks.into_iter().fold(output, TaskOutput::message))
}

/// Synchronizes a remote for its files. Gives the URL of its folder, or why there is none, and what is to be remarked.
async fn synchronized(
    remotes: &Arc<Remotes>,
    context: &TaskContext,
    name: &str,
) -> Result<(Result<String, String>, Vec<String>), TaskError> {
    let Some((remote, turn)) = taken(remotes, context, name).await? else {
        return Ok((Err(format!("Remote '{name}' is not configured")), Vec::new()));
    };
    let voice = Voice::Job(context);
    voice.say(remotes, &format!("synchronizing Git remote '{name}'")).await?;
    let Outcome { problem, messages, .. } = synchronize(remotes, &remote, turn, &voice).await?;
    Ok(match problem {
        Some(problem) => (Err(not_synchronized(name, &problem)), messages),
        None => (Ok(remote.definition.mount.to_string()), messages),
    })
}

/// The URL of a file, if there is one. Its error names the URL that was asked for.
async fn file_in(share: &Arc<Share>, url: &str, served: String) -> Result<Result<String, String>, TaskError> {
    let found = {
        let (share, served) = (Arc::clone(share), served.clone());
        on_blocking_thread(move || share.file(&served).is_ok()).await?
    };
    Ok(if found { Ok(served) } else { Err(format!("'{url}' file not found")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_git_url_names_a_remote_and_a_file_in_it() {
        let parsed = |url: &str| GitUrl::parse(url).map(|parsed| (parsed.remote, parsed.path));
        assert_eq!(parsed("git://r/a//./b"), Ok(("r".to_owned(), "a/b".to_owned())));
        assert_eq!(parsed("git://r/a\\b"), Ok(("r".to_owned(), "a/b".to_owned())));
        for url in ["http://q", "git://", "git:///a", "git://r", "GIT://r/a"] {
            assert_eq!(parsed(url), Err(format!("'{url}' - invalid Git URL format")));
        }
        for url in ["git://r/../x", "git://r/a/..\\..\\x", "git://r/", "git://r/a\0"] {
            assert_eq!(parsed(url), Err(format!("'{url}' - invalid Git URL path")));
        }
    }
}
