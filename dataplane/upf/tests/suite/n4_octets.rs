//! N4 on the wire: requests are written octet by octet after the tables of TS 29.244, and answers are read in the same way.
//! Our codec is not used, because a mistake in both reading and writing would then stay hidden.

use std::net::SocketAddr;
use std::time::Duration;

use crate::without_user_plane::Upf;
use net::udp::UdpSocket;
use pktio::memory::Sink;
use upf::mailbox::Command;
use upf::n4::Query;

// Message types (table 7.3-1); a response is the request's plus one.
const HEARTBEAT: u8 = 1;
const ASSOCIATION_SETUP: u8 = 5;
const ESTABLISHMENT: u8 = 50;
const MODIFICATION: u8 = 52;

// Causes (table 8.2.1-1).
const ACCEPTED: u8 = 1;
const CONDITIONAL_IE_MISSING: u8 = 67;
const MANDATORY_IE_INCORRECT: u8 = 69;
const RULE_FAILURE: u8 = 73;

// Information elements (table 8.1.2-1).
const CREATE_PDR: u16 = 1;
const PDI: u16 = 2;
const CREATE_FAR: u16 = 3;
const FORWARDING_PARAMETERS: u16 = 4;
const CREATE_URR: u16 = 6;
const CREATE_QER: u16 = 7;
const UPDATE_FAR: u16 = 10;
const UPDATE_FORWARDING_PARAMETERS: u16 = 11;
const REMOVE_FAR: u16 = 16;
const REMOVE_URR: u16 = 17;
const REMOVE_QER: u16 = 18;
const CAUSE: u16 = 19;
const OFFENDING_IE: u16 = 40;
const F_SEID: u16 = 57;
const NODE_ID: u16 = 60;
const USAGE_REPORT: u16 = 78;
const OUTER_HEADER_CREATION: u16 = 84;
const CREATE_BAR: u16 = 85;
const REMOVE_BAR: u16 = 87;
const UE_IP_ADDRESS: u16 = 93;
const RECOVERY_TIME_STAMP: u16 = 96;
const FAILED_RULE: u16 = 114;

/// One IE.
fn ie(kind: u16, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [&kind.to_be_bytes()[..], &(content.len() as u16).to_be_bytes(), content].concat()
}

/// A grouped IE.
fn group(kind: u16, members: &[Vec<u8>]) -> Vec<u8> {
    ie(kind, members.concat())
}

fn pdr_id(id: u16) -> Vec<u8> {
    ie(56, id.to_be_bytes())
}

fn far_id(id: u32) -> Vec<u8> {
    ie(108, id.to_be_bytes())
}

fn qer_id(id: u32) -> Vec<u8> {
    ie(109, id.to_be_bytes())
}

fn urr_id(id: u32) -> Vec<u8> {
    ie(81, id.to_be_bytes())
}

fn bar_id(id: u8) -> Vec<u8> {
    ie(88, [id])
}

/// Node ID, IPv4.
fn node_id() -> Vec<u8> {
    ie(NODE_ID, [0, 127, 0, 0, 4])
}

/// The IEs of a session: uplink and downlink, each with QER and URR, the downlink's FAR with a BAR.
struct Session {
    cp_seid: u64,
    /// Last octet of the UE's address; `None`: no PDR names one.
    ue: Option<u8>,
    /// Outer Header Creation of the downlink.
    tunnel: Vec<u8>,
}

impl Session {
    fn new(cp_seid: u64, ue: u8) -> Session {
        Session { cp_seid, ue: Some(ue), tunnel: tunnel(1, 0xa0b0_c0d0, &[127, 0, 0, 20]) }
    }

    fn ies(&self) -> Vec<Vec<u8>> {
        let ue = |flags: u8| self.ue.map(|last| ie(UE_IP_ADDRESS, [flags, 10, 45, 0, last]));
        let rule = |id: u16, pdi: Vec<Vec<u8>>, removal: Option<Vec<u8>>| {
            let mut members = vec![pdr_id(id), ie(29, 255u32.to_be_bytes()), group(PDI, &pdi)];
            members.extend(removal);
            members.extend([far_id(id.into()), urr_id(1), qer_id(1)]);
            group(CREATE_PDR, &members)
        };
        // Source interface access, F-TEID: CHOOSE, IPv4.
        let uplink = [Some(ie(20, [0])), Some(ie(21, [0b0000_0101])), ue(0b010)];
        // Source interface core; the UE's address is the destination.
        let downlink = [Some(ie(20, [1])), ue(0b110)];
        let far = |id: u32, action: u8, parameters: &[Vec<u8>], bar: Option<Vec<u8>>| {
            let mut members = vec![far_id(id), ie(44, [action]), group(FORWARDING_PARAMETERS, parameters)];
            members.extend(bar);
            group(CREATE_FAR, &members)
        };
        let mut ies = vec![node_id(), f_seid(self.cp_seid)];
        // Outer header removal: GTP-U, UDP, IPv4.
        ies.push(rule(1, uplink.into_iter().flatten().collect(), Some(ie(95, [0]))));
        // A session without UE address has no downlink: nothing would lead to it.
        if self.ue.is_some() {
            ies.push(rule(2, downlink.into_iter().flatten().collect(), None));
        }
        // FORW to core; BUFF to access.
        ies.push(far(1, 0x02, &[ie(42, [1])], None));
        ies.push(far(2, 0x04, &[ie(42, [0]), self.tunnel.clone()], Some(bar_id(1))));
        // Measurement by volume, reports only when asked.
        ies.push(group(CREATE_URR, &[urr_id(1), ie(62, [0x02]), ie(37, [0, 0])]));
        ies.push(group(CREATE_QER, &[qer_id(1), ie(25, [0])]));
        ies.push(group(CREATE_BAR, &[bar_id(1)]));
        ies
    }
}

/// CP F-SEID, IPv4.
fn f_seid(seid: u64) -> Vec<u8> {
    ie(F_SEID, [&[0x02][..], &seid.to_be_bytes(), &[127, 0, 0, 4]].concat())
}

/// Outer Header Creation: GTP-U over IPv4 (1) or IPv6 (2).
fn tunnel(description: u8, teid: u32, address: &[u8]) -> Vec<u8> {
    ie(OUTER_HEADER_CREATION, [&[description, 0][..], &teid.to_be_bytes(), address].concat())
}

/// Update FAR of the downlink: `action`, and a new tunnel.
fn update_far(id: u32, action: u8, tunnel: Option<&Vec<u8>>) -> Vec<u8> {
    let parameters = tunnel.map(|tunnel| group(UPDATE_FORWARDING_PARAMETERS, &[ie(42, [0]), tunnel.clone()]));
    let members: Vec<_> = [far_id(id), ie(44, [action])].into_iter().chain(parameters).collect();
    group(UPDATE_FAR, &members)
}

/// An answer: SEID of its header, and its IEs in order.
#[derive(Debug)]
struct Answer {
    seid: Option<u64>,
    ies: Vec<(u16, Vec<u8>)>,
}

impl Answer {
    fn get(&self, kind: u16) -> Option<&[u8]> {
        self.ies.iter().find(|(of, _)| *of == kind).map(|(_, content)| &content[..])
    }

    fn cause(&self) -> u8 {
        self.get(CAUSE).unwrap()[0]
    }

    /// The cause, and the offending IE.
    fn refusal(&self) -> (u8, Option<u16>) {
        (self.cause(), self.get(OFFENDING_IE).map(|octets| u16::from_be_bytes(octets.try_into().unwrap())))
    }

    /// Kind and number of the rule that failed (§8.2.80).
    fn failed_rule(&self) -> Option<(u8, u32)> {
        let octets = self.get(FAILED_RULE)?;
        let number = octets[1..].iter().fold(0, |number, octet| number << 8 | u32::from(*octet));
        Some((octets[0], number))
    }

    /// The SEID that the UPF chose.
    fn up_seid(&self) -> u64 {
        assert_eq!(self.cause(), ACCEPTED, "{self:?}");
        u64::from_be_bytes(self.get(F_SEID).unwrap()[1..9].try_into().unwrap())
    }
}

/// A CP function that writes octets.
struct Cp {
    socket: UdpSocket,
    upf: SocketAddr,
    sequence: u32,
}

impl Cp {
    async fn new(upf: &Upf) -> Cp {
        // The UPF's requests come to this port.
        let address = SocketAddr::from(([127, 0, 0, 4], upf.address.port()));
        let socket = net::udp::bind(address).await.unwrap();
        Cp { socket, upf: upf.address, sequence: 0x00_10_00 }
    }

    async fn associated(upf: &Upf) -> Cp {
        let mut cp = Cp::new(upf).await;
        let setup = [node_id(), ie(RECOVERY_TIME_STAMP, [0, 0, 0, 1])];
        assert_eq!(cp.ask(ASSOCIATION_SETUP, None, &setup).await.cause(), ACCEPTED);
        cp
    }

    /// Version 1, S flag, type, length, SEID, sequence number, spare (§7.2.2).
    async fn send(&self, kind: u8, seid: Option<u64>, sequence: u32, ies: &[Vec<u8>]) {
        let seid_octets = seid.map(u64::to_be_bytes);
        let seid_octets = seid_octets.as_ref().map_or(&[][..], |octets| octets);
        let content = [seid_octets, &(sequence << 8).to_be_bytes(), &ies.concat()].concat();
        let flags = 0x20 | u8::from(seid.is_some());
        let header = [&[flags, kind][..], &(content.len() as u16).to_be_bytes()].concat();
        self.socket.send_to(&[header, content].concat(), self.upf).await.unwrap();
    }

    /// Sends a request and waits for its answer; heartbeats of the UPF are answered.
    async fn ask(&mut self, kind: u8, seid: Option<u64>, ies: &[Vec<u8>]) -> Answer {
        self.sequence += 1;
        self.send(kind, seid, self.sequence, ies).await;
        let mut buffer = [0; 2048];
        loop {
            let received = net::time::timeout(Duration::from_secs(10), self.socket.recv(&mut buffer)).await;
            let octets = &buffer[..received.expect("an answer").unwrap()];
            let has_seid = octets[0] & 1 == 1;
            assert_eq!(octets[0] & !1, 0x20, "version 1, no other flags");
            assert_eq!(usize::from(u16::from_be_bytes([octets[2], octets[3]])), octets.len() - 4);
            let (seid, rest) = octets[4..].split_at(if has_seid { 8 } else { 0 });
            let sequence = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]);
            if octets[1] == HEARTBEAT {
                let stamp = [ie(RECOVERY_TIME_STAMP, [0, 0, 0, 1])];
                self.send(HEARTBEAT + 1, None, sequence, &stamp).await;
            } else {
                assert_eq!((octets[1], sequence), (kind + 1, self.sequence));
                let seid = has_seid.then(|| u64::from_be_bytes(seid.try_into().unwrap()));
                return Answer { seid, ies: elements(&rest[4..]) };
            }
        }
    }

    async fn establish(&mut self, session: &Session) -> Answer {
        self.ask(ESTABLISHMENT, Some(0), &session.ies()).await
    }
}

/// The IEs of a message, the outermost only.
fn elements(mut octets: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut elements = Vec::new();
    while let [a, b, c, d, rest @ ..] = octets {
        let length = usize::from(u16::from_be_bytes([*c, *d]));
        elements.push((u16::from_be_bytes([*a, *b]), rest[..length].to_vec()));
        octets = &rest[length..];
    }
    assert!(octets.is_empty());
    elements
}

/// Node IDs that name nobody: an FQDN without octets, one of the root label, no octets at all.
#[tokio::test(start_paused = true)]
async fn empty_node_ids_are_refused() {
    let upf = Upf::start().await;
    let mut cp = Cp::new(&upf).await;
    for (name, cause) in [(&[2][..], MANDATORY_IE_INCORRECT), (&[2, 0], MANDATORY_IE_INCORRECT), (&[], 68)] {
        let setup = [ie(NODE_ID, name), ie(RECOVERY_TIME_STAMP, [0, 0, 0, 1])];
        let answer = cp.ask(ASSOCIATION_SETUP, None, &setup).await;
        assert_eq!(answer.cause(), cause, "{name:?}");
    }
    assert_eq!(upf.count("associations").await, 0);
    let setup = [ie(NODE_ID, b"\x02\x03smf"), ie(RECOVERY_TIME_STAMP, [0, 0, 0, 1])];
    assert_eq!(cp.ask(ASSOCIATION_SETUP, None, &setup).await.cause(), ACCEPTED);
}

/// §6.3.3.3: a refused modification drops nothing that is buffered, an accepted one does.
#[tokio::test(start_paused = true)]
async fn a_refused_modification_with_drobu_drops_nothing() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    let answer = cp.establish(&Session::new(7, 2)).await;
    assert_eq!(answer.seid, Some(7));
    let seid = answer.up_seid();
    upf.mailbox.take();
    // PFCPSMReq-Flags: DROBU.
    let dropping = |far| [ie(49, [0x01]), update_far(far, 0x02, None)];
    let refused = cp.ask(MODIFICATION, Some(seid), &dropping(99)).await;
    assert_eq!((refused.cause(), refused.failed_rule()), (RULE_FAILURE, Some((1, 99))));
    assert_eq!(upf.mailbox.take(), []);
    assert_eq!(cp.ask(MODIFICATION, Some(seid), &dropping(2)).await.cause(), ACCEPTED);
    assert_eq!(upf.mailbox.take(), [Command::Discard(seid)]);
}

/// Tunnels that no packet could be sent into, on an N3 with IPv4 only.
#[tokio::test(start_paused = true)]
async fn tunnels_to_nowhere_are_refused() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    let seid = cp.establish(&Session::new(1, 2)).await.up_seid();
    let v6 = [0xfd, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let cases = [
        ("IPv6", tunnel(2, 7, &v6)),
        ("no address", tunnel(1, 7, &[0; 4])),
        ("broadcast", tunnel(1, 7, &[255; 4])),
        ("TEID of signalling", tunnel(1, 0, &[127, 0, 0, 20])),
    ];
    for (what, header) in cases {
        let refusal = (MANDATORY_IE_INCORRECT, Some(OUTER_HEADER_CREATION));
        let session = Session { tunnel: header.clone(), ..Session::new(2, 3) };
        let answer = cp.establish(&session).await;
        assert_eq!(
            (answer.refusal(), answer.failed_rule(), answer.seid),
            (refusal, Some((1, 2)), Some(2)),
            "{what}"
        );
        let answer = cp.ask(MODIFICATION, Some(seid), &[update_far(2, 0x02, Some(&header))]).await;
        assert_eq!((answer.refusal(), answer.seid), (refusal, Some(1)), "{what}");
    }
    assert_eq!(upf.count("sessions").await, 1);
    let good = tunnel(1, 8, &[127, 0, 0, 21]);
    assert_eq!(cp.ask(MODIFICATION, Some(seid), &[update_far(2, 0x02, Some(&good))]).await.cause(), ACCEPTED);
}

/// Sources of uplink packets are checked against the UE's address, so a session needs one.
#[tokio::test(start_paused = true)]
async fn an_uplink_without_ue_address_is_refused_where_not_allowed() {
    let session = Session { ue: None, ..Session::new(1, 0) };
    let upf = Upf::start().await;
    let answer = Cp::associated(&upf).await.establish(&session).await;
    assert_eq!(answer.refusal(), (CONDITIONAL_IE_MISSING, Some(UE_IP_ADDRESS)));
    assert_eq!(answer.failed_rule(), Some((0, 1)));
    let upf = Upf::with(Sink::default(), |config| config.dnn[0].any_source = true).await;
    Cp::associated(&upf).await.establish(&session).await.up_seid();
}

/// §6.3.3.3: a removed rule is removed from the rules that refer to it, and the rest of the request takes effect.
#[tokio::test(start_paused = true)]
async fn rules_that_are_referred_to_may_be_removed() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    let seid = cp.establish(&Session::new(1, 2)).await.up_seid();
    let shown = async || upf.ask(Query::Sessions).await;
    let before = shown().await;
    // With the Rule ID Type of a failed rule (§8.2.80): FAR, QER, URR, BAR.
    let rules = [
        (group(REMOVE_FAR, &[far_id(1)]), (1, 1)),
        (group(REMOVE_QER, &[qer_id(1)]), (2, 1)),
        (group(REMOVE_URR, &[urr_id(1)]), (3, 1)),
        (group(REMOVE_BAR, &[bar_id(1)]), (4, 1)),
    ];
    for (removal, rule) in rules {
        let answer = cp.ask(MODIFICATION, Some(seid), std::slice::from_ref(&removal)).await;
        assert_eq!((answer.cause(), answer.seid), (ACCEPTED, Some(1)), "{rule:?}: {answer:?}");
        // A URR reports its counts once, when it is removed.
        assert_eq!(answer.get(USAGE_REPORT).is_some(), rule.0 == 3, "{answer:?}");
        let again = cp.ask(MODIFICATION, Some(seid), &[removal]).await;
        assert_eq!((again.cause(), again.failed_rule()), (RULE_FAILURE, Some(rule)));
    }
    assert_ne!(shown().await, before);
    // The PDRs still exist, and can get other rules.
    let created = [
        group(CREATE_FAR, &[far_id(1), ie(44, [0x02]), group(FORWARDING_PARAMETERS, &[ie(42, [1])])]),
        group(CREATE_BAR, &[bar_id(1)]),
        group(9, &[pdr_id(1), far_id(1)]),
        group(UPDATE_FAR, &[far_id(2), bar_id(1)]),
    ];
    assert_eq!(cp.ask(MODIFICATION, Some(seid), &created).await.cause(), ACCEPTED);
}

/// A CP function with SEID 0 could not be sent reports.
#[tokio::test(start_paused = true)]
async fn a_cp_f_seid_of_zero_is_refused() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    let answer = cp.establish(&Session::new(0, 2)).await;
    assert_eq!((answer.refusal(), answer.seid), ((MANDATORY_IE_INCORRECT, Some(F_SEID)), Some(0)));
    assert_eq!(upf.count("sessions").await, 0);
}
