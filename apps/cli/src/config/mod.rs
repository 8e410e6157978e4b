//! `godwit.yaml`: one file, one section per NF, checked whole before anything starts.
//!
//! Flow: [`load`] parses the file into a tree that knows its lines ([`yaml`]), checks the top-level keys,
//! copies shared values into the sections that need them, reads each section as that NF's `Config` ([`de`]),
//! and finally checks what no section can see alone. All problems are reported at once, each as
//! `file:line: key: what is wrong`.

use std::fmt;
use std::path::{Path, PathBuf};

pub mod de;
pub mod yaml;

/// One mistake in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// 1-based line.
    pub line: usize,
    /// The key it is about, from the top: `amf.tac[1]`. Empty for the whole file.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl Problem {
    /// A mistake on a line.
    pub fn at(line: usize, path: &str, message: impl Into<String>) -> Self {
        Problem { line, path: path.to_owned(), message: message.into() }
    }
}

/// All mistakes found in one file.
#[derive(Debug)]
pub struct Problems {
    /// The file as named on the command line.
    pub file: PathBuf,
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            write!(f, "{}:{}: ", self.file.display(), problem.line)?;
            if !problem.path.is_empty() {
                write!(f, "{}: ", problem.path)?;
            }
            writeln!(f, "{}", problem.message)?;
        }
        write!(f, "nothing was started")
    }
}

impl std::error::Error for Problems {}

/// Reads and checks a configuration.
///
/// # Errors
/// [`Problems`] when the file is wrong; another error when it cannot be read.
pub fn load(file: &Path) -> anyhow::Result<yaml::Node> {
    use anyhow::Context as _;
    let text = std::fs::read_to_string(file).with_context(|| {
        format!(
            "cannot read {} (name another file with -c, or copy godwit.yaml of the sources)",
            file.display()
        )
    })?;
    parse(&text).map_err(|problems| Problems { file: file.to_owned(), problems }.into())
}

/// Checks the text of a configuration.
///
/// # Errors
/// Every problem found, never none.
pub fn parse(text: &str) -> Result<yaml::Node, Vec<Problem>> {
    yaml::parse(text).map_err(|problem| vec![problem])
}
