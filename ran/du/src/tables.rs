//! The UEs and bearers of a DU, which one worker owns.
//!
//! A TEID's low 20 bits are the bearer's position in the table and its high 12 bits a generation, so that packets of a removed
//! bearer do not reach the next one at its position. Positions are reused as late as possible. Position 0 is never used.
//! Generations, and the C-RNTIs of random access, begin at random: what is on its way for a DU that was started anew does not reach
//! a UE of its successor.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use l2::rlc::um;
use l2::srb::Srbs;
use l2::uu::{self, ContentionIdentity};

use crate::control::{BearerSetup, PdcpSn, Place, Refused, Tunnel};
use crate::limit::Limit;
use crate::peers::PeerNumbers;
use crate::radio::{Link, Radio};
use crate::scheduler::{Mark, refresh};
use crate::stats::BearerStats;
use crate::status::Reception;
use crate::uplink_queue::UplinkQueue;

/// Bits of a TEID that are the position in the table.
const POSITION_BITS: u32 = 20;
/// Most bearers at once.
const MAX_BEARERS: u32 = (1 << POSITION_BITS) - 1;
/// Logical channels of data bearers.
pub(crate) const DATA_LCIDS: std::ops::RangeInclusive<u8> = 4..=uu::MAX_LCID;
/// Octets in front of an SDU for the UE: the header of `uu` and that of RLC.
pub(crate) const PREFIX: usize = uu::HEADER_LEN + 1;
/// The lowest C-RNTI that random access gives out: lower ones are left to control.
const FIRST_C_RNTI: u16 = 0x4601;

/// A data bearer. What the straight way needs comes first.
pub(crate) struct Bearer {
    pub(crate) teid: u32,
    /// Whether packets for the UE pass at once.
    pub(crate) straight: bool,
    pub(crate) ue_peer: u16,
    pub(crate) uu_interface: u8,
    pub(crate) cu_peer: u16,
    /// Headers of an SDU in one piece for the UE.
    pub(crate) prefix: [u8; PREFIX],
    pub(crate) pdcp: PdcpSn,
    pub(crate) cu: Tunnel,
    pub(crate) reception: Reception,
    /// When the next delivery status is due, if one is.
    pub(crate) status_due_ns: Option<u64>,
    /// Since when the CU says that it does not know the tunnel.
    pub(crate) unknown_since_ns: Option<u64>,
    pub(crate) stats: Arc<BearerStats>,
    pub(crate) c_rnti: u16,
    pub(crate) lcid: u8,
    /// Packets for the UE that wait for the radio link, and how many octets may.
    pub(crate) tx: Box<um::Tx<Mark>>,
    pub(crate) queue: usize,
    pub(crate) rx: Box<um::Rx>,
    /// Whether a timer for t-Reassembly is set.
    pub(crate) reassembly_timed: bool,
}

/// A UE.
pub(crate) struct Ue {
    pub(crate) place: Place,
    pub(crate) peer: u16,
    /// Positions of its data bearers by LCID; 0 for none.
    pub(crate) bearers: [u32; uu::MAX_LCID as usize + 1],
    /// Tells it from others that have had its C-RNTI.
    pub(crate) serial: u64,
    /// What its preamble said, if it came by random access.
    pub(crate) identity: Option<ContentionIdentity>,
    /// Whether it has sent an RRC message, or was added by control.
    pub(crate) confirmed: bool,
    /// Whether control has sent it an RRC message, or has added it. Before that it has no SRB1.
    pub(crate) answered: bool,
    /// What it may make control do.
    pub(crate) signalling: Limit,
    /// Whether PDUs of the UE pass at once.
    pub(crate) straight_up: bool,
    pub(crate) downlink: Link,
    pub(crate) uplink: Link,
    /// PDUs of the UE that wait for the radio link.
    pub(crate) uplink_queue: UplinkQueue,
    /// SRB1 and SRB2.
    pub(crate) srbs: Srbs,
    /// Set when control has released it: what it sends is not told, and at this time it goes.
    pub(crate) leaves_by_ns: Option<u64>,
    /// Whether it gets grants.
    pub(crate) active: bool,
    /// Which of its bearers comes first in its next grant.
    pub(crate) turn: u8,
}

impl Ue {
    /// The channels of its data bearers.
    pub(crate) fn lcids(&self) -> impl Iterator<Item = u8> + Clone + use<> {
        let bearers = self.bearers;
        DATA_LCIDS.filter(move |lcid| bearers[usize::from(*lcid)] != 0)
    }
}

struct Slot {
    /// That of the bearer, or of the last one.
    generation: u16,
    bearer: Option<Bearer>,
}

/// All UEs and bearers.
pub(crate) struct Tables {
    cell: u64,
    /// The radio link of new UEs.
    downlink: Radio,
    uplink: Radio,
    slots: Vec<Slot>,
    first_generation: u16,
    /// Positions that were used, the one that has been free for longest first.
    free: VecDeque<u32>,
    ues: Vec<Option<Box<Ue>>>,
    pub(crate) peers: PeerNumbers,
    /// Positions of bearers by their far ends, for Error Indications.
    by_cu: HashMap<(IpAddr, u32), u32>,
    /// UEs that came by random access.
    accesses: HashMap<(Place, ContentionIdentity), u16>,
    next_c_rnti: u16,
    serial: u64,
}

impl Tables {
    pub(crate) fn new(cell: u64, downlink: Radio, uplink: Radio) -> Tables {
        let random = RandomState::new().build_hasher().finish();
        let first_generation = (random >> 48) as u16;
        Tables {
            cell,
            downlink,
            uplink,
            slots: vec![Slot { generation: first_generation, bearer: None }],
            first_generation,
            free: VecDeque::new(),
            ues: Vec::new(),
            peers: PeerNumbers::default(),
            by_cu: HashMap::new(),
            accesses: HashMap::new(),
            next_c_rnti: FIRST_C_RNTI + random as u16 % (uu::MAX_C_RNTI - FIRST_C_RNTI + 1),
            serial: 0,
        }
    }

    /// The bearer with this TEID.
    #[inline]
    pub(crate) fn bearer_mut(&mut self, teid: u32) -> Option<&mut Bearer> {
        let slot = self.slots.get_mut((teid & MAX_BEARERS) as usize)?;
        slot.bearer.as_mut().filter(|bearer| bearer.teid == teid)
    }

    /// The UE with this C-RNTI.
    #[inline]
    pub(crate) fn ue(&self, c_rnti: u16) -> Option<&Ue> {
        self.ues.get(usize::from(c_rnti))?.as_deref()
    }

    pub(crate) fn ue_mut(&mut self, c_rnti: u16) -> Option<&mut Ue> {
        self.ues.get_mut(usize::from(c_rnti))?.as_deref_mut()
    }

    /// The bearer of a UE; the UE is known.
    #[inline]
    pub(crate) fn bearer_of(&mut self, c_rnti: u16, lcid: u8) -> Option<&mut Bearer> {
        let position = *self.ue(c_rnti)?.bearers.get(usize::from(lcid))?;
        self.slots.get_mut(position as usize)?.bearer.as_mut()
    }

    /// The bearer whose packets go to a TEID of a CU.
    pub(crate) fn bearer_to(&mut self, cu: IpAddr, teid: u32) -> Option<&mut Bearer> {
        let position = *self.by_cu.get(&(cu, teid))?;
        self.slots.get_mut(position as usize)?.bearer.as_mut()
    }

    pub(crate) fn add_ue(
        &mut self,
        c_rnti: u16,
        place: Place,
        identity: Option<ContentionIdentity>,
    ) -> Result<&mut Ue, Refused> {
        if c_rnti == 0 || c_rnti > uu::MAX_C_RNTI {
            return Err(Refused::Value);
        }
        if self.ue(c_rnti).is_some() {
            return Err(Refused::InUse);
        }
        let peer = self.peers.take(place.interface, place.address).ok_or(Refused::Full)?;
        if let Some(identity) = identity {
            self.accesses.insert((place, identity), c_rnti);
        }
        self.serial += 1;
        let at = usize::from(c_rnti);
        if self.ues.len() <= at {
            self.ues.resize_with(at + 1, || None);
        }
        let ue = Ue {
            place,
            peer,
            bearers: [0; uu::MAX_LCID as usize + 1],
            serial: self.serial,
            identity,
            confirmed: identity.is_none(),
            answered: identity.is_none(),
            signalling: Limit::new(500, 200),
            straight_up: self.uplink.is_unlimited(),
            downlink: Link::new(self.downlink),
            uplink: Link::new(self.uplink),
            uplink_queue: UplinkQueue::default(),
            srbs: Srbs::default(),
            leaves_by_ns: None,
            active: false,
            turn: 0,
        };
        Ok(self.ues[at].insert(Box::new(ue)))
    }

    /// The C-RNTI that a UE has already got for this preamble.
    pub(crate) fn accessed(&self, place: Place, identity: ContentionIdentity) -> Option<u16> {
        self.accesses.get(&(place, identity)).copied()
    }

    /// A C-RNTI that no UE has.
    pub(crate) fn free_c_rnti(&mut self) -> Option<u16> {
        for _ in FIRST_C_RNTI..=uu::MAX_C_RNTI {
            let c_rnti = self.next_c_rnti;
            self.next_c_rnti = if c_rnti < uu::MAX_C_RNTI { c_rnti + 1 } else { FIRST_C_RNTI };
            if self.ue(c_rnti).is_none() {
                return Some(c_rnti);
            }
        }
        None
    }

    /// Removes a UE, whose bearers have been removed.
    pub(crate) fn remove_ue(&mut self, c_rnti: u16) -> Result<(), Refused> {
        let ue = self.ues.get_mut(usize::from(c_rnti)).and_then(Option::take).ok_or(Refused::UnknownUe)?;
        self.peers.give_back(ue.place.interface, ue.place.address);
        if let Some(identity) = ue.identity {
            self.accesses.remove(&(ue.place, identity));
        }
        Ok(())
    }

    /// Adds a data bearer; returns it.
    pub(crate) fn add_bearer(&mut self, c_rnti: u16, setup: &BearerSetup) -> Result<&mut Bearer, Refused> {
        let ue = self.ue(c_rnti).ok_or(Refused::UnknownUe)?;
        if !DATA_LCIDS.contains(&setup.lcid) {
            return Err(Refused::Value);
        }
        if ue.bearers[usize::from(setup.lcid)] != 0 {
            return Err(Refused::InUse);
        }
        let (ue_peer, uu_interface) = (ue.peer, ue.place.interface);
        let cu_peer = self.peers.take(setup.cu.interface, setup.cu.address).ok_or(Refused::Full)?;
        let Some(position) = self.free_position() else {
            self.peers.give_back(setup.cu.interface, setup.cu.address);
            return Err(Refused::Full);
        };
        if let Some(ue) = self.ue_mut(c_rnti) {
            ue.bearers[usize::from(setup.lcid)] = position;
        }
        self.by_cu.insert((setup.cu.address.ip(), setup.cu.teid), position);
        let mut prefix = [um::HEADER_OF_WHOLE; PREFIX];
        prefix[..uu::HEADER_LEN]
            .copy_from_slice(&uu::Header::downlink(self.cell, c_rnti, setup.lcid).octets());
        let slot = &mut self.slots[position as usize];
        slot.generation = slot.generation.wrapping_add(1) & (u16::MAX >> (POSITION_BITS - 16));
        let t_reassembly_ns = setup.t_reassembly.as_nanos() as u64;
        slot.bearer = Some(Bearer {
            teid: u32::from(slot.generation) << POSITION_BITS | position,
            straight: false,
            ue_peer,
            uu_interface,
            cu_peer,
            prefix,
            pdcp: setup.pdcp,
            cu: setup.cu,
            reception: Reception::default(),
            status_due_ns: None,
            unknown_since_ns: None,
            stats: Arc::default(),
            c_rnti,
            lcid: setup.lcid,
            tx: Box::new(um::Tx::new(setup.rlc, setup.queue)),
            queue: setup.queue,
            rx: Box::new(um::Rx::new(setup.rlc, t_reassembly_ns, um::REASSEMBLY_LIMIT)),
            reassembly_timed: false,
        });
        refresh(self, c_rnti);
        self.slots[position as usize].bearer.as_mut().ok_or(Refused::UnknownBearer)
    }

    fn free_position(&mut self) -> Option<u32> {
        // A few positions stay free, so that none is reused at once.
        const REST: usize = 64;
        let new = self.slots.len() as u32;
        if self.free.len() < REST && new <= MAX_BEARERS {
            self.slots.push(Slot { generation: self.first_generation, bearer: None });
            return Some(new);
        }
        self.free.pop_front()
    }

    /// Sends what a bearer carries to another tunnel; returns the one before.
    pub(crate) fn redirect(&mut self, c_rnti: u16, lcid: u8, cu: Tunnel) -> Result<Tunnel, Refused> {
        let position = self.position(c_rnti, lcid)?;
        let cu_peer = self.peers.take(cu.interface, cu.address).ok_or(Refused::Full)?;
        self.by_cu.insert((cu.address.ip(), cu.teid), position);
        let bearer = self.slots[position as usize].bearer.as_mut().ok_or(Refused::UnknownBearer)?;
        let before = std::mem::replace(&mut bearer.cu, cu);
        bearer.cu_peer = cu_peer;
        // The other end counts anew.
        bearer.reception = Reception::default();
        bearer.unknown_since_ns = None;
        self.peers.give_back(before.interface, before.address);
        if (before.address.ip(), before.teid) != (cu.address.ip(), cu.teid) {
            self.forget_far_end(before.address, before.teid, position);
        }
        Ok(before)
    }

    fn forget_far_end(&mut self, address: SocketAddr, teid: u32, position: u32) {
        if self.by_cu.get(&(address.ip(), teid)) == Some(&position) {
            self.by_cu.remove(&(address.ip(), teid));
        }
    }

    fn position(&self, c_rnti: u16, lcid: u8) -> Result<u32, Refused> {
        let ue = self.ue(c_rnti).ok_or(Refused::UnknownUe)?;
        ue.bearers
            .get(usize::from(lcid))
            .copied()
            .filter(|position| *position != 0)
            .ok_or(Refused::UnknownBearer)
    }

    /// Takes a bearer out.
    pub(crate) fn remove_bearer(&mut self, c_rnti: u16, lcid: u8) -> Result<Bearer, Refused> {
        let position = self.position(c_rnti, lcid)?;
        if let Some(ue) = self.ue_mut(c_rnti) {
            ue.bearers[usize::from(lcid)] = 0;
        }
        let bearer = self.slots[position as usize].bearer.take().ok_or(Refused::UnknownBearer)?;
        self.free.push_back(position);
        self.peers.give_back(bearer.cu.interface, bearer.cu.address);
        self.forget_far_end(bearer.cu.address, bearer.cu.teid, position);
        Ok(bearer)
    }
}
