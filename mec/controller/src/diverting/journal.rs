//! The wanted diversions in a file, so that they survive the controller (ADR 0030).
//!
//! The first line names the format. Each further one is all that one request changes: a checksum, and what is set or removed, as JSON.
//! A change is in the file before it is in a switch, and on the disk before anybody is told that it is done. When the file is opened it is read, and written anew as one line per diversion,
//! beside the old one, which it then replaces. Who has opened it holds a lock on `<file>.lock`, as the file itself is replaced.
//!
//! A last line without its end was being written when the controller was killed: nobody was told that it is done, so it is left
//! out. Anything else that is wrong is an error that names the line: guessing would leave users where nobody expects them.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use telemetry::counters::Counter;
use tokio::task::JoinHandle;

use super::model::Diversion;

static TORN: Counter = Counter::new("controller_state_torn_lines");
static SYNCED: Counter = Counter::new("controller_state_syncs");

const FORMAT: &str = "godwit diversions 1";
/// Changes after which the file is written anew.
const COMPACT_AFTER: usize = 100_000;

/// All diversions by their ids.
pub type Diversions = BTreeMap<String, Diversion>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Change {
    Set(Diversion),
    Remove(String),
    /// What one request sets and removes; all of it, or nothing if the line is torn.
    Batch {
        set: Vec<Diversion>,
        remove: Vec<String>,
    },
}

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Somebody else has opened it.
    #[error("{}: another controller uses it; stop that one, or name another file (key `state`)", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It is damaged.
    #[error(
        "{}, line {line}: {what}; put back a copy, or remove the file: then nothing is diverted, and switches lose their diverting rules",
        path.display()
    )]
    Corrupted {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
}

/// The open file.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Arc<File>,
    changes: usize,
    /// Locked as long as it is open.
    _lock: File,
}

impl Journal {
    /// Reads the file, if there is one, and changes nothing.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn check(path: &Path) -> Result<Diversions, JournalError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(JournalError::Io { path: path.to_owned(), error }),
        };
        read(&text).map_err(|(line, what)| JournalError::Corrupted { path: path.to_owned(), line, what })
    }

    /// Reads the file, if there is one, and begins it anew.
    ///
    /// # Errors
    /// It cannot be read or written, is damaged, or somebody else has opened it.
    pub fn open(path: &Path) -> Result<(Journal, Diversions), JournalError> {
        let io = |error| JournalError::Io { path: path.to_owned(), error };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(io)?;
        }
        let lock = File::options().create(true).append(true).open(beside(path, ".lock")).map_err(io)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => JournalError::InUse { path: path.to_owned() },
            TryLockError::Error(error) => io(error),
        })?;
        let diversions = Self::check(path)?;
        let file = begin(path, &diversions).map_err(io)?;
        Ok((Journal { path: path.to_owned(), file, changes: 0, _lock: lock }, diversions))
    }

    /// Writes changes: new values, and ids that are gone. `all` is what holds afterwards. They outlive this process at once, and the
    /// machine's failure when what is returned says so.
    ///
    /// # Errors
    /// The file cannot be written. It is then begun anew by the next change.
    pub fn write(
        &mut self,
        set: &[Diversion],
        removed: &[String],
        all: &Diversions,
    ) -> Result<Written, JournalError> {
        let io = |path: &Path, error| JournalError::Io { path: path.to_owned(), error };
        if self.changes > COMPACT_AFTER {
            self.file = begin(&self.path, all).map_err(|error| io(&self.path, error))?;
            self.changes = 0;
            return Ok(Written { path: self.path.clone(), sync: None });
        }
        let line = line(&Change::Batch { set: set.to_vec(), remove: removed.to_vec() });
        self.changes += set.len() + removed.len();
        if let Err(error) = (&*self.file).write_all(line.as_bytes()) {
            // Part of it may be there.
            self.begin_anew();
            return Err(io(&self.path, error));
        }
        let file = self.file.clone();
        // The disk takes milliseconds, in which others of this thread go on.
        let sync = tokio::task::spawn_blocking(move || file.sync_data());
        Ok(Written { path: self.path.clone(), sync: Some(sync) })
    }

    /// Has the next change write the whole file: of this one it is not known what is on the disk.
    pub fn begin_anew(&mut self) {
        self.changes = COMPACT_AFTER + 1;
    }
}

/// A change on its way to the disk.
#[derive(Debug)]
#[must_use = "a change is done when it is on the disk"]
pub struct Written {
    path: PathBuf,
    /// None: it is there.
    sync: Option<JoinHandle<io::Result<()>>>,
}

impl Written {
    /// Waits until the change is on the disk.
    ///
    /// # Errors
    /// The disk does not take it.
    pub async fn durable(self) -> Result<(), JournalError> {
        let Some(sync) = self.sync else { return Ok(()) };
        SYNCED.inc();
        let synced = sync.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        synced.map_err(|error| JournalError::Io { path: self.path, error })
    }
}

/// The path with something behind it.
fn beside(path: &Path, behind: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(behind);
    path.with_file_name(name)
}

/// Writes a file with these diversions, and puts it in the place of the old one.
fn begin(path: &Path, diversions: &Diversions) -> io::Result<Arc<File>> {
    let new = beside(path, ".new");
    let mut file = File::options().create(true).write(true).truncate(true).open(&new)?;
    file.write_all(write_all(diversions).as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    // The new name is on the disk when the folder is.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?;
    Ok(Arc::new(file))
}

/// The text of a file with these diversions.
pub fn write_all(diversions: &Diversions) -> String {
    let changes = diversions.values().map(|diversion| line(&Change::Set(diversion.clone())));
    format!("{FORMAT}\n{}", changes.collect::<String>())
}

fn line(change: &Change) -> String {
    // A diversion is plain data.
    let json = serde_json::to_string(change).unwrap_or_default();
    format!("{:08x} {json}\n", crc32(json.as_bytes()))
}

/// Reads a state file; the error has the line, from 1.
pub fn read(text: &[u8]) -> Result<Diversions, (usize, String)> {
    let mut diversions = Diversions::new();
    if text.is_empty() {
        return Ok(diversions);
    }
    let mut lines = text.split_inclusive(|octet| *octet == b'\n').enumerate();
    let first = lines.next().map(|(_, line)| line).unwrap_or_default();
    if first != format!("{FORMAT}\n").as_bytes() {
        return Err((1, format!("`{FORMAT}` is expected there")));
    }
    for (at, line) in lines {
        let Some(line) = line.strip_suffix(b"\n") else {
            TORN.inc();
            break;
        };
        let wrong = |what: String| (at + 1, what);
        let (sum, json) = line.split_at_checked(9).ok_or_else(|| wrong("it is too short".to_owned()))?;
        let sum = std::str::from_utf8(&sum[..8]).ok().and_then(|text| u32::from_str_radix(text, 16).ok());
        if sum != Some(crc32(json)) {
            return Err(wrong("the checksum is wrong".to_owned()));
        }
        match serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))? {
            Change::Set(diversion) => _ = diversions.insert(diversion.id(), diversion),
            Change::Remove(id) => _ = diversions.remove(&id),
            Change::Batch { set, remove } => {
                for id in &remove {
                    diversions.remove(id);
                }
                diversions.extend(set.into_iter().map(|diversion| (diversion.id(), diversion)));
            }
        }
    }
    Ok(diversions)
}

/// The CRC-32 of each octet.
const CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut octet = 0;
    while octet < table.len() {
        let (mut crc, mut bit) = (octet as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[octet] = crc;
        octet += 1;
    }
    table
};

/// CRC-32 of IEEE 802.3, by octets: the line of 10,000 users has some megabytes.
fn crc32(octets: &[u8]) -> u32 {
    !octets.iter().fold(u32::MAX, |crc, octet| crc >> 8 ^ CRC[usize::from(crc as u8 ^ octet)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diversion(ue: &str) -> Diversion {
        serde_json::from_value(serde_json::json!(
            {"ue": ue, "from": "gw1", "to": "gw2", "base_station": "enb1", "confirmed_by": "test"}
        ))
        .unwrap()
    }

    #[tokio::test]
    async fn what_was_written_is_read_also_after_a_kill_at_any_octet() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/state");
        let (mut journal, mut all) = Journal::open(&path).unwrap();
        assert!(all.is_empty());
        let before = std::fs::read(&path).unwrap().len();
        for ue in ["10.45.0.2", "10.45.0.3"] {
            let one = diversion(ue);
            all.insert(one.id(), one.clone());
            journal.write(&[one], &[], &all).unwrap().durable().await.unwrap();
        }
        journal
            .write(&[], &["gw1~10.45.0.2".to_owned()], &Diversions::new())
            .unwrap()
            .durable()
            .await
            .unwrap();
        let octets = std::fs::read(&path).unwrap();
        let left = read(&octets).unwrap();
        assert_eq!(left.keys().collect::<Vec<_>>(), ["gw1~10.45.0.3"]);
        // Cut anywhere behind the first line it holds a beginning of the changes.
        for length in before..octets.len() {
            assert!(read(&octets[..length]).unwrap().len() <= 2);
        }
        drop(journal);
        let (_, again) = Journal::open(&path).unwrap();
        assert_eq!(again, left);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2, "begun anew");
    }

    #[tokio::test]
    async fn a_request_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let before = std::fs::read(&path).unwrap().len();
        let both = ["10.45.0.2", "10.45.0.3"].map(diversion);
        journal.write(&both, &[], &Diversions::new()).unwrap().durable().await.unwrap();
        let octets = std::fs::read(&path).unwrap();
        assert_eq!(read(&octets).unwrap().len(), 2);
        for length in before..octets.len() {
            assert!(read(&octets[..length]).unwrap().is_empty());
        }
    }

    #[tokio::test]
    async fn an_open_file_is_not_touched_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let said = Journal::open(&path).unwrap_err().to_string();
        assert!(said.contains("stop that one"), "{said}");
        let one = diversion("10.45.0.2");
        journal.write(std::slice::from_ref(&one), &[], &Diversions::new()).unwrap().durable().await.unwrap();
        assert_eq!(Journal::check(&path).unwrap().into_values().collect::<Vec<_>>(), [one]);
        drop(journal);
        assert_eq!(Journal::open(&path).unwrap().1.len(), 1);
    }

    #[test]
    fn a_damaged_file_is_an_error_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let text = format!(
            "{FORMAT}\n{}{}",
            line(&Change::Set(diversion("10.45.0.2"))),
            line(&Change::Remove("x".into()))
        );
        let damaged = text.replace("10.45.0.2", "10.45.0.9");
        for (text, expected) in [
            (damaged.as_str(), "line 2: the checksum"),
            ("something\n", "line 1"),
            (&format!("{FORMAT}\nx\n"), "too short"),
        ] {
            std::fs::write(&path, text).unwrap();
            let said = Journal::open(&path).unwrap_err().to_string();
            assert!(said.contains(expected) && said.contains("remove the file"), "{said}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "left as it is");
        }
    }

    /// A disk that does not take a change is an error, and the next change writes everything anew.
    #[tokio::test]
    async fn a_change_that_does_not_get_to_the_disk_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (mut journal, mut all) = Journal::open(&path).unwrap();
        // It can be written, but not be synchronised.
        journal.file = Arc::new(File::options().write(true).open("/dev/null").unwrap());
        let (first, second) = (diversion("10.45.0.2"), diversion("10.45.0.3"));
        all.insert(first.id(), first.clone());
        let written = journal.write(&[first], &[], &all).unwrap();
        assert!(matches!(written.durable().await, Err(JournalError::Io { .. })));
        journal.begin_anew();
        all.insert(second.id(), second.clone());
        journal.write(&[second], &[], &all).unwrap().durable().await.unwrap();
        assert_eq!(Journal::check(&path).unwrap(), all);
    }
}
