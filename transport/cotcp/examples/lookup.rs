//! A small service and its client: names are looked up, many at once, over one connection.
//!
//! `cargo run -p cotcp --example lookup` runs both; with `serve <host:port>` or `ask <host:port> <name>…` one of them.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use cotcp::{Client, Code, Config, Failure, Handler, Request, Server};

/// The application's error: no such name.
const UNKNOWN_NAME: Code = Code::APPLICATION;

/// Answers a name with its number.
fn directory() -> impl Handler {
    let names = ["amf", "ausf", "nrf", "nssf", "pcf", "smf", "udm", "udr", "upf"];
    let numbers: HashMap<_, _> = names.into_iter().zip(1..).collect();
    let numbers = Arc::new(numbers);
    move |request: Request| {
        let numbers = Arc::clone(&numbers);
        async move {
            let name = std::str::from_utf8(&request.body).unwrap_or_default();
            match numbers.get(name) {
                Some(number) => Ok(number.to_string()),
                None => Err(Failure::new(UNKNOWN_NAME, format!("nobody is called {name:?}"))),
            }
        }
    }
}

/// Asks for all names at once.
async fn ask(address: &str, names: Vec<String>) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(address, Config::default()).await?;
    let calls: Vec<_> = names
        .into_iter()
        .map(|name| {
            let client = client.clone();
            tokio::spawn(async move {
                let call = client.request(name.clone()).deadline(Duration::from_secs(1)).send();
                (call.await, name)
            })
        })
        .collect();
    for call in calls {
        match call.await? {
            (Ok(number), name) => println!("{name}: {}", String::from_utf8_lossy(&number)),
            (Err(error), name) => println!("{name}: {error}"),
        }
    }
    client.close().await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("serve"), Some(address)) => {
            Server::bind(address, Config::default()).await?.serve(directory()).await;
        }
        (Some("ask"), Some(address)) => ask(&address, arguments.collect()).await?,
        _ => {
            let server = Server::bind("127.0.0.1:0", Config::default()).await?;
            let (address, handle) = (server.local_addr()?.to_string(), server.handle());
            let serving = tokio::spawn(server.serve(directory()));
            ask(&address, ["amf", "smf", "upf", "hss"].map(str::to_owned).into()).await?;
            handle.drain();
            serving.await?;
            print!("{}", handle.metrics().to_prometheus("side=\"server\""));
        }
    }
    Ok(())
}
