//! `kill -9` at any time: a sequence number that was used is in the file (CP-7), so no two challenges
//! have the same number.
//!
//! The test starts itself again as the process to be killed; the environment variable [`FILE`] makes
//! the difference.
#![allow(clippy::unwrap_used, clippy::panic, reason = "every line here is test code")]

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
};

use store::{Authentication, KeySource, OnConflict, OperatorCode, Sqlite, Store, Subscriber};
use types::{Key, Supi};

/// Environment variable with the path of the store; set only in the process that is killed.
const FILE: &str = "GODWIT_TEST_KILLED_STORE";

fn supi() -> Supi {
    "999700000000001".parse().unwrap()
}

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path, &KeySource::File(path.with_extension("key"))).unwrap()
}

/// Advances the sequence number for ever, and prints each number only after the store has written it.
async fn give_out(path: &Path) {
    let store = open(path);
    let mut sqn = store.subscriber(supi()).await.unwrap().unwrap().authentication.sqn;
    let mut out = std::io::stdout();
    loop {
        assert!(store.advance_sqn(supi(), sqn, sqn + 1).await.unwrap(), "nobody else writes");
        sqn += 1;
        // A closed pipe means that the parent process has ended.
        if writeln!(out, "sqn {sqn}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

fn spawn(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_number_given_out_survives_kill_9", "--nocapture"])
        .env(FILE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn a_number_given_out_survives_kill_9() {
    if let Some(path) = std::env::var_os(FILE) {
        return give_out(Path::new(&path)).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("godwit.db");
    let authentication = Authentication {
        k: Key::new([1; 16]),
        operator_code: OperatorCode::Opc(Key::new([2; 16])),
        amf: Key::new([0x80, 0]),
        sqn: 0,
    };
    let store = open(&path);
    store.put_subscribers(vec![Subscriber::new(supi(), authentication)], OnConflict::Fail).await.unwrap();
    drop(store);

    let mut highest = 0;
    for round in 1..=5 {
        let mut child = spawn(&path);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // The output of the child's test harness comes first, then the numbers.
        let mut numbers = lines
            .by_ref()
            .filter_map(|line| line.rsplit_once("sqn ").and_then(|(_, n)| n.parse::<u64>().ok()));
        for _ in 0..round * 20 {
            highest = numbers.next().expect("the child gives out numbers until it is killed");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Numbers that were printed before the kill and not read yet count as well.
        highest = numbers.last().unwrap_or(highest);
        let store = open(&path);
        let kept = store.subscriber(supi()).await.unwrap().unwrap().authentication.sqn;
        assert!(kept >= highest, "round {round}: {highest} was given out, {kept} is kept");
        assert!(kept <= highest + 1, "at most the last one was not said");
    }
}

/// Environment variable with the path of a store that is to be encrypted; set only in the process that is killed.
const PLAINTEXT: &str = "GODWIT_TEST_PLAINTEXT_STORE";
/// Enough for the conversion to take a while.
const SUBSCRIBERS: u64 = 4_000;
const K: &str = "465b5ce8b199b49faa5f0a2ee238a6bc";
const OPC: &str = "e8ed289deba952e4283b54e88e6183ca";

/// A store of version 1: keys in clear.
fn plaintext_store(path: &Path) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection
        .execute_batch(&format!(
            "CREATE TABLE subscriber (imsi TEXT PRIMARY KEY, msisdn TEXT, k TEXT NOT NULL, opc TEXT, op TEXT,
                 amf TEXT NOT NULL, sqn INTEGER NOT NULL, ue_ambr TEXT NOT NULL, slices TEXT NOT NULL,
                 CHECK ((opc IS NULL) <> (op IS NULL))) WITHOUT ROWID;
             CREATE TABLE context (kind TEXT NOT NULL, key TEXT NOT NULL, document TEXT NOT NULL,
                 PRIMARY KEY (kind, key)) WITHOUT ROWID;
             PRAGMA user_version = 1;
             WITH RECURSIVE number (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM number WHERE n + 1 < {SUBSCRIBERS})
             INSERT INTO subscriber SELECT 999700000000000 + n, NULL, '{K}', '{OPC}', NULL, '8000', n,
                 '{{\"uplink\":\"1 Gbps\",\"downlink\":\"1 Gbps\"}}',
                 '[{{\"snssai\":{{\"sst\":1}},\"dnns\":[{{\"dnn\":\"internet\"}}]}}]' FROM number;"
        ))
        .unwrap();
}

/// `kill -9` while the keys of an older store are being encrypted: at any time, the next start finds
/// every subscriber with its keys and its sequence number, and no key is left in clear.
#[tokio::test]
async fn encrypting_an_older_store_survives_kill_9() {
    if let Some(path) = std::env::var_os(PLAINTEXT) {
        drop(open(Path::new(&path)));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.db");
    plaintext_store(&template);
    let mut interrupted = 0;
    for round in 0..16 {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("godwit.db");
        std::fs::copy(&template, &path).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "encrypting_an_older_store_survives_kill_9"])
            .env(PLAINTEXT, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Times between the start of the process and shortly after its end.
        net::time::sleep(net::time::Duration::from_millis(3 + 6 * round)).await;
        interrupted += u32::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();

        let store = open(&path);
        let subscribers = store.subscribers(None, usize::MAX).await.unwrap();
        assert_eq!(subscribers.len() as u64, SUBSCRIBERS, "round {round}");
        for (index, subscriber) in subscribers.iter().enumerate() {
            let authentication = &subscriber.authentication;
            assert_eq!((authentication.k.to_hex().as_str(), authentication.sqn), (K, index as u64));
            assert_eq!(authentication.operator_code, OperatorCode::Opc(OPC.parse().unwrap()));
        }
        drop(store);
        for file in std::fs::read_dir(own.path()).unwrap() {
            let octets = std::fs::read(file.unwrap().path()).unwrap();
            assert!(
                !octets.windows(K.len()).any(|text| text == K.as_bytes()),
                "round {round}: a key in clear"
            );
        }
    }
    assert!(interrupted > 3, "the kills came too late: {interrupted}");
}
