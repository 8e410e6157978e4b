//! What agent, data paths and administration share: the pipeline, the ports, and the controllers that are connected.
//!
//! The pipeline is behind a lock. Data paths take it for packets that their caches do not know; a change takes it for all that
//! is changed together, and then raises [`Switch::version`], by which caches see that what they know is void. So a packet is
//! treated by the entries before a change or by those after it. [`Switch::settle`] waits until all data paths have seen the
//! last version and have brought their counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use net::time::now_ns;
use openflow::{
    BufferId, Duration, Field, FlowModFlags, FlowRemoved, MacAddr, Match, Message, Oxm, PacketIn,
    PacketInReason, PacketOut, Port, PortConfig, PortNo, PortReason, PortState, PortStats, PortStatus, Role,
    Text,
};

use crate::agent::peer::Peer;
use crate::hold::Hold;
use crate::offload::Offload;
use crate::pipeline::field::{self, Words};
use crate::pipeline::parse::{Headers, Layout};
use crate::pipeline::rewrite::{self, Exit, Sink};
use crate::pipeline::trace::{CONTEXT, ToController};
use crate::pipeline::{Change, Committed, Failed, Pipeline, Ready, Removed, Touched};

/// Packets of a change that are sent before workers have taken them: they are far below what may wait for a worker.
const AT_ONCE: usize = 256;

/// Who the switch is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub datapath_id: u64,
    /// For people.
    pub description: String,
}

/// Packets and octets of a port, and what it lost.
#[derive(Debug, Default)]
pub struct PortCounts {
    /// Packets received.
    pub rx_packets: AtomicU64,
    /// Octets received.
    pub rx_bytes: AtomicU64,
    /// Packets sent.
    pub tx_packets: AtomicU64,
    /// Octets sent.
    pub tx_bytes: AtomicU64,
    /// Packets lost on receipt.
    pub rx_dropped: AtomicU64,
    /// Packets that the port did not take.
    pub tx_dropped: AtomicU64,
}

/// A port.
#[derive(Debug)]
pub struct SwitchPort {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its link-layer address.
    pub mac: [u8; 6],
    /// Its counters.
    pub counts: PortCounts,
}

/// Events by which an operator sees what the switch refused or lost.
#[derive(Debug, Default)]
pub struct Counts {
    /// Packets for the controllers beyond the rate.
    pub packet_in_limited: AtomicU64,
    /// Packets for a controller that takes them too slowly.
    pub packet_in_lost: AtomicU64,
    /// Packets of controllers that send more than the workers take. The standard has no error for that: whether a packet-out
    /// leaves the switch is not answered (§6.2). The port's counters have them as well.
    pub packet_out_lost: AtomicU64,
    /// Messages that were refused with an error.
    pub refused: AtomicU64,
    /// Connections that ended because of the peer: no answer, no hello, a stream that cannot be read, a slow reader.
    pub misbehaved: AtomicU64,
}

/// A data path's end, as far as the switch needs it.
pub trait Workers: Send + Sync {
    /// Waits until every packet that is received from now on is treated by the present entries, and what was counted so far is
    /// in their counters. `false`: a worker does not answer in time.
    fn settle(&self) -> bool;

    /// Waits until what was sent before has left the workers, as far as their interfaces say.
    fn drain(&self);

    /// Sends a frame by an interface; `false` if it is lost, as too many wait.
    fn send(&self, port: u32, frame: &[u8]) -> bool;

    /// Sends frames by interfaces, in their order, however many they are.
    fn send_all(&self, frames: Vec<(u32, Vec<u8>)>);

    /// Puts a frame into a queue of the hold port; `false` if it is lost, as too many wait.
    fn hold(&self, queue: u32, frame: &[u8]) -> bool;

    /// Has a worker look for packets of the hold port that it may let go.
    fn look(&self, worker: usize);

    /// Its caches, for people: names and numbers.
    fn caches(&self) -> Vec<(&'static str, u64)>;
}

/// The switch.
pub struct Switch {
    identity: Identity,
    pipeline: RwLock<Pipeline>,
    version: AtomicU64,
    ports: Vec<SwitchPort>,
    workers: OnceLock<Box<dyn Workers>>,
    offload: OnceLock<Arc<Offload>>,
    peers: Mutex<BTreeMap<u64, Arc<Peer>>>,
    /// The generation of the last election of a master (§6.3.6).
    generation: Mutex<Option<u64>>,
    packet_in: Mutex<Bucket>,
    hold: Hold,
    started_ns: u64,
    /// What was refused or lost.
    pub counts: Counts,
}

/// A token bucket for packets to the controllers.
#[derive(Debug)]
struct Bucket {
    per_s: u64,
    tokens: u64,
    filled_ns: u64,
}

impl Bucket {
    fn take(&mut self, now_ns: u64) -> bool {
        let new = u128::from(now_ns.saturating_sub(self.filled_ns)) * u128::from(self.per_s) / 1_000_000_000;
        if new > 0 {
            // A tenth of a second's packets may come at once.
            let most = (self.per_s / 10).max(1);
            self.tokens = self.tokens.saturating_add(u64::try_from(new).unwrap_or(u64::MAX)).min(most);
            // The part of a packet that is left over counts for the next, unless the bucket is full.
            let whole_ns = new * 1_000_000_000 / u128::from(self.per_s);
            self.filled_ns = match self.tokens == most {
                true => now_ns,
                false => self.filled_ns.saturating_add(u64::try_from(whole_ns).unwrap_or(u64::MAX)),
            };
        }
        let has = self.tokens > 0;
        self.tokens -= u64::from(has);
        has
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switch {
    /// A switch with these ports, whose numbers are those that `pipeline` has.
    pub fn new(
        identity: Identity,
        pipeline: Pipeline,
        ports: Vec<SwitchPort>,
        packet_in_per_s: u32,
    ) -> Arc<Switch> {
        let bucket = Bucket { per_s: packet_in_per_s.into(), tokens: 1, filled_ns: now_ns() };
        Arc::new(Switch {
            identity,
            version: AtomicU64::new(pipeline.version()),
            hold: Hold::new(pipeline.limits().hold),
            pipeline: RwLock::new(pipeline),
            ports,
            workers: OnceLock::new(),
            offload: OnceLock::new(),
            peers: Mutex::default(),
            generation: Mutex::default(),
            packet_in: Mutex::new(bucket),
            started_ns: now_ns(),
            counts: Counts::default(),
        })
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its ports.
    pub fn ports(&self) -> &[SwitchPort] {
        &self.ports
    }

    /// When it began.
    pub fn started_ns(&self) -> u64 {
        self.started_ns
    }

    /// The entries, to read.
    pub fn pipeline(&self) -> RwLockReadGuard<'_, Pipeline> {
        self.pipeline.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version of the entries that holds.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Gives the switch its data path, once.
    pub fn set_workers(&self, workers: Box<dyn Workers>) {
        let _ = self.workers.set(workers);
    }

    /// Gives the switch its data path for tunnels, once, before workers start.
    pub fn set_offload(&self, offload: Arc<Offload>) {
        let _ = self.offload.set(offload);
    }

    /// The data path for tunnels, if there is one.
    #[inline]
    pub fn offload(&self) -> Option<&Arc<Offload>> {
        self.offload.get()
    }

    /// The packets that wait.
    #[inline]
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Opens a queue of the hold port, as a token has come to this worker, or a controller wants it.
    pub fn release(&self, queue: u32, worker: Option<usize>) {
        self.wake(self.hold.release(queue, worker, now_ns()), worker);
    }

    /// Has workers look for packets that they may let go; `but` does so anyway.
    pub(crate) fn wake(&self, workers: Vec<usize>, but: Option<usize>) {
        let Some(host) = self.workers.get() else { return };
        workers.into_iter().filter(|worker| Some(*worker) != but).for_each(|worker| host.look(worker));
    }

    /// Waits until every packet that is received from now on is treated by the present entries: that is so of tunnels in XDP when a
    /// change has been made.
    /// `false`: a worker does not answer, and may still treat packets by older ones.
    pub fn await_workers(&self) -> bool {
        self.workers.get().is_none_or(|workers| workers.settle())
    }

    /// The same, and brings what all data paths have counted so far to the counters.
    pub fn settle(&self) {
        self.await_workers();
        if let Some(offload) = self.offload() {
            offload.count(self);
        }
    }

    /// The same for statistics, for which somebody may ask without end: the packets of tunnels in XDP are counted as often as a tenth
    /// of the time allows, and are else what they last were.
    pub fn settle_statistics(&self) {
        self.await_workers();
        if let Some(offload) = self.offload() {
            offload.count_within_budget(self);
        }
    }

    /// The data path's caches.
    pub fn caches(&self) -> Vec<(&'static str, u64)> {
        self.workers.get().map(|workers| workers.caches()).unwrap_or_default()
    }

    /// Makes changes together, and tells controllers of entries that are gone. Packets among them are sent afterwards, behind all that
    /// was treated by the entries from before.
    ///
    /// # Errors
    /// The first change that fails; then nothing is changed.
    pub fn commit(&self, changes: &[Change]) -> Result<(), Failed> {
        self.commit_ready(&mut changes.iter().cloned().map(Ready::new).collect::<Vec<_>>())
    }

    /// The same of changes that are ready, once.
    ///
    /// # Errors
    /// As [`Switch::commit`].
    pub fn commit_ready(&self, changes: &mut [Ready]) -> Result<(), Failed> {
        let removed = self.change(|pipeline| {
            let Committed { removed, touched } = pipeline.commit_ready(changes, now_ns())?;
            Ok((removed, Touched::Entries(touched)))
        })?;
        self.tell_removed(&removed);
        let packets = changes.iter().filter_map(|ready| match ready.change() {
            Change::PacketOut(packet_out) => Some(packet_out),
            _ => None,
        });
        self.send_behind(packets.collect());
        Ok(())
    }

    /// Sends packets behind all that was treated by the entries from before the last change.
    fn send_behind(&self, packets: Vec<&PacketOut>) {
        if packets.is_empty() {
            return;
        }
        self.await_workers();
        if let Some(host) = self.workers.get() {
            host.drain();
        }
        if let Some(offload) = self.offload() {
            offload.await_programs();
        }
        for packets in packets.chunks(AT_ONCE) {
            let mut frames = Vec::new();
            for packet in packets {
                self.do_packet_out(packet.in_port, &packet.actions, packet.data.clone(), Some(&mut frames));
            }
            if let Some(host) = self.workers.get() {
                host.send_all(frames);
            }
            // What a worker has not sent yet is bounded.
            self.await_workers();
        }
    }

    /// Removes entries whose time is over.
    pub fn expire(&self) {
        let now_ns = now_ns();
        if self.pipeline().next_deadline_ns().is_none_or(|deadline_ns| deadline_ns > now_ns) {
            return;
        }
        // Idle time is known only when all packets have been counted.
        self.settle();
        let expire = |pipeline: &mut Pipeline| {
            let removed = pipeline.expire(now_ns);
            let touched = removed.iter().map(|removed| Arc::clone(&removed.flow)).collect();
            Ok::<_, Failed>((removed, Touched::Entries(touched)))
        };
        let removed = self.change(expire).unwrap_or_default();
        self.tell_removed(&removed);
    }

    /// Says whether a port can send, and tells the controllers.
    pub fn set_live(&self, number: u32, live: bool) {
        let before = self.pipeline().ports().live.get(&number) == Some(&true);
        if before == live {
            return;
        }
        let _ = self.change(|pipeline| {
            pipeline.set_live(number, live);
            Ok::<_, Failed>((Vec::new(), Touched::Port(number)))
        });
        if let Some(port) = self.port_descriptions().into_iter().find(|port| port.port_no.0 == number) {
            let status = PortStatus { reason: PortReason::Modify, port };
            let of = |peer: &Peer| peer.hears_of_port(PortReason::Modify);
            self.tell(&status.into(), of);
        }
    }

    fn change<E>(
        &self,
        change: impl FnOnce(&mut Pipeline) -> Result<(Vec<Removed>, Touched), E>,
    ) -> Result<Vec<Removed>, E> {
        let mut pipeline = self.pipeline.write().unwrap_or_else(PoisonError::into_inner);
        let (removed, touched) = change(&mut pipeline)?;
        // While the lock is held, so that nobody translates by entries of which caches do not know. Before XDP follows: a worker that
        // began a vector by its cache then would send behind packets that XDP treats by the new entries.
        self.version.store(pipeline.version(), Ordering::Release);
        if let Some(offload) = self.offload() {
            offload.changed(self, &pipeline, &touched);
        }
        Ok(removed)
    }

    fn tell_removed(&self, removed: &[Removed]) {
        self.end_queues(removed);
        let asked = |removed: &&Removed| removed.flow.flags.contains(FlowModFlags::SEND_FLOW_REM);
        let mut settled = false;
        for Removed { flow, reason } in removed.iter().filter(asked) {
            // Packets that data paths have not counted yet belong to the last report. The change has counted those of XDP, unless it
            // was one that XDP pauses for.
            if !std::mem::replace(&mut settled, true) {
                match self.offload().is_some_and(|offload| offload.is_paused()) {
                    true => self.settle(),
                    false => {
                        self.await_workers();
                    }
                }
            }
            let (packet_count, byte_count) = flow.counters.get();
            let message = FlowRemoved {
                cookie: flow.cookie,
                priority: flow.priority,
                reason: *reason,
                table_id: flow.table,
                duration: duration(now_ns().saturating_sub(flow.since_ns)),
                idle_timeout_s: flow.idle_timeout_s,
                hard_timeout_s: flow.hard_timeout_s,
                packet_count,
                byte_count,
                matching: flow.matching.clone(),
            };
            self.tell(&message.into(), |peer| peer.hears_of_removal(*reason));
        }
    }

    /// Packets no longer wait for what was removed.
    fn end_queues(&self, removed: &[Removed]) {
        let Some(ports) = self.pipeline().ports().hold else { return };
        let ended: Vec<u32> = removed.iter().flat_map(|removed| removed.flow.queues(ports.hold)).collect();
        if !ended.is_empty() {
            self.wake(self.hold.end(&ended, now_ns()), None);
        }
    }

    /// Sends a message that nobody has asked for to the controllers that want it.
    fn tell(&self, message: &Message, wants: impl Fn(&Peer) -> bool) {
        for peer in lock(&self.peers).values().filter(|peer| wants(peer)) {
            if !peer.tell(message) && matches!(message, Message::PacketIn(_)) {
                self.counts.packet_in_lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A packet for the controllers, to be told by [`Switch::tell_packet`]; `None` if there are too many.
    pub fn packet_in(&self, to: &ToController, frame: &[u8], layout: &Layout) -> Option<PacketIn> {
        if !lock(&self.packet_in).take(now_ns()) {
            self.counts.packet_in_limited.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        // Packets are not kept, so a controller gets all of it whatever it asked for (§7.4.1).
        let data = rewrite::for_controller(frame, layout, to);
        Some(PacketIn {
            buffer_id: BufferId::NO_BUFFER,
            total_len: data.len() as u16,
            reason: to.reason,
            table_id: to.table,
            cookie: to.cookie,
            matching: context(&to.fields),
            data: data.to_vec(),
        })
    }

    /// Sends a packet to the controllers that want it.
    pub fn tell_packet(&self, packet: PacketIn) {
        let reason: PacketInReason = packet.reason;
        self.tell(&packet.into(), |peer| peer.hears_of_packet(reason));
    }

    /// Does what a packet-out says.
    pub fn packet_out(&self, in_port: PortNo, actions: &[openflow::Action], frame: Vec<u8>) {
        self.do_packet_out(in_port, actions, frame, None);
    }

    /// The same; frames for interfaces are collected in `behind`, if there is one, to be sent together.
    fn do_packet_out(
        &self,
        in_port: PortNo,
        actions: &[openflow::Action],
        mut frame: Vec<u8>,
        behind: Option<&mut Vec<(u32, Vec<u8>)>>,
    ) {
        let headers = Headers::parse(&frame, in_port.0);
        let trace = {
            let pipeline = self.pipeline();
            let trace = pipeline.trace_packet_out(&headers.outer, &headers.inner, actions);
            trace.count(&pipeline, 1, frame.len() as u64, now_ns());
            trace
        };
        let mut out = Out { switch: self, layout: &headers.layout, behind };
        rewrite::execute(&trace.steps, &mut frame, &headers.layout, &mut out);
    }

    fn lost_packet_out(&self, port: u32) {
        self.counts.packet_out_lost.fetch_add(1, Ordering::Relaxed);
        if let Some(port) = self.ports.iter().find(|own| own.number == port) {
            port.counts.tx_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Joins a controller.
    pub(crate) fn join(&self, peer: &Arc<Peer>) {
        lock(&self.peers).insert(peer.id, Arc::clone(peer));
    }

    /// A controller's connection has ended.
    pub(crate) fn leave(&self, id: u64) {
        lock(&self.peers).remove(&id);
    }

    /// The controllers that are connected.
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        lock(&self.peers).values().cloned().collect()
    }

    /// Gives a controller a role (§6.3.6); `false` if the election is older than one that has been.
    pub(crate) fn set_role(&self, peer: &Arc<Peer>, role: Role, generation_id: u64) -> bool {
        // Until the roles are given, so that of two elections the later one decides.
        let mut generation = lock(&self.generation);
        if matches!(role, Role::Master | Role::Slave) {
            if generation.is_some_and(|known| (generation_id.wrapping_sub(known) as i64) < 0) {
                return false;
            }
            *generation = Some(generation_id);
        }
        let mut peers = lock(&self.peers);
        // One that asks right behind its hello has not joined yet; the next master must find it.
        peers.insert(peer.id, Arc::clone(peer));
        if role == Role::Master {
            peers
                .values()
                .filter(|peer| peer.role() == Role::Master)
                .for_each(|peer| peer.set_role(Role::Slave));
        }
        peer.set_role(role);
        true
    }

    /// The generation of the last election; all ones if there was none.
    pub(crate) fn generation(&self) -> u64 {
        lock(&self.generation).unwrap_or(u64::MAX)
    }

    /// The ports as OpenFlow describes them, the GTP port among them.
    pub fn port_descriptions(&self) -> Vec<Port> {
        let pipeline = self.pipeline();
        let describe = |number: u32, name: &str, mac| Port {
            port_no: PortNo(number),
            hw_addr: MacAddr(mac),
            name: Text::new(name),
            config: PortConfig::default(),
            state: if pipeline.ports().is_live(PortNo(number)) {
                PortState::LIVE
            } else {
                PortState::LINK_DOWN
            },
            current: 0,
            advertised: 0,
            supported: 0,
            peer: 0,
            current_speed_kbps: 0,
            max_speed_kbps: 0,
        };
        let interfaces = self.ports.iter().map(|port| describe(port.number, &port.name, port.mac));
        let gtp = pipeline.ports().gtp;
        // Tunnels lead through LOCAL, also where the host has no interface there. Its address is a local one of this switch.
        let has_local = self.ports.iter().any(|port| port.number == PortNo::LOCAL.0);
        let [.., a, b, c, d, e] = self.identity.datapath_id.to_be_bytes();
        let local =
            gtp.filter(|_| !has_local).map(|_| describe(PortNo::LOCAL.0, "local", [2, a, b, c, d, e]));
        let hold = pipeline.ports().hold;
        let hold = hold.into_iter().flat_map(|ports| [(ports.hold, "hold"), (ports.release, "release")]);
        let inside = gtp.map(|number| (number, "gtp")).into_iter().chain(hold);
        let inside = inside.map(|(number, name)| describe(number, name, [0; 6]));
        interfaces.chain(local).chain(inside).collect()
    }

    /// Counters of a port.
    pub fn port_stats(&self, port: &SwitchPort) -> PortStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &port.counts;
        PortStats {
            port_no: PortNo(port.number),
            rx_packets: get(&counts.rx_packets),
            tx_packets: get(&counts.tx_packets),
            rx_bytes: get(&counts.rx_bytes),
            tx_bytes: get(&counts.tx_bytes),
            rx_dropped: get(&counts.rx_dropped),
            tx_dropped: get(&counts.tx_dropped),
            // Not counted apart.
            rx_errors: 0,
            tx_errors: 0,
            rx_frame_err: u64::MAX,
            rx_over_err: u64::MAX,
            rx_crc_err: u64::MAX,
            collisions: u64::MAX,
            duration: duration(now_ns().saturating_sub(self.started_ns)),
        }
    }
}

/// Sends what a packet-out sends.
struct Out<'s> {
    switch: &'s Switch,
    layout: &'s Layout,
    behind: Option<&'s mut Vec<(u32, Vec<u8>)>>,
}

impl Sink for Out<'_> {
    fn send(&mut self, exit: Exit<'_>, frame: &mut [u8], _: bool) {
        match (exit, self.switch.workers.get()) {
            (Exit::Port(port), Some(workers)) => match &mut self.behind {
                Some(behind) => behind.push((port, frame.to_vec())),
                None if workers.send(port, frame) => {}
                None => self.switch.lost_packet_out(port),
            },
            (Exit::Hold(queue), Some(workers)) => {
                if !workers.hold(queue, frame) {
                    self.switch.counts.packet_out_lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            (Exit::Port(_) | Exit::Hold(_), None) => {}
            (Exit::Release(queue), _) => self.switch.release(queue, None),
            (Exit::Controller(to), _) => {
                if let Some(packet) = self.switch.packet_in(to, frame, self.layout) {
                    self.switch.tell_packet(packet);
                }
            }
        }
    }
}

/// A length of time in OpenFlow's form.
pub(crate) fn duration(ns: u64) -> Duration {
    Duration { seconds: (ns / 1_000_000_000) as u32, nanoseconds: (ns % 1_000_000_000) as u32 }
}

/// The fields of a packet that are not in it.
fn context(fields: &Words) -> Match {
    let present = CONTEXT.iter().filter(|of| **of == Field::InPort || field::get(fields, **of) != 0);
    let oxms = present.filter_map(|of| Oxm::new(*of, field::get(fields, *of), of.all_bits()).ok());
    // None of these fields needs another.
    Match::new(oxms).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_for_controllers_have_all_of_their_rate() {
        let mut bucket = Bucket { per_s: 1000, tokens: 0, filled_ns: 0 };
        let taken = (1..=1000u64).filter(|at| bucket.take(at * 700_000)).count();
        assert_eq!(taken, 700);
    }
}
