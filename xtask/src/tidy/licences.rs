//! What may be linked: licences, sources and duplicates of third-party crates, from `cargo metadata`.

use std::path::Path;

use anyhow::Context as _;

use super::Finding;

/// Licences that a linked crate may have. A choice (`A OR B`) needs one of them, a sum (`A AND B`) all.
const ALLOWED: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "CC0-1.0",
    "Unlicense",
    "BSL-1.0",
    "Unicode-3.0",
];

/// Appends a finding for each crate from elsewhere than crates.io or under another licence.
pub fn check(root: &Path, findings: &mut Vec<Finding>) -> anyhow::Result<()> {
    let metadata = super::metadata(root, true)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    for package in packages {
        let name = package["name"].as_str().unwrap_or("?");
        let Some(source) = package["source"].as_str() else {
            continue; // Ours.
        };
        if source != "registry+https://github.com/rust-lang/crates.io-index" {
            let message =
                format!("`{name}` comes from {source}: depend on released crates of crates.io only.");
            findings.push(Finding::new(Path::new("Cargo.lock"), 0, "source", message));
        }
        let licence = package["license"].as_str().unwrap_or("no licence given");
        if !acceptable(licence) {
            let message = format!(
                "`{name}` is under `{licence}`: we link permissive licences only. Find another crate, or make it a \
                 separate program."
            );
            findings.push(Finding::new(Path::new("Cargo.lock"), 0, "licence", message));
        }
    }
    Ok(())
}

/// Evaluates an SPDX expression; `/` is the old way to write `OR`.
fn acceptable(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    // Parentheses only group choices in practice: `(A OR B) AND C` is true when each `AND` part is.
    expression.split(" AND ").all(|part| {
        part.split(" OR ").any(|licence| ALLOWED.contains(&licence.trim_matches(|c| " ()".contains(c))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissive_licences_pass_and_others_do_not() {
        for good in ["MIT", "MIT OR Apache-2.0", "MIT/Apache-2.0", "(MIT OR GPL-2.0) AND Unicode-3.0"] {
            assert!(acceptable(good), "{good}");
        }
        for bad in ["GPL-3.0-only", "EUPL-1.2", "MIT AND AGPL-3.0-only", "no licence given"] {
            assert!(!acceptable(bad), "{bad}");
        }
    }
}
