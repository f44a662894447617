//! `norfab broker-key`: the broker's public key and what others put into their inventory.

use serde_json::json;

use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::Site;

pub fn run(global: &Global) -> Result<Code, Failure> {
    let site = Site::load(global)?;
    if !site.encrypted() {
        return Err(Failure::configuration(
            "this broker does not encrypt (broker.zmq_auth is false in inventory.yaml): it has no key to show",
        ));
    }
    let keys = site.broker_keys()?;
    let (_, file) = site.broker_key_files();
    let public_key = keys.public.to_string();
    let fingerprint = keys.public.fingerprint();
    let endpoint = site.endpoint().unwrap_or("tcp://BROKER:5555").to_owned();
    if global.json {
        printer::json(&json!({
            "public_key": public_key,
            "fingerprint": fingerprint,
            "file": file.display().to_string(),
            "endpoint": endpoint,
        }));
        return Ok(Code::Ok);
    }
    printer::line(&format!("public key:  {public_key}"));
    printer::line(&format!("fingerprint: {fingerprint}"));
    printer::line(&format!("file:        {}", file.display()));
    printer::line("");
    printer::line("into inventory.yaml of workers and clients on other hosts:");
    printer::line("");
    printer::line("broker:");
    printer::line(&format!("  endpoint: \"{endpoint}\""));
    printer::line(&format!("  shared_key: '{public_key}'"));
    Ok(Code::Ok)
}
