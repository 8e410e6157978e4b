//! Stage 1: headers. Behind it a live packet is the user's IP packet, without tunnel.

use packet::flow::Flow;
use packet::gtpu::{self, message_type};
use packet::{ParseError, gtpu::Signalling};
use pktio::Batch;
use telemetry::DropReason;

use super::{Pipeline, State};

impl Pipeline {
    /// GTP-U: G-PDUs lose their header, signalling is dealt with and consumed.
    pub(super) fn parse_n3(&mut self, batch: &mut Batch, now_ns: u64) {
        for i in 0..batch.len() {
            let buffer = &mut batch.buffers_mut()[i];
            let packet = match gtpu::Packet::new(buffer.packet()) {
                Ok(packet) => packet,
                Err(error) => {
                    self.metas[i].drop(malformed(error));
                    continue;
                }
            };
            if packet.message_type() != message_type::G_PDU {
                let state = self.signalling(&packet, buffer.peer);
                self.metas[i].state = state;
                continue;
            }
            if packet.unknown_required_extension().is_some() {
                // TS 29.281 §5.2.1: drop, and tell the peer what we know.
                self.metas[i].drop(DropReason::GtpuUnknownExtension);
                let peer = buffer.peer;
                self.reply_error(now_ns, peer, &Signalling::our_extension_headers());
                continue;
            }
            let meta = &mut self.metas[i];
            meta.teid = packet.teid();
            meta.qfi = packet.pdu_session().map(|container| container.qfi());
            let (total, header) = (packet.bytes().len(), packet.header_len());
            buffer.truncate(total);
            buffer.trim_front(header);
            parse_ip(meta, buffer);
        }
    }

    /// N6: IP packets to UEs.
    pub(super) fn parse_n6(&mut self, batch: &mut Batch) {
        for (buffer, meta) in batch.buffers_mut().iter_mut().zip(&mut self.metas) {
            parse_ip(meta, buffer);
        }
    }
}

fn parse_ip(meta: &mut super::Meta, buffer: &mut pktio::Buffer) {
    match Flow::parse(buffer.packet()) {
        Ok(flow) => {
            // Padding behind the packet would otherwise travel on inside the next tunnel.
            buffer.truncate(flow.length);
            meta.flow = Some(flow);
        }
        Err(ParseError::Version) => meta.drop(DropReason::NotIp),
        Err(_) => meta.drop(DropReason::IpMalformed),
    }
    debug_assert!(meta.flow.is_some() || matches!(meta.state, State::Dropped(_)));
}

fn malformed(error: ParseError) -> DropReason {
    match error {
        ParseError::TooManyExtensions | ParseError::Value => DropReason::GtpuExtension,
        _ => DropReason::GtpuMalformed,
    }
}
