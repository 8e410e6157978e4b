//! Captures of N3 on both sides of the switch, and what differs between them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use lab::edge::Session;
use net::netns::NetNs;
use packet::gtpu;
use pktio::capture::{Capture, Point};

/// Running captures, by the folder that each has.
pub(super) struct Captures {
    running: Vec<(&'static str, Capture)>,
}

/// The result of a comparison.
pub(super) struct Compared {
    /// Packets that arrived as they were sent.
    pub same: usize,
    /// Packets that are on one side only, or have arrived more often than they were sent.
    pub differing: usize,
}

/// How often each frame was seen.
type Frames = BTreeMap<Vec<u8>, usize>;

impl Captures {
    /// Starts a capture in each namespace.
    pub(super) fn start<const N: usize>(
        folder: &Path,
        places: [(&'static str, &NetNs); N],
    ) -> anyhow::Result<Captures> {
        let start = |(name, namespace): (&'static str, &NetNs)| {
            let capture = namespace.enter(|| Capture::start(&folder.join(name), vec![Point::n3()]))??;
            Ok((name, capture))
        };
        Ok(Captures { running: places.into_iter().map(start).collect::<anyhow::Result<_>>()? })
    }

    /// Ends them, and compares the frames of a session, which was never moved, on both sides.
    pub(super) fn stop(self, folder: &Path, session: Session) -> anyhow::Result<Compared> {
        let mut seen = Vec::new();
        for (name, capture) in self.running {
            let lost = capture.stop().lost;
            anyhow::ensure!(lost == 0, "the capture of {name} has lost {lost} packets");
            let file = folder.join(name).join("n3.pcapng");
            let octets = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
            seen.push(of_session(&octets, session));
        }
        let [one, other] = &seen[..] else { anyhow::bail!("captures on two sides are compared") };
        let only = |one: &Frames, other: &Frames| -> usize {
            one.iter()
                .map(|(frame, count)| count.saturating_sub(other.get(frame).copied().unwrap_or(0)))
                .sum()
        };
        let differing = only(one, other) + only(other, one);
        Ok(Compared { same: one.values().sum::<usize>() - only(one, other), differing })
    }
}

/// The frames of a pcapng file that are G-PDUs of the session, both ways.
fn of_session(file: &[u8], session: Session) -> Frames {
    let mut frames = Frames::new();
    let mut rest = file;
    let word = |octets: &[u8], at: usize| {
        octets.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes) as usize
    };
    // Blocks: type, length, content, length again. An enhanced packet block has five words in front of the packet.
    while word(rest, 4) >= 12 && word(rest, 4) <= rest.len() {
        let (block, behind) = rest.split_at(word(rest, 4));
        rest = behind;
        let frame = (word(block, 0) == 6).then(|| block.get(28..28 + word(block, 20))).flatten();
        if let Some(frame) = frame.filter(|frame| is_of(frame, session)) {
            *frames.entry(frame.to_vec()).or_default() += 1;
        }
    }
    frames
}

/// Whether an Ethernet frame is a G-PDU of the session, over IPv4 without options.
fn is_of(frame: &[u8], session: Session) -> bool {
    const HEADERS: usize = 14 + 20 + 8;
    let (Some(datagram), Some(destination)) = (frame.get(HEADERS..), frame.get(30..34)) else { return false };
    let Ok(packet) = gtpu::Packet::new(datagram) else { return false };
    [(lab::CORE_N2, session.uplink_teid), (lab::RAN_N2, session.downlink_teid)]
        .iter()
        .any(|(address, teid)| destination == address.octets() && packet.teid() == *teid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::pcapng::{LinkType, Writer};

    fn frame(destination: std::net::Ipv4Addr, teid: u32, last: u8) -> Vec<u8> {
        let mut frame = vec![0; 30];
        frame.extend_from_slice(&destination.octets());
        frame.extend_from_slice(&[0; 8]);
        frame.extend_from_slice(&[0x30, 255, 0, 1]);
        frame.extend_from_slice(&teid.to_be_bytes());
        frame.push(last);
        frame
    }

    #[test]
    fn frames_of_the_session_are_found_in_a_file_and_counted() {
        let session =
            Session { ue: [10, 45, 0, 1].into(), uplink_teid: 1, gnb: lab::RAN_N2, downlink_teid: 2 };
        let mut writer = Writer::new(Vec::new(), "test").unwrap();
        let interface = writer.interface("n3", LinkType::Ethernet).unwrap();
        let ours = [frame(lab::CORE_N2, 1, 7), frame(lab::RAN_N2, 2, 7), frame(lab::CORE_N2, 1, 7)];
        let others = [frame(lab::CORE_N2, 2, 7), frame(lab::RAN_N2, 1, 7), vec![1; 60], vec![1; 3]];
        for frame in ours.iter().chain(&others) {
            writer.packet(interface, 1, frame, frame.len()).unwrap();
        }
        let file = writer.finish().unwrap();
        let found = of_session(&file, session);
        assert_eq!(found.values().copied().collect::<Vec<_>>(), [2, 1]);
        assert_eq!(of_session(&file[..file.len() - 1], session), found);
        assert_eq!(of_session(&[], session), Frames::new());
    }
}
