//! PFCP messages as trees of octets: what is not named here is kept as it is (TS 29.244 §8.1.1).

use std::collections::BTreeSet;

use pfcp::ie;

/// Gives another value for the IE at a path of types, if it is to have one.
pub type Change<'a> = dyn FnMut(&[u16], &[u8]) -> Option<Vec<u8>> + 'a;

/// What of a rule is changed: the type of the update, the rule, and the types of what is in it.
pub type Update = (u16, Vec<u8>, u16, u16);

/// Octets of a header with SEID (§7.2.2).
pub const HEADER: usize = 16;

/// Whether an IE consists of IEs, among those in which addresses, TEIDs and rules are.
pub fn is_grouped(kind: u16) -> bool {
    matches!(
        kind,
        ie::CREATE_PDR
            | ie::PDI
            | ie::CREATE_FAR
            | ie::FORWARDING_PARAMETERS
            | ie::DUPLICATING_PARAMETERS
            | ie::CREATED_PDR
            | ie::UPDATE_PDR
            | ie::UPDATE_FAR
            | ie::UPDATE_FORWARDING_PARAMETERS
            | ie::UPDATE_DUPLICATING_PARAMETERS
            | ie::UPDATE_URR
            | ie::UPDATE_QER
            | ie::CREATE_TRAFFIC_ENDPOINT
            | ie::UPDATE_TRAFFIC_ENDPOINT
    )
}

/// The next IE: its type, where its value begins, and the value.
pub fn next<'a>(ies: &'a [u8], at: &mut usize) -> Option<(u16, usize, &'a [u8])> {
    let [t0, t1, l0, l1] = *ies.get(*at..)?.first_chunk()?;
    let (begin, length) = (*at + 4, usize::from(u16::from_be_bytes([l0, l1])));
    let value = ies.get(begin..)?.get(..length)?;
    *at = begin + length;
    Some((u16::from_be_bytes([t0, t1]), begin, value))
}

/// All IEs of one level.
pub fn all(ies: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || next(ies, &mut at).map(|(kind, _, value)| (kind, value)))
}

/// The first IE of a type.
pub fn find(ies: &[u8], wanted: u16) -> Option<&[u8]> {
    all(ies).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Appends IEs with values replaced: `change` gets the path of types and the value, and gives another value.
pub fn rewrite(ies: &[u8], path: &mut Vec<u16>, out: &mut Vec<u8>, change: &mut Change) {
    for (kind, value) in all(ies) {
        let start = out.len();
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&[0, 0]);
        path.push(kind);
        match change(path, value) {
            Some(value) => out.extend_from_slice(&value),
            None if is_grouped(kind) => rewrite(value, path, out, change),
            None => out.extend_from_slice(value),
        }
        path.pop();
        // A value that is too long does not fit in a datagram either.
        let length = u16::try_from(out.len() - start - 4).unwrap_or(u16::MAX);
        out[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
    }
}

/// A message with values replaced, and its length.
pub fn rewritten(message: &[u8], change: &mut Change) -> Vec<u8> {
    let Some((header, ies)) = message.split_at_checked(HEADER) else { return message.to_vec() };
    let mut out = Vec::with_capacity(message.len() + 16);
    out.extend_from_slice(header);
    rewrite(ies, &mut Vec::new(), &mut out, change);
    let length = u16::try_from(out.len() - 4).unwrap_or(u16::MAX);
    out[2..4].copy_from_slice(&length.to_be_bytes());
    out
}

/// A rule's identity.
pub fn rule(value: &[u8]) -> Option<&[u8]> {
    let ids = [ie::PDR_ID, ie::FAR_ID, ie::URR_ID, ie::QER_ID, ie::TRAFFIC_ENDPOINT_ID];
    all(value).find(|(kind, _)| ids.contains(kind)).map(|(_, value)| value)
}

/// What a modification changes, when it only changes rules that are there: updates, their rules, and what of them. `None`: it does more.
pub fn updates(message: &[u8]) -> Option<BTreeSet<Update>> {
    let mut says = BTreeSet::new();
    for (kind, value) in all(message.get(HEADER..)?) {
        match kind {
            ie::UPDATE_PDR
            | ie::UPDATE_FAR
            | ie::UPDATE_QER
            | ie::UPDATE_URR
            | ie::UPDATE_TRAFFIC_ENDPOINT => {
                let id = rule(value)?.to_vec();
                for (what, inner) in all(value) {
                    says.insert((kind, id.clone(), what, 0));
                    let of_forwarding = what == ie::UPDATE_FORWARDING_PARAMETERS;
                    says.extend(
                        all(inner)
                            .filter(|_| of_forwarding)
                            .map(|(inner, _)| (kind, id.clone(), what, inner)),
                    );
                }
            }
            // These ask, and change nothing.
            ie::QUERY_URR | ie::QUERY_URR_REFERENCE | ie::PFCPSMREQ_FLAGS => {}
            _ => return None,
        }
    }
    Some(says)
}
