//! `cargo xtask sources`: rules for source files that no compiler checks.

use std::collections::BTreeSet;
use std::fs;

use crate::Failure;
use crate::process::{root, tracked_files};

/// Above this a source file wants a reason.
const LINES_MAX: usize = 600;

/// Source files that may be longer, each with the reason. An entry that is no longer needed is an error.
const LONG: &[(&str, &str)] = &[];

/// File names that say nothing about what is inside.
const VAGUE: &[&str] = &["util", "utils", "helper", "helpers", "common", "misc", "manager"];

/// This file names what it forbids.
const SELF: &str = "xtask/src/sources.rs";

/// Words that some lines must not have.
struct Rule {
    words: &'static [&'static str],
    reason: &'static str,
    applies: fn(&str) -> bool,
    /// Whether code of tests is free to do it.
    free_in_tests: bool,
}

const RULES: &[Rule] = &[
    Rule {
        words: &["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe("],
        reason: "unsafe code belongs into crates/transport",
        applies: |file| file.ends_with(".rs") && !file.starts_with("crates/transport/"),
        free_in_tests: false,
    },
    Rule {
        words: &["Instant::now(", "SystemTime::now("],
        reason: "time is an argument; clock.rs of fabric, and of transport for sockets, read the clock",
        applies: |file| {
            is_product(file) && !["crates/fabric/src/clock.rs", "crates/transport/src/clock.rs"].contains(&file)
        },
        free_in_tests: true,
    },
    Rule {
        words: &["std::thread", "std::fs", "std::net", "std::env", "std::process", "tokio", "async fn", ".await"],
        reason: "the protocol is pure: no threads, files, sockets, environment or runtime",
        applies: |file| file.starts_with("crates/protocol/src/"),
        free_in_tests: true,
    },
    Rule {
        words: &["unbounded_channel", "mpsc::channel()", "unbounded()"],
        reason: "every queue has a bound with a name",
        applies: is_product,
        free_in_tests: false,
    },
    Rule {
        words: &["thread::sleep("],
        reason: "wait for a condition or a deadline instead",
        applies: is_product,
        free_in_tests: true,
    },
    Rule {
        words: &["todo!(", "unimplemented!(", "TODO", "FIXME"],
        reason: "finish it, or say in prose what it does not do",
        applies: |_| true,
        free_in_tests: false,
    },
    Rule {
        words: &["#[ignore"],
        reason: "a test that does not run shows nothing",
        applies: |file| file.ends_with(".rs"),
        free_in_tests: false,
    },
    Rule {
        words: &[concat!("/wo", "rk/"), concat!("/tm", "p/"), concat!("/ro", "ot/.")],
        reason: "a path of one machine",
        applies: |_| true,
        free_in_tests: false,
    },
];

/// Checks every text file that git tracks or would take.
pub fn check() -> Result<(), Failure> {
    let mut texts = Vec::new();
    for file in tracked_files()? {
        let bytes = fs::read(root().join(&file)).map_err(|error| format!("cannot read {file}: {error}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            texts.push((file, text));
        }
    }
    let modules: BTreeSet<String> = texts.iter().flat_map(|(file, text)| modules_of_tests(file, text)).collect();
    let mut wrong = Vec::new();
    for (file, text) in &texts {
        wrong.extend(judge(file, text, is_test_file(file) || modules.contains(file)));
    }
    for (file, reason) in LONG {
        let lines = fs::read_to_string(root().join(file)).map_or(0, |text| text.lines().count());
        if lines <= LINES_MAX {
            wrong.push(format!("{file} may be long ({reason}), but has {lines} lines: take it off the list"));
        }
    }
    if wrong.is_empty() {
        println!("{} files follow the rules", texts.len());
        return Ok(());
    }
    Err(format!("rules of xtask/src/sources.rs are broken:\n  {}", wrong.join("\n  ")))
}

/// Code that ships: neither tests, benches, examples, fuzz targets, the simulation, nor this program.
fn is_product(file: &str) -> bool {
    let folder = file.starts_with("crates/") || file.starts_with("services/");
    let development = file.starts_with("crates/simulation/")
        || file.contains("/tests/")
        || file.contains("/benches/")
        || file.contains("/examples/");
    folder && file.ends_with(".rs") && !development
}

fn judge(file: &str, text: &str, is_test: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = file.rsplit('/').next().unwrap_or(file);
    if let Some(stem) = name.strip_suffix(".rs") {
        if VAGUE.contains(&stem) {
            wrong.push(format!("{file}: a file is named for what it holds"));
        }
        let lines = text.lines().count();
        if lines > LINES_MAX && !LONG.iter().any(|(long, _)| *long == file) {
            wrong.push(format!("{file}: {lines} lines; above {LINES_MAX} a file wants a reason or a split"));
        }
    }
    if file == SELF {
        return wrong;
    }
    let tests_begin = if is_test { 0 } else { first_line_of_tests(text) };
    for rule in RULES.iter().filter(|rule| (rule.applies)(file)) {
        for (index, line) in text.lines().enumerate() {
            if rule.free_in_tests && index >= tests_begin {
                break;
            }
            let code = line.trim_start();
            // Prose may speak of what code must not do, but machine paths are wrong anywhere.
            let prose = code.starts_with("//") && file.ends_with(".rs") && rule.reason != "a path of one machine";
            if let Some(word) = rule.words.iter().find(|word| !prose && code.contains(**word)) {
                wrong.push(format!("{file}:{}: {word:?}: {}", index + 1, rule.reason));
            }
        }
    }
    wrong
}

fn is_test_file(file: &str) -> bool {
    file.contains("/tests/")
        || file.contains("/benches/")
        || file.ends_with("/testing.rs")
        || file.ends_with("/tests.rs")
        || file.ends_with("_tests.rs")
}

/// Files of modules that a file declares for tests only.
fn modules_of_tests(file: &str, text: &str) -> Vec<String> {
    let Some(stem) = file.strip_suffix(".rs") else { return Vec::new() };
    let folder = ["/mod", "/lib", "/main"].iter().find_map(|name| stem.strip_suffix(name)).unwrap_or(stem);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
    let names = declared.filter_map(|pair| pair[1].strip_prefix("mod ")?.strip_suffix(';'));
    names.flat_map(|name| [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]).collect()
}

/// Index of the line that opens the module of tests, which is the last thing in a file.
fn first_line_of_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let module = |line: &&str| line.contains("mod ") && line.trim_end().ends_with('{');
    let opens = |index: usize| lines[index].trim() == "#[cfg(test)]" && lines[index + 1..].iter().take(3).any(module);
    (0..lines.len()).find(|index| opens(*index)).unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(file: &str, text: &str) -> Vec<String> {
        super::judge(file, text, is_test_file(file))
    }

    #[test]
    fn clock_is_read_in_one_file_and_in_tests() {
        let reads = "fn f() {\n    Instant::now();\n}\n";
        assert_eq!(judge("crates/jobs/src/store.rs", reads).len(), 1);
        assert!(judge("crates/fabric/src/clock.rs", reads).is_empty());
        assert!(judge("crates/jobs/tests/store.rs", reads).is_empty());
        let tested = format!("fn g() {{}}\n#[cfg(test)]\nmod tests {{\n{reads}}}\n");
        assert!(judge("crates/jobs/src/store.rs", &tested).is_empty());
    }

    #[test]
    fn module_of_tests_in_a_file_of_its_own_excuses_nothing() {
        let text = "#[cfg(test)]\nmod tests;\n\nfn f() -> Instant {\n    Instant::now()\n}\n";
        assert_eq!(judge("crates/jobs/src/lib.rs", text).len(), 1);
    }

    #[test]
    fn unsafe_code_is_found_outside_of_the_transport() {
        assert_eq!(judge("crates/jobs/src/lib.rs", "unsafe { x() }\n").len(), 1);
        assert!(judge("crates/transport/src/ffi.rs", "unsafe { x() }\n").is_empty());
        assert!(judge("crates/jobs/src/lib.rs", "// never unsafe { here }\n").is_empty());
    }

    #[test]
    fn path_of_a_machine_is_found_in_every_kind_of_file() {
        let path = format!("see {}p/folder/file\n", "/tm");
        for file in ["README.md", "crates/jobs/src/lib.rs", "tests/peers/python/client.py"] {
            assert_eq!(judge(file, &path).len(), 1, "{file}");
        }
    }

    #[test]
    fn long_file_wants_a_reason() {
        assert_eq!(judge("crates/jobs/src/lib.rs", &"\n".repeat(LINES_MAX + 1)).len(), 1);
        assert!(judge("docs/protocol.md", &"\n".repeat(LINES_MAX + 1)).is_empty());
    }

    #[test]
    fn module_that_is_declared_for_tests_is_found_in_its_file() {
        let text = "#[cfg(test)]\nmod races;\nmod other;\n";
        let files = modules_of_tests("crates/a/src/folder.rs", text);
        assert_eq!(files, ["crates/a/src/folder/races.rs", "crates/a/src/folder/races/mod.rs"]);
        assert_eq!(modules_of_tests("crates/a/src/lib.rs", text)[0], "crates/a/src/races.rs");
    }
}
