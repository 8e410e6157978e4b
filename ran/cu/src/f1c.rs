//! F1-C: associations of DUs and the messages on them (TS 38.473).
//!
//! One task accepts associations; one task per association receives. It decodes, performs what is about the interface itself
//! (F1 Setup, Reset), and gives messages about a UE to the UE's task, without waiting. Errors are answered as §10 says and
//! counted; they affect neither the association nor other UEs.

use std::sync::Arc;
use std::time::Duration;

use f1ap::Pdu;
use f1ap::cause::{Cause, Misc, Protocol, RadioNetwork};
use f1ap::ie::*;
use f1ap::message::*;
use net::sctp::{self, Event};
use types::Tai;

use crate::counters;
use crate::dus::{self, Cell, Du, NotAccepted};
use crate::rrc;
use crate::shared::{Owner, Shared};
use crate::ue;

/// Associations at once: the DUs, and as many that come back before they are missed.
const MOST_ASSOCIATIONS: usize = 2 * dus::MOST_DUS;
/// How long a DU may take for F1 Setup.
const SETUP_LIMIT: Duration = Duration::from_secs(10);
/// How long UEs may take to end when the CU stops, and then the association.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// When a DU that was refused may try again.
const TIME_TO_WAIT: TimeToWait = TimeToWait::V2s;

/// SCTP for F1-C.
pub(crate) fn sctp_config(mode: sctp::SctpMode) -> sctp::SctpConfig {
    sctp::SctpConfig { mode, max_associations: MOST_ASSOCIATIONS, ..Default::default() }
}

/// Accepts DUs until the CU stops.
pub(crate) async fn run(shared: Arc<Shared>, mut listener: sctp::Listener) {
    let mut associations = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(association) => {
                    counters::ASSOCIATIONS.inc();
                    associations.spawn(serve(Arc::clone(&shared), association));
                }
                Err(_) => {
                    tracing::error!("F1-C listener ended");
                    break;
                }
            },
            Some(_) = associations.join_next() => {}
            () = shared.stopped() => break,
        }
    }
    while associations.join_next().await.is_some() {}
}

/// Runs one association until it ends.
async fn serve(shared: Arc<Shared>, mut association: sctp::Association) {
    let peer = association.peer();
    let mut connection = Connection {
        key: shared.next_key(),
        peer: peer.ip(),
        du: None,
        sender: (association.sender(), association.outgoing_streams()),
        setup_by: net::time::now() + SETUP_LIMIT,
        shared,
    };
    let reason = loop {
        let (du, setup_by) = (connection.du.clone(), connection.setup_by);
        let ended = async {
            match &du {
                Some(du) => du.ended().await,
                None => net::time::sleep_until(setup_by).await,
            }
        };
        tokio::select! {
            event = association.recv() => match event {
                Some(Event::Message(message)) => connection.receive(message).await,
                // The DU has lost its state (TS 38.472 §7).
                Some(Event::Restarted) => connection.lose_du(),
                Some(Event::Closed { reason }) => break reason.to_string(),
                None => break "closed".to_owned(),
            },
            () = ended => {
                association.abort();
                break if du.is_some() { "replaced, or too slow" } else { "no F1 Setup in time" }.to_owned();
            }
            () = connection.shared.stopped() => {
                // UEs are told first: their last messages go through this association.
                connection.shared.stop_ues();
                let stop_by = net::time::now() + STOP_LIMIT;
                while connection.shared.ue_count() > 0 && net::time::now() < stop_by {
                    match net::time::timeout(Duration::from_millis(20), association.recv()).await {
                        Ok(Some(Event::Message(message))) => connection.receive(message).await,
                        Ok(Some(Event::Closed { .. }) | None) => break,
                        _ => {}
                    }
                }
                // A DU that does not read would never let it end.
                let end = net::time::timeout(STOP_LIMIT, association.shutdown()).await;
                break end.map_or_else(|_| "not shut down".to_owned(), |reason| reason.to_string());
            }
        }
    };
    connection.lose_du();
    counters::ASSOCIATIONS_LOST.inc();
    tracing::info!(%peer, reason, "F1-C association ended");
}

/// An association, with its DU once F1 Setup has succeeded.
struct Connection {
    shared: Arc<Shared>,
    key: u64,
    peer: std::net::IpAddr,
    sender: (sctp::Sender, u16),
    du: Option<Arc<Du>>,
    /// When there must be a DU.
    setup_by: net::time::Instant,
}

impl Connection {
    /// The DU is gone, and its UEs with it. On this association it may set up once more.
    fn lose_du(&mut self) {
        if let Some(du) = self.du.take() {
            self.setup_by = net::time::now() + SETUP_LIMIT;
            self.shared.dus.remove(&du);
            let ues = self.shared.lose_ues(&du);
            tracing::info!(du = du.id.0, ues, "DU lost");
        }
    }

    /// Answers on the common stream, without waiting: a DU that does not read answers to its errors loses them.
    fn answer(&self, pdu: impl Into<Pdu>) {
        if let Some(message) = dus::message(0, &pdu.into())
            && self.sender.0.try_send(message).is_err()
        {
            counters::F1C_REJECTED.inc("answer_not_sent");
        }
    }

    async fn receive(&mut self, message: sctp::Message) {
        // Some peers send 0 instead of 62.
        if message.ppid != f1ap::PPID && message.ppid != 0 {
            return counters::F1C_REJECTED.inc("ppid");
        }
        let pdu = match Pdu::decode(&message.payload) {
            Ok(decoded) => {
                if let Some(diagnostics) = decoded.notify {
                    counters::F1C_REJECTED.inc("ie_not_understood");
                    let cause = Protocol::AbstractSyntaxErrorIgnoreAndNotify;
                    self.indicate(None, None, Cause::Protocol(cause), Some(diagnostics));
                }
                decoded.pdu
            }
            Err(error) => {
                counters::F1C_REJECTED.inc("malformed");
                tracing::debug!(peer = %self.peer, %error, "malformed F1AP");
                return error.reply().into_iter().for_each(|reply| self.answer(reply));
            }
        };
        match (pdu, self.du.clone()) {
            (Pdu::F1SetupRequest(request), _) => self.f1_setup(request),
            (pdu, Some(du)) => self.about_ue(&du, pdu).await,
            // F1 Setup comes first (§8.2.3.1).
            (_, None) => self.refuse(None, None, Protocol::MessageNotCompatibleWithReceiverState),
        }
    }

    fn indicate(
        &self,
        cu_ue: Option<u32>,
        du_ue: Option<u32>,
        cause: Cause,
        criticality_diagnostics: Option<CriticalityDiagnostics>,
    ) {
        self.answer(ErrorIndication {
            transaction_id: TransactionId::default(),
            gnb_cu_ue_f1ap_id: cu_ue.map(GnbCuUeF1apId),
            gnb_du_ue_f1ap_id: du_ue.map(GnbDuUeF1apId),
            cause: Some(cause),
            criticality_diagnostics,
        });
    }

    fn refuse(&self, cu_ue: Option<u32>, du_ue: Option<u32>, cause: Protocol) {
        counters::F1C_REJECTED.inc("state");
        self.indicate(cu_ue, du_ue, Cause::Protocol(cause), None);
    }

    // --- about the interface ---------------------------------------------------------------------------

    /// F1 Setup (§8.2.3). A DU that sets up once more begins anew: its UEs are lost.
    fn f1_setup(&mut self, request: F1SetupRequest) {
        self.lose_du();
        let transaction_id = request.transaction_id;
        let outcome = self.accept(request);
        match outcome {
            Ok(du) => {
                tracing::info!(du = du.id.0, name = du.name, peer = %self.peer, cells = du.cells.len(), "DU connected");
                let cells = du.cells.iter();
                let cells_to_be_activated =
                    cells.map(|cell| CellToBeActivated { nr_cgi: cell.nr_cgi, nr_pci: None }).collect();
                self.answer(F1SetupResponse {
                    transaction_id,
                    gnb_cu_name: Some(NodeName(self.shared.config.name())),
                    cells_to_be_activated,
                    rrc_version: RrcVersion { latest: RrcVersionBits(0), latest_enhanced: Some([17, 0, 0]) },
                });
                self.du = Some(du);
            }
            Err(cause) => {
                counters::F1_SETUP_FAILURES.inc(&cause.to_string());
                tracing::warn!(peer = %self.peer, %cause, "F1 Setup refused");
                self.answer(F1SetupFailure {
                    transaction_id,
                    cause,
                    time_to_wait: Some(TIME_TO_WAIT),
                    criticality_diagnostics: None,
                });
            }
        }
    }

    fn accept(&self, request: F1SetupRequest) -> Result<Arc<Du>, Cause> {
        let config = &self.shared.config;
        let mut cells = Vec::new();
        for cell in &request.served_cells {
            let information = &cell.information;
            let nr_cgi = information.nr_cgi;
            // A PLMN or tracking area that the CU has not told the AMF of (§8.2.3.3).
            let served = information.served_plmns.iter().any(|served| served.plmn == config.plmn);
            if !served || information.tac.is_some_and(|tac| tac != config.tac) {
                return Err(Cause::RadioNetwork(RadioNetwork::PlmnNotServedByTheGnbCu));
            }
            // The first bits of a cell's identity are the gNB's (TS 38.413 §9.3.1.6).
            if nr_cgi.plmn != config.plmn || nr_cgi.nr_cell_id.value() >> 12 != u64::from(config.gnb_id) {
                return Err(Cause::RadioNetwork(RadioNetwork::CellNotAvailable));
            }
            cells.push(Cell { nr_cgi, tai: Tai { plmn: config.plmn, tac: config.tac } });
        }
        if cells.is_empty() {
            return Err(Cause::RadioNetwork(RadioNetwork::CellNotAvailable));
        }
        let (id, name) = (request.gnb_du_id, request.gnb_du_name.map(|name| name.0));
        let f1u = config.f1u_of(id.0);
        let du = Arc::new(Du::new(id, name, self.peer, cells, f1u, self.key, self.sender.clone()));
        match self.shared.dus.add(Arc::clone(&du)) {
            Ok(former) => {
                if let Some(former) = former {
                    self.shared.lose_ues(&former);
                    former.end();
                }
                Ok(du)
            }
            Err(NotAccepted::Identity) => Err(Cause::Misc(Misc::OmIntervention)),
            Err(NotAccepted::Cell) => Err(Cause::RadioNetwork(RadioNetwork::CellNotAvailable)),
            Err(NotAccepted::Full) => Err(Cause::Misc(Misc::ControlProcessingOverload)),
        }
    }

    /// Reset by the DU (§8.2.1.2.2): it has forgotten these UEs.
    fn reset(&self, du: &Du, reset: Reset) {
        let ue_associations = match reset.reset_type {
            ResetType::F1Interface => {
                self.shared.lose_ues(du);
                Vec::new()
            }
            ResetType::PartOfF1Interface(ues) => {
                for ue in &ues {
                    let (cu_ue, du_ue) = (ue.gnb_cu_ue_f1ap_id, ue.gnb_du_ue_f1ap_id);
                    self.shared.lose_ue(du, cu_ue.map(|cu_ue| cu_ue.0), du_ue.map(|du_ue| du_ue.0));
                }
                ues
            }
        };
        self.answer(ResetAcknowledge {
            transaction_id: reset.transaction_id,
            ue_associations,
            criticality_diagnostics: None,
        });
    }

    // --- about UEs -------------------------------------------------------------------------------------

    async fn about_ue(&self, du: &Arc<Du>, pdu: Pdu) {
        let (cu_ue, du_ue) = match pdu {
            Pdu::Reset(reset) => return self.reset(du, reset),
            Pdu::ResetAcknowledge(_) => return,
            Pdu::InitialUlRrcMessageTransfer(initial) => {
                return ue::admit(Arc::clone(&self.shared), Arc::clone(du), initial).await;
            }
            Pdu::ErrorIndication(ref indication) => {
                let cause = indication.cause.map_or_else(|| "none".to_owned(), |cause| cause.to_string());
                counters::F1C_ERROR_INDICATIONS.inc(&cause);
                match (indication.gnb_cu_ue_f1ap_id, indication.gnb_du_ue_f1ap_id) {
                    (Some(cu), du) => (cu.0, du.map(|du| du.0)),
                    _ => return,
                }
            }
            Pdu::UlRrcMessageTransfer(ref m) if m.rrc_container.len() > rrc::LONGEST_PDU => {
                return counters::RRC_REJECTED.inc("pdcp_malformed");
            }
            Pdu::UlRrcMessageTransfer(ref m) => (m.gnb_cu_ue_f1ap_id.0, Some(m.gnb_du_ue_f1ap_id.0)),
            Pdu::UeContextSetupResponse(ref m) => (m.gnb_cu_ue_f1ap_id.0, Some(m.gnb_du_ue_f1ap_id.0)),
            Pdu::UeContextSetupFailure(ref m) => (m.gnb_cu_ue_f1ap_id.0, m.gnb_du_ue_f1ap_id.map(|du| du.0)),
            Pdu::UeContextReleaseRequest(ref m) => (m.gnb_cu_ue_f1ap_id.0, Some(m.gnb_du_ue_f1ap_id.0)),
            Pdu::UeContextReleaseComplete(ref m) => (m.gnb_cu_ue_f1ap_id.0, Some(m.gnb_du_ue_f1ap_id.0)),
            Pdu::UeContextModificationResponse(ref m) => (m.gnb_cu_ue_f1ap_id.0, Some(m.gnb_du_ue_f1ap_id.0)),
            Pdu::UeContextModificationFailure(ref m) => (m.gnb_cu_ue_f1ap_id.0, Some(m.gnb_du_ue_f1ap_id.0)),
            // What only a CU sends.
            _ => return self.refuse(None, None, Protocol::MessageNotCompatibleWithReceiverState),
        };
        let (released, error) =
            (matches!(pdu, Pdu::UeContextReleaseComplete(_)), matches!(pdu, Pdu::ErrorIndication(_)));
        let cause = match self.shared.give(du, cu_ue, du_ue, pdu) {
            Owner::Told => return,
            // The end of a UE that is forgotten here as well, or an error that concerns nobody any more.
            _ if released || error => return,
            Owner::Unknown => RadioNetwork::UnknownOrAlreadyAllocatedGnbCuUeF1apId,
            Owner::Inconsistent => RadioNetwork::UnknownOrInconsistentPairOfUeF1apId,
        };
        counters::F1C_REJECTED.inc("unknown_ue");
        self.indicate(Some(cu_ue), du_ue, Cause::RadioNetwork(cause), None);
    }
}
