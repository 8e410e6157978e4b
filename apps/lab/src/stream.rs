//! A TCP connection between two namespaces that carries a steady stream, whose every octet is checked, and what TCP had to repeat.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::Context as _;
use net::netns::NetNs;
use net::tcp;
use net::time::{self, Duration};

/// How long a write or a read may wait before the threads look whether they are to end.
const LOOK: Duration = Duration::from_millis(100);
/// Time limit for the connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Octets of a write.
const CHUNK: usize = 8192;
/// The octet at a place in the stream is that place modulo this number: no power of two, as lost segments would be of those sizes.
const PERIOD: u64 = 251;

/// A stream that runs. Dropping it ends it.
pub struct Stream {
    from: NetNs,
    to: NetNs,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    delivered: AtomicU64,
    wrong: AtomicBool,
    broken: AtomicBool,
    over: AtomicBool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// What TCP of a namespace has counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tcp {
    /// Segments that were sent again.
    pub retransmitted: u64,
    /// Those of them that had arrived before, as the receiver said (DSACK, RFC 2883): TCP asks by a probe whether the last segment is lost
    /// when nothing has come for some round trips (RFC 8985 §7).
    pub needless: u64,
    /// Segments that arrived before an earlier one.
    pub early: u64,
}

impl Tcp {
    /// Counters since another time.
    pub fn since(self, before: Tcp) -> Tcp {
        Tcp {
            retransmitted: self.retransmitted.saturating_sub(before.retransmitted),
            needless: self.needless.saturating_sub(before.needless),
            early: self.early.saturating_sub(before.early),
        }
    }
}

impl Stream {
    /// Sends so many octets per second from one namespace to a port of an address of another.
    ///
    /// # Errors
    /// The connection cannot be made.
    pub async fn start(
        from: &NetNs,
        to: &NetNs,
        (address, port): (Ipv4Addr, u16),
        octets_per_s: u64,
    ) -> anyhow::Result<Stream> {
        let at = SocketAddr::from((address, port));
        let listener = to.enter(|| tcp::listen_now(at))?.context("listen")?;
        // Its threads are in the namespace.
        let runtime = from.runtime(1)?;
        let connected = runtime.spawn(tcp::connect(at, CONNECT)).await?.context("connect");
        let blocking = |stream: tcp::TcpStream| {
            let stream = stream.into_std()?;
            stream.set_nonblocking(false)?;
            anyhow::Ok(stream)
        };
        let sender = connected.and_then(blocking);
        runtime.shutdown_background();
        let sender = sender?;
        let (receiver, _) = time::timeout(CONNECT, listener.accept()).await?.context("accept")?;
        let receiver = blocking(receiver)?;
        sender.set_nodelay(true)?;
        sender.set_write_timeout(Some(LOOK))?;
        receiver.set_read_timeout(Some(LOOK))?;
        let shared = Arc::<Shared>::default();
        let (ours, theirs) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            std::thread::spawn(move || ours.ended(write(sender, octets_per_s, &ours))),
            std::thread::spawn(move || theirs.ended(read(receiver, &theirs))),
        ];
        Ok(Stream { from: from.clone(), to: to.clone(), shared, threads })
    }

    /// Octets that have arrived.
    ///
    /// # Errors
    /// The connection has ended, or an octet is not what was sent.
    pub fn delivered(&self) -> anyhow::Result<u64> {
        anyhow::ensure!(!self.shared.wrong.load(Ordering::Relaxed), "octets are not as they were sent");
        anyhow::ensure!(!self.shared.broken.load(Ordering::Relaxed), "the connection has ended");
        Ok(self.shared.delivered.load(Ordering::Relaxed))
    }

    /// What the sender has had to repeat, and what has come early to the receiver. All TCP of the namespaces counts.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn counters(&self) -> anyhow::Result<Tcp> {
        Ok(Tcp {
            retransmitted: counter(&self.from, "snmp", "Tcp", "RetransSegs")?,
            needless: counter(&self.from, "netstat", "TcpExt", "TCPDSACKRecv")?,
            early: counter(&self.to, "netstat", "TcpExt", "TCPOFOQueue")?,
        })
    }
}

impl Shared {
    fn ended(&self, outcome: io::Result<()>) {
        if outcome.is_err() && !self.over.load(Ordering::Relaxed) {
            self.broken.store(true, Ordering::Relaxed);
        }
    }
}

fn pattern(place: u64) -> u8 {
    (place % PERIOD) as u8
}

fn is_wait(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn write(mut stream: TcpStream, octets_per_s: u64, shared: &Shared) -> io::Result<()> {
    let (began, mut place) = (time::now(), 0_u64);
    let mut chunk = [0; CHUNK];
    while !shared.over.load(Ordering::Relaxed) {
        let due = began + Duration::from_secs_f64(place as f64 / octets_per_s.max(1) as f64);
        let wait = due.saturating_duration_since(time::now());
        if !wait.is_zero() {
            time::sleep_thread(wait.min(LOOK));
            continue;
        }
        chunk.iter_mut().zip(place..).for_each(|(octet, place)| *octet = pattern(place));
        match stream.write(&chunk) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => place += written as u64,
            Err(error) if is_wait(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let (mut place, mut buffer) = (0_u64, [0; 4 * CHUNK]);
    while !shared.over.load(Ordering::Relaxed) {
        let length = match stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => length,
            Err(error) if is_wait(&error) => continue,
            Err(error) => return Err(error),
        };
        if buffer[..length].iter().zip(place..).any(|(octet, place)| *octet != pattern(place)) {
            shared.wrong.store(true, Ordering::Relaxed);
        }
        place += length as u64;
        shared.delivered.store(place, Ordering::Relaxed);
    }
    Ok(())
}

/// A counter of the kernel's: in these files a line of names is followed by a line of values.
fn counter(space: &NetNs, file: &str, group: &str, name: &str) -> anyhow::Result<u64> {
    // The folder of this thread, which is in the namespace; that of the process is not.
    let text = space.enter(|| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")))??;
    find_counter(&text, group, name).with_context(|| format!("no counter {name} of {group} in {file}"))
}

fn find_counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(of, _)| *of == group)
        .map(|(_, rest)| rest);
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|one| one == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: RtoMin MaxConn RetransSegs\nTcp: 200 -1 17\nUdp: a\nUdp: 2\n";
        assert_eq!(find_counter(text, "Tcp", "RetransSegs"), Some(17));
        assert_eq!(find_counter(text, "Tcp", "MaxConn"), None, "a negative number is none");
        assert_eq!(find_counter(text, "TcpExt", "RetransSegs"), None);
    }

    #[tokio::test]
    async fn a_stream_arrives_as_it_was_sent() {
        if !net::capability::Capability::SysAdmin.held() {
            assert!(std::env::var_os("CI").is_none(), "the test needs root");
            return;
        }
        let space = NetNs::new().unwrap();
        space.enter(net::netns::loopback_up).unwrap().unwrap();
        let stream = Stream::start(&space, &space, (Ipv4Addr::LOCALHOST, 4000), 10_000_000).await.unwrap();
        let before = stream.counters().unwrap();
        let deadline = time::now() + Duration::from_secs(20);
        while stream.delivered().unwrap() < 1_000_000 && time::now() < deadline {
            time::sleep_thread(LOOK);
        }
        assert!(stream.delivered().unwrap() >= 1_000_000);
        assert_eq!(stream.counters().unwrap().since(before).retransmitted, 0);
    }
}
