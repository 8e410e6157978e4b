//! The topology: three namespaces and two links; with a gNB in parts five and four; with edge sites five and more.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Context as _;
use net::link::{Cidr, Links};
use net::netns::NetNs;

use crate::{edge, split};

/// The core's address towards the gNBs (N2 and N3).
pub const CORE_N2: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
/// The gNBs' address.
pub const RAN_N2: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);
/// The UPF's address towards the data network (N6).
pub const CORE_N6: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 1);
/// The UPF's IPv6 address towards the data network.
pub const CORE_N6_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x201, 0, 0, 0, 0, 0, 1);
/// The data network's host.
pub const DN: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 2);
/// The IPv6 address of the data network's host.
pub const DN_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x201, 0, 0, 0, 0, 0, 2);
/// The host's HTTP port.
pub const HTTP_PORT: u16 = 80;

/// UE addresses, routed by the data network to the UPF.
pub(crate) const UE_POOL: &str = "10.45.0.0/16";
pub(crate) const UE_POOL_IPV6: &str = "fd00:45::/48";

/// Names of the links' ends, the same on both sides.
pub(crate) const N2: &str = "n2";
pub(crate) const N6: &str = "n6";

/// Packets that a link may queue: bursts of several UEs.
pub(crate) const QUEUE: u32 = 4096;

/// The namespaces.
pub(crate) struct Namespaces {
    pub core: NetNs,
    /// Those of CU and DU, with a gNB in parts.
    pub units: Option<[NetNs; 2]>,
    /// That of the gNBs, or of the UEs of a gNB in parts.
    pub ran: NetNs,
    pub dn: NetNs,
    /// Those of edge sites.
    pub edge: Option<edge::Namespaces>,
}

/// What there is besides the core, the gNBs and the data network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Nothing.
    Plain,
    /// CU and DU.
    Split,
    /// So many edge sites, and whether the S-GW is apart.
    Edge { sites: usize, sgw: bool },
}

/// A new namespace.
pub(crate) fn namespace() -> anyhow::Result<NetNs> {
    let namespace = NetNs::new()
        .context("create a network namespace (needs root, or user namespaces: see `godwit doctor`)")?;
    // No other host is on these links. Without duplicate address detection IPv6 addresses work at
    // once, not after a second.
    net::sysctl::set_in(&namespace, "net.ipv6.conf.default.accept_dad", "0")?;
    Ok(namespace)
}

/// Builds the namespaces with their links, addresses and routes.
pub(crate) async fn build(shape: Shape) -> anyhow::Result<Namespaces> {
    let (core, ran, dn) = (namespace()?, namespace()?, namespace()?);
    let at_core = Links::in_ns(&core)?;
    let n2 =
        Link { name: N2, near: CORE_N2, near_ipv6: ipv6(0x200, 1), far: RAN_N2, far_ipv6: ipv6(0x200, 2) };
    let n6 = Link { name: N6, near: CORE_N6, near_ipv6: CORE_N6_IPV6, far: DN, far_ipv6: DN_IPV6 };
    let (mut units, mut edge) = (None, None);
    match shape {
        Shape::Plain => {
            n2.build(&at_core, &ran).await?;
            n6.build(&at_core, &dn).await?;
        }
        Shape::Split => {
            let (cu, du) = (namespace()?, namespace()?);
            n2.build(&at_core, &cu).await?;
            n6.build(&at_core, &dn).await?;
            let (near, far) = (split::CU_F1, split::DU_F1);
            let f1 = Link { name: "f1", near, near_ipv6: ipv6(0x202, 1), far, far_ipv6: ipv6(0x202, 2) };
            f1.build(&Links::in_ns(&cu)?, &du).await?;
            let (near, far) = (split::DU_UU, split::UE_UU);
            let uu = Link { name: "uu", near, near_ipv6: ipv6(0x203, 1), far, far_ipv6: ipv6(0x203, 2) };
            uu.build(&Links::in_ns(&du)?, &ran).await?;
            units = Some([cu, du]);
        }
        Shape::Edge { sites, sgw } => edge = Some(edge::build(&core, &ran, &dn, sites, sgw).await?),
    }

    // The data network routes UE addresses to the UPF, as an operator's routers do, so no NAT is
    // needed.
    let at_dn = Links::in_ns(&dn)?;
    at_dn.add_route(pool(UE_POOL), Some(IpAddr::V4(CORE_N6)), Some(N6)).await?;
    at_dn.add_route(pool(UE_POOL_IPV6), Some(IpAddr::V6(CORE_N6_IPV6)), Some(N6)).await?;
    Ok(Namespaces { core, units, ran, dn, edge })
}

/// One link.
struct Link {
    name: &'static str,
    near: Ipv4Addr,
    near_ipv6: Ipv6Addr,
    far: Ipv4Addr,
    far_ipv6: Ipv6Addr,
}

impl Link {
    async fn build(&self, at_near: &Links, far: &NetNs) -> anyhow::Result<()> {
        let at_far = Links::in_ns(far)?;
        at_near.add_veth(self.name, self.name, far).await?;
        for (links, ipv4, ipv6) in [(at_near, self.near, self.near_ipv6), (&at_far, self.far, self.far_ipv6)]
        {
            // A packet of a UE fits with the headers of the units' tunnels. N2 and N6 are as usual.
            if ![N2, N6].contains(&self.name) {
                links.set_mtu(self.name, split::MTU).await?;
            }
            links.set_txqueuelen(self.name, QUEUE).await?;
            links.up(self.name).await?;
            for (address, prefix) in [(IpAddr::V4(ipv4), 24), (IpAddr::V6(ipv6), 64)] {
                let cidr = Cidr::new(address, prefix).expect("the prefixes above fit their families");
                links.add_address(self.name, cidr).await?;
            }
        }
        Ok(())
    }
}

/// `fd00:<link>::<host>`.
pub(crate) const fn ipv6(link: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, link, 0, 0, 0, 0, 0, host)
}

fn pool(text: &str) -> Cidr {
    text.parse().expect("the pools above are written correctly")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;
    use net::process::Command;
    use net::time::Duration;

    /// Real programs reach the data network from the core, over IPv4 and IPv6.
    #[tokio::test]
    async fn the_data_network_serves_both_families() {
        let network = build(Shape::Plain).await.expect("the right to create namespaces");
        let server = Server::start(&network.dn).unwrap();
        for host in [DN.to_string(), format!("[{DN_IPV6}]")] {
            let url = format!("http://{host}:{HTTP_PORT}");
            let limit = Duration::from_secs(20);
            let curl = |arguments: &[&str]| {
                Command::new("curl")
                    .args(["-sS", "--noproxy", "*"])
                    .args(arguments)
                    .namespace(&network.core)
                    .output(limit)
            };
            let bytes = curl(&[&format!("{url}/bytes/1000000")]).await.unwrap();
            assert_eq!((bytes.stdout.len(), bytes.status.success()), (1_000_000, true));
            let echo = curl(&["-d", "hello", &format!("{url}/echo")]).await.unwrap();
            assert_eq!(echo.stdout, b"hello");
            let missing =
                curl(&["-o", "/dev/null", "-w", "%{http_code}", &format!("{url}/x")]).await.unwrap();
            assert_eq!(missing.stdout, b"404");
        }
        assert_eq!(server.served(), 6);
        let ping = Command::new("ping").args(["-c1", "-W5", &RAN_N2.to_string()]).namespace(&network.core);
        assert!(ping.output(Duration::from_secs(10)).await.unwrap().status.success());
    }
}
