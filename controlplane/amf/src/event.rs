//! What reaches a UE's task, and what a procedure sees of it while it waits.
//!
//! [`UeEvent`] is what other tasks queue. [`Arrival`] is what is left of it once N2 and NAS have been checked.
//! [`Interrupt`] is what ends the wait of any procedure: the procedure cleans up and hands it to the task's main
//! loop, which deals with it as if it had just arrived. So collisions are resolved in one place.

use bytes::Bytes;
use nas::{GmmCause, Message};
use net::time::Instant;
use ngap::{AmfUeNgapId, Cause, Pdu, UserLocation};
use sbi::ApiRoot;
use tokio::sync::oneshot;
use types::{Ambr, PduSessionId, Supi};

use crate::gnb::{LinkDown, N2Link};

/// Queued for a UE by other tasks. Large parts are boxed: every UE has a queue, and most are empty.
#[derive(Debug)]
pub(crate) enum UeEvent {
    /// The UE opened a new connection.
    Initial(Box<Initial>),
    /// A NAS message on the current connection.
    Nas { link: AmfUeNgapId, pdu: Bytes, location: Option<UserLocation>, received: Instant },
    /// Any other N2 message of the UE.
    N2 { link: AmfUeNgapId, pdu: Box<Pdu>, received: Instant },
    /// An SMF has something for the UE or its gNB.
    Transfer(Box<Transfer>),
    /// An SMF says that a session is gone: the one with this serial ([`crate::context::PduSession::serial`]), not
    /// another that the UE established under the same identity meanwhile.
    SessionGone { session: PduSessionId, serial: u64 },
    /// Somebody in the network wants the UE deregistered.
    Deregister(Deregister),
    /// The PCF changed the policy of the UE; what is left out stays.
    PolicyUpdated { ue_ambr: Option<Ambr> },
    /// The PCF ended the policy association: the subscription alone holds.
    PolicyTerminated,
    /// The SMF at this API root restarted: it may have lost sessions of the UE.
    SmfRestarted(ApiRoot),
    /// The UDM says that the subscription has changed.
    SubscriptionChanged,
}

impl UeEvent {
    /// Name for counters.
    pub fn name(&self) -> &'static str {
        match self {
            UeEvent::Initial(_) => "initial",
            UeEvent::Nas { .. } => "nas",
            UeEvent::N2 { .. } => "n2",
            UeEvent::Transfer(_) => "transfer",
            UeEvent::SessionGone { .. } => "session_gone",
            UeEvent::Deregister(_) => "deregister",
            UeEvent::SmfRestarted(_) => "smf_restarted",
            UeEvent::PolicyUpdated { .. } => "policy_updated",
            UeEvent::PolicyTerminated => "policy_terminated",
            UeEvent::SubscriptionChanged => "subscription_changed",
        }
    }
}

/// The first message of a connection, with the connection.
#[derive(Debug)]
pub(crate) struct Initial {
    pub link: N2Link,
    pub pdu: Bytes,
    pub location: UserLocation,
    pub received: Instant,
    /// Who the UE said it is, when that is known here but could not be verified (its integrity check failed): it is
    /// authenticated as that subscriber without being asked for its identity.
    pub claimed: Option<Supi>,
    /// NAS COUNT of the message, when it passed the integrity check with the context of the task that has it.
    pub verified: Option<u32>,
}

/// Namf_Communication_N1N2MessageTransfer for one session.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub session: PduSessionId,
    /// 5GSM message for the UE.
    pub n1: Option<Bytes>,
    /// N2 session management information for the gNB.
    pub n2: Option<N2Info>,
    /// Where the SMF wants to hear that the UE could not be reached.
    pub failure_uri: Option<String>,
}

/// N2 session management information, by what the gNB is to do with it.
#[derive(Clone, Debug)]
pub(crate) enum N2Info {
    /// PDU Session Resource Setup Request Transfer.
    Setup(Bytes),
    /// PDU Session Resource Modify Request Transfer.
    Modify(Bytes),
    /// PDU Session Resource Release Command Transfer.
    Release(Bytes),
}

/// A deregistration that the network starts.
#[derive(Debug)]
pub(crate) struct Deregister {
    pub why: DeregistrationReason,
    /// The UE has been paged for it, which is done once.
    pub paged: bool,
    /// Told when done.
    pub done: Option<oneshot::Sender<()>>,
}

/// Why the network deregisters a UE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeregistrationReason {
    /// An operator says so; `reregister`: the UE is to register again at once.
    Operator { reregister: bool },
    /// The UDM says that the subscription does not exist any more: the UE is told with 5GMM cause #3.
    Withdrawn,
    /// The UE has lost slices, or the UDM says so: it is to register again at once.
    Reregistration,
    /// The UDM says that another AMF serves the UE: it is neither paged nor told (TS 23.502 §4.2.2.2.2 step 14d).
    Moved,
}

impl DeregistrationReason {
    /// Whether the UE is to register again at once.
    pub fn reregister(self) -> bool {
        matches!(self, Self::Operator { reregister: true } | Self::Reregistration)
    }

    /// Whether the UDM, having asked for it, need not be told.
    pub fn by_udm(self) -> bool {
        !matches!(self, Self::Operator { .. })
    }
}

/// What a waiting procedure may be waiting for.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "lives for one match; a box would cost an allocation per message"
)]
pub(crate) enum Arrival {
    /// A NAS message that passed the checks of TS 24.501 §4.4.
    Nas(Message),
    /// An N2 message of the current connection.
    N2(Box<Pdu>),
    /// From an SMF.
    Transfer(Box<Transfer>),
}

/// What ends a procedure's wait, whatever it waits for.
#[derive(Debug)]
pub(crate) enum Interrupt {
    /// The connection is gone.
    LinkDown(LinkDown),
    /// Another task has authenticated the same subscriber.
    Superseded,
    /// The gNB asks for the release of the connection.
    ReleaseRequested(Cause),
    /// The UE opened another connection; its message is already checked.
    Initial(Box<Initial>, Box<Message>),
    /// Somebody opened a connection with something that is no message to act on; answered with this 5GMM cause.
    Unusable(Box<Initial>, Option<GmmCause>),
    /// The UE starts something that takes precedence: registration or deregistration.
    Nas(Box<Message>),
}
