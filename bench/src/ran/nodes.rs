//! A CU and its DUs with bearers between them, as graphs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use cu::user_plane::{BearerConfig, Interface, Relay, Role, Tunnel, UserPlane};
use du::{BearerSetup, Place, Radio, Settings};
use l2::pdcp::{Rx, RxConfig, Security, Tx};
use l2::security::Direction;
use net::time;
use packet::gtpu;
use packet::nr_u::{DeliveryStatus, MAX_STATUS};
use path::{Graph as _, Ports};
use pktio::{Vector, memory};
use types::{NrCellId, Qfi};

use super::ends::Answer;
use super::packets::{self, pdcp, ue_address};
use crate::upf::subscriber::QFI;

/// Addresses on F1-U: of the CU, and of its first DU.
pub(crate) const CU: Ipv4Addr = cu_on_f1u(0);
pub(crate) const DU: Ipv4Addr = du_on_f1u(0);
/// Addresses on N3.
pub(crate) const CU_N3: Ipv4Addr = Ipv4Addr::new(10, 211, 0, 1);
pub(crate) const UPF_N3: Ipv4Addr = Ipv4Addr::new(10, 211, 0, 2);
/// Number of the interface with F1-U in DUs, and of the first or only one in the CU.
pub(crate) const F1U: u8 = 0;
/// Number of the other interface: N3 of a CU with one DU, `uu` of a DU.
pub(crate) const END: u8 = 1;
/// UEs of a DU, with a bearer each.
pub(crate) const UES: usize = 16;
pub(crate) const LCID: u8 = 4;
/// Cell of the first DU.
pub(crate) const CELL: u64 = 1;

/// The CU's address on an F1-U interface that it has for one DU.
pub(crate) const fn cu_on_f1u(du: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 210, du, 1)
}

/// The address of the DU with this number.
pub(crate) const fn du_on_f1u(du: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 210, du, 2)
}

/// What a gNB is made of.
pub(crate) struct Plan {
    /// DUs, with [`UES`] UEs each.
    pub(crate) dus: u8,
    /// Whether each DU has an interface of its own at the CU.
    pub(crate) apart: bool,
    /// The CU's address on N3.
    pub(crate) cu_n3: IpAddr,
    /// The UPF's, and its tunnels by UE.
    pub(crate) upf: IpAddr,
    pub(crate) tunnels: Vec<u32>,
    /// Where all UEs are on `uu`, unless they are ends in memory.
    pub(crate) ues_at: Option<SocketAddr>,
}

impl Default for Plan {
    /// One DU, with the addresses of the links.
    fn default() -> Plan {
        let (cu_n3, upf) = (CU_N3.into(), UPF_N3.into());
        Plan { dus: 1, apart: true, cu_n3, upf, tunnels: Vec::new(), ues_at: None }
    }
}

/// A DU.
pub(crate) struct Du {
    pub(crate) graph: du::UserPlane,
    pub(crate) _control: du::Control,
}

/// CU and DUs. Their bearers are connected, and their data is not protected.
pub(crate) struct Nodes {
    pub(crate) cu: Relay,
    pub(crate) plane: UserPlane,
    pub(crate) dus: Vec<Du>,
    /// The CU's TEIDs on N3, by UE.
    pub(crate) n3: Vec<u32>,
    /// Those on F1-U.
    pub(crate) f1u: Vec<u32>,
    /// Number of the CU's interface N3.
    pub(crate) n3_interface: u8,
}

/// An address of ends in memory.
fn end() -> IpAddr {
    ue_address(0).ip()
}

impl Nodes {
    /// One DU; UEs and UPF are in memory.
    pub(crate) fn new() -> anyhow::Result<Nodes> {
        Nodes::with_upf(end(), packets::upf().ip())
    }

    /// The same with a UPF at an address, and the CU at another on N3.
    pub(crate) fn with_upf(cu_n3: IpAddr, upf: IpAddr) -> anyhow::Result<Nodes> {
        let tunnels = (0..UES as u32).collect();
        Nodes::of(&Plan { cu_n3, upf, tunnels, ..Plan::default() })
    }

    /// All that can be chosen.
    pub(crate) fn of(plan: &Plan) -> anyhow::Result<Nodes> {
        let links = if plan.apart { plan.dus } else { 1 };
        let mut interfaces: Vec<Interface> = (0..links)
            .map(|number| Interface::new("f1u", Role::F1u, IpAddr::V4(cu_on_f1u(number))))
            .collect();
        let n3_interface = interfaces.len() as u8;
        interfaces.push(Interface::new("n3", Role::N3, plan.cu_n3));
        let (plane, cu, _events) = UserPlane::new(interfaces)?;
        let (mut dus, mut n3, mut f1u) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..plan.dus {
            let (link, cu_address) = match plan.apart {
                true => (number, cu_on_f1u(number)),
                false => (F1U, CU),
            };
            let (mut graph, control) = du(number)?;
            for at in 0..UES {
                let ue = usize::from(number) * UES + at;
                let teid = plan.tunnels.get(ue).copied().unwrap_or(ue as u32);
                let session = plane.open(n3_interface, Tunnel { address: plan.upf, teid })?;
                let tx = Tx::new(pdcp(Direction::Downlink)?, Security::none());
                let rx = Rx::new(pdcp(Direction::Uplink)?, Security::none(), RxConfig::default());
                let config = BearerConfig::new(tx, rx, true, vec![Qfi::new(QFI)?]);
                let bearer = plane.add(session, link, config)?;
                let c_rnti = 1 + at as u16;
                let address = plan.ues_at.unwrap_or(ue_address(ue));
                graph.add_ue(c_rnti, Place { interface: END, address })?;
                let to = du::Tunnel {
                    interface: F1U,
                    address: SocketAddr::new(cu_address.into(), gtpu::PORT),
                    teid: plane.f1u_tunnel(bearer).teid,
                };
                let added = graph.add_bearer(c_rnti, &BearerSetup::new(LCID, to), 0)?;
                let far_end = Tunnel { address: du_on_f1u(number).into(), teid: added.teid };
                plane.connect(session, bearer, far_end)?;
                n3.push(plane.n3_tunnel(session).teid);
                f1u.push(to.teid);
            }
            dus.push(Du { graph, _control: control });
        }
        Ok(Nodes { cu, plane, dus, n3, f1u, n3_interface })
    }

    /// The only DU.
    pub(crate) fn take_du(&mut self) -> anyhow::Result<Du> {
        self.dus.pop().ok_or_else(|| anyhow::anyhow!("no DU"))
    }

    /// Has the CU believe that the DU takes all.
    pub(crate) fn open_flow(&mut self) -> anyhow::Result<()> {
        let mut ports: Ports =
            (0..=self.n3_interface).map(|_| Box::new(memory::Sink::default()) as _).collect();
        let mut vector = Vector::of(self.cu.home());
        for teid in &self.f1u {
            vector.clear();
            vector.push(&unlimited(*teid)?, SocketAddr::new(DU.into(), gtpu::PORT));
            self.cu.process(F1U.into(), &mut vector, time::now_ns(), &mut ports);
        }
        Ok(())
    }
}

/// The delivery status of a DU without limits.
pub(crate) fn unlimited(teid: u32) -> anyhow::Result<Vec<u8>> {
    let status = DeliveryStatus { desired_buffer_size: u32::MAX, ..DeliveryStatus::default() };
    let mut message = vec![0; MAX_STATUS];
    let length = status.write(teid, &mut message);
    message.truncate(length.ok_or_else(|| anyhow::anyhow!("a status fits"))?);
    Ok(message)
}

/// The DU with this number, without UEs.
fn du(number: u8) -> anyhow::Result<(du::UserPlane, du::Control)> {
    let interface = |name: &str, role, address: IpAddr, port| du::Interface {
        name: name.to_owned(),
        role,
        local: SocketAddr::new(address, port),
    };
    let settings = Settings {
        cell: NrCellId::new(CELL + u64::from(number))?,
        interfaces: vec![
            interface("f1u", du::Role::F1u, du_on_f1u(number).into(), gtpu::PORT),
            interface("uu", du::Role::Uu, end(), l2::uu::PORT),
        ],
        downlink: Radio::UNLIMITED,
        uplink: Radio::UNLIMITED,
        seed: 1,
        // Nothing but user packets and their reports.
        echo: None,
    };
    let (graph, control, _events) = du::UserPlane::new(settings)?;
    Ok((graph, control))
}

/// The answer of a UPF in memory to a packet of the CU: it comes back.
pub(crate) fn upf_answer(n3: &[u32]) -> Answer {
    let n3: Arc<[u32]> = n3.into();
    Box::new(move |message| {
        let packet = gtpu::Packet::new(message).ok()?;
        let (teid, octets) = (*n3.get(packet.teid() as usize)?, packet.payload().len());
        let (headers, user) = message.split_at_mut(message.len() - octets);
        turn(user)?;
        gtpu::encapsulate(headers, teid, octets, Some(packets::FROM_UPF))?;
        Some(packets::upf())
    })
}

/// The answer of a data network in memory: the packet comes back.
pub(crate) fn network_answer() -> Answer {
    Box::new(|packet| turn(packet).map(|()| packets::upf()))
}

/// Exchanges a packet's addresses and ports, which does not change its checksum.
fn turn(packet: &mut [u8]) -> Option<()> {
    let (from, to) = packet.get_mut(12..20)?.split_at_mut(4);
    from.swap_with_slice(to);
    let (from, to) = packet.get_mut(20..24)?.split_at_mut(2);
    from.swap_with_slice(to);
    Some(())
}
