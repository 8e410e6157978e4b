//! The DU's end of F1-C: F1AP towards the CU (TS 38.473), without I/O.
//!
//! ```text
//!  CU ──octets──► Machine::receive ─┐                     ┌─► Commands: the user plane
//!  UEs ─ events ─► Machine::event ──┼─► procedures, UEs ──┤
//!  time ─────────► Machine::expire ─┘                     └─► Machine::take_output ──► CU
//! ```
//! [`Machine`] is told what happens and when. It commands the user plane through [`Commands`], whose results it has at once, as
//! tunnels and channels stand in its answers. After each call, whoever drives it takes all outputs and asks for the deadline anew.
//!
//! Invariants: a UE is in one state ([`ue::State`]); each state but that of a connected UE has a time-out; what is kept of a UE is
//! bounded, and so are the UEs, by C-RNTIs. Without F1 Setup no UE is served. Nothing that a CU sends can stop the machine.
//!
//! Read this file, then `ue.rs`, then a file for each procedure.

pub mod cell;
mod context;
mod counters;
mod drb;
mod interface;
mod paging;
mod reset;
mod rrc_transfer;
mod setup;
mod ue;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use f1ap::cause::{Cause, Protocol, RadioNetwork};
use f1ap::ie::{CriticalityDiagnostics, GnbCuUeF1apId, GnbDuUeF1apId};
use f1ap::message::ErrorIndication;
use f1ap::{Decoded, Pdu};

use crate::control::{Added, BearerSetup, Event, Refused, Tunnel};

pub use cell::{Cell, Invalid};

use interface::Interface;
use reset::Resetting;
use ue::Ue;

/// What the machine asks of the user plane.
pub trait Commands {
    /// See [`crate::Control::set_system_information`].
    ///
    /// # Errors
    /// See [`Refused`]; so for the other commands.
    fn set_system_information(&mut self, mib: Vec<u8>, sib1: Vec<u8>) -> Result<(), Refused>;
    /// See [`crate::Control::take_out_of_service`].
    fn take_out_of_service(&mut self) -> Result<(), Refused>;
    /// See [`crate::Control::page`].
    fn page(&mut self, pcch: Vec<u8>) -> Result<(), Refused>;
    /// See [`crate::Control::send_rrc`].
    fn send_rrc(&mut self, c_rnti: u16, lcid: u8, sdu: Vec<u8>) -> Result<(), Refused>;
    /// See [`crate::Control::release_ue`].
    fn release_ue(&mut self, c_rnti: u16, last: Option<(u8, Vec<u8>)>) -> Result<(), Refused>;
    /// See [`crate::Control::remove_ue`].
    fn remove_ue(&mut self, c_rnti: u16) -> Result<(), Refused>;
    /// See [`crate::Control::add_bearer`].
    fn add_bearer(&mut self, c_rnti: u16, setup: BearerSetup) -> Result<Added, Refused>;
    /// See [`crate::Control::redirect_bearer`].
    fn redirect_bearer(&mut self, c_rnti: u16, lcid: u8, cu: Tunnel) -> Result<(), Refused>;
    /// See [`crate::Control::remove_bearer`].
    fn remove_bearer(&mut self, c_rnti: u16, lcid: u8) -> Result<(), Refused>;
}

/// What whoever drives the machine has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send a message to the CU.
    Send {
        /// The DU's number of the UE that it is about: messages about a UE keep their order.
        ue: Option<u32>,
        /// The message.
        octets: Vec<u8>,
    },
    /// End the association, as the CU does not answer, and connect again.
    Disconnect,
}

/// Our end of tunnels on F1-U.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct F1u {
    /// Number of the interface in [`crate::Settings`].
    pub interface: u8,
    /// The address that the CU sends to.
    pub address: IpAddr,
}

/// The DU's end of F1-C; see the module.
#[derive(Debug)]
pub struct Machine {
    cell: Cell,
    f1u: F1u,
    interface: Interface,
    next_transaction: u8,
    /// By C-RNTI.
    ues: HashMap<u16, Ue>,
    /// C-RNTIs by the DU's number of the UE, and by the CU's.
    by_du_id: HashMap<u32, u16>,
    by_cu_id: HashMap<u32, u16>,
    next_du_id: u32,
    /// C-RNTIs of UEs whose state has a time-out, by time.
    timers: BTreeSet<(u64, u16)>,
    resetting: Resetting,
    outputs: VecDeque<Output>,
}

impl Machine {
    /// The end of a DU that is not connected. The cell is out of service until the CU has accepted it.
    pub fn new(cell: Cell, f1u: F1u) -> Machine {
        Machine {
            cell,
            f1u,
            interface: Interface::Down,
            next_transaction: 0,
            ues: HashMap::new(),
            by_du_id: HashMap::new(),
            by_cu_id: HashMap::new(),
            next_du_id: 1,
            timers: BTreeSet::new(),
            resetting: Resetting::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Whether the CU has accepted the DU.
    pub fn is_set_up(&self) -> bool {
        matches!(self.interface, Interface::Up)
    }

    /// UEs that have a C-RNTI.
    pub fn ues(&self) -> usize {
        self.ues.len()
    }

    /// The next thing to do. To be asked after each call until there is none.
    pub fn take_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Machine::expire`] is to be called.
    pub fn deadline_ns(&self) -> Option<u64> {
        let ue = self.timers.first().map(|(due_ns, _)| *due_ns);
        [ue, self.interface.deadline_ns(), self.resetting.deadline_ns()].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn expire(&mut self, now_ns: u64, commands: &mut dyn Commands) {
        self.interface_is_due(now_ns);
        self.reset_is_due(now_ns);
        while let Some((_, c_rnti)) = self.timers.pop_first_if(now_ns) {
            self.ue_is_due(c_rnti, now_ns, commands);
        }
    }

    /// A message from the CU.
    pub fn receive(&mut self, octets: &[u8], now_ns: u64, commands: &mut dyn Commands) {
        let Decoded { pdu, notify } = match Pdu::decode(octets) {
            Ok(decoded) => decoded,
            Err(error) => {
                counters::REJECTED.inc("decode");
                tracing::debug!(%error, "a message of the CU is refused");
                if let Some(reply) = error.reply() {
                    self.send(None, reply);
                }
                return;
            }
        };
        counters::RECEIVED.inc(pdu.name());
        if !self.is_set_up()
            && !matches!(pdu, Pdu::F1SetupResponse(_) | Pdu::F1SetupFailure(_) | Pdu::ErrorIndication(_))
        {
            return self.refuse_in_this_state(&pdu);
        }
        let diagnostics = notify.as_ref().map(in_answer);
        match pdu {
            Pdu::F1SetupResponse(response) => self.setup_response(response, now_ns, commands),
            Pdu::F1SetupFailure(failure) => self.setup_failure(&failure, now_ns),
            Pdu::Reset(reset) => self.reset_by_cu(reset, diagnostics, commands),
            Pdu::ResetAcknowledge(acknowledge) => self.reset_acknowledged(&acknowledge, now_ns),
            Pdu::ErrorIndication(indication) => self.error_indication(&indication, commands),
            Pdu::DlRrcMessageTransfer(transfer) => {
                self.dl_rrc(transfer, now_ns, commands);
                self.report(notify);
            }
            Pdu::UeContextSetupRequest(request) => self.context_setup(request, diagnostics, now_ns, commands),
            Pdu::UeContextModificationRequest(request) => {
                self.context_modification(request, diagnostics, now_ns, commands);
            }
            Pdu::UeContextReleaseCommand(command) => {
                self.context_release(command, diagnostics, now_ns, commands);
            }
            Pdu::Paging(paging) => {
                self.paging(&paging, commands);
                self.report(notify);
            }
            // Those that only a DU sends.
            other => self.refuse_in_this_state(&other),
        }
    }

    /// Something has happened in the user plane.
    pub fn event(&mut self, event: Event, now_ns: u64, commands: &mut dyn Commands) {
        match event {
            Event::RandomAccess { c_rnti, .. } => self.random_access(c_rnti, now_ns, commands),
            Event::Rrc { c_rnti, lcid, sdu } => self.ul_rrc(c_rnti, lcid, sdu, now_ns, commands),
            Event::AccessTimedOut { c_rnti } => {
                if self.forget(c_rnti).is_some() {
                    counters::RELEASED.inc("access_timed_out");
                }
            }
            Event::ReleasedByUe { c_rnti } => self.ue_has_gone(c_rnti, now_ns, commands),
            Event::RadioLinkFailure { c_rnti, .. } => {
                let cause = RadioNetwork::RlFailureRlc;
                self.request_release(c_rnti, Cause::RadioNetwork(cause), false, now_ns, commands);
            }
            Event::UnknownAtCu { c_rnti, lcid } => {
                // The CU may have released the bearer meanwhile.
                if self.ues.get(&c_rnti).is_some_and(|ue| ue.has_channel(lcid)) {
                    self.request_release(c_rnti, ue::NO_TUNNEL, true, now_ns, commands);
                }
            }
            Event::PathFailed { interface, address } => {
                let on_path = |ue: &&Ue| ue.drbs.values().any(|drb| drb.leads_to(interface, address));
                let ues: Vec<u16> = self.ues.values().filter(on_path).map(|ue| ue.c_rnti).collect();
                tracing::warn!(%address, ues = ues.len(), "the CU does not answer on F1-U");
                for c_rnti in ues {
                    self.request_release(c_rnti, ue::NO_TUNNEL, true, now_ns, commands);
                }
            }
            Event::PathRestored { address, .. } => tracing::info!(%address, "the CU answers on F1-U again"),
        }
    }

    /// Encodes and queues a message.
    fn send(&mut self, ue: Option<u32>, pdu: impl Into<Pdu>) {
        let pdu = pdu.into();
        match pdu.encode() {
            Ok(octets) => {
                counters::SENT.inc(pdu.name());
                self.outputs.push_back(Output::Send { ue, octets });
            }
            Err(error) => {
                counters::REJECTED.inc("encode");
                tracing::error!(%error, "a message of ours does not encode");
            }
        }
    }

    /// Reports IEs that were not comprehended and not needed, where the message has no answer (§10.3.4.2).
    fn report(&mut self, notify: Option<CriticalityDiagnostics>) {
        if notify.is_some() {
            let cause = Cause::Protocol(Protocol::AbstractSyntaxErrorIgnoreAndNotify);
            self.indicate_error(cause, None, None, notify);
        }
    }

    /// Answers a message that has no meaning now (§10.4).
    fn refuse_in_this_state(&mut self, pdu: &Pdu) {
        counters::REJECTED.inc("state");
        let (code, triggering) = pdu.procedure();
        let diagnostics = CriticalityDiagnostics {
            procedure_code: Some(f1ap::ie::ProcedureCode(code)),
            triggering_message: Some(triggering),
            procedure_criticality: None,
            transaction_id: None,
            ies: Vec::new(),
        };
        let cause = Cause::Protocol(Protocol::MessageNotCompatibleWithReceiverState);
        self.indicate_error(cause, None, None, Some(diagnostics));
    }

    fn indicate_error(
        &mut self,
        cause: Cause,
        cu: Option<GnbCuUeF1apId>,
        du: Option<GnbDuUeF1apId>,
        criticality_diagnostics: Option<CriticalityDiagnostics>,
    ) {
        let indication = ErrorIndication {
            transaction_id: Default::default(),
            gnb_cu_ue_f1ap_id: cu,
            gnb_du_ue_f1ap_id: du,
            cause: Some(cause),
            criticality_diagnostics,
        };
        self.send(du.map(|id| id.0), indication);
    }
}

/// Diagnostics as an answer has them: the procedure is known from the answer (§9.3.1.3).
fn in_answer(notify: &CriticalityDiagnostics) -> CriticalityDiagnostics {
    CriticalityDiagnostics {
        procedure_code: None,
        triggering_message: None,
        procedure_criticality: None,
        transaction_id: None,
        ies: notify.ies.clone(),
    }
}

/// Timers by time.
trait PopFirstIf {
    /// Takes the first one if it is due.
    fn pop_first_if(&mut self, now_ns: u64) -> Option<(u64, u16)>;
}

impl PopFirstIf for BTreeSet<(u64, u16)> {
    fn pop_first_if(&mut self, now_ns: u64) -> Option<(u64, u16)> {
        if self.first()?.0 > now_ns {
            return None;
        }
        self.pop_first()
    }
}
