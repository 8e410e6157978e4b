//! What is kept over a restart (CAP-9): the records of all anchors, and what clones gave.
//!
//! Spaces of a database of [`store::Records`], for each anchor and protocol: `…/peers`, `…/templates`, `…/records`, and `…/copies/NAME` for
//! each target. Changes are written together, some milliseconds after they were made. So a kill may lose the last ones: messages captured
//! then are as if they had passed while the controller was away.

use std::net::{IpAddr, SocketAddr};

use net::time::{self, Duration};
use store::StoreError;
use store::records::{Change as Write, Records};

use crate::replicator::{Protocol, Replicator};
use crate::table::{Change, Table};
use crate::template::Misfit;
use crate::track::Peers;

/// How often changes are written.
const EVERY: Duration = Duration::from_millis(20);
/// Records that are read at once.
const CHUNK: usize = 10_000;

/// Why what was kept cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Records contradict each other.
    #[error(
        "what is kept of {anchor} contradicts itself; without it sessions are known again as their UEs are heard of: remove the spaces `{anchor}/…`"
    )]
    Damaged {
        /// The anchor and protocol.
        anchor: String,
    },
}

/// The name of an anchor's spaces.
pub(crate) fn space(anchor: IpAddr, protocol: Protocol) -> String {
    format!("{anchor}/{}", if protocol == Protocol::S11 { "gtp-c" } else { "pfcp" })
}

/// A copy that is kept: who made it, and what the clone gave.
pub(crate) struct KeptCopy {
    pub(crate) number: u32,
    pub(crate) agent: SocketAddr,
    pub(crate) made: Vec<u8>,
}

/// All of one anchor, as it was kept.
pub(crate) struct Kept {
    pub(crate) table: Table,
    pub(crate) peers: Peers,
    /// By target.
    pub(crate) copies: Vec<(String, Vec<KeptCopy>)>,
}

async fn each(
    records: &Records,
    space: String,
    mut take: impl FnMut(u64, Vec<u8>) -> Result<(), Misfit>,
) -> Result<bool, StoreError> {
    let mut after = None;
    loop {
        let chunk = records.load(&space, after, CHUNK).await?;
        let Some((last, _)) = chunk.last() else { return Ok(true) };
        after = Some(*last);
        for (key, octets) in chunk {
            if take(key, octets).is_err() {
                return Ok(false);
            }
        }
    }
}

/// Reads what was kept of an anchor. Targets are those that copies may be at.
pub(crate) async fn load(
    records: &Records,
    anchor: IpAddr,
    protocol: Protocol,
    targets: &[String],
) -> Result<Kept, KeepError> {
    let name = space(anchor, protocol);
    let damaged = || KeepError::Damaged { anchor: name.clone() };
    let number = |key: u64| u32::try_from(key).map_err(|_| Misfit);
    let mut peers: Vec<(u64, IpAddr)> = Vec::new();
    let fits = each(records, format!("{name}/peers"), |key, octets| {
        let text = String::from_utf8(octets).map_err(|_| Misfit)?;
        peers.push((key, text.parse().map_err(|_| Misfit)?));
        Ok(())
    });
    if !fits.await? {
        return Err(damaged());
    }
    peers.sort_unstable();
    let mut known = Peers::default();
    for (key, address) in peers {
        if known.number(address).ok().map(u64::from) != Some(key) {
            return Err(damaged());
        }
    }
    let mut table = Table::default();
    let fits = each(records, format!("{name}/templates"), |key, octets| {
        table.restore(&Change::Template(u16::try_from(key).map_err(|_| Misfit)?, octets))
    });
    if !fits.await? {
        return Err(damaged());
    }
    let fits = each(records, format!("{name}/records"), |key, octets| {
        table.restore(&Change::Record(number(key)?, octets))
    });
    if !fits.await? {
        return Err(damaged());
    }
    table.restored();
    let mut copies = Vec::new();
    for target in targets {
        let mut of_target = Vec::new();
        let fits = each(records, format!("{name}/copies/{target}"), |key, octets| {
            let (length, rest) = octets.split_first().ok_or(Misfit)?;
            let (agent, made) = rest.split_at_checked(usize::from(*length)).ok_or(Misfit)?;
            let agent = std::str::from_utf8(agent).map_err(|_| Misfit)?.parse().map_err(|_| Misfit)?;
            of_target.push(KeptCopy { number: number(key)?, agent, made: made.to_vec() });
            Ok(())
        });
        if !fits.await? {
            return Err(damaged());
        }
        if !of_target.is_empty() {
            copies.push((target.clone(), of_target));
        }
    }
    Ok(Kept { table, peers: known, copies })
}

/// The changes of a table as those of its spaces: templates that are new, records, templates that are gone.
pub(crate) fn writes(name: &str, changes: Vec<Change>) -> [(String, Vec<Write>); 3] {
    let (mut new, mut records, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for change in changes {
        match change {
            Change::Template(number, octets) => new.push(Write::Put { key: number.into(), octets }),
            Change::NoTemplate(number) => gone.push(Write::Remove { key: number.into() }),
            Change::Record(number, octets) => records.push(Write::Put { key: number.into(), octets }),
            Change::NoRecord(number) => records.push(Write::Remove { key: number.into() }),
        }
    }
    // So that a record never names a template that is not there, however much of it is written.
    [
        (format!("{name}/templates"), new),
        (format!("{name}/records"), records),
        (format!("{name}/templates"), gone),
    ]
}

/// A copy as it is kept.
pub(crate) fn copy(agent: SocketAddr, made: &[u8]) -> Vec<u8> {
    let agent = agent.to_string();
    let mut octets = vec![agent.len() as u8];
    octets.extend_from_slice(agent.as_bytes());
    octets.extend_from_slice(made);
    octets
}

/// Writes changes as long as the replicator is there. Errors are in the log; what could not be written is tried again.
pub async fn keep(replicator: Replicator, records: Records) {
    let mut failed: Vec<(String, Vec<Write>)> = Vec::new();
    loop {
        time::sleep(EVERY).await;
        failed.extend(replicator.take_writes());
        let mut again = Vec::new();
        for (space, writes) in std::mem::take(&mut failed) {
            if writes.is_empty() {
                continue;
            }
            // Later changes of a space wait for earlier ones.
            let waits = again.iter().any(|(of, _): &(String, Vec<Write>)| *of == space);
            match if waits { None } else { Some(records.write(&space, writes.clone()).await) } {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::error!(%error, space, "sessions cannot be kept");
                    again.push((space, writes));
                }
                None => again.push((space, writes)),
            }
        }
        if !again.is_empty() {
            time::sleep(Duration::from_secs(1)).await;
        }
        failed = again;
    }
}
