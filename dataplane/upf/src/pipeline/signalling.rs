//! GTP-U signalling (TS 29.281 §7): Echo, Error Indication, End Marker.

use std::net::SocketAddr;

use packet::gtpu::{self, Signalling, message_type};
use telemetry::DropReason;

use super::{Event, Pipeline, State};
use crate::plan::Peer;

impl Pipeline {
    /// Handles a message that is not a G-PDU.
    pub(super) fn signalling(&mut self, packet: &gtpu::Packet<'_>, peer: SocketAddr) -> State {
        let stats = &self.stats[self.worker];
        match packet.message_type() {
            message_type::ECHO_REQUEST => {
                let Some(sequence) = packet.sequence() else {
                    return State::Dropped(DropReason::GtpuMalformed);
                };
                // The reply goes to the port from which the request came. If a batch has more requests than
                // there is room for replies, their senders repeat them.
                if self.replies.push(&echo_response(sequence), peer) {
                    stats.echo_requests.add(1);
                    State::Consumed
                } else {
                    State::Dropped(DropReason::ControlOverflow)
                }
            }
            message_type::ERROR_INDICATION => match Signalling::parse(packet) {
                Ok(Signalling::ErrorIndication { teid, peer: named, .. }) => {
                    stats.error_indications_received.add(1);
                    // Only the far end of a tunnel knows whether the tunnel exists, so indications from other
                    // addresses are ignored. If the queue is full the event is lost; the peer repeats the
                    // indication when it gets the next packet.
                    if named == peer.ip() {
                        let peer = Peer { interface: self.input.interface, address: named };
                        let _ = self.events.try_send(Event::ErrorIndication { peer, teid });
                    }
                    State::Consumed
                }
                _ => State::Dropped(DropReason::GtpuMalformed),
            },
            message_type::ECHO_RESPONSE => {
                stats.signalling.add(1);
                // Only while the queue is less than half full: a flood of these must not crowd out other events.
                if let Some(sequence) = packet.sequence()
                    && self.events.capacity() > self.events.max_capacity() / 2
                {
                    let peer = Peer { interface: self.input.interface, address: peer.ip() };
                    let _ = self.events.try_send(Event::EchoResponse { peer, sequence });
                }
                State::Consumed
            }
            message_type::END_MARKER
            | message_type::SUPPORTED_EXTENSION_HEADERS
            | message_type::TUNNEL_STATUS => {
                stats.signalling.add(1);
                State::Consumed
            }
            _ => State::Dropped(DropReason::GtpuUnknownMessage),
        }
    }

    /// Handles a G-PDU for an unknown tunnel (§7.3.1): sends an Error Indication to its sender's GTP-U port.
    pub(super) fn unknown_teid(&mut self, now_ns: u64, teid: u32, peer: SocketAddr) {
        if now_ns < self.quiet_until_ns {
            return;
        }
        let message = Signalling::ErrorIndication { teid, peer: self.input.local.ip(), udp_port: None };
        if self.reply_error(now_ns, SocketAddr::new(peer.ip(), gtpu::PORT), &message) {
            self.stats[self.worker].error_indications_sent.add(1);
        }
    }

    /// Replies to a faulty packet, unless there have been too many such replies lately, to this peer or to all
    /// ([`limit`](super::limit)). The limit also bounds how often a reply is allocated.
    pub(super) fn reply_error(&mut self, now_ns: u64, peer: SocketAddr, message: &Signalling) -> bool {
        self.tables.limits.replies.allows(now_ns, peer.ip()) && self.replies.push(&message.build(), peer)
    }
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
