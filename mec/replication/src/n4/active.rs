//! A session is made with the FARs that modifications have made of its first ones: one exchange instead of one for each.
//!
//! An SMF does not know the base station when it makes a session, and sends Update FAR when it does (TS 23.502 §4.3.2.2.1 step 16). To a
//! clone both can be said at once: the IEs of an Update FAR are those of a Create FAR (TS 29.244 tables 7.5.2.3-1 and 7.5.4.3-1).

use pfcp::ie;
use pfcp::message::MessageType;

use super::tree::{self, HEADER};

/// Octets of the longest message.
const MAX: usize = 65_000;
/// What an update of forwarding parameters may say that they say in the same IEs. `PFCPSMREQ_FLAGS` is of no account: an End Marker is for a
/// former base station, which the clone has not had.
const PARAMETERS: [u16; 6] = [
    ie::DESTINATION_INTERFACE,
    ie::NETWORK_INSTANCE,
    ie::OUTER_HEADER_CREATION,
    ie::TRANSPORT_LEVEL_MARKING,
    ie::INTERFACE_TYPE_3GPP,
    ie::PFCPSMREQ_FLAGS,
];

/// An establishment that says what the modification behind it says; `None`: it cannot, or these are other requests.
pub(super) fn request(establishment: &[u8], modification: &[u8]) -> Option<Vec<u8>> {
    let is_of = |message: &[u8], kind: MessageType| message.get(1) == Some(&(kind as u8));
    if !is_of(establishment, MessageType::SessionEstablishmentRequest)
        || !is_of(modification, MessageType::SessionModificationRequest)
    {
        return None;
    }
    // More does not fit in a datagram.
    if establishment.len() + modification.len() > MAX {
        return None;
    }
    let mut updates: Vec<(&[u8], &[u8])> = Vec::new();
    for (kind, value) in tree::all(modification.get(HEADER..)?) {
        match kind {
            ie::UPDATE_FAR if can_be_created(value) => updates.push((tree::find(value, ie::FAR_ID)?, value)),
            // What it says of packets that wait is of no account where none do.
            ie::PFCPSMREQ_FLAGS => {}
            _ => return None,
        }
    }
    let (mut found, mut is_whole) = (0, true);
    let merged = tree::rewritten(establishment, &mut |path, value| {
        let id = tree::find(value, ie::FAR_ID).filter(|_| path == [ie::CREATE_FAR])?;
        let mut of_far = updates.iter().filter(|(of, _)| *of == id).peekable();
        of_far.peek()?;
        let mut far = value.to_vec();
        for (_, update) in of_far {
            found += 1;
            far = changed(&far, update);
        }
        // Forwarding parameters need it.
        let parameters = tree::find(&far, ie::FORWARDING_PARAMETERS);
        is_whole &= parameters.is_none_or(|of| tree::find(of, ie::DESTINATION_INTERFACE).is_some());
        Some(far)
    });
    (is_whole && found == updates.len()).then_some(merged)
}

/// Whether a Create FAR can say what this Update FAR says. An IE without value takes something away.
fn can_be_created(update: &[u8]) -> bool {
    tree::all(update).all(|(kind, value)| match kind {
        ie::FAR_ID | ie::APPLY_ACTION => true,
        ie::UPDATE_FORWARDING_PARAMETERS => {
            tree::all(value).all(|(kind, value)| PARAMETERS.contains(&kind) && !value.is_empty())
        }
        _ => false,
    })
}

/// The IEs of a Create FAR after an update.
fn changed(far: &[u8], update: &[u8]) -> Vec<u8> {
    let action = tree::find(update, ie::APPLY_ACTION);
    let parameters = tree::find(update, ie::UPDATE_FORWARDING_PARAMETERS);
    let mut out = Vec::with_capacity(far.len() + update.len());
    for (kind, value) in tree::all(far) {
        match kind {
            ie::APPLY_ACTION => put(&mut out, kind, action.unwrap_or(value)),
            ie::FORWARDING_PARAMETERS => put(&mut out, kind, &with(value, parameters.unwrap_or_default())),
            _ => put(&mut out, kind, value),
        }
    }
    if let Some(parameters) = parameters.filter(|_| tree::find(far, ie::FORWARDING_PARAMETERS).is_none()) {
        put(&mut out, ie::FORWARDING_PARAMETERS, &with(&[], parameters));
    }
    out
}

/// Forwarding parameters with those of an update in the place of theirs.
fn with(parameters: &[u8], update: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(parameters.len() + update.len());
    for (kind, value) in tree::all(parameters).filter(|(kind, _)| tree::find(update, *kind).is_none()) {
        put(&mut out, kind, value);
    }
    for (kind, value) in tree::all(update).filter(|(kind, _)| *kind != ie::PFCPSMREQ_FLAGS) {
        put(&mut out, kind, value);
    }
    out
}

fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&kind.to_be_bytes());
    // It is shorter than `MAX`.
    out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    out.extend_from_slice(value);
}
