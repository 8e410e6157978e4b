//! OpenFlow 1.3 (ONF TS-006), the protocol between a switch and its controllers, as an edge that steers users in their tunnels
//! needs it: both sides, and the fields that Open vSwitch adds.
//!
//! [`Message::decode`] and [`Message::encode`] are all that an endpoint needs, with a [`Framer`] before them, and a [`Joiner`]
//! behind them for multiparts that come in several messages. A message that cannot be served is a [`DecodeError`] with the
//! standard's error, whose [`reply`](DecodeError::reply) is the answer.
//!
//! Controllers' messages are read strictly, as a switch must refuse what it does not know. Switches' messages are read leniently:
//! a switch may do more than we know, so unknown fields, actions and instructions are kept.
//!
//! Invariants: no octets make a decoder panic; memory is bounded by the size of the input; what was decoded can be encoded.
//!
//! Read first: [`Message`], then [`oxm`] (the table of fields), [`flow`], and `codec.rs` for how messages are declared. What of the
//! standard is here stands in `docs/spec/openflow.md`.
//!
//! ```
//! use openflow::{Action, FlowMod, Instructions, Match, Message, Oxm, PortNo, TableId};
//!
//! let user = Match::new([Oxm::tunnel_id(0x1234), Oxm::tun_ipv4_dst([10, 0, 0, 1].into())])?;
//! let steer = [Action::set(Oxm::tun_ipv4_dst([10, 0, 0, 2].into()))?, Action::output(PortNo::IN_PORT)];
//! let message = Message::from(FlowMod::add(TableId(1), 100, user, Instructions::apply(steer)));
//! let octets = message.encode(7)?;
//! assert_eq!(Message::decode(&octets)?, (7, message));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod action;
mod bundle;
mod codec;
mod error;
pub mod flow;
mod join;
pub mod multipart;
pub mod oxm;
mod stream;
mod switch;
mod table;

pub use action::{Action, Actions, Instructions, MaxLen, Metadata, SetField, Unknown};
pub use bundle::{BundleAdd, BundleControl, BundleControlType, BundleFlags, Change};
pub use codec::Text;
pub use error::{Code, DecodeError, ERROR_DATA, EncodeError, ErrorMessage};
pub use flow::*;
pub use join::{JoinError, Joiner, Limits};
pub use multipart::{Multipart, Reply, Request};
pub use oxm::{Bits, Field, MacAddr, Match, Oxm, PacketType};
pub use stream::{FrameError, Framer};
pub use switch::*;
pub use table::{FeatureList, TableFeatures, TableProperty, TypeId};

use codec::{Reader, Wire, numbers, pad, set_length};

/// The version in the header.
pub const VERSION: u8 = 4;

/// TCP port of controllers (§6.3.1).
pub const PORT: u16 = 6653;

/// Octets of a message's header.
pub const HEADER_LEN: usize = 8;

/// The length field has 16 bits.
pub const MAX_MESSAGE: usize = 65_535;

/// Experimenter of the ONF's own extensions.
pub const EXPERIMENTER_ONF: u32 = 0x4f4e_4600;

/// Experimenter of Open vSwitch.
pub const EXPERIMENTER_NICIRA: u32 = 0x0000_2320;

numbers! {
    /// A port (§7.2.1).
    PortNo(u32) {
        /// The last number that a port can have.
        MAX = 0xffff_ff00;
        /// Where the packet came from.
        IN_PORT = 0xffff_fff8;
        /// The first table, for packets of a controller.
        TABLE = 0xffff_fff9;
        /// As an ordinary switch does.
        NORMAL = 0xffff_fffa;
        /// All ports that an ordinary switch floods to.
        FLOOD = 0xffff_fffb;
        /// All ports but the one that the packet came from.
        ALL = 0xffff_fffc;
        /// The controllers.
        CONTROLLER = 0xffff_fffd;
        /// The switch's own host.
        LOCAL = 0xffff_fffe;
        /// No port, or any.
        ANY = 0xffff_ffff;
    }
    /// A table.
    TableId(u8) {
        /// The last number that a table can have.
        MAX = 0xfe;
        /// All tables.
        ALL = 0xff;
    }
    /// A group.
    GroupId(u32) {
        /// The last number that a group can have.
        MAX = 0xffff_ff00;
        /// All groups.
        ALL = 0xffff_fffc;
        /// No group, or any.
        ANY = 0xffff_ffff;
    }
    /// A packet that the switch keeps.
    BufferId(u32) {
        /// None.
        NO_BUFFER = 0xffff_ffff;
    }
}

impl PortNo {
    /// [`PortNo::MAX`], for patterns.
    const MAX_NUMBER: u32 = Self::MAX.0;
}

/// A length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Duration {
    /// Whole seconds.
    pub seconds: u32,
    /// And nanoseconds.
    pub nanoseconds: u32,
}

/// What every message begins with (§7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    version: u8,
    kind: u8,
    pub(crate) length: u16,
    xid: u32,
}

/// Reads the header; `length` is as it stands there.
pub(crate) fn header(octets: &[u8]) -> Result<Header, Code> {
    let r = &mut Reader::new(octets, false);
    Ok(Header { version: u8::read(r)?, kind: u8::read(r)?, length: u16::read(r)?, xid: u32::read(r)? })
}

/// Writes a message of our version.
pub(crate) fn put(out: &mut Vec<u8>, kind: u8, xid: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[VERSION, kind]);
    pad(out, 2);
    xid.write(out);
    body(out);
    set_length(out, start + 2, start);
}

/// Message types (§7.1) that are not in the table of [`Message`], or needed elsewhere.
pub(crate) mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const EXPERIMENTER: u8 = 4;
    pub const PACKET_OUT: u8 = 13;
    pub const FLOW_MOD: u8 = 14;
    pub const GROUP_MOD: u8 = 15;
}

/// Experimenter types of bundles.
mod onf {
    pub const BUNDLE_CONTROL: u32 = 2300;
    pub const BUNDLE_ADD: u32 = 2301;
}

macro_rules! messages {
    ($($number:literal $who:ident $name:ident($body:ty) = $standard:literal,)*) => {
        /// Every message this crate knows.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "boxes would cost every reader a dereference")]
        pub enum Message {
            /// OFPT_HELLO.
            Hello(Hello),
            /// A message of a controller about a bundle, or a switch's answer (OFPT_EXPERIMENTER).
            BundleControl(BundleControl),
            /// A message for a bundle (OFPT_EXPERIMENTER).
            BundleAdd(BundleAdd),
            $(#[doc = concat!($standard, ".")] $name($body),)*
        }

        impl Message {
            /// The name in the standard.
            pub fn name(&self) -> &'static str {
                match self {
                    Self::Hello(_) => "OFPT_HELLO",
                    Self::BundleControl(_) | Self::BundleAdd(_) => "OFPT_EXPERIMENTER",
                    $(Self::$name(_) => $standard,)*
                }
            }

            /// Reads the body of a message that is neither hello nor an experimenter's.
            fn read(kind: u8, r: &mut Reader<'_>) -> Result<Self, Code> {
                match kind {
                    $($number => {
                        r.lenient = messages!(@lenient $who);
                        Ok(Self::$name(<$body as Wire>::read(r)?))
                    })*
                    _ => Err(Code::OFPBRC_BAD_TYPE),
                }
            }

            fn write(&self, out: &mut Vec<u8>, xid: u32) {
                match self {
                    Self::Hello(hello) => put(out, kind::HELLO, xid, |out| hello.write(out)),
                    Self::BundleControl(control) => put(out, kind::EXPERIMENTER, xid, |out| {
                        [EXPERIMENTER_ONF, onf::BUNDLE_CONTROL].write(out);
                        control.write(out);
                    }),
                    Self::BundleAdd(add) => put(out, kind::EXPERIMENTER, xid, |out| {
                        [EXPERIMENTER_ONF, onf::BUNDLE_ADD].write(out);
                        add.write(out, xid);
                    }),
                    $(Self::$name(body) => put(out, $number, xid, |out| body.write(out)),)*
                }
            }
        }
    };
    (@lenient controller) => { false };
    (@lenient both) => { false };
    (@lenient switch) => { true };
}

// Number, who sends it, content, name. Bodies without content are `()`.
messages! {
    1 both Error(ErrorMessage) = "OFPT_ERROR",
    2 both EchoRequest(Vec<u8>) = "OFPT_ECHO_REQUEST",
    3 both EchoReply(Vec<u8>) = "OFPT_ECHO_REPLY",
    5 controller FeaturesRequest(()) = "OFPT_FEATURES_REQUEST",
    6 switch FeaturesReply(Features) = "OFPT_FEATURES_REPLY",
    7 controller GetConfigRequest(()) = "OFPT_GET_CONFIG_REQUEST",
    8 switch GetConfigReply(Config) = "OFPT_GET_CONFIG_REPLY",
    9 controller SetConfig(Config) = "OFPT_SET_CONFIG",
    10 switch PacketIn(PacketIn) = "OFPT_PACKET_IN",
    11 switch FlowRemoved(FlowRemoved) = "OFPT_FLOW_REMOVED",
    12 switch PortStatus(PortStatus) = "OFPT_PORT_STATUS",
    13 controller PacketOut(PacketOut) = "OFPT_PACKET_OUT",
    14 controller FlowMod(FlowMod) = "OFPT_FLOW_MOD",
    15 controller GroupMod(GroupMod) = "OFPT_GROUP_MOD",
    18 controller MultipartRequest(Multipart<Request>) = "OFPT_MULTIPART_REQUEST",
    19 switch MultipartReply(Multipart<Reply>) = "OFPT_MULTIPART_REPLY",
    20 controller BarrierRequest(()) = "OFPT_BARRIER_REQUEST",
    21 switch BarrierReply(()) = "OFPT_BARRIER_REPLY",
    24 controller RoleRequest(RoleRequest) = "OFPT_ROLE_REQUEST",
    25 switch RoleReply(RoleRequest) = "OFPT_ROLE_REPLY",
    26 controller GetAsyncRequest(()) = "OFPT_GET_ASYNC_REQUEST",
    27 switch GetAsyncReply(AsyncConfig) = "OFPT_GET_ASYNC_REPLY",
    28 controller SetAsync(AsyncConfig) = "OFPT_SET_ASYNC",
}

macro_rules! from {
    ($($name:ident($body:ty))*) => {$(
        impl From<$body> for Message {
            fn from(body: $body) -> Self {
                Self::$name(body)
            }
        }
    )*};
}

from! {
    Hello(Hello) Error(ErrorMessage) PacketIn(PacketIn) PacketOut(PacketOut) FlowMod(FlowMod) FlowRemoved(FlowRemoved)
    GroupMod(GroupMod) PortStatus(PortStatus) BundleControl(BundleControl) BundleAdd(BundleAdd)
    MultipartRequest(Multipart<Request>) MultipartReply(Multipart<Reply>)
}

impl From<Request> for Message {
    fn from(request: Request) -> Self {
        Multipart::from(request).into()
    }
}

impl Message {
    /// Decodes one message: its transaction and what it says.
    pub fn decode(octets: &[u8]) -> Result<(u32, Message), DecodeError> {
        let error = |xid, kind| move |code| DecodeError { code, xid, was_error: kind == kind::ERROR };
        let header = header(octets).map_err(error(0, 0))?;
        let error = error(header.xid, header.kind);
        let r = &mut Reader::new(&octets[HEADER_LEN..], false);
        let message = match header.kind {
            _ if usize::from(header.length) != octets.len() => Err(Code::OFPBRC_BAD_LEN),
            kind::HELLO => Hello::read(r, header.version).map(Message::Hello),
            _ if header.version != VERSION => Err(Code::OFPBRC_BAD_VERSION),
            kind::EXPERIMENTER => Message::read_experimenter(r, header.xid),
            kind => Message::read(kind, r),
        };
        let message = message.and_then(|message| r.end().map(|()| message)).map_err(error)?;
        Ok((header.xid, message))
    }

    fn read_experimenter(r: &mut Reader<'_>, xid: u32) -> Result<Message, Code> {
        let (experimenter, kind) = (u32::read(r)?, u32::read(r)?);
        match (experimenter, kind) {
            (EXPERIMENTER_ONF, onf::BUNDLE_CONTROL) => {
                let control = BundleControl::read(r)?;
                r.rest();
                Ok(control.into())
            }
            (EXPERIMENTER_ONF, onf::BUNDLE_ADD) => BundleAdd::read(r, xid).map(Message::BundleAdd),
            (EXPERIMENTER_ONF, _) => Err(Code::OFPBRC_BAD_EXP_TYPE),
            _ => Err(Code::OFPBRC_BAD_EXPERIMENTER),
        }
    }

    /// The octets of the message.
    pub fn encode(&self, xid: u32) -> Result<Vec<u8>, EncodeError> {
        let mut out = Vec::new();
        self.encode_into(xid, &mut out)?;
        Ok(out)
    }

    /// Appends the octets of the message, so that many can be sent at once. After an error nothing is appended.
    pub fn encode_into(&self, xid: u32, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        self.write(out, xid);
        let length = out.len() - start;
        if length > MAX_MESSAGE {
            out.truncate(start);
            return Err(EncodeError::TooLong(length));
        }
        // A hello has the sender's highest version.
        if let Message::Hello(hello) = self {
            out[start] = hello.version;
        }
        Ok(())
    }
}
