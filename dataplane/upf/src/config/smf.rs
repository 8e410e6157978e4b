//! An entry of `upf.smf`: CP functions that may use the UPF, and the port that its requests to them go to.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use net::link::Cidr;
use serde::{Deserialize, Serialize};

use crate::n4::PFCP_PORT;

/// The text is no entry of `upf.smf`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no SMF: write an address or network, 10.0.0.4 or 10.0.0.0/24, if need be with a port, 10.0.0.4:8806"
)]
pub struct BadSmf(String);

/// CP functions: an address (`10.0.0.4`) or a network (`10.0.0.0/24`), if need be with a port
/// (`10.0.0.4:8806`, `10.0.0.0/24:8806`, `[2001:db8::4]:8806`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Smf {
    network: Cidr,
    port: u16,
}

impl Smf {
    /// The CP function that listens at this address and port.
    pub fn at(address: SocketAddr) -> Smf {
        Smf { network: Cidr::host(address.ip()), port: address.port() }
    }

    /// Where requests to the CP function with this address go, if the entry is about it. That is the port of
    /// PFCP, unless the entry names another; the source port of the CP function's requests is of no matter (TS
    /// 29.244 §4.2.2).
    pub fn request_address(&self, address: IpAddr) -> Option<SocketAddr> {
        let network = Cidr::new(address, self.network.prefix())?.network();
        (network == self.network.network()).then_some(SocketAddr::new(address, self.port))
    }
}

impl FromStr for Smf {
    type Err = BadSmf;

    fn from_str(text: &str) -> Result<Smf, BadSmf> {
        let bad = || BadSmf(text.to_owned());
        let network =
            |text: &str| text.parse().map(Cidr::host).or_else(|_| text.parse::<Cidr>().map_err(|_| bad()));
        // An IPv6 address without brackets has colons, but no port.
        if let Ok(network) = network(text) {
            return Ok(Smf { network, port: PFCP_PORT });
        }
        let (place, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let inner = place.strip_prefix('[').and_then(|place| place.strip_suffix(']'));
        let network = network(inner.unwrap_or(place))?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?;
        if network.address().is_ipv4() == inner.is_some() { Err(bad()) } else { Ok(Smf { network, port }) }
    }
}

impl fmt::Display for Smf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.network.address(), self.port) {
            (_, PFCP_PORT) => write!(f, "{}", self.network),
            (IpAddr::V4(_), port) => write!(f, "{}:{port}", self.network),
            (IpAddr::V6(_), port) => write!(f, "[{}]:{port}", self.network),
        }
    }
}

impl TryFrom<String> for Smf {
    type Error = BadSmf;

    fn try_from(text: String) -> Result<Smf, BadSmf> {
        text.parse()
    }
}

impl From<Smf> for String {
    fn from(smf: Smf) -> String {
        smf.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_name_addresses_networks_and_ports() {
        for (text, asked, expected) in [
            ("10.0.0.4", "10.0.0.4", Some("10.0.0.4:8805")),
            ("10.0.0.4", "10.0.0.5", None),
            ("10.0.0.4", "::ffff:10.0.0.4", None),
            ("10.0.0.0/24", "10.0.0.200", Some("10.0.0.200:8805")),
            ("10.0.0.4:8809", "10.0.0.4", Some("10.0.0.4:8809")),
            ("10.0.0.0/24:8809", "10.0.0.9", Some("10.0.0.9:8809")),
            ("2001:db8::4", "2001:db8::4", Some("[2001:db8::4]:8805")),
            ("[2001:db8::4]:8809", "2001:db8::4", Some("[2001:db8::4]:8809")),
            ("[2001:db8::/32]:8809", "2001:db8::7", Some("[2001:db8::7]:8809")),
        ] {
            let smf: Smf = text.parse().unwrap();
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(smf.request_address(asked.parse().unwrap()), expected, "{text}");
            assert_eq!(smf.to_string().parse(), Ok(smf), "{text}");
        }
        for text in ["", "smf", "10.0.0.4:", "10.0.0.4:0", "10.0.0.4:65536", "[10.0.0.4]:8805", "10.0.0.0/33"]
        {
            assert!(text.parse::<Smf>().is_err(), "{text}");
        }
    }
}
