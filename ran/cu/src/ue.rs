//! A UE with a connection: its context, and the task that owns it.
//!
//! ```text
//!  F1-C ── UeEvent ──► inbox ─┐                    ┌─► Du::send
//!  N2 ────── n2::Ue ──────────┼─► step ► procedure ┼─► n2::Gnb::send
//!  timers ────────────────────┘                    └─► UserPlane
//! ```
//! The task runs one procedure at a time, each an `async fn` in `procedure/`. NAS of the UE passes while a procedure waits for the DU
//! or the UE. What the AMF asks for waits until the procedure has ended, NAS as well: the procedure may bring NAS to the UE, which
//! discards a message that a later one has overtaken (TS 24.501 §4.4.3). A procedure that cannot go on ends with an [`Interrupt`],
//! which says how the connection ends (`procedure/release.rs`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use f1ap::Pdu as F1;
use f1ap::cause::{Cause as F1Cause, RadioNetwork as F1RadioNetwork};
use f1ap::ie::{GnbCuUeF1apId, GnbDuUeF1apId, SrbId};
use f1ap::message::{DlRrcMessageTransfer, InitialUlRrcMessageTransfer};
use l2::keys::AsKeys;
use l2::pdcp::SealError;
use net::sctp::SendError;
use net::time::Instant;
use ngap::Pdu as Ngap;
use ngap::cause::RadioNetwork as NgapRadioNetwork;
use rrc::UlDcch;
use tokio::sync::mpsc;
use types::{Ambr, Ncgi};

use crate::counters;
use crate::dus::Du;
use crate::rrc::{Rrc, RrcError, dl_information_transfer};
use crate::sessions::{DrbIds, Session};
use crate::shared::{FarEnd, Shared, UeEvent};

/// How long the DU may take for its answer.
pub(crate) const F1_LIMIT: Duration = Duration::from_secs(5);
/// How long a message may wait for an AMF that does not read. Then the UE counts as lost to it.
pub(crate) const N2_SEND_LIMIT: Duration = Duration::from_secs(10);
/// How long a UE may take for its answer: longer than RLC repeats a message.
pub(crate) const RRC_LIMIT: Duration = Duration::from_secs(5);
/// Longest NAS message: with RRC around it, it travels in one PDCP SDU of 9,000 octets (TS 38.323 §4.3.1).
const MAX_NAS_OCTETS: usize = 8_980;
/// Messages of the AMF that wait for the procedure under way.
const MOST_DEFERRED: usize = 64;
/// How long a UE without context may be silent: as long as others, but within these limits. A registration has pauses of its own.
const MOST_SILENCE: Duration = Duration::from_secs(60);
const LEAST_SILENCE: Duration = Duration::from_secs(5);
/// How long the AMF may take to release or move a session whose tunnel is lost.
const LOST_LIMIT: Duration = Duration::from_secs(2);
/// How often the bearers of a busy UE are looked after.
const BEARERS_CHECK: Duration = Duration::from_secs(60);
/// Packets of a bearer in a direction after which its COUNT comes to its end (TS 38.323 §6.3.5). The rest is more than a bearer carries
/// until it is looked after.
const MOST_PACKETS: u64 = (1 << 32) - (1 << 30);

/// Why the procedure under way cannot go on, and the connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Interrupt {
    /// The AMF releases the UE.
    #[error("released by the AMF: {}", .0.cause)]
    Commanded(ngap::UeContextReleaseCommand),
    /// The DU has forgotten the UE, or is gone.
    #[error("the DU has lost the UE")]
    DuLost,
    /// More messages came for the UE than its task could take: it has missed some.
    #[error("too many messages of the DU at once")]
    Overrun,
    /// The DU asks for the release.
    #[error("the DU asks for the release: {0}")]
    DuAsks(F1Cause),
    /// The association with the AMF is gone, or was reset.
    #[error("the AMF has lost the UE")]
    AmfLost,
    /// A tunnel's far end does not answer, or does not know it.
    #[error("a tunnel is lost")]
    TunnelLost,
    /// The UE was silent for the configured time.
    #[error("the UE is inactive")]
    Inactive,
    /// No answer in time.
    #[error("no {0} in time")]
    NoAnswer(&'static str),
    /// The UE gets no connection: RRCReject says so, as far as it has asked for one.
    #[error("no connection: {reason}")]
    Refused {
        /// Why.
        reason: &'static str,
        /// DL-CCCH-Message with RRCReject.
        reject: Option<Vec<u8>>,
    },
    /// A message of ours cannot be made.
    #[error("a message cannot be made: {0}")]
    Failed(&'static str),
    /// The CU stops.
    #[error("the CU stops")]
    Stopping,
}

/// What a procedure may wait for.
#[derive(Debug)]
pub(crate) enum Step {
    /// A message of the UE, but no NAS.
    Rrc(UlDcch),
    /// A message of the DU, but no RRC.
    F1(Box<F1>),
    /// A message of the AMF.
    N2(Box<Ngap>),
    /// A tunnel is lost, which is noted.
    TunnelLost,
}

/// A UE.
pub(crate) struct Ue {
    pub(crate) shared: Arc<Shared>,
    pub(crate) du: Arc<Du>,
    /// The CU's number of it on F1.
    pub(crate) id: u32,
    /// The DU's number of it.
    pub(crate) du_ue: u32,
    pub(crate) cell: Ncgi,
    inbox: mpsc::Receiver<UeEvent>,
    pub(crate) n2: Option<n2::Ue>,
    pub(crate) rrc: Rrc,
    pub(crate) keys: Option<AsKeys>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) drb_ids: DrbIds,
    /// Far ends that are lost, and when the connection ends for that.
    lost: Option<(Instant, Vec<FarEnd>)>,
    /// The aggregate bit rate of flows without guaranteed one.
    pub(crate) ue_ambr: Option<Ambr>,
    /// The UE has SRB1.
    pub(crate) connected: bool,
    /// Messages of the AMF that came while a procedure waited for something else.
    pub(crate) deferred: VecDeque<Ngap>,
    /// When the last NAS message passed.
    pub(crate) nas_ns: u64,
}

/// Begins the task of a UE that has sent its first message.
pub(crate) async fn admit(shared: Arc<Shared>, du: Arc<Du>, initial: InitialUlRrcMessageTransfer) {
    let du_ue = initial.gnb_du_ue_f1ap_id.0;
    if !du.has(initial.nr_cgi) {
        return counters::F1C_REJECTED.inc("foreign_cell");
    }
    let Some((id, inbox)) = shared.add_ue(&du, du_ue) else {
        counters::RRC_REJECTS.inc("full");
        return;
    };
    let ue = Ue {
        cell: initial.nr_cgi,
        shared,
        du,
        id,
        du_ue,
        inbox,
        n2: None,
        rrc: Rrc::new(),
        keys: None,
        sessions: Vec::new(),
        drb_ids: DrbIds::default(),
        lost: None,
        ue_ambr: None,
        connected: false,
        deferred: VecDeque::new(),
        nas_ns: net::time::now_ns(),
    };
    tokio::spawn(ue.run(initial));
}

impl Ue {
    async fn run(mut self, initial: InitialUlRrcMessageTransfer) {
        let Err(interrupt) = self.live(initial).await;
        tracing::debug!(ue = self.id, why = %interrupt, "a connection ends");
        self.release(interrupt).await;
    }

    /// The life of a connection, which ends by an interrupt only.
    async fn live(
        &mut self,
        initial: InitialUlRrcMessageTransfer,
    ) -> Result<std::convert::Infallible, Interrupt> {
        self.rrc_connection_establishment(initial).await?;
        loop {
            self.check_bearers()?;
            if let Some(pdu) = self.deferred.pop_front() {
                self.of_amf(pdu).await?;
                continue;
            }
            match self.step(self.next_check()).await? {
                Some(Step::N2(pdu)) => self.of_amf(*pdu).await?,
                Some(Step::Rrc(message)) => self.unexpected(&message),
                Some(Step::F1(pdu)) => self.unexpected_f1(&pdu),
                Some(Step::TunnelLost) => {}
                None => self.check_inactivity()?,
            }
        }
    }

    /// Performs what the AMF asks for.
    async fn of_amf(&mut self, pdu: Ngap) -> Result<(), Interrupt> {
        match pdu {
            Ngap::DownlinkNasTransport(transport) => self.downlink_nas(transport.nas_pdu).await,
            Ngap::InitialContextSetupRequest(request) => self.initial_context_setup(request).await,
            Ngap::PduSessionResourceSetupRequest(request) => self.session_setup(request).await,
            Ngap::PduSessionResourceModifyRequest(request) => self.session_modify(request).await,
            Ngap::PduSessionResourceReleaseCommand(command) => self.session_release(command).await,
            Ngap::UeContextModificationRequest(request) => self.context_modification(request).await,
            Ngap::ErrorIndication(indication) => {
                let cause = indication.cause.map_or_else(|| "none".to_owned(), |cause| cause.to_string());
                counters::N2_REJECTED.inc(&format!("error_indication:{cause}"));
                Ok(())
            }
            other => {
                counters::N2_REJECTED.inc("state");
                tracing::debug!(message = other.name(), "a message that no gNB expects");
                Ok(())
            }
        }
    }

    // --- waiting ---------------------------------------------------------------------------------------

    /// The next event; `None` when the deadline has passed. NAS of the UE is passed on here.
    pub(crate) async fn step(&mut self, deadline: Option<Instant>) -> Result<Option<Step>, Interrupt> {
        loop {
            while let Some(message) = self.rrc.next() {
                match message {
                    UlDcch::UlInformationTransfer(transfer) => {
                        if let Some(nas) = transfer.dedicated_nas_message {
                            self.uplink_nas(nas).await?;
                        }
                    }
                    message => return Ok(Some(Step::Rrc(message))),
                }
            }
            let of_amf = async {
                match &mut self.n2 {
                    Some(n2) => n2.next_pdu().await,
                    None => std::future::pending().await,
                }
            };
            let passed = async {
                match deadline {
                    Some(deadline) => net::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            // None before the others: a flood of one peer must not hide what another one says, or the deadline.
            tokio::select! {
                event = self.inbox.recv() => match event {
                    Some(UeEvent::F1(pdu)) => if let Some(step) = self.of_du(*pdu)? {
                        return Ok(Some(step));
                    },
                    Some(UeEvent::DuLost) => return Err(Interrupt::DuLost),
                    None => return Err(Interrupt::Overrun),
                    Some(UeEvent::TunnelLost(far_end)) => {
                        self.tunnel_lost(far_end);
                        return Ok(Some(Step::TunnelLost));
                    }
                    Some(UeEvent::Stopping) => return Err(Interrupt::Stopping),
                },
                pdu = of_amf => match pdu {
                    Some(Ngap::UeContextReleaseCommand(command)) => return Err(Interrupt::Commanded(command)),
                    // The AMF does not have the UE (TS 38.413 §10.6).
                    Some(Ngap::ErrorIndication(indication)) if names_unknown_ue(&indication) => {
                        return Err(Interrupt::AmfLost);
                    }
                    Some(pdu) => return Ok(Some(Step::N2(Box::new(pdu)))),
                    None => return Err(Interrupt::AmfLost),
                },
                () = passed => return Ok(None),
            }
        }
    }

    /// Handles a message of the DU; one that a procedure waits for is returned.
    fn of_du(&mut self, pdu: F1) -> Result<Option<Step>, Interrupt> {
        match pdu {
            F1::UlRrcMessageTransfer(transfer) => {
                self.rrc.receive(transfer.srb_id.0, transfer.rrc_container);
                Ok(None)
            }
            F1::UeContextReleaseRequest(request) => Err(Interrupt::DuAsks(request.cause)),
            // The DU does not have the UE.
            F1::ErrorIndication(indication)
                if matches!(
                    indication.cause,
                    Some(F1Cause::RadioNetwork(
                        F1RadioNetwork::UnknownOrAlreadyAllocatedGnbDuUeF1apId
                            | F1RadioNetwork::UnknownOrAlreadyAllocatedGnbCuUeF1apId
                            | F1RadioNetwork::UnknownOrInconsistentPairOfUeF1apId
                    ))
                ) =>
            {
                Err(Interrupt::DuLost)
            }
            pdu => Ok(Some(Step::F1(Box::new(pdu)))),
        }
    }

    /// Waits for what `wanted` takes out of a step. Other messages of the AMF wait, others are counted.
    pub(crate) async fn wait_for<T>(
        &mut self,
        what: &'static str,
        limit: Duration,
        mut wanted: impl FnMut(Step) -> Result<T, Step>,
    ) -> Result<T, Interrupt> {
        let deadline = net::time::now() + limit;
        loop {
            let step = self.step(Some(deadline)).await?.ok_or(Interrupt::NoAnswer(what))?;
            match wanted(step) {
                Ok(found) => return Ok(found),
                Err(Step::N2(pdu)) if self.deferred.len() < MOST_DEFERRED => self.deferred.push_back(*pdu),
                Err(Step::N2(pdu)) => match *pdu {
                    Ngap::DownlinkNasTransport(transport) => {
                        let cause = ngap::cause::Misc::ControlProcessingOverload.into();
                        self.nas_not_delivered(transport.nas_pdu, cause).await;
                    }
                    _ => counters::N2_REJECTED.inc("too_many"),
                },
                Err(Step::Rrc(message)) => self.unexpected(&message),
                Err(Step::F1(pdu)) => self.unexpected_f1(&pdu),
                // It has its time.
                Err(Step::TunnelLost) => {}
            }
        }
    }

    pub(crate) fn unexpected(&self, message: &UlDcch) {
        counters::RRC_REJECTED.inc("state");
        tracing::debug!(ue = self.id, ?message, "RRC message that nothing waits for");
    }

    pub(crate) fn unexpected_f1(&self, pdu: &F1) {
        counters::F1C_REJECTED.inc("state");
        tracing::debug!(ue = self.id, message = pdu.name(), "F1AP message that nothing waits for");
    }

    // --- sending ---------------------------------------------------------------------------------------

    /// The UE's numbers on F1.
    pub(crate) fn f1_ids(&self) -> (GnbCuUeF1apId, GnbDuUeF1apId) {
        (GnbCuUeF1apId(self.id), GnbDuUeF1apId(self.du_ue))
    }

    /// Sends a message about the UE to its DU.
    pub(crate) async fn send_f1(&self, pdu: impl Into<F1>) -> Result<(), Interrupt> {
        self.du.send(Some(self.id), &pdu.into()).await.map_err(|error| match error {
            // The DU is there, and has the UE.
            SendError::Size(_) => Interrupt::Failed("encoding"),
            _ => Interrupt::DuLost,
        })
    }

    /// Sends an RRC container on a signalling bearer.
    pub(crate) async fn send_container(&self, srb: u8, rrc_container: Vec<u8>) -> Result<(), Interrupt> {
        let (gnb_cu_ue_f1ap_id, gnb_du_ue_f1ap_id) = self.f1_ids();
        self.send_f1(DlRrcMessageTransfer {
            gnb_cu_ue_f1ap_id,
            gnb_du_ue_f1ap_id,
            old_gnb_du_ue_f1ap_id: None,
            srb_id: SrbId(srb),
            rrc_container,
            rrc_delivery_status_request: None,
        })
        .await
    }

    /// Sends an RRC message on SRB1.
    pub(crate) async fn send_rrc(&mut self, message: impl Into<rrc::DlDcch>) -> Result<(), Interrupt> {
        let pdu = self.rrc.seal(1, message).map_err(unsendable)?;
        self.send_container(1, pdu).await
    }

    /// Sends a message about the UE to the AMF.
    pub(crate) async fn send_n2(&self, pdu: impl Into<Ngap>) -> Result<(), Interrupt> {
        let n2 = self.n2.as_ref().ok_or(Interrupt::AmfLost)?;
        match net::time::timeout(N2_SEND_LIMIT, n2.gnb().send(pdu)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(SendError::Size(_))) => Err(Interrupt::Failed("encoding")),
            _ => Err(Interrupt::AmfLost),
        }
    }

    /// Where the UE is.
    pub(crate) fn location(&self, gnb: &n2::Gnb) -> ngap::UserLocation {
        gnb.location_of(self.cell.nr_cell_id)
    }

    // --- NAS transport (TS 38.413 §8.6, TS 38.331 §5.7.1, §5.7.2) -----------------------------------------

    async fn uplink_nas(&mut self, nas_pdu: Bytes) -> Result<(), Interrupt> {
        if nas_pdu.is_empty() || nas_pdu.len() > MAX_NAS_OCTETS {
            counters::RRC_REJECTED.inc("nas_length");
            return Ok(());
        }
        self.nas_ns = net::time::now_ns();
        let Some(n2) = &self.n2 else {
            counters::RRC_REJECTED.inc("nas_without_amf");
            return Ok(());
        };
        let Some(amf_ue_ngap_id) = n2.amf_ue_ngap_id() else {
            // The AMF has not answered the first message: a UE that sends another one does not wait for it.
            counters::RRC_REJECTED.inc("nas_before_answer");
            return Ok(());
        };
        let message = ngap::UplinkNasTransport {
            amf_ue_ngap_id,
            ran_ue_ngap_id: n2.ran_ue_ngap_id(),
            nas_pdu,
            user_location: Some(self.location(n2.gnb())),
        };
        self.send_n2(message).await
    }

    /// Sends NAS to the UE.
    pub(crate) async fn downlink_nas(&mut self, nas_pdu: Bytes) -> Result<(), Interrupt> {
        if nas_pdu.is_empty() || nas_pdu.len() > MAX_NAS_OCTETS {
            self.nas_not_delivered(nas_pdu, NgapRadioNetwork::Unspecified.into()).await;
            return Ok(());
        }
        self.nas_ns = net::time::now_ns();
        let (srb, transaction) = (self.rrc.nas_srb(), self.rrc.next_transaction());
        let message = dl_information_transfer(transaction, nas_pdu);
        let pdu = self.rrc.seal(srb, message).map_err(unsendable)?;
        self.send_container(srb, pdu).await
    }

    // --- inactivity (TS 38.401 §8, TS 38.413 §8.3.2), and keys that are used up ----------------------------

    /// How long the UE may be silent. Before the AMF has set its context up there is a limit in any case: nothing else ends a connection
    /// whose UE has gone, or whose AMF does not answer.
    fn silence_limit(&self) -> Option<Duration> {
        let configured = self.shared.config.inactivity_s.map(Duration::from_secs);
        match self.keys {
            Some(_) => configured,
            None => Some(configured.unwrap_or(MOST_SILENCE).clamp(LEAST_SILENCE, MOST_SILENCE)),
        }
    }

    /// How long the UE has been silent.
    fn silence(&self) -> Duration {
        let drbs = self.sessions.iter().flat_map(|session| &session.drbs);
        let active_ns = drbs.map(|drb| drb.stats.active_ns()).fold(self.nas_ns, u64::max);
        Duration::from_nanos(net::time::now_ns().saturating_sub(active_ns))
    }

    /// When to look after the UE again.
    fn next_check(&self) -> Option<Instant> {
        let silence = self.silence_limit().map(|limit| limit.saturating_sub(self.silence()));
        let bearers = (!self.sessions.is_empty()).then_some(BEARERS_CHECK);
        let wait = silence.into_iter().chain(bearers).min().map(|wait| wait.max(Duration::from_millis(10)));
        let check = wait.map(|wait| net::time::now() + wait);
        check.into_iter().chain(self.lost.as_ref().map(|(by, _)| *by)).min()
    }

    fn check_inactivity(&self) -> Result<(), Interrupt> {
        match self.silence_limit() {
            Some(limit) if self.silence() >= limit => Err(Interrupt::Inactive),
            _ => Ok(()),
        }
    }

    /// A tunnel is lost. Its session may be about to go: the SMF releases it at the UPF first (TS 23.502 §4.3.4.2).
    fn tunnel_lost(&mut self, far_end: FarEnd) {
        if self.sessions.iter().any(|session| session.leads_to(far_end)) {
            let (_, ends) = self.lost.get_or_insert_with(|| (net::time::now() + LOST_LIMIT, Vec::new()));
            if !ends.contains(&far_end) {
                ends.push(far_end);
            }
        }
    }

    /// A connection with a lost tunnel ends. So does one whose keys are used up: the UE gets new ones when it comes back
    /// (TS 38.331 §5.3.1.2).
    fn check_bearers(&mut self) -> Result<(), Interrupt> {
        if let Some((_, lost)) = self.lost.take_if(|(by, _)| *by <= net::time::now())
            && self.sessions.iter().any(|session| lost.iter().any(|far_end| session.leads_to(*far_end)))
        {
            return Err(Interrupt::TunnelLost);
        }
        if self.drb_ids.are_used_up(&self.sessions) {
            return Err(Interrupt::Failed("DRB identities"));
        }
        let mut drbs = self.sessions.iter().flat_map(|session| &session.drbs);
        if drbs.any(|drb| drb.stats.most_packets() >= MOST_PACKETS) {
            return Err(Interrupt::Failed("COUNT"));
        }
        Ok(())
    }
}

/// Also when the task has failed, nothing of the UE stays.
impl Drop for Ue {
    fn drop(&mut self) {
        for session in self.sessions.drain(..) {
            session.close(&self.shared);
        }
        self.shared.remove_ue(self.id);
    }
}

/// Whether the AMF says that it does not have the UE of a message of ours, or has another number for it.
fn names_unknown_ue(indication: &ngap::ErrorIndication) -> bool {
    matches!(
        indication.cause,
        Some(ngap::Cause::RadioNetwork(
            NgapRadioNetwork::UnknownLocalUeNgapId | NgapRadioNetwork::InconsistentRemoteUeNgapId
        ))
    )
}

/// A message of ours that cannot be made.
pub(crate) fn unsendable(error: RrcError) -> Interrupt {
    match error {
        RrcError::Encode(error) => {
            tracing::error!(%error, "an RRC message of ours does not encode");
            Interrupt::Failed("encoding")
        }
        // Only new keys would help (TS 38.331 §5.3.1.2); the UE gets them with a new connection.
        RrcError::Seal(SealError::Exhausted) => Interrupt::Failed("COUNT"),
        RrcError::Seal(_) => Interrupt::Failed("length"),
    }
}
