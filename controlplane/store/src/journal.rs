//! A state file as a journal: one line per change, for programs that may be killed at any instant and must know what holds afterwards.
//!
//! The first line names the format. Each further one is one change: a checksum, and the change as JSON. Who makes a change writes
//! it first, and says that it is done when [`Written::durable`] has returned. When the file is opened it is read, and written anew
//! beside the old one, which it then replaces. Who has opened it holds a lock on `<file>.lock`, as the file itself is replaced.
//!
//! A last line without its end was being written when the program was killed: nobody was told that it is done, so it is left
//! out. Anything else that is wrong is an error that names the line, because guessing would do what nobody expects.
//!
//! What is kept is the program's own type, which implements [`Contents`].

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use telemetry::counters::Counter;
use tokio::task::JoinHandle;

static TORN: Counter = Counter::new("journal_torn_lines");
static SYNCED: Counter = Counter::new("journal_syncs");

/// Octets of changes after which the file is written anew.
const COMPACT_AFTER: usize = 64 << 20;

/// What a journal keeps.
pub trait Contents: Default {
    /// A change of it.
    type Change: Serialize + DeserializeOwned;
    /// The first line of its files.
    const FORMAT: &'static str;
    /// The program that writes it, for messages.
    const PROGRAM: &'static str;
    /// What happens without a file, for whoever finds it damaged.
    const WITHOUT: &'static str;

    /// Makes a change.
    fn apply(&mut self, change: Self::Change);

    /// Changes that lead from nothing to these contents.
    fn changes(&self) -> Vec<Self::Change>;
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
    #[error("{}: another {program} uses it; stop that one, or name another file (key `state`)", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
        /// What uses it.
        program: &'static str,
    },
    /// It is damaged.
    #[error("{}, line {line}: {what}; put back a copy, or remove the file: {without}", path.display())]
    Corrupted {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
        /// What happens without the file.
        without: &'static str,
    },
}

/// The open file.
#[derive(Debug)]
pub struct Journal<C> {
    path: PathBuf,
    file: Arc<File>,
    /// Octets of changes since it was begun.
    written: usize,
    /// Locked as long as it is open.
    _lock: File,
    contents: PhantomData<fn() -> C>,
}

impl<C: Contents> Journal<C> {
    /// Reads the file, if there is one, and changes nothing.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn check(path: &Path) -> Result<C, JournalError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(JournalError::Io { path: path.to_owned(), error }),
        };
        read(&text).map_err(|(line, what)| JournalError::Corrupted {
            path: path.to_owned(),
            line,
            what,
            without: C::WITHOUT,
        })
    }

    /// Reads the file, if there is one, and begins it anew.
    ///
    /// # Errors
    /// It cannot be read or written, is damaged, or somebody else has opened it.
    pub fn open(path: &Path) -> Result<(Journal<C>, C), JournalError> {
        let io = |error| JournalError::Io { path: path.to_owned(), error };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(io)?;
        }
        let lock = File::options().create(true).append(true).open(beside(path, ".lock")).map_err(io)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => JournalError::InUse { path: path.to_owned(), program: C::PROGRAM },
            TryLockError::Error(error) => io(error),
        })?;
        let contents = Self::check(path)?;
        let file = begin(path, &contents).map_err(io)?;
        let journal = Journal { path: path.to_owned(), file, written: 0, _lock: lock, contents: PhantomData };
        Ok((journal, contents))
    }

    /// Writes a change. `all` gives what holds afterwards. It outlives this process at once, and the machine's failure when what is
    /// returned says so.
    ///
    /// # Errors
    /// The file cannot be written. It is then begun anew by the next change.
    pub fn write(&mut self, change: &C::Change, all: impl FnOnce() -> C) -> Result<Written, JournalError> {
        self.write_line(&Line::of(change), all)
    }

    /// Writes a change whose line was made before, as [`Journal::write`] does.
    ///
    /// # Errors
    /// As [`Journal::write`].
    pub fn write_line(&mut self, line: &Line<C>, all: impl FnOnce() -> C) -> Result<Written, JournalError> {
        let io = |path: &Path, error| JournalError::Io { path: path.to_owned(), error };
        if self.written > COMPACT_AFTER {
            self.file = begin(&self.path, &all()).map_err(|error| io(&self.path, error))?;
            self.written = 0;
            return Ok(Written { path: self.path.clone(), sync: None });
        }
        self.written += line.text.len();
        if let Err(error) = (&*self.file).write_all(line.text.as_bytes()) {
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
        self.written = COMPACT_AFTER + 1;
    }
}

/// The line of a change: of many users it takes milliseconds to make.
#[derive(Debug)]
pub struct Line<C> {
    text: String,
    contents: PhantomData<fn() -> C>,
}

impl<C: Contents> Line<C> {
    /// Of a change.
    pub fn of(change: &C::Change) -> Line<C> {
        Line { text: line(change), contents: PhantomData }
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

/// Writes a file with these contents, and puts it in the place of the old one.
fn begin<C: Contents>(path: &Path, contents: &C) -> io::Result<Arc<File>> {
    let new = beside(path, ".new");
    let mut file = File::options().create(true).write(true).truncate(true).open(&new)?;
    file.write_all(write_all(contents).as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    // The new name is on the disk when the folder is.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?;
    Ok(Arc::new(file))
}

/// The text of a file with these contents.
pub fn write_all<C: Contents>(contents: &C) -> String {
    format!("{}\n{}", C::FORMAT, contents.changes().iter().map(line).collect::<String>())
}

fn line(change: &impl Serialize) -> String {
    // Changes are plain data.
    let json = serde_json::to_string(change).unwrap_or_default();
    format!("{:08x} {json}\n", crc32(json.as_bytes()))
}

/// Reads the text of a file.
///
/// # Errors
/// The line, from 1, and what is wrong with it.
pub fn read<C: Contents>(text: &[u8]) -> Result<C, (usize, String)> {
    let mut contents = C::default();
    if text.is_empty() {
        return Ok(contents);
    }
    let mut lines = text.split_inclusive(|octet| *octet == b'\n').enumerate();
    let first = lines.next().map(|(_, line)| line).unwrap_or_default();
    if first != format!("{}\n", C::FORMAT).as_bytes() {
        return Err((1, format!("`{}` is expected there", C::FORMAT)));
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
        contents.apply(serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))?);
    }
    Ok(contents)
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
    use std::collections::BTreeSet;

    use super::*;

    #[derive(Debug, Default, Clone, PartialEq, Eq)]
    struct Words(BTreeSet<String>);

    impl Contents for Words {
        type Change = Vec<String>;
        const FORMAT: &'static str = "words 1";
        const PROGRAM: &'static str = "dictionary";
        const WITHOUT: &'static str = "then there are no words";

        fn apply(&mut self, words: Vec<String>) {
            self.0.extend(words);
        }

        fn changes(&self) -> Vec<Vec<String>> {
            self.0.iter().map(|word| vec![word.clone()]).collect()
        }
    }

    async fn add(journal: &mut Journal<Words>, all: &mut Words, words: &[&str]) -> Result<(), JournalError> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        all.apply(words.clone());
        journal.write(&words, || all.clone())?.durable().await
    }

    #[tokio::test]
    async fn what_was_written_is_read_also_after_a_kill_at_any_octet() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/state");
        let (mut journal, mut all) = Journal::<Words>::open(&path).unwrap();
        let before = std::fs::read(&path).unwrap().len();
        add(&mut journal, &mut all, &["one", "two"]).await.unwrap();
        let octets = std::fs::read(&path).unwrap();
        assert_eq!(read(&octets), Ok(all.clone()));
        for length in before..octets.len() {
            // A change is there whole, or not at all.
            assert_eq!(read(&octets[..length]), Ok(Words::default()));
        }
        let said = Journal::<Words>::open(&path).unwrap_err().to_string();
        assert!(said.contains("another dictionary uses it; stop that one"), "{said}");
        drop(journal);
        assert_eq!(Journal::<Words>::open(&path).unwrap().1, all);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3, "begun anew");
    }

    #[test]
    fn a_damaged_file_is_an_error_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let text = write_all(&Words(["one".to_owned()].into()));
        for (text, expected) in [
            (text.replace("one", "two"), "line 2: the checksum"),
            ("something\n".to_owned(), "line 1"),
            ("words 1\nx\n".to_owned(), "too short"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let said = Journal::<Words>::open(&path).unwrap_err().to_string();
            assert!(said.contains(expected) && said.contains("remove the file: then there are"), "{said}");
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
        let lost = add(&mut journal, &mut all, &["one"]).await;
        assert!(matches!(lost, Err(JournalError::Io { .. })));
        journal.begin_anew();
        add(&mut journal, &mut all, &["two"]).await.unwrap();
        assert_eq!(Journal::<Words>::check(&path).unwrap(), all);
    }
}
