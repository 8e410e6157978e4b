//! AF_XDP across namespaces: a whole UPF with both interfaces on this backend, as in a core; gNB and data network have
//! ports of their own and answer for all their addresses.
//!
//! N4 goes over the loopback interface of the UPF's namespace, as all frames from N3's link are the generator's. The
//! contender is the bare forwarder, on two ports that share their memory.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Context as _;
use net::link::Links;
use net::netns::NetNs;
use packet::ethernet::Mac;
use pktio::af_xdp::device::Device;
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;

use super::client::Client;
use super::ends;
use super::frames::{self, Generator};
use super::network::Network;
use super::subscriber::Subscriber;
use super::under_test::UnderTest;
use super::{Run, world};
use crate::machine;

/// The UPF's address on N4, and the CP function's.
const N4: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];

/// Who forwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contender {
    Bare,
    Upf,
    /// A UPF whose workers poll on through all pauses that are here.
    Polling,
}

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

/// Measures all contenders in turn.
///
/// # Errors
/// No right to, or the kernel has no AF_XDP.
pub(super) fn run(run: &mut Run, sessions: usize, core: usize) -> anyhow::Result<()> {
    let network = Network::build()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Links::in_ns(&network.upf)?.up("lo").await })?;
    let one = |mut ports: Vec<AfXdpPort>| ports.pop().context("no port");
    let ends = [one(open_in(&network.gnb, &["n3"])?)?, one(open_in(&network.dn, &["n6"])?)?];
    run.note("af_xdp_mode", &format!("{:?}", ends[0].mode()));
    let mac = |name| -> anyhow::Result<Mac> { Ok(network.upf.enter(|| Device::find(name))??.mac) };
    let mut generator = Generator::new(ends, [mac("n3")?, mac("n6")?], (1..=sessions as u32).collect());
    for round in 0..run.plan.frame_rounds {
        for contender in [Contender::Bare, Contender::Upf, Contender::Polling] {
            run.progress.say(&format!("AF_XDP: {sessions} sessions, {contender:?}, round {round}"));
            if contender == Contender::Bare {
                bare(run, &network, sessions, core, &mut generator)?;
            } else {
                whole(run, contender, &network, sessions, core, &mut generator)?;
            }
        }
    }
    Ok(())
}

fn bare(
    run: &mut Run,
    network: &Network,
    sessions: usize,
    core: usize,
    generator: &mut Generator<AfXdpPort>,
) -> anyhow::Result<()> {
    let mut ports = open_in(&network.upf, &["n3", "n6"])?;
    let (n6, n3) = (ports.pop().context("no port")?, ports.pop().context("no port")?);
    let stop = AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            machine::pin(&[core]);
            frames::forward_all((n3, n6), &|| stop.load(Relaxed))
        });
        let measured = run.frames("af_xdp", "bare", sessions, generator);
        stop.store(true, Relaxed);
        served.join().map(|served| served.and(measured))
    });
    measured.unwrap_or_else(|_| anyhow::bail!("the bare forwarder on AF_XDP ended by a panic"))
}

fn whole(
    run: &mut Run,
    contender: Contender,
    network: &Network,
    sessions: usize,
    core: usize,
    generator: &mut Generator<AfXdpPort>,
) -> anyhow::Result<()> {
    let [own, cp] = N4;
    let interface = |name: &str| format!(r#"{{"backend": "af_xdp", "device": "{name}"}}"#);
    let poll = if contender == Contender::Polling { r#", "workers": {"poll_us": 1000000}"# } else { "" };
    let upf = format!(r#""pfcp": "{own}:8805", "n3": {}{poll}"#, interface("n3"));
    let config = world::config_with(sessions, &upf, &format!(r#""n6": {}"#, interface("n6")))?;
    let upf = UnderTest::start(&network.upf, config, core)?;
    let mut client = Client::associate_from(&network.upf, cp, own)?;
    let requests = (0..sessions as u32).map(|number| Subscriber(number).request(ends::gnb()));
    let (established, _) = client.establish(requests)?;
    generator.teids(established.iter().map(|session| session.teid).collect());
    let measured = match contender {
        Contender::Polling => run.low("af_xdp", "polling", sessions, generator),
        _ => run.frames("af_xdp", "upf", sessions, generator),
    };
    let stats = upf.stats();
    upf.stop()?;
    measured?;
    run.account("AF_XDP", &stats);
    Ok(())
}
