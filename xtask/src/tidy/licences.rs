//! Which crates may be linked: licences, sources and duplicates of third-party crates, from `cargo
//! metadata`.

use std::path::Path;

use anyhow::Context as _;

use super::Finding;

/// Appends a finding for each crate from another source than crates.io or with another licence.
pub fn check(root: &Path, findings: &mut Vec<Finding>) -> anyhow::Result<()> {
    let allowed = allowed(&std::fs::read_to_string(root.join("deny.toml")).context("deny.toml")?);
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
        if !acceptable(licence, &allowed) {
            let message = format!(
                "`{name}` is under `{licence}`: we link permissive licences only (deny.toml). Find another crate, or make it a \
                 separate program."
            );
            findings.push(Finding::new(Path::new("Cargo.lock"), 0, "licence", message));
        }
    }
    Ok(())
}

/// The list `allow = [...]` of deny.toml: licences of crates that may be linked.
fn allowed(deny: &str) -> Vec<String> {
    let list = deny
        .split_once("\nallow = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Evaluates an SPDX expression: of alternatives (`A OR B`, formerly `A/B`) one must be in the list, of
/// combinations (`A AND B`) all.
fn acceptable(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace('/', " OR ");
    // In practice parentheses only group alternatives: `(A OR B) AND C` is true if each `AND` part is.
    expression.split(" AND ").all(|part| {
        part.split(" OR ").any(|licence| {
            let licence = licence.trim_matches(|c| " ()".contains(c));
            allowed.iter().any(|allowed| allowed == licence)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissive_licences_pass_and_others_do_not() {
        let allowed =
            allowed("[licenses]\nallow = [\n    \"MIT\",\n    \"Apache-2.0\",\n    \"Unicode-3.0\",\n]\n");
        for good in ["MIT", "MIT OR Apache-2.0", "MIT/Apache-2.0", "(MIT OR GPL-2.0) AND Unicode-3.0"] {
            assert!(acceptable(good, &allowed), "{good}");
        }
        for bad in ["GPL-3.0-only", "EUPL-1.2", "MIT AND AGPL-3.0-only", "no licence given"] {
            assert!(!acceptable(bad, &allowed), "{bad}");
        }
    }
}
