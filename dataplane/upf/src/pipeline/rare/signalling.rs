//! GTP-U signalling (TS 29.281 §7): Echo, Error Indication, End Marker.

use std::net::SocketAddr;

use packet::gtpu::{self, Signalling, message_type};
use telemetry::DropReason;

use crate::pipeline::Event;
use crate::pipeline::context::{Context, Input};
use crate::pipeline::exits::{Exits, Extra};
use crate::pipeline::graph::Way;
use crate::pipeline::packets::State;
use crate::plan::Peer;

/// Handles a message from `peer` that is not a G-PDU.
pub(in crate::pipeline) fn run(
    context: &Context,
    input: &Input,
    exits: &mut Exits,
    packet: &gtpu::Packet<'_>,
    peer: SocketAddr,
) -> State {
    context.count_way(Way::Signalling, 1);
    let interface = input.interface;
    match packet.message_type() {
        message_type::ECHO_REQUEST => {
            let Some(sequence) = packet.sequence() else {
                return State::Dropped(DropReason::GtpuMalformed);
            };
            // The reply goes to the port from which the request came. If there is no memory, the sender repeats its
            // request.
            if exits.extra.push_to(interface, &echo_response(sequence), peer) {
                context.stats().echo_requests.add(1);
                State::Consumed
            } else {
                State::Dropped(DropReason::ControlOverflow)
            }
        }
        message_type::ERROR_INDICATION => match Signalling::parse(packet) {
            Ok(Signalling::ErrorIndication { teid, peer: named, .. }) => {
                context.stats().error_indications_received.add(1);
                // Only the far end of a tunnel knows whether the tunnel exists, so indications from other
                // addresses are ignored. The peer repeats the indication when it gets the next packet.
                if named == peer.ip() {
                    let peer = Peer { interface, address: named };
                    exits.events.offer(Event::ErrorIndication { peer, teid });
                }
                State::Consumed
            }
            _ => State::Dropped(DropReason::GtpuMalformed),
        },
        message_type::ECHO_RESPONSE => {
            context.stats().signalling.add(1);
            // A flood of these must not crowd out other events.
            if let Some(sequence) = packet.sequence()
                && exits.events.has_room()
            {
                let peer = Peer { interface, address: peer.ip() };
                exits.events.offer(Event::EchoResponse { peer, sequence });
            }
            State::Consumed
        }
        message_type::END_MARKER => {
            context.stats().signalling.add(1);
            if exits.events.has_room() {
                let peer = Peer { interface, address: peer.ip() };
                exits.events.offer(Event::EndMarker { peer, teid: packet.teid() });
            }
            State::Consumed
        }
        message_type::SUPPORTED_EXTENSION_HEADERS | message_type::TUNNEL_STATUS => {
            context.stats().signalling.add(1);
            State::Consumed
        }
        _ => State::Dropped(DropReason::GtpuUnknownMessage),
    }
}

/// Handles a G-PDU for an unknown tunnel (§7.3.1): sends an Error Indication to its sender's GTP-U port.
pub(in crate::pipeline) fn unknown_tunnel(
    context: &Context,
    input: &Input,
    extra: &mut Extra,
    teid: u32,
    peer: SocketAddr,
    now_ns: u64,
) {
    if now_ns < context.quiet_until_ns {
        return;
    }
    let message = Signalling::ErrorIndication { teid, peer: input.local.ip(), udp_port: None };
    if reply_error(context, input, extra, SocketAddr::new(peer.ip(), gtpu::PORT), &message, now_ns) {
        context.stats().error_indications_sent.add(1);
    }
}

/// Replies to a faulty packet, unless there have been too many such replies lately, to this peer or to all
/// ([`limit`](crate::pipeline::limit)). The limit also bounds how often a reply is allocated.
pub(in crate::pipeline) fn reply_error(
    context: &Context,
    input: &Input,
    extra: &mut Extra,
    peer: SocketAddr,
    message: &Signalling,
    now_ns: u64,
) -> bool {
    context.tables.limits.replies.allows(now_ns, peer.ip())
        && extra.push_to(input.interface, &message.build(), peer)
}

/// An Echo Response with the mandatory Recovery element, whose value is 0 (§7.2.2). The same octets as
/// `Signalling::EchoResponse`, without allocation.
fn echo_response(sequence: u16) -> [u8; 14] {
    let [high, low] = sequence.to_be_bytes();
    [0x32, message_type::ECHO_RESPONSE, 0, 6, 0, 0, 0, 0, high, low, 0, 0, 14, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_echo_response_is_that_of_the_codec() {
        assert_eq!(echo_response(0xABCD).to_vec(), Signalling::EchoResponse { sequence: 0xABCD }.build());
    }
}
