//! OFPT_ERROR (§7.4.4), and the errors of this crate as its codes.
//!
//! A message that cannot be served has a [`Code`], so that a switch can tell its controller in the standard's words.

use crate::codec::{Reader, Wire};
use crate::{EXPERIMENTER_ONF, Message};

/// Octets of the offending message that an error carries; the standard wants 64 at least.
pub const ERROR_DATA: usize = 64;

/// Type and code of an error. Peers may send others than are named here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code {
    kind: u16,
    code: u16,
    /// Whose code it is, for [`KIND_EXPERIMENTER`].
    experimenter: u32,
}

/// OFPET_EXPERIMENTER.
const KIND_EXPERIMENTER: u16 = 0xffff;

macro_rules! codes {
    ($($kind:literal $who:literal { $($(#[$doc:meta])* $name:ident = $code:literal,)* })*) => {
        impl Code {
            $($($(#[$doc])*
            #[doc = concat!(stringify!($name), " of the standard.")]
            pub const $name: Code = Code { kind: $kind, code: $code, experimenter: $who };)*)*

            /// The name in the standard; `None` for codes that are not listed here.
            pub fn name(self) -> Option<&'static str> {
                match (self.kind, self.code, self.experimenter) {
                    $($(($kind, $code, $who) => Some(stringify!($name)),)*)*
                    _ => None,
                }
            }

            /// Every code with a name.
            pub const ALL: &'static [Code] = &[$($(Code::$name,)*)*];
        }
    };
}

// Type, experimenter, then the codes.
codes! {
    0 0 { OFPHFC_INCOMPATIBLE = 0, OFPHFC_EPERM = 1, }
    1 0 {
        OFPBRC_BAD_VERSION = 0, OFPBRC_BAD_TYPE = 1, OFPBRC_BAD_MULTIPART = 2, OFPBRC_BAD_EXPERIMENTER = 3,
        OFPBRC_BAD_EXP_TYPE = 4, OFPBRC_EPERM = 5, OFPBRC_BAD_LEN = 6, OFPBRC_BUFFER_EMPTY = 7,
        OFPBRC_BUFFER_UNKNOWN = 8, OFPBRC_BAD_TABLE_ID = 9, OFPBRC_IS_SLAVE = 10, OFPBRC_BAD_PORT = 11,
        OFPBRC_BAD_PACKET = 12, OFPBRC_MULTIPART_BUFFER_OVERFLOW = 13,
    }
    2 0 {
        OFPBAC_BAD_TYPE = 0, OFPBAC_BAD_LEN = 1, OFPBAC_BAD_EXPERIMENTER = 2, OFPBAC_BAD_EXP_TYPE = 3,
        OFPBAC_BAD_OUT_PORT = 4, OFPBAC_BAD_ARGUMENT = 5, OFPBAC_EPERM = 6, OFPBAC_TOO_MANY = 7, OFPBAC_BAD_QUEUE = 8,
        OFPBAC_BAD_OUT_GROUP = 9, OFPBAC_MATCH_INCONSISTENT = 10, OFPBAC_UNSUPPORTED_ORDER = 11, OFPBAC_BAD_TAG = 12,
        OFPBAC_BAD_SET_TYPE = 13, OFPBAC_BAD_SET_LEN = 14, OFPBAC_BAD_SET_ARGUMENT = 15,
    }
    3 0 {
        OFPBIC_UNKNOWN_INST = 0, OFPBIC_UNSUP_INST = 1, OFPBIC_BAD_TABLE_ID = 2, OFPBIC_UNSUP_METADATA = 3,
        OFPBIC_UNSUP_METADATA_MASK = 4, OFPBIC_BAD_EXPERIMENTER = 5, OFPBIC_BAD_EXP_TYPE = 6, OFPBIC_BAD_LEN = 7,
        OFPBIC_EPERM = 8,
    }
    4 0 {
        OFPBMC_BAD_TYPE = 0, OFPBMC_BAD_LEN = 1, OFPBMC_BAD_TAG = 2, OFPBMC_BAD_DL_ADDR_MASK = 3,
        OFPBMC_BAD_NW_ADDR_MASK = 4, OFPBMC_BAD_WILDCARDS = 5, OFPBMC_BAD_FIELD = 6, OFPBMC_BAD_VALUE = 7,
        OFPBMC_BAD_MASK = 8, OFPBMC_BAD_PREREQ = 9, OFPBMC_DUP_FIELD = 10, OFPBMC_EPERM = 11,
    }
    5 0 {
        OFPFMFC_UNKNOWN = 0, OFPFMFC_TABLE_FULL = 1, OFPFMFC_BAD_TABLE_ID = 2, OFPFMFC_OVERLAP = 3, OFPFMFC_EPERM = 4,
        OFPFMFC_BAD_TIMEOUT = 5, OFPFMFC_BAD_COMMAND = 6, OFPFMFC_BAD_FLAGS = 7,
    }
    6 0 {
        OFPGMFC_GROUP_EXISTS = 0, OFPGMFC_INVALID_GROUP = 1, OFPGMFC_WEIGHT_UNSUPPORTED = 2, OFPGMFC_OUT_OF_GROUPS = 3,
        OFPGMFC_OUT_OF_BUCKETS = 4, OFPGMFC_CHAINING_UNSUPPORTED = 5, OFPGMFC_WATCH_UNSUPPORTED = 6, OFPGMFC_LOOP = 7,
        OFPGMFC_UNKNOWN_GROUP = 8, OFPGMFC_CHAINED_GROUP = 9, OFPGMFC_BAD_TYPE = 10, OFPGMFC_BAD_COMMAND = 11,
        OFPGMFC_BAD_BUCKET = 12, OFPGMFC_BAD_WATCH = 13, OFPGMFC_EPERM = 14,
    }
    10 0 { OFPSCFC_BAD_FLAGS = 0, OFPSCFC_BAD_LEN = 1, OFPSCFC_EPERM = 2, }
    11 0 { OFPRRFC_STALE = 0, OFPRRFC_UNSUP = 1, OFPRRFC_BAD_ROLE = 2, }
    13 0 { OFPTFFC_BAD_TABLE = 0, OFPTFFC_BAD_METADATA = 1, OFPTFFC_BAD_TYPE = 2, OFPTFFC_BAD_LEN = 3, OFPTFFC_BAD_ARGUMENT = 4, OFPTFFC_EPERM = 5, }
    // OFPET_EXPERIMENTER of the ONF: bundles (extension 230), and an instruction that comes twice (extension 260).
    0xffff 0x4f4e_4600 {
        OFPBFC_UNKNOWN = 2300, OFPBFC_EPERM = 2301, OFPBFC_BAD_ID = 2302, OFPBFC_BUNDLE_EXIST = 2303,
        OFPBFC_BUNDLE_CLOSED = 2304, OFPBFC_OUT_OF_BUNDLES = 2305, OFPBFC_BAD_TYPE = 2306, OFPBFC_BAD_FLAGS = 2307,
        OFPBFC_MSG_BAD_LEN = 2308, OFPBFC_MSG_BAD_XID = 2309, OFPBFC_MSG_UNSUP = 2310, OFPBFC_MSG_CONFLICT = 2311,
        OFPBFC_MSG_TOO_MANY = 2312, OFPBFC_MSG_FAILED = 2313, OFPBFC_TIMEOUT = 2314, OFPBFC_BUNDLE_IN_PROGRESS = 2315,
        OFPBIC_DUP_INST = 2600,
    }
}

impl Code {
    /// Type and code on the wire.
    pub fn numbers(self) -> (u16, u16) {
        (self.kind, self.code)
    }

    /// The error message for the request of these octets, which carries their beginning.
    pub fn about(self, request: &[u8]) -> ErrorMessage {
        ErrorMessage { code: self, data: request[..request.len().min(ERROR_DATA)].to_vec() }
    }
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.name(), self.experimenter) {
            (Some(name), _) => f.write_str(name),
            (None, 0) => write!(f, "error type {} code {}", self.kind, self.code),
            (None, who) => write!(f, "error {} of experimenter {who:#010x}", self.code),
        }
    }
}

impl std::error::Error for Code {}

impl Wire for Code {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        let (kind, code) = (u16::read(r)?, u16::read(r)?);
        let experimenter = if kind == KIND_EXPERIMENTER { u32::read(r)? } else { 0 };
        Ok(Self { kind, code, experimenter })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.kind.write(out);
        self.code.write(out);
        if self.kind == KIND_EXPERIMENTER {
            self.experimenter.write(out);
        }
    }
}

const _: () = assert!(EXPERIMENTER_ONF == 0x4f4e_4600, "the table of codes has the number as a literal");

crate::codec::layout! {
    /// OFPT_ERROR (§7.4.4).
    ErrorMessage {
        /// What is wrong.
        code: Code;
        /// The beginning of the offending message; for a failed hello a text.
        data: Vec<u8>;
    }
}

/// Why octets are not a message that can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{code}")]
pub struct DecodeError {
    /// What is wrong.
    pub code: Code,
    /// Transaction of the message, for the answer.
    pub xid: u32,
    /// Whether the message was itself an error, which is never answered.
    pub(crate) was_error: bool,
}

impl DecodeError {
    /// The answer to the message of these octets. `None`: errors are not answered with errors.
    pub fn reply(&self, octets: &[u8]) -> Option<Message> {
        (!self.was_error).then(|| self.code.about(octets).into())
    }
}

/// Why a message has no octets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The length field has 16 bits.
    #[error("message of {0} octets; 65535 is the most")]
    TooLong(usize),
}
