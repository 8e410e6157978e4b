//! Our server with a handler that tests command by what they send, in a runtime of its own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cotcp::Config;
use cotcp::driver::handler::Request;
use cotcp::driver::server::{Server as Listening, ServerHandle};
use tokio::runtime::{Builder, Runtime};

use crate::raw::PATIENCE;

/// A runtime with a thread of its own, so that the test's thread may block.
pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// What the handler has seen.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    /// Requests whose answer never comes.
    pub waiting: usize,
    /// Those of them that were dropped.
    pub dropped: usize,
    /// Connections that are open.
    pub connections: usize,
    /// Requests by their body.
    pub handled: HashMap<Vec<u8>, usize>,
}

/// Counts a request that waits until it is dropped.
struct Waits(Arc<Mutex<Seen>>);

impl Drop for Waits {
    fn drop(&mut self) {
        let mut seen = self.0.lock().unwrap();
        seen.waiting -= 1;
        seen.dropped += 1;
    }
}

/// A running server; it ends with this value.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    handle: ServerHandle,
    _runtime: Runtime,
}

impl Server {
    /// Starts one. Requests come back as they are, but for: `wait` is not answered, `slow`, `misdeed` and `1 s` later, `64k` and `1M`
    /// with as much.
    pub fn start(config: Config) -> Self {
        let runtime = runtime();
        let server = runtime.block_on(Listening::bind("127.0.0.1:0", config)).unwrap();
        let (address, handle) = (server.local_addr().unwrap(), server.handle());
        let seen = Arc::<Mutex<Seen>>::default();
        let shared = Arc::clone(&seen);
        runtime.spawn(server.serve(move |request: Request| {
            let body = request.body;
            *shared.lock().unwrap().handled.entry(body.to_vec()).or_default() += 1;
            let seen = Arc::clone(&shared);
            async move {
                match &body[..] {
                    b"wait" => {
                        seen.lock().unwrap().waiting += 1;
                        let _waits = Waits(seen);
                        std::future::pending().await
                    }
                    b"slow" | b"misdeed" => tokio::time::sleep(Duration::from_millis(100)).await,
                    b"1 s" => tokio::time::sleep(Duration::from_secs(1)).await,
                    b"64k" => return Ok(Bytes::from(vec![0; 65_535])),
                    b"1M" => return Ok(Bytes::from(vec![0; 1 << 20])),
                    _ => {}
                }
                Ok(body)
            }
        }));
        Self { address, seen, handle, _runtime: runtime }
    }

    /// What it has seen so far.
    pub fn seen(&self) -> Seen {
        let mut seen = self.seen.lock().unwrap().clone();
        seen.connections = self.handle.connections();
        seen
    }

    /// Waits until something is so.
    pub fn until(&self, what: &str, is: impl Fn(&Seen) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is(&self.seen()) {
            assert!(Instant::now() < end, "{what}: still {:?}", self.seen());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
