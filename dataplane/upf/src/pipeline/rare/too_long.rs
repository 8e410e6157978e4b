//! Packets that are longer than their link takes: fragmented, or their sender is told how long they may be.

use packet::flow::Flow;
use pktio::Vector;
use telemetry::DropReason;

use crate::pipeline::context::{Context, Pass, Snapshot, Source};
use crate::pipeline::exits::Exits;
use crate::pipeline::forward::{encapsulate, ppi_len};
use crate::pipeline::graph::Way;
use crate::pipeline::mtu::{self, Fit, Fragments};
use crate::pipeline::packets::State;
use crate::session::{Entry, flag, kind};
use crate::tables::Tables;

/// Handles the packet at a position of `batch`. Returns whether it is sent.
#[cold]
pub(in crate::pipeline) fn run(
    context: &Context,
    pass: &mut Pass,
    exits: &mut Exits,
    snapshot: Snapshot<'_>,
    batch: &mut Vector,
    at: usize,
    entry: &Entry,
) -> bool {
    context.count_way(Way::TooLong, 1);
    let tables = snapshot.tables;
    if entry.is(flag::FRAME) {
        // No ICMP message can ask a sender for shorter frames: the tunnel packet is fragmented, or the port
        // refuses it.
        let Some(peer) = tables.peer(entry.peer) else { return false };
        let result = encapsulate(&mut batch.frame_mut(at), peer, entry, pass.packets.metas[at].marks);
        match result {
            Ok(()) => pass.outputs.push(peer.interface(), at),
            Err(reason) => pass.drop(at, reason),
        }
        return result.is_ok();
    }
    let packet = batch.frames()[at].packet();
    let tunnel = entry.kind() == kind::TUNNEL;
    let limit = match tables.peer(entry.peer).filter(|_| tunnel) {
        Some(peer) => (context.links.of(peer.interface()).mtu as usize).saturating_sub(ppi_len(entry)),
        None => context.links.of(entry.teid as u8).mtu as usize,
    };
    let marks = pass.packets.metas[at].marks;
    let result = match mtu::fit(packet, limit) {
        Fit::Fragment => fragment(tables, pass, exits, packet, marks, entry, limit),
        _ => Err(DropReason::TooBig),
    };
    match result {
        Ok(()) => pass.packets.metas[at].state = State::Consumed,
        Err(reason) => pass.drop(at, reason),
    }
    if result == Err(DropReason::TooBig) {
        let to = (!tunnel).then_some(entry.teid as u8);
        answer(context, pass, exits, packet, limit, to, snapshot.now_ns);
    }
    result.is_ok()
}

/// Sends the fragments of a packet: all, or none, unless memory runs out between them.
fn fragment(
    tables: &Tables,
    pass: &Pass,
    exits: &mut Exits,
    packet: &[u8],
    marks: u8,
    entry: &Entry,
    limit: usize,
) -> Result<(), DropReason> {
    let Exits { extra, scratch, .. } = exits;
    let mut fragments = Fragments::new(packet, limit).ok_or(DropReason::TooBig)?;
    if fragments.count() > extra.room() {
        return Err(DropReason::TxQueueFull);
    }
    while let Some(length) = fragments.next(scratch) {
        let Some((position, mut frame)) = extra.push(&scratch[..length], pass.input.local) else { break };
        let interface = if entry.kind() == kind::NETWORK {
            entry.teid as u8
        } else {
            let peer = tables.peer(entry.peer).ok_or(DropReason::FarDrop)?;
            encapsulate(&mut frame, peer, entry, marks)?;
            peer.interface()
        };
        extra.send(interface, position);
    }
    Ok(())
}

/// Tells the sender of a packet how long it may be. The sender is in the data network from which the packet
/// came, or is the UE. `to` is the interface of the network to which the packet should have gone.
fn answer(
    context: &Context,
    pass: &Pass,
    exits: &mut Exits,
    packet: &[u8],
    limit: usize,
    to: Option<u8>,
    now_ns: u64,
) {
    let Exits { extra, injections, scratch, .. } = exits;
    let from = (!pass.input.has_tunnels).then_some(pass.input.interface);
    let (Some(network), Ok(flow)) = (to.or(from), Flow::parse(packet)) else { return };
    // The sender would not recognise a packet that was changed here.
    if pass.source.is_own() || !context.tables.limits.replies.allows(now_ns, flow.source) {
        return;
    }
    let mtu = u16::try_from(limit).unwrap_or(u16::MAX);
    let Some(length) = mtu::answer(packet, mtu, &context.links.of(network).router, scratch) else { return };
    let (message, local) = (&scratch[..length], pass.input.local);
    // Without room the message is not sent: the sender repeats its packet.
    let _ = match from {
        Some(from) => extra.push_to(from, message, local),
        None => injections.push(Source::Router, message, network, local),
    };
}
