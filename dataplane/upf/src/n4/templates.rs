//! Templates: the common part of sessions with the same rules, compiled once.
//!
//! A CP function sets up nearly all sessions of a data network with a few policies. The sessions of one policy
//! differ only in addresses and TEIDs. So each different set of rules is remembered with its compiled form, and
//! rules of a new session are first looked up among these ([`Templates::find`]). If there is a template,
//! neither a plan nor blocks must be computed ([`crate::tables::layout`]). Templates are found by a hash of
//! their rules and then compared. When there are too many, one that was not used for a while is replaced.
//!
//! The comparison covers everything that [`super::compile`] reads except the UE's addresses, TEIDs and peers.
//! Addresses matter in one more way: a filter may name an address or prefix that is, or contains, the UE's own.
//! A template fits only if such a filter covers both UEs or neither.

use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use classifier::Prefix;
use foldhash::HashMap;
use foldhash::fast::FixedState;

use super::ineffective::Ineffective;
use super::networks::Destinations;
use super::rules::{FarRule, PdrRule, Rules, Table, UrrRule};
use crate::plan::{OuterHeader, Plan};
use crate::session::Session;
use crate::tables::Writer;
use crate::tables::layout::{Layout, Particulars, Ue};

/// Most templates: more than operators have policies.
const MAX_TEMPLATES: usize = 1024;
/// Most PDRs of a template, and most filters of all its PDRs: comparing must be faster than compiling.
const MAX_PDRS: usize = 16;
const MAX_FILTERS: usize = 64;

/// Rules of a session, and their compiled form.
#[derive(Debug)]
pub(super) struct Template {
    hash: u64,
    /// Whether it was used since templates were last checked for replacement.
    used: bool,
    rules: Rules,
    /// The interface of the session's data network.
    network: u16,
    /// Prefixes in filters, and whether each contains the UE's address.
    named: Vec<(Prefix, bool)>,
    pub ineffective: Box<[Ineffective]>,
    pub layout: Layout,
}

/// All templates.
#[derive(Debug, Default)]
pub(super) struct Templates {
    all: Vec<Template>,
    /// Indices by hash. Several templates have the same hash if filters name addresses of some UEs.
    by_hash: HashMap<u64, Vec<usize>>,
    /// Where the next search for a template to replace begins.
    hand: usize,
}

/// The rules of a new session, with the data by which its template is found.
pub(super) struct Own<'a> {
    rules: &'a Rules,
    destinations: &'a Destinations,
    ue: Ue,
    /// Hash of everything that templates are compared by, except UE addresses.
    hash: u64,
}

impl<'a> Own<'a> {
    /// `None` for rules of unusual kinds, which are always compiled.
    pub fn new(rules: &'a Rules, destinations: &'a Destinations) -> Option<Own<'a>> {
        let usual = !rules.ethernet && rules.endpoints.is_empty() && rules.pdrs.len() <= MAX_PDRS;
        let usual =
            usual && rules.pdrs.values().map(|pdr| pdr.sdf_filters.len()).sum::<usize>() <= MAX_FILTERS;
        let plain = |far: &FarRule| far.redirect.is_none() && far.copies.is_empty();
        if !usual
            || !rules.fars.values().all(|far| plain(far))
            || rules.urrs.values().any(|urr| urr.exhausted)
        {
            return None;
        }
        let mut ue = Ue::default();
        for pdr in rules.pdrs.values() {
            let v6 = match pdr.ue.v6 {
                Some((prefix, 64)) => Some((prefix.to_bits() >> 64 << 64).into()),
                Some(_) => return None,
                None => None,
            };
            let same = pdr.ue.v4.is_none() || ue.v4.is_none() || ue.v4 == pdr.ue.v4;
            if !same || v6.is_some() && ue.v6.is_some() && ue.v6 != v6 || !pdr.ue.framed.is_empty() {
                return None;
            }
            (ue.v4, ue.v6) = (ue.v4.or(pdr.ue.v4), ue.v6.or(v6));
        }
        let hash = hash(rules, destinations.home);
        Some(Own { rules, destinations, ue, hash })
    }
}

impl Particulars for Own<'_> {
    fn ue(&self) -> Ue {
        self.ue
    }

    fn teid(&self, pdr: u16) -> Option<u32> {
        Some(self.rules.pdrs.get(pdr)?.tunnel?.teid)
    }

    fn tunnel(&self, pdr: u16) -> Option<OuterHeader> {
        self.rules.tunnel_to(self.rules.pdrs.get(pdr)?, &self.destinations.tunnels)
    }
}

impl Templates {
    /// Finds the template for a session.
    pub fn find(&mut self, own: &Own<'_>) -> Option<&Template> {
        let positions = self.by_hash.get(&own.hash)?;
        let fits = |at: &&usize| {
            self.all.get(**at).is_some_and(|known| known.network == own.destinations.home && known.fits(own))
        };
        let at = *positions.iter().find(fits)?;
        let template = self.all.get_mut(at)?;
        template.used = true;
        Some(template)
    }

    /// Makes a template of a session that was just established with this plan.
    pub fn learn(
        &mut self,
        own: &Own<'_>,
        (plan, ineffective): (Plan, Box<[Ineffective]>),
        session: &Session,
        writer: &mut Writer,
    ) {
        let mut named = Vec::new();
        for filter in plan.arrivals.iter().flat_map(|arrival| &arrival.rules).map(|rule| rule.filter) {
            for prefix in [filter.source, filter.destination].into_iter().flatten() {
                if !named.iter().any(|(known, _)| *known == prefix) {
                    named.push((prefix, has_address_in(own.ue, prefix)));
                }
            }
        }
        let Some(layout) = writer.learn(session, plan, own) else { return };
        let (hash, network, rules) = (own.hash, own.destinations.home, own.rules.clone());
        let template = Template { hash, used: false, rules, network, named, ineffective, layout };
        let at = if self.all.len() < MAX_TEMPLATES {
            self.all.push(template);
            self.all.len() - 1
        } else {
            let at = self.least_used();
            let old = std::mem::replace(&mut self.all[at], template);
            if let Some(positions) = self.by_hash.get_mut(&old.hash) {
                positions.retain(|position| *position != at);
                if positions.is_empty() {
                    self.by_hash.remove(&old.hash);
                }
            }
            writer.unlearn(old.layout);
            at
        };
        self.by_hash.entry(hash).or_default().push(at);
    }

    /// Index of a template that was not used since all others were checked. The search ends at the latest where
    /// it began.
    fn least_used(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.all.len();
            if !std::mem::take(&mut self.all[at].used) {
                return at;
            }
        }
    }
}

/// A hash of enough of the fields that [`Template::fits`] compares to tell policies apart.
fn hash(rules: &Rules, network: u16) -> u64 {
    // Not keyed: rules that collide on purpose only make the UPF compare templates one by one, at most a
    // thousand.
    let mut state = FixedState::default().build_hasher();
    network.hash(&mut state);
    for (id, pdr) in rules.pdrs.iter() {
        (id, pdr.precedence, pdr.far_id, pdr.tunnel.is_some()).hash(&mut state);
        (pdr.ue.v4.is_some(), pdr.ue.v6.is_some(), pdr.network).hash(&mut state);
        (&pdr.qer_ids, &pdr.urr_ids, &pdr.qfis).hash(&mut state);
        for filter in &pdr.sdf_filters {
            filter.flow_description.as_ref().map(|text| text.as_bytes()).hash(&mut state);
        }
    }
    for (id, far) in rules.fars.iter() {
        (id, far.action.0, far.outer_header.is_some()).hash(&mut state);
    }
    for (id, qer) in rules.qers.iter() {
        (id, qer.qfi).hash(&mut state);
        for rates in [&qer.mbr, &qer.gbr].into_iter().flatten() {
            (rates.uplink_kbps, rates.downlink_kbps).hash(&mut state);
        }
    }
    rules.urrs.len().hash(&mut state);
    state.finish()
}

impl Template {
    /// Lets rules for which the template fits share what they have in common with it.
    pub fn share_with(&self, rules: &mut Rules) {
        for (rule, known) in rules.pdrs.values_mut().zip(self.rules.pdrs.values()) {
            rule.share_terms(known);
        }
        for (rule, known) in rules.fars.values_mut().zip(self.rules.fars.values()) {
            if rule == known {
                *rule = Arc::clone(known);
            }
        }
    }

    /// Whether the template can be used for this session.
    fn fits(&self, own: &Own<'_>) -> bool {
        let (a, b) = (&self.rules, own.rules);
        let teid = |pdr: &PdrRule| pdr.tunnel.map(|tunnel| tunnel.teid);
        let first = |rules: &Rules, of: &PdrRule| rules.pdrs.values().position(|pdr| teid(pdr) == teid(of));
        let buffers = |rules: &Rules| rules.bars.values().find_map(|bar| bar.suggested_packets);
        alike(&a.pdrs, &b.pdrs, |x, y| pdrs_alike(x, y) && (x.tunnel.is_none() || first(a, x) == first(b, y)))
            && alike(&a.fars, &b.fars, |x, y| fars_alike(x, y))
            && a.qers == b.qers
            && alike(&a.urrs, &b.urrs, urrs_alike)
            && buffers(a) == buffers(b)
            && self.named.iter().all(|(prefix, within)| has_address_in(own.ue, *prefix) == *within)
    }
}

/// Whether two tables have the same keys, and the values of each key satisfy `same`.
fn alike<K: Ord + Copy, V>(a: &Table<K, V>, b: &Table<K, V>, same: impl Fn(&V, &V) -> bool) -> bool {
    a.len() == b.len() && a.iter().zip(b.iter()).all(|((x, a), (y, b))| x == y && same(a, b))
}

fn pdrs_alike(a: &PdrRule, b: &PdrRule) -> bool {
    a.tunnel.is_some() == b.tunnel.is_some()
        && a.ue.v4.is_some() == b.ue.v4.is_some()
        && a.ue.v6.is_some() == b.ue.v6.is_some()
        && a.has_terms_of(b)
}

fn fars_alike(a: &FarRule, b: &FarRule) -> bool {
    let tunnelled = |far: &FarRule| far.outer_header.is_some_and(|header| header.gtpu_endpoint().is_some());
    a.action == b.action
        && a.destination == b.destination
        && tunnelled(a) == tunnelled(b)
        && a.network_instance == b.network_instance
        && a.marking == b.marking
}

/// Compares rules that have not counted anything yet.
fn urrs_alike(a: &UrrRule, b: &UrrRule) -> bool {
    a.is_active() == b.is_active() && a.marks() == b.marks() && a.quota_far == b.quota_far
}

/// Whether a UE's IPv4 address or IPv6 /64 is in a prefix, or contains it.
fn has_address_in(ue: Ue, prefix: Prefix) -> bool {
    let differ = match prefix.address() {
        IpAddr::V4(network) => {
            let shift = 32 - u32::from(prefix.length());
            ue.v4.map(|own| (own.to_bits() ^ network.to_bits()).checked_shr(shift).unwrap_or(0).into())
        }
        IpAddr::V6(network) => ue.v6.map(|own| {
            let bits = own.to_bits() ^ network.to_bits();
            bits.checked_shr(128 - u32::from(prefix.length().min(64))).unwrap_or(0)
        }),
    };
    differ == Some(0u128)
}

#[cfg(test)]
mod tests;
