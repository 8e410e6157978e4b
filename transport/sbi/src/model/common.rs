//! Data types that several APIs share (TS 29.571).

use std::{
    fmt,
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use types::{Arp, FiveQi, Invalid, Ncgi, Plmn, SNssai, Tai};

use super::{model, open_enum};
use crate::{message::Media, operation::Message};

/// NF instance identifier: a UUID (TS 29.571 `NfInstanceId`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NfInstanceId(u128);

impl NfInstanceId {
    /// A version 4 UUID made of 128 random bits.
    pub const fn from_random(bits: u128) -> Self {
        Self::with_version(bits, 4)
    }

    /// A version 8 UUID that is always the same for the same name (FNV-1a, 128 bits): an NF that restarts
    /// under its old address is known by its old identifier, so its registration replaces the stale one.
    pub fn from_name(name: &str) -> Self {
        let hash = name.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        });
        Self::with_version(hash, 8)
    }

    const fn with_version(bits: u128, version: u128) -> Self {
        Self(bits & !(0xf << 76) & !(0x3 << 62) | version << 76 | 2 << 62)
    }
}

impl fmt::Display for NfInstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        let (a, b, c, d) = ((v >> 96) as u32, (v >> 80) as u16, (v >> 64) as u16, (v >> 48) as u16);
        write!(f, "{a:08x}-{b:04x}-{c:04x}-{d:04x}-{:012x}", v & 0xffff_ffff_ffff)
    }
}

impl FromStr for NfInstanceId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("NF instance identifier", text, "a UUID");
        let dashes = [8, 13, 18, 23];
        let well_formed = text.len() == 36
            && text
                .bytes()
                .enumerate()
                .all(|(i, b)| if dashes.contains(&i) { b == b'-' } else { b.is_ascii_hexdigit() });
        if !well_formed {
            return Err(invalid());
        }
        u128::from_str_radix(&text.replace('-', ""), 16).map(Self).map_err(|_| invalid())
    }
}

impl Serialize for NfInstanceId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NfInstanceId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A PLMN in a path: the digits alone (TS 29.505 `VarPlmnId`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VarPlmnId(pub Plmn);

impl fmt::Display for VarPlmnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0.mcc(), self.0.mnc())
    }
}

impl FromStr for VarPlmnId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        text.parse().map(Self)
    }
}

/// Point in time as TS 29.571 `DateTime` (RFC 3339; ours in UTC, of seconds).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DateTime(pub String);

impl DateTime {
    /// The same, of milliseconds.
    pub fn with_milliseconds(time: SystemTime) -> Self {
        let milliseconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.subsec_millis());
        let Self(mut text) = Self::from(time);
        text.truncate(text.len() - 1);
        Self(format!("{text}.{milliseconds:03}Z"))
    }

    /// The time it says, to the millisecond; `None` for what is no RFC 3339 time, or before 1970.
    pub fn time(&self) -> Option<SystemTime> {
        let text = self.0.get(..19).filter(|_| self.0.is_ascii())?;
        let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        if separators.iter().any(|(at, wanted)| text.as_bytes()[*at].to_ascii_uppercase() != *wanted) {
            return None;
        }
        let number = |text: &str, from: usize, to: usize| -> Option<i64> {
            let digits =
                text.get(from..to).filter(|digits| digits.bytes().all(|octet| octet.is_ascii_digit()))?;
            digits.parse().ok()
        };
        let (year, month, day) = (number(text, 0, 4)?, number(text, 5, 7)?, number(text, 8, 10)?);
        let (hour, minute, second) = (number(text, 11, 13)?, number(text, 14, 16)?, number(text, 17, 19)?);
        let possible = (1..=12).contains(&month) && (1..=31).contains(&day);
        if !possible || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let mut rest = self.0.get(19..)?;
        let mut milliseconds = 0;
        if let Some(fraction) = rest.strip_prefix('.') {
            let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
            milliseconds = number(&format!("{:0<3}", fraction.get(..digits.min(3))?), 0, 3)?;
            rest = fraction.get(digits..).filter(|_| digits > 0)?;
        }
        let offset_minutes = match rest.as_bytes() {
            [b'Z' | b'z'] => 0,
            [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
                let minutes = number(rest, 1, 3)? * 60 + number(rest, 4, 6)?;
                if *sign == b'+' { minutes } else { -minutes }
            }
            _ => return None,
        };
        // Civil date to days, the inverse of what is below: years begin on 1 March.
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let day_of_era =
            year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + (153 * month + 2) / 5 + day - 1;
        let days = era * 146_097 + day_of_era - 719_468;
        let seconds = days * 86_400 + hour * 3_600 + (minute - offset_minutes) * 60 + second;
        let since = u64::try_from(seconds * 1_000 + milliseconds).ok()?;
        Some(UNIX_EPOCH + std::time::Duration::from_millis(since))
    }
}

impl From<SystemTime> for DateTime {
    fn from(time: SystemTime) -> Self {
        let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        // Days to civil date: eras of 400 years that begin on 1 March, so that leap days come last.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let (hour, minute, second) = (rest / 3_600, rest % 3_600 / 60, rest % 60);
        Self(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
    }
}

open_enum! {
    /// Kind of a change of a resource (TS 29.571 §5.2.2.3).
    pub enum ChangeType { Add = "ADD", Move = "MOVE", Remove = "REMOVE", Replace = "REPLACE", }
}

open_enum! {
    /// Access network (TS 29.571 `AccessType`).
    pub enum AccessType { ThreeGpp = "3GPP_ACCESS", NonThreeGpp = "NON_3GPP_ACCESS", }
    /// Radio access technology.
    pub enum RatType { Nr = "NR", Eutra = "EUTRA", Wlan = "WLAN", Virtual = "VIRTUAL", }
    /// Operation of JSON Patch (RFC 6902).
    pub enum PatchOperation {
        Add = "add", Copy = "copy", Move = "move", Remove = "remove", Replace = "replace", Test = "test",
    }
    /// Authentication method.
    pub enum AuthType { FiveGAka = "5G_AKA", EapAkaPrime = "EAP_AKA_PRIME", EapTls = "EAP_TLS", }
}

model! {
    /// Where a UE is; only NR is served.
    pub struct UserLocation {
        ? nr_location: NrLocation,
    }

    /// A UE's place in NR.
    pub struct NrLocation {
        tai: Tai,
        ncgi: Ncgi,
        ? age_of_location_information: u32,
        ? ue_location_timestamp: DateTime,
    }

    /// One step of a JSON Patch.
    pub struct PatchItem {
        op: PatchOperation,
        path: String,
        ? from: String,
        ? value: serde_json::Value,
    }

    /// What has changed in a resource.
    pub struct NotifyItem {
        resource_id: String,
        changes: Vec<ChangeItem>,
    }

    /// One change of a resource.
    pub struct ChangeItem {
        op: ChangeType,
        path: String,
        ? from: String,
        ? orig_value: serde_json::Value,
        ? new_value: serde_json::Value,
    }

    /// Cause that NGAP gave: group number of TS 29.571 and value of TS 38.413.
    pub struct NgApCause {
        group: u32,
        value: u32,
    }

    /// Default QoS of a session: subscribed in UDM, authorised by PCF.
    pub struct SubscribedDefaultQos {
        #[serde(rename = "5qi")]
        five_qi: FiveQi,
        arp: Arp,
        ? priority_level: u8,
    }

    /// Key material for a resynchronisation (TS 33.102 §6.3.5).
    pub struct ResynchronizationInfo {
        rand: types::Key<16>,
        auts: types::Key<14>,
    }

    /// Slices of a subscription.
    pub struct Nssai {
        ? supported_features: String,
        default_single_nssais: Vec<SNssai>,
        * single_nssais: Vec<SNssai>,
    }

    /// An address given to a UE: one attribute is set.
    #[derive(Eq, Default)]
    pub struct IpAddress {
        ? ipv4_addr: std::net::Ipv4Addr,
        ? ipv6_addr: std::net::Ipv6Addr,
        ? ipv6_prefix: String,
    }

    /// A link in a HAL document.
    #[derive(Eq)]
    pub struct Link {
        href: String,
    }
}

/// A whole JSON Patch document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Patch(pub Vec<PatchItem>);

impl Message for Patch {
    const MEDIA: Media = Media::JsonPatch;
}

impl Patch {
    /// A patch with one `replace`.
    pub fn replace(path: &str, value: serde_json::Value) -> Self {
        let (op, path) = (PatchOperation::Replace, path.to_owned());
        Self(vec![PatchItem { op, path, from: None, value: Some(value) }])
    }

    /// Applies `add`, `replace`, `remove` and `test` to a document.
    ///
    /// # Errors
    /// The first step that does not fit, as text; the document may then be half changed, so work on a copy.
    pub fn apply(&self, document: &mut serde_json::Value) -> Result<(), String> {
        self.0.iter().try_for_each(|item| {
            apply_item(item, document).ok_or_else(|| format!("{} {}", item.op, item.path))
        })
    }
}

/// Applies one step; `None` when it does not fit the document.
fn apply_item(item: &PatchItem, document: &mut serde_json::Value) -> Option<()> {
    use serde_json::Value;
    if item.op == PatchOperation::Test {
        return (document.pointer(&item.path) == item.value.as_ref()).then_some(());
    }
    let (parent, last) = item.path.rsplit_once('/')?;
    let key = last.replace("~1", "/").replace("~0", "~");
    match (document.pointer_mut(parent)?, &item.op) {
        (Value::Object(map), PatchOperation::Add) => _ = map.insert(key, item.value.clone()?),
        (Value::Object(map), PatchOperation::Replace) => *map.get_mut(&key)? = item.value.clone()?,
        (Value::Object(map), PatchOperation::Remove) => _ = map.remove(&key)?,
        (Value::Array(list), PatchOperation::Add) => {
            let index =
                if key == "-" { list.len() } else { key.parse().ok().filter(|i| *i <= list.len())? };
            list.insert(index, item.value.clone()?);
        }
        (Value::Array(list), PatchOperation::Replace) => {
            *list.get_mut(key.parse::<usize>().ok()?)? = item.value.clone()?;
        }
        (Value::Array(list), PatchOperation::Remove) => {
            let index = key.parse().ok().filter(|i: &usize| *i < list.len())?;
            list.remove(index);
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        let at = |seconds| DateTime::from(UNIX_EPOCH + Duration::from_secs(seconds)).0;
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn times_are_read_in_any_zone() {
        for milliseconds in [0, 951_827_696_007, 1_735_689_599_999, 4_107_542_400_120] {
            let time = UNIX_EPOCH + Duration::from_millis(milliseconds);
            assert_eq!(DateTime::with_milliseconds(time).time(), Some(time));
        }
        let read = |text: &str| DateTime(text.to_owned()).time();
        let utc = read("2026-03-01T00:30:00.5Z");
        assert_eq!(read("2026-03-01T02:00:00.500999999+01:30"), utc);
        assert_eq!(read("2026-02-28T20:30:00.50-04:00"), utc);
        for wrong in [
            "",
            "2026-03-01",
            "2026-03-01T00:30:00",
            "2026-03-01 00:30:00Z",
            "2026-13-01T00:30:00Z",
            "2026-03-01T00:30:00.Z",
            "2026-03-01T00:30:00+1:30",
            "+026-03-01T00:30:00Z",
            "1969-12-31T23:59:59Z",
            "2026-03-01T00:30:0\u{e9}Z",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn instance_identifiers_are_uuids() {
        let id = NfInstanceId::from_name("UDM 127.0.0.12:7777");
        assert_eq!(id, NfInstanceId::from_name("UDM 127.0.0.12:7777"));
        assert_ne!(id, NfInstanceId::from_name("UDM 127.0.0.12:7778"));
        let text = id.to_string();
        assert_eq!((text.len(), &text[14..15], "89ab".contains(&text[19..20])), (36, "8", true), "{text}");
        assert_eq!(text.to_uppercase().parse(), Ok(id));
        for bad in [
            "",
            "4947a69a-f61b-4bc1-b9da-47c9c5d14b6",
            "4947a69a_f61b-4bc1-b9da-47c9c5d14b64",
            "+947a69a-f61b-4bc1-b9da-47c9c5d14b64",
        ] {
            assert!(bad.parse::<NfInstanceId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn patches_change_what_they_name_and_refuse_the_rest() {
        let patch = |op: &str, path: &str, value: serde_json::Value| -> Patch {
            serde_json::from_value(json!([{ "op": op, "path": path, "value": value }])).unwrap()
        };
        let mut document = json!({ "a": { "b/c": 1 }, "list": [1, 2] });
        patch("replace", "/a/b~1c", json!(2)).apply(&mut document).unwrap();
        patch("add", "/list/-", json!(3)).apply(&mut document).unwrap();
        patch("add", "/list/0", json!(0)).apply(&mut document).unwrap();
        patch("remove", "/list/1", json!(null)).apply(&mut document).unwrap();
        patch("add", "/new", json!("x")).apply(&mut document).unwrap();
        patch("test", "/new", json!("x")).apply(&mut document).unwrap();
        assert_eq!(document, json!({ "a": { "b/c": 2 }, "list": [0, 2, 3], "new": "x" }));
        let before = document.clone();
        for (op, path) in [
            ("replace", "/nothing"),
            ("replace", ""),
            ("remove", "/list/9"),
            ("add", "/list/9"),
            ("add", "/list/x"),
            ("add", "/no/where"),
            ("test", "/new"),
            ("frobnicate", "/new"),
        ] {
            assert!(patch(op, path, json!("y")).apply(&mut document).is_err(), "{op} {path}");
        }
        assert_eq!(document, before);
    }
}
