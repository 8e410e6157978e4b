//! The rules of the repository as a test.
//!
//! Flow: [`run`] asks git for the files and cargo for the dependency graph, and passes them to one
//! module per kind of rule: [`layers`] (which crate may depend on which), [`licences`] (which crates
//! may be linked), [`source`] (Rust files), [`prose`] (all text files). Nothing here changes a file.
//!
//! A line may be exempted if a rule does not fit, with the reason beside it:
//! `// tidy-allow: function-length: one match arm per IE, splitting it would hide the table`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

mod layers;
mod lexer;
mod licences;
mod prose;
mod source;

/// One broken rule.
pub struct Finding {
    /// Path from the root, if known.
    file: PathBuf,
    /// 1-based, 0 for the whole file.
    line: usize,
    /// Short name of the rule, for `tidy-allow`.
    rule: &'static str,
    /// What is wrong and what to do instead.
    message: String,
}

impl Finding {
    fn new(file: &Path, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Finding { file: file.to_owned(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": [{}] {}", self.rule, self.message)
    }
}

/// Checks everything below `root` that git tracks or could track.
pub fn run(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    layers::check(root, &mut findings)?;
    licences::check(root, &mut findings)?;
    for file in files(root)? {
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else {
            continue; // Binary, or removed since git listed it.
        };
        prose::check(root, &file, &text, &mut findings);
        if file.extension().is_some_and(|e| e == "rs") {
            source::check(&file, &text, &mut findings);
        }
    }
    findings.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    Ok(findings)
}

/// Tracked files, and new files that are not ignored, as paths from the root.
fn files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"])
        .current_dir(root)
        .output()
        .context("git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    }
    let names = String::from_utf8(output.stdout).context("file name is not UTF-8")?;
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
}

/// `cargo metadata` of the workspace as JSON; `resolved` includes third-party packages.
fn metadata(root: &Path, resolved: bool) -> anyhow::Result<serde_json::Value> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version=1"]).current_dir(root);
    if !resolved {
        command.arg("--no-deps");
    }
    let output = command.output().context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
