//! Attach, idle mode, paging, handover, detach.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::support::*;
use gtpv2c::message::*;
use gtpv2c::*;
use lte::ue::{DEFAULT_BEARER, NetworkEvent};
use packet::ndp::{RouterAdvertisement, RouterSolicitation};

#[tokio::test]
async fn a_ue_attaches_sends_receives_and_detaches() {
    let (mut world, attachment) = attached(10, |_| {}).await;
    let create = &attachment.create;
    assert_eq!(create.imsi.unwrap().to_string(), "999700000000001");
    assert_eq!((create.apn.0.as_str(), create.pdn_type), ("internet", Some(PdnType::Ipv4)));
    assert_eq!(create.paa, Some(Paa::Ipv4(Ipv4Addr::UNSPECIFIED)), "no static address");
    assert_eq!((create.rat_type, create.recovery), (RatType::EUTRAN, Some(Recovery(7))));
    assert_eq!(create.sender_f_teid.interface, InterfaceType::S11_MME);
    let asked = nas::Pco::decode(&create.pco.as_ref().unwrap().0).unwrap();
    assert!(asked.asks_for(&nas::PcoItem::DnsIpv4Request) && asked.asks_for(&nas::PcoItem::Ipv4MtuRequest));
    assert_eq!(
        (create.uli.unwrap().ecgi.unwrap().eci, attachment.enb.interface),
        (0x100, InterfaceType::S1U_ENB)
    );
    assert_eq!(attachment.enb.address(), Some(address(10, 4)));

    let World { gateway, ue, .. } = &mut world;
    let pdn = ue.pdn().unwrap();
    assert_eq!((pdn.ipv4(), pdn.dns(), pdn.mtu()), (Some(UE_IPV4), &[[9, 9, 9, 9].into()][..], 1380));

    assert!(ue.send(to_port(80)));
    assert_eq!(gateway.uplink().await, (UPLINK, to_port(80)));
    gateway.downlink(attachment.enb, b"\x45down");
    assert_eq!(ue.received(DEFAULT_BEARER).await.unwrap(), b"\x45down".as_slice());

    let (outcome, ()) = tokio::join!(ue.detach(), gateway.accept_delete(attachment.mme));
    outcome.unwrap();
    assert!(!ue.is_attached() && !ue.send(to_port(80)));
}

#[tokio::test]
async fn a_ue_forms_its_ipv6_address_from_the_gateways_prefix() {
    let (mut world, attachment) = attached(11, |config| config.ue.pdn_type = PdnType::Ipv4v6).await;
    assert_eq!(attachment.create.indication, Some(Indication::DAF));
    let World { gateway, ue, .. } = &mut world;
    let pdn = ue.pdn().unwrap();
    assert_eq!(pdn.link_local().unwrap().to_string(), "fe80::77");
    assert_eq!((pdn.ipv4(), pdn.ipv6()), (Some(UE_IPV4), None));
    let router = async {
        let (teid, packet) = gateway.uplink().await;
        let solicitation = RouterSolicitation::parse(&packet).unwrap();
        assert_eq!((teid, solicitation.source.to_string().as_str()), (UPLINK, "fe80::77"));
        let prefix = "2001:db8:1:2::".parse().unwrap();
        let router = "fe80::1".parse().unwrap();
        let advertisement = RouterAdvertisement::for_ue(router, solicitation.source, prefix, None);
        gateway.downlink(attachment.enb, &advertisement.build());
    };
    let (address, ()) = tokio::join!(ue.solicit_router(), router);
    assert_eq!(address.unwrap().to_string(), UE_IPV6);
}

#[tokio::test]
async fn a_static_address_is_asked_for() {
    let wanted = Ipv4Addr::new(10, 45, 9, 9);
    let (world, attachment) = attached(12, |config| config.ue.static_ipv4 = Some(wanted)).await;
    assert_eq!(attachment.create.paa, Some(Paa::Ipv4(wanted)));
    assert_eq!(world.ue.pdn().unwrap().ipv4(), Some(wanted));
}

#[tokio::test]
async fn an_idle_ue_has_no_tunnel_and_answers_a_page() {
    let (mut world, attachment) = attached(13, |_| {}).await;
    let World { gateway, ue, .. } = &mut world;
    let (idle, ()) = tokio::join!(ue.go_idle(), gateway.accept_release(attachment.mme));
    idle.unwrap();
    assert!(ue.is_attached() && !ue.is_connected() && !ue.send(to_port(80)));

    let page = async {
        let bearer = DownlinkDataNotification { ebis: vec![DEFAULT_BEARER], ..Default::default() };
        let page = gateway.send(attachment.mme, bearer);
        let Message::DownlinkDataNotificationAcknowledge(answer) = gateway.answer(page).await else {
            panic!()
        };
        assert!(answer.cause.is_accepted());
        gateway.accept_modify(attachment.mme).await
    };
    let (event, ends) = tokio::join!(ue.serve(), page);
    assert!(matches!(event.unwrap(), NetworkEvent::Paged(_)));
    let (_, enb) = ends[0];
    assert_ne!(enb.teid, attachment.enb.teid);
    gateway.downlink(enb, b"\x45kept");
    assert_eq!(ue.received(DEFAULT_BEARER).await.unwrap(), b"\x45kept".as_slice());

    // A page that crosses the service request is acknowledged, and that is all.
    let page = async {
        let page = gateway.send(attachment.mme, DownlinkDataNotification::default());
        gateway.answer(page).await
    };
    let (event, _) = tokio::join!(ue.serve(), page);
    assert_eq!(event.unwrap(), NetworkEvent::NeedlessPage);
}

#[tokio::test]
async fn a_ue_that_ignores_pages_is_reported_as_not_found() {
    let (mut world, attachment) = attached(14, |config| {
        config.ue.answers_paging = false;
        config.ue.paging_time = Duration::from_millis(150);
    })
    .await;
    let World { gateway, ue, .. } = &mut world;
    let (idle, ()) = tokio::join!(ue.go_idle(), gateway.accept_release(attachment.mme));
    idle.unwrap();
    let page = async {
        let page = gateway.send(attachment.mme, DownlinkDataNotification::default());
        gateway.answer(page).await;
        let acknowledged = net::time::now();
        let event = gateway.event().await;
        assert!(net::time::now() - acknowledged >= Duration::from_millis(140), "paged for a while");
        event
    };
    let (event, indication) = tokio::join!(ue.serve(), page);
    assert_eq!(event.unwrap(), NetworkEvent::PageIgnored);
    let endpoint::Event::Indication { teid: CONTROL, message, .. } = indication else { panic!() };
    let Message::DownlinkDataNotificationFailureIndication(failure) = message else { panic!() };
    assert_eq!(failure.cause.value, CauseValue::UE_NOT_RESPONDING);
    assert!(!ue.is_connected());
}

#[tokio::test]
async fn an_idle_ue_comes_back_at_another_enb() {
    let (mut world, attachment) = attached(15, |_| {}).await;
    let World { gateway, ue, enbs, .. } = &mut world;
    assert!(ue.camp_on(enbs[1].clone()).is_err());
    let (idle, ()) = tokio::join!(ue.go_idle(), gateway.accept_release(attachment.mme));
    idle.unwrap();
    ue.camp_on(enbs[1].clone()).unwrap();
    let (served, ends) = tokio::join!(ue.service_request(), gateway.accept_modify(attachment.mme));
    served.unwrap();
    assert_eq!(ends[0].1.address(), Some(address(15, 5)));
    assert_eq!(ue.service_request().await.unwrap_err().reason(), "wrong_state");
}

#[tokio::test]
async fn a_handover_ends_with_the_end_marker_and_loses_no_packet() {
    let (mut world, attachment) = attached(16, |_| {}).await;
    let World { gateway, ue, enbs, .. } = &mut world;
    let switch = async {
        let ends = gateway.accept_modify(attachment.mme).await;
        // On their way when the path was switched.
        gateway.downlink(attachment.enb, b"\x45one");
        gateway.downlink(attachment.enb, b"\x45two");
        gateway.end_marker(attachment.enb);
        ends
    };
    let (moved, ends) = tokio::join!(ue.handover(enbs[1].clone()), switch);
    let moved = moved.unwrap();
    assert_eq!((moved.end_markers, moved.tunnels), (1, 1));
    assert!(moved.end_markers_took.unwrap() >= moved.took);
    assert_eq!((ends[0].1.address(), ue.enb().id()), (Some(address(16, 5)), 2));
    assert_eq!(enbs[0].user_plane().counters().end_markers, 1);
    gateway.downlink(ends[0].1, b"\x45three");
    for expected in [b"\x45one".as_slice(), b"\x45two", b"\x45three"] {
        assert_eq!(ue.received(DEFAULT_BEARER).await.unwrap(), expected);
    }
    assert!(ue.send(to_port(81)));
    assert_eq!(gateway.uplink().await, (UPLINK, to_port(81)));
    let counted = async {
        // Counting follows sending.
        while enbs[1].user_plane().counters().uplink != 1 {
            net::time::sleep(Duration::from_millis(1)).await;
        }
    };
    net::time::timeout(LIMIT, counted).await.unwrap();

    // Back, without End Marker.
    let (moved, _) = tokio::join!(ue.handover(enbs[0].clone()), gateway.accept_modify(attachment.mme));
    let moved = moved.unwrap();
    assert_eq!((moved.end_markers, moved.end_markers_took), (0, None));
    assert!(moved.took < Duration::from_millis(300), "the wait for End Markers does not count");
}

#[tokio::test]
async fn a_ue_is_detached_by_the_gateway() {
    let (mut world, attachment) = attached(17, |_| {}).await;
    let World { gateway, ue, .. } = &mut world;
    let script = async {
        let request = DeleteBearerRequest {
            linked_ebi: Some(DEFAULT_BEARER),
            cause: Some(CauseValue::REACTIVATION_REQUESTED.into()),
            ..Default::default()
        };
        let request = gateway.send(attachment.mme, request);
        gateway.answer(request).await
    };
    let (event, answer) = tokio::join!(ue.serve(), script);
    assert_eq!(event.unwrap(), NetworkEvent::Detached(Some(CauseValue::REACTIVATION_REQUESTED)));
    let Message::DeleteBearerResponse(answer) = answer else { panic!() };
    assert!(answer.cause.is_accepted() && answer.linked_ebi == Some(DEFAULT_BEARER));
    assert!(!ue.is_attached());
}
