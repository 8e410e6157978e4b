//! The SQLite store against a real file.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::subscriber::example;

fn open() -> (tempfile::TempDir, Sqlite) {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&folder.path().join("sub/godwit.db")).unwrap();
    (folder, store)
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
    // Two processes on one file, both starting from the same number: exactly one wins each round.
    let other = Sqlite::open(&folder.path().join("sub/godwit.db")).unwrap();
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
    let store = Sqlite::open(&path).unwrap();
    assert_eq!(store.subscriber(example(7).supi).await.unwrap(), Some(example(7)));
}

#[tokio::test]
async fn damage_and_newer_files_are_named() {
    let (folder, store) = open();
    let path = folder.path().join("sub/godwit.db");
    store.put_subscribers(vec![example(7)], OnConflict::Fail).await.unwrap();
    let raw = Connection::open(&path).unwrap();
    raw.execute("UPDATE subscriber SET k = 'secret, not hexadecimal'", []).unwrap();
    let error = store.subscriber(example(7).supi).await.unwrap_err().to_string();
    assert!(error.contains("000000000000007") && !error.contains("secret"), "{error}");
    raw.pragma_update(None, "user_version", 99).unwrap();
    drop((store, raw));
    assert!(matches!(Sqlite::open(&path), Err(StoreError::Newer { found: 99, .. })));
    let not_a_file = Sqlite::open(folder.path()).map(drop).unwrap_err();
    assert!(matches!(not_a_file, StoreError::Open { .. }), "{not_a_file}");
}
