//! The agent and its controllers: several, slow ones, ones that go away, and ones that send nonsense.
#![allow(clippy::disallowed_methods, reason = "the tests wait for connections")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::common::*;
use openflow::*;
use switch::agent::driver::Agent;
use switch::agent::peer::Peer;
use switch::agent::session::{Ended, Session};
use switch::core::{Identity, PortCounts, Switch, SwitchPort};

fn new_switch() -> Arc<Switch> {
    let port = |number| SwitchPort {
        number,
        name: format!("port{number}"),
        mac: [0; 6],
        counts: PortCounts::default(),
    };
    let identity = Identity { datapath_id: 7, description: String::new() };
    Switch::new(identity, pipeline(), PORTS.map(port).into(), 100_000)
}

struct Running {
    switch: Arc<Switch>,
    address: SocketAddr,
    _agent: Agent,
    _runtime: tokio::runtime::Runtime,
}

fn start(controllers: &[SocketAddr]) -> Running {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let switch = new_switch();
    let (address, agent) = runtime.block_on(async {
        let listener = net::tcp::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        (listener.local_addr().unwrap(), Agent::start(&switch, controllers, Some(listener)))
    });
    Running { switch, address, _agent: agent, _runtime: runtime }
}

struct Controller {
    stream: TcpStream,
    framer: Framer,
}

impl Controller {
    fn new(stream: TcpStream) -> Controller {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut controller = Controller { stream, framer: Framer::default() };
        controller.send(1, Hello::OURS);
        let (_, Message::Hello(hello)) = controller.receive() else { panic!("no hello") };
        assert!(hello.is_compatible());
        controller
    }

    fn connect(running: &Running) -> Controller {
        let mut controller = Controller::new(TcpStream::connect(running.address).unwrap());
        // When it has answered, the switch knows the controller.
        controller.barrier();
        controller
    }

    fn send(&mut self, xid: u32, message: impl Into<Message>) {
        self.stream.write_all(&message.into().encode(xid).unwrap()).unwrap();
    }

    fn receive(&mut self) -> (u32, Message) {
        self.try_receive().expect("connected")
    }

    /// `None`: the switch has closed the connection.
    fn try_receive(&mut self) -> Option<(u32, Message)> {
        let mut buffer = [0; 65_536];
        loop {
            if let Some(message) = self.framer.next_message().unwrap() {
                match Message::decode(message).unwrap() {
                    // The switch asks who has been silent.
                    (_, Message::EchoRequest(_)) => continue,
                    message => return Some(message),
                }
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(length) => self.framer.push(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn barrier(&mut self) {
        self.send(99, Message::BarrierRequest(()));
        assert_eq!(self.receive(), (99, Message::BarrierReply(())));
    }

    fn error(&mut self) -> (u32, Code) {
        let (xid, Message::Error(error)) = self.receive() else { panic!("no error") };
        (xid, error.code)
    }

    fn role(&mut self, role: Role, generation_id: u64) -> Result<Role, Code> {
        self.send(5, Message::RoleRequest(RoleRequest { role, generation_id }));
        match self.receive().1 {
            Message::RoleReply(reply) => Ok(reply.role),
            Message::Error(error) => Err(error.code),
            message => panic!("{message:?}"),
        }
    }
}

fn packet_out(frame: Vec<u8>, actions: Vec<Action>) -> Message {
    PacketOut { buffer_id: BufferId::NO_BUFFER, in_port: PortNo(1), actions, data: frame }.into()
}

fn frame() -> Vec<u8> {
    uplink(GW1, &gpdu_5g(7, &user_packet()))
}

#[test]
fn every_controller_hears_of_packets_and_of_entries_that_end() {
    let running = start(&[]);
    let [mut one, mut two] = [Controller::connect(&running), Controller::connect(&running)];
    let flags = FlowModFlags::SEND_FLOW_REM;
    one.send(
        1,
        FlowMod {
            cookie: 0xabc,
            flags,
            ..add(2, 0, [], Instructions::apply([Action::output(PortNo::CONTROLLER)]))
        },
    );
    one.send(2, add(0, 0, [], Instructions::goto(TableId(2))));
    one.barrier();
    one.send(3, packet_out(frame(), vec![Action::output(PortNo::TABLE)]));
    for controller in [&mut one, &mut two] {
        let (_, Message::PacketIn(packet_in)) = controller.receive() else { panic!("no packet-in") };
        assert_eq!((packet_in.data, packet_in.cookie, packet_in.table_id), (frame(), 0xabc, TableId(2)));
        assert_eq!((packet_in.reason, packet_in.buffer_id), (PacketInReason::NoMatch, BufferId::NO_BUFFER));
        assert_eq!(packet_in.matching.in_port(), Some(PortNo(1)));
    }
    // One of them does not want to hear of entries that were deleted.
    let silent = AsyncConfig { flow_removed: [0b1011, 0], ..AsyncConfig::INITIAL };
    two.send(4, Message::SetAsync(silent.clone()));
    two.send(5, Message::GetAsyncRequest(()));
    assert_eq!(two.receive(), (5, Message::GetAsyncReply(silent)));
    one.send(6, FlowMod::delete(TableId::ALL, Match::default()));
    let (_, Message::FlowRemoved(removed)) = one.receive() else { panic!("no flow-removed") };
    assert_eq!((removed.cookie, removed.reason, removed.packet_count), (0xabc, FlowRemovedReason::Delete, 1));
    two.barrier();
    // A time-out.
    one.send(7, FlowMod { hard_timeout_s: 1, flags, ..add(3, 9, [], Instructions::default()) });
    for controller in [&mut one, &mut two] {
        let (_, Message::FlowRemoved(removed)) = controller.receive() else { panic!("no flow-removed") };
        assert_eq!((removed.priority, removed.reason), (9, FlowRemovedReason::HardTimeout));
    }
}

/// What is behind the GTP port comes to a controller without the tunnel, which is told beside it.
#[test]
fn packets_of_tunnels_come_with_their_tunnel() {
    let running = start(&[]);
    let mut controller = Controller::connect(&running);
    for rule in table_one() {
        controller.send(1, rule);
    }
    controller
        .send(1, add(1, 500, [Oxm::tunnel_id(7)], Instructions::apply([Action::output(PortNo::CONTROLLER)])));
    controller.send(2, packet_out(frame(), vec![Action::output(PortNo::TABLE)]));
    let (_, Message::PacketIn(packet_in)) = controller.receive() else { panic!("no packet-in") };
    assert_eq!(packet_in.data, user_packet());
    let fields = packet_in.matching;
    assert_eq!((fields.in_port(), fields.tunnel_id()), (Some(PortNo(GTP)), Some(7)));
    assert_eq!((fields.tun_ipv4_src(), fields.tun_ipv4_dst()), (Some(ENB), Some(GW1)));
    assert_eq!((fields.packet_type(), fields.tun_gtpu_msgtype()), (Some(PacketType::IPV4), Some(255)));
}

#[test]
fn roles_are_as_the_standard_says() {
    let running = start(&[]);
    let [mut one, mut two] = [Controller::connect(&running), Controller::connect(&running)];
    assert_eq!(one.role(Role::NoChange, 0), Ok(Role::Equal));
    assert_eq!(one.role(Role::Master, 5), Ok(Role::Master));
    assert_eq!(two.role(Role::Slave, 5), Ok(Role::Slave));
    two.send(7, add(0, 1, [], Instructions::default()));
    assert_eq!(two.error(), (7, Code::OFPBRC_IS_SLAVE));
    assert_eq!(two.role(Role::Master, 4), Err(Code::OFPRRFC_STALE));
    assert_eq!(two.role(Role::Master, 6), Ok(Role::Master));
    assert_eq!(one.role(Role::NoChange, 0), Ok(Role::Slave), "there is one master");
    one.send(8, packet_out(frame(), vec![]));
    assert_eq!(one.error(), (8, Code::OFPBRC_IS_SLAVE));
    // A slave may ask, and hears of ports only.
    one.send(9, Request::Desc(()));
    assert!(matches!(one.receive().1, Message::MultipartReply(_)));
    two.send(10, add(0, 1, [], Instructions::apply([Action::output(PortNo::CONTROLLER)])));
    two.send(11, packet_out(frame(), vec![Action::output(PortNo::TABLE)]));
    assert!(matches!(two.receive().1, Message::PacketIn(_)));
    running.switch.set_live(2, false);
    for controller in [&mut one, &mut two] {
        let (_, Message::PortStatus(status)) = controller.receive() else { panic!("no port-status") };
        assert_eq!((status.port.port_no, status.port.state), (PortNo(2), PortState::LINK_DOWN));
    }
}

/// One that asks for its role right behind its hello has it, and the next master takes it over.
#[test]
fn a_role_may_be_asked_for_with_the_hello() {
    let running = start(&[]);
    let mut octets = Message::from(Hello::OURS).encode(1).unwrap();
    let request = RoleRequest { role: Role::Master, generation_id: 1 };
    octets.extend(Message::RoleRequest(request.clone()).encode(2).unwrap());
    let mut stream = TcpStream::connect(running.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(&octets).unwrap();
    let mut first = Controller { stream, framer: Framer::default() };
    assert!(matches!(first.receive().1, Message::Hello(_)));
    assert_eq!(first.receive(), (2, Message::RoleReply(request)));
    let mut second = Controller::connect(&running);
    assert_eq!(second.role(Role::Master, 2), Ok(Role::Master));
    assert_eq!(first.role(Role::NoChange, 0), Ok(Role::Slave));
}

/// Controllers make rules of the ports that there are: LOCAL is one, although this switch's host has no interface.
#[test]
fn ports_of_tunnels_are_described() {
    let running = start(&[]);
    let mut controller = Controller::connect(&running);
    controller.send(1, Request::PortDesc(()));
    let (1, Message::MultipartReply(Multipart { body: Reply::PortDesc(ports), .. })) = controller.receive()
    else {
        panic!()
    };
    let names: Vec<_> = ports.iter().map(|port| (port.port_no.0, port.name.as_str().to_owned())).collect();
    let expected = [(1, "port1"), (2, "port2"), (3, "port3"), (PortNo::LOCAL.0, "local"), (GTP, "gtp")];
    assert_eq!(names, expected.map(|(number, name)| (number, name.to_owned())));
}

#[test]
fn what_cannot_be_served_has_its_error() {
    let running = start(&[]);
    let mut controller = Controller::connect(&running);
    let mut error = |message: Message| {
        controller.send(77, message);
        let (xid, code) = controller.error();
        assert_eq!(xid, 77);
        code
    };
    let packet = |change: fn(&mut PacketOut)| {
        let mut packet = PacketOut {
            buffer_id: BufferId::NO_BUFFER,
            in_port: PortNo::CONTROLLER,
            actions: vec![],
            data: frame(),
        };
        change(&mut packet);
        packet.into()
    };
    assert_eq!(error(packet(|packet| packet.buffer_id = BufferId(1))), Code::OFPBRC_BUFFER_UNKNOWN);
    assert_eq!(error(packet(|packet| packet.in_port = PortNo::ALL)), Code::OFPBRC_BAD_PORT);
    assert_eq!(error(packet(|packet| packet.in_port = PortNo(GTP))), Code::OFPBRC_BAD_PORT);
    assert_eq!(error(packet(|packet| packet.in_port = PortNo(9))), Code::OFPBRC_BAD_PORT);
    assert_eq!(
        error(packet(|packet| packet.actions = vec![Action::output(PortNo(9))])),
        Code::OFPBAC_BAD_OUT_PORT
    );
    assert_eq!(error(packet(|packet| packet.data.clear())), Code::OFPBRC_BAD_PACKET);
    assert_eq!(error(packet(|packet| packet.data.resize(10_000, 0))), Code::OFPBRC_BAD_PACKET);
    assert_eq!(
        error(packet(|packet| packet.actions = vec![Action::Group(GroupId(1))])),
        Code::OFPBAC_BAD_OUT_GROUP
    );
    let config = Config { fragments: Fragments::Drop, miss_send_len: 0 };
    assert_eq!(error(Message::SetConfig(config)), Code::OFPSCFC_BAD_FLAGS);
    let mut of_table = FlowStatsRequest::all(TableId(9));
    assert_eq!(error(Request::Flow(of_table.clone()).into()), Code::OFPBRC_BAD_TABLE_ID);
    of_table.table_id = TableId::ALL;
    assert_eq!(error(Request::PortStats(multipart::Of(PortNo(9))).into()), Code::OFPBRC_BAD_PORT);
    assert_eq!(error(Request::GroupStats(multipart::Of(GroupId(9))).into()), Code::OFPGMFC_UNKNOWN_GROUP);
    assert_eq!(error(Message::BarrierReply(())), Code::OFPBRC_BAD_TYPE);
    let more = Multipart { more: true, body: Request::Flow(of_table) };
    assert_eq!(error(more.into()), Code::OFPBRC_BAD_MULTIPART, "this request is no list");
    assert!(running.switch.counts.refused.load(Relaxed) >= 10);
}

#[test]
fn bundles() {
    let running = start(&[]);
    let mut controller = Controller::connect(&running);
    let flags = BundleFlags::ATOMIC | BundleFlags::ORDERED;
    let control = |kind| Message::from(BundleControl { bundle_id: 3, kind, flags });
    let in_bundle = |rule| BundleAdd { bundle_id: 3, flags, change: Change::FlowMod(rule) };
    use BundleControlType as Kind;
    let reply = |controller: &mut Controller, xid| match controller.receive() {
        (of, Message::BundleControl(control)) if of == xid => Ok(control.kind),
        (of, Message::Error(error)) => Err((of, error.code)),
        message => panic!("{message:?}"),
    };
    controller.send(1, control(Kind::CommitRequest));
    assert_eq!(reply(&mut controller, 1), Err((1, Code::OFPBFC_BAD_ID)));
    controller.send(2, control(Kind::OpenRequest));
    assert_eq!(reply(&mut controller, 2), Ok(Kind::OpenReply));
    controller.send(3, control(Kind::OpenRequest));
    assert_eq!(reply(&mut controller, 3), Err((3, Code::OFPBFC_BUNDLE_EXIST)));
    controller.send(4, in_bundle(add(0, 1, [], Instructions::default())));
    controller.send(5, in_bundle(add(0, 2, [], Instructions::apply([Action::Group(GroupId(1))]))));
    controller.send(
        6,
        BundleAdd { flags: BundleFlags::ATOMIC, ..in_bundle(add(0, 1, [], Instructions::default())) },
    );
    assert_eq!(reply(&mut controller, 6), Err((6, Code::OFPBFC_BAD_FLAGS)));
    controller.send(7, control(Kind::CloseRequest));
    assert_eq!(reply(&mut controller, 7), Ok(Kind::CloseReply));
    controller.send(8, in_bundle(add(0, 3, [], Instructions::default())));
    assert_eq!(reply(&mut controller, 8), Err((8, Code::OFPBFC_BUNDLE_CLOSED)));
    // Not without those that were refused.
    controller.send(9, control(Kind::CommitRequest));
    assert_eq!(reply(&mut controller, 9), Err((9, Code::OFPBFC_MSG_FAILED)));
    // The message that fails is named, then the bundle.
    controller.send(13, in_bundle(add(0, 1, [], Instructions::default())));
    controller.send(14, in_bundle(add(0, 2, [], Instructions::apply([Action::Group(GroupId(1))]))));
    controller.send(15, control(Kind::CommitRequest));
    assert_eq!(reply(&mut controller, 15), Err((14, Code::OFPBAC_BAD_OUT_GROUP)));
    assert_eq!(reply(&mut controller, 15), Err((15, Code::OFPBFC_MSG_FAILED)));
    // One that cannot be decoded: its flow-mod has a command that there is not.
    controller.send(16, in_bundle(add(0, 1, [], Instructions::default())));
    let mut octets = Message::from(in_bundle(add(0, 2, [], Instructions::default()))).encode(17).unwrap();
    octets[24 + 25] = 0xff;
    controller.stream.write_all(&octets).unwrap();
    assert!(matches!(reply(&mut controller, 17), Err((17, _))));
    controller.send(18, control(Kind::CommitRequest));
    assert_eq!(reply(&mut controller, 18), Err((18, Code::OFPBFC_MSG_FAILED)));
    // The first one opens the bundle that it cannot be in, whether it can be decoded or not.
    controller.stream.write_all(&octets).unwrap();
    assert!(matches!(reply(&mut controller, 17), Err((17, _))));
    controller.send(19, in_bundle(add(0, 1, [], Instructions::default())));
    controller.send(18, control(Kind::CommitRequest));
    assert_eq!(reply(&mut controller, 18), Err((18, Code::OFPBFC_MSG_FAILED)));
    assert_eq!(controller.role(Role::Slave, 1), Ok(Role::Slave));
    controller.send(19, in_bundle(add(0, 1, [], Instructions::default())));
    assert_eq!(reply(&mut controller, 19), Err((19, Code::OFPBRC_IS_SLAVE)));
    assert_eq!(controller.role(Role::Equal, 1), Ok(Role::Equal));
    controller.send(19, in_bundle(add(0, 2, [], Instructions::default())));
    controller.send(18, control(Kind::CommitRequest));
    assert_eq!(reply(&mut controller, 18), Err((18, Code::OFPBFC_MSG_FAILED)));
    assert!(running.switch.pipeline().tables()[0].is_empty());
    controller.send(10, control(Kind::DiscardRequest));
    assert_eq!(reply(&mut controller, 10), Err((10, Code::OFPBFC_BAD_ID)), "it is gone");
    controller.send(11, in_bundle(add(0, 1, [], Instructions::default())));
    controller.send(12, control(Kind::CommitRequest));
    assert_eq!(reply(&mut controller, 12), Ok(Kind::CommitReply));
    assert_eq!(running.switch.pipeline().tables()[0].len(), 1);
    // A bundle that is never committed ends with its connection.
    for id in 20..60 {
        controller.send(id, BundleControl { bundle_id: id, kind: Kind::OpenRequest, flags });
    }
    let answers: Vec<_> = (20..60).map(|id| reply(&mut controller, id)).collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 16);
    assert!(answers[20..].iter().all(|answer| matches!(answer, Err((_, Code::OFPBFC_OUT_OF_BUNDLES)))));
}

/// A controller that goes away changes nothing, and is connected to again.
#[test]
fn the_switch_goes_on_without_its_controller() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let running = start(&[address]);
    let mut controller = Controller::new(listener.accept().unwrap().0);
    controller.send(1, add(0, 1, [], Instructions::apply([output(2)])));
    controller.barrier();
    drop((controller, listener));
    while !running.switch.peers().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(pass(&running.switch.pipeline(), 1, &frame()).0, 2);
    let listener = TcpListener::bind(address).unwrap();
    let mut controller = Controller::new(listener.accept().unwrap().0);
    controller.send(2, Request::Flow(FlowStatsRequest::all(TableId::ALL)));
    let (2, Message::MultipartReply(Multipart { body: Reply::Flow(flows), .. })) = controller.receive()
    else {
        panic!()
    };
    assert_eq!((flows.len(), flows[0].packet_count), (1, 1));
}

#[test]
fn who_sends_nonsense_is_disconnected() {
    let running = start(&[]);
    let ends = |octets: &[u8]| {
        let mut stream = TcpStream::connect(running.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(octets).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    let hello = Message::from(Hello::OURS).encode(1).unwrap();
    ends(&[b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0; 32_768]].concat());
    ends(&[&hello[..], &[4, 2, 0, 3, 0, 0, 0, 0]].concat());
    ends(&Message::EchoRequest(Vec::new()).encode(1).unwrap());
    let older = ends(&[1, 0, 0, 8, 0, 0, 0, 1]);
    let mut framer = Framer::default();
    framer.push(&older);
    let _ = framer.next_message().unwrap().unwrap();
    let (_, Message::Error(error)) = Message::decode(framer.next_message().unwrap().unwrap()).unwrap() else {
        panic!()
    };
    assert_eq!(error.code, Code::OFPHFC_INCOMPATIBLE);
    while running.switch.counts.misbehaved.load(Relaxed) < 4 {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Others are served meanwhile, and unknown messages are no reason to end.
    let mut controller = Controller::connect(&running);
    controller.stream.write_all(&[4, 99, 0, 8, 0, 0, 0, 42]).unwrap();
    assert_eq!(controller.error(), (42, Code::OFPBRC_BAD_TYPE));
    controller.barrier();
}

/// Silence, half messages and a hello that does not come, by a clock that the test moves.
#[test]
fn silent_controllers_are_asked_and_then_disconnected() {
    const SECOND: u64 = 1_000_000_000;
    let session = || Session::new(new_switch(), Arc::new(Peer::new(1, "127.0.0.1:1".parse().unwrap())), 0);
    let mut without = session();
    assert_eq!(without.tick(9 * SECOND), Ok(()));
    assert_eq!(without.tick(10 * SECOND), Err(Ended::Silent));
    let hello = Message::from(Hello::OURS).encode(1).unwrap();
    let mut half = session();
    half.receive(&hello, SECOND).unwrap();
    half.output.clear();
    let message = Message::EchoReply(vec![0; 1000]).encode(1).unwrap();
    for (second, octet) in (2..).zip(&message[..13]) {
        half.receive(std::slice::from_ref(octet), second * SECOND).unwrap();
        half.tick(second * SECOND).unwrap();
    }
    assert_eq!(half.output, Message::EchoRequest(Vec::new()).encode(0).unwrap(), "asked once");
    assert_eq!(half.deadline_ns(), 16 * SECOND);
    assert_eq!(half.tick(16 * SECOND), Err(Ended::Silent));
    let mut alive = session();
    for second in (0..60).step_by(4) {
        alive
            .receive(
                &if second == 0 { hello.clone() } else { Message::EchoReply(vec![]).encode(1).unwrap() },
                second * SECOND,
            )
            .unwrap();
        alive.tick((second + 3) * SECOND).unwrap();
    }
}

/// A controller that asks and does not read: the switch stops reading from it, and its memory stays bounded.
#[test]
fn a_slow_reader_is_not_read_from() {
    let running = start(&[]);
    let mut other = Controller::connect(&running);
    for user in 0..5000 {
        other.send(1, divert(user));
    }
    other.barrier();
    let mut slow = Controller::connect(&running);
    slow.stream.set_nonblocking(true).unwrap();
    let request = Message::from(Request::Flow(FlowStatsRequest::all(TableId::ALL))).encode(1).unwrap();
    let mut sent = 0;
    // Each answer has most of a megabyte; sockets take some megabytes.
    for _ in 0..100 {
        for _ in 0..1000 {
            sent += slow.stream.write(&request).unwrap_or(0);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(sent < 5_600_000, "{sent} octets of requests were taken");
    let requests = sent / request.len();
    // Nothing is lost for one who begins to read.
    slow.stream.set_nonblocking(false).unwrap();
    for _ in 0..requests.min(20) {
        let mut flows = 0;
        loop {
            let (_, Message::MultipartReply(Multipart { more, body: Reply::Flow(part) })) = slow.receive()
            else {
                panic!()
            };
            flows += part.len();
            if !more {
                break;
            }
        }
        assert_eq!(flows, 5000);
    }
    other.barrier();
}

/// A session without sockets that has said hello.
fn connected(switch: &Arc<Switch>) -> Session {
    let peer = Arc::new(Peer::new(1, "127.0.0.1:1".parse().unwrap()));
    let mut session = Session::new(Arc::clone(switch), peer, 0);
    session.receive(&Message::from(Hello::OURS).encode(1).unwrap(), 0).unwrap();
    session.output.clear();
    session
}

fn ask(session: &mut Session, xid: u32, message: impl Into<Message>) {
    session.receive(&message.into().encode(xid).unwrap(), 0).unwrap();
}

/// What waits to be sent.
fn taken(session: &mut Session) -> Vec<(u32, Message)> {
    let (mut framer, mut messages) = (Framer::default(), Vec::new());
    framer.push(&std::mem::take(&mut session.output));
    while let Some(message) = framer.next_message().unwrap() {
        messages.push(Message::decode(message).unwrap());
    }
    assert_eq!(framer.pending(), 0);
    messages
}

/// All that the session says until it has nothing more to do, read as fast as it is said.
fn all_taken(session: &mut Session) -> Vec<(u32, Message)> {
    let mut messages = Vec::new();
    loop {
        session.proceed(0).unwrap();
        let more = taken(session);
        if more.is_empty() && !session.is_behind() {
            return messages;
        }
        messages.extend(more);
    }
}

fn user_of(flow: &FlowStats) -> u64 {
    flow.matching.tunnel_id().unwrap()
}

/// Entries change while they are told: those that stay are told once, and the end comes whatever is installed. What the
/// controller does not take is not made.
#[test]
fn a_long_answer_is_made_as_it_is_taken() {
    const USERS: u32 = 20_000;
    let switch = new_switch();
    let changed = |changes: Vec<FlowMod>| {
        switch.commit(&changes.into_iter().map(Change::FlowMod).collect::<Vec<_>>()).unwrap();
    };
    changed((0..USERS).map(divert).collect());
    let mut session = connected(&switch);
    ask(&mut session, 7, Request::Flow(FlowStatsRequest::all(TableId::ALL)));
    ask(&mut session, 8, Message::BarrierRequest(()));
    assert!(session.output.len() < (1 << 20) + 65_536, "{}", session.output.len());
    let mut told = Vec::new();
    let mut tell = |messages: Vec<(u32, Message)>| {
        let mut is_over = false;
        for (xid, message) in messages {
            match message {
                Message::MultipartReply(Multipart { more, body: Reply::Flow(flows) }) => {
                    assert!(!is_over && xid == 7);
                    told.extend(flows);
                    is_over = !more;
                }
                Message::BarrierReply(()) => assert!(is_over && xid == 8, "answers come in their order"),
                message => panic!("{message:?}"),
            }
        }
        told.len()
    };
    let before = tell(taken(&mut session));
    assert!((1000..15_000).contains(&before), "{before}");
    // What was told already, what was not: changed, replaced, removed, new.
    let instructions = Instructions::apply([output(3)]);
    let one = |user: u32| FlowMod { instructions: instructions.clone(), ..divert(user) };
    changed(vec![
        FlowMod { command: FlowModCommand::ModifyStrict, ..one(1) },
        one(2),
        FlowMod { command: FlowModCommand::ModifyStrict, ..one(19_001) },
        one(19_002),
        FlowMod::delete(TableId(1), divert(3).matching),
        FlowMod::delete(TableId(1), divert(19_003).matching),
        divert(USERS),
        FlowMod { table_id: TableId(7), ..divert(0) },
    ]);
    assert_eq!(tell(all_taken(&mut session)), USERS as usize - 1);
    let mut users: Vec<u64> = told.iter().map(user_of).collect();
    users.sort_unstable();
    let expected: Vec<u64> = (0..u64::from(USERS)).filter(|user| *user != 19_003).collect();
    assert!(users == expected, "each once, also the one that was told before it went");
    for flow in told.iter().filter(|flow| [19_001, 19_002].contains(&user_of(flow))) {
        assert_eq!(flow.instructions, instructions, "as it is when its part is made");
    }
}

/// Nobody waits for one who looks for an entry among many.
#[test]
fn a_long_search_lets_others_have_their_turn() {
    let switch = new_switch();
    let changes: Vec<_> = (0..70_000).map(divert).map(Change::FlowMod).collect();
    switch.commit(&changes).unwrap();
    let mut session = connected(&switch);
    let none = FlowStatsRequest { cookie: 1, cookie_mask: 1, ..FlowStatsRequest::all(TableId::ALL) };
    ask(&mut session, 1, Request::Flow(none.clone()));
    assert!(session.is_behind() && session.output.is_empty());
    let empty = Multipart { more: false, body: Reply::Flow(Vec::new()) };
    assert_eq!(all_taken(&mut session), [(1, empty.into())]);
    ask(&mut session, 2, Request::Aggregate(FlowStatsRequest::all(TableId(1))));
    assert!(session.is_behind() && session.output.is_empty());
    let sum = AggregateStats { packet_count: 0, byte_count: 0, flow_count: 70_000 };
    assert_eq!(all_taken(&mut session), [(2, Multipart { more: false, body: Reply::Aggregate(sum) }.into())]);
    // The driver goes on by itself.
    let running = start(&[]);
    running.switch.commit(&changes).unwrap();
    let mut controller = Controller::connect(&running);
    controller.send(3, Request::Aggregate(none));
    let (3, Message::MultipartReply(Multipart { more: false, .. })) = controller.receive() else { panic!() };
    controller.barrier();
}

/// Groups with all that they may have fill many messages; every group is told.
#[test]
fn groups_and_tables_are_told_in_parts() {
    let switch = new_switch();
    let buckets = vec![Bucket::new(vec![set(Oxm::eth_dst(MacAddr(GW1_MAC))); 16]); 64];
    let group = |group_id, buckets| {
        let (command, group_type) = (GroupModCommand::Add, GroupType::All);
        Change::GroupMod(GroupMod { command, group_type, group_id, buckets })
    };
    let ids = |at: u32| if at == 99 { GroupId::MAX } else { GroupId(at * 3) };
    let mut changes: Vec<_> = (0..100).map(|at| group(ids(at), buckets.clone())).collect();
    let uses = |id| Action::Group(GroupId(id));
    changes.push(group(GroupId(1), vec![Bucket::new([uses(0)]), Bucket::new([uses(0)])]));
    changes.push(Change::FlowMod(add(0, 1, [], Instructions::apply([uses(0), uses(0), uses(3)]))));
    switch.commit(&changes).unwrap();
    let mut session = connected(&switch);
    let mut answer = |request: Request| {
        ask(&mut session, 5, request);
        let mut joiner = Joiner::new(Limits::REPLIES);
        let mut parts = 0;
        let mut whole = None;
        for (xid, message) in all_taken(&mut session) {
            let Message::MultipartReply(part) = message else { panic!("{message:?}") };
            assert!(whole.is_none());
            parts += 1;
            whole = joiner.push(xid, part, 0).unwrap();
        }
        (parts, whole.expect("it ends"))
    };
    let all: Vec<_> = (0..100)
        .map(ids)
        .chain([GroupId(1)])
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    let (parts, Reply::GroupDesc(groups)) = answer(Request::GroupDesc(())) else { panic!() };
    assert_eq!(groups.iter().map(|group| group.group_id).collect::<Vec<_>>(), all);
    assert!(parts > 20 && groups[0].buckets == buckets, "{parts}");
    let (_, Reply::GroupStats(stats)) = answer(Request::GroupStats(multipart::Of(GroupId::ALL))) else {
        panic!()
    };
    assert_eq!(stats.iter().map(|stats| stats.group_id).collect::<Vec<_>>(), all);
    // Who uses a group counts once.
    assert_eq!(stats[..4].iter().map(|stats| stats.ref_count).collect::<Vec<_>>(), [2, 0, 1, 0]);
    let (1, Reply::GroupStats(stats)) = answer(Request::GroupStats(multipart::Of(GroupId(3)))) else {
        panic!()
    };
    assert_eq!((stats.len(), stats[0].group_id), (1, GroupId(3)));
    let (_, Reply::TableFeatures(tables)) = answer(Request::TableFeatures(Vec::new())) else { panic!() };
    assert_eq!(tables.iter().map(|table| table.table_id.0).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    switch.commit(&[Change::FlowMod(FlowMod::delete(TableId(0), Match::default()))]).unwrap();
    assert_eq!([0, 3].map(|id| switch.pipeline().users(GroupId(id))), [1, 0]);
}

/// A group whose description would not fit into a message, nor any packet through it.
#[test]
fn groups_of_too_many_actions_are_refused() {
    let switch = new_switch();
    let buckets = vec![Bucket::new(vec![output(1); 17]); 64];
    let group_mod =
        GroupMod { command: GroupModCommand::Add, group_type: GroupType::All, group_id: GroupId(1), buckets };
    let failed = switch.commit(&[Change::GroupMod(group_mod)]).unwrap_err();
    assert_eq!(failed.code, Code::OFPBAC_TOO_MANY);
}

/// Requests come in parts, too.
#[test]
fn requests_in_parts_are_joined() {
    let switch = new_switch();
    let mut session = connected(&switch);
    let table = |name: &str| TableFeatures {
        table_id: TableId(0),
        name: Text::new(name),
        metadata_match: 0,
        metadata_write: 0,
        config: TableConfig::default(),
        max_entries: 0,
        properties: Vec::new(),
    };
    let part =
        |more, tables: usize| Multipart { more, body: Request::TableFeatures(vec![table(""); tables]) };
    let errors = |session: &mut Session| {
        let messages = all_taken(session).into_iter();
        let errors = messages.map(|(xid, message)| match message {
            Message::Error(error) => (xid, error.code),
            message => panic!("{message:?}"),
        });
        errors.collect::<Vec<_>>()
    };
    // One request has one answer, behind its last part, whatever comes between them.
    ask(&mut session, 1, part(true, 1));
    ask(&mut session, 2, part(true, 0));
    ask(&mut session, 1, part(true, 1));
    assert_eq!(errors(&mut session), []);
    ask(&mut session, 1, part(false, 0));
    assert_eq!(errors(&mut session), [(1, Code::OFPTFFC_EPERM)]);
    // Of empty parts it is a question.
    ask(&mut session, 2, part(false, 0));
    assert!(matches!(all_taken(&mut session)[..], [(2, Message::MultipartReply(_))]));
    // What is kept of requests without end is bounded: one is refused, and what follows of it is not answered.
    for _ in 0..20 {
        ask(&mut session, 3, part(true, 1000));
    }
    assert_eq!(errors(&mut session), [(3, Code::OFPBRC_MULTIPART_BUFFER_OVERFLOW)]);
    ask(&mut session, 3, part(false, 0));
    assert_eq!(errors(&mut session), []);
    // Who goes on like this is disconnected.
    let ended = (4..20).find_map(|xid| {
        let message = Message::from(part(true, 1)).encode(xid).unwrap();
        session.receive(&message, 0).err()
    });
    assert_eq!(ended, Some(Ended::Parts(JoinError::OutOfStep)));
}
