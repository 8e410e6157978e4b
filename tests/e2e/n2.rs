//! N2 and N1 against gNBs and UEs that send malformed messages, or messages about other gNBs' UEs.

use nas::Message;
use net::time::{Duration, sleep, timeout};
use ngap::cause::{Misc, RadioNetwork};
use ngap::{
    AmfUeNgapId, Cause, InitialUeMessage, Pdu, RanUeNgapId, UeContextReleaseRequest, UplinkNasTransport,
};
use simulator::ue::NetworkEvent;
use simulator::{Failure, Gnb, GnbError};
use types::Tac;

use testkit::world::{LIMIT, establish, ping, plain};

#[test]
fn gnbs_that_do_not_fit_are_told_why() {
    plain(async |world| {
        let mut elsewhere = world.config.gnb(3);
        elsewhere.tac = Tac::from_octets([0, 0, 99]);
        let refused = Gnb::connect(elsewhere, None).await;
        assert!(matches!(refused, Err(GnbError::Refused(_))), "{refused:?}");
        let mut foreign = world.config.gnb(4);
        foreign.plmn = "001-01".parse().unwrap();
        let refused = Gnb::connect(foreign, None).await;
        assert!(
            matches!(refused, Err(GnbError::Refused(Cause::Misc(Misc::UnknownPlmnOrSnpn)))),
            "{refused:?}"
        );
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        world.bystander_is_well().await;
    });
}

#[test]
fn malformed_ngap_is_answered_and_harms_nobody() {
    plain(async |world| {
        let good = world.gnb(0).await;
        world.watch(&good).await;
        let bad = world.gnb(1).await;
        let mut ue = world.ue(&bad, 0);
        ue.register().await.unwrap();
        let message = initial_message(&bad, ue.registration_request().unwrap());
        for end in 1..message.len() {
            bad.send_bytes(1, message[..end].to_vec()).await.unwrap();
        }
        for at in 0..message.len() {
            let mut flipped = message.to_vec();
            flipped[at] ^= 1 << (at % 8);
            bad.send_bytes(1, flipped).await.unwrap();
        }
        bad.send_bytes(1, vec![0xff; 4000]).await.unwrap();
        // The association still works, and so does the UE that uses it.
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        world.bystander_is_well().await;
    });
}

fn initial_message(gnb: &Gnb, request: nas::gmm::RegistrationRequest) -> bytes::Bytes {
    let pdu = Pdu::from(InitialUeMessage {
        ran_ue_ngap_id: RanUeNgapId(4_000_000),
        nas_pdu: Message::RegistrationRequest(request).encode().unwrap().into(),
        user_location: gnb.location(),
        rrc_establishment_cause: ngap::RrcEstablishmentCause::MoSignalling,
        s_tmsi: None,
        amf_set_id: None,
        ue_context_request: true,
        allowed_nssai: None,
    });
    pdu.encode().unwrap()
}

#[test]
fn malformed_nas_is_refused_and_harms_nobody() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        let good = world.ue(&gnb, 0).registration_request().unwrap();
        let good = Message::RegistrationRequest(good).encode().unwrap();
        for end in 0..good.len() {
            world.ue(&gnb, 0).send_bytes(good[..end].to_vec()).await.unwrap();
        }
        for at in 0..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 1 << (at % 8);
            world.ue(&gnb, 0).send_bytes(flipped).await.unwrap();
        }
        // The same in a protected message: its content does not decode.
        let mut ue = world.ue(&gnb, 1);
        ue.register().await.unwrap();
        for junk in [&[0x7e][..], &[0x7e, 0x00, 0xff], &[0x2e, 1, 1, 0xc1], &[0x7e, 0x02], &[0; 40]] {
            ue.send_bytes(junk.to_vec()).await.unwrap();
        }
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        world.bystander_is_well().await;
    });
}

#[test]
fn a_gnb_cannot_touch_a_ue_of_another() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        let thief = world.gnb(1).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        let amf_ue_ngap_id: AmfUeNgapId = ue.connection().unwrap().amf_ue_ngap_id().unwrap();
        let ran_ue_ngap_id = ue.connection().unwrap().ran_ue_ngap_id();
        let location = thief.location();
        let nas_pdu = ue.protect(&Message::DeregistrationRequestUe(deregistration(&ue))).unwrap();
        thief
            .send(UplinkNasTransport {
                amf_ue_ngap_id,
                ran_ue_ngap_id,
                nas_pdu: nas_pdu.into(),
                user_location: Some(location),
            })
            .await
            .unwrap();
        let cause = Cause::RadioNetwork(RadioNetwork::UserInactivity);
        let release =
            UeContextReleaseRequest { amf_ue_ngap_id, ran_ue_ngap_id, cause, pdu_sessions: Vec::new() };
        thief.send(release).await.unwrap();
        // The gNB is told that it has no such UE …
        let answer = timeout(LIMIT, thief.interface_message()).await.unwrap();
        assert!(matches!(answer, Some(Pdu::ErrorIndication(_))), "{answer:?}");
        // … and the UE still works, although the other gNB used up a sequence number of it.
        ping(&mut ue, 1).await;
        assert!(timeout(Duration::from_millis(300), ue.serve()).await.is_err(), "nothing reaches the UE");
        establish(&mut ue, 2).await.unwrap();
        ping(&mut ue, 2).await;
    });
}

fn deregistration(ue: &simulator::Ue) -> nas::gmm::DeregistrationRequestUe {
    nas::gmm::DeregistrationRequestUe {
        switch_off: true,
        access: nas::AccessType::ThreeGpp,
        ngksi: ue.ngksi(),
        identity: ue.identity().unwrap(),
        nas_message_container: None,
    }
}

#[test]
fn a_reset_or_lost_association_makes_ues_idle_and_they_come_back() {
    plain(async |world| {
        let stable = world.gnb(0).await;
        world.watch(&stable).await;
        let gnb = world.gnb(1).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();

        gnb.reset(Cause::Misc(Misc::OmIntervention)).await.unwrap();
        let supi = ue.supi().to_string();
        let idle = |ues: &serde_json::Value| {
            let mine = ues.as_array().into_iter().flatten().find(|one| one["supi"] == supi.as_str());
            mine.is_some_and(|one| one.to_string().to_lowercase().contains("idle"))
        };
        world.until("amf", "/ues", &idle).await;
        ue.lose_connection();
        ue.register().await.unwrap();
        establish(&mut ue, 2).await.unwrap();
        ping(&mut ue, 2).await;

        // The gNB disconnects; the UE registers at another one.
        gnb.shutdown().await;
        world.until("amf", "/gnbs", |gnbs| gnbs.as_array().is_some_and(|gnbs| gnbs.len() == 1)).await;
        ue.camp(stable.clone());
        ue.register().await.unwrap();
        establish(&mut ue, 3).await.unwrap();
        ping(&mut ue, 3).await;
        world.bystander_is_well().await;
    });
}

#[test]
fn an_idle_ue_that_the_gnb_released_stays_registered() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        let cause = Cause::RadioNetwork(RadioNetwork::UserInactivity);
        ue.connection().unwrap().request_release(cause).await.unwrap();
        loop {
            match timeout(LIMIT, ue.serve()).await.unwrap() {
                Ok(NetworkEvent::Released(_)) | Err(Failure::ConnectionLost) => break,
                Ok(_) => {}
                Err(failure) => panic!("{failure:?}"),
            }
        }
        sleep(Duration::from_millis(200)).await;
        let ues = world.ask("amf", "/ues").await.to_string();
        assert!(ues.contains(&ue.supi().to_string()), "{ues}");
    });
}
