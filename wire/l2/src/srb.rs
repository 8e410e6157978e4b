//! SRB1 and SRB2 of a UE: RLC AM (TS 38.322) with the default configuration (TS 38.331 §9.2.1), as both ends of [`uu`](crate::uu) have it.
//!
//! An entity begins with the first message in either direction. Whoever has pushed or received something pulls PDUs until there are no
//! more, asks by [`Srbs::settle`] for the next deadline, and calls [`Srbs::expire`] then.

use crate::rlc::am::{Config, Entity, Received};
use crate::rlc::{PduError, SduError};

/// Signalling bearers with RLC AM.
const BEARERS: usize = 2;
/// The highest logical channel of one.
pub const HIGHEST: u8 = BEARERS as u8;
/// Longest PDU: with all headers it fits the link's MTU.
const PDU: usize = 1_400;

/// There is no such signalling bearer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoBearer;

struct Srb {
    entity: Entity<()>,
    /// Whether its failure was told.
    told: bool,
}

/// The signalling bearers of a UE, on the logical channels of their numbers.
#[derive(Default)]
pub struct Srbs {
    bearers: [Option<Box<Srb>>; BEARERS],
    /// The deadline that was told last.
    due_ns: Option<u64>,
}

/// What is to be done when a bearer has nothing to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settled {
    /// Call [`Srbs::expire`] at this time; `None`: there is none, or one that is earlier was told.
    pub due_ns: Option<u64>,
    /// A message was sent as often as allowed: the bearer has failed. Said once.
    pub fails: bool,
}

impl Srbs {
    fn bearer(&mut self, lcid: u8) -> Option<&mut Srb> {
        let place = self.bearers.get_mut(usize::from(lcid).checked_sub(1)?)?;
        let new = || Box::new(Srb { entity: Entity::new(Config::SIGNALLING), told: false });
        Some(place.get_or_insert_with(new))
    }

    /// Takes a message for transmission.
    ///
    /// # Errors
    /// There is no such bearer, or, within, it does not take the message.
    pub fn push(&mut self, lcid: u8, sdu: Vec<u8>) -> Result<Result<(), SduError>, NoBearer> {
        Ok(self.bearer(lcid).ok_or(NoBearer)?.entity.push(sdu, ()))
    }

    /// Handles a PDU; returns the message that it completes.
    ///
    /// # Errors
    /// There is no such bearer, or, within, the PDU is discarded. It may have asked for a status all the same.
    pub fn receive(
        &mut self,
        lcid: u8,
        pdu: &[u8],
        now_ns: u64,
    ) -> Result<Result<Option<Vec<u8>>, PduError>, NoBearer> {
        let received = self.bearer(lcid).ok_or(NoBearer)?.entity.receive(pdu, now_ns);
        Ok(received.map(|received| match received {
            Received::Sdu(sdu) => Some(sdu),
            Received::Kept | Received::Acknowledged(_) => None,
        }))
    }

    /// The next PDU of a bearer.
    pub fn pull(&mut self, lcid: u8, now_ns: u64) -> Option<Vec<u8>> {
        let mut pdu = Vec::new();
        self.bearer(lcid)?.entity.pull(PDU, now_ns, &mut pdu).map(|_| pdu)
    }

    /// What is next for a bearer of which no PDU is left.
    pub fn settle(&mut self, lcid: u8) -> Settled {
        let Some(srb) = self.bearer(lcid) else { return Settled { due_ns: None, fails: false } };
        let failed = srb.entity.check().is_err();
        let fails = failed && !std::mem::replace(&mut srb.told, failed);
        let due_ns = srb.entity.deadline_ns();
        let due_ns = due_ns.filter(|due_ns| self.due_ns.is_none_or(|told_ns| *due_ns < told_ns));
        self.due_ns = due_ns.or(self.due_ns);
        Settled { due_ns, fails }
    }

    /// Does what was due at `due_ns`, unless an earlier deadline has taken its place; returns the bearers that may have something to send.
    pub fn expire(&mut self, due_ns: u64, now_ns: u64) -> impl Iterator<Item = u8> + use<> {
        let is_current = self.due_ns == Some(due_ns);
        if is_current {
            self.due_ns = None;
            self.bearers.iter_mut().flatten().for_each(|srb| srb.entity.expire(now_ns));
        }
        let exist = self.bearers.each_ref().map(Option::is_some);
        (1..).zip(exist).filter_map(move |(lcid, exists)| (exists && is_current).then_some(lcid))
    }

    /// Whether there are bearers, and the far end has acknowledged all that was sent on them.
    pub fn are_all_acknowledged(&self) -> bool {
        let mut bearers = self.bearers.iter().flatten().peekable();
        bearers.peek().is_some() && bearers.all(|srb| srb.entity.is_all_acknowledged())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Gives the PDUs of one end to the other; returns the messages.
    fn pass(from: &mut Srbs, to: &mut Srbs, lcid: u8, now_ns: u64) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        while let Some(pdu) = from.pull(lcid, now_ns) {
            assert!(pdu.len() <= PDU);
            got.extend(to.receive(lcid, &pdu, now_ns).unwrap().unwrap());
        }
        got
    }

    #[test]
    fn messages_are_acknowledged_and_lost_ones_repeated() {
        let (mut network, mut ue) = (Srbs::default(), Srbs::default());
        assert!(!network.are_all_acknowledged(), "there is no bearer");
        let message = vec![7; 3_000];
        network.push(1, message.clone()).unwrap().unwrap();
        // All is lost.
        while network.pull(1, 0).is_some() {}
        assert_eq!(network.settle(1), Settled { due_ns: Some(45 * MS), fails: false });
        assert_eq!(network.settle(1).due_ns, None, "it was told");
        assert_eq!(network.expire(44 * MS, 44 * MS).count(), 0, "another deadline");
        let now_ns = 45 * MS;
        assert_eq!(network.expire(now_ns, now_ns).collect::<Vec<_>>(), [1]);
        assert_eq!(pass(&mut network, &mut ue, 1, now_ns), [message]);
        assert!(!network.are_all_acknowledged());
        pass(&mut ue, &mut network, 1, now_ns);
        assert!(network.are_all_acknowledged());
        assert_eq!(network.settle(1), Settled { due_ns: None, fails: false });
    }

    #[test]
    fn a_bearer_fails_once_and_others_are_none() {
        let mut srbs = Srbs::default();
        srbs.push(2, vec![1]).unwrap().unwrap();
        let (mut sent, mut failures, mut now_ns) = (0, 0, 0);
        loop {
            while srbs.pull(2, now_ns).is_some() {
                sent += 1;
            }
            let settled = srbs.settle(2);
            failures += u32::from(settled.fails);
            let Some(due_ns) = settled.due_ns else { break };
            now_ns = due_ns;
            assert_eq!(srbs.expire(due_ns, now_ns).collect::<Vec<_>>(), [2]);
        }
        assert_eq!((sent, failures, srbs.settle(2).fails), (1 + 8, 1, false));
        assert_eq!(now_ns, 9 * 45 * MS);
        for lcid in [0, 3, 255] {
            assert_eq!(srbs.push(lcid, vec![1]), Err(NoBearer));
            assert_eq!(srbs.receive(lcid, &[1], 0), Err(NoBearer));
            assert_eq!((srbs.pull(lcid, 0), srbs.settle(lcid).fails), (None, false));
        }
    }
}
