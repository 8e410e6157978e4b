//! Frames of random subscribers, which gNB and data network send to a user plane on a frame port.
//!
//! The order of subscribers is drawn beforehand ([`Deck`]), and frames are written into the buffers from which
//! they are sent ([`Source`]), so that making them takes little of the measured time.

use std::sync::Arc;

use packet::ethernet::{self, Mac};
use packet::{gtpu, ipv4, protocol};
use pktio::Vector;

use super::subscriber::{CP, Subscriber, UPF};
use super::traffic::{Draw, SMALLEST, TUNNEL, Template};

/// Octets of an Ethernet header.
pub(super) const ETHERNET: usize = 14;
/// Octets of the Ethernet, IPv4 and UDP headers of a tunnel.
const OUTER: usize = ETHERNET + 20 + 8;
/// The generator's address on both links; locally administered.
pub(super) const MAC: Mac = [0x02, 0x67, 0x77, 0, 0, 1];
/// Number of packets drawn beforehand: at least, and at most.
pub(super) const CARDS: usize = 1 << 16;
const MANY_CARDS: usize = 1 << 21;

/// The subscribers whose packets come, one after the other. Each session is equally likely.
pub(super) struct Deck {
    /// Twice the subscriber's number, plus one if the packet is of its service; and the TEID of its tunnel.
    cards: Vec<(u32, u32)>,
    /// TEIDs of the subscribers, in order.
    teids: Vec<u32>,
}

impl Deck {
    /// A deck for sessions with these TEIDs. With very many sessions it contains most of them, not all.
    pub(super) fn new(teids: &[u32]) -> Arc<Deck> {
        Deck::of(teids, |_, _| true)
    }

    /// A deck of some of these sessions: those for whose subscriber and TEID `keep` says so.
    pub(super) fn of(teids: &[u32], keep: impl Fn(Subscriber, u32) -> bool) -> Arc<Deck> {
        let mut draw = Draw::new(teids.len(), 9);
        let count = (4 * teids.len()).next_power_of_two().clamp(CARDS, MANY_CARDS);
        let cards = (0..count).filter_map(|_| {
            let (subscriber, service) = draw.next();
            let teid = *teids.get(subscriber.0 as usize)?;
            keep(subscriber, teid).then_some((subscriber.0 << 1 | u32::from(service), teid))
        });
        Arc::new(Deck { cards: cards.collect(), teids: teids.to_vec() })
    }

    /// The TEID of a subscriber's tunnel from access.
    pub(super) fn teid(&self, subscriber: Subscriber) -> Option<u32> {
        self.teids.get(subscriber.0 as usize).copied()
    }
}

/// Frames of random subscribers in one direction.
pub(super) struct Source {
    pub(super) up: bool,
    /// Octets of user packets.
    pub(super) size: usize,
    template: Template,
    deck: Arc<Deck>,
    next: usize,
}

impl Source {
    /// A source of frames to `to` with user packets of `size` octets, starting at a position of the deck.
    ///
    /// # Errors
    /// No packet can have this size.
    pub(super) fn new(
        up: bool,
        size: usize,
        (deck, next): (&Arc<Deck>, usize),
        to: Mac,
    ) -> anyhow::Result<Source> {
        let template = Template::new(up, size)?;
        let mut header = ethernet::build(to, MAC, None, ethernet::IPV4, &[]);
        if up {
            let length = 8 + template.len();
            let mut datagram = Vec::with_capacity(length);
            for field in [gtpu::PORT, gtpu::PORT, length as u16, 0] {
                datagram.extend(field.to_be_bytes());
            }
            datagram.resize(length, 0);
            let outer = ipv4::Header::new(CP, UPF, protocol::UDP).build(&datagram)?;
            header.extend(&outer[..OUTER - ETHERNET]);
        }
        Ok(Source { up, size, template: template.behind(&header), deck: Arc::clone(deck), next })
    }

    /// Writes a frame into each buffer. With `marks`, the number of the first frame and the time.
    #[inline]
    pub(super) fn fill(&mut self, vector: &mut Vector, marks: Option<(u32, u64)>) {
        self.write(vector, marks, true);
    }

    /// The same for buffers whose payload does not matter: writes only headers and marks.
    #[cfg(feature = "dpdk")]
    #[inline]
    pub(super) fn fill_heads(&mut self, vector: &mut Vector) {
        self.write(vector, None, false);
    }

    #[inline]
    fn write(&mut self, vector: &mut Vector, marks: Option<(u32, u64)>, whole: bool) {
        for (number, mut frame) in vector.frames_mut().enumerate() {
            let Some(&(subscriber, teid)) = self.deck.cards.get(self.next) else { return };
            self.next = if self.next + 1 < self.deck.cards.len() { self.next + 1 } else { 0 };
            if let Some((first, time_ns)) = marks {
                self.template.mark(first + number as u32, time_ns);
            }
            self.template.write(&mut frame, (Subscriber(subscriber >> 1), teid, subscriber & 1 != 0), whole);
        }
    }

    /// The subscriber of the next packet.
    pub(super) fn upcoming(&self) -> Option<Subscriber> {
        self.deck.cards.get(self.next).map(|(subscriber, _)| Subscriber(subscriber >> 1))
    }
}

/// Octets of IP packets on N3 for user packets of `size` octets.
pub(super) fn tunnelled(size: usize) -> usize {
    size + TUNNEL + OUTER - ETHERNET
}

/// Octets of a frame with a user packet of `size` octets, in a tunnel or not.
pub(super) fn frame_length(tunnelled: bool, size: usize) -> usize {
    size.max(SMALLEST) + if tunnelled { OUTER + TUNNEL } else { ETHERNET }
}

/// Offset of the user packet: after the tunnel headers if there are any.
#[cfg(test)]
fn inner_offset(frame: &[u8]) -> usize {
    let is_tunnel = frame.get(ETHERNET + 9) == Some(&protocol::UDP)
        && frame.get(ETHERNET + 22..ETHERNET + 24) == Some(&gtpu::PORT.to_be_bytes());
    if is_tunnel { OUTER + TUNNEL } else { ETHERNET }
}

/// The answer to an ARP request (RFC 826): every address except the asking one's is claimed.
pub(super) fn arp_reply(frame: &[u8]) -> Option<Vec<u8>> {
    let request = frame.get(ETHERNET..ETHERNET + 28)?;
    let (sender, sender_ip, target_ip) = (&request[8..14], &request[14..18], &request[24..28]);
    if request[6..8] != [0, 1] || sender_ip == target_ip {
        return None;
    }
    let mut reply = request[..8].to_vec();
    reply[7] = 2;
    reply.extend(MAC);
    reply.extend(target_ip);
    reply.extend(sender);
    reply.extend(sender_ip);
    Some(ethernet::build(sender.try_into().ok()?, MAC, None, ethernet::ARP, &reply))
}

#[cfg(test)]
mod tests {
    use super::super::traffic::marked;
    use super::*;

    #[test]
    fn questions_for_addresses_are_answered() {
        let asker: Mac = [2, 0, 0, 0, 0, 9];
        let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
        request.extend(asker);
        request.extend([10, 200, 0, 1, 0, 0, 0, 0, 0, 0, 10, 200, 0, 5]);
        let question = ethernet::build([0xFF; 6], asker, None, ethernet::ARP, &request);
        let answer = arp_reply(&question).unwrap();
        assert_eq!((&answer[..6], &answer[6..12], answer[21]), (&asker[..], &MAC[..], 2));
        assert_eq!((&answer[22..28], &answer[28..32]), (&MAC[..], &[10, 200, 0, 5][..]));
        assert!(arp_reply(&question[..30]).is_none() && arp_reply(&answer).is_none());
    }

    #[test]
    fn frames_carry_what_the_templates_say() {
        for up in [true, false] {
            let mut source = Source::new(up, 100, (&Deck::new(&[0x77]), 0), [1; 6]).unwrap();
            let mut batch = Vector::new(4, 256);
            batch.refill(2);
            source.fill(&mut batch, Some((8, 99)));
            let frame = batch.frames()[1].packet();
            let inner = &frame[inner_offset(frame)..];
            assert_eq!((inner.len(), marked(inner)), (100, Some((9, 99))));
            assert!(ipv4::Packet::new(&frame[ETHERNET..]).unwrap().checksum_ok());
            assert!(ipv4::Packet::new(inner).unwrap().checksum_ok());
            assert_eq!(frame.len() - ETHERNET, if up { tunnelled(100) } else { 100 });
            assert_eq!(frame_length(up, 100), frame.len());
        }
    }

    #[test]
    fn every_session_is_drawn_and_the_deck_begins_anew() {
        let deck = Deck::new(&[5, 6, 7]);
        assert_eq!(deck.cards.len(), CARDS);
        for (subscriber, teid) in [(0, 5), (1, 6), (2, 7)] {
            let share = deck.cards.iter().filter(|card| **card == (subscriber << 1 | 1, teid)).count();
            assert!((CARDS / 7..CARDS / 5).contains(&share), "half of a third: {share}");
        }
        let mut source = Source::new(false, 64, (&deck, CARDS - 1), [1; 6]).unwrap();
        let mut batch = Vector::new(2, 256);
        batch.refill(2);
        source.fill(&mut batch, None);
        assert_eq!(source.next, 1);
        assert!(batch.frames().iter().all(|buffer| buffer.len() == frame_length(false, 64)));
    }
}
