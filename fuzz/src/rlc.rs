//! RLC and `uu`: datagrams of UEs, and RLC entities that get any PDUs.

use l2::rlc::LONGEST_SDU;
use l2::rlc::am::{self, pdu::Pdu};
use l2::rlc::um::{self, Header, Received, SnLength};
use l2::uu;

/// Octets that the entities may keep.
const LIMIT: usize = 64 * 1024;

/// Splits a program into PDUs: each has its length in one octet in front.
fn pdus(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = data.split_first()?;
        let (pdu, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        data = rest;
        Some(pdu)
    })
}

/// A program of PDUs for a receiving entity: the first octet chooses the length of sequence numbers.
pub fn um(data: &[u8]) {
    let Some((choice, program)) = data.split_first() else { return };
    let length = if choice & 1 == 0 { SnLength::Bits6 } else { SnLength::Bits12 };
    let mut rx = um::Rx::new(length, 5, LIMIT);
    for (now_ns, pdu) in pdus(program).enumerate() {
        if let Ok((header, data)) = Header::parse(pdu, length) {
            let mut again = Vec::new();
            header.write(length, &mut again);
            again.extend(data);
            assert_eq!(Header::parse(&again, length), Ok((header, data)));
        }
        if let Ok(Received::Sdu(sdu)) = rx.receive(pdu, now_ns as u64) {
            assert!((1..=LONGEST_SDU).contains(&sdu.len()));
        }
        rx.expire(now_ns as u64);
        assert!(rx.memory() <= LIMIT);
    }
}

/// Segments of one SDU and of the next, in the wrong order.
pub fn um_seeds() -> Vec<Vec<u8>> {
    [(0, SnLength::Bits6), (1, SnLength::Bits12)]
        .map(|(choice, length)| {
            let mut tx = um::Tx::new(length, LIMIT);
            let mut program = vec![choice];
            for sdu in [40, 3, 90] {
                let _ = tx.push(vec![sdu; sdu.into()], ());
            }
            let mut pdus: Vec<Vec<u8>> = std::iter::from_fn(|| {
                let mut pdu = Vec::new();
                tx.pull(17, &mut pdu).map(|_| pdu)
            })
            .collect();
            pdus.swap(0, 1);
            for pdu in pdus {
                program.push(pdu.len() as u8);
                program.extend(pdu);
            }
            program
        })
        .to_vec()
}

/// A datagram of the link between UEs and a DU: what is read is written with the same octets.
pub fn uu(data: &[u8]) {
    if let Ok((header, payload)) = uu::Header::parse(data) {
        assert_eq!(header.datagram(payload), data);
    }
}

/// One datagram of each kind.
pub fn uu_seeds() -> Vec<Vec<u8>> {
    use uu::{Header, Kind};
    let control = |kind, c_rnti| Header { kind, c_rnti, lcid: 0, cell: 0x1_2345_6789 };
    vec![
        Header::uplink(1, 0x4601, 4).datagram(&[0, 1, 2]),
        Header::downlink(1, 0x4601, 32).datagram(&[0, 1, 2]),
        control(Kind::Preamble, 0).datagram(b"abcdef"),
        control(Kind::RandomAccessResponse, 9).datagram(b"abcdef"),
        control(Kind::Backoff, 0).datagram(b"abcdef"),
        control(Kind::Release, 9).datagram(&[]),
    ]
}

/// A program of PDUs for an entity in acknowledged mode, which also sends.
pub fn am(data: &[u8]) {
    let Some((choice, program)) = data.split_first() else { return };
    let sn = if choice & 1 == 0 { am::SnLength::Bits12 } else { am::SnLength::Bits18 };
    let limits = am::Config { sn, tx_limit: LIMIT, rx_limit: LIMIT, ..am::Config::SIGNALLING };
    let mut entity = am::Entity::new(limits);
    for (now_ms, pdu) in pdus(program).enumerate() {
        let now_ns = now_ms as u64 * 10_000_000;
        if let Ok(Pdu::Status(status)) = Pdu::parse(pdu, sn) {
            let mut again = Vec::new();
            status.write(sn, &mut again);
            assert_eq!(Pdu::parse(&again, sn), Ok(Pdu::Status(status)));
        }
        let _ = entity.push(vec![7; 1 + now_ms % 50], ());
        let mut out = Vec::new();
        let _ = entity.pull(1 + now_ms % 30, now_ns, &mut out);
        let _ = entity.receive(pdu, now_ns);
        entity.expire(now_ns);
        assert!(entity.memory() <= entity.most_memory());
    }
}

/// What one entity sends to another that has got only some of it, and the other's answers.
pub fn am_seeds() -> Vec<Vec<u8>> {
    let program = |(choice, sn)| {
        let config = am::Config { sn, ..am::Config::SIGNALLING };
        let mut entities = [am::Entity::new(config), am::Entity::new(config)];
        let mut program = vec![choice];
        for round in 0..20u64 {
            let now_ns = round * 50_000_000;
            let _ = entities[0].push(vec![round as u8; 30], ());
            for sender in 0..2 {
                let mut pdu = Vec::new();
                while entities[sender].pull(20, now_ns, &mut pdu).is_some() {
                    program.push(pdu.len() as u8);
                    program.extend(&pdu);
                    if round % 3 > 0 {
                        let _ = entities[1 - sender].receive(&pdu, now_ns);
                    }
                    pdu.clear();
                }
                entities[sender].expire(now_ns);
            }
        }
        program
    };
    [(0, am::SnLength::Bits12), (1, am::SnLength::Bits18)].map(program).to_vec()
}
