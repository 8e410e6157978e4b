//! Noticing that NFs of a type restarted (TS 23.527 §6.2, TS 29.510 §6.1.6.2.2 `recoveryTime`).
//!
//! An NF that restarted has lost the contexts of its peers. A [`Watch`] subscribes at the NRF to the
//! instances of a type and reads the recovery time in their profiles: from notifications, which the
//! NF's router passes to [`Watch::notified`], and from a discovery at each renewal, in case a
//! notification was lost or the NRF restarted. A notification has no other effect than that its
//! receiver asks the restarted NF itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use net::time;
use sbi::model::common::{DateTime, NfInstanceId};
use sbi::model::nrf::{
    NfProfile, NfType, NotificationData, NotificationEventType, SubscrCond, SubscriptionData,
};
use sbi::op::nrf::{
    DiscoverNf, DiscoverNfRequest, NfStatusNotify, SubscribeNf, SubscribeNfRequest, UnsubscribeNf,
    UnsubscribeNfRequest,
};
use sbi::{ApiRoot, CallError, Client, Notification, ProblemDetails, Target, callback_uri};
use telemetry::counters::Family;
use tokio::sync::mpsc;

static RESTARTS: Family = Family::new("nf_peer_restarts", "nf");

/// Time between renewals, and so the delay after a lost notification.
const RENEWAL: Duration = Duration::from_secs(30);
/// First pause after the NRF did not answer; doubles up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_millis(20);
const MAX_RETRY: Duration = Duration::from_secs(2);
/// Most watched instances: more of one type than a network has.
const MAX_INSTANCES: usize = 1024;
/// Most restarts not yet handled; others are found at the next renewal.
const MAX_RESTARTS: usize = 64;

/// The instances of one NF type, and when each started.
#[derive(Debug)]
pub struct Watch {
    nf_type: NfType,
    /// Last segment of the callback URI.
    id: String,
    known: Mutex<BTreeMap<NfInstanceId, DateTime>>,
    restarted: mpsc::Sender<NfProfile>,
}

impl Watch {
    pub(crate) fn new(nf_type: NfType) -> (Arc<Self>, mpsc::Receiver<NfProfile>) {
        let (restarted, receiver) = mpsc::channel(MAX_RESTARTS);
        let id = format!("{:016x}", crate::random::u64());
        (Arc::new(Self { nf_type, id, known: Mutex::default(), restarted }), receiver)
    }

    /// Nnrf_NFManagement_NFStatusNotify.
    ///
    /// # Errors
    /// 404 if the notification is not for this watch.
    pub fn notified(&self, notification: Notification<NotificationData>) -> Result<(), ProblemDetails> {
        if notification.id != self.id {
            return Err(ProblemDetails::resource_uri_structure_not_found());
        }
        let NotificationData { event, nf_profile, .. } = notification.body;
        // The profile in a deregistration is an old one, and may arrive after the new one.
        if let Some(profile) = nf_profile.filter(|_| event != NotificationEventType::Deregistered) {
            self.observe(profile);
        }
        Ok(())
    }

    /// Compares an instance's recovery time with the previous one.
    fn observe(&self, profile: NfProfile) {
        let Some(started) = profile.recovery_time.clone().filter(|_| profile.nf_type == self.nf_type) else {
            return;
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.get(&profile.nf_instance_id);
        if before == Some(&started) || (before.is_none() && known.len() >= MAX_INSTANCES) {
            return;
        }
        if before.is_some() {
            let (nf, id) = (profile.nf_type.clone(), profile.nf_instance_id);
            if self.restarted.try_send(profile).is_err() {
                return;
            }
            RESTARTS.inc(nf.as_str());
            tracing::warn!(%nf, %id, "a peer restarted");
            known.insert(id, started);
        } else {
            known.insert(profile.nf_instance_id, started);
        }
    }

    /// Keeps the subscription until the task is dropped.
    pub(crate) async fn run(self: Arc<Self>, client: Client, nrf: ApiRoot, own: ApiRoot) {
        let target = Target::At(nrf);
        let mut subscription: Option<String> = None;
        let mut retry = MIN_RETRY;
        loop {
            if let Some(subscription_id) = subscription.take() {
                // An NRF that restarted does not know the subscription.
                let request = UnsubscribeNfRequest { subscription_id, body: () };
                let _ = client.call::<UnsubscribeNf>(target.clone(), request).await;
            }
            match self.subscribe(&client, &target, &own).await {
                Ok(id) => {
                    (subscription, retry) = (id, MIN_RETRY);
                    time::sleep(RENEWAL).await;
                }
                Err(error) => {
                    tracing::debug!(nf = %self.nf_type, %error, "not subscribed at NRF");
                    time::sleep(retry).await;
                    retry = (retry * 2).min(MAX_RETRY);
                }
            }
        }
    }

    /// Subscribes, then reads the registered instances: in this order no restart is missed. Returns the
    /// subscription's identifier.
    async fn subscribe(
        &self,
        client: &Client,
        nrf: &Target,
        own: &ApiRoot,
    ) -> Result<Option<String>, CallError> {
        let body = SubscriptionData {
            nf_status_notification_uri: callback_uri::<NfStatusNotify>(own.as_str(), &self.id),
            req_nf_instance_id: None,
            subscr_cond: Some(SubscrCond { nf_type: Some(self.nf_type.clone()), ..SubscrCond::default() }),
            subscription_id: None,
            validity_time: None,
            req_notif_events: Vec::new(),
            req_nf_type: Some(client.config().requester.clone()),
        };
        let created = client.call::<SubscribeNf>(nrf.clone(), SubscribeNfRequest { body }).await?;
        let request = DiscoverNfRequest {
            target_nf_type: self.nf_type.clone(),
            requester_nf_type: client.config().requester.clone(),
            service_names: None,
            dnn: None,
            snssais: None,
            target_plmn_list: None,
            guami: None,
            target_nf_instance_id: None,
            limit: None,
            body: (),
        };
        let found = client.call::<DiscoverNf>(nrf.clone(), request).await?;
        found.nf_instances.into_iter().for_each(|profile| self.observe(profile));
        Ok(created.body.subscription_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(id: u128, nf_type: &str, started: &str) -> NfProfile {
        serde_json::from_value(serde_json::json!({
            "nfInstanceId": NfInstanceId::from_random(id), "nfType": nf_type, "nfStatus": "REGISTERED",
            "recoveryTime": started,
        }))
        .unwrap()
    }

    #[test]
    fn a_changed_recovery_time_is_a_restart_and_nothing_else_is() {
        let (watch, mut restarts) = Watch::new(NfType::Smf);
        let (early, late) = ("2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00.002Z");
        watch.observe(profile(1, "SMF", early));
        watch.observe(profile(1, "SMF", early));
        watch.observe(profile(2, "SMF", late));
        watch.observe(profile(1, "AMF", late));
        assert!(restarts.try_recv().is_err());
        watch.observe(profile(1, "SMF", late));
        watch.observe(profile(1, "SMF", late));
        assert_eq!(restarts.try_recv().unwrap().nf_instance_id, NfInstanceId::from_random(1));
        assert!(restarts.try_recv().is_err());
    }

    #[test]
    fn a_restart_that_found_no_room_is_noticed_later() {
        let (watch, mut restarts) = Watch::new(NfType::Smf);
        let of = |n: usize, started: &str| profile(n as u128, "SMF", started);
        for n in 0..=MAX_RESTARTS {
            watch.observe(of(n, "2026-01-01T00:00:00Z"));
            watch.observe(of(n, "2026-01-01T00:00:01Z"));
        }
        for _ in 0..MAX_RESTARTS {
            restarts.try_recv().unwrap();
        }
        assert!(restarts.try_recv().is_err());
        watch.observe(of(MAX_RESTARTS, "2026-01-01T00:00:01Z"));
        assert!(restarts.try_recv().is_ok());
    }
}
