//! Checks that packets arrive with every octet as expected.
//!
//! Every octet of a user's packet follows from its direction, its length, its subscriber and the mark in it
//! ([`super::traffic`]). So the receiving end reads these from the packet, makes the packet again, and
//! compares. A [`Tally`] counts compared packets and becomes a check of the experiment: damaged packets fail
//! it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use packet::checksum::Sum;
use packet::gtpu::{self, PduSession, message_type};
use packet::transport::Udp;
use packet::{ipv4, protocol};

use super::subscriber::{OTHER_PORT, QFI, SERVER, Subscriber};
use super::traffic::{Template, UDP_HEADER, UE_PORT, marked_payload};

/// The values that a packet contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) subscriber: Subscriber,
    /// Number in the mark.
    pub(crate) number: u32,
    pub(crate) time_ns: u64,
    /// Octets of the user's packet.
    pub(crate) size: usize,
}

/// The part of a packet that differs from the expected one.
pub(crate) type Wrong = &'static str;

/// Makes the expected packets.
pub(crate) struct Contents {
    /// Added to UE addresses.
    shift: u32,
    /// Templates by direction (true for uplink) and length.
    templates: BTreeMap<(bool, usize), Template>,
}

impl Contents {
    /// For packets of UEs whose addresses are shifted by `shift`.
    pub(crate) fn new(shift: u32) -> Contents {
        Contents { shift, templates: BTreeMap::new() }
    }

    /// Compares a user's packet, starting at its IPv4 header.
    pub(crate) fn user_packet(&mut self, up: bool, user: &[u8]) -> Result<Found, Wrong> {
        let (addresses, ports) = (user.get(12..20), user.get(20..24));
        let (Some(addresses), Some(ports)) = (addresses, ports) else { return Err("a packet cut short") };
        let (ue, port) = if up { (&addresses[..4], &ports[2..]) } else { (&addresses[4..], &ports[..2]) };
        let service = port != OTHER_PORT.to_be_bytes();
        let subscriber = self.subscriber(Ipv4Addr::new(ue[0], ue[1], ue[2], ue[3]))?;
        self.compare(up, (subscriber, service), user, 0)
    }

    /// Compares the payload of a datagram that a UE sent, or that the server sent to a UE.
    pub(crate) fn datagram(&mut self, up: bool, ue: Ipv4Addr, payload: &[u8]) -> Result<Found, Wrong> {
        let subscriber = self.subscriber(ue)?;
        self.compare(up, (subscriber, false), payload, ipv4::HEADER_LEN + UDP_HEADER)
    }

    fn subscriber(&self, ue: Ipv4Addr) -> Result<Subscriber, Wrong> {
        let first = Subscriber(0).ue().to_bits() + self.shift;
        ue.to_bits().checked_sub(first).map(Subscriber).ok_or("the UE's address")
    }

    /// Compares a subscriber's packet, starting at octet `from`.
    fn compare(
        &mut self,
        up: bool,
        (subscriber, service): (Subscriber, bool),
        bytes: &[u8],
        from: usize,
    ) -> Result<Found, Wrong> {
        let size = from + bytes.len();
        let payload = bytes.get(ipv4::HEADER_LEN + UDP_HEADER - from..).unwrap_or_default();
        let (number, time_ns) = marked_payload(payload).ok_or("a packet cut short")?;
        let template = match self.templates.entry((up, size)) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                let template = Template::user(up, size).map_err(|_| "a length that no packet has")?;
                place.insert(template.shifted(self.shift))
            }
        };
        template.mark(number, time_ns);
        let wanted = template.fill(subscriber, 0, service);
        match wanted.get(from..) {
            Some(wanted) if wanted == bytes => Ok(Found { subscriber, number, time_ns, size }),
            _ => Err("the user's packet"),
        }
    }

    /// Compares a downlink packet whose headers the kernel has made. The kernel chooses identification, time to
    /// live and checksum, which are not compared.
    pub(crate) fn sent_by_socket(&mut self, user: &[u8]) -> Result<Found, Wrong> {
        let (from, to, datagram) = datagram(user)?;
        if from != SERVER || [datagram.source_port(), datagram.destination_port()] != [OTHER_PORT, UE_PORT] {
            return Err("the user's addresses and ports");
        }
        self.datagram(false, to, datagram.payload())
    }
}

/// Source, destination and datagram of an IPv4 packet; checks that nothing follows, and the checksums.
pub(crate) fn datagram(bytes: &[u8]) -> Result<(Ipv4Addr, Ipv4Addr, Udp<'_>), Wrong> {
    let packet = ipv4::Packet::new(bytes).map_err(|_| "an IPv4 header")?;
    let whole = packet.bytes().len() == bytes.len() && packet.fragment_offset() == 0;
    if !whole || packet.more_fragments() || packet.protocol() != protocol::UDP || !packet.checksum_ok() {
        return Err("an IPv4 header");
    }
    let datagram = Udp::new(packet.payload()).map_err(|_| "a UDP header")?;
    let (from, to) = (packet.source(), packet.destination());
    let length = datagram.payload().len() + UDP_HEADER;
    // Between network devices of one machine a kernel may leave only the sum of the pseudo-header in the field,
    // which an adapter would complete. The payload is compared in any case.
    let unfinished = !Sum::default().pseudo_header(from.into(), to.into(), protocol::UDP, length).finish();
    let is_unfinished = packet.payload().get(6..8) == Some(&unfinished.to_be_bytes());
    let summed = is_unfinished || datagram.checksum_ok(from.into(), to.into());
    match length == packet.payload().len() && summed {
        true => Ok((from, to, datagram)),
        false => Err("a UDP header"),
    }
}

/// TEID and user's packet of a G-PDU; checks that nothing follows, and that its container is for this
/// direction.
pub(crate) fn gpdu(up: bool, bytes: &[u8]) -> Result<(u32, &[u8]), Wrong> {
    let packet = gtpu::Packet::new(bytes).map_err(|_| "a GTP-U header")?;
    let container = match up {
        true => PduSession::Uplink { qfi: QFI },
        false => PduSession::Downlink { qfi: QFI, rqi: false, ppi: None },
    };
    let whole = packet.bytes().len() == bytes.len() && packet.pdu_session() == Some(container);
    match whole && packet.message_type() == message_type::G_PDU {
        true => Ok((packet.teid(), packet.payload())),
        false => Err("a GTP-U header"),
    }
}

/// Whether a UPF asks for an answer, to see that its peer is alive (TS 29.281 §7.2.1): no packet of a user.
pub(crate) fn is_echo_request(bytes: &[u8]) -> bool {
    gtpu::Packet::new(bytes).is_ok_and(|packet| packet.message_type() == message_type::ECHO_REQUEST)
}

/// A destination as IPv4 address, for comparison.
pub(crate) fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

/// Count of packets compared at a receiving end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) compared: u64,
    pub(crate) wrong: u64,
    /// Description of the first wrong packet, with its octets.
    first: Option<String>,
}

/// Most octets of a wrong packet that are shown.
const SHOWN: usize = 160;

impl Tally {
    /// Counts a compared packet.
    #[inline]
    pub(crate) fn count<T>(&mut self, compared: Result<T, Wrong>, bytes: &[u8]) -> Option<T> {
        self.compared += 1;
        compared.map_err(|wrong| self.count_wrong(wrong, bytes)).ok()
    }

    #[cold]
    fn count_wrong(&mut self, wrong: Wrong, bytes: &[u8]) {
        self.wrong += 1;
        if self.first.is_none() {
            let shown: String = bytes.iter().take(SHOWN).map(|octet| format!("{octet:02x}")).collect();
            self.first = Some(format!("{wrong} in {} octets {shown}", bytes.len()));
        }
    }

    /// Adds another count.
    pub(crate) fn add(&mut self, more: Tally) {
        self.compared += more.compared;
        self.wrong += more.wrong;
        self.first = self.first.take().or(more.first);
    }

    /// Whether packets were compared and none was wrong; and the numbers as text.
    pub(crate) fn judge(&self) -> (bool, String) {
        let first = self.first.as_ref().map(|first| format!("; the first: {first}")).unwrap_or_default();
        let detail = format!("{} compared, {} other than they must be{first}", self.compared, self.wrong);
        (self.compared > 0 && self.wrong == 0, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::gtpu::build_gpdu;

    #[test]
    fn every_octet_of_a_packet_counts() {
        for (up, size) in [(true, 40), (true, 64), (false, 300), (false, 1500)] {
            let mut template = Template::user(up, size).unwrap();
            template.mark(7, 99);
            let packet = template.fill(Subscriber(70_000), 0, true).to_vec();
            let mut contents = Contents::new(0);
            let found = contents.user_packet(up, &packet).unwrap();
            assert_eq!(found, Found { subscriber: Subscriber(70_000), number: 7, time_ns: 99, size });
            // Mark and UE address determine the expected packet. All other octets are compared, and through its
            // checksum the address too.
            let mark = 28..40;
            for at in (0..size).filter(|at| !mark.contains(at)) {
                let mut damaged = packet.clone();
                damaged[at] ^= 0x10;
                assert!(contents.user_packet(up, &damaged).is_err(), "{up} {size} {at}");
            }
            assert!(contents.user_packet(up, &packet[..size - 1]).is_err());
            assert!(contents.user_packet(up, &[&packet[..], &[0]].concat()).is_err());
            assert!(Contents::new(1 << 22).user_packet(up, &packet).is_err(), "another pool");
        }
    }

    #[test]
    fn datagrams_and_tunnels_are_compared() {
        let mut template = Template::user(false, 100).unwrap();
        let packet = template.fill(Subscriber(5), 0, false).to_vec();
        let mut contents = Contents::new(0);
        assert_eq!(contents.sent_by_socket(&packet).unwrap().subscriber, Subscriber(5));
        assert_eq!(contents.datagram(false, Subscriber(5).ue(), &packet[28..]).unwrap().size, 100);
        assert!(contents.datagram(false, Subscriber(5).ue(), &packet[29..]).is_err());
        let mut damaged = packet.clone();
        damaged[99] ^= 1;
        assert!(contents.sent_by_socket(&damaged).is_err());

        let container = PduSession::Downlink { qfi: QFI, rqi: false, ppi: None };
        let tunnelled = build_gpdu(9, Some(container), &packet).unwrap();
        assert_eq!(gpdu(false, &tunnelled), Ok((9, &packet[..])));
        assert!(gpdu(true, &tunnelled).is_err(), "the container of the other direction");
        assert!(gpdu(false, &[&tunnelled[..], &[0]].concat()).is_err());
    }

    #[test]
    fn a_tally_without_packets_is_no_proof() {
        let mut tally = Tally::default();
        assert!(!tally.judge().0);
        assert_eq!(tally.count(Ok(1), b""), Some(1));
        assert!(tally.judge().0);
        assert_eq!(tally.count::<()>(Err("the user's packet"), &[0xAB]), None);
        let mut all = Tally::default();
        all.add(tally);
        let (ok, detail) = all.judge();
        assert!(!ok && detail.contains("2 compared, 1 other") && detail.contains("ab"), "{detail}");
    }
}
