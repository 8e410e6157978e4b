//! A replicator's connection to an agent: kept, made again when it ends, and counted.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use net::tcp;
use net::time::{self, Duration};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::frame::{Frame, Reader, VERSION, Writer};

/// How long a connection may take, and the agent's greeting: it may have to ask the clone for an association.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);
/// Most frames that wait; an agent that reads so slowly is connected anew.
const WAITING: usize = 1 << 20;

/// Whether an agent is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Not yet.
    Connecting,
    /// It is.
    Connected,
    /// The last attempt has failed, or the connection has ended.
    Failed(String),
}

/// What comes from a connection.
#[derive(Debug)]
pub enum Incoming {
    /// The agent is ready. Who takes this says so ([`Connection::ready`]), and then what the agent is to know first.
    Connected,
    /// It is not, see [`Connection::state`].
    Failed,
    /// It says this, which has come together.
    Frames(Vec<Frame>),
}

/// Takes what comes.
pub type Take = Box<dyn Fn(Incoming) + Send + Sync>;

struct Shared {
    status: Mutex<Status>,
    /// Connections so far.
    count: AtomicU64,
    /// Octets of both directions.
    octets: AtomicU64,
}

/// What an agent is greeted with, see [`Frame::Hello`].
#[derive(Debug, Clone, Copy)]
pub struct Hello {
    /// N4, else S11.
    pub n4: bool,
    /// When the control plane says it has started.
    pub started: u32,
    /// The clone has sessions already. So it has for every connection but the first one.
    pub resume: bool,
    /// The original's address on S11 or N4.
    pub original: IpAddr,
}

/// See the module. It ends with this handle.
pub struct Connection {
    shared: Arc<Shared>,
    /// Of the present connection: with its number, so that nothing is said to a later one.
    say: mpsc::Sender<(u64, Frame)>,
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    /// Connects to an agent, and again whenever the connection ends.
    pub fn start(agent: SocketAddr, hello: Hello, take: Take) -> Connection {
        let status = Mutex::new(Status::Connecting);
        let shared = Arc::new(Shared { status, count: AtomicU64::new(0), octets: AtomicU64::new(0) });
        let (say, said) = mpsc::channel(WAITING);
        let task = tokio::spawn(run(agent, hello, shared.clone(), said, take));
        Connection { shared, say, task }
    }

    /// Whether the agent is connected.
    pub fn state(&self) -> Status {
        self.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the agent is connected.
    pub fn is_connected(&self) -> bool {
        self.state() == Status::Connected
    }

    /// From now on what is said is said to the agent that is connected.
    pub fn ready(&self) {
        *self.shared.status.lock().unwrap_or_else(PoisonError::into_inner) = Status::Connected;
    }

    /// Connections so far.
    pub fn count(&self) -> u64 {
        self.shared.count.load(Ordering::Acquire)
    }

    /// Octets of both directions so far, without those of TCP.
    pub fn octets(&self) -> u64 {
        self.shared.octets.load(Ordering::Relaxed)
    }

    /// Says something to the agent that is connected now. If it is not, the one that comes is told what is so then.
    pub fn say(&self, frame: Frame) {
        if self.is_connected() && self.say.try_send((self.count(), frame)).is_err() {
            tracing::warn!("an agent reads too slowly");
            *self.shared.status.lock().unwrap_or_else(PoisonError::into_inner) =
                Status::Failed("it reads too slowly".to_owned());
        }
    }
}

async fn run(
    agent: SocketAddr,
    hello: Hello,
    shared: Arc<Shared>,
    mut said: mpsc::Receiver<(u64, Frame)>,
    take: Take,
) {
    let set = |status| *shared.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    loop {
        let count = shared.count.load(Ordering::Acquire);
        let hello = Hello { resume: hello.resume || count > 0, ..hello };
        let Err(why) = connection(agent, hello, &shared, &mut said, &take).await;
        set(Status::Failed(why.to_string()));
        tracing::info!(%agent, %why, "an agent is not connected");
        take(Incoming::Failed);
        time::sleep(PAUSE).await;
    }
}

async fn connection(
    agent: SocketAddr,
    hello: Hello,
    shared: &Shared,
    said: &mut mpsc::Receiver<(u64, Frame)>,
    take: &Take,
) -> std::io::Result<std::convert::Infallible> {
    let stream = tcp::connect(agent, PATIENCE).await?;
    stream.set_nodelay(true)?;
    let (mut from, mut to) = stream.into_split();
    let (mut reader, mut writer, mut out) = (Reader::default(), Writer::default(), Vec::new());
    let Hello { n4, started, resume, original } = hello;
    writer.write(&Frame::Hello { version: VERSION, n4, started, resume, original }, &mut out);
    let mut octets = vec![0; 65_536];
    let mut number = 0;
    let mut batch = Vec::new();
    let greeting = time::sleep(PATIENCE);
    tokio::pin!(greeting);
    loop {
        if !out.is_empty() {
            to.write_all(&out).await?;
            shared.octets.fetch_add(out.len() as u64, Ordering::Relaxed);
            out.clear();
        }
        tokio::select! {
            read = from.read(&mut octets) => {
                let read = read?;
                if read == 0 {
                    return Err(std::io::Error::other("it has closed the connection: its log says why"));
                }
                shared.octets.fetch_add(read as u64, Ordering::Relaxed);
                reader.push(&octets[..read]);
                let mut frames = Vec::new();
                let is_read = loop {
                    match reader.read() {
                        Ok(Some(Frame::Ready)) if number == 0 => {
                            take(Incoming::Frames(std::mem::take(&mut frames)));
                            number = shared.count.fetch_add(1, Ordering::AcqRel) + 1;
                            take(Incoming::Connected);
                        }
                        Ok(Some(frame)) => frames.push(frame),
                        Ok(None) => break Ok(()),
                        Err(error) => break Err(std::io::Error::other(error)),
                    }
                };
                take(Incoming::Frames(frames));
                is_read?;
            }
            count = said.recv_many(&mut batch, 1024) => {
                if count == 0 {
                    return std::future::pending().await;
                }
                for (of, frame) in batch.drain(..) {
                    if of == number {
                        writer.write(&frame, &mut out);
                    }
                }
            }
            () = &mut greeting, if number == 0 => return Err(std::io::Error::other("it does not greet in time")),
        }
        let is_failed =
            matches!(&*shared.status.lock().unwrap_or_else(PoisonError::into_inner), Status::Failed(_));
        if number != 0 && is_failed {
            return Err(std::io::Error::other("it reads too slowly"));
        }
    }
}
