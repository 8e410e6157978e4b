//! EPS bearers (TS 23.401 §4.7.2).

use std::net::IpAddr;

use gtpv2c::value::{BearerQos, Ebi, FTeid, InterfaceType};
use types::Teid;

use crate::filters::Filter;

/// One end of a GTP-U tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tunnel {
    pub address: IpAddr,
    pub teid: Teid,
}

impl Tunnel {
    /// The tunnel end that a peer names; `None` without address.
    pub fn of(f_teid: FTeid) -> Option<Self> {
        Some(Self { address: f_teid.address()?, teid: Teid(f_teid.teid) })
    }

    /// As an F-TEID.
    pub fn f_teid(self, interface: InterfaceType) -> FTeid {
        FTeid::new(interface, self.teid.0, self.address)
    }
}

/// Place of a bearer in its PDN connection. Its rules on the UPF have numbers by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub u8);

impl Slot {
    /// The default bearer's.
    pub const DEFAULT: Self = Self(0);
    /// A UE has at most 11 bearers.
    pub const COUNT: u8 = 11;
}

/// A bearer of a PDN connection.
#[derive(Debug, Clone)]
pub(crate) struct Bearer {
    pub slot: Slot,
    /// Its identity, which the MME gives; 0 before.
    pub ebi: Ebi,
    pub qos: BearerQos,
    /// What it carries. The default bearer has none, and carries what no other bearer does.
    pub filters: Vec<Filter>,
    /// For charging records; the P-GW gives it, and is the only one in which it is unique.
    pub charging_id: u32,
    /// The UPF's end towards the eNB (S1-U), or with a P-GW alone towards the S-GW (S5/S8-U), once the UPF has chosen it.
    pub own: Option<Tunnel>,
    /// The eNB's end, or with a P-GW alone the S-GW's. `None`: the UE is idle, and its packets are buffered.
    pub access: Option<Tunnel>,
    /// S5/S8-U of an S-GW alone.
    pub s5: S5Tunnel,
}

/// A bearer's tunnel between S-GW and P-GW.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct S5Tunnel {
    /// The UPF's end, once the UPF has chosen it.
    pub own: Option<Tunnel>,
    /// The P-GW's end, once the P-GW has named it.
    pub pgw: Option<Tunnel>,
}

impl Bearer {
    /// Whether its rates are guaranteed (TS 23.203 table 6.1.7-A). It has a QER of its own then.
    pub fn is_gbr(&self) -> bool {
        is_gbr(self.qos.flow.qci)
    }
}

/// Whether a class has guaranteed rates.
pub(crate) fn is_gbr(qci: u8) -> bool {
    matches!(qci, 1..=4 | 65..=67 | 71..=76)
}
