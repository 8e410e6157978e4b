//! Events for a UE's task, and what a waiting procedure sees of them.
//!
//! [`UeEvent`] is what other tasks queue. After the checks of N2 and NAS it becomes an [`Arrival`]. An
//! [`Interrupt`] ends the wait of any procedure: the procedure cleans up and returns it to the task's
//! main loop, which handles it as if it had just arrived. So collisions are resolved in one place.

use bytes::Bytes;
use nas::{GmmCause, Message};
use net::time::Instant;
use ngap::{AmfUeNgapId, Cause, Pdu, UserLocation};
use sbi::ApiRoot;
use tokio::sync::oneshot;
use types::{Ambr, PduSessionId, Supi};

use crate::gnb::{LinkDown, N2Link};

/// An event that another task queues for a UE. Large parts are boxed, because every UE has a queue and
/// most are empty.
#[derive(Debug)]
pub(crate) enum UeEvent {
    /// The UE opened a new connection.
    Initial(Box<Initial>),
    /// A NAS message on the current connection.
    Nas { link: AmfUeNgapId, pdu: Bytes, location: Option<UserLocation>, received: Instant },
    /// Any other N2 message of the UE.
    N2 { link: AmfUeNgapId, pdu: Box<Pdu>, received: Instant },
    /// An SMF's message for the UE or its gNB.
    Transfer(Box<Transfer>),
    /// An SMF has released a session: the one with this serial
    /// ([`crate::context::PduSession::serial`]), not a later one of the UE with the same identity.
    SessionGone { session: PduSessionId, serial: u64 },
    /// UDM or operator wants the UE deregistered.
    Deregister(Deregister),
    /// The PCF changed the UE's policy; values left out stay as they are.
    PolicyUpdated { ue_ambr: Option<Ambr> },
    /// The PCF ended the policy association: only the subscription applies.
    PolicyTerminated,
    /// The SMF at this API root has started: it may have lost sessions of the UE.
    SmfStarted(ApiRoot),
    /// The PCF at this API root has started: it may have lost the UE's policy association.
    PcfStarted(ApiRoot),
    /// The UDM has notified a change of the subscription.
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
            UeEvent::SmfStarted(_) => "smf_started",
            UeEvent::PcfStarted(_) => "pcf_started",
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
    /// The subscriber of the UE's claimed identity, if the identity is known here and the integrity
    /// check failed. The UE is authenticated as that subscriber and not asked for its identity.
    pub claimed: Option<Supi>,
    /// NAS COUNT of the message, if it passed the integrity check with the context of the receiving
    /// task.
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
    /// The UE is not paged for this transfer (TS 29.518 §5.2.2.3.1, `skipInd`).
    pub skip_if_idle: bool,
    /// The SMF's URI for a notification that the UE could not be reached.
    pub failure_uri: Option<String>,
}

/// N2 session management information, by the N2 procedure for it.
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
    /// The UE has been paged for this already; that is done once.
    pub paged: bool,
    /// Notified when the deregistration is complete.
    pub done: Option<oneshot::Sender<()>>,
}

/// Why the network deregisters a UE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeregistrationReason {
    /// An operator asked for it; with `reregister` the UE is to register again at once.
    Operator { reregister: bool },
    /// The UDM reports that the subscription was removed: the UE gets 5GMM cause #3.
    Withdrawn,
    /// The UDM asks for it: the UE is to register again at once.
    Reregistration,
    /// The UE has lost an allowed slice, as the AMF finds: it is to register again at once. Should it not return, the
    /// UDM must not believe that this AMF serves it.
    SliceRemoved,
    /// The UDM says that another AMF serves the UE: it is neither paged nor told (TS 23.502 §4.2.2.2.2 step 14d).
    Moved,
}

impl DeregistrationReason {
    /// Whether the UE is to register again at once.
    pub fn reregister(self) -> bool {
        matches!(self, Self::Operator { reregister: true } | Self::Reregistration | Self::SliceRemoved)
    }

    /// Whether the UDM knows already that this AMF does not serve the UE any more.
    pub fn by_udm(self) -> bool {
        matches!(self, Self::Withdrawn | Self::Reregistration | Self::Moved)
    }
}

/// An event that a procedure may be waiting for.
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
    /// A message of an SMF.
    Transfer(Box<Transfer>),
}

/// An event that ends a procedure's wait, whatever the procedure waits for.
#[derive(Debug)]
pub(crate) enum Interrupt {
    /// The connection was lost.
    LinkDown(LinkDown),
    /// Another task has authenticated the same subscriber.
    Superseded,
    /// The gNB asks for the release of the connection.
    ReleaseRequested(Cause),
    /// The UE opened another connection; its first message has been checked.
    Initial(Box<Initial>, Box<Message>),
    /// A connection was opened with a message that cannot be used; it is answered with this 5GMM cause.
    Unusable(Box<Initial>, Option<GmmCause>),
    /// The UE starts a procedure that takes precedence: registration or deregistration.
    Nas(Box<Message>),
}
