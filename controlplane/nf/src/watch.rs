//! Noticing that peers restarted (TS 23.527 §6.2, TS 29.510 §6.1.6.2.2 `recoveryTime`).
//!
//! An NF that restarted has forgotten what its peers have with it. A [`Watch`] subscribes at NRF to instances of some
//! types and reads the recovery time of their profiles. It reads them from NRF itself: at each renewal, which makes up
//! for notifications that were lost and for an NRF that restarted, and as soon as a notification comes, which the NF's
//! router hands to [`Watch::notified`]. What the notification says is not believed.
//!
//! The NF gets the profile of every instance that started since it was last seen, and of those seen first: an instance
//! that starts under a new identifier, at the address of one that died, is as forgetful. The receiver then asks the
//! peer what it still has, or compares the recovery time with the age of what it has with the peer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use net::time;
use sbi::model::common::{DateTime, NfInstanceId};
use sbi::model::nrf::{NfProfile, NfType, NotificationData, SubscrCond, SubscriptionData};
use sbi::op::nrf::{
    DiscoverNf, DiscoverNfRequest, NfStatusNotify, SubscribeNf, SubscribeNfRequest, UnsubscribeNf,
    UnsubscribeNfRequest,
};
use sbi::{ApiRoot, CallError, Client, Notification, ProblemDetails, Target, callback_uri};
use telemetry::counters::Family;
use tokio::sync::{Notify, mpsc};

static RESTARTS: Family = Family::new("nf_peer_restarts", "nf");

/// Time between renewals, and so the delay after a lost notification.
const RENEWAL: Duration = Duration::from_secs(30);
/// Pause between two readings, however many notifications come.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// First pause after NRF did not answer; doubles up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_millis(20);
const MAX_RETRY: Duration = Duration::from_secs(2);
/// Instances watched at most: more than a network has.
const MAX_INSTANCES: usize = 1024;
/// Starts not yet dealt with at most.
const MAX_STARTED: usize = 64;

/// The instances of some types of NFs, and when each started.
#[derive(Debug)]
pub struct Watch {
    nf_types: Vec<NfType>,
    /// Last segment of the callback URI.
    id: String,
    known: Mutex<BTreeMap<NfInstanceId, DateTime>>,
    started: mpsc::Sender<NfProfile>,
    notified: Notify,
}

impl Watch {
    pub(crate) fn new(nf_types: &[NfType]) -> (Arc<Self>, mpsc::Receiver<NfProfile>) {
        let (started, receiver) = mpsc::channel(MAX_STARTED);
        let (nf_types, id) = (nf_types.to_vec(), format!("{:016x}", crate::random::u64()));
        let (known, notified) = Default::default();
        (Arc::new(Self { nf_types, id, known, started, notified }), receiver)
    }

    /// Nnrf_NFManagement_NFStatusNotify.
    ///
    /// # Errors
    /// 404 if the notification is not for this watch.
    pub fn notified(&self, notification: Notification<NotificationData>) -> Result<(), ProblemDetails> {
        if notification.id != self.id {
            return Err(ProblemDetails::resource_uri_structure_not_found());
        }
        self.notified.notify_one();
        Ok(())
    }

    /// Compares an instance's recovery time with the previous one.
    fn observe(&self, profile: NfProfile) {
        let watched = self.nf_types.contains(&profile.nf_type);
        let Some(started) = profile.recovery_time.clone().filter(|_| watched) else { return };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (nf, id) = (profile.nf_type.clone(), profile.nf_instance_id);
        let before = known.get(&id);
        if before == Some(&started) || (before.is_none() && known.len() >= MAX_INSTANCES) {
            return;
        }
        // What finds no room is found at the next reading.
        if self.started.try_send(profile).is_ok() && known.insert(id, started).is_some() {
            RESTARTS.inc(nf.as_str());
            tracing::warn!(%nf, %id, "a peer restarted");
        }
    }

    /// Keeps the subscriptions, until the task is dropped.
    pub(crate) async fn run(self: Arc<Self>, client: Client, nrf: ApiRoot, own: ApiRoot) {
        let target = Target::At(nrf);
        let mut retry = MIN_RETRY;
        let mut subscriptions = Vec::new();
        loop {
            for subscription_id in subscriptions.drain(..) {
                // An NRF that restarted does not know it.
                let request = UnsubscribeNfRequest { subscription_id, body: () };
                let _ = client.call::<UnsubscribeNf>(target.clone(), request).await;
            }
            match self.watch(&client, &target, &own, &mut subscriptions).await {
                Ok(()) => retry = MIN_RETRY,
                Err(error) => {
                    tracing::debug!(nfs = ?self.nf_types, %error, "peers are not watched");
                    time::sleep(retry).await;
                    retry = (retry * 2).min(MAX_RETRY);
                }
            }
        }
    }

    /// Subscribes, then reads what is registered, in this order that no restart is missed, and again when notified.
    /// Returns when it is time to renew.
    async fn watch(
        &self,
        client: &Client,
        nrf: &Target,
        own: &ApiRoot,
        subscriptions: &mut Vec<String>,
    ) -> Result<(), CallError> {
        for nf_type in &self.nf_types {
            let body = SubscriptionData {
                nf_status_notification_uri: callback_uri::<NfStatusNotify>(own.as_str(), &self.id),
                req_nf_instance_id: None,
                subscr_cond: Some(SubscrCond { nf_type: Some(nf_type.clone()), ..SubscrCond::default() }),
                subscription_id: None,
                validity_time: None,
                req_notif_events: Vec::new(),
                req_nf_type: Some(client.config().requester.clone()),
            };
            let created = client.call::<SubscribeNf>(nrf.clone(), SubscribeNfRequest { body }).await?;
            subscriptions.extend(created.body.subscription_id);
        }
        let renewal = time::now() + RENEWAL;
        loop {
            for nf_type in &self.nf_types {
                self.read(client, nrf, nf_type.clone()).await?;
            }
            time::sleep(MIN_PAUSE).await;
            let rest = renewal.saturating_duration_since(time::now());
            if time::timeout(rest, self.notified.notified()).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Reads the instances of a type.
    async fn read(&self, client: &Client, nrf: &Target, target_nf_type: NfType) -> Result<(), CallError> {
        let request = DiscoverNfRequest {
            target_nf_type,
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
        Ok(())
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
    fn an_instance_is_reported_when_it_is_new_and_when_its_recovery_time_changed() {
        let (watch, mut started) = Watch::new(&[NfType::Smf, NfType::Pcf]);
        let (early, late) = ("2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00.002Z");
        let mut next = || started.try_recv().ok().map(|profile| profile.nf_instance_id);
        let restarts = RESTARTS.get("SMF");
        for (profile, reported) in [
            (profile(1, "SMF", early), true),
            (profile(1, "SMF", early), false),
            (profile(2, "PCF", late), true),
            (profile(3, "AMF", late), false),
            (profile(1, "SMF", late), true),
            (profile(1, "SMF", late), false),
        ] {
            let id = profile.nf_instance_id;
            watch.observe(profile);
            assert_eq!(next(), reported.then_some(id));
        }
        assert_eq!(RESTARTS.get("SMF"), restarts + 1);
    }

    #[test]
    fn a_start_that_found_no_room_is_noticed_later() {
        let (watch, mut started) = Watch::new(&[NfType::Smf]);
        let of = |n: usize| profile(n as u128, "SMF", "2026-01-01T00:00:01Z");
        (0..=MAX_STARTED).for_each(|n| watch.observe(of(n)));
        for _ in 0..MAX_STARTED {
            started.try_recv().unwrap();
        }
        assert!(started.try_recv().is_err());
        watch.observe(of(MAX_STARTED));
        assert!(started.try_recv().is_ok());
    }
}
