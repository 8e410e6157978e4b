//! Session establishment, modification and deletion (TS 29.244 §6.3), without any transport.
//!
//! [`Sessions`] owns all PFCP sessions of the UPF. A request is worked out on a copy of the rules and
//! compiled; then the copy, the look-up tables and the TEIDs change together, or nothing does.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use classifier::session::Interner;
use pfcp::message::{
    SessionDeletionResponse, SessionEstablishmentRequest, SessionEstablishmentResponse,
    SessionModificationRequest, SessionModificationResponse,
};
use pfcp::{
    Cause, CreatedPdr, FSeid, FTeid, FailedRuleId, NodeId, NtpSeconds, OffendingIe, OuterHeaderCreation,
    QueryUrrReference, Seconds, SmReqFlags, UrSeqn, UrrId, UsageReport, UsageReportTrigger,
    VolumeMeasurement, ie,
};
use telemetry::worker::{PerWorker, Totals};

use super::compile::compile;
use super::remarks::Remark;
use super::rules::{Rejection, Rules, TunnelAllocator, UrrRule};
use crate::config::Config;
use crate::session::{Action, Session};
use crate::tables::{Tables, Writer};

/// Most sessions; a CP function gets "no resources" beyond.
pub const MAX_SESSIONS: usize = 1 << 20;

/// A PFCP session.
#[derive(Debug)]
pub struct N4Session {
    /// The CP function's SEID.
    pub cp_seid: u64,
    /// Address of the CP function.
    pub cp: IpAddr,
    /// Its rules.
    pub rules: Rules,
    /// What workers execute.
    pub compiled: Arc<Session>,
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    config: Arc<Config>,
    writer: Writer,
    sessions: HashMap<u64, N4Session>,
    /// Remote tunnel endpoints in use, for Error Indications.
    remote: HashMap<(IpAddr, u32), u64>,
    next_seid: u64,
    workers: usize,
    /// Lets sessions with the same policy share their compiled rules.
    interner: Interner,
}

/// What an establishment leaves to be done.
#[derive(Debug)]
pub struct Established {
    /// Response.
    pub response: SessionEstablishmentResponse,
    /// Sessions that had the UE addresses until now, and are gone.
    pub replaced: Vec<u64>,
}

/// What a modification leaves to be done.
#[derive(Debug)]
pub struct Modified {
    /// The CP function's SEID, for the response.
    pub cp_seid: u64,
    /// Response.
    pub response: SessionModificationResponse,
    /// Tunnels that End Markers go to.
    pub end_markers: Vec<OuterHeaderCreation>,
}

/// Allocates TEIDs for one request; what it took is given back unless kept.
struct Allocation<'a> {
    writer: &'a mut Writer,
    gtpu: IpAddr,
    taken: Vec<u32>,
    /// TEIDs that the session has already.
    own: Vec<u32>,
    /// TEID per choose id: PDRs with the same id share it.
    chosen: BTreeMap<u8, u32>,
}

impl TunnelAllocator for Allocation<'_> {
    fn resolve(&mut self, f_teid: &FTeid) -> Result<u32, Rejection> {
        match *f_teid {
            FTeid::Choose { ipv4, ipv6, id } => {
                if !(ipv4 && self.gtpu.is_ipv4() || ipv6 && self.gtpu.is_ipv6()) {
                    return Err(Rejection::ie(Cause::INVALID_F_TEID_ALLOCATION, ie::F_TEID));
                }
                if let Some(teid) = id.and_then(|id| self.chosen.get(&id)) {
                    return Ok(*teid);
                }
                let teid = self.writer.allocate().ok_or(Rejection::cause(Cause::NO_RESOURCES))?;
                self.taken.push(teid);
                if let Some(id) = id {
                    self.chosen.insert(id, teid);
                }
                Ok(teid)
            }
            FTeid::Assigned { teid, ipv4, ipv6 } => {
                let ours = ipv4.is_some_and(|address| self.gtpu == IpAddr::V4(address))
                    || ipv6.is_some_and(|address| self.gtpu == IpAddr::V6(address));
                if !ours {
                    return Err(Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::F_TEID));
                }
                if self.own.contains(&teid) || self.taken.contains(&teid) {
                    return Ok(teid);
                }
                if !self.writer.assign(teid) {
                    return Err(Rejection::ie(Cause::INVALID_F_TEID_ALLOCATION, ie::F_TEID));
                }
                self.taken.push(teid);
                Ok(teid)
            }
        }
    }
}

impl Sessions {
    /// No sessions yet. `seed` must differ between starts of the process: SEIDs begin from it, so that what a CP
    /// function still asks of a session from before a restart cannot hit another UE's.
    pub fn new(config: Arc<Config>, tables: Arc<Tables>, workers: usize, seed: u32) -> Sessions {
        let writer = Writer::new(tables, &config, seed);
        let next_seid = u64::from(seed) << 32 | 1;
        Sessions {
            config,
            writer,
            sessions: HashMap::new(),
            remote: HashMap::new(),
            next_seid,
            workers,
            interner: Interner::new(),
        }
    }

    /// All sessions by our SEID.
    pub fn iter(&self) -> impl Iterator<Item = (&u64, &N4Session)> {
        self.sessions.iter()
    }

    /// Number of sessions.
    pub fn count(&self) -> usize {
        self.sessions.len()
    }

    /// A session by our SEID.
    pub fn get(&self, seid: u64) -> Option<&N4Session> {
        self.sessions.get(&seid)
    }

    /// The session that sends to this remote tunnel endpoint.
    pub fn by_remote(&self, peer: IpAddr, teid: u32) -> Option<&N4Session> {
        self.sessions.get(self.remote.get(&(peer, teid))?)
    }

    /// Establishes a session (§6.3.2). `cp` is the address the request came from.
    pub fn establish(
        &mut self,
        node_id: NodeId,
        cp: IpAddr,
        request: &SessionEstablishmentRequest,
        now: NtpSeconds,
    ) -> Established {
        let answer = |cause| SessionEstablishmentResponse { node_id, cause, ..Default::default() };
        match self.try_establish(cp, request, now) {
            Ok((seid, created_pdrs, replaced)) => Established {
                response: SessionEstablishmentResponse {
                    up_f_seid: Some(FSeid::new(seid, self.config.pfcp.ip())),
                    created_pdrs,
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
        request: &SessionEstablishmentRequest,
        now: NtpSeconds,
    ) -> Result<(u64, Vec<CreatedPdr>, Vec<u64>), Rejection> {
        if request.create_pdrs.is_empty() {
            return Err(Rejection::ie(Cause::MANDATORY_IE_MISSING, ie::CREATE_PDR));
        }
        if request.create_fars.is_empty() {
            return Err(Rejection::ie(Cause::MANDATORY_IE_MISSING, ie::CREATE_FAR));
        }
        if !request.create_traffic_endpoints.is_empty() {
            return Err(Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie::CREATE_TRAFFIC_ENDPOINT));
        }
        if self.sessions.len() >= MAX_SESSIONS {
            return Err(Rejection::cause(Cause::NO_RESOURCES));
        }
        let seid = self.next_seid;
        let mut rules = Rules::default();
        let usage = Arc::new(PerWorker::new(self.workers));
        let change = |rules: &mut Rules, tunnels: &mut Allocation<'_>, workers| {
            for far in &request.create_fars {
                rules.create_far(far)?;
            }
            for qer in &request.create_qers {
                rules.create_qer(qer)?;
            }
            for urr in &request.create_urrs {
                rules.create_urr(urr, workers, now)?;
            }
            create_pdrs(rules, &request.create_pdrs, tunnels)
        };
        // A CP function that assigns an address again has given up the session that had it: its deletion was lost.
        let (compiled, created, replaced) = self.work_out(seid, Some(cp), &mut rules, usage, &[], change)?;
        self.next_seid += 1;
        for old in &replaced {
            self.remove(*old);
        }
        log_remarks(&compiled, &[]);
        self.publish(&Rules::default(), &rules, &compiled);
        self.sessions.insert(seid, N4Session { cp_seid: request.cp_f_seid.seid, cp, rules, compiled });
        Ok((seid, created, replaced))
    }

    /// Applies `change` to `rules` and compiles them; also returns the sessions of `replaceable` that have to go
    /// for their UE addresses. On any refusal the TEIDs it took are given back.
    fn work_out<T>(
        &mut self,
        seid: u64,
        replaceable: Option<IpAddr>,
        rules: &mut Rules,
        usage: Arc<PerWorker>,
        own_teids: &[u32],
        change: impl FnOnce(&mut Rules, &mut Allocation<'_>, usize) -> Result<T, Rejection>,
    ) -> Result<(Arc<Session>, T, Vec<u64>), Rejection> {
        let workers = self.workers;
        let mut allocation = Allocation {
            writer: &mut self.writer,
            gtpu: self.config.gtpu.ip(),
            taken: Vec::new(),
            own: own_teids.to_vec(),
            chosen: BTreeMap::new(),
        };
        let result = change(rules, &mut allocation, workers).and_then(|value| {
            rules.check()?;
            Ok((value, compile(seid, rules, usage, &self.config, &mut self.interner)?))
        });
        let taken = allocation.taken;
        let result = result.and_then(|(value, compiled)| {
            let replaced = self.check_addresses(seid, replaceable, rules)?;
            Ok((Arc::new(compiled), value, replaced))
        });
        if result.is_err() {
            for teid in taken {
                self.writer.release(teid);
            }
        }
        result
    }

    /// A UE address belongs to one session: two would steal each other's packets. Returns the sessions of the CP
    /// function `replaceable` that have one of these addresses.
    fn check_addresses(
        &self,
        seid: u64,
        replaceable: Option<IpAddr>,
        rules: &Rules,
    ) -> Result<Vec<u64>, Rejection> {
        let mut replaced = Vec::new();
        for (id, pdr) in rules.pdrs.iter().filter(|(_, pdr)| pdr.teid.is_none()) {
            let addresses = [pdr.ue_v4.map(IpAddr::V4), pdr.ue_v6.map(|(prefix, _)| IpAddr::V6(prefix))];
            for address in addresses.into_iter().flatten() {
                let owner = self.writer.owner_of_ue(address).map(|owner| owner.seid);
                let Some(owner) = owner.filter(|owner| *owner != seid) else { continue };
                let cp = self.sessions.get(&owner).map(|session| session.cp);
                if replaceable.is_none() || cp != replaceable {
                    let failed_rule = Some(FailedRuleId::Pdr(*id));
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

    /// Makes the tables show `compiled` with `new` rules in place of what `old` rules had put there.
    fn publish(&mut self, old: &Rules, new: &Rules, compiled: &Arc<Session>) {
        let (old_teids, new_teids) = (old.teids(), new.teids());
        let (old_addresses, new_addresses) = (old.native_addresses(), new.native_addresses());
        for teid in &new_teids {
            self.writer.publish_teid(*teid, compiled);
        }
        for address in &new_addresses {
            self.writer.publish_ue(*address, compiled);
        }
        for teid in old_teids.iter().filter(|teid| !new_teids.contains(teid)) {
            self.writer.release(*teid);
        }
        for address in old_addresses.iter().filter(|address| !new_addresses.contains(address)) {
            self.writer.release_ue(*address);
        }
        for header in tunnels_of(compiled) {
            self.remote.insert(header, compiled.seid);
        }
    }

    /// Changes a session (§6.3.3). `None` when it does not exist or belongs to another CP function.
    pub fn modify(
        &mut self,
        seid: u64,
        cp: IpAddr,
        request: &SessionModificationRequest,
        now: NtpSeconds,
    ) -> Option<Modified> {
        let session = self.sessions.get(&seid).filter(|session| session.cp == cp)?;
        let cp_seid = request.cp_f_seid.map_or(session.cp_seid, |f_seid| f_seid.seid);
        let old_cp_seid = session.cp_seid;
        let answer = |cause| SessionModificationResponse { cause, ..Default::default() };
        Some(match self.try_modify(seid, cp_seid, request, now) {
            Ok((created_pdrs, usage_reports, end_markers)) => Modified {
                cp_seid,
                response: SessionModificationResponse {
                    created_pdrs,
                    usage_reports,
                    ..answer(Cause::ACCEPTED)
                },
                end_markers,
            },
            Err(rejection) => Modified {
                cp_seid: old_cp_seid,
                response: SessionModificationResponse {
                    offending_ie: rejection.offending_ie.map(OffendingIe),
                    failed_rule_id: rejection.failed_rule,
                    ..answer(rejection.cause)
                },
                end_markers: Vec::new(),
            },
        })
    }

    #[allow(clippy::type_complexity)] // the three parts of a modification's result, named at the one caller
    fn try_modify(
        &mut self,
        seid: u64,
        cp_seid: u64,
        request: &SessionModificationRequest,
        now: NtpSeconds,
    ) -> Result<(Vec<CreatedPdr>, Vec<UsageReport>, Vec<OuterHeaderCreation>), Rejection> {
        let not_found = Rejection::cause(Cause::SESSION_NOT_FOUND);
        if !request.create_traffic_endpoints.is_empty() || !request.update_traffic_endpoints.is_empty() {
            return Err(Rejection::ie(Cause::SERVICE_NOT_SUPPORTED, ie::CREATE_TRAFFIC_ENDPOINT));
        }
        let session = self.sessions.get(&seid).ok_or(not_found)?;
        let old_teids = session.rules.teids();
        let usage = Arc::clone(&session.compiled.usage);
        let mut rules = session.rules.clone();
        let mut reports = Vec::new();
        let (compiled, (created, end_markers), _) =
            self.work_out(seid, None, &mut rules, usage, &old_teids, |rules, tunnels, workers| {
                reports = remove(rules, request, now)?;
                change(rules, request, tunnels, workers, now)
            })?;
        let reference = request.query_urr_reference;
        let all = request.flags.is_some_and(|flags| flags.contains(SmReqFlags::QAURR));
        for (id, urr) in &mut rules.urrs {
            if all || request.query_urrs.iter().any(|query| query.urr_id.0 == *id) {
                reports.push(report(*id, urr, UsageReportTrigger::IMMER, now, reference));
            }
        }
        let session = self.sessions.get_mut(&seid).ok_or(not_found)?;
        let old_rules = std::mem::replace(&mut session.rules, rules.clone());
        let old_compiled = std::mem::replace(&mut session.compiled, Arc::clone(&compiled));
        session.cp_seid = cp_seid;
        log_remarks(&compiled, &old_compiled.remarks);
        self.forget_remotes(&old_compiled);
        self.publish(&old_rules, &rules, &compiled);
        Ok((created, reports, end_markers))
    }

    fn forget_remotes(&mut self, compiled: &Session) {
        for header in tunnels_of(compiled) {
            if self.remote.get(&header) == Some(&compiled.seid) {
                self.remote.remove(&header);
            }
        }
    }

    /// Deletes a session (§6.3.4) and returns the CP function's SEID with the last usage reports.
    pub fn delete(
        &mut self,
        seid: u64,
        cp: IpAddr,
        now: NtpSeconds,
    ) -> Option<(u64, SessionDeletionResponse)> {
        self.sessions.get(&seid).filter(|session| session.cp == cp)?;
        let mut session = self.remove(seid)?;
        let usage_reports = session
            .rules
            .urrs
            .iter_mut()
            .map(|(id, urr)| report(*id, urr, UsageReportTrigger::TERMR, now, None))
            .collect();
        let response =
            SessionDeletionResponse { cause: Cause::ACCEPTED, usage_reports, ..Default::default() };
        Some((session.cp_seid, response))
    }

    fn remove(&mut self, seid: u64) -> Option<N4Session> {
        let session = self.sessions.remove(&seid)?;
        for teid in session.rules.teids() {
            self.writer.release(teid);
        }
        for address in session.rules.native_addresses() {
            self.writer.release_ue(address);
        }
        self.forget_remotes(&session.compiled);
        Some(session)
    }

    /// Removes all sessions of a CP function: association release, set deletion, restart. Returns their number.
    pub fn remove_all_of(&mut self, cp: IpAddr) -> usize {
        let seids: Vec<u64> =
            self.sessions.iter().filter(|(_, session)| session.cp == cp).map(|(seid, _)| *seid).collect();
        for seid in &seids {
            self.remove(*seid);
        }
        seids.len()
    }
}

/// Says what is odd about a session's rules and was not so before.
fn log_remarks(session: &Session, before: &[Remark]) {
    for remark in session.remarks.iter().filter(|remark| !before.contains(remark)) {
        tracing::warn!(seid = session.seid, "{remark}");
    }
}

/// Remote endpoints that a session sends to.
fn tunnels_of(session: &Session) -> impl Iterator<Item = (IpAddr, u32)> {
    session.pdrs.iter().filter_map(|pdr| match pdr.action {
        Action::Tunnel(header) => Some((header.peer.ip(), header.teid)),
        _ => None,
    })
}

/// Creates PDRs and tells which F-TEIDs were chosen.
fn create_pdrs(
    rules: &mut Rules,
    create: &[pfcp::CreatePdr],
    tunnels: &mut Allocation<'_>,
) -> Result<Vec<CreatedPdr>, Rejection> {
    let mut created = Vec::new();
    for pdr in create {
        rules.create_pdr(pdr, tunnels)?;
        let chosen = matches!(pdr.pdi.f_teid, Some(FTeid::Choose { .. }));
        let teid = rules.pdrs.get(&pdr.pdr_id.0).and_then(|rule| rule.teid);
        if let (true, Some(teid)) = (chosen, teid) {
            let (ipv4, ipv6) = match tunnels.gtpu {
                IpAddr::V4(address) => (Some(address), None),
                IpAddr::V6(address) => (None, Some(address)),
            };
            let f_teid = Some(FTeid::Assigned { teid, ipv4, ipv6 });
            created.push(CreatedPdr { pdr_id: pdr.pdr_id, f_teid, ..Default::default() });
        }
    }
    Ok(created)
}

/// Removes rules; removed URRs make their last report.
fn remove(
    rules: &mut Rules,
    request: &SessionModificationRequest,
    now: NtpSeconds,
) -> Result<Vec<UsageReport>, Rejection> {
    for pdr in &request.remove_pdrs {
        let id = pdr.pdr_id.0;
        rules.pdrs.remove(&id).ok_or(Rejection::rule(FailedRuleId::Pdr(id)))?;
    }
    for far in &request.remove_fars {
        let id = far.far_id.0;
        rules.fars.remove(&id).ok_or(Rejection::rule(FailedRuleId::Far(id)))?;
    }
    for qer in &request.remove_qers {
        let id = qer.qer_id.0;
        rules.qers.remove(&id).ok_or(Rejection::rule(FailedRuleId::Qer(id)))?;
    }
    let mut reports = Vec::new();
    for urr in &request.remove_urrs {
        let id = urr.urr_id.0;
        let mut rule = rules.urrs.remove(&id).ok_or(Rejection::rule(FailedRuleId::Urr(id)))?;
        reports.push(report(id, &mut rule, UsageReportTrigger::TERMR, now, None));
    }
    for query in &request.query_urrs {
        let id = query.urr_id.0;
        if !rules.urrs.contains_key(&id) {
            return Err(Rejection::rule(FailedRuleId::Urr(id)));
        }
    }
    Ok(reports)
}

type Changed = (Vec<CreatedPdr>, Vec<OuterHeaderCreation>);

/// Creates and updates rules, after [`remove`].
fn change(
    rules: &mut Rules,
    request: &SessionModificationRequest,
    tunnels: &mut Allocation<'_>,
    workers: usize,
    now: NtpSeconds,
) -> Result<Changed, Rejection> {
    let mut end_markers = Vec::new();
    for far in &request.create_fars {
        rules.create_far(far)?;
    }
    for far in &request.update_fars {
        end_markers.extend(rules.update_far(far)?);
    }
    for qer in &request.create_qers {
        rules.create_qer(qer)?;
    }
    for qer in &request.update_qers {
        rules.update_qer(qer)?;
    }
    for urr in &request.create_urrs {
        rules.create_urr(urr, workers, now)?;
    }
    for urr in &request.update_urrs {
        rules.update_urr(urr)?;
    }
    let mut created = create_pdrs(rules, &request.create_pdrs, tunnels)?;
    for pdr in &request.update_pdrs {
        rules.update_pdr(pdr, tunnels)?;
        let chosen = pdr.pdi.as_ref().is_some_and(|pdi| matches!(pdi.f_teid, Some(FTeid::Choose { .. })));
        let teid = rules.pdrs.get(&pdr.pdr_id.0).and_then(|rule| rule.teid);
        if let (true, Some(teid)) = (chosen, teid) {
            let f_teid = match tunnels.gtpu {
                IpAddr::V4(address) => FTeid::Assigned { teid, ipv4: Some(address), ipv6: None },
                IpAddr::V6(address) => FTeid::Assigned { teid, ipv4: None, ipv6: Some(address) },
            };
            created.push(CreatedPdr { pdr_id: pdr.pdr_id, f_teid: Some(f_teid), ..Default::default() });
        }
    }
    Ok((created, end_markers))
}

/// What a URR has counted since its last report.
fn report(
    id: u32,
    urr: &mut UrrRule,
    trigger: UsageReportTrigger,
    now: NtpSeconds,
    query_reference: Option<QueryUrrReference>,
) -> UsageReport {
    let (uplink, downlink) = urr.usage.totals();
    let (up, down): (Totals, Totals) = (uplink - urr.reported.0, downlink - urr.reported.1);
    let sequence = urr.sequence;
    let start = urr.start;
    urr.reported = (uplink, downlink);
    urr.sequence = urr.sequence.wrapping_add(1);
    urr.start = now;
    let packets = |count: u64| urr.packets.then_some(count);
    UsageReport {
        urr_id: UrrId(id),
        sequence: UrSeqn(sequence),
        trigger,
        start_time: Some(start),
        end_time: Some(now),
        volume: Some(VolumeMeasurement {
            total: Some(up.bytes + down.bytes),
            uplink: Some(up.bytes),
            downlink: Some(down.bytes),
            total_packets: packets(up.packets + down.packets),
            uplink_packets: packets(up.packets),
            downlink_packets: packets(down.packets),
        }),
        duration: Some(Seconds(now.0.wrapping_sub(start.0))),
        query_reference,
        ..Default::default()
    }
}
