//! A file goes over a connection in parts, while small calls on the same connection go past it.
//!
//! `cargo run --release -p cotcp --example file [path]`; without a path it makes a file of 256 MiB.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cotcp::{CallError, Client, Code, Config, Failure, PartSender, Reply, Request, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

/// Octets that are read from the file at a time.
const BLOCK: usize = 64 * 1024;

/// Answers `ping` at once, and everything else as the path of a file.
async fn handle(request: Request) -> Result<Reply, Failure> {
    if request.body == "ping" {
        return Ok(request.body.into());
    }
    let path = String::from_utf8_lossy(&request.body).into_owned();
    let file = tokio::fs::File::open(&path).await;
    let file = file.map_err(|error| Failure::new(Code::APPLICATION, format!("{path}: {error}")))?;
    let (sender, reply) = Reply::parts();
    tokio::spawn(send(file, sender));
    Ok(reply)
}

/// Reads on as the client takes it in: no more than a window of the file is ever held.
async fn send(mut file: tokio::fs::File, mut sender: PartSender) -> Result<(), Box<dyn Error + Send + Sync>> {
    loop {
        let mut block = vec![0; BLOCK];
        let count = file.read(&mut block).await?;
        if count == 0 {
            sender.finish();
            return Ok(());
        }
        block.truncate(count);
        sender.send(block).await?;
    }
}

/// Fetches the file; gives its length.
async fn fetch(client: &Client, path: &str) -> Result<u64, CallError> {
    let mut file = client.request(path.to_owned()).receive().await?;
    let mut length = 0;
    while let Some(part) = file.next().await {
        length += part?.len() as u64;
    }
    Ok(length)
}

/// Small calls, one after the other, until told to stop; gives how long each took.
async fn pings(client: &Client, stop: &AtomicBool) -> Result<Vec<Duration>, CallError> {
    let mut times = Vec::new();
    while !stop.load(Relaxed) {
        let start = Instant::now();
        client.call("ping").await?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = match std::env::args().nth(1) {
        Some(path) => PathBuf::from(path),
        None => {
            let path = directory.path().join("large");
            let mut file = tokio::fs::File::create(&path).await?;
            for _ in 0..256 {
                file.write_all(&vec![7; 1 << 20]).await?;
            }
            file.flush().await?;
            path
        }
    };
    let server = Server::bind("127.0.0.1:0", Config::default()).await?;
    let address = server.local_addr()?;
    tokio::spawn(server.serve(handle));

    let client = Client::connect(address, Config::default()).await?;
    client.call("ping").await?;
    let (start, stop) = (Instant::now(), AtomicBool::new(false));
    let fetching = async {
        let length = fetch(&client, &path.to_string_lossy()).await;
        stop.store(true, Relaxed);
        length
    };
    let (length, times) = tokio::join!(fetching, pings(&client, &stop));
    let (length, times, seconds) = (length?, times?, start.elapsed().as_secs_f64());
    println!("{length} octets in {seconds:.2} s: {:.0} MB/s", length as f64 / seconds / 1e6);
    if let (Some(middle), Some(longest)) = (times.get(times.len() / 2), times.last()) {
        println!("meanwhile {} small calls: {middle:?} in the middle, {longest:?} at most", times.len());
    }
    Ok(())
}
