//! What tables can do: OFPMP_TABLE_FEATURES (§7.3.5.5).

use crate::codec::{Reader, Text, Wire, align, layout, put_typed};
use crate::oxm::OxmId;
use crate::{Code, TableConfig, TableId};

layout! {
    /// A table, and what its flows can have.
    TableFeatures [sized] {
        /// The table.
        table_id: TableId, pad 5;
        /// Its name.
        name: Text<32>;
        /// Bits of the metadata that it can match.
        metadata_match: u64;
        /// Bits of the metadata that it can write.
        metadata_write: u64;
        /// Its configuration.
        config: TableConfig;
        /// Most flows.
        max_entries: u32;
        /// What its flows can have.
        properties: Vec<TableProperty>;
    }
}

/// One list of what flows can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableProperty {
    /// Whether it is about the table-miss flow.
    pub is_miss: bool,
    /// The list.
    pub list: FeatureList,
}

/// Lists of what flows can have. In those of instructions and actions are types, and whose they are if they are an
/// experimenter's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeatureList {
    /// Instructions.
    Instructions(Vec<TypeId>),
    /// Tables to go to.
    NextTables(Vec<TableId>),
    /// Actions of write-actions.
    WriteActions(Vec<TypeId>),
    /// Actions of apply-actions.
    ApplyActions(Vec<TypeId>),
    /// Fields that can be matched; those with the bit for masks also in part.
    Match(Vec<OxmId>),
    /// Fields that need not be matched.
    Wildcards(Vec<OxmId>),
    /// Fields that write-actions can set.
    WriteSetField(Vec<OxmId>),
    /// Fields that apply-actions can set.
    ApplySetField(Vec<OxmId>),
}

/// Type of an instruction or action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeId {
    /// The type.
    pub kind: u16,
    /// Whose it is, if it is an experimenter's.
    pub experimenter: Option<u32>,
}

impl Wire for TypeId {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        let (kind, mut body) = r.typed(Code::OFPTFFC_BAD_LEN)?;
        let experimenter = if body.is_empty() { None } else { Some(u32::read(&mut body)?) };
        // Some pad their types to eight octets.
        body.rest();
        Ok(Self { kind, experimenter })
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_typed(out, self.kind, |out| {
            if let Some(experimenter) = self.experimenter {
                experimenter.write(out);
            }
        });
    }
}

macro_rules! properties {
    ($($number:literal $list:ident)*) => {
        impl Wire for TableProperty {
            fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
                let before = r.len();
                let (kind, mut body) = r.typed(Code::OFPTFFC_BAD_LEN)?;
                let length = before - r.len();
                r.skip(length.next_multiple_of(8) - length)?;
                // The types of the table-miss flow are those of other flows, plus one.
                let list = match kind & !1 {
                    $($number => FeatureList::$list(Vec::read(&mut body)?),)*
                    _ => return Err(Code::OFPTFFC_BAD_TYPE),
                };
                Ok(Self { is_miss: kind & 1 != 0, list })
            }

            fn write(&self, out: &mut Vec<u8>) {
                let start = out.len();
                match &self.list {
                    $(FeatureList::$list(list) => {
                        put_typed(out, $number + u16::from(self.is_miss), |out| list.write(out));
                    })*
                }
                align(out, start);
            }
        }
    };
}

properties! { 0 Instructions 2 NextTables 4 WriteActions 6 ApplyActions 8 Match 10 Wildcards 12 WriteSetField 14 ApplySetField }
