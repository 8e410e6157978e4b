//! A proxy that passes a connection on and remembers what went through, for a capture.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use cotcp::frame::Side;

use crate::pcap::Capture;

type Record = Arc<Mutex<Vec<(Side, Vec<u8>)>>>;

/// Between one client and one server.
pub struct Tap {
    /// Where the client connects.
    pub address: SocketAddr,
    record: Record,
    thread: JoinHandle<()>,
}

impl Tap {
    /// Waits for one connection and passes it on to `server`.
    pub fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let record = Record::default();
        let shared = Arc::clone(&record);
        let thread = std::thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            let server = TcpStream::connect(server).unwrap();
            let back = pass(
                server.try_clone().unwrap(),
                client.try_clone().unwrap(),
                Side::Server,
                Arc::clone(&shared),
            );
            pass(client, server, Side::Client, shared).join().unwrap();
            back.join().unwrap();
        });
        Self { address, record, thread }
    }

    /// What went through, as it is and in segments of at most `cut` octets. Both sides must have closed.
    pub fn finish(self, cut: usize) -> (Vec<(Side, Vec<u8>)>, Capture) {
        self.thread.join().unwrap();
        let record = std::mem::take(&mut *self.record.lock().unwrap());
        let mut capture = Capture::new();
        for (from, octets) in &record {
            capture.segments(*from, octets, cut);
        }
        (record, capture)
    }
}

/// One direction, until its end.
fn pass(mut from: TcpStream, mut to: TcpStream, side: Side, record: Record) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut octets = vec![0; 65_536];
        loop {
            let count = from.read(&mut octets).unwrap_or(0);
            if count == 0 {
                break;
            }
            // Remembered before it goes on, so that what the other side answers comes later.
            record.lock().unwrap().push((side, octets[..count].to_vec()));
            if to.write_all(&octets[..count]).is_err() {
                break;
            }
        }
        // Either may have been closed by its other side.
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
    })
}
