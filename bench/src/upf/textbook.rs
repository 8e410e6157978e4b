//! A textbook user plane as contender: the host baseline of the paper, made as fast as that design can be.
//!
//! A hash map from TEID or UE address to the session, whose PDRs are a linked list in order of precedence and
//! refer to rules by identifier. Packets are processed one by one, with a system call for each where there are
//! sockets.

use std::cell::Cell;
use std::net::SocketAddr;

use classifier::session::HashList;
use classifier::{Key, Rule, Verdict};
use packet::flow::Flow;
use packet::gtpu::{self, PduSession};
use pktio::FrameMut;

use super::subscriber::{QFI, Subscriber};

/// Nanoseconds of burst that a meter allows.
const BURST_NS: u64 = 50_000_000;
/// Cost of an octet at the session's rate, in 2⁻¹⁶ ns: 400 Gbit/s.
const OCTET_COST: u64 = 1311;

/// Sessions, found by hash.
pub(super) struct Textbook {
    uplink: HashList,
    downlink: HashList,
    sessions: Vec<Session>,
}

/// The rules to which a session's PDRs refer.
struct Session {
    gnb: SocketAddr,
    gnb_teid: u32,
    ue: u32,
    meters: [Cell<u64>; 2],
    packets: [Cell<u64>; 2],
    bytes: [Cell<u64>; 2],
}

/// The PDRs of a direction, with the session's number in their values.
fn rules(subscriber: Subscriber, number: u32, up: bool) -> [Rule; 2] {
    subscriber.rules(up).map(|rule| Rule { value: number << 1 | rule.value, ..rule })
}

impl Textbook {
    /// Sessions of one subscriber per TEID, starting at `first`. Downlink packets go to `access`, or by default
    /// to the subscribers' gNBs.
    ///
    /// # Errors
    /// A rule set that the list refuses.
    pub(super) fn new(teids: &[u32], first: u32, access: Option<SocketAddr>) -> anyhow::Result<Textbook> {
        let mut all = Textbook {
            uplink: HashList::new(),
            downlink: HashList::new(),
            sessions: Vec::with_capacity(teids.len()),
        };
        for (number, teid) in teids.iter().enumerate() {
            let number = number as u32;
            let subscriber = Subscriber(first + number);
            all.uplink.set(*teid, &rules(subscriber, number, true))?;
            all.downlink.set(subscriber.ue().to_bits(), &rules(subscriber, number, false))?;
            all.sessions.push(Session {
                gnb: access.unwrap_or_else(|| subscriber.gnb()),
                gnb_teid: subscriber.gnb_teid(),
                ue: subscriber.ue().to_bits(),
                meters: [const { Cell::new(0) }; 2],
                packets: [const { Cell::new(0) }; 2],
                bytes: [const { Cell::new(0) }; 2],
            });
        }
        Ok(all)
    }

    /// Processes a packet from N3; `false` when it is dropped.
    #[inline]
    pub(super) fn uplink(&self, frame: &mut FrameMut<'_>, now_ns: u64) -> bool {
        let Ok(outer) = gtpu::Packet::new(frame.packet()) else { return false };
        if outer.message_type() != gtpu::message_type::G_PDU {
            return false;
        }
        let (teid, total, header) = (outer.teid(), outer.bytes().len(), outer.header_len());
        frame.truncate(total);
        frame.trim_front(header);
        let Ok(flow) = Flow::parse(frame.packet()) else { return false };
        let Some(session) = self.passes(&self.uplink, teid, &flow, now_ns, 0) else { return false };
        flow.source == std::net::Ipv4Addr::from_bits(session.ue)
    }

    /// Processes a packet from N6 and puts it into its tunnel; `false` when it is dropped.
    #[inline]
    pub(super) fn downlink(&self, frame: &mut FrameMut<'_>, now_ns: u64) -> bool {
        let Ok(flow) = Flow::parse(frame.packet()) else { return false };
        let std::net::IpAddr::V4(ue) = flow.destination else { return false };
        let Some(session) = self.passes(&self.downlink, ue.to_bits(), &flow, now_ns, 1) else { return false };
        let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
        let length = frame.len();
        let Some(taken) = gtpu::encapsulate(frame.headroom(), session.gnb_teid, length, container) else {
            return false;
        };
        *frame.peer = session.gnb;
        frame.grow_front(taken)
    }

    /// Applies PDR, meter and counter; `false` when the packet is dropped.
    #[inline]
    fn passes(
        &self,
        list: &HashList,
        id: u32,
        flow: &Flow,
        now_ns: u64,
        direction: usize,
    ) -> Option<&Session> {
        let mut key = Key::new(flow.source, flow.destination, flow.protocol).with_tos(flow.tos);
        if let Some((source, destination)) = flow.ports {
            key = key.with_ports(source, destination);
        }
        let mut verdict: [Verdict; 1] = [None];
        list.classify(&[id], &[key], &mut verdict);
        let session = self.sessions.get((verdict[0]? >> 1) as usize)?;
        let start = session.meters[direction].get().max(now_ns);
        if start - now_ns > BURST_NS {
            return None;
        }
        session.meters[direction].set(start + ((flow.length as u64 * OCTET_COST) >> 16));
        session.packets[direction].set(session.packets[direction].get() + 1);
        session.bytes[direction].set(session.bytes[direction].get() + flow.length as u64);
        Some(session)
    }

    /// Number of packets counted, uplink and downlink.
    pub(super) fn counted(&self) -> [u64; 2] {
        [0, 1].map(|direction| self.sessions.iter().map(|session| session.packets[direction].get()).sum())
    }
}
