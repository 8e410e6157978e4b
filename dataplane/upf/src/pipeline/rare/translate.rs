//! Packets of sessions that are redirected to an address ([`Translations`](crate::pipeline::translations::Translations)):
//! uplink ones get another destination and go on; answers get the source to which their UE sent, and are looked up again.

use pktio::Vector;
use telemetry::DropReason;

use crate::pipeline::context::{Context, Pass, Snapshot, Source};
use crate::pipeline::exits::{Exits, Injections};
use crate::pipeline::graph::Way;
use crate::pipeline::packets::{Matched, State};
use crate::session::{Policy, flag, kind};

/// Translates a packet of a session that redirects to an address, or that accepts only answers to
/// redirected packets. Returns whether the packet goes on in this pass.
#[cold]
pub(in crate::pipeline) fn run(
    context: &Context,
    pass: &mut Pass,
    exits: &mut Exits,
    snapshot: Snapshot<'_>,
    batch: &mut Vector,
    matched: Matched<'_>,
) -> bool {
    context.count_way(Way::Translate, 1);
    let Matched { at, entry, .. } = matched;
    let result = if pass.source.is_own() || entry.kind() == kind::BUFFER {
        Ok(())
    } else if entry.is(flag::UPLINK) {
        translate_out(context, snapshot, batch, matched)
    } else if translate_back(context, pass, &mut exits.injections, batch, at) {
        return false;
    } else if entry.is(flag::ANSWERS) {
        Err(DropReason::FarDrop)
    } else {
        Ok(())
    };
    if let Err(reason) = result {
        pass.drop(at, reason);
    }
    result.is_ok()
}

/// Handles a downlink packet that no rule matches: it may be the answer to a redirected packet from a
/// server that no filter names.
#[cold]
pub(in crate::pipeline) fn not_matched(
    context: &Context,
    pass: &mut Pass,
    exits: &mut Exits,
    batch: &mut Vector,
    at: usize,
) {
    if !pass.source.is_own() && !context.tables.translations.is_empty() {
        translate_back(context, pass, &mut exits.injections, batch, at);
    }
}

/// Gives an uplink packet the address of the server to which its session is redirected.
fn translate_out(
    context: &Context,
    snapshot: Snapshot<'_>,
    batch: &mut Vector,
    matched: Matched<'_>,
) -> Result<(), DropReason> {
    let entry = matched.entry;
    // Answers to what leaves through a tunnel come back through one, and are not translated.
    let network = (entry.kind() == kind::NETWORK).then(|| context.interfaces.number(entry.teid as u16));
    let instance = network.flatten().map(|interface| interface.instance);
    let target = matched.further().find(|further| further.kind() == kind::ADDRESS);
    match target.and_then(|target| snapshot.tables.policy(snapshot.inside, target.teid)) {
        Some(Policy::Address(server)) => {
            let mut frame = batch.frame_mut(matched.at);
            context.tables.translations.outbound(frame.packet_mut(), *server, instance)
        }
        _ => Err(DropReason::FarDrop),
    }
}

/// Gives the answer to a redirected packet the source to which its UE sent, and has it looked up again with
/// that source. Returns whether the packet was such an answer.
fn translate_back(
    context: &Context,
    pass: &mut Pass,
    injections: &mut Injections,
    batch: &mut Vector,
    at: usize,
) -> bool {
    let (mut frame, input) = (batch.frame_mut(at), pass.input);
    let packet = frame.packet_mut();
    let meta = &mut pass.packets.metas[at];
    let translated = meta.native && context.tables.translations.inbound(packet, input.instance);
    if translated {
        meta.state = match injections.push(Source::Injected, packet, input.interface, input.local) {
            true => State::Consumed,
            false => State::Dropped(DropReason::TxQueueFull),
        };
    }
    translated
}
