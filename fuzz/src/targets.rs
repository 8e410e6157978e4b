//! The targets. A target decodes its input. If there is an encoder, it also checks that the decoded value
//! survives encoding and decoding again.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{
    cotcp, cu, cu_control, du, du_control, epc, gtpv2c, n4, offload, pdcp, pipeline, replicas, rlc, rrc,
    rules, switch, ue, ue_rrc,
};

/// One decoder or endpoint.
pub struct Target {
    /// Name on the command line and of the folders with its seeds and regressions.
    pub name: &'static str,
    /// Decodes the input; a panic is a finding.
    pub run: fn(&[u8]),
    /// Well-formed inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "classifier", run: rules::program, seeds: rules::seeds },
    Target { name: "config", run: config, seeds: || vec![include_bytes!("../../godwit.yaml").to_vec()] },
    Target { name: "cotcp-client", run: cotcp::client, seeds: cotcp::client_seeds },
    Target { name: "cotcp-server", run: cotcp::server, seeds: cotcp::server_seeds },
    Target { name: "cotcp-wired", run: cotcp::wired, seeds: cotcp::wired_seeds },
    Target { name: "cu", run: cu::run, seeds: cu::seeds },
    Target {
        name: "cu-control",
        run: cu_control::run,
        seeds: || cu_control::seeds(folder("f1ap"), folder("ngap")),
    },
    Target { name: "du", run: du::run, seeds: du::seeds },
    Target { name: "du-control", run: du_control::run, seeds: du_control::seeds },
    Target { name: "epc", run: epc::run, seeds: || epc::seeds(folder("gtpv2c")) },
    Target { name: "f1ap", run: f1ap, seeds: || folder("f1ap") },
    Target { name: "gtpu", run: gtpu, seeds: || folder("gtpu") },
    Target { name: "gtpv2c", run: gtpv2c::message, seeds: || folder("gtpv2c") },
    Target { name: "gtpv2c-endpoint", run: gtpv2c::endpoint, seeds: gtpv2c::conversations },
    Target { name: "ip", run: ip, seeds: || folder("ip") },
    Target {
        name: "mec-moves",
        run: orchestrator::model::fuzz_journal,
        seeds: || MEC_MOVES.iter().map(|text| text.as_bytes().to_vec()).collect(),
    },
    Target { name: "mec-moves-rest", run: orchestrator::rest::fuzz, seeds: mec_moves_rest_seeds },
    Target { name: "mec-rest", run: controller::rest::fuzz, seeds: mec_rest_seeds },
    Target { name: "mec-state", run: mec_state, seeds: mec_state_seeds },
    Target { name: "memif", run: memif, seeds: memif_seeds },
    Target { name: "n4-message", run: n4::message, seeds: || folder("pfcp") },
    Target { name: "n4-program", run: n4::program, seeds: n4::programs },
    Target { name: "nas", run: nas, seeds: nas_seeds },
    Target { name: "nas-protected", run: nas_protected, seeds: nas_protected_seeds },
    Target { name: "ngap", run: ngap, seeds: || folder("ngap") },
    Target { name: "ngap-transfer", run: ngap_transfer, seeds: || folder("ngap-transfer") },
    Target { name: "offload-cut", run: offload::cut, seeds: offload::cut_seeds },
    Target { name: "offload-join", run: offload::join, seeds: offload::join_seeds },
    Target { name: "openflow", run: openflow, seeds: openflow_seeds },
    Target { name: "openflow-parts", run: openflow_parts, seeds: openflow_parts_seeds },
    Target { name: "pdcp-receive", run: pdcp::receive, seeds: pdcp::receive_seeds },
    Target { name: "pdcp-status", run: pdcp::status, seeds: pdcp::status_seeds },
    Target { name: "pfcp", run: pfcp, seeds: || folder("pfcp") },
    Target { name: "pfcp-endpoint", run: pfcp_endpoint, seeds: || folder("pfcp") },
    Target { name: "pipeline", run: pipeline::run, seeds: pipeline::seeds },
    Target { name: "replication-frames", run: replication::frame::fuzz, seeds: || vec![vec![3, 0, 1, 0]] },
    Target { name: "replication-n4", run: replicas::of_n4, seeds: || replicas::n4_seeds(folder("pfcp")) },
    Target {
        name: "replication-s11",
        run: replicas::of_s11,
        seeds: || replicas::s11_seeds(folder("gtpv2c")),
    },
    Target { name: "rl-tree-model", run: rules::model, seeds: rules::models },
    Target { name: "rlc-am", run: rlc::am, seeds: rlc::am_seeds },
    Target { name: "rlc-um", run: rlc::um, seeds: rlc::um_seeds },
    Target { name: "rrc", run: rrc::message, seeds: rrc::seeds },
    Target { name: "sbi", run: sbi_json, seeds: sbi_seeds },
    Target { name: "sbi-multipart", run: sbi_multipart, seeds: sbi_multipart_seeds },
    Target { name: "sbi-token", run: ::sbi::fuzz_token, seeds: sbi_token_seeds },
    Target { name: "sctp", run: net::sctp::fuzz_packet, seeds: || folder("sctp") },
    Target { name: "sdap", run: pdcp::sdap, seeds: pdcp::sdap_seeds },
    Target { name: "sdf", run: sdf, seeds: sdf_seeds },
    Target { name: "suci", run: suci, seeds: suci_seeds },
    Target { name: "switch-agent", run: switch::agent, seeds: switch::agent_seeds },
    Target { name: "switch-pipeline", run: switch::program, seeds: switch::programs },
    Target { name: "subscribers", run: subscribers, seeds: subscriber_seeds },
    Target { name: "ue-downlink", run: ue::downlink, seeds: ue::seeds },
    Target { name: "ue-rrc", run: ue_rrc::run, seeds: ue_rrc::seeds },
    Target { name: "uu", run: rlc::uu, seeds: rlc::uu_seeds },
];

const MEC_DIVERSION: &str = r#"{"ue":"10.45.0.2","tunnels":[{"uplink":17,"downlink":33,"target_uplink":99}],"from":"gw1","to":"gw2","base_station":"gnb1","target_address":"10.46.0.9","confirmed_by":"test"}"#;

/// The orchestrator's journal, with a user at an edge host.
const MEC_MOVES: [&str; 2] = [
    "godwit moves 1\n",
    concat!(
        "godwit moves 1\nba5929dd ",
        r#"{"users":[{"origin":"gw1","id":"imsi-001010000000001","addresses":["10.45.0.2"],"on":"edge1","waits_for":null,"#,
        r#""replicas":{"edge1":false},"follow":true,"place":{"base_station":"10.0.0.1","tunnels":[[17,33]]}}]}"#,
        "\n"
    ),
];

fn mec_moves_rest_seeds() -> Vec<Vec<u8>> {
    let requests = [
        "POST\n/v1/moves\nwait=10\n{\"ues\":[\"10.45.0.2\",\"imsi-001010000000001\"],\"from\":\"gw1\",\"to\":\"edge1\",\"order\":\"keep\"}",
        "GET\n/v1/moves/7\nwait=1\n",
        "DELETE\n/v1/hosts/edge1/anchor\n\n",
        "GET\n/v1/ues/imsi-001010000000001\n\n",
    ];
    requests.map(|request| request.as_bytes().to_vec()).to_vec()
}

fn mec_rest_seeds() -> Vec<Vec<u8>> {
    let requests = [
        format!("POST\n/v1/diversions\n\n[{MEC_DIVERSION}]"),
        "POST\n/v1/diversions/remove\n\n{\"ids\":[\"gw1~10.45.0.2\"],\"ues\":[\"10.45.0.2\"]}".to_owned(),
        "GET\n/v1/ues/10.45.0.2\nbase_station=gnb1&from=gw1&teid=17\n".to_owned(),
        "GET\n/v1/captures/10.0.0.11\nbehind=7&most=100\n".to_owned(),
        "POST\n/v1/applications/diverting/stop\n\n".to_owned(),
    ];
    requests.into_iter().map(String::into_bytes).collect()
}

/// The controller's state file: what is read can be written, and is then read as the same.
fn mec_state(input: &[u8]) {
    use controller::diverting::journal::{read, write_all};
    if let Ok(diversions) = read(input) {
        assert_eq!(read(write_all(&diversions).as_bytes()), Ok(diversions));
    }
}

fn mec_state_seeds() -> Vec<Vec<u8>> {
    let diversion = serde_json::from_str(MEC_DIVERSION)
        .map(|one: controller::diverting::model::Diversion| (one.id(), one));
    let all = diversion.into_iter().collect();
    vec![controller::diverting::journal::write_all(&all).into_bytes(), b"godwit diversions 1\n".to_vec()]
}

/// The files of `seeds/<name>`; empty when the folder is missing.
pub(crate) fn folder(name: &str) -> Vec<Vec<u8>> {
    files(&format!("seeds/{name}"))
}

/// The files of a folder of this crate.
fn files(folder: &str) -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    // The order of a folder differs between machines, but a run must be reproducible from its seed.
    files.sort();
    files.iter().filter_map(|file| std::fs::read(file).ok()).collect()
}

/// `godwit.yaml`: may be accepted or refused; every problem must name a line that exists.
fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(problems) = cli::config::parse(text) {
        // YAML also ends lines with a single carriage return.
        let lines = text.matches(['\n', '\r']).count() + 1;
        for problem in problems {
            assert!(problem.line <= lines, "line {} of {lines}: {problem:?}", problem.line);
        }
    }
}

/// A datagram on the GTP-U port: signalling is rebuilt and read again; a user packet goes on to `ip`.
fn gtpu(data: &[u8]) {
    use packet::gtpu::{Packet, Signalling};
    use packet::nr_u::{DeliveryStatus, MAX_RANGES, MAX_STATUS, Message, Ranges};
    if let Ok(Some(signalling)) = packet::gtpu::decode(data) {
        let built = signalling.build();
        let packet = Packet::new(&built).expect("what we build is well-formed");
        assert_eq!(Signalling::parse(&packet), Ok(signalling));
    }
    if let Some(usual) = packet::nr_u::usual(data) {
        let packet = Packet::new(data).expect("what is usual is well-formed");
        assert!(
            matches!(Message::of(&packet), Ok(Some(Message::UserData(read))) if read.sequence == usual.sequence)
        );
    }
    if let Ok(packet) = Packet::new(data) {
        assert!(packet.payload().len() <= data.len());
        ip(packet.payload());
        if let Ok(Some(Message::DeliveryStatus(status))) = Message::of(&packet) {
            let lost: Vec<_> = status.lost.iter().take(MAX_RANGES).collect();
            let delivered: Vec<_> = status.delivered.iter().take(MAX_RANGES).collect();
            let status =
                DeliveryStatus { lost: Ranges::of(&lost), delivered: Ranges::of(&delivered), ..status };
            let mut out = [0; MAX_STATUS];
            let length = status.write(packet.teid(), &mut out).expect("the longest status fits");
            let built = Packet::new(&out[..length]).expect("what we build is well-formed");
            assert_eq!(Message::of(&built), Ok(Some(Message::DeliveryStatus(status))));
        }
    }
}

/// A user packet from a tunnel or from N6.
fn ip(data: &[u8]) {
    if let Ok(flow) = packet::flow::Flow::parse(data) {
        assert!(flow.length <= data.len(), "{flow:?}");
        assert_eq!(flow.source.is_ipv4(), flow.destination.is_ipv4());
    }
    let _ = packet::ndp::is_router_solicitation(data);
    let _ = packet::ndp::RouterSolicitation::parse(data);
    let _ = packet::ndp::RouterAdvertisement::parse(data);
    let _ = packet::icmp::Message::new(data);
    let _ = packet::ethernet::Frame::new(data);
    let _ = packet::transport::Tcp::new(data);
    let _ = packet::transport::Udp::new(data);
}

/// A message of memif's control channel: it is built again and read again.
fn memif(data: &[u8]) {
    use pktio::memif::protocol::Message;
    if let Ok(message) = Message::parse(data) {
        assert_eq!(Message::parse(&message.build()), Ok(message));
        // Names and reasons of a peer are written to the log.
        assert!(!format!("{message:?}").chars().any(char::is_control));
    }
}

fn memif_seeds() -> Vec<Vec<u8>> {
    use pktio::memif::protocol::{AddRegion, AddRing, Hello, Init, Message, Mode, Secret, Text, VERSION};
    let name = Text::new(b"peer");
    let hello = Hello {
        name,
        min_version: VERSION,
        max_version: VERSION,
        max_region: 1,
        max_to_client: 0,
        max_to_server: 0,
        max_log2_size: 14,
    };
    let secret = Secret::new(b"secret").unwrap_or_default();
    let init = Init { version: VERSION, id: 0, mode: Mode::Ethernet, secret, name };
    let ring = AddRing { to_server: true, index: 0, region: 0, offset: 0, log2_size: 10, private_header: 0 };
    let messages = [
        Message::Ack,
        Message::Hello(hello),
        Message::Init(init),
        Message::AddRegion(AddRegion { index: 0, size: 1 << 22 }),
        Message::AddRing(ring),
        Message::Connect(name),
        Message::Connected(name),
        Message::disconnect("no more"),
    ];
    messages.iter().map(|message| message.build().to_vec()).collect()
}

/// What an OpenFlow peer sends on its connection.
fn openflow(data: &[u8]) {
    use ::openflow::{Framer, Message};
    let mut framer = Framer::default();
    framer.push(data);
    while let Ok(Some(octets)) = framer.next_message() {
        let answer = match Message::decode(octets) {
            Ok((xid, message)) => Some((xid, message)),
            Err(error) => error.reply(octets).map(|reply| (error.xid, reply)),
        };
        let Some((xid, message)) = answer else { continue };
        let again = message.encode(xid).expect("what was read, and our answer, can be encoded");
        assert_eq!(Message::decode(&again), Ok((xid, message)));
    }
}

/// A stream of multiparts, joined with limits that are soon reached.
fn openflow_parts(data: &[u8]) {
    use ::openflow::{Framer, Joiner, Limits, Message};
    let limits = Limits { transactions: 2, parts: 8, octets: 1_000 };
    let (mut requests, mut replies) = (Joiner::new(limits), Joiner::new(limits));
    let mut framer = Framer::default();
    framer.push(data);
    while let Ok(Some(octets)) = framer.next_message() {
        let (parts, fatal): (Vec<Message>, bool) = match Message::decode(octets) {
            Ok((xid, Message::MultipartRequest(part))) => match requests.push(xid, part, octets.len()) {
                Ok(whole) => {
                    (whole.into_iter().flat_map(|w| w.into_parts()).map(Message::from).collect(), false)
                }
                Err(error) => (Vec::new(), error.is_fatal()),
            },
            Ok((xid, Message::MultipartReply(part))) => match replies.push(xid, part, octets.len()) {
                Ok(whole) => {
                    (whole.into_iter().flat_map(|w| w.into_parts()).map(Message::from).collect(), false)
                }
                Err(error) => (Vec::new(), error.is_fatal()),
            },
            _ => continue,
        };
        assert!(requests.pending() <= limits.octets && replies.pending() <= limits.octets);
        for part in parts {
            part.encode(1).expect("what came in messages fits into messages");
        }
        if fatal {
            return;
        }
    }
}

fn openflow_parts_seeds() -> Vec<Vec<u8>> {
    use ::openflow::{FlowStatsRequest, Message, Multipart, Reply, Request, TableId};
    let requests = [
        Multipart { more: true, body: Request::TableFeatures(Vec::new()) },
        Multipart { more: false, body: Request::TableFeatures(Vec::new()) },
        Request::Flow(FlowStatsRequest::all(TableId(1))).into(),
    ];
    let replies = [true, true, false].map(|more| Multipart { more, body: Reply::Flow(Vec::new()) });
    let messages = requests.map(Message::from).into_iter().chain(replies.map(Message::from));
    let mut stream = Vec::new();
    for message in messages {
        // Nothing is appended on an error.
        let _ = message.encode_into(7, &mut stream);
    }
    vec![stream]
}

/// Ours, and those of os-ken if the tests of `wire/openflow` have kept them.
pub(crate) fn openflow_seeds() -> Vec<Vec<u8>> {
    use ::openflow::{Action, FlowMod, Hello, Instructions, Match, Message, Oxm, PortNo, TableId};
    let user = Match::new([Oxm::tunnel_id(0x1234), Oxm::tun_ipv4_dst([10, 0, 0, 1].into())]);
    let steer = Action::set(Oxm::tun_ipv4_dst([10, 0, 0, 2].into()))
        .map(|set| Instructions::apply([set, Action::output(PortNo::IN_PORT)]));
    let flow = user.and_then(|user| steer.map(|steer| FlowMod::add(TableId(1), 100, user, steer)));
    let messages = flow.into_iter().map(Message::from).chain([Message::from(Hello::OURS)]);
    let ours = messages.filter_map(|message| message.encode(7).ok());
    ours.chain(files("corpus/openflow")).collect()
}

/// One F1AP message, as an SCTP peer sends it.
fn f1ap(data: &[u8]) {
    match ::f1ap::Pdu::decode(data) {
        Ok(decoded) => {
            let octets = decoded.pdu.encode().expect("what was read is within the bounds of the types");
            let again = ::f1ap::Pdu::decode(&octets).expect("what we encode is well-formed");
            assert_eq!(again.pdu, decoded.pdu);
        }
        // The answer to a malformed message must itself be well-formed.
        Err(error) => {
            if let Some(reply) = error.reply() {
                let octets = reply.encode().expect("our answer can be encoded");
                ::f1ap::Pdu::decode(&octets).expect("our answer is well-formed");
            }
        }
    }
}

/// One NGAP message, as an SCTP peer sends it.
fn ngap(data: &[u8]) {
    match ::ngap::Pdu::decode(data) {
        Ok(decoded) => {
            // A message that cannot be encoded again was outside the bounds of the types. That is an error, not
            // a panic.
            if let Ok(octets) = decoded.pdu.encode() {
                let again = ::ngap::Pdu::decode(&octets).expect("what we encode is well-formed");
                assert_eq!(again.pdu, decoded.pdu);
            }
        }
        // The answer to a malformed message must itself be well-formed.
        Err(error) => {
            if let Some(Ok(octets)) = error.reply().map(|reply| reply.encode()) {
                ::ngap::Pdu::decode(&octets).expect("our Error Indication is well-formed");
            }
        }
    }
}

/// The containers between gNB and SMF, in both directions.
fn ngap_transfer(data: &[u8]) {
    use ::ngap::transfer::*;
    let _ = PduSessionResourceSetupRequestTransfer::decode(data);
    let _ = PduSessionResourceSetupResponseTransfer::decode(data);
    let _ = PduSessionResourceSetupUnsuccessfulTransfer::decode(data);
    let _ = PduSessionResourceReleaseCommandTransfer::decode(data);
    let _ = PduSessionResourceReleaseResponseTransfer::decode(data);
    let _ = PduSessionResourceModifyRequestTransfer::decode(data);
    let _ = PduSessionResourceModifyResponseTransfer::decode(data);
    let _ = PduSessionResourceModifyUnsuccessfulTransfer::decode(data);
    let _ = PduSessionResourceNotifyTransfer::decode(data);
    let _ = PduSessionResourceNotifyReleasedTransfer::decode(data);
}

/// A plain NAS message of either protocol: a message that can be encoded must decode to the same.
fn nas(data: &[u8]) {
    if let Ok(decoded) = ::nas::Message::decode(data)
        && let Ok(octets) = decoded.message.encode()
    {
        let again = ::nas::Message::decode(&octets).expect("what we encode is well-formed");
        assert_eq!(again.message, decoded.message);
    }
    if let Ok(decoded) = ::nas::SmMessage::decode(data)
        && let Ok(octets) = decoded.message.encode()
    {
        let again = ::nas::SmMessage::decode(&octets).expect("what we encode is well-formed");
        assert_eq!(again.message, decoded.message);
    }
    let _ = ::nas::gsm::SmHeader::read(data);
    if let Ok(envelope) = ::nas::security::Envelope::read(data) {
        let _ = envelope.peek();
    }
}

/// A security context without integrity, so that mutations reach the code behind it; with integrity only
/// genuine messages would.
fn nas_context(
    side: ::nas::security::Side,
    integrity: ::nas::IntegrityAlgorithm,
) -> ::nas::security::SecurityContext {
    let (ksi, cipher) = (::nas::KeySetId::Native(0), ::nas::CipheringAlgorithm::Nea0);
    ::nas::security::SecurityContext::new(side, &types::Key::new([1; 32]), ksi, integrity, cipher)
        .expect("NEA0 goes with every integrity algorithm")
}

/// A NAS message under a security header, at both ends.
fn nas_protected(data: &[u8]) {
    use ::nas::{IntegrityAlgorithm, security::Side};
    for side in [Side::Network, Side::Ue] {
        for integrity in [IntegrityAlgorithm::Nia0, IntegrityAlgorithm::Nia2] {
            let mut context = nas_context(side, integrity);
            if context.unprotect(data).is_ok() && integrity == IntegrityAlgorithm::Nia2 {
                assert!(context.unprotect(data).is_err(), "a COUNT was accepted twice");
            }
        }
    }
}

/// A SUCI as text: it must be written as it was read, and revealing it gives a SUPI or an error.
fn suci(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(suci) = text.parse::<::nas::Suci>() else { return };
    assert_eq!(suci.to_string().parse(), Ok(suci.clone()));
    let key = ::nas::suci::PrivateKey::new(::nas::ProtectionScheme::ProfileA, &types::Key::new([9; 32])).ok();
    let _ = ::nas::suci::deconceal(&suci, key.as_ref());
}

/// Messages that an independent implementation made.
fn nas_seeds() -> Vec<Vec<u8>> {
    let vectors = include_str!("../../wire/nas/tests/vectors/pycrate.txt");
    let digits = |hex: &str, i: usize| hex.get(i..i + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let octets = |hex: &str| (0..hex.len()).step_by(2).map_while(|i| digits(hex, i)).collect();
    vectors.lines().filter_map(|line| line.split_once(' ')).map(|(_, hex)| octets(hex)).collect()
}

fn nas_protected_seeds() -> Vec<Vec<u8>> {
    use ::nas::{IntegrityAlgorithm, security::Side};
    let messages = nas_seeds().into_iter().filter_map(|octets| ::nas::Message::decode(&octets).ok());
    let protect = |decoded: ::nas::Decoded<::nas::Message>| {
        let side = if decoded.message.sent_by_ue() == Some(false) { Side::Network } else { Side::Ue };
        nas_context(side, IntegrityAlgorithm::Nia2).protect(&decoded.message).ok()
    };
    messages.filter_map(protect).collect()
}

fn suci_seeds() -> Vec<Vec<u8>> {
    let concealed = "suci-0-274-012-0-1-27-b2e92f836055a255837debf850b528997ce0201cb82adfe4be1f587d07d8457dcb023524\
                     10cddd9e730ef3fa87";
    vec![b"suci-0-999-70-0-0-0-0000000001".to_vec(), concealed.as_bytes().to_vec()]
}

/// One PFCP message.
fn pfcp(data: &[u8]) {
    let Ok((header, message)) = ::pfcp::Message::decode(data) else { return };
    let mut octets = Vec::new();
    if message.encode(header.seid.unwrap_or(0), header.sequence, &mut octets).is_ok() {
        let (again, same) = ::pfcp::Message::decode(&octets).expect("what we encode is well-formed");
        assert_eq!((again.seid, again.sequence), (header.seid, header.sequence));
        assert_eq!(same, message);
    }
}

/// The PFCP endpoint: a peer it knows sends the input in datagrams, while time goes on.
fn pfcp_endpoint(data: &[u8]) {
    use ::pfcp::endpoint::{Config, Endpoint, Event};
    let node = ::pfcp::NodeId::Ipv4([127, 0, 0, 7].into());
    let mut endpoint = Endpoint::new(Config::new(node, ::pfcp::NtpSeconds(3_900_000_000), 1));
    let peer = SocketAddr::from(([127, 0, 0, 4], 8805));
    let mut now = net::time::now_std();
    endpoint.add_peer(now, peer);
    // The first octet gives the length of the datagrams, so that one input can be a conversation.
    let (size, rest) =
        data.split_first().map_or((1, data), |(size, rest)| (usize::from(*size).max(1) * 8, rest));
    for datagram in rest.chunks(size).take(32) {
        endpoint.handle_datagram(now, peer, datagram);
        while let Some(event) = endpoint.poll_event() {
            if let Event::Request { id, .. } = event {
                let _ = endpoint.reject(now, id, 0, ::pfcp::Cause::SYSTEM_FAILURE, None);
            }
        }
        while let Some(transmit) = endpoint.poll_transmit() {
            ::pfcp::Header::decode(&transmit.payload).expect("what we send is well-formed");
        }
        now += Duration::from_millis(700);
        endpoint.handle_timeout(now);
    }
    while endpoint.poll_transmit().is_some() {}
}

/// The text of an SDF filter, from PCF or PFCP.
fn sdf(data: &[u8]) {
    use classifier::sdf::{Direction, SdfFilter};
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(filter) = SdfFilter::parse(text) {
        let _ = filter.filters(Direction::Uplink);
        let _ = filter.filters(Direction::Downlink);
    }
}

fn sdf_seeds() -> Vec<Vec<u8>> {
    [
        "permit out ip from any to assigned",
        "permit out 17 from 10.0.0.0/8 1-1024,5060 to assigned 7000",
        "permit in 6 from 2001:db8::/32 443 to any",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// A file for `godwit subscriber import`.
fn subscribers(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(list) = store::import::parse(text) {
        assert!(list.iter().all(|subscriber| subscriber.validate().is_ok()));
    }
}

fn subscriber_seeds() -> Vec<Vec<u8>> {
    [
        "imsi,k,opc\n999700000000001,465B5CE8B199B49FAA5F0A2EE238A6BC,E8ED289DEBA952E4283B54E88E6183CA\n",
        r#"[{"supi":"imsi-999700000000001","authentication":{"k":"465B5CE8B199B49FAA5F0A2EE238A6BC","opc":"E8ED289DEBA952E4283B54E88E6183CA"}}]"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// The JSON of the largest SBI requests.
fn sbi_json(data: &[u8]) {
    use ::sbi::model;
    let _ = serde_json::from_slice::<model::smf::SmContextCreateData>(data);
    let _ = serde_json::from_slice::<model::amf::N1N2MessageTransferReqData>(data);
    let _ = serde_json::from_slice::<model::ausf::AuthenticationInfo>(data);
    let _ = serde_json::from_slice::<model::nrf::NfProfile>(data);
    let _ = serde_json::from_slice::<model::udm::SmSubsData>(data);
    let _ = serde_json::from_slice::<::sbi::ProblemDetails>(data);
}

fn sbi_seeds() -> Vec<Vec<u8>> {
    [
        r#"{"supi":"imsi-999700000000001","pduSessionId":1,"dnn":"internet","sNssai":{"sst":1},"servingNfId":"3a8bfe10-ec98-8bba-923e-aa926b1cdc8c","guami":{"plmnId":{"mcc":"999","mnc":"70"},"amfId":"020040"},"servingNetwork":{"mcc":"999","mnc":"70"},"n1SmMsg":{"contentId":"n1"},"anType":"3GPP_ACCESS","smContextStatusUri":"http://127.0.0.5:7777/x"}"#,
        r#"{"n1MessageContainer":{"n1MessageClass":"SM","n1MessageContent":{"contentId":"n1"}},"pduSessionId":1}"#,
        r#"{"supiOrSuci":"suci-0-999-70-0-0-0-0000000001","servingNetworkName":"5G:mnc070.mcc999.3gppnetwork.org"}"#,
        r#"{"nfInstanceId":"3a8bfe10-ec98-8bba-923e-aa926b1cdc8c","nfType":"AMF","nfStatus":"REGISTERED","ipv4Addresses":["127.0.0.5"],"sNssais":[{"sst":1,"sd":"010203"}]}"#,
        r#"{"status":404,"cause":"USER_NOT_FOUND","invalidParams":[{"param":"supi","reason":"x"}]}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// An access token and an assertion; a decoder does not check the signatures.
fn sbi_token_seeds() -> Vec<Vec<u8>> {
    [
        // {"alg":"ES256","typ":"JWT"} {"iss":"1","sub":"3a8bfe10-…","aud":"UDR","scope":"nudr-dr","exp":1}
        "eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiIxIiwic3ViIjoiM2E4YmZlMTAtZWM5OC04YmJhLTkyM2UtYWE5MjZiMWNkYzhjIiwiYXVkIjoiVURSIiwic2NvcGUiOiJudWRyLWRyIiwiZXhwIjoxfQ.AAAA",
        // {"alg":"HS256"} {"iss":"3a8bfe10-…","sub":"3a8bfe10-…","aud":"NRF","iat":1,"exp":61}
        "eyJhbGciOiJIUzI1NiJ9.eyJpc3MiOiIzYThiZmUxMC1lYzk4LThiYmEtOTIzZS1hYTkyNmIxY2RjOGMiLCJzdWIiOiIzYThiZmUxMC1lYzk4LThiYmEtOTIzZS1hYTkyNmIxY2RjOGMiLCJhdWQiOiJOUkYiLCJpYXQiOjEsImV4cCI6NjF9.AAAA",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// The content of an SBI message with binary parts: a line with the content type, then the body.
fn sbi_multipart(data: &[u8]) {
    let end = data.iter().position(|octet| *octet == b'\n').unwrap_or(data.len());
    let (content_type, body) = data.split_at(end);
    if let Ok(content_type) = std::str::from_utf8(content_type) {
        ::sbi::fuzz_content(content_type, body.get(1..).unwrap_or_default());
    }
}

fn sbi_multipart_seeds() -> Vec<Vec<u8>> {
    [
        "application/json\n{\"a\":1}",
        "multipart/related; boundary=xyz\n--xyz\r\nContent-Type: application/json\r\n\r\n{}\r\n--xyz\r\nContent-Type: \
         application/vnd.3gpp.5gnas\r\nContent-Id: n1\r\n\r\nabc\r\n--xyz--\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
