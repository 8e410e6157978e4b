//! Neighbours of an interface that is ours alone: ARP (RFC 826), neighbour discovery (RFC 4861 §7.2) and answers to
//! pings.
//!
//! Packets to a neighbour that is being asked for wait here, a few per neighbour, and go out in their order once it
//! answers. A neighbour that was heard of is asked again after a while and forgotten when it stays silent. What is
//! kept is bounded in every direction: a neighbour is only learnt when it was asked for or talks to one of our
//! addresses.
//!
//! The workers of an interface share the neighbours ([`Resolver::share`]), whichever queue an answer comes to. Each keeps its
//! own waiting packets, and copies of the neighbours that it sends to. It looks into the shared table, which has a lock, for
//! others only.
//!
//! When a neighbour in use has another address, or is forgotten, headers have to be made anew: the table gets a new
//! version, and the copies are forgotten.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use net::link::Cidr;
use packet::checksum::Sum;
use packet::ethernet::{self, Mac};
use packet::{icmp, ipv4, ipv6, protocol};

use super::header::Version;
use super::routes::{Found, Hosts, Near, Number, Rank, Route, Routes, Via};
use super::{Link, NextHop, new_version};
use crate::{FramePort, Vector};

/// Most neighbours that are known or asked for at a time.
const MAX_KNOWN: usize = 4096;
const MAX_PENDING: usize = 256;
/// Packets that wait for one neighbour.
const MAX_HELD: usize = 32;
/// Time between questions, and how many there are (RFC 4861 §10: 1 s, 3).
const ASK_EVERY: Duration = Duration::from_secs(1);
const TRIES: u32 = 3;
/// A neighbour in use is asked again after this time.
const CONFIRM_AFTER: Duration = Duration::from_secs(30);
/// Frames of our own that wait to be sent.
const MAX_OUT: usize = 512;
/// Longest frame that we answer or hold.
const FRAME: usize = 4096;

const BROADCAST: Mac = [0xFF; 6];
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
/// Ethernet and IPv4, with their address lengths (RFC 826).
const ARP_KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_LEN: usize = 28;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// "Solicited" and "override".
const ADVERTISED: u8 = 0x60;
/// Hop limit that shows that a message comes from this link.
const ON_LINK_HOPS: u8 = 255;

#[derive(Debug)]
struct Known {
    mac: Mac,
    confirmed: Instant,
    used: bool,
    asked: u32,
}

/// A neighbour that has been asked and has not answered.
#[derive(Debug)]
struct Pending {
    asked: Instant,
    tries: u32,
}

/// What the workers of an interface share.
#[derive(Debug)]
struct Shared {
    addresses: Vec<Cidr>,
    routes: Routes,
    /// Of the headers made with what is known.
    version: AtomicU64,
    /// Number of changes of the table. Begins at 1: a worker that has seen none has 0.
    changes: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    known: Hosts<Known>,
    pending: HashMap<IpAddr, Pending>,
    next_look: Instant,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Addresses, gateways and neighbours of an interface of our own, for one worker; see the module.
#[derive(Debug)]
pub struct Resolver {
    shared: Arc<Shared>,
    /// The version of the copies.
    version: Version,
    /// Neighbours to which this worker sends.
    copies: Hosts<Mac>,
    /// Frames that wait for a neighbour, by its address, and the changes of the table that they have seen.
    held: HashMap<IpAddr, Vec<Box<[u8]>>>,
    seen: u64,
    /// Questions and answers to be sent: the frame without link header, with its destination.
    out: Vec<(Mac, u16, Vec<u8>)>,
    /// Held frames whose neighbour has answered: the Ethernet destination is filled in.
    released: Vec<Box<[u8]>>,
    batch: Vector,
    next_look: Instant,
    /// Packets whose neighbour has not answered, since this was last read.
    pub(super) lost: usize,
}

impl Resolver {
    /// For an interface with `addresses`, each with the prefix of its link; what is on no link goes to the gateway
    /// of its family.
    pub fn new(addresses: &[Cidr], gateways: &[IpAddr]) -> Resolver {
        let (known, pending) = (Hosts::default(), HashMap::new());
        Resolver::of(Arc::new(Shared {
            addresses: addresses.to_vec(),
            routes: routes(addresses, gateways),
            version: AtomicU64::new(new_version()),
            changes: AtomicU64::new(1),
            table: Mutex::new(Table { known, pending, next_look: net::time::now_std() }),
        }))
    }

    /// The same interface, for another worker.
    pub fn share(&self) -> Resolver {
        Resolver::of(Arc::clone(&self.shared))
    }

    fn of(shared: Arc<Shared>) -> Resolver {
        Resolver {
            version: shared.version.load(Ordering::Acquire),
            copies: Hosts::default(),
            held: HashMap::new(),
            seen: 0,
            out: Vec::new(),
            released: Vec::new(),
            batch: Vector::new(64, FRAME),
            next_look: net::time::now_std(),
            lost: 0,
            shared,
        }
    }

    pub(super) fn is_ours(&self, address: IpAddr) -> bool {
        self.shared.addresses.iter().any(|own| own.address() == address)
    }

    /// Our address of a family.
    fn source(&self, ipv6: bool) -> Option<IpAddr> {
        self.shared.addresses.iter().map(Cidr::address).find(|address| address.is_ipv6() == ipv6)
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// The neighbour that a packet goes to.
    fn hop(&self, to: IpAddr) -> Option<IpAddr> {
        match self.shared.routes.via(to) {
            Via::Link => Some(to),
            Via::Gateway(gateway) => Some(gateway),
            Via::Own | Via::Elsewhere => None,
        }
    }

    #[inline(always)]
    pub(super) fn next_hop(&mut self, to: Number, near: &mut Near) -> NextHop {
        match self.shared.routes.find(&self.copies, to, near) {
            Found::Host(mac) => NextHop::Mac(*mac),
            Found::Unknown => self.look_up(to.into()),
            Found::Elsewhere => NextHop::Elsewhere,
        }
    }

    /// Whether packets to an address are for the stack itself: our own, or a group's.
    #[inline(always)]
    pub(super) fn answers_for(&self, address: Number, near: &mut Near) -> bool {
        self.shared.routes.is_own(address, near)
    }

    /// Looks for a neighbour in the shared table.
    #[cold]
    fn look_up(&mut self, to: IpAddr) -> NextHop {
        let Some(hop) = self.hop(to) else { return NextHop::Elsewhere };
        if self.held.contains_key(&hop) {
            // Another worker may know it by now; frames that wait go first.
            return NextHop::Unknown;
        }
        match self.shared.table().known.get_mut(hop) {
            Some(known) => {
                known.used = true;
                self.copies.insert(hop, known.mac);
                NextHop::Mac(known.mac)
            }
            None => NextHop::Unknown,
        }
    }

    /// Keeps a frame until its neighbour answers; `false` when too many wait.
    pub(super) fn hold(&mut self, to: IpAddr, frame: &[u8]) -> bool {
        let Some(hop) = self.hop(to) else { return false };
        if !self.held.contains_key(&hop) {
            let shared = Arc::clone(&self.shared);
            let mut table = shared.table();
            if !table.known.contains(hop) && !table.pending.contains_key(&hop) {
                if table.pending.len() >= MAX_PENDING {
                    return false;
                }
                table.pending.insert(hop, Pending { asked: net::time::now_std(), tries: 1 });
                self.ask(hop);
            }
            // If it is known by now, they are released at once.
            self.seen = 0;
        }
        let held = self.held.entry(hop).or_default();
        let room = held.len() < MAX_HELD && frame.len() <= FRAME;
        if room {
            held.push(frame.into());
        }
        room
    }

    /// Whether frames wait for a neighbour, whose answer may come to another worker, and which may have to be asked again.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        !self.held.is_empty()
    }

    /// After a change of the table: releases the frames of neighbours that are known by now, and drops those of neighbours
    /// that have not answered.
    fn release(&mut self) {
        let changes = self.shared.changes.load(Ordering::Acquire);
        if self.held.is_empty() || self.seen == changes {
            return;
        }
        self.seen = changes;
        let (table, released, lost) = (self.shared.table(), &mut self.released, &mut self.lost);
        self.held.retain(|hop, frames| {
            if let Some(known) = table.known.get(*hop) {
                for mut frame in frames.drain(..) {
                    frame[..6].copy_from_slice(&known.mac);
                    released.push(frame);
                }
                return false;
            }
            let waits = table.pending.contains_key(hop);
            if !waits {
                *lost += frames.len();
            }
            waits
        });
    }

    fn push(&mut self, to: Mac, ethertype: u16, packet: Vec<u8>) {
        // Beyond the bound the other side asks again, as do we.
        if self.out.len() < MAX_OUT {
            self.out.push((to, ethertype, packet));
        }
    }

    /// Asks who has `hop`. The link's own address is filled in when the frame is sent.
    fn ask(&mut self, hop: IpAddr) {
        match (hop, self.source(hop.is_ipv6())) {
            (IpAddr::V4(hop), Some(IpAddr::V4(own))) => {
                self.push(BROADCAST, ethernet::ARP, arp(ARP_REQUEST, own, ([0; 6], hop)));
            }
            (IpAddr::V6(hop), Some(IpAddr::V6(own))) => {
                let [.., a, b, c] = hop.octets();
                let group =
                    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
                self.push(
                    [0x33, 0x33, 0xFF, a, b, c],
                    ethernet::IPV6,
                    discovery(SOLICITATION, 0, (own, group), hop),
                );
            }
            _ => {}
        }
    }

    /// Has all headers made anew, as our own address is another one.
    #[cold]
    pub(super) fn renew(&mut self) {
        self.shared.version.store(new_version(), Ordering::Release);
        self.version = self.shared.version.load(Ordering::Acquire);
    }

    /// Follows the table, repeats questions and forgets neighbours; once per batch, of which most have nothing to do. Once a
    /// second it returns `true`.
    pub(super) fn refresh(&mut self) -> bool {
        let version = self.shared.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.copies = Hosts::default();
        }
        let now = net::time::now_std();
        let looks = now >= self.next_look;
        if looks {
            self.next_look = now + ASK_EVERY;
            self.look(now);
        }
        self.release();
        looks
    }

    /// Once a second one of the workers repeats questions and forgets neighbours.
    #[cold]
    fn look(&mut self, now: Instant) {
        let shared = Arc::clone(&self.shared);
        let mut table = shared.table();
        if now < table.next_look {
            return;
        }
        table.next_look = now + ASK_EVERY;
        let (mut changed, mut forgotten) = (false, false);
        table.pending.retain(|hop, pending| {
            if now.duration_since(pending.asked) < ASK_EVERY {
                return true;
            }
            if pending.tries == TRIES {
                changed = true;
                return false;
            }
            (pending.asked, pending.tries) = (now, pending.tries + 1);
            self.ask(*hop);
            true
        });
        table.known.retain(|hop, known| {
            if now.duration_since(known.confirmed) < CONFIRM_AFTER {
                return true;
            }
            if !known.used || known.asked == TRIES {
                forgotten |= known.used;
                return false;
            }
            known.asked += 1;
            self.ask(hop);
            true
        });
        if forgotten {
            // Under the lock, so that no worker replaces a newer version.
            shared.version.store(new_version(), Ordering::Release);
        }
        drop(table);
        if changed {
            shared.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// `address` is at `mac`. Learnt if it was asked for, is known, or has just `asked` for us.
    fn learn(&mut self, address: IpAddr, mac: Mac, asked: bool) {
        let shared = Arc::clone(&self.shared);
        let mut table = shared.table();
        let pending = table.pending.remove(&address).is_some();
        let used = pending || table.known.contains(address);
        if mac[0] & 1 == 0 && (used || (asked && table.known.len() < MAX_KNOWN)) {
            let known = Known { mac, confirmed: net::time::now_std(), used, asked: 0 };
            if table.known.insert(address, known).is_some_and(|last| last.used && last.mac != mac) {
                shared.version.store(new_version(), Ordering::Release);
            }
        }
        drop(table);
        if pending {
            shared.changes.fetch_add(1, Ordering::Release);
            self.release();
        }
    }

    /// A frame that is not for the pipeline; `false` if it is not for the stack either.
    pub(super) fn control(&mut self, link: &Link, frame: &[u8]) -> bool {
        let Some((kind, payload)) = link.payload(frame) else { return false };
        let from: Mac = std::array::from_fn(|i| frame[6 + i]);
        match kind {
            ethernet::ARP => self.arp(payload).is_some(),
            ethernet::IPV4 => self.ping(from, payload).is_some(),
            ethernet::IPV6 => self.icmpv6(from, payload).is_some(),
            _ => false,
        }
    }

    fn arp(&mut self, message: &[u8]) -> Option<()> {
        let message = message.get(..ARP_LEN).filter(|message| message[..6] == ARP_KIND)?;
        let mac: Mac = std::array::from_fn(|i| message[8 + i]);
        let address =
            |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&message[at..at + 4]).unwrap_or_default());
        let (sender, target) = (address(14), address(24));
        let ours = self.is_ours(target.into());
        if !sender.is_unspecified() && !self.is_ours(sender.into()) {
            self.learn(sender.into(), mac, ours);
        }
        if message[7] == ARP_REQUEST && ours {
            self.push(mac, ethernet::ARP, arp(ARP_REPLY, target, (mac, sender)));
        }
        Some(())
    }

    fn ping(&mut self, from: Mac, bytes: &[u8]) -> Option<()> {
        let packet = ipv4::Packet::new(bytes).ok()?;
        let (source, own) = (packet.source(), packet.destination());
        if !self.is_ours(own.into())
            || packet.protocol() != protocol::ICMP
            || packet.more_fragments()
            || packet.fragment_offset() > 0
        {
            return None;
        }
        let echo = icmp::Message::new(packet.payload()).ok()?;
        if echo.kind() == icmp::ECHO_REQUEST_V4 && bytes.len() <= FRAME {
            let ids = (echo.identifier(), echo.sequence());
            let answer = icmp::build_echo(
                own.into(),
                source.into(),
                icmp::ECHO_REPLY_V4,
                ids.0,
                ids.1,
                echo.payload(),
            );
            let answer = ipv4::Header::new(own, source, protocol::ICMP).build(&answer).ok()?;
            self.push(from, ethernet::IPV4, answer);
        }
        Some(())
    }

    fn icmpv6(&mut self, from: Mac, bytes: &[u8]) -> Option<()> {
        let packet = ipv6::Packet::new(bytes).ok()?;
        if packet.next_header() != protocol::ICMPV6 {
            return None;
        }
        let (source, destination, body) = (packet.source(), packet.destination(), packet.payload());
        let message = icmp::Message::new(body).ok()?;
        if !message.checksum_ok(source.into(), destination.into()) {
            return None;
        }
        match message.kind() {
            icmp::ECHO_REQUEST_V6 if self.is_ours(destination.into()) && bytes.len() <= FRAME => {
                let ids = (message.identifier(), message.sequence());
                let answer = icmp::build_echo(
                    destination.into(),
                    source.into(),
                    icmp::ECHO_REPLY_V6,
                    ids.0,
                    ids.1,
                    message.payload(),
                );
                let answer = ipv6::Header::new(destination, source, protocol::ICMPV6).build(&answer).ok()?;
                self.push(from, ethernet::IPV6, answer);
            }
            kind @ (SOLICITATION | ADVERTISEMENT) if packet.hop_limit() == ON_LINK_HOPS => {
                let target = Ipv6Addr::from(<[u8; 16]>::try_from(body.get(8..24)?).ok()?);
                if kind == ADVERTISEMENT {
                    // Without the option, an answer to our question: it comes from who has the address.
                    self.learn(target.into(), link_layer_option(body, 2).unwrap_or(from), false);
                } else if self.is_ours(target.into()) && !source.is_unspecified() {
                    let mac = link_layer_option(body, 1).unwrap_or(from);
                    self.learn(source.into(), mac, true);
                    let answer = discovery(ADVERTISEMENT, ADVERTISED, (target, source), target);
                    self.push(mac, ethernet::IPV6, answer);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Sends what is waiting.
    pub(super) fn flush<F: FramePort>(&mut self, link: &Link, frames: &mut F) {
        if self.out.is_empty() && self.released.is_empty() {
            return;
        }
        let mut ready = std::mem::take(&mut self.released);
        for (to, ethertype, mut packet) in self.out.drain(..) {
            fill_in(&mut packet, ethertype, link.mac);
            let mut frame = vec![0; link.header_len()];
            link.write(&mut frame, to, ethertype);
            frame.extend_from_slice(&packet);
            ready.push(frame.into());
        }
        let nobody = (Ipv4Addr::UNSPECIFIED, 0).into();
        for group in ready.chunks(self.batch.capacity()) {
            self.batch.clear();
            for frame in group {
                self.batch.push(frame, nobody);
            }
            let all: Vec<u16> = (0..self.batch.len() as u16).collect();
            let sent = frames.transmit(&mut self.batch, &all);
            self.lost += group.len() - sent.packets;
        }
    }
}

/// What an interface with `addresses` reaches. Our own addresses and those of broadcasts are no next hops.
fn routes(addresses: &[Cidr], gateways: &[IpAddr]) -> Routes {
    let is_ours = |address: IpAddr| addresses.iter().any(|own| own.address() == address);
    let own = addresses.iter().map(|own| (Cidr::host(own.address()), Via::Own));
    let broadcasts = addresses.iter().filter_map(|own| match own.network().address() {
        IpAddr::V4(first) if own.prefix() < 31 => {
            let last = first.to_bits() | u32::MAX >> own.prefix();
            Some((Cidr::host(Ipv4Addr::from_bits(last).into()), Via::Elsewhere))
        }
        _ => None,
    });
    // Our own addresses come first, should one be a broadcast's too.
    let none = own.chain(broadcasts).map(|(network, via)| Route { network, rank: Rank::Local, via });
    let links = addresses.iter().map(|own| Route { network: *own, rank: Rank::Metric(0), via: Via::Link });
    // Where there are several, the first one of a family.
    let gateways =
        gateways.iter().zip(1..).filter(|(gateway, _)| !is_ours(**gateway)).filter_map(|(gateway, n)| {
            let any = if gateway.is_ipv4() {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED)
            } else {
                Ipv6Addr::UNSPECIFIED.into()
            };
            Some(Route { network: Cidr::new(any, 0)?, rank: Rank::Metric(n), via: Via::Gateway(*gateway) })
        });
    Routes::new(none.chain(links).chain(gateways))
}

/// An ARP message; our hardware address comes later.
fn arp(kind: u8, own: Ipv4Addr, (mac, target): (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut message = Vec::with_capacity(ARP_LEN);
    message.extend_from_slice(&ARP_KIND);
    message.extend_from_slice(&[0, kind]);
    message.extend_from_slice(&[0; 6]);
    message.extend_from_slice(&own.octets());
    message.extend_from_slice(&mac);
    message.extend_from_slice(&target.octets());
    message
}

/// A message of neighbour discovery in IPv6, with room for the option that has our hardware address; checksum and
/// address come later.
fn discovery(kind: u8, flags: u8, (own, to): (Ipv6Addr, Ipv6Addr), target: Ipv6Addr) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 32, protocol::ICMPV6, ON_LINK_HOPS];
    packet.extend_from_slice(&own.octets());
    packet.extend_from_slice(&to.octets());
    packet.extend_from_slice(&[kind, 0, 0, 0, flags, 0, 0, 0]);
    packet.extend_from_slice(&target.octets());
    // Source of a solicitation (1), target of an advertisement (2); the length is in units of eight octets.
    packet.extend_from_slice(&[kind - SOLICITATION + 1, 1]);
    packet.extend_from_slice(&[0; 6]);
    packet
}

/// Puts our hardware address into a message of [`arp`] or [`discovery`], and the checksum. Pings have neither.
fn fill_in(packet: &mut [u8], ethertype: u16, own: Mac) {
    match ethertype {
        ethernet::ARP => packet[8..14].copy_from_slice(&own),
        ethernet::IPV6 if matches!(packet[40], SOLICITATION | ADVERTISEMENT) => {
            packet[66..72].copy_from_slice(&own);
            let address =
                |at: usize| IpAddr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap_or_default());
            let sum = Sum::default()
                .pseudo_header(address(8), address(24), protocol::ICMPV6, 32)
                .octets(&packet[40..])
                .finish();
            packet[42..44].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {}
    }
}

/// The link-layer address in an option of a message of neighbour discovery (RFC 4861 §4.6.1).
fn link_layer_option(body: &[u8], wanted: u8) -> Option<Mac> {
    let mut rest = body.get(24..)?;
    while let [kind, length, ..] = *rest {
        let length = usize::from(length) * 8;
        if length == 0 {
            return None;
        }
        if kind == wanted {
            return Mac::try_from(rest.get(2..8)?).ok();
        }
        rest = rest.get(length..)?;
    }
    None
}
