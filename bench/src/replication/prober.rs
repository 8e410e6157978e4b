//! Asks anchors all the time by GTP-C Echo, and notes when they answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context as _;
use net::netns::NetNs;
use net::time::{self, Duration};

/// Time between two questions.
const EVERY: Duration = Duration::from_millis(5);

/// A running prober.
pub(super) struct Prober {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Duration>>,
}

impl Prober {
    /// Asks these anchors, of which one is enough, from a namespace.
    pub(super) fn start(namespace: &NetNs, anchors: Vec<SocketAddr>) -> anyhow::Result<Prober> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = namespace.spawn("prober", move || probe(&anchors, &stopped))?;
        Ok(Prober { stop, thread })
    }

    /// The longest time without an answer, ms.
    pub(super) fn stop(self) -> anyhow::Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let gap = self.thread.join().ok().context("the prober has panicked")??;
        Ok(gap.as_secs_f64() * 1e3)
    }
}

/// Whether an anchor answers at once.
pub(super) fn answers(namespace: &NetNs, anchor: SocketAddr) -> anyhow::Result<bool> {
    namespace.enter(|| {
        let socket = net::udp::bind_std(SocketAddr::from(([0, 0, 0, 0], 0)), net::udp::Options::default())?;
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(4 * EVERY))?;
        let _ = socket.send_to(&echo(0), anchor);
        Ok(receives(&socket))
    })?
}

/// Echo Request (TS 29.274 §7.1.1): version 2 without TEID, sequence number, IE Recovery.
fn echo(number: u16) -> [u8; 13] {
    let [high, low] = number.to_be_bytes();
    [0x40, 1, 0, 9, 0, high, low, 0, 3, 0, 1, 0, 1]
}

/// Waits for an Echo Response. Errors are refusals, and the end of the time.
fn receives(socket: &std::net::UdpSocket) -> bool {
    let mut buffer = [0; 512];
    socket.recv(&mut buffer).is_ok_and(|length| length > 2 && buffer[1] == 2)
}

fn probe(anchors: &[SocketAddr], stop: &AtomicBool) -> anyhow::Result<Duration> {
    let socket = net::udp::bind_std(SocketAddr::from(([0, 0, 0, 0], 0)), net::udp::Options::default())?;
    socket.set_nonblocking(false)?;
    let (mut last, mut longest) = (time::now_std(), Duration::ZERO);
    for number in 0u16.. {
        for anchor in anchors {
            // One that does not run yet refuses.
            let _ = socket.send_to(&echo(number), anchor);
        }
        let sent = time::now_std();
        while let Some(left) = EVERY.checked_sub(time::now_std() - sent).filter(|left| !left.is_zero()) {
            socket.set_read_timeout(Some(left))?;
            if receives(&socket) {
                let now = time::now_std();
                longest = longest.max(now - last);
                last = now;
            }
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(longest.max(time::now_std() - last))
}
