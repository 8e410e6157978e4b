//! Translation: what the entries do with a packet, as steps that any data path can take.
//!
//! Only fields go in, no octets. The result holds for every packet that is equal in the fields that were *consulted*: caches
//! use it for them, and entries of a faster path can be made of it ahead of any packet.
//!
//! The GTP port: an output to LOCAL of a GTP-U message goes on with the fields of the packet inside, as received by the GTP
//! port; an output to the GTP port goes on with the frame's fields, as received by LOCAL. In between `tun_dst`, `tun_src` and
//! `tun_id` are the frame's own addresses and TEID, so that setting them is a step like any other. A datagram on the port of
//! GTP-U that cannot be read comes back from LOCAL as the frame that it is, for tables to forward it (SW-8).

use std::collections::BTreeMap;
use std::sync::Arc;

use openflow::{Action, Bucket, Field, GroupId, GroupType, MaxLen, Oxm, PacketInReason, PortNo, TableId};
use packet::{ethernet, gtpu, protocol};

use super::Pipeline;
use super::field::{self, WORDS, Words, shape};
use super::flow::{Flow, Group};

/// How often a packet may come back by LOCAL or the GTP port, or go from group to group.
pub const MAX_DEPTH: u32 = 8;
/// Actions and look-ups of a packet: the most that sensible entries need is far below.
pub(super) const MAX_WORK: u32 = 1024;

/// The frame, or the packet in its tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// The frame.
    Outer,
    /// What is behind the GTP port.
    Inner,
}

/// What is done with a packet's octets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Writes a field, if the packet has it.
    Set {
        /// Of which header.
        layer: Layer,
        /// Which one; TEID and addresses of the tunnel are fields of the frame.
        field: Field,
        /// Its value.
        value: u128,
    },
    /// Counts TTL or hop limit down; that of a packet that has one is more than 1.
    DecTtl(Layer),
    /// Sends the frame as it is now to an interface.
    Output(u32),
    /// Puts it into this queue of the hold port.
    Hold(u32),
    /// Opens this queue of the hold port; the frame has done its duty.
    Release(u32),
    /// Sends it to the controllers.
    Controller(Box<ToController>),
    /// So many of the next steps are done with a copy.
    Branch(usize),
}

impl Step {
    /// Whether the packet, or a copy of it, goes somewhere.
    fn sends(&self) -> bool {
        matches!(self, Step::Output(_) | Step::Hold(_) | Step::Release(_) | Step::Controller(_))
    }
}

/// What a controller gets with a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToController {
    /// Whether it gets the frame or the packet inside.
    pub layer: Layer,
    /// Why.
    pub reason: PacketInReason,
    /// The table of the entry.
    pub table: TableId,
    /// The entry's cookie.
    pub cookie: u64,
    /// How much of the packet it gets.
    pub max_len: MaxLen,
    /// The fields of [`CONTEXT`].
    pub fields: Words,
}

/// Why a packet, or a copy of it, went nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// No entry matches.
    NoEntry,
    /// The entries send it nowhere.
    NoOutput,
    /// TTL or hop limit was used up, and the controllers got the packet.
    LastHop,
    /// The entries send it round and round, or to the hold port again, or to no queue there.
    TooLong,
    /// A packet of the GTP port was sent to an interface, or a frame that did not come by it to the GTP port; or the tunnel's
    /// addresses are of the other IP version.
    Tunnel,
}

/// Fields on which a translation depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consulted {
    /// Those of the frame.
    pub outer: Words,
    /// Those of the packet inside, of the tunnel's header, and its TEID.
    pub inner: Words,
}

/// A translation.
#[derive(Debug)]
pub struct Trace {
    /// What is done.
    pub steps: Vec<Step>,
    /// The entries that the packet passed, in their order. One that it passed twice is there twice.
    pub rules: Vec<Arc<Flow>>,
    /// Tables that were asked, and whether they had an entry.
    pub tables: Vec<(u8, bool)>,
    /// Groups that it passed, each followed by its buckets that it passed.
    pub groups: Vec<(Arc<Group>, Option<usize>)>,
    /// What it depends on.
    pub consulted: Consulted,
    /// Why it went nowhere; `None` if it went somewhere.
    pub dropped: Option<Dropped>,
    /// The version of the pipeline for which it holds.
    pub version: u64,
}

impl Trace {
    /// Counts packets that were treated like this.
    pub fn count(&self, pipeline: &Pipeline, packets: u64, bytes: u64, now_ns: u64) {
        self.rules.iter().for_each(|flow| flow.counters.add(packets, bytes, now_ns));
        for (group, bucket) in &self.groups {
            let counters = bucket.map_or(&*group.counters, |bucket| &group.bucket_counters[bucket]);
            counters.add(packets, bytes, now_ns);
        }
        for (table, matched) in &self.tables {
            pipeline.tables[usize::from(*table)].count(packets, if *matched { packets } else { 0 });
        }
    }
}

impl Pipeline {
    /// What becomes of a packet with these fields.
    pub fn trace(&self, outer: &Words, inner: &Words) -> Trace {
        let mut translation = Translation::new(self);
        translation.walk(&mut Packet::new(outer, inner), 0);
        translation.end()
    }

    /// What a packet-out does with a packet (§7.3.7).
    pub fn trace_packet_out(&self, outer: &Words, inner: &Words, actions: &[Action]) -> Trace {
        let mut translation = Translation::new(self);
        let mut packet = Packet::new(outer, inner);
        let cause = Cause { reason: PacketInReason::Action, table: TableId(0), cookie: u64::MAX, depth: 0 };
        for action in actions {
            let to_table = matches!(action, Action::Output { port: PortNo::TABLE, .. });
            if to_table {
                translation.branch(&packet, |translation, copy| translation.walk(copy, 1));
            } else if translation.act(&mut packet, action, cause).is_err() {
                break;
            }
        }
        translation.end()
    }
}

/// The fields of a layer, and which of their bits no longer depend on the packet.
#[derive(Clone)]
struct Fields {
    words: Words,
    fixed: Words,
}

/// A packet on its way through the tables.
#[derive(Clone)]
struct Packet {
    layer: Layer,
    outer: Fields,
    inner: Fields,
    /// How often TTL or hop limit of each layer has been counted down.
    hops: [u32; 2],
    /// The queue that entries chose for it.
    queue: u32,
    /// An entry gave the tunnel addresses that the frame cannot have.
    misaddressed: bool,
    /// Its metadata when it came.
    came_with: u128,
}

impl Packet {
    fn new(outer: &Words, inner: &Words) -> Packet {
        let fields = |words: &Words| Fields { words: *words, fixed: [0; WORDS] };
        Packet {
            layer: Layer::Outer,
            outer: fields(outer),
            inner: fields(inner),
            hops: [0; 2],
            queue: 0,
            misaddressed: false,
            came_with: field::get(outer, Field::Metadata),
        }
    }

    fn fields(&self) -> &Fields {
        match self.layer {
            Layer::Outer => &self.outer,
            Layer::Inner => &self.inner,
        }
    }

    fn words(&self) -> &Words {
        &self.fields().words
    }

    /// Gives a field a value that does not depend on the packet.
    fn fix(&mut self, layer: Layer, of: Field, value: u128) {
        let fields = match layer {
            Layer::Outer => &mut self.outer,
            Layer::Inner => &mut self.inner,
        };
        field::set(&mut fields.words, of, value);
        field::cover(&mut fields.fixed, of);
    }

    /// Goes on as received by another port.
    fn enter(&mut self, layer: Layer, in_port: u32) {
        self.layer = layer;
        if layer == Layer::Inner {
            for (tunnel, address) in TUNNEL.into_iter().zip(ADDRESSES) {
                self.inner.words[tunnel] = self.outer.words[address];
                self.inner.fixed[tunnel] = self.outer.fixed[address];
            }
        }
        self.fix(layer, Field::InPort, in_port.into());
        // What it had when it came: zero, unless it comes from the hold port.
        let (words, fixed) = match layer {
            Layer::Outer => (&mut self.outer.words, &mut self.outer.fixed),
            Layer::Inner => (&mut self.inner.words, &mut self.inner.fixed),
        };
        field::set(words, Field::Metadata, self.came_with);
        field::set(fixed, Field::Metadata, 0);
    }

    /// Whether it has waited in a queue of the hold port.
    fn was_held(&self) -> bool {
        self.came_with != 0
    }
}

/// Words of a tunnel's addresses, and those of a frame's addresses in the same order.
const TUNNEL: [usize; 5] = [3, 4, 5, 6, 7];
const ADDRESSES: [usize; 5] = [12, 13, 14, 15, 16];

/// On whose behalf an action is done.
#[derive(Clone, Copy)]
struct Cause {
    reason: PacketInReason,
    table: TableId,
    cookie: u64,
    depth: u32,
}

/// The packet's way ends here.
struct Stop;

/// Steps before it is known which of them need a copy.
enum Node {
    Step(Step),
    Branch(Vec<Node>),
}

struct Translation<'p> {
    pipeline: &'p Pipeline,
    nodes: Vec<Node>,
    rules: Vec<Arc<Flow>>,
    tables: Vec<(u8, bool)>,
    groups: Vec<(Arc<Group>, Option<usize>)>,
    /// Groups of which it is known whether they can send.
    live_groups: BTreeMap<GroupId, bool>,
    consulted: Consulted,
    dropped: Option<Dropped>,
    work: u32,
}

/// An action set (§5.10): one action of each kind, one value of each field.
#[derive(Default)]
struct ActionSet {
    dec_ttl: bool,
    fields: Vec<Oxm>,
    queue: Option<u32>,
    group: Option<GroupId>,
    output: Option<(PortNo, MaxLen)>,
}

impl ActionSet {
    fn write(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Output { port, max_len } => self.output = Some((*port, *max_len)),
                Action::SetQueue(queue) => self.queue = Some(*queue),
                Action::Group(group) => self.group = Some(*group),
                Action::SetField(set) => {
                    self.fields.retain(|oxm| oxm.field() != set.oxm().field());
                    self.fields.push(set.oxm());
                }
                Action::DecNwTtl => self.dec_ttl = true,
                Action::PushVlan(_) | Action::PopVlan | Action::Unknown(_) => {}
            }
        }
    }
}

impl<'p> Translation<'p> {
    fn new(pipeline: &'p Pipeline) -> Self {
        Translation {
            pipeline,
            nodes: Vec::new(),
            rules: Vec::new(),
            tables: Vec::new(),
            groups: Vec::new(),
            live_groups: BTreeMap::new(),
            consulted: Consulted { outer: [0; WORDS], inner: [0; WORDS] },
            dropped: None,
            work: 0,
        }
    }

    fn end(self) -> Trace {
        let mut steps = Vec::new();
        let sends = flatten(self.nodes, &mut steps);
        Trace {
            steps,
            rules: self.rules,
            tables: self.tables,
            groups: self.groups,
            consulted: self.consulted,
            dropped: (!sends).then(|| self.dropped.unwrap_or(Dropped::NoOutput)),
            version: self.pipeline.version,
        }
    }

    /// The packet goes nowhere from here. The first reason is the one that counts, if it goes nowhere else.
    fn drop(&mut self, why: Dropped) {
        self.dropped.get_or_insert(why);
    }

    /// Notes that these bits of the packet's present fields decide what happens.
    fn consult(&mut self, packet: &Packet, bits: &Words) {
        let fixed = &packet.fields().fixed;
        let open: Words = std::array::from_fn(|word| bits[word] & !fixed[word]);
        match packet.layer {
            Layer::Outer => {
                self.consulted.outer.iter_mut().zip(open).for_each(|(noted, bits)| *noted |= bits)
            }
            Layer::Inner => {
                for (word, bits) in open.into_iter().enumerate() {
                    match TUNNEL.iter().position(|tunnel| *tunnel == word) {
                        Some(at) => self.consulted.outer[ADDRESSES[at]] |= bits,
                        None => self.consulted.inner[word] |= bits,
                    }
                }
            }
        }
    }

    fn consult_fields(&mut self, packet: &Packet, fields: &[Field]) {
        let mut bits = [0; WORDS];
        fields.iter().for_each(|field| field::cover(&mut bits, *field));
        self.consult(packet, &bits);
    }

    fn work(&mut self) -> Result<(), Stop> {
        self.work += 1;
        if self.work > MAX_WORK {
            self.drop(Dropped::TooLong);
            return Err(Stop);
        }
        Ok(())
    }

    /// Does something with a copy of the packet.
    fn branch(&mut self, packet: &Packet, run: impl FnOnce(&mut Self, &mut Packet)) {
        let before = std::mem::take(&mut self.nodes);
        run(self, &mut packet.clone());
        let copy = std::mem::replace(&mut self.nodes, before);
        self.nodes.push(Node::Branch(copy));
    }

    /// Leads the packet through the tables, from the first one on.
    fn walk(&mut self, packet: &mut Packet, depth: u32) {
        if depth > MAX_DEPTH {
            return self.drop(Dropped::TooLong);
        }
        let pipeline = self.pipeline;
        let (mut table, mut set) = (0u8, ActionSet::default());
        loop {
            let mut bits = [0; WORDS];
            let found = pipeline.tables[usize::from(table)].look_up(packet.words(), &mut bits);
            self.consult(packet, &bits);
            self.tables.push((table, found.is_some()));
            // A packet that no entry matches is dropped (§5.4).
            let Some(flow) = found else { return self.drop(Dropped::NoEntry) };
            if self.work().is_err() {
                return;
            }
            self.rules.push(Arc::clone(flow));
            let reason = if flow.is_miss() { PacketInReason::NoMatch } else { PacketInReason::Action };
            let cause = Cause { reason, table: TableId(table), cookie: flow.cookie, depth };
            for action in flow.instructions.apply_actions.as_deref().unwrap_or_default() {
                if self.act(packet, action, cause).is_err() {
                    return;
                }
            }
            if flow.instructions.clear_actions {
                set = ActionSet::default();
            }
            set.write(flow.instructions.write_actions.as_deref().unwrap_or_default());
            if let Some(metadata) = flow.instructions.write_metadata {
                let kept = field::get(packet.words(), Field::Metadata) as u64 & !metadata.mask;
                let layer = packet.layer;
                packet.fix(layer, Field::Metadata, (kept | metadata.value & metadata.mask).into());
            }
            match flow.instructions.goto_table {
                Some(next) => table = next.0,
                None => return self.execute(packet, &set, Cause { reason: PacketInReason::Action, ..cause }),
            }
        }
    }

    /// Executes an action set, in the order of §5.10.
    fn execute(&mut self, packet: &mut Packet, set: &ActionSet, cause: Cause) {
        if set.dec_ttl && self.act(packet, &Action::DecNwTtl, cause).is_err() {
            return;
        }
        for oxm in &set.fields {
            self.set(packet, *oxm);
        }
        packet.queue = set.queue.unwrap_or(packet.queue);
        let last = match (set.group, set.output) {
            (Some(group), _) => Action::Group(group),
            (None, Some((port, max_len))) => Action::Output { port, max_len },
            (None, None) => return,
        };
        // It was the last action in any case.
        let _ = self.act(packet, &last, cause);
    }

    fn act(&mut self, packet: &mut Packet, action: &Action, cause: Cause) -> Result<(), Stop> {
        self.work()?;
        match action {
            Action::Output { port, max_len } => self.output(packet, *port, *max_len, cause),
            Action::SetQueue(queue) => packet.queue = *queue,
            Action::Group(group) => self.group(packet, *group, cause),
            Action::SetField(set) => self.set(packet, set.oxm()),
            Action::DecNwTtl => return self.dec_ttl(packet, cause),
            Action::PushVlan(_) | Action::PopVlan | Action::Unknown(_) => {}
        }
        Ok(())
    }

    fn dec_ttl(&mut self, packet: &mut Packet, cause: Cause) -> Result<(), Stop> {
        self.consult_fields(packet, &[Field::EthType]);
        if !is_ip(packet.words()) {
            return Ok(());
        }
        let hops = &mut packet.hops[packet.layer as usize];
        *hops += 1;
        let hops = *hops;
        let mut bits = [0; WORDS];
        bits[shape::WORD] = shape::asked(hops);
        self.consult(packet, &bits);
        if shape::is_last(packet.words()[shape::WORD], hops) {
            self.punt(packet, MaxLen::NO_BUFFER, Cause { reason: PacketInReason::InvalidTtl, ..cause });
            self.drop(Dropped::LastHop);
            return Err(Stop);
        }
        self.nodes.push(Node::Step(Step::DecTtl(packet.layer)));
        Ok(())
    }

    fn set(&mut self, packet: &mut Packet, oxm: Oxm) {
        let (field, value, layer) = (oxm.field(), oxm.value(), packet.layer);
        if let Some((of_frame, version)) = of_tunnel(field) {
            self.set_tunnel(packet, oxm, of_frame, version);
            return;
        }
        self.consult_fields(packet, needed_by(field));
        if !has(packet, field) {
            return;
        }
        packet.fix(layer, field, value);
        self.nodes.push(Node::Step(Step::Set { layer, field, value }));
    }

    /// Sets an address of the tunnel, or its TEID: a field of the frame.
    fn set_tunnel(&mut self, packet: &mut Packet, oxm: Oxm, of_frame: Field, version: Option<u16>) {
        packet.fix(packet.layer, oxm.field(), oxm.value());
        // A frame that did not come by the GTP port has no tunnel.
        if packet.layer == Layer::Outer {
            return;
        }
        if let Some(version) = version {
            let mut frame = packet.clone();
            frame.layer = Layer::Outer;
            self.consult_fields(&frame, &[Field::EthType]);
            if ethertype(&packet.outer.words) != version {
                packet.misaddressed = true;
                return;
            }
            packet.fix(Layer::Outer, of_frame, oxm.value());
        }
        self.nodes.push(Node::Step(Step::Set { layer: Layer::Outer, field: of_frame, value: oxm.value() }));
    }

    fn output(&mut self, packet: &Packet, port: PortNo, max_len: MaxLen, cause: Cause) {
        let in_port = PortNo(field::get(packet.words(), Field::InPort) as u32);
        self.consult_fields(packet, &[Field::InPort]);
        match port {
            PortNo::CONTROLLER => self.punt(packet, max_len, cause),
            PortNo::ALL | PortNo::FLOOD => {
                let ports = &self.pipeline.ports.live;
                let others = ports.iter().filter(|(number, live)| **live && **number != in_port.0);
                for (number, _) in others {
                    self.send(packet, *number);
                }
            }
            PortNo::IN_PORT => self.send_to_port(packet, in_port, cause),
            // A packet goes back only where that was said (§7.2.1).
            _ if port == in_port => {}
            _ => self.send_to_port(packet, port, cause),
        }
    }

    fn send_to_port(&mut self, packet: &Packet, port: PortNo, cause: Cause) {
        match self.pipeline.ports.gtp {
            Some(gtp) if port.0 == gtp => self.encapsulate(packet, cause),
            Some(gtp) if port == PortNo::LOCAL && packet.layer == Layer::Outer => {
                self.local(packet, gtp, cause)
            }
            _ => match self.pipeline.ports.hold {
                Some(ports) if port.0 == ports.hold => self.hold(packet),
                Some(ports) if port.0 == ports.release => self.release(packet),
                _ => self.send(packet, port.0),
            },
        }
    }

    /// A token opens its queue.
    fn release(&mut self, packet: &Packet) {
        match packet.queue {
            0 => self.drop(Dropped::TooLong),
            queue => self.nodes.push(Node::Step(Step::Release(queue))),
        }
    }

    /// A packet waits as the frame that it is. One that has waited does not wait again: it would go round and round.
    fn hold(&mut self, packet: &Packet) {
        let mut bits = [0; WORDS];
        field::cover(&mut bits, Field::Metadata);
        self.consulted.outer.iter_mut().zip(bits).for_each(|(noted, bits)| *noted |= bits);
        match packet.was_held() || packet.queue == 0 {
            true => self.drop(Dropped::TooLong),
            false => self.nodes.push(Node::Step(Step::Hold(packet.queue))),
        }
    }

    fn send(&mut self, packet: &Packet, port: u32) {
        if packet.layer == Layer::Inner {
            self.drop(Dropped::Tunnel);
        } else if self.pipeline.ports.live.get(&port) == Some(&true) {
            self.nodes.push(Node::Step(Step::Output(port)));
        }
    }

    /// A frame for the switch's host: a tunnel's message comes back by the GTP port.
    fn local(&mut self, packet: &Packet, gtp: u32, cause: Cause) {
        let mut bits = [0; WORDS];
        [Field::EthType, Field::IpProto, Field::UdpDst]
            .iter()
            .for_each(|field| field::cover(&mut bits, *field));
        self.consult(packet, &bits);
        let words = packet.words();
        let is_udp = field::get(words, Field::IpProto) == protocol::UDP.into();
        let port = field::get(words, Field::UdpDst);
        if !is_udp || port != gtpu::PORT.into() || !is_ip(words) {
            return self.send(packet, PortNo::LOCAL.0);
        }
        bits = [0; WORDS];
        bits[shape::WORD] = shape::GTPU;
        self.consult(packet, &bits);
        let is_message = words[shape::WORD] & shape::GTPU != 0;
        self.branch(packet, |translation, copy| {
            match is_message {
                true => copy.enter(Layer::Inner, gtp),
                false => copy.enter(Layer::Outer, PortNo::LOCAL.0),
            }
            translation.walk(copy, cause.depth + 1);
        });
    }

    /// A packet for the GTP port: its frame comes back by LOCAL.
    fn encapsulate(&mut self, packet: &Packet, cause: Cause) {
        if packet.layer == Layer::Outer || packet.misaddressed {
            return self.drop(Dropped::Tunnel);
        }
        self.branch(packet, |translation, copy| {
            copy.enter(Layer::Outer, PortNo::LOCAL.0);
            translation.walk(copy, cause.depth + 1);
        });
    }

    fn punt(&mut self, packet: &Packet, max_len: MaxLen, cause: Cause) {
        self.consult_fields(packet, &CONTEXT);
        let Cause { reason, table, cookie, .. } = cause;
        // Nothing else, as another packet of this translation may have other fields there.
        let mut fields = [0; WORDS];
        CONTEXT.iter().for_each(|of| field::set(&mut fields, *of, field::get(packet.words(), *of)));
        let to = ToController { layer: packet.layer, reason, table, cookie, max_len, fields };
        self.nodes.push(Node::Step(Step::Controller(Box::new(to))));
    }

    fn group(&mut self, packet: &Packet, id: GroupId, cause: Cause) {
        if cause.depth >= MAX_DEPTH {
            return self.drop(Dropped::TooLong);
        }
        let pipeline = self.pipeline;
        let Some(group) = pipeline.groups.get(&id) else { return };
        let live_groups = &mut self.live_groups;
        let is_live = |(_, bucket): &(usize, &Bucket)| pipeline.is_bucket_live(bucket, live_groups);
        let mut buckets = group.buckets.iter().enumerate();
        let chosen: Vec<(usize, &Bucket)> = match group.kind {
            GroupType::FastFailover => buckets.find(is_live).into_iter().collect(),
            _ => buckets.collect(),
        };
        self.groups.push((Arc::clone(group), None));
        for (number, bucket) in chosen {
            self.groups.push((Arc::clone(group), Some(number)));
            let mut set = ActionSet::default();
            set.write(&bucket.actions);
            self.branch(packet, |translation, copy| {
                translation.execute(copy, &set, Cause { depth: cause.depth + 1, ..cause });
            });
        }
    }
}

/// What a controller is told about a packet beside its octets (§7.4.1).
pub const CONTEXT: [Field; 10] = [
    Field::InPort,
    Field::Metadata,
    Field::PacketType,
    Field::TunnelId,
    Field::TunIpv4Src,
    Field::TunIpv4Dst,
    Field::TunIpv6Src,
    Field::TunIpv6Dst,
    Field::TunGtpuFlags,
    Field::TunGtpuMsgtype,
];

/// The field of the frame that a field of the tunnel is, and the EtherType that the frame must have for it.
fn of_tunnel(field: Field) -> Option<(Field, Option<u16>)> {
    Some(match field {
        Field::TunnelId => (Field::TunnelId, None),
        Field::TunIpv4Src => (Field::Ipv4Src, Some(ethernet::IPV4)),
        Field::TunIpv4Dst => (Field::Ipv4Dst, Some(ethernet::IPV4)),
        Field::TunIpv6Src => (Field::Ipv6Src, Some(ethernet::IPV6)),
        Field::TunIpv6Dst => (Field::Ipv6Dst, Some(ethernet::IPV6)),
        _ => return None,
    })
}

fn ethertype(words: &Words) -> u16 {
    field::get(words, Field::EthType) as u16
}

fn is_ip(words: &Words) -> bool {
    [ethernet::IPV4, ethernet::IPV6].contains(&ethertype(words))
}

/// The fields that say whether a packet has this one.
fn needed_by(field: Field) -> &'static [Field] {
    match field {
        Field::EthDst | Field::EthSrc => &[],
        Field::TcpSrc
        | Field::TcpDst
        | Field::UdpSrc
        | Field::UdpDst
        | Field::Icmpv4Type
        | Field::Icmpv4Code
        | Field::Icmpv6Type
        | Field::Icmpv6Code => &[Field::EthType, Field::IpProto],
        _ => &[Field::EthType],
    }
}

/// Whether the packet has the field.
fn has(packet: &Packet, of: Field) -> bool {
    let words = packet.words();
    let (ethertype, proto) = (ethertype(words), field::get(words, Field::IpProto) as u8);
    match of {
        Field::EthDst | Field::EthSrc => packet.layer == Layer::Outer,
        Field::Ipv4Src | Field::Ipv4Dst => ethertype == ethernet::IPV4,
        Field::Ipv6Src | Field::Ipv6Dst | Field::Ipv6Flabel => ethertype == ethernet::IPV6,
        Field::IpDscp | Field::IpEcn => is_ip(words),
        Field::TcpSrc | Field::TcpDst => is_ip(words) && proto == protocol::TCP,
        Field::UdpSrc | Field::UdpDst => is_ip(words) && proto == protocol::UDP,
        Field::Icmpv4Type | Field::Icmpv4Code => ethertype == ethernet::IPV4 && proto == protocol::ICMP,
        Field::Icmpv6Type | Field::Icmpv6Code => ethertype == ethernet::IPV6 && proto == protocol::ICMPV6,
        Field::ArpOp | Field::ArpSpa | Field::ArpTpa | Field::ArpSha | Field::ArpTha => {
            ethertype == ethernet::ARP
        }
        _ => false,
    }
}

/// Appends the steps of `nodes`, with marks where a copy is needed; returns whether any of them sends something.
///
/// A branch behind which nothing is sent needs no copy, and steps behind the last output have no effect.
fn flatten(nodes: Vec<Node>, steps: &mut Vec<Step>) -> bool {
    let sends = |node: &Node| match node {
        Node::Step(step) => step.sends(),
        Node::Branch(nodes) => sends_any(nodes),
    };
    let Some(last) = nodes.iter().rposition(sends) else { return false };
    for (at, node) in nodes.into_iter().enumerate().take(last + 1) {
        match node {
            Node::Step(step) => steps.push(step),
            Node::Branch(nodes) if at == last => drop(flatten(nodes, steps)),
            Node::Branch(nodes) => {
                let mark = steps.len();
                steps.push(Step::Branch(0));
                if flatten(nodes, steps) {
                    steps[mark] = Step::Branch(steps.len() - mark - 1);
                } else {
                    steps.pop();
                }
            }
        }
    }
    true
}

fn sends_any(nodes: &[Node]) -> bool {
    nodes.iter().any(|node| match node {
        Node::Step(step) => step.sends(),
        Node::Branch(nodes) => sends_any(nodes),
    })
}
