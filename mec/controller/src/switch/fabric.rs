//! What is known of all switches, and what applications want of them.
//!
//! Owner: one [`Fabric`] per controller, shared by connections, applications and the API. For every switch and application it holds
//! the wanted rules. An application changes them through its [`Handle`]:
//! - [`Handle::sync`] says what is wanted of one switch, asks the switch what it has of this application, and sends the differences;
//! - [`Handle::commit`] changes rules of several switches, all or none: when one refuses, those before it get their old rules back.
//!
//! What happens goes into the mailbox of each application (`events.rs`).
//!
//! Invariant: an application never sees or changes rules of another one.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::time;
use openflow::{
    Action, FlowMod, FlowRemoved, FlowRemovedReason, FlowStats, Message, PacketIn, PacketOut, Port, PortNo,
    PortReason, PortState, PortStatus,
};
use serde::Serialize;
use telemetry::counters::{Counter, Family};

use super::connection::{Connection, Dialect, Staged, SwitchError};
use super::events::{Events, Mailbox};
use crate::rule::{App, Kind, Rule, RuleKey, RuleSet, SyncReport, difference};

static PACKETS_WITHOUT_OWNER: Counter = Counter::new("controller_packets_without_owner");
static REMOVED_BY_OTHERS: Counter = Counter::new("controller_rules_removed_by_others");
static SENT: Counter = Counter::new("controller_flow_mods_sent");
static REFUSED: Family = Family::new("controller_refusals", "code");

/// Entries of the log that are kept.
const LOG: usize = 1000;
/// Most ports of a switch that are remembered.
pub(super) const MAX_PORTS: usize = 4096;

/// A switch as applications see it.
#[derive(Debug, Clone)]
pub struct SwitchView {
    /// Its number.
    pub datapath_id: u64,
    /// Its name in the configuration.
    pub name: String,
    /// Whether it is connected.
    pub connected: bool,
    /// The form of its rules.
    pub dialect: Dialect,
    /// What it says it is.
    pub software: String,
    /// Its ports.
    pub ports: Vec<Port>,
}

impl SwitchView {
    /// Names of the ports that hold packets and let them go, of our switch.
    pub const HOLD: [&str; 2] = ["hold", "release"];

    /// Ports behind which somebody can be: those that hold packets lead nowhere.
    pub fn leading_ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|port| !SwitchView::HOLD.contains(&port.name.as_str()))
    }

    /// The port of a name.
    pub fn port(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|port| port.name.as_str() == name)
    }

    /// The switch's own port.
    pub fn local(&self) -> Option<&Port> {
        self.ports.iter().find(|port| port.port_no == PortNo::LOCAL)
    }
}

/// What a switch says when it connects.
pub(crate) struct Joining {
    pub(crate) dialect: Dialect,
    pub(crate) software: String,
    pub(crate) ports: Vec<Port>,
}

#[derive(Debug)]
struct Switch {
    name: String,
    connection: Option<Arc<Connection>>,
    dialect: Dialect,
    software: String,
    ports: BTreeMap<PortNo, Port>,
    wanted: HashMap<App, RuleSet>,
}

/// A line of the log.
#[derive(Debug, Clone, Serialize)]
pub struct LogEntry {
    /// Counts from 1.
    pub number: u64,
    /// Seconds since 1970.
    pub time_s: u64,
    /// The switch, if it is about one.
    pub switch: Option<String>,
    /// What has happened.
    pub what: String,
}

#[derive(Debug, Default)]
struct State {
    switches: BTreeMap<u64, Switch>,
    applications: HashMap<App, Arc<Mailbox>>,
    log: VecDeque<LogEntry>,
    logged: u64,
}

/// All switches.
#[derive(Debug)]
pub struct Fabric {
    state: Mutex<State>,
}

/// A change of one switch's rules.
#[derive(Debug, Clone)]
pub struct Step {
    /// The switch.
    pub datapath_id: u64,
    /// Rules to install or replace.
    pub set: Vec<Rule>,
    /// Rules to remove.
    pub remove: Vec<RuleKey>,
    /// Packets that are sent behind all that the switch has treated by the rules from before.
    pub packets: Vec<PacketOut>,
    /// The changes as a bundle that the switch has already ([`Handle::stage`]).
    pub(crate) staged: Option<Arc<Staged>>,
}

impl Step {
    /// Nothing for a switch.
    pub fn of(datapath_id: u64) -> Step {
        Step { datapath_id, set: Vec::new(), remove: Vec::new(), packets: Vec::new(), staged: None }
    }

    /// Whether it was given in advance, and is entered into what is wanted behind the answer. What is removed is not wanted any more before
    /// the switch says that it is gone.
    fn is_entered_late(&self) -> bool {
        self.staged.is_some() && self.remove.is_empty()
    }

    /// How many rules it installs, replaces or removes.
    pub(crate) fn len(&self) -> usize {
        self.set.len() + self.remove.len()
    }

    /// Has a switch do it. What it has as a bundle already takes effect at once; if it has not, or does not take it, in the ordinary way.
    async fn apply(&self, app: App, connection: &Arc<Connection>) -> Result<(), SwitchError> {
        let changes = self.changes(app);
        SENT.add(changes.len() as u64);
        let staged = self.staged.as_ref().filter(|staged| staged.is_of(connection));
        let Some(staged) = staged else { return connection.apply(changes, &self.packets).await };
        match staged.commit().await {
            Ok(()) => connection.apply(std::iter::empty(), &self.packets).await,
            Err(SwitchError::Refused { .. }) => connection.apply(changes, &self.packets).await,
            Err(error) => Err(error),
        }
    }

    /// What the switch is told: rules to install first.
    fn changes(&self, app: App) -> impl ExactSizeIterator<Item = FlowMod> + Clone {
        let (set, remove) = (&self.set, &self.remove);
        let of = move |at: usize| match set.get(at) {
            Some(rule) => rule.add(app),
            None => remove[at - set.len()].delete(app),
        };
        (0..set.len() + remove.len()).map(of)
    }
}

/// What has become of a commit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Switches that have the new rules.
    pub done: Vec<String>,
    /// Switches that are not connected, and get the rules when they are.
    pub pending: Vec<String>,
}

/// Why a commit has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// No such switch.
    #[error("there is no switch {0:#x}")]
    NoSwitch(u64),
    /// Another application has a rule of this key.
    #[error("a rule of table {table}, priority {priority} is one of the application {owner}")]
    NotOurs {
        /// Its table.
        table: u8,
        /// Its priority.
        priority: u16,
        /// Whose it is.
        owner: &'static str,
    },
    /// A switch refused. The others have their old rules again.
    #[error("{switch}: {error}")]
    Refused {
        /// The switch.
        switch: String,
        /// Its error.
        error: SwitchError,
    },
}

impl Fabric {
    /// The switches of the configuration, none connected.
    pub fn new(switches: impl IntoIterator<Item = (u64, String)>) -> Arc<Fabric> {
        let switch = |name| Switch {
            name,
            connection: None,
            dialect: Dialect::Native,
            software: String::new(),
            ports: BTreeMap::new(),
            wanted: HashMap::new(),
        };
        let switches = switches.into_iter().map(|(id, name)| (id, switch(name))).collect();
        Arc::new(Fabric { state: Mutex::new(State { switches, ..State::default() }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All switches as they are now.
    pub fn switches(&self) -> Vec<SwitchView> {
        self.state().switches.iter().map(|(id, switch)| switch.view(*id)).collect()
    }

    /// One switch as it is now.
    pub fn switch(&self, datapath_id: u64) -> Option<SwitchView> {
        self.state().switches.get(&datapath_id).map(|switch| switch.view(datapath_id))
    }

    /// How many rules are wanted of a switch, by application.
    pub fn wanted(&self, datapath_id: u64) -> BTreeMap<&'static str, usize> {
        let state = self.state();
        let wanted = state.switches.get(&datapath_id).map(|switch| &switch.wanted);
        wanted.into_iter().flatten().map(|(app, rules)| (app.name(), rules.len())).collect()
    }

    /// All flows that a switch has, whoever owns them.
    ///
    /// # Errors
    /// It is not connected or does not answer.
    pub async fn flows(&self, datapath_id: u64) -> Result<Vec<FlowStats>, SwitchError> {
        let connection = self.connection(datapath_id).ok_or(SwitchError::Gone)?;
        connection.flows(None).await
    }

    fn connection(&self, datapath_id: u64) -> Option<Arc<Connection>> {
        self.state().switches.get(&datapath_id)?.connection.clone()
    }

    /// Writes a line of the log.
    pub fn note(&self, datapath_id: Option<u64>, what: impl Into<String>) {
        self.state().note(datapath_id, what.into());
    }

    /// The log from a number on.
    pub fn log(&self, from: u64) -> Vec<LogEntry> {
        self.state().log.iter().filter(|entry| entry.number >= from).cloned().collect()
    }

    /// Lets an application hear of events, first of the switches that are there.
    pub(crate) fn attach(self: &Arc<Fabric>, app: App) -> Events {
        let mailbox = Arc::new(Mailbox::default());
        let mut state = self.state();
        for (id, _) in state.switches.iter().filter(|(_, switch)| switch.connection.is_some()) {
            mailbox.up(*id);
        }
        state.applications.insert(app, mailbox.clone());
        state.note(None, format!("application {} has started", app.name()));
        Events { fabric: self.clone(), mailbox }
    }

    /// The application hears no more. Its rules stay in the switches.
    pub(crate) fn detach(&self, app: App) {
        let mut state = self.state();
        state.applications.remove(&app);
        for switch in state.switches.values_mut() {
            switch.wanted.remove(&app);
        }
        state.note(None, format!("application {} has stopped, its rules stay", app.name()));
    }

    /// A switch has said who it is. Whether it is one of the configuration.
    pub(crate) fn join(&self, datapath_id: u64, connection: &Arc<Connection>, joining: Joining) -> bool {
        let mut state = self.state();
        let Some(switch) = state.switches.get_mut(&datapath_id) else { return false };
        if let Some(old) = switch.connection.replace(connection.clone()) {
            old.close();
        }
        switch.dialect = joining.dialect;
        switch.software = joining.software;
        switch.ports = joining.ports.into_iter().take(MAX_PORTS).map(|port| (port.port_no, port)).collect();
        let connected = format!("connected: {}", switch.software);
        state.note(Some(datapath_id), connected);
        state.tell_all(|mailbox| mailbox.up(datapath_id));
        true
    }

    /// A connection has ended.
    pub(crate) fn leave(&self, datapath_id: u64, connection: &Arc<Connection>, why: &str) {
        let mut state = self.state();
        let Some(switch) = state.switches.get_mut(&datapath_id) else { return };
        // A newer connection of the same switch stays.
        if !switch.connection.as_ref().is_some_and(|own| Arc::ptr_eq(own, connection)) {
            return;
        }
        switch.connection = None;
        state.note(Some(datapath_id), format!("disconnected: {why}"));
        state.tell_all(|mailbox| mailbox.down(datapath_id));
    }

    pub(crate) fn packet_in(&self, datapath_id: u64, packet: PacketIn) {
        match App::of_cookie(packet.cookie) {
            Some(app) => self.state().tell(app, |mailbox| mailbox.packet(datapath_id, packet)),
            None => PACKETS_WITHOUT_OWNER.inc(),
        }
    }

    pub(crate) fn flow_removed(&self, datapath_id: u64, removed: FlowRemoved) {
        let Some(app) = App::of_cookie(removed.cookie) else { return };
        let mut state = self.state();
        let Some(wanted) =
            state.switches.get_mut(&datapath_id).and_then(|switch| switch.wanted.get_mut(&app))
        else {
            return;
        };
        let (table, priority) = (removed.table_id, removed.priority);
        let key = RuleKey { table, priority, matching: removed.matching.clone() }.canonical();
        if !wanted.contains_key(&key) {
            // We have removed it ourselves.
            return;
        }
        match removed.reason {
            FlowRemovedReason::IdleTimeout | FlowRemovedReason::HardTimeout => _ = wanted.remove(&key),
            FlowRemovedReason::Delete | FlowRemovedReason::GroupDelete => {
                REMOVED_BY_OTHERS.inc();
                let table = removed.table_id.0;
                let what = format!("someone else has removed a rule of {}, table {table}", app.name());
                state.note(Some(datapath_id), what);
            }
        }
        state.tell(app, |mailbox| mailbox.removed(datapath_id, removed));
    }

    pub(crate) fn port_status(&self, datapath_id: u64, status: PortStatus) {
        let mut state = self.state();
        let Some(switch) = state.switches.get_mut(&datapath_id) else { return };
        let port = status.port;
        if status.reason == PortReason::Delete {
            switch.ports.remove(&port.port_no);
        } else if switch.ports.len() < MAX_PORTS || switch.ports.contains_key(&port.port_no) {
            switch.ports.insert(port.port_no, port.clone());
        }
        let link = if port.state.contains(PortState::LINK_DOWN) { ", no link" } else { "" };
        let reason = match status.reason {
            PortReason::Add => "added",
            PortReason::Delete => "removed",
            PortReason::Modify => "changed",
        };
        let what = format!("port {} ({}): {reason}{link}", port.port_no.0, port.name.as_str());
        state.note(Some(datapath_id), what);
        let (reason, port) = (status.reason, Box::new(port));
        state.tell_all(|mailbox| mailbox.port(datapath_id, reason, port.clone()));
    }

    /// Lets all applications compare their rules with those of the switches.
    pub(crate) fn audit(&self) {
        let state = self.state();
        for (id, _) in state.switches.iter().filter(|(_, switch)| switch.connection.is_some()) {
            state.tell_all(|mailbox| mailbox.audit(*id));
        }
    }
}

impl State {
    fn note(&mut self, datapath_id: Option<u64>, what: String) {
        let switch = datapath_id.map(|id| match self.switches.get(&id) {
            Some(switch) => switch.name.clone(),
            None => format!("{id:#x}"),
        });
        tracing::info!(switch, "{what}");
        self.logged += 1;
        let since_1970 = time::wall_clock().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        self.log.push_back(LogEntry { number: self.logged, time_s: since_1970.as_secs(), switch, what });
        if self.log.len() > LOG {
            self.log.pop_front();
        }
    }

    fn tell(&self, app: App, what: impl FnOnce(&Mailbox)) {
        if let Some(mailbox) = self.applications.get(&app) {
            what(mailbox);
        }
    }

    fn tell_all(&self, what: impl Fn(&Mailbox)) {
        self.applications.values().for_each(|mailbox| what(mailbox));
    }
}

impl Switch {
    fn view(&self, datapath_id: u64) -> SwitchView {
        SwitchView {
            datapath_id,
            name: self.name.clone(),
            connected: self.connection.is_some(),
            dialect: self.dialect,
            software: self.software.clone(),
            ports: self.ports.values().cloned().collect(),
        }
    }

    /// Another application's rule of the same key.
    fn owner(&self, app: App, key: &RuleKey) -> Option<App> {
        self.wanted
            .iter()
            .find(|(other, rules)| **other != app && rules.contains_key(key))
            .map(|(app, _)| *app)
    }
}

/// An application's access to the switches. Each application has one, and uses it in one task, so its changes are in order.
#[derive(Debug, Clone)]
pub struct Handle {
    fabric: Arc<Fabric>,
    app: App,
}

/// What is needed to take a step back.
struct Undo<'a> {
    step: &'a Step,
    /// The step back; none if the step is not entered into what is wanted.
    back: Option<Step>,
    connection: Option<Arc<Connection>>,
}

impl Handle {
    pub(crate) fn new(fabric: Arc<Fabric>, app: App) -> Handle {
        Handle { fabric, app }
    }

    /// For packets that leave whether an application runs or not. It installs no rules.
    pub(crate) fn of_controller(fabric: Arc<Fabric>) -> Handle {
        Handle { fabric, app: App::Capture }
    }

    /// All switches.
    pub fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// The rules of this application that a switch has.
    ///
    /// # Errors
    /// It is not connected or does not answer.
    pub async fn installed(&self, datapath_id: u64) -> Result<Vec<FlowStats>, SwitchError> {
        let connection = self.fabric.connection(datapath_id).ok_or(SwitchError::Gone)?;
        connection.flows(Some(self.app)).await
    }

    /// How many packets the rules of one kind of this application have taken.
    ///
    /// # Errors
    /// It is not connected or does not answer.
    pub async fn packets(&self, datapath_id: u64, kind: Kind) -> Result<HashMap<RuleKey, u64>, SwitchError> {
        let connection = self.fabric.connection(datapath_id).ok_or(SwitchError::Gone)?;
        let flows = connection.flows_of(self.app.cookie() | kind as u64, u64::MAX).await?;
        let key = |flow: &FlowStats| RuleKey {
            table: flow.table_id,
            priority: flow.priority,
            matching: flow.matching.clone(),
        };
        Ok(flows.iter().map(|flow| (key(flow).canonical(), flow.packet_count)).collect())
    }

    /// Says what is wanted of a switch, compares it with what the switch has, and sends the differences in one bundle.
    ///
    /// # Errors
    /// It is not connected, does not answer, or refuses. What is wanted stays wanted.
    pub async fn sync(&self, datapath_id: u64, rules: Vec<Rule>) -> Result<SyncReport, SwitchError> {
        let wanted: RuleSet = rules.into_iter().map(|rule| (rule.key.clone(), rule)).collect();
        let connection = {
            let mut state = self.fabric.state();
            let switch = state.switches.get_mut(&datapath_id).ok_or(SwitchError::Gone)?;
            switch.wanted.insert(self.app, wanted.clone());
            switch.connection.clone().ok_or(SwitchError::Gone)?
        };
        let all = difference(self.app, &wanted, &connection.flows(Some(self.app)).await?);
        SENT.add(all.flow_mods.len() as u64);
        let result = connection.apply(all.flow_mods.iter().cloned(), &[]).await;
        match &result {
            Ok(()) if all.flow_mods.is_empty() => {}
            Ok(()) => {
                let SyncReport { added, removed, kept } = all.report;
                let what = format!(
                    "rules of {}: {added} added, {removed} removed, {kept} were right",
                    self.app.name()
                );
                self.fabric.note(Some(datapath_id), what);
            }
            Err(error) => {
                count(error);
                self.fabric.note(Some(datapath_id), format!("rules of {}: {error}", self.app.name()));
            }
        }
        result.map(|()| all.report)
    }

    /// Changes rules, step by step; all steps or none. Steps that were given in advance are then to be entered into what is wanted
    /// ([`Handle::enter_staged`]): who waits for the change need not wait for that.
    ///
    /// # Errors
    /// A switch refuses or does not answer. All have their old rules then, or get them when they connect.
    pub async fn commit(&self, steps: &[Step]) -> Result<Outcome, CommitError> {
        let mut undone: Vec<Undo<'_>> = Vec::new();
        let mut outcome = Outcome::default();
        for step in steps {
            let (name, connection) = match self.check(step) {
                Ok(checked) => checked,
                Err(error) => {
                    self.take_back(undone).await;
                    return Err(error);
                }
            };
            let (applied, back) = match &connection {
                Some(connection) if step.is_entered_late() => (step.apply(self.app, connection).await, None),
                // What is new is entered while the switch has its work.
                Some(connection) if step.remove.is_empty() => {
                    tokio::join!(step.apply(self.app, connection), async { Some(self.enter(step)) })
                }
                // What is removed is not wanted any more before the switch says that it is gone.
                Some(connection) => {
                    let back = self.enter(step);
                    (step.apply(self.app, connection).await, Some(back))
                }
                None => (Err(SwitchError::Gone), Some(self.enter(step))),
            };
            undone.push(Undo { step, back, connection });
            match applied {
                Ok(()) => outcome.done.push(name),
                // It gets them when it connects.
                Err(SwitchError::Gone) => outcome.pending.push(name),
                Err(error) => {
                    count(&error);
                    self.fabric.note(Some(step.datapath_id), format!("{}: {error}", self.app.name()));
                    self.take_back(undone).await;
                    return Err(CommitError::Refused { switch: name, error });
                }
            }
        }
        outcome.done.dedup();
        outcome.pending.dedup();
        Ok(outcome)
    }

    /// Gives switches steps in advance, as bundles that they do not commit yet. A switch that does not take them, or is away, gets them when
    /// they are committed. How many switches have theirs.
    pub(crate) async fn stage(&self, steps: &mut [Step]) -> usize {
        let mut switches = BTreeSet::new();
        for step in steps {
            let Ok((_, Some(connection))) = self.check(step) else { continue };
            // Open vSwitch forgets bundles that nobody commits within some seconds.
            let view = self.fabric.switch(step.datapath_id);
            if view.is_none_or(|view| view.dialect != Dialect::Native) {
                continue;
            }
            match connection.stage(step.changes(self.app)).await {
                Ok(staged) => {
                    step.staged = Some(Arc::new(staged));
                    switches.insert(step.datapath_id);
                }
                Err(error) => {
                    tracing::debug!(%error, step.datapath_id, "not given in advance");
                    // Whoever waits for one answer is not to wait for more.
                    if matches!(error, SwitchError::Late) {
                        break;
                    }
                }
            }
        }
        switches.len()
    }

    /// Whether a step can be made; the switch. One that was given in advance was checked then.
    fn check(&self, step: &Step) -> Result<(String, Option<Arc<Connection>>), CommitError> {
        let state = self.fabric.state();
        let id = step.datapath_id;
        let switch = state.switches.get(&id).ok_or(CommitError::NoSwitch(id))?;
        for rule in step.set.iter().filter(|_| step.staged.is_none()) {
            if let Some(owner) = switch.owner(self.app, &rule.key) {
                let RuleKey { table, priority, .. } = rule.key;
                return Err(CommitError::NotOurs { table: table.0, priority, owner: owner.name() });
            }
        }
        Ok((switch.name.clone(), switch.connection.clone()))
    }

    /// Enters steps that were given in advance, and have been committed, into what is wanted.
    pub(crate) fn enter_staged(&self, steps: &[Step]) {
        for step in steps.iter().filter(|step| step.is_entered_late()) {
            self.enter(step);
        }
    }

    /// The step back of one that is not entered.
    fn reverse(&self, step: &Step) -> Step {
        let mut back = Step::of(step.datapath_id);
        let state = self.fabric.state();
        let wanted = state.switches.get(&step.datapath_id).and_then(|switch| switch.wanted.get(&self.app));
        let get = |key| wanted.and_then(|wanted| wanted.get(key)).cloned();
        for key in step.set.iter().map(|rule| &rule.key) {
            match get(key) {
                Some(old) => back.set.push(old),
                None => back.remove.push(key.clone()),
            }
        }
        back.set.extend(step.remove.iter().filter_map(get));
        back
    }

    /// Enters a step into what is wanted; the step back.
    fn enter(&self, step: &Step) -> Step {
        let mut back = Step::of(step.datapath_id);
        let mut state = self.fabric.state();
        let Some(switch) = state.switches.get_mut(&step.datapath_id) else { return back };
        let wanted = switch.wanted.entry(self.app).or_default();
        wanted.reserve(step.set.len());
        back.remove.reserve(step.set.len());
        for rule in &step.set {
            match wanted.insert(rule.key.clone(), rule.clone()) {
                Some(old) => back.set.push(old),
                None => back.remove.push(rule.key.clone()),
            }
        }
        for key in &step.remove {
            back.set.extend(wanted.remove(key));
        }
        back
    }

    async fn take_back(&self, undone: Vec<Undo<'_>>) {
        for Undo { step, back, connection } in undone.into_iter().rev() {
            let step = back.unwrap_or_else(|| self.reverse(step));
            self.enter(&step);
            let Some(connection) = connection else { continue };
            if let Err(error) = connection.apply(step.changes(self.app), &[]).await {
                // The next synchronisation puts it right.
                self.fabric.note(Some(step.datapath_id), format!("taking back a change: {error}"));
                self.fabric.state().tell(self.app, |mailbox| mailbox.audit(step.datapath_id));
            }
        }
    }

    /// Sends a packet by a switch.
    ///
    /// # Errors
    /// It is not connected, or too many messages wait for it.
    pub fn packet_out(
        &self,
        datapath_id: u64,
        in_port: PortNo,
        actions: Vec<Action>,
        data: Vec<u8>,
    ) -> Result<(), SwitchError> {
        let connection = self.fabric.connection(datapath_id).ok_or(SwitchError::Gone)?;
        let packet = PacketOut { buffer_id: openflow::BufferId::NO_BUFFER, in_port, actions, data };
        connection.tell(&Message::PacketOut(packet))
    }
}

impl Handle {
    /// Sends packets by a switch, all in the same way.
    ///
    /// # Errors
    /// As [`Handle::packet_out`].
    pub fn packets_out(
        &self,
        datapath_id: u64,
        in_port: PortNo,
        action: &Action,
        packets: Vec<Vec<u8>>,
    ) -> Result<(), SwitchError> {
        let connection = self.fabric.connection(datapath_id).ok_or(SwitchError::Gone)?;
        let packet = |data| PacketOut {
            buffer_id: openflow::BufferId::NO_BUFFER,
            in_port,
            actions: vec![action.clone()],
            data,
        };
        connection.tell_all(packets.into_iter().map(|data| packet(data).into()))
    }
}

fn count(error: &SwitchError) {
    if let SwitchError::Refused { code, .. } = error {
        REFUSED.inc(code.name().unwrap_or("other"));
    }
}
