//! Changes of subscriptions: Nudm_SDM_Subscribe, Unsubscribe and Notification (TS 29.503 §5.2.2.3 to §5.2.2.5), and
//! Nudm_UECM_DeregistrationNotification for removed subscribers (§5.3.2.3).
//!
//! The UDR keeps who wants to be notified: one subscription for each subscriber and network function.
//! The UDR tells the UDM what has changed. For that the UDM subscribes at the UDR when it starts, and
//! again from time to time.

use std::sync::Arc;
use std::time::Duration;

use nf::Shutdown;
use sbi::{
    Created, Notification, ProblemDetails, Target, callback_uri,
    model::{
        common::{AccessType, ChangeItem, ChangeType, NotifyItem},
        udm::*,
        udr::{DataChangeNotify, SubscriptionDataSubscriptions},
    },
    op::{udm::*, udr},
};
use types::Supi;

use crate::{Udm, counters};

/// Time between attempts to subscribe at the UDR.
const RETRY: Duration = Duration::from_secs(1);
/// Time until the subscription is renewed: the UDR deletes the subscription of a UDM that it could not
/// reach.
const RENEWAL: Duration = Duration::from_secs(30);

impl Udm {
    /// Nudm_SDM_Subscribe. A second subscription of the same network function replaces the first.
    pub(crate) async fn subscribe(
        self: Arc<Self>,
        request: SdmSubscribeRequest,
    ) -> Result<Created<SdmSubscription>, ProblemDetails> {
        let (ue_id, mut body) = (request.ue_id, request.body);
        let subs_id = body.nf_instance_id.to_string();
        body.subscription_id = Some(subs_id.clone());
        let put = udr::PutSdmSubscriptionRequest { ue_id, subs_id: subs_id.clone(), body: body.clone() };
        self.client.call::<udr::PutSdmSubscription>(Target::Discover, put).await?;
        Ok(Created { location: format!("/{ue_id}/sdm-subscriptions/{subs_id}"), body })
    }

    /// Nudm_SDM_Unsubscribe.
    pub(crate) async fn unsubscribe(
        self: Arc<Self>,
        request: SdmUnsubscribeRequest,
    ) -> Result<(), ProblemDetails> {
        self.forget_subscription(request.ue_id, request.subscription_id).await
    }

    async fn forget_subscription(&self, ue_id: Supi, subs_id: String) -> Result<(), ProblemDetails> {
        let delete = udr::DeleteSdmSubscriptionRequest { ue_id, subs_id, body: () };
        Ok(self.client.call::<udr::DeleteSdmSubscription>(Target::Discover, delete).await?)
    }

    /// Nudr_DR_Notify: an operator has changed a subscriber, or removed it.
    pub(crate) async fn data_changed(
        self: Arc<Self>,
        notification: Notification<DataChangeNotify>,
    ) -> Result<(), ProblemDetails> {
        let Some(supi) = notification.body.ue_id else { return Ok(()) };
        let plmn = self.serving_plmn(None);
        let query = udr::QueryAmDataRequest { ue_id: supi, serving_plmn_id: plmn, body: () };
        match self.client.call::<udr::QueryAmData>(Target::Discover, query).await {
            Ok(_) => self.notify_change(supi).await,
            Err(error) if error.status() == Some(404) => self.notify_withdrawal(supi).await,
            Err(error) => Err(error.into()),
        }
    }

    /// Notifies the network functions that subscribed to the subscriber's data. The subscription of one
    /// that no longer knows the UE is deleted. One that cannot be reached either has lost its UEs, or
    /// reads the data again when they register.
    async fn notify_change(&self, supi: Supi) -> Result<(), ProblemDetails> {
        let query = udr::QuerySdmSubscriptionsRequest { ue_id: supi, body: () };
        let subscriptions = self.client.call::<udr::QuerySdmSubscriptions>(Target::Discover, query).await?;
        for subscription in subscriptions.0 {
            let changed = |resource: &String| NotifyItem {
                resource_id: resource.clone(),
                changes: vec![ChangeItem {
                    op: ChangeType::Replace,
                    path: String::new(),
                    from: None,
                    orig_value: None,
                    new_value: None,
                }],
            };
            let body = ModificationNotification {
                notify_items: subscription.monitored_resource_uris.iter().map(changed).collect(),
                subscription_id: subscription.subscription_id.clone(),
            };
            match self.client.notify::<SdmNotify>(&subscription.callback_reference, body).await {
                Ok(()) => {}
                Err(error) if error.status() == Some(404) => {
                    if let Some(id) = subscription.subscription_id {
                        self.forget_subscription(supi, id).await?;
                    }
                }
                Err(error) => {
                    counters::NOTIFICATIONS_FAILED.inc();
                    tracing::warn!(%error, %supi, "a change of the subscription could not be notified");
                }
            }
        }
        Ok(())
    }

    /// Tells the serving AMF that the subscriber was removed.
    async fn notify_withdrawal(&self, supi: Supi) -> Result<(), ProblemDetails> {
        let serving = self.amf_registration(supi).await?;
        let Some(serving) = serving.filter(|amf| amf.purge_flag != Some(true)) else { return Ok(()) };
        let data = DeregistrationData {
            dereg_reason: DeregistrationReason::SubscriptionWithdrawn,
            access_type: Some(AccessType::ThreeGpp),
            pdu_session_id: None,
            new_smf_instance_id: None,
        };
        if let Err(error) =
            self.client.notify::<DeregistrationNotify>(&serving.dereg_callback_uri, data).await
            && error.status() != Some(404)
        {
            counters::NOTIFICATIONS_FAILED.inc();
            tracing::warn!(%error, %supi, "the AMF could not be notified that the subscriber was removed");
        }
        Ok(())
    }
}

/// Keeps the UDM subscribed to changes in the UDR until the UDM stops.
pub(crate) async fn subscribe_to_changes(client: sbi::Client, api_root: String, stopping: Shutdown) {
    let body = SubscriptionDataSubscriptions {
        ue_id: None,
        callback_reference: callback_uri::<udr::DataChange>(&api_root, "udm"),
        monitored_resource_uris: Vec::new(),
    };
    loop {
        let request = udr::SubscribeToDataRequest { body: body.clone() };
        let pause = match client.call::<udr::SubscribeToData>(Target::Discover, request).await {
            Ok(_) => RENEWAL,
            Err(error) => {
                tracing::debug!(%error, "not yet subscribed to changes in the UDR");
                RETRY
            }
        };
        tokio::select! {
            () = stopping.wait() => return,
            () = net::time::sleep(pause) => {}
        }
    }
}
