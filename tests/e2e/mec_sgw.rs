//! S-GW and P-GW apart (TOP-5): only the S-GW has a copy at the edge, made as when a UE changes its S-GW. MME, P-GW, S-GWs with their UPFs, switches,
//! controller, agent and orchestrator are real, and nobody but the P-GW hears of a move.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use lab::edge::{self, SITES};
use serde_json::{Value, json};

use crate::cell::Do;
use crate::flow::until;
use crate::mec_world::{ORIGIN, Setup, World};

/// How often a move is made again.
const TRIES: usize = 2;
/// S-GWs by the places at which `World::at` has UEs.
const SGWS: [Ipv4Addr; 3] = [edge::SGW, SITES[0].n3, SITES[1].n3];

impl World {
    async fn with_sgws(sites: usize) -> World {
        let world = World::start(Setup { sgw: true, sites, ..Setup::default() }).await;
        // Neighbours are known from here on.
        world.warm_up().await;
        world
    }

    /// The P-GW has one PDN connection of each UE, with the UE's address and the S-GW where the UE is, and no others.
    async fn pgw_has_them_at(&self, places: &[usize]) {
        let wanted: BTreeMap<String, [String; 2]> = self
            .ues
            .iter()
            .zip(places)
            .map(|(ue, at)| (ue.imsi.clone(), [ue.addresses[0].to_string(), SGWS[*at].to_string()]))
            .collect();
        let listed = self.lab.oam("pgw", "GET", "/sessions").await.unwrap();
        let all = listed.as_array().unwrap();
        let found: BTreeMap<String, [String; 2]> =
            all.iter().map(|one| (text(one, "imsi"), [text(one, "ipv4"), text(one, "sgw")])).collect();
        assert_eq!((all.len(), &found), (wanted.len(), &wanted), "{listed:#}");
    }

    /// Moves all UEs while they talk, and nothing is doubled; how many packets are lost.
    async fn lost_on_the_way_to(&self, place: usize) -> usize {
        let to = if place == 0 { ORIGIN } else { SITES[place - 1].host };
        let first = self.traffic().next();
        self.moved(&self.all(), to, json!({})).await;
        self.settled_as(&vec![place; self.ues.len()]).await;
        self.pgw_has_them_at(&vec![place; self.ues.len()]).await;
        let found = self.found(first).await;
        for (found, (port, ue)) in found.iter().zip(&self.ports) {
            assert!(found.sent > 0 && found.doubled == 0, "to {to}: port {port} of UE {ue}: {found:?}");
        }
        found.iter().map(|found| found.lost).sum()
    }

    /// Moves all UEs while they talk: nothing is lost or doubled. A busy machine loses packets without moves as well, but not each time: then they go
    /// back, and once more.
    async fn carry(&self, place: usize) {
        let former = self.settled().await[0];
        for left in (0..=TRIES).rev() {
            let lost = self.lost_on_the_way_to(place).await;
            if lost == 0 {
                return;
            }
            eprintln!("to place {place}: {lost} lost");
            assert!(left > 0, "to place {place}, {} times: {lost} lost", TRIES + 1);
            self.lost_on_the_way_to(former).await;
        }
    }
}

fn text(of: &Value, member: &str) -> String {
    of[member].as_str().unwrap_or_default().to_owned()
}

/// There and back, three times: each flow comes by one S-GW, nothing is lost or doubled, UEs keep their addresses and their one PDN connection, and
/// the MME hears nothing.
#[tokio::test(flavor = "multi_thread")]
async fn ues_move_to_an_sgw_at_the_edge_and_back_while_they_talk() {
    let world = World::with_sgws(1).await;
    let addresses: Vec<Vec<IpAddr>> = world.ues.iter().map(|ue| ue.addresses.clone()).collect();
    for _ in 0..3 {
        world.carry(1).await;
        world.carry(0).await;
    }
    assert_eq!(addresses, world.ues.iter().map(|ue| ue.addresses.clone()).collect::<Vec<_>>());
    assert_eq!(world.cell.heard(), 0, "requests that the MME has got");
    world.leaves().await;
}

/// From one edge host to another.
#[tokio::test(flavor = "multi_thread")]
async fn ues_move_between_sgws_at_the_edge() {
    let world = World::with_sgws(2).await;
    for place in [1, 2, 1, 2, 0] {
        world.carry(place).await;
    }
    assert_eq!(world.cell.heard(), 0, "requests that the MME has got");
    world.leaves().await;
}

/// UEs hand over at the edge: the S-GW there has their new eNB at once. One of them detaches there: nothing is left of it, at the P-GW neither.
#[tokio::test(flavor = "multi_thread")]
async fn ues_hand_over_and_detach_at_an_sgw_at_the_edge() {
    let mut world = World::with_sgws(1).await;
    world.carry(1).await;
    for enb in [1, 0, 1] {
        for ue in &world.ues {
            ue.does(Do::HandOver(enb)).await;
        }
        world.settled_as(&[1, 1]).await;
        world.pgw_has_them_at(&[1, 1]).await;
    }
    world.carry(0).await;
    world.carry(1).await;
    assert_eq!(world.cell.heard(), 0, "requests that the MME has got");
    world.traffic = None;
    let gone = world.ues.remove(0);
    gone.does(Do::Detach).await;
    world.talk();
    world.nobody_else_is_left().await;
    world.pgw_has_them_at(&[1]).await;
    // It comes again, and is moved again.
    world.traffic = None;
    let again = world.cell.attach().await;
    world.ues.push(again);
    world.talk();
    world.settled_as(&[1, 0]).await;
    world.pgw_has_them_at(&[1, 0]).await;
    world.moved(&[1], SITES[0].host, json!({})).await;
    world.settled_as(&[1, 1]).await;
    world.leaves().await;
}

impl World {
    /// All detach, wherever they are; the P-GW has nobody then.
    async fn leaves(mut self) {
        self.detach_all().await;
        until("the P-GW has no session", async || {
            let listed = self.lab.oam("pgw", "GET", "/sessions").await.ok()?;
            listed.as_array()?.is_empty().then_some(())
        })
        .await;
        self.stop().await;
    }
}
