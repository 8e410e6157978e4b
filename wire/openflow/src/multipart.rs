//! OFPT_MULTIPART_REQUEST and OFPT_MULTIPART_REPLY (§7.3.5).

use crate::codec::{Reader, Wire, pad};
use crate::flow::{AggregateStats, FlowStats, FlowStatsRequest, GroupDesc, GroupFeatures, GroupStats};
use crate::switch::{Desc, Port, PortStats, TableStats};
use crate::table::TableFeatures;
use crate::{Code, GroupId, HEADER_LEN, MAX_MESSAGE, PortNo};

/// Octets in front of the body: message header, type, flags.
const BODY: usize = HEADER_LEN + 8;

/// OFPMPF_REQ_MORE and OFPMPF_REPLY_MORE.
const MORE: u16 = 1;

/// A request or reply, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Multipart<T> {
    /// Whether another part follows.
    pub more: bool,
    /// The body.
    pub body: T,
}

/// What can come in parts: a [`Request`] or [`Reply`].
pub trait Part: Sized + sealed::Sealed {
    /// Whether it is a list, so that it can be cut.
    fn is_list(&self) -> bool;

    /// Appends the list of a later part; gives it back if it is of another type, or no list.
    fn append(&mut self, later: Self) -> Result<(), Self>;
}

mod sealed {
    /// Keeps the trait for this crate's types.
    pub trait Sealed {}
    impl Sealed for super::Request {}
    impl Sealed for super::Reply {}
}

/// Bodies, of which lists can be joined.
trait Body: Sized {
    const IS_LIST: bool = false;

    fn append(&mut self, later: Self) -> Result<(), Self> {
        Err(later)
    }
}

impl<T> Body for Vec<T> {
    const IS_LIST: bool = true;

    fn append(&mut self, later: Self) -> Result<(), Self> {
        self.extend(later);
        Ok(())
    }
}

impl Body for () {}
impl Body for Box<Desc> {}
impl Body for FlowStatsRequest {}
impl Body for AggregateStats {}
impl Body for GroupFeatures {}
impl<T> Body for Of<T> {}

/// A number with padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Of<T>(pub T);

impl<T: Wire> Wire for Of<T> {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        let value = T::read(r)?;
        r.skip(4)?;
        Ok(Self(value))
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
        pad(out, 4);
    }
}

macro_rules! multiparts {
    ($($(#[$doc:meta])* $number:literal $name:ident: $request:ty => $reply:ty;)*) => {
        /// What is asked for.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Request { $($(#[$doc])* $name($request),)* }

        /// The answer.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Reply { $($(#[$doc])* $name($reply),)* }

        multiparts! { @wire Request $($number $name: $request,)* }
        multiparts! { @wire Reply $($number $name: $reply,)* }
    };
    (@wire $side:ident $($number:literal $name:ident: $body:ty,)*) => {
        impl Wire for Multipart<$side> {
            fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
                let (kind, flags) = (u16::read(r)?, u16::read(r)?);
                r.skip(4)?;
                let body = match kind {
                    $($number => $side::$name(<$body as Wire>::read(r)?),)*
                    0xffff => return Err(Code::OFPBRC_BAD_EXPERIMENTER),
                    _ => return Err(Code::OFPBRC_BAD_MULTIPART),
                };
                Ok(Self { more: flags & MORE != 0, body })
            }

            fn write(&self, out: &mut Vec<u8>) {
                let kind: u16 = match &self.body { $($side::$name(_) => $number,)* };
                kind.write(out);
                (if self.more { MORE } else { 0 }).write(out);
                pad(out, 4);
                match &self.body { $($side::$name(body) => body.write(out),)* }
            }
        }

        impl Part for $side {
            fn is_list(&self) -> bool {
                match self { $($side::$name(_) => <$body as Body>::IS_LIST,)* }
            }

            fn append(&mut self, later: Self) -> Result<(), Self> {
                match (self, later) {
                    $(($side::$name(body), $side::$name(later)) => Body::append(body, later).map_err($side::$name),)*
                    (_, later) => Err(later),
                }
            }
        }
    };
}

multiparts! {
    /// What the switch is.
    0 Desc: () => Box<Desc>;
    /// Flows and their counters.
    1 Flow: FlowStatsRequest => Vec<FlowStats>;
    /// Sums over flows.
    2 Aggregate: FlowStatsRequest => AggregateStats;
    /// Counters of tables.
    3 Table: () => Vec<TableStats>;
    /// Counters of one port, or of all: [`PortNo::ANY`].
    4 PortStats: Of<PortNo> => Vec<PortStats>;
    /// Counters of one group, or of all: [`GroupId::ALL`].
    6 GroupStats: Of<GroupId> => Vec<GroupStats>;
    /// All groups.
    7 GroupDesc: () => Vec<GroupDesc>;
    /// What groups the switch has.
    8 GroupFeatures: () => GroupFeatures;
    /// What tables can do. A request with a list is one to change them.
    12 TableFeatures: Vec<TableFeatures> => Vec<TableFeatures>;
    /// All ports.
    13 PortDesc: () => Vec<Port>;
}

impl From<Request> for Multipart<Request> {
    fn from(body: Request) -> Self {
        Self { more: false, body }
    }
}

impl Request {
    /// The request in parts, each of which fits into a message.
    pub fn into_parts(self) -> Vec<Multipart<Request>> {
        parts(match self {
            Request::TableFeatures(list) => cut(list).into_iter().map(Request::TableFeatures).collect(),
            whole => vec![whole],
        })
    }
}

impl Reply {
    /// The reply in parts, each of which fits into a message.
    pub fn into_parts(self) -> Vec<Multipart<Reply>> {
        macro_rules! cut {
            ($($name:ident)*) => {
                match self {
                    $(Reply::$name(list) => cut(list).into_iter().map(Reply::$name).collect(),)*
                    whole => vec![whole],
                }
            };
        }
        parts(cut!(Flow Table PortStats GroupStats GroupDesc TableFeatures PortDesc))
    }

    /// Shortens a list to what fits into one message, for a sender that makes one part after the other; how many items are left.
    pub fn shorten(&mut self) -> usize {
        macro_rules! shorten {
            ($($name:ident)*) => {
                match self {
                    $(Reply::$name(list) => {
                        list.truncate(fitting(list));
                        list.len()
                    })*
                    _ => 1,
                }
            };
        }
        shorten!(Flow Table PortStats GroupStats GroupDesc TableFeatures PortDesc)
    }
}

/// Bodies as parts of one request or reply.
fn parts<T>(bodies: Vec<T>) -> Vec<Multipart<T>> {
    let last = bodies.len().saturating_sub(1);
    bodies.into_iter().enumerate().map(|(at, body)| Multipart { more: at < last, body }).collect()
}

/// The list in runs that fit into one message each; an empty list is one run.
fn cut<T: Wire>(list: Vec<T>) -> Vec<Vec<T>> {
    let (mut runs, mut rest) = (Vec::new(), list.into_iter());
    loop {
        let count = fitting(rest.as_slice());
        runs.push(rest.by_ref().take(count).collect());
        if rest.len() == 0 {
            return runs;
        }
    }
}

/// How many of the first items fit into one message. One that alone is too long counts, and cannot be encoded.
fn fitting<T: Wire>(items: &[T]) -> usize {
    let mut octets = vec![0; BODY];
    let mut count = 0;
    for item in items {
        item.write(&mut octets);
        if octets.len() > MAX_MESSAGE && count > 0 {
            break;
        }
        count += 1;
    }
    count
}
