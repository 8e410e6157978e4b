//! The `upf` section of `godwit.yaml`.

mod smf;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use classifier::Backend;
use net::link::Cidr;
use pktio::interface::config::texts;
use pktio::interface::{Backend as Access, Configured, DpdkConfig, WorkersConfig};
use serde::{Deserialize, Serialize};
use types::Dnn;

pub use smf::{BadSmf, Smf};

use crate::interface::{InterfaceConfig, Role, broadcasts};
use crate::interfaces::{Interface, Interfaces, MAX_INTERFACES};
use crate::plan::Kind;
use crate::tables::Receiver;

/// Smallest and greatest N6 MTU in octets: IPv6 needs 1280, and packet buffers hold a little more than 9,000.
const MTU: std::ops::RangeInclusive<u32> = 1280..=9000;
/// The same for a TAP device, whose frames have 22 octets of header with two tags. IPv6's minimum does not
/// apply.
const ETHERNET_MTU: std::ops::RangeInclusive<u32> = 576..=8978;

/// Configuration of the UPF.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// N4: address and port of the PFCP server.
    pub pfcp: SocketAddr,
    /// CP functions that may use this UPF: addresses and networks, and ports where they do not listen at that of
    /// PFCP. The first entry that has an address counts. In a file with a section `smf` the default is that
    /// SMF. No other CP function gets an association.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub smf: Vec<Smf>,
    /// Short form of an interface `n3` of role `n3` on the kernel's sockets: address and port of GTP-U. gNBs are given
    /// this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gtpu: Option<SocketAddr>,
    /// Interfaces by name, any number for each role. [`Interfaces::of`] adds those of the short forms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceConfig>,
    /// Start options of DPDK, for interfaces with that backend.
    #[serde(default)]
    pub dpdk: DpdkConfig,
    /// The threads that forward packets.
    #[serde(default)]
    pub workers: WorkersConfig,
    /// Data networks.
    pub dnn: Vec<DnnConfig>,
    /// Networks of the core beyond this machine, with gNBs and other NFs, which UEs must not reach. The
    /// machine's own addresses are always closed and need not be listed.
    #[serde(default, with = "texts")]
    pub closed: Vec<Cidr>,
    /// Sockets of the core that the rest of the configuration file names; UEs must not reach their addresses
    /// either.
    #[serde(skip)]
    pub core: Vec<CoreSocket>,
    /// Most tunnel endpoints at the same time.
    #[serde(default = "default_max_tunnels")]
    pub max_tunnels: u32,
    /// Which TEIDs it chooses from; without it from all. UPFs with disjoint ranges can take over each other's sessions with their TEIDs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teid_range: Option<TeidRange>,
    /// The algorithm that finds a packet's rule: `auto`, or the name of another classifier. All of them find
    /// the same rule.
    #[serde(default = "default_classifier", with = "backend")]
    pub classifier: Backend,
    /// Seconds after the start in which packets of unknown tunnels get no Error Indication. The tunnels may
    /// belong to sessions from before the start, which CP functions restore as soon as they notice the restart
    /// (TS 23.527 §4.3). A gNB that gets an Error Indication gives the session up.
    #[serde(default = "default_restoration_s")]
    pub restoration_s: u32,
    /// Whether CP functions may end sessions by the sets that they belong to (FQ-CSID). Only CP functions that are also EPC
    /// nodes do so, and no request can confirm it (`docs/adr/0014`).
    #[serde(default)]
    pub session_sets: bool,
}

fn default_restoration_s() -> u32 {
    30
}

/// TEIDs that begin with these bits (TEIDRI and TEID range, TS 29.244 §8.2.82).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TeidRange {
    /// Number of bits, 1 to 7.
    pub bits: u8,
    /// Their value.
    pub value: u8,
}

impl TeidRange {
    fn is_valid(self) -> bool {
        (1..=7).contains(&self.bits) && self.value >> self.bits == 0
    }
}

/// One data network: its interfaces and the UE addresses behind it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DnnConfig {
    /// Data network name (DNN), which N4 rules use as network instance.
    pub name: Dnn,
    /// Content of its sessions, `ip` or `ethernet`: the PDU session type (TS 23.501 §5.6.10).
    #[serde(default, rename = "type")]
    pub kind: Kind,
    /// Short form of an interface of role `n6` with the name of the data network: name of the TUN device that is
    /// created for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tun: String,
    /// The same with `ethernet`: name of the TAP device, which is created, or of a persistent one that exists.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tap: String,
    /// Names of its interfaces, in place of `tun` or `tap`. Packets from all of them are accepted; those to the data
    /// network leave through the first, unless rules name the network instance of another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// UE addresses; none with `ethernet`. The device gets the first host address, so the SMF must not assign
    /// that.
    #[serde(default)]
    pub ue_pool: UePool,
    /// Services of this machine or in networks of the core that UEs may use; by default none.
    #[serde(default)]
    pub open: Vec<Service>,
    /// Accept uplink packets of sessions whose rules name no UE address, although their sources cannot be
    /// checked.
    #[serde(default)]
    pub any_source: bool,
    /// Replace UE addresses by this machine's address on the way out (NAT).
    #[serde(default)]
    pub nat: bool,
    /// MTU of the device: the MTU of the N3 network less 44 octets for the tunnel (64 with IPv6), and less 14
    /// to 22 more with Ethernet frames.
    #[serde(default = "default_mtu")]
    pub mtu: u32,
}

/// A socket of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreSocket {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it speaks.
    pub transport: Transport,
}

/// Transport protocols of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Service-based interfaces and metrics.
    Tcp,
    /// N3 and N4.
    Udp,
    /// N2.
    Sctp,
}

impl Transport {
    fn protocol(self) -> u8 {
        match self {
            Self::Tcp => packet::protocol::TCP,
            Self::Udp => packet::protocol::UDP,
            Self::Sctp => packet::protocol::SCTP,
        }
    }
}

/// A service of this machine or of the core's networks that UEs may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Its address or network.
    #[serde(with = "address_or_network")]
    pub address: Cidr,
    /// Its protocol; by default any, or with a port any that has ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Its port; by default any except those of N3, N4 and SCTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Protocols of services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// ICMP and ICMPv6: pings.
    Icmp,
}

impl Service {
    /// Whether packets of this protocol to this address and port are for the service. Packets without a known
    /// port are not for a service with a port.
    pub fn admits(&self, to: IpAddr, protocol: u8, port: Option<u16>) -> bool {
        let within = Cidr::new(to, self.address.prefix()).is_some_and(|to| {
            to.address().is_ipv4() == self.address.address().is_ipv4()
                && to.network() == self.address.network()
        });
        let right = match self.protocol {
            Some(Protocol::Udp) => protocol == packet::protocol::UDP,
            Some(Protocol::Tcp) => protocol == packet::protocol::TCP,
            Some(Protocol::Icmp) => [packet::protocol::ICMP, packet::protocol::ICMPV6].contains(&protocol),
            None => true,
        };
        within && right && self.port.is_none_or(|wanted| port == Some(wanted))
    }

    /// Whether packets of UEs pass to this destination because of the service. A service without a port opens neither
    /// SCTP nor the UDP ports of the core, `core_ports`.
    pub(crate) fn opens(&self, to: IpAddr, protocol: u8, port: Option<u16>, core_ports: &[u16]) -> bool {
        let core = match protocol {
            packet::protocol::UDP => port.is_none_or(|port| core_ports.contains(&port)),
            packet::protocol::SCTP => true,
            _ => false,
        };
        self.admits(to, protocol, port) && (self.port.is_some() || !core)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = Cidr::host(self.address.address()) == self.address;
        match host {
            true => write!(f, "{}", self.address.address())?,
            false => write!(f, "{}", self.address)?,
        }
        match self.protocol {
            Some(Protocol::Udp) => f.write_str(" UDP")?,
            Some(Protocol::Tcp) => f.write_str(" TCP")?,
            Some(Protocol::Icmp) => f.write_str(" ICMP")?,
            None => {}
        }
        self.port.map_or(Ok(()), |port| write!(f, " port {port}"))
    }
}

/// An address (`10.45.0.1`) or a network (`10.200.0.0/24`) as text.
mod address_or_network {
    use std::net::IpAddr;

    use net::link::Cidr;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &Cidr, serializer: S) -> Result<S::Ok, S::Error> {
        value.to_string().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cidr, D::Error> {
        let text = String::deserialize(deserializer)?;
        let host = text.parse::<IpAddr>().ok().map(Cidr::host);
        host.map_or_else(|| text.parse().map_err(serde::de::Error::custom), Ok)
    }
}

/// UE addresses of a data network; at least one IP version for IP sessions.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UePool {
    /// IPv4 addresses.
    #[serde(default, with = "cidr")]
    pub ipv4: Option<Cidr>,
    /// IPv6 prefix; each session gets a /64 of it.
    #[serde(default, with = "cidr")]
    pub ipv6: Option<Cidr>,
}

fn default_max_tunnels() -> u32 {
    65_536
}

fn default_classifier() -> Backend {
    Backend::Auto
}

/// A classifier by its name.
mod backend {
    use classifier::Backend;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Backend, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(value.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Backend, D::Error> {
        // The error lists all names.
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

fn default_mtu() -> u32 {
    1400
}

/// An address pool as text, `10.45.0.0/16`.
mod cidr {
    use net::link::Cidr;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &Option<Cidr>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(|cidr| cidr.to_string()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cidr>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
    }
}

/// What is wrong with a configuration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// No data network.
    #[error("upf.dnn is empty: add at least one data network, {{name: internet, tun: gw0, ue_pool: …}}")]
    NoDnn,
    /// The same name or device is used twice.
    #[error("upf.dnn: {0} appears twice")]
    Twice(String),
    /// A pool without addresses, with an address of the wrong IP version, or with a prefix of unusable length.
    #[error("upf.dnn {dnn}: ue_pool {reason}")]
    Pool {
        /// Data network.
        dnn: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// MTU out of range.
    #[error("upf.dnn {dnn}: mtu {mtu} is not between {} and {}", MTU.start(), MTU.end())]
    Mtu {
        /// Data network.
        dnn: String,
        /// The MTU as given.
        mtu: u32,
    },
    /// A name that no device can have.
    #[error("upf.dnn {dnn}: {key}: {reason}")]
    Device {
        /// Data network.
        dnn: String,
        /// `tun` or `tap`.
        key: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// No interface with tunnels.
    #[error(
        "upf has no interface for gNBs: add `gtpu: ADDRESS:2152`, or an interface of role n3 to upf.interfaces"
    )]
    NoTunnels,
    /// More interfaces than there are numbers.
    #[error("upf has more than {MAX_INTERFACES} interfaces")]
    TooManyInterfaces,
    /// Several interfaces with one name, device or address.
    #[error("upf.interfaces: {0} appears twice")]
    InterfaceTwice(String),
    /// An invalid interface.
    #[error("{place}: {reason}")]
    Interface {
        /// The key that describes the interface.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A service with a port whose protocol has no ports.
    #[error("upf.dnn {dnn}: open: {service} has a port, which ICMP has not; leave one of them out")]
    Service {
        /// Data network.
        dnn: String,
        /// The service as given.
        service: String,
    },
    /// Numbers of workers or cores that cannot be.
    #[error("upf.workers: {0}")]
    Workers(String),
    /// Too few or too many tunnels.
    #[error("upf.max_tunnels must be between 1 and 1048576, not {0}")]
    MaxTunnels(u32),
    /// No range of TEIDs.
    #[error("upf.teid_range: `bits` must be 1 to 7, and `value` less than 2 to the power of `bits`")]
    TeidRange,
}

impl Config {
    /// Checks what the types do not ensure.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=1 << crate::tables::TEID_INDEX_BITS).contains(&self.max_tunnels) {
            return Err(ConfigError::MaxTunnels(self.max_tunnels));
        }
        if self.teid_range.is_some_and(|range| !range.is_valid()) {
            return Err(ConfigError::TeidRange);
        }
        self.workers.check().map_err(ConfigError::Workers)?;
        if self.dnn.is_empty() {
            return Err(ConfigError::NoDnn);
        }
        for (i, dnn) in self.dnn.iter().enumerate() {
            if self.dnn[..i].iter().any(|other| other.name == dnn.name) {
                return Err(ConfigError::Twice(dnn.name.to_string()));
            }
            let taken =
                |name: &String| self.dnn[..i].iter().any(|other| [&other.tun, &other.tap].contains(&name));
            if let Some(name) = [&dnn.tun, &dnn.tap].into_iter().find(|name| !name.is_empty() && taken(name))
            {
                return Err(ConfigError::Twice(name.clone()));
            }
            dnn.validate()?;
            self.check_interfaces_of(dnn)?;
        }
        if Interfaces::count(self) > MAX_INTERFACES {
            return Err(ConfigError::TooManyInterfaces);
        }
        let interfaces = Interfaces::of(self);
        if !interfaces.tunnels().any(|interface| interface.role() != Role::N4u) {
            return Err(ConfigError::NoTunnels);
        }
        if let Some(2..) = self.workers.count
            && let Some(own) = interfaces.iter().find(|own| own.config.link.has_one_queue())
        {
            let reason = format!("count must be 1 with {}, as a memif has one pair of rings", own.name());
            return Err(ConfigError::Workers(reason));
        }
        let configured: Vec<Configured> = interfaces.iter().map(|own| own.config.configured()).collect();
        for (i, interface) in interfaces.iter().enumerate() {
            let refuse = |reason| ConfigError::Interface { place: interface.place.clone(), reason };
            interface.config.check().map_err(refuse)?;
            if interface.role() == Role::N6 && interface.dnn.is_none() {
                let name = interface.name();
                return Err(refuse(format!("no data network has it: add `interfaces: [{name}]` to one")));
            }
            interfaces[..i].iter().try_for_each(|other| self.check_pair(other, interface))?;
            configured[i].check_beside(&configured[..i]).map_err(refuse)?;
        }
        Ok(())
    }

    /// Checks what two interfaces must not share.
    fn check_pair(&self, one: &Interface, other: &Interface) -> Result<(), ConfigError> {
        let (a, b) = (&one.config, &other.config);
        if a.name == b.name {
            return Err(ConfigError::InterfaceTwice(a.name.clone()));
        }
        // F-TEIDs have no port, so it cannot tell two interfaces apart.
        if a.link.gtpu.is_some() && one.local().ip() == other.local().ip() && b.link.gtpu.is_some() {
            return Err(ConfigError::InterfaceTwice(one.local().ip().to_string()));
        }
        let refuse = |reason| ConfigError::Interface { place: other.place.clone(), reason };
        let ipv4 = [one.local(), other.local()].map(|local| local.is_ipv4());
        if (a.role, one.instance, ipv4[0]) == (b.role, other.instance, ipv4[1]) && a.role.has_tunnels() {
            let version = if ipv4[0] { "IPv4" } else { "IPv6" };
            return Err(refuse(format!(
                "{} has role {}, the same network instance and {version} too, and would get all tunnels: give each its own \
                 `network_instance`",
                a.name, a.role
            )));
        }
        let (a, b) = (&a.link, &b.link);
        let same = !a.device_name().is_empty() && a.device_name() == b.device_name();
        if same && (a.backend == Access::Kernel || b.backend == Access::Kernel) {
            return Err(ConfigError::InterfaceTwice(a.device_name().to_owned()));
        }
        Ok(())
    }

    /// Checks the names of a data network's interfaces, and whether what it needs is there.
    fn check_interfaces_of(&self, dnn: &DnnConfig) -> Result<(), ConfigError> {
        let refuse = |key: &'static str, reason: String| {
            Err(ConfigError::Device { dnn: dnn.name.to_string(), key, reason })
        };
        for name in &dnn.interfaces {
            let Some(interface) = self.interfaces.iter().find(|interface| interface.name == *name) else {
                let known = self.interfaces.iter().filter(|interface| interface.role == Role::N6);
                let known: Vec<&str> = known.map(|interface| interface.name.as_str()).collect();
                let hint = match known.is_empty() {
                    true => "upf.interfaces has none of role n6".to_owned(),
                    false => format!("those of role n6 are {}", known.join(", ")),
                };
                return refuse("interfaces", format!("there is no interface `{name}`; {hint}"));
            };
            if interface.role != Role::N6 {
                let role = interface.role;
                return refuse(
                    "interfaces",
                    format!("`{name}` has the role {role}; a data network needs n6"),
                );
            }
            let users = self.dnn.iter().flat_map(|dnn| &dnn.interfaces).filter(|used| *used == name);
            if users.count() > 1 {
                return refuse("interfaces", format!("`{name}` is listed twice; it has one data network"));
            }
            if interface.link.backend != Access::Kernel && dnn.nat {
                let place = format!("upf.dnn {}: nat", dnn.name);
                let reason = format!(
                    "it is for the backend kernel; interface `{name}` has {}",
                    interface.link.backend
                );
                return Err(ConfigError::Interface { place, reason });
            }
            if dnn.kind == Kind::Ethernet
                && (interface.link.backend != Access::Kernel || dnn.interfaces.len() > 1)
            {
                return refuse(
                    "interfaces",
                    "`type: ethernet` has one interface, of the backend kernel".to_owned(),
                );
            }
        }
        Ok(())
    }
}

impl Config {
    /// The services of this machine and of the core's networks that UEs may use, one sentence for each.
    pub fn opened(&self) -> Vec<String> {
        let services = self.dnn.iter().flat_map(|dnn| dnn.open.iter().map(move |open| (dnn, open)));
        services.map(|(dnn, open)| format!("UEs of {} reach {open}", dnn.name)).collect()
    }

    /// Sockets of the core that a service opens to UEs, one sentence for each.
    pub fn exposed(&self) -> Vec<String> {
        let ports = self.core_ports();
        let interfaces = Interfaces::of(self);
        let own = interfaces.gtpu_addresses().chain([self.pfcp]);
        let own: Vec<_> = own.map(|address| CoreSocket { address, transport: Transport::Udp }).collect();
        let mut out = Vec::new();
        for (dnn, open) in self.dnn.iter().flat_map(|dnn| dnn.open.iter().map(move |open| (dnn, open))) {
            for CoreSocket { address, transport } in self.core.iter().chain(&own) {
                let (to, service) = (address.ip(), open.address.address());
                // One that listens on all addresses listens on that of the service.
                let everywhere = to.is_unspecified() && (to.is_ipv6() || service.is_ipv4());
                let to = if everywhere { service } else { to };
                let line = || format!("UEs of {} reach {address}, a socket of the core", dnn.name);
                if open.opens(to, transport.protocol(), Some(address.port()), &ports)
                    && !out.contains(&line())
                {
                    out.push(line());
                }
            }
        }
        out
    }

    /// UDP ports of the core, which only a service with that port opens.
    pub(crate) fn core_ports(&self) -> Vec<u16> {
        let fixed = [packet::gtpu::PORT, crate::n4::PFCP_PORT, net::sctp::UDP_ENCAPSULATION_PORT];
        let own = Interfaces::of(self)
            .gtpu_addresses()
            .chain([self.pfcp])
            .map(|own| own.port())
            .collect::<Vec<_>>();
        fixed.into_iter().chain(own).collect()
    }

    /// Networks that UEs must not reach, besides the addresses of this machine's interfaces.
    pub(crate) fn closed_networks(&self) -> impl Iterator<Item = Cidr> {
        let interfaces = Interfaces::of(self);
        let gtpu: Vec<IpAddr> = interfaces.gtpu_addresses().map(|own| own.ip()).collect();
        let named = gtpu.into_iter().chain([self.pfcp.ip()]);
        let named = named.chain(self.core.iter().map(|socket| socket.address.ip()));
        let hosts = named.chain(self.own_addresses()).filter(|address| !address.is_unspecified());
        hosts.map(Cidr::host).chain(self.closed.iter().copied())
    }

    /// The addresses that cannot be those of a gNB or another UPF, if this machine has `addresses`: its own ones,
    /// and the broadcast addresses of their networks. Loopback addresses are not among them: whether a gNB may have
    /// one depends on the interface (`n4::session`).
    pub(crate) fn local_far_ends<'a>(
        &'a self,
        addresses: &'a [Cidr],
    ) -> impl Iterator<Item = (IpAddr, Receiver)> + 'a {
        let interfaces = Interfaces::of(self);
        let gtpu: Vec<Cidr> = interfaces.gtpu_addresses().map(|own| Cidr::host(own.ip())).collect();
        // Those that the kernel does not know.
        let configured = || {
            self.interfaces.iter().filter(|own| own.role.has_tunnels()).flat_map(|own| &own.link.addresses)
        };
        let others = addresses.iter().filter(|other| !other.address().is_loopback());
        let local = gtpu.into_iter().chain(configured().copied()).chain(others.copied());
        let local = local.map(|own| (own.address(), Receiver::Local));
        let networks = configured().chain(addresses);
        let all = networks.flat_map(broadcasts).map(|broadcast| (broadcast.into(), Receiver::All));
        // Own addresses come last and so prevail.
        all.chain(local)
    }

    /// Where requests to the CP function with this address go; `None` if it may not have an association.
    pub fn smf_at(&self, address: IpAddr) -> Option<SocketAddr> {
        self.smf.iter().find_map(|smf| smf.request_address(address))
    }

    /// Addresses of the UPF that the kernel does not know.
    pub(crate) fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.interfaces.iter().flat_map(|interface| &interface.link.addresses).map(Cidr::address)
    }
}

impl DnnConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        if !self.interfaces.is_empty() && (!self.tun.is_empty() || !self.tap.is_empty()) {
            let key = if self.tun.is_empty() { "tap" } else { "tun" };
            let reason = "it is the short form of an interface; leave it out, or `interfaces`".to_owned();
            return Err(ConfigError::Device { dnn: self.name.to_string(), key, reason });
        }
        let odd = |service: &&Service| service.port.is_some() && service.protocol == Some(Protocol::Icmp);
        if let Some(service) = self.open.iter().find(odd) {
            return Err(ConfigError::Service { dnn: self.name.to_string(), service: service.to_string() });
        }
        if self.kind == Kind::Ethernet {
            return self.validate_ethernet();
        }
        let pool_error = |reason| ConfigError::Pool { dnn: self.name.to_string(), reason };
        if !self.tap.is_empty() {
            let reason = "it is for `type: ethernet`; packets need `tun`".to_owned();
            return Err(ConfigError::Device { dnn: self.name.to_string(), key: "tap", reason });
        }
        if !MTU.contains(&self.mtu) {
            return Err(ConfigError::Mtu { dnn: self.name.to_string(), mtu: self.mtu });
        }
        if self.interfaces.is_empty() {
            self.check_device("tun", &self.tun)?;
        }
        match (self.ue_pool.ipv4, self.ue_pool.ipv6) {
            (None, None) => return Err(pool_error("is empty: give ipv4, ipv6 or both")),
            (Some(pool), _) if !pool.address().is_ipv4() => {
                return Err(pool_error("ipv4 is not an IPv4 prefix"));
            }
            (Some(pool), _) if !(8..=30).contains(&pool.prefix()) => {
                return Err(pool_error("ipv4 must have a prefix length between 8 and 30"));
            }
            (_, Some(pool)) if !pool.address().is_ipv6() => {
                return Err(pool_error("ipv6 is not an IPv6 prefix"));
            }
            (_, Some(pool)) if !(40..=64).contains(&pool.prefix()) => {
                return Err(pool_error("ipv6 must have a prefix length between 40 and 64"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks a data network with Ethernet sessions: no UE addresses, as the UPF does not know them, and a TAP
    /// device.
    fn validate_ethernet(&self) -> Result<(), ConfigError> {
        let refuse = |key, reason: &str| {
            Err(ConfigError::Device { dnn: self.name.to_string(), key, reason: reason.to_owned() })
        };
        if self.nat || !self.tun.is_empty() {
            let key = if self.nat { "nat" } else { "tun" };
            return refuse(key, "leave it out with `type: ethernet`");
        }
        if self.ue_pool.ipv4.is_some() || self.ue_pool.ipv6.is_some() {
            return refuse("ue_pool", "sessions of `type: ethernet` have no UE addresses; leave it out");
        }
        if !ETHERNET_MTU.contains(&self.mtu) {
            let range = format!("must be between {} and {}", ETHERNET_MTU.start(), ETHERNET_MTU.end());
            return refuse("mtu", &range);
        }
        if self.interfaces.is_empty() { self.check_device("tap", &self.tap) } else { Ok(()) }
    }

    fn check_device(&self, key: &'static str, name: &str) -> Result<(), ConfigError> {
        pktio::tun::check_name(name).map_err(|error| ConfigError::Device {
            dnn: self.name.to_string(),
            key,
            reason: error.to_string(),
        })
    }

    /// The address of the TUN device in the IPv4 pool: the first host, with the pool's prefix length.
    pub fn gateway_v4(&self) -> Option<Cidr> {
        let pool = self.ue_pool.ipv4?.network();
        let IpAddr::V4(network) = pool.address() else { return None };
        Cidr::new(IpAddr::V4(Ipv4Addr::from_bits(network.to_bits() + 1)), pool.prefix())
    }

    /// The address of the TUN device in the IPv6 pool: the first address of the first /64, as a /128. A route
    /// covers the pool.
    pub fn gateway_v6(&self) -> Option<Cidr> {
        let pool = self.ue_pool.ipv6?.network();
        let IpAddr::V6(network) = pool.address() else { return None };
        Some(Cidr::host(IpAddr::V6(Ipv6Addr::from_bits(network.to_bits() + 1))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(line: &str) -> Result<Config, serde_json::Error> {
        serde_json::from_str(&format!(
            r#"{{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "dnn": []{line}}}"#
        ))
    }

    #[test]
    fn a_teid_range_has_one_to_seven_bits_and_fits_in_them() {
        for (bits, value, is_valid) in
            [(1, 1, true), (7, 127, true), (0, 0, false), (8, 0, false), (1, 2, false), (7, 128, false)]
        {
            let config = with(&format!(r#", "teid_range": {{"bits": {bits}, "value": {value}}}"#)).unwrap();
            let is_refused = matches!(config.validate(), Err(ConfigError::TeidRange));
            assert_eq!(is_refused, !is_valid, "{bits} bits, {value}");
        }
    }

    #[test]
    fn interfaces_are_checked_where_they_stand() {
        let check = |interfaces: &str, dnn: &str| {
            let text = format!(
                r#"{{"pfcp": "127.0.0.7:8805", {interfaces},
                     "dnn": [{{"name": "internet", "ue_pool": {{"ipv4": "10.45.0.0/16"}}, {dnn}}}]}}"#
            );
            serde_json::from_str::<Config>(&text).unwrap().validate().map_err(|error| error.to_string())
        };
        let list = |list: &[&str]| format!(r#""interfaces": [{}]"#, list.join(", "));
        let gtpu = r#""gtpu": "127.0.0.7:2152""#;
        let n3 = r#"{"name": "access", "role": "n3", "gtpu": "127.0.0.7:2152"}"#;
        let af_xdp = |name: &str, device: &str, more: &str| {
            format!(r#"{{"name": "{name}", "role": "n6", "backend": "af_xdp", "device": "{device}" {more}}}"#)
        };
        let (one, two) = (af_xdp("one", "eth1", ""), af_xdp("two", "eth2", ""));
        let on_eth1 = n3.replace('}', r#", "backend": "af_xdp", "device": "eth1"}"#);
        let vlans = [7, 8].map(|vlan| af_xdp(&format!("v{vlan}"), "eth1", &format!(r#", "vlan": {vlan}"#)));
        let memif = |name: &str, more: &str| {
            format!(
                r#"{{"name": "{name}", "role": "n6", "backend": "memif", "device": "{name},{more}",
                     "addresses": ["10.30.0.7/24"]}}"#
            )
        };
        let memif_n3 = |more: &str| {
            format!(
                r#"{{"name": "access", "role": "n3", "backend": "memif", "device": "a,socket=s",
                     "gtpu": "10.30.0.7:2152", "addresses": ["10.30.0.7/24"] {more}}}"#
            )
        };
        check(&list(&[&memif_n3(r#", "vlan": [4, 5]"#), &memif("a", "socket=s")]), r#""interfaces": ["a"]"#)
            .unwrap();
        check(&list(&[&vlans[0], &vlans[1], n3]), r#""interfaces": ["v7", "v8"]"#).unwrap();
        let clients = [memif("a", "socket=s"), memif("b", "socket=s,id=1")];
        check(&list(&[n3, &clients[0], &clients[1]]), r#""interfaces": ["a", "b"]"#).unwrap();
        check(gtpu, r#""tun": "gw0""#).unwrap();
        check(&list(&[n3]), r#""tun": "gw0", "nat": true"#).unwrap();
        check(&list(&[n3, &one, &two]), r#""interfaces": ["one", "two"]"#).unwrap();
        check(&format!("{gtpu}, {}", list(&[&one])), r#""interfaces": ["one"]"#).unwrap();
        for (interfaces, dnn, said) in [
            (gtpu.to_owned(), r#""mtu": 1400"#, "internet: tun"),
            (list(&[]), r#""tun": "gw0""#, "no interface for gNBs"),
            (r#""gtpu": "0.0.0.0:2152""#.to_owned(), r#""tun": "gw0""#, "upf.gtpu: gtpu must be an address"),
            (list(&[n3, &one]), r#""tun": "gw0""#, "upf.interfaces one: no data network has it"),
            (list(&[n3, &one]), r#""interfaces": ["on"]"#, "no interface `on`; those of role n6 are one"),
            (list(&[n3, &one]), r#""interfaces": ["access"]"#, "`access` has the role n3"),
            (list(&[n3, &one]), r#""interfaces": ["one", "one"]"#, "listed twice"),
            (list(&[n3, &one]), r#""interfaces": ["one"], "tun": "gw0""#, "tun: it is the short form"),
            (list(&[n3, &one]), r#""interfaces": ["one"], "nat": true"#, "nat: it is for the backend kernel"),
            (list(&[n3, &one, &one]), r#""interfaces": ["one"]"#, "upf.interfaces: one appears twice"),
            (
                list(&[n3, &af_xdp("a", "", "")]),
                r#""interfaces": ["a"]"#,
                "upf.interfaces a: the backend af_xdp",
            ),
            (
                list(&[n3, &one, &af_xdp("other", "eth1", "")]),
                r#""interfaces": ["one", "other"]"#,
                "upf.interfaces other: eth1 is the device of one too: frames to two data networks",
            ),
            (
                list(&[n3, &one, &af_xdp("other", "eth1", r#", "vlan": 7, "queues": 1"#)]),
                r#""interfaces": ["one", "other"]"#,
                "the same arguments, queues and busy_poll",
            ),
            (
                list(&[&memif_n3(""), &memif("a", "socket=s")]),
                r#""interfaces": ["a"]"#,
                "a is the device of access too and has 10.30.0.7 too: give each its own address, or vlan",
            ),
            (
                list(&[&on_eth1, &af_xdp("other", "eth1", r#", "addresses": ["127.0.0.7/8"]"#)]),
                r#""interfaces": ["other"]"#,
                "eth1 is the device of access too and has 127.0.0.7 too",
            ),
            (
                list(&[&on_eth1, &af_xdp("other", "eth1", r#", "gateways": ["127.0.0.8"]"#)]),
                r#""interfaces": ["other"]"#,
                "upf.interfaces other: gateways are for an interface with addresses of its own",
            ),
            (format!("{gtpu}, {}", list(&[n3])), r#""tun": "gw0""#, "127.0.0.7 appears twice"),
            (
                list(&[n3, r#"{"name": "more", "role": "n3", "gtpu": "127.0.0.8:2152"}"#]),
                r#""tun": "gw0""#,
                "upf.interfaces more: access has role n3, the same network instance and IPv4 too",
            ),
            (
                list(&[n3, &memif("a", "socket=s"), &memif("b", "socket=s")]),
                r#""interfaces": ["a", "b"]"#,
                "upf.interfaces b: s is the socket of a already: give it another id",
            ),
            (
                list(&[n3, &memif("a", "socket=s,role=server"), &memif("b", "socket=s,id=1")]),
                r#""interfaces": ["a", "b"]"#,
                "a socket of its own",
            ),
        ] {
            let error = check(&interfaces, dnn).unwrap_err();
            assert!(error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn interfaces_are_counted_once_whichever_form_they_have() {
        let config = |gtpu: bool, networks: usize, short: bool| {
            let gtpu = if gtpu { r#""gtpu": "127.0.0.7:2152","# } else { "" };
            let n3 = r#"{"name": "n3", "role": "n3", "gtpu": "127.0.0.8:2152"}"#.to_owned();
            let mut interfaces = if gtpu.is_empty() { vec![n3] } else { Vec::new() };
            let mut dnn = Vec::new();
            for number in 0..networks {
                let access = if short {
                    format!(r#""tun": "tun{number}""#)
                } else {
                    interfaces
                        .push(format!(r#"{{"name": "i{number}", "role": "n6", "device": "tun{number}"}}"#));
                    format!(r#""interfaces": ["i{number}"]"#)
                };
                dnn.push(format!(
                    r#"{{"name": "net{number}", "ue_pool": {{"ipv4": "10.0.0.0/16"}}, {access}}}"#
                ));
            }
            let (interfaces, dnn) = (interfaces.join(","), dnn.join(","));
            let text = format!(
                r#"{{"pfcp": "127.0.0.7:8805", {gtpu} "interfaces": [{interfaces}], "dnn": [{dnn}]}}"#
            );
            serde_json::from_str::<Config>(&text).unwrap().validate()
        };
        for short in [true, false] {
            for gtpu in [true, false] {
                assert_eq!(config(gtpu, 255, short), Ok(()), "{gtpu} {short}");
                assert_eq!(config(gtpu, 256, short), Err(ConfigError::TooManyInterfaces));
            }
        }
    }

    #[test]
    fn ethernet_networks_have_a_tap_device_and_no_addresses() {
        let check = |dnn: &str| {
            let text = format!(
                r#"{{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "dnn": [
                     {{"name": "internet", "tun": "gw0", "ue_pool": {{"ipv4": "10.45.0.0/16"}}}},
                     {{"name": "factory", {dnn}}}]}}"#
            );
            let config: Config = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            config.validate().map_err(|error| error.to_string()).map(|()| config)
        };
        let config = check(r#""type": "ethernet", "tap": "eth-n6", "mtu": 1500"#).unwrap();
        assert_eq!((config.dnn[0].kind, config.dnn[1].kind), (Kind::Ip, Kind::Ethernet));
        let again: Config = serde_json::from_value(serde_json::to_value(&config).unwrap()).unwrap();
        assert_eq!((again.dnn[1].kind, &*again.dnn[1].tap), (Kind::Ethernet, "eth-n6"));
        for (dnn, said) in [
            (r#""type": "frames", "tap": "e""#, "ethernet"),
            (r#""type": "ethernet""#, "factory: tap"),
            (r#""type": "ethernet", "tap": "gw0""#, "gw0 appears twice"),
            (r#""type": "ethernet", "tap": "e", "tun": "gw1""#, "factory: tun: leave it out"),
            (r#""type": "ethernet", "tap": "e", "nat": true"#, "factory: nat: leave it out"),
            (r#""type": "ethernet", "tap": "e", "ue_pool": {"ipv4": "10.0.0.0/8"}"#, "no UE addresses"),
            (r#""type": "ethernet", "tap": "e", "mtu": 9000"#, "mtu: must be between"),
            (r#""type": "ethernet", "tap": "e", "interfaces": ["x"]"#, "tap: it is the short form"),
            (r#""tap": "e", "tun": "gw1", "ue_pool": {"ipv4": "10.46.0.0/16"}"#, "type: ethernet"),
            (r#""tun": "gw1""#, "ue_pool is empty"),
        ] {
            let error = check(dnn).unwrap_err();
            assert!(error.contains(said), "{dnn}: {error}");
        }
    }

    #[test]
    fn a_classifier_goes_by_its_name_and_auto_is_the_default() {
        assert_eq!(with("").unwrap().classifier, Backend::Auto);
        for backend in Backend::ALL {
            let config = with(&format!(r#", "classifier": "{backend}""#)).unwrap();
            assert_eq!(config.classifier, *backend);
            assert_eq!(serde_json::to_value(config).unwrap()["classifier"], backend.name());
        }
        let error = with(r#", "classifier": "fastest""#).unwrap_err().to_string();
        assert!(error.contains("\"fastest\""), "{error}");
        assert!(Backend::ALL.iter().all(|backend| error.contains(backend.name())), "{error}");
    }
}
