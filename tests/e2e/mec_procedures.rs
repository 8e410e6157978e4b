//! UEs that are moved while other procedures change them: they hand over to another eNB, get, change and lose bearers, or detach.
//!
//! Procedures are begun while a call of the orchestrator is held (`proxy.rs`). Afterwards all must be as `mec_world.rs` says.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use gtpv2c::PdnType;
use lab::edge::{SITES, Site};
use net::process::Command;
use net::time::{self, Duration};
use serde_json::{Value, json};

use crate::anchors::{edit, kill_at};
use crate::cell::Do;
use crate::flow::until;
use crate::mec_move::{DN_PORT, UE_PORT};
use crate::mec_world::{DEDICATED, LOOK_MS, OLD_WAYS, ORIGIN, SOON, Setup, WINDOW, World, sessions};
use crate::proxy::Phase;

/// A call that is to be held comes within this time.
const COMES: Duration = Duration::from_secs(10);
/// So rarely does the orchestrator look that no look helps a test.
const NO_LOOK_MS: u64 = 600_000;
/// Downlink packets that may be lost when a UE leaves a base station or a bearer: the UE does so when the original anchor says that it has sent the
/// last packet (End Marker), and the anchor at the edge is told a moment later. Half of the times it is at most so many.
const LEFT_EARLY: usize = 20;
/// And never more than these, which are 100 ms: one that is not told loses all until the next look.
const LEFT_EARLY_AT_MOST: usize = 100;

/// Checks what was lost each time that a UE left a base station or a bearer. A busy machine may be late at times, not always.
fn assert_few_left_early(mut lost: Vec<usize>) {
    lost.sort_unstable();
    let middle = lost[(lost.len() - 1) / 2];
    assert!(middle <= LEFT_EARLY && lost.iter().all(|lost| *lost <= LEFT_EARLY_AT_MOST), "{lost:?}");
}

/// A UE that follows its base station is moved to the host next to it, and back; one that does not is diverted at the new one.
#[tokio::test(flavor = "multi_thread")]
async fn ues_hand_over_at_the_edge() {
    let world = World::start(Setup { sites: 2, ..Setup::default() }).await;
    world.moved(&[0], SITES[0].host, json!({"follow": true})).await;
    world.moved(&[1], SITES[0].host, json!({})).await;
    world.settled_as(&[1, 1]).await;
    let mut left_early = Vec::new();
    for (enb, expected) in [(1, [2, 1]), (0, [1, 1])] {
        let first = world.traffic().next();
        for ue in &world.ues {
            ue.does(Do::HandOver(enb)).await;
        }
        world.settled_as(&expected).await;
        // Both gateways at the edge gave other addresses. The first UE is moved between them without order.
        for (found, (port, ue)) in world.found(first).await.into_iter().zip(&world.ports) {
            let is_downlink = *port < DN_PORT;
            left_early.extend((is_downlink && *ue == 1).then_some(found.lost));
            assert!(
                (is_downlink || found.lost == 0) && found.doubled == 0,
                "eNB {enb}: {found:?} to port {port}"
            );
        }
        let after = world.traffic().next();
        time::sleep(WINDOW).await;
        world.all_came(after, "at the new eNB").await;
    }
    assert_few_left_early(left_early);
    world.moved(&[0, 1], ORIGIN, json!({})).await;
    world.settled_as(&[0, 0]).await;
    world.stop().await;
}

/// A UE at the edge hands over, and gets, changes and gives back a bearer, while the orchestrator does not look: nothing waits for it, in either
/// direction, and nothing goes by another anchor but what is sent in a new bearer.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_look_at_the_edge() {
    let mut world = World::start(Setup { look_ms: NO_LOOK_MS, ..Setup::default() }).await;
    world.warm_up().await;
    world.moved(&world.all(), SITES[0].host, json!({})).await;
    world.settled_as(&[1, 1]).await;
    time::sleep(2 * OLD_WAYS).await;
    let bearer = Do::AskForBearer(DN_PORT + DEDICATED);
    let (mut had_bearer, mut left_early) = (false, Vec::new());
    let what = [Do::HandOver(1), Do::HandOver(0), bearer, Do::HandOver(1), Do::GetRate(400_000)];
    for what in what.into_iter().chain([Do::HandOver(0), Do::GiveBearerBack, Do::HandOver(1)]) {
        let (first, before) = (world.traffic().next(), world.come.counts().await);
        let is_of_bearer = matches!(what, Do::AskForBearer(_) | Do::GiveBearerBack);
        // Before or after.
        had_bearer = had_bearer || is_of_bearer;
        world.ues[0].does(what).await;
        time::sleep(WINDOW).await;
        let after = world.come.counts().await;
        for (found, (port, ue)) in world.found(first).await.into_iter().zip(&world.ports) {
            let come = |anchor: usize| {
                let count =
                    |counts: &[BTreeMap<u16, u64>]| counts[anchor].get(port).copied().unwrap_or_default();
                count(&after) - count(&before)
            };
            let context = format!("{what:?}: port {port} of UE {ue}: {found:?}");
            let is_leaving = matches!(what, Do::HandOver(_) | Do::GiveBearerBack) && *ue == 0;
            let may_leave_early = is_leaving && *port < DN_PORT;
            left_early.extend(may_leave_early.then_some(found.lost));
            assert!((may_leave_early || found.lost == 0) && found.doubled == 0, "{context}");
            // What a UE sends in a bearer of which the diversion does not know goes by the original anchor, which has it.
            let is_known = *port != DN_PORT + DEDICATED || !had_bearer;
            assert!(
                !is_known || come(0) == 0 && come(1) > 0,
                "{context}: {} packets by the original anchor",
                come(0)
            );
        }
        had_bearer &= !matches!(what, Do::GiveBearerBack);
    }
    assert_few_left_early(left_early);
    // From here on it looks again, and finds that UEs have left.
    edit(&world.lab, "orchestrator", |own| own["times"]["look_ms"] = json!(LOOK_MS));
    world.lab.kill("orchestrator").await.unwrap();
    world.lab.restart_part("orchestrator").unwrap();
    world.settled_as(&[1, 1]).await;
    world.stop().await;
}

/// The calls by which UEs are moved there and back, by host, so that each begins where the one before has ended.
const CALLS: [(&str, &str); 4] = [
    (SITES[0].host, "POST /v1/replicas"),
    (ORIGIN, "POST /v1/diversions/remove"),
    (SITES[0].host, "POST /v1/diversions?order=keep"),
    (ORIGIN, "POST /v1/replicas/remove"),
];
const PHASES: [Phase; 3] = [Phase::Before, Phase::During(Duration::ZERO), Phase::After];

impl World {
    /// Moves all UEs and some more, and does something while a call of the move is held; the move, which has ended.
    async fn during(
        &self,
        (to, call): (&str, &str),
        phase: Phase,
        further: &[String],
        work: impl AsyncFnOnce(),
    ) -> Value {
        let comes = self.proxy.hold(call, 1, phase);
        let asked = self.begin(&self.all(), further, to, json!({}));
        let Ok(Ok(held)) = time::timeout(COMES, comes).await else { panic!("{call} does not come") };
        work().await;
        drop(held);
        let one = asked.await.unwrap();
        assert_eq!(one["ended"], true, "{one}");
        one
    }

    /// Has the first UE do something while a call of a move of all is held, and waits until all is as it should be.
    async fn between(&self, (to, call): (&str, &str), phase: Phase, what: Do) {
        let one = self.during((to, call), phase, &[], async || self.ues[0].does(what).await).await;
        assert_eq!(one["state"], "done", "{one}");
        self.settled_as(&vec![usize::from(to != ORIGIN); self.ues.len()]).await;
    }

    /// Entries of both switches.
    async fn entries(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for name in ["n3", "n6"] {
            let status = self.lab.switch_status(name).await.unwrap();
            for entry in status["entries"].as_array().into_iter().flatten() {
                let what = ["table", "priority", "match", "actions"].map(|member| &entry[member]);
                all.insert(format!("{name} {what:?}"));
            }
        }
        all
    }

    /// Has all that comes to the first site by N3 dropped, or no longer.
    async fn cut(&self, is_cut: bool) {
        let rules = match is_cut {
            true => {
                "add table netdev cut
                add chain netdev cut ingress { type filter hook ingress device n2 priority 0; policy drop; }"
            }
            false => "delete table netdev cut",
        };
        let file = self.lab.folder().join("cut.nft");
        std::fs::write(&file, rules).unwrap();
        let nft = Command::new("nft").arg("-f").arg(&file).namespace(self.lab.site(&SITES[0]));
        assert!(nft.output(SOON).await.unwrap().status.success());
    }

    async fn answers(&self, site: &Site, expected: bool) {
        until("the controller knows whether the anchor answers", async || {
            let anchors = self.lab.controller("GET", "/v1/anchors", None).await.ok()?;
            let own = anchors["anchors"].as_array()?.iter().find(|one| one["name"] == site.anchor)?.clone();
            (own["alive"] == expected).then_some(())
        })
        .await;
    }
}

/// A UE hands over at each step of a move: it is at the new eNB wholly by the anchor to which it was moved.
#[tokio::test(flavor = "multi_thread")]
async fn a_ue_hands_over_while_it_is_moved() {
    let world = World::start(Setup::default()).await;
    let mut enb = 0;
    for phase in PHASES {
        for call in CALLS {
            enb = 1 - enb;
            world.between(call, phase, Do::HandOver(enb)).await;
        }
    }
    let first = world.traffic().next();
    time::sleep(Duration::from_millis(300)).await;
    world.all_came(first, "in the end").await;
    world.stop().await;
}

/// A UE gets a bearer, has its rates changed and gives the bearer back at each step of a move: nothing is lost, and both anchors have the
/// same of it.
#[tokio::test(flavor = "multi_thread")]
async fn bearers_change_while_their_ue_is_moved() {
    let world = World::start(Setup::default()).await;
    world.warm_up().await;
    let mut round = 0;
    for phase in PHASES {
        // Three for four steps, so that each meets each.
        for call in CALLS {
            let what =
                [Do::AskForBearer(DN_PORT + DEDICATED), Do::GetRate(500_000 + round), Do::GiveBearerBack]
                    [round as usize % 3];
            let first = world.traffic().next();
            world.between(call, phase, what).await;
            for (found, (port, _)) in world.found(first).await.into_iter().zip(&world.ports) {
                // A bearer that comes or goes takes its packets from another tunnel, which is steered only when a look has seen it.
                let is_steered = *port != UE_PORT + DEDICATED && *port != DN_PORT + DEDICATED;
                let is_well = (found.lost, found.doubled, found.reordered) == (0, 0, 0);
                assert!(is_well || !is_steered, "{call:?} {phase:?} {what:?}: {found:?} to port {port}");
            }
            round += 1;
        }
    }
    world.stop().await;
}

/// A UE detaches at each step of a move: nothing of it is left anywhere, and who is moved with it is wholly on one anchor.
#[tokio::test(flavor = "multi_thread")]
async fn a_ue_detaches_while_it_is_moved() {
    let mut world = World::start(Setup { ues: 1, ..Setup::default() }).await;
    world.warm_up().await;
    // Rules of old ways end, too.
    time::sleep(2 * OLD_WAYS).await;
    let entries = world.entries().await;
    for phase in PHASES {
        for call in CALLS {
            let leaves = world.cell.attach().await;
            if call.0 == ORIGIN {
                let there = world.begin(&[], &[leaves.id()], SITES[0].host, json!({})).await.unwrap();
                assert_eq!(there["state"], "done", "{there}");
            }
            world.during(call, phase, &[leaves.id()], async || leaves.does(Do::Detach).await).await;
            world.nobody_else_is_left().await;
            world.settled_as(&[usize::from(call.0 != ORIGIN)]).await;
        }
    }
    let deadline = time::now() + SOON;
    loop {
        let now = world.entries().await;
        if now == entries {
            break;
        }
        let difference: Vec<_> = now.symmetric_difference(&entries).collect();
        assert!(time::now() < deadline, "rules are others: {difference:#?}");
        time::sleep(Duration::from_millis(100)).await;
    }
    world.stop().await;
}

/// A UE with two bearers is moved in order.
#[tokio::test(flavor = "multi_thread")]
async fn both_bearers_of_a_ue_move_in_order() {
    let world = World::start(Setup { ues: 1, ..Setup::default() }).await;
    world.ues[0].does(Do::AskForBearer(DN_PORT + DEDICATED)).await;
    moves_in_order(world).await;
}

/// A UE that has a prefix of IPv6 by its subscription is moved in order.
#[tokio::test(flavor = "multi_thread")]
async fn an_ipv6_ue_moves_in_order() {
    let static_ipv6 = Some(Ipv6Addr::new(0xfd00, 0x45, 0, 0x8001, 0, 0, 0, 0));
    moves_in_order(
        World::start(Setup { ues: 1, pdn_type: PdnType::Ipv6, static_ipv6, ..Setup::default() }).await,
    )
    .await;
}

/// A UE with an IPv4 address, which is another one at the edge, and a prefix of IPv6 by its subscription is moved in order with both.
#[tokio::test(flavor = "multi_thread")]
async fn a_dual_stack_ue_moves_in_order() {
    let static_ipv6 = Some(Ipv6Addr::new(0xfd00, 0x45, 0, 0x8001, 0, 0, 0, 0));
    let world =
        World::start(Setup { ues: 1, pdn_type: PdnType::Ipv4v6, static_ipv6, ..Setup::default() }).await;
    assert_eq!(world.ues[0].addresses.len(), 2);
    // Also a bearer that only IPv4 has packets in.
    world.ues[0].does(Do::AskForBearer(DN_PORT + DEDICATED)).await;
    moves_in_order(world).await;
}

/// Moves the first UE there and back in order: each flow is as it was sent, by a token in each of its tunnels and directions.
async fn moves_in_order(world: World) {
    world.warm_up().await;
    time::sleep(Duration::from_millis(500)).await;
    let (first, calls) = (world.traffic().next(), world.proxy.calls().len());
    for _ in 0..4 {
        for (to, at) in [(SITES[0].host, 1), (ORIGIN, 0)] {
            world.moved(&[0], to, json!({})).await;
            world.settled_as(&[at]).await;
        }
    }
    world.all_came(first, "8 moves").await;
    let orders = world.proxy.calls().split_off(calls).into_iter().filter_map(|call| call.order);
    let orders: Vec<Value> = orders.collect();
    assert_eq!(orders.len(), 8);
    for order in orders {
        let said = ["kept", "moves", "timed_out", "without_downlink"].map(|member| &order[member]);
        assert_eq!(said, [&json!(true), &json!(1), &json!(0), &json!(0)], "{order}");
    }
    world.stop().await;
}

/// The gateway at the edge gives each session a prefix of its own, which no switch can translate. So UEs with IPv6 stay as a whole, and the
/// reason is told.
#[tokio::test(flavor = "multi_thread")]
async fn ues_whose_prefix_would_be_another_one_stay() {
    for pdn_type in [PdnType::Ipv6, PdnType::Ipv4v6] {
        let world = World::start(Setup { ues: 1, pdn_type, ..Setup::default() }).await;
        // Neighbours are known.
        world.settled_as(&[0]).await;
        time::sleep(Duration::from_millis(500)).await;
        let first = world.traffic().next();
        let one = world.begin(&[0], &[], SITES[0].host, json!({})).await.unwrap();
        assert_eq!((&one["state"], &one["counts"]["stays"]), (&json!("failed"), &json!(1)), "{one}");
        assert!(one["ues"][0]["why"].as_str().unwrap().contains("another IPv6 prefix"), "{one}");
        world.settled_as(&[0]).await;
        world.nobody_else_is_left().await;
        world.all_came(first, "a move that is refused").await;
        world.stop().await;
    }
}

/// A host has no room, by its `capacity` or as its gateway says: who finds none stays, with the reason, and can be moved when there is room.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_host_refuses_who_finds_no_room() {
    let world = World::start(Setup { sites: 2, ues: 3, rooms: Some([2, 1]), ..Setup::default() }).await;
    world.moved(&[0], SITES[0].host, json!({})).await;
    world.moved(&[0], SITES[1].host, json!({})).await;
    world.moved(&[0], ORIGIN, json!({})).await;
    for (site, room, why) in [(0, 2, "refuse"), (1, 1, "is full")] {
        let (host, first) = (SITES[site].host, world.traffic().next());
        let none = world.begin(&[0, 1, 2], &[], host, json!({"all_or_none": true})).await.unwrap();
        assert_ne!(none["state"], "done", "{none}");
        world.settled_as(&[0, 0, 0]).await;
        let some = world.begin(&[0, 1, 2], &[], host, json!({})).await.unwrap();
        assert_eq!((&some["state"], &some["counts"]["moved"]), (&json!("done"), &json!(room)), "{some}");
        let stays = some["ues"].as_array().unwrap().iter().filter(|ue| ue["state"] == "stays");
        let reasons: Vec<&str> = stays.filter_map(|ue| ue["why"].as_str()).collect();
        assert!(
            reasons.len() == 3 - room && reasons.iter().all(|reason| reason.contains(why)),
            "{reasons:?}"
        );
        let at = world.settled().await;
        let stayed: Vec<usize> = world.all().into_iter().filter(|ue| at[*ue] == 0).collect();
        assert_eq!(stayed.len(), 3 - room, "{at:?}");
        world
            .moved(
                &world.all().into_iter().filter(|ue| !stayed.contains(ue)).collect::<Vec<_>>(),
                ORIGIN,
                json!({}),
            )
            .await;
        world.settled_as(&[0, 0, 0]).await;
        world.moved(&stayed[..1], host, json!({})).await;
        world.moved(&stayed[..1], ORIGIN, json!({})).await;
        world.settled_as(&[0, 0, 0]).await;
        world.all_came(first, host).await;
    }
    world.stop().await;
}

/// The way between switch and new anchor is broken before a move, at each of its steps, and after it: UEs are on their original anchor then, and
/// can be moved when it is whole again.
#[tokio::test(flavor = "multi_thread")]
async fn ues_go_back_when_the_way_to_their_anchor_is_broken() {
    let world = World::start(Setup::default()).await;
    world.warm_up().await;
    let steps = [
        (CALLS[0], Phase::Before),
        (CALLS[2], Phase::Before),
        (CALLS[2], Phase::After),
        (CALLS[1], Phase::Before),
    ];
    for (call, phase) in steps {
        if call.0 == ORIGIN {
            world.moved(&world.all(), SITES[0].host, json!({})).await;
        }
        world.during(call, phase, &[], async || world.cut(true).await).await;
        world.answers(&SITES[0], false).await;
        world.settled_as(&[0, 0]).await;
        world.cut(false).await;
        world.answers(&SITES[0], true).await;
    }
    // Before: it is dead, and nobody is moved.
    world.cut(true).await;
    world.answers(&SITES[0], false).await;
    let first = world.traffic().next();
    let one = world.begin(&world.all(), &[], SITES[0].host, json!({})).await.unwrap();
    assert_eq!((&one["state"], &one["counts"]["stays"]), (&json!("failed"), &json!(2)), "{one}");
    world.settled_as(&[0, 0]).await;
    world.all_came(first, "broken before").await;
    world.cut(false).await;
    world.answers(&SITES[0], true).await;
    // After.
    world.moved(&world.all(), SITES[0].host, json!({})).await;
    world.settled_as(&[1, 1]).await;
    world.cut(true).await;
    world.settled_as(&[0, 0]).await;
    world.cut(false).await;
    world.answers(&SITES[0], true).await;
    world.warm_up().await;
    world.stop().await;
}

/// Random numbers of a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A step of a random sequence; UEs by their places.
#[derive(Debug, Clone, Copy)]
enum Step {
    Attach,
    Detach(usize),
    HandOver(usize),
    /// It asks for a bearer, or gives it back.
    Bearer(usize),
    Move(usize, &'static str),
    /// A part is killed so many milliseconds after a move of all has begun.
    Kill(&'static str, u64, &'static str),
}

const HOSTS: [&str; 3] = [ORIGIN, SITES[0].host, SITES[1].host];
const VICTIMS: [&str; 6] = ["controller", "orchestrator", "switch-n3", "switch-n6", "agent", "anchor"];
const MOST_UES: usize = 4;

impl Step {
    fn random(random: &mut Random, ues: usize) -> Step {
        let ue = random.below(ues);
        match random.below(8) {
            0 if ues < MOST_UES => Step::Attach,
            1 if ues > 1 => Step::Detach(ue),
            2 => Step::HandOver(ue),
            3 => Step::Bearer(ue),
            4 => Step::Kill(random.of(&VICTIMS), random.below(12) as u64, random.of(&HOSTS)),
            _ => Step::Move(ue, random.of(&HOSTS)),
        }
    }
}

/// What a UE's eNB is, and whether it has a dedicated bearer.
#[derive(Debug, Clone, Copy, Default)]
struct Has {
    enb: usize,
    bearer: bool,
}

impl World {
    async fn take(&mut self, step: Step, has: &mut Vec<Has>) {
        match step {
            Step::Attach => {
                let ue = self.cell.attach().await;
                self.traffic = None;
                self.ues.push(ue);
                has.push(Has::default());
                self.talk();
            }
            Step::Detach(at) => {
                self.traffic = None;
                let ue = self.ues.remove(at);
                has.remove(at);
                ue.does(Do::Detach).await;
                self.talk();
            }
            Step::HandOver(at) => {
                has[at].enb = 1 - has[at].enb;
                self.ues[at].does(Do::HandOver(has[at].enb)).await;
            }
            Step::Bearer(at) => {
                has[at].bearer = !has[at].bearer;
                let ask = Do::AskForBearer(DN_PORT + DEDICATED + at as u16);
                self.ues[at].does(if has[at].bearer { ask } else { Do::GiveBearerBack }).await;
            }
            Step::Move(at, to) => {
                self.begin(&[at], &[], to, json!({})).await.unwrap();
            }
            Step::Kill(victim, after, to) => {
                let asked = self.begin(&self.all(), &[], to, json!({}));
                time::sleep(Duration::from_millis(after)).await;
                match victim {
                    "agent" | "anchor" => kill_at(self.lab.folder(), SITES[0].host, victim),
                    _ => {
                        self.lab.kill(victim).await.unwrap();
                        self.lab.restart_part(victim).unwrap();
                    }
                }
                asked.await.unwrap();
            }
        }
    }

    /// A replica of all UEs can be made, and is what the original has.
    async fn all_can_be_copied(&self) {
        let at = self.settled().await;
        let home: Vec<usize> = self.all().into_iter().filter(|ue| at[*ue] == 0).collect();
        if home.is_empty() {
            return;
        }
        let deadline = time::now() + SOON;
        loop {
            let made = self.begin(&home, &[], SITES[0].host, json!({"warm": true})).await.unwrap();
            if made["counts"]["warm"] == home.len() {
                break;
            }
            // The first copies at a gateway that was killed are refused, as it has restarted.
            assert!(time::now() < deadline, "{made}\n{}", self.logs().await);
        }
        let original = sessions(&self.lab.oam("spgw", "GET", "/sessions").await.unwrap());
        let copies = sessions(&self.lab.edge_oam(&SITES[0], "spgw", "/sessions").await.unwrap());
        for ue in home.iter().map(|ue| &self.ues[*ue].imsi) {
            assert_eq!(copies.get(ue), original.get(ue), "the copy of {ue}");
        }
        let removed = self.begin(&home, &[], ORIGIN, json!({})).await.unwrap();
        assert_eq!(removed["state"], "done", "{removed}");
    }
}

/// After each step of a random sequence of attaches, detaches, handovers, bearers, moves and kills, each flow comes by one anchor, all of a UE by
/// the same, state is where UEs are and nowhere else, and replicas of all can be made. `SEQUENCE_SEED` and `SEQUENCE_STEPS` choose another one.
#[tokio::test(flavor = "multi_thread")]
async fn any_sequence_leaves_ues_wholly_on_one_anchor() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let (seed, steps) = (number("SEQUENCE_SEED", 16), number("SEQUENCE_STEPS", 16));
    let mut random = Random(seed);
    let mut world = World::start(Setup { sites: 2, ..Setup::default() }).await;
    let mut has = vec![Has::default(); world.ues.len()];
    for number in 1..=steps {
        let step = Step::random(&mut random, world.ues.len());
        let began = time::now();
        // What fails below is this step of this seed.
        eprint!("seed {seed}, step {number}: {step:?}");
        world.take(step, &mut has).await;
        world.nobody_else_is_left().await;
        eprintln!(" {} ms; UEs are at {:?}", (time::now() - began).as_millis(), world.settled().await);
        if number % 4 == 0 {
            world.all_can_be_copied().await;
        }
    }
    world.nobody_else_is_left().await;
    world.stop().await;
}
