//! 3GPP identities and values (TS 23.003, TS 29.571) that every layer names.
//!
//! Each type can only hold a valid value: construction checks once, accessors cannot fail.
//! `Display`/`FromStr` use the form operators write (`999-70`, `imsi-999700000000001`,
//! `1 Gbps`); serde uses the JSON form of TS 29.571. Octet forms that several protocols
//! share (PLMN, TAC, AMF ID, S-NSSAI) are here too; everything message-specific is in `wire`.
//!
//! Modules: [`plmn`] (PLMN, TAI, NCGI), [`subscriber`] (IMSI, SUPI, PEI), [`guti`] (GUAMI, 5G-GUTI),
//! [`mod@slice`] (S-NSSAI, DNN), [`session`] (PDU session, TEID, SEID), [`qos`] (bit rates, 5QI, ARP), [`key`].
#![forbid(unsafe_code)]

pub mod guti;
pub mod key;
pub mod plmn;
pub mod qos;
pub mod session;
pub mod slice;
pub mod subscriber;

pub use guti::{AmfId, Guami, Guti, STmsi, Tmsi};
pub use key::Key;
pub use plmn::{Ncgi, NrCellId, Plmn, Tac, Tai};
pub use qos::{Ambr, Arp, BitRate, FiveQi, Qfi};
pub use session::{PduSessionId, PduSessionType, Pti, Seid, SscMode, Teid};
pub use slice::{Dnn, SNssai};
pub use subscriber::{Imsi, Pei, Supi};

/// A value that does not have the form its standard gives it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{value}` is not valid: expected {expected}")]
pub struct Invalid {
    /// What was being read, in the standard's word ("MCC", "S-NSSAI").
    pub what: &'static str,
    /// The offending text, cut to 64 characters; never a key.
    pub value: String,
    /// The form that would have been right.
    pub expected: &'static str,
}

impl Invalid {
    /// An error about `value`, of which at most 64 characters are kept.
    pub fn new(what: &'static str, value: impl ToString, expected: &'static str) -> Self {
        let value = value.to_string().chars().take(64).collect();
        Self { what, value, expected }
    }
}

/// Implements serde through `Display` and `FromStr`, the string form of TS 29.571.
macro_rules! serde_as_string {
    ($t:ty) => {
        impl serde::Serialize for $t {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $t {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_string;

/// Reads exactly `digits` hexadecimal digits.
pub(crate) fn parse_hex(
    what: &'static str,
    text: &str,
    digits: usize,
    expected: &'static str,
) -> Result<u64, Invalid> {
    let well_formed = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    well_formed
        .then(|| u64::from_str_radix(text, 16).ok())
        .flatten()
        .ok_or_else(|| Invalid::new(what, text, expected))
}
