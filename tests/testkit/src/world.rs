//! A network for one test: the real core in namespaces; the test drives gNBs and UEs step by step.
//!
//! [`network`] starts a lab and calls the test with a [`World`] whose sockets are opened in the RAN's
//! namespace. After every test it checks that no process has ended, that none has panicked, and that
//! all end regularly.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use lab::{Lab, Options};
use net::time::{Duration, sleep, timeout};
use packet::{icmp, ipv4, protocol};
use serde_json::Value;
use simulator::ue::SessionRequest;
use simulator::{Access, Config, Failure, Gnb, Ue, UeConfig, UserPlane};
use types::{PduSessionId, PduSessionType};

/// Subscribers of every network.
const SUBSCRIBERS: u32 = 20;
/// The UE that shows whether failures of others affect it.
const BYSTANDER: u64 = 19;
/// How long any step may take on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A running network for a test.
pub struct World {
    /// Namespaces and processes.
    pub lab: Lab,
    /// The configuration of gNBs and UEs.
    pub config: Config,
    user_plane: Option<UserPlane>,
    bystander: Option<Ue>,
}

/// Runs a test in a network of its own. `edit` changes the lab's options.
///
/// Without the right to create namespaces the test is reported as skipped and passes; with `CI` set it
/// fails, so that nothing is skipped silently there.
pub fn network(edit: impl FnOnce(&mut Options), test: impl AsyncFnOnce(&mut World) + Send) {
    if !permitted() {
        return;
    }
    let outer = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lab = outer.block_on(async {
        let mut options = Options::new(SUBSCRIBERS).expect("`cargo build -p cli` comes before these tests");
        edit(&mut options);
        Lab::start(options).await.unwrap()
    });
    let ran = lab.ran().clone();
    let inner = ran.runtime(1).unwrap();
    let world = ran
        .enter(|| {
            inner.block_on(async {
                let config = Config {
                    amf: SocketAddr::from((lab::CORE_N2, ngap::PORT)),
                    n2: IpAddr::from(lab::RAN_N2),
                    ..Config::default()
                };
                let mut world = World { lab, config, user_plane: None, bystander: None };
                test(&mut world).await;
                world.user_plane = None;
                world.bystander = None;
                world
            })
        })
        .unwrap();
    outer.block_on(async {
        let World { mut lab, .. } = world;
        let processes = ["core", "cu", "du"].into_iter().chain(lab::NFS);
        let logs: Vec<String> = processes.map(|name| lab.log(name)).collect();
        for log in &logs {
            assert!(!log.contains("panicked at"), "a process of the core panicked:\n{log}");
        }
        lab.check().unwrap();
        lab.stop().await.unwrap();
    });
    // Processes that the test restarted are watched by this runtime.
    drop(inner);
}

/// Runs a test in a network with the default options.
pub fn plain(test: impl AsyncFnOnce(&mut World) + Send) {
    network(|_| (), test);
}

fn permitted() -> bool {
    let permitted =
        net::capability::Capability::SysAdmin.held() && net::capability::Capability::NetAdmin.held();
    assert!(permitted || std::env::var_os("CI").is_none(), "end-to-end tests need root");
    if !permitted {
        eprintln!("skipped: end-to-end tests need root");
    }
    permitted
}

impl World {
    /// A new gNB, the `index`-th.
    pub async fn gnb(&mut self, index: u16) -> Gnb {
        let user_plane = match &self.user_plane {
            Some(user_plane) => user_plane.clone(),
            None => self.user_plane.insert(UserPlane::start(self.config.n2).unwrap()).clone(),
        };
        Gnb::connect(self.config.gnb(index), Some(user_plane)).await.unwrap()
    }

    /// The UEs' end of the radio, for a lab with a gNB in parts ([`Options::split`]): as the generated configuration has it.
    pub async fn radio(&self) -> ue::Ues {
        let text = std::fs::read(self.lab.configuration()).unwrap();
        let mut configuration: Value = serde_json::from_slice(&text).unwrap();
        let config = serde_json::from_value(configuration["ran"].take()).unwrap();
        ue::Ues::start(&config, None).await.unwrap()
    }

    /// The `index`-th subscriber's UE, as provisioned, at a gNB or in a cell.
    pub fn ue(&self, access: &(impl Into<Access> + Clone), index: u64) -> Ue {
        self.ue_with(access, index, |_| ())
    }

    /// As [`World::ue`], with a changed configuration.
    pub fn ue_with(
        &self,
        access: &(impl Into<Access> + Clone),
        index: u64,
        edit: impl FnOnce(&mut UeConfig),
    ) -> Ue {
        let mut config = self.config.ue.clone();
        config.answer_timeout = LIMIT;
        edit(&mut config);
        Ue::new(Arc::new(config), index, access.clone()).unwrap()
    }

    /// Registers the bystander, a UE with a session that [`World::bystander_is_well`] checks.
    pub async fn watch(&mut self, gnb: &Gnb) {
        let mut ue = self.ue(gnb, BYSTANDER);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        self.bystander = Some(ue);
    }

    /// Checks that the bystander still has its session and can set up and release another.
    pub async fn bystander_is_well(&mut self) {
        let ue = self.bystander.as_mut().expect("`watch` comes first");
        ping(ue, 1).await;
        establish(ue, 9).await.unwrap();
        ping(ue, 9).await;
        ue.release_session(id(9)).await.unwrap();
        assert_eq!(ue.discarded(), 0, "the network sent the bystander something it could not believe");
    }

    /// Checks that the bystander's session forwards packets.
    pub async fn bystander_still_talks(&mut self) {
        ping(self.bystander.as_mut().expect("`watch` comes first"), 1).await;
    }

    /// The answer of an NF's administration socket.
    pub async fn ask(&self, nf: &str, route: &str) -> Value {
        self.lab.oam(nf, "GET", route).await.unwrap()
    }

    /// Waits until an NF's answer satisfies a condition.
    pub async fn until(&self, nf: &str, route: &str, condition: impl Fn(&Value) -> bool) {
        let mut last = Value::Null;
        for _ in 0..200 {
            last = self.lab.oam(nf, "GET", route).await.unwrap_or(Value::Null);
            if condition(&last) {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("{nf} {route} stays {last}");
    }
}

/// A PDU session identity.
pub fn id(value: u8) -> PduSessionId {
    PduSessionId::new(value).unwrap()
}

/// The request for an IPv4 session to `internet`.
pub fn request(value: u8) -> SessionRequest {
    SessionRequest {
        id: id(value),
        session_type: PduSessionType::Ipv4,
        dnn: Some("internet".parse().unwrap()),
        slice: None,
    }
}

/// Sets up an IPv4 session.
pub async fn establish(ue: &mut Ue, value: u8) -> Result<(), Failure> {
    ue.establish_session(request(value)).await.map(|_| ())
}

/// Sends one ICMP echo through a session and waits for the answer of the data network.
pub async fn ping(ue: &mut Ue, value: u8) {
    assert!(try_ping(ue, value).await, "no echo through session {value} of {}", ue.supi());
}

/// Whether an echo is answered within a few tries.
pub async fn try_ping(ue: &mut Ue, value: u8) -> bool {
    let session = ue.session_mut(id(value)).expect("the session is there");
    let source = session.ipv4.expect("an IPv4 session");
    for sequence in 0..5 {
        let echo = icmp::build_echo(source.into(), lab::DN.into(), 8, value.into(), sequence, b"godwit");
        let packet = ipv4::Header::new(source, lab::DN, protocol::ICMP).build(&echo).unwrap();
        if !session.send(packet) {
            return false;
        }
        let answered = timeout(Duration::from_secs(2), async {
            while let Some(packet) = session.received().await {
                // For example a router advertisement.
                let Ok(packet) = ipv4::Packet::new(&packet) else { continue };
                let reply = icmp::Message::new(packet.payload()).unwrap();
                if packet.source() == lab::DN && reply.kind() == 0 && reply.sequence() == sequence {
                    return true;
                }
            }
            false
        });
        if answered.await.unwrap_or(false) {
            return true;
        }
    }
    false
}
