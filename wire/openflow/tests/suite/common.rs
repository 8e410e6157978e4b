//! One message of every kind, for all tests.
#![allow(clippy::unwrap_used, dead_code)]

use openflow::multipart::Of;
use openflow::oxm::OxmId;
use openflow::*;

/// A match of a user's uplink packets as the switch's table 1 has it.
pub fn user() -> Match {
    Match::new([
        Oxm::tunnel_id(0x1234),
        Oxm::tun_ipv4_dst([10, 0, 0, 1].into()).prefix(24).unwrap(),
        // Open vSwitch 3.1 matches no more bits than are set, whatever the mask.
        Oxm::tun_gtpu_flags(0x30).masked(0x30_u8).unwrap(),
        Oxm::tun_gtpu_msgtype(255),
        Oxm::packet_type(PacketType::IPV4),
        Oxm::in_port(PortNo(3)),
        Oxm::ipv4_src([10, 45, 0, 2].into()),
        Oxm::ip_proto(17),
        Oxm::udp_dst(53),
    ])
    .unwrap()
}

/// Plain fields of Ethernet and IPv6.
pub fn neighbour() -> Match {
    Match::new([
        Oxm::metadata(5).masked(0xff_u64).unwrap(),
        Oxm::eth_dst(MacAddr([2, 0, 0, 0, 0, 1])),
        Oxm::eth_src(MacAddr([2, 0, 0, 0, 0, 2])),
        Oxm::eth_type(0x86dd),
        Oxm::ip_dscp(Bits::new(46).unwrap()),
        Oxm::ip_proto(58),
        Oxm::ipv6_dst("2001:db8::".parse().unwrap()).prefix(32).unwrap(),
        Oxm::icmpv6_type(135),
        Oxm::ipv6_nd_target("fe80::1".parse().unwrap()),
    ])
    .unwrap()
}

/// Steers a user to another anchor.
pub fn steer() -> FlowMod {
    let actions = [
        Action::set(Oxm::tun_ipv4_dst([10, 0, 1, 1].into())).unwrap(),
        Action::set(Oxm::tunnel_id(0x4321)).unwrap(),
        Action::output(PortNo::IN_PORT),
    ];
    FlowMod { cookie: 0xd1, ..FlowMod::add(TableId(1), 100, user(), Instructions::apply(actions)) }
}

fn port(port_no: PortNo, name: &str) -> Port {
    Port {
        port_no,
        hw_addr: MacAddr([2, 0, 0, 0, 0, 9]),
        name: Text::new(name),
        config: PortConfig::default(),
        state: PortState::LIVE,
        current: 0x40,
        advertised: 0,
        supported: 0,
        peer: 0,
        current_speed_kbps: 10_000_000,
        max_speed_kbps: 0,
    }
}

fn failover() -> Vec<Bucket> {
    let bucket = |port| Bucket {
        watch_port: port,
        ..Bucket::new([Action::output(port), Action::Group(GroupId(9)), Action::DecNwTtl])
    };
    vec![bucket(PortNo(1)), bucket(PortNo(2))]
}

fn duration() -> Duration {
    Duration { seconds: 3, nanoseconds: 5 }
}

fn flow_stats() -> FlowStats {
    let instructions = Instructions {
        apply_actions: Some([Action::PushVlan(0x8100), Action::PopVlan].into()),
        clear_actions: true,
        write_actions: Some([Action::output(PortNo::CONTROLLER)].into()),
        write_metadata: Some(Metadata { value: 1, mask: 3 }),
        goto_table: Some(TableId(2)),
        unknown: Vec::new(),
    };
    FlowStats {
        table_id: TableId(0),
        duration: duration(),
        priority: 7,
        idle_timeout_s: 1,
        hard_timeout_s: 2,
        flags: FlowModFlags::SEND_FLOW_REM,
        cookie: 0xd1,
        packet_count: 11,
        byte_count: 12,
        matching: neighbour(),
        instructions,
    }
}

fn properties() -> Vec<TableProperty> {
    let ids =
        |kinds: &[u16]| kinds.iter().map(|&kind| TypeId { kind, experimenter: None }).collect::<Vec<_>>();
    let fields: Vec<OxmId> = Field::ALL.iter().map(|field| field.id()).collect();
    let settable: Vec<OxmId> =
        Field::ALL.iter().filter(|field| field.is_settable()).map(|field| field.id()).collect();
    [
        FeatureList::Instructions(ids(&[1, 2, 3, 4, 5])),
        FeatureList::NextTables(vec![TableId(1), TableId(2)]),
        FeatureList::WriteActions(ids(&[0, 22])),
        FeatureList::ApplyActions(ids(&[0, 22, 25])),
        FeatureList::Match(fields.clone()),
        FeatureList::Wildcards(fields),
        FeatureList::WriteSetField(settable.clone()),
        FeatureList::ApplySetField(settable),
    ]
    .into_iter()
    .map(|list| TableProperty { is_miss: false, list })
    .collect()
}

fn replies() -> Vec<Reply> {
    vec![
        Reply::Desc(Box::new(Desc {
            manufacturer: Text::new("Godwit"),
            hardware: Text::new("host"),
            software: Text::new("0.1"),
            serial_number: Text::new("none"),
            datapath: Text::new("edge switch"),
        })),
        Reply::Flow(vec![flow_stats(), FlowStats { matching: user(), ..flow_stats() }]),
        Reply::Aggregate(AggregateStats { packet_count: 1, byte_count: 2, flow_count: 3 }),
        Reply::Table(vec![TableStats {
            table_id: TableId(1),
            active_count: 2,
            lookup_count: 3,
            matched_count: 4,
        }]),
        Reply::PortStats(vec![PortStats {
            port_no: PortNo(1),
            rx_packets: 1,
            tx_packets: 2,
            rx_bytes: 3,
            tx_bytes: 4,
            rx_dropped: 5,
            tx_dropped: 6,
            rx_errors: 7,
            tx_errors: 8,
            rx_frame_err: 9,
            rx_over_err: 10,
            rx_crc_err: 11,
            collisions: 12,
            duration: duration(),
        }]),
        Reply::GroupStats(vec![GroupStats {
            group_id: GroupId(1),
            ref_count: 2,
            packet_count: 3,
            byte_count: 4,
            duration: duration(),
            buckets: vec![BucketCounter { packet_count: 5, byte_count: 6 }],
        }]),
        Reply::GroupDesc(vec![GroupDesc {
            group_type: GroupType::FastFailover,
            group_id: GroupId(1),
            buckets: failover(),
        }]),
        Reply::GroupFeatures(GroupFeatures {
            types: 0b1101,
            capabilities: GroupCapabilities::CHAINING,
            max_groups: [10, 0, 10, 10],
            actions: [1, 0, 1, 1],
        }),
        Reply::TableFeatures(vec![TableFeatures {
            table_id: TableId(0),
            name: Text::new("classification"),
            metadata_match: u64::MAX,
            metadata_write: u64::MAX,
            config: TableConfig::default(),
            max_entries: 1_000_000,
            properties: properties(),
        }]),
        Reply::PortDesc(vec![port(PortNo(1), "gtp"), port(PortNo::LOCAL, "br0")]),
    ]
}

/// Messages of controllers and switches.
pub fn messages() -> Vec<Message> {
    let group =
        |command, group_type, buckets| GroupMod { command, group_type, group_id: GroupId(1), buckets };
    let role = RoleRequest { role: Role::Master, generation_id: 7 };
    let config = Config { fragments: Fragments::Normal, miss_send_len: 128 };
    let bundle =
        |kind| BundleControl { bundle_id: 5, kind, flags: BundleFlags::ATOMIC | BundleFlags::ORDERED };
    let add = |change| BundleAdd { bundle_id: 5, flags: BundleFlags::ATOMIC | BundleFlags::ORDERED, change };
    let all_flows = FlowStatsRequest::all(TableId::ALL);
    let mut messages: Vec<Message> = vec![
        Hello::OURS.into(),
        // About an echo request of 64 octets.
        Code::OFPBMC_BAD_PREREQ.about(&[&[4, 2, 0, 64, 0, 0, 0, 7][..], &[0; 56]].concat()).into(),
        Code::OFPBFC_TIMEOUT.about(&[4; 24]).into(),
        Message::EchoRequest(b"ping".to_vec()),
        Message::EchoReply(b"ping".to_vec()),
        Message::FeaturesRequest(()),
        Message::FeaturesReply(Features {
            datapath_id: 0x1_0200_0000_0001,
            n_buffers: 0,
            n_tables: 3,
            auxiliary_id: 0,
            capabilities: Capabilities::FLOW_STATS | Capabilities::GROUP_STATS,
        }),
        Message::GetConfigRequest(()),
        Message::GetConfigReply(config.clone()),
        Message::SetConfig(config),
        PacketIn {
            buffer_id: BufferId::NO_BUFFER,
            total_len: 14,
            reason: PacketInReason::Action,
            table_id: TableId(2),
            cookie: 3,
            matching: Match::new([Oxm::in_port(PortNo(1)), Oxm::tunnel_id(9)]).unwrap(),
            data: vec![0; 14],
        }
        .into(),
        FlowRemoved {
            cookie: 1,
            priority: 2,
            reason: FlowRemovedReason::HardTimeout,
            table_id: TableId(1),
            duration: duration(),
            idle_timeout_s: 3,
            hard_timeout_s: 4,
            packet_count: 5,
            byte_count: 6,
            matching: neighbour(),
        }
        .into(),
        PortStatus { reason: PortReason::Modify, port: port(PortNo(1), "gtp") }.into(),
        PacketOut {
            buffer_id: BufferId::NO_BUFFER,
            in_port: PortNo::CONTROLLER,
            actions: vec![Action::output(PortNo::FLOOD)],
            data: vec![0; 14],
        }
        .into(),
        add(Change::PacketOut(PacketOut {
            buffer_id: BufferId::NO_BUFFER,
            in_port: PortNo::CONTROLLER,
            actions: vec![Action::SetQueue(7), Action::output(PortNo(102))],
            data: vec![0; 14],
        }))
        .into(),
        steer().into(),
        FlowMod { command: FlowModCommand::ModifyStrict, flags: FlowModFlags::RESET_COUNTS, ..steer() }
            .into(),
        FlowMod::delete(TableId::ALL, neighbour()).into(),
        group(GroupModCommand::Add, GroupType::All, vec![Bucket::new([Action::output(PortNo(1))])]).into(),
        group(GroupModCommand::Modify, GroupType::FastFailover, failover()).into(),
        group(GroupModCommand::Delete, GroupType::Indirect, Vec::new()).into(),
        Message::BarrierRequest(()),
        Message::BarrierReply(()),
        Message::RoleRequest(role.clone()),
        Message::RoleReply(role),
        Message::GetAsyncRequest(()),
        Message::GetAsyncReply(AsyncConfig::INITIAL),
        Message::SetAsync(AsyncConfig::INITIAL),
        bundle(BundleControlType::OpenRequest).into(),
        bundle(BundleControlType::CommitReply).into(),
        add(Change::FlowMod(steer())).into(),
        add(Change::GroupMod(group(
            GroupModCommand::Add,
            GroupType::Indirect,
            vec![Bucket::new([Action::output(PortNo(1))])],
        )))
        .into(),
        Request::Desc(()).into(),
        Request::Flow(all_flows.clone()).into(),
        Request::Aggregate(FlowStatsRequest { matching: user(), ..all_flows }).into(),
        Request::Table(()).into(),
        Request::PortStats(Of(PortNo::ANY)).into(),
        Request::GroupStats(Of(GroupId::ALL)).into(),
        Request::GroupDesc(()).into(),
        Request::GroupFeatures(()).into(),
        Request::TableFeatures(Vec::new()).into(),
        Request::PortDesc(()).into(),
    ];
    messages.extend(replies().into_iter().flat_map(Reply::into_parts).map(Message::from));
    messages
}
