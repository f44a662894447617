//! How fast the tasks read files: `cargo bench -p norfab-file-sharing`.

use std::fs;
use std::time::Instant;

use norfab_file_sharing::service;
use norfab_protocol::body::PutBody;
use norfab_service::testing::TestWorker;
use norfab_service::{StreamCredit, TaskMessage};
use serde_json::json;

const FILE_BYTES: u64 = 500_000_000;
const CHUNK_BYTES: [u64; 4] = [25_000, 256_000, 1_048_576, 16_777_216];
const PIPELINE: u64 = 10;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure());
}

async fn measure() {
    let outer = tempfile::tempdir().expect("a folder");
    let megabytes = FILE_BYTES as f64 / 1e6;
    fs::write(outer.path().join("file"), vec![7; FILE_BYTES as usize]).expect("written");
    let worker = TestWorker::new(service(&json!({}), outer.path()).expect("a service"));
    for chunk_bytes in CHUNK_BYTES {
        let began = Instant::now();
        let mut job = worker.start("fetch_file", json!({"url": "nf://file", "chunk_size": chunk_bytes}));
        let (mut received, mut asked) = (0, 0);
        while received < FILE_BYTES {
            let TaskMessage::Stream(chunk) = job.message().await else {
                panic!("an event");
            };
            received += chunk.len() as u64;
            // As the clients of the protocol do: one more than the pipeline under way.
            while asked + chunk_bytes < FILE_BYTES && asked < received + PIPELINE * chunk_bytes {
                asked += chunk_bytes;
                job.port().deliver(PutBody::Credit(StreamCredit { offset: asked })).expect("delivered");
            }
        }
        assert!(!job.result().await.failed);
        let rate = megabytes / began.elapsed().as_secs_f64();
        println!("fetch_file, chunks of {chunk_bytes:>8} bytes: {rate:>6.0} MB/s");
    }
    for turn in ["first", "second"] {
        let began = Instant::now();
        assert!(!worker.run("file_details", json!({"url": "nf://file"})).await.failed);
        println!("file_details of {megabytes} MB, {turn} time: {:?}", began.elapsed());
    }
}
