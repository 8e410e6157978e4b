//! QoS enforcement rules (TS 29.244 §5.4) and buffering action rules (§5.2.4).

use pfcp::{
    BitRates, CreateBar, CreateQer, FailedRuleId, GateStatus, Rqi, UpdateBar, UpdateBarInReportResponse,
    UpdateQer,
};

use super::{Rejection, Rules, check_new};

/// A QoS enforcement rule. Downlink flow level marking is for GERAN only and has no effect here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QerRule {
    /// Gate status.
    pub gates: GateStatus,
    /// Maximum bit rates.
    pub mbr: Option<BitRates>,
    /// Guaranteed bit rates.
    pub gbr: Option<BitRates>,
    /// QFI with which packets are marked.
    pub qfi: Option<u8>,
    /// Reflective QoS indication.
    pub rqi: bool,
    /// Paging policy indicator.
    pub ppi: Option<u8>,
}

/// A buffering action rule.
#[derive(Debug, Clone, Default)]
pub struct BarRule {
    /// Delay before the CP function is told of downlink data, in units of 50 ms.
    pub notification_delay: u8,
    /// Number of packets to buffer.
    pub suggested_packets: Option<u16>,
}

impl BarRule {
    /// The notification delay in milliseconds.
    pub fn delay_ms(&self) -> u64 {
        u64::from(self.notification_delay) * 50
    }
}

fn reflective(rqi: Rqi) -> bool {
    rqi.contains(Rqi::RQI)
}

impl Rules {
    /// Adds a QER.
    pub fn create_qer(&mut self, create: &CreateQer) -> Result<(), Rejection> {
        let id = create.qer_id.0;
        check_new(&self.qers, id, FailedRuleId::Qer(id))?;
        let rule = QerRule {
            gates: create.gate_status,
            mbr: create.mbr,
            gbr: create.gbr,
            qfi: create.qfi.map(|qfi| qfi.0),
            rqi: create.rqi.is_some_and(reflective),
            ppi: create.paging_policy_indicator.map(|ppi| ppi.0 & 7),
        };
        self.qers.insert(id, rule);
        Ok(())
    }

    /// Changes a QER.
    pub fn update_qer(&mut self, update: &UpdateQer) -> Result<(), Rejection> {
        let id = update.qer_id.0;
        let rule = self.qers.get_mut(id).ok_or(Rejection::rule(FailedRuleId::Qer(id)))?;
        if let Some(gates) = update.gate_status {
            rule.gates = gates;
        }
        rule.mbr = update.mbr.or(rule.mbr);
        rule.gbr = update.gbr.or(rule.gbr);
        rule.qfi = update.qfi.map(|qfi| qfi.0).or(rule.qfi);
        rule.rqi = update.rqi.map_or(rule.rqi, reflective);
        rule.ppi = update.paging_policy_indicator.map(|ppi| ppi.0 & 7).or(rule.ppi);
        Ok(())
    }

    /// Adds a BAR.
    pub fn create_bar(&mut self, create: &CreateBar) -> Result<(), Rejection> {
        let id = create.bar_id.0;
        check_new(&self.bars, id, FailedRuleId::Bar(id))?;
        let rule = BarRule {
            notification_delay: create.notification_delay.map_or(0, |delay| delay.0),
            suggested_packets: create.suggested_packets.map(|count| count.0.into()),
        };
        self.bars.insert(id, rule);
        Ok(())
    }

    /// Changes a BAR.
    pub fn update_bar(&mut self, update: &UpdateBar) -> Result<(), Rejection> {
        let id = update.bar_id.0;
        let rule = self.bars.get_mut(id).ok_or(Rejection::rule(FailedRuleId::Bar(id)))?;
        rule.notification_delay = update.notification_delay.map_or(rule.notification_delay, |delay| delay.0);
        rule.suggested_packets =
            update.suggested_packets.map(|count| count.0.into()).or(rule.suggested_packets);
        Ok(())
    }

    /// Changes a BAR as the response to a report asks (table 7.5.9.2-1). An unknown BAR is ignored, as a
    /// response cannot be refused.
    pub fn update_bar_in_response(&mut self, update: &UpdateBarInReportResponse) {
        let Some(rule) = self.bars.get_mut(update.bar_id.0) else { return };
        rule.notification_delay = update.notification_delay.map_or(rule.notification_delay, |delay| delay.0);
        let count = update.suggested_packet_count.map(|count| count.0);
        rule.suggested_packets =
            count.or(update.suggested_packets.map(|count| count.0.into())).or(rule.suggested_packets);
    }
}
