//! `cargo xtask licences`: the licence of every dependency is one that we accept.

use crate::Failure;
use crate::metadata::Metadata;
use crate::spdx::satisfied;

/// Licences that a binary under Apache-2.0 may contain without asking anything of its users but the notice.
const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    // Asks for the source of its own files only; a few crates have it.
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Checks all dependencies of all platforms, those of tests included.
pub fn check() -> Result<(), Failure> {
    let metadata = Metadata::load()?;
    let mut count = 0;
    let mut refused = Vec::new();
    for package in metadata.packages().filter(|package| !package.ours) {
        count += 1;
        let name = format!("{} {}", package.name, package.version);
        match &package.licence {
            None => refused.push(format!("{name}: its manifest names no licence")),
            Some(expression) => match satisfied(expression, &|licence| ACCEPTED.contains(&licence)) {
                Ok(true) => {}
                Ok(false) => refused.push(format!("{name}: {expression}")),
                Err(failure) => refused.push(format!("{name}: {failure}")),
            },
        }
    }
    if refused.is_empty() {
        println!("{count} dependencies, all under licences that we accept");
        return Ok(());
    }
    Err(format!("licences that xtask/src/licences.rs does not accept:\n  {}", refused.join("\n  ")))
}
