//! Open vSwitch, the independent implementation: `ovs-ofctl` prints what we write, and a switch of its own, in the user space and
//! in a network namespace of the test, takes our flows and gives them back.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use crate::common;
use openflow::*;
use openvswitch::{NetNs, OpenVswitch};

#[test]
fn ovs_ofctl_prints_every_message() {
    if !openvswitch::is_possible() {
        return;
    }
    let print = |message: &Message| {
        let octets = message.encode(7).unwrap();
        let hex: String = octets.iter().map(|octet| format!("{octet:02x}")).collect();
        let output = Command::new("ovs-ofctl").args(["ofp-print", &hex, "3"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for message in common::messages() {
        let text = print(&message);
        assert!(text.contains("(OF1.3) (xid=0x7)"), "{message:?}: {text}");
        // It shows what it cannot decode as octets, behind `***decode error` or the name of an error.
        assert!(!text.contains("decode error") && !text.contains("error decoding"), "{message:?}: {text}");
    }
    let steer = print(&common::steer().into());
    for part in [
        "ADD table:1 priority=100",
        "tun_id=0x1234",
        "tun_dst=10.0.0.0/24",
        "gtpu_flags=0x30",
        "gtpu_msgtype=255",
        "packet_type=(1,0x800)",
        "in_port=3",
        "nw_src=10.45.0.2",
        "tp_dst=53",
        "cookie:0xd1",
        "set_field:10.0.1.1->tun_dst,set_field:0x4321->tun_id,IN_PORT",
    ] {
        assert!(steer.contains(part), "{part}: {steer}");
    }
}

/// A controller's connection.
struct Controller {
    stream: UnixStream,
    framer: Framer,
}

impl Controller {
    fn connect(switch: &OpenVswitch) -> Controller {
        let stream = UnixStream::connect(switch.path("br0.mgmt")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut controller = Controller { stream, framer: Framer::default() };
        controller.send(1, Hello::OURS);
        let (_, Message::Hello(hello)) = controller.receive() else { panic!() };
        assert!(hello.is_compatible());
        controller
    }

    fn send(&mut self, xid: u32, message: impl Into<Message>) {
        self.stream.write_all(&message.into().encode(xid).unwrap()).unwrap();
    }

    fn receive(&mut self) -> (u32, Message) {
        loop {
            if let Some(octets) = self.framer.next_message().unwrap() {
                return Message::decode(octets).unwrap_or_else(|error| panic!("{error}: {octets:02x?}"));
            }
            let mut buffer = [0; 4096];
            let length = self.stream.read(&mut buffer).unwrap();
            assert_ne!(length, 0, "the switch has closed");
            self.framer.push(&buffer[..length]);
        }
    }

    /// Sends, and returns what comes before the answer to a barrier.
    fn ask(&mut self, message: impl Into<Message>) -> Vec<Message> {
        self.send(2, message);
        self.send(3, Message::BarrierRequest(()));
        let mut answers = Vec::new();
        loop {
            match self.receive() {
                (3, Message::BarrierReply(())) => return answers,
                (xid, answer) => {
                    assert_eq!(xid, 2, "{answer:?}");
                    answers.push(answer);
                }
            }
        }
    }

    fn error(&mut self, message: impl Into<Message>) -> Code {
        match &self.ask(message)[..] {
            [Message::Error(error)] => error.code,
            other => panic!("{other:?}"),
        }
    }

    fn flows(&mut self) -> Vec<FlowStats> {
        let parts = self.ask(Request::Flow(FlowStatsRequest::all(TableId(1))));
        let flows = |part| match part {
            Message::MultipartReply(Multipart { body: Reply::Flow(flows), .. }) => flows,
            other => panic!("{other:?}"),
        };
        parts.into_iter().flat_map(flows).collect()
    }
}

#[test]
fn a_switch_gives_back_what_it_was_given() {
    if !openvswitch::is_possible() {
        return;
    }
    let switch = OpenVswitch::start(&NetNs::new().unwrap(), &[]);
    switch.add_bridge(&["datapath_type=netdev"]);
    let gtp = ["type=gtpu", "ofport_request=1", "options:remote_ip=flow", "options:key=flow"];
    switch.add_port("gtp", &[&gtp[..], &["options:packet_type=ptap"]].concat());
    let mut controller = Controller::connect(&switch);
    let features = controller.ask(Message::FeaturesRequest(()));
    assert!(
        matches!(&features[..], [Message::FeaturesReply(features)] if features.n_tables == 254),
        "{features:?}"
    );

    // Flows come back as they were sent.
    for matching in [common::user(), common::neighbour(), Match::default()] {
        let mut flow_mod = common::steer();
        flow_mod.matching = matching.clone();
        assert_eq!(controller.ask(flow_mod.clone()), []);
        let flows = controller.flows();
        assert_eq!(flows.len(), 1);
        assert_eq!((&flows[0].matching, flows[0].cookie, flows[0].priority), (&matching, 0xd1, 100));
        assert_eq!(flows[0].instructions, flow_mod.instructions);
        assert_eq!(
            controller.ask(FlowMod {
                cookie: 0xd1,
                cookie_mask: u64::MAX,
                ..FlowMod::delete(TableId(1), Match::default())
            }),
            []
        );
        assert_eq!(controller.flows(), []);
    }

    // A bundle takes effect when it is committed.
    let flags = BundleFlags::ATOMIC | BundleFlags::ORDERED;
    let control = |kind| BundleControl { bundle_id: 5, kind, flags };
    // Open vSwitch repeats no flags in its replies.
    let reply = |kind| BundleControl { bundle_id: 5, kind, flags: BundleFlags::default() };
    assert_eq!(
        controller.ask(control(BundleControlType::OpenRequest)),
        [reply(BundleControlType::OpenReply).into()]
    );
    assert_eq!(
        controller.ask(BundleAdd { bundle_id: 5, flags, change: Change::FlowMod(common::steer()) }),
        []
    );
    assert_eq!(controller.flows(), []);
    assert_eq!(
        controller.ask(control(BundleControlType::CommitRequest)),
        [reply(BundleControlType::CommitReply).into()]
    );
    assert_eq!(controller.flows().len(), 1);
    assert_eq!(controller.error(control(BundleControlType::CommitRequest)), Code::OFPBFC_BAD_ID);

    // Groups, ports, tables, roles and events.
    let buckets = vec![Bucket { watch_port: PortNo(1), ..Bucket::new([Action::output(PortNo(1))]) }];
    let group = |command| GroupMod {
        command,
        group_type: GroupType::FastFailover,
        group_id: GroupId(1),
        buckets: buckets.clone(),
    };
    assert_eq!(controller.ask(group(GroupModCommand::Add)), []);
    assert_eq!(controller.error(group(GroupModCommand::Add)), Code::OFPGMFC_GROUP_EXISTS);
    let groups = controller.ask(Request::GroupDesc(()));
    let [Message::MultipartReply(Multipart { body: Reply::GroupDesc(groups), .. })] = &groups[..] else {
        panic!("{groups:?}")
    };
    assert_eq!((groups[0].group_type, &groups[0].buckets), (GroupType::FastFailover, &buckets));
    let requests = [
        Request::Desc(()),
        Request::Aggregate(FlowStatsRequest::all(TableId::ALL)),
        Request::Table(()),
        Request::PortStats(multipart::Of(PortNo::ANY)),
        Request::GroupStats(multipart::Of(GroupId::ALL)),
        Request::GroupFeatures(()),
        Request::TableFeatures(Vec::new()),
        Request::PortDesc(()),
    ];
    for request in requests {
        let replies = controller.ask(request.clone());
        assert!(
            replies.iter().all(|reply| matches!(reply, Message::MultipartReply(_))),
            "{request:?}: {replies:?}"
        );
    }
    assert_eq!(controller.ask(Message::SetAsync(AsyncConfig::INITIAL)), []);
    assert_eq!(controller.ask(Message::GetAsyncRequest(())), [Message::GetAsyncReply(AsyncConfig::INITIAL)]);
    assert_eq!(controller.ask(Message::EchoRequest(vec![1, 2])), [Message::EchoReply(vec![1, 2])]);
    let role = RoleRequest { role: Role::Equal, generation_id: 0 };
    assert!(matches!(controller.ask(Message::RoleRequest(role))[..], [Message::RoleReply(_)]));
}
