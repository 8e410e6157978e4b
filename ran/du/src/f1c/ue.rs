//! The UEs of a DU as F1AP knows them: their numbers, states and ends.

use std::collections::BTreeMap;

use f1ap::cause::{Cause, RadioNetwork, Transport};
use f1ap::ie::{DrbId, GnbCuUeF1apId, GnbDuUeF1apId, UeAssociation};
use f1ap::message::UeContextReleaseRequest;

use super::counters::{ACCESSES, REJECTED, RELEASED};
use super::drb::{self, Drb};
use super::{Commands, Machine};

const SECOND_NS: u64 = 1_000_000_000;
/// How long a UE may take to its first message. The user plane ends random access earlier; this is for when it could not tell.
const ACCESS_NS: u64 = 5 * SECOND_NS;
/// How long the CU may take to answer the first message of a UE.
const ANSWER_NS: u64 = 5 * SECOND_NS;
/// How long the CU may take to command the release that the DU has asked for: it asks the AMF first.
const COMMAND_NS: u64 = 10 * SECOND_NS;

/// Why a UE cannot be served whose tunnel leads nowhere.
pub(super) const NO_TUNNEL: Cause = Cause::Transport(Transport::TransportResourceUnavailable);

/// Where a UE is between its random access and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// It has a C-RNTI, and has sent nothing yet.
    Accessed,
    /// The CU has its first message, which is this.
    Waiting {
        /// UL-CCCH-Message.
        first: Vec<u8>,
    },
    /// The CU has answered.
    Connected {
        /// The CU's number of the UE.
        cu: u32,
        /// The exchange on SRB0, until the UE has shown by a message on SRB1 that it has got the answer.
        srb0: Option<Srb0>,
    },
    /// The DU has asked for its release.
    Leaving {
        /// The CU's number of the UE.
        cu: u32,
        /// Whether a last message can reach it.
        reachable: bool,
    },
}

/// What was exchanged on SRB0, which has no retransmission of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Srb0 {
    /// UL-CCCH-Message of the UE.
    pub(super) first: Vec<u8>,
    /// DL-CCCH-Message of the CU.
    pub(super) answer: Option<Vec<u8>>,
}

/// A UE.
#[derive(Debug)]
pub(super) struct Ue {
    pub(super) c_rnti: u16,
    /// The DU's number of it.
    pub(super) id: u32,
    pub(super) state: State,
    /// Whether SRB2 is set up.
    pub(super) srb2: bool,
    /// By DRB ID.
    pub(super) drbs: BTreeMap<u8, Drb>,
    /// When the state's time is over.
    due_ns: Option<u64>,
}

impl Ue {
    /// The CU's number of it.
    pub(super) fn cu(&self) -> Option<u32> {
        match self.state {
            State::Accessed | State::Waiting { .. } => None,
            State::Connected { cu, .. } | State::Leaving { cu, .. } => Some(cu),
        }
    }

    /// Whether a DRB has this logical channel.
    pub(super) fn has_channel(&self, lcid: u8) -> bool {
        self.drbs.keys().any(|id| drb::lcid(DrbId(*id)) == lcid)
    }

    /// Both numbers, as a Reset has them.
    pub(super) fn association(&self) -> UeAssociation {
        UeAssociation {
            gnb_cu_ue_f1ap_id: self.cu().map(GnbCuUeF1apId),
            gnb_du_ue_f1ap_id: Some(GnbDuUeF1apId(self.id)),
        }
    }
}

impl Machine {
    /// A UE has got a C-RNTI.
    pub(super) fn random_access(&mut self, c_rnti: u16, now_ns: u64, commands: &mut dyn Commands) {
        ACCESSES.inc();
        if let Some(before) = self.forget(c_rnti) {
            // The user plane had given up the UE that had this C-RNTI.
            self.resetting.add(before.association());
            self.reset_is_due(now_ns);
        }
        if !self.is_set_up() {
            RELEASED.inc("no_cu");
            return release(commands, c_rnti, None);
        }
        while self.by_du_id.contains_key(&self.next_du_id) {
            self.next_du_id = self.next_du_id.wrapping_add(1);
        }
        let id = self.next_du_id;
        self.next_du_id = id.wrapping_add(1);
        let ue = Ue { c_rnti, id, state: State::Accessed, srb2: false, drbs: BTreeMap::new(), due_ns: None };
        self.by_du_id.insert(id, c_rnti);
        self.ues.insert(c_rnti, ue);
        self.set_timer(c_rnti, Some(now_ns + ACCESS_NS));
    }

    /// Sets a UE's state with the time that it may last.
    pub(super) fn set_state(&mut self, c_rnti: u16, state: State, now_ns: u64) {
        let lasts_ns = match state {
            State::Accessed => Some(ACCESS_NS),
            State::Waiting { .. } => Some(ANSWER_NS),
            State::Connected { .. } => None,
            State::Leaving { .. } => Some(COMMAND_NS),
        };
        if let Some(ue) = self.ues.get_mut(&c_rnti) {
            ue.state = state;
        }
        self.set_timer(c_rnti, lasts_ns.map(|lasts_ns| now_ns + lasts_ns));
    }

    fn set_timer(&mut self, c_rnti: u16, due_ns: Option<u64>) {
        let Some(ue) = self.ues.get_mut(&c_rnti) else { return };
        if let Some(before_ns) = std::mem::replace(&mut ue.due_ns, due_ns) {
            self.timers.remove(&(before_ns, c_rnti));
        }
        if let Some(due_ns) = due_ns {
            self.timers.insert((due_ns, c_rnti));
        }
    }

    /// The UE that a message of the CU is about. A message about a UE that waits for its answer tells the CU's number of it.
    pub(super) fn find(&mut self, cu: GnbCuUeF1apId, du: GnbDuUeF1apId, now_ns: u64) -> Result<u16, Cause> {
        let found = self.look_up(cu, du, now_ns);
        found.map_err(|cause| {
            REJECTED.inc("unknown_ue");
            Cause::RadioNetwork(cause)
        })
    }

    fn look_up(&mut self, cu: GnbCuUeF1apId, du: GnbDuUeF1apId, now_ns: u64) -> Result<u16, RadioNetwork> {
        let c_rnti = self.by_du_id.get(&du.0).copied();
        let ue = c_rnti.and_then(|c_rnti| self.ues.get_mut(&c_rnti));
        let Some(ue) = ue.filter(|ue| ue.state != State::Accessed) else {
            return Err(RadioNetwork::UnknownOrAlreadyAllocatedGnbDuUeF1apId);
        };
        let c_rnti = ue.c_rnti;
        let State::Waiting { first } = &mut ue.state else {
            return match ue.cu() {
                Some(known) if known == cu.0 => Ok(c_rnti),
                _ => Err(RadioNetwork::UnknownOrInconsistentPairOfUeF1apId),
            };
        };
        if self.by_cu_id.contains_key(&cu.0) {
            return Err(RadioNetwork::UnknownOrAlreadyAllocatedGnbCuUeF1apId);
        }
        let srb0 = Some(Srb0 { first: std::mem::take(first), answer: None });
        self.by_cu_id.insert(cu.0, c_rnti);
        self.set_state(c_rnti, State::Connected { cu: cu.0, srb0 }, now_ns);
        Ok(c_rnti)
    }

    /// Takes a UE out. The user plane is told by the caller.
    pub(super) fn forget(&mut self, c_rnti: u16) -> Option<Ue> {
        self.set_timer(c_rnti, None);
        let ue = self.ues.remove(&c_rnti)?;
        self.by_du_id.remove(&ue.id);
        if let Some(cu) = ue.cu() {
            self.by_cu_id.remove(&cu);
        }
        Some(ue)
    }

    /// Asks the CU to release a UE (§8.3.2). One that the CU has not answered yet is released here.
    pub(super) fn request_release(
        &mut self,
        c_rnti: u16,
        cause: Cause,
        reachable: bool,
        now_ns: u64,
        commands: &mut dyn Commands,
    ) {
        let Some(ue) = self.ues.get_mut(&c_rnti) else {
            // It is one of the user plane's only, which should not be.
            return release(commands, c_rnti, None);
        };
        let id = ue.id;
        match &mut ue.state {
            State::Accessed | State::Waiting { .. } => {
                RELEASED.inc("before_answer");
                self.forget(c_rnti);
                release(commands, c_rnti, None);
            }
            // It was asked for before; but the UE may have become unreachable since.
            State::Leaving { reachable: before, .. } => *before &= reachable,
            State::Connected { cu, .. } => {
                let cu = *cu;
                let request = UeContextReleaseRequest {
                    gnb_cu_ue_f1ap_id: GnbCuUeF1apId(cu),
                    gnb_du_ue_f1ap_id: GnbDuUeF1apId(id),
                    cause,
                };
                self.send(Some(id), request);
                self.set_state(c_rnti, State::Leaving { cu, reachable }, now_ns);
            }
        }
    }

    /// A UE has released its C-RNTI.
    pub(super) fn ue_has_gone(&mut self, c_rnti: u16, now_ns: u64, commands: &mut dyn Commands) {
        let is_known_to_cu = self.ues.get(&c_rnti).is_some_and(|ue| ue.cu().is_some());
        if is_known_to_cu {
            let cause = Cause::RadioNetwork(RadioNetwork::RlFailureOthers);
            self.request_release(c_rnti, cause, false, now_ns, commands);
        } else {
            if self.forget(c_rnti).is_some() {
                RELEASED.inc("by_ue");
            }
            if let Err(error) = commands.remove_ue(c_rnti) {
                tracing::debug!(c_rnti, %error, "a UE that has gone is not removed");
            }
        }
    }

    /// The time of a UE's state is over. Its timer has been taken out.
    pub(super) fn ue_is_due(&mut self, c_rnti: u16, now_ns: u64, commands: &mut dyn Commands) {
        let Some(ue) = self.ues.get_mut(&c_rnti) else { return };
        ue.due_ns = None;
        let association = ue.association();
        RELEASED.inc(match ue.state {
            State::Accessed => "access_timed_out",
            State::Waiting { .. } => "no_answer",
            State::Connected { .. } => return,
            State::Leaving { .. } => {
                // The CU has not done what it was asked for: it may have lost the UE.
                self.resetting.add(association);
                self.reset_is_due(now_ns);
                "no_command"
            }
        });
        self.forget(c_rnti);
        release(commands, c_rnti, None);
    }

    /// Forgets all UEs, and releases them on `uu`.
    pub(super) fn release_all(&mut self, why: &str, commands: &mut dyn Commands) {
        let all: Vec<u16> = self.ues.keys().copied().collect();
        for c_rnti in all {
            RELEASED.inc(why);
            self.forget(c_rnti);
            release(commands, c_rnti, None);
        }
    }
}

/// Releases a UE in the user plane, where it may have gone by itself.
pub(super) fn release(commands: &mut dyn Commands, c_rnti: u16, last: Option<(u8, Vec<u8>)>) {
    if let Err(error) = commands.release_ue(c_rnti, last) {
        tracing::debug!(c_rnti, %error, "a UE is not released");
    }
}
