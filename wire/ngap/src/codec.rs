//! Reading and writing the IEs of a message, and the rules of TS 38.413 §10.3 for faulty ones.
//!
//! [`IeReader`] notes each fault with the criticality that decides its effect. After a message was
//! read, [`IeReader::verdict`] says whether it is rejected, and what the sender is told otherwise.

use bytes::Bytes;
use oxirush_ngap::Deviation;
use oxirush_ngap::aper::protocol::{Ie, message_octets};
use oxirush_ngap::ngap::{self as asn, decode_open_type, encode_open_type};

use crate::error::{DecodeError, EncodeError, ErrorKind};
use crate::ie::{Criticality, CriticalityDiagnostics, IeDiagnostics, TriggeringMessage, TypeOfError};
use crate::message::Message;
use crate::wire::Wire;

/// At most this many IEs are reported in Criticality Diagnostics (maxnoofErrors, §9.4.7).
const MAX_REPORTED: usize = 256;

/// Collects the IEs of a message to send.
#[derive(Default)]
pub(crate) struct IeWriter {
    fields: Vec<asn::ProtocolIEField<'static>>,
    what: &'static str,
}

impl IeWriter {
    /// For a message or transfer named `what`.
    pub(crate) fn new(what: &'static str) -> Self {
        Self { fields: Vec::with_capacity(8), what }
    }

    /// An IE that is always there.
    pub(crate) fn req<I: Ie, T>(
        &mut self,
        criticality: asn::Criticality,
        value: &T,
    ) -> Result<(), EncodeError>
    where
        T: for<'x> Wire<'x, I::Value<'x>>,
    {
        let octets = encode_open_type(&value.to_wire())
            .map_err(|error| EncodeError { what: self.what, reason: error.to_string() })?;
        self.fields.push(asn::ProtocolIEField::new(I::ID, criticality, octets));
        Ok(())
    }

    /// As `req`: the sender always has it.
    pub(crate) fn def<I: Ie, T>(
        &mut self,
        criticality: asn::Criticality,
        value: &T,
    ) -> Result<(), EncodeError>
    where
        T: for<'x> Wire<'x, I::Value<'x>>,
    {
        self.req::<I, T>(criticality, value)
    }

    /// An IE that may be absent.
    pub(crate) fn opt<I: Ie, T>(
        &mut self,
        criticality: asn::Criticality,
        value: &Option<T>,
    ) -> Result<(), EncodeError>
    where
        T: for<'x> Wire<'x, I::Value<'x>>,
    {
        value.as_ref().map_or(Ok(()), |value| self.req::<I, T>(criticality, value))
    }

    /// A list that is absent when empty.
    pub(crate) fn list<I: Ie, T>(
        &mut self,
        criticality: asn::Criticality,
        value: &Vec<T>,
    ) -> Result<(), EncodeError>
    where
        Vec<T>: for<'x> Wire<'x, I::Value<'x>>,
    {
        if value.is_empty() { Ok(()) } else { self.req::<I, Vec<T>>(criticality, value) }
    }

    /// An enumerated IE with one value, sent when `true`.
    pub(crate) fn flag<I: Ie, T: Copy + Into<bool>>(
        &mut self,
        criticality: asn::Criticality,
        value: &T,
    ) -> Result<(), EncodeError>
    where
        bool: for<'x> Wire<'x, I::Value<'x>>,
    {
        if (*value).into() { self.req::<I, bool>(criticality, &true) } else { Ok(()) }
    }

    /// The octets of the container.
    pub(crate) fn container(self) -> Result<Vec<u8>, EncodeError> {
        message_octets(&self.fields)
            .map_err(|error| EncodeError { what: self.what, reason: error.to_string() })
    }
}

/// Encodes a message as a PDU.
pub(crate) fn encode<M: Message>(message: &M) -> Result<Bytes, EncodeError> {
    let mut ies = IeWriter::new(M::NAME);
    message.write(&mut ies)?;
    let value = oxirush_ngap::Octets::owned(ies.container()?);
    let code = asn::ProcedureCode(M::PROCEDURE_CODE);
    let pdu = match M::DIRECTION {
        "InitiatingMessage" => {
            asn::NGAPPDU::initiatingMessage(asn::InitiatingMessage::new(code, M::CRITICALITY, value))
        }
        "SuccessfulOutcome" => {
            asn::NGAPPDU::successfulOutcome(asn::SuccessfulOutcome::new(code, M::CRITICALITY, value))
        }
        _ => asn::NGAPPDU::unsuccessfulOutcome(asn::UnsuccessfulOutcome::new(code, M::CRITICALITY, value)),
    };
    pdu.encode().map(Bytes::from).map_err(|error| EncodeError { what: M::NAME, reason: error.to_string() })
}

/// A fault of one IE.
#[derive(Debug, Clone)]
struct IeFault {
    id: u16,
    criticality: Criticality,
    error: TypeOfError,
    /// Whether the octets of the value are to blame (transfer syntax) rather than its meaning.
    undecodable: bool,
    /// Why, for the log.
    reason: String,
}

/// The IEs of a received message.
pub(crate) struct IeReader<'a> {
    ies: Vec<asn::ProtocolIEField<'a>>,
    faults: Vec<IeFault>,
    /// An IE was needed and is missing or unreadable, whatever its criticality.
    stuck: bool,
    falsely_constructed: Option<String>,
}

impl<'a> IeReader<'a> {
    /// For the IEs of a message, and what comparing them with its object set has shown.
    pub(crate) fn new(ies: Vec<asn::ProtocolIEField<'a>>, deviations: &[Deviation]) -> Self {
        let mut reader = Self { ies, faults: Vec::new(), stuck: false, falsely_constructed: None };
        for deviation in deviations {
            match deviation {
                Deviation::UnexpectedIe { id, criticality, .. } => reader.faults.push(IeFault {
                    id: *id,
                    criticality: Criticality::from(*criticality),
                    error: TypeOfError::NotUnderstood,
                    undecodable: false,
                    reason: deviation.to_string(),
                }),
                Deviation::RepeatedIe { .. } | Deviation::OutOfOrder { .. } => {
                    reader.falsely_constructed.get_or_insert_with(|| deviation.to_string());
                }
                _ => {}
            }
        }
        reader
    }

    /// The value of an IE: `None` when it is absent (`Ok`) or unreadable (`Err` noted as a fault).
    fn value<I: Ie, T>(&mut self) -> Result<Option<T>, ()>
    where
        T: for<'x> Wire<'x, I::Value<'x>>,
    {
        let Some(field) = self.ies.iter().find(|field| field.id.0 == I::ID) else { return Ok(None) };
        let (undecodable, reason) = match decode_open_type::<I::Value<'_>>(&field.value) {
            Ok(value) => match T::from_wire(value) {
                Ok(value) => return Ok(Some(value)),
                Err(invalid) => (false, format!("{}: {invalid}", I::NAME)),
            },
            Err(error) => (true, format!("{}: {error}", I::NAME)),
        };
        let criticality = Criticality::from(field.criticality);
        let error = TypeOfError::NotUnderstood;
        self.faults.push(IeFault { id: I::ID, criticality, error, undecodable, reason });
        Err(())
    }

    /// An IE the message is worthless without.
    pub(crate) fn req<I: Ie, T>(&mut self, criticality: asn::Criticality) -> Option<T>
    where
        T: for<'x> Wire<'x, I::Value<'x>>,
    {
        let value = self.value::<I, T>();
        if matches!(value, Ok(None)) {
            self.missing::<I>(criticality);
        }
        let value = value.ok().flatten();
        self.stuck |= value.is_none();
        value
    }

    /// An IE whose absence or unreadability its criticality may excuse.
    pub(crate) fn opt<I: Ie, T>(&mut self, _: asn::Criticality) -> Option<Option<T>>
    where
        T: for<'x> Wire<'x, I::Value<'x>>,
    {
        Some(self.value::<I, T>().ok().flatten())
    }

    /// A mandatory IE that has a sensible default.
    pub(crate) fn def<I: Ie, T>(&mut self, criticality: asn::Criticality) -> Option<T>
    where
        T: Default + for<'x> Wire<'x, I::Value<'x>>,
    {
        let value = self.value::<I, T>();
        if matches!(value, Ok(None)) {
            self.missing::<I>(criticality);
        }
        Some(value.ok().flatten().unwrap_or_default())
    }

    /// A list that is empty when absent.
    pub(crate) fn list<I: Ie, T>(&mut self, _: asn::Criticality) -> Option<Vec<T>>
    where
        Vec<T>: for<'x> Wire<'x, I::Value<'x>>,
    {
        Some(self.value::<I, Vec<T>>().ok().flatten().unwrap_or_default())
    }

    /// An enumerated IE with one value.
    pub(crate) fn flag<I: Ie, T: From<bool>>(&mut self, _: asn::Criticality) -> Option<T>
    where
        bool: for<'x> Wire<'x, I::Value<'x>>,
    {
        Some(T::from(self.value::<I, bool>().ok().flatten().unwrap_or(false)))
    }

    /// An IE for its own sake, without any effect on the verdict.
    pub(crate) fn peek<I: Ie, T>(&self) -> Option<T>
    where
        T: for<'x> Wire<'x, I::Value<'x>>,
    {
        let field = self.ies.iter().find(|field| field.id.0 == I::ID)?;
        T::from_wire(decode_open_type::<I::Value<'_>>(&field.value).ok()?).ok()
    }

    fn missing<I: Ie>(&mut self, criticality: asn::Criticality) {
        self.faults.push(IeFault {
            id: I::ID,
            criticality: Criticality::from(criticality),
            error: TypeOfError::Missing,
            undecodable: false,
            reason: format!("{} is missing", I::NAME),
        });
    }

    /// What is wrong enough to reject the message; otherwise what to report of it (§10.3.4.2, §10.3.5).
    pub(crate) fn verdict(&self) -> Result<Vec<IeDiagnostics>, (ErrorKind, Vec<IeDiagnostics>)> {
        let reported = self.faults.iter().filter(|fault| fault.criticality != Criticality::Ignore);
        let reported = reported.take(MAX_REPORTED).map(|fault| IeDiagnostics {
            ie_id: fault.id,
            criticality: fault.criticality,
            error: fault.error,
        });
        let reported: Vec<_> = reported.collect();
        if let Some(reason) = &self.falsely_constructed {
            return Err((ErrorKind::FalselyConstructed(reason.clone()), reported));
        }
        let fatal = |fault: &&IeFault| fault.criticality == Criticality::Reject || self.stuck;
        match self.faults.iter().find(fatal) {
            None => Ok(reported),
            Some(fault) if fault.undecodable => {
                Err((ErrorKind::TransferSyntax(fault.reason.clone()), reported))
            }
            Some(fault) => Err((ErrorKind::AbstractSyntaxReject(fault.reason.clone()), reported)),
        }
    }
}

/// A decoded message and what has to be reported about it all the same.
pub(crate) type Read<M> = (M, Option<CriticalityDiagnostics>);

/// Decodes the message `M` of a PDU whose procedure and direction are already known to be `M`'s.
pub(crate) fn decode<M: Message>(pdu: &asn::NGAPPDU<'_>) -> Result<Read<M>, DecodeError> {
    let procedure = (M::PROCEDURE_CODE, direction(pdu));
    let criticality = Criticality::from(pdu.criticality());
    let error = |kind| DecodeError {
        kind,
        message: M::NAME,
        procedure: Some(procedure),
        criticality: Some(criticality),
        amf_ue_ngap_id: None,
        ran_ue_ngap_id: None,
        diagnostics: None,
    };
    let syntax = |why: oxirush_ngap::Error| error(ErrorKind::TransferSyntax(why.to_string()));
    let ies = pdu.protocol_ies().map_err(syntax)?.0;
    let deviations = pdu.check_structure().map_err(syntax)?;
    let mut reader = IeReader::new(ies, &deviations);
    let message = M::read(&mut reader);
    let diagnostics = |ies| CriticalityDiagnostics {
        procedure_code: Some(procedure.0),
        triggering_message: Some(procedure.1),
        procedure_criticality: Some(criticality),
        ies,
    };
    match (reader.verdict(), message) {
        (Ok(notified), Some(message)) => Ok((message, (!notified.is_empty()).then(|| diagnostics(notified)))),
        (Err((kind, ies)), _) => Err(DecodeError {
            amf_ue_ngap_id: reader.peek::<oxirush_ngap::ie::AMF_UE_NGAP_ID, _>(),
            ran_ue_ngap_id: reader.peek::<oxirush_ngap::ie::RAN_UE_NGAP_ID, _>(),
            diagnostics: Some(diagnostics(ies)),
            ..error(kind)
        }),
        // A reader that gives no message is stuck on a fault, so its verdict is an error.
        (Ok(_), None) => Err(error(ErrorKind::AbstractSyntaxReject("unreadable".into()))),
    }
}

/// The direction of a PDU.
pub(crate) fn direction(pdu: &asn::NGAPPDU<'_>) -> TriggeringMessage {
    match pdu {
        asn::NGAPPDU::initiatingMessage(_) => TriggeringMessage::InitiatingMessage,
        asn::NGAPPDU::successfulOutcome(_) => TriggeringMessage::SuccessfulOutcome,
        _ => TriggeringMessage::UnsuccessfulOutcome,
    }
}
