//! The state machine of a move: one function for each stage.
//!
//! ```text
//!  Starting ─► Replicating ─► Diverting ─► Tidying ─► Done        to an edge host
//!     │             │             │
//!     └─────────────┴─────────────┴──► RollingBack ─► Failed, Aborted
//!                   └──────────────────► Tidying      only state is moved (`warm`)
//!  Returning ─► Tidying ─► Done                                   to the original anchors
//! ```
//! A stage is in the journal before it begins, and can be repeated from its beginning: the controller and the drivers do nothing twice.
//! So a new life of the orchestrator goes on with the stage that it finds. What a stage has learned but not recorded (diversions ready to
//! be posted) it asks for again.
//!
//! The flip is one request, which the controller does as a whole. When its answer is lost, [`settle`] asks the controller who is
//! diverted, and goes on from there: forward if the target lives, else back. A user is back when its diversion is gone; only then its
//! state at the target is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use crate::config::Host;
use crate::controller::{CallFailed, Diverted, Replica};
use crate::core::{Core, GivenUp};
use crate::model::{Change, Fate, Key, Move, Moving, Stage, State, User, diversion_ids, learn};

/// Most single users that are looked for in a request that the controller refuses.
const MAX_REFUSED: usize = 64;

/// The users' diversions; none of a user who is idle.
type Ready = BTreeMap<Key, Vec<Value>>;

/// Carries a move to its end.
pub(crate) async fn run(core: Arc<Core>, id: u64) {
    let mut ready = None;
    while let Some(one) = core.move_of(id) {
        // Hosts in the journal are configured, or the orchestrator does not start.
        let target = one.to.as_ref().and_then(|name| core.host(name));
        match (one.state, target) {
            (Stage::Done | Stage::Failed | Stage::Aborted, _) => return,
            (Stage::Starting, Some(host)) => start(&core, &one, host).await,
            (Stage::Replicating, Some(host)) => ready = replicate(&core, &one, host).await,
            (Stage::Diverting, Some(host)) => divert(&core, &one, host, ready.take()).await,
            (Stage::RollingBack, Some(host)) => roll_back(&core, &one, host).await,
            (Stage::Tidying, _) => {
                tidy(&core, &one).await;
                core.record_move(id, |one| one.enter(Stage::Done, summary(one))).await;
            }
            (Stage::Returning, _) | (_, None) => give_back(&core, &one).await,
        }
    }
}

fn summary(one: &Move) -> String {
    let all = [
        (one.count(Fate::Moved), "moved"),
        (one.count(Fate::Waiting), "idle, moved when active"),
        (one.count(Fate::Warm), "copied"),
        (one.count(Fate::Stays), "stay"),
    ];
    all.iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Starts the target's anchor, and waits until it answers.
async fn start(core: &Core, one: &Move, host: &Host) {
    let limit = Some(core.config.times.start_ms);
    let started = core.repeat(limit, Some(one.id), || async {
        core.drivers.of(host).start(host).await.map_err(|error| CallFailed::NotNow(error.to_string()))?;
        if core.controller.alive().await?.contains(&host.anchor) {
            return Ok(());
        }
        Err(CallFailed::NotNow(format!("`{}` does not answer GTP-U Echo at any switch", host.anchor)))
    });
    match started.await {
        Ok(()) => core.record_move(one.id, |one| one.enter(Stage::Replicating, "the anchor answers")).await,
        Err(given_up) => fail(core, one.id, given_up).await,
    }
}

async fn fail(core: &Core, id: u64, given_up: GivenUp) {
    let why = given_up.why();
    core.record_move(id, |one| one.enter(Stage::RollingBack, &why)).await;
}

/// Pending users by their original anchor.
pub(crate) fn by_origin<'a>(
    users: impl Iterator<Item = &'a Moving>,
) -> BTreeMap<String, Vec<(String, Vec<IpAddr>)>> {
    let mut groups: BTreeMap<String, Vec<(String, Vec<IpAddr>)>> = BTreeMap::new();
    for user in users {
        groups.entry(user.origin.clone()).or_default().push((user.id.clone(), user.addresses.clone()));
    }
    groups
}

/// Copies the pending users' state to the target.
async fn copy(core: &Core, one: &Move, host: &Host) -> Result<BTreeMap<Key, Replica>, GivenUp> {
    let mut all = BTreeMap::new();
    for (origin, users) in by_origin(one.pending()) {
        let limit = Some(core.config.times.replicate_ms);
        let call = || core.controller.replicate(&origin, host, &users, one.scheme);
        all.extend(core.repeat(limit, Some(one.id), call).await?);
    }
    Ok(all)
}

/// Divides the answer: users that have a replica, with their diversions, and others with the reason.
fn divide(replicas: BTreeMap<Key, Replica>) -> (Ready, BTreeMap<Key, String>) {
    let (mut ready, mut refused) = (Ready::new(), BTreeMap::new());
    for (key, replica) in replicas {
        match replica {
            Replica::There(diversions) => _ = ready.insert(key, diversions),
            Replica::Refused(why) => _ = refused.insert(key, why),
        }
    }
    (ready, refused)
}

fn stay(one: &mut Move, refused: &BTreeMap<Key, String>) {
    for user in one.users.iter_mut().filter(|user| user.state == Fate::Pending) {
        if let Some(why) = refused.get(&user.key()) {
            (user.state, user.why) = (Fate::Stays, Some(why.clone()));
        }
    }
}

async fn replicate(core: &Core, one: &Move, host: &Host) -> Option<Ready> {
    let (ready, refused) = match copy(core, one, host).await {
        Ok(replicas) => divide(replicas),
        Err(given_up) => {
            fail(core, one.id, given_up).await;
            return None;
        }
    };
    let first = refused.iter().next().map(|((_, id), why)| format!("{id}: {why}"));
    if ready.is_empty() || (one.all_or_none && !refused.is_empty()) {
        let why = first.unwrap_or_else(|| "there is nobody to move".to_owned());
        core.record(|state| {
            changed(
                state,
                one.id,
                |one| {
                    stay(one, &refused);
                    one.enter(Stage::RollingBack, &why);
                },
                |_, _| (),
            )
        })
        .await;
        return None;
    }
    let next = if one.warm { Stage::Tidying } else { Stage::Diverting };
    core.record(|state| {
        changed(
            state,
            one.id,
            |one| {
                stay(one, &refused);
                if one.warm {
                    one.users
                        .iter_mut()
                        .filter(|user| user.state == Fate::Pending)
                        .for_each(|user| user.state = Fate::Warm);
                }
                let refused =
                    if refused.is_empty() { String::new() } else { format!(", {} refused", refused.len()) };
                one.enter(next, format!("the state of {} users is there{refused}", ready.len()));
            },
            |_, user| {
                if ready.contains_key(&user.key()) {
                    let kept = user.replicas.entry(host.name.clone()).or_default();
                    *kept |= one.warm;
                }
            },
        )
    })
    .await;
    if one.warm {
        prepare(core, &ready).await;
    }
    Some(ready)
}

/// Has the controller prepare the diversions that would move all of these users at once. It changes nothing, so whatever becomes of it is as well.
async fn prepare(core: &Core, ready: &Ready) {
    let diversions = all_of(ready.values());
    if diversions.is_empty() {
        return;
    }
    if let Err(why) = core.controller.prepare(&diversions).await {
        tracing::debug!(%why, "a later move of these users is not prepared");
    }
}

/// The content of a request, which is the same for the same users.
fn all_of<'a>(ready: impl Iterator<Item = &'a Vec<Value>>) -> Vec<Value> {
    ready.flatten().cloned().collect()
}

/// A change of a move and of its users' records.
fn changed(
    state: &State,
    id: u64,
    of_move: impl Fn(&mut Move),
    of_user: impl Fn(&Moving, &mut User),
) -> Change {
    let Some(mut one) = state.moves.get(&id).cloned() else { return Change::default() };
    of_move(&mut one);
    let of = |moving: &Moving| {
        let before = state.user(moving);
        let mut after = before.clone();
        learn(&mut after.addresses, moving.addresses.iter().copied());
        of_user(moving, &mut after);
        (after != before).then_some(after)
    };
    let users = one.users.iter().filter_map(of).collect();
    Change { moves: vec![one], users }
}

/// Steers the users' packets to the target.
async fn divert(core: &Core, one: &Move, host: &Host, ready: Option<Ready>) {
    let ready = match ready {
        Some(ready) => Ok(ready),
        // The answer to the copying was lost with an earlier life.
        None => copy(core, one, host).await.map(|replicas| divide(replicas).0),
    };
    let mut ready = match ready {
        Ok(ready) => ready,
        Err(given_up) => return settle(core, one.id, host, given_up).await,
    };
    let pending: BTreeSet<Key> = one.pending().map(Moving::key).collect();
    ready.retain(|key, _| pending.contains(key));
    if one.all_or_none && ready.len() < pending.len() {
        let why = "the target has lost some users' state";
        return settle(core, one.id, host, GivenUp::Refused(why.to_owned())).await;
    }
    learn_addresses(core, one, &ready).await;
    let refused = match flip(core, one, &ready).await {
        Ok(refused) => refused,
        Err(given_up) => return settle(core, one.id, host, given_up).await,
    };
    let mut missing = refused;
    for key in pending.iter().filter(|key| !ready.contains_key(*key)) {
        missing.insert(key.clone(), "the target has lost this user's state".to_owned());
    }
    let idle: BTreeSet<&Key> =
        ready.iter().filter(|(_, diversions)| diversions.is_empty()).map(|(key, _)| key).collect();
    if missing.len() == pending.len() {
        let why = missing.values().next().cloned().unwrap_or_default();
        return settle(core, one.id, host, GivenUp::Refused(why)).await;
    }
    core.record(|state| moved(state, one.id, host, &missing, &idle, "diverted")).await;
}

/// Users that have attached again meanwhile have other addresses: what is diverted must be known, to be undiverted one day.
async fn learn_addresses(core: &Core, one: &Move, ready: &Ready) {
    let of = |key: &Key| {
        let diversions = ready.get(key).into_iter().flatten();
        diversions.filter_map(|one| one["ue"].as_str()?.parse::<IpAddr>().ok()).collect::<Vec<_>>()
    };
    let is_new = |user: &Moving| of(&user.key()).iter().any(|address| !user.addresses.contains(address));
    if !one.pending().any(is_new) {
        return;
    }
    let of_move = |one: &mut Move| {
        for user in &mut one.users {
            let addresses = of(&user.key());
            learn(&mut user.addresses, addresses);
        }
    };
    core.record(|state| changed(state, one.id, of_move, |_, _| ())).await;
}

/// The change when users are at the target.
fn moved(
    state: &State,
    id: u64,
    host: &Host,
    missing: &BTreeMap<Key, String>,
    idle: &BTreeSet<&Key>,
    detail: &str,
) -> Change {
    let Some(before) = state.moves.get(&id) else { return Change::default() };
    let pending: BTreeSet<Key> = before.pending().map(Moving::key).collect();
    let is_moved = |key: &Key| pending.contains(key) && !missing.contains_key(key);
    changed(
        state,
        id,
        |one| {
            stay(one, missing);
            for user in one.users.iter_mut().filter(|user| user.state == Fate::Pending) {
                user.state = if idle.contains(&user.key()) { Fate::Waiting } else { Fate::Moved };
            }
            one.enter(Stage::Tidying, detail);
        },
        |moving, user| {
            let key = moving.key();
            if !is_moved(&key) {
                return;
            }
            let name = Some(host.name.clone());
            // An idle user stays diverted to where it was until it is active.
            (user.on, user.waits_for) =
                if idle.contains(&key) { (user.on.take(), name) } else { (name, None) };
            (user.follow, user.order) = (before.follow, before.order);
            user.place = moving.place.clone();
            user.replicas.insert(host.name.clone(), false);
        },
    )
}

/// Posts the diversions: in one request, unless the controller refuses some of them. Gives those that it refuses.
async fn flip(core: &Core, one: &Move, ready: &Ready) -> Result<BTreeMap<Key, String>, GivenUp> {
    let mut refused = BTreeMap::new();
    let active: Vec<(&Key, &Vec<Value>)> =
        ready.iter().filter(|(_, diversions)| !diversions.is_empty()).collect();
    let mut parts = vec![&active[..]];
    while let Some(part) = parts.pop() {
        let diversions = all_of(part.iter().map(|(_, diversions)| *diversions));
        if diversions.is_empty() {
            continue;
        }
        let call = || core.controller.divert(&diversions, one.order);
        match core.repeat(Some(core.config.times.divert_ms), Some(one.id), call).await {
            Ok(_) => {}
            Err(GivenUp::Refused(why)) if !one.all_or_none => {
                if part.len() > 1 && refused.len() < MAX_REFUSED {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                } else {
                    refused.extend(part.iter().map(|(key, _)| ((*key).clone(), why.clone())));
                }
            }
            Err(given_up) => return Err(given_up),
        }
    }
    Ok(refused)
}

/// To which anchors a user is diverted; one entry for each of its addresses that is.
pub(crate) fn diverted_to<'a>(
    truth: &'a BTreeMap<String, Diverted>,
    origin: &'a str,
    addresses: &'a [IpAddr],
) -> Vec<&'a Diverted> {
    diversion_ids(origin, addresses).filter_map(|id| truth.get(&id)).collect()
}

/// Whether a user is wholly on an anchor. All its diversions are in one request, so either all of them are there or none.
fn is_wholly_on(truth: &BTreeMap<String, Diverted>, user: &Moving, anchor: &str) -> bool {
    let found = diverted_to(truth, &user.origin, &user.addresses);
    !found.is_empty() && found.iter().all(|one| one.to == anchor)
}

/// The flip failed, or its answer is lost: asks who is diverted. Forward if that is somebody, and the target lives; else back.
async fn settle(core: &Core, id: u64, host: &Host, given_up: GivenUp) {
    let abort = given_up == GivenUp::Abort;
    let why = given_up.why();
    let (truth, alive) = core
        .insist(|| async { Ok((core.controller.diversions().await?, core.controller.alive().await?)) })
        .await;
    core.record(|state| {
        let Some(one) = state.moves.get(&id) else { return Change::default() };
        let pending: Vec<&Moving> = one.pending().collect();
        let is_there = |user: &&&Moving| is_wholly_on(&truth, user, &host.anchor);
        let there = pending.iter().filter(is_there).count();
        let is_partly = |user: &&Moving| {
            let found = diverted_to(&truth, &user.origin, &user.addresses);
            found.iter().any(|one| one.to == host.anchor) && !is_wholly_on(&truth, user, &host.anchor)
        };
        let is_whole = there == pending.len() || !(one.all_or_none || pending.iter().any(is_partly));
        if there == 0 || !is_whole || abort || one.abort || !alive.contains(&host.anchor) {
            return changed(state, id, |one| one.enter(Stage::RollingBack, &why), |_, _| ());
        }
        let missing = pending.iter().filter(|user| !is_wholly_on(&truth, user, &host.anchor));
        let missing = missing.map(|user| (user.key(), why.clone())).collect();
        moved(state, id, host, &missing, &BTreeSet::new(), &format!("diverted, although: {why}"))
    })
    .await;
}

/// Undoes what was done: first the diversions, then the state at the target.
async fn roll_back(core: &Core, one: &Move, host: &Host) {
    let truth = core.insist(|| core.controller.diversions()).await;
    let at_target = |user: &Moving| {
        diverted_to(&truth, &user.origin, &user.addresses).iter().any(|one| one.to == host.anchor)
    };
    let back: Vec<&Moving> = one.pending().filter(|user| at_target(user)).collect();
    let ids: Vec<String> =
        back.iter().flat_map(|user| diversion_ids(&user.origin, &user.addresses)).collect();
    if !ids.is_empty() {
        core.insist(|| core.controller.undivert(&ids, one.order)).await;
        let keys: BTreeSet<Key> = back.iter().map(|user| user.key()).collect();
        let is_back = |moving: &Moving, user: &mut User| {
            if keys.contains(&moving.key()) {
                // To the original anchor, also if it came from another host: that one always has its state.
                (user.on, user.waits_for) = (None, None);
            }
        };
        let detail = format!("{} users are back on their original anchors", keys.len());
        core.record(|state| changed(state, one.id, |one| one.note(&detail), is_back)).await;
    }
    tidy(core, one).await;
    core.record_move(one.id, |one| {
        let why = one.history.iter().rev().find(|entry| entry.state == Stage::RollingBack);
        let why = why.map(|entry| entry.detail.clone()).unwrap_or_default();
        for user in one.users.iter_mut().filter(|user| user.state == Fate::Pending) {
            (user.state, user.why) = (Fate::Stays, Some(why.clone()));
        }
        one.enter(if one.abort { Stage::Aborted } else { Stage::Failed }, why);
    })
    .await;
}

/// Steers the users' packets back to their original anchors.
async fn give_back(core: &Core, one: &Move) {
    let ids: Vec<String> =
        one.pending().flat_map(|user| diversion_ids(&user.origin, &user.addresses)).collect();
    let call = || core.controller.undivert(&ids, one.order);
    let mut stuck: BTreeMap<Key, String> = BTreeMap::new();
    if let Err(given_up) = core.repeat(Some(core.config.times.divert_ms), None, call).await {
        let why = given_up.why();
        let truth = core.insist(|| core.controller.diversions()).await;
        let still =
            one.pending().filter(|user| !diverted_to(&truth, &user.origin, &user.addresses).is_empty());
        stuck = still.map(|user| (user.key(), why.clone())).collect();
    }
    core.record(|state| {
        changed(
            state,
            one.id,
            |one| {
                stay(one, &stuck);
                one.users
                    .iter_mut()
                    .filter(|user| user.state == Fate::Pending)
                    .for_each(|user| user.state = Fate::Moved);
                one.enter(Stage::Tidying, "no longer diverted");
            },
            |moving, user| {
                if moving.state == Fate::Moved
                    && moving.from.is_some() | user.on.is_some() | user.waits_for.is_some()
                {
                    if one.warm {
                        user.replicas.values_mut().for_each(|kept| *kept = true);
                    }
                    (user.on, user.waits_for) = (None, None);
                }
                if moving.state == Fate::Moved && !one.warm {
                    user.replicas.values_mut().for_each(|kept| *kept = false);
                }
            },
        )
    })
    .await;
}

/// What can be removed of a move's users: by original anchor and host, their identities.
fn unneeded(state: &State, one: &Move) -> BTreeMap<(String, String), Vec<String>> {
    let mut all: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for moving in one.users.iter().filter(|user| !user.origin.is_empty()) {
        let user = state.user(moving);
        // What was copied may be there without a record.
        let hosts: BTreeSet<&String> = user.replicas.keys().chain(&one.to).collect();
        for host in hosts.into_iter().filter(|host| !user.is_wanted_at(host)) {
            all.entry((moving.origin.clone(), host.clone())).or_default().push(moving.id.clone());
        }
    }
    all
}

/// Removes state that nobody needs. What cannot be removed in time is left to later looks.
async fn tidy(core: &Core, one: &Move) {
    let unneeded = unneeded(&core.state(), one);
    for ((origin, host), ids) in unneeded {
        if let Err(why) = forget(core, &origin, &host, &ids, Some(core.config.times.tidy_ms)).await {
            core.record_move(one.id, |one| one.note(format!("state at {host} is not removed yet: {why}")))
                .await;
            // Looks find it by the users' records.
            core.record(|state| Change {
                moves: Vec::new(),
                users: one
                    .users
                    .iter()
                    .filter(|user| user.origin == origin && ids.contains(&user.id))
                    .map(|moving| {
                        let mut user = state.user(moving);
                        user.replicas.entry(host.clone()).or_default();
                        user
                    })
                    .collect(),
            })
            .await;
        }
    }
}

/// Removes users' state from a host, and enters that into their records.
pub(crate) async fn forget(
    core: &Core,
    origin: &str,
    host: &str,
    ids: &[String],
    limit_ms: Option<u64>,
) -> Result<(), String> {
    // Without the host there is no anchor to ask for; its state ended with it.
    if let Some(host) = core.host(host) {
        let call = || core.controller.forget(origin, &host.anchor, ids);
        core.repeat(limit_ms.or(Some(1)), None, call).await.map_err(GivenUp::why)?;
    }
    core.record(|state| {
        let users = ids.iter().filter_map(|id| state.users.get(&(origin.to_owned(), id.clone()))).cloned();
        let without = |mut user: User| {
            user.replicas.remove(host);
            user
        };
        Change { moves: Vec::new(), users: users.map(without).collect() }
    })
    .await;
    Ok(())
}
