//! A CU with several DUs, each a process in a namespace of its own with links of its own.

use lab::Lab;
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::process::{Child, Command, Signal};
use net::time::{Duration, sleep};
use packet::gtpu;
use serde_json::{Value, json};

use testkit::world::{LIMIT, World, establish, network};

use crate::split_control::recovers;
use crate::talk::Talk;

const DUS: u64 = 4;
/// UEs of each DU.
const UES: u64 = 2;
/// The DU that dies.
const DYING: u64 = 2;
/// NR Cell Identity of the first DU, which is the lab's.
const CELL: u64 = 0x1001;
/// As on the links of the lab.
const MTU: u32 = 1600;

/// A further DU. It ends when this is dropped.
struct Du {
    number: u64,
    namespace: NetNs,
    child: Child,
}

/// Address of a DU's end on the link to the CU (202) or to the UEs (203); the far end has host 1, or 2.
fn address(link: u64, du: u64, host: u8) -> String {
    format!("10.{link}.{du}.{host}")
}

/// A link of a DU, and its way to the address that the far end has for all DUs.
async fn connect(du: &NetNs, name: &str, far: &Links, addresses: [String; 2], common: &str) {
    let device = name.split('-').next().unwrap();
    far.add_veth(name, device, du).await.unwrap();
    let near = Links::in_ns(du).unwrap();
    for (links, name, address) in [(&near, device, &addresses[0]), (far, name, &addresses[1])] {
        links.set_mtu(name, MTU).await.unwrap();
        links.up(name).await.unwrap();
        links.add_address(name, format!("{address}/24").parse().unwrap()).await.unwrap();
    }
    let common = Cidr::host(common.parse().unwrap());
    near.add_route(common, Some(addresses[1].parse().unwrap()), Some(device)).await.unwrap();
}

impl Du {
    async fn start(lab: &Lab, number: u64) -> Du {
        let namespace = NetNs::new().unwrap();
        let cu = Links::in_ns(lab.namespace_of("cu")).unwrap();
        let ues = Links::in_ns(lab.ran()).unwrap();
        let f1 = [address(202, number, 2), address(202, number, 1)];
        connect(&namespace, &format!("f1-{number}"), &cu, f1, "10.202.0.1").await;
        let uu = [address(203, number, 1), address(203, number, 2)];
        connect(&namespace, &format!("uu-{number}"), &ues, uu, "10.203.0.2").await;

        let text = std::fs::read(lab.configuration()).unwrap();
        let mut configuration: Value = serde_json::from_slice(&text).unwrap();
        configuration["run_dir"] = lab.folder().join(format!("run-{number}")).to_str().unwrap().into();
        let du = &mut configuration["du"];
        du["cell"] = (CELL + number).into();
        du["f1c"]["local"] = address(202, number, 2).into();
        du["f1u"]["gtpu"] = format!("{}:{}", address(202, number, 2), gtpu::PORT).into();
        du["uu"]["gtpu"] = format!("{}:{}", address(203, number, 1), l2::uu::PORT).into();
        let file = lab.folder().join(format!("du-{number}.yaml"));
        std::fs::write(&file, configuration.to_string()).unwrap();
        let child = Du::spawn(lab, number, &namespace);
        Du { number, namespace, child }
    }

    fn spawn(lab: &Lab, number: u64, namespace: &NetNs) -> Child {
        let log = std::fs::File::create(lab.folder().join(format!("du-{number}.log"))).unwrap();
        Command::new(lab::find_godwit().unwrap())
            .args(["run", "--nf", "du", "-c"])
            .arg(lab.folder().join(format!("du-{number}.yaml")))
            .namespace(namespace)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// As `kill -9` does.
    async fn kill(&mut self) {
        self.child.signal(Signal::SIGKILL);
        self.child.wait().await.unwrap();
    }
}

/// All cells, for the UEs.
fn cells(options: &mut lab::Options) {
    options.split = Some(lab::Model::Kernel);
    options.edit = Box::new(|configuration| {
        let cell = |du| json!({"id": CELL + du, "du": format!("{}:{}", address(203, du, 1), l2::uu::PORT)});
        configuration["ran"]["cells"] = (0..DUS).map(cell).collect();
    });
}

/// All conversations at once: so many datagrams each way, all of which arrive.
async fn all_talk(talks: Vec<Talk>, datagrams: u32) -> Vec<Talk> {
    let mut tasks = tokio::task::JoinSet::new();
    for mut talk in talks {
        tasks.spawn(async move {
            let first = talk.next;
            talk.send(datagrams).await;
            talk.settle().await;
            talk.all_arrived_since(first);
            talk
        });
    }
    tasks.join_all().await
}

/// Registers the UEs of all cells and lets each send its first packets.
async fn talks(world: &World, radio: &ue::Ues) -> Vec<Vec<Talk>> {
    let mut all = Vec::new();
    for (du, cell) in (0..).zip(radio.cells()) {
        let mut of_du = Vec::new();
        for ue in 0..UES {
            let mut ue = world.ue(&cell, du * UES + ue);
            ue.register().await.unwrap();
            establish(&mut ue, 1).await.unwrap();
            let mut talk = Talk::new(world, ue);
            talk.resume().await;
            talk.settle().await;
            of_du.push(talk);
        }
        all.push(of_du);
    }
    all
}

#[test]
fn a_du_of_four_dies_and_comes_back_and_the_others_go_on() {
    network(cells, async |world| {
        let mut dus = Vec::new();
        for number in 1..DUS {
            dus.push(Du::start(&world.lab, number).await);
        }
        let radio = world.radio().await;
        world.until("cu", "/status", |status| status["detail"]["f1_dus"] == DUS).await;
        let mut all = talks(world, &radio).await;
        world.until("cu", "/status", |status| status["detail"]["ues"] == DUS * UES).await;
        let mut dying = all.remove(DYING as usize);
        let others: Vec<Talk> = all.into_iter().flatten().collect();

        // While the others talk, one DU dies with its UEs.
        let du = dus.iter_mut().find(|du| du.number == DYING).unwrap();
        let (others, ()) = tokio::join!(all_talk(others, 150), async {
            sleep(Duration::from_millis(50)).await;
            du.kill().await;
        });
        // And while it comes back to a CU that may not have missed it yet.
        du.child = Du::spawn(&world.lab, DYING, &du.namespace);
        let (others, ()) = tokio::join!(all_talk(others, 150), async {
            for talk in &mut dying {
                talk.notice().await;
                recovers(&mut talk.ue).await;
                talk.resume().await;
            }
        });
        let all = all_talk(others.into_iter().chain(dying).collect(), 50).await;
        world.until("cu", "/status", |status| status["detail"]["f1_dus"] == DUS).await;
        for mut talk in all {
            talk.once();
            assert!(talk.ue.connected());
            talk.ue.deregister(false).await.unwrap();
        }
        world.until("cu", "/status", |status| status["detail"]["ues"] == 0).await;
        for du in &mut dus {
            assert!(du.child.stop(LIMIT).await.unwrap().success(), "DU {} ends in order", du.number);
            let log = std::fs::read_to_string(world.lab.folder().join(format!("du-{}.log", du.number)));
            assert!(!log.unwrap().contains("panicked at"), "DU {}", du.number);
        }
    });
}
