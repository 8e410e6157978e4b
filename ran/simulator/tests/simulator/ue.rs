//! One UE and one gNB against a scripted network: every procedure, and forged messages.

use crate::support::*;
use nas::gmm::*;
use nas::gsm::*;
use nas::security::Header;
use nas::{AccessType, GmmCause, GsmCause, KeySetId, Message, MobileIdentity, SmBody};
use ngap::Pdu;
use ngap::cause::{Misc, Nas, RadioNetwork};
use packet::{gtpu, ndp};
use simulator::gnb::GnbError;
use simulator::ue::NetworkEvent;
use simulator::{Config, Failure, Gnb};
use types::*;

fn one() -> PduSessionId {
    PduSessionId::new(1).unwrap()
}

#[tokio::test]
async fn a_ue_registers_gets_a_session_and_leaves() {
    let World { mut network, mut ue, .. } = world(1, |config| {
        config.ue.session = Some(PduSessionType::Ipv4v6);
    })
    .await;
    let supi = ue.supi();

    let (registered, request) = tokio::join!(ue.register(), network.register(supi));
    let registered = registered.unwrap();
    assert_eq!((registered.guti, registered.authenticated), (Some(guti(0x1001)), true));
    // In clear only the information elements that may be sent in clear.
    assert!(matches!(request.identity, MobileIdentity::Suci(_)));
    assert_eq!((request.ngksi, request.gmm_capability), (KeySetId::NoKey, None));

    let wish = ue.default_session().unwrap();
    let tunnel = {
        let (session, tunnel) = tokio::join!(ue.establish_session(wish), async {
            let (transport, message) = network.sm().await;
            assert_eq!(transport.dnn.as_ref().map(Dnn::as_str), Some("internet"));
            assert!(matches!(message.body, SmBody::EstablishmentRequest(_)));
            network.accept_session(one(), message.pti).await
        });
        let (session, _) = session.unwrap();
        assert_eq!((session.ipv4, session.mtu), (Some([10, 45, 0, 2].into()), 1380));
        assert_eq!(session.dns, [std::net::IpAddr::from([9, 9, 9, 9])]);
        tunnel
    };

    let router = async {
        let datagram = network.upf_receive().await;
        let packet = gtpu::Packet::new(&datagram).unwrap();
        assert_eq!((packet.teid(), packet.pdu_session().unwrap().qfi()), (0x77, 9));
        let solicitation = ndp::RouterSolicitation::parse(packet.payload()).unwrap();
        let prefix = "fd00:45:0:7::".parse().unwrap();
        let advertisement =
            ndp::RouterAdvertisement::for_ue("fe80::1".parse().unwrap(), solicitation.source, prefix, None);
        network.upf_send(tunnel, &advertisement.build()).await;
    };
    let (address, ()) = tokio::join!(ue.solicit_router(one()), router);
    assert_eq!(address.unwrap().0, "fd00:45:0:7::42".parse::<std::net::Ipv6Addr>().unwrap());

    assert!(ue.session_mut(one()).unwrap().send(b"\x45up".as_slice()));
    network.upf_receive_where(|packet| packet == b"\x45up").await;
    network.upf_send(tunnel, b"\x45down").await;
    assert_eq!(ue.session_mut(one()).unwrap().received().await.unwrap(), b"\x45down".as_slice());

    let released = async {
        let (_, message) = network.sm().await;
        assert!(matches!(message.body, SmBody::ReleaseRequest(_)));
        let command = SmBody::ReleaseCommand(ReleaseCommand::new(GsmCause::RegularDeactivation));
        network.send_sm(one(), message.pti, command).await;
        assert!(matches!(network.sm().await.1.body, SmBody::ReleaseComplete(_)));
    };
    let (took, ()) = tokio::join!(ue.release_session(one()), released);
    took.unwrap();
    assert_eq!(ue.sessions().count(), 0);

    let deregistration = async {
        let Message::DeregistrationRequestUe(request) = network.protected().await else { panic!() };
        assert_eq!(request.identity, MobileIdentity::Guti(guti(0x1001)));
        network.send_protected(Message::DeregistrationAcceptUe).await;
        network.release(Nas::Deregister).await;
    };
    let (outcome, ()) = tokio::join!(ue.deregister(false), deregistration);
    outcome.unwrap();
    assert!(!ue.registered() && !ue.connected());

    // The next registration uses the identity and the keys of this one.
    let again = async {
        let octets = network.nas_octets().await;
        assert_eq!(header(&octets), Some(Header::Integrity));
        let verified = network.context.as_mut().unwrap().unprotect(&octets).unwrap();
        let Message::RegistrationRequest(request) = verified.message.message else { panic!() };
        assert_eq!(request.identity, MobileIdentity::Guti(guti(0x1001)));
        assert_eq!(request.gmm_capability, Some(vec![0]));
        network.accept(0x1002).await;
    };
    let (registered, ()) = tokio::join!(ue.register(), again);
    let registered = registered.unwrap();
    assert_eq!((registered.guti, registered.authenticated), (Some(guti(0x1002)), false));
}

#[tokio::test]
async fn a_challenge_of_another_key_is_a_mac_failure() {
    let World { mut network, mut ue, .. } = world(2, |config| config.ue.k = Key::new([1; 16])).await;
    let script = async {
        let _ = network.plain().await;
        network.challenge().await;
        let Message::AuthenticationFailure(failure) = network.plain().await else { panic!() };
        assert_eq!((failure.cause, failure.auts), (GmmCause::MacFailure, None));
        network.send_plain(Message::AuthenticationReject(AuthenticationReject::default())).await;
        network.release(Nas::AuthenticationFailure).await;
    };
    let (outcome, ()) = tokio::join!(ue.register(), script);
    assert!(matches!(outcome, Err(Failure::AuthenticationRejected)), "{outcome:?}");
    assert!(!ue.registered() && ue.guti().is_none() && !ue.connected());
}

#[tokio::test]
async fn an_old_sequence_number_is_resynchronised() {
    let World { mut network, mut ue, .. } = world(3, |config| config.ue.sqn = 0x10_0000).await;
    let supi = ue.supi();
    let script = async {
        let Message::RegistrationRequest(request) = network.plain().await else { panic!() };
        let vector = network.challenge().await;
        let Message::AuthenticationFailure(failure) = network.plain().await else { panic!() };
        assert_eq!(failure.cause, GmmCause::SynchFailure);
        let auts = Key::new(failure.auts.unwrap());
        network.sqn = network.milenage.resynchronise(&vector.rand, &auts).unwrap();
        assert_eq!(network.sqn >> 5, 0x10_0000 >> 5);
        network.secure(supi, &request).await;
        network.accept(1).await;
    };
    let (outcome, ()) = tokio::join!(ue.register(), script);
    assert!(outcome.unwrap().authenticated);
}

#[tokio::test]
async fn a_changed_capability_is_noticed() {
    let World { mut network, mut ue, .. } = world(4, |_| {}).await;
    let supi = ue.supi();
    let script = async {
        let Message::RegistrationRequest(mut request) = network.plain().await else { panic!() };
        // Someone between UE and AMF has removed an algorithm from the UE's capabilities.
        let algorithms = [nas::CipheringAlgorithm::Nea0];
        let changed = nas::UeSecurityCapability::new(&algorithms, &[nas::IntegrityAlgorithm::Nia2]);
        request.ue_security_capability = Some(changed);
        let vector = network.challenge().await;
        let _ = network.plain().await;
        let name = guami().plmn.serving_network_name();
        let kamf = nas::aka::kamf(&nas::aka::kseaf(&vector.kausf, &name).unwrap(), supi, nas::aka::ABBA);
        let (integrity, ciphering) = (nas::IntegrityAlgorithm::Nia2, nas::CipheringAlgorithm::Nea0);
        let ngksi = KeySetId::Native(1);
        let side = nas::security::Side::Network;
        let context = nas::security::SecurityContext::new(side, &kamf, ngksi, integrity, ciphering);
        network.context = Some(context.unwrap());
        let command = SecurityModeCommand::new(integrity, ciphering, ngksi, changed);
        network.send_protected(Message::SecurityModeCommand(command)).await;
        let Message::SecurityModeReject(reject) = network.plain().await else { panic!() };
        assert_eq!(reject.cause, GmmCause::UeSecurityCapabilitiesMismatch);
        network.release(Nas::Unspecified).await;
    };
    let (outcome, ()) = tokio::join!(ue.register(), script);
    assert!(matches!(outcome, Err(Failure::Released(_))), "{outcome:?}");
}

#[tokio::test]
async fn what_is_not_authentic_is_not_believed() {
    let World { mut network, mut ue, .. } = world(5, |_| {}).await;
    let supi = ue.supi();
    ue.record();
    let (registered, _) = tokio::join!(ue.register(), network.register(supi));
    registered.unwrap();
    assert_eq!(ue.discarded(), 0);

    let leave = |cause| {
        Message::DeregistrationRequestNetwork(DeregistrationRequestNetwork {
            reregistration_required: false,
            access: AccessType::ThreeGpp,
            cause,
            t3346: None,
            rejected_nssai: Vec::new(),
        })
    };
    // Unprotected, with a changed bit, and an earlier message repeated.
    network.send_plain(leave(None)).await;
    let genuine = network.context.as_mut().unwrap().protect(&leave(Some(GmmCause::IllegalUe))).unwrap();
    let mut tampered = genuine.clone();
    *tampered.last_mut().unwrap() ^= 1;
    network.send_nas(tampered).await;
    let replayed = ue.recorded().iter().rfind(|message| !message.sent).unwrap().octets.to_vec();
    network.send_nas(replayed).await;
    network.send_nas(vec![]).await;
    // The genuine message.
    network.send_nas(genuine).await;
    let script = async {
        assert!(matches!(network.protected().await, Message::DeregistrationAcceptNetwork));
    };
    let (occurred, ()) = tokio::join!(ue.serve(), script);
    let cause = Some(GmmCause::IllegalUe);
    assert_eq!(occurred.unwrap(), NetworkEvent::Deregistered { reregistration_required: false, cause });
    assert_eq!(ue.discarded(), 4);
}

#[tokio::test]
async fn rejections_carry_their_cause() {
    let World { mut network, mut ue, .. } = world(6, |_| {}).await;
    let script = async {
        let _ = network.plain().await;
        let reject = RegistrationReject::new(GmmCause::PlmnNotAllowed);
        network.send_plain(Message::RegistrationReject(reject)).await;
        network.release(Nas::NormalRelease).await;
    };
    let (outcome, ()) = tokio::join!(ue.register(), script);
    let failure = outcome.unwrap_err();
    assert_eq!((failure.reason(), failure.cause()), ("rejected", Some(11)));

    let supi = ue.supi();
    let (registered, _) = tokio::join!(ue.register(), network.register(supi));
    registered.unwrap();
    let wish = ue.default_session().unwrap();
    let script = async {
        let (_, message) = network.sm().await;
        let reject = SmBody::EstablishmentReject(EstablishmentReject::new(GsmCause::MissingOrUnknownDnn));
        network.send_sm(one(), message.pti, reject).await;
    };
    let (outcome, ()) = tokio::join!(ue.establish_session(wish.clone()), script);
    assert!(matches!(outcome.unwrap_err(), Failure::SessionRejected(GsmCause::MissingOrUnknownDnn)));

    let script = async {
        let (transport, _) = network.sm().await;
        let mut back = DlNasTransport::n1_sm(one(), transport.payload);
        back.cause = Some(GmmCause::PayloadNotForwarded);
        network.send_protected(Message::DlNasTransport(back)).await;
    };
    let (outcome, ()) = tokio::join!(ue.establish_session(wish), script);
    assert!(matches!(outcome.unwrap_err(), Failure::Rejected(GmmCause::PayloadNotForwarded)));
}

#[tokio::test]
async fn the_network_releases_a_session_and_the_connection() {
    let World { mut network, mut ue, .. } = world(7, |_| {}).await;
    let supi = ue.supi();
    let (registered, _) = tokio::join!(ue.register(), network.register(supi));
    registered.unwrap();
    let wish = ue.default_session().unwrap();
    let (session, tunnel) = tokio::join!(ue.establish_session(wish), async {
        let (_, message) = network.sm().await;
        network.accept_session(one(), message.pti).await
    });
    session.unwrap();

    let command = SmBody::ReleaseCommand(ReleaseCommand::new(GsmCause::ReactivationRequested));
    network.send_sm(one(), Pti::UNASSIGNED, command).await;
    let script = async {
        let (_, message) = network.sm().await;
        assert!(matches!(message.body, SmBody::ReleaseComplete(_)));
        assert_eq!(message.pti, Pti::UNASSIGNED);
    };
    let (occurred, ()) = tokio::join!(ue.serve(), script);
    let cause = GsmCause::ReactivationRequested;
    assert_eq!(occurred.unwrap(), NetworkEvent::SessionReleased { id: one(), cause });

    // The tunnel is closed: packets for it are dropped and counted.
    let user_plane = ue.access().gnb().unwrap().user_plane().unwrap().clone();
    let before = user_plane.counters().dropped;
    network.upf_send(tunnel, b"\x45late").await;
    network.upf_send(tunnel, b"\x45late").await;
    let echo = gtpu::Signalling::EchoRequest { sequence: 7 }.build();
    let n3 = std::net::SocketAddr::new(user_plane.address(), gtpu::PORT);
    network.upf.send_to(&echo, n3).await.unwrap();
    let answer = network.upf_receive().await;
    let answer = gtpu::Signalling::parse(&gtpu::Packet::new(&answer).unwrap()).unwrap();
    assert_eq!(answer, gtpu::Signalling::EchoResponse { sequence: 7 });
    assert_eq!(user_plane.counters().dropped, before + 2);

    let (occurred, ()) = tokio::join!(ue.serve(), network.release(RadioNetwork::UserInactivity));
    assert_eq!(
        occurred.unwrap(),
        NetworkEvent::Released(ngap::Cause::from(RadioNetwork::UserInactivity).into())
    );
    assert!(ue.registered() && !ue.connected());
}

#[tokio::test]
async fn resets_malformed_messages_and_a_lost_association() {
    let World { mut network, mut ue, gnb, .. } = world(8, |_| {}).await;
    let supi = ue.supi();
    let (registered, _) = tokio::join!(ue.register(), network.register(supi));
    registered.unwrap();

    // A PDU that does not decode is answered and reaches no UE.
    network.send_bytes(vec![0x00, 0x15, 0x00, 0x01]).await;
    assert!(matches!(network.receive().await, Pdu::ErrorIndication(_)));
    assert_eq!(gnb.undecodable_messages(), 1);

    let cause = Misc::OmIntervention.into();
    network.send(ngap::NgReset { cause, reset_type: ngap::ResetType::NgInterface }).await;
    let (lost, ()) = tokio::join!(ue.serve(), async {
        assert!(matches!(network.receive().await, Pdu::NgResetAcknowledge(_)));
    });
    assert!(matches!(lost, Err(Failure::ConnectionLost)), "{lost:?}");
    assert!(matches!(gnb.interface_message().await, Some(Pdu::NgReset(_))));

    let waiting = tokio::spawn(async move {
        let outcome = ue.register().await;
        (ue, outcome)
    });
    let _ = network.nas_octets().await;
    drop(network);
    let (_, outcome) = waiting.await.unwrap();
    assert!(matches!(outcome, Err(Failure::ConnectionLost)), "{outcome:?}");
    gnb.closed().await;
}

#[tokio::test]
async fn silence_ends_a_procedure_and_a_refusal_ends_the_gnb() {
    let World { mut network, mut ue, .. } =
        world(9, |config| config.ue.answer_timeout = std::time::Duration::from_millis(50)).await;
    let (outcome, _) = tokio::join!(ue.register(), network.plain());
    assert!(matches!(outcome, Err(Failure::Timeout("Registration Accept"))), "{outcome:?}");

    let mut config = Config::default().gnb(0);
    config.id = 1 << 24;
    config.amf = vec!["127.9.9.1:38412".parse().unwrap()];
    config.n2 = "127.9.9.4".parse().unwrap();
    config.sctp.mode = net::sctp::SctpMode::Udp { port: 9899 };
    let refused = Gnb::connect(config, None).await;
    assert!(matches!(refused, Err(GnbError::Identity(_))), "{refused:?}");
}
