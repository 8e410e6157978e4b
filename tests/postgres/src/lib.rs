//! Debian's PostgreSQL for tests of other crates and for experiments: a cluster with its files in a folder of its own, reached by a Unix
//! socket in that folder only. It ends with the value, or with the thread that has started it. Calls block.
//!
//! PostgreSQL refuses to run as root. Then it runs as `nobody`, to whom the folder belongs.
#![forbid(unsafe_code)]

use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use net::time::{self, Duration};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Debian's `nobody` and `nogroup`.
const NOBODY: u32 = 65_534;

/// The database and the role that may do everything in it.
const NAME: &str = "postgres";

/// Tries, a twentieth of a second apart, after which the server should be ready.
const TRIES: usize = 600;

/// Whether PostgreSQL is there; with `CI` set it must be.
///
/// # Panics
/// `CI` is set and it is not there.
#[allow(clippy::print_stderr, reason = "for tests")]
pub fn is_possible() -> bool {
    let Err(why) = programs() else { return true };
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("skipped: {why}");
    false
}

/// The folder with `initdb` and `postgres`: Debian's newest, else one of `PATH`.
///
/// # Errors
/// There is none.
pub fn programs() -> anyhow::Result<PathBuf> {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = debian
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = versions.into_iter().rev().map(|(_, folder)| folder).chain(std::env::split_paths(&path));
    let is_complete = |folder: &PathBuf| ["initdb", "postgres"].iter().all(|name| folder.join(name).exists());
    folders.into_iter().find(is_complete).context("PostgreSQL is missing: scripts/setup.sh test")
}

/// A running cluster.
#[derive(Debug)]
pub struct Postgres {
    folder: tempfile::TempDir,
    server: Option<Child>,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.crash();
    }
}

impl Postgres {
    /// Makes a cluster and starts it. Commits are written to the disk, as in operation.
    ///
    /// # Errors
    /// PostgreSQL is not there, or does not start.
    pub fn start() -> anyhow::Result<Postgres> {
        let folder = tempfile::Builder::new().prefix("godwit-postgres").tempdir()?;
        if is_root() {
            chown(folder.path(), Some(NOBODY), Some(NOBODY))?;
        }
        let mut own = Postgres { folder, server: None };
        let data = own.data();
        let made = own
            .command("initdb")?
            .args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username", NAME])
            .arg(data)
            .output()?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        own.restart()?;
        Ok(own)
    }

    /// Starts the server after [`Postgres::crash`], and waits until it takes connections.
    ///
    /// # Errors
    /// It does not start; its log is in the error.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.crash();
        let log = std::fs::File::create(self.folder.path().join("log"))?;
        let mut command = self.command("postgres")?;
        command.arg("-D").arg(self.data()).arg("-k").arg(self.folder.path());
        command.args(["-c", "listen_addresses="]);
        self.server = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        for _ in 0..TRIES {
            time::sleep_thread(Duration::from_millis(50));
            // Its last line is how far the server is.
            let state = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
            if state.lines().nth(7).is_some_and(|line| line.trim() == "ready") {
                return Ok(());
            }
            if self.server.as_mut().is_none_or(|server| !matches!(server.try_wait(), Ok(None))) {
                break;
            }
        }
        bail!(
            "PostgreSQL does not start: {}",
            std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
        )
    }

    /// Ends the server at once, without having it write anything: the next start recovers from its log.
    pub fn crash(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = kill(Pid::from_raw(server.id().cast_signed()), Signal::SIGQUIT);
            let _ = server.wait();
        }
    }

    /// Where the database is, as libpq and `store::Records` read it.
    pub fn url(&self) -> String {
        format!("postgresql:host={} user={NAME} dbname={NAME}", self.folder.path().display())
    }

    /// Runs SQL; what it says, a line for a row.
    ///
    /// # Errors
    /// `psql` is missing, or the SQL is wrong.
    pub fn sql(&self, sql: &str) -> anyhow::Result<String> {
        let mut command = Command::new("psql");
        command.arg("-h").arg(self.folder.path()).args(["-U", NAME, "-d", NAME, "-qAtX", "-c", sql]);
        let output = command.stdin(Stdio::null()).output().context("psql")?;
        ensure!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Octets of the database's files.
    ///
    /// # Errors
    /// As [`Postgres::sql`].
    pub fn octets(&self) -> anyhow::Result<u64> {
        Ok(self.sql(&format!("SELECT pg_database_size('{NAME}')"))?.trim().parse()?)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A program of PostgreSQL, which gets a signal when this thread ends and is not root.
    fn command(&self, program: &str) -> anyhow::Result<Command> {
        let program = programs()?.join(program);
        let mut command = Command::new("setpriv");
        command.arg("--pdeathsig=QUIT");
        if is_root() {
            command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
        }
        command.arg("--").arg(program).current_dir(self.folder.path()).stdin(Stdio::null());
        Ok(command)
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_keeps_what_was_committed_when_it_crashes() {
        if !is_possible() {
            return;
        }
        let mut cluster = Postgres::start().unwrap();
        cluster.sql("CREATE TABLE number (n int); INSERT INTO number VALUES (1), (2)").unwrap();
        cluster.crash();
        assert!(cluster.sql("SELECT 1").is_err());
        cluster.restart().unwrap();
        assert_eq!(cluster.sql("SELECT n FROM number ORDER BY n").unwrap(), "1\n2\n");
        assert!(cluster.octets().unwrap() > 1_000_000);
        let folder = cluster.folder.path().to_owned();
        drop(cluster);
        assert!(!folder.exists());
    }
}
