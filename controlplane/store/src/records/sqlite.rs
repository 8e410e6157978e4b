//! Records in a file of SQLite, of which [`crate::sqlite`] has the writer.
//!
//! Reads are on the caller's thread. Commits are synchronous (`synchronous = FULL`), those of a group together.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, params};

use super::{Change, Record, VERSION, is_known};
use crate::StoreError;
use crate::sqlite::{Writer, create, damaged, named, open, open_error, use_log};

/// `GwRe` in the file's header: the file is ours.
const APPLICATION: i64 = 0x4777_5265;

const TABLE: &str = "
    CREATE TABLE record (
        space  TEXT NOT NULL,
        key    INTEGER NOT NULL,
        octets BLOB NOT NULL,
        PRIMARY KEY (space, key)
    ) WITHOUT ROWID;
";

#[derive(Clone)]
pub(super) struct Sqlite {
    // Dropped first: the last connection removes the log, and that is to be the writer's.
    reader: Arc<Mutex<Connection>>,
    writer: Arc<Writer>,
    path: Arc<PathBuf>,
}

impl Sqlite {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        create(path)?;
        let writer = open(path)?;
        prepare(&writer, path).map_err(|error| named(path, error))?;
        let reader = open(path)?;
        let writer = Writer::start(writer).map_err(|error| open_error(path, &error))?;
        Ok(Self {
            reader: Arc::new(Mutex::new(reader)),
            writer: Arc::new(writer),
            path: Arc::new(path.to_owned()),
        })
    }

    pub(super) fn load(&self, space: &str, from: i64, limit: i64) -> Result<Vec<Record>, StoreError> {
        self.read(|connection| {
            let sql = "SELECT key, octets FROM record WHERE space = ?1 AND key >= ?2 ORDER BY key LIMIT ?3";
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map(params![space, from, limit], |row| {
                Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, Vec<u8>>(1)?))
            })?;
            rows.collect()
        })
    }

    pub(super) fn spaces(&self) -> Result<Vec<(String, u64)>, StoreError> {
        self.read(|connection| {
            let sql = "SELECT space, count(*) FROM record GROUP BY space ORDER BY space";
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement
                .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?.unsigned_abs())))?;
            rows.collect()
        })
    }

    pub(super) async fn write(&self, space: &str, changes: Vec<Change>) -> Result<(), StoreError> {
        let space = space.to_owned();
        self.change(move |connection| {
            let put = "INSERT INTO record (space, key, octets) VALUES (?1, ?2, ?3)
                       ON CONFLICT (space, key) DO UPDATE SET octets = excluded.octets";
            let mut put = connection.prepare_cached(put)?;
            let mut remove = connection.prepare_cached("DELETE FROM record WHERE space = ?1 AND key = ?2")?;
            for change in changes {
                match change {
                    Change::Put { key, octets } => put.execute(params![space, key.cast_signed(), octets])?,
                    Change::Remove { key } => remove.execute(params![space, key.cast_signed()])?,
                };
            }
            Ok(())
        })
        .await
    }

    pub(super) async fn clear(&self, space: &str) -> Result<(), StoreError> {
        let space = space.to_owned();
        self.change(move |connection| {
            connection.execute("DELETE FROM record WHERE space = ?1", [space])?;
            Ok(())
        })
        .await
    }

    fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        // Reads change nothing, so a panic during a read leaves no inconsistent state.
        let connection = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        read(&connection).map_err(|error| named(&self.path, error.into()))
    }

    async fn change(
        &self,
        change: impl FnOnce(&Connection) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        self.writer.write(change).await.map_err(|error| named(&self.path, error))
    }
}

/// Checks whose file it is, and that it is whole; makes the table of a new one. Nothing of a foreign file changes.
fn prepare(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let is_new = number("SELECT count(*) FROM sqlite_schema")? == 0 && number("PRAGMA user_version")? == 0;
    if !is_new {
        if number("PRAGMA application_id")? != APPLICATION {
            return Err(StoreError::Foreign { database: path.display().to_string() });
        }
        is_known(number("PRAGMA user_version")?)?;
        let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if found != "ok" {
            return Err(damaged(path, found));
        }
    }
    use_log(connection, "FULL")?;
    if !is_new {
        return Ok(());
    }
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let make = || {
        // Another process may have been first.
        if number("SELECT count(*) FROM sqlite_schema")? == 0 {
            connection.execute_batch(TABLE)?;
            connection.pragma_update(None, "application_id", APPLICATION)?;
            connection.pragma_update(None, "user_version", VERSION)?;
        }
        connection.execute_batch("COMMIT")
    };
    // A connection that is dropped rolls back.
    Ok(make()?)
}
