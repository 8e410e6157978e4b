//! Sockets and timers of the agent: connections to controllers, kept up with back-off, and a listener for those that connect
//! themselves.
//!
//! A controller that is away changes nothing: packets are forwarded by the entries that are there. One that does not read what it
//! asked for is not read from either, and is disconnected when it takes nothing for [`STALLED`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use net::tcp::{self, TcpListener, TcpStream};
use net::time::{now_ns, sleep};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use super::peer::Peer;
use super::session::{Ended, MAX_OUTPUT, Session};
use crate::core::Switch;

/// Time for a connection to a controller.
const CONNECT: Duration = Duration::from_secs(5);
/// Pause before the first attempt after a connection has ended; it doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Connections of programs that connect themselves.
const MAX_ACCEPTED: usize = 16;
/// A controller that takes nothing for so long is disconnected.
const STALLED: Duration = Duration::from_secs(10);
/// How often time-outs of entries are looked at.
const EXPIRY: Duration = Duration::from_millis(250);

/// The running agent; it ends when this is dropped.
#[derive(Debug)]
pub struct Agent {
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Agent {
    /// Connects to `controllers`, and serves those that connect to `listener`. Needs a tokio runtime.
    pub fn start(switch: &Arc<Switch>, controllers: &[SocketAddr], listener: Option<TcpListener>) -> Agent {
        let numbers = Arc::new(AtomicU64::new(0));
        let mut tasks: Vec<_> = controllers
            .iter()
            .map(|address| tokio::spawn(keep_connected(Arc::clone(switch), *address, Arc::clone(&numbers))))
            .collect();
        if let Some(listener) = listener {
            tasks.push(tokio::spawn(accept(Arc::clone(switch), listener, numbers)));
        }
        let switch = Arc::clone(switch);
        tasks.push(tokio::spawn(async move {
            loop {
                sleep(EXPIRY).await;
                switch.expire();
            }
        }));
        Agent { tasks }
    }
}

async fn keep_connected(switch: Arc<Switch>, address: SocketAddr, numbers: Arc<AtomicU64>) {
    let mut pause = PAUSE;
    loop {
        match tcp::connect(address, CONNECT).await {
            Ok(stream) => {
                let was_up = serve(&switch, stream, address, numbers.fetch_add(1, Relaxed)).await;
                // A controller that takes connections and ends them is not asked more often than one that is away.
                if was_up {
                    pause = PAUSE;
                }
            }
            Err(error) => tracing::debug!(%address, %error, "no connection to this controller"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn accept(switch: Arc<Switch>, listener: TcpListener, numbers: Arc<AtomicU64>) {
    let room = Arc::new(tokio::sync::Semaphore::new(MAX_ACCEPTED));
    let mut sessions = tokio::task::JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        while sessions.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, address)) => {
                let (switch, id) = (Arc::clone(&switch), numbers.fetch_add(1, Relaxed));
                sessions.spawn(async move {
                    let _ = stream.set_nodelay(true);
                    serve(&switch, stream, address, id).await;
                    drop(permit);
                });
            }
            // Out of descriptors: it does not get better at once.
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Serves a connection until it ends; whether the controller had said hello.
async fn serve(switch: &Arc<Switch>, stream: TcpStream, address: SocketAddr, id: u64) -> bool {
    let peer = Arc::new(Peer::new(id, address));
    let mut session = Session::new(Arc::clone(switch), Arc::clone(&peer), now_ns());
    let ended = exchange(switch, stream, &mut session, &peer).await;
    switch.leave(id);
    match &ended {
        Ok(()) => tracing::info!(%address, "a controller has disconnected"),
        Err(error) => {
            switch.counts.misbehaved.fetch_add(1, Relaxed);
            tracing::warn!(%address, error, "a controller was disconnected");
        }
    }
    session.is_up()
}

/// Moves octets. `Ok`: the peer has closed the connection.
async fn exchange(
    switch: &Switch,
    stream: TcpStream,
    session: &mut Session,
    peer: &Arc<Peer>,
) -> Result<(), String> {
    let (mut reader, mut writer) = stream.into_split();
    let mut received = vec![0; 65_536];
    let mut written = 0;
    let mut stalled = Box::pin(sleep(STALLED));
    let mut joined = false;
    loop {
        if session.is_up() {
            // Before the hellos a controller hears of nothing.
            if !std::mem::replace(&mut joined, true) {
                tracing::info!(address = %peer.address, "a controller has connected");
                switch.join(peer);
            }
        }
        if written == session.output.len() {
            (written, _) = (0, session.output.clear());
            // Questions that had to wait for the answers before theirs.
            session.proceed(now_ns()).map_err(|error| error.to_string())?;
        }
        if peer.is_overrun() {
            return Err("it takes events too slowly".to_owned());
        }
        // More events would pile up here without a bound.
        if session.is_up() && session.output.len() < MAX_OUTPUT {
            peer.take_events(&mut session.output);
        }
        let is_behind = session.is_behind();
        let is_read = !is_behind && session.output.len() < MAX_OUTPUT;
        if !is_read {
            session.excuse(now_ns());
        }
        let waits = !session.output.is_empty();
        if !waits {
            stalled.as_mut().reset(net::time::now() + STALLED);
        }
        let due = Duration::from_nanos(session.deadline_ns().saturating_sub(now_ns()));
        let result = tokio::select! {
            read = reader.read(&mut received), if is_read => match read {
                Ok(0) | Err(_) => return Ok(()),
                Ok(length) => session.receive(&received[..length], now_ns()),
            },
            sent = writer.write(&session.output[written..]), if waits => match sent {
                Ok(0) | Err(_) => return Ok(()),
                Ok(length) => {
                    written += length;
                    stalled.as_mut().reset(net::time::now() + STALLED);
                    Ok(())
                }
            },
            () = peer.waiting.notified() => Ok(()),
            () = tokio::task::yield_now(), if is_behind && !waits => Ok(()),
            () = sleep(due), if is_read => session.tick(now_ns()),
            () = stalled.as_mut(), if waits => return Err("it reads nothing".to_owned()),
        };
        if let Err(error) = result {
            // The last words say why, where the peer understands them.
            if error == Ended::Version {
                let _ = net::time::timeout(CONNECT, writer.write_all(&session.output[written..])).await;
            }
            return Err(error.to_string());
        }
    }
}
