//! The text form of SDF filters: the IPFilterRule of RFC 6733 §4.3.1 as TS 29.212 §5.4.2 restricts it.
//!
//! ```text
//! permit out <protocol> from <address> [<ports>] to <address> [<ports>]
//! protocol: a number, `ip` for any, or a name such as `udp`      address: `any`, `assigned`, or [address][/length]
//! ports: 80  |  1000-2000  |  80,443,8000-8080
//! ```
//! The text describes downlink packets: `from` is the remote side, `to` the UE. For uplink both are swapped
//! (TS 29.244 §5.2.1A.2A). Action and direction other than `permit out`, negation and options are refused:
//! accepting and ignoring them would let the wrong packets through.

use std::net::IpAddr;

use crate::rule::{Filter, PortRange, Prefix, RuleError};

/// Longest text that is read. A longer text is a mistake or an attack.
pub const MAX_LENGTH: usize = 512;
/// Most ports and ranges of one side; a filter expands into the product of both sides.
pub const MAX_PORTS: usize = 8;

/// Why a text is not an SDF filter that Godwit supports.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SdfError {
    /// Longer than [`MAX_LENGTH`].
    #[error("longer than {MAX_LENGTH} characters")]
    TooLong,
    /// The text ends where a word was expected.
    #[error("incomplete: {0} is missing")]
    Missing(&'static str),
    /// A word where another one was expected.
    #[error("{word:?} is not {expected}")]
    Unexpected {
        /// The word as given.
        word: String,
        /// The words that are allowed there.
        expected: &'static str,
    },
    /// More than [`MAX_PORTS`] ports on one side.
    #[error("more than {MAX_PORTS} ports or ranges on one side")]
    TooManyPorts,
    /// A value out of range.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

/// One side of a filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Side {
    /// Which addresses.
    pub address: Address,
    /// Which ports; empty means all.
    pub ports: Vec<PortRange>,
}

/// Which addresses one side selects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// All.
    Any,
    /// The address assigned to the UE. Selects every address, since the session's own rules already check the
    /// UE's address.
    Assigned,
    /// A prefix.
    Prefix(Prefix),
}

/// A parsed SDF filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SdfFilter {
    /// Transport protocol; `None` for any.
    pub protocol: Option<u8>,
    /// The remote side.
    pub from: Side,
    /// The UE's side.
    pub to: Side,
}

/// Which way the packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the UE.
    Uplink,
    /// To the UE.
    Downlink,
}

/// Names of protocols (IANA). RFC 6733 allows only numbers and `ip`, but CP functions send names too.
const PROTOCOLS: [(&str, u8); 10] = [
    ("icmp", 1),
    ("igmp", 2),
    ("tcp", 6),
    ("udp", 17),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("ipv6-icmp", 58),
    ("sctp", 132),
];

fn protocol(word: &str) -> Option<u8> {
    let named = PROTOCOLS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
    named.map(|(_, number)| *number).or_else(|| word.parse().ok())
}

impl SdfFilter {
    /// Reads the text.
    pub fn parse(text: &str) -> Result<SdfFilter, SdfError> {
        if text.len() > MAX_LENGTH {
            return Err(SdfError::TooLong);
        }
        let mut words = text.split_ascii_whitespace().peekable();
        let mut keyword = |expected: &'static str| match words.next() {
            None => Err(SdfError::Missing(expected)),
            Some(word) => Ok(word),
        };
        expect(keyword("permit")?, "permit")?;
        expect(keyword("out")?, "out")?;
        let protocol = match keyword("a protocol")? {
            "ip" => None,
            word => Some(protocol(word).ok_or_else(|| unexpected(word, "`ip`, a protocol number or name"))?),
        };
        expect(keyword("from")?, "from")?;
        let from_address = parse_address(keyword("an address")?)?;
        let mut word = keyword("to")?;
        let mut from_ports = Vec::new();
        if word != "to" {
            from_ports = parse_ports(word)?;
            word = keyword("to")?;
        }
        expect(word, "to")?;
        let to_address = parse_address(keyword("an address")?)?;
        let to_ports = words.next().map_or(Ok(Vec::new()), parse_ports)?;
        if let Some(word) = words.next() {
            return Err(unexpected(word, "the end: options are not supported"));
        }
        let from = Side { address: from_address, ports: from_ports };
        let to = Side { address: to_address, ports: to_ports };
        Ok(SdfFilter { protocol, from, to })
    }

    /// The filters that select these packets in one direction: one per combination of ports.
    pub fn filters(&self, direction: Direction) -> Vec<Filter> {
        let (source, destination) = match direction {
            Direction::Downlink => (&self.from, &self.to),
            Direction::Uplink => (&self.to, &self.from),
        };
        let prefix = |side: &Side| match side.address {
            Address::Any | Address::Assigned => None,
            Address::Prefix(prefix) => Some(prefix),
        };
        let mut out = Vec::new();
        for source_ports in choices(&source.ports) {
            for destination_ports in choices(&destination.ports) {
                out.push(Filter {
                    source: prefix(source),
                    destination: prefix(destination),
                    protocol: self.protocol,
                    source_ports,
                    destination_ports,
                    ..Filter::default()
                });
            }
        }
        out
    }
}

/// One `None` for "all ports"; otherwise every range.
fn choices(ports: &[PortRange]) -> impl Iterator<Item = Option<PortRange>> {
    ports.is_empty().then_some(None).into_iter().chain(ports.iter().copied().map(Some))
}

fn unexpected(word: &str, expected: &'static str) -> SdfError {
    SdfError::Unexpected { word: word.to_owned(), expected }
}

fn expect(word: &str, expected: &'static str) -> Result<(), SdfError> {
    if word == expected { Ok(()) } else { Err(unexpected(word, expected)) }
}

fn parse_address(word: &str) -> Result<Address, SdfError> {
    match word {
        "any" => return Ok(Address::Any),
        "assigned" => return Ok(Address::Assigned),
        _ => {}
    }
    let (address, length) = match word.split_once('/') {
        None => (word, None),
        Some((address, length)) => (address, Some(length)),
    };
    let address: IpAddr = address
        .parse()
        .map_err(|_| unexpected(word, "`any`, `assigned` or an address with an optional prefix length"))?;
    match length {
        None => Ok(Address::Prefix(Prefix::host(address))),
        Some(length) => {
            let length = length.parse().map_err(|_| unexpected(word, "a prefix length"))?;
            Ok(Address::Prefix(Prefix::new(address, length)?))
        }
    }
}

fn parse_ports(word: &str) -> Result<Vec<PortRange>, SdfError> {
    let number = |text: &str| text.parse::<u16>().map_err(|_| unexpected(word, "ports such as 80,1000-2000"));
    let mut out = Vec::new();
    for part in word.split(',') {
        if out.len() == MAX_PORTS {
            return Err(SdfError::TooManyPorts);
        }
        out.push(match part.split_once('-') {
            None => PortRange::single(number(part)?),
            Some((first, last)) => PortRange::new(number(first)?, number(last)?)?,
        });
    }
    Ok(out)
}
