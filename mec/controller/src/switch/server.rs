//! The OpenFlow server: accepts switches, says hello, keeps each connection alive, and hands events to the [`Fabric`].
//!
//! A connection has two tasks, a reader with the timers and a writer. It ends when the switch closes it, is silent for three echo
//! intervals, sends what cannot be framed, or connects again.

use std::sync::Arc;

use net::tcp::{TcpListener, TcpStream};
use net::time::{self, Duration};
use openflow::multipart::{Reply, Request};
use openflow::{Config, Features, FrameError, Framer, Hello, Message, Multipart, Port};
use telemetry::counters::{Counter, Family};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::connection::{Connection, Dialect, QUEUE, SwitchError};
use super::fabric::{Fabric, Joining};

static REJECTED: Family = Family::new("controller_connections_rejected", "reason");
static MALFORMED: Counter = Counter::new("controller_messages_malformed");
static UNASKED: Counter = Counter::new("controller_answers_unasked");

/// How long a switch may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Octets that are read at once.
const CHUNK: usize = 64 * 1024;

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the switch has closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("nothing was heard of the switch for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the switch speaks another version of OpenFlow than 1.3")]
    Version,
    #[error("it was not known within {} s who it is", HANDSHAKE.as_secs())]
    Anonymous,
    #[error("{0}")]
    Handshake(#[from] SwitchError),
    #[error("datapath {0:#x} is in no `switches` of the configuration")]
    Unknown(u64),
    #[error("the controller has ended it")]
    Told,
}

/// Accepts switches until it is dropped.
pub(crate) async fn serve(listener: TcpListener, fabric: Arc<Fabric>, most: usize, echo: Duration) {
    let places = Arc::new(Semaphore::new(most));
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        // Waits for a free place first, so that connections beyond the limit wait in the kernel.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        while tasks.try_join_next().is_some() {}
        let Ok((stream, peer)) = listener.accept().await else {
            time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let fabric = fabric.clone();
        tasks.spawn(async move {
            let ended = connection(stream, &fabric, echo).await;
            match &ended {
                Ended::Version => REJECTED.inc("version"),
                Ended::Anonymous => REJECTED.inc("handshake"),
                Ended::Unknown(_) => REJECTED.inc("unknown_datapath"),
                Ended::Frame(_) => MALFORMED.inc(),
                _ => {}
            }
            tracing::info!(%peer, reason = %ended, "connection of a switch has ended");
            if matches!(ended, Ended::Unknown(_) | Ended::Version | Ended::Anonymous) {
                fabric.note(None, format!("connection of {peer} refused: {ended}"));
            }
            drop(place);
        });
    }
}

/// Who a switch is.
struct Identity {
    features: Features,
    dialect: Dialect,
    software: String,
    ports: Vec<Port>,
}

async fn connection(stream: TcpStream, fabric: &Arc<Fabric>, echo: Duration) -> Ended {
    let _ = stream.set_nodelay(true);
    let (mut read, mut write) = stream.into_split();
    let (queue, mut octets) = mpsc::channel::<Vec<u8>>(QUEUE);
    let connection = Arc::new(Connection::new(queue));
    let writer = tokio::spawn(async move {
        while let Some(octets) = octets.recv().await {
            if write.write_all(&octets).await.is_err() {
                return;
            }
        }
    });
    let (hello, said) = oneshot::channel();
    let mut session = Session {
        connection: &connection,
        fabric,
        hello: Some(hello),
        datapath_id: None,
        heard: time::now(),
    };
    let ended = tokio::select! {
        ended = session.run(&mut read, said, echo) => ended,
        () = connection.closing() => Ended::Told,
    };
    if let Some(datapath_id) = session.datapath_id {
        fabric.leave(datapath_id, &connection, &ended.to_string());
    }
    connection.close();
    writer.abort();
    ended
}

/// What the reader of a connection keeps.
struct Session<'a> {
    connection: &'a Arc<Connection>,
    fabric: &'a Arc<Fabric>,
    hello: Option<oneshot::Sender<Hello>>,
    /// Once the fabric has it.
    datapath_id: Option<u64>,
    heard: time::Instant,
}

impl Session<'_> {
    async fn run(
        &mut self,
        read: &mut (impl tokio::io::AsyncRead + Unpin),
        said: oneshot::Receiver<Hello>,
        echo: Duration,
    ) -> Ended {
        let mut framer = Framer::default();
        let mut chunk = vec![0; CHUNK];
        let connection = self.connection.clone();
        let mut identify = std::pin::pin!(time::timeout(HANDSHAKE, identify(&connection, said)));
        let mut ticks = time::interval(echo);
        loop {
            tokio::select! {
                length = read.read(&mut chunk) => {
                    let length = match length {
                        Ok(0) => return Ended::Closed,
                        Ok(length) => length,
                        Err(error) => return error.into(),
                    };
                    self.heard = time::now();
                    framer.push(&chunk[..length]);
                    loop {
                        match framer.next_message() {
                            Ok(Some(octets)) => self.message(octets),
                            Ok(None) => break,
                            Err(error) => return error.into(),
                        }
                    }
                }
                identity = &mut identify, if self.datapath_id.is_none() => {
                    let identity = match identity {
                        Ok(Ok(identity)) => identity,
                        Ok(Err(ended)) => return ended,
                        Err(_) => return Ended::Anonymous,
                    };
                    let datapath_id = identity.features.datapath_id;
                    let joining = Joining {
                        dialect: identity.dialect,
                        software: identity.software,
                        ports: identity.ports,
                    };
                    connection.known();
                    if !self.fabric.join(datapath_id, &connection, joining) {
                        return Ended::Unknown(datapath_id);
                    }
                    self.datapath_id = Some(datapath_id);
                }
                _ = ticks.tick() => {
                    let silence = time::now() - self.heard;
                    if silence >= 3 * echo {
                        return Ended::Silent(silence);
                    }
                    if silence >= echo {
                        // A full queue says more than an echo.
                        let _ = connection.tell(&Message::EchoRequest(Vec::new()));
                    }
                }
            }
        }
    }

    fn message(&mut self, octets: &[u8]) {
        let (xid, message) = match Message::decode(octets) {
            Ok(decoded) => decoded,
            Err(error) => {
                MALFORMED.inc();
                tracing::debug!(%error, "message of a switch");
                if let Some(reply) = error.reply(octets) {
                    let _ = self.connection.tell_as(error.xid, &reply);
                }
                return;
            }
        };
        let Some(message) = self.connection.take_answer(xid, message, octets.len()) else { return };
        match (message, self.datapath_id) {
            (Message::Hello(hello), _) => {
                if let Some(waiting) = self.hello.take() {
                    let _ = waiting.send(hello);
                }
            }
            (Message::EchoRequest(octets), _) => {
                let _ = self.connection.tell_as(xid, &Message::EchoReply(octets));
            }
            (Message::EchoReply(_), _) => {}
            (Message::PacketIn(packet), Some(datapath_id)) => self.fabric.packet_in(datapath_id, packet),
            (Message::FlowRemoved(removed), Some(datapath_id)) => {
                self.fabric.flow_removed(datapath_id, removed)
            }
            (Message::PortStatus(status), Some(datapath_id)) => self.fabric.port_status(datapath_id, status),
            (Message::Error(error), Some(datapath_id)) => {
                // For instance a packet-out to a port that has gone.
                self.fabric.note(Some(datapath_id), format!("error of the switch: {}", error.code));
            }
            _ => UNASKED.inc(),
        }
    }
}

/// Hello, features, description, ports (§6.3.1, §7.3.1).
async fn identify(connection: &Connection, said: oneshot::Receiver<Hello>) -> Result<Identity, Ended> {
    connection.tell(&Hello::OURS.into())?;
    let hello = said.await.map_err(|_| Ended::Closed)?;
    if !hello.is_compatible() {
        let error = openflow::Code::OFPHFC_INCOMPATIBLE.about(b"only OpenFlow 1.3 is spoken");
        let _ = connection.tell(&error.into());
        // Gives the writer the time to send it.
        time::sleep(Duration::from_millis(20)).await;
        return Err(Ended::Version);
    }
    let features = match connection.ask(Message::FeaturesRequest(())).await? {
        Message::FeaturesReply(features) => features,
        other => return Err(unexpected(&other)),
    };
    // Whole packets, also at a table miss.
    let config = Config { fragments: openflow::Fragments::Normal, miss_send_len: 0xffff };
    connection.tell(&Message::SetConfig(config))?;
    let desc = match connection.ask(Request::Desc(())).await? {
        Message::MultipartReply(Multipart { body: Reply::Desc(desc), .. }) => desc,
        other => return Err(unexpected(&other)),
    };
    let ports = match connection.ask(Request::PortDesc(())).await? {
        Message::MultipartReply(Multipart { body: Reply::PortDesc(ports), .. }) => ports,
        other => return Err(unexpected(&other)),
    };
    let software = format!("{} {}", desc.hardware.as_str(), desc.software.as_str());
    Ok(Identity { features, dialect: Dialect::of(&desc), software, ports })
}

fn unexpected(message: &Message) -> Ended {
    SwitchError::Unexpected(message.name()).into()
}
