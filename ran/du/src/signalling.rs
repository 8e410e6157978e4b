//! GTP-U signalling on F1-U (TS 29.281 §7): Echo, Error Indication, End Marker.

use std::net::SocketAddr;

use packet::gtpu::{self, Packet, Signalling, message_type};
use path::Ports;
use telemetry::DropReason;

use crate::control::Event;
use crate::graph::{UserPlane, Verdict};

/// How long a CU may say of a tunnel that it does not know it: one that releases a bearer may say so before it has told the DU.
const RELEASE_NS: u64 = 1_000_000_000;

impl UserPlane {
    /// Handles a message from `peer` that is not a G-PDU.
    pub(crate) fn signalling(
        &mut self,
        input: usize,
        packet: &Packet<'_>,
        peer: SocketAddr,
        now_ns: u64,
        ports: &mut Ports,
    ) -> Verdict {
        match packet.message_type() {
            message_type::ECHO_REQUEST => {
                let Some(sequence) = packet.sequence() else {
                    return Verdict::Drop(DropReason::GtpuMalformed);
                };
                let response = Signalling::EchoResponse { sequence }.build();
                self.exits.push(input as u8, &response, peer, &self.stats, ports);
                self.stats.echo_requests.add(1);
                Verdict::Taken
            }
            message_type::ERROR_INDICATION => {
                let Ok(Signalling::ErrorIndication { teid, peer: named, .. }) = Signalling::parse(packet)
                else {
                    return Verdict::Drop(DropReason::GtpuMalformed);
                };
                self.stats.error_indications_received.add(1);
                // Only the far end of a tunnel knows whether the tunnel exists.
                if named == peer.ip()
                    && let Some(bearer) = self.tables.bearer_to(named, teid)
                    && now_ns - *bearer.unknown_since_ns.get_or_insert(now_ns) >= RELEASE_NS
                {
                    // Of a flood, one in a while is enough.
                    bearer.unknown_since_ns = None;
                    let event = Event::UnknownAtCu { c_rnti: bearer.c_rnti, lcid: bearer.lcid };
                    self.tell(event);
                }
                Verdict::Taken
            }
            message_type::ECHO_RESPONSE => {
                self.stats.signalling.add(1);
                if let Some(sequence) = packet.sequence() {
                    self.echo_response(input as u8, peer, sequence, now_ns);
                }
                Verdict::Taken
            }
            message_type::END_MARKER
            | message_type::SUPPORTED_EXTENSION_HEADERS
            | message_type::TUNNEL_STATUS => {
                self.stats.signalling.add(1);
                Verdict::Taken
            }
            _ => Verdict::Drop(DropReason::GtpuUnknownMessage),
        }
    }

    /// Tells the sender of a G-PDU, on its GTP-U port, that there is no such tunnel (§7.3.1).
    #[cold]
    pub(crate) fn unknown_tunnel(
        &mut self,
        input: usize,
        teid: u32,
        peer: SocketAddr,
        now_ns: u64,
        ports: &mut Ports,
    ) {
        let Some(interface) = self.settings.interfaces.get(input) else { return };
        let message = Signalling::ErrorIndication { teid, peer: interface.local.ip(), udp_port: None };
        if self.reply(input, &message, SocketAddr::new(peer.ip(), gtpu::PORT), now_ns, ports) {
            self.stats.error_indications_sent.add(1);
        }
    }

    /// Replies to a faulty packet, unless there have been too many such replies lately.
    pub(crate) fn reply(
        &mut self,
        input: usize,
        message: &Signalling,
        to: SocketAddr,
        now_ns: u64,
        ports: &mut Ports,
    ) -> bool {
        self.f1u_replies.allows(now_ns)
            && self.exits.push(input as u8, &message.build(), to, &self.stats, ports)
    }
}
