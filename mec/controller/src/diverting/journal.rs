//! The state file of what is to be diverted: a journal ([`store::journal`]) with one line for all that one request changes.
//!
//! A change is in the file before it is in a switch, and on the disk before anybody is told that it is done.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use store::journal::{self, Contents};
pub use store::journal::{JournalError, Written};

use super::model::Diversion;

/// All diversions by their ids.
pub type Diversions = BTreeMap<String, Diversion>;
/// The open file.
pub type Journal = journal::Journal<Kept>;
/// The line of a change.
pub type Line = journal::Line<Kept>;

/// What is in the file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Kept(pub Diversions);

/// A line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// A diversion.
    Set(Diversion),
    /// One that is gone.
    Remove(String),
    /// What one request sets and removes; all of it, or nothing if the line is torn.
    Batch {
        /// New values.
        set: Vec<Diversion>,
        /// Ids that are gone.
        remove: Vec<String>,
    },
}

impl Contents for Kept {
    type Change = Change;
    const FORMAT: &'static str = "godwit diversions 1";
    const PROGRAM: &'static str = "controller";
    const WITHOUT: &'static str = "then nothing is diverted, and switches lose their diverting rules";

    fn apply(&mut self, change: Change) {
        match change {
            Change::Set(diversion) => _ = self.0.insert(diversion.id(), diversion),
            Change::Remove(id) => _ = self.0.remove(&id),
            Change::Batch { set, remove } => {
                for id in &remove {
                    self.0.remove(id);
                }
                self.0.extend(set.into_iter().map(|diversion| (diversion.id(), diversion)));
            }
        }
    }

    fn changes(&self) -> Vec<Change> {
        self.0.values().map(|diversion| Change::Set(diversion.clone())).collect()
    }
}

/// The line of what a request changes.
pub fn line(set: &[Diversion], removed: &[String]) -> Line {
    Line::of(&Change::Batch { set: set.to_vec(), remove: removed.to_vec() })
}

/// Writes what a request changes. `all` is what holds afterwards.
///
/// # Errors
/// The file cannot be written.
pub fn write(
    journal: &mut Journal,
    line: &Line,
    all: impl FnOnce() -> Diversions,
) -> Result<Written, JournalError> {
    journal.write_line(line, || Kept(all()))
}

/// The text of a file with these diversions.
pub fn write_all(diversions: &Diversions) -> String {
    journal::write_all(&Kept(diversions.clone()))
}

/// Reads a state file; the error has the line, from 1.
pub fn read(text: &[u8]) -> Result<Diversions, (usize, String)> {
    journal::read::<Kept>(text).map(|kept| kept.0)
}

/// What a change replaces: values of before, and ids that were not there.
pub(super) type Before = (Vec<Diversion>, Vec<String>);

pub(super) trait Undoable {
    fn clone_of(&self, set: &[Diversion], removed: &[String]) -> Before;
    fn apply(&mut self, set: &[Diversion], removed: &[String]);
    fn restore(&mut self, before: Before) -> Before;
}

impl Undoable for Diversions {
    fn clone_of(&self, set: &[Diversion], removed: &[String]) -> Before {
        let mut before = Before::default();
        for id in set.iter().map(Diversion::id).chain(removed.iter().cloned()) {
            match self.get(&id) {
                Some(old) => before.0.push(old.clone()),
                None => before.1.push(id),
            }
        }
        before
    }

    fn apply(&mut self, set: &[Diversion], removed: &[String]) {
        for id in removed {
            self.remove(id);
        }
        for diversion in set {
            self.insert(diversion.id(), diversion.clone());
        }
    }

    fn restore(&mut self, before: Before) -> Before {
        self.apply(&before.0, &before.1);
        before
    }
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
    async fn a_request_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let both = ["10.45.0.2", "10.45.0.3"].map(diversion);
        let before = std::fs::read(&path).unwrap().len();
        write(&mut journal, &line(&both, &[]), Diversions::new).unwrap().durable().await.unwrap();
        let octets = std::fs::read(&path).unwrap();
        assert_eq!(read(&octets).unwrap().len(), 2);
        for length in before..octets.len() {
            assert!(read(&octets[..length]).unwrap().is_empty());
        }
        let removed = ["gw1~10.45.0.2".to_owned()];
        write(&mut journal, &line(&[], &removed), Diversions::new).unwrap().durable().await.unwrap();
        let left = read(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(left.keys().collect::<Vec<_>>(), ["gw1~10.45.0.3"]);
        assert_eq!(read(write_all(&left).as_bytes()), Ok(left));
    }
}
