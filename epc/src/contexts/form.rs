//! The octets of a UE's context: numbers in network order, one after the other.
//!
//! ```text
//! UE:          version (1) · digits of the IMSI (1) · IMSI (8) · TEID on S11 (4) · MME · PDN connections
//! MME:         0, or 1 · interface (1) · TEID (4) · its addresses: 2 × address · where it sends from: address
//! connection:  number (8) · length of the APN (1) · APN · type (1) · IPv4: address · IPv6 prefix: address · AMBR (2 × 8)
//!              · end of N4-u: tunnel · bearer
//! bearer:      EBI (1) · ARP: PCI, PVI, PL (1) · QCI (1) · charging ID (4) · UPF's end: tunnel · eNB's end: tunnel
//! address:     0, or 4 · IPv4 (4), or 6 · IPv6 (16)          tunnel: address · TEID (4), if there is an address
//! ```
//! A context with more is one of another version. What times a gateway has noted is not in it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gtpv2c::value::{Arp, BearerQos, Ebi, FTeid, FlowQos, InterfaceType};
use ipam::Addresses;
use types::{Ambr, BitRate, Dnn, Imsi, PduSessionType, Teid};

use crate::bearer::{Bearer, S5Tunnel, Slot, Tunnel};
use crate::context::{Pdn, Peer, Role, Ue, UeState, UpfSession};

const VERSION: u8 = 1;

/// The types that a PDN connection with a P-GW here can have; its number is the place.
const TYPES: [PduSessionType; 3] = [PduSessionType::Ipv4, PduSessionType::Ipv6, PduSessionType::Ipv4v6];

/// `None`: the UE has no PDN connection, or one that is not kept.
pub(super) fn encode(ue: &Ue, state: &UeState) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(96);
    let digits = ue.imsi.to_string();
    out.extend([VERSION, u8::try_from(digits.len()).ok()?]);
    out.extend(digits.parse::<u64>().ok()?.to_be_bytes());
    out.extend(ue.teid.to_be_bytes());
    out.push(u8::from(state.mme.is_some()));
    if let Some(mme) = state.mme {
        out.push(mme.f_teid.interface.0);
        out.extend(mme.f_teid.teid.to_be_bytes());
        put_address(&mut out, mme.f_teid.ipv4.map(IpAddr::V4));
        put_address(&mut out, mme.f_teid.ipv6.map(IpAddr::V6));
        put_address(&mut out, Some(mme.source));
    }
    for pdn in &state.pdns {
        put_pdn(&mut out, pdn)?;
    }
    (!state.pdns.is_empty()).then_some(out)
}

fn put_pdn(out: &mut Vec<u8>, pdn: &Pdn) -> Option<()> {
    let [bearer] = &pdn.bearers[..] else { return None };
    if pdn.role != Role::Both || !bearer.filters.is_empty() || bearer.is_gbr() {
        return None;
    }
    out.extend(pdn.number.to_be_bytes());
    let apn = pdn.apn.to_string();
    out.push(u8::try_from(apn.len()).ok()?);
    out.extend(apn.as_bytes());
    out.push(TYPES.iter().position(|known| *known == pdn.pdn_type)? as u8);
    put_address(out, pdn.addresses.ipv4.map(IpAddr::V4));
    put_address(out, pdn.addresses.ipv6.map(IpAddr::V6));
    for rate in [pdn.ambr.uplink, pdn.ambr.downlink] {
        out.extend(rate.bps().to_be_bytes());
    }
    put_tunnel(out, pdn.upf.n4u);
    let arp = bearer.qos.arp;
    out.extend([
        bearer.ebi.0,
        u8::from(arp.pci) << 6 | u8::from(arp.pvi) << 4 | arp.pl & 0xF,
        bearer.qos.flow.qci,
    ]);
    out.extend(bearer.charging_id.to_be_bytes());
    put_tunnel(out, bearer.own);
    put_tunnel(out, bearer.access);
    Some(())
}

fn put_address(out: &mut Vec<u8>, address: Option<IpAddr>) {
    match address {
        None => out.push(0),
        Some(IpAddr::V4(v4)) => {
            out.push(4);
            out.extend(v4.octets());
        }
        Some(IpAddr::V6(v6)) => {
            out.push(6);
            out.extend(v6.octets());
        }
    }
}

fn put_tunnel(out: &mut Vec<u8>, tunnel: Option<Tunnel>) {
    put_address(out, tunnel.map(|tunnel| tunnel.address));
    if let Some(tunnel) = tunnel {
        out.extend(tunnel.teid.0.to_be_bytes());
    }
}

/// IMSI, TEID on S11, MME and PDN connections, which are not on this UPF yet. `None`: not in this form.
pub(super) fn decode(octets: &[u8], upf: SocketAddr) -> Option<(Imsi, u32, Option<Peer>, Vec<Pdn>)> {
    let mut reader = Reader(octets);
    let [VERSION, digits] = reader.octets()? else { return None };
    let imsi = format!("{:0width$}", reader.u64()?, width = usize::from(digits)).parse().ok()?;
    let teid = reader.u32()?;
    let mme = match reader.u8()? {
        0 => None,
        _ => {
            let (interface, teid) = (InterfaceType(reader.u8()?), reader.u32()?);
            let (ipv4, ipv6) = (reader.ipv4()?, reader.ipv6()?);
            Some(Peer::now(FTeid { interface, teid, ipv4, ipv6 }, reader.address()??))
        }
    };
    let mut pdns = Vec::new();
    while !reader.0.is_empty() {
        pdns.push(reader.pdn(upf)?);
    }
    (teid != 0 && !pdns.is_empty()).then_some((imsi, teid, mme, pdns))
}

/// What is left to read. `None`: it is too short, or wrong.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn octets<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (octets, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*octets)
    }

    fn u8(&mut self) -> Option<u8> {
        self.octets().map(|[octet]| octet)
    }

    fn u32(&mut self) -> Option<u32> {
        self.octets().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.octets().map(u64::from_be_bytes)
    }

    fn address(&mut self) -> Option<Option<IpAddr>> {
        Some(match self.u8()? {
            0 => None,
            4 => Some(Ipv4Addr::from(self.octets::<4>()?).into()),
            6 => Some(Ipv6Addr::from(self.octets::<16>()?).into()),
            _ => return None,
        })
    }

    fn ipv4(&mut self) -> Option<Option<Ipv4Addr>> {
        match self.address()? {
            Some(IpAddr::V6(_)) => None,
            Some(IpAddr::V4(v4)) => Some(Some(v4)),
            None => Some(None),
        }
    }

    fn ipv6(&mut self) -> Option<Option<Ipv6Addr>> {
        match self.address()? {
            Some(IpAddr::V4(_)) => None,
            Some(IpAddr::V6(v6)) => Some(Some(v6)),
            None => Some(None),
        }
    }

    fn tunnel(&mut self) -> Option<Option<Tunnel>> {
        let Some(address) = self.address()? else { return Some(None) };
        Some(Some(Tunnel { address, teid: Teid(self.u32()?) }))
    }

    fn pdn(&mut self, upf: SocketAddr) -> Option<Pdn> {
        let number = self.u64().filter(|number| *number as u32 != 0 && number >> 32 != 0)?;
        let length = usize::from(self.u8()?);
        let (apn, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        let apn = Dnn::new(std::str::from_utf8(apn).ok()?).ok()?;
        let pdn_type = *TYPES.get(usize::from(self.u8()?))?;
        let addresses = Addresses { ipv4: self.ipv4()?, ipv6: self.ipv6()? };
        let mut rate = || self.u64().map(BitRate::from_bps);
        let ambr = Ambr { uplink: rate()?, downlink: rate()? };
        let n4u = self.tunnel()?;
        let [ebi, arp, qci] = self.octets()?;
        let arp = Arp { pci: arp & 0x40 != 0, pvi: arp & 0x10 != 0, pl: arp & 0xF };
        let bearer = Bearer {
            slot: Slot::DEFAULT,
            ebi: Ebi(ebi),
            qos: BearerQos { arp, flow: FlowQos { qci, ..Default::default() } },
            filters: Vec::new(),
            charging_id: self.u32()?,
            own: Some(self.tunnel()??),
            access: self.tunnel()?,
            s5: S5Tunnel::default(),
        };
        Some(Pdn {
            number,
            role: Role::Both,
            apn,
            pdn_type,
            addresses,
            ambr,
            bearers: vec![bearer],
            unconfirmed: Vec::new(),
            upf: UpfSession { address: upf, seid: 0, epoch: 0, n4u },
            unclaimed: None,
            arrived: None,
            solicited: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Paging;

    #[test]
    fn a_context_is_what_it_was_and_nothing_shorter() {
        let upf: SocketAddr = "127.0.0.7:8805".parse().unwrap();
        let tunnel = |number| Tunnel { address: "10.100.0.2".parse().unwrap(), teid: Teid(number) };
        let mut reader = Reader(&[]);
        assert!(reader.pdn(upf).is_none());
        let bearer = Bearer {
            slot: Slot::DEFAULT,
            ebi: Ebi(5),
            qos: BearerQos {
                arp: Arp { pci: true, pl: 8, pvi: true },
                flow: FlowQos { qci: 9, ..Default::default() },
            },
            filters: Vec::new(),
            charging_id: 77,
            own: Some(tunnel(1)),
            access: Some(tunnel(2)),
            s5: S5Tunnel::default(),
        };
        let pdn = Pdn {
            number: 0x11_2233_4455,
            role: Role::Both,
            apn: Dnn::new("internet").unwrap(),
            pdn_type: PduSessionType::Ipv4v6,
            addresses: Addresses {
                ipv4: Some([10, 45, 0, 1].into()),
                ipv6: Some("fd00:45::".parse().unwrap()),
            },
            ambr: Ambr { uplink: BitRate::from_kbps(50_000), downlink: BitRate::from_kbps(100_000) },
            bearers: vec![bearer],
            unconfirmed: Vec::new(),
            upf: UpfSession { address: upf, seid: 9, epoch: 1, n4u: Some(tunnel(3)) },
            unclaimed: None,
            arrived: None,
            solicited: None,
        };
        let mme = FTeid::new(InterfaceType::S11_MME, 0x77, [127, 0, 0, 9].into());
        let mme = Some(Peer::now(mme, [127, 0, 0, 10].into()));
        let state = UeState { mme, pdns: vec![pdn], paging: Paging::No, paging_count: 0, gone: false };
        let imsi = "099970000000001".parse().unwrap();
        let ue = Ue { imsi, teid: 0x55, state: state.into() };
        let state = ue.state.try_lock().unwrap();
        let octets = encode(&ue, &state).unwrap();
        let (imsi, teid, found, mut pdns) = decode(&octets, upf).unwrap();
        assert_eq!((imsi, teid), (ue.imsi, ue.teid));
        assert_eq!(found.map(|mme| (mme.f_teid, mme.source)), mme.map(|mme| (mme.f_teid, mme.source)));
        let again = UeState {
            mme: found,
            pdns: vec![pdns.remove(0)],
            paging: Paging::No,
            paging_count: 0,
            gone: false,
        };
        let twin = Ue { imsi, teid, state: again.into() };
        assert_eq!(encode(&twin, &twin.state.try_lock().unwrap()).unwrap(), octets);
        for length in 0..octets.len() {
            assert!(decode(&octets[..length], upf).is_none(), "{length} octets");
        }
    }
}
