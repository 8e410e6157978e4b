//! A link of limited rate: two namespaces, a veth pair between them, and a token bucket at both ends.
//!
//! Octets that have left a socket and wait in the link cannot be overtaken, whatever the protocol is. The
//! receiver's buffer bounds them; its size here is about the bandwidth-delay product of this link with a round
//! trip of 0.1 ms.

use anyhow::{Context as _, ensure};
use net::link::Links;
use net::netns::NetNs;
use net::process::Command;
use net::time::Duration;

/// Bits per second in each direction.
pub(super) const RATE: u64 = 1_000_000_000;
/// Octets of a receive buffer: least, first, most.
const RECEIVE_BUFFER: &str = "4096 16384 16384";
/// Address of the server's end.
pub(super) const SERVER: &str = "10.251.0.1";
const ENDS: [(&str, &str); 2] = [("cotcp0", SERVER), ("cotcp1", "10.251.0.2")];

/// The link; removed when dropped.
pub(super) struct Link {
    server: NetNs,
    client: NetNs,
}

impl Link {
    /// Builds the link. Needs a tokio runtime, CAP_SYS_ADMIN and `tc`.
    pub(super) async fn new() -> anyhow::Result<Link> {
        let link = Link { server: NetNs::new()?, client: NetNs::new()? };
        Links::in_ns(&link.server)?.add_veth(ENDS[0].0, ENDS[1].0, &link.client).await?;
        for (namespace, (name, address)) in link.namespaces().into_iter().zip(ENDS) {
            let links = Links::in_ns(namespace)?;
            links.add_address(name, format!("{address}/24").parse()?).await?;
            links.up(name).await?;
            limit(namespace, name).await?;
            net::sysctl::set_in(namespace, "net.ipv4.tcp_rmem", RECEIVE_BUFFER)?;
        }
        Ok(link)
    }

    /// The namespaces of server and client.
    pub(super) fn namespaces(&self) -> [&NetNs; 2] {
        [&self.server, &self.client]
    }
}

/// Limits the rate at which an interface sends.
async fn limit(namespace: &NetNs, interface: &str) -> anyhow::Result<()> {
    let rate = RATE.to_string();
    let output = Command::new("tc")
        .args(["qdisc", "replace", "dev", interface, "root", "tbf", "rate", &rate, "burst", "16kb"])
        .args(["latency", "20ms"])
        .namespace(namespace)
        .output(Duration::from_secs(5))
        .await
        .context("running tc")?;
    ensure!(output.status.success(), "tc: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
