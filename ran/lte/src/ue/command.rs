//! Changes that the UE, its eNB or its subscription ask for: a command of the MME, which the gateway answers with a request of its
//! own or refuses (TS 29.274 §7.6).
//!
//! The UE waits for the end of a command, and handles later what the gateway begins meanwhile.

use gtpv2c::message::*;
use gtpv2c::tft::{Operation, PacketFilter, Tft};
use gtpv2c::{Ambr, BearerInDeleteCommand, BearerInModifyCommand, BearerQos, Ebi, FlowQos, Pti, RatType};

use super::{DEFAULT_BEARER, Failure, NetworkEvent, Ue};

/// Procedure transaction identities of UEs (TS 24.007 §11.2.3.1a).
const FIRST_PTI: u8 = 1;
const LAST_PTI: u8 = 254;

impl Ue {
    /// UE requested bearer resource modification (TS 23.401 §5.4.5): asks for a bearer, or for room in one, for what the filters say.
    ///
    /// # Errors
    /// The gateway refuses or does not answer, or the filters are none that a UE can ask for.
    pub async fn request_bearer(
        &mut self,
        filters: Vec<PacketFilter>,
        flow: FlowQos,
    ) -> Result<NetworkEvent, Failure> {
        let command = self.resource_command(Operation::Create(filters), Some(flow), None)?;
        self.command(command).await
    }

    /// As [`Ue::request_bearer`], to give back a dedicated bearer with all its filters.
    ///
    /// # Errors
    /// The gateway refuses or does not answer, or there is no such bearer.
    pub async fn give_back(&mut self, ebi: Ebi) -> Result<NetworkEvent, Failure> {
        let pdn = self.pdn.as_ref().ok_or(Failure::NotAttached)?;
        let bearer = pdn.bearers.get(&ebi).ok_or(Failure::Lacks("such bearer"))?;
        let filters = bearer.filters.iter().map(|filter| filter.id).collect();
        let command = self.resource_command(Operation::DeleteFilters(filters), None, Some(ebi))?;
        self.command(command).await
    }

    fn resource_command(
        &mut self,
        operation: Operation,
        flow_qos: Option<FlowQos>,
        ebi: Option<Ebi>,
    ) -> Result<BearerResourceCommand, Failure> {
        let tad = Tft { operation, parameters: Vec::new() }.encode();
        let tad = Some(tad.map_err(|_| Failure::Lacks("encoding of the UE's filters"))?);
        self.last_pti = if self.last_pti >= LAST_PTI { FIRST_PTI } else { self.last_pti + 1 };
        Ok(BearerResourceCommand {
            linked_ebi: DEFAULT_BEARER,
            pti: Pti(self.last_pti),
            flow_qos,
            tad,
            rat_type: Some(RatType::EUTRAN),
            serving_network: Some(self.config.plmn),
            uli: Some(self.enb.location(self.config.plmn, self.config.tac)),
            ebi,
            ..Default::default()
        })
    }

    /// The eNB has given up dedicated bearers (TS 23.401 §5.4.4.2).
    ///
    /// # Errors
    /// The gateway refuses or does not answer.
    pub async fn lose_bearers(&mut self, bearers: &[Ebi]) -> Result<NetworkEvent, Failure> {
        let bearer = |ebi: &Ebi| BearerInDeleteCommand { ebi: *ebi, ..Default::default() };
        let uli = Some(self.enb.location(self.config.plmn, self.config.tac));
        let bearers = bearers.iter().map(bearer).collect();
        self.command(DeleteBearerCommand { bearers, uli, ..Default::default() }).await
    }

    /// The subscription has changed (TS 23.401 §5.4.2.2).
    ///
    /// # Errors
    /// The gateway refuses or does not answer.
    pub async fn change_subscription(
        &mut self,
        apn_ambr: Ambr,
        qos: BearerQos,
    ) -> Result<NetworkEvent, Failure> {
        let bearer = BearerInModifyCommand { ebi: DEFAULT_BEARER, qos: Some(qos) };
        self.command(ModifyBearerCommand { apn_ambr, bearer, ..Default::default() }).await
    }

    /// Sends a command, and answers the request that it triggers. A refused command changes nothing: "Context not found" may mean the
    /// bearer, and that the gateway does not know the UE shows in the next request.
    async fn command(&mut self, command: impl Into<Message>) -> Result<NetworkEvent, Failure> {
        let pdn = self.pdn.as_ref().ok_or(Failure::NotAttached)?;
        let begun = pdn.s11.command(command).await?;
        self.answer(begun).await
    }
}
