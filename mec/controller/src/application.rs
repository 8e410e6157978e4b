//! Applications: how they start, hear of events, and stop.
//!
//! An application is a task with a [`Handle`] to the switches and a queue of [`Event`]s. Applications know nothing of each other, and
//! each can be stopped and started alone.
//!
//! **A stopped application's rules stay in the switches**: users' packets go on as they went, as they do when the controller is
//! killed. When it starts again, it compares its rules with those of the switches, by their cookie, and sends only the differences.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::rule::App;
use crate::switch::fabric::EVENTS;
use crate::switch::{Event, Fabric, Handle};

/// What an application runs with.
#[derive(Debug)]
pub struct Context {
    /// The switches.
    pub handle: Handle,
    /// What happens.
    pub events: mpsc::Receiver<Event>,
    /// Completes when the application is to stop.
    pub stop: oneshot::Receiver<()>,
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Makes an application, with fresh state.
type Start = Box<dyn Fn(Context) -> Task + Send + Sync>;

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// All applications, running or not.
pub struct Applications {
    fabric: Arc<Fabric>,
    start: BTreeMap<App, Start>,
    running: Mutex<BTreeMap<App, Running>>,
}

impl std::fmt::Debug for Applications {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.start.keys()).finish()
    }
}

impl Applications {
    /// None yet.
    pub fn new(fabric: Arc<Fabric>) -> Applications {
        Applications { fabric, start: BTreeMap::new(), running: Mutex::default() }
    }

    /// Adds an application, which does not run yet.
    pub fn add<F, Fut>(&mut self, app: App, start: F)
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.start.insert(app, Box::new(move |context| Box::pin(start(context))));
    }

    /// Every application, and whether it runs.
    pub fn list(&self) -> BTreeMap<App, bool> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = |app| running.get(app).is_some_and(|running| !running.task.is_finished());
        self.start.keys().map(|app| (*app, runs(app))).collect()
    }

    /// Starts an application; whether it did not run before.
    pub fn start(&self, app: App) -> bool {
        let Some(start) = self.start.get(&app) else { return false };
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.get(&app).is_some_and(|running| !running.task.is_finished()) {
            return false;
        }
        let (sender, events) = mpsc::channel(EVENTS);
        let (stop, stopped) = oneshot::channel();
        let handle = Handle::new(self.fabric.clone(), app);
        let task = tokio::spawn(start(Context { handle, events, stop: stopped }));
        running.insert(app, Running { stop, task });
        self.fabric.attach(app, sender);
        true
    }

    /// Stops an application and waits until it has; whether it ran before.
    pub async fn stop(&self, app: App) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&app);
        let Some(running) = running else { return false };
        let ran = !running.task.is_finished();
        // It may have ended by itself.
        let _ = running.stop.send(());
        let _ = running.task.await;
        self.fabric.detach(app);
        ran
    }
}

impl Drop for Applications {
    fn drop(&mut self) {
        for (_, running) in std::mem::take(self.running.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            running.task.abort();
        }
    }
}
