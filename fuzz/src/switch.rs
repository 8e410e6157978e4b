//! The edge's switch: octets into the state machine of a controller's connection; and changes of entries with frames in between,
//! against a list that is searched from one end to the other.

use std::sync::Arc;

use openflow::*;
use switch::agent::peer::Peer;
use switch::agent::session::Session;
use switch::core::{Identity, PortCounts, Switch, SwitchPort};
use switch::pipeline::field::{Pattern, WORDS, Words};
use switch::pipeline::parse::Headers;
use switch::pipeline::rewrite::{self, Exit, Sink};
use switch::pipeline::trace::Trace;
use switch::pipeline::{Change, HoldPorts, Limits, Pipeline, Ports};

use crate::targets::openflow_seeds;

const GTP: u32 = 100;
const HOLD: HoldPorts = HoldPorts { hold: 101, release: 102 };

fn pipeline() -> Pipeline {
    let limits = Limits { entries: 40, masks: 20, groups: 4, ..Limits::default() };
    let live = [(1, true), (2, true), (3, false), (PortNo::LOCAL.0, true)].into();
    Pipeline::new(limits, Ports { live, gtp: Some(GTP), hold: Some(HOLD) })
}

/// A connection that gets the input in pieces, after a hello.
pub fn agent(data: &[u8]) {
    let port =
        |number| SwitchPort { number, name: String::new(), mac: [0; 6], counts: PortCounts::default() };
    let identity = Identity { datapath_id: 1, description: String::new() };
    let switch = Switch::new(identity, pipeline(), vec![port(1), port(2), port(3)], 1000);
    let address = ([127, 0, 0, 1], 1).into();
    let mut session = Session::new(Arc::clone(&switch), Arc::new(Peer::new(1, address)), 0);
    let hello = Message::from(Hello::OURS).encode(1).expect("it is short");
    session.receive(&hello, 0).expect("our own hello is understood");
    let size = usize::from(data.first().copied().unwrap_or(1)).max(1);
    for (second, piece) in (1u64..).zip(data.chunks(size)) {
        if session.receive(piece, second * 1_000_000_000).is_err() {
            break;
        }
    }
    // What is answered are messages.
    let mut framer = Framer::default();
    framer.push(&session.output);
    while let Some(message) = framer.next_message().expect("lengths that can be") {
        Message::decode(message).expect("a message of ours");
    }
    assert_eq!(framer.pending(), 0);
    for table in switch.pipeline().tables() {
        assert!(table.len() <= 40 && table.masks() <= 20);
    }
}

/// Messages of a controller: those of the decoder's target, and some that install, change and ask.
pub fn agent_seeds() -> Vec<Vec<u8>> {
    let rules = [
        FlowMod::add(TableId(0), 1, Match::default(), Instructions::goto(TableId(1))),
        FlowMod::add(
            TableId(1),
            0,
            Match::default(),
            Instructions::apply([Action::output(PortNo::CONTROLLER)]),
        ),
        FlowMod::delete(TableId::ALL, Match::default()),
    ];
    let flags = BundleFlags::ATOMIC;
    let control = |kind| Message::from(BundleControl { bundle_id: 1, kind, flags });
    let mut messages = vec![control(BundleControlType::OpenRequest)];
    messages.extend(rules.iter().cloned().map(Message::from));
    messages.extend(
        rules
            .iter()
            .cloned()
            .map(|rule| BundleAdd { bundle_id: 1, flags, change: Change::FlowMod(rule) }.into()),
    );
    messages.push(control(BundleControlType::CommitRequest));
    let frame = frames().remove(0);
    let actions = vec![Action::output(PortNo::TABLE)];
    let packet = PacketOut { buffer_id: BufferId::NO_BUFFER, in_port: PortNo(1), actions, data: frame };
    let control = |kind| Message::from(BundleControl { bundle_id: 2, kind, flags });
    messages.push(BundleAdd { bundle_id: 2, flags, change: Change::PacketOut(packet.clone()) }.into());
    messages.extend([control(BundleControlType::CommitRequest), packet.into()]);
    for request in [
        Request::Desc(()),
        Request::Flow(FlowStatsRequest::all(TableId::ALL)),
        Request::Table(()),
        Request::TableFeatures(Vec::new()),
        Request::PortDesc(()),
        Request::GroupFeatures(()),
    ] {
        messages.push(request.into());
    }
    let stream = messages.iter().flat_map(|message| message.encode(7).expect("it is short")).collect();
    let mut seeds = openflow_seeds();
    seeds.push(stream);
    seeds
}

/// One group that copies, and one that leads to it while a port cannot send.
fn groups() -> Vec<Change> {
    let output = |port| Action::output(PortNo(port));
    let group = |id, group_type, buckets| {
        let command = GroupModCommand::Add;
        Change::GroupMod(GroupMod { command, group_type, group_id: GroupId(id), buckets })
    };
    let hop = Bucket::new([output(2), Action::DecNwTtl]);
    let watched = |port, bucket| Bucket { watch_port: PortNo(port), ..bucket };
    let failover =
        vec![watched(3, Bucket::new([output(3)])), watched(1, Bucket::new([Action::Group(GroupId(1))]))];
    vec![
        group(1, GroupType::All, vec![hop, Bucket::new([output(PortNo::LOCAL.0)])]),
        group(2, GroupType::FastFailover, failover),
    ]
}

/// Octets that decide what happens.
struct Choices<'d>(&'d [u8]);

impl Choices<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn below(&mut self, limit: u8) -> u8 {
        self.next().unwrap_or(0) % limit
    }

    /// A match of few fields with few values, so that matches overlap.
    fn matching(&mut self) -> Match {
        let mut fields = Vec::new();
        let chosen = self.next().unwrap_or(0);
        let has = |bit: u8| chosen & 1 << bit != 0;
        if has(0) {
            fields.push(Oxm::in_port(PortNo([1, 2, GTP, PortNo::LOCAL.0][usize::from(self.below(4))])));
        }
        if has(1) {
            fields.push(Oxm::tunnel_id(u64::from(self.below(3))));
        }
        if has(2) {
            fields.push(Oxm::tun_ipv4_dst([10, 0, 0, 11 + self.below(2)].into()));
        }
        if has(3) {
            fields.extend([Oxm::eth_type(0x0800), Oxm::ip_proto(17)]);
            if has(4) {
                fields.push(Oxm::udp_dst([2152, 53][usize::from(self.below(2))]));
            }
            if has(5) {
                let address = Oxm::ipv4_dst([10, 0, 0, 11 + self.below(2)].into());
                fields.extend(address.prefix(32 - u32::from(self.below(4)) * 8));
            }
        }
        if has(7) {
            fields.extend(Oxm::metadata(self.below(16).into()).masked(0x6u64));
        }
        if has(6) {
            fields.push(Oxm::tun_gtpu_msgtype([1, 255][usize::from(self.below(2))]));
        }
        Match::new(fields).unwrap_or_default()
    }

    fn action(&mut self) -> Option<Action> {
        let ports = [1, 2, 3, GTP, PortNo::LOCAL.0, PortNo::IN_PORT.0, PortNo::FLOOD.0, PortNo::CONTROLLER.0];
        let oxm = match self.below(17) {
            15 => return Some(Action::SetQueue(self.below(3).into())),
            16 => return Some(Action::output(PortNo([HOLD.hold, HOLD.release][usize::from(self.below(2))]))),
            11 | 12 => return Some(Action::DecNwTtl),
            13 => return Some(Action::Group(GroupId(1 + u32::from(self.below(2))))),
            at @ 0..8 => return Some(Action::output(PortNo(ports[usize::from(at)]))),
            8 => Oxm::tun_ipv4_dst([10, 0, 0, 12].into()),
            9 => Oxm::tunnel_id(2),
            10 => Oxm::ipv4_dst([10, 0, 0, 12].into()),
            _ => Oxm::eth_dst(MacAddr([2, 0, 0, 0, 0, 12])),
        };
        Action::set(oxm).ok()
    }

    fn flow_mod(&mut self) -> FlowMod {
        let table = self.below(3);
        let apply: Vec<_> = (0..self.below(4)).filter_map(|_| self.action()).collect();
        let goto = self.below(3);
        let goto_table = (goto > table).then_some(TableId(goto));
        let more = self.next().unwrap_or(0);
        let has = |bit: u8| more & 1 << bit != 0;
        let write_actions = has(0).then(|| (0..self.below(4)).filter_map(|_| self.action()).collect());
        let write_metadata = has(1).then_some(Metadata { value: (more >> 4).into(), mask: 0xa });
        let instructions = Instructions {
            goto_table,
            write_actions,
            write_metadata,
            clear_actions: has(2),
            ..Instructions::apply(apply)
        };
        let mut flow_mod = FlowMod::add(TableId(table), self.below(4).into(), self.matching(), instructions);
        flow_mod.cookie = self.below(4).into();
        flow_mod
    }
}

/// Frames with and without tunnels.
fn frames() -> Vec<Vec<u8>> {
    use packet::{ethernet, gtpu, ipv4, protocol, transport};
    let udp = |from: [u8; 4], to: [u8; 4], port: u16, payload: &[u8]| {
        let datagram =
            transport::build_udp((from.into(), port), (to.into(), port), payload).unwrap_or_default();
        ipv4::Header::new(from.into(), to.into(), protocol::UDP).build(&datagram).unwrap_or_default()
    };
    let user = udp([10, 45, 0, 2], [10, 0, 0, 12], 53, b"data");
    let qfi = Some(gtpu::PduSession::Uplink { qfi: 1 });
    let messages =
        [gtpu::build_gpdu(1, qfi, &user), gtpu::build_gpdu(2, None, &user), gtpu::build_gpdu(0, None, &[])];
    let mut payloads: Vec<Vec<u8>> = messages.into_iter().flatten().collect();
    payloads.push(gtpu::Signalling::EchoRequest { sequence: 1 }.build());
    payloads.push(vec![0x30, 255]);
    let frame = |packet: &[u8]| {
        ethernet::build([2, 0, 0, 0, 0, 11], [2, 0, 0, 0, 0, 1], None, ethernet::IPV4, packet)
    };
    let mut frames: Vec<_> =
        payloads.iter().map(|payload| frame(&udp([10, 0, 0, 1], [10, 0, 0, 11], 2152, payload))).collect();
    frames.push(frame(&user));
    frames
}

/// Takes frames and drops them.
struct Nowhere;

impl Sink for Nowhere {
    fn send(&mut self, _: Exit<'_>, _: &mut [u8], _: bool) {}
}

/// Whether the fields are equal where a translation has looked.
fn same(a: &Words, b: &Words, consulted: &Words) -> bool {
    (0..WORDS).all(|word| (a[word] ^ b[word]) & consulted[word] == 0)
}

/// Changes and frames: the pipeline does what a linear search would, and a translation holds for all packets that are equal in
/// what it has consulted.
pub fn program(data: &[u8]) {
    let mut choices = Choices(data);
    let mut pipeline = pipeline();
    pipeline.commit(&groups(), 0).expect("they are sound");
    let mut model: Vec<FlowMod> = Vec::new();
    let mut known: Vec<(Headers, Trace)> = Vec::new();
    let frames = frames();
    while let Some(what) = choices.next() {
        match what % 8 {
            2 => {
                let strict = choices.below(2) == 0;
                let command = if strict { FlowModCommand::ModifyStrict } else { FlowModCommand::Modify };
                let modify = FlowMod { command, ..choices.flow_mod() };
                // It may not suit an entry; then nothing is changed.
                let _ = pipeline.commit(&[Change::FlowMod(modify)], 1);
                known.clear();
            }
            0..2 => {
                let flow_mod = choices.flow_mod();
                if pipeline.commit(&[Change::FlowMod(flow_mod.clone())], 1).is_ok() {
                    model.retain(|own| !is_same(own, &flow_mod));
                    model.push(flow_mod);
                }
                known.clear();
            }
            3 => {
                let mut delete = FlowMod::delete(TableId(choices.below(3)), choices.matching());
                (delete.cookie, delete.cookie_mask) = (choices.below(4).into(), choices.below(4).into());
                pipeline.commit(&[Change::FlowMod(delete.clone())], 1).expect("deleting does not fail");
                model.retain(|own| {
                    own.table_id != delete.table_id
                        || !delete.matching.includes(&own.matching)
                        || (own.cookie ^ delete.cookie) & delete.cookie_mask != 0
                });
                known.clear();
            }
            _ => {
                let mut frame = frames[usize::from(what / 8) % frames.len()].clone();
                for _ in 0..choices.below(4) {
                    let at = usize::from(choices.next().unwrap_or(0)) % frame.len();
                    frame[at] ^= choices.next().unwrap_or(0);
                }
                let headers = match what & 2 {
                    0 => Headers::parse(&frame, u32::from(what & 1) + 1),
                    _ => Headers::parse_held(&frame, HOLD.hold, u32::from(what & 1) + 1),
                };
                pass(&pipeline, &model, &mut known, frame, headers);
            }
        }
        let entries: usize = pipeline.tables().iter().map(|table| table.len()).sum();
        assert_eq!(entries, model.len());
        for table in pipeline.tables() {
            assert_eq!(table.within(&Pattern::default()).count(), table.len());
        }
    }
}

fn is_same(own: &FlowMod, other: &FlowMod) -> bool {
    own.table_id == other.table_id && own.priority == other.priority && own.matching == other.matching
}

fn pass(
    pipeline: &Pipeline,
    model: &[FlowMod],
    known: &mut Vec<(Headers, Trace)>,
    mut frame: Vec<u8>,
    headers: Headers,
) {
    for (table, number) in pipeline.tables().iter().zip(0u8..) {
        for words in [&headers.outer, &headers.inner] {
            let found = table.look_up(words, &mut [0; WORDS]).map(|flow| flow.priority);
            let own = model.iter().filter(|own| own.table_id.0 == number);
            let matches =
                |own: &&FlowMod| Pattern::new(&own.matching).is_ok_and(|pattern| pattern.matches(words));
            assert_eq!(found, own.filter(matches).map(|own| own.priority).max());
        }
    }
    let trace = pipeline.trace(&headers.outer, &headers.inner);
    for (earlier, with) in known.iter() {
        let consulted = &with.consulted;
        if same(&headers.outer, &earlier.outer, &consulted.outer)
            && same(&headers.inner, &earlier.inner, &consulted.inner)
        {
            assert_eq!(trace.steps, with.steps);
            assert_eq!(trace.dropped, with.dropped);
            assert!(trace.rules.iter().zip(&with.rules).all(|(a, b)| Arc::ptr_eq(a, b)));
        }
    }
    rewrite::execute(&trace.steps, &mut frame, &headers.layout, &mut Nowhere);
    if known.len() < 32 {
        known.push((headers, trace));
    }
}

/// Programs to start from.
pub fn programs() -> Vec<Vec<u8>> {
    let mut state = 1u32;
    let mut octet = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    [64, 200, 1000].map(|length| (0..length).map(|_| octet()).collect()).into()
}
