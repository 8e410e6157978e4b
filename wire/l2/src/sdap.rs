//! SDAP (TS 37.324): the headers, and which data radio bearer a QoS flow uses.
//!
//! ```text
//! downlink data   RDI RQI QFI(6)       uplink data   1 R QFI(6)       end marker (uplink)   0 R QFI(6)
//! ```
//! Each bearer has the header or not, per direction. Without it the bearer carries one QoS flow, and the receiver knows
//! the flow from the configuration. [`Entity`] is one PDU session's, at the UE or in the CU; it holds no packets.

use types::Qfi;

use crate::security::Direction;

/// Octets of the SDAP header and of the end marker.
pub const HEADER_LEN: usize = 1;
/// QoS flows of a PDU session.
const FLOWS: usize = 64;
/// Data radio bearers of a UE (TS 38.331 maxDRB is 29; DRB identities go to 32).
const DRBS: usize = 32;

const DATA: u8 = 0x80;
const RDI: u8 = 0x80;
const RQI: u8 = 0x40;
const QFI: u8 = 0x3F;

/// Identity of a data radio bearer, 1…32 (TS 38.331 DRB-Identity).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DrbId(u8);

impl DrbId {
    /// The identity with this number; `None` when it is not in 1…32.
    pub const fn new(number: u8) -> Option<Self> {
        if number >= 1 && number as usize <= DRBS { Some(Self(number)) } else { None }
    }

    /// The number, 1…32.
    pub const fn number(self) -> u8 {
        self.0
    }

    fn index(self) -> usize {
        usize::from(self.0) - 1
    }
}

/// The header of a downlink data PDU (§6.2.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownlinkHeader {
    /// Reflective mapping of the flow to the bearer: the UE updates its rule for the uplink.
    pub rdi: bool,
    /// Reflective QoS: NAS of the UE is told that the rule of this flow was updated.
    pub rqi: bool,
    /// The QoS flow.
    pub qfi: Qfi,
}

impl DownlinkHeader {
    /// Reads the header.
    #[inline]
    pub fn decode(octet: u8) -> Self {
        Self { rdi: octet & RDI != 0, rqi: octet & RQI != 0, qfi: flow(octet) }
    }

    /// The octet.
    #[inline]
    pub fn encode(self) -> u8 {
        u8::from(self.rdi) << 7 | u8::from(self.rqi) << 6 | self.qfi.value()
    }
}

/// An uplink PDU on a bearer with the header: its first octet (§6.2.2.3, §6.2.3). The reserved bit is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uplink {
    /// A packet of the flow follows.
    Data(Qfi),
    /// The flow's last packet on this bearer was before; nothing follows.
    EndMarker(Qfi),
}

impl Uplink {
    /// Reads the octet.
    #[inline]
    pub fn decode(octet: u8) -> Self {
        if octet & DATA != 0 { Uplink::Data(flow(octet)) } else { Uplink::EndMarker(flow(octet)) }
    }

    /// The octet.
    #[inline]
    pub fn encode(self) -> u8 {
        match self {
            Uplink::Data(qfi) => DATA | qfi.value(),
            Uplink::EndMarker(qfi) => qfi.value(),
        }
    }
}

#[inline]
fn flow(octet: u8) -> Qfi {
    Qfi::new(octet & QFI).expect("six bits are a QFI")
}

/// A bearer's configuration (TS 38.331 SDAP-Config).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drb {
    /// The bearer.
    pub id: DrbId,
    /// Header on uplink PDUs.
    pub uplink_header: bool,
    /// Header on downlink PDUs.
    pub downlink_header: bool,
}

/// A configuration that TS 38.331 excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The default bearer takes packets of any flow, so its uplink needs the header.
    #[error("the default bearer has no uplink SDAP header")]
    DefaultWithoutHeader,
    /// A bearer that the session does not have.
    #[error("bearer {} is not one of the PDU session", .0.number())]
    UnknownBearer(DrbId),
    /// Without header the receiver could not tell two flows apart.
    #[error("bearer {} has no header, and carries QoS flow {} already", drb.number(), flow.value())]
    FlowsWithoutHeader {
        /// The bearer.
        drb: DrbId,
        /// The flow that it carries.
        flow: Qfi,
    },
}

/// The SDAP entity of a PDU session: its bearers, and the bearer of each QoS flow.
#[derive(Debug, Clone)]
pub struct Entity {
    /// By QFI.
    flows: [Option<DrbId>; FLOWS],
    /// By bearer.
    drbs: [Option<Drb>; DRBS],
    default: Option<DrbId>,
}

impl Default for Entity {
    fn default() -> Self {
        Self { flows: [None; FLOWS], drbs: [None; DRBS], default: None }
    }
}

impl Entity {
    /// An entity without bearers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a bearer or changes its configuration.
    ///
    /// # Errors
    /// When it is to be the default bearer and its uplink has no header.
    pub fn add_drb(&mut self, drb: Drb, default: bool) -> Result<(), ConfigError> {
        if default && !drb.uplink_header {
            return Err(ConfigError::DefaultWithoutHeader);
        }
        self.drbs[drb.id.index()] = Some(drb);
        if default {
            self.default = Some(drb.id);
        } else if self.default == Some(drb.id) {
            self.default = None;
        }
        Ok(())
    }

    /// Removes a bearer and the rules that lead to it (§5.3.1).
    pub fn remove_drb(&mut self, id: DrbId) {
        self.drbs[id.index()] = None;
        for flow in &mut self.flows {
            if *flow == Some(id) {
                *flow = None;
            }
        }
        if self.default == Some(id) {
            self.default = None;
        }
    }

    /// Maps a flow to a bearer. The UE sends the returned end marker on the bearer that the flow had (§5.3.1).
    ///
    /// # Errors
    /// When the session has no such bearer, or when the bearer lacks a header and carries another flow.
    pub fn map(&mut self, qfi: Qfi, id: DrbId) -> Result<Option<(DrbId, Uplink)>, ConfigError> {
        let Some(drb) = self.drbs[id.index()] else { return Err(ConfigError::UnknownBearer(id)) };
        let other = self.flows_of(id).find(|flow| *flow != qfi);
        if let Some(flow) = other
            && !(drb.uplink_header && drb.downlink_header)
        {
            return Err(ConfigError::FlowsWithoutHeader { drb: id, flow });
        }
        let before = self.drb(qfi);
        self.flows[usize::from(qfi.value())] = Some(id);
        let before = before.filter(|before| *before != id && self.has_header(*before, Direction::Uplink));
        Ok(before.map(|before| (before, Uplink::EndMarker(qfi))))
    }

    /// Removes the rule of a flow.
    pub fn unmap(&mut self, qfi: Qfi) {
        self.flows[usize::from(qfi.value())] = None;
    }

    /// The bearer of a flow: by its rule, else the default bearer (§5.2.1).
    #[inline]
    pub fn drb(&self, qfi: Qfi) -> Option<DrbId> {
        self.flows[usize::from(qfi.value())].or(self.default)
    }

    /// Whether PDUs of a bearer have the header.
    #[inline]
    pub fn has_header(&self, id: DrbId, direction: Direction) -> bool {
        self.drbs[id.index()].is_some_and(|drb| match direction {
            Direction::Uplink => drb.uplink_header,
            Direction::Downlink => drb.downlink_header,
        })
    }

    /// The flow of a bearer without header: the one that is mapped to it.
    pub fn flow_of(&self, id: DrbId) -> Option<Qfi> {
        self.flows_of(id).next()
    }

    fn flows_of(&self, id: DrbId) -> impl Iterator<Item = Qfi> + '_ {
        let mapped = self.flows.iter().zip(0..).filter(move |(drb, _)| **drb == Some(id));
        mapped.filter_map(|(_, number)| Qfi::new(number).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qfi(value: u8) -> Qfi {
        Qfi::new(value).unwrap()
    }

    fn drb(number: u8, uplink_header: bool, downlink_header: bool) -> Drb {
        Drb { id: DrbId::new(number).unwrap(), uplink_header, downlink_header }
    }

    #[test]
    fn every_octet_is_a_header_in_each_direction() {
        for octet in 0..=255 {
            let header = DownlinkHeader::decode(octet);
            assert_eq!(header.encode(), octet);
            assert_eq!((header.rdi, header.rqi), (octet & 0x80 != 0, octet & 0x40 != 0));
            let uplink = Uplink::decode(octet);
            // The reserved bit is sent as zero.
            assert_eq!(uplink.encode(), octet & 0xBF);
            let expected = if octet & 0x80 != 0 {
                Uplink::Data(qfi(octet & 63))
            } else {
                Uplink::EndMarker(qfi(octet & 63))
            };
            assert_eq!(uplink, expected);
        }
    }

    #[test]
    fn flows_without_rule_use_the_default_bearer() {
        let mut entity = Entity::new();
        let (first, second) = (drb(1, true, true), drb(32, true, false));
        entity.add_drb(first, true).unwrap();
        entity.add_drb(second, false).unwrap();
        assert_eq!(entity.map(qfi(9), second.id), Ok(Some((first.id, Uplink::EndMarker(qfi(9))))));
        for value in 0..64 {
            let expected = if value == 9 { second.id } else { first.id };
            assert_eq!(entity.drb(qfi(value)), Some(expected));
        }
        assert_eq!(entity.flow_of(second.id), Some(qfi(9)));
        assert!(entity.has_header(second.id, Direction::Uplink));
        assert!(!entity.has_header(second.id, Direction::Downlink));
        entity.remove_drb(second.id);
        assert_eq!(entity.drb(qfi(9)), Some(first.id));
        assert_eq!(entity.map(qfi(9), second.id), Err(ConfigError::UnknownBearer(second.id)));
        entity.remove_drb(first.id);
        assert_eq!(entity.drb(qfi(9)), None);
    }

    #[test]
    fn a_bearer_without_header_carries_one_flow() {
        let mut entity = Entity::new();
        let only = drb(3, true, false);
        assert_eq!(entity.add_drb(drb(1, false, true), true), Err(ConfigError::DefaultWithoutHeader));
        entity.add_drb(only, false).unwrap();
        assert_eq!(entity.map(qfi(1), only.id), Ok(None));
        assert_eq!(entity.map(qfi(1), only.id), Ok(None), "the same rule again changes nothing");
        let refused = ConfigError::FlowsWithoutHeader { drb: only.id, flow: qfi(1) };
        assert_eq!(entity.map(qfi(2), only.id), Err(refused));
        assert_eq!(entity.drb(qfi(2)), None, "a refused rule is not kept");
        entity.unmap(qfi(1));
        assert_eq!(entity.map(qfi(2), only.id), Ok(None));
    }

    #[test]
    fn a_flow_that_moves_ends_with_a_marker_on_bearers_with_header() {
        let mut entity = Entity::new();
        let (marked, silent) = (drb(1, true, true), drb(2, false, false));
        entity.add_drb(marked, false).unwrap();
        entity.add_drb(silent, false).unwrap();
        assert_eq!(entity.map(qfi(5), marked.id), Ok(None), "it had no bearer before");
        assert_eq!(entity.map(qfi(5), silent.id), Ok(Some((marked.id, Uplink::EndMarker(qfi(5))))));
        assert_eq!(entity.map(qfi(5), marked.id), Ok(None), "that bearer has no header to mark");
    }

    #[test]
    fn identities_of_bearers() {
        assert_eq!(DrbId::new(0), None);
        assert_eq!(DrbId::new(33), None);
        assert_eq!(DrbId::new(32).map(DrbId::number), Some(32));
    }
}
