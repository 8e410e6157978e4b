//! The rules and packets of a move in order: what waits, and the tokens that end the waiting
//! (docs/adr/0033-packets-wait-for-a-token.md).
//!
//! ```text
//!               access switch                                  switch on SGi or N6
//! uplink    token ──► old anchor ─────────────────────► token: opens the queue
//!                     new anchor ─────────────────────► waits in the user's queue
//! downlink  opens the tunnel's queue ◄────────────────── old anchor ◄── token
//!           waits in the tunnel's queue ◄─────────────── new anchor
//! ```
//! A packet that has waited comes back with its queue as metadata, so rules that hold match metadata 0.

use std::net::IpAddr;

use openflow::{Action, BufferId, Code, Instructions, MacAddr, Match, Oxm, PacketOut, PortNo};
use packet::gtpu::{self, PduSession};
use packet::{ethernet, ipv4, ipv6, protocol, transport};

use super::fields::{ethertype, from_user, ip_dst, ip_src, packet_type, tun_dst, tun_src};
use super::{ENCAPSULATION, G_PDU, GTPU_PORT, UDP, classify, steer};
use crate::config::Access;
use crate::rule::{Kind, Rule};
use crate::switch::{Dialect, SwitchView};

/// Seconds after which a switch forgets the rules of a move, if the controller does not come back: longer than any token is waited for.
const FORGOTTEN_S: u16 = 15;
/// The first dynamic port.
const DYNAMIC: u16 = 49_152;
/// What a token says, for people who see it in a capture.
const TEXT: &[u8] = b"godwit: last packet of the old path";

/// The ports of a switch that can hold packets.
#[derive(Debug, Clone, Copy)]
pub(in crate::diverting) struct HoldPorts {
    hold: PortNo,
    release: PortNo,
}

impl HoldPorts {
    /// Those of a connected switch, if it has them.
    pub(in crate::diverting) fn of(view: &SwitchView) -> Option<HoldPorts> {
        let number = |name| Some(view.port(name)?.port_no);
        let is_able = view.connected && view.dialect == Dialect::Native;
        let [hold, release] = SwitchView::HOLD;
        let ports = HoldPorts { hold: number(hold)?, release: number(release)? };
        is_able.then_some(ports)
    }

    fn waits(self, queue: u32) -> Instructions {
        Instructions::apply([Action::SetQueue(queue), Action::output(self.hold)])
    }

    fn opens(self, queue: u32) -> Vec<Action> {
        vec![Action::SetQueue(queue), Action::output(self.release)]
    }

    /// A packet-out that opens a queue.
    pub(in crate::diverting) fn open(self, queue: u32) -> PacketOut {
        // What the packet is makes no difference.
        out(PortNo::CONTROLLER, self.opens(queue), vec![0; 64])
    }
}

fn out(in_port: PortNo, actions: Vec<Action>, data: Vec<u8>) -> PacketOut {
    PacketOut { buffer_id: BufferId::NO_BUFFER, in_port, actions, data }
}

/// A datagram that only this controller knows: an end and a port on each side, of which the free ones are random.
#[derive(Debug, Clone, Copy)]
pub(in crate::diverting) struct Token {
    from: (IpAddr, u16),
    to: (IpAddr, u16),
}

impl Token {
    /// From `from` to `to`; a port is random unless it is given.
    pub(in crate::diverting) fn new(from: (IpAddr, Option<u16>), to: (IpAddr, Option<u16>)) -> Token {
        // Of the dynamic ones (RFC 6335 §6): no firewall, and nobody who looks for GTP-U, knows them as something else.
        let random = || DYNAMIC + (nf::random::u32() % (65_536 - u32::from(DYNAMIC))) as u16;
        Token { from: (from.0, from.1.unwrap_or_else(random)), to: (to.0, to.1.unwrap_or_else(random)) }
    }

    fn fields(&self) -> Vec<Oxm> {
        let ports = [Oxm::ip_proto(UDP), Oxm::udp_src(self.from.1), Oxm::udp_dst(self.to.1)];
        [vec![ip_src(self.from.0), ip_dst(self.to.0)], ports.to_vec()].concat()
    }

    fn packet(&self) -> Option<Vec<u8>> {
        datagram(self.from, self.to, TEXT)
    }

    /// The token in a tunnel towards an anchor, sent as the base station sends.
    pub(in crate::diverting) fn in_tunnel(
        &self,
        (station, station_mac): (IpAddr, MacAddr),
        (anchor, anchor_mac): (IpAddr, MacAddr),
        teid: u32,
        qfi: Option<u8>,
    ) -> Option<PacketOut> {
        let session = qfi.map(|qfi| PduSession::Uplink { qfi });
        let message = gtpu::build_gpdu(teid, session, &self.packet()?).ok()?;
        let packet = datagram((station, GTPU_PORT), (anchor, GTPU_PORT), &message)?;
        let frame = ethernet::build(anchor_mac.0, station_mac.0, None, kind(station), &packet);
        // As what the GTP port encapsulates, so that it takes the rest of the old packets' way.
        Some(out(PortNo::LOCAL, vec![Action::output(PortNo::TABLE)], frame))
    }

    /// The token towards an anchor's side of SGi or N6. All ports get it, as the controller does not know which one leads there; others
    /// than the anchor drop a frame that is not for them.
    pub(in crate::diverting) fn on_sgi(&self, from: MacAddr, anchor: MacAddr) -> Option<PacketOut> {
        let frame = ethernet::build(anchor.0, from.0, None, kind(self.to.0), &self.packet()?);
        Some(out(PortNo::CONTROLLER, vec![Action::output(PortNo::FLOOD)], frame))
    }
}

fn kind(address: IpAddr) -> u16 {
    if address.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 }
}

fn datagram(from: (IpAddr, u16), to: (IpAddr, u16), content: &[u8]) -> Option<Vec<u8>> {
    let datagram = transport::build_udp(from, to, content).ok()?;
    match (from.0, to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ipv4::Header::new(from, to, protocol::UDP).build(&datagram).ok()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            ipv6::Header::new(from, to, protocol::UDP).build(&datagram).ok()
        }
        _ => None,
    }
}

fn rule(
    kind: Kind,
    table: u8,
    priority: u16,
    fields: Vec<Oxm>,
    instructions: Instructions,
) -> Result<Rule, Code> {
    let rule = Rule::new(kind, table, priority, Match::new(fields)?, instructions);
    Ok(Rule { hard_timeout_s: FORGOTTEN_S, ..rule })
}

/// Uplink: what a user sends by the new anchor waits on SGi or N6. `is_prefix`: all addresses of an IPv6 user's prefix.
pub(in crate::diverting) fn hold_uplink(
    ports: HoldPorts,
    queue: u32,
    anchor: MacAddr,
    user: IpAddr,
    is_prefix: bool,
) -> Result<Rule, Code> {
    let of_user = if is_prefix { from_user(user) } else { ip_src(user) };
    let fields = vec![Oxm::metadata(0), ethertype(user), of_user, Oxm::eth_src(anchor)];
    rule(Kind::Hold, 0, classify::HOLD, fields, ports.waits(queue))
}

/// Uplink: a token ends that, if it is the only one; otherwise the controller counts those that have come.
pub(in crate::diverting) fn token_uplink(
    ports: HoldPorts,
    token: &Token,
    queue: Option<u32>,
) -> Result<Rule, Code> {
    let fields = [vec![ethertype(token.from.0)], token.fields()].concat();
    let actions = queue.map(|queue| ports.opens(queue)).unwrap_or_default();
    rule(Kind::Token, 0, classify::TOKEN, fields, Instructions::apply(actions))
}

/// A tunnel from an anchor to a base station.
#[derive(Debug, Clone, Copy)]
pub(in crate::diverting) struct Downlink {
    pub(in crate::diverting) anchor: IpAddr,
    pub(in crate::diverting) station: IpAddr,
    pub(in crate::diverting) teid: u32,
}

impl Downlink {
    fn fields(&self) -> Vec<Oxm> {
        vec![tun_src(self.anchor), tun_dst(self.station), Oxm::tunnel_id(self.teid.into())]
    }
}

/// Downlink: what the new anchor sends in a tunnel waits at the access switch. `only_of`: packets of this address's IP version, where the
/// user has both.
pub(in crate::diverting) fn hold_downlink(
    ports: HoldPorts,
    queue: u32,
    tunnel: Downlink,
    only_of: Option<IpAddr>,
) -> Result<Rule, Code> {
    let mut fields = tunnel.fields();
    fields.extend([Oxm::metadata(0), Oxm::tun_gtpu_msgtype(G_PDU)]);
    fields.extend(only_of.map(packet_type));
    rule(Kind::Hold, ENCAPSULATION.0, steer::HOLD, fields, ports.waits(queue))
}

/// Downlink: the token in the old anchor's tunnel ends that.
pub(in crate::diverting) fn token_downlink(
    ports: HoldPorts,
    queue: u32,
    tunnel: Downlink,
    token: &Token,
) -> Result<Rule, Code> {
    let fields = [tunnel.fields(), vec![packet_type(token.to.0)], token.fields()].concat();
    rule(Kind::Token, ENCAPSULATION.0, steer::TOKEN, fields, Instructions::apply(ports.opens(queue)))
}

/// The QoS flow of a token in a base station's tunnel.
pub(in crate::diverting) fn qfi(access: Access, given: Option<u8>) -> Option<u8> {
    match access {
        Access::FourG => None,
        Access::FiveG => Some(given.unwrap_or(1)),
    }
}
