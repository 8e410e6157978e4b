//! Our messages as os-ken's JSON: objects by the name of os-ken's class, with its names of fields. Lengths are left out.

use std::net::{Ipv4Addr, Ipv6Addr};

use openflow::oxm::OxmId;
use openflow::*;
use serde_json::{Value, json};

pub fn message(message: &Message) -> Value {
    match message {
        Message::Hello(hello) => {
            let bitmap = hello.bitmap.unwrap_or_default();
            let versions: Vec<u32> = (0..32).filter(|version| bitmap & (1 << version) != 0).collect();
            let element = json!({"OFPHelloElemVersionBitmap": {"type": 1, "versions": versions}});
            json!({"OFPHello": {"elements": if hello.bitmap.is_some() { vec![element] } else { Vec::new() }}})
        }
        Message::Error(error) => self::error(error),
        Message::EchoRequest(data) => json!({"OFPEchoRequest": {"data": hex(data)}}),
        Message::EchoReply(data) => json!({"OFPEchoReply": {"data": hex(data)}}),
        Message::FeaturesRequest(()) => json!({"OFPFeaturesRequest": {}}),
        Message::FeaturesReply(it) => json!({"OFPSwitchFeatures": {
            "datapath_id": it.datapath_id, "n_buffers": it.n_buffers, "n_tables": it.n_tables,
            "auxiliary_id": it.auxiliary_id, "capabilities": it.capabilities.0,
        }}),
        Message::GetConfigRequest(()) => json!({"OFPGetConfigRequest": {}}),
        Message::GetConfigReply(it) => json!({"OFPGetConfigReply": config(it)}),
        Message::SetConfig(it) => json!({"OFPSetConfig": config(it)}),
        Message::PacketIn(it) => json!({"OFPPacketIn": {
            "buffer_id": it.buffer_id.0, "total_len": it.total_len, "reason": it.reason as u8,
            "table_id": it.table_id.0, "cookie": it.cookie, "match": matching(&it.matching), "data": hex(&it.data),
        }}),
        Message::FlowRemoved(it) => json!({"OFPFlowRemoved": {
            "cookie": it.cookie, "priority": it.priority, "reason": it.reason as u8, "table_id": it.table_id.0,
            "duration_sec": it.duration.seconds, "duration_nsec": it.duration.nanoseconds,
            "idle_timeout": it.idle_timeout_s, "hard_timeout": it.hard_timeout_s,
            "packet_count": it.packet_count, "byte_count": it.byte_count, "match": matching(&it.matching),
        }}),
        Message::PortStatus(it) => {
            json!({"OFPPortStatus": {"reason": it.reason as u8, "desc": port(&it.port)}})
        }
        Message::PacketOut(it) => packet_out(it),
        Message::FlowMod(it) => flow_mod(it),
        Message::GroupMod(it) => group_mod(it),
        Message::MultipartRequest(it) => request(it),
        Message::MultipartReply(it) => reply(it),
        Message::BarrierRequest(()) => json!({"OFPBarrierRequest": {}}),
        Message::BarrierReply(()) => json!({"OFPBarrierReply": {}}),
        Message::RoleRequest(it) => json!({"OFPRoleRequest": role(it)}),
        Message::RoleReply(it) => json!({"OFPRoleReply": role(it)}),
        Message::GetAsyncRequest(()) => json!({"OFPGetAsyncRequest": {}}),
        Message::GetAsyncReply(it) => json!({"OFPGetAsyncReply": events(it)}),
        Message::SetAsync(it) => json!({"OFPSetAsync": events(it)}),
        Message::BundleControl(it) => json!({"ONFBundleCtrlMsg": {
            "bundle_id": it.bundle_id, "type": it.kind as u16, "flags": it.flags.0, "properties": [],
        }}),
        Message::BundleAdd(it) => {
            let change = match &it.change {
                Change::FlowMod(flow) => flow_mod(flow),
                Change::GroupMod(group) => group_mod(group),
                Change::PacketOut(packet) => packet_out(packet),
            };
            json!({"ONFBundleAddMsg": {"bundle_id": it.bundle_id, "flags": it.flags.0, "message": change}})
        }
    }
}

fn packet_out(it: &PacketOut) -> Value {
    json!({"OFPPacketOut": {
        "buffer_id": it.buffer_id.0, "in_port": it.in_port.0, "actions": actions(&it.actions), "data": hex(&it.data),
    }})
}

pub fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn error(error: &ErrorMessage) -> Value {
    let (kind, code) = error.code.numbers();
    let mut fields = json!({"type": kind, "data": hex(&error.data)});
    if kind == 0xffff {
        fields["exp_type"] = code.into();
        fields["experimenter"] = EXPERIMENTER_ONF.into();
    } else {
        fields["code"] = code.into();
    }
    json!({"OFPErrorMsg": fields})
}

fn config(config: &Config) -> Value {
    json!({"flags": config.fragments as u16, "miss_send_len": config.miss_send_len})
}

fn role(role: &RoleRequest) -> Value {
    json!({"role": role.role as u32, "generation_id": role.generation_id})
}

fn events(events: &AsyncConfig) -> Value {
    json!({
        "packet_in_mask": events.packet_in, "port_status_mask": events.port_status,
        "flow_removed_mask": events.flow_removed,
    })
}

fn port(port: &Port) -> Value {
    json!({"OFPPort": {
        "port_no": port.port_no.0, "hw_addr": mac(port.hw_addr), "name": port.name.as_str(),
        "config": port.config.0, "state": port.state.0, "curr": port.current, "advertised": port.advertised,
        "supported": port.supported, "peer": port.peer, "curr_speed": port.current_speed_kbps,
        "max_speed": port.max_speed_kbps,
    }})
}

fn flow_mod(it: &FlowMod) -> Value {
    json!({"OFPFlowMod": {
        "cookie": it.cookie, "cookie_mask": it.cookie_mask, "table_id": it.table_id.0, "command": it.command as u8,
        "idle_timeout": it.idle_timeout_s, "hard_timeout": it.hard_timeout_s, "priority": it.priority,
        "buffer_id": it.buffer_id.0, "out_port": it.out_port.0, "out_group": it.out_group.0, "flags": it.flags.0,
        "match": matching(&it.matching), "instructions": instructions(&it.instructions),
    }})
}

fn group_mod(it: &GroupMod) -> Value {
    json!({"OFPGroupMod": {
        "command": it.command as u16, "type": it.group_type as u8, "group_id": it.group_id.0,
        "buckets": buckets(&it.buckets),
    }})
}

fn buckets(buckets: &[Bucket]) -> Vec<Value> {
    let bucket = |it: &Bucket| {
        json!({"OFPBucket": {
            "weight": it.weight.0, "watch_port": it.watch_port.0, "watch_group": it.watch_group.0,
            "actions": actions(&it.actions),
        }})
    };
    buckets.iter().map(bucket).collect()
}

fn request(request: &Multipart<Request>) -> Value {
    let flags = u16::from(request.more);
    let flows = |it: &FlowStatsRequest| {
        json!({
            "flags": flags, "table_id": it.table_id.0, "out_port": it.out_port.0, "out_group": it.out_group.0,
            "cookie": it.cookie, "cookie_mask": it.cookie_mask, "match": matching(&it.matching),
        })
    };
    match &request.body {
        Request::Desc(()) => json!({"OFPDescStatsRequest": {"flags": flags}}),
        Request::Flow(it) => json!({"OFPFlowStatsRequest": flows(it)}),
        Request::Aggregate(it) => json!({"OFPAggregateStatsRequest": flows(it)}),
        Request::Table(()) => json!({"OFPTableStatsRequest": {"flags": flags}}),
        Request::PortStats(port) => json!({"OFPPortStatsRequest": {"flags": flags, "port_no": port.0.0}}),
        Request::GroupStats(group) => {
            json!({"OFPGroupStatsRequest": {"flags": flags, "group_id": group.0.0}})
        }
        Request::GroupDesc(()) => json!({"OFPGroupDescStatsRequest": {"flags": flags}}),
        Request::GroupFeatures(()) => json!({"OFPGroupFeaturesStatsRequest": {"flags": flags}}),
        Request::TableFeatures(list) => {
            json!({"OFPTableFeaturesStatsRequest": {"flags": flags, "body": table_features(list)}})
        }
        Request::PortDesc(()) => json!({"OFPPortDescStatsRequest": {"flags": flags}}),
    }
}

fn reply(reply: &Multipart<Reply>) -> Value {
    let of = |name: &str, body: Value| json!({name: {"flags": u16::from(reply.more), "body": body}});
    match &reply.body {
        Reply::Desc(it) => of(
            "OFPDescStatsReply",
            json!({"OFPDescStats": {
                "mfr_desc": it.manufacturer.as_str(), "hw_desc": it.hardware.as_str(), "sw_desc": it.software.as_str(),
                "serial_num": it.serial_number.as_str(), "dp_desc": it.datapath.as_str(),
            }}),
        ),
        Reply::Flow(list) => of("OFPFlowStatsReply", list.iter().map(flow_stats).collect()),
        Reply::Aggregate(it) => of(
            "OFPAggregateStatsReply",
            json!({"OFPAggregateStats": {
                "packet_count": it.packet_count, "byte_count": it.byte_count, "flow_count": it.flow_count,
            }}),
        ),
        Reply::Table(list) => of("OFPTableStatsReply", list.iter().map(table_stats).collect()),
        Reply::PortStats(list) => of("OFPPortStatsReply", list.iter().map(port_stats).collect()),
        Reply::GroupStats(list) => of("OFPGroupStatsReply", list.iter().map(group_stats).collect()),
        Reply::GroupDesc(list) => of("OFPGroupDescStatsReply", list.iter().map(group_desc).collect()),
        Reply::GroupFeatures(it) => of(
            "OFPGroupFeaturesStatsReply",
            json!({"OFPGroupFeaturesStats": {
                "types": it.types, "capabilities": it.capabilities.0, "max_groups": it.max_groups, "actions": it.actions,
            }}),
        ),
        Reply::TableFeatures(list) => of("OFPTableFeaturesStatsReply", table_features(list).into()),
        Reply::PortDesc(list) => of("OFPPortDescStatsReply", list.iter().map(port).collect()),
    }
}

fn flow_stats(it: &FlowStats) -> Value {
    json!({"OFPFlowStats": {
        "table_id": it.table_id.0, "duration_sec": it.duration.seconds, "duration_nsec": it.duration.nanoseconds,
        "priority": it.priority, "idle_timeout": it.idle_timeout_s, "hard_timeout": it.hard_timeout_s,
        "flags": it.flags.0, "cookie": it.cookie, "packet_count": it.packet_count, "byte_count": it.byte_count,
        "match": matching(&it.matching), "instructions": instructions(&it.instructions),
    }})
}

fn table_stats(it: &TableStats) -> Value {
    json!({"OFPTableStats": {
        "table_id": it.table_id.0, "active_count": it.active_count, "lookup_count": it.lookup_count,
        "matched_count": it.matched_count,
    }})
}

fn port_stats(it: &PortStats) -> Value {
    json!({"OFPPortStats": {
        "port_no": it.port_no.0, "rx_packets": it.rx_packets, "tx_packets": it.tx_packets, "rx_bytes": it.rx_bytes,
        "tx_bytes": it.tx_bytes, "rx_dropped": it.rx_dropped, "tx_dropped": it.tx_dropped, "rx_errors": it.rx_errors,
        "tx_errors": it.tx_errors, "rx_frame_err": it.rx_frame_err, "rx_over_err": it.rx_over_err,
        "rx_crc_err": it.rx_crc_err, "collisions": it.collisions, "duration_sec": it.duration.seconds,
        "duration_nsec": it.duration.nanoseconds,
    }})
}

fn group_stats(it: &GroupStats) -> Value {
    let counter = |it: &BucketCounter| json!({"OFPBucketCounter": {"packet_count": it.packet_count, "byte_count": it.byte_count}});
    json!({"OFPGroupStats": {
        "group_id": it.group_id.0, "ref_count": it.ref_count, "packet_count": it.packet_count,
        "byte_count": it.byte_count, "duration_sec": it.duration.seconds, "duration_nsec": it.duration.nanoseconds,
        "bucket_stats": it.buckets.iter().map(counter).collect::<Vec<_>>(),
    }})
}

fn group_desc(it: &GroupDesc) -> Value {
    json!({"OFPGroupDescStats": {
        "type": it.group_type as u8, "group_id": it.group_id.0, "buckets": buckets(&it.buckets),
    }})
}

fn table_features(list: &[TableFeatures]) -> Vec<Value> {
    let table = |it: &TableFeatures| {
        json!({"OFPTableFeaturesStats": {
            "table_id": it.table_id.0, "name": it.name.as_str(), "metadata_match": it.metadata_match,
            "metadata_write": it.metadata_write, "config": it.config.0, "max_entries": it.max_entries,
            "properties": it.properties.iter().map(property).collect::<Vec<_>>(),
        }})
    };
    list.iter().map(table).collect()
}

fn property(property: &TableProperty) -> Value {
    let of = |kind: u16, class: &str, ids: &str, list: Vec<Value>| json!({class: {"type": kind + u16::from(property.is_miss), ids: list}});
    let types = |class: &str, list: &[TypeId]| {
        list.iter().map(|id| json!({class: {"type": id.kind}})).collect::<Vec<_>>()
    };
    let actions =
        |kind, list| of(kind, "OFPTableFeaturePropActions", "action_ids", types("OFPActionId", list));
    let oxms = |kind, list: &[OxmId]| {
        of(kind, "OFPTableFeaturePropOxm", "oxm_ids", list.iter().map(oxm_id).collect())
    };
    match &property.list {
        FeatureList::Instructions(list) => {
            let ids = types("OFPInstructionId", list);
            of(0, "OFPTableFeaturePropInstructions", "instruction_ids", ids)
        }
        FeatureList::NextTables(list) => {
            let ids = list.iter().map(|table| table.0.into()).collect();
            of(2, "OFPTableFeaturePropNextTables", "table_ids", ids)
        }
        FeatureList::WriteActions(list) => actions(4, list),
        FeatureList::ApplyActions(list) => actions(6, list),
        FeatureList::Match(list) => oxms(8, list),
        FeatureList::Wildcards(list) => oxms(10, list),
        FeatureList::WriteSetField(list) => oxms(12, list),
        FeatureList::ApplySetField(list) => oxms(14, list),
    }
}

fn oxm_id(id: &OxmId) -> Value {
    let has_mask = id.header & 0x100 != 0;
    match id.experimenter {
        // It looks for their names among those of the standard's fields.
        Some(experimenter) => json!({"OFPExperimenterOxmId": {"exp_id": experimenter, "hasmask": has_mask}}),
        None => json!({"OFPOxmId": {"type": id.field().map(Field::name), "hasmask": has_mask}}),
    }
}

fn matching(matching: &Match) -> Value {
    let fields: Vec<Value> = matching.iter().map(oxm).collect();
    json!({"OFPMatch": {"type": 1, "oxm_fields": fields}})
}

fn oxm(oxm: Oxm) -> Value {
    let value = |bits: u128| -> Value {
        match oxm.field() {
            Field::TunIpv4Src
            | Field::TunIpv4Dst
            | Field::Ipv4Src
            | Field::Ipv4Dst
            | Field::ArpSpa
            | Field::ArpTpa => Ipv4Addr::from_bits(bits as u32).to_string().into(),
            field if field.all_bits() == u128::MAX => Ipv6Addr::from_bits(bits).to_string().into(),
            field if field.all_bits().count_ones() == 48 => {
                let [.., a, b, c, d, e, f] = bits.to_be_bytes();
                mac(MacAddr([a, b, c, d, e, f])).into()
            }
            _ => (bits as u64).into(),
        }
    };
    let mask = if oxm.is_exact() { Value::Null } else { value(oxm.mask()) };
    json!({"OXMTlv": {"field": oxm.field().name(), "value": value(oxm.value()), "mask": mask}})
}

fn mac(address: MacAddr) -> String {
    address.0.map(|octet| format!("{octet:02x}")).join(":")
}

/// In the order in which we write them.
fn instructions(it: &Instructions) -> Vec<Value> {
    let list = |kind: u16, list: &[Action]| json!({"OFPInstructionActions": {"type": kind, "actions": actions(list)}});
    let mut all = Vec::new();
    all.extend(it.apply_actions.as_ref().map(|actions| list(4, actions)));
    all.extend(it.clear_actions.then(|| list(5, &[])));
    all.extend(it.write_actions.as_ref().map(|actions| list(3, actions)));
    all.extend(it.write_metadata.map(|it| {
        json!({"OFPInstructionWriteMetadata": {"type": 2, "metadata": it.value, "metadata_mask": it.mask}})
    }));
    all.extend(
        it.goto_table.map(|table| json!({"OFPInstructionGotoTable": {"type": 1, "table_id": table.0}})),
    );
    all
}

fn actions(actions: &[Action]) -> Vec<Value> {
    let action = |action: &Action| match action {
        Action::Output { port, max_len } => {
            json!({"OFPActionOutput": {"type": 0, "port": port.0, "max_len": max_len.0}})
        }
        Action::SetQueue(queue) => json!({"OFPActionSetQueue": {"type": 21, "queue_id": queue}}),
        Action::Group(group) => json!({"OFPActionGroup": {"type": 22, "group_id": group.0}}),
        Action::SetField(field) => json!({"OFPActionSetField": {"type": 25, "field": oxm(field.oxm())}}),
        Action::DecNwTtl => json!({"OFPActionDecNwTtl": {"type": 24}}),
        Action::PushVlan(ethertype) => json!({"OFPActionPushVlan": {"type": 17, "ethertype": ethertype}}),
        Action::PopVlan => json!({"OFPActionPopVlan": {"type": 18}}),
        Action::Unknown(_) => json!({"unknown": {}}),
    };
    actions.iter().map(action).collect()
}
