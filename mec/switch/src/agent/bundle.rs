//! The bundles of one connection (ONF extension 230): changes that wait to be made together.

use std::collections::BTreeMap;

use openflow::{BundleAdd, BundleControl, BundleControlType, BundleFlags, Code};

use crate::core::Switch;
use crate::pipeline::Ready;

/// Bundles that a connection may have open.
const MAX_BUNDLES: usize = 16;
/// Messages of all of its bundles.
const MAX_MESSAGES: usize = 131_072;
/// Octets of these messages.
const MAX_OCTETS: usize = 64 << 20;

/// A bundle.
#[derive(Debug)]
struct Bundle {
    flags: BundleFlags,
    closed: bool,
    /// A message for it was refused, so it is never committed, and nothing is kept for it.
    broken: bool,
    changes: Vec<Ready>,
    /// For each change its transaction and the beginning of its message, for an error.
    origins: Vec<(u32, Box<[u8]>)>,
    octets: usize,
}

/// All bundles of a connection.
#[derive(Debug, Default)]
pub struct Bundles(BTreeMap<u32, Bundle>);

/// Why a bundle was not committed: the message that failed, with its transaction, and how.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// The message's transaction.
    pub xid: u32,
    /// What the switch says to it.
    pub code: Code,
    /// The beginning of the message.
    pub octets: Box<[u8]>,
}

impl Bundles {
    /// Opens, closes, commits or discards. A message that fails is told apart from the bundle.
    ///
    /// # Errors
    /// That of the bundle.
    pub fn control(
        &mut self,
        control: &BundleControl,
        switch: &Switch,
    ) -> Result<(BundleControl, Option<Refused>), Code> {
        let id = control.bundle_id;
        let reply = |kind| BundleControl { bundle_id: id, kind, flags: control.flags };
        use BundleControlType as Kind;
        match control.kind {
            Kind::OpenRequest => {
                self.open(control)?;
                Ok((reply(Kind::OpenReply), None))
            }
            Kind::CloseRequest => {
                let bundle = self.get(id, control.flags)?;
                if std::mem::replace(&mut bundle.closed, true) {
                    return Err(Code::OFPBFC_BUNDLE_CLOSED);
                }
                Ok((reply(Kind::CloseReply), None))
            }
            Kind::DiscardRequest => {
                self.0.remove(&id).ok_or(Code::OFPBFC_BAD_ID)?;
                Ok((reply(Kind::DiscardReply), None))
            }
            Kind::CommitRequest => {
                self.get(id, control.flags)?;
                let bundle = self.0.remove(&id).ok_or(Code::OFPBFC_BAD_ID)?;
                if bundle.broken {
                    return Err(Code::OFPBFC_MSG_FAILED);
                }
                let refused = bundle.commit(switch).err();
                Ok((reply(Kind::CommitReply), refused))
            }
            Kind::OpenReply | Kind::CloseReply | Kind::DiscardReply | Kind::CommitReply => {
                Err(Code::OFPBFC_BAD_TYPE)
            }
        }
    }

    fn open(&mut self, control: &BundleControl) -> Result<(), Code> {
        if self.0.contains_key(&control.bundle_id) {
            return Err(Code::OFPBFC_BUNDLE_EXIST);
        }
        if self.0.len() >= MAX_BUNDLES {
            return Err(Code::OFPBFC_OUT_OF_BUNDLES);
        }
        self.0.insert(control.bundle_id, Bundle::new(control.flags, false));
        Ok(())
    }

    fn get(&mut self, id: u32, flags: BundleFlags) -> Result<&mut Bundle, Code> {
        let bundle = self.0.get_mut(&id).ok_or(Code::OFPBFC_BAD_ID)?;
        if bundle.flags != flags { Err(Code::OFPBFC_BAD_FLAGS) } else { Ok(bundle) }
    }

    /// Notes that this message was refused: if it was for a bundle, that would be committed without it. The first one for a
    /// bundle opens it all the same, so that those that follow are not taken for all of it.
    pub fn spoil(&mut self, octets: &[u8]) {
        let Some((bundle_id, flags)) = BundleAdd::bundle_of(octets) else { return };
        if !self.0.contains_key(&bundle_id) {
            // Without room for it every later message is refused, too.
            let _ = self.open(&BundleControl { bundle_id, kind: BundleControlType::OpenRequest, flags });
        }
        if let Some(bundle) = self.0.get_mut(&bundle_id) {
            *bundle = Bundle { broken: true, ..Bundle::new(bundle.flags, bundle.closed) };
        }
    }

    /// Adds the message of these octets. A bundle that does not exist is opened.
    ///
    /// # Errors
    /// That of the bundle.
    pub fn add(&mut self, add: BundleAdd, xid: u32, octets: &[u8]) -> Result<(), Code> {
        let (messages, bytes) = self.0.values().fold((0, 0), |(messages, bytes), bundle| {
            (messages + bundle.changes.len(), bytes + bundle.octets)
        });
        if messages >= MAX_MESSAGES || bytes + octets.len() > MAX_OCTETS {
            return Err(Code::OFPBFC_MSG_TOO_MANY);
        }
        if !self.0.contains_key(&add.bundle_id) {
            let (bundle_id, flags) = (add.bundle_id, add.flags);
            self.open(&BundleControl { bundle_id, kind: BundleControlType::OpenRequest, flags })?;
        }
        let bundle = self.get(add.bundle_id, add.flags)?;
        if bundle.closed {
            return Err(Code::OFPBFC_BUNDLE_CLOSED);
        }
        if bundle.broken {
            return Ok(());
        }
        bundle.octets += octets.len();
        bundle.changes.push(Ready::new(add.change));
        bundle.origins.push((xid, octets[..octets.len().min(openflow::ERROR_DATA)].into()));
        Ok(())
    }
}

impl Bundle {
    fn new(flags: BundleFlags, closed: bool) -> Bundle {
        Bundle { flags, closed, broken: false, changes: Vec::new(), origins: Vec::new(), octets: 0 }
    }

    fn commit(mut self, switch: &Switch) -> Result<(), Refused> {
        switch.commit_ready(&mut self.changes).map_err(|failed| {
            let (xid, octets) = self.origins.swap_remove(failed.at);
            Refused { xid, code: failed.code, octets }
        })
    }
}
