//! Frames of Ethernet sessions, and the bridge of their data network (TS 23.501 §5.6.10.2, UP-3).
//!
//! ```text
//!  N3  ──► look up: an Ethernet session ──► rules ──► bridge ──► N6
//!                                                       ├──► sessions: each copy by the rules of its session
//!  N6  ──► bridge ──► one session, in place ──► rules ──► N3
//!             └──► all sessions, a copy each
//! ```
//! Packets of IP sessions never come here. Only when no rule of its session takes a G-PDU as an IP packet, the
//! pipeline checks whether the session carries frames; such packets are looked up a second time, batch by
//! batch. A frame that the bridge has sent to a session does not return to the bridge, so no frame circulates.
//!
//! Bounds (UP-4): the number of addresses per session (enforced by the bridge), a source address stays at its
//! station, the number of copies per second, and frames to the group addresses of a link are not forwarded
//! (IEEE 802.1Q table 8-1).

use std::sync::Arc;

use classifier::Key;
use pktio::{Pool, Vector};
use telemetry::DropReason;

use super::ethernet::View;
use super::{BATCH, Event, Inside, Meta, Pipeline, Ports, Source, State, Verdict, Verdicts, Way};
use crate::bridge::{Learnt, Mac, NETWORK};
use crate::session::{self, Endpoint, Entry, Policy, Route, flag};
use crate::tables::Tables;

/// Interval of copies of frames to sessions in the long run, and most copies at once: more than a network has
/// sessions.
const COPY_INTERVAL_NS: u64 = 5_000;
const COPY_BURST_NS: u64 = 2 * crate::tables::STATIONS as u64 * COPY_INTERVAL_NS;
const SECOND_NS: u64 = 1_000_000_000;

/// Destination of a frame that comes from a session and goes to other sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Station(u32),
    /// All stations of the network except the one from which it came.
    Others {
        network: u16,
        from: u32,
    },
}

/// Additional state of a pipeline with Ethernet data networks.
pub(super) struct Bridging {
    /// Frames from one session to other sessions.
    turned: Vector,
    targets: Vec<Target>,
    /// Frames from the data network to all sessions, as positions in the current batch.
    floods: Vec<(u16, Target)>,
    copies: Vector,
}

impl Bridging {
    pub(super) fn new(home: &Arc<dyn Pool>) -> Bridging {
        Bridging {
            turned: Vector::of(home),
            targets: Vec::with_capacity(BATCH),
            floods: Vec::with_capacity(BATCH),
            copies: Vector::of(home),
        }
    }

    /// Whether there is no more work.
    #[inline]
    fn is_done(&self) -> bool {
        self.targets.is_empty() && self.floods.is_empty()
    }
}

impl Pipeline {
    /// Notes a packet that no rule of its session matched, for [`Pipeline::look_up_frames`], if that session
    /// carries frames.
    #[cold]
    pub(super) fn may_be_frame(
        &mut self,
        tables: &Tables,
        inside: &Inside<'_>,
        at: usize,
        of: &Endpoint,
    ) -> bool {
        let frames = tables.is_of_frames(inside, of);
        if frames && !self.packets.metas[at].native {
            self.frames.push(at as u16);
        }
        frames
    }

    /// Looks up again those packets that are frames.
    #[cold]
    pub(super) fn look_up_frames<'g>(
        &mut self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        batch: &mut Vector,
        verdicts: &mut Verdicts<'g>,
        now_ns: u64,
    ) {
        let mut frames = std::mem::take(&mut self.frames);
        self.count_way(Way::Bridge, frames.len());
        for at in frames.drain(..).map(usize::from) {
            self.look_up_frame(tables, inside, batch, at, &mut verdicts[at], now_ns);
        }
        self.frames = frames;
    }

    fn look_up_frame<'g>(
        &mut self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        batch: &mut Vector,
        at: usize,
        verdict: &mut Verdict<'g>,
        now_ns: u64,
    ) {
        let mut buffer = batch.frame_mut(at);
        let meta = &mut self.packets.metas[at];
        // Octets that were cut off as padding of an IP packet belong to the frame.
        buffer.extend(std::mem::take(&mut meta.cut).into());
        let view = match View::parse(buffer.packet()) {
            Ok(view) => view,
            Err(reason) => return meta.drop(reason),
        };
        (meta.state, meta.length) = (State::Live, buffer.len() as u32);
        let Some(endpoint) = verdict.block.first() else { return meta.drop(DropReason::UnknownUe) };
        let Some(key) = self.frame_key(endpoint.seid(), &view, batch, at, now_ns) else { return };
        let policy = match endpoint.route() {
            Route::Policy(number) => tables.policy(inside, number),
            _ => None,
        };
        let mut found = [None];
        if let Some(Policy::Frames(classifier)) = policy {
            classifier.classify(&[key], &mut found);
        }
        verdict.entry = found[0].and_then(|position| session::entry(verdict.block, position as usize));
        if verdict.entry.is_none() {
            self.packets.metas[at].state = State::Consumed;
            self.stats[self.worker].drops.count(DropReason::NoPdr);
        }
    }

    /// Runs the stages for frames from the data network `network`, or for buffered ones.
    pub(super) fn run_bridged(
        &mut self,
        network: Option<usize>,
        batch: &mut Vector,
        now_ns: u64,
        ports: &mut Ports,
    ) {
        let tables = Arc::clone(&self.tables);
        let Some(mut reader) = self.reader.take() else { return };
        let inside = reader.enter();
        if let Some(network) = network {
            // Under the read guard: a station number that is found now is not given to another session before
            // the frames are sent.
            self.switch(&tables, batch, network, now_ns);
        }
        self.run_frames(&tables, &inside, batch, now_ns, ports);
        self.deliver(&tables, &inside, batch, now_ns, ports);
        drop(inside);
        self.reader = Some(reader);
    }

    /// Runs the stages for packets that are known to be frames: from a data network, from the bridge, or
    /// buffered. A frame for a session has its station number in place of a TEID.
    fn run_frames(
        &mut self,
        tables: &Tables,
        inside: &Inside<'_>,
        batch: &mut Vector,
        now_ns: u64,
        ports: &mut Ports,
    ) {
        self.count_way(Way::Bridge, self.packets.len());
        let mut verdicts = [Verdict::NONE; BATCH];
        for (at, verdict) in verdicts.iter_mut().enumerate().take(self.packets.len()) {
            let meta = self.packets.metas[at];
            if meta.state != State::Live {
                continue;
            }
            verdict.block = match meta.native {
                true => tables.station(inside, meta.teid),
                false => tables.instance(self.input.instance).tunnel(inside, meta.teid),
            }
            .unwrap_or_default();
            self.look_up_frame(tables, inside, batch, at, verdict, now_ns);
        }
        self.execute(tables, inside, batch, &verdicts, now_ns);
        self.count_way(Way::Execute, self.packets.len());
        self.count_drops();
        self.transmit(batch, ports);
        self.count_way(Way::Transmit, self.packets.len());
    }

    /// Switches frames from the data network with this number: each goes to one session, or to all.
    fn switch(&mut self, tables: &Tables, batch: &Vector, network: usize, now_ns: u64) {
        let (Some(bridge), Some(bridging)) = (tables.bridge(network), &mut self.bridging) else { return };
        let now_s = (now_ns / SECOND_NS) as u32;
        for (at, (buffer, meta)) in batch.frames().iter().zip(&mut self.packets.metas).enumerate() {
            meta.native = true;
            let view = match View::parse(buffer.packet()) {
                Ok(view) => view,
                Err(reason) => {
                    meta.drop(reason);
                    continue;
                }
            };
            let (vlan, to) = (view.vlan(), view.header.destination);
            if bridge.learn(NETWORK, vlan, view.header.source, now_s) == Learnt::Foreign {
                meta.drop(DropReason::EthernetSource);
            } else if is_links_own(to) {
                meta.drop(DropReason::LinkLocal);
            } else {
                match bridge.find(vlan, to, now_s) {
                    Some(NETWORK) => meta.drop(DropReason::EthernetFiltered),
                    Some(station) => meta.teid = station,
                    None => {
                        meta.state = State::Consumed;
                        let others = Target::Others { network: network as u16, from: NETWORK };
                        bridging.floods.push((at as u16, others));
                    }
                }
            }
        }
    }

    /// Passes a frame of a session to the bridge of its data network. Returns whether the frame is sent on.
    #[cold]
    pub(super) fn bridge(
        &mut self,
        tables: &Tables,
        batch: &Vector,
        at: usize,
        block: &[Endpoint],
        entry: &Entry,
        now_ns: u64,
    ) -> bool {
        let seid = block.first().map_or(0, Endpoint::seid);
        let result = self.bridge_frame(tables, batch, at, seid, entry, now_ns);
        if let Err(reason) = result {
            self.packets.metas[at].drop(reason);
        }
        result.is_ok()
    }

    fn bridge_frame(
        &mut self,
        tables: &Tables,
        batch: &Vector,
        at: usize,
        seid: u64,
        entry: &Entry,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        let (network, station) = (entry.peer, entry.teid);
        // Frames that come from the bridge do not go to it again; see the module.
        let (Some(bridge), Some(bridging)) = (tables.bridge(network.into()), &mut self.bridging) else {
            return Err(DropReason::FarDrop);
        };
        let frame = batch.frames()[at].packet();
        let view = View::parse(frame)?;
        let (vlan, to) = (view.vlan(), view.header.destination);
        if is_links_own(to) {
            return Err(DropReason::LinkLocal);
        }
        let now_s = (now_ns / SECOND_NS) as u32;
        let learnt = bridge.learn(station, vlan, view.header.source, now_s);
        if learnt == Learnt::Foreign {
            return Err(DropReason::EthernetSource);
        }
        let target = match bridge.find(vlan, to, now_s) {
            Some(own) if own == station => return Err(DropReason::EthernetFiltered),
            Some(NETWORK) => None,
            Some(other) => Some(Target::Station(other)),
            None => Some(Target::Others { network, from: station }),
        };
        if !matches!(target, Some(Target::Station(_))) {
            // Other sessions are not part of the core: only what goes to the data network is checked.
            if let Some(packet) = view.packet(frame)
                && let Some(reason) = self.closed.stops_in_frame(network.into(), packet)
            {
                return Err(reason);
            }
            self.outputs.push(network as u8, at);
        }
        if let Some(target) = target {
            match bridging.turned.push(frame, self.input.local) {
                true => bridging.targets.push(target),
                false => self.stats[self.worker].drops.count(DropReason::TxQueueFull),
            }
        }
        if learnt == Learnt::New && entry.is(flag::NOTIFY) {
            let header = view.header;
            self.send_event(Event::Address {
                seid,
                mac: header.source,
                c_tag: header.c_tag,
                s_tag: header.s_tag,
            });
        }
        Ok(())
    }

    /// Sends the frames between sessions and the copies for all sessions. Must follow the sending of `batch`,
    /// which contains the frames for all sessions.
    pub(super) fn deliver(
        &mut self,
        tables: &Tables,
        inside: &Inside<'_>,
        batch: &Vector,
        now_ns: u64,
        ports: &mut Ports,
    ) {
        let Some(mut bridging) = self.bridging.take_if(|bridging| !bridging.is_done()) else { return };
        let pass = std::mem::replace(&mut self.source, Source::Injected);
        let Bridging { turned, targets, floods, copies } = &mut *bridging;
        for (at, target) in floods.drain(..) {
            if let Some(buffer) = batch.frames().get(usize::from(at)) {
                self.flood(tables, inside, (buffer.packet(), target), copies, now_ns, ports);
            }
        }
        self.begin(turned.len());
        for (meta, target) in self.packets.metas.iter_mut().zip(targets.iter()) {
            meta.native = true;
            match target {
                Target::Station(station) => meta.teid = *station,
                Target::Others { .. } => meta.state = State::Consumed,
            }
        }
        self.run_frames(tables, inside, turned, now_ns, ports);
        for (buffer, target) in turned.frames().iter().zip(targets.iter()) {
            self.flood(tables, inside, (buffer.packet(), *target), copies, now_ns, ports);
        }
        targets.clear();
        turned.clear();
        self.source = pass;
        self.bridging = Some(bridging);
    }

    /// Sends a frame to all sessions of a network except the one from which it came.
    fn flood(
        &mut self,
        tables: &Tables,
        inside: &Inside<'_>,
        (frame, target): (&[u8], Target),
        copies: &mut Vector,
        now_ns: u64,
        ports: &mut Ports,
    ) {
        let Target::Others { network, from } = target else { return };
        let Some(bridge) = tables.bridge(network.into()) else { return };
        let members = bridge.members();
        let count = members.iter().filter(|member| **member != from).count() as u64;
        if count == 0 {
            // A frame that came from a session also goes to the data network.
            if from == NETWORK {
                self.stats[self.worker].drops.count(DropReason::UnknownUe);
            }
            return;
        }
        if !tables.limits.copies.conforms(now_ns, count * COPY_INTERVAL_NS, COPY_BURST_NS) {
            return self.stats[self.worker].drops.count(DropReason::EthernetFlood);
        }
        for some in members.chunks(BATCH) {
            copies.clear();
            self.begin(0);
            for member in some.iter().filter(|member| **member != from) {
                if !copies.push(frame, self.input.local) {
                    self.stats[self.worker].drops.count(DropReason::TxQueueFull);
                    continue;
                }
                let meta = Meta { native: true, teid: *member, ..Meta::NEW };
                self.packets.push(meta, Key::unknown());
            }
            self.run_frames(tables, inside, copies, now_ns, ports);
        }
        copies.clear();
    }
}

/// Group addresses whose frames stay on one link: pause frames, spanning tree, discovery of neighbours.
fn is_links_own(mac: Mac) -> bool {
    mac[..5] == [0x01, 0x80, 0xC2, 0, 0] && mac[5] < 0x10
}
