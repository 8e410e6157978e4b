//! Captured control messages: whatever passes a switch, what is kept can be made again, and comes back from a database; and whatever an
//! agent and its replicator say to each other.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use gtpv2c::message::{
    CreateSessionRequest, CreateSessionResponse, Message, ModifyBearerRequest, ModifyBearerResponse,
};
use gtpv2c::{
    BearerCreated, BearerToBeCreated, BearerToBeModified, CauseValue, Ebi, FTeid, InterfaceType, Paa,
};
use replication::clone::{Clone, Limits, Script};
use replication::n4::clone::N4;
use replication::s11::clone::S11;
use replication::session::Session;
use replication::table::{Change, Table};
use replication::track::Datagram;
use replication::{n4, s11};

const ANCHOR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 11));
const CONTROLS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

/// A step: an octet that says who sends to whom, the length of a datagram in two octets, and the datagram.
fn step(input: &mut &[u8]) -> Option<(u8, Vec<u8>)> {
    let (head, rest) = input.split_first_chunk::<3>()?;
    let length = usize::from(u16::from_be_bytes([head[1], head[2]])).min(rest.len());
    let (datagram, rest) = rest.split_at(length);
    *input = rest;
    Some((head[0], datagram.to_vec()))
}

fn write(flags: u8, datagram: &[u8], out: &mut Vec<u8>) {
    out.push(flags);
    out.extend_from_slice(&(datagram.len() as u16).to_be_bytes());
    out.extend_from_slice(datagram);
}

/// What was kept so far: templates before records.
type Kept = BTreeMap<(bool, u32), Change>;

/// A table whose records are all that they say, and that comes back from what was kept of it.
fn check(table: &mut Table, kept: &mut Kept) -> Vec<Session> {
    let numbers: Vec<u32> = table.numbers().collect();
    assert_eq!(numbers.len(), table.len());
    let load = |table: &Table, number: u32| Session::load(table, number).expect("a record has its templates");
    let sessions: Vec<Session> = numbers.iter().map(|number| load(table, *number)).collect();
    for (number, session) in numbers.iter().zip(&sessions) {
        let found = table.by_subject(session.peer, session.subject).and_then(|found| table.view(found));
        assert_eq!(found.and_then(|view| view.subject()), Some(session.subject), "record {number}");
        assert!(table.by_anchor(session.anchor).is_some(), "record {number}");
    }
    let mut again = Table::default();
    for change in table.take_changes() {
        match change {
            Change::Template(number, _) => _ = kept.insert((false, number.into()), change),
            Change::NoTemplate(number) => _ = kept.remove(&(false, number.into())),
            Change::Record(number, _) => _ = kept.insert((true, number), change),
            Change::NoRecord(number) => _ = kept.remove(&(true, number)),
        }
    }
    for change in kept.values() {
        again.restore(change).expect("what was kept comes back");
    }
    again.restored();
    assert_eq!(again.len(), numbers.len());
    for (number, session) in numbers.iter().zip(&sessions) {
        assert_eq!(load(&again, *number), *session);
    }
    sessions
}

/// S11, and a clone that answers with the same datagrams.
pub fn of_s11(data: &[u8]) {
    let (now, mut input) = (net::time::now_std(), data);
    let mut tracker = s11::Tracker::new(ANCHOR, 64);
    let side = S11 { restart_counter: 1, original: ANCHOR, clone: CONTROLS[1] };
    let mut clone = Clone::new(side, Limits::default(), 1);
    let (mut effects, mut kept) = (Vec::new(), Kept::new());
    while let Some((flags, datagram)) = step(&mut input) {
        let control = CONTROLS[usize::from(flags >> 1 & 1)];
        let datagram = Datagram { control, by_control: flags & 1 != 0, octets: &datagram };
        tracker.observe(now, datagram, &mut effects);
        clone.handle_datagram(now, datagram.octets);
        if flags & 4 != 0 {
            for (number, session) in (0..).zip(check(tracker.table_mut(), &mut kept)) {
                clone.make(now, number, Script { control: session.control, requests: session.requests });
            }
        }
        while clone.poll_transmit().is_some() || clone.poll_event().is_some() {}
    }
    if let Some(due) = clone.poll_timeout() {
        clone.handle_timeout(due);
    }
}

/// N4, likewise.
pub fn of_n4(data: &[u8]) {
    let (now, mut input) = (net::time::now_std(), data);
    let mut tracker = n4::Tracker::new(ANCHOR, 64);
    let side = N4 { own: CONTROLS[0], started: 1, gtpu: ANCHOR };
    let mut clone = Clone::new(side, Limits::default(), 1);
    let (mut effects, mut kept) = (Vec::new(), Kept::new());
    while let Some((flags, datagram)) = step(&mut input) {
        let control = CONTROLS[usize::from(flags >> 1 & 1)];
        let datagram = Datagram { control, by_control: flags & 1 != 0, octets: &datagram };
        tracker.observe(now, datagram, &mut effects);
        clone.handle_datagram(now, datagram.octets);
        if flags & 4 != 0 {
            for (number, session) in (0..).zip(check(tracker.table_mut(), &mut kept)) {
                clone.make(now, number, Script { control: session.control, requests: session.requests });
            }
        }
        while clone.poll_transmit().is_some() || clone.poll_event().is_some() {}
    }
    if let Some(due) = clone.poll_timeout() {
        clone.handle_timeout(due);
    }
}

fn encode(message: impl Into<Message>, teid: u32, sequence: u32) -> Vec<u8> {
    let mut octets = Vec::new();
    message.into().encode(teid, sequence, &mut octets).expect("a seed is well-formed");
    octets
}

/// A UE that attaches, and everything that the decoder's target has.
pub fn s11_seeds(messages: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let accepted = CauseValue::ACCEPTED.into();
    let end = |interface, teid, address| FTeid::new(interface, teid, address);
    let create = CreateSessionRequest {
        imsi: "999700000000001".parse().ok(),
        sender_f_teid: end(InterfaceType::S11_MME, 7, CONTROLS[0]),
        apn: "internet".into(),
        bearers_to_be_created: vec![BearerToBeCreated { ebi: Ebi(5), ..Default::default() }],
        ..Default::default()
    };
    let created = BearerCreated {
        ebi: Ebi(5),
        cause: accepted,
        s1u_sgw_f_teid: Some(end(InterfaceType::S1U_SGW, 9, ANCHOR)),
        ..Default::default()
    };
    let answer = CreateSessionResponse {
        cause: accepted,
        sender_f_teid: Some(end(InterfaceType::S11_S4_SGW, 8, ANCHOR)),
        paa: Some(Paa::Ipv4(Ipv4Addr::new(10, 45, 0, 2))),
        bearers_created: vec![created],
        ..Default::default()
    };
    let bearer = BearerToBeModified {
        ebi: Ebi(5),
        s1u_enb_f_teid: Some(end(InterfaceType::S1U_ENB, 8, CONTROLS[1])),
        ..Default::default()
    };
    let modify = ModifyBearerRequest { bearers_to_be_modified: vec![bearer], ..Default::default() };
    let modified = ModifyBearerResponse { cause: accepted, ..Default::default() };
    let mut attach = Vec::new();
    write(1, &encode(create, 0, 1), &mut attach);
    write(4, &encode(answer, 7, 1), &mut attach);
    write(1, &encode(modify, 8, 2), &mut attach);
    write(4, &encode(modified, 7, 2), &mut attach);
    seeds(messages, attach)
}

/// Everything that the decoder's target has.
pub fn n4_seeds(messages: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    seeds(messages, Vec::new())
}

fn seeds(messages: Vec<Vec<u8>>, first: Vec<u8>) -> Vec<Vec<u8>> {
    let mut all = first.clone();
    for (number, message) in (0..).zip(&messages) {
        write(if number % 2 == 0 { 1 } else { 4 }, message, &mut all);
    }
    let one = messages.iter().map(|message| {
        let mut one = first.clone();
        write(1, message, &mut one);
        one
    });
    one.chain([first.clone(), all]).collect()
}
