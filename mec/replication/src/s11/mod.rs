//! S11: sessions of a 4G anchor (S-GW, or S-GW and P-GW in one) as its MMEs make them (TS 29.274).
//!
//! [`track`] follows captured messages, [`clone`](mod@clone) makes sessions at another anchor, `active` in
//! one exchange where that is possible, [`spots`] says where users' messages differ.

mod active;
pub mod clone;
pub mod relocation;
pub mod spots;
pub mod track;

use gtpv2c::codec::{Ies, Value as _};
use gtpv2c::message::CreateSessionResponse;
use gtpv2c::tft::{Component, Direction, Operation, PacketFilter, Tft};
use gtpv2c::{Ebi, FTeid, Header, Message, MessageType, OffendingIe, Paa, ie};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use types::Imsi;

use crate::original::Datagrams;
use crate::record::{Bearer, prefix};
use crate::template::Misfit;

pub use track::Tracker;

/// Octets of a header with TEID (TS 29.274 §5.1).
const HEADER: usize = 12;
/// IP protocol.
const UDP: u8 = 17;

/// The number by which records have an IMSI: its octets as in messages, filled up with ones.
pub fn subject(imsi: &Imsi) -> u64 {
    let mut octets = Vec::with_capacity(8);
    imsi.encode(&mut octets);
    octets.resize(8, 0xff);
    octets.first_chunk().map_or(0, |octets| u64::from_be_bytes(*octets))
}

/// The IMSI of [`subject`].
pub fn imsi(subject: u64) -> Option<Imsi> {
    let octets = subject.to_be_bytes();
    let length = octets.iter().rposition(|octet| *octet != 0xff)? + 1;
    Imsi::decode(&octets[..length]).ok()
}

/// Reads a message and its header.
fn read(octets: &[u8]) -> Option<(Header, Message)> {
    Message::decode(octets).ok()
}

/// Where the values of IEs are in a message with TEID that satisfy a condition on type and instance.
fn values(message: &[u8], is_meant: impl Fn(u8, u8) -> bool) -> Vec<Range<usize>> {
    let (mut at, mut found) = (HEADER, Vec::new());
    while let Some([kind, l0, l1, instance]) = message.get(at..).and_then(|rest| rest.first_chunk()) {
        let value = at + 4..at + 4 + usize::from(u16::from_be_bytes([*l0, *l1]));
        at = value.end;
        if is_meant(*kind, instance & 0xf) && at <= message.len() {
            found.push(value);
        }
    }
    found
}

/// Writes an IE as it was read.
fn raw(out: &mut Vec<u8>, kind: OffendingIe, value: &[u8]) -> Result<(), Misfit> {
    out.push(kind.ie_type);
    out.extend_from_slice(&u16::try_from(value.len()).map_err(|_| Misfit)?.to_be_bytes());
    out.push(kind.instance);
    out.extend_from_slice(value);
    Ok(())
}

/// A message whose length is right.
fn finished(mut message: Vec<u8>) -> Result<Vec<u8>, Misfit> {
    let length = message.len().checked_sub(4).and_then(|length| u16::try_from(length).ok()).ok_or(Misfit)?;
    message[2..4].copy_from_slice(&length.to_be_bytes());
    Ok(message)
}

/// Has a session be asked for with an address, as if the UE's were a static one (TS 23.401 §5.3.1.1). Of several PDN connections it is not
/// known whose the address is: then each gets what the anchor gives.
pub fn ask_for(requests: &mut [Vec<u8>], address: Ipv4Addr) {
    let is_create = |request: &&mut Vec<u8>| {
        let head = Header::decode(request);
        head.is_ok_and(|(header, ..)| header.message_type == MessageType::CreateSessionRequest)
    };
    let mut creates: Vec<_> = requests.iter_mut().filter(is_create).collect();
    let [request] = &mut creates[..] else { return };
    for value in values(request, |kind, instance| (kind, instance) == (ie::PAA, 0)) {
        // The type of PDN, IPv4, and the address (§8.14).
        if let Some([1, paa @ ..]) = request.get_mut(value)
            && let Some(paa) = paa.first_chunk_mut()
        {
            *paa = address.octets();
        }
    }
}

/// Whether the cause in a response is acceptance.
fn is_accepted(octets: &[u8]) -> bool {
    let Ok((_, ies, _)) = Header::decode(octets) else { return false };
    let cause = Ies::new(ies).find(OffendingIe::new(ie::CAUSE, 0));
    cause.is_some_and(|value| gtpv2c::Cause::decode(value).is_ok_and(|cause| cause.is_accepted()))
}

/// Enters the bearers of a new PDN connection, the first one with the UE's addresses; `known`: those that it has already, if its S-GW changes.
fn enter_created(answer: &CreateSessionResponse, known: Option<Paa>, bearers: &mut Vec<Bearer>) {
    let mut paa = answer.paa.or(known);
    for created in &answer.bearers_created {
        let (id, uplink) = (created.ebi.0, created.s1u_sgw_f_teid.map_or(0, |end| end.teid));
        let (ipv4, ipv6) = match paa.take() {
            Some(Paa::Ipv4(ipv4)) => (Some(ipv4), None),
            Some(Paa::Ipv6(ipv6)) => (None, Some(prefix(ipv6.address))),
            Some(Paa::Ipv4v6(ipv4, ipv6)) => (Some(ipv4), Some(prefix(ipv6.address))),
            _ => (None, None),
        };
        bearers.retain(|known| known.id != id);
        bearers.push(Bearer { id, uplink, ipv4, ipv6 });
    }
}

/// Dedicated bearers that carry datagrams of UDP, and which.
pub fn dedicated(requests: &[Vec<u8>]) -> Vec<(u8, Datagrams)> {
    let mut found = Vec::new();
    let mut asked = None;
    let about = [MessageType::CreateBearerRequest, MessageType::CreateBearerResponse];
    let requests = requests.iter().filter(|request| about.iter().any(|kind| is_of(request, *kind)));
    for (_, message) in requests.filter_map(|request| read(request)) {
        match (message, asked.take()) {
            (Message::CreateBearerRequest(request), _) => asked = Some(request),
            (Message::CreateBearerResponse(answer), Some(request)) => {
                for (bearer, created) in request.bearers.iter().zip(&answer.bearers) {
                    found.extend(datagrams(&bearer.tft.0).map(|datagrams| (created.ebi.0, datagrams)));
                }
            }
            _ => {}
        }
    }
    found
}

/// Of a template the first filter by which datagrams pass both ways, whatever the user's port is.
fn datagrams(tft: &[u8]) -> Option<Datagrams> {
    let Operation::Create(filters) = Tft::decode(tft).ok()?.operation else { return None };
    let of = |filter: &PacketFilter| {
        let mut datagrams = Datagrams::default();
        for component in &filter.components {
            match *component {
                Component::Protocol(UDP) => {}
                Component::Ipv4Remote { address, .. } => datagrams.server = Some(address.into()),
                Component::Ipv6RemoteMask { address, .. } | Component::Ipv6Remote { address, .. } => {
                    datagrams.server = Some(address.into());
                }
                Component::RemotePort(port) | Component::RemotePorts(port, _) => datagrams.port = Some(port),
                _ => return None,
            }
        }
        Some(datagrams)
    };
    filters.iter().filter(|filter| filter.direction == Direction::Bidirectional).find_map(of)
}

/// A UE's tunnels at its base station: bearer, TEID, address. Only the IEs that say so are read: many users are listed at once.
pub fn stations(requests: &[Vec<u8>]) -> Vec<(u8, u32, IpAddr)> {
    let mut ends: Vec<(u8, u32, IpAddr)> = Vec::new();
    let naming = [
        MessageType::CreateSessionRequest,
        MessageType::ModifyBearerRequest,
        MessageType::CreateBearerResponse,
    ];
    for request in requests.iter().filter(|request| naming.iter().any(|kind| is_of(request, *kind))) {
        for bearer in values(request, |kind, instance| (kind, instance) == (ie::BEARER_CONTEXT, 0)) {
            let find = |kind| Ies::new(&request[bearer.clone()]).find(OffendingIe::new(kind, 0));
            let id = find(ie::EBI).and_then(|value| Ebi::decode(value).ok());
            let end = find(ie::F_TEID).and_then(|value| FTeid::decode(value).ok());
            if let (Some(id), Some(end)) = (id, end)
                && let Some(address) = end.address()
            {
                ends.retain(|(known, ..)| *known != id.0);
                ends.push((id.0, end.teid, address));
            }
        }
    }
    ends
}

/// Whether a message is of this type.
fn is_of(message: &[u8], kind: MessageType) -> bool {
    message.get(1) == Some(&(kind as u8))
}
