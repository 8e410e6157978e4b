//! Whole user planes across namespaces: packets go from a gNB's socket through the UPF's threads on one core to
//! the data network's interface, and back. On the relay path both ends are sockets.
//!
//! One thread on another core is gNB and data network. The contenders exist at the same time and take turns:
//! the UPF; the bare forwarder, which makes the same system calls and does nothing else; and the textbook user
//! plane, with system calls for each packet.

use anyhow::bail;
use net::time::Duration;

use super::bare::{self, Forwarder, Work};
use super::client::{Client, Established};
use super::ends::{self, Ends, Latency, Path, Target, Teid};
use super::network::{BARE_POOL, Network, TEXTBOOK_POOL};
use super::subscriber::{Subscriber, UPF};
use super::textbook::Textbook;
use super::under_test::UnderTest;
use super::{MPPS, Run, US, turns};
use crate::stats::median;

/// Up to this number of sessions the relay path is measured.
const MOST_RELAYED: usize = 100_000;

/// A contender with the addresses at which it receives packets.
struct Contender {
    name: &'static str,
    n3: std::net::SocketAddr,
    relay: std::net::SocketAddr,
    shift: u32,
    relay_shift: u32,
    /// Whether it is measured on the relay path.
    relays: bool,
}

impl Contender {
    fn target<'a>(&self, path: Path, teids: &'a [u32], relay_teids: &'a [u32]) -> Target<'a> {
        let bare = self.name == "bare";
        match path {
            Path::Relay => {
                let sends = if bare { Teid::Kept } else { Teid::OfSubscriber };
                Target { n3: self.relay, teids: relay_teids, shift: self.relay_shift, sends }
            }
            _ => {
                let sends = if bare { Teid::Fixed(bare::TEID) } else { Teid::OfSubscriber };
                Target { n3: self.n3, teids, shift: self.shift, sends }
            }
        }
    }
}

/// Measures rates and latencies with `sessions` sessions.
///
/// # Errors
/// The process may not make namespaces, or the UPF does not work.
pub(super) fn run(run: &mut Run, sessions: usize, core: usize) -> anyhow::Result<()> {
    run.progress.say(&format!("kernel: {sessions} sessions"));
    let network = Network::build()?;
    // As many relayed sessions as plain ones, as long as the UPF has room for both.
    let relays = if sessions <= MOST_RELAYED { sessions } else { 0 };
    let config = super::world::config(sessions + relays)?;
    let upf = UnderTest::start(&network.upf, config, core)?;
    let mut client = Client::associate(&network.gnb)?;
    let all = sessions as u32;
    let plain = (0..all).map(|number| Subscriber(number).request(ends::gnb()));
    let relayed = (all..all + relays as u32)
        .map(|number| Subscriber(number).relayed(ends::gnb(), ends::other_upf().ip()));
    let (established, _) = client.establish(plain.chain(relayed))?;
    let teids = |sessions: &[Established]| sessions.iter().map(|session| session.teid).collect::<Vec<u32>>();
    let (plain, relayed) = (teids(&established[..sessions]), teids(&established[sessions..]));

    let mut contenders = vec![Contender {
        name: "upf",
        n3: std::net::SocketAddr::new(UPF.into(), packet::gtpu::PORT),
        relay: std::net::SocketAddr::new(UPF.into(), packet::gtpu::PORT),
        shift: 0,
        relay_shift: all,
        relays: relays == sessions,
    }];
    let mut forwarders = Vec::new();
    let textbook = Textbook::new(&plain, bare::shift(TEXTBOOK_POOL)?, Some(ends::gnb()))?;
    for (name, pool, work) in
        [("bare", BARE_POOL, Work::Bare), ("textbook", TEXTBOOK_POOL, Work::Textbook(Box::new(textbook)))]
    {
        let forwarder = Forwarder::start(&network, core, work)?;
        let shift = bare::shift(pool)?;
        contenders.push(Contender {
            name,
            n3: forwarder.n3,
            relay: forwarder.relay,
            shift,
            relay_shift: shift,
            // A textbook user plane relays with the same code as it forwards, so its relay path shows nothing
            // new.
            relays: name == "bare" && relays == sessions,
        });
        forwarders.push(forwarder);
    }
    let mut measurement = Measurement { run, sessions, ends: Ends::new(&network)?, plain, relayed };
    measurement.check(&contenders)?;
    measurement.rates(&contenders)?;
    measurement.latencies(&contenders)?;
    run.account(&format!("kernel with {sessions} sessions"), &upf.stats());
    drop(forwarders);
    upf.stop()
}

struct Measurement<'a> {
    run: &'a mut Run,
    sessions: usize,
    ends: Ends,
    plain: Vec<u32>,
    relayed: Vec<u32>,
}

impl Measurement<'_> {
    /// Checks that packets arrive on every path of every contender.
    fn check(&mut self, contenders: &[Contender]) -> anyhow::Result<()> {
        for contender in contenders {
            for path in paths(contender) {
                let target = contender.target(path, &self.plain, &self.relayed);
                // The first packets find no neighbour yet.
                self.ends.latency_low(path, target, (10, Duration::from_millis(1)))?;
                let found = self.ends.latency_low(path, target, (20, Duration::from_micros(200)))?;
                if found.timed < 15 {
                    bail!("{} {}: {} of 20 packets arrived", contender.name, path.name(), found.timed);
                }
                if let Err(error) = self.ends.verify(path, target, self.run.plan.verified) {
                    let whose = format!("kernel {} {}", contender.name, path.name());
                    let name = format!("{whose}: every packet arrives, once and as it must");
                    self.run.check(&name, false, format!("{error:#}"));
                }
                self.count_compared(contender);
            }
        }
        Ok(())
    }

    /// Adds the packets compared during a contender's turn.
    fn count_compared(&mut self, contender: &Contender) {
        self.run.compared(&format!("kernel {}", contender.name), self.ends.take_tally());
    }

    fn rates(&mut self, contenders: &[Contender]) -> anyhow::Result<()> {
        for round in 0..self.run.plan.network_rounds(self.sessions) {
            for size in self.run.plan.network_sizes(self.sessions) {
                for path in Path::ALL {
                    let (sessions, path_name) = (self.sessions, path.name());
                    self.run.progress.say(&format!(
                        "kernel: {sessions} sessions, {size} octets, {path_name}, round {round}"
                    ));
                    for at in turns::order(contenders.len()) {
                        let contender = &contenders[at];
                        if !paths(contender).any(|of| of == path) {
                            continue;
                        }
                        let target = contender.target(path, &self.plain, &self.relayed);
                        let rate = self.ends.flood(path, size, target, self.run.plan.network_sample / 2)?;
                        let name = self.name(contender, path, &format!("{size}.mpps"));
                        self.run.results.add(name, MPPS, self.sessions, rate / 1e6);
                        self.count_compared(contender);
                    }
                }
            }
        }
        Ok(())
    }

    /// One-way times without other traffic, and at four fifths of the contender's own rate.
    fn latencies(&mut self, contenders: &[Contender]) -> anyhow::Result<()> {
        let size = self.run.plan.network_sizes[0];
        for _ in 0..self.run.plan.network_rounds(self.sessions) {
            for path in Path::ALL {
                for contender in contenders.iter().filter(|of| paths(of).any(|of| of == path)) {
                    let target = contender.target(path, &self.plain, &self.relayed);
                    let low = self.ends.latency_low(path, target, self.run.plan.low)?;
                    let name = self.name(contender, path, &format!("{size}.mpps"));
                    let most = 1e6 * median(self.run.results.samples(&name, self.sessions));
                    let loaded = (0.8 * most, self.run.plan.network_sample);
                    let loaded = self.ends.latency_loaded(path, target, loaded)?;
                    self.ends.settle(path, target);
                    self.add(contender, path, "low", low);
                    self.add(contender, path, "load80", loaded);
                    self.count_compared(contender);
                }
            }
        }
        Ok(())
    }

    fn name(&self, contender: &Contender, path: Path, what: &str) -> String {
        format!("kernel.{}.{}.{what}", contender.name, path.name())
    }

    fn add(&mut self, contender: &Contender, path: Path, load: &str, latency: Latency) {
        for (what, value) in [("p50", latency.p50), ("p99", latency.p99)] {
            if value.is_finite() {
                let name = self.name(contender, path, &format!("{load}.{what}"));
                self.run.results.add(name, US, self.sessions, value);
            }
        }
        let lost = latency.lost as f64 / (latency.lost + latency.timed).max(1) as f64;
        let name = self.name(contender, path, &format!("{load}.lost"));
        self.run.results.add(name, super::SHARE, self.sessions, 100.0 * lost);
    }
}

/// The paths that a contender has.
fn paths(contender: &Contender) -> impl Iterator<Item = Path> {
    let relays = contender.relays;
    Path::ALL.into_iter().filter(move |path| relays || *path != Path::Relay)
}
