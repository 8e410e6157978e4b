//! A request for a move: who is meant, whether they can be moved, and the move that is made of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use crate::ORIGIN;
use crate::config::Host;
use crate::controller::{CallFailed, Listed};
use crate::core::Core;
use crate::model::{Change, Fate, Key, Move, Moving, Order, Scheme, Stage, State, learn};
use crate::moves;

/// Most users of one move.
pub const MAX_USERS: usize = 10_000;
/// Most unfinished moves.
const MAX_MOVES: usize = 256;

/// The content of `POST /v1/moves`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// Addresses, or identities such as `imsi-001010000000001`; without it everybody who is at `from`.
    #[serde(default)]
    pub ues: Option<Vec<String>>,
    /// Where they are: an edge host, or an original anchor.
    #[serde(default)]
    pub from: Option<String>,
    /// Where they are to be: an edge host, or `origin`.
    pub to: String,
    /// Only their state is copied, or stays on the way back.
    #[serde(default)]
    pub warm: bool,
    /// How state gets to the target.
    #[serde(default)]
    pub scheme: Scheme,
    /// Whether packets keep their order.
    #[serde(default)]
    pub order: Order,
    /// Nobody is moved unless all are.
    #[serde(default)]
    pub all_or_none: bool,
    /// Whether they follow their base stations from then on.
    #[serde(default)]
    pub follow: Option<bool>,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It contradicts itself.
    #[error("{0}")]
    Contradiction(String),
    /// A name that is not known.
    #[error("{0}")]
    Unknown(String),
    /// Something else is in the way.
    #[error("{0}")]
    InTheWay(String),
    /// Too many.
    #[error("{0}")]
    TooMany(String),
    /// The controller cannot be asked.
    #[error("{0}")]
    Controller(String),
    /// The state file cannot be written.
    #[error("nothing was begun: {0}")]
    State(String),
}

impl From<CallFailed> for Refused {
    fn from(error: CallFailed) -> Refused {
        Refused::Controller(error.to_string())
    }
}

/// Users of the controller's lists and of our own, by identity and by address.
#[derive(Default)]
struct Known {
    users: BTreeMap<Key, Moving>,
    names: BTreeMap<String, BTreeSet<Key>>,
}

impl Known {
    fn add(&mut self, user: Moving) {
        let key = user.key();
        for name in user.addresses.iter().map(IpAddr::to_string).chain([user.id.clone()]) {
            self.names.entry(name).or_default().insert(key.clone());
        }
        self.users.insert(key, user);
    }

    fn add_listed(&mut self, origin: &str, listed: Listed) {
        let place = listed.place();
        let (origin, id, addresses) = (origin.to_owned(), listed.id, listed.addresses);
        self.add(Moving { origin, id, addresses, from: None, place, state: Fate::Pending, why: None });
    }

    /// Adds what we know of them: where they are.
    fn add_own(&mut self, state: &State) {
        for (key, user) in &state.users {
            let known = self.users.remove(key);
            let (origin, id) = key.clone();
            let (mut addresses, place) = match known {
                Some(known) => (known.addresses, known.place),
                None => (user.addresses.clone(), user.place.clone()),
            };
            // It may have got another one since it was diverted.
            learn(&mut addresses, user.addresses.iter().copied());
            let from = user.on.clone();
            self.add(Moving { origin, id, addresses, from, place, state: Fate::Pending, why: None });
        }
    }
}

/// An address as others write it, too.
fn canonical(name: &str) -> String {
    name.parse::<IpAddr>().map_or_else(|_| name.to_owned(), |address| address.to_string())
}

/// Makes a move of a request, and begins it.
pub(crate) async fn create(core: &Arc<Core>, request: MoveRequest) -> Result<u64, Refused> {
    let _turn = core.turn.lock().await;
    let (host, origin) = target(core, &request)?;
    let from_host = request.from.as_deref().and_then(|name| core.host(name));
    let from_origin = if from_host.is_none() { request.from.clone().or(origin) } else { origin };
    let mut known = Known::default();
    if needs_list(core, &request, host) {
        let origins = match &from_origin {
            Some(origin) => vec![origin.clone()],
            None => core.controller.origins().await?,
        };
        for origin in origins.iter().filter(|origin| core.config.host_of_anchor(origin).is_none()) {
            for listed in core.controller.users(origin).await? {
                known.add_listed(origin, listed);
            }
        }
    }
    known.add_own(&core.state());
    let mut users = named(&request, &known, from_host, from_origin.as_deref())?;
    if users.len() > MAX_USERS {
        return Err(Refused::TooMany(format!("{} users: a move has at most {MAX_USERS}", users.len())));
    }
    judge(&core.state(), &request, host, from_host, &mut users)?;
    let follow = request.follow.unwrap_or(core.config.follow);
    let one = Move {
        id: 0,
        to: host.map(|host| host.name.clone()),
        warm: request.warm,
        scheme: request.scheme,
        order: request.order,
        all_or_none: request.all_or_none,
        follow,
        reason: "requested".to_owned(),
        state: Stage::Starting,
        abort: false,
        users,
        history: Vec::new(),
    };
    begin(core, one).await
}

/// The edge host, or the original anchor.
fn target<'a>(core: &'a Core, request: &MoveRequest) -> Result<(Option<&'a Host>, Option<String>), Refused> {
    if request.to == ORIGIN {
        return Ok((None, None));
    }
    match core.host(&request.to) {
        Some(host) if request.from.as_deref() == Some(&host.name) => {
            Err(Refused::Contradiction("`from` and `to` are the same host".to_owned()))
        }
        Some(host) => Ok((Some(host), None)),
        None => {
            let hosts: Vec<&str> = core.config.hosts.iter().map(|host| host.name.as_str()).collect();
            Err(Refused::Unknown(format!(
                "there is no edge host `{}`; there are: {}, and `{ORIGIN}` for users' original anchors",
                request.to,
                hosts.join(", ")
            )))
        }
    }
}

/// Whether the controller has to be asked who there is. Not for the way back of users that we know.
fn needs_list(core: &Core, request: &MoveRequest, host: Option<&Host>) -> bool {
    if host.is_some() {
        return true;
    }
    let Some(ues) = &request.ues else { return false };
    let state = core.state();
    let names: BTreeSet<String> = state
        .users
        .values()
        .flat_map(|user| user.addresses.iter().map(IpAddr::to_string).chain([user.id.clone()]))
        .collect();
    !ues.iter().all(|ue| names.contains(&canonical(ue)))
}

/// The users that a request names.
fn named(
    request: &MoveRequest,
    known: &Known,
    from_host: Option<&Host>,
    from_origin: Option<&str>,
) -> Result<Vec<Moving>, Refused> {
    let Some(ues) = &request.ues else {
        if request.from.is_none() {
            return Err(Refused::Contradiction("`ues` or `from` says who is moved".to_owned()));
        }
        let is_meant = |user: &&Moving| match from_host {
            Some(host) => user.from.as_ref() == Some(&host.name),
            None => from_origin.is_none_or(|origin| user.origin == origin),
        };
        return Ok(known.users.values().filter(is_meant).cloned().collect());
    };
    if ues.is_empty() || ues.len() > MAX_USERS {
        return Err(Refused::TooMany(format!(
            "`ues` has {} entries; 1 to {MAX_USERS} are possible",
            ues.len()
        )));
    }
    let (mut users, mut taken) = (Vec::new(), BTreeSet::new());
    for name in ues {
        let empty = BTreeSet::new();
        let found = known.names.get(&canonical(name)).unwrap_or(&empty);
        let found: Vec<&Key> =
            found.iter().filter(|(origin, _)| from_origin.is_none_or(|wanted| origin == wanted)).collect();
        match found[..] {
            [key] => {
                // It may be named by its identity and by its address.
                if taken.insert(key.clone()) {
                    users.extend(known.users.get(key).cloned());
                }
            }
            [] => users.push(Moving {
                origin: String::new(),
                id: name.clone(),
                addresses: Vec::new(),
                from: None,
                place: crate::model::Place::default(),
                state: Fate::Stays,
                why: Some("no anchor has this user".to_owned()),
            }),
            _ => {
                let anchors: Vec<&str> = found.iter().map(|(origin, _)| origin.as_str()).collect();
                let detail = format!(
                    "{name} has sessions at {}; name one with `from`, or the address",
                    anchors.join(" and ")
                );
                return Err(Refused::Contradiction(detail));
            }
        }
    }
    if users.iter().all(|user| user.origin.is_empty()) {
        return Err(Refused::Unknown(format!("no anchor has these users: {}", ues.join(", "))));
    }
    Ok(users)
}

/// Decides for each user whether it can be moved.
fn judge(
    state: &State,
    request: &MoveRequest,
    host: Option<&Host>,
    from_host: Option<&Host>,
    users: &mut [Moving],
) -> Result<(), Refused> {
    if state.unfinished().count() >= MAX_MOVES {
        return Err(Refused::TooMany(format!("{MAX_MOVES} moves are under way; wait until one has ended")));
    }
    let busy = state.busy();
    if let Some((user, id)) = users.iter().find_map(|user| Some((user, busy.get(&user.key())?))) {
        let detail = format!(
            "{} is being moved by /v1/moves/{id}; wait until that has ended, or end it by DELETE",
            user.id
        );
        return Err(Refused::InTheWay(detail));
    }
    let mut there = host.map(|host| state.users_at(&host.name)).unwrap_or_default();
    for user in users.iter_mut().filter(|user| user.state == Fate::Pending) {
        let record = state.users.get(&user.key());
        let stays = |why: String| (Fate::Stays, Some(why));
        (user.state, user.why) = match host {
            _ if from_host.is_some_and(|from| user.from.as_ref() != Some(&from.name)) => {
                let place = user.from.as_deref().unwrap_or("its original anchor");
                stays(format!("it is on {place}"))
            }
            Some(host) if user.from.as_ref() == Some(&host.name) => {
                (Fate::Moved, Some("it was there already".to_owned()))
            }
            Some(host) if user.addresses.is_empty() => {
                stays(format!("it has no address yet, so {} cannot serve it", host.name))
            }
            Some(host) if !there.contains(&user.key()) && there.len() >= host.capacity => {
                stays(format!("{} is full (key `capacity`: {})", host.name, host.capacity))
            }
            None if record.is_none() => (Fate::Moved, Some("it was there already".to_owned())),
            _ => (Fate::Pending, None),
        };
        if user.state == Fate::Pending {
            there.insert(user.key());
        }
    }
    let refused = users.iter().find(|user| user.state == Fate::Stays).filter(|_| request.all_or_none);
    if let Some(user) = refused {
        let why = user.why.clone().unwrap_or_default();
        return Err(Refused::InTheWay(format!("nobody is moved, as {} cannot be: {why}", user.id)));
    }
    Ok(())
}

/// Enters a move into the journal, and begins it. Whoever calls has the turn.
pub(crate) async fn begin(core: &Arc<Core>, mut one: Move) -> Result<u64, Refused> {
    let first = if one.to.is_some() { Stage::Starting } else { Stage::Returning };
    let last =
        if one.users.iter().all(|user| user.state == Fate::Stays) { Stage::Failed } else { Stage::Done };
    let is_over = one.pending().next().is_none();
    one.enter(if is_over { last } else { first }, one.reason.clone());
    one.id = core.state().moves.keys().next_back().map_or(1, |id| id + 1);
    let id = one.id;
    // Only who has the turn makes numbers.
    core.change(|_| Change { moves: vec![one.clone()], users: Vec::new() })
        .await
        .map_err(|error| Refused::State(error.to_string()))?;
    if !is_over {
        core.spawn(moves::run(core.clone(), id));
    }
    Ok(id)
}

/// Has a move undone.
pub(crate) async fn abort(core: &Core, id: u64) -> Result<Move, Refused> {
    let refuse = |one: &Move| {
        let what = if one.state.is_end() { "has ended" } else { "cannot be undone any more" };
        Refused::InTheWay(format!("the move {what} ({:?}); move the users back instead", one.state))
    };
    core.change(|state| {
        let one = state.moves.get(&id).filter(|one| one.state.is_before_flip() && !one.abort);
        let mut moves: Vec<Move> = one.cloned().into_iter().collect();
        moves.iter_mut().for_each(|one| {
            one.abort = true;
            one.note("is to be undone");
        });
        Change { moves, users: Vec::new() }
    })
    .await
    .map_err(|error| Refused::State(error.to_string()))?;
    let one = core.move_of(id).ok_or_else(|| Refused::Unknown(format!("there is no move {id}")))?;
    if one.abort && !one.state.is_end() { Ok(one) } else { Err(refuse(&one)) }
}
