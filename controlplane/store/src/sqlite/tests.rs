//! The SQLite store against a real file.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::subscriber::example;

fn open() -> (tempfile::TempDir, Sqlite) {
    let folder = tempfile::tempdir().unwrap();
    let store = reopen(&folder).unwrap();
    (folder, store)
}

fn reopen(folder: &tempfile::TempDir) -> Result<Sqlite, StoreError> {
    Sqlite::open(&file(folder), &key(folder, "store.key"))
}

fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("sub/godwit.db")
}

fn key(folder: &tempfile::TempDir, name: &str) -> KeySource {
    KeySource::File(folder.path().join("keys").join(name))
}

/// All octets on disk: the file and its write-ahead log.
fn octets_on_disk(folder: &tempfile::TempDir) -> Vec<u8> {
    let files = std::fs::read_dir(folder.path().join("sub")).unwrap();
    files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
}

/// Whether a key is found there, as octets or as text.
fn is_on_disk(folder: &tempfile::TempDir, secret: &[u8; 16]) -> bool {
    let disk = octets_on_disk(folder);
    let hex = types::Key::new(*secret).to_hex();
    let found = |needle: &[u8]| disk.windows(needle.len()).any(|window| window.eq_ignore_ascii_case(needle));
    found(secret) || found(hex.as_bytes())
}

/// A store of version 1 with `count` subscribers, and one more that was removed.
fn plaintext_store(folder: &tempfile::TempDir, count: u64) -> Vec<Subscriber> {
    std::fs::create_dir_all(folder.path().join("sub")).unwrap();
    let connection = Connection::open(file(folder)).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection
        .execute_batch(
            "CREATE TABLE subscriber (imsi TEXT PRIMARY KEY, msisdn TEXT, k TEXT NOT NULL, opc TEXT, op TEXT,
                 amf TEXT NOT NULL, sqn INTEGER NOT NULL, ue_ambr TEXT NOT NULL, slices TEXT NOT NULL,
                 CHECK ((opc IS NULL) <> (op IS NULL))) WITHOUT ROWID;
             CREATE TABLE context (kind TEXT NOT NULL, key TEXT NOT NULL, document TEXT NOT NULL,
                 PRIMARY KEY (kind, key)) WITHOUT ROWID;
             INSERT INTO context VALUES ('amf', 'imsi-000000000000001', '{}');
             PRAGMA user_version = 1;
             BEGIN",
        )
        .unwrap();
    let mut subscribers: Vec<_> = (1..=count + 1).map(example).collect();
    for (index, subscriber) in subscribers.iter_mut().enumerate() {
        subscriber.authentication.sqn = index as u64;
        if index % 2 == 1 {
            subscriber.authentication.operator_code = OperatorCode::Op(types::Key::new([9; 16]));
        }
        let (opc, op) = match &subscriber.authentication.operator_code {
            OperatorCode::Opc(opc) => (Some(opc.to_hex()), None),
            OperatorCode::Op(op) => (None, Some(op.to_hex())),
        };
        connection
            .execute(
                "INSERT INTO subscriber VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                params![
                    subscriber.supi.imsi().to_string(),
                    subscriber.msisdn,
                    subscriber.authentication.k.to_hex(),
                    opc,
                    op,
                    subscriber.authentication.amf.to_hex(),
                    subscriber.authentication.sqn as i64,
                    serde_json::to_string(&subscriber.ue_ambr).unwrap(),
                    serde_json::to_string(&subscriber.slices).unwrap(),
                ],
            )
            .unwrap();
    }
    connection.execute_batch("COMMIT").unwrap();
    let removed = subscribers.pop().unwrap();
    connection.execute("DELETE FROM subscriber WHERE imsi = ?1", [removed.supi.imsi().to_string()]).unwrap();
    subscribers
}

#[tokio::test]
async fn subscribers_are_added_listed_replaced_and_removed() {
    let (_folder, store) = open();
    let batch: Vec<_> = (1..=5).map(example).collect();
    store.put_subscribers(batch.clone(), OnConflict::Fail).await.unwrap();
    assert_eq!(store.subscriber_count().await.unwrap(), 5);
    assert_eq!(store.subscriber(batch[2].supi).await.unwrap(), Some(batch[2].clone()));
    assert_eq!(store.subscribers(Some(batch[1].supi), 2).await.unwrap(), batch[2..4]);

    let error = store.put_subscribers(vec![example(9), example(1)], OnConflict::Fail).await.unwrap_err();
    assert!(matches!(error, StoreError::Exists(supi) if supi == batch[0].supi));
    assert_eq!(store.subscriber_count().await.unwrap(), 5, "a refused batch leaves nothing behind");

    let mut replaced = example(1);
    replaced.msisdn = Some("491700000001".into());
    store.put_subscribers(vec![replaced.clone()], OnConflict::Replace).await.unwrap();
    assert_eq!(store.subscriber(replaced.supi).await.unwrap(), Some(replaced));

    store.put_context("amf", format!("{}/1", batch[0].supi), "{}".into()).await.unwrap();
    assert!(store.remove_subscriber(batch[0].supi).await.unwrap());
    assert!(!store.remove_subscriber(batch[0].supi).await.unwrap());
    assert_eq!(store.contexts("amf", "").await.unwrap(), []);
}

#[tokio::test]
async fn a_sequence_number_is_given_out_once_and_never_goes_back() {
    let (folder, store) = open();
    let supi = example(1).supi;
    store.put_subscribers(vec![example(1)], OnConflict::Fail).await.unwrap();
    // Two processes on one file, both starting from the same number: exactly one succeeds in each
    // round.
    let other = reopen(&folder).unwrap();
    for sqn in 0..50 {
        let (a, b) =
            tokio::join!(store.advance_sqn(supi, sqn, sqn + 1), other.advance_sqn(supi, sqn, sqn + 1));
        assert!(a.unwrap() ^ b.unwrap(), "round {sqn}");
    }
    assert_eq!(store.subscriber(supi).await.unwrap().unwrap().authentication.sqn, 50);
    store.put_subscribers(vec![example(1)], OnConflict::Replace).await.unwrap();
    assert_eq!(store.subscriber(supi).await.unwrap().unwrap().authentication.sqn, 50);
    assert!(store.set_sqn(supi, crate::SQN_MAX).await.unwrap());
    assert_eq!(other.subscriber(supi).await.unwrap().unwrap().authentication.sqn, crate::SQN_MAX);
    assert!(!store.set_sqn(example(2).supi, 1).await.unwrap());
}

#[tokio::test]
async fn many_writers_at_once_all_get_their_answer() {
    let (_folder, store) = open();
    let writes: Vec<_> = (0..2_000)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { store.put_context("t", format!("{i:04}"), i.to_string()).await })
        })
        .collect();
    for write in writes {
        write.await.unwrap().unwrap();
    }
    assert_eq!(store.contexts("t", "").await.unwrap().len(), 2_000);
    assert_eq!(store.contexts("t", "19").await.unwrap().len(), 100);
    assert_eq!(store.context("t", "0007").await.unwrap().as_deref(), Some("7"));
    assert!(store.remove_context("t", "0007").await.unwrap());
    assert_eq!(store.context("t", "0007").await.unwrap(), None);
    assert_eq!(store.contexts("t", "%").await.unwrap(), [], "a prefix is text, not a pattern");
}

#[tokio::test]
async fn the_file_is_private_and_outlives_the_process_that_wrote_it() {
    let (folder, store) = open();
    let path = folder.path().join("sub/godwit.db");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    store.put_subscribers(vec![example(7)], OnConflict::Fail).await.unwrap();
    drop(store);
    let store = reopen(&folder).unwrap();
    assert_eq!(store.subscriber(example(7).supi).await.unwrap(), Some(example(7)));
}

#[tokio::test]
async fn damage_and_newer_files_are_named() {
    let (folder, store) = open();
    let path = folder.path().join("sub/godwit.db");
    store.put_subscribers(vec![example(7)], OnConflict::Fail).await.unwrap();
    let raw = Connection::open(&path).unwrap();
    raw.execute("UPDATE subscriber SET k = 'secret, not encrypted'", []).unwrap();
    let error = store.subscriber(example(7).supi).await.unwrap_err().to_string();
    assert!(error.contains("000000000000007") && !error.contains("secret"), "{error}");
    raw.pragma_update(None, "user_version", 99).unwrap();
    drop((store, raw));
    assert!(matches!(reopen(&folder), Err(StoreError::Newer { found: 99, .. })));
    let not_a_file = Sqlite::open(folder.path(), &key(&folder, "k")).map(drop).unwrap_err();
    assert!(matches!(not_a_file, StoreError::Open { .. }), "{not_a_file}");
}

#[tokio::test]
async fn keys_are_encrypted_and_open_only_with_their_key_in_their_row() {
    let (folder, store) = open();
    store.put_subscribers((1..=3).map(example).collect(), OnConflict::Fail).await.unwrap();
    let secrets = example(1).authentication;
    let OperatorCode::Opc(opc) = &secrets.operator_code else { panic!("the example has an OPc") };
    for secret in [secrets.k.expose(), opc.expose()] {
        assert!(!is_on_disk(&folder, secret));
    }
    // Somebody with write access to the file gives one subscriber the keys of another.
    let raw = Connection::open(file(&folder)).unwrap();
    let imsi = |n: u64| example(n).supi.imsi().to_string();
    let swap = "UPDATE subscriber SET k = (SELECT k FROM subscriber WHERE imsi = ?1) WHERE imsi = ?2";
    raw.execute(swap, [imsi(1), imsi(2)]).unwrap();
    raw.execute("UPDATE subscriber SET opc = k WHERE imsi = ?1", [imsi(3)]).unwrap();
    assert_eq!(store.subscriber(example(1).supi).await.unwrap(), Some(example(1)));
    for swapped in [2, 3] {
        let error = store.subscriber(example(swapped).supi).await.unwrap_err();
        assert!(matches!(&error, StoreError::Corrupt { key, .. } if *key == imsi(swapped)), "{error}");
    }
    drop((store, raw));

    let wrong = Sqlite::open(&file(&folder), &key(&folder, "other.key")).map(drop).unwrap_err();
    assert!(wrong.to_string().contains("is missing: restore it"), "{wrong}");
    assert!(!folder.path().join("keys/other.key").exists(), "no new key for old ciphertexts");
    key(&folder, "other.key").load_or_create().unwrap();
    let wrong = Sqlite::open(&file(&folder), &key(&folder, "other.key")).map(drop).unwrap_err();
    assert!(wrong.to_string().contains("is not the key that the store is encrypted with"), "{wrong}");
    reopen(&folder).unwrap();
}

#[tokio::test]
async fn keys_of_an_older_program_are_encrypted_at_the_start_without_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = plaintext_store(&folder, 500);
    let k = wanted[0].authentication.k.expose();
    assert!(is_on_disk(&folder, k), "the test finds what it looks for");
    let store = reopen(&folder).unwrap();
    assert_eq!(store.subscribers(None, 1_000).await.unwrap(), wanted);
    assert_eq!(store.contexts("amf", "").await.unwrap().len(), 1);
    // The file and its log, in their used and unused pages.
    for secret in [k, &[9; 16]] {
        assert!(!is_on_disk(&folder, secret));
    }
    store.check().unwrap();
    drop(store);
    assert_eq!(reopen(&folder).unwrap().subscribers(None, 1_000).await.unwrap(), wanted);
}

#[tokio::test]
async fn a_damaged_row_of_an_older_program_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    plaintext_store(&folder, 3);
    let raw = Connection::open(file(&folder)).unwrap();
    raw.execute("UPDATE subscriber SET k = 'no key' WHERE imsi = '000000000000002'", []).unwrap();
    let error = reopen(&folder).map(drop).unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { key, .. } if key == "000000000000002"), "{error}");
    let version: i64 = raw.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 1);
    raw.execute("DELETE FROM subscriber WHERE imsi = '000000000000002'", []).unwrap();
    assert_eq!(reopen(&folder).unwrap().subscriber_count().await.unwrap(), 2);
}

#[tokio::test]
async fn a_change_of_keys_is_complete_and_noticed_by_those_who_run() {
    let (folder, running) = open();
    let wanted: Vec<_> = (1..=1_500).map(example).collect();
    running.put_subscribers(wanted.clone(), OnConflict::Fail).await.unwrap();
    let before = key(&folder, "store.key");
    let after = key(&folder, "new.key");
    Sqlite::change_key(&file(&folder), &before, &after).unwrap();
    // Repeated after an interruption at the end: this works also without the old key.
    std::fs::remove_file(before.path()).unwrap();
    Sqlite::change_key(&file(&folder), &before, &after).unwrap();

    for error in [
        running.subscriber(wanted[0].supi).await.map(drop).unwrap_err(),
        running.put_subscribers(vec![example(9_999)], OnConflict::Fail).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("restart the core"), "{error}");
    }
    let store = Sqlite::open_existing(&file(&folder), &after).unwrap();
    assert_eq!(store.subscribers(None, 10_000).await.unwrap(), wanted);
}

#[test]
fn only_open_creates_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let error = Sqlite::open_existing(&file(&folder), &key(&folder, "k")).map(drop).unwrap_err();
    assert!(error.to_string().contains("godwit subscriber add"), "{error}");
    assert!(Sqlite::change_key(&file(&folder), &key(&folder, "k"), &key(&folder, "l")).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn damage_anywhere_in_the_file_is_found_with_the_remedy() {
    let (folder, store) = open();
    store.put_subscribers((1..=2_000).map(example).collect(), OnConflict::Fail).await.unwrap();
    store.check().unwrap();
    drop(store);
    let files = std::fs::read_dir(folder.path().join("sub")).unwrap().count();
    assert_eq!(files, 1, "a closed store is one file");
    let sound = std::fs::read(file(&folder)).unwrap();
    let pages = sound.len() / 4096;
    assert!(pages > 50);
    for page in [1, pages / 2, pages - 1] {
        let mut broken = sound.clone();
        broken[page * 4096..][..512].fill(0xA5);
        std::fs::write(file(&folder), broken).unwrap();
        let error = reopen(&folder).and_then(|store| store.check()).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, StoreError::Damaged { .. }) && text.contains(".recover"),
            "page {page}: {text}"
        );
    }
    std::fs::write(file(&folder), "this was a database once, and is none any more").unwrap();
    assert!(matches!(reopen(&folder).map(drop).unwrap_err(), StoreError::Damaged { .. }));
}
