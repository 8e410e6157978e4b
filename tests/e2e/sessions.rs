//! PDU sessions that have to be refused, and UPF, SMF and other NFs that are stopped, slow or
//! restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nas::{GmmCause, GsmCause};
use net::process::Command;
use net::time::{Duration, interval, sleep, timeout};
use packet::{icmp, ipv4, protocol};
use serde_json::{Value, json};
use simulator::ue::NetworkEvent;
use simulator::{Failure, Ue};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use testkit::world::{LIMIT, World, establish, id, network, ping, plain, request, try_ping};

/// Which NF refused, with its cause.
#[derive(Debug, PartialEq)]
enum Refusal {
    /// The SMF.
    Gsm(GsmCause),
    /// The AMF, which could not forward the request.
    Gmm(GmmCause),
}

fn refused(result: Result<(), Failure>) -> Refusal {
    match result {
        Err(Failure::SessionRejected(cause)) => Refusal::Gsm(cause),
        Err(Failure::Rejected(cause)) => Refusal::Gmm(cause),
        other => panic!("a refusal with a cause is expected, not {other:?}"),
    }
}

#[test]
fn unknown_data_networks_and_slices_are_refused_with_their_cause() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        let mut unknown = request(1);
        unknown.dnn = Some("nowhere".parse().unwrap());
        let cause = refused(ue.establish_session(unknown).await.map(|_| ()));
        // The AMF finds no such DNN in the subscription (TS 24.501 §5.4.5.2.5).
        assert_eq!(cause, Refusal::Gmm(GmmCause::DnnNotSupportedInSlice));
        let mut unknown = request(2);
        unknown.slice = Some("7-0a0b0c".parse().unwrap());
        let cause = refused(ue.establish_session(unknown).await.map(|_| ()));
        // A slice that is not allowed: the AMF selects no SMF for it.
        assert_eq!(cause, Refusal::Gmm(GmmCause::PayloadNotForwarded));
        establish(&mut ue, 3).await.unwrap();
        ping(&mut ue, 3).await;
        world.bystander_is_well().await;
    });
}

#[test]
fn an_exhausted_pool_refuses_and_recovers() {
    let small = |options: &mut lab::Options| {
        options.edit = Box::new(|configuration| {
            for nf in ["smf", "upf"] {
                configuration[nf]["dnn"][0]["ue_pool"] = json!({"ipv4": "10.45.0.0/29"});
            }
        });
    };
    network(small, async |world| {
        let gnb = world.gnb(0).await;
        let mut ues = Vec::new();
        let refusal = loop {
            let mut ue = world.ue(&gnb, ues.len() as u64);
            ue.register().await.unwrap();
            match establish(&mut ue, 1).await {
                Ok(()) => ues.push(ue),
                Err(failure) => break failure,
            }
            assert!(ues.len() < 8, "a /29 has not that many addresses");
        };
        assert!(
            matches!(refusal, Failure::SessionRejected(GsmCause::InsufficientResources)),
            "{refusal:?} after {} sessions",
            ues.len()
        );
        let full = ues.len();
        assert!(full >= 5);
        // An address is free again when the UE has confirmed the release of its session.
        ues[0].release_session(id(1)).await.unwrap();
        world
            .until("smf", "/sessions", |sessions| sessions.as_array().is_some_and(|all| all.len() < full))
            .await;
        establish(&mut ues[0], 2).await.unwrap();
        for ue in &mut ues[1..] {
            ping(ue, 1).await;
        }
        ping(&mut ues[0], 2).await;
    });
}

#[test]
fn the_same_session_identity_again_replaces_the_session() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        // TS 24.501 §5.4.5.2.5: the network releases the old one by itself.
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        let supi = ue.supi().to_string();
        world.until("smf", "/sessions", |sessions| sessions.to_string().matches(&supi).count() == 1).await;
        world.bystander_is_well().await;
    });
}

#[test]
fn ipv6_and_dual_stack_sessions_get_their_prefix() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        for (value, session_type) in [(1, types::PduSessionType::Ipv6), (2, types::PduSessionType::Ipv4v6)] {
            let mut wanted = request(value);
            wanted.session_type = session_type;
            ue.establish_session(wanted).await.unwrap();
            let (address, _) = ue.solicit_router(id(value)).await.unwrap();
            assert_eq!(address.segments()[..3], [0xfd00, 0x45, 0], "{address}");
        }
        ping(&mut ue, 2).await;
    });
}

/// Every NF in a process of its own, with short heartbeats.
fn processes(options: &mut lab::Options) {
    options.processes = true;
    options.edit = Box::new(|configuration| {
        configuration["smf"]["timers"] = json!({"pfcp_t1_ms": 200, "pfcp_n1": 2, "pfcp_heartbeat_ms": 500});
    });
}

#[test]
fn a_silent_upf_refuses_sessions_and_a_restarted_one_gets_them_back() {
    network(processes, async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;

        world.lab.kill("upf").await.unwrap();
        let refusal = timeout(LIMIT, establish(&mut ue, 2)).await.unwrap().unwrap_err();
        assert!(matches!(refusal, Failure::SessionRejected(_) | Failure::Rejected(_)), "{refusal:?}");
        // The UE stays registered, and others can register.
        world.ue(&gnb, 1).register().await.unwrap();

        // Recovery time stamps count seconds: a restart within the second of the start looks like none.
        sleep(Duration::from_millis(1100)).await;
        // A new UPF has a new recovery time stamp and no sessions: the SMF puts them back.
        world.lab.restart("upf").await.unwrap();
        world.until("smf", "/status", associated).await;
        let mut back = false;
        for _ in 0..10 {
            back = back || try_ping(&mut ue, 1).await;
        }
        let logs = || format!("SMF:\n{}\nUPF:\n{}", world.lab.log("smf"), world.lab.log("upf"));
        assert!(back, "the session does not work after the UPF restarted\n{}", logs());
        establish(&mut ue, 3).await.unwrap();
        ping(&mut ue, 3).await;
    });
}

/// UEs that send a packet every few milliseconds and read the answers.
struct Flows {
    stop: watch::Sender<bool>,
    /// Number of answers so far, per UE.
    answers: Arc<[AtomicU64]>,
    tasks: Vec<JoinHandle<Ue>>,
}

impl Flows {
    /// Starts the flows on session 1 of each UE.
    fn start(ues: Vec<Ue>) -> Flows {
        let (stop, stopped) = watch::channel(false);
        let answers: Arc<[AtomicU64]> = ues.iter().map(|_| AtomicU64::new(0)).collect();
        let run = |(at, mut ue): (usize, Ue)| {
            let (mut stopped, answers) = (stopped.clone(), answers.clone());
            tokio::spawn(async move {
                let session = ue.session_mut(id(1)).unwrap();
                let (source, mut turn) = (session.ipv4.unwrap(), interval(Duration::from_millis(5)));
                let echo = icmp::build_echo(source.into(), lab::DN.into(), 8, 1, 1, b"flow");
                let packet = ipv4::Header::new(source, lab::DN, protocol::ICMP).build(&echo).unwrap();
                loop {
                    tokio::select! {
                        _ = turn.tick() => assert!(session.send(packet.clone())),
                        Some(_) = session.received() => {
                            answers[at].fetch_add(1, Relaxed);
                        }
                        _ = stopped.wait_for(|stop| *stop) => return ue,
                    }
                }
            })
        };
        let tasks = ues.into_iter().enumerate().map(run).collect();
        Flows { stop, answers, tasks }
    }

    /// Waits until each UE has had some more answers.
    async fn go_on(&self, when: &str) {
        let counts = || self.answers.iter().map(|answers| answers.load(Relaxed)).collect::<Vec<_>>();
        let before = counts();
        let go_on = async {
            while !counts().iter().zip(&before).all(|(now, before)| *now >= before + 20) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(timeout(LIMIT, go_on).await.is_ok(), "{when}: {before:?}, {:?}", counts());
    }

    async fn stop(self) -> Vec<Ue> {
        self.stop.send(true).unwrap();
        let mut ues = Vec::new();
        for task in self.tasks {
            ues.push(task.await.unwrap());
        }
        ues
    }
}

/// Addresses and tunnels of the UPF's sessions, sorted.
async fn rules(world: &World) -> Vec<String> {
    let sessions = world.ask("upf", "/sessions").await;
    let of = |session: &Value| format!("{} {} {}", session["ipv4"], session["teids"], session["remote"]);
    let mut rules: Vec<String> = sessions.as_array().unwrap().iter().map(of).collect();
    rules.sort();
    rules
}

/// UEs with one session each, whose packets flow.
async fn flowing(world: &mut World, gnb: &simulator::Gnb) -> Flows {
    let mut ues = Vec::new();
    for index in 0..4 {
        let mut ue = world.ue(gnb, index);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        ues.push(ue);
    }
    let flows = Flows::start(ues);
    flows.go_on("at first").await;
    flows
}

/// TS 23.527 §4.3: a UPF that is killed under load and restarted has all its sessions again, with their
/// tunnels and addresses. Neither UEs nor gNBs do anything for it.
#[test]
fn flows_outlive_a_upf_that_is_killed() {
    network(processes, async |world| {
        let gnb = world.gnb(0).await;
        let flows = flowing(world, &gnb).await;
        for round in 0..2 {
            let before = rules(world).await;
            assert_eq!(before.len(), 4, "{before:?}");
            // Recovery time stamps count seconds: a restart within the second of the start looks like none.
            sleep(Duration::from_millis(1100)).await;
            world.lab.kill("upf").await.unwrap();
            world.lab.restart("upf").await.unwrap();
            flows.go_on(&format!("after death {round}")).await;
            assert_eq!(rules(world).await, before);
            // With Error Indications a gNB would release the sessions.
            let stats = world.ask("upf", "/stats").await;
            assert_eq!(stats["gtpu"]["error_indications_sent"], 0, "{stats}");
        }
        for mut ue in flows.stop().await {
            ue.release_session(id(1)).await.unwrap();
        }
        assert!(rules(world).await.is_empty());
    });
}

/// Flows continue after their SMF is killed, until it is back without its sessions. Then the sessions
/// are removed (TS 23.527 §4.2). The AMF notices and makes the UEs register, and they establish
/// sessions in another order than before. So a reference to an old session would now mean another UE's.
#[test]
fn flows_outlive_an_smf_until_it_is_back() {
    network(processes, async |world| {
        let gnb = world.gnb(0).await;
        let flows = flowing(world, &gnb).await;
        let before = rules(world).await;
        world.lab.kill("smf").await.unwrap();
        // Longer than the time in which heartbeats may be missing.
        for _ in 0..3 {
            sleep(Duration::from_secs(1)).await;
            flows.go_on("without SMF").await;
        }
        assert_eq!(rules(world).await, before);
        world.lab.restart("smf").await.unwrap();
        world.until("smf", "/status", associated).await;
        world.until("upf", "/sessions", |sessions| sessions.as_array().is_some_and(Vec::is_empty)).await;
        let mut ues = flows.stop().await;
        for ue in &mut ues {
            let occurred = timeout(LIMIT, ue.serve()).await.expect("told that its session is gone").unwrap();
            assert!(matches!(occurred, NetworkEvent::Released(_)), "{occurred:?}");
            ue.register().await.unwrap();
        }
        for at in [2, 0, 3, 1] {
            establish(&mut ues[at], 1).await.unwrap();
            ping(&mut ues[at], 1).await;
        }
        assert_eq!(rules(world).await.len(), 4);
        // Each UE releases its own session and no other.
        for at in [1, 3] {
            ues[at].deregister(false).await.unwrap();
        }
        world
            .until("upf", "/sessions", |sessions| sessions.as_array().is_some_and(|all| all.len() == 2))
            .await;
        for at in [0, 2] {
            ping(&mut ues[at], 1).await;
        }
    });
}

/// A PCF that restarts with another configuration is noticed: AMF and SMF make their associations again, and what it
/// decides now reaches sessions that exist. An AMF that restarts leaves no sessions behind: its UEs establish new ones.
#[test]
fn restarted_pcfs_decide_anew_and_restarted_amfs_leave_no_sessions() {
    network(processes, async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
        world.lab.kill("pcf").await.unwrap();
        let file = world.lab.configuration();
        let mut configuration: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        configuration["pcf"]["dnn"] =
            json!([{"name": "internet", "session_ambr": {"uplink": "30 Mbps", "downlink": "40 Mbps"}}]);
        std::fs::write(&file, configuration.to_string()).unwrap();
        world.lab.restart("pcf").await.unwrap();
        let changed = async {
            while world.ask("smf", "/sessions").await[0]["ambr_downlink"] != "40 Mbps" {
                ue.serve_until(net::time::now() + Duration::from_millis(50)).await.unwrap();
            }
        };
        timeout(LIMIT, changed).await.expect("the PCF's decision in force");
        let made_again = |counts: &Value| counts["am_policies"] == 1 && counts["sm_policies"] == 1;
        world.until("pcf", "/policies", made_again).await;
        ping(&mut ue, 1).await;
        ue.release_session(id(1)).await.unwrap();
        establish(&mut ue, 2).await.unwrap();
        world.until("pcf", "/policies", made_again).await;

        world.lab.kill("amf").await.unwrap();
        world.lab.restart("amf").await.unwrap();
        world.until("smf", "/sessions", |sessions| *sessions == json!([])).await;
        world.until("upf", "/sessions", |sessions| *sessions == json!([])).await;
        world.until("pcf", "/policies", |counts| counts["sm_policies"] == 0).await;
        let gnb = world.gnb(1).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        ping(&mut ue, 1).await;
    });
}

fn associated(status: &Value) -> bool {
    status["detail"]["upfs"].as_array().is_some_and(|upfs| upfs.iter().all(|upf| upf["associated"] == true))
}

#[test]
fn sbi_peers_that_are_down_or_slow_cost_one_procedure_and_no_more() {
    network(processes, async |world| {
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        for peer in ["udr", "ausf"] {
            world.lab.kill(peer).await.unwrap();
            let failure = timeout(LIMIT, world.ue(&gnb, 0).register()).await.unwrap().unwrap_err();
            assert!(matches!(failure, Failure::Rejected(_)), "{peer} down: {failure:?}");
            // Registered UEs are not affected.
            world.bystander_still_talks().await;
            world.lab.restart(if peer == "udr" { "udr" } else { "ausf" }).await.unwrap();
            recovers(world, &gnb).await;
        }

        // Slow: the process is stopped, its connections stay open.
        let udm = world.lab.processes().find(|(name, _)| *name == "udm").unwrap().1.to_string();
        signal("-STOP", &udm).await;
        let failure = timeout(LIMIT, world.ue(&gnb, 1).register()).await.unwrap().unwrap_err();
        assert!(matches!(failure, Failure::Rejected(_)), "a UDM that stands still: {failure:?}");
        world.bystander_still_talks().await;
        signal("-CONT", &udm).await;
        recovers(world, &gnb).await;
    });
}

async fn signal(name: &str, pid: &str) {
    let output = Command::new("kill").args([name, pid]).output(Duration::from_secs(5)).await.unwrap();
    assert!(output.status.success());
}

/// A UE can register again as soon as the other NFs have noticed that a peer is back.
async fn recovers(world: &mut World, gnb: &simulator::Gnb) {
    for _ in 0..20 {
        if world.ue(gnb, 2).register().await.is_ok() {
            return;
        }
        sleep(Duration::from_millis(500)).await;
    }
    panic!("nobody can register after the peer came back");
}
