//! RLC UM from one entity to the other, over channels that lose, repeat and reorder PDUs. Every run follows from a seed.

use l2::rlc::um::{Header, OVERHEAD, Pulled, REASSEMBLY_LIMIT, Received, Rx, SnLength, Tx, is_whole};
use l2::rlc::{LONGEST_SDU, PduError, SduError, SegmentInfo};

const MS: u64 = 1_000_000;
const LENGTHS: [SnLength; 2] = [SnLength::Bits6, SnLength::Bits12];

/// Numbers from a seed (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// An SDU whose octets say which one it is.
fn sdu(number: u32, octets: usize) -> Vec<u8> {
    number
        .to_be_bytes()
        .into_iter()
        .cycle()
        .enumerate()
        .map(|(at, octet)| octet ^ (at / 4) as u8)
        .take(octets)
        .collect()
}

struct Channel {
    /// One PDU in so many is lost, repeated, or changes places with a later one; 0 for none.
    loss: u64,
    repeat: u64,
    reorder: u64,
}

impl Channel {
    /// What becomes of PDUs that are sent together. None passes more than a few others.
    fn carry(&self, pdus: Vec<Vec<u8>>, numbers: &mut Numbers) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for pdu in pdus {
            if self.loss > 0 && numbers.one_in(self.loss) {
                continue;
            }
            if self.repeat > 0 && numbers.one_in(self.repeat) {
                out.push(pdu.clone());
            }
            out.push(pdu);
        }
        for at in 0..out.len() {
            if self.reorder > 0 && numbers.one_in(self.reorder) {
                let other = (at + numbers.below(6) as usize).min(out.len() - 1);
                out.swap(at, other);
            }
        }
        out
    }
}

/// Sends SDUs of all sizes with grants of all sizes; returns them and what has arrived.
fn run(length: SnLength, channel: &Channel, seed: u64) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut numbers = Numbers(seed);
    let (mut tx, mut rx) = (Tx::new(length, 100_000), Rx::new(length, 20 * MS, REASSEMBLY_LIMIT));
    let (mut sent, mut arrived, mut finished) = (Vec::new(), Vec::new(), 0);
    for round in 0..400 {
        let now_ns = round * 5 * MS;
        while sent.len() < 300 && numbers.below(3) > 0 {
            let octets = match numbers.below(3) {
                0 => 1 + numbers.below(4),
                1 => 1 + numbers.below(1_500),
                _ => 1 + numbers.below(LONGEST_SDU as u64),
            };
            let one = sdu(sent.len() as u32, octets as usize);
            if tx.push(one.clone(), sent.len()).is_err() {
                break;
            }
            sent.push(one);
        }
        let mut pdus = Vec::new();
        for _ in 0..40 {
            let grant =
                if numbers.one_in(2) { 1 + numbers.below(64) } else { 1 + numbers.below(9_000) } as usize;
            let (mut pdu, backlog) = (Vec::new(), tx.backlog());
            match tx.pull(grant, &mut pdu) {
                Some(Pulled { octets, finished: mark }) => {
                    assert!(octets == pdu.len() && octets <= grant);
                    assert!(tx.backlog() < backlog);
                    if let Some(mark) = mark {
                        assert_eq!(mark, finished, "SDUs leave in order");
                        finished += 1;
                    }
                    pdus.push(pdu);
                }
                None => assert!(pdu.is_empty() && (backlog == 0 || grant <= 4)),
            }
        }
        for pdu in channel.carry(pdus, &mut numbers) {
            match rx.receive(&pdu, now_ns) {
                Ok(Received::Whole) => arrived.push(pdu[1..].to_vec()),
                Ok(Received::Sdu(sdu)) => arrived.push(sdu),
                Ok(Received::Kept) => {}
                Err(error) => assert_eq!(error, PduError::OutsideWindow, "seed {seed}"),
            }
            assert!(rx.memory() <= REASSEMBLY_LIMIT);
        }
        assert!(rx.deadline_ns().is_none_or(|due_ns| due_ns > now_ns && due_ns <= now_ns + 20 * MS));
        rx.expire(now_ns + 5 * MS);
    }
    assert_eq!((finished, tx.backlog(), tx.waiting()), (300, 0, 0), "seed {seed}");
    rx.expire(u64::MAX);
    rx.expire(u64::MAX);
    assert_eq!(rx.deadline_ns(), None);
    // The standard lets the last SDU wait for its end without a timer.
    assert!(rx.memory() <= LONGEST_SDU + 200, "seed {seed}: {}", rx.memory());
    (sent, arrived)
}

#[test]
fn all_sdus_arrive_in_order_when_nothing_is_lost() {
    for (length, seed) in LENGTHS.into_iter().flat_map(|length| (0..20).map(move |seed| (length, seed))) {
        let (sent, arrived) = run(length, &Channel { loss: 0, repeat: 0, reorder: 0 }, seed);
        assert!(sent == arrived, "seed {seed}");
    }
}

#[test]
fn all_sdus_arrive_when_pdus_change_places_and_repeat() {
    for (length, seed) in LENGTHS.into_iter().flat_map(|length| (0..20).map(move |seed| (length, seed))) {
        let (sent, arrived) = run(length, &Channel { loss: 0, repeat: 10, reorder: 3 }, seed);
        for one in &sent {
            assert!(arrived.contains(one), "{length:?}, seed {seed}");
        }
    }
}

#[test]
fn only_whole_sdus_arrive_when_pdus_are_lost() {
    for (length, seed) in LENGTHS.into_iter().flat_map(|length| (0..20).map(move |seed| (length, seed))) {
        for loss in [2, 5, 50] {
            let (sent, arrived) = run(length, &Channel { loss, repeat: 10, reorder: 5 }, seed);
            let intact = arrived.iter().filter(|one| sent.contains(one)).count();
            assert_eq!(intact, arrived.len(), "{length:?}, seed {seed}: an SDU is not one that was sent");
            assert!(loss < 50 || arrived.len() > 100, "{}", arrived.len());
        }
    }
}

#[test]
fn headers_have_the_octets_of_the_standard() {
    let segment = |si, sn, so| Header::Segment { si, sn, so };
    for (length, header, octets) in [
        (SnLength::Bits6, Header::Whole, &[0x00][..]),
        (SnLength::Bits6, segment(SegmentInfo::First, 0x2A, 0), &[0x6A]),
        (SnLength::Bits6, segment(SegmentInfo::Last, 0x3F, 0x1234), &[0xBF, 0x12, 0x34]),
        (SnLength::Bits12, segment(SegmentInfo::First, 0xABC, 0), &[0x4A, 0xBC]),
        (SnLength::Bits12, segment(SegmentInfo::Middle, 0xFFF, 1), &[0xCF, 0xFF, 0, 1]),
    ] {
        let mut pdu = Vec::new();
        header.write(length, &mut pdu);
        assert_eq!(pdu, octets);
        for end in 0..=octets.len() {
            assert_eq!(Header::parse(&pdu[..end], length), Err(PduError::Truncated), "at octet {end}");
        }
        pdu.push(9);
        assert_eq!(Header::parse(&pdu, length), Ok((header, &[9][..])));
        assert_eq!(is_whole(&pdu), header == Header::Whole);
    }
    let at_zero = [0xFF, 0, 0, 1];
    assert_eq!(Header::parse(&at_zero, SnLength::Bits6), Err(PduError::Inconsistent));
    // Reserved bits are ignored.
    assert_eq!(Header::parse(&[0x3F, 9], SnLength::Bits6), Ok((Header::Whole, &[9][..])));
}

/// A segment with a 6-bit sequence number.
fn segment(si: SegmentInfo, sn: u16, so: u16, data: &[u8]) -> Vec<u8> {
    let mut pdu = Vec::new();
    Header::Segment { si, sn, so }.write(SnLength::Bits6, &mut pdu);
    pdu.extend(data);
    pdu
}

#[test]
fn an_sdu_that_stays_incomplete_is_given_up() {
    use SegmentInfo::{First, Last, Middle};
    let mut rx = Rx::new(SnLength::Bits6, 10 * MS, 1_000);
    assert_eq!(rx.receive(&segment(First, 0, 0, b"ab"), 0), Ok(Received::Kept));
    assert_eq!(rx.deadline_ns(), None, "nothing is missing before what has come");
    assert_eq!(rx.receive(&segment(Last, 0, 4, b"ef"), MS), Ok(Received::Kept));
    assert_eq!(rx.deadline_ns(), Some(11 * MS));
    // Another SDU meanwhile: t-Reassembly runs on, and starts again for it.
    assert_eq!(rx.receive(&segment(Last, 1, 9, b"x"), 2 * MS), Ok(Received::Kept));
    rx.expire(11 * MS - 1);
    assert_eq!((rx.given_up(), rx.deadline_ns()), (0, Some(11 * MS)));
    rx.expire(11 * MS);
    assert_eq!((rx.given_up(), rx.deadline_ns()), (1, Some(21 * MS)));
    assert_eq!(rx.receive(&segment(Middle, 0, 2, b"cd"), 12 * MS), Err(PduError::OutsideWindow));
    assert_eq!(
        rx.receive(&segment(First, 1, 0, b"123456789"), 12 * MS),
        Ok(Received::Sdu(b"123456789x".to_vec()))
    );
    assert_eq!((rx.deadline_ns(), rx.memory()), (None, 0));
    assert_eq!(rx.receive(&segment(First, 1, 0, b"123456789"), 12 * MS), Err(PduError::OutsideWindow));
}

#[test]
fn the_window_moves_with_the_highest_number() {
    use SegmentInfo::{First, Last};
    let mut rx = Rx::new(SnLength::Bits6, 10 * MS, 10_000);
    assert_eq!(rx.receive(&segment(First, 0, 0, b"a"), 0), Ok(Received::Kept));
    assert_eq!(rx.receive(&segment(First, 20, 0, b"b"), 0), Ok(Received::Kept));
    assert_eq!(rx.receive(&segment(First, 31, 0, b"c"), 0), Ok(Received::Kept));
    assert_eq!(rx.given_up(), 0, "32 SDUs are in the window");
    assert_eq!(rx.receive(&segment(First, 32, 0, b"d"), 0), Ok(Received::Kept));
    assert_eq!(rx.given_up(), 1);
    assert_eq!(rx.receive(&segment(Last, 20, 1, b"B"), 0), Ok(Received::Sdu(b"bB".to_vec())));
    assert_eq!(rx.receive(&segment(Last, 31, 1, b"C"), 0), Ok(Received::Sdu(b"cC".to_vec())));
    // A jump by half of all numbers.
    assert_eq!(rx.receive(&segment(First, 0, 0, b"e"), 0), Ok(Received::Kept));
    assert_eq!(rx.given_up(), 2, "SDU 32 is as far back as the window is long");
}

#[test]
fn memory_is_bounded() {
    use SegmentInfo::{Last, Middle};
    let mut rx = Rx::new(SnLength::Bits12, u64::MAX, 20_000);
    let mut numbers = Numbers(7);
    let mut refused = 0;
    for _ in 0..20_000 {
        let si = if numbers.one_in(5) { Last } else { Middle };
        let mut pdu = Vec::new();
        let so = 1 + numbers.below(u64::from(u16::MAX)) as u16;
        Header::Segment { si, sn: numbers.below(4096) as u16, so }.write(SnLength::Bits12, &mut pdu);
        pdu.extend(vec![1; 1 + numbers.below(100) as usize]);
        refused += u32::from(rx.receive(&pdu, 0) == Err(PduError::NoRoom));
        assert!(rx.memory() <= 20_000);
    }
    assert!(refused > 100);
    let mut tx = Tx::new(SnLength::Bits6, 10 + 2 * OVERHEAD);
    assert_eq!(tx.push(Vec::new(), ()), Err(SduError::Empty));
    assert_eq!(tx.push(vec![0; LONGEST_SDU + 1], ()), Err(SduError::TooLong));
    assert_eq!((tx.push(vec![0; 6], ()), tx.push(vec![0; 5], ())), (Ok(()), Err(SduError::NoRoom)));
    let mut pdu = Vec::new();
    assert_eq!(tx.pull(3, &mut pdu).map(|pulled| pulled.finished), Some(None));
    assert_eq!(tx.push(vec![0; 5], ()), Err(SduError::NoRoom), "what has been begun is still there");
    assert!(
        tx.pull(99, &mut pdu).is_some() && tx.push(vec![0; 6], ()).is_ok() && tx.push(vec![0; 4], ()).is_ok()
    );
    assert_eq!((tx.discard(|()| true), tx.push(vec![0; 6], ())), (2, Ok(())));
    assert_eq!((tx.reset(), tx.backlog(), tx.pull(99, &mut Vec::new())), (1, 0, None));
}

#[test]
fn no_octets_are_a_panic() {
    let mut numbers = Numbers(3);
    for length in LENGTHS {
        let mut rx = Rx::new(length, MS, REASSEMBLY_LIMIT);
        for round in 0..200_000 {
            let pdu: Vec<u8> = (0..numbers.below(9)).map(|_| numbers.next() as u8).collect();
            let _ = rx.receive(&pdu, round * 1_000);
            rx.expire(round * 1_000);
        }
    }
}
