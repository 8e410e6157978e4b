//! The thread that learns tunnels, counts their packets, and makes room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use net::time::now_ns;
use pktio::xdp::{Chain, Place};
use xdp::steer::{Attached, SteerError};

use super::tunnels::Present;
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
        let work = Work { switch: Arc::clone(switch), offload: Arc::clone(offload), ends: Arc::clone(&ends) };
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
}

impl Work {
    fn run(&self, messages: &Receiver<Message>) {
        let every = EVERY.as_nanos() as u64;
        let mut due_ns = now_ns() + every;
        while !self.ends.load(Relaxed) {
            let left = Duration::from_nanos(due_ns.saturating_sub(now_ns()));
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
            if now_ns() >= due_ns {
                self.look_after();
                due_ns = now_ns() + every;
            }
        }
    }

    /// After a change that may concern all: translates all entries again, and ends the pause. If there is another such change
    /// meanwhile, a message says so.
    fn renew_all(&self) {
        if !self.offload.tunnels().is_paused() {
            return;
        }
        loop {
            let pipeline = self.switch.pipeline();
            let mut tunnels = self.offload.tunnels();
            let present = Present { pipeline: &pipeline, ports: self.switch.ports(), now_ns: now_ns() };
            if self.ends.load(Relaxed) || !tunnels.renew_some(&present, SLICE) {
                break;
            }
        }
        // Packets that the workers have treated by entries from before the change have left when XDP goes on.
        self.switch.await_workers();
        self.offload.tunnels().resume(now_ns());
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
        // Rows that were given back can be used again: nobody holds a lock meanwhile.
        match began.map(xdp::steer::Began::wait) {
            Some(Ok(waited)) => self.offload.with_steer(|steer| steer.end_grace(waited)),
            Some(Err(error)) => tracing::error!(%error, "XDP cannot use again what was given back"),
            None => {}
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
