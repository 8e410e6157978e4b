//! What all tasks of the orchestrator share: the state with its journal, the controller, the drivers.
//!
//! Exists once. A change is in the journal, on the disk, before it is in the state, and nothing is done that the journal does not
//! announce: [`Core::record`] comes first, the call to the controller second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::time::{self, Duration};
use store::journal::{Contents as _, Journal, JournalError, Written};
use tokio::sync::{OwnedMutexGuard, oneshot, watch};
use tokio::task::JoinSet;

use crate::config::{Config, Host};
use crate::controller::{CallFailed, Controller};
use crate::driver::Drivers;
use crate::model::{Change, Move, State};

/// Why a call was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// The controller refuses it.
    Refused(String),
    /// It was not done in time; it may be done or not.
    TimeOver(String),
    /// The move is to be undone.
    Abort,
}

impl GivenUp {
    /// For people.
    pub(crate) fn why(self) -> String {
        match self {
            GivenUp::Refused(why) => why,
            GivenUp::TimeOver(why) => format!("not done in time: {why}"),
            GivenUp::Abort => "undone on request".to_owned(),
        }
    }
}

/// What looks remember from one to the next.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Looks in a row at which a host's anchor did not answer.
    pub(crate) missed: BTreeMap<String, u32>,
    /// Hosts without users, and since when.
    pub(crate) empty: BTreeMap<String, time::Instant>,
    /// Looks in a row at which the controller did not know a user.
    pub(crate) unknown: BTreeMap<crate::model::Key, u32>,
    /// Users that are not moved after their base stations until then, because that failed.
    pub(crate) not_before: BTreeMap<crate::model::Key, time::Instant>,
    /// Anchors that answer.
    pub(crate) alive: Option<std::collections::BTreeSet<String>>,
    /// Why the last look failed.
    pub(crate) problem: Option<String>,
}

pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) controller: Controller,
    pub(crate) drivers: Drivers,
    state: Arc<Mutex<State>>,
    journal: Arc<tokio::sync::Mutex<Journal<State>>>,
    /// Held while moves are made and while looks change users, so that no user is in two hands.
    pub(crate) turn: tokio::sync::Mutex<()>,
    pub(crate) memory: Mutex<Memory>,
    /// Counts changes.
    pub(crate) changes: watch::Sender<u64>,
    tasks: Mutex<JoinSet<()>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub(crate) fn new(config: Config, drivers: Drivers, journal: Journal<State>, state: State) -> Core {
        let controller = Controller::new(config.controller, config.times.call());
        Core {
            config,
            controller,
            drivers,
            state: Arc::new(Mutex::new(state)),
            journal: Arc::new(tokio::sync::Mutex::new(journal)),
            turn: tokio::sync::Mutex::new(()),
            memory: Mutex::default(),
            changes: watch::Sender::new(0),
            tasks: Mutex::new(JoinSet::new()),
        }
    }

    /// The state, for a moment.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn move_of(&self, id: u64) -> Option<Move> {
        self.state().moves.get(&id).cloned()
    }

    /// The host of a name that is in the journal, and may have gone from the configuration since.
    pub(crate) fn host(&self, name: &str) -> Option<&Host> {
        self.config.host(name)
    }

    /// Runs a task as long as this is there.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Does something as long as this is there, also if whoever waits for it goes away.
    pub(crate) async fn in_any_case<T: Send + 'static>(
        &self,
        what: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (done, wait) = oneshot::channel();
        self.spawn(async move { _ = done.send(what.await) });
        match wait.await {
            Ok(result) => result,
            // It was stopped, and whoever waits here will be.
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends all tasks. They share this, so it would not end by itself.
    pub(crate) fn stop(&self) {
        lock(&self.tasks).abort_all();
    }

    /// Makes a change: first in the journal, then in the state.
    pub(crate) async fn change(&self, make: impl FnOnce(&State) -> Change) -> Result<(), JournalError> {
        let journal = self.journal.clone().lock_owned().await;
        let change = make(&self.state());
        if change == Change::default() {
            return Ok(());
        }
        let (mut journal, change, written) = write(journal, self.state.clone(), change).await;
        if let Err(error) = written?.durable().await {
            journal.begin_anew();
            return Err(error);
        }
        self.state().apply(change);
        self.changes.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Makes a change, however long the disk refuses it. Nothing may happen that is not in the journal.
    pub(crate) async fn record(&self, make: impl Fn(&State) -> Change) {
        while let Err(error) = self.change(&make).await {
            tracing::error!(%error, "the journal cannot be written; moves wait");
            lock(&self.memory).problem = Some(error.to_string());
            time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Changes a move.
    pub(crate) async fn record_move(&self, id: u64, change: impl Fn(&mut Move)) {
        self.record(|state| {
            let mut moves: Vec<Move> = state.moves.get(&id).cloned().into_iter().collect();
            moves.iter_mut().for_each(&change);
            Change { moves, users: Vec::new() }
        })
        .await;
    }

    /// Repeats a call until it is done or refused. With a limit also until the time is over, and with a move until that is to be undone.
    pub(crate) async fn repeat<T, F>(
        &self,
        limit_ms: Option<u64>,
        abort: Option<u64>,
        mut call: impl FnMut() -> F,
    ) -> Result<T, GivenUp>
    where
        F: Future<Output = Result<T, CallFailed>>,
    {
        let until = limit_ms.map(|limit| time::now() + Duration::from_millis(limit));
        let first = Duration::from_millis(self.config.times.retry_ms);
        let mut pause = first;
        loop {
            if abort.and_then(|id| self.move_of(id)).is_some_and(|one| one.abort) {
                return Err(GivenUp::Abort);
            }
            let why = match call().await {
                Ok(done) => return Ok(done),
                Err(CallFailed::Refused(why) | CallFailed::Impossible(why)) => {
                    return Err(GivenUp::Refused(why));
                }
                Err(CallFailed::NotNow(why) | CallFailed::Unanswered(why)) => why,
            };
            if until.is_some_and(|until| time::now() + pause > until) {
                return Err(GivenUp::TimeOver(why));
            }
            tracing::debug!(why, "tried again");
            time::sleep(pause).await;
            pause = (pause * 2).min(first * 10);
        }
    }

    /// Repeats a call until it is done. A refusal may go away as well, when others have put right what is wrong.
    pub(crate) async fn insist<T, F>(&self, mut call: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T, CallFailed>>,
    {
        loop {
            match self.repeat(None, None, &mut call).await {
                Ok(done) => return done,
                Err(given_up) => {
                    tracing::warn!(
                        why = given_up.why(),
                        "the controller refuses what must be done; tried again"
                    );
                    time::sleep(Duration::from_millis(self.config.times.retry_ms * 10)).await;
                }
            }
        }
    }
}

type OpenJournal = OwnedMutexGuard<Journal<State>>;

/// Writes a change, where nobody waits for it: the line of many users takes milliseconds, and the whole file, once in a while, more.
async fn write(
    mut journal: OpenJournal,
    state: Arc<Mutex<State>>,
    change: Change,
) -> (OpenJournal, Change, Result<Written, JournalError>) {
    let writing = tokio::task::spawn_blocking(move || {
        let after = || {
            let mut state = lock(&state).clone();
            state.apply(change.clone());
            state
        };
        let written = journal.write(&change, after);
        (journal, change, written)
    });
    match writing.await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and whoever waits here with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Waits until a move has ended, but not longer than `limit`.
pub(crate) async fn ended(core: &Arc<Core>, id: u64, limit: Duration) {
    let mut changes = core.changes.subscribe();
    let wait = async {
        while core.move_of(id).is_some_and(|one| !one.state.is_end()) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    let _ = time::timeout(limit, wait).await;
}
