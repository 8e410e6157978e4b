//! Changes of subscriptions: Nudm_SDM_Subscribe, Unsubscribe and Notification (TS 29.503 §5.2.2.3 to §5.2.2.5), and
//! Nudm_UECM_DeregistrationNotification for removed subscribers (§5.3.2.3).
//!
//! The UDR keeps the subscriptions: one for each subscriber and network function. The UDR notifies the UDM of
//! changes. For that the UDM subscribes at the UDR when it starts, and again from time to time.
//!
//! The UDM reads from the UDR whom to notify, queues the notifications ([`crate::delivery`]) and then answers the
//! UDR. A notification has no values: the receiver reads the subscription when it gets it. A notification that fails
//! is counted and not repeated: the receiver either has lost its UEs, or reads the data again when they register. A
//! UDM that is killed loses the notifications that wait, to the same effect.

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

use crate::{
    Udm,
    delivery::{Content, Subject},
};

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
        Ok(self.delete_subscription(request.ue_id, request.subscription_id).await?)
    }

    pub(crate) async fn delete_subscription(
        &self,
        ue_id: Supi,
        subs_id: String,
    ) -> Result<(), sbi::CallError> {
        let delete = udr::DeleteSdmSubscriptionRequest { ue_id, subs_id, body: () };
        self.client.call::<udr::DeleteSdmSubscription>(Target::Discover, delete).await
    }

    /// Nudr_DR_Notify: an operator has changed a subscriber, or removed it. The answer does not wait for the
    /// network functions that are notified.
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

    /// Queues notifications for the network functions that subscribed to the subscriber's data.
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
                subscription_id: subscription.subscription_id,
            };
            let subject = Subject { supi, uri: subscription.callback_reference };
            self.deliveries.offer(subject, Content::Changed(body));
        }
        Ok(())
    }

    /// Queues a notification for the serving AMF: the subscriber was removed.
    async fn notify_withdrawal(&self, supi: Supi) -> Result<(), ProblemDetails> {
        let serving = self.amf_registration(supi).await?;
        if let Some(serving) = serving.filter(|amf| amf.purge_flag != Some(true)) {
            self.notify_deregistration(supi, serving, DeregistrationReason::SubscriptionWithdrawn);
        }
        Ok(())
    }

    /// Queues Nudm_UECM_DeregistrationNotification for an AMF.
    pub(crate) fn notify_deregistration(
        &self,
        supi: Supi,
        amf: Amf3GppAccessRegistration,
        dereg_reason: DeregistrationReason,
    ) {
        let data = DeregistrationData {
            dereg_reason,
            access_type: Some(AccessType::ThreeGpp),
            pdu_session_id: None,
            new_smf_instance_id: None,
        };
        let subject = Subject { supi, uri: amf.dereg_callback_uri };
        self.deliveries.offer(subject, Content::Deregistered(data));
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
