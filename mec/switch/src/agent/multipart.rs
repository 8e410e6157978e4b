//! What controllers can ask for (OpenFlow 1.3.5 §7.3.5).

use std::sync::Arc;

use net::time::now_ns;
use openflow::action::{instruction, kind};
use openflow::multipart::Of;
use openflow::{
    AggregateStats, BucketCounter, Code, Desc, FeatureList, Field, FlowStats, FlowStatsRequest,
    GroupCapabilities, GroupDesc, GroupFeatures, GroupId, GroupStats, Multipart, PortNo, Reply, Request,
    TableConfig, TableFeatures, TableId, TableProperty, TableStats, Text, TypeId,
};

use openflow::oxm::OxmId;

use crate::core::{Switch, duration};
use crate::pipeline::Pipeline;
use crate::pipeline::field::{self, Pattern};
use crate::pipeline::flow::{Flow, Group};
use crate::pipeline::table::Table;

/// Instructions that entries can have. The last table leads to no other one, so goto is the first.
const INSTRUCTIONS: [u16; 5] = [
    instruction::GOTO_TABLE,
    instruction::WRITE_METADATA,
    instruction::WRITE_ACTIONS,
    instruction::APPLY_ACTIONS,
    instruction::CLEAR_ACTIONS,
];
/// Actions that entries and buckets can have.
const ACTIONS: [u16; 5] = [kind::OUTPUT, kind::SET_QUEUE, kind::GROUP, kind::DEC_NW_TTL, kind::SET_FIELD];

/// Entries that are looked at while the pipeline's lock is held, and of them those that are described.
const SLICE: usize = 1024;
const DESCRIBED: usize = 512;
/// Groups and tables that are described at once: long ones fill a message each, short ones are few.
const ITEMS: usize = 16;

/// An answer that is made part by part, as fast as the controller takes it: it holds the pipeline's lock for a slice of the
/// entries at a time, and no entries.
///
/// Entries and groups that are there from the request to the last part are in it once, as they were when their part was made.
/// Of those that are installed or removed meanwhile, it has some. It ends whatever is installed: entries that are younger than
/// the request are not in it.
pub enum Answer {
    /// One of a single part.
    Whole(Reply),
    /// Entries.
    Flows(Flows),
    /// Sums over entries.
    Aggregate(Flows, AggregateStats),
    /// Counters of a group, or of all; the next one.
    GroupStats(GroupId, u32),
    /// Descriptions of groups; the next one.
    GroupDesc(u32),
    /// What tables can do; the next one.
    TableFeatures(u8),
}

impl Answer {
    /// Begins to answer.
    ///
    /// # Errors
    /// That of the standard, for a request that cannot be served.
    pub fn new(switch: &Switch, request: Request) -> Result<Answer, Code> {
        // Statistics have all that was treated before the request.
        if let Request::Flow(_) | Request::Aggregate(_) | Request::Table(()) | Request::GroupStats(_) =
            request
        {
            switch.settle_statistics();
        }
        Ok(match request {
            Request::Desc(()) => Answer::Whole(Reply::Desc(Box::new(describe(switch)))),
            Request::Flow(request) => Answer::Flows(Flows::new(&switch.pipeline(), request)?),
            Request::Aggregate(request) => {
                let sum = AggregateStats { packet_count: 0, byte_count: 0, flow_count: 0 };
                Answer::Aggregate(Flows::new(&switch.pipeline(), request)?, sum)
            }
            Request::Table(()) => Answer::Whole(Reply::Table(table_stats(&switch.pipeline()))),
            Request::PortStats(Of(wanted)) => Answer::Whole(port_stats(switch, wanted)?),
            Request::GroupStats(Of(GroupId::ALL)) => Answer::GroupStats(GroupId::ALL, 0),
            Request::GroupStats(Of(wanted)) if switch.pipeline().groups().contains_key(&wanted) => {
                Answer::GroupStats(wanted, wanted.0)
            }
            Request::GroupStats(_) => return Err(Code::OFPGMFC_UNKNOWN_GROUP),
            Request::GroupDesc(()) => Answer::GroupDesc(0),
            Request::GroupFeatures(()) => {
                Answer::Whole(Reply::GroupFeatures(group_features(&switch.pipeline())))
            }
            Request::TableFeatures(wanted) if wanted.is_empty() => Answer::TableFeatures(0),
            // Tables are what they are.
            Request::TableFeatures(_) => return Err(Code::OFPTFFC_EPERM),
            Request::PortDesc(()) => Answer::Whole(Reply::PortDesc(switch.port_descriptions())),
        })
    }

    /// Looks at the next slice, and makes a part of what it has. `None`: it has nothing, and more slices follow.
    pub fn next_part(&mut self, switch: &Switch) -> Option<Multipart<Reply>> {
        match self {
            Answer::Whole(reply) => Some(Multipart { more: false, body: reply.clone() }),
            Answer::Flows(flows) => {
                let found = flows.slice(&switch.pipeline());
                if found.is_empty() && !flows.is_over {
                    return None;
                }
                let now_ns = now_ns();
                let mut body = Reply::Flow(found.iter().map(|flow| flow_stats(flow, now_ns)).collect());
                let fitting = body.shorten();
                if fitting < found.len() {
                    flows.go_on_behind(&found[fitting - 1]);
                }
                Some(Multipart { more: !flows.is_over, body })
            }
            Answer::Aggregate(flows, sum) => {
                for flow in flows.slice(&switch.pipeline()) {
                    let (packets, bytes) = flow.counters.get();
                    sum.packet_count = sum.packet_count.wrapping_add(packets);
                    sum.byte_count = sum.byte_count.wrapping_add(bytes);
                    sum.flow_count += 1;
                }
                flows.is_over.then(|| Multipart { more: false, body: Reply::Aggregate(sum.clone()) })
            }
            Answer::GroupStats(wanted, next) => {
                let pipeline = switch.pipeline();
                let groups = groups(&pipeline, *wanted, *next);
                let stats = groups.iter().map(|group| group_stats(group, pipeline.users(group.id)));
                Some(part_of(Reply::GroupStats(stats.collect()), groups.iter().map(|group| group.id.0), next))
            }
            Answer::GroupDesc(next) => {
                let groups = groups(&switch.pipeline(), GroupId::ALL, *next);
                let described = groups.iter().map(|group| GroupDesc {
                    group_type: group.kind,
                    group_id: group.id,
                    buckets: group.buckets.clone(),
                });
                Some(part_of(
                    Reply::GroupDesc(described.collect()),
                    groups.iter().map(|group| group.id.0),
                    next,
                ))
            }
            Answer::TableFeatures(next) => {
                let pipeline = switch.pipeline();
                let tables = (*next..pipeline.limits().tables).take(ITEMS);
                let features = tables.clone().map(|table| table_features(&pipeline, table)).collect();
                Some(part_of(Reply::TableFeatures(features), tables, next))
            }
        }
    }
}

/// The beginning of `body` that fits into a message. Its items have these numbers, and fewer than [`ITEMS`] are the last ones.
fn part_of<N: Copy + From<u8> + std::ops::Add<Output = N>>(
    mut body: Reply,
    numbers: impl ExactSizeIterator<Item = N>,
    next: &mut N,
) -> Multipart<Reply> {
    let count = numbers.len();
    let fitting = body.shorten();
    if let Some(last) = numbers.take(fitting).last() {
        *next = last + N::from(1);
    }
    Multipart { more: fitting < count || count == ITEMS, body }
}

/// The groups that were asked for, from this number on.
fn groups(pipeline: &Pipeline, wanted: GroupId, next: u32) -> Vec<Arc<Group>> {
    let last = if wanted == GroupId::ALL { GroupId::MAX } else { wanted };
    let from_next = pipeline.groups().range(GroupId(next)..).take_while(|(id, _)| **id <= last);
    from_next.map(|(_, group)| Arc::clone(group)).take(ITEMS).collect()
}

/// A walk through the entries that a request for statistics is about (§7.3.5.2), by tables and in the order in which they came.
pub struct Flows {
    request: FlowStatsRequest,
    pattern: Pattern,
    /// The last entry that was there at the request.
    newest: u64,
    /// The last table.
    last: u8,
    /// The table that is looked at, and the number of the entry behind which the next slice begins.
    table: u8,
    number: u64,
    is_over: bool,
}

impl Flows {
    fn new(pipeline: &Pipeline, request: FlowStatsRequest) -> Result<Flows, Code> {
        let tables = pipeline.limits().tables;
        let (table, last) = match request.table_id {
            TableId::ALL => (0, tables - 1),
            TableId(table) if table < tables => (table, table),
            _ => return Err(Code::OFPBRC_BAD_TABLE_ID),
        };
        let pattern = Pattern::new(&request.matching)?;
        Ok(Flows { request, pattern, newest: pipeline.newest(), last, table, number: 0, is_over: false })
    }

    /// The next entries that are meant.
    fn slice(&mut self, pipeline: &Pipeline) -> Vec<Arc<Flow>> {
        let (mut found, mut seen) = (Vec::new(), 0);
        loop {
            let flows = pipeline.tables()[usize::from(self.table)].flows_after(self.number);
            for flow in flows.take_while(|flow| flow.number <= self.newest) {
                if seen == SLICE || found.len() == DESCRIBED {
                    return found;
                }
                seen += 1;
                self.number = flow.number;
                if self.is_meant(flow) {
                    found.push(Arc::clone(flow));
                }
            }
            if self.table == self.last {
                self.is_over = true;
                return found;
            }
            (self.table, self.number) = (self.table + 1, 0);
        }
    }

    fn is_meant(&self, flow: &Flow) -> bool {
        let FlowStatsRequest { cookie, cookie_mask, out_port, out_group, .. } = self.request;
        (flow.cookie ^ cookie) & cookie_mask == 0
            && self.pattern.includes(&flow.pattern)
            && flow.has_output(out_port, out_group)
    }

    /// The next slice begins behind an entry of the last one.
    fn go_on_behind(&mut self, flow: &Flow) {
        (self.table, self.number, self.is_over) = (flow.table.0, flow.number, false);
    }
}

fn describe(switch: &Switch) -> Desc {
    Desc {
        manufacturer: Text::new("Godwit"),
        hardware: Text::new("Godwit"),
        software: Text::new(env!("CARGO_PKG_VERSION")),
        serial_number: Text::new("None"),
        datapath: Text::new(&switch.identity().description),
    }
}

fn flow_stats(flow: &Flow, now_ns: u64) -> FlowStats {
    let (packet_count, byte_count) = flow.counters.get();
    FlowStats {
        table_id: flow.table,
        duration: duration(now_ns.saturating_sub(flow.since_ns)),
        priority: flow.priority,
        idle_timeout_s: flow.idle_timeout_s,
        hard_timeout_s: flow.hard_timeout_s,
        flags: flow.flags,
        cookie: flow.cookie,
        packet_count,
        byte_count,
        matching: flow.matching.clone(),
        instructions: flow.instructions.clone(),
    }
}

fn table_stats(pipeline: &Pipeline) -> Vec<TableStats> {
    let of = |(table, number): (&Table, u8)| {
        let (lookup_count, matched_count) = table.counts();
        let active_count = table.len() as u32;
        TableStats { table_id: TableId(number), active_count, lookup_count, matched_count }
    };
    pipeline.tables().iter().zip(0..).map(of).collect()
}

fn port_stats(switch: &Switch, wanted: PortNo) -> Result<Reply, Code> {
    switch.settle_statistics();
    let ports = switch.ports().iter().filter(|port| [port.number, PortNo::ANY.0].contains(&wanted.0));
    let stats: Vec<_> = ports.map(|port| switch.port_stats(port)).collect();
    // The GTP port is a view and has no counters of its own.
    let is_gtp = switch.pipeline().ports().gtp == Some(wanted.0);
    if stats.is_empty() && wanted != PortNo::ANY && !is_gtp {
        return Err(Code::OFPBRC_BAD_PORT);
    }
    Ok(Reply::PortStats(stats))
}

fn group_stats(group: &Group, ref_count: u32) -> GroupStats {
    let (packet_count, byte_count) = group.counters.get();
    let buckets = group.bucket_counters.iter().map(|counters| {
        let (packet_count, byte_count) = counters.get();
        BucketCounter { packet_count, byte_count }
    });
    GroupStats {
        group_id: group.id,
        ref_count,
        packet_count,
        byte_count,
        duration: duration(now_ns().saturating_sub(group.since_ns)),
        buckets: buckets.collect(),
    }
}

fn group_features(pipeline: &Pipeline) -> GroupFeatures {
    let most = pipeline.limits().groups as u32;
    let actions = ACTIONS.iter().fold(0, |bits, kind| bits | 1u32 << kind);
    GroupFeatures {
        // All, indirect, fast failover.
        types: 0b1101,
        capabilities: GroupCapabilities::CHAINING | GroupCapabilities::CHAINING_CHECKS,
        max_groups: [most, 0, most, most],
        actions: [actions, 0, actions, actions],
    }
}

fn table_features(pipeline: &Pipeline, table: u8) -> TableFeatures {
    let limits = pipeline.limits();
    let types = |kinds: &[u16]| {
        kinds.iter().map(|kind| TypeId { kind: *kind, experimenter: None }).collect::<Vec<_>>()
    };
    let fields = || Field::ALL.iter().copied().filter(|field| field::is_known(*field));
    let wildcards = || fields().map(Field::id).collect();
    let settable = || fields().filter(|field| field::can_be_set(*field)).map(Field::id).collect();
    // With a mask the value is there twice.
    let matched = fields().map(|field| {
        let (id, octets) = (field.id(), field.all_bits().count_ones().div_ceil(8));
        OxmId { header: if field.is_maskable() { (id.header | 0x100) + octets } else { id.header }, ..id }
    });
    let later = table + 1..limits.tables;
    let lists = [
        FeatureList::Instructions(types(if later.is_empty() { &INSTRUCTIONS[1..] } else { &INSTRUCTIONS })),
        FeatureList::NextTables(later.map(TableId).collect()),
        FeatureList::WriteActions(types(&ACTIONS)),
        FeatureList::ApplyActions(types(&ACTIONS)),
        FeatureList::Match(matched.collect()),
        FeatureList::Wildcards(wildcards()),
        FeatureList::WriteSetField(settable()),
        FeatureList::ApplySetField(settable()),
    ];
    TableFeatures {
        table_id: TableId(table),
        name: Text::new(["classification", "tunnels", "forwarding"].get(usize::from(table)).unwrap_or(&"")),
        metadata_match: u64::MAX,
        metadata_write: u64::MAX,
        config: TableConfig::default(),
        max_entries: limits.entries as u32,
        properties: lists.into_iter().map(|list| TableProperty { is_miss: false, list }).collect(),
    }
}
