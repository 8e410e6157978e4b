//! A session is made with the eNB's tunnels at once, where the anchor can do that: one exchange instead of two.
//!
//! An MME names the eNB's tunnels of an attach in a Modify Bearer Request. A Create Session Request has room for them as well, for a UE
//! that comes from another S-GW (TS 29.274 table 7.2.1-2), and our gateway uses them in any. It says so in its answer, if asked. A gateway
//! that does not say it gets the Modify Bearer Request.

use std::collections::BTreeMap;

use gtpv2c::codec::{Ies, put};
use gtpv2c::{FTeid, Header, Message, OffendingIe, PrivateExtension, ie};

use super::{HEADER, finished, raw, read};
use crate::template::Misfit;

/// What a Modify Bearer Request may say besides tunnels: a Create Session Request says it in the same IEs.
const COMMON: [u8; 5] = [ie::ULI, ie::SERVING_NETWORK, ie::RAT_TYPE, ie::UE_TIME_ZONE, ie::RECOVERY];

/// A Create Session Request that says what the Modify Bearer Request behind it says; `None`: it cannot, or that is another request.
pub(super) fn request(create: &[u8], modify: &[u8]) -> Option<Vec<u8>> {
    let Some((_, Message::CreateSessionRequest(decoded))) = read(create) else { return None };
    let Some((_, Message::ModifyBearerRequest(modified))) = read(modify) else { return None };
    let mut tunnels: BTreeMap<u8, FTeid> = BTreeMap::new();
    for bearer in &modified.bearers_to_be_modified {
        tunnels.insert(bearer.ebi.0, bearer.s1u_enb_f_teid?);
    }
    let bearers = &decoded.bearers_to_be_created;
    if bearers.len() != tunnels.len() || !bearers.iter().all(|bearer| tunnels.contains_key(&bearer.ebi.0)) {
        return None;
    }
    let mut said: BTreeMap<u8, &[u8]> = BTreeMap::new();
    let mut ies = Ies::new(body(modify)?);
    while let Some((kind, value)) = ies.next_ie().ok()? {
        match (kind.ie_type, kind.instance) {
            (ie::BEARER_CONTEXT, 0) if has_only_tunnel(value) => {}
            (common, 0) if COMMON.contains(&common) => _ = said.insert(common, value),
            _ => return None,
        }
    }
    with(create, said, &tunnels).ok()
}

/// Whether a bearer context says nothing else.
fn has_only_tunnel(bearer: &[u8]) -> bool {
    let mut ies = Ies::new(bearer);
    let is_known = |kind: OffendingIe| matches!((kind.ie_type, kind.instance), (ie::EBI | ie::F_TEID, 0));
    loop {
        match ies.next_ie() {
            Ok(Some((kind, _))) if is_known(kind) => {}
            Ok(None) => return true,
            _ => return false,
        }
    }
}

/// The IEs of a message with TEID.
fn body(message: &[u8]) -> Option<&[u8]> {
    Some(Header::decode(message).ok()?.1)
}

fn with(
    create: &[u8],
    mut said: BTreeMap<u8, &[u8]>,
    tunnels: &BTreeMap<u8, FTeid>,
) -> Result<Vec<u8>, Misfit> {
    let mut out = create.get(..HEADER).ok_or(Misfit)?.to_vec();
    let mut ies = Ies::new(body(create).ok_or(Misfit)?);
    while let Some((kind, value)) = ies.next_ie().map_err(|_| Misfit)? {
        match (kind.ie_type, kind.instance) {
            (ie::BEARER_CONTEXT, 0) => raw(&mut out, kind, &bearer(value, tunnels)?)?,
            (common, 0) => raw(&mut out, kind, said.remove(&common).unwrap_or(value))?,
            _ => raw(&mut out, kind, value)?,
        }
    }
    for (kind, value) in said {
        raw(&mut out, OffendingIe::new(kind, 0), value)?;
    }
    put(&mut out, OffendingIe::new(ie::PRIVATE_EXTENSION, 0), &PrivateExtension::asks_for_enb_tunnels());
    finished(out)
}

/// A bearer context with the eNB's tunnel.
fn bearer(value: &[u8], tunnels: &BTreeMap<u8, FTeid>) -> Result<Vec<u8>, Misfit> {
    let mut out = Vec::with_capacity(value.len() + 16);
    let (mut ies, mut tunnel) = (Ies::new(value), None);
    while let Some((kind, value)) = ies.next_ie().map_err(|_| Misfit)? {
        match (kind.ie_type, kind.instance) {
            (ie::F_TEID, 0) => continue,
            (ie::EBI, 0) => tunnel = value.first().and_then(|ebi| tunnels.get(&(ebi & 0xf))),
            _ => {}
        }
        raw(&mut out, kind, value)?;
    }
    put(&mut out, OffendingIe::new(ie::F_TEID, 0), tunnel.ok_or(Misfit)?);
    Ok(out)
}
