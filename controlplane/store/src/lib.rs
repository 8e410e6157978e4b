//! Durable storage behind one trait (idea 8: state outlives processes).
//!
//! [`Store`] is what network functions and the command line see; [`Sqlite`] is the default
//! implementation, one file that operators can open with their own tools. A database that several
//! machines share implements the same trait.
//!
//! What is kept: subscribers ([`Subscriber`], written by the operator, read by the UDR), the
//! authentication sequence number of each (written by the UDM through the UDR), and *contexts*:
//! JSON documents of network functions, by kind and key.
//!
//! K, OPc and OP are encrypted in the file, with a key that is kept elsewhere ([`KeySource`]).
//!
//! Invariants: this crate opens no socket, knows no procedure, and never logs a key. A value that a
//! completed call wrote survives `kill -9` of any process. No subscriber's key is in the file in clear.
#![forbid(unsafe_code)]

pub mod import;
mod seal;
mod sqlite;
mod subscriber;

use std::{future::Future, pin::Pin};

pub use seal::{KeyError, KeySource};
pub use sqlite::Sqlite;
pub use subscriber::{Authentication, DnnSubscription, OperatorCode, SQN_MAX, SliceSubscription, Subscriber};
use types::Supi;

/// Why the store could not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The subscriber to be added is there already.
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
        /// The file asked for.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// There is no store yet.
    #[error("there is no store at {path}: `godwit subscriber add` or `import` creates it")]
    Missing {
        /// The file asked for.
        path: String,
    },
    /// The file is no database any more, or parts of it are broken.
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
    /// The key that encrypts the subscribers' keys cannot be had, or is another.
    #[error(transparent)]
    Key(Box<KeyError>),
    /// A row holds something this program cannot read.
    #[error("the store holds an unreadable record for {key}: {reason}")]
    Corrupt {
        /// Key of the record.
        key: String,
        /// What is wrong with it; never its content.
        reason: String,
    },
    /// The database refused.
    #[error("store: {0}")]
    Database(#[from] rusqlite::Error),
    /// The store is closing.
    #[error("the store is closed")]
    Closed,
}

/// What to do when a subscriber to be added is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    /// Refuse the whole batch.
    Fail,
    /// Overwrite; the sequence number goes on from the larger of the two, so that the USIM need not resynchronise.
    Replace,
}

/// A subscriber that was overwritten or removed; see [`Store::changed_subscribers`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The subscriber.
    pub supi: Supi,
    /// Tells this change from later ones of the same subscriber.
    pub number: u64,
}

/// Kind of the context document that holds the serving AMF of a subscriber, under its SUPI.
pub const SERVING_AMF: &str = "amf-3gpp-access";

/// The future every [`Store`] method returns: boxed, so that `dyn Store` works.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Storage of a core. One per process, shared by its network functions; several processes may use the same store.
pub trait Store: Send + Sync {
    /// Adds subscribers, all or none.
    fn put_subscribers(&self, subscribers: Vec<Subscriber>, on_conflict: OnConflict) -> StoreFuture<'_, ()>;

    /// One subscriber.
    fn subscriber(&self, supi: Supi) -> StoreFuture<'_, Option<Subscriber>>;

    /// At most `limit` subscribers in order of IMSI, those after `after`.
    fn subscribers(&self, after: Option<Supi>, limit: usize) -> StoreFuture<'_, Vec<Subscriber>>;

    /// How many subscribers there are.
    fn subscriber_count(&self) -> StoreFuture<'_, u64>;

    /// Removes a subscriber; `false` when there was none. Its contexts go with it, or, when an AMF serves the UE, with
    /// [`Store::change_notified`]: they say who has to hear of the removal.
    fn remove_subscriber(&self, supi: Supi) -> StoreFuture<'_, bool>;

    /// At most `limit` subscribers that were overwritten or removed while their UE was served, and of whose change the
    /// network functions have not been notified.
    fn changed_subscribers(&self, limit: usize) -> StoreFuture<'_, Vec<Change>>;

    /// The network functions have been notified of a change. What changed since stays to be notified.
    fn change_notified(&self, change: Change) -> StoreFuture<'_, ()>;

    /// Sets the sequence number when it still is `expected`; `false` when it is not (or the subscriber is gone).
    /// Two UDMs can thus never use one number twice.
    fn advance_sqn(&self, supi: Supi, expected: u64, new: u64) -> StoreFuture<'_, bool>;

    /// Sets the sequence number whatever it was (resynchronisation); `false` when there is no such subscriber.
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
