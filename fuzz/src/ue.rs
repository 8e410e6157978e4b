//! The user plane of UEs: a DU, or somebody who pretends to be one, sends it datagrams while time goes on.

use std::net::SocketAddr;
use std::time::Duration;

use l2::pdcp::{Config, Rx, RxConfig, Security, SnLength, Tx};
use l2::rlc::um;
use l2::sdap::{Drb, DrbId};
use l2::security::Direction;
use l2::uu::Header;
use path::{Graph as _, Ports};
use pktio::{VECTOR, Vector, memory};
use types::{NrCellId, Qfi};
use ue::{BearerSetup, SessionId, TUN, UU, UserPlane};

const CELL: u64 = 0x1234;
const C_RNTI: u16 = 0x4601;
/// Logical channels of the two bearers: with SDAP header and 18 bits, and without and with 12.
const LCIDS: [u8; 2] = [4, 5];
/// Datagrams of one input.
const DATAGRAMS: usize = 200;

fn bearer(number: u8) -> Option<BearerSetup> {
    let id = DrbId::new(number)?;
    let header = number == 1;
    let sn = if header { SnLength::Eighteen } else { SnLength::Twelve };
    let config = |direction| Config::drb(id, direction, sn, header);
    Some(BearerSetup {
        lcid: *LCIDS.get(usize::from(number) - 1)?,
        drb: Drb { id, uplink_header: header, downlink_header: header },
        default: header,
        flows: vec![Qfi::new(number).ok()?],
        rlc: if header { um::SnLength::Bits12 } else { um::SnLength::Bits6 },
        t_reassembly: Duration::from_millis(20),
        // Without integrity protection, so that mutations reach what is behind it.
        tx: Tx::new(config(Direction::Uplink), Security::none()),
        rx: Rx::new(
            config(Direction::Downlink),
            Security::none(),
            RxConfig { max_held: 16, ..RxConfig::default() },
        ),
    })
}

/// Each datagram is behind an octet of length and one of time in milliseconds. A last bit of time says that it is an RLC PDU,
/// which gets a header; its first octet says on which bearer.
pub fn downlink(data: &[u8]) {
    let du = SocketAddr::from(([192, 0, 2, 1], 38_321));
    let (mut plane, _, _events) = UserPlane::new();
    let cell = NrCellId::new(CELL).expect("36 bits");
    let ue = plane.add_ue(cell, du, C_RNTI).expect("the first");
    let (session, _) = plane.add_session(ue, Qfi::new(1).expect("six bits")).expect("the first");
    let (uu_port, uu) = memory::pair(10_000);
    let (tun_port, tun) = memory::pair(10_000);
    let mut ports: Ports = vec![Box::new(uu_port), Box::new(tun_port)];
    for number in [1, 2] {
        let setup = bearer(number).expect("it has a channel");
        plane.add_bearer(session, setup, &mut ports).expect("they differ");
    }
    let (mut now_ns, mut rest) = (1, data);
    for _ in 0..DATAGRAMS {
        let Some(([length, time], more)) = rest.split_first_chunk::<2>() else { break };
        let (octets, more) = more.split_at(more.len().min(usize::from(*length)));
        rest = more;
        now_ns += u64::from(time >> 1) * 1_000_000;
        match octets.split_first() {
            Some((which, pdu)) if time & 1 == 1 => {
                let lcid = LCIDS[usize::from(which & 1)];
                uu.inject(&Header::downlink(CELL, C_RNTI, lcid).datagram(pdu), du);
            }
            _ => uu.inject(octets, du),
        }
        step(&mut plane, &mut ports, now_ns);
        check(&tun, session);
    }
    // Whatever came before, what waits is given up in the end.
    let mut turns = 0;
    while let Some(due_ns) = plane.turn(now_ns, &mut ports) {
        turns += 1;
        assert!(turns < 4 * DATAGRAMS, "something is due for ever");
        now_ns = now_ns.max(due_ns);
        check(&tun, session);
    }
}

fn step(plane: &mut UserPlane, ports: &mut Ports, now_ns: u64) {
    let mut vector = Vector::new(VECTOR, 9_216);
    while ports[UU].receive(&mut vector).expect("memory does not fail") > 0 {
        plane.process(UU, &mut vector, now_ns, ports);
        vector.clear();
    }
    assert!(ports.len() > TUN);
    plane.turn(now_ns, ports);
}

fn check(tun: &memory::Wire, session: SessionId) {
    for (packet, to) in tun.take() {
        assert!(!packet.is_empty() && to == session.peer());
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let datagrams = |datagrams: &[(u8, &[u8])]| {
        datagrams
            .iter()
            .flat_map(|(time, octets)| [&[octets.len() as u8, *time][..], octets].concat())
            .collect()
    };
    let release = Header { kind: l2::uu::Kind::Release, c_rnti: C_RNTI, lcid: 0, cell: CELL }.octets();
    let rrc = Header::downlink(CELL, C_RNTI, 0).datagram(b"rrc");
    vec![
        // Whole packets, one of them late, and a segmented one.
        datagrams(&[
            (1, &[0, 0, 0x80, 0, 0, 0x41, 1, 2, 3]),
            (1, &[0, 0, 0x80, 0, 2, 0x41, 1, 2, 3]),
            (9, &[0, 0, 0x80, 0, 1, 0x41, 1, 2, 3]),
            (1, &[0, 0x40, 0, 0x80, 0, 3]),
            (1, &[0, 0x80, 0, 0, 3, 0x41, 9]),
            (255, &[1, 0, 0x80, 5, 1]),
        ]),
        // Of the other bearer, with a control PDU; and what is not a data bearer's.
        datagrams(&[(1, &[1, 0, 0x80, 0, 7]), (1, &[1, 0, 0, 0, 0, 0, 0]), (0, &rrc), (0, &release)]),
    ]
}
