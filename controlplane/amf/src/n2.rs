//! N2: gNB associations and the messages on them (TS 38.413).
//!
//! One task accepts associations; one task per association receives. It decodes, handles messages about
//! the interface itself (`procedure/ng_setup.rs`, `procedure/ng_reset.rs`), and puts messages about a
//! UE into the bounded queue of the UE's task, without waiting. Errors are answered as TS 38.413 §10
//! says and counted; they affect neither the association nor other UEs.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use net::sctp::{self, Event};
use net::time::Instant;
use ngap::cause::{Protocol, RadioNetwork};
use ngap::{AmfUeNgapId, Cause, CriticalityDiagnostics, ErrorIndication, Pdu, RanUeNgapId};

use crate::context::{Amf, UeHandle};
use crate::counters;
use crate::event::UeEvent;
use crate::first_message::initial_ue_message;
use crate::gnb::{self, End, Gnb, LinkDown, Owner};
use crate::procedure::{ng_reset, ng_setup};

/// Accepts gNBs until the AMF stops, then shuts down every association.
pub(crate) async fn run(amf: Arc<Amf>, listener: sctp::Listener, stopping: nf::Shutdown) {
    tokio::select! {
        () = stopping.wait() => {}
        () = listen(&amf, listener) => tracing::error!("N2 listener ended"),
    }
    for gnb in amf.gnbs().values() {
        gnb.end(End::Stopping);
    }
    // Each association's task removes it from the table.
    while !amf.gnbs().is_empty() {
        net::time::sleep(STOP_POLL).await;
    }
}

async fn listen(amf: &Arc<Amf>, mut listener: sctp::Listener) {
    while let Ok(association) = listener.accept().await {
        if let Err(reason) = admit(amf, association.peer().ip()) {
            counters::N2_REJECTED.inc(reason);
            tracing::debug!(peer = %association.peer(), reason, "N2 association refused");
            association.abort();
            continue;
        }
        let setup_by = net::time::now() + Duration::from_millis(amf.config.timers.ng_setup_ms);
        let gnb = Arc::new(Gnb::new(amf.association_key(), &association, setup_by));
        amf.gnbs().insert(gnb.key, gnb.clone());
        counters::ASSOCIATIONS.inc();
        tracing::info!(peer = %gnb.peer, "N2 association");
        tokio::spawn(serve(amf.clone(), gnb, association));
    }
}

/// Whether another association from `address` is accepted; the error is the reason if not.
fn admit(amf: &Amf, address: IpAddr) -> Result<(), &'static str> {
    if !amf.config.allows_gnb(address, None) {
        return Err("gnb_not_allowed");
    }
    let limits = &amf.config.limits;
    let gnbs = amf.gnbs();
    if gnbs.len() >= limits.gnbs {
        return Err("too_many_gnbs");
    }
    let host = gnb::host(address);
    if gnbs.values().filter(|gnb| gnb.host() == host).count() >= limits.gnbs_per_address {
        return Err("too_many_gnbs_of_address");
    }
    Ok(())
}

/// How often a stopping AMF checks whether its associations have ended.
const STOP_POLL: Duration = Duration::from_millis(5);

/// Runs one association until it ends.
async fn serve(amf: Arc<Amf>, gnb: Arc<Gnb>, mut association: sctp::Association) {
    // A message may wait for its gNB's slow peer, so the end of the association interrupts it.
    let end = tokio::select! {
        biased;
        end = gnb.ended() => end,
        end = receive_all(&amf, &gnb, &mut association) => end,
    };
    let ues = gnb.lose_all(LinkDown::AssociationLost);
    let reason = match end {
        End::Stopping => association.shutdown().await.to_string(),
        // Not a shutdown: it takes as long as the peer likes.
        End::Replaced => {
            association.abort();
            "replaced by another association of the gNB".to_owned()
        }
        End::NoNgSetup => {
            counters::N2_REJECTED.inc("no_ng_setup");
            association.abort();
            "no NG Setup in time".to_owned()
        }
        End::Closed(reason) => reason,
    };
    amf.gnbs().remove(&gnb.key);
    counters::ASSOCIATIONS_LOST.inc();
    tracing::info!(gnb = gnb.label(), ues, reason, "N2 association ended");
}

/// Handles the messages of an association until it is closed, or NG Setup has not succeeded in time.
async fn receive_all(amf: &Arc<Amf>, gnb: &Arc<Gnb>, association: &mut sctp::Association) -> End {
    loop {
        tokio::select! {
            event = association.recv() => match event {
                Some(Event::Message(message)) => receive(amf, gnb, message).await,
                Some(Event::Restarted) => {
                    // The gNB has restarted the association: its contexts are lost (TS 38.412 §7).
                    gnb.set_info(None);
                    gnb.set_setup_by(net::time::now() + Duration::from_millis(amf.config.timers.ng_setup_ms));
                    gnb.lose_all(LinkDown::AssociationLost);
                }
                Some(Event::Closed { reason }) => return End::Closed(reason.to_string()),
                None => return End::Closed("closed".to_owned()),
            },
            () = net::time::sleep_until(gnb.setup_by()), if gnb.info().is_none() => return End::NoNgSetup,
        }
    }
}

/// Handles one message of an association.
async fn receive(amf: &Arc<Amf>, gnb: &Arc<Gnb>, message: sctp::Message) {
    let received = net::time::now();
    gnb.received.fetch_add(1, Relaxed);
    if message.ppid != sctp::PPID_NGAP {
        // The PPID must be 60 (TS 38.412 §7). Some peers forget it and send 0; others are not NGAP.
        if message.ppid != 0 {
            counters::N2_REJECTED.inc("ppid");
            return;
        }
    }
    let pdu = match Pdu::decode(&message.payload) {
        Ok(decoded) => {
            if let Some(diagnostics) = decoded.notify {
                notify(gnb, &decoded.pdu, diagnostics);
            }
            decoded.pdu
        }
        Err(error) => return malformed(gnb, &error),
    };
    if gnb.info().is_none() && !matches!(pdu, Pdu::NgSetupRequest(_)) {
        // NG Setup comes first (TS 38.413 §8.7.1.1).
        return refuse(gnb, &pdu, Protocol::MessageNotCompatibleWithReceiverState.into());
    }
    match pdu {
        Pdu::NgSetupRequest(request) => ng_setup::ng_setup(amf, gnb, request).await,
        Pdu::RanConfigurationUpdate(update) => ng_setup::ran_configuration_update(amf, gnb, update).await,
        Pdu::NgReset(reset) => ng_reset::ng_reset(gnb, reset).await,
        Pdu::NgResetAcknowledge(_) => {}
        Pdu::InitialUeMessage(initial) => initial_ue_message(amf, gnb, initial, received),
        Pdu::ErrorIndication(indication) => error_indication(gnb, indication, received),
        pdu => ue_message(gnb, pdu, received),
    }
}

/// Answers octets that are not a usable NGAP message (TS 38.413 §10.2, §10.3).
fn malformed(gnb: &Gnb, error: &ngap::DecodeError) {
    counters::N2_REJECTED.inc("malformed");
    tracing::debug!(gnb = gnb.label(), %error, "malformed NGAP");
    if let Some(reply) = error.reply() {
        send_answer(gnb, &reply);
    }
}

/// Reports IEs that were not understood, if their sender asked for that (TS 38.413 §10.3.4).
fn notify(gnb: &Gnb, pdu: &Pdu, diagnostics: CriticalityDiagnostics) {
    counters::N2_REJECTED.inc("ie_not_understood");
    let ids = ue_ngap_ids(pdu);
    let indication = ErrorIndication {
        amf_ue_ngap_id: ids.map(|(amf, _)| amf),
        ran_ue_ngap_id: ids.map(|(_, ran)| ran),
        cause: Some(Protocol::AbstractSyntaxErrorIgnoreAndNotify.into()),
        criticality_diagnostics: Some(diagnostics),
        s_tmsi: None,
    };
    send_answer(gnb, &Pdu::ErrorIndication(indication));
}

/// The connection that a gNB's message is about.
fn ue_ngap_ids(pdu: &Pdu) -> Option<(AmfUeNgapId, RanUeNgapId)> {
    macro_rules! ids {
        ($($name:ident),*) => {
            match pdu {
                $(Pdu::$name(message) => Some((message.amf_ue_ngap_id, message.ran_ue_ngap_id)),)*
                _ => None,
            }
        };
    }
    ids!(
        UplinkNasTransport,
        NasNonDeliveryIndication,
        InitialContextSetupResponse,
        InitialContextSetupFailure,
        UeContextReleaseRequest,
        UeContextReleaseComplete,
        UeContextModificationResponse,
        UeContextModificationFailure,
        UeRadioCapabilityInfoIndication,
        PduSessionResourceSetupResponse,
        PduSessionResourceReleaseResponse,
        PduSessionResourceModifyResponse,
        PduSessionResourceNotify
    )
}

/// Answers a message that was understood and cannot be handled with an Error Indication.
fn refuse(gnb: &Gnb, pdu: &Pdu, cause: Cause) {
    counters::N2_REJECTED.inc(cause_name(cause));
    tracing::debug!(gnb = gnb.label(), message = pdu.name(), %cause, "N2 message refused");
    let ids = ue_ngap_ids(pdu);
    indicate(gnb, ids.map(|(amf, _)| amf), ids.map(|(_, ran)| ran), cause);
}

/// Sends an Error Indication (TS 38.413 §8.7.5).
pub(crate) fn indicate(gnb: &Gnb, amf: Option<AmfUeNgapId>, ran: Option<RanUeNgapId>, cause: Cause) {
    let indication = ErrorIndication {
        amf_ue_ngap_id: amf,
        ran_ue_ngap_id: ran,
        cause: Some(cause),
        criticality_diagnostics: None,
        s_tmsi: None,
    };
    send_answer(gnb, &Pdu::ErrorIndication(indication));
}

/// Sends without waiting: a gNB that does not read answers to its errors loses them.
pub(crate) fn send_answer(gnb: &Gnb, pdu: &Pdu) {
    if let Some(octets) = encode(pdu)
        && gnb.try_send_common(octets).is_err()
    {
        counters::N2_REJECTED.inc("answer_not_sent");
    }
}

/// Encodes a message of ours; `None` (counted) for a value that NGAP cannot carry.
pub(crate) fn encode(pdu: &Pdu) -> Option<Bytes> {
    match pdu.encode() {
        Ok(octets) => Some(octets),
        Err(error) => {
            counters::N2_REJECTED.inc("not_encodable");
            tracing::error!(message = pdu.name(), %error, "N2 message not sent");
            None
        }
    }
}

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::RadioNetwork(cause) => cause.name(),
        Cause::Transport(cause) => cause.name(),
        Cause::Nas(cause) => cause.name(),
        Cause::Protocol(cause) => cause.name(),
        Cause::Misc(cause) => cause.name(),
    }
}

/// Longest NAS message. No UE can send more: a NAS message travels in one RRC message, and that in one
/// PDCP SDU of at most 9,000 octets (TS 38.323 §4.3.1). A longer one would only fill the queues of UEs.
pub(crate) const MAX_NAS_OCTETS: usize = 9_000;

/// Handles a message on a UE's connection.
fn ue_message(gnb: &Arc<Gnb>, pdu: Pdu, received: Instant) {
    let Some((amf_id, ran_id)) = ue_ngap_ids(&pdu) else {
        // A message that only an AMF sends, or for which this AMF has no procedure.
        return refuse(gnb, &pdu, Protocol::MessageNotCompatibleWithReceiverState.into());
    };
    let ue = match gnb.owner(amf_id, ran_id) {
        Owner::Ue(ue) => ue,
        Owner::UnknownLocal => {
            // A release of the gNB and one of ours crossed: complete, no error (TS 38.413 §8.3.3).
            if matches!(pdu, Pdu::UeContextReleaseComplete(_)) {
                return;
            }
            return refuse(gnb, &pdu, RadioNetwork::UnknownLocalUeNgapId.into());
        }
        Owner::InconsistentRemote => {
            return refuse(gnb, &pdu, RadioNetwork::InconsistentRemoteUeNgapId.into());
        }
    };
    if matches!(pdu, Pdu::UeContextReleaseComplete(_)) {
        gnb.released(amf_id);
    }
    let event = match pdu {
        Pdu::UplinkNasTransport(transport) if transport.nas_pdu.len() > MAX_NAS_OCTETS => {
            return counters::N2_REJECTED.inc("nas_too_long");
        }
        Pdu::UplinkNasTransport(transport) => {
            UeEvent::Nas { link: amf_id, pdu: transport.nas_pdu, location: transport.user_location, received }
        }
        pdu => UeEvent::N2 { link: amf_id, pdu: Box::new(pdu), received },
    };
    hand_over(&ue, event);
}

/// Queues an event for a UE. If the queue is full, the event is dropped: NAS and N2 procedures repeat
/// or time out by themselves, and the gNB's other UEs must not wait.
fn hand_over(ue: &UeHandle, event: UeEvent) {
    if let Err(event) = ue.send(event) {
        counters::UE_QUEUE_FULL.inc(event.name());
    }
}

/// Handles an Error Indication: the gNB found an error in a message of ours (TS 38.413 §8.7.5).
fn error_indication(gnb: &Arc<Gnb>, indication: ErrorIndication, received: Instant) {
    let cause = indication.cause.map_or("none", cause_name);
    counters::ERROR_INDICATIONS.inc(cause);
    tracing::debug!(gnb = gnb.label(), cause, "Error Indication received");
    let (Some(amf_id), Some(ran_id)) = (indication.amf_ue_ngap_id, indication.ran_ue_ngap_id) else { return };
    if let Owner::Ue(ue) = gnb.owner(amf_id, ran_id) {
        hand_over(&ue, UeEvent::N2 { link: amf_id, pdu: Box::new(indication.into()), received });
    }
}
