//! A UDP socket, in practice GTP-U, with one system call per batch and direction.
//!
//! Packets of one length to one peer that follow each other go to the kernel as one message, which it cuts
//! (`UDP_SEGMENT`): routing and the way down to the device are then paid once for all of them. What arrives is the
//! same, and where the kernel or the device cannot do it, packets go one by one.
//!
//! In the other direction the kernel gives such packets as one message with their length (`UDP_GRO`), from which this
//! port fills one buffer per packet. Packets that do not fit into the batch wait in the port for the next call, and so do
//! packets that are too long for its frames, if longer ones can be had.

mod headers;

use std::io;
use std::mem;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::socket::{setsockopt, sockopt};

use crate::bpf::BpfError;
use crate::name::Name;
use crate::peers::View;
use crate::{Frame, FrameMut, Port, Sent, Vector, owner};
use headers::{Headers, Message};

/// Most packets per system call; larger batches take several.
const CALL: usize = 64;
/// Socket buffers: a few milliseconds at 10 Gbit/s, so that a worker may be descheduled without loss.
const SOCKET_BUFFER: usize = 8 << 20;

/// Why sockets of one address could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A socket could not be bound.
    #[error(transparent)]
    Bind(#[from] io::Error),
    /// The kernel does not take the program that chooses the socket.
    #[error("cannot choose sockets by tunnel: {0}")]
    Choose(#[from] BpfError),
}

/// A bound UDP socket. Clones share the socket, so that one worker may receive and another send.
#[derive(Debug)]
pub struct UdpPort {
    socket: Arc<UdpSocket>,
    local: SocketAddr,
    headers: Headers,
    /// Whether the kernel cuts messages for this socket.
    segmentation: bool,
    /// Whether all packets of a message have the same TEID.
    one_tunnel: bool,
    waiting: Waiting,
    peers: View,
    /// Messages to ask for, so that they have about as many packets as a call can take.
    ask: usize,
}

/// Most packets and octets in a message that the kernel cuts.
const SEGMENTS: usize = 64;
const SEGMENTED: usize = 60_000;

/// Most octets of a received message: what the length of an IP packet can say.
const MESSAGE: usize = 65_536;

/// Messages whose packets are given out one by one.
///
/// A message is received into the buffer of the batch where its packet belongs if it is one, and what does not fit there
/// into `memory`, at the place of the message behind as many octets. Single packets are so never copied, and do not touch
/// this memory.
#[derive(Debug, Default)]
struct Waiting {
    /// A place of [`MESSAGE`] octets for each message of a call. Allocated with the first call.
    memory: Vec<u8>,
    messages: Vec<Message>,
    /// The message whose packets are next, and where the next one begins in it.
    next: usize,
    offset: usize,
    /// The place in `memory` of the first message.
    first: usize,
}

impl Waiting {
    /// The place of message `number` behind its first `skip` octets.
    fn place(&mut self, number: usize, skip: usize) -> &mut [u8] {
        &mut self.memory[number * MESSAGE + skip..(number + 1) * MESSAGE]
    }

    /// The message whose packets are next.
    fn message(&self) -> Option<&Message> {
        self.messages.get(self.next)
    }

    /// Fills the drawn frames `from..end` of `vector` with packets, up to one that waits for longer frames; returns how many
    /// were filled.
    fn take(&mut self, vector: &mut Vector, from: usize, end: usize) -> usize {
        let (mut taken, has_longer) = (0, vector.has_longer());
        while let Some(message) = self.message().filter(|_| from + taken < end) {
            let Some(mut frame) = vector.drawn(from + taken) else { break };
            if has_longer && message.longest() > frame.space().len() {
                break;
            }
            let place = (self.first + self.next) * MESSAGE;
            let to = message.length.min(self.offset + message.segment);
            fill(frame, message.peer, &self.memory[place + self.offset..place + to]);
            taken += 1;
            (self.next, self.offset) =
                if to == message.length { (self.next + 1, 0) } else { (self.next, to) };
        }
        taken
    }
}

/// Gives a frame a packet. One that is longer than the frame becomes an empty packet, which fails parsing and is counted
/// there.
fn fill(mut frame: FrameMut<'_>, peer: SocketAddr, packet: &[u8]) {
    let room = frame.space();
    let length = if packet.len() > room.len() { 0 } else { packet.len() };
    room[..length].copy_from_slice(&packet[..length]);
    frame.filled(length);
    *frame.peer = peer;
}

/// The packets that the message under way has so far.
struct Run {
    /// The number of the destination; if it is 0, its address counts.
    to: u16,
    peer: SocketAddr,
    tos: u8,
    segment: usize,
    packets: usize,
    octets: usize,
    /// A shorter packet ends the message.
    ended: bool,
}

impl Run {
    fn new(frame: &Frame, peer: SocketAddr) -> Run {
        let (length, tos, to) = (frame.len(), frame.tos(), frame.to());
        Run { to, peer, tos, segment: length, packets: 1, octets: length, ended: length == 0 }
    }

    /// Takes the packet into the message if it fits there.
    #[inline]
    fn takes(&mut self, frame: &Frame, peer: &SocketAddr) -> bool {
        let length = frame.len();
        let fits = !self.ended
            && length <= self.segment
            && length > 0
            && self.packets < SEGMENTS
            && self.octets + length <= SEGMENTED
            && self.tos == frame.tos()
            && self.to == frame.to()
            && (self.to != 0 || self.peer == *peer);
        if fits {
            self.packets += 1;
            self.octets += length;
            self.ended = length < self.segment;
        }
        fits
    }
}

impl UdpPort {
    /// Binds a socket in the calling thread's network namespace. `shared` lets several ports bind the same
    /// address, between which the kernel spreads flows.
    pub fn bind(address: SocketAddr, shared: bool) -> io::Result<UdpPort> {
        let port = UdpPort::bind_plain(address, shared)?;
        // Before Linux 5.0 every message is one packet.
        let _ = setsockopt(&port.socket, sockopt::UdpGroSegment, &true);
        Ok(port)
    }

    /// Binds a socket for each of `workers` to one address of GTP-U, in the calling thread's network namespace. The kernel
    /// gives each message to the socket of its [owner](owner::of_message).
    ///
    /// These sockets do without `UDP_GRO`: the kernel would join packets of one gNB before it looks at the first of
    /// them to choose the socket. A message that a sender on this machine gave to the kernel in one piece (`UDP_SEGMENT`)
    /// still goes to one socket, whatever tunnels its packets have: see [`UdpPort::keep_tunnels_apart`].
    ///
    /// # Errors
    /// The address is in use, also by another group, or the kernel takes no program.
    pub fn bind_group(address: SocketAddr, workers: u32) -> Result<Vec<UdpPort>, GroupError> {
        if workers <= 1 {
            return Ok(vec![UdpPort::bind(address, false)?]);
        }
        // The first alone, so that a second program with this address gets an error.
        let first = UdpPort::bind_plain(address, false)?;
        setsockopt(&first.socket, sockopt::ReusePort, &true).map_err(io::Error::from)?;
        let local = first.local;
        let mut ports = vec![first];
        for _ in 1..workers {
            ports.push(UdpPort::bind_plain(local, true)?);
        }
        let program = owner::message_program(workers)?;
        let fd: libc::c_int = program.as_fd().as_raw_fd();
        // SAFETY: the option takes an int, to which we pass a pointer with its size; the group keeps the program.
        let status = unsafe {
            libc::setsockopt(
                ports[0].socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_REUSEPORT_EBPF,
                (&raw const fd).cast(),
                size_of_val(&fd) as libc::socklen_t,
            )
        };
        if status < 0 { Err(io::Error::last_os_error().into()) } else { Ok(ports) }
    }

    /// Without [`UDP_GRO`](UdpPort::bind): no datagram waits in the port.
    pub(crate) fn bind_plain(address: SocketAddr, shared: bool) -> io::Result<UdpPort> {
        let options = net::udp::Options { reuse_port: shared, ..net::udp::Options::default() };
        let socket = net::udp::bind_std(address, options)?;
        // Beyond the system's limit with CAP_NET_ADMIN, else up to it.
        if setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BUFFER)?;
        }
        if setsockopt(&socket, sockopt::SndBufForce, &SOCKET_BUFFER).is_err() {
            setsockopt(&socket, sockopt::SndBuf, &SOCKET_BUFFER)?;
        }
        let local = socket.local_addr()?;
        Ok(UdpPort::new(Arc::new(socket), local, true))
    }

    fn new(socket: Arc<UdpSocket>, local: SocketAddr, segmentation: bool) -> UdpPort {
        UdpPort {
            socket,
            local,
            headers: Headers::new(),
            segmentation,
            one_tunnel: false,
            waiting: Waiting::default(),
            peers: View::default(),
            ask: CALL,
        }
    }

    /// Gives the kernel only packets of one tunnel in one piece, for a receiver on this machine that has several
    /// sockets ([`UdpPort::bind_group`]): between machines the pieces are cut, on one machine they arrive whole.
    pub fn keep_tunnels_apart(&mut self) {
        self.one_tunnel = true;
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &Arc<UdpSocket> {
        &self.socket
    }

    /// The address the socket is bound to.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Another port on the same socket.
    pub fn share(&self) -> UdpPort {
        let port = UdpPort::new(Arc::clone(&self.socket), self.local, self.segmentation);
        UdpPort { one_tunnel: self.one_tunnel, ..port }
    }

    /// Fills the batch with packets that wait, and then with new ones.
    fn fill_batch(&mut self, batch: &mut Vector) -> io::Result<usize> {
        let longest = self.waiting.message().map_or(0, Message::longest);
        let count = batch.draw(CALL, longest);
        let mut filled = self.waiting.take(batch, 0, count);
        if self.waiting.message().is_none() {
            match self.receive_into(batch, filled, count) {
                Ok(received) => filled += received,
                Err(error) if filled == 0 => return Err(error),
                Err(_) => {}
            }
        }
        batch.set_len(filled);
        Ok(filled)
    }

    /// Receives messages and fills the drawn frames `from..end` with their packets, of which the last ones may wait; returns how many
    /// were filled. No packets are waiting.
    fn receive_into(&mut self, vector: &mut Vector, from: usize, end: usize) -> io::Result<usize> {
        if from == end {
            return Ok(0);
        }
        if self.waiting.memory.is_empty() {
            self.waiting.memory = vec![0; CALL * MESSAGE];
        }
        let ask = self.ask.min(end - from);
        for i in 0..ask {
            let Some(mut frame) = vector.drawn(from + i) else { break };
            let space = frame.space();
            let room = space.len().min(MESSAGE);
            self.headers.set(i, &mut space[..room], self.waiting.place(i, room));
        }
        // SAFETY: the first `ask` entries point at two vectors, one name and two control messages each; the vectors point
        // at the writable space of distinct frames and at distinct places of `waiting`, which we hold exclusively.
        let received = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                self.headers.messages.as_mut_ptr(),
                ask as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        if received < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                _ => Err(error),
            };
        }
        Ok(self.fill(vector, from..end, received as usize))
    }

    /// Fills the drawn frames `range` with the packets of the first `count` messages; returns how many were filled.
    fn fill(&mut self, vector: &mut Vector, range: Range<usize>, count: usize) -> usize {
        let (mut filled, mut packets, has_longer) = (0, 0, vector.has_longer());
        self.waiting.messages.clear();
        (self.waiting.next, self.waiting.offset) = (0, 0);
        for i in 0..count {
            let Some(mut frame) = vector.drawn(range.start + i) else { break };
            let message = self.headers.received(i);
            packets += message.packets();
            let space = frame.space();
            let room = space.len().min(MESSAGE);
            let is_in_place = message.packets() == 1 && (message.length <= room || !has_longer);
            if is_in_place && self.waiting.messages.is_empty() {
                // It is where it belongs, if it is not too long.
                frame.filled(if message.length > room { 0 } else { message.length });
                *frame.peer = message.peer;
                filled += 1;
                continue;
            }
            // From the first message on that does not fit its frame, all give their places to packets before them.
            let direct = message.length.min(room);
            self.waiting.place(i, 0)[..direct].copy_from_slice(&space[..direct]);
            self.waiting.messages.push(message);
        }
        self.waiting.first = filled;
        if count > 0 {
            self.ask = (CALL * count / packets).clamp(1, CALL);
        }
        filled + self.waiting.take(vector, range.start + filled, range.end)
    }

    /// Sends the `count` prepared messages; returns how many the kernel took before the first refusal.
    fn send_prepared(&mut self, from: usize, count: usize) -> io::Result<usize> {
        // SAFETY: entries `from..from + count` were set by `Headers`: each points at one name, its control messages
        // and vectors with the octets of buffers that `transmit` borrows for the duration of the call.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                self.headers.messages[from..from + count].as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// Sends all prepared messages, skipping those that the kernel refuses.
    fn flush(&mut self, count: usize, sent: &mut Sent) {
        let (mut done, mut vector) = (0, 0);
        while done < count {
            match self.send_prepared(done, count - done) {
                Ok(taken) => {
                    for message in done..done + taken {
                        let packets = self.headers.packets(message);
                        let vectors = &self.headers.vectors[vector..vector + packets];
                        sent.bytes += vectors.iter().map(|vector| vector.iov_len).sum::<usize>();
                        sent.packets += packets;
                        vector += packets;
                    }
                    done += taken.max(1);
                }
                Err(error) => {
                    let packets = self.headers.packets(done);
                    match error.raw_os_error() {
                        Some(libc::EINTR) => continue,
                        Some(libc::EAGAIN) => {
                            // The socket's buffer is full and stays so for the rest of the batch.
                            sent.full += (done..count).map(|i| self.headers.packets(i)).sum::<usize>();
                            return;
                        }
                        // Not this message in one piece: too long for the path, or not with this device.
                        code if packets > 1 => {
                            self.segmentation &= !matches!(code, Some(libc::EIO | libc::EOPNOTSUPP));
                            self.send_singly(done, vector, packets, sent);
                        }
                        code => refused(code, sent),
                    }
                    done += 1;
                    vector += packets;
                }
            }
        }
    }

    /// Sends the `packets` packets of a message from vector `first` on one by one.
    fn send_singly(&mut self, message: usize, first: usize, packets: usize, sent: &mut Sent) {
        self.headers.reduce(message);
        for vector in first..first + packets {
            self.headers.messages[message].msg_hdr.msg_iov = &raw mut self.headers.vectors[vector];
            match self.send_prepared(message, 1) {
                Ok(_) => {
                    sent.packets += 1;
                    sent.bytes += self.headers.vectors[vector].iov_len;
                }
                Err(error) => refused(error.raw_os_error(), sent),
            }
        }
    }
}

/// The TEID of a GTP-U message (TS 29.281 §5.1).
fn tunnel(packet: &[u8]) -> Option<&[u8]> {
    packet.get(4..8)
}

/// Counts a packet that the kernel refused.
fn refused(code: Option<i32>, sent: &mut Sent) {
    match code {
        Some(libc::EAGAIN | libc::ENOBUFS) => sent.full += 1,
        Some(libc::EMSGSIZE) => sent.too_big += 1,
        _ => sent.errors += 1,
    }
}

impl Port for UdpPort {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        match self.fill_batch(batch)? {
            // The first packet waits for longer frames.
            0 if self.waiting.message().is_some() => self.fill_batch(batch),
            filled => Ok(filled),
        }
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let mut sent = Sent::default();
        let mut view = mem::take(&mut self.peers);
        let peers = view.enter(batch);
        for group in selected.chunks(CALL) {
            let (mut messages, mut vectors) = (0, 0);
            let (mut run, mut last): (Option<Run>, &[u8]) = (None, &[]);
            for &position in group {
                let Some(buffer) = batch.sendable(position) else {
                    sent.errors += 1;
                    continue;
                };
                let (packet, peer) = (buffer.packet(), &batch.peers()[usize::from(position)]);
                // The kernel only reads through the vectors of sendmmsg; the type is shared with recvmmsg.
                self.headers.vectors[vectors] =
                    libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
                if let Some(run) = &mut run
                    && self.segmentation
                    && (!self.one_tunnel || tunnel(packet) == tunnel(last))
                    && run.takes(buffer, peer)
                {
                    self.headers.extend(messages - 1, run.segment);
                } else {
                    let name = match buffer.to() {
                        0 => Some(Name::from(*peer)),
                        number => peers.get(number).map(|entry| entry.name),
                    };
                    let Some(name) = name else {
                        sent.errors += 1;
                        continue;
                    };
                    self.headers.names[messages] = name;
                    self.headers.start(messages, vectors, name.len());
                    if buffer.tos() != 0 {
                        self.headers.set_tos(messages, buffer.tos(), name.is_ipv6());
                    }
                    messages += 1;
                    run = Some(Run::new(buffer, *peer));
                }
                (vectors, last) = (vectors + 1, packet);
            }
            self.flush(messages, &mut sent);
        }
        drop(peers);
        self.peers = view;
        sent
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pool, Slab};

    fn exchange(address: &str) {
        let mut a = UdpPort::bind(address.parse().unwrap(), false).unwrap();
        let mut b = UdpPort::bind(address.parse().unwrap(), false).unwrap();
        let mut out = Vector::new(50, 2048);
        let selected: Vec<u16> = (0..50).collect();
        for numbers in [0..50u8, 50..100] {
            out.clear();
            for n in numbers.clone() {
                assert!(out.push(&vec![n; usize::from(n) + 1], b.local()));
            }
            let bytes = numbers.map(|n| usize::from(n) + 1).sum();
            assert_eq!(a.transmit(&mut out, &selected), Sent { packets: 50, bytes, ..Sent::default() });
        }
        let mut poller = crate::poll::Poller::new().unwrap();
        poller.add(b.fd().unwrap(), 1).unwrap();
        let mut batch = Vector::new(64, 2048);
        let mut next = 0u8;
        while next < 100 {
            poller.wait(Some(1000), |_| ()).unwrap();
            let received = b.receive(&mut batch).unwrap();
            assert!(received > 0, "lost after {next}");
            for (frame, peer) in batch.frames().iter().zip(batch.peers()) {
                assert_eq!(frame.packet(), vec![next; usize::from(next) + 1]);
                assert_eq!(*peer, a.local());
                next += 1;
            }
        }
        assert_eq!(b.receive(&mut batch).unwrap(), 0);
    }

    /// Whatever the order of short and long datagrams, of those that the kernel has joined and of single ones: all come, in
    /// order, the short ones in frames of the home as long as none waits in front of them.
    #[test]
    fn datagrams_that_are_too_long_for_the_home_get_longer_frames() {
        let mut a = UdpPort::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let mut b = UdpPort::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let (long, short) = (Slab::new(256, 9000), Slab::new(128, 1000));
        let home: Arc<dyn Pool> = Arc::clone(&short) as Arc<dyn Pool>;
        let mut out = Vector::new(64, 9500);
        let mut batch = Vector::of(&(Arc::clone(&long) as Arc<dyn Pool>));
        batch.settle(&home);
        let mut noise = 0x2545_F491_4F6C_DD1D_u64;
        for round in 0..300u32 {
            // Runs of equal length become one message.
            let mut lengths = Vec::new();
            while lengths.len() < 40 {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                let length = match noise % 8 {
                    0 => 1001 + noise / 8 % 7999,
                    1 => [999, 1000, 1001, 8999, 9000][(noise / 8 % 5) as usize],
                    2 if round % 7 == 0 => 9001,
                    _ => noise / 8 % 1000,
                };
                let repeat = 1 + noise / 65_536 % if length > 1000 { 3 } else { 9 };
                lengths.extend((0..repeat).map(|_| length as usize));
            }
            out.clear();
            for (n, length) in lengths.iter().enumerate().take(64) {
                assert!(out.push(&vec![n as u8; *length], b.local()));
            }
            let count = out.len();
            let all: Vec<u16> = (0..count as u16).collect();
            assert_eq!(a.transmit(&mut out, &all).packets, count);
            let (mut next, mut of_home) = (0, 0);
            while next < count {
                let received = b.receive(&mut batch).unwrap();
                assert!(received > 0, "round {round}: lost after {next} of {lengths:?}");
                let is_home = batch.gives_to(&home);
                for frame in batch.frames() {
                    let wanted = if lengths[next] > 9000 { 0 } else { lengths[next] };
                    assert_eq!(frame.packet(), vec![next as u8; wanted], "round {round}, packet {next}");
                    (next, of_home) = (next + 1, of_home + usize::from(is_home));
                }
            }
            assert_eq!(b.receive(&mut batch).unwrap(), 0);
            let shorter = lengths[..count].iter().take_while(|length| **length <= 1000).count();
            assert!(of_home >= shorter, "round {round}: {of_home} of {lengths:?}");
        }
        drop(batch);
        assert_eq!((long.free_chunks(), short.free_chunks()), (256, 128));
    }

    #[test]
    fn batches_pass_ipv4() {
        exchange("127.0.0.1:0");
    }

    /// Transport level marking: the outer traffic class is each packet's own.
    #[test]
    fn packets_carry_their_traffic_class() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let mut a = UdpPort::bind(address.parse().unwrap(), false).unwrap();
            let b = UdpSocket::bind(address).unwrap();
            let (level, option) = match a.local().is_ipv6() {
                true => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
                false => (libc::IPPROTO_IP, libc::IP_RECVTOS),
            };
            let on: libc::c_int = 1;
            // SAFETY: the option takes an int, to which we pass a pointer with its size.
            let status = unsafe {
                libc::setsockopt(
                    b.as_raw_fd(),
                    level,
                    option,
                    (&raw const on).cast(),
                    size_of_val(&on) as u32,
                )
            };
            assert_eq!(status, 0);
            let mut out = Vector::new(3, 64);
            for tos in [0, 0xB8, 0x28] {
                assert!(out.push(&[tos], b.local_addr().unwrap()));
                out.last_mut().unwrap().set_tos(tos);
            }
            assert_eq!(a.transmit(&mut out, &[0, 1, 2]).packets, 3);
            for tos in [0, 0xB8, 0x28] {
                let (mut payload, mut space) = ([0u8], nix::cmsg_space!(libc::c_int));
                let mut vectors = [io::IoSliceMut::new(&mut payload)];
                let flags = nix::sys::socket::MsgFlags::empty();
                let message =
                    nix::sys::socket::recvmsg::<()>(b.as_raw_fd(), &mut vectors, Some(&mut space), flags)
                        .unwrap();
                let received = match message.cmsgs().unwrap().next() {
                    Some(nix::sys::socket::ControlMessageOwned::Ipv4Tos(received)) => received,
                    Some(nix::sys::socket::ControlMessageOwned::Ipv6TClass(received)) => received as u8,
                    other => panic!("{other:?}"),
                };
                assert_eq!((received, payload[0]), (tos, tos));
            }
        }
    }

    #[test]
    fn batches_pass_ipv6() {
        exchange("[::1]:0");
    }

    /// Runs of packets travel in one message; lengths, order, peers and traffic classes stay each packet's own.
    #[test]
    fn packets_in_one_message_arrive_as_they_were() {
        let mut a = UdpPort::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let mut ports: Vec<UdpPort> =
            (0..2).map(|_| UdpPort::bind("127.0.0.1:0".parse().unwrap(), false).unwrap()).collect();
        // Equal ones, a shorter one that ends the run, another peer, empty ones, a longer one.
        let plan: Vec<(usize, usize)> = [(0, 100); 50]
            .into_iter()
            .chain([(0, 99), (0, 100), (1, 100), (1, 100), (0, 0), (0, 0), (0, 1), (0, 1400), (0, 1400)])
            .collect();
        for segmentation in [true, false] {
            a.segmentation = segmentation;
            let mut out = Vector::new(plan.len(), 2048);
            for (n, (to, length)) in plan.iter().enumerate() {
                assert!(out.push(&vec![n as u8; *length], ports[*to].local()));
                out.frame_mut(n).set_tos(if n == 30 { 0x28 } else { 0 });
            }
            let all: Vec<u16> = (0..plan.len() as u16).collect();
            let bytes = plan.iter().map(|(_, length)| length).sum();
            assert_eq!(a.transmit(&mut out, &all), Sent { packets: plan.len(), bytes, ..Sent::default() });
            assert_eq!(a.segmentation, segmentation, "the loopback interface does it");
            for (number, port) in ports.iter_mut().enumerate() {
                let expected = plan.iter().enumerate().filter(|(_, (to, _))| *to == number);
                let mut expected = expected.map(|(n, (_, length))| vec![n as u8; *length]);
                let mut batch = Vector::new(64, 2048);
                while port.receive(&mut batch).unwrap() > 0 {
                    for buffer in batch.frames() {
                        assert_eq!(Some(buffer.packet()), expected.next().as_deref());
                    }
                }
                assert_eq!(expected.next(), None);
            }
        }
    }

    /// Packets to peers by number, mixed with packets to addresses, arrive at the peers that the numbers stand for then.
    #[test]
    fn packets_to_numbers_arrive_at_their_peers() {
        let bind = || UdpPort::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let (mut a, mut ports) = (bind(), [bind(), bind(), bind()]);
        let peers = Arc::new(crate::Peers::default());
        let mut out = Vector::new(64, 64);
        out.set_peers(&peers);
        for round in 0..3usize {
            for number in 1..3usize {
                assert!(peers.set(number as u16, ports[(number + round) % 3].local()));
            }
            out.clear();
            let mut expected: [Vec<Vec<u8>>; 3] = Default::default();
            for n in 0..60u8 {
                let number = usize::from(n / 4 % 4);
                assert!(out.push(&[n], ports[2].local()));
                out.last_mut().unwrap().send_to(number as u16);
                match number {
                    0 => expected[2].push(vec![n]),
                    1 | 2 => expected[(number + round) % 3].push(vec![n]),
                    _ => {}
                }
            }
            let all: Vec<u16> = (0..60).collect();
            let sent = a.transmit(&mut out, &all);
            let count = expected.iter().map(Vec::len).sum();
            assert_eq!(sent, Sent { packets: count, bytes: count, errors: 60 - count, ..Sent::default() });
            for (port, expected) in ports.iter_mut().zip(expected) {
                let (mut batch, mut received) = (Vector::new(64, 64), Vec::new());
                while port.receive(&mut batch).unwrap() > 0 {
                    received.extend(batch.frames().iter().map(|frame| frame.packet().to_vec()));
                }
                assert_eq!(received, expected);
            }
        }
    }

    /// However small the batches are, and wherever the messages of several packets stand between others: every packet comes
    /// once, in order, with its sender.
    #[test]
    fn messages_of_several_packets_come_one_by_one() {
        let bind = || UdpPort::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        for capacity in [1, 2, 5, 41, 64, 100] {
            let (mut senders, mut b) = ([bind(), bind()], bind());
            let mut out = Vector::new(64, 9216);
            let mut expected = Vec::new();
            for round in 0..40usize {
                out.clear();
                let (count, length) =
                    ([1, 64, 2, 1, 63, 7][round % 6], [0, 1400, 3000, 200, 9216][round % 5]);
                for n in 0..count {
                    let last = if n + 1 == count { length / 2 } else { length };
                    let packet: Vec<u8> = (0..last).map(|at| (at * 3 + n + round) as u8).collect();
                    assert!(out.push(&packet, b.local()));
                    expected.push((packet, senders[round % 2].local()));
                }
                let all: Vec<u16> = (0..count as u16).collect();
                assert_eq!(senders[round % 2].transmit(&mut out, &all).packets, count);
            }
            let (mut batch, mut expected) = (Vector::new(capacity, 9216), expected.into_iter());
            loop {
                let received = b.receive(&mut batch).unwrap();
                if received == 0 {
                    break;
                }
                assert!(received <= capacity);
                for (frame, peer) in batch.frames().iter().zip(batch.peers()) {
                    assert_eq!(Some((frame.packet().to_vec(), *peer)), expected.next());
                }
            }
            assert_eq!(expected.next(), None, "batches of {capacity}");
        }
    }

    /// Packets of a message that are longer than the buffers are empty, as single ones are.
    #[test]
    fn packets_of_a_message_that_do_not_fit_are_empty() {
        let bind = || UdpPort::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let (mut a, mut b) = (bind(), bind());
        let mut out = Vector::new(3, 2048);
        for length in [2000, 2000, 100] {
            assert!(out.push(&vec![7; length], b.local()));
        }
        assert_eq!(a.transmit(&mut out, &[0, 1, 2]).packets, 3);
        let mut batch = Vector::new(8, 1000);
        assert_eq!(b.receive(&mut batch).unwrap(), 3);
        let lengths: Vec<usize> = batch.frames().iter().map(Frame::len).collect();
        assert_eq!(lengths, [0, 0, 100]);
    }

    /// A G-PDU with its number behind the header.
    fn g_pdu(teid: u32, number: u32) -> Vec<u8> {
        [&[0x30, 255, 0, 4][..], &teid.to_be_bytes(), &number.to_be_bytes()].concat()
    }

    /// Several peers with many tunnels each: every packet reaches the socket of its owner, in the tunnel's order.
    #[test]
    fn each_tunnel_has_its_socket() {
        const TUNNELS: u32 = 20;
        for (address, workers) in [("127.0.0.1:0", 1), ("127.0.0.1:0", 3), ("[::1]:0", 3)] {
            let mut group = UdpPort::bind_group(address.parse().unwrap(), workers).unwrap();
            let local = group[0].local();
            let bind = || UdpPort::bind(SocketAddr::new(local.ip(), 0), false).unwrap();
            let mut peers = [bind(), bind(), bind()];
            peers.iter_mut().for_each(UdpPort::keep_tunnels_apart);
            let mut next = vec![[0; 3]; TUNNELS as usize];
            for round in 0..30u32 {
                for (number, peer) in peers.iter_mut().enumerate() {
                    let mut out = Vector::new(64, 64);
                    for n in 0..60 {
                        let teid = if round % 2 == 0 { n / 3 } else { n % TUNNELS };
                        let sequence = round * 3 + if round % 2 == 0 { n % 3 } else { n / TUNNELS };
                        assert!(out.push(&g_pdu(teid, sequence), local));
                    }
                    assert!(out.push(&[0x32, 1, 0, 4, 0, 0, 0, 0, 0, 1, 0, 0], local), "an Echo Request");
                    let all: Vec<u16> = (0..61).collect();
                    assert_eq!(peer.transmit(&mut out, &all).packets, 61, "peer {number}");
                }
                let mut echoes = 0;
                for (worker, port) in group.iter_mut().enumerate() {
                    let mut batch = Vector::new(64, 64);
                    while port.receive(&mut batch).unwrap() > 0 {
                        for (frame, from) in batch.frames().iter().zip(batch.peers()) {
                            let packet = frame.packet();
                            assert_eq!(owner::of_message(packet, workers), worker as u32);
                            if packet[1] == 1 {
                                echoes += 1;
                                continue;
                            }
                            let peer = peers.iter().position(|peer| peer.local() == *from).unwrap();
                            let next = &mut next[usize::from(packet[7])][peer];
                            assert_eq!(packet[8..], u32::to_be_bytes(*next), "in order");
                            *next += 1;
                        }
                    }
                }
                assert_eq!(echoes, 3);
            }
            assert!(next.iter().flatten().all(|count| *count == 90), "all have arrived: {next:?}");
        }
    }

    /// The kernel chooses a socket before it cuts, so a message of several tunnels goes to the owner of the first.
    #[test]
    fn a_message_in_one_piece_goes_to_one_socket() {
        let mut group = UdpPort::bind_group("127.0.0.1:0".parse().unwrap(), 2).unwrap();
        let local = group[0].local();
        let of = |worker| (1..).find(|teid| owner::of_tunnel(*teid, 2) == worker).unwrap();
        for apart in [false, true] {
            let mut sender = UdpPort::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
            if apart {
                sender.keep_tunnels_apart();
            }
            let mut out = Vector::new(64, 64);
            for n in 0..10 {
                assert!(out.push(&g_pdu(of(1 - n % 2), n), local));
            }
            assert_eq!(sender.transmit(&mut out, &(0..10).collect::<Vec<u16>>()).packets, 10);
            let mut batch = Vector::new(64, 64);
            let counts = [0, 1].map(|worker: usize| group[worker].receive(&mut batch).unwrap());
            assert_eq!(counts, if apart { [5, 5] } else { [0, 10] });
        }
    }

    #[test]
    fn a_second_program_cannot_join_a_group() {
        let group = UdpPort::bind_group("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        for workers in [1, 2] {
            let error = UdpPort::bind_group(group[0].local(), workers).unwrap_err();
            assert!(
                matches!(&error, GroupError::Bind(error) if error.kind() == io::ErrorKind::AddrInUse),
                "{error}"
            );
        }
    }

    #[test]
    fn refused_packets_do_not_hold_up_the_others() {
        let mut a = UdpPort::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let mut b = UdpPort::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let mut out = Vector::new(3, 2048);
        assert!(out.push(b"first", b.local()));
        // An IPv6 destination on an IPv4 socket.
        assert!(out.push(b"elsewhere", "[::1]:9".parse().unwrap()));
        assert!(out.push(b"last", b.local()));
        let sent = a.transmit(&mut out, &[0, 1, 2]);
        assert_eq!((sent.packets, sent.errors), (2, 1));
        let mut batch = Vector::new(4, 100);
        assert_eq!(b.receive(&mut batch).unwrap(), 2);
        assert_eq!(batch.frames()[1].packet(), b"last");
        // A datagram that exceeds the frame arrives as an empty packet, not as a shorter one.
        assert!(out.frame_mut(0).set(&[1; 200]));
        a.transmit(&mut out, &[0]);
        assert_eq!(b.receive(&mut batch).unwrap(), 1);
        assert!(batch.frames()[0].is_empty());
    }
}
