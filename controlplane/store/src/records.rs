//! Octets by number, in spaces: what an application has to find again after a restart, or what several processes share.
//!
//! [`Records`] is a file of SQLite or a schema of PostgreSQL; nobody else needs to know which. Both take all changes that wait in one
//! transaction (group commit), and a [`Records::write`] that has returned is on the disk: it survives `kill -9`, and a power failure as
//! far as the disk does. Octets mean nothing here.
//!
//! Each space has one writer at a time, which is the callers' to see to: the last of two changes of a key counts.
//!
//! `records/sqlite.rs` and `records/postgresql.rs` have the tables.

mod postgresql;
mod sqlite;

use std::path::Path;

use crate::StoreError;

/// A database of records. Clones share it.
#[derive(Clone)]
pub struct Records {
    database: Database,
}

#[derive(Clone)]
enum Database {
    Sqlite(sqlite::Sqlite),
    Postgresql(postgresql::Postgresql),
}

/// A record: its key in its space, and its octets.
pub type Record = (u64, Vec<u8>);

/// A change of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes it, whether it is there or not.
    Put {
        /// Its number in its space.
        key: u64,
        /// What it contains.
        octets: Vec<u8>,
    },
    /// Removes it, if it is there.
    Remove {
        /// Its number in its space.
        key: u64,
    },
}

impl Records {
    /// Opens the database, and makes its file or its tables if they are missing. `url` is one of
    ///
    /// - `sqlite:PATH`;
    /// - `postgresql://USER@HOST/NAME`, as libpq has it, or `postgresql:` with parameters of libpq: `host` is a name, an address, or the
    ///   folder of a Unix socket, Debian's if there is none. Connections have no TLS.
    ///
    /// # Errors
    /// [`StoreError::Url`], [`StoreError::Open`] and [`StoreError::Postgresql`] if there is no such database, [`StoreError::Foreign`] if it
    /// belongs to another program, [`StoreError::Newer`] if a newer program made it, [`StoreError::Damaged`] if the file is damaged.
    pub async fn open(url: &str) -> Result<Records, StoreError> {
        let database = match url.split_once(':') {
            Some(("sqlite", path)) if !path.is_empty() => {
                Database::Sqlite(sqlite::Sqlite::open(Path::new(path))?)
            }
            Some(("postgresql" | "postgres", rest)) => {
                let parameters = if rest.starts_with("//") { url } else { rest };
                Database::Postgresql(postgresql::Postgresql::open(parameters).await?)
            }
            // What is there may be a password.
            Some((scheme, _)) => return Err(StoreError::Url(format!("{scheme}:…"))),
            None => return Err(StoreError::Url(url.to_owned())),
        };
        Ok(Records { database })
    }

    /// At most `limit` records of a space, those after the key `after`, or the first ones. Their order is that of the database: pass the
    /// key of the last record to get the next ones. So a million records need not be in memory twice.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn load(
        &self,
        space: &str,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        // Both databases have signed numbers only. Theirs have the same bits.
        let from = match after.map(u64::cast_signed) {
            None => i64::MIN,
            Some(i64::MAX) => return Ok(Vec::new()),
            Some(key) => key + 1,
        };
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        match &self.database {
            Database::Sqlite(sqlite) => sqlite.load(space, from, limit),
            Database::Postgresql(postgresql) => postgresql.load(space, from, limit).await,
        }
    }

    /// One record; `None` if there is none.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn get(&self, space: &str, key: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let found = match &self.database {
            Database::Sqlite(sqlite) => sqlite.load(space, key.cast_signed(), 1)?,
            Database::Postgresql(postgresql) => postgresql.load(space, key.cast_signed(), 1).await?,
        };
        Ok(found.into_iter().find(|(found, _)| *found == key).map(|(_, octets)| octets))
    }

    /// Makes these changes in their order: all of them, or none. They are on the disk when this returns. If the caller stops waiting, they
    /// may be made or not.
    ///
    /// # Errors
    /// The database cannot be written; nothing has changed. Without an answer of PostgreSQL it may have.
    pub async fn write(&self, space: &str, changes: Vec<Change>) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        match &self.database {
            Database::Sqlite(sqlite) => sqlite.write(space, changes).await,
            Database::Postgresql(postgresql) => postgresql.write(space, changes).await,
        }
    }

    /// Removes all records of a space, also from the disk when this returns.
    ///
    /// # Errors
    /// As [`Records::write`].
    pub async fn clear(&self, space: &str) -> Result<(), StoreError> {
        match &self.database {
            Database::Sqlite(sqlite) => sqlite.clear(space).await,
            Database::Postgresql(postgresql) => postgresql.clear(space).await,
        }
    }

    /// All spaces that have records, with their number. It counts, so it takes time in proportion.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn spaces(&self) -> Result<Vec<(String, u64)>, StoreError> {
        match &self.database {
            Database::Sqlite(sqlite) => sqlite.spaces(),
            Database::Postgresql(postgresql) => postgresql.spaces().await,
        }
    }
}

/// Version of both databases' tables.
const VERSION: i64 = 1;

/// Whether this program knows tables of this version.
fn is_known(found: i64) -> Result<(), StoreError> {
    match found {
        1..=VERSION => Ok(()),
        _ => Err(StoreError::Newer { found, known: VERSION }),
    }
}
