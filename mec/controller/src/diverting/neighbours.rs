//! Link-layer addresses of anchors and base stations, and whether anchors answer: asked through the switches.
//!
//! Each access switch has an address of the controller's (`probe`). With it the controller asks by packet-out, by ARP or neighbour
//! discovery and by GTP-U Echo (TS 29.281 §7.2.1); a rule of the switch brings the answers back. So no host beside the switch is
//! needed, and what is asked takes the way of the users' packets.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use openflow::{Action, MacAddr, Port, PortNo, PortState};
use serde::Serialize;

use super::rules::Macs;
use crate::config::{Config, Place};
use crate::frame::{self, Neighbour, Station};
use crate::rule::{App, Rule};
use crate::switch::{Handle, SwitchView};

/// Rounds of questions after which rules of an earlier life no longer wait for an answer.
const SETTLED_AFTER: u32 = 10;

/// An anchor as a switch sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AnchorState {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// The switch.
    pub switch: String,
    /// Its datapath identifier.
    pub datapath_id: u64,
    /// Whether it answers GTP-U Echo.
    pub alive: bool,
    /// Its link-layer address, if it is known.
    pub mac: Option<String>,
    /// Requests without answer since the last one.
    pub missed: u32,
}

impl AnchorState {
    /// A line for the log.
    pub(crate) fn said(&self) -> String {
        let says = if self.alive { "answers" } else { "does not answer" };
        format!("anchor {} {says} GTP-U Echo", self.name)
    }
}

#[derive(Debug, Default)]
struct Watched {
    alive: bool,
    missed: u32,
    /// Whether it was said that it is dead.
    said_dead: bool,
}

#[derive(Debug)]
struct Switch {
    name: String,
    station: Station,
    ports: Vec<Port>,
    gtp: Option<PortNo>,
    connected: bool,
    macs: HashMap<IpAddr, MacAddr>,
    anchors: HashMap<String, Watched>,
    sequence: u16,
    rounds: u32,
}

/// What is known at all switches.
pub(super) struct Neighbours {
    config: Arc<Config>,
    handle: Handle,
    switches: HashMap<u64, Switch>,
}

impl Macs for Neighbours {
    fn mac(&self, datapath_id: u64, address: IpAddr) -> Option<MacAddr> {
        self.switches.get(&datapath_id)?.macs.get(&address).copied()
    }
}

impl Neighbours {
    pub(super) fn new(config: Arc<Config>, handle: Handle) -> Neighbours {
        Neighbours { config, handle, switches: HashMap::new() }
    }

    /// A switch has connected. What was known of its neighbours holds on.
    pub(super) fn up(&mut self, view: &SwitchView) {
        let Some(settings) = self.config.switch_of(view.datapath_id) else { return };
        let (Place::Access, Some(ip)) = (settings.place, settings.probe) else { return };
        let [.., a, b, c, d] = view.datapath_id.to_be_bytes();
        let station = Station { mac: MacAddr([0x02, App::Diverting as u8, a, b, c, d]), ip };
        let switch = self.switches.entry(view.datapath_id).or_insert_with(|| Switch {
            name: view.name.clone(),
            station,
            ports: Vec::new(),
            gtp: None,
            connected: true,
            macs: HashMap::new(),
            anchors: HashMap::new(),
            sequence: 0,
            rounds: 0,
        });
        switch.connected = true;
        self.ports(view);
        self.ask(view.datapath_id);
    }

    /// Takes over the ports that a switch has now.
    pub(super) fn ports(&mut self, view: &SwitchView) {
        let Some(settings) = self.config.switch_of(view.datapath_id) else { return };
        let Some(switch) = self.switches.get_mut(&view.datapath_id) else { return };
        switch.gtp = view.port(&settings.gtp_port).map(|port| port.port_no);
        switch.ports = view.leading_ports().cloned().collect();
    }

    pub(super) fn down(&mut self, datapath_id: u64) {
        if let Some(switch) = self.switches.get_mut(&datapath_id) {
            switch.connected = false;
        }
    }

    /// The rules that bring answers to the controller.
    pub(super) fn rules(&self, datapath_id: u64) -> Vec<Rule> {
        let switch = self.switches.get(&datapath_id);
        switch.map(|switch| super::probe_rules(switch.station.ip)).unwrap_or_default()
    }

    /// Whether everybody has had the time to answer at an access switch.
    pub(super) fn is_settled(&self, datapath_id: u64) -> bool {
        self.switches.get(&datapath_id).is_some_and(|switch| switch.rounds >= SETTLED_AFTER)
    }

    /// Whether an anchor answers at a switch.
    pub(super) fn is_alive(&self, datapath_id: u64, anchor: &str) -> bool {
        let switch = self.switches.get(&datapath_id);
        switch.is_some_and(|switch| switch.anchors.get(anchor).is_some_and(|anchor| anchor.alive))
    }

    /// All that is known of link-layer addresses, by switch and address.
    pub(super) fn macs(&self) -> HashMap<(u64, IpAddr), MacAddr> {
        let of_switch = |(id, switch): (&u64, &Switch)| {
            let id = *id;
            switch.macs.iter().map(move |(ip, mac)| ((id, *ip), *mac)).collect::<Vec<_>>()
        };
        self.switches.iter().flat_map(of_switch).collect()
    }

    /// The anchors as all switches see them.
    pub(super) fn anchors(&self) -> Vec<AnchorState> {
        let mut all: Vec<AnchorState> = Vec::new();
        for (id, switch) in &self.switches {
            for anchor in &self.config.anchors {
                let watched = switch.anchors.get(&anchor.name);
                let mac = anchor.mac.or_else(|| switch.macs.get(&anchor.address).copied());
                all.push(AnchorState {
                    name: anchor.name.clone(),
                    address: anchor.address,
                    switch: switch.name.clone(),
                    datapath_id: *id,
                    alive: watched.is_some_and(|watched| watched.alive),
                    mac: mac.map(|MacAddr(m)| m.map(|octet| format!("{octet:02x}")).join(":")),
                    missed: watched.map_or(0, |watched| watched.missed),
                });
            }
        }
        all.sort_by(|a, b| (&a.name, &a.switch).cmp(&(&b.name, &b.switch)));
        all
    }

    /// Anchors that were found dead and have not answered since, by connected switch.
    pub(super) fn dead(&self) -> Vec<(u64, String)> {
        let connected = self.switches.iter().filter(|(_, switch)| switch.connected);
        let of_switch = |(id, switch): (&u64, &Switch)| {
            let id = *id;
            let dead = switch.anchors.iter().filter(|(_, watched)| watched.said_dead);
            dead.map(move |(name, _)| (id, name.clone())).collect::<Vec<_>>()
        };
        connected.flat_map(of_switch).collect()
    }

    /// Asks everybody again; returns anchors whose state is another one now.
    pub(super) fn tick(&mut self) -> Vec<AnchorState> {
        let mut dead = Vec::new();
        let ids: Vec<u64> = self.switches.keys().copied().collect();
        for id in ids {
            let Some(switch) = self.switches.get_mut(&id).filter(|switch| switch.connected) else { continue };
            switch.rounds = switch.rounds.saturating_add(1);
            for (name, watched) in &mut switch.anchors {
                if !watched.said_dead && watched.missed >= self.config.diverting.echo_misses {
                    (watched.alive, watched.said_dead) = (false, true);
                    dead.push((id, name.clone()));
                }
            }
            for anchor in &self.config.anchors {
                let watched = switch.anchors.entry(anchor.name.clone()).or_default();
                watched.missed = watched.missed.saturating_add(1);
            }
            self.ask(id);
        }
        let is_dead = |state: &AnchorState| {
            dead.iter().any(|(id, name)| *id == state.datapath_id && *name == state.name)
        };
        if dead.is_empty() { Vec::new() } else { self.anchors().into_iter().filter(is_dead).collect() }
    }

    /// Asks for addresses that are not known, and for echoes of those that are.
    fn ask(&mut self, datapath_id: u64) {
        let Some(switch) = self.switches.get_mut(&datapath_id) else { return };
        switch.sequence = switch.sequence.wrapping_add(1);
        let goes =
            |port: &&Port| Some(port.port_no) != switch.gtp && !port.state.contains(PortState::LINK_DOWN);
        let flood: Vec<Action> =
            switch.ports.iter().filter(goes).map(|port| Action::output(port.port_no)).collect();
        let anchors = self.config.anchors.iter().map(|anchor| (Some(anchor), anchor.address, anchor.mac));
        let stations = self.config.base_stations.iter().map(|station| (None, station.address, station.mac));
        // An address may move to another station, so it is asked for again now and then.
        let is_due = switch.rounds.is_multiple_of(SETTLED_AFTER);
        for (anchor, address, mac) in anchors.chain(stations) {
            let known = mac.or_else(|| switch.macs.get(&address).copied());
            if known.is_none() || (is_due && mac.is_none()) {
                let question = frame::ask(switch.station, address);
                // A lost question is asked again.
                let _ = self.handle.packet_out(datapath_id, PortNo::CONTROLLER, flood.clone(), question);
            }
            let (Some(_), Some(mac)) = (anchor, known) else { continue };
            let to = Station { mac, ip: address };
            let Some(echo) = frame::echo_request(switch.station, to, switch.sequence) else { continue };
            let _ = self.handle.packet_out(datapath_id, PortNo::CONTROLLER, flood.clone(), echo);
        }
    }

    /// Takes a frame that a probe rule has sent; whether a link-layer address is new.
    pub(super) fn heard(&mut self, datapath_id: u64, data: &[u8]) -> bool {
        let Some(switch) = self.switches.get_mut(&datapath_id) else { return false };
        if let Some((source, _)) = frame::echo_response(data) {
            let Some(anchor) = self.config.anchors.iter().find(|anchor| anchor.address == source) else {
                return false;
            };
            let watched = switch.anchors.entry(anchor.name.clone()).or_default();
            (watched.missed, watched.said_dead) = (0, false);
            if !watched.alive {
                watched.alive = true;
                let what = format!("anchor {} answers GTP-U Echo", anchor.name);
                self.handle.fabric().note(Some(datapath_id), what);
            }
            return false;
        }
        let station = match frame::neighbour(data) {
            Some(Neighbour::Asked { by, target }) if target == switch.station.ip => {
                let goes = |port: &&Port| Some(port.port_no) != switch.gtp;
                let flood =
                    switch.ports.iter().filter(goes).map(|port| Action::output(port.port_no)).collect();
                let reply = frame::tell(switch.station, Some(by));
                let _ = self.handle.packet_out(datapath_id, PortNo::CONTROLLER, flood, reply);
                by
            }
            Some(Neighbour::Told(station)) => station,
            _ => return false,
        };
        let is_anchor = self.config.anchors.iter().any(|anchor| anchor.address == station.ip);
        let is_station = self.config.base_stations.iter().any(|other| other.address == station.ip);
        if !is_anchor && !is_station {
            return false;
        }
        let is_new = switch.macs.insert(station.ip, station.mac) != Some(station.mac);
        if is_new {
            self.ask(datapath_id);
        }
        is_new
    }
}
