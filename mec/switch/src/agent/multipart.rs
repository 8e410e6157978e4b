//! What controllers can ask for (OpenFlow 1.3.5 §7.3.5).

use net::time::now_ns;
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
use crate::pipeline::flow::Flow;

/// Types of instructions that entries can have (§7.2.4): goto, metadata, write-, apply- and clear-actions.
const INSTRUCTIONS: [u16; 5] = [1, 2, 3, 4, 5];
/// Types of actions (§7.2.5): output, group, TTL, set-field.
const ACTIONS: [u16; 4] = [0, 22, 24, 25];

/// The answer.
pub fn answer(switch: &Switch, request: Multipart<Request>) -> Result<Reply, Code> {
    if request.more {
        return Err(Code::OFPBRC_MULTIPART_BUFFER_OVERFLOW);
    }
    Ok(match request.body {
        Request::Desc(()) => Reply::Desc(Box::new(describe(switch))),
        Request::Flow(request) => {
            switch.settle();
            let pipeline = switch.pipeline();
            let now_ns = now_ns();
            let mut flows: Vec<_> = selected(&pipeline, &request)?.collect();
            flows.sort_by_key(|flow| (flow.table, std::cmp::Reverse(flow.priority), flow.since_ns));
            Reply::Flow(flows.into_iter().map(|flow| flow_stats(flow, now_ns)).collect())
        }
        Request::Aggregate(request) => {
            switch.settle();
            let pipeline = switch.pipeline();
            let mut sum = AggregateStats { packet_count: 0, byte_count: 0, flow_count: 0 };
            for flow in selected(&pipeline, &request)? {
                let (packets, bytes) = flow.counters.get();
                sum.packet_count += packets;
                sum.byte_count += bytes;
                sum.flow_count += 1;
            }
            Reply::Aggregate(sum)
        }
        Request::Table(()) => {
            switch.settle();
            let pipeline = switch.pipeline();
            let tables = pipeline.tables().iter().zip(0u8..).map(|(table, number)| {
                let (lookup_count, matched_count) = table.counts();
                let active_count = table.len() as u32;
                TableStats { table_id: TableId(number), active_count, lookup_count, matched_count }
            });
            Reply::Table(tables.collect())
        }
        Request::PortStats(Of(wanted)) => port_stats(switch, wanted)?,
        Request::GroupStats(Of(wanted)) => {
            switch.settle();
            let pipeline = switch.pipeline();
            if wanted != GroupId::ALL && !pipeline.groups().contains_key(&wanted) {
                return Err(Code::OFPGMFC_UNKNOWN_GROUP);
            }
            Reply::GroupStats(group_stats(&pipeline, wanted))
        }
        Request::GroupDesc(()) => {
            let pipeline = switch.pipeline();
            let groups = pipeline.groups().values().map(|group| GroupDesc {
                group_type: group.kind,
                group_id: group.id,
                buckets: group.buckets.clone(),
            });
            Reply::GroupDesc(groups.collect())
        }
        Request::GroupFeatures(()) => Reply::GroupFeatures(group_features(&switch.pipeline())),
        Request::TableFeatures(wanted) if wanted.is_empty() => {
            let pipeline = switch.pipeline();
            Reply::TableFeatures(
                (0..pipeline.limits().tables).map(|table| table_features(&pipeline, table)).collect(),
            )
        }
        // Tables are what they are.
        Request::TableFeatures(_) => return Err(Code::OFPTFFC_EPERM),
        Request::PortDesc(()) => Reply::PortDesc(switch.port_descriptions()),
    })
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

/// The entries that a request for statistics is about (§7.3.5.2).
fn selected<'p>(
    pipeline: &'p Pipeline,
    request: &FlowStatsRequest,
) -> Result<impl Iterator<Item = &'p Flow>, Code> {
    let tables = pipeline.tables();
    if request.table_id != TableId::ALL && usize::from(request.table_id.0) >= tables.len() {
        return Err(Code::OFPBRC_BAD_TABLE_ID);
    }
    let pattern = Pattern::new(&request.matching)?;
    let mut found: Vec<&Flow> = Vec::new();
    for (table, number) in tables.iter().zip(0u8..) {
        if [number, TableId::ALL.0].contains(&request.table_id.0) {
            found.extend(table.within(&pattern).map(AsRef::as_ref));
        }
    }
    let has_cookie = |flow: &Flow| (flow.cookie ^ request.cookie) & request.cookie_mask == 0;
    found.retain(|flow| has_cookie(flow) && flow.has_output(request.out_port, request.out_group));
    Ok(found.into_iter())
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

fn port_stats(switch: &Switch, wanted: PortNo) -> Result<Reply, Code> {
    switch.settle();
    let ports = switch.ports().iter().filter(|port| [port.number, PortNo::ANY.0].contains(&wanted.0));
    let stats: Vec<_> = ports.map(|port| switch.port_stats(port)).collect();
    // The GTP port is a view and has no counters of its own.
    let is_gtp = switch.pipeline().ports().gtp == Some(wanted.0);
    if stats.is_empty() && wanted != PortNo::ANY && !is_gtp {
        return Err(Code::OFPBRC_BAD_PORT);
    }
    Ok(Reply::PortStats(stats))
}

fn group_stats(pipeline: &Pipeline, wanted: GroupId) -> Vec<GroupStats> {
    let groups = pipeline.groups().values().filter(|group| [group.id, GroupId::ALL].contains(&wanted));
    let of_group = |group: &std::sync::Arc<crate::pipeline::flow::Group>| {
        let flows = pipeline.tables().iter().flat_map(|table| table.flows());
        let uses =
            |action: &openflow::Action| matches!(action, openflow::Action::Group(id) if *id == group.id);
        let by_flows = flows.filter(|flow| flow.actions().any(uses)).count();
        let by_groups =
            pipeline.groups().values().filter(|other| other.uses().any(|id| id == group.id)).count();
        let (packet_count, byte_count) = group.counters.get();
        let buckets = group.bucket_counters.iter().map(|counters| {
            let (packet_count, byte_count) = counters.get();
            BucketCounter { packet_count, byte_count }
        });
        GroupStats {
            group_id: group.id,
            ref_count: (by_flows + by_groups) as u32,
            packet_count,
            byte_count,
            duration: duration(now_ns().saturating_sub(group.since_ns)),
            buckets: buckets.collect(),
        }
    };
    groups.map(of_group).collect()
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
