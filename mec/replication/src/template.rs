//! Messages as templates and the octets in which they differ.
//!
//! Requests of one control plane differ from user to user in few octets: identities, TEIDs, addresses. [`split`] takes these
//! *spots* out of a message. What is left is a [`Template`], which thousands of users share ([`Templates`]). A spot that holds what the
//! record says anyway (the user's identity, a TEID of the control plane) is not stored again: its [`Source`] says where it is.
//! [`Template::join`] makes the message again, octet for octet. Nothing is decoded for it, so IEs that nobody here knows are kept.
//!
//! A message without spots that could be found is a template of nothing but one stored spot, so there is one form for all.

use std::sync::Arc;

use foldhash::HashMap;

/// Most templates of an anchor. Messages beyond are stored whole: a peer that varies what should not vary costs itself memory only.
pub const MAX_TEMPLATES: usize = 4096;

/// Where a header has its receiver's TEID or SEID (TS 29.274 §5.1, TS 29.244 §7.2.2).
const RECEIVER: u16 = 4;

/// Where the octets of a spot are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// With the user's record.
    Stored,
    /// They are zero.
    Zero,
    /// The transaction's number: a replay gives a new one.
    Sequence,
    /// What identifies the user to the control plane, as it is in the message.
    Subject,
    /// By what the anchor addresses the control plane.
    Control,
    /// By what the control plane addresses the anchor.
    Anchor,
    /// The user's address.
    Address,
}

/// Octets of a message that differ from user to user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Spot {
    /// Where they begin.
    pub at: u16,
    /// How many they are.
    pub len: u16,
    /// Where they are kept.
    pub source: Source,
}

/// A message without what is one user's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Template {
    /// The message, with zeros in all spots.
    octets: Box<[u8]>,
    spots: Box<[Spot]>,
    stored: u16,
}

/// What a user's record says, as it is in messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keys<'a> {
    /// See [`Source::Subject`].
    pub subject: &'a [u8],
    /// See [`Source::Control`].
    pub control: &'a [u8],
    /// See [`Source::Anchor`].
    pub anchor: &'a [u8],
    /// See [`Source::Address`].
    pub address: &'a [u8],
}

impl Keys<'_> {
    fn of(&self, source: Source) -> Option<&[u8]> {
        match source {
            Source::Subject => Some(self.subject),
            Source::Control => Some(self.control),
            Source::Anchor => Some(self.anchor),
            Source::Address => Some(self.address),
            Source::Stored | Source::Zero | Source::Sequence => None,
        }
    }
}

/// A place that a protocol's reader has found in a message; with `Source::Stored`, the source is looked for among the keys.
pub type Found = Spot;

/// Splits a message into template and stored octets. `found` is in the order of the message and does not overlap.
pub fn split(message: &[u8], found: &[Found], keys: &Keys, stored: &mut Vec<u8>) -> Template {
    let mut octets: Box<[u8]> = message.into();
    let before = stored.len();
    let place = |spot: &Found| {
        let range = usize::from(spot.at)..usize::from(spot.at) + usize::from(spot.len);
        let value = &message[range.clone()];
        let source = match spot.source {
            Source::Stored if value.iter().all(|octet| *octet == 0) => Source::Zero,
            Source::Stored => {
                let known = [Source::Subject, Source::Control, Source::Anchor, Source::Address];
                // A base station may have the same TEID as the anchor by chance: only a header's is the anchor's.
                let may_be = |source: Source| (source == Source::Anchor) == (spot.at == RECEIVER);
                let is_key =
                    |source: &Source| may_be(*source) && keys.of(*source).is_some_and(|key| key == value);
                known.into_iter().find(is_key).unwrap_or(Source::Stored)
            }
            other => other,
        };
        if source == Source::Stored {
            stored.extend_from_slice(value);
        }
        octets[range].fill(0);
        Spot { source, ..*spot }
    };
    let spots = found.iter().map(place).collect();
    Template { octets, spots, stored: (stored.len() - before) as u16 }
}

impl Template {
    /// A message that is stored whole.
    pub fn whole(length: u16) -> Template {
        let spots = [Spot { at: 0, len: length, source: Source::Stored }];
        Template { octets: vec![0; length.into()].into(), spots: spots.into(), stored: length }
    }

    fn is_whole(&self) -> bool {
        self.stored() == self.octets.len()
    }

    /// Whether it has a spot of this source.
    pub fn has(&self, source: Source) -> bool {
        self.spots.iter().any(|spot| spot.source == source)
    }

    /// How many octets a user's record has for it.
    pub fn stored(&self) -> usize {
        self.stored.into()
    }

    /// The length of the message.
    pub fn len(&self) -> usize {
        self.octets.len()
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }

    /// The message again, with zero as its sequence number. Appends to `out`.
    ///
    /// # Errors
    /// The stored octets or keys do not fit the template.
    pub fn join(&self, stored: &[u8], keys: &Keys, out: &mut Vec<u8>) -> Result<(), Misfit> {
        if stored.len() != self.stored() {
            return Err(Misfit);
        }
        let start = out.len();
        out.extend_from_slice(&self.octets);
        let message = &mut out[start..];
        let mut rest = stored;
        for spot in &self.spots {
            let at = usize::from(spot.at)..usize::from(spot.at) + usize::from(spot.len);
            let value = match (spot.source, keys.of(spot.source)) {
                (_, Some(key)) => key,
                (Source::Stored, None) => rest.split_off(..at.len()).ok_or(Misfit)?,
                (_, None) => continue,
            };
            let place = message.get_mut(at).ok_or(Misfit)?;
            if place.len() != value.len() {
                return Err(Misfit);
            }
            place.copy_from_slice(value);
        }
        Ok(())
    }

    /// Octets by which templates travel and are kept.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.octets.len() as u16).to_be_bytes());
        out.extend_from_slice(&self.octets);
        out.extend_from_slice(&(self.spots.len() as u16).to_be_bytes());
        for spot in &self.spots {
            out.extend_from_slice(&spot.at.to_be_bytes());
            out.extend_from_slice(&spot.len.to_be_bytes());
            out.push(spot.source as u8);
        }
    }

    /// Reads [`Template::encode`]'s octets.
    ///
    /// # Errors
    /// They are no template: spots overlap, are not in order, or lie outside.
    pub fn decode(octets: &[u8]) -> Result<Template, Misfit> {
        let mut rest = octets;
        let u16_of = |rest: &mut &[u8]| {
            let octets = rest.split_off(..2).ok_or(Misfit)?;
            Ok::<_, Misfit>(u16::from_be_bytes([octets[0], octets[1]]))
        };
        let length = u16_of(&mut rest)?;
        let message: Box<[u8]> = rest.split_off(..length.into()).ok_or(Misfit)?.into();
        let (mut spots, mut end, mut stored) = (Vec::new(), 0u32, 0u32);
        for _ in 0..u16_of(&mut rest)? {
            let (at, len) = (u16_of(&mut rest)?, u16_of(&mut rest)?);
            let source = match rest.split_off_first().ok_or(Misfit)? {
                0 => Source::Stored,
                1 => Source::Zero,
                2 => Source::Sequence,
                3 => Source::Subject,
                4 => Source::Control,
                5 => Source::Anchor,
                6 => Source::Address,
                _ => return Err(Misfit),
            };
            if u32::from(at) < end || u32::from(at) + u32::from(len) > length.into() {
                return Err(Misfit);
            }
            end = u32::from(at) + u32::from(len);
            stored += if source == Source::Stored { u32::from(len) } else { 0 };
            spots.push(Spot { at, len, source });
        }
        let stored = u16::try_from(stored).map_err(|_| Misfit)?;
        if rest.is_empty() {
            Ok(Template { octets: message, spots: spots.into(), stored })
        } else {
            Err(Misfit)
        }
    }
}

/// Stored octets, keys and template do not belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record does not fit its template")]
pub struct Misfit;

/// The templates of an anchor by number, each with how many messages use it.
#[derive(Debug, Default)]
pub struct Templates {
    by_number: Vec<Option<(Arc<Template>, u32)>>,
    numbers: HashMap<Arc<Template>, u16>,
    free: Vec<u16>,
}

impl Templates {
    /// The number of a template, which is used once more; whether it is new. `None`: there are too many.
    pub fn enter(&mut self, template: Template) -> Option<(u16, bool)> {
        if let Some(number) = self.numbers.get(&template) {
            let number = *number;
            self.by_number[usize::from(number)].as_mut()?.1 += 1;
            return Some((number, false));
        }
        // Messages that are stored whole are of few lengths.
        let most = if template.is_whole() { 2 * MAX_TEMPLATES } else { MAX_TEMPLATES };
        if self.numbers.len() >= most {
            return None;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.by_number.push(None);
            (self.by_number.len() - 1) as u16
        });
        let template = Arc::new(template);
        self.numbers.insert(template.clone(), number);
        self.by_number[usize::from(number)] = Some((template, 1));
        Some((number, true))
    }

    /// Puts a template at a number, not used yet. For those that were kept.
    ///
    /// # Errors
    /// The number or the template is there, or the number is too large.
    pub fn restore(&mut self, number: u16, template: Template) -> Result<(), Misfit> {
        let at = usize::from(number);
        if at >= 2 * MAX_TEMPLATES || self.numbers.contains_key(&template) {
            return Err(Misfit);
        }
        while self.by_number.len() <= at {
            self.free.push(self.by_number.len() as u16);
            self.by_number.push(None);
        }
        if self.by_number[at].is_some() {
            return Err(Misfit);
        }
        self.free.retain(|free| *free != number);
        let template = Arc::new(template);
        self.numbers.insert(template.clone(), number);
        self.by_number[at] = Some((template, 0));
        Ok(())
    }

    /// One message uses it more.
    pub fn hold(&mut self, number: u16) {
        if let Some(Some((_, uses))) = self.by_number.get_mut(usize::from(number)) {
            *uses += 1;
        }
    }

    /// One message uses it less; whether nobody does any more, so that the number is free.
    pub fn leave(&mut self, number: u16) -> bool {
        let Some(entry @ Some(_)) = self.by_number.get_mut(usize::from(number)) else { return false };
        let Some((template, uses)) = entry else { return false };
        *uses = uses.saturating_sub(1);
        if *uses > 0 {
            return false;
        }
        self.numbers.remove(template);
        *entry = None;
        self.free.push(number);
        true
    }

    /// A template.
    pub fn get(&self, number: u16) -> Option<&Arc<Template>> {
        self.by_number.get(usize::from(number))?.as_ref().map(|(template, _)| template)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Octets of memory.
    pub fn octets(&self) -> usize {
        let of = |template: &Arc<Template>| {
            template.octets.len() + template.spots.len() * size_of::<Spot>() + 3 * size_of::<Template>()
        };
        self.numbers.keys().map(of).sum::<usize>() + self.by_number.capacity() * 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(at: u16, len: u16, source: Source) -> Spot {
        Spot { at, len, source }
    }

    #[test]
    fn a_message_comes_back_octet_for_octet_but_for_its_sequence_number() {
        let message = [1, 2, 9, 9, 0, 0, 7, 8, 5, 6, 3];
        let found = [
            spot(1, 1, Source::Sequence),
            spot(2, 2, Source::Stored),
            spot(4, 2, Source::Stored),
            spot(6, 2, Source::Stored),
            spot(8, 2, Source::Stored),
        ];
        let keys = Keys { control: &[7, 8], ..Keys::default() };
        let mut stored = Vec::new();
        let template = split(&message, &found, &keys, &mut stored);
        assert_eq!(stored, [9, 9, 5, 6], "neither zeros nor what the record says");
        let mut again = Vec::new();
        template.join(&stored, &keys, &mut again).unwrap();
        assert_eq!(again, [1, 0, 9, 9, 0, 0, 7, 8, 5, 6, 3]);
        // Another user with the same template.
        again.clear();
        template.join(&[1, 1, 2, 2], &Keys { control: &[3, 4], ..keys }, &mut again).unwrap();
        assert_eq!(again, [1, 0, 1, 1, 0, 0, 3, 4, 2, 2, 3]);
        assert_eq!(template.join(&stored[1..], &keys, &mut again), Err(Misfit));
        assert_eq!(template.join(&stored, &Keys::default(), &mut again), Err(Misfit));
    }

    #[test]
    fn templates_travel_and_damaged_ones_are_refused() {
        let mut stored = Vec::new();
        let template = split(&[1, 2, 3, 4], &[spot(1, 2, Source::Stored)], &Keys::default(), &mut stored);
        let mut octets = Vec::new();
        template.encode(&mut octets);
        assert_eq!(Template::decode(&octets), Ok(template));
        for end in 0..octets.len() {
            assert_eq!(Template::decode(&octets[..end]), Err(Misfit));
        }
        for (at, value) in [(9, 9), (12, 7), (11, 200)] {
            let mut damaged = octets.clone();
            damaged[at] = value;
            assert_eq!(Template::decode(&damaged), Err(Misfit), "octet {at}");
        }
    }

    #[test]
    fn numbers_are_used_again_and_bounded() {
        let mut templates = Templates::default();
        assert_eq!(templates.enter(Template::whole(1)), Some((0, true)));
        assert_eq!(templates.enter(Template::whole(1)), Some((0, false)));
        assert_eq!(templates.enter(Template::whole(2)), Some((1, true)));
        assert!(!templates.leave(0));
        assert!(templates.leave(0));
        assert!(templates.get(0).is_none());
        assert_eq!(templates.enter(Template::whole(3)), Some((0, true)));
        let other = |number: u16| split(&number.to_be_bytes(), &[], &Keys::default(), &mut Vec::new());
        assert_eq!(
            (0..).position(|number| templates.enter(other(number)).is_none()),
            Some(MAX_TEMPLATES - 2)
        );
        assert_eq!(templates.enter(Template::whole(2)), Some((1, false)), "one that is there goes on");
        assert!(templates.enter(Template::whole(9)).is_some(), "and what is stored whole");
    }

    #[test]
    fn kept_templates_come_back_at_their_numbers() {
        let mut templates = Templates::default();
        templates.restore(3, Template::whole(9)).unwrap();
        assert_eq!(templates.restore(3, Template::whole(8)), Err(Misfit));
        assert_eq!(templates.restore(1, Template::whole(9)), Err(Misfit));
        templates.hold(3);
        assert_eq!(templates.enter(Template::whole(9)), Some((3, false)));
        let (number, new) = templates.enter(Template::whole(5)).unwrap();
        assert!(number < 3 && new);
    }
}
