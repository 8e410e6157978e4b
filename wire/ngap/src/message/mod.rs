//! The messages of TS 38.413 §9.2, one struct each, and [`Pdu`](crate::Pdu), the union of them.
//!
//! A message is declared once, as a table: our field and its type, the IE that carries it, the
//! criticality the standard assigns to that IE, and how a receiver treats its absence:
//!
//! | kind | field type | absent or ignorable and unreadable |
//! |---|---|---|
//! | `req` | `T` | the message is rejected |
//! | `opt` | `Option<T>` | `None` |
//! | `def` | `T` | `T::default()`: mandatory, but of criticality `ignore` (§10.3.5) |
//! | `list` | `Vec<T>` | empty; an empty list is not sent |
//! | `flag` | `bool` | `false`; sent when `true` |
//!
//! The table yields the struct, the encoder and the decoder, so they cannot disagree. IEs of the
//! standard that have no field here are skipped by the receiver, as its object set knows them.

mod interface;
mod session;
mod ue;

pub use interface::*;
pub use session::*;
pub use ue::*;

use crate::codec::{IeReader, IeWriter};
use crate::error::EncodeError;

/// What the codec needs of a message.
pub(crate) trait Message: Sized {
    /// The name TS 38.413 gives the message.
    const NAME: &'static str;
    /// Direction of the PDU that holds it.
    const DIRECTION: &'static str;
    /// Procedure code.
    const PROCEDURE_CODE: u8;
    /// Criticality of the procedure.
    const CRITICALITY: oxirush_ngap::ngap::Criticality;

    /// Writes the IEs in the standard's order.
    fn write(&self, ies: &mut IeWriter) -> Result<(), EncodeError>;
    /// Reads the IEs; `None` when one that it cannot do without is missing or unreadable, which
    /// `ies` has then noted.
    fn read(ies: &mut IeReader<'_>) -> Option<Self>;
}

/// Declares messages as tables; see the module's documentation.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $asn:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $ie:ident $criticality:ident $kind:ident,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

            impl $crate::message::Message for $name {
                const NAME: &'static str = stringify!($asn);
                const DIRECTION: &'static str = <oxirush_ngap::ngap::$asn as oxirush_ngap::Message>::DIRECTION;
                const PROCEDURE_CODE: u8 = <oxirush_ngap::ngap::$asn as oxirush_ngap::Message>::PROCEDURE_CODE;
                const CRITICALITY: oxirush_ngap::ngap::Criticality =
                    <oxirush_ngap::ngap::$asn as oxirush_ngap::Message>::CRITICALITY;

                fn write(
                    &self,
                    ies: &mut $crate::codec::IeWriter,
                ) -> Result<(), $crate::error::EncodeError> {
                    $(ies.$kind::<oxirush_ngap::ie::$ie, _>(
                        oxirush_ngap::ngap::Criticality::$criticality, &self.$field)?;)*
                    Ok(())
                }

                fn read(ies: &mut $crate::codec::IeReader<'_>) -> Option<Self> {
                    $(let $field = ies.$kind::<oxirush_ngap::ie::$ie, _>(
                        oxirush_ngap::ngap::Criticality::$criticality);)*
                    Some(Self { $($field: $field?,)* })
                }
            }
        )*
    };
}
pub(crate) use messages;
