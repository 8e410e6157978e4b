//! RLC AM between two entities, over channels that lose, repeat and reorder PDUs, and against hostile peers. Every run follows
//! from a seed.

use std::collections::BTreeSet;

use l2::rlc::am::pdu::{END_OF_SDU, Header, Nack, Pdu, Status};
use l2::rlc::am::{Config, Entity, Failure, Received, SnLength};
use l2::rlc::{PduError, SduError, SegmentInfo};

const MS: u64 = 1_000_000;
const LENGTHS: [SnLength; 2] = [SnLength::Bits12, SnLength::Bits18];

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
}

fn sdu(number: u32, octets: usize) -> Vec<u8> {
    let mut sdu: Vec<u8> = (0..octets).map(|at| (at as u32 * 7 + number) as u8).collect();
    for (to, from) in sdu.iter_mut().zip(number.to_be_bytes()) {
        *to = from;
    }
    sdu
}

fn config(sn: SnLength) -> Config {
    Config {
        sn,
        max_retx_threshold: 1_000,
        poll_pdu: Some(16),
        poll_byte: Some(20_000),
        ..Config::SIGNALLING
    }
}

/// One side: its entity, what it has taken and sent, and the PDUs that are on their way to it.
struct Side {
    entity: Entity<usize>,
    sent: Vec<Vec<u8>>,
    got: Vec<Vec<u8>>,
    acknowledged: Vec<usize>,
    inbox: Vec<Vec<u8>>,
}

impl Side {
    fn new(config: Config) -> Side {
        let entity = Entity::new(config);
        Side { entity, sent: Vec::new(), got: Vec::new(), acknowledged: Vec::new(), inbox: Vec::new() }
    }

    fn offer(&mut self, numbers: &mut Numbers, total: usize) {
        while self.sent.len() < total && numbers.below(3) > 0 {
            let octets = match numbers.below(4) {
                0 => 4 + numbers.below(5),
                1 => 4 + numbers.below(9_000),
                _ => 4 + numbers.below(300),
            };
            let one = sdu(self.sent.len() as u32, octets as usize);
            match self.entity.push(one.clone(), self.sent.len()) {
                Ok(()) => self.sent.push(one),
                Err(error) => return assert_eq!(error, SduError::NoRoom),
            }
        }
    }

    fn transmit(&mut self, numbers: &mut Numbers, now_ns: u64) -> Vec<Vec<u8>> {
        let mut pdus = Vec::new();
        for _ in 0..40 {
            let grant = if numbers.below(2) == 0 { 1 + numbers.below(64) } else { 1 + numbers.below(9_000) };
            let mut pdu = Vec::new();
            if let Some(octets) = self.entity.pull(grant as usize, now_ns, &mut pdu) {
                assert!(octets == pdu.len() && octets <= grant as usize);
                pdus.push(pdu);
            } else {
                assert!(pdu.is_empty());
            }
        }
        pdus
    }

    fn take(&mut self, now_ns: u64) {
        for pdu in self.inbox.drain(..) {
            match self.entity.receive(&pdu, now_ns) {
                Ok(Received::Sdu(sdu)) => self.got.push(sdu),
                Ok(Received::Acknowledged(marks)) => self.acknowledged.extend(marks),
                Ok(Received::Kept) => {}
                Err(error) => {
                    assert!(
                        matches!(error, PduError::OutsideWindow | PduError::Status | PduError::NoRoom),
                        "{error}"
                    );
                }
            }
        }
        self.entity.expire(now_ns);
        assert!(self.entity.memory() <= self.entity.most_memory());
    }
}

/// Lets both sides send `total` SDUs; of a hundred PDUs, `loss` are lost, `repeat` come twice, and `late` come a round later.
fn run(config: Config, loss: u64, repeat: u64, late: u64, total: usize, seed: u64) -> [Side; 2] {
    let mut numbers = Numbers(seed);
    let mut sides = [Side::new(config), Side::new(config)];
    let mut delayed: [Vec<Vec<u8>>; 2] = Default::default();
    for round in 0..100_000 {
        let now_ns = round * 2 * MS;
        for at in 0..2 {
            sides[at].offer(&mut numbers, total);
            let mut inbox = std::mem::take(&mut delayed[1 - at]);
            for pdu in sides[at].transmit(&mut numbers, now_ns) {
                if numbers.below(100) < loss {
                    continue;
                }
                if numbers.below(100) < repeat {
                    inbox.push(pdu.clone());
                }
                let to = if numbers.below(100) < late { &mut delayed[1 - at] } else { &mut inbox };
                to.push(pdu);
            }
            if late > 0 {
                for at in 0..inbox.len() {
                    let other = numbers.below(inbox.len() as u64) as usize;
                    inbox.swap(at, other);
                }
            }
            sides[1 - at].inbox = inbox;
        }
        sides.iter_mut().for_each(|side| side.take(now_ns));
        let done = |side: &Side, other: &Side| side.acknowledged.len() == total && other.got.len() == total;
        if done(&sides[0], &sides[1]) && done(&sides[1], &sides[0]) {
            return sides;
        }
        sides.iter().for_each(|side| assert_eq!(side.entity.check(), Ok(()), "seed {seed}"));
    }
    let left = sides.each_ref().map(|side| (side.sent.len(), side.got.len(), side.acknowledged.len()));
    panic!("seed {seed}: {left:?}");
}

fn assert_all_arrived(sides: &[Side; 2], seed: u64) {
    for (from, to) in [(0, 1), (1, 0)] {
        let (sent, mut got) = (&sides[from].sent, sides[to].got.clone());
        got.sort();
        assert!(*sent == got, "seed {seed}: each SDU once, as it was");
        let marks: BTreeSet<usize> = sides[from].acknowledged.iter().copied().collect();
        assert!(marks.len() == sent.len() && sides[from].acknowledged.len() == sent.len());
    }
}

#[test]
fn sdus_arrive_in_order_when_nothing_is_lost() {
    for (sn, seed) in LENGTHS.into_iter().flat_map(|sn| (0..10).map(move |seed| (sn, seed))) {
        let sides = run(config(sn), 0, 0, 0, 300, seed);
        assert_all_arrived(&sides, seed);
        assert!(sides[0].got.is_sorted() && sides[1].got.is_sorted(), "seed {seed}");
    }
}

#[test]
fn sdus_arrive_once_whatever_happens_to_pdus() {
    for (sn, seed) in LENGTHS.into_iter().flat_map(|sn| (0..10).map(move |seed| (sn, seed))) {
        for (loss, repeat, late) in [(0, 20, 30), (5, 0, 0), (20, 10, 20), (50, 5, 10)] {
            let sides = run(config(sn), loss, repeat, late, 200, seed);
            assert_all_arrived(&sides, seed);
        }
    }
    // With the parameters of a signalling bearer, but for the threshold, and with prohibited statuses.
    for seed in 0..10 {
        let config = Config {
            max_retx_threshold: 1_000,
            t_status_prohibit_ns: 20 * MS,
            rx_limit: 20_000,
            ..Config::SIGNALLING
        };
        assert_all_arrived(&run(config, 20, 10, 20, 200, seed), seed);
    }
}

#[test]
fn sequence_numbers_begin_again() {
    let mut numbers = Numbers(1);
    let mut sides = [Side::new(config(SnLength::Bits12)), Side::new(config(SnLength::Bits12))];
    for n in 0..10_000u32 {
        let now_ns = u64::from(n) * MS;
        sides[0].entity.push(sdu(n, 20), n as usize).unwrap();
        for at in 0..2 {
            let mut pdu = Vec::new();
            while sides[at].entity.pull(100, now_ns, &mut pdu).is_some() {
                if numbers.below(20) > 0 {
                    sides[1 - at].inbox.push(std::mem::take(&mut pdu));
                }
                pdu.clear();
            }
        }
        sides.iter_mut().for_each(|side| side.take(now_ns));
    }
    let got: BTreeSet<_> = sides[1].got.iter().cloned().collect();
    assert!(got.len() > 9_900 && got.len() == sides[1].got.len());
}

fn data(sn: u32, so: u16, si: SegmentInfo, poll: bool, octets: &[u8]) -> Vec<u8> {
    let mut pdu = Vec::new();
    Header { poll, si, sn, so }.write(SnLength::Bits12, &mut pdu);
    pdu.extend(octets);
    pdu
}

fn status_of(entity: &mut Entity<()>, grant: usize, now_ns: u64) -> Option<Status> {
    let mut pdu = Vec::new();
    entity.pull(grant, now_ns, &mut pdu)?;
    match Pdu::parse(&pdu, SnLength::Bits12) {
        Ok(Pdu::Status(status)) => Some(status),
        found => panic!("{found:?}"),
    }
}

#[test]
fn a_status_says_what_is_missing() {
    use SegmentInfo::{First, Last, Middle, Whole};
    let mut entity = Entity::<()>::new(Config { t_status_prohibit_ns: 50 * MS, ..Config::SIGNALLING });
    assert_eq!(entity.receive(&data(0, 0, Whole, true, b"0"), 0), Ok(Received::Sdu(b"0".to_vec())));
    assert_eq!(status_of(&mut entity, 99, 0), Some(Status { ack_sn: 1, nacks: vec![] }));
    // 1 is there without its middle, 2 to 301 are missing, 302 lacks its begin, 303 its end, 304 asks.
    for pdu in [
        data(1, 0, First, false, b"abc"),
        data(1, 9, Last, false, b"x"),
        data(302, 4, Last, false, b"e"),
        data(303, 0, First, false, b"abcd"),
    ] {
        assert_eq!(entity.receive(&pdu, MS), Ok(Received::Kept));
    }
    assert_eq!(entity.receive(&data(304, 0, Whole, true, b"f"), MS), Ok(Received::Sdu(b"f".to_vec())));
    assert_eq!(status_of(&mut entity, 99, MS), None, "what is missing may still come");
    entity.expire(36 * MS);
    assert_eq!(status_of(&mut entity, 99, 36 * MS), None, "t-StatusProhibit runs");
    assert_eq!(entity.deadline_ns(), Some(50 * MS));
    // When the timer began, 1 was the highest that had come.
    let of_1 = Nack { sn: 1, range: 1, part: Some((3, 8)) };
    assert_eq!(status_of(&mut entity, 99, 50 * MS), Some(Status { ack_sn: 2, nacks: vec![of_1] }));
    assert_eq!(entity.deadline_ns(), Some(71 * MS));
    entity.expire(71 * MS);
    let expected = Status {
        ack_sn: 305,
        nacks: vec![
            of_1,
            Nack { sn: 2, range: 255, part: None },
            Nack { sn: 257, range: 45, part: None },
            Nack { sn: 302, range: 1, part: Some((0, 3)) },
            Nack { sn: 303, range: 1, part: Some((4, END_OF_SDU)) },
        ],
    };
    assert_eq!(status_of(&mut entity, 99, 100 * MS), Some(expected));
    // Room for less: the status ends where it is complete.
    for (grant, ack_sn, nacks) in
        [(3, 1, 0), (8, 1, 0), (9, 2, 1), (11, 2, 1), (12, 257, 2), (15, 302, 3), (21, 303, 4)]
    {
        assert_eq!(entity.receive(&data(304, 0, Whole, true, b"f"), MS), Err(PduError::OutsideWindow));
        let found = status_of(&mut entity, grant, 1_000 * MS * grant as u64).unwrap();
        assert_eq!((found.ack_sn, found.nacks.len()), (ack_sn, nacks), "grant {grant}");
    }
    assert_eq!(
        entity.receive(&data(1, 3, Middle, false, b"defghi"), MS),
        Ok(Received::Sdu(b"abcdefghix".to_vec()))
    );
}

#[test]
fn an_entity_fails_after_too_many_retransmissions() {
    let mut entity = Entity::new(Config { max_retx_threshold: 4, ..Config::SIGNALLING });
    entity.push(vec![7; 100], "mark").unwrap();
    let mut sent = 0;
    let mut now_ns = 0;
    loop {
        let mut pdu = Vec::new();
        while entity.pull(200, now_ns, &mut pdu).is_some() {
            assert!(pdu[0] & 0x40 != 0, "the last PDU asks for a status");
            sent += 1;
            pdu.clear();
        }
        let Some(due_ns) = entity.deadline_ns() else { break };
        now_ns = due_ns;
        entity.expire(now_ns);
    }
    assert_eq!((sent, entity.check()), (1 + 4, Err(Failure::MaxRetransmissions)));
    assert!(!entity.has_data(now_ns));
    entity.reset();
    assert_eq!((entity.check(), entity.memory()), (Ok(()), 0));
}

/// An entity that has sent the SDUs 0 to 4 of ten octets, and half of SDU 5.
fn sender() -> Entity<u32> {
    let mut entity = Entity::new(Config::SIGNALLING);
    let mut pdu = Vec::new();
    for n in 0..6 {
        entity.push(vec![n as u8; 10], n).unwrap();
    }
    for _ in 0..5 {
        assert_eq!(entity.pull(12, 0, &mut pdu), Some(12));
    }
    assert_eq!(entity.pull(7, 0, &mut pdu), Some(7));
    entity
}

/// Sequence number, range and part of a NACK.
type Missing = (u32, u8, Option<(u16, u16)>);

fn status(ack_sn: u32, nacks: &[Missing]) -> Vec<u8> {
    let nacks = nacks.iter().map(|(sn, range, part)| Nack { sn: *sn, range: *range, part: *part }).collect();
    let mut pdu = Vec::new();
    Status { ack_sn, nacks }.write(SnLength::Bits12, &mut pdu);
    pdu
}

#[test]
fn a_status_that_lies_changes_nothing() {
    let end = END_OF_SDU;
    for lie in [
        status(7, &[]),
        // Of SDU 5, only half was sent.
        status(6, &[]),
        status(4095, &[]),
        status(3, &[(3, 1, None)]),
        status(3, &[(2, 2, None)]),
        status(3, &[(4000, 1, None)]),
        status(5, &[(0, 255, None)]),
        status(5, &[(2, 1, None), (1, 1, None)]),
        status(5, &[(2, 1, None), (2, 1, None)]),
        status(5, &[(2, 1, Some((10, 12)))]),
        status(5, &[(2, 1, Some((0, 10)))]),
        status(5, &[(2, 1, Some((0, 5))), (2, 1, Some((5, 6)))]),
        status(5, &[(2, 1, Some((5, end))), (2, 1, Some((0, 4)))]),
        status(5, &[(1, 2, Some((11, 4)))]),
    ] {
        let mut entity = sender();
        let memory = entity.memory();
        assert_eq!(entity.receive(&lie, 0), Err(PduError::Status), "{lie:02x?}");
        assert_eq!(entity.memory(), memory);
        // The rest of SDU 5 comes next, as if nothing had been said.
        let mut pdu = Vec::new();
        assert_eq!((entity.pull(99, 0, &mut pdu), &pdu[2..4]), (Some(9), &[0, 5][..]));
    }
    let mut entity = sender();
    let honest =
        status(6, &[(1, 1, Some((2, 3))), (1, 1, Some((8, end))), (3, 1, None), (5, 1, Some((5, end)))]);
    assert_eq!(entity.receive(&honest, 0), Ok(Received::Acknowledged(vec![0, 2, 4])));
    assert_eq!(entity.receive(&status(0, &[]), 0), Err(PduError::Status), "older than what has come");
    let mut pdus = Vec::new();
    let mut pdu = Vec::new();
    while entity.pull(99, 0, &mut pdu).is_some() {
        pdus.push(std::mem::take(&mut pdu));
    }
    let parts: Vec<_> = pdus
        .iter()
        .map(|pdu| match Pdu::parse(pdu, SnLength::Bits12) {
            Ok(Pdu::Data(header, data)) => (header.sn, header.so, data.len(), header.poll),
            found => panic!("{found:?}"),
        })
        .collect();
    assert_eq!(parts, [(1, 2, 2, false), (1, 8, 2, false), (3, 0, 10, false), (5, 5, 5, true)]);
    assert_eq!(entity.receive(&status(6, &[]), 0), Ok(Received::Acknowledged(vec![1, 3, 5])));
    assert_eq!(entity.memory(), 0);
}

#[test]
fn no_octets_are_a_panic_and_memory_stays_bounded() {
    let mut numbers = Numbers(3);
    for sn in LENGTHS {
        let mut entity = Entity::new(Config { sn, rx_limit: 30_000, tx_limit: 30_000, ..Config::SIGNALLING });
        for round in 0..100_000u64 {
            let now_ns = round * 100_000;
            let mut pdu: Vec<u8> = (0..numbers.below(24)).map(|_| numbers.next() as u8).collect();
            if numbers.below(2) == 0 && pdu.len() > 2 {
                // Near the begin of the window, where more can happen.
                (pdu[0], pdu[1]) = (pdu[0] & 0xF0, pdu[1] & 0x07);
            }
            let _ = entity.receive(&pdu, now_ns);
            let _ = entity.push(vec![1; 1 + numbers.below(50) as usize], ());
            let mut out = Vec::new();
            let _ = entity.pull(1 + numbers.below(60) as usize, now_ns, &mut out);
            entity.expire(now_ns);
            assert!(entity.memory() <= entity.most_memory());
            if entity.check().is_err() {
                entity.reset();
            }
        }
    }
}
