//! PDCP PDUs for tshark: framed as Wireshark's PDCP-NR dissector wants them in UDP (its file packet-pdcp-nr.h): a signature, a
//! plane, tagged values, the PDU.

use l2::pdcp::{Bearer, Config};
use l2::security::Direction;

/// The number of the UE in frames.
pub const UE: u8 = 1;

/// Tags of the framing.
mod tag {
    pub const PAYLOAD: u8 = 1;
    pub const SN_LENGTH: u8 = 2;
    pub const DIRECTION: u8 = 3;
    pub const BEARER_TYPE: u8 = 4;
    pub const BEARER_ID: u8 = 5;
    pub const UE_ID: u8 = 6;
    pub const MAC_I: u8 = 0x0F;
    pub const SDAP: u8 = 0x10;
}

/// A PDU in its framing.
pub fn frame(config: &Config, direction: Direction, mac_i: bool, sdap: bool, pdu: &[u8]) -> Vec<u8> {
    let (plane, id) = match config.bearer() {
        Bearer::Srb(id) => (1, id as u8),
        Bearer::Drb(id) => (2, id.number()),
    };
    let mut frame = b"pdcp-nr".to_vec();
    frame.push(plane);
    frame.extend([tag::SN_LENGTH, config.sn().bits() as u8, tag::DIRECTION, direction as u8]);
    // DCCH.
    frame.extend([tag::BEARER_TYPE, 1, tag::BEARER_ID, id, tag::UE_ID, 0, UE]);
    if mac_i {
        frame.push(tag::MAC_I);
    }
    if sdap {
        frame.extend([tag::SDAP, 3]);
    }
    frame.push(tag::PAYLOAD);
    frame.extend_from_slice(pdu);
    frame
}

/// tshark's preference with a UE's keys: K_RRCenc, K_UPenc, K_RRCint, K_UPint.
pub fn keys(ue: u8, keys: [&str; 4]) -> String {
    let keys = keys.map(|key| format!(",\"{key}\"")).concat();
    format!("uat:pdcp_nr_ue_keys:\"{ue}\"{keys}")
}
