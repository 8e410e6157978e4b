//! eNBs, an MME and UEs of 4G in the RAN's namespace, that do what a test tells them when it does. Otherwise they answer the gateway.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gtpv2c::endpoint::PORT;
use gtpv2c::tft::{Component, Direction, PacketFilter};
use gtpv2c::{Ambr, Ebi, FlowQos, PdnType};
use lab::{Lab, edge};
use lte::config::UeConfig;
use lte::ue::{DEFAULT_BEARER, Wake};
use lte::{Enb, Mme};
use net::netns::NetNs;
use packet::protocol;
use tokio::sync::{mpsc, oneshot};

/// What a UE is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Do {
    /// Goes to the eNB with this index.
    HandOver(usize),
    /// Asks for a dedicated bearer for UDP with this port of the data network.
    AskForBearer(u16),
    /// Gives its dedicated bearer back.
    GiveBearerBack,
    /// Gets this rate by its subscription, so that its default bearer is updated.
    GetRate(u32),
    Detach,
}

type Done = oneshot::Sender<Result<(), String>>;

/// A UE that is attached.
pub(crate) struct Ue {
    pub(crate) imsi: String,
    pub(crate) addresses: Vec<IpAddr>,
    /// That of its TUN device.
    pub(crate) space: NetNs,
    asks: mpsc::UnboundedSender<(Do, Done)>,
}

impl Ue {
    /// Its name in the API of controller and orchestrator.
    pub(crate) fn id(&self) -> String {
        format!("imsi-{}", self.imsi)
    }

    /// Has it begin; what comes tells the end.
    pub(crate) fn begin(&self, what: Do) -> oneshot::Receiver<Result<(), String>> {
        let (done, comes) = oneshot::channel();
        self.asks.send((what, done)).expect("the UE's task runs");
        comes
    }

    pub(crate) async fn does(&self, what: Do) {
        self.begin(what).await.unwrap().unwrap_or_else(|why| panic!("{what:?}: {why}"));
    }
}

/// See the module.
pub(crate) struct Cell {
    runtime: Option<tokio::runtime::Runtime>,
    mme: Mme,
    enbs: Vec<Enb>,
    config: Arc<UeConfig>,
    given: u32,
    heard: Arc<AtomicU32>,
}

impl Drop for Cell {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Cell {
    pub(crate) async fn start(
        lab: &Lab,
        enbs: &[IpAddr],
        pdn_type: PdnType,
        static_ipv6: Option<Ipv6Addr>,
    ) -> Cell {
        let runtime = lab.ran().runtime(1).unwrap();
        let mut config = lte::Config::default();
        config.mme.s11 = SocketAddr::from((edge::CONTROL, PORT));
        config.ue.gateway = SocketAddr::from((lab.first_anchor(), PORT));
        config.ue.pgw = Some(lab::CORE_N2.into());
        (config.ue.pdn_type, config.ue.static_ipv6) = (pdn_type, static_ipv6);
        let mme_config = config.mme.clone();
        let mme = runtime.spawn(async move { Mme::start(&mme_config).await }).await.unwrap().unwrap();
        let start =
            |(id, address): (u32, &IpAddr)| lab.ran().enter(|| Enb::start(id, *address)).unwrap().unwrap();
        let enbs = (1..).zip(enbs).map(start).collect();
        Cell {
            runtime: Some(runtime),
            mme,
            enbs,
            config: Arc::new(config.ue),
            given: 0,
            heard: Arc::default(),
        }
    }

    /// Requests of the gateway about UEs that no UE has asked for.
    pub(crate) fn heard(&self) -> u32 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Attaches a further UE at the first eNB.
    pub(crate) async fn attach(&mut self) -> Ue {
        let ue = lte::Ue::new(self.config.clone(), self.given, self.mme.clone(), self.enbs[0].clone());
        self.given += 1;
        let (asks, asked) = mpsc::unbounded_channel();
        let (is_there, comes) = oneshot::channel();
        let life = live(ue.unwrap(), self.enbs.clone(), is_there, asked, self.heard.clone());
        self.runtime.as_ref().unwrap().spawn(life);
        let (imsi, addresses, space) = comes.await.expect("the UE attaches");
        Ue { imsi, addresses, space, asks }
    }
}

/// The life of a UE.
async fn live(
    mut ue: lte::Ue,
    enbs: Vec<Enb>,
    is_there: oneshot::Sender<(String, Vec<IpAddr>, NetNs)>,
    mut asked: mpsc::UnboundedReceiver<(Do, Done)>,
    heard: Arc<AtomicU32>,
) {
    ue.attach().await.unwrap();
    if ue.pdn().unwrap().link_local().is_some() {
        ue.solicit_router().await.unwrap();
    }
    let space = NetNs::from_path(ue.open_interface().await.unwrap().netns()).unwrap();
    let pdn = ue.pdn().unwrap();
    let addresses = pdn.ipv4().map(IpAddr::from).into_iter().chain(pdn.ipv6().map(IpAddr::from)).collect();
    let _ = is_there.send((ue.imsi().to_string(), addresses, space));
    loop {
        tokio::select! {
            wake = ue.wait() => match wake {
                Wake::Gateway(begun) => {
                    heard.fetch_add(1, Ordering::Relaxed);
                    drop(ue.answer(begun).await.unwrap());
                }
                Wake::UplinkData => drop(ue.service_request().await.unwrap()),
            },
            ask = asked.recv() => {
                let Some((what, done)) = ask else { return };
                let _ = done.send(act(&mut ue, &enbs, what).await.map_err(|failure| failure.to_string()));
            }
        }
    }
}

async fn act(ue: &mut lte::Ue, enbs: &[Enb], what: Do) -> Result<(), lte::Failure> {
    match what {
        Do::HandOver(to) => ue.handover(enbs[to].clone()).await.map(drop),
        Do::AskForBearer(port) => {
            let components = vec![Component::Protocol(protocol::UDP), Component::RemotePort(port)];
            let filter =
                PacketFilter { id: 1, direction: Direction::Bidirectional, precedence: 1, components };
            let (mbr, gbr) = (10_000, 100);
            let flow = FlowQos {
                qci: 1,
                mbr_uplink_kbps: mbr,
                mbr_downlink_kbps: mbr,
                gbr_uplink_kbps: gbr,
                gbr_downlink_kbps: gbr,
            };
            ue.request_bearer(vec![filter], flow).await.map(drop)
        }
        Do::GiveBearerBack => {
            let dedicated: Vec<Ebi> =
                ue.pdn().unwrap().bearers().keys().copied().filter(|ebi| *ebi != DEFAULT_BEARER).collect();
            ue.give_back(dedicated[0]).await.map(drop)
        }
        Do::GetRate(kbps) => {
            let qos = ue.pdn().unwrap().bearers()[&DEFAULT_BEARER].qos;
            ue.change_subscription(Ambr { uplink_kbps: kbps, downlink_kbps: kbps }, qos).await.map(drop)
        }
        Do::Detach => ue.detach().await.map(drop),
    }
}
