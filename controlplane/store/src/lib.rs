//! Durable storage behind one trait: subscribers and contexts outlive processes.
//!
//! Network functions and the command line use [`Store`]. [`Sqlite`] is the default implementation, one
//! file that operators can open with their own tools. A database that several machines share would
//! implement the same trait.
//!
//! The store keeps subscribers ([`Subscriber`], written by the operator, read by the UDR), the
//! authentication sequence number of each (written by the UDM through the UDR), and *contexts*: JSON
//! documents of network functions, by kind and key.
//!
//! [`journal`] is a state file for programs without subscribers: the edge's controller and orchestrator.
//!
//! K, OPc and OP are encrypted in the file, with a key that is kept elsewhere ([`KeySource`]).
//!
//! Apart from that, [`records`] keeps octets by number, in SQLite or PostgreSQL: what an application has to find again after a restart,
//! or what several processes share.
//!
//! Invariants: this crate opens no socket but PostgreSQL's, implements no procedure, and never logs a key. A value that
//! a completed call wrote survives `kill -9` of any process. The file contains no subscriber's key in
//! clear.
#![forbid(unsafe_code)]

pub mod import;
pub mod journal;
pub mod records;
mod seal;
mod sqlite;
mod subscriber;

use std::{future::Future, pin::Pin};

pub use seal::{KeyError, KeySource};
pub use sqlite::Sqlite;
pub use subscriber::{Authentication, DnnSubscription, OperatorCode, SQN_MAX, SliceSubscription, Subscriber};
use types::Supi;

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The subscriber to be added exists.
    #[error("subscriber {0} exists already; use `--replace` to overwrite it")]
    Exists(Supi),
    /// The file was written by a newer Godwit.
    #[error("the store has schema version {found}, this program knows up to {known}: run the newer godwit")]
    Newer {
        /// Version found in the file.
        found: i64,
        /// Newest version this program knows.
        known: i64,
    },
    /// The folder or file cannot be used.
    #[error("cannot open {path}: {reason}")]
    Open {
        /// The file to be opened.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// There is no store yet.
    #[error("there is no store at {path}: `godwit subscriber add` or `import` creates it")]
    Missing {
        /// The file to be opened.
        path: String,
    },
    /// The file is not a database, or parts of it are damaged.
    #[error(
        "the store {path} is damaged ({reason}): stop the core, then restore a backup, or save what can still be read: \
         sqlite3 {path} .recover | sqlite3 NEW-FILE"
    )]
    Damaged {
        /// The file.
        path: String,
        /// What SQLite found.
        reason: String,
    },
    /// The key that encrypts the subscribers' keys is missing, unusable or wrong.
    #[error(transparent)]
    Key(Box<KeyError>),
    /// A row contains something that this program cannot read.
    #[error("the store holds an unreadable record for {key}: {reason}")]
    Corrupt {
        /// Key of the record.
        key: String,
        /// What is wrong with it; never contains its content.
        reason: String,
    },
    /// SQLite returned an error.
    #[error("store: {0}")]
    Database(#[from] rusqlite::Error),
    /// What should name a database does not.
    #[error("`{0}` names no database: write sqlite:PATH or postgresql:host=/run/postgresql dbname=NAME")]
    Url(String),
    /// The database has tables, and they are not ours.
    #[error("{database} belongs to another program: name another file or database")]
    Foreign {
        /// The file, or where the database is.
        database: String,
    },
    /// PostgreSQL cannot be reached, or has refused something. Nothing was written.
    #[error("{database}: {reason}")]
    Postgresql {
        /// Where the database is, without a password.
        database: String,
        /// What it said.
        reason: String,
    },
    /// The store is closing.
    #[error("the store is closed")]
    Closed,
}

/// What to do when a subscriber to be added exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    /// Refuse the whole batch.
    Fail,
    /// Overwrite. The larger of the two sequence numbers is kept, so that the USIM need not
    /// resynchronise.
    Replace,
}

/// A subscriber that was overwritten or removed; see [`Store::changed_subscribers`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The subscriber.
    pub supi: Supi,
    /// Distinguishes this change from later ones of the same subscriber.
    pub number: u64,
}

/// Kind of the context document that holds the serving AMF of a subscriber, under its SUPI.
pub const SERVING_AMF: &str = "amf-3gpp-access";

/// The future every [`Store`] method returns: boxed, so that `dyn Store` works.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Storage of a core. One per process, shared by its network functions; several processes may use the same store.
pub trait Store: Send + Sync {
    /// Adds subscribers: all of them or none.
    fn put_subscribers(&self, subscribers: Vec<Subscriber>, on_conflict: OnConflict) -> StoreFuture<'_, ()>;

    /// One subscriber.
    fn subscriber(&self, supi: Supi) -> StoreFuture<'_, Option<Subscriber>>;

    /// At most `limit` subscribers with IMSIs above `after`, in the order of IMSIs.
    fn subscribers(&self, after: Option<Supi>, limit: usize) -> StoreFuture<'_, Vec<Subscriber>>;

    /// Number of subscribers.
    fn subscriber_count(&self) -> StoreFuture<'_, u64>;

    /// Removes a subscriber; `false` if there was none. Its contexts are removed, too, but if an AMF
    /// serves the UE only with [`Store::change_notified`], because they say who has to be notified of
    /// the removal.
    fn remove_subscriber(&self, supi: Supi) -> StoreFuture<'_, bool>;

    /// At most `limit` subscribers that were overwritten or removed while their UE was served, and of
    /// whose change the network functions have not been notified yet.
    fn changed_subscribers(&self, limit: usize) -> StoreFuture<'_, Vec<Change>>;

    /// Records that the network functions have been notified of a change. Later changes are still to be
    /// notified.
    fn change_notified(&self, change: Change) -> StoreFuture<'_, ()>;

    /// Sets the sequence number if it is still `expected`; `false` if it is not, or the subscriber was
    /// removed. So two UDMs never use the same number.
    fn advance_sqn(&self, supi: Supi, expected: u64, new: u64) -> StoreFuture<'_, bool>;

    /// Sets the sequence number unconditionally (resynchronisation); `false` if there is no such
    /// subscriber.
    fn set_sqn(&self, supi: Supi, new: u64) -> StoreFuture<'_, bool>;

    /// Writes a context document of `kind` under `key`.
    fn put_context(&self, kind: &'static str, key: String, document: String) -> StoreFuture<'_, ()>;

    /// Reads a context document.
    fn context(&self, kind: &'static str, key: &str) -> StoreFuture<'_, Option<String>>;

    /// All context documents of `kind` whose key begins with `prefix`, by key.
    fn contexts(&self, kind: &'static str, prefix: &str) -> StoreFuture<'_, Vec<(String, String)>>;

    /// Removes a context document; `false` when there was none.
    fn remove_context(&self, kind: &'static str, key: &str) -> StoreFuture<'_, bool>;
}
