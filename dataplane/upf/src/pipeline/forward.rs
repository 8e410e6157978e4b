//! Stage 5: the FAR: drop, buffer, or send on, with a new outer header where it says so.

use packet::gtpu::{self, PduSession};
use pktio::{Batch, Buffer};
use telemetry::DropReason;

use super::{Event, Pipeline, State};
use crate::plan::{Action, Container, Destination, Direction, Forward, OuterHeader};
use crate::session::Pdr;

/// Packets per second that the CP function gets in the long run, as an interval, and how many at once.
const CONTROL_INTERVAL_NS: u64 = 1_000_000;
const CONTROL_BURST_NS: u64 = 200 * CONTROL_INTERVAL_NS;

impl Pipeline {
    /// Applies the FARs and sorts packets by outgoing port.
    pub(super) fn forward(&mut self, batch: &mut Batch, now_ns: u64) {
        for (i, buffer) in batch.buffers_mut().iter_mut().enumerate() {
            let meta = &mut self.metas[i];
            if meta.state != State::Live {
                continue;
            }
            let session = &self.sessions[usize::from(meta.session)];
            let pdr = &session.pdrs[meta.pdr as usize];
            let length = buffer.len();
            match &pdr.action {
                Action::Drop | Action::RedirectUrl(_) | Action::RedirectAddress(..) => {
                    meta.drop(DropReason::FarDrop)
                }
                // The control task keeps it: this is the one copy and allocation on the packet path, and bounded
                // by the queue.
                Action::Buffer if self.events.capacity() > 0 => {
                    let packet = buffer.packet().into();
                    let event = Event::Buffered { seid: session.seid, pdr: pdr.id, packet };
                    meta.state = match self.events.try_send(event) {
                        Ok(()) => State::Consumed,
                        Err(_) => State::Dropped(DropReason::BufferUnavailable),
                    };
                }
                Action::Buffer => meta.drop(DropReason::BufferOverflow),
                Action::Forward(Forward { to: Destination::Tunnel(header), .. }) => {
                    let to_control = header.container == Container::None;
                    if to_control
                        && !self.control_meter.conforms(now_ns, CONTROL_INTERVAL_NS, CONTROL_BURST_NS)
                    {
                        meta.drop(DropReason::ControlOverflow);
                    } else if encapsulate(buffer, header, pdr, meta.qfi) {
                        self.to_n3.push(i as u16);
                    } else {
                        meta.drop(DropReason::TooBig);
                    }
                }
                Action::Forward(Forward { to: Destination::DataNetwork(network), .. }) => {
                    match self.to_n6.get_mut(usize::from(*network)) {
                        Some(selected) => selected.push(i as u16),
                        None => meta.drop(DropReason::FarDrop),
                    }
                }
            }
            if meta.state == State::Live {
                count(self.worker, &session.usage, pdr.direction, length);
                for usage in &pdr.urrs {
                    count(self.worker, usage, pdr.direction, length);
                }
            }
        }
    }
}

fn count(worker: usize, usage: &telemetry::worker::PerWorker, direction: Direction, length: usize) {
    let copy = usage.of(worker);
    match direction {
        Direction::Uplink => copy.uplink.count(length),
        Direction::Downlink => copy.downlink.count(length),
    }
}

/// Puts the packet into a tunnel; `false` when it does not fit.
pub(crate) fn encapsulate(
    buffer: &mut Buffer,
    header: &OuterHeader,
    pdr: &Pdr,
    received_qfi: Option<u8>,
) -> bool {
    let qfi = pdr.qfi.or(received_qfi);
    let container = match (header.container, qfi) {
        (Container::Downlink, Some(qfi)) => Some(PduSession::Downlink { qfi, rqi: pdr.rqi, ppi: pdr.ppi }),
        (Container::Uplink, Some(qfi)) => Some(PduSession::Uplink { qfi }),
        _ => None,
    };
    let length = buffer.len();
    let Some(taken) = gtpu::encapsulate(buffer.headroom(), header.teid, length, container) else {
        return false;
    };
    buffer.peer = header.peer;
    buffer.grow_front(taken)
}
