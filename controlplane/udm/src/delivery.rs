//! Delivery of notifications to AMFs and SMFs in the background: a receiver that does not answer delays neither the
//! request that caused the notification nor other receivers.
//!
//! Flow: a handler calls [`Deliveries::offer`]; [`run`] takes notifications and calls the receivers.
//!
//! Invariants: a receiver has at most [`MAX_AT_ONCE`] calls under way and [`MAX_WAITING`] notifications waiting. There
//! are at most [`MAX_RECEIVERS`] receivers with work. Two notifications about the same subscriber to the same URI are
//! never under way at the same time, and of those that wait only the latest is kept. A notification that is not
//! delivered is counted and not repeated (see [`crate::notification`]). Each call ends after the client's time-out.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nf::Shutdown;
use sbi::{
    CallError,
    model::udm::{DeregistrationData, ModificationNotification},
    op::udm::{DeregistrationNotify, SdmNotify},
};
use tokio::{sync::Notify, task::JoinSet};
use types::Supi;

use crate::{Udm, counters};

/// Calls to one receiver at once.
const MAX_AT_ONCE: usize = 8;
/// Notifications that wait for one receiver. A receiver that answers takes thousands in a second.
const MAX_WAITING: usize = 4_096;
/// Receivers with notifications that wait or are under way: far more than a core has AMFs and SMFs.
const MAX_RECEIVERS: usize = 64;

/// What a notification is about: a subscriber, and the callback URI that the receiver gave.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Subject {
    pub(crate) supi: Supi,
    pub(crate) uri: String,
}

impl Subject {
    /// Scheme, host and port of the URI.
    fn receiver(&self) -> &str {
        let path = self.uri.match_indices('/').nth(2);
        path.map_or(self.uri.as_str(), |(at, _)| &self.uri[..at])
    }
}

/// The content of a notification.
#[derive(Debug)]
pub(crate) enum Content {
    /// Nudm_SDM_Notification.
    Changed(ModificationNotification),
    /// Nudm_UECM_DeregistrationNotification.
    Deregistered(DeregistrationData),
}

/// Notifications that wait or are under way.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    /// Keys are scheme, host and port.
    receivers: Mutex<HashMap<String, Receiver>>,
    offered: Notify,
}

#[derive(Debug, Default)]
struct Receiver {
    /// Subjects of `waiting`, oldest first.
    order: VecDeque<Subject>,
    waiting: HashMap<Subject, Content>,
    under_way: HashSet<Subject>,
    /// Whether a notification was dropped since the queue was empty; the log says it once.
    overflowed: bool,
}

impl Receiver {
    /// The oldest notification whose subject has none under way.
    fn take(&mut self) -> Option<(Subject, Content)> {
        if self.under_way.len() >= MAX_AT_ONCE {
            return None;
        }
        let index = self.order.iter().position(|subject| !self.under_way.contains(subject))?;
        let subject = self.order.remove(index)?;
        let content = self.waiting.remove(&subject)?;
        self.under_way.insert(subject.clone());
        Some((subject, content))
    }
}

impl Deliveries {
    /// Queues a notification. It replaces one about the same subject that still waits.
    pub(crate) fn offer(&self, subject: Subject, content: Content) {
        let mut receivers = self.lock();
        let key = subject.receiver();
        if !receivers.contains_key(key) && receivers.len() >= MAX_RECEIVERS {
            counters::NOTIFICATIONS_FAILED.inc();
            tracing::warn!(supi = %subject.supi, "a notification is dropped: too many receivers do not answer");
            return;
        }
        let receiver = receivers.entry(key.to_owned()).or_default();
        if let Some(waiting) = receiver.waiting.get_mut(&subject) {
            *waiting = content;
            return;
        }
        if receiver.waiting.len() >= MAX_WAITING {
            counters::NOTIFICATIONS_FAILED.inc();
            if !std::mem::replace(&mut receiver.overflowed, true) {
                tracing::warn!(receiver = key, "notifications are dropped: the receiver does not answer");
            }
            return;
        }
        receiver.order.push_back(subject.clone());
        receiver.waiting.insert(subject, content);
        self.offered.notify_one();
    }

    fn take(&self) -> Option<(Subject, Content)> {
        self.lock().values_mut().find_map(Receiver::take)
    }

    /// Ends the notification under way about `subject`.
    fn ended(&self, subject: &Subject) {
        let mut receivers = self.lock();
        let Some(receiver) = receivers.get_mut(subject.receiver()) else { return };
        receiver.under_way.remove(subject);
        if receiver.waiting.is_empty() {
            receiver.overflowed = false;
            if receiver.under_way.is_empty() {
                receivers.remove(subject.receiver());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Receiver>> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Delivers notifications until the UDM stops. What waits then is still delivered, as long as the NF gives its tasks
/// time to end.
pub(crate) async fn run(udm: Arc<Udm>, stopping: Shutdown) {
    let mut calls = JoinSet::new();
    loop {
        while let Some((subject, content)) = udm.deliveries.take() {
            let call = Call { udm: udm.clone(), subject };
            calls.spawn(async move { call.deliver(content).await });
        }
        if stopping.is_triggered() && calls.is_empty() {
            return;
        }
        tokio::select! {
            () = udm.deliveries.offered.notified() => {}
            Some(_) = calls.join_next() => {}
            () = stopping.wait(), if !stopping.is_triggered() => {}
        }
    }
}

/// A notification under way. Dropping it allows the next one about its subject.
struct Call {
    udm: Arc<Udm>,
    subject: Subject,
}

impl Call {
    async fn deliver(&self, content: Content) {
        let Subject { supi, uri } = &self.subject;
        let (result, subscription) = match content {
            Content::Changed(body) => {
                let subscription = body.subscription_id.clone();
                (self.udm.client.notify::<SdmNotify>(uri, body).await, subscription)
            }
            Content::Deregistered(body) => {
                (self.udm.client.notify::<DeregistrationNotify>(uri, body).await, None)
            }
        };
        match result {
            Ok(()) => {}
            // The receiver does not know the UE, so its subscription has no use any more.
            Err(error) if error.status() == Some(404) => {
                let Some(id) = subscription else { return };
                if let Err(error) = self.udm.delete_subscription(*supi, id).await {
                    tracing::warn!(%error, %supi, "the subscription of a network function that lost the UE stays");
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&self, error: &CallError) {
        counters::NOTIFICATIONS_FAILED.inc();
        let Subject { supi, uri } = &self.subject;
        tracing::warn!(%error, %supi, uri, "a network function could not be notified");
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.udm.deliveries.ended(&self.subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(n: usize, host: &str) -> Subject {
        let supi = format!("imsi-99970{n:010}").parse().unwrap();
        Subject { supi, uri: format!("http://{host}/nudm-callback/v1/sdm-notification/x") }
    }

    fn content(id: usize) -> Content {
        Content::Changed(ModificationNotification {
            notify_items: Vec::new(),
            subscription_id: Some(id.to_string()),
        })
    }

    #[test]
    fn a_receiver_that_does_not_answer_has_bounded_work_and_holds_up_no_other() {
        let deliveries = Deliveries::default();
        let failed = counters::NOTIFICATIONS_FAILED.get();
        for n in 0..MAX_WAITING + 100 {
            deliveries.offer(subject(n, "192.0.2.1:7777"), content(n));
        }
        assert_eq!(counters::NOTIFICATIONS_FAILED.get() - failed, 100);
        let taken: Vec<_> = std::iter::from_fn(|| deliveries.take()).map(|(subject, _)| subject).collect();
        let first: Vec<_> = (0..MAX_AT_ONCE).map(|n| subject(n, "192.0.2.1:7777")).collect();
        assert_eq!(taken, first, "the oldest, and no more at once");
        deliveries.offer(subject(0, "192.0.2.2:7777"), content(0));
        assert_eq!(deliveries.take().unwrap().0, subject(0, "192.0.2.2:7777"));
        // Too many receivers are refused, and all is given back at the end.
        for n in 0..MAX_RECEIVERS {
            deliveries.offer(subject(0, &format!("192.0.3.{n}:7777")), content(n));
        }
        assert_eq!(counters::NOTIFICATIONS_FAILED.get() - failed, 102);
        first.iter().for_each(|subject| deliveries.ended(subject));
        deliveries.ended(&subject(0, "192.0.2.2:7777"));
        while let Some((subject, _)) = deliveries.take() {
            deliveries.ended(&subject);
        }
        assert!(deliveries.lock().is_empty());
    }

    #[test]
    fn the_latest_notification_waits_until_the_one_under_way_has_ended() {
        let deliveries = Deliveries::default();
        let one = subject(1, "192.0.2.1:7777");
        deliveries.offer(one.clone(), content(1));
        assert!(deliveries.take().is_some());
        deliveries.offer(one.clone(), content(2));
        deliveries.offer(one.clone(), content(3));
        assert!(deliveries.take().is_none(), "one at a time for each subject");
        deliveries.ended(&one);
        let Some((_, Content::Changed(latest))) = deliveries.take() else { panic!("it waits") };
        assert_eq!(latest.subscription_id.as_deref(), Some("3"));
        deliveries.ended(&one);
        assert!(deliveries.take().is_none());
    }
}
