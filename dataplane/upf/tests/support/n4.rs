//! The N4 task over a real socket, without workers.
#![allow(dead_code)] // each binary uses its part

use std::net::SocketAddr;
use std::sync::Arc;

use pktio::Port;
use pktio::memory::Sink;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use upf::mailbox::Mailbox;
use upf::n4::{Query, Wiring, serve};
use upf::pipeline::Event as PacketEvent;
use upf::tables::Tables;

use super::support::config;

/// A UPF without user plane.
pub struct Upf {
    pub address: SocketAddr,
    pub tables: Arc<Tables>,
    /// Its commands to workers.
    pub mailbox: Arc<Mailbox>,
    pub queries: mpsc::Sender<Query>,
    /// Sends events, as workers do.
    pub events: mpsc::Sender<PacketEvent>,
    pub task: tokio::task::JoinHandle<()>,
    _stop: watch::Sender<bool>,
}

impl Upf {
    pub async fn start() -> Upf {
        Upf::with_n3(Sink::default()).await
    }

    pub async fn with_n3(port: impl Port + 'static) -> Upf {
        Upf::with(port, |_| ()).await
    }

    pub async fn with(port: impl Port + 'static, change: impl FnOnce(&mut upf::Config)) -> Upf {
        let socket = net::udp::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = socket.local_addr().unwrap();
        let mut config = config("gw0");
        config.pfcp = address;
        // It sends requests to the port of its own socket, because tests that run at the same time use other ports.
        config.smf = vec![format!("127.0.0.0/8:{}", address.port()).parse().unwrap()];
        change(&mut config);
        let config = Arc::new(config);
        let (event_sender, events) = mpsc::channel(1024);
        let (query_sender, queries) = mpsc::channel(16);
        let (stop, stopped) = watch::channel(false);
        let tables = Arc::new(Tables::new(&config));
        let mailbox = tables.mailbox();
        let signalling = vec![vec![Box::new(port) as Box<dyn Port>]];
        let wiring =
            Wiring { socket, signalling, tables: Arc::clone(&tables), events, queries, stop: stopped };
        let task = tokio::spawn(serve(config, wiring));
        Upf { address, tables, mailbox, queries: query_sender, events: event_sender, task, _stop: stop }
    }

    pub async fn ask(&self, query: impl FnOnce(oneshot::Sender<Value>) -> Query) -> Value {
        let (reply, answer) = oneshot::channel();
        self.queries.send(query(reply)).await.unwrap();
        answer.await.unwrap()
    }

    /// A number in the status.
    pub async fn count(&self, what: &str) -> usize {
        let status = self.ask(Query::Status).await;
        status[what].as_array().map_or_else(|| status[what].as_u64().unwrap() as usize, Vec::len)
    }
}
