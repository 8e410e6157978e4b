//! RRC: the messages of a logical channel, which the first octet chooses.

use rrc::{BcchBch, BcchDlSch, CellGroupConfig, DlCcch, DlDcch, Pcch, UlCcch, UlDcch};

/// What decodes also encodes, and decodes to the same.
macro_rules! round_trip {
    ($type:ty, $octets:expr) => {
        if let Ok(value) = <$type>::decode($octets) {
            let encoded = value.encode().expect("what decodes is within the standard's limits");
            assert_eq!(<$type>::decode(&encoded), Ok(value));
        }
    };
}

/// A message of one channel.
pub fn message(data: &[u8]) {
    let Some((channel, octets)) = data.split_first() else { return };
    match channel % 8 {
        0 => round_trip!(UlCcch, octets),
        1 => round_trip!(DlCcch, octets),
        2 => round_trip!(UlDcch, octets),
        3 => round_trip!(DlDcch, octets),
        4 => round_trip!(Pcch, octets),
        5 => round_trip!(BcchBch, octets),
        6 => round_trip!(BcchDlSch, octets),
        _ => round_trip!(CellGroupConfig, octets),
    }
}

/// The vectors of the codec's tests.
pub fn seeds() -> Vec<Vec<u8>> {
    let channels =
        ["UL-CCCH", "DL-CCCH", "UL-DCCH", "DL-DCCH", "PCCH", "BCCH-BCH", "BCCH-DL-SCH", "CellGroupConfig"];
    let lines = include_str!("../../wire/rrc/tests/vectors/vectors.tsv").lines();
    lines
        .filter_map(|line| {
            let mut fields = line.split('\t');
            let name = fields.next()?;
            let channel = channels.iter().position(|known| *known == name)?;
            let hex = fields.nth(1)?;
            let octets =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok());
            std::iter::once(Some(channel as u8)).chain(octets).collect()
        })
        .filter(|seed: &Vec<u8>| seed.len() < 2_000)
        .collect()
}
