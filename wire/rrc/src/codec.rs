//! How the types of TS 38.331 become bits: one trait, and macros that declare types as the standard's ASN.1 does.
//!
//! [`sequence!`] lists the members of a SEQUENCE in the standard's order. A member of ours is written
//! `pub name: Type as Codec`; one that we do not have is written `"its-name" as Codec`, with a codec that skips it
//! or refuses a message with it. From the list come the struct, its encoder and its decoder, so that these cannot differ.

use per::{Reader, Size, Writer};

use crate::{DecodeError, EncodeError};

/// A type of TS 38.331.
pub(crate) trait Uper: Sized {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError>;
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// How a member of a SEQUENCE is there: always, or only sometimes.
pub(crate) trait Member<T> {
    /// Whether the preamble has a bit for it.
    const OPTIONAL: bool;
    /// The bit in the preamble.
    fn present(_value: &T) -> bool {
        true
    }
    /// Writes it, if it is present.
    fn put(value: &T, w: &mut Writer) -> Result<(), EncodeError>;
    /// Reads it.
    fn get(present: bool, r: &mut Reader<'_>) -> Result<T, DecodeError>;
}

/// A mandatory member.
pub(crate) struct Value;

impl<T: Uper> Member<T> for Value {
    const OPTIONAL: bool = false;
    fn put(value: &T, w: &mut Writer) -> Result<(), EncodeError> {
        value.put(w)
    }
    fn get(_present: bool, r: &mut Reader<'_>) -> Result<T, DecodeError> {
        T::get(r)
    }
}

/// OPTIONAL.
pub(crate) struct Optional;

impl<T: Uper> Member<Option<T>> for Optional {
    const OPTIONAL: bool = true;
    fn present(value: &Option<T>) -> bool {
        value.is_some()
    }
    fn put(value: &Option<T>, w: &mut Writer) -> Result<(), EncodeError> {
        value.as_ref().map_or(Ok(()), |value| value.put(w))
    }
    fn get(present: bool, r: &mut Reader<'_>) -> Result<Option<T>, DecodeError> {
        if present { T::get(r).map(Some) } else { Ok(None) }
    }
}

/// ENUMERATED {true} OPTIONAL.
pub(crate) struct Flag;

impl Member<bool> for Flag {
    const OPTIONAL: bool = true;
    fn present(value: &bool) -> bool {
        *value
    }
    fn put(_value: &bool, _w: &mut Writer) -> Result<(), EncodeError> {
        Ok(())
    }
    fn get(present: bool, _r: &mut Reader<'_>) -> Result<bool, DecodeError> {
        Ok(present)
    }
}

/// SEQUENCE (SIZE (MIN..MAX)) OF.
pub(crate) struct List<const MIN: usize, const MAX: usize>;

impl<T: Uper, const MIN: usize, const MAX: usize> Member<Vec<T>> for List<MIN, MAX> {
    const OPTIONAL: bool = false;
    fn put(value: &Vec<T>, w: &mut Writer) -> Result<(), EncodeError> {
        w.list(value, Size::new(MIN, MAX), |w, item| item.put(w))
    }
    fn get(_present: bool, r: &mut Reader<'_>) -> Result<Vec<T>, DecodeError> {
        r.list(Size::new(MIN, MAX), T::get)
    }
}

/// SEQUENCE (SIZE (1..MAX)) OF, OPTIONAL: absent if it is empty.
pub(crate) struct OptionalList<const MAX: usize>;

impl<T: Uper, const MAX: usize> Member<Vec<T>> for OptionalList<MAX> {
    const OPTIONAL: bool = true;
    fn present(value: &Vec<T>) -> bool {
        !value.is_empty()
    }
    fn put(value: &Vec<T>, w: &mut Writer) -> Result<(), EncodeError> {
        if value.is_empty() { Ok(()) } else { List::<1, MAX>::put(value, w) }
    }
    fn get(present: bool, r: &mut Reader<'_>) -> Result<Vec<T>, DecodeError> {
        if present { List::<1, MAX>::get(true, r) } else { Ok(Vec::new()) }
    }
}

/// Whether the rest of a SEQUENCE can be read.
#[derive(PartialEq, Eq)]
pub(crate) enum Next {
    Member,
    /// Nothing behind this member is read: it is among the last, and its length is unknown.
    End,
}

/// A member that the structs do not have.
pub(crate) trait Unused {
    const OPTIONAL: bool;
    /// Writes what stands for it, if it is mandatory.
    fn put(_w: &mut Writer) -> Result<(), EncodeError> {
        Ok(())
    }
    fn skip(name: &'static str, present: bool, r: &mut Reader<'_>) -> Result<Next, DecodeError>;
}

/// An optional member that changes what a message means, or that is too long to skip.
pub(crate) struct NotSupported;

impl Unused for NotSupported {
    const OPTIONAL: bool = true;
    fn skip(name: &'static str, present: bool, _r: &mut Reader<'_>) -> Result<Next, DecodeError> {
        if present { Err(DecodeError::NotSupported(name)) } else { Ok(Next::Member) }
    }
}

/// An optional OCTET STRING without meaning here.
pub(crate) struct SkippedOctets;

impl Unused for SkippedOctets {
    const OPTIONAL: bool = true;
    fn skip(_name: &'static str, present: bool, r: &mut Reader<'_>) -> Result<Next, DecodeError> {
        if present {
            r.skip_open()?;
        }
        Ok(Next::Member)
    }
}

/// An optional ENUMERATED {true} without meaning here.
pub(crate) struct SkippedFlag;

impl Unused for SkippedFlag {
    const OPTIONAL: bool = true;
    fn skip(_name: &'static str, _present: bool, _r: &mut Reader<'_>) -> Result<Next, DecodeError> {
        Ok(Next::Member)
    }
}

/// An optional member at the end of a message, behind which nothing of ours comes.
pub(crate) struct Rest;

impl Unused for Rest {
    const OPTIONAL: bool = true;
    fn skip(_name: &'static str, present: bool, _r: &mut Reader<'_>) -> Result<Next, DecodeError> {
        Ok(if present { Next::End } else { Next::Member })
    }
}

/// CHOICE of which we know only the first of `ROOT` alternatives, and that has no content or is a message itself.
pub(crate) struct First<const ROOT: usize, const EXTENSIBLE: bool>;

impl<const ROOT: usize, const EXTENSIBLE: bool> Unused for First<ROOT, EXTENSIBLE> {
    const OPTIONAL: bool = false;
    fn put(w: &mut Writer) -> Result<(), EncodeError> {
        Ok(w.choice(0, ROOT, EXTENSIBLE)?)
    }
    fn skip(name: &'static str, _present: bool, r: &mut Reader<'_>) -> Result<Next, DecodeError> {
        if r.choice(ROOT, EXTENSIBLE)? == 0 { Ok(Next::Member) } else { Err(DecodeError::NotSupported(name)) }
    }
}

/// Bits that the sender sets to zero.
pub(crate) struct Spare<const BITS: u32>;

impl<const BITS: u32> Unused for Spare<BITS> {
    const OPTIONAL: bool = false;
    fn put(w: &mut Writer) -> Result<(), EncodeError> {
        w.bits(0, BITS);
        Ok(())
    }
    fn skip(_name: &'static str, _present: bool, r: &mut Reader<'_>) -> Result<Next, DecodeError> {
        r.bits(BITS)?;
        Ok(Next::Member)
    }
}

/// Declares that the octets of a type are carried in an OCTET STRING, by another message or by F1AP.
macro_rules! carried {
    ($type:ty) => {
        impl $type {
            /// The octets.
            pub fn encode(&self) -> Result<::bytes::Bytes, $crate::EncodeError> {
                use $crate::codec::Uper as _;
                let mut writer = ::per::Writer::new(::per::Variant::Unaligned);
                self.put(&mut writer)?;
                Ok(writer.finish().into())
            }

            /// Reads the octets.
            pub fn decode(octets: &[u8]) -> Result<Self, $crate::DecodeError> {
                use $crate::codec::Uper as _;
                Self::get(&mut ::per::Reader::new(::per::Variant::Unaligned, octets))
            }
        }
    };
}
pub(crate) use carried;

/// Declares a SEQUENCE. `[…]` has what stands before the preamble: the members of the SEQUENCEs around it.
macro_rules! sequence {
    (
        $(#[$meta:meta])*
        pub struct $type:ident extensible $extensible:literal
        $([
            $( $( $hunused:literal )? $( $(#[$hmeta:meta])* pub $hname:ident : $htype:ty )? as $hcodec:ty ),* $(,)?
        ])?
        {
            $( $( $unused:literal )? $( $(#[$fmeta:meta])* pub $name:ident : $ftype:ty )? as $codec:ty ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $type {
            $( $( $( $(#[$hmeta])* pub $hname: $htype, )? )* )?
            $( $( $(#[$fmeta])* pub $name: $ftype, )? )*
        }

        impl $crate::codec::Uper for $type {
            #[allow(unused_imports, reason = "not every SEQUENCE has members of both kinds")]
            fn put(&self, w: &mut ::per::Writer) -> Result<(), $crate::EncodeError> {
                use $crate::codec::{Member as _, Unused as _};
                $( $(
                    $( <$hcodec as $crate::codec::Member<$htype>>::put(&self.$hname, w)?; )?
                    $( let _ = $hunused; <$hcodec as $crate::codec::Unused>::put(w)?; )?
                )* )?
                if $extensible {
                    w.bit(false);
                }
                $(
                    $( if <$codec as $crate::codec::Member<$ftype>>::OPTIONAL {
                        w.bit(<$codec as $crate::codec::Member<$ftype>>::present(&self.$name));
                    } )?
                    $( if <$codec as $crate::codec::Unused>::OPTIONAL {
                        let _ = $unused;
                        w.bit(false);
                    } )?
                )*
                $(
                    $( <$codec as $crate::codec::Member<$ftype>>::put(&self.$name, w)?; )?
                    $( let _ = $unused; <$codec as $crate::codec::Unused>::put(w)?; )?
                )*
                Ok(())
            }

            #[allow(unused_assignments, unused_mut, unused_variables, reason = "the last member counts as the others")]
            fn get(r: &mut ::per::Reader<'_>) -> Result<Self, $crate::DecodeError> {
                $( $(
                    $( let $hname = <$hcodec as $crate::codec::Member<$htype>>::get(true, r)?; )?
                    $( <$hcodec as $crate::codec::Unused>::skip($hunused, true, r)?; )?
                )* )?
                let optional = 0
                    $( $( + u32::from(<$codec as $crate::codec::Member<$ftype>>::OPTIONAL) )?
                       $( + { let _ = $unused; u32::from(<$codec as $crate::codec::Unused>::OPTIONAL) } )? )*;
                let preamble = r.preamble($extensible, optional)?;
                let mut index = 0;
                let mut present = |optional: bool| {
                    let here = !optional || preamble.present(index);
                    index += u32::from(optional);
                    here
                };
                let mut next = $crate::codec::Next::Member;
                $(
                    $( let $name = <$codec as $crate::codec::Member<$ftype>>::get(
                        present(<$codec as $crate::codec::Member<$ftype>>::OPTIONAL), r)?; )?
                    $( if next == $crate::codec::Next::Member {
                        next = <$codec as $crate::codec::Unused>::skip(
                            $unused, present(<$codec as $crate::codec::Unused>::OPTIONAL), r)?;
                    } )?
                )*
                if next == $crate::codec::Next::Member {
                    r.skip_additions(&preamble)?;
                }
                Ok(Self { $( $( $( $hname, )? )* )? $( $( $name, )? )* })
            }
        }
    };
}
pub(crate) use sequence;

/// Declares a CHOICE by the standard's names of its root alternatives and those that we have, with their indices.
macro_rules! choice {
    (
        $(#[$meta:meta])*
        pub enum $type:ident extensible $extensible:literal of $names:expr;
        { $( $(#[$vmeta:meta])* $index:literal => $variant:ident($content:ty) ),* $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $type { $( $(#[$vmeta])* $variant($content), )* }

        impl $type {
            const NAMES: &'static [&'static str] = &$names;

            /// The standard's name of the alternative.
            pub fn name(&self) -> &'static str {
                match self { $( Self::$variant(_) => Self::NAMES[$index], )* }
            }
        }

        impl $crate::codec::Uper for $type {
            fn put(&self, w: &mut ::per::Writer) -> Result<(), $crate::EncodeError> {
                match self { $( Self::$variant(content) => {
                    w.choice($index, Self::NAMES.len(), $extensible)?;
                    $crate::codec::Uper::put(content, w)
                } )* }
            }

            fn get(r: &mut ::per::Reader<'_>) -> Result<Self, $crate::DecodeError> {
                match r.choice(Self::NAMES.len(), $extensible)? {
                    $( $index => $crate::codec::Uper::get(r).map(Self::$variant), )*
                    other => Err($crate::DecodeError::NotSupported(
                        Self::NAMES.get(other).copied().unwrap_or(concat!("extension of ", stringify!($type))),
                    )),
                }
            }
        }
    };
}
pub(crate) use choice;

/// Declares an ENUMERATED of `$root` values. Those without name are refused, or kept as `Spare` if that is given.
macro_rules! enumerated {
    (
        $(#[$meta:meta])*
        pub enum $type:ident extensible $extensible:literal of $root:literal
        { $( $(#[$vmeta:meta])* $variant:ident = $index:literal ),* $(,)? }
        $( else $(#[$smeta:meta])* $spare:ident )?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type { $( $(#[$vmeta])* $variant, )* $( $(#[$smeta])* $spare(u8), )? }

        impl $crate::codec::Uper for $type {
            fn put(&self, w: &mut ::per::Writer) -> Result<(), $crate::EncodeError> {
                let index = match self {
                    $( Self::$variant => $index, )*
                    $( Self::$spare(index) => usize::from(*index), )?
                };
                Ok(w.enumerated(index, $root, $extensible)?)
            }

            fn get(r: &mut ::per::Reader<'_>) -> Result<Self, $crate::DecodeError> {
                match r.enumerated($root, $extensible)? {
                    $( $index => Ok(Self::$variant), )*
                    $( spare => Ok(Self::$spare(spare as u8)), )?
                    #[allow(unreachable_patterns, reason = "some have a spare value, some have a name for every value")]
                    _ => Err($crate::DecodeError::NotSupported(concat!("spare value of ", stringify!($type)))),
                }
            }
        }
    };
}
pub(crate) use enumerated;

/// Declares an ENUMERATED whose values are numbers in ascending order, perhaps with infinity at their end.
macro_rules! quantity {
    (
        $(#[$meta:meta])*
        pub struct $type:ident of $root:literal: $values:expr $(, then $infinity:ident)?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $type(u8);

        impl $type {
            /// The values that the standard has.
            pub const VALUES: &'static [u32] = &$values;
            $(
                /// No limit.
                #[allow(non_upper_case_globals)]
                pub const $infinity: Self = Self(Self::VALUES.len() as u8);
            )?

            /// The value, if the standard has it.
            pub const fn new(value: u32) -> Option<Self> {
                let mut index = 0;
                while index < Self::VALUES.len() {
                    if Self::VALUES[index] == value {
                        return Some(Self(index as u8));
                    }
                    index += 1;
                }
                None
            }

            /// The number; `None` is infinity.
            pub fn value(self) -> Option<u32> {
                Self::VALUES.get(usize::from(self.0)).copied()
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.value() {
                    Some(value) => write!(f, "{}({value})", stringify!($type)),
                    None => write!(f, "{}(infinity)", stringify!($type)),
                }
            }
        }

        impl $crate::codec::Uper for $type {
            fn put(&self, w: &mut ::per::Writer) -> Result<(), $crate::EncodeError> {
                Ok(w.enumerated(self.0.into(), $root, false)?)
            }

            fn get(r: &mut ::per::Reader<'_>) -> Result<Self, $crate::DecodeError> {
                let index = r.enumerated($root, false)?;
                if index < Self::VALUES.len() $( + { let _ = Self::$infinity; 1 } )? {
                    Ok(Self(index as u8))
                } else {
                    Err($crate::DecodeError::NotSupported(concat!("spare value of ", stringify!($type))))
                }
            }
        }
    };
}
pub(crate) use quantity;

/// Declares an INTEGER (MIN..MAX).
macro_rules! integer {
    ($(#[$meta:meta])* pub struct $type:ident($repr:ty) in $min:literal..=$max:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type($repr);

        impl $type {
            /// The value, if the standard allows it.
            #[allow(unused_comparisons, reason = "some begin at the type's own least value, some end at its greatest")]
            #[allow(clippy::absurd_extreme_comparisons, clippy::manual_range_contains, reason = "as above; const")]
            pub const fn new(value: $repr) -> Option<Self> {
                if $min <= value && value <= $max { Some(Self(value)) } else { None }
            }

            /// The number.
            pub const fn value(self) -> $repr {
                self.0
            }
        }

        impl $crate::codec::Uper for $type {
            fn put(&self, w: &mut ::per::Writer) -> Result<(), $crate::EncodeError> {
                Ok(w.integer(self.0.into(), ::per::Range::new($min, $max))?)
            }

            fn get(r: &mut ::per::Reader<'_>) -> Result<Self, $crate::DecodeError> {
                // The range makes the value fit.
                Ok(Self(r.integer(::per::Range::new($min, $max))? as $repr))
            }
        }
    };
}
pub(crate) use integer;
