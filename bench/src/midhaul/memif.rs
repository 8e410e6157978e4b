//! The CU between two memifs, on a core of its own, beside a bare forwarder that swaps Ethernet addresses between the same memifs.
//! This thread is DU and UPF: it sends at one end as fast as it can and counts at the other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context as _, bail};
use net::link::Cidr;
use net::time::{self, Duration};
use packet::ethernet;
use packet::gtpu;
use packet::nr_u::{DeliveryStatus, MAX_STATUS};
use path::{Plan, Ports, Worker};
use pktio::memif::MemifPort;
use pktio::stack::Neighbours;
use pktio::stack::resolver::Resolver;
use pktio::stack::udp::UdpStack;
use pktio::{FramePort, Port, VECTOR, Vector};

use super::nodes::{CU, DU, END, F1U, Load, Nodes, Source, Ue};
use super::{MPPS_BY_SIZE, Run};
use crate::machine;

/// Room for the headers of a tunnel around 1,500 octets.
const MTU: u16 = 1700;
/// Addresses on N3.
const CU_N3: Ipv4Addr = Ipv4Addr::new(10, 211, 0, 1);
const UPF: Ipv4Addr = Ipv4Addr::new(10, 211, 0, 2);
/// Longer than any pause of a measurement.
const ALWAYS: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(10);
/// Before what is measured.
const WARM: Duration = Duration::from_millis(10);
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
        run.progress.say(&format!("CU between memifs, round {round}"));
        for size in run.plan.link_sizes.clone() {
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
    let open = |role: &str| -> anyhow::Result<MemifPort> {
        let socket = folder.join(format!("{name}.sock"));
        let device = format!("memif0,role={role},bsize=2048,socket={}", socket.display());
        MemifPort::open(&device, 1, MTU)?.pop().context("no port")
    };
    let [server, client] = [open("server")?, open("client")?];
    let start = time::now_std();
    while !(server.is_up() && client.is_up()) {
        if start.elapsed() > PATIENCE {
            bail!("the memif {name} does not come up");
        }
        time::sleep_thread(Duration::from_millis(1));
    }
    Ok([server, client])
}

fn stack(frames: MemifPort, address: Ipv4Addr) -> anyhow::Result<Box<dyn Port>> {
    let cidr = Cidr::new(IpAddr::V4(address), 24).context("24 bits fit IPv4")?;
    let neighbours = Neighbours::Own(Box::new(Resolver::new(&[cidr], &[])));
    let local = SocketAddr::new(address.into(), gtpu::PORT);
    Ok(Box::new(UdpStack::new(frames, local, None, neighbours)?.with_mtu(MTU.into())))
}

/// Packets per second, in millions, that `arrive` counts while `send` is called again and again.
fn flood(
    time: Duration,
    mut send: impl FnMut() -> anyhow::Result<()>,
    mut arrive: impl FnMut() -> anyhow::Result<usize>,
) -> anyhow::Result<f64> {
    let mut rate = 0.0;
    for time in [WARM, time] {
        let (start, mut arrived) = (time::now_std(), 0);
        while start.elapsed() < time {
            // Reading the clock costs as much as a packet.
            for _ in 0..16 {
                send()?;
                arrived += arrive()?;
            }
        }
        rate = arrived as f64 / start.elapsed().as_secs_f64() / 1e6;
    }
    if rate == 0.0 {
        bail!("no packet passes");
    }
    Ok(rate)
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
        let (mut out, mut taken, all) = (Vector::new(VECTOR, 2048), Vector::new(VECTOR, 2048), positions());
        let mut frame = vec![0; 14 + TUNNEL + size];
        frame[12..14].copy_from_slice(&ethernet::IPV4.to_be_bytes());
        let length = frame.len();
        (0..VECTOR).for_each(|_| {
            out.push(&frame, SocketAddr::new(UPF.into(), 0));
        });
        let sent = || {
            // The octets of the first round stay in the frames.
            n3.draw(&mut out, VECTOR);
            out.frames_mut().for_each(|mut frame| {
                frame.restore(length);
            });
            n3.transmit(&mut out, &all);
            Ok(())
        };
        let rate = flood(run.plan.link_time, sent, || Ok(f1u.receive(&mut taken)?));
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
    let nodes = Nodes::with_upf(CU_N3.into(), UPF.into())?;
    let ports: Ports = vec![stack(cu_f1u, CU)?, stack(cu_n3, CU_N3)?];
    let inputs = vec![F1U.into(), END.into()];
    let plan = Plan { name: "cu".to_owned(), core: Some(core), inputs, poll: ALWAYS, shared: None };
    let _worker = Worker::start_as(plan, nodes.cu, ports)?;
    let (mut n3, mut f1u) = (stack(n3, UPF)?, stack(f1u, DU)?);
    // Neighbours find each other with the first packets.
    let (mut out, mut taken) = (Vector::new(VECTOR, 2048), Vector::new(VECTOR, 2048));
    let to = |address: Ipv4Addr| SocketAddr::new(address.into(), gtpu::PORT);
    let mut ue = Ue::new(size)?;
    let mut message = Vec::new();
    let load = Arc::<Load>::default();
    load.size.store(size as u64, Relaxed);
    load.rate.store(u64::MAX, Relaxed);
    let mut source = Source::new(&load, &nodes.n3);
    let start = time::now_std();
    let mut passed = [0, 0];
    while passed.iter().any(|passed| *passed < VECTOR) {
        if start.elapsed() > PATIENCE {
            bail!("no packet passes: {passed:?}");
        }
        if passed[1] < VECTOR {
            // Until one has passed the same PDU is sent: it must not leave a gap.
            if passed[1] > 0 || message.is_empty() {
                ue.next_on_f1u(nodes.f1u[0], &mut message)?;
            }
            out.clear();
            out.push(&message, to(CU));
            f1u.transmit(&mut out, &[0]);
            let before = passed[1];
            let until = time::now_ns() + 1_000_000;
            while time::now_ns() < until && passed[1] == before {
                passed[1] += n3.receive(&mut taken)?;
                f1u.receive(&mut taken)?;
            }
        } else {
            source.receive(&mut out)?;
            to_peer(&mut out, to(CU_N3));
            let count = out.len().min(8);
            n3.transmit(&mut out, &positions()[..count]);
            passed[0] += f1u.receive(&mut taken)?;
            n3.receive(&mut taken)?;
        }
    }
    let all = positions();
    if !uplink {
        // A DU without limits.
        let status = DeliveryStatus { desired_buffer_size: u32::MAX, ..DeliveryStatus::default() };
        for teid in &nodes.f1u {
            message.resize(MAX_STATUS, 0);
            let length = status.write(*teid, &mut message).context("a status fits")?;
            out.clear();
            out.push(&message[..length], to(CU));
            f1u.transmit(&mut out, &[0]);
        }
        let send = || {
            source.receive(&mut out)?;
            to_peer(&mut out, to(CU_N3));
            n3.transmit(&mut out, &all);
            Ok(())
        };
        return flood(run.plan.link_time, send, || Ok(f1u.receive(&mut taken)?));
    }
    let mut next = ue.following(nodes.f1u[0])?;
    let send = || {
        out.clear();
        for number in 0..VECTOR as u32 {
            out.push(next.message(number), to(CU));
        }
        // What was not taken is sent again: a gap would make the CU wait.
        next.sent(f1u.transmit(&mut out, &all).packets as u32);
        Ok(())
    };
    flood(run.plan.link_time, send, || Ok(n3.receive(&mut taken)?))
}

fn to_peer(vector: &mut Vector, to: SocketAddr) {
    vector.frames_mut().for_each(|frame| *frame.peer = to);
}
