//! N4: sessions of a UPF as its SMFs make them (TS 29.244).
//!
//! What the UPF chose (CHOOSE) is written into the requests that are kept, so that a clone is asked for the same TEIDs: then nothing
//! is translated in the data path (SEL-7). [`track`] follows captured messages, [`clone`](mod@clone) makes sessions at another UPF, `active`
//! in one exchange, `restoration` compares those of a UPF that has restarted with what they were, [`tree`] reads and rewrites messages without
//! knowing all of them.

mod active;
pub mod clone;
mod restoration;
pub mod track;
pub mod tree;
pub mod usage;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pfcp::codec::Value as _;
use pfcp::{FSeid, ie};

use crate::template::{Source, Spot};

pub use track::Tracker;

/// The spots of a message: SEIDs, TEIDs, users' addresses. None beyond the first octet that cannot be read.
pub fn spots(message: &[u8], found: &mut Vec<Spot>) {
    let has_seid = message.first().is_some_and(|flags| flags & 1 != 0);
    if message.len() < tree::HEADER || !has_seid || message.len() > usize::from(u16::MAX) {
        return;
    }
    found.push(Spot { at: 4, len: 8, source: Source::Stored });
    found.push(Spot { at: 12, len: 3, source: Source::Sequence });
    of_ies(message, tree::HEADER, message.len(), 0, found);
}

fn of_ies(message: &[u8], mut at: usize, end: usize, depth: u32, found: &mut Vec<Spot>) {
    while let Some((kind, begin, value)) = tree::next(&message[..end], &mut at) {
        let mut spot = |offset: usize, len: usize| {
            if len > 0 && offset + len <= value.len() {
                found.push(Spot { at: (begin + offset) as u16, len: len as u16, source: Source::Stored });
            }
        };
        let flags = value.first().copied().unwrap_or_default();
        match kind {
            ie::F_SEID => spot(1, 8),
            // Not where the UP function is to choose.
            ie::F_TEID if flags & 4 == 0 => spot(1, 4),
            ie::OUTER_HEADER_CREATION if flags & 3 != 0 => spot(2, 4),
            ie::UE_IP_ADDRESS => {
                let v4 = if flags & 2 != 0 { 4 } else { 0 };
                spot(1, v4);
                spot(1 + v4, if flags & 1 != 0 { 16 } else { 0 });
            }
            ie::USER_ID => spot(0, value.len()),
            _ if tree::is_grouped(kind) && depth < 4 => {
                of_ies(message, begin, begin + value.len(), depth + 1, found)
            }
            _ => {}
        }
    }
}

/// The SMF's address in the request that has established a session: with the SEID there it names the session (TS 29.244 §8.2.37).
pub fn smf(requests: &[Vec<u8>]) -> Option<IpAddr> {
    let ies = requests.first()?.get(tree::HEADER..)?;
    let FSeid { ipv4, ipv6, .. } = FSeid::decode(tree::find(ies, ie::F_SEID)?).ok()?;
    ipv4.map(IpAddr::V4).or(ipv6.map(IpAddr::V6))
}

/// Where a GTP-U tunnel of a session ends at a base station: TEID, address.
pub fn stations(requests: &[Vec<u8>]) -> Vec<(u8, u32, IpAddr)> {
    let mut ends: Vec<(&[u8], (u32, IpAddr))> = Vec::new();
    for request in requests {
        for (kind, value) in tree::all(request.get(tree::HEADER..).unwrap_or_default()) {
            let (parameters, action) = match kind {
                ie::CREATE_FAR => (ie::FORWARDING_PARAMETERS, true),
                ie::UPDATE_FAR => (ie::UPDATE_FORWARDING_PARAMETERS, true),
                ie::REMOVE_FAR => (0, false),
                _ => continue,
            };
            let Some(id) = tree::find(value, ie::FAR_ID) else { continue };
            let created =
                tree::find(value, parameters).and_then(|value| tree::find(value, ie::OUTER_HEADER_CREATION));
            if !action {
                ends.retain(|(known, _)| *known != id);
            } else if let Some(end) = created.and_then(end_of) {
                ends.retain(|(known, _)| *known != id);
                ends.push((id, end));
            }
        }
    }
    ends.into_iter().enumerate().map(|(at, (_, (teid, address)))| (at as u8, teid, address)).collect()
}

/// The end of a GTP-U tunnel in Outer Header Creation (§8.2.56).
fn end_of(value: &[u8]) -> Option<(u32, IpAddr)> {
    let (flags, rest) = value.split_at_checked(2)?;
    let (teid, rest) = rest.split_first_chunk::<4>()?;
    let address = match flags[0] & 3 {
        1 | 3 => Ipv4Addr::from_octets(*rest.first_chunk()?).into(),
        2 => Ipv6Addr::from_octets(*rest.first_chunk()?).into(),
        _ => return None,
    };
    Some((u32::from_be_bytes(*teid), address))
}
