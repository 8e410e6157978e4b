//! The codec against pycrate's, which has the whole ASN.1 of TS 38.331, and against damaged octets.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

mod common;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use common::*;
use proptest::prelude::*;
use rrc::message::{Bits9, join_s_tmsi, split_s_tmsi};
use rrc::{CellGroupConfig, DlCcch, DlDcch};
use types::{STmsi, Tmsi};

struct Vector {
    channel: &'static str,
    kind: &'static str,
    octets: Vec<u8>,
    expected: &'static str,
}

fn vectors() -> Vec<Vector> {
    let lines = include_str!("vectors/vectors.tsv").lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let fields: Vec<_> = line.split('\t').collect();
            Vector { channel: fields[0], kind: fields[1], octets: unhex(fields[2]), expected: fields[3] }
        })
        .collect()
}

#[test]
fn named_values_are_what_pycrate_makes_of_them() {
    let samples = samples();
    let vectors: Vec<_> = vectors().into_iter().filter(|vector| vector.kind == "named").collect();
    assert_eq!(vectors.len(), samples.len());
    for vector in vectors {
        let (_, value) = samples.iter().find(|(name, _)| *name == vector.expected).unwrap();
        assert_eq!(hex(&value.encode().unwrap()), hex(&vector.octets), "{}", vector.expected);
        assert_eq!(Any::decode(vector.channel, &vector.octets).as_ref(), Ok(value), "{}", vector.expected);
    }
}

#[test]
fn every_combination_of_members_survives() {
    let vectors: Vec<_> = vectors().into_iter().filter(|vector| vector.kind == "random").collect();
    for channel in CHANNELS {
        assert!(vectors.iter().any(|vector| vector.channel == channel), "{channel}");
    }
    for vector in vectors {
        let value = Any::decode(vector.channel, &vector.octets)
            .unwrap_or_else(|error| panic!("{} {}: {error}", vector.channel, hex(&vector.octets)));
        assert_eq!(hex(&value.encode().unwrap()), hex(&vector.octets), "{value:?}");
    }
}

#[test]
fn extensions_and_unused_members_are_skipped_or_refused() {
    let mut seen = (0, 0);
    for vector in vectors() {
        let decoded = Any::decode(vector.channel, &vector.octets);
        match vector.kind {
            "skipped" => {
                seen.0 += 1;
                let value = decoded.unwrap_or_else(|error| panic!("{}: {error}", hex(&vector.octets)));
                assert_eq!(hex(&value.encode().unwrap()), vector.expected, "{value:?}");
            }
            "refused" => {
                seen.1 += 1;
                assert_eq!(decoded.unwrap_err().to_string(), vector.expected);
            }
            _ => {}
        }
    }
    assert!(seen.0 >= 10 && seen.1 >= 10, "{seen:?}");
}

/// Runs generate.py with the venv of scripts/setup.sh; `None` if that is not there.
fn pycrate(arguments: &[&str], input: &str) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("../../target/python/bin/python");
    if !python.exists() {
        assert!(std::env::var_os("CI").is_none(), "pycrate is missing: scripts/setup.sh test");
        eprintln!("skipped: pycrate is missing; scripts/setup.sh test installs it");
        return None;
    }
    let mut child = Command::new(python)
        .arg(root.join("tests/vectors/generate.py"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_vectors_are_those_of_pycrate() {
    if let Some(written) = pycrate(&[], "") {
        assert!(written == include_str!("vectors/vectors.tsv"), "generate.py writes another vectors.tsv");
    }
}

/// Whether the CellGroupConfigs in a message are ones. To our codec they are any octets; pycrate decodes them too.
fn has_whole_cell_groups(value: &Any) -> bool {
    let cell_groups = match value {
        Any::DlCcch(DlCcch::RrcSetup(setup)) => vec![&setup.master_cell_group],
        Any::DlDcch(DlDcch::RrcReconfiguration(message)) => {
            let master = message.v1530.as_ref().and_then(|v1530| v1530.master_cell_group.as_ref());
            message.secondary_cell_group.iter().chain(master).collect()
        }
        _ => Vec::new(),
    };
    cell_groups.into_iter().all(|octets| {
        CellGroupConfig::decode(octets).is_ok_and(|config| config.encode().as_ref() == Ok(octets))
    })
}

/// Octets of ours that are not in the vectors: what damaged octets decode to, encoded again.
#[test]
fn pycrate_reads_what_we_write() {
    let mut lines = std::collections::BTreeSet::new();
    for vector in vectors().iter().filter(|vector| vector.octets.len() < 1_000) {
        for bit in (0..vector.octets.len() * 8).step_by(7) {
            let mut damaged = vector.octets.clone();
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            if let Ok(value) = Any::decode(vector.channel, &damaged)
                && has_whole_cell_groups(&value)
            {
                lines.insert(format!("{}\t{}\n", vector.channel, hex(&value.encode().unwrap())));
            }
        }
    }
    assert!(lines.len() > 1_000, "{}", lines.len());
    let sample: String = lines.iter().step_by(lines.len() / 1_000).cloned().collect();
    if let Some(values) = pycrate(&["read"], &sample) {
        assert_eq!(values.lines().count(), sample.lines().count());
    }
}

#[test]
fn damaged_octets_are_refused_or_read_but_never_break_anything() {
    for vector in vectors() {
        let expected = Any::decode(vector.channel, &vector.octets);
        for end in 0..vector.octets.len() {
            // The last octets may hold only what is skipped.
            let cut = Any::decode(vector.channel, &vector.octets[..end]);
            assert!(vector.kind == "skipped" || vector.kind == "refused" || cut.is_err(), "{cut:?}");
        }
        let step = vector.octets.len() / 500 + 1;
        for bit in (0..vector.octets.len() * 8).step_by(step) {
            let mut damaged = vector.octets.clone();
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            check(vector.channel, &damaged);
        }
        // What follows a message in its octets changes nothing.
        let longer = [&vector.octets[..], &[0xff, 0x5a]].concat();
        assert_eq!(Any::decode(vector.channel, &longer), expected);
    }
}

/// What decodes also encodes, and decodes to the same.
fn check(channel: &str, octets: &[u8]) {
    if let Ok(value) = Any::decode(channel, octets) {
        let encoded = value.encode().unwrap_or_else(|error| panic!("{value:?}: {error}"));
        assert_eq!(Any::decode(channel, &encoded), Ok(value));
    }
}

proptest! {
    #[test]
    fn any_octets_do_no_harm(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
        for channel in CHANNELS {
            check(channel, &octets);
        }
    }

    #[test]
    fn an_s_tmsi_survives_its_parts(set in 0u16..1024, pointer in 0u8..64, tmsi: u32) {
        let id = STmsi::new(set, pointer, Tmsi(tmsi)).unwrap();
        let (part1, part2) = split_s_tmsi(id);
        prop_assert_eq!(join_s_tmsi(part1, part2), Ok(id));
    }
}

#[test]
fn values_beyond_the_standard_are_refused() {
    use rrc::bearer::{DiscardTimer, TReordering};
    use rrc::cell_group::{PollByte, TPollRetransmit};
    use rrc::message::{Paging, RrcReconfiguration, RrcReconfigurationV1530};
    assert_eq!(rrc::RrcTransactionIdentifier::new(4), None);
    assert_eq!(rrc::value::DrbIdentity::new(0), None);
    assert_eq!(rrc::value::DrbIdentity::new(33), None);
    assert_eq!(Bits9::new(512), None);
    let session = |id| rrc::value::PduSessionId::new(id).unwrap();
    assert_eq!(types::PduSessionId::try_from(session(15)), types::PduSessionId::new(15));
    assert!(types::PduSessionId::try_from(session(16)).is_err());
    assert_eq!(TReordering::new(3), None);
    assert_eq!(TReordering::new(20).and_then(TReordering::value), Some(20));
    assert_eq!(TPollRetransmit::new(4).and_then(TPollRetransmit::value), Some(4));
    assert_eq!((DiscardTimer::INFINITY.value(), PollByte::INFINITY.value()), (None, None));

    let record = rrc::message::PagingRecord {
        ue_identity: rrc::message::PagingUeIdentity::Ng5gSTmsi(s_tmsi()),
        non_3gpp_access: false,
    };
    let paging = |count| rrc::Pcch::from(Paging { paging_record_list: vec![record.clone(); count] });
    assert!(paging(32).encode().is_ok());
    assert!(paging(33).encode().is_err());
    let reconfiguration = |count| {
        DlDcch::from(RrcReconfiguration {
            rrc_transaction_identifier: transaction(0),
            radio_bearer_config: None,
            secondary_cell_group: None,
            v1530: Some(RrcReconfigurationV1530 {
                dedicated_nas_message_list: vec![nas(); count],
                ..RrcReconfigurationV1530::default()
            }),
        })
    };
    assert!(reconfiguration(29).encode().is_ok());
    assert!(reconfiguration(30).encode().is_err());
}
