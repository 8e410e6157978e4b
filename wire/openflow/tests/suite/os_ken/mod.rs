//! os-ken, an independent implementation in Python: it reads what we write, we read what it writes, and its messages are damaged
//! to see that nothing worse than an error comes of it.

mod json;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common;
use openflow::*;
use serde_json::{Value, json};

const XID: u32 = 7;

/// Messages of switches, for which os-ken has parsers but nothing that writes them, and a hello, whose elements it does not write.
const READ_ONLY: [&str; 9] = [
    "OFPHello",
    "OFPSwitchFeatures",
    "OFPGetConfigReply",
    "OFPPacketIn",
    "OFPFlowRemoved",
    "OFPPortStatus",
    "OFPRoleReply",
    "OFPGetAsyncReply",
    "OFPBarrierReply",
];

/// What os-ken answers; `None`: it is not installed.
fn ask(questions: &[Value]) -> Option<Vec<Value>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("../../target/python/bin/python");
    let installed = Command::new(&python).args(["-c", "import os_ken"]).stderr(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "os-ken is missing: scripts/setup.sh test");
        eprintln!("skipped: os-ken is missing; scripts/setup.sh test installs it");
        return None;
    }
    let mut peer = Command::new(python)
        .arg(root.join("tests/suite/os_ken/peer.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = peer.stdin.take().unwrap();
    let lines: String = questions.iter().map(|question| format!("{question}\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = peer.wait_with_output().unwrap();
    assert!(output.status.success(), "os-ken has failed, see above");
    writer.join().unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn octets(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap().as_bytes();
    hex.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The class of an object.
fn class(value: &Value) -> &str {
    value.as_object().and_then(|object| object.keys().next()).unwrap()
}

/// Whether every value of ours is in os-ken's JSON, and no list is longer there. The path to what is not.
fn differs(ours: &Value, theirs: &Value, path: &str) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(fields), Value::Object(other)) => fields.iter().find_map(|(name, value)| {
            differs(value, other.get(name).unwrap_or(&Value::Null), &format!("{path}.{name}"))
        }),
        (Value::Array(list), Value::Array(other)) if list.len() == other.len() => {
            let mut pairs = list.iter().zip(other).enumerate();
            pairs.find_map(|(at, (ours, theirs))| differs(ours, theirs, &format!("{path}[{at}]")))
        }
        // Whether a field has a mask it gives as a number or as a truth value.
        (Value::Bool(ours), Value::Number(_)) if *theirs == u8::from(*ours) => None,
        _ if ours == theirs => None,
        _ => Some(format!("{path}: {ours}, os-ken: {theirs}")),
    }
}

/// With the fields of matches and the instructions in an order of their own, which both sides choose differently.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| {
                let mut value = sorted(value);
                if let (true, Value::Array(list)) =
                    (["oxm_fields", "instructions"].contains(&name.as_str()), &mut value)
                {
                    list.sort_by_cached_key(|item| {
                        format!("{} {}", class(item), item.pointer("/OXMTlv/field").unwrap_or(&Value::Null))
                    });
                }
                (name.clone(), value)
            })
            .collect(),
        Value::Array(list) => list.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

/// os-ken's JSON of the message it has read has the values of ours.
#[test]
fn os_ken_reads_what_we_write() {
    let messages = common::messages();
    let read = |message: &Message| json!({"read": json::hex(&message.encode(XID).unwrap())});
    let Some(answers) = ask(&messages.iter().map(read).collect::<Vec<_>>()) else { return };
    assert_eq!(answers.len(), messages.len());
    let mut counts = BTreeMap::new();
    for (message, answer) in messages.iter().zip(&answers) {
        let ours = json::message(message);
        // It has no parsers for most messages of controllers, nor for what is in a bundle; those it writes itself, below.
        if answer.is_null() || class(answer) == "OFPExperimenter" {
            continue;
        }
        *counts.entry(class(&ours).to_owned()).or_insert(0) += 1;
        if let Some(path) = differs(&ours, answer, "") {
            panic!("{path}\n{message:?}\n{answer}");
        }
    }
    for class in READ_ONLY.iter().chain(&["OFPFlowMod", "OFPErrorMsg", "ONFBundleCtrlMsg"]) {
        assert!(counts.contains_key(*class), "{class}: {counts:?}");
    }
    let replies = counts.keys().filter(|class| class.ends_with("StatsReply")).count();
    assert_eq!(replies, 10, "{counts:?}");
}

/// os-ken's objects, made of the values of our messages, have our octets.
#[test]
fn os_ken_writes_what_we_write() {
    let written = |message: &Message| {
        let json = json::message(message);
        !READ_ONLY.contains(&class(&json)) && !class(&json).ends_with("StatsReply")
    };
    let messages: Vec<Message> = common::messages().into_iter().filter(written).collect();
    let write = |message: &Message| json!({"write": json::message(message), "xid": XID});
    let Some(answers) = ask(&messages.iter().map(write).collect::<Vec<_>>()) else { return };
    assert!(messages.len() > 25 && answers.len() == messages.len());
    for (message, answer) in messages.iter().zip(&answers) {
        assert_eq!(*answer, json::hex(&message.encode(XID).unwrap()), "{message:?}");
        assert_eq!(Message::decode(&octets(answer)), Ok((XID, message.clone())));
    }
}

/// Messages as applications of os-ken make them.
#[test]
fn we_read_what_os_ken_writes() {
    let Some(messages) = ask(&[json!({"own": XID})]) else { return };
    let (mut identical, mut refused) = (0, 0);
    for message in &messages {
        let (name, theirs) = (message["name"].as_str().unwrap(), &message["json"]);
        let octets = octets(&message["octets"]);
        let decoded = match Message::decode(&octets) {
            Ok((XID, decoded)) => decoded,
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error.code.name(), Some(name), "{theirs}");
                refused += 1;
                continue;
            }
        };
        assert!(!name.starts_with("OFPB"), "{decoded:?} has to be refused");
        let ours = json::message(&decoded);
        if let Some(path) = differs(&sorted(&ours), &sorted(theirs), "") {
            panic!("{name}: {path}");
        }
        // A hello of os-ken has no version bitmap, its table features have fields with length 0: both stay as they are.
        if differs(&ours, theirs, "").is_none() {
            assert_eq!(decoded.encode(XID).unwrap(), octets, "{name}");
            identical += 1;
        }
    }
    assert!(
        identical >= 30 && refused >= 18,
        "{identical} are identical, {refused} refused, of {}",
        messages.len()
    );
}

/// What was decoded can be written, and is the same again; what was not has an answer.
fn survives(octets: &[u8]) {
    match Message::decode(octets) {
        Ok((xid, message)) => {
            let again = message.encode(xid).unwrap();
            assert_eq!(Message::decode(&again), Ok((xid, message)), "{octets:02x?}");
        }
        Err(error) => {
            assert!(error.code.name().is_some(), "{error:?}: {octets:02x?}");
            if let Some(reply) = error.reply(octets) {
                Message::decode(&reply.encode(error.xid).unwrap()).unwrap();
            }
        }
    }
}

#[test]
fn damaged_messages_of_os_ken() {
    let Some(messages) = ask(&[json!({"own": XID})]) else { return };
    // The fuzzer begins with them where this test has run.
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/openflow");
    std::fs::create_dir_all(&corpus).unwrap();
    for (number, message) in messages.iter().enumerate() {
        let whole = octets(&message["octets"]);
        std::fs::write(corpus.join(format!("os_ken_{number:03}.bin")), &whole).unwrap();
        for length in 0..whole.len() {
            // As a part of a stream: it waits for the rest, or says that there can be none.
            let mut framer = Framer::default();
            framer.push(&whole[..length]);
            assert_eq!(framer.next_message(), Ok(None), "{message}");
            let error = Message::decode(&whole[..length]).unwrap_err();
            assert!(error.code.name().is_some(), "{error:?}");
            // As a whole message of that length.
            let mut short = whole[..length].to_vec();
            if let Some(field) = short.get_mut(2..4) {
                field.copy_from_slice(&(length as u16).to_be_bytes());
                survives(&short);
            }
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            survives(&flipped);
        }
    }
}
