//! A controller's side of one OpenFlow connection, as much of it as measuring needs: messages go out, and answers are waited for.

use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use net::tcp::{self, TcpStream};
use net::time::{self, Duration};
use openflow::{
    BundleAdd, BundleControl, BundleControlType, BundleFlags, Change, FlowMod, FlowModCommand,
    FlowStatsRequest, Framer, Hello, Message, Multipart, Reply, Request, TableId,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The cookie of rules of this connection: no application of the controller has it, so that the controller leaves them alone.
pub(super) const COOKIE: u64 = 0x77 << 56;

/// A connection.
pub(super) struct Client {
    stream: TcpStream,
    framer: Framer,
    buffer: Vec<u8>,
    xid: u32,
}

/// Messages that are ready to be sent, and the transaction of the last one.
pub(super) struct Batch {
    octets: Vec<u8>,
    last: u32,
}

impl Client {
    /// Connects to a switch that listens.
    ///
    /// # Errors
    /// Nobody answers there.
    pub(super) async fn connect(address: SocketAddr) -> anyhow::Result<Client> {
        let deadline = time::now() + Duration::from_secs(10);
        let stream = loop {
            match tcp::connect(address, PATIENCE).await {
                Ok(stream) => break stream,
                Err(error) if time::now() > deadline => return Err(error.into()),
                Err(_) => time::sleep(Duration::from_millis(20)).await,
            }
        };
        let mut client = Client { stream, framer: Framer::default(), buffer: vec![0; 65_536], xid: 1 };
        client.stream.write_all(&Message::from(Hello::OURS).encode(0)?).await?;
        Ok(client)
    }

    fn next(&mut self) -> u32 {
        self.xid += 1;
        self.xid
    }

    /// Changes one after the other, and a barrier behind them.
    ///
    /// # Errors
    /// A message does not fit.
    pub(super) fn one_by_one(&mut self, changes: &[FlowMod]) -> anyhow::Result<Batch> {
        let mut octets = Vec::new();
        for change in changes {
            Message::from(change.clone()).encode_into(self.next(), &mut octets)?;
        }
        let last = self.next();
        Message::BarrierRequest(()).encode_into(last, &mut octets)?;
        Ok(Batch { octets, last })
    }

    /// A bundle that waits for its commit, and the commit.
    ///
    /// # Errors
    /// A message does not fit.
    pub(super) fn bundle(&mut self, changes: &[FlowMod]) -> anyhow::Result<[Batch; 2]> {
        let mut octets = Vec::new();
        let (bundle_id, flags) = (self.next(), BundleFlags::ATOMIC | BundleFlags::ORDERED);
        let control = |kind| Message::from(BundleControl { bundle_id, kind, flags });
        control(BundleControlType::OpenRequest).encode_into(bundle_id, &mut octets)?;
        for change in changes {
            let change = Change::FlowMod(change.clone());
            Message::from(BundleAdd { bundle_id, flags, change }).encode_into(self.next(), &mut octets)?;
        }
        let last = self.next();
        // A barrier in a bundle's way would wait for nothing; its echo says that the switch has read all.
        Message::EchoRequest(Vec::new()).encode_into(last, &mut octets)?;
        let commit = self.next();
        let committed = control(BundleControlType::CommitRequest).encode(commit)?;
        Ok([Batch { octets, last }, Batch { octets: committed, last: commit }])
    }

    /// Sends messages and waits for the answer to the last one.
    ///
    /// # Errors
    /// The switch refuses one of them, or does not answer.
    pub(super) async fn send(&mut self, batch: &Batch) -> anyhow::Result<Message> {
        self.stream.write_all(&batch.octets).await?;
        time::timeout(PATIENCE, self.answer(batch.last)).await.context("the switch does not answer")?
    }

    async fn answer(&mut self, to: u32) -> anyhow::Result<Message> {
        loop {
            while let Some(octets) = self.framer.next_message()? {
                let (xid, message) = Message::decode(octets)?;
                match message {
                    Message::EchoRequest(data) => {
                        let reply = Message::EchoReply(data).encode(xid)?;
                        self.stream.write_all(&reply).await?;
                    }
                    Message::Error(error) => bail!("the switch refuses message {xid}: {}", error.code),
                    answer if xid == to => return Ok(answer),
                    _ => {}
                }
            }
            let length = self.stream.read(&mut self.buffer).await?;
            if length == 0 {
                bail!("the switch has closed the connection");
            }
            self.framer.push(&self.buffer[..length]);
        }
    }

    /// How many rules with [`COOKIE`] the switch has.
    ///
    /// # Errors
    /// The switch does not answer.
    pub(super) async fn count(&mut self) -> anyhow::Result<u32> {
        let mut request = FlowStatsRequest::all(TableId::ALL);
        (request.cookie, request.cookie_mask) = (COOKIE, u64::MAX);
        let last = self.next();
        let octets = Message::from(Request::Aggregate(request)).encode(last)?;
        match self.send(&Batch { octets, last }).await? {
            Message::MultipartReply(Multipart { body: Reply::Aggregate(sums), .. }) => Ok(sums.flow_count),
            other => bail!("the switch answers {} to a question for its rules", other.name()),
        }
    }

    /// Removes the rules with [`COOKIE`].
    ///
    /// # Errors
    /// The switch refuses.
    pub(super) async fn clear(&mut self) -> anyhow::Result<()> {
        let all = FlowMod {
            cookie: COOKIE,
            cookie_mask: u64::MAX,
            command: FlowModCommand::Delete,
            ..FlowMod::delete(TableId::ALL, Default::default())
        };
        let batch = self.one_by_one(&[all])?;
        self.send(&batch).await?;
        Ok(())
    }
}
