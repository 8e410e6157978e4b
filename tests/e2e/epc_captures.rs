//! Captures of a 4G network: tshark reads S11, PFCP and GTP-U, and finds the procedures in them.

use std::collections::BTreeSet;
use std::path::Path;

use net::time::{self, Duration};
use serde_json::json;
use testkit::world::{LIMIT, World, network};

use crate::captures::{has_tshark, tshark, tshark_with};
use crate::epc_sites::{Site, enb_of};

const IMSI: &str = "999700000000001";

/// GTP-C messages without echoes (TS 29.274 table 6.1-1), procedure by procedure.
type Procedures<'a> = &'a [(&'static str, &'static [u8])];

/// The messages of S11, as the UE's life has them up to its end.
const LIFE: Procedures<'static> = &[
    ("attach", &[32, 33, 34, 35]),
    ("idle", &[170, 171]),
    ("paging", &[176, 177, 34, 35]),
    ("dedicated bearer", &[95, 96]),
    ("idle", &[170, 171]),
    ("service request", &[34, 35]),
];
const DETACH: (&str, &[u8]) = ("detach", &[36, 37]);
/// The former S-GW is told that it has nothing any more.
const RELEASE: (&str, &[u8]) = ("release of the former S-GW", &[36, 37]);

/// Pings, and returns whether all was answered.
async fn ping(world: &World, from: &net::netns::NetNs, to: &str) -> bool {
    let ping = world.lab.command(from, "ping").args(["-c", "2", "-i", "0.2", "-W", "5", to]);
    ping.output(LIMIT).await.unwrap().status.success()
}

/// A UE's life: attach, idle, paging, a dedicated bearer by the operator of the P-GW, idle, active. Returns the simulator and the UE's
/// namespace.
async fn live(
    world: &World,
    options: lab::SimulatorOptions,
    pgw: &Path,
) -> (lab::Simulator, net::netns::NetNs) {
    let options = lab::SimulatorOptions { session_type: "IPV4".into(), ..options };
    let mut ran = world.lab.simulate(&options).unwrap();
    let attached = ran.expect("attached", LIMIT).await.unwrap();
    let (ue, address) = (attached.namespace().unwrap(), attached.text("ipv4").unwrap().to_owned());
    let dn = lab::DN.to_string();
    assert!(ping(world, &ue, &dn).await);

    ran.expect("idle", LIMIT).await.unwrap();
    assert!(ping(world, world.lab.dn(), &address).await, "the idle UE is paged");
    assert_eq!(ran.expect("service", LIMIT).await.unwrap().text("reason"), Some("paging"));

    let bearer = json!({"linked_ebi": 5, "qci": 1, "protocol": 1, "remote": dn,
        "gbr_kbps": {"uplink": 100, "downlink": 100}, "mbr_kbps": {"uplink": 1_000, "downlink": 1_000}});
    let route = format!("/ues/{IMSI}/bearers");
    nf::oam::call(pgw, "POST", &route, Some(&bearer)).await.unwrap();
    assert_eq!(ran.expect("bearers", LIMIT).await.unwrap().text("action"), Some("created"));
    assert!(ping(world, &ue, &dn).await, "through the dedicated bearer");

    ran.expect("idle", LIMIT).await.unwrap();
    assert!(ping(world, &ue, &dn).await, "the UE comes back");
    assert_eq!(ran.expect("service", LIMIT).await.unwrap().text("reason"), Some("uplink_data"));
    (ran, ue)
}

/// The last packets are written.
async fn are_written() {
    time::sleep(Duration::from_millis(600)).await;
}

/// Something about finished captures.
fn read(reading: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(reading);
}

/// Everything in these captures belongs to the protocol, and tshark understands each.
async fn are_understood(folder: &Path, points: &[(&str, &str)]) {
    for (point, protocol) in points {
        let file = folder.join(format!("{point}.pcapng"));
        assert!(!tshark(&file, protocol).await.is_empty(), "{}: no {protocol}", file.display());
        for wrong in [
            format!("!{protocol}"),
            "_ws.malformed || _ws.short".to_owned(),
            "_ws.expert.severity >= \"Warning\"".to_owned(),
        ] {
            let found = tshark(&file, &wrong).await;
            assert!(found.is_empty(), "{}: {wrong}: {found:#?}", file.display());
        }
    }
}

/// Compares the messages of GTP-C that a filter selects with those of these procedures.
async fn has_procedures(file: &Path, filter: &str, expected: Procedures<'_>) {
    let fields = ["-T", "fields", "-e", "gtpv2.message_type"];
    let types = tshark_with(file, &fields, &format!("gtpv2.message_type > 3 && {filter}")).await;
    let types: Vec<u8> = types.iter().map(|code| code.parse().unwrap()).collect();
    let wanted: Vec<u8> = expected.iter().flat_map(|(_, types)| types.iter().copied()).collect();
    assert_eq!(types, wanted, "{}: {filter}: {expected:?}", file.display());
    let imsi = format!("gtpv2.message_type == 32 && e212.imsi == \"{IMSI}\" && {filter}");
    let created = expected.iter().flat_map(|(_, types)| *types).filter(|code| **code == 32).count();
    assert_eq!(tshark(file, &imsi).await.len(), created, "Create Session names the subscriber");
}

/// The tunnels through which echoes went to the data network and from it.
async fn tunnels(file: &Path) -> BTreeSet<String> {
    let fields = ["-T", "fields", "-e", "gtp.teid"];
    tshark_with(file, &fields, "gtp.message == 0xff && icmp").await.into_iter().collect()
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
    network(options, async |world| {
        let socket = nf::oam::socket_path(&world.lab.folder().join("run"), "spgw");
        let arguments = ["--inactivity", "1"].map(str::to_owned).to_vec();
        let options = lab::SimulatorOptions { arguments, ..Default::default() };
        let (ran, _) = live(world, options, &socket).await;
        ran.stop().await.unwrap();
        world.until("spgw", "/status", |status| status["detail"]["sessions"] == 0).await;
        are_written().await;
    });
    read(async {
        are_understood(folder.path(), &[("s11", "gtpv2"), ("n4", "pfcp"), ("n3", "gtp")]).await;
        has_procedures(&folder.path().join("s11.pcapng"), "gtpv2", &[LIFE, &[DETACH]].concat()).await;
        // The packets of both tunnels: that of the default bearer, and that of the dedicated one.
        let n3 = tunnels(&folder.path().join("n3.pcapng")).await;
        assert!(n3.len() >= 4, "{n3:?}");
    });
}

/// A P-GW and two S-GWs, each with a UPF of its own. The UE moves from one S-GW to the other while it pings.
#[test]
fn captures_of_gateways_apart_show_s11_and_s5() {
    if !has_tshark() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| Some(folder.path().join(name));
    let options = |options: &mut lab::Options| {
        options.epc = true;
        options.foreign_gateway = true;
    };
    network(options, async |world| {
        let pgw = Site::core(world, "pgw", at("pgw")).await;
        let sgw = Site::numbered_sgw(world, 0, at("sgw")).await;
        let other = Site::numbered_sgw(world, 1, at("other")).await;
        let sgws = [&sgw, &other].into_iter().zip(0..);
        let options = lab::SimulatorOptions {
            sgws: sgws.map(|(sgw, number)| (sgw.gateway(), enb_of(number).into())).collect(),
            // UEs become idle long before they would move.
            arguments: ["--pgw", &lab::CORE_N2.to_string(), "--inactivity", "1", "--handover", "5"]
                .map(str::to_owned)
                .to_vec(),
            ..Default::default()
        };
        let (mut ran, ue) = live(world, options, &pgw.socket()).await;
        let arguments = ["-c", "70", "-i", "0.1", "-W", "5", &lab::DN.to_string()];
        let pinging = world.lab.command(&ue, "ping").args(arguments);
        let (pinged, moved) = tokio::join!(pinging.output(LIMIT), ran.expect("handover", LIMIT));
        let moved = moved.unwrap();
        assert_eq!(moved.text("gateway"), Some(other.gateway().to_string().as_str()));
        assert_eq!(moved.number("end_markers"), Some(2.0), "{moved:?}");
        let pinged = String::from_utf8(pinged.unwrap().stdout).unwrap();
        assert!(pinged.contains(" 0% packet loss"), "{pinged}");
        ran.stop().await.unwrap();
        for site in [&pgw, &sgw, &other] {
            site.is_empty().await;
        }
        are_written().await;
        for site in [pgw, sgw, other] {
            site.stop().await;
        }
    });
    read(async {
        let file = |site: &str, point: &str| folder.path().join(site).join(format!("{point}.pcapng"));
        are_understood(&folder.path().join("pgw"), &[("s5", "gtpv2"), ("n4", "pfcp"), ("n3", "gtp")]).await;
        for site in ["sgw", "other"] {
            are_understood(&folder.path().join(site), &[("s11", "gtpv2"), ("n4", "pfcp"), ("n3", "gtp")])
                .await;
        }
        // An S-GW's capture has its end of S5 as well.
        let (s11, s5) = (format!("ip.addr == {}", lab::RAN_N2), format!("ip.addr == {}", lab::CORE_N2));
        let dedicated = ("dedicated bearer", &[95, 96][..]);
        let attach = ("attach", &[32, 33][..]);
        let first = [LIFE, &[RELEASE]].concat();
        has_procedures(&file("sgw", "s11"), &s11, &first).await;
        has_procedures(&file("sgw", "s11"), &s5, &[attach, dedicated]).await;
        has_procedures(&file("other", "s11"), &s11, &[("move", &[32, 33]), DETACH]).await;
        let moved = ("move", &[34, 35][..]);
        has_procedures(&file("other", "s11"), &s5, &[moved, DETACH]).await;
        has_procedures(&file("pgw", "s5"), "gtpv2", &[attach, dedicated, moved, DETACH]).await;
        // S1-U and S5-U, up and down: of both bearers before the move, and of the dedicated one, which has all echoes, after it.
        for (site, least) in [("sgw", 8), ("other", 4)] {
            let teids = tunnels(&file(site, "n3")).await;
            assert!(teids.len() >= least, "{site}: {teids:?}");
        }
        let markers = tshark(&file("sgw", "n3"), "gtp.message == 0xfe").await;
        assert_eq!(
            markers.len(),
            4,
            "End Markers of both bearers, from the P-GW and to the eNB: {markers:#?}"
        );
    });
}
