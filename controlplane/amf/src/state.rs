//! The state machines of the standards as tables.
//!
//! - 5GMM in the network: TS 24.501 §5.1.3.4 (figure 5.1.3.4.1).
//! - RM in the AMF: TS 23.501 §5.3.2.2.4, derived from 5GMM (see [`Mm::rm`]).
//! - CM in the AMF: TS 23.501 §5.3.3.2.4.
//!
//! Transitions that are not listed are undefined: [`Mm::next`] returns `None`, and the caller counts
//! that and keeps its state. A test prints every state × event, so a change of a table is visible in
//! review.

use serde::Serialize;

/// 5GMM main states of a UE in the AMF (3GPP access).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Mm {
    /// No 5GMM context is established or it is marked detached.
    #[serde(rename = "5GMM-DEREGISTERED")]
    Deregistered,
    /// Authentication, identification, security mode control or an accept with a new 5G-GUTI is under way.
    #[serde(rename = "5GMM-COMMON-PROCEDURE-INITIATED")]
    CommonProcedureInitiated,
    /// A 5GMM context is established; sessions may exist.
    #[serde(rename = "5GMM-REGISTERED")]
    Registered,
    /// The network asked the UE to deregister and waits for the accept.
    #[serde(rename = "5GMM-DEREGISTERED-INITIATED")]
    DeregisteredInitiated,
}

/// An event of the 5GMM state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmEvent {
    /// A common procedure is requested (identification, authentication, security mode, accept with new GUTI).
    CommonProcedureRequested,
    /// A common procedure failed, or its last retransmission went unanswered.
    CommonProcedureFailed,
    /// Registration was accepted (and completed, if the UE has to complete it).
    RegistrationAccepted,
    /// Registration rejected.
    RegistrationRejected,
    /// Network-initiated deregistration requested.
    DeregistrationRequested,
    /// Deregistration was accepted by the UE or by us, or is implicit.
    DeregistrationAccepted,
    /// The common procedure of a UE that was already registered ended without result (lower layer
    /// failure, or another procedure took precedence).
    LowerLayerFailure,
}

impl Mm {
    /// Every state.
    #[cfg(test)]
    pub const ALL: [Mm; 4] =
        [Mm::Deregistered, Mm::CommonProcedureInitiated, Mm::Registered, Mm::DeregisteredInitiated];

    /// The next state, or `None` if the figure has no such transition.
    pub fn next(self, event: MmEvent) -> Option<Mm> {
        use Mm::*;
        use MmEvent::*;
        let next = match (self, event) {
            (Deregistered | Registered, CommonProcedureRequested) => CommonProcedureInitiated,
            // Within a registration, common procedures follow each other.
            (CommonProcedureInitiated, CommonProcedureRequested) => CommonProcedureInitiated,
            (CommonProcedureInitiated, LowerLayerFailure) => Registered,
            (CommonProcedureInitiated, CommonProcedureFailed | RegistrationRejected) => Deregistered,
            (Deregistered | CommonProcedureInitiated | Registered, RegistrationAccepted) => Registered,
            (Deregistered | Registered, RegistrationRejected) => Deregistered,
            (Registered | CommonProcedureInitiated, DeregistrationRequested) => DeregisteredInitiated,
            (_, DeregistrationAccepted) => Deregistered,
            _ => return None,
        };
        Some(next)
    }

    /// The registration management state of TS 23.501 §5.3.2; `before`: whether the UE was registered
    /// when the running procedure began.
    pub fn rm(self, before: bool) -> Rm {
        match self {
            Mm::Deregistered => Rm::Deregistered,
            // While the outcome is open, a UE that was registered before counts as registered.
            Mm::CommonProcedureInitiated | Mm::DeregisteredInitiated if !before => Rm::Deregistered,
            _ => Rm::Registered,
        }
    }
}

/// Registration management state (TS 23.501 §5.3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Rm {
    /// Not reachable for the network.
    #[serde(rename = "RM-DEREGISTERED")]
    Deregistered,
    /// Registered, location known to registration area accuracy.
    #[serde(rename = "RM-REGISTERED")]
    Registered,
}

/// Connection management state (TS 23.501 §5.3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Cm {
    /// No NAS signalling connection.
    #[serde(rename = "CM-IDLE")]
    Idle,
    /// NAS signalling connection over N2.
    #[serde(rename = "CM-CONNECTED")]
    Connected,
}

/// An event of the CM state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// An initial N2 message arrived for the UE.
    N2Established,
    /// AN release done, or the association is gone.
    N2Released,
}

impl Cm {
    /// Every state.
    #[cfg(test)]
    pub const ALL: [Cm; 2] = [Cm::Idle, Cm::Connected];

    /// The next state, or `None` if the figure has no such transition.
    pub fn next(self, event: CmEvent) -> Option<Cm> {
        match (self, event) {
            (Cm::Idle, CmEvent::N2Established) => Some(Cm::Connected),
            (Cm::Connected, CmEvent::N2Released) => Some(Cm::Idle),
            // A UE that lost its radio link opens a new connection before the old one was released.
            (Cm::Connected, CmEvent::N2Established) => Some(Cm::Connected),
            (Cm::Idle, CmEvent::N2Released) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MM_EVENTS: [MmEvent; 7] = [
        MmEvent::CommonProcedureRequested,
        MmEvent::CommonProcedureFailed,
        MmEvent::RegistrationAccepted,
        MmEvent::RegistrationRejected,
        MmEvent::DeregistrationRequested,
        MmEvent::DeregistrationAccepted,
        MmEvent::LowerLayerFailure,
    ];

    #[test]
    fn every_5gmm_state_and_event() {
        let mut table = String::new();
        for state in Mm::ALL {
            for event in MM_EVENTS {
                let next = state.next(event).map_or("-".to_owned(), |n| format!("{n:?}"));
                table.push_str(&format!("{state:?} + {event:?} = {next}\n"));
            }
        }
        assert_eq!(table, include_str!("state_5gmm.snapshot"));
    }

    #[test]
    fn every_cm_state_and_event() {
        let mut table = String::new();
        for state in Cm::ALL {
            for event in [CmEvent::N2Established, CmEvent::N2Released] {
                let next = state.next(event).map_or("-".to_owned(), |n| format!("{n:?}"));
                table.push_str(&format!("{state:?} + {event:?} = {next}\n"));
            }
        }
        let expected = "Idle + N2Established = Connected\nIdle + N2Released = -\n\
                        Connected + N2Established = Connected\nConnected + N2Released = Idle\n";
        assert_eq!(table, expected);
    }

    #[test]
    fn only_registered_counts_as_rm_registered_for_a_new_ue() {
        let registered = |before| Mm::ALL.into_iter().filter(|s| s.rm(before) == Rm::Registered).count();
        assert_eq!(registered(false), 1);
        assert_eq!(registered(true), 3);
    }
}
