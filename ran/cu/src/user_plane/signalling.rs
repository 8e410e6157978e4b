//! GTP-U messages that are not user packets (TS 29.281 §7), and the delivery statuses of DUs (TS 38.425).

use std::net::SocketAddr;

use packet::ParseError;
use packet::gtpu::{self, PduSession, Signalling, extension_type, message_type};
use packet::nr_u::{DeliveryStatus, Message, SEQUENCE_MASK};
use telemetry::DropReason;
use tokio::sync::mpsc;

use super::control::{Event, Role};
use super::stats::Way;
use super::{End, Gpdu, Relay};

/// Replies to faulty packets per second: more would let a sender of rubbish use us against others.
const REPLIES_PER_S: u32 = 100;

/// Limits replies to faulty packets.
#[derive(Debug, Default)]
pub struct ReplyLimit {
    second: u64,
    count: u32,
}

impl ReplyLimit {
    fn allows(&mut self, now_ns: u64) -> bool {
        let second = now_ns / 1_000_000_000;
        if second != self.second {
            (self.second, self.count) = (second, 0);
        }
        self.count += 1;
        self.count <= REPLIES_PER_S
    }
}

/// Tells the control plane.
#[derive(Debug)]
pub struct Events(pub mpsc::Sender<Event>);

impl Relay {
    fn tell(&self, event: Event) {
        if self.events.0.try_send(event).is_err() {
            self.stats.lost_events.add(1);
        }
    }

    /// Handles a message that is not a usual G-PDU; returns the G-PDU if it is one.
    #[cold]
    pub(super) fn unusual(
        &mut self,
        input: usize,
        bytes: &[u8],
        peer: SocketAddr,
        now_ns: u64,
    ) -> Result<Option<Gpdu>, DropReason> {
        let packet = gtpu::Packet::new(bytes).map_err(malformed)?;
        if packet.message_type() != message_type::G_PDU {
            self.stats.nodes[Way::Signalling as usize].count(1);
            return self.signalling(input, &packet, peer).map(|()| None);
        }
        if packet.unknown_required_extension().is_some() {
            // TS 29.281 §5.2.1: the peer is told which extension headers are supported.
            let types = self.extension_headers(input);
            self.reply_error(input, &Signalling::SupportedExtensionHeaders { types }, peer, now_ns);
            return Err(DropReason::GtpuUnknownExtension);
        }
        if self.interfaces.get(input).is_some_and(|interface| interface.role != Role::N3)
            && let Some(Message::DeliveryStatus(status)) = Message::of(&packet).map_err(malformed)?
        {
            self.stats.nodes[Way::Signalling as usize].count(1);
            self.status(input, packet.teid(), &status, peer);
            if packet.payload().is_empty() {
                if self.bearer(packet.teid()).is_none() {
                    self.unknown_tunnel(input, packet.teid(), peer, now_ns);
                    return Err(DropReason::UnknownTeid);
                }
                return Ok(None);
            }
        }
        let flow = match packet.pdu_session() {
            Some(PduSession::Downlink { qfi, rqi, .. }) => qfi | u8::from(rqi) << 6,
            Some(PduSession::Uplink { .. }) | None => 0,
        };
        Ok(Some(Gpdu { teid: packet.teid(), flow, header: packet.header_len(), total: packet.bytes().len() }))
    }

    /// The extension headers that we know on an interface.
    fn extension_headers(&self, input: usize) -> Vec<u8> {
        let role = self.interfaces.get(input).map(|interface| interface.role);
        let f1u = (role != Some(Role::N3)).then_some(extension_type::NR_RAN_CONTAINER);
        let n3 = (role != Some(Role::F1u)).then_some(extension_type::PDU_SESSION_CONTAINER);
        [Some(extension_type::UDP_PORT), f1u, n3].into_iter().flatten().collect()
    }

    /// What a DU says of a bearer. Others may not speak for it.
    fn status(&mut self, input: usize, teid: u32, status: &DeliveryStatus<'_>, peer: SocketAddr) {
        let Some(bearer) = self.bearer(teid) else { return };
        if bearer.down.du.is_none_or(|du| usize::from(du.interface) != input || du.address != peer.ip()) {
            self.stats.foreign_statuses.add(1);
            return;
        }
        let next = bearer.tx.tx_next().unwrap_or(u32::MAX);
        let untrue = bearer.down.flow.report(status, next).is_err();
        let waits = !bearer.down.queue.is_empty();
        let length = |(first, last): (u32, u32)| u64::from(last.wrapping_sub(first) & SEQUENCE_MASK) + 1;
        let lost = status.lost.iter().map(length).sum();
        self.stats.statuses.add(1);
        self.stats.lost_on_f1u.add(lost);
        self.stats.untrue_statuses.add(u64::from(untrue));
        if waits && !untrue {
            self.wanted.push(teid);
        }
    }

    /// Handles a message that is not a G-PDU.
    fn signalling(
        &mut self,
        input: usize,
        packet: &gtpu::Packet<'_>,
        peer: SocketAddr,
    ) -> Result<(), DropReason> {
        match packet.message_type() {
            message_type::ECHO_REQUEST => {
                let sequence = packet.sequence().ok_or(DropReason::GtpuMalformed)?;
                if !self.reply(input, &Signalling::EchoResponse { sequence }, peer) {
                    return Err(DropReason::ControlOverflow);
                }
                self.stats.echo_requests.add(1);
            }
            message_type::ECHO_RESPONSE => {
                self.stats.signalling.add(1);
                // An answer to nothing must not crowd out other events.
                let asked = (input as u8, peer.ip());
                if let Some(sequence) = packet.sequence()
                    && self.echoes.get(&asked) == Some(&sequence)
                {
                    self.echoes.remove(&asked);
                    let (interface, peer) = asked;
                    self.tell(Event::EchoResponse { interface, peer, sequence });
                }
            }
            message_type::ERROR_INDICATION => {
                let Ok(Signalling::ErrorIndication { teid, peer: named, .. }) = Signalling::parse(packet)
                else {
                    return Err(DropReason::GtpuMalformed);
                };
                self.stats.error_indications_received.add(1);
                // Only the far end of a tunnel knows whether the tunnel exists.
                let interface = input as u8;
                if named == peer.ip() && self.far_ends.contains_key(&(interface, named, teid)) {
                    self.tell(Event::ErrorIndication { interface, peer: named, teid });
                }
            }
            message_type::END_MARKER => {
                self.stats.signalling.add(1);
                if matches!(self.ends.get_mut(packet.teid()), Some(End::Session(session)) if usize::from(session.interface) == input)
                {
                    self.tell(Event::EndMarker { teid: packet.teid() });
                }
            }
            message_type::SUPPORTED_EXTENSION_HEADERS | message_type::TUNNEL_STATUS => {
                self.stats.signalling.add(1);
            }
            _ => return Err(DropReason::GtpuUnknownMessage),
        }
        Ok(())
    }

    /// A G-PDU came for a tunnel that does not exist: its sender gets an Error Indication (§7.3.1).
    #[cold]
    pub(super) fn unknown_tunnel(&mut self, input: usize, teid: u32, peer: SocketAddr, now_ns: u64) {
        let Some(interface) = self.interfaces.get(input) else { return };
        let message = Signalling::ErrorIndication { teid, peer: interface.address, udp_port: None };
        if self.reply_error(input, &message, SocketAddr::new(peer.ip(), gtpu::PORT), now_ns) {
            self.stats.error_indications_sent.add(1);
        }
    }

    fn reply_error(&mut self, input: usize, message: &Signalling, peer: SocketAddr, now_ns: u64) -> bool {
        self.replies.allows(now_ns) && self.reply(input, message, peer)
    }

    /// Sends a message behind the packets of this vector; `false` if there is no room.
    pub(super) fn reply(&mut self, input: usize, message: &Signalling, peer: SocketAddr) -> bool {
        let added = self.extra.push(&message.build(), peer);
        if added {
            self.extra_outputs.push(input as u8, self.extra.len() - 1);
        }
        added
    }
}

fn malformed(error: ParseError) -> DropReason {
    match error {
        ParseError::TooManyExtensions => DropReason::GtpuExtension,
        _ => DropReason::GtpuMalformed,
    }
}
