//! Several interfaces on one device: a frame port for each, which gets the frames with its VLAN tags, or its addresses.
//!
//! ```text
//!            ┌─ tags 100      ─► Branch ─► stack
//! device ─► Trunk ─ tags 200, 10.0.0.1 ─► Branch ─► stack
//!            └─ tags 200, all others   ─► Branch ─► stack
//! ```
//! Each frame is looked at once, before the stacks. Interfaces with equal tags are told apart by the address to which a packet
//! or a question for a link-layer address goes. A device with one interface needs no trunk.
//!
//! One worker owns all branches of a trunk; the lock is never contended. A branch that receives reads the device, keeps
//! its own frames and leaves the others for theirs, a vector for each at most: the device is read no further than there
//! is room. A frame with tags that no interface has, or for an interface that has no port at present, counts as
//! `unknown_vlan`: an interface that is away must not hold up the others.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use packet::ethernet::{self, Mac};
use packet::protocol;
use telemetry::DropReason;

use crate::poll::Waker;
use crate::vlan::Tags;
use crate::{FramePort, Pool, Port, Sent, VECTOR, Vector};

/// Most interfaces of one device: their numbers have 8 bits.
pub const MAX_BRANCHES: usize = 255;
/// In place of a branch: no interface has the frame's tags.
const UNKNOWN: u8 = u8::MAX;
/// Neighbour solicitation (RFC 4861 §4.3).
const SOLICITATION: u8 = 135;

/// Which frames of a device an interface gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Those with these tags.
    pub tags: Tags,
    /// Of several interfaces with these tags: frames to these addresses.
    pub addresses: Vec<IpAddr>,
    /// Of several interfaces with these tags: frames to addresses that none of them has.
    pub others: bool,
}

/// The interfaces with the same tags.
#[derive(Debug, Default)]
struct Group {
    by_address: Vec<(IpAddr, u8)>,
    /// For frames to other addresses.
    others: u8,
    /// Whether there are several.
    shared: bool,
}

impl Group {
    #[inline]
    fn branch(&self, frame: &[u8], header: usize) -> u8 {
        if !self.shared {
            return self.others;
        }
        let to = destination(frame, header);
        let known = |to| self.by_address.iter().find(|(address, _)| *address == to);
        to.and_then(known).map_or(self.others, |(_, branch)| *branch)
    }
}

/// The address to which a packet, or a question for a link-layer address, goes.
fn destination(frame: &[u8], header: usize) -> Option<IpAddr> {
    let packet = frame.get(header..)?;
    let v4 = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?)));
    let v6 = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?));
    match u16::from_be_bytes([frame[header - 2], frame[header - 1]]) {
        ethernet::IPV4 => v4(16),
        ethernet::ARP => v4(24),
        ethernet::IPV6 => {
            let to = v6(24)?;
            let asks =
                to.is_multicast() && packet[6] == protocol::ICMPV6 && packet.get(40) == Some(&SOLICITATION);
            Some(if asks { v6(48)? } else { to }.into())
        }
        _ => None,
    }
}

struct Inner<F> {
    groups: HashMap<u32, Group>,
    /// Frames that another branch has received, by number of the branch. Dropped before `frames`, which has their memory.
    waiting: Vec<Vector>,
    /// Ports of each branch: none while its interface is away.
    ports: Vec<usize>,
    frames: F,
    unknown_vlan: usize,
    no_room: usize,
}

/// A device with several interfaces.
pub struct Trunk<F>(Arc<Mutex<Inner<F>>>);

impl<F> Clone for Trunk<F> {
    fn clone(&self) -> Trunk<F> {
        Trunk(Arc::clone(&self.0))
    }
}

impl<F: FramePort> Trunk<F> {
    /// Shares a device among interfaces: branch *n* gets what `shares[n]` says, at most [`MAX_BRANCHES`].
    pub fn new(frames: F, shares: &[Share]) -> Trunk<F> {
        let mut groups: HashMap<u32, Group> = HashMap::new();
        for (number, share) in (0..UNKNOWN).zip(shares) {
            let group = groups
                .entry(share.tags.key())
                .or_insert_with(|| Group { others: number, ..Group::default() });
            group.shared |= group.others != number || !group.by_address.is_empty();
            if share.others {
                group.others = number;
            }
            group.by_address.extend(share.addresses.iter().map(|address| (*address, number)));
        }
        let waiting: Vec<Vector> = shares.iter().take(MAX_BRANCHES).map(|_| Vector::new(VECTOR, 1)).collect();
        let ports = vec![0; waiting.len()];
        Trunk(Arc::new(Mutex::new(Inner { groups, waiting, ports, frames, unknown_vlan: 0, no_room: 0 })))
    }

    /// The port of an interface.
    ///
    /// # Errors
    /// There is no such share, or no descriptor left.
    pub fn branch(&self, number: usize) -> io::Result<Branch<F>> {
        let mut inner = lock(&self.0);
        if number >= inner.waiting.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fd = inner.frames.fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let mtu = inner.frames.mtu();
        inner.ports[number] += 1;
        Ok(Branch { trunk: Arc::clone(&self.0), number, mtu, fd })
    }
}

fn lock<F>(trunk: &Mutex<Inner<F>>) -> MutexGuard<'_, Inner<F>> {
    trunk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: FramePort> Inner<F> {
    /// Receives frames of branch `own`, and leaves those of the others for these.
    fn receive(&mut self, own: usize, batch: &mut Vector) -> io::Result<usize> {
        if !self.waiting[own].is_empty() {
            batch.clear();
            self.waiting[own].move_to(batch, |_| true);
            return Ok(batch.len());
        }
        let room = self.waiting.iter().map(|waiting| VECTOR - waiting.len()).min().unwrap_or(VECTOR);
        if room == 0 {
            batch.clear();
            return Ok(0);
        }
        let capacity = batch.limit(room.min(batch.capacity()));
        let received = self.frames.receive(batch);
        batch.limit(capacity);
        if received? == 0 {
            return Ok(0);
        }
        let mut branches = [0; VECTOR];
        let mut others = false;
        for (branch, frame) in branches.iter_mut().zip(batch.frames()) {
            let (key, header) = Tags::read(frame.packet());
            // A frame without a type is nobody's.
            let group = self.groups.get(&key).filter(|_| frame.len() >= header);
            *branch = group.map_or(UNKNOWN, |group| group.branch(frame.packet(), header));
            if self.ports.get(usize::from(*branch)) == Some(&0) {
                *branch = UNKNOWN;
            }
            others |= usize::from(*branch) != own;
        }
        if others {
            self.sort(own, &branches, batch);
        }
        Ok(batch.len())
    }

    fn sort(&mut self, own: usize, branches: &[u8; VECTOR], batch: &mut Vector) {
        let count = batch.len();
        let mut moved = [false; VECTOR];
        for (number, waiting) in self.waiting.iter_mut().enumerate().filter(|(number, _)| *number != own) {
            let is_its = |at: usize| usize::from(branches[at]) == number;
            let wanted = (0..count).filter(|at| is_its(*at)).count();
            if wanted > 0 {
                let before = waiting.len();
                batch.give_to(waiting, is_its);
                self.no_room += wanted - (waiting.len() - before);
            }
        }
        for (moved, branch) in moved.iter_mut().zip(branches).take(count) {
            *moved = usize::from(*branch) != own;
            self.unknown_vlan += usize::from(*branch == UNKNOWN);
        }
        let mut at = 0;
        batch.retain(|_| {
            at += 1;
            !moved[at - 1]
        });
    }
}

/// One interface's port on a [`Trunk`].
pub struct Branch<F> {
    trunk: Arc<Mutex<Inner<F>>>,
    number: usize,
    mtu: usize,
    /// The device's descriptor under another number, so that one poller can wait for all branches.
    fd: Option<OwnedFd>,
}

impl<F> Drop for Branch<F> {
    fn drop(&mut self) {
        let mut inner = lock(&self.trunk);
        inner.ports[self.number] -= 1;
        if inner.ports[self.number] == 0 {
            inner.waiting[self.number].clear();
        }
    }
}

impl<F: FramePort> Port for Branch<F> {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        lock(&self.trunk).receive(self.number, batch)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        lock(&self.trunk).frames.transmit(batch, selected)
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        let mut inner = lock(&self.trunk);
        for (reason, lost) in [
            (DropReason::UnknownVlan, std::mem::take(&mut inner.unknown_vlan)),
            (DropReason::RxNoBuffer, std::mem::take(&mut inner.no_room)),
        ] {
            if lost > 0 {
                count(reason, lost);
            }
        }
        inner.frames.losses(count);
    }

    /// Frames that another branch has received wait too: the device's descriptor does not know of them.
    fn unsent(&self) -> bool {
        let inner = lock(&self.trunk);
        inner.frames.unsent() || !inner.waiting[self.number].is_empty()
    }

    fn before_sleep(&mut self) -> io::Result<()> {
        lock(&self.trunk).frames.before_sleep()
    }

    fn wake_with(&mut self, waker: &Waker) {
        lock(&self.trunk).frames.wake_with(waker);
    }

    fn pool(&self) -> Option<Arc<dyn Pool>> {
        lock(&self.trunk).frames.pool()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }
}

impl<F: FramePort> FramePort for Branch<F> {
    fn mac(&self) -> Mac {
        lock(&self.trunk).frames.mac()
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn draw(&mut self, vector: &mut Vector, count: usize) -> usize {
        lock(&self.trunk).frames.draw(vector, count)
    }
}
