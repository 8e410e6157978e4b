//! A user's record: what is needed to make its session at an anchor again.
//!
//! ```text
//!  octet 0     flags
//!  octet 1     the control plane's number among those of the table
//!  octet 2     bearers (high four bits), messages
//!  8 octets    subject: the IMSI as in messages, or the CP function's SEID
//!  4 or 8      control: by what the anchor addresses the control plane; left out where it is the subject
//!  4 or 8      anchor: by what the control plane addresses the anchor
//!  bearers     identity (high four bits) and which addresses follow; TEID; 4 octets of IPv4, 8 of IPv6
//!  messages    number of the template, and its stored octets
//! ```
//! A 4G user with one bearer takes some 54 octets. The form is canonical: equal states have equal octets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::template::{Keys, Misfit, Templates};

const WIDE: u8 = 1;
const ONE_NAME: u8 = 2;
const IDLE: u8 = 4;
const INCOMPLETE: u8 = 8;

const V4: u8 = 1;
const V6: u8 = 2;

/// Most bearers, and most messages, of a user.
pub const MOST: usize = 15;

/// A bearer at the anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bearer {
    /// EPS bearer identity; of a PFCP session the number of the tunnel.
    pub id: u8,
    /// TEID at the anchor, towards the base station.
    pub uplink: u32,
    /// The user's address; of default bearers.
    pub ipv4: Option<Ipv4Addr>,
    /// The user's prefix of 64 bits; of default bearers.
    pub ipv6: Option<Ipv6Addr>,
}

/// A request as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kept {
    /// Its template.
    pub template: u16,
    /// What is the user's own.
    pub stored: Box<[u8]>,
}

/// A record, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// The control plane's number among those of the table.
    pub peer: u8,
    /// The IMSI as in messages, or the CP function's SEID.
    pub subject: u64,
    /// By what the anchor addresses the control plane: TEID or SEID.
    pub control: u64,
    /// By what the control plane addresses the anchor: TEID or SEID.
    pub anchor: u64,
    /// Whether TEIDs or SEIDs: of what width they are in messages.
    pub wide: bool,
    /// The user has no tunnels towards a base station.
    pub idle: bool,
    /// Something happened that is not kept: the session cannot be made again.
    pub incomplete: bool,
    /// Its bearers.
    pub bearers: Vec<Bearer>,
    /// The requests that make it, in order.
    pub messages: Vec<Kept>,
}

/// A record's octets, to look at without decoding.
#[derive(Debug, Clone, Copy)]
pub struct View<'a>(pub &'a [u8]);

impl<'a> View<'a> {
    fn flag(self, flag: u8) -> bool {
        self.0.first().is_some_and(|flags| flags & flag != 0)
    }

    fn number(self, at: usize, wide: bool) -> Option<u64> {
        if wide {
            Some(u64::from_be_bytes(*self.0.get(at..)?.first_chunk()?))
        } else {
            Some(u32::from_be_bytes(*self.0.get(at..)?.first_chunk()?).into())
        }
    }

    fn width(self) -> usize {
        if self.flag(WIDE) { 8 } else { 4 }
    }

    /// See [`Record::peer`].
    pub fn peer(self) -> Option<u8> {
        self.0.get(1).copied()
    }

    /// See [`Record::subject`].
    pub fn subject(self) -> Option<u64> {
        self.number(3, true)
    }

    /// See [`Record::control`].
    pub fn control(self) -> Option<u64> {
        if self.flag(ONE_NAME) { self.subject() } else { self.number(11, self.flag(WIDE)) }
    }

    fn anchor_at(self) -> usize {
        11 + if self.flag(ONE_NAME) { 0 } else { self.width() }
    }

    /// See [`Record::anchor`].
    pub fn anchor(self) -> Option<u64> {
        self.number(self.anchor_at(), self.flag(WIDE))
    }

    /// See [`Record::idle`].
    pub fn is_idle(self) -> bool {
        self.flag(IDLE)
    }

    /// See [`Record::incomplete`].
    pub fn is_incomplete(self) -> bool {
        self.flag(INCOMPLETE)
    }

    /// See [`Record::bearers`].
    pub fn bearers(self) -> impl Iterator<Item = Bearer> + use<'a> {
        let mut rest = self.0.get(self.anchor_at() + self.width()..).unwrap_or_default();
        let count = self.0.get(2).map_or(0, |counts| counts >> 4);
        (0..count).map_while(move |_| bearer(&mut rest))
    }

    /// The user's addresses.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> + use<'a> {
        self.bearers().flat_map(|bearer| addresses_of(&bearer))
    }
}

/// The addresses of a bearer.
pub fn addresses_of(bearer: &Bearer) -> impl Iterator<Item = IpAddr> + use<> {
    bearer.ipv4.map(IpAddr::V4).into_iter().chain(bearer.ipv6.map(IpAddr::V6))
}

/// An IPv6 address's prefix of 64 bits.
pub fn prefix(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)
}

fn bearer(rest: &mut &[u8]) -> Option<Bearer> {
    let first = *rest.split_off_first()?;
    let uplink = u32::from_be_bytes(*rest.split_off(..4)?.first_chunk()?);
    let ipv4 = if first & V4 != 0 {
        Some(Ipv4Addr::from_octets(*rest.split_off(..4)?.first_chunk()?))
    } else {
        None
    };
    let ipv6 = if first & V6 != 0 {
        let upper = u64::from_be_bytes(*rest.split_off(..8)?.first_chunk()?);
        Some(Ipv6Addr::from_bits(u128::from(upper) << 64))
    } else {
        None
    };
    Some(Bearer { id: first >> 4, uplink, ipv4, ipv6 })
}

impl Record {
    /// The keys as they are in messages, to [`Template::join`](crate::template::Template::join).
    pub fn keys(&self) -> OwnedKeys {
        let narrow = |number: u64| (number as u32).to_be_bytes().to_vec();
        let wide = |number: u64| number.to_be_bytes().to_vec();
        let of = |number| if self.wide { wide(number) } else { narrow(number) };
        let address = self.bearers.iter().find_map(|bearer| bearer.ipv4);
        OwnedKeys {
            // The IMSI is a key in its own form only; of a PFCP session it is the SEID, which is the control's.
            subject: if self.wide { Vec::new() } else { wide(self.subject) },
            control: of(self.control),
            anchor: of(self.anchor),
            address: address.map(|address| address.octets().to_vec()).unwrap_or_default(),
        }
    }

    /// The octets. Appends to `out`.
    ///
    /// # Errors
    /// More bearers or messages than there is room for, or a bearer's identity of more than four bits.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), Misfit> {
        if self.bearers.len() > MOST || self.messages.len() > MOST {
            return Err(Misfit);
        }
        let one_name = self.subject == self.control && self.wide;
        let flag = |is: bool, flag| if is { flag } else { 0 };
        out.push(
            flag(self.wide, WIDE)
                | flag(one_name, ONE_NAME)
                | flag(self.idle, IDLE)
                | flag(self.incomplete, INCOMPLETE),
        );
        out.push(self.peer);
        out.push((self.bearers.len() as u8) << 4 | self.messages.len() as u8);
        out.extend_from_slice(&self.subject.to_be_bytes());
        let mut number = |number: u64| {
            let octets = number.to_be_bytes();
            out.extend_from_slice(if self.wide { &octets } else { &octets[4..] });
        };
        if !one_name {
            number(self.control);
        }
        number(self.anchor);
        for bearer in &self.bearers {
            if bearer.id > 15 {
                return Err(Misfit);
            }
            out.push(bearer.id << 4 | flag(bearer.ipv4.is_some(), V4) | flag(bearer.ipv6.is_some(), V6));
            out.extend_from_slice(&bearer.uplink.to_be_bytes());
            out.extend(bearer.ipv4.iter().flat_map(Ipv4Addr::octets));
            out.extend(bearer.ipv6.iter().flat_map(|address| address.octets().into_iter().take(8)));
        }
        for message in &self.messages {
            out.extend_from_slice(&message.template.to_be_bytes());
            out.extend_from_slice(&message.stored);
        }
        Ok(())
    }

    /// Reads [`Record::encode`]'s octets.
    ///
    /// # Errors
    /// They are no record, or name templates that are not there.
    pub fn decode(octets: &[u8], templates: &Templates) -> Result<Record, Misfit> {
        let view = View(octets);
        let counts = *octets.get(2).ok_or(Misfit)?;
        let mut rest = octets.get(view.anchor_at() + view.width()..).ok_or(Misfit)?;
        let record = Record {
            peer: view.peer().ok_or(Misfit)?,
            subject: view.subject().ok_or(Misfit)?,
            control: view.control().ok_or(Misfit)?,
            anchor: view.anchor().ok_or(Misfit)?,
            wide: view.flag(WIDE),
            idle: view.is_idle(),
            incomplete: view.flag(INCOMPLETE),
            bearers: (0..counts >> 4).map(|_| bearer(&mut rest).ok_or(Misfit)).collect::<Result<_, _>>()?,
            messages: (0..counts & 0xf).map(|_| kept(&mut rest, templates)).collect::<Result<_, _>>()?,
        };
        if rest.is_empty() { Ok(record) } else { Err(Misfit) }
    }
}

fn kept(rest: &mut &[u8], templates: &Templates) -> Result<Kept, Misfit> {
    let number = rest.split_off(..2).ok_or(Misfit)?;
    let template = u16::from_be_bytes([number[0], number[1]]);
    let stored = templates.get(template).ok_or(Misfit)?.stored();
    Ok(Kept { template, stored: rest.split_off(..stored).ok_or(Misfit)?.into() })
}

/// [`Keys`] that own their octets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnedKeys {
    subject: Vec<u8>,
    control: Vec<u8>,
    anchor: Vec<u8>,
    address: Vec<u8>,
}

impl OwnedKeys {
    /// Borrowed. A key that is not known is in no message.
    pub fn borrow(&self) -> Keys<'_> {
        Keys { subject: &self.subject, control: &self.control, anchor: &self.anchor, address: &self.address }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Template;

    fn templates() -> Templates {
        let mut templates = Templates::default();
        templates.enter(Template::whole(3)).unwrap();
        templates.enter(Template::whole(0)).unwrap();
        templates
    }

    fn record() -> Record {
        let bearer = |id, ipv4, ipv6| Bearer { id, uplink: 7, ipv4, ipv6 };
        Record {
            peer: 1,
            subject: 0x0010_0101_2345_67f8,
            control: 5,
            anchor: 6,
            wide: false,
            idle: true,
            incomplete: false,
            bearers: vec![
                bearer(5, Some([10, 45, 0, 2].into()), Some("2001:db8:1:2::".parse().unwrap())),
                bearer(6, None, None),
            ],
            messages: vec![
                Kept { template: 0, stored: [1, 2, 3].into() },
                Kept { template: 1, stored: [].into() },
            ],
        }
    }

    #[test]
    fn a_record_comes_back_and_can_be_looked_at() {
        for wide in [false, true] {
            let mut record = Record { wide, ..record() };
            for control in [5, record.subject] {
                record.control = if wide { control } else { 5 };
                let mut octets = Vec::new();
                record.encode(&mut octets).unwrap();
                assert_eq!(Record::decode(&octets, &templates()).as_ref(), Ok(&record));
                let view = View(&octets);
                assert_eq!((view.subject(), view.control()), (Some(record.subject), Some(record.control)));
                assert_eq!((view.anchor(), view.peer(), view.is_idle()), (Some(6), Some(1), true));
                assert_eq!(view.bearers().collect::<Vec<_>>(), record.bearers);
                assert_eq!(view.addresses().count(), 2);
                for end in 0..octets.len() {
                    assert_eq!(Record::decode(&octets[..end], &templates()), Err(Misfit));
                    let _ = View(&octets[..end]).addresses().count();
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut many = record();
        many.bearers = vec![many.bearers[0]; MOST + 1];
        assert_eq!(many.encode(&mut Vec::new()), Err(Misfit));
        let mut octets = Vec::new();
        record().encode(&mut octets).unwrap();
        assert_eq!(
            Record::decode(&octets, &Templates::default()),
            Err(Misfit),
            "templates that are not there"
        );
        octets.push(0);
        assert_eq!(Record::decode(&octets, &templates()), Err(Misfit));
    }
}
