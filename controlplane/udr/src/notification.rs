//! Nudr_DataRepository_Notify (TS 29.504 §5.2.2.8): notifies UDMs when an operator has changed a
//! subscriber.
//!
//! The store records a change in the transaction that makes it, whichever process makes it, and only
//! for subscribers whose UE is served by an AMF. The UDR reads these records each second, and deletes
//! each when a UDM has accepted the notification. So every change is notified at least once, also if
//! this process or the UDMs were down meanwhile. One UDM is enough, because the UDR and not the UDM
//! keeps who subscribed to the subscriber's data. The subscription of a UDM that cannot be reached is
//! deleted until that UDM subscribes again.

use std::sync::Arc;
use std::time::Duration;

use nf::Shutdown;
use sbi::model::udr::{DataChangeNotify, SubscriptionDataSubscriptions};
use sbi::op::udr::DataChange;
use sbi::{CallError, Client};
use store::{Store, StoreError};
use telemetry::counters::Counter;

use crate::service::SUBS_TO_NOTIFY;

/// How often the UDR reads the recorded changes.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most changes notified per interval, so that a large import does not flood the UDM.
const AT_ONCE: usize = 256;

/// Notifications that no UDM accepted; they are repeated.
static NOTIFICATIONS_FAILED: Counter = Counter::new("udr_notifications_failed");

/// Notifies UDMs until the UDR stops.
pub(crate) async fn run(store: Arc<dyn Store>, client: Client, stopping: Shutdown) {
    let mut interval = net::time::interval(INTERVAL);
    loop {
        tokio::select! {
            () = stopping.wait() => return,
            _ = interval.tick() => {}
        }
        if let Err(error) = notify(&*store, &client).await {
            tracing::error!(%error, "changes of subscribers were not notified");
        }
    }
}

/// Notifies UDMs of the recorded changes.
async fn notify(store: &dyn Store, client: &Client) -> Result<(), StoreError> {
    let changes = store.changed_subscribers(AT_ONCE).await?;
    if changes.is_empty() {
        return Ok(());
    }
    let mut udms = Vec::new();
    for (key, document) in store.contexts(SUBS_TO_NOTIFY, "").await? {
        match serde_json::from_str::<SubscriptionDataSubscriptions>(&document) {
            Ok(subscription) => udms.push((key, subscription)),
            Err(error) => tracing::error!(%error, key, "a subscription to changes is unreadable"),
        }
    }
    for change in changes {
        let mut notified = false;
        let mut unreachable = Vec::new();
        for (key, udm) in &udms {
            if udm.ue_id.is_some_and(|only| only != change.supi) {
                continue;
            }
            let body = DataChangeNotify {
                original_callback_reference: vec![udm.callback_reference.clone()],
                ue_id: Some(change.supi),
                notify_items: Vec::new(),
            };
            let Err(error) = client.notify::<DataChange>(&udm.callback_reference, body).await else {
                notified = true;
                break;
            };
            NOTIFICATIONS_FAILED.inc();
            tracing::warn!(%error, supi = %change.supi, "a UDM could not be notified of a change");
            // One that is slow stays.
            if matches!(error, CallError::Unreachable { .. }) {
                unreachable.push(key.clone());
            }
        }
        for key in unreachable {
            store.remove_context(SUBS_TO_NOTIFY, &key).await?;
            udms.retain(|(known, _)| *known != key);
        }
        if notified {
            store.change_notified(change).await?;
        }
    }
    Ok(())
}
