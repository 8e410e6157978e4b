//! Gateways of 4G with a UPF each, in processes of their own beside those of the lab: S-GWs with a host of their own behind the radio
//! network's, and one in the core's namespace in place of the
//! lab's.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use gtpv2c::endpoint::PORT;
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::process::{Child, Signal};
use net::time::{self, Duration};
use serde_json::{Value, json};
use testkit::world::{LIMIT, World};

/// How often something is looked at that is waited for.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A gateway and its UPF.
pub(crate) struct Site {
    /// `sgw`, `pgw` or `spgw`.
    function: &'static str,
    /// Of S11, S5, S1-U and S5-U.
    pub(crate) address: Ipv4Addr,
    host: NetNs,
    folder: PathBuf,
    process: Child,
    pcap: Option<PathBuf>,
}

impl Site {
    /// An S-GW, the only one.
    pub(crate) async fn sgw(world: &World) -> Self {
        Self::numbered_sgw(world, 0, None).await
    }

    /// One of several S-GWs. Its interfaces are captured in the folder `pcap`.
    pub(crate) async fn numbered_sgw(world: &World, number: u8, pcap: Option<PathBuf>) -> Self {
        let address = Ipv4Addr::new(10, 202, number, 9);
        let host = sgw_host(world, number, address).await;
        let mut configuration = configuration(world);
        let pool = json!({"ipv4": "10.99.0.0/24"});
        configuration["smf"]["dnn"] = json!([{"name": "elsewhere", "ue_pool": pool}]);
        configuration["upf"]["dnn"] =
            json!([{"name": "elsewhere", "tun": "gw9", "ue_pool": pool, "nat": false}]);
        configuration["upf"]["pfcp"] = json!("127.0.0.17:8805");
        configuration["upf"]["gtpu"] = json!(format!("{address}:2152"));
        configuration.as_object_mut().unwrap().remove("spgw");
        configuration["sgw"] = json!({
            "gtpc": format!("{address}:{PORT}"), "pfcp": "127.0.0.16:8805", "gtpu": "127.0.0.16:2152",
            "upf": ["127.0.0.17:8805"],
        });
        let folder = world.lab.folder().join(format!("sgw-{number}"));
        Self::start(world, "sgw", address, host, folder, configuration, pcap).await
    }

    /// A gateway, `pgw` or `spgw`, in the core's namespace, with the lab's addresses. The lab runs none
    /// ([`lab::Options::foreign_gateway`]).
    pub(crate) async fn core(world: &World, function: &'static str, pcap: Option<PathBuf>) -> Self {
        let mut configuration = configuration(world);
        let section = configuration.as_object_mut().unwrap().remove("spgw").unwrap();
        configuration[function] = section;
        let (host, folder) = (world.lab.core().clone(), world.lab.folder().join(function));
        Self::start(world, function, lab::CORE_N2, host, folder, configuration, pcap).await
    }

    async fn start(
        world: &World,
        function: &'static str,
        address: Ipv4Addr,
        host: NetNs,
        folder: PathBuf,
        mut configuration: Value,
        pcap: Option<PathBuf>,
    ) -> Self {
        std::fs::create_dir(&folder).unwrap();
        configuration["run_dir"] = json!(folder.join("run"));
        std::fs::write(folder.join("godwit.yaml"), configuration.to_string()).unwrap();
        let process = spawn(world, function, &host, &folder, pcap.as_deref());
        let site = Self { function, address, host, folder, process, pcap };
        site.ready().await;
        site
    }

    async fn ready(&self) {
        self.until("/status", |status| status["detail"]["upfs"][0]["associated"] == true).await;
    }

    /// Its end of GTP-C.
    pub(crate) fn gateway(&self) -> SocketAddr {
        SocketAddr::from((self.address, PORT))
    }

    /// Its administration socket.
    pub(crate) fn socket(&self) -> PathBuf {
        nf::oam::socket_path(&self.folder.join("run"), self.function)
    }

    /// Something at that socket.
    pub(crate) async fn oam(&self, method: &str, route: &str, body: Option<&Value>) -> Result<Value, String> {
        nf::oam::call(&self.socket(), method, route, body).await.map_err(|error| error.to_string())
    }

    /// Waits until the gateway's answer satisfies a condition.
    pub(crate) async fn until(&self, route: &str, holds: impl Fn(&Value) -> bool) {
        let deadline = time::now() + LIMIT;
        loop {
            let answer = self.oam("GET", route, None).await;
            if answer.as_ref().is_ok_and(&holds) {
                return;
            }
            assert!(time::now() < deadline, "{} {route} stays {answer:?}\n{}", self.function, self.log());
            time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Waits until neither the gateway nor its UPF has a session.
    pub(crate) async fn is_empty(&self) {
        self.until("/status", |status| status["detail"]["sessions"] == 0).await;
        let upf = nf::oam::socket_path(&self.folder.join("run"), "upf");
        let sessions = nf::oam::call(&upf, "GET", "/sessions", None).await.unwrap();
        assert_eq!(sessions, json!([]), "the UPF of the {}", self.function);
    }

    /// Kills gateway and UPF like `kill -9`, and starts them again.
    pub(crate) async fn restart(&mut self, world: &World) {
        self.process.signal(Signal::SIGKILL);
        self.process.wait().await.unwrap();
        self.process = spawn(world, self.function, &self.host, &self.folder, self.pcap.as_deref());
        self.ready().await;
    }

    /// Ends it, regularly.
    pub(crate) async fn stop(mut self) {
        let status = self.process.stop(LIMIT).await.unwrap();
        let log = self.log();
        assert!(status.success() && !log.contains("panicked at"), "{}: {status}\n{log}", self.function);
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

/// That of the lab.
fn configuration(world: &World) -> Value {
    let text = std::fs::read_to_string(world.lab.configuration()).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn spawn(world: &World, function: &str, host: &NetNs, folder: &Path, pcap: Option<&Path>) -> Child {
    let godwit = lab::find_godwit().unwrap();
    let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
    let mut command = world.lab.command(host, godwit.to_str().unwrap());
    command = command.args(["run", "--nf", &format!("upf,{function}"), "-c"]).arg(folder.join("godwit.yaml"));
    if let Some(pcap) = pcap {
        command = command.arg("--pcap").arg(pcap);
    }
    command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

/// A host behind the radio network's, which forwards what it has for the core.
async fn sgw_host(world: &World, number: u8, address: Ipv4Addr) -> NetNs {
    let host = NetNs::new().unwrap();
    let radio = enb_of(number);
    let link = format!("sgw{number}");
    let (at_ran, at_sgw) = (Links::in_ns(world.lab.ran()).unwrap(), Links::in_ns(&host).unwrap());
    at_ran.add_veth(&link, "ran", &host).await.unwrap();
    for (links, name, address) in [(&at_ran, link.as_str(), radio), (&at_sgw, "ran", address)] {
        links.up(name).await.unwrap();
        links.add_address(name, Cidr::new(address.into(), 24).unwrap()).await.unwrap();
    }
    net::sysctl::set_in(world.lab.ran(), "net.ipv4.ip_forward", "1").unwrap();
    let to = |text: &str| text.parse::<Cidr>().unwrap();
    at_sgw.add_route(to("10.200.0.0/24"), Some(radio.into()), None).await.unwrap();
    let at_core = Links::in_ns(world.lab.core()).unwrap();
    at_core.add_route(to(&format!("10.202.{number}.0/24")), Some(lab::RAN_N2.into()), None).await.unwrap();
    host
}

/// The radio network's end of its link to an S-GW: an address for an eNB.
pub(crate) fn enb_of(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 202, number, 8)
}
