//! A CP function for experiments: sets up an association and sessions, changes them, and answers reports.
//!
//! It runs on the measuring thread, in the gNBs' namespace, and does nothing between calls.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context as _, bail};
use net::netns::NetNs;
use net::time::{self, Duration};
use net::udp::burst::{self, Burst};
use pfcp::endpoint::{Config, Endpoint, Event, Handle};
use pfcp::message::{
    AssociationSetupRequest, SessionEstablishmentRequest, SessionModificationRequest, SessionReportResponse,
};
use pfcp::{Cause, FTeid, Message, NodeId, NtpSeconds, ReportType};

use super::subscriber::{CP, UPF};

/// Requests under way at once, as of a CP function that registers many UEs.
const WINDOW: usize = 256;
/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one check for datagrams waits.
const GLANCE: Duration = Duration::from_millis(20);

/// A session that the UPF has accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Established {
    /// The UPF's SEID.
    pub(crate) seid: u64,
    /// TEID of the tunnel from access.
    pub(crate) teid: u32,
}

/// The CP function.
pub(crate) struct Client {
    endpoint: Endpoint,
    socket: UdpSocket,
    upf: SocketAddr,
    burst: Burst,
    responses: HashMap<Handle, Message>,
    /// Times at which downlink data reports came.
    pub(crate) reports: Vec<std::time::Instant>,
}

impl Client {
    /// Associates with the UPF over N3's link.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub(crate) fn associate(namespace: &NetNs) -> anyhow::Result<Client> {
        Client::associate_from(namespace, CP, UPF)
    }

    /// Associates with the UPF at `upf` from the address `own`.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub(crate) fn associate_from(namespace: &NetNs, own: Ipv4Addr, upf: Ipv4Addr) -> anyhow::Result<Client> {
        let address = SocketAddr::new(own.into(), upf::n4::PFCP_PORT);
        let options = net::udp::Options {
            receive_buffer: Some(1 << 20),
            send_buffer: Some(1 << 20),
            ..Default::default()
        };
        let socket = namespace.enter(|| net::udp::bind_std(address, options))??;
        socket.set_nonblocking(false)?;
        let config = Config::new(NodeId::Ipv4(own), NtpSeconds(1), 1);
        let mut client = Client {
            endpoint: Endpoint::new(config),
            socket,
            upf: SocketAddr::new(upf.into(), upf::n4::PFCP_PORT),
            burst: Burst::new(65_535),
            responses: HashMap::new(),
            reports: Vec::new(),
        };
        let request = AssociationSetupRequest {
            node_id: NodeId::Ipv4(own),
            recovery_time_stamp: NtpSeconds(1),
            ..Default::default()
        };
        let handle = client.endpoint.send_request(time::now_std(), client.upf, 0, request)?;
        match client.wait(handle)? {
            Message::AssociationSetupResponse(response) if response.cause == Cause::ACCEPTED => Ok(client),
            other => bail!("no association: {other:?}"),
        }
    }

    /// Establishes sessions, many at a time; also returns how long it took.
    ///
    /// # Errors
    /// A session is refused, or the UPF does not answer.
    pub(crate) fn establish(
        &mut self,
        requests: impl Iterator<Item = SessionEstablishmentRequest>,
    ) -> anyhow::Result<(Vec<Established>, Duration)> {
        let started = time::now_std();
        let mut requests = requests.enumerate().fuse();
        let mut open: HashMap<Handle, usize> = HashMap::new();
        let mut established: Vec<Option<Established>> = Vec::new();
        let mut last = started;
        loop {
            while open.len() < WINDOW {
                let Some((at, request)) = requests.next() else { break };
                let handle = self.endpoint.send_request(time::now_std(), self.upf, 0, request)?;
                open.insert(handle, at);
                established.push(None);
            }
            if open.is_empty() {
                break;
            }
            self.turn(GLANCE)?;
            for (handle, message) in self.responses.drain() {
                let Some(at) = open.remove(&handle) else { continue };
                established[at] = Some(accepted(&message)?);
                last = time::now_std();
            }
            if time::now_std() - last > PATIENCE {
                bail!("the UPF does not answer session establishments");
            }
        }
        let took = time::now_std() - started;
        let all: Option<Vec<Established>> = established.into_iter().collect();
        Ok((all.context("a session has no answer")?, took))
    }

    /// Changes a session; returns when the answer came.
    ///
    /// # Errors
    /// It is refused, or the UPF does not answer.
    pub(crate) fn modify(
        &mut self,
        seid: u64,
        request: SessionModificationRequest,
    ) -> anyhow::Result<std::time::Instant> {
        let handle = self.endpoint.send_request(time::now_std(), self.upf, seid, request)?;
        match self.wait(handle)? {
            Message::SessionModificationResponse(response) if response.cause == Cause::ACCEPTED => {
                Ok(time::now_std())
            }
            other => bail!("no modification: {other:?}"),
        }
    }

    /// Handles datagrams that have come, waiting for at most `patience`; answers reports.
    ///
    /// # Errors
    /// Errors of the socket.
    pub(crate) fn turn(&mut self, patience: Duration) -> anyhow::Result<()> {
        self.transmit()?;
        self.socket.set_nonblocking(patience.is_zero())?;
        if !patience.is_zero() {
            self.socket.set_read_timeout(Some(patience))?;
        }
        match self.burst.receive_now(&self.socket) {
            Ok(_) => {
                let now = time::now_std();
                for (from, datagram) in self.burst.iter() {
                    self.endpoint.handle_datagram(now, from, datagram);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        self.endpoint.handle_timeout(time::now_std());
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Response { handle, message, .. } => {
                    self.responses.insert(handle, message);
                }
                Event::Request { id, message: Message::SessionReportRequest(report), .. } => {
                    if report.report_type.contains(ReportType::DLDR) {
                        self.reports.push(time::now_std());
                    }
                    let response = SessionReportResponse { cause: Cause::ACCEPTED, ..Default::default() };
                    self.endpoint.respond(time::now_std(), id, 0, response)?;
                }
                Event::Failed { failure, .. } => bail!("a PFCP request failed: {failure:?}"),
                _ => {}
            }
        }
        self.transmit()
    }

    fn transmit(&mut self) -> anyhow::Result<()> {
        let due = std::iter::from_fn(|| self.endpoint.poll_transmit());
        let due: Vec<_> = due.map(|transmit| (transmit.to, transmit.payload)).collect();
        let mut rest = &due[..];
        while !rest.is_empty() {
            rest = &rest[burst::send(&self.socket, rest)?..];
        }
        Ok(())
    }

    fn wait(&mut self, handle: Handle) -> anyhow::Result<Message> {
        let started = time::now_std();
        while time::now_std() - started < PATIENCE {
            self.turn(GLANCE)?;
            if let Some(message) = self.responses.remove(&handle) {
                return Ok(message);
            }
        }
        bail!("the UPF does not answer on {}", self.upf)
    }
}

fn accepted(message: &Message) -> anyhow::Result<Established> {
    let Message::SessionEstablishmentResponse(response) = message else {
        bail!("not an answer to a session establishment: {message:?}")
    };
    if response.cause != Cause::ACCEPTED {
        bail!("a session was refused: {:?}, {:?}", response.cause, response.offending_ie);
    }
    let created = response.created_pdrs.first().and_then(|created| created.f_teid);
    match (&response.up_f_seid, created) {
        (Some(seid), Some(FTeid::Assigned { teid, .. })) => Ok(Established { seid: seid.seid, teid }),
        _ => bail!("a session has no SEID or TEID: {response:?}"),
    }
}
