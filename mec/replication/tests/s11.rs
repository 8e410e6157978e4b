//! S11 from capture to copy, without sockets: an MME's messages, an anchor that answers them, and another one on which they are
//! replayed. The anchors are written for the test after TS 29.274, with TEIDs of their own choice; real ones are in `tests/e2e`.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use gtpv2c::codec::Octets;
use gtpv2c::message::*;
use gtpv2c::tft::{Component, PacketFilter};
use gtpv2c::value::*;
use gtpv2c::{
    BearerCreated, BearerInCreateRequest, BearerInCreateResponse, BearerInUpdateRequest, BearerModified,
    BearerToBeCreated, BearerToBeModified,
};
use proptest::prelude::*;
use replication::clone::{Clone, Event, Limits, Made, Script, Why};
use replication::replicator::Datagrams;
use replication::s11::Tracker;
use replication::s11::clone::S11;
use replication::session::Session;
use replication::table::{Change, Table};
use replication::track::{Datagram, Effect};

const MME: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const ANCHOR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 11));
const CLONE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 11));
const ENB: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1));

fn side(restart_counter: u8) -> S11 {
    S11 { restart_counter, original: ANCHOR, clone: CLONE }
}

fn accepted() -> Cause {
    CauseValue::ACCEPTED.into()
}

fn encode(message: impl Into<Message>, teid: u32, sequence: u32) -> Vec<u8> {
    let mut octets = Vec::new();
    message.into().encode(teid, sequence, &mut octets).unwrap();
    octets
}

fn imsi(ue: u32) -> types::Imsi {
    format!("99970{ue:010}").parse().unwrap()
}

/// An anchor's session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Held {
    imsi: String,
    mme: u32,
    address: u32,
    /// Bearer, its TEID here, and the eNB's.
    bearers: BTreeMap<u8, (u32, Option<u32>)>,
}

/// The MME's TEID, and of each bearer the eNB's.
type Meaning = (u32, Vec<(u8, Option<u32>)>);

/// An anchor that does what it is asked.
#[derive(Debug)]
struct Anchor {
    sessions: BTreeMap<u32, Held>,
    next: u32,
    pool: u32,
    /// Refuses these subscribers.
    refuses: Vec<u32>,
    /// How often it has started.
    recovery: u8,
    /// Takes tunnels of eNBs with sessions, as ours does.
    takes_tunnels: bool,
    /// Refuses sessions with such tunnels.
    refuses_tunnels: bool,
    /// Types of the requests that it got, without Echo.
    asked: Vec<MessageType>,
}

impl Anchor {
    fn new(next: u32, pool: u32) -> Anchor {
        Anchor {
            sessions: BTreeMap::new(),
            next,
            pool,
            refuses: Vec::new(),
            recovery: 3,
            takes_tunnels: false,
            refuses_tunnels: false,
            asked: Vec::new(),
        }
    }

    fn teid(&mut self) -> u32 {
        self.next = self.next.wrapping_mul(0x9e37_79b1).wrapping_add(1);
        self.next
    }

    fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let (header, message) = Message::decode(request).unwrap();
        let teid = header.teid.unwrap_or(0);
        if header.message_type != MessageType::EchoRequest {
            self.asked.push(header.message_type);
        }
        let of_mme = self.sessions.get(&teid).map_or(0, |held| held.mme);
        let not_found = Cause::from(CauseValue::CONTEXT_NOT_FOUND);
        match message {
            Message::EchoRequest(_) => encode(
                EchoResponse { recovery: Recovery(self.recovery), ..Default::default() },
                0,
                header.sequence,
            ),
            Message::CreateSessionRequest(request) => {
                let name = request.imsi.unwrap().to_string();
                let has_tunnels =
                    request.bearers_to_be_created.iter().any(|bearer| bearer.s1u_enb_f_teid.is_some());
                if self.refuses.iter().any(|ue| imsi(*ue).to_string() == name)
                    || self.refuses_tunnels && has_tunnels
                {
                    let refused = CreateSessionResponse {
                        cause: CauseValue::NO_RESOURCES.into(),
                        ..Default::default()
                    };
                    return encode(refused, request.sender_f_teid.teid, header.sequence);
                }
                self.sessions.retain(|_, held| held.imsi != name);
                let (own, uplink) = (self.teid(), self.teid());
                self.pool += 1;
                let ebi = request.bearers_to_be_created[0].ebi;
                let is_asked = request.private_extensions.contains(&PrivateExtension::asks_for_enb_tunnels());
                let enb = request.bearers_to_be_created[0].s1u_enb_f_teid.filter(|_| self.takes_tunnels);
                let enb = enb.map(|end| end.teid);
                let takes = is_asked && enb.is_some();
                let held = Held {
                    imsi: name,
                    mme: request.sender_f_teid.teid,
                    address: self.pool,
                    bearers: BTreeMap::from([(ebi.0, (uplink, enb))]),
                };
                let created = BearerCreated {
                    ebi,
                    cause: accepted(),
                    s1u_sgw_f_teid: Some(FTeid::new(InterfaceType::S1U_SGW, uplink, ANCHOR)),
                    ..Default::default()
                };
                let answer = CreateSessionResponse {
                    cause: accepted(),
                    sender_f_teid: Some(FTeid::new(InterfaceType::S11_S4_SGW, own, ANCHOR)),
                    paa: Some(Paa::Ipv4(Ipv4Addr::from_bits(self.pool))),
                    bearers_created: vec![created],
                    private_extensions: Vec::from_iter(takes.then(PrivateExtension::has_enb_tunnels)),
                    ..Default::default()
                };
                self.sessions.insert(own, held);
                encode(answer, request.sender_f_teid.teid, header.sequence)
            }
            Message::ModifyBearerRequest(request) => {
                let Some(held) = self.sessions.get_mut(&teid) else {
                    return encode(
                        ModifyBearerResponse { cause: not_found, ..Default::default() },
                        0,
                        header.sequence,
                    );
                };
                let mut modified = Vec::new();
                for bearer in &request.bearers_to_be_modified {
                    if let Some(known) = held.bearers.get_mut(&bearer.ebi.0) {
                        known.1 = bearer.s1u_enb_f_teid.map(|end| end.teid);
                        let end = FTeid::new(InterfaceType::S1U_SGW, known.0, ANCHOR);
                        let (ebi, cause) = (bearer.ebi, accepted());
                        modified.push(BearerModified {
                            ebi,
                            cause,
                            s1u_sgw_f_teid: Some(end),
                            ..Default::default()
                        });
                    }
                }
                let answer = ModifyBearerResponse {
                    cause: accepted(),
                    bearers_modified: modified,
                    ..Default::default()
                };
                encode(answer, of_mme, header.sequence)
            }
            Message::ReleaseAccessBearersRequest(_) => {
                let Some(held) = self.sessions.get_mut(&teid) else {
                    let answer = ReleaseAccessBearersResponse { cause: not_found, ..Default::default() };
                    return encode(answer, 0, header.sequence);
                };
                held.bearers.values_mut().for_each(|bearer| bearer.1 = None);
                let answer = ReleaseAccessBearersResponse { cause: accepted(), ..Default::default() };
                encode(answer, of_mme, header.sequence)
            }
            Message::DeleteSessionRequest(_) => {
                let cause = if self.sessions.remove(&teid).is_some() { accepted() } else { not_found };
                encode(DeleteSessionResponse { cause, ..Default::default() }, of_mme, header.sequence)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Its sessions without what it chose itself, and by subscriber.
    fn meaning(&self) -> BTreeMap<String, Meaning> {
        let of = |held: &Held| {
            let bearers = held.bearers.iter().map(|(ebi, (_, enb))| (*ebi, *enb)).collect();
            (held.imsi.clone(), (held.mme, bearers))
        };
        self.sessions.values().map(of).collect()
    }
}

/// An MME, the switch before it, and the anchor behind.
struct World {
    now: Instant,
    anchor: Anchor,
    tracker: Tracker,
    sequence: u32,
    /// The anchor's TEID of each UE.
    ues: BTreeMap<u32, u32>,
    raw: Vec<Vec<u8>>,
}

fn create(ue: u32) -> CreateSessionRequest {
    let plmn = "99970".parse().unwrap();
    let tai = Some(Tai { plmn, tac: 1 });
    CreateSessionRequest {
        imsi: Some(imsi(ue)),
        msisdn: Some(Digits(format!("49170{ue:07}"))),
        mei: Some(Digits(format!("35{ue:014}"))),
        uli: Some(Uli { tai, ecgi: Some(Ecgi { plmn, eci: ue & 0xff }), ..Default::default() }),
        serving_network: Some(plmn),
        rat_type: RatType::EUTRAN,
        sender_f_teid: FTeid::new(InterfaceType::S11_MME, 0xa000_0000 + ue, MME),
        apn: "internet".into(),
        pdn_type: Some(PdnType::Ipv4),
        paa: Some(Paa::Ipv4([0; 4].into())),
        apn_ambr: Some(Ambr { uplink_kbps: 1, downlink_kbps: 2 }),
        pco: Some(Octets(vec![0x80, 0, 0x0d, 0])),
        bearers_to_be_created: vec![BearerToBeCreated { ebi: Ebi(5), ..Default::default() }],
        ..Default::default()
    }
}

fn modify(enb: u32) -> ModifyBearerRequest {
    let enb = FTeid::new(InterfaceType::S1U_ENB, enb, ENB);
    let bearer = BearerToBeModified { ebi: Ebi(5), s1u_enb_f_teid: Some(enb), ..Default::default() };
    ModifyBearerRequest { bearers_to_be_modified: vec![bearer], ..Default::default() }
}

impl World {
    fn new() -> World {
        let tracker = Tracker::new(ANCHOR, 1_000_000);
        let (ues, raw) = Default::default();
        World { now: net::time::now_std(), anchor: Anchor::new(7, 100), tracker, sequence: 0, ues, raw }
    }

    fn see(&mut self, by_control: bool, octets: &[u8]) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.tracker.observe(self.now, Datagram { control: MME, by_control, octets }, &mut effects);
        effects
    }

    /// A request, captured, answered, and the answer captured.
    fn ask(&mut self, teid: u32, message: impl Into<Message>) -> (Message, Vec<Effect>) {
        self.sequence += 1;
        let request = encode(message, teid, self.sequence);
        let mut effects = self.see(true, &request);
        let answer = self.anchor.answer(&request);
        effects.extend(self.see(false, &answer));
        self.raw.push(request);
        (Message::decode(&answer).unwrap().1, effects)
    }

    fn attach(&mut self, ue: u32) {
        let (answer, effects) = self.ask(0, create(ue));
        let Message::CreateSessionResponse(answer) = answer else { panic!() };
        if !answer.cause.is_accepted() {
            assert_eq!(effects, []);
            return;
        }
        assert!(matches!(effects[..], [Effect::Began { .. }]), "{effects:?}");
        self.ues.insert(ue, answer.sender_f_teid.unwrap().teid);
        self.activate(ue, 0xe000_0000 + ue);
    }

    fn activate(&mut self, ue: u32, enb: u32) {
        if let Some(teid) = self.ues.get(&ue) {
            self.ask(*teid, modify(enb));
        }
    }

    fn idle(&mut self, ue: u32) {
        if let Some(teid) = self.ues.get(&ue) {
            self.ask(*teid, ReleaseAccessBearersRequest::default());
        }
    }

    fn detach(&mut self, ue: u32) {
        if let Some(teid) = self.ues.remove(&ue) {
            let request = DeleteSessionRequest { linked_ebi: Some(Ebi(5)), ..Default::default() };
            let (_, effects) = self.ask(teid, request);
            assert!(matches!(effects[..], [Effect::Ended(_)]), "{effects:?}");
        }
    }

    fn script(&self, number: u32) -> Script {
        let session = self.tracker.session(number).unwrap();
        Script { control: session.control, requests: session.requests }
    }

    /// Makes all sessions at an anchor, and what became of each.
    fn copy(&self, to: &mut Anchor) -> BTreeMap<u32, Result<Made, Why>> {
        let mut clone = Clone::new(side(1), Limits::default(), 99);
        for number in self.tracker.table().numbers() {
            clone.make(self.now, number, self.script(number));
        }
        drive(&mut clone, to, self.now)
    }
}

/// The next request of a script.
fn next(clone: &mut Clone<S11>) -> Option<Vec<u8>> {
    let is_echo = |octets: &Vec<u8>| octets[1] == MessageType::EchoRequest as u8;
    std::iter::from_fn(|| clone.poll_transmit()).find(|octets| !is_echo(octets))
}

fn drive(clone: &mut Clone<S11>, to: &mut Anchor, now: Instant) -> BTreeMap<u32, Result<Made, Why>> {
    let mut ends = BTreeMap::new();
    while let Some(request) = clone.poll_transmit() {
        let answer = to.answer(&request);
        clone.handle_datagram(now, &answer);
        while let Some(event) = clone.poll_event() {
            match event {
                Event::Made(number, made) => assert!(ends.insert(number, Ok(made)).is_none()),
                Event::Refused(number, why) => assert!(ends.insert(number, Err(why)).is_none()),
                Event::Ended(_) | Event::Usage { .. } => {}
                Event::Request { .. } => panic!("{event:?}"),
            }
        }
    }
    ends
}

/// Two UEs, a clone, and the agent's side of it, by which the first one is about to be made there.
fn first_of_two() -> (World, Anchor, Clone<S11>) {
    let mut world = World::new();
    world.attach(1);
    world.attach(2);
    let mut clone = Clone::new(side(7), Limits::default(), 9);
    clone.make(world.now, 0, world.script(0));
    (world, Anchor::new(1, 5000), clone)
}

/// SEL-1…3, STO-7: records of at most 64 octets make the same sessions again, with what the other anchor chose.
#[test]
fn sessions_are_made_again_from_at_most_64_octets_each() {
    let mut world = World::new();
    for ue in 1..=200 {
        world.attach(ue);
    }
    for ue in 1..=50 {
        world.idle(ue);
    }
    for number in world.tracker.table().numbers() {
        let octets = world.tracker.table().octets(number).unwrap().len();
        assert!(octets <= 64, "{octets} octets");
    }
    assert!(
        world.tracker.table().templates().len() <= 3,
        "the create, modify and release requests of this MME"
    );
    let mut clone = Anchor::new(1, 5000);
    let ends = world.copy(&mut clone);
    assert_eq!(ends.len(), 200);
    assert_eq!(clone.meaning(), world.anchor.meaning());
    for (number, made) in ends {
        let made = made.unwrap();
        let held = &clone.sessions[&u32::try_from(made.anchor).unwrap()];
        assert_eq!(made.bearers[0].uplink, held.bearers[&5].0);
        assert_eq!(made.bearers[0].ipv4, Some(Ipv4Addr::from_bits(held.address)));
        let session = world.tracker.session(number).unwrap();
        assert_ne!(session.bearers[0].uplink, made.bearers[0].uplink);
    }
}

/// Lossless: but for sequence number and the TEID of the receiver, which a replay gives anew, requests come back octet for octet, also
/// with IEs that nobody here knows.
#[test]
fn requests_come_back_octet_for_octet() {
    let mut world = World::new();
    let mut request = encode(create(1), 0, 0x12_3456);
    // A private extension (type 255).
    request.extend_from_slice(&[255, 0, 3, 0, 1, 2, 3]);
    let length = u16::try_from(request.len() - 4).unwrap().to_be_bytes();
    request[2..4].copy_from_slice(&length);
    world.see(true, &request);
    let answer = world.anchor.answer(&request);
    world.see(false, &answer);
    let teid = *world.anchor.sessions.keys().next().unwrap();
    let modify = encode(modify(3), teid, 0x12_3457);
    world.see(true, &modify);
    let answer = world.anchor.answer(&modify);
    world.see(false, &answer);
    let session = world.tracker.session(0).unwrap();
    for (kept, sent) in session.requests.iter().zip([&request, &modify]) {
        let mut sent = sent.clone();
        sent[8..11].fill(0);
        assert_eq!(*kept, sent);
    }
}

/// CAP-8: repeated messages count once, refused ones not at all, and hostile ones do no harm.
#[test]
fn only_what_was_accepted_counts_and_once() {
    let mut world = World::new();
    world.anchor.refuses = vec![2];
    world.attach(2);
    assert!(world.tracker.table().is_empty());
    let request = encode(create(1), 0, 77);
    let answer = world.anchor.answer(&request);
    assert_eq!(world.see(true, &request), []);
    assert_eq!(world.see(true, &request), []);
    // An answer that nobody has asked for, and one of another transaction.
    let mut other = answer.clone();
    other[10] += 1;
    assert_eq!(world.see(false, &other), []);
    assert_eq!(world.see(false, &answer).len(), 1);
    assert_eq!(world.see(false, &answer), [], "the answer again");
    for end in 0..request.len() {
        world.see(true, &request[..end]);
        world.see(false, &answer[..end.min(answer.len())]);
    }
    for at in 0..answer.len() {
        let mut damaged = answer.clone();
        damaged[at] ^= 0xff;
        world.see(true, &request);
        world.see(false, &damaged);
    }
    assert!(world.tracker.table().len() <= 2);
}

/// SEL-1: an anchor that takes the eNB's tunnels with a session is asked once for an active user; another one gets them afterwards, and is asked
/// without them if it refuses. What the MME has said besides tunnels is not left out.
#[test]
fn an_active_user_takes_one_exchange_where_the_anchor_can_do_that() {
    use MessageType::{CreateSessionRequest, ModifyBearerRequest, ReleaseAccessBearersRequest};
    for (takes_tunnels, refuses_tunnels) in [(true, false), (false, false), (false, true)] {
        let mut world = World::new();
        (1..=3).for_each(|ue| world.attach(ue));
        // The second is idle, the third in another place, which a copy is to know.
        world.idle(2);
        let change_of_place =
            gtpv2c::message::ModifyBearerRequest { indication: Some(Indication::CLII), ..modify(0xe003) };
        world.ask(world.ues[&3], change_of_place);
        for (ue, expected) in [
            (1, vec![CreateSessionRequest]),
            (2, vec![CreateSessionRequest, ReleaseAccessBearersRequest]),
            (3, vec![CreateSessionRequest, ModifyBearerRequest]),
        ] {
            let mut to = Anchor { takes_tunnels, refuses_tunnels, ..Anchor::new(1, 5000) };
            let mut clone = Clone::new(side(1), Limits::default(), 9);
            clone.make(world.now, 0, world.script(ue - 1));
            let ends = drive(&mut clone, &mut to, world.now);
            assert!(ends[&0].is_ok(), "{ends:?}");
            let mut expected = expected;
            if !takes_tunnels && !expected.contains(&ModifyBearerRequest) {
                expected.insert(1, ModifyBearerRequest);
                if refuses_tunnels {
                    expected.insert(0, CreateSessionRequest);
                }
            }
            assert_eq!(to.asked, expected, "user {ue}");
            let name = imsi(ue).to_string();
            assert_eq!(to.meaning()[&name], world.anchor.meaning()[&name]);
        }
    }
}

/// SEL: a UE that the clone refuses is told, and the others are there.
#[test]
fn a_refusal_concerns_one_ue() {
    let mut world = World::new();
    (1..=10).for_each(|ue| world.attach(ue));
    let mut clone = Anchor::new(1, 5000);
    clone.refuses = vec![4];
    let ends = world.copy(&mut clone);
    let refused: Vec<&Why> = ends.values().filter_map(|end| end.as_ref().err()).collect();
    assert_eq!(refused, [&Why::Cause(CauseValue::NO_RESOURCES.0)]);
    assert_eq!(clone.sessions.len(), 9);
}

/// An anchor that is silent, late, or answers twice.
#[test]
fn silence_ends_and_late_answers_change_nothing() {
    let mut world = World::new();
    world.attach(1);
    let limits = Limits { repeats: 2, ..Limits::default() };
    let mut clone = Clone::new(side(1), limits, 9);
    let mut now = world.now;
    clone.make(now, 0, world.script(0));
    let mut sent = Vec::new();
    let mut events = Vec::new();
    while let Some(due) = clone.poll_timeout() {
        sent.extend(std::iter::from_fn(|| next(&mut clone)));
        now = due;
        clone.handle_timeout(now);
        events.extend(std::iter::from_fn(|| clone.poll_event()));
    }
    assert_eq!(sent.len(), 3, "once, and repeated twice");
    assert!(sent.iter().all(|octets| *octets == sent[0]), "the same transaction");
    assert_eq!(events, [Event::Refused(0, Why::Silent), Event::Ended(0)]);
    // Its answer, late and twice.
    let mut anchor = Anchor::new(1, 5000);
    let answer = anchor.answer(&sent[0]);
    clone.handle_datagram(now, &answer);
    clone.handle_datagram(now, &answer);
    assert_eq!(clone.poll_event(), None);
    assert_eq!(next(&mut clone), None);
}

/// NAI-1…3: one in flight, nothing altered; where the replica gave another TEID, that UE's messages are told to it.
#[test]
fn naive_replay_alters_only_what_differs() {
    let mut world = World::new();
    (1..=5).for_each(|ue| world.attach(ue));
    // The same anchor again gives the same TEIDs.
    for (mut to, is_same) in [(Anchor::new(7, 100), true), (Anchor::new(8, 100), false)] {
        let mut clone = Clone::new(side(1), Limits::default(), 9);
        for (at, octets) in world.raw.iter().enumerate() {
            let ue = at as u32 / 2;
            clone.replay(world.now, ue, (0xa000_0001 + ue).into(), octets.clone());
        }
        let mut count = 0;
        while let Some(request) = next(&mut clone) {
            assert_eq!(clone.poll_transmit(), None, "one in flight");
            assert!(request == world.raw[count] || !is_same && count % 2 == 1, "message {count}");
            count += 1;
            let answer = to.answer(&request);
            clone.handle_datagram(world.now, &answer);
        }
        assert_eq!(count, 10);
        assert_eq!(to.meaning(), world.anchor.meaning());
        assert_eq!(to.sessions == world.anchor.sessions, is_same);
        let made = std::iter::from_fn(|| clone.poll_event())
            .filter(|event| matches!(event, Event::Made(..)))
            .count();
        assert_eq!(made, 5);
    }
}

/// CAP-6, SEL-3, SEL-8: later messages follow, and the end.
#[test]
fn a_copy_follows_and_ends() {
    let mut world = World::new();
    world.attach(1);
    let mut to = Anchor::new(1, 5000);
    let mut clone = Clone::new(side(1), Limits::default(), 9);
    clone.make(world.now, 0, world.script(0));
    drive(&mut clone, &mut to, world.now);
    let teid = world.ues[&1];
    for message in [Message::from(ReleaseAccessBearersRequest::default()), modify(55).into()] {
        let (_, effects) = world.ask(teid, message);
        let [Effect::Changed { number, request }] = &effects[..] else { panic!("{effects:?}") };
        clone.later(world.now, *number, request.clone());
        drive(&mut clone, &mut to, world.now);
        assert_eq!(to.meaning(), world.anchor.meaning());
    }
    clone.end(world.now, 0);
    drive(&mut clone, &mut to, world.now);
    assert!(to.sessions.is_empty());
}

/// CAP-5: Echo of a clone is answered, what it asks is for the MME, and the answer goes back; both once, however often it is asked.
#[test]
fn what_a_clone_asks_reaches_the_mme() {
    let mut world = World::new();
    world.attach(1);
    let mut to = Anchor::new(1, 5000);
    let mut clone = Clone::new(side(7), Limits::default(), 9);
    clone.make(world.now, 0, world.script(0));
    drive(&mut clone, &mut to, world.now);
    clone.handle_datagram(
        world.now,
        &encode(EchoRequest { recovery: Recovery(3), ..Default::default() }, 0, 5),
    );
    let echo = Message::decode(&clone.poll_transmit().unwrap()).unwrap();
    assert!(matches!(echo.1, Message::EchoResponse(answer) if answer.recovery == Recovery(7)));
    let notification =
        encode(DownlinkDataNotification { ebis: vec![Ebi(5)], ..Default::default() }, 0xa000_0001, 6);
    clone.handle_datagram(world.now, &notification);
    assert_eq!(
        clone.poll_event(),
        Some(Event::Request { handle: 0, sequence: 6, octets: notification.clone() })
    );
    let answer = DownlinkDataNotificationAcknowledge { cause: accepted(), ..Default::default() };
    clone.answer(0, 6, encode(answer, world.ues[&1], 0x40_0001));
    let (header, _) = Message::decode(&clone.poll_transmit().unwrap()).unwrap();
    assert_eq!((header.teid, header.sequence), (to.sessions.keys().next().copied(), 6));
    clone.handle_datagram(world.now, &notification);
    assert!(
        clone.poll_transmit().is_some() && clone.poll_event().is_none(),
        "the answer again, and nobody is asked"
    );
    // For nobody who is here.
    clone.handle_datagram(world.now, &encode(DownlinkDataNotification::default(), 5, 7));
    let refused = Message::decode(&clone.poll_transmit().unwrap()).unwrap().1;
    assert!(
        matches!(refused, Message::DownlinkDataNotificationAcknowledge(answer) if !answer.cause.is_accepted())
    );
}

/// A clone that restarts has lost its copies, as its Echo says: they are reported as gone, and can be made again.
#[test]
fn a_clone_that_restarts_is_noticed() {
    let mut world = World::new();
    world.attach(1);
    let mut to = Anchor::new(1, 5000);
    let mut clone = Clone::new(side(7), Limits::default(), 9);
    clone.make(world.now, 0, world.script(0));
    drive(&mut clone, &mut to, world.now);
    let echo = |recovery| encode(EchoRequest { recovery: Recovery(recovery), ..Default::default() }, 0, 5);
    clone.handle_datagram(world.now, &echo(3));
    assert!(clone.poll_transmit().is_some(), "it is answered");
    assert_eq!((clone.poll_transmit(), clone.poll_event()), (None, None), "it has not restarted");
    to = Anchor { recovery: 4, ..Anchor::new(2, 5000) };
    let now = world.now + Duration::from_secs(1);
    clone.handle_datagram(now, &echo(4));
    let question = clone.poll_transmit().expect("it is asked whether it has");
    assert_eq!(clone.poll_event(), None);
    clone.handle_datagram(world.now, &to.answer(&question));
    assert_eq!(clone.poll_event(), Some(Event::Refused(0, Why::Restarted)));
    assert_eq!(clone.poll_event(), Some(Event::Ended(0)));
    while clone.poll_transmit().is_some() {}
    clone.make(world.now, 1, world.script(0));
    assert!(drive(&mut clone, &mut to, world.now)[&1].is_ok());
}

/// A clone has restarted since it was last asked. What is made now is made, and only what was there before is gone. An answer of
/// before, which comes late, ends nothing.
#[test]
fn a_restart_between_two_copies_ends_only_the_first() {
    let (world, mut to, mut clone) = first_of_two();
    let first: Vec<Vec<u8>> = std::iter::from_fn(|| clone.poll_transmit()).collect();
    let answers: Vec<Vec<u8>> = first.iter().map(|octets| to.answer(octets)).collect();
    answers.iter().for_each(|octets| clone.handle_datagram(world.now, octets));
    assert_eq!(drive(&mut clone, &mut to, world.now).len(), 1);
    for before in [0, 1] {
        to = Anchor { recovery: to.recovery + 1, ..Anchor::new(2, 5000) };
        let now = world.now + Duration::from_secs(1 + u64::from(before));
        clone.make(now, before + 1, world.script(1 - before));
        let mut asked: Vec<Vec<u8>> = std::iter::from_fn(|| clone.poll_transmit()).collect();
        if before == 1 {
            // The question whether it is there arrives last.
            asked.reverse();
        }
        asked.iter().for_each(|octets| clone.handle_datagram(now, &to.answer(octets)));
        answers.iter().for_each(|octets| clone.handle_datagram(now, octets));
        let ends = drive(&mut clone, &mut to, now);
        assert!(ends[&(before + 1)].is_ok(), "{ends:?}");
        assert_eq!(ends[&before], Err(Why::Restarted));
        assert_eq!(to.sessions.len(), 1);
    }
}

/// A clone is asked for a copy while it restarts: what it gets is lost, and comes again when it is there. That copy is not gone.
#[test]
fn a_copy_asked_for_while_the_clone_restarts_is_made_when_it_is_there() {
    let (world, mut to, mut clone) = first_of_two();
    assert!(drive(&mut clone, &mut to, world.now)[&0].is_ok());
    let mut now = world.now + Duration::from_secs(1);
    clone.make(now, 1, world.script(1));
    while clone.poll_transmit().is_some() {}
    to = Anchor { recovery: 4, ..Anchor::new(2, 5000) };
    now = clone.poll_timeout().unwrap();
    clone.handle_timeout(now);
    let ends = drive(&mut clone, &mut to, now);
    assert_eq!(ends[&0], Err(Why::Restarted));
    assert!(ends[&1].is_ok(), "{ends:?}");
    now = clone.poll_timeout().expect("it is asked");
    clone.handle_timeout(now);
    assert_eq!(drive(&mut clone, &mut to, now), BTreeMap::new(), "nobody else is gone");
    assert_eq!(to.sessions.len(), 1);
}

/// An anchor answers many questions late and at once: that raises no new ones.
#[test]
fn late_answers_to_questions_raise_none() {
    let mut world = World::new();
    (1..=40).for_each(|ue| world.attach(ue));
    let mut to = Anchor::new(1, 5000);
    let mut clone = Clone::new(side(7), Limits::default(), 9);
    let mut questions = Vec::new();
    let mut now = world.now;
    let is_echo = |octets: &Vec<u8>| octets[1] == MessageType::EchoRequest as u8;
    for number in 0..40 {
        clone.make(now, number, world.script(number));
        questions.extend(std::iter::from_fn(|| clone.poll_transmit()).filter(is_echo));
        now += Limits::default().fresh;
    }
    assert_eq!(questions.len(), 40);
    for question in questions {
        clone.handle_datagram(now, &to.answer(&question));
        assert!(!std::iter::from_fn(|| clone.poll_transmit()).any(|octets| is_echo(&octets)));
    }
}

/// A dedicated bearer is made by the anchor, and answered as the MME answered the first one.
#[test]
fn a_dedicated_bearer_is_answered_from_what_was_kept() {
    let mut world = World::new();
    world.attach(1);
    let ask = |end: u32| CreateBearerRequest {
        linked_ebi: Ebi(5),
        bearers: vec![BearerInCreateRequest {
            tft: Octets(vec![0x21, 0x30, 0, 1, 0x30, 17]),
            s1u_sgw_f_teid: Some(FTeid::new(InterfaceType::S1U_SGW, end, ANCHOR)),
            ..Default::default()
        }],
        ..Default::default()
    };
    let answer = |end: u32| CreateBearerResponse {
        cause: accepted(),
        bearers: vec![BearerInCreateResponse {
            ebi: Ebi(6),
            cause: accepted(),
            s1u_enb_f_teid: Some(FTeid::new(InterfaceType::S1U_ENB, 0xbeef, ENB)),
            s1u_sgw_f_teid: Some(FTeid::new(InterfaceType::S1U_SGW, end, ANCHOR)),
            ..Default::default()
        }],
        ..Default::default()
    };
    world.see(false, &encode(ask(70), 0xa000_0001, 900));
    let effects = world.see(true, &encode(answer(70), world.ues[&1], 900));
    assert!(matches!(effects[..], [Effect::ByAnchor { .. }]), "{effects:?}");
    let session = world.tracker.session(0).unwrap();
    assert_eq!(session.bearers.iter().map(|bearer| (bearer.id, bearer.uplink)).next_back(), Some((6, 70)));
    let mut to = Anchor::new(1, 5000);
    let mut clone = Clone::new(side(1), Limits::default(), 9);
    clone.make(world.now, 0, world.script(0));
    assert!(drive(&mut clone, &mut to, world.now).is_empty(), "not there without its bearer");
    clone.handle_datagram(world.now, &encode(ask(71), 0xa000_0001, 901));
    let (header, message) = Message::decode(&clone.poll_transmit().unwrap()).unwrap();
    let Message::CreateBearerResponse(given) = message else { panic!("{message:?}") };
    assert_eq!((given, header.teid), (answer(71), to.sessions.keys().next().copied()));
    let Some(Event::Made(0, made)) = clone.poll_event() else { panic!() };
    assert_eq!(made.bearers.iter().map(|bearer| (bearer.id, bearer.uplink)).next_back(), Some((6, 71)));
    // One that does not ask for it does not have the UE.
    let mut clone = Clone::new(side(1), Limits::default(), 9);
    let mut to = Anchor::new(1, 5000);
    clone.make(world.now, 0, world.script(0));
    drive(&mut clone, &mut to, world.now);
    let due = clone.poll_timeout().unwrap();
    assert!(due >= world.now + Duration::from_secs(1));
    clone.handle_timeout(due);
    assert_eq!(clone.poll_event(), Some(Event::Refused(0, Why::NoBearer)));
    drive(&mut clone, &mut to, due);
    assert!(to.sessions.is_empty(), "and what was there of it is ended");
    // Deleted again at the original.
    world.see(
        false,
        &encode(DeleteBearerRequest { ebis: vec![Ebi(6)], ..Default::default() }, 0xa000_0001, 902),
    );
    let answer = DeleteBearerResponse { cause: accepted(), ..Default::default() };
    world.see(true, &encode(answer, world.ues[&1], 902));
    let session = world.tracker.session(0).unwrap();
    assert_eq!((session.bearers.len(), session.requests.len()), (1, 2));
}

/// Bearers that the anchor creates and deletes while there is a copy: the copy's are answered as the MME has answered, which is not asked again.
#[test]
fn a_copy_follows_bearers_of_the_network() {
    let mut world = World::new();
    world.attach(1);
    let mut to = Anchor::new(1, 5000);
    let mut clone = Clone::new(side(1), Limits::default(), 9);
    clone.make(world.now, 0, world.script(0));
    assert_eq!(drive(&mut clone, &mut to, world.now).len(), 1);
    let ask = |end: u32| CreateBearerRequest {
        linked_ebi: Ebi(5),
        bearers: vec![BearerInCreateRequest {
            tft: Octets(vec![0x21, 0x30, 0, 1, 0x30, 17]),
            s1u_sgw_f_teid: Some(FTeid::new(InterfaceType::S1U_SGW, end, ANCHOR)),
            ..Default::default()
        }],
        ..Default::default()
    };
    world.see(false, &encode(ask(70), 0xa000_0001, 900));
    let answer = CreateBearerResponse {
        cause: accepted(),
        bearers: vec![BearerInCreateResponse { ebi: Ebi(6), cause: accepted(), ..Default::default() }],
        ..Default::default()
    };
    let effects = world.see(true, &encode(answer, world.ues[&1], 900));
    let [Effect::ByAnchor { number: 0, messages }] = &effects[..] else { panic!("{effects:?}") };
    messages.iter().for_each(|message| clone.later(world.now, 0, message.clone()));
    assert_eq!(clone.poll_transmit(), None, "the anchor asks, not we");
    assert_eq!(clone.poll_event(), None, "and it is no worse without");
    clone.handle_datagram(world.now, &encode(ask(71), 0xa000_0001, 901));
    let given = Message::decode(&clone.poll_transmit().unwrap()).unwrap().1;
    assert!(matches!(given, Message::CreateBearerResponse(given) if given.bearers[0].ebi == Ebi(6)));
    let Some(Event::Made(0, made)) = clone.poll_event() else { panic!() };
    assert_eq!(made.bearers.iter().map(|bearer| (bearer.id, bearer.uplink)).next_back(), Some((6, 71)));
    // Deleted by the anchor: the clone is to ask for that, and is answered.
    let delete = DeleteBearerRequest { ebis: vec![Ebi(6)], ..Default::default() };
    world.see(false, &encode(delete.clone(), 0xa000_0001, 902));
    let answer = DeleteBearerResponse { cause: accepted(), ..Default::default() };
    let effects = world.see(true, &encode(answer, world.ues[&1], 902));
    let [Effect::ByAnchor { number: 0, messages }] = &effects[..] else { panic!("{effects:?}") };
    messages.iter().for_each(|message| clone.later(world.now, 0, message.clone()));
    let (header, command) = Message::decode(&clone.poll_transmit().unwrap()).unwrap();
    let Message::DeleteBearerCommand(command) = command else { panic!("{command:?}") };
    assert_eq!((command.bearers[0].ebi, header.teid), (Ebi(6), to.sessions.keys().next().copied()));
    clone.handle_datagram(world.now, &encode(delete, 0xa000_0001, header.sequence));
    let given = Message::decode(&clone.poll_transmit().unwrap()).unwrap().1;
    assert!(matches!(given, Message::DeleteBearerResponse(given) if given.cause.is_accepted()));
    let Some(Event::Made(0, made)) = clone.poll_event() else { panic!() };
    assert_eq!(made.bearers.len(), 1);
    // What the clone deletes by itself is the MME's matter.
    let delete = DeleteBearerRequest { ebis: vec![Ebi(7)], ..Default::default() };
    clone.handle_datagram(world.now, &encode(delete, 0xa000_0001, 903));
    assert!(matches!(clone.poll_event(), Some(Event::Request { sequence: 903, .. })));
}

/// A command after which the anchor updates bearers: the clone's request for that is answered, as the MME has accepted the original's. What the
/// clone updates by itself is the MME's matter. So commands in a row are done in their order.
#[test]
fn updates_after_commands_are_answered() {
    let mut world = World::new();
    world.attach(1);
    let mut to = Anchor::new(1, 5000);
    let mut clone = Clone::new(side(1), Limits::default(), 9);
    clone.make(world.now, 0, world.script(0));
    drive(&mut clone, &mut to, world.now);
    let command = |kbps: u32| {
        let apn_ambr = Ambr { uplink_kbps: kbps, downlink_kbps: kbps };
        encode(ModifyBearerCommand { apn_ambr, ..Default::default() }, 0, 0)
    };
    let update = |sequence: u32| {
        let bearers = vec![BearerInUpdateRequest { ebi: Ebi(5), ..Default::default() }];
        encode(UpdateBearerRequest { bearers, ..Default::default() }, 0xa000_0001, sequence)
    };
    for kbps in [1000, 2000] {
        clone.later(world.now, 0, command(kbps));
    }
    for kbps in [1000, 2000] {
        let (header, sent) = Message::decode(&clone.poll_transmit().unwrap()).unwrap();
        assert!(matches!(sent, Message::ModifyBearerCommand(sent) if sent.apn_ambr.uplink_kbps == kbps));
        assert_eq!(clone.poll_transmit(), None, "one after the other");
        clone.handle_datagram(world.now, &update(header.sequence));
        let (answered, given) = Message::decode(&clone.poll_transmit().unwrap()).unwrap();
        let Message::UpdateBearerResponse(given) = given else { panic!("{given:?}") };
        assert_eq!((answered.sequence, given.bearers[0].ebi), (header.sequence, Ebi(5)));
        assert!(given.cause.is_accepted() && given.bearers[0].cause.is_accepted());
    }
    assert_eq!(clone.poll_event(), None, "the MME is not asked");
    clone.handle_datagram(world.now, &update(903));
    assert!(matches!(clone.poll_event(), Some(Event::Request { sequence: 903, .. })));
}

/// A dedicated bearer is known with the datagrams that it carries, by the first filter that has no condition of the user's side.
#[test]
fn what_a_dedicated_bearer_carries_is_known() {
    let filter = |id: u8, components: Vec<Component>| PacketFilter {
        id,
        direction: tft::Direction::Bidirectional,
        precedence: id,
        components,
    };
    let filters = [
        filter(1, vec![Component::Protocol(17), Component::LocalPort(9)]),
        filter(2, vec![Component::Protocol(6), Component::RemotePort(80)]),
        filter(3, vec![Component::Protocol(17), Component::RemotePorts(5000, 5009)]),
    ];
    let of = |count: usize| {
        let operation = tft::Operation::Create(filters[..count].to_vec());
        let tft = tft::Tft { operation, parameters: Vec::new() }.encode().unwrap();
        let asked = vec![BearerInCreateRequest { tft, ..Default::default() }];
        let created = vec![BearerInCreateResponse { ebi: Ebi(6), cause: accepted(), ..Default::default() }];
        let request = CreateBearerRequest { bearers: asked, ..Default::default() };
        let answer = CreateBearerResponse { cause: accepted(), bearers: created, ..Default::default() };
        replication::s11::dedicated(&[encode(request, 1, 1), encode(answer, 2, 1)])
    };
    assert_eq!(of(2), vec![]);
    assert_eq!(of(3), vec![(6, Datagrams { server: None, port: Some(5000) })]);
}

/// A request that was not captured: the record says that it is not all. One that is captured behind its answer counts.
#[test]
fn lost_requests_make_a_record_incomplete() {
    let mut world = World::new();
    (1..=3).for_each(|ue| world.attach(ue));
    let answer = |ue: u32, message: Message, sequence| encode(message, 0xa000_0000 + ue, sequence);
    let modified = || ModifyBearerResponse { cause: accepted(), ..Default::default() };
    // Behind its answer.
    let request = encode(modify(0x99), world.ues[&1], 700);
    assert_eq!(world.see(false, &answer(1, modified().into(), 700)), []);
    assert!(matches!(world.see(true, &request)[..], [Effect::Changed { number: 0, .. }]));
    // Never, and refused ones change nothing.
    let refused = ModifyBearerResponse { cause: CauseValue::NO_RESOURCES.into(), ..Default::default() };
    world.see(false, &answer(2, modified().into(), 701));
    world.see(false, &answer(1, refused.into(), 702));
    let deleted = DeleteSessionResponse { cause: accepted(), ..Default::default() };
    world.see(false, &answer(3, deleted.into(), 703));
    assert!(!world.tracker.session(1).unwrap().incomplete);
    world.now += Duration::from_secs(1);
    let echo = encode(EchoRequest { recovery: Recovery(1), ..Default::default() }, 0, 704);
    assert_eq!(world.see(true, &echo), [Effect::Ended(2)]);
    assert!(world.tracker.session(1).unwrap().incomplete);
    assert!(!world.tracker.session(0).unwrap().incomplete);
    // The UE attaches again, and all is known.
    world.attach(2);
    assert!(!world.tracker.session(1).unwrap().incomplete);
}

/// STO-3: what a restart of the MME or the anchor takes away goes; an Echo that nobody asked for takes nothing away.
#[test]
fn restarts_take_sessions_away() {
    for by_control in [true, false] {
        let mut world = World::new();
        (1..=3).for_each(|ue| world.attach(ue));
        let echo =
            |sequence| encode(EchoRequest { recovery: Recovery(1), ..Default::default() }, 0, sequence);
        let answer = |recovery, sequence| {
            encode(EchoResponse { recovery: Recovery(recovery), ..Default::default() }, 0, sequence)
        };
        for (recovery, left) in [(4, 3), (4, 3), (5, 0)] {
            world.see(by_control, &answer(9, 600 + u32::from(recovery)));
            world.see(!by_control, &echo(500 + left as u32));
            let effects = world.see(by_control, &answer(recovery, 500 + left as u32));
            assert_eq!(world.tracker.table().len(), left, "{effects:?}");
        }
    }
}

/// CAP-9: what was kept comes back, and goes on.
#[test]
fn what_was_kept_comes_back() {
    let mut world = World::new();
    (1..=20).for_each(|ue| world.attach(ue));
    let mut kept: BTreeMap<(bool, u32), Change> = BTreeMap::new();
    let keep = |world: &mut World, kept: &mut BTreeMap<(bool, u32), Change>| {
        for change in world.tracker.table_mut().take_changes() {
            match change {
                Change::Record(number, _) => _ = kept.insert((true, number), change),
                Change::NoRecord(number) => _ = kept.remove(&(true, number)),
                Change::Template(number, _) => _ = kept.insert((false, number.into()), change),
                Change::NoTemplate(number) => _ = kept.remove(&(false, number.into())),
            }
        }
    };
    keep(&mut world, &mut kept);
    (1..=5).for_each(|ue| world.detach(ue));
    (6..=9).for_each(|ue| world.idle(ue));
    keep(&mut world, &mut kept);
    let mut table = Table::default();
    kept.values().for_each(|change| table.restore(change).unwrap());
    table.restored();
    assert_eq!(table.len(), 15);
    for number in world.tracker.table().numbers() {
        assert_eq!(Session::load(&table, number), world.tracker.session(number));
    }
    // Incomplete: a template is missing.
    let mut table = Table::default();
    let records = kept.iter().filter(|((is_record, _), _)| *is_record);
    assert!(records.map(|(_, change)| table.restore(change)).all(|restored| restored.is_err()));
}

/// An MME names the P-GW. Where that is the first anchor, the clone is to be it; another one stays.
#[test]
fn the_clone_is_the_gateway_that_the_first_anchor_was() {
    let mut world = World::new();
    for (ue, gateway, expected) in [(1, ANCHOR, CLONE), (2, ENB, ENB)] {
        let gateway = Some(FTeid::new(InterfaceType::S5S8_PGW_GTPC, 0, gateway));
        world.ask(0, CreateSessionRequest { pgw_f_teid: gateway, ..create(ue) });
        let mut clone = Clone::new(side(1), Limits::default(), 9);
        clone.make(world.now, 0, world.script(ue - 1));
        let Message::CreateSessionRequest(sent) = Message::decode(&next(&mut clone).unwrap()).unwrap().1
        else {
            panic!()
        };
        assert_eq!(sent.pgw_f_teid.and_then(|end| end.address()), Some(expected));
    }
}

/// A clone is asked for the UE's own address (SEL-7), unless it is not known which of several PDN connections has it, or it is not IPv4.
#[test]
fn a_clone_is_asked_for_the_address() {
    let address = "10.45.0.9".parse().unwrap();
    let asked = |paa, count: usize| {
        let request = encode(CreateSessionRequest { paa: Some(paa), ..create(1) }, 0, 1);
        let mut requests = vec![request; count];
        requests.push(encode(modify(7), 3, 2));
        let before = requests.clone();
        replication::s11::ask_for(&mut requests, address);
        assert_eq!(requests[1..], before[1..]);
        match Message::decode(&requests[0]).unwrap().1 {
            Message::CreateSessionRequest(request) => request.paa,
            other => panic!("{other:?}"),
        }
    };
    let none = Paa::Ipv4([0; 4].into());
    assert_eq!(asked(none, 1), Some(Paa::Ipv4(address)));
    assert_eq!(asked(none, 2), Some(none));
    let prefix = Paa::Ipv6(Ipv6Prefix { length: 64, address: "2001:db8::".parse().unwrap() });
    assert_eq!(asked(prefix, 1), Some(prefix));
    let mut cut = vec![encode(create(1), 0, 1)];
    for length in (0..cut[0].len()).rev() {
        cut[0].truncate(length);
        replication::s11::ask_for(&mut cut, address);
    }
}

/// An eNB may have the very TEID that the anchor has on S11: it comes to the clone all the same.
#[test]
fn equal_teids_are_not_mixed_up() {
    let mut world = World::new();
    world.attach(1);
    let s11 = world.ues[&1];
    world.activate(1, s11);
    let mut table = Table::default();
    for change in world.tracker.table_mut().take_changes() {
        if let Change::Template(..) = change {
            table.restore(&change).unwrap();
        }
    }
    // As the agent gets it: without what the first anchor has given.
    let mut record = world.tracker.table().get(0).unwrap();
    (record.anchor, record.bearers) = (0, Vec::new());
    let requests =
        Session::of(&record, |number| world.tracker.table().templates().get(number).map(|it| &**it))
            .unwrap()
            .requests;
    let mut to = Anchor::new(1, 5000);
    let mut clone = Clone::new(side(1), Limits::default(), 9);
    clone.make(world.now, 0, Script { control: record.control, requests });
    drive(&mut clone, &mut to, world.now);
    assert_eq!(to.meaning(), world.anchor.meaning());
}

/// A handle that another user had: that one ends first, and nobody gets its session.
#[test]
fn a_handle_that_is_used_again_is_another_users() {
    let mut world = World::new();
    (1..=2).for_each(|ue| world.attach(ue));
    let mut to = Anchor::new(1, 5000);
    let mut clone = Clone::new(side(1), Limits::default(), 9);
    clone.make(world.now, 0, world.script(0));
    drive(&mut clone, &mut to, world.now);
    clone.make(world.now, 0, world.script(1));
    let ends = drive(&mut clone, &mut to, world.now);
    let made = ends[&0].clone().unwrap();
    assert_eq!(to.sessions.len(), 1);
    let held = &to.sessions[&u32::try_from(made.anchor).unwrap()];
    assert_eq!((held.imsi.as_str(), held.mme), (imsi(2).to_string().as_str(), 0xa000_0002));
    // Told of a session that it has, it says what it has; of one that it has not, it believes it.
    clone.adopt(world.now, 0, 0xa000_0002, Made { anchor: 1, bearers: Vec::new() });
    assert_eq!(clone.poll_event(), Some(Event::Made(0, made)));
    clone.adopt(world.now, 5, 0xa000_0009, Made { anchor: 77, bearers: Vec::new() });
    assert_eq!(clone.poll_event(), None);
}

/// A replicator that was killed before it could note its copies is followed by one that does not know them. What that one asks for is there
/// already, if the clone has it as asked for. Else its copies of the same users take their place, whether those were made or under way.
/// Within its own life another session with the same TEID is refused.
#[test]
fn copies_that_nobody_knows_are_found_or_give_way() {
    for (is_made, is_same, has_served) in
        [(true, true, false), (true, false, false), (false, true, false), (true, false, true)]
    {
        let mut world = World::new();
        (1..=2).for_each(|ue| world.attach(ue));
        let mut to = Anchor::new(1, 5000);
        let mut clone = Clone::new(side(1), Limits::default(), 9);
        clone.greeted();
        clone.make(world.now, 100, world.script(0));
        if is_made {
            drive(&mut clone, &mut to, world.now);
        }
        if has_served {
            // Its P-GW may have been told: that is nothing that its requests alone make.
            clone.serve(world.now, 100, true);
        } else if !is_same {
            clone.later(world.now, 100, encode(ReleaseAccessBearersRequest::default(), 0, 0));
            drive(&mut clone, &mut to, world.now);
        }
        let before: Vec<u32> = to.sessions.keys().copied().collect();
        clone.greeted();
        clone.make(world.now, 200, world.script(0));
        let first = clone.poll_event();
        match (&first, is_made && is_same) {
            (Some(Event::Made(200, made)), true) => assert_eq!(made.anchor, u64::from(before[0])),
            (None, false) => assert!(drive(&mut clone, &mut to, world.now)[&200].is_ok()),
            _ => panic!("{first:?}"),
        }
        let after: Vec<u32> = to.sessions.keys().copied().collect();
        assert_eq!(after.len(), 1, "the former one has ended, or is this one");
        assert_eq!(before == after, is_made && is_same);
        clone.make(world.now, 201, world.script(0));
        assert_eq!(clone.poll_event(), Some(Event::Refused(201, Why::Taken)));
        clone.end(world.now, 200);
        drive(&mut clone, &mut to, world.now);
        assert_eq!(to.sessions.len(), 0, "it ends by its new name");
    }
}

/// An anchor that accepts a session and does not say by which TEID: there is none that could be found by it.
#[test]
fn a_session_without_the_anchors_teid_is_none() {
    let mut world = World::new();
    let request = encode(create(1), 0, 77);
    let answer = CreateSessionResponse { cause: accepted(), ..Default::default() };
    world.see(true, &request);
    assert_eq!(world.see(false, &encode(answer, 0xa000_0001, 77)), []);
    assert_eq!(world.tracker.table().len(), 0);
}

/// A request that passes once more behind its answer, with the answer that the other end remembers, counts once.
#[test]
fn repetitions_that_cross_their_answer_count_once() {
    let mut world = World::new();
    let request = encode(create(1), 0, 77);
    let answer = world.anchor.answer(&request);
    world.see(true, &request);
    assert_eq!(world.see(false, &answer).len(), 1);
    assert_eq!(world.see(true, &request), []);
    assert_eq!(world.see(false, &answer), []);
    assert_eq!(world.tracker.session(0).unwrap().requests.len(), 1);
}

#[derive(Debug, Clone)]
enum Step {
    Attach(u32),
    Idle(u32),
    Activate(u32, u32),
    Detach(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let ue = 1u32..8;
    prop_oneof![
        3 => ue.clone().prop_map(Step::Attach),
        1 => ue.clone().prop_map(Step::Idle),
        2 => (ue.clone(), 1u32..1000).prop_map(|(ue, enb)| Step::Activate(ue, enb)),
        1 => ue.prop_map(Step::Detach),
    ]
}

proptest! {
    /// STO-6: whatever UEs have done, a replica for all that are there can be made, and nothing is kept of others.
    #[test]
    fn a_replica_for_all_can_always_be_made(steps in proptest::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Attach(ue) => world.attach(ue),
                Step::Idle(ue) => world.idle(ue),
                Step::Activate(ue, enb) => world.activate(ue, enb),
                Step::Detach(ue) => world.detach(ue),
            }
        }
        let mut clone = Anchor::new(1, 5000);
        let ends = world.copy(&mut clone);
        prop_assert!(ends.values().all(Result::is_ok));
        prop_assert_eq!(clone.meaning(), world.anchor.meaning());
        prop_assert_eq!(world.tracker.table().len(), world.ues.len());
        for ue in world.ues.keys().copied().collect::<Vec<_>>() {
            world.detach(ue);
        }
        prop_assert!(world.tracker.table().templates().is_empty());
    }
}
