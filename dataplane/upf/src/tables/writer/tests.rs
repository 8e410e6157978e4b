//! What the writer publishes, and its state after a refusal.

use std::sync::atomic::Ordering::Relaxed;

use classifier::Filter;

use super::*;
use crate::plan::{Action, Arrival, UeAddresses};
use crate::state::Writers;

#[test]
fn framed_routes_find_the_session_by_the_longest_prefix_and_go_with_it() {
    let text = r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152",
        "dnn": [{"name": "internet", "tun": "gw0", "ue_pool": {"ipv4": "10.45.0.0/16"}}]}"#;
    let config: Config = serde_json::from_str(text).unwrap();
    let tables = Arc::new(Tables::new(&config));
    let mut writer = Writer::new(Arc::clone(&tables), &config, 1);
    let plan = |seid, route: &str, length| Plan {
        seid,
        native: UeAddresses { framed: vec![(route.parse().unwrap(), length)], ..Default::default() },
        arrivals: vec![Arrival { place: Place::Native, rules: Vec::new() }],
        ..Plan::default()
    };
    let wide = writer.establish(&plan(1, "192.0.2.0", 24)).unwrap();
    let narrow = writer.establish(&plan(2, "192.0.2.128", 25)).unwrap();
    let six = writer.establish(&plan(3, "fd00:46::", 32)).unwrap();
    let owner = |address: &str| tables.owner_of_ue(address.parse().unwrap());
    let found = || ["192.0.2.1", "192.0.2.129", "192.0.3.1", "fd00:46:7::1"].map(owner);
    assert_eq!(found(), [Some(1), Some(2), None, Some(3)]);
    writer.remove(narrow);
    assert_eq!(found(), [Some(1), Some(1), None, Some(3)]);
    writer.remove(wide);
    writer.remove(six);
    assert_eq!((found(), writer.memory_bytes()), ([None; 4], 0));
}

fn tables(pools: &str, classifier: &str) -> (Arc<Tables>, Writer) {
    let text = format!(
        r#"{{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "classifier": "{classifier}",
            "dnn": [{{"name": "internet", "tun": "gw0", "ue_pool": {{{pools}}}}}]}}"#
    );
    let config: Config = serde_json::from_str(&text).unwrap();
    let tables = Arc::new(Tables::new(&config));
    let writer = Writer::new(Arc::clone(&tables), &config, 1);
    (tables, writer)
}

fn native(seid: u64, native: UeAddresses) -> Plan {
    let arrivals = vec![Arrival { place: Place::Native, rules: Vec::new() }];
    Plan { seid, native, arrivals, ..Plan::default() }
}

#[test]
fn ipv6_prefixes_find_the_session_by_their_whole_length_inside_a_pool_and_outside() {
    let (tables, mut writer) = tables(r#""ipv6": "fd00:45::/48""#, "auto");
    let plan = |seid, prefix: &str, length| {
        let ipv6 = vec![(prefix.parse().unwrap(), length)];
        native(seid, UeAddresses { ipv6, ..UeAddresses::default() })
    };
    let plans = [
        plan(1, "fd00:45:0:100::", 56),
        plan(2, "fd00:45:0:180::", 64),
        plan(3, "fd00:45:0:200::7", 128),
        plan(4, "fd00:46::", 60),
    ];
    let sessions = plans.map(|plan| writer.establish(&plan).unwrap());
    let owner = |address: &str| tables.owner_of_ue(address.parse().unwrap());
    for (address, seid) in [
        ("fd00:45:0:100::1", Some(1)),
        ("fd00:45:0:1ff:5::", Some(1)),
        ("fd00:45:0:180::1", Some(2)),
        ("fd00:45:0:200::7", Some(3)),
        ("fd00:45:0:200::8", None),
        ("fd00:46:0:f::1", Some(4)),
        ("fd00:46:0:10::1", None),
    ] {
        assert_eq!(owner(address), seid, "{address}");
        assert_eq!(
            writer.owner_of_ue(writer.native_instance(None), address.parse().unwrap()),
            seid,
            "{address}"
        );
    }
    sessions.into_iter().for_each(|session| writer.remove(session));
    assert_eq!((owner("fd00:45:0:180::1"), writer.memory_bytes()), (None, 0));
}

#[test]
fn when_no_slot_is_left_a_session_is_refused_and_nothing_changes() {
    let (tables, mut writer) = tables(r#""ipv4": "10.45.0.0/16""#, "auto");
    writer.next_sparse = SPARSE as u32 - 1;
    let plan = |seid, addresses: &[&str]| {
        let ipv4 = addresses.iter().map(|address| address.parse().unwrap()).collect();
        native(seid, UeAddresses { ipv4, ..UeAddresses::default() })
    };
    let mut session = writer.establish(&plan(1, &["192.0.2.1", "10.45.0.2"])).unwrap();
    let before = writer.memory_bytes();
    for _ in 0..3 {
        let refused = writer.establish(&plan(2, &["10.45.0.3", "192.0.2.2"])).map(|_| ());
        assert!(matches!(refused, Err(PlanError::Full(_))), "{refused:?}");
        assert!(writer.modify(&mut session, &plan(1, &["192.0.2.1", "192.0.2.2"]), Held::Sent).is_err());
    }
    let owner = |address: &str| tables.owner_of_ue(address.parse().unwrap());
    assert_eq!((owner("192.0.2.1"), owner("10.45.0.2"), owner("10.45.0.3")), (Some(1), Some(1), None));
    assert_eq!(writer.memory_bytes(), before);
    writer.remove(session);
    // The slot is reused when no worker can see its old content any more.
    writer.establish(&plan(2, &["10.45.0.3", "192.0.2.2"])).unwrap();
    assert_eq!(owner("192.0.2.2"), Some(2));
}

/// Either all rules are served, or the session is refused as a whole.
#[test]
fn a_session_with_every_pdr_there_can_be_is_served_or_refused_as_a_whole() {
    let (tables, mut writer) = tables(r#""ipv4": "10.45.0.0/16""#, "list");
    let pdr = |id, urrs: &[u16]| crate::plan::Pdr {
        id,
        direction: crate::plan::Direction::Uplink,
        check_source: false,
        action: Action::Drop,
        notify: false,
        duplicates: Vec::new(),
        qers: Vec::new(),
        urrs: urrs.to_vec(),
        qfi: None,
        rqi: false,
        ppi: None,
    };
    let teid = writer.allocate(0).unwrap();
    let port = |port| Some(classifier::PortRange::single(port));
    let rules = (0..=u16::MAX).map(|id| {
        let filter = Filter { destination_ports: port(id), ..Filter::default() };
        Rule { id: id.into(), precedence: 1, value: id.into(), filter }
    });
    let mut plan = Plan {
        seid: 1,
        arrivals: vec![Arrival { place: Place::Tunnel(teid), rules: rules.collect() }],
        pdrs: (0..=u16::MAX).map(|id| pdr(id, &[])).collect(),
        ..Plan::default()
    };
    let session = writer.establish(&plan).unwrap();
    let (slots, index) = tables.instance(0).place_of_teid(teid);
    let block = writer.arena.get(slots, index).unwrap();
    assert!((0..=u16::MAX).all(|id| session::entry(block, id.into()).unwrap().pdr == id));
    writer.remove(session);
    // A further entry for each PDR; all share one list.
    let at = crate::plan::Mark {
        measure: crate::plan::Measure::Total,
        kind: crate::plan::MarkKind::Threshold,
        at: 1000,
    };
    plan.urrs = (0..1000).map(|id| crate::plan::Urr { id, marks: vec![at] }).collect();
    plan.pdrs = (0..=u16::MAX).map(|id| pdr(id, &[0])).collect();
    let teid = writer.allocate(0).unwrap();
    plan.arrivals[0].place = Place::Tunnel(teid);
    let session = writer.establish(&plan).unwrap();
    let (slots, index) = tables.instance(0).place_of_teid(teid);
    let block = writer.arena.get(slots, index).unwrap();
    for id in 0..=u16::MAX {
        // A gauge, and the end of the list.
        let entry = session::entry(block, session::entry_position(id.into(), 2)).unwrap();
        assert_eq!((entry.pdr, entry.more()), (id, 2));
    }
    writer.remove(session);
    // More URR combinations than there are counters.
    plan.pdrs = (0..=u16::MAX).map(|id| pdr(id, &[id % 1000])).collect();
    let teid = writer.allocate(0).unwrap();
    plan.arrivals[0].place = Place::Tunnel(teid);
    assert!(matches!(writer.establish(&plan), Err(PlanError::TooMany(_))));
    assert_eq!((writer.memory_bytes(), tables.owner_of_teid(teid)), (0, None));
}

#[test]
fn what_a_session_counted_is_not_the_next_ones() {
    let (lines, mut space) = (Lines::default(), StateSpace::default());
    let first = space.take(&lines, Region::OWN, STATE_LINES).unwrap();
    let cells = Cells::new(&lines, first);
    (0..=u8::MAX).for_each(|cell| cells.set(cell, [7, 7]));
    space.give_back(first, STATE_LINES);
    assert_eq!(space.take(&lines, Region::OWN, STATE_LINES), Some(first));
    assert!((0..=u8::MAX).all(|cell| cells.get(cell) == [0; 2]));
}

/// Readers outside this process, all of which read until the test says that they have finished.
#[derive(Clone, Default)]
struct Elsewhere(Arc<[std::sync::atomic::AtomicU64; 2]>);

impl Elsewhere {
    fn finish(&self) {
        let [taken, oldest] = &*self.0;
        oldest.store(taken.load(Relaxed) + 1, Relaxed);
    }
}

impl rcu::Source for Elsewhere {
    fn take(&self) -> u64 {
        self.0[0].fetch_add(1, Relaxed) + 1
    }

    fn oldest(&self) -> u64 {
        self.0[1].load(Relaxed)
    }
}

#[test]
fn state_is_used_again_only_when_readers_elsewhere_have_finished() {
    let text = r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "dnn": []}"#;
    let config: Config = serde_json::from_str(text).unwrap();
    let tables = Arc::new(Tables::new(&config));
    let elsewhere = Elsewhere::default();
    tables.domain().add_source(Box::new(elsewhere.clone())).unwrap();
    let mut writer = Writer::new(Arc::clone(&tables), &config, 1);
    let establish = |writer: &mut Writer| {
        let arrivals = vec![Arrival { place: Place::Tunnel(writer.allocate(0).unwrap()), rules: Vec::new() }];
        writer.establish(&Plan { seid: 1, arrivals, ..Plan::default() }).unwrap()
    };
    let first = establish(&mut writer);
    let line = first.state.first;
    writer.remove(first);
    let second = establish(&mut writer);
    assert_ne!(second.state.first, line, "somebody may still count there");
    elsewhere.finish();
    assert_eq!(establish(&mut writer).state.first, line);
}

/// A refused change leaves the present rate in force. That two rules have the same id is found last.
#[test]
fn a_refused_change_leaves_rates_as_they_were() {
    let text = r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "classifier": "list",
        "dnn": [{"name": "internet", "tun": "gw0", "ue_pool": {"ipv4": "10.45.0.0/16"}}]}"#;
    let config: Config = serde_json::from_str(text).unwrap();
    let tables = Arc::new(Tables::new(&config));
    let mut writer = Writer::new(Arc::clone(&tables), &config, 1);
    let teid = writer.allocate(0).unwrap();
    let enforcement =
        |kbps| crate::plan::Enforcement { mbr_kbps: Some(kbps), ..crate::plan::Enforcement::OPEN };
    let plan = |kbps, ids: [u32; 2]| {
        let rule = |(id, protocol): (u32, u8)| Rule {
            id,
            precedence: 1,
            value: 0,
            filter: Filter { protocol: Some(protocol), ..Filter::default() },
        };
        Plan {
            seid: 1,
            arrivals: vec![Arrival {
                place: Place::Tunnel(teid),
                rules: ids.into_iter().zip([6, 17]).map(rule).collect(),
            }],
            pdrs: vec![crate::plan::Pdr {
                id: 1,
                direction: crate::plan::Direction::Uplink,
                check_source: false,
                action: Action::Drop,
                notify: false,
                duplicates: Vec::new(),
                qers: vec![0],
                urrs: Vec::new(),
                qfi: None,
                rqi: false,
                ppi: None,
            }],
            qers: vec![crate::plan::Qer { id: 1, uplink: enforcement(kbps), downlink: enforcement(kbps) }],
            ..Plan::default()
        }
    };
    let mut session = writer.establish(&plan(1000, [1, 2])).unwrap();
    let cells = Cells::new(&tables.lines, session.state.first);
    let rates = || -> Vec<u64> { (0..4).map(|cell| cells.get(cell)[1]).collect() };
    let before = rates();
    assert!(before.contains(&crate::state::rate(1000)));
    assert!(writer.modify(&mut session, &plan(2000, [7, 7]), Held::Sent).is_err());
    assert_eq!(rates(), before);
    writer.modify(&mut session, &plan(2000, [1, 2]), Held::Sent).unwrap();
    assert!(rates().contains(&crate::state::rate(2000)));
}

/// A defect in the middle of an establishment: tunnels and addresses are as before.
#[test]
fn what_a_request_did_is_taken_back() {
    let text = r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "max_tunnels": 8,
        "dnn": [{"name": "internet", "tun": "gw0", "ue_pool": {"ipv4": "10.45.0.0/16"}}]}"#;
    let config: Config = serde_json::from_str(text).unwrap();
    let tables = Arc::new(Tables::new(&config));
    let mut writer = Writer::new(Arc::clone(&tables), &config, 1);
    let plan = |seid, teid, address: &str| Plan {
        seid,
        ue: UeAddresses::default(),
        native: UeAddresses { ipv4: vec![address.parse().unwrap()], ..UeAddresses::default() },
        arrivals: [Place::Tunnel(teid), Place::Native]
            .map(|place| Arrival { place, rules: Vec::new() })
            .into(),
        ..Plan::default()
    };
    writer.begin();
    let kept_teid = writer.allocate(0).unwrap();
    let _kept = writer.establish(&plan(1, kept_teid, "10.45.0.2")).unwrap();
    for _ in 0..50 {
        writer.begin();
        let teid = writer.allocate(0).unwrap();
        let spare = writer.allocate(0).unwrap();
        assert!(writer.assign(0x7700_0001, 0));
        let published = writer.establish(&plan(2, teid, "10.45.0.3")).unwrap();
        assert_eq!(tables.owner_of_ue("10.45.0.3".parse().unwrap()), Some(2));
        // The panic: the session was not recorded.
        drop(published);
        writer.roll_back(|seid| seid == 1);
        assert_eq!(tables.owner_of_ue("10.45.0.3".parse().unwrap()), None);
        assert!(tables.owner_of_teid(teid).is_none() && !writer.is_allocated(spare));
    }
    assert_eq!(tables.owner_of_teid(kept_teid), Some(1));
    assert_eq!(tables.owner_of_ue("10.45.0.2".parse().unwrap()), Some(1));
}

#[test]
fn a_region_that_is_full_leaves_new_sessions_to_the_process() {
    let text = r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "dnn": []}"#;
    let config: Config = serde_json::from_str(text).unwrap();
    let tables = Arc::new(Tables::new(&config));
    let mut writer = Writer::new(Arc::clone(&tables), &config, 1);
    let shared = pktio::bpf::SharedLines::new(1).unwrap();
    let count = shared.count();
    let region = tables.add_state_region(Box::new(shared)).unwrap();
    writer.place_state_in(region);
    let establish = |writer: &mut Writer| {
        let arrivals = vec![Arrival { place: Place::Tunnel(writer.allocate(0).unwrap()), rules: Vec::new() }];
        writer.establish(&Plan { seid: 1, arrivals, ..Plan::default() }).unwrap()
    };
    let first = establish(&mut writer);
    assert_eq!(first.state.first, region.line(0));
    // The others, except those that the run before it does not leave room for.
    let runs: Vec<u32> =
        std::iter::from_fn(|| writer.states.take(&tables.lines, region, STATE_LINES)).collect();
    assert_eq!(runs.len() as u32, count / STATE_LINES - 1);
    assert!(runs.iter().all(|run| Region::of(*run) == region));
    while writer.states.take(&tables.lines, region, 1).is_some() {}
    let second = establish(&mut writer);
    assert_eq!(Region::of(second.state.first), Region::OWN);
    // Lines go back to the region from which they came.
    let state = second.state.first;
    writer.remove(first);
    writer.remove(second);
    assert_eq!(establish(&mut writer).state.first, region.line(0));
    assert_eq!(establish(&mut writer).state.first, state);
}

/// Cells change hands only by being replaced: a worker that still reads the former rules counts in the former cells.
#[test]
fn a_session_gets_new_cells_when_other_workers_write_them() {
    let (tables, mut writer) = tables(r#""ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48""#, "auto");
    const WORKERS: u32 = 4;
    tables.share_between(WORKERS);
    let v4 = |owner| {
        let mut addresses = (1..).map(|host| std::net::Ipv4Addr::from([10, 45, 0, host]));
        addresses.find(|address| pktio::owner::of_address((*address).into(), WORKERS) == owner).unwrap()
    };
    let pdr = crate::plan::Pdr {
        id: 1,
        direction: crate::plan::Direction::Downlink,
        check_source: false,
        action: Action::Drop,
        notify: false,
        duplicates: Vec::new(),
        qers: Vec::new(),
        urrs: Vec::new(),
        qfi: None,
        rqi: false,
        ppi: None,
    };
    let rule = Rule { id: 1, precedence: 1, value: 0, filter: Filter::default() };
    let plan = |ipv4: &[std::net::Ipv4Addr], framed: &[(IpAddr, u8)]| Plan {
        arrivals: vec![Arrival { place: Place::Native, rules: vec![rule] }],
        pdrs: vec![pdr.clone()],
        ..native(1, UeAddresses { ipv4: ipv4.into(), framed: framed.into(), ..UeAddresses::default() })
    };
    let writers = |session: &Session| -> Vec<Writers> {
        let mut reader = tables.domain.reader();
        let inside = reader.enter();
        session.keys.iter().map(|key| tables.block(&inside, key).unwrap()[0].writers()).collect()
    };
    let mut session = writer.establish(&plan(&[v4(1)], &[])).unwrap();
    assert_eq!(writers(&session), [Writers::One]);
    let route = [("192.0.2.0".parse().unwrap(), 24)];
    // Addresses, routes, whether this needs other cells, and who writes them.
    let changes = [
        (vec![v4(1)], &[][..], false, Writers::One),
        (vec![v4(2)], &[], true, Writers::One),
        (vec![v4(2), v4(1)], &[], true, Writers::Many),
        (vec![v4(2), v4(3)], &[], false, Writers::Many),
        (vec![v4(3)], &[], true, Writers::One),
        (vec![], &[], false, Writers::One),
        (vec![v4(3)], &[], false, Writers::One),
        (vec![], &[], false, Writers::One),
        (vec![v4(1)], &[], true, Writers::One),
        (vec![v4(1)], &route, true, Writers::Many),
    ];
    for (number, (ipv4, framed, replaces, expected)) in changes.into_iter().enumerate() {
        let before = session.state.first;
        writer.modify(&mut session, &plan(&ipv4, framed), Held::Sent).unwrap();
        assert_eq!(session.state.first != before, replaces, "change {number}");
        assert!(writers(&session).iter().all(|writers| *writers == expected), "change {number}");
    }
    // Former cells are used again.
    for round in 0..1000 {
        writer.modify(&mut session, &plan(&[v4(round % WORKERS)], &[]), Held::Sent).unwrap();
        assert!(session.state.first < 8, "line {}", session.state.first);
    }
}
