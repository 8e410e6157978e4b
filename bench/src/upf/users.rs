//! The packets that users have, through the pipeline alone.
//!
//! Each kind of [`Traffic`] differs from `plain` in one respect, and `mix` in all of them; docs/bench-upf.md lists the shares.
//! Packets are made beforehand, a deck for each direction, and copied into batches untimed. Before every sample some of
//! them go through the pipeline and are compared octet by octet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use classifier::{Filter, PortRange, Prefix, Rule, Side};
use net::time::{self, Duration};
use packet::gtpu::{self, PduSession, build_gpdu};
use packet::transport::build_udp;
use packet::{ipv4, ipv6, protocol};
use pktio::Vector;
use upf::pipeline::BATCH;
use upf::plan::{Mark, MarkKind, Measure, UeAddresses};

use super::contents::Tally;
use super::subscriber::{CP, GNBS, OTHER_PORT, QFI, SERVER, Subscriber};
use super::traffic::{Direction, Draw, TUNNEL, UE_PORT};
use super::world::World;
use super::{DEFAULT_SESSIONS, MPPS, NS, Run};

/// Batches between two clock readings.
const WINDOW: usize = 8;
/// Packets of a deck: more than sessions and destinations.
const CARDS: usize = 1 << 14;
/// Batches of each direction that are compared before a sample.
const COMPARED: usize = 4;
/// Octets of user packets, unless they differ.
const SIZE: usize = 64;
/// Of twelve packets, their octets: frames of 64, 594 and 1518 octets without Ethernet header and frame check sequence.
const IMIX: [usize; 12] = [46, 46, 46, 46, 46, 46, 46, 576, 576, 576, 576, 1500];
/// gNBs where there are many, and servers.
const MANY_GNBS: u32 = 64;
const MANY_SERVERS: usize = 10_000;
/// Volumes that no session reaches.
const THRESHOLD: u64 = 1 << 60;
const QUOTA: u64 = 1 << 61;
/// Pool of UEs' IPv6 prefixes: a million.
const UE_POOL_V6: &str = "2001:db8::/44";
const SEED: u64 = 11;

/// A kind of traffic.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Traffic {
    /// IPv4 in IPv4 tunnels, 64 octets, 16 gNBs, one server.
    #[default]
    Plain,
    /// IPv6 packets of UEs.
    Ipv6,
    /// gNBs with IPv6 addresses.
    Ipv6Outer,
    /// Every session has a threshold and a quota.
    Quotas,
    /// 64 gNBs.
    Gnbs,
    /// 10,000 servers.
    Destinations,
    /// Frames of 64, 594 and 1518 octets, 7 : 4 : 1.
    Imix,
    /// All of these.
    Mix,
}

impl Traffic {
    pub(super) const ALL: [Traffic; 8] = [
        Traffic::Plain,
        Traffic::Ipv6,
        Traffic::Ipv6Outer,
        Traffic::Quotas,
        Traffic::Gnbs,
        Traffic::Destinations,
        Traffic::Imix,
        Traffic::Mix,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Traffic::Plain => "plain",
            Traffic::Ipv6 => "ipv6",
            Traffic::Ipv6Outer => "ipv6_outer",
            Traffic::Quotas => "quotas",
            Traffic::Gnbs => "64_gnbs",
            Traffic::Destinations => "10k_destinations",
            Traffic::Imix => "imix",
            Traffic::Mix => "mix",
        }
    }

    /// Keys of the data network's pools in the UPF's configuration.
    pub(super) fn pools(self) -> String {
        let ipv4 = format!(r#""ipv4": "{}""#, super::subscriber::UE_POOL);
        match self {
            Traffic::Ipv6 | Traffic::Mix => format!(r#"{ipv4}, "ipv6": "{UE_POOL_V6}""#),
            _ => ipv4,
        }
    }

    /// Whether a subscriber has an IPv6 address: in the mix two of five.
    fn has_ipv6(self, subscriber: Subscriber) -> bool {
        match self {
            Traffic::Ipv6 => true,
            Traffic::Mix => subscriber.0 % 5 < 2,
            _ => false,
        }
    }

    /// A subscriber's UE address.
    fn ue(self, subscriber: Subscriber) -> IpAddr {
        if self.has_ipv6(subscriber) {
            let prefix = u128::from(subscriber.0) + (0x2001_0db8 << 32);
            Ipv6Addr::from_bits(prefix << 64 | 0x5).into()
        } else {
            subscriber.ue().into()
        }
    }

    /// The same for N4: an address, or a prefix of 64 bits.
    pub(super) fn addresses(self, subscriber: Subscriber) -> UeAddresses {
        match self.ue(subscriber) {
            IpAddr::V4(address) => UeAddresses { ipv4: vec![address], ..UeAddresses::default() },
            IpAddr::V6(address) => UeAddresses { ipv6: vec![(address, 64)], ..UeAddresses::default() },
        }
    }

    /// Number of gNBs, between which sessions are spread.
    pub(super) fn gnbs(self) -> u32 {
        if matches!(self, Traffic::Gnbs | Traffic::Mix) { MANY_GNBS } else { GNBS }
    }

    /// A subscriber's gNB: in the mix every fourth has an IPv6 address.
    pub(super) fn gnb(self, subscriber: Subscriber) -> SocketAddr {
        let number = subscriber.0 % self.gnbs();
        let has_ipv6 = self == Traffic::Ipv6Outer || (self == Traffic::Mix && number % 4 == 3);
        let address = if has_ipv6 {
            IpAddr::from(Ipv6Addr::from_bits((0xfd00 << 112) + 0x100 + u128::from(number)))
        } else {
            Ipv4Addr::from_bits(CP.to_bits() + number).into()
        };
        SocketAddr::new(address, gtpu::PORT)
    }

    fn servers(self) -> usize {
        if matches!(self, Traffic::Destinations | Traffic::Mix) { MANY_SERVERS } else { 1 }
    }

    /// A server for a subscriber, in the IP version of its UE.
    fn server(self, subscriber: Subscriber, number: usize) -> IpAddr {
        if self.has_ipv6(subscriber) {
            Ipv6Addr::from_bits((0xfd01 << 112) + 2 + number as u128).into()
        } else {
            Ipv4Addr::from_bits(SERVER.to_bits() + number as u32).into()
        }
    }

    fn size(self, draw: usize) -> usize {
        if matches!(self, Traffic::Imix | Traffic::Mix) { IMIX[draw % IMIX.len()] } else { SIZE }
    }

    fn longest(self) -> usize {
        (0..IMIX.len()).map(|draw| self.size(draw)).max().unwrap_or(SIZE)
    }

    /// Volumes at which something happens.
    pub(super) fn marks(self) -> Vec<Mark> {
        if !matches!(self, Traffic::Quotas | Traffic::Mix) {
            return Vec::new();
        }
        let mark = |kind, at| Mark { measure: Measure::Total, kind, at };
        vec![mark(MarkKind::Threshold, THRESHOLD), mark(MarkKind::Quota, QUOTA)]
    }

    /// The PDRs of one direction. With many servers, the service has its port on all of them.
    pub(super) fn rules(self, subscriber: Subscriber, up: bool) -> [Rule; 2] {
        if self.servers() == 1 && !self.has_ipv6(subscriber) {
            return subscriber.rules(up);
        }
        let side = if up { Side::Source } else { Side::Destination };
        let all = Filter { ue: Some((side, ue_prefix(self.ue(subscriber)))), ..Filter::default() };
        let port = Some(PortRange::single(subscriber.service_port()));
        let service = match up {
            true => Filter { destination_ports: port, protocol: Some(protocol::UDP), ..all },
            false => Filter { source_ports: port, protocol: Some(protocol::UDP), ..all },
        };
        let rule = |id, precedence, filter| Rule { id, precedence, value: id, filter };
        [rule(0, 100, service), rule(1, 255, all)]
    }
}

/// An address as prefix of a PDI: an IPv6 UE may have any address of its 64 bits.
fn ue_prefix(ue: IpAddr) -> Prefix {
    let length = if ue.is_ipv6() { 64 } else { 32 };
    Prefix::new(ue, length).unwrap_or_else(|_| Prefix::host(ue))
}

/// A packet as it comes to the UPF, and what has to come out.
struct Card {
    packet: Vec<u8>,
    expected: Vec<u8>,
    /// Where it has to go, if to a gNB.
    gnb: Option<SocketAddr>,
}

/// Packets of random sessions, drawn beforehand.
struct Deck {
    cards: Vec<Card>,
    next: usize,
}

impl Deck {
    fn new(traffic: Traffic, up: bool, teids: &[u32]) -> anyhow::Result<Deck> {
        let mut draw = Draw::new(teids.len(), SEED + u64::from(up));
        let mut others = classifier::generate::Random::new(SEED);
        let cards = (0..CARDS).map(|_| {
            let (subscriber, service) = draw.next();
            let server = traffic.server(subscriber, others.below(traffic.servers()));
            let size = traffic.size(others.below(IMIX.len()));
            let user = user_packet(traffic.ue(subscriber), (up, service, subscriber), server, size)?;
            if up {
                let teid = teids[subscriber.0 as usize];
                let packet = build_gpdu(teid, Some(PduSession::Uplink { qfi: QFI }), &user)?;
                return Ok(Card { packet, expected: user, gnb: None });
            }
            let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
            let expected = build_gpdu(subscriber.gnb_teid(), container, &user)?;
            Ok(Card { packet: user, expected, gnb: Some(traffic.gnb(subscriber)) })
        });
        Ok(Deck { cards: cards.collect::<anyhow::Result<_>>()?, next: 0 })
    }

    /// Fills a batch; returns the position of its first packet.
    fn fill(&mut self, batch: &mut Vector) -> usize {
        let first = self.next;
        batch.clear();
        for at in first..first + BATCH {
            batch.push(&self.cards[at % CARDS].packet, World::peer());
        }
        self.next = (first + BATCH) % CARDS;
        first
    }
}

/// A user's UDP packet of `size` octets, or the least that its headers need.
fn user_packet(
    ue: IpAddr,
    (up, service, subscriber): (bool, bool, Subscriber),
    server: IpAddr,
    size: usize,
) -> anyhow::Result<Vec<u8>> {
    let port = if service { subscriber.service_port() } else { OTHER_PORT };
    let ends = [(ue, UE_PORT), (server, port)];
    let [from, to] = if up { ends } else { [ends[1], ends[0]] };
    let headers = if ue.is_ipv6() { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN } + 8;
    let payload: Vec<u8> = (headers..size).map(|at| (at as u8).wrapping_mul(167)).collect();
    let datagram = build_udp(from, to, &payload)?;
    Ok(match (from.0, to.0) {
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6::Header::new(from, to, protocol::UDP).build(&datagram)?,
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4::Header::new(from, to, protocol::UDP).build(&datagram)?,
        _ => anyhow::bail!("the UE and the server have different IP versions"),
    })
}

/// A pipeline with the sessions and packets of one kind of traffic.
struct Contender {
    traffic: Traffic,
    world: World,
    /// Uplink and downlink.
    decks: [Deck; 2],
    batches: Vec<Vector>,
}

impl Contender {
    fn new(traffic: Traffic, sessions: usize) -> anyhow::Result<Contender> {
        let world = World::with(sessions, traffic)?;
        let deck = |up| Deck::new(traffic, up, &world.teids);
        let decks = [deck(true)?, deck(false)?];
        let batches = (0..WINDOW).map(|_| Vector::new(BATCH, traffic.longest() + 2 * TUNNEL + 64)).collect();
        Ok(Contender { traffic, world, decks, batches })
    }

    fn fill(&mut self, direction: Direction) {
        for (at, batch) in self.batches.iter_mut().enumerate() {
            self.decks[usize::from(!direction.is_up(at))].fill(batch);
        }
    }

    fn process(&mut self, direction: Direction) {
        for (at, batch) in self.batches.iter_mut().enumerate() {
            self.world.process(direction.is_up(at), batch);
        }
    }

    /// Nanoseconds per packet.
    fn time(&mut self, direction: Direction, at_least: Duration) -> f64 {
        // The first window is not counted: it refills the caches after another contender's turn.
        self.fill(direction);
        self.process(direction);
        let (mut spent, mut packets) = (Duration::ZERO, 0);
        while spent < at_least {
            self.fill(direction);
            let start = time::now_std();
            self.process(direction);
            spent += time::now_std() - start;
            packets += WINDOW * BATCH;
        }
        spent.as_nanos() as f64 / packets as f64
    }

    /// Compares the packets that come out of some batches with those that have to.
    fn compare(&mut self) -> Tally {
        let mut tally = Tally::default();
        for at in 0..2 * COMPARED {
            let (up, batch) = (at % 2 == 0, &mut self.batches[0]);
            let deck = &mut self.decks[usize::from(!up)];
            let first = deck.fill(batch);
            let sent = self.world.process_and_show(up, batch);
            for number in 0..BATCH {
                let card = &deck.cards[(first + number) % CARDS];
                let found = sent.get(number).filter(|(bytes, peer)| {
                    *bytes == card.expected && card.gnb.is_none_or(|gnb| gnb == *peer)
                });
                let bytes = sent.get(number).map_or(&[][..], |(bytes, _)| bytes.as_slice());
                tally.count(found.ok_or("a packet, or where it goes"), bytes);
            }
        }
        tally
    }
}

/// Measures all kinds of traffic in turn.
///
/// # Errors
/// Sessions cannot be made.
pub(super) fn run(run: &mut Run) -> anyhow::Result<()> {
    let sessions = DEFAULT_SESSIONS;
    let mut contenders = Traffic::ALL
        .map(|traffic| Contender::new(traffic, sessions))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    for round in 0..run.plan.rounds {
        run.progress.say(&format!("users' packets: {sessions} sessions, round {round}"));
        for direction in Direction::ALL {
            for contender in &mut contenders {
                let name = contender.traffic.name();
                run.compared(&format!("pipeline with traffic {name}"), contender.compare());
                let ns = contender.time(direction, run.plan.sample);
                let series = format!("users.{name}.{}", direction.name());
                run.results.add(format!("{series}.mpps"), MPPS, sessions, 1e3 / ns);
                run.results.add(format!("{series}.ns"), NS, sessions, ns);
            }
        }
    }
    for contender in contenders {
        let (counted, sent) = (contender.world.counted(), contender.world.sent());
        let detail = format!("counted {counted:?}, sent {sent:?} (N6, N3)");
        run.check(&format!("usage with traffic {}", contender.traffic.name()), counted == sent, detail);
    }
    Ok(())
}

/// Fills `windows` windows of batches and processes the first `processed` of them: see [`super::instructions`].
///
/// # Errors
/// Sessions cannot be made, or packets are lost.
pub(super) fn process_some(
    traffic: Traffic,
    direction: Direction,
    sessions: usize,
    (windows, processed): (usize, usize),
) -> anyhow::Result<()> {
    let mut contender = Contender::new(traffic, sessions)?;
    for number in 0..windows {
        contender.fill(direction);
        if number < processed {
            contender.process(direction);
        }
    }
    let sent = contender.world.sent().iter().sum::<u64>();
    anyhow::ensure!(sent == packets(processed), "{sent} packets of {} came out", packets(processed));
    Ok(())
}

/// Number of packets in windows.
pub(super) fn packets(windows: usize) -> u64 {
    (windows * WINDOW * BATCH) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_traffic_passes_the_pipeline_as_it_must() {
        for traffic in Traffic::ALL {
            let mut contender = Contender::new(traffic, 200).unwrap();
            let tally = contender.compare();
            let (ok, detail) = tally.judge();
            assert!(ok && tally.compared == (2 * COMPARED * BATCH) as u64, "{traffic:?}: {detail}");
            assert_eq!(contender.world.counted(), contender.world.sent(), "{traffic:?}");
            process_some(traffic, Direction::Mixed, 10, (2, 1)).unwrap();
        }
    }

    #[test]
    fn the_mix_has_its_shares() {
        let subscribers = || (0..6400).map(Subscriber);
        let share = |is: &dyn Fn(Subscriber) -> bool| subscribers().filter(|one| is(*one)).count();
        assert_eq!(share(&|one| Traffic::Mix.ue(one).is_ipv6()), 2560);
        assert_eq!(share(&|one| Traffic::Mix.gnb(one).is_ipv6()), 1600);
        let gnbs: std::collections::BTreeSet<_> = subscribers().map(|one| Traffic::Mix.gnb(one)).collect();
        assert_eq!(gnbs.len(), 64);
        let deck = Deck::new(Traffic::Mix, false, &[1, 2, 3, 4, 5]).unwrap();
        let long = deck.cards.iter().filter(|card| card.packet.len() == 1500).count();
        assert!((CARDS / 13..CARDS / 11).contains(&long), "{long}");
    }
}
