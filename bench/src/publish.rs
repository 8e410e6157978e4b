//! Publishing: decides which results may be written to `bench/results`, to which SPECIFICATION.md refers.
//!
//! A published figure must be reproducible. So its result names a commit, and the program that measured it was
//! built from that commit: the tree has no changes, the program is a release build and not older than its
//! sources, and every check of the experiment held. All other results go to `bench/results/latest`, which git
//! ignores, or to a folder outside the repository.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::result::Experiment;

/// Folder of published results in the repository.
const RESULTS: &str = "bench/results";
/// Its subfolder that is not published.
const LATEST: &str = "latest";
/// Most changed files that an error names.
const SHOWN: usize = 5;

/// Why a result is not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The tree has changes, so the commit does not identify what was measured.
    #[error("the tree has changes that are in no commit ({0}): commit them and build again")]
    Dirty(String),
    /// The program was built from other sources than those of the commit.
    #[error("this program was built before {0} was last changed: build it again")]
    Stale(PathBuf),
    /// The file that names the program's sources is missing.
    #[error(
        "{0} is not there, which says what this program was built from: run the one that cargo has built"
    )]
    Unknown(PathBuf),
    /// A debug build.
    #[error("this is a debug build: `make bench` makes another")]
    Debug,
    /// A commit was made during the experiment.
    #[error("the result is of commit {measured}, and the tree is now at {now}")]
    Moved {
        /// Commit when the experiment began.
        measured: String,
        /// Commit when it ended.
        now: String,
    },
    /// A check of the experiment failed.
    #[error("checks failed: {0}")]
    Failed(String),
    /// Git does not run, or its output is not understood.
    #[error("git: {0}")]
    Git(String),
}

/// The checkout in which a folder publishes; `None` when results in the folder are not published.
///
/// # Errors
/// Git does not run.
fn checkout(folder: &Path) -> Result<Option<PathBuf>, PublishError> {
    let Some(existing) = folder.ancestors().find(|folder| folder.is_dir()) else { return Ok(None) };
    let Ok(root) = git(existing, &["rev-parse", "--show-toplevel"]) else { return Ok(None) };
    let root = PathBuf::from(root.trim());
    // Resolves links and `..` if the folder exists already.
    let real = std::fs::canonicalize(existing).map_err(|error| PublishError::Git(error.to_string()))?;
    let rest = folder.strip_prefix(existing).unwrap_or(Path::new(""));
    let inside = real.join(rest);
    let published = inside.strip_prefix(root.join(RESULTS)).ok();
    Ok(published.filter(|within| !within.starts_with(LATEST)).map(|_| root))
}

/// Refuses a folder in which results of this program must not be published. Called before an experiment begins.
///
/// # Errors
/// The reason for the refusal.
pub fn permit(folder: &Path) -> Result<(), PublishError> {
    let Some(root) = checkout(folder)? else { return Ok(()) };
    if cfg!(debug_assertions) {
        return Err(PublishError::Debug);
    }
    clean(&root)?;
    let program = std::env::current_exe().map_err(|error| PublishError::Git(error.to_string()))?;
    not_stale(&program)
}

/// Refuses a result that must not be published in this folder.
///
/// # Errors
/// The reason for the refusal.
pub fn permit_result(experiment: &Experiment, folder: &Path) -> Result<(), PublishError> {
    let Some(root) = checkout(folder)? else { return Ok(()) };
    let failed: Vec<&str> =
        experiment.checks.iter().filter(|check| !check.ok).map(|check| check.name.as_str()).collect();
    if !failed.is_empty() {
        return Err(PublishError::Failed(failed.join("; ")));
    }
    clean(&root)?;
    let now = commit(&root);
    if experiment.commit != now {
        return Err(PublishError::Moved { measured: experiment.commit.clone(), now });
    }
    Ok(())
}

/// Where results for a folder go if they are not published.
pub fn latest(folder: &Path) -> PathBuf {
    let root = checkout(folder).ok().flatten();
    root.map_or_else(|| folder.to_owned(), |root| root.join(RESULTS).join(LATEST))
}

/// The commit of a folder's checkout, with `-dirty` when it has changes; `unknown` outside a checkout.
pub(crate) fn commit(folder: &Path) -> String {
    let Ok(name) = git(folder, &["describe", "--always", "--abbrev=12", "--exclude=*"]) else {
        return "unknown".to_owned();
    };
    let dirty = if changes(folder).is_ok_and(|changes| changes.is_empty()) { "" } else { "-dirty" };
    format!("{}{dirty}", name.trim())
}

fn clean(root: &Path) -> Result<(), PublishError> {
    let changes = changes(root)?;
    if changes.is_empty() {
        return Ok(());
    }
    let more = if changes.len() > SHOWN { ", …" } else { "" };
    Err(PublishError::Dirty(changes[..changes.len().min(SHOWN)].join(", ") + more))
}

/// Files that differ from the commit or are in none. Results are ignored, so that several runs can be published
/// one after the other.
fn changes(folder: &Path) -> Result<Vec<String>, PublishError> {
    let without = format!(":(top,exclude){RESULTS}");
    let text = git(folder, &["status", "--porcelain", "--untracked-files=all", "--", ":(top)", &without])?;
    Ok(text.lines().filter_map(|line| line.get(3..)).map(str::to_owned).collect())
}

fn git(folder: &Path, arguments: &[&str]) -> Result<String, PublishError> {
    let failed = |what: String| PublishError::Git(what.trim().to_owned());
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// Compares a program's age with the sources that cargo names in the file beside it.
fn not_stale(program: &Path) -> Result<(), PublishError> {
    let list = program.with_extension("d");
    let unknown = || PublishError::Unknown(list.clone());
    let text = std::fs::read_to_string(&list).map_err(|_| unknown())?;
    let changed = |file: &Path| file.metadata().and_then(|about| about.modified());
    let built: SystemTime = changed(program).map_err(|_| unknown())?;
    let sources = sources(&text);
    if sources.is_empty() {
        return Err(unknown());
    }
    // A source that is missing counts as changed.
    let newer = |source: &PathBuf| changed(source).is_ok_and(|at| at <= built);
    match sources.into_iter().find(|source| !newer(source)) {
        Some(source) => Err(PublishError::Stale(source)),
        None => Ok(()),
    }
}

/// The files after the colon of a makefile rule, in which spaces in names are escaped.
fn sources(rule: &str) -> Vec<PathBuf> {
    let Some((_, files)) = rule.lines().next().and_then(|line| line.split_once(": ")) else {
        return Vec::new();
    };
    let marked = files.replace("\\ ", "\0");
    marked.split(' ').filter(|file| !file.is_empty()).map(|file| file.replace('\0', " ").into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with one commit, in a folder of its own.
    fn repository(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("godwit-publish-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("src")).unwrap();
        std::fs::write(root.join(".gitignore"), "/bench/results/latest\n").unwrap();
        std::fs::write(root.join("src/lib.rs"), "//! Code.\n").unwrap();
        git(&root, &["init", "-q"]).unwrap();
        save(&root);
        std::fs::canonicalize(root).unwrap()
    }

    fn save(root: &Path) {
        git(root, &["add", "-A"]).unwrap();
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        git(root, &[&who[..], &["commit", "-q", "-m", "A commit"]].concat()).unwrap();
    }

    fn result(root: &Path) -> Experiment {
        let mut experiment = Experiment::new("upf", true);
        experiment.commit = commit(root);
        experiment
    }

    #[test]
    fn a_changed_tree_publishes_nothing() {
        let root = repository("dirty");
        let folder = root.join("bench/results/2026-01-01-here");
        let of = |experiment: &Experiment| permit_result(experiment, &folder);
        assert!(of(&result(&root)).is_ok());
        // Results that one experiment has published do not prevent the next one.
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("upf.json"), "{}").unwrap();
        let published = result(&root);
        assert!(!published.commit.contains("dirty") && of(&published).is_ok(), "{published:?}");

        std::fs::write(root.join("src/lib.rs"), "//! Other code.\n").unwrap();
        assert!(result(&root).commit.ends_with("-dirty"));
        assert!(matches!(of(&result(&root)), Err(PublishError::Dirty(of)) if of == "src/lib.rs"));
        for elsewhere in [root.join("bench/results/latest"), std::env::temp_dir().join("godwit-nowhere")] {
            assert!(permit_result(&result(&root), &elsewhere).is_ok(), "{elsewhere:?}");
        }
        save(&root);
        assert!(matches!(of(&published), Err(PublishError::Moved { .. })));
        std::fs::write(root.join("src/new.rs"), "//! In no commit.\n").unwrap();
        assert!(matches!(of(&result(&root)), Err(PublishError::Dirty(of)) if of == "src/new.rs"));
        std::fs::remove_file(root.join("src/new.rs")).unwrap();

        let mut failed = result(&root);
        failed.check("packets arrive", false, "");
        assert!(matches!(of(&failed), Err(PublishError::Failed(of)) if of == "packets arrive"));
        if cfg!(debug_assertions) {
            assert!(matches!(permit(&folder), Err(PublishError::Debug)));
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_program_older_than_its_sources_publishes_nothing() {
        let folder = std::env::temp_dir().join(format!("godwit-stale-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (program, source) = (folder.join("program"), folder.join("a source.rs"));
        std::fs::write(&source, "").unwrap();
        std::fs::write(&program, "").unwrap();
        assert!(matches!(not_stale(&program), Err(PublishError::Unknown(_))));
        let escaped = source.display().to_string().replace(' ', "\\ ");
        std::fs::write(folder.join("program.d"), format!("{}: {escaped}\n", program.display())).unwrap();
        assert!(not_stale(&program).is_ok());
        let later = net::time::wall_clock() + std::time::Duration::from_secs(5);
        std::fs::File::options().write(true).open(&source).unwrap().set_modified(later).unwrap();
        assert!(matches!(not_stale(&program), Err(PublishError::Stale(of)) if of == source));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
