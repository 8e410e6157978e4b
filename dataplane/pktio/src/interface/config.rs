//! The configuration of an interface: which device it is on, and what the link there is like.

use std::net::{IpAddr, SocketAddr};
use std::{fmt, io};

use net::link::Cidr;
use serde::{Deserialize, Serialize};

use crate::af_xdp::device::Device;
use crate::vlan::{Protocol, Tags};
use crate::{memif, tun};

/// Range of a link's MTU: IPv6 needs 1280, and packet buffers hold a little more than 9,000.
const MTU: std::ops::RangeInclusive<u16> = 1280..=9000;
/// MTU of a link that the kernel does not know, unless it is configured.
const DEFAULT_MTU: u16 = 1500;

/// Most interfaces on one device of `af_xdp`. The kernel limits the ways from a file to those who wait for it (fs/eventpoll.c): 50
/// have the length of those from an AF_XDP socket to a worker.
pub const MOST_ON_AF_XDP: usize = 50;

/// What passes through an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Tunnels of GTP-U, which end at the interface's own address.
    Tunnels,
    /// IP packets with addresses of others.
    Packets,
    /// Datagrams of UDP at the interface's own addresses, whose ports are bound later.
    Datagrams,
}

/// Access to an interface's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The kernel's network stack: a UDP socket for tunnels, a TUN or TAP device for packets.
    #[default]
    Kernel,
    /// AF_XDP on an interface that the kernel keeps using for all other packets.
    AfXdp,
    /// DPDK, on a device that no other program uses.
    Dpdk,
    /// Shared memory with another process, such as VPP.
    Memif,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Kernel => "kernel",
            Backend::AfXdp => "af_xdp",
            Backend::Dpdk => "dpdk",
            Backend::Memif => "memif",
        })
    }
}

/// How an interface's packets pass, and the link that they are on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Address and port of GTP-U, for an interface with tunnels. Peers are given this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gtpu: Option<SocketAddr>,
    /// Access to packets; by default through the kernel's sockets and devices.
    #[serde(default)]
    pub backend: Backend,
    /// `kernel`: name of the TUN or TAP device for packets. `af_xdp`: name of the network interface. `dpdk`: the device
    /// with its arguments, `net_af_packet0,iface=eth0`. `memif`: a name with arguments,
    /// `memif0,role=server,socket=/run/godwit/n3.sock` (docs/memif.md).
    #[serde(default)]
    pub device: Option<String>,
    /// VLAN of the frames, `100`, or an outer and an inner one, `[100, 200]` (QinQ). Interfaces with different VLANs, or with
    /// different addresses, may share a device.
    #[serde(default, with = "vlans")]
    pub vlan: Tags,
    /// Protocol of the tag, or of the outer one of two, in both directions: `802.1q` (the default for one), `802.1ad` (the
    /// default for two) or `0x9100`. The inner one of two is always of 802.1Q.
    #[serde(default, with = "protocols", skip_serializing_if = "Option::is_none")]
    pub vlan_protocol: Option<Protocol>,
    /// `af_xdp`: number of the interface's queues to serve, shared among the workers; by default all.
    #[serde(default)]
    pub queues: Option<u32>,
    /// `af_xdp`: workers poll the interface themselves instead of waiting for its interrupts.
    #[serde(default)]
    pub busy_poll: bool,
    /// `dpdk`, `memif`, `af_xdp`: addresses of this interface with their prefixes, `10.0.0.1/24`. The kernel does not know
    /// them: this program answers and asks for link-layer addresses itself. Without them an interface by `af_xdp` has the
    /// addresses, routes and neighbours that the kernel has for it, or for its VLAN device.
    #[serde(default, with = "texts")]
    pub addresses: Vec<Cidr>,
    /// With `addresses`: routers for all destinations outside the link, at most one per IP version.
    #[serde(default)]
    pub gateways: Vec<IpAddr>,
    /// With `addresses`: longest IP packet of the link; by default 1500, with `af_xdp` what the device takes. Otherwise the
    /// kernel's device has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
}

/// Start options of DPDK for all interfaces with that backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DpdkConfig {
    /// `true`: memory in huge pages, or DPDK does not start. `false`: ordinary pages. By default huge pages
    /// when enough are free.
    #[serde(default)]
    pub huge_pages: Option<bool>,
    /// Memory in MB; by default 512.
    #[serde(default)]
    pub memory_mb: Option<u32>,
    /// Core of DPDK's own thread, which is idle after the start; by default the first allowed core.
    #[serde(default)]
    pub core: Option<usize>,
    /// Further arguments of DPDK's environment (EAL), as its manual describes them.
    #[serde(default)]
    pub arguments: Vec<String>,
}

/// VLANs as a number or a list.
mod vlans {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::vlan::{MAX_ID, Tags};

    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number, or a list of an outer and an inner one")]
    enum Text {
        None,
        One(i64),
        Several(Vec<i64>),
    }

    pub fn serialize<S: Serializer>(value: &Tags, serializer: S) -> Result<S::Ok, S::Error> {
        match value.ids() {
            [] => serializer.serialize_none(),
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Tags, D::Error> {
        let ids = match Text::deserialize(deserializer)? {
            Text::None => Vec::new(),
            Text::One(one) => vec![one],
            Text::Several(several) => several,
        };
        let valid: Vec<u16> = ids.iter().filter_map(|id| u16::try_from(*id).ok()).collect();
        match Tags::new(&valid).filter(|_| valid.len() == ids.len()) {
            Some(tags) => Ok(tags),
            None => Err(serde::de::Error::custom(format!(
                "vlan must be between 1 and {MAX_ID}, or a list of two such numbers, not {ids:?}"
            ))),
        }
    }
}

/// The protocol of a VLAN tag by name or EtherType.
mod protocols {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::vlan::Protocol;

    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected 802.1q, 802.1ad or 0x9100")]
    enum Text {
        None,
        Number(u16),
        Name(String),
    }

    pub fn serialize<S: Serializer>(value: &Option<Protocol>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(protocol) => serializer.serialize_str(protocol.name()),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Protocol>, D::Error> {
        let refused = |what: String| {
            serde::de::Error::custom(format!("vlan_protocol must be 802.1q, 802.1ad or 0x9100, not {what}"))
        };
        match Text::deserialize(deserializer)? {
            Text::None => Ok(None),
            Text::Number(number) => match Protocol::of(number) {
                Some(protocol) => Ok(Some(protocol)),
                None => Err(refused(format!("{number:#06x}"))),
            },
            Text::Name(name) => name.parse().map(Some).map_err(|_| refused(format!("`{name}`"))),
        }
    }
}

/// Addresses with prefixes, in text form.
pub mod texts {
    use net::link::Cidr;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes the list.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &[Cidr], serializer: S) -> Result<S::Ok, S::Error> {
        value.iter().map(Cidr::to_string).collect::<Vec<_>>().serialize(serializer)
    }

    /// Reads the list.
    ///
    /// # Errors
    /// An entry is not an address with a prefix.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Cidr>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
    }
}

impl LinkConfig {
    /// Name of the device; empty for a backend that needs none.
    pub fn device(&self) -> &str {
        self.device.as_deref().unwrap_or_default()
    }

    /// The tags of its frames.
    pub fn tags(&self) -> Tags {
        self.vlan_protocol.map_or(self.vlan, |protocol| self.vlan.with_protocol(protocol))
    }

    /// Whether this program resolves the interface's neighbours, as the kernel does not know its addresses.
    pub fn has_own_addresses(&self) -> bool {
        match self.backend {
            Backend::Kernel => false,
            Backend::AfXdp => !self.addresses.is_empty(),
            Backend::Dpdk | Backend::Memif => true,
        }
    }

    /// Longest IP packet by AF_XDP on `device`: that of the kernel's device with the interface's addresses, or the
    /// configured one.
    ///
    /// # Errors
    /// There is no device for its VLAN, or a configured MTU is more than the device has.
    pub fn mtu_on(&self, device: &Device) -> io::Result<usize> {
        if !self.has_own_addresses() {
            return Ok(device.with_tags(self.tags())?.mtu.min(device.mtu));
        }
        match self.mtu.map(usize::from) {
            Some(mtu) if mtu > device.mtu => {
                let (name, most) = (&device.name, device.mtu);
                let reason = format!("mtu is {mtu}, but {name} has {most}: ip link set {name} mtu {mtu}");
                Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
            }
            Some(mtu) => Ok(mtu),
            None => Ok(device.mtu),
        }
    }

    /// MTU of a link on a device that the kernel does not know.
    pub fn link_mtu(&self) -> u16 {
        self.mtu.unwrap_or(DEFAULT_MTU)
    }

    /// The settings of a memif for so many workers. No file is read.
    pub fn memif(&self, queues: u16) -> Result<memif::Settings, memif::SettingsError> {
        memif::Settings::parse(self.device(), queues, self.link_mtu())
    }

    /// The device without its arguments, for a person.
    pub fn device_name(&self) -> &str {
        self.device().split(',').next().unwrap_or_default()
    }

    /// Whether its device has one pair of queues, so that one worker serves it. How many rings a memif has is up to its peer,
    /// each time that it connects.
    pub fn has_one_queue(&self) -> bool {
        self.backend == Backend::Memif
            || self.backend == Backend::Dpdk && self.device().starts_with("net_memif")
    }

    /// Checks the section of an interface with this content; the error is text for a person. `what` is the interface in
    /// the error: "role n3".
    ///
    /// # Errors
    /// What does not fit, and what would.
    pub fn check(&self, what: &str, content: Content) -> Result<(), String> {
        let (backend, tunnels) = (self.backend, content == Content::Tunnels);
        match self.gtpu {
            None if tunnels => {
                return Err(format!("{what} needs `gtpu: ADDRESS:2152`, the address of its tunnels"));
            }
            Some(_) if !tunnels => return Err(format!("{what} has no tunnels; leave out gtpu")),
            Some(gtpu) if gtpu.ip().is_unspecified() => {
                return Err(format!(
                    "gtpu must be an address that peers reach, not {}: it is sent to them as tunnel endpoint",
                    gtpu.ip()
                ));
            }
            _ => {}
        }
        let has = |set: bool, key: &str, hint: &str| match set {
            true => Err(format!("{key} means nothing to the backend {backend}; {hint}")),
            false => Ok(()),
        };
        if self.vlan_protocol.is_some() && self.vlan.is_empty() {
            return Err("vlan_protocol is that of a tag: add `vlan: NUMBER`, or leave it out".into());
        }
        match backend {
            Backend::Kernel => {
                let hint = "leave it out, or choose `backend: af_xdp`, `dpdk` or `memif`";
                has(self.device.is_some() && content != Content::Packets, "device", hint)?;
                has(!self.vlan.is_empty(), "vlan", hint)?;
                has(!self.addresses.is_empty(), "addresses", "the kernel's addresses and routes count")?;
                if content == Content::Packets && self.device().is_empty() {
                    return Err(format!("{what} needs a device, such as `device: gw0`"));
                } else if content == Content::Packets {
                    tun::check_name(self.device()).map_err(|error| error.to_string())?;
                }
            }
            _ if self.device().is_empty() => {
                let example = match backend {
                    Backend::Kernel | Backend::AfXdp => "eth0",
                    Backend::Dpdk => "\"0000:01:00.0\"",
                    Backend::Memif => "\"memif0,role=server,socket=/run/godwit/n3.sock\"",
                };
                return Err(format!("the backend {backend} needs a device, such as `device: {example}`"));
            }
            Backend::AfXdp if content == Content::Datagrams && self.addresses.is_empty() => {
                return Err("datagrams need addresses of their own, `addresses: [10.0.0.1/24]`: ports are bound later, \
                            and the kernel could not be told which are taken from it"
                    .into());
            }
            Backend::AfXdp => {
                tun::check_name(self.device()).map_err(|error| error.to_string())?;
                if self.vlan_protocol == Some(Protocol::Old) && self.addresses.is_empty() {
                    return Err(
                        "the kernel has no devices for VLANs of 0x9100: give the interface addresses of its \
                                own, `addresses: [10.0.0.1/24]`"
                            .into(),
                    );
                }
            }
            Backend::Dpdk | Backend::Memif if self.addresses.is_empty() => {
                return Err(format!(
                    "the backend {backend} needs addresses, such as `addresses: [10.0.0.1/24]`"
                ));
            }
            Backend::Dpdk => {}
            Backend::Memif => {
                // One pair of rings at least; more workers may need more memory than is allowed.
                self.memif(1).map_err(|error| format!("device: {error}"))?;
            }
        }
        if self.has_own_addresses() {
            self.check_own_addresses()?;
        } else {
            let own = "for an interface with addresses of its own";
            if !self.gateways.is_empty() {
                return Err(format!("gateways are {own} (`addresses`); without, the kernel's routes count"));
            }
            if self.mtu.is_some() {
                return Err(format!(
                    "mtu is {own} (`addresses`); without, that of the kernel's device counts"
                ));
            }
        }
        if backend != Backend::AfXdp {
            has(self.busy_poll, "busy_poll", "it is for af_xdp")?;
            has(self.queues.is_some(), "queues", "it is for af_xdp")?;
        }
        if self.queues == Some(0) {
            return Err("queues must be at least 1".into());
        }
        Ok(())
    }

    /// Checks addresses, routers and MTU of an interface whose addresses the kernel does not know.
    fn check_own_addresses(&self) -> Result<(), String> {
        if let Some(gtpu) =
            self.gtpu.filter(|gtpu| !self.addresses.iter().any(|own| own.address() == gtpu.ip()))
        {
            return Err(format!("addresses lack {}, the address of gtpu", gtpu.ip()));
        }
        if let Some(mtu) = self.mtu.filter(|mtu| !MTU.contains(mtu)) {
            return Err(format!("mtu {mtu} is not between {} and {}", MTU.start(), MTU.end()));
        }
        for (number, gateway) in self.gateways.iter().enumerate() {
            let same_family = |other: &IpAddr| other.is_ipv4() == gateway.is_ipv4();
            if self.gateways[..number].iter().any(same_family) {
                return Err(format!("gateways: {gateway} is the second of its family"));
            }
            let network = |own: &Cidr| Cidr::new(*gateway, own.prefix()).map(|cidr| cidr.network());
            let on_link = |own: &Cidr| same_family(&own.address()) && network(own) == Some(own.network());
            if !self.addresses.iter().any(on_link) {
                return Err(format!("gateways: {gateway} is on the link of none of the addresses"));
            }
        }
        Ok(())
    }
}

/// An interface of a configuration, to be checked beside others.
#[derive(Clone, Copy, Debug)]
pub struct Configured<'a> {
    /// Its name, for messages.
    pub name: &'a str,
    /// What passes through it.
    pub content: Content,
    /// Its section.
    pub link: &'a LinkConfig,
}

impl Configured<'_> {
    /// Checks that the interface can be served together with all those before it.
    ///
    /// # Errors
    /// What two of them cannot share, and what to do.
    pub fn check_beside(&self, before: &[Configured<'_>]) -> Result<(), String> {
        before.iter().try_for_each(|other| self.check_pair(other))?;
        let (backend, device) = (self.link.backend, self.link.device());
        let same = |other: &&Configured| (other.link.backend, other.link.device()) == (backend, device);
        if backend == Backend::AfXdp && before.iter().filter(same).count() >= MOST_ON_AF_XDP {
            return Err(format!(
                "{device} has {MOST_ON_AF_XDP} interfaces already, the most that af_xdp serves on a device"
            ));
        }
        Ok(())
    }

    fn check_pair(&self, other: &Configured<'_>) -> Result<(), String> {
        let (own, others) = (self.link, other.link);
        if own.device_name().is_empty() || own.device_name() != others.device_name() {
            return self.check_sockets(other);
        }
        let shared = format!("{} is the device of {} too", own.device_name(), other.name);
        if own.backend != others.backend {
            return Err(format!("{shared}, with the backend {}: give both the same one", others.backend));
        }
        if own.backend == Backend::Kernel {
            return Err(format!("{shared}: give each its own"));
        }
        self.check_shared(other, &shared)
    }

    /// Checks that one device can serve both interfaces: its frames are told apart by VLAN, or by address.
    fn check_shared(&self, other: &Configured<'_>, shared: &str) -> Result<(), String> {
        let (own, others) = (self.link, other.link);
        if (own.device(), own.queues, own.busy_poll) != (others.device(), others.queues, others.busy_poll) {
            return Err(format!("{shared}: give both the same arguments, queues and busy_poll"));
        }
        if own.tags() != others.tags() {
            return Ok(());
        }
        if [self.content, other.content] == [Content::Packets; 2] {
            return Err(format!(
                "{shared}: frames to two data networks can only be told apart by `vlan`: give each its own"
            ));
        }
        let addresses = |of: &LinkConfig| -> Vec<IpAddr> {
            of.addresses.iter().map(Cidr::address).chain(of.gtpu.map(|gtpu| gtpu.ip())).collect()
        };
        let taken = addresses(others);
        match addresses(own).into_iter().find(|own| taken.contains(own)) {
            Some(own) => Err(format!("{shared} and has {own} too: give each its own address, or vlan")),
            None => Ok(()),
        }
    }

    /// Checks that two memifs do not meet at one socket: a server there has one interface. Clients may share a socket by
    /// different numbers, as other servers have several interfaces.
    fn check_sockets(&self, other: &Configured<'_>) -> Result<(), String> {
        if [self.link.backend, other.link.backend] != [Backend::Memif; 2] {
            return Ok(());
        }
        let (Ok(own), Ok(others)) = (self.link.memif(1), other.link.memif(1)) else { return Ok(()) };
        let clients = [own.role, others.role] == [memif::Role::Client; 2];
        if own.socket != others.socket || (clients && own.id != others.id) {
            return Ok(());
        }
        let hint = if clients { "another id" } else { "a socket of its own" };
        Err(format!("{} is the socket of {} already: give it {hint}", others.socket.display(), other.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checked section. Those of tunnels begin with `T`.
    fn parse(text: &str) -> Result<LinkConfig, String> {
        let (what, content, text) = match text.strip_prefix('T') {
            Some(text) => ("role n3", Content::Tunnels, text),
            None => ("role n6", Content::Packets, text),
        };
        let config: LinkConfig = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check(what, content)?;
        Ok(config)
    }

    #[test]
    fn the_kernel_is_the_default_and_the_others_need_a_device() {
        let n3 = parse(r#"T{"gtpu": "10.0.0.1:2152"}"#).unwrap();
        assert_eq!(n3.backend, Backend::Kernel);
        assert_eq!(parse(r#"{"device": "gw0"}"#).unwrap().device(), "gw0");
        let af_xdp = parse(r#"{"backend": "af_xdp", "device": "eth0", "vlan": 7, "queues": 2}"#).unwrap();
        assert_eq!((af_xdp.backend, af_xdp.device(), af_xdp.vlan.ids()), (Backend::AfXdp, "eth0", &[7][..]));
        for (vlan, ids) in [("null", &[][..]), ("4094", &[4094]), ("[7]", &[7]), ("[100, 200]", &[100, 200])]
        {
            let text = format!(r#"{{"backend": "af_xdp", "device": "eth0", "vlan": {vlan}}}"#);
            let parsed = parse(&text).unwrap();
            assert_eq!(parsed.vlan.ids(), ids);
            let again = serde_json::from_value(serde_json::to_value(&parsed).unwrap());
            assert_eq!(parsed, again.unwrap());
        }
        for (own, octets) in [
            (r#""vlan": 7"#, &[0x81, 0, 0, 7][..]),
            (r#""vlan": 7, "vlan_protocol": "802.1AD""#, &[0x88, 0xA8, 0, 7]),
            (r#""vlan": [7, 8], "vlan_protocol": "0x8100""#, &[0x81, 0, 0, 7, 0x81, 0, 0, 8]),
            (r#""vlan": [7, 8], "vlan_protocol": 37120"#, &[0x91, 0, 0, 7, 0x81, 0, 0, 8]),
            (r#""vlan": [7, 8]"#, &[0x88, 0xA8, 0, 7, 0x81, 0, 0, 8]),
        ] {
            let text = format!(
                r#"{{"backend": "af_xdp", "device": "eth0", "addresses": ["10.0.0.1/24", "fd00::1/64"],
                     "gateways": ["fd00::9"], "mtu": 1400, {own}}}"#
            );
            let parsed = parse(&text).unwrap();
            assert_eq!(parsed.tags().octets(), octets);
            assert!(parsed.has_own_addresses() && !af_xdp.has_own_addresses());
            let again = serde_json::from_value(serde_json::to_value(&parsed).unwrap());
            assert_eq!(parsed, again.unwrap());
        }
        let dpdk = parse(
            r#"{"backend": "dpdk", "device": "net_memif0", "addresses": ["10.0.0.1/24"], "gateways": ["10.0.0.9"]}"#,
        )
        .unwrap();
        assert_eq!(dpdk.addresses, ["10.0.0.1/24".parse().unwrap()]);
        let shared = parse(
            r#"{"backend": "memif", "device": "m0,role=master,socket=/run/m.sock,id=2,rsize=9", "mtu": 1600,
                "addresses": ["10.0.0.1/24"]}"#,
        )
        .unwrap();
        let settings = shared.memif(2).unwrap();
        assert_eq!((shared.device_name(), settings.id, settings.log2_size), ("m0", 2, 9));
        assert_eq!((settings.role, settings.queues, settings.mtu), (memif::Role::Server, 2, 1600));
        for config in [dpdk, shared] {
            let again: LinkConfig = serde_json::from_value(serde_json::to_value(&config).unwrap()).unwrap();
            assert_eq!(again, config);
        }
    }

    #[test]
    fn what_does_not_fit_is_said_with_what_would() {
        for (text, said) in [
            (r#"{"backend": "xdp"}"#, "kernel"),
            (r#"{"backend": "af_xdp"}"#, "device: eth0"),
            (r#"{"backend": "af_xdp", "device": "no such name"}"#, "interface name"),
            (r#"{"backend": "af_xdp", "device": "e", "vlan": 4095}"#, "4094"),
            (r#"{"backend": "af_xdp", "device": "e", "queues": 0}"#, "at least 1"),
            (r#"{"device": "gw0", "addresses": ["10.0.0.1/24"]}"#, "kernel's addresses"),
            (r#"{"backend": "af_xdp", "device": "e", "gateways": ["10.0.0.9"]}"#, "(`addresses`)"),
            (
                r#"{"backend": "af_xdp", "device": "e", "addresses": ["10.0.0.1/24"], "gateways": ["10.0.1.9"]}"#,
                "on the link of none",
            ),
            (
                r#"T{"backend": "af_xdp", "device": "e", "addresses": ["10.0.0.1/24"],
                    "gtpu": "10.0.0.2:2152"}"#,
                "addresses lack 10.0.0.2",
            ),
            (r#"{"backend": "af_xdp", "device": "e", "vlan_protocol": "802.1ad"}"#, "add `vlan: NUMBER`"),
            (
                r#"{"backend": "af_xdp", "device": "e", "vlan": 7, "vlan_protocol": "802.1x"}"#,
                "802.1ad or 0x9100",
            ),
            (r#"{"backend": "af_xdp", "device": "e", "vlan": 7, "vlan_protocol": 2048}"#, "not 0x0800"),
            (
                r#"{"backend": "af_xdp", "device": "e", "vlan": [7, 8], "vlan_protocol": 37120}"#,
                "addresses of its own",
            ),
            (r#"{"backend": "dpdk", "device": "net_null0"}"#, "addresses: ["),
            (
                r#"{"backend": "memif", "addresses": ["10.0.0.1/24"]}"#,
                "role=server,socket=/run/godwit/n3.sock",
            ),
            (r#"{"backend": "memif", "device": "m0,socket=s"}"#, "the backend memif needs addresses"),
            (
                r#"{"backend": "memif", "device": "m0,role=server", "addresses": ["10.0.0.1/24"]}"#,
                "device: a memif needs the path of a socket",
            ),
            (
                r#"{"backend": "memif", "device": "m0,socket=s,role=chief", "addresses": ["10.0.0.1/24"]}"#,
                "server or client",
            ),
            (
                r#"{"backend": "memif", "device": "m0,socket=s", "addresses": ["10.0.0.1/24"], "queues": 2}"#,
                "for af_xdp",
            ),
            (r#"{"backend": "dpdk", "device": "d", "addresses": ["10.0.0.1"]}"#, "10.45.0.0/16"),
            (
                r#"{"backend": "dpdk", "device": "d", "addresses": ["10.0.0.1/24"], "mtu": 9001}"#,
                "1280 and 9000",
            ),
            (
                r#"{"backend": "dpdk", "device": "d", "addresses": ["10.0.0.1/24"], "queues": 2}"#,
                "for af_xdp",
            ),
            (
                r#"{"backend": "dpdk", "device": "d", "addresses": ["10.0.0.1/24"], "gateways": ["10.0.1.9"]}"#,
                "10.0.1.9 is on the link of none",
            ),
            (
                r#"{"backend": "dpdk", "device": "d", "addresses": ["10.0.0.1/24"],
                    "gateways": ["10.0.0.8", "10.0.0.9"]}"#,
                "10.0.0.9 is the second",
            ),
            (r#"{"backend": "af_xdp", "device": "e", "mtu": 1500}"#, "kernel's device counts"),
            (r#"T{"gtpu": "10.0.0.1:2152", "device": "eth0"}"#, "backend: af_xdp"),
            (r#"{"device": "gw0", "busy_poll": true}"#, "af_xdp"),
            (r#"{"device": "gw0", "gtpu": "10.0.0.1:2152"}"#, "no tunnels"),
            (r#"T{}"#, "needs `gtpu:"),
            (r#"T{"gtpu": "0.0.0.0:2152"}"#, "an address that peers reach, not 0.0.0.0"),
            (r#"{}"#, "device"),
            (
                r#"T{"backend": "dpdk", "device": "d", "addresses": ["10.0.0.1/24"],
                    "gtpu": "10.0.0.2:2152"}"#,
                "addresses lack 10.0.0.2",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
