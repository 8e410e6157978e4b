//! Time per packet of PDCP's straight way, for each pair of algorithms and several packet lengths:
//! `cargo run --release -p l2 --example pdcp_speed`.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example that measures")]

use std::time::Instant;

use l2::pdcp::{Config, Rx, RxConfig, Security, SnLength, Tx, Verdict};
use l2::sdap::DrbId;
use l2::security::{Cipher, CipheringAlgorithm, Direction, Integrity, IntegrityAlgorithm};
use types::Key;

/// PDUs sealed, then opened, so that both are measured over memory like that of a packet vector.
const VECTOR: usize = 64;
const ROUNDS: usize = 20_000;

fn main() {
    let key = Key::new([0x5A; 16]);
    let nea2 = || Cipher::new(CipheringAlgorithm::Nea2, &key);
    let nia2 = || Some(Integrity::new(IntegrityAlgorithm::Nia2, &key));
    println!("{:<12}{:>8}{:>12}{:>12}", "algorithms", "octets", "seal, ns", "open, ns");
    for (name, security) in [
        ("NEA0", Security::new(Cipher::nea0(), None)),
        ("NEA2", Security::new(nea2(), None)),
        ("NIA2", Security::new(Cipher::nea0(), nia2())),
        ("NEA2+NIA2", Security::new(nea2(), nia2())),
    ] {
        for length in [64, 128, 256, 512, 1024, 1400, 8192] {
            let (seal, open) = measure(&security, length);
            println!("{name:<12}{length:>8}{seal:>12.1}{open:>12.1}");
        }
    }
}

/// Nanoseconds per packet of `length` octets with its SDAP header: best of several runs.
fn measure(security: &Security, length: usize) -> (f64, f64) {
    let id = DrbId::new(1).expect("1 is an identity");
    let config = Config::drb(id, Direction::Downlink, SnLength::Eighteen, true);
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        let mut tx = Tx::new(config, security.clone());
        let mut rx = Rx::new(config, security.clone(), RxConfig::default());
        let whole = tx.header_len() + 1 + length + tx.trailer_len();
        let mut pdus = vec![vec![0x45; whole.next_multiple_of(64)]; VECTOR];
        let (mut sealing, mut opening, mut delivered) = (0, 0, 0);
        let rounds = ROUNDS * 64 / length.max(64);
        for _ in 0..rounds {
            let start = Instant::now();
            for pdu in &mut pdus {
                tx.seal(&mut pdu[..whole]).expect("COUNT does not end here");
            }
            let sealed = Instant::now();
            for pdu in &mut pdus {
                delivered += usize::from(matches!(rx.open(&mut pdu[..whole], 0), Verdict::Deliver { .. }));
            }
            opening += sealed.elapsed().as_nanos();
            sealing += (sealed - start).as_nanos();
        }
        assert_eq!(delivered, rounds * VECTOR, "every packet is delivered");
        let each = |ns: u128| ns as f64 / (rounds * VECTOR) as f64;
        best = (best.0.min(each(sealing)), best.1.min(each(opening)));
    }
    best
}
