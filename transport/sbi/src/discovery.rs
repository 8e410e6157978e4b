//! Discovery of instances: the NRF is asked once per selection and validity period (TS 29.510 §5.3).

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError},
};

use net::time::{self, Duration, Instant};

use crate::{
    Client, Target,
    counters::DISCOVERIES,
    model::nrf::{NfProfile, NfService, NfStatus, UriScheme},
    op::nrf::{DiscoverNf, DiscoverNfRequest},
    target::{ApiRoot, Scheme, Selection},
};

/// Most selections remembered; in practice one per service and DNN.
const MAX_CACHED: usize = 1024;
/// Longest time for which a result is used.
const MAX_VALIDITY: Duration = Duration::from_secs(3600);

/// Results of discoveries.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    cache: Mutex<HashMap<Selection, Found>>,
    /// Number of discoveries without result, and the reason of the latest: calls that waited for it get
    /// the same answer.
    failure: Mutex<(u64, Option<(Selection, String)>)>,
    /// Held during a request to the NRF: a thousand calls at the start make one discovery per
    /// selection.
    asking: tokio::sync::Mutex<()>,
}

/// Instances for a selection, best first.
#[derive(Debug, Clone)]
struct Found {
    roots: Vec<ApiRoot>,
    expires: Instant,
    /// Rotates among instances of equal priority.
    next: usize,
}

impl Discovery {
    /// An instance for the selection, from configuration, cache or the NRF.
    pub(crate) async fn resolve(&self, client: &Client, selection: &Selection) -> Result<ApiRoot, String> {
        let config = client.config();
        if let Some(root) = config.peers.get(&selection.nf_type) {
            return Ok(root.clone());
        }
        if let Some(root) = self.cached(selection) {
            return Ok(root);
        }
        let failures_before = self.failure.lock().unwrap_or_else(PoisonError::into_inner).0;
        let _asking = self.asking.lock().await;
        if let Some(root) = self.cached(selection) {
            return Ok(root);
        }
        if let Some(reason) = self.failed(selection, failures_before) {
            return Err(reason);
        }
        let asked = self.ask(client, selection).await;
        if let Err(reason) = &asked {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            *failure = (failure.0 + 1, Some((selection.clone(), reason.clone())));
        }
        asked
    }

    /// Why discoveries of the same selection have found nothing since `failures_before` was read.
    fn failed(&self, selection: &Selection, failures_before: u64) -> Option<String> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, Some((failed, reason))) = &*failure else { return None };
        (*count != failures_before && failed == selection).then(|| reason.clone())
    }

    /// Asks the NRF and stores the answer.
    async fn ask(&self, client: &Client, selection: &Selection) -> Result<ApiRoot, String> {
        let config = client.config();
        let nrf = config
            .nrf
            .as_ref()
            .ok_or_else(|| format!("no address of {} is configured", selection.nf_type))?;
        DISCOVERIES.inc();
        let request = DiscoverNfRequest {
            target_nf_type: selection.nf_type.clone(),
            requester_nf_type: config.requester.clone(),
            service_names: Some(vec![selection.service.to_owned()]),
            dnn: selection.dnn.clone(),
            snssais: selection.snssai.map(|s| vec![s]),
            target_plmn_list: None,
            guami: None,
            target_nf_instance_id: None,
            limit: None,
            body: (),
        };
        let call = client.call::<DiscoverNf>(Target::At(nrf.clone()), request);
        let result = call.await.map_err(|error| error.to_string())?;
        let roots = rank(&result.nf_instances, selection.service);
        let none = || format!("NRF knows no {} that offers {}", selection.nf_type, selection.service);
        let first = roots.first().cloned().ok_or_else(none)?;
        let validity = Duration::from_secs(result.validity_period.into()).min(MAX_VALIDITY);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        cache.insert(selection.clone(), Found { roots, expires: time::now() + validity, next: 1 });
        Ok(first)
    }

    fn cached(&self, selection: &Selection) -> Option<ApiRoot> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cache.get_mut(selection).filter(|found| time::now() < found.expires)?;
        let root = found.roots.get(found.next % found.roots.len().max(1))?.clone();
        found.next = found.next.wrapping_add(1);
        Some(root)
    }

    /// Removes an instance that could not be reached, and with the last instance the entry.
    pub(crate) fn forget(&self, selection: &Selection, root: &ApiRoot) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = cache.get_mut(selection) {
            found.roots.retain(|r| r != root);
            if found.roots.is_empty() {
                cache.remove(selection);
            }
        }
    }
}

/// The API roots at which an instance offers a service.
pub fn api_roots(profile: &NfProfile, service: &str) -> Vec<ApiRoot> {
    let services = profile.nf_services.iter().chain(profile.nf_service_list.values());
    services.filter(|offered| offered.service_name == service).filter_map(|s| api_root(profile, s)).collect()
}

/// API roots of the instances with the best (lowest) priority that offer the service.
fn rank(instances: &[NfProfile], service: &str) -> Vec<ApiRoot> {
    let mut roots: Vec<(u16, ApiRoot)> = Vec::new();
    for profile in instances {
        let services = profile.nf_services.iter().chain(profile.nf_service_list.values());
        for offered in
            services.filter(|s| s.service_name == service && s.nf_service_status == NfStatus::Registered)
        {
            let priority = offered.priority.or(profile.priority).unwrap_or(0);
            roots.extend(api_root(profile, offered).map(|root| (priority, root)));
        }
    }
    roots.sort_by_key(|(priority, _)| *priority);
    let best = roots.first().map(|(priority, _)| *priority);
    roots.into_iter().filter(|(p, _)| Some(*p) == best).map(|(_, root)| root).collect()
}

/// The address of a service: its end point, or else the addresses of its instance (TS 29.510
/// §6.1.6.2.3).
fn api_root(profile: &NfProfile, service: &NfService) -> Option<ApiRoot> {
    let scheme = match service.scheme {
        UriScheme::Http => Scheme::Http,
        UriScheme::Https => Scheme::Https,
        UriScheme::Other(_) => return None,
    };
    let end_point = service.ip_end_points.first();
    let port = end_point.and_then(|e| e.port).unwrap_or(scheme.default_port());
    let address = end_point
        .and_then(|e| e.ipv4_address.map(IpAddr::V4).or(e.ipv6_address.map(IpAddr::V6)))
        .or_else(|| profile.ipv4_addresses.first().map(|a| IpAddr::V4(*a)))
        .or_else(|| profile.ipv6_addresses.first().map(|a| IpAddr::V6(*a)));
    let host = match (address, service.fqdn.as_ref().or(profile.fqdn.as_ref())) {
        (Some(address), _) => SocketAddr::new(address, port).to_string(),
        (None, Some(fqdn)) => format!("{fqdn}:{port}"),
        (None, None) => return None,
    };
    let prefix = service.api_prefix.as_deref().unwrap_or_default().trim_matches('/');
    format!("{scheme}://{host}/{prefix}").parse().ok()
}
