//! Tests of both entities together, and of [`Rx`] beside a model that follows the text of TS 38.323 §5.2.2.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use types::Key;

use super::*;
use crate::security::{CipheringAlgorithm, IntegrityAlgorithm};

fn drb(sn: SnLength, sdap_header: bool) -> Config {
    Config::drb(DrbId::new(5).unwrap(), Direction::Downlink, sn, sdap_header)
}

fn nea2() -> Cipher {
    Cipher::new(CipheringAlgorithm::Nea2, &Key::new([0x42; 16]))
}

fn nia2() -> Option<Integrity> {
    Some(Integrity::new(IntegrityAlgorithm::Nia2, &Key::new([0x24; 16])))
}

fn protected() -> Security {
    Security::new(nea2(), nia2())
}

fn plain() -> Security {
    Security::none()
}

/// The PDU of an SDU.
fn seal(tx: &mut Tx, sdu: &[u8]) -> Vec<u8> {
    let mut pdu = vec![0; tx.header_len()];
    pdu.extend_from_slice(sdu);
    pdu.resize(pdu.len() + tx.trailer_len(), 0xEE);
    tx.seal(&mut pdu).unwrap();
    pdu
}

/// Opens a PDU, and returns what is delivered.
fn deliver(rx: &mut Rx, pdu: &[u8], now_ns: u64) -> Vec<(u32, Vec<u8>)> {
    let mut pdu = pdu.to_vec();
    let mut out = Vec::new();
    if let Verdict::Deliver { sdu, count } = rx.open(&mut pdu, now_ns) {
        out.push((count, pdu[sdu].to_vec()));
    }
    rx.release(|sdu, count| out.push((count, sdu.to_vec())));
    out
}

fn every_config() -> Vec<(Config, Security)> {
    let nia0 = Security::new(Cipher::nea0(), Some(Integrity::nia0()));
    let mut all = vec![
        (Config::srb(SrbId::Srb1, Direction::Uplink), plain()),
        (Config::srb(SrbId::Srb2, Direction::Downlink), protected()),
        (Config::srb(SrbId::Srb3, Direction::Downlink), nia0.clone()),
    ];
    for sn in [SnLength::Twelve, SnLength::Eighteen] {
        for sdap_header in [false, true] {
            let ciphered = Security::new(nea2(), None);
            let signed = Security::new(Cipher::nea0(), nia2());
            for security in [plain(), ciphered, signed, protected(), nia0.clone()] {
                all.push((drb(sn, sdap_header), security));
            }
        }
    }
    all
}

#[test]
fn every_length_passes_under_every_configuration() {
    let packet: Vec<u8> = (0..=MAX_SDU as u32).map(|i| (i * 31 % 251) as u8).collect();
    for (config, security) in every_config() {
        let (mut tx, mut rx) =
            (Tx::new(config, security.clone()), Rx::new(config, security.clone(), RxConfig::default()));
        let lengths = (config.sdap_len()..200).chain((200..=MAX_SDU).step_by(97)).chain([MAX_SDU]);
        for (count, length) in lengths.enumerate() {
            let pdu = seal(&mut tx, &packet[..length]);
            assert_eq!(pdu.len(), tx.header_len() + length + tx.trailer_len());
            let ciphered = security.algorithms().0 == CipheringAlgorithm::Nea2;
            let clear = tx.header_len() + config.sdap_len();
            let unchanged = pdu[clear..tx.header_len() + length] == packet[config.sdap_len()..length];
            assert_eq!(unchanged, !ciphered || length == config.sdap_len() || length < 4 && unchanged);
            assert_eq!(pdu[tx.header_len()..clear], packet[..config.sdap_len()], "SDAP stays in the clear");
            assert_eq!(deliver(&mut rx, &pdu, 0), [(count as u32, packet[..length].to_vec())]);
        }
        let mut long = vec![0; tx.header_len() + MAX_SDU + 1 + tx.trailer_len()];
        assert_eq!(tx.seal(&mut long), Err(SealError::TooLong));
        long[0] = DATA;
        assert_eq!(rx.open(&mut long, 0), Verdict::Discarded(Discard::Malformed));
        assert_eq!(rx.held(), (0, 0));
    }
}

/// All of 0…9,000 once.
#[test]
fn all_lengths_pass() {
    let config = drb(SnLength::Eighteen, true);
    let (mut tx, mut rx) = (Tx::new(config, protected()), Rx::new(config, protected(), RxConfig::default()));
    let mut pdu = vec![0; 3 + MAX_SDU + 4];
    for length in 1..=MAX_SDU {
        let pdu = &mut pdu[..3 + length + 4];
        pdu[3..3 + length].fill(length as u8);
        let count = tx.seal(pdu).unwrap();
        assert_eq!(rx.open(pdu, 0), Verdict::Deliver { sdu: 3..3 + length, count });
        assert!(pdu[3..3 + length].iter().all(|octet| *octet == length as u8));
    }
    assert_eq!(rx.counters().delivered, MAX_SDU as u64);
}

#[test]
fn headers_are_those_of_the_standard() {
    let header = |config: Config, count| {
        let mut tx = Tx::starting_at(config, plain(), count);
        seal(&mut tx, &[0x77])[..config.header_len()].to_vec()
    };
    assert_eq!(header(Config::srb(SrbId::Srb1, Direction::Uplink), 0xFFFF_FABC), [0x0A, 0xBC]);
    assert_eq!(header(drb(SnLength::Twelve, false), 0xFFFF_FABC), [0x8A, 0xBC]);
    assert_eq!(header(drb(SnLength::Eighteen, false), 0xFFFE_BCDE), [0x82, 0xBC, 0xDE]);
    let config = drb(SnLength::Twelve, false);
    let mut rx = Rx::new(config, plain(), RxConfig::default());
    let verdict = rx.open(&mut [0xF0, 0, 0x45], 0);
    assert_eq!(verdict, Verdict::Deliver { sdu: 2..3, count: 0 }, "reserved bits are ignored");
}

#[test]
fn no_pdu_cut_short_is_delivered_and_none_changes_state() {
    for (config, security) in every_config() {
        let mut tx = Tx::new(config, security.clone());
        let mut rx = Rx::new(config, security.clone(), RxConfig::default());
        let pdu = seal(&mut tx, b"an SDU whose MAC-I is behind it");
        for length in 0..pdu.len() {
            let verdict = rx.open(&mut pdu[..length].to_vec(), 0);
            let shortest = config.header_len() + config.sdap_len() + tx.trailer_len();
            if length < shortest {
                assert_eq!(verdict, Verdict::Discarded(Discard::Malformed), "{length} {config:?}");
            } else if security.integrity.as_ref().is_some_and(|i| i.algorithm() == IntegrityAlgorithm::Nia2) {
                assert_eq!(verdict, Verdict::Discarded(Discard::IntegrityFailure), "{length} {config:?}");
            }
            if length < shortest || security.algorithms().1.is_some() && length > shortest + 4 {
                assert_eq!((rx.rx_deliv(), rx.rx_next()), (Some(0), Some(0)), "{length} {config:?}");
            }
            rx = Rx::new(config, security.clone(), RxConfig::default());
        }
        assert_eq!(deliver(&mut rx, &pdu, 0).len(), 1);
    }
}

#[test]
fn no_flipped_bit_passes_the_integrity_check() {
    for config in [drb(SnLength::Twelve, true), drb(SnLength::Eighteen, false)] {
        let mut tx = Tx::new(config, protected());
        let mut rx = Rx::new(config, protected(), RxConfig::default());
        for round in 0..3 {
            let pdu = seal(&mut tx, b"every bit of this is covered");
            for bit in 0..pdu.len() * 8 {
                let mut flipped = pdu.clone();
                flipped[bit / 8] ^= 0x80 >> (bit % 8);
                let before = (rx.rx_deliv, rx.rx_next, rx.reordering, rx.held());
                match rx.open(&mut flipped, 0) {
                    Verdict::Discarded(Discard::IntegrityFailure | Discard::Stale) => {}
                    // The first bit of a data PDU makes it a control PDU, which has no integrity protection.
                    Verdict::Control(_) => assert_eq!(bit, 0),
                    other => assert!(bit == 0, "bit {bit}: {other:?}"),
                }
                assert_eq!((rx.rx_deliv, rx.rx_next, rx.reordering, rx.held()), before, "bit {bit}");
            }
            assert_eq!(deliver(&mut rx, &pdu, 0).len(), 1, "{round}");
        }
    }
}

#[test]
fn the_bearer_and_the_direction_are_covered() {
    let mut tx = Tx::new(drb(SnLength::Twelve, false), protected());
    let pdu = seal(&mut tx, b"not yours");
    let other = Config::drb(DrbId::new(6).unwrap(), Direction::Downlink, SnLength::Twelve, false);
    let uplink = Config::drb(DrbId::new(5).unwrap(), Direction::Uplink, SnLength::Twelve, false);
    for config in [other, uplink] {
        let mut rx = Rx::new(config, protected(), RxConfig::default());
        assert_eq!(rx.open(&mut pdu.clone(), 0), Verdict::Discarded(Discard::IntegrityFailure));
    }
}

/// TS 33.401 annex B.1.3 and B.2.3 by hand for one PDU, so that BEARER, DIRECTION and what is covered are right.
#[test]
fn what_is_ciphered_and_signed() {
    let config = drb(SnLength::Eighteen, true);
    let mut tx = Tx::starting_at(config, protected(), 0x0004_0001);
    let pdu = seal(&mut tx, b"\x09data");
    let input = Input { count: 0x0004_0001, bearer: 4, direction: Direction::Downlink };
    let mut expected = b"\x80\x00\x01\x09data".to_vec();
    let mac = nia2().unwrap().mac(input, &expected);
    expected.extend(mac);
    nea2().apply(input, &mut expected[4..]);
    assert_eq!(pdu, expected);
}

#[test]
fn security_starts_in_the_middle_of_signalling() {
    let config = Config::srb(SrbId::Srb1, Direction::Downlink);
    let (mut tx, mut rx) = (Tx::new(config, plain()), Rx::new(config, plain(), RxConfig::default()));
    let first = seal(&mut tx, b"RRC setup");
    assert_eq!(first[first.len() - 4..], [0; 4]);
    assert_eq!(deliver(&mut rx, &first, 0).len(), 1);
    let signed = Security::new(Cipher::nea0(), nia2());
    for security in [signed, protected()] {
        tx.set_security(security.clone());
        rx.set_security(security);
        let pdu = seal(&mut tx, b"security mode command");
        assert_eq!(deliver(&mut rx, &pdu, 0).len(), 1);
    }
    assert_eq!(rx.rx_deliv(), Some(3));
}

#[test]
fn the_last_count_is_used_once_and_never_again() {
    for sn in [SnLength::Twelve, SnLength::Eighteen] {
        let config = drb(sn, false);
        let start = u32::MAX - 2;
        let mut tx = Tx::starting_at(config, protected(), start);
        let mut rx = Rx::starting_at(config, protected(), RxConfig::default(), start);
        let pdus: Vec<_> = (0..3).map(|_| seal(&mut tx, b"near the end")).collect();
        let mut more = pdus[2].clone();
        assert_eq!(tx.seal(&mut more), Err(SealError::Exhausted));
        assert_eq!((tx.tx_next(), &more), (None, &pdus[2]), "a refused SDU is not touched");
        for index in [1, 2, 0] {
            deliver(&mut rx, &pdus[index], 0);
        }
        assert_eq!((rx.rx_deliv(), rx.rx_next()), (None, None));
        assert_eq!((rx.counters().delivered, rx.counters().released), (1, 2));
        // COUNT would begin again at 0: no sequence number is accepted any more.
        for pdu in &pdus {
            assert_eq!(rx.open(&mut pdu.clone(), 0), Verdict::Discarded(Discard::Stale));
        }
        let mut again = Tx::new(config, protected());
        for _ in 0..5 {
            let pdu = seal(&mut again, b"COUNT 0 again");
            assert_eq!(rx.open(&mut pdu.clone(), 0), Verdict::Discarded(Discard::Stale));
        }
    }
}

/// COUNT of every sequence number, at each kind of RX_DELIV, against the definition by distance.
#[test]
fn counts_at_the_edges_of_the_window() {
    for sn in [SnLength::Twelve, SnLength::Eighteen] {
        let (window, cycle) = (u64::from(sn.window()), 1_u64 << sn.bits());
        let edges = [0, 1, window - 1, window, window + 1, cycle - 1, cycle, cycle + 1, 7 * cycle + window];
        let late = [(1 << 32) - 1, (1 << 32) - window, (1 << 32) - window - 1, (1 << 32) - cycle, 1 << 32];
        for rx_deliv in edges.into_iter().chain(late) {
            let mut rx = Rx::new(drb(sn, false), plain(), RxConfig::default());
            rx.rx_deliv = rx_deliv;
            for value in 0..=sn.mask() {
                // The COUNT with this sequence number in RX_DELIV - window … RX_DELIV + window - 1.
                let lowest = i128::from(rx_deliv) - i128::from(window);
                let cycle = i128::from(cycle);
                let count = lowest + (i128::from(value) - lowest).rem_euclid(cycle);
                assert_eq!(rx.infer(value), u32::try_from(count).ok(), "{value} at {rx_deliv}");
            }
        }
    }
}

#[test]
fn a_far_off_count_is_refused_with_integrity() {
    let config = drb(SnLength::Twelve, false);
    let mut rx = Rx::new(config, protected(), RxConfig::default());
    // Just inside the window it is held; on the other side it belongs to another HFN.
    let far = |count| seal(&mut Tx::starting_at(config, protected(), count), b"far");
    for (count, expected) in [
        (2047, Verdict::Held),
        (2048, Verdict::Discarded(Discard::Stale)),
        (4096, Verdict::Discarded(Discard::IntegrityFailure)),
        (1 << 20, Verdict::Discarded(Discard::IntegrityFailure)),
        (u32::MAX, Verdict::Discarded(Discard::Stale)),
    ] {
        assert_eq!(rx.open(&mut far(count), 0), expected, "{count}");
    }
    assert_eq!((rx.rx_deliv(), rx.rx_next()), (Some(0), Some(2048)));
}

#[test]
fn duplicates_are_told_from_replays() {
    let config = drb(SnLength::Twelve, false);
    let (mut tx, mut rx) = (Tx::new(config, protected()), Rx::new(config, protected(), RxConfig::default()));
    let pdus: Vec<_> = (0..4_u8).map(|i| seal(&mut tx, &[i; 9])).collect();
    assert_eq!(rx.open(&mut pdus[2].clone(), 0), Verdict::Held);
    assert_eq!(rx.open(&mut pdus[2].clone(), 0), Verdict::Discarded(Discard::Duplicate));
    assert_eq!(deliver(&mut rx, &pdus[0], 0), [(0, vec![0; 9])]);
    assert_eq!(rx.open(&mut pdus[0].clone(), 0), Verdict::Discarded(Discard::Stale));
    assert_eq!(deliver(&mut rx, &pdus[1], 0), [(1, vec![1; 9]), (2, vec![2; 9])]);
    assert_eq!(rx.open(&mut pdus[2].clone(), 0), Verdict::Discarded(Discard::Stale));
    assert_eq!(deliver(&mut rx, &pdus[3], 0), [(3, vec![3; 9])]);
    let counters =
        RxCounters { delivered: 3, held: 1, released: 1, duplicates: 1, stale: 2, ..Default::default() };
    assert_eq!(*rx.counters(), counters);
}

#[test]
fn order_holds_when_the_caller_releases_late() {
    let config = drb(SnLength::Twelve, false);
    let (mut tx, mut rx) = (Tx::new(config, plain()), Rx::new(config, plain(), RxConfig::default()));
    let pdus: Vec<_> = (0..4_u8).map(|i| seal(&mut tx, &[i])).collect();
    assert_eq!(rx.open(&mut pdus[1].clone(), 0), Verdict::Held);
    assert_eq!(rx.open(&mut pdus[0].clone(), 0), Verdict::Deliver { sdu: 2..3, count: 0 });
    // SDU 1 waits for `release`, so SDUs 2 and 3 wait behind it.
    assert_eq!(rx.open(&mut pdus[2].clone(), 0), Verdict::Held);
    assert_eq!(rx.open(&mut pdus[3].clone(), 0), Verdict::Held);
    assert_eq!(rx.next_expiry(), None);
    let mut counts = Vec::new();
    rx.release(|_, count| counts.push(count));
    assert_eq!((counts, rx.held()), (vec![1, 2, 3], (0, 0)));
}

#[test]
fn expiry_of_t_reordering_gives_up_what_is_below_rx_reord() {
    let config = drb(SnLength::Twelve, false);
    let timer = RxConfig { t_reordering: Some(Duration::from_nanos(50)), ..RxConfig::default() };
    let (mut tx, mut rx) = (Tx::new(config, plain()), Rx::new(config, plain(), timer));
    let pdus: Vec<_> = (0..10_u8).map(|i| seal(&mut tx, &[i])).collect();
    let drained = |rx: &mut Rx| {
        let mut counts = Vec::new();
        rx.release(|_, count| counts.push(count));
        counts
    };
    // 0 and 3 are missing when 2 starts the timer: RX_REORD is 3.
    for (index, now) in [(1, 90), (2, 100), (4, 110), (6, 120)] {
        assert_eq!(rx.open(&mut pdus[index].clone(), now), Verdict::Held);
    }
    assert_eq!(rx.next_expiry(), Some(140));
    assert!(!rx.expire(139));
    assert!(rx.expire(140));
    assert_eq!(drained(&mut rx), [1, 2]);
    // RX_REORD was 2 (after 1); 2 follows it without gap. 3 is still waited for, with a timer of its own.
    assert_eq!((rx.rx_deliv(), rx.counters().lost, rx.next_expiry()), (Some(3), 1, Some(190)));
    assert_eq!(rx.open(&mut pdus[0].clone(), 150), Verdict::Discarded(Discard::Stale));
    assert!(rx.expire(190));
    assert_eq!(drained(&mut rx), [4, 6]);
    assert_eq!((rx.rx_deliv(), rx.counters().lost, rx.next_expiry()), (Some(7), 3, None));
    assert!(!rx.expire(u64::MAX));
    // Infinite.
    let never = RxConfig { t_reordering: None, ..RxConfig::default() };
    let mut rx = Rx::new(config, plain(), never);
    assert_eq!(rx.open(&mut pdus[1].clone(), 0), Verdict::Held);
    assert_eq!((rx.next_expiry(), rx.expire(u64::MAX)), (None, false));
    assert_eq!(deliver(&mut rx, &pdus[0], 1).len(), 2);
}

#[test]
fn the_store_is_bounded_and_a_gap_is_still_passed() {
    let config = drb(SnLength::Eighteen, false);
    for (max_held, max_held_octets, fits) in [(10, 1 << 20, 10), (1000, 640, 10), (0, 0, 1)] {
        let rx_config = RxConfig { max_held, max_held_octets, ..RxConfig::default() };
        let (mut tx, mut rx) = (Tx::new(config, protected()), Rx::new(config, protected(), rx_config));
        let pdus: Vec<_> = (0..100).map(|_| seal(&mut tx, &[7; 64])).collect();
        for pdu in &pdus[1..] {
            rx.open(&mut pdu.clone(), 0);
        }
        assert_eq!(rx.held(), (fits, fits * 64));
        assert_eq!(rx.counters().no_room, 99 - fits as u64);
        assert!(rx.expire(rx.next_expiry().unwrap()));
        let mut released = 0;
        rx.release(|_, _| released += 1);
        assert_eq!((released, rx.held()), (fits, (0, 0)));
        // What found no room is not marked as received: sent again it passes.
        assert_eq!(deliver(&mut rx, &pdus[fits + 1], 0).len(), 1);
    }
}

#[test]
fn delivery_out_of_order_drops_only_duplicates() {
    let config = drb(SnLength::Twelve, false);
    let rx_config = RxConfig { out_of_order_delivery: true, ..RxConfig::default() };
    let (mut tx, mut rx) = (Tx::new(config, plain()), Rx::new(config, plain(), rx_config));
    let pdus: Vec<_> = (0..6_u8).map(|i| seal(&mut tx, &[i])).collect();
    let mut counts = Vec::new();
    for index in [3, 1, 3, 0, 1, 2, 0, 5, 4] {
        counts.extend(deliver(&mut rx, &pdus[index], 0).into_iter().map(|(count, _)| count));
    }
    assert_eq!(counts, [3, 1, 0, 2, 5, 4]);
    assert_eq!((rx.held(), rx.rx_deliv(), rx.next_expiry()), ((0, 0), Some(6), None));
    assert_eq!((rx.counters().duplicates, rx.counters().stale), (1, 2));
}

#[test]
fn control_pdus_are_told_apart() {
    let mut rx = Rx::new(drb(SnLength::Eighteen, false), protected(), RxConfig::default());
    let report = StatusReport::build(0xFFFF_FFF0, [0xFFFF_FFF1, 0xFFFF_FFF9, 0xFFFF_FFFF, 3]);
    assert_eq!(report, [0, 0xFF, 0xFF, 0xFF, 0xF0, 0x80, 0x82]);
    assert_eq!(rx.open(&mut report.clone(), 0), Verdict::Control(ControlType::StatusReport));
    let read = StatusReport::parse(&report).unwrap();
    assert_eq!(read.received_above().collect::<Vec<_>>(), [0xFFFF_FFF1, 0xFFFF_FFF9, 0xFFFF_FFFF]);
    assert!(read.received(0) && !read.received(0xFFFF_FFF0) && !read.received(0xFFFF_FFF2));
    for length in 0..5 {
        let verdict = rx.open(&mut report[..length].to_vec(), 0);
        assert_eq!(verdict, Verdict::Discarded(Discard::Malformed), "{length}");
    }
    for (octet, kind) in [
        (0x10, ControlType::RohcFeedback),
        (0x2F, ControlType::EhcFeedback),
        (0x30, ControlType::UdcFeedback),
        (0x70, ControlType::Reserved(7)),
    ] {
        assert_eq!(rx.open(&mut [octet], 0), Verdict::Control(kind));
    }
    assert_eq!(rx.counters().control, 5);
    // On a signalling bearer that bit is reserved.
    let mut srb = Rx::new(Config::srb(SrbId::Srb1, Direction::Uplink), plain(), RxConfig::default());
    assert_eq!(srb.open(&mut [0x10, 0, 1, 0, 0, 0, 0], 0), Verdict::Deliver { sdu: 2..3, count: 0 });
}

/// The receiving entity in the words of TS 38.323 §5.2.2, for bearers without integrity protection.
struct Model {
    bits: u32,
    rx_deliv: i64,
    rx_next: i64,
    rx_reord: i64,
    timer: Option<u64>,
    t_reordering: u64,
    buffer: BTreeMap<i64, u8>,
    delivered: Vec<(u32, u8)>,
}

impl Model {
    fn receive(&mut self, sn: i64, octet: u8, now: u64) {
        let window = 1 << (self.bits - 1);
        let (deliv_sn, deliv_hfn) = (self.rx_deliv % (1 << self.bits), self.rx_deliv >> self.bits);
        let hfn = if sn < deliv_sn - window {
            deliv_hfn + 1
        } else if sn >= deliv_sn + window {
            deliv_hfn - 1
        } else {
            deliv_hfn
        };
        let count = (hfn << self.bits) + sn;
        if count < self.rx_deliv || self.buffer.contains_key(&count) {
            return;
        }
        self.buffer.insert(count, octet);
        if count >= self.rx_next {
            self.rx_next = count + 1;
        }
        if count == self.rx_deliv {
            self.deliver_consecutive(count);
        }
        if self.timer.is_some() && self.rx_deliv >= self.rx_reord {
            self.timer = None;
        }
        self.start(now);
    }

    fn deliver_consecutive(&mut self, mut count: i64) {
        while let Some(octet) = self.buffer.remove(&count) {
            self.delivered.push((count as u32, octet));
            count += 1;
        }
        self.rx_deliv = count;
    }

    fn start(&mut self, now: u64) {
        if self.timer.is_none() && self.rx_deliv < self.rx_next {
            self.rx_reord = self.rx_next;
            self.timer = Some(now + self.t_reordering);
        }
    }

    fn expire(&mut self, now: u64) {
        if self.timer.is_none_or(|at| at > now) {
            return;
        }
        self.timer = None;
        let above = self.buffer.split_off(&self.rx_reord);
        let below = std::mem::replace(&mut self.buffer, above);
        self.delivered.extend(below.into_iter().map(|(count, octet)| (count as u32, octet)));
        self.deliver_consecutive(self.rx_reord);
        self.start(now);
    }
}

/// One event at the receiver.
#[derive(Debug, Clone)]
enum Event {
    /// The PDU with COUNT of the highest sent plus this.
    Receive(i64),
    /// Time passes.
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        10 => Just(Event::Receive(1)),
        4 => (-6_i64..6).prop_map(Event::Receive),
        1 => (-5000_i64..5000).prop_map(Event::Receive),
        2 => (0_u64..60).prop_map(Event::Wait),
    ];
    prop::collection::vec(event, 0..400)
}

proptest! {
    /// The entity does what the text says, step by step, from the beginning and where the HFN changes.
    #[test]
    fn the_receiver_does_what_the_standard_says(
        events in events(),
        start in prop_oneof![Just(0_u32), Just(4090), Just(262_140), Just(1_000_000), Just(u32::MAX - 9000)],
        eighteen in any::<bool>(),
    ) {
        let sn = if eighteen { SnLength::Eighteen } else { SnLength::Twelve };
        let config = drb(sn, false);
        let timer = RxConfig { t_reordering: Some(Duration::from_nanos(100)), ..RxConfig::default() };
        let mut rx = Rx::starting_at(config, plain(), timer, start);
        let mut model = Model {
            bits: sn.bits(),
            rx_deliv: start.into(),
            rx_next: start.into(),
            rx_reord: 0,
            timer: None,
            t_reordering: 100,
            buffer: BTreeMap::new(),
            delivered: Vec::new(),
        };
        let (mut delivered, mut highest, mut now) = (Vec::new(), i64::from(start) - 1, 0);
        for event in events {
            match event {
                Event::Receive(step) => {
                    let count = highest + step;
                    highest = highest.max(count);
                    // The model does not know what the standard leaves open: COUNTs below 0.
                    if count < i64::from(sn.window()) && model.rx_deliv < i64::from(sn.window()) && count < 0 {
                        continue;
                    }
                    let Ok(count) = u32::try_from(count) else { continue };
                    if model.rx_deliv + i64::from(sn.window()) <= i64::from(count) && (count >> sn.bits()) == 0 {
                        continue;
                    }
                    let octet = count as u8;
                    let pdu = seal(&mut Tx::starting_at(config, plain(), count), &[octet]);
                    for (count, sdu) in deliver(&mut rx, &pdu, now) {
                        delivered.push((count, sdu[0]));
                    }
                    model.receive(i64::from(count & sn.mask()), octet, now);
                }
                Event::Wait(time) => {
                    now += time;
                    let due = rx.next_expiry();
                    prop_assert_eq!(due, model.timer);
                    prop_assert_eq!(rx.expire(now), due.is_some_and(|due| due <= now));
                    rx.release(|sdu, count| delivered.push((count, sdu[0])));
                    model.expire(now);
                }
            }
            prop_assert_eq!(rx.rx_deliv as i64, model.rx_deliv);
            prop_assert_eq!(rx.rx_next as i64, model.rx_next);
            prop_assert_eq!(rx.held().0, model.buffer.len());
            prop_assert_eq!(&delivered, &model.delivered);
        }
        prop_assert!(delivered.windows(2).all(|pair| pair[0].0 < pair[1].0), "out of order or twice");
    }

    /// A link that loses, delays, repeats and forges: what is delivered is what was sent, in order, each once; and all of
    /// it when nothing was lost for good.
    #[test]
    fn delivery_is_in_order_and_exactly_once(
        seed in any::<u64>(),
        total in 1_usize..600,
        loss in 0_u64..4,
        eighteen in any::<bool>(),
    ) {
        let sn = if eighteen { SnLength::Eighteen } else { SnLength::Twelve };
        let config = drb(sn, eighteen);
        let (mut tx, mut rx) =
            (Tx::starting_at(config, protected(), 4000), Rx::starting_at(config, protected(), RxConfig::default(), 4000));
        let mut state = seed | 1;
        let mut random = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        let sdu = |i: usize| -> Vec<u8> { (0..1 + i * 37 % 90).map(|j| (i * 13 + j) as u8).collect() };
        let (mut air, mut kept, mut got, mut lost) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for i in 0..total {
            let pdu = seal(&mut tx, &sdu(i));
            if random(10) < loss {
                lost += 1;
            } else {
                air.push((i as u64 + random(20), pdu.clone()));
                if random(8) == 0 {
                    air.push((i as u64 + random(60), pdu.clone()));
                }
                kept.push(4000 + i as u32);
            }
            if random(5) == 0 {
                let mut forged = pdu;
                let at = random(forged.len() as u64) as usize;
                forged[at] ^= 1 << random(7);
                air.push((i as u64 + random(30), forged));
            }
        }
        air.sort_by_key(|(at, _)| *at);
        for (at, pdu) in &air {
            got.extend(deliver(&mut rx, pdu, at * 1_000_000));
        }
        while let Some(expiry) = rx.next_expiry() {
            rx.expire(expiry);
            rx.release(|sdu, count| got.push((count, sdu.to_vec())));
        }
        for (count, octets) in &got {
            prop_assert_eq!(octets, &sdu(*count as usize - 4000));
        }
        let counts: Vec<u32> = got.iter().map(|(count, _)| *count).collect();
        // Nothing is later than the timer, so nothing that arrived is given up.
        prop_assert_eq!(counts, kept);
        let last_lost = total as u64 - (rx.rx_deliv - 4000);
        prop_assert_eq!(rx.counters().lost + last_lost, lost);
        prop_assert_eq!(rx.held(), (0, 0));
    }

    /// Octets of anyone: no panic, and nothing delivered with integrity protection.
    #[test]
    fn noise_is_not_delivered(
        pdus in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..200),
        which in 0_usize..64,
    ) {
        let all = every_config();
        let (config, security) = &all[which % all.len()];
        let mut rx = Rx::new(*config, security.clone(), RxConfig::default());
        let signed = security.algorithms().1 == Some(IntegrityAlgorithm::Nia2);
        for (now, pdu) in pdus.iter().enumerate() {
            let delivered = deliver(&mut rx, pdu, now as u64);
            prop_assert!(!signed || delivered.is_empty());
            rx.expire(now as u64 * 50_000_000);
        }
        prop_assert!(!signed || rx.held() == (0, 0));
    }
}
