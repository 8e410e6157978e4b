//! Packets from CUs: a G-PDU with DL USER DATA becomes an RLC PDU for the UE.

use packet::ParseError;
use packet::gtpu::{self, Signalling, message_type};
use packet::nr_u::{self, Message};
use path::Ports;
use pktio::FrameMut;
use telemetry::DropReason;

use crate::graph::{UserPlane, Verdict};
use crate::scheduler;
use crate::status::{self, LOSS_INTERVAL_NS, STATUS_INTERVAL_NS};
use crate::tables::{Bearer, PREFIX};
use crate::timers::Timers;

impl UserPlane {
    /// Handles a packet of an interface towards CUs.
    #[inline]
    pub(crate) fn downlink(
        &mut self,
        input: usize,
        frame: &mut FrameMut<'_>,
        now_ns: u64,
        ports: &mut Ports,
    ) -> Verdict {
        let Some(usual) = nr_u::usual(frame.packet()) else {
            return self.unusual(input, frame, now_ns, ports);
        };
        let Some(bearer) = self.tables.bearer_mut(usual.teid) else {
            self.unknown_tunnel(input, usual.teid, *frame.peer, now_ns, ports);
            return Verdict::Drop(DropReason::UnknownTeid);
        };
        note(bearer, usual.sequence, usual.report_polling, &mut self.timers, now_ns);
        frame.truncate(usual.end);
        frame.trim_front(nr_u::USER_DATA_HEADER);
        self.forward(usual.teid, frame, now_ns)
    }

    /// Handles a packet with other headers than almost all have.
    #[cold]
    fn unusual(&mut self, input: usize, frame: &mut FrameMut<'_>, now_ns: u64, ports: &mut Ports) -> Verdict {
        let packet = match gtpu::Packet::new(frame.packet()) {
            Ok(packet) => packet,
            Err(ParseError::TooManyExtensions) => return Verdict::Drop(DropReason::GtpuExtension),
            Err(_) => return Verdict::Drop(DropReason::GtpuMalformed),
        };
        if packet.message_type() != message_type::G_PDU {
            return self.signalling(input, &packet, *frame.peer, now_ns, ports);
        }
        if packet.unknown_required_extension().is_some() {
            let known = Signalling::SupportedExtensionHeaders { types: KNOWN.to_vec() };
            self.reply(input, &known, *frame.peer, now_ns, ports);
            return Verdict::Drop(DropReason::GtpuUnknownExtension);
        }
        let (teid, start, end) = (packet.teid(), packet.header_len(), packet.bytes().len());
        let Some(bearer) = self.tables.bearer_mut(teid) else {
            self.unknown_tunnel(input, teid, *frame.peer, now_ns, ports);
            return Verdict::Drop(DropReason::UnknownTeid);
        };
        match Message::of(&packet) {
            Ok(Some(Message::UserData(data))) => {
                note(bearer, data.sequence, data.report_polling, &mut self.timers, now_ns);
                if data.flush.is_some() || !data.discard.is_empty() {
                    let discarded = scheduler::discard(bearer, &data);
                    self.stats.drops.count_n(DropReason::DiscardTimer, discarded);
                }
            }
            Ok(None) => {}
            // Only a DU sends these.
            Ok(Some(_)) | Err(_) => return Verdict::Drop(DropReason::GtpuExtension),
        }
        frame.truncate(end);
        frame.trim_front(start);
        self.forward(teid, frame, now_ns)
    }

    /// Sends a PDCP PDU to its UE, or queues it.
    #[inline(always)]
    fn forward(&mut self, teid: u32, frame: &mut FrameMut<'_>, now_ns: u64) -> Verdict {
        if frame.is_empty() {
            // The container was all.
            return Verdict::Taken;
        }
        let Some(bearer) = self.tables.bearer_mut(teid) else {
            return Verdict::Drop(DropReason::UnknownTeid);
        };
        if !bearer.straight {
            return self.queue_downlink(teid, frame.packet(), now_ns);
        }
        if let Some(sequence) = status::pdcp_sequence(bearer.pdcp, frame.packet()) {
            bearer.reception.transmitted(bearer.pdcp, sequence);
        }
        bearer.stats.downlink.count(frame.len());
        self.stats.downlink.count(frame.len());
        if let Some(room) = frame.headroom().last_chunk_mut::<PREFIX>() {
            *room = bearer.prefix;
        }
        if !frame.grow_front(PREFIX) {
            return Verdict::Drop(DropReason::TooBig);
        }
        frame.send_to(bearer.ue_peer);
        Verdict::Send(bearer.uu_interface)
    }
}

/// The extension headers that a DU understands.
const KNOWN: [u8; 2] = [gtpu::extension_type::UDP_PORT, gtpu::extension_type::NR_RAN_CONTAINER];

/// Notes what a container says: a sequence number, and whether the CU wants a report.
#[inline(always)]
fn note(bearer: &mut Bearer, sequence: u32, polling: bool, timers: &mut Timers, now_ns: u64) {
    let missing = bearer.reception.note(sequence);
    if missing > 0 {
        bearer.stats.nr_u_lost.add(missing.into());
    }
    let at_ns = match (polling, bearer.reception.is_complete()) {
        (true, _) => now_ns,
        (false, false) => now_ns + LOSS_INTERVAL_NS,
        (false, true) => now_ns + STATUS_INTERVAL_NS,
    };
    status::arm(timers, bearer, at_ns);
}
