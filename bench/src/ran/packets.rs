//! The users' packets: the same as in `upf`, with a time stamp, at every place between UE and data network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use l2::pdcp::{self, Security, SnLength, Tx};
use l2::sdap::DrbId;
use l2::security::Direction;
use l2::uu;
use net::time;
use packet::gtpu::{self, PduSession};

use super::nodes::{CELL, LCID, UES};
use crate::upf::subscriber::{QFI, Subscriber};
use crate::upf::traffic::Template;

/// Where the time stamp is in a user's packet, and its length: behind the number that packets of `upf` have.
pub(crate) const STAMP_AT: usize = 32;
pub(crate) const STAMP: usize = 8;
/// Headers of `uu`, RLC, PDCP and SDAP in front of a user's packet at the UE.
pub(crate) const UE_HEADERS: usize = uu::HEADER_LEN + RLC + PDCP + SDAP;
const RLC: usize = 1;
const PDCP: usize = 3;
const SDAP: usize = 1;

/// A packet, where it comes from, and what changes from one to the next.
pub(crate) struct Message {
    pub(crate) octets: Vec<u8>,
    pub(crate) from: SocketAddr,
    /// Where its time stamp is.
    pub(crate) stamp: usize,
    /// Where PDCP's header is, for a message with one that counts.
    pub(crate) pdcp: Option<usize>,
}

/// Makes the packets of all UEs for a size of users' packets.
pub(crate) type Make = Box<dyn Fn(usize) -> anyhow::Result<Vec<Message>> + Send>;

/// A user's packet to its service in the data network, or from there.
pub(crate) fn user(up: bool, ue: usize, size: usize) -> anyhow::Result<Vec<u8>> {
    Ok(Template::user(up, size)?.fill(Subscriber(ue as u32), 0, true).to_vec())
}

fn unspecified(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), port)
}

/// The UPF, where it is an end in memory.
pub(crate) fn upf() -> SocketAddr {
    unspecified(gtpu::PORT)
}

/// Where a UE is on `uu`.
pub(crate) fn ue_address(ue: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40_000 + (ue % UES) as u16)
}

/// The container of the UPF's packets. That of the CU's is as long.
pub(crate) const FROM_UPF: PduSession = PduSession::Downlink { qfi: QFI, rqi: false, ppi: None };

/// A packet of the UPF in the tunnel `teid`.
pub(crate) fn from_upf(teid: u32, user: &[u8]) -> Vec<u8> {
    let container = Some(FROM_UPF);
    let mut message = vec![0; gtpu::encapsulation_len(container)];
    gtpu::encapsulate(&mut message, teid, user.len(), container);
    message.extend(user);
    message
}

/// Downlink packets on N3, to the CU's tunnels.
pub(crate) fn on_n3(teids: &[u32]) -> Make {
    let teids = teids.to_vec();
    Box::new(move |size| {
        let message = |(ue, teid): (usize, &u32)| {
            let octets = from_upf(*teid, &user(false, ue, size)?);
            Ok(Message { stamp: octets.len() - size + STAMP_AT, octets, from: upf(), pdcp: None })
        };
        teids.iter().enumerate().map(message).collect()
    })
}

/// Downlink packets on N6, for so many UEs.
pub(crate) fn on_n6(ues: usize) -> Make {
    Box::new(move |size| {
        let message = |ue| {
            let octets = user(false, ue, size)?;
            Ok(Message { octets, from: unspecified(0), stamp: STAMP_AT, pdcp: None })
        };
        (0..ues).map(message).collect()
    })
}

/// Uplink PDUs on `uu` of the UEs of the DU with this number.
pub(crate) fn on_uu(du: usize) -> Make {
    Box::new(move |size| {
        let message = |at: usize| {
            let ue = du * UES + at;
            let mut octets = Vec::new();
            let mut sender = Ue::new(ue, size)?;
            sender.next(&mut octets)?;
            Ok(Message {
                octets,
                from: ue_address(ue),
                stamp: UE_HEADERS + STAMP_AT,
                pdcp: Some(uu::HEADER_LEN + RLC),
            })
        };
        (0..UES).map(message).collect()
    })
}

/// A user's packet within a PDU on `uu`.
pub(crate) fn user_on_uu(message: &[u8]) -> Option<&[u8]> {
    message.get(UE_HEADERS..)
}

/// A user's packet within a packet on F1-U, to the DU. `None` for other messages.
pub(crate) fn user_on_f1u(message: &[u8]) -> Option<&[u8]> {
    gtpu::Packet::new(message).ok()?.payload().get(PDCP + SDAP..)
}

/// A user's packet on N6.
pub(crate) fn user_on_n6(message: &[u8]) -> Option<&[u8]> {
    Some(message)
}

/// PDCP of a broadband bearer.
pub(crate) fn pdcp(direction: Direction) -> anyhow::Result<pdcp::Config> {
    Ok(pdcp::Config::drb(DrbId::new(1).context("DRB")?, direction, SnLength::Eighteen, true))
}

/// Uplink PDUs of a UE, one after the other.
pub(crate) struct Ue {
    number: usize,
    tx: Tx,
    user: Vec<u8>,
}

impl Ue {
    /// The UE with this number, with packets of `size` octets.
    pub(crate) fn new(number: usize, size: usize) -> anyhow::Result<Ue> {
        let tx = Tx::new(pdcp(Direction::Uplink)?, Security::none());
        Ok(Ue { number, tx, user: user(true, number, size)? })
    }

    /// Packets have so many octets from now on.
    pub(crate) fn resize(&mut self, size: usize) -> anyhow::Result<()> {
        self.user = user(true, self.number, size)?;
        Ok(())
    }

    /// The next PDU, on `uu`.
    pub(crate) fn next(&mut self, message: &mut Vec<u8>) -> anyhow::Result<()> {
        message.clear();
        let (du, at) = (self.number / UES, self.number % UES);
        message.extend(uu::Header::uplink(CELL + du as u64, 1 + at as u16, LCID).octets());
        // RLC: a whole SDU.
        message.push(0);
        self.append(message)
    }

    /// The next PDU, as the DU sends it to the CU's tunnel.
    pub(crate) fn next_on_f1u(&mut self, teid: u32, message: &mut Vec<u8>) -> anyhow::Result<()> {
        message.clear();
        message.extend([0; gtpu::HEADER_LEN]);
        self.append(message)?;
        let length = message.len() - gtpu::HEADER_LEN;
        gtpu::encapsulate(&mut message[..gtpu::HEADER_LEN], teid, length, None).context("it fits")?;
        Ok(())
    }

    fn append(&mut self, message: &mut Vec<u8>) -> anyhow::Result<()> {
        let pdu = message.len();
        message.extend(vec![0; self.tx.header_len()]);
        message.push(0x80 | QFI);
        self.user[STAMP_AT..STAMP_AT + STAMP].copy_from_slice(&time::now_ns().to_be_bytes());
        message.extend(&self.user);
        self.tx.seal(&mut message[pdu..])?;
        Ok(())
    }
}
