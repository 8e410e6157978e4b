//! One connection with a controller, without I/O.
//!
//! Octets go in by [`Session::receive`] (and [`Session::proceed`]), time by [`Session::tick`], which is due at [`Session::deadline_ns`] again; what is to be
//! sent is in [`Session::output`] after each of both. An error of either ends the connection. Requests are answered in their
//! order. A request that cannot be served gets the error that the standard says, and the connection goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use openflow::{
    Capabilities, Code, Config, DecodeError, ErrorMessage, Features, Fragments, FrameError, Framer, Hello,
    JoinError, Joiner, Limits, Message, Multipart, PacketOut, Request, Role, RoleRequest,
};

use super::bundle::Bundles;
use super::multipart::Answer;
use super::peer::Peer;
use crate::core::Switch;
use crate::pipeline::{Change, Ready};

const SECOND_NS: u64 = 1_000_000_000;
/// A hello must have come by then.
const HELLO_NS: u64 = 10 * SECOND_NS;
/// Silence after which the controller is asked whether it is there.
const ECHO_AFTER_NS: u64 = 5 * SECOND_NS;
/// Silence after which it is not.
const GONE_AFTER_NS: u64 = 15 * SECOND_NS;

/// While so many octets of answers wait to be sent, no further question is answered.
pub const MAX_OUTPUT: usize = 1 << 20;
/// Slices of long answers ([`Answer::next_part`]) after which others have their turn.
const MAX_SLICES: u32 = 32;

/// Why a connection ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The stream cannot be cut into messages.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The controller speaks no version that we do.
    #[error("the controller does not speak OpenFlow 1.3")]
    Version,
    /// Something else came in place of the hello.
    #[error("the controller sent no hello")]
    NoHello,
    /// Requests in parts without end.
    #[error(transparent)]
    Parts(#[from] JoinError),
    /// Nothing comes.
    #[error("the controller does not answer")]
    Silent,
}

/// A connection.
pub struct Session {
    switch: Arc<Switch>,
    peer: Arc<Peer>,
    framer: Framer,
    joiner: Joiner<Request>,
    /// The answer under way, with its transaction. What was received behind its request waits.
    answer: Option<(u32, Answer)>,
    /// There is more to do, and room for it in the output.
    is_behind: bool,
    bundles: Bundles,
    miss_send_len: u16,
    greeted: bool,
    /// When the last whole message came: half messages are no sign of life.
    heard_ns: u64,
    asked: bool,
    /// Octets to be sent.
    pub output: Vec<u8>,
}

impl Session {
    /// Begins with our hello.
    pub fn new(switch: Arc<Switch>, peer: Arc<Peer>, now_ns: u64) -> Session {
        let mut session = Session {
            switch,
            peer,
            framer: Framer::default(),
            joiner: Joiner::new(Limits::REQUESTS),
            answer: None,
            is_behind: false,
            bundles: Bundles::default(),
            miss_send_len: 128,
            greeted: false,
            heard_ns: now_ns,
            asked: false,
            output: Vec::new(),
        };
        session.send(0, &Hello::OURS.into());
        session
    }

    /// Whether the hellos have been exchanged.
    pub fn is_up(&self) -> bool {
        self.greeted
    }

    /// Takes received octets, and answers the messages in them as [`Session::proceed`] does.
    ///
    /// # Errors
    /// The connection has ended; what is in the output is still to be sent.
    pub fn receive(&mut self, octets: &[u8], now_ns: u64) -> Result<(), Ended> {
        self.framer.push(octets);
        self.proceed(now_ns)
    }

    /// Answers messages that were received, until none is left, [`MAX_OUTPUT`] octets of answers wait, or others should have
    /// their turn ([`Session::is_behind`]): small questions can have long answers. To be called again when the output has been
    /// sent.
    ///
    /// # Errors
    /// As [`Session::receive`].
    pub fn proceed(&mut self, now_ns: u64) -> Result<(), Ended> {
        let mut framer = std::mem::take(&mut self.framer);
        let mut slices = 0;
        let result = loop {
            self.is_behind = slices == MAX_SLICES;
            if self.is_behind || self.output.len() >= MAX_OUTPUT {
                break Ok(());
            }
            if let Some((xid, answer)) = self.answer.take() {
                slices += 1;
                self.go_on(xid, answer);
                continue;
            }
            match framer.next_message() {
                Ok(Some(message)) => {
                    (self.heard_ns, self.asked) = (now_ns, false);
                    if let Err(ended) = self.message(message) {
                        break Err(ended);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.into()),
            }
        };
        self.framer = framer;
        result
    }

    /// Whether [`Session::proceed`] has more to do although the output has room. Until then nothing should be received.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Sends the next part of an answer.
    fn go_on(&mut self, xid: u32, mut answer: Answer) {
        let part = answer.next_part(&self.switch);
        if part.as_ref().is_none_or(|part| part.more) {
            self.answer = Some((xid, answer));
        }
        if let Some(part) = part {
            self.send(xid, &part.into());
        }
    }

    /// Does what is due.
    ///
    /// # Errors
    /// The controller does not answer.
    pub fn tick(&mut self, now_ns: u64) -> Result<(), Ended> {
        let silent_ns = now_ns.saturating_sub(self.heard_ns);
        if silent_ns >= if self.greeted { GONE_AFTER_NS } else { HELLO_NS } {
            return Err(Ended::Silent);
        }
        if self.greeted && silent_ns >= ECHO_AFTER_NS && !std::mem::replace(&mut self.asked, true) {
            self.send(0, &Message::EchoRequest(Vec::new()));
        }
        Ok(())
    }

    /// Silence until now is not the controller's fault: nothing was read from it.
    pub(crate) fn excuse(&mut self, now_ns: u64) {
        (self.heard_ns, self.asked) = (now_ns, false);
    }

    /// When [`Session::tick`] has something to do.
    pub fn deadline_ns(&self) -> u64 {
        self.heard_ns
            + match (self.greeted, self.asked) {
                (false, _) => HELLO_NS,
                (true, false) => ECHO_AFTER_NS,
                (true, true) => GONE_AFTER_NS,
            }
    }

    fn send(&mut self, xid: u32, message: &Message) {
        if let Err(error) = message.encode_into(xid, &mut self.output) {
            // An entry whose description does not fit into a message of its own.
            tracing::warn!(%error, message = message.name(), "a reply is too long to be sent");
        }
    }

    fn refuse(&mut self, xid: u32, code: Code, octets: &[u8]) {
        self.switch.counts.refused.fetch_add(1, Relaxed);
        self.send(xid, &Message::Error(code.about(octets)));
    }

    fn message(&mut self, octets: &[u8]) -> Result<(), Ended> {
        let decoded = Message::decode(octets);
        if !self.greeted {
            return match decoded {
                Ok((_, Message::Hello(hello))) if hello.is_compatible() => {
                    self.greeted = true;
                    Ok(())
                }
                Ok((xid, Message::Hello(_))) => {
                    let data = b"OpenFlow 1.3 only".to_vec();
                    self.send(xid, &ErrorMessage { code: Code::OFPHFC_INCOMPATIBLE, data }.into());
                    Err(Ended::Version)
                }
                _ => Err(Ended::NoHello),
            };
        }
        match decoded {
            Ok((xid, Message::MultipartRequest(part))) => return self.multipart(xid, part, octets),
            Ok((xid, message)) => {
                if let Err(code) = self.request(xid, message, octets) {
                    self.bundles.spoil(octets);
                    self.refuse(xid, code, octets);
                }
            }
            Err(error) => {
                self.bundles.spoil(octets);
                self.joiner.forget(error.xid);
                self.undecodable(&error, octets);
            }
        }
        Ok(())
    }

    fn undecodable(&mut self, error: &DecodeError, octets: &[u8]) {
        self.switch.counts.refused.fetch_add(1, Relaxed);
        if let Some(reply) = error.reply(octets) {
            self.send(error.xid, &reply);
        }
    }

    /// A request, or a part of one (§7.3.5).
    fn multipart(&mut self, xid: u32, part: Multipart<Request>, octets: &[u8]) -> Result<(), Ended> {
        match self.joiner.push(xid, part, octets.len()) {
            Ok(None) => {}
            Ok(Some(request)) => match Answer::new(&self.switch, request) {
                Ok(answer) => self.answer = Some((xid, answer)),
                Err(code) => self.refuse(xid, code, octets),
            },
            Err(error) => {
                if let Some(code) = error.code() {
                    self.refuse(xid, code, octets);
                }
                if error.is_fatal() {
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    fn request(&mut self, xid: u32, message: Message, octets: &[u8]) -> Result<(), Code> {
        if self.peer.role() == Role::Slave && changes(&message) {
            return Err(Code::OFPBRC_IS_SLAVE);
        }
        match message {
            Message::Hello(_) | Message::EchoReply(_) | Message::Error(_) => {}
            Message::EchoRequest(data) => self.send(xid, &Message::EchoReply(data)),
            Message::FeaturesRequest(()) => {
                let features = self.features();
                self.send(xid, &Message::FeaturesReply(features));
            }
            Message::GetConfigRequest(()) => {
                let config = Config { fragments: Fragments::Normal, miss_send_len: self.miss_send_len };
                self.send(xid, &Message::GetConfigReply(config));
            }
            Message::SetConfig(config) if config.fragments == Fragments::Normal => {
                self.miss_send_len = config.miss_send_len;
            }
            Message::SetConfig(_) => return Err(Code::OFPSCFC_BAD_FLAGS),
            Message::FlowMod(flow_mod) => self.change(Change::FlowMod(flow_mod))?,
            Message::GroupMod(group_mod) => self.change(Change::GroupMod(group_mod))?,
            Message::PacketOut(packet_out) => self.packet_out(packet_out)?,
            Message::BarrierRequest(()) => {
                // What was changed before holds for all packets from here on.
                self.switch.await_workers();
                self.send(xid, &Message::BarrierReply(()));
            }
            Message::RoleRequest(request) => self.role(xid, &request)?,
            Message::GetAsyncRequest(()) => {
                let wants = self.peer.wants();
                self.send(xid, &Message::GetAsyncReply(wants));
            }
            Message::SetAsync(wants) => self.peer.set_wants(wants),
            Message::BundleControl(control) => {
                let (reply, refused) = self.bundles.control(&control, &self.switch)?;
                match refused {
                    None => {
                        if reply.kind == openflow::BundleControlType::CommitReply {
                            self.switch.await_workers();
                        }
                        self.send(xid, &reply.into());
                    }
                    Some(refused) => {
                        self.refuse(refused.xid, refused.code, &refused.octets);
                        return Err(Code::OFPBFC_MSG_FAILED);
                    }
                }
            }
            Message::BundleAdd(add) => self.bundles.add(add, xid, octets)?,
            // What only switches send; requests for statistics have been seen to.
            Message::FeaturesReply(_)
            | Message::GetConfigReply(_)
            | Message::PacketIn(_)
            | Message::FlowRemoved(_)
            | Message::PortStatus(_)
            | Message::MultipartRequest(_)
            | Message::MultipartReply(_)
            | Message::BarrierReply(())
            | Message::RoleReply(_)
            | Message::GetAsyncReply(_) => return Err(Code::OFPBRC_BAD_TYPE),
        }
        Ok(())
    }

    fn features(&self) -> Features {
        Features {
            datapath_id: self.switch.identity().datapath_id,
            // Packets are not kept: controllers get all of them.
            n_buffers: 0,
            n_tables: self.switch.pipeline().limits().tables,
            auxiliary_id: 0,
            capabilities: Capabilities::FLOW_STATS
                | Capabilities::TABLE_STATS
                | Capabilities::PORT_STATS
                | Capabilities::GROUP_STATS,
        }
    }

    fn change(&self, change: Change) -> Result<(), Code> {
        self.switch.commit_ready(&mut [Ready::new(change)]).map_err(|failed| failed.code)
    }

    fn packet_out(&self, request: PacketOut) -> Result<(), Code> {
        self.switch.pipeline().check_packet_out(&request)?;
        self.switch.packet_out(request.in_port, &request.actions, request.data);
        Ok(())
    }

    fn role(&mut self, xid: u32, request: &RoleRequest) -> Result<(), Code> {
        if request.role != Role::NoChange
            && !self.switch.set_role(&self.peer, request.role, request.generation_id)
        {
            return Err(Code::OFPRRFC_STALE);
        }
        let reply = RoleRequest { role: self.peer.role(), generation_id: self.switch.generation() };
        self.send(xid, &Message::RoleReply(reply));
        Ok(())
    }
}

/// Whether a slave may not send this (§6.3.6).
fn changes(message: &Message) -> bool {
    matches!(
        message,
        Message::FlowMod(_)
            | Message::GroupMod(_)
            | Message::PacketOut(_)
            | Message::SetConfig(_)
            | Message::BundleControl(_)
            | Message::BundleAdd(_)
    )
}
