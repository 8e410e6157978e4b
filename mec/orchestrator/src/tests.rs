//! Moves against the simulated edge: each kind, each failure, a kill at each point, and random sequences.

use serde_json::{Value, json};

use crate::model::Order;
use crate::sim::{Edge, FAILURES, Failure, GW1, GW9_USER, Sim, ask, base_station, do_move, id, settled};

fn ues(numbers: impl IntoIterator<Item = u32>) -> Value {
    numbers.into_iter().map(id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_go_to_a_host_to_another_and_back() {
    let sim = Sim::new(Edge::with_users(20)).await;
    let orchestrator = sim.orchestrator().await;
    let answer = ask(
        &orchestrator,
        "POST",
        "/v1/moves",
        Some(json!({"ues": ["10.45.0.2", id(3), "10.45.0.3"], "to": "edge1"})),
    )
    .await;
    assert_eq!((answer.status, answer.location.as_deref()), (202, Some("/v1/moves/1")));
    let one = ask(&orchestrator, "GET", "/v1/moves/1?wait=20", None).await.body;
    assert_eq!((&one["state"], &one["counts"]["moved"]), (&json!("done"), &json!(2)), "{one}");
    settled(&sim, &orchestrator, "to edge1").await;
    assert_eq!(sim.edge().anchor(2).as_deref(), Some("gw2"));
    assert_eq!(sim.edge().anchor(4).as_deref(), Some(GW1));

    // The user with two addresses goes as a whole; who is there already is no work.
    let one =
        do_move(&orchestrator, json!({"ues": ues([2, 3, 10]), "to": "edge2", "all_or_none": true})).await;
    assert_eq!(one["counts"]["moved"], 3);
    settled(&sim, &orchestrator, "to edge2").await;
    assert!(sim.edge().replicas.iter().all(|(anchor, _)| anchor == "gw3"), "state at edge1 is removed");
    let again = do_move(&orchestrator, json!({"ues": ues([2, 3, 10]), "to": "edge2"})).await;
    assert_eq!((&again["state"], &again["ues"][0]["why"]), (&json!("done"), &json!("it was there already")));

    let one = do_move(&orchestrator, json!({"from": "edge2", "to": "origin"})).await;
    assert_eq!((&one["to"], &one["counts"]["moved"]), (&json!("origin"), &json!(3)));
    settled(&sim, &orchestrator, "back").await;
    assert!(sim.edge().diversions.is_empty() && sim.edge().replicas.is_empty());

    let all = do_move(&orchestrator, json!({"from": GW1, "to": "edge1"})).await;
    assert_eq!(all["counts"]["moved"], 20);
    settled(&sim, &orchestrator, "everybody").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_can_be_there_before_the_move_and_after_it() {
    let sim = Sim::new(Edge::with_users(3)).await;
    let orchestrator = sim.orchestrator().await;
    let one = do_move(&orchestrator, json!({"ues": ues([2, 3]), "to": "edge1", "warm": true})).await;
    assert_eq!((&one["state"], &one["counts"]["warm"]), (&json!("done"), &json!(2)));
    settled(&sim, &orchestrator, "warm").await;
    assert!(sim.edge().diversions.is_empty() && sim.edge().replicas.len() == 2);
    // One is moved and comes back, the other stays warm. An undone move does not remove what was there before.
    do_move(&orchestrator, json!({"ues": ues([2]), "to": "edge1"})).await;
    sim.change(|edge| edge.divert_refuses = [3].into());
    let failed = do_move(&orchestrator, json!({"ues": ues([3]), "to": "edge1"})).await;
    assert_eq!(failed["state"], "failed", "{failed}");
    settled(&sim, &orchestrator, "one is moved, one fails").await;
    assert_eq!(sim.edge().replicas.len(), 2);
    do_move(&orchestrator, json!({"ues": ues([2]), "to": "origin", "warm": true})).await;
    settled(&sim, &orchestrator, "back, and warm").await;
    assert_eq!((sim.edge().replicas.len(), sim.edge().diversions.len()), (2, 0));
}

/// A naive move copies everybody. What is there of users whom it did not name goes when those that it has named have left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_a_naive_move() {
    let sim = Sim::new(Edge::with_users(6)).await;
    let orchestrator = sim.orchestrator().await;
    for back in [json!({"from": "edge1", "to": "origin"}), json!({"from": "edge1", "to": "edge2"})] {
        let there = json!({"ues": ues([2, 3]), "to": "edge1", "scheme": "naive"});
        assert_eq!(do_move(&orchestrator, there).await["counts"]["moved"], 2);
        assert_eq!(sim.edge().replicas.len(), 6);
        // One stays: so does all.
        do_move(&orchestrator, json!({"ues": ues([2]), "to": "origin"})).await;
        net::time::sleep(net::time::Duration::from_millis(100)).await;
        assert_eq!(sim.edge().replicas.len(), 5);
        do_move(&orchestrator, back).await;
        settled(&sim, &orchestrator, "nobody is at edge1").await;
        do_move(&orchestrator, json!({"ues": ues([3]), "to": "origin"})).await;
    }
}

/// What no waiting heals is not waited for: the move fails at once, with the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_agent_is_no_reason_to_wait() {
    let sim = Sim::new(Edge::with_users(3)).await;
    sim.change(|edge| edge.other_agent = true);
    let orchestrator = sim.orchestrator().await;
    let began = net::time::now();
    let one = do_move(&orchestrator, json!({"ues": ues([2]), "to": "edge1"})).await;
    assert!(net::time::now() - began < net::time::Duration::from_secs(5), "its time is not over");
    assert_eq!(one["state"], "failed", "{one}");
    assert_eq!(one["ues"][0]["why"], "copies at gw2 are made by another agent");
}

/// The controller knows a prepared request by its octets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_move_prepares_the_request_of_the_later_one() {
    let sim = Sim::new(Edge::with_users(5)).await;
    let orchestrator = sim.orchestrator().await;
    do_move(&orchestrator, json!({"ues": ues([4, 2, 3]), "to": "edge1", "warm": true})).await;
    assert!(sim.edge().diversions.is_empty());
    do_move(&orchestrator, json!({"ues": ues([2, 3, 4]), "to": "edge1"})).await;
    assert!(sim.edge().was_prepared && sim.edge().diversions.len() == 3);
    // Another request is another one.
    do_move(&orchestrator, json!({"ues": ues([5]), "to": "edge1"})).await;
    assert!(!sim.edge().was_prepared);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_be_moved_stays_and_is_reported() {
    let sim = Sim::new(Edge::with_users(60)).await;
    sim.change(|edge| (edge.clone_refuses, edge.divert_refuses) = ([3].into(), [5, 20].into()));
    let orchestrator = sim.orchestrator().await;
    let all_or_none = json!({"ues": ues(2..8), "to": "edge1", "all_or_none": true});
    let failed = do_move(&orchestrator, all_or_none).await;
    assert_eq!((&failed["state"], &failed["counts"]["stays"]), (&json!("failed"), &json!(6)), "{failed}");
    settled(&sim, &orchestrator, "all or none").await;
    assert!(sim.edge().replicas.is_empty());

    let some = do_move(
        &orchestrator,
        json!({"ues": ["10.45.0.2", "10.45.0.3", "10.45.0.5", "10.45.9.9"], "to": "edge1"}),
    )
    .await;
    assert_eq!((&some["state"], &some["counts"]["moved"]), (&json!("done"), &json!(1)), "{some}");
    assert_eq!(
        (&some["ues"][1]["why"], &some["ues"][3]["why"]),
        (&json!("the clone refuses"), &json!("no anchor has this user"))
    );
    settled(&sim, &orchestrator, "some").await;

    // edge1 has room for 50.
    let many = do_move(&orchestrator, json!({"from": GW1, "to": "edge1"})).await;
    assert_eq!(many["state"], "done", "{many}");
    assert!(many.to_string().contains("edge1 is full (key `capacity`: 50)"));
    settled(&sim, &orchestrator, "full").await;
    let refused = json!({"ues": ues(2..62), "to": "edge1", "all_or_none": true});
    assert_eq!(ask(&orchestrator, "POST", "/v1/moves", Some(refused)).await.status, 409);
    for (body, status) in [
        (json!({"ues": ["10.45.9.9"], "to": "edge1"}), 404),
        (json!({"ues": ["10.45.0.2"], "to": "edge9"}), 404),
        (json!({"to": "edge1"}), 400),
        (json!({"ues": [], "to": "edge1"}), 400),
        (json!({"ues": vec![id(2); 10_001], "to": "edge1"}), 413),
        // Nobody is asked for users of what is no original anchor: a host's anchor, or more than a name.
        (json!({"from": "gw7", "to": "edge1"}), 404),
        (json!({"from": "gw7", "to": "origin"}), 404),
        (json!({"from": "", "to": "origin"}), 404),
        (json!({"from": "gw2", "to": "origin"}), 404),
        (json!({"from": "gw1/ues?behind=5&x=", "to": "edge1"}), 404),
        (json!({"ues": ["10.45.0.2"], "from": "gw7", "to": "origin"}), 404),
        // Nobody is there.
        (json!({"from": "edge2", "to": "origin"}), 404),
        (json!({"ues": ["10.45.0.2"], "from": "edge1", "to": "edge1"}), 400),
    ] {
        assert_eq!(
            ask(&orchestrator, "POST", "/v1/moves", Some(body.clone())).await.status,
            status,
            "{body}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_moves_of_one_user_the_second_is_refused_and_a_move_can_be_undone() {
    let sim = Sim::new(Edge::with_users(4)).await;
    let orchestrator = sim.orchestrator().await;
    // The copying takes longer than the request for the second move.
    sim.fail(0, 5, Failure::Refused503);
    let first =
        ask(&orchestrator, "POST", "/v1/moves", Some(json!({"ues": ues([2, 3]), "to": "edge1"}))).await;
    let second =
        ask(&orchestrator, "POST", "/v1/moves", Some(json!({"ues": ues([3, 4]), "to": "edge2"}))).await;
    assert_eq!((first.status, second.status), (202, 409), "{}", second.body);
    assert!(second.body["detail"].as_str().unwrap().contains("/v1/moves/1"), "{}", second.body);
    assert_eq!(ask(&orchestrator, "DELETE", "/v1/hosts/edge1/anchor", None).await.status, 409);
    let undone = ask(&orchestrator, "DELETE", "/v1/moves/1", None).await;
    assert_eq!(undone.status, 202, "{}", undone.body);
    let one = ask(&orchestrator, "GET", "/v1/moves/1?wait=20", None).await.body;
    assert_eq!((&one["state"], &one["counts"]["stays"]), (&json!("aborted"), &json!(2)), "{one}");
    settled(&sim, &orchestrator, "undone").await;
    assert_eq!(ask(&orchestrator, "DELETE", "/v1/moves/1", None).await.status, 409);
    assert_eq!(ask(&orchestrator, "DELETE", "/v1/moves/7", None).await.status, 404);
    // Nobody is there, so the anchor may be stopped; and others' may not.
    assert_eq!(ask(&orchestrator, "DELETE", "/v1/hosts/edge1/anchor", None).await.body["running"], false);
    assert_eq!(ask(&orchestrator, "POST", "/v1/hosts/edge1/anchor", None).await.body["running"], true);
    assert_eq!(ask(&orchestrator, "DELETE", "/v1/hosts/edge2/anchor", None).await.status, 409);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_that_were_moved_are_looked_after() {
    let sim = Sim::new(Edge::with_users(5)).await;
    sim.change(|edge| edge.users.get_mut(&3).unwrap().base_station = None);
    let mut config = sim.config();
    config.hosts[0].retire_after_s = 1;
    let orchestrator = sim.orchestrator_with(config).await;
    let one = do_move(&orchestrator, json!({"ues": ues([2, 3, 4]), "to": "edge1"})).await;
    assert_eq!((&one["counts"]["moved"], &one["counts"]["waiting"]), (&json!(2), &json!(1)), "{one}");
    settled(&sim, &orchestrator, "one is idle").await;
    assert_eq!(sim.edge().anchor(3).as_deref(), Some(GW1));

    // It becomes active, another one changes its base station (DIV-4), a third is gone.
    sim.change(|edge| {
        edge.users.get_mut(&3).unwrap().base_station = Some(base_station(1));
        edge.users.get_mut(&2).unwrap().base_station = Some(base_station(7));
        edge.users.remove(&4);
    });
    net::time::sleep(net::time::Duration::from_millis(300)).await;
    settled(&sim, &orchestrator, "looked after").await;
    let edge = sim.edge();
    assert_eq!(edge.anchor(3).as_deref(), Some("gw2"));
    assert_eq!(edge.diversions["gw1~10.45.0.2"]["base_station"], "10.0.0.7");
    assert!(!edge.diversions.contains_key("gw1~10.45.0.4"));

    // An operator gives one back by the controller; the controller forgets replicas; then the anchor dies.
    sim.change(|edge| _ = edge.diversions.remove("gw1~10.45.0.2"));
    net::time::sleep(net::time::Duration::from_millis(100)).await;
    settled(&sim, &orchestrator, "given back by others").await;
    assert_eq!(sim.edge().replicas.len(), 1);
    sim.change(|edge| edge.replicas.clear());
    net::time::sleep(net::time::Duration::from_millis(100)).await;
    settled(&sim, &orchestrator, "forgotten").await;
    sim.change(|edge| {
        edge.alive.remove("gw2");
        edge.running.clear();
        edge.replicas.clear();
    });
    net::time::sleep(net::time::Duration::from_millis(100)).await;
    settled(&sim, &orchestrator, "dead").await;
    assert!(sim.edge().diversions.is_empty());

    // It is started again by the next move, and stopped when the last user has left.
    do_move(&orchestrator, json!({"ues": ues([2]), "to": "edge1"})).await;
    do_move(&orchestrator, json!({"ues": ues([2]), "to": "origin"})).await;
    assert!(sim.edge().running.contains("edge1"));
    net::time::sleep(net::time::Duration::from_millis(1500)).await;
    assert!(!sim.edge().running.contains("edge1"), "retired");
}

/// A user that attaches again gets another address: nothing is left of the former one, whoever names the user how.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_that_attach_again_are_diverted_at_their_new_address() {
    let sim = Sim::new(Edge::with_users(3)).await;
    let orchestrator = sim.orchestrator().await;
    do_move(&orchestrator, json!({"ues": ues([2, 3]), "to": "edge1"})).await;
    sim.change(|edge| edge.attaches_again(2));
    net::time::sleep(net::time::Duration::from_millis(200)).await;
    settled(&sim, &orchestrator, "attached again").await;
    let edge = sim.edge();
    assert_eq!((edge.anchor(2).as_deref(), edge.anchor(3).as_deref()), (Some("gw2"), Some("gw2")));
    // Before a look has seen it.
    sim.change(|edge| edge.attaches_again(3));
    do_move(&orchestrator, json!({"ues": ues([2, 3]), "to": "origin"})).await;
    settled(&sim, &orchestrator, "back").await;
    assert!(sim.edge().diversions.is_empty() && sim.edge().replicas.is_empty());
    do_move(&orchestrator, json!({"ues": ues([3]), "to": "edge1", "warm": true})).await;
    sim.change(|edge| edge.attaches_again(3));
    do_move(&orchestrator, json!({"ues": ues([3]), "to": "edge1"})).await;
    settled(&sim, &orchestrator, "there").await;
    assert_eq!(sim.edge().anchor(3).as_deref(), Some("gw2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_follow_their_base_station() {
    let sim = Sim::new(Edge::with_users(3)).await;
    let orchestrator = sim.orchestrator().await;
    do_move(&orchestrator, json!({"ues": ues([2]), "to": "edge1", "follow": true})).await;
    do_move(&orchestrator, json!({"ues": ues([3]), "to": "edge1"})).await;
    sim.change(|edge| edge.users.values_mut().for_each(|user| user.base_station = Some(base_station(2))));
    net::time::sleep(net::time::Duration::from_millis(400)).await;
    settled(&sim, &orchestrator, "follows").await;
    let edge = sim.edge();
    assert_eq!((edge.anchor(2).as_deref(), edge.anchor(3).as_deref()), (Some("gw3"), Some("gw2")));
    assert_eq!(edge.diversions["gw1~10.45.0.3"]["base_station"], "10.0.0.2");
    // And back at once.
    sim.change(|edge| edge.users.values_mut().for_each(|user| user.base_station = Some(base_station(1))));
    net::time::sleep(net::time::Duration::from_millis(400)).await;
    settled(&sim, &orchestrator, "follows back").await;
    assert_eq!(sim.edge().anchor(2).as_deref(), Some("gw2"));
}

/// What is done before, and the move that is killed.
fn scenarios() -> Vec<(&'static str, Vec<Value>, Value)> {
    let to = |host: &str| json!({"ues": ues([2, 3, 10]), "to": host});
    let mut all_or_none = to("edge1");
    all_or_none["all_or_none"] = json!(true);
    let mut warm = to("edge1");
    warm["warm"] = json!(true);
    vec![
        ("to a host", vec![], to("edge1")),
        ("all or none", vec![], all_or_none),
        ("to another host", vec![to("edge2")], to("edge1")),
        ("back", vec![to("edge1")], to("origin")),
        ("warm", vec![], warm.clone()),
        ("from warm", vec![warm], to("edge1")),
    ]
}

/// Begins a new life at every point of a run, and checks what it comes to.
async fn kill_everywhere(name: &str, sim: &Sim) -> usize {
    let points = sim.points();
    let count = points.len();
    let mut lives = tokio::task::JoinSet::new();
    for point in points {
        let context = format!("{name}, killed {}", point.call);
        lives.spawn(async move {
            let sim = Sim::at(&point).await;
            let orchestrator = sim.orchestrator().await;
            settled(&sim, &orchestrator, &context).await;
        });
        if lives.len() >= 8 {
            lives.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(done) = lives.join_next().await {
        done.unwrap();
    }
    count
}

async fn run(sim: &Sim, before: &[Value], body: Value, failure: Option<(usize, usize, Failure)>) {
    let orchestrator = sim.orchestrator().await;
    for body in before {
        do_move(&orchestrator, body.clone()).await;
    }
    crate::core::lock(&sim.inner).moments.clear();
    if let Some((after, count, failure)) = failure {
        sim.fail(after, count, failure);
    }
    do_move(&orchestrator, body).await;
    settled(sim, &orchestrator, &format!("{failure:?}")).await;
}

/// Every kind of move, killed at every point.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_kill_at_any_point_leaves_users_wholly_on_one_anchor() {
    let mut count = 0;
    for (name, before, body) in scenarios() {
        let sim = Sim::new(Edge::with_users(9)).await;
        run(&sim, &before, body, None).await;
        count += kill_everywhere(name, &sim).await;
    }
    assert!(count > 50, "{count} points");
}

/// Every kind of move with every failure at its first calls, once and for a while, killed at every point of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_failure_and_a_kill_leave_users_wholly_on_one_anchor() {
    let mut runs = tokio::task::JoinSet::new();
    let mut count = 0;
    for (name, before, body) in scenarios() {
        for failure in FAILURES {
            for (call, times) in [(0, 1), (1, 1), (0, 60)] {
                let (before, body) = (before.clone(), body.clone());
                runs.spawn(async move {
                    let sim = Sim::new(Edge::with_users(9)).await.hasty();
                    run(&sim, &before, body, Some((call, times, failure))).await;
                    // Repeated failures have many points of the same kind.
                    if times > 1 {
                        return 0;
                    }
                    kill_everywhere(&format!("{name}, {failure:?} at call {call}"), &sim).await
                });
                // The runs wait most of the time.
                if runs.len() >= 4 {
                    count += runs.join_next().await.unwrap().unwrap();
                }
            }
        }
    }
    count += runs.join_all().await.into_iter().sum::<usize>();
    assert!(count > 1000, "{count} points");
}

/// A step of a random sequence.
#[derive(Debug, Clone)]
enum Step {
    Move { users: Vec<u32>, to: &'static str, warm: bool, all_or_none: bool, wait: bool },
    Fail(usize, Failure),
    Kill,
    Undo,
    Refuse(u32),
    Dies,
    Handover(u32, Option<u8>),
    Again(u32),
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    use proptest::prelude::*;
    let users = proptest::collection::vec(2..11u32, 1..5);
    let to = prop_oneof![Just("edge1"), Just("edge2"), Just("origin")];
    prop_oneof![
        6 => (users, to, any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(users, to, warm, all_or_none, wait)| Step::Move { users, to, warm, all_or_none, wait }),
        3 => (0..3usize, 0..FAILURES.len()).prop_map(|(call, at)| Step::Fail(call, FAILURES[at])),
        3 => Just(Step::Kill),
        1 => Just(Step::Undo),
        1 => (2..11u32).prop_map(Step::Refuse),
        1 => Just(Step::Dies),
        1 => (2..11u32).prop_map(Step::Again),
        2 => (2..11u32, proptest::option::of(1..4u8)).prop_map(|(user, station)| Step::Handover(user, station)),
    ]
}

async fn follow_steps(steps: &[Step]) {
    let sim = Sim::new(Edge::with_users(9)).await.hasty();
    let mut orchestrator = Some(sim.orchestrator().await);
    for step in steps {
        let now = orchestrator.as_ref().unwrap();
        match step {
            Step::Move { users, to, warm, all_or_none, wait } => {
                let body = json!({"ues": ues(users.clone()), "to": to, "warm": warm, "all_or_none": all_or_none, "follow": users.len() == 1});
                let path = if *wait { "/v1/moves?wait=10" } else { "/v1/moves" };
                let answer = ask(now, "POST", path, Some(body)).await;
                assert!(answer.status != 500, "{}", answer.body);
            }
            Step::Fail(call, failure) => sim.fail(*call, 1, *failure),
            Step::Kill => {
                drop(orchestrator.take());
                orchestrator = Some(sim.orchestrator().await);
            }
            Step::Undo => {
                let moves = ask(now, "GET", "/v1/moves", None).await.body;
                if let Some(id) = moves["moves"].as_array().unwrap().last().map(|one| one["id"].clone()) {
                    ask(now, "DELETE", &format!("/v1/moves/{id}"), None).await;
                }
            }
            Step::Refuse(user) => sim.change(|edge| {
                if !edge.clone_refuses.insert(*user) {
                    edge.clone_refuses.clear();
                }
                // It has no state of who it refuses.
                let refused = edge.clone_refuses.clone();
                edge.replicas.retain(|(_, user)| !refused.contains(user));
            }),
            Step::Dies => sim.fail(0, 1, Failure::TargetDies),
            Step::Again(user) => sim.change(|edge| edge.attaches_again(*user)),
            Step::Handover(user, station) => sim.change(|edge| {
                edge.users.get_mut(user).unwrap().base_station = station.map(base_station);
            }),
        }
    }
    settled(&sim, orchestrator.as_ref().unwrap(), &format!("{steps:?}")).await;
}

#[test]
fn random_sequences_leave_users_wholly_on_one_anchor() {
    use proptest::prelude::*;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let config = ProptestConfig {
        cases: 40,
        max_shrink_iters: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(steps in proptest::collection::vec(step(), 1..12))| {
        runtime.block_on(async {
            // A panic of a task is shown, and fails the case.
            tokio::spawn(async move { follow_steps(&steps).await }).await
        }).map_err(|error| TestCaseError::fail(error.to_string()))?;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_with_users_stays_configured() {
    let sim = Sim::new(Edge::with_users(3)).await;
    let orchestrator = sim.orchestrator().await;
    do_move(&orchestrator, json!({"ues": ues([2]), "to": "edge1"})).await;
    drop(orchestrator);
    drop(sim.orchestrator().await);
    let mut config = sim.config();
    config.hosts.remove(0);
    let drivers = crate::driver::Drivers::new(crate::driver::External);
    let refused = crate::Orchestrator::start_with(config, drivers).await;
    assert!(matches!(refused, Err(crate::StartError::UnknownHost { host, .. }) if host == "edge1"));
}

/// All users are listed only if all are meant, neither for moves of some nor by looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_that_are_named_are_looked_up() {
    let sim = Sim::new(Edge::with_users(20)).await;
    let orchestrator = sim.orchestrator().await;
    do_move(&orchestrator, json!({"ues": ["10.45.0.2", id(3)], "to": "edge1", "follow": true})).await;
    do_move(&orchestrator, json!({"ues": [id(3)], "from": GW1, "to": "edge2"})).await;
    sim.change(|edge| edge.users.get_mut(&2).unwrap().base_station = Some(base_station(2)));
    net::time::sleep(net::time::Duration::from_millis(200)).await;
    settled(&sim, &orchestrator, "follows").await;
    assert_eq!(sim.edge().anchor(2).as_deref(), Some("gw3"));
    do_move(&orchestrator, json!({"from": "edge2", "to": "edge1"})).await;
    do_move(&orchestrator, json!({"from": "edge1", "to": "origin"})).await;
    assert_eq!(sim.edge().lists, 0);
    do_move(&orchestrator, json!({"from": GW1, "to": "edge1"})).await;
    assert_eq!(sim.edge().lists, 1);
}

/// Names that no anchor knows: each once, a hundred of them in the move, a few in a refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_names_are_few() {
    let sim = Sim::new(Edge::with_users(3)).await;
    let orchestrator = sim.orchestrator().await;
    let unknown = (0..150).map(|number| format!("imsi-x{number}"));
    let mut names: Vec<String> = unknown.collect();
    let refused = ask(&orchestrator, "POST", "/v1/moves", Some(json!({"ues": names, "to": "edge1"}))).await;
    assert_eq!(refused.status, 404);
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.ends_with("imsi-x3, imsi-x4 and 145 more"), "{detail}");
    names.extend([id(2), "10.45.0.2".to_owned(), "x".repeat(100_000)]);
    names.extend(names.clone());
    let one = do_move(&orchestrator, json!({"ues": names, "to": "edge1"})).await;
    assert_eq!((&one["counts"]["moved"], &one["counts"]["stays"]), (&json!(1), &json!(151)), "{one}");
    assert_eq!(one["ues"].as_array().unwrap().len(), 101);
    assert!(one.to_string().len() < 20_000);
    // The journal knows it as well.
    drop(orchestrator);
    let orchestrator = sim.orchestrator().await;
    assert_eq!(ask(&orchestrator, "GET", "/v1/moves/1", None).await.body["counts"]["stays"], 151);
}

/// The agent of a host serves users of one original anchor: those of another one stay, at once, and the others are moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_of_an_original_that_a_host_cannot_have_stay() {
    let sim = Sim::new(Edge::with_users(3)).await;
    let orchestrator = sim.orchestrator().await;
    let request =
        |all_or_none: bool| json!({"ues": [id(2), id(GW9_USER)], "to": "edge1", "all_or_none": all_or_none});
    let began = net::time::now();
    let one = do_move(&orchestrator, request(false)).await;
    assert_eq!((&one["state"], &one["counts"]["moved"]), (&json!("done"), &json!(1)), "{one}");
    assert_eq!(
        (&one["ues"][1]["state"], &one["ues"][1]["why"]),
        (&json!("stays"), &json!("the agent serves gw1"))
    );
    let all = do_move(&orchestrator, request(true)).await;
    assert_eq!((&all["state"], &all["counts"]["moved"]), (&json!("failed"), &json!(1)), "{all}");
    assert!(net::time::now() - began < net::time::Duration::from_secs(8), "it was tried again");
    settled(&sim, &orchestrator, "of one original").await;
    assert_eq!(sim.edge().anchor(2).as_deref(), Some("gw2"));
}

/// What the move asked for holds for what follows of it, unless the old anchor is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_a_move_is_kept_later_on() {
    let sim = Sim::new(Edge::with_users(3)).await;
    sim.change(|edge| edge.users.get_mut(&3).unwrap().base_station = None);
    let orchestrator = sim.orchestrator().await;
    let request = json!({"ues": ues([2, 3]), "to": "edge1", "order": "keep", "follow": true});
    do_move(&orchestrator, request).await;
    // One becomes active, which is diverted anew.
    sim.change(|edge| {
        edge.in_order = false;
        edge.users.get_mut(&3).unwrap().base_station = Some(base_station(7));
    });
    net::time::sleep(net::time::Duration::from_millis(200)).await;
    settled(&sim, &orchestrator, "active").await;
    assert!(sim.edge().in_order && sim.edge().anchor(3).as_deref() == Some("gw2"));
    // The other one follows its base station.
    sim.change(|edge| {
        edge.in_order = false;
        edge.users.get_mut(&2).unwrap().base_station = Some(base_station(2));
    });
    net::time::sleep(net::time::Duration::from_millis(200)).await;
    settled(&sim, &orchestrator, "follows").await;
    assert!(sim.edge().in_order && sim.edge().anchor(2).as_deref() == Some("gw3"));
    let core = &orchestrator.core;
    let users: Vec<_> = core.state().users.values().cloned().collect();
    let orders = |alive: &[&str]| {
        let alive = alive.iter().map(|name| (*name).to_owned()).collect();
        let all = crate::look::by_order(core, users.clone(), &alive);
        all.into_iter().map(|(order, users)| (order, users.len())).collect::<Vec<_>>()
    };
    assert_eq!(orders(&[GW1, "gw2", "gw3"]), [(Order::Keep, 2)]);
    assert_eq!(orders(&[GW1, "gw2"]), [(Order::None, 1), (Order::Keep, 1)]);
}

/// Answers that wait leave connections for others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_wait_some_are_answered_at_once() {
    let sim = Sim::new(Edge::with_users(3)).await;
    let orchestrator = std::sync::Arc::new(sim.orchestrator().await);
    sim.fail(0, 10_000, Failure::Refused503);
    ask(&orchestrator, "POST", "/v1/moves", Some(json!({"ues": [id(2)], "to": "edge1"}))).await;
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let orchestrator = orchestrator.clone();
        waiting.spawn(async move { ask(&orchestrator, "GET", "/v1/moves/1?wait=240", None).await.body });
    }
    for _ in 0..8 {
        assert_eq!(waiting.join_next().await.unwrap().unwrap()["ended"], false);
    }
    assert_eq!(ask(&orchestrator, "DELETE", "/v1/moves/1", None).await.status, 202);
    sim.fail(0, 0, Failure::Refused503);
    while let Some(answer) = waiting.join_next().await {
        assert_eq!(answer.unwrap()["state"], "aborted");
    }
}

/// A request that was read is done, also if nobody waits for the answer: half of it would be in the journal only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_leaves_a_whole_move() {
    let sim = Sim::new(Edge::with_users(3)).await;
    let orchestrator = sim.orchestrator().await;
    let turn = orchestrator.core.turn.lock().await;
    let body = json!({"ues": [id(2)], "to": "edge1"});
    let limit = net::time::Duration::from_millis(300);
    nf::rest::call(limit, orchestrator.rest(), "POST", "/v1/moves", Some(&body)).await.unwrap_err();
    net::time::sleep(limit).await;
    drop(turn);
    let one = ask(&orchestrator, "GET", "/v1/moves/1?wait=20", None).await;
    // It is made a moment later.
    let one = if one.status == 404 {
        net::time::sleep(limit).await;
        ask(&orchestrator, "GET", "/v1/moves/1?wait=20", None).await
    } else {
        one
    };
    assert_eq!(one.body["counts"]["moved"], 1, "{}", one.body);
}
