//! `custom`: the first anchor sends the contexts of chosen UEs to the second one by TCP over a link between the two, which sets them up
//! and says how many it serves. Nothing is kept outside the anchors.
//!
//! The time is that of the request to the first anchor's administration socket, which answers when the second anchor has.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context as _;
use net::link::{Cidr, Links};
use net::time::{self, Duration};
use serde_json::json;

use super::Moved;
use super::pair::{Anchor, Pair};

/// The link between the anchors, and its ends.
const LINK: &str = "anchors";
const ENDS: [[u8; 4]; 2] = [[10, 250, 0, 1], [10, 250, 0, 2]];
const PORT: u16 = 7000;
/// How long a transfer may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Custom {
    pub(super) pair: Pair,
}

impl Custom {
    pub(super) async fn start() -> anyhow::Result<Custom> {
        let first = Anchor::start(|_| ()).await?;
        let second = Anchor::start(|gateway| gateway["transfer"] = json!(format!("0.0.0.0:{PORT}"))).await?;
        let spaces = [first.lab.core(), second.lab.core()];
        Links::in_ns(spaces[0])?.add_veth(LINK, LINK, spaces[1]).await?;
        for (space, end) in spaces.into_iter().zip(ENDS) {
            let links = Links::in_ns(space)?;
            links.up(LINK).await?;
            links.add_address(LINK, Cidr::new(IpAddr::from(end), 24).context("a prefix of IPv4")?).await?;
        }
        Ok(Custom { pair: Pair::new(first, second) })
    }

    pub(super) async fn replicate(&mut self, moved: usize) -> anyhow::Result<Moved> {
        let moving = self.pair.ues.get(..moved).context("not so many UEs are registered")?.to_vec();
        let imsis: Vec<String> = moving.iter().map(|ue| ue.imsi().to_string()).collect();
        let request = json!({"to": SocketAddr::from((ENDS[1], PORT)), "ues": imsis});
        let socket: PathBuf = nf::oam::socket_path(&self.pair.first.lab.folder().join("run"), "spgw");
        let prober = self.pair.prober()?;
        let start = time::now_std();
        let sent = nf::oam::call_within(PATIENCE, &socket, "POST", "/contexts/send", Some(&request)).await?;
        let took_ms = (time::now_std() - start).as_secs_f64() * 1e3;
        let downtime_ms = prober.stop()?;
        let known = self.pair.second.ues().await?;
        let served = self.pair.second.mme.modify_all(&moving)?;
        self.pair.second.mme.detach_all(&moving)?;
        let wire_octets = sent["octets"].as_u64().context("no octets")?;
        let parts = vec![("send", took_ms)];
        Ok(Moved { stored_octets: 0, wire_octets, parts, downtime_ms, known, served, messages: 0 })
    }
}
