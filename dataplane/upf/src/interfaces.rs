//! The interfaces of a configuration, as everything behind the configuration sees them: a list without the short
//! forms. The number of an interface is its position in this list.
//!
//! A *network instance* is a routing domain (TS 29.244 §8.2.4). Interfaces of one network instance share look-up
//! tables; those of different instances share none, so that a UE address can exist in several, and a TEID of one is
//! unknown in the others.

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

use crate::config::{Config, DnnConfig};
use crate::interface::{InterfaceConfig, Role};

/// Most interfaces: their numbers have 8 bits.
pub use path::outputs::MAX_INTERFACES;

/// One interface.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Its section, or what the short form stands for.
    pub config: InterfaceConfig,
    /// The key of the configuration that describes it, for messages.
    pub place: String,
    /// Its data network; only with [`Role::N6`].
    pub dnn: Option<Arc<DnnConfig>>,
    /// Number of its network instance.
    pub instance: u8,
}

impl Interface {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Its role.
    pub fn role(&self) -> Role {
        self.config.role
    }

    /// Address and port of its GTP-U. An interface without tunnels has the unspecified address.
    pub fn local(&self) -> SocketAddr {
        self.config.gtpu.unwrap_or(SocketAddr::from(([0; 4], 0)))
    }

    /// The name of its network instance: that of the section, else that of the data network.
    pub fn network_instance(&self) -> Option<String> {
        let own = self.config.network_instance.clone();
        own.or_else(|| self.dnn.as_ref().map(|dnn| dnn.name.to_string()))
    }
}

/// All interfaces of a UPF.
#[derive(Debug, Clone, Default)]
pub struct Interfaces {
    list: Vec<Interface>,
}

impl Deref for Interfaces {
    type Target = [Interface];

    fn deref(&self) -> &[Interface] {
        &self.list
    }
}

impl Interfaces {
    /// The interfaces of a configuration. This is the one place that knows the short forms: `gtpu: ADDRESS` is an
    /// interface `n3` on a socket of the kernel; `tun: NAME` or `tap: NAME` of a data network is an interface with the
    /// network's name on that device.
    pub fn of(config: &Config) -> Interfaces {
        let mut list: Vec<Interface> = Vec::new();
        let mut add = |config: InterfaceConfig, place: String, dnn: Option<&DnnConfig>| {
            list.push(Interface { config, place, dnn: dnn.map(|dnn| Arc::new(dnn.clone())), instance: 0 });
        };
        if config.gtpu.is_some() {
            let n3 = InterfaceConfig { gtpu: config.gtpu, ..InterfaceConfig::kernel("n3", Role::N3) };
            add(n3, "upf.gtpu".to_owned(), None);
        }
        for dnn in &config.dnn {
            for (key, device) in [("tun", &dnn.tun), ("tap", &dnn.tap)] {
                if !device.is_empty() {
                    let name = dnn.name.to_string();
                    let n6 = InterfaceConfig {
                        device: Some(device.clone()),
                        ..InterfaceConfig::kernel(&name, Role::N6)
                    };
                    add(n6, format!("upf.dnn {name}: {key}"), Some(dnn));
                }
            }
        }
        for interface in &config.interfaces {
            let named = |dnn: &&DnnConfig| dnn.interfaces.contains(&interface.name);
            let dnn = config.dnn.iter().find(named).filter(|_| interface.role == Role::N6);
            add(interface.clone(), format!("upf.interfaces {}", interface.name), dnn);
        }
        list.truncate(MAX_INTERFACES);
        let mut instances: Vec<Option<String>> = Vec::new();
        for interface in &mut list {
            let name = interface.network_instance().map(|name| name.to_ascii_lowercase());
            let known = instances.iter().position(|known| *known == name);
            interface.instance = known.unwrap_or(instances.len()) as u8;
            if known.is_none() {
                instances.push(name);
            }
        }
        Interfaces { list }
    }

    /// Number of network instances.
    pub fn instances(&self) -> usize {
        self.iter().map(|interface| usize::from(interface.instance) + 1).max().unwrap_or(0)
    }

    /// The interface with this number.
    pub fn number(&self, number: u16) -> Option<&Interface> {
        self.get(usize::from(number))
    }

    /// Interfaces with tunnels.
    pub fn tunnels(&self) -> impl Iterator<Item = &Interface> {
        self.iter().filter(|interface| interface.role().has_tunnels())
    }

    /// The GTP-U addresses of the UPF.
    pub fn gtpu_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.iter().filter_map(|interface| interface.config.gtpu)
    }

    /// The interface for tunnels that rules place on the first of `roles` and in the network instance `instance`.
    /// `fits` says whether the address of an interface can be used. Where no interface has a role, those of the next
    /// role serve in its place. An interface without network instance serves the instances that no other one has, and rules
    /// without instance; if every interface has one, those rules take the first.
    pub fn tunnel(
        &self,
        roles: &[Role],
        instance: Option<&str>,
        fits: impl Fn(IpAddr) -> bool,
    ) -> Option<u8> {
        let of_role = |role: &Role| {
            let role = *role;
            let all = (0u8..).zip(&self.list);
            all.filter(move |(_, interface)| interface.role() == role)
        };
        let candidates =
            || roles.iter().flat_map(of_role).filter(|(_, interface)| fits(interface.local().ip()));
        let named = |wanted: Option<&str>| {
            candidates().find(|(_, interface)| match (wanted, &interface.config.network_instance) {
                (Some(wanted), Some(own)) => own.eq_ignore_ascii_case(wanted),
                (None, None) => true,
                _ => false,
            })
        };
        let found = match instance {
            Some(instance) => named(Some(instance)).or_else(|| named(None)),
            None => named(None).or_else(|| candidates().next()),
        };
        found.map(|(number, _)| number)
    }

    /// The N6 interface of a network instance: the first one that has this instance, else the first one of the data
    /// network with this name.
    pub fn network(&self, instance: &str) -> Option<u16> {
        let networks = || (0u16..).zip(&self.list).filter(|(_, interface)| interface.dnn.is_some());
        let has = |interface: &Interface| {
            interface.network_instance().is_some_and(|own| own.eq_ignore_ascii_case(instance))
        };
        let is_of = |interface: &Interface| {
            let dnn = interface.dnn.as_ref();
            dnn.is_some_and(|dnn| dnn.name.to_string().eq_ignore_ascii_case(instance))
        };
        let found = networks().find(|(_, interface)| has(interface));
        found.or_else(|| networks().find(|(_, interface)| is_of(interface))).map(|(number, _)| number)
    }

    /// The first N6 interface whose data network has a pool with one of these addresses.
    pub fn network_with(&self, addresses: impl Iterator<Item = IpAddr> + Clone) -> Option<u16> {
        let found = self.iter().position(|interface| {
            let Some(dnn) = &interface.dnn else { return false };
            addresses.clone().any(|address| {
                let pool = if address.is_ipv4() { dnn.ue_pool.ipv4 } else { dnn.ue_pool.ipv6 };
                pool.is_some_and(|pool| {
                    let within = net::link::Cidr::new(address, pool.prefix());
                    within.is_some_and(|within| within.network() == pool.network())
                })
            })
        });
        found.map(|number| number as u16)
    }

    /// The first N6 interface; 0 if there is none.
    pub fn first_network(&self) -> u16 {
        self.iter().position(|interface| interface.dnn.is_some()).unwrap_or(0) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces(text: &str) -> Interfaces {
        Interfaces::of(&serde_json::from_str(text).unwrap())
    }

    const LONG: &str = r#"{"pfcp": "127.0.0.7:8805", "interfaces": [
        {"name": "access", "role": "n3", "network_instance": "ran", "gtpu": "10.0.0.1:2152"},
        {"name": "access6", "role": "n3", "network_instance": "ran", "gtpu": "[fd00::1]:2152"},
        {"name": "private", "role": "n3", "network_instance": "Factory", "gtpu": "10.1.0.1:2152"},
        {"name": "upfs", "role": "n9", "gtpu": "10.2.0.1:2152"},
        {"name": "wan", "role": "n6", "device": "wan0"},
        {"name": "lan", "role": "n6", "device": "lan0", "network_instance": "factory"}],
        "dnn": [{"name": "internet", "interfaces": ["wan"], "ue_pool": {"ipv4": "10.45.0.0/16"}},
                {"name": "plant", "interfaces": ["lan"], "ue_pool": {"ipv4": "10.45.0.0/16"}}]}"#;

    #[test]
    fn the_short_form_is_an_interface_of_each_kind() {
        let short = interfaces(
            r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "dnn": [
                 {"name": "internet", "tun": "gw0", "ue_pool": {"ipv4": "10.45.0.0/16"}},
                 {"name": "factory", "type": "ethernet", "tap": "tap0"}]}"#,
        );
        let seen: Vec<_> = short
            .iter()
            .map(|own| (own.name(), own.role(), own.config.device(), own.network_instance(), own.instance))
            .collect();
        let internet = Some("internet".to_owned());
        assert_eq!(
            seen,
            [
                ("n3", Role::N3, "", None, 0),
                ("internet", Role::N6, "gw0", internet, 1),
                ("factory", Role::N6, "tap0", Some("factory".to_owned()), 2),
            ]
        );
        assert_eq!((short.instances(), short.first_network()), (3, 1));
        // One N3 without network instance serves all roles and names.
        for roles in [&[Role::N3][..], &[Role::N9, Role::N3], &[Role::N4u, Role::N3]] {
            assert_eq!(short.tunnel(roles, Some("anything"), |_| true), Some(0));
            assert_eq!(short.tunnel(roles, None, |_| true), Some(0));
        }
        assert_eq!(short.tunnel(&[Role::N3], None, |own| own.is_ipv6()), None);
    }

    #[test]
    fn role_network_instance_and_ip_version_choose_the_interface() {
        let all = interfaces(LONG);
        // "factory" is the instance of an N3 and of an N6 interface, which share tables.
        assert_eq!(all.iter().map(|own| own.instance).collect::<Vec<_>>(), [0, 0, 1, 2, 3, 1]);
        let n3 = |instance, v4: bool| all.tunnel(&[Role::N3], instance, move |own| own.is_ipv4() == v4);
        assert_eq!(
            [n3(None, true), n3(Some("RAN"), true), n3(Some("ran"), false)],
            [Some(0), Some(0), Some(1)]
        );
        assert_eq!([n3(Some("factory"), true), n3(Some("factory"), false)], [Some(2), None]);
        assert_eq!(n3(Some("elsewhere"), true), None, "every N3 has another instance");
        let n9 = |instance| all.tunnel(&[Role::N9, Role::N3], instance, |_| true);
        assert_eq!([n9(None), n9(Some("elsewhere")), n9(Some("factory"))], [Some(3), Some(3), Some(2)]);
        assert_eq!(
            ["internet", "plant", "FACTORY", "lan"].map(|name| all.network(name)),
            [Some(4), Some(5), Some(5), None]
        );
        assert_eq!(all.network_with(std::iter::once([10, 45, 9, 9].into())), Some(4));
    }
}
