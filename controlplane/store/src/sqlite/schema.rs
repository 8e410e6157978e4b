//! Tables of the database, and how tables of older programs are converted.
//!
//! A conversion and its new version number are one transaction: a process that is killed leaves either
//! the old tables or the new ones. Plaintext that a conversion leaves in unused pages of the file is
//! removed afterwards ([`wipe`]). A mark in the database says that this is still to be done, so the
//! next start does it if the process was killed in between.

use rusqlite::{Connection, OptionalExtension as _, params, types::Value};
use types::Key;

use crate::StoreError;
use crate::seal::{KeyError, KeySource, StoreKey};

/// Version of the tables below, kept in `PRAGMA user_version`.
const VERSION: i64 = 2;

/// Tables of version 2. `k`, `opc` and `op` are ciphertexts (`seal.rs`).
const TABLES: &str = "
    CREATE TABLE subscriber (
        imsi    TEXT PRIMARY KEY,
        msisdn  TEXT,
        k       BLOB NOT NULL,
        opc     BLOB,
        op      BLOB,
        amf     TEXT NOT NULL,
        sqn     INTEGER NOT NULL,
        ue_ambr TEXT NOT NULL,
        slices  TEXT NOT NULL,
        CHECK ((opc IS NULL) <> (op IS NULL))
    ) WITHOUT ROWID;
    CREATE TABLE meta (
        name  TEXT PRIMARY KEY,
        value BLOB NOT NULL
    ) WITHOUT ROWID;
";

/// Documents of network functions, unchanged since version 1.
const CONTEXT_TABLE: &str = "
    CREATE TABLE context (
        kind     TEXT NOT NULL,
        key      TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (kind, key)
    ) WITHOUT ROWID;
";

/// Columns that contain keys, in the order of the table.
const SEALED: [&str; 3] = ["k", "opc", "op"];

/// Names of rows in `meta`: the check value of the key, and a mark that unused pages may still contain
/// plaintext or old ciphertexts.
const KEY_CHECK: &str = "key_check";
const TO_BE_WIPED: &str = "to_be_wiped";

/// Creates or converts the tables; returns the key that the store is encrypted with.
pub(super) fn prepare(connection: &Connection, source: &KeySource) -> Result<StoreKey, StoreError> {
    let key = match version(connection)? {
        // In the usual case no transaction is needed, so the call waits for no other write.
        VERSION => load_key(connection, source)?,
        _ => in_transaction(connection, || {
            // Another process may have converted the tables first.
            match version(connection)? {
                0 => create(connection, source),
                1 => encrypt(connection, source),
                VERSION => load_key(connection, source),
                found => Err(StoreError::Newer { found, known: VERSION }),
            }
        })?,
    };
    wipe(connection);
    Ok(key)
}

/// Whether the keys in the store are encrypted. Those of an older program are not, and a new file has
/// none.
pub(super) fn is_encrypted(connection: &Connection) -> Result<bool, StoreError> {
    match version(connection)? {
        found if found > VERSION => Err(StoreError::Newer { found, known: VERSION }),
        found => Ok(found == VERSION),
    }
}

fn version(connection: &Connection) -> Result<i64, StoreError> {
    Ok(connection.query_row("PRAGMA user_version", [], |row| row.get(0))?)
}

/// IMMEDIATE: of two processes that start at the same time, only one may change the tables.
fn in_transaction<T>(
    connection: &Connection,
    work: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let result = work();
    connection.execute_batch(if result.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    result
}

fn create(connection: &Connection, source: &KeySource) -> Result<StoreKey, StoreError> {
    // The key file is on disk before the transaction that needs it ends.
    let key = source.load_or_create()?;
    connection.execute_batch(TABLES)?;
    connection.execute_batch(CONTEXT_TABLE)?;
    set_key_check(connection, &key)?;
    connection.pragma_update(None, "user_version", VERSION)?;
    Ok(key)
}

/// Converts version 1, which contains keys as hexadecimal text.
fn encrypt(connection: &Connection, source: &KeySource) -> Result<StoreKey, StoreError> {
    let key = source.load_or_create()?;
    connection.execute_batch("ALTER TABLE subscriber RENAME TO plaintext")?;
    connection.execute_batch(TABLES)?;
    let count = copy_encrypted(connection, &key)?;
    connection.execute_batch("DROP TABLE plaintext")?;
    set_key_check(connection, &key)?;
    mark_for_wiping(connection)?;
    connection.pragma_update(None, "user_version", VERSION)?;
    tracing::info!(subscribers = count, "the subscribers' keys are now encrypted");
    Ok(key)
}

/// Copies every row; returns their number.
fn copy_encrypted(connection: &Connection, key: &StoreKey) -> Result<u64, StoreError> {
    let mut select = connection.prepare("SELECT * FROM plaintext")?;
    let mut insert = connection.prepare("INSERT INTO subscriber VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")?;
    let columns: Vec<String> = select.column_names().map(str::to_owned).collect();
    let mut rows = select.query([])?;
    let mut count = 0_u64;
    while let Some(row) = rows.next()? {
        let imsi: String = row.get("imsi")?;
        for (index, column) in columns.iter().enumerate() {
            let mut value: Value = row.get(index)?;
            if SEALED.contains(&column.as_str())
                && let Value::Text(text) = &value
            {
                let damaged =
                    |e: types::Invalid| StoreError::Corrupt { key: imsi.clone(), reason: e.to_string() };
                let plain: Key<16> = text.parse().map_err(damaged)?;
                value = Value::Blob(key.seal(&imsi, column, &plain)?);
            }
            insert.raw_bind_parameter(index + 1, value)?;
        }
        insert.raw_execute()?;
        count += 1;
    }
    Ok(count)
}

/// Reads the key, and checks that it is the right one.
fn load_key(connection: &Connection, source: &KeySource) -> Result<StoreKey, StoreError> {
    let key = source.load()?;
    verify_key(connection, &key)?;
    Ok(key)
}

/// Checks that the store is still encrypted with this key.
pub(super) fn verify_key(connection: &Connection, key: &StoreKey) -> Result<(), StoreError> {
    let value: Option<Vec<u8>> = connection
        .prepare_cached("SELECT value FROM meta WHERE name = ?1")?
        .query_row([KEY_CHECK], |row| row.get(0))
        .optional()?;
    let missing = || StoreError::Corrupt { key: KEY_CHECK.to_owned(), reason: "it is missing".to_owned() };
    Ok(key.verify(&value.ok_or_else(missing)?)?)
}

fn set_key_check(connection: &Connection, key: &StoreKey) -> Result<(), StoreError> {
    connection
        .execute("INSERT OR REPLACE INTO meta VALUES (?1, ?2)", params![KEY_CHECK, key.check_value()?])?;
    Ok(())
}

/// Encrypts everything with `new` instead of `old`, in one transaction. Does nothing if that was done
/// already, so the command can be repeated after a kill.
pub(super) fn change_key(
    connection: &Connection,
    old: &KeySource,
    new: &KeySource,
) -> Result<(), StoreError> {
    let new = new.load_or_create()?;
    if verify_key(connection, &new).is_err() {
        let old = load_key(connection, old)?;
        in_transaction(connection, || {
            // All writes with the old key are complete; from here on no process can write with it.
            verify_key(connection, &old)?;
            for column in SEALED {
                seal_again(connection, column, &old, &new)?;
            }
            set_key_check(connection, &new)?;
            mark_for_wiping(connection)
        })?;
    }
    wipe(connection);
    Ok(())
}

fn seal_again(
    connection: &Connection,
    column: &str,
    old: &StoreKey,
    new: &StoreKey,
) -> Result<(), StoreError> {
    let select = format!(
        "SELECT imsi, {column} FROM subscriber WHERE {column} IS NOT NULL AND imsi > ?1 ORDER BY imsi LIMIT 1000"
    );
    let mut select = connection.prepare(&select)?;
    let mut update = connection.prepare(&format!("UPDATE subscriber SET {column} = ?2 WHERE imsi = ?1"))?;
    let mut after = String::new();
    loop {
        // Page by page: rows must not be changed while a query over them runs.
        let page: Vec<(String, Vec<u8>)> =
            select.query_map([&after], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after.clone_from(last);
        for (imsi, sealed) in &page {
            let plain = old.open(imsi, column, sealed).ok_or_else(|| undecryptable(imsi, column))?;
            update.execute(params![imsi, new.seal(imsi, column, &plain)?])?;
        }
    }
}

/// The error for a value that the right key does not decrypt: it is damaged, or was moved here from
/// another row.
pub(super) fn undecryptable(imsi: &str, column: &str) -> StoreError {
    StoreError::Corrupt {
        key: imsi.to_owned(),
        reason: format!("{column} does not decrypt: it was changed, or moved from another row"),
    }
}

fn mark_for_wiping(connection: &Connection) -> Result<(), StoreError> {
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?1, x'01')", [TO_BE_WIPED])?;
    Ok(())
}

/// Rebuilds the file without unused pages, which may contain old data, and empties the write-ahead log.
/// If another process prevents that, the next start tries again.
fn wipe(connection: &Connection) {
    let result = (|| {
        let marked: bool =
            connection
                .query_row("SELECT count(*) FROM meta WHERE name = ?1", [TO_BE_WIPED], |row| row.get(0))?;
        if !marked {
            return Ok(());
        }
        connection.execute_batch("VACUUM")?;
        let busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if busy {
            return Err(rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY),
                Some("another process reads the store".to_owned()),
            ));
        }
        connection.execute("DELETE FROM meta WHERE name = ?1", [TO_BE_WIPED])?;
        Ok(())
    })();
    if let Err(error) = result {
        tracing::warn!(%error, "traces of unencrypted keys stay in the store's file; the next start removes them");
    }
}

impl From<KeyError> for StoreError {
    fn from(error: KeyError) -> Self {
        Self::Key(Box::new(error))
    }
}
