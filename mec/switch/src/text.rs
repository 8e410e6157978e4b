//! Entries as people write them, in the words of `ovs-ofctl`.

use std::net::{Ipv4Addr, Ipv6Addr};

use openflow::{Action, Field, Instructions, Match, Oxm, PortNo};

/// A match: `in_port=1,tun_dst=10.0.0.11,tunnel_id=0x7`; empty for every packet.
pub fn of_match(matching: &Match) -> String {
    matching.iter().map(|oxm| format!("{}={}", name(oxm.field()), of_oxm(&oxm))).collect::<Vec<_>>().join(",")
}

fn name(field: Field) -> &'static str {
    match field {
        Field::TunIpv4Src => "tun_src",
        Field::TunIpv4Dst => "tun_dst",
        Field::TunnelId => "tun_id",
        field => field.name(),
    }
}

fn of_oxm(oxm: &Oxm) -> String {
    let value = of_value(oxm.field(), oxm.value());
    if oxm.is_exact() { value } else { format!("{value}/{}", of_value(oxm.field(), oxm.mask())) }
}

fn of_value(field: Field, bits: u128) -> String {
    match field {
        Field::InPort => of_port(PortNo(bits as u32)),
        Field::Ipv4Src
        | Field::Ipv4Dst
        | Field::TunIpv4Src
        | Field::TunIpv4Dst
        | Field::ArpSpa
        | Field::ArpTpa => Ipv4Addr::from_bits(bits as u32).to_string(),
        Field::Ipv6Src | Field::Ipv6Dst | Field::TunIpv6Src | Field::TunIpv6Dst | Field::Ipv6NdTarget => {
            Ipv6Addr::from_bits(bits).to_string()
        }
        Field::EthDst
        | Field::EthSrc
        | Field::ArpSha
        | Field::ArpTha
        | Field::Ipv6NdSll
        | Field::Ipv6NdTll => {
            let octets = &bits.to_be_bytes()[10..];
            octets.iter().map(|octet| format!("{octet:02x}")).collect::<Vec<_>>().join(":")
        }
        Field::EthType | Field::TunnelId | Field::Metadata | Field::VlanVid | Field::TunGtpuFlags => {
            format!("{bits:#x}")
        }
        Field::PacketType => format!("({},{:#x})", bits >> 16, bits & 0xffff),
        _ => bits.to_string(),
    }
}

fn of_port(port: PortNo) -> String {
    match port {
        PortNo::IN_PORT => "IN_PORT".to_owned(),
        PortNo::TABLE => "TABLE".to_owned(),
        PortNo::FLOOD => "FLOOD".to_owned(),
        PortNo::ALL => "ALL".to_owned(),
        PortNo::CONTROLLER => "CONTROLLER".to_owned(),
        PortNo::LOCAL => "LOCAL".to_owned(),
        port => port.0.to_string(),
    }
}

/// What an entry does: `set_field:10.0.0.12->tun_dst,IN_PORT`.
pub fn of_instructions(instructions: &Instructions) -> String {
    let applied = instructions.apply_actions.as_deref().unwrap_or_default();
    let mut parts: Vec<String> = applied.iter().map(of_action).collect();
    if instructions.clear_actions {
        parts.push("clear_actions".to_owned());
    }
    if let Some(actions) = &instructions.write_actions {
        let actions: Vec<String> = actions.iter().map(of_action).collect();
        parts.push(format!("write_actions({})", actions.join(",")));
    }
    if let Some(metadata) = instructions.write_metadata {
        parts.push(format!("write_metadata:{:#x}/{:#x}", metadata.value, metadata.mask));
    }
    parts.extend(instructions.goto_table.map(|table| format!("goto_table:{}", table.0)));
    if parts.is_empty() { "drop".to_owned() } else { parts.join(",") }
}

fn of_action(action: &Action) -> String {
    match action {
        Action::Output { port, .. } if port.0 <= PortNo::MAX.0 => format!("output:{}", port.0),
        Action::Output { port, .. } => of_port(*port),
        Action::SetQueue(queue) => format!("set_queue:{queue}"),
        Action::Group(group) => format!("group:{}", group.0),
        Action::SetField(set) => format!("set_field:{}->{}", of_oxm(&set.oxm()), name(set.oxm().field())),
        Action::DecNwTtl => "dec_ttl".to_owned(),
        Action::PushVlan(ethertype) => format!("push_vlan:{ethertype:#x}"),
        Action::PopVlan => "pop_vlan".to_owned(),
        Action::Unknown(unknown) => format!("unknown:{}", unknown.kind()),
    }
}

#[cfg(test)]
mod tests {
    use openflow::{PacketType, TableId};

    use super::*;

    #[test]
    fn entries_read_like_those_of_ovs_ofctl() {
        let user = Match::new([
            Oxm::in_port(PortNo::LOCAL),
            Oxm::packet_type(PacketType::IPV4),
            Oxm::tunnel_id(7),
            Oxm::tun_ipv4_dst([10, 0, 0, 0].into()).prefix(8).unwrap(),
            Oxm::udp_dst(53),
            Oxm::ip_proto(17),
        ])
        .unwrap();
        let text = "in_port=LOCAL,packet_type=(1,0x800),tun_id=0x7,tun_dst=10.0.0.0/255.0.0.0,ip_proto=17,udp_dst=53";
        assert_eq!(of_match(&user), text);
        let steer =
            [Action::set(Oxm::tun_ipv4_dst([10, 0, 0, 2].into())).unwrap(), Action::output(PortNo::IN_PORT)];
        assert_eq!(of_instructions(&Instructions::apply(steer)), "set_field:10.0.0.2->tun_dst,IN_PORT");
        assert_eq!(of_instructions(&Instructions::goto(TableId(2))), "goto_table:2");
        assert_eq!(of_instructions(&Instructions::default()), "drop");
    }
}
