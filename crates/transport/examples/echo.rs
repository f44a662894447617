//! A router that sends every message back to its peer: for trying other ZeroMQ peers against this crate.
//!
//! `echo ENDPOINT [FOLDER]`: with a folder it encrypts with the keys in it, made if they are missing.

use norfab_transport::{Context, KeyFolder, Router, RouterLink, RouterOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let endpoint = arguments.next().unwrap_or_else(|| "tcp://127.0.0.1:0".to_owned());
    let keys = match arguments.next() {
        Some(folder) => Some(KeyFolder::new(folder).load_or_create("broker")?),
        None => None,
    };
    let context = Context::new();
    let mut router = Router::bind(&context, &endpoint, RouterOptions { keys, ..RouterOptions::default() })?;
    println!("{}", router.endpoint());
    loop {
        while let Some(message) = router.try_receive()? {
            if let Err(error) = router.try_send(&message.peer, &message.frames) {
                eprintln!("dropped: {error}");
            }
        }
        router.wait(None)?;
    }
}
