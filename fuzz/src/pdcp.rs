//! SDAP and PDCP: headers and control PDUs, and receiving entities under hostile sequences.

use std::time::Duration;

use l2::pdcp::{
    Config, ControlType, Discard, Rx, RxConfig, Security, SnLength, SrbId, StatusReport, Tx, Verdict,
};
use l2::sdap::{self, DownlinkHeader, Drb, DrbId, Entity, Uplink};
use l2::security::{Cipher, CipheringAlgorithm, Direction, Integrity, IntegrityAlgorithm};
use types::{Key, Qfi};

/// Most SDUs and octets that the entities here hold.
const HELD: usize = 8;
const HELD_OCTETS: usize = 600;

/// SDAP: headers of both directions, and a program of changes to the entity. Each step is three octets: what to do, a flow
/// with flags, a bearer.
pub fn sdap(data: &[u8]) {
    if let Some(first) = data.first() {
        assert_eq!(DownlinkHeader::decode(*first).encode(), *first);
        let uplink = Uplink::decode(*first);
        assert_eq!(Uplink::decode(uplink.encode()), uplink);
    }
    let mut entity = Entity::new();
    for step in data.chunks_exact(3).take(200) {
        let header = DownlinkHeader::decode(step[1]);
        let Some(id) = DrbId::new(step[2] % 34) else { continue };
        match step[0] % 5 {
            0 => {
                let drb = Drb { id, uplink_header: header.rdi, downlink_header: header.rqi };
                let default = step[0] >= 0x80;
                assert_eq!(entity.add_drb(drb, default).is_err(), default && !drb.uplink_header);
            }
            1 => entity.remove_drb(id),
            2 => entity.unmap(header.qfi),
            _ => {
                let before = entity.drb(header.qfi);
                match entity.map(header.qfi, id) {
                    Ok(marker) => {
                        assert_eq!(entity.drb(header.qfi), Some(id));
                        if let Some((drb, _)) = marker {
                            assert!(Some(drb) == before && entity.has_header(drb, Direction::Uplink));
                        }
                    }
                    Err(_) => assert_eq!(entity.drb(header.qfi), before),
                }
            }
        }
        assert!((0..64).filter_map(|qfi| Qfi::new(qfi).ok()).all(|qfi| {
            // No flow leads to a bearer that was removed.
            entity
                .drb(qfi)
                .is_none_or(|id| entity.flow_of(id).is_some() || entity.has_header(id, Direction::Uplink))
        }));
    }
}

pub fn sdap_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0x80, 0xC0, 1, 0, 0xC0, 2, 3, 9, 2, 3, 10, 2, 3, 9, 1, 1, 0, 2, 2, 9, 0],
        vec![0, 0, 5, 3, 1, 5, 3, 2, 5, 2, 1, 0, 3, 2, 5],
    ]
}

/// A status report: what is read is built again and read again.
pub fn status(data: &[u8]) {
    let Some(report) = StatusReport::parse(data) else { return };
    let received: Vec<u32> = report.received_above().collect();
    let built = StatusReport::build(report.first_missing, received.iter().copied());
    let again = StatusReport::parse(&built).expect("what we build is well-formed");
    assert_eq!(again.first_missing, report.first_missing);
    assert!(again.received_above().eq(received));
}

pub fn status_seeds() -> Vec<Vec<u8>> {
    vec![StatusReport::build(7, [8, 10, 200]), StatusReport::build(u32::MAX - 3, [u32::MAX]), vec![0; 5]]
}

fn security(integrity: bool) -> Security {
    let key = Key::new([3; 16]);
    let integrity = integrity.then(|| Integrity::new(IntegrityAlgorithm::Nia2, &key));
    Security::new(Cipher::new(CipheringAlgorithm::Nea2, &key), integrity)
}

fn config(which: u8) -> (Config, bool) {
    let sn = if which & 1 == 0 { SnLength::Twelve } else { SnLength::Eighteen };
    let id = DrbId::new(1 + (which >> 3) % 32).expect("1…32");
    if which & 6 == 6 {
        (Config::srb(SrbId::Srb1, Direction::Uplink), true)
    } else {
        (Config::drb(id, Direction::Uplink, sn, which & 2 != 0), which & 4 != 0)
    }
}

/// A receiving entity. The first octet chooses the bearer, the next four RX_DELIV; then come PDUs, each behind an octet of
/// length and one of time. An odd time has the PDU sealed first by a genuine sender at the COUNT in its first octets.
pub fn receive(data: &[u8]) {
    let Some(([which, start @ ..], mut rest)) = data.split_first_chunk::<5>() else { return };
    let (config, integrity) = config(*which);
    let out_of_order_delivery = which & 0x40 != 0;
    let limits = RxConfig {
        t_reordering: Some(Duration::from_nanos(300)),
        out_of_order_delivery,
        max_held: HELD,
        max_held_octets: HELD_OCTETS,
    };
    let mut rx = Rx::starting_at(config, security(integrity), limits, u32::from_be_bytes(*start));
    let (mut now, mut last, mut seen) = (0, None, std::collections::HashSet::new());
    while let Some(([length, time], more)) = rest.split_first_chunk::<2>() {
        let (pdu, more) = more.split_at(more.len().min(usize::from(*length)));
        rest = more;
        now += u64::from(*time);
        let genuine = time % 2 == 1 && pdu.len() >= 4;
        let mut pdu = if genuine { sealed(config, integrity, pdu) } else { pdu.to_vec() };
        let before = (rx.rx_deliv(), rx.rx_next(), rx.held());
        let verdict = rx.open(&mut pdu, now);
        let mut delivered = |count: u32| {
            assert!(out_of_order_delivery || last.is_none_or(|last| last < count), "out of order");
            assert!(seen.insert(count), "delivered twice");
            last = Some(count);
        };
        match &verdict {
            Verdict::Deliver { sdu, count } => {
                assert!(sdu.end <= pdu.len() && (genuine || !integrity));
                delivered(*count);
            }
            Verdict::Held => assert!(genuine || !integrity),
            Verdict::Control(ControlType::StatusReport) => {
                assert!(StatusReport::parse(&pdu).is_some());
            }
            Verdict::Control(_) => {}
            Verdict::Discarded(Discard::IntegrityFailure) => assert!(integrity),
            Verdict::Discarded(_) => {}
        }
        if matches!(verdict, Verdict::Control(_) | Verdict::Discarded(_)) {
            assert_eq!((rx.rx_deliv(), rx.rx_next(), rx.held()), before, "a dropped PDU changed state");
        }
        rx.release(|_, count| delivered(count));
        if rx.next_expiry().is_some_and(|expiry| expiry <= now) {
            assert!(rx.expire(now));
            rx.release(|_, count| delivered(count));
        }
        let (held, octets) = rx.held();
        assert!(held <= HELD && octets <= HELD_OCTETS, "{held} SDUs, {octets} octets");
        assert!(rx.rx_deliv().is_none() || rx.rx_next().is_none_or(|next| Some(next) >= rx.rx_deliv()));
    }
}

/// The PDU of a genuine sender; its COUNT is the first four octets of the SDU.
fn sealed(config: Config, integrity: bool, sdu: &[u8]) -> Vec<u8> {
    let count = sdu.first_chunk().map_or(0, |count| u32::from_be_bytes(*count));
    let mut tx = Tx::starting_at(config, security(integrity), count);
    let mut pdu = [&vec![0; tx.header_len()], sdu, &vec![0; tx.trailer_len()]].concat();
    tx.seal(&mut pdu).expect("there is room, and the SDU is short");
    pdu
}

pub fn receive_seeds() -> Vec<Vec<u8>> {
    let conversation = |which: u8, start: u32, counts: &[u32]| {
        let mut seed = vec![which];
        seed.extend(start.to_be_bytes());
        for count in counts {
            seed.extend([6, 21]);
            seed.extend(count.to_be_bytes());
            seed.extend([sdap::HEADER_LEN as u8, 0x45]);
        }
        // A status report, and a PDU cut short.
        seed.extend([5, 2, 0, 0, 0, 0, 9, 1, 2, 0x80]);
        seed
    };
    vec![
        conversation(0, 0, &[0, 1, 2, 4, 3, 3, 7, 6]),
        conversation(5, 0, &[1, 0, 2, 2, 9]),
        conversation(7, 4090, &[4090, 4097, 4091, 4095, 4098]),
        conversation(0x43, u32::MAX - 2, &[u32::MAX, u32::MAX - 1, u32::MAX - 2]),
    ]
}
