//! Records, in SQLite and PostgreSQL: what was written is there after a restart and after `kill -9`, and other databases are left alone.
//!
//! Tests of `kill -9` start this program again as the process to be killed; the environment variable [`DATABASE`] makes the difference.
#![allow(clippy::unwrap_used, clippy::panic, reason = "every line here is test code")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use postgres::Postgres;
use store::StoreError;
use store::records::{Change, Records};

/// Environment variable with the database; set only in the process that is killed.
const DATABASE: &str = "GODWIT_TEST_KILLED_RECORDS";

fn put(key: u64, octets: impl Into<Vec<u8>>) -> Change {
    Change::Put { key, octets: octets.into() }
}

fn sqlite() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/new/records.db", folder.path().display());
    (folder, url)
}

/// All records of a space, in parts.
async fn all(records: &Records, space: &str, limit: usize) -> BTreeMap<u64, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut last = None;
    loop {
        let part = records.load(space, last, limit).await.unwrap();
        assert!(part.len() <= limit);
        let Some((key, _)) = part.last() else { return found };
        last = Some(*key);
        for (key, octets) in part {
            assert_eq!(found.insert(key, octets), None, "no record comes twice");
        }
    }
}

async fn keeps_records(url: &str) {
    let records = Records::open(url).await.unwrap();
    assert_eq!(records.spaces().await.unwrap(), []);
    let keys = [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 77];
    let wanted: BTreeMap<u64, Vec<u8>> = keys.map(|key| (key, key.to_be_bytes().to_vec())).into();
    let changes = wanted.iter().map(|(key, octets)| put(*key, octets.clone())).collect();
    records.write("one", changes).await.unwrap();
    records.write("two", vec![put(1, []), put(2, *b"x"), put(2, *b"y"), put(3, [0; 70_000])]).await.unwrap();
    records.write("two", vec![Change::Remove { key: 3 }, Change::Remove { key: 4 }]).await.unwrap();
    records.write("two", vec![put(5, *b"a"), Change::Remove { key: 5 }]).await.unwrap();
    records.write("two", vec![Change::Remove { key: 6 }, put(6, *b"b")]).await.unwrap();
    for limit in [1, 2, 100] {
        assert_eq!(all(&records, "one", limit).await, wanted);
    }
    assert_eq!(records.get("one", 77).await.unwrap(), Some(77u64.to_be_bytes().to_vec()));
    assert_eq!(records.get("one", 78).await.unwrap(), None);
    drop(records);

    let records = Records::open(url).await.unwrap();
    assert_eq!(records.spaces().await.unwrap(), [("one".to_owned(), 7), ("two".to_owned(), 3)]);
    let two = [(1, vec![]), (2, b"y".to_vec()), (6, b"b".to_vec())];
    assert_eq!(all(&records, "two", 10).await, two.into());
    records.clear("two").await.unwrap();
    records.clear("three").await.unwrap();
    assert_eq!(all(&records, "two", 10).await, [].into());
    assert_eq!(all(&records, "one", 10).await, wanted);
    records.clear("one").await.unwrap();
}

/// Many callers at once, each with records of its own and one that all of them change.
async fn keeps_order(url: &str) {
    let records = Records::open(url).await.unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..50u64 {
        let records = records.clone();
        callers.spawn(async move {
            for number in 0..20u64 {
                let changes = vec![put(caller, number.to_be_bytes()), put(1_000, [caller as u8])];
                records.write("crowd", changes).await.unwrap();
                if number == 10 {
                    records.clear("other").await.unwrap();
                }
            }
        });
    }
    callers.join_all().await;
    let found = all(&records, "crowd", 7).await;
    assert_eq!(found.len(), 51);
    assert!((0..50).all(|caller| found[&caller] == 19u64.to_be_bytes()));
    records.clear("crowd").await.unwrap();
}

/// Writes pairs of records for ever, and prints the number of each only when it is written.
async fn write_for_ever(url: &str) {
    let records = Records::open(url).await.unwrap();
    let mut out = std::io::stdout();
    let mut number = records.get("killed", 1).await.unwrap().map_or(0, |octets| number_of(&octets));
    loop {
        number += 1;
        let octets = number.to_be_bytes();
        records.write("killed", vec![put(1, octets), put(2, octets)]).await.unwrap();
        // A closed pipe means that the parent process has ended.
        if writeln!(out, "written {number}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

fn number_of(octets: &[u8]) -> u64 {
    u64::from_be_bytes(octets.try_into().unwrap())
}

/// Kills the writer at any time; what it had written is there, and never half of it.
async fn survives_kill(test: &str, url: &str, mut between: impl FnMut()) {
    for round in 1..=4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(DATABASE, url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut numbers =
            lines.filter_map(|line| line.rsplit_once("written ").and_then(|(_, n)| n.parse::<u64>().ok()));
        let seen = numbers.by_ref().take(round * 15).last().expect("the child writes until it is killed");
        child.kill().unwrap();
        child.wait().unwrap();
        let said = numbers.last().unwrap_or(seen);
        between();
        let records = Records::open(url).await.unwrap();
        let found = all(&records, "killed", 10).await;
        assert_eq!(found[&1], found[&2], "both or none");
        let found = number_of(&found[&1]);
        assert!((said..=said + 1).contains(&found), "{said} was said, {found} is kept");
    }
}

#[tokio::test]
async fn sqlite_keeps_records() {
    let (_folder, url) = sqlite();
    keeps_records(&url).await;
    keeps_order(&url).await;
}

#[tokio::test]
async fn sqlite_survives_kill_9() {
    if let Ok(url) = std::env::var(DATABASE) {
        return write_for_ever(&url).await;
    }
    let (_folder, url) = sqlite();
    survives_kill("sqlite_survives_kill_9", &url, || ()).await;
}

#[tokio::test]
async fn a_file_that_is_not_ours_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.db");
    let url = format!("sqlite:{}", path.display());
    let theirs = rusqlite::Connection::open(&path).unwrap();
    theirs.execute_batch("CREATE TABLE record (space TEXT, key INTEGER, octets BLOB)").unwrap();
    drop(theirs);
    let before = std::fs::read(&path).unwrap();
    let error = Records::open(&url).await.err().unwrap();
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains("belongs to another program"));
    assert_eq!(std::fs::read(&path).unwrap(), before);

    std::fs::write(
        &path,
        "no database, just text, and more of it than a header of SQLite has: 100 octets. ".repeat(9),
    )
    .unwrap();
    let error = Records::open(&url).await.err().unwrap();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    let error = Records::open(&format!("sqlite:{}", folder.path().display())).await.err().unwrap();
    assert!(matches!(error, StoreError::Open { .. }), "{error}");
}

#[tokio::test]
async fn damage_and_newer_files_are_found_at_once() {
    let (folder, url) = sqlite();
    let path = folder.path().join("new/records.db");
    let records = Records::open(&url).await.unwrap();
    records.write("one", (0..5_000).map(|key| put(key, [7; 100])).collect()).await.unwrap();
    drop(records);
    let whole = std::fs::read(&path).unwrap();
    let mut broken = whole.clone();
    let middle = broken.len() / 2 / 4096 * 4096;
    broken[middle..middle + 4096].fill(0xA5);
    std::fs::write(&path, broken).unwrap();
    let error = Records::open(&url).await.err().unwrap();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");

    std::fs::write(&path, whole).unwrap();
    let newer = rusqlite::Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", 2).unwrap();
    drop(newer);
    let error = Records::open(&url).await.err().unwrap();
    assert!(matches!(error, StoreError::Newer { found: 2, known: 1 }), "{error}");
}

#[tokio::test]
async fn what_names_no_database_is_said_without_its_password() {
    for url in
        ["mysql:host=x password=secret", "records.db", "sqlite:", "postgresql:password=secret colour=red"]
    {
        let error = Records::open(url).await.err().unwrap();
        assert!(matches!(error, StoreError::Url(_)), "{url}: {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let error =
        Records::open("postgresql:host=/nowhere user=u password=secret dbname=d").await.err().unwrap();
    assert!(matches!(error, StoreError::Postgresql { .. }), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

// Several threads: the cluster's calls block, and connections are to be closed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn postgresql_keeps_records() {
    if !postgres::is_possible() {
        return;
    }
    let mut cluster = Postgres::start().unwrap();
    keeps_records(&cluster.url()).await;
    keeps_order(&cluster.url()).await;

    // A connection that is lost is made anew.
    let records = Records::open(&cluster.url()).await.unwrap();
    records.write("one", vec![put(1, *b"a")]).await.unwrap();
    cluster.restart().unwrap();
    assert_eq!(records.get("one", 1).await.unwrap(), Some(b"a".to_vec()));
    cluster.restart().unwrap();
    records.write("one", vec![put(2, *b"b")]).await.unwrap();
    cluster.crash();
    let error = records.write("one", vec![put(3, *b"c")]).await.unwrap_err();
    assert!(matches!(error, StoreError::Postgresql { .. }), "{error}");
    cluster.restart().unwrap();
    let found = all(&records, "one", 10).await;
    assert_eq!(found, [(1, b"a".to_vec()), (2, b"b".to_vec())].into());

    // Tables of others, and of newer programs.
    cluster.sql("UPDATE godwit_records.format SET version = 2").unwrap();
    let error = Records::open(&cluster.url()).await.err().unwrap();
    assert!(matches!(error, StoreError::Newer { found: 2, known: 1 }), "{error}");
    cluster.sql("SET client_min_messages = error; DROP SCHEMA godwit_records CASCADE; CREATE SCHEMA godwit_records").unwrap();
    let error = Records::open(&cluster.url()).await.err().unwrap();
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
}

#[tokio::test]
async fn postgresql_survives_kill_9() {
    if let Ok(url) = std::env::var(DATABASE) {
        return write_for_ever(&url).await;
    }
    if !postgres::is_possible() {
        return;
    }
    let mut cluster = Postgres::start().unwrap();
    let url = cluster.url();
    survives_kill("postgresql_survives_kill_9", &url, || cluster.restart().unwrap()).await;
}
