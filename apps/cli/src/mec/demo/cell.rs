//! An eNB and its UEs under an MME of another make.
//!
//! The MME is a program that takes commands as JSON lines ([`Peer`]); there is no S1AP, so what it says of tunnels is told the eNB here, and the
//! other way round. S11 is the MME's, S1-U the eNB's.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::Context as _;
use lab::peer::Peer;
use lab::{Lab, edge};
use net::netns::NetNs;
use serde_json::{Value, json};
use simulator::UserPlane;
use simulator::interface::{Interface, Link};
use simulator::user_plane::Tunnel;
use types::Teid;

/// Ports of GTPv2-C and GTP-U.
const GTPC: u16 = 2123;
const GTPU: u16 = 2152;
/// What a UE's interface takes, as the gateways' do.
const MTU: u16 = 1400;
/// Cause "Request accepted" (TS 29.274 §8.4).
const ACCEPTED: u8 = 16;

/// The eNB with its UEs, and the MME.
pub(super) struct Cell {
    mme: Peer,
    ues: Vec<Ue>,
}

struct Ue {
    imsi: String,
    address: Ipv4Addr,
    interface: Interface,
    /// Closed when dropped.
    _tunnel: Tunnel,
}

impl Cell {
    /// Starts MME and eNB, and lets UEs attach.
    ///
    /// # Errors
    /// The program does not start, or a UE is refused.
    pub(super) async fn start(lab: &Lab, program: &Path, ues: u32) -> anyhow::Result<Cell> {
        let enb = IpAddr::V4(lab::RAN_N2);
        let [own, user, gateway] = [(edge::CONTROL, GTPC), (lab::RAN_N2, GTPU), (lab::CORE_N2, GTPC)]
            .map(|(ip, port)| format!("{ip}:{port}"));
        let arguments = ["mme", "-gtpc", &own, "-gtpu", &user, "-peer", &gateway];
        let mut mme = Peer::start(program, Some(lab.ran()), &arguments).await?;
        let user_plane = lab.ran().enter(|| UserPlane::start(enb))?.context("the eNB's end of S1-U")?;
        let mut attached = Vec::new();
        for number in 1..=ues {
            let imsi = format!("99970{number:010}");
            let ue = Ue::attach(&mut mme, &user_plane, &imsi).await;
            attached.push(ue.with_context(|| format!("attach imsi-{imsi}"))?);
        }
        Ok(Cell { mme, ues: attached })
    }

    /// The UEs' namespaces, by their addresses.
    pub(super) fn ues(&self) -> BTreeMap<Ipv4Addr, NetNs> {
        self.ues.iter().map(|ue| (ue.address, ue.interface.namespace().clone())).collect()
    }

    /// Detaches the UEs, and ends.
    ///
    /// # Errors
    /// The gateway refuses, so it has lost a session.
    pub(super) async fn leave(mut self) -> anyhow::Result<()> {
        let mut left = Ok(());
        for Ue { imsi, .. } in &self.ues {
            let answer = self.mme.ask(json!({"do": "detach", "imsi": imsi})).await;
            let detached = answer.and_then(accepted).with_context(|| format!("detach imsi-{imsi}"));
            left = left.and(detached.map(drop));
        }
        left
    }
}

impl Ue {
    async fn attach(mme: &mut Peer, enb: &UserPlane, imsi: &str) -> anyhow::Result<Ue> {
        let created = accepted(mme.ask(json!({"do": "create", "imsi": imsi})).await?)?;
        let address: Ipv4Addr = created["ipv4"].as_str().context("no IPv4 address")?.parse()?;
        let end = &created["user"];
        let gateway: IpAddr = end["address"].as_str().context("no address of S1-U")?.parse()?;
        let teid =
            end["teid"].as_u64().and_then(|teid| u32::try_from(teid).ok()).context("no TEID of S1-U")?;
        let tunnel = enb.open(gateway, Teid(teid), None)?;
        let connect = json!({"do": "connect", "imsi": imsi, "teid": tunnel.local().teid.0});
        accepted(mme.ask(connect).await?)?;
        let interface = Interface::set_up(Link { ipv4: Some(address), ipv6: None, mtu: MTU }).await?;
        tunnel.attach(interface.tun().context("the UE's interface has no device")?);
        Ok(Ue { imsi: imsi.to_owned(), address, interface, _tunnel: tunnel })
    }
}

/// The answer of a gateway, if it accepts.
fn accepted(answer: Value) -> anyhow::Result<Value> {
    anyhow::ensure!(answer["cause"] == ACCEPTED, "the gateway has not accepted: {answer}");
    Ok(answer)
}
