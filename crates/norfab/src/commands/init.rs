//! `norfab init`: a fresh environment.

use std::path::Path;

use norfab_inventory::InventoryError;
use serde_json::json;

use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;

pub fn run(global: &Global, dir: &Path, force: bool) -> Result<Code, Failure> {
    let files = norfab_inventory::create_environment(dir, force).map_err(|error| match error {
        InventoryError::Exists { file } => Failure::configuration(format!(
            "{} exists already: choose another folder, or overwrite it with --force",
            file.display()
        )),
        error => Failure::configuration(error),
    })?;
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    if global.json {
        printer::json(&json!({ "files": files }));
        return Ok(Code::Ok);
    }
    for file in &files {
        printer::line(&format!("wrote {file}"));
    }
    printer::line("");
    let next = if dir == Path::new(".") { String::new() } else { format!("cd {} && ", dir.display()) };
    printer::line(&format!("next: {next}norfab up"));
    Ok(Code::Ok)
}
