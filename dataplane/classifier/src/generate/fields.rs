//! The fields of a PDR beyond the 5-tuple, added to a drawn filter.
//!
//! There are no published statistics of PDRs. The shares below follow the contents of a session's rules (TS
//! 29.244 §7.5.2.2, TS 23.501 §5.8.2): every rule has a source interface; rules of the access side have a
//! tunnel and often a QFI; rules on a UE host have its address. The rarer fields are frequent enough that a set
//! of a hundred rules has each of them.
//!
//! | field | share of rules | values |
//! |---|---|---|
//! | source interface | all | access (half of the rules) or core |
//! | local F-TEID: TEID | 60 % of access | one of 1 + n/64 |
//! | local F-TEID: address | 80 % of these | one of 2 |
//! | QFI | 50 % of access | 1, 5, 9 mostly; else 2…63 |
//! | network instance | 50 % | one of 8 |
//! | UE address instead of source (access) or destination (core) | 40 %, where that is a host | as drawn |
//! | ToS | 20 % | DSCP classes under mask 0xFC; a tenth of them a mask with a hole |
//! | application ID | 12 % | one of 64 |
//! | traffic endpoint | 8 % | one of 16 |
//! | IPv6 instead of IPv4 | 10 % | the IPv4 bits behind 2001:db8::/32; hosts as /64 or /128 |
//! | flow label | 30 % of IPv6 | any |
//! | SPI, with ESP instead of ports | 2 % | any |
//! | Ethernet header | 5 % | Ethertype; half a destination, a quarter a masked source address, VLAN tags |

use std::net::{IpAddr, Ipv6Addr};

use super::Random;
use crate::{
    EthernetFilter, Family, Filter, FlowLabel, Interface, LocalAddress, Masked, NetworkInstance, Prefix, Qfi,
    Side,
};

/// Source interface values of TS 29.244 §8.2.2.
pub(super) const ACCESS: u8 = 0;
pub(super) const CORE: u8 = 1;
/// Protocol number of ESP.
const ESP: u8 = 50;

fn length(prefix: &Prefix) -> u8 {
    prefix.length()
}

/// The n-th tunnel endpoint identifier: spread over the range, as UPFs assign them.
pub(super) fn teid(number: usize) -> u32 {
    (number as u32 + 1).wrapping_mul(0x0001_0001)
}

/// Number of tunnel endpoints that the rules of a set of `n` share.
pub(super) fn teids(n: usize) -> usize {
    1 + n / 64
}

pub(super) fn extend(filter: &mut Filter, n: usize, random: &mut Random) {
    let access = random.chance(500);
    if random.chance(100) {
        to_v6(filter, random);
    }
    if random.chance(20) {
        filter.spi = Some(random.word());
        filter.protocol = Some(ESP);
        (filter.source_ports, filter.destination_ports) = (None, None);
    }
    filter.source_interface = Interface::new(if access { ACCESS } else { CORE }).ok();
    if access {
        tunnel(filter, n, random);
    }
    if random.chance(500) {
        filter.network_instance = NetworkInstance::new(1 + random.below(8) as u16).ok();
    }
    if random.chance(400) {
        ue_address(filter, access);
    }
    if random.chance(200) {
        // Code points of expedited forwarding, assured forwarding and class selectors. Mask 0x5C is not
        // contiguous.
        let class = [46, 34, 26, 18, 10, 8, 0][random.below(7)];
        let mask = if random.chance(100) { 0x5C } else { 0xFC };
        filter.tos = Some(Masked::new(class << 2, mask));
    }
    if random.chance(120) {
        filter.application = Some(1 + random.below(64) as u32);
    }
    if random.chance(80) {
        filter.traffic_endpoint = Some(random.below(16) as u8);
    }
    if random.chance(50) {
        filter.ethernet = Some(ethernet(filter, random));
    }
}

fn tunnel(filter: &mut Filter, n: usize, random: &mut Random) {
    if random.chance(600) {
        filter.teid = Some(teid(random.below(teids(n))));
        if random.chance(800) {
            filter.local_address = LocalAddress::new(random.below(2) as u8).ok();
        }
    }
    if random.chance(500) {
        let common = [1, 5, 9, 1, 9, 9, 2 + random.below(62) as u8, 1];
        filter.qfi = Qfi::new(common[random.below(common.len())]).ok();
    }
}

/// Turns a host address into the condition on the UE's address.
fn ue_address(filter: &mut Filter, access: bool) {
    let (side, place) = if access {
        (Side::Source, &mut filter.source)
    } else {
        (Side::Destination, &mut filter.destination)
    };
    let host = |prefix: &Prefix| length(prefix) >= if prefix.family() == Family::V4 { 32 } else { 64 };
    if let Some(prefix) = place.take_if(|prefix| host(prefix)) {
        filter.ue = Some((side, prefix));
    }
}

fn to_v6(filter: &mut Filter, random: &mut Random) {
    let mut any = false;
    for prefix in [&mut filter.source, &mut filter.destination].into_iter().flatten() {
        let bits = length(prefix);
        let suffix = u128::from(random.bits());
        let address = 0x2001_0DB8_u128 << 96 | u128::from(prefix.word(0)) << 64 | suffix;
        let bits = match bits {
            32 if random.chance(500) => 128,
            32 => 64,
            shorter => 32 + shorter,
        };
        if let Ok(v6) = Prefix::new(IpAddr::V6(Ipv6Addr::from(address)), bits) {
            *prefix = v6;
            any = true;
        }
    }
    if any && random.chance(300) {
        filter.flow_label = FlowLabel::new(random.word() & 0xF_FFFF).ok();
    }
}

fn ethernet(filter: &Filter, random: &mut Random) -> EthernetFilter {
    let v6 = [filter.source, filter.destination].iter().flatten().any(|prefix| prefix.family() == Family::V6);
    let mut result =
        EthernetFilter { ethertype: Some(if v6 { 0x86DD } else { 0x0800 }), ..EthernetFilter::default() };
    // Locally administered addresses of a few hundred devices of one vendor.
    let station = |random: &mut Random| [0x02, 0x47, 0x57, 0, random.below(2) as u8, random.word() as u8];
    if random.chance(500) {
        result.destination = Masked::mac(station(random), [0xFF; 6]);
    }
    if random.chance(250) {
        result.source = Masked::mac(station(random), [0xFF, 0xFF, 0xFF, 0, 0, 0]);
    }
    if random.chance(400) {
        result.c_tag = Some(Masked::tag(1 + random.below(100) as u16, 0x0FFF));
    }
    if random.chance(100) {
        result.s_tag = Some(Masked::tag(1 + random.below(10) as u16, 0x0FFF));
    }
    result
}
