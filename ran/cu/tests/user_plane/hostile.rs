//! What nobody should send.

use cu::user_plane::BearerConfig;
use l2::pdcp::SnLength;
use l2::security::{CipheringAlgorithm, IntegrityAlgorithm};
use packet::gtpu::{self, Signalling};
use packet::nr_u::{DeliveryStatus, Ranges};
use telemetry::DropReason;

use crate::support::*;

const SECURE: Protection = Protection {
    sn: SnLength::Twelve,
    header: true,
    ciphering: CipheringAlgorithm::Nea2,
    integrity: Some(IntegrityAlgorithm::Nia2),
};

/// Truncated at every octet and with every bit flipped: nothing is delivered, nothing is lost but what was damaged, and the
/// next whole PDU passes.
#[test]
fn damaged_pdus_are_not_delivered() {
    let mut world = World::new();
    let (_, bearer) = world.session(SECURE.bearer(&[1]));
    let mut ue = Ue::new(SECURE);
    let pdu = ue.pdu(1, &packet(60, 1));
    let (mut sent, mut damaged) = (0, pdu.clone());
    for length in 0..pdu.len() {
        world.du_sends(bearer, &pdu[..length]);
        sent += 1;
    }
    for bit in 0..pdu.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        world.du_sends(bearer, &damaged);
        damaged[bit / 8] ^= 1 << (bit % 8);
        sent += 1;
    }
    world.run();
    // What remains after flipping the first bit of a data PDU is a control PDU; reserved bits are covered by the MAC-I.
    let control = world.stats().pdcp_control.get();
    assert!(world.at_upf().is_empty());
    assert_eq!(world.all_drops() + control, sent);
    assert!(world.drops(DropReason::PdcpIntegrity) > 8 * 60);
    let stale = world.drops(DropReason::PdcpStale);
    world.du_sends(bearer, &pdu);
    world.du_sends(bearer, &pdu);
    world.run();
    assert_eq!(world.at_upf().len(), 1, "once, however often it is replayed");
    assert_eq!(world.drops(DropReason::PdcpStale), stale + 1);
}

/// GTP-U messages truncated at every octet, on both interfaces.
#[test]
fn damaged_messages_are_counted() {
    let mut world = World::new();
    let (session, bearer) = world.session(PLAIN.bearer(&[1]));
    let teid = world.user_plane.n3_tunnel(session).teid;
    let container = Some(gtpu::PduSession::Downlink { qfi: 1, rqi: true, ppi: Some(3) });
    let down = gtpu::build_gpdu(teid, container, b"payload").unwrap();
    let mut sent = 0;
    for length in 0..down.len() {
        world.inject_n3(&down[..length]);
        world.inject_f1u(&down[..length]);
        sent += 2;
    }
    world.run();
    assert_eq!(world.drops(DropReason::GtpuMalformed), sent);
    // The whole message, and one with octets behind it.
    world.inject_n3(&down);
    world.inject_n3(&[&down[..], b"trailer"].concat());
    // Out of place: a tunnel of N3 on F1-U, and the other way round.
    world.inject_f1u(&down);
    let up = gtpu::build_gpdu(world.user_plane.f1u_tunnel(bearer).teid, None, b"pdu").unwrap();
    world.inject_n3(&up);
    world.run();
    let mut ue = Ue::new(PLAIN);
    let at_du = world.at_du();
    assert_eq!(at_du.len(), 2);
    assert!(at_du.iter().all(|sent| ue.packet(&sent.pdu) == (0x41, b"payload".to_vec())));
    assert_eq!(world.drops(DropReason::DirectionMismatch), 2);
    // An extension header that must be understood, and a message of no known type.
    let mut unknown = down.clone();
    unknown[11] = 0xFF;
    world.inject_n3(&unknown);
    world.inject_n3(&[0x30, 77, 0, 0, 0, 0, 0, 0]);
    world.run();
    assert_eq!(world.drops(DropReason::GtpuUnknownExtension), 1);
    assert_eq!(world.drops(DropReason::GtpuUnknownMessage), 1);
    let replies = world.wires[1].take();
    assert!(matches!(gtpu::decode(&replies[0].0), Ok(Some(Signalling::SupportedExtensionHeaders { .. }))));
}

#[test]
fn error_indications_are_limited() {
    let mut world = World::new();
    for teid in 0..1000 {
        world.inject_n3(&gtpu::build_gpdu(teid, None, b"x").unwrap());
    }
    world.run();
    let sent = world.wires[1].take().len();
    assert_eq!(
        (sent, world.stats().error_indications_sent.get()),
        (100, 100),
        "as many as are allowed in a second"
    );
    assert_eq!(world.drops(DropReason::UnknownTeid), 1000);
}

/// A DU that speaks of PDUs that it never got, or of losses that cannot be.
#[test]
fn a_status_that_lies_is_counted_and_changes_nothing() {
    let mut world = World::new();
    let (session, bearer) = world.session(PLAIN.bearer(&[1]));
    let lies = [
        DeliveryStatus { desired_buffer_size: 0, highest_transmitted: Some(5), ..Default::default() },
        DeliveryStatus { desired_buffer_size: 0, highest_delivered: Some(0xFF_FFFF), ..Default::default() },
    ];
    lies.iter().for_each(|lie| world.status(bearer, lie));
    let lost = [(0xFF_FFFF, 0), (0, 0xFF_FFFF)];
    let losses =
        DeliveryStatus { desired_buffer_size: u32::MAX, lost: Ranges::of(&lost), ..Default::default() };
    world.status(bearer, &losses);
    for _ in 0..10 {
        world.upf_sends(session, 1, b"x");
    }
    world.run();
    assert_eq!(world.at_du().len(), 10);
    assert_eq!((world.stats().statuses.get(), world.stats().untrue_statuses.get()), (3, 2));
    // A status for a bearer that does not exist.
    let mut out = [0; 64];
    let length = losses.write(0x7777_7777, &mut out).unwrap();
    world.inject_f1u(&out[..length]);
    world.run();
    assert_eq!(world.drops(DropReason::UnknownTeid), 1);
}

/// A packet for which there is no room in a frame, and COUNT at its end.
#[test]
fn what_cannot_be_sent_is_counted() {
    let mut world = World::new();
    let mut config = PLAIN.bearer(&[1]);
    let l2_config = *config.tx.config();
    config.tx = l2::pdcp::Tx::starting_at(l2_config, l2::pdcp::Security::none(), u32::MAX);
    let (session, _) = world.session(config);
    world.upf_sends(session, 1, b"last");
    world.upf_sends(session, 1, b"too many");
    world.run();
    assert_eq!((world.at_du().len(), world.drops(DropReason::PdcpExhausted)), (1, 1));
    let (session, _) = world.session(PLAIN.bearer(&[1]));
    world.upf_sends(session, 1, &packet(9150, 1));
    world.run();
    assert_eq!(world.drops(DropReason::TooBig), 1);
}

/// Another DU, and the UPF where both tunnels share an interface, cannot stop a bearer.
#[test]
fn a_status_of_somebody_else_changes_nothing() {
    let mut world = World::on(0, 0);
    let (session, bearer) = world.session(PLAIN.bearer(&[1]));
    let mut out = [0; 64];
    let nothing = DeliveryStatus::default();
    let length = nothing.write(world.user_plane.f1u_tunnel(bearer).teid, &mut out).unwrap();
    world.inject_n3(&out[..length]);
    world.upf_sends(session, 1, b"x");
    world.run();
    assert_eq!((world.at_du().len(), world.stats().foreign_statuses.get()), (1, 1));
}

/// A DU that wants nothing keeps a part of the memory only, however long its queues may be.
#[test]
fn bearers_leave_memory_for_those_of_others() {
    let mut world = World::new();
    let greedy = BearerConfig { queue_octets: 1 << 30, ..PLAIN.bearer(&[1]) };
    let (session, bearer) = world.session(greedy);
    let (other, other_bearer) = world.session(PLAIN.bearer(&[1]));
    world.status(bearer, &DeliveryStatus::default());
    world.status(other_bearer, &DeliveryStatus::default());
    world.run();
    for _ in 0..1000 {
        world.upf_sends(session, 1, &packet(8000, 1));
        world.run();
    }
    let refused = world.drops(DropReason::BufferOverflow);
    assert!((450..550).contains(&refused), "4 MiB of 8 MB wait: {refused} did not");
    world.upf_sends(other, 1, b"x");
    world.run();
    assert_eq!(world.drops(DropReason::BufferOverflow), refused);
}
