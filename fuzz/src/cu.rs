//! The user plane of a CU between memory ports: messages of a DU and of a UPF, with a clock that goes on between them.
//!
//! Before each message is an octet: its lower bits say from where it comes and for which of two bearers, its upper ones how much time
//! passes. The first bearer is ciphered and integrity-protected, the second one is not. TEIDs are made right for some messages,
//! so that they get beyond the table. What leaves must be well-formed, and forged PDUs of the first bearer must not leave.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use cu::user_plane::{BearerConfig, Interface, Relay, Role, Tunnel, UserPlane};
use l2::pdcp::{Config, Rx, RxConfig, Security, SnLength, Tx};
use l2::sdap::DrbId;
use l2::security::{Cipher, CipheringAlgorithm, Direction, Integrity, IntegrityAlgorithm};
use packet::gtpu::{self, PduSession};
use packet::nr_u::{DeliveryStatus, MAX_STATUS, Ranges};
use path::{Graph as _, Ports};
use pktio::memory::{self, Wire};
use pktio::{Port as _, VECTOR, Vector};
use types::{Key, Qfi};

/// Most messages of an input; also bounds the time of an input.
const MESSAGES: usize = 64;
const F1U: u8 = 0;
const N3: u8 = 1;
const CU: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
const QFI: u8 = 1;
/// TEIDs at the UPF, by bearer.
const UPF_TEIDS: [u32; 2] = [1, 2];
/// Bits of the octet before a message.
const FROM_UPF: u8 = 1;
const SECOND: u8 = 2;
/// The message as it is: its TEID may be any.
const BARE: u8 = 4;
const TIME_SHIFT: u32 = 3;
const STEP_NS: u64 = 7_000_000;

struct World {
    relay: Relay,
    _user_plane: UserPlane,
    ports: Ports,
    wires: [Wire; 2],
    vector: Vector,
    /// Our TEIDs on F1-U and N3, by bearer.
    teids: [[u32; 2]; 2],
}

fn security(protected: bool) -> Security {
    if !protected {
        return Security::none();
    }
    let integrity = Integrity::new(IntegrityAlgorithm::Nia2, &Key::new([2; 16]));
    Security::new(Cipher::new(CipheringAlgorithm::Nea2, &Key::new([1; 16])), Some(integrity))
}

impl World {
    fn new() -> World {
        let interfaces = vec![Interface::new("f1u", Role::F1u, CU), Interface::new("n3", Role::N3, CU)];
        let (user_plane, mut relay, _) = UserPlane::new(interfaces).expect("two interfaces");
        let [(f1u, f1u_wire), (n3, n3_wire)] = [0, 1].map(|_| memory::pair(10_000));
        let mut ports: Ports = vec![Box::new(f1u), Box::new(n3)];
        let teids = [0, 1].map(|bearer: usize| {
            let sn = [SnLength::Eighteen, SnLength::Twelve][bearer];
            let config = |direction| Config::drb(DrbId::new(1).expect("a DRB"), direction, sn, true);
            let tx = Tx::new(config(Direction::Downlink), security(bearer == 0));
            let rx = Rx::new(config(Direction::Uplink), security(bearer == 0), RxConfig::default());
            let mut config = BearerConfig::new(tx, rx, true, vec![Qfi::new(QFI).expect("six bits")]);
            config.discard = Some(Duration::from_millis(20));
            config.queue_octets = 4096;
            let tunnel = Tunnel { address: PEER, teid: UPF_TEIDS[bearer] };
            let session = user_plane.open(N3, tunnel).expect("room");
            let id = user_plane.add(session, F1U, config).expect("room");
            user_plane.connect(session, id, tunnel).expect("room");
            [user_plane.f1u_tunnel(id).teid, user_plane.n3_tunnel(session).teid]
        });
        relay.turn(1, &mut ports);
        World {
            relay,
            _user_plane: user_plane,
            ports,
            wires: [f1u_wire, n3_wire],
            vector: Vector::new(VECTOR, 2_048),
            teids,
        }
    }

    /// Gives the CU a message, and time.
    fn step(&mut self, choice: u8, octets: &[u8], now_ns: u64) {
        let (bearer, input) = (usize::from(choice & SECOND != 0), usize::from(choice & FROM_UPF));
        let mut message = octets.to_vec();
        if choice & BARE == 0
            && let Some(teid) = message.get_mut(4..8)
        {
            teid.copy_from_slice(&self.teids[bearer][input].to_be_bytes());
        }
        self.wires[input].inject(&message, SocketAddr::new(PEER, gtpu::PORT));
        if self.ports[input].receive(&mut self.vector).is_ok_and(|received| received > 0) {
            self.relay.process(input, &mut self.vector, now_ns, &mut self.ports);
            self.vector.clear();
        }
        self.relay.turn(now_ns, &mut self.ports);
        for (input, wire) in self.wires.iter().enumerate() {
            for (message, to) in wire.take() {
                assert_eq!(to.ip(), PEER, "{message:02x?}");
                let packet = gtpu::Packet::new(&message).expect("what we send is well-formed");
                let user_data =
                    packet.message_type() == gtpu::message_type::G_PDU && input == usize::from(N3);
                // Nobody has the key of the first bearer.
                assert!(!user_data || packet.teid() == UPF_TEIDS[1], "{message:02x?}");
            }
        }
    }
}

/// Runs a program of messages.
pub fn run(mut data: &[u8]) {
    let mut world = World::new();
    let mut now_ns = 1_000_000_000;
    for _ in 0..MESSAGES {
        let [choice, length, rest @ ..] = data else { break };
        let (octets, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        data = rest;
        now_ns += u64::from(choice >> TIME_SHIFT) * STEP_NS;
        world.step(*choice, octets, now_ns);
    }
}

/// Packets in both directions, delivery statuses, and signalling.
pub fn seeds() -> Vec<Vec<u8>> {
    let gpdu = |container, payload: &[u8]| gtpu::build_gpdu(0, container, payload).expect("short");
    let down = gpdu(Some(PduSession::Downlink { qfi: QFI, rqi: true, ppi: None }), &[7; 40]);
    // PDCP with 12 bits: numbers 0, 2 and 1; the last one of them with an end marker of SDAP.
    let up = |number: u8, sdap: u8| gpdu(None, &[0x80, number, sdap, 7, 7, 7]);
    let status = |status: &DeliveryStatus<'_>| {
        let mut out = [0; MAX_STATUS];
        let length = status.write(0, &mut out).expect("the longest status fits");
        out[..length].to_vec()
    };
    let none = status(&DeliveryStatus { highest_transmitted: Some(0), ..DeliveryStatus::default() });
    let all = status(&DeliveryStatus {
        desired_buffer_size: u32::MAX,
        lost: Ranges::of(&[(3, 9)]),
        ..DeliveryStatus::default()
    });
    let echo = gtpu::Signalling::EchoRequest { sequence: 9 }.build();
    let messages: [(u8, &[u8]); 10] = [
        (FROM_UPF, &down),
        (FROM_UPF | SECOND, &down),
        (SECOND, &up(0, 0x81)),
        (SECOND, &up(2, 0x81)),
        (SECOND, &up(1, 0x01)),
        (0, &up(0, 0x81)),
        (SECOND, &none),
        (FROM_UPF | SECOND, &down),
        (SECOND, &all),
        (BARE, &echo),
    ];
    let mut program = Vec::new();
    for (choice, message) in messages {
        program.extend([choice | 1 << TIME_SHIFT, message.len() as u8]);
        program.extend(message);
    }
    vec![program.repeat(4), program]
}
