//! What a gNB says of itself in NG Setup, and where it finds its AMF.

use std::net::{IpAddr, SocketAddr};

use net::sctp::SctpConfig;
use types::{NrCellId, Plmn, SNssai, Tac};

/// Bits of our gNB identities. The other 12 bits of an NR Cell Identity number the cells of the gNB.
pub const GNB_ID_BITS: u8 = 24;

/// One gNB.
#[derive(Debug, Clone)]
pub struct GnbConfig {
    /// Identity, 24 bits.
    pub id: u32,
    /// Its name; `None`: made of the identity.
    pub name: Option<String>,
    /// PLMN it belongs to and broadcasts.
    pub plmn: Plmn,
    /// Tracking area of its cells.
    pub tac: Tac,
    /// Slices it supports.
    pub slices: Vec<SNssai>,
    /// Where the AMF listens. The first address that answers is used.
    pub amf: Vec<SocketAddr>,
    /// Local address of N2.
    pub n2: IpAddr,
    /// SCTP parameters.
    pub sctp: SctpConfig,
}

impl GnbConfig {
    /// The identity of one of its cells, of whose number the low 12 bits count.
    pub fn cell(&self, cell: u16) -> NrCellId {
        let own = u64::from(self.id) & ((1 << GNB_ID_BITS) - 1);
        let cell = own << (36 - GNB_ID_BITS) | u64::from(cell & 0xfff);
        NrCellId::new(cell).expect("24 bits and 12 are the 36 of a cell")
    }
}
