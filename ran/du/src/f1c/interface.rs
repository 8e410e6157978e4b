//! The interface to the CU: connected or not, set up or not.

use f1ap::ie::TransactionId;

use super::{Commands, Machine, Output};

/// Where F1 is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Interface {
    /// There is no association.
    Down,
    /// F1 SETUP REQUEST is under way.
    SettingUp {
        transaction: TransactionId,
        /// When the CU should have answered.
        by_ns: u64,
        /// Refusals so far.
        refusals: u32,
    },
    /// The CU has refused. The DU asks again at this time.
    Refused {
        again_ns: u64,
        /// How often.
        refusals: u32,
    },
    /// The CU has accepted the DU.
    Up,
}

impl Interface {
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        match self {
            Interface::Down | Interface::Up => None,
            Interface::SettingUp { by_ns, .. } => Some(*by_ns),
            Interface::Refused { again_ns, .. } => Some(*again_ns),
        }
    }
}

impl Machine {
    /// An association is there: the DU sets F1 up.
    pub fn connected(&mut self, now_ns: u64) {
        self.outputs.clear();
        self.request_setup(0, now_ns);
    }

    /// The association has ended: the CU has lost all UEs, or will (TS 38.472 §7), so the DU releases them.
    pub fn disconnected(&mut self, commands: &mut dyn Commands) {
        self.interface = Interface::Down;
        self.resetting = Default::default();
        self.outputs.clear();
        self.release_all("no_cu", commands);
        self.out_of_service(commands);
    }

    pub(super) fn out_of_service(&mut self, commands: &mut dyn Commands) {
        if let Err(error) = commands.take_out_of_service() {
            tracing::warn!(%error, "the cell is not taken out of service");
        }
    }

    pub(super) fn transaction(&mut self) -> TransactionId {
        self.next_transaction = self.next_transaction.wrapping_add(1);
        TransactionId(self.next_transaction)
    }

    /// The CU has not answered, or the time to wait is over.
    pub(super) fn interface_is_due(&mut self, now_ns: u64) {
        match self.interface {
            Interface::SettingUp { by_ns, .. } if by_ns <= now_ns => {
                tracing::warn!("the CU does not answer F1 Setup");
                self.interface = Interface::Down;
                self.outputs.push_back(Output::Disconnect);
            }
            Interface::Refused { again_ns, refusals } if again_ns <= now_ns => {
                self.request_setup(refusals, now_ns);
            }
            _ => {}
        }
    }
}
