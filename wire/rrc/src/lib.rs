//! NR RRC (TS 38.331) between UE and CU, as far as it carries NAS and bearers, in unaligned PER.
//!
//! One type per logical channel has the channel's messages, an encoder and a decoder: [`UlCcch`] and [`DlCcch`] (SRB0),
//! [`UlDcch`] and [`DlDcch`] (SRB1 and SRB2), [`Pcch`], [`BcchBch`] and [`BcchDlSch`]. [`CellGroupConfig`] stands alone, as
//! F1AP carries it between DU and CU as octets. Types and members have the standard's names.
//!
//! Invariants: no octets make a decoder panic; memory is bounded by the size of the input, as lists have the standard's limits.
//! Extensions of later releases are skipped. A member that would change what a message means, and that this
//! network does not use, makes [`DecodeError::NotSupported`] with its name; one without meaning here is skipped.
//! [docs/spec/rrc.md](../../../docs/spec/rrc.md) lists both.
//!
//! Read first: [`message`], then `codec.rs` for how a type is declared.
//!
//! ```
//! use rrc::message::{DlInformationTransfer, RrcSetupRequest};
//! use rrc::{DlDcch, RrcTransactionIdentifier};
//!
//! let transfer = DlInformationTransfer {
//!     rrc_transaction_identifier: RrcTransactionIdentifier::new(1).ok_or("above 3")?,
//!     dedicated_nas_message: Some(vec![0x7e, 0x00].into()),
//! };
//! let octets = DlDcch::from(transfer.clone()).encode()?;
//! assert_eq!(DlDcch::decode(&octets)?, DlDcch::DlInformationTransfer(transfer));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod bearer;
pub mod cell_group;
mod codec;
mod error;
pub mod message;
pub mod system;
pub mod value;

use bytes::Bytes;
use codec::{Uper, choice};
use message::*;
use per::{Reader, Variant, Writer};
use system::{Mib, Sib1};

pub use cell_group::CellGroupConfig;
pub use error::{DecodeError, EncodeError};
pub use value::RrcTransactionIdentifier;

/// Declares the messages of a logical channel. `$nested` channels have them in a CHOICE `c1`.
macro_rules! channel {
    (
        $(#[$meta:meta])*
        pub enum $channel:ident nested $nested:literal of $names:expr;
        { $( $index:literal => $variant:ident ),* $(,)? }
    ) => {
        choice! {
            $(#[$meta])*
            #[allow(missing_docs, reason = "each variant is the message of its name")]
            pub enum $channel extensible false of $names; { $( $index => $variant($variant) ),* }
        }

        $(impl From<$variant> for $channel {
            fn from(message: $variant) -> Self {
                Self::$variant(message)
            }
        })*

        impl $channel {
            /// The octets of the message, an SDU of PDCP or RLC.
            pub fn encode(&self) -> Result<Bytes, EncodeError> {
                let mut writer = Writer::new(Variant::Unaligned);
                if $nested {
                    writer.choice(0, 2, false)?;
                }
                self.put(&mut writer)?;
                Ok(writer.finish().into())
            }

            /// Reads a message. What follows it in the octets is not looked at: it may be extensions.
            pub fn decode(octets: &[u8]) -> Result<Self, DecodeError> {
                let mut reader = Reader::new(Variant::Unaligned, octets);
                if $nested && reader.choice(2, false)? != 0 {
                    return Err(DecodeError::NotSupported("messageClassExtension"));
                }
                Self::get(&mut reader)
            }
        }
    };
}

channel! {
    /// UL-CCCH-Message: SRB0, from the UE.
    pub enum UlCcch nested true
    of ["rrcSetupRequest", "rrcResumeRequest", "rrcReestablishmentRequest", "rrcSystemInfoRequest"]; {
        0 => RrcSetupRequest,
        2 => RrcReestablishmentRequest,
    }
}

channel! {
    /// DL-CCCH-Message: SRB0, to the UE.
    pub enum DlCcch nested true of ["rrcReject", "rrcSetup", "spare2", "spare1"]; {
        0 => RrcReject,
        1 => RrcSetup,
    }
}

channel! {
    /// UL-DCCH-Message: SRB1 and SRB2, from the UE.
    pub enum UlDcch nested true
    of [
        "measurementReport", "rrcReconfigurationComplete", "rrcSetupComplete", "rrcReestablishmentComplete",
        "rrcResumeComplete", "securityModeComplete", "securityModeFailure", "ulInformationTransfer",
        "locationMeasurementIndication", "ueCapabilityInformation", "counterCheckResponse",
        "ueAssistanceInformation", "failureInformation", "ulInformationTransferMRDC", "scgFailureInformation",
        "scgFailureInformationEUTRA",
    ]; {
        1 => RrcReconfigurationComplete,
        2 => RrcSetupComplete,
        5 => SecurityModeComplete,
        6 => SecurityModeFailure,
        7 => UlInformationTransfer,
    }
}

channel! {
    /// DL-DCCH-Message: SRB1 and SRB2, to the UE.
    pub enum DlDcch nested true
    of [
        "rrcReconfiguration", "rrcResume", "rrcRelease", "rrcReestablishment", "securityModeCommand",
        "dlInformationTransfer", "ueCapabilityEnquiry", "counterCheck", "mobilityFromNRCommand",
        "dlDedicatedMessageSegment-r16", "ueInformationRequest-r16", "dlInformationTransferMRDC-r16",
        "loggedMeasurementConfiguration-r16", "spare3", "spare2", "spare1",
    ]; {
        0 => RrcReconfiguration,
        2 => RrcRelease,
        4 => SecurityModeCommand,
        5 => DlInformationTransfer,
    }
}

channel! {
    /// PCCH-Message: to UEs in idle mode.
    pub enum Pcch nested true of ["paging", "spare1"]; {
        0 => Paging,
    }
}

channel! {
    /// BCCH-BCH-Message: broadcast.
    pub enum BcchBch nested false of ["mib", "messageClassExtension"]; {
        0 => Mib,
    }
}

channel! {
    /// BCCH-DL-SCH-Message: broadcast.
    pub enum BcchDlSch nested true of ["systemInformation", "systemInformationBlockType1"]; {
        1 => Sib1,
    }
}
