//! VLANs and QinQ by AF_XDP, end to end: N3 and N6 of one device with addresses that only the UPF knows, gNBs and servers
//! behind one veth pair, and every frame compared octet by octet where it arrives.

use std::net::IpAddr;
use std::process::Command;

use crate::host::Running;
use crate::lab::*;
use crate::support::*;
use crate::wire::*;
use net::link::Links;
use net::netns::NetNs;
use packet::ethernet;
use packet::gtpu::{self, PduSession, Signalling};
use pktio::af_xdp::device::Device;
use pktio::interface::config::MOST_ON_AF_XDP;

/// Sizes of users' packets, up to the MTU of the data network.
const SIZES: [usize; 12] = [48, 64, 65, 127, 128, 200, 512, 576, 1000, 1279, 1399, 1400];
/// Numbers of the networks of N3 and N6.
const ACCESS: u8 = 100;
const CORE: u8 = 102;
/// Hosts of N3 that are gNBs, and of N6: a server and the router.
const GNBS: [u8; 3] = [2, 3, 4];
const SERVER: u8 = 2;
const ROUTER: u8 = 9;

/// The VLANs of N3 and N6, whether N3's tunnels are in IPv6, and the number of workers.
struct Case {
    n3: &'static str,
    n6: &'static str,
    ipv6: bool,
    workers: u32,
}

impl Case {
    fn config(&self) -> upf::Config {
        let gtpu = if self.ipv6 { "[fd00:100::1]:2152" } else { "10.100.0.1:2152" };
        let text = format!(
            r#"{{"pfcp": "127.0.0.7:8805", "smf": ["127.0.0.0/8"], "restoration_s": 0,
                "workers": {{"count": {}}}, "interfaces": [
                {{"name": "access", "role": "n3", "network_instance": "ran", "gtpu": "{gtpu}",
                    "backend": "af_xdp", "device": "up0", {}
                    "addresses": ["10.100.0.1/24", "fd00:100::1/64"]}},
                {{"name": "wan", "role": "n6", "backend": "af_xdp", "device": "up0", {}
                    "addresses": ["10.102.0.1/24", "fd00:102::1/64"],
                    "gateways": ["10.102.0.9", "fd00:102::9"]}}],
                "dnn": [{{"name": "internet", "interfaces": ["wan"],
                    "ue_pool": {{"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"}}}}]}}"#,
            self.workers, self.n3, self.n6
        );
        let config: upf::Config = serde_json::from_str(&text).unwrap();
        config.validate().unwrap();
        config
    }
}

/// A namespace for the UPF with the device `up0`, whose far end is `far0` in another one. The kernel has an address of its own
/// on the device, without VLAN.
struct Net {
    core: NetNs,
    far: NetNs,
    runtime: tokio::runtime::Runtime,
}

impl Net {
    fn new(queues: u32) -> Net {
        let (core, far) = (NetNs::new().expect("tests run with CAP_SYS_ADMIN"), NetNs::new().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let net = Net { core, far, runtime };
        net.connect(queues);
        net
    }

    /// Makes the device, whose driver may take VLAN tags off, with so many queues.
    fn connect(&self, queues: u32) {
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        let arguments = format!("link add up0 {queues} type veth peer name far0 {queues}");
        let mut command = Command::new("ip");
        command.args(arguments.split(' '));
        let ran = self.core.enter(|| command.status().expect("ip is installed"));
        assert!(ran.unwrap().success(), "ip {arguments}");
        self.runtime.block_on(async {
            let links = Links::in_ns(&self.core).unwrap();
            links.move_to("far0", &self.far).await.unwrap();
            links.add_address("up0", cidr("10.9.0.1/24")).await.unwrap();
            links.up("up0").await.unwrap();
            Links::in_ns(&self.far).unwrap().up("far0").await.unwrap();
        });
    }

    fn takes_tags_off(&self) -> bool {
        self.core.enter(|| Device::find("up0").unwrap().takes_tags_off()).unwrap()
    }

    fn disconnect(&self) {
        self.runtime.block_on(async { Links::in_ns(&self.core).unwrap().delete("up0").await }).unwrap();
    }

    /// The hosts of a configuration: gNBs, the server, the router.
    fn site(&self, config: &upf::Config) -> Site {
        let wire = Wire::open(&self.far, "far0");
        let mac = self.core.enter(|| Device::find("up0").unwrap().mac).unwrap();
        let [n3, n6] = [0, 1].map(|at| config.interfaces[at].link.tags());
        let gnbs = GNBS.iter().map(|host| Host::new(ACCESS, *host, n3, mac));
        let network = [SERVER, ROUTER].map(|host| Host::new(CORE, host, n6, mac));
        Site { wire, hosts: gnbs.chain(network).collect() }
    }
}

/// A UE with its session.
struct Ue {
    number: u8,
    seid: u64,
    teid: u32,
}

impl Ue {
    fn address(&self, ipv6: bool) -> IpAddr {
        let (v4, v6) = ue_addresses(self.number);
        if ipv6 { v6.into() } else { v4.into() }
    }

    /// The packet in an uplink tunnel.
    fn up(&self, gnb: &Host, case: &Case, user: &[u8]) -> Vec<u8> {
        let gpdu = gtpu::build_gpdu(self.teid, Some(PduSession::Uplink { qfi: QFI }), user).unwrap();
        outer(gnb.address(case.ipv6), gnb.upf(case.ipv6), &gpdu, false)
    }

    /// The packet in a downlink tunnel.
    fn down(&self, gnb: &Host, case: &Case, user: &[u8]) -> Vec<u8> {
        let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
        let gpdu = gtpu::build_gpdu(GNB_TEID, container, user).unwrap();
        outer(gnb.upf(case.ipv6), gnb.address(case.ipv6), &gpdu, true)
    }
}

/// Content of a user's datagram, so that its packet has `size` octets.
fn content(size: usize, ipv6: bool, round: u8) -> Vec<u8> {
    let header = if ipv6 { 48 } else { 28 };
    (header..size).map(|i| (i as u8).wrapping_mul(7) ^ round ^ (i >> 8) as u8).collect()
}

/// All sizes of both IP versions, in both directions, for all UEs; to the server, and to a host behind the router.
fn exchange(site: &Site, case: &Case, ues: &[Ue], round: u8) {
    let [server, router] = [&site.hosts[GNBS.len()], &site.hosts[GNBS.len() + 1]];
    for (at, ue) in ues.iter().enumerate() {
        let gnb = &site.hosts[at];
        for ipv6 in [false, true] {
            let far: IpAddr = if ipv6 { "2001:db8::8".parse().unwrap() } else { [8, 8, 8, 8].into() };
            for (to, by) in [(server.address(ipv6), server), (far, router)] {
                let user = |from, to| SIZES.map(|size| udp(from, to, &content(size, ipv6, round)));
                let (up, down) = (user(ue.address(ipv6), to), user(to, ue.address(ipv6)));
                let what = |way: &str| format!("{way}, UE {}, {to}, round {round}", ue.number);
                let sent: Vec<_> = up.iter().map(|user| gnb.sent(&ue.up(gnb, case, user))).collect();
                let expected: Vec<_> = up.iter().map(|user| by.received(user)).collect();
                site.exchange(&what("uplink"), &sent, &expected);
                let sent: Vec<_> = down.iter().map(|user| by.sent(user)).collect();
                let expected: Vec<_> =
                    down.iter().map(|user| gnb.received(&ue.down(gnb, case, user))).collect();
                site.exchange(&what("downlink"), &sent, &expected);
            }
        }
    }
}

/// A UPF that runs, and what is around it.
struct World {
    net: Net,
    running: Running,
    site: Site,
    ues: Vec<Ue>,
}

impl World {
    /// Starts a UPF, and a session behind each gNB.
    fn new(case: &Case) -> World {
        let net = Net::new(case.workers);
        let config = case.config();
        let takes_tags_off = net.takes_tags_off();
        let mut running = Running::start(&net.core, &config);
        assert!(takes_tags_off && !net.takes_tags_off(), "switched off");
        let site = net.site(&config);
        let establish = |(number, gnb): (u8, &Host)| {
            let instances = ["ran", "internet"];
            let request = session_behind(number.into(), number, instances, gnb.address(case.ipv6));
            let (seid, teid) = running.smf.establish_as(request);
            Ue { number, seid, teid }
        };
        let ues = (2..).zip(&site.hosts[..GNBS.len()]).map(establish).collect();
        World { net, running, site, ues }
    }

    /// Replaces the device by one with another link-layer address.
    fn replace_device(&mut self, case: &Case, queues: u32) {
        self.net.disconnect();
        self.net.connect(queues);
        self.site = self.net.site(&case.config());
    }
}

/// A network on one device.
fn serve(case: &Case) {
    let mut world = World::new(case);
    let World { site, ues, .. } = &mut world;
    // The first packet to a host waits until it has said its link-layer address.
    let (gnb, server) = (&site.hosts[0], &site.hosts[GNBS.len()]);
    let user = udp(ues[0].address(false), server.address(false), b"first");
    site.exchange("first", &[gnb.sent(&ues[0].up(gnb, case, &user))], &[server.received(&user)]);
    site.ask();
    for round in 0..3 {
        exchange(site, case, ues, round);
    }
    the_kernel_has_the_rest(site, &case.config());
    a_neighbour_may_announce_another_address(site, case, &ues[0]);
    priority_bits_alone_are_no_vlan(site, case, &ues[0]);

    world.replace_device(case, case.workers);
    let World { site, ues, running, net } = world;
    site.ask();
    assert!(!net.takes_tags_off(), "switched off again");
    for round in 10..12 {
        exchange(&site, case, &ues, round);
    }

    // The device is given another link-layer address.
    let mac = [2, 0, 0, 0, 0x77, 1];
    let change =
        || Command::new("ip").args("link set up0 address 02:00:00:00:77:01".split(' ')).status().unwrap();
    assert!(net.core.enter(change).unwrap().success());
    let mut site = site;
    site.hosts.iter_mut().for_each(|host| host.upf_mac = mac);
    site.ask();
    // Each worker sees it within a second.
    net::time::sleep_thread(std::time::Duration::from_millis(1200));
    exchange(&site, case, &ues, 13);

    // What the N4 task sends leaves through a worker.
    let gnb = &site.hosts[0];
    let [upf, own] = [gnb.upf(case.ipv6), gnb.address(case.ipv6)];
    let echo = outer(own, upf, &Signalling::EchoRequest { sequence: 5 }.build(), false);
    let answer = outer(upf, own, &Signalling::EchoResponse { sequence: 5 }.build(), true);
    site.exchange("Echo Response", &[gnb.sent(&echo)], &[gnb.received(&answer)]);
    let Running { upf: own_upf, mut smf, core } = running;
    smf.modify(ues[0].seid, path_switch(5, site.hosts[1].address(case.ipv6)));
    let marker = Signalling::EndMarker { teid: GNB_TEID, pdu_session: None }.build();
    site.exchange("End Marker", &[], &[gnb.received(&outer(upf, own, &marker, true))]);

    let stats = own_upf.handle().stats();
    for name in ["access", "wan"] {
        for way in ["received", "sent"] {
            let packets = stats["interfaces"][name][way]["packets"].as_u64().unwrap();
            assert!(packets >= 5 * 4 * (SIZES.len() * GNBS.len()) as u64, "{name} {way}: {stats}");
        }
    }
    let lost = stats["drops"].as_object().unwrap();
    // Only while there was no device.
    assert!(lost.keys().all(|reason| reason == "tx_error"), "{stats}");
    core.block_on(async move { own_upf.stop().await });
}

/// Questions in another VLAN, or for the kernel's address, and packets to addresses of nobody are not the UPF's.
fn the_kernel_has_the_rest(site: &Site, config: &upf::Config) {
    let [n3, n6] = [0, 1].map(|at| config.interfaces[at].link.tags());
    let (gnb, server) = (&site.hosts[0], &site.hosts[GNBS.len()]);
    let mut others =
        vec![vec![0x81, 0, 1, 44], vec![0x88, 0xA8, 0, 100], vec![0x81, 0, 0, 100, 0x81, 0, 0, 201]];
    if n3 != n6 {
        others.extend([n3, n6].map(|tags| tags.octets().to_vec()));
    }
    for tags in others {
        for host in [gnb, server].into_iter().filter(|host| host.tags != tags) {
            let elsewhere = Host { tags: tags.clone(), ..host.clone() };
            for ipv6 in [false, true] {
                let (kind, to, asked) = question(host.mac, host.address(ipv6), host.upf(ipv6));
                site.wire.send(&elsewhere.frame(to, host.mac, kind, &asked));
                let stray = udp(host.address(ipv6), host.upf(ipv6), b"nobody's");
                site.wire.send(&elsewhere.sent(&stray));
            }
        }
    }
    let came: Vec<_> = site.drain().into_iter().filter(|frame| !is_of_kernel(frame)).collect();
    assert!(came.is_empty(), "{came:02x?}");

    // The kernel answers for its own address, which has no VLAN.
    let kernel: IpAddr = [10, 9, 0, 1].into();
    let host = Host { tags: Vec::new(), v4: [10, 9, 0, 2].into(), ..gnb.clone() };
    let (kind, to, asked) = question(host.mac, host.v4.into(), kernel);
    let (_, answer) = answer(host.upf_mac, kernel, (host.mac, host.v4.into()));
    let question = host.frame(to, host.mac, kind, &asked);
    site.until("the kernel", &question, &host.frame(host.mac, host.upf_mac, kind, &answer));
    site.drain();
}

/// A server goes to another machine, and tells all others in its VLAN so. Without VLAN that is for the kernel's neighbours.
fn a_neighbour_may_announce_another_address(site: &mut Site, case: &Case, ue: &Ue) {
    let server = &mut site.hosts[GNBS.len()];
    if server.tags.is_empty() {
        return;
    }
    server.mac[5] ^= 0x80;
    let (gnb, server) = (&site.hosts[0], &site.hosts[GNBS.len()]);
    let message = arp(1, (server.mac, server.v4), ([0; 6], server.v4));
    site.wire.send(&server.frame([0xFF; 6], server.mac, ethernet::ARP, &message));
    let message = discovery(136, 0x20, (server.v6, "ff02::1".parse().unwrap()), server.v6, server.mac);
    site.wire.send(&server.frame([0x33, 0x33, 0, 0, 0, 1], server.mac, ethernet::IPV6, &message));
    for ipv6 in [false, true] {
        let user = udp(ue.address(ipv6), server.address(ipv6), b"to the other machine");
        let up = gnb.sent(&ue.up(gnb, case, &user));
        site.until("announced", &up, &server.received(&user));
    }
    site.drain();
}

/// A frame may have one tag more, with the identifier 0.
fn priority_bits_alone_are_no_vlan(site: &Site, case: &Case, ue: &Ue) {
    let (gnb, server) = (&site.hosts[0], &site.hosts[GNBS.len()]);
    for size in SIZES {
        let up = udp(ue.address(true), server.address(true), &content(size, true, 70));
        let down = udp(server.address(true), ue.address(true), &content(size, true, 71));
        for tag in [[0x81, 0, 0xE0, 0], [0x88, 0xA8, 0x20, 0]] {
            let with = |host: &Host, mut frame: Vec<u8>, at: usize| {
                frame.splice(at..at, tag);
                assert!(at <= 12 + host.tags.len());
                frame
            };
            for behind in [false, true] {
                let at = |host: &Host| 12 + if behind { host.tags.len() } else { 0 };
                let frame = with(gnb, gnb.sent(&ue.up(gnb, case, &up)), at(gnb));
                site.exchange("uplink with priority", &[frame], &[server.received(&up)]);
                let frame = with(server, server.sent(&down), at(server));
                site.exchange(
                    "downlink with priority",
                    &[frame],
                    &[gnb.received(&ue.down(gnb, case, &down))],
                );
            }
        }
    }
}

const ONE: Case = Case { n3: "", n6: "", ipv6: false, workers: 1 };

/// UP-1, UP-2.
#[test]
fn each_interface_has_a_vlan() {
    serve(&Case { n3: r#""vlan": 100,"#, n6: r#""vlan": 200,"#, ..ONE });
}

#[test]
fn without_vlan_beside_two_tags() {
    serve(&Case { n6: r#""vlan": [100, 200],"#, ipv6: true, ..ONE });
    serve(&Case { n3: r#""vlan": [100, 200],"#, ..ONE });
}

/// Equal identifiers with other protocols are other VLANs.
#[test]
fn protocols_tell_vlans_apart() {
    let n3 = r#""vlan": [100, 200], "vlan_protocol": "0x9100","#;
    serve(&Case { n3, n6: r#""vlan": [100, 200],"#, ..ONE });
    let n3 = r#""vlan": [100, 200], "vlan_protocol": "802.1q","#;
    serve(&Case { n3, n6: r#""vlan": 100, "vlan_protocol": "0x9100","#, ipv6: true, ..ONE });
    let n3 = r#""vlan": 7, "vlan_protocol": "802.1ad","#;
    serve(&Case { n3, n6: r#""vlan": 7,"#, ipv6: true, ..ONE });
}

/// One VLAN, or none: the addresses tell the interfaces apart.
#[test]
fn one_vlan_for_both_interfaces() {
    serve(&Case { n3: r#""vlan": [7, 8],"#, n6: r#""vlan": [7, 8],"#, ..ONE });
    serve(&Case { ipv6: true, ..ONE });
}

/// Each worker has a queue; packets and answers of neighbours come to any of them.
#[test]
fn workers_share_vlans() {
    serve(&Case { n3: r#""vlan": [100, 200],"#, n6: r#""vlan": 100,"#, workers: 2, ..ONE });
}

/// A device that comes back with fewer queues than there are workers would lose the sessions of those without one. It is not
/// served until it has enough.
#[test]
fn a_device_may_come_back_with_fewer_queues() {
    let case = Case { n3: r#""vlan": 100,"#, workers: 2, ..ONE };
    let mut world = World::new(&case);
    world.site.ask();
    exchange(&world.site, &case, &world.ues, 1);
    for queues in [1, 2, 1, 3] {
        world.replace_device(&case, queues);
        let World { site, ues, .. } = &world;
        if queues < case.workers {
            // Longer than the UPF waits before it looks again.
            let start = net::time::Instant::now();
            while start.elapsed() < std::time::Duration::from_millis(2500) {
                for host in &site.hosts {
                    let (kind, to, asked) = question(host.mac, host.v4.into(), host.upf_v4.into());
                    site.wire.send(&host.frame(to, host.mac, kind, &asked));
                }
                let came: Vec<_> = site.drain().into_iter().filter(|frame| !is_of_kernel(frame)).collect();
                assert!(came.is_empty(), "{came:02x?}");
            }
        } else {
            site.ask();
            exchange(site, &case, ues, queues as u8);
        }
    }
    world.running.stop();
}

/// As many interfaces on one device as the kernel lets wait for it: some with the kernel's addresses, some with their own.
#[test]
fn many_interfaces_share_a_device() {
    const OF_KERNEL: u8 = 48;
    let interface = |number: u8| {
        let more = match number {
            ..OF_KERNEL => String::new(),
            _ => format!(r#", "vlan": {number}, "addresses": ["10.{number}.0.1/24"]"#),
        };
        format!(
            r#"{{"name": "i{number}", "role": "n3", "network_instance": "i{number}", "gtpu": "10.{number}.0.1:2152",
                "backend": "af_xdp", "device": "up0"{more}}}"#
        )
    };
    let config = |count: u8| -> upf::Config {
        let interfaces: Vec<_> = (0..count).map(interface).collect();
        let text = format!(
            r#"{{"pfcp": "127.0.0.7:8805", "smf": ["127.0.0.0/8"], "restoration_s": 0, "interfaces": [{}],
                "dnn": [{{"name": "internet", "tun": "gw0", "ue_pool": {{"ipv4": "10.245.0.0/16"}}}}]}}"#,
            interfaces.join(", ")
        );
        serde_json::from_str(&text).unwrap()
    };
    let most = MOST_ON_AF_XDP as u8;
    let error = config(most + 1).validate().unwrap_err().to_string();
    assert!(error.contains("upf.interfaces i50: up0 has 50 interfaces already"), "{error}");
    let config = config(most);
    config.validate().unwrap();

    let net = Net::new(1);
    net.runtime.block_on(async {
        let links = Links::in_ns(&net.core).unwrap();
        for number in (0..OF_KERNEL).filter(|number| *number != 9) {
            links.add_address("up0", cidr(&format!("10.{number}.0.1/24"))).await.unwrap();
        }
    });
    let running = Running::start(&net.core, &config);
    let wire = Wire::open(&net.far, "far0");
    let mac = net.core.enter(|| Device::find("up0").unwrap().mac).unwrap();
    let hosts =
        config.interfaces.iter().zip(0..).map(|(own, number)| Host::new(number, 2, own.link.tags(), mac));
    let site = Site { wire, hosts: hosts.collect() };
    for host in &site.hosts {
        let [upf, own] = [host.upf(false), host.address(false)];
        let echo = outer(own, upf, &Signalling::EchoRequest { sequence: 5 }.build(), false);
        let answer = outer(upf, own, &Signalling::EchoResponse { sequence: 5 }.build(), true);
        // The first answers may go by way of the kernel, which has to ask for the host.
        site.until(&format!("{own}"), &host.sent(&echo), &host.received(&answer));
    }
    running.stop();
}
