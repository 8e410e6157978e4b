//! The generated configuration and the default subscribers.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};
use store::{Authentication, KeySource, OnConflict, OperatorCode, Sqlite, Store as _, Subscriber};
use types::{Imsi, Supi};

use crate::edge::CONTROL;
use crate::network::{CORE_N2, UE_POOL, UE_POOL_IPV6};

/// Halves of [`UE_POOL`] and [`UE_POOL_IPV6`].
const SMF_POOL: &str = "10.45.0.0/17";
const SMF_POOL_IPV6: &str = "fd00:45::/49";
const SPGW_POOL: &str = "10.45.128.0/17";
const SPGW_POOL_IPV6: &str = "fd00:45:0:8000::/49";

/// The UPF's address of PFCP, in the core's namespace.
pub const UPF_PFCP: &str = "127.0.0.7:8805";

/// IMSI of the first default subscriber.
const FIRST_IMSI: u64 = 999_700_000_000_001;

/// The `index`-th default subscriber, from 0: consecutive IMSIs and the default keys of common
/// simulators.
pub fn default_subscriber(index: u32) -> Subscriber {
    let imsi: Imsi = (FIRST_IMSI + u64::from(index)).to_string().parse().expect("fifteen digits are an IMSI");
    let authentication = Authentication {
        k: "465B5CE8B199B49FAA5F0A2EE238A6BC".parse().expect("32 hexadecimal digits are a key"),
        operator_code: OperatorCode::Opc(
            "E8ED289DEBA952E4283B54E88E6183CA".parse().expect("32 hexadecimal digits are a key"),
        ),
        amf: "8000".parse().expect("four hexadecimal digits are an AMF value"),
        sqn: 0,
    };
    Subscriber::new(Supi::from(imsi), authentication)
}

/// Creates the store in `folder` with the subscribers.
pub(crate) async fn provision(folder: &Path, subscribers: Vec<Subscriber>) -> anyhow::Result<()> {
    let key = KeySource::File(folder.join("store.key"));
    let store = Sqlite::open(&folder.join("godwit.db"), &key).context("create the subscriber store")?;
    store.put_subscribers(subscribers, OnConflict::Replace).await.context("provision the subscribers")
}

/// The content of `godwit.yaml`: that of the file in the repository, with the lab's addresses and
/// folder.
pub(crate) fn configuration(folder: &Path, log: &str) -> Value {
    let pool = json!({"ipv4": UE_POOL, "ipv6": UE_POOL_IPV6});
    json!({
        "plmn": {"mcc": "999", "mnc": "70"},
        "run_dir": folder.join("run"),
        "store": folder.join("godwit.db"),
        "store_key": folder.join("store.key"),
        "log": log,
        "sbi": {"trust": folder.join("trust")},
        "slices": [{"sst": 1}],
        "nrf": {"sbi": "127.0.0.10:7777"},
        "amf": {
            "sbi": "127.0.0.5:7777",
            "ngap": format!("{CORE_N2}:38412"),
            "sctp": "auto",
            "amf_id": {"region": 2, "set": 1, "pointer": 0},
            "tac": [1],
            "integrity": ["NIA2", "NIA1"],
            "ciphering": ["NEA2", "NEA1", "NEA0"],
        },
        "smf": {
            "sbi": "127.0.0.4:7777",
            "pfcp": "127.0.0.4:8805",
            "gtpu": "127.0.0.4:2152",
            "upf": [UPF_PFCP],
            "dnn": [{"name": "internet", "ue_pool": pool, "dns": ["10.201.0.2"], "mtu": 1400}],
        },
        "upf": {
            "pfcp": UPF_PFCP,
            "gtpu": format!("{CORE_N2}:2152"),
            // No NAT: the data network has a route to the pool.
            "dnn": [{"name": "internet", "tun": "gw0", "ue_pool": pool, "nat": false}],
        },
        "ausf": {"sbi": "127.0.0.11:7777"},
        "udm": {"sbi": "127.0.0.12:7777"},
        "udr": {"sbi": "127.0.0.20:7777"},
        "pcf": {"sbi": "127.0.0.13:7777"},
    })
}

/// Adds a gateway of 4G, `spgw` or `pgw`, which hands out the second half of the UE addresses; the SMF has the first one.
pub(crate) fn add_gateway(configuration: &mut Value, section: &str) {
    let pools = |ipv4: &str, ipv6: &str| json!({"ipv4": ipv4, "ipv6": ipv6});
    configuration["smf"]["dnn"][0]["ue_pool"] = pools(SMF_POOL, SMF_POOL_IPV6);
    configuration[section] = json!({
        "gtpc": format!("{CORE_N2}:2123"),
        "pfcp": "127.0.0.6:8805",
        "gtpu": "127.0.0.6:2152",
        "upf": [UPF_PFCP],
        "apn": [{
            "name": "internet", "ue_pool": pools(SPGW_POOL, SPGW_POOL_IPV6), "dns": ["10.201.0.2"], "mtu": 1400,
        }],
    });
}

/// Makes an S-GW alone of a P-GW: at this address, with a UPF that has no UEs of its own.
pub(crate) fn make_sgw(configuration: &mut Value, address: Ipv4Addr) {
    let pool = json!({"ipv4": "10.99.0.0/24"});
    // A file needs some.
    configuration["smf"]["dnn"] = json!([{"name": "elsewhere", "ue_pool": pool}]);
    configuration["upf"]["dnn"] = json!([{"name": "elsewhere", "tun": "gw9", "ue_pool": pool, "nat": false}]);
    configuration["upf"]["gtpu"] = json!(format!("{address}:2152"));
    let mut sgw = configuration["pgw"].take();
    sgw["gtpc"] = json!(format!("{address}:2123"));
    if let (Some(sgw), Some(all)) = (sgw.as_object_mut(), configuration.as_object_mut()) {
        sgw.remove("apn");
        all.remove("pgw");
    }
    configuration["sgw"] = sgw;
}

/// Parts the UPF from all other NFs, which have an address beside the gNBs.
pub(crate) fn part_core(configuration: &mut Value) {
    let upf = format!("{CORE_N2}:8805");
    configuration["amf"]["ngap"] = json!(format!("{CONTROL}:38412"));
    configuration["smf"]["pfcp"] = json!(format!("{CONTROL}:8805"));
    configuration["smf"]["gtpu"] = json!(format!("{CONTROL}:2152"));
    configuration["smf"]["upf"] = json!([&upf]);
    configuration["upf"]["pfcp"] = json!(upf);
    configuration["upf"]["teid_range"] = teid_range(0);
}

/// The TEIDs of the UPF in the center, which is the first, or of one at the edge.
pub(crate) fn teid_range(upf: usize) -> Value {
    json!({"bits": 2, "value": upf})
}

/// Workers of UPFs and switches. Those with real-time priority do not poll: meanwhile they would keep their cores from who moves UEs.
pub(crate) fn workers(realtime: bool) -> Value {
    if realtime { json!({"realtime": true, "poll_us": 0}) } else { json!({}) }
}

/// Whether an NF with this status is ready: registered at the NRF if it has an SBI, and with a user
/// plane if it is the SMF. A CU has an AMF then, and a DU a CU that serves its cell.
pub(crate) fn is_ready(nf: &str, status: &Value) -> bool {
    let registered = matches!(nf, "nrf" | "upf" | "spgw" | "sgw" | "pgw") || status["registered"] == true;
    let upfs = status["detail"]["upfs"].as_array();
    let user_plane = !matches!(nf, "smf" | "spgw" | "sgw" | "pgw")
        || upfs.is_some_and(|upfs| upfs.iter().any(|upf| upf["associated"] == true));
    match nf {
        "cu" => status["detail"]["amf"].is_string(),
        "du" => status["detail"]["in_service"] == true,
        _ => registered && user_plane,
    }
}
