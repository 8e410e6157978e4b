//! The UE-associated logical connection on N2.

use ngap::{AmfUeNgapId, Pdu, RanUeNgapId};
use tokio::sync::mpsc;

use crate::Gnb;

/// One UE's connection. Its owner reads the AMF's messages with [`Ue::next_pdu`] and answers with [`Gnb::send`]. Dropping it makes
/// the gNB forget the UE without telling the AMF.
#[derive(Debug)]
pub struct Ue {
    gnb: Gnb,
    ran_ue_ngap_id: RanUeNgapId,
    amf_ue_ngap_id: Option<AmfUeNgapId>,
    inbox: mpsc::Receiver<Pdu>,
}

impl Ue {
    pub(crate) fn new(gnb: Gnb, ran_ue_ngap_id: RanUeNgapId, inbox: mpsc::Receiver<Pdu>) -> Self {
        Self { gnb, ran_ue_ngap_id, amf_ue_ngap_id: None, inbox }
    }

    /// The gNB it goes through.
    pub fn gnb(&self) -> &Gnb {
        &self.gnb
    }

    /// The gNB's identity of the UE.
    pub fn ran_ue_ngap_id(&self) -> RanUeNgapId {
        self.ran_ue_ngap_id
    }

    /// The AMF's identity of the UE, once it has given one.
    pub fn amf_ue_ngap_id(&self) -> Option<AmfUeNgapId> {
        self.amf_ue_ngap_id
    }

    /// The AMF has given the UE another identity (TS 38.413 §8.3.4).
    pub fn learn(&mut self, amf_ue_ngap_id: AmfUeNgapId) {
        self.amf_ue_ngap_id = Some(amf_ue_ngap_id);
        self.gnb.learn(self.ran_ue_ngap_id, amf_ue_ngap_id);
    }

    /// The next message from the AMF about this UE, which nobody has answered. `None` when the gNB has forgotten the UE because
    /// its association ended or was reset. Cancel-safe.
    pub async fn next_pdu(&mut self) -> Option<Pdu> {
        let pdu = self.inbox.recv().await?;
        if let (Some(amf), None) = (pdu.ue_ids().0, self.amf_ue_ngap_id) {
            self.learn(amf);
        }
        Some(pdu)
    }
}

impl Drop for Ue {
    fn drop(&mut self) {
        self.gnb.forget(self.ran_ue_ngap_id);
    }
}
