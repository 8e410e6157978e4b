//! RRC connection establishment and the UE's first message to the AMF (TS 38.401 §8.1, steps 1 to 8; TS 38.331 §5.3.3).

use bytes::Bytes;
use f1ap::message::InitialUlRrcMessageTransfer;
use ngap::RrcEstablishmentCause;
use rrc::bearer::{RadioBearerConfig, SrbToAddMod};
use rrc::message::*;
use rrc::value::{RejectWaitTime, SrbIdentity};
use rrc::{DlCcch, UlCcch, UlDcch};

use crate::counters;
use crate::ue::{Interrupt, RRC_LIMIT, Step, Ue};

/// After which a UE that was refused may ask again, seconds.
const WAIT_S: u8 = 2;

impl Ue {
    /// Gives the UE SRB1, and its first NAS message to the AMF. A UE that asks for re-establishment gets a new connection as well
    /// (§5.3.7.8): its former context ends when the AMF replaces it, since nothing but the request says that it is the same UE.
    pub(crate) async fn rrc_connection_establishment(
        &mut self,
        initial: InitialUlRrcMessageTransfer,
    ) -> Result<(), Interrupt> {
        let (identity, cause) = match UlCcch::decode(&initial.rrc_container) {
            Ok(UlCcch::RrcSetupRequest(request)) => (Some(request.ue_identity), request.establishment_cause),
            Ok(UlCcch::RrcReestablishmentRequest(_)) => (None, EstablishmentCause::MoSignalling),
            Err(error) => {
                counters::RRC_REJECTED.inc("malformed");
                tracing::debug!(%error, "first RRC message rejected");
                return Err(Interrupt::Refused { reason: "malformed", reject: None });
            }
        };
        // Without CellGroupConfig the DU cannot serve the UE (TS 38.473 §8.4.1.2).
        let Some(cell_group) = initial.du_to_cu_rrc_container else { return Err(reject("du")) };
        if self.shared.amf().is_none() {
            return Err(reject("no_amf"));
        }
        if self.shared.ue_count() > self.shared.config.max_ues {
            return Err(reject("full"));
        }

        let transaction = self.rrc.next_transaction();
        let srb1 = SrbToAddMod {
            srb_identity: SrbIdentity::new(1).expect("SRB1 is an SRB"),
            reestablish_pdcp: false,
            discard_on_pdcp: false,
            pdcp_config: None,
        };
        let setup = RrcSetup {
            rrc_transaction_identifier: transaction,
            radio_bearer_config: RadioBearerConfig { srb_to_add_mod_list: vec![srb1], ..Default::default() },
            master_cell_group: cell_group.into(),
        };
        let setup = DlCcch::from(setup).encode().map_err(|error| {
            // A CellGroupConfig that is too long for RRC.
            tracing::warn!(%error, "RRCSetup does not encode");
            Interrupt::Failed("encoding")
        })?;
        self.send_container(0, setup.into()).await?;

        let complete = self
            .wait_for("RRCSetupComplete", RRC_LIMIT, |step| match step {
                Step::Rrc(UlDcch::RrcSetupComplete(complete))
                    if complete.rrc_transaction_identifier == transaction =>
                {
                    Ok(complete)
                }
                other => Err(other),
            })
            .await?;
        self.connected = true;
        let s_tmsi = match (identity, complete.ng_5g_s_tmsi_value) {
            (_, Some(Ng5gSTmsiValue::Ng5gSTmsi(whole))) => Some(whole),
            (Some(InitialUeIdentity::Ng5gSTmsiPart1(part1)), Some(Ng5gSTmsiValue::Ng5gSTmsiPart2(part2))) => {
                join_s_tmsi(part1, part2).ok()
            }
            _ => None,
        };
        self.initial_ue_message(complete.dedicated_nas_message, ngap_cause(cause), s_tmsi).await
    }

    async fn initial_ue_message(
        &mut self,
        nas_pdu: Bytes,
        rrc_establishment_cause: RrcEstablishmentCause,
        s_tmsi: Option<types::STmsi>,
    ) -> Result<(), Interrupt> {
        let gnb = self.shared.amf().ok_or(Interrupt::AmfLost)?;
        let n2 = self.n2.insert(gnb.open());
        let message = ngap::InitialUeMessage {
            ran_ue_ngap_id: n2.ran_ue_ngap_id(),
            nas_pdu,
            user_location: gnb.location_of(self.cell.nr_cell_id),
            rrc_establishment_cause,
            s_tmsi,
            amf_set_id: None,
            ue_context_request: true,
            allowed_nssai: None,
        };
        self.send_n2(message).await?;
        counters::PROCEDURES.inc("rrc_connection_establishment:ok");
        Ok(())
    }
}

/// RRCReject (§5.3.3.4). It goes to the UE in the command that releases it at the DU (TS 38.473 §8.3.3.2): the DU would forget the UE
/// while a message of its own is still under way.
fn reject(reason: &'static str) -> Interrupt {
    counters::RRC_REJECTS.inc(reason);
    let reject = DlCcch::from(RrcReject { wait_time: RejectWaitTime::new(WAIT_S) });
    Interrupt::Refused { reason, reject: reject.encode().ok().map(Into::into) }
}

/// NGAP's name of an establishment cause (TS 38.413 §9.3.1.111).
fn ngap_cause(cause: EstablishmentCause) -> RrcEstablishmentCause {
    match cause {
        EstablishmentCause::Emergency => RrcEstablishmentCause::Emergency,
        EstablishmentCause::HighPriorityAccess => RrcEstablishmentCause::HighPriorityAccess,
        EstablishmentCause::MtAccess => RrcEstablishmentCause::MtAccess,
        EstablishmentCause::MoSignalling => RrcEstablishmentCause::MoSignalling,
        EstablishmentCause::MoData => RrcEstablishmentCause::MoData,
        EstablishmentCause::MoVoiceCall => RrcEstablishmentCause::MoVoiceCall,
        EstablishmentCause::MoVideoCall => RrcEstablishmentCause::MoVideoCall,
        EstablishmentCause::MoSms => RrcEstablishmentCause::MoSms,
        EstablishmentCause::MpsPriorityAccess => RrcEstablishmentCause::MpsPriorityAccess,
        EstablishmentCause::McsPriorityAccess => RrcEstablishmentCause::McsPriorityAccess,
        EstablishmentCause::Spare(_) => RrcEstablishmentCause::NotAvailable,
    }
}
