//! Open vSwitch as oracle: the same rules and packets go to it and to ours, and leave by the same ports. It runs with a dummy
//! datapath, which sends nothing, and says what it would do (`ofproto/trace`). Tunnels are left out, in which it is wrong.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::*;
use net::netns::NetNs;
use openflow::*;
use openvswitch::OpenVswitch;
use packet::ethernet;
use switch::pipeline::{Limits, Pipeline, Ports};

/// The switch that ours is compared with.
struct Oracle(OpenVswitch);

impl Oracle {
    fn start() -> Oracle {
        let options = ["--enable-dummy=override", "--disable-system"];
        let oracle = OpenVswitch::start(&NetNs::new().unwrap(), &options);
        oracle.add_bridge(&["datapath_type=dummy", "fail-mode=secure"]);
        for port in 1..=3 {
            oracle.add_port(&format!("p{port}"), &["type=dummy", &format!("ofport_request={port}")]);
        }
        Oracle(oracle)
    }

    /// Replaces all rules.
    fn install(&self, rules: &[FlowMod]) {
        let mut stream = UnixStream::connect(self.0.path("br0.mgmt")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut octets = Message::from(Hello::OURS).encode(1).unwrap();
        let clear = FlowMod::delete(TableId::ALL, Match::default());
        for rule in std::iter::once(&clear).chain(rules) {
            Message::from(rule.clone()).encode_into(2, &mut octets).unwrap();
        }
        Message::BarrierRequest(()).encode_into(3, &mut octets).unwrap();
        stream.write_all(&octets).unwrap();
        let (mut framer, mut buffer) = (Framer::default(), [0; 4096]);
        loop {
            while let Some(message) = framer.next_message().unwrap() {
                match Message::decode(message).unwrap() {
                    (3, Message::BarrierReply(())) => return,
                    (_, Message::Error(error)) => panic!("{:?}", error.code),
                    _ => {}
                }
            }
            let length = stream.read(&mut buffer).unwrap();
            assert!(length > 0);
            framer.push(&buffer[..length]);
        }
    }

    /// The ports by which it would send the frame, in their order.
    fn ports(&self, in_port: u32, frame: &[u8]) -> (Vec<u32>, String) {
        let hex: String = frame.iter().map(|octet| format!("{octet:02x}")).collect();
        let text = self.0.appctl(&["ofproto/trace", "br0", &format!("in_port={in_port}"), &hex]);
        let actions = text.lines().find_map(|line| line.strip_prefix("Datapath actions: ")).expect(&text);
        // Outputs are bare numbers between the changes, which have brackets and may contain numbers.
        let (mut depth, mut ports, mut word) = (0, Vec::new(), String::new());
        for character in actions.chars().chain([',']) {
            match character {
                '(' => depth += 1,
                ')' => depth -= 1,
                ',' if depth == 0 => ports.extend(std::mem::take(&mut word).parse::<u32>()),
                _ if depth == 0 => word.push(character),
                _ => {}
            }
            if character == ')' && depth == 0 {
                word.clear();
            }
        }
        (ports, text)
    }
}

/// Numbers that look random and are the same each time.
struct Numbers(u32);

impl Numbers {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 16) % limit
    }

    fn matching(&mut self, table: u8) -> Match {
        let mut fields = Vec::new();
        if self.below(3) == 0 {
            fields.push(Oxm::in_port(PortNo(1 + self.below(2))));
        }
        if self.below(3) == 0 {
            let mac = [ENB_MAC, GW1_MAC, GW2_MAC][self.below(3) as usize];
            fields.push(Oxm::eth_dst(MacAddr(mac)));
        }
        if table > 0 && self.below(3) == 0 {
            fields.extend(Oxm::metadata(self.below(4).into()).masked(3u64));
        }
        match self.below(4) {
            0 => {}
            1 => fields.push(Oxm::eth_type(0x0806)),
            2 => fields.extend([Oxm::eth_type(0x86dd), Oxm::ip_proto(17)]),
            _ => {
                fields.push(Oxm::eth_type(0x0800));
                if self.below(2) == 0 {
                    let address = Oxm::ipv4_dst([GW1, GW2, SERVER][self.below(3) as usize]);
                    fields.extend(address.prefix(32 - 8 * self.below(4)));
                }
                if self.below(2) == 0 {
                    fields.push(Oxm::ip_proto(17));
                    fields.push(Oxm::udp_dst([53, 7000][self.below(2) as usize]));
                }
                if self.below(4) == 0 {
                    fields.push(Oxm::ip_dscp(Bits::new([46, 0][self.below(2) as usize]).unwrap()));
                }
            }
        }
        matching(fields)
    }

    fn rule(&mut self, table: u8, priority: u16) -> FlowMod {
        let matching = self.matching(table);
        let mut actions = Vec::new();
        for _ in 0..self.below(3) {
            let action = match self.below(6) {
                0 => Action::output(PortNo::IN_PORT),
                1 => Action::output(PortNo::FLOOD),
                2 => set(Oxm::eth_dst(MacAddr([ENB_MAC, GW1_MAC, GW2_MAC][self.below(3) as usize]))),
                3 if matching.allows(Field::Ipv4Dst) => {
                    set(Oxm::ipv4_dst([GW1, GW2][self.below(2) as usize]))
                }
                _ => output(1 + self.below(3)),
            };
            actions.push(action);
        }
        let mut instructions = Instructions::apply(actions);
        if self.below(3) == 0 {
            instructions.write_actions = Some([output(1 + self.below(3))].into());
        }
        instructions.clear_actions = self.below(6) == 0;
        if table < 3 && self.below(3) > 0 {
            let value = self.below(4).into();
            instructions.write_metadata = (self.below(2) == 0).then_some(Metadata { value, mask: 3 });
            instructions.goto_table = Some(TableId(table + 1));
        }
        FlowMod::add(TableId(table), priority, matching, instructions)
    }
}

fn packets() -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for mac in [ENB_MAC, GW1_MAC, GW2_MAC] {
        for (address, port) in [(GW1, 53), (GW2, 7000), (SERVER, 9)] {
            let packet = udp((UE1.into(), 1000), (address.into(), port), b"data");
            packets.push(ethernet::build(mac, ENB_MAC, None, ethernet::IPV4, &packet));
        }
        let packet = udp((v6(1).into(), 1000), (v6(2).into(), 53), b"data");
        packets.push(ethernet::build(mac, ENB_MAC, None, ethernet::IPV6, &packet));
        packets.push(ethernet::build(
            mac,
            ENB_MAC,
            None,
            ethernet::ARP,
            &[0, 1, 8, 0, 6, 4, 0, 1].repeat(4)[..28],
        ));
    }
    packets
}

#[test]
fn open_vswitch_sends_packets_by_the_same_ports() {
    if !openvswitch::is_possible() {
        return;
    }
    let oracle = Oracle::start();
    let mut sent = 0;
    for seed in 0..12 {
        let mut numbers = Numbers(seed * 7919 + 1);
        // Each priority once in a table: which of two equal ones wins is nobody's business.
        let rules: Vec<_> =
            (0..4u8).flat_map(|table| (1..12).map(move |priority| (table, priority))).collect();
        let mut rules: Vec<_> =
            rules.into_iter().map(|(table, priority)| numbers.rule(table, priority)).collect();
        // A packet that no entry matches is dropped, whatever its action set says (§5.4). Open vSwitch executes the set.
        rules.extend((0..4).map(|table| add(table, 0, [], Instructions::default())));
        oracle.install(&rules);
        let live = PORTS.iter().map(|port| (*port, true)).collect();
        let mut pipeline = Pipeline::new(Limits::default(), Ports { live, gtp: None, hold: None });
        install(&mut pipeline, rules.clone());
        for frame in packets() {
            for in_port in [1, 2] {
                let (left, trace) = send(&pipeline, in_port, &frame);
                let mut ours: Vec<u32> = left.iter().filter_map(|(port, _)| *port).collect();
                let (theirs, said) = oracle.ports(in_port, &frame);
                // Its host's port is one that ours does not have here.
                let mut theirs: Vec<u32> = theirs.into_iter().filter(|port| PORTS.contains(port)).collect();
                // It floods in an order of its own.
                ours.sort_unstable();
                theirs.sort_unstable();
                sent += ours.len();
                assert_eq!(ours, theirs, "seed {seed}, port {in_port}: {trace:#?}\n{said}");
            }
        }
    }
    assert!(sent > 200, "{sent} frames were sent: the rules say too little");
}
