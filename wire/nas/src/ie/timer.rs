//! GPRS timers 2 and 3 (TS 24.008 §10.5.7.4, §10.5.7.4a).

use std::time::Duration;

/// A timer value the network gives. Sending rounds up to the next value the element can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// The timer must not run.
    Deactivated,
    /// It runs for this long.
    For(Duration),
}

impl Timer {
    /// A timer of whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self::For(Duration::from_secs(seconds))
    }

    /// How long it runs; `None` when deactivated.
    pub fn duration(self) -> Option<Duration> {
        match self {
            Self::Deactivated => None,
            Self::For(duration) => Some(duration),
        }
    }

    /// Unit bits and seconds per unit of timer 2, finest first. Unknown units mean one minute.
    const UNITS_2: [(u8, u64); 3] = [(0, 2), (1, 60), (2, 360)];
    /// Unit bits and seconds per unit of timer 3, finest first. 320 hours is for T3512 and a few others only.
    const UNITS_3: [(u8, u64); 7] =
        [(3, 2), (4, 30), (5, 60), (0, 600), (1, 3_600), (2, 36_000), (6, 1_152_000)];

    pub(crate) fn from_timer_2(octet: u8) -> Self {
        Self::from_units(octet, &Self::UNITS_2, 60)
    }

    pub(crate) fn from_timer_3(octet: u8) -> Self {
        Self::from_units(octet, &Self::UNITS_3, 3_600)
    }

    pub(crate) fn to_timer_2(self) -> u8 {
        self.to_units(&Self::UNITS_2)
    }

    pub(crate) fn to_timer_3(self) -> u8 {
        self.to_units(&Self::UNITS_3)
    }

    fn from_units(octet: u8, units: &[(u8, u64)], otherwise: u64) -> Self {
        let unit = octet >> 5;
        if unit == 7 {
            return Self::Deactivated;
        }
        let seconds = units.iter().find(|(bits, _)| *bits == unit).map_or(otherwise, |(_, seconds)| *seconds);
        Self::seconds(seconds * u64::from(octet & 0x1f))
    }

    fn to_units(self, units: &[(u8, u64)]) -> u8 {
        let Self::For(duration) = self else { return 0xe0 };
        let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
        let fits = |(_, unit): &&(u8, u64)| seconds.div_ceil(*unit) <= 0x1f;
        let (bits, unit) = units.iter().find(fits).or(units.last()).copied().unwrap_or((0, 1));
        bits << 5 | seconds.div_ceil(unit).min(0x1f) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_take_the_finest_unit_that_fits_and_round_up() {
        assert_eq!(Timer::seconds(540).to_timer_3(), 0x92); // 18 × 30 s
        assert_eq!(Timer::seconds(3_240).to_timer_3(), 6); // 54 min: six times ten minutes
        assert_eq!(Timer::seconds(61).to_timer_3(), 0x7f); // 31 × 2 s
        assert_eq!(Timer::seconds(720).to_timer_2(), 0x2c);
        assert_eq!(Timer::Deactivated.to_timer_2(), 0xe0);
        assert_eq!(Timer::from_timer_2(0x2c), Timer::seconds(720));
        assert_eq!(Timer::from_timer_3(0xe0), Timer::Deactivated);
        for octet in 0..=0xff {
            for (read, write) in [
                (Timer::from_timer_2 as fn(u8) -> Timer, Timer::to_timer_2 as fn(Timer) -> u8),
                (Timer::from_timer_3, Timer::to_timer_3),
            ] {
                let timer = read(octet);
                assert_eq!(read(write(timer)), timer);
            }
        }
    }
}
