//! A link of limited rate: two namespaces, a veth pair between them, and a token bucket at both ends.
//!
//! What has left a socket and waits in the link can be overtaken by nothing, whatever the protocol; it is bounded by the
//! receiver's buffer, which here is about what is under way on a link of this rate with a round trip of 0.1 ms.

use anyhow::{Context as _, ensure};
use net::link::Links;
use net::netns::NetNs;
use net::process::Command;
use net::time::Duration;

/// Bits per second, each way.
pub(super) const RATE: u64 = 1_000_000_000;
/// Octets of a receive buffer: least, first, most.
const RECEIVE_BUFFER: &str = "4096 16384 16384";
/// Address of the server's end.
pub(super) const SERVER: &str = "10.251.0.1";
const ENDS: [(&str, &str); 2] = [("cotcp0", SERVER), ("cotcp1", "10.251.0.2")];

/// The link; gone when dropped.
pub(super) struct Link {
    server: NetNs,
    client: NetNs,
}

impl Link {
    /// Builds it. Needs a tokio runtime, CAP_SYS_ADMIN and `tc`.
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

    /// The server's side, the client's side.
    pub(super) fn namespaces(&self) -> [&NetNs; 2] {
        [&self.server, &self.client]
    }
}

/// Limits what leaves an interface.
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
