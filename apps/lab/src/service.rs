//! An application that moves with its users: an example of what a stateful service does when a UE goes to another site.
//!
//! It adds. A client sends numbers, one in a line; each answer is the sum of all numbers of the connection so far. An instance runs in the data
//! network and one on a host at each site, all with the same address ([`crate::edge::SERVICE`]), so a UE's packets reach the instance beside the
//! anchor that serves it. For a user that moves:
//!
//! ```text
//! 1  Service::give    the instance that serves it stops, and says all it knows: sum, unfinished line, and the TCP connection
//! 2  Service::take    the other instance goes on with these
//! 3                   the UE is moved (POST /v1/moves of the orchestrator), best with `warm` state
//! 4  Service::forget  the first one forgets it. If 2 or 3 fails, it goes on: Service::resume
//! ```
//! Segments of the UE between 1 and 3 are lost; its TCP sends them again.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use net::netns::NetNs;
use net::tcp::repair::{self, Frozen};
use net::tcp::{self, TcpListener, TcpStream};
use net::time::{self, Duration, Instant};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

/// Longest line: a number and its end.
const LONGEST: usize = 32;
/// Time limit for a client's connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Time between an answer and the next number.
const PAUSE: Duration = Duration::from_millis(2);

/// An instance. It ends when it is dropped.
pub struct Service {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

#[derive(Default)]
struct Shared {
    answers: AtomicU64,
    users: std::sync::Mutex<HashMap<SocketAddr, User>>,
}

/// Whoever is connected, by address and port.
enum User {
    /// Served by a task that can be asked for the state.
    Served(mpsc::Sender<Asked>),
    /// Given away; its socket ignores what comes.
    Given(std::net::TcpStream, Sum),
}

type Asked = oneshot::Sender<anyhow::Result<Vec<u8>>>;

/// What the service knows of a user.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Sum {
    sum: u64,
    /// A line that has not ended yet.
    begun: Vec<u8>,
    /// Answers that TCP has not taken yet.
    unsent: Vec<u8>,
}

/// All that another instance needs.
#[derive(Serialize, Deserialize)]
struct State {
    connection: Frozen,
    user: Sum,
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Service {
    /// Starts an instance in a namespace that has this address.
    ///
    /// # Errors
    /// The address is not there, or in use.
    pub fn start(space: &NetNs, address: SocketAddr) -> anyhow::Result<Service> {
        let runtime = space.runtime(1)?;
        let shared = Arc::<Shared>::default();
        let listener = {
            let _inside = runtime.enter();
            space.enter(|| tcp::listen_now(address))?.context("listen")?
        };
        runtime.spawn(Arc::clone(&shared).accept(listener));
        Ok(Service { shared, runtime: Some(runtime) })
    }

    /// Numbers that it has answered.
    pub fn answers(&self) -> u64 {
        self.shared.answers.load(Ordering::Relaxed)
    }

    /// Stops serving a user, and says what another instance needs to go on.
    ///
    /// # Errors
    /// It does not serve this user, or the user has just gone.
    pub async fn give(&self, user: SocketAddr) -> anyhow::Result<Vec<u8>> {
        let asked = match self.shared.users().get(&user) {
            Some(User::Served(asked)) => asked.clone(),
            _ => anyhow::bail!("{user} is not served here"),
        };
        let (answer, answered) = oneshot::channel();
        asked.send(answer).await.ok().context("the user has gone")?;
        answered.await.context("the user has gone")?
    }

    /// Serves a user with the state that another instance has given.
    ///
    /// # Errors
    /// The state cannot be read, or the user's connection is here already.
    pub async fn take(&self, state: &[u8]) -> anyhow::Result<()> {
        let State { connection, mut user } = serde_json::from_slice(state).context("the state of a user")?;
        // It may have been here before.
        self.forget(connection.peer);
        let (shared, runtime) = (Arc::clone(&self.shared), self.runtime.as_ref().context("it has ended")?);
        let taken = runtime.spawn(async move {
            let (stream, unsent) = repair::thaw(&connection)?;
            user.unsent.splice(0..0, unsent.iter().copied());
            shared.serve(connection.peer, stream, user)
        });
        taken.await?.context("go on with a connection")
    }

    /// Goes on with a user that was given away.
    ///
    /// # Errors
    /// It was not given away.
    pub async fn resume(&self, user: SocketAddr) -> anyhow::Result<()> {
        let Some(User::Given(stream, sum)) = self.shared.users().remove(&user) else {
            anyhow::bail!("{user} was not given away");
        };
        let (shared, runtime) = (Arc::clone(&self.shared), self.runtime.as_ref().context("it has ended")?);
        let resumed = runtime.spawn(async move {
            repair::go_on(&stream)?;
            shared.serve(user, stream, sum)
        });
        resumed.await?.context("go on with a connection")
    }

    /// Forgets a user that was given away, when no segment of it can come here any more.
    pub fn forget(&self, user: SocketAddr) {
        let mut users = self.shared.users();
        if let Some(User::Given(..)) = users.get(&user) {
            users.remove(&user);
        }
    }
}

impl Shared {
    fn users(&self) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, User>> {
        self.users.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn accept(self: Arc<Shared>, listener: TcpListener) {
        while let Ok((stream, peer)) = listener.accept().await {
            // Whoever has gone already is not served.
            let served = stream.into_std().and_then(|stream| self.serve(peer, stream, Sum::default()));
            if let Err(error) = served {
                tracing::warn!(%peer, %error, "a user is not served");
            }
        }
    }

    /// Serves a user, in the runtime of the instance.
    fn serve(self: &Arc<Shared>, peer: SocketAddr, stream: std::net::TcpStream, sum: Sum) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let stream = TcpStream::from_std(stream)?;
        let (ask, asked) = mpsc::channel(1);
        self.users().insert(peer, User::Served(ask));
        let own = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = own.add(peer, stream, sum, asked).await {
                tracing::info!(%peer, %error, "a user has gone");
                own.users().remove(&peer);
            }
        });
        Ok(())
    }

    /// Answers a user until it goes, or is given away.
    async fn add(
        &self,
        peer: SocketAddr,
        mut stream: TcpStream,
        mut user: Sum,
        mut asked: mpsc::Receiver<Asked>,
    ) -> io::Result<()> {
        let mut octets = [0; 4096];
        loop {
            let has_unsent = !user.unsent.is_empty();
            tokio::select! {
                Some(answer) = asked.recv() => {
                    let own = stream.into_std()?;
                    match repair::freeze(&own) {
                        Ok(connection) => {
                            let state = State { connection, user: user.clone() };
                            let given = serde_json::to_vec(&state).map_err(anyhow::Error::from);
                            self.users().insert(peer, User::Given(own, user));
                            // Whoever asked and has gone can resume.
                            let _ = answer.send(given);
                            return Ok(());
                        }
                        Err(error) => {
                            let _ = answer.send(Err(error.into()));
                            stream = TcpStream::from_std(own)?;
                        }
                    }
                }
                written = stream.writable(), if has_unsent => {
                    written?;
                    if let Some(count) = unless_early(stream.try_write(&user.unsent))? {
                        user.unsent.drain(..count);
                    }
                }
                read = stream.readable(), if !has_unsent => {
                    read?;
                    match unless_early(stream.try_read(&mut octets))? {
                        None => {}
                        Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Some(length) => {
                            let numbers = user.read(&octets[..length])?;
                            self.answers.fetch_add(numbers, Ordering::Relaxed);
                        }
                    }
                }
            }
        }
    }
}

/// `None`: the socket is not ready after all.
fn unless_early(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        done => done.map(Some),
    }
}

impl Sum {
    /// Takes what has come; how many numbers that were.
    fn read(&mut self, octets: &[u8]) -> io::Result<u64> {
        let mut numbers = 0;
        for octet in octets {
            if *octet != b'\n' {
                self.begun.push(*octet);
                if self.begun.len() > LONGEST {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
                }
                continue;
            }
            let number = std::str::from_utf8(&self.begun).ok().and_then(|text| text.parse::<u64>().ok());
            let number =
                number.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a line is no number"))?;
            self.begun.clear();
            self.sum = self.sum.wrapping_add(number);
            self.unsent.extend(format!("{}\n", self.sum).into_bytes());
            numbers += 1;
        }
        Ok(numbers)
    }
}

/// A user that asks one number after another, and checks each answer. It ends when it is dropped.
pub struct Client {
    /// Its end of the connection.
    pub address: SocketAddr,
    shared: Arc<Counts>,
    runtime: Option<Runtime>,
}

#[derive(Default)]
struct Counts {
    answers: AtomicU64,
    /// Microseconds of the longest wait for an answer since it was asked for.
    longest_us: AtomicU64,
    problem: std::sync::OnceLock<String>,
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Client {
    /// Connects from a UE's namespace, and begins to ask.
    ///
    /// # Errors
    /// The service does not answer.
    pub async fn start(space: &NetNs, service: SocketAddr) -> anyhow::Result<Client> {
        let runtime = space.runtime(1)?;
        let stream = runtime.spawn(tcp::connect(service, CONNECT)).await?.context("connect")?;
        let (address, shared) = (stream.local_addr()?, Arc::<Counts>::default());
        let counts = Arc::clone(&shared);
        runtime.spawn(async move {
            if let Err(error) = ask(stream, &counts).await {
                let _ = counts.problem.set(error.to_string());
            }
        });
        Ok(Client { address, shared, runtime: Some(runtime) })
    }

    /// Answers so far, all of them right, and the longest wait for one since the last call.
    ///
    /// # Errors
    /// The connection has ended, or an answer was wrong.
    pub fn answers(&self) -> anyhow::Result<(u64, Duration)> {
        if let Some(problem) = self.shared.problem.get() {
            anyhow::bail!("a user of the service: {problem}");
        }
        let longest = Duration::from_micros(self.shared.longest_us.swap(0, Ordering::Relaxed));
        Ok((self.shared.answers.load(Ordering::Relaxed), longest))
    }
}

async fn ask(mut stream: TcpStream, counts: &Counts) -> anyhow::Result<()> {
    let (mut sum, mut octets) = (0_u64, Vec::new());
    for number in 1_u64.. {
        sum = sum.wrapping_add(number);
        let asked: Instant = time::now();
        // In two parts, so that the service sometimes has an unfinished line.
        let text = format!("{number}\n");
        let (first, second) = text.split_at(text.len() - 1);
        stream.write_all(first.as_bytes()).await?;
        tokio::task::yield_now().await;
        stream.write_all(second.as_bytes()).await?;
        octets.clear();
        while octets.last() != Some(&b'\n') {
            let octet = stream.read_u8().await?;
            octets.push(octet);
        }
        let waited = (time::now() - asked).as_micros() as u64;
        anyhow::ensure!(
            octets == format!("{sum}\n").as_bytes(),
            "{} is not {sum}",
            String::from_utf8_lossy(&octets)
        );
        counts.longest_us.fetch_max(waited, Ordering::Relaxed);
        counts.answers.fetch_add(1, Ordering::Relaxed);
        time::sleep(PAUSE).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_whatever_their_parts_are() {
        let mut user = Sum::default();
        assert_eq!(user.read(b"1\n2").unwrap(), 1);
        assert_eq!(user.read(b"0\n\x33").unwrap(), 1);
        assert_eq!((user.sum, &user.begun[..], &user.unsent[..]), (21, &b"3"[..], &b"1\n21\n"[..]));
        assert!(user.clone().read(b"x\n").is_err());
        assert!(user.read(&[b'1'; 100]).is_err());
    }
}
