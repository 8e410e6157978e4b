//! `kill -9` at any moment: a sequence number that was given out is in the file (CP-7), so no challenge is made
//! twice with the same one.
//!
//! The test runs itself again as the process to be killed; [`FILE`] in the environment tells that one what it is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "every line here is test code")]

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
};

use store::{Authentication, OnConflict, OperatorCode, Sqlite, Store, Subscriber};
use types::{Key, Supi};

/// Environment variable with the path of the store; set only in the process that is killed.
const FILE: &str = "GODWIT_TEST_KILLED_STORE";

fn supi() -> Supi {
    "999700000000001".parse().unwrap()
}

/// Advances the sequence number for ever, and says each number only after the store has it.
async fn give_out(path: &Path) {
    let store = Sqlite::open(path).unwrap();
    let mut sqn = store.subscriber(supi()).await.unwrap().unwrap().authentication.sqn;
    let mut out = std::io::stdout();
    loop {
        assert!(store.advance_sqn(supi(), sqn, sqn + 1).await.unwrap(), "nobody else writes");
        sqn += 1;
        // A closed pipe means that the parent is gone.
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
    let store = Sqlite::open(&path).unwrap();
    store.put_subscribers(vec![Subscriber::new(supi(), authentication)], OnConflict::Fail).await.unwrap();
    drop(store);

    let mut highest = 0;
    for round in 1..=5 {
        let mut child = spawn(&path);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // Test output of the child's own harness comes first; numbers follow.
        let mut numbers = lines
            .by_ref()
            .filter_map(|line| line.rsplit_once("sqn ").and_then(|(_, n)| n.parse::<u64>().ok()));
        for _ in 0..round * 20 {
            highest = numbers.next().expect("the child gives out numbers until it is killed");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it said before it died, and nobody has read yet, counts as well.
        highest = numbers.last().unwrap_or(highest);
        let store = Sqlite::open(&path).unwrap();
        let kept = store.subscriber(supi()).await.unwrap().unwrap().authentication.sqn;
        assert!(kept >= highest, "round {round}: {highest} was given out, {kept} is kept");
        assert!(kept <= highest + 1, "at most the last one was not said");
    }
}
