//! An S-GW whose P-GW is apart (TOP-5): its sessions are made at another S-GW as when a UE changes its S-GW (TS 23.401 §5.3.3.1,
//! §5.5.1.1.3), never as attaches, which would be second ones at the P-GW.
//!
//! ```text
//!  copied       MME's Create Session Request, without operation indication, with the P-GW's tunnels ─► the clone has tunnels
//!  moved        MME's Modify Bearer Request ─► the clone tells the P-GW, whose downlink goes to the clone from then on
//!  moved back   Modify Bearer Request to the P-GW, in the name of the first S-GW ─► downlink goes there again
//!  ended        MME's Delete Session Request, without operation indication: the P-GW is not told
//! ```
//! The tunnels of the P-GW are in its answers on S11. Those of the first S-GW towards the P-GW are in messages between these two
//! (S5/S8), which must be captured as well: without them there is no way back, so there is no copy.
//!
//! Both are kept among a session's requests: the Create Session Request as it is sent to a clone ([`request`]), and the Modify Bearer
//! Request for the way back ([`way_back`]), which no script sends ([`is_way_back`]).

use std::collections::VecDeque;
use std::net::IpAddr;

use foldhash::HashMap;
use gtpv2c::codec::{Ies, put};
use gtpv2c::message::*;
use gtpv2c::{BearerToBeModified, Ebi, FTeid, Indication, InterfaceType, OffendingIe, ie};

use super::{HEADER, finished, raw, read};
use crate::session::Session;
use crate::template::Misfit;

/// Most ways back whose sessions are not known yet.
const MOST: usize = 65_536;
/// OI, in the first octet of the indications (§8.12).
const OPERATION: u8 = 0x08;

/// The P-GW of a new PDN connection, if it is not the anchor itself.
pub fn gateway(anchor: IpAddr, answer: &CreateSessionResponse) -> Option<FTeid> {
    answer.pgw_f_teid.filter(|end| end.teid != 0 && end.address().is_some_and(|address| address != anchor))
}

/// The Create Session Request by which another S-GW gets what an accepted one has led to.
///
/// # Errors
/// The answer does not say where the P-GW's tunnels end, or the request cannot be read.
pub fn request(asked: &[u8], answer: &CreateSessionResponse) -> Result<Vec<u8>, Misfit> {
    let Some((_, Message::CreateSessionRequest(decoded))) = read(asked) else { return Err(Misfit) };
    let (header, mut ies) = asked.split_at_checked(HEADER).ok_or(Misfit)?;
    ies = ies.get(..Header::decode(asked).map_err(|_| Misfit)?.1.len()).ok_or(Misfit)?;
    let mut out = header.to_vec();
    // The UE is new to the other S-GW.
    out[4..8].fill(0);
    let mut ies = Ies::new(ies);
    while let Some((kind, value)) = ies.next_ie().map_err(|_| Misfit)? {
        match (kind.ie_type, kind.instance) {
            // Written below, or not of a relocation: the UE has asked for nothing.
            (ie::F_TEID, 1)
            | (ie::PAA | ie::EBI | ie::PCO | ie::APCO | ie::EPCO, 0)
            | (ie::BEARER_CONTEXT, 1) => {}
            (ie::INDICATION, 0) => {
                let first = value.first().map(|first| first & !OPERATION);
                raw(&mut out, kind, &[first.as_slice(), value.get(1..).unwrap_or_default()].concat())?;
            }
            (ie::BEARER_CONTEXT, 0) => raw(&mut out, kind, &bearer(value, answer)?)?,
            _ => raw(&mut out, kind, value)?,
        }
    }
    put(&mut out, OffendingIe::new(ie::F_TEID, 1), &answer.pgw_f_teid.ok_or(Misfit)?);
    if let Some(paa) = answer.paa.or(decoded.paa) {
        put(&mut out, OffendingIe::new(ie::PAA, 0), &paa);
    }
    let default =
        decoded.linked_ebi.or_else(|| decoded.bearers_to_be_created.first().map(|bearer| bearer.ebi));
    put(&mut out, OffendingIe::new(ie::EBI, 0), &default.ok_or(Misfit)?);
    finished(out)
}

/// A bearer context with the P-GW's tunnel.
fn bearer(value: &[u8], answer: &CreateSessionResponse) -> Result<Vec<u8>, Misfit> {
    let mut out = Vec::with_capacity(value.len() + 16);
    let (mut ies, mut ebi) = (Ies::new(value), None);
    while let Some((kind, value)) = ies.next_ie().map_err(|_| Misfit)? {
        match (kind.ie_type, kind.instance) {
            (ie::F_TEID, 3) => continue,
            (ie::EBI, 0) => ebi = value.first().map(|ebi| ebi & 0xf),
            _ => {}
        }
        raw(&mut out, kind, value)?;
    }
    let created = answer.bearers_created.iter().find(|created| Some(created.ebi.0) == ebi);
    let end = created.and_then(|created| created.s5s8u_pgw_f_teid).ok_or(Misfit)?;
    put(&mut out, OffendingIe::new(ie::F_TEID, 3), &end);
    Ok(out)
}

/// The P-GW's end in a request that makes a session at another S-GW than `original`; `None`: it is an attach.
pub fn gateway_of(request: &[u8], original: IpAddr) -> Option<FTeid> {
    if request.get(1) != Some(&(MessageType::CreateSessionRequest as u8)) {
        return None;
    }
    let Some((_, Message::CreateSessionRequest(request))) = read(request) else { return None };
    request.pgw_f_teid.filter(|end| end.teid != 0 && end.address() != Some(original))
}

/// The Modify Bearer Request by which a P-GW learns again of an S-GW: from what that one has told it, and the P-GW's TEID.
fn way_back(sgw: FTeid, bearers: impl Iterator<Item = (Ebi, Option<FTeid>)>, pgw: u32) -> Option<Vec<u8>> {
    let contexts: Option<Vec<_>> = bearers
        .map(|(ebi, end)| {
            Some(BearerToBeModified { ebi, s5s8u_sgw_f_teid: Some(end?), ..Default::default() })
        })
        .collect();
    let request = ModifyBearerRequest {
        sender_f_teid: Some(sgw),
        bearers_to_be_modified: contexts?,
        ..Default::default()
    };
    let mut octets = Vec::new();
    Message::from(request).encode(pgw, 0, &mut octets).ok()?;
    Some(octets)
}

/// Whether a kept request is a way back, and no request of the MME.
pub fn is_way_back(request: &[u8]) -> bool {
    request.get(1) == Some(&(MessageType::ModifyBearerRequest as u8))
        && matches!(read(request), Some((_, Message::ModifyBearerRequest(request)))
            if request.sender_f_teid.is_some_and(|end| end.interface == InterfaceType::S5S8_SGW_GTPC))
}

/// The TEID to which a message goes.
fn receiver(octets: &[u8]) -> Option<u32> {
    Header::decode(octets).ok()?.0.teid
}

/// Whether a session has PDN connections whose P-GWs are apart.
pub fn is_apart(session: &Session, anchor: IpAddr) -> bool {
    session.requests.iter().any(|request| gateway_of(request, anchor).is_some())
}

/// P-GWs, and what each is told.
pub type Told = Vec<(IpAddr, Vec<u8>)>;

/// How the P-GWs of a session learn again of its first S-GW: the address of each, and what it is told. `None`: not all that is needed was
/// captured.
pub fn ways_back(session: &Session, anchor: IpAddr) -> Option<Told> {
    let (mut all, mut ids) = (Vec::new(), Vec::new());
    for end in session.requests.iter().filter_map(|request| gateway_of(request, anchor)) {
        let is_its = |request: &&Vec<u8>| is_way_back(request) && receiver(request) == Some(end.teid);
        let back = session.requests.iter().find(is_its)?;
        let Some((_, Message::ModifyBearerRequest(request))) = read(back) else { return None };
        ids.extend(request.bearers_to_be_modified.iter().map(|bearer| bearer.ebi.0));
        all.push((end.address()?, back.clone()));
    }
    // A P-GW takes bearers away that it is not told of.
    session.bearers.iter().all(|bearer| ids.contains(&bearer.id)).then_some(all)
}

/// Ways back by the P-GW's address and TEID, until the sessions are known that they are of.
#[derive(Debug, Default)]
pub struct WaysBack {
    all: HashMap<(IpAddr, u32), Vec<u8>>,
    order: VecDeque<(IpAddr, u32)>,
}

impl WaysBack {
    /// A P-GW has accepted what an S-GW has told it.
    pub fn note(&mut self, pgw: IpAddr, asked: &[u8], request: &Message, answer: &Message) {
        let (teid, back) = match (request, answer) {
            (Message::CreateSessionRequest(request), Message::CreateSessionResponse(answer)) => {
                let Some(end) = answer.pgw_f_teid.filter(|end| end.teid != 0) else { return };
                let bearers = request.bearers_to_be_created.iter();
                let bearers = bearers.map(|bearer| (bearer.ebi, bearer.s5s8u_sgw_f_teid));
                (end.teid, way_back(request.sender_f_teid, bearers, end.teid))
            }
            (Message::ModifyBearerRequest(request), Message::ModifyBearerResponse(_)) => {
                let (Some(sgw), Some(teid)) = (request.sender_f_teid, receiver(asked)) else { return };
                let bearers = request.bearers_to_be_modified.iter();
                (teid, way_back(sgw, bearers.map(|bearer| (bearer.ebi, bearer.s5s8u_sgw_f_teid)), teid))
            }
            _ => return,
        };
        let Some(back) = back else { return };
        if self.all.insert((pgw, teid), back).is_none() {
            self.order.push_back((pgw, teid));
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }

    /// Puts ways back into a session, whose P-GWs they lead to.
    pub fn enter(&mut self, session: &mut Session, anchor: IpAddr) {
        if self.all.is_empty() {
            return;
        }
        let ends: Vec<FTeid> =
            session.requests.iter().filter_map(|request| gateway_of(request, anchor)).collect();
        for end in ends {
            let Some(address) = end.address() else { continue };
            if let Some(back) = self.all.remove(&(address, end.teid)) {
                self.order.retain(|known| *known != (address, end.teid));
                session.requests.retain(|of| !(is_way_back(of) && receiver(of) == Some(end.teid)));
                session.requests.push(back);
            }
        }
    }
}

/// The indications of the request that ends a session at one S-GW only, with all its PDN connections (§7.2.9.1).
pub const AT_SGW_ONLY: Indication = Indication::SI;
