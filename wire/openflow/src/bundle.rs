//! Bundles: changes that take effect together, or not at all. In 1.3 an extension of the ONF (230), as experimenter messages.

use crate::codec::{Reader, Wire, enumerated, flags, pad};
use crate::flow::{FlowMod, GroupMod};
use crate::{Code, Message, header};

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
}

impl BundleAdd {
    pub(crate) fn read(r: &mut Reader<'_>, xid: u32) -> Result<Self, Code> {
        let bundle_id = u32::read(r)?;
        r.skip(2)?;
        let flags = BundleFlags::read(r)?;
        let octets = r.rest();
        let length = header(octets).map_err(|_| Code::OFPBFC_MSG_BAD_LEN)?.length;
        // Properties may follow. None is known.
        let message = octets.get(..usize::from(length)).ok_or(Code::OFPBFC_MSG_BAD_LEN)?;
        let (inner_xid, message) = Message::decode_plain(message)?;
        if inner_xid != xid {
            return Err(Code::OFPBFC_MSG_BAD_XID);
        }
        let change = match message {
            Message::FlowMod(flow_mod) => Change::FlowMod(flow_mod),
            Message::GroupMod(group_mod) => Change::GroupMod(group_mod),
            _ => return Err(Code::OFPBFC_MSG_UNSUP),
        };
        Ok(Self { bundle_id, flags, change })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>, xid: u32) {
        self.bundle_id.write(out);
        pad(out, 2);
        self.flags.write(out);
        match &self.change {
            Change::FlowMod(flow_mod) => {
                crate::put(out, crate::kind::FLOW_MOD, xid, |out| flow_mod.write(out))
            }
            Change::GroupMod(group_mod) => {
                crate::put(out, crate::kind::GROUP_MOD, xid, |out| group_mod.write(out))
            }
        }
    }
}
