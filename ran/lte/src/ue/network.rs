//! What the gateway begins: paging, and dedicated bearers that it creates, changes and deletes (TS 23.401 §5.3.4.3, §5.4).

use gtpv2c::endpoint::RequestId;
use gtpv2c::message::*;
use gtpv2c::tft::{Operation, PacketFilter, Tft};
use gtpv2c::{
    BearerInCreateRequest, BearerInCreateResponse, BearerInUpdateRequest, BearerResultWithOptions, Cause,
    CauseValue, Ebi,
};
use simulator::interface::Interface;

use super::{Bearer, DEFAULT_BEARER, Failure, PdnConnection, Served, Ue};
use crate::mme::FromGateway;

/// Largest identity of a bearer.
const LAST_BEARER: u8 = 15;

/// What a UE waits for between procedures.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // consumed as they come
pub enum Wake {
    /// The gateway began something, to be given to [`Ue::answer`].
    Gateway(FromGateway),
    /// A program of the idle UE has sent a packet, for which the UE needs a tunnel.
    UplinkData,
}

/// What the gateway did to a UE, and the UE's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkEvent {
    /// The idle UE was paged and is connected again.
    Paged(Served),
    /// The idle UE was paged and did not answer: the gateway knows that it was not found.
    PageIgnored,
    /// The UE was connected when it was paged.
    NeedlessPage,
    /// Dedicated bearers are there.
    BearersCreated(Vec<Ebi>),
    /// Bearers have other filters or another QoS.
    BearersUpdated(Vec<Ebi>),
    /// Dedicated bearers are gone.
    BearersDeleted(Vec<Ebi>),
    /// The gateway ended the PDN connection, for the cause that it named.
    Detached(Option<CauseValue>),
    /// The gateway has restarted and no longer knows the UE, which is detached.
    GatewayRestarted,
    /// The UE refused a request.
    Refused(CauseValue),
}

impl Ue {
    /// Waits for what the gateway begins, or for packets of an idle UE's programs. Never completes for a detached UE. Cancel-safe.
    pub async fn wait(&mut self) -> Wake {
        let Some(PdnConnection { s11, interface, radio, .. }) = &mut self.pdn else {
            return std::future::pending().await;
        };
        let uplink = async {
            match interface.as_ref().filter(|_| radio.is_none()) {
                Some(interface) => Interface::readable(interface).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(begun) = s11.next() => Wake::Gateway(begun),
            () = uplink => Wake::UplinkData,
        }
    }

    /// Waits for what the gateway begins next, and answers it. Never completes for a detached UE.
    ///
    /// # Errors
    /// A service request that belongs to the answer failed.
    pub async fn serve(&mut self) -> Result<NetworkEvent, Failure> {
        loop {
            match self.wait().await {
                Wake::Gateway(begun) => return self.answer(begun).await,
                Wake::UplinkData => {
                    self.service_request().await?;
                }
            }
        }
    }

    /// Answers what the gateway began.
    ///
    /// # Errors
    /// A service request that belongs to the answer failed.
    pub async fn answer(&mut self, begun: FromGateway) -> Result<NetworkEvent, Failure> {
        let FromGateway::Request { id, message } = begun else {
            self.pdn = None;
            return Ok(NetworkEvent::GatewayRestarted);
        };
        match message {
            Message::DownlinkDataNotification(_) => self.paged(id).await,
            Message::CreateBearerRequest(request) => self.create_bearers(id, &request).await,
            Message::UpdateBearerRequest(request) => self.update_bearers(id, &request).await,
            Message::DeleteBearerRequest(request) => self.delete_bearers(id, &request),
            _ => self.refuse(id, CauseValue::SERVICE_NOT_SUPPORTED),
        }
    }

    fn refuse(&mut self, id: RequestId, cause: CauseValue) -> Result<NetworkEvent, Failure> {
        self.pdn.as_ref().ok_or(Failure::NotAttached)?.s11.reject(id, cause);
        Ok(NetworkEvent::Refused(cause))
    }

    /// Network triggered service request (TS 23.401 §5.3.4.3). A UE that does not answer is reported as not found when the MME has
    /// paged for the configured time.
    async fn paged(&mut self, id: RequestId) -> Result<NetworkEvent, Failure> {
        let pdn = self.pdn.as_ref().ok_or(Failure::NotAttached)?;
        let cause = CauseValue::ACCEPTED.into();
        pdn.s11.respond(id, DownlinkDataNotificationAcknowledge { cause, ..Default::default() });
        if pdn.radio.is_some() {
            return Ok(NetworkEvent::NeedlessPage);
        }
        if !self.config.answers_paging {
            net::time::sleep(self.config.paging_time).await;
            let cause = CauseValue::UE_NOT_RESPONDING.into();
            pdn.s11.indicate(DownlinkDataNotificationFailureIndication { cause, ..Default::default() });
            return Ok(NetworkEvent::PageIgnored);
        }
        self.service_request().await.map(NetworkEvent::Paged)
    }

    /// Pages an idle UE for a request that the UE itself must hear. Returns whether the UE is connected.
    async fn reach(&mut self) -> Result<bool, Failure> {
        if self.is_connected() {
            return Ok(true);
        }
        if !self.config.answers_paging {
            net::time::sleep(self.config.paging_time).await;
            return Ok(false);
        }
        self.service_request().await.map(|_| true)
    }

    /// Dedicated bearer activation (TS 23.401 §5.4.1).
    async fn create_bearers(
        &mut self,
        id: RequestId,
        request: &CreateBearerRequest,
    ) -> Result<NetworkEvent, Failure> {
        if request.linked_ebi != DEFAULT_BEARER {
            return self.refuse(id, CauseValue::CONTEXT_NOT_FOUND);
        }
        match self.reach().await {
            Ok(true) => {}
            Ok(false) => return self.refuse(id, CauseValue::UNABLE_TO_PAGE_UE),
            Err(failure) => {
                // Without PDN connection there is nobody to answer.
                let _ = self.refuse(id, CauseValue::UNABLE_TO_PAGE_UE);
                return Err(failure);
            }
        }
        let pdn = self.pdn.as_mut().ok_or(Failure::NotAttached)?;
        let bearers: Vec<_> = request.bearers.iter().map(|asked| pdn.create_bearer(asked)).collect();
        pdn.install_filters();
        let cause = overall(bearers.iter().map(|bearer| bearer.cause));
        let created = accepted(bearers.iter().map(|bearer| (bearer.ebi, bearer.cause)));
        pdn.s11.respond(id, CreateBearerResponse { cause, bearers, ..Default::default() });
        Ok(if created.is_empty() {
            NetworkEvent::Refused(cause.value)
        } else {
            NetworkEvent::BearersCreated(created)
        })
    }

    /// Bearer modification (TS 23.401 §5.4.2.1).
    async fn update_bearers(
        &mut self,
        id: RequestId,
        request: &UpdateBearerRequest,
    ) -> Result<NetworkEvent, Failure> {
        match self.reach().await {
            Ok(true) => {}
            Ok(false) => return self.refuse(id, CauseValue::UNABLE_TO_PAGE_UE),
            Err(failure) => {
                let _ = self.refuse(id, CauseValue::UNABLE_TO_PAGE_UE);
                return Err(failure);
            }
        }
        let pdn = self.pdn.as_mut().ok_or(Failure::NotAttached)?;
        pdn.ambr = Some(request.apn_ambr);
        let bearers: Vec<_> = request.bearers.iter().map(|asked| pdn.update_bearer(asked)).collect();
        pdn.install_filters();
        let cause = overall(bearers.iter().map(|bearer| bearer.cause));
        let updated = accepted(bearers.iter().map(|bearer| (bearer.ebi, bearer.cause)));
        pdn.s11.respond(id, UpdateBearerResponse { cause, bearers, ..Default::default() });
        Ok(if updated.is_empty() {
            NetworkEvent::Refused(cause.value)
        } else {
            NetworkEvent::BearersUpdated(updated)
        })
    }

    /// Bearer deactivation (TS 23.401 §5.4.4.1). An idle UE learns of it later, so it is not paged.
    fn delete_bearers(
        &mut self,
        id: RequestId,
        request: &DeleteBearerRequest,
    ) -> Result<NetworkEvent, Failure> {
        let pdn = self.pdn.as_mut().ok_or(Failure::NotAttached)?;
        let ends = |ebi: &Ebi| *ebi == DEFAULT_BEARER;
        if request.linked_ebi.iter().chain(&request.ebis).any(ends) {
            let cause = CauseValue::ACCEPTED.into();
            let linked_ebi = Some(DEFAULT_BEARER);
            pdn.s11.respond(id, DeleteBearerResponse { cause, linked_ebi, ..Default::default() });
            self.pdn = None;
            return Ok(NetworkEvent::Detached(request.cause.map(|cause| cause.value)));
        }
        let bearers: Vec<_> = request.ebis.iter().map(|ebi| pdn.delete_bearer(*ebi)).collect();
        pdn.install_filters();
        let cause = overall(bearers.iter().map(|bearer| bearer.cause));
        let deleted = accepted(bearers.iter().map(|bearer| (bearer.ebi, bearer.cause)));
        pdn.s11.respond(id, DeleteBearerResponse { cause, bearers, ..Default::default() });
        Ok(if deleted.is_empty() {
            NetworkEvent::Refused(cause.value)
        } else {
            NetworkEvent::BearersDeleted(deleted)
        })
    }
}

/// The cause of an answer with a cause for each bearer (TS 29.274 §7.2.4).
fn overall(causes: impl Iterator<Item = Cause> + Clone) -> Cause {
    match (causes.clone().any(Cause::is_accepted), causes.clone().find(|cause| !cause.is_accepted())) {
        (true, Some(_)) => CauseValue::ACCEPTED_PARTIALLY.into(),
        (false, Some(refusal)) => refusal,
        (_, None) => CauseValue::ACCEPTED.into(),
    }
}

/// The bearers that were accepted.
fn accepted(bearers: impl Iterator<Item = (Ebi, Cause)>) -> Vec<Ebi> {
    bearers.filter(|(_, cause)| cause.is_accepted()).map(|(ebi, _)| ebi).collect()
}

impl PdnConnection {
    /// Sets up one dedicated bearer of a connected UE, as far as possible.
    fn create_bearer(&mut self, asked: &BearerInCreateRequest) -> BearerInCreateResponse {
        let mut answer = BearerInCreateResponse {
            ebi: asked.ebi,
            s1u_sgw_f_teid: asked.s1u_sgw_f_teid,
            ..Default::default()
        };
        answer.cause = match self.try_create_bearer(asked) {
            Ok(ebi) => {
                let radio = self.radio.as_ref();
                answer.ebi = ebi;
                answer.s1u_enb_f_teid =
                    radio.and_then(|radio| Some(radio.enb.f_teid(radio.tunnels.get(&ebi)?)));
                CauseValue::ACCEPTED.into()
            }
            Err(cause) => cause.into(),
        };
        answer
    }

    fn try_create_bearer(&mut self, asked: &BearerInCreateRequest) -> Result<Ebi, CauseValue> {
        let sgw = asked.s1u_sgw_f_teid.ok_or(CauseValue::CONDITIONAL_IE_MISSING)?;
        let tft = Tft::decode(&asked.tft.0).map_err(|error| error.cause())?;
        let Operation::Create(filters) = tft.operation else { return Err(CauseValue::TFT_SEMANTIC_ERROR) };
        let is_free = |ebi: &Ebi| !self.bearers.contains_key(ebi);
        let mut identities = (DEFAULT_BEARER.0 + 1..=LAST_BEARER).map(Ebi);
        let ebi = match asked.ebi {
            // The MME chooses.
            Ebi(0) => identities.find(is_free).ok_or(CauseValue::NO_RESOURCES)?,
            ebi => Some(ebi).filter(is_free).ok_or(CauseValue::REJECTED)?,
        };
        let enb = self.radio.as_ref().map(|radio| radio.enb.clone());
        let tunnel = enb.ok_or(CauseValue::UNABLE_TO_PAGE_UE)?.open(sgw);
        let tunnel = tunnel.map_err(|_| CauseValue::NO_RESOURCES)?;
        self.deliver_to_interface(&tunnel);
        if let Some(radio) = &mut self.radio {
            radio.tunnels.insert(ebi, tunnel);
        }
        let bearer = Bearer { qos: asked.qos, filters, sgw, pgw: asked.s5s8u_pgw_f_teid };
        self.bearers.insert(ebi, bearer);
        Ok(ebi)
    }

    fn update_bearer(&mut self, asked: &BearerInUpdateRequest) -> BearerResultWithOptions {
        let outcome = self.try_update_bearer(asked);
        let cause = outcome.err().unwrap_or(CauseValue::ACCEPTED).into();
        BearerResultWithOptions { ebi: asked.ebi, cause, ..Default::default() }
    }

    fn try_update_bearer(&mut self, asked: &BearerInUpdateRequest) -> Result<(), CauseValue> {
        let bearer = self.bearers.get_mut(&asked.ebi).ok_or(CauseValue::CONTEXT_NOT_FOUND)?;
        if let Some(tft) = &asked.tft {
            let tft = Tft::decode(&tft.0).map_err(|error| error.cause())?;
            change_filters(&mut bearer.filters, tft.operation)?;
        }
        bearer.qos = asked.qos.unwrap_or(bearer.qos);
        Ok(())
    }

    fn delete_bearer(&mut self, ebi: Ebi) -> BearerResultWithOptions {
        let known = self.bearers.remove(&ebi).is_some();
        let tunnel = self.radio.as_mut().and_then(|radio| radio.tunnels.remove(&ebi));
        self.former_packets += tunnel.map_or(0, |tunnel| tunnel.packets());
        let cause = if known { CauseValue::ACCEPTED } else { CauseValue::CONTEXT_NOT_FOUND };
        BearerResultWithOptions { ebi, cause: cause.into(), ..Default::default() }
    }
}

/// Performs the operation of a traffic flow template on a bearer's filters (TS 24.008 §10.5.6.12). A refused one changes nothing.
fn change_filters(filters: &mut Vec<PacketFilter>, operation: Operation) -> Result<(), CauseValue> {
    let has = |filters: &[PacketFilter], id: u8| filters.iter().any(|filter| filter.id == id);
    match operation {
        Operation::Ignore | Operation::NoOperation => {}
        Operation::Create(new) => *filters = new,
        Operation::Delete => filters.clear(),
        // A filter with the number of an old one replaces it (TS 24.301 §6.4.3.4).
        Operation::Add(new) => replace(filters, new),
        Operation::Replace(new) => {
            if new.iter().any(|filter| !has(filters, filter.id)) {
                return Err(CauseValue::TFT_SEMANTIC_ERROR);
            }
            replace(filters, new);
        }
        Operation::DeleteFilters(ids) => filters.retain(|filter| !ids.contains(&filter.id)),
    }
    Ok(())
}

fn replace(filters: &mut Vec<PacketFilter>, new: Vec<PacketFilter>) {
    filters.retain(|old| new.iter().all(|filter| filter.id != old.id));
    filters.extend(new);
}
