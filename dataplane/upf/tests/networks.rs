//! Several data networks: a UE is reached from its own only, as the PDI's network instance says (TS 29.244 §8.2.4).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod support;
#[path = "support/world.rs"]
mod world;

use pfcp::*;
use pktio::Port;
use pktio::memory::{self, Wire};
use support::*;
use telemetry::DropReason;
use upf::pipeline::Input;
use world::*;

/// A UPF with two data networks, and the far end of the second one.
fn two() -> (World, Wire) {
    let mut config = config("gw0");
    let ims = r#"{"name": "ims", "tun": "gw1", "ue_pool": {"ipv4": "10.46.0.0/16"}}"#;
    config.dnn.push(serde_json::from_str(ims).unwrap());
    let mut world = World::with_config(config);
    let (port, wire) = memory::pair(100);
    world.ports.n6[1] = Box::new(port) as Box<dyn Port>;
    (world, wire)
}

#[test]
fn a_ue_is_reached_from_its_own_data_network_only() {
    let down = udp(SERVER_V4.into(), UE_V4.into(), b"x");
    // Without a name the pool of the UE's address decides, which is internet's; otherwise the name, as text or labels.
    for (instance, expected) in [
        (None, 0),
        (Some(&b"internet"[..]), 0),
        (Some(b"ims"), 1),
        (Some(b"\x03ims"), 1),
        (Some(b"\x08internet"), 0),
        (Some(b"n6.elsewhere"), 0),
    ] {
        let (mut world, second) = two();
        let mut request = establishment(1);
        request.create_pdrs[1].pdi.network_instance = instance.map(Into::into);
        world.establish_by(&request);
        for network in [0, 1] {
            let wire = if network == 0 { &world.n6 } else { &second };
            wire.inject(&down, "0.0.0.0:0".parse().unwrap());
            world.run(Input::N6(network));
            let passed = usize::from(network == expected);
            assert_eq!(world.n3.take().len(), passed, "{instance:?} from {network}");
        }
        assert_eq!(world.drops(DropReason::DirectionMismatch), 1, "{instance:?}");
    }
}

#[test]
fn a_session_of_two_data_networks_is_refused() {
    let (mut world, _) = two();
    let mut request = establishment(1);
    let mut other = request.create_pdrs[1].clone();
    other.pdr_id = PdrId(9);
    other.pdi.network_instance = Some("ims".into());
    request.create_pdrs.push(other);
    let response = world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), &request, NOW).response;
    assert_eq!(response.cause, Cause::RULE_FAILURE);
    assert_eq!(response.failed_rule_id, Some(FailedRuleId::Pdr(PdrId(9).0)));
}

/// Buffered packets are released also if the last batch before their release came from another data network.
#[test]
fn buffered_packets_are_released_whichever_network_was_served_last() {
    let (mut world, second) = two();
    let (seid, ..) = world.establish();
    world.modify(seid, &update_far(2, ApplyAction::BUFF));
    for _ in 0..3 {
        world.downlink(&udp(SERVER_V4.into(), UE_V4.into(), b"x"));
    }
    second.inject(&udp(SERVER_V4.into(), [10, 46, 0, 9].into(), b"x"), "0.0.0.0:0".parse().unwrap());
    world.run(Input::N6(1));
    assert_eq!(world.drops(DropReason::UnknownUe), 1);
    world.modify(seid, &update_far(2, ApplyAction::FORW));
    world.pipeline.commands(world.now_ns, &mut world.ports);
    assert_eq!(world.n3.take().len(), 3);
}
