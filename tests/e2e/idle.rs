//! Idle UEs, end to end: downlink data wakes them, the waiting packets arrive first and in order; so
//! does uplink data.

use std::net::SocketAddr;

use nas::{Message, PsiSet, RegistrationType, ServiceType};
use net::time::{Duration, sleep, timeout};
use net::udp::UdpSocket;
use ngap::Cause;
use ngap::cause::RadioNetwork;
use packet::{ipv4, protocol, transport};
use serde_json::Value;
use simulator::Ue;
use simulator::ue::{NetworkEvent, WakeReason};

use testkit::world::{LIMIT, World, establish, id, ping, plain};

/// The UE's UDP port to which the data network sends numbered packets.
const PORT: u16 = 4_242;
/// Packets that wait while the UE is idle, fewer than a UPF keeps for a session.
const WAITING: u32 = 24;
/// Packets sent when the UE has its connection again, while the waiting packets are being delivered.
const FOLLOWING: u32 = 2_000;

/// A socket of the data network.
fn data_network(world: &World) -> UdpSocket {
    let bind = || net::udp::bind_std(SocketAddr::from((lab::DN, 0)), net::udp::Options::default());
    UdpSocket::from_std(world.lab.dn().enter(bind).unwrap().unwrap()).unwrap()
}

/// The gNB asks for the release of an inactive UE's connection; it is idle for the AMF afterwards.
async fn become_idle(world: &World, ue: &mut Ue) {
    let inactivity = Cause::RadioNetwork(RadioNetwork::UserInactivity);
    ue.connection().unwrap().request_release(inactivity).await.unwrap();
    let occurred = timeout(LIMIT, ue.serve()).await.unwrap().unwrap();
    assert_eq!(occurred, NetworkEvent::Released(inactivity.into()));
    let supi = ue.supi().to_string();
    world.until("amf", "/ues", |ues| of(ues, &supi)["cm_state"] == "CM-IDLE").await;
    let down = |sessions: &Value| of(sessions, &supi)["user_plane"] != "activated";
    world.until("smf", "/sessions", down).await;
}

/// KgNB of the connection, the same on both sides.
fn k_gnb(ue: &mut Ue) -> [u8; 32] {
    let derived = *ue.k_gnb().expect("the UE has a security context").expose();
    let given = ue.connection().unwrap().k_gnb().expect("the AMF has set up the context");
    assert_eq!(*given.expose(), derived);
    derived
}

#[test]
fn ue_and_gnb_have_the_same_key_on_every_connection() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue(&gnb, 0);
        // After an authentication the key is of SECURITY MODE COMPLETE, else of the connection's first message.
        assert!(ue.register().await.unwrap().authenticated);
        establish(&mut ue, 1).await.unwrap();
        let mut keys = vec![k_gnb(&mut ue)];
        become_idle(world, &mut ue).await;
        ue.service_request(ServiceType::Data, [id(1)].into_iter().collect()).await.unwrap();
        keys.push(k_gnb(&mut ue));
        become_idle(world, &mut ue).await;
        ue.update_registration(RegistrationType::PeriodicUpdating, [id(1)].into_iter().collect())
            .await
            .unwrap();
        while ue.session_mut(id(1)).unwrap().bearer.is_none() {
            ue.serve_until(net::time::now() + Duration::from_millis(20)).await.unwrap();
        }
        keys.push(k_gnb(&mut ue));
        ue.deregister(false).await.unwrap();
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        keys.push(k_gnb(&mut ue));
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all, "no key is used on two connections");
    });
}

/// What a listing says about a UE.
fn of<'a>(listing: &'a Value, supi: &str) -> &'a Value {
    let found = listing.as_array().into_iter().flatten().find(|one| one["supi"] == supi);
    found.unwrap_or(&Value::Null)
}

/// The number in a packet of the data network to the UE's port; `None` for any other packet.
fn number(packet: &[u8]) -> Option<u32> {
    let packet = ipv4::Packet::new(packet).ok()?;
    if packet.protocol() != protocol::UDP {
        return None;
    }
    let datagram = transport::Udp::new(packet.payload()).ok()?;
    let ours = datagram.destination_port() == PORT;
    ours.then(|| u32::from_be_bytes(datagram.payload()[..4].try_into().unwrap()))
}

/// The numbers of the next `count` packets that the UE receives through session 1.
async fn numbers(ue: &mut Ue, count: u32) -> Vec<u32> {
    let mut numbers = Vec::new();
    let session = ue.session_mut(id(1)).unwrap();
    let all = async {
        while numbers.len() < count as usize {
            numbers.extend(session.received().await.as_deref().and_then(number));
        }
    };
    let complete = timeout(LIMIT, all).await.is_ok();
    assert!(complete, "{} of {count} packets arrived: {numbers:?}", numbers.len());
    numbers
}

/// A datagram that contains its number; its length depends on the number.
fn numbered(number: u32) -> Vec<u8> {
    let mut datagram = number.to_be_bytes().to_vec();
    datagram.resize(4 + (number as usize * 37) % 1_200, number as u8);
    datagram
}

/// All of TS 23.502 §4.2.3.3: the UPF keeps and reports downlink data, the SMF asks the AMF, the AMF
/// pages, the UE asks for service, and everything arrives in order.
#[test]
fn downlink_data_for_an_idle_ue_pages_it_and_arrives_in_order() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        let mut ue = world.ue(&gnb, 0);
        ue.record();
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        let socket = data_network(world);
        let to = SocketAddr::from((ue.session_mut(id(1)).unwrap().ipv4.unwrap(), PORT));
        let mut next = 0;
        for round in 0..3 {
            become_idle(world, &mut ue).await;
            let guti = ue.guti().unwrap();
            let first = next;
            for number in first..first + WAITING {
                socket.send_to(&numbered(number), to).await.unwrap();
            }
            assert_eq!(timeout(LIMIT, ue.idle()).await.unwrap(), WakeReason::Paged);
            let served = ue.service_request(ServiceType::MobileTerminated, PsiSet::default()).await.unwrap();
            assert_eq!(served.accept.pdu_session_status, Some([id(1)].into_iter().collect()));
            // The radio resources are set up next. More packets arrive while the waiting ones are
            // delivered.
            let up = async {
                while ue.session_mut(id(1)).unwrap().bearer.is_none() {
                    let soon = net::time::now() + Duration::from_millis(5);
                    ue.serve_until(soon).await.unwrap();
                }
            };
            timeout(LIMIT, up).await.unwrap();
            let follow = async {
                for number in first + WAITING..first + WAITING + FOLLOWING {
                    socket.send_to(&numbered(number), to).await.unwrap();
                    if number % 16 == 0 {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            };
            next = first + WAITING + FOLLOWING;
            let (received, ()) = tokio::join!(numbers(&mut ue, WAITING + FOLLOWING), follow);
            assert_eq!(
                received,
                (first..next).collect::<Vec<_>>(),
                "round {round}: in order, nothing lost or twice"
            );
            // TS 33.501 §6.12.3: a 5G-GUTI that was paged with is replaced.
            let renewed = async {
                while ue.guti() == Some(guti) {
                    let soon = net::time::now() + Duration::from_millis(5);
                    ue.serve_until(soon).await.unwrap();
                }
            };
            timeout(LIMIT, renewed).await.expect("a new 5G-GUTI");
            ping(&mut ue, 1).await;
        }
        let requests =
            ue.recorded().iter().filter(|one| matches!(one.message, Some(Message::ServiceRequest(_))));
        assert_eq!(requests.count(), 3, "one service request for each time it was idle");
        assert_eq!(ue.discarded(), 0);
        world.bystander_is_well().await;
    });
}

/// The UE has uplink data: service request with uplink data status, and the packets of both directions
/// flow.
#[test]
fn an_idle_ue_comes_back_with_uplink_data_and_updates_its_registration() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        for value in [1, 2] {
            establish(&mut ue, value).await.unwrap();
        }
        become_idle(world, &mut ue).await;
        let first: PsiSet = [id(1)].into_iter().collect();
        ue.wake_up(WakeReason::UplinkData(first)).await.unwrap();
        assert!(ue.session_mut(id(2)).unwrap().bearer.is_none(), "only what was asked for");
        ping(&mut ue, 1).await;
        // Connected, it asks for the other session.
        ue.service_request(ServiceType::Data, [id(2)].into_iter().collect()).await.unwrap();
        ping(&mut ue, 2).await;

        // A periodic update activates no session, releases its connection and keeps the sessions.
        become_idle(world, &mut ue).await;
        let before = ue.guti();
        ue.wake_up(WakeReason::PeriodicUpdate).await.unwrap();
        assert_ne!(ue.guti(), before);
        let occurred = timeout(LIMIT, ue.serve()).await.unwrap().unwrap();
        assert!(matches!(occurred, NetworkEvent::Released(_)), "{occurred:?}");
        assert_eq!(ue.sessions().count(), 2);

        // The UE registers at another gNB, with the user plane of one session.
        let other = world.gnb(1).await;
        ue.camp(other);
        let updated = ue.update_registration(RegistrationType::MobilityUpdating, first).await.unwrap();
        assert!(!updated.authenticated);
        let up = async {
            while ue.session_mut(id(1)).unwrap().bearer.is_none() {
                ue.serve_until(net::time::now() + Duration::from_millis(5)).await.unwrap();
            }
        };
        timeout(LIMIT, up).await.unwrap();
        ping(&mut ue, 1).await;
        // The UE removes a session that the network no longer has: the operator releases it while the UE is idle,
        // for which the UE is not paged. The accept of the next service request informs the UE.
        become_idle(world, &mut ue).await;
        let supi = ue.supi().to_string();
        let release = world.lab.godwit(&["session", "release", &supi, "1"]);
        let output = release.output(LIMIT).await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let second: PsiSet = [id(2)].into_iter().collect();
        let one_left = |ues: &Value| of(ues, &supi)["sessions"].as_array().is_some_and(|all| all.len() == 1);
        world.until("amf", "/ues", one_left).await;
        assert_eq!(ue.sessions().count(), 2, "the UE does not know yet");
        let served = ue.service_request(ServiceType::Data, second).await.unwrap();
        assert_eq!(served.accept.pdu_session_status, Some(second));
        assert!(ue.session_mut(id(1)).is_none());
        ping(&mut ue, 2).await;
        become_idle(world, &mut ue).await;
        ue.deregister(false).await.unwrap();
        world.until("amf", "/ues", |ues| *ues == serde_json::json!([])).await;
    });
}

/// A UE out of coverage: packets that wait are dropped when nobody answers, and it works again when it comes back.
#[test]
fn a_ue_that_does_not_answer_its_pages_works_again_when_it_comes_back() {
    let quick = |options: &mut lab::Options| {
        options.edit =
            Box::new(|configuration| configuration["amf"]["timers"] = serde_json::json!({"t3513_ms": 100}));
    };
    testkit::world::network(quick, async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue_with(&gnb, 0, |config| config.answers_paging = false);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        become_idle(world, &mut ue).await;
        let socket = data_network(world);
        let to = SocketAddr::from((ue.session_mut(id(1)).unwrap().ipv4.unwrap(), PORT));
        socket.send_to(&numbered(1), to).await.unwrap();
        for _ in 0..3 {
            let paged = timeout(LIMIT, gnb.interface_message()).await.unwrap();
            assert!(matches!(paged, Some(ngap::Pdu::Paging(_))), "{paged:?}");
        }
        let given_up = |samples: &Value| samples.to_string().contains("not_reachable");
        world.until("amf", "/procedures", given_up).await;
        sleep(Duration::from_millis(200)).await;
        ue.wake_up(WakeReason::UplinkData([id(1)].into_iter().collect())).await.unwrap();
        ping(&mut ue, 1).await;
        socket.send_to(&numbered(2), to).await.unwrap();
        assert_eq!(numbers(&mut ue, 1).await, [2], "what waited was dropped when nobody answered");
    });
}

/// `godwit ran` lets its UEs become idle; programs in their namespaces and in the data network notice nothing.
#[test]
fn simulated_ues_sleep_and_wake_up_for_both_directions() {
    plain(async |world| {
        let options = lab::SimulatorOptions {
            ues: 2,
            session_type: "IPV4".to_owned(),
            arguments: vec!["--inactivity".to_owned(), "0.5".to_owned()],
            ..lab::SimulatorOptions::default()
        };
        let mut simulator = world.lab.simulate(&options).unwrap();
        let session = simulator.expect("session", LIMIT).await.unwrap();
        let address: std::net::Ipv4Addr = session.text("ipv4").unwrap().parse().unwrap();
        let bind = || net::udp::bind_std(SocketAddr::from((address, PORT)), net::udp::Options::default());
        let inside = session.namespace().unwrap().enter(bind).unwrap().unwrap();
        let (inside, outside) = (UdpSocket::from_std(inside).unwrap(), data_network(world));
        let network_address = SocketAddr::from((lab::DN, outside.local_addr().unwrap().port()));
        let ue_address = SocketAddr::from((address, PORT));
        let mut buffer = [0; 2_048];
        for (round, reason) in ["paging", "uplink_data", "paging"].into_iter().enumerate() {
            while simulator.expect("idle", LIMIT).await.unwrap().text("supi") != session.text("supi") {}
            let (from, to, target) = match reason {
                "paging" => (&outside, &inside, ue_address),
                _ => (&inside, &outside, network_address),
            };
            for number in 0..10 {
                from.send_to(&numbered(number), target).await.unwrap();
            }
            for number in 0..10 {
                let received = timeout(LIMIT, to.recv(&mut buffer)).await;
                let length =
                    received.unwrap_or_else(|_| panic!("round {round}: no packet {number}")).unwrap();
                assert_eq!(buffer[..length], numbered(number), "round {round}, packet {number}");
            }
            let service = simulator.expect("service", LIMIT).await.unwrap();
            assert_eq!(service.text("reason"), Some(reason), "{service:?}");
        }
        simulator.stop().await.unwrap();
    });
}

/// The command waits until three pages had no answer, which takes longer than a listing may.
#[test]
fn an_operator_deregisters_an_idle_ue_that_does_not_answer() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        let mut ue = world.ue_with(&gnb, 0, |config| config.answers_paging = false);
        ue.register().await.unwrap();
        become_idle(world, &mut ue).await;
        let supi = ue.supi().to_string();
        let output = world.lab.godwit(&["ue", "deregister", &supi]).output(LIMIT).await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(of(&world.ask("amf", "/ues").await, &supi).is_null());
        world.bystander_is_well().await;
    });
}
