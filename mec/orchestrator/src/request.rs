//! A request for a move: who is meant, whether they can be moved, and the move that is made of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use crate::ORIGIN;
use crate::config::Host;
use crate::controller::{CallFailed, Listed};
use crate::core::Core;
use crate::driver::DriverError;
use crate::model::{Change, Fate, Key, Move, Moving, Order, Place, Scheme, Stage, State, User, learn};
use crate::moves;

/// Most users of one move.
pub const MAX_USERS: usize = 10_000;
/// Most unfinished moves.
const MAX_MOVES: usize = 256;
/// Most names without a user that a move lists. Others are counted.
const MAX_UNKNOWN: usize = 100;
/// Most names in a refusal.
const FEW: usize = 5;

/// The content of `POST /v1/moves`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// Addresses, or identities such as `imsi-001010000000001`; without them everybody who is at `from`.
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
    /// A host's driver cannot start or stop its anchor.
    #[error("{0}")]
    Driver(String),
    /// The state file cannot be written.
    #[error("nothing was begun: {0}")]
    State(String),
}

impl From<DriverError> for Refused {
    fn from(error: DriverError) -> Refused {
        match error {
            DriverError::External(_) => Refused::InTheWay(error.to_string()),
            DriverError::System { .. } => Refused::Driver(error.to_string()),
        }
    }
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

/// Where the users of a request are.
enum Whereabouts<'a> {
    Anywhere,
    Host(&'a Host),
    Origin(&'a str),
}

/// Makes a move of a request, and begins it.
pub(crate) async fn create(core: Arc<Core>, request: MoveRequest) -> Result<u64, Refused> {
    let host = target(&core, &request)?;
    let names = names(&request)?;
    let from = whereabouts(&core, &request).await?;
    // Looks go on meanwhile. What changes until the turn comes is found by the next one.
    let mut known = ask(&core, names.as_deref(), host, &from).await?;
    let _turn = core.turn.lock().await;
    known.add_own(&core.state());
    let (mut users, unlisted) = match names {
        Some(names) => named(&names, &known, &from)?,
        None => (everybody(&known, &from, &request)?, 0),
    };
    judge(&core.state(), &request, host, &from, &mut users)?;
    let one = Move {
        id: 0,
        to: host.map(|host| host.name.clone()),
        warm: request.warm,
        scheme: request.scheme,
        order: request.order,
        all_or_none: request.all_or_none,
        follow: request.follow.unwrap_or(core.config.follow),
        reason: "requested".to_owned(),
        state: Stage::Starting,
        abort: false,
        users,
        unlisted,
        history: Vec::new(),
    };
    begin(&core, one).await
}

/// The edge host; none: the original anchors.
fn target<'a>(core: &'a Core, request: &MoveRequest) -> Result<Option<&'a Host>, Refused> {
    if request.to == ORIGIN {
        return Ok(None);
    }
    match core.host(&request.to) {
        Some(host) if request.from.as_deref() == Some(&host.name) => {
            Err(Refused::Contradiction("`from` and `to` are the same host".to_owned()))
        }
        Some(host) => Ok(Some(host)),
        None => Err(Refused::Unknown(format!(
            "there is no edge host `{}`; there are: {}, and `{ORIGIN}` for users' original anchors",
            shown(&request.to),
            few(core.config.hosts.iter().map(|host| &host.name))
        ))),
    }
}

/// The names of a request, each once; none: everybody at `from` is meant.
fn names(request: &MoveRequest) -> Result<Option<Vec<String>>, Refused> {
    let Some(ues) = &request.ues else {
        return match request.from {
            Some(_) => Ok(None),
            None => Err(Refused::Contradiction("`ues` or `from` says who is moved".to_owned())),
        };
    };
    if ues.is_empty() {
        let detail = "`ues` is empty; without it everybody is moved who is at `from`";
        return Err(Refused::Contradiction(detail.to_owned()));
    }
    if ues.len() > MAX_USERS {
        return Err(Refused::TooMany(format!(
            "`ues` has {} entries; at most {MAX_USERS} are possible",
            ues.len()
        )));
    }
    let mut seen = BTreeSet::new();
    Ok(Some(ues.iter().map(|name| canonical(name)).filter(|name| seen.insert(name.clone())).collect()))
}

/// What `from` is a name of.
async fn whereabouts<'a>(core: &'a Core, request: &'a MoveRequest) -> Result<Whereabouts<'a>, Refused> {
    let Some(name) = &request.from else { return Ok(Whereabouts::Anywhere) };
    if let Some(host) = core.host(name) {
        return Ok(Whereabouts::Host(host));
    }
    // The way back of users that we know does not need the controller.
    let has_users = core.state().users.keys().any(|(origin, _)| origin == name);
    if has_users {
        return Ok(Whereabouts::Origin(name));
    }
    let origins = origins(core).await?;
    if origins.contains(name) {
        return Ok(Whereabouts::Origin(name));
    }
    Err(Refused::Unknown(format!(
        "there is no edge host or original anchor `{}`; hosts are: {}; original anchors that the controller knows: {}",
        shown(name),
        few(core.config.hosts.iter().map(|host| &host.name)),
        few(&origins)
    )))
}

/// Anchors that users are moved from. The controller may hear the control messages of edge hosts' anchors, too.
async fn origins(core: &Core) -> Result<Vec<String>, CallFailed> {
    let mut all = core.controller.origins().await?;
    all.retain(|anchor| core.config.host_of_anchor(anchor).is_none());
    Ok(all)
}

/// Asks the controller for users that are meant, as far as more has to be known of them than we know ourselves.
async fn ask(
    core: &Core,
    names: Option<&[String]>,
    host: Option<&Host>,
    from: &Whereabouts<'_>,
) -> Result<Known, CallFailed> {
    let mut known = Known::default();
    match (names, from, host) {
        (None, Whereabouts::Origin(origin), Some(_)) => {
            for listed in core.controller.users(origin).await? {
                known.add_listed(origin, listed);
            }
        }
        (None, Whereabouts::Host(from), Some(_)) => {
            for (origin, ids) in users_on(core, from) {
                for listed in core.controller.find(&origin, &ids).await? {
                    known.add_listed(&origin, listed);
                }
            }
        }
        // Who goes back has a record.
        (None, ..) => {}
        (Some(names), from, host) => {
            let names = if host.is_some() { names.to_vec() } else { without_record(core, names) };
            let origins = match from {
                _ if names.is_empty() => Vec::new(),
                Whereabouts::Origin(origin) => vec![(*origin).to_owned()],
                _ => origins(core).await?,
            };
            for origin in origins {
                for listed in core.controller.find(&origin, &names).await? {
                    known.add_listed(&origin, listed);
                }
            }
        }
    }
    Ok(known)
}

/// Identities of users that are diverted to a host, by original anchor.
fn users_on(core: &Core, host: &Host) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for user in core.state().users.values().filter(|user| user.on.as_ref() == Some(&host.name)) {
        all.entry(user.origin.clone()).or_default().push(user.id.clone());
    }
    all
}

/// Names that are of no user with a record.
fn without_record(core: &Core, names: &[String]) -> Vec<String> {
    let state = core.state();
    let of = |user: &User| {
        user.addresses.iter().map(IpAddr::to_string).chain([user.id.clone()]).collect::<Vec<_>>()
    };
    let ours: BTreeSet<String> = state.users.values().flat_map(of).collect();
    names.iter().filter(|name| !ours.contains(*name)).cloned().collect()
}

/// Everybody who is at `from`.
fn everybody(known: &Known, from: &Whereabouts<'_>, request: &MoveRequest) -> Result<Vec<Moving>, Refused> {
    let is_meant = |user: &&Moving| match from {
        Whereabouts::Host(host) => user.from.as_ref() == Some(&host.name),
        Whereabouts::Origin(origin) => user.origin == *origin,
        Whereabouts::Anywhere => false,
    };
    let users: Vec<Moving> = known.users.values().filter(is_meant).cloned().collect();
    let name = request.from.as_deref().unwrap_or_default();
    match users.len() {
        0 => Err(Refused::Unknown(format!("nobody is at {name} who could be moved to {}", request.to))),
        1..=MAX_USERS => Ok(users),
        count => Err(Refused::TooMany(format!("{count} users: a move has at most {MAX_USERS}"))),
    }
}

/// The users that a request names, and how many names more are nobody's.
fn named(names: &[String], known: &Known, from: &Whereabouts<'_>) -> Result<(Vec<Moving>, usize), Refused> {
    let (mut users, mut taken, mut unknown) = (Vec::new(), BTreeSet::new(), Vec::new());
    let is_there = |(origin, _): &&Key| match from {
        Whereabouts::Origin(wanted) => origin == wanted,
        _ => true,
    };
    for name in names {
        let found: Vec<&Key> = known.names.get(name).into_iter().flatten().filter(is_there).collect();
        match found[..] {
            [key] => {
                // It may be named by its identity and by its address.
                if taken.insert(key) {
                    users.extend(known.users.get(key).cloned());
                }
            }
            [] => {
                unknown.push(name);
                if unknown.len() <= MAX_UNKNOWN {
                    users.push(nobody(name));
                }
            }
            _ => {
                let all: Vec<String> = found.iter().map(|(origin, id)| format!("{id} at {origin}")).collect();
                return Err(Refused::Contradiction(format!(
                    "{name} may be {}; name the anchor with `from`, or the identity",
                    few(&all)
                )));
            }
        }
    }
    if taken.is_empty() {
        return Err(Refused::Unknown(format!("no anchor has these users: {}", few(unknown))));
    }
    Ok((users, unknown.len().saturating_sub(MAX_UNKNOWN)))
}

/// The entry of a name that no anchor knows.
fn nobody(name: &str) -> Moving {
    Moving {
        origin: String::new(),
        id: shown(name),
        addresses: Vec::new(),
        from: None,
        place: Place::default(),
        state: Fate::Stays,
        why: Some("no anchor has this user".to_owned()),
    }
}

/// A name of a request, which may have any length.
fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}

/// A few names for people, and how many there are beside them.
fn few<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let mut names = names.into_iter();
    let first: Vec<String> = names.by_ref().take(FEW).map(|name| shown(name)).collect();
    match (first.is_empty(), names.count()) {
        (true, _) => "none".to_owned(),
        (false, 0) => first.join(", "),
        (false, more) => format!("{} and {more} more", first.join(", ")),
    }
}

/// Decides for each user whether it can be moved.
fn judge(
    state: &State,
    request: &MoveRequest,
    host: Option<&Host>,
    from: &Whereabouts<'_>,
    users: &mut [Moving],
) -> Result<(), Refused> {
    if state.unfinished().count() >= MAX_MOVES {
        return Err(Refused::TooMany(format!("{MAX_MOVES} moves are under way; wait until one has ended")));
    }
    let from_host = match from {
        Whereabouts::Host(host) => Some(*host),
        _ => None,
    };
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
