//! One side of a connection as a bare socket: sends what it is told, octet by octet, and takes frames as they come.
//! No wait is longer than [`PATIENCE`].

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use cotcp::frame::{self, EXTENDED, Frame, HEADER, HELLO_ID, Side};
use cotcp::hello::{self, Limits};

/// Whoever waits longer for the other side has found that it hangs.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A frame as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Came {
    /// Of version 1, or a HELLO: ID and body.
    Plain(u32, Vec<u8>),
    /// With type and flags: the call and the rest.
    Extended(u32, Frame),
    /// The other side closed the connection, or reset it.
    End,
}

/// The socket.
pub struct Peer {
    stream: TcpStream,
    came: Vec<u8>,
    /// Whose frames come in.
    from: Side,
}

impl Peer {
    /// A client of the server at `address`.
    pub fn client(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).unwrap(), Side::Server)
    }

    /// A server for the client that connects next.
    pub fn server(listener: &TcpListener) -> Self {
        listener.set_nonblocking(true).unwrap();
        let end = Instant::now() + PATIENCE;
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Self::new(stream, Side::Client),
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => panic!("nobody connects: {error}"),
            }
        }
    }

    fn new(stream: TcpStream, from: Side) -> Self {
        stream.set_nonblocking(false).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, came: Vec::new(), from }
    }

    /// Sends octets. A connection that is closed meanwhile shows at the next frame.
    pub fn send(&mut self, octets: &[u8]) {
        match self.stream.write_all(octets) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("nothing is read: {error}")
            }
            _ => {}
        }
    }

    /// Exchanges HELLOs, so that version 2 holds.
    pub fn hello(&mut self, limits: Limits) -> Limits {
        let mine = plain(HELLO_ID, &hello::encode(self.from == Side::Server, limits));
        if self.from == Side::Server {
            self.send(&mine);
        }
        let Came::Plain(HELLO_ID, body) = self.next() else { panic!("no HELLO") };
        if self.from == Side::Client {
            self.send(&mine);
        }
        hello::decode(&body, self.from == Side::Client).unwrap()
    }

    /// The next frame.
    pub fn next(&mut self) -> Came {
        match self.next_header_and_body() {
            None => Came::End,
            Some((id, body)) if id & EXTENDED == 0 || id == HELLO_ID => Came::Plain(id, body),
            Some((id, body)) => {
                let (call, frame) = Frame::decode(id, body.into(), self.from).unwrap();
                Came::Extended(call, frame)
            }
        }
    }

    /// The next frame, read as one of version 1 whatever its ID is.
    pub fn next_plain(&mut self) -> (u32, Vec<u8>) {
        self.next_header_and_body().expect("closed")
    }

    fn next_header_and_body(&mut self) -> Option<(u32, Vec<u8>)> {
        loop {
            if let Some((id, length)) = frame::read_header(&self.came)
                && self.came.len() >= HEADER + length
            {
                return Some((id, self.came.drain(..HEADER + length).skip(HEADER).collect()));
            }
            if !self.read() {
                return None;
            }
        }
    }

    /// The next frame that is not part of keeping the connection alive and supplied: no PING, no CREDIT.
    pub fn next_of_calls(&mut self) -> Came {
        loop {
            match self.next() {
                Came::Extended(_, Frame::Ping(_) | Frame::Credit { .. }) => {}
                other => return other,
            }
        }
    }

    /// Whether nothing comes for so long.
    pub fn is_quiet_for(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let mut octets = [0; 1];
        let read = self.stream.peek(&mut octets);
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        self.came.is_empty() && read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Closes the sending direction.
    pub fn finish(&mut self) {
        // The other side may have closed already.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Ends the connection with a reset, whatever is on its way.
    pub fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    fn read(&mut self) -> bool {
        let mut octets = [0; 65_536];
        match self.stream.read(&mut octets) {
            Ok(count) => {
                self.came.extend_from_slice(&octets[..count]);
                count > 0
            }
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => false,
            Err(error) => panic!("nothing comes, and the connection stays open: {error}"),
        }
    }
}

/// A frame of version 1.
pub fn plain(id: u32, body: &[u8]) -> Vec<u8> {
    [&frame::header(id, u16::try_from(body.len()).unwrap()), body].concat()
}

/// A frame with type and flags.
pub fn extended(call: u32, frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(call, &mut out);
    out
}

/// The same with anything after the header.
pub fn unchecked(call: u32, rest: &[u8]) -> Vec<u8> {
    plain(call | EXTENDED, rest)
}
