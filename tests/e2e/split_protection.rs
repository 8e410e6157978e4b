//! Protected sessions seen from the middle of F1-U: what passes there is ciphered and has a MAC-I, and what is changed, repeated
//! or made up there reaches nobody.
//!
//! ```text
//!  DU ──memif── Middle, the test ──memif── CU
//! ```

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use l2::keys::AsKeys;
use l2::pdcp::{Config, Rx, RxConfig, SnLength, Verdict};
use l2::sdap::DrbId;
use l2::security::{CipheringAlgorithm, Direction, IntegrityAlgorithm};
use net::time::{Duration, sleep_thread};
use packet::{ethernet, gtpu, ipv4, protocol, transport};
use pktio::memif::MemifPort;
use pktio::{Port, VECTOR, Vector};
use serde_json::json;

use testkit::world::{World, establish, network};

use crate::talk::{MARK, Talk};

/// Longest packet of the memifs, as in the lab.
const MTU: u16 = 1600;
/// Octets of PDCP's header with sequence numbers of 18 bits (TS 38.323 §6.2.2.3), and of SDAP's.
const HEADERS: usize = 3 + 1;
const MAC_I: usize = 4;
/// Where the UDP checksum is in an Ethernet frame with IPv4.
const CHECKSUM: Range<usize> = 40..42;

const UP: usize = 0;
const DOWN: usize = 1;

/// What is done to the next PDU with a user's packet.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// A bit is flipped in this octet, counted from the beginning, or from the end if negative.
    Flip(isize),
    /// A copy with a flipped bit goes ahead of it.
    Forge(isize),
    /// It is sent twice.
    Repeat,
}

#[derive(Default)]
struct State {
    /// PDCP PDUs with users' packets that came, by direction.
    seen: [Vec<Vec<u8>>; 2],
    harm: [VecDeque<Harm>; 2],
    /// Whether any frame showed what it should hide.
    leaked: bool,
    end: bool,
}

/// Both ends of F1-U meet here.
struct Middle {
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

impl Middle {
    fn start(sockets: [&Path; 2]) -> Middle {
        let state = Arc::<Mutex<State>>::default();
        let ports = sockets.map(|socket| {
            let device = format!("middle,role=client,socket={}", socket.display());
            MemifPort::open(&device, 1, MTU).unwrap().remove(0)
        });
        let of_thread = Arc::clone(&state);
        let thread = std::thread::spawn(move || relay(ports, &of_thread));
        Middle { state, thread: Some(thread) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn harm(&self, harm: Harm) {
        let mut state = self.state();
        state.harm.iter_mut().for_each(|queue| queue.push_back(harm));
    }
}

impl Drop for Middle {
    fn drop(&mut self) {
        // A test that has failed already may have left the lock poisoned.
        if let Ok(mut state) = self.state.lock() {
            state.end = true;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Where a user's packet, protected by PDCP, is in a frame.
fn user_pdu(frame: &[u8]) -> Option<Range<usize>> {
    let ip = ipv4::Packet::new(ethernet::Frame::new(frame).ok()?.payload()).ok()?;
    if ip.protocol() != protocol::UDP {
        return None;
    }
    let udp = transport::Udp::new(ip.payload()).ok()?;
    let gtpu = gtpu::Packet::new(udp.payload()).ok()?;
    let pdu = gtpu.payload();
    // Requests for delivery statuses, and these, carry no PDU.
    let carries = gtpu.message_type() == gtpu::message_type::G_PDU && !pdu.is_empty();
    let start = pdu.as_ptr() as usize - frame.as_ptr() as usize;
    carries.then_some(start..start + pdu.len())
}

/// The frame with a bit flipped in its PDU. There is no checksum of UDP then, so that the receiver's PDCP sees it.
fn flipped(frame: &[u8], pdu: &Range<usize>, at: isize) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[CHECKSUM].fill(0);
    let at = if at < 0 { pdu.end - at.unsigned_abs() } else { pdu.start + at.unsigned_abs() };
    frame[at] ^= 1;
    frame
}

fn relay(mut ports: [MemifPort; 2], state: &Mutex<State>) {
    let (mut into, mut out) = (Vector::new(VECTOR, 2048), Vector::new(2 * VECTOR, 2048));
    loop {
        let mut idle = true;
        for way in [UP, DOWN] {
            let received = ports[way].receive(&mut into).unwrap();
            idle &= received == 0;
            let mut state = state.lock().unwrap();
            if state.end {
                return;
            }
            out.clear();
            let mut send = |frame: &[u8]| assert!(out.push(frame, ([0; 4], 0).into()));
            for frame in into.frames() {
                let frame = frame.packet();
                state.leaked |= frame.windows(MARK.len()).any(|octets| octets == MARK);
                let Some(pdu) = user_pdu(frame) else {
                    send(frame);
                    continue;
                };
                state.seen[way].push(frame[pdu.clone()].to_vec());
                match state.harm[way].pop_front() {
                    None => send(frame),
                    Some(Harm::Flip(at)) => send(&flipped(frame, &pdu, at)),
                    Some(Harm::Forge(at)) => {
                        send(&flipped(frame, &pdu, at));
                        send(frame);
                    }
                    Some(Harm::Repeat) => {
                        send(frame);
                        send(frame);
                    }
                }
            }
            let all: Vec<u16> = (0..out.len() as u16).collect();
            ports[1 - way].transmit(&mut out, &all);
        }
        if idle {
            sleep_thread(Duration::from_micros(200));
        }
    }
}

/// Drops of the CU for a reason, and of all UEs for any: what the receivers of both directions have thrown away.
async fn thrown_away(world: &World, radio: &ue::Ues, reason: &str) -> [u64; 2] {
    let stats = world.ask("cu", "/stats").await;
    [stats["drops"][reason].as_u64().unwrap_or(0), radio.totals().dropped]
}

/// Harms the next datagram of both directions. `lost` says whether it arrives.
async fn survives(world: &World, middle: &Middle, talk: &mut Talk, radio: &ue::Ues, harm: Harm) {
    let (lost, reason) = match harm {
        Harm::Flip(_) => (true, "pdcp_integrity"),
        Harm::Forge(_) => (false, "pdcp_integrity"),
        Harm::Repeat => (false, "pdcp_stale"),
    };
    let before = thrown_away(world, radio, reason).await;
    let first = talk.next;
    middle.harm(harm);
    talk.send(4).await;
    talk.settle().await;
    talk.once();
    let after = thrown_away(world, radio, reason).await;
    assert_eq!(after, before.map(|count| count + 1), "{harm:?}, up and down, at the receiver");
    let expected: Vec<u32> = (first + u32::from(lost)..talk.next).collect();
    for arrived in [&talk.up, &talk.down] {
        assert!(arrived.ends_with(&expected), "{harm:?}: {expected:?} of {arrived:?}");
        assert_eq!(arrived.contains(&first), !lost, "{harm:?}");
    }
}

/// DU and CU connect to sockets of their own, between which the test is.
fn with_a_middle(options: &mut lab::Options) {
    options.split = Some(lab::Model::Hybrid);
    options.edit = Box::new(|configuration| {
        let du = &mut configuration["du"]["f1u"]["device"];
        *du = du
            .as_str()
            .unwrap()
            .replace("role=client", "role=server")
            .replace("f1u.sock", "f1u-du.sock")
            .into();
        configuration["smf"]["dnn"][0]["user_plane_security"] =
            json!({"integrity": "required", "confidentiality": "required"});
    });
}

#[test]
fn what_passes_f1u_is_hidden_and_cannot_be_changed() {
    network(with_a_middle, async |world| {
        let folder = world.lab.folder();
        let middle = Middle::start([&folder.join("f1u-du.sock"), &folder.join("f1u.sock")]);
        let radio = world.radio().await;
        let mut ue = world.ue(&radio.cells().next().unwrap(), 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        let mut talk = Talk::new(world, ue);
        // With the first ones, neighbours are resolved.
        talk.resume().await;
        talk.settle().await;
        let first = talk.next;
        middle.state().seen = Default::default();
        talk.send(60).await;
        talk.settle().await;
        talk.all_arrived_since(first);

        let seen = std::mem::take(&mut middle.state().seen);
        assert!(!middle.state().leaked, "a packet can be read on F1-U");
        let lengths: Vec<usize> =
            (first..talk.next).map(|number| talk.packet(number).len() + HEADERS + MAC_I).collect();
        for pdus in &seen {
            assert_eq!(pdus.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
        }
        // With the UE's keys they are the UE's packets, in order, and the MAC-I is right.
        let keys =
            AsKeys::derive(talk.ue.k_gnb().unwrap(), CipheringAlgorithm::Nea2, IntegrityAlgorithm::Nia2);
        let drb = Config::drb(DrbId::new(1).unwrap(), Direction::Uplink, SnLength::Eighteen, true);
        let mut rx = Rx::starting_at(drb, keys.data(true, true), RxConfig::default(), first);
        let [up, _] = seen;
        for (mut pdu, number) in up.into_iter().zip(first..) {
            let Verdict::Deliver { sdu, count } = rx.open(&mut pdu, 0) else {
                panic!("{number} is not opened")
            };
            assert_eq!((count, &pdu[sdu][1..]), (number, &talk.packet(number)[..]));
        }

        // The sequence number, SDAP's header, the IP header, what follows, and the MAC-I.
        for at in [1, 3, 4, 30, -5, -1] {
            survives(world, &middle, &mut talk, &radio, Harm::Flip(at)).await;
        }
        survives(world, &middle, &mut talk, &radio, Harm::Forge(5)).await;
        survives(world, &middle, &mut talk, &radio, Harm::Repeat).await;
        assert!(!middle.state().leaked);
        talk.ue.deregister(false).await.unwrap();
    });
}
