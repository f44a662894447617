//! `norfab init`: a fresh environment.

use std::path::Path;

use norfab_inventory::InventoryError;
use serde_json::json;

use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;

pub fn run(global: &Global, dir: &Path, force: bool) -> Result<Code, Failure> {
    let files = norfab_inventory::create_environment(dir, force).map_err(|error| match error {
        InventoryError::Exists { file } => Failure::configuration(format!("{} exists already", file.display()))
            .hint("choose another folder, or overwrite it with --force"),
        error => Failure::configuration(error).advised(Some("choose another name for the new environment")),
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
    let next = if dir == Path::new(".") { String::new() } else { format!("cd {} && ", quoted(dir)) };
    printer::line(&format!("next: {next}norfab up"));
    Ok(Code::Ok)
}

/// A folder as a shell takes it.
fn quoted(dir: &Path) -> String {
    let text = dir.display().to_string();
    let plain = |character: char| character.is_alphanumeric() || "/._-".contains(character);
    match text.chars().all(plain) {
        true if !text.starts_with('-') => text,
        _ => format!("-- '{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_named_so_that_a_shell_takes_it() {
        for (dir, shown) in
            [("lab", "lab"), ("/a/b-1.c", "/a/b-1.c"), ("my lab", "-- 'my lab'"), ("it's", "-- 'it'\\''s'")]
        {
            assert_eq!(quoted(Path::new(dir)), shown);
        }
        assert_eq!(quoted(Path::new("-x")), "-- '-x'");
    }
}
