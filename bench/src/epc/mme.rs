//! The MME of the experiment: a loop that polls its socket, so that times are those of the gateway and the way to it.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context as _, bail, ensure};
use gtpv2c::endpoint::{Config, Endpoint, Event, Handle, PORT};
use gtpv2c::message::*;
use gtpv2c::value::*;
use gtpv2c::{BearerToBeCreated, BearerToBeModified};
use net::time::{self, Duration, Instant};

/// UEs that attach at once, for the rate.
pub(crate) const WINDOW: usize = 64;
const EBI: Ebi = Ebi(5);
const FIRST_IMSI: u64 = 999_700_000_000_001;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Times of a round, ms, by what took them.
pub(crate) type Times = BTreeMap<&'static str, Vec<f64>>;

/// A UE that is attached.
#[derive(Clone, Copy)]
pub(crate) struct Ue {
    /// The gateway's end of S11.
    gateway: u32,
    /// Its place among those of the MME.
    number: u32,
}

impl Ue {
    /// Its IMSI.
    pub(crate) fn imsi(&self) -> u64 {
        FIRST_IMSI + u64::from(self.number)
    }
}

/// An MME that polls.
pub(crate) struct Mme {
    socket: UdpSocket,
    endpoint: Endpoint,
    gateway: SocketAddr,
    own: IpAddr,
    /// UEs so far: each has another IMSI, and another TEID.
    count: u32,
    buffer: Vec<u8>,
}

impl Mme {
    /// The MME of a lab, in whose namespace of the RAN the thread is.
    pub(crate) fn new() -> anyhow::Result<Mme> {
        Mme::at(lab::RAN_N2.into(), lab::RAN_N2.into(), SocketAddr::from((lab::CORE_N2, PORT)))
    }

    /// One with an address in the namespace of the thread, which the gateway knows by the name `own`.
    pub(crate) fn at(address: IpAddr, own: IpAddr, gateway: SocketAddr) -> anyhow::Result<Mme> {
        let socket = net::udp::bind_std(SocketAddr::new(address, PORT), net::udp::Options::default())?;
        socket.set_nonblocking(true)?;
        let mut config = Config::new(Recovery(1), nf::random::u64());
        config.t3_response = Duration::from_secs(2);
        Ok(Mme { socket, endpoint: Endpoint::new(config), gateway, own, count: 0, buffer: vec![0; 65_536] })
    }

    fn create_request(&mut self) -> CreateSessionRequest {
        self.count += 1;
        let imsi = (FIRST_IMSI + u64::from(self.count)).to_string();
        let arp = Arp { pci: true, pl: 8, pvi: false };
        let qos = BearerQos { arp, flow: FlowQos { qci: 9, ..Default::default() } };
        CreateSessionRequest {
            imsi: imsi.parse().ok(),
            rat_type: RatType::EUTRAN,
            sender_f_teid: FTeid::new(InterfaceType::S11_MME, self.count, self.own),
            apn: "internet".into(),
            pdn_type: Some(PdnType::Ipv4),
            paa: Some(Paa::Ipv4([0; 4].into())),
            apn_ambr: Some(Ambr { uplink_kbps: 50_000, downlink_kbps: 100_000 }),
            bearers_to_be_created: vec![BearerToBeCreated { ebi: EBI, qos, ..Default::default() }],
            ..Default::default()
        }
    }

    fn modify_request(&self, enb: u32) -> ModifyBearerRequest {
        let enb = FTeid::new(InterfaceType::S1U_ENB, enb, self.own);
        let bearer = BearerToBeModified { ebi: EBI, s1u_enb_f_teid: Some(enb), ..Default::default() };
        ModifyBearerRequest { bearers_to_be_modified: vec![bearer], ..Default::default() }
    }

    fn send(&mut self, teid: u32, message: impl Into<Message>) -> anyhow::Result<Handle> {
        let handle = self.endpoint.send_request(time::now_std(), self.gateway, teid, message)?;
        self.flush();
        Ok(handle)
    }

    fn flush(&mut self) {
        while let Some(transmit) = self.endpoint.poll_transmit() {
            // A full buffer loses the datagram, which is then repeated.
            let _ = self.socket.send_to(&transmit.payload, transmit.to);
        }
    }

    /// Requests that had to be repeated.
    pub(crate) fn retransmissions(&self) -> u64 {
        self.endpoint.counters().retransmissions
    }

    /// The next answer, waited for by polling.
    fn answer(&mut self) -> anyhow::Result<(Handle, Message)> {
        let start = time::now_std();
        loop {
            while let Some(event) = self.endpoint.poll_event() {
                match event {
                    Event::Response { handle, message, .. } => return Ok((handle, message)),
                    Event::Failed { failure, message_type, .. } => bail!("{message_type:?}: {failure}"),
                    _ => {}
                }
            }
            let now = time::now_std();
            ensure!(now - start < PATIENCE, "the gateway does not answer");
            match self.socket.recv_from(&mut self.buffer) {
                Ok((length, from)) => self.endpoint.handle_datagram(now, from, &self.buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
                        self.endpoint.handle_timeout(now);
                    }
                    std::hint::spin_loop();
                }
                Err(error) => return Err(error.into()),
            }
            self.flush();
        }
    }

    /// One UE: attach, idle, active.
    pub(crate) fn one(&mut self, times: &mut Times) -> anyhow::Result<Ue> {
        let ms = |since: Instant| (time::now() - since).as_secs_f64() * 1e3;
        let request = self.create_request();
        let enb = self.count;
        let start = time::now();
        self.send(0, request)?;
        let (_, answer) = self.answer()?;
        let created = ms(start);
        let gateway = gateway_of(&answer)?;
        let modify = self.modify_request(enb);
        self.send(gateway, modify.clone())?;
        self.answer()?;
        let attached = ms(start);
        let mut add = |name, ms| times.entry(name).or_default().push(ms);
        add("create session", created);
        add("modify bearer", attached - created);
        add("attach", attached);
        let start = time::now();
        self.send(gateway, ReleaseAccessBearersRequest::default())?;
        self.answer()?;
        add("idle", ms(start));
        let start = time::now();
        self.send(gateway, modify)?;
        self.answer()?;
        add("active", ms(start));
        Ok(Ue { gateway, number: enb })
    }

    /// So many UEs, [`WINDOW`] at once.
    pub(crate) fn attach_all(&mut self, count: usize) -> anyhow::Result<Vec<Ue>> {
        // With the eNB's TEID until the session is there, with the gateway's until the bearer is.
        let (mut creating, mut modifying) = (HashMap::new(), HashMap::new());
        let (mut begun, mut attached) = (0, Vec::with_capacity(count));
        while attached.len() < count {
            while begun < count && creating.len() + modifying.len() < WINDOW {
                let request = self.create_request();
                let enb = self.count;
                creating.insert(self.send(0, request)?, enb);
                begun += 1;
            }
            let (handle, answer) = self.answer()?;
            if let Some(enb) = creating.remove(&handle) {
                let gateway = gateway_of(&answer)?;
                let modify = self.modify_request(enb);
                modifying.insert(self.send(gateway, modify)?, Ue { gateway, number: enb });
            } else if let Some(ue) = modifying.remove(&handle) {
                let is_modified =
                    matches!(&answer, Message::ModifyBearerResponse(answer) if answer.cause.is_accepted());
                ensure!(is_modified, "{answer:?}");
                attached.push(ue);
            }
        }
        Ok(attached)
    }

    /// From now on the gateway at this address is asked.
    pub(crate) fn turn_to(&mut self, gateway: SocketAddr) {
        self.gateway = gateway;
    }

    /// Names an eNB for each of these UEs, [`WINDOW`] at once. Returns how many the gateway serves.
    pub(crate) fn modify_all(&mut self, ues: &[Ue]) -> anyhow::Result<usize> {
        let mut left = ues.iter();
        let (mut under_way, mut served) = (0, 0);
        loop {
            while under_way < WINDOW
                && let Some(ue) = left.next()
            {
                let modify = self.modify_request(1);
                self.send(ue.gateway, modify)?;
                under_way += 1;
            }
            if under_way == 0 {
                return Ok(served);
            }
            let (_, answer) = self.answer()?;
            let is_served =
                matches!(&answer, Message::ModifyBearerResponse(answer) if answer.cause.is_accepted());
            served += usize::from(is_served);
            under_way -= 1;
        }
    }

    pub(crate) fn detach_all(&mut self, ues: &[Ue]) -> anyhow::Result<()> {
        let mut left = ues.iter();
        let mut under_way = 0;
        loop {
            while under_way < WINDOW
                && let Some(ue) = left.next()
            {
                self.send(ue.gateway, DeleteSessionRequest { linked_ebi: Some(EBI), ..Default::default() })?;
                under_way += 1;
            }
            if under_way == 0 {
                return Ok(());
            }
            let (_, answer) = self.answer()?;
            let is_deleted =
                matches!(&answer, Message::DeleteSessionResponse(answer) if answer.cause.is_accepted());
            ensure!(is_deleted, "{answer:?}");
            under_way -= 1;
        }
    }
}

/// The gateway's end of S11, if it has accepted the UE.
fn gateway_of(answer: &Message) -> anyhow::Result<u32> {
    match answer {
        Message::CreateSessionResponse(answer) if answer.cause.is_accepted() => {
            Ok(answer.sender_f_teid.context("no F-TEID of the gateway")?.teid)
        }
        other => bail!("refused: {other:?}"),
    }
}
