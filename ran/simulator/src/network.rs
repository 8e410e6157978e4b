//! What the UEs of a run camp on: gNBs in one piece that this process runs, or the cells of gNBs in parts.

use crate::access::Access;
use crate::config::Config;
use crate::event::Event;
use crate::gnb::Gnb;
use crate::run::RunError;
use crate::user_plane::UserPlane;

/// The radio network of a run.
pub(crate) enum Network {
    /// gNBs in one piece, and the tunnels of all of them.
    Gnbs(Vec<Gnb>, Option<UserPlane>),
    /// The UEs' end of the radio.
    Cells(ue::Ues),
}

/// Packets of UEs.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Packets {
    pub(crate) uplink: u64,
    pub(crate) downlink: u64,
    pub(crate) dropped: u64,
}

impl Network {
    /// Starts what the configuration says. `sink` hears of each gNB or cell.
    pub(crate) async fn start(config: &Config, sink: &impl Fn(&Event)) -> Result<Self, RunError> {
        if let Some(split) = &config.split {
            let ues = ue::Ues::start(split, None).await.map_err(RunError::Cells)?;
            for cell in ues.cells() {
                sink(&Event::Cell { cell: cell.id().to_string(), du: cell.du() });
            }
            return Ok(Self::Cells(ues));
        }
        let n3 = config.n3.unwrap_or(config.n2);
        let user_plane = match config.ue.session {
            Some(_) => {
                Some(UserPlane::start(n3).map_err(|source| RunError::UserPlane { address: n3, source })?)
            }
            None => None,
        };
        let mut gnbs = Vec::new();
        for index in 0..config.gnbs.max(1) {
            let gnb = config.gnb(index);
            let id = gnb.id;
            let connected = Gnb::connect(gnb, user_plane.clone()).await;
            let gnb = connected.map_err(|source| RunError::Gnb { id, source })?;
            sink(&Event::Gnb {
                gnb: format!("{id:#x}"),
                amf: gnb.amf_name().to_owned(),
                setup_ms: gnb.setup_ms(),
            });
            gnbs.push(gnb);
        }
        Ok(Self::Gnbs(gnbs, user_plane))
    }

    /// Where UEs can camp; there is at least one place.
    pub(crate) fn accesses(&self) -> Vec<Access> {
        match self {
            Self::Gnbs(gnbs, _) => gnbs.iter().cloned().map(Access::from).collect(),
            Self::Cells(ues) => ues.cells().map(Access::from).collect(),
        }
    }

    /// Packets so far.
    pub(crate) fn packets(&self) -> Packets {
        match self {
            Self::Gnbs(_, user_plane) => {
                let counters = user_plane.as_ref().map(UserPlane::counters).unwrap_or_default();
                let (uplink, downlink, dropped) = (counters.uplink, counters.downlink, counters.dropped);
                Packets { uplink, downlink, dropped }
            }
            Self::Cells(ues) => {
                let ue::Totals { uplink, downlink, dropped } = ues.totals();
                Packets { uplink, downlink, dropped }
            }
        }
    }

    /// Ends it.
    pub(crate) async fn shutdown(&self) {
        match self {
            Self::Gnbs(gnbs, _) => {
                for gnb in gnbs {
                    gnb.shutdown().await;
                }
            }
            // Dropping it ends it.
            Self::Cells(_) => {}
        }
    }
}
