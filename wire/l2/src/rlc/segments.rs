//! The segments of one SDU that have come so far.

use super::{LONGEST_SDU, PduError};

/// Octets that an SDU under reassembly takes besides its data, about.
pub(super) const OVERHEAD: usize = 96;

/// An SDU under reassembly. It takes [`LONGEST_SDU`] octets at most, and a list of its gaps.
#[derive(Debug, Default)]
pub(super) struct Segments {
    data: Vec<u8>,
    /// Octets that have come: ranges in order, which do not touch.
    have: Vec<(u32, u32)>,
    /// Length of the SDU, once its last segment has come.
    total: Option<u32>,
}

impl Segments {
    /// Checks that a segment is consistent with those that have come, and new at least in part. Returns how many octets of
    /// memory [`Segments::insert`] would add.
    pub(super) fn check(&self, offset: u16, payload: &[u8], is_end: bool) -> Result<usize, PduError> {
        let (start, end) = extent(offset, payload)?;
        let reach = self.have.last().map_or(0, |(_, end)| *end);
        let fits = match self.total {
            Some(total) if is_end => end == total,
            Some(total) => end < total,
            // A segment that is not the last leaves at least one octet.
            None => !is_end || end >= reach,
        };
        if !fits {
            return Err(PduError::Inconsistent);
        }
        // A segment that extends to the known end without saying that it is the last was refused above; one that says it
        // only now brings news without new octets.
        let news = is_end && self.total.is_none();
        if !news && self.have.iter().any(|(from, to)| *from <= start && end <= *to) {
            return Err(PduError::OutsideWindow);
        }
        Ok((end as usize).saturating_sub(self.data.len()) + size_of::<(u32, u32)>())
    }

    /// Adds a segment for which [`Segments::check`] has succeeded.
    pub(super) fn insert(&mut self, offset: u16, payload: &[u8], is_end: bool) {
        let Ok((start, end)) = extent(offset, payload) else { return };
        if self.data.len() < end as usize {
            self.data.resize(end as usize, 0);
        }
        self.data[start as usize..end as usize].copy_from_slice(payload);
        if is_end {
            self.total = Some(end);
        }
        // Replaces all ranges that the new one overlaps or touches.
        let first = self.have.partition_point(|(_, to)| *to < start);
        let behind = self.have.partition_point(|(from, _)| *from <= end);
        let merged = match self.have.get(first..behind) {
            Some([]) | None => (start, end),
            Some([one]) => (one.0.min(start), one.1.max(end)),
            Some([one, .., other]) => (one.0.min(start), other.1.max(end)),
        };
        self.have.splice(first..behind.max(first), [merged]);
    }

    /// Octets of memory.
    pub(super) fn memory(&self) -> usize {
        OVERHEAD + self.data.len() + self.have.len() * size_of::<(u32, u32)>()
    }

    /// Whether all octets have come.
    pub(super) fn is_whole(&self) -> bool {
        matches!((self.have.as_slice(), self.total), ([(0, end)], Some(total)) if *end == total)
    }

    /// Whether an octet before the last one that has come is missing.
    pub(super) fn has_gap(&self) -> bool {
        !matches!(self.have.as_slice(), [(0, _)])
    }

    /// The octets that are missing: their first and last offset; `None` as the last one stands for the SDU's end.
    pub(super) fn gaps(&self) -> impl Iterator<Item = (u16, Option<u16>)> + '_ {
        let ends = std::iter::once(0).chain(self.have.iter().map(|(_, to)| *to));
        let starts = self.have.iter().map(|(from, _)| Some(*from)).chain([self.total]);
        ends.zip(starts).filter_map(|(from, until)| match until {
            Some(until) if until <= from => None,
            // Offsets are below `LONGEST_SDU`.
            Some(until) => Some((from as u16, Some((until - 1) as u16))),
            None => Some((from as u16, None)),
        })
    }

    /// The SDU, which [`Segments::is_whole`].
    pub(super) fn into_sdu(self) -> Vec<u8> {
        self.data
    }
}

/// Where a segment begins and ends in its SDU.
fn extent(offset: u16, payload: &[u8]) -> Result<(u32, u32), PduError> {
    let end = usize::from(offset) + payload.len();
    if end > LONGEST_SDU { Err(PduError::TooLong) } else { Ok((u32::from(offset), end as u32)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(segments: &mut Segments, offset: u16, payload: &[u8], is_end: bool) -> Result<(), PduError> {
        let before = segments.memory();
        let memory = segments.check(offset, payload, is_end)?;
        segments.insert(offset, payload, is_end);
        assert!(segments.memory() <= before + memory);
        Ok(())
    }

    #[test]
    fn segments_overlap_touch_and_fill_gaps() {
        let mut segments = Segments::default();
        add(&mut segments, 6, b"gh", false).unwrap();
        assert!(segments.has_gap());
        add(&mut segments, 2, b"cd", false).unwrap();
        assert_eq!(segments.gaps().collect::<Vec<_>>(), [(0, Some(1)), (4, Some(5)), (8, None)]);
        assert_eq!(add(&mut segments, 6, b"g", false), Err(PduError::OutsideWindow));
        add(&mut segments, 9, b"j", true).unwrap();
        let gaps = [(0, Some(1)), (4, Some(5)), (8, Some(8))];
        assert_eq!(segments.gaps().collect::<Vec<_>>(), gaps, "the end is known");
        add(&mut segments, 1, b"bcdefgh", false).unwrap();
        add(&mut segments, 0, b"a", false).unwrap();
        assert!(!segments.is_whole() && segments.has_gap());
        add(&mut segments, 8, b"i", false).unwrap();
        assert!(segments.is_whole() && segments.gaps().next().is_none());
        assert_eq!(segments.into_sdu(), b"abcdefghij");
    }

    #[test]
    fn contradictions_are_refused() {
        let mut segments = Segments::default();
        add(&mut segments, 4, b"efgh", false).unwrap();
        assert_eq!(
            add(&mut segments, 2, b"cd", true),
            Err(PduError::Inconsistent),
            "ends before what has come"
        );
        add(&mut segments, 8, b"i", true).unwrap();
        for (offset, payload, is_end) in
            [(8, &b"ij"[..], true), (8, b"i", false), (9, b"j", false), (3, b"d", true)]
        {
            assert_eq!(add(&mut segments, offset, payload, is_end), Err(PduError::Inconsistent));
        }
        assert_eq!(add(&mut segments, u16::MAX, b"x", true), Err(PduError::TooLong));
        let mut segments = Segments::default();
        assert_eq!(add(&mut segments, LONGEST_SDU as u16, b"x", true), Err(PduError::TooLong));
        add(&mut segments, LONGEST_SDU as u16 - 1, b"x", true).unwrap();
        // The end is announced by a segment whose octets have come.
        let mut segments = Segments::default();
        add(&mut segments, 0, b"abc", false).unwrap();
        add(&mut segments, 1, b"bc", true).unwrap();
        assert!(segments.is_whole());
    }
}
