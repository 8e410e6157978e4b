//! The registry: one entry per NF instance, kept as long as heartbeats come.
//!
//! An entry is *registered* until it misses two heartbeats, then *suspended*: kept, and not discovered,
//! because the NF may only be busy. After ten missed heartbeats it is deleted.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use net::time::{Duration, Instant};
use sbi::{
    model::{
        common::{NfInstanceId, Patch},
        nrf::{NfProfile, NfStatus, NfType, NotificationEventType, SubscriptionData},
    },
    op::nrf::DiscoverNfRequest,
};
use telemetry::counters::Counter;
use tokio::sync::mpsc;

use crate::config::Config;

/// Missed heartbeats after which an instance is suspended.
const SUSPEND_AFTER: f32 = 2.5;
/// Missed heartbeats after which an instance is deleted.
const FORGET_AFTER: u32 = 10;
/// Notifications that wait for delivery. More are dropped and counted; a subscriber can always ask.
const MAX_EVENTS: usize = 1024;
/// Most items in a list.
const MAX_LIST: usize = 1000;

static SUSPENDED: Counter = Counter::new("nrf_instances_suspended");
static EVENTS_DROPPED: Counter = Counter::new("nrf_notifications_dropped");

/// A change of an instance, to be notified to subscribers.
#[derive(Debug, Clone)]
pub struct Event {
    /// What happened.
    pub kind: NotificationEventType,
    /// The instance's profile.
    pub profile: NfProfile,
}

/// The state of the NRF.
#[derive(Debug)]
pub struct Registry {
    heartbeat: Duration,
    validity_s: u32,
    max_instances: usize,
    inner: Mutex<Inner>,
    events: mpsc::Sender<Event>,
}

#[derive(Debug, Default)]
struct Inner {
    instances: BTreeMap<NfInstanceId, Entry>,
    subscriptions: HashMap<String, Subscription>,
    /// Subscriptions in the order of creation: the oldest is deleted when there are too many.
    subscription_order: VecDeque<String>,
}

#[derive(Debug)]
struct Subscription {
    data: SubscriptionData,
    /// The instance that made the subscription, if it has proved its identity.
    owner: Option<NfInstanceId>,
}

#[derive(Debug)]
struct Entry {
    profile: NfProfile,
    last_heartbeat: Instant,
    /// Whether the present silence has been counted already.
    counted: bool,
}

/// Why a registration or change was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// There is no such instance.
    #[error("no such NF instance")]
    Unknown,
    /// There are too many instances.
    #[error("too many NF instances")]
    Full,
    /// The patch does not fit the profile.
    #[error("{0}")]
    Patch(String),
}

impl Registry {
    /// An empty registry, and the events to deliver to subscribers.
    pub fn new(config: &Config) -> (Self, mpsc::Receiver<Event>) {
        let (events, receiver) = mpsc::channel(MAX_EVENTS);
        let (heartbeat, validity_s) = (config.heartbeat(), config.validity_s);
        let registry = Self {
            heartbeat,
            validity_s,
            max_instances: config.max_instances,
            inner: Mutex::default(),
            events,
        };
        (registry, receiver)
    }

    /// Adds an instance or replaces its profile. Returns the profile as stored and whether it is new.
    ///
    /// # Errors
    /// There is no room for another, or the instance is of another type.
    pub fn register(&self, mut profile: NfProfile, now: Instant) -> Result<(NfProfile, bool), RegistryError> {
        let mut inner = self.lock();
        let id = profile.nf_instance_id;
        let known = inner.instances.get(&id);
        if known.is_some_and(|known| known.profile.nf_type != profile.nf_type) {
            return Err(RegistryError::Patch("nfType must not change".to_owned()));
        }
        let new = known.is_none();
        if new && inner.instances.len() >= self.max_instances {
            return Err(RegistryError::Full);
        }
        profile.heart_beat_timer = Some(self.heartbeat.as_secs() as u32);
        inner.instances.insert(id, Entry { profile: profile.clone(), last_heartbeat: now, counted: false });
        drop(inner);
        let kind =
            if new { NotificationEventType::Registered } else { NotificationEventType::ProfileChanged };
        self.emit(kind, &profile);
        Ok((profile, new))
    }

    /// Applies a patch; a heartbeat is a patch that changes nothing. Returns the profile if it changed.
    ///
    /// # Errors
    /// There is no such instance, or the patch does not fit.
    pub fn update(
        &self,
        id: NfInstanceId,
        patch: &Patch,
        now: Instant,
    ) -> Result<Option<NfProfile>, RegistryError> {
        let mut inner = self.lock();
        let entry = inner.instances.get_mut(&id).ok_or(RegistryError::Unknown)?;
        let invalid = |error: &dyn std::fmt::Display| RegistryError::Patch(error.to_string());
        let mut document = serde_json::to_value(&entry.profile).map_err(|error| invalid(&error))?;
        patch.apply(&mut document).map_err(|error| invalid(&error))?;
        let patched: NfProfile = serde_json::from_value(document).map_err(|error| invalid(&error))?;
        if patched.nf_instance_id != id {
            return Err(invalid(&"nfInstanceId must not change"));
        }
        if patched.nf_type != entry.profile.nf_type {
            return Err(invalid(&"nfType must not change"));
        }
        (entry.last_heartbeat, entry.counted) = (now, false);
        // The load changes with every heartbeat; subscribers are not notified of it.
        let changed =
            NfProfile { load: None, ..patched.clone() } != NfProfile { load: None, ..entry.profile.clone() };
        entry.profile = patched;
        let profile = entry.profile.clone();
        drop(inner);
        if changed {
            self.emit(NotificationEventType::ProfileChanged, &profile);
        }
        Ok(changed.then_some(profile))
    }

    /// Removes an instance.
    ///
    /// # Errors
    /// There is no such instance.
    pub fn deregister(&self, id: NfInstanceId) -> Result<(), RegistryError> {
        let entry = self.lock().instances.remove(&id).ok_or(RegistryError::Unknown)?;
        self.emit(NotificationEventType::Deregistered, &entry.profile);
        Ok(())
    }

    /// The profile of an instance; its status says whether it still sends heartbeats.
    pub fn get(&self, id: NfInstanceId, now: Instant) -> Option<NfProfile> {
        self.lock().instances.get(&id).map(|entry| self.current(entry, now))
    }

    /// The instances of a type, or all instances.
    pub fn list(&self, nf_type: Option<&NfType>, limit: usize, now: Instant) -> Vec<NfProfile> {
        let inner = self.lock();
        let of_type = |entry: &&Entry| nf_type.is_none_or(|t| *t == entry.profile.nf_type);
        let entries = inner.instances.values().filter(of_type);
        entries.take(limit.min(MAX_LIST)).map(|entry| self.current(entry, now)).collect()
    }

    /// The instances that match a discovery, with only the requested services.
    pub fn discover(&self, query: &DiscoverNfRequest, now: Instant) -> Vec<NfProfile> {
        let inner = self.lock();
        let limit = query.limit.map_or(MAX_LIST, |l| l as usize).min(MAX_LIST);
        let alive = inner.instances.values().map(|entry| self.current(entry, now));
        let fits = |profile: &NfProfile| profile.nf_status == NfStatus::Registered && matches(profile, query);
        alive.filter(fits).filter_map(|profile| with_services(profile, query)).take(limit).collect()
    }

    /// Seconds for which a discovery stays valid.
    pub fn validity_s(&self) -> u32 {
        self.validity_s
    }

    /// Deletes instances that have been silent for long, and notifies subscribers.
    pub fn sweep(&self, now: Instant) {
        let mut gone = Vec::new();
        self.lock().instances.retain(|_, entry| {
            let silent = now - entry.last_heartbeat;
            if self.is_suspended(entry, now) && !std::mem::replace(&mut entry.counted, true) {
                SUSPENDED.inc();
            }
            let keep = silent < self.heartbeat * FORGET_AFTER;
            if !keep {
                gone.push(entry.profile.clone());
            }
            keep
        });
        for profile in gone {
            tracing::info!(nf = %profile.nf_type, id = %profile.nf_instance_id, "forgotten: no heartbeats");
            self.emit(NotificationEventType::Deregistered, &profile);
        }
    }

    /// Adds a subscription, and deletes the oldest if there are too many. Returns it with its
    /// identifier.
    pub fn subscribe(&self, mut data: SubscriptionData, owner: Option<NfInstanceId>) -> SubscriptionData {
        let mut inner = self.lock();
        // Random, so that nobody can guess another's subscription, and identifiers from before a
        // restart of the NRF name no new one.
        let id = format!("{:016x}", nf::random::u64());
        data.subscription_id = Some(id.clone());
        inner.subscriptions.insert(id.clone(), Subscription { data: data.clone(), owner });
        inner.subscription_order.push_back(id);
        if inner.subscription_order.len() > self.max_instances
            && let Some(oldest) = inner.subscription_order.pop_front()
        {
            inner.subscriptions.remove(&oldest);
        }
        data
    }

    /// Deletes a subscription that `caller` made; returns whether there was one. The owner is checked
    /// only if it had proved its identity.
    pub fn unsubscribe(&self, id: &str, caller: Option<NfInstanceId>) -> bool {
        let mut inner = self.lock();
        if !inner.subscriptions.get(id).is_some_and(|s| s.owner.is_none() || s.owner == caller) {
            return false;
        }
        inner.subscription_order.retain(|other| other != id);
        inner.subscriptions.remove(id).is_some()
    }

    /// The subscriptions that an event matches.
    pub fn subscribers(&self, event: &Event) -> Vec<SubscriptionData> {
        let wants = |s: &&SubscriptionData| {
            let events = &s.req_notif_events;
            let condition = s.subscr_cond.as_ref();
            (events.is_empty() || events.contains(&event.kind))
                && condition.is_none_or(|c| {
                    c.nf_type.as_ref().is_none_or(|t| *t == event.profile.nf_type)
                        && c.nf_instance_id.is_none_or(|id| id == event.profile.nf_instance_id)
                        && c.service_name.as_ref().is_none_or(|name| offers(&event.profile, name))
                })
        };
        self.lock().subscriptions.values().map(|s| &s.data).filter(wants).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_suspended(&self, entry: &Entry, now: Instant) -> bool {
        now - entry.last_heartbeat > self.heartbeat.mul_f32(SUSPEND_AFTER)
    }

    /// The profile with the status that follows from its heartbeats.
    fn current(&self, entry: &Entry, now: Instant) -> NfProfile {
        let mut profile = entry.profile.clone();
        if self.is_suspended(entry, now) {
            profile.nf_status = NfStatus::Suspended;
        }
        profile
    }

    fn emit(&self, kind: NotificationEventType, profile: &NfProfile) {
        if self.events.try_send(Event { kind, profile: profile.clone() }).is_err() {
            EVENTS_DROPPED.inc();
        }
    }
}

fn offers(profile: &NfProfile, service: &str) -> bool {
    profile.nf_services.iter().chain(profile.nf_service_list.values()).any(|s| s.service_name == service)
}

/// Whether an instance matches the query. Attributes missing in the profile do not restrict it (TS
/// 29.510 §6.2.3.2.3.1).
fn matches(profile: &NfProfile, query: &DiscoverNfRequest) -> bool {
    let allowed = &profile.allowed_nf_types;
    let slices = query.snssais.as_deref().unwrap_or_default();
    profile.nf_type == query.target_nf_type
        && (allowed.is_empty() || allowed.contains(&query.requester_nf_type))
        && query.target_nf_instance_id.is_none_or(|id| id == profile.nf_instance_id)
        && (slices.is_empty()
            || profile.s_nssais.is_empty()
            || slices.iter().any(|s| profile.s_nssais.contains(s)))
        && query.target_plmn_list.as_ref().is_none_or(|wanted| {
            profile.plmn_list.is_empty() || wanted.iter().any(|p| profile.plmn_list.contains(p))
        })
        && query
            .guami
            .is_none_or(|guami| profile.amf_info.as_ref().is_none_or(|i| i.guami_list.contains(&guami)))
        && profile.smf_info.as_ref().is_none_or(|info| {
            info.s_nssai_smf_info_list.iter().any(|item| {
                (slices.is_empty() || slices.contains(&item.s_nssai))
                    && query
                        .dnn
                        .as_ref()
                        .is_none_or(|dnn| item.dnn_smf_info_list.iter().any(|d| d.dnn == *dnn))
            })
        })
}

/// Removes services that were not requested; `None` if no service is left.
fn with_services(mut profile: NfProfile, query: &DiscoverNfRequest) -> Option<NfProfile> {
    let Some(names) = &query.service_names else { return Some(profile) };
    profile.nf_services.retain(|s| names.contains(&s.service_name));
    profile.nf_service_list.retain(|_, s| names.contains(&s.service_name));
    (!profile.nf_services.is_empty() || !profile.nf_service_list.is_empty()).then_some(profile)
}
