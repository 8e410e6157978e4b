//! The links of a gNB in parts, with real nodes: processes in namespaces of their own. Interfaces go down and up under load,
//! processes behind memifs are killed and come back, and links have IPv6 addresses only.

use std::collections::BTreeMap;

use lab::Model;
use net::link::Links;
use net::time::{Duration, sleep};
use packet::gtpu;
use serde_json::{Value, json};

use testkit::world::{World, establish, network};

use crate::split_control::recovers;
use crate::talk::{Talk, WINDOW};

/// Datagrams in each direction that are sent while an interface is down.
const LOST: u32 = 30;

/// A network with a gNB in parts whose configuration was changed.
fn in_parts(model: Model, edit: fn(&mut Value), test: impl AsyncFnOnce(&mut World) + Send) {
    let split = |options: &mut lab::Options| {
        options.split = Some(model);
        options.edit = Box::new(edit);
    };
    network(split, test);
}

/// What a process holds of the system: descriptors, and mappings of memory that is shared with other processes or devices.
fn holdings(world: &World, process: &str) -> (usize, usize) {
    let (_, id) = world.lab.processes().find(|(name, _)| *name == process).unwrap();
    let descriptors = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().count();
    let maps = std::fs::read_to_string(format!("/proc/{id}/maps")).unwrap();
    let shared = |line: &&str| line.split_whitespace().nth(1).is_some_and(|mode| mode.ends_with('s'));
    (descriptors, maps.lines().filter(shared).count())
}

/// A process holds no more than before, once it has cleaned up.
async fn holds_only(world: &World, process: &str, before: (usize, usize)) {
    let mut now = holdings(world, process);
    for _ in 0..100 {
        if now == before {
            return;
        }
        sleep(Duration::from_millis(50)).await;
        now = holdings(world, process);
    }
    panic!("{process} holds {now:?} descriptors and mappings, and {before:?} before");
}

/// Drops of a node by reason.
async fn drops(world: &World, nf: &str) -> BTreeMap<String, u64> {
    let stats = world.ask(nf, "/stats").await;
    serde_json::from_value(stats["drops"].clone()).unwrap()
}

/// Drops that are new.
fn new(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let added = |(reason, count): (&String, &u64)| {
        (reason.clone(), count - before.get(reason).copied().unwrap_or_default())
    };
    now.iter().map(added).filter(|(_, count)| *count > 0).collect()
}

/// The CU forgets the UE, and so does the DU.
async fn left(world: &World, talk: &mut Talk) {
    talk.ue.deregister(false).await.unwrap();
    world.until("cu", "/status", |status| status["detail"]["ues"] == 0).await;
}

/// The device of a link, and who sends over it: towards the UPF, and towards the UE.
struct Link {
    device: &'static str,
    up: &'static str,
    down: &'static str,
}

const F1U: Link = Link { device: "f1", up: "du", down: "cu" };
const N3: Link = Link { device: "n2", up: "cu", down: "upf" };

/// A link goes down at both ends and comes up again while packets flow. What is sent meanwhile is counted by who sent it.
async fn goes_down_and_up(world: &World, talk: &mut Talk, link: &Link) {
    let ends = [link.up, link.down].map(|end| Links::in_ns(world.lab.namespace_of(end)).unwrap());
    let down = async {
        for end in &ends {
            end.down(link.device).await.unwrap();
        }
    };
    tokio::join!(talk.send(60), down);
    talk.listen(Duration::from_millis(50)).await;

    let (first, device) = (talk.next, link.device);
    let before = [drops(world, link.up).await, drops(world, link.down).await];
    talk.send(LOST).await;
    for (end, before) in [link.up, link.down].into_iter().zip(&before) {
        let mut counted = BTreeMap::new();
        for _ in 0..100 {
            counted = new(before, &drops(world, end).await);
            // What kernels say of themselves.
            counted.remove("link_local");
            if counted.values().sum::<u64>() >= u64::from(LOST) {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        // A slow machine may still have had some of those before on their way, and an Echo Request is lost as well.
        let expected = u64::from(LOST)..=u64::from(LOST + WINDOW);
        let named = counted.get("tx_error").or(counted.get("neighbour_unresolved"));
        assert!(named.is_some_and(|count| expected.contains(count)), "{end}, {device} is down: {counted:?}");
        assert_eq!(counted.len(), 1, "{end}, while {device} is down: {counted:?}");
    }
    let last = [talk.up.last(), talk.down.last()];
    assert!(last.iter().all(|last| *last < Some(&first)), "{device} is down: {last:?} of {first}");

    let up = async {
        for end in &ends {
            end.up(link.device).await.unwrap();
        }
    };
    tokio::join!(talk.send(20), up);
    talk.resume().await;
    let first = talk.next;
    talk.send(100).await;
    talk.settle().await;
    talk.all_arrived_since(first);
    talk.once();
}

/// Both links of a gNB in parts, each twice: what the first time leaves behind may hinder the second one.
async fn links_go_down_and_up(world: &mut World) {
    let radio = world.radio().await;
    let mut ue = world.ue(&radio.cells().next().unwrap(), 0);
    ue.register().await.unwrap();
    establish(&mut ue, 1).await.unwrap();
    let mut talk = Talk::new(world, ue);
    talk.resume().await;
    let first = talk.next;
    talk.send(50).await;
    talk.settle().await;
    talk.all_arrived_since(first);
    let units = ["cu", "du"];
    let before = units.map(|unit| holdings(world, unit));
    for link in [F1U, N3, F1U, N3] {
        goes_down_and_up(world, &mut talk, &link).await;
    }
    for (unit, before) in units.into_iter().zip(before) {
        holds_only(world, unit, before).await;
    }
    left(world, &mut talk).await;
}

#[test]
fn links_of_the_kernel_go_down_and_up_under_load() {
    in_parts(Model::Kernel, |_| (), links_go_down_and_up);
}

/// AF_XDP on F1-U and N3: the devices are still the kernel's for F1-C and N2.
fn af_xdp(configuration: &mut Value) {
    let mut link = |pointer: &str, device: &str| {
        let link = configuration.pointer_mut(pointer).unwrap();
        link["backend"] = "af_xdp".into();
        link["device"] = device.into();
    };
    link("/cu/f1u/0", "f1");
    link("/cu/n3", "n2");
    link("/du/f1u", "f1");
    let gtpu = configuration["upf"].as_object_mut().unwrap().remove("gtpu").unwrap();
    upf_interfaces(
        configuration,
        json!({"name": "n3", "role": "n3", "gtpu": gtpu, "backend": "af_xdp", "device": "n2"}),
    );
}

/// The UPF's interfaces by name: this one for N3, and one for the SMF.
fn upf_interfaces(configuration: &mut Value, n3: Value) {
    let n4u = json!({"name": "n4u", "role": "n4u", "gtpu": format!("127.0.0.7:{}", gtpu::PORT)});
    configuration["upf"]["interfaces"] = json!([n3, n4u]);
}

#[test]
fn links_past_the_kernel_go_down_and_up_under_load() {
    in_parts(Model::Kernel, af_xdp, links_go_down_and_up);
}

/// A UE of a network whose F1-U is a memif loses one of its nodes, which is killed and comes back.
async fn is_killed(world: &mut World, node: &'static str, other: &'static str) {
    let radio = world.radio().await;
    let mut ue = world.ue(&radio.cells().next().unwrap(), 0);
    ue.register().await.unwrap();
    establish(&mut ue, 1).await.unwrap();
    let mut talk = Talk::new(world, ue);
    talk.resume().await;
    let before = holdings(world, other);
    let lost_before = drops(world, other).await;
    tokio::join!(talk.send(60), async { world.lab.kill(node).await.unwrap() });
    talk.listen(Duration::from_millis(50)).await;
    talk.send(LOST).await;
    let lost = new(&lost_before, &drops(world, other).await);
    world.lab.restart(node).await.unwrap();
    talk.notice().await;
    recovers(&mut talk.ue).await;
    talk.resume().await;
    let first = talk.next;
    talk.send(100).await;
    talk.settle().await;
    talk.all_arrived_since(first);
    talk.once();
    // The memory of the memif that has gone is given back, and its descriptors are closed.
    holds_only(world, other, before).await;
    assert!(lost.contains_key("tx_queue_full") || lost.contains_key("peer_gone"), "{other}: {lost:?}");
    left(world, &mut talk).await;
}

#[test]
fn a_du_behind_a_memif_is_killed_and_comes_back() {
    in_parts(Model::Hybrid, |_| (), async |world| is_killed(world, "du", "cu").await);
}

#[test]
fn a_cu_behind_a_memif_is_killed_and_comes_back() {
    in_parts(Model::Hybrid, |_| (), async |world| is_killed(world, "cu", "du").await);
}

/// IPv6 only on `uu`, F1-U and N3, and F1-C as well.
fn ipv6(configuration: &mut Value) {
    let place = |link: &str, host: u8, port: u16| json!(format!("[fd00:{link}::{host}]:{port}"));
    let (gtp, uu) = (gtpu::PORT, l2::uu::PORT);
    configuration["cu"]["f1c"] = place("202", 1, f1ap::PORT);
    configuration["cu"]["f1u"][0]["gtpu"] = place("202", 1, gtp);
    configuration["cu"]["n3"]["gtpu"] = place("200", 2, gtp);
    configuration["du"]["f1c"] = json!({"local": "fd00:202::2", "cu": place("202", 1, f1ap::PORT)});
    configuration["du"]["f1u"]["gtpu"] = place("202", 2, gtp);
    configuration["du"]["uu"]["gtpu"] = place("203", 1, uu);
    configuration["ran"]["uu"]["gtpu"] = place("203", 2, uu);
    configuration["ran"]["cells"][0]["du"] = place("203", 1, uu);
    configuration["smf"]["n3"] = "ipv6".into();
    configuration["upf"].as_object_mut().unwrap().remove("gtpu");
    upf_interfaces(configuration, json!({"name": "n3", "role": "n3", "gtpu": place("200", 1, gtp)}));
}

fn ipv6_past_the_kernel(configuration: &mut Value) {
    ipv6(configuration);
    for (pointer, device) in [
        ("/ran/uu", "uu"),
        ("/du/uu", "uu"),
        ("/du/f1u", "f1"),
        ("/cu/f1u/0", "f1"),
        ("/cu/n3", "n2"),
        ("/upf/interfaces/0", "n2"),
    ] {
        let link = configuration.pointer_mut(pointer).unwrap();
        link["backend"] = "af_xdp".into();
        link["device"] = device.into();
    }
}

/// Packets of UEs pass links whose addresses are IPv6.
async fn talks(world: &mut World) {
    let radio = world.radio().await;
    let mut ue = world.ue(&radio.cells().next().unwrap(), 0);
    ue.register().await.unwrap();
    establish(&mut ue, 1).await.unwrap();
    let mut talk = Talk::new(world, ue);
    // The first packets may take the way through the kernel while the next hop is resolved.
    talk.resume().await;
    let first = talk.next;
    talk.send(200).await;
    talk.settle().await;
    talk.all_arrived_since(first);
    for unit in ["cu", "du", "upf"] {
        let mut dropped = drops(world, unit).await;
        // The first packets, and what the kernel says on the UPF's device by itself.
        dropped.retain(|reason, _| !["neighbour_unresolved", "link_local"].contains(&reason.as_str()));
        assert!(dropped.is_empty(), "{unit}: {dropped:?}");
    }
    left(world, &mut talk).await;
}

#[test]
fn links_of_the_kernel_have_ipv6_addresses() {
    in_parts(Model::Kernel, ipv6, talks);
}

#[test]
fn links_past_the_kernel_have_ipv6_addresses() {
    in_parts(Model::Kernel, ipv6_past_the_kernel, talks);
}
