//! Session establishment, modification and deletion (TS 29.244 §6.3), without any transport.
//!
//! [`Sessions`] owns all PFCP sessions of the UPF. A request is applied to a copy of the rules
//! ([`super::changes`]), which is compiled unless there is a template for it ([`super::templates`]). Then the
//! rules, the look-up tables and the TEIDs change together, or nothing does. Reports that the UPF sends on its
//! own are in [`super::usage`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::HashMap;
use pfcp::message::{
    SessionDeletionResponse, SessionEstablishmentRequest, SessionEstablishmentResponse,
    SessionModificationRequest, SessionModificationResponse,
};
use pfcp::{
    ApplyAction, Cause, DestinationInterface, FSeid, FailedRuleId, FqCsid, NodeId, OffendingIe, SmReqFlags,
    UsageReportTrigger, ie,
};

use super::addresses::Addresses;
use super::changes::{self, Allocation, Effect};
use super::compile::compile;
use super::end_markers::EndMarker;
use super::ineffective::Ineffective;
use super::networks::{Destinations, Networks};
use super::path::{Paths, Timing};
use super::rules::urr::Now;
use super::rules::{PdrRule, Rejection, Rules};
use super::templates::{Own, Templates};
use super::usage::{Activity, Notification, Outgoing};
use crate::config::Config;
use crate::interfaces::Interfaces;
use crate::plan::{OuterHeader, Peer};
use crate::random::Draw;
use crate::session::Session;
use crate::tables::{Held, Receiver, Tables, Writer};
use rcu::Region;

/// Most sessions; further ones are refused with "no resources available".
pub const MAX_SESSIONS: usize = 1 << 20;
/// Most sets to which a session can belong: one per kind of node.
const MAX_SETS: usize = 8;

/// A PFCP session.
#[derive(Debug)]
pub struct N4Session {
    /// The CP function's SEID.
    pub cp_seid: u64,
    /// Address of the CP function.
    pub cp: IpAddr,
    /// Its rules.
    pub rules: Rules,
    /// The form that workers execute.
    pub compiled: Session,
    /// PDRs without effect.
    pub ineffective: Box<[Ineffective]>,
    /// The session sets (FQ-CSIDs) with which it fails.
    sets: Box<[FqCsid]>,
    pub(super) activity: Option<Activity>,
    pub(super) notification: Notification,
    /// Addresses behind the UE, for an Ethernet session whose rules report them.
    pub(super) addresses: Option<Box<Addresses>>,
    /// When it is checked next.
    pub(super) due_ms: Option<u64>,
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    pub(super) config: Arc<Config>,
    pub(super) interfaces: Arc<Interfaces>,
    pub(super) writer: Writer,
    pub(super) sessions: HashMap<u64, Box<N4Session>>,
    /// CP functions that have sessions.
    owners: HashMap<IpAddr, Owner>,
    /// The peers of remote tunnel endpoints.
    pub paths: Paths,
    /// When sessions must be checked, and their SEIDs, the next first. Outdated entries are skipped.
    pub(super) timers: BinaryHeap<Reverse<(u64, u64)>>,
    draw: Draw,
    /// The SEID of the running or last establishment; 0 when the running request is not an establishment.
    established: u64,
    pub(super) templates: Templates,
}

/// What belongs to a CP function.
#[derive(Debug, Default)]
struct Owner {
    sessions: usize,
    /// Remote tunnel endpoints in use, for Error Indications. Other CP functions may use the same ones.
    remote: HashMap<(Peer, u32), u64>,
}

/// A request that was applied and found valid, before anything is published.
struct Checked {
    effect: Effect,
    destinations: Destinations,
    /// Sessions that must be removed because this one takes over their UE addresses.
    replaced: Vec<u64>,
    /// TEIDs that were allocated for it.
    taken: Vec<u32>,
}

/// Result of an establishment.
#[derive(Debug)]
pub struct Established {
    /// Response.
    pub response: SessionEstablishmentResponse,
    /// Sessions that had the UE addresses before and were removed.
    pub replaced: Vec<u64>,
}

/// Result of a modification.
#[derive(Debug)]
pub struct Modified {
    /// The CP function's SEID, for the header of the response.
    pub cp_seid: u64,
    /// Response.
    pub response: SessionModificationResponse,
    /// End Markers that must be sent.
    pub end_markers: Vec<EndMarker>,
    /// A report to send after the response: limits that had been reached already.
    pub report: Option<Outgoing>,
}

impl Sessions {
    /// No sessions. SEIDs and TEIDs are derived from the random number `secret`. So nobody can guess one, and a
    /// request for a session from before a restart does not hit another UE's session.
    pub fn new(config: Arc<Config>, tables: Arc<Tables>, secret: u64) -> Sessions {
        let mut draw = Draw::new(secret);
        Sessions {
            interfaces: Arc::clone(tables.interfaces()),
            writer: Writer::new(tables, &config, draw.number()),
            config,
            sessions: HashMap::default(),
            owners: HashMap::default(),
            paths: Paths::new(Timing::default(), draw.number()),
            timers: BinaryHeap::new(),
            draw,
            established: 0,
            templates: Templates::default(),
        }
    }

    /// All sessions by this UPF's SEID.
    pub fn iter(&self) -> impl Iterator<Item = (&u64, &N4Session)> {
        self.sessions.iter().map(|(seid, session)| (seid, &**session))
    }

    /// Number of sessions.
    pub fn count(&self) -> usize {
        self.sessions.len()
    }

    /// A session by this UPF's SEID.
    pub fn get(&self, seid: u64) -> Option<&N4Session> {
        self.sessions.get(&seid).map(|session| &**session)
    }

    /// The sessions that send to this remote tunnel endpoint, by this UPF's SEID: at most one of each CP
    /// function.
    pub fn by_remote(&self, peer: Peer, teid: u32) -> impl Iterator<Item = (u64, &N4Session)> {
        let seids = self.owners.values().filter_map(move |owner| owner.remote.get(&(peer, teid)));
        seids.filter_map(|seid| Some((*seid, self.get(*seid)?)))
    }

    /// Number of sessions of a CP function.
    pub fn count_of(&self, cp: IpAddr) -> usize {
        self.owners.get(&cp).map_or(0, |owner| owner.sessions)
    }

    /// A SEID that is not in use.
    fn new_seid(&mut self) -> u64 {
        loop {
            let seid = self.draw.number();
            if seid != 0 && !self.sessions.contains_key(&seid) {
                return seid;
            }
        }
    }

    /// Load of the UPF in per cent: that of sessions or tunnels, whichever is higher.
    pub fn load(&self) -> u8 {
        let sessions = self.sessions.len() * 100 / MAX_SESSIONS;
        // A session usually has one tunnel; an exact number would need a count of the tables.
        let tunnels = self.sessions.len() * 100 / (self.config.max_tunnels as usize).max(1);
        sessions.max(tunnels).min(100) as u8
    }

    /// Establishes a session (§6.3.2). `cp` is the source address of the request.
    pub fn establish(
        &mut self,
        node_id: NodeId,
        cp: IpAddr,
        request: SessionEstablishmentRequest,
        now: impl Into<Now>,
    ) -> Established {
        let answer = |cause| SessionEstablishmentResponse { node_id, cause, ..Default::default() };
        match self.try_establish(cp, request, now.into()) {
            Ok((seid, effect, replaced)) => Established {
                response: SessionEstablishmentResponse {
                    up_f_seid: Some(FSeid::new(seid, self.config.pfcp.ip())),
                    created_pdrs: effect.created,
                    created_traffic_endpoints: effect.endpoints,
                    ..answer(Cause::ACCEPTED)
                },
                replaced,
            },
            Err(rejection) => Established {
                response: SessionEstablishmentResponse {
                    offending_ie: rejection.offending_ie.map(OffendingIe),
                    failed_rule_id: rejection.failed_rule,
                    ..answer(rejection.cause)
                },
                replaced: Vec::new(),
            },
        }
    }

    fn try_establish(
        &mut self,
        cp: IpAddr,
        mut request: SessionEstablishmentRequest,
        now: Now,
    ) -> Result<(u64, Effect, Vec<u64>), Rejection> {
        if request.create_pdrs.is_empty() {
            return Err(Rejection::ie(Cause::MANDATORY_IE_MISSING, ie::CREATE_PDR));
        }
        if request.create_fars.is_empty() {
            return Err(Rejection::ie(Cause::MANDATORY_IE_MISSING, ie::CREATE_FAR));
        }
        if self.sessions.len() >= MAX_SESSIONS {
            return Err(Rejection::cause(Cause::NO_RESOURCES));
        }
        if request.fq_csids.len() > MAX_SETS {
            return Err(Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::FQ_CSID));
        }
        if request.cp_f_seid.seid == 0 {
            return Err(Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::F_SEID));
        }
        let seid = self.new_seid();
        self.established = seid;
        let (cp_seid, timer) = (request.cp_f_seid.seid, request.user_plane_inactivity_timer);
        let sets = std::mem::take(&mut request.fq_csids).into();
        let mut rules = Rules::default();
        // A CP function that assigns an address again has deleted the earlier session with it, and the deletion
        // was lost.
        let work =
            apply_checked(self.request_context(), seid, Some(cp), (&mut rules, None), |rules, tunnels| {
                changes::establish(rules, request, tunnels, now)
            })?;
        let (compiled, ineffective) = match self.publish(seid, &mut rules, &work.destinations) {
            Ok(published) => published,
            Err(rejection) => {
                give_back(&mut self.writer, &work.taken);
                return Err(rejection);
            }
        };
        for old in &work.replaced {
            self.remove(*old);
        }
        log_ineffective(seid, &ineffective, &[]);
        let owner = self.owners.entry(cp).or_default();
        owner.sessions += 1;
        let tunnels = &work.destinations.tunnels;
        owner.remote.extend(remotes(&rules, tunnels).map(|remote| (remote, seid)));
        for peer in watched(&rules, tunnels) {
            self.paths.join(peer, now.ms);
        }
        let activity = timer.and_then(|timer| Activity::new(timer.0, Default::default(), now));
        let session = N4Session {
            cp_seid,
            cp,
            rules,
            compiled,
            ineffective,
            sets,
            activity,
            notification: Notification::default(),
            addresses: None,
            due_ms: None,
        };
        self.sessions.insert(seid, Box::new(session));
        self.schedule(seid, now);
        Ok((seid, work.effect, work.replaced))
    }

    /// What [`apply_checked`] needs of the sessions.
    fn request_context(&mut self) -> RequestContext<'_> {
        RequestContext { writer: &mut self.writer, interfaces: &self.interfaces, sessions: &self.sessions }
    }

    /// Publishes the rules of a new session for the workers, from a template if there is one.
    fn publish(
        &mut self,
        seid: u64,
        rules: &mut Rules,
        destinations: &Destinations,
    ) -> Result<(Session, Box<[Ineffective]>), Rejection> {
        let own = Own::new(rules, destinations);
        if let Some(own) = &own
            && let Some(template) = self.templates.find(own)
        {
            let session = self.writer.establish_like(seid, &template.layout, own)?;
            template.share_with(rules);
            return Ok((session, template.ineffective.clone()));
        }
        let (plan, ineffective) = compile(seid, rules, &self.interfaces)?;
        let ineffective: Box<[Ineffective]> = ineffective.into();
        let session = self.writer.establish(&plan)?;
        if let Some(own) = own {
            self.templates.learn(&own, (plan, ineffective.clone()), &session, &mut self.writer);
        }
        Ok((session, ineffective))
    }

    fn forget_remotes(&mut self, seid: u64, cp: IpAddr, rules: &Rules) {
        let tunnels = Networks::of(rules, &self.interfaces).tunnels_of(rules);
        if let Some(owner) = self.owners.get_mut(&cp) {
            for remote in remotes(rules, &tunnels) {
                if owner.remote.get(&remote) == Some(&seid) {
                    owner.remote.remove(&remote);
                }
            }
        }
        for peer in watched(rules, &tunnels) {
            self.paths.leave(peer);
        }
    }

    /// Changes a session (§6.3.3). `None` when it does not exist, or belongs to another CP function.
    pub fn modify(
        &mut self,
        seid: u64,
        cp: IpAddr,
        request: &SessionModificationRequest,
        now: impl Into<Now>,
    ) -> Option<Modified> {
        let now = now.into();
        let session = self.sessions.get(&seid).filter(|session| session.cp == cp)?;
        let cp_seid = request.cp_f_seid.map_or(session.cp_seid, |f_seid| f_seid.seid);
        let old_cp_seid = session.cp_seid;
        let answer = |cause| SessionModificationResponse { cause, ..Default::default() };
        Some(match self.try_modify(seid, cp_seid, request, now) {
            Ok(effect) => Modified {
                cp_seid,
                response: SessionModificationResponse {
                    created_pdrs: effect.created,
                    created_traffic_endpoints: effect.endpoints,
                    usage_reports: effect.reports,
                    ..answer(Cause::ACCEPTED)
                },
                end_markers: effect.end_markers,
                report: self.check(seid, now),
            },
            Err(rejection) => Modified {
                cp_seid: old_cp_seid,
                response: SessionModificationResponse {
                    offending_ie: rejection.offending_ie.map(OffendingIe),
                    failed_rule_id: rejection.failed_rule,
                    ..answer(rejection.cause)
                },
                end_markers: Vec::new(),
                report: None,
            },
        })
    }

    fn try_modify(
        &mut self,
        seid: u64,
        cp_seid: u64,
        request: &SessionModificationRequest,
        now: Now,
    ) -> Result<Effect, Rejection> {
        let not_found = Rejection::cause(Cause::SESSION_NOT_FOUND);
        if cp_seid == 0 {
            return Err(Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::F_SEID));
        }
        let drops = request.flags.is_some_and(|flags| flags.contains(SmReqFlags::DROBU));
        let held = if drops { Held::Dropped } else { Held::Sent };
        let session = self.sessions.get(&seid).ok_or(not_found)?;
        let mut rules = session.rules.clone();
        let reading = |id| session.compiled.urr(id);
        let context = RequestContext {
            writer: &mut self.writer,
            interfaces: &self.interfaces,
            sessions: &self.sessions,
        };
        let work =
            apply_checked(context, seid, None, (&mut rules, Some(&session.rules)), |rules, tunnels| {
                changes::modify((rules, &session.rules), request, tunnels, &reading, now)
            })?;
        let session = self.sessions.get_mut(&seid).ok_or(not_found)?;
        let published = compile(seid, &rules, &self.interfaces).and_then(|(plan, ineffective)| {
            self.writer.modify(&mut session.compiled, &plan, held)?;
            Ok(ineffective)
        });
        let ineffective = match published {
            Ok(ineffective) => ineffective,
            Err(rejection) => {
                give_back(&mut self.writer, &work.taken);
                return Err(rejection);
            }
        };
        log_ineffective(seid, &ineffective, &session.ineffective);
        session.ineffective = ineffective.into();
        session.cp_seid = cp_seid;
        if let Some(timer) = request.user_plane_inactivity_timer {
            session.activity = Activity::new(timer.0, session.compiled.usage(), now);
        }
        session.notification.reset();
        let old = std::mem::take(&mut session.rules);
        let tunnels = &work.destinations.tunnels;
        for peer in watched(&rules, tunnels) {
            // New peers join before the old rules' peers leave, so that a peer in both is not forgotten in
            // between.
            self.paths.join(peer, now.ms);
        }
        let cp = session.cp;
        self.forget_remotes(seid, cp, &old);
        let owner = self.owners.entry(cp).or_default();
        owner.remote.extend(remotes(&rules, tunnels).map(|remote| (remote, seid)));
        if let Some(session) = self.sessions.get_mut(&seid) {
            session.rules = rules;
        }
        Ok(work.effect)
    }

    /// Places the meters and counters of new sessions in a region of the tables' memory
    /// ([`Tables::add_state_region`]).
    pub fn place_state_in(&mut self, region: Region) {
        self.writer.place_state_in(region);
    }

    /// Drops a session's buffered packets, as the response to a report asks (DROBU).
    pub fn drop_buffered(&self, seid: u64, cp: IpAddr) {
        if self.sessions.get(&seid).is_some_and(|session| session.cp == cp) {
            self.writer.discard(seid);
        }
    }

    /// Deletes a session (§6.3.4); returns the CP function's SEID and the last usage reports.
    pub fn delete(
        &mut self,
        seid: u64,
        cp: IpAddr,
        now: impl Into<Now>,
    ) -> Option<(u64, SessionDeletionResponse)> {
        let now = now.into();
        let session = self.sessions.get_mut(&seid).filter(|session| session.cp == cp)?;
        let cp_seid = session.cp_seid;
        let mut usage_reports = Vec::new();
        for (id, urr) in session.rules.urrs.iter_mut() {
            let reading = session.compiled.urr(id);
            urr.observe(reading, now);
            usage_reports.extend(urr.report(id, UsageReportTrigger::TERMR, reading, now, None));
        }
        self.remove(seid);
        let response =
            SessionDeletionResponse { cause: Cause::ACCEPTED, usage_reports, ..Default::default() };
        Some((cp_seid, response))
    }

    /// Removes a session without a last report.
    pub fn remove(&mut self, seid: u64) {
        let Some(session) = self.sessions.remove(&seid) else { return };
        self.writer.remove(session.compiled);
        self.forget_remotes(seid, session.cp, &session.rules);
        if let Some(owner) = self.owners.get_mut(&session.cp) {
            owner.sessions -= 1;
            if owner.sessions == 0 {
                self.owners.remove(&session.cp);
            }
        }
    }

    /// Removes all sessions of a CP function after an association release or a restart. Returns their number.
    pub fn remove_all_of(&mut self, cp: IpAddr) -> usize {
        self.remove_where(|session| session.cp == cp)
    }

    /// Removes the sessions of a CP function that belong to one of these sets (§6.2.8, TS 23.527 §4.5). Returns
    /// their number.
    pub fn remove_sets(&mut self, cp: IpAddr, sets: &[FqCsid]) -> usize {
        self.remove_where(|session| {
            let in_set = |own: &FqCsid| sets.iter().any(|set| set.meets(own));
            session.cp == cp && session.sets.iter().any(in_set)
        })
    }

    /// Notes that a request begins; see [`Sessions::roll_back`].
    pub(super) fn begin(&mut self) {
        self.established = 0;
        self.writer.begin();
    }

    /// Notes that a request has been handled.
    pub(super) fn end(&mut self) {
        self.writer.end();
    }

    /// The SEID of the session that the running request establishes; 0 if it is not an establishment.
    pub(super) fn last_established(&self) -> u64 {
        self.established
    }

    /// Undoes a request that a defect of the UPF has interrupted: releases its TEIDs, and withdraws what it
    /// published for a session that does not exist.
    pub(super) fn roll_back(&mut self) {
        let sessions = &self.sessions;
        self.writer.roll_back(|seid| sessions.contains_key(&seid));
    }

    fn remove_where(&mut self, mut condition: impl FnMut(&N4Session) -> bool) -> usize {
        let selected = self.sessions.iter().filter(|(_, session)| condition(session));
        let seids: Vec<u64> = selected.map(|(seid, _)| *seid).collect();
        for seid in &seids {
            self.remove(*seid);
        }
        seids.len()
    }
}

/// What [`apply_checked`] needs of the sessions.
struct RequestContext<'a> {
    writer: &'a mut Writer,
    interfaces: &'a Interfaces,
    sessions: &'a HashMap<u64, Box<N4Session>>,
}

/// Applies `change` to `rules`, which are a copy of `before` or empty, and checks them. On a refusal the TEIDs
/// that were allocated are released.
fn apply_checked(
    context: RequestContext<'_>,
    seid: u64,
    replaceable: Option<IpAddr>,
    (rules, before): (&mut Rules, Option<&Rules>),
    change: impl FnOnce(&mut Rules, &mut Allocation<'_>) -> Result<Effect, Rejection>,
) -> Result<Checked, Rejection> {
    let RequestContext { writer, interfaces, sessions } = context;
    let own = before.map(Rules::sorted_teids).unwrap_or_default();
    let networks = Networks::of(before.unwrap_or(rules), interfaces);
    let mut allocation = Allocation { writer, networks, taken: Vec::new(), own, chosen: Vec::new() };
    let changed = change(rules, &mut allocation);
    let Allocation { writer, mut taken, .. } = allocation;
    let result = changed.and_then(|effect| {
        rules.check()?;
        let tunnels = rules.check_destinations(interfaces)?;
        let networks = Networks::of(rules, interfaces);
        check_far_ends(writer, networks, (rules, &tunnels), before)?;
        let home = networks.home(rules)?;
        let instance = interfaces.number(home).map_or(0, |interface| interface.instance);
        let replaced = check_addresses(writer, sessions, (seid, instance), replaceable, rules)?;
        Ok((effect, Destinations { home, tunnels }, replaced))
    });
    match result {
        Ok((effect, destinations, replaced)) => {
            // Some may be unused, for instance if one was chosen twice for the same rule.
            let used = if taken.is_empty() { Vec::new() } else { rules.sorted_teids() };
            taken.retain(|teid| {
                let used = used.binary_search(teid).is_ok();
                if !used {
                    writer.release(*teid);
                }
                used
            });
            Ok(Checked { effect, destinations, replaced, taken })
        }
        Err(rejection) => {
            give_back(writer, &taken);
            Err(rejection)
        }
    }
}

/// Releases TEIDs that a request allocated and the session did not have before.
fn give_back(writer: &mut Writer, taken: &[u32]) {
    for teid in taken {
        writer.release(*teid);
    }
}

/// Refuses new tunnels that lead back to this machine: a packet would come again and again. The CP function may
/// be on this machine (N4-u). A gNB or another UPF may be if it and the interface have loopback addresses. Nobody has
/// a broadcast address.
fn check_far_ends(
    writer: &Writer,
    networks: Networks<'_>,
    (rules, tunnels): (&Rules, &[Option<OuterHeader>]),
    before: Option<&Rules>,
) -> Result<(), Rejection> {
    let interfaces = networks.interfaces;
    let leads_back = |destination: DestinationInterface, tunnel: Option<OuterHeader>| {
        let Some(tunnel) = tunnel else { return false };
        let peer = tunnel.peer.ip();
        let own = interfaces.number(tunnel.interface.into()).map(|interface| interface.local().ip());
        let network_here = own.is_some_and(|own| own.is_loopback());
        let control =
            matches!(destination, DestinationInterface::CpFunction | DestinationInterface::LiFunction);
        interfaces.gtpu_addresses().any(|own| own.ip() == peer)
            || match writer.receiver(peer) {
                Receiver::Other => !control && peer.is_loopback() && !network_here,
                Receiver::Local => !control,
                Receiver::All => true,
            }
    };
    for ((id, far), tunnel) in rules.fars.iter().zip(tunnels) {
        if before.and_then(|before| before.fars.get(id)).is_some_and(|known| Arc::ptr_eq(known, far)) {
            continue;
        }
        let own = (far.destination.unwrap_or(DestinationInterface::Access), *tunnel);
        let copies = far.copies.iter().map(|copy| {
            let to = copy.destination;
            (to, networks.outer_header(to, copy.outer_header, None))
        });
        if std::iter::once(own).chain(copies).any(|(destination, tunnel)| leads_back(destination, tunnel)) {
            let failed_rule = Some(FailedRuleId::Far(id));
            let incorrect = Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::OUTER_HEADER_CREATION);
            return Err(Rejection { failed_rule, ..incorrect });
        }
    }
    Ok(())
}

/// Refuses a UE address that another session of the same network instance has: the two would take each other's packets. Sessions of the CP
/// function `replaceable` do not prevent that; those that have one of the addresses are returned.
fn check_addresses(
    writer: &Writer,
    sessions: &HashMap<u64, Box<N4Session>>,
    (seid, instance): (u64, u8),
    replaceable: Option<IpAddr>,
    rules: &Rules,
) -> Result<Vec<u64>, Rejection> {
    let mut replaced = Vec::new();
    for (id, pdr) in rules.pdrs.iter().filter(|(_, pdr)| rules.teid_of(pdr).is_none()) {
        for address in rules.ue_of(pdr).addresses() {
            let owner = writer.owner_of_ue(instance, address);
            let Some(owner) = owner.filter(|owner| *owner != seid) else { continue };
            let cp = sessions.get(&owner).map(|session| session.cp);
            if replaceable.is_none() || cp != replaceable {
                let failed_rule = Some(FailedRuleId::Pdr(id));
                return Err(Rejection {
                    failed_rule,
                    ..Rejection::ie(Cause::RULE_FAILURE, ie::UE_IP_ADDRESS)
                });
            }
            if !replaced.contains(&owner) {
                replaced.push(owner);
            }
        }
    }
    Ok(replaced)
}

/// Logs the PDRs without effect that are not in `before`.
fn log_ineffective(seid: u64, ineffective: &[Ineffective], before: &[Ineffective]) {
    for pdr in ineffective.iter().filter(|pdr| !before.contains(pdr)) {
        tracing::warn!(seid, "{pdr}");
    }
}

/// Remote endpoints to which the rules send. `tunnels` are those of the FARs, in their order.
fn remotes(rules: &Rules, tunnels: &[Option<OuterHeader>]) -> impl Iterator<Item = (Peer, u32)> {
    let forwards =
        |pdr: &&PdrRule| rules.far_of(pdr).is_some_and(|far| far.action.contains(ApplyAction::FORW));
    let used = rules.pdrs.values().filter(forwards);
    used.filter_map(|pdr| rules.tunnel_to(pdr, tunnels)).map(|tunnel| (tunnel.far_end(), tunnel.teid))
}

/// Peers whose paths are watched: gNBs and UPFs, each once for every tunnel to it.
fn watched(rules: &Rules, tunnels: &[Option<OuterHeader>]) -> impl Iterator<Item = Peer> {
    let forwarding = rules.fars.values().zip(tunnels);
    let to_users = forwarding.filter(|(far, _)| {
        far.action.contains(ApplyAction::FORW)
            && matches!(far.destination, Some(DestinationInterface::Access | DestinationInterface::Core))
    });
    to_users.filter_map(|(_, tunnel)| Some(tunnel.as_ref()?.far_end()))
}
