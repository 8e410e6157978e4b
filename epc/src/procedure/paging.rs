//! Network-triggered service request (TS 23.401 §5.3.4.3, TS 29.274 §7.2.11): packets for an idle UE have the MME page it.

use std::sync::Arc;
use std::time::Duration;

use gtpv2c::Message;
use gtpv2c::message::DownlinkDataNotification;
use gtpv2c::value::{Cause, CauseValue, Ebi};
use net::time;
use telemetry::counters::{Counter, Family};

use super::{delete_session, modify};
use crate::context::{Gateway, Paging, Ue};
use crate::rules::{self, Downlink};

static NOTIFIED: Counter = Counter::new("epc_downlink_data_notifications");
static ANSWERS: Family = Family::new("epc_downlink_data_notification_answer", "cause");
static UNREACHABLE: Counter = Counter::new("epc_ue_unreachable");

/// Asks the MME to page a UE, unless it does already. `cause` says why if not for a packet.
pub(crate) async fn notify(gateway: Arc<Gateway>, ue: Arc<Ue>, ebi: Ebi, cause: Option<CauseValue>) {
    let (mme, arp, count) = {
        let mut state = ue.state.lock().await;
        if state.gone || state.is_connected() || state.paging != Paging::No {
            return;
        }
        let Some(mme) = state.mme else { return };
        let arp = state.bearer(ebi).map(|(_, bearer)| bearer.qos.arp);
        (mme.f_teid, arp, state.set_paging(Paging::Asked))
    };
    NOTIFIED.inc();
    let message = DownlinkDataNotification {
        cause: cause.map(Cause::from),
        ebis: vec![ebi],
        arp,
        ..Default::default()
    };
    let answer = gateway.gtpc.request(mme, message).await;
    let cause = match answer {
        Ok(Message::DownlinkDataNotificationAcknowledge(answer)) => answer.cause.value,
        Ok(_) => CauseValue::INVALID_REPLY_FROM_REMOTE_PEER,
        Err(error) => {
            tracing::debug!(imsi = %ue.imsi, %error, "the MME does not answer a downlink data notification");
            CauseValue::REMOTE_PEER_NOT_RESPONDING
        }
    };
    ANSWERS.inc(&cause.0.to_string());
    match cause {
        // The MME has lost the UE (TS 23.007 §17.2).
        CauseValue::CONTEXT_NOT_FOUND => {
            let mut state = ue.state.lock().await;
            if state.paging_count == count {
                tracing::info!(imsi = %ue.imsi, "the MME has lost the UE");
                delete_session::end_served(&gateway, &ue, &mut state).await;
            }
        }
        CauseValue::UNABLE_TO_PAGE_UE | CauseValue::UE_NOT_RESPONDING | CauseValue::SERVICE_DENIED => {
            give_up(&gateway, &ue, count).await;
        }
        // The UE comes by itself, or the MME tries: a Modify Bearer Request follows.
        _ => {
            time::sleep(Duration::from_millis(gateway.config.timers.paging_guard_ms)).await;
            ask_again(&gateway, &ue, count).await;
        }
    }
}

/// Downlink Data Notification Failure Indication: the UE has not answered.
pub(crate) async fn failed(gateway: Arc<Gateway>, peer: std::net::IpAddr, teid: u32) {
    let Some(ue) = gateway.ues.by_teid(teid) else { return };
    let count = {
        let state = ue.state.lock().await;
        let is_its_mme = state.mme.is_some_and(|mme| mme.is_at(peer));
        if state.gone || !is_its_mme || state.paging != Paging::Asked {
            return;
        }
        state.paging_count
    };
    give_up(&gateway, &ue, count).await;
}

/// The UE cannot be reached: its packets are dropped for some time. Then the next one has it paged again.
async fn give_up(gateway: &Gateway, ue: &Ue, count: u32) {
    let count = {
        let mut state = ue.state.lock().await;
        if state.gone || state.paging_count != count {
            return;
        }
        UNREACHABLE.inc();
        for pdn in state.served() {
            let all: Vec<_> = pdn.bearers.iter().map(|bearer| bearer.slot).collect();
            if let Err(error) = modify(gateway, pdn, rules::discard(all)).await {
                tracing::debug!(imsi = %ue.imsi, %error, "packets of a UE that cannot be reached");
            }
        }
        state.set_paging(Paging::Unreachable)
    };
    time::sleep(Duration::from_millis(gateway.config.timers.unreachable_ms)).await;
    ask_again(gateway, ue, count).await;
}

/// The UPF reports the next packet, unless something has happened since.
async fn ask_again(gateway: &Gateway, ue: &Ue, count: u32) {
    let mut state = ue.state.lock().await;
    if state.gone || state.paging_count != count || state.is_connected() {
        return;
    }
    state.set_paging(Paging::No);
    for pdn in state.served() {
        let all: Vec<_> = pdn.bearers.iter().map(|bearer| (bearer.slot, Downlink::Buffered)).collect();
        if let Err(error) = modify(gateway, pdn, rules::change_downlink(pdn.role, all)).await {
            tracing::debug!(imsi = %ue.imsi, %error, "packets of an idle UE");
        }
    }
}
