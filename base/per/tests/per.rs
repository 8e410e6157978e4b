//! Vectors of an independent encoder (vectors/generate.py), random values both ways, and octets that are no encoding.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fmt::Debug;

use per::{BitString, DecodeError, EncodeError, ErrorKind, Range, Reader, Size, Variant, Writer};
use proptest::prelude::*;

const VARIANTS: [Variant; 2] = [Variant::Aligned, Variant::Unaligned];

/// A value with its type.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Integer(i64, Range),
    Enumerated(usize, usize, bool),
    Bits(BitString, Size),
    FixedBits(u64, u32),
    Octets(Vec<u8>, Size),
    Text(String, Size),
    List(Vec<i64>, Size, Range),
    Open(Vec<Value>),
    Sequence(Vec<Option<Value>>, Vec<Option<Value>>),
    Choice(usize, usize, bool, Box<Value>),
    Null,
}
use Value::*;

fn write(writer: &mut Writer, value: &Value) -> Result<(), EncodeError> {
    match value {
        Integer(value, range) => writer.integer(*value, *range),
        Enumerated(index, root, extensible) => writer.enumerated(*index, *root, *extensible),
        Bits(bits, size) => writer.bit_string(bits, *size),
        FixedBits(value, count) => writer.fixed_bits(*value, *count),
        Octets(octets, size) => writer.octet_string(octets, *size),
        Text(text, size) => writer.visible_string(text, *size, |_| true),
        List(items, size, range) => writer.list(items, *size, |writer, item| writer.integer(*item, *range)),
        Open(values) => writer.open(|inner| values.iter().try_for_each(|value| write(inner, value))),
        Sequence(members, additions) => {
            let present = |values: &[Option<Value>]| values.iter().map(Option::is_some).collect::<Vec<_>>();
            writer.preamble(Some(!additions.is_empty()), &present(members));
            members.iter().flatten().try_for_each(|member| write(writer, member))?;
            if !additions.is_empty() {
                writer.additions(&present(additions))?;
            }
            additions.iter().flatten().try_for_each(|value| writer.open(|inner| write(inner, value)))
        }
        Choice(index, root, extensible, value) => {
            writer.choice(*index, *root, *extensible)?;
            if index < root { write(writer, value) } else { writer.open(|inner| write(inner, value)) }
        }
        Null => Ok(()),
    }
}

/// Reads a value of the type of `like`.
fn read(reader: &mut Reader<'_>, like: &Value) -> Result<Value, DecodeError> {
    Ok(match like {
        Integer(_, range) => Integer(reader.integer(*range)?, *range),
        Enumerated(_, root, extensible) => {
            Enumerated(reader.enumerated(*root, *extensible)?, *root, *extensible)
        }
        Bits(_, size) => Bits(reader.bit_string(*size)?, *size),
        FixedBits(_, count) => FixedBits(reader.fixed_bits(*count)?, *count),
        Octets(_, size) => Octets(reader.octet_string(*size)?, *size),
        Text(_, size) => Text(reader.visible_string(*size, |_| true)?, *size),
        List(_, size, range) => List(reader.list(*size, |reader| reader.integer(*range))?, *size, *range),
        Open(values) => Open(reader.open(|inner| {
            let values = values.iter().map(|value| read(inner, value)).collect::<Result<_, _>>()?;
            inner.clone().finish()?;
            Ok::<_, DecodeError>(values)
        })?),
        Sequence(members, additions) => {
            let preamble = reader.preamble(true, members.len() as u32)?;
            let mut found = Vec::new();
            for (index, member) in members.iter().enumerate() {
                found.push(match member {
                    // What is absent here has no type to read: the octets were changed.
                    None if preamble.present(index as u32) => {
                        return Err(reader.error(ErrorKind::Value("not there")));
                    }
                    Some(member) if preamble.present(index as u32) => Some(read(reader, member)?),
                    _ => None,
                });
            }
            let mut extra = vec![None; additions.len()];
            reader.additions(&preamble, |index, inner| {
                if let Some(Some(like)) = additions.get(index) {
                    extra[index] = Some(read(inner, like)?);
                }
                Ok::<_, DecodeError>(())
            })?;
            Sequence(found, extra)
        }
        Choice(_, root, extensible, like) => {
            let index = reader.choice(*root, *extensible)?;
            let value =
                if index < *root { read(reader, like)? } else { reader.open(|inner| read(inner, like))? };
            Choice(index, *root, *extensible, Box::new(value))
        }
        Null => Null,
    })
}

/// The encoding of a value behind a BOOLEAN.
fn encode(variant: Variant, value: &Value) -> Result<Vec<u8>, EncodeError> {
    let mut writer = Writer::new(variant);
    writer.bit(true);
    write(&mut writer, value)?;
    Ok(writer.finish())
}

fn decode(variant: Variant, octets: &[u8], like: &Value) -> Result<Value, DecodeError> {
    let mut reader = Reader::new(variant, octets);
    reader.bit()?;
    let value = read(&mut reader, like)?;
    reader.finish()?;
    Ok(value)
}

fn bits(value: u64, count: usize) -> BitString {
    BitString::new((value << (64 - count)).to_be_bytes().to_vec(), count).unwrap()
}

/// The values of vectors/generate.py, written a second time.
fn cases() -> Vec<(&'static str, Value)> {
    let int = |value, lower, upper| Integer(value, Range::new(lower, upper));
    let list = |size| List(vec![1, 2, 3], size, Range::new(0, 15));
    let three = || vec![0x81, 0x82, 0x83];
    vec![
        ("int-span-1", int(5, 5, 5)),
        ("int-span-100", int(77, 3, 102)),
        ("int-span-255", int(254, 0, 254)),
        ("int-span-256", int(200, 0, 255)),
        ("int-span-257", int(256, 0, 256)),
        ("int-span-64k", int(4660, 0, 65_535)),
        ("int-span-64k-1", int(65_536, 0, 65_536)),
        ("int-32-small", int(7, 0, 0xffff_ffff)),
        ("int-32-large", int(0xffff_ffff, 0, 0xffff_ffff)),
        ("int-40", int(78_187_493_530, 0, (1 << 40) - 1)),
        ("int-negative", int(-100, -156, -31)),
        ("int-rate", Integer(2_500_000_000, Range::new(0, 4_000_000_000_000).extensible())),
        ("int-extended", Integer(256, Range::new(0, 255).extensible())),
        ("int-extended-negative", Integer(-129, Range::new(0, 255).extensible())),
        ("int-at-least", Integer(4096, Range::at_least(-1))),
        ("int-any", Integer(-32_769, Range::ANY)),
        ("int-any-128", Integer(128, Range::ANY)),
        ("int-any-zero", Integer(0, Range::ANY)),
        ("enum", Enumerated(2, 3, false)),
        ("enum-one", Enumerated(0, 1, false)),
        ("enum-root", Enumerated(1, 3, true)),
        ("enum-addition", Enumerated(3, 2, true)),
        ("enum-addition-64", Enumerated(70, 1, true)),
        ("bits-10", FixedBits(0x2a5, 10)),
        ("bits-16", Bits(bits(0xa55a, 16), Size::fixed(16))),
        ("bits-36", FixedBits(0x1_2345_6789, 36)),
        ("bits-36", Bits(bits(0x1_2345_6789, 36), Size::fixed(36))),
        ("bits-address", Bits(bits(0x0a01_0203, 32), Size::new(1, 160).extensible())),
        ("bits-any", Bits(bits(0x1a5, 9), Size::ANY)),
        ("bits-outside", Bits(bits(0x1f, 5), Size::new(1, 4).extensible())),
        ("octets-1", Octets(vec![0x81], Size::fixed(1))),
        ("octets-2", Octets(vec![0x81, 0x82], Size::fixed(2))),
        ("octets-3", Octets(three(), Size::fixed(3))),
        ("octets-range", Octets(three(), Size::new(1, 8))),
        ("octets-range-empty", Octets(Vec::new(), Size::new(0, 8))),
        ("octets-any", Octets(three(), Size::ANY)),
        ("octets-any-empty", Octets(Vec::new(), Size::ANY)),
        ("octets-200", Octets(vec![0; 200], Size::ANY)),
        ("octets-16383", Octets(vec![0; 16_383], Size::ANY)),
        ("octets-16384", Octets(vec![0; 16_384], Size::ANY)),
        ("octets-100000", Octets(vec![0; 100_000], Size::ANY)),
        ("printable", Text("godwit du 1".into(), Size::new(1, 150).extensible())),
        ("printable-1", Text("g".into(), Size::fixed(1))),
        ("visible-2", Text("ab".into(), Size::fixed(2))),
        ("visible-3", Text("abc".into(), Size::fixed(3))),
        ("list", list(Size::new(1, 64))),
        ("list-256", list(Size::new(1, 256))),
        ("list-any", list(Size::ANY)),
        ("sequence", Sequence(vec![None, Some(int(5, 0, 7))], vec![])),
        (
            "sequence-extended",
            Sequence(vec![Some(int(5, 0, 7))], vec![None, Some(Octets(vec![0x81], Size::ANY)), Some(Null)]),
        ),
        ("choice", Choice(1, 3, true, Box::new(int(9, 0, 255)))),
        ("choice-addition", Choice(1, 1, true, Box::new(int(9, 0, 255)))),
    ]
}

#[test]
fn an_independent_encoder_agrees() {
    let vectors: Vec<Vec<&str>> = include_str!("vectors/vectors.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('\t').collect())
        .collect();
    let mut seen = Vec::new();
    for (name, value) in cases() {
        let line = vectors.iter().find(|line| line[0] == name).unwrap_or_else(|| panic!("no vector {name}"));
        for (variant, expected) in VARIANTS.into_iter().zip(&line[1..]) {
            let octets = encode(variant, &value).unwrap();
            let hex: String = octets.iter().map(|octet| format!("{octet:02x}")).collect();
            assert_eq!(hex.replace(&"00".repeat(1000), "."), *expected, "{name} {variant:?}");
            assert_eq!(decode(variant, &octets, &value).unwrap(), value, "{name} {variant:?}");
        }
        seen.push(name);
    }
    for line in &vectors {
        assert!(seen.contains(&line[0]), "no case for vector {}", line[0]);
    }
}

#[test]
fn truncated_and_changed_octets_are_errors_or_other_values() {
    for (name, value) in cases() {
        for variant in VARIANTS {
            let octets = encode(variant, &value).unwrap();
            for len in 0..octets.len().min(300) {
                let error = decode(variant, &octets[..len], &value).unwrap_err();
                assert_eq!(error.kind, ErrorKind::Truncated, "{name} {variant:?} at {len}");
                assert!(error.bit <= len * 8);
            }
            for bit in 0..(octets.len() * 8).min(300) {
                let mut changed = octets.clone();
                changed[bit / 8] ^= 0x80 >> (bit % 8);
                if let Ok(other) = decode(variant, &changed, &value) {
                    encode(variant, &other).unwrap();
                }
            }
            let longer = [&octets[..], &[0]].concat();
            let error = decode(variant, &longer, &value).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Trailing, "{name} {variant:?}");
        }
    }
}

#[test]
fn values_that_the_type_does_not_have_are_refused() {
    for (value, expected) in [
        (Integer(8, Range::new(0, 7)), EncodeError::Range(8)),
        (Integer(-1, Range::at_least(0)), EncodeError::Range(-1)),
        (Enumerated(3, 3, false), EncodeError::Range(3)),
        (Octets(vec![0; 3], Size::fixed(2)), EncodeError::Size(3)),
        (Octets(vec![], Size::at_least(1)), EncodeError::Size(0)),
        (FixedBits(0x400, 10), EncodeError::Size(11)),
        (Text("é".into(), Size::ANY), EncodeError::Character('é')),
        (List(vec![0; 20_000], Size::ANY, Range::new(0, 0)), EncodeError::Size(20_000)),
        (Open(vec![Integer(8, Range::new(0, 7))]), EncodeError::Range(8)),
    ] {
        for variant in VARIANTS {
            assert_eq!(encode(variant, &value), Err(expected), "{value:?}");
        }
    }
}

#[test]
fn lengths_are_compared_with_what_is_there() {
    // The first fragment of 64K units, and nothing behind it.
    for like in [Octets(vec![], Size::ANY), Bits(BitString::default(), Size::ANY), Open(vec![])] {
        let error = decode(Variant::Aligned, &[0x80, 0xc4], &like).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Truncated, "{like:?}");
    }
    // Fragments of no units would never end.
    let error = decode(Variant::Aligned, &[0x80, 0xc0, 0xc0], &Octets(vec![], Size::ANY)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Size);
    let error = decode(Variant::Aligned, &[0x80, 0xc1], &List(vec![], Size::ANY, Range::ANY)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FragmentedList);
}

#[test]
fn a_reader_skips_additions_it_does_not_know() {
    let old = Sequence(vec![Some(Integer(1, Range::new(0, 7)))], vec![]);
    let mut additions = vec![None; 70];
    additions[3] = Some(Octets(vec![7; 40_000], Size::ANY));
    additions[69] = Some(Null);
    let new = Sequence(vec![Some(Integer(1, Range::new(0, 7)))], additions);
    for variant in VARIANTS {
        assert_eq!(decode(variant, &encode(variant, &new).unwrap(), &old).unwrap(), old);
        assert_eq!(decode(variant, &encode(variant, &new).unwrap(), &new).unwrap(), new);
    }
}

fn ranges() -> impl Strategy<Value = Range> {
    prop_oneof![
        Just(Range::ANY),
        any::<i64>().prop_map(Range::at_least),
        any::<(i64, i64)>().prop_map(|(a, b)| Range::new(a.min(b), a.max(b))),
        (any::<i32>(), any::<u8>())
            .prop_map(|(lower, span)| { Range::new(lower.into(), i64::from(lower) + i64::from(span)) }),
        (any::<i32>(), any::<u32>()).prop_map(|(lower, span)| {
            Range::new(lower.into(), i64::from(lower) + i64::from(span)).extensible()
        }),
    ]
}

fn sizes(len: usize) -> impl Strategy<Value = Size> {
    prop_oneof![
        Just(Size::ANY),
        Just(Size::fixed(len)),
        Just(Size::fixed(len + 1).extensible()),
        (0..=len, 0..300_usize).prop_map(move |(below, above)| Size::new(len - below, len + above)),
        (0..=len, 0..70_000_usize)
            .prop_map(move |(below, above)| Size::new(len - below, len + above).extensible()),
        (0..=len).prop_map(Size::at_least),
    ]
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        (any::<i64>(), ranges()).prop_map(|(value, range)| {
            // A value of the range, if that has bounds.
            let mut writer = Writer::new(Variant::Aligned);
            let value = if writer.integer(value, range).is_ok() { value } else { low(range) };
            Integer(value, range)
        }),
        (0..300_usize, 1..300_usize).prop_map(|(index, root)| Enumerated(index, root, index >= root)),
        prop::collection::vec(any::<u8>(), 0..40)
            .prop_flat_map(|octets| (0..=octets.len() * 8, Just(octets)))
            .prop_flat_map(|(bits, octets)| (sizes(bits), Just(BitString::new(octets, bits).unwrap())))
            .prop_map(|(size, bits)| Bits(bits, size)),
        prop::collection::vec(any::<u8>(), 0..200)
            .prop_flat_map(|octets| (sizes(octets.len()), Just(octets)))
            .prop_map(|(size, octets)| Octets(octets, size)),
        "[ -~]{0,20}"
            .prop_flat_map(|text: String| (sizes(text.len()), Just(text)))
            .prop_map(|(size, text)| Text(text, size)),
        (prop::collection::vec(0..8_i64, 0..20))
            .prop_flat_map(|items| (sizes(items.len()), Just(items)))
            .prop_map(|(size, items)| List(items, size, Range::new(0, 7))),
        (any::<u64>(), 1..=64_u32).prop_map(|(value, count)| FixedBits(value >> (64 - count), count)),
        Just(Null),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        let members = prop::collection::vec(prop::option::of(inner.clone()), 0..5);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Open),
            (members.clone(), members).prop_map(|(members, mut additions)| {
                // Only what is there extends.
                if additions.iter().all(Option::is_none) {
                    additions.clear();
                }
                Sequence(members, additions)
            }),
            (0..6_usize, 1..6_usize, inner).prop_map(|(index, root, value)| Choice(
                index,
                root,
                index >= root,
                Box::new(value)
            )),
        ]
    })
}

/// The lowest value of a range: what reading zeros gives.
fn low(range: Range) -> i64 {
    let zeros = if range == Range::ANY { vec![1, 0] } else { vec![0; 16] };
    Reader::new(Variant::Unaligned, &zeros)
        .integer(range)
        .unwrap_or_else(|_| Reader::new(Variant::Unaligned, &[1, 0]).integer(range).unwrap())
}

proptest! {
    #[test]
    fn values_come_back(value in values()) {
        for variant in VARIANTS {
            let octets = encode(variant, &value).unwrap();
            prop_assert_eq!(&decode(variant, &octets, &value).unwrap(), &value);
            for len in 0..octets.len() {
                prop_assert!(decode(variant, &octets[..len], &value).is_err());
            }
        }
    }

    #[test]
    fn any_octets_are_survived(value in values(), octets in prop::collection::vec(any::<u8>(), 0..64)) {
        for variant in VARIANTS {
            if let Ok(other) = decode(variant, &octets, &value) {
                // What was read can be written, and reads the same.
                if let Ok(again) = encode(variant, &other) {
                    prop_assert_eq!(decode(variant, &again, &value).unwrap(), other);
                }
            }
        }
    }
}
