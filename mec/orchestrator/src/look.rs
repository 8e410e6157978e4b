//! Looks: now and then the orchestrator compares what it knows with the controller and the hosts, and puts right what differs.
//!
//! | found | done |
//! |---|---|
//! | a user is no longer diverted (the controller gave it back, or an operator did) | it is on its original anchor; its state at the host is removed |
//! | a user is diverted to a host by a request that took effect after it was given up | undiverted |
//! | an anchor has ended, or does not answer three times | its users go back, and the state that it had is taken for lost |
//! | a host has the state of fewer users than it should (it or the controller has forgotten) | copied again, and diverted to the new state; who is refused goes back |
//! | state that nobody needs could not be removed | removed |
//! | a host that a `naive` move has gone to has state, and nobody is there any more | all of it is removed: also that of users whom nobody has named |
//! | a user has another base station or other tunnels, or has become active | diverted anew (DIV-4) |
//! | a user has another address, as it has attached again | the diversion of the former one is removed, and it is diverted anew |
//! | a user that follows is at a base station of another host | moved there |
//! | the original anchor does not know a user three times | given back: its addresses may become others' |
//! | a host has no users for a while | its anchor is stopped, if configured |
//!
//! Users of moves that have not ended when a look begins are left alone: what it reads of them may be older than what the move does. A
//! look has the turn, so that no move begins meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use net::time::{self, Duration};
use serde_json::Value;

use crate::config::{self, Host};
use crate::controller::{CallFailed, Diverted, Listed, Replica};
use crate::core::{Core, Memory, lock};
use crate::model::{Change, Fate, Key, Move, Moving, Order, Scheme, Stage, User, diversion_ids};
use crate::moves::{diverted_to, forget};
use crate::request;

/// Looks in a row at which something is missing before it is taken for gone.
const MISSES: u32 = 3;
/// How long a user stays after it could not be moved after its base station.
const FOLLOW_AGAIN: Duration = Duration::from_secs(30);
/// Who confirms the state of users that are diverted with replicas.
const CONFIRMED_BY: &str = "replication";

/// Looks until the task is ended.
pub(crate) async fn run(core: Arc<Core>) {
    let mut ticks = time::interval(Duration::from_millis(core.config.times.look_ms));
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let problem = look(&core).await.err().map(|error| error.to_string());
        let mut memory = lock(&core.memory);
        if problem.is_some() && problem != memory.problem {
            tracing::warn!(problem, "cannot compare with the controller");
        }
        memory.problem = problem;
    }
}

/// Users that no unfinished move concerns.
fn calm(core: &Core) -> Vec<User> {
    let state = core.state();
    let busy = state.busy();
    state.users.values().filter(|user| !busy.contains_key(&user.key())).cloned().collect()
}

/// A look at the edge.
struct Look<'a> {
    core: &'a Arc<Core>,
    /// Users that no unfinished move concerned when it began.
    calm: BTreeSet<Key>,
}

async fn look(core: &Arc<Core>) -> Result<(), CallFailed> {
    let _turn = core.turn.lock().await;
    let look = Look { core, calm: calm(core).iter().map(User::key).collect() };
    let alive = core.controller.alive().await?;
    lock(&core.memory).alive = Some(alive.clone());
    let truth = core.controller.diversions().await?;
    compare_users(&look, &truth).await?;
    for host in &core.config.hosts {
        look_at_host(&look, host, alive.contains(&host.anchor)).await;
    }
    compare_replicas(&look, &alive).await?;
    remove_unneeded(&look).await;
    look_at_places(&look, &alive, &truth).await
}

impl Look<'_> {
    /// Users that it may change. It begins moves itself, so they become fewer.
    fn users(&self) -> Vec<User> {
        calm(self.core).into_iter().filter(|user| self.calm.contains(&user.key())).collect()
    }
}

async fn put(core: &Core, users: Vec<User>) {
    core.record(|_| Change { moves: Vec::new(), users: users.clone() }).await;
}

/// Whether users are where they should be.
async fn compare_users(look: &Look<'_>, truth: &BTreeMap<String, Diverted>) -> Result<(), CallFailed> {
    let core = look.core;
    let (mut changed, mut stray) = (Vec::new(), Vec::new());
    for mut user in look.users() {
        let found = diverted_to(truth, &user.origin, &user.addresses);
        let at =
            found.first().and_then(|one| core.config.host_of_anchor(&one.to)).map(|host| host.name.clone());
        if at == user.on {
            continue;
        }
        match at {
            Some(host) if user.replicas.contains_key(&host) => user.on = Some(host),
            // Its state was removed there, and then a late request took effect.
            Some(_) if found.iter().any(|one| one.confirmed_by == CONFIRMED_BY) => {
                stray.extend(found.iter().map(|one| one.id.clone()));
                user.on = None;
            }
            _ => user.on = None,
        }
        tracing::info!(user = user.id, on = user.on, "the controller has this user elsewhere");
        changed.push(user);
    }
    put(core, changed).await;
    stray.extend(late(core, truth));
    if !stray.is_empty() {
        tracing::info!(count = stray.len(), "diversions that took effect too late are taken back");
        stray.sort_unstable();
        stray.dedup();
        core.controller.undivert(&stray, Order::None).await?;
    }
    Ok(())
}

/// Diversions to hosts of users that were moved, but are on their original anchors: they took effect after they were given up. Others'
/// are left alone.
fn late(core: &Core, truth: &BTreeMap<String, Diverted>) -> Vec<String> {
    let state = core.state();
    let ids = |user: &Moving| diversion_ids(&user.origin, &user.addresses).collect::<Vec<_>>();
    let of_users = state.users.values().flat_map(|user| diversion_ids(&user.origin, &user.addresses));
    let known: BTreeSet<String> =
        of_users.chain(state.unfinished().flat_map(|one| &one.users).flat_map(ids)).collect();
    let is_unknown = |one: &&Diverted| {
        let is_ours = core.config.host_of_anchor(&one.to).is_some() && one.confirmed_by == CONFIRMED_BY;
        is_ours && !known.contains(&one.id)
    };
    let unknown: BTreeSet<&String> = truth.values().filter(is_unknown).map(|one| &one.id).collect();
    if unknown.is_empty() {
        return Vec::new();
    }
    let moved = state.moves.values().flat_map(|one| &one.users).flat_map(ids);
    moved.filter(|id| unknown.contains(id)).collect()
}

/// Moves users, because of something that was found.
async fn move_users(core: &Arc<Core>, users: &[User], to: Option<&Host>, order: Order, reason: String) {
    let of = |user: &User| Moving {
        origin: user.origin.clone(),
        id: user.id.clone(),
        addresses: user.addresses.clone(),
        from: user.on.clone(),
        place: user.place.clone(),
        state: Fate::Pending,
        why: None,
    };
    let one = Move {
        id: 0,
        to: to.map(|host| host.name.clone()),
        warm: false,
        scheme: Scheme::Selective,
        order,
        all_or_none: false,
        follow: to.is_some(),
        reason,
        state: Stage::Starting,
        abort: false,
        users: users.iter().map(of).collect(),
        unlisted: 0,
        history: Vec::new(),
    };
    if let Err(error) = request::begin(core, one).await {
        tracing::warn!(%error, "users cannot be moved");
    }
}

/// Whether a host's anchor is there, and whether it is needed.
async fn look_at_host(look: &Look<'_>, host: &Host, answers: bool) {
    let core = look.core;
    let runs = core.drivers.of(host).is_running(host).await.unwrap_or(None);
    let missed = {
        let mut memory = lock(&core.memory);
        let missed = memory.missed.entry(host.name.clone()).or_default();
        *missed = if answers { 0 } else { missed.saturating_add(1) };
        *missed
    };
    if runs == Some(false) || missed >= MISSES {
        let why = if runs == Some(false) { "has ended" } else { "does not answer" };
        leave(look, host, format!("`{}` {why}", host.anchor)).await;
        return;
    }
    let is_empty = core.state().users_at(&host.name).is_empty();
    // An agent that has ended has no state of its own: another one goes on, also with ending copies of users that have left.
    if runs == Some(true)
        && let Err(error) = core.drivers.of(host).start(host).await
    {
        tracing::warn!(host = host.name, %error, "what is beside its anchor cannot be started again");
    }
    let since = {
        let mut memory = lock(&core.memory);
        if !is_empty || runs != Some(true) {
            memory.empty.remove(&host.name);
            return;
        }
        *memory.empty.entry(host.name.clone()).or_insert_with(time::now)
    };
    let after = Duration::from_secs(host.retire_after_s);
    if host.retire_after_s > 0 && time::now() - since >= after {
        match core.drivers.of(host).stop(host).await {
            Ok(()) => tracing::info!(host = host.name, "its anchor is stopped: nobody is there"),
            Err(error) => tracing::warn!(host = host.name, %error, "its anchor cannot be stopped"),
        }
    }
}

/// Has users leave a host whose anchor is dead. The state that it had for others is lost, so that they do not count on it.
async fn leave(look: &Look<'_>, host: &Host, reason: String) {
    let core = look.core;
    let (mut there, mut lost) = (Vec::new(), Vec::new());
    for mut user in look.users() {
        if [&user.on, &user.waits_for].contains(&&Some(host.name.clone())) {
            there.push(user);
        } else if user.replicas.get(&host.name) == Some(&true) {
            user.replicas.insert(host.name.clone(), false);
            lost.push(user);
        }
    }
    if !lost.is_empty() {
        put(core, lost).await;
    }
    if !there.is_empty() {
        move_users(core, &there, None, Order::None, reason).await;
    }
}

/// Users by original anchor and host, for which `host` gives a name.
fn grouped(
    users: Vec<User>,
    host: impl Fn(&User) -> Option<String>,
) -> BTreeMap<(String, String), Vec<User>> {
    let mut groups: BTreeMap<(String, String), Vec<User>> = BTreeMap::new();
    for user in users {
        if let Some(host) = host(&user) {
            groups.entry((user.origin.clone(), host)).or_default().push(user);
        }
    }
    groups
}

fn names(users: &[User]) -> Vec<(String, Vec<IpAddr>)> {
    users.iter().map(|user| (user.id.clone(), user.addresses.clone())).collect()
}

/// Whether hosts have the state that they should have.
async fn compare_replicas(look: &Look<'_>, alive: &BTreeSet<String>) -> Result<(), CallFailed> {
    let core = look.core;
    let copied_whole = copied_whole(core);
    if core.state().users.is_empty() && copied_whole.is_empty() {
        return Ok(());
    }
    let counts = core.controller.replicas().await?;
    for ((origin, anchor), _) in counts.iter().filter(|(_, count)| **count > 0) {
        let Some(host) = core.config.host_of_anchor(anchor) else { continue };
        if copied_whole.contains(&host.name) && core.state().users_at(&host.name).is_empty() {
            tracing::info!(
                host = host.name,
                origin,
                "nobody is there any more; what is left there is removed"
            );
            if let Err(why) = core.controller.forget_all(origin, anchor).await {
                tracing::debug!(host = host.name, %why, "it is not removed yet");
            }
        }
    }
    for host in core.config.hosts.iter().filter(|host| alive.contains(&host.anchor)) {
        let here = |user: &User| user.is_wanted_at(&host.name).then(|| host.name.clone());
        for ((origin, _), users) in grouped(look.users(), here) {
            let count = counts.get(&(origin.clone(), host.anchor.clone())).copied().unwrap_or_default();
            if count >= users.len() {
                continue;
            }
            tracing::info!(host = host.name, count, wanted = users.len(), "state is missing; copied again");
            if count == 0 {
                // The controller knows of no state there: what there is may end before it is made again, with other tunnels.
                back_for_now(core, host, &users).await?;
            }
            let copied = core.controller.replicate(&origin, host, &names(&users), Scheme::Selective).await?;
            let there = look.users().into_iter().filter(|user| user.on.as_ref() == Some(&host.name));
            let ready = there.filter_map(|user| match copied.get(&user.key()) {
                Some(Replica::There(diversions)) if is_of(diversions, &user) => Some(diversions.clone()),
                _ => None,
            });
            // The new state may have other tunnels.
            let diversions: Vec<Value> = ready.flatten().collect();
            if !diversions.is_empty() {
                core.controller.divert(&diversions, Order::Keep).await?;
            }
            let is_lost = |user: &&User| matches!(copied.get(&user.key()), Some(Replica::Refused(_)));
            let lost: Vec<User> = users.iter().filter(is_lost).cloned().collect();
            // On the way back the record of what is there goes as well.
            if !lost.is_empty() {
                let reason = format!("`{}` does not have their state any more", host.anchor);
                move_users(core, &lost, None, Order::None, reason).await;
            }
        }
    }
    Ok(())
}

/// Hosts to which moves have copied all users of an anchor, whoever was named.
fn copied_whole(core: &Core) -> BTreeSet<String> {
    let state = core.state();
    let naive = state.moves.values().filter(|one| one.scheme == Scheme::Naive);
    naive.filter_map(|one| one.to.clone()).collect()
}

/// Whether diversions are at addresses of a user's record. Else it has attached again since it was listed, and the next look knows it.
fn is_of(diversions: &[Value], user: &User) -> bool {
    let is_known = |text: &str| text.parse().is_ok_and(|address| user.addresses.contains(&address));
    diversions.iter().all(|one| one["ue"].as_str().is_none_or(is_known))
}

/// Has users on their original anchors until they are diverted anew. Packets do not wait for those before them: a host that has lost the
/// users' state passes no token on, so they would wait as long as they may.
async fn back_for_now(core: &Core, host: &Host, users: &[User]) -> Result<(), CallFailed> {
    let is_there = |user: &&User| user.on.as_ref() == Some(&host.name);
    let mut there: Vec<User> = users.iter().filter(is_there).cloned().collect();
    if there.is_empty() {
        return Ok(());
    }
    let ids: Vec<String> =
        there.iter().flat_map(|user| diversion_ids(&user.origin, &user.addresses)).collect();
    core.controller.undivert(&ids, Order::None).await?;
    there.iter_mut().for_each(|user| user.waits_for = user.on.take());
    put(core, there).await;
    Ok(())
}

async fn remove_unneeded(look: &Look<'_>) {
    let core = look.core;
    let mut groups: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for user in look.users() {
        for host in user.replicas.keys().filter(|host| !user.is_wanted_at(host)) {
            groups.entry((user.origin.clone(), host.clone())).or_default().push(user.id.clone());
        }
    }
    for ((origin, host), ids) in groups {
        if let Err(why) = forget(core, &origin, &host, &ids, None).await {
            tracing::debug!(host, why, "state is not removed yet");
        }
    }
}

/// Whether users are at other base stations, have become active, or are gone.
async fn look_at_places(
    look: &Look<'_>,
    alive: &BTreeSet<String>,
    truth: &BTreeMap<String, Diverted>,
) -> Result<(), CallFailed> {
    let core = look.core;
    let origins: BTreeSet<String> = look.users().into_iter().map(|user| user.origin).collect();
    for origin in origins {
        let here = |user: &User| user.origin == origin;
        let users: Vec<User> = look.users().into_iter().filter(here).collect();
        let ids: Vec<String> = users.iter().map(|user| user.id.clone()).collect();
        let listed = core.controller.find(&origin, &ids).await?;
        let listed: BTreeMap<String, Listed> =
            listed.into_iter().map(|user| (user.id.clone(), user)).collect();
        let gone: Vec<User> = users.iter().filter(|user| is_gone(core, user, &listed)).cloned().collect();
        if !gone.is_empty() {
            let reason = format!("`{origin}` does not know them any more");
            move_users(core, &gone, None, Order::None, reason).await;
        }
        renew_addresses(look, &origin, &listed, truth).await?;
        divert_anew(look, &origin, &listed, alive).await?;
        follow(look, &origin, &listed, alive).await;
    }
    Ok(())
}

/// Gives back former addresses of users: they may become others'. What is diverted at the new ones is in the record before it is.
async fn renew_addresses(
    look: &Look<'_>,
    origin: &str,
    listed: &BTreeMap<String, Listed>,
    truth: &BTreeMap<String, Diverted>,
) -> Result<(), CallFailed> {
    let (mut former, mut renewed) = (Vec::new(), Vec::new());
    for mut user in look.users().into_iter().filter(|user| user.origin == origin) {
        let Some(now) = listed.get(&user.id).map(|listed| &listed.addresses) else { continue };
        let is_same =
            now.iter().all(|address| user.addresses.contains(address)) && now.len() == user.addresses.len();
        if now.is_empty() || is_same {
            continue;
        }
        let gone: Vec<IpAddr> =
            user.addresses.iter().filter(|address| !now.contains(address)).copied().collect();
        former.extend(diversion_ids(origin, &gone).filter(|id| truth.contains_key(id)));
        user.addresses.clone_from(now);
        if user.on.is_some() && diverted_to(truth, origin, now).is_empty() {
            // Until it is diverted anew it is on its original anchor.
            user.waits_for = user.on.take();
        }
        renewed.push(user);
    }
    if !former.is_empty() {
        look.core.controller.undivert(&former, Order::None).await?;
    }
    if !renewed.is_empty() {
        tracing::info!(count = renewed.len(), "users have other addresses");
        put(look.core, renewed).await;
    }
    Ok(())
}

fn is_gone(core: &Core, user: &User, listed: &BTreeMap<String, Listed>) -> bool {
    let mut memory = lock(&core.memory);
    if listed.contains_key(&user.id) {
        memory.unknown.remove(&user.key());
        return false;
    }
    let missed = memory.unknown.entry(user.key()).or_default();
    *missed += 1;
    let is_gone = *missed >= MISSES;
    if is_gone {
        memory.unknown.remove(&user.key());
    }
    is_gone
}

/// Diverts users whose place has changed, and those that have become active (DIV-4).
async fn divert_anew(
    look: &Look<'_>,
    origin: &str,
    listed: &BTreeMap<String, Listed>,
    alive: &BTreeSet<String>,
) -> Result<(), CallFailed> {
    let core = look.core;
    let concerned = |user: &User| {
        let place = listed.get(&user.id).filter(|_| user.origin == origin)?.place();
        let host = user.waits_for.clone().or_else(|| user.on.clone())?;
        let is_active = place.base_station.is_some() || !place.tunnels.is_empty();
        (is_active && (user.waits_for.is_some() || place != user.place)).then_some(host)
    };
    for ((_, name), users) in grouped(look.users(), concerned) {
        let Some(host) = core.host(&name).filter(|host| alive.contains(&host.anchor)) else { continue };
        let copied = core.controller.replicate(origin, host, &names(&users), Scheme::Selective).await?;
        for (order, users) in by_order(core, users, alive) {
            let (mut diversions, mut changed) = (Vec::new(), Vec::new());
            for mut user in users {
                let Some(Replica::There(ready)) = copied.get(&user.key()) else { continue };
                if ready.is_empty() || !is_of(ready, &user) {
                    continue;
                }
                diversions.extend(ready.iter().cloned());
                user.place = listed.get(&user.id).map(Listed::place).unwrap_or_default();
                (user.on, user.waits_for) = (Some(name.clone()), None);
                user.replicas.entry(name.clone()).or_default();
                changed.push(user);
            }
            if !diversions.is_empty() {
                core.controller.divert(&diversions, order).await?;
                put(core, changed).await;
            }
        }
    }
    Ok(())
}

/// Users by whether their packets keep their order: as their moves said, but not from an anchor that sends nothing on any more.
pub(crate) fn by_order(
    core: &Core,
    users: Vec<User>,
    alive: &BTreeSet<String>,
) -> BTreeMap<Order, Vec<User>> {
    let mut all: BTreeMap<Order, Vec<User>> = BTreeMap::new();
    for user in users {
        let anchor = match &user.on {
            Some(host) => core.host(host).map(|host| &host.anchor),
            None => Some(&user.origin),
        };
        let order = if anchor.is_some_and(|it| alive.contains(it)) { user.order } else { Order::None };
        all.entry(order).or_default().push(user);
    }
    all
}

/// Moves users after their base stations.
async fn follow(look: &Look<'_>, origin: &str, listed: &BTreeMap<String, Listed>, alive: &BTreeSet<String>) {
    let core = look.core;
    let now = time::now();
    let follows = |user: &User| {
        let here = user.on.as_ref().filter(|_| user.follow && user.origin == origin)?;
        let next = core.config.host_of_base_station(listed.get(&user.id)?.base_station?)?;
        // One that others start has to be there.
        let is_ready = alive.contains(&next.anchor) || next.driver != config::Driver::External;
        let mut memory = lock(&core.memory);
        let Memory { not_before, .. } = &mut *memory;
        not_before.retain(|_, until| *until > now);
        if next.name == *here {
            // It was moved after its base station, and may hand over again at any time.
            not_before.remove(&user.key());
            return None;
        }
        if !is_ready || not_before.contains_key(&user.key()) {
            return None;
        }
        not_before.insert(user.key(), now + FOLLOW_AGAIN);
        Some(next.name.clone())
    };
    for ((_, name), mut users) in grouped(look.users(), follows) {
        let Some(host) = core.host(&name) else { continue };
        let there = core.state().users_at(&name);
        let room = host.capacity.saturating_sub(there.len());
        users.sort_by_key(|user| !there.contains(&user.key()));
        let known = users.iter().filter(|user| there.contains(&user.key())).count();
        users.truncate((known + room).min(request::MAX_USERS));
        for user in &mut users {
            user.place = listed.get(&user.id).map(Listed::place).unwrap_or_default();
        }
        for (order, users) in by_order(core, users, alive) {
            let reason = "their base station is next to this host".to_owned();
            move_users(core, &users, Some(host), order, reason).await;
        }
    }
}
