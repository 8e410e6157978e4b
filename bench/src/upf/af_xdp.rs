//! AF_XDP across namespaces: a whole UPF with this backend on both interfaces, as in a core. gNB and data
//! network have ports of their own and answer for all their addresses.
//!
//! N4 uses the loopback interface of the UPF's namespace, since the generator gets all frames of N3's link. The
//! other contender is the bare forwarder, on its own two links, with ports that share their memory. It sleeps
//! while it is not its turn, as the user plane does by itself.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context as _, bail};
use net::link::Links;
use net::netns::NetNs;
use net::time::{self, Duration};
use packet::ethernet::Mac;
use pktio::af_xdp::device::Device;
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;

use super::client::Client;
use super::ends;
use super::frames::{self, Forwarder, Generator};
use super::network::Network;
use super::source::Deck;
use super::subscriber::Subscriber;
use super::traffic::Direction;
use super::turns::{Contender, Control, Extent, Reading};
use super::under_test::UnderTest;
use super::{DEFAULT_SESSIONS, Run, world};
use crate::machine;

/// The UPF's address on N4, and the CP function's.
const N4: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];

/// The links of the bare forwarder.
const BARE: [&str; 2] = ["n3b", "n6b"];
/// How often the bare forwarder checks whether it is its turn.
const GLANCE: Duration = Duration::from_millis(1);

/// The bare forwarder, which rests while this is set.
struct Bare<'a>(&'a AtomicBool);

impl Control for Bare<'_> {
    fn wake(&self, awake: bool) {
        self.0.store(!awake, Relaxed);
    }

    fn reading(&self) -> anyhow::Result<Option<Reading>> {
        Ok(None)
    }
}

/// The user plane, which sleeps by itself while there are no packets.
struct Itself;

impl Control for Itself {
    fn wake(&self, _: bool) {}

    fn reading(&self) -> anyhow::Result<Option<Reading>> {
        Ok(None)
    }
}

/// The ports of interfaces that share memory; they receive all packets.
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

/// Measures both contenders in turn, with each number of sessions.
///
/// # Errors
/// The process lacks rights, or the kernel has no AF_XDP.
pub(super) fn run(run: &mut Run, core: usize) -> anyhow::Result<()> {
    let network = Network::build()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        Links::in_ns(&network.upf)?.up("lo").await?;
        network.pair(BARE[0], &network.gnb).await?;
        network.pair(BARE[1], &network.dn).await
    })?;
    // All sessions are at one gNB.
    let mut to_upf = generator(&network, ["n3", "n6"], Forwarder::UserPlane { gnbs: 1 })?;
    let mut to_bare = generator(&network, BARE, Forwarder::Bare)?;
    run.note("af_xdp_mode", &format!("{:?}", to_upf.ports()[0].mode()));
    let mut ports = open_in(&network.upf, &BARE)?;
    let (n6, n3) = (ports.pop().context("no port")?, ports.pop().context("no port")?);
    let (rest, stop) = (AtomicBool::new(true), AtomicBool::new(false));
    let measured = std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            machine::pin(&[core]);
            frames::forward_all((n3, n6), &|| {
                while rest.load(Relaxed) && !stop.load(Relaxed) {
                    time::sleep_thread(GLANCE);
                }
                stop.load(Relaxed)
            })
        });
        let measured = run.plan.network_sessions.clone().into_iter().try_for_each(|sessions| {
            let upf = Whole::start(run, &network, (sessions, core), "", &mut to_upf)?;
            to_bare.play(Deck::new(&upf.teids));
            let bare = Contender { name: "bare", generator: &mut to_bare, control: &Bare(&rest) };
            let itself = Contender { name: "upf", generator: &mut to_upf, control: &Itself };
            let sizes = run.plan.network_sizes(sessions);
            let rounds = run.plan.frame_rounds(sessions);
            let extent = Extent { backend: "af_xdp", sessions, sizes: &sizes, rounds };
            run.frames(&extent, &mut [bare, itself])?;
            upf.stop(run)
        });
        stop.store(true, Relaxed);
        served.join().map(|served| served.and(measured))
    });
    measured.unwrap_or_else(|_| bail!("the bare forwarder on AF_XDP ended by a panic"))?;
    polling(run, &network, core, &mut to_upf)
}

/// One-way times of a UPF whose workers poll through all pauses of this experiment.
fn polling(
    run: &mut Run,
    network: &Network,
    core: usize,
    generator: &mut Generator<AfXdpPort>,
) -> anyhow::Result<()> {
    let sessions = DEFAULT_SESSIONS;
    let workers = r#", "workers": {"poll_us": 1000000}"#;
    let upf = Whole::start(run, network, (sessions, core), workers, generator)?;
    generator.warm_up()?;
    for round in 0..run.plan.frame_rounds(sessions) {
        run.progress.say(&format!("AF_XDP: {sessions} sessions, polling, round {round}"));
        for direction in Direction::ALL {
            let whose = format!("af_xdp.polling.{}", direction.name());
            run.low(&whose, direction, sessions, generator)?;
        }
    }
    run.compared("af_xdp polling", generator.take_tally());
    upf.stop(run)
}

/// gNB and data network at the far ends of two links.
fn generator(
    network: &Network,
    links: [&str; 2],
    forwarder: Forwarder,
) -> anyhow::Result<Generator<AfXdpPort>> {
    let one = |mut ports: Vec<AfXdpPort>| ports.pop().context("no port");
    let ends = [one(open_in(&network.gnb, &links[..1])?)?, one(open_in(&network.dn, &links[1..])?)?];
    let mac = |name| -> anyhow::Result<Mac> { Ok(network.upf.enter(|| Device::find(name))??.mac) };
    Ok(Generator::new(ends, [mac(links[0])?, mac(links[1])?], forwarder, &Deck::new(&[1])))
}

/// A whole UPF with its sessions.
struct Whole {
    upf: UnderTest,
    teids: Vec<u32>,
}

impl Whole {
    /// Starts the UPF with further configuration, and has the generator send its sessions' packets.
    fn start(
        run: &mut Run,
        network: &Network,
        (sessions, core): (usize, usize),
        further: &str,
        generator: &mut Generator<AfXdpPort>,
    ) -> anyhow::Result<Whole> {
        run.progress.say(&format!("AF_XDP: making {sessions} sessions"));
        let [own, cp] = N4;
        let upf = format!(
            r#""pfcp": "{own}:8805", "interfaces": [
                {{"name": "n3", "role": "n3", "gtpu": "{}:2152", "backend": "af_xdp", "device": "n3"}},
                {{"name": "n6", "role": "n6", "backend": "af_xdp", "device": "n6"}}] {further}"#,
            super::subscriber::UPF
        );
        let config = world::config_with(sessions, &upf, r#""interfaces": ["n6"]"#)?;
        let upf = UnderTest::start(&network.upf, config, core)?;
        let mut client = Client::associate_from(&network.upf, cp, own)?;
        let requests = (0..sessions as u32).map(|number| Subscriber(number).request(ends::gnb()));
        let (established, _) = client.establish(requests)?;
        let teids: Vec<u32> = established.iter().map(|session| session.teid).collect();
        generator.play(Deck::new(&teids));
        Ok(Whole { upf, teids })
    }

    /// Stops the UPF. Its counters must show no drop that it caused itself.
    fn stop(self, run: &mut Run) -> anyhow::Result<()> {
        let stats = self.upf.stats();
        self.upf.stop()?;
        run.account("AF_XDP", &stats);
        Ok(())
    }
}
