//! Time zone, timers and throttling.

use crate::codec::{Cursor, Fault, Value};

/// Time zone of the UE (§8.44).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct UeTimeZone {
    /// Offset from UTC in quarters of an hour, coded as in TS 24.008 §10.5.3.8.
    pub time_zone: u8,
    /// Daylight saving: 0 none, 1 one hour, 2 two hours.
    pub daylight_saving: u8,
}

impl Value for UeTimeZone {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let [time_zone, daylight_saving] = Cursor(bytes).array()?;
        Ok(Self { time_zone, daylight_saving: daylight_saving & 3 })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.time_zone, self.daylight_saving & 3]);
    }
}

/// A duration as unit (3 bits) and value (5 bits): EPC timer (§8.87), also part of [`Throttling`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EpcTimer {
    /// Unit: 0 is 2 s, 1 a minute, 2 ten minutes, 3 an hour, 4 ten hours, 7 infinite or stopped.
    pub unit: u8,
    /// Number of units, 5 bits; 0 means stopped.
    pub value: u8,
}

impl EpcTimer {
    /// The seconds that this means; `None` when it is infinite.
    pub fn seconds(self) -> Option<u64> {
        let unit = match self.unit & 7 {
            0 => 2,
            2 => 600,
            3 => 3600,
            4 => 36_000,
            7 if self.value != 0 => return None,
            // Other values of the unit mean minutes.
            _ => 60,
        };
        Some(unit * u64::from(self.value & 0x1f))
    }
}

impl Value for EpcTimer {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let octet = bytes.first().ok_or(Fault::Length)?;
        Ok(Self { unit: octet >> 5, value: octet & 0x1f })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.unit << 5 | self.value & 0x1f);
    }
}

/// DL low priority traffic throttling (§8.85): for some time, this part of the notifications is not to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Throttling {
    /// How long.
    pub delay: EpcTimer,
    /// Per cent, 0 to 100.
    pub factor: u8,
}

impl Value for Throttling {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let (_, rest) = bytes.split_first().ok_or(Fault::Length)?;
        Ok(Self { delay: EpcTimer::decode(bytes)?, factor: *rest.first().ok_or(Fault::Length)? })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        self.delay.encode(out);
        out.push(self.factor);
    }
}
