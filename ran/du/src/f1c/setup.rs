//! F1 Setup (TS 38.473 §8.2.3).

use std::time::Duration;

use f1ap::ie::{NodeName, RrcVersion, RrcVersionBits, TimeToWait};
use f1ap::message::{F1SetupFailure, F1SetupRequest, F1SetupResponse};

use super::counters::{REJECTED, SETUPS};
use super::interface::Interface;
use super::{Commands, Machine, Output};

const SECOND_NS: u64 = 1_000_000_000;
/// How long the CU may take to answer.
const ANSWER_NS: u64 = 5 * SECOND_NS;
/// How long a DU waits that was refused without a time to wait, for the first time; then twice as long each time.
const FIRST_WAIT_NS: u64 = SECOND_NS;
/// Most that it waits.
const LONGEST_WAIT_NS: u64 = 60 * SECOND_NS;

/// The version of TS 38.331 whose messages we write.
pub(super) const RRC_VERSION: RrcVersion =
    RrcVersion { latest: RrcVersionBits(0), latest_enhanced: Some([17, 4, 0]) };

fn duration(time: TimeToWait) -> Duration {
    Duration::from_secs(match time {
        TimeToWait::V1s => 1,
        TimeToWait::V2s => 2,
        TimeToWait::V5s => 5,
        TimeToWait::V10s => 10,
        TimeToWait::V20s => 20,
        TimeToWait::V60s => 60,
    })
}

impl Machine {
    pub(super) fn request_setup(&mut self, refusals: u32, now_ns: u64) {
        let transaction = self.transaction();
        self.interface = Interface::SettingUp { transaction, by_ns: now_ns + ANSWER_NS, refusals };
        let request = F1SetupRequest {
            transaction_id: transaction,
            gnb_du_id: self.cell.du_id(),
            gnb_du_name: Some(NodeName(self.cell.name().to_owned())),
            served_cells: vec![self.cell.served()],
            rrc_version: RRC_VERSION,
        };
        self.send(None, request);
    }

    /// How often the CU has refused, if it is asked and this is the transaction.
    fn asked(&self, transaction: f1ap::ie::TransactionId) -> Option<u32> {
        match self.interface {
            Interface::SettingUp { transaction: ours, refusals, .. } if ours == transaction => Some(refusals),
            _ => None,
        }
    }

    pub(super) fn setup_response(
        &mut self,
        response: F1SetupResponse,
        now_ns: u64,
        commands: &mut dyn Commands,
    ) {
        let Some(refusals) = self.asked(response.transaction_id) else {
            return self.refuse_in_this_state(&response.into());
        };
        let name = response.gnb_cu_name.as_ref().map_or("", |name| &name.0);
        // A cell stays out of service until the CU activates it (§8.2.3.2).
        if !response.cells_to_be_activated.iter().any(|cell| cell.nr_cgi == self.cell.ncgi()) {
            SETUPS.inc("not_activated");
            tracing::warn!(cu = name, "the CU does not activate the cell; asking again");
            return self.ask_again(None, refusals, now_ns);
        }
        let (mib, sib1) = self.cell.broadcast();
        if let Err(error) = commands.set_system_information(mib, sib1) {
            tracing::error!(%error, "the cell cannot broadcast");
            self.interface = Interface::Down;
            return self.outputs.push_back(Output::Disconnect);
        }
        SETUPS.inc("accepted");
        tracing::info!(cu = name, "F1 is set up");
        self.interface = Interface::Up;
    }

    pub(super) fn setup_failure(&mut self, failure: &F1SetupFailure, now_ns: u64) {
        let Some(refusals) = self.asked(failure.transaction_id) else {
            // It is the answer to a request that has timed out.
            return REJECTED.inc("state");
        };
        SETUPS.inc("refused");
        tracing::warn!(cause = %failure.cause, wait = ?failure.time_to_wait, "the CU refuses F1 Setup");
        self.ask_again(failure.time_to_wait, refusals, now_ns);
    }

    /// Repeats F1 Setup, not before the time that the CU names (§8.2.3.3).
    fn ask_again(&mut self, time_to_wait: Option<TimeToWait>, refusals: u32, now_ns: u64) {
        let wait_ns = match time_to_wait {
            Some(time) => duration(time).as_nanos() as u64,
            None => (FIRST_WAIT_NS << refusals.min(6)).min(LONGEST_WAIT_NS),
        };
        self.interface =
            Interface::Refused { again_ns: now_ns + wait_ns, refusals: refusals.saturating_add(1) };
    }
}
