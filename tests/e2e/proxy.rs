//! A proxy of HTTP calls that writes down which calls there are, and can hold one of them: before it is forwarded, in its middle, or
//! after it was answered. So a test meets each step of a procedure that it only knows by its calls.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use net::netns::NetNs;
use net::tcp::{self, TcpStream};
use net::time::{self, Duration, Instant};
use nf::rest::{CallError, Response};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(60);

/// Where a call is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody has got it yet.
    Before,
    /// It was sent, and is not answered for as long as this.
    During(Duration),
    /// It is answered, but the answer has not arrived.
    After,
}

/// A call.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Method and path, without numbers of pages.
    pub(crate) name: String,
    /// When it began.
    pub(crate) began: Instant,
    /// How long it took; nothing while it is under way.
    pub(crate) took: Option<Duration>,
    /// What the controller says of packets' order.
    pub(crate) order: Option<Value>,
}

/// The call that is to be held.
struct Wanted {
    name: String,
    /// Which of those with this name, from 1.
    nth: usize,
    phase: Phase,
    hit: oneshot::Sender<Held>,
}

/// A call that is held until this is dropped.
pub(crate) struct Held {
    _goes_on: oneshot::Sender<()>,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    wanted: Option<Wanted>,
}

/// See the module. It ends when this is dropped.
pub(crate) struct Proxy {
    state: Arc<Mutex<State>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Proxy {
    /// Serves `own` in a namespace, and forwards to `server`.
    pub(crate) fn start(space: &NetNs, own: SocketAddr, server: SocketAddr) -> Proxy {
        let state = Arc::<Mutex<State>>::default();
        let runtime = space.runtime(1).unwrap();
        let shared = state.clone();
        runtime.spawn(async move {
            let listener = tcp::listen(own).await.unwrap();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(forward(shared.clone(), client, server));
            }
        });
        Proxy { state, runtime: Some(runtime) }
    }

    /// Calls a server of the namespace.
    pub(crate) fn call(
        &self,
        server: SocketAddr,
        (method, path): (&'static str, String),
        body: Option<Value>,
    ) -> JoinHandle<Result<Response, CallError>> {
        let call = async move { nf::rest::call(PATIENCE, server, method, &path, body.as_ref()).await };
        self.runtime.as_ref().unwrap().spawn(call)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// All calls so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// Has the next call of this name held, or the one after so many; it is in what comes.
    pub(crate) fn hold(&self, name: &str, nth: usize, phase: Phase) -> oneshot::Receiver<Held> {
        let (hit, comes) = oneshot::channel();
        self.state().wanted = Some(Wanted { name: name.to_owned(), nth, phase, hit });
        comes
    }

    /// Nothing is held any more that is not held yet.
    pub(crate) fn hold_nothing(&self) {
        self.state().wanted = None;
    }
}

impl State {
    /// Writes a call down; its place, and the wish to hold it.
    fn begin(&mut self, name: &str) -> (usize, Option<Wanted>) {
        self.calls.push(Call { name: name.to_owned(), began: time::now(), took: None, order: None });
        let is_meant = self.wanted.as_mut().is_some_and(|wanted| {
            wanted.nth -= usize::from(wanted.name == name);
            wanted.nth == 0
        });
        (self.calls.len() - 1, self.wanted.take_if(|_| is_meant))
    }
}

/// Holds a call until the one who wanted it lets it go.
async fn hold(wanted: Wanted) {
    let (goes_on, released) = oneshot::channel();
    if wanted.hit.send(Held { _goes_on: goes_on }).is_ok() {
        let _ = released.await;
    }
}

async fn forward(state: Arc<Mutex<State>>, mut client: TcpStream, server: SocketAddr) -> Option<()> {
    let request = message(&mut client).await?;
    let (at, wanted) = state.lock().unwrap().begin(&name(&request));
    let phase = wanted.as_ref().map(|wanted| wanted.phase);
    let mut wanted = wanted;
    if phase == Some(Phase::Before) {
        hold(wanted.take()?).await;
    }
    // Ends the client's connection if there is no server.
    let mut upstream = tcp::connect(server, PATIENCE).await.ok()?;
    upstream.write_all(&request).await.ok()?;
    if let Some(Phase::During(time)) = phase {
        time::sleep(time).await;
        hold(wanted.take()?).await;
    }
    let answer = message(&mut upstream).await?;
    if let Some(wanted) = wanted {
        hold(wanted).await;
    }
    client.write_all(&answer).await.ok()?;
    let mut state = state.lock().unwrap();
    let call = &mut state.calls[at];
    call.took = Some(time::now() - call.began);
    call.order = order(&answer);
    Some(())
}

/// The member of this name of an answer.
fn order(answer: &[u8]) -> Option<Value> {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let content: Value = serde_json::from_slice(&answer[head + 4..]).ok()?;
    content.get("order").filter(|order| order.is_object()).cloned()
}

/// Reads a request or an answer: head, and as much content as it says.
async fn message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let (mut octets, mut buffer) = (Vec::new(), vec![0; 65_536]);
    loop {
        let read = stream.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        octets.extend_from_slice(&buffer[..read]);
        let Some(end) = octets.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&octets[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
        if octets.len() >= end + 4 + length {
            return Some(octets);
        }
    }
}

/// Method and path of a request, without numbers of pages.
fn name(request: &[u8]) -> String {
    let line = String::from_utf8_lossy(request.split(|octet| *octet == b'\r').next().unwrap_or_default())
        .into_owned();
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    format!("{method} {}", path.split("?behind").next().unwrap_or_default())
}
