//! Copies of packets that a FAR asks for: to the CP function, or by duplicating parameters (TS 29.244 §5.2.1, §5.20).

use pktio::Vector;
use telemetry::DropReason;

use crate::pipeline::context::{Context, Pass};
use crate::pipeline::exits::Extra;
use crate::pipeline::forward::{encapsulate, mark, ports_of};
use crate::pipeline::graph::Way;
use crate::session::{Entry, flag, kind};

/// Sends a copy of the user's packet at a position of `batch` as a further entry says.
#[cold]
pub(in crate::pipeline) fn run(
    context: &Context,
    pass: &Pass,
    extra: &mut Extra,
    batch: &Vector,
    at: usize,
    further: &Entry,
) -> Result<(), DropReason> {
    context.count_way(Way::Copy, 1);
    let packet = batch.frames()[at].packet();
    // Behind the outer header, if the packet has entered a tunnel already.
    let packet = &packet[packet.len().saturating_sub(pass.packets.metas[at].length as usize)..];
    let to_network = further.kind() == kind::COPY_NETWORK;
    if to_network {
        let ports = || ports_of(pass.packets.keys[at].words()[2]);
        if let Some(reason) = context.closed.stops(further.teid as usize, packet, ports) {
            return Err(reason);
        }
    }
    let (position, mut frame) = extra.push(packet, pass.input.local).ok_or(DropReason::TxQueueFull)?;
    let interface = if to_network {
        if further.is(flag::TOS) {
            mark(frame.packet_mut(), further.tos);
        }
        further.teid as u8
    } else {
        let peer = context.tables.peer(further.peer).ok_or(DropReason::FarDrop)?;
        encapsulate(&mut frame, peer, further, pass.packets.metas[at].marks)?;
        peer.interface()
    };
    extra.send(interface, position);
    Ok(())
}
