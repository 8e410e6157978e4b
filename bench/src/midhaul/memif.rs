//! The CU between two memifs, on a core of its own, beside a bare forwarder that swaps Ethernet addresses between the same memifs.
//! This thread is DU and UPF: it sends at one end as fast as it can and counts at the other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context as _, bail};
use net::link::Cidr;
use net::time::{self, Duration};
use packet::ethernet::{self, Mac};
use packet::{gtpu, ipv4, protocol, transport};
use path::{Plan, Ports, Worker};
use pktio::memif::MemifPort;
use pktio::stack::Neighbours;
use pktio::stack::resolver::Resolver;
use pktio::stack::udp::UdpStack;
use pktio::{FramePort, Port, VECTOR, Vector};

use super::Run;
use crate::machine;
use crate::ran::MPPS_BY_SIZE;
use crate::ran::network::{ALWAYS, MTU, PATIENCE, come_up, memif};
use crate::ran::nodes::{CU, CU_N3, DU, END, F1U, Nodes, UPF_N3 as UPF, unlimited};
use crate::ran::packets::{Ue, from_upf, user};

/// Before what is measured.
const WARM: Duration = Duration::from_millis(10);
const ETHERNET: usize = 14;
/// Octets that a packet to the CU has more than the user's: IP, UDP, GTP-U with a container. The bare forwarder's frames have
/// them too.
const TUNNEL: usize = 20 + 8 + 16;

/// Measures both, in both directions.
///
/// # Errors
/// A memif does not come up, or no packet passes.
pub(super) fn run(run: &mut Run, [core, other]: [usize; 2]) -> anyhow::Result<()> {
    machine::pin(&[core]);
    for round in 0..run.plan.rounds {
        run.add_distance();
        run.progress.say(&format!("CU between memifs, round {round}"));
        for size in run.plan.link.sizes.clone() {
            let bare = bare(run, other, size).context("bare forwarder")?;
            run.results.add("memif.bare.mpps".to_owned(), MPPS_BY_SIZE, size, bare);
            for uplink in [false, true] {
                let rate = relay(run, other, size, uplink).with_context(|| format!("uplink: {uplink}"))?;
                let name = if uplink { "memif.cu.uplink.mpps" } else { "memif.cu.downlink.mpps" };
                run.results.add(name.to_owned(), MPPS_BY_SIZE, size, rate);
            }
        }
    }
    Ok(())
}

/// Both ends of a memif.
fn pair(folder: &std::path::Path, name: &str) -> anyhow::Result<[MemifPort; 2]> {
    let open =
        |role: &str| -> anyhow::Result<MemifPort> { memif(&folder.join(format!("{name}.sock")), role) };
    let [server, client] = [open("server")?, open("client")?];
    come_up(&[&server, &client])?;
    Ok([server, client])
}

fn stack(frames: MemifPort, address: Ipv4Addr) -> anyhow::Result<UdpStack<MemifPort>> {
    let cidr = Cidr::new(IpAddr::V4(address), 24).context("24 bits fit IPv4")?;
    let neighbours = Neighbours::Own(Box::new(Resolver::new(&[cidr], &[])));
    let local = SocketAddr::new(address.into(), gtpu::PORT);
    Ok(UdpStack::new(frames, local, None, neighbours)?.with_mtu(MTU.into()))
}

/// Frames that are sent in turn.
struct Frames {
    frames: Vec<Vec<u8>>,
    next: usize,
    /// COUNT of the next PDU, whose sequence number each frame has at [`PDU`].
    count: Option<u32>,
}

/// Where a PDCP PDU of the DU begins in a frame.
const PDU: usize = ETHERNET + 20 + 8 + gtpu::HEADER_LEN;

impl Frames {
    /// Sends as many as a vector holds.
    fn send(&mut self, port: &mut MemifPort, out: &mut Vector) {
        port.draw(out, VECTOR);
        for (after, mut frame) in (0..).zip(out.frames_mut()) {
            self.next = (self.next + 1) % self.frames.len();
            let content = &mut self.frames[self.next];
            if let Some(count) = self.count {
                let [_, a, b, c] = ((count + after) & 0x3_FFFF).to_be_bytes();
                // D/C bit and an 18-bit sequence number.
                content[PDU..PDU + 3].copy_from_slice(&[0x80 | a, b, c]);
            }
            frame.set(content);
        }
        let positions = positions();
        let sent = port.transmit(out, &positions[..out.len()]);
        if let Some(count) = &mut self.count {
            // What was not taken is sent again: a gap would make the CU wait.
            *count += sent.packets as u32;
        }
    }
}

/// Packets per second, in millions, that come out of one port while as many as possible are sent by the other.
fn flood(
    time: Duration,
    (from, to): (&mut MemifPort, &mut MemifPort),
    frames: &mut Frames,
) -> anyhow::Result<f64> {
    let (mut out, mut taken) = (Vector::new(VECTOR, 2048), Vector::new(VECTOR, 2048));
    let mut rate = 0.0;
    for time in [WARM, time] {
        let (start, mut arrived) = (time::now_std(), 0);
        while start.elapsed() < time {
            // Reading the clock costs as much as a packet.
            for _ in 0..16 {
                frames.send(from, &mut out);
                arrived += to.receive(&mut taken)?;
            }
        }
        rate = arrived as f64 / start.elapsed().as_secs_f64() / 1e6;
    }
    if rate == 0.0 {
        bail!("no packet passes");
    }
    Ok(rate)
}

/// A datagram to the CU in a frame.
fn frame(from: (Mac, Ipv4Addr), to: (Mac, Ipv4Addr), payload: &[u8]) -> anyhow::Result<Vec<u8>> {
    let port = |address: Ipv4Addr| (IpAddr::V4(address), gtpu::PORT);
    let mut udp = transport::build_udp(port(from.1), port(to.1), payload)?;
    // Without a checksum, as the payload changes.
    udp[6..8].fill(0);
    let packet = ipv4::Header::new(from.1, to.1, protocol::UDP).build(&udp)?;
    Ok([&to.0[..], &from.0, &ethernet::IPV4.to_be_bytes(), &packet].concat())
}

fn bare(run: &Run, core: usize, size: usize) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let ([mut one, mut n3], [mut other, mut f1u]) = (pair(folder.path(), "n3")?, pair(folder.path(), "f1u")?);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            machine::pin(&[core]);
            let (mut vector, all) = (Vector::new(VECTOR, 2048), positions());
            while !stop.load(Relaxed) {
                for _ in 0..64 {
                    let Ok(count) = one.receive(&mut vector) else { return };
                    for mut frame in vector.frames_mut() {
                        if let Some((destination, rest)) = frame.packet_mut().split_at_mut_checked(6)
                            && let Some(source) = rest.get_mut(..6)
                        {
                            destination.swap_with_slice(source);
                        }
                    }
                    if count > 0 {
                        other.transmit(&mut vector, &all[..count]);
                    }
                }
            }
        });
        let mut frame = vec![0; ETHERNET + TUNNEL + size];
        frame[12..14].copy_from_slice(&ethernet::IPV4.to_be_bytes());
        let mut frames = Frames { frames: vec![frame], next: 0, count: None };
        let rate = flood(run.plan.link.time, (&mut n3, &mut f1u), &mut frames);
        stop.store(true, Relaxed);
        rate
    })
}

fn positions() -> [u16; VECTOR] {
    std::array::from_fn(|at| at as u16)
}

fn relay(run: &Run, core: usize, size: usize, uplink: bool) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let ([cu_n3, n3], [cu_f1u, f1u]) = (pair(folder.path(), "n3")?, pair(folder.path(), "f1u")?);
    let macs = [(n3.mac(), cu_n3.mac()), (f1u.mac(), cu_f1u.mac())];
    let nodes = Nodes::with_upf(CU_N3.into(), UPF.into())?;
    let ports: Ports = vec![Box::new(stack(cu_f1u, CU)?), Box::new(stack(cu_n3, CU_N3)?)];
    let inputs = vec![F1U.into(), END.into()];
    let plan =
        Plan { name: "cu".to_owned(), core: Some(core), inputs, poll: ALWAYS, realtime: false, shared: None };
    let _worker = Worker::start_as(plan, nodes.cu, ports)?;
    let mut ends = Ends {
        n3: stack(n3, UPF)?,
        f1u: stack(f1u, DU)?,
        out: Vector::new(1, 2048),
        taken: Vector::new(VECTOR, 2048),
    };
    // A DU without limits.
    for teid in &nodes.f1u {
        ends.send(true, &unlimited(*teid)?);
    }
    let (mut ue, mut pdu) = (Ue::new(0, size)?, Vec::new());
    ue.next_on_f1u(nodes.f1u[0], &mut pdu)?;
    let packet = |(ue, teid): (usize, &u32)| anyhow::Ok(from_upf(*teid, &user(false, ue, size)?));
    let packets: Vec<Vec<u8>> = nodes.n3.iter().enumerate().map(packet).collect::<anyhow::Result<_>>()?;
    // Neighbours find each other.
    ends.pass(true, &pdu)?;
    ends.pass(false, &packets[0])?;
    let (mut n3, mut f1u) = (ends.n3.into_frames(), ends.f1u.into_frames());
    if uplink {
        let frame = frame((macs[1].0, DU), (macs[1].1, CU), &pdu)?;
        let mut frames = Frames { frames: vec![frame], next: 0, count: Some(1) };
        return flood(run.plan.link.time, (&mut f1u, &mut n3), &mut frames);
    }
    let frame = |packet: &Vec<u8>| frame((macs[0].0, UPF), (macs[0].1, CU_N3), packet);
    let frames = packets.iter().map(frame).collect::<anyhow::Result<_>>()?;
    let mut frames = Frames { frames, next: 0, count: None };
    flood(run.plan.link.time, (&mut n3, &mut f1u), &mut frames)
}

/// The ends of both memifs, with a stack.
struct Ends {
    n3: UdpStack<MemifPort>,
    f1u: UdpStack<MemifPort>,
    out: Vector,
    taken: Vector,
}

impl Ends {
    fn send(&mut self, by_du: bool, message: &[u8]) {
        let (port, to) = if by_du { (&mut self.f1u, CU) } else { (&mut self.n3, CU_N3) };
        self.out.clear();
        self.out.push(message, SocketAddr::new(to.into(), gtpu::PORT));
        port.transmit(&mut self.out, &[0]);
    }

    /// Sends a message until a packet comes out at the other end.
    fn pass(&mut self, by_du: bool, message: &[u8]) -> anyhow::Result<()> {
        let start = time::now_std();
        while start.elapsed() < PATIENCE {
            self.send(by_du, message);
            let until = time::now_ns() + 5_000_000;
            while time::now_ns() < until {
                let [n3, f1u] = [self.n3.receive(&mut self.taken)?, self.f1u.receive(&mut self.taken)?];
                if if by_du { n3 } else { f1u } > 0 {
                    return Ok(());
                }
            }
        }
        bail!("no packet passes")
    }
}
