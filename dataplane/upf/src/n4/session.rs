//! Session establishment, modification and deletion (TS 29.244 §6.3), without any transport.
//!
//! [`Sessions`] owns all PFCP sessions of the UPF. A request is worked out on a copy of the rules and
//! compiled; then the copy, the look-up tables and the TEIDs change together, or nothing does.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use pfcp::message::{
    SessionDeletionResponse, SessionEstablishmentRequest, SessionEstablishmentResponse,
    SessionModificationRequest, SessionModificationResponse,
};
use pfcp::{
    ApplyAction, Cause, CreatedPdr, FSeid, FTeid, FailedRuleId, NodeId, NtpSeconds, OffendingIe,
    OuterHeaderCreation, QueryUrrReference, Seconds, SmReqFlags, UrSeqn, UrrId, UsageReport,
    UsageReportTrigger, VolumeMeasurement, ie,
};
use telemetry::worker::Totals;

use super::compile::compile;
use super::remarks::Remark;
use super::rules::{Rejection, Rules, TunnelAllocator, UrrRule};
use crate::config::Config;
use crate::plan::{Plan, PlanError};
use crate::session::Session;
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
    pub compiled: Session,
    /// What is odd about the rules.
    pub remarks: Box<[Remark]>,
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
}

/// A request worked out, before anything is changed.
struct Worked<T> {
    plan: Plan,
    remarks: Vec<Remark>,
    value: T,
    /// Sessions that have to go for their UE addresses.
    replaced: Vec<u64>,
    /// TEIDs that were allocated.
    taken: Vec<u32>,
}

/// What the packet path has counted, by URR: uplink, downlink.
type Counted = BTreeMap<u32, (Totals, Totals)>;

impl From<PlanError> for Rejection {
    fn from(_: PlanError) -> Rejection {
        Rejection::cause(Cause::NO_RESOURCES)
    }
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
        let writer = Writer::new(tables, &config, workers, seed);
        let next_seid = u64::from(seed) << 32 | 1;
        Sessions { config, writer, sessions: HashMap::new(), remote: HashMap::new(), next_seid }
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
        let change = |rules: &mut Rules, tunnels: &mut Allocation<'_>| {
            for far in &request.create_fars {
                rules.create_far(far)?;
            }
            for qer in &request.create_qers {
                rules.create_qer(qer)?;
            }
            for urr in &request.create_urrs {
                rules.create_urr(urr, Default::default(), now)?;
            }
            create_pdrs(rules, &request.create_pdrs, tunnels)
        };
        // A CP function that assigns an address again has given up the session that had it: its deletion was lost.
        let work = self.work_out(seid, Some(cp), &mut rules, &[], change)?;
        let compiled = match self.writer.establish(&work.plan) {
            Ok(compiled) => compiled,
            Err(error) => {
                self.give_back(work.taken);
                return Err(error.into());
            }
        };
        let Worked { value: created, replaced, remarks, .. } = work;
        self.next_seid += 1;
        for old in &replaced {
            self.remove(*old);
        }
        log_remarks(seid, &remarks, &[]);
        self.remember_remotes(seid, &rules);
        let session =
            N4Session { cp_seid: request.cp_f_seid.seid, cp, rules, compiled, remarks: remarks.into() };
        self.sessions.insert(seid, session);
        Ok((seid, created, replaced))
    }

    /// Applies `change` to `rules` and compiles them. On any refusal the TEIDs it took are given back.
    fn work_out<T>(
        &mut self,
        seid: u64,
        replaceable: Option<IpAddr>,
        rules: &mut Rules,
        own_teids: &[u32],
        change: impl FnOnce(&mut Rules, &mut Allocation<'_>) -> Result<T, Rejection>,
    ) -> Result<Worked<T>, Rejection> {
        let mut allocation = Allocation {
            writer: &mut self.writer,
            gtpu: self.config.gtpu.ip(),
            taken: Vec::new(),
            own: own_teids.to_vec(),
            chosen: BTreeMap::new(),
        };
        let result = change(rules, &mut allocation).and_then(|value| {
            rules.check()?;
            Ok((value, compile(seid, rules, &self.config)?))
        });
        let taken = allocation.taken;
        let result = result.and_then(|work| Ok((work, self.check_addresses(seid, replaceable, rules)?)));
        match result {
            Ok(((value, (plan, remarks)), replaced)) => Ok(Worked { plan, remarks, value, replaced, taken }),
            Err(rejection) => {
                self.give_back(taken);
                Err(rejection)
            }
        }
    }

    fn give_back(&mut self, teids: Vec<u32>) {
        for teid in teids {
            self.writer.release(teid);
        }
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
                let owner = self.writer.owner_of_ue(address);
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

    fn remember_remotes(&mut self, seid: u64, rules: &Rules) {
        for remote in remotes(rules) {
            self.remote.insert(remote, seid);
        }
    }

    fn forget_remotes(&mut self, seid: u64, rules: &Rules) {
        for remote in remotes(rules) {
            if self.remote.get(&remote) == Some(&seid) {
                self.remote.remove(&remote);
            }
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
        let counted: Counted = session.rules.urrs.keys().map(|id| (*id, session.compiled.urr(*id))).collect();
        let mut rules = session.rules.clone();
        let mut reports = Vec::new();
        let work = self.work_out(seid, None, &mut rules, &old_teids, |rules, tunnels| {
            reports = remove(rules, request, &counted, now)?;
            change(rules, request, tunnels, &counted, now)
        })?;
        let reference = request.query_urr_reference;
        let all = request.flags.is_some_and(|flags| flags.contains(SmReqFlags::QAURR));
        for (id, urr) in &mut rules.urrs {
            if all || request.query_urrs.iter().any(|query| query.urr_id.0 == *id) {
                let counted = counted.get(id).copied().unwrap_or_default();
                reports.push(report(*id, urr, counted, UsageReportTrigger::IMMER, now, reference));
            }
        }
        let session = self.sessions.get_mut(&seid).ok_or(not_found)?;
        if let Err(error) = self.writer.modify(&mut session.compiled, &work.plan) {
            self.give_back(work.taken);
            return Err(error.into());
        }
        log_remarks(seid, &work.remarks, &session.remarks);
        session.remarks = work.remarks.into();
        session.cp_seid = cp_seid;
        let old_rules = std::mem::replace(&mut session.rules, rules.clone());
        self.forget_remotes(seid, &old_rules);
        self.remember_remotes(seid, &rules);
        let (created, end_markers) = work.value;
        Ok((created, reports, end_markers))
    }

    /// Deletes a session (§6.3.4) and returns the CP function's SEID with the last usage reports.
    pub fn delete(
        &mut self,
        seid: u64,
        cp: IpAddr,
        now: NtpSeconds,
    ) -> Option<(u64, SessionDeletionResponse)> {
        self.sessions.get(&seid).filter(|session| session.cp == cp)?;
        let session = self.sessions.get_mut(&seid)?;
        let (cp_seid, compiled) = (session.cp_seid, &session.compiled);
        let usage_reports = session
            .rules
            .urrs
            .iter_mut()
            .map(|(id, urr)| report(*id, urr, compiled.urr(*id), UsageReportTrigger::TERMR, now, None))
            .collect();
        self.remove(seid);
        let response =
            SessionDeletionResponse { cause: Cause::ACCEPTED, usage_reports, ..Default::default() };
        Some((cp_seid, response))
    }

    fn remove(&mut self, seid: u64) {
        if let Some(session) = self.sessions.remove(&seid) {
            self.writer.remove(session.compiled);
            self.forget_remotes(seid, &session.rules);
        }
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
fn log_remarks(seid: u64, remarks: &[Remark], before: &[Remark]) {
    for remark in remarks.iter().filter(|remark| !before.contains(remark)) {
        tracing::warn!(seid, "{remark}");
    }
}

/// Remote endpoints that the rules send to.
pub(super) fn remotes(rules: &Rules) -> impl Iterator<Item = (IpAddr, u32)> {
    let used = rules.pdrs.values().filter_map(|pdr| rules.fars.get(&pdr.far_id));
    let forwarding = used.filter(|far| far.action.contains(ApplyAction::FORW));
    forwarding.filter_map(|far| {
        let (teid, peer) = far.outer_header?.gtpu_endpoint()?;
        Some((peer, teid))
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
    counted: &Counted,
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
        let counted = counted.get(&id).copied().unwrap_or_default();
        reports.push(report(id, &mut rule, counted, UsageReportTrigger::TERMR, now, None));
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
    counted: &Counted,
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
        let counted = counted.get(&urr.urr_id.0).copied().unwrap_or_default();
        rules.create_urr(urr, counted, now)?;
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
    (uplink, downlink): (Totals, Totals),
    trigger: UsageReportTrigger,
    now: NtpSeconds,
    query_reference: Option<QueryUrrReference>,
) -> UsageReport {
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
