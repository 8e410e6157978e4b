//! Protocol configuration options (TS 24.008 §10.5.6.3): what a UE asks its P-GW for in an attach, and what it gets. They pass MME and
//! S-GW as octets.

use std::net::{IpAddr, Ipv4Addr};

use gtpv2c::value::Octets;
use nas::{Pco, PcoItem};

use crate::config::ApnConfig;

/// What the UE has asked for: DNS servers, by containers of their own or by IPCP, and MTU. `None`: nothing that the gateway has.
pub(crate) fn answer(asked: &Octets, network: &ApnConfig) -> Option<Octets> {
    let asked = Pco::decode(&asked.0)?;
    let mut items = asked.dns_and_mtu(&network.dns, network.mtu);
    let ipcp = asked.items.iter().find_map(|item| match item {
        PcoItem::Other { id: IPCP, contents } => answer_ipcp(contents, network),
        _ => None,
    });
    items.extend(ipcp.map(|contents| PcoItem::Other { id: IPCP, contents }));
    (!items.is_empty()).then(|| Octets(Pco { items }.encode()))
}

/// IPCP, the configuration protocol of PPP (RFC 1332), of which only the addresses of DNS servers are used (RFC 1877).
const IPCP: u16 = 0x8021;
const CONFIGURE_REQUEST: u8 = 1;
const CONFIGURE_NAK: u8 = 3;
const CONFIGURE_REJECT: u8 = 4;
const PRIMARY_DNS: u8 = 129;
const SECONDARY_DNS: u8 = 131;

/// The answer to a Configure-Request: the addresses that the UE is to use, as it has none yet; without any, the options are rejected.
/// There is no second round, so options that the gateway does not know are passed over.
fn answer_ipcp(request: &[u8], network: &ApnConfig) -> Option<Vec<u8>> {
    let [CONFIGURE_REQUEST, id, high, low, rest @ ..] = request else { return None };
    let length = usize::from(u16::from_be_bytes([*high, *low])).checked_sub(4)?;
    let asked = rest.get(..length)?;
    let servers: Vec<Ipv4Addr> = network
        .dns
        .iter()
        .filter_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        })
        .collect();
    let (mut offered, mut rejected) = (Vec::new(), Vec::new());
    let mut options = asked;
    while let [kind, length, ..] = options {
        let (option, others) = options.split_at_checked(usize::from(*length).max(2))?;
        options = others;
        let at = match *kind {
            PRIMARY_DNS if option.len() == 6 => 0,
            SECONDARY_DNS if option.len() == 6 => 1,
            _ => continue,
        };
        match servers.get(at) {
            // Once, however often it is asked for.
            Some(_) if offered.chunks(6).any(|known| known.first() == Some(kind)) => {}
            Some(server) => offered.extend([&[*kind, 6], &server.octets()[..]].concat()),
            None => rejected.extend_from_slice(option),
        }
    }
    let (code, content) = match (offered.is_empty(), rejected.is_empty()) {
        (false, _) => (CONFIGURE_NAK, offered),
        (true, false) => (CONFIGURE_REJECT, rejected),
        (true, true) => return None,
    };
    let length = u16::try_from(content.len() + 4).ok()?.to_be_bytes();
    Some([&[code, *id], &length[..], &content].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(dns: &[&str]) -> ApnConfig {
        serde_json::from_value(serde_json::json!({
            "name": "internet", "ue_pool": {"ipv4": "10.45.0.0/16"}, "dns": dns,
        }))
        .unwrap()
    }

    /// As phones send it: both servers, 0.0.0.0.
    const REQUEST: [u8; 16] = [1, 7, 0, 16, 129, 6, 0, 0, 0, 0, 131, 6, 0, 0, 0, 0];

    #[test]
    fn a_ue_gets_dns_servers_by_ipcp() {
        let both = answer_ipcp(&REQUEST, &network(&["1.1.1.1", "fd00::1", "9.9.9.9"]));
        assert_eq!(both, Some(vec![3, 7, 0, 16, 129, 6, 1, 1, 1, 1, 131, 6, 9, 9, 9, 9]));
        let one = answer_ipcp(&REQUEST, &network(&["1.1.1.1"]));
        assert_eq!(one, Some(vec![3, 7, 0, 10, 129, 6, 1, 1, 1, 1]));
        let none = answer_ipcp(&REQUEST, &network(&[]));
        assert_eq!(none, Some([&[4, 7, 0, 16], &REQUEST[4..]].concat()));
        let packed = Pco { items: vec![PcoItem::Other { id: IPCP, contents: REQUEST.to_vec() }] };
        let answered = answer(&Octets(packed.encode()), &network(&["1.1.1.1"])).unwrap();
        let contents = vec![3, 7, 0, 10, 129, 6, 1, 1, 1, 1];
        assert_eq!(Pco::decode(&answered.0).unwrap().items, [PcoItem::Other { id: IPCP, contents }]);
    }

    #[test]
    fn broken_ipcp_is_not_answered() {
        let network = network(&["1.1.1.1"]);
        for length in 0..REQUEST.len() {
            assert_eq!(answer_ipcp(&REQUEST[..length], &network), None, "{length} octets");
        }
        for broken in [[2, 7, 0, 16], [1, 7, 0, 3], [1, 7, 0, 17], [1, 7, 255, 255]] {
            assert_eq!(answer_ipcp(&[&broken, &REQUEST[4..]].concat(), &network), None);
        }
        // An option that is longer than the rest.
        assert_eq!(answer_ipcp(&[1, 7, 0, 8, 129, 6, 0, 0], &network), None);
        // A length of 0 does not loop.
        assert_eq!(answer_ipcp(&[1, 7, 0, 8, 3, 0, 3, 0], &network), None);
    }
}
