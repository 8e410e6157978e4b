//! Paging (TS 38.473 §8.7): from F1AP to PCCH.

use f1ap::ie::PagingIdentity;
use f1ap::message::Paging;
use rrc::Pcch;
use rrc::message::{FullIRnti, PagingRecord, PagingUeIdentity};

use super::counters::{PAGINGS, RRC_DROPPED};
use super::{Commands, Machine};

impl Machine {
    /// Pages a UE at once: UEs of the simulated link listen always, so there are no occasions to wait for.
    pub(super) fn paging(&mut self, paging: &Paging, commands: &mut dyn Commands) {
        if !paging.cells.iter().any(|cell| cell.nr_cgi == self.cell.ncgi()) {
            return RRC_DROPPED.inc("other_cell");
        }
        let ue_identity = match paging.paging_identity {
            PagingIdentity::CnUe(s_tmsi) => PagingUeIdentity::Ng5gSTmsi(s_tmsi),
            PagingIdentity::RanUe(i_rnti) => {
                let Some(i_rnti) = i64::try_from(i_rnti).ok().and_then(FullIRnti::new) else {
                    return RRC_DROPPED.inc("encode");
                };
                PagingUeIdentity::FullIRnti(i_rnti)
            }
        };
        let record = PagingRecord { ue_identity, non_3gpp_access: false };
        let message = rrc::message::Paging { paging_record_list: vec![record] };
        let Ok(pcch) = Pcch::from(message).encode() else { return RRC_DROPPED.inc("encode") };
        if let Err(error) = commands.page(pcch.to_vec()) {
            tracing::debug!(%error, "a UE is not paged");
            return RRC_DROPPED.inc("refused");
        }
        PAGINGS.inc();
    }
}
