//! Lists of operations on the three machines, and what must hold after each of them whatever the operations are. Property
//! tests and fuzz targets run the same lists.
#![allow(dead_code, reason = "each user of this module runs its own machine")]

pub mod broker;
pub mod client;
pub mod worker;

use arbitrary::Arbitrary;
use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId, ServiceName};

/// Few names, so that operations meet each other. The last of each are for mischief.
pub const WORKERS: &[&str] = &["w0", "w1", "w2", "w3"];
pub const CLIENTS: &[&str] = &["c0", "c1", "w0"];
pub const SERVICES: &[&str] = &["s0", "s1", "all", "mmi.service.broker", "sid.service.broker", ""];
pub const JOBS: &[&str] = &["j0", "j1", "j2", "j3", ""];
pub const TARGETS: &[&str] =
    &["any", "all", "w0", "w2", r#"["w0","w1"]"#, r#"["w3","ghost","w3"]"#, "[]", "ghost", "[1", ""];

pub fn pick<'a>(names: &[&'a str], index: u8) -> &'a str {
    names[usize::from(index) % names.len()]
}

pub fn worker_name(index: u8) -> Identity {
    Identity::parse(pick(WORKERS, index)).expect("a name")
}

pub fn job_id(index: u8) -> JobId {
    JobId::parse(pick(&JOBS[..4], index)).expect("a name")
}

pub fn service_name(index: u8) -> ServiceName {
    ServiceName::parse(pick(&SERVICES[..2], index)).expect("a name")
}

pub fn frames(parts: &[&[u8]]) -> Vec<Bytes> {
    parts.iter().map(|part| Bytes::copy_from_slice(part)).collect()
}

/// A body: what belongs into some message, or anything.
#[derive(Debug, Clone, Arbitrary)]
pub enum Body {
    Job { timeout: Option<u16> },
    LateJob { timeout: u16, remaining: i16 },
    Cancel { text: bool },
    Cancelled { worker: u8, job: u8, by_delete: bool },
    Management { task: u8 },
    Answer { question: u8 },
    Credit { offset: u64 },
    Dispatched { workers: Vec<u8>, job: u8, target: u8, fabric: bool },
    Accepted { worker: u8, job: u8, fabric: bool },
    State { worker: u8, job: u8, error: bool },
    Waiting { worker: u8, job: u8, question: u8 },
    Results { workers: Vec<u8> },
    Event { worker: u8, job: u8, kind: u8, question: u8 },
    Refused { job: u8 },
    Bytes(Vec<u8>),
}

impl Body {
    pub fn bytes(&self) -> Bytes {
        let text = match self {
            Self::Job { timeout: None } => r#"{"task":"t","kwargs":{"a":1},"args":[]}"#.to_owned(),
            Self::Job { timeout: Some(timeout) } => format!(r#"{{"task":"t","timeout":{timeout}}}"#),
            Self::LateJob { timeout, remaining } => {
                format!(r#"{{"task":"t","timeout":{timeout},"remaining":{remaining}.5,"wait":true,"fabric":1}}"#)
            }
            Self::Cancel { text: true } => r#"{"text":"cancelled by a test at noon"}"#.to_owned(),
            Self::Cancel { text: false } => r#"{"reason":"a test"}"#.to_owned(),
            Self::Cancelled { worker, job, by_delete: true } => format!(
                r#"{{"worker":"{}","uuid":"{}","service":"s0","status":"CANCELLED"}}"#,
                worker_name(*worker),
                job_id(*job)
            ),
            Self::Cancelled { worker, job, by_delete: false } => format!(
                r#"{{"worker":"{}","service":"s0","uuid":"{}","event_type":"progress","message":"cancelled","task":"t","status":"cancelled","timestamp":"now","extras":{{"cancellation":{{"text":"cancelled by a test"}}}}}}"#,
                worker_name(*worker),
                job_id(*job)
            ),
            Self::Management { task } => {
                let tasks = &["show_workers", "get_stats", "show_broker", "get_inventory", "nonsense"];
                format!(r#"{{"task":"{}","kwargs":{{"service":"s0"}}}}"#, pick(tasks, *task))
            }
            Self::Answer { question } => format!(r#"{{"input_id":"q{}","value":null}}"#, question % 4),
            Self::Credit { offset } => format!(r#"{{"offset":{offset}}}"#),
            Self::Dispatched { workers, job, target, fabric } => {
                let workers: Vec<Identity> = workers.iter().take(8).map(|index| worker_name(*index)).collect();
                let mut body = serde_json::json!({
                    "workers": workers, "uuid": job_id(*job), "target": pick(TARGETS, *target),
                    "status": "DISPATCHED", "service": "s0",
                });
                if *fabric {
                    body["fabric"] = 1.into();
                    body["run"] = (job % 2).into();
                    body["young"] = (job % 3 == 0).into();
                    body["absent"] = serde_json::json!([worker_name(*target)]);
                    if job % 4 == 3 {
                        body["holders"] = body["workers"].clone();
                    }
                }
                body.to_string()
            }
            Self::Accepted { worker, job, fabric } => {
                let fabric = if *fabric { r#","fabric":1"# } else { "" };
                format!(
                    r#"{{"worker":"{}","uuid":"{}","status":"ACCEPTED","service":"s0"{fabric}}}"#,
                    worker_name(*worker),
                    job_id(*job)
                )
            }
            Self::State { worker, job, error } => {
                let error = if *error { r#","error":"no""# } else { "" };
                format!(
                    r#"{{"worker":"{}","uuid":"{}","service":"s0","status":"STARTED"{error}}}"#,
                    worker_name(*worker),
                    job_id(*job)
                )
            }
            Self::Waiting { worker, job, question } => format!(
                r#"{{"worker":"{}","uuid":"{}","service":"s0","status":"WAITING_CLIENT_INPUT","input_request":{{"id":"q{}","question":"?"}}}}"#,
                worker_name(*worker),
                job_id(*job),
                question % 4
            ),
            Self::Results { workers } => {
                let results: Vec<String> = workers
                    .iter()
                    .take(8)
                    .map(|index| format!(r#""{}":{{"result":1}}"#, worker_name(*index)))
                    .collect();
                format!("{{{}}}", results.join(","))
            }
            Self::Event { worker, job, kind, question } => {
                let kinds = &["progress", "result_ready", "input_request", "input_response"];
                let extras = match kind % 4 {
                    2 => format!(r#","extras":{{"input_request":{{"id":"q{}","question":"?"}}}}"#, question % 4),
                    3 => format!(r#","extras":{{"input_response":{{"input_id":"q{}"}}}}"#, question % 4),
                    _ => String::new(),
                };
                format!(
                    r#"{{"worker":"{}","service":"s0","uuid":"{}","event_type":"{}","message":"completed","task":"t","status":"completed","timestamp":"now"{extras}}}"#,
                    worker_name(*worker),
                    job_id(*job),
                    pick(kinds, *kind)
                )
            }
            Self::Refused { job } => format!(
                r#"{{"workers":null,"uuid":"{}","target":"any","status":"FAILED","service":"s0","errors":["no"]{}}}"#,
                job_id(*job),
                if job % 8 < 4 { r#","retry":true"# } else { "" }
            ),
            Self::Bytes(bytes) => return Bytes::from(bytes.clone()),
        };
        Bytes::from(text)
    }
}
