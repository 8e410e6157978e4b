//! Actions (§7.2.5) and instructions (§7.2.4).

use std::sync::Arc;

use crate::codec::{Reader, Wire, align, numbers, pad, put_typed, set_length};
use crate::oxm::Oxm;
use crate::{Code, GroupId, PortNo, TableId};

/// What is done with a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// OFPAT_OUTPUT: send it.
    Output {
        /// Where.
        port: PortNo,
        /// How much of it the controller gets, if that is the port.
        max_len: MaxLen,
    },
    /// OFPAT_SET_QUEUE: the queue of the port that it is sent to afterwards.
    SetQueue(u32),
    /// OFPAT_GROUP: what the group says.
    Group(GroupId),
    /// OFPAT_SET_FIELD.
    SetField(SetField),
    /// OFPAT_DEC_NW_TTL: decrement TTL or hop limit; packets without any left go to the controller.
    DecNwTtl,
    /// OFPAT_PUSH_VLAN, with the EtherType of the tag.
    PushVlan(u16),
    /// OFPAT_POP_VLAN.
    PopVlan,
    /// What another switch does, and we do not know.
    Unknown(Unknown),
}

/// An action or instruction that is not known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    kind: u16,
    body: Vec<u8>,
}

impl Unknown {
    /// Its type.
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// Its octets behind type and length.
    pub fn body(&self) -> &[u8] {
        &self.body
    }
}

/// A field that can be set, with the whole of its new value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetField(Oxm);

impl SetField {
    /// The field and its new value.
    pub fn oxm(&self) -> Oxm {
        self.0
    }
}

impl TryFrom<Oxm> for SetField {
    type Error = Code;

    fn try_from(oxm: Oxm) -> Result<Self, Code> {
        let possible = oxm.field().is_settable() && oxm.is_exact();
        if possible { Ok(Self(oxm)) } else { Err(Code::OFPBAC_BAD_SET_ARGUMENT) }
    }
}

numbers! {
    /// How many octets of a packet a controller gets (§7.2.5, OFPCML_*).
    MaxLen(u16) {
        /// All of them.
        NO_BUFFER = 0xffff;
    }
}

/// Types of actions: OFPAT_*.
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod kind {
    pub const OUTPUT: u16 = 0;
    pub const PUSH_VLAN: u16 = 17;
    pub const POP_VLAN: u16 = 18;
    pub const SET_QUEUE: u16 = 21;
    pub const GROUP: u16 = 22;
    pub const DEC_NW_TTL: u16 = 24;
    pub const SET_FIELD: u16 = 25;
    pub const EXPERIMENTER: u16 = 0xffff;
}

impl Action {
    /// Sends the packet to a port; a controller gets all of it.
    pub fn output(port: PortNo) -> Action {
        Action::Output { port, max_len: MaxLen::NO_BUFFER }
    }

    /// Gives a field a value.
    pub fn set(oxm: Oxm) -> Result<Action, Code> {
        SetField::try_from(oxm).map(Action::SetField)
    }

    fn read_set_field(body: &mut Reader<'_>) -> Result<Action, Code> {
        let whole = body.clone();
        let before = body.len();
        let oxm = Oxm::read(body).map_err(|code| match code {
            Code::OFPBMC_BAD_LEN => Code::OFPBAC_BAD_SET_LEN,
            Code::OFPBAC_BAD_LEN => code,
            _ => Code::OFPBAC_BAD_SET_ARGUMENT,
        })?;
        let action = match oxm {
            Ok(oxm) => Action::set(oxm)?,
            Err(_) if body.lenient => return Action::read_unknown(kind::SET_FIELD, &mut { whole }, body),
            Err(_) => return Err(Code::OFPBAC_BAD_SET_TYPE),
        };
        let octets = before - body.len();
        body.skip((octets + 4).next_multiple_of(8) - (octets + 4))?;
        Ok(action)
    }

    fn read_unknown(kind: u16, whole: &mut Reader<'_>, body: &mut Reader<'_>) -> Result<Action, Code> {
        body.rest();
        Ok(Action::Unknown(Unknown { kind, body: whole.rest().to_vec() }))
    }
}

/// Whether an action may have this port (§7.2.1).
fn is_output(port: PortNo) -> bool {
    matches!(port.0, 1..=PortNo::MAX_NUMBER | 0xffff_fff8..=0xffff_fffe)
}

impl Wire for Action {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        let before = r.len();
        let (kind, mut body) = r.typed(Code::OFPBAC_BAD_LEN)?;
        if !(before - r.len()).is_multiple_of(8) {
            return Err(Code::OFPBAC_BAD_LEN);
        }
        let action = match kind {
            kind::OUTPUT => {
                let (port, max_len) = (PortNo::read(&mut body)?, MaxLen::read(&mut body)?);
                if !body.lenient && !is_output(port) {
                    return Err(Code::OFPBAC_BAD_OUT_PORT);
                }
                body.skip(6)?;
                Action::Output { port, max_len }
            }
            kind::SET_QUEUE => Action::SetQueue(u32::read(&mut body)?),
            kind::GROUP => Action::Group(GroupId::read(&mut body)?),
            kind::PUSH_VLAN => {
                let ethertype = u16::read(&mut body)?;
                if ![0x8100, 0x88a8].contains(&ethertype) {
                    return Err(Code::OFPBAC_BAD_ARGUMENT);
                }
                body.skip(2)?;
                Action::PushVlan(ethertype)
            }
            kind::POP_VLAN => body.skip(4).map(|()| Action::PopVlan)?,
            kind::DEC_NW_TTL => body.skip(4).map(|()| Action::DecNwTtl)?,
            kind::SET_FIELD => Action::read_set_field(&mut body)?,
            _ if body.lenient => Action::read_unknown(kind, &mut body.clone(), &mut body)?,
            kind::EXPERIMENTER => return Err(Code::OFPBAC_BAD_EXPERIMENTER),
            _ => return Err(Code::OFPBAC_BAD_TYPE),
        };
        body.end()?;
        Ok(action)
    }

    fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let (kind, padding) = match self {
            Action::Output { .. } => (kind::OUTPUT, 6),
            Action::SetQueue(_) => (kind::SET_QUEUE, 0),
            Action::Group(_) => (kind::GROUP, 0),
            Action::SetField(_) => (kind::SET_FIELD, 0),
            Action::DecNwTtl => (kind::DEC_NW_TTL, 4),
            Action::PushVlan(_) => (kind::PUSH_VLAN, 2),
            Action::PopVlan => (kind::POP_VLAN, 4),
            Action::Unknown(unknown) => (unknown.kind, 0),
        };
        kind.write(out);
        pad(out, 2);
        match self {
            Action::Output { port, max_len } => {
                port.write(out);
                max_len.write(out);
            }
            Action::SetQueue(queue) => queue.write(out),
            Action::Group(group) => group.write(out),
            Action::SetField(SetField(oxm)) => oxm.write(out),
            Action::PushVlan(ethertype) => ethertype.write(out),
            Action::DecNwTtl | Action::PopVlan => {}
            Action::Unknown(unknown) => out.extend_from_slice(&unknown.body),
        }
        pad(out, padding);
        align(out, start);
        set_length(out, start + 2, start);
    }
}

/// Actions of an instruction. Clones share them: those of a rule are in many places.
pub type Actions = Arc<[Action]>;

/// The instructions of a flow, each at most once, in the order in which a switch executes them (§5.9).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Instructions {
    /// OFPIT_APPLY_ACTIONS: done at once.
    pub apply_actions: Option<Actions>,
    /// OFPIT_CLEAR_ACTIONS: empty the action set.
    pub clear_actions: bool,
    /// OFPIT_WRITE_ACTIONS: put into the action set.
    pub write_actions: Option<Actions>,
    /// OFPIT_WRITE_METADATA.
    pub write_metadata: Option<Metadata>,
    /// OFPIT_GOTO_TABLE.
    pub goto_table: Option<TableId>,
    /// What another switch does, and we do not know.
    pub unknown: Vec<Unknown>,
}

/// What is written into the metadata register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// The new bits.
    pub value: u64,
    /// Which of them are written.
    pub mask: u64,
}

/// Types of instructions: OFPIT_*.
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod instruction {
    pub const GOTO_TABLE: u16 = 1;
    pub const WRITE_METADATA: u16 = 2;
    pub const WRITE_ACTIONS: u16 = 3;
    pub const APPLY_ACTIONS: u16 = 4;
    pub const CLEAR_ACTIONS: u16 = 5;
    pub const METER: u16 = 6;
    pub const EXPERIMENTER: u16 = 0xffff;
}

impl Instructions {
    /// These actions, at once.
    pub fn apply(actions: impl Into<Actions>) -> Self {
        Self { apply_actions: Some(actions.into()), ..Self::default() }
    }

    /// Another table.
    pub fn goto(table: TableId) -> Self {
        Self { goto_table: Some(table), ..Self::default() }
    }
}

/// Takes an instruction that must not have been there yet.
fn once<T>(place: &mut Option<T>, value: T) -> Result<(), Code> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Code::OFPBIC_DUP_INST),
    }
}

impl Wire for Instructions {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        let mut all = Self::default();
        while !r.is_empty() {
            let before = r.len();
            let (kind, mut body) = r.typed(Code::OFPBIC_BAD_LEN)?;
            if !(before - r.len()).is_multiple_of(8) {
                return Err(Code::OFPBIC_BAD_LEN);
            }
            let body = &mut body;
            match kind {
                instruction::GOTO_TABLE => {
                    once(&mut all.goto_table, TableId::read(body)?)?;
                    body.skip(3)?;
                }
                instruction::WRITE_METADATA => {
                    body.skip(4)?;
                    once(
                        &mut all.write_metadata,
                        Metadata { value: u64::read(body)?, mask: u64::read(body)? },
                    )?;
                }
                instruction::WRITE_ACTIONS => {
                    body.skip(4)?;
                    once(&mut all.write_actions, Vec::read(body)?.into())?;
                }
                instruction::APPLY_ACTIONS => {
                    body.skip(4)?;
                    once(&mut all.apply_actions, Vec::read(body)?.into())?;
                }
                instruction::CLEAR_ACTIONS => {
                    body.skip(4)?;
                    let mut place = all.clear_actions.then_some(());
                    once(&mut place, ())?;
                    all.clear_actions = true;
                }
                _ if body.lenient => all.unknown.push(Unknown { kind, body: body.rest().to_vec() }),
                instruction::METER => return Err(Code::OFPBIC_UNSUP_INST),
                instruction::EXPERIMENTER => return Err(Code::OFPBIC_BAD_EXPERIMENTER),
                _ => return Err(Code::OFPBIC_UNKNOWN_INST),
            }
            body.end()?;
        }
        Ok(all)
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut put_actions = |kind, actions: &[Action]| {
            put_typed(out, kind, |out| {
                pad(out, 4);
                Action::write_all(actions, out);
            });
        };
        if let Some(actions) = &self.apply_actions {
            put_actions(instruction::APPLY_ACTIONS, actions);
        }
        if self.clear_actions {
            put_actions(instruction::CLEAR_ACTIONS, &[]);
        }
        if let Some(actions) = &self.write_actions {
            put_actions(instruction::WRITE_ACTIONS, actions);
        }
        if let Some(Metadata { value, mask }) = self.write_metadata {
            put_typed(out, instruction::WRITE_METADATA, |out| {
                pad(out, 4);
                value.write(out);
                mask.write(out);
            });
        }
        if let Some(table) = self.goto_table {
            put_typed(out, instruction::GOTO_TABLE, |out| {
                table.write(out);
                pad(out, 3);
            });
        }
        for unknown in &self.unknown {
            put_typed(out, unknown.kind, |out| out.extend_from_slice(&unknown.body));
        }
    }
}
