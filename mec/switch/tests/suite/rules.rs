//! Flow-mods, group-mods and bundles as OpenFlow 1.3.5 §6.4 and §6.5 have them, and what packets meet.

use crate::common::*;
use openflow::*;
use packet::ethernet;
use switch::pipeline::field::{WORDS, Words, shape};
use switch::pipeline::parse::Headers;
use switch::pipeline::trace::{Dropped, Trace};
use switch::pipeline::{Failed, Limits, Pipeline, Ports};

const SECOND: u64 = 1_000_000_000;

fn change(pipeline: &mut Pipeline, flow_mod: FlowMod) -> Result<usize, Code> {
    let result = pipeline.commit(&[Change::FlowMod(flow_mod)], 5 * SECOND);
    result.map(|committed| committed.removed.len()).map_err(|failed| failed.code)
}

fn group(command: GroupModCommand, id: u32, group_type: GroupType, buckets: Vec<Bucket>) -> Change {
    Change::GroupMod(GroupMod { command, group_type, group_id: GroupId(id), buckets })
}

fn frame(to: [u8; 6]) -> Vec<u8> {
    ethernet::build(to, ENB_MAC, None, ethernet::IPV4, &user_packet())
}

fn len(pipeline: &Pipeline) -> usize {
    pipeline.tables().iter().map(|table| table.len()).sum()
}

#[test]
fn without_an_entry_a_packet_is_dropped_and_the_miss_entry_has_priority_0() {
    let mut pipeline = pipeline();
    let (left, trace) = send(&pipeline, 1, &frame(GW1_MAC));
    assert_eq!((left.len(), trace.dropped), (0, Some(Dropped::NoEntry)));
    install(&mut pipeline, [add(0, 0, [], Instructions::apply([Action::output(PortNo::CONTROLLER)]))]);
    let (left, trace) = send(&pipeline, 1, &frame(GW1_MAC));
    assert_eq!(left, [(None, frame(GW1_MAC))]);
    let reason = |trace: &Trace| match &trace.steps[0] {
        switch::pipeline::trace::Step::Controller(to) => to.reason,
        step => panic!("{step:?}"),
    };
    assert_eq!(reason(&trace), PacketInReason::NoMatch);
    install(&mut pipeline, [add(0, 1, [], Instructions::apply([Action::output(PortNo::CONTROLLER)]))]);
    assert_eq!(reason(&send(&pipeline, 1, &frame(GW1_MAC)).1), PacketInReason::Action);
}

#[test]
fn the_highest_priority_wins_whatever_the_masks() {
    let mut pipeline = pipeline();
    let to = |priority, fields: Vec<Oxm>, port| add(0, priority, fields, Instructions::apply([output(port)]));
    install(
        &mut pipeline,
        [
            to(10, vec![Oxm::eth_dst(MacAddr(GW1_MAC))], 2),
            to(20, vec![Oxm::eth_type(0x0800)], 3),
            to(5, vec![Oxm::eth_type(0x0800), Oxm::ipv4_src(UE1)], 2),
            to(30, vec![Oxm::eth_type(0x0800), Oxm::ipv4_src(UE1).prefix(16).unwrap()], 2),
        ],
    );
    assert_eq!(pass(&pipeline, 1, &frame(GW1_MAC)).0, 2);
    let gone = FlowMod {
        priority: 30,
        command: FlowModCommand::DeleteStrict,
        ..to(30, vec![Oxm::eth_type(0x0800), Oxm::ipv4_src(UE1).prefix(16).unwrap()], 2)
    };
    assert_eq!(change(&mut pipeline, gone), Ok(1));
    assert_eq!(pass(&pipeline, 1, &frame(GW1_MAC)).0, 3);
    // Entries of one mask and value, with two priorities.
    install(
        &mut pipeline,
        [to(40, vec![Oxm::eth_dst(MacAddr(GW1_MAC))], 3), to(15, vec![Oxm::eth_dst(MacAddr(GW1_MAC))], 3)],
    );
    assert_eq!(len(&pipeline), 5);
    assert_eq!(pass(&pipeline, 1, &frame(GW1_MAC)).0, 3);
}

#[test]
fn add_replaces_and_keeps_counts_unless_they_are_reset() {
    let mut pipeline = pipeline();
    let rule = |port, flags| FlowMod { flags, ..add(0, 7, [], Instructions::apply([output(port)])) };
    install(&mut pipeline, [rule(2, FlowModFlags::SEND_FLOW_REM)]);
    pass(&pipeline, 1, &frame(GW1_MAC));
    assert_eq!(change(&mut pipeline, rule(3, FlowModFlags::default())), Ok(0), "no flow-removed");
    assert_eq!(pass(&pipeline, 1, &frame(GW1_MAC)).0, 3);
    let count = |pipeline: &Pipeline| pipeline.tables()[0].flows().next().unwrap().counters.get().0;
    assert_eq!((len(&pipeline), count(&pipeline)), (1, 2));
    change(&mut pipeline, rule(3, FlowModFlags::RESET_COUNTS)).unwrap();
    assert_eq!(count(&pipeline), 0);
}

#[test]
fn overlaps_are_refused_where_that_is_asked_for() {
    let mut pipeline = pipeline();
    let rule = |fields: Vec<Oxm>, priority| FlowMod {
        flags: FlowModFlags::CHECK_OVERLAP,
        ..add(0, priority, fields, Instructions::default())
    };
    let ip = Oxm::eth_type(0x0800);
    assert_eq!(change(&mut pipeline, rule(vec![ip, Oxm::ipv4_src(UE1)], 5)), Ok(0));
    assert_eq!(change(&mut pipeline, rule(vec![ip, Oxm::ipv4_src(UE1)], 5)), Err(Code::OFPFMFC_OVERLAP));
    assert_eq!(change(&mut pipeline, rule(vec![ip, Oxm::ipv4_dst(SERVER)], 5)), Err(Code::OFPFMFC_OVERLAP));
    assert_eq!(change(&mut pipeline, rule(vec![ip, Oxm::ipv4_dst(SERVER)], 6)), Ok(0));
    assert_eq!(change(&mut pipeline, rule(vec![ip, Oxm::ipv4_src(SERVER)], 5)), Ok(0));
    assert_eq!(change(&mut pipeline, rule(vec![Oxm::eth_type(0x86dd)], 5)), Ok(0));
}

#[test]
fn modify_changes_instructions_only() {
    let mut pipeline = pipeline();
    let ip = Oxm::eth_type(0x0800);
    let rules = [
        FlowMod {
            cookie: 0xa1,
            idle_timeout_s: 9,
            ..add(0, 5, [ip, Oxm::ipv4_src(UE1)], Instructions::apply([output(2)]))
        },
        FlowMod { cookie: 0xb1, ..add(0, 6, [ip], Instructions::apply([output(2)])) },
        FlowMod { cookie: 0xa2, ..add(0, 5, [Oxm::eth_type(0x0806)], Instructions::apply([output(2)])) },
    ];
    install(&mut pipeline, rules);
    pass(&pipeline, 1, &frame(GW1_MAC));
    let modify = |command, cookie, cookie_mask, fields: Vec<Oxm>, priority| FlowMod {
        command,
        cookie,
        cookie_mask,
        ..add(0, priority, fields, Instructions::apply([output(3)]))
    };
    let changed = |pipeline: &Pipeline| {
        let flows = pipeline.tables()[0].flows();
        let mut cookies: Vec<_> =
            flows.filter(|flow| flow.has_output(PortNo(3), GroupId::ANY)).map(|flow| flow.cookie).collect();
        cookies.sort_unstable();
        cookies
    };
    // No entry: no error, and nothing is added.
    change(&mut pipeline, modify(FlowModCommand::ModifyStrict, 0, 0, vec![ip], 5)).unwrap();
    assert_eq!(changed(&pipeline), [0u64; 0]);
    change(&mut pipeline, modify(FlowModCommand::ModifyStrict, 0, 0, vec![ip], 6)).unwrap();
    assert_eq!(changed(&pipeline), [0xb1]);
    // All within the match, of these cookies.
    change(&mut pipeline, modify(FlowModCommand::Modify, 0xa0, 0xf0, vec![ip], 0)).unwrap();
    assert_eq!(changed(&pipeline), [0xa1, 0xb1]);
    change(&mut pipeline, modify(FlowModCommand::Modify, 0, 0, vec![], 0)).unwrap();
    assert_eq!(changed(&pipeline), [0xa1, 0xa2, 0xb1]);
    let kept = pipeline.tables()[0].flows().find(|flow| flow.cookie == 0xa1).unwrap().clone();
    assert_eq!((kept.idle_timeout_s, kept.since_ns), (9, 0));
    let counted = pipeline.tables()[0].flows().find(|flow| flow.cookie == 0xb1).unwrap();
    assert_eq!(counted.counters.get().0, 1);
}

#[test]
fn delete_has_filters_for_cookies_ports_groups_and_tables() {
    let mut pipeline = pipeline();
    pipeline
        .commit(&[group(GroupModCommand::Add, 1, GroupType::All, vec![Bucket::new([output(2)])])], 0)
        .unwrap();
    let rules = || {
        vec![
            FlowMod { cookie: 1, ..add(0, 1, [Oxm::in_port(PortNo(1))], Instructions::apply([output(2)])) },
            FlowMod { cookie: 2, ..add(0, 2, [Oxm::in_port(PortNo(2))], Instructions::apply([output(3)])) },
            FlowMod { cookie: 3, ..add(1, 3, [], Instructions::apply([Action::Group(GroupId(1))])) },
            FlowMod {
                cookie: 4,
                ..add(
                    1,
                    4,
                    [Oxm::in_port(PortNo(1))],
                    Instructions { write_actions: Some([output(3)].into()), ..Instructions::default() },
                )
            },
        ]
    };
    let mut gone = |delete: FlowMod| {
        install(&mut pipeline, rules());
        let before: Vec<u64> = vec![1, 2, 3, 4];
        change(&mut pipeline, delete).unwrap();
        let left: Vec<u64> =
            pipeline.tables().iter().flat_map(|table| table.flows()).map(|flow| flow.cookie).collect();
        before.into_iter().filter(|cookie| !left.contains(cookie)).collect::<Vec<_>>()
    };
    let all = FlowMod::delete(TableId::ALL, Match::default());
    assert_eq!(gone(FlowMod { out_port: PortNo(3), ..all.clone() }), [2, 4]);
    assert_eq!(gone(FlowMod { out_group: GroupId(1), ..all.clone() }), [3]);
    assert_eq!(gone(FlowMod { cookie: 1, cookie_mask: 1, ..all.clone() }), [1, 3]);
    assert_eq!(gone(FlowMod::delete(TableId(0), Match::default())), [1, 2]);
    let one = matching([Oxm::in_port(PortNo(1))]);
    assert_eq!(gone(FlowMod::delete(TableId::ALL, one.clone())), [1, 4]);
    let strict =
        FlowMod { command: FlowModCommand::DeleteStrict, priority: 4, ..FlowMod::delete(TableId::ALL, one) };
    assert_eq!(gone(strict), [4]);
    assert_eq!(gone(all), [1, 2, 3, 4]);
}

#[test]
fn what_cannot_be_installed_has_the_errors_of_the_standard() {
    let limits = Limits { entries: 2, groups: 1, buckets: 2, actions: 3, ..Limits::default() };
    let live = [(1, true), (2, true)].into();
    let mut pipeline = Pipeline::new(limits, Ports { live, gtp: None, hold: None });
    let nothing = || add(0, 1, [], Instructions::default());
    let mut refused = |flow_mod| change(&mut pipeline, flow_mod).unwrap_err();
    assert_eq!(refused(FlowMod { table_id: TableId(8), ..nothing() }), Code::OFPFMFC_BAD_TABLE_ID);
    assert_eq!(refused(FlowMod { table_id: TableId::ALL, ..nothing() }), Code::OFPFMFC_BAD_TABLE_ID);
    assert_eq!(refused(FlowMod { buffer_id: BufferId(7), ..nothing() }), Code::OFPBRC_BUFFER_UNKNOWN);
    assert_eq!(refused(add(1, 1, [], Instructions::goto(TableId(1)))), Code::OFPBIC_BAD_TABLE_ID);
    assert_eq!(refused(add(1, 1, [], Instructions::goto(TableId(8)))), Code::OFPBIC_BAD_TABLE_ID);
    let phy = [Oxm::in_port(PortNo(1)), Oxm::in_phy_port(PortNo(1))];
    assert_eq!(refused(add(0, 1, phy, Instructions::default())), Code::OFPBMC_BAD_FIELD);
    let mut action = |action: Action| refused(add(0, 1, [], Instructions::apply([action])));
    assert_eq!(action(Action::output(PortNo::NORMAL)), Code::OFPBAC_BAD_OUT_PORT);
    assert_eq!(action(Action::output(PortNo::TABLE)), Code::OFPBAC_BAD_OUT_PORT);
    assert_eq!(action(output(3)), Code::OFPBAC_BAD_OUT_PORT, "there never will be such a port");
    assert_eq!(action(Action::output(PortNo::LOCAL)), Code::OFPBAC_BAD_OUT_PORT);
    assert_eq!(action(Action::Group(GroupId(9))), Code::OFPBAC_BAD_OUT_GROUP);
    assert_eq!(action(Action::PopVlan), Code::OFPBAC_BAD_TYPE);
    assert_eq!(action(Action::PushVlan(0x8100)), Code::OFPBAC_BAD_TYPE);
    assert_eq!(action(Action::DecNwTtl), Code::OFPBAC_MATCH_INCONSISTENT);
    assert_eq!(action(set(Oxm::ipv4_dst(UE1))), Code::OFPBAC_MATCH_INCONSISTENT);
    assert_eq!(action(set(Oxm::tunnel_id(1 << 32))), Code::OFPBAC_BAD_SET_ARGUMENT);
    assert_eq!(action(set(Oxm::vlan_vid(Bits::new(0x1001).unwrap()))), Code::OFPBAC_BAD_SET_TYPE);
    let many = Instructions::apply(vec![output(1); 4]);
    assert_eq!(refused(add(0, 1, [], many)), Code::OFPBAC_TOO_MANY);
    install(&mut pipeline, [add(0, 1, [], Instructions::default()), add(0, 2, [], Instructions::default())]);
    assert_eq!(change(&mut pipeline, add(0, 3, [], Instructions::default())), Err(Code::OFPFMFC_TABLE_FULL));
    assert_eq!(change(&mut pipeline, add(0, 2, [], Instructions::default())), Ok(0), "it replaces one");
    assert_eq!(
        change(&mut pipeline, add(1, 3, [], Instructions::default())),
        Ok(0),
        "another table has room"
    );
    // Of a modification the actions must suit the entries that are found.
    let modify = FlowMod {
        command: FlowModCommand::Modify,
        ..add(0, 0, [], Instructions::apply([set(Oxm::ipv4_dst(UE1))]))
    };
    assert_eq!(change(&mut pipeline, modify), Err(Code::OFPBAC_MATCH_INCONSISTENT));
    let mut refused = |change| pipeline.commit(&[change], 0).unwrap_err().code;
    let bucket = || Bucket::new([output(1)]);
    let new = |kind, buckets| group(GroupModCommand::Add, 5, kind, buckets);
    assert_eq!(refused(new(GroupType::Select, vec![bucket()])), Code::OFPGMFC_BAD_TYPE);
    assert_eq!(
        refused(new(GroupType::All, vec![bucket(), bucket(), bucket()])),
        Code::OFPGMFC_OUT_OF_BUCKETS
    );
    assert_eq!(refused(new(GroupType::Indirect, vec![])), Code::OFPGMFC_INVALID_GROUP);
    assert_eq!(refused(new(GroupType::FastFailover, vec![bucket()])), Code::OFPGMFC_BAD_WATCH);
    let unknown = Bucket { watch_port: PortNo(3), ..bucket() };
    assert_eq!(refused(new(GroupType::FastFailover, vec![unknown])), Code::OFPGMFC_BAD_WATCH);
    assert_eq!(refused(new(GroupType::All, vec![Bucket::new([output(3)])])), Code::OFPBAC_BAD_OUT_PORT);
    assert_eq!(
        refused(new(GroupType::All, vec![Bucket::new([Action::Group(GroupId(5))])])),
        Code::OFPGMFC_LOOP
    );
    assert_eq!(
        refused(group(GroupModCommand::Modify, 5, GroupType::All, vec![])),
        Code::OFPGMFC_UNKNOWN_GROUP
    );
    pipeline.commit(&[new(GroupType::All, vec![bucket()])], 0).unwrap();
    let mut refused = |change| pipeline.commit(&[change], 0).unwrap_err().code;
    assert_eq!(refused(new(GroupType::All, vec![bucket()])), Code::OFPGMFC_GROUP_EXISTS);
    assert_eq!(refused(group(GroupModCommand::Add, 6, GroupType::All, vec![])), Code::OFPGMFC_OUT_OF_GROUPS);
}

#[test]
fn masks_are_bounded() {
    let limits = Limits { masks: 2, ..Limits::default() };
    let mut pipeline = Pipeline::new(limits, Ports::default());
    let rule = |bits: u64| add(0, 1, [Oxm::metadata(bits).masked(bits).unwrap()], Instructions::default());
    install(&mut pipeline, [rule(1), rule(2)]);
    assert_eq!(change(&mut pipeline, rule(4)), Err(Code::OFPFMFC_TABLE_FULL));
    assert_eq!(change(&mut pipeline, FlowMod { priority: 9, ..rule(2) }), Ok(0));
}

#[test]
fn a_bundle_changes_all_or_nothing() {
    let mut pipeline = pipeline();
    let one_bucket = vec![Bucket::new([output(2)])];
    pipeline.commit(&[group(GroupModCommand::Add, 1, GroupType::All, one_bucket.clone())], 0).unwrap();
    install(
        &mut pipeline,
        [
            add(0, 1, [], Instructions::apply([output(2)])),
            FlowMod {
                hard_timeout_s: 3,
                ..add(0, 2, [Oxm::in_port(PortNo(1))], Instructions::apply([Action::Group(GroupId(1))]))
            },
        ],
    );
    let dump = |pipeline: &Pipeline| {
        let flows = pipeline.tables().iter().flat_map(|table| table.flows());
        let mut flows: Vec<_> =
            flows.map(|flow| (flow.table.0, flow.priority, format!("{:?}", flow.instructions))).collect();
        flows.sort();
        (flows, pipeline.groups().len(), pipeline.next_deadline_ns(), pipeline.version())
    };
    let before = dump(&pipeline);
    let bad = Change::FlowMod(add(3, 1, [], Instructions::goto(TableId(2))));
    let bundle = [
        Change::FlowMod(add(0, 1, [], Instructions::apply([output(3)]))),
        Change::FlowMod(FlowMod::delete(TableId::ALL, Match::default())),
        group(GroupModCommand::Delete, 1, GroupType::All, vec![]),
        group(GroupModCommand::Add, 7, GroupType::All, one_bucket),
        Change::FlowMod(add(1, 1, [], Instructions::apply([Action::Group(GroupId(7))]))),
        bad,
    ];
    let failed = pipeline.commit(&bundle, 0).unwrap_err();
    assert_eq!(failed, Failed { at: 5, code: Code::OFPBIC_BAD_TABLE_ID });
    assert_eq!(dump(&pipeline), before);
    assert_eq!(pass(&pipeline, 1, &frame(GW1_MAC)).0, 2);
    pipeline.commit(&bundle[..5], 0).unwrap();
    assert_eq!((len(&pipeline), pipeline.groups().len()), (1, 1));
    assert_eq!(pipeline.version(), before.3 + 1, "one change for caches");
    assert_eq!(pipeline.next_deadline_ns(), None);
}

#[test]
fn entries_end_in_time() {
    let mut pipeline = pipeline();
    let rule = |priority, idle, hard| FlowMod {
        idle_timeout_s: idle,
        hard_timeout_s: hard,
        ..add(0, priority, [], Instructions::apply([output(2)]))
    };
    install(&mut pipeline, [rule(9, 5, 0), rule(8, 0, 7), rule(7, 3, 100)]);
    let mut gone = |now: u64, used: Option<u64>| {
        if let Some(used) = used {
            let flow = pipeline.tables()[0].flows().find(|flow| flow.priority == 9).unwrap();
            flow.counters.add(1, 60, used * SECOND);
        }
        let removed = pipeline.expire(now * SECOND);
        removed.iter().map(|removed| (removed.flow.priority, removed.reason)).collect::<Vec<_>>()
    };
    assert_eq!(gone(2, None), []);
    assert_eq!(gone(3, Some(3)), [(7, FlowRemovedReason::IdleTimeout)]);
    assert_eq!(gone(7, None), [(8, FlowRemovedReason::HardTimeout)]);
    assert_eq!(gone(8, None), [(9, FlowRemovedReason::IdleTimeout)]);
    assert_eq!((len(&pipeline), pipeline.next_deadline_ns()), (0, None));
}

#[test]
fn an_entry_in_use_stays_when_its_counts_are_reset() {
    let mut pipeline = pipeline();
    let rule = FlowMod { idle_timeout_s: 5, ..add(0, 9, [], Instructions::apply([output(2)])) };
    install(&mut pipeline, [rule.clone()]);
    pipeline.tables()[0].flows().next().unwrap().counters.add(1, 60, 20 * SECOND);
    let flags = FlowModFlags::RESET_COUNTS;
    let modify = FlowMod { command: FlowModCommand::Modify, flags, ..rule };
    pipeline.commit(&[Change::FlowMod(modify)], 21 * SECOND).unwrap();
    assert_eq!(pipeline.tables()[0].flows().next().unwrap().counters.get(), (0, 0));
    assert!(pipeline.expire(24 * SECOND).is_empty());
    assert_eq!(pipeline.expire(25 * SECOND).len(), 1);
}

#[test]
fn groups_copy_choose_and_fail_over() {
    let mut pipeline = pipeline();
    let watched = |port: u32| Bucket { watch_port: PortNo(port), ..Bucket::new([output(port)]) };
    let colour = |mac, port| Bucket::new([output(port), set(Oxm::eth_dst(MacAddr(mac)))]);
    pipeline
        .commit(
            &[
                group(GroupModCommand::Add, 1, GroupType::All, vec![colour(GW1_MAC, 2), colour(GW2_MAC, 3)]),
                group(GroupModCommand::Add, 2, GroupType::FastFailover, vec![watched(2), watched(3)]),
                group(
                    GroupModCommand::Add,
                    3,
                    GroupType::Indirect,
                    vec![Bucket::new([Action::Group(GroupId(2))])],
                ),
            ],
            0,
        )
        .unwrap();
    let via = |pipeline: &mut Pipeline, group: u32| {
        install(pipeline, [add(0, 1, [], Instructions::apply([Action::Group(GroupId(group))]))]);
        send(pipeline, 1, &frame(ENB_MAC)).0
    };
    // In a bucket as in an action set: fields first, then the output; each has a copy of its own.
    assert_eq!(via(&mut pipeline, 1), [(Some(2), frame(GW1_MAC)), (Some(3), frame(GW2_MAC))]);
    assert_eq!(via(&mut pipeline, 3), [(Some(2), frame(ENB_MAC))]);
    assert_eq!(pipeline.groups()[&GroupId(1)].counters.get().0, 1, "one packet, whatever its copies");
    let version = pipeline.version();
    pipeline.set_live(2, false);
    assert!(pipeline.version() > version);
    assert_eq!(via(&mut pipeline, 3), [(Some(3), frame(ENB_MAC))]);
    pipeline.set_live(3, false);
    assert_eq!(via(&mut pipeline, 3), []);
    let counts = pipeline.groups()[&GroupId(2)].bucket_counters.iter().map(|counters| counters.get().0);
    assert_eq!(counts.collect::<Vec<_>>(), [1, 1]);
    // A group in use goes with the entries that use it, but not if another group does.
    let delete = group(GroupModCommand::Delete, 2, GroupType::All, vec![]);
    assert_eq!(pipeline.commit(&[delete], 0).unwrap_err().code, Code::OFPGMFC_CHAINED_GROUP);
    let committed = pipeline
        .commit(&[group(GroupModCommand::Delete, GroupId::ALL.0, GroupType::All, vec![])], 0)
        .unwrap();
    assert_eq!(
        committed.removed.iter().map(|removed| removed.reason).collect::<Vec<_>>(),
        [FlowRemovedReason::GroupDelete]
    );
}

/// Who watches is asked once for each group, not once for each way to it.
#[test]
fn groups_that_watch_groups_are_judged_quickly() {
    let mut pipeline = pipeline();
    let failover = |id, watched: fn(&mut Bucket, u32)| {
        let mut bucket = Bucket::new([output(2)]);
        watched(&mut bucket, id - 1);
        group(GroupModCommand::Add, id, GroupType::FastFailover, vec![bucket; 64])
    };
    let mut changes = vec![failover(1, |bucket, _| bucket.watch_port = PortNo(3))];
    changes.extend((2..20).map(|id| failover(id, |bucket, before| bucket.watch_group = GroupId(before))));
    pipeline.commit(&changes, 0).unwrap();
    install(&mut pipeline, [add(0, 1, [], Instructions::apply([Action::Group(GroupId(19))]))]);
    assert_eq!(send(&pipeline, 1, &frame(GW1_MAC)).0.len(), 1);
    pipeline.set_live(3, false);
    assert_eq!(send(&pipeline, 1, &frame(GW1_MAC)).0, []);
}

#[test]
fn groups_that_use_one_another_are_refused() {
    let mut pipeline = pipeline();
    let use_of = |id| vec![Bucket::new([Action::Group(GroupId(id))])];
    let add = |id, buckets| group(GroupModCommand::Add, id, GroupType::All, buckets);
    pipeline.commit(&[add(1, vec![]), add(2, use_of(1)), add(3, use_of(2))], 0).unwrap();
    let loops = group(GroupModCommand::Modify, 1, GroupType::All, use_of(3));
    assert_eq!(pipeline.commit(&[loops], 0).unwrap_err().code, Code::OFPGMFC_LOOP);
}

/// Groups of groups multiply copies; the work for one packet is bounded.
#[test]
fn a_packet_cannot_become_countless() {
    let mut pipeline = pipeline();
    let copies = |id: u32| vec![Bucket::new([Action::Group(GroupId(id))]); 60];
    let mut changes =
        vec![group(GroupModCommand::Add, 1, GroupType::All, vec![Bucket::new([output(2)]); 60])];
    changes.extend((2..8).map(|id| group(GroupModCommand::Add, id, GroupType::All, copies(id - 1))));
    pipeline.commit(&changes, 0).unwrap();
    install(&mut pipeline, [add(0, 1, [], Instructions::apply([Action::Group(GroupId(7))]))]);
    let (left, _) = send(&pipeline, 1, &frame(GW1_MAC));
    assert!(left.len() <= 1024, "{}", left.len());
}

#[test]
fn the_action_set_is_executed_in_the_order_of_the_standard() {
    let mut pipeline = pipeline();
    let write = |actions: Vec<Action>, table: u8| Instructions {
        write_actions: Some(actions.into()),
        goto_table: Some(TableId(table)),
        ..Instructions::default()
    };
    let ip = [Oxm::eth_type(0x0800)];
    install(
        &mut pipeline,
        [
            add(0, 1, ip, write(vec![output(2), set(Oxm::eth_dst(MacAddr(GW1_MAC))), Action::DecNwTtl], 1)),
            add(1, 1, ip, write(vec![output(3), set(Oxm::eth_dst(MacAddr(GW2_MAC)))], 2)),
            add(2, 1, ip, Instructions::default()),
        ],
    );
    let (port, sent) = pass(&pipeline, 1, &frame(ENB_MAC));
    assert_eq!((port, &sent[..6], sent[22]), (3, &GW2_MAC[..], 60));
    check(&sent);
    let clear = Instructions { clear_actions: true, ..Instructions::default() };
    install(&mut pipeline, [add(2, 1, ip, clear)]);
    assert_eq!(send(&pipeline, 1, &frame(ENB_MAC)).1.dropped, Some(Dropped::NoOutput));
}

#[test]
fn metadata_leads_on() {
    let mut pipeline = pipeline();
    let write = Instructions {
        write_metadata: Some(Metadata { value: 0xab00, mask: 0xff00 }),
        goto_table: Some(TableId(1)),
        ..Instructions::default()
    };
    install(
        &mut pipeline,
        [
            add(0, 1, [], write),
            add(1, 1, [Oxm::metadata(0xab00).masked(0xf000u64).unwrap()], Instructions::apply([output(2)])),
        ],
    );
    let (left, trace) = send(&pipeline, 1, &frame(ENB_MAC));
    assert_eq!(left.len(), 1);
    assert_eq!(trace.consulted.outer[1], 0, "metadata is not the packet's");
}

#[test]
fn the_last_hop_is_told_to_the_controllers() {
    let mut pipeline = pipeline();
    install(
        &mut pipeline,
        [add(0, 1, [Oxm::eth_type(0x0800)], Instructions::apply([Action::DecNwTtl, output(2)]))],
    );
    let mut last = frame(ENB_MAC);
    last[22] = 1;
    let (left, trace) = send(&pipeline, 1, &last);
    assert_eq!((left, trace.dropped), (vec![(None, last)], None));
    let (_, sent) = pass(&pipeline, 1, &frame(ENB_MAC));
    assert_eq!(sent[22], 60);
    check(&sent);
}

/// Each hop is one, wherever its action stands, and the last one is told to the controllers also behind others.
#[test]
fn each_of_many_hops_may_be_the_last() {
    let mut pipeline = pipeline();
    let ip = [Oxm::eth_type(0x0800)];
    let hops = |number: usize| vec![Action::DecNwTtl; number];
    let last = Instructions {
        write_actions: Some([Action::DecNwTtl, output(2)].into()),
        ..Instructions::apply(hops(36))
    };
    install(&mut pipeline, [add(0, 1, ip, then(hops(64), 1)), add(1, 1, ip, last)]);
    let mut known: Vec<(Words, Trace)> = Vec::new();
    for ttl in 0..=255u8 {
        let mut packet = frame(ENB_MAC);
        packet[22] = ttl;
        packet[24..26].fill(0);
        let sum = packet::checksum::checksum(&packet[14..34]);
        packet[24..26].copy_from_slice(&sum.to_be_bytes());
        let (left, trace) = send(&pipeline, 1, &packet);
        let [(port, sent)] = &left[..] else { panic!("{left:?}") };
        check(sent);
        match ttl {
            0..=101 => assert_eq!((*port, sent[22]), (None, ttl.min(1)), "TTL {ttl}"),
            _ => assert_eq!((*port, sent[22]), (Some(2), ttl - 101), "TTL {ttl}"),
        }
        // A translation holds for those that are equal in what it has consulted, and only for them.
        let words = Headers::parse(&packet, 1).outer;
        for (others, earlier) in &known {
            let consulted = &earlier.consulted.outer;
            let is_equal = (0..WORDS).all(|word| (words[word] ^ others[word]) & consulted[word] == 0);
            assert!(!is_equal || earlier.steps == trace.steps, "TTL {ttl}");
        }
        known.push((words, trace));
    }
    // One hop is one bit, whatever the TTL.
    install(&mut pipeline, [add(0, 1, ip, Instructions::apply([Action::DecNwTtl, output(2)]))]);
    let consulted = |ttl: u8| {
        let mut packet = frame(ENB_MAC);
        packet[22] = ttl;
        send(&pipeline, 1, &packet).1.consulted.outer[shape::WORD]
    };
    assert_eq!((consulted(64), consulted(255)), (0b10, 0b10));
}

#[test]
fn flooding_reaches_all_other_ports_once() {
    let mut pipeline = pipeline();
    for port in [PortNo::FLOOD, PortNo::ALL] {
        install(&mut pipeline, [add(0, 1, [], Instructions::apply([Action::output(port)]))]);
        // A tunnel's packet, too: it is a copy for the host's interface, and not one for the tunnel.
        let (left, _) = send(&pipeline, 1, &uplink(GW1, &gpdu(7, &user_packet())));
        let ports: Vec<_> = left.iter().map(|(port, _)| port.unwrap()).collect();
        assert_eq!(ports, [2, 3, PortNo::LOCAL.0]);
    }
    install(
        &mut pipeline,
        [add(0, 1, [], Instructions::apply([output(1), Action::output(PortNo::IN_PORT)]))],
    );
    assert_eq!(pass(&pipeline, 1, &frame(GW1_MAC)).0, 1, "back only where that was said");
}

#[test]
fn arp_and_priority_tags_are_matched_and_set() {
    let mut pipeline = pipeline();
    let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
    request.extend(ENB_MAC);
    request.extend(ENB.octets());
    request.extend([0; 6]);
    request.extend(GW1.octets());
    let answer = [
        set(Oxm::arp_op(2)),
        set(Oxm::arp_tha(MacAddr(ENB_MAC))),
        set(Oxm::arp_tpa(ENB)),
        set(Oxm::arp_sha(MacAddr(GW2_MAC))),
        set(Oxm::arp_spa(GW1)),
        Action::output(PortNo::IN_PORT),
    ];
    let asked = [Oxm::eth_type(0x0806), Oxm::arp_op(1), Oxm::arp_tpa(GW1), Oxm::arp_sha(MacAddr(ENB_MAC))];
    install(&mut pipeline, [add(0, 1, asked, Instructions::apply(answer))]);
    let (port, sent) = pass(&pipeline, 1, &ethernet::build([0xff; 6], ENB_MAC, None, 0x0806, &request));
    let mut expected = vec![0, 1, 8, 0, 6, 4, 0, 2];
    expected.extend(GW2_MAC);
    expected.extend(GW1.octets());
    expected.extend(ENB_MAC);
    expected.extend(ENB.octets());
    assert_eq!((port, &sent[14..]), (1, &expected[..]));
    let tagged = ethernet::build(GW1_MAC, ENB_MAC, Some(0), ethernet::IPV4, &user_packet());
    let zero = [Oxm::vlan_vid(Bits::new(0x1000).unwrap()), Oxm::eth_type(0x0800), Oxm::ipv4_src(UE1)];
    install(&mut pipeline, [add(0, 2, zero, Instructions::apply([output(2)]))]);
    assert_eq!(pass(&pipeline, 1, &tagged), (2, tagged));
}
