//! Bundles: changes that take effect together, or not at all. In 1.3 an extension of the ONF (230), as experimenter messages.

use crate::codec::{Reader, Wire, enumerated, flags, pad};
use crate::flow::{FlowMod, GroupMod};
use crate::switch::PacketOut;
use crate::{Code, EXPERIMENTER_ONF, HEADER_LEN, VERSION, header, kind, onf, put};

enumerated! {
    /// What a message about a bundle is. A reply's number is its request's plus one.
    BundleControlType(u16) else OFPBFC_BAD_TYPE {
        /// Begin a bundle.
        OpenRequest = 0,
        /// It has begun.
        OpenReply = 1,
        /// No further messages.
        CloseRequest = 2,
        /// It is closed.
        CloseReply = 3,
        /// Do it all.
        CommitRequest = 4,
        /// All is done.
        CommitReply = 5,
        /// Forget it.
        DiscardRequest = 6,
        /// It is forgotten.
        DiscardReply = 7,
    }
}

flags! {
    /// OFPBF_*.
    BundleFlags(u16) else OFPBFC_BAD_FLAGS {
        /// A packet sees all changes or none.
        ATOMIC = 1;
        /// Changes take effect in their order.
        ORDERED = 2;
    }
}

crate::codec::layout! {
    /// OFPBCT_*: opens, closes, commits or discards a bundle, or says that it is done. Properties are not in use.
    BundleControl {
        /// The bundle.
        bundle_id: u32;
        /// What to do, or what is done.
        kind: BundleControlType;
        /// How it is done; the same in all messages of a bundle.
        flags: BundleFlags;
    }
}

/// Adds a message to a bundle. Both have one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleAdd {
    /// The bundle.
    pub bundle_id: u32,
    /// As when it was opened.
    pub flags: BundleFlags,
    /// The message.
    pub change: Change,
}

/// Messages that can be in a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// OFPT_FLOW_MOD.
    FlowMod(FlowMod),
    /// OFPT_GROUP_MOD.
    GroupMod(GroupMod),
    /// OFPT_PACKET_OUT: a packet that is sent behind those that were treated before the bundle took effect.
    PacketOut(PacketOut),
}

impl BundleAdd {
    pub(crate) fn read(r: &mut Reader<'_>, xid: u32) -> Result<Self, Code> {
        let bundle_id = u32::read(r)?;
        r.skip(2)?;
        let flags = BundleFlags::read(r)?;
        let octets = r.rest();
        let header = header(octets).map_err(|_| Code::OFPBFC_MSG_BAD_LEN)?;
        // Properties may follow. None is known.
        let body = octets.get(HEADER_LEN..usize::from(header.length)).ok_or(Code::OFPBFC_MSG_BAD_LEN)?;
        if header.version != VERSION {
            return Err(Code::OFPBRC_BAD_VERSION);
        }
        let r = &mut Reader::new(body, false);
        let change = match header.kind {
            kind::FLOW_MOD => Change::FlowMod(Wire::read(r)?),
            kind::GROUP_MOD => Change::GroupMod(Wire::read(r)?),
            kind::PACKET_OUT => Change::PacketOut(Wire::read(r)?),
            _ => return Err(Code::OFPBFC_MSG_UNSUP),
        };
        r.end()?;
        if header.xid != xid {
            return Err(Code::OFPBFC_MSG_BAD_XID);
        }
        Ok(Self { bundle_id, flags, change })
    }

    /// The bundle that a message is for and its flags, as far as they can be read of one that cannot be decoded. `None`: it is
    /// no message for a bundle.
    pub fn bundle_of(message: &[u8]) -> Option<(u32, BundleFlags)> {
        // Flags of a switch's message are not judged.
        let r = &mut Reader::new(message, true);
        let header = header(r.take(HEADER_LEN).ok()?).ok()?;
        let of = <[u32; 3]>::read(r).ok()?;
        r.skip(2).ok()?;
        let flags = BundleFlags::read(r).ok()?;
        let is_add = header.kind == kind::EXPERIMENTER && of[..2] == [EXPERIMENTER_ONF, onf::BUNDLE_ADD];
        is_add.then_some((of[2], flags))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>, xid: u32) {
        self.bundle_id.write(out);
        pad(out, 2);
        self.flags.write(out);
        match &self.change {
            Change::FlowMod(flow_mod) => put(out, kind::FLOW_MOD, xid, |out| flow_mod.write(out)),
            Change::GroupMod(group_mod) => put(out, kind::GROUP_MOD, xid, |out| group_mod.write(out)),
            Change::PacketOut(packet_out) => put(out, kind::PACKET_OUT, xid, |out| packet_out.write(out)),
        }
    }
}
