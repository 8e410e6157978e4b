//! The diverting application: users, applications of users, pairs of users and whole anchors, steered to another anchor (DIV).
//!
//! Flow: a request ([`Command`]) is checked ([`model`]), confirmed ([`TargetState`], and the target must answer GTP-U Echo), written to
//! the state file ([`journal`]), made into rules ([`rules`]), and the differences to the rules so far are sent, all users of a request
//! in one bundle per switch. It is answered when the file is on the disk and the switches have the rules. What can go wrong is known before anything changes, except that a switch refuses; then everything is
//! as it was before.
//!
//! A request may be prepared before it is made ([`prepared`]).
//!
//! Owner: one task owns all diversions, and reads requests and events one after another.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use net::time::{self, Duration};
use openflow::{FlowRemovedReason, PacketOut};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::application::Context;
use crate::config::{BaseStation, Config, Place as Situation};
use crate::rule::{Rule, RuleKey};
use crate::switch::{Event, Handle, Outcome, Step, SwitchView};

mod answers;
mod askers;
pub mod explain;
mod installed;
pub mod journal;
pub mod model;
mod neighbours;
mod old_ways;
pub mod order;
mod prepared;
pub mod rules;

use answers::Seconds;
use askers::Askers;
use installed::{Difference, Installed};
use journal::{Before, Diversions, Journal, JournalError, Line, Undoable as _};
use model::{Diversion, Refusal};
pub use neighbours::AnchorState;
use neighbours::Neighbours;
use old_ways::OldWays;
use order::{Known, Plan};
use prepared::{AllPrepared, Prepared};
use rules::Placed;

/// Most requests that wait.
const REQUESTS: usize = 256;
/// How often a state file in use is tried again, after a tenth of a second each.
const OPEN_TRIES: u32 = 20;

/// Most rounds of questions between attempts to give users of a dead anchor back.
const MAX_WAIT: u32 = 64;

/// Confirms that an anchor has a user's state, before the user is moved there (DIV-3).
///
/// The request says who has ([`Stated`]): replication gives a diversion only for a copy that is there.
pub trait TargetState: Send + Sync {
    /// Whether the target of each diversion is ready for it; else why not.
    fn confirm<'a>(
        &'a self,
        diversions: &'a [Diversion],
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;
}

/// What others are told.
#[derive(Debug)]
pub enum Told<'a> {
    /// These are all diversions.
    Anew(&'a Diversions),
    /// Some are effective from now on, or no longer.
    Changed {
        /// New, or different.
        set: &'a [Diversion],
        /// As they were.
        gone: &'a [Diversion],
    },
}

/// Hears of diversions.
pub type Hears = Arc<dyn Fn(&Told) + Send + Sync>;

/// The request's word that the state is there.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stated;

impl TargetState for Stated {
    fn confirm<'a>(
        &'a self,
        diversions: &'a [Diversion],
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>> {
        Box::pin(async move {
            match diversions.iter().find(|diversion| diversion.confirmed_by.trim().is_empty()) {
                Some(diversion) => Err(format!("nobody has confirmed the state of {}", diversion.id())),
                None => Ok(()),
            }
        })
    }
}

/// What a request has done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Done {
    /// Ids of the diversions that are new or different.
    pub changed: Vec<String>,
    /// Ids of those that were so already.
    pub unchanged: Vec<String>,
    /// Rules that were installed or replaced.
    pub rules_set: usize,
    /// Rules that were removed.
    pub rules_removed: usize,
    /// Where.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// What has become of the order of packets, if it was to be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<order::Kept>,
}

/// What is prepared of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ready {
    /// Users, applications, or pairs that it changes.
    pub prepared: usize,
    /// Rules that switches have in advance.
    pub rules: usize,
    /// How many switches have theirs.
    pub switches: usize,
}

/// Whether the order of the users' packets is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Packets of the new way may overtake those of the old one.
    #[default]
    Any,
    /// They wait for these.
    Keep,
}

/// A request to the application.
#[derive(Debug)]
pub enum Command {
    /// Divert, all or none.
    Divert(Arc<[Diversion]>, Order, oneshot::Sender<Result<Done, Refusal>>),
    /// Do what can be done before the same request is made.
    Prepare(Arc<[Diversion]>, oneshot::Sender<Result<Ready, Refusal>>),
    /// Undivert by id, all or none; unknown ids are undiverted already.
    Undivert(Vec<String>, Order, oneshot::Sender<Result<Done, Refusal>>),
    /// All diversions.
    List(oneshot::Sender<Vec<Diversion>>),
    /// The anchors, as each switch sees them.
    Anchors(oneshot::Sender<Vec<AnchorState>>),
    /// What is known of link-layer addresses, by switch and address.
    Macs(oneshot::Sender<HashMap<(u64, IpAddr), openflow::MacAddr>>),
}

/// Access to the application, whether it runs or not.
#[derive(Debug, Clone)]
pub struct Diverting {
    commands: mpsc::Sender<Command>,
}

/// The receiving end of [`Diverting`], which the running application holds.
pub(crate) type Commands = Arc<tokio::sync::Mutex<mpsc::Receiver<Command>>>;

impl Diverting {
    pub(crate) fn new() -> (Diverting, Commands) {
        let (commands, requests) = mpsc::channel(REQUESTS);
        (Diverting { commands }, Arc::new(tokio::sync::Mutex::new(requests)))
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).await.map_err(|_| Refusal::Stopped)?;
        answered.await.map_err(|_| Refusal::Stopped)
    }

    /// Diverts, all or none.
    ///
    /// # Errors
    /// Why nothing was done.
    pub async fn divert(
        &self,
        diversions: impl Into<Arc<[Diversion]>>,
        order: Order,
    ) -> Result<Done, Refusal> {
        self.ask(|answer| Command::Divert(diversions.into(), order, answer)).await?
    }

    /// Does what can be done before these are diverted, if these same ones are soon. It changes nothing.
    ///
    /// # Errors
    /// Why they could not be diverted now, or cannot be prepared.
    pub async fn prepare(&self, diversions: Arc<[Diversion]>) -> Result<Ready, Refusal> {
        self.ask(|answer| Command::Prepare(diversions, answer)).await?
    }

    /// Undiverts by id, all or none.
    ///
    /// # Errors
    /// Why nothing was done.
    pub async fn undivert(&self, ids: Vec<String>, order: Order) -> Result<Done, Refusal> {
        self.ask(|answer| Command::Undivert(ids, order, answer)).await?
    }

    /// All diversions.
    ///
    /// # Errors
    /// The application does not run.
    pub async fn list(&self) -> Result<Vec<Diversion>, Refusal> {
        self.ask(Command::List).await
    }

    /// The anchors, as each switch sees them.
    ///
    /// # Errors
    /// The application does not run.
    pub async fn anchors(&self) -> Result<Vec<AnchorState>, Refusal> {
        self.ask(Command::Anchors).await
    }

    /// What is known of link-layer addresses, by switch and address.
    ///
    /// # Errors
    /// The application does not run.
    pub async fn macs(&self) -> Result<HashMap<(u64, IpAddr), openflow::MacAddr>, Refusal> {
        self.ask(Command::Macs).await
    }
}

/// What stands among the made rules for an anchor's side. No diversion has such an id.
fn side_id(anchor: &str) -> String {
    format!("{anchor}~side")
}

/// A request that is checked: what is new of it.
#[derive(Debug)]
struct Checked {
    /// In the order of their ids, which are beside them.
    new: Vec<Diversion>,
    ids: Vec<String>,
    unchanged: Vec<String>,
}

/// A change of diversions, as switches and file are told it.
#[derive(Debug)]
struct Planned {
    /// Rules by what they are of.
    made: HashMap<String, Vec<Placed>>,
    /// What has no rules any more.
    gone: Vec<String>,
    steps: Vec<Step>,
    /// Rules that stay for a moment.
    left: Vec<Placed>,
    rules_set: usize,
    rules_removed: usize,
    line: Line,
}

impl Planned {
    fn made(&self) -> impl Iterator<Item = &Placed> {
        self.made.values().flatten()
    }

    /// What it gives rules, or takes them from.
    fn ids(&self) -> impl Iterator<Item = &String> {
        self.made.keys().chain(&self.gone)
    }

    /// Rules that it changes, with their switches.
    fn changes(&self) -> impl Iterator<Item = (u64, &RuleKey)> {
        let in_steps = self.steps.iter().flat_map(|step| {
            let keys = step.set.iter().map(|rule| &rule.key).chain(&step.remove);
            keys.map(|key| (step.datapath_id, key))
        });
        in_steps.chain(self.left.iter().map(|placed| (placed.datapath_id, &placed.rule.key)))
    }

    /// These, and those that it needs as they are.
    fn keys(&self) -> impl Iterator<Item = (u64, &RuleKey)> {
        self.changes().chain(self.made().map(|placed| (placed.datapath_id, &placed.rule.key)))
    }
}

/// When to try again what has failed, in rounds of questions.
#[derive(Debug, Default)]
struct Attempt {
    wait: u32,
    left: u32,
}

struct Application {
    config: Arc<Config>,
    handle: Handle,
    target: Arc<dyn TargetState>,
    hears: Hears,
    journal: Journal,
    diversions: Diversions,
    seconds: Seconds,
    /// Rules of each diversion that could be made.
    made: HashMap<String, Vec<Placed>>,
    /// All rules.
    rules: Installed,
    /// Rules that no diversion has any more, but packets on their way do.
    old_ways: OldWays,
    prepared: AllPrepared,
    /// A change that is effective, with diversions that are gone by it. Who asked for it need not wait until its rules are entered, and
    /// routers are told.
    effective: Option<(Planned, Vec<Diversion>)>,
    neighbours: Neighbours,
    askers: Askers,
    /// Attempts to give the users of dead anchors back, by switch and anchor.
    restoring: HashMap<(u64, String), Attempt>,
    /// Switches to compare rules with, once no more events wait.
    dirty: BTreeSet<u64>,
    /// Switches that have all rules that are wanted, and no others, since they connected.
    right: BTreeSet<u64>,
    /// Switches that may still have rules of diversions that are gone, by id: they are away, or the rules are an earlier life's.
    leaving: BTreeMap<String, BTreeSet<u64>>,
    /// Number of the last queue in which packets of a move have waited.
    queue: u32,
}

/// Runs the application until it is told to stop.
pub(crate) async fn run(
    config: Arc<Config>,
    target: Arc<dyn TargetState>,
    hears: Hears,
    commands: Commands,
    context: Context,
) {
    let Context { handle, mut events, mut stop } = context;
    let (journal, diversions) = match open(&config.state).await {
        Ok(opened) => opened,
        Err(error) => {
            tracing::error!(%error, "the diverting application cannot start");
            handle.fabric().note(None, format!("diverting: {error}"));
            return;
        }
    };
    let mut commands = commands.lock().await;
    let mut ticks = time::interval(Duration::from_millis(config.diverting.echo_ms));
    let neighbours = Neighbours::new(config.clone(), handle.clone());
    let old_ways = OldWays::new(Duration::from_millis(config.diverting.old_ways_ms));
    let mut own = Application {
        config,
        handle,
        target,
        hears,
        journal,
        seconds: Seconds::of(&diversions),
        diversions,
        made: HashMap::new(),
        rules: Installed::default(),
        old_ways,
        prepared: AllPrepared::default(),
        effective: None,
        neighbours,
        askers: Askers::default(),
        restoring: HashMap::new(),
        dirty: BTreeSet::new(),
        right: BTreeSet::new(),
        leaving: BTreeMap::new(),
        // Not one of an earlier life, of which packets may wait.
        queue: nf::random::u32(),
    };
    (own.hears)(&Told::Anew(&own.diversions));
    loop {
        tokio::select! {
            _ = &mut stop => break,
            event = events.next() => own.event(event).await,
            command = commands.recv() => match command {
                Some(command) => own.command(command).await,
                None => break,
            },
            _ = ticks.tick() => own.tick().await,
            () = own.old_ways.are_over() => own.end_old_ways().await,
        }
        // Many rules may be gone at once.
        while events.is_empty()
            && let Some(datapath_id) = own.dirty.pop_first()
        {
            own.sync(datapath_id).await;
        }
    }
    // Those who wait are told that it does not run.
    while commands.try_recv().is_ok() {}
}

/// Opens the state file, for which one that has just ended may need a moment.
async fn open(path: &Path) -> Result<(Journal, Diversions), JournalError> {
    for _ in 0..OPEN_TRIES {
        match Journal::open(path) {
            Err(JournalError::InUse { .. }) => time::sleep(Duration::from_millis(100)).await,
            opened => return opened.map(|(journal, kept)| (journal, kept.0)),
        }
    }
    Journal::open(path).map(|(journal, kept)| (journal, kept.0))
}

impl Application {
    async fn command(&mut self, command: Command) {
        // Who asked may have gone.
        match command {
            Command::Divert(diversions, order, answer) => {
                let done = self.divert(diversions, order).await;
                _ = answer.send(done);
                // Who asked goes on first, also on this thread.
                tokio::task::yield_now().await;
                self.take();
            }
            Command::Prepare(diversions, answer) => _ = answer.send(self.prepare(diversions).await),
            Command::Undivert(ids, order, answer) => {
                let done = self.undivert(ids, order).await;
                _ = answer.send(done);
            }
            Command::List(answer) => _ = answer.send(self.diversions.values().cloned().collect()),
            Command::Anchors(answer) => _ = answer.send(self.neighbours.anchors()),
            Command::Macs(answer) => _ = answer.send(self.neighbours.macs()),
        }
    }

    async fn event(&mut self, event: Event) {
        match event {
            Event::SwitchUp(view) => {
                self.neighbours.up(&view);
                let settings = self.config.switch_of(view.datapath_id);
                if settings.is_some_and(|settings| settings.place == Situation::Sgi)
                    && let Ok(installed) = self.handle.installed(view.datapath_id).await
                {
                    self.askers.adopt(view.datapath_id, &installed);
                }
                // Others may have waited for what this one knows.
                if !self.remake_and_send().await {
                    self.sync(view.datapath_id).await;
                }
            }
            Event::SwitchDown(id) => {
                self.right.remove(&id);
                self.neighbours.down(id);
            }
            Event::Port { datapath_id, .. } => {
                let Some(view) = self.handle.fabric().switch(datapath_id) else { return };
                self.neighbours.ports(&view);
                self.remake_and_send().await;
            }
            Event::Packet { datapath_id, packet } => {
                if self.answer(datapath_id, &packet.data, packet.matching.in_port()).await {
                    return;
                }
                // A link-layer address that is new makes rules possible, or others.
                if self.neighbours.heard(datapath_id, &packet.data) {
                    self.remake_and_send().await;
                }
            }
            Event::Removed { datapath_id, removed } if removed.reason == FlowRemovedReason::IdleTimeout => {
                self.askers.forget(datapath_id, &removed.matching);
            }
            // It is wanted still.
            Event::Removed { datapath_id, .. } | Event::Audit(datapath_id) => {
                self.dirty.insert(datapath_id);
            }
        }
    }

    /// Tells the switches on SGi where moved users are now, so that routers need not ask.
    fn announce<'a>(&self, diversions: impl IntoIterator<Item = &'a Diversion>, back: bool) {
        let mut all: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        for diversion in diversions {
            let anchor = if back { &diversion.from } else { &diversion.to };
            let sgi = self.config.anchor(anchor).and_then(|anchor| anchor.sgi.as_ref());
            let (Some(sgi), None, None) = (sgi, diversion.application, diversion.peer) else { continue };
            let Some(switch) = self.config.switch(&sgi.switch) else { continue };
            let told = diversion.addresses().map(|address| {
                crate::frame::tell(crate::frame::Station { mac: sgi.mac, ip: address.ue }, None)
            });
            all.entry(switch.datapath_id).or_default().extend(told);
        }
        for (datapath_id, told) in all {
            let out = openflow::Action::output(openflow::PortNo::FLOOD);
            // The rules are right without it.
            let _ = self.handle.packets_out(datapath_id, openflow::PortNo::CONTROLLER, &out, told);
        }
    }

    async fn tick(&mut self) {
        for anchor in self.neighbours.tick() {
            self.handle.fabric().note(Some(anchor.datapath_id), anchor.said());
        }
        if !self.config.diverting.restore {
            return;
        }
        let dead = self.neighbours.dead();
        self.restoring.retain(|anchor, _| dead.contains(anchor));
        for anchor in dead {
            let attempt = self.restoring.entry(anchor.clone()).or_default();
            if attempt.left > 0 {
                attempt.left -= 1;
                continue;
            }
            let wait = (2 * attempt.wait).clamp(1, MAX_WAIT);
            let failed = self.restore(&anchor.1, anchor.0).await.is_err();
            let next = if failed { Attempt { wait, left: wait } } else { Attempt::default() };
            self.restoring.insert(anchor, next);
        }
    }

    /// Gives the users of a dead anchor back to those that they were diverted from, if these answer.
    async fn restore(&mut self, dead: &str, datapath_id: u64) -> Result<(), Refusal> {
        let is_concerned = |diversion: &&Diversion| {
            let is_here = || {
                let station = self.config.base_station(&diversion.base_station)?;
                Some(self.config.switch(&station.switch)?.datapath_id == datapath_id)
            };
            diversion.to == dead
                && is_here() == Some(true)
                && self.neighbours.is_alive(datapath_id, &diversion.from)
        };
        let ids: Vec<String> = self.diversions.values().filter(is_concerned).map(Diversion::id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let count = ids.len();
        let undiverted = self.undivert(ids, Order::Any).await;
        let what = match &undiverted {
            Ok(_) => format!("{count} diversions to {dead} were taken back: it does not answer"),
            Err(error) => format!("diversions to {dead} could not be taken back yet: {error}"),
        };
        self.handle.fabric().note(Some(datapath_id), what);
        undiverted.map(|_| ())
    }

    fn make(&self, diversion: &Diversion, switches: &[SwitchView]) -> Result<Vec<Placed>, rules::NoRule> {
        rules::of_diversion(diversion, &self.config, switches, &self.neighbours)
    }

    /// Makes all rules anew, after a switch has connected or an address has changed.
    fn remake(&mut self) {
        self.prepared.clear();
        let switches = self.handle.fabric().switches();
        self.made.clear();
        self.rules = Installed::default();
        for (id, diversion) in &self.diversions {
            match self.make(diversion, &switches) {
                Ok(placed) => {
                    placed.iter().for_each(|placed| self.rules.enter(placed));
                    self.made.insert(id.clone(), placed);
                }
                Err(error) => tracing::debug!(%error, id, "not diverted yet"),
            }
        }
        match rules::native::ways(&self.config, &switches) {
            Ok(ways) => ways.iter().for_each(|placed| self.rules.enter(placed)),
            Err(error) => tracing::error!(%error, "neither handovers nor moves in order are without loss"),
        }
        for anchor in &self.config.anchors {
            if let Some(placed) = self.side(&anchor.name, |id| self.diversions.get(id)) {
                self.rules.enter(&placed);
                self.made.insert(side_id(&anchor.name), vec![placed]);
            }
        }
    }

    /// The rule for an anchor's side of SGi or N6. It has the users of all base stations, and no rule there can tell which user is at
    /// which. So it moves when everything at all base stations is diverted to one other anchor; until then the old one sends downlink.
    fn side<'a>(&self, anchor: &str, diversion: impl Fn(&str) -> Option<&'a Diversion>) -> Option<Placed> {
        let of_station =
            |station: &BaseStation| Some(&diversion(&Diversion::id_of_all(anchor, &station.name))?.to);
        let mut targets = self.config.base_stations.iter().map(of_station);
        let target = targets.next()??;
        let is_one = targets.all(|other| other == Some(target));
        is_one.then(|| rules::sgi::anchor_side(&self.config, anchor, target)).flatten()
    }

    /// The rules for anchors' sides after a change, and the ids of those that are no longer there.
    fn sides(&self, set: &[Diversion], removed: &[String]) -> (HashMap<String, Vec<Placed>>, Vec<String>) {
        let gone = removed.iter().filter_map(|id| self.diversions.get(id));
        let of_all = set.iter().chain(gone).filter(|diversion| diversion.ue.is_none());
        let anchors: BTreeSet<&str> = of_all.map(|diversion| diversion.from.as_str()).collect();
        let new: HashMap<String, &Diversion> =
            set.iter().filter(|diversion| diversion.ue.is_none()).map(|new| (new.id(), new)).collect();
        let after = |id: &str| match new.get(id) {
            Some(new) => Some(*new),
            None => self.diversions.get(id).filter(|_| !removed.iter().any(|gone| gone == id)),
        };
        let (mut made, mut without) = (HashMap::new(), Vec::new());
        for anchor in anchors {
            match self.side(anchor, after) {
                Some(placed) => _ = made.insert(side_id(anchor), vec![placed]),
                None => without.push(side_id(anchor)),
            }
        }
        (made, without)
    }

    /// Makes all rules anew, and sends all switches what they lack if there is a difference; whether there is.
    async fn remake_and_send(&mut self) -> bool {
        let before = std::mem::take(&mut self.rules);
        self.remake();
        if self.rules.is_same(&before) {
            return false;
        }
        for datapath_id in self.connected() {
            self.sync(datapath_id).await;
        }
        true
    }

    fn connected(&self) -> Vec<u64> {
        let all = self.handle.fabric().switches().into_iter();
        all.filter(|view| view.connected).map(|view| view.datapath_id).collect()
    }

    /// Whether a switch may have rules of diversions for which it is not known yet what they need.
    fn is_waiting(&self, datapath_id: u64) -> bool {
        let id_of = |name: &str| self.config.switch(name).map(|switch| switch.datapath_id);
        self.diversions.iter().filter(|(id, _)| !self.made.contains_key(*id)).any(|(_, diversion)| {
            let station = self.config.base_station(&diversion.base_station);
            let access = station.and_then(|station| id_of(&station.switch));
            let sgi = self.config.anchor(&diversion.to).and_then(|anchor| anchor.sgi.as_ref());
            let is_concerned = [access, sgi.and_then(|sgi| id_of(&sgi.switch))].contains(&Some(datapath_id));
            is_concerned && access.is_some_and(|access| !self.neighbours.is_settled(access))
        })
    }

    /// Sends a switch what it lacks.
    async fn sync(&mut self, datapath_id: u64) {
        let mut all = self.neighbours.rules(datapath_id);
        let left = self.old_ways.of(datapath_id).filter(|rule| !self.rules.has(datapath_id, rule));
        all.extend(left.chain(self.rules.of(datapath_id)).cloned());
        all.extend(self.askers.rules(datapath_id));
        if self.is_waiting(datapath_id) {
            // Rules of an earlier life stay until it is known what they are for.
            let _ = self.handle.commit(&[Step { set: all, ..Step::of(datapath_id) }]).await;
            self.right.remove(&datapath_id);
            return;
        }
        // A refusal is in the log; the next audit tries again.
        if self.handle.sync(datapath_id, all).await.is_ok() {
            self.right.insert(datapath_id);
            self.leaving.values_mut().for_each(|switches| _ = switches.remove(&datapath_id));
            self.leaving.retain(|_, switches| !switches.is_empty());
        } else {
            self.right.remove(&datapath_id);
        }
    }

    /// Switches that a diversion may have rules in.
    fn concerned(&self, diversion: &Diversion) -> BTreeSet<u64> {
        let access = self.config.base_station(&diversion.base_station).map(|station| &station.switch);
        let sgi =
            self.config.anchor(&diversion.to).and_then(|anchor| anchor.sgi.as_ref()).map(|sgi| &sgi.switch);
        let id_of = |name: &String| self.config.switch(name).map(|switch| switch.datapath_id);
        access.into_iter().chain(sgi).filter_map(id_of).collect()
    }

    /// Names of switches that may still steer packets as diversions said that are gone. Those that are connected are asked once more.
    async fn still_leaving(&mut self, ids: &[String]) -> Vec<String> {
        let of = |leaving: &BTreeMap<String, BTreeSet<u64>>| -> BTreeSet<u64> {
            ids.iter().filter_map(|id| leaving.get(id)).flatten().copied().collect()
        };
        let connected = self.connected();
        for datapath_id in of(&self.leaving).into_iter().filter(|id| connected.contains(id)) {
            self.sync(datapath_id).await;
        }
        let name = |id: u64| self.config.switch_of(id).map(|switch| switch.name.clone());
        of(&self.leaving).into_iter().filter_map(name).collect()
    }

    async fn divert(&mut self, requested: Arc<[Diversion]>, order: Order) -> Result<Done, Refusal> {
        let prepared = self.prepared.take(&requested).filter(|prepared| self.is_possible(&prepared.checked));
        let (checked, planned) = match prepared {
            Some(Prepared { checked, planned, .. }) => (checked, planned),
            None => {
                let (checked, made) = self.check(&requested)?;
                if checked.new.is_empty() {
                    return Ok(Done { unchanged: checked.unchanged, ..Done::default() });
                }
                let planned = self.plan(&checked.new, &[], made)?;
                (checked, planned)
            }
        };
        let Checked { new, ids, unchanged } = checked;
        ids.iter().for_each(|id| _ = self.leaving.remove(id));
        self.target.confirm(&new).await.map_err(Refusal::NotYet)?;
        let plan = self.hold(order, &new, &[]).await;
        let changed = self.change_in_order(&new, &[], planned, plan).await?;
        Ok(Done { changed: ids, unchanged, ..changed })
    }

    /// Checks a request, and makes the rules of what is new of it.
    fn check(&self, requested: &[Diversion]) -> Result<(Checked, HashMap<String, Vec<Placed>>), Refusal> {
        let mut unchanged = Vec::new();
        let mut new: BTreeMap<String, &Diversion> = BTreeMap::new();
        for diversion in requested {
            diversion.check(&self.config)?;
            let id = diversion.id();
            // Who confirmed it may differ.
            let is_same = |old: &Diversion| {
                *old == Diversion { confirmed_by: old.confirmed_by.clone(), ..diversion.clone() }
            };
            if self.diversions.get(&id).is_some_and(is_same) && self.made.contains_key(&id) {
                unchanged.push(id);
            } else if new.insert(id.clone(), diversion).is_some() {
                return Err(Refusal::Contradiction(format!("`{id}` is there twice")));
            }
        }
        let switches = self.handle.fabric().switches();
        self.check_room(new.keys())?;
        let mut made = HashMap::with_capacity(new.len());
        for (id, diversion) in &new {
            self.check_now(diversion, &switches)?;
            let rules =
                self.make(diversion, &switches).map_err(|error| Refusal::NotYet(error.to_string()))?;
            made.insert(id.clone(), rules);
        }
        let (ids, new) = new.into_iter().map(|(id, new)| (id, new.clone())).unzip();
        Ok((Checked { new, ids, unchanged }, made))
    }

    fn check_room<'a>(&self, ids: impl Iterator<Item = &'a String>) -> Result<(), Refusal> {
        let added = ids.filter(|id| !self.diversions.contains_key(*id)).count();
        match self.diversions.len() + added > self.config.diverting.max_diversions {
            true => Err(Refusal::Full(self.diversions.len())),
            false => Ok(()),
        }
    }

    /// What depends on the state of switches and anchors.
    fn check_now(&self, diversion: &Diversion, switches: &[SwitchView]) -> Result<(), Refusal> {
        let station = model::base_station(&self.config, &diversion.base_station)?;
        let settings = self.config.switch(&station.switch);
        let view = settings
            .and_then(|switch| switches.iter().find(|view| view.datapath_id == switch.datapath_id))
            .filter(|view| view.connected)
            .ok_or_else(|| Refusal::NotYet(format!("the switch `{}` is not connected", station.switch)))?;
        diversion.check_switch(&self.config, view.dialect)?;
        if !self.neighbours.is_alive(view.datapath_id, &diversion.to) {
            return Err(Refusal::NotYet(format!(
                "`{}` does not answer GTP-U Echo at the switch `{}`, so nothing is diverted to it",
                diversion.to, view.name
            )));
        }
        Ok(())
    }

    async fn undivert(&mut self, ids: Vec<String>, order: Order) -> Result<Done, Refusal> {
        let (known, unknown): (Vec<String>, Vec<String>) =
            ids.into_iter().partition(|id| self.diversions.contains_key(id));
        if known.is_empty() {
            let outcome = Outcome { pending: self.still_leaving(&unknown).await, ..Outcome::default() };
            return Ok(Done { unchanged: unknown, outcome, ..Done::default() });
        }
        let gone: Vec<Diversion> = known.iter().filter_map(|id| self.diversions.get(id).cloned()).collect();
        let is_unmade = known.iter().any(|id| !self.made.contains_key(id));
        let plan = self.hold(order, &[], &known).await;
        if plan.is_some() {
            // Nothing rewrites the link-layer address of downlink packets after the change: routers know the new one before.
            self.announce(&gone, true);
        }
        let planned = self.plan(&[], &known, HashMap::new())?;
        let mut changed = self.change_in_order(&[], &known, planned, plan).await?;
        self.take();
        let away = |name: &String| self.config.switch(name).map(|switch| switch.datapath_id);
        let away: BTreeSet<u64> = changed.outcome.pending.iter().filter_map(away).collect();
        for diversion in gone {
            let mut left = self.concerned(&diversion);
            // Its rules of an earlier life are not known, but may be in the switches.
            left.retain(|id| is_unmade || away.contains(id) || !self.right.contains(id));
            if !left.is_empty() && self.leaving.len() < self.config.diverting.max_diversions {
                self.leaving.insert(diversion.id(), left);
            }
        }
        if is_unmade {
            self.dirty.extend(self.connected());
        }
        let all = [known.as_slice(), unknown.as_slice()].concat();
        changed.outcome.pending = self.still_leaving(&all).await;
        Ok(Done { changed: known, unchanged: unknown, ..changed })
    }

    /// Lets packets of the users' new ways wait, if their order is to be kept.
    async fn hold(&mut self, order: Order, set: &[Diversion], removed: &[String]) -> Option<Plan> {
        if order == Order::Any {
            return None;
        }
        let switches = self.handle.fabric().switches();
        let known = Known {
            config: &self.config,
            neighbours: &self.neighbours,
            switches: &switches,
            diversions: &self.diversions,
        };
        let mut plan = Plan::new(&known, set, removed, &mut self.queue);
        plan.hold(&self.handle).await;
        Some(plan)
    }

    /// Makes a change effective, tells routers, and ends the waiting of packets that wait for it.
    async fn change_in_order(
        &mut self,
        set: &[Diversion],
        removed: &[String],
        planned: Planned,
        plan: Option<Plan>,
    ) -> Result<Done, Refusal> {
        let gone: Vec<Diversion> = removed.iter().filter_map(|id| self.diversions.get(id).cloned()).collect();
        let tokens = plan.as_ref().map(Plan::tokens).unwrap_or_default();
        let changed = self.change(set, removed, planned, tokens).await;
        if changed.is_ok() {
            (self.hears)(&Told::Changed { set, gone: &gone });
        }
        let Some(mut plan) = plan else { return changed };
        if changed.is_ok() {
            // Packets wait meanwhile, and who asked does as well.
            self.take();
        }
        match changed {
            Ok(done) => {
                plan.changed();
                Ok(Done { order: Some(plan.finish(&self.handle).await), ..done })
            }
            Err(error) => {
                plan.remove(&self.handle).await;
                Err(error)
            }
        }
    }

    /// What switches and file are told of a change.
    fn plan(
        &self,
        set: &[Diversion],
        removed: &[String],
        mut made: HashMap<String, Vec<Placed>>,
    ) -> Result<Planned, Refusal> {
        let (sides, without) = self.sides(set, removed);
        made.extend(sides);
        let gone = [removed, &without].concat();
        let mut difference = self.rules.difference(self.old(&gone, &made), made.values().flatten())?;
        let left = std::mem::take(&mut difference.left);
        let (rules_set, rules_removed) = (difference.set.len(), difference.removed.len() + left.len());
        let (steps, line) = (difference.steps(), journal::line(set, removed));
        Ok(Planned { made, gone, steps, left, rules_set, rules_removed, line })
    }

    /// Makes a change of diversions effective, or nothing of it. Tokens are sent behind what takes the old ways.
    async fn change(
        &mut self,
        set: &[Diversion],
        removed: &[String],
        mut planned: Planned,
        tokens: &[(u64, PacketOut)],
    ) -> Result<Done, Refusal> {
        let written = journal::write(&mut self.journal, &planned.line, || {
            let mut all = self.diversions.clone();
            all.apply(set, removed);
            all
        });
        let written = written.map_err(|error| Refusal::State(error.to_string()))?;
        add_tokens(&mut planned.steps, tokens);
        // Nobody is told before both are done, so neither has to wait for the other (ADR 0030).
        let (committed, durable, before) =
            tokio::join!(self.handle.commit(&planned.steps), written.durable(), async {
                let before = self.diversions.clone_of(set, removed);
                self.diversions.apply(set, removed);
                self.seconds.change(&before.0, set);
                before
            });
        if let Err(error) = durable {
            self.journal.begin_anew();
            if committed.is_ok() {
                // A switch that refuses is in the log; the next comparison puts it right.
                let changed = self.old(&planned.gone, &planned.made).chain(planned.made());
                let _ = self.handle.commit(&self.rules.undo(changed).steps()).await;
            }
            self.back(before).await;
            return Err(Refusal::State(error.to_string()));
        }
        match committed {
            Ok(outcome) => {
                let Planned { rules_set, rules_removed, .. } = planned;
                self.effective = Some((planned, before.0));
                Ok(Done { rules_set, rules_removed, outcome, ..Done::default() })
            }
            Err(error) => {
                self.back(before).await;
                Err(error.into())
            }
        }
    }

    /// Removes rules of old ways on which no packet is any more.
    async fn end_old_ways(&mut self) {
        let removed = self.rules.without(self.old_ways.take_over());
        let steps = Difference { removed, ..Difference::default() }.steps();
        // What a switch does not remove now is found when rules are compared.
        let _ = self.handle.commit(&steps).await;
    }

    /// Enters into the file that a change was taken back.
    async fn back(&mut self, before: Before) {
        let taken_back = self.diversions.clone_of(&before.0, &before.1);
        let (set, removed) = self.diversions.restore(before);
        self.seconds.change(&taken_back.0, &set);
        let written = match journal::write(&mut self.journal, &journal::line(&set, &removed), || {
            self.diversions.clone()
        }) {
            Ok(written) => written.durable().await,
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            self.journal.begin_anew();
            self.handle.fabric().note(None, format!("the state file says more than is done: {error}"));
        }
    }

    /// The rules so far of diversions that are gone or made anew.
    fn old<'a>(
        &'a self,
        gone: &'a [String],
        made: &'a HashMap<String, Vec<Placed>>,
    ) -> impl Iterator<Item = &'a Placed> {
        gone.iter().chain(made.keys()).filter_map(|id| self.made.get(id)).flatten()
    }

    /// Enters the change that is effective, if one is.
    fn take(&mut self) {
        let Some((planned, before)) = self.effective.take() else { return };
        self.prepared.changed(&planned);
        let Planned { made, gone, steps, left, .. } = planned;
        self.handle.enter_staged(&steps);
        self.announce(made.keys().filter_map(|id| self.diversions.get(id)), false);
        self.announce(before.iter().filter(|old| !self.diversions.contains_key(&old.id())), true);
        let old: Vec<String> = gone.iter().chain(made.keys()).cloned().collect();
        for placed in old.iter().filter_map(|id| self.made.remove(id)).flatten() {
            self.rules.leave(&placed);
        }
        made.values().flatten().for_each(|placed| self.rules.enter(placed));
        self.made.extend(made);
        self.old_ways.leave(left);
    }
}

/// Tokens go with the last step of their switch: from there on its packets take the new ways.
fn add_tokens(steps: &mut Vec<Step>, tokens: &[(u64, PacketOut)]) {
    for (datapath_id, packet) in tokens {
        let at = match steps.iter().rposition(|step| step.datapath_id == *datapath_id) {
            Some(at) => at,
            None => {
                steps.push(Step::of(*datapath_id));
                steps.len() - 1
            }
        };
        steps[at].packets.push(packet.clone());
    }
}

/// The rules of an address at which the controller asks.
pub(crate) fn probe_rules(address: IpAddr) -> Vec<Rule> {
    rules::of_probe(address).unwrap_or_default()
}
