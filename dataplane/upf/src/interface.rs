//! The section `upf.interfaces`: interfaces by name, each with its role and the way in which its packets pass.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use net::link::Cidr;
pub use pktio::interface::Backend;
use pktio::interface::{Configured, Content, LinkConfig};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The reference point of an interface (TS 23.501 §4.2.7), which says how its packets are parsed.
///
/// In a network instance that has no interface of the role that a tunnel needs, another one serves: tunnels of other UPFs
/// go by N3, those of gNBs by N9, those of the SMF by N3, else N9. Packets of a data network always need N6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Tunnels of gNBs.
    N3,
    /// Tunnels of other UPFs.
    N9,
    /// Tunnels of the SMF, for packets that it answers itself (TS 29.244 §5.3).
    N4u,
    /// Packets of a data network, without tunnel.
    N6,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::N3, Role::N9, Role::N4u, Role::N6];

    /// Whether packets pass in GTP-U tunnels.
    pub fn has_tunnels(self) -> bool {
        self != Role::N6
    }

    /// What passes through an interface with this role.
    pub fn content(self) -> Content {
        if self.has_tunnels() { Content::Tunnels } else { Content::Packets }
    }

    /// The name as the configuration has it.
    pub fn name(self) -> &'static str {
        match self {
            Role::N3 => "n3",
            Role::N9 => "n9",
            Role::N4u => "n4u",
            Role::N6 => "n6",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InterfaceConfig {
    /// Name, by which data networks and counters refer to it.
    pub name: String,
    /// Reference point.
    pub role: Role,
    /// Network instance (TS 29.244 §8.2.4). By default the name of the data network; an interface with tunnels has
    /// none by default, and then takes the tunnels of every network instance that no other interface has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_instance: Option<String>,
    /// How its packets pass: further keys of the same section.
    #[serde(flatten)]
    pub link: LinkConfig,
}

impl InterfaceConfig {
    /// An interface on the kernel's sockets and devices.
    pub fn kernel(name: &str, role: Role) -> InterfaceConfig {
        InterfaceConfig {
            name: name.to_owned(),
            role,
            network_instance: None,
            link: LinkConfig { backend: Backend::Kernel, ..LinkConfig::default() },
        }
    }

    /// The interface as a check beside others sees it.
    pub fn configured(&self) -> Configured<'_> {
        Configured { name: &self.name, content: self.role.content(), link: &self.link }
    }

    /// Checks the section; the error is text for a person.
    pub fn check(&self) -> Result<(), String> {
        self.link.check(&format!("role {}", self.role), self.role.content())
    }
}

/// The keys of a section.
const KEYS: &[&str] = &[
    "name",
    "role",
    "network_instance",
    "gtpu",
    "backend",
    "device",
    "vlan",
    "vlan_protocol",
    "queues",
    "busy_poll",
    "addresses",
    "gateways",
    "mtu",
];

/// Reads the keys one by one as their types say, so that an error names its key and line. Serde's `flatten` first reads all
/// of them without their types.
impl<'de> Deserialize<'de> for InterfaceConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<InterfaceConfig, D::Error> {
        deserializer.deserialize_struct("InterfaceConfig", KEYS, Section)
    }
}

struct Section;

impl<'de> Visitor<'de> for Section {
    type Value = InterfaceConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an interface with its name and role")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<InterfaceConfig, A::Error> {
        let mut own = Own::default();
        let link = LinkConfig::deserialize(MapAccessDeserializer::new(LinkKeys { map, own: &mut own }))?;
        Ok(InterfaceConfig {
            name: own.name.ok_or_else(|| A::Error::missing_field("name"))?,
            role: own.role.ok_or_else(|| A::Error::missing_field("role"))?,
            network_instance: own.network_instance,
            link,
        })
    }
}

/// The keys of a section that are not its link's.
#[derive(Default)]
struct Own {
    name: Option<String>,
    role: Option<Role>,
    network_instance: Option<String>,
}

/// The keys of the link; keeps the others.
struct LinkKeys<'a, A> {
    map: A,
    own: &'a mut Own,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for LinkKeys<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.map.next_key::<String>()? {
            match key.as_str() {
                "name" => self.own.name = Some(self.map.next_value()?),
                "role" => self.own.role = Some(self.map.next_value()?),
                "network_instance" => self.own.network_instance = self.map.next_value()?,
                link if KEYS.contains(&link) => return seed.deserialize(link.into_deserializer()).map(Some),
                unknown => return Err(A::Error::unknown_field(unknown, KEYS)),
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// The broadcast addresses of the IPv4 network of an interface's address: all host bits one (RFC 919), and all
/// zero, which older systems use (RFC 1122 §3.3.6). Networks of one or two hosts have none (RFC 3021).
pub(crate) fn broadcasts(own: &Cidr) -> impl Iterator<Item = Ipv4Addr> + use<> {
    let broadcasts = match (own.network().address(), own.prefix()) {
        (IpAddr::V4(network), prefix @ 0..=30) => {
            let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
            Some([network, Ipv4Addr::from_bits(network.to_bits() | hosts)])
        }
        _ => None,
    };
    broadcasts.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<InterfaceConfig, String> {
        let config: InterfaceConfig = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn a_section_has_the_keys_of_its_role_and_of_its_link() {
        let text = r#"{"backend": "dpdk", "name": "access", "device": "net_memif0", "addresses": ["10.0.0.1/24"],
            "role": "n3", "mtu": 1600, "network_instance": "ran", "gtpu": "10.0.0.1:2152"}"#;
        let n3 = parse(text).unwrap();
        assert_eq!(
            (n3.name.as_str(), n3.role, n3.network_instance.as_deref()),
            ("access", Role::N3, Some("ran"))
        );
        assert_eq!(
            (n3.link.backend, n3.link.device(), n3.link.mtu),
            (Backend::Dpdk, "net_memif0", Some(1600))
        );
        let again = serde_json::from_value(serde_json::to_value(&n3).unwrap());
        assert_eq!(n3, again.unwrap());
        let n6 =
            parse(r#"{"name": "core", "role": "n6", "network_instance": null, "device": "gw0"}"#).unwrap();
        assert_eq!(n6.link, LinkConfig { device: Some("gw0".into()), ..LinkConfig::default() });
        for (text, said) in [
            (r#"{"name": "core", "device": "gw0"}"#, "missing field `role`"),
            (r#"{"role": "n6", "device": "gw0"}"#, "missing field `name`"),
            (r#"{"name": "core", "role": "n7", "device": "gw0"}"#, "n4u"),
            (
                r#"{"name": "core", "role": "n6", "devices": "gw0"}"#,
                "unknown field `devices`, expected one of `name`",
            ),
            (r#"{"name": "core", "role": "n6", "mtu": "many"}"#, "u16"),
            (r#"{"name": "core", "role": "n6"}"#, "role n6 needs a device"),
            (r#"{"name": "core", "role": "n9"}"#, "role n9 needs `gtpu:"),
            (
                r#"{"name": "core", "role": "n6", "device": "gw0", "gtpu": "10.0.0.1:2152"}"#,
                "role n6 has no tunnels",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    /// The list of keys is written twice: here, and as fields of the link.
    #[test]
    fn every_key_of_a_link_is_a_key_of_a_section() {
        let error = serde_json::from_str::<LinkConfig>(r#"{"x": 1}"#).unwrap_err().to_string();
        let known: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        assert_eq!(known, KEYS[3..]);
    }
}
