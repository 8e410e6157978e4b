//! N4 session requests: the input is a program of establishments, modifications and deletions, whose outcome a
//! model of the rules' identifiers predicts; or one PFCP message for an existing session.
//!
//! ```text
//! program: steps, at most 64    step: operation 1, session 1, then its parts
//! part: kind 1 (0 nothing more), identifier 1, references 1
//! ```
//! Rules are valid by themselves. A request is therefore refused only for its references, and then changes
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use pfcp::message::{SessionEstablishmentRequest, SessionModificationRequest};
use pfcp::*;
use upf::n4::session::Sessions;
use upf::tables::Tables;

/// Steps of one program.
const STEPS_MAX: usize = 64;
/// Parts of one request.
const PARTS_MAX: usize = 12;
const CP: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 4));
const GTPU: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);
const NOW: NtpSeconds = NtpSeconds(1000);

/// A PDR's FAR, first QER and first URR.
type References = (Option<u32>, Option<u32>, Option<u32>);

/// The identifiers of a session's rules, and the rules that PDRs refer to.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Model {
    pdrs: BTreeMap<u16, References>,
    fars: BTreeSet<u32>,
    qers: BTreeSet<u32>,
    urrs: BTreeSet<u32>,
}

impl Model {
    fn complete(&self) -> bool {
        self.pdrs.values().all(|(far, qer, urr)| {
            far.is_none_or(|far| self.fars.contains(&far))
                && qer.is_none_or(|qer| self.qers.contains(&qer))
                && urr.is_none_or(|urr| self.urrs.contains(&urr))
        })
    }

    /// Removes the references of PDRs to removed rules (TS 29.244 §6.3.3.3).
    fn drop_references(&mut self) {
        for (far, qer, urr) in self.pdrs.values_mut() {
            *far = far.filter(|far| self.fars.contains(far));
            *qer = qer.filter(|qer| self.qers.contains(qer));
            *urr = urr.filter(|urr| self.urrs.contains(urr));
        }
    }

    /// Applies a modification; `None` when it must be refused.
    fn modify(&self, request: &SessionModificationRequest) -> Option<Model> {
        let mut new = self.clone();
        let fine = request.remove_pdrs.iter().all(|pdr| new.pdrs.remove(&pdr.pdr_id.0).is_some())
            && request.remove_fars.iter().all(|far| new.fars.remove(&far.far_id.0))
            && request.remove_qers.iter().all(|qer| new.qers.remove(&qer.qer_id.0))
            && request.remove_urrs.iter().all(|urr| new.urrs.remove(&urr.urr_id.0));
        new.drop_references();
        let fine = fine
            && request.create_fars.iter().all(|far| new.fars.insert(far.far_id.0))
            && request.update_fars.iter().all(|far| new.fars.contains(&far.far_id.0))
            && request.create_qers.iter().all(|qer| new.qers.insert(qer.qer_id.0))
            && request.update_qers.iter().all(|qer| new.qers.contains(&qer.qer_id.0))
            && request.create_urrs.iter().all(|urr| new.urrs.insert(urr.urr_id.0))
            && request.update_urrs.iter().all(|urr| new.urrs.contains(&urr.urr_id.0))
            && request.create_pdrs.iter().all(|pdr| new.pdrs.insert(pdr.pdr_id.0, references(pdr)).is_none())
            && request.update_pdrs.iter().all(|pdr| match new.pdrs.get_mut(&pdr.pdr_id.0) {
                Some(known) => {
                    known.0 = pdr.far_id.map_or(known.0, |far| Some(far.0));
                    true
                }
                None => false,
            })
            && request.query_urrs.iter().all(|urr| new.urrs.contains(&urr.urr_id.0));
        (fine && new.complete()).then_some(new)
    }
}

fn references(pdr: &CreatePdr) -> References {
    (pdr.far_id.map(|far| far.0), pdr.qer_ids.first().map(|qer| qer.0), pdr.urr_ids.first().map(|urr| urr.0))
}

/// A PDR for packets from the UE in a tunnel, or to its address.
fn pdr(session: u8, id: u8, refer: u8) -> CreatePdr {
    let tunnel = id.is_multiple_of(2);
    let ue = UeIpAddress {
        ipv4: Some([10, 45, 0, session + 2].into()),
        destination: !tunnel,
        ..Default::default()
    };
    let pdi = Pdi {
        source_interface: if tunnel { SourceInterface::Access } else { SourceInterface::Core },
        f_teid: tunnel.then_some(FTeid::Choose {
            ipv4: true,
            ipv6: false,
            id: (id.is_multiple_of(4)).then_some(1),
        }),
        ue_ip_address: Some(ue),
        qfis: if refer & 0x80 != 0 { vec![Qfi(refer & 0x3f)] } else { Vec::new() },
        ..Default::default()
    };
    CreatePdr {
        pdr_id: PdrId(u16::from(id % 6)),
        precedence: Precedence(u32::from(refer % 3)),
        pdi,
        far_id: Some(FarId(u32::from(refer % 4))),
        qer_ids: (refer & 4 != 0).then_some(QerId(u32::from(refer >> 3 & 3))).into_iter().collect(),
        urr_ids: (refer & 0x20 != 0).then_some(UrrId(u32::from(refer >> 6))).into_iter().collect(),
        ..Default::default()
    }
}

fn far(id: u8, refer: u8) -> CreateFar {
    let action =
        [ApplyAction::FORW, ApplyAction::DROP, ApplyAction::BUFF | ApplyAction::NOCP][usize::from(refer % 3)];
    CreateFar {
        far_id: FarId(u32::from(id % 4)),
        apply_action: action,
        forwarding_parameters: Some(Box::new(ForwardingParameters {
            destination_interface: DestinationInterface::Access,
            outer_header_creation: Some(OuterHeaderCreation::gtpu(u32::from(refer) + 1, CP)),
            ..Default::default()
        })),
        ..Default::default()
    }
}

fn urr(id: u8, refer: u8) -> CreateUrr {
    CreateUrr {
        urr_id: UrrId(u32::from(id % 4)),
        measurement_method: MeasurementMethod::VOLUM | MeasurementMethod::DURAT,
        reporting_triggers: ReportingTriggers::VOLTH | ReportingTriggers::VOLQU,
        volume_threshold: (refer & 1 != 0)
            .then_some(Volume { total: Some(u64::from(refer)), ..Default::default() }),
        volume_quota: (refer & 2 != 0)
            .then_some(Volume { uplink: Some(u64::from(refer >> 4)), ..Default::default() }),
        ..Default::default()
    }
}

/// A request as a modification; an establishment uses only the parts that create.
fn request(session: u8, bytes: &mut impl Iterator<Item = u8>) -> SessionModificationRequest {
    let mut request = SessionModificationRequest::default();
    let mut byte = || bytes.next().unwrap_or(0);
    for _ in 0..PARTS_MAX {
        let (kind, id, refer) = (byte(), byte(), byte());
        let number = u32::from(id % 4);
        match kind % 16 {
            1 | 2 => request.create_pdrs.push(pdr(session, id, refer)),
            3 | 4 => request.create_fars.push(far(id, refer)),
            5 => request.create_qers.push(CreateQer { qer_id: QerId(number), ..Default::default() }),
            6 => request.create_urrs.push(urr(id, refer)),
            7 => request.remove_pdrs.push(RemovePdr { pdr_id: PdrId(u16::from(id % 6)) }),
            8 => request.remove_fars.push(RemoveFar { far_id: FarId(number) }),
            9 => request.remove_qers.push(RemoveQer { qer_id: QerId(number) }),
            10 => request.remove_urrs.push(RemoveUrr { urr_id: UrrId(number) }),
            11 => request.update_pdrs.push(UpdatePdr {
                pdr_id: PdrId(u16::from(id % 6)),
                far_id: Some(FarId(u32::from(refer % 4))),
                ..Default::default()
            }),
            12 => request.update_fars.push(UpdateFar {
                far_id: FarId(number),
                apply_action: Some(far(id, refer).apply_action),
                ..Default::default()
            }),
            13 => request.update_qers.push(UpdateQer { qer_id: QerId(number), ..Default::default() }),
            14 => request.update_urrs.push(UpdateUrr {
                urr_id: UrrId(number),
                volume_quota: urr(id, refer).volume_quota,
                ..Default::default()
            }),
            15 => request.query_urrs.push(QueryUrr { urr_id: UrrId(number) }),
            _ => break,
        }
    }
    request
}

fn sessions() -> Sessions {
    let text = r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "dnn": [{"name": "internet", "tun": "gw0",
        "ue_pool": {"ipv4": "10.45.0.0/16"}}]}"#;
    let config: Arc<upf::Config> = Arc::new(serde_json::from_str(text).expect("the configuration is valid"));
    let tables = Arc::new(Tables::new(&config));
    Sessions::new(config, tables, 1)
}

fn seen(sessions: &Sessions, seid: u64) -> Model {
    let rules = &sessions.get(seid).expect("the session exists").rules;
    let pdrs = rules
        .pdrs
        .iter()
        .map(|(id, pdr)| (id, (pdr.far_id, pdr.qer_ids.first().copied(), pdr.urr_ids.first().copied())));
    Model {
        pdrs: pdrs.collect(),
        fars: rules.fars.iter().map(|(id, _)| id).collect(),
        qers: rules.qers.iter().map(|(id, _)| id).collect(),
        urrs: rules.urrs.iter().map(|(id, _)| id).collect(),
    }
}

/// Runs the program on the UPF and on the model.
pub fn program(data: &[u8]) {
    let mut bytes = data.iter().copied();
    let mut sessions = sessions();
    let mut models: BTreeMap<u8, (u64, Model)> = BTreeMap::new();
    for _ in 0..STEPS_MAX {
        let (Some(operation), Some(session)) = (bytes.next(), bytes.next()) else { break };
        let session = session % 4;
        match (operation % 4, models.get(&session).cloned()) {
            (0, Some((seid, _))) => {
                models.remove(&session);
                assert!(sessions.delete(seid, CP, NOW).is_some());
            }
            (_, Some((seid, model))) => {
                let request = request(session, &mut bytes);
                let cause =
                    sessions.modify(seid, CP, &request, NOW).expect("the session exists").response.cause;
                let expected = model.modify(&request);
                assert_eq!(
                    cause == Cause::ACCEPTED,
                    expected.is_some(),
                    "{cause:?} for {request:?} on {model:?}"
                );
                let model = expected.unwrap_or(model);
                assert_eq!(seen(&sessions, seid), model, "after {request:?}");
                models.insert(session, (seid, model));
            }
            (_, None) => {
                let parts = request(session, &mut bytes);
                let creates = SessionModificationRequest {
                    create_pdrs: parts.create_pdrs,
                    create_fars: parts.create_fars,
                    create_qers: parts.create_qers,
                    create_urrs: parts.create_urrs,
                    ..Default::default()
                };
                let expected = Model::default()
                    .modify(&creates)
                    .filter(|_| !creates.create_pdrs.is_empty() && !creates.create_fars.is_empty());
                let request = SessionEstablishmentRequest {
                    cp_f_seid: FSeid::new(u64::from(session) + 1, CP),
                    create_pdrs: creates.create_pdrs,
                    create_fars: creates.create_fars,
                    create_qers: creates.create_qers,
                    create_urrs: creates.create_urrs,
                    ..Default::default()
                };
                let response = sessions.establish(NodeId::Ipv4(GTPU), CP, request.clone(), NOW).response;
                assert_eq!(
                    response.up_f_seid.is_some(),
                    expected.is_some(),
                    "{:?} for {request:?}",
                    response.cause
                );
                if let (Some(f_seid), Some(model)) = (response.up_f_seid, expected) {
                    assert_eq!(seen(&sessions, f_seid.seid), model);
                    models.insert(session, (f_seid.seid, model));
                }
            }
        }
        assert_eq!(sessions.count(), models.len());
    }
    // In any state, everything can be removed.
    sessions.remove_all_of(CP);
    assert_eq!((sessions.count(), sessions.next_timeout()), (0, None));
}

/// One PFCP message for an existing session: a refused message changes nothing, and after an accepted one the
/// session can be deleted.
pub fn message(data: &[u8]) {
    let Ok((_, message)) = Message::decode(data) else { return };
    let mut sessions = sessions();
    let first = SessionEstablishmentRequest {
        cp_f_seid: FSeid::new(1, CP),
        create_pdrs: vec![pdr(0, 0, 0), pdr(0, 1, 0)],
        create_fars: vec![far(0, 0), far(1, 0)],
        create_urrs: vec![urr(1, 0)],
        ..Default::default()
    };
    let first = sessions.establish(NodeId::Ipv4(GTPU), CP, first.clone(), NOW).response;
    let seid = first.up_f_seid.expect("the session is in order").seid;
    let before = format!("{:?}", sessions.get(seid).map(|session| &session.rules));
    match message {
        Message::SessionEstablishmentRequest(request) => {
            sessions.establish(NodeId::Ipv4(GTPU), CP, request.clone(), NOW);
        }
        Message::SessionModificationRequest(request) => {
            let modified = sessions.modify(seid, CP, &request, NOW);
            if modified.is_some_and(|modified| modified.response.cause != Cause::ACCEPTED) {
                assert_eq!(format!("{:?}", sessions.get(seid).map(|session| &session.rules)), before);
            }
        }
        Message::SessionReportResponse(response) => {
            sessions.report_answered(seid, &response);
        }
        _ => return,
    }
    // Bounded, because a rule may cause a report every time.
    for _ in 0..64 {
        let Some(next) = sessions.next_timeout() else { break };
        sessions
            .handle_timeout(upf::n4::rules::urr::Now { ms: next, wall: NtpSeconds((next / 1000) as u32) });
    }
    sessions.remove_all_of(CP);
    assert_eq!(sessions.count(), 0);
}

/// Programs that get far: a session with rules is changed and deleted.
pub fn programs() -> Vec<Vec<u8>> {
    let establish = [1, 0, 3, 0, 0, 3, 1, 1, 5, 0, 0, 6, 0, 1, 1, 0, 0x24, 1, 1, 1, 0, 0, 0];
    let modify = [1, 0, 11, 0, 1, 12, 1, 2, 14, 0, 7, 15, 0, 0, 0, 0, 0];
    let refused = [1, 0, 8, 0, 0, 0, 0, 0];
    let swap = [1, 0, 7, 1, 0, 8, 1, 0, 1, 3, 0, 0, 0, 0];
    let delete = [0, 0];
    vec![
        [&establish[..], &modify, &refused, &swap, &delete].concat(),
        [&establish[..], &establish, &delete, &establish].concat(),
    ]
}
