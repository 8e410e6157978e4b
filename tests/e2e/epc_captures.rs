//! Captures of a 4G network: tshark reads S11, PFCP and GTP-U, and finds the procedures in them.

use net::time::{self, Duration};
use serde_json::json;
use testkit::world::{LIMIT, World, network};

use crate::captures::{has_tshark, tshark, tshark_with};

const IMSI: &str = "999700000000001";

/// The messages of S11 without echoes (TS 29.274 table 6.1-1), as the UE's life has them.
const S11: [(&str, &[u8]); 7] = [
    ("attach", &[32, 33, 34, 35]),
    ("idle", &[170, 171]),
    ("paging", &[176, 177, 34, 35]),
    ("dedicated bearer", &[95, 96]),
    ("idle", &[170, 171]),
    ("service request", &[34, 35]),
    ("detach", &[36, 37]),
];

/// Pings, and returns whether all was answered.
async fn ping(world: &World, from: &net::netns::NetNs, to: &str) -> bool {
    let ping = world.lab.command(from, "ping").args(["-c", "2", "-i", "0.2", "-W", "5", to]);
    ping.output(LIMIT).await.unwrap().status.success()
}

/// A UE's life: attach, idle, paging, a dedicated bearer by the operator, idle, active, detach.
async fn live(world: &mut World) {
    let arguments = ["--inactivity", "2"].map(str::to_owned).to_vec();
    let options = lab::SimulatorOptions { session_type: "IPV4".into(), arguments, ..Default::default() };
    let mut ran = world.lab.simulate(&options).unwrap();
    let attached = ran.expect("attached", LIMIT).await.unwrap();
    let (ue, address) = (attached.namespace().unwrap(), attached.text("ipv4").unwrap().to_owned());
    let dn = lab::DN.to_string();
    assert!(ping(world, &ue, &dn).await);

    ran.expect("idle", LIMIT).await.unwrap();
    assert!(ping(world, world.lab.dn(), &address).await, "the idle UE is paged");
    assert_eq!(ran.expect("service", LIMIT).await.unwrap().text("reason"), Some("paging"));

    let socket = nf::oam::socket_path(&world.lab.folder().join("run"), "spgw");
    let bearer = json!({"linked_ebi": 5, "qci": 1, "protocol": 1, "remote": dn,
        "gbr_kbps": {"uplink": 100, "downlink": 100}, "mbr_kbps": {"uplink": 1_000, "downlink": 1_000}});
    let route = format!("/ues/{IMSI}/bearers");
    nf::oam::call(&socket, "POST", &route, Some(&bearer)).await.unwrap();
    assert_eq!(ran.expect("bearers", LIMIT).await.unwrap().text("action"), Some("created"));
    assert!(ping(world, &ue, &dn).await, "through the dedicated bearer");

    ran.expect("idle", LIMIT).await.unwrap();
    assert!(ping(world, &ue, &dn).await, "the UE comes back");
    assert_eq!(ran.expect("service", LIMIT).await.unwrap().text("reason"), Some("uplink_data"));
    ran.stop().await.unwrap();
    world.until("spgw", "/status", |status| status["detail"]["sessions"] == 0).await;
    // The last packets are written.
    time::sleep(Duration::from_millis(600)).await;
}

#[test]
fn captures_of_4g_show_a_ues_life_without_a_malformed_packet() {
    if !has_tshark() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pcap = folder.path().to_owned();
    let options = |options: &mut lab::Options| {
        options.epc = true;
        options.pcap = Some(pcap);
    };
    network(options, live);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for (point, protocol) in [("s11", "gtpv2"), ("n4", "pfcp"), ("n3", "gtp")] {
            let file = folder.path().join(format!("{point}.pcapng"));
            assert!(!tshark(&file, protocol).await.is_empty(), "{point}: no {protocol}");
            // All of them belong to the protocol, and tshark understands each.
            for wrong in [
                format!("!{protocol}"),
                "_ws.malformed || _ws.short".to_owned(),
                "_ws.expert.severity >= \"Warning\"".to_owned(),
            ] {
                let found = tshark(&file, &wrong).await;
                assert!(found.is_empty(), "{point}: {wrong}: {found:#?}");
            }
        }
        let s11 = folder.path().join("s11.pcapng");
        let fields = ["-T", "fields", "-e", "gtpv2.message_type"];
        let types = tshark_with(&s11, &fields, "gtpv2.message_type > 3").await;
        let types: Vec<u8> = types.iter().map(|code| code.parse().unwrap()).collect();
        let expected: Vec<u8> = S11.iter().flat_map(|(_, types)| types.iter().copied()).collect();
        assert_eq!(types, expected, "{S11:?}");
        let imsi = format!("gtpv2.message_type == 32 && e212.imsi == \"{IMSI}\"");
        assert_eq!(tshark(&s11, &imsi).await.len(), 1, "the attach names the subscriber");
        let n3 = folder.path().join("n3.pcapng");
        // The packets of both tunnels: that of the default bearer, and that of the dedicated one.
        let fields = ["-T", "fields", "-e", "gtp.teid"];
        let teids = tshark_with(&n3, &fields, "gtp.message == 0xff && icmp.type == 8").await;
        let teids: std::collections::BTreeSet<_> = teids.into_iter().collect();
        assert!(teids.len() >= 3, "{teids:?}");
    });
}
