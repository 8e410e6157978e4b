//! N3 and N4 against peers that send malformed messages, and PFCP against an independent
//! implementation.

use std::path::Path;

use net::process::Command;
use net::time::Duration;
use packet::gtpu::{self, PduSession};
use packet::{icmp, ipv4, protocol};
use serde_json::Value;

use testkit::world::{establish, id, network, ping};

/// How many packets the UPF dropped for one reason.
fn drops(stats: &Value, reason: &str) -> u64 {
    stats["drops"][reason].as_u64().unwrap_or(0)
}

/// All drops of the UPF.
fn all_drops(stats: &Value) -> u64 {
    stats["drops"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

#[test]
fn malformed_gtp_u_and_foreign_addresses_are_dropped_and_counted() {
    // Without the time after the start in which the UPF sends no Error Indications.
    let at_once = |options: &mut lab::Options| {
        options.edit = Box::new(|configuration| configuration["upf"]["restoration_s"] = 0.into());
    };
    network(at_once, async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        let before = world.ask("upf", "/stats").await;

        let session = ue.session_mut(id(1)).unwrap();
        let bearer = session.bearer.as_ref().unwrap().tunnel().unwrap();
        let (upf, qfi) = (bearer.tunnel.upf(), bearer.qos_flows[0].value());
        let source = session.ipv4.unwrap();
        let echo = icmp::build_echo(source.into(), lab::DN.into(), 8, 1, 1, b"x");
        let inner = ipv4::Header::new(source, lab::DN, protocol::ICMP).build(&echo).unwrap();
        let container = Some(PduSession::Uplink { qfi });
        let good = gtpu::build_gpdu(upf.teid.0, container, &inner).unwrap();
        let socket = net::udp::bind((lab::RAN_N2, 0).into()).await.unwrap();
        let to = std::net::SocketAddr::from((lab::CORE_N2, gtpu::PORT));
        for end in 0..good.len() {
            socket.send_to(&good[..end], to).await.unwrap();
        }
        for at in 0..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 1 << (at % 8);
            socket.send_to(&flipped, to).await.unwrap();
        }
        // A tunnel that does not exist, and a source address of another UE (UP-4).
        let stranger = gtpu::build_gpdu(0x7fff_fff0, container, &inner).unwrap();
        socket.send_to(&stranger, to).await.unwrap();
        let other: std::net::Ipv4Addr = "10.45.99.99".parse().unwrap();
        let spoofed = ipv4::Header::new(other, lab::DN, protocol::ICMP).build(&echo).unwrap();
        socket.send_to(&gtpu::build_gpdu(upf.teid.0, container, &spoofed).unwrap(), to).await.unwrap();

        ping(&mut ue, 1).await;
        let enough = all_drops(&before) + good.len() as u64;
        world.until("upf", "/stats", |stats| all_drops(stats) >= enough).await;
        let after = world.ask("upf", "/stats").await;
        for reason in ["unknown_teid", "source_address", "gtpu_malformed"] {
            let names = after["drops"].to_string();
            assert!(drops(&after, reason) > drops(&before, reason), "{reason}: {names}");
        }
        assert!(after["gtpu"]["error_indications_sent"].as_u64() > Some(0), "{after}");
        world.bystander_is_well().await;
    });
}

/// scapy as SMF: the UPF understands its messages, scapy decodes ours, malformed messages do no harm.
#[test]
fn an_independent_pfcp_implementation_gets_a_session() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python");
    if !python.exists() {
        assert!(std::env::var_os("CI").is_none(), "scapy is missing: scripts/setup.sh test");
        eprintln!("skipped: scapy is missing; scripts/setup.sh test installs it");
        return;
    }
    let admit = |options: &mut lab::Options| {
        options.edit = Box::new(|configuration| {
            configuration["upf"]["smf"] = serde_json::json!(["127.0.0.4", "127.0.0.99"]);
        });
    };
    network(admit, async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("pfcp_peer.py");
        let output = Command::new(&python)
            .arg(script)
            .namespace(world.lab.core())
            .output(Duration::from_secs(60))
            .await
            .unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{}", world.lab.log("core"));
        world.bystander_is_well().await;
    });
}
