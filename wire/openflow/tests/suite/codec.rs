//! Vectors, round trips, damaged input, and the errors of the standard.

use crate::common::{messages, neighbour, steer, user};
use openflow::*;
use proptest::prelude::*;

fn octets(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// A flow-mod with this match (without its header) and these instructions.
fn flow_mod(fields: &str, instructions: &str) -> Vec<u8> {
    let (fields, instructions) = (octets(fields), octets(instructions));
    let mut octets = FlowMod::add(TableId(0), 1, Match::default(), Instructions::default());
    octets.cookie = 1;
    let mut octets = Message::from(octets).encode(1).unwrap();
    octets.truncate(48);
    octets.extend([0, 1]);
    octets.extend((fields.len() as u16 + 4).to_be_bytes());
    octets.extend(&fields);
    octets.resize(octets.len().next_multiple_of(8), 0);
    octets.extend(instructions);
    let length = octets.len() as u16;
    octets[2..4].copy_from_slice(&length.to_be_bytes());
    octets
}

#[test]
fn round_trips() {
    for message in messages() {
        let octets = message.encode(0x0102_0304).unwrap();
        assert_eq!(Message::decode(&octets), Ok((0x0102_0304, message)));
    }
}

#[test]
fn octets_of_open_vswitch() {
    // `tun_gtpu_flags=0x34`, exact, as Open vSwitch 3.1 writes it: with a mask of ones, which is none.
    let masked = flow_mod("ffff1f06 00002320 34ff", "");
    let exact = flow_mod("ffff1e05 00002320 34", "");
    let (_, Message::FlowMod(read)) = Message::decode(&masked).unwrap() else { panic!() };
    assert_eq!(read.matching.tun_gtpu_flags(), Some(0x34));
    assert_eq!(Message::from(read).encode(1).unwrap(), exact);
    // The key of a tunnel by its number of Open vSwitch's own.
    let (_, Message::FlowMod(read)) = Message::decode(&flow_mod("00012008 0000000000000005", "")).unwrap()
    else {
        panic!()
    };
    assert_eq!(read.matching.tunnel_id(), Some(5));
    // A flow of Open vSwitch 3.1 with actions of its own, in a reply: they are kept.
    let reply = octets(
        "0413009000000002 0001000000000000 00800000 00000000 1082af40 0002 0000 0000 0000 00000000 0000000000000000
         0000000000000000 0000000000000000 0001001e 80000004 00000003 80000a02 0800 80001708 01000000 ff000000 0000
         00040028 00000000 ffff0018 00002320 00070001 80000408 0000000000000001 00180008 00000000 0001000804000000",
    );
    let (_, Message::MultipartReply(Multipart { body: Reply::Flow(flows), .. })) =
        Message::decode(&reply).unwrap()
    else {
        panic!()
    };
    let actions = flows[0].instructions.apply_actions.as_ref().unwrap();
    assert!(matches!(&actions[..], [Action::Unknown(unknown), Action::DecNwTtl] if unknown.kind() == 0xffff));
    assert_eq!(
        Message::from(Multipart::<Reply> { more: false, body: Reply::Flow(flows) }).encode(2).unwrap()[..8],
        reply[..8]
    );
}

#[test]
fn truncated_or_lengthened_nothing_is_accepted_nor_panics() {
    for message in messages() {
        let whole = message.encode(1).unwrap();
        for length in 0..whole.len() {
            assert!(Message::decode(&whole[..length]).is_err(), "{} at {length}", message.name());
            // With a length that says so, fewer items of a list are a whole message. What is read can be written.
            let mut short = whole[..length].to_vec();
            if let Some(field) = short.get_mut(2..4) {
                field.copy_from_slice(&(length as u16).to_be_bytes());
            }
            again(&short);
        }
    }
}

/// What was decoded can be encoded, and is the same again.
fn again(octets: &[u8]) {
    match Message::decode(octets) {
        Ok((xid, message)) => {
            let octets = message.encode(xid).unwrap();
            assert_eq!(Message::decode(&octets), Ok((xid, message)), "{octets:02x?}");
        }
        Err(error) => {
            if let Some(reply) = error.reply(octets) {
                Message::decode(&reply.encode(error.xid).unwrap()).unwrap();
            }
        }
    }
}

#[test]
fn flipped_bits() {
    for message in messages() {
        let whole = message.encode(1).unwrap();
        for bit in 0..whole.len().min(400) * 8 {
            let mut octets = whole.clone();
            octets[bit / 8] ^= 1 << (bit % 8);
            again(&octets);
        }
    }
}

proptest! {
    #[test]
    fn any_octets(kind in 0_u8..30, body in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut octets = vec![VERSION, kind, 0, body.len() as u8 + 8, 0, 0, 0, 1];
        octets.extend(body);
        again(&octets);
    }

    #[test]
    fn fields_with_any_bits(index in 0..Field::ALL.len(), value: u128, mask: u128) {
        let field = Field::ALL[index];
        let mask = if field.is_maskable() { mask & field.all_bits() } else { field.all_bits() };
        let oxm = Oxm::new(field, value & mask, mask).unwrap();
        let mut stats = FlowRemoved {
            cookie: 0, priority: 0, reason: FlowRemovedReason::Delete, table_id: TableId(0),
            duration: Duration::default(), idle_timeout_s: 0, hard_timeout_s: 0, packet_count: 0, byte_count: 0,
            matching: Match::default(),
        };
        if let Ok(matching) = Match::new([oxm]) {
            stats.matching = matching;
        }
        let octets = Message::from(stats.clone()).encode(1).unwrap();
        prop_assert_eq!(Message::decode(&octets), Ok((1, stats.into())));
    }
}

#[test]
fn errors_of_the_standard() {
    let error = |octets: &[u8]| Message::decode(octets).unwrap_err().code;
    let in_match = |fields: &str| error(&flow_mod(fields, ""));
    let in_instructions = |instructions: &str| error(&flow_mod("", instructions));
    let in_actions = |actions: &str| {
        let length = octets(actions).len() + 8;
        in_instructions(&format!("0004{length:04x}00000000{actions}"))
    };
    let ipv4 = "80000a02 0800";
    assert_eq!(in_match("80001401 11"), Code::OFPBMC_BAD_PREREQ, "ip_proto without eth_type");
    assert_eq!(in_match(&format!("{ipv4} {ipv4}")), Code::OFPBMC_DUP_FIELD);
    assert_eq!(in_match("80000a03 080000"), Code::OFPBMC_BAD_LEN);
    assert_eq!(in_match("80000a02 08"), Code::OFPBMC_BAD_LEN);
    assert_eq!(in_match(&format!("{ipv4} 80001001 40")), Code::OFPBMC_BAD_VALUE, "a DSCP of seven bits");
    assert_eq!(in_match("80000b04 0800ffff"), Code::OFPBMC_BAD_MASK, "eth_type has no masks");
    assert_eq!(in_match("00014108 0a000001ffffff00"), Code::OFPBMC_BAD_WILDCARDS);
    assert_eq!(in_match("80007e01 00"), Code::OFPBMC_BAD_FIELD);
    assert_eq!(in_match("ffff1e05 00000001 34"), Code::OFPBMC_BAD_FIELD, "of another experimenter");
    let mut standard_match = flow_mod("", "");
    standard_match[49] = 0;
    assert_eq!(error(&standard_match), Code::OFPBMC_BAD_TYPE);

    assert_eq!(in_instructions("0001000803000000 0001000803000000"), Code::OFPBIC_DUP_INST);
    assert_eq!(in_instructions("0006000800000001"), Code::OFPBIC_UNSUP_INST, "meter");
    assert_eq!(in_instructions("0007000800000001"), Code::OFPBIC_UNKNOWN_INST);
    assert_eq!(in_instructions("ffff000800000001"), Code::OFPBIC_BAD_EXPERIMENTER);
    assert_eq!(in_instructions("0001000703000000"), Code::OFPBIC_BAD_LEN);

    assert_eq!(in_actions("0000001000000000ffff000000000000"), Code::OFPBAC_BAD_OUT_PORT, "port 0");
    assert_eq!(in_actions("00000010ffffffffffff000000000000"), Code::OFPBAC_BAD_OUT_PORT, "OFPP_ANY");
    assert_eq!(in_actions("0000000800000001"), Code::OFPBAC_BAD_LEN);
    assert_eq!(in_actions("0063000800000001"), Code::OFPBAC_BAD_TYPE);
    assert_eq!(in_actions("ffff000800002320"), Code::OFPBAC_BAD_EXPERIMENTER);
    assert_eq!(in_actions("0019001080007e01 0000000000000000"), Code::OFPBAC_BAD_SET_TYPE);
    assert_eq!(in_actions("0019001080000004 0000000100000000"), Code::OFPBAC_BAD_SET_ARGUMENT, "in_port");
    assert_eq!(
        in_actions("0019001800014108 0a000000ffff0000 0000000000000000"),
        Code::OFPBAC_BAD_SET_ARGUMENT,
        "with mask"
    );
    assert_eq!(in_actions("0019001080001403 0000000000000000"), Code::OFPBAC_BAD_SET_LEN);

    let mut octets = Message::from(steer()).encode(1).unwrap();
    octets[25] = 9;
    assert_eq!(error(&octets), Code::OFPFMFC_BAD_COMMAND);
    octets[0] = 5;
    assert_eq!(error(&octets), Code::OFPBRC_BAD_VERSION);
    assert_eq!(error(&[4, 16, 0, 8, 0, 0, 0, 1]), Code::OFPBRC_BAD_TYPE);
    assert_eq!(error(&[4, 18, 0, 16, 0, 0, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0]), Code::OFPBRC_BAD_MULTIPART);
    assert_eq!(
        error(&[4, 4, 0, 16, 0, 0, 0, 1, 0, 0, 0x23, 0x20, 0, 0, 0, 1]),
        Code::OFPBRC_BAD_EXPERIMENTER
    );
    assert_eq!(error(&[4, 5, 0, 9, 0, 0, 0, 1, 0]), Code::OFPBRC_BAD_LEN);
}

#[test]
fn answers_to_errors() {
    let mut octets = Message::from(steer()).encode(77).unwrap();
    octets[25] = 9;
    let error = Message::decode(&octets).unwrap_err();
    let Some(Message::Error(reply)) = error.reply(&octets) else { panic!() };
    assert_eq!(
        (error.xid, reply.code, &reply.data[..]),
        (77, Code::OFPFMFC_BAD_COMMAND, &octets[..ERROR_DATA])
    );
    // An error is not answered with an error.
    let error = Message::decode(&[4, 1, 0, 10, 0, 0, 0, 1, 0, 0]).unwrap_err();
    assert_eq!(error.reply(&[4, 1, 0, 10]), None);
}

#[test]
fn bundles_refuse_what_cannot_be_in_them() {
    let add = BundleAdd { bundle_id: 1, flags: BundleFlags::ATOMIC, change: Change::FlowMod(steer()) };
    let octets = Message::from(add).encode(9).unwrap();
    let error = |at: usize, value: u8| {
        let mut octets = octets.clone();
        octets[at] = value;
        Message::decode(&octets).unwrap_err().code
    };
    assert_eq!(error(25, 20), Code::OFPBFC_MSG_UNSUP, "a barrier");
    assert_eq!(error(31, 8), Code::OFPBFC_MSG_BAD_XID);
    assert_eq!(error(26, 200), Code::OFPBFC_MSG_BAD_LEN);
    assert_eq!(error(22, 1), Code::OFPBFC_BAD_FLAGS);
    assert_eq!(error(49, 9), Code::OFPFMFC_BAD_COMMAND, "the error of the message inside");
}

#[test]
fn versions() {
    let compatible = |version, bitmap| Hello { version, bitmap }.is_compatible();
    assert!(compatible(4, None) && compatible(6, None) && compatible(6, Some(0x7e)) && !compatible(1, None));
    assert!(!compatible(5, Some(1 << 5)));
    // Elements of versions to come are skipped, and so is missing padding.
    let hello = octets("060000180000000100020006 aaaa 0000 0001000800000012");
    assert_eq!(Message::decode(&hello), Ok((1, Hello { version: 6, bitmap: Some(0x12) }.into())));
}

#[test]
fn matches_that_include_others() {
    let subnet = Match::new([Oxm::tun_ipv4_dst([10, 0, 0, 0].into()).prefix(16).unwrap()]).unwrap();
    assert!(Match::default().includes(&user()) && subnet.includes(&user()) && user().includes(&user()));
    assert!(!user().includes(&subnet) && !subnet.includes(&neighbour()));
    assert!(
        user().allows(Field::UdpSrc) && !user().allows(Field::TcpSrc) && neighbour().allows(Field::Ipv6NdSll)
    );
}

#[test]
fn groups_as_their_types_want_them() {
    let bucket = Bucket::new([Action::output(PortNo(1))]);
    let check = |group_type, buckets: &[&Bucket]| {
        let buckets = buckets.iter().map(|bucket| (*bucket).clone()).collect();
        GroupMod { command: GroupModCommand::Add, group_type, group_id: GroupId(1), buckets }.check()
    };
    assert_eq!(check(GroupType::Indirect, &[&bucket]), Ok(()));
    assert_eq!(check(GroupType::Indirect, &[&bucket, &bucket]), Err(Code::OFPGMFC_INVALID_GROUP));
    assert_eq!(check(GroupType::FastFailover, &[&bucket]), Err(Code::OFPGMFC_BAD_WATCH));
    let weighted = Bucket { weight: Weight(1), ..bucket };
    assert_eq!(check(GroupType::All, &[&weighted]), Err(Code::OFPGMFC_INVALID_GROUP));
}

#[test]
fn long_replies_come_in_parts() {
    let Some(Message::MultipartReply(Multipart { body: Reply::Flow(flows), .. })) = messages()
        .into_iter()
        .find(|message| matches!(message, Message::MultipartReply(Multipart { body: Reply::Flow(_), .. })))
    else {
        panic!()
    };
    let flows: Vec<FlowStats> = std::iter::repeat_n(flows[0].clone(), 1_000).collect();
    let parts = Reply::Flow(flows).into_parts();
    assert!(parts.len() > 1);
    let mut count = 0;
    for (at, part) in parts.iter().enumerate() {
        assert_eq!(part.more, at + 1 < parts.len());
        let Reply::Flow(flows) = &part.body else { panic!() };
        count += flows.len();
        Message::from(part.clone()).encode(1).unwrap();
    }
    assert_eq!(count, 1_000);
    assert_eq!(Reply::Flow(Vec::new()).into_parts().len(), 1);
}

#[test]
fn a_message_that_is_too_long() {
    let message = Message::EchoRequest(vec![0; MAX_MESSAGE]);
    let mut out = vec![1];
    assert_eq!(message.encode_into(1, &mut out), Err(EncodeError::TooLong(MAX_MESSAGE + HEADER_LEN)));
    assert_eq!(out, [1]);
}

#[test]
fn a_stream_is_cut_into_messages() {
    let messages = messages();
    let mut stream = Vec::new();
    messages.iter().for_each(|message| message.encode_into(1, &mut stream).unwrap());
    for step in [1, 7, 1_000, stream.len()] {
        let (mut framer, mut read) = (Framer::default(), Vec::new());
        for received in stream.chunks(step) {
            framer.push(received);
            while let Some(octets) = framer.next_message().unwrap() {
                read.push(Message::decode(octets).unwrap().1);
            }
        }
        assert_eq!((read, framer.pending()), (messages.clone(), 0));
    }
    // A length that cannot be is seen before the message is collected.
    for length in [7, 1_001] {
        let mut framer = Framer::new(1_000);
        let [l0, l1] = u16::to_be_bytes(length);
        framer.push(&[4, 2, l0, l1, 0, 0, 0, 0]);
        assert_eq!(framer.next_message(), Err(FrameError { length: length.into(), most: 1_000 }));
    }
}
