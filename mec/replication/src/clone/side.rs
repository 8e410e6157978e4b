//! What [`Clone`](super::Clone) has to know of a protocol: heads of messages, and a control plane's side.

use super::User;

/// What a message is to its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Is answered.
    Request,
    /// Is answered by a request with its number, or by its failure.
    Command,
    /// Answers.
    Response,
    /// Neither.
    Other,
}

/// The head of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// Its type; a response's is the next one of its request's.
    pub code: u8,
    /// TEID or SEID of its receiver.
    pub to: Option<u64>,
    /// Its transaction.
    pub sequence: u32,
    /// Where it ends.
    pub length: usize,
}

/// What to do with a request of a script.
#[derive(Debug)]
pub enum Prepared {
    /// Send it.
    Send(Vec<u8>),
    /// It is not to be sent, but was noted.
    Noted,
}

/// What an answer says.
#[derive(Debug)]
pub enum Answered {
    /// Accepted.
    Accepted,
    /// Refused, with its cause.
    Refused(u8),
    /// To be asked in another way.
    Again(Vec<u8>),
    /// The anchor knows no control plane here: it has restarted. With the cause of the refusal.
    Unknown(u8),
}

/// A control plane's side of a protocol.
pub trait Side {
    /// Of each user.
    type State: Default + std::fmt::Debug;

    /// The bits of a sequence number.
    const SEQUENCES: u32;

    /// The head of the first message of some octets.
    fn head(octets: &[u8]) -> Option<Head>;
    /// Writes a receiver and a sequence number.
    fn patch(octets: &mut [u8], to: u64, sequence: u32);
    /// A request of a script. It may take more of the script.
    fn prepare(&self, user: &mut User<Self::State>, octets: Vec<u8>) -> Prepared;
    /// An answer to a request of a script.
    fn answered(&self, user: &mut User<Self::State>, request: &[u8], answer: &[u8]) -> Answered;
    /// What an answer says of usage, as IEs; `None`: nothing, and it was not asked to.
    fn usage(&self, request: &[u8], answer: &[u8]) -> Option<Vec<u8>>;
    /// The answer to a request of the anchor, if it is known.
    fn asked(&self, user: &mut User<Self::State>, request: &[u8]) -> Option<Vec<u8>>;
    /// Packets of the user go to this anchor from now on, or no longer.
    fn serve(&self, user: &mut User<Self::State>, serves: bool);
    /// By what the anchor is to address the control plane from this request on, if it says so.
    fn new_control(request: &[u8]) -> Option<u64>;
    /// Whether all is there that the script is to lead to.
    fn is_complete(user: &User<Self::State>) -> bool;
    /// A request that ends the session.
    fn end(&self, user: &User<Self::State>) -> Vec<u8>;
    /// Whether this code is that of such a request.
    fn is_end(code: u8) -> bool;
    /// When the anchor says it has started, if a message says so.
    fn start(&self, octets: &[u8]) -> Option<u32>;
    /// Asks the anchor whether it is there.
    fn probe(&self, sequence: u32) -> Vec<u8>;
    /// What an anchor that has restarted is asked before anything else, if there is such a thing.
    fn greeting(&self, sequence: u32) -> Option<Vec<u8>>;
    /// Whether an answer accepts that; `None`: it is another message.
    fn is_greeted(&self, octets: &[u8]) -> Option<bool>;
    /// The answer to a request that is about no user; `None` for one that is.
    fn node(&self, head: Head, octets: &[u8]) -> Option<Vec<u8>>;
    /// The answer to a request for a user who is not here.
    fn nobody(&self, head: Head) -> Option<Vec<u8>>;
}
