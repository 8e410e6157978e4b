//! Idle UEs, end to end: downlink data wakes them, what waited arrives first and in order, and so do packets of their own.

use std::net::SocketAddr;

use nas::{Message, PsiSet, RegistrationType, ServiceType};
use net::time::{Duration, sleep, timeout};
use net::udp::UdpSocket;
use ngap::Cause;
use ngap::cause::RadioNetwork;
use packet::{ipv4, protocol, transport};
use ran::Ue;
use ran::ue::{Occurred, Wake};
use serde_json::Value;

use testkit::world::{LIMIT, World, establish, id, ping, plain};

/// Where the data network's numbered packets go to in the UE.
const PORT: u16 = 4_242;
/// Packets that wait while the UE is idle, fewer than a UPF keeps for a session.
const WAITING: u32 = 24;
/// Packets sent once the UE is back, in the middle of those that waited.
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
    assert_eq!(occurred, Occurred::Released(inactivity));
    let supi = ue.supi().to_string();
    world.until("amf", "/ues", |ues| of(ues, &supi)["cm_state"] == "CM-IDLE").await;
    let down = |sessions: &Value| of(sessions, &supi)["user_plane"] != "activated";
    world.until("smf", "/sessions", down).await;
}

/// What a listing says of a UE.
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

/// A datagram that says its number, of a length that depends on it.
fn numbered(number: u32) -> Vec<u8> {
    let mut datagram = number.to_be_bytes().to_vec();
    datagram.resize(4 + (number as usize * 37) % 1_200, number as u8);
    datagram
}

/// TS 23.502 §4.2.3.3 as a whole: the UPF keeps and reports downlink data, the SMF asks the AMF, the AMF pages, the UE
/// asks for service, and everything arrives in order.
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
            assert_eq!(timeout(LIMIT, ue.idle()).await.unwrap(), Wake::Paged);
            let served = ue.service_request(ServiceType::MobileTerminated, PsiSet::default()).await.unwrap();
            assert_eq!(served.accept.pdu_session_status, Some([id(1)].into_iter().collect()));
            // The radio resources follow, and more packets come while those that waited are on their way.
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
            // TS 33.501 §6.12.3: the identity that was on the air is replaced.
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

/// The UE speaks first: service request with uplink data status, and the packets of both directions flow.
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
        ue.wake_up(Wake::UplinkData(first)).await.unwrap();
        assert!(ue.session_mut(id(2)).unwrap().bearer.is_none(), "only what was asked for");
        ping(&mut ue, 1).await;
        // Connected, it asks for the other one.
        ue.service_request(ServiceType::Data, [id(2)].into_iter().collect()).await.unwrap();
        ping(&mut ue, 2).await;

        // A periodic update brings nothing up, ends by itself and keeps the sessions.
        become_idle(world, &mut ue).await;
        let before = ue.guti();
        ue.wake_up(Wake::PeriodicUpdate).await.unwrap();
        assert_ne!(ue.guti(), before);
        let occurred = timeout(LIMIT, ue.serve()).await.unwrap().unwrap();
        assert!(matches!(occurred, Occurred::Released(_)), "{occurred:?}");
        assert_eq!(ue.sessions().count(), 2);

        // It comes back at another gNB, by registration, with the user plane of one session.
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
        // What the network has no longer, the UE gives up: the SMF's session goes while the UE is idle.
        become_idle(world, &mut ue).await;
        ue.deregister(false).await.unwrap();
        world.until("amf", "/ues", |ues| *ues == serde_json::json!([])).await;
    });
}

/// The command waits until three pages have had no answer, which takes longer than a listing may.
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
