//! The thread that learns tunnels, counts their packets, and makes room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use net::time::now_ns;
use pktio::xdp::{Chain, Place};
use xdp::steer::{Attached, Began, SteerError};

use super::tunnels::{Present, Renewed, Tunnels};
use super::{Message, Offer, Offload, SLICE};
use crate::core::Switch;

/// How often packets are counted and room is made. Who asks for counters does not wait for that ([`Switch::settle`]).
const EVERY: Duration = Duration::from_secs(1);

/// The running manager, and the programs on the interfaces. Both end when this is dropped.
pub struct Manager {
    // Dropped before the tables are: packets take the host path again.
    attached: Vec<Attached>,
    thread: Option<JoinHandle<()>>,
    ends: Arc<AtomicBool>,
    offload: Arc<Offload>,
}

impl Manager {
    /// Adds the program to the chains, and starts the thread. `None`: the switch has no tables for tunnels.
    ///
    /// # Errors
    /// The kernel refuses a program or a thread.
    pub fn start(
        switch: &Arc<Switch>,
        messages: Receiver<Message>,
        chains: &[&Arc<Chain>],
    ) -> Result<Option<Manager>, StartError> {
        let Some(offload) = switch.offload() else { return Ok(None) };
        let attach = |chain: &&Arc<Chain>| offload.with_steer(|steer| steer.attach(chain, Place::STEERING));
        let attached = chains.iter().map(attach).collect::<Result<Vec<_>, SteerError>>()?;
        let ends = Arc::<AtomicBool>::default();
        let mut work = Work {
            switch: Arc::clone(switch),
            offload: Arc::clone(offload),
            ends: Arc::clone(&ends),
            due_ns: now_ns() + EVERY.as_nanos() as u64,
        };
        let thread = std::thread::Builder::new()
            .name("switch-xdp".to_owned())
            .spawn(move || work.run(&messages))
            .map_err(StartError::Thread)?;
        Ok(Some(Manager { attached, thread: Some(thread), ends, offload: Arc::clone(offload) }))
    }
}

/// Why it does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Tables or programs.
    #[error(transparent)]
    Steer(#[from] SteerError),
    /// The thread.
    #[error("a thread: {0}")]
    Thread(std::io::Error),
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.attached.clear();
        self.ends.store(true, Relaxed);
        self.offload.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for XDP has failed");
        }
    }
}

struct Work {
    switch: Arc<Switch>,
    offload: Arc<Offload>,
    ends: Arc<AtomicBool>,
    /// When packets are counted next.
    due_ns: u64,
}

impl Work {
    fn run(&mut self, messages: &Receiver<Message>) {
        while !self.ends.load(Relaxed) {
            let left = Duration::from_nanos(self.due_ns.saturating_sub(now_ns()));
            let first = match messages.recv_timeout(left) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let offers = first.into_iter().chain(messages.try_iter()).take(SLICE);
            let offers: Vec<_> = offers.filter_map(Message::offer).collect();
            self.renew_all();
            if !offers.is_empty() {
                self.learn(offers);
            }
            self.look_after_if_due();
        }
    }

    fn look_after_if_due(&mut self) {
        if now_ns() >= self.due_ns {
            self.look_after();
            self.due_ns = now_ns() + EVERY.as_nanos() as u64;
        }
    }

    /// After a change that may concern all: translates all entries again, and ends the pause. If there is another such change
    /// meanwhile, a message says so.
    fn renew_all(&mut self) {
        let needs_it = |tunnels: &Tunnels| tunnels.is_paused() && !tunnels.has_failed();
        if !needs_it(&self.offload.tunnels()) {
            return;
        }
        let mut has_waited = false;
        while !self.ends.load(Relaxed) {
            // Changes that may concern all may come without end.
            self.look_after_if_due();
            match self.renew_some(has_waited) {
                Renewed::All => break,
                Renewed::Some => has_waited = false,
                Renewed::Waits(began) => {
                    self.wait(began);
                    has_waited = true;
                }
            }
        }
        // Packets that the workers have treated by entries from before the change have left when XDP goes on.
        // If one does not answer, the pause goes on, and this is tried again.
        if self.switch.await_workers() {
            self.offload.tunnels().resume(now_ns());
        }
    }

    fn renew_some(&self, has_waited: bool) -> Renewed {
        let pipeline = self.switch.pipeline();
        let present = Present { pipeline: &pipeline, ports: self.switch.ports(), now_ns: now_ns() };
        self.offload.tunnels().renew_some(&present, SLICE, has_waited)
    }

    fn learn(&self, offers: Vec<Offer>) {
        let pipeline = self.switch.pipeline();
        let mut tunnels = self.offload.tunnels();
        let present = Present { pipeline: &pipeline, ports: self.switch.ports(), now_ns: now_ns() };
        tunnels.learn(&present, offers);
    }

    /// Counts, takes out what has left, and makes room where some is needed.
    fn look_after(&self) {
        self.offload.in_slices(&self.switch, |tunnels, present, range| tunnels.look_after(present, range));
        let began = self.offload.tunnels().looked_after();
        if let Some(began) = began {
            self.wait(began);
        }
    }

    /// Rows that were given back can be used again: nobody holds a lock meanwhile.
    fn wait(&self, began: Began) {
        match began.wait() {
            Ok(waited) => self.offload.with_steer(|steer| steer.end_grace(waited)),
            Err(error) => tracing::error!(%error, "XDP cannot use again what was given back"),
        }
    }
}

impl Message {
    fn offer(self) -> Option<Offer> {
        match self {
            Message::Offer(offer) => Some(*offer),
            Message::Look => None,
        }
    }
}
