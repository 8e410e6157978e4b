//! How types, IEs and messages are written and read.
//!
//! [`Per`] is a type of the ASN.1. The macros declare types and messages as tables, each of which gives the struct, its
//! writer and its reader, so that they cannot disagree. [`IeReader`] notes each fault with the criticality that decides
//! its effect (TS 38.473 §10.3).

use per::{DecodeError as Malformed, EncodeError, ErrorKind as Malformation, Range, Reader, Size, Writer};

use crate::error::{DecodeError, ErrorKind};
use crate::ie::{
    Criticality, CriticalityDiagnostics, CriticalityDiagnosticsIe, GnbCuUeF1apId, GnbDuUeF1apId,
    ProcedureCode, TransactionId, TriggeringMessage, TypeOfError,
};
use crate::message::Message;

/// A type of the ASN.1.
pub(crate) trait Per: Sized {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError>;
    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// An OCTET STRING without size.
impl Per for Vec<u8> {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.octet_string(self, Size::ANY)
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        r.octet_string(Size::ANY)
    }
}

/// The size of a container of IEs.
const CONTAINER: Range = Range::new(0, 65_535);

/// id, criticality and value of an IE, extension or single container: all three have this form (§9.4.8).
pub(crate) fn write_ie(
    w: &mut Writer,
    id: u16,
    criticality: Criticality,
    value: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    w.integer(id.into(), CONTAINER)?;
    criticality.write(w)?;
    w.open(value)
}

/// The reverse of [`write_ie`]; `read` gets a reader of the value.
pub(crate) fn read_ie<T>(
    r: &mut Reader<'_>,
    read: impl FnOnce(u16, Criticality, &mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    let id = r.integer(CONTAINER)? as u16;
    let criticality = Criticality::read(r)?;
    r.open(|inner| read(id, criticality, inner))
}

/// A single container (ProtocolIE-SingleContainer) of one IE.
pub(crate) fn read_single<T: Per>(r: &mut Reader<'_>, expected: u16) -> Result<T, Malformed> {
    read_ie(r, |id, _, inner| {
        if id == expected { T::read(inner) } else { Err(inner.error(Malformation::Value("unexpected IE"))) }
    })
}

/// The extensions of a SEQUENCE: `read` says whether it knows the one it gets.
pub(crate) fn read_extensions(
    r: &mut Reader<'_>,
    mut read: impl FnMut(u16, &mut Reader<'_>) -> Result<bool, Malformed>,
) -> Result<(), Malformed> {
    let count = r.integer(Range::new(1, 65_535))?;
    for _ in 0..count {
        read_ie(r, |id, criticality, inner| {
            if !read(id, inner)? && criticality == Criticality::Reject {
                return Err(inner.error(Malformation::Value("extension not comprehended")));
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Members of a SEQUENCE: `req` is always there, `opt` may be absent, `list(lower, upper)` is a SEQUENCE OF,
/// and `optlist(lower, upper)` one that is absent when empty.
macro_rules! member {
    (present req $o:ident $v:expr) => {};
    (present list $a:tt $o:ident $v:expr) => {};
    (present opt $o:ident $v:expr) => { $o.push($v.is_some()) };
    (present optlist $a:tt $o:ident $v:expr) => { $o.push(!$v.is_empty()) };
    (count optlist $a:tt) => { 1 };
    (write optlist $a:tt $w:ident $v:expr) => {
        if !$v.is_empty() { $crate::codec::member!(write list $a $w $v) }
    };
    (read optlist $a:tt $r:ident $p:ident $next:ident) => {{
        $next += 1;
        if $p.present($next - 1) { $crate::codec::member!(read list $a $r $p $next) } else { Vec::new() }
    }};
    (count req) => { 0 };
    (count list $a:tt) => { 0 };
    (count opt) => { 1 };
    (write req $w:ident $v:expr) => { $crate::codec::Per::write(&$v, $w)? };
    (write opt $w:ident $v:expr) => { if let Some(value) = &$v { $crate::codec::Per::write(value, $w)? } };
    (write list ($lower:expr, $upper:expr) $w:ident $v:expr) => {
        $w.list(&$v, per::Size::new($lower, $upper), |w, item| $crate::codec::Per::write(item, w))?
    };
    (read req $r:ident $p:ident $next:ident) => { $crate::codec::Per::read($r)? };
    (read opt $r:ident $p:ident $next:ident) => {{
        $next += 1;
        if $p.present($next - 1) { Some($crate::codec::Per::read($r)?) } else { None }
    }};
    (read list ($lower:expr, $upper:expr) $r:ident $p:ident $next:ident) => {
        $r.list(per::Size::new($lower, $upper), $crate::codec::Per::read)?
    };
}
pub(crate) use member;

/// Declares SEQUENCEs: whether they have an extension marker, their members in order, and behind `+` the known members
/// of their iE-Extensions with id and criticality.
macro_rules! sequences {
    ($($(#[$doc:meta])* $name:ident $extensible:literal {
        $($(#[$field_doc:meta])* $kind:ident $(($($args:tt)*))? => $field:ident: $type:ty,)*
    } $(+ {
        $($(#[$ext_doc:meta])* $ext:ident: $ext_type:ty = $id:literal $criticality:ident,)*
    })?)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            $($($(#[$ext_doc])* pub $ext: Option<$ext_type>,)*)?
        }

        impl $crate::codec::Per for $name {
            #[allow(clippy::vec_init_then_push, reason = "the members before are optional to the macro too")]
            fn write(&self, w: &mut per::Writer) -> Result<(), per::EncodeError> {
                let mut optional: Vec<bool> = Vec::new();
                $($crate::codec::member!(present $kind $(($($args)*))? optional self.$field);)*
                let extensions = 0_i64 $($(+ i64::from(self.$ext.is_some()))*)?;
                optional.push(extensions > 0);
                w.preamble($extensible.then_some(false), &optional);
                $($crate::codec::member!(write $kind $(($($args)*))? w self.$field);)*
                if extensions > 0 {
                    w.integer(extensions, per::Range::new(1, 65_535))?;
                }
                $($(if let Some(value) = &self.$ext {
                    $crate::codec::write_ie(w, $id, $crate::ie::Criticality::$criticality, |w| {
                        $crate::codec::Per::write(value, w)
                    })?;
                })*)?
                Ok(())
            }

            #[allow(unused_mut, unused_assignments, unused_variables, reason = "not every SEQUENCE has optional members")]
            fn read(r: &mut per::Reader<'_>) -> Result<Self, per::DecodeError> {
                let optional = 0 $(+ $crate::codec::member!(count $kind $(($($args)*))?))*;
                let preamble = r.preamble($extensible, optional + 1)?;
                let mut next = 0;
                $(let $field = $crate::codec::member!(read $kind $(($($args)*))? r preamble next);)*
                $($(let mut $ext: Option<$ext_type> = None;)*)?
                if preamble.present(optional) {
                    $crate::codec::read_extensions(r, |id, inner| {
                        match id {
                            $($($id => $ext = Some($crate::codec::Per::read(inner)?),)*)?
                            _ => return Ok(false),
                        }
                        #[allow(unreachable_code, reason = "not every SEQUENCE has known extensions")]
                        Ok(true)
                    })?;
                }
                r.skip_additions(&preamble)?;
                Ok(Self { $($field,)* $($($ext,)*)? })
            }
        }
    )* };
}
pub(crate) use sequences;

/// Declares ENUMERATED types: the values before the extension marker, then behind `+` those after it.
macro_rules! enumerations {
    ($($(#[$doc:meta])* $name:ident $extensible:literal {
        $($(#[$value_doc:meta])* $value:ident $text:literal,)*
    } $(+ { $($addition:ident $addition_text:literal,)* })?)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the values are the standard's own names")]
        pub enum $name { $($(#[$value_doc])* $value,)* $($($addition,)*)? }

        impl $name {
            /// Every value, in the order of the ASN.1.
            pub const ALL: &'static [Self] = &[$(Self::$value,)* $($(Self::$addition,)*)?];
            const ROOT: usize = [$($text,)*].len();

            /// The name of the standard's ASN.1.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $text,)* $($(Self::$addition => $addition_text,)*)? }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl $crate::codec::Per for $name {
            fn write(&self, w: &mut per::Writer) -> Result<(), per::EncodeError> {
                w.enumerated(*self as usize, Self::ROOT, $extensible)
            }

            fn read(r: &mut per::Reader<'_>) -> Result<Self, per::DecodeError> {
                let index = r.enumerated(Self::ROOT, $extensible)?;
                Self::ALL.get(index).copied().ok_or_else(|| r.error(per::ErrorKind::Value("unknown value")))
            }
        }
    )* };
}
pub(crate) use enumerations;

/// Declares INTEGER types.
macro_rules! integers {
    ($($(#[$doc:meta])* $name:ident($type:ty) $range:expr;)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $type);

        impl $crate::codec::Per for $name {
            fn write(&self, w: &mut per::Writer) -> Result<(), per::EncodeError> {
                w.integer(i64::try_from(self.0).unwrap_or(i64::MAX), $range)
            }

            fn read(r: &mut per::Reader<'_>) -> Result<Self, per::DecodeError> {
                let value = r.integer($range)?;
                value.try_into().map(Self).map_err(|_| r.error(per::ErrorKind::Range))
            }
        }
    )* };
}
pub(crate) use integers;

/// Declares messages: procedure code, direction and criticality; then their IEs with id and criticality. Kinds:
///
/// | kind | field type | absent, or of criticality `ignore` and unreadable |
/// |---|---|---|
/// | `req` | `T` | the message is rejected |
/// | `opt` | `Option<T>` | `None` |
/// | `def` | `T` | `T::default()`: mandatory, but of criticality `ignore` (§10.3.5) |
/// | `items(id, most)` | `Vec<T>` | empty; an empty list is not sent. Each item is an IE of this id |
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $asn:literal $direction:ident $code:literal $criticality:ident {
        $($(#[$field_doc:meta])* $kind:ident $(($($args:tt)*))? => $field:ident: $type:ty = $id:literal $ie_criticality:ident,)*
    })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl $crate::message::Message for $name {
            const NAME: &'static str = $asn;
            const DIRECTION: $crate::ie::TriggeringMessage = $crate::ie::TriggeringMessage::$direction;
            const PROCEDURE_CODE: u8 = $code;
            const CRITICALITY: $crate::ie::Criticality = $crate::ie::Criticality::$criticality;

            fn write(&self, ies: &mut $crate::codec::IeWriter) -> Result<(), per::EncodeError> {
                $(ies.$kind($id, $crate::ie::Criticality::$ie_criticality, &self.$field $(, ($($args)*))?)?;)*
                Ok(())
            }

            fn read(ies: &mut $crate::codec::IeReader, r: &mut per::Reader<'_>) -> Result<Option<Self>, per::DecodeError> {
                $(let mut $field = $crate::codec::slot!($kind);)*
                ies.each(r, |id, inner| {
                    match id {
                        $($id => $field = Some($crate::codec::value!($kind $(($($args)*))? inner)),)*
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                $(let $field = ies.$kind($id, $crate::ie::Criticality::$ie_criticality, $field);)*
                Ok((|| Some(Self { $($field: $field?,)* }))())
            }
        }
    )* };
}
pub(crate) use messages;

macro_rules! slot {
    ($kind:ident) => {
        None
    };
}
pub(crate) use slot;

macro_rules! value {
    (items ($id:expr, $most:expr) $r:ident) => {
        $r.list(per::Size::new(1, $most), |r| $crate::codec::read_single(r, $id))?
    };
    ($kind:ident $r:ident) => {
        $crate::codec::Per::read($r)?
    };
}
pub(crate) use value;

/// Collects the IEs of a message to send.
pub(crate) struct IeWriter {
    ies: Vec<Ie>,
}

/// id, criticality and encoded value.
type Ie = (u16, Criticality, Vec<u8>);

impl IeWriter {
    fn add(
        &mut self,
        id: u16,
        criticality: Criticality,
        write: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let mut value = Writer::new(per::Variant::Aligned);
        write(&mut value)?;
        self.ies.push((id, criticality, value.finish()));
        Ok(())
    }

    pub(crate) fn req<T: Per>(&mut self, id: u16, c: Criticality, value: &T) -> Result<(), EncodeError> {
        self.add(id, c, |w| value.write(w))
    }

    pub(crate) fn def<T: Per>(&mut self, id: u16, c: Criticality, value: &T) -> Result<(), EncodeError> {
        self.req(id, c, value)
    }

    pub(crate) fn opt<T: Per>(
        &mut self,
        id: u16,
        c: Criticality,
        value: &Option<T>,
    ) -> Result<(), EncodeError> {
        value.as_ref().map_or(Ok(()), |value| self.req(id, c, value))
    }

    pub(crate) fn items<T: Per>(
        &mut self,
        id: u16,
        c: Criticality,
        items: &[T],
        (item, most): (u16, usize),
    ) -> Result<(), EncodeError> {
        if items.is_empty() {
            return Ok(());
        }
        self.add(id, c, |w| {
            w.list(items, Size::new(1, most), |w, value| write_ie(w, item, c, |w| value.write(w)))
        })
    }
}

/// The octets of a message: F1AP-PDU (§9.4.3).
pub(crate) fn encode<M: Message>(message: &M) -> Result<Vec<u8>, EncodeError> {
    let mut ies = IeWriter { ies: Vec::with_capacity(8) };
    message.write(&mut ies)?;
    let mut w = Writer::new(per::Variant::Aligned);
    w.choice(M::DIRECTION as usize, ALTERNATIVES, false)?;
    w.integer(M::PROCEDURE_CODE.into(), Range::new(0, 255))?;
    M::CRITICALITY.write(&mut w)?;
    w.open(|w| {
        w.preamble(Some(false), &[]);
        w.integer(ies.ies.len() as i64, CONTAINER)?;
        ies.ies.iter().try_for_each(|(id, criticality, value)| {
            w.integer((*id).into(), CONTAINER)?;
            criticality.write(w)?;
            w.octet_string(value, Size::ANY)
        })
    })?;
    Ok(w.finish())
}

/// Initiating message, both outcomes, and an extension that nothing uses.
const ALTERNATIVES: usize = 4;

/// The start of a PDU.
pub(crate) struct Envelope {
    pub(crate) direction: TriggeringMessage,
    pub(crate) code: u8,
    pub(crate) criticality: Criticality,
}

impl Envelope {
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let index = r.choice(ALTERNATIVES, false)?;
        let direction = TriggeringMessage::ALL.get(index).copied();
        let direction = direction.ok_or_else(|| r.error(Malformation::Value("unknown kind of PDU")))?;
        let code = r.integer(Range::new(0, 255))? as u8;
        Ok(Self { direction, code, criticality: Criticality::read(r)? })
    }
}

/// At most this many IEs are reported in Criticality Diagnostics (maxnoofErrors, §9.4.7).
const MAX_REPORTED: usize = 256;

/// Reads the IEs of a message, in any order, and notes what is wrong with them.
#[derive(Default)]
pub(crate) struct IeReader {
    seen: Vec<u16>,
    faults: Vec<CriticalityDiagnosticsIe>,
    /// The first fault of criticality `reject`, or of an IE that the message cannot do without.
    fatal: Option<ErrorKind>,
    gnb_cu_ue_f1ap_id: Option<GnbCuUeF1apId>,
    gnb_du_ue_f1ap_id: Option<GnbDuUeF1apId>,
    transaction_id: Option<TransactionId>,
}

impl IeReader {
    /// Calls `read` for each IE; it says whether it knows the id.
    pub(crate) fn each(
        &mut self,
        r: &mut Reader<'_>,
        mut read: impl FnMut(u16, &mut Reader<'_>) -> Result<bool, Malformed>,
    ) -> Result<(), Malformed> {
        let preamble = r.preamble(true, 0)?;
        let count = r.integer(CONTAINER)?;
        for _ in 0..count {
            read_ie(r, |id, criticality, inner| {
                self.note_identity(id, inner);
                if self.seen.contains(&id) {
                    self.fatal.get_or_insert(ErrorKind::FalselyConstructed(id));
                    return Ok(());
                }
                match read(id, inner) {
                    Ok(true) => self.seen.push(id),
                    Ok(false) => self.fault(id, criticality, TypeOfError::NotUnderstood, None),
                    Err(why) => {
                        self.seen.push(id);
                        self.fault(id, criticality, TypeOfError::NotUnderstood, Some(why));
                    }
                }
                Ok(())
            })?;
        }
        r.skip_additions(&preamble)
    }

    /// Keeps what an answer to a faulty message needs.
    fn note_identity(&mut self, id: u16, value: &Reader<'_>) {
        let mut value = value.clone();
        match id {
            40 => self.gnb_cu_ue_f1ap_id = Per::read(&mut value).ok(),
            41 => self.gnb_du_ue_f1ap_id = Per::read(&mut value).ok(),
            78 => self.transaction_id = Per::read(&mut value).ok(),
            _ => {}
        }
    }

    fn fault(&mut self, id: u16, criticality: Criticality, error: TypeOfError, why: Option<Malformed>) {
        if criticality == Criticality::Reject {
            self.fatal.get_or_insert(match (error, why) {
                (_, Some(why)) => ErrorKind::TransferSyntax(why),
                (TypeOfError::Missing, _) => ErrorKind::MissingIe(id),
                (TypeOfError::NotUnderstood, _) => ErrorKind::UnknownIe(id),
            });
        }
        if criticality != Criticality::Ignore && self.faults.len() < MAX_REPORTED {
            self.faults.push(CriticalityDiagnosticsIe { criticality, ie_id: id, type_of_error: error });
        }
    }

    fn missing(&mut self, id: u16, criticality: Criticality) {
        // An IE that came and was unreadable is noted already.
        if !self.seen.contains(&id) {
            self.fault(id, criticality, TypeOfError::Missing, None);
        }
    }

    pub(crate) fn req<T>(&mut self, id: u16, criticality: Criticality, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.missing(id, criticality);
            self.fatal.get_or_insert(ErrorKind::MissingIe(id));
        }
        value
    }

    pub(crate) fn def<T: Default>(
        &mut self,
        id: u16,
        criticality: Criticality,
        value: Option<T>,
    ) -> Option<T> {
        if value.is_none() {
            self.missing(id, criticality);
        }
        Some(value.unwrap_or_default())
    }

    pub(crate) fn opt<T>(&mut self, _: u16, _: Criticality, value: Option<T>) -> Option<Option<T>> {
        Some(value)
    }

    pub(crate) fn items<T>(&mut self, _: u16, _: Criticality, value: Option<Vec<T>>) -> Option<Vec<T>> {
        Some(value.unwrap_or_default())
    }
}

/// A decoded message and what its sender is told of it all the same.
pub(crate) type Read<M> = (M, Option<CriticalityDiagnostics>);

/// Reads the message `M` behind its envelope.
pub(crate) fn decode<M: Message>(envelope: &Envelope, r: &mut Reader<'_>) -> Result<Read<M>, DecodeError> {
    let mut ies = IeReader::default();
    let read = r.open(|inner| M::read(&mut ies, inner));
    let diagnostics = (!ies.faults.is_empty()).then_some(CriticalityDiagnostics {
        procedure_code: Some(ProcedureCode(envelope.code)),
        triggering_message: Some(envelope.direction),
        procedure_criticality: Some(envelope.criticality),
        transaction_id: ies.transaction_id,
        ies: ies.faults,
    });
    let error = |kind, diagnostics| DecodeError {
        kind,
        message: M::NAME,
        procedure: Some((envelope.code, envelope.direction)),
        criticality: Some(envelope.criticality),
        gnb_cu_ue_f1ap_id: ies.gnb_cu_ue_f1ap_id,
        gnb_du_ue_f1ap_id: ies.gnb_du_ue_f1ap_id,
        transaction_id: ies.transaction_id,
        diagnostics,
    };
    match (read, ies.fatal) {
        (Err(why), _) => Err(error(ErrorKind::TransferSyntax(why), diagnostics)),
        (_, Some(fatal)) => Err(error(fatal, diagnostics)),
        (Ok(Some(message)), None) => Ok((message, diagnostics)),
        // A message that cannot be built lacks an IE, which is fatal.
        (Ok(None), None) => Err(error(ErrorKind::UnknownProcedure, diagnostics)),
    }
}
