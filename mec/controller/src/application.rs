//! Applications: how they start, hear of events, and stop.
//!
//! An application is a task with a [`Handle`] to the switches and its [`Events`]. Applications know nothing of each other, and
//! each can be stopped and started alone.
//!
//! **A stopped application's rules stay in the switches**: users' packets go on as they went, as they do when the controller is
//! killed. When it starts again, it compares its rules with those of the switches, by their cookie, and sends only the differences.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::rule::App;
use crate::switch::{Events, Fabric, Handle};

/// What an application runs with.
#[derive(Debug)]
pub struct Context {
    /// The switches.
    pub handle: Handle,
    /// What happens.
    pub events: Events,
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
    /// Held while an application starts or stops: the end of an old run takes its events and rules away, and they must not be those
    /// of a new one.
    changing: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Applications {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.start.keys()).finish()
    }
}

impl Applications {
    /// None yet.
    pub fn new(fabric: Arc<Fabric>) -> Applications {
        Applications {
            fabric,
            start: BTreeMap::new(),
            running: Mutex::default(),
            changing: Default::default(),
        }
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

    /// Starts an application, after one that is stopping has ended; whether it did not run before.
    pub async fn start(&self, app: App) -> bool {
        let Some(start) = self.start.get(&app) else { return false };
        let _changing = self.changing.lock().await;
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.get(&app).is_some_and(|running| !running.task.is_finished()) {
            return false;
        }
        let (stop, stopped) = oneshot::channel();
        let handle = Handle::new(self.fabric.clone(), app);
        let events = self.fabric.attach(app);
        let task = tokio::spawn(start(Context { handle, events, stop: stopped }));
        running.insert(app, Running { stop, task });
        true
    }

    /// Stops an application and waits until it has; whether it ran before.
    pub async fn stop(&self, app: App) -> bool {
        let _changing = self.changing.lock().await;
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

#[cfg(test)]
mod tests {
    use super::*;
    use net::time::{self, Duration};

    /// An old run that ends slowly takes nothing of a new one: it hears of events, and its rules stay wanted.
    #[tokio::test(start_paused = true)]
    async fn a_start_while_it_stops_waits_for_the_end() {
        let fabric = Fabric::new([(1, "one".to_owned())]);
        let mut applications = Applications::new(fabric.clone());
        let (heard, mut hears) = tokio::sync::mpsc::unbounded_channel();
        applications.add(App::Forwarding, move |context| {
            let heard = heard.clone();
            async move {
                let Context { handle, mut events, mut stop } = context;
                let rule = crate::rule::Rule::new(
                    crate::rule::Kind::T0Low,
                    0,
                    1,
                    openflow::Match::default(),
                    openflow::Instructions::default(),
                );
                let _ = handle.sync(1, vec![rule]).await;
                loop {
                    tokio::select! {
                        _ = &mut stop => break,
                        event = events.next() => { let _ = heard.send(event); }
                    }
                }
                time::sleep(Duration::from_secs(1)).await;
            }
        });
        assert!(applications.start(App::Forwarding).await);
        // Both begin before either ends.
        let (stopped, started) = tokio::join!(applications.stop(App::Forwarding), async {
            time::sleep(Duration::from_millis(100)).await;
            applications.start(App::Forwarding).await
        });
        assert_eq!((stopped, started), (true, true));
        time::sleep(Duration::from_millis(10)).await;
        assert!(applications.list()[&App::Forwarding]);
        assert_eq!(fabric.wanted(1), [("forwarding", 1)].into());
        let status = openflow::PortStatus {
            reason: openflow::PortReason::Add,
            port: openflow::Port {
                port_no: openflow::PortNo(1),
                hw_addr: openflow::MacAddr([2; 6]),
                name: openflow::Text::new("one"),
                config: openflow::PortConfig::default(),
                state: openflow::PortState::LIVE,
                current: 0,
                advertised: 0,
                supported: 0,
                peer: 0,
                current_speed_kbps: 0,
                max_speed_kbps: 0,
            },
        };
        fabric.port_status(1, status);
        assert!(time::timeout(Duration::from_secs(1), hears.recv()).await.is_ok());
    }
}
