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

use classifier::Key;
use pktio::Vector;
use telemetry::DropReason;

use crate::bridge::{Learnt, Mac, NETWORK};
use crate::pipeline::context::{Context, Pass, Snapshot, Source};
use crate::pipeline::ethernet::View;
use crate::pipeline::exits::Events;
use crate::pipeline::graph::Way;
use crate::pipeline::packets::{Matched, Meta, State, Verdict, Verdicts};
use crate::pipeline::{BATCH, Event, Ports, Stages};
use crate::session::{Endpoint, Policy, Route, flag};

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
pub(in crate::pipeline) struct Bridging {
    /// Frames from one session to other sessions.
    turned: Vector,
    targets: Vec<Target>,
    /// Frames from the data network to all sessions, as positions in the current batch.
    floods: Vec<(u16, Target)>,
    copies: Vector,
}

impl Bridging {
    /// That of a pipeline, if there are Ethernet data networks.
    pub fn of(context: &Context) -> Option<Box<Bridging>> {
        let new = || Bridging {
            turned: Vector::of(&context.home),
            targets: Vec::with_capacity(BATCH),
            floods: Vec::with_capacity(BATCH),
            copies: Vector::of(&context.home),
        };
        context.tables.has_bridges().then(|| Box::new(new()))
    }

    /// Whether there is no more work.
    #[inline]
    fn is_done(&self) -> bool {
        self.targets.is_empty() && self.floods.is_empty()
    }

    /// Switches frames from the data network with this number: each goes to one session, or to all.
    fn switch(&mut self, pass: &mut Pass, snapshot: Snapshot<'_>, batch: &Vector, network: usize) {
        let Some(bridge) = snapshot.tables.bridge(network) else { return };
        let now_s = (snapshot.now_ns / SECOND_NS) as u32;
        for (at, (buffer, meta)) in batch.frames().iter().zip(&mut pass.packets.metas).enumerate() {
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
                        self.floods.push((at as u16, others));
                    }
                }
            }
        }
    }

    /// Switches a frame of a session. Returns whether the frame is sent on.
    fn turn(
        &mut self,
        context: &Context,
        pass: &mut Pass,
        events: &mut Events,
        snapshot: Snapshot<'_>,
        batch: &Vector,
        matched: Matched<'_>,
    ) -> Result<(), DropReason> {
        let (network, station) = (matched.entry.peer, matched.entry.teid);
        let bridge = snapshot.tables.bridge(network.into()).ok_or(DropReason::FarDrop)?;
        let frame = batch.frames()[matched.at].packet();
        let view = View::parse(frame)?;
        let (vlan, to) = (view.vlan(), view.header.destination);
        if is_links_own(to) {
            return Err(DropReason::LinkLocal);
        }
        let now_s = (snapshot.now_ns / SECOND_NS) as u32;
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
                && let Some(reason) = context.closed.stops_in_frame(network.into(), packet)
            {
                return Err(reason);
            }
            pass.outputs.push(network as u8, matched.at);
        }
        if let Some(target) = target {
            match self.turned.push(frame, pass.input.local) {
                true => self.targets.push(target),
                false => context.count_drop(DropReason::TxQueueFull),
            }
        }
        if learnt == Learnt::New && matched.entry.is(flag::NOTIFY) {
            let header = view.header;
            events.send(Event::Address {
                seid: matched.endpoint.seid(),
                mac: header.source,
                c_tag: header.c_tag,
                s_tag: header.s_tag,
            });
        }
        Ok(())
    }
}

impl Stages {
    /// Notes a packet that no rule of its session matched, for [`Stages::look_up_frames`], if that session
    /// carries frames.
    #[cold]
    pub(in crate::pipeline) fn may_be_frame(
        &mut self,
        snapshot: Snapshot<'_>,
        at: usize,
        of: &Endpoint,
    ) -> bool {
        let frames = snapshot.tables.is_of_frames(snapshot.inside, of);
        if frames && !self.pass.packets.metas[at].native {
            self.pass.frames.push(at as u16);
        }
        frames
    }

    /// Looks up again those packets that are frames.
    #[cold]
    pub(in crate::pipeline) fn look_up_frames<'g>(
        &mut self,
        snapshot: Snapshot<'g>,
        batch: &mut Vector,
        verdicts: &mut Verdicts<'g>,
    ) {
        let mut frames = std::mem::take(&mut self.pass.frames);
        self.context.count_way(Way::Bridge, frames.len());
        for at in frames.drain(..).map(usize::from) {
            self.look_up_frame(snapshot, batch, at, &mut verdicts[at]);
        }
        self.pass.frames = frames;
    }

    fn look_up_frame<'g>(
        &mut self,
        snapshot: Snapshot<'g>,
        batch: &mut Vector,
        at: usize,
        verdict: &mut Verdict<'g>,
    ) {
        let Snapshot { tables, inside, now_ns } = snapshot;
        let mut buffer = batch.frame_mut(at);
        let meta = &mut self.pass.packets.metas[at];
        // Octets that were cut off as padding of an IP packet belong to the frame.
        buffer.extend(std::mem::take(&mut meta.cut).into());
        let view = match View::parse(buffer.packet()) {
            Ok(view) => view,
            Err(reason) => return meta.drop(reason),
        };
        (meta.state, meta.length) = (State::Live, buffer.len() as u32);
        let Some(endpoint) = verdict.block.first() else { return meta.drop(DropReason::UnknownUe) };
        let of = (endpoint.seid(), &view);
        let key = self.fragments.frame_key(&self.context, &mut self.pass, of, batch, at, now_ns);
        let Some(key) = key else { return };
        let policy = match endpoint.route() {
            Route::Policy(number) => tables.policy(inside, number),
            _ => None,
        };
        let mut found = [None];
        if let Some(Policy::Frames(classifier)) = policy {
            classifier.classify(&[key], &mut found);
        }
        if !verdict.complete(tables, verdict.block, found[0]) {
            self.pass.packets.metas[at].state = State::Consumed;
            self.context.count_drop(DropReason::NoPdr);
        }
    }

    /// Switches frames from the data network with this number. Within the pass's snapshot: a station number that is
    /// found now is not given to another session before the frames are sent.
    pub(in crate::pipeline) fn switch(&mut self, snapshot: Snapshot<'_>, batch: &Vector, network: usize) {
        if let Some(bridging) = &mut self.bridging {
            bridging.switch(&mut self.pass, snapshot, batch, network);
        }
    }

    /// Runs the stages for frames from a data network, which have been switched, or for frames that have waited.
    pub(in crate::pipeline) fn run_bridged(
        &mut self,
        snapshot: Snapshot<'_>,
        batch: &mut Vector,
        ports: &mut Ports,
    ) {
        self.run_frames(snapshot, batch, ports);
        self.deliver(snapshot, batch, ports);
    }

    /// Runs the stages for packets that are known to be frames: from a data network, from the bridge, or
    /// buffered. A frame for a session has its station number in place of a TEID.
    fn run_frames(&mut self, snapshot: Snapshot<'_>, batch: &mut Vector, ports: &mut Ports) {
        let Snapshot { tables, inside, .. } = snapshot;
        let count = self.pass.packets.len();
        self.context.count_way(Way::Bridge, count);
        let mut verdicts = [Verdict::NONE; BATCH];
        for (at, verdict) in verdicts.iter_mut().enumerate().take(count) {
            let meta = self.pass.packets.metas[at];
            if meta.state != State::Live {
                continue;
            }
            verdict.block = match meta.native {
                true => tables.station(inside, meta.teid),
                false => tables.instance(self.pass.input.instance).tunnel(inside, meta.teid),
            }
            .unwrap_or_default();
            self.look_up_frame(snapshot, batch, at, verdict);
        }
        let all_sent = self.execute(snapshot, batch, &verdicts);
        self.context.count_way(Way::Execute, count);
        if !all_sent {
            self.count_drops();
        }
        self.transmit(batch, ports);
        self.context.count_way(Way::Transmit, count);
    }

    /// Passes a frame of a session to the bridge of its data network. Returns whether the frame is sent on.
    #[cold]
    pub(in crate::pipeline) fn bridge(
        &mut self,
        snapshot: Snapshot<'_>,
        batch: &Vector,
        matched: Matched<'_>,
    ) -> bool {
        let (pass, events) = (&mut self.pass, &mut self.exits.events);
        let result = match &mut self.bridging {
            Some(bridging) => bridging.turn(&self.context, pass, events, snapshot, batch, matched),
            // Frames that come from the bridge do not go to it again; see the module.
            None => Err(DropReason::FarDrop),
        };
        if let Err(reason) = result {
            pass.drop(matched.at, reason);
        }
        result.is_ok()
    }

    /// Sends the frames between sessions and the copies for all sessions. Must follow the sending of `batch`,
    /// which contains the frames for all sessions.
    pub(in crate::pipeline) fn deliver(&mut self, snapshot: Snapshot<'_>, batch: &Vector, ports: &mut Ports) {
        let Some(mut bridging) = self.bridging.take_if(|bridging| !bridging.is_done()) else { return };
        let source = std::mem::replace(&mut self.pass.source, Source::Injected);
        let Bridging { turned, targets, floods, copies } = &mut *bridging;
        for (at, target) in floods.drain(..) {
            if let Some(buffer) = batch.frames().get(usize::from(at)) {
                self.flood(snapshot, (buffer.packet(), target), copies, ports);
            }
        }
        self.begin(turned.len());
        for (meta, target) in self.pass.packets.metas.iter_mut().zip(targets.iter()) {
            meta.native = true;
            match target {
                Target::Station(station) => meta.teid = *station,
                Target::Others { .. } => meta.state = State::Consumed,
            }
        }
        self.run_frames(snapshot, turned, ports);
        for (buffer, target) in turned.frames().iter().zip(targets.iter()) {
            self.flood(snapshot, (buffer.packet(), *target), copies, ports);
        }
        targets.clear();
        turned.clear();
        self.pass.source = source;
        self.bridging = Some(bridging);
    }

    /// Sends a frame to all sessions of a network except the one from which it came.
    fn flood(
        &mut self,
        snapshot: Snapshot<'_>,
        (frame, target): (&[u8], Target),
        copies: &mut Vector,
        ports: &mut Ports,
    ) {
        let Target::Others { network, from } = target else { return };
        let tables = snapshot.tables;
        let Some(bridge) = tables.bridge(network.into()) else { return };
        let members = bridge.members();
        let count = members.iter().filter(|member| **member != from).count() as u64;
        if count == 0 {
            // A frame that came from a session also goes to the data network.
            if from == NETWORK {
                self.context.count_drop(DropReason::UnknownUe);
            }
            return;
        }
        if !tables.limits.copies.conforms(snapshot.now_ns, count * COPY_INTERVAL_NS, COPY_BURST_NS) {
            return self.context.count_drop(DropReason::EthernetFlood);
        }
        for some in members.chunks(BATCH) {
            copies.clear();
            self.begin(0);
            for member in some.iter().filter(|member| **member != from) {
                if !copies.push(frame, self.pass.input.local) {
                    self.context.count_drop(DropReason::TxQueueFull);
                    continue;
                }
                let meta = Meta { native: true, teid: *member, ..Meta::NEW };
                self.pass.packets.push(meta, Key::unknown());
            }
            self.run_frames(snapshot, copies, ports);
        }
        copies.clear();
    }
}

/// Group addresses whose frames stay on one link: pause frames, spanning tree, discovery of neighbours.
fn is_links_own(mac: Mac) -> bool {
    mac[..5] == [0x01, 0x80, 0xC2, 0, 0] && mac[5] < 0x10
}
