//! What steering costs. Figures depend on the machine: `cargo test -p xdp --release --features clang -- --ignored --nocapture`.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

use net::time::{Duration, now_std};
use pktio::bpf::asm::{Assembler, Reg, Size};
use pktio::bpf::{Program, SharedWords, XDP_DROP, XDP_PASS, XDP_TX};
use xdp::generate::{FRAME, Generator};
use xdp::steer::{Action, Capacity, Change, Entry, Forward, Key, Only, Steer, Teids, Tunnel, Varied};

use crate::frames::{Spec, ip, plain};
use crate::rig::{self, Rig, ending};
use crate::veth::Veth;

const OWN: &str = "10.1.0.1";
const FOREIGN: &str = "10.1.0.2";
const FIRST: u32 = 0x1000;
const COUNT: u32 = 1 << 16;
const REPEAT: u32 = 2_000_000;
/// Packets of one call of the paced generator: making its memory takes the kernel as long as some hundred packets.
const PACED: u32 = 8192;

fn change(destination: &str, teid: u32, interface: u32) -> Change {
    let to = Forward {
        interface,
        // As they are already, so that the packet stays what it is.
        eth_destination: Some([2, 0, 0, 0, 0, 1]),
        eth_source: Some([2, 0, 0, 0, 0, 9]),
        destination: Some(ip(destination)),
        ..Forward::default()
    };
    let entry = Entry { only: Only::default(), action: Action::Forward(to) };
    Change::Set(Key::Tunnel(Tunnel { destination: ip(destination), teid }), entry)
}

fn best(program: &Program, frame: &[u8]) -> (u32, u32) {
    let mut runs: Vec<u32> = (0..9).map(|_| program.run_repeatedly(frame, REPEAT).unwrap().ns).collect();
    runs.sort_unstable();
    (runs[0], runs[4])
}

fn capacity() -> Capacity {
    Capacity { own: COUNT, foreign: COUNT, ..rig::small() }
}

#[test]
#[ignore = "measures"]
fn nanoseconds_per_packet() {
    let mut steer = Steer::new(capacity()).unwrap();
    let rig = Rig::new(&mut steer);
    steer.add_anchor(ip(OWN), Teids::Own { first: FIRST, count: COUNT }).unwrap();
    steer.add_anchor(ip(FOREIGN), Teids::Foreign).unwrap();
    // Test runs without a context come from interface 1, the loopback interface.
    rig.ours.enter(|| steer.add_port(1).unwrap()).unwrap();
    for destination in [OWN, FOREIGN] {
        let changes: Vec<_> = (FIRST..FIRST + COUNT).map(|teid| change(destination, teid, 1)).collect();
        steer.commit(&changes).unwrap();
    }
    let sequence = SharedWords::new(8).unwrap();
    let teids = |mask| Varied { sequence: &sequence, first: FIRST, mask };
    let frame = |destination, outer_checksum| Spec { outer_checksum, ..plain(destination, FIRST) }.build();
    let [own, foreign] = [OWN, FOREIGN].map(|destination| frame(destination, false));
    let varied = |frame: &[u8], mask, baseline| {
        let destination = u32::from_le_bytes(frame[30..34].try_into().unwrap());
        sequence.words()[1].store(destination.into(), Relaxed);
        best(&steer.load_varied(&rig.chain, &teids(mask), baseline).unwrap(), frame)
    };
    let measure = || {
        println!("ns, best and median of 9 runs of {REPEAT}");
        println!("empty program                   {:?}", best(&ending(XDP_TX), &own));
        println!("same TEID: own                  {:?}", best(&rig.loaded.program, &own));
        println!("same TEID: foreign              {:?}", best(&rig.loaded.program, &foreign));
        println!("same TEID: with UDP checksum    {:?}", best(&rig.loaded.program, &frame(OWN, true)));
        println!("TEIDs at random: baseline       {:?}", varied(&own, COUNT - 1, true));
        let floor = steer.load_floor(&rig.chain, &teids(COUNT - 1)).unwrap();
        println!("TEIDs at random: only a line    {:?}", best(&floor, &own));
        println!("TEIDs at random: one            {:?}", varied(&own, 1, false));
        println!("TEIDs at random: own            {:?}", varied(&own, COUNT - 1, false));
        println!("TEIDs at random: foreign        {:?}", varied(&foreign, COUNT - 1, false));
        println!("no G-PDU, passed on             {:?}", best(&rig.loaded.program, &[0; 64]));
    };
    rig.ours.enter(measure).unwrap();
    let total: u64 = steer.passed().iter().map(|(_, count)| count).sum();
    assert_eq!(total, u64::from(REPEAT) * 9, "only what has no G-PDU goes on");
}

#[test]
#[ignore = "measures"]
fn milliseconds_per_commit() {
    let mut steer = Steer::new(capacity()).unwrap();
    let rig = Rig::new(&mut steer);
    steer.add_anchor(ip(OWN), Teids::Own { first: FIRST, count: COUNT }).unwrap();
    steer.add_anchor(ip(FOREIGN), Teids::Foreign).unwrap();
    for destination in [OWN, FOREIGN] {
        for count in [1, 1_000, 10_000] {
            let mut times = Vec::new();
            for round in 0..11 {
                let interface = rig.interfaces[round % 2];
                let changes: Vec<_> =
                    (FIRST..FIRST + count).map(|teid| change(destination, teid, interface)).collect();
                let start = now_std();
                steer.commit(&changes).unwrap();
                times.push(start.elapsed());
            }
            let first = times.remove(0);
            times.sort_unstable();
            println!("{destination}: {count} entries: new {first:?}, changed {:?} (median of 10)", times[5]);
        }
    }
}

/// A program that counts packets and drops them. One processor receives.
fn counting(counter: &SharedWords) -> Program {
    let mut asm = Assembler::new();
    asm.load_value(Reg::R1, counter.as_fd(), 0);
    asm.set(Reg::R2, 1);
    asm.atomic_add(Size::Double, Reg::R1, 0, Reg::R2);
    asm.set(Reg::R0, XDP_DROP);
    asm.exit();
    Program::load("test_count", &asm.finish().unwrap()).unwrap()
}

/// EV-8: packets through the near end of one veth pair, steered to another pair's far end.
#[test]
#[ignore = "measures"]
fn packets_per_second() {
    let veth = Veth::new();
    let mut steer = Steer::new(capacity()).unwrap();
    let (_chain, _steering) = veth.steer(&mut steer);
    steer.add_anchor(ip(OWN), Teids::Own { first: FIRST, count: COUNT }).unwrap();
    let changes: Vec<_> = (FIRST..FIRST + COUNT).map(|teid| change(OWN, teid, veth.near[1])).collect();
    steer.commit(&changes).unwrap();
    let counter = SharedWords::new(8).unwrap();
    let _pass = veth.end(true, veth.near[1], ending(XDP_PASS));
    let _source = veth.end(false, veth.far[0], ending(XDP_PASS));
    let _sink = veth.end(false, veth.far[1], counting(&counter));
    let frame = Spec { outer_checksum: false, ..plain(OWN, FIRST) };
    let frame: [u8; FRAME] = Spec { payload: FRAME - 78, ..frame }.build().try_into().unwrap();
    let sequence = SharedWords::new(8).unwrap();
    let generator =
        Generator::new(frame, &Varied { sequence: &sequence, first: FIRST, mask: COUNT - 1 }).unwrap();
    let received = || counter.words()[0].load(Relaxed);
    let send = |count, batch| veth.peer.enter(|| generator.send(veth.far[0], count, batch).unwrap()).unwrap();
    send(100_000, 64);
    let mut rates = Vec::new();
    for _ in 0..7 {
        let before = received();
        let start = now_std();
        send(2_000_000, 64);
        rates.push((received() - before) as f64 / start.elapsed().as_secs_f64() / 1e6);
    }
    rates.sort_by(f64::total_cmp);
    println!("Mpps received, as fast as can be: best {:.2}, median {:.2}", rates[6], rates[3]);
    // At 90 per cent of the median.
    let pace = Duration::from_secs_f64(f64::from(PACED) / (rates[3] * 0.9e6));
    let (before, count) = (received(), 10_000_000 / u64::from(PACED) * u64::from(PACED));
    let start = now_std();
    let paced = || {
        let mut next = start;
        for _ in 0..count / u64::from(PACED) {
            while now_std() < next {
                std::hint::spin_loop();
            }
            next += pace;
            generator.send(veth.far[0], PACED, 64).unwrap();
        }
    };
    veth.peer.enter(paced).unwrap();
    let rate = count as f64 / start.elapsed().as_secs_f64() / 1e6;
    veth.runtime.block_on(net::time::sleep(Duration::from_millis(200)));
    let arrived = received() - before;
    println!("at {rate:.2} Mpps: {} of {count} lost", count - arrived);
    let entries: u64 = (FIRST..FIRST + COUNT)
        .map(|teid| steer.counters(&Key::Tunnel(Tunnel { destination: ip(OWN), teid })).unwrap().packets)
        .sum();
    println!("counted by entries: {entries}, by the sink: {}", received());
}
