//! Sequential TCP, the paper's baseline: one transaction at a time on each connection.
//!
//! Made as fast as possible. A frame is a length of two octets and the body, written and read with one system
//! call each. The server sends the received octets back without copying. The client has one loop per connection
//! that carries the workers' transactions in turn, so that no time is lost between tasks. A worker's latency
//! begins when its request is ready, which is when it got its last answer.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::ensure;
use bytes::{Buf as _, BufMut as _, BytesMut};
use net::tcp::{self, TcpStream};
use net::time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::bodies::{self, Requests, is_answer};
use super::load::{Crew, Kind, PATIENCE};
use super::meter::{Meter, Tally, Timed};
use super::serve::App;

/// Octets before the body.
const LENGTH: usize = 2;
/// Most octets read at once.
const ROOM: usize = 64 << 10;

/// Answers the requests of a connection.
pub(super) async fn serve(mut stream: TcpStream, app: App) -> anyhow::Result<()> {
    let mut input = BytesMut::with_capacity(ROOM);
    let mut output = BytesMut::new();
    while let Some(end) = read_frame(&mut stream, &mut input).await? {
        if !app.is_instant() {
            app.wait().await;
        }
        if end - LENGTH == app.response() {
            stream.write_all(&input[..end]).await?;
        } else {
            output.put_u16(app.response() as u16);
            bodies::fill(&input[LENGTH..end], app.response(), &mut output);
            stream.write_all(&output).await?;
            output.clear();
        }
        input.advance(end);
    }
    Ok(())
}

/// Reads until a frame is complete; returns its length, or `None` at the end of the stream.
async fn read_frame(stream: &mut TcpStream, input: &mut BytesMut) -> anyhow::Result<Option<usize>> {
    loop {
        if let Some(&[high, low]) = input.first_chunk() {
            let end = LENGTH + usize::from(u16::from_be_bytes([high, low]));
            if input.len() >= end {
                return Ok(Some(end));
            }
        }
        input.reserve(ROOM / 2);
        if stream.read_buf(input).await? == 0 {
            return Ok(None);
        }
    }
}

/// Connects and starts a loop per connection.
pub(super) async fn start(crew: &mut Crew) -> anyhow::Result<()> {
    let load = &crew.load;
    let fits = [load.request, load.response].iter().all(|size| *size <= usize::from(u16::MAX));
    ensure!(fits, "sequential TCP has bodies of at most 65535 octets");
    ensure!(
        load.large_workers == 0 && load.pause.is_zero(),
        "sequential TCP has no large requests and pauses"
    );
    for connection in 0..load.connections {
        let stream = tcp::connect(load.server, PATIENCE).await?;
        let workers = (connection..load.workers).step_by(load.connections as usize);
        let workers: VecDeque<Worker> =
            workers.map(|at| Worker { requests: Requests::new(at, load.request), since: None }).collect();
        let meter = Arc::clone(&crew.small);
        // With more connections than workers some are idle, as in the paper.
        if !workers.is_empty() {
            crew.tallies.spawn(async move { (Kind::Small, take_turns(stream, workers, &meter).await) });
        }
    }
    Ok(())
}

/// A worker that waits for its turn.
struct Worker {
    requests: Requests,
    /// Start of its wait; unknown before its first turn.
    since: Option<std::time::Instant>,
}

async fn take_turns(mut stream: TcpStream, mut workers: VecDeque<Worker>, meter: &Meter) -> Tally {
    let mut tally = Tally::default();
    let mut output = BytesMut::new();
    let mut input = BytesMut::with_capacity(ROOM);
    while !meter.stopped() {
        let Some(mut worker) = workers.pop_front() else { break };
        let request = worker.requests.turn();
        output.clear();
        output.put_u16(request.len() as u16);
        output.extend_from_slice(request);
        let exchange = async {
            stream.write_all(&output).await?;
            read_frame(&mut stream, &mut input).await
        };
        let end = match exchange.await {
            Ok(Some(end)) => end,
            Ok(None) | Err(_) => {
                meter.note(&"the server closed the connection");
                tally.failed += 1;
                break;
            }
        };
        let now = time::now_std();
        let timed = Timed { time: worker.since.map(|since| now - since), end: now };
        tally.add(meter, is_answer(request, &input[LENGTH..end], meter.size()), Some(timed));
        input.advance(end);
        worker.since = Some(now);
        workers.push_back(worker);
    }
    tally
}
