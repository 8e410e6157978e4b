//! The store in one SQLite file.
//!
//! Reads run on the caller's thread over a connection of their own (WAL: readers never wait for
//! the writer; a primary-key read takes about 10 µs, less than handing it to another thread).
//! Writes go to one writer thread, which commits all that is waiting in one transaction (group
//! commit): each write waits for its commit, so a completed call is durable against `kill -9`.
//! `synchronous = NORMAL`: a power failure may lose the last commits; a USIM then finds the
//! sequence number too low once and resynchronises (TS 33.102 §6.3.5). What the operator writes
//! (subscribers) is followed by a checkpoint, which does reach the disk.

use std::{
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension, Row, params};
use tokio::sync::oneshot;
use types::{Ambr, Key, Supi};

use crate::{
    Authentication, OnConflict, OperatorCode, SliceSubscription, Store, StoreError, StoreFuture, Subscriber,
};

/// Version of the tables below, kept in `PRAGMA user_version`.
const SCHEMA_VERSION: i64 = 1;

/// Tables of version 1. Keys are text in hexadecimal, so that an operator can read and repair them.
const SCHEMA: &str = "
    CREATE TABLE subscriber (
        imsi    TEXT PRIMARY KEY,
        msisdn  TEXT,
        k       TEXT NOT NULL,
        opc     TEXT,
        op      TEXT,
        amf     TEXT NOT NULL,
        sqn     INTEGER NOT NULL,
        ue_ambr TEXT NOT NULL,
        slices  TEXT NOT NULL,
        CHECK ((opc IS NULL) <> (op IS NULL))
    ) WITHOUT ROWID;
    CREATE TABLE context (
        kind     TEXT NOT NULL,
        key      TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (kind, key)
    ) WITHOUT ROWID;
";

/// Columns of a subscriber, in the order [`read_subscriber`] takes them.
const COLUMNS: &str = "imsi, msisdn, k, opc, op, amf, sqn, ue_ambr, slices";

/// How long one process waits for another's write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Writes taken into one transaction at most, so that the first of them does not wait for ever.
const GROUP_COMMIT_MAX: usize = 512;

/// Writes that may wait before callers have to.
const WRITE_QUEUE: usize = 4096;

/// A write, run inside the group's transaction; it answers its caller after the commit.
type Write = Box<dyn FnOnce(&Connection) -> AfterCommit + Send>;
/// Told whether the transaction was committed.
type AfterCommit = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The store in one SQLite file. Cheap to clone; the file closes with the last clone.
#[derive(Clone)]
pub struct Sqlite {
    reader: Arc<Mutex<Connection>>,
    writes: mpsc::SyncSender<Write>,
}

impl Sqlite {
    /// Opens the file, creating it (mode 0600) and its folder when missing, and brings its tables up to date.
    ///
    /// # Errors
    /// [`StoreError::Open`] when the file cannot be used, [`StoreError::Newer`] when a newer program wrote it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let error = |reason: &dyn ToString| StoreError::Open {
            path: path.display().to_string(),
            reason: reason.to_string(),
        };
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| error(&e))?;
        }
        // SQLite would create the file with the umask's mode; it holds keys, so it is created here first.
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map_err(|e| error(&e))?;
        let writer = connect(path).map_err(|e| error(&e))?;
        migrate(&writer)?;
        let reader = connect(path).map_err(|e| error(&e))?;
        let (writes, queue) = mpsc::sync_channel(WRITE_QUEUE);
        thread::Builder::new()
            .name("store".into())
            .spawn(move || write_loop(&writer, &queue))
            .map_err(|e| error(&e))?;
        Ok(Self { reader: Arc::new(Mutex::new(reader)), writes })
    }

    /// Runs `read` on the reading connection.
    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> StoreFuture<'_, T> {
        // A panic in a reader leaves no half-done state behind: reads change nothing.
        let connection = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let result = read(&connection);
        drop(connection);
        Box::pin(std::future::ready(result))
    }

    /// Hands `write` to the writer thread and waits for its commit.
    fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let (answer, answered) = oneshot::channel();
        let job: Write = Box::new(move |connection| {
            let result = in_savepoint(connection, write);
            Box::new(move |committed| {
                // The caller may have stopped waiting; its write stands all the same.
                let _ = answer.send(committed.and(result));
            })
        });
        Box::pin(async move {
            match self.writes.try_send(job) {
                Ok(()) => {}
                Err(mpsc::TrySendError::Disconnected(_)) => return Err(StoreError::Closed),
                Err(mpsc::TrySendError::Full(job)) => {
                    let writes = self.writes.clone();
                    let sent = tokio::task::spawn_blocking(move || writes.send(job).is_ok()).await;
                    if !sent.unwrap_or(false) {
                        return Err(StoreError::Closed);
                    }
                }
            }
            answered.await.map_err(|_| StoreError::Closed)?
        })
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

fn migrate(connection: &Connection) -> Result<(), StoreError> {
    // IMMEDIATE: two processes that start at once must not both create the tables.
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let result = (|| {
        let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        match found {
            0 => {
                connection.execute_batch(SCHEMA)?;
                connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
                Ok(())
            }
            SCHEMA_VERSION => Ok(()),
            found => Err(StoreError::Newer { found, known: SCHEMA_VERSION }),
        }
    })();
    connection.execute_batch(if result.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    result
}

/// Takes all that is waiting, writes it in one transaction, then answers.
fn write_loop(connection: &Connection, queue: &mpsc::Receiver<Write>) {
    while let Ok(first) = queue.recv() {
        let group = std::iter::once(first).chain(queue.try_iter().take(GROUP_COMMIT_MAX - 1));
        if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE") {
            tracing::error!(%error, "store: no transaction could be begun");
            // Without a transaction nothing is written: each caller hears why.
            let reason = error.to_string();
            group.for_each(|write| write(connection)(Err(unavailable(&reason))));
            continue;
        }
        let answers: Vec<AfterCommit> = group.map(|write| write(connection)).collect();
        let committed = connection.execute_batch("COMMIT").map_err(|error| {
            tracing::error!(%error, "store: commit failed");
            // The only thing left to do about a failed roll-back is to say so, which COMMIT's error does.
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

/// Runs one write of a group so that its failure undoes only itself.
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

fn read_subscriber(row: &Row<'_>) -> Result<Subscriber, StoreError> {
    let imsi: String = row.get(0)?;
    let corrupt = |reason: String| StoreError::Corrupt { key: imsi.clone(), reason };
    let key = |text: String| text.parse::<Key<16>>().map_err(|e| corrupt(e.to_string()));
    let (opc, op): (Option<String>, Option<String>) = (row.get(3)?, row.get(4)?);
    let operator_code = match (opc, op) {
        (Some(opc), _) => OperatorCode::Opc(key(opc)?),
        (None, Some(op)) => OperatorCode::Op(key(op)?),
        (None, None) => return Err(corrupt("neither OPc nor OP".into())),
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
            k: key(row.get(2)?)?,
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
        OperatorCode::Opc(key) => (Some(key.to_hex()), None),
        OperatorCode::Op(key) => (None, Some(key.to_hex())),
    };
    let changed = connection
        .prepare_cached(&format!(
            "INSERT INTO subscriber ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) {verb}"
        ))?
        .execute(params![
            imsi,
            subscriber.msisdn,
            subscriber.authentication.k.to_hex(),
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
    Ok(())
}

impl Store for Sqlite {
    fn put_subscribers(&self, subscribers: Vec<Subscriber>, on_conflict: OnConflict) -> StoreFuture<'_, ()> {
        let written = self.write(move |connection| {
            subscribers.iter().try_for_each(|s| put_subscriber(connection, s, on_conflict))
        });
        Box::pin(async move {
            written.await?;
            // Reaches the disk now, not at some later checkpoint. A busy database keeps its log: no loss either way.
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
            rows.next()?.map(read_subscriber).transpose()
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
                found.push(read_subscriber(row)?);
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
            // Contexts of a subscriber are keyed by its SUPI, alone or followed by `/…`.
            connection.execute(
                "DELETE FROM context WHERE key = ?1 OR key GLOB ?2",
                [supi.to_string(), format!("{supi}/*")],
            )?;
            Ok(removed > 0)
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
