//! CoTCP without tasks: the library's state machines with a simple loop around them. A request is answered
//! where it is read, and a worker's next request is sent where its answer is read. This suits an application
//! that never waits, and shows the least that the protocol costs.

use std::sync::Arc;

use anyhow::ensure;
use bytes::{Buf as _, BytesMut};
use cotcp::core::{CallId, CallOptions, Client, ClientEvent, Outbox, Server, ServerEvent};
use net::tcp::{self, TcpStream};
use net::time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::bodies::{Requests, is_answer};
use super::load::{Crew, Kind, PATIENCE};
use super::meter::{Meter, Tally, Timed};
use super::serve::App;

/// Most octets read at once: the answers of all workers.
const ROOM: usize = 64 << 10;
/// Longer bodies are sent in fragments, and then a side that writes without reading could wait for ever.
const BODY_MAX: usize = 4096;

fn config() -> cotcp::Config {
    cotcp::Config { max_calls: cotcp::config::MAX_CALLS, ..cotcp::Config::default() }
}

async fn read(stream: &mut TcpStream, input: &mut BytesMut) -> std::io::Result<usize> {
    input.reserve(ROOM);
    stream.read_buf(input).await
}

/// Small frames are in one piece, for which a plain write is faster than a vectored one.
async fn write(stream: &mut TcpStream, output: &mut Outbox) -> std::io::Result<()> {
    while output.has_remaining() {
        let written = stream.write(output.chunk()).await?;
        output.advance(written);
    }
    Ok(())
}

/// Answers the requests of a connection.
pub(super) async fn serve(mut stream: TcpStream, app: App) -> anyhow::Result<()> {
    ensure!(app.is_instant() && app.response() <= BODY_MAX, "requests are answered at once, and small");
    let mut core = Server::new(time::now_std(), config());
    loop {
        let now = time::now_std();
        while let Some(event) = core.poll(now)? {
            if let ServerEvent::Request(request) = event {
                // Refused if the client has given up meanwhile.
                let _ = core.respond(now, request.id, app.answer_now(request.body));
            }
        }
        core.fill(now);
        if core.output().has_remaining() {
            write(&mut stream, core.output()).await?;
            // Requests may be left for whose answers there was no room.
            if !core.wants_input() {
                continue;
            }
        }
        if read(&mut stream, core.input()).await? == 0 {
            return Ok(());
        }
    }
}

/// Connects and starts a loop per connection.
pub(super) async fn start(crew: &mut Crew) -> anyhow::Result<()> {
    let load = &crew.load;
    let small = load.large_workers == 0 && load.request <= BODY_MAX;
    ensure!(small && load.pause.is_zero(), "requests follow one another, and are small");
    for connection in 0..load.connections {
        let stream = tcp::connect(load.server, PATIENCE).await?;
        let workers = (connection..load.workers).step_by(load.connections as usize);
        let workers: Vec<Worker> =
            workers.map(|at| Worker { requests: Requests::new(at, load.request), start: None }).collect();
        let side = Side {
            core: Client::new(time::now_std(), config()),
            options: CallOptions::default(),
            calls: Vec::new(),
            workers,
            meter: Arc::clone(&crew.small),
            tally: Tally::default(),
        };
        crew.tallies.spawn(async move { (Kind::Small, side.run(stream).await) });
    }
    Ok(())
}

struct Worker {
    requests: Requests,
    /// Start of the transaction under way, if it is timed.
    start: Option<std::time::Instant>,
}

/// The client's side of a connection with its workers.
struct Side {
    core: Client,
    options: CallOptions,
    /// The worker of each call, by the position of the call.
    calls: Vec<usize>,
    workers: Vec<Worker>,
    meter: Arc<Meter>,
    tally: Tally,
}

impl Side {
    async fn run(mut self, stream: TcpStream) -> Tally {
        if let Err(error) = self.exchange(stream).await {
            self.meter.note(&format!("{error:#}"));
            self.tally.failed += 1;
        }
        self.tally
    }

    async fn exchange(&mut self, mut stream: TcpStream) -> anyhow::Result<()> {
        for worker in 0..self.workers.len() {
            self.call(worker, time::now_std())?;
        }
        while self.core.open_calls() > 0 {
            let now = time::now_std();
            self.core.fill(now);
            write(&mut stream, self.core.output()).await?;
            ensure!(read(&mut stream, self.core.input()).await? > 0, "the server closed the connection");
            let now = time::now_std();
            while let Some(event) = self.core.poll(now)? {
                match event {
                    ClientEvent::Answered { id, body } => self.answered(now, id, &body)?,
                    ClientEvent::Failed { error, .. } => return Err(error.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, worker: usize, now: std::time::Instant) -> anyhow::Result<()> {
        let Worker { requests, start } = &mut self.workers[worker];
        *start = self.tally.times_next(&self.meter).then(time::now_std);
        let id = self.core.call(now, requests.turn().clone(), &self.options)?;
        if self.calls.len() <= id.place() {
            self.calls.resize(id.place() + 1, 0);
        }
        self.calls[id.place()] = worker;
        Ok(())
    }

    fn answered(&mut self, now: std::time::Instant, id: CallId, body: &[u8]) -> anyhow::Result<()> {
        let at = self.calls[id.place()];
        let worker = &self.workers[at];
        let timed = worker.start.map(|start| {
            let end = time::now_std();
            Timed { time: Some(end - start), end }
        });
        let right = is_answer(worker.requests.current(), body, self.meter.size());
        self.tally.add(&self.meter, right, timed);
        if !self.meter.stopped() {
            self.call(at, now)?;
        }
        Ok(())
    }
}
