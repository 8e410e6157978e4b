//! An SMF with a tap: what passes on N4 is captured, as a switch before it would.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context as _, bail, ensure};
use net::time::{self, Duration};
use pfcp::endpoint::{Config, Endpoint, Event, Handle};
use pfcp::message::*;
use pfcp::*;

use super::mme::Tap;

/// Its address, in the UPF's namespace: that of the SMF in the lab, which does not run here.
pub(super) const OWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
/// Sessions that are set up at once.
const WINDOW: usize = 64;
/// Port of PFCP (TS 29.244 §4.2.2).
pub(super) const PORT: u16 = 8805;
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Smf {
    socket: UdpSocket,
    endpoint: Endpoint,
    own: Ipv4Addr,
    upf: SocketAddr,
    tap: Tap,
    count: u32,
    buffer: Vec<u8>,
}

impl Smf {
    /// Of a namespace that it is called in; associated with the UPF.
    pub(super) fn new(own: Ipv4Addr, upf: SocketAddr, tap: Tap) -> anyhow::Result<Smf> {
        let socket = net::udp::bind_std(SocketAddr::new(own.into(), PORT), net::udp::Options::default())?;
        socket.set_nonblocking(true)?;
        let started = NtpSeconds(1);
        let endpoint = Endpoint::new(Config::new(NodeId::Ipv4(own), started, nf::random::u64()));
        let mut smf = Smf { socket, endpoint, own, upf, tap, count: 0, buffer: vec![0; 65_536] };
        let request = AssociationSetupRequest {
            node_id: NodeId::Ipv4(own),
            recovery_time_stamp: started,
            ..Default::default()
        };
        smf.send(0, request)?;
        match smf.answer()?.1 {
            Message::AssociationSetupResponse(answer) if answer.cause.is_accepted() => Ok(smf),
            other => bail!("the UPF refuses the association: {other:?}"),
        }
    }

    /// What our SMF sends of a session: uplink by a tunnel that the UPF chooses, downlink to a gNB that is not known yet.
    fn establishment(&self, number: u32) -> SessionEstablishmentRequest {
        let address = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 46, 0, 0)) + number);
        let ue = |destination| Some(UeIpAddress { ipv4: Some(address), destination, ..Default::default() });
        let tunnel = FTeid::Choose { ipv4: true, ipv6: false, id: None };
        let uplink =
            Pdi { f_teid: Some(tunnel), ue_ip_address: ue(false), qfis: vec![Qfi(1)], ..Default::default() };
        let downlink =
            Pdi { source_interface: SourceInterface::Core, ue_ip_address: ue(true), ..Default::default() };
        let pdr = |id: u16, pdi: Pdi| CreatePdr {
            pdr_id: PdrId(id),
            precedence: Precedence(255),
            outer_header_removal: pdi.f_teid.map(|_| OuterHeaderRemoval::default()),
            pdi,
            far_id: Some(FarId(id.into())),
            qer_ids: vec![QerId(1)],
            ..Default::default()
        };
        let uplink_far = CreateFar {
            far_id: FarId(1),
            apply_action: ApplyAction::FORW,
            forwarding_parameters: Some(Box::new(ForwardingParameters {
                destination_interface: DestinationInterface::Core,
                ..Default::default()
            })),
            ..Default::default()
        };
        let downlink_far =
            CreateFar { far_id: FarId(2), apply_action: ApplyAction::DROP, ..Default::default() };
        SessionEstablishmentRequest {
            node_id: NodeId::Ipv4(self.own),
            // SEIDs follow no rule.
            cp_f_seid: FSeid::new(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15), self.own.into()),
            create_pdrs: vec![pdr(1, uplink), pdr(2, downlink)],
            create_fars: vec![uplink_far, downlink_far],
            create_qers: vec![CreateQer { qer_id: QerId(1), qfi: Some(Qfi(1)), ..Default::default() }],
            ..Default::default()
        }
    }

    fn modification(number: u32) -> SessionModificationRequest {
        let teid = number.wrapping_mul(0x85eb_ca6b);
        let parameters = UpdateForwardingParameters {
            destination_interface: Some(DestinationInterface::Access),
            outer_header_creation: Some(OuterHeaderCreation::gtpu(teid, lab::RAN_N2.into())),
            ..Default::default()
        };
        let far = UpdateFar {
            far_id: FarId(2),
            apply_action: Some(ApplyAction::FORW),
            update_forwarding_parameters: Some(Box::new(parameters)),
            ..Default::default()
        };
        SessionModificationRequest { update_fars: vec![far], ..Default::default() }
    }

    fn send(&mut self, seid: u64, message: impl Into<Message>) -> anyhow::Result<Handle> {
        let handle = self.endpoint.send_request(time::now_std(), self.upf, seid, message.into())?;
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
                    Event::Failed { failure, .. } => bail!("the UPF: {failure}"),
                    _ => {}
                }
            }
            let now = time::now_std();
            ensure!(now - start < PATIENCE, "the UPF does not answer");
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

    /// So many sessions more; the UPF's SEIDs of them.
    pub(super) fn establish(&mut self, count: u32) -> anyhow::Result<Vec<u64>> {
        let (mut creating, mut modifying) = (HashMap::new(), HashMap::new());
        let (mut begun, mut done) = (0, Vec::new());
        while done.len() < count as usize {
            while begun < count && creating.len() + modifying.len() < WINDOW {
                self.count += 1;
                begun += 1;
                let number = self.count;
                creating.insert(self.send(0, self.establishment(number))?, number);
            }
            let (handle, answer) = self.answer()?;
            if let Some(number) = creating.remove(&handle) {
                let Message::SessionEstablishmentResponse(answer) = answer else { bail!("{answer:?}") };
                ensure!(answer.cause.is_accepted(), "refused: {answer:?}");
                let seid = answer.up_f_seid.context("no F-SEID of the UPF")?.seid;
                modifying.insert(self.send(seid, Self::modification(number))?, seid);
            } else if let Some(seid) = modifying.remove(&handle) {
                let accepted = matches!(&answer, Message::SessionModificationResponse(answer) if answer.cause.is_accepted());
                ensure!(accepted, "{answer:?}");
                done.push(seid);
            }
        }
        Ok(done)
    }

    /// Sessions end.
    pub(super) fn delete(&mut self, seids: &[u64]) -> anyhow::Result<()> {
        for seid in seids {
            self.send(*seid, SessionDeletionRequest {})?;
            let (_, answer) = self.answer()?;
            let accepted =
                matches!(&answer, Message::SessionDeletionResponse(answer) if answer.cause.is_accepted());
            ensure!(accepted, "{answer:?}");
        }
        Ok(())
    }
}
