//! The rules of Open vSwitch.
//!
//! It takes the tunnel off and puts a new one on. Its host must be the destination, so each anchor has a LOCAL address of its own that
//! stands for it, and each base station one that is the source of the new tunnel, which SW-T0-M2 replaces. Further:
//! - every rule of table 1 matches the flags, because the new header copies them from the packet that made the cached flow. Of a value
//!   of `tun_gtpu_flags` it takes only the bits that are set, whatever the mask: so rules with more bits come first, and a rule for all
//!   bits comes before all others, which makes a cached flow depend on each bit. (No packet has all three in practice.)
//! - path messages come back as whole frames (`packet_type=ptap`), and are sent on as they were;
//! - packets without Ethernet header need a match of their type. Of the packet in a G-PDU it takes the ninth octet for the first one: the
//!   time to live of IPv4 (4G), so only with 64 to 79 it is IPv4. With 96 to 111 it is IPv6, and with all others it is a frame with a
//!   header that is not there. So what is steered by tunnel has rules for all three, and none rewrites what is in the tunnel;
//! - rules for frames match the message type: G-PDUs go back into tunnels, path messages come last. So what a user sends is never
//!   forwarded as a frame. Rules for packets come before all of them: a cached flow depends on no rules behind the one that was found,
//!   and one of packets that depends on flags and type both cannot be changed (`put[modify]` finds no such flow).

use openflow::{Action, Field, Instructions, Oxm, PacketType, PortNo};

use super::fields::{ethertype, ip_dst, ip_src, tun_dst, tun_src, tunnelled};
use super::{
    ALL_FLAGS, ENCAPSULATION, End, FORWARDING, G_PDU, Maker, NoRule, Stage, Steered, Then, classify,
    not_known, steer,
};
use crate::config::Access;
use crate::rule::Kind;

/// Version 1, GTP: of other first octets nothing is a path message (TS 29.281 §5.1).
const GTP: u8 = 0x30;
/// What the packet in a G-PDU may be taken for.
const KINDS: [PacketType; 3] = [PacketType::ETHERNET, PacketType::IPV4, PacketType::IPV6];

/// Added to priorities of rules for packets, which come before those for frames.
const PACKETS: u16 = 1000;

/// The match of G-PDUs in which something is taken for this kind, and what is added to priorities.
fn in_g_pdu(kind: PacketType, first_octet: u8) -> (u16, Vec<Oxm>) {
    let (before, kind) = match kind {
        // Without a type a rule is for frames.
        PacketType::ETHERNET => (0, Oxm::tun_gtpu_msgtype(G_PDU)),
        kind => (PACKETS, Oxm::packet_type(kind)),
    };
    (before, vec![kind, Oxm::tun_gtpu_flags(first_octet)])
}

impl Maker<'_> {
    pub(super) fn open_vswitch(&mut self) -> Result<(), NoRule> {
        let (station, from, to, gtp) = (self.station, self.from, self.to, self.gtp);
        for kind in KINDS {
            let mut fields = vec![Oxm::in_port(gtp)];
            fields.extend((kind != PacketType::ETHERNET).then(|| Oxm::packet_type(kind)));
            let then = Then::Goto(ENCAPSULATION);
            self.classify(Stage::Ground, Kind::T0High, classify::HIGH, fields, vec![], then)?;
        }
        self.ovs_way(station, from)?;
        self.ovs_source(station)?;
        for steered in self.uplink() {
            let stage = Stage::User;
            self.ovs_steer(stage, steered, (station, from), (station, to))?;
        }
        let downlink = self.downlink_by_tunnel();
        if downlink.is_empty() {
            return Ok(());
        }
        self.ovs_way(to, station)?;
        self.ovs_source(to)?;
        self.ovs_source(from)?;
        for steered in downlink {
            self.ovs_steer(Stage::Ground, steered, (to, station), (from, station))?;
        }
        Ok(())
    }

    /// Open vSwitch: packets of a tunnel to its host and back, unchanged as far as it can (SW-T0-M1, SW-T1-L, path messages).
    fn ovs_way(&mut self, source: End, destination: End) -> Result<(), NoRule> {
        let m1 = tunnelled(Some(source.ip), Some(destination.ip));
        let set = vec![ip_dst(destination.local), Oxm::eth_dst(self.host)];
        self.classify(
            Stage::Entry,
            Kind::T0Decapsulate,
            classify::MEDIUM,
            m1,
            set,
            Then::Output(PortNo::LOCAL),
        )?;
        let between = [tun_src(source.ip), tun_dst(destination.local)];
        for first_octet in GTP..=ALL_FLAGS {
            for kind in KINDS {
                let (before, mut fields) = in_g_pdu(kind, first_octet);
                fields.extend(between);
                let set = vec![tun_src(source.local), tun_dst(destination.ip)];
                let more_bits_first = steer::LOW + u16::from(first_octet & 7);
                let priority = if first_octet == ALL_FLAGS { steer::ALL_FLAGS } else { more_bits_first };
                self.steer(Stage::Ground, Kind::T1Low, before + priority, fields, set)?;
            }
        }
        let mac = destination.mac.ok_or_else(|| NoRule::Missing(not_known(destination.ip)))?;
        let mut fields = tunnelled(None, None);
        fields.extend([ethertype(destination.ip), Oxm::tun_gtpu_flags(GTP)]);
        fields.extend(between);
        let set = [ip_dst(destination.ip), Oxm::eth_dst(mac)].map(Action::set);
        let actions = set.into_iter().collect::<Result<Vec<_>, _>>()?;
        let instructions = Instructions { goto_table: Some(FORWARDING), ..Instructions::apply(actions) };
        self.put(Stage::Ground, Kind::T1Path, ENCAPSULATION.0, steer::PATH, fields, instructions)
    }

    /// Open vSwitch: what its host has encapsulated gets the source that the address stands for (SW-T0-M2).
    fn ovs_source(&mut self, end: End) -> Result<(), NoRule> {
        let mac = end.mac.ok_or_else(|| NoRule::Missing(not_known(end.ip)))?;
        let m2 = tunnelled(Some(end.local), None);
        let set = vec![ip_src(end.ip), Oxm::eth_src(mac)];
        self.classify(Stage::Ground, Kind::T0Encapsulated, classify::MEDIUM, m2, set, Then::Goto(FORWARDING))
    }

    /// Open vSwitch: rules for packets that came between `old` ends, which leave between `new` ones.
    fn ovs_steer(
        &mut self,
        stage: Stage,
        steered: Steered,
        old: (End, End),
        new: (End, End),
    ) -> Result<(), NoRule> {
        let everything = GTP..=ALL_FLAGS;
        // Sequence numbers are lost either way, so packets with and without are the same.
        let first_octets: Vec<u8> = match (self.access, self.diversion.ue) {
            (_, None) => everything.collect(),
            (Access::FourG, _) => vec![GTP],
            (Access::FiveG, _) => vec![0x34],
        };
        let is_by_tunnel = !steered.fields.iter().any(|oxm| oxm.field() == Field::PacketType);
        for first_octet in first_octets {
            let kinds = match is_by_tunnel {
                true => KINDS.map(|kind| in_g_pdu(kind, first_octet)).to_vec(),
                false => vec![(PACKETS, vec![Oxm::tun_gtpu_flags(first_octet)])],
            };
            for (before, mut fields) in kinds {
                // Where it matters it is there.
                let more = steered.fields.iter().filter(|oxm| oxm.field() != Field::TunGtpuMsgtype);
                fields.extend(more);
                fields.extend([tun_src(old.0.ip), tun_dst(old.1.local)]);
                let mut set = vec![tun_src(new.0.local), tun_dst(new.1.ip)];
                set.extend(&steered.set);
                let priority = before + steered.priority + u16::from(first_octet & 7);
                self.steer(stage, Kind::T1High, priority, fields, set)?;
            }
        }
        Ok(())
    }
}
