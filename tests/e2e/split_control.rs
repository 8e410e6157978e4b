//! A gNB in parts with the whole core: UEs with real NAS and RRC, through DU and CU over F1AP, to AMF, SMF and UPF. The nodes run in
//! this process, in the namespace of the RAN; what is between them passes over its loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use net::sctp::SctpMode;
use net::time::{Duration, sleep, timeout};
use net::udp::UdpSocket;
use packet::{gtpu, ipv4, protocol, transport};
use pktio::interface::LinkConfig;
use serde_json::Value;
use simulator::Ue;
use simulator::ue::{NetworkEvent, WakeReason};
use types::PduSessionType;

use testkit::world::{LIMIT, World, establish, id, network, ping, plain, request, try_ping};

const GNB: u32 = 0x77;
/// The UE's UDP port to which the data network sends numbered packets.
const PORT: u16 = 4_242;

/// 127.0.1.LAST: the nodes' addresses among themselves.
fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 1, last).into()
}

fn link(address: IpAddr, port: u16) -> LinkConfig {
    LinkConfig { gtpu: Some(SocketAddr::new(address, port)), ..LinkConfig::default() }
}

/// NR Cell Identity of the DU with this number.
fn cell(du: u8) -> u64 {
    u64::from(GNB) << 12 | u64::from(du)
}

/// Where the DU with this number serves UEs.
fn uu(du: u8) -> SocketAddr {
    SocketAddr::new(address(10 + du), l2::uu::PORT)
}

fn cu_config(world: &World) -> cu::Config {
    let n3 = link(IpAddr::from(lab::RAN_N2), gtpu::PORT);
    let mut config = cu::Config::new(vec![link(address(1), gtpu::PORT)], Some(n3));
    config.gnb_id = GNB;
    (config.plmn, config.tac) = (world.config.plmn, world.config.tac);
    config.f1c = Some(SocketAddr::new(address(1), f1ap::PORT));
    config.n2 = Some(cu::N2 { address: world.config.n2, amf: vec![world.config.amf] });
    config.inactivity_s = None;
    config
}

fn du_config(world: &World, number: u8) -> du::Config {
    let local = address(10 + number);
    let mut config = du::Config::new(cell(number), link(local, gtpu::PORT), link(local, l2::uu::PORT));
    (config.plmn, config.tac) = (world.config.plmn, world.config.tac);
    let cu = SocketAddr::new(address(1), f1ap::PORT);
    config.f1c = Some(du::F1cConfig { local, cu, sctp: SctpMode::Auto });
    config
}

/// A gNB in parts, and the UEs' end of the radio.
struct Split {
    cu: cu::Cu,
    dus: Vec<du::Du>,
    ues: ue::Ues,
}

/// DUs, connected or not, and the UEs that camp in their cells.
async fn radio(world: &World, dus: u8) -> (Vec<du::Du>, ue::Ues) {
    let mut running = Vec::new();
    for number in 1..=dus {
        running.push(du::Du::start(&du_config(world, number), None, 1).await.unwrap());
    }
    let cells = (1..=dus).map(|du| ue::CellConfig { id: cell(du), du: uu(du) }).collect();
    let (workers, dpdk) = Default::default();
    let config = ue::Config { cells, uu: link(address(2), 0), workers, dpdk };
    (running, ue::Ues::start(&config, None).await.unwrap())
}

impl Split {
    async fn start(world: &World, dus: u8, edit: impl FnOnce(&mut cu::Config)) -> Split {
        let mut config = cu_config(world);
        edit(&mut config);
        let cu = cu::Cu::start(&config, None).await.unwrap();
        let (dus, ues) = radio(world, dus).await;
        Split { cu, dus, ues }
    }

    /// The UE of a subscriber in the cell of the DU with this number.
    fn ue(&self, world: &World, du: u8, index: u64) -> Ue {
        world.ue(&self.ues.cells().nth(usize::from(du) - 1).unwrap(), index)
    }
}

/// What a listing says about a UE.
fn of<'a>(listing: &'a Value, supi: &str) -> &'a Value {
    let found = listing.as_array().into_iter().flatten().find(|one| one["supi"] == supi);
    found.unwrap_or(&Value::Null)
}

async fn until_idle(world: &World, ue: &Ue) {
    let supi = ue.supi().to_string();
    world.until("amf", "/ues", |ues| of(ues, &supi)["cm_state"] == "CM-IDLE").await;
}

/// Serves the UE until its connection is released.
async fn released(ue: &mut Ue) {
    let release = async {
        loop {
            if let NetworkEvent::Released(_) = ue.serve().await.unwrap() {
                return;
            }
        }
    };
    timeout(LIMIT, release).await.expect("the connection is released");
    assert!(ue.registered() && !ue.connected());
}

#[test]
fn a_ue_registers_talks_and_leaves() {
    plain(async |world| {
        let split = Split::start(world, 1, |_| ()).await;
        let mut ue = split.ue(world, 1, 0);
        assert!(ue.register().await.unwrap().authenticated);
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        // A second session, with IPv6: its address comes by router advertisement.
        let mut dual = request(2);
        dual.session_type = PduSessionType::Ipv4v6;
        ue.establish_session(dual).await.unwrap();
        ue.solicit_router(id(2)).await.unwrap();
        ping(&mut ue, 2).await;
        ue.release_session(id(1)).await.unwrap();
        ping(&mut ue, 2).await;
        // The AMF knows the cell.
        assert_eq!(split.cu.status().ues, 1);
        ue.deregister(false).await.unwrap();
        assert_eq!(ue.discarded(), 0);
        let mut left = 0;
        while split.cu.status().ues > 0 {
            sleep(Duration::from_millis(20)).await;
            left += 1;
            assert!(left < 200, "the CU forgets the UE");
        }
        split.cu.shutdown().await;
    });
}

#[test]
fn an_inactive_ue_is_released_paged_and_served_in_order() {
    plain(async |world| {
        let split = Split::start(world, 1, |config| config.inactivity_s = Some(1)).await;
        let mut ue = split.ue(world, 1, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        released(&mut ue).await;
        until_idle(world, &ue).await;

        // Packets for the idle UE wait at the UPF; the UE is paged, and gets them in order.
        let bind = || net::udp::bind_std(SocketAddr::from((lab::DN, 0)), net::udp::Options::default());
        let server = UdpSocket::from_std(world.lab.dn().enter(bind).unwrap().unwrap()).unwrap();
        let to = ue.session_mut(id(1)).unwrap().ipv4.unwrap();
        for number in 0..10_u32 {
            server.send_to(&number.to_be_bytes(), SocketAddr::from((to, PORT))).await.unwrap();
        }
        let why = timeout(LIMIT, ue.idle()).await.expect("a page");
        assert_eq!(why, WakeReason::Paged);
        ue.wake_up(why).await.unwrap();
        while ue.session_mut(id(1)).unwrap().bearer.is_none() {
            ue.serve_until(net::time::now() + Duration::from_millis(20)).await.unwrap();
        }
        for expected in 0..10_u32 {
            let session = ue.session_mut(id(1)).unwrap();
            let packet = timeout(LIMIT, session.received()).await.expect("a packet in time").unwrap();
            let packet = ipv4::Packet::new(&packet).unwrap();
            assert_eq!(packet.protocol(), protocol::UDP);
            let datagram = transport::Udp::new(packet.payload()).unwrap();
            assert_eq!(datagram.payload(), expected.to_be_bytes());
        }

        // Idle again; now the UE has something to send.
        released(&mut ue).await;
        until_idle(world, &ue).await;
        ue.wake_up(WakeReason::UplinkData([id(1)].into_iter().collect())).await.unwrap();
        ping(&mut ue, 1).await;
        ue.deregister(false).await.unwrap();
    });
}

#[test]
fn several_ues_of_two_dus_at_once() {
    plain(async |world| {
        let split = Split::start(world, 2, |config| config.pdcp_sn_bits = 12).await;
        let ues = (0..8).map(|index| {
            let mut ue = split.ue(world, 1 + (index % 2) as u8, index);
            async move {
                ue.register().await.unwrap();
                establish(&mut ue, 1).await.unwrap();
                for _ in 0..5 {
                    ping(&mut ue, 1).await;
                }
                ue.deregister(false).await.unwrap();
            }
        });
        let mut tasks = tokio::task::JoinSet::new();
        ues.for_each(|ue| drop(tasks.spawn(ue)));
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    });
}

#[test]
fn packets_are_protected_as_the_smf_asks() {
    let protected = |options: &mut lab::Options| {
        options.edit = Box::new(|configuration| {
            configuration["smf"]["dnn"][0]["user_plane_security"] =
                serde_json::json!({"integrity": "required", "confidentiality": "required"});
        });
    };
    network(protected, async |world| {
        let split = Split::start(world, 1, |_| ()).await;
        let mut ue = split.ue(world, 1, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        ue.deregister(false).await.unwrap();
    });
}

/// Serves the UE until it has noticed that its connection is lost; then it asks for service until it gets it, and talks.
pub(crate) async fn recovers(ue: &mut Ue) {
    let noticed = async {
        while ue.connected() {
            let _ = ue.serve().await;
        }
    };
    timeout(LIMIT, noticed).await.expect("the UE notices");
    assert!(ue.registered());
    let mut tries = 0;
    loop {
        tries += 1;
        let why = timeout(LIMIT, ue.idle()).await.expect("a lost connection is a reason");
        match ue.wake_up(why).await {
            Ok(()) if try_ping(ue, 1).await => return,
            Ok(()) => {}
            Err(failure) => assert!(tries < 60, "no service: {failure}"),
        }
        ue.lose_connection();
        if !ue.registered() {
            ue.register().await.unwrap();
            establish(ue, 1).await.unwrap();
        }
        sleep(Duration::from_millis(500)).await;
    }
}

#[test]
fn a_du_is_lost_and_comes_back() {
    plain(async |world| {
        let mut split = Split::start(world, 2, |_| ()).await;
        let (mut ue, mut bystander) = (split.ue(world, 1, 0), split.ue(world, 2, 1));
        for ue in [&mut ue, &mut bystander] {
            ue.register().await.unwrap();
            establish(ue, 1).await.unwrap();
            ping(ue, 1).await;
        }
        drop(split.dus.remove(0));
        // The core learns of it; the UEs of the other DU do not.
        until_idle(world, &ue).await;
        ping(&mut bystander, 1).await;
        split.dus.insert(0, du::Du::start(&du_config(world, 1), None, 2).await.unwrap());
        ue.lose_connection();
        let mut tries = 0;
        while ue.service_request(nas::ServiceType::Data, [id(1)].into_iter().collect()).await.is_err() {
            tries += 1;
            assert!(tries < 20, "no service after the DU is back");
            ue.lose_connection();
            sleep(Duration::from_millis(500)).await;
        }
        ping(&mut ue, 1).await;
        ping(&mut bystander, 1).await;
    });
}

#[test]
fn a_cu_is_killed_and_comes_back() {
    plain(async |world| {
        // A CU of its own runtime, which ends without a word to anybody.
        let runtime = world.lab.ran().runtime(1).unwrap();
        let config = cu_config(world);
        let cu = runtime.spawn(async move { cu::Cu::start(&config, None).await.unwrap() }).await.unwrap();
        let (dus, ues) = radio(world, 1).await;
        let split = Split { cu, dus, ues };
        let mut ue = split.ue(world, 1, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        let Split { cu, dus, ues } = split;
        runtime.shutdown_background();
        drop(cu);
        // The AMF learns of it by NG Setup, the DU because F1-C is dead; it connects again by itself, and its UE asks for service.
        let cu = cu::Cu::start(&cu_config(world), None).await.unwrap();
        recovers(&mut ue).await;
        ping(&mut ue, 1).await;
        drop((cu, dus, ues));
    });
}

#[test]
fn a_run_with_programs_in_namespaces() {
    plain(async |world| {
        let mut cu = cu_config(world);
        cu.inactivity_s = Some(1);
        let cu = cu::Cu::start(&cu, None).await.unwrap();
        let du = du::Du::start(&du_config(world, 1), None, 1).await.unwrap();
        let (workers, dpdk) = Default::default();
        let cells = vec![ue::CellConfig { id: cell(1), du: uu(1) }];
        let mut config = world.config.clone();
        config.split = Some(ue::Config { cells, uu: link(address(2), 0), workers, dpdk });
        (config.tun, config.count) = (true, 2);
        let (events, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let sink = move |event: &simulator::Event| drop(events.send(event.clone()));
        let run = tokio::spawn(simulator::run_with(config, sink, async move { drop(stopped.await) }));
        let mut next = async || timeout(LIMIT, heard.recv()).await.expect("an event in time").unwrap();
        let mut spaces = Vec::new();
        loop {
            match next().await {
                simulator::Event::Cell { cell, .. } => assert_eq!(cell, "000077001"),
                simulator::Event::Session { netns, .. } => spaces.push(netns.unwrap()),
                simulator::Event::Ready(_) => break,
                simulator::Event::Failed { detail, .. } => panic!("{detail}"),
                _ => {}
            }
        }
        assert_eq!(spaces.len(), 2);
        // The UEs become idle; what a program then sends waits, wakes its UE up, and is answered.
        while !matches!(next().await, simulator::Event::Idle { .. }) {}
        for space in spaces {
            let netns = net::netns::NetNs::from_path(&space).unwrap();
            let output = net::process::Command::new("ping")
                .args(["-c", "3", "-i", "0.2", "-W", "5", &lab::DN.to_string()])
                .namespace(&netns)
                .output(Duration::from_secs(30))
                .await
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        }
        drop(stop);
        let totals = timeout(LIMIT, run).await.unwrap().unwrap().unwrap();
        assert_eq!((totals.registered, totals.failed, totals.deregistered), (2, 0, 2));
        assert!(totals.services >= 1 && totals.uplink_packets >= 6, "{totals:?}");
        drop((cu, du));
    });
}
