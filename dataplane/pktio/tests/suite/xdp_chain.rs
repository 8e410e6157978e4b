//! Chains of XDP programs on a veth pair between two anonymous namespaces: order, replacement under traffic, failing parts,
//! and what a step costs. Needs root.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::support::{Net, open};
use net::link::Links;
use packet::transport::build_udp;
use packet::{ethernet, ipv4, protocol};
use pktio::af_xdp::device::Device;
use pktio::bpf::asm::{Assembler, Label, Reg, Size};
use pktio::bpf::filter::{self, Select};
use pktio::bpf::{Program, SharedLines, XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XskMap};
use pktio::poll::Poller;
use pktio::vlan::Tags;
use pktio::xdp::{Chain, ChainError, Place};
use pktio::{Port, Vector};

/// Packets of a test under traffic.
const PACKETS: u32 = 40_000;
/// Packets that may be on their way at a time: less than a socket's ring has room for.
const WINDOW: usize = 512;
/// `bpf_map_lookup_elem`.
const HELPER_LOOKUP: i32 = 1;
/// `bpf_ktime_get_ns`.
const HELPER_KTIME: i32 = 5;

fn place(number: u32) -> Place {
    Place::new(number).unwrap()
}

/// Looks up the first line of an array: R0 has its address. Otherwise jumps to the label that is returned.
fn find_line(asm: &mut Assembler, array: &SharedLines) -> Label {
    let missing = asm.label();
    asm.store_imm(Size::Word, Reg::R10, -4, 0);
    asm.copy(Reg::R2, Reg::R10);
    asm.add(Reg::R2, -4);
    asm.load_map(Reg::R1, array.as_fd());
    asm.call(HELPER_LOOKUP);
    asm.jump_if_zero(Reg::R0, missing);
    missing
}

/// A part that counts packets in word `word` of the first line of `counters`, and passes them on.
fn counting(chain: &Chain, at: Place, counters: &SharedLines, word: i16) -> Program {
    let mut asm = Assembler::new();
    asm.copy(Reg::R6, Reg::R1);
    let on = find_line(&mut asm, counters);
    asm.set(Reg::R1, 1);
    asm.atomic_add(Size::Double, Reg::R0, 8 * word, Reg::R1);
    asm.place(on);
    chain.pass_on(&mut asm, at, Reg::R6);
    Program::load("test_count", &asm.finish().unwrap()).unwrap()
}

/// A part that ends with a verdict.
fn ending(verdict: i32) -> Program {
    let mut asm = Assembler::new();
    asm.set(Reg::R0, verdict);
    asm.exit();
    Program::load("test_end", &asm.finish().unwrap()).unwrap()
}

/// A chain on `up0`.
fn chain(net: &Net) -> Arc<Chain> {
    let device = net.ours.enter(|| Device::find("up0").unwrap()).unwrap();
    net.ours.enter(|| Chain::attach(device.index).unwrap()).unwrap()
}

/// A chain on an interface that is down: it sees the frames of the test only.
fn quiet_chain(net: &Net) -> Arc<Chain> {
    let links = net.ours.enter(|| net.runtime.block_on(async { Links::here().unwrap() })).unwrap();
    net.runtime.block_on(links.down("up0")).unwrap();
    chain(net)
}

fn frame() -> Vec<u8> {
    let (from, to) = ([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
    let datagram = build_udp((IpAddr::V4(from), 9), (IpAddr::V4(to), 2152), &[0; 64]).unwrap();
    let packet = ipv4::Header::new(from, to, protocol::UDP).build(&datagram).unwrap();
    ethernet::build([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], None, ethernet::IPV4, &packet)
}

#[test]
fn packets_pass_the_parts_in_the_order_of_their_places() {
    let net = Net::new();
    let chain = quiet_chain(&net);
    let counters = SharedLines::new(1).unwrap();
    // Counts how many packets come to each part, and how far they get.
    let counts = || counters.read(0).unwrap()[..3].to_vec();
    let verdict = || chain.run(&frame(), 1).unwrap().verdict;
    assert_eq!(verdict(), XDP_PASS, "no part");
    let last = chain.add(Place::SELECTION, ending(XDP_TX)).unwrap();
    assert_eq!(verdict(), XDP_TX);
    let second = chain.add(place(3), counting(&chain, place(3), &counters, 1)).unwrap();
    let first = chain.add(place(0), counting(&chain, place(0), &counters, 0)).unwrap();
    let third = chain.add(place(4), counting(&chain, place(4), &counters, 2)).unwrap();
    assert_eq!((verdict(), counts()), (XDP_TX, vec![1, 1, 1]));
    // A part that takes everything hides those behind it.
    second.replace(ending(XDP_DROP)).unwrap();
    assert_eq!((verdict(), counts()), (XDP_DROP, vec![2, 1, 1]));
    second.replace(counting(&chain, place(3), &counters, 1)).unwrap();
    drop(first);
    assert_eq!((verdict(), counts()), (XDP_TX, vec![2, 2, 2]));
    drop(last);
    assert_eq!((verdict(), counts()), (XDP_PASS, vec![2, 3, 3]));
    drop(second);
    assert_eq!((verdict(), counts()), (XDP_PASS, vec![2, 3, 4]));
    drop(third);
    assert_eq!((verdict(), counts()), (XDP_PASS, vec![2, 3, 4]));
    // A place that has become free can be used again, and only then.
    let again = chain.add(place(3), ending(XDP_DROP)).unwrap();
    assert!(matches!(chain.add(place(3), ending(XDP_TX)), Err(ChainError::Occupied(at)) if at == place(3)));
    assert_eq!(verdict(), XDP_DROP);
    drop(again);
    assert_eq!(verdict(), XDP_PASS);
    assert_eq!(Place::new(8), None);
}

/// Every combination of occupied places, reached by adding and removing in any order: all parts are passed once.
#[test]
fn every_set_of_places_is_a_chain() {
    let net = Net::new();
    let chain = quiet_chain(&net);
    let counters = SharedLines::new(1).unwrap();
    let mut parts: [Option<pktio::xdp::Part>; 8] = Default::default();
    let (mut expected, mut random) = ([0u64; 8], 7u32);
    for _ in 0..300 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let at = (random >> 24) as usize % 8;
        let program = || counting(&chain, place(at as u32), &counters, at as i16);
        match (&mut parts[at], random >> 20 & 1) {
            (Some(part), 0) => part.replace(program()).unwrap(),
            (part @ Some(_), _) => *part = None,
            (part, _) => *part = Some(chain.add(place(at as u32), program()).unwrap()),
        }
        assert_eq!(chain.run(&frame(), 1).unwrap().verdict, XDP_PASS);
        for (expected, part) in expected.iter_mut().zip(&parts) {
            *expected += u64::from(part.is_some());
        }
        assert_eq!(counters.read(0).unwrap(), expected);
    }
}

/// Sends numbered packets to AF_XDP while `change` is called again and again; asserts that each arrives exactly once.
/// Returns how often `change` was called.
fn under_traffic(
    net: &Net,
    port: &mut pktio::af_xdp::AfXdpPort,
    mut change: impl FnMut(usize) + Send,
) -> usize {
    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    let (received, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..PACKETS {
                while number as usize >= received.load(Relaxed) + WINDOW && !stop.load(Relaxed) {
                    std::thread::yield_now();
                }
                socket.send_to(&number.to_be_bytes(), "10.0.0.1:2152").unwrap();
            }
        });
        let changer = scope.spawn(|| {
            let mut changes = 0;
            while !stop.load(Relaxed) {
                change(changes);
                changes += 1;
            }
            changes
        });
        let mut times = vec![0u8; PACKETS as usize];
        let mut poller = Poller::new().unwrap();
        poller.add(port.fd().unwrap(), 1).unwrap();
        let mut batch = Vector::new(64, 2048);
        let mut silent = 0;
        while received.load(Relaxed) < PACKETS as usize && silent < 50 {
            poller.wait(Some(100), |_| ()).unwrap();
            silent += 1;
            while port.receive(&mut batch).unwrap() > 0 {
                silent = 0;
                for buffer in batch.frames() {
                    let payload = &buffer.packet()[42..46];
                    times[u32::from_be_bytes(payload.try_into().unwrap()) as usize] += 1;
                }
                received.fetch_add(batch.len(), Relaxed);
            }
        }
        stop.store(true, Relaxed);
        let changes = changer.join().unwrap();
        let lost = times.iter().filter(|times| **times == 0).count();
        assert!(times.iter().all(|times| *times == 1), "{lost} of {PACKETS} lost after {changes} changes");
        changes
    })
}

#[test]
fn a_part_in_front_of_the_selection_is_replaced_under_traffic() {
    let net = Net::new();
    let (interface, mut port, _memory) =
        open(&net.ours, "up0", &[Select::Udp("10.0.0.1".parse().unwrap(), 2152)]).unwrap();
    let chain = interface.chain();
    let counters = SharedLines::new(1).unwrap();
    let at = place(2);
    let part = chain.add(at, counting(chain, at, &counters, 0)).unwrap();
    let changes = under_traffic(&net, &mut port, |n| {
        part.replace(counting(chain, at, &counters, (n % 8) as i16)).unwrap();
    });
    assert!(changes > 20, "{changes}");
    // Other packets than ours, such as neighbour discovery, are counted too.
    let counted: u64 = counters.read(0).unwrap().iter().sum();
    let ours = u64::from(PACKETS);
    assert!((ours..ours + 50).contains(&counted), "{counted} counted, {ours} sent");
}

#[test]
fn parts_come_and_go_under_traffic() {
    let net = Net::new();
    let (interface, mut port, _memory) =
        open(&net.ours, "up0", &[Select::Udp("10.0.0.1".parse().unwrap(), 2152)]).unwrap();
    let chain = interface.chain();
    let counters = SharedLines::new(1).unwrap();
    let behind = chain.add(place(5), counting(chain, place(5), &counters, 0)).unwrap();
    let mut parts = [None, None, None];
    let changes = under_traffic(&net, &mut port, |n| {
        let at = n % parts.len();
        parts[at] = match parts[at].take() {
            Some(part) => {
                drop(part);
                None
            }
            None => {
                let at = place([0, 3, 6][at]);
                Some(chain.add(at, counting(chain, at, &counters, 1)).unwrap())
            }
        };
    });
    assert!(changes > 20, "{changes}");
    let counted = counters.read(0).unwrap()[0];
    let ours = u64::from(PACKETS);
    assert!((ours..ours + 50).contains(&counted), "the part that stays sees each packet once: {counted}");
    drop(behind);
}

#[test]
fn a_failing_part_leaves_the_others_working() {
    let net = Net::new();
    let (interface, mut port, _memory) =
        open(&net.ours, "up0", &[Select::Udp("10.0.0.1".parse().unwrap(), 2152)]).unwrap();
    let chain = interface.chain();
    let counters = SharedLines::new(1).unwrap();
    let part = chain.add(place(1), counting(chain, place(1), &counters, 0)).unwrap();

    // The verifier refuses a successor: the chain stays as it is.
    let mut asm = Assembler::new();
    asm.load(Size::Word, Reg::R0, Reg::R1, 4);
    asm.load(Size::Byte, Reg::R0, Reg::R0, 0);
    asm.exit();
    assert!(Program::load("test_bad", &asm.finish().unwrap()).is_err());

    // A part that goes back to the start for ever is ended by the kernel, and its packets go to the host.
    let mut asm = Assembler::new();
    asm.copy(Reg::R6, Reg::R1);
    asm.load_map(Reg::R2, chain.slots());
    asm.set(Reg::R3, 0);
    asm.call(12);
    asm.set(Reg::R0, XDP_PASS);
    asm.exit();
    let endless = Program::load("test_endless", &asm.finish().unwrap()).unwrap();

    // A part that aborts for small frames only costs these.
    let mut asm = Assembler::new();
    asm.copy(Reg::R6, Reg::R1);
    let (large, small) = (asm.label(), asm.label());
    asm.load(Size::Word, Reg::R7, Reg::R6, 0);
    asm.load(Size::Word, Reg::R8, Reg::R6, 4);
    asm.add(Reg::R7, 200);
    asm.jump_if_greater(Reg::R7, Reg::R8, small);
    asm.jump(large);
    asm.place(small);
    asm.set(Reg::R0, XDP_ABORTED);
    asm.exit();
    asm.place(large);
    chain.pass_on(&mut asm, place(4), Reg::R6);
    let aborting = Program::load("test_abort", &asm.finish().unwrap()).unwrap();

    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    let host = net.ours.enter(|| UdpSocket::bind("10.0.0.1:2152").unwrap()).unwrap();
    host.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut received = |expected: &[usize]| {
        let mut poller = Poller::new().unwrap();
        poller.add(port.fd().unwrap(), 1).unwrap();
        let (mut batch, mut lengths) = (Vector::new(64, 2048), Vec::new());
        for _ in 0..50 {
            poller.wait(Some(100), |_| ()).unwrap();
            while port.receive(&mut batch).unwrap() > 0 {
                lengths.extend(batch.frames().iter().map(|buffer| buffer.packet().len() - 42));
            }
            if lengths.len() >= expected.len() {
                break;
            }
        }
        assert_eq!(lengths, expected);
    };
    socket.send_to(&[1; 100], "10.0.0.1:2152").unwrap();
    received(&[100]);

    let second = chain.add(place(4), aborting).unwrap();
    for length in [100, 300, 101, 301] {
        socket.send_to(&vec![2; length], "10.0.0.1:2152").unwrap();
    }
    received(&[300, 301]);

    second.replace(endless).unwrap();
    socket.send_to(&[3; 102], "10.0.0.1:2152").unwrap();
    assert_eq!(host.recv_from(&mut [0; 512]).unwrap().0, 102, "the kernel got it");

    drop(second);
    socket.send_to(&[4; 103], "10.0.0.1:2152").unwrap();
    received(&[103]);
    drop(part);
    socket.send_to(&[5; 104], "10.0.0.1:2152").unwrap();
    received(&[104]);
}

#[test]
fn everything_is_released_with_the_descriptors() {
    let net = Net::new();
    let host = net.ours.enter(|| UdpSocket::bind("10.0.0.1:2152").unwrap()).unwrap();
    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    let received = |wait_ms| {
        host.set_read_timeout(Some(Duration::from_millis(wait_ms))).unwrap();
        host.recv_from(&mut [0; 64]).map_or(0, |(length, _)| length)
    };
    let device = net.ours.enter(|| Device::find("up0").unwrap()).unwrap();
    socket.send_to(&[0; 8], "10.0.0.1:2152").unwrap();
    assert_eq!(received(5000), 8, "and both know each other's link-layer address");
    for round in 0..3 {
        let chain = chain(&net);
        let busy = net.ours.enter(|| Chain::attach(device.index)).unwrap();
        assert!(busy.is_err(), "one owner of an interface's programs");
        let part = chain.add(place(0), ending(XDP_DROP)).unwrap();
        socket.send_to(&[round; 9], "10.0.0.1:2152").unwrap();
        assert_eq!(received(300), 0, "dropped by the part");
        // A part keeps its chain.
        drop(chain);
        assert!(net.ours.enter(|| Chain::attach(device.index)).unwrap().is_err());
        drop(part);
        socket.send_to(&[round; 10], "10.0.0.1:2152").unwrap();
        assert_eq!(received(5000), 10);
    }
}

/// What a program in the kernel reads as the time is what workers read.
#[test]
fn programs_and_workers_read_one_clock() {
    let line = SharedLines::new(1).unwrap();
    let mut asm = Assembler::new();
    asm.call(HELPER_KTIME);
    asm.copy(Reg::R6, Reg::R0);
    let missing = find_line(&mut asm, &line);
    asm.store(Size::Double, Reg::R0, 0, Reg::R6);
    asm.place(missing);
    asm.set(Reg::R0, XDP_PASS);
    asm.exit();
    let program = Program::load("test_clock", &asm.finish().unwrap()).unwrap();
    for _ in 0..10 {
        let before = net::time::now_ns();
        program.run(&frame()).unwrap();
        let after = net::time::now_ns();
        let read = line.read(0).unwrap()[0];
        assert!((before..=after).contains(&read), "{before} <= {read} <= {after}");
    }
}

/// The programs stay far below what the verifier accepts, and a step of the chain costs a few nanoseconds. The figures of ADR
/// 0019 come from here: `cargo test -p pktio --test suite steps_are_cheap -- --nocapture`.
#[test]
fn steps_are_cheap() {
    const REPEAT: u32 = 1_000_000;
    let net = Net::new();
    let chain = chain(&net);
    let map = XskMap::new(1).unwrap();
    let selects: Vec<Select> = (0..8)
        .flat_map(|n| {
            let udp = |text: &str| Select::Udp(text.parse().unwrap(), 2152);
            let prefix = Select::Prefix(format!("10.{n}.0.0/16").parse().unwrap());
            [udp("10.0.0.1"), udp("2001:db8::1"), prefix]
        })
        .collect();
    let mac = [2, 0, 0, 0, 0, 1];
    let select = |selects: &[Select]| {
        let code = filter::program(map.as_fd(), mac, &[(Tags::default(), selects.to_vec())]).unwrap();
        Program::load("test_select", &code).unwrap()
    };
    let (one, all) = (select(&selects[..1]), select(&selects));
    let budget = [chain.entry_instructions(), one.verified_instructions(), all.verified_instructions()];
    let budget = budget.map(Result::unwrap);
    println!(
        "verified instructions: entry {}, one selection {}, {} selections {}",
        budget[0],
        budget[1],
        selects.len(),
        budget[2]
    );
    assert!(budget[0] <= 16 && budget[1] <= 400 && budget[2] <= 5_000, "{budget:?}");

    // The best of some runs: this machine does other things too.
    let best = |run: &dyn Fn() -> u32| (0..5).map(|_| run()).min().unwrap();
    let frame = frame();
    let alone = best(&|| one.run_repeatedly(&frame, REPEAT).unwrap().ns);
    let empty = best(&|| chain.run(&frame, REPEAT).unwrap().ns);
    let _selection = chain.add(Place::SELECTION, one).unwrap();
    let selected = best(&|| chain.run(&frame, REPEAT).unwrap().ns);
    let counters = SharedLines::new(1).unwrap();
    let mut parts = Vec::new();
    let mut with_parts = Vec::new();
    for number in 0..7 {
        let program = counting(&chain, place(number), &counters, 0);
        parts.push(chain.add(place(number), program).unwrap());
        with_parts.push(best(&|| chain.run(&frame, REPEAT).unwrap().ns));
    }
    println!(
        "ns per packet: selection alone {alone}, chain without parts {empty}, with selection {selected}"
    );
    println!("with 1 to 7 counting parts in front: {with_parts:?}");
    assert!(selected < alone + 200 && with_parts[6] < alone + 2_000, "even on a busy machine");
}
