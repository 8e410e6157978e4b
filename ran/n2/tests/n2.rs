//! A gNB against an AMF that a test scripts message by message: the codec is all that both share.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use n2::{Gnb, GnbConfig, GnbError};
use net::sctp::{Association, Event, Listener, Message, SctpConfig, SctpMode};
use net::time::timeout;
use ngap::cause::{Misc, RadioNetwork};
use ngap::{AmfUeNgapId, Cause, Pdu, RanUeNgapId, ResetType, UeConnection};
use types::{AmfId, Guami, Plmn, SNssai, Tac};

const LIMIT: Duration = Duration::from_secs(5);

/// An AMF's end of one association.
struct Amf {
    association: Association,
    listener: Listener,
}

fn address(host: u8, last: u8) -> IpAddr {
    IpAddr::from([127, 17, host, last])
}

fn sctp() -> SctpConfig {
    SctpConfig { mode: SctpMode::Udp { port: 9899 }, ..SctpConfig::default() }
}

fn config(host: u8) -> GnbConfig {
    GnbConfig {
        id: 0x12_3456,
        name: Some("north".into()),
        plmn: Plmn::new("999", "70").unwrap(),
        tac: Tac::from_octets([0, 0, 1]),
        slices: vec![SNssai::from_octets(1, None)],
        amf: vec![SocketAddr::new(address(host, 1), ngap::PORT)],
        n2: address(host, 2),
        sctp: sctp(),
    }
}

async fn receive(association: &mut Association) -> Pdu {
    match timeout(LIMIT, association.recv()).await.expect("a message in time") {
        Some(Event::Message(message)) => Pdu::decode(&message.payload).unwrap().pdu,
        other => panic!("{other:?}"),
    }
}

async fn accept(listener: &mut Listener) -> Association {
    let mut association = listener.accept().await.unwrap();
    let Pdu::NgSetupRequest(request) = receive(&mut association).await else { panic!() };
    assert_eq!(request.ran_node_name.as_deref(), Some("north"));
    let guami = Guami { plmn: Plmn::new("999", "70").unwrap(), amf_id: AmfId::new(2, 1, 0).unwrap() };
    let response = ngap::NgSetupResponse {
        amf_name: "test".into(),
        served_guamis: vec![guami.into()],
        relative_amf_capacity: 255,
        plmn_support: request.supported_tas[0].broadcast_plmns.clone(),
        criticality_diagnostics: None,
    };
    send(&association, response).await;
    association
}

async fn send(association: &Association, pdu: impl Into<Pdu>) {
    let payload = pdu.into().encode().unwrap();
    association.send(Message { stream: 0, ppid: ngap::PPID, payload }).await.unwrap();
}

/// A gNB that has completed NG Setup.
async fn up(host: u8) -> (Gnb, Amf) {
    let config = config(host);
    let mut listener = Listener::bind(config.amf[0], sctp()).await.unwrap();
    let (gnb, association) = tokio::join!(Gnb::connect(config), accept(&mut listener));
    (gnb.unwrap(), Amf { association, listener })
}

fn nas(ue: &n2::Ue, amf: u64, octet: u8) -> ngap::DownlinkNasTransport {
    ngap::DownlinkNasTransport {
        amf_ue_ngap_id: AmfUeNgapId(amf),
        ran_ue_ngap_id: ue.ran_ue_ngap_id(),
        nas_pdu: vec![octet].into(),
        old_amf: None,
        ue_ambr: None,
        allowed_nssai: None,
    }
}

async fn next(ue: &mut n2::Ue) -> Option<Pdu> {
    timeout(LIMIT, ue.next_pdu()).await.expect("a message, or the end, in time")
}

#[tokio::test]
async fn the_first_amf_that_answers_is_enough() {
    let mut config = config(1);
    let good = config.amf[0];
    // Nobody listens on the first address.
    config.amf.insert(0, SocketAddr::new(address(1, 9), ngap::PORT));
    config.sctp.max_init_retransmissions = 1;
    config.sctp.rto_initial = Duration::from_millis(50);
    let mut listener = Listener::bind(good, sctp()).await.unwrap();
    let (gnb, _association) = tokio::join!(Gnb::connect(config.clone()), accept(&mut listener));
    let gnb = gnb.unwrap();
    assert_eq!((gnb.amf(), gnb.amf_name(), gnb.guamis().len()), (good, "test", 1));
    let ngap::UserLocation::Nr { ncgi, .. } = gnb.location(3) else { panic!() };
    assert_eq!(ncgi.nr_cell_id.value(), 0x1_2345_6003);
    assert_eq!(gnb.location_of(ncgi.nr_cell_id), gnb.location(3));

    config.amf.clear();
    let refused = Gnb::connect(config).await;
    assert!(matches!(refused, Err(GnbError::NoAmf)), "{refused:?}");
}

#[tokio::test]
async fn messages_reach_the_ue_they_name_and_no_other() {
    let (gnb, mut amf) = up(2).await;
    let (mut first, mut second) = (gnb.open(), gnb.open());
    send(&amf.association, nas(&second, 12, 2)).await;
    send(&amf.association, nas(&first, 11, 1)).await;
    for (ue, id, octet) in [(&mut first, 11, 1), (&mut second, 12, 2)] {
        let Some(Pdu::DownlinkNasTransport(transport)) = next(ue).await else { panic!() };
        assert_eq!((&transport.nas_pdu[..], ue.amf_ue_ngap_id()), (&[octet][..], Some(AmfUeNgapId(id))));
    }
    // A release command may name the AMF's identity alone.
    let release = ngap::UeContextReleaseCommand {
        ue_ngap_ids: ngap::UeNgapIds::Amf(AmfUeNgapId(11)),
        cause: RadioNetwork::UserInactivity.into(),
    };
    send(&amf.association, release).await;
    assert!(matches!(next(&mut first).await, Some(Pdu::UeContextReleaseCommand(_))));

    // A UE that the gNB does not have: the AMF hears of it.
    let gone = nas(&first, 11, 3);
    drop(first);
    send(&amf.association, gone).await;
    let stray = timeout(LIMIT, gnb.interface_message()).await.unwrap().unwrap();
    gnb.report_unknown_ue(&stray).await.unwrap();
    let Pdu::ErrorIndication(indication) = receive(&mut amf.association).await else { panic!() };
    assert_eq!(indication.cause, Some(RadioNetwork::UnknownLocalUeNgapId.into()));
    assert_eq!(indication.amf_ue_ngap_id, Some(AmfUeNgapId(11)));
    // An error indication is not answered with another one.
    gnb.report_unknown_ue(&Pdu::ErrorIndication(indication)).await.unwrap();
    gnb.reset(Cause::Misc(Misc::OmIntervention)).await.unwrap();
    assert!(matches!(receive(&mut amf.association).await, Pdu::NgReset(_)));
    assert!(next(&mut second).await.is_none());
}

#[tokio::test]
async fn a_reader_that_is_too_slow_loses_its_own_messages_only() {
    let (gnb, amf) = up(3).await;
    let (mut slow, mut quick) = (gnb.open(), gnb.open());
    for _ in 0..100 {
        send(&amf.association, nas(&slow, 11, 1)).await;
    }
    send(&amf.association, nas(&quick, 12, 2)).await;
    assert!(next(&mut quick).await.is_some());
    assert_eq!(gnb.lost_messages(), 100 - 64);
    for _ in 0..64 {
        assert!(next(&mut slow).await.is_some());
    }
    assert!(timeout(Duration::from_millis(50), slow.next_pdu()).await.is_err());
}

#[tokio::test]
async fn partial_resets_end_the_connections_they_name() {
    let (gnb, mut amf) = up(4).await;
    let mut ues: Vec<_> = (0..4).map(|_| gnb.open()).collect();
    for (ue, id) in ues.iter_mut().zip(1..) {
        send(&amf.association, nas(ue, id, 0)).await;
        assert!(next(ue).await.is_some());
    }
    // By the AMF: one by each side's identity, one unknown.
    let connections = vec![
        UeConnection { amf_ue_ngap_id: None, ran_ue_ngap_id: Some(ues[0].ran_ue_ngap_id()) },
        UeConnection { amf_ue_ngap_id: Some(AmfUeNgapId(2)), ran_ue_ngap_id: None },
        UeConnection { amf_ue_ngap_id: None, ran_ue_ngap_id: Some(RanUeNgapId(4_000_000)) },
    ];
    let reset_type = ResetType::PartOfNgInterface(connections.clone());
    send(&amf.association, ngap::NgReset { cause: Misc::OmIntervention.into(), reset_type }).await;
    let Pdu::NgResetAcknowledge(acknowledge) = receive(&mut amf.association).await else { panic!() };
    assert_eq!(acknowledge.connections, connections);
    assert!(next(&mut ues[0]).await.is_none() && next(&mut ues[1]).await.is_none());
    assert_eq!(gnb.ues(), 2);
    // By the gNB.
    let third = ues[2].ran_ue_ngap_id();
    let both = [third, RanUeNgapId(4_000_000)];
    gnb.reset_ues(RadioNetwork::RadioConnectionWithUeLost.into(), both).await.unwrap();
    let Pdu::NgReset(reset) = receive(&mut amf.association).await else { panic!() };
    let named = UeConnection { amf_ue_ngap_id: Some(AmfUeNgapId(3)), ran_ue_ngap_id: Some(third) };
    assert_eq!(reset.reset_type, ResetType::PartOfNgInterface(vec![named]));
    assert!(next(&mut ues[2]).await.is_none());
    send(&amf.association, nas(&ues[3], 4, 1)).await;
    assert!(next(&mut ues[3]).await.is_some());
}

#[tokio::test]
async fn a_lost_association_loses_its_ues_and_another_follows() {
    let (gnb, Amf { association, mut listener }) = up(5).await;
    let mut ue = gnb.open();
    association.shutdown().await;
    timeout(LIMIT, gnb.closed()).await.unwrap();
    assert!(next(&mut ue).await.is_none());
    assert!(timeout(LIMIT, gnb.interface_message()).await.unwrap().is_none());
    // A UE that comes too late waits for nothing.
    assert!(next(&mut gnb.open()).await.is_none());
    assert!(gnb.send(nas(&ue, 1, 1)).await.is_err());

    let (again, association) = tokio::join!(Gnb::connect(gnb.config().clone()), accept(&mut listener));
    let again = again.unwrap();
    let mut ue = again.open();
    send(&association, nas(&ue, 1, 1)).await;
    assert!(next(&mut ue).await.is_some());
    assert!(!again.is(&gnb));
}

#[tokio::test]
async fn what_does_not_decode_is_counted_and_reaches_no_ue() {
    let (gnb, amf) = up(6).await;
    let mut ue = gnb.open();
    let octets = Pdu::from(nas(&ue, 1, 7)).encode().unwrap();
    // SCTP carries no empty message.
    for end in 1..octets.len() {
        let payload = octets.slice(..end);
        amf.association.send(Message { stream: 0, ppid: ngap::PPID, payload }).await.unwrap();
    }
    send(&amf.association, nas(&ue, 1, 8)).await;
    let Some(Pdu::DownlinkNasTransport(transport)) = next(&mut ue).await else { panic!() };
    assert_eq!(transport.nas_pdu[..], [8]);
    assert_eq!(gnb.undecodable_messages(), octets.len() as u64 - 1);
}
