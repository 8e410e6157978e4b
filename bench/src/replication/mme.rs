//! An MME with a tap: what passes on S11 is captured, as a switch before it would.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context as _, bail, ensure};
use gtpv2c::codec::Octets;
use gtpv2c::endpoint::{Config, Endpoint, Event, Handle, PORT};
use gtpv2c::message::*;
use gtpv2c::value::*;
use gtpv2c::{BearerToBeCreated, BearerToBeModified};
use net::time::{self, Duration};
use types::Plmn;

/// UEs that attach at once.
const WINDOW: usize = 64;
const EBI: Ebi = Ebi(5);
const PATIENCE: Duration = Duration::from_secs(20);

/// Takes what is captured: whether the control plane has sent it, and the datagram's content.
pub(super) type Tap = Box<dyn FnMut(bool, &[u8]) + Send>;

pub(super) struct Mme {
    socket: UdpSocket,
    endpoint: Endpoint,
    gateway: SocketAddr,
    own: IpAddr,
    enb: IpAddr,
    tap: Tap,
    count: u32,
    buffer: Vec<u8>,
}

impl Mme {
    /// Of a namespace that it is called in, with an eNB.
    pub(super) fn new(own: Ipv4Addr, enb: Ipv4Addr, gateway: Ipv4Addr, tap: Tap) -> anyhow::Result<Mme> {
        let (own, enb) = (IpAddr::from(own), IpAddr::from(enb));
        let socket = net::udp::bind_std(SocketAddr::new(own, PORT), net::udp::Options::default())?;
        socket.set_nonblocking(true)?;
        let endpoint = Endpoint::new(Config::new(Recovery(1), nf::random::u64()));
        let gateway = SocketAddr::from((gateway, PORT));
        Ok(Mme { socket, endpoint, gateway, own, enb, tap, count: 0, buffer: vec![0; 65_536] })
    }

    /// What an MME sends of a subscriber with a telephone number and a phone, in a cell.
    fn create_request(&self, number: u32) -> anyhow::Result<CreateSessionRequest> {
        let plmn: Plmn = "99970".parse().ok().context("a PLMN")?;
        let arp = Arp { pci: true, pl: 8, pvi: false };
        let qos = BearerQos { arp, flow: FlowQos { qci: 9, ..Default::default() } };
        let tai = Tai { plmn, tac: 1 };
        // Numbers that follow no rule, as subscribers' do.
        let mixed = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let ecgi = Ecgi { plmn, eci: 0x100 + (number & 0xff) };
        Ok(CreateSessionRequest {
            imsi: format!("99970{:010}", mixed % 10_000_000_000).parse().ok(),
            msisdn: Some(Digits(format!("49170{:07}", (mixed >> 8) % 10_000_000))),
            mei: Some(Digits(format!("{:016}", (mixed >> 4) % 10_000_000_000_000_000))),
            uli: Some(Uli { tai: Some(tai), ecgi: Some(ecgi), ..Default::default() }),
            serving_network: Some(plmn),
            rat_type: RatType::EUTRAN,
            sender_f_teid: FTeid::new(InterfaceType::S11_MME, mixed as u32, self.own),
            apn: "internet".into(),
            selection_mode: Some(SelectionMode::default()),
            pdn_type: Some(PdnType::Ipv4),
            paa: Some(Paa::Ipv4([0; 4].into())),
            max_apn_restriction: Some(ApnRestriction(0)),
            apn_ambr: Some(Ambr { uplink_kbps: 50_000, downlink_kbps: 100_000 }),
            pco: Some(Octets(vec![0x80, 0, 0x0d, 0, 0, 0x0a, 0, 0, 0x10, 0])),
            bearers_to_be_created: vec![BearerToBeCreated { ebi: EBI, qos, ..Default::default() }],
            ue_time_zone: Some(UeTimeZone::default()),
            charging_characteristics: Some(ChargingCharacteristics(0x0800)),
            ..Default::default()
        })
    }

    fn modify_request(&self, number: u32) -> ModifyBearerRequest {
        let mixed = u64::from(number).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let enb = FTeid::new(InterfaceType::S1U_ENB, (mixed >> 3) as u32, self.enb);
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
            (self.tap)(true, &transmit.payload);
            // A full buffer loses the datagram, which is then repeated.
            let _ = self.socket.send_to(&transmit.payload, transmit.to);
        }
    }

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
                Ok((length, from)) => {
                    (self.tap)(false, &self.buffer[..length]);
                    self.endpoint.handle_datagram(now, from, &self.buffer[..length]);
                }
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

    /// So many UEs more; the gateway's TEIDs of them.
    pub(super) fn attach(&mut self, count: u32) -> anyhow::Result<Vec<u32>> {
        let (mut creating, mut modifying) =
            (std::collections::HashMap::new(), std::collections::HashMap::new());
        let (mut begun, mut attached) = (0, Vec::new());
        while attached.len() < count as usize {
            while begun < count && creating.len() + modifying.len() < WINDOW {
                self.count += 1;
                begun += 1;
                let (number, request) = (self.count, self.create_request(self.count)?);
                creating.insert(self.send(0, request)?, number);
            }
            let (handle, answer) = self.answer()?;
            if let Some(number) = creating.remove(&handle) {
                let Message::CreateSessionResponse(answer) = answer else { bail!("{answer:?}") };
                ensure!(answer.cause.is_accepted(), "refused: {answer:?}");
                let gateway = answer.sender_f_teid.context("no F-TEID of the gateway")?.teid;
                let request = self.modify_request(number);
                modifying.insert(self.send(gateway, request)?, gateway);
            } else if let Some(gateway) = modifying.remove(&handle) {
                let accepted =
                    matches!(&answer, Message::ModifyBearerResponse(answer) if answer.cause.is_accepted());
                ensure!(accepted, "{answer:?}");
                attached.push(gateway);
            }
        }
        Ok(attached)
    }

    /// UEs leave.
    pub(super) fn detach(&mut self, gateways: &[u32]) -> anyhow::Result<()> {
        for gateway in gateways {
            self.send(*gateway, DeleteSessionRequest { linked_ebi: Some(EBI), ..Default::default() })?;
            let (_, answer) = self.answer()?;
            let accepted =
                matches!(&answer, Message::DeleteSessionResponse(answer) if answer.cause.is_accepted());
            ensure!(accepted, "{answer:?}");
        }
        Ok(())
    }
}
