//! An AMF over real SCTP (in UDP) and real HTTP/2, between a scripted core and scripted gNBs and UEs.

pub mod core;
pub mod ran;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sbi::model::nrf::NfType;

pub use self::core::*;
pub use self::ran::*;

/// A network under test.
pub struct Network {
    pub core: Arc<Core>,
    pub n2: SocketAddr,
    pub amf: nf::Running,
    run_dir: PathBuf,
    _server: sbi::Server,
    _env: nf::Env,
}

/// A separate loopback address for every network: tests run at the same time, in several processes.
fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    format!("127.{}.{}.{n}", 64 + (pid >> 8) % 64, pid % 256)
}

impl Network {
    pub async fn start() -> Network {
        Network::with(serde_json::json!({})).await
    }

    /// With changes to the configuration.
    pub async fn with(changes: serde_json::Value) -> Network {
        Network::with_address(|_| changes).await
    }

    /// With changes to the configuration that depend on the address of N2.
    pub async fn with_address(changes: impl FnOnce(SocketAddr) -> serde_json::Value) -> Network {
        Network::build(changes, false).await
    }

    /// With an NRF, which notifies about the SMF.
    pub async fn with_nrf() -> Network {
        Network::build(|_| serde_json::json!({}), true).await
    }

    async fn build(changes: impl FnOnce(SocketAddr) -> serde_json::Value, nrf: bool) -> Network {
        let address = address();
        let changes = changes(format!("{address}:38412").parse().unwrap());
        let (core, server) = Core::start().await;
        let mut config = serde_json::json!({
            "sbi": format!("{address}:0"),
            "ngap": format!("{address}:38412"),
            "sctp": "udp",
            "plmn": {"mcc": "999", "mnc": "70"},
            "timers": {"n2_guard_ms": 2000, "smf_guard_ms": 1000},
        });
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        let run_dir = std::env::temp_dir().join(format!("godwit-amf-{address}"));
        std::fs::create_dir_all(&run_dir).unwrap();
        let mut env = nf::Env::new(&run_dir, nrf.then(|| server.address().into()));
        for nf in [NfType::Ausf, NfType::Udm, NfType::Pcf, NfType::Smf] {
            env.client.peers.insert(nf, server.address().into());
        }
        env.client.timeout = std::time::Duration::from_millis(500);
        let config: amf::Config = serde_json::from_value(config).unwrap();
        let n2 = config.ngap;
        let running = amf::start(config, env.clone()).await.unwrap();
        core.amf.set(running.sbi().into()).unwrap();
        Network { core, n2, amf: running, run_dir, _server: server, _env: env }
    }

    pub async fn oam(&self, method: &str, route: &str) -> serde_json::Value {
        nf::oam::call(self.amf.oam(), method, route, None).await.unwrap()
    }

    /// The entry of a UE in `GET /ues`, as soon as `ready` holds for it.
    pub async fn ue(
        &self,
        supi: types::Supi,
        ready: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        let mut last = serde_json::Value::Null;
        for _ in 0..300 {
            if let Ok(view) = nf::oam::call(self.amf.oam(), "GET", &format!("/ues/{supi}"), None).await {
                if ready(&view) {
                    return view;
                }
                last = view;
            }
            net::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{supi} is not as expected: {last}");
    }

    /// Checks that the UE's context was removed: the AMF answers that it does not know the UE.
    pub async fn gone(&self, supi: types::Supi) {
        for _ in 0..300 {
            match nf::oam::call(self.amf.oam(), "GET", &format!("/ues/{supi}"), None).await {
                Err(nf::oam::CallError::Refused(error)) if error.status == 404 => return,
                Err(error) => panic!("the AMF does not say whether {supi} is there: {error}"),
                Ok(_) => net::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        }
        panic!("{supi} is still there");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Best effort: a socket that is still open is closed with the process.
        let _ = std::fs::remove_dir_all(&self.run_dir);
    }
}
