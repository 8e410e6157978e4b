//! Three namespaces of this machine: gNBs, UPF, data network; a veth link on N3, another on N6.
//!
//! They have no names, so the kernel removes them however the process ends.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Context as _;
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::process::Command;
use net::time::Duration;

use super::subscriber::{CP, GNBS, SERVER, UE_POOL, UPF};

/// The UPF's address on N6.
pub(crate) const N6: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 1);
/// Further pools of UE addresses, for the devices of the bare forwarder and of the textbook user plane.
pub(crate) const BARE_POOL: &str = "10.128.0.0/10";
pub(crate) const TEXTBOOK_POOL: &str = "100.64.0.0/10";
/// MTU of both links: room for tunnel headers around 1500 octets.
const MTU: u32 = 3000;
/// Packets that a link may queue.
const QUEUE: u32 = 4096;

/// The namespaces, with links between them.
pub(crate) struct Network {
    pub(crate) gnb: NetNs,
    pub(crate) upf: NetNs,
    pub(crate) dn: NetNs,
}

impl Network {
    /// Builds the network.
    ///
    /// # Errors
    /// The process lacks the rights.
    pub(crate) fn build() -> anyhow::Result<Network> {
        let new = || NetNs::new().context("create a network namespace (needs root: see `godwit doctor`)");
        let network = Network { gnb: new()?, upf: new()?, dn: new()? };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(network.link())?;
        Ok(network)
    }

    async fn link(&self) -> anyhow::Result<()> {
        let at_upf = Links::in_ns(&self.upf)?;
        let gnbs = (0..GNBS).map(|number| Ipv4Addr::from_bits(CP.to_bits() + number)).collect();
        for (name, near, far, addresses) in [("n3", UPF, &self.gnb, gnbs), ("n6", N6, &self.dn, vec![SERVER])]
        {
            self.pair(name, far).await?;
            at_upf.add_address(name, cidr(near, 24)).await?;
            let at_far = Links::in_ns(far)?;
            for address in addresses {
                at_far.add_address(name, cidr(address, 24)).await?;
            }
        }
        let at_dn = Links::in_ns(&self.dn)?;
        for pool in [UE_POOL, BARE_POOL, TEXTBOOK_POOL] {
            at_dn.add_route(pool.parse().context("pool")?, Some(IpAddr::V4(N6)), Some("n6")).await?;
        }
        Ok(())
    }

    /// Makes a link between the UPF and another namespace, with the same name at both ends.
    pub(super) async fn pair(&self, name: &str, far: &NetNs) -> anyhow::Result<()> {
        Links::in_ns(&self.upf)?.add_veth(name, name, far).await?;
        for namespace in [&self.upf, far] {
            let links = Links::in_ns(namespace)?;
            links.set_mtu(name, MTU).await?;
            links.set_txqueuelen(name, QUEUE).await?;
            links.up(name).await?;
            // Packets as on a wire: complete checksums, no segmentation offload.
            let off = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];
            let command = Command::new("ethtool").args(["-K", name]).args(off).namespace(namespace);
            // Without ethtool the links work as well; only other backends see different packets.
            let _ = command.output(Duration::from_secs(10)).await;
        }
        Ok(())
    }
}

fn cidr(address: Ipv4Addr, prefix: u8) -> Cidr {
    Cidr::new(IpAddr::V4(address), prefix).expect("the prefixes above fit their family")
}
