//! What is kept over a restart (CAP-9): the records of all anchors, and what clones gave.
//!
//! Each anchor has a space in a database of [`store::records`]. What has changed is written as a whole, in one transaction, some milliseconds
//! later: so what is kept never contradicts itself, and a kill loses the last changes. Messages that were captured then are as if they had
//! passed while the controller was away. Removals of copies are answered when they are written: nobody asks for them again.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use net::time::{self, Duration};
use store::StoreError;
use store::records::{Change as Write, Records};

use crate::clone::Made;
use crate::frame;
use crate::n4::usage::Ledger;
use crate::replicator::{Protocol, Replicator};
use crate::table::{Change, RestoreError, Table};
use crate::template::Misfit;
use crate::track::Peers;

/// How often changes are written.
const EVERY: Duration = Duration::from_millis(20);
/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Records that are read at once.
const CHUNK: usize = 10_000;

/// Why what was kept cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Records contradict each other.
    #[error("what is kept of the sessions in the space `{space}` contradicts itself. {remedy}", remedy = without(space))]
    Damaged {
        /// The anchor and protocol.
        space: String,
    },
    /// There were more sessions than there may be.
    #[error(
        "the space `{space}` has sessions of a time when there were more than `max_sessions`, which is {most}: set it higher. {remedy}",
        remedy = without(space)
    )]
    TooMany {
        /// The anchor and protocol.
        space: String,
        /// The limit.
        most: usize,
    },
}

/// How to go on without a space: nothing else reads it. The tables are those of [`store::records`].
fn without(space: &str) -> String {
    format!(
        "To go on without it, remove it while the controller is down: `DELETE FROM record WHERE space = '{space}'` in the file of SQLite, \
         `DELETE FROM godwit_records.record WHERE space = '{space}'` in PostgreSQL. Then its sessions are known again as their UEs attach, and \
         copies of them stay at clones until these restart"
    )
}

/// The name of an anchor's spaces.
pub(crate) fn space(anchor: IpAddr, protocol: Protocol) -> String {
    format!("{anchor}/{}", if protocol == Protocol::S11 { "gtp-c" } else { "pfcp" })
}

/// A copy as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptCopy {
    pub(crate) number: u32,
    pub(crate) target: String,
    pub(crate) agent: SocketAddr,
    /// It is to be there, else it is to end.
    pub(crate) is_wanted: bool,
    /// What the clone gave, if that is known.
    pub(crate) made: Option<Made>,
}

/// All of one anchor, as it was kept.
pub(crate) struct Kept {
    pub(crate) table: Table,
    pub(crate) peers: Peers,
    pub(crate) copies: Vec<KeptCopy>,
    /// Usage of sessions.
    pub(crate) ledgers: Vec<(u32, Ledger)>,
}

/// What a key's number is of, in its upper half.
const PEER: u64 = 0;
const TEMPLATE: u64 = 1 << 32;
const RECORD: u64 = 2 << 32;
const COPIES: u64 = 3 << 32;
const LEDGER: u64 = 4 << 32;
/// When control planes have started, by their numbers, and the anchor.
const START: u64 = 5 << 32;
/// The number of the anchor there.
const ANCHOR: u64 = 256;

/// Reads a space, record by record, up to one that is refused.
async fn each<E>(
    records: &Records,
    space: &str,
    mut take: impl FnMut(u64, Vec<u8>) -> Result<(), E>,
) -> Result<Result<(), E>, StoreError> {
    let mut after = None;
    loop {
        let chunk = records.load(space, after, CHUNK).await?;
        let Some((last, _)) = chunk.last() else { return Ok(Ok(())) };
        after = Some(*last);
        for (key, octets) in chunk {
            if let Err(error) = take(key, octets) {
                return Ok(Err(error));
            }
        }
    }
}

/// Reads what was kept of an anchor, which has at most so many sessions.
pub(crate) async fn load(
    records: &Records,
    anchor: IpAddr,
    protocol: Protocol,
    most: usize,
) -> Result<Kept, KeepError> {
    let space = space(anchor, protocol);
    let (mut peers, mut copies): (Vec<(u64, IpAddr)>, Vec<KeptCopy>) = Default::default();
    let (mut ledgers, mut starts) = (Vec::new(), Vec::new());
    let mut table = Table::bounded(most);
    // By their keys, templates come before the records that use them.
    let read = each(records, &space, |key, octets| -> Result<(), RestoreError> {
        let number = (key & u64::from(u32::MAX)) as u32;
        match key - u64::from(number) {
            PEER => {
                let text = String::from_utf8(octets).map_err(|_| Misfit)?;
                peers.push((key, text.parse().map_err(|_| Misfit)?));
            }
            TEMPLATE => {
                table.restore(&Change::Template(u16::try_from(number).map_err(|_| Misfit)?, octets))?
            }
            RECORD => table.restore(&Change::Record(number, octets))?,
            COPIES => copies.extend(read_copies(number, &octets)?),
            LEDGER => ledgers.push((number, Ledger::read(&octets)?)),
            START => {
                let is_anchor = u64::from(number) == ANCHOR;
                let peer = if is_anchor { None } else { Some(u8::try_from(number).map_err(|_| Misfit)?) };
                starts.push((peer, u32::from_be_bytes(octets.try_into().map_err(|_| Misfit)?)));
            }
            _ => return Err(Misfit.into()),
        }
        Ok(())
    });
    match read.await? {
        Err(RestoreError::BeyondMost(_)) => return Err(KeepError::TooMany { space, most }),
        Err(RestoreError::Misfit(_)) => return Err(KeepError::Damaged { space }),
        Ok(()) => {}
    }
    table.restored();
    peers.sort_unstable();
    let is_gapless = (0..).zip(&peers).all(|(number, (key, _))| *key == number);
    let peers = Peers::restored(peers.into_iter().map(|(_, address)| address).collect(), &starts);
    match peers {
        Ok(peers) if is_gapless => Ok(Kept { table, peers, copies, ledgers }),
        _ => Err(KeepError::Damaged { space }),
    }
}

/// A control plane's number.
pub(crate) fn peer((number, address): (u8, IpAddr)) -> Write {
    Write::Put { key: PEER + u64::from(number), octets: address.to_string().into_bytes() }
}

/// When a control plane has started, or the anchor, as it says.
pub(crate) fn start((peer, start): (Option<u8>, Option<u32>)) -> Write {
    let key = START + peer.map_or(ANCHOR, u64::from);
    match start {
        Some(start) => Write::Put { key, octets: start.to_be_bytes().to_vec() },
        None => Write::Remove { key },
    }
}

/// A change of a table.
pub(crate) fn change(change: Change) -> Write {
    match change {
        Change::Template(number, octets) => Write::Put { key: TEMPLATE + u64::from(number), octets },
        Change::NoTemplate(number) => Write::Remove { key: TEMPLATE + u64::from(number) },
        Change::Record(number, octets) => Write::Put { key: RECORD + u64::from(number), octets },
        Change::NoRecord(number) => Write::Remove { key: RECORD + u64::from(number) },
    }
}

/// Usage of a session.
pub(crate) fn ledger(number: u32, ledger: Option<&Ledger>) -> Write {
    let key = LEDGER + u64::from(number);
    match ledger {
        Some(ledger) => Write::Put { key, octets: ledger.write() },
        None => Write::Remove { key },
    }
}

/// All copies of a record: of each the target and the agent as text behind its length, whether it is wanted, and what the clone gave behind
/// its length.
pub(crate) fn copies(number: u32, copies: Vec<KeptCopy>) -> Write {
    let key = COPIES + u64::from(number);
    if copies.is_empty() {
        return Write::Remove { key };
    }
    let mut octets = Vec::new();
    for copy in copies {
        let made = copy.made.as_ref().map(frame::write_made).unwrap_or_default();
        let (agent, flags) = (copy.agent.to_string(), [u8::from(copy.is_wanted)]);
        for part in [copy.target.as_bytes(), agent.as_bytes(), &flags, &made] {
            octets.extend_from_slice(&(part.len() as u16).to_be_bytes());
            octets.extend_from_slice(part);
        }
    }
    Write::Put { key, octets }
}

fn read_copies(number: u32, mut octets: &[u8]) -> Result<Vec<KeptCopy>, Misfit> {
    let mut copies = Vec::new();
    while !octets.is_empty() {
        let mut part = || {
            let length = octets.split_off(..2).ok_or(Misfit)?;
            octets.split_off(..usize::from(u16::from_be_bytes([length[0], length[1]]))).ok_or(Misfit)
        };
        let [target, agent, flags, made] = [part()?, part()?, part()?, part()?];
        let text = |octets| std::str::from_utf8(octets).map_err(|_| Misfit);
        copies.push(KeptCopy {
            number,
            target: text(target)?.to_owned(),
            agent: text(agent)?.parse().map_err(|_| Misfit)?,
            is_wanted: flags == [1],
            made: if made.is_empty() { None } else { Some(frame::read_made(made).map_err(|_| Misfit)?) },
        });
    }
    Ok(copies)
}

/// Writes changes as long as the replicator is there. Errors are in the log; what could not be written is written with what follows.
pub async fn keep(replicator: Replicator, records: Records) {
    let mut open: BTreeMap<String, BTreeMap<u64, Write>> = BTreeMap::new();
    loop {
        let _ = time::timeout(EVERY, replicator.is_in_a_hurry()).await;
        for (space, writes) in replicator.take_writes() {
            let of_space = open.entry(space).or_default();
            for write in writes {
                let key = match &write {
                    Write::Put { key, .. } | Write::Remove { key } => *key,
                };
                of_space.insert(key, write);
            }
        }
        for (space, writes) in std::mem::take(&mut open) {
            if let Err(error) = records.write(&space, writes.values().cloned().collect()).await {
                tracing::error!(%error, space, "sessions cannot be kept");
                open.insert(space, writes);
            }
        }
        match open.is_empty() {
            true => replicator.all_is_written(),
            false => time::sleep(AFTER_FAILURE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_come_back_and_damaged_ones_are_refused() {
        let copy = |target: &str, is_wanted, made| KeptCopy {
            number: 7,
            target: target.to_owned(),
            agent: "10.9.0.3:8806".parse().unwrap(),
            is_wanted,
            made,
        };
        let all =
            vec![copy("gw2", true, Some(Made { anchor: 5, bearers: Vec::new() })), copy("gw3", false, None)];
        let Write::Put { key, octets } = copies(7, all.clone()) else { panic!() };
        assert_eq!(key, COPIES + 7);
        assert_eq!(read_copies(7, &octets), Ok(all));
        for end in 1..octets.len() {
            let read = read_copies(7, &octets[..end]);
            assert!(read.is_err() || read.is_ok_and(|read| read.len() == 1));
        }
        assert_eq!(copies(7, Vec::new()), Write::Remove { key: COPIES + 7 });
    }
}
