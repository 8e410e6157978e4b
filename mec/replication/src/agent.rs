//! The agent beside a clone: a program that the clone takes for its MME or SMF.
//!
//! ```text
//!  replicator ──TCP: frames──► agent ──UDP: S11 or N4──► clone
//! ```
//! It has the control plane's own address on the clone's machine, so that what the clone sends there comes here (CAP-5). One agent serves
//! one clone and one replicator at a time: a new connection ends the one before. What it knows it has from the replicator; users stay
//! when the connection ends, and go on when it is back.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use foldhash::HashMap;
use net::task::Boxed;
use net::tcp::{TcpListener, TcpStream};
use net::time::{self, Duration};
use net::udp::UdpSocket;
use net::udp::burst::{self, Burst};
use serde::Deserialize;
use telemetry::counters::Counter;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::clone::{Clone, Event, Limits, Script, Side as _, Why};
use crate::frame::{Frame, Reader, VERSION, Writer};
use crate::n4::clone::N4;
use crate::record::{Bearer, Kept, Record};
use crate::s11::clone::S11;
use crate::session::Session;
use crate::template::Template;

static BAD: Counter = Counter::new("agent_bad_frames");
static LOST: Counter = Counter::new("agent_usage_reports_lost");

/// Ports of the protocols (TS 29.274 §4.2.2.1, TS 29.244 §4.2.2).
const S11_PORT: u16 = 2123;
const N4_PORT: u16 = 8805;
/// Octets for a replicator that reads too slowly.
const MAX_UNSENT: usize = 64 << 20;
/// Most messages with usage that wait for a replicator.
const MAX_USAGE: usize = 16_384;
/// The place of a message that has not been written yet.
const UNWRITTEN: u64 = u64::MAX;
/// How often, and how long each time, a clone is asked for an association.
const ASSOCIATION_TRIES: u32 = 10;
const ASSOCIATION_WAIT: Duration = Duration::from_millis(300);
/// Largest datagram that is received: what UDP can carry.
const DATAGRAM: usize = 65_535;

/// Section `mec: agent:`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the replicator connects. Whoever can connect can make and end sessions at the clone.
    pub listen: SocketAddr,
    /// The control plane's address, which this machine has as well.
    pub control: IpAddr,
    /// The clone's address on S11 or N4.
    pub clone: IpAddr,
    /// The clone's address for GTP-U; needed for N4.
    #[serde(default)]
    pub gtpu: Option<IpAddr>,
    /// Users that are made at once.
    #[serde(default = "window")]
    pub window: usize,
}

impl Config {
    /// Checks rules that the types cannot express.
    ///
    /// # Errors
    /// The first key that is wrong, with what is wrong and what to do.
    pub fn check(&self) -> Result<(), (String, String)> {
        let wrong = |key: &str, what: String| Err((key.to_owned(), what));
        if self.listen.port() == 0 {
            return wrong("listen", "0 is any port, and the controller has to know it".to_owned());
        }
        let addresses = [("control", Some(self.control)), ("clone", Some(self.clone)), ("gtpu", self.gtpu)];
        for (key, address) in addresses {
            if let Some(address) = address.filter(|it| it.is_unspecified() || it.is_multicast()) {
                return wrong(key, format!("{address} is no machine's address"));
            }
        }
        let (control, clone) = (self.control, self.clone);
        if clone == control {
            return wrong(
                "clone",
                format!("{clone} is the MME's or SMF's address (key `control`), which the agent has"),
            );
        }
        if clone.is_ipv4() != control.is_ipv4() {
            return wrong(
                "clone",
                format!(
                    "{clone} and {control} (key `control`) are of two IP versions: they cannot reach each other"
                ),
            );
        }
        if self.window == 0 {
            return wrong("window", "is at least 1".to_owned());
        }
        Ok(())
    }
}

fn window() -> usize {
    Limits::default().window
}

enum Sides {
    S11(Clone<S11>),
    N4(Clone<N4>),
}

/// See the module.
pub struct Agent {
    config: Config,
    listener: Arc<TcpListener>,
    /// As soon as a replicator has said which protocol.
    side: Option<(Sides, Arc<UdpSocket>)>,
    templates: HashMap<u16, Template>,
    /// Datagrams for the next system call.
    outbox: Vec<(SocketAddr, Vec<u8>)>,
    unsent: Vec<u8>,
    /// Octets that were sent by this connection.
    sent: u64,
    /// The replicator of this connection has said who it is.
    is_greeted: bool,
    /// Usage, which a clone tells once, with where it ends in the octets of this connection. It is kept until it is sent.
    usage: VecDeque<(u64, Frame)>,
    writer: Writer,
}

/// Calls a method of either side.
macro_rules! of_side {
    ($side:expr, $clone:ident => $do:expr) => {
        match $side {
            Sides::S11($clone) => $do,
            Sides::N4($clone) => $do,
        }
    };
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Agent {
    /// Binds the address to which replicators connect.
    ///
    /// # Errors
    /// It cannot be served.
    pub async fn bind(config: Config) -> io::Result<Agent> {
        let listener = Arc::new(net::tcp::listen(config.listen).await?);
        let (templates, outbox, unsent, usage, writer) = Default::default();
        let (sent, is_greeted) = (0, false);
        Ok(Agent { config, listener, side: None, templates, outbox, unsent, sent, is_greeted, usage, writer })
    }

    /// Serves replicators, one after another, without end.
    pub fn serve(mut self) -> Boxed<'static, ()> {
        Box::pin(async move {
            let listener = self.listener.clone();
            loop {
                let mut stream = self.without(&listener).await;
                // The next one ends this one.
                while let Some(next) = tokio::select! {
                    ended = self.connection(&mut stream) => {
                        if let Err(error) = ended {
                            tracing::warn!(%error, "the replicator's connection has ended");
                        }
                        None
                    }
                    next = accept(&listener) => Some(next),
                } {
                    stream = next;
                }
            }
        })
    }

    /// Serves the clone while nobody is connected.
    async fn without(&mut self, listener: &TcpListener) -> TcpStream {
        self.begin();
        let mut burst = Burst::new(DATAGRAM);
        loop {
            let due = self.due();
            tokio::select! {
                stream = accept(listener) => return stream,
                () = receive(self.side.as_ref().map(|(_, socket)| socket.clone()), &mut burst) => {
                    self.datagrams(&burst);
                }
                () = sleep_until(due) => self.timeout(),
            }
            self.flush();
            // Nobody hears it; who comes is told what is asked again, and usage.
            self.unsent.clear();
        }
    }

    async fn connection(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        self.templates.clear();
        self.begin();
        let mut reader = Reader::default();
        let (mut octets, mut burst) = (vec![0; 65_536], Burst::new(DATAGRAM));
        loop {
            let due = self.due();
            let socket = self.side.as_ref().map(|(_, socket)| socket.clone());
            if !self.unsent.is_empty() {
                let sent = match stream.try_write(&self.unsent) {
                    Ok(sent) => sent,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                    Err(error) => return Err(error),
                };
                self.has_sent(sent);
                if self.unsent.len() > MAX_UNSENT {
                    return Err(io::Error::other("the replicator reads too slowly"));
                }
            }
            let (mut from, mut to) = stream.split();
            tokio::select! {
                read = from.read(&mut octets) => {
                    let read = read?;
                    if read == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    reader.push(&octets[..read]);
                    while let Some(frame) = reader.read().map_err(io::Error::other).inspect_err(|_| BAD.inc())? {
                        self.frame(frame).await?;
                    }
                }
                () = receive(socket, &mut burst) => self.datagrams(&burst),
                () = sleep_until(due) => self.timeout(),
                sent = to.write(&self.unsent), if !self.unsent.is_empty() => self.has_sent(sent?),
            }
            self.flush();
        }
    }

    /// Nothing was said yet to whom comes.
    fn begin(&mut self) {
        self.unsent.clear();
        self.writer = Writer::default();
        (self.sent, self.is_greeted) = (0, false);
        self.usage.iter_mut().for_each(|(end, _)| *end = UNWRITTEN);
    }

    fn has_sent(&mut self, octets: usize) {
        self.unsent.drain(..octets);
        self.sent += octets as u64;
        while self.usage.pop_front_if(|(end, _)| *end <= self.sent).is_some() {}
    }

    /// Writes usage that waits for a replicator that is there.
    fn write_usage(&mut self) {
        for (end, frame) in self.usage.iter_mut().filter(|(end, _)| *end == UNWRITTEN) {
            self.writer.write(frame, &mut self.unsent);
            *end = self.sent + self.unsent.len() as u64;
        }
    }

    fn due(&self) -> Option<std::time::Instant> {
        self.side.as_ref().and_then(|(side, _)| of_side!(side, clone => clone.poll_timeout()))
    }

    fn timeout(&mut self) {
        if let Some((side, _)) = &mut self.side {
            of_side!(side, clone => clone.handle_timeout(time::now_std()));
        }
    }

    /// Takes datagrams that have come together, before any is answered.
    fn datagrams(&mut self, burst: &Burst) {
        let Some((side, _)) = &mut self.side else { return };
        let now = time::now_std();
        for (_, datagram) in burst.iter() {
            of_side!(side, clone => clone.handle_datagram(now, datagram));
        }
    }

    /// Sends what is to be sent, and tells what has happened.
    fn flush(&mut self) {
        let Some((side, socket)) = &mut self.side else { return };
        let to =
            SocketAddr::new(self.config.clone, if matches!(side, Sides::N4(_)) { N4_PORT } else { S11_PORT });
        while let Some(datagram) = of_side!(side, clone => clone.poll_transmit()) {
            self.outbox.push((to, datagram));
        }
        let mut rest = &self.outbox[..];
        while !rest.is_empty() {
            let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            let sent = match burst::send(&**socket, rest) {
                // That nobody listened is about an earlier datagram; this one was not tried.
                Err(error) if refused(&error) => burst::send(&**socket, rest),
                sent => sent,
            };
            // What is lost is repeated.
            let sent = sent.unwrap_or(1);
            rest = &rest[sent.clamp(1, rest.len())..];
        }
        self.outbox.clear();
        while let Some(event) = of_side!(side, clone => clone.poll_event()) {
            let frame = match event {
                Event::Made(handle, made) => Frame::Made(handle, made),
                Event::Refused(handle, why) => Frame::Refused(handle, why),
                Event::Ended(handle) => Frame::Ended(handle),
                Event::Usage { handle, is_end, octets } => Frame::Usage { handle, is_end, octets },
                Event::Request { handle, sequence, octets } => Frame::Request { handle, sequence, octets },
            };
            if !matches!(frame, Frame::Usage { .. }) {
                self.writer.write(&frame, &mut self.unsent);
                continue;
            }
            self.usage.push_back((UNWRITTEN, frame));
            if self.usage.len() > MAX_USAGE {
                self.usage.pop_front();
                LOST.inc();
            }
            if self.is_greeted
                && let Some((end, frame)) = self.usage.back_mut()
            {
                self.writer.write(frame, &mut self.unsent);
                *end = self.sent + self.unsent.len() as u64;
            }
        }
    }

    fn say(&mut self, frame: &Frame) {
        self.writer.write(frame, &mut self.unsent);
    }

    async fn frame(&mut self, frame: Frame) -> io::Result<()> {
        let now = time::now_std();
        if let Frame::Hello { version, n4, started, resume, original } = frame {
            if version != VERSION {
                return Err(io::Error::other(format!(
                    "the replicator speaks version {version}, not {VERSION}"
                )));
            }
            self.open(n4, started, resume, original).await?;
            if let Some((side, _)) = self.side.as_mut() {
                of_side!(side, clone => clone.greeted());
            }
            if let Some((side, _)) = self.side.as_mut().filter(|_| !resume) {
                // A replicator that begins knows nothing of those whom an earlier one has had made.
                of_side!(side, clone => clone.end_all(now));
            }
            self.say(&Frame::Ready);
            if !resume {
                LOST.add(self.usage.len() as u64);
                self.usage.clear();
            }
            self.is_greeted = true;
            self.write_usage();
            return Ok(());
        }
        let Some((side, _)) = &mut self.side else { return Err(io::Error::other("no greeting")) };
        match frame {
            Frame::Template { number, octets } => {
                self.templates.insert(number, Template::decode(&octets).map_err(io::Error::other)?);
            }
            Frame::Make { handle, subject, control, address, templates, stored } => {
                match script(
                    &self.templates,
                    subject,
                    control,
                    address,
                    &templates,
                    &stored,
                    matches!(side, Sides::N4(_)),
                ) {
                    Some(script) => of_side!(side, clone => clone.make(now, handle, script)),
                    None => self.say(&Frame::Refused(handle, Why::Unreadable)),
                }
            }
            Frame::Adopt { handle, control, made } => {
                of_side!(side, clone => clone.adopt(now, handle, control, made))
            }
            Frame::Replay { handle, control, octets } => {
                of_side!(side, clone => clone.replay(now, handle, control, octets));
            }
            Frame::Later { handle, octets } => of_side!(side, clone => clone.later(now, handle, octets)),
            Frame::Serve { handle, serves } => of_side!(side, clone => clone.serve(now, handle, serves)),
            Frame::End(handle) => of_side!(side, clone => clone.end(now, handle)),
            Frame::Answer { handle, sequence, octets } => {
                of_side!(side, clone => clone.answer(handle, sequence, octets));
            }
            _ => return Err(io::Error::other("a frame of the wrong direction")),
        }
        Ok(())
    }

    /// Opens the socket of a protocol, unless it is open.
    async fn open(&mut self, n4: bool, started: u32, resume: bool, original: IpAddr) -> io::Result<()> {
        if matches!((&self.side, n4), (Some((Sides::S11(_), _)), false) | (Some((Sides::N4(_), _)), true)) {
            return Ok(());
        }
        let port = if n4 { N4_PORT } else { S11_PORT };
        let address = SocketAddr::new(self.config.control, port);
        let socket = net::udp::bind_std(address, net::udp::Options::CONTROL)?;
        socket.connect(SocketAddr::new(self.config.clone, port))?;
        socket.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket)?;
        let limits = Limits { window: self.config.window.max(1), ..Limits::default() };
        let secret = time::now_ns() as u32;
        let side = if n4 {
            let gtpu = self.config.gtpu.ok_or_else(|| io::Error::other("`gtpu` is needed for N4"))?;
            let n4 = N4 { own: self.config.control, started, gtpu };
            let mut clone = Clone::new(n4, limits, secret);
            if !resume && let Some(start) = associate(&socket, &n4, secret & 0xff_ffff).await? {
                clone.has_started(start);
            }
            Sides::N4(clone)
        } else {
            Sides::S11(Clone::new(
                S11 { restart_counter: started as u8, original, clone: self.config.clone },
                limits,
                secret,
            ))
        };
        self.side = Some((side, Arc::new(socket)));
        Ok(())
    }
}

/// Sets up the association with a UPF, without which it refuses sessions (TS 29.244 §6.2.6); when that one says it has started. An older one
/// ends with its sessions.
async fn associate(socket: &UdpSocket, n4: &N4, sequence: u32) -> io::Result<Option<u32>> {
    let request = n4.association(sequence);
    let mut datagram = [0; 4096];
    for _ in 0..ASSOCIATION_TRIES {
        socket.send(&request).await?;
        let answer = async {
            loop {
                // Another message comes again.
                if let Ok(length) = socket.recv(&mut datagram).await
                    && let Some(is_accepted) = N4::is_associated(&datagram[..length])
                {
                    return is_accepted.then(|| n4.start(&datagram[..length]));
                }
            }
        };
        match time::timeout(ASSOCIATION_WAIT, answer).await {
            Ok(Some(start)) => return Ok(start),
            Ok(None) => return Err(io::Error::other("the clone refuses the association")),
            Err(_) => continue,
        }
    }
    Err(io::Error::other("the clone does not answer on N4"))
}

/// The messages of a user, made of its templates.
fn script(
    templates: &HashMap<u16, Template>,
    subject: u64,
    control: u64,
    address: Option<std::net::Ipv4Addr>,
    numbers: &[u16],
    mut stored: &[u8],
    wide: bool,
) -> Option<Script> {
    let bearers = address.map(|address| Bearer { id: 0, uplink: 0, ipv4: Some(address), ipv6: None });
    let mut record =
        Record { subject, control, wide, bearers: bearers.into_iter().collect(), ..Record::default() };
    for number in numbers {
        let length = templates.get(number)?.stored();
        record.messages.push(Kept { template: *number, stored: stored.split_off(..length)?.into() });
    }
    let session = Session::of(&record, |number| templates.get(&number)).ok().filter(|_| stored.is_empty())?;
    let mut requests = session.requests;
    if let Some(address) = address.filter(|_| !wide) {
        crate::s11::ask_for(&mut requests, address);
    }
    Some(Script { control, requests })
}

/// Waits for datagrams of the clone.
async fn receive(socket: Option<Arc<UdpSocket>>, burst: &mut Burst) {
    let Some(socket) = socket else { return std::future::pending().await };
    loop {
        match burst.receive(&socket).await {
            Ok(_) => return,
            // Nobody listens at the clone (yet): the request is repeated.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                tracing::warn!(%error, "cannot receive from the clone");
                time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn sleep_until(due: Option<std::time::Instant>) {
    match due {
        Some(due) => time::sleep(due.saturating_duration_since(time::now_std())).await,
        None => std::future::pending().await,
    }
}
