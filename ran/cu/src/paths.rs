//! The paths of GTP-U to DUs and UPFs (TS 29.281 §7.2, TS 23.007 §20.3): Echo to each peer of a tunnel, failure, and tunnels that a
//! peer does not know. What depends on them ends.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use net::time::Instant;
use tokio::sync::mpsc;

use crate::config::Echo;
use crate::counters;
use crate::shared::Shared;
use crate::user_plane::Event;

/// A path under watch.
struct Path {
    /// Sequence number of the last request.
    sequence: u16,
    /// Requests since the last answer.
    unanswered: u8,
    due: Instant,
}

type Paths = HashMap<(u8, IpAddr), Path>;

/// Watches paths and handles the worker's events until the CU stops.
pub(crate) async fn run(shared: Arc<Shared>, mut events: mpsc::Receiver<Event>) {
    let echo = shared.config.echo;
    let mut tick = net::time::interval(echo.response() / 4);
    let mut paths = Paths::new();
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => handle(&shared, &mut paths, echo, event),
                None => return tracing::error!("the CU's worker has ended"),
            },
            _ = tick.tick() => look_after(&shared, &mut paths, echo),
            () = shared.stopped() => return,
        }
    }
}

fn handle(shared: &Shared, paths: &mut Paths, echo: Echo, event: Event) {
    match event {
        Event::EchoResponse { interface, peer, sequence } => {
            if let Some(path) = paths.get_mut(&(interface, peer)).filter(|path| path.sequence == sequence) {
                path.unanswered = 0;
                path.due = net::time::now() + echo.interval();
            }
        }
        Event::ErrorIndication { interface, peer, teid } => {
            if shared.lose_tunnels(interface, peer, Some(teid)) > 0 {
                counters::TUNNELS_LOST.inc();
            }
        }
        // The path of a session has been switched elsewhere, which NGAP says as well.
        Event::EndMarker { .. } => {}
    }
}

/// Sends the requests that are due, and gives up paths without answers.
fn look_after(shared: &Shared, paths: &mut Paths, echo: Echo) {
    let peers = shared.peers();
    let now = net::time::now();
    // The time of the last answer is kept without tunnels as well: requests have their distance (TS 29.281 §7.2.1) also with UEs that
    // come and go.
    paths.retain(|peer, path| peers.contains(peer) || path.unanswered == 0 && now < path.due);
    for (interface, peer) in peers {
        let path = paths.entry((interface, peer)).or_insert(Path { sequence: 0, unanswered: 0, due: now });
        if now < path.due {
            continue;
        }
        if path.unanswered >= echo.requests {
            let point = if interface == shared.config.n3_number() { "n3" } else { "f1u" };
            counters::PATHS_FAILED.inc(point);
            let tunnels = shared.lose_tunnels(interface, peer, None);
            tracing::warn!(%peer, point, tunnels, "GTP-U path failed");
            paths.remove(&(interface, peer));
            continue;
        }
        path.sequence = path.sequence.wrapping_add(1);
        path.unanswered += 1;
        path.due = now + echo.response();
        if let Err(error) = shared.user_plane.echo(interface, peer, path.sequence) {
            tracing::debug!(%error, %peer, "no Echo Request");
        }
    }
}
