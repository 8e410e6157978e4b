//! AF_XDP across namespaces: the user plane's two ports share their memory, gNB and data network have ports of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Context as _;
use net::netns::NetNs;
use pktio::FramePort as _;
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;

use super::Run;
use super::frames::{self, Generator, Kind};
use super::network::Network;
use super::world::World;
use crate::machine;

/// The ports of interfaces that share memory, all packets for us.
fn open(interfaces: &[&str]) -> anyhow::Result<Vec<AfXdpPort>> {
    let open = |name: &&str| Interface::open(name, None, &[Select::Everything]);
    let interfaces: Vec<Arc<Interface>> = interfaces.iter().map(open).collect::<Result<_, _>>()?;
    let mut memory = Memory::new(interfaces.len(), interfaces.iter().map(|interface| interface.device()))?;
    let port = |interface| AfXdpPort::open(interface, [0], &mut memory, Options::default());
    Ok(interfaces.iter().map(port).collect::<Result<_, _>>()?)
}

fn open_in(namespace: &NetNs, interfaces: &[&str]) -> anyhow::Result<Vec<AfXdpPort>> {
    namespace.enter(|| open(interfaces))?
}

/// Measures the user plane and the bare forwarder in turn.
///
/// # Errors
/// No right to, or the kernel has no AF_XDP.
pub(super) fn run(run: &mut Run, sessions: usize, core: usize) -> anyhow::Result<()> {
    let network = Network::build()?;
    let teids = World::new(sessions)?.teids;
    let one = |mut ports: Vec<AfXdpPort>| ports.pop().context("no port");
    let ends = [one(open_in(&network.gnb, &["n3"])?)?, one(open_in(&network.dn, &["n6"])?)?];
    let macs: Vec<_> = open_in(&network.upf, &["n3", "n6"])?.iter().map(|port| port.mac()).collect();
    let [n3, n6] = macs[..] else { anyhow::bail!("no ports") };
    let mut generator = Generator::new(ends, [n3, n6], teids);
    for round in 0..run.plan.network_rounds {
        for kind in Kind::ALL {
            run.progress.say(&format!("AF_XDP: {sessions} sessions, {}, round {round}", kind.name()));
            let mut ports = open_in(&network.upf, &["n3", "n6"])?;
            let (Some(n6), Some(n3)) = (ports.pop(), ports.pop()) else { continue };
            run.note("af_xdp_mode", &format!("{:?}", n3.mode()));
            let stop = AtomicBool::new(false);
            let measured = std::thread::scope(|scope| {
                let served = scope.spawn(|| {
                    machine::pin(&[core]);
                    frames::serve(kind, (n3, n6), sessions, &|| stop.load(Relaxed))
                });
                let measured = run.frames("af_xdp", kind, sessions, &mut generator);
                stop.store(true, Relaxed);
                served.join().map(|served| served.and(measured))
            });
            measured.unwrap_or_else(|_| anyhow::bail!("the user plane on AF_XDP ended by a panic"))?;
        }
    }
    Ok(())
}
