//! Multiparts that come in several messages.

use crate::common;
use openflow::multipart::Of;
use openflow::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits { transactions: 2, parts: 4, octets: 1_000 };

fn tables(ids: impl IntoIterator<Item = u8>) -> Vec<TableFeatures> {
    let table = |id| TableFeatures {
        table_id: TableId(id),
        name: Text::new("table"),
        metadata_match: 0,
        metadata_write: 0,
        config: TableConfig::default(),
        max_entries: 1,
        properties: Vec::new(),
    };
    ids.into_iter().map(table).collect()
}

fn part(ids: impl IntoIterator<Item = u8>, more: bool) -> Multipart<Request> {
    Multipart { more, body: Request::TableFeatures(tables(ids)) }
}

fn ports(numbers: std::ops::Range<u32>) -> Reply {
    let common = common::messages();
    let port = common.iter().find_map(|message| match message {
        Message::MultipartReply(Multipart { body: Reply::PortDesc(ports), .. }) => ports.first(),
        _ => None,
    });
    let port = port.unwrap();
    Reply::PortDesc(numbers.map(|number| Port { port_no: PortNo(number), ..port.clone() }).collect())
}

/// What a controller sends in parts arrives whole at a switch, and the other way, through octets and a framer.
#[test]
fn both_sides_join_what_the_other_has_cut() {
    // With lists of every field 254 tables need several messages.
    let fields = FeatureList::Match(Field::ALL.iter().map(|field| field.id()).collect());
    let properties = vec![TableProperty { is_miss: false, list: fields }; 6];
    let wide =
        tables(0..254).into_iter().map(|table| TableFeatures { properties: properties.clone(), ..table });
    let wide = Request::TableFeatures(wide.collect());
    let parts = wide.clone().into_parts();
    assert!(parts.len() > 3, "{}", parts.len());
    let reply = ports(1..4_000);
    let replies = reply.clone().into_parts();
    assert!(replies.len() > 3);

    let mut requests = Joiner::<Request>::new(Limits::REQUESTS);
    let mut answers = Joiner::<Reply>::new(Limits::REPLIES);
    let mut stream = Vec::new();
    parts.into_iter().for_each(|part| Message::from(part).encode_into(7, &mut stream).unwrap());
    replies.into_iter().for_each(|part| Message::from(part).encode_into(8, &mut stream).unwrap());
    let mut framer = Framer::default();
    framer.push(&stream);
    let (mut request, mut answer) = (None, None);
    while let Some(octets) = framer.next_message().unwrap() {
        match Message::decode(octets).unwrap() {
            (7, Message::MultipartRequest(part)) => {
                assert_eq!(request, None);
                request = requests.push(7, part, octets.len()).unwrap();
            }
            (8, Message::MultipartReply(part)) => answer = answers.push(8, part, octets.len()).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((request, answer), (Some(wide), Some(reply)));
    assert_eq!((requests.pending(), answers.pending()), (0, 0));
}

#[test]
fn transactions_may_be_interleaved_with_each_other_and_with_whole_ones() {
    let mut joiner = Joiner::new(LIMITS);
    assert_eq!(joiner.push(1, part([1], true), 80), Ok(None));
    assert_eq!(joiner.push(2, part([9], true), 80), Ok(None));
    assert_eq!(joiner.push(3, Request::Desc(()).into(), 16), Ok(Some(Request::Desc(()))));
    // An empty part is none the less one.
    assert_eq!(joiner.push(1, part([], true), 16), Ok(None));
    assert_eq!(joiner.pending(), 176);
    assert_eq!(joiner.push(1, part([2, 3], false), 144), Ok(Some(part([1, 2, 3], false).body)));
    assert_eq!(joiner.push(2, part([], false), 16), Ok(Some(part([9], false).body)));
    assert_eq!(joiner.pending(), 0);
    // A transaction's number may be used again.
    assert_eq!(joiner.push(1, part([4], false), 80), Ok(Some(part([4], false).body)));
}

/// The last part of a refused request must not look like a whole one: it would change tables.
#[test]
fn after_a_refusal_the_rest_of_the_request_is_ignored() {
    let overflow = Some(Code::OFPBRC_MULTIPART_BUFFER_OVERFLOW);
    let mut joiner = Joiner::new(LIMITS);
    for _ in 0..2 {
        (0..4).for_each(|id| assert_eq!(joiner.push(1, part([id], true), 80), Ok(None)));
        let refused = joiner.push(1, part([4], true), 80).unwrap_err();
        assert_eq!((refused, refused.code(), refused.is_fatal()), (JoinError::Overflow, overflow, false));
        assert_eq!(joiner.pending(), 0);
        let rest = joiner.push(1, part([5], true), 80).unwrap_err();
        assert_eq!((rest, rest.code()), (JoinError::AlreadyRefused, None));
        assert_eq!(joiner.push(1, part([6], false), 80), Err(JoinError::AlreadyRefused));
        // Then the number is free.
        assert_eq!(joiner.push(1, part([7], false), 80), Ok(Some(part([7], false).body)));
    }
    // Too long by its last part: nothing is left of it.
    (0..4).for_each(|id| assert_eq!(joiner.push(1, part([id], true), 80), Ok(None)));
    assert_eq!(joiner.push(1, part([4], false), 80), Err(JoinError::Overflow));
    assert_eq!(joiner.push(1, part([7], false), 80), Ok(Some(part([7], false).body)));
}

#[test]
fn octets_are_counted_over_all_transactions() {
    let mut joiner = Joiner::new(LIMITS);
    assert_eq!(joiner.push(1, part([1], true), 600), Ok(None));
    assert_eq!(joiner.push(2, part([1], true), 401), Err(JoinError::Overflow));
    assert_eq!(joiner.push(3, part([1], true), 400), Ok(None));
    assert_eq!(joiner.push(1, part([2], false), 1), Err(JoinError::Overflow));
    assert_eq!(joiner.pending(), 400);
    assert_eq!(joiner.push(3, part([2], false), 600), Ok(Some(part([1, 2], false).body)));
}

#[test]
fn too_many_transactions_are_refused_and_in_the_end_the_connection() {
    let overflow = Some(Code::OFPBRC_MULTIPART_BUFFER_OVERFLOW);
    let mut joiner = Joiner::new(LIMITS);
    for xid in 1..=2 {
        assert_eq!(joiner.push(xid, part([1], true), 80), Ok(None));
    }
    for xid in 3..=4 {
        let error = joiner.push(xid, part([1], true), 80).unwrap_err();
        assert_eq!((error, error.code(), error.is_fatal()), (JoinError::TooMany, overflow, false));
    }
    let error = joiner.push(5, part([1], true), 80).unwrap_err();
    assert_eq!((error, error.code(), error.is_fatal()), (JoinError::OutOfStep, overflow, true));
    // Those that were begun can end, and those that were given up make room.
    assert_eq!(joiner.push(1, part([2], false), 80), Ok(Some(part([1, 2], false).body)));
    joiner.forget(2);
    joiner.forget(3);
    assert_eq!(joiner.pending(), 0);
    assert_eq!(joiner.push(2, part([1], true), 80), Ok(None));
    assert_eq!(joiner.push(3, part([1], false), 80), Ok(Some(part([1], false).body)));
}

#[test]
fn only_lists_of_one_type_are_joined() {
    let bad = Some(Code::OFPBRC_BAD_MULTIPART);
    let mut requests = Joiner::new(LIMITS);
    let no_list = [
        Request::Desc(()),
        Request::Flow(FlowStatsRequest::all(TableId(1))),
        Request::PortStats(Of(PortNo::ANY)),
    ];
    for (xid, body) in (1..).zip(no_list) {
        let error = requests.push(xid, Multipart { more: true, body: body.clone() }, 56).unwrap_err();
        assert_eq!((error, error.code()), (JoinError::NoList, bad));
        assert_eq!(requests.push(xid, Multipart { more: false, body }, 56), Err(JoinError::AlreadyRefused));
    }
    assert_eq!(requests.push(9, part([1], true), 80), Ok(None));
    let error = requests.push(9, Request::GroupDesc(()).into(), 16).unwrap_err();
    assert_eq!((error, error.code()), (JoinError::Mixed, bad));

    let mut replies = Joiner::new(LIMITS);
    assert_eq!(replies.push(1, Multipart { more: true, body: ports(1..2) }, 80), Ok(None));
    let other = Multipart { more: true, body: Reply::Flow(Vec::new()) };
    assert_eq!(replies.push(1, other, 16), Err(JoinError::Mixed));
    assert_eq!(replies.pending(), 0);
}

proptest! {
    /// Against a model without limits: what is joined is what was sent, in order, and the limits hold at any time.
    #[test]
    fn any_order_of_parts(parts in prop::collection::vec((0_u32..6, any::<u8>(), any::<bool>(), 0_usize..400, any::<bool>()), 0..60)) {
        let mut joiner = Joiner::new(LIMITS);
        let mut sent: std::collections::HashMap<u32, (usize, Vec<u8>, bool)> = Default::default();
        for (xid, id, more, octets, is_list) in parts {
            let body = if is_list { Request::TableFeatures(tables([id])) } else { Request::Desc(()) };
            let model = sent.entry(xid).or_insert((0, Vec::new(), true));
            model.0 += 1;
            model.1.push(id);
            model.2 &= is_list || (!more && model.0 == 1);
            let (count, ids, is_good) = model.clone();
            if !more {
                sent.remove(&xid);
            }
            match joiner.push(xid, Multipart { more, body }, octets) {
                Ok(None) => prop_assert!(more && is_good && count <= LIMITS.parts),
                Ok(Some(Request::TableFeatures(list))) => {
                    prop_assert!(!more && is_good && count <= LIMITS.parts.max(1));
                    prop_assert_eq!(list, tables(ids));
                }
                Ok(Some(_)) => prop_assert!(count == 1 && !is_list),
                // Then the connection ends.
                Err(error) if error.is_fatal() => break,
                Err(_) => {}
            }
            prop_assert!(joiner.pending() <= LIMITS.octets);
        }
    }
}
