//! How a UE reaches the network: through a gNB in one piece, or in a cell of a gNB in parts.
//!
//! A gNB in one piece ([`Gnb`]) is in this process, and nothing lies between it and the UE. A cell ([`ue::Cell`]) is reached by
//! radio: random access, RRC, and bearers with PDCP and RLC. [`crate::Ue`] does the same in both cases.

use std::fmt;

use bytes::Bytes;
use ngap::{Cause, RrcEstablishmentCause};
use pktio::tun::TunPort;
use types::{Key, PduSessionId, Plmn, STmsi, Tai};
use ue::EstablishmentCause;

use crate::gnb::{self, Gnb};
use crate::ue::Failure;

/// Where a UE camps.
#[derive(Debug, Clone)]
pub enum Access {
    /// On a gNB in one piece.
    Gnb(Gnb),
    /// In a cell of a gNB in parts.
    Cell(ue::Cell),
}

impl From<Gnb> for Access {
    fn from(gnb: Gnb) -> Self {
        Self::Gnb(gnb)
    }
}

impl From<ue::Cell> for Access {
    fn from(cell: ue::Cell) -> Self {
        Self::Cell(cell)
    }
}

/// Why a connection was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseCause {
    /// As the AMF told the gNB.
    Amf(Cause),
    /// RRCRelease, which says no cause.
    Rrc,
}

impl From<Cause> for ReleaseCause {
    fn from(cause: Cause) -> Self {
        Self::Amf(cause)
    }
}

impl fmt::Display for ReleaseCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amf(cause) => cause.fmt(f),
            Self::Rrc => f.write_str("RRC release"),
        }
    }
}

/// Radio resources of a PDU session.
#[derive(Debug)]
pub enum Bearer {
    /// A tunnel between gNB and UPF.
    Gnb(gnb::Bearer),
    /// Data radio bearers.
    Cell(ue::Bearer),
}

impl Bearer {
    /// The session.
    pub fn id(&self) -> PduSessionId {
        match self {
            Self::Gnb(bearer) => bearer.id,
            Self::Cell(bearer) => bearer.id(),
        }
    }

    /// The tunnel and what else a gNB in one piece knows of the session.
    pub fn tunnel(&self) -> Option<&gnb::Bearer> {
        match self {
            Self::Gnb(bearer) => Some(bearer),
            Self::Cell(_) => None,
        }
    }

    /// Packets in both directions.
    pub(crate) fn packets(&self) -> u64 {
        match self {
            Self::Gnb(bearer) => bearer.tunnel.packets(),
            Self::Cell(bearer) => bearer.packets(),
        }
    }

    /// Connects a TUN device.
    pub(crate) fn attach(&self, tun: TunPort) {
        match self {
            Self::Gnb(bearer) => bearer.tunnel.attach(tun),
            Self::Cell(bearer) => bearer.attach(tun),
        }
    }

    /// Sends an IP packet.
    pub(crate) fn send(&self, packet: Vec<u8>) {
        match self {
            Self::Gnb(bearer) => bearer.tunnel.send(packet),
            Self::Cell(bearer) => bearer.send(packet),
        }
    }

    /// The next IP packet received. With a TUN device, only router advertisements arrive here. Cancel-safe.
    pub(crate) async fn received(&mut self) -> Option<Bytes> {
        match self {
            Self::Gnb(bearer) => bearer.tunnel.received().await,
            Self::Cell(bearer) => bearer.received().await,
        }
    }
}

/// What reaches a UE through its connection.
#[derive(Debug)]
pub(crate) enum Downlink {
    /// A NAS message.
    Nas(Bytes),
    /// Security of the radio connection begins: [`Connection::activate_security`] follows.
    SecurityMode,
    /// Radio resources of sessions are there. [`Connection::confirm`] follows when the UE has taken them.
    SessionsUp(Vec<Bearer>),
    /// Radio resources of a session are gone.
    SessionDown(PduSessionId),
    /// The connection is released; nothing follows.
    Released(ReleaseCause),
    /// The AMF sent an Error Indication about a message of this UE.
    ErrorIndication(ngap::ErrorIndication),
}

/// A UE's connection.
#[derive(Debug)]
pub(crate) enum Connection {
    /// Of a gNB in one piece.
    Gnb(gnb::Connection),
    /// An RRC connection.
    Cell(ue::Connection),
}

/// A UE's registration for pages, which ends when this is dropped.
#[derive(Debug)]
pub(crate) enum Camping {
    /// On a gNB in one piece.
    Gnb(gnb::Camping),
    /// In a cell.
    Cell(ue::Camping),
}

impl Access {
    /// The gNB in one piece, if it is one.
    pub fn gnb(&self) -> Option<&Gnb> {
        match self {
            Self::Gnb(gnb) => Some(gnb),
            Self::Cell(_) => None,
        }
    }

    /// The network that the cell broadcasts.
    pub(crate) fn plmn(&self) -> Plmn {
        match self {
            Self::Gnb(gnb) => gnb.config().plmn,
            Self::Cell(cell) => cell.tai().plmn,
        }
    }

    /// The tracking area that the cell broadcasts.
    pub(crate) fn tai(&self) -> Tai {
        match self {
            Self::Gnb(gnb) => Tai { plmn: gnb.config().plmn, tac: gnb.config().tac },
            Self::Cell(cell) => cell.tai(),
        }
    }

    /// Lets a UE receive pages of `s_tmsi`.
    pub(crate) fn camp(&self, s_tmsi: STmsi) -> Camping {
        match self {
            Self::Gnb(gnb) => Camping::Gnb(gnb.camp(s_tmsi)),
            Self::Cell(cell) => Camping::Cell(cell.camp(s_tmsi)),
        }
    }

    /// Opens a connection. The network learns of it by the UE's first message.
    ///
    /// # Errors
    /// No cell answers, or it refuses.
    pub(crate) async fn connect(
        &self,
        cause: RrcEstablishmentCause,
        s_tmsi: Option<STmsi>,
    ) -> Result<Connection, Failure> {
        match self {
            Self::Gnb(gnb) => Ok(Connection::Gnb(gnb.open(cause))),
            Self::Cell(cell) => {
                let connected = cell.connect(establishment_cause(cause), s_tmsi).await;
                connected.map(Connection::Cell).map_err(|error| Failure::NoConnection(error.to_string()))
            }
        }
    }
}

/// RRC's name of an establishment cause (TS 38.331 §6.2.2).
fn establishment_cause(cause: RrcEstablishmentCause) -> EstablishmentCause {
    match cause {
        RrcEstablishmentCause::Emergency => EstablishmentCause::Emergency,
        RrcEstablishmentCause::HighPriorityAccess => EstablishmentCause::HighPriorityAccess,
        RrcEstablishmentCause::MtAccess => EstablishmentCause::MtAccess,
        RrcEstablishmentCause::MoData => EstablishmentCause::MoData,
        RrcEstablishmentCause::MoVoiceCall => EstablishmentCause::MoVoiceCall,
        RrcEstablishmentCause::MoVideoCall => EstablishmentCause::MoVideoCall,
        RrcEstablishmentCause::MoSms => EstablishmentCause::MoSms,
        RrcEstablishmentCause::MpsPriorityAccess => EstablishmentCause::MpsPriorityAccess,
        RrcEstablishmentCause::McsPriorityAccess => EstablishmentCause::McsPriorityAccess,
        _ => EstablishmentCause::MoSignalling,
    }
}

impl Connection {
    /// Sends a NAS message; `s_tmsi` is the temporary identity that the UE gives the gNB with the first one.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) async fn send_nas(&mut self, octets: Bytes, s_tmsi: Option<STmsi>) -> Result<(), Failure> {
        match self {
            Self::Gnb(connection) => {
                connection.send_nas(octets, s_tmsi).await.map_err(|_| Failure::ConnectionLost)
            }
            Self::Cell(connection) => connection.send_nas(octets).await.map_err(|_| Failure::ConnectionLost),
        }
    }

    /// What comes next; `None` when the connection is lost. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Downlink> {
        Some(match self {
            Self::Gnb(connection) => match connection.next().await? {
                gnb::Downlink::Nas(octets) => Downlink::Nas(octets),
                gnb::Downlink::SessionsUp(bearers) => {
                    Downlink::SessionsUp(bearers.into_iter().map(Bearer::Gnb).collect())
                }
                gnb::Downlink::SessionDown(id) => Downlink::SessionDown(id),
                gnb::Downlink::Released(cause) => Downlink::Released(cause.into()),
                gnb::Downlink::ErrorIndication(error) => Downlink::ErrorIndication(error),
            },
            Self::Cell(connection) => match connection.next().await? {
                ue::Downlink::Nas(octets) => Downlink::Nas(octets),
                ue::Downlink::SecurityMode => Downlink::SecurityMode,
                ue::Downlink::SessionsUp(bearers) => {
                    Downlink::SessionsUp(bearers.into_iter().map(Bearer::Cell).collect())
                }
                ue::Downlink::SessionDown(id) => Downlink::SessionDown(id),
                ue::Downlink::Released => Downlink::Released(ReleaseCause::Rrc),
            },
        })
    }

    /// Gives the radio connection its key after [`Downlink::SecurityMode`].
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) async fn activate_security(&mut self, k_gnb: &Key<32>) -> Result<(), Failure> {
        match self {
            Self::Gnb(_) => Ok(()),
            Self::Cell(connection) => {
                connection.activate_security(k_gnb).await.map_err(|_| Failure::ConnectionLost)
            }
        }
    }

    /// The UE has taken the resources of [`Downlink::SessionsUp`]. `None` when the connection is lost.
    pub(crate) async fn confirm(&mut self) -> Option<()> {
        match self {
            Self::Gnb(connection) => connection.confirm().await,
            // The UE has told the gNB in RRCReconfigurationComplete.
            Self::Cell(_) => Some(()),
        }
    }
}

impl Camping {
    /// Waits for a page. A page that came since the last call completes the call at once. Cancel-safe.
    pub(crate) async fn paged(&self) {
        match self {
            Self::Gnb(camping) => camping.paged().await,
            Self::Cell(camping) => camping.paged().await,
        }
    }

    /// Whether the UE camps on `access`.
    pub(crate) fn is_on(&self, access: &Access) -> bool {
        match (self, access) {
            (Self::Gnb(camping), Access::Gnb(gnb)) => camping.is_on(gnb),
            (Self::Cell(camping), Access::Cell(cell)) => camping.is_on(cell),
            _ => false,
        }
    }

    /// Forgets a page that has been answered.
    pub(crate) fn clear(&mut self) {
        match self {
            Self::Gnb(camping) => camping.clear(),
            Self::Cell(camping) => camping.clear(),
        }
    }
}
