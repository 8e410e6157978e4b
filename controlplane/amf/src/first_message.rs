//! The first message of a connection: it goes to the UE's task, or waits until a task for the UE may
//! start.
//!
//! While a registration of a UE without proven identity waits, the AMF keeps its first message and
//! nothing else: no context, no queue, no procedure. It starts when it is its turn for a place of
//! `limits.registrations` ([`crate::admission`]). Deregistrations that need an authentication wait in the
//! same way. So a crowd costs little while it waits, and does not slow down the registrations that run.
//! After `timers.admission_ms` the UE is refused with 5GMM cause #22.
//!
//! A message that the task of a known UE may be able to verify goes to that task at once: registered UEs
//! do not wait.

use std::sync::Arc;
use std::time::Duration;

use net::time::Instant;
use ngap::cause::{Misc, Nas, Protocol};
use ngap::{Cause, DownlinkNasTransport, InitialUeMessage, Pdu, UeContextReleaseCommand, UeNgapIds};

use crate::admission::{Class, Place, Room, Ticket};
use crate::context::{Amf, WAITING_OCTETS};
use crate::counters;
use crate::event::{Initial, UeEvent};
use crate::gnb::{Gnb, N2Link};
use crate::n1;
use crate::n2::{self, MAX_NAS_OCTETS};
use crate::ue::Ue;

/// Handles an INITIAL UE MESSAGE: finds the UE's task, or starts one when it is the UE's turn.
pub(crate) fn initial_ue_message(
    amf: &Arc<Amf>,
    gnb: &Arc<Gnb>,
    message: InitialUeMessage,
    received: Instant,
) {
    let ran_id = message.ran_ue_ngap_id;
    if message.nas_pdu.len() > MAX_NAS_OCTETS {
        counters::N2_REJECTED.inc("nas_too_long");
        return n2::indicate(gnb, None, Some(ran_id), Protocol::Unspecified.into());
    }
    if gnb.is_duplicate(ran_id, &message.nas_pdu) {
        counters::N2_REJECTED.inc("duplicate_initial");
        return;
    }
    let sender = n1::sender(amf, &message.nas_pdu);
    let known = sender.tmsi.and_then(|tmsi| amf.ues.by_tmsi(tmsi));
    let link = gnb.bind(amf.ue_ngap_id(), ran_id, known.clone(), message.nas_pdu.clone());
    let initial = Box::new(Initial {
        link,
        pdu: message.nas_pdu,
        location: message.user_location,
        received,
        claimed: None,
        verified: None,
    });
    let event = UeEvent::Initial(initial);
    let unclaimed = match known {
        Some(ue) => ue.send(event),
        None => Err(event),
    };
    // Also if its task has just ended: the UE comes back right after deregistering.
    if let Err(UeEvent::Initial(initial)) = unclaimed {
        admit(amf, initial, sender.name);
    }
}

/// Starts a task for the sender of a first message: at once or, if the sender has to be authenticated,
/// when it is the turn of its `name`.
pub(crate) fn admit(amf: &Arc<Amf>, initial: Box<Initial>, name: Option<String>) {
    let Some(name) = name else { return start(amf, initial, None) };
    let (class, name) = match initial.claimed {
        Some(supi) => (Class::Claimed, supi.to_string()),
        None => (Class::Unknown, name),
    };
    if let Some(place) = amf.admission.starts.try_enter() {
        return start(amf, initial, Some((place, name)));
    }
    let host = initial.link.gnb.host();
    let Some(room) = amf.admission.room_to_wait(host, WAITING_OCTETS + initial.pdu.len()) else {
        return too_many(amf, &initial);
    };
    let ticket = amf.admission.starts.enter(class, host, &name);
    tokio::spawn(wait(amf.clone(), initial, class, name, ticket, room));
}

/// Waits for the turn of a first message, unless its gNB releases the connection before.
async fn wait(
    amf: Arc<Amf>,
    mut initial: Box<Initial>,
    class: Class,
    name: String,
    mut ticket: Ticket,
    room: Room,
) {
    let deadline = initial.received + Duration::from_millis(amf.config.timers.admission_ms);
    let refusal = tokio::select! {
        biased;
        _ = initial.link.down() => return,
        turn = ticket.granted() => match turn {
            Some(place) => {
                drop(room);
                return start(&amf, initial, Some((place, name)));
            }
            None => {
                counters::NOT_ADMITTED.inc("newer_of_same_name");
                // Without #22: after an unprotected #22 a UE waits for 15 minutes or more (TS 24.501
                // §5.5.1.2.5), so a flood in a UE's name would shut the UE out. After the release of
                // the connection it tries again when T3511 expires.
                vec![release(&initial.link, Misc::ControlProcessingOverload.into())]
            }
        },
        () = net::time::sleep_until(deadline) => {
            counters::NOT_ADMITTED.inc(class.name());
            congestion(&amf, &initial)
        }
    };
    for pdu in refusal {
        let Some(octets) = n2::encode(&pdu) else { return };
        if initial.link.send(octets).await.is_err() {
            return;
        }
    }
}

/// Starts the UE's task with its first message. A registration has a place, and the name under which it waited.
fn start(amf: &Arc<Amf>, initial: Box<Initial>, registration: Option<(Place, String)>) {
    let gnb = initial.link.gnb.clone();
    let Some((handle, queue, mut room)) = amf.new_ue(&gnb, initial.pdu.len()) else {
        return too_many(amf, &initial);
    };
    let place = registration.map(|(place, name)| {
        if room.set_owner(&name, &handle) {
            counters::NOT_ADMITTED.inc("newer_of_same_name");
        }
        place
    });
    gnb.rebind(initial.link.amf_id, handle.clone());
    Ue::spawn(amf.clone(), handle, queue, room, place, initial);
}

/// Refuses a UE because there are too many. Does not wait until its gNB reads the messages.
fn too_many(amf: &Amf, initial: &Initial) {
    counters::N2_REJECTED.inc("too_many_ues");
    for pdu in congestion(amf, initial) {
        n2::send_answer(&initial.link.gnb, &pdu);
    }
}

/// The messages that refuse a UE: 5GMM cause #22, if its message has such an answer, and the release of
/// the connection.
fn congestion(amf: &Amf, initial: &Initial) -> Vec<Pdu> {
    let link = &initial.link;
    let Some(nas_pdu) = n1::congestion_reject(&amf.config, &initial.pdu) else {
        return vec![release(link, Misc::ControlProcessingOverload.into())];
    };
    let reject = DownlinkNasTransport {
        amf_ue_ngap_id: link.amf_id,
        ran_ue_ngap_id: link.ran_id,
        old_amf: None,
        nas_pdu,
        ue_ambr: None,
        allowed_nssai: None,
    };
    vec![Pdu::DownlinkNasTransport(reject), release(link, Nas::NormalRelease.into())]
}

fn release(link: &N2Link, cause: Cause) -> Pdu {
    let ue_ngap_ids = UeNgapIds::Pair(link.amf_id, link.ran_id);
    Pdu::UeContextReleaseCommand(UeContextReleaseCommand { ue_ngap_ids, cause })
}
