//! A thin stack between Ethernet frames and the packets that the pipeline works on.
//!
//! ```text
//! N3: UDP payloads with a peer ◄──► UdpStack ──┐
//!                                              ├── FramePort (AF_XDP, DPDK)
//! any port: payloads           ◄──► DatagramStack
//! N6: IP packets               ◄──► IpStack  ──┘
//!                                      │
//!                                 Neighbours: the kernel's tables, or our own ARP and neighbour discovery
//! ```
//! Headers are taken off and put on in place, in the buffer's headroom. Those of a datagram to a peer that has a number
//! are ready-made ([`header`]): they stand with its address in the table of peers ([`crate::Peers`]), of the version of
//! the neighbours that they were made from. A port that finds them missing, of an older version, or of another port makes
//! new ones. The next hop of other packets is looked up by address: the route among ranges, the neighbour by a hash.
//!
//! Outer fragments are not reassembled here: those to addresses of the kernel's never come here but to the kernel's
//! socket, others are dropped and counted.
//!
//! For addresses of the kernel's, its routes and neighbours count ([`kernel::KernelTables`]). A packet whose next hop
//! is not known, or lies behind another interface, goes through the kernel ([`Slow`]), which resolves the next hop with
//! it: nothing is lost meanwhile. For addresses of our own a [`resolver::Resolver`] answers and asks ARP (RFC 826) and
//! neighbour discovery (RFC 4861).
//!
//! UDP checksums of received datagrams are not verified: adapters have done so, and on virtual links between
//! machines of one host the field is not filled in. The outer IPv4 header is.

pub mod datagram;
pub(crate) mod header;
pub mod ip;
pub mod kernel;
pub(crate) mod netlink;
pub mod raw;
pub mod resolver;
mod routes;
pub mod udp;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use packet::ethernet::{self, Mac};
use telemetry::DropReason;

use crate::poll::AnyOf;
use crate::vlan::Tags;
use crate::{FrameMut, FramePort, Port, Sent, Vector};
use header::Version;
use kernel::Reader;
use resolver::Resolver;
use routes::{Near, Number};

/// Between two versions there is room for the numbers of endpoints.
const VERSION_STEP: Version = 1 << 16;

/// A version that no other tables have or had.
fn new_version() -> Version {
    static NEXT: AtomicU64 = AtomicU64::new(VERSION_STEP);
    NEXT.fetch_add(VERSION_STEP, Ordering::Relaxed)
}

/// Where a packet goes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextHop {
    /// Into a frame to this address.
    Mac(Mac),
    /// The link-layer address is not known (yet).
    Unknown,
    /// Not through this interface.
    Elsewhere,
}

/// The source of next hops.
pub enum Neighbours {
    /// The kernel, which has the interface's addresses. Packets that it has to send itself take the slow path.
    Kernel(Reader, Slow),
    /// Our own ARP and neighbour discovery.
    Own(Box<Resolver>),
}

/// A kernel socket for the packets that the frame port cannot send, and for those that the XDP program passes to the
/// kernel.
pub type Slow = Box<dyn Port>;

/// Ethernet on one interface: our side of the header.
#[derive(Clone, Copy, Debug)]
struct Link {
    mac: Mac,
    tags: Tags,
}

impl Link {
    /// Length of the Ethernet header.
    #[inline]
    fn header_len(&self) -> usize {
        self.tags.header_len()
    }

    /// Writes a header of [`Link::header_len`] octets.
    fn write(&self, out: &mut [u8], to: Mac, ethertype: u16) {
        out[..6].copy_from_slice(&to);
        out[6..12].copy_from_slice(&self.mac);
        let tags = self.tags.octets();
        let at = 12 + tags.len();
        out[12..at].copy_from_slice(tags);
        out[at..at + 2].copy_from_slice(&ethertype.to_be_bytes());
    }

    /// EtherType and payload of a frame for us: to our address or a group, on our VLAN.
    #[inline]
    fn payload<'a>(&self, frame: &'a [u8]) -> Option<(u16, &'a [u8])> {
        let header = self.header_len();
        let payload = frame.get(header..)?;
        let group = frame[0] & 1 != 0;
        if !group && frame[..6] != self.mac {
            return None;
        }
        if !self.tags.begin(frame) {
            return None;
        }
        Some((u16::from_be_bytes([frame[header - 2], frame[header - 1]]), payload))
    }

    /// Takes tags with priority bits only off a frame of our VLAN; whether there were any.
    #[cold]
    fn settle(&self, frame: &mut FrameMut<'_>) -> bool {
        let more = self.tags.settle(frame.packet_mut());
        more.inspect(|more| frame.trim_front(*more)).is_some()
    }

    /// Whether a frame is of another VLAN.
    fn is_elsewhere(&self, frame: &[u8]) -> bool {
        Tags::read(frame).0 != self.tags.key()
    }
}

/// The kind of a received frame.
enum Received {
    /// The buffer holds a packet for the pipeline.
    Packet,
    /// For the stack itself, if it answers for the interface; else not served.
    Other,
}

/// How a packet is sent, or why it is not.
enum Prepared {
    /// The buffer holds a frame.
    Frame,
    /// It waits for its next hop's address.
    Held,
    /// It goes through the slow path, if there is one.
    NoNextHop,
    TooBig,
    Error,
}

/// What both stacks have in common.
struct Core<F> {
    frames: F,
    link: Link,
    neighbours: Neighbours,
    mtu: usize,
    /// Positions in the batch under way that the frame port or the kernel sends.
    fast: Vec<u16>,
    slow: Vec<u16>,
    /// Over the frame port and the slow path.
    either: Option<AnyOf>,
    /// Calls of `receive` since the slow path was last read.
    skipped: u32,
    /// The slow path gave packets when it was last read, and may keep more, of which its descriptor knows nothing.
    slow_has_more: bool,
    not_served: usize,
    unknown_vlan: usize,
}

/// Calls of `receive` for each reading of the kernel's socket. A system call in every one would take the processor from
/// the interface's own work.
const SLOW_TURN: u32 = 64;

impl<F: FramePort> Core<F> {
    fn new(frames: F, tags: Tags, neighbours: Neighbours) -> std::io::Result<Core<F>> {
        let link = Link { mac: frames.mac(), tags };
        // An IP packet has a length of 16 bits.
        let mtu = frames.mtu().min(usize::from(u16::MAX));
        let mut either = None;
        if let (Some(fd), Neighbours::Kernel(_, slow)) = (frames.fd(), &neighbours)
            && let Some(slow) = slow.fd()
        {
            either = Some(AnyOf::new([fd, slow])?);
        }
        let (fast, slow) = (Vec::new(), Vec::new());
        Ok(Core {
            frames,
            link,
            neighbours,
            mtu,
            fast,
            slow,
            either,
            skipped: 0,
            slow_has_more: false,
            not_served: 0,
            unknown_vlan: 0,
        })
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        match &self.either {
            Some(either) => Some(either.as_fd()),
            None => self.frames.fd(),
        }
    }

    /// Takes the newest routes and neighbours, or asks for them, before packets are sent.
    #[inline]
    fn refresh(&mut self) {
        match &mut self.neighbours {
            Neighbours::Kernel(reader, _) => {
                reader.refresh();
                self.link.mac = reader.mac().unwrap_or(self.link.mac);
            }
            Neighbours::Own(resolver) => {
                if resolver.refresh() {
                    let mac = self.frames.mac();
                    if std::mem::replace(&mut self.link.mac, mac) != mac {
                        resolver.renew();
                    }
                }
                // What has waited goes first.
                resolver.flush(&self.link, &mut self.frames);
            }
        }
    }

    /// Packets of the link have no more than `mtu` octets.
    fn limit_mtu(&mut self, mtu: usize) {
        self.mtu = self.mtu.min(mtu);
    }

    /// Receives frames and turns them into packets by `strip`; from the kernel's socket when there are none.
    fn receive(
        &mut self,
        batch: &mut Vector,
        mut strip: impl FnMut(&Link, &Neighbours, &mut FrameMut<'_>) -> Received,
    ) -> std::io::Result<usize> {
        if let Neighbours::Kernel(_, slow) = &mut self.neighbours {
            self.skipped += 1;
            if self.skipped > SLOW_TURN {
                self.skipped = 0;
                let received = slow.receive(batch)?;
                self.slow_has_more = received > 0;
                if received > 0 {
                    return Ok(received);
                }
            }
        }
        let received = self.frames.receive(batch)?;
        if matches!(self.neighbours, Neighbours::Kernel(..)) {
            self.refresh();
        }
        if received == 0
            && self.slow_has_more
            && let Neighbours::Kernel(_, slow) = &mut self.neighbours
        {
            let received = slow.receive(batch)?;
            self.slow_has_more = received > 0;
            return Ok(received);
        }
        let (link, neighbours) = (&self.link, &mut self.neighbours);
        let (not_served, unknown_vlan) = (&mut self.not_served, &mut self.unknown_vlan);
        if received > 0 {
            let mut strip = |neighbours: &Neighbours, frame: &mut FrameMut<'_>| {
                let received = strip(link, neighbours, frame);
                match received {
                    Received::Other if link.settle(frame) => strip(link, neighbours, frame),
                    _ => received,
                }
            };
            batch.retain(|mut frame| match strip(neighbours, &mut frame) {
                Received::Packet => true,
                Received::Other => {
                    let taken = match neighbours {
                        Neighbours::Own(resolver) => resolver.control(link, frame.packet()),
                        Neighbours::Kernel(..) => false,
                    };
                    if !taken {
                        let elsewhere = link.is_elsewhere(frame.packet());
                        *if elsewhere { &mut *unknown_vlan } else { &mut *not_served } += 1;
                    }
                    false
                }
            });
        }
        match &mut self.neighbours {
            // Without packets nobody sends, and questions still have to be repeated. Else it is done when sending.
            Neighbours::Own(_) if batch.is_empty() => self.refresh(),
            Neighbours::Own(resolver) => resolver.flush(&self.link, &mut self.frames),
            Neighbours::Kernel(..) => {}
        }
        Ok(batch.len())
    }

    /// Sends the packets for which `prepare` makes a frame with `header_len` octets of headers, and the others the
    /// slow way. After [`Core::refresh`].
    fn transmit(
        &mut self,
        batch: &mut Vector,
        selected: &[u16],
        header_len: usize,
        mut prepare: impl FnMut(&Link, usize, &mut Neighbours, &mut FrameMut<'_>) -> Prepared,
    ) -> Sent {
        let mut sent = Sent::default();
        self.fast.clear();
        self.slow.clear();
        for &position in selected {
            let Some(mut frame) = batch.sendable_mut(position) else {
                sent.errors += 1;
                continue;
            };
            match prepare(&self.link, self.mtu, &mut self.neighbours, &mut frame) {
                Prepared::Frame => self.fast.push(position),
                Prepared::TooBig => sent.too_big += 1,
                Prepared::Error => sent.errors += 1,
                Prepared::NoNextHop if matches!(self.neighbours, Neighbours::Kernel(..)) => {
                    self.slow.push(position);
                }
                Prepared::NoNextHop => sent.unresolved += 1,
                Prepared::Held => {
                    sent.packets += 1;
                    sent.bytes += frame.len() - header_len.min(frame.len());
                }
            }
        }
        if !self.fast.is_empty() {
            let mut fast = self.frames.transmit(batch, &self.fast);
            // Counted is what the pipeline gave, whatever the backend.
            fast.bytes -= fast.packets * header_len;
            add(&mut sent, &fast);
        }
        match &mut self.neighbours {
            Neighbours::Kernel(_, slow) if !self.slow.is_empty() => {
                add(&mut sent, &slow.transmit(batch, &self.slow));
            }
            Neighbours::Own(resolver) => resolver.flush(&self.link, &mut self.frames),
            Neighbours::Kernel(..) => {}
        }
        sent
    }

    fn unsent(&self) -> bool {
        self.frames.unsent() || matches!(&self.neighbours, Neighbours::Own(resolver) if resolver.waits())
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        if self.unknown_vlan > 0 {
            count(DropReason::UnknownVlan, std::mem::take(&mut self.unknown_vlan));
        }
        if self.not_served > 0 {
            count(DropReason::N3NotServed, std::mem::take(&mut self.not_served));
        }
        if let Neighbours::Own(resolver) = &mut self.neighbours
            && resolver.lost > 0
        {
            count(DropReason::NeighbourUnresolved, std::mem::take(&mut resolver.lost));
        }
        self.frames.losses(count);
    }
}

impl Neighbours {
    /// The version of what headers are made from.
    #[inline]
    fn version(&self) -> Version {
        match self {
            Neighbours::Kernel(reader, _) => reader.version(),
            Neighbours::Own(resolver) => resolver.version(),
        }
    }

    /// A number that tells an endpoint from others with the same neighbours: added to a version, it says whose headers
    /// they are.
    fn number_of(&self, endpoint: (SocketAddr, Tags)) -> Option<u16> {
        match self {
            Neighbours::Kernel(reader, _) => reader.number_of(endpoint),
            // Nobody else has this one but workers of the same interface.
            Neighbours::Own(_) => Some(0),
        }
    }

    #[inline(always)]
    fn next_hop(&mut self, to: Number, near: &mut Near) -> NextHop {
        match self {
            Neighbours::Kernel(reader, _) => reader.next_hop(to, near),
            Neighbours::Own(resolver) => resolver.next_hop(to, near),
        }
    }

    /// Keeps a frame whose Ethernet destination is not known yet; `false` when there is no room for it.
    fn hold(&mut self, to: IpAddr, frame: &[u8]) -> bool {
        match self {
            Neighbours::Own(resolver) => resolver.hold(to, frame),
            Neighbours::Kernel(..) => false,
        }
    }

    /// Whether packets wait for a next hop. Others must not pass them.
    #[inline]
    fn waits(&self) -> bool {
        matches!(self, Neighbours::Own(resolver) if resolver.waits())
    }

    /// Whether packets to an address are for the stack itself: our own, or a group's.
    #[inline(always)]
    fn answers_for(&self, address: Number, near: &mut Near) -> bool {
        matches!(self, Neighbours::Own(resolver) if resolver.answers_for(address, near))
    }

    /// Whether frames to unknown next hops can wait here.
    fn holds(&self) -> bool {
        matches!(self, Neighbours::Own(_))
    }
}

fn add(sum: &mut Sent, more: &Sent) {
    sum.packets += more.packets;
    sum.bytes += more.bytes;
    sum.copied += more.copied;
    sum.full += more.full;
    sum.too_big += more.too_big;
    sum.unresolved += more.unresolved;
    sum.errors += more.errors;
}

/// The EtherType of an address's family.
fn ethertype(address: IpAddr) -> u16 {
    if address.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 }
}
