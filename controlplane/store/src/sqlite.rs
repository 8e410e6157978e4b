//! The store in one SQLite file.
//!
//! Reads run on the caller's thread over their own connection (WAL: readers never wait for the writer;
//! a primary-key read takes about 10 µs, less than passing it to another thread). Writes go to one
//! writer thread, which commits all waiting writes in one transaction (group commit). Each call waits
//! for its commit, so a completed call is durable against `kill -9`. `synchronous = NORMAL`: a power
//! failure may lose the last commits; a USIM then finds the sequence number too low once and
//! resynchronises (TS 33.102 §6.3.5). What the operator writes (subscribers) is followed by a
//! checkpoint, which writes it to the disk.
//!
//! K, OPc and OP are encrypted (`seal.rs`). `schema.rs` has the tables, and encrypts the keys in tables
//! of older programs.

use std::{
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, params};
use tokio::sync::oneshot;
use types::{Ambr, Supi};

use crate::seal::{KeySource, StoreKey};
use crate::{
    Authentication, Change, OnConflict, OperatorCode, SERVING_AMF, SliceSubscription, Store, StoreError,
    StoreFuture, Subscriber,
};

mod schema;

/// Columns of a subscriber, in the order in which [`read_subscriber`] reads them.
const COLUMNS: &str = "imsi, msisdn, k, opc, op, amf, sqn, ue_ambr, slices";

/// How long one process waits for another's write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Most writes in one transaction, so that the first of them does not wait too long.
const GROUP_COMMIT_MAX: usize = 512;

/// Writes that may wait; callers wait when there are more.
const WRITE_QUEUE: usize = 4096;

/// A write, run inside the group's transaction. It returns the function that answers its caller after
/// the commit.
type Write = Box<dyn FnOnce(&Connection) -> AfterCommit + Send>;
/// Called with the result of the commit.
type AfterCommit = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The store in one SQLite file. Clones share it. Dropping the last clone closes the file, which merges
/// the write-ahead log into it and removes the log.
#[derive(Clone)]
pub struct Sqlite {
    // Dropped first: the writer's connection must be the last one, because the last one removes the
    // log.
    reader: Arc<Mutex<Connection>>,
    writer: Arc<Writer>,
    key: Arc<StoreKey>,
    path: Arc<PathBuf>,
}

/// The writer thread and its queue.
pub(crate) struct Writer {
    /// `None` only while the value is dropped.
    queue: Option<mpsc::SyncSender<Write>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Writer {
    pub(crate) fn start(connection: Connection) -> std::io::Result<Writer> {
        let (queue, writes) = mpsc::sync_channel(WRITE_QUEUE);
        let thread =
            thread::Builder::new().name("store".into()).spawn(move || write_loop(&connection, &writes))?;
        Ok(Writer { queue: Some(queue), thread: Some(thread) })
    }

    /// Passes `write` to the thread and waits for its commit.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let (answer, answered) = oneshot::channel();
        let job: Write = Box::new(move |connection| {
            let result = in_savepoint(connection, write);
            Box::new(move |committed| {
                // The caller may have stopped waiting; the write is done all the same.
                let _ = answer.send(committed.and(result));
            })
        });
        Box::pin(async move {
            let Some(queue) = &self.queue else { return Err(StoreError::Closed) };
            match queue.try_send(job) {
                Ok(()) => {}
                Err(mpsc::TrySendError::Disconnected(_)) => return Err(StoreError::Closed),
                Err(mpsc::TrySendError::Full(job)) => {
                    let queue = queue.clone();
                    let sent = tokio::task::spawn_blocking(move || queue.send(job).is_ok()).await;
                    if !sent.unwrap_or(false) {
                        return Err(StoreError::Closed);
                    }
                }
            }
            answered.await.map_err(|_| StoreError::Closed)?
        })
    }
}

impl Drop for Writer {
    /// Waits until the queued writes are done and the file is closed.
    fn drop(&mut self) {
        self.queue = None;
        // A panic of the thread was reported when it happened.
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

impl Sqlite {
    /// Opens the file, and creates it (mode 0600), its folder and its key if they are missing. Brings
    /// the tables up to date: keys that an older program wrote in clear are encrypted.
    ///
    /// # Errors
    /// [`StoreError::Open`] if the file cannot be used, [`StoreError::Newer`] if a newer program wrote
    /// it, [`StoreError::Key`] if the key is missing or wrong.
    pub fn open(path: &Path, key: &KeySource) -> Result<Self, StoreError> {
        create(path)?;
        Self::open_existing(path, key)
    }

    /// As [`Sqlite::open`], but creates no file.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if there is no file; otherwise as [`Sqlite::open`].
    pub fn open_existing(path: &Path, key: &KeySource) -> Result<Self, StoreError> {
        let writer = connect(path)?;
        let key = schema::prepare(&writer, key).map_err(|error| named(path, error))?;
        let reader = connect(path)?;
        let writer = Arc::new(Writer::start(writer).map_err(|e| open_error(path, &e))?);
        let reader = Arc::new(Mutex::new(reader));
        Ok(Self { reader, writer, key: Arc::new(key), path: Arc::new(path.to_owned()) })
    }

    /// Checks the whole file for damage, so that the start finds it and not a later registration. Takes
    /// about a second per gigabyte.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn check(&self) -> Result<(), StoreError> {
        let connection = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let found = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
        match found {
            Ok(found) if found == "ok" => Ok(()),
            Ok(found) => Err(damaged(&self.path, found)),
            Err(error) => Err(named(&self.path, error.into())),
        }
    }

    /// Encrypts the keys of the store at `path` with another key, `new`, which is created if missing.
    /// The change is complete or not made at all; an interrupted change can be repeated. Running
    /// processes have to be restarted with the new key.
    ///
    /// # Errors
    /// As [`Sqlite::open_existing`].
    pub fn change_key(path: &Path, old: &KeySource, new: &KeySource) -> Result<(), StoreError> {
        let connection = connect(path)?;
        let changed = match schema::is_encrypted(&connection) {
            Ok(true) => schema::change_key(&connection, old, new),
            // A store of an older program: encrypted with the new key at once.
            Ok(false) => schema::prepare(&connection, new).map(drop),
            Err(error) => Err(error),
        };
        changed.map_err(|error| named(path, error))
    }

    /// Runs `read` on the reading connection.
    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> StoreFuture<'_, T> {
        // Reads change nothing, so a panic during a read leaves no inconsistent state.
        let connection = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let result = read(&connection);
        drop(connection);
        Box::pin(std::future::ready(result))
    }

    /// The error for a row that cannot be read: the store's key was changed while this process runs, or
    /// else `error`.
    fn or_wrong_key(&self, connection: &Connection, error: StoreError) -> StoreError {
        schema::verify_key(connection, &self.key).err().unwrap_or(error)
    }

    /// Passes `write` to the writer thread and waits for its commit.
    fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        self.writer.write(write)
    }
}

/// Creates the file (mode 0600) and its folder if they are missing.
pub(crate) fn create(path: &Path) -> Result<(), StoreError> {
    let error = |e: std::io::Error| open_error(path, &e);
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(error)?;
    }
    // SQLite would create the file with the umask's mode, so it is created here first.
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(error)?;
    Ok(())
}

/// Connects to a file that exists.
fn connect(path: &Path) -> Result<Connection, StoreError> {
    let connection = open(path)?;
    use_log(&connection, "NORMAL").map_err(|error| named(path, error.into()))?;
    Ok(connection)
}

/// Has commits go to a write-ahead log, and to the disk when `synchronous` says.
pub(crate) fn use_log(connection: &Connection, synchronous: &str) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", synchronous)
}

/// Opens a file that exists, as it is.
pub(crate) fn open(path: &Path) -> Result<Connection, StoreError> {
    match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(StoreError::Missing { path: path.display().to_string() });
        }
        // For a folder SQLite would say "unable to open database file".
        Ok(found) if !found.is_file() => return Err(open_error(path, &"it is no file")),
        Ok(_) => {}
        Err(error) => return Err(open_error(path, &error)),
    }
    let open = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(connection)
    };
    open().map_err(|error: rusqlite::Error| match is_damage(&error) {
        true => damaged(path, error.to_string()),
        false => open_error(path, &error),
    })
}

pub(crate) fn open_error(path: &Path, reason: &dyn ToString) -> StoreError {
    StoreError::Open { path: path.display().to_string(), reason: reason.to_string() }
}

pub(crate) fn damaged(path: &Path, reason: String) -> StoreError {
    StoreError::Damaged { path: path.display().to_string(), reason }
}

/// Adds the file's path, if the error reports damage.
pub(crate) fn named(path: &Path, error: StoreError) -> StoreError {
    match error {
        StoreError::Database(error) if is_damage(&error) => damaged(path, error.to_string()),
        error => error,
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Takes all waiting writes, commits them in one transaction, then answers their callers.
fn write_loop(connection: &Connection, queue: &mpsc::Receiver<Write>) {
    while let Ok(first) = queue.recv() {
        let group = std::iter::once(first).chain(queue.try_iter().take(GROUP_COMMIT_MAX - 1));
        if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE") {
            tracing::error!(%error, "store: no transaction could be begun");
            // Without a transaction nothing is written: each caller gets the reason.
            let reason = error.to_string();
            group.for_each(|write| write(connection)(Err(unavailable(&reason))));
            continue;
        }
        let answers: Vec<AfterCommit> = group.map(|write| write(connection)).collect();
        let committed = connection.execute_batch("COMMIT").map_err(|error| {
            tracing::error!(%error, "store: commit failed");
            // A failed roll-back needs no report of its own: COMMIT's error is reported.
            let _ = connection.execute_batch("ROLLBACK");
            error.to_string()
        });
        for answer in answers {
            answer(committed.clone().map_err(|reason| unavailable(&reason)));
        }
    }
}

fn unavailable(reason: &str) -> StoreError {
    StoreError::Database(rusqlite::Error::SqliteFailure(
        rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY),
        Some(reason.to_owned()),
    ))
}

/// Runs one write of a group in a savepoint, so that its failure undoes only itself.
fn in_savepoint<T>(
    connection: &Connection,
    write: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    if connection.is_autocommit() {
        return Err(StoreError::Closed);
    }
    connection.execute_batch("SAVEPOINT one")?;
    let result = write(connection);
    connection.execute_batch(if result.is_ok() { "RELEASE one" } else { "ROLLBACK TO one; RELEASE one" })?;
    result
}

/// Reads a row. If a value does not decrypt, the caller checks whether the key is still the store's.
fn read_subscriber(row: &Row<'_>, key: &StoreKey) -> Result<Subscriber, StoreError> {
    let imsi: String = row.get(0)?;
    let corrupt = |reason: String| StoreError::Corrupt { key: imsi.clone(), reason };
    let unseal = |index: usize, column: &str| {
        let sealed = row.get_ref(index)?.as_blob().map_err(|e| corrupt(e.to_string()))?;
        key.open(&imsi, column, sealed).ok_or_else(|| schema::undecryptable(&imsi, column))
    };
    let is_null = |index: usize| Ok::<bool, StoreError>(row.get_ref(index)? == ValueRef::Null);
    let operator_code = match (is_null(3)?, is_null(4)?) {
        (false, _) => OperatorCode::Opc(unseal(3, "opc")?),
        (true, false) => OperatorCode::Op(unseal(4, "op")?),
        (true, true) => return Err(corrupt("neither OPc nor OP".into())),
    };
    let json = |e: serde_json::Error| corrupt(e.to_string());
    let ue_ambr: Ambr =
        serde_json::from_str(row.get_ref(7)?.as_str().map_err(|e| corrupt(e.to_string()))?).map_err(json)?;
    let slices: Vec<SliceSubscription> =
        serde_json::from_str(row.get_ref(8)?.as_str().map_err(|e| corrupt(e.to_string()))?).map_err(json)?;
    Ok(Subscriber {
        supi: imsi.parse().map_err(|e: types::Invalid| corrupt(e.to_string()))?,
        msisdn: row.get(1)?,
        authentication: Authentication {
            k: unseal(2, "k")?,
            operator_code,
            amf: row.get::<_, String>(5)?.parse().map_err(|e: types::Invalid| corrupt(e.to_string()))?,
            // SQLite's integers are signed; 48 bits always fit.
            sqn: row.get::<_, i64>(6)?.unsigned_abs(),
        },
        ue_ambr,
        slices,
    })
}

fn put_subscriber(
    connection: &Connection,
    key: &StoreKey,
    subscriber: &Subscriber,
    on_conflict: OnConflict,
) -> Result<(), StoreError> {
    let verb = match on_conflict {
        OnConflict::Fail => "ON CONFLICT (imsi) DO NOTHING",
        OnConflict::Replace => {
            "ON CONFLICT (imsi) DO UPDATE SET msisdn = excluded.msisdn, k = excluded.k, opc = excluded.opc,
             op = excluded.op, amf = excluded.amf, sqn = max(sqn, excluded.sqn), ue_ambr = excluded.ue_ambr,
             slices = excluded.slices"
        }
    };
    let imsi = subscriber.supi.imsi().to_string();
    let json = |e: serde_json::Error| StoreError::Corrupt { key: imsi.clone(), reason: e.to_string() };
    let (opc, op) = match &subscriber.authentication.operator_code {
        OperatorCode::Opc(opc) => (Some(key.seal(&imsi, "opc", opc)?), None),
        OperatorCode::Op(op) => (None, Some(key.seal(&imsi, "op", op)?)),
    };
    let changed = connection
        .prepare_cached(&format!(
            "INSERT INTO subscriber ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) {verb}"
        ))?
        .execute(params![
            imsi,
            subscriber.msisdn,
            key.seal(&imsi, "k", &subscriber.authentication.k)?,
            opc,
            op,
            subscriber.authentication.amf.to_hex(),
            subscriber.authentication.sqn as i64,
            serde_json::to_string(&subscriber.ue_ambr).map_err(json)?,
            serde_json::to_string(&subscriber.slices).map_err(json)?,
        ])?;
    if changed == 0 {
        return Err(StoreError::Exists(subscriber.supi));
    }
    note_change(connection, subscriber.supi).map(drop)
}

/// Kind of the documents that record changes for [`Store::changed_subscribers`]; each contains the
/// change's number.
const CHANGED: &str = "subscriber-change";

/// Records a change of a subscriber, if an AMF serves its UE.
fn note_change(connection: &Connection, supi: Supi) -> Result<bool, StoreError> {
    let noted = connection
        .prepare_cached(
            "INSERT INTO context (kind, key, document)
             SELECT ?1, key, '1' FROM context WHERE kind = ?2 AND key = ?3
             ON CONFLICT (kind, key) DO UPDATE SET document = CAST(document AS INTEGER) + 1",
        )?
        .execute([CHANGED, SERVING_AMF, &supi.to_string()])?;
    Ok(noted > 0)
}

/// Removes the contexts of a subscriber: those whose key is its SUPI or begins with its SUPI and `/`.
fn remove_contexts(connection: &Connection, supi: Supi) -> Result<(), StoreError> {
    connection.execute(
        "DELETE FROM context WHERE key = ?1 OR key GLOB ?2",
        [supi.to_string(), format!("{supi}/*")],
    )?;
    Ok(())
}

impl Store for Sqlite {
    fn put_subscribers(&self, subscribers: Vec<Subscriber>, on_conflict: OnConflict) -> StoreFuture<'_, ()> {
        let key = self.key.clone();
        let written = self.write(move |connection| {
            // The key may have been changed since this process read it.
            schema::verify_key(connection, &key)?;
            subscribers.iter().try_for_each(|s| put_subscriber(connection, &key, s, on_conflict))
        });
        Box::pin(async move {
            written.await?;
            // Writes to the disk now, not at some later checkpoint. If the database is busy, the data
            // stays in the log; nothing is lost.
            self.read(|connection| {
                connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
                Ok(())
            })
            .await
        })
    }

    fn subscriber(&self, supi: Supi) -> StoreFuture<'_, Option<Subscriber>> {
        self.read(|connection| {
            let mut statement =
                connection.prepare_cached(&format!("SELECT {COLUMNS} FROM subscriber WHERE imsi = ?1"))?;
            let mut rows = statement.query([supi.imsi().to_string()])?;
            let read = rows.next()?.map(|row| read_subscriber(row, &self.key)).transpose();
            read.map_err(|error| self.or_wrong_key(connection, error))
        })
    }

    fn subscribers(&self, after: Option<Supi>, limit: usize) -> StoreFuture<'_, Vec<Subscriber>> {
        self.read(|connection| {
            let after = after.map(|supi| supi.imsi().to_string()).unwrap_or_default();
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM subscriber WHERE imsi > ?1 ORDER BY imsi LIMIT ?2"
            ))?;
            let mut rows = statement.query(params![after, limit])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let read = read_subscriber(row, &self.key);
                found.push(read.map_err(|error| self.or_wrong_key(connection, error))?);
            }
            Ok(found)
        })
    }

    fn subscriber_count(&self) -> StoreFuture<'_, u64> {
        self.read(|connection| {
            let count: i64 = connection.query_row("SELECT count(*) FROM subscriber", [], |row| row.get(0))?;
            Ok(count.unsigned_abs())
        })
    }

    fn remove_subscriber(&self, supi: Supi) -> StoreFuture<'_, bool> {
        self.write(move |connection| {
            let imsi = supi.imsi().to_string();
            let removed = connection.execute("DELETE FROM subscriber WHERE imsi = ?1", [&imsi])?;
            if removed == 0 || !note_change(connection, supi)? {
                remove_contexts(connection, supi)?;
            }
            Ok(removed > 0)
        })
    }

    fn changed_subscribers(&self, limit: usize) -> StoreFuture<'_, Vec<Change>> {
        self.read(|connection| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut statement = connection.prepare_cached(
                "SELECT key, CAST(document AS INTEGER) FROM context WHERE kind = ?1 ORDER BY key LIMIT ?2",
            )?;
            let mut rows = statement.query(params![CHANGED, limit])?;
            let mut changes = Vec::new();
            while let Some(row) = rows.next()? {
                let key: String = row.get(0)?;
                let corrupt =
                    |e: types::Invalid| StoreError::Corrupt { key: key.clone(), reason: e.to_string() };
                let supi = key.parse().map_err(corrupt)?;
                changes.push(Change { supi, number: row.get::<_, i64>(1)?.unsigned_abs() });
            }
            Ok(changes)
        })
    }

    fn change_notified(&self, change: Change) -> StoreFuture<'_, ()> {
        self.write(move |connection| {
            let Change { supi, number } = change;
            let gone = connection.execute(
                "DELETE FROM context WHERE kind = ?1 AND key = ?2 AND CAST(document AS INTEGER) = ?3",
                params![CHANGED, supi.to_string(), number as i64],
            )?;
            let exists = connection
                .query_row("SELECT 1 FROM subscriber WHERE imsi = ?1", [supi.imsi().to_string()], |_| Ok(()))
                .optional()?;
            if gone > 0 && exists.is_none() {
                remove_contexts(connection, supi)?;
            }
            Ok(())
        })
    }

    fn advance_sqn(&self, supi: Supi, expected: u64, new: u64) -> StoreFuture<'_, bool> {
        self.write(move |connection| {
            let changed = connection
                .prepare_cached("UPDATE subscriber SET sqn = ?3 WHERE imsi = ?1 AND sqn = ?2")?
                .execute(params![supi.imsi().to_string(), expected as i64, new as i64])?;
            Ok(changed > 0)
        })
    }

    fn set_sqn(&self, supi: Supi, new: u64) -> StoreFuture<'_, bool> {
        self.write(move |connection| {
            let changed = connection
                .prepare_cached("UPDATE subscriber SET sqn = ?2 WHERE imsi = ?1")?
                .execute(params![supi.imsi().to_string(), new as i64])?;
            Ok(changed > 0)
        })
    }

    fn put_context(&self, kind: &'static str, key: String, document: String) -> StoreFuture<'_, ()> {
        self.write(move |connection| {
            connection
                .prepare_cached(
                    "INSERT INTO context (kind, key, document) VALUES (?1, ?2, ?3)
                     ON CONFLICT (kind, key) DO UPDATE SET document = excluded.document",
                )?
                .execute(params![kind, key, document])?;
            Ok(())
        })
    }

    fn context(&self, kind: &'static str, key: &str) -> StoreFuture<'_, Option<String>> {
        self.read(|connection| {
            Ok(connection
                .prepare_cached("SELECT document FROM context WHERE kind = ?1 AND key = ?2")?
                .query_row([kind, key], |row| row.get(0))
                .optional()?)
        })
    }

    fn contexts(&self, kind: &'static str, prefix: &str) -> StoreFuture<'_, Vec<(String, String)>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key, document FROM context WHERE kind = ?1 AND substr(key, 1, length(?2)) = ?2 ORDER BY key",
            )?;
            let rows = statement.query_map([kind, prefix], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn remove_context(&self, kind: &'static str, key: &str) -> StoreFuture<'_, bool> {
        let key = key.to_owned();
        self.write(move |connection| {
            let removed = connection
                .prepare_cached("DELETE FROM context WHERE kind = ?1 AND key = ?2")?
                .execute([kind, &key])?;
            Ok(removed > 0)
        })
    }
}

#[cfg(test)]
mod tests;
