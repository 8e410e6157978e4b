//! A UPF that has restarted gets its sessions once more (TS 23.527 §4.3): what their rules say then that they did not before.
//!
//! The SMF establishes each in one request, with the tunnels that it had. A copy of the session has gone on meanwhile, so it is told only
//! what is other: updates of rules, and how the SMF names itself.

use std::collections::BTreeMap;

use pfcp::ie;
use pfcp::message::{Message, SessionModificationRequest};

use super::{tree, usage};

/// A kind of rule: the types of its IEs.
struct Kind {
    create: u16,
    update: u16,
    remove: u16,
    id: u16,
}

const KINDS: [Kind; 6] = [
    Kind { create: ie::CREATE_PDR, update: ie::UPDATE_PDR, remove: ie::REMOVE_PDR, id: ie::PDR_ID },
    Kind { create: ie::CREATE_FAR, update: ie::UPDATE_FAR, remove: ie::REMOVE_FAR, id: ie::FAR_ID },
    Kind { create: ie::CREATE_URR, update: ie::UPDATE_URR, remove: ie::REMOVE_URR, id: ie::URR_ID },
    Kind { create: ie::CREATE_QER, update: ie::UPDATE_QER, remove: ie::REMOVE_QER, id: ie::QER_ID },
    Kind { create: ie::CREATE_BAR, update: ie::UPDATE_BAR_SMR, remove: ie::REMOVE_BAR, id: ie::BAR_ID },
    Kind {
        create: ie::CREATE_TRAFFIC_ENDPOINT,
        update: ie::UPDATE_TRAFFIC_ENDPOINT,
        remove: ie::REMOVE_TRAFFIC_ENDPOINT,
        id: ie::TRAFFIC_ENDPOINT_ID,
    },
];

/// What an establishment says beside rules, and may say otherwise each time.
const OF_THE_REQUEST: [u16; 4] = [ie::NODE_ID, ie::F_SEID, ie::PFCPSEREQ_FLAGS, ie::RECOVERY_TIME_STAMP];
/// What a modification says beside rules that is not of the session's state.
const OF_A_MODIFICATION: [u16; 4] = [ie::F_SEID, ie::QUERY_URR, ie::QUERY_URR_REFERENCE, ie::PFCPSMREQ_FLAGS];

/// What a session's requests lead to.
#[derive(Default)]
struct Rules<'a> {
    /// By type of creation and identity, as created; `None`: it was updated since.
    all: BTreeMap<(u16, &'a [u8]), Option<&'a [u8]>>,
    others: Vec<(u16, &'a [u8])>,
    /// How the SMF has named itself last.
    f_seid: Option<&'a [u8]>,
}

impl<'a> Rules<'a> {
    /// `None`: a request does what is not understood here.
    fn of(requests: &'a [Vec<u8>]) -> Option<Rules<'a>> {
        let mut rules = Rules::default();
        for (at, request) in requests.iter().enumerate() {
            for (kind, value) in tree::all(request.get(tree::HEADER..)?) {
                if kind == ie::F_SEID {
                    rules.f_seid = Some(value);
                }
                let known = KINDS.iter().find(|of| [of.create, of.update, of.remove].contains(&kind));
                match known {
                    Some(of) => {
                        let name = (of.create, tree::find(value, of.id)?);
                        if kind == of.remove {
                            rules.all.remove(&name);
                        } else {
                            rules.all.insert(name, (kind == of.create).then_some(value));
                        }
                    }
                    None if at == 0 => rules.others.push((kind, value)),
                    None if OF_A_MODIFICATION.contains(&kind) => {}
                    None => return None,
                }
            }
        }
        Some(rules)
    }
}

/// A rule without what two requests may write in different ways: the other end's addresses of a tunnel.
fn comparable(rule: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rule.len());
    tree::rewrite(rule, &mut Vec::new(), &mut out, &mut |path, value| {
        let is_tunnel = path.last() == Some(&ie::F_TEID);
        value.get(1..5).filter(|_| is_tunnel).map(<[u8]>::to_vec)
    });
    out
}

/// The content of an update that says what a creation says.
fn as_update(rule: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rule.len());
    for (kind, value) in tree::all(rule) {
        let kind = match kind {
            ie::FORWARDING_PARAMETERS => ie::UPDATE_FORWARDING_PARAMETERS,
            ie::DUPLICATING_PARAMETERS => ie::UPDATE_DUPLICATING_PARAMETERS,
            other => other,
        };
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&(value.len() as u16).to_be_bytes());
        out.extend_from_slice(value);
    }
    out
}

/// A modification by which a session that was made by `before` becomes as `establishment` makes it, without receiver and number; empty:
/// it is so. `None`: it detects packets by other rules, has other ones, or is of another kind.
pub(super) fn difference(before: &[Vec<u8>], establishment: &Vec<u8>) -> Option<Vec<u8>> {
    let (old, new) = (Rules::of(before)?, Rules::of(std::slice::from_ref(establishment))?);
    let is_known = |other: &(u16, &[u8])| OF_THE_REQUEST.contains(&other.0) || old.others.contains(other);
    if !old.all.keys().eq(new.all.keys()) || !new.others.iter().all(is_known) {
        return None;
    }
    let mut request = Vec::new();
    Message::from(SessionModificationRequest::default()).encode(0, 0, &mut request).ok()?;
    let empty = request.len();
    if let Some(f_seid) = new.f_seid.filter(|_| new.f_seid != old.f_seid) {
        usage::append(&mut request, ie::F_SEID, f_seid).ok()?;
    }
    for ((name, rule), former) in new.all.iter().zip(old.all.values()) {
        let rule = (*rule)?;
        if former.is_some_and(|former| comparable(former) == comparable(rule)) {
            continue;
        }
        let kind = KINDS.iter().find(|of| of.create == name.0)?;
        if [ie::CREATE_PDR, ie::CREATE_TRAFFIC_ENDPOINT].contains(&kind.create) {
            return None;
        }
        usage::append(&mut request, kind.update, &as_update(rule)).ok()?;
    }
    Some(if request.len() > empty { request } else { Vec::new() })
}
