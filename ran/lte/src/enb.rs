//! An eNB: its identity and its end of S1-U. What an MME tells it arrives at once, because there is no S1AP.

use std::io;
use std::net::IpAddr;

use gtpv2c::{Ecgi, FTeid, InterfaceType, Tai, Uli};
use simulator::UserPlane;
use simulator::user_plane::Tunnel;
use types::{Plmn, Teid};

use crate::ue::Failure;

/// Handle to an eNB; clones share its user plane.
#[derive(Debug, Clone)]
pub struct Enb {
    id: u32,
    user_plane: UserPlane,
}

impl Enb {
    /// Binds S1-U (GTP-U, port 2152) on `address`. `id` has 20 bits.
    ///
    /// # Errors
    /// The address is not of this host, or the port is in use.
    pub fn start(id: u32, address: IpAddr) -> io::Result<Self> {
        Ok(Self { id, user_plane: UserPlane::start(address)? })
    }

    /// Its identity.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The address of S1-U.
    pub fn address(&self) -> IpAddr {
        self.user_plane.address()
    }

    /// S1-U.
    pub fn user_plane(&self) -> &UserPlane {
        &self.user_plane
    }

    /// Opens this end of a bearer's tunnel to the S-GW's end.
    pub(crate) fn open(&self, sgw: FTeid) -> Result<Tunnel, Failure> {
        let address = sgw.address().ok_or(Failure::Lacks("address of the S-GW"))?;
        Ok(self.user_plane.open(address, Teid(sgw.teid), None)?)
    }

    /// This end of a tunnel, for the S-GW.
    pub(crate) fn f_teid(&self, tunnel: &Tunnel) -> FTeid {
        FTeid::new(InterfaceType::S1U_ENB, tunnel.local().teid.0, self.address())
    }

    /// Where a UE of this eNB is: in its first cell.
    pub(crate) fn location(&self, plmn: Plmn, tac: u16) -> Uli {
        let ecgi = Ecgi { plmn, eci: self.id << 8 };
        Uli { tai: Some(Tai { plmn, tac }), ecgi: Some(ecgi), ..Uli::default() }
    }
}
