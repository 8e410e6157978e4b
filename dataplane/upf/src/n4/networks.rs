//! The network instances of a session: which interfaces its rules mean.
//!
//! A rule that names a network instance means an interface of it, or is refused. The name is optional, and needed where
//! the UPF is connected to several IP domains (TS 29.244 tables 7.5.2.2-2 and 7.5.2.3-2, NOTE 1). So a rule
//! without name means the network in which its session already is: that of the session's tunnels on the same side, or, for
//! packets without tunnel, that of the session's data network (TS 23.501 §5.6.1: a session belongs to one). Where even
//! this leaves several, the rule is refused.

use std::cell::OnceCell;
use std::net::{IpAddr, SocketAddr};

use packet::gtpu;
use pfcp::{
    Cause, DestinationInterface, FailedRuleId, OuterHeaderCreation, ShortBytes, SourceInterface, ie,
    network_instance_name,
};

use super::rules::{FarRule, PdrRule, Rejection, Rules, unknown_instance};
use crate::interface::Role;
use crate::interfaces::{Interfaces, MAX_INTERFACES, Named, NoTunnel};
use crate::plan::{Container, Kind, OuterHeader};

/// What tunnels lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// gNBs.
    Access,
    /// Other UPFs.
    Core,
    /// The CP function.
    Control,
}

impl Side {
    /// The roles of interfaces for these tunnels. Where no interface has the first, the next ones serve in its place.
    fn roles(self) -> &'static [Role] {
        match self {
            Side::Access => &[Role::N3, Role::N9],
            Side::Core => &[Role::N9, Role::N3],
            Side::Control => &[Role::N4u, Role::N3, Role::N9],
        }
    }
}

impl From<SourceInterface> for Side {
    fn from(source: SourceInterface) -> Side {
        match source {
            SourceInterface::Access => Side::Access,
            SourceInterface::CpFunction => Side::Control,
            _ => Side::Core,
        }
    }
}

impl From<DestinationInterface> for Side {
    fn from(destination: DestinationInterface) -> Side {
        match destination {
            DestinationInterface::Access => Side::Access,
            DestinationInterface::CpFunction | DestinationInterface::LiFunction => Side::Control,
            _ => Side::Core,
        }
    }
}

/// The network instances in which a session has tunnels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Networks<'a> {
    pub interfaces: &'a Interfaces,
    /// Number of the network instance of each [`Side`]: that of its first PDR.
    instances: [Option<u8>; 3],
}

impl<'a> Networks<'a> {
    /// Those of a session's rules.
    pub fn of(rules: &Rules, interfaces: &'a Interfaces) -> Networks<'a> {
        let mut networks = Networks { interfaces, instances: [None; 3] };
        for pdr in rules.pdrs.values() {
            let Some(tunnel) = rules.tunnel_of(pdr) else { continue };
            networks.has(pdr.source.into(), tunnel.interface);
            if networks.instances.iter().all(Option::is_some) {
                break;
            }
        }
        networks
    }

    /// Notes a tunnel on an interface, unless another one of its side is known.
    fn has(&mut self, side: Side, interface: u8) {
        let instance = self.interfaces.number(interface.into()).map(|interface| interface.instance);
        let known = &mut self.instances[side as usize];
        *known = known.or(instance);
    }

    /// Notes a name for tunnels that a request is about to make, so that the order of its rules does not matter.
    pub fn hear(&mut self, source: SourceInterface, instance: &ShortBytes) {
        let side = source.into();
        if let Ok(interface) = self.tunnel(side, Some(instance), |_| true) {
            self.has(side, interface);
        }
    }

    /// The interface for tunnels of a side. `fits` says whether the address of an interface can be used.
    pub fn tunnel(
        &self,
        side: Side,
        instance: Option<&ShortBytes>,
        fits: impl Fn(IpAddr) -> bool,
    ) -> Result<u8, NoTunnel> {
        let name = instance.map(|octets| network_instance_name(octets).ok_or(NoTunnel::Instance));
        let name = name.transpose()?;
        let same = self.instances[side as usize];
        let session = self.instances.iter().find_map(|instance| *instance);
        let named = name.as_deref().map_or(Named::Not { same, session }, Named::By);
        self.interfaces.tunnel(side.roles(), named, fits)
    }

    /// The interface for tunnels to a peer.
    pub fn tunnel_to(
        &self,
        destination: DestinationInterface,
        instance: Option<&ShortBytes>,
        peer: IpAddr,
    ) -> Result<u8, NoTunnel> {
        self.tunnel(destination.into(), instance, |own| own.is_ipv4() == peer.is_ipv4())
    }

    /// The tunnel into which a FAR sends.
    pub fn tunnel_of(&self, far: &FarRule) -> Option<OuterHeader> {
        self.outer_header(far.destination?, far.outer_header, far.network_instance.as_ref())
    }

    /// The tunnel that an outer header describes. Refused are those into which nothing can be sent.
    pub fn tunnel_checked(
        &self,
        destination: DestinationInterface,
        header: Option<OuterHeaderCreation>,
        instance: Option<&ShortBytes>,
    ) -> Result<Option<OuterHeader>, Rejection> {
        let Some((teid, peer)) = header.and_then(|header| header.gtpu_endpoint()) else { return Ok(None) };
        let no_address = Rejection::ie(Cause::MANDATORY_IE_INCORRECT, ie::OUTER_HEADER_CREATION);
        let interface = self.tunnel_to(destination, instance, peer);
        let interface = interface.map_err(|reason| refusal(reason, no_address))?;
        let nobody = match peer {
            IpAddr::V4(peer) => peer.is_broadcast(),
            // Link-local addresses lack the interface that makes them unique; mapped ones are IPv4.
            IpAddr::V6(peer) => peer.is_unicast_link_local() || peer.to_ipv4_mapped().is_some(),
        };
        // TEID 0 is for signalling (TS 29.281 §5.1).
        if teid == 0 || nobody || peer.is_unspecified() || peer.is_multicast() {
            return Err(no_address);
        }
        let container = match destination.into() {
            Side::Access => Container::Downlink,
            Side::Control => Container::None,
            Side::Core => Container::Uplink,
        };
        Ok(Some(OuterHeader { teid, peer: SocketAddr::new(peer, gtpu::PORT), interface, container }))
    }

    /// The tunnel that an outer header describes, of rules that have been checked.
    pub fn outer_header(
        &self,
        destination: DestinationInterface,
        header: Option<OuterHeaderCreation>,
        instance: Option<&ShortBytes>,
    ) -> Option<OuterHeader> {
        self.tunnel_checked(destination, header, instance).ok()?
    }

    /// The tunnel of each FAR, in their order; of rules that have been checked.
    pub fn tunnels_of(&self, rules: &Rules) -> Vec<Option<OuterHeader>> {
        rules.fars.values().map(|far| self.tunnel_of(far)).collect()
    }

    /// The interface of the data network that a FAR names.
    pub fn network_of(&self, far: &FarRule) -> Option<u16> {
        network_named(far.network_instance.as_ref()?, self.interfaces)
    }

    /// The interface of the session's data network: packets without tunnel come from its network instance, and FARs
    /// that name no other lead there. It is the network that PDIs name, else the network of the UE's address, else one
    /// that a FAR names, else the first of the session's kind.
    ///
    /// PDIs that name two networks are refused, and addresses of several pools of which nothing says which is meant.
    pub fn home(&self, rules: &Rules) -> Result<u16, Rejection> {
        let native = || rules.pdrs.iter().filter(|(_, pdr)| rules.teid_of(pdr).is_none());
        // The network, and the PDR that has it.
        let mut home: Option<(u16, u16)> = None;
        for (id, named) in native().filter_map(|(id, pdr)| Some((id, rules.network_of(pdr)?))) {
            if home.get_or_insert((named, id)).0 != named {
                return Err(Rejection::rule(FailedRuleId::Pdr(id)));
            }
        }
        let pools = Pools { networks: self, rules, of_fars: OnceCell::new() };
        if !rules.ethernet {
            for (id, pdr) in native().filter(|(_, pdr)| rules.network_of(pdr).is_none()) {
                let known = home.map(|(network, _)| network);
                let Some(own) = pools.network_with(id, pdr, known)? else { continue };
                let (network, other) = *home.get_or_insert((own, id));
                if !self.interfaces.same_network(network, own) {
                    return Err(Rejection::rule(FailedRuleId::Pdr(id.max(other))));
                }
            }
            let mut all = rules.pdrs.iter();
            while home.is_none()
                && let Some((id, pdr)) = all.next()
            {
                home = pools.network_with(id, pdr, None)?.map(|network| (network, id));
            }
        }
        let of_far = || rules.fars.values().find_map(|far| self.network_of(far));
        Ok(home.map(|(network, _)| network).or_else(of_far).unwrap_or_else(|| self.first(rules.ethernet)))
    }

    /// The first data network of Ethernet or other sessions.
    fn first(&self, ethernet: bool) -> u16 {
        let frames =
            (0..self.interfaces.len() as u16).find(|number| carries_frames(self.interfaces, *number));
        frames.filter(|_| ethernet).unwrap_or_else(|| self.interfaces.first_network())
    }
}

/// Where the rules of a session lead.
#[derive(Debug)]
pub(super) struct Destinations {
    /// The interface of the session's data network: see [`Networks::home`].
    pub home: u16,
    /// The tunnel of each FAR, in their order.
    pub tunnels: Vec<Option<OuterHeader>>,
}

/// Finds the data networks of a session's UE addresses.
struct Pools<'a> {
    networks: &'a Networks<'a>,
    rules: &'a Rules,
    /// Interfaces that FARs name, by number; only made if it is needed.
    of_fars: OnceCell<[bool; MAX_INTERFACES]>,
}

impl Pools<'_> {
    /// The data network that has a PDR's UE address in its pool. Of several it is the session's `home`, if that is known,
    /// else one that a FAR names, else the one in which the session has tunnels.
    fn network_with(&self, id: u16, pdr: &PdrRule, home: Option<u16>) -> Result<Option<u16>, Rejection> {
        let Networks { interfaces, instances } = *self.networks;
        let addresses = || self.rules.ue_of(pdr).addresses();
        // Nearly always there is only one.
        if let Ok(found) = interfaces.network_with(addresses(), |_| 0) {
            return Ok(found);
        }
        let of_fars = self.of_fars.get_or_init(|| {
            let mut named = [false; MAX_INTERFACES];
            for number in self.rules.fars.values().filter_map(|far| self.networks.network_of(far)) {
                named[usize::from(number)] = true;
            }
            named
        });
        let preference = |number: u16| {
            let instance = interfaces.number(number).map(|interface| interface.instance);
            if home.is_some_and(|home| interfaces.same_network(home, number)) {
                3
            } else if of_fars.get(usize::from(number)) == Some(&true) {
                2
            } else {
                u8::from(instance.is_some() && instances.contains(&instance))
            }
        };
        let found = interfaces.network_with(addresses(), preference);
        found.map_err(|_| Rejection { failed_rule: Some(FailedRuleId::Pdr(id)), ..unknown_instance() })
    }
}

/// Whether an interface is of a data network with Ethernet sessions.
pub(super) fn carries_frames(interfaces: &Interfaces, network: u16) -> bool {
    let dnn = interfaces.number(network).and_then(|interface| interface.dnn.as_ref());
    dnn.is_some_and(|dnn| dnn.kind == Kind::Ethernet)
}

/// The interface of the data network that a network instance names.
pub(super) fn network_named(instance: &ShortBytes, interfaces: &Interfaces) -> Option<u16> {
    interfaces.network(&network_instance_name(instance)?)
}

/// The refusal of a tunnel: `address` if the interface of its network instance cannot have it.
pub(super) fn refusal(reason: NoTunnel, address: Rejection) -> Rejection {
    match reason {
        NoTunnel::Instance => unknown_instance(),
        NoTunnel::Address => address,
    }
}
