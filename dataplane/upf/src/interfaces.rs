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
        self.config.link.gtpu.unwrap_or(SocketAddr::from(([0; 4], 0)))
    }

    /// The name of its network instance: that of the section, else that of the data network.
    pub fn network_instance(&self) -> Option<String> {
        let own = self.config.network_instance.clone();
        own.or_else(|| self.dnn.as_ref().map(|dnn| dnn.name.to_string()))
    }
}

/// The network instance of a tunnel, as a rule and its session say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named<'a> {
    /// The rule has this name.
    By(&'a str),
    /// The rule has none.
    Not {
        /// Number of the instance in which its session has other tunnels of the same kind.
        same: Option<u8>,
        /// The same for tunnels of another kind.
        session: Option<u8>,
    },
}

/// Why there is no interface for a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoTunnel {
    /// No interface has the network instance, or several have and the rule does not say which.
    Instance,
    /// The addresses of the interfaces cannot be used.
    Address,
}

/// Several data networks have a UE's address in their pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ambiguous;

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
            let mut n3 = InterfaceConfig::kernel("n3", Role::N3);
            n3.link.gtpu = config.gtpu;
            add(n3, "upf.gtpu".to_owned(), None);
        }
        for dnn in &config.dnn {
            for (key, device) in [("tun", &dnn.tun), ("tap", &dnn.tap)] {
                if !device.is_empty() {
                    let name = dnn.name.to_string();
                    let mut n6 = InterfaceConfig::kernel(&name, Role::N6);
                    n6.link.device = Some(device.clone());
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

    /// How many interfaces a configuration has, short forms included; [`Interfaces::of`] makes at most
    /// [`MAX_INTERFACES`].
    pub fn count(config: &Config) -> usize {
        let devices = config.dnn.iter().flat_map(|dnn| [&dnn.tun, &dnn.tap]);
        let short = devices.filter(|device| !device.is_empty()).count();
        usize::from(config.gtpu.is_some()) + short + config.interfaces.len()
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
        self.iter().filter_map(|interface| interface.config.link.gtpu)
    }

    /// The interface for tunnels of one of `roles`; the first role that has an interface counts. `fits` says whether the
    /// address of an interface can be used.
    ///
    /// A rule that names a network instance gets an interface of that instance. An interface without network instance
    /// serves all names that no other one has. A rule without name belongs to the instance `same`, in which its session
    /// has other tunnels of this kind. Else it gets, of the interfaces that fit, one without network instance, else one of
    /// the only instance there is, else one of the instance `session`, in which its session has tunnels of another kind.
    pub fn tunnel(
        &self,
        roles: &[Role],
        named: Named<'_>,
        fits: impl Fn(IpAddr) -> bool,
    ) -> Result<u8, NoTunnel> {
        let of_role = |role: Role| {
            let all = (0u8..).zip(&self.list);
            all.filter(move |(_, interface)| interface.role() == role)
        };
        let any = || roles.iter().flat_map(|role| of_role(*role)).map(|(_, interface)| interface);
        let nameless = |interface: &&Interface| interface.config.network_instance.is_none();
        let instance = match named {
            Named::By(name) => {
                let has = |interface: &&Interface| {
                    let own = interface.config.network_instance.as_ref();
                    own.is_some_and(|own| own.eq_ignore_ascii_case(name))
                };
                any().find(has).or_else(|| any().find(nameless)).map(|interface| interface.instance)
            }
            Named::Not { same, session } => {
                let present = |wanted: Option<u8>| {
                    any().map(|interface| interface.instance).find(|own| Some(*own) == wanted)
                };
                let role = roles.iter().find(|role| of_role(**role).next().is_some());
                let of_first = || {
                    let all =
                        role.into_iter().flat_map(|role| of_role(*role)).map(|(_, interface)| interface);
                    all.filter(|interface| fits(interface.local().ip()))
                };
                let only = || {
                    let one = of_first().next().ok_or(NoTunnel::Address).map(|interface| interface.instance);
                    one.map(|one| of_first().all(|own| own.instance == one).then_some(one))
                };
                let nameless = || of_first().find(nameless).map(|interface| interface.instance);
                match present(same).or_else(nameless) {
                    Some(instance) => Some(instance),
                    None => only()?.or_else(|| present(session)),
                }
            }
        };
        let instance = instance.ok_or(NoTunnel::Instance)?;
        let of_instance = |role: &Role| of_role(*role).filter(|(_, own)| own.instance == instance);
        let role = roles.iter().find(|role| of_instance(role).next().is_some()).ok_or(NoTunnel::Instance)?;
        let found = of_instance(role).find(|(_, interface)| fits(interface.local().ip()));
        found.map(|(number, _)| number).ok_or(NoTunnel::Address)
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

    /// The data network, by its first interface, whose pools have most of these addresses. Of several, the one with the
    /// highest `preference`.
    pub fn network_with(
        &self,
        addresses: impl Iterator<Item = IpAddr> + Clone,
        preference: impl Fn(u16) -> u8,
    ) -> Result<Option<u16>, Ambiguous> {
        let mut best: Option<((usize, u8), u16)> = None;
        let mut ambiguous = false;
        for (number, interface) in (0u16..).zip(&self.list) {
            let Some(dnn) = &interface.dnn else { continue };
            let within = addresses.clone().filter(|address| {
                let pool = if address.is_ipv4() { dnn.ue_pool.ipv4 } else { dnn.ue_pool.ipv6 };
                pool.is_some_and(|pool| {
                    let host = net::link::Cidr::new(*address, pool.prefix());
                    host.is_some_and(|host| host.network() == pool.network())
                })
            });
            let within = within.count();
            if within == 0 {
                continue;
            }
            let rank = (within, preference(number));
            match best {
                Some((known, _)) if known > rank => {}
                Some((known, first)) if known == rank => ambiguous |= !self.same_network(first, number),
                _ => (best, ambiguous) = (Some((rank, number)), false),
            }
        }
        if ambiguous { Err(Ambiguous) } else { Ok(best.map(|(_, number)| number)) }
    }

    /// Whether two interfaces are of one data network.
    pub fn same_network(&self, one: u16, other: u16) -> bool {
        let dnn = |number| self.number(number).and_then(|interface| interface.dnn.as_ref());
        one == other || matches!((dnn(one), dnn(other)), (Some(one), Some(other)) if one.name == other.name)
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

    const NOT: Named<'static> = Named::Not { same: None, session: None };

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
            .map(|own| {
                (own.name(), own.role(), own.config.link.device(), own.network_instance(), own.instance)
            })
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
            assert_eq!(short.tunnel(roles, Named::By("anything"), |_| true), Ok(0));
            assert_eq!(short.tunnel(roles, NOT, |_| true), Ok(0));
        }
        assert_eq!(short.tunnel(&[Role::N3], NOT, |own| own.is_ipv6()), Err(NoTunnel::Address));
    }

    #[test]
    fn role_network_instance_and_ip_version_choose_the_interface() {
        let all = interfaces(LONG);
        // "factory" is the instance of an N3 and of an N6 interface, which share tables.
        assert_eq!(all.iter().map(|own| own.instance).collect::<Vec<_>>(), [0, 0, 1, 2, 3, 1]);
        let n3 = |named, v4: bool| all.tunnel(&[Role::N3, Role::N9], named, move |own| own.is_ipv4() == v4);
        assert_eq!([n3(Named::By("RAN"), true), n3(Named::By("ran"), false)], [Ok(0), Ok(1)]);
        assert_eq!(n3(Named::By("factory"), true), Ok(2));
        assert_eq!(n3(Named::By("factory"), false), Err(NoTunnel::Address), "no other instance in its place");
        assert_eq!(n3(Named::By("elsewhere"), true), Ok(3), "the one without instance");
        let only_n3 = |named| all.tunnel(&[Role::N3], named, |_| true);
        assert_eq!(only_n3(Named::By("elsewhere")), Err(NoTunnel::Instance), "every N3 has another instance");
        // Without a name the session's tunnels say it; the N9 without instance is no N3.
        let not = |same, session| Named::Not { same, session };
        assert_eq!(n3(NOT, true), Err(NoTunnel::Instance));
        assert_eq!([n3(not(Some(1), Some(0)), true), n3(not(None, Some(1)), true)], [Ok(2), Ok(2)]);
        assert_eq!([n3(not(Some(0), None), false), n3(not(Some(9), Some(0)), false)], [Ok(1), Ok(1)]);
        let n9 = |named| all.tunnel(&[Role::N9, Role::N3], named, |_| true);
        assert_eq!(n9(NOT), Ok(3));
        assert_eq!([n9(Named::By("elsewhere")), n9(Named::By("factory"))], [Ok(3), Ok(2)]);
        assert_eq!([n9(not(None, Some(1))), n9(not(Some(1), None))], [Ok(3), Ok(2)]);
        assert_eq!(
            ["internet", "plant", "FACTORY", "lan"].map(|name| all.network(name)),
            [Some(4), Some(5), Some(5), None]
        );
        let with = |address: [u8; 4], wanted: Option<u16>| {
            all.network_with(std::iter::once(address.into()), |number| u8::from(Some(number) == wanted))
        };
        assert_eq!(with([10, 45, 9, 9], None), Err(Ambiguous));
        assert_eq!(
            [with([10, 45, 9, 9], Some(4)), with([10, 45, 9, 9], Some(5))],
            [Ok(Some(4)), Ok(Some(5))]
        );
        assert_eq!(with([10, 46, 9, 9], Some(4)), Ok(None));
    }
}
