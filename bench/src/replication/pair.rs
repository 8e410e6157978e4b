//! Two anchors, each a gateway and a UPF as processes in a lab of its own. They have the same addresses, as anchors that stand in for one
//! another have towards eNBs and MMEs.

use std::net::SocketAddr;

use anyhow::Context as _;
use gtpv2c::endpoint::PORT;
use lab::Lab;
use serde_json::Value;

use super::prober::Prober;
use crate::epc::mme::{Mme, Times, Ue};
use crate::stats::median;

/// An anchor with the MME at its other end of S11.
pub(super) struct Anchor {
    pub(super) lab: Lab,
    pub(super) mme: Mme,
}

impl Anchor {
    /// Starts one, with changes to the gateway's configuration.
    pub(super) async fn start(edit: impl FnOnce(&mut Value) + Send + 'static) -> anyhow::Result<Anchor> {
        let edit = Box::new(|configuration: &mut Value| edit(&mut configuration["spgw"]));
        let options = lab::Options {
            epc: true,
            processes: true,
            log: "warn".to_owned(),
            edit,
            ..lab::Options::new(1)?
        };
        let lab = Lab::start(options).await?;
        let mme = lab.ran().enter(Mme::new)??;
        Ok(Anchor { lab, mme })
    }

    /// The median time of attaches, one after the other, µs. The UEs leave.
    pub(super) fn attach_time_us(&mut self, attaches: usize) -> anyhow::Result<f64> {
        let mut times = Times::default();
        for _ in 0..attaches {
            let ue = self.mme.one(&mut times)?;
            self.mme.detach_all(&[ue])?;
        }
        Ok(median(times.get("attach").context("no attach")?) * 1e3)
    }

    /// UEs that it knows.
    pub(super) async fn ues(&self) -> anyhow::Result<usize> {
        let status = self.lab.oam("spgw", "GET", "/status").await?;
        Ok(status["detail"]["ues"].as_u64().context("no UEs in the status")? as usize)
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.lab.stop().await
    }
}

/// Two anchors, and the UEs of the first one.
pub(super) struct Pair {
    pub(super) first: Anchor,
    pub(super) second: Anchor,
    pub(super) ues: Vec<Ue>,
}

impl Pair {
    pub(super) fn new(first: Anchor, second: Anchor) -> Pair {
        Pair { first, second, ues: Vec::new() }
    }

    pub(super) fn register(&mut self, ues: usize) -> anyhow::Result<()> {
        let missing = ues.saturating_sub(self.ues.len());
        self.ues.extend(self.first.mme.attach_all(missing)?);
        Ok(())
    }

    pub(super) fn clear(&mut self) -> anyhow::Result<()> {
        self.first.mme.detach_all(&self.ues)?;
        self.ues.clear();
        Ok(())
    }

    /// A prober that asks the first anchor.
    pub(super) fn prober(&self) -> anyhow::Result<Prober> {
        Prober::start(self.first.lab.ran(), vec![SocketAddr::from((lab::CORE_N2, PORT))])
    }

    pub(super) fn configurations(&self) -> anyhow::Result<Vec<Value>> {
        let read = |anchor: &Anchor| {
            let text = std::fs::read_to_string(anchor.lab.configuration())?;
            Ok(serde_json::from_str::<Value>(&text)?["spgw"].take())
        };
        [&self.first, &self.second].into_iter().map(read).collect()
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.first.stop().await?;
        self.second.stop().await
    }
}
