//! UE-requested PDU session establishment (TS 23.502 §4.3.2.2.1, TS 24.501 §6.4.1).

use std::net::Ipv6Addr;
use std::time::Duration;

use nas::gmm::UlNasTransport;
use nas::gsm::{EstablishmentAccept, EstablishmentRequest};
use nas::{Message, Pco, PcoItem, RequestType, SmBody, SmMessage};
use types::{Dnn, PduSessionId, PduSessionType, Pti, SNssai, SscMode};

use crate::router_discovery;
use crate::ue::{Failure, Interface, Received, Session, Ue};

/// The session that the UE asks for.
#[derive(Debug, Clone)]
pub struct SessionRequest {
    /// The session's identity.
    pub id: PduSessionId,
    /// Its type.
    pub session_type: PduSessionType,
    /// Data network; `None`: the default one.
    pub dnn: Option<Dnn>,
    /// Slice; `None`: the network chooses.
    pub slice: Option<SNssai>,
}

impl Ue {
    /// The session of the configuration, as session 1.
    pub fn default_session(&self) -> Option<SessionRequest> {
        let session_type = self.config.session?;
        let id = PduSessionId::new(1).expect("1 is a PDU session identity");
        let (dnn, slice) = (self.config.dnn.clone(), self.config.slice);
        Some(SessionRequest { id, session_type, dnn, slice })
    }

    /// Sets up a session. Returns it with the time from the request until its accept and radio
    /// resources have arrived. An IPv6 session gets its prefix with [`Ue::solicit_router`].
    ///
    /// # Errors
    /// Why not.
    pub async fn establish_session(
        &mut self,
        request: SessionRequest,
    ) -> Result<(&mut Session, Duration), Failure> {
        let id = request.id;
        let pti = self.next_pti();
        let message = self.establishment_request(request, pti)?;
        // A new session replaces an earlier one with the same identity.
        self.sessions.remove(&id);
        let started = net::time::now();
        self.send(&message).await?;
        let accept = self.establishment_answer(id, pti).await?;
        let bearer = self.bearers.remove(&id).ok_or(Failure::Missing("radio bearer"))?;
        let took = net::time::now().saturating_duration_since(started);
        let session = Session::new(id, accept, bearer, self.config.mtu);
        self.sessions.insert(id, session);
        self.session_lost &= self.default_session().is_some_and(|default| default.id != id);
        let session = self.sessions.get_mut(&id).ok_or(Failure::Missing("session"))?;
        Ok((session, took))
    }

    /// UL NAS TRANSPORT with PDU SESSION ESTABLISHMENT REQUEST.
    pub fn establishment_request(&self, request: SessionRequest, pti: Pti) -> Result<Message, Failure> {
        let mut establishment = EstablishmentRequest::new(request.session_type);
        establishment.ssc_mode = Some(SscMode::Mode1);
        let mut items = Vec::new();
        if request.session_type.has_ipv4() {
            items.extend([PcoItem::DnsIpv4Request, PcoItem::Ipv4MtuRequest]);
        }
        if request.session_type.has_ipv6() {
            items.push(PcoItem::DnsIpv6Request);
        }
        establishment.pco = Some(Pco { items });
        let sm = SmMessage::new(request.id, pti, SmBody::EstablishmentRequest(establishment));
        let payload = sm.encode().map_err(|error| Failure::Build(error.to_string()))?;
        let mut transport = UlNasTransport::n1_sm(request.id, payload);
        transport.request_type = Some(RequestType::Initial);
        (transport.dnn, transport.s_nssai) = (request.dnn, request.slice);
        Ok(Message::UlNasTransport(transport))
    }

    /// Waits for the accept and the radio resources, in either order.
    async fn establishment_answer(
        &mut self,
        id: PduSessionId,
        pti: Pti,
    ) -> Result<EstablishmentAccept, Failure> {
        let mut accept = None;
        loop {
            if accept.is_some() && self.bearers.contains_key(&id) {
                return accept.ok_or(Failure::Missing("accept"));
            }
            match self.await_answer("PDU Session Establishment Accept").await? {
                Received::Nas(Message::DlNasTransport(transport)) if transport.pdu_session_id == Some(id) => {
                    if let Some(cause) = transport.cause {
                        return Err(Failure::Rejected(cause));
                    }
                    match SmMessage::decode(&transport.payload).map(|decoded| decoded.message) {
                        Ok(SmMessage { body: SmBody::EstablishmentAccept(accepted), pti: of, .. })
                            if of == pti =>
                        {
                            accept = Some(accepted);
                        }
                        Ok(SmMessage { body: SmBody::EstablishmentReject(reject), pti: of, .. })
                            if of == pti =>
                        {
                            return Err(Failure::SessionRejected(reject.cause));
                        }
                        Ok(SmMessage { body: SmBody::Status(status), .. }) => {
                            return Err(Failure::SessionRejected(status.cause));
                        }
                        _ => self.network_sm_message(&transport).await.map(drop)?,
                    }
                }
                Received::SessionsUp => {}
                other => self.handle_unrelated(other).await?,
            }
        }
    }

    /// Router discovery on an IPv6 session (TS 23.501 §5.8.2.2.3): asks for an advertisement and forms
    /// the UE's address from its prefix and the interface identifier given in the accept.
    ///
    /// # Errors
    /// No advertisement, or no IPv6 session.
    pub async fn solicit_router(&mut self, id: PduSessionId) -> Result<(Ipv6Addr, Duration), Failure> {
        let session = self.sessions.get_mut(&id).ok_or(Failure::Missing("session"))?;
        let source = session.link_local().ok_or(Failure::Missing("interface identifier"))?;
        let started = net::time::now();
        let address = router_discovery::discover(session, source).await?;
        session.ipv6 = Some(address);
        Ok((address, net::time::now().saturating_duration_since(started)))
    }

    /// Gives a session a TUN device in a new namespace.
    ///
    /// # Errors
    /// No permission, or no such session.
    pub async fn open_interface(&mut self, id: PduSessionId) -> Result<&Interface, Failure> {
        let session = self.sessions.get_mut(&id).ok_or(Failure::Missing("session"))?;
        let interface = Interface::set_up(session.link()).await?;
        Ok(session.use_interface(interface))
    }

    /// The next procedure transaction identity: 1 to 254 in turn.
    pub fn next_pti(&mut self) -> Pti {
        self.last_pti = if self.last_pti >= 254 { 1 } else { self.last_pti + 1 };
        Pti(self.last_pti)
    }
}
