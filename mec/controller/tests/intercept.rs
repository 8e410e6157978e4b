//! Messages of an anchor some of whose users are at another one: by Debian's Open vSwitch before the SMF, controller, agent and a clone, in
//! namespaces of the test. UPFs and SMF say what the test says.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use common::{Edge, further, host, run, socket, until};
use controller::config::{Place, Switch};
use net::time::{self, Duration};
use net::udp::UdpSocket;
use pfcp::message::*;
use pfcp::*;
use serde_json::json;

const SMF: &str = "10.1.0.1:8805";
const UPF: &str = "10.1.0.11:8805";
const UE: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 9);
const CP_SEID: u64 = 0x77;
const UP_SEID: u64 = 0x99;

fn encode(message: impl Into<Message>, seid: u64, sequence: u32) -> Vec<u8> {
    let mut octets = Vec::new();
    message.into().encode(seid, sequence, &mut octets).unwrap();
    octets
}

fn establishment() -> SessionEstablishmentRequest {
    let own = Some("10.1.0.11".parse().unwrap());
    let pdi = Pdi {
        f_teid: Some(FTeid::Assigned { teid: 0x11, ipv4: own, ipv6: None }),
        ue_ip_address: Some(UeIpAddress { ipv4: Some(UE), ..Default::default() }),
        ..Default::default()
    };
    let header = OuterHeaderCreation::gtpu(0x21, "10.0.0.1".parse().unwrap());
    let parameters = ForwardingParameters { outer_header_creation: Some(header), ..Default::default() };
    SessionEstablishmentRequest {
        node_id: NodeId::Ipv4(Ipv4Addr::new(10, 1, 0, 1)),
        cp_f_seid: FSeid::new(CP_SEID, "10.1.0.1".parse().unwrap()),
        create_pdrs: vec![CreatePdr { pdr_id: PdrId(1), pdi, far_id: Some(FarId(1)), ..Default::default() }],
        create_fars: vec![CreateFar {
            far_id: FarId(1),
            apply_action: ApplyAction::FORW,
            forwarding_parameters: Some(Box::new(parameters)),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn established(own: IpAddr, seid: u64, sequence: u32) -> Vec<u8> {
    let answer = SessionEstablishmentResponse {
        cause: Cause::ACCEPTED,
        up_f_seid: Some(FSeid::new(seid, own)),
        ..Default::default()
    };
    encode(answer, CP_SEID, sequence)
}

/// A clone that accepts all.
async fn clone(socket: UdpSocket) {
    let own = socket.local_addr().unwrap().ip();
    let mut datagram = [0; 4096];
    loop {
        let (length, from) = socket.recv_from(&mut datagram).await.unwrap();
        let (header, message) = Message::decode(&datagram[..length]).unwrap();
        let (cause, sequence) = (Cause::ACCEPTED, header.sequence);
        let answer = match message {
            Message::AssociationSetupRequest(_) => {
                encode(AssociationSetupResponse { cause, ..Default::default() }, 0, sequence)
            }
            Message::SessionEstablishmentRequest(_) => established(own, 0x55, sequence),
            Message::HeartbeatRequest(_) => {
                encode(HeartbeatResponse { recovery_time_stamp: NtpSeconds(0) }, 0, sequence)
            }
            Message::SessionDeletionRequest(_) => {
                encode(SessionDeletionResponse { cause, ..Default::default() }, CP_SEID, sequence)
            }
            other => panic!("{other:?}"),
        };
        socket.send_to(&answer, from).await.unwrap();
    }
}

fn inactive(sequence: u32) -> Vec<u8> {
    encode(SessionReportRequest { report_type: ReportType::UPIR, ..Default::default() }, CP_SEID, sequence)
}

async fn received(socket: &UdpSocket, wait: Duration) -> Option<Vec<u8>> {
    let mut buffer = [0; 4096];
    let (length, _) = time::timeout(wait, socket.recv_from(&mut buffer)).await.ok()?.unwrap();
    Some(buffer[..length].to_vec())
}

/// CAP-5: the anchor's inactivity is answered in the SMF's name as long as its user is elsewhere; all else passes, octet for octet, and does so
/// without a controller, too.
#[test]
fn cap_5_an_anchor_is_answered_in_the_smfs_name() {
    run(|home| async move {
        let mut edge = Edge::start(&home, false).await;
        let (space, smf_switch) = further(&home, 4).await;
        let (gateway, _) = host(&space, &smf_switch, "n4", &["10.1.0.11/24"]).await;
        smf_switch.local(&["10.1.0.1"], &[]).await;
        edge.config.switches.push(Switch {
            name: "smf".to_owned(),
            datapath_id: 4,
            place: Place::Control,
            probe: None,
            gtp_port: "gtp".to_owned(),
            local: Default::default(),
            external: Some("n4".to_owned()),
            capture: false,
        });
        edge.config.anchors[0].control = Some("10.1.0.11".parse().unwrap());
        edge.control().await;
        let (smf, upf) = (socket(&space, SMF), socket(&gateway, UPF));
        let long = Duration::from_secs(10);
        let request = encode(establishment(), 0, 1);
        until("the session is captured", async || {
            smf.send_to(&request, UPF).await.unwrap();
            received(&upf, Duration::from_millis(500)).await?;
            upf.send_to(&established("10.1.0.11".parse().unwrap(), UP_SEID, 1), SMF).await.unwrap();
            received(&smf, long).await.unwrap();
            let known = edge.get("/v1/replication").await;
            (known["anchors"][0]["ues"] == 1).then_some(())
        })
        .await;
        upf.send_to(&inactive(2), SMF).await.unwrap();
        assert_eq!(received(&smf, long).await, Some(inactive(2)), "nobody is moved");

        let links = net::link::Links::in_ns(&home).unwrap();
        links.up("lo").await.unwrap();
        for address in ["10.1.0.1/32", "10.9.0.12/32"] {
            links.add_address("lo", address.parse().unwrap()).await.unwrap();
        }
        let at_clone: SocketAddr = "10.9.0.12:8805".parse().unwrap();
        let clone = tokio::spawn(clone(socket(&home, &at_clone.to_string())));
        let config = replication::agent::Config {
            listen: "127.0.0.1:8806".parse().unwrap(),
            control: "10.1.0.1".parse().unwrap(),
            clone: at_clone.ip(),
            gtpu: Some(at_clone.ip()),
            window: 64,
        };
        let agent = tokio::spawn(replication::agent::Agent::bind(config).await.unwrap().serve());
        let wanted = json!({"from": "gw1", "to": "gw2", "agent": "127.0.0.1:8806"});
        let (status, copied) = edge.call("POST", "/v1/replicas", Some(wanted)).await;
        assert_eq!((status, &copied["refused"]), (200, &json!([])), "{copied}");
        assert!(!smf_switch.flows().contains("nw_src"), "a copy alone intercepts nothing");
        edge.divert(copied["done"][0]["diversion"].clone()).await;
        until("intercepted", async || smf_switch.flows().contains("nw_src=10.1.0.11").then_some(())).await;

        upf.send_to(&inactive(3), SMF).await.unwrap();
        let answer = received(&upf, long).await.expect("somebody answers");
        let (header, message) = Message::decode(&answer).unwrap();
        assert_eq!((header.seid, header.sequence), (Some(UP_SEID), 3));
        assert!(matches!(message, Message::SessionReportResponse(answer) if answer.cause.is_accepted()));
        let heartbeat = encode(HeartbeatRequest { recovery_time_stamp: NtpSeconds(1) }, 0, 4);
        upf.send_to(&heartbeat, SMF).await.unwrap();
        assert_eq!(received(&smf, long).await, Some(heartbeat.clone()), "the first that the SMF hears since");
        // Rules that intercept are renewed.
        time::sleep(Duration::from_secs(4)).await;
        upf.send_to(&inactive(5), SMF).await.unwrap();
        assert!(received(&upf, long).await.is_some());
        assert_eq!(received(&smf, Duration::from_millis(300)).await, None);
        // The user moves back.
        let (status, _) = edge.call("DELETE", "/v1/diversions/gw1~10.45.0.9", None).await;
        assert_eq!(status, 200);
        upf.send_to(&inactive(6), SMF).await.unwrap();
        assert_eq!(received(&smf, long).await, Some(inactive(6)));
        // Whoever renews no rules any more does not hold up heartbeats for long.
        edge.divert(copied["done"][0]["diversion"].clone()).await;
        until("intercepted", async || smf_switch.flows().contains("nw_src=10.1.0.11").then_some(())).await;
        drop(edge.controller.take());
        let start = time::now();
        let passed = until("passes without a controller", async || {
            upf.send_to(&heartbeat, SMF).await.unwrap();
            received(&smf, Duration::from_millis(200)).await
        });
        assert_eq!(passed.await, heartbeat);
        assert!(time::now() - start < Duration::from_secs(6));
        // One that comes back knows who is where.
        edge.control().await;
        clone.abort();
        agent.abort();
    });
}
