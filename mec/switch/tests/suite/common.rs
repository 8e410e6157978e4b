//! A network around the switch: a base station, two anchors, the rules of the paper's Table I, and real frames.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "not every test needs all of it")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use openflow::*;
use packet::gtpu::PduSession;
use packet::{ethernet, gtpu, ipv4, ipv6, protocol, transport};
use switch::pipeline::rewrite::{Exit, Sink};
use switch::pipeline::trace::Trace;
use switch::pipeline::{Limits, Pipeline, Ports};

pub const ENB: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const GW1: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);
pub const GW2: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 12);
pub const UE1: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 2);
pub const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
pub const ENB_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const GW1_MAC: [u8; 6] = [2, 0, 0, 0, 0, 11];
pub const GW2_MAC: [u8; 6] = [2, 0, 0, 0, 0, 12];
pub const GTP: u32 = 100;
/// Ports of base station, first and second anchor.
pub const PORTS: [u32; 3] = [1, 2, 3];

/// An IPv6 address of this documentation prefix.
pub fn v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)
}

pub fn pipeline() -> Pipeline {
    let live = PORTS.iter().map(|port| (*port, true)).chain([(PortNo::LOCAL.0, true)]).collect();
    Pipeline::new(Limits::default(), Ports { live, gtp: Some(GTP), hold: None })
}

pub fn matching(fields: impl IntoIterator<Item = Oxm>) -> Match {
    Match::new(fields).unwrap()
}

pub fn add(
    table: u8,
    priority: u16,
    fields: impl IntoIterator<Item = Oxm>,
    instructions: Instructions,
) -> FlowMod {
    FlowMod::add(TableId(table), priority, matching(fields), instructions)
}

pub fn output(port: u32) -> Action {
    Action::output(PortNo(port))
}

pub fn set(oxm: Oxm) -> Action {
    Action::set(oxm).unwrap()
}

/// Actions, then another table.
pub fn then(actions: impl Into<Actions>, table: u8) -> Instructions {
    Instructions { goto_table: Some(TableId(table)), ..Instructions::apply(actions) }
}

/// A match of GTP-U packets between two addresses.
pub fn tunnel(from: Ipv4Addr, to: Ipv4Addr) -> Vec<Oxm> {
    vec![Oxm::eth_type(0x0800), Oxm::ip_proto(17), Oxm::udp_dst(2152), Oxm::ipv4_src(from), Oxm::ipv4_dst(to)]
}

/// What table 2 needs: the paper's learning, done.
pub fn forwarding() -> Vec<FlowMod> {
    let to =
        |mac: [u8; 6], port| add(2, 100, [Oxm::eth_dst(MacAddr(mac))], Instructions::apply([output(port)]));
    vec![
        to(ENB_MAC, 1),
        to(GW1_MAC, 2),
        to(GW2_MAC, 3),
        add(2, 0, [], Instructions::apply([Action::output(PortNo::CONTROLLER)])),
    ]
}

/// Table I as the native switch has it. The order is SW-T0-H, M1, M2 and M2 of the second anchor, L, SW-T1-L, then table 2.
pub fn table_one() -> Vec<FlowMod> {
    let mut to_gw2 = vec![Oxm::in_port(PortNo::LOCAL)];
    to_gw2.extend([Oxm::eth_type(0x0800), Oxm::ip_proto(17), Oxm::udp_dst(2152), Oxm::ipv4_dst(GW2)]);
    let mut rules = vec![
        add(0, 300, [Oxm::in_port(PortNo(GTP))], Instructions::goto(TableId(1))),
        add(0, 200, tunnel(ENB, GW1), Instructions::apply([Action::output(PortNo::LOCAL)])),
        add(0, 250, [Oxm::in_port(PortNo::LOCAL)], Instructions::goto(TableId(2))),
        add(0, 260, to_gw2, then([set(Oxm::eth_dst(MacAddr(GW2_MAC)))], 2)),
        add(0, 0, [], Instructions::goto(TableId(2))),
        add(1, 0, [], Instructions::apply([Action::output(PortNo::IN_PORT)])),
    ];
    rules.extend(forwarding());
    rules
}

/// SW-T1-H: a user of the first anchor goes to the second one.
pub fn divert(teid: u32) -> FlowMod {
    let user = [Oxm::tun_ipv4_dst(GW1), Oxm::tunnel_id(teid.into())];
    add(1, 100, user, Instructions::apply([set(Oxm::tun_ipv4_dst(GW2)), Action::output(PortNo::IN_PORT)]))
}

pub fn install(pipeline: &mut Pipeline, rules: impl IntoIterator<Item = FlowMod>) {
    for rule in rules {
        pipeline.commit(&[Change::FlowMod(rule)], 0).unwrap();
    }
}

/// What left the switch: port, or `None` for the controllers, and the frame.
#[derive(Default)]
pub struct Left(pub Frames);

impl Sink for Left {
    fn send(&mut self, exit: Exit<'_>, frame: &mut [u8], _: bool) {
        let port = match exit {
            Exit::Port(port) => Some(port),
            Exit::Controller(_) | Exit::Hold(_) | Exit::Release(_) => None,
        };
        self.0.push((port, frame.to_vec()));
    }
}

/// Frames with the ports by which they left; without one they went to the controllers.
pub type Frames = Vec<(Option<u32>, Vec<u8>)>;

/// Sends a frame through the switch.
pub fn send(pipeline: &Pipeline, in_port: u32, frame: &[u8]) -> (Frames, Trace) {
    let (mut octets, mut left) = (frame.to_vec(), Left::default());
    let trace = pipeline.process(&mut octets, in_port, 1, &mut left);
    (left.0, trace)
}

/// Sends a frame of which one copy must leave by a port; that copy.
pub fn pass(pipeline: &Pipeline, in_port: u32, frame: &[u8]) -> (u32, Vec<u8>) {
    let (mut left, trace) = send(pipeline, in_port, frame);
    assert_eq!(left.len(), 1, "{trace:?}");
    let (port, frame) = left.remove(0);
    (port.expect("not to the controllers"), frame)
}

/// UDP with checksum over IP of either version.
pub fn udp(from: (IpAddr, u16), to: (IpAddr, u16), payload: &[u8]) -> Vec<u8> {
    let datagram = transport::build_udp(from, to, payload).unwrap();
    match (from.0, to.0) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            // DSCP EF and ECT(0), which must stay.
            let header =
                ipv4::Header { tos: 0xba, ttl: 61, ..ipv4::Header::new(source, destination, protocol::UDP) };
            header.build(&datagram).unwrap()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = ipv6::Header {
                traffic_class: 0xba,
                hop_limit: 61,
                flow_label: 0x12345,
                ..ipv6::Header::new(source, destination, protocol::UDP)
            };
            header.build(&datagram).unwrap()
        }
        _ => panic!("mixed versions"),
    }
}

/// A UE's packet to the server.
pub fn user_packet() -> Vec<u8> {
    udp((UE1.into(), 40_000), (SERVER.into(), 53), b"what is the time")
}

/// A frame from the base station to an anchor with this GTP-U message.
pub fn uplink(to: Ipv4Addr, message: &[u8]) -> Vec<u8> {
    let packet = udp((ENB.into(), 2152), (to.into(), 2152), message);
    ethernet::build(GW1_MAC, ENB_MAC, None, ethernet::IPV4, &packet)
}

/// G-PDU of a user, as 4G has it.
pub fn gpdu(teid: u32, packet: &[u8]) -> Vec<u8> {
    gtpu::build_gpdu(teid, None, packet).unwrap()
}

/// G-PDU with PDU Session Container, as 5G has it.
pub fn gpdu_5g(teid: u32, packet: &[u8]) -> Vec<u8> {
    gtpu::build_gpdu(teid, Some(PduSession::Uplink { qfi: 9 }), packet).unwrap()
}

/// G-PDU with sequence number, N-PDU number and an extension header of another kind in front of the container.
pub fn gpdu_full(teid: u32, packet: &[u8]) -> Vec<u8> {
    let extensions = [0x12, 0x34, 0x77, 0x82, 1, 0xaa, 0xbb, 0x85, 1, 0x10, 5, 0];
    let mut out = vec![0x37, 255];
    out.extend(((extensions.len() + packet.len()) as u16).to_be_bytes());
    out.extend(teid.to_be_bytes());
    out.extend(extensions);
    out.extend(packet);
    out
}

/// Whether all checksums of a frame are right: IPv4 headers, UDP and TCP outside and inside a tunnel.
pub fn check(frame: &[u8]) {
    let frame = ethernet::Frame::new(frame).unwrap();
    check_ip(frame.payload());
}

pub fn check_ip(bytes: &[u8]) {
    let (source, destination, proto, payload): (IpAddr, IpAddr, u8, &[u8]) = match bytes[0] >> 4 {
        4 => {
            let packet = ipv4::Packet::new(bytes).unwrap();
            assert!(packet.checksum_ok(), "IPv4 header checksum");
            if packet.fragment_offset() != 0 || packet.more_fragments() {
                return;
            }
            (packet.source().into(), packet.destination().into(), packet.protocol(), packet.payload())
        }
        _ => {
            let packet = ipv6::Packet::new(bytes).unwrap();
            let upper = packet.upper().unwrap();
            if upper.fragment.is_some() {
                return;
            }
            let payload = &packet.bytes()[upper.offset..];
            (packet.source().into(), packet.destination().into(), upper.protocol, payload)
        }
    };
    match proto {
        protocol::UDP => {
            let datagram = transport::Udp::new(payload).unwrap();
            assert!(datagram.checksum_ok(source, destination), "UDP checksum");
            if datagram.destination_port() == gtpu::PORT {
                let message = gtpu::Packet::new(datagram.payload()).unwrap();
                if message.message_type() == 255 && !message.payload().is_empty() {
                    check_ip(message.payload());
                }
            }
        }
        protocol::TCP => {
            assert!(transport::Tcp::new(payload).unwrap().checksum_ok(source, destination), "TCP checksum");
        }
        protocol::ICMP | protocol::ICMPV6 => {
            assert!(
                packet::icmp::Message::new(payload).unwrap().checksum_ok(source, destination),
                "ICMP checksum"
            );
        }
        _ => {}
    }
}

/// The same frame with the Ethernet destination and outer IPv4 destination of another anchor, and right checksums, made anew.
pub fn readdressed(frame: &[u8], mac: [u8; 6], to: Ipv4Addr) -> Vec<u8> {
    let mut out = frame.to_vec();
    out[..6].copy_from_slice(&mac);
    out[30..34].copy_from_slice(&to.octets());
    out[24..26].fill(0);
    let sum = packet::checksum::checksum(&out[14..34]);
    out[24..26].copy_from_slice(&sum.to_be_bytes());
    if out[40..42] != [0, 0] {
        let ip = ipv4::Packet::new(&frame[14..]).unwrap();
        out[40..42].fill(0);
        let sum = packet::checksum::Sum::default()
            .pseudo_header(ip.source().into(), to.into(), protocol::UDP, ip.payload().len())
            .octets(&out[34..14 + ip.bytes().len()])
            .finish();
        out[40..42].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    }
    out
}
