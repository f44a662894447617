//! `norfab init`: a fresh environment.

use std::path::Path;

use serde_json::json;

use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;

pub fn run(global: &Global, dir: &Path, force: bool) -> Result<Code, Failure> {
    let files = norfab_inventory::create_environment(dir, force).map_err(Failure::configuration)?;
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    if global.json {
        printer::json(&json!({ "files": files }));
        return Ok(Code::Ok);
    }
    for file in &files {
        printer::line(&format!("wrote {file}"));
    }
    printer::line("");
    printer::line(&format!("next: cd {} && norfab up", dir.display()));
    Ok(Code::Ok)
}
