//! A veth pair between two anonymous namespaces, for tests of AF_XDP on a real link.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod frames;

use std::sync::Arc;

use net::link::Links;
use net::netns::NetNs;
use pktio::af_xdp::{AfXdpError, AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;

/// `up0` is ours, 10.0.0.1, `peer0` is 10.0.0.2.
pub struct Net {
    pub ours: NetNs,
    pub peer: NetNs,
    pub runtime: tokio::runtime::Runtime,
}

impl Net {
    /// With one queue at each end.
    pub fn new() -> Net {
        Net::with(async |_, links, peer| links.add_veth("up0", "peer0", peer).await.unwrap())
    }

    /// With a veth pair that `make` makes; it moves one end to the peer's namespace.
    pub fn with(make: impl AsyncFnOnce(&NetNs, &Links, &NetNs)) -> Net {
        let (ours, peer) = (NetNs::new().expect("needs CAP_SYS_ADMIN"), NetNs::new().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let links = Links::in_ns(&ours).unwrap();
            make(&ours, &links, &peer).await;
            links.add_address("up0", "10.0.0.1/24".parse().unwrap()).await.unwrap();
            links.up("up0").await.unwrap();
            let links = Links::in_ns(&peer).unwrap();
            links.add_address("peer0", "10.0.0.2/24".parse().unwrap()).await.unwrap();
            links.up("peer0").await.unwrap();
        });
        Net { ours, peer, runtime }
    }
}

/// A port on the first queue of an interface, with the interface and the memory.
pub fn open(
    namespace: &NetNs,
    name: &str,
    selects: &[Select],
) -> Result<(Arc<Interface>, AfXdpPort, Memory), AfXdpError> {
    let open = || {
        let interface = Interface::open(name, None, selects)?;
        let mut memory = Memory::new(1, [interface.device()])?;
        let port = AfXdpPort::open(&interface, [0], &mut memory, Options::default())?;
        Ok((interface, port, memory))
    };
    namespace.enter(open).unwrap()
}

/// Exchanges the link-layer and IPv4 addresses of a frame.
pub fn exchange_addresses(frame: &mut [u8]) {
    let (destination, rest) = frame.split_at_mut(6);
    destination.swap_with_slice(&mut rest[..6]);
    let (source, destination) = frame[26..34].split_at_mut(4);
    source.swap_with_slice(destination);
}

/// A pair of links with our namespace in the middle: `up0` to `peer0`, `up1` to `peer1`.
pub fn two_links() -> Net {
    let net = Net::with(async |_, links, peer| {
        links.add_veth("up0", "peer0", peer).await.unwrap();
        links.add_veth("up1", "peer1", peer).await.unwrap();
    });
    net.runtime.block_on(async {
        Links::in_ns(&net.ours).unwrap().up("up1").await.unwrap();
        Links::in_ns(&net.peer).unwrap().up("peer1").await.unwrap();
    });
    net
}
