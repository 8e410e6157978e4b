//! Framed routes: networks behind a UE, found by longest prefix match (TS 23.501 §5.6.14, TS 29.244 §5.16).
//!
//! [`Routes`] is a tree of prefixes in which children have longer prefixes (a Patricia tree). It is immutable.
//! A change makes a new tree that shares all nodes except those above the changed one, so the writer publishes
//! a tree by a pointer while workers read the old one, and a change copies at most one node per bit of the
//! address. Few sessions have framed routes; they are searched only for addresses that no table indexes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Why a framed route is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The text does not follow RFC 2865 §5.22 or RFC 3162 §2.5.
    #[error("not a network with a prefix length")]
    Text,
    /// A longer prefix than the address.
    #[error("the prefix length exceeds the address")]
    Length,
}

/// A network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    v6: bool,
    /// The address, most significant bit first; bits behind the prefix are zero.
    bits: u128,
    length: u8,
}

impl Network {
    /// The network with a prefix of `length` bits that contains `address`.
    pub fn new(address: IpAddr, length: u8) -> Result<Network, RouteError> {
        let (v6, bits) = key(address);
        if length > if v6 { 128 } else { 32 } {
            return Err(RouteError::Length);
        }
        Ok(Network { v6, bits: bits & mask(length), length })
    }

    /// Reads a Framed-Route or Framed-IPv6-Route: a network; the gateway and metrics that follow are ignored.
    /// An IPv4 network without length has the length of its class (RFC 2865 §5.22).
    pub fn parse(text: &str) -> Result<Network, RouteError> {
        let network = text.split_ascii_whitespace().next().ok_or(RouteError::Text)?;
        let (address, length) = match network.split_once('/') {
            Some((address, length)) => (address, Some(length.parse().map_err(|_| RouteError::Text)?)),
            None => (network, None),
        };
        match (address.parse().map_err(|_| RouteError::Text)?, length) {
            (address, Some(length)) => Network::new(address, length),
            (IpAddr::V4(address), None) => Network::new(address.into(), class(address)?),
            (IpAddr::V6(_), None) => Err(RouteError::Text),
        }
    }

    /// First address of the network.
    pub fn address(&self) -> IpAddr {
        match self.v6 {
            true => IpAddr::V6(Ipv6Addr::from_bits(self.bits)),
            false => IpAddr::V4(Ipv4Addr::from_bits((self.bits >> 96) as u32)),
        }
    }

    /// Length of the prefix.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether `address` is in it.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (v6, bits) = key(address);
        v6 == self.v6 && bits & mask(self.length) == self.bits
    }
}

/// Prefix length of a class A, B or C address.
fn class(address: Ipv4Addr) -> Result<u8, RouteError> {
    match address.octets()[0] {
        0..128 => Ok(8),
        128..192 => Ok(16),
        192..224 => Ok(24),
        _ => Err(RouteError::Text),
    }
}

/// Whether an address is IPv6, and its bits starting at the most significant.
#[inline]
fn key(address: IpAddr) -> (bool, u128) {
    match address {
        IpAddr::V4(address) => (false, u128::from(address.to_bits()) << 96),
        IpAddr::V6(address) => (true, address.to_bits()),
    }
}

#[inline]
fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

/// The bit after `length` bits: the child to which a longer key belongs.
#[inline]
fn branch(bits: u128, length: u8) -> usize {
    (bits >> (127 - u32::from(length.min(127)))) as usize & 1
}

type Link<T> = Option<Arc<Node<T>>>;

#[derive(Debug, Clone)]
struct Node<T> {
    bits: u128,
    length: u8,
    /// `None` where two longer prefixes branch and no route ends.
    value: Option<T>,
    children: [Link<T>; 2],
}

/// Networks and their values. A clone copies two pointers.
#[derive(Debug, Clone)]
pub struct Routes<T> {
    v4: Link<T>,
    v6: Link<T>,
}

impl<T> Default for Routes<T> {
    fn default() -> Routes<T> {
        Routes { v4: None, v6: None }
    }
}

impl<T> Routes<T> {
    /// Whether there is no route.
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    /// The value of the longest prefix of `address`.
    #[inline]
    pub fn lookup(&self, address: IpAddr) -> Option<&T> {
        let (v6, bits) = key(address);
        let mut node = if v6 { &self.v6 } else { &self.v4 }.as_deref();
        let mut best = None;
        // Each node has a longer prefix than the one before it, so there are at most 129.
        while let Some(here) = node {
            if bits & mask(here.length) != here.bits {
                break;
            }
            best = here.value.as_ref().or(best);
            if here.length == 128 {
                break;
            }
            node = here.children[branch(bits, here.length)].as_deref();
        }
        best
    }

    /// The value of exactly this network.
    pub fn get(&self, network: Network) -> Option<&T> {
        let mut node = self.root(network.v6).as_deref();
        while let Some(here) = node
            && here.length < network.length
        {
            node = here.children[branch(network.bits, here.length)].as_deref();
        }
        node.filter(|here| (here.bits, here.length) == (network.bits, network.length))?.value.as_ref()
    }

    fn root(&self, v6: bool) -> &Link<T> {
        if v6 { &self.v6 } else { &self.v4 }
    }
}

impl<T: Clone> Routes<T> {
    /// A copy of these routes with one more route, or with another value for it.
    #[must_use]
    pub fn with(&self, network: Network, value: T) -> Routes<T> {
        let root = Some(insert(self.root(network.v6).as_ref(), network, value));
        self.replaced(network.v6, root)
    }

    /// A copy of these routes without one.
    #[must_use]
    pub fn without(&self, network: Network) -> Routes<T> {
        match self.get(network) {
            Some(_) => self.replaced(network.v6, remove(self.root(network.v6).as_ref(), network)),
            None => self.clone(),
        }
    }

    fn replaced(&self, v6: bool, root: Link<T>) -> Routes<T> {
        if v6 { Routes { v4: self.v4.clone(), v6: root } } else { Routes { v4: root, v6: self.v6.clone() } }
    }
}

/// A subtree with one more route. The recursion is at most as deep as an address has bits.
fn insert<T: Clone>(node: Option<&Arc<Node<T>>>, network: Network, value: T) -> Arc<Node<T>> {
    let Network { bits, length, .. } = network;
    let new = |children| Node { bits, length, value: None, children };
    let Some(node) = node else { return Arc::new(Node { value: Some(value), ..new([None, None]) }) };
    let same = (node.bits ^ bits).leading_zeros().min(length.into()).min(node.length.into()) as u8;
    if same == node.length {
        let mut copy = Node::clone(node);
        if same == length {
            copy.value = Some(value);
        } else {
            let child = &mut copy.children[branch(bits, same)];
            *child = Some(insert(child.as_ref(), network, value));
        }
        return Arc::new(copy);
    }
    let mut children = [None, None];
    children[branch(node.bits, same)] = Some(Arc::clone(node));
    if same == length {
        return Arc::new(Node { value: Some(value), ..new(children) });
    }
    children[branch(bits, same)] = Some(Arc::new(Node { value: Some(value), ..new([None, None]) }));
    Arc::new(Node { bits: bits & mask(same), length: same, value: None, children })
}

/// A subtree without a route that is in it. Nodes that are no longer needed are removed too.
fn remove<T: Clone>(node: Option<&Arc<Node<T>>>, network: Network) -> Link<T> {
    let mut copy = Node::clone(node?);
    if copy.length == network.length {
        copy.value = None;
    } else {
        let child = &mut copy.children[branch(network.bits, copy.length)];
        *child = remove(child.as_ref(), network);
    }
    match (&copy.value, &copy.children) {
        (None, [None, only] | [only, None]) => only.clone(),
        _ => Some(Arc::new(copy)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn network(text: &str) -> Network {
        Network::parse(text).unwrap()
    }

    #[test]
    fn framed_routes_are_read_as_radius_writes_them() {
        for (text, address, length) in [
            ("192.168.1.0/24 192.168.1.1 1", "192.168.1.0", 24),
            ("192.168.1.7/24", "192.168.1.0", 24),
            ("10.1.2.3", "10.0.0.0", 8),
            ("172.16.5.5 0.0.0.0 1 2 -1 3 400", "172.16.0.0", 16),
            ("192.0.2.9", "192.0.2.0", 24),
            ("0.0.0.0/0", "0.0.0.0", 0),
            ("2000:0:0:106::/64 2000::106:a00:20ff:fe99:a998 1", "2000:0:0:106::", 64),
            ("::/0", "::", 0),
            ("2001:db8::1/128", "2001:db8::1", 128),
        ] {
            let network = network(text);
            assert_eq!((network.address(), network.length()), (address.parse().unwrap(), length), "{text}");
        }
        for text in ["", " ", "x", "10.0.0.0/x", "10.0.0.0/", "224.0.0.1", "2001:db8::1", "10.0.0.0/256"] {
            assert_eq!(Network::parse(text), Err(RouteError::Text), "{text}");
        }
        for text in ["10.0.0.0/33", "::/129"] {
            assert_eq!(Network::parse(text), Err(RouteError::Length), "{text}");
        }
    }

    #[test]
    fn the_longest_prefix_wins_and_families_are_apart() {
        let mut routes = Routes::default();
        for (text, value) in [
            ("0.0.0.0/0", 0),
            ("10.0.0.0/8", 1),
            ("10.1.0.0/16", 2),
            ("10.1.2.3/32", 3),
            ("2001:db8::/32", 4),
        ] {
            routes = routes.with(network(text), value);
        }
        for (address, expected) in [
            ("10.1.2.3", Some(3)),
            ("10.1.2.4", Some(2)),
            ("10.2.0.0", Some(1)),
            ("11.0.0.0", Some(0)),
            ("2001:db8:ffff::1", Some(4)),
            ("::", None),
        ] {
            assert_eq!(routes.lookup(address.parse().unwrap()).copied(), expected, "{address}");
        }
        let fewer = routes.without(network("10.1.0.0/16")).without(network("0.0.0.0/0"));
        assert_eq!(fewer.lookup("10.1.2.4".parse().unwrap()), Some(&1));
        assert_eq!(fewer.lookup("11.0.0.0".parse().unwrap()), None);
        assert_eq!(routes.lookup("11.0.0.0".parse().unwrap()), Some(&0), "the tree before is what it was");
    }

    /// Short addresses, which collide and nest more often than long ones.
    fn routes() -> impl Strategy<Value = Vec<(Network, Option<u16>)>> {
        let network = (any::<bool>(), any::<u8>(), 0..=32u8).prop_map(|(v6, octet, length)| {
            let address: IpAddr = match v6 {
                true => Ipv6Addr::from_bits(u128::from(octet & 0x5F) << 120 | u128::from(octet)).into(),
                false => Ipv4Addr::from_bits(u32::from(octet & 0x5F) << 24 | u32::from(octet)).into(),
            };
            let length = if v6 && length > 28 { 96 + length } else { length };
            Network::new(address, length).unwrap()
        });
        proptest::collection::vec((network, proptest::option::weighted(0.7, any::<u16>())), 0..60)
    }

    proptest! {
        /// After any additions and removals, look-ups give the same results as in a list.
        #[test]
        fn the_tree_is_as_good_as_a_list(changes in routes()) {
            let mut tree = Routes::default();
            let mut list: Vec<(Network, u16)> = Vec::new();
            for (network, value) in &changes {
                list.retain(|(other, _)| other != network);
                match value {
                    Some(value) => {
                        tree = tree.with(*network, *value);
                        list.push((*network, *value));
                    }
                    None => tree = tree.without(*network),
                }
            }
            for octet in 0..=255u8 {
                for address in [
                    IpAddr::from(Ipv4Addr::from_bits(u32::from(octet & 0x5F) << 24 | u32::from(octet))),
                    Ipv6Addr::from_bits(u128::from(octet & 0x5F) << 120 | u128::from(octet)).into(),
                ] {
                    let best = list.iter().filter(|(network, _)| network.contains(address));
                    let best = best.max_by_key(|(network, _)| network.length()).map(|(_, value)| value);
                    prop_assert_eq!(tree.lookup(address), best);
                }
            }
            for (network, value) in &list {
                prop_assert_eq!(tree.get(*network), Some(value));
            }
            for (network, _) in &list {
                tree = tree.without(*network);
            }
            prop_assert!(tree.is_empty());
        }
    }
}
